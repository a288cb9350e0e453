"""What a routed client adds to a call, beside the bare client.

    python benchmarks/bench_routed_client.py [--calls 3000]

Five providers that answer at once, one call after the other; medians in microseconds. Reading the answer (five
alternatives per token) is part of it, as a broken one is to count as a failure; under `bandit` so are a remembered
embedding of 64 numbers and the heuristic that grades the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import median

from calibrant.core import Client, CompletionRequest, LogprobSpace
from calibrant.inference import CachedEmbedder, Provider, RoutedClient
from calibrant.inference._embeddings import HashingEmbedder
from calibrant.routing import BanditRouter, CascadeRouter, EMARouter, FixedRouter, Router, ThompsonRouter
from calibrant.testing import fake_response

NAMES = ("a", "b", "c", "d", "e")
REQUEST = CompletionRequest(
    messages=(
        {"role": "system", "content": "Which animal is it? " * 20},
        {"role": "user", "content": "It purrs. " * 20},
    )
)
MOST_MICROSECONDS = 500.0


class Instant:
    """A client that answers at once."""

    name = "instant"
    space = LogprobSpace.MASKED
    answer = fake_response("cat", ["cat", "dog"], {"cat": 0.9, "dog": 0.1})

    async def complete(self, _request: CompletionRequest) -> object:
        """Return the one answer."""
        return self.answer

    def close(self) -> None:
        """Nothing to free."""


def microseconds(client: Client, calls: int) -> float:
    """Return the median duration of a call."""

    async def run() -> list[float]:
        taken = []
        for _ in range(calls + 200):  # the first ones warm up
            start = time.perf_counter()
            await client.complete(REQUEST)
            taken.append(time.perf_counter() - start)
        return taken[200:]

    return 1e6 * median(asyncio.run(run()))


def main() -> int:
    """Print the medians; return 1 where one is above the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3000)
    calls = parser.parse_args().calls
    bare = microseconds(Instant(), calls)
    print(f"bare client {bare:.2f} us")
    routers: tuple[Router, ...] = (
        FixedRouter(NAMES),
        EMARouter(NAMES),
        ThompsonRouter(NAMES, rng=0),
        CascadeRouter(NAMES),
        BanditRouter(NAMES),
    )
    worst = 0.0
    for router in routers:
        embedder = CachedEmbedder(HashingEmbedder()) if router.strategy == "bandit" else None
        providers = [Provider(name, Instant(), concurrency=4) for name in NAMES]
        client = RoutedClient(providers, router=router, embedder=embedder)
        added = microseconds(client, calls) - bare
        client.close()
        worst = max(worst, added)
        print(f"{router.strategy:8} + {added:6.1f} us")
    return int(worst > MOST_MICROSECONDS)


if __name__ == "__main__":
    raise SystemExit(main())
