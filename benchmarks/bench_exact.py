"""Exact scoring on the embedded model: how exact, and how fast beside the version before.

    python benchmarks/bench_exact.py --data DIR_WITH_JSONL [--peer PYTHON] [--rows 40] [--only PART ...]

Parts:

accuracy  total variation between the default and the product of the probabilities of every token of every label, and
          whether the arg max is the same.
speed     rows per second of exact scoring, of the first token alone (``tolerance=1``), and, with ``--peer``, of exact
          scoring and constrained decoding by another version of calibrant, whose Python is given. Sides are processes
          of their own and take turns, block by block, on the same rows, of which each sees every one once.
curve     banking77: rows per second against total variation, by tolerance.
labels    rows per second with 10, 77 and 500 made-up labels.
prompt    a prompt of 600 tokens shared by all rows beside a bare one.
batches   total variation between rows computed one at a time and 16 at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _data import available
from numpy.typing import NDArray

from calibrant.core import CompletionRequest, Query, Task, read_examples
from calibrant.inference import Classifier

MODEL = "local/smollm2-135m"
TRANSACTIONS = Path(__file__).parent.parent / "examples" / "transactions" / "task.toml"
TASKS = ("ag_news", "sms_spam", "emotion", "transactions", "banking77")
PARTS = ("accuracy", "speed", "curve", "labels", "prompt", "batches")
BLOCK = 5


class Data:
    """One task's labels and texts, under the one prompt of this benchmark."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name = name
        if name == "transactions":
            task = Task.from_file(TRANSACTIONS)
            self.labels = list(task.labels)
            self.texts = [e.input for e in (*task.test, *task.validation, *task.train)]
        else:
            rows = [example for example, _ in read_examples((folder or Path()) / f"{name}.jsonl")]
            self.labels = sorted({e.answer for e in rows})
            self.texts = [e.input for e in reversed(rows)]
        self.prompt = prompt_for(self.labels)


def prompt_for(labels: Sequence[str]) -> str:
    """Return the prompt."""
    return (
        f"Classify the text into exactly one of: {', '.join(labels)}. Answer as JSON with the key category."
    )


def classifier(labels: Sequence[str], *, prompt: str | None = None, **options: Any) -> Classifier:
    """Return a classifier on the embedded model."""
    return Classifier(
        model=options.pop("model", MODEL),
        labels=labels,
        field="category",
        prompt=prompt or prompt_for(labels),
        **options,
    )


# --- sides of the speed, in processes of their own ----------------------------------------------


def work() -> None:
    """Classify the blocks that come in, and tell how long each took."""
    opened: dict[str, Classifier] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        key = json.dumps([asked["labels"], asked["options"]])
        if key not in opened:
            opened[key] = classifier(asked["labels"], **asked["options"])
            opened[key].classify_many(["a warm-up", "another one"])
        start = time.perf_counter()
        opened[key].classify_many(asked["texts"])
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "mib": peak}), flush=True)


