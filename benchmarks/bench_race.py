"""Does the race between prompts fool itself? Recorded answers of GPT-4.1-mini, no call.

    python benchmarks/bench_race.py --recorded DIR_WITH_CSV [--runs 1000]

Three tasks were answered under three prompts each (baseline, default, confidence), with the probability of the
predicted label. Each run draws 400 validation rows anew, makes one prompt the seed and the others its challengers, in
every role in turn, and judges the prompt that the race ends with on the rows outside the draw. The distribution is
rebuilt as p on the predicted label and the rest even, at least 1e-6. Beside it the calls and choices of gepa's default:
a minibatch of 3 rows under both prompts, then all validation rows of what scores more there, the mean score decides.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _data import available
from numpy.typing import NDArray

from calibrant.core import LabelSet
from calibrant.optimization._choice import CandidateStanding, race, standing
from calibrant.scoring import LinearBlendScoring

TASKS = ("ag_news", "emotion", "rotten_tomatoes")
PROMPTS = ("baseline", "default", "confidence")
ROWS = 400
MINIBATCH = 3


@dataclass(frozen=True)
class Recorded:
    """Answers of one task: log-probabilities (n, L) and correctness (n,) by prompt, true labels (n,)."""

    labels: LabelSet
    answers: NDArray[np.intp]
    logprobs: dict[str, NDArray[np.float64]]
    right: dict[str, NDArray[np.bool_]]
    scores: dict[str, NDArray[np.float64]]


def read(path: Path) -> Recorded:
    """Read one task."""
    with path.open(newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    labels = sorted({record["expected"] for record in records} | {record["predicted"] for record in records})
    rows = sorted({int(record["row"]) for record in records})
    place = {row: index for index, row in enumerate(rows)}
    shape = len(rows), len(labels)
    answers = np.zeros(len(rows), dtype=np.intp)
    probability = {prompt: np.zeros(shape) for prompt in PROMPTS}
    for record in records:
        index, p = place[int(record["row"])], float(record["probability"])
        answers[index] = labels.index(record["expected"])
        found = np.full(len(labels), (1.0 - p) / (len(labels) - 1))
        found[labels.index(record["predicted"])] = p
        probability[record["prompt"]][index] = np.maximum(found, 1e-6)
    right = {prompt: found.argmax(axis=1) == answers for prompt, found in probability.items()}
    blend = LinearBlendScoring()
    scores = {
        prompt: np.array(
            [
                blend.score(bool(is_right), float(np.log(min(1.0, p))))
                for is_right, p in zip(right[prompt], found.max(axis=1), strict=True)
            ]
        )
        for prompt, found in probability.items()
    }
    logprobs = {prompt: np.log(found) for prompt, found in probability.items()}
    return Recorded(labels=LabelSet(labels), answers=answers, logprobs=logprobs, right=right, scores=scores)


def raced(task: Recorded, names: Sequence[str], rows: NDArray[np.intp]) -> tuple[str, int]:
    """Return the prompt that the race ends with, and its calls; the seed comes first in `names`."""
    asked: Counter[int] = Counter()

    def stand(place: int, n: int) -> CandidateStanding:
        asked[place] = max(asked[place], n)
        some = rows[:n]
        return standing(
            task.logprobs[names[place]][some],
            task.answers[some],
            answered=np.ones(n, dtype=np.bool_),
            labels=task.labels,
        )

    chosen = race(len(names) - 1, stand, rows=len(rows))
    return names[chosen], asked.total()


def by_default(
    task: Recorded,
    names: Sequence[str],
    rows: NDArray[np.intp],
    train: NDArray[np.intp],
    rng: np.random.Generator,
) -> tuple[str, int]:
    """Return what gepa's default ends with, and its calls."""
    best, calls = names[0], len(rows)
    for name in names[1:]:
        batch = rng.choice(train, MINIBATCH, replace=False)
        calls += 2 * MINIBATCH
        if task.scores[name][batch].sum() <= task.scores[best][batch].sum():
            continue
        calls += len(rows)
        if task.scores[name][rows].mean() > task.scores[best][rows].mean():
            best = name
    return best, calls


def main() -> None:
    """Run all roles in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--strict", action="store_true", help="end with 1 where a bar is missed")
    options = parser.parse_args()
    available(options.recorded, TASKS, ending=".csv", all_of_them=True)
    tasks = {name: read(options.recorded / f"{name}.csv") for name in TASKS}
    met = [show(title, tasks, n, options.runs) for title, n in (("both others", 2), ("one other", 1))]
    if options.strict and not all(met):
        sys.exit(1)


def show(title: str, tasks: dict[str, Recorded], n_others: int, runs: int) -> bool:
    """Print what a number of runs came to, and return whether the bars are met."""
    rng = np.random.default_rng(0)
    below, calls = {"race": 0, "gepa": 0}, {"race": 0, "gepa": 0}
    taken: dict[tuple[str, str], list[bool]] = {(side, name): [] for name in TASKS for side in below}
    for run in range(runs):
        name, seed = TASKS[run % 3], PROMPTS[run // 3 % 3]
        task = tasks[name]
        order = rng.permutation(len(task.answers))
        rows, outside = order[:ROWS], order[ROWS:]
        others = [prompt for prompt in PROMPTS if prompt != seed]
        rng.shuffle(others)
        names = [seed, *others[:n_others]]
        for side, (best, spent) in {
            "race": raced(task, names, rows),
            "gepa": by_default(task, names, rows, outside, rng),
        }.items():
            calls[side] += spent
            below[side] += task.right[best][outside].mean() < task.right[seed][outside].mean()
            if seed == "baseline" and "confidence" in names:
                taken[side, name].append(best == "confidence")
    print(f"{runs} runs, the seed and {title}:")
    for side in ("race", "gepa"):
        print(
            f"  {side}: ends below its seed in {below[side] / runs:.1%}, {calls[side] / runs:.0f} calls a run"
        )
    for (side, name), found in taken.items():
        print(f"  {name}: {side} takes confidence over baseline in {np.mean(found):.0%} of {len(found)} runs")
    taken_share = min(np.mean(taken["race", name]) for name in ("ag_news", "emotion"))
    met = {
        "below its seed <= 5 %": below["race"] / runs <= 0.05,
        "calls <= half of gepa's": calls["race"] <= calls["gepa"] / 2,
    }
    if n_others == 1:  # with both, the default prompt may be the better choice
        met["confidence over baseline >= 80 % (AG News, Emotion)"] = bool(taken_share >= 0.8)
    print(
        "  " + ", ".join(f"{bar}: {'met' if is_met else 'missed'}" for bar, is_met in met.items()), flush=True
    )
    return all(met.values())


if __name__ == "__main__":
    main()
