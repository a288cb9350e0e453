"""AutoMix's verifier, which checks answers with yes-no questions, and its confidence method, here or over HTTP."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from calibrant.cascade._protocol import Answered, Assessment, BaseMethod, NoEvidence, is_share
from calibrant.core._completion import CompletionRequest
from calibrant.core._errors import ConfigurationError, ContextLengthError, DataError, ProviderError
from calibrant.core._files import json_text
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import JsonObject, LogprobSpace, Outcome, Prediction, Record, Usage
from calibrant.core._predictor import Limits, Query
from calibrant.core._reported import bounded_count, counted, is_number, reported_mapping
from calibrant.inference import RetryPolicy
from calibrant.inference._base import run_sync
from calibrant.inference._classifier import Classifier
from calibrant.inference._models import JsonService, ModelLike
from calibrant.inference._sampling import RowAnswers, ask_together, check_seed
from calibrant.metrics._validation import check_count, check_number

SLOT: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
# Marks of turns in chat templates (<|im_end|>, </s>, <start_of_turn>, [INST]): inside a text one would be read
# as such a mark, so its first character is written as a JSON escape.
_MARK: Final = re.compile(r"<(?=[|\uff5c/A-Za-z])|\[(?=/?[A-Z_]+\])")

_FOLDER: Final = Path(__file__).parent
SELF_VERIFY_PROMPT: Final = (_FOLDER / "self_verify_prompt.txt").read_text(encoding="utf-8").rstrip("\n")
VERIFIER_PROMPT: Final = (_FOLDER / "verifier_prompt.txt").read_text(encoding="utf-8")

_FIELD: Final = "verdict"
_PAPERS_NAME: Final = "generated_answer"  # of the answer's slot, in prompts written for AutoMix
_CORRECT: Final = "correct"
_INCORRECT: Final = "incorrect"
_UNREADABLE: Final = "unreadable"
_VERDICTS: Final = LabelSet([_CORRECT, _INCORRECT])
# A context that nearly every model has room for, in characters: all samples are asked at once.
_FITS: Final = 4_000
_WORD: Final = re.compile(r"(\bnot\s+|n['\u2019]t\s+)?\b(in)?correct\b", re.IGNORECASE)
_LOG = logging.getLogger("calibrant")
_ROUTE: Final = "/verify"
_DEFAULT_SECONDS: Final = 60.0
# Confidences rounded to two places may differ from the counts by this much.
_ROUNDING: Final = 0.005 + 1e-9
_CALLED: Final = "verifier"
_MOST_COST: Final = 1e300


def check_slots(template: object, needed: Sequence[str], *, whose: str) -> None:
    """Refuse a template without a required placeholder, such as ``{question}``.

    Raises
    ------
    ConfigurationError
        A slot is missing, or the template is no text.
    """
    slots = [f"{{{name}}}" for name in needed]
    missing = [slot for slot in slots if not isinstance(template, str) or slot not in template]
    if missing:
        raise ConfigurationError(
            f"Expected {whose} to be a text with the slots {', '.join(slots)}, got one without "
            f"{' and '.join(missing)}: write each where its text is to go, without quotation marks."
        )


def fill_slots(template: str, texts: Mapping[str, str]) -> str:
    """Fill the placeholders of a template with texts; other braces stay as they are."""
    # In one pass: a slot that is named in a text stays text.
    return SLOT.sub(lambda slot: texts.get(slot[1], slot[0]), template)


def quoted(value: object) -> str:
    """Quote a value as JSON, with chat-template marks escaped."""
    return _MARK.sub(lambda mark: f"\\u{ord(mark[0]):04x}", json_text(value))


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The verdict of a verifier about one answer.

    Attributes
    ----------
    confidence : float or None
        ``verified_count / total_samples``, in [0, 1]; None where there is no verdict.
    verified_count : int
        Samples that say ``correct``.
    total_samples : int
        Samples that came back, those that cannot be read included; failed calls are not samples.
    samples : tuple of str
        The vote of each: ``correct``, ``incorrect`` or ``unreadable``.
    usage : Usage
        Tokens and cost of all samples.
    attempts : int
        Calls made, failed ones and retries included.
    context_cut : int
        Characters at the end of the context that the model had no room for.
    reason : str
        Why there is no verdict, or what went wrong on the way to it; else empty.

    Examples
    --------
    >>> Verification(confidence=0.75, verified_count=3, total_samples=4).confidence
    0.75
    """

    confidence: float | None
    verified_count: int
    total_samples: int
    samples: tuple[str, ...] = ()
    usage: Usage = Usage()
    attempts: int = 0
    context_cut: int = 0
    reason: str = ""

    @property
    def unreadable(self) -> int:
        """Number of samples without a readable verdict."""
        return self.samples.count(_UNREADABLE)


