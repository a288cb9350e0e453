"""Client that scores labels with llama.cpp's server, or with a server of ``/v1/completions``."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from calibrant.clients._calls import FirstCall, LoopValues
from calibrant.clients._chat_template import ChatTemplate
from calibrant.clients._http import JsonHttp, Reply
from calibrant.clients._named_tokens import TokenNaming, check_complete, find_naming, usage_of
from calibrant.clients._openai_chat import OpenAIChatClient
from calibrant.core._completion import (
    CompletionRequest,
    Continuation,
    LabelContinuation,
    LabelLogprobs,
    Message,
    NextTokens,
    TokenListing,
)
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._prediction import Record, Usage
from calibrant.core._predictor import concurrently
from calibrant.core._reported import bounded_count, reported_mapping, without_none

_T = TypeVar("_T")

# Next tokens listed for exact scoring. A quote that closes a label was seen beyond the 200th place.
_MANY_TOKENS: Final = 1000
_PROBE: Final = "Hello there"


class OpenAICompatibleClient(OpenAIChatClient):
    """Client for servers that report the probabilities of next tokens or of prompt tokens.

    Two kinds of servers do; the first call detects the kind:

    - llama.cpp's server lists the next tokens (``/completion``). It computes as many rows side by side as it has
      slots, and every call of a row goes to the slot that has the row's prompt cached. Unlisted tokens widen
      the distribution's ``error_bound``. Only this server detects a special token in a label.
    - vLLM and SGLang return the log-probabilities of a prompt's own tokens (``/v1/completions`` with ``echo``). The
      prompt is sent with every label behind it, in one request up to 127 labels and prompts of some thousand
      letters. Every label is scored to its end, in the tokens that the model's tokeniser writes it with, so how
      many next tokens the server lists (vLLM's ``--max-logprobs``) does not matter. But the server computes the
      prompt once per label, as it cannot use its prefix cache when it reports log-probabilities of a prompt.

    The server's own chat template turns messages into a prompt (``/apply-template``; ``/tokenize`` and
    ``/detokenize``). SGLang does not expose its template, so `chat_template` is needed there.

    Parameters
    ----------
    model : str
        The model's name, with one of `PREFIXES`, which the server does not see.
    api_base : str
        Address of the server, with or without ``/v1``.
    chat_template : str, optional
        A Jinja template as in ``tokenizer_config.json``, used instead of the server's own; the token
        that begins a text is left to the server.
    next_tokens : int, optional
        Number of next tokens requested from llama.cpp's server; by default 1,000. After a refusal the client requests
        fewer from then on.
    **options
        The other parameters of `OpenAIChatClient`; `space` is that of `complete`.

    Raises
    ------
    ConfigurationError
        A parameter is out of range.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str,
        chat_template: str | None = None,
        next_tokens: int | None = None,
        **options: Any,  # noqa: ANN401 (those of `OpenAIChatClient` and the server's own parameters)
    ) -> None:
        if next_tokens is not None and not (type(next_tokens) is int and next_tokens >= 1):
            raise ConfigurationError(
                f"Expected next_tokens to be a whole number of at least 1, got {next_tokens!r}."
            )
        super().__init__(model, api_base="" if api_base is None else api_base, **options)
        self._template_text = chat_template
        self._template = None if chat_template is None else ChatTemplate(chat_template)
        self._next_tokens = next_tokens
        self._server: Server | None = None
        self._naming: TokenNaming | None = None
        self._is_naming_known = False
        # Checking labels and scoring rows use different routes, so each has its own first call.
        self._first_check = FirstCall()
        self.first_score = FirstCall()
        self._checked_labels: set[tuple[str, ...]] = set()
        self._detections: dict[asyncio.AbstractEventLoop, asyncio.Task[Server]] = {}
        self._slots: LoopValues[_Slots] = LoopValues()

    @property
    def settings(self) -> Record:
        """Settings that can change the answers, besides the model and the request."""
        return without_none({"chat_template": self._template_text, "next_tokens": self._next_tokens})

    async def check_labels(self, labels: Sequence[str]) -> None:
        """Raise ConfigurationError for a label that tokens cannot spell or the context cannot hold.

        Raises
        ------
        ConfigurationError
            A label holds a special token or unknown characters, or is longer than the context; or the
            server reports no probabilities for exact scoring.
        ProviderError
            The call failed.
        """
        await self._first_check.then(partial(self._check_labels, tuple(labels)))

    async def _check_labels(self, labels: tuple[str, ...]) -> None:
        if labels in self._checked_labels:
            return
        server = await self._detected_server()
        longest = max(labels, key=lambda label: len(label.encode()))
        size, limit = await server.size(longest)
        if limit is not None and size >= limit:
            raise ConfigurationError(
                f"The label {longest[:40]!r}... has {size:,} tokens, the context {limit:,}: "
                "shorten it, or serve the model with a longer context."
            )
        if not await server.spells("\n".join(labels)):
            for label in labels:
                if not await server.spells(label):
                    break
            raise ConfigurationError(
                f"The tokens of {self.name} do not spell the label {label!r:.80}: it holds a special token of "
                "the model, or characters it does not know. Rename the label."
            )
        self._checked_labels.add(labels)

    @asynccontextmanager
    async def continuing(self, request: CompletionRequest) -> AsyncIterator[Continuation | LabelContinuation]:
        """Yield a session for one row; on llama.cpp's server it holds a slot until the context ends."""
        server = await self._detected_server()
        if isinstance(server, CompletionsServer):
            yield _LabelRow(self, request, server, whole=self._template is None)
            return
        slots = self._slots.here(partial(_Slots, server.slots))
        count = request.top_logprobs or self._next_tokens or _MANY_TOKENS
        async with slots.one() as slot:
            yield _TokenRow(self, request, server, slot, count)

    async def render(self, request: CompletionRequest) -> str:
        """Return the prompt of a row, up to the beginning of its answer.

        Raises
        ------
        ConfigurationError
            The chat template is missing, or does not take the messages.
        ProviderError
            The call failed.
        """
        options = reported_mapping(request.options.get("chat_template_kwargs"))
        if self._template is not None:
            return self._template.render(request.messages, options)
        server = await self._detected_server()
        prompt = await server.render(request.messages, options)
        if prompt is None:
            raise ConfigurationError(
                f"The server at {self._http.endpoint.shown} has no {server.template_routes}, so the messages cannot be "
                "turned into the model's prompt. Set the model's option chat_template to the Jinja text of "
                "chat_template in its tokenizer_config.json."
            )
        return prompt

    async def naming(self) -> TokenNaming | None:
        """Return the way in which a server of ``/v1/completions`` names tokens, found out once; None if it has none.

        Raises
        ------
        ProviderError
            The call failed.
        """
        if not self._is_naming_known:
            self._naming = await find_naming(self._http, self._model)
            self._is_naming_known = True
        return self._naming

    async def _detected_server(self) -> Server:
        """Return the server, whose kind is detected once; concurrent calls share one detection."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            detection = self._detections.get(loop)
            if detection is None:
                detection = self._detections[loop] = loop.create_task(self._detect())
                detection.add_done_callback(lambda _: self._detections.pop(loop))
            await asyncio.wait([detection])  # a caller that is cancelled leaves it to the others
            self._server = detection.result()
        return self._server

    async def _detect(self) -> Server:
        props = await self._http.exchange("/props")
        if props.passing:
            self._http.checked(props)  # raises: the server exists, but is not ready
        server = LlamaCppServer.recognised(self._http, props)
        if server is None:
            return await self._detect_completions()
        for _ in range(REPEATS):
            reply = await server.ask(_PROBE, count=self._next_tokens or _MANY_TOKENS)
            await self._check_ability(server, reply)
            if server.listing(self._http.checked(reply)):
                return server
        raise self._unable(f"{server.route} answers without them")

    async def _detect_completions(self) -> CompletionsServer:
        server = CompletionsServer(http=self._http, model=self._model)
        reply = await server.ask((_PROBE,))
        if reply.refuses("logprobs") and not reply.refuses("echo"):
            server = replace(server, logprobs=0)  # vLLM with --max-logprobs 0
            reply = await server.ask((_PROBE,))
        await self._check_ability(server, reply)
        try:
            read_echoes(self._http.checked(reply), (_PROBE,))
        except NoEchoError as error:
            raise self._unable(
                f"expected the log-probabilities of the prompt's tokens from {server.route} with echo and logprobs, "
                f"got {error}"
            ) from None
        except EchoError as error:
            raise server.unusable(error) from None
        return server

    async def _check_ability(self, server: Server, reply: Reply) -> None:
        """Raise ConfigurationError if the server cannot report probabilities; ignore other errors."""
        if reply.refuses("logprobs", "n_probs", "echo"):
            raise self._unable(f"{server.route} refuses them: {self._http.redacted(reply.words)[:200]}")
        words = reply.words.lower()
        unknown_model = "model" in words and "completions" not in words
        if not reply.absent or (reply.status == 404 and unknown_model):
            return
        if (await self._http.exchange("/v1/models")).fine:
            raise self._unable(f"it has neither /completion nor {server.route}")

    def _unable(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"This endpoint reports no probabilities for exact scoring: {self._http.endpoint.shown} ({reason}). "
            "Serve the model with vLLM, SGLang or llama.cpp's server, or use scoring='decode' or 'sampled'."
        )


class _Slots:
    """Slots of a llama.cpp server, given to waiting rows in their order; for one event loop.

    A semaphore keeps the order of the waiting rows. A queue of free slots would not: a row that ends and one that
    begins in the same turn of the event loop pass the slot on between them, and the row that was woken for it goes to
    the end of the line. With 64 rows in flight ten of them waited for 100 s.

    Parameters
    ----------
    count : int
        Number of slots, at least 1.
    """

    def __init__(self, count: int) -> None:
        self._turn = asyncio.Semaphore(count)
        self._free = list(reversed(range(count)))

    @asynccontextmanager
    async def one(self) -> AsyncIterator[int]:
        """Hold the server slot that was freed last; its prompt cache may fit this row."""
        async with self._turn:
            slot = self._free.pop()
            try:
                yield slot
            finally:
                self._free.append(slot)


@dataclass
class _ServerRow:
    """Session for one row on a server, with the request and its prompt."""

    client: OpenAICompatibleClient
    request: CompletionRequest
    _prompt: str | None = field(default=None, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def _scored(self, text: str, score: Callable[[str], Awaitable[_T]]) -> _T:
        """Return the result of `score` for the prompt followed by the answer prefix `text`."""

        async def call() -> _T:
            async with self._lock:
                if self._prompt is None:
                    self._prompt = await self.client.render(self.request)
            return await score(self._prompt + text)

        return await self.client.first_score.then(call)


@dataclass
class _TokenRow(_ServerRow):
    """Session for one row on llama.cpp's server, with its slot."""

    server: LlamaCppServer
    slot: int
    count: int
    serial: bool = field(default=True, init=False)  # a slot computes one call after the other

    async def next_tokens(self, text: str, *, few: bool = False) -> NextTokens:
        """Return the next tokens after `text`; `few` has no effect if the request names a number."""
        is_short = few and not self.request.top_logprobs
        score = partial(self.server.next_tokens, count=self.count, few=is_short, slot=self.slot)
        return await self._scored(text, score)

    async def candidate_tokens(self, text: str) -> TokenListing:
        """Return the most probable next tokens after `text`."""
        found = await self.next_tokens(text)
        logprobs = [logprob for _, logprob in found.top]
        by_number = dict(zip(found.ids, logprobs, strict=False))
        return TokenListing(logprobs=by_number, most_named=self.server.most_named, usage=found.usage)


