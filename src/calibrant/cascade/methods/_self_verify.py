"""Self-verification: the model grades its own answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from calibrant.cascade._protocol import Answered, Assessment, BaseMethod, NoEvidence, is_share
from calibrant.cascade.methods._verification import SELF_VERIFY_PROMPT, check_slots, fill_slots, quoted
from calibrant.core._completion import Completion, CompletionRequest
from calibrant.core._errors import CalibrantError, ProviderError
from calibrant.metrics._validation import check_count, check_number

_SCHEMA: Final = {
    "type": "object",
    "properties": {"confidence": {"type": "number"}, "reason": {"type": "string"}},
    "required": ["confidence", "reason"],
    "additionalProperties": False,
}
_FORMATS: Final[Mapping[Any, Mapping[str, Any]]] = {
    "json_schema": {
        "type": "json_schema",
        "json_schema": {"name": "grade", "strict": True, "schema": _SCHEMA},
    },
    "json_object": {"type": "json_object"},
}
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
# The number comes first, so that a reply that is cut off in its reason still counts: no parser reads half an object.
_CUT_OFF = re.compile(rf'\{{\s*"confidence"\s*:\s*({_NUMBER.pattern})\s*,')
# Behind a number: it is a share of something else than 1.
_OTHER_UNIT = re.compile(
    r"\s*(?:%|percent\b|(?:/|out\s+of\b|of\b)\s*(?!1(?:\.0+)?(?![\d.]))\d)", re.IGNORECASE
)
_SHOWN: Final = 200


@dataclass(frozen=True, kw_only=True)
class SelfVerify(BaseMethod):
    """Confidence method that asks the model to grade its own answer.

    One user message, one call, under the limits and retries of the classifier that answered. The
    confidence is the number in the reply's JSON object, which reaches from its first ``{`` to its last
    ``}``; in a reply without braces it is the first number. Nothing is bent into range: a number that is
    missing, NaN or outside [0, 1] is no evidence, and so is one that counts something else, such as
    ``7/10``, ``1%`` or the ``1`` of a list. The native unit is the confidence.

    Parameters
    ----------
    prompt : str, optional
        Asked instead of `SELF_VERIFY_PROMPT`. Holds ``{question}`` and ``{answer}``, and may hold
        ``{context}``, ``{task}`` (the classifier's prompt) and ``{labels}``. All are filled in as JSON
        values (a text in quotes, escaped, or ``null``), so that no text can end what it stands in.
    max_tokens : int, default 256
        Length of the reply at most.
    temperature : float or None, default 0.1
        Of the reply; None leaves it to the classifier's options.

    Raises
    ------
    ConfigurationError
        A slot is missing in `prompt`, or a number is out of range.

    References
    ----------
    .. [1] S. Kadavath et al., "Language Models (Mostly) Know What They Know", 2022, arXiv 2207.05221.

    Examples
    --------
    >>> from calibrant.cascade import Cascade, SelfVerify
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> def model(grade):
    ...     reply = {"choices": [{"message": {"content": f'{{"confidence": {grade}}}'}}]}
    ...     fake = FakeClient(["cat", "dog"], {"confidence": reply, "purrs": "cat"})
    ...     return Classifier(model=fake, labels=["cat", "dog"], field="category")
    >>> cascade = Cascade([model(0.3), model(0.9)], method=SelfVerify(), verify_last=True)
    >>> [step.confidence for step in cascade.classify("It purrs.").steps]
    [0.3, 0.9]
    """

    prompt: str = SELF_VERIFY_PROMPT
    max_tokens: int = 256
    temperature: float | None = 0.1
    name: ClassVar[str] = "self_verify"
    makes_calls: ClassVar[bool] = True
    settings_keys: ClassVar[tuple[str, ...]] = ("context",)
    unit: ClassVar[str] = "a grade"

    def __post_init__(self) -> None:
        check_slots(self.prompt, ("question", "answer"), whose="the prompt")
        check_count("max_tokens", self.max_tokens, low=1)
        if self.temperature is not None:
            check_number("temperature", self.temperature, "[0, inf)")

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the grade; `NoEvidence` if the call or the grade is missing."""
        answer = answered.prediction.label or answered.prediction.text
        for name, text in (("question", answered.question), ("answer", answer)):
            if not text.strip():
                return NoEvidence(reason=f"Expected a {name} to grade, got none.")
        request = self._request(answered, answer)
        try:
            completion, attempts = await answered.classifier.acomplete(request)
        except CalibrantError as error:
            attempts = error.attempts if isinstance(error, ProviderError) else 1
            return NoEvidence(reason=f"The answer could not be graded: {error}", attempts=attempts)
        grade, reason = _grade(completion)
        if grade is None:
            return NoEvidence(reason=reason, usage=completion.usage, attempts=attempts)
        return Assessment(
            confidence=grade, native=grade, reason=reason, usage=completion.usage, attempts=attempts
        )

    def _request(self, answered: Answered, answer: str) -> CompletionRequest:
        classifier = answered.classifier
        values = {
            "task": classifier.prompt or None,
            "labels": list(classifier.labels.labels),
            "context": answered.context,
            "question": answered.question,
            "answer": answer,
        }
        slots = {name: quoted(value) for name, value in values.items()}
        message = fill_slots(self.prompt, slots)
        length = "max_completion_tokens" if "max_completion_tokens" in classifier.options else "max_tokens"
        own: dict[str, Any] = {length: int(self.max_tokens)}
        if self.temperature is not None:
            own["temperature"] = self.temperature
        return CompletionRequest(
            messages=({"role": "user", "content": message},),
            # Of the kind that the classifier's own requests use.
            response_format=_FORMATS.get((classifier.response_format or {}).get("type")),
            top_logprobs=0,
            options=own,
        )

    def describe(self) -> dict[str, Any]:
        """Return the method's name and settings."""
        return {**super().describe(), **asdict(self)}


def _grade(completion: Completion) -> tuple[float | None, str]:
    """Parse a reply into a grade in [0, 1] and its reason, or into None and an error message."""
    if completion.refusal:
        return None, f"The model declined to grade its answer: {completion.refusal[:_SHOWN]}"
    text = completion.text.rpartition("</think>")[2].strip()
    grade, reason = _in_object(text) if "{" in text else (_in_prose(text), text)
    if grade is None:
        cut = " It was cut off: raise max_tokens." if completion.finish_reason == "length" else ""
        return None, (
            f"Expected a grade such as {{'confidence': 0.8, 'reason': '...'}}, got {text[:_SHOWN]!r}.{cut}"
        )
    if not is_share(grade):
        return None, f"Expected a confidence in [0, 1], got {grade!r} in {text[:_SHOWN]!r}."
    return float(grade), reason


def _in_object(text: str) -> tuple[object, str]:
    begin = text.index("{")
    end = text.rfind("}") + 1
    if end <= begin:
        match = _CUT_OFF.match(text, begin)
        return (None if match is None else float(match[1])), ""
    try:
        reply = json.loads(text[begin:end], strict=False)
    except (ValueError, RecursionError):
        return None, ""
    return reply.get("confidence"), str(reply.get("reason") or "")


def _in_prose(text: str) -> float | None:
    """Return the first number of a plain-text reply as the grade; None if it may count other things.

    A bare 0 or 1 with words behind it may be the number of a list or of a step.
    """
    match = _NUMBER.search(text)
    if match is None or _OTHER_UNIT.match(text, match.end()):
        return None
    grade = float(match[0])
    has_words = "." not in match[0] and text[match.end() :].strip(" \n.!\"'*`")
    return None if has_words and is_share(grade) else grade
