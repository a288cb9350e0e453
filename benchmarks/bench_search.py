"""Does the search help on rows it never saw? Three tasks, seeds fixed beforehand, one embedded model.

Prints, per task and seed, the test accuracy of the seed and the best prompt, then the pooled paired
difference: differences are averaged over seeds per row first, because the rows are the same, and
pooled over tasks as strata. The shared tasks are cut to their first 60 validation and 150 test rows,
which the embedded model gets through in minutes; answers are decoded. A finished run is read back from
its directory instead of repeated.

    python benchmarks/bench_search.py --data DIR_WITH_JSONL [--out runs/bench-search]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from _data import available

from calibrant.core import Client, CompletionRequest, Interval, LabelSet, Task, read_examples
from calibrant.core._settings import ModelSettings
from calibrant.inference import open_client
from calibrant.metrics import paired_mean_interval
from calibrant.optimization import optimize

EXAMPLES = Path(__file__).parent.parent / "examples"
SEEDS = (0, 1, 2)
VALIDATION_ROWS = 60
TEST_ROWS = 150
BUDGETS = {"transactions": 450, "ag_news": 300, "rotten_tomatoes": 300}
PROMPTS = {
    "ag_news": "Classify the following news text.",
    "rotten_tomatoes": "Classify the following movie review.",
}


def load_tasks(data: Path | None, *, shared: bool) -> list[Task]:
    """Return the example task and, where the data is, the shared ones."""
    tasks = [Task.from_file(EXAMPLES / "transactions" / "task.toml")]
    for name in (
        available(data, ["transactions", *PROMPTS], without_file=["transactions"])[1:] if shared else ()
    ):
        prompt, path = PROMPTS[name], (data or Path()) / f"{name}.jsonl"
        rows = {
            split: [e for e, _ in read_examples(path, split=split)]
            for split in ("train", "validation", "test")
        }
        tasks.append(
            Task(
                name=name,
                labels=LabelSet(sorted({example.answer for example in rows["train"]})),
                prompt=prompt,
                field="category",
                train=tuple(rows["train"]),
                validation=tuple(rows["validation"][:VALIDATION_ROWS]),
                test=tuple(rows["test"][:TEST_ROWS]),
                model=ModelSettings(),
            )
        )
    return tasks


class Remembering:
    """A client that answers the same request once: the seed prompt's test rows are asked for every seed."""

    def __init__(self, client: Client) -> None:
        self.name, self.space = client.name, client.space
        self._client = client
        self._known: dict[str, object] = {}

    async def complete(self, request: CompletionRequest) -> object:
        """Return what the client answers, or has answered."""
        key = repr(request)
        if key not in self._known:
            self._known[key] = await self._client.complete(request)
        return self._known[key]

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def run(task: Task, client: Client, seed: int, options: argparse.Namespace) -> np.ndarray:
    """Return best minus seed correctness on the test rows, shape (n,)."""
    directory = options.out / f"{task.name}-{seed}"
    if not (directory / "result.json").exists():
        optimize(task, model=client, max_metric_calls=BUDGETS[task.name], seed=seed, out=directory)
    result = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    first, best = (result[name]["accuracy"]["estimate"] for name in ("seed_prompt", "best_prompt"))
    interval = result["comparison"]["interval"]
    print(
        f"{task.name:16} seed {seed}: {first:.3f} -> {best:.3f}  ({best - first:+.3f}, 95 % interval "
        f"{interval['lower']:+.3f} to {interval['upper']:+.3f}), {result['accepted']} of {result['proposals']} "
        f"proposals accepted, {result['metric_calls']} calls",
        flush=True,
    )
    rows = [
        json.loads(line)
        for line in (directory / "predictions.jsonl").read_text(encoding="utf-8").split("\n")
        if line
    ]
    correct = {
        name: np.array([row["correct"] for row in rows if row["prompt"] == name], float)
        for name in ("seed", "best")
    }
    return correct["best"] - correct["seed"]


def show(interval: Interval) -> str:
    """Return an interval as text."""
    return f"{interval.estimate:+.3f}, 95 % interval {interval.lower:+.3f} to {interval.upper:+.3f}"


def main() -> None:
    """Run the tasks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=None, help="folder with ag_news.jsonl and rotten_tomatoes.jsonl"
    )
    parser.add_argument("--only-example", action="store_true", help="leave the shared tasks out")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-search"))
    options = parser.parse_args()
    differences, groups = [], []
    client = Remembering(open_client("local/smollm2-135m"))
    for task in load_tasks(options.data, shared=not options.only_example):
        own = np.mean([run(task, client, seed, options) for seed in SEEDS], axis=0)
        differences.append(own)
        groups += [task.name] * len(own)
        interval = paired_mean_interval(own)
        print(f"{task.name:16} mean of seeds: {show(interval)}")
    pooled = paired_mean_interval(np.concatenate(differences), groups)
    print(f"pooled over {len(groups)} rows: {show(pooled)}")


if __name__ == "__main__":
    main()
