"""Tests of our strategies inside litellm's own Router, on loopback servers."""

from __future__ import annotations

import asyncio
import http.server
import json
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant.adapters.litellm import (
    LiteLLMRoutingStrategy,
    _is_deployment_fault,
    _note_deployment,
    _text_of,
    _tried_deployments,
)
from calibrant.core import ConfigurationError
from calibrant.inference import open_embedder
from calibrant.inference._embeddings import CachedEmbedder
from calibrant.routing import (
    BanditRouter,
    EMARouter,
    FixedRouter,
    Observation,
    Router,
    RoutingRequest,
    ThompsonRouter,
)
from calibrant.routing._protocol import ProviderStanding
from calibrant.store._router_state import open_router_state
from fault_server import FaultServer

litellm = pytest.importorskip("litellm")

Attach = Callable[..., tuple[Any, LiteLLMRoutingStrategy]]
SECONDS = 20.0


class Noting(FixedRouter):
    """A router with the declared order that keeps observations and requests."""

    def __init__(self, providers: Sequence[str]) -> None:
        super().__init__(providers)
        self.told: list[Observation] = []
        self.requests: list[RoutingRequest | None] = []

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        self.requests.append(request)
        return super().order(request)

    def record(self, observation: Observation) -> None:
        super().record(observation)
        self.told.append(observation)


def deployment(group: str, name: str, server: FaultServer, **params: Any) -> dict[str, Any]:
    """Return an entry of a model list."""
    return {
        "model_name": group,
        "litellm_params": {"model": "openai/m", "api_base": server.api_base, "api_key": "x", **params},
        "model_info": {"id": name},
    }


def policy(strategy: LiteLLMRoutingStrategy, group: str = "g") -> Any:
    """Return the strategy of a group."""
    return strategy._groups[group].policy


def counts(strategy: LiteLLMRoutingStrategy, group: str = "g") -> dict[str, int]:
    """Return the number of calls that a strategy has learned from, by deployment."""
    return {one.provider: one.observations for one in strategy.standings().get(group, ())}


def asked(server: FaultServer) -> int:
    """Return the number of requests that a server got."""
    return sum(server.counts.values())


def ask_in_turn(router: Any, count: int) -> None:
    """Ask questions one after the other, without an event loop."""
    for number in range(count):
        router.completion(model="g", messages=message(f"cat {number}"))


def message(text: str) -> list[dict[str, str]]:
    """Return the messages of a request."""
    return [{"role": "system", "content": "Name the animal."}, {"role": "user", "content": text}]


def told(strategy: LiteLLMRoutingStrategy, expected: int, groups: Sequence[str] = ("g",)) -> None:
    """Wait until a strategy has learned from so many calls, and check that no more come."""
    total, until = -1, time.monotonic() + SECONDS
    while total < expected and time.monotonic() < until:
        time.sleep(0.01)
        total = sum(sum(counts(strategy, group).values()) for group in groups)
    time.sleep(0.1)
    assert sum(sum(counts(strategy, group).values()) for group in groups) == expected


async def flushed() -> None:
    """Let litellm's background worker finish, before its loop is closed."""
    from litellm.litellm_core_utils.logging_worker import (  # noqa: PLC0415  (after litellm)
        GLOBAL_LOGGING_WORKER,
    )

    await asyncio.sleep(0.05)
    await GLOBAL_LOGGING_WORKER.flush()


def ask_many(
    router: Any, count: int, *, group: str = "g", concurrency: int = 50, **options: Any
) -> list[Any]:
    """Return answers and errors of concurrent requests."""

    async def run() -> list[Any]:
        gate = asyncio.Semaphore(concurrency)

        async def one(number: int) -> Any:
            async with gate:
                return await router.acompletion(model=group, messages=message(f"cat {number}"), **options)

        found = await asyncio.gather(*(one(number) for number in range(count)), return_exceptions=True)
        await flushed()
        return found

    return asyncio.run(run())