class Verifier:
    """Verifier that samples verdicts on an answer; the share of confirming ones is the confidence [1]_.

    The answer may be a label or any text, the question a text to classify or any question, with or
    without a context the answer has to rest on. Under our own prompt a JSON schema is sent, and a sample is a
    vote only if it is exactly ``{"verdict": "correct"}`` or ``{"verdict": "incorrect"}``, or one of the two words
    alone. Under another prompt none is sent, so that the model may reason first: the last ``correct`` or
    ``incorrect`` of a sample is its vote ("not correct" is ``incorrect``). Any other sample counts among the samples
    and not among the verified ones. Where no sample can be read, or fewer than half of the calls succeed, there is
    no verdict.

    A context that is too long for the model is cut at its end, by halves until it fits; question and
    answer are never cut.

    Parameters
    ----------
    model : str, Client or callable
        See `calibrant.inference.open_client`. A callable is handed the messages alone: it has to sample by
        itself.
    k : int, default 8
        Samples, at least 1.
    temperature : float or None, default 1.0
        Of the samples, above 0 (with a single sample, 0 will do); None leaves it to the provider.
    prompt : str, optional
        Used instead of our own, `VERIFIER_PROMPT`. Holds ``{question}``, ``{answer}`` (or ``{generated_answer}``) and
        ``{context}``, without quotation marks around them: a text is put in as a JSON string, whose quotes, line breaks
        and marks of chat templates are escaped, so that it cannot end before its end. A case without a context has
        ``(none)`` there. Other braces stay as they are. It must ask for a reply whose last verdict is the word
        ``correct`` or ``incorrect``, or for ``{"verdict": "correct"}`` or ``{"verdict": "incorrect"}``.
    concurrency : int, default 10
        Calls in flight at most; an embedded engine computes as many as it has slots.
    call_seconds : float, optional
        Deadline of one call.
    options : mapping, optional
        Handed to the provider with every call, such as ``api_base``. A ``seed`` is counted on from sample
        to sample.
    retry : RetryPolicy, optional
        How passing faults are retried.

    Raises
    ------
    ConfigurationError
        A parameter is out of range, or the model cannot be opened.

    References
    ----------
    .. [1] P. Aggarwal, A. Madaan et al., "AutoMix: Automatically Mixing Language Models", NeurIPS 2024,
       arXiv:2310.12963, section 3.1.

    Examples
    --------
    >>> from calibrant.testing import FakeClient
    >>> judge = FakeClient(["correct", "incorrect"], lambda text: "correct", field="verdict")
    >>> found = Verifier(judge, k=4).verify("Which animal purrs?", "the cat")
    >>> found.confidence, found.verified_count, found.total_samples
    (1.0, 4, 4)
    """

    def __init__(  # noqa: PLR0913 (keyword-only options)
        self,
        model: ModelLike,
        *,
        k: int = 8,
        temperature: float | None = 1.0,
        prompt: str | None = None,
        concurrency: int = 10,
        call_seconds: float | None = None,
        options: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        options = dict(options or {})
        self.k = check_count("k, the samples of a verifier,", k, low=1)
        _check(self.k, temperature, options)
        self.temperature = temperature
        self.prompt = VERIFIER_PROMPT if prompt is None else prompt
        _check_prompt(self.prompt)
        self._classifier = Classifier(
            model=model,
            labels=_VERDICTS,
            field=_FIELD,
            space=LogprobSpace.NONE,
            options=options,
            limits=Limits(concurrency=concurrency, call_seconds=call_seconds),
            retry=retry,
        )
        # A schema would leave the model no room to reason before its verdict.
        reasons_first = self.prompt != VERIFIER_PROMPT
        self._schema = None if reasons_first else self._classifier.response_format
        self._vote = _last_verdict if reasons_first else _exact_verdict

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._classifier.name

    def verify(self, question: str, answer: str, context: str | None = None) -> Verification:
        """Return the verdict of the samples on `answer`; see `averify`."""
        return run_sync(self.averify(question, answer, context))

    async def averify(self, question: str, answer: str, context: str | None = None) -> Verification:
        """Return the verdict of the samples on `answer`, for use inside an event loop.

        Parameters
        ----------
        question : str
            A question, or a text to classify with its task.
        answer : str
            A label, or any text.
        context : str, optional
            The text that the answer has to rest on.

        Returns
        -------
        Verification
            Its confidence is None where there is no verdict, with the reason.

        Raises
        ------
        DataError
            Question or answer is empty, or the context is no text.
        ContextLengthError
            The model has no room for question and answer, even without a context.
        ConfigurationError
            The model cannot be asked at all.
        """
        for name, text in (("question", question), ("answer", answer)):
            if not isinstance(text, str) or not text.strip():
                raise DataError(
                    f"Expected the {name} to verify to be a text that is not empty, got {text!r}."
                )
        if context is not None and not isinstance(context, str):
            raise DataError(
                f"Expected the context of a verification to be a text or None, got {context!r:.80}."
            )
        answers, kept = await self._samples(question, answer, context or "")
        return self._counted_verdicts(answers, context_cut=len(context or "") - len(kept))

    async def _samples(self, question: str, answer: str, context: str) -> tuple[RowAnswers, str]:
        """Draw all samples; return them with the context, shortened until it fits the model."""
        # Of a long context a single call finds out whether it fits.
        together = self.k if len(context) <= _FITS else 1
        new = answers = await self._ask(question, answer, context, range(together))
        while context and _too_long(new):
            context = _beginning(context)
            together = 1
            new = await self._ask(question, answer, context, range(together))
            answers = _joined_answers(answers, new)
        if _too_long(new):
            refusal = _too_long(answers)[0]
            refusal.attempts = answers.attempts
            refusal.usage = answers.usage
            raise refusal
        if new.given and together < self.k:
            rest = await self._ask(question, answer, context, range(together, self.k))
            answers = _joined_answers(answers, rest)
        return answers, context

    async def _ask(self, question: str, answer: str, context: str, numbers: range) -> RowAnswers:
        """Draw the samples with the given numbers."""
        texts = {
            "question": quoted(question),
            "answer": quoted(answer),
            _PAPERS_NAME: quoted(answer),
            "context": quoted(context) if context else "(none)",
        }
        messages = ({"role": "user", "content": fill_slots(self.prompt, texts)},)

        def request(number: int) -> CompletionRequest:
            options = dict(self._classifier.options)
            if self.temperature is not None:
                options["temperature"] = self.temperature
            if options.get("seed") is not None:
                options["seed"] += number  # equal seeds would draw equal samples
            return CompletionRequest(
                messages=messages, response_format=self._schema, top_logprobs=0, options=options
            )

        return await ask_together(self._classifier.method.answer(request(number)) for number in numbers)

    def _counted_verdicts(self, answers: RowAnswers, *, context_cut: int) -> Verification:
        samples = tuple(map(self._vote, answers.given))
        verified = samples.count(_CORRECT)
        unreadable = samples.count(_UNREADABLE)
        total = len(samples)
        # A share of few samples would look as sure as one of all.
        is_verdict = 2 * total >= self.k and unreadable < total
        return Verification(
            confidence=verified / total if is_verdict else None,
            verified_count=verified,
            total_samples=total,
            samples=samples,
            usage=answers.usage,
            attempts=answers.attempts,
            context_cut=context_cut,
            reason=self._reason(answers, samples, unreadable),
        )

    def _reason(self, answers: RowAnswers, samples: tuple[str, ...], unreadable: int) -> str:
        """Return the reason for a missing verdict, or remarks on failed and unreadable samples."""
        total = len(samples)
        if 2 * total < self.k:
            return f"Expected at least half of {self.k} samples of the verifier, got {total}: {answers.failures[-1]}"
        remarks = []
        failures = [error for error in answers.failures if not isinstance(error, ContextLengthError)]
        if failures:
            remarks.append(f"{counted(len(failures), 'sample')} failed, the first: {failures[0]}")
        if unreadable:
            first = answers.given[samples.index(_UNREADABLE)]
            shown = first.reason or repr(first.text[:80])
            if unreadable == total:
                return (
                    'Expected samples of the verifier to be {"verdict": "correct"} or {"verdict": "incorrect"}, or '
                    "under a prompt of your own to end with one of the two words, none of "
                    f"{total} is: {shown}. Use a model that keeps to a schema, or a prompt that asks for this more "
                    "clearly; a reply that is cut off needs more max_tokens."
                )
            remarks.append(f"{unreadable} of {total} samples cannot be read, the first: {shown}")
        return "; ".join(remarks)

    def describe(self) -> JsonObject:
        """Return the settings that can change a verification as JSON values, free of credentials."""
        described = self._classifier.describe()
        asked = {name: described[name] for name in ("model", "endpoint", "options")}
        return {**asked, "k": self.k, "temperature": self.temperature, "prompt": self.prompt}

    def close(self) -> None:
        """Close the client, unless the caller passed it as an object."""
        self._classifier.close()


def _check(k: int, temperature: object, options: Mapping[str, Any]) -> None:
    check_seed(options)
    if "temperature" in options:
        raise ConfigurationError(
            "Expected no temperature among the options of a verifier: set temperature of Verifier itself."
        )
    if temperature is not None and not check_number("temperature", temperature, "[0, inf)") and k != 1:
        raise ConfigurationError(
            f"Expected a temperature above 0 for the {k} samples of a verifier, got {temperature!r}: at 0 all samples "
            "are alike, so ask for one (k=1)."
        )


def _check_prompt(prompt: str) -> None:
    answer = _PAPERS_NAME if f"{{{_PAPERS_NAME}}}" in str(prompt) else "answer"
    slots = ("question", answer, "context")
    check_slots(prompt, slots, whose="the verifier's prompt")
    unknown = sorted({*SLOT.findall(prompt)} - {*slots, "answer"})
    if unknown:
        raise ConfigurationError(
            f"Expected no other slots than {{question}}, {{answer}} and {{context}} in the verifier's prompt, got "
            f"{{{unknown[0]}}}: correct its name or leave it out."
        )


def _exact_verdict(sample: Prediction) -> str:
    """Return the verdict of a sample, given as JSON or as a bare word."""
    if sample.label is not None:
        return sample.label
    if sample.outcome is not Outcome.UNPARSED:
        return _UNREADABLE
    word = sample.text.strip().strip("\"'`.")
    return _VERDICTS.canonical(word) or _UNREADABLE


def _last_verdict(sample: Prediction) -> str:
    """Return the last verdict in a sample, which may contain reasoning before it."""
    if sample.label is not None or sample.outcome is not Outcome.UNPARSED:
        return sample.label or _UNREADABLE
    words = list(_WORD.finditer(sample.text))
    if not words:
        return _UNREADABLE
    negated, wrong = words[-1].groups()
    return _INCORRECT if negated or wrong else _CORRECT


def _joined_answers(first: RowAnswers, second: RowAnswers) -> RowAnswers:
    return RowAnswers(given=first.given + second.given, failures=first.failures + second.failures)


def _too_long(answers: RowAnswers) -> list[ContextLengthError]:
    """Return the context-length errors if no sample was answered, else an empty list."""
    faults = [error for error in answers.failures if isinstance(error, ContextLengthError)]
    return [] if answers.given else faults


def _beginning(context: str) -> str:
    """Return the first half of a text, cut at a nearby space if possible."""
    half = context[: len(context) // 2]
    words = ""
    if half.split():
        words = half.rsplit(None, 1)[0]
    if 2 * len(words) > len(half):
        return words
    return half


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
    def from_settings(cls, settings: Record) -> Self:
        """Return the method of a ``[cascade]`` section: its threshold, and address and timeout of the verifier."""
        url = settings["verifier_server_url"]
        seconds = settings["verifier_timeout_seconds"]
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
            return NoEvidence(reason=str(error), usage=error.usage or Usage(), attempts=error.attempts)
        share = verdict.confidence
        usage = verdict.usage
        attempts = verdict.attempts
        if share is None:
            return NoEvidence(reason=verdict.reason, usage=usage, attempts=attempts)
        counts = _in_words(verdict.verified_count, verdict.total_samples)
        reason = "; ".join(filter(None, (counts, verdict.reason)))
        return Assessment(confidence=share, native=share, reason=reason, usage=usage, attempts=attempts)

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
            reply, attempts = await service.post(body, on_object=lambda part: usages.append(_usage(part)))
        except ProviderError as error:
            usage = sum(usages, Usage())
            return NoEvidence(reason=str(error), usage=usage, attempts=error.attempts)
        usage = sum(usages, Usage())
        fault = _contradiction(reply)
        if fault:
            reason = f"{_CALLED}: expected {fault} Look at what answers at {service.url}."
            return NoEvidence(reason=reason, usage=usage, attempts=attempts)
        # The service's own advice is ignored: the cascade has the threshold.
        share = float(reply["confidence"])
        reason = _remark(reply)
        return Assessment(confidence=share, native=share, reason=reason, usage=usage, attempts=attempts)

    def describe(self) -> JsonObject:
        """Return the settings of the verifier, or its address, and the settings of the question."""
        described = super().describe()
        if self.verifier is None:
            described["url"] = self.url
        else:
            described["verifier"] = self.verifier.describe()
        return {**described, "include_task": True}

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


def _usage(reply: Record) -> Usage:
    """Return the usage reported by the service."""
    used = reported_mapping(reply.get("usage"))
    cost = used.get("cost")
    if not is_number(cost) or not 0 <= cost <= _MOST_COST:
        cost = None
    return Usage(
        prompt_tokens=bounded_count(used.get("prompt_tokens")),
        completion_tokens=bounded_count(used.get("completion_tokens")),
        cost=None if cost is None else float(cost),
    )


def _contradiction(reply: Record) -> str:
    """Return an error message for inconsistent numbers in a reply; an empty string if there are none."""
    confidence = reply.get("confidence")
    verified = reply.get("verified_count")
    total = reply.get("total_samples")
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
    share = verified / total
    if abs(confidence - share) > _ROUNDING:
        return (
            f"confidence {share:.3g} of {verified} verified samples out of {total}, got "
            f"{confidence:.3g}: its numbers contradict each other."
        )
    return ""


def _remark(reply: Record) -> str:
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
