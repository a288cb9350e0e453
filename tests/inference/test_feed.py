"""The concurrent runner: order, memory, merged calls, and when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from calibrant.core import Limits, Outcome, Prediction, ProviderError, RateLimitError, Stop
from calibrant.core._predictor import Query
from calibrant.inference import Classifier, RetryPolicy
from calibrant.inference._loop import ask
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


def test_queries_of_several_prompts_run_together() -> None:
    """Prompt and template belong to the query, so a search evaluates its candidates in one go."""
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
    """An empty prompt is sent as it is."""
    assert Query(prompt="", text="t").messages() == (
        {"role": "system", "content": ""},
        {"role": "user", "content": "t"},
    )


def test_texts_are_read_as_rows_are_begun() -> None:
    """An endless stream is no reason to begin it all; a slow first row bounds what waits behind it."""
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
        made = classifier(client, concurrency=8)
        task = asyncio.ensure_future(
            made.feed(map(made.query, texts()), lambda index, _: delivered.append(index), on_prediction=count)
        )
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


def test_the_same_row_under_way_is_asked_once() -> None:
    """Ten threads of one question are one call; the answer is everybody's, the attempts the first one's."""
    client = FakeClient(LABELS, {}, default="dog", latency=0.01)
    found = classifier(client, concurrency=10).classify_many(["same"] * 10 + ["other"])
    assert len(client.requests) == 2
    assert [prediction.label for prediction in found] == ["dog"] * 11
    assert sorted(prediction.attempts for prediction in found) == [0] * 9 + [1, 1]


def test_calls_of_several_callers_are_merged() -> None:
    """Not only those of one batch."""
    client = FakeClient(LABELS, {}, default="dog", latency=0.01)
    made = classifier(client)

    async def run() -> list[Prediction]:
        return await asyncio.gather(*(made.aclassify("same") for _ in range(5)))

    assert {prediction.label for prediction in asyncio.run(run())} == {"dog"}
    assert len(client.requests) == 1


def test_whoever_waits_for_a_row_that_is_given_up_asks_for_itself() -> None:
    """One caller's cancellation is not another's."""

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
    assert (found.label, found.attempts) == ("dog", 1)
    assert len(client.requests) == 2


def test_without_a_journal_a_finished_row_is_asked_again() -> None:
    """Only calls under way are merged: what is kept is the user's decision."""
    client = FakeClient(LABELS, {}, default="dog")
    classifier(client, concurrency=1).classify_many(["same", "same"])
    assert len(client.requests) == 2


def test_with_a_journal_a_repeated_row_is_asked_once() -> None:
    """Also where the first of them was answered after the journal had been read for both."""
    client, memory = FakeClient(LABELS, {}, default="dog"), MemoryJournal()
    found = classifier(client, concurrency=1, journal=memory).classify_many(["same", "same"])
    assert len(client.requests) == 1
    assert [prediction.attempts for prediction in found] == [1, 0]


def test_a_journal_is_read_in_blocks() -> None:
    """A million rows are not a million queries."""
    client, memory = FakeClient(LABELS, {}, default="dog"), MemoryJournal()
    made = classifier(client, concurrency=32, journal=memory)
    texts = [str(number) for number in range(1000)]
    made.classify_many(texts)
    before = memory.reads
    again = made.classify_many(texts)
    assert len(client.requests) == 1000
    assert [prediction.attempts for prediction in again] == [0] * 1000
    assert memory.reads - before == 4


def test_nothing_but_failures_ends_a_run() -> None:
    """With one message that says what went wrong, not one for each of the rows."""
    down = ProviderError("connection refused", provider="p", retryable=True)
    client = FakeClient(LABELS, lambda _text: down)
    with pytest.raises(ProviderError, match=r"last 20 rows all failed.*connection refused"):
        classifier(client).classify_many([str(number) for number in range(10_000)])
    assert len(client.requests) <= 3 * 10 + 30, "no more than three tries of each are needed to see it"


def test_a_server_that_dies_ends_a_run_later() -> None:
    """A hundred failures in a row; what was answered before was delivered."""
    down = ProviderError("reset", provider="p")
    client = FakeClient(LABELS, lambda text: "cat" if int(text) < 50 else down)
    rows: list[int] = []
    made = classifier(client)
    with pytest.raises(ProviderError, match="last 100 rows"):
        asyncio.run(made.feed(map(made.query, map(str, range(10_000))), lambda index, _: rows.append(index)))
    assert rows == list(range(len(rows)))
    assert 150 <= len(rows) < 170