def learn(router: Any, strategy: LiteLLMRoutingStrategy, count: int) -> None:
    """Ask the first questions, and wait until the strategy has learned from all."""
    ask_many(router, count)
    told(strategy, count)


@pytest.fixture
def servers() -> Iterator[Callable[..., FaultServer]]:
    """Return a function that starts a server."""
    started: list[FaultServer] = []

    def start(**options: Any) -> FaultServer:
        started.append(FaultServer(["cat", "dog"], **options))
        started[-1].start()
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def attach() -> Iterator[Attach]:
    """Return a function that makes a router and gives it a strategy."""
    made: list[tuple[Any, LiteLLMRoutingStrategy]] = []

    def make(
        make_policy: Callable[[Sequence[str]], Router],
        *deployments: Mapping[str, Any],
        strategy: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Any, LiteLLMRoutingStrategy]:
        router = litellm.Router(
            model_list=list(deployments), **{"num_retries": 0, "retry_after": 0, **options}
        )
        made.append((router, LiteLLMRoutingStrategy(make_policy, **(strategy or {})).attach(router)))
        return made[-1]

    yield make
    for router, strategy in made:
        strategy.close()
        router.discard()


# --- learning -----------------------------------------------------------------------------------


def test_every_call_is_learned_once(servers: Any, attach: Attach) -> None:
    """Every call is learned from once, asynchronous or not."""
    server = servers(latency=0.02)
    router, strategy = attach(
        Noting, deployment("g", "one", server, input_cost_per_token=0.001, output_cost_per_token=0.002)
    )
    answers = ask_many(router, 20)
    assert {answer.choices[0].message.content for answer in answers} == {'{"category": "cat"}'}
    told(strategy, 20)
    ask_in_turn(router, 10)
    told(strategy, 30)
    for seen in policy(strategy).told:
        assert (seen.provider, seen.success, seen.rate_limited, seen.recovered) == ("one", True, False, False)
        assert 0.02 <= seen.latency_seconds < SECONDS
        assert seen.cost > 0.001
        assert seen.quality is None


class Streaming(http.server.BaseHTTPRequestHandler):
    """Handler that answers with server-sent events."""

    def do_POST(self) -> None:
        """Write the answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        for delta, end in (
            ({"role": "assistant", "content": "ca"}, None),
            ({"content": "t"}, None),
            ({}, "stop"),
        ):
            event = {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_streams_are_learned_once(attach: Attach) -> None:
    """A streamed answer is learned from once."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Streaming) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = types.SimpleNamespace(api_base=f"http://127.0.0.1:{server.server_port}/v1")
        router, strategy = attach(Noting, deployment("g", "one", place))  # type: ignore[arg-type]

        async def run() -> list[str]:
            stream = await router.acompletion(model="g", messages=message("cat"), stream=True)
            parts = [part.choices[0].delta.content or "" async for part in stream]
            await flushed()
            return parts

        assert "".join(asyncio.run(run())) == "cat"
        told(strategy, 1)
        stream = router.completion(model="g", messages=message("cat"), stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream) == "cat"
        told(strategy, 2)
        server.shutdown()
    assert [observation.success for observation in policy(strategy).told] == [True, True]


def test_threads_may_share_a_router(servers: Any, attach: Attach) -> None:
    """Every call of eight threads is learned from once."""
    server = servers()
    router, strategy = attach(lambda ids: ThompsonRouter(ids, rng=0), deployment("g", "a", server),
                              deployment("g", "b", server))  # fmt: skip
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda n: router.completion(model="g", messages=message(f"cat {n}")), range(40))
        assert len(list(answers)) == 40
    told(strategy, 40)
    assert asked(server) == 40


