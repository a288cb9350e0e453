"""Requests to llama.cpp's server and to servers of ``/v1/completions``, and their answers."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from calibrant.clients._http import JsonHttp, Reply
from calibrant.core._completion import LabelLogprobs, Message, NextTokens
from calibrant.core._errors import ProviderError
from calibrant.core._prediction import Usage
from calibrant.core._reported import bounded_count, reported_mapping

Listing: TypeAlias = tuple[tuple[bytes, float], ...]

_LEAST_COUNT: Final = 5
_MOST_PROMPTS: Final = 128
# Bytes of an answer, below the limit of 16 MiB, and bytes of answer per byte of prompt: vLLM writes 250 for a
# token, which holds about four letters.
_MOST_ANSWERED: Final = 12 * 2**20
_ANSWERED_PER_BYTE: Final = 80
# Next tokens of a short listing, where it will probably do: 800 more cost as much time as computing half a token.
_FEW_TOKENS: Final = 200
REPEATS: Final = 3
"""Attempts of a call that returns without log-probabilities, as about 1 in 300 of llama.cpp's do."""

_HINT: Final = "Try again, or scoring='decode'."
# A bias that makes llama.cpp generate a quote. The generated token is of no interest, but where it ends the turn or
# is part of a character, the server holds back the log-probabilities with it. Those are reported before any bias.
_WRITABLE: Final = [['"', 100.0]]
# The most alternatives that a server reports stand in its refusal alone, in words.
_MAXIMUM = re.compile(
    r"(?:\bmax[a-z_]*|at most|up to|no more than|less than or equal to|<=)(?:\s+[a-z_]+){0,3}?[\s:=(]*(\d{1,9})(?!\d)"
)
_ROUNDING: Final = 1e-6
# vLLM writes -9999 for impossible tokens.
_LEAST: Final = -1e9


@dataclass(kw_only=True)
class LlamaCppServer:
    """Requests to llama.cpp's server, by its own routes.

    Attributes
    ----------
    http : JsonHttp
        Transport to the server.
    slots : int
        Prompts it computes side by side; each slot caches the last one.
    context : int or None
        Longest prompt with its answer, in tokens.
    most : int or None
        Largest number of next tokens it accepts, once it has refused a larger one.
    """

    http: JsonHttp
    slots: int
    context: int | None
    most: int | None = None

    route: ClassVar[str] = "/completion"
    template_routes: ClassVar[str] = "/apply-template"

    @classmethod
    def recognised(cls, http: JsonHttp, props: Reply) -> LlamaCppServer | None:
        """Return the server if the answer to ``GET /props`` is llama.cpp's, else None."""
        data = props.data or {}
        if not props.fine or not data.keys() & {"default_generation_settings", "total_slots"}:
            return None
        context = reported_mapping(data.get("default_generation_settings")).get("n_ctx")
        return cls(
            http=http, slots=_positive_int(data.get("total_slots")) or 1, context=_positive_int(context)
        )

    async def ask(self, prompt: str, *, count: int, slot: int | None = None) -> Reply:
        """Request the `count` most probable tokens after `prompt`, or as many as the server allows."""
        while True:
            count = min(count, self.most or count)
            body: dict[str, Any] = {
                "prompt": prompt,
                "n_predict": 1,
                "n_probs": count,
                "temperature": 0,
                "cache_prompt": True,
                "logit_bias": _WRITABLE,
            }
            if slot is not None:
                body["id_slot"] = slot
            reply = await self.http.exchange(self.route, body)
            lower = _smaller_count(reply, count)
            if lower is None:
                return reply
            self.most = min(lower, self.most or lower)

    async def next_tokens(self, prompt: str, *, count: int, few: bool, slot: int) -> NextTokens:
        """Return the most probable next tokens after `prompt`, computed in `slot`.

        Raises
        ------
        ProviderError
            The call failed, or brought no log-probabilities.
        """
        most = min(count, self.most or count)
        wanted = min(most, _FEW_TOKENS) if few else most
        for _ in range(REPEATS):
            answer = self.http.checked(await self.ask(prompt, count=wanted, slot=slot))
            listing = self.listing(answer)
            if listing:
                usage = _usage(answer, prompt="tokens_evaluated", completion="tokens_predicted")
                model = _text(answer, "model")
                return NextTokens(top=listing, usage=usage, model=model, short=wanted < most)
        raise ProviderError(
            f"the server answered {REPEATS} times without log-probabilities.",
            provider=self.http.provider,
            retryable=True,
            hint=_HINT,
        )

    def listing(self, answer: Mapping[str, Any]) -> Listing:
        """Return the tokens listed in an answer; empty if there are none."""
        try:
            top = answer["completion_probabilities"][0]["top_logprobs"]
            return tuple([(bytes(token["bytes"]), float(token["logprob"])) for token in top])
        except (LookupError, TypeError, ValueError):
            return ()

    async def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str | None:
        """Return the prompt by the server's own chat template, or None if the server does not expose it."""
        reply = await self.http.exchange("/apply-template", _chat(messages, options))
        if reply.absent:
            return None
        return _text(self.http.checked(reply), "prompt")

    async def size(self, text: str) -> tuple[int, int | None]:
        """Return the size of `text` and of the context, in tokens; None for an unknown context."""
        return len(await self._tokens(text, special=False)), self.context

    async def spells(self, text: str) -> bool:
        """Return whether `text` has no special token and can be restored from its tokens."""
        tokens = await self._tokens(text, special=True)
        if tokens != await self._tokens(text, special=False):
            return False
        answer = await self.http.call("/detokenize", {"tokens": tokens})
        return (_text(answer, "content") or "").strip() == text.strip()

    async def _tokens(self, text: str, *, special: bool) -> list[int]:
        answer = await self.http.call("/tokenize", {"content": text, "parse_special": special})
        return list(answer.get("tokens") or ())