def test_an_answer_that_lost_its_logprobs_is_asked_for_again() -> None:
    """Where others have them, that is the server's fault, not evidence of nothing."""
    client = _Forgetful(LABELS, {}, default={"cat": 0.8, "dog": 0.2}, forgets={3, 4, 6})
    found = classifier(client, concurrency=1).classify_many(["a", "b", "c", "d"])
    assert [round(prediction.confidence or 0, 2) for prediction in found] == [0.8] * 4
    assert [prediction.attempts for prediction in found] == [1, 1, 3, 2]


def test_an_answer_without_logprobs_is_an_answer_in_the_end() -> None:
    """The label counts, and nothing is claimed about its confidence."""
    client = _Forgetful(LABELS, {}, default="cat", forgets=set(range(2, 50)))
    found = classifier(client, concurrency=1).classify_many(["a", "b"])
    assert (found[1].label, found[1].confidence, found[1].outcome) == ("cat", None, Outcome.OK)
    assert found[1].attempts == 6


def test_a_model_that_never_has_logprobs_is_asked_once_a_row() -> None:
    """After the first row, which was asked twice to make sure."""
    client = _Forgetful(LABELS, {}, default="cat", forgets=set(range(1, 50)))
    found = classifier(client, concurrency=1).classify_many(["a", "b", "c"])
    assert [prediction.attempts for prediction in found] == [2, 1, 1]
    assert {prediction.confidence for prediction in found} == {None}


class _Forgetful(FakeClient):
    """Leaves log-probabilities out of some answers, by their number."""

    def __init__(self, *arguments: Any, forgets: set[int], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.forgets = forgets

    async def complete(self, request: Any) -> object:
        response: Any = await super().complete(request)
        if len(self.requests) in self.forgets:
            response["choices"][0].pop("logprobs", None)
        return response


@pytest.mark.parametrize("at_once", [True, False])
def test_a_stop_gives_up_the_rows_under_way_where_it_is_asked_to(at_once: bool) -> None:
    """What was answered is delivered; without `at_once` the rows under way are finished."""
    client, stop = Holding(*range(3, 9)), Stop()
    delivered: list[int] = []

    async def run() -> str:
        made = classifier(client, concurrency=2)
        row = made.feed(
            map(made.query, map(str, range(9))), lambda index, _: delivered.append(index), stop=stop
        )
        task = asyncio.ensure_future(row)
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
    """Answers rows 0 to 2, holds row 3 until it is told to go on, and refuses the others for these times in turn."""

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
    """Stop a run while row 3 is held and others wait for a rate limit; return the rows that were delivered."""
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
        task = asyncio.ensure_future(
            made.feed(
                map(made.query, map(str, range(9))), lambda index, _: delivered.append(index), stop=stop
            )
        )
        await client.refused.wait()
        stop.request("interrupted", waits=True)
        if until_given_up:
            await given_up.wait()
        client.hold.set()
        assert await task == "interrupted"
    return delivered


@pytest.mark.parametrize("held_is_refused", [False, True])
@pytest.mark.parametrize("seconds", [(30.0, 30.0), (0.02, 30.0, 30.0)], ids=["at first", "again"])
def test_a_stop_gives_up_rows_that_wait_for_a_rate_limit_where_it_is_asked_to(
    seconds: tuple[float, ...], held_is_refused: bool
) -> None:
    """A call in flight is waited for; if it is refused, it is not made again."""

    async def run() -> list[int]:
        return await _stopped_while_rows_wait(_Limited(*seconds, held_is_refused=held_is_refused))

    assert asyncio.run(run()) == ([0, 1, 2] if held_is_refused else [0, 1, 2, 3])


def test_a_stop_lets_rows_go_on_that_wait_for_a_moment_only() -> None:
    """They are finished like any other row under way."""

    async def run() -> list[int]:
        return await _stopped_while_rows_wait(_Limited(0.02), until_given_up=False)

    assert asyncio.run(run()) == [0, 1, 2, 3, 4, 5]


def test_a_stop_ends_rows_that_wait_behind_one_that_is_given_up() -> None:
    """So many are answered that none is begun before the first one is delivered, which it never is."""
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
            task = asyncio.ensure_future(
                made.feed(
                    map(made.query, map(str, range(9999))),
                    lambda index, _: delivered.append(index),
                    on_prediction=count,
                    stop=stop,
                )
            )
            while answered < 1023:  # noqa: ASYNC110 (what is waited for is not an event)
                await asyncio.sleep(0.001)
            stop.request("interrupted", waits=True)
            return await task

    failed = ProviderError("HTTP 500.", provider="p", status=500, retryable=True)
    assert asyncio.run(run()) == "interrupted"
    assert (delivered, answered) == ([], 1023)


def test_a_stop_ends_rows_that_wait_for_the_first_ones_price() -> None:
    """The first one waits for a rate limit, and tells no price any more."""

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
