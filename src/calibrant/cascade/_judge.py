"""How sure each answer is: the method is asked, and what it asked others is remembered."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from calibrant.cascade._checks import is_number
from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence
from calibrant.core._errors import ConfigurationError, NotFittedError, ProviderError
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import Query
from calibrant.core._records import Journal

_LOG = logging.getLogger("calibrant")

ContextOf = Callable[[str], str | None] | str


class Judge:
    """Asks a confidence method about answers.

    Parameters
    ----------
    method : ConfidenceMethod
        What says how sure an answer is.
    context_of : callable or str, optional
        Returns what the answer to a text should be grounded in, or says it for all texts; asked where a query brings
        no context of its own.

    Attributes
    ----------
    journal : Journal or None
        Keeps assessments that took calls, so that another threshold does not pay for them again.

    Raises
    ------
    ConfigurationError
        `context_of` cannot be called.
    """

    def __init__(self, method: ConfidenceMethod, context_of: ContextOf | None) -> None:
        if context_of is not None and not (callable(context_of) or isinstance(context_of, str)):
            raise ConfigurationError(
                f"Expected context_of to be a function from texts to texts, or one text for all, got {context_of!r}."
            )
        self.method = method
        self._warned = False
        self.journal: Journal | None = None
        self._context_of = context_of
        self._digests: dict[tuple[int, str, str | None], Any] = {}

    def describe(self) -> dict[str, Any]:
        """Return what can change an assessment as JSON values."""
        context = self._context_of
        return {
            "confidence": {"method": self.method.name, **self.method.describe()},
            "context": context and getattr(context, "__qualname__", str(context)),
        }

    def copy(self) -> Judge:
        """Return another with the same journal, which is its own to change."""
        other = Judge(self.method, self._context_of)
        other.journal = self.journal
        return other

    async def assess(
        self, query: Query, answered: Answered, described: Mapping[str, Any]
    ) -> Assessment | NoEvidence:
        """Return how sure an answer is; a method that fails or says what no confidence can be has no evidence.

        Parameters
        ----------
        query : Query
            What was asked.
        answered : Answered
            What was answered.
        described : mapping
            What can change an answer of the model.

        Raises
        ------
        ConfigurationError, NotFittedError
            The method cannot judge any answer.
        """
        try:
            context = self._context(query)
        except Exception as error:  # noqa: BLE001  (as in `_ask`)
            return self._failed("context_of", error)
        if context is not None and not isinstance(context, str):
            return NoEvidence(reason=f"expected a text or None of context_of, got {context!r:.80}")
        answered = replace(answered, context=context)
        # What is read from tokens alone takes no call.
        journal = None if self.method.needs_tokens else self.journal
        if journal is None:
            return await self._ask(answered)
        key = self._key(query, answered, described)
        stored = journal.get_many([key]).get(key)
        if stored is not None and stored.confidence is not None:
            return _to_assessment(stored, stored.confidence)
        found = await self._ask(answered)
        if isinstance(found, Assessment) and found.attempts:
            journal.put(key, _to_prediction(found, answered.prediction.label))
        return found

    def _context(self, query: Query) -> object:
        """Return what the answer to a query should rest on."""
        if query.context is not None or self._context_of is None:
            return query.context
        return self._context_of(query.text) if callable(self._context_of) else self._context_of

    async def _ask(self, answered: Answered) -> Assessment | NoEvidence:
        try:
            found: object = await self.method.assess(answered)
        except ProviderError as error:
            return NoEvidence(reason=str(error), attempts=error.attempts)
        except (ConfigurationError, NotFittedError):
            raise  # every row would meet it
        except Exception as error:  # noqa: BLE001  (the seam: anything may come)
            return self._failed(self.method.name, error)
        if isinstance(found, NoEvidence):
            return found
        if not isinstance(found, Assessment):
            return NoEvidence(
                reason=f"expected an Assessment or NoEvidence of {self.method.name}, got {found!r:.80}"
            )
        if not (is_number(found.confidence) and 0.0 <= found.confidence <= 1.0):
            return NoEvidence(
                reason=f"expected a confidence in [0, 1] of {self.method.name}, got {found.confidence!r}",
                usage=found.usage,
                attempts=found.attempts,
            )
        return found

    def _failed(self, what: str, error: Exception) -> NoEvidence:
        """Return that code which was handed in failed; the first time, the log says where."""
        if not self._warned:
            self._warned = True
            _LOG.warning("%s failed; its answers have no evidence.", what, exc_info=error)
        return NoEvidence(reason=f"{what} failed: {type(error).__name__}: {error}")

    def _key(self, query: Query, answered: Answered, described: Mapping[str, Any]) -> str:
        """Return a digest of everything that can change the assessment."""
        about = (id(described), query.prompt, query.user_template)
        digest = self._digests.get(about)
        if digest is None:
            parts = ["assessment", dict(described), query.prompt, query.user_template]
            settings = json.dumps([*parts, dict(self.method.describe())], sort_keys=True, default=repr)
            digest = self._digests[about] = hashlib.sha256(settings.encode("utf-8", "surrogatepass"))
        digest = digest.copy()
        texts = [query.text, answered.prediction.text, answered.prediction.label, answered.context]
        digest.update(json.dumps(texts).encode("utf-8", "surrogatepass"))
        return str(digest.hexdigest())


def _to_prediction(assessment: Assessment, label: str | None) -> Prediction:
    """Return the assessment as what a journal can hold; its text is the native value."""
    return Prediction(
        label=label,
        confidence=assessment.confidence,
        text=repr(float(assessment.native)),
        reason=assessment.reason,
        usage=assessment.usage,
        attempts=assessment.attempts,
    )


def _to_assessment(stored: Prediction, confidence: float) -> Assessment:
    """Return the assessment that a journal held; it takes no calls now."""
    return Assessment(
        confidence=confidence, native=float(stored.text), reason=stored.reason, usage=stored.usage
    )
