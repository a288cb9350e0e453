"""Fake model that returns the next tokens after the beginning of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.core._completion import CompletionRequest, Continuation, NextTokens
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Usage
from calibrant.testing._client import Answer, FakeClient, distribution_of
from calibrant.testing._response import ranked, shares_at, weights_of, with_illegal, written


class FakeContinuingClient(FakeClient):
    """Fake model that also returns the next tokens after any beginning of an answer.

    It satisfies `ContinuingClient`, as embedded engines do. `complete` answers as `FakeClient` does;
    `continuing` follows the same rule. The answer a label leads to is a row of tokens: the JSON before
    the label, the pieces that `tokens` makes of the label and its closing quote, the JSON after it, and
    the empty token that ends an answer. After a beginning that is made of whole tokens of some labels,
    their next tokens are listed, each with the share of the probability that these labels hold; the
    chain of all next tokens therefore gives the probabilities of the labels back exactly. A beginning
    that no label reaches with whole tokens goes on inside the token it ends in, and one that no label
    of the rule begins with is followed by a token that leads to no label. At the label's first
    position, `illegal_mass` is on that token, and the rest is what the labels share.

    Parameters
    ----------
    labels : sequence of str
        The label set.
    answers : mapping or callable
        The rule, as in `FakeClient`; a ready response cannot be continued.
    listed : int, default 1000
        Next tokens listed at most, where a request leaves the number to the client.
    few : int, optional
        Next tokens listed if the caller asks for few; by default all of them.
    unscorable : collection of str, default ()
        Labels, as JSON spells them, that `check_labels` refuses.
    serial : bool, default False
        True if rows declare that their calls run one after another.
    **options
        ``default``, ``failures``, ``field``, ``tokens``, ``illegal_mass``, ``latency``, ``space`` and
        ``name``, as in `FakeClient`; every question about next tokens is one of the numbered calls.

    Attributes
    ----------
    requests : list of CompletionRequest
        One for every call; for a question about next tokens it is the row's.
    beginnings : list of str
        The beginnings of answers that were asked about, in the order of arrival.
    checked : list of tuple of str
        The labels of every `check_labels`.
    open_rows : int
        Rows that were begun and have not ended.

    Examples
    --------
    >>> import asyncio
    >>> client = FakeContinuingClient(["Food", "Rent"], {"lunch": ("Food", 0.75)})
    >>> request = CompletionRequest(messages=({"role": "user", "content": "lunch"},), top_logprobs=1)
    >>> async def ask(text):
    ...     async with client.continuing(request) as row:
    ...         return (await row.next_tokens(text)).top
    >>> [(token, round(math.exp(logprob), 2)) for token, logprob in asyncio.run(ask('{"category": "'))]
    [(b'Food"', 0.75)]
    """

    def __init__(
        self,
        labels: Sequence[str],
        answers: Mapping[str, Answer] | Callable[..., Answer],
        *,
        listed: int = 1000,
        few: int | None = None,
        unscorable: Collection[str] = (),
        serial: bool = False,
        **options: Any,  # noqa: ANN401 (those of FakeClient)
    ) -> None:
        super().__init__(labels, answers, **options)
        for name, number in (("listed", listed), ("few", few)):
            if number is not None and number < 1:
                msg = f"{name} must be at least 1, got {number}."
                raise ConfigurationError(msg)
        self.beginnings: list[str] = []
        self.checked: list[tuple[str, ...]] = []
        self.open_rows = 0
        self.serial = serial
        self._listed = listed
        self._few = few
        self._unscorable = frozenset(unscorable)

    async def check_labels(self, labels: Sequence[str]) -> None:
        """Record the labels; raise ConfigurationError for those that the test forbids.

        Raises
        ------
        ConfigurationError
            One of them is among `unscorable`.
        """
        self.checked.append(tuple(labels))
        for label in labels:
            if label in self._unscorable:
                msg = f"The tokens of {self.name} do not spell the label {label!r}: rename the label."
                raise ConfigurationError(msg)

    @contextlib.asynccontextmanager
    async def continuing(self, request: CompletionRequest) -> AsyncIterator[Continuation]:
        """Yield a row's session, valid inside the context."""
        row = _FakeRow(self, request, self.serial)
        with self._lock:
            self.open_rows += 1
        try:
            yield row
        finally:
            row.ended = True
            with self._lock:
                self.open_rows -= 1

    async def next_tokens(self, request: CompletionRequest, text: str, *, few: bool = False) -> NextTokens:
        """Return the next tokens after `text`, the beginning of an answer to the request."""
        with self._call(request) as number:
            self.beginnings.append(text)
            if self._latency:
                await asyncio.sleep(self._latency)
            shares = self._shares_after(text, self._planned_answer(request, number))
        most = request.top_logprobs or self._listed
        count = min(most, self._few or most) if few else most
        listed = ranked(shares, count)
        return NextTokens(
            top=tuple((data, math.log(min(1.0, share))) for data, share in listed),
            usage=Usage(completion_tokens=1),
            model="fake",
            short=count < most,
        )

    def _shares_after(self, text: str, answer: object) -> dict[bytes, float]:
        if isinstance(answer, Mapping) and "choices" in answer:
            msg = "Expected probabilities of labels, got a ready response: it cannot be continued."
            raise ConfigurationError(msg)
        label, probabilities = distribution_of(answer, self.labels)
        style = {name: self._style[name] for name in ("field", "tokens")}
        weights = {
            name: weight for name, weight in weights_of(label, None, probabilities).items() if weight > 0
        }
        answers = {name: written(name, self.labels, **style) for name in weights}
        before = text.encode()
        shares = shares_at(before, [((*answers[name].pieces, b""), weights[name]) for name in weights])
        begun = any(
            before == b"".join(answer.pieces[:start])
            for answer in answers.values()
            for start in answer.starts
        )
        return with_illegal(shares, self._style["illegal_mass"]) if begun else shares


@dataclass
class _FakeRow:
    """Session of one row at a `FakeContinuingClient`."""

    client: FakeContinuingClient
    request: CompletionRequest
    serial: bool
    ended: bool = False

    async def next_tokens(self, text: str, *, few: bool = False) -> NextTokens:
        """Return the next tokens after `text`."""
        if self.ended:
            msg = f"{self.client.name}: a row was asked after its context had ended: ask inside `async with`."
            raise ConfigurationError(msg)
        return await self.client.next_tokens(self.request, text, few=few)
