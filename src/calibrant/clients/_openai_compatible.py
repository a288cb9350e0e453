"""Client that scores labels with llama.cpp's server, or with a server of ``/v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from calibrant.clients._chat_template import ChatTemplate
from calibrant.clients._gates import FirstCall
from calibrant.clients._http import Reply
from calibrant.clients._openai_chat import OpenAIChatClient
from calibrant.clients._servers import (
    REPEATS,
    CompletionsServer,
    EchoError,
    LlamaCppServer,
    NoEchoError,
    Server,
    read_echoes,
)
from calibrant.core._completion import (
    CompletionRequest,
    Continuation,
    LabelContinuation,
    LabelLogprobs,
    NextTokens,
)
from calibrant.core._errors import ConfigurationError
from calibrant.core._reported import reported_mapping

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
        # Checking labels and scoring rows use different routes, so each has its own first call.
        self._first_check = FirstCall()
        self.first_score = FirstCall()
        self._checked_labels: set[tuple[str, ...]] = set()
        self._detections: dict[asyncio.AbstractEventLoop, asyncio.Task[Server]] = {}
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slots] = WeakKeyDictionary()

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings that can change the answers, besides the model and the request."""
        settings = {"chat_template": self._template_text, "next_tokens": self._next_tokens}
        return {name: value for name, value in settings.items() if value is not None}

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
        slots = self._slots.setdefault(asyncio.get_running_loop(), _Slots(server.slots))
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
        words = reply.words.lower()
        if reply.status in {400, 422} and "logprobs" in words and "echo" not in words:
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
        words = reply.words.lower()
        if reply.status in {400, 422} and any(word in words for word in ("logprobs", "n_probs", "echo")):
            raise self._unable(f"{server.route} refuses them: {self._http.redacted(reply.words)[:200]}")
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


@dataclass
class _LabelRow(_ServerRow):
    """Session for one row on a server that returns the log-probabilities of prompt tokens."""

    server: CompletionsServer
    whole: bool

    async def label_logprobs(self, text: str, values: Sequence[str]) -> LabelLogprobs:
        """Return the log-probability of each label after `text`."""
        return await self._scored(text, partial(self.server.label_logprobs, values=values, whole=self.whole))