class Side:
    """A version of calibrant and the options it is run with."""

    def __init__(self, process: subprocess.Popen[str], **options: Any) -> None:
        self._process = process
        self._options = options
        self.rates: list[float] = []
        self.mib = 0.0

    def run(self, labels: Sequence[str], texts: Sequence[str]) -> None:
        """Classify a block."""
        asked = {"labels": list(labels), "texts": list(texts), "options": self._options}
        assert self._process.stdin is not None  # noqa: S101 (piped)
        assert self._process.stdout is not None  # noqa: S101
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        self.rates.append(len(texts) / answer["seconds"])
        self.mib = answer["mib"]

    @property
    def rate(self) -> float:
        """Rows per second, over all blocks."""
        return statistics.harmonic_mean(self.rates)

    def end(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.close()


@contextmanager
def worker(python: str) -> Iterator[subprocess.Popen[str]]:
    """Start a side's process."""
    command = [python, __file__, "--worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def speed(data: Data, rows: int, peer: str | None) -> None:
    """Print rows per second of all sides, each a process of its own, on the same rows."""
    options: dict[str, tuple[str, dict[str, Any]]] = {
        "exact": (sys.executable, {"scoring": "exact"}),
        "first token": (sys.executable, {"scoring": "exact", "tolerance": 1.0}),
    }
    if peer is not None:
        options["exact before"] = (peer, {"scoring": "exact"})
        options["decoding before"] = (peer, {"scoring": "decode"})
    with ExitStack() as stack:
        sides = {
            name: Side(stack.enter_context(worker(python)), **settings)
            for name, (python, settings) in options.items()
        }
        for start in range(0, rows, BLOCK):
            for side in sides.values():
                side.run(data.labels, data.texts[start : start + BLOCK])
        exact = sides["exact"].rate
        for name, side in sides.items():
            spread = f"{min(side.rates):.2f} to {max(side.rates):.2f}"
            print(
                f"{data.name:13} {name:16} {side.rate:6.2f} rows/s ({spread}), exact / this {exact / side.rate:5.2f}, "
                f"peak {side.mib:.0f} MiB",
                flush=True,
            )
            side.end()


# --- accuracy -----------------------------------------------------------------------------------


async def every_token(asked: Classifier, labels: Sequence[str], text: str) -> NDArray[np.float64]:
    """Return the probability of each label as the tokeniser writes it, closing quote included, normalised."""
    prefix = '{"category": "'
    request = CompletionRequest(
        messages=Query(prompt=prompt_for(labels), text=text).messages(), top_logprobs=0
    )
    async with asked.client.continuing(request) as row:  # type: ignore[attr-defined]
        written = [row.tokens(prefix + label + '"') for label in labels]
        begun = len(row.tokens(prefix))
        nodes = sorted({tokens[:end] for tokens in written for end in range(begun, len(tokens))})
        found = dict(zip(nodes, await row.next_logprobs(nodes), strict=True))
        pieces = row.vocabulary.pieces
    behind = {b"", *(bytes([byte]) for byte in b" \t\r\n,}]")}  # what may follow the closing quote
    closing = np.array([t for t, piece in enumerate(pieces) if piece[:1] == b'"' and piece[1:2] in behind])
    logs = []
    for tokens in written:
        inner = sum(
            float(found[tokens[:end]].at(np.array([tokens[end]]))[0]) for end in range(begun, len(tokens) - 1)
        )
        logs.append(inner + math.log(np.exp(found[tokens[:-1]].at(closing)).sum()))
    weights = np.exp(np.array(logs) - max(logs))
    result: NDArray[np.float64] = weights / weights.sum()
    return result


def variation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the total variation."""
    return float(0.5 * np.abs(one - other).sum())


def probabilities(found: Sequence[Any]) -> list[NDArray[np.float64]]:
    """Return the distributions of predictions."""
    return [prediction.distribution.probabilities for prediction in found]


def accuracy(data: Data, rows: int) -> None:
    """Print how far the default is from scoring every token of every label."""
    texts = data.texts[:rows]
    with classifier(data.labels) as asked:
        found = asked.classify_many(texts)
        truth = [asyncio.run(every_token(asked, data.labels, text)) for text in texts]
    compare(data.name, probabilities(found), truth, [p.distribution.error_bound for p in found])


def compare(
    title: str,
    found: Sequence[NDArray[np.float64]],
    truth: Sequence[NDArray[np.float64]],
    bounds: Sequence[float] = (),
) -> None:
    """Print a line."""
    off = [variation(one, other) for one, other in zip(found, truth, strict=True)]
    same = np.mean([one.argmax() == other.argmax() for one, other in zip(found, truth, strict=True)])
    bound = f", mean bound {np.mean(bounds):.4f}" if len(bounds) else ""
    print(
        f"{title:24} {len(off)} rows: total variation mean {np.mean(off):.4f}, largest {max(off):.4f}, same arg max "
        f"{same:.3f}{bound}",
        flush=True,
    )


def timed(asked: Classifier, texts: Sequence[str]) -> tuple[list[Any], float]:
    """Return predictions and rows per second."""
    asked.classify("a warm-up")
    start = time.perf_counter()
    found = asked.classify_many(texts)
    return found, len(texts) / (time.perf_counter() - start)


def curve(data: Data, rows: int) -> None:
    """Print rows per second and total variation by tolerance."""
    texts = data.texts[:rows]
    with classifier(data.labels) as asked:
        truth = [asyncio.run(every_token(asked, data.labels, text)) for text in texts]
    for tolerance in (0.02, 0.05, 0.08, 0.15, 0.3, 0.5):
        with classifier(data.labels, tolerance=tolerance) as asked:
            found, rate = timed(asked, texts)
        compare(f"{tolerance:5.3f} {rate:6.2f} rows/s", probabilities(found), truth)


def growth(data: Data, rows: int) -> None:
    """Print rows per second by the number of labels."""
    for count in (10, 77, 500):
        labels = [f"{('news', 'sport', 'money', 'science', 'travel')[i % 5]} group {i}" for i in range(count)]
        with classifier(labels, prompt="Which group does the text belong to?") as asked:
            _, rate = timed(asked, data.texts[:rows])
        print(f"{count:4} labels {rate:6.2f} rows/s", flush=True)


def shared_prompt(data: Data, rows: int) -> None:
    """Print what a long prompt costs that all rows share."""
    shown = " ".join(f"Text: {text[:80]}" for text in data.texts[-40:])
    rates = {}
    for name, extra in (("bare", ""), ("600 tokens more", f"\n{shown[:2400]}")):
        with classifier(data.labels, prompt=data.prompt + extra) as asked:
            rates[name] = timed(asked, data.texts[:rows])[1]
        print(f"{name:16} {rates[name]:6.2f} rows/s", flush=True)
    print(f"time a row, long / bare: {rates['bare'] / rates['600 tokens more']:.2f}")


def batches(data: Data, rows: int) -> None:
    """Print what rounding does where rows are computed together."""
    found = {}
    for parallel in (1, 16):
        with classifier(data.labels, options={"n_parallel": parallel, "n_ctx": 1024}) as asked:
            predictions, rate = timed(asked, data.texts[:rows])
            found[parallel] = probabilities(predictions)
        print(f"{data.name:13} {parallel:2} rows at a time: {rate:6.2f} rows/s", flush=True)
    compare(f"{data.name}, 16 against 1", found[16], found[1])


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--peer", help="the Python of an environment with another version of calibrant")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    names = available(options.data, options.tasks, without_file=["transactions"])
    tasks = [Data(name, options.data) for name in names]
    many = [data for data in tasks if data.name == "banking77"]
    few = [data for data in tasks if data.name != "banking77"]
    for part in options.only:
        print(f"\n{part}", flush=True)
        for data in {"curve": many, "labels": few[:1], "prompt": few[:1]}.get(part, tasks):
            if part == "speed":
                speed(data, options.rows, options.peer)
            else:
                {
                    "accuracy": accuracy,
                    "curve": curve,
                    "labels": growth,
                    "prompt": shared_prompt,
                    "batches": batches,
                }[part](data, options.rows)


if __name__ == "__main__":
    main()
