"""AutoMix's entailment check, by a verifier in this process or by one that is a service of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from calibrant.cascade._checks import check_share, is_count, is_number, is_share
from calibrant.cascade._protocol import Answered, Assessment, NoEvidence
from calibrant.cascade.methods._verification import Verifier
from calibrant.core._errors import ConfigurationError, DataError, ProviderError
from calibrant.core._prediction import Usage
from calibrant.core._predictor import Query
from calibrant.core._reported import bounded_count
from calibrant.inference import RetryPolicy
from calibrant.inference._models import JsonService

_LOG = logging.getLogger("calibrant")
_ROUTE: Final = "/verify"
_DEFAULT_SECONDS: Final = 60.0
_MOST_BYTES: Final = 2**20
# Confidences rounded to two places may differ from the counts by this much.
_ROUNDING: Final = 0.005 + 1e-9
_CALLED: Final = "verifier"


class AutoMixEntailment:
    """Asks a verifier how many of its samples find an answer right: in process, or as a service.

    With `verifier` nothing else has to run: hand it the small model itself for AutoMix's self-verification, k
    samples an answer. (`SelfVerify` is something else: one call, and a grade.)

    With `url` the verifier is a service: ``POST /verify`` with question, answer, the context where there is one,
    and the threshold. What comes back is believed only if it is consistent: a confidence in [0, 1] that agrees with
    the counts, where there are counts, up to rounding to two places. Everything else is `NoEvidence`, never a
    guess. The service's ``should_escalate`` decides nothing, as the cascade has the threshold; where it contradicts
    the service's own confidence, the reason says so. ``calibrant verifier serve`` is such a service.

    Parameters
    ----------
    url : str, optional
        Address of the service, such as ``http://127.0.0.1:8889``; http or https, without credentials,
        query, fragment and white space. ``/verify`` is appended unless it ends so. Either `url` or `verifier`.
    verifier : Verifier, optional
        Asked in this process instead; `close` leaves it open.
    threshold : float, default 0.7
        The method's default threshold, in [0, 1]; sent along to a service.
    timeout_seconds : float, default 60
        Seconds one call of a service may take; 0 stands for 60.
    include_task : bool, default True
        Whether the classifier's prompt is part of the question: a label can hardly be verified without the
        task. Without a prompt the question is the text alone.
    retry : RetryPolicy, optional
        How passing faults of a service are retried; by default up to 3 calls in all.

    Raises
    ------
    ConfigurationError
        A parameter is out of range, or `url` and `verifier` are both given, or neither.

    Examples
    --------
    >>> from calibrant.cascade import Verifier
    >>> from calibrant.testing import FakeClient
    >>> small = FakeClient(["correct", "incorrect"], {}, default="correct", field="verdict")
    >>> AutoMixEntailment(verifier=Verifier(small, k=4)).default_threshold
    0.7
    """

    name: Final = "automix_entailment"
    top_logprobs: Final = 0
    needs_tokens: Final = False

    def __init__(
        self,
        url: str | None = None,
        *,
        verifier: Verifier | None = None,
        threshold: float = 0.7,
        timeout_seconds: float = 60,
        include_task: bool = True,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.default_threshold = check_share("threshold", threshold)
        if not is_number(timeout_seconds) or timeout_seconds < 0:
            raise ConfigurationError(
                f"Expected timeout_seconds to be a number of seconds, 0 (for 60) or more, got {timeout_seconds!r}."
            )
        self.include_task = include_task
        self.verifier = verifier
        self._service: JsonService | None = None
        if verifier is None:
            self._service = JsonService(
                _with_route(_checked(url)),
                name=_CALLED,
                timeout_seconds=float(timeout_seconds) or _DEFAULT_SECONDS,
                most_bytes=_MOST_BYTES,
                retry=retry or RetryPolicy(attempts=3),
            )
        elif url is not None or not isinstance(verifier, Verifier):
            raise ConfigurationError(
                f"Expected either the address of a verifier or a calibrant.cascade.Verifier, got {url!r} and "
                f"{verifier!r:.80}: leave one out."
            )

    @property
    def url(self) -> str | None:
        """Where questions are sent; None where the verifier is asked in this process."""
        return None if self._service is None else self._service.url

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the verifier's confidence; whatever goes wrong on the way is `NoEvidence`."""
        if self._service is not None:
            return await self._posted(self._service, answered)
        assert self.verifier is not None  # noqa: S101  (for the type checker)
        answer = answered.prediction.label or answered.prediction.text
        try:
            found = await self.verifier.averify(self._question(answered), answer, answered.context)
        except (DataError, ProviderError) as error:
            return NoEvidence(reason=str(error), attempts=getattr(error, "attempts", 0))
        if found.confidence is None:
            return NoEvidence(reason=found.reason, usage=found.usage, attempts=found.attempts)
        counts = _in_words(found.verified_count, found.total_samples)
        return Assessment(
            confidence=found.confidence,
            native=found.confidence,
            reason="; ".join(filter(None, (counts, found.reason))),
            usage=found.usage,
            attempts=found.attempts,
        )

    async def _posted(self, service: JsonService, answered: Answered) -> Assessment | NoEvidence:
        heard = _Heard()
        try:
            answer, attempts = await service.post(self._body(answered), on_object=heard.add)
        except ProviderError as error:
            return NoEvidence(reason=str(error), usage=heard.usage, attempts=error.attempts)
        try:
            confidence, reason = _read(answer)
        except _Disbelieved as error:
            reason = f"{_CALLED}: {error} Look at what answers at {service.url}."
            return NoEvidence(reason=reason, usage=heard.usage, attempts=attempts)
        return Assessment(
            confidence=confidence,
            native=confidence,
            reason=reason,
            usage=heard.usage,
            attempts=attempts,
        )

    def to_confidence(self, native: float) -> float:
        """Return `native`, which is a share of samples on [0, 1] already.

        Raises
        ------
        ConfigurationError
            It is not in [0, 1].
        """
        return check_share("a share of samples", native)

    def describe(self) -> Mapping[str, Any]:
        """Return who verifies, or where, and what it is told."""
        who = {"url": self.url} if self.verifier is None else {"verifier": self.verifier.describe()}
        return {"method": self.name, **who, "include_task": self.include_task}

    def close(self) -> None:
        """Close the connections to a service; a verifier that was handed in is left open."""
        if self._service is not None:
            self._service.close()

    def _body(self, answered: Answered) -> dict[str, Any]:
        body = {
            "question": self._question(answered),
            "answer": answered.prediction.label,
            "threshold": self.default_threshold,
        }
        return {**body, "context": answered.context} if answered.context else body

    def _question(self, answered: Answered) -> str:
        classifier = answered.classifier
        if not (self.include_task and classifier.prompt.strip()):
            return answered.question
        query = Query(
            prompt=classifier.prompt, text=answered.question, user_template=classifier.user_template
        )
        return "\n\n".join(message["content"] for message in query.messages())


