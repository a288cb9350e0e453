"""calibrant's ConfidenceAdapter beside gepa's, on the embedded model: same rows, budget, seeds and proposer.

Both answer through the same embedded engine. gepa's adapter cannot reach it by name, so it gets a
callable; it is handed the same proposal function, which it does not tell of its evaluations. The budget
is GEPA's count of metric calls for both. Prints the test accuracy of each best prompt, and the time.

    python benchmarks/bench_adapter.py [--budget 120] [--validation-rows 24] [--test-rows 72]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import gepa
import numpy as np
from gepa.adapters.confidence_adapter import ConfidenceAdapter as ReferenceAdapter

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import CompletionRequest, Example, Task
from calibrant.inference import Classifier
from calibrant.inference._base import run_sync
from calibrant.logprobs._fields import enum_schema
from calibrant.metrics import paired_mean_interval
from calibrant.optimization import ExemplarProposer

TASK = Path(__file__).parent.parent / "examples" / "transactions" / "task.toml"
SEEDS = (0, 1, 2)


class Silent:
    """A logger that drops what it is told."""

    def log(self, message: object) -> None:
        """Drop `message`."""


def rows(examples: tuple[Example, ...]) -> list[dict[str, Any]]:
    """Return examples as GEPA's data rows."""
    return [
        {"input": e.input, "answer": e.answer, "additional_context": dict(e.additional_context)}
        for e in examples
    ]


def main() -> None:
    """Run both adapters and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=120)
    parser.add_argument("--validation-rows", type=int, default=24)
    parser.add_argument("--test-rows", type=int, default=72)
    options = parser.parse_args()
    task = Task.from_file(TASK)
    test = task.test[: options.test_rows]
    classifier = Classifier.from_task(task)
    schema = enum_schema(task.labels, task.field)

    def model(messages: list[dict[str, str]]) -> object:
        request = CompletionRequest(messages=tuple(messages), response_format=schema, top_logprobs=5)
        return run_sync(classifier.client.complete(request))

    def search(adapter: Any, proposer: ExemplarProposer, seed: int) -> str:
        found = gepa.optimize(
            seed_candidate={"system_prompt": task.prompt},
            trainset=rows(task.train),
            valset=rows(task.validation[: options.validation_rows]),
            adapter=adapter,
            custom_candidate_proposer=None if adapter.propose_new_texts is not None else proposer,
            reflection_minibatch_size=8,
            max_metric_calls=options.budget,
            logger=Silent(),
            seed=seed,
        )
        return found.best_candidate["system_prompt"]

    def accuracy(prompt: str) -> np.ndarray:
        predictions = classifier.with_prompt(prompt).classify_many([e.input for e in test])
        return np.array([p.label == e.answer for p, e in zip(predictions, test, strict=True)], float)

    base = accuracy(task.prompt)
    print(f"seed prompt: {base.mean():.3f} of {len(base)} test rows", flush=True)
    differences = []
    for seed in SEEDS:
        right = {}
        for name in ("calibrant", "gepa"):
            proposer = ExemplarProposer(train=task.train, seed=seed, field=task.field)
            adapter: Any = (
                ConfidenceAdapter(
                    classifier.client, task.field, schema, proposer=proposer, scoring=task.model.scoring
                )
                if name == "calibrant"
                else ReferenceAdapter(model, task.field, schema, schema["json_schema"]["schema"])
            )
            start = time.perf_counter()
            prompt = search(adapter, proposer, seed)
            seconds = time.perf_counter() - start
            right[name] = accuracy(prompt)
            print(
                f"seed {seed}, {name:9}: {right[name].mean():.3f} test accuracy, search {seconds:.0f} s",
                flush=True,
            )
        differences.append(right["calibrant"] - right["gepa"])
    interval = paired_mean_interval(np.mean(differences, axis=0))
    print(
        f"calibrant minus gepa, mean of seeds: {interval.estimate:+.3f}, 95 % interval {interval.lower:+.3f} "
        f"to {interval.upper:+.3f}"
    )


if __name__ == "__main__":
    main()
