"""A server that reports next-token probabilities over HTTP: llama.cpp's, or one of ``/v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from calibrant.clients._chat_template import ChatTemplate
from calibrant.clients._first_call import FirstCall
from calibrant.clients._http import Reply
from calibrant.clients._openai_chat import OpenAIChatClient
from calibrant.clients._servers import (
    CompletionsServer,
    LlamaCppServer,
    Place,
    Server,
    readable,
    smaller_count,
)
from calibrant.clients._slots import Slots
from calibrant.core import (
    CalibrantError,
    CompletionRequest,
    ConfigurationError,
    Continuation,
    LogprobSpace,
    NextTokens,
    ProviderError,
)

__all__ = ["OpenAICompatibleClient"]

# Calls that come back without log-probabilities are made again: about 1 in 300 of llama.cpp.
_REPEATS: Final = 3
_PROBE: Final = "Hello"


class OpenAICompatibleClient(OpenAIChatClient):
    """A client for a server that says how probable the next token is, over HTTP.

    Two kinds of servers do, and which one answers is found out by the first call: llama.cpp's server
    (``/completion``), and servers of ``/v1/completions``, such as vLLM. The server's own chat template
    turns messages into a prompt (``/apply-template``; ``/tokenize`` and ``/detokenize``). llama.cpp's
    server computes as many rows side by side as it has slots, and every call of a row goes to the slot
    that has the row's prompt cached.

    vLLM reports 20 tokens unless it is started with a larger ``--max-logprobs``. Fewer tokens than
    there are ways to go on cost accuracy, never honesty: what was not listed widens the distribution's
    ``error_bound``. Where tokens are reported as text (``/v1/completions``), what ends inside a
    character cannot be told apart; with labels beyond ASCII this widens the bound, too. A special token
    in a label is noticed by llama.cpp's server only.

    Parameters
    ----------
    model : str
        The model's name, with one of `PREFIXES`, which the server does not see.
    api_base : str
        Address of the server, with or without ``/v1``.
    api_key : str, optional
        Sent as a bearer token; by default the value of ``OPENAI_API_KEY`` for ``openai/...`` and of
        ``HOSTED_VLLM_API_KEY`` for ``hosted_vllm/...``, where they are set.
    space : LogprobSpace or str, default "masked"
        What the log-probabilities of `complete` are probabilities of.
    timeout : float, default 60
        Seconds one call may take.
    chat_template : str, optional
        A Jinja template as in ``tokenizer_config.json``, used instead of the server's own; the token
        that begins a text is left to the server.
    next_tokens : int, optional
        How many next tokens are asked for; by default 1,000 of llama.cpp's server and 20 of others. A
        server that refuses that many is asked for fewer from then on.

    Raises
    ------
    ConfigurationError
        A parameter is out of range.
    """

    def __init__(  # noqa: PLR0913  (keyword-only options)
        self,
        model: str,
        *,
        api_base: str,
        api_key: str | None = None,
        space: LogprobSpace | str = LogprobSpace.MASKED,
        timeout: float = 60.0,
        max_concurrency: int | None = None,
        chat_template: str | None = None,
        next_tokens: int | None = None,
        **options: Any,  # noqa: ANN401 (the server's own parameters)
    ) -> None:
        _check_count(next_tokens)
        super().__init__(
            model,
            api_base="" if api_base is None else api_base,
            api_key=api_key,
            space=space,
            timeout=timeout,
            max_concurrency=max_concurrency,
            **options,
        )
        self._template_text = chat_template
        self._template = None if chat_template is None else ChatTemplate(chat_template)
        self._next_tokens = next_tokens
        self._ceiling: int | None = None
        self._beyond_ascii = False
        self._server: Server | None = None
        # Labels are checked, and rows are scored, by routes of their own: each has a first call.
        self._first_check = FirstCall()
        self._first_score = FirstCall()
        self._legal: set[tuple[str, ...]] = set()  # labels that were checked
        self._shared: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()

    @property
    def settings(self) -> Mapping[str, Any]:
        """What can change its answers, besides the model and the request."""
        own = {"chat_template": self._template_text, "next_tokens": self._next_tokens}
        return {name: value for name, value in own.items() if value is not None}

    async def check_labels(self, labels: Sequence[str]) -> None:
        """Refuse labels whose tokens do not spell them, or that the context cannot hold.

        Raises
        ------
        ConfigurationError
            A label holds a special token or unknown characters, or is longer than the context; or the
            server reports no next-token probabilities.
        ProviderError
            The server could not be asked.
        """
        await self._first_check.then(partial(self._check_labels, tuple(labels)))

    async def _check_labels(self, labels: tuple[str, ...]) -> None:
        if labels in self._legal:
            return
        server = await self._found()
        self._beyond_ascii = self._beyond_ascii or not all(label.isascii() for label in labels)
        longest = max(labels, key=lambda label: len(label.encode()))
        size = await server.size(longest)
        if size is not None and size.limit is not None and size.tokens >= size.limit:
            raise ConfigurationError(
                f"The label {longest[:40]!r}... has {size.tokens:,} tokens, the context {size.limit:,}: "
                "shorten it, or serve the model with a longer context."
            )
        if not await server.spells("\n".join(labels)):
            raise ConfigurationError(
                f"The tokens of {self.name} do not spell the label {await _misspelt(server, labels)!r:.80}: it "
                "holds a special token of the model, or characters it does not know. Rename the label."
            )
        self._legal.add(labels)

    def continuing(self, request: CompletionRequest) -> AbstractAsyncContextManager[Continuation]:
        """Return a row's place in the server: of llama.cpp's, a slot of its own until the context ends."""
        return self._continuing(request)

    @asynccontextmanager
    async def _continuing(self, request: CompletionRequest) -> AsyncIterator[Continuation]:
        server = await self._found()
        if server.slots is None:
            yield _Row(self, request, None, self._first_score)
            return
        async with self._here().slots_of(server.slots).one() as slot:
            yield _Row(self, request, slot, self._first_score)

    async def render(self, request: CompletionRequest) -> str:
        """Return the prompt of a row, up to where its answer begins.

        Raises
        ------
        ConfigurationError
            There is no chat template, or it does not take the messages.
        ProviderError
            The server could not be asked.
        """
        given = request.options.get("chat_template_kwargs")
        options = given if isinstance(given, Mapping) else {}
        if self._template is not None:
            return self._template.render(request.messages, options)
        server = await self._found()
        prompt = await server.render(request.messages, options)
        if prompt is None:
            raise ConfigurationError(
                f"The server at {self._http.shown} has no {server.template_routes}, so the messages cannot be "
                "turned into the model's prompt. Set the model's option chat_template to the Jinja text of "
                "chat_template in its tokenizer_config.json."
            )
        return prompt

    async def next_tokens(
        self, request: CompletionRequest, prompt: str, slot: int | None, *, few: bool = False
    ) -> NextTokens:
        """Return what may follow `prompt`, computed in `slot`."""
        server = await self._found()
        place = Place(slot=slot, whole=self._template is None)
        most = self._count(request.top_logprobs or self._next_tokens or server.next_tokens)
        count = min(most, server.few_tokens) if few and not request.top_logprobs else most
        for _ in range(_REPEATS):
            reply = await self._ask(server, prompt, place, count)
            answer = self._http.checked(reply)
            listing = server.listing(answer)
            if listing is not None:
                if self._beyond_ascii and not server.reports_bytes:
                    listing = readable(listing)
                model = answer.get("model")
                return NextTokens(
                    top=listing,
                    usage=server.usage(answer),
                    model=model if isinstance(model, str) else None,
                    short=count < most,
                )
        raise ProviderError(
            f"the server answered {_REPEATS} times without log-probabilities.",
            provider=self.name,
            retryable=True,
            hint="Try again, or scoring='decode'.",
        )

    def _count(self, wanted: int) -> int:
        """Return how many next tokens to ask for: what is wanted, or the most the server was seen to list."""
        return min(wanted, self._ceiling or wanted)

    async def _ask(self, server: Server, prompt: str, place: Place, wanted: int) -> Reply:
        """Ask for the next tokens, for fewer where the server refuses the number."""
        while True:
            count = self._count(wanted)
            reply = await self._http.exchange(server.route, server.body(prompt, count=count, place=place))
            lower = smaller_count(reply, count)
            if lower is None:
                return reply
            self._ceiling = min(lower, self._ceiling or lower)

    def _here(self) -> _Shared:
        return self._shared.setdefault(asyncio.get_running_loop(), _Shared())

    async def _found(self) -> Server:
        """Return the server, which one call of several at once finds out; they share its failure."""
        if self._server is not None:
            return self._server
        shared = self._here()
        seen = shared.searches
        async with shared.lock:
            if self._server is None:
                if shared.failure is not None and shared.searches > seen:
                    raise shared.failure
                shared.failure = None
                try:
                    self._server = await self._find()
                except CalibrantError as error:
                    shared.failure = error
                    raise
                finally:
                    shared.searches += 1
            return self._server

    async def _find(self) -> Server:
        props = await self._http.exchange("/props")
        if props.passing:
            self._http.checked(props)  # it is there, and not ready
        found = LlamaCppServer.recognised(self._http, props)
        server = found or CompletionsServer(http=self._http, model=self._model)
        for _ in range(_REPEATS):
            reply = await self._ask(server, _PROBE, Place(), self._next_tokens or server.next_tokens)
            await self._check_ability(server, reply)
            if server.listing(self._http.checked(reply)) is not None:
                return server
        raise self._unable(f"{server.route} answers without them")

    async def _check_ability(self, server: Server, reply: Reply) -> None:
        """Tell a server that reports no probabilities from an unknown model and a wrong address."""
        words = reply.words.lower()
        if reply.status in {400, 422} and "logprobs" in words:
            raise self._unable(f"{server.route} refuses them: {self._http.redacted(reply.words)[:200]}")
        unknown_model = "model" in words and "completions" not in words
        if not reply.absent or (reply.status == 404 and unknown_model):
            return
        if (await self._http.exchange("/v1/models")).fine:
            raise self._unable(f"it has neither /completion nor {server.route}")

    def _unable(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"This endpoint reports no next-token probabilities: {self._http.shown} ({reason}). Serve the model "
            "with llama.cpp's server or vLLM, or use scoring='decode' or 'sampled'."
        )


@dataclass
class _Shared:
    """What the calls of one event loop share.

    Attributes
    ----------
    lock : asyncio.Lock
        Held by the call that finds out which server it is.
    searches : int
        How often that was tried.
    failure : CalibrantError or None
        What came of the last try.
    slots : Slots or None
        The server's slots, once their number is known.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    searches: int = 0
    failure: CalibrantError | None = None
    slots: Slots | None = None

    def slots_of(self, count: int) -> Slots:
        """Return the slots of a server that has `count` of them."""
        if self.slots is None:
            self.slots = Slots(count)
        return self.slots


@dataclass
class _Row:
    """A row, its prompt, the slot it holds, and which call of all rows goes first."""

    client: OpenAICompatibleClient
    request: CompletionRequest
    slot: int | None
    first: FirstCall
    _prompt: str | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def serial(self) -> bool:
        """A slot of llama.cpp computes one call after the other."""
        return self.slot is not None

    async def next_tokens(self, text: str, *, few: bool = False) -> NextTokens:
        """Return what may follow `text`."""
        return await self.first.then(partial(self._next_tokens, text, few=few))

    async def _next_tokens(self, text: str, *, few: bool) -> NextTokens:
        async with self._lock:
            if self._prompt is None:
                self._prompt = await self.client.render(self.request)
        return await self.client.next_tokens(self.request, self._prompt + text, self.slot, few=few)


async def _misspelt(server: Server, labels: Sequence[str]) -> str:
    for label in labels:
        if not await server.spells(label):
            return label
    return labels[0]


def _check_count(next_tokens: object) -> None:
    if next_tokens is None:
        return
    if isinstance(next_tokens, bool) or not isinstance(next_tokens, int) or next_tokens < 1:
        raise ConfigurationError(
            f"Expected next_tokens to be a whole number of at least 1, got {next_tokens!r}."
        )
