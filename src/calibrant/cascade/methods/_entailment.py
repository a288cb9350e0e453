"""AutoMix's check of an answer by a verifier, in this process or over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

from calibrant.cascade._protocol import Answered, Assessment, BaseMethod, NoEvidence, is_share
from calibrant.cascade.methods._verification import Verifier
from calibrant.core._errors import ConfigurationError, DataError, ProviderError
from calibrant.core._prediction import Usage
from calibrant.core._predictor import Query
from calibrant.core._reported import bounded_count, reported_mapping
from calibrant.inference import RetryPolicy
from calibrant.inference._models import JsonService
from calibrant.metrics._validation import check_number

_LOG = logging.getLogger("calibrant")
_ROUTE: Final = "/verify"
_DEFAULT_SECONDS: Final = 60.0
# Confidences rounded to two places may differ from the counts by this much.
_ROUNDING: Final = 0.005 + 1e-9
_CALLED: Final = "verifier"
_MOST_COST: Final = 1e300


class AutoMixEntailment(BaseMethod):
    """Confidence method that returns the share of a verifier's samples that confirm the answer.

    With `verifier` nothing else has to run: hand it the small model itself for AutoMix's self-verification, k
    samples an answer. (`SelfVerify` is something else: one call, and a grade.)

    With `url` the verifier is a service: ``POST /verify`` with question, answer, the context where there is one,
    and the threshold. A reply is believed only if it is consistent: a confidence in [0, 1] that agrees with
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

    name: ClassVar[str] = "automix_entailment"
    makes_calls: ClassVar[bool] = True
    settings_keys: ClassVar[tuple[str, ...]] = (
        "threshold",
        "verifier_server_url",
        "verifier_timeout_seconds",
        "context",
    )
    unit: ClassVar[str] = "a share of samples"

    def __init__(
        self,
        url: str | None = None,
        *,
        verifier: Verifier | None = None,
        threshold: float = 0.7,
        timeout_seconds: float = 60,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.default_threshold = check_number("threshold", threshold, "[0, 1]")
        seconds = check_number("timeout_seconds", timeout_seconds, "[0, inf)")
        self.verifier = verifier
        self._service: JsonService | None = None
        if verifier is None:
            self._service = JsonService(
                _address(url),
                name=_CALLED,
                timeout_seconds=seconds or _DEFAULT_SECONDS,
                retry=retry or RetryPolicy(attempts=3),
            )
        elif url is not None or not isinstance(verifier, Verifier):
            raise ConfigurationError(
                f"Expected either the address of a verifier or a calibrant.cascade.Verifier, got {url!r} and "
                f"{verifier!r:.80}: leave one out."
            )

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the method of a ``[cascade]`` section: its threshold, and address and timeout of the verifier."""
        url, seconds = settings["verifier_server_url"], settings["verifier_timeout_seconds"]
        threshold = settings["threshold"]
        options = {} if threshold is None else {"threshold": threshold}
        return cls(url, timeout_seconds=seconds, **options)

    @property
    def url(self) -> str | None:
        """Address of the service; None for a verifier in this process."""
        return None if self._service is None else self._service.url

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the verifier's confidence; `NoEvidence` after a failure."""
        if self._service is not None:
            return await self._posted(self._service, answered)
        assert self.verifier is not None  # noqa: S101  (for the type checker)
        answer = answered.prediction.label or answered.prediction.text
        try:
            verdict = await self.verifier.averify(self._question(answered), answer, answered.context)
        except DataError as error:
            return NoEvidence(reason=str(error), attempts=0)
        except ProviderError as error:
            return NoEvidence(reason=str(error), attempts=error.attempts)
        if verdict.confidence is None:
            return NoEvidence(reason=verdict.reason, usage=verdict.usage, attempts=verdict.attempts)
        counts = _in_words(verdict.verified_count, verdict.total_samples)
        return Assessment(
            confidence=verdict.confidence,
            native=verdict.confidence,
            reason="; ".join(filter(None, (counts, verdict.reason))),
            usage=verdict.usage,
            attempts=verdict.attempts,
        )

    async def _posted(self, service: JsonService, answered: Answered) -> Assessment | NoEvidence:
        usages: list[Usage] = []  # of refused calls, too
        body = {
            "question": self._question(answered),
            "answer": answered.prediction.label,
            "threshold": self.default_threshold,
        }
        if answered.context:
            body["context"] = answered.context
        try:
            reply, attempts = await service.post(
                body, on_object=lambda reply_part: usages.append(_usage(reply_part))
            )
        except ProviderError as error:
            return NoEvidence(reason=str(error), usage=sum(usages, Usage()), attempts=error.attempts)
        usage = sum(usages, Usage())
        if fault := _contradiction(reply):
            reason = f"{_CALLED}: expected {fault} Look at what answers at {service.url}."
            return NoEvidence(reason=reason, usage=usage, attempts=attempts)
        # The service's own advice is ignored: the cascade has the threshold.
        share = float(reply["confidence"])
        return Assessment(
            confidence=share, native=share, reason=_remark(reply), usage=usage, attempts=attempts
        )

    def describe(self) -> dict[str, Any]:
        """Return the settings of the verifier, or its address, and the settings of the question."""
        who = {"url": self.url} if self.verifier is None else {"verifier": self.verifier.describe()}
        return {**super().describe(), **who, "include_task": True}

    def close(self) -> None:
        """Close the connections to a service; a verifier passed as an object stays open."""
        if self._service is not None:
            self._service.close()

    def _question(self, answered: Answered) -> str:
        classifier = answered.classifier
        # A label can hardly be verified without the task, which the prompt says.
        if not classifier.prompt.strip():
            return answered.question
        query = Query(
            prompt=classifier.prompt, text=answered.question, user_template=classifier.user_template
        )
        return "\n\n".join(message["content"] for message in query.messages())


def _usage(reply: Mapping[str, Any]) -> Usage:
    """Return the usage reported by the service."""
    used = reported_mapping(reply.get("usage"))
    cost = used.get("cost")
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= _MOST_COST:
        cost = None
    return Usage(
        prompt_tokens=bounded_count(used.get("prompt_tokens")),
        completion_tokens=bounded_count(used.get("completion_tokens")),
        cost=None if cost is None else float(cost),
    )


def _contradiction(reply: Mapping[str, Any]) -> str:
    """Return an error message for inconsistent numbers in a reply; an empty string if there are none."""
    confidence, verified, total = (
        reply.get(key) for key in ("confidence", "verified_count", "total_samples")
    )
    if not is_share(confidence):
        return f"a confidence in [0, 1], got {confidence!r:.60}."
    if verified is None and total is None:
        return ""
    # JSON knows one kind of whole number; true is none.
    if not (type(verified) is type(total) is int and 0 <= verified <= total > 0):
        return (
            "verified_count and total_samples to be whole numbers, the second above 0 and not below the "
            f"first, got {verified!r:.40} and {total!r:.40}."
        )
    if abs(confidence - verified / total) > _ROUNDING:
        return (
            f"confidence {verified / total:.3g} of {verified} verified samples out of {total}, got "
            f"{confidence:.3g}: its numbers contradict each other."
        )
    return ""


def _remark(reply: Mapping[str, Any]) -> str:
    """Return the counts in a reply as text; log a warning if its advice contradicts its confidence."""
    verified = reply.get("verified_count")
    total = reply.get("total_samples")
    confidence = reply["confidence"]
    remark = "the verifier gave no counts" if verified is None else _in_words(verified, total)
    advice = reply.get("should_escalate")
    threshold = reply.get("threshold")
    if isinstance(advice, bool) and is_share(threshold) and advice is not (confidence < threshold):
        _LOG.warning("The verifier's should_escalate contradicts its own confidence and is ignored.")
        verb = "escalate" if advice else "accept"
        remark += (
            f"; it says {verb}, which contradicts its confidence {confidence:g} at threshold {threshold:g}: that was "
            "ignored"
        )
    return remark


def _in_words(verified: object, total: object) -> str:
    return f"{verified} of {total} samples found the answer correct"


def _address(url: object) -> str:
    """Return the URL of the verification route."""
    if not isinstance(url, str) or not url:
        raise ConfigurationError(
            f"Expected the address of a verifier for automix_entailment, got {url!r}: start one with `calibrant "
            "verifier serve` and set verifier_server_url to the address it prints, or pass verifier=Verifier(...) in "
            "Python."
        )
    return url.rstrip("/").removesuffix(_ROUTE) + _ROUTE
