"""The two kinds of servers that labels are scored with: what they are sent, what they answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from calibrant.clients._continuing import WRITABLE
from calibrant.clients._http import JsonHttp, Reply
from calibrant.core import Message, Usage, bounded_count

__all__ = [
    "CompletionsServer",
    "LlamaCppServer",
    "Server",
    "Size",
    "smaller_count",
]

Listing: TypeAlias = tuple[tuple[bytes, float], ...]

_LEAST_COUNT: Final = 5
_MOST_PROMPTS: Final = 128
# Bytes of an answer, of which 16 MiB are read, and how many a byte of a prompt may bring: vLLM writes 250 for a
# token, which holds about four letters.
_MOST_ANSWERED: Final = 12 * 2**20
_ANSWERED_PER_BYTE: Final = 80
_MAXIMUM = re.compile(
    r"(?:\bmax[a-z_]*|at most|up to|no more than|less than or equal to|<=)(?:\s+[a-z_]+){0,3}?[\s:=(]*(\d{1,9})(?!\d)"
)


class Size(NamedTuple):
    """How long a text is, in tokens, and how long one may be."""

    tokens: int
    limit: int | None


@dataclass(frozen=True, kw_only=True)
class LlamaCppServer:
    """llama.cpp's server, by its own routes.

    Attributes
    ----------
    http : JsonHttp
        Where it is.
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
        """Return the server whose ``GET /props`` this is the answer to, or None."""
        data = props.data or {}
        if not props.fine or not data.keys() & {"default_generation_settings", "total_slots"}:
            return None
        settings = data.get("default_generation_settings")
        context = settings.get("n_ctx") if isinstance(settings, Mapping) else None
        return cls(http=http, slots=_whole(data.get("total_slots")) or 1, context=_whole(context))

    def body(self, prompt: str, *, count: int, slot: int | None) -> dict[str, Any]:
        """Return what asks for the `count` most probable tokens after `prompt`; None is any slot."""
        body: dict[str, Any] = {
            "prompt": prompt,
            "n_predict": 1,
            "n_probs": count,
            "temperature": 0,
            "cache_prompt": True,
            "logit_bias": WRITABLE,
        }
        return body if slot is None else {**body, "id_slot": slot}

    def listing(self, answer: Mapping[str, Any]) -> Listing | None:
        """Return the tokens of an answer, or None where it holds none."""
        try:
            top = answer["completion_probabilities"][0]["top_logprobs"]
            found = tuple([(bytes(token["bytes"]), float(token["logprob"])) for token in top])
        except (LookupError, TypeError, ValueError):
            return None
        return found or None

    def usage(self, answer: Mapping[str, Any]) -> Usage:
        """Return the tokens an answer took."""
        return Usage(
            prompt_tokens=bounded_count(answer.get("tokens_evaluated")),
            completion_tokens=bounded_count(answer.get("tokens_predicted")),
        )

    async def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str | None:
        """Return the prompt by the server's own chat template, or None where it renders none."""
        body: dict[str, Any] = {"messages": [dict(message) for message in messages]}
        if options:
            body["chat_template_kwargs"] = dict(options)
        reply = await self.http.exchange("/apply-template", body)
        if reply.absent:
            return None
        return _text(self.http.checked(reply), "prompt")

    async def size(self, text: str) -> Size | None:
        """Return how many tokens `text` has."""
        return Size(len(await self._tokens(text, special=False)), self.context)

    async def spells(self, text: str) -> bool:
        """Return whether the tokens of `text` are those of ordinary text, and spell it."""
        tokens = await self._tokens(text, special=True)
        if tokens != await self._tokens(text, special=False):
            return False
        found = await self.http.call("/detokenize", {"tokens": tokens})
        return (_text(found, "content") or "").strip() == text.strip()

    async def _tokens(self, text: str, *, special: bool) -> list[int]:
        found = await self.http.call("/tokenize", {"content": text, "parse_special": special})
        return list(found.get("tokens") or ())


@dataclass(frozen=True, kw_only=True)
class CompletionsServer:
    """A server of ``/v1/completions``, as OpenAI defined it and vLLM serves it.

    Attributes
    ----------
    http : JsonHttp
        Where it is.
    model : str
        The model's name there.
    logprobs : int, default 1
        Log-probabilities wanted for every token besides its own; SGLang takes 0 for none at all.
    """

    http: JsonHttp
    model: str
    logprobs: int = 1

    route: ClassVar[str] = "/v1/completions"
    template_routes: ClassVar[str] = "/tokenize and /detokenize"

    def body(self, prompts: Sequence[str], *, whole: bool) -> dict[str, Any]:
        """Return what asks for the log-probabilities of the prompts' tokens.

        One token is written behind each prompt, because older servers refuse to write none, and the newer ones
        compute it all the same. `whole` prompts hold every special token already: none is to be added.
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
        """Return the prompts in parts, each of which fits into a request and its answer into what is read."""
        longest = max(len(prompt.encode("utf-8", "surrogatepass")) for prompt in prompts)
        size = max(1, min(_MOST_PROMPTS, _MOST_ANSWERED // (_ANSWERED_PER_BYTE * longest)))
        return [prompts[begin : begin + size] for begin in range(0, len(prompts), size)]

    def usage(self, answer: Mapping[str, Any]) -> Usage:
        """Return the tokens an answer took."""
        used = answer.get("usage")
        used = used if isinstance(used, Mapping) else {}
        return Usage(
            prompt_tokens=bounded_count(used.get("prompt_tokens")),
            completion_tokens=bounded_count(used.get("completion_tokens")),
        )

    async def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str | None:
        """Return the prompt by the server's own chat template, or None where it renders none."""
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
        """Return how many tokens `text` has, or None where the server does not say."""
        found = await self._tokenized(text)
        if found is None:
            return None
        return Size(len(found.get("tokens") or ()), _whole(found.get("max_model_len")))

    async def spells(self, text: str) -> bool:
        """Return whether the tokens of `text` spell it, as far as the server says.

        Special tokens look like others here, and spaces may be cleaned up.
        """
        found = await self._tokenized(text)
        spelled = None if found is None else await self._spelled(found.get("tokens") or [])
        return spelled is None or "".join(spelled.split()) == "".join(text.split())

    async def _tokenized(self, text: str) -> dict[str, Any] | None:
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        reply = await self.http.exchange("/tokenize", body)
        return None if reply.absent else self.http.checked(reply)

    async def _spelled(self, tokens: Sequence[int]) -> str | None:
        reply = await self.http.exchange("/detokenize", {"model": self.model, "tokens": list(tokens)})
        if reply.absent:
            return None
        found = self.http.checked(reply)
        return _text(found, "prompt") or _text(found, "text")  # vLLM, SGLang


Server: TypeAlias = LlamaCppServer | CompletionsServer


def smaller_count(reply: Reply, count: int) -> int | None:
    """Return the number of next tokens to ask for instead, where `count` was refused as too large."""
    words = reply.words.lower()
    if reply.status not in {400, 422} or "n_probs" not in words:
        return None
    named = [int(number) for number in _MAXIMUM.findall(words)]
    lower = next((number for number in named if 0 < number < count), max(_LEAST_COUNT, count // 2))
    return lower if lower < count else None


def _wants_prompt(reply: Reply) -> bool:
    """Return whether a server tokenises prompts only, as SGLang does, and was sent messages."""
    words = reply.words.lower()
    return reply.status in {400, 422} and all(word in words for word in ("prompt", "required"))


def _text(answer: Mapping[str, Any], name: str) -> str | None:
    value = answer.get(name)
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
