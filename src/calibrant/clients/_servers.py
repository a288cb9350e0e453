"""Protocols of the two kinds of servers that score labels: bodies of requests, readers of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from calibrant.clients._http import JsonHttp, Reply
from calibrant.core._completion import Message
from calibrant.core._prediction import Usage
from calibrant.core._reported import bounded_count

Listing: TypeAlias = tuple[tuple[bytes, float], ...]

_LEAST_COUNT: Final = 5
_MOST_PROMPTS: Final = 128
# Bytes of an answer, below the limit of 16 MiB, and bytes of answer per byte of prompt: vLLM writes 250 for a
# token, which holds about four letters.
_MOST_ANSWERED: Final = 12 * 2**20
_ANSWERED_PER_BYTE: Final = 80
# A bias that makes llama.cpp generate a quote. The generated token is of no interest, but where it ends the turn or
# is part of a character, the server holds back the log-probabilities with it. Those are reported before any bias.
_WRITABLE: Final = [['"', 100.0]]
_MAXIMUM = re.compile(
    r"(?:\bmax[a-z_]*|at most|up to|no more than|less than or equal to|<=)(?:\s+[a-z_]+){0,3}?[\s:=(]*(\d{1,9})(?!\d)"
)


class Size(NamedTuple):
    """Length of a text and the server's limit, in tokens."""

    tokens: int
    limit: int | None


@dataclass(frozen=True, kw_only=True)
class LlamaCppServer:
    """Protocol of llama.cpp's server, by its own routes.

    Attributes
    ----------
    http : JsonHttp
        Transport to the server.
    slots : int
        Prompts it computes side by side; each slot caches the last one.
    context : int or None
        Longest prompt with its answer, in tokens.
    """

    http: JsonHttp
    slots: int
    context: int | None

    route: ClassVar[str] = "/completion"
    template_routes: ClassVar[str] = "/apply-template"

    @classmethod
    def recognised(cls, http: JsonHttp, props: Reply) -> LlamaCppServer | None:
        """Return the server if the answer to ``GET /props`` is llama.cpp's, else None."""
        data = props.data or {}
        if not props.fine or not data.keys() & {"default_generation_settings", "total_slots"}:
            return None
        settings = data.get("default_generation_settings")
        context = settings.get("n_ctx") if isinstance(settings, Mapping) else None
        return cls(
            http=http, slots=_positive_int(data.get("total_slots")) or 1, context=_positive_int(context)
        )

    def body(self, prompt: str, *, count: int, slot: int | None) -> dict[str, Any]:
        """Return the request for the `count` most probable tokens after `prompt`, in any slot if `slot` is None."""
        body: dict[str, Any] = {
            "prompt": prompt,
            "n_predict": 1,
            "n_probs": count,
            "temperature": 0,
            "cache_prompt": True,
            "logit_bias": _WRITABLE,
        }
        return body if slot is None else {**body, "id_slot": slot}

    def listing(self, answer: Mapping[str, Any]) -> Listing | None:
        """Return the tokens listed in an answer, or None without any."""
        try:
            top = answer["completion_probabilities"][0]["top_logprobs"]
            listing = tuple([(bytes(token["bytes"]), float(token["logprob"])) for token in top])
        except (LookupError, TypeError, ValueError):
            return None
        return listing or None

    def usage(self, answer: Mapping[str, Any]) -> Usage:
        """Return the tokens used by an answer."""
        return Usage(
            prompt_tokens=bounded_count(answer.get("tokens_evaluated")),
            completion_tokens=bounded_count(answer.get("tokens_predicted")),
        )

    async def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str | None:
        """Return the prompt by the server's own chat template, or None if the server does not expose it."""
        body: dict[str, Any] = {"messages": [dict(message) for message in messages]}
        if options:
            body["chat_template_kwargs"] = dict(options)
        reply = await self.http.exchange("/apply-template", body)
        if reply.absent:
            return None
        return _text(self.http.checked(reply), "prompt")

    async def size(self, text: str) -> Size | None:
        """Return the size of `text` in tokens."""
        return Size(len(await self._tokens(text, special=False)), self.context)

    async def spells(self, text: str) -> bool:
        """Return whether the tokens of `text` contain no special token and spell it."""
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
    """Protocol of servers of ``/v1/completions``, such as vLLM and SGLang.

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

    def body(self, prompts: Sequence[str], *, whole: bool) -> dict[str, Any]:
        """Return the request for the log-probabilities of the prompts' tokens.

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
        return {**body, "add_special_tokens": False} if whole else body

    def batches(self, prompts: Sequence[str]) -> list[Sequence[str]]:
        """Return the prompts in batches that keep each request and its answer below the size limits."""
        longest = max(len(prompt.encode("utf-8", "surrogatepass")) for prompt in prompts)
        size = max(1, min(_MOST_PROMPTS, _MOST_ANSWERED // (_ANSWERED_PER_BYTE * longest)))
        return [prompts[begin : begin + size] for begin in range(0, len(prompts), size)]

    def usage(self, answer: Mapping[str, Any]) -> Usage:
        """Return the tokens used by an answer."""
        usage = answer.get("usage")
        usage = usage if isinstance(usage, Mapping) else {}
        return Usage(
            prompt_tokens=bounded_count(usage.get("prompt_tokens")),
            completion_tokens=bounded_count(usage.get("completion_tokens")),
        )

    async def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str | None:
        """Return the prompt by the server's own chat template, or None if the server does not expose it."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
        }
        if options:
            body["chat_template_kwargs"] = dict(options)
        reply = await self.http.exchange("/tokenize", body)
        if reply.absent or _wants_prompt(reply):
            return None
        return await self._spelled(self.http.checked(reply).get("tokens") or [])

    async def size(self, text: str) -> Size | None:
        """Return the size of `text` in tokens, or None if the server has no tokeniser route."""
        answer = await self._tokenized(text)
        if answer is None:
            return None
        return Size(len(answer.get("tokens") or ()), _positive_int(answer.get("max_model_len")))

    async def spells(self, text: str) -> bool:
        """Return whether the tokens of `text` spell it; True if the server has no tokeniser route.

        Special tokens cannot be told from others here, and white space is ignored, as servers may clean it up.
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


def smaller_count(reply: Reply, count: int) -> int | None:
    """Return a smaller number of next tokens if `count` was refused as too large, else None."""
    words = reply.words.lower()
    if reply.status not in {400, 422} or "n_probs" not in words:
        return None
    limits = [int(number) for number in _MAXIMUM.findall(words)]
    lower = next((number for number in limits if 0 < number < count), max(_LEAST_COUNT, count // 2))
    return lower if lower < count else None


def _wants_prompt(reply: Reply) -> bool:
    """Return whether a server refused messages because it tokenises prompts only, as SGLang does."""
    words = reply.words.lower()
    return reply.status in {400, 422} and all(word in words for word in ("prompt", "required"))


def _text(answer: Mapping[str, Any], name: str) -> str | None:
    value = answer.get(name)
    return value if isinstance(value, str) else None


def _positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
