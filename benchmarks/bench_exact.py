"""Exact scoring: how close a pruned walk comes to the full one, and how fast it is.

    python benchmarks/bench_exact.py --data DIR_WITH_JSONL [--curve-rows 60] [--rows 60] [--only curve|speed]

The curve: every row's label trie is walked without pruning (to 1e-4 of the mass of the labels),
serially on one slot, and what the model
said at every node is kept. Pruned walks are then replayed on it, so that both see the same numbers.
Printed by tolerance: nodes a row, mean and largest total variation, arg-max agreement, mean bound.

The speed: prefill alone (the same prompts, one token, no log-probabilities), exact scoring and
constrained decoding take turns on rows that none of them saw before, in one run, on one engine
whose cache of finished prompts is off.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from calibrant import Classifier, LabelSet, Task
from calibrant.clients import LlamaCppClient, constraint_for
from calibrant.core import CompletionRequest, NextTokens, read_examples
from calibrant.inference import Query
from calibrant.logprobs import LabelTrie, LabelWalk, enum_schema

TRANSACTIONS = Path(__file__).parent.parent / "examples" / "transactions" / "task.toml"
PROMPTS = {
    "ag_news": "Classify the following news text.",
    "sms_spam": "Is the following text message spam?",
    "banking77": "Classify the following question of a bank's customer.",
}
# A node with less than this share of the label mass is nothing: the letters of a label can all be
# written as escapes, each of which is a node of its own that no model ever goes to.
NOTHING = 1e-4
ROUND = 20  # rows a side gets at a time
WARM = 8
TOLERANCES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


class Data:
    """One task's labels, prompt and texts."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name = name
        if name == "transactions":
            task = Task.from_file(TRANSACTIONS)
            self.labels, self.prompt = task.labels, task.prompt
            self.texts = [e.input for e in (*task.test, *task.validation, *task.train)]
            return
        path = None if folder is None else folder / f"{name}.jsonl"
        if path is None or not path.is_file():
            sys.exit(f"{name}: no file {path}: pass --data DIR.")
        rows = [example for example, _ in read_examples(path)]
        self.labels = LabelSet(sorted({e.answer for e in rows}))
        # A prompt that shows the form of the answer: the model then means to write a label.
        self.prompt = (
            f"{PROMPTS[name]} The category is one of: {', '.join(self.labels)}. "
            f'Answer with JSON such as {{"category": "{self.labels.labels[0]}"}}.'
        )
        self.texts = [e.input for e in reversed(rows)]


def request_for(data: Data, text: str) -> CompletionRequest:
    """Return a row's request."""
    return CompletionRequest(messages=Query(prompt=data.prompt, text=text).messages(), top_logprobs=0)


async def full_walk(client: LlamaCppClient, data: Data, text: str, trie: LabelTrie) -> dict[str, NextTokens]:
    """Return what the model said at every node of a row's label trie."""
    constraint = constraint_for(enum_schema(data.labels, "category"))
    assert constraint is not None  # noqa: S101 (one enum)
    walk = LabelWalk(data.labels, tolerance=NOTHING, trie=trie)
    heard = {}
    async with client.continuing(request_for(data, text)) as row:
        last = ""
        while texts := walk.pending(after=last):
            last = texts[0]
            heard[last] = await row.next_tokens(constraint.prefix + last)
            walk.visit(last, heard[last].top)
    return heard


def replay(data: Data, heard: dict[str, NextTokens], tolerance: float, trie: LabelTrie) -> LabelWalk:
    """Walk with pruning on what was heard."""
    walk, last = LabelWalk(data.labels, tolerance=tolerance, trie=trie), ""
    while texts := walk.pending(after=last):
        last = texts[0]
        walk.visit(last, heard[last].top)
    return walk


def curve(client: LlamaCppClient, data: Data, rows: int) -> None:
    """Print how the error falls with the nodes visited."""
    trie = LabelTrie(data.labels.labels)
    heard = [asyncio.run(full_walk(client, data, text, trie)) for text in data.texts[:rows]]
    full = [replay(data, h, NOTHING, trie) for h in heard]
    mass = statistics.mean(w.distribution().label_mass for w in full)
    print(
        f"\n{data.name}: {rows} rows, {len(data.labels)} labels, {statistics.mean(w.nodes for w in full):.0f} nodes "
        f"a row unpruned, label mass {mass:.3f}"
    )
    print(
        f"{'tolerance':>9} {'nodes':>6} {'mean TV':>8} {'max TV':>7} {'same arg max':>13} {'mean bound':>11}"
    )
    for tolerance in TOLERANCES:
        walks = [replay(data, h, tolerance, trie) for h in heard]
        pairs = [(w.distribution(), f.distribution()) for w, f in zip(walks, full, strict=True)]
        variations = [0.5 * np.abs(w.probabilities - f.probabilities).sum() for w, f in pairs]
        same = statistics.mean(w.emitted == f.emitted for w, f in pairs)
        bound = statistics.mean(w.error_bound or 0.0 for w, _ in pairs)
        print(
            f"{tolerance:9.3f} {statistics.mean(w.nodes for w in walks):6.1f} {np.mean(variations):8.4f} "
            f"{np.max(variations):7.3f} {same:13.3f} {bound:11.3f}",
            flush=True,
        )