@dataclass
class _LabelRow(_ServerRow):
    """Session for one row on a server that returns the log-probabilities of prompt tokens."""

    server: CompletionsServer
    whole: bool

    async def label_logprobs(
        self, text: str, values: Sequence[str], *, tokens: Sequence[int] = ()
    ) -> LabelLogprobs:
        """Return the log-probability of each label after `text`, and those of the named tokens."""

        async def score(prompt: str) -> LabelLogprobs:
            naming = await self.client.naming() if tokens else None
            if naming is None:
                check_complete({}, tokens, provider=self.client.name)
            return await self.server.label_logprobs(
                prompt, values, whole=self.whole, naming=naming, tokens=tokens
            )

        return await self._scored(text, score)

    async def candidate_tokens(self, text: str) -> TokenListing:
        """Return next tokens after `text` that may be named; none if the server does not name tokens."""

        async def score(prompt: str) -> TokenListing:
            naming = await self.client.naming()
            if naming is None:
                return TokenListing()
            return await naming.candidates(prompt, self.server.special(whole=self.whole))

        return await self._scored(text, score)


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
    most_named: ClassVar[int] = 256

    @classmethod
    def recognised(cls, http: JsonHttp, props: Reply) -> LlamaCppServer | None:
        """Return the server if the answer to ``GET /props`` is llama.cpp's, else None."""
        data = props.data or {}
        if not props.fine or not data.keys() & {"default_generation_settings", "total_slots"}:
            return None
        context = reported_mapping(data.get("default_generation_settings")).get("n_ctx")
        slots = _positive_int(data.get("total_slots")) or 1
        return cls(http=http, slots=slots, context=_positive_int(context))

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
                return NextTokens(
                    top=listing,
                    usage=usage_of(answer, prompt="tokens_evaluated", completion="tokens_predicted"),
                    model=_text(answer, "model"),
                    short=wanted < most,
                    ids=_listed_ids(answer),
                )
        raise ProviderError(
            f"the server answered {REPEATS} times without log-probabilities.",
            provider=self.http.provider,
            retryable=True,
            hint=_HINT,
        )

    def listing(self, answer: Record) -> Listing:
        """Return the tokens listed in an answer; empty if there are none."""
        try:
            top = answer["completion_probabilities"][0]["top_logprobs"]
            return tuple([(bytes(token["bytes"]), float(token["logprob"])) for token in top])
        except (LookupError, TypeError, ValueError):
            return ()

    async def render(self, messages: Sequence[Message], options: Record) -> str | None:
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

    def special(self, *, whole: bool) -> Record:
        """Return the fields for prompts that hold every special token already, if they are `whole`."""
        return {"add_special_tokens": False} if whole else {}

    async def ask(
        self, prompts: Sequence[str], *, whole: bool = False, fields: Record | None = None
    ) -> Reply:
        """Request the log-probabilities of the prompts' tokens, with more `fields`.

        One token is generated behind each prompt: older servers refuse to generate none, and newer ones compute
        it anyway.
        """
        body = {
            "model": self.model,
            "prompt": list(prompts),
            "echo": True,
            "logprobs": self.logprobs,
            "max_tokens": 1,
            "temperature": 0,
            **self.special(whole=whole),
            **(fields or {}),
        }
        return await self.http.exchange(self.route, body)

    async def label_logprobs(
        self,
        prompt: str,
        values: Sequence[str],
        *,
        whole: bool,
        naming: TokenNaming | None = None,
        tokens: Sequence[int] = (),
    ) -> LabelLogprobs:
        """Return the log-probability of each label with its closing quote after `prompt`.

        With `naming`, those of the named tokens are among them; without, tokens are not asked for.

        Raises
        ------
        ProviderError
            A call failed, or brought no usable log-probabilities.
        """
        batches = self.batches((prompt, *(f'{prompt}{value}"' for value in values)))
        fields = {} if naming is None else naming.fields(tokens)
        try:
            replies = await concurrently(self.ask(batch, whole=whole, fields=fields) for batch in batches)
            answers = [self.http.checked(reply) for reply in replies]
            echoes: list[Echoed] = []
            usage = Usage()
            for answer, batch in zip(answers, batches, strict=True):
                echoes += read_echoes(answer, batch)
                usage += usage_of(reported_mapping(answer.get("usage")))
            logprobs = label_logprobs(echoes[0], echoes[1:])
            first = _choices(answers[0], len(batches[0]))[0]
        except EchoError as error:
            raise self.unusable(error) from None
        named = TokenListing() if naming is None else await naming.named(prompt, tokens, first)
        return LabelLogprobs(
            logprobs=logprobs,
            usage=usage + named.usage,
            model=_text(answers[0], "model"),
            named=named.logprobs,
        )

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

    async def render(self, messages: Sequence[Message], options: Record) -> str | None:
        """Return the prompt by the server's own chat template, or None if the server does not expose it."""
        body = {"model": self.model, "add_generation_prompt": True, **_chat(messages, options)}
        reply = await self.http.exchange("/tokenize", body)
        # SGLang refuses messages, as it tokenises prompts only.
        if reply.absent or (reply.refuses("prompt") and reply.refuses("required")):
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
        spelled = None
        if answer is not None:
            spelled = await self._spelled(answer.get("tokens") or [])
        return spelled is None or "".join(spelled.split()) == "".join(text.split())

    async def _tokenized(self, text: str) -> Record | None:
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        reply = await self.http.exchange("/tokenize", body)
        if reply.absent:
            return None
        return self.http.checked(reply)

    async def _spelled(self, tokens: Sequence[int]) -> str | None:
        reply = await self.http.exchange("/detokenize", {"model": self.model, "tokens": list(tokens)})
        if reply.absent:
            return None
        answer = self.http.checked(reply)
        return _text(answer, "prompt") or _text(answer, "text")  # vLLM, SGLang


