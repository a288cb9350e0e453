"""Protocols and data of cascades: models and their order, confidence methods and calibrators."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    TypeGuard,
    get_args,
    runtime_checkable,
)

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import FloatArray, JsonObject, Prediction, Record, Usage
from calibrant.core._reported import is_number
from calibrant.inference._base import BasePredictor
from calibrant.inference._classifier import Classifier
from calibrant.metrics._validation import check_number

EscalationOrder: TypeAlias = Literal["small_to_large", "size", "declared", "cost", "automix"]

ROUTED: Final = "routed"
"""Name of the model of a cascade that stands for ``[routing]``."""

_BILLIONS: Final = {"k": 1e-6, "m": 1e-3, "b": 1.0, "t": 1e3}
# An exponent with its sign is how Python writes a small number.
_SIZE: Final = re.compile(r"\s*((?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]\d+)?)\s*([kmbt]?)\s*", re.IGNORECASE)
# 135m, 8b, 8x7b. Thousands are left out, for a name that holds "128k" speaks of its context.
_NAMED: Final = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([mb])(?![a-z0-9])", re.IGNORECASE)
# The assumed quality of a model without size, and how quality is guessed from a size (in billions).
_QUALITY: Final = 0.5
_LEAST_QUALITY: Final = 0.3
_LARGE: Final = 70.0


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
    >>> from calibrant import Classifier, Prediction
    >>> from calibrant.cascade import Answered
    >>> from calibrant.testing import FakeClient
    >>> model = Classifier(model=FakeClient(["cat", "dog"], {}), labels=["cat", "dog"], field="category")
    >>> Answered(question="It purrs.", prediction=Prediction(label="cat"), classifier=model).prediction.label
    'cat'
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
    >>> from calibrant.cascade import Assessment
    >>> Assessment(confidence=0.7, native=0.7).checked("a grade").confidence
    0.7
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
    >>> from calibrant.cascade import NoEvidence
    >>> NoEvidence(reason="the answer came without tokens").attempts
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
    >>> method: ConfidenceMethod = Margin()
    >>> method.name, method.makes_calls
    ('margin', False)
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

    def describe(self) -> Record:
        """Return the settings that can change an assessment as JSON values, free of credentials."""
        ...

    def close(self) -> None:
        """Close connections and models that the method opened."""
        ...


class BaseMethod(ABC):
    """Base class of confidence methods that read no tokens and return values in [0, 1].

    Attributes
    ----------
    needs_logprobs : bool
        Whether it reads the label's probability or distribution, which models without log-probabilities lack.
    settings_keys : tuple of str
        Keys of the ``[cascade]`` section that it reads, such as ``context``.
    unit : str
        Its native unit in messages, such as ``a grade``.

    Examples
    --------
    >>> from calibrant.cascade import Assessment, BaseMethod
    >>> class ShortAnswers(BaseMethod):
    ...     name = "short_answers"
    ...     unit = "a share of three letters"
    ...     async def assess(self, answered):
    ...         share = min(1.0, 3 / len(answered.prediction.label))
    ...         return Assessment(confidence=share, native=share)
    >>> ShortAnswers().default_threshold
    0.7
    """

    name: ClassVar[str]
    default_threshold: float = 0.7
    top_logprobs: ClassVar[int] = 0
    needs_tokens: ClassVar[bool] = False
    needs_logprobs: ClassVar[bool] = False
    makes_calls: ClassVar[bool] = False
    settings_keys: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[str]

    @classmethod
    def from_settings(cls, settings: Record) -> Self:  # noqa: ARG003 (a method without options)
        """Return the method of a ``[cascade]`` section.

        Parameters
        ----------
        settings : mapping
            The section's keys and values, of which the method reads its `settings_keys`.
        """
        return cls()

    @abstractmethod
    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the confidence in the answer; `NoEvidence` after a failure."""

    def to_confidence(self, native: float) -> float:
        """Return the value unchanged, as it already is a confidence.

        Raises
        ------
        ConfigurationError
            The value is not in [0, 1].
        """
        return check_number(self.unit, native, "[0, 1]")

    def describe(self) -> JsonObject:
        """Return the method's name; subclasses add their settings."""
        return {"method": self.name}

    def close(self) -> None:  # noqa: B027 (most methods hold nothing open)
        """Close nothing: the method holds nothing open."""


class Calibrator(Protocol):
    """Protocol of confidence calibrators; see `calibrant.calibration`.

    One whose ``predict`` has a parameter ``predicted`` is given the labels as well. One with an attribute
    ``fingerprint`` is used in a cascade only with the classifier that this belongs to.
    """

    def predict(self, confidence: FloatArray, /) -> FloatArray:
        """Return calibrated confidence in [0, 1], shape (n,), like `confidence`."""
        ...


