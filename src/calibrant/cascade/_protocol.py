"""Protocols and data of cascades, confidence methods and calibrators."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from calibrant.core._prediction import Prediction, Usage
from calibrant.inference._classifier import Classifier
from calibrant.metrics._validation import check_number


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One model's answer to one text.

    Attributes
    ----------
    question : str
        The user's text, as the model read it.
    prediction : Prediction
        The answer; its outcome is ``ok``. Holds its tokens where the method needs them.
    classifier : Classifier
        The model that answered.
    context : str or None
        The text that the answer should be grounded in, if any.

    Examples
    --------
    >>> from calibrant.cascade import Answered, LabelProbability
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(["Food", "Rent"], {"lunch": ("Food", 0.9)})
    >>> classifier = Classifier(model=fake, labels=fake.labels, field="category", prompt="Sort the payment.")
    >>> Answered(question="lunch", prediction=classifier.classify("lunch"), classifier=classifier).prediction.label
    'Food'
    """

    question: str
    prediction: Prediction
    classifier: Classifier
    context: str | None = None


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """Confidence in an answer, with the method's native value and the usage.

    Attributes
    ----------
    confidence : float
        In [0, 1].
    native : float
        The same in the method's own unit, such as a mean natural log-probability; the surer, the higher.
    reason : str
        The verifier's own words, where one was asked.
    usage : Usage
        Tokens and cost of the calls that were made to find out.
    attempts : int
        Those calls, retries included.

    Examples
    --------
    >>> Assessment(confidence=0.9, native=-0.1).confidence
    0.9
    """

    confidence: float
    native: float
    reason: str = ""
    usage: Usage = Usage()
    attempts: int = 0

    def checked(self, source: str) -> Assessment | NoEvidence:
        """Return the assessment, or `NoEvidence` if its confidence is not in [0, 1]."""
        if is_share(self.confidence):
            return self
        reason = f"expected a confidence in [0, 1] of {source}, got {self.confidence!r}"
        return NoEvidence(reason=reason, usage=self.usage, attempts=self.attempts)


@dataclass(frozen=True, kw_only=True)
class NoEvidence:
    """Result of a confidence method that has no confidence, with the reason.

    Attributes
    ----------
    reason : str
        The fault: what was expected, what came, what to do.
    usage : Usage
        Tokens and cost of the calls that were made in vain.
    attempts : int
        Those calls, retries included.

    Examples
    --------
    >>> NoEvidence(reason="expected log-probabilities, got none").attempts
    0
    """

    reason: str
    usage: Usage = Usage()
    attempts: int = 0


@runtime_checkable
class ConfidenceMethod(Protocol):
    """Protocol of confidence methods.

    Attributes
    ----------
    name : str
        As the configuration spells it.
    default_threshold : float
        On [0, 1]: the confidence from which an answer is accepted.
    top_logprobs : int
        Alternatives it needs for every token; 0 for none.
    needs_tokens : bool
        Whether it reads `Prediction.tokens`.
    makes_calls : bool
        Whether an assessment asks a model. A cascade then leaves its last model's answer unverified by default,
        as no other model would be asked.

    Examples
    --------
    >>> from calibrant.cascade import ConfidenceMethod, Margin
    >>> isinstance(Margin(), ConfidenceMethod)
    True
    """

    @property
    def name(self) -> str: ...

    @property
    def default_threshold(self) -> float: ...

    @property
    def top_logprobs(self) -> int: ...

    @property
    def needs_tokens(self) -> bool: ...

    @property
    def makes_calls(self) -> bool: ...

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the confidence in the answer; `NoEvidence` after a failure."""
        ...

    def to_confidence(self, native: float) -> float:
        """Map a value in the method's native unit to [0, 1].

        Raises
        ------
        ConfigurationError
            The value is not in the unit's range.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return the settings that can change an assessment as JSON values, free of credentials."""
        ...

    def close(self) -> None:
        """Close connections and models that the method opened."""
        ...


class BaseMethod:
    """Base class of confidence methods that read no tokens and return values in [0, 1]."""

    name: ClassVar[str]
    default_threshold: float = 0.7
    top_logprobs: ClassVar[int] = 0
    needs_tokens: ClassVar[bool] = False
    makes_calls: ClassVar[bool] = False
    unit: ClassVar[str]

    def to_confidence(self, native: float) -> float:
        """Return the value unchanged, as it already is a confidence.

        Raises
        ------
        ConfigurationError
            The value is not in [0, 1].
        """
        return check_number(self.unit, native, "[0, 1]")

    def describe(self) -> dict[str, Any]:
        """Return the method's name; subclasses add their settings."""
        return {"method": self.name}

    def close(self) -> None:
        """Close nothing: the method holds nothing open."""


class Calibrator(Protocol):
    """Protocol of confidence calibrators; see `calibrant.calibration`.

    One whose ``predict`` has a parameter ``predicted`` is given the labels as well. One with an attribute
    ``fingerprint`` is used in a cascade only with the classifier that this belongs to.
    """

    def predict(self, confidence: NDArray[np.float64], /) -> NDArray[np.float64]:
        """Return calibrated confidence in [0, 1], shape (n,), like `confidence`."""
        ...


def is_share(value: object) -> TypeGuard[float]:
    """Return True if `value` is a number in [0, 1] and not a bool."""
    return (
        isinstance(value, int | float | np.number)
        and not isinstance(value, bool)
        and bool(0.0 <= value <= 1.0)
    )


def for_one_row(method: Callable[..., NDArray[Any]]) -> Callable[..., Any]:
    """Wrap a function of arrays for calls with one row; keywords that it does not take are dropped."""
    parameters = inspect.signature(method).parameters

    def call(confidence: float, **values: object) -> Any:  # noqa: ANN401  (of the method)
        own = {name: [value] for name, value in values.items() if name in parameters}
        return method(np.array([confidence]), **own)[0]

    return call


def calibrator_record(calibrator: Calibrator | None) -> dict[str, Any] | None:
    """Return a calibrator's class and a digest of its parameters, or of its outputs on a grid."""
    if calibrator is None:
        return None
    record = getattr(calibrator, "to_record", None)
    # Other calibrators are told apart by their outputs on a grid.
    if callable(record):
        learned = json.dumps(record(), sort_keys=True, default=repr)
    else:
        learned = json.dumps(np.asarray(calibrator.predict(np.linspace(0.0, 1.0, 1001))).tolist())
    return class_record(calibrator, learned.encode("utf-8", "surrogatepass"))


def class_record(thing: object, learned: bytes) -> dict[str, Any]:
    """Return an object's class name and a digest of its learned state, as JSON values."""
    return {"class": type(thing).__qualname__, "sha256": hashlib.sha256(learned).hexdigest()}
