"""Reader of the prompts' log-probabilities that servers of ``/v1/completions`` return (``echo``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from calibrant.core._reported import bounded_count

_ROUNDING: Final = 1e-6
# vLLM writes -9999 for impossible tokens.
_LEAST: Final = -1e9


class EchoError(Exception):
    """Unusable answer; the message describes it."""


class NoEchoError(EchoError):
    """Answer without the log-probabilities of its prompts' tokens; the message describes it."""


@dataclass(frozen=True, slots=True)
class Echoed:
    """Tokens of one prompt with their log-probabilities.

    Attributes
    ----------
    tokens : tuple of str
        Its tokens as the server shows them; different ones may look the same.
    logprobs : tuple of float
        Natural logarithms of their probabilities; 0 for the first token, which has no context.
    """

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]


def read_echoes(answer: Mapping[str, Any], prompts: Sequence[str]) -> list[Echoed]:
    """Return the echoed prompts of a request, without a token that the server may have generated behind each.

    Parameters
    ----------
    answer : mapping
        The server's answer.
    prompts : sequence of str, length P
        The prompts that were sent.

    Raises
    ------
    NoEchoError
        The answer holds no log-probabilities, or not those of the prompts' tokens.
    EchoError
        Choices are missing, or a log-probability is invalid.
    """
    lists = [_lists(choice) for choice in _choices(answer, len(prompts))]
    added = _tokens_added([tokens for tokens, _ in lists], prompts, answer)
    return [
        Echoed(tuple(tokens[: len(tokens) - added]), _valid_logprobs(logprobs[: len(tokens) - added]))
        for tokens, logprobs in lists
    ]


def label_logprobs(begun: Echoed, continued: Sequence[Echoed]) -> tuple[float, ...]:
    """Return the log-probability of each continuation of a beginning.

    Log-probabilities are added up from the first token that differs between any prompt and the beginning; the tokens
    before it are the same for all. Mostly that is the end of the beginning. Where a token spans that end, the sums are
    divided by the probability of the end in all tokenisations seen, which is at most its probability in all of them.

    Parameters
    ----------
    begun : Echoed
        The beginning.
    continued : sequence of Echoed, length L
        The beginning with each continuation.

    Returns
    -------
    tuple of float, length L
        Natural logarithms of the probabilities, at most 0.

    Raises
    ------
    EchoError
        A prompt has no tokens of its own, or shares no token with the beginning.
    """
    lists = [begun.tokens, *(one.tokens for one in continued)]
    columns = zip(*lists, strict=False)
    start = next(
        (place for place, column in enumerate(columns) if len(set(column)) > 1), min(map(len, lists))
    )
    if start == 0 or any(len(one.tokens) <= start for one in continued):
        raise EchoError("prompts whose tokens do not go on from a common beginning")
    sums = [math.fsum(one.logprobs[start:]) for one in continued]
    ways = [math.fsum(begun.logprobs[start:])]
    ways += [
        total
        for one, total in zip(continued, sums, strict=True)
        if one.tokens[: len(begun.tokens)] != begun.tokens
    ]
    most = max(ways)
    scale = most + math.log(math.fsum(math.exp(way - most) for way in ways))
    return tuple(min(total - scale, 0.0) for total in sums)


def _choices(answer: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    """Return the choices in the order of the prompts."""
    entries = answer.get("choices")
    choices = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    places = [one.get("index", place) for place, one in enumerate(choices)]
    if any(not isinstance(place, int) for place in places) or sorted(places) != list(range(count)):
        raise EchoError(f"{len(choices)} choices for {count} prompts")
    by_place = dict(zip(places, choices, strict=True))
    return [by_place[place] for place in range(count)]


def _lists(choice: Mapping[str, Any]) -> tuple[list[str], list[object]]:
    reported = choice.get("logprobs")
    reported = reported if isinstance(reported, Mapping) else {}
    tokens, logprobs = reported.get("tokens"), reported.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(logprobs, list) or not tokens:
        raise NoEchoError("none")
    if len(tokens) != len(logprobs) or not all(isinstance(token, str) for token in tokens):
        raise EchoError(f"{len(logprobs)} log-probabilities for {len(tokens)} tokens")
    return tokens, logprobs


def _tokens_added(lists: Sequence[list[str]], prompts: Sequence[str], answer: Mapping[str, Any]) -> int:
    """Return the number of tokens generated behind each prompt: 1, or 0 where the server generates none.

    It follows from the reported count of the prompts' tokens or, without that count, from the tokens' text.
    """
    usage = answer.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    total = sum(map(len, lists))
    for added in (1, 0):
        if isinstance(counted, int):
            if total - counted == added * len(lists):
                return added
        elif all(
            "".join(tokens[: len(tokens) - added]).endswith(prompt)
            for tokens, prompt in zip(lists, prompts, strict=True)
        ):
            return added
    expected = f"{bounded_count(counted)} tokens" if isinstance(counted, int) else f"{len(prompts)} prompts"
    raise NoEchoError(f"{total} for {expected}")


def _valid_logprobs(logprobs: Sequence[object]) -> tuple[float, ...]:
    valid: list[float] = []
    for place, value in enumerate(logprobs):
        if place == 0 and value is None:
            valid.append(0.0)
        elif isinstance(value, int | float) and _LEAST <= value <= _ROUNDING:  # never true of NaN
            valid.append(min(float(value), 0.0))
        else:
            raise EchoError(f"{str(value)[:40]} for a log-probability")
    return tuple(valid)