def is_share(value: object) -> TypeGuard[float]:
    """Return True if `value` is a number in [0, 1] and not a bool."""
    return is_number(value) and 0.0 <= value <= 1.0


def for_one_row(method: Callable[..., NDArray[Any]]) -> Callable[..., Any]:
    """Wrap a function of arrays for calls with one row; keywords that it does not take are dropped."""
    parameters = inspect.signature(method).parameters

    def call(confidence: float, **values: object) -> Any:  # noqa: ANN401  (of the method)
        own = {name: [value] for name, value in values.items() if name in parameters}
        return method(np.array([confidence]), **own)[0]

    return call


def calibrator_record(calibrator: Calibrator | None) -> JsonObject | None:
    """Return a calibrator's class and a digest of its parameters, or of its outputs on a grid."""
    if calibrator is None:
        return None
    record = getattr(calibrator, "to_record", None)
    # Other calibrators are told apart by their outputs on a grid.
    if callable(record):
        learned = json.dumps(record(), sort_keys=True, default=repr)
    else:
        outputs = calibrator.predict(np.linspace(0.0, 1.0, 1001))
        learned = json.dumps(np.asarray(outputs).tolist())
    return class_record(calibrator, learned.encode("utf-8", "surrogatepass"))


def class_record(thing: object, learned: bytes) -> JsonObject:
    """Return an object's class name and a digest of its learned state, as JSON values."""
    return {"class": type(thing).__qualname__, "sha256": hashlib.sha256(learned).hexdigest()}


@dataclass(frozen=True, kw_only=True)
class CascadeModel:
    """One model of a cascade.

    Attributes
    ----------
    classifier : Classifier
        The model under its own prompt.
    cost : float, optional
        Cost of a call, at least 0, in any unit that is the same for all models; orders models. 0 also
        says that the model is free: its calls count as 0 dollars where nobody reports a price.
    size : float or str, optional
        Number of parameters: ``"7b"``, ``"135m"``, ``"500k"``; a bare number is in billions. By default
        the size in the model's name (``smollm2-135m``), if any.
    quality : float, optional
        How good its answers are, in (0, 1]; orders models.
    name : str, optional
        Its name in steps; by default that of the model.
    concurrency : int, optional
        Its calls in flight at most, whatever limits are given to the whole cascade.

    Raises
    ------
    ConfigurationError
        A number is out of range, the size cannot be read, or the classifier is a cascade or none at all.

    Examples
    --------
    >>> from calibrant import Cascade, Classifier
    >>> from calibrant.cascade import CascadeModel
    >>> from calibrant.testing import FakeClient
    >>> labels = ["cat", "dog"]
    >>> own, hosted = (
    ...     Classifier(model=FakeClient(labels, {}, name=name), labels=labels) for name in ("own", "hosted")
    ... )
    >>> models = [CascadeModel(classifier=hosted, cost=0.01), CascadeModel(classifier=own, cost=0.0)]
    >>> Cascade(models, method="label_probability", escalation_order="cost").models
    ('own', 'hosted')
    """

    classifier: Classifier
    cost: float | None = None
    size: float | str | None = None
    quality: float | None = None
    name: str | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.classifier, Classifier):
            cascade = isinstance(self.classifier, BasePredictor)  # type: ignore[unreachable]
            hint = (
                "name its models instead" if cascade else "build one with Classifier(model=..., labels=...)"
            )
            raise ConfigurationError(
                f"Expected a Classifier as a model of a cascade, got {type(self.classifier).__name__}: {hint}."
            )
        intervals = {"cost": "[0, inf)", "quality": "(0, 1]", "concurrency": "[1, inf)"}
        for name, interval in intervals.items():
            value = getattr(self, name)
            if value is not None:
                check_number(f"the {name} of {self.label!r}", value, interval)
        if self.size is not None:
            _parse_size(self.size, model=self.label)

    @property
    def label(self) -> str:
        """Name of the model in the steps of a prediction."""
        if self.name is not None:
            return self.name
        return self.classifier.name

    @property
    def billions(self) -> float | None:
        """Parameter count in billions, from `size` or the model's name; None if unknown."""
        if self.size is not None:
            return _parse_size(self.size, model=self.label)
        # The last part of a path: llamacpp:/models/70b/SmolLM2-135M.gguf has 0.135.
        *_, file = re.split(r"[/\\]", self.classifier.name)
        match = _NAMED.search(file)
        if match is None:
            return None
        experts = int(match[1] or 1)
        size = float(match[2])
        return (experts * size * _BILLIONS[match[3].lower()]) or None


