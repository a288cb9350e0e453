"""Tests of the concurrent runner: order, memory, merged calls, failures and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from asked import ask
from calibrant.core import Limits, Outcome, Prediction, ProviderError, Query, RateLimitError, Stop
from calibrant.inference import Classifier, RetryPolicy
from calibrant.testing import FakeClient, MemoryJournal

LABELS = ("cat", "dog")


def classifier(client: Any, **options: Any) -> Classifier:
    """Return a classifier that does not wait between attempts."""
    settings: dict[str, Any] = {"field": "category", "retry": RetryPolicy(initial_seconds=0), **options}
    return Classifier(model=client, labels=LABELS, **settings)


class Holding(FakeClient):
    """Model of cats that holds the rows of these numbers until it may go on."""

    def __init__(self, *rows: int) -> None:
        super().__init__(LABELS, {}, default="cat")
        self.begun, self.hold = asyncio.Event(), asyncio.Event()
        self._rows = rows

    async def complete(self, request: Any) -> object:
        if int(request.messages[-1]["content"]) in self._rows:
            self.begun.set()
            await self.hold.wait()
        return await super().complete(request)


def begun(made: Classifier, texts: Iterable[str], delivered: list[int], **options: Any) -> asyncio.Task[str]:
    """Begin to classify texts, and record the delivered rows."""
    return asyncio.create_task(
        made.feed(map(made.query, texts), lambda index, _: delivered.append(index), **options)
    )


def test_queries_of_several_prompts_run_together() -> None:
    """Queries with several prompts and templates run together, and each gets its own answer."""
    client = FakeClient(LABELS, lambda _text, prompt: prompt.removesuffix("!"))
    queries = [
        Query(prompt="cat", text="a"),
        Query(prompt="dog!", text="b", user_template="<{input}>"),
        Query(prompt="cow", text="c"),
        Query(prompt="cat", text="d", user_template="nothing"),
    ]
    heard: list[int] = []
    found = ask(classifier(client), queries, on_prediction=lambda index, _: heard.append(index))
    assert [prediction.label for prediction in found] == ["cat", "dog", None, None]
    assert [prediction.outcome for prediction in found[2:]] == [Outcome.UNPARSED] * 2
    assert sorted(heard) == [0, 1, 2, 3]
    assert [request.messages[1]["content"] for request in client.requests] == ["a", "<b>", "c"]


def test_a_query_is_two_messages() -> None:
    """A query becomes a system message, empty or not, and a user message."""
    assert Query(prompt="", text="t").messages() == (
        {"role": "system", "content": ""},
        {"role": "user", "content": "t"},
    )


def test_texts_are_read_as_rows_are_begun() -> None:
    """Texts are read only as rows begin: while the first row is held, 1,024 texts are read."""
    read = answered = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for number in range(1_000_000):
            read += 1
            yield str(number)

    client = Holding(0)
    delivered: list[int] = []

    def count(_index: int, _prediction: Prediction) -> None:
        nonlocal answered
        answered += 1

    async def run() -> None:
        task = begun(classifier(client, concurrency=8), texts(), delivered, on_prediction=count)
        while answered < 1023:  # noqa: ASYNC110 (what is waited for is not an event)
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert (delivered, answered, read) == ([], 1023, 1024)
        client.hold.set()
        while len(delivered) <= 1023:  # noqa: ASYNC110 (nor is this)
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(run())
    assert delivered == list(range(len(delivered)))


def test_equal_rows_in_flight_share_a_call() -> None:
    """Equal rows in flight share one call, and only the first counts its attempts."""
    client = FakeClient(LABELS, {}, default="dog", latency=0.01)
    found = classifier(client, concurrency=10).classify_many(["same"] * 10 + ["other"])
    assert len(client.requests) == 2
    assert [prediction.label for prediction in found] == ["dog"] * 11
    assert sorted(prediction.attempts for prediction in found) == [0] * 9 + [1, 1]


def test_equal_rows_of_callers_share_a_call() -> None:
    """Equal rows of several callers share one call."""
    client = FakeClient(LABELS, {}, default="dog", latency=0.01)
    made = classifier(client)

    async def run() -> list[Prediction]:
        return await asyncio.gather(*(made.aclassify("same") for _ in range(5)))

    assert {prediction.label for prediction in asyncio.run(run())} == {"dog"}
    assert len(client.requests) == 1


def test_cancelled_call_is_repeated_for_waiters() -> None:
    """A row that waits for a cancelled equal row makes its own call."""

    class Held(FakeClient):
        async def complete(self, request: Any) -> object:
            found = await super().complete(request)
            asked.set()
            await answers.wait()
            return found

    asked, answers = asyncio.Event(), asyncio.Event()
    client = Held(LABELS, {}, default="dog")
    made = classifier(client)

    async def run() -> Prediction:
        first = asyncio.ensure_future(made.aclassify("same"))
        await asked.wait()
        second = asyncio.ensure_future(made.aclassify("same"))
        await asyncio.sleep(0.01)  # the second waits for the first one's answer now
        first.cancel()
        answers.set()
        return await second

    found = asyncio.run(run())
    assert (found.label, found.attempts, len(client.requests)) == ("dog", 1, 2)


def test_finished_rows_repeat_without_journal() -> None:
    """Without a journal a finished row is called again."""
    client = FakeClient(LABELS, {}, default="dog")
    classifier(client, concurrency=1).classify_many(["same", "same"])
    assert len(client.requests) == 2


def test_journal_answers_a_repeated_row() -> None:
    """The second of two equal rows is answered from the journal, with 0 attempts."""
    client, memory = FakeClient(LABELS, {}, default="dog"), MemoryJournal()
    found = classifier(client, concurrency=1, journal=memory).classify_many(["same", "same"])
    assert len(client.requests) == 1
    assert [prediction.attempts for prediction in found] == [1, 0]


def test_a_row_that_was_under_way_when_the_journal_was_read_is_not_asked_again() -> None:
    """Rows are looked up in blocks; one whose equal is answered in between is answered from the journal."""

    class Releasing(Holding):
        async def complete(self, request: Any) -> object:
            if request.messages[-1]["content"] == "257":
                self.hold.set()
            await asyncio.sleep(0)  # the other row goes on
            return await super().complete(request)

    client = Releasing(255)
    texts = [*map(str, range(300)), "255"]
    classifier(client, concurrency=2, journal=MemoryJournal()).classify_many(texts)
    assert len(client.requests) == 300


def test_journal_is_read_in_blocks() -> None:
    """A thousand rows take four reads of the journal."""
    client, memory = FakeClient(LABELS, {}, default="dog"), MemoryJournal()
    made = classifier(client, concurrency=32, journal=memory)
    texts = [str(number) for number in range(1000)]
    made.classify_many(texts)
    before = memory.reads
    again = made.classify_many(texts)
    assert len(client.requests) == 1000
    assert [prediction.attempts for prediction in again] == [0] * 1000
    assert memory.reads - before == 4


def test_twenty_failures_end_a_run() -> None:
    """Twenty failures without any answer raise one ProviderError."""
    down = ProviderError("connection refused", provider="p", retryable=True)
    client = FakeClient(LABELS, lambda _text: down)
    with pytest.raises(ProviderError, match=r"last 20 rows all failed.*connection refused"):
        classifier(client).classify_many([str(number) for number in range(10_000)])
    assert len(client.requests) <= 3 * 10 + 30, "no more than three tries of each are needed to see it"


def test_hundred_failures_end_a_run() -> None:
    """A hundred failures in a row after answers raise ProviderError; the answers are delivered."""
    down = ProviderError("reset", provider="p")
    client = FakeClient(LABELS, lambda text: "cat" if int(text) < 300 and int(text) % 2 == 0 else down)
    rows: list[int] = []
    made = classifier(client)
    with pytest.raises(ProviderError, match="last 100 rows"):
        asyncio.run(made.feed(map(made.query, map(str, range(10_000))), lambda index, _: rows.append(index)))
    assert rows == list(range(len(rows)))
    assert 399 <= len(rows) < 420, "150 failures between answers do not count"


def test_calls_under_way_are_kept_when_failures_end_a_run() -> None:
    """The answer to a row that was asked before a hundred others failed is delivered, and in the journal."""

    class Failing(Holding):
        """Model that fails for all rows but the first two, of which it holds one."""

        async def complete(self, request: Any) -> object:
            if int(request.messages[-1]["content"]) > 1:
                raise ProviderError("reset", provider="p")
            return await super().complete(request)

    async def run() -> tuple[list[int], MemoryJournal]:
        model, journal, stop = Failing(1), MemoryJournal(), Stop()
        made = classifier(model, journal=journal, retry=RetryPolicy(attempts=1), concurrency=16)
        rows: list[int] = []
        task = begun(made, map(str, range(10_000)), rows, stop=stop)
        stop_asked = asyncio.Event()
        with stop.calling(stop_asked.set):
            await asyncio.wait([task, asyncio.create_task(stop_asked.wait())], return_when="FIRST_COMPLETED")
        model.hold.set()
        with pytest.raises(ProviderError, match="last 100 rows"):
            await task
        return rows, journal

    rows, journal = asyncio.run(run())
    assert (rows[:2], len(journal)) == ([0, 1], 2)


def test_lost_logprobs_are_retried() -> None:
    """An answer without log-probabilities is retried where other answers had some."""
    client = _Forgetful(LABELS, {}, default={"cat": 0.8, "dog": 0.2}, forgets={3, 4, 6})
    found = classifier(client, concurrency=1).classify_many(["a", "b", "c", "d"])
    assert [round(prediction.confidence or 0, 2) for prediction in found] == [0.8] * 4
    assert [prediction.attempts for prediction in found] == [1, 1, 3, 2]


def test_missing_logprobs_leave_a_label() -> None:
    """After two retries the label counts, without a confidence."""
    client = _Forgetful(LABELS, {}, default="cat", forgets=set(range(2, 50)))
    found = classifier(client, concurrency=1).classify_many(["a", "b"])
    assert (found[1].label, found[1].confidence, found[1].outcome) == ("cat", None, Outcome.OK)
    assert found[1].attempts == 3


def test_silent_model_is_called_once_a_row() -> None:
    """A model without log-probabilities is called twice for the first row and once for others."""
    client = _Forgetful(LABELS, {}, default="cat", forgets=set(range(1, 50)))
    found = classifier(client, concurrency=1).classify_many(["a", "b", "c"])
    assert [prediction.attempts for prediction in found] == [2, 1, 1]
    assert {prediction.confidence for prediction in found} == {None}


def test_answers_asked_in_vain_are_paid_for() -> None:
    """A row has the tokens of every answered call, of those without log-probabilities too, once."""
    journal = MemoryJournal()
    client = _Forgetful(LABELS, {}, default="cat", forgets={3, 4, *range(6, 50)})
    made = classifier(client, concurrency=1, journal=journal)
    found = made.classify_many(["a", "b", "c", "d"])
    attempts = [prediction.attempts for prediction in found]
    assert attempts == [1, 1, 3, 3]
    assert [prediction.usage.prompt_tokens for prediction in found] == [10 * calls for calls in attempts]
    assert [prediction.usage.cost for prediction in found] == [0.5 * calls for calls in attempts]
    assert (made.meter.tokens, made.meter.cost) == (80, 4.0)
    again = classifier(client, journal=journal)
    assert [(row.attempts, row.usage) for row in again.classify_many(["c", "d"])] == [
        (0, row.usage) for row in found[2:]
    ]
    assert again.meter.tokens == 0


class _Forgetful(FakeClient):
    """Priced model that leaves log-probabilities out of some answers, by their number."""

    def __init__(self, *arguments: Any, forgets: set[int], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.forgets = forgets

    async def complete(self, request: Any) -> object:
        response: Any = await super().complete(request)
        if len(self.requests) in self.forgets:
            response["choices"][0].pop("logprobs", None)
        response |= {"usage": {"prompt_tokens": 10}, "_hidden_params": {"response_cost": 0.5}}
        return response


@pytest.mark.parametrize("at_once", [True, False])
def test_stop_at_once_cancels_rows(at_once: bool) -> None:
    """A stop with `at_once` cancels the rows in flight; without it they are finished."""
    client, stop = Holding(*range(3, 9)), Stop()
    delivered: list[int] = []

    async def run() -> str:
        task = begun(classifier(client, concurrency=2), map(str, range(9)), delivered, stop=stop)
        await client.begun.wait()
        while len(delivered) < 3:  # noqa: ASYNC110 (what is waited for is not an event)
            await asyncio.sleep(0)
        stop.request("interrupted", at_once=at_once)
        if not at_once:
            client.hold.set()
        return await task

    assert asyncio.run(run()) == "interrupted"
    assert delivered == ([0, 1, 2] if at_once else [0, 1, 2, 3, 4])


class _Limited(FakeClient):
    """Model that answers rows 0 to 2, holds row 3, and gives the others these rate limits in turn."""

    def __init__(self, *seconds: float, held_is_refused: bool = False) -> None:
        super().__init__(LABELS, {}, default="cat")
        self.hold, self.refused = asyncio.Event(), asyncio.Event()
        self._first_refused = 3 if held_is_refused else 4
        self._seconds = {number: list(seconds) for number in range(self._first_refused, 9)}

    async def complete(self, request: Any) -> object:
        number = int(request.messages[-1]["content"])
        if number == 3:
            await self.hold.wait()
        if seconds := self._seconds.get(number):
            self.refused.set()
            raise ProviderError("busy", provider="p", status=500, retryable=True, retry_after=seconds.pop(0))
        return await super().complete(request)


async def _stopped_while_rows_wait(client: _Limited, *, until_given_up: bool = True) -> list[int]:
    """Stop a run while row 3 is held and others wait for a rate limit; return the delivered rows."""
    delivered: list[int] = []
    given_up, stop = asyncio.Event(), Stop()

    async def sleep(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            given_up.set()
            raise

    made = classifier(client, concurrency=3, retry=RetryPolicy(initial_seconds=0.01, sleep=sleep))
    async with asyncio.timeout(10):
        task = begun(made, map(str, range(9)), delivered, stop=stop)
        await client.refused.wait()
        stop.request("interrupted", waits=True)
        if until_given_up:
            await given_up.wait()
        client.hold.set()
        assert await task == "interrupted"
    return delivered


@pytest.mark.parametrize("held_is_refused", [False, True])
@pytest.mark.parametrize("seconds", [(30.0, 30.0), (0.02, 30.0, 30.0)], ids=["at first", "again"])
def test_stop_waits_cancels_waiting_rows(seconds: tuple[float, ...], held_is_refused: bool) -> None:
    """`Stop.waits` cancels rows that wait for a rate limit; a call in flight ends and is not repeated."""

    async def run() -> list[int]:
        return await _stopped_while_rows_wait(_Limited(*seconds, held_is_refused=held_is_refused))

    assert asyncio.run(run()) == ([0, 1, 2] if held_is_refused else [0, 1, 2, 3])


def test_stop_waits_finishes_short_waits() -> None:
    """`Stop.waits` lets rows finish that wait only a moment."""

    async def run() -> list[int]:
        return await _stopped_while_rows_wait(_Limited(0.02), until_given_up=False)

    assert asyncio.run(run()) == [0, 1, 2, 3, 4, 5]


def test_stop_ends_rows_behind_a_cancelled_one() -> None:
    """A stop with `waits` ends the run even if 1,023 answered rows wait for a cancelled one."""
    stop, delivered = Stop(), []
    answered = 0

    def count(_index: int, _prediction: Prediction) -> None:
        nonlocal answered
        answered += 1

    async def run() -> str:
        client = FakeClient(LABELS, lambda text: failed if text == "0" else "cat")
        patient = RetryPolicy(initial_seconds=120.0, maximum_seconds=120.0)
        made = classifier(client, concurrency=3, retry=patient)
        async with asyncio.timeout(60):
            task = begun(made, map(str, range(9999)), delivered, on_prediction=count, stop=stop)
            while answered < 1023:  # noqa: ASYNC110 (what is waited for is not an event)
                await asyncio.sleep(0.001)
            stop.request("interrupted", waits=True)
            return await task

    failed = ProviderError("HTTP 500.", provider="p", status=500, retryable=True)
    assert asyncio.run(run()) == "interrupted"
    assert (delivered, answered) == ([], 1023)


def test_stop_ends_rows_waiting_for_a_price() -> None:
    """Rows that wait for the first row's price end when that row is cancelled."""

    async def run() -> str:
        client, stop = FakeClient(LABELS, lambda _text: refused), Stop()
        made = classifier(client, retry=RetryPolicy(), limits=Limits(max_cost=1.0, concurrency=3))
        task = asyncio.ensure_future(
            made.feed(map(made.query, map(str, range(9))), lambda *_: None, stop=stop)
        )
        while not client.requests:  # noqa: ASYNC110 (what is waited for is not an event)
            await asyncio.sleep(0)
        stop.request("interrupted", waits=True)
        async with asyncio.timeout(10):
            return await task

    refused = RateLimitError("busy", provider="p", status=429, retryable=True, retry_after=30.0)
    assert asyncio.run(run()) == "interrupted"