@pytest.mark.slow
def test_load_moves_to_the_reliable_deployment(servers: Any, attach: Attach) -> None:
    """Thompson sampling sends most requests to the reliable server, and learns from every request."""
    good, bad = servers(), servers(faults={"500": 0.6}, seed=1)
    router, strategy = attach(
        lambda ids: ThompsonRouter(ids, rng=0),
        deployment("g", "bad", bad),
        deployment("g", "good", good),
        disable_cooldowns=True,
    )
    for _ in range(4):
        ask_many(router, 50)
    told(strategy, 200)
    assert asked(good) + asked(bad) == 200
    assert counts(strategy) == {"bad": asked(bad), "good": asked(good)}
    assert asked(good) > 130


def test_groups_learn_apart(servers: Any, attach: Attach) -> None:
    """Each group has a strategy of its own, with the ids of its deployments."""
    one, two = servers(), servers()
    router, strategy = attach(
        Noting, deployment("g", "a", one), deployment("g", "b", two), deployment("h", "c", two)
    )
    ask_many(router, 3)
    ask_many(router, 4, group="h")
    told(strategy, 7, groups=("g", "h"))
    assert counts(strategy) == {"a": 3, "b": 0}
    assert counts(strategy, "h") == {"c": 4}
    assert {type(one) for one in strategy.standings()["g"]} == {ProviderStanding}


def test_quality_and_embedding_reach_the_strategy(servers: Any, attach: Attach) -> None:
    """Observations hold the judged quality and the embedding, for async and sync calls."""
    seen: list[str] = []

    class Embedder:
        async def embed_one(self, text: str) -> NDArray[np.float64] | None:
            seen.append(text)
            return np.ones(3)

    def quality(kwargs: Mapping[str, Any], response: Any) -> float:
        assert kwargs["model"] == "m"
        return 0.25 if '"cat"' in response.choices[0].message.content else 0.0

    router, strategy = attach(
        Noting, deployment("g", "one", servers()), strategy={"embedder": Embedder(), "quality": quality}
    )
    learn(router, strategy, 1)
    router.completion(model="g", messages=[{"role": "user", "content": [{"type": "text", "text": "cat 0"}]}])
    told(strategy, 2)
    assert set(seen) == {"cat 0"}
    for observation in policy(strategy).told:
        assert observation.quality == 0.25
        np.testing.assert_array_equal(observation.context, np.ones(3))
    router.get_available_deployment("g", messages=message("cat 0"), request_kwargs={"tools": [{}]})
    first, second, third = policy(strategy).requests
    assert (first.has_tools, second.has_tools, third.has_tools) == (False, False, True)
    np.testing.assert_array_equal(first.embedding, second.embedding)