def _parse_size(size: float | str, *, model: str) -> float:
    """Parse a parameter count into billions; `model` is for the error message."""
    match = _SIZE.fullmatch(str(size))
    number = 0.0
    if match is not None:
        number = float(match[1]) * _BILLIONS[match[2].lower() or "b"]
    if not 0.0 < number < math.inf:
        raise ConfigurationError(
            f"Expected the size of {model!r} as a number of parameters such as '7b', '135m' or 7 (billions), got "
            f"{size!r}."
        )
    return number


def with_names(given: Sequence[Classifier | CascadeModel]) -> tuple[CascadeModel, ...]:
    """Return the models with distinct names.

    Raises
    ------
    ConfigurationError
        There are none, or two have the same `CascadeModel.name`.
    """
    if not isinstance(given, Sequence) or not given:
        got = "none" if isinstance(given, Sequence) else type(given).__name__
        raise ConfigurationError(f"Expected a list of at least one model, got {got}.")
    models = [model if isinstance(model, CascadeModel) else CascadeModel(classifier=model) for model in given]
    named = [model.name for model in models if model.name is not None]
    if len(set(named)) < len(named):
        raise ConfigurationError(f"Expected every model of a cascade to have its own name, got {named}.")
    labels = [model.label for model in models]
    taken = set(named)
    unique: list[CascadeModel] = []
    for model, label in zip(models, labels, strict=True):
        name = label
        if model.name is None and (label in taken or labels.count(label) > 1):
            # Two prompts of one model: the first, the second, ...
            numbered = (f"{label} #{number}" for number in count(1))
            name = next(one for one in numbered if one not in taken)
        taken.add(name)
        unique.append(replace(model, name=name))
    return tuple(unique)


def escalation_places(
    models: Sequence[CascadeModel], order: EscalationOrder, *, tradeoff: float
) -> tuple[list[int], EscalationOrder]:
    """Return the order of calls as positions of the models, and the criterion used for sorting.

    Equals keep their order.

    Parameters
    ----------
    models : sequence of CascadeModel
        As declared.
    order : {"small_to_large", "size", "declared", "cost", "automix"}
        As for `Cascade`.
    tradeoff : float
        The t of ``automix``, in [0, 1].

    Raises
    ------
    ConfigurationError
        An unknown order, or a number it needs that some models have and others have not.
    """
    if order not in get_args(EscalationOrder):
        raise ConfigurationError(
            f"Expected escalation_order to be one of {', '.join(get_args(EscalationOrder))}, got {order!r}."
        )
    check_number("cost_quality_tradeoff", tradeoff, "[0, 1]")
    places = list(range(len(models)))
    if order == "automix":
        keys = _tradeoffs(models, tradeoff)
    elif order != "declared":
        keys = _all_numbers(models, "cost" if order == "cost" else "size", order)
    # Where no size is known, the declared order is the user's own.
    if order == "declared" or not keys:
        return places, "declared"
    return sorted(places, key=keys.__getitem__), order


def _all_numbers(models: Sequence[CascadeModel], what: Literal["cost", "size"], order: str) -> list[float]:
    """Return the cost or size of each model; empty if no model has a size. Refuse missing values."""
    numbers = [model.cost if what == "cost" else model.billions for model in models]
    declared = [number for number in numbers if number is not None]
    if len(declared) == len(numbers) or not (declared or order == "cost"):
        return declared
    missing = [model.label for model, number in zip(models, numbers, strict=True) if number is None]
    raise ConfigurationError(
        f"Expected the {what} of every model with escalation_order={order!r}, but {', '.join(missing)} "
        f"{'has' if len(missing) == 1 else 'have'} none: give every model its {what} ({what} = ... of a "
        "CascadeModel, or under [[cascade.models]]), or take escalation_order = 'declared' (under [cascade])."
    )


def _tradeoffs(models: Sequence[CascadeModel], tradeoff: float) -> list[float]:
    """Return ``(1 - t) * quality + t * expense`` of each model."""
    costs = _all_numbers(models, "cost", "automix") if tradeoff else []
    least = min(costs, default=0.0)
    width = max(costs, default=0.0) - least
    keys = []
    for place, model in enumerate(models):
        expense = 0.5
        if width:
            expense = (costs[place] - least) / width
        quality = _QUALITY if model.quality is None else model.quality
        if model.quality is None and (billions := model.billions) is not None:
            quality = _LEAST_QUALITY + (1.0 - _LEAST_QUALITY) * min(billions / _LARGE, 1.0)
        keys.append((1.0 - tradeoff) * quality + tradeoff * expense)
    return keys