@dataclass(frozen=True, kw_only=True)
class CompletionsServer:
    """Requests to servers of ``/v1/completions``, such as vLLM and SGLang.

    Attributes
    ----------
    http : JsonHttp
        Transport to the server.
    model : str
        The model's name at the server.
    logprobs : int, default 1
        Alternatives requested beside every token. 0 would do, but SGLang takes it for no log-probabilities at all.
    """

    http: JsonHttp
    model: str
    logprobs: int = 1

    route: ClassVar[str] = "/v1/completions"
    template_routes: ClassVar[str] = "/tokenize and /detokenize"

    async def ask(self, prompts: Sequence[str], *, whole: bool = False) -> Reply:
        """Request the log-probabilities of the prompts' tokens.

        One token is generated behind each prompt: older servers refuse to generate none, and newer ones compute
        it anyway. `whole` prompts hold every special token already, so the server must not add any.
        """
        body = {
            "model": self.model,
            "prompt": list(prompts),
            "echo": True,
            "logprobs": self.logprobs,
            "max_tokens": 1,
            "temperature": 0,
        }
        special = {"add_special_tokens": False} if whole else {}
        return await self.http.exchange(self.route, body | special)

    async def label_logprobs(self, prompt: str, values: Sequence[str], *, whole: bool) -> LabelLogprobs:
        """Return the log-probability of each label with its closing quote after `prompt`.

        Raises
        ------
        ProviderError
            A call failed, or brought no usable log-probabilities.
        """
        batches = self.batches((prompt, *(f'{prompt}{value}"' for value in values)))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.ask(batch, whole=whole)) for batch in batches]
            answers = [self.http.checked(task.result()) for task in tasks]
            begun, *continued = (
                echo
                for answer, batch in zip(answers, batches, strict=True)
                for echo in read_echoes(answer, batch)
            )
            logprobs = label_logprobs(begun, continued)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        except EchoError as error:
            raise self.unusable(error) from None
        usages = [
            _usage(
                reported_mapping(answer.get("usage")), prompt="prompt_tokens", completion="completion_tokens"
            )
            for answer in answers
        ]
        usage = Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
        )
        return LabelLogprobs(logprobs=logprobs, usage=usage, model=_text(answers[0], "model"))

    def unusable(self, error: EchoError) -> ProviderError:
        """Return the error for an answer without usable log-probabilities."""
        return ProviderError(
            f"Expected the log-probabilities of the prompts' tokens, got {self.http.redacted(str(error))}.",
            provider=self.http.provider,
            retryable=True,
            hint=_HINT,
        )

    def batches(self, prompts: Sequence[str]) -> list[Sequence[str]]:
        """Split the prompts into batches whose answers should stay below the size limit."""
        longest = max(len(prompt.encode("utf-8", "surrogatepass")) for prompt in prompts)
        size = max(1, min(_MOST_PROMPTS, _MOST_ANSWERED // (_ANSWERED_PER_BYTE * longest)))
        return [prompts[begin : begin + size] for begin in range(0, len(prompts), size)]

    async def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str | None:
        """Return the prompt by the server's own chat template, or None if the server does not expose it."""
        body = {"model": self.model, "add_generation_prompt": True, **_chat(messages, options)}
        reply = await self.http.exchange("/tokenize", body)
        words = reply.words.lower()
        # SGLang refuses messages, as it tokenises prompts only.
        wants_prompt = reply.status in {400, 422} and "prompt" in words and "required" in words
        if reply.absent or wants_prompt:
            return None
        return await self._spelled(self.http.checked(reply).get("tokens") or [])

    async def size(self, text: str) -> tuple[int, int | None]:
        """Return the size of `text` and of the context, in tokens; None for an unknown context."""
        answer = await self._tokenized(text) or {}
        return len(answer.get("tokens") or ()), _positive_int(answer.get("max_model_len"))

    async def spells(self, text: str) -> bool:
        """Return whether `text` can be restored from its tokens; True if the server cannot tell.

        Special tokens cannot be distinguished here, and white space is ignored, as servers may clean it up.
        """
        answer = await self._tokenized(text)
        spelled = None if answer is None else await self._spelled(answer.get("tokens") or [])
        return spelled is None or "".join(spelled.split()) == "".join(text.split())

    async def _tokenized(self, text: str) -> dict[str, Any] | None:
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        reply = await self.http.exchange("/tokenize", body)
        return None if reply.absent else self.http.checked(reply)

    async def _spelled(self, tokens: Sequence[int]) -> str | None:
        reply = await self.http.exchange("/detokenize", {"model": self.model, "tokens": list(tokens)})
        if reply.absent:
            return None
        answer = self.http.checked(reply)
        return _text(answer, "prompt") or _text(answer, "text")  # vLLM, SGLang


Server: TypeAlias = LlamaCppServer | CompletionsServer


def _smaller_count(reply: Reply, count: int) -> int | None:
    """Return a smaller number of next tokens if `count` was refused as too large, else None."""
    words = reply.words.lower()
    if reply.status not in {400, 422} or "n_probs" not in words:
        return None
    limits = [int(number) for number in _MAXIMUM.findall(words)]
    lower = next((number for number in limits if 0 < number < count), max(_LEAST_COUNT, count // 2))
    return lower if lower < count else None


def _chat(messages: Sequence[Message], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a request with the messages and the variables of the chat template."""
    variables = {"chat_template_kwargs": dict(options)} if options else {}
    return {"messages": [dict(message) for message in messages], **variables}


def _usage(counts: Mapping[str, Any], *, prompt: str, completion: str) -> Usage:
    return Usage(
        prompt_tokens=bounded_count(counts.get(prompt)),
        completion_tokens=bounded_count(counts.get(completion)),
    )


def _text(answer: Mapping[str, Any], name: str) -> str | None:
    value = answer.get(name)
    return value if isinstance(value, str) else None


def _positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


class EchoError(Exception):
    """Error for an unusable answer, which the message describes."""


class NoEchoError(EchoError):
    """Error for an answer without the log-probabilities of its prompts' tokens."""


class Echoed(NamedTuple):
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
    """Return the tokens and log-probabilities of each prompt of a request, without generated tokens.

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
    """Return the log-probability of each continuation of the same prompt.

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
    start = len(os.path.commonprefix(lists))  # noqa: RUF071 (no paths)
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
    reported = reported_mapping(choice.get("logprobs"))
    tokens, logprobs = reported.get("tokens"), reported.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(logprobs, list) or not tokens:
        raise NoEchoError("none")
    if len(tokens) != len(logprobs) or not all(isinstance(token, str) for token in tokens):
        raise EchoError(f"{len(logprobs)} log-probabilities for {len(tokens)} tokens")
    return tokens, logprobs


def _tokens_added(lists: Sequence[list[str]], prompts: Sequence[str], answer: Mapping[str, Any]) -> int:
    """Return the number of tokens that the server generated after each prompt, 1 or 0.

    It follows from the reported count of the prompts' tokens or, without that count, from the tokens' text.
    """
    counted = reported_mapping(answer.get("usage")).get("prompt_tokens")
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