async def call(client: LlamaCppClient, data: Data, text: str, *, whole: bool) -> None:
    """Decode a row's whole JSON under its schema, or compute its prompt and one token."""
    response_format = enum_schema(data.labels, "category")
    constraint = constraint_for(response_format)
    assert constraint is not None  # noqa: S101 (one enum)
    messages = request_for(data, text).messages
    if whole:
        asked = CompletionRequest(
            messages=messages, top_logprobs=5, options={"response_format": response_format}
        )
    else:
        beginning = {"role": "assistant", "content": constraint.prefix}
        asked = CompletionRequest(messages=(*messages, beginning), top_logprobs=0, options={"max_tokens": 1})
    await client.complete(asked)


def speed(client: LlamaCppClient, data: Data, rows: int) -> None:
    """Print rows per second of prefill alone, exact scoring and constrained decoding, in turns."""

    def classifier(**options: object) -> Classifier:
        return Classifier(
            model=client,
            labels=data.labels,
            field="category",
            prompt=data.prompt,
            **options,  # type: ignore[arg-type]
        )

    sides: dict[str, Callable[[str], Awaitable[object]]] = {
        "prefill": lambda text: call(client, data, text, whole=False),
        "exact, root only": classifier(scoring="exact", tolerance=1.0).aclassify,
        "exact": classifier(scoring="exact").aclassify,
        'tolerance="exact"': classifier(scoring="exact", tolerance="exact").aclassify,
        "constrained decoding": lambda text: call(client, data, text, whole=True),
        'scoring="decode"': classifier(scoring="decode").aclassify,
    }
    rounds = max(1, min(rows, len(data.texts) // len(sides)) // ROUND)
    seconds = dict.fromkeys(sides, 0.0)
    calls: dict[str, list[int]] = {name: [] for name in sides}
    fresh = iter(data.texts)

    async def run() -> None:
        for side in sides.values():  # the engine, the prompt and the grammar are loaded
            await asyncio.gather(*(side(f"warm up {slot}") for slot in range(WARM)))
        for _ in range(rounds):
            for name, side in sides.items():
                texts = list(itertools.islice(fresh, ROUND))
                start = time.perf_counter()
                found = await asyncio.gather(*(side(text) for text in texts))
                seconds[name] += time.perf_counter() - start
                calls[name] += [getattr(prediction, "attempts", 1) for prediction in found]

    asyncio.run(run())
    report(data, {name: len(calls[name]) / seconds[name] for name in sides}, calls)


def report(data: Data, rate: dict[str, float], calls: dict[str, list[int]]) -> None:
    """Print the table of one task."""
    peer = rate["constrained decoding"]
    print(f"\n{data.name}: {len(calls['prefill'])} fresh rows a side")
    print(f"{'':20} {'rows/s':>7} {'calls a row':>12} {'/ prefill':>10} {'/ decoding':>11}")
    for name, value in rate.items():
        print(
            f"{name:20} {value:7.2f} {statistics.mean(calls[name]):12.2f} {value / rate['prefill']:10.3f} "
            f"{value / peer:11.2f}",
            flush=True,
        )
    few, many = "exact, root only", 'tolerance="exact"'
    more = statistics.mean(calls[many]) - statistics.mean(calls[few])
    if more > 0:
        extra = (1 / rate[many] - 1 / rate[few]) / more
        print(f"a further node: {1000 * extra:.1f} ms, {100 * extra * rate[few]:.1f} % of a row")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--curve-rows", type=int, default=60)
    parser.add_argument("--only", choices=["curve", "speed"])
    parser.add_argument("--tasks", nargs="+")
    parser.add_argument("--parallel", type=int, default=1)
    options = parser.parse_args()
    client = LlamaCppClient.local(n_parallel=options.parallel)
    if options.only != "speed":
        for name in options.tasks or ("ag_news", "transactions", "banking77"):
            rows = options.curve_rows // 2 if name == "banking77" else options.curve_rows
            curve(client, Data(name, options.data), rows)
    if options.only != "curve":
        for name in options.tasks or ("ag_news", "sms_spam", "banking77"):
            speed(client, Data(name, options.data), options.rows)


if __name__ == "__main__":
    main()