Server: TypeAlias = LlamaCppServer | CompletionsServer


def _listed_ids(answer: Record) -> tuple[int, ...]:
    """Return the numbers of the tokens listed in an answer of llama.cpp's server; empty if it tells none."""
    listed = answer["completion_probabilities"][0]["top_logprobs"]
    numbers = [token.get("id") for token in listed]
    if all(isinstance(number, int) for number in numbers):
        return tuple(numbers)
    return ()


def _smaller_count(reply: Reply, count: int) -> int | None:
    """Return a smaller number of next tokens if `count` was refused as too large, else None."""
    if not reply.refuses("n_probs"):
        return None
    limits = map(int, _MAXIMUM.findall(reply.words.lower()))
    lower = next((number for number in limits if 0 < number < count), max(_LEAST_COUNT, count // 2))
    return lower if lower < count else None


def _chat(messages: Sequence[Message], options: Record) -> Record:
    """Return the part of a request with the messages and the variables of the chat template."""
    variables = {"chat_template_kwargs": dict(options)} if options else {}
    return {"messages": [dict(message) for message in messages], **variables}


def _text(answer: Record, name: str) -> str | None:
    value = answer.get(name)
    return value if isinstance(value, str) else None


def _positive_int(value: object) -> int | None:
    if type(value) is int and value > 0:
        return value
    return None


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


def read_echoes(answer: Record, prompts: Sequence[str]) -> list[Echoed]:
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
    echoes = []
    for tokens, logprobs in lists:
        end = len(tokens) - added
        echoes.append(Echoed(tuple(tokens[:end]), _valid_logprobs(logprobs[:end])))
    return echoes


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
    token_lists = [echo.tokens for echo in (begun, *continued)]
    start = len(os.path.commonprefix(token_lists))  # noqa: RUF071 (no paths)
    if start == 0 or any(len(tokens) <= start for tokens in token_lists[1:]):
        raise EchoError("prompts whose tokens do not go on from a common beginning")
    sums: list[float] = []
    ways = [math.fsum(begun.logprobs[start:])]
    for echo in continued:
        total = math.fsum(echo.logprobs[start:])
        sums.append(total)
        if echo.tokens[: len(begun.tokens)] != begun.tokens:
            ways.append(total)
    most = max(ways)
    scale = most + math.log(math.fsum(math.exp(way - most) for way in ways))
    return tuple(min(total - scale, 0.0) for total in sums)


def _choices(answer: Record, count: int) -> list[Record]:
    """Return the choices in the order of the prompts."""
    entries = answer.get("choices")
    choices = []
    if isinstance(entries, list):
        choices = [entry for entry in entries if isinstance(entry, Mapping)]
    places = [one.get("index", place) for place, one in enumerate(choices)]
    if any(not isinstance(place, int) for place in places) or sorted(places) != list(range(count)):
        raise EchoError(f"{len(choices)} choices for {count} prompts")
    by_place = dict(zip(places, choices, strict=True))
    return [by_place[place] for place in range(count)]


def _lists(choice: Record) -> tuple[list[str], list[object]]:
    reported = reported_mapping(choice.get("logprobs"))
    tokens = reported.get("tokens")
    logprobs = reported.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(logprobs, list) or not tokens:
        raise NoEchoError("none")
    if len(tokens) != len(logprobs) or not all(isinstance(token, str) for token in tokens):
        raise EchoError(f"{len(logprobs)} log-probabilities for {len(tokens)} tokens")
    return tokens, logprobs


def _tokens_added(lists: Sequence[list[str]], prompts: Sequence[str], answer: Record) -> int:
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
