"""Assessment of answers by a confidence method, with a journal for paid assessments."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence
from calibrant.core._errors import ConfigurationError, NotFittedError, ProviderError
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import Query
from calibrant.core._records import Journal

_LOG = logging.getLogger("calibrant")

ContextOf = Callable[[str], str | None] | str


@dataclass(kw_only=True)
class Judge:
    """Confidence method with a journal, which stores the assessments that took paid calls.

    Attributes
    ----------
    method : ConfidenceMethod
        Measures the confidence in an answer.
    context_of : callable or str, optional
        Returns the text that an answer should be grounded in, or is that text for all; used where a query brings
        no context of its own.
    journal : Journal or None
        Keeps assessments that took calls, so that another threshold does not pay for them again.

    Raises
    ------
    ConfigurationError
        `context_of` cannot be called.
    """

    method: ConfidenceMethod
    context_of: ContextOf | None = None
    journal: Journal | None = None
    _warned: bool = field(default=False, init=False)
    _settings: dict[tuple[int, str, str | None], str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        context = self.context_of
        if context is not None and not (callable(context) or isinstance(context, str)):
            raise ConfigurationError(
                f"Expected context_of to be a function from texts to texts, or one text for all, got {context!r}."
            )

    def describe(self) -> dict[str, Any]:
        """Return the settings that can change an assessment as JSON values."""
        context = self.context_of
        return {
            "confidence": {"method": self.method.name, **self.method.describe()},
            "context": context and getattr(context, "__qualname__", str(context)),
        }

    async def assess(
        self, query: Query, answered: Answered, described: Mapping[str, Any]
    ) -> Assessment | NoEvidence:
        """Return the confidence in an answer; `NoEvidence` if the method fails or its value is not in [0, 1].

        Parameters
        ----------
        query : Query
            The question.
        answered : Answered
            The answer.
        described : mapping
            Settings that can change an answer of the model.

        Raises
        ------
        ConfigurationError, NotFittedError
            The method cannot judge any answer.
        ProviderError
            The verifier did not answer.
        """
        context: object = query.context
        try:
            if context is None:
                context = self.context_of(query.text) if callable(self.context_of) else self.context_of
        except Exception as error:  # noqa: BLE001  (as in `_ask`)
            return self._missing_evidence("context_of", error)
        if context is not None and not isinstance(context, str):
            return NoEvidence(reason=f"expected a text or None of context_of, got {context!r:.80}")
        answered = replace(answered, context=context)
        # A method that reads tokens makes no call.
        journal = None if self.method.needs_tokens else self.journal
        if journal is None:
            return await self._ask(answered)
        key = self._key(query, answered, described)
        stored = journal.get_many([key]).get(key)
        if stored is not None and stored.confidence is not None:
            # Its text is the native value; it takes no calls this time.
            return Assessment(
                confidence=stored.confidence,
                native=float(stored.text),
                reason=stored.reason,
                usage=stored.usage,
            )
        assessed = await self._ask(answered)
        if isinstance(assessed, Assessment) and assessed.attempts:
            paid = Prediction(
                label=answered.prediction.label,
                confidence=assessed.confidence,
                text=repr(float(assessed.native)),
                reason=assessed.reason,
                usage=assessed.usage,
                attempts=assessed.attempts,
            )
            journal.put(key, paid)
        return assessed

    async def _ask(self, answered: Answered) -> Assessment | NoEvidence:
        try:
            assessed: object = await self.method.assess(answered)
        except (ConfigurationError, NotFittedError, ProviderError):
            raise  # every row would meet the first two; the last is for the caller
        except Exception as error:  # noqa: BLE001  (a method of the user's may raise anything)
            return self._missing_evidence(self.method.name, error)
        if isinstance(assessed, Assessment):
            return assessed.checked(self.method.name)
        if isinstance(assessed, NoEvidence):
            return assessed
        reason = f"expected an Assessment or NoEvidence of {self.method.name}, got {assessed!r:.80}"
        return NoEvidence(reason=reason)

    def _missing_evidence(self, what: str, error: Exception) -> NoEvidence:
        """Return `NoEvidence` for an exception of user code; log the first one with its traceback."""
        if not self._warned:
            self._warned = True
            _LOG.warning("%s failed; its answers have no evidence.", what, exc_info=error)
        return NoEvidence(reason=f"{what} failed: {type(error).__name__}: {error}")

    def _key(self, query: Query, answered: Answered, described: Mapping[str, Any]) -> str:
        """Return a digest of everything that can change the assessment."""
        about = (id(described), query.prompt, query.user_template)
        # Settings take longer to write than texts, and rarely change.
        if about not in self._settings:
            settings = ["assessment", dict(described), *about[1:], dict(self.method.describe())]
            self._settings[about] = json.dumps(settings, sort_keys=True, default=repr)
        texts = [query.text, answered.prediction.text, answered.prediction.label, answered.context]
        subject = self._settings[about] + json.dumps(texts)
        return hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()