@pytest.mark.parametrize("worth", [float("nan"), 7.0, "good", KeyError("x")])
def test_a_failing_judge_only_warns(
    servers: Any, attach: Attach, worth: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A judge that fails logs one warning, and the observation has no quality."""

    def quality(*_: Any) -> float:
        if isinstance(worth, Exception):
            raise worth
        return worth  # type: ignore[no-any-return]

    router, strategy = attach(Noting, deployment("g", "one", servers()), strategy={"quality": quality})
    learn(router, strategy, 3)
    assert [observation.quality for observation in policy(strategy).told] == [None] * 3
    assert sum("could not be judged" in record.message for record in caplog.records) == 1


def test_the_bandit_learns_by_text(servers: Any, attach: Attach) -> None:
    """The bandit sends each kind of text to the deployment that answers it well."""
    cats, dogs = (servers(answers=always) for always in (lambda _: ("cat", 0.9), lambda _: ("dog", 0.9)))
    embedder = CachedEmbedder(open_embedder(dim=32), dim=32, timeout_seconds=10.0)

    def quality(kwargs: Mapping[str, Any], response: Any) -> float:
        wanted = "cat" if "meow" in kwargs["messages"][-1]["content"] else "dog"
        return float(f'"{wanted}"' in response.choices[0].message.content)

    router, strategy = attach(
        lambda ids: BanditRouter(ids, dim=32, alpha=0.3),
        deployment("g", "cats", cats),
        deployment("g", "dogs", dogs),
        strategy={"embedder": embedder, "quality": quality},
    )

    async def ask(text: str) -> str:
        answer = await router.acompletion(model="g", messages=message(text))
        await flushed()
        return str(answer.choices[0].message.content)

    async def run() -> list[str]:
        for number in range(20):
            await ask(f"{'meow purr whiskers' if number % 2 else 'woof bark bone'} {number}")
        return [await ask("meow purr whiskers"), await ask("woof bark bone")]

    assert asyncio.run(run()) == ['{"category": "cat"}', '{"category": "dog"}']
    told(strategy, 22)
    embedder.close()


def test_learned_state_is_kept(servers: Any, attach: Attach, tmp_path: Path) -> None:
    """Learned state is stored under the group's name, and a new strategy continues it."""
    server = servers()
    options = {"state": tmp_path / "state.sqlite"}
    router, strategy = attach(ThompsonRouter, deployment("g", "one", server), strategy=options)
    learn(router, strategy, 5)
    strategy.close()
    again, other = attach(ThompsonRouter, deployment("g", "one", server), strategy=options)
    ask_many(again, 2)
    told(other, 7)
    other.close()
    state = open_router_state(tmp_path / "state.sqlite", scope="litellm/g")
    record = state.read("thompson")
    state.close()
    assert record is not None
    assert record["providers"]["one"]["alpha"] == 8.0


# --- failures -----------------------------------------------------------------------------------


def test_a_retry_takes_another_deployment(servers: Any, attach: Attach) -> None:
    """A retry goes to another deployment, and every request is answered."""
    dead, alive = servers(faults=lambda *_: "503"), servers()
    router, strategy = attach(
        Noting, deployment("g", "dead", dead), deployment("g", "alive", alive), num_retries=1,
        disable_cooldowns=True,
    )  # fmt: skip
    for answers in (ask_many(router, 4), ask_many(router, 4, concurrency=1, metadata={})):
        assert not [answer for answer in answers if isinstance(answer, Exception)]
    told(strategy, 16)
    router.completion(model="g", messages=message("cat"))
    told(strategy, 18)
    assert counts(strategy) == {"dead": 9, "alive": 9}
    assert not any("metadata" in request.body for request in alive.requests)


def test_shared_metadata_marks_no_retry(servers: Any, attach: Attach) -> None:
    """Two requests that share a metadata dictionary are not taken for a retry."""
    one, two = servers(), servers()
    router, strategy = attach(Noting, deployment("g", "a", one), deployment("g", "b", two))
    ask_many(router, 3, concurrency=1, metadata={"user": "u"})
    told(strategy, 3)
    assert (asked(one), asked(two)) == (3, 0)


def test_a_long_trace_does_not_grow() -> None:
    """A deployment that is noted repeatedly for one trace is listed once."""
    kwargs: dict[str, Any] = {"metadata": {}, "litellm_trace_id": "session"}
    for number in range(100):
        _note_deployment(kwargs, f"deployment {number % 2}")
    assert _tried_deployments(kwargs) == ["deployment 0", "deployment 1"]
    assert _tried_deployments({**kwargs, "litellm_trace_id": "other"}) == []


@pytest.mark.parametrize("noted", ["x", 7, [], {"request": "t"}, {"request": "t", "deployments": 3}])
def test_foreign_metadata_is_harmless(noted: object) -> None:
    """Metadata of other forms is ignored and raises nothing."""
    kwargs: dict[str, Any] = {"metadata": {"calibrant_asked": noted}, "litellm_trace_id": "t"}
    assert _tried_deployments(kwargs) == []
    _note_deployment(kwargs, "one")
    assert _tried_deployments(kwargs) == ["one"]
    assert _tried_deployments({"metadata": noted}) == []


@pytest.mark.parametrize(("status", "theirs"), [({}, False), ("x", False), (None, False), ("503", True)])
def test_fault_is_read_from_the_status(status: object, *, theirs: bool) -> None:
    """Only an error with a readable status, such as "503", counts against the deployment."""
    error = Exception()
    error.status_code = status  # type: ignore[attr-defined]
    assert _is_deployment_fault(error) is theirs


def test_litellm_s_cooldowns_hold(servers: Any, attach: Attach) -> None:
    """A deployment in litellm's cooldown is not called, and if all are, litellm's error is raised."""
    limited, free = servers(faults=lambda *_: "429"), servers()
    places = deployment("g", "limited", limited), deployment("g", "free", free)
    router, strategy = attach(Noting, *places, cooldown_time=60)
    assert isinstance(ask_many(router, 1)[0], litellm.RateLimitError)
    told(strategy, 1)
    assert policy(strategy).told[0].rate_limited
    ask_many(router, 20)
    ask_in_turn(router, 5)
    told(strategy, 26)
    assert asked(limited) == 1
    router.cooldown_cache.add_deployment_to_cooldown(
        model_id="free", original_exception=ValueError("down"), exception_status=500, cooldown_time=60
    )
    (failed,) = ask_many(router, 1)
    assert "No deployments available" in str(failed)
    with pytest.raises(ValueError, match="No deployments available"):
        router.completion(model="g", messages=message("cat"))
    told(strategy, 26)


def test_a_dead_server_is_probed_again(servers: Any, attach: Attach) -> None:
    """A server that failed is probed again after `retry_seconds`, and used once it answers."""
    now = [0.0]
    down = threading.Event()
    best, other = servers(faults=lambda *_: "503" if down.is_set() else None), servers(latency=0.5)
    router, strategy = attach(
        lambda ids: EMARouter(ids, alpha=1.0, reorder_interval=1),
        deployment("g", "best", best),
        deployment("g", "other", other),
        strategy={"retry_seconds": 30.0, "clock": lambda: now[0]},
        num_retries=1,
        disable_cooldowns=True,
    )
    ask_many(router, 2)
    down.set()
    ask_many(router, 1)
    told(strategy, 4)
    ask_many(router, 2)
    told(strategy, 6)
    assert (asked(best), asked(other)) == (2, 4)
    now[0] = 31.0
    ask_many(router, 3)  # once again, in vain
    told(strategy, 10)
    assert (asked(best), asked(other)) == (3, 7)
    down.clear()
    now[0] = 62.0
    ask_many(router, 1)
    told(strategy, 11)
    ask_many(router, 3)
    told(strategy, 14)
    assert (asked(best), asked(other)) == (7, 7)


def test_a_recovery_is_marked_once(servers: Any, attach: Attach) -> None:
    """Only an answer after `retry_seconds` of failing is marked as recovered."""
    now, faults = [0.0], {0: "503", 2: "503"}
    server = servers(faults=lambda number, _: faults.get(number))
    router, strategy = attach(
        Noting, deployment("g", "one", server), disable_cooldowns=True,
        strategy={"retry_seconds": 5.0, "clock": lambda: now[0]},
    )  # fmt: skip
    ask_many(router, 3, concurrency=1)
    now[0] = 6.0
    ask_many(router, 2, concurrency=1)
    told(strategy, 5)
    seen = [(observation.success, observation.recovered) for observation in policy(strategy).told]
    assert seen == [(False, False), (True, False), (False, False), (True, True), (True, False)]


@pytest.mark.parametrize(("status", "failures"), [("400", 0), ("422", 0), ("401", 1), ("404", 1), ("500", 1)])
def test_request_faults_are_not_learned(servers: Any, attach: Attach, status: str, failures: int) -> None:
    """Errors that the request caused are not learned from, and errors of the deployment are."""
    router, strategy = attach(Noting, deployment("g", "one", servers(faults=lambda *_: status)))
    assert isinstance(ask_many(router, 1)[0], Exception)
    told(strategy, failures)
    with pytest.raises(Exception, match=r"."):
        router.completion(model="g", messages=message("cat"))
    assert len(policy(strategy).told) <= 2 * failures


def test_cached_answers_are_not_learned(servers: Any, attach: Attach) -> None:
    """An answer from litellm's cache is not learned from."""
    router, strategy = attach(Noting, deployment("g", "one", servers()))
    learn(router, strategy, 1)
    now = datetime.now(tz=UTC)
    call = {"litellm_params": {"model_info": {"id": "one"}}, "cache_hit": True}
    strategy.log_success_event(call, None, now, now)
    asyncio.run(strategy.async_log_success_event(call, None, now, now))
    told(strategy, 1)
    strategy.log_success_event({**call, "cache_hit": False}, None, now, now - timedelta(seconds=5))
    told(strategy, 2)
    assert policy(strategy).told[-1].latency_seconds == 0.0  # the clock was set back


def test_foreign_calls_are_not_learned(servers: Any, attach: Attach) -> None:
    """A call outside the router is not learned from."""
    server = servers()
    router, strategy = attach(Noting, deployment("g", "one", server))
    ask_many(router, 1)
    litellm.completion(model="openai/m", api_base=server.api_base, api_key="x", messages=message("cat"))
    told(strategy, 1)
    assert counts(strategy) == {"one": 1}
    assert asked(server) == 2


# --- who may be asked is litellm's business -------------------------------------------------------


def test_aliases_and_ids_are_honoured(servers: Any, attach: Attach) -> None:
    """An alias uses its group's strategy, and an id or ``specific_deployment`` is called as named."""
    one, two = servers(), servers()
    router, strategy = attach(
        Noting,
        deployment("g", "first", one),
        deployment("g", "second", two, model="openai/other"),
        model_group_alias={"nickname": "g"},
    )
    ask_many(router, 2, group="nickname")
    ask_many(router, 3, group="second")
    told(strategy, 5)
    assert counts(strategy) == {"first": 2, "second": 3}
    assert list(strategy.standings()) == ["g"]
    ask_many(router, 1, group="openai/other", specific_deployment=True)
    told(strategy, 6)
    assert asked(two) == 4


@pytest.mark.parametrize("built_in", ["usage-based-routing", "latency-based-routing", "least-busy"])
def test_the_router_s_own_strategy_is_replaced(servers: Any, attach: Attach, built_in: str) -> None:
    """The attached strategy replaces the router's own, in async and sync calls."""
    one, two = servers(), servers()
    router, strategy = attach(
        Noting, deployment("g", "a", one), deployment("g", "b", two), routing_strategy=built_in
    )
    ask_many(router, 5)
    ask_in_turn(router, 3)
    told(strategy, 8)
    assert (asked(one), asked(two)) == (8, 0)


def test_order_and_tags_of_litellm_come_first(servers: Any, attach: Attach) -> None:
    """Litellm's order and tags are applied before the strategy chooses."""
    server = servers()
    router, strategy = attach(
        lambda ids: Noting(sorted(ids, reverse=True)),
        deployment("g", "z", server, order=2),
        deployment("g", "a", server, order=1),
        deployment("h", "y", server, tags=["paid"]),
        deployment("h", "b", server, tags=["free"]),
        enable_tag_filtering=True,
    )
    ask_many(router, 2)
    ask_many(router, 2, group="h", metadata={"tags": ["free"]})
    told(strategy, 4, groups=("g", "h"))
    assert counts(strategy) == {"z": 0, "a": 2}
    assert counts(strategy, "h") == {"y": 0, "b": 2}


def test_fallbacks_of_litellm_work(servers: Any, attach: Attach) -> None:
    """A fallback of litellm asks another group, which learns by its own strategy."""
    dead, alive = servers(faults=lambda *_: "500"), servers()
    router, strategy = attach(
        Noting, deployment("g", "dead", dead), deployment("h", "alive", alive), fallbacks=[{"g": ["h"]}]
    )
    (answer,) = ask_many(router, 1)
    assert answer.choices[0].message.content == '{"category": "cat"}'
    told(strategy, 2, groups=("g", "h"))
    assert (counts(strategy), counts(strategy, "h")) == ({"dead": 1}, {"alive": 1})


def test_a_group_may_grow_and_shrink(servers: Any, attach: Attach) -> None:
    """Deployments can be added and removed, and the others keep what was learned."""
    server = servers()
    router, strategy = attach(
        lambda ids: ThompsonRouter(ids, rng=0), deployment("g", "a", server), deployment("g", "b", server)
    )
    learn(router, strategy, 10)
    before = counts(strategy)
    router.add_deployment(litellm.Deployment(**deployment("g", "c", server)))
    router.delete_deployment("b")
    ask_many(router, 5)
    told(strategy, 5 + before["a"])
    found = counts(strategy)
    assert set(found) == {"a", "c"}
    assert found["a"] >= before["a"]


def test_growing_keeps_failures(servers: Any, attach: Attach) -> None:
    """A failed deployment is still probed after its group has grown."""
    now, faults = [0.0], {0: "503"}
    server, other = servers(faults=lambda number, _: faults.get(number)), servers()
    router, strategy = attach(
        Noting, deployment("g", "a", server), disable_cooldowns=True,
        strategy={"retry_seconds": 5.0, "clock": lambda: now[0]},
    )  # fmt: skip
    learn(router, strategy, 1)
    router.add_deployment(litellm.Deployment(**deployment("g", "b", other)))
    router.get_available_deployment("g", messages=message("cat"))
    now[0] = 6.0
    ask_many(router, 1)
    grown = policy(strategy)
    until = time.monotonic() + SECONDS
    while not grown.told and time.monotonic() < until:
        time.sleep(0.01)
    assert [(one.provider, one.recovered) for one in grown.told] == [("a", True)]


def test_removed_deployments_are_forgotten(servers: Any, attach: Attach) -> None:
    """A removed deployment is dropped from the group's failures."""
    server = servers(faults=lambda *_: "503")
    router, strategy = attach(
        Noting, deployment("g", "a", server), deployment("g", "b", server), disable_cooldowns=True,
        strategy={"retry_seconds": 1e-9},
    )  # fmt: skip
    learn(router, strategy, 1)
    router.get_available_deployment("g", messages=message("cat"))  # tries it again
    group = strategy._groups["g"]
    assert (group.failed.keys(), group.tried) == ({"a"}, {"a"})
    router.delete_deployment("a")
    router.add_deployment(litellm.Deployment(**deployment("g", "c", server)))
    router.get_available_deployment("g", messages=message("cat"))
    group = strategy._groups["g"]
    assert (group.failed, group.tried) == ({}, set())


# --- coming and going ----------------------------------------------------------------------------


def test_closing_restores_the_router(servers: Any, attach: Attach) -> None:
    """`close` removes all callbacks, and later calls are not learned from."""
    server = servers()
    router, strategy = attach(Noting, deployment("g", "one", server))
    learn(router, strategy, 1)
    noting = policy(strategy)
    strategy.close()
    strategy.close()
    kinds = ("success_callback", "failure_callback", "_async_success_callback", "_async_failure_callback")
    for name in ("callbacks", *kinds):
        assert strategy not in getattr(litellm, name)
    assert "async_get_available_deployment" not in vars(router)
    ask_many(router, 2)
    router.completion(model="g", messages=message("cat"))
    assert asked(server) == 4
    assert len(noting.told) == 1
    assert strategy.standings() == {}


def test_two_routers_learn_apart(servers: Any, attach: Attach) -> None:
    """Two routers learn only from their own calls."""
    first, one = attach(Noting, deployment("g", "one", servers()))
    second, two = attach(Noting, deployment("g", "two", servers()))
    ask_many(first, 3)
    ask_many(second, 2)
    told(one, 3)
    told(two, 2)
    assert (counts(one), counts(two)) == ({"one": 3}, {"two": 2})


def test_a_strategy_moves_with_its_state(servers: Any, attach: Attach) -> None:
    """A strategy can be attached twice or to another router, and keeps what was learned."""
    server = servers()
    first, strategy = attach(Noting, deployment("g", "one", server))
    ask_many(first, 1)
    told(strategy, 1)
    strategy.attach(first)
    second = litellm.Router(model_list=[deployment("g", "one", server)], num_retries=0)
    strategy.attach(second)
    assert "async_get_available_deployment" not in vars(first)
    ask_many(second, 1)
    told(strategy, 2)
    second.discard()


def test_the_proxy_attaches_at_the_first_request(
    servers: Any, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a proxy the strategy attaches itself to the proxy's router at the first request."""
    router, other = attach(Noting, deployment("g", "one", servers()))
    other.close()
    strategy = LiteLLMRoutingStrategy(Noting)
    proxy = types.ModuleType("litellm.proxy.proxy_server")
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", proxy)
    data = {"model": "g"}
    for value in (None, router, router):
        proxy.llm_router = value  # type: ignore[attr-defined]
        assert asyncio.run(strategy.async_pre_call_hook(None, None, data, "completion")) is data
    assert "async_pre_call_hook" in vars(LiteLLMRoutingStrategy)  # which is where the proxy looks for it
    learn(router, strategy, 2)
    strategy.close()


def test_an_unattached_strategy_is_refused() -> None:
    """A strategy without a router, or attached to another object, raises ConfigurationError."""
    left = LiteLLMRoutingStrategy(Noting)
    with pytest.raises(ConfigurationError, match=r"call attach\(router\)"):
        left.get_available_deployment("g")
    healthy = [{"model_name": "g", "model_info": {"id": "a"}}]
    with pytest.raises(ConfigurationError, match=r"call attach\(router\)"):
        left.get_available_deployments(model_group="g", healthy_deployments=healthy)
    assert left.standings() == {}
    with pytest.raises(ConfigurationError, match=r"Expected a litellm\.Router, got object without"):
        LiteLLMRoutingStrategy(Noting).attach(object())
    for seconds in (0.0, float("nan"), float("inf")):
        with pytest.raises(ConfigurationError, match="retry_seconds"):
            LiteLLMRoutingStrategy(Noting, retry_seconds=seconds)


def test_an_unusable_state_is_refused(tmp_path: Path) -> None:
    """A state that cannot be used raises ConfigurationError; a usable one writes no file at first."""
    with pytest.raises(ConfigurationError, match="driver"):
        LiteLLMRoutingStrategy(Noting, state="nosuch://host/name")
    LiteLLMRoutingStrategy(Noting, state=tmp_path / "learnt.json").close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("messages", "given", "text"),
    [
        ([{"role": "user", "content": "first"}, {"role": "user", "content": "last"}], None, "last"),
        ([{"role": "user", "content": "asked"}, {"role": "assistant", "content": "said"}], None, "asked"),
        ([{"role": "user", "content": [{"text": "a"}, {"image_url": "x"}, "b"]}], None, "a\nb"),
        (None, "input", "input"),
        (None, ["one", "two"], "one\ntwo"),
        (None, [1, 2], None),
        ([{"role": "system", "content": "only"}], None, None),
        ([{"role": "user", "content": " "}], None, None),
        ([{"role": "user", "content": "redacted-by-litellm"}], None, None),
        ([{"role": "user"}], None, None),
        ("text", None, None),
    ],
)
def test_the_text_of_a_request(messages: object, given: object, text: str | None) -> None:
    """The text of a request is its last user message or its input, and None if redacted."""
    assert _text_of(messages, given) == text


def test_the_package_does_not_load_litellm() -> None:
    """Importing `calibrant.adapters` does not import litellm."""
    code = "import sys, calibrant.adapters; assert 'litellm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)  # noqa: S603