@dataclass
class _Heard:
    """Adds up what the service's model took, as far as it says so.

    Attributes
    ----------
    usage : Usage
        The sum over all calls, refused ones included.
    """

    usage: Usage = Usage()

    def add(self, answer: Mapping[str, Any]) -> None:
        """Take note of one answer."""
        used = answer.get("usage")
        if isinstance(used, Mapping):
            cost = used.get("cost")
            self.usage += Usage(
                prompt_tokens=bounded_count(used.get("prompt_tokens")),
                completion_tokens=bounded_count(used.get("completion_tokens")),
                cost=float(cost) if is_number(cost) and cost >= 0 else None,
            )


class _Disbelieved(Exception):  # noqa: N818 (a name for what it means)
    """The service's answer contradicts itself, or is none."""


def _read(answer: Mapping[str, Any]) -> tuple[float, str]:
    """Return confidence and what is to be said about it."""
    confidence = answer.get("confidence")
    if not is_share(confidence):
        raise _Disbelieved(f"expected a confidence in [0, 1], got {confidence!r:.60}.")
    reason = _counts(answer, confidence)
    advice, threshold = answer.get("should_escalate"), answer.get("threshold")
    if isinstance(advice, bool) and is_share(threshold) and advice is not (confidence < threshold):
        verb = "escalate" if advice else "accept"
        reason += (
            f"; it says {verb}, which contradicts its confidence {confidence:g} at threshold {threshold:g}: that was "
            "ignored"
        )
        _LOG.warning("The verifier's should_escalate contradicts its own confidence and is ignored.")
    return float(confidence), reason


def _counts(answer: Mapping[str, Any], confidence: float) -> str:
    """Check the counts against the confidence, and return them in words."""
    given = (answer.get("verified_count"), answer.get("total_samples"))
    if given == (None, None):
        return "the verifier gave no counts"
    verified, total = map(_count, given)
    if verified is None or not total or verified > total:
        raise _Disbelieved(
            f"expected verified_count and total_samples to be whole numbers, the second above 0 and not below the "
            f"first, got {given[0]!r:.40} and {given[1]!r:.40}."
        )
    if abs(confidence - verified / total) > _ROUNDING:
        raise _Disbelieved(
            f"expected confidence {verified / total:.3g} of {verified} verified samples out of {total}, got "
            f"{confidence:.3g}: its numbers contradict each other."
        )
    return _in_words(verified, total)


def _in_words(verified: int, total: int) -> str:
    return f"{verified} of {total} samples found the answer correct"


def _checked(url: object) -> str:
    if not isinstance(url, str) or not url:
        raise ConfigurationError(
            f"Expected the address of a verifier for automix_entailment, got {url!r}: start one with `calibrant "
            "verifier serve` and set verifier_server_url to the address it prints, or pass verifier=Verifier(...) in "
            "Python."
        )
    return url


def _with_route(url: str) -> str:
    bare = url.rstrip("/")
    return bare if bare.endswith(_ROUTE) else bare + _ROUTE


def _count(value: object) -> int | None:
    return value if is_count(value, low=0) else None
