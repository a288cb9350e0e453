"""Where a label is and how probable it is, read twice: by calibrant and by llm-structured-confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from calibrant.core._completion import Completion
from calibrant.core._errors import CalibrantError, LogprobsUnavailableError
from calibrant.inference.doctor._units import SENTINEL
from calibrant.logprobs._align import align
from calibrant.logprobs._completion import read_completion


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What one reader found.

    Attributes
    ----------
    value : object
        The value of the field.
    tokens : tuple of str
        The tokens that spell it.
    logprobs : tuple of float
        What was reported for each of them, clipped. Both readers take these numbers from one answer, so equal ones
        stand for the same tokens, however each reader decodes them.
    joint : float
        The joint log-probability.
    """

    value: object
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    joint: float

    def __str__(self) -> str:
        return f"{self.joint:.4g} for {self.value!r:.60} over {list(self.tokens)!r:.120}"


def compare(response: object, field_path: str) -> str | None:
    """Compare both readings of a provider's answer.

    Parameters
    ----------
    response : object
        The answer as the provider gave it.
    field_path : str
        JSON path of the label.

    Returns
    -------
    str or None
        What each reader found, and why they differ; empty where value, tokens and joint log-probability are the
        same. None where neither finds any, as in an answer without log-probabilities.
    """
    try:
        completion = read_completion(response)
    except CalibrantError:
        return None
    if not completion.tokens:
        return None
    ours = _ours(completion, field_path)
    theirs = _theirs(_as_body(completion) if isinstance(response, Completion) else response, field_path)
    if isinstance(ours, str) and isinstance(theirs, str):
        return None
    why = _why(ours, theirs, completion)
    return (
        f"calibrant: {_shown(ours)}; llm-structured-confidence: {_shown(theirs)}. Why: {why}" if why else ""
    )


def _shown(found: _Found | str) -> str:
    return f"nothing ({found})" if isinstance(found, str) else str(found)


def _ours(completion: Completion, field_path: str) -> _Found | str:
    try:
        aligned = align(completion, field_path)
        joint = aligned.joint_logprob()
    except LogprobsUnavailableError as error:
        return str(error).rstrip(".")
    tokens = aligned.content()
    return _Found(
        value=aligned.value,
        tokens=tuple(token.data.decode(errors="replace") for token in tokens),
        logprobs=tuple(token.logprob for token in tokens),
        joint=joint,
    )


def _theirs(response: object, field_path: str) -> _Found | str:
    import llm_structured_confidence as library  # noqa: PLC0415 (brings a parser generator, for the doctor alone)

    try:
        entries = library.extract_logprobs(response, field_path=field_path)
    except Exception as error:  # noqa: BLE001 (its parser's errors, and KeyErrors of shapes it does not know)
        return " ".join(f"{type(error).__name__}: {error}".split())[:120].rstrip(".")
    if not entries:
        return "the field is missing"
    found = entries[0].field_logprob
    return _Found(
        value=found.value,
        tokens=tuple(token.token for token in found.tokens),
        logprobs=tuple(min(max(token.logprob, SENTINEL), 0.0) for token in found.tokens),
        joint=found.joint_logprob,
    )


def _why(ours: _Found | str, theirs: _Found | str, completion: Completion) -> str:
    """Return why two readings differ; empty where they do not."""
    if isinstance(ours, str):
        return "the library does not check that the tokens spell the answer."
    if isinstance(theirs, str):
        bare = completion.text.strip().startswith(("{", "["))
        return f"{'its parser takes fewer spellings of JSON' if bare else 'it takes bare JSON only'}."
    if ours.logprobs != theirs.logprobs:
        return _why_other_tokens(ours, theirs, completion)
    if ours.value != theirs.value:
        return "it leaves JSON escapes in the value."
    same = math.isclose(ours.joint, theirs.joint, abs_tol=1e-9)
    return "" if same else "calibrant clips log-probabilities to [-9999, 0]."


def _why_other_tokens(ours: _Found, theirs: _Found, completion: Completion) -> str:
    data = [token.data for token in completion.tokens or ()]
    before = b"".join(data).find(completion.text.encode("utf-8", "surrogatepass"))
    if not theirs.tokens:
        return (
            "an empty value has no tokens, which it takes for certainty; calibrant takes the closing quote."
        )
    if before != 0:
        where = f"{before} bytes before the answer" if before > 0 else "otherwise than the answer"
        return f"the tokens begin {where}, and it counts from their beginning."
    if any(_is_broken(one) for one in data):
        return "tokens hold parts of characters, and it counts characters, calibrant bytes."
    if "" in ours.tokens:
        return "a token without text stands before the value, and calibrant counts it."
    return "unknown; please report it with the answer."


def _is_broken(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def _as_body(completion: Completion) -> dict[str, Any]:
    """Return a completion as the body of a chat answer, the shape that the library reads."""
    content = [
        {"token": token.data.decode(errors="replace"), "logprob": token.logprob}
        for token in completion.tokens or ()
    ]
    return {"choices": [{"message": {"content": completion.text}, "logprobs": {"content": content}}]}
