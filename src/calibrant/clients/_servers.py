"""The two kinds of servers that report next-token probabilities: what they are sent, what they answer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from calibrant.clients._continuing import FEW_TOKENS, MANY_TOKENS, WRITABLE
from calibrant.clients._http import JsonHttp, Reply
from calibrant.core import Message, Usage, bounded_count

__all__ = [
    "CompletionsServer",
    "LlamaCppServer",
    "Place",
    "Server",
    "Size",
    "readable",
    "smaller_count",
]

Listing: TypeAlias = tuple[tuple[bytes, float], ...]

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()
_LEAST_COUNT: Final = 5
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")
_MAXIMUM = re.compile(
    r"(?:\bmax[a-z_]*|at most|up to|no more than|less than or equal to|<=)(?:\s+[a-z_]+){0,3}?[\s:=(]*(\d{1,9})(?!\d)"
)


class Place(NamedTuple):
    """Where and how a prompt is computed.

    Attributes
    ----------
    slot : int or None
        The slot that has its beginning cached; None leaves the choice to the server.
    whole : bool
        Whether the prompt holds every special token already: none is to be added.
    """

    slot: int | None = None
    whole: bool = False


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
    reports_bytes: ClassVar[bool] = True
    next_tokens: ClassVar[int] = MANY_TOKENS
    few_tokens: ClassVar[int] = FEW_TOKENS
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

    def body(self, prompt: str, *, count: int, place: Place) -> dict[str, Any]:
        """Return what asks for the `count` most probable tokens after `prompt`."""
        body: dict[str, Any] = {
            "prompt": prompt,
            "n_predict": 1,
            "n_probs": count,
            "temperature": 0,
            "cache_prompt": True,
            "logit_bias": WRITABLE,
        }
        return body if place.slot is None else {**body, "id_slot": place.slot}

    def listing(self, answer: Mapping[str, Any]) -> Listing | None:
        """Return the tokens of an answer, or None where it holds none."""
        return _listing(lambda: answer["completion_probabilities"][0]["top_logprobs"])

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
    """

    http: JsonHttp
    model: str

    slots: ClassVar[None] = None
    route: ClassVar[str] = "/v1/completions"
    reports_bytes: ClassVar[bool] = False
    next_tokens: ClassVar[int] = 20
    few_tokens: ClassVar[int] = 20
    template_routes: ClassVar[str] = "/tokenize and /detokenize"

    def body(self, prompt: str, *, count: int, place: Place) -> dict[str, Any]:
        """Return what asks for the `count` most probable tokens after `prompt`."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": count,
        }
        return {**body, "add_special_tokens": False} if place.whole else body

    def listing(self, answer: Mapping[str, Any]) -> Listing | None:
        """Return the tokens of an answer, or None where it holds none."""

        def reported() -> object:
            found = answer["choices"][0]["logprobs"]
            if found.get("content"):  # llama.cpp answers here in the form of its chat answers
                return found["content"][0]["top_logprobs"]
            top = found["top_logprobs"]
            alone = isinstance(top[0], Mapping) and isinstance(top[0].get("token"), str)
            return top if alone else top[0]

        return _listing(reported)

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
        if reply.absent:
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
        return None if reply.absent else _text(self.http.checked(reply), "prompt")


Server: TypeAlias = LlamaCppServer | CompletionsServer


def readable(listing: Listing) -> Listing:
    """Return the part of a listing that holds for labels beyond ASCII.

    Where tokens are reported as text, those that end inside a character share the replacement
    character, and all but one of several are lost. Any of them may lead to a label, and it may be as
    probable as what they hold together with the unlisted rest; so that "no unlisted token is more
    probable than the least listed one" stays true, less probable tokens are left out.
    """
    broken = [logprob for data, logprob in listing if _REPLACEMENT in data]
    if not broken:
        return listing
    rest = 1.0 - math.fsum(math.exp(min(0.0, logprob)) for data, logprob in listing)
    hidden = max(0.0, rest) + math.fsum(math.exp(min(0.0, logprob)) for logprob in broken)
    return tuple(
        (data, logprob)
        for data, logprob in listing
        if _REPLACEMENT not in data and math.exp(min(0.0, logprob)) >= hidden
    )


def smaller_count(reply: Reply, count: int) -> int | None:
    """Return the number of next tokens to ask for instead, where `count` was refused as too large."""
    words = reply.words.lower()
    if reply.status not in {400, 422} or not ("logprobs" in words or "n_probs" in words):
        return None
    named = [int(number) for number in _MAXIMUM.findall(words)]
    lower = next((number for number in named if 0 < number < count), max(_LEAST_COUNT, count // 2))
    return lower if lower < count else None


def _listing(reported: Any) -> Listing | None:  # noqa: ANN401 (a local reader)
    try:
        found = reported()
        pairs = _text_pairs(found.items()) if isinstance(found, Mapping) else _token_pairs(found)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return pairs or None


def _token_pairs(tokens: Iterable[Mapping[str, Any]]) -> Listing:
    return tuple(
        [
            (
                _data(token["token"]) if token.get("bytes") is None else bytes(token["bytes"]),
                float(token["logprob"]),
            )
            for token in tokens
        ]
    )


def _text_pairs(tokens: Iterable[tuple[str, Any]]) -> Listing:
    return tuple([(_data(text), float(logprob)) for text, logprob in tokens])


def _data(text: str) -> bytes:
    r"""Return a token's bytes; one that ends inside a character may be written ``bytes:\xe2\x80``."""
    if text.startswith("bytes:") and _ESCAPED.search(text):
        # What is not escaped is text; every second piece is an escaped byte.
        pieces = _ESCAPED.split(text.removeprefix("bytes:"))
        return b"".join(
            bytes([int(piece, 16)]) if number % 2 else piece.encode("utf-8", "surrogatepass")
            for number, piece in enumerate(pieces)
        )
    return text.encode("utf-8", "surrogatepass")


def _text(answer: Mapping[str, Any], name: str) -> str | None:
    value = answer.get(name)
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
