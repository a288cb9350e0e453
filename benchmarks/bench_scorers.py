"""Which score should a prompt search maximise? Right answers alone, or with the model's confidence.

    python benchmarks/bench_scorers.py [--recorded DIR_WITH_CSV] [--data DIR_WITH_JSONL] [--keep DIR]
                                       [--draws 2000] [--resamples 200] [--seeds 3] [--searches NAME ...]

Recorded: GPT-4.1-mini answered three tasks under three prompts: gepa's seed prompt (`baseline`), the one that gepa's
search found by right answers alone (`default`) and the one its search found with confidence (`confidence`). Printed
are the paired differences of the last two, and what each score makes of the three prompts as a rule to pick one: a
stratified draw of the size of gepa's validation set (40 rows a label) picks the highest mean score, the other rows say
what was picked. Differences from picking by right answers alone are paired over draws; their Monte Carlo error is the
standard error over draws, their interval resamples the rows themselves (draws repeated inside every resample). The
recordings hold the probability of the predicted label; for `brier` and `log` the rest is spread evenly.

Searches: `gepa.optimize` with `ConfidenceAdapter` and `ExemplarProposer` on the embedded model, labels scored exactly,
from one plain prompt; adapter, proposer, rows, seeds and budget are the same, the score differs. The best prompt by
the score's own mean on the validation rows is judged by accuracy on test rows that no search saw.

The rule, written down before either part was run. The default score, `LinearBlendScoring(0.99)`, gives way to another
one only if all three hold:

1. recorded: as a rule to pick, the other score is above the default by at least 0.2 points in the mean of the three
   tasks, and the interval over rows of that mean does not reach below 0;
2. recorded: on no task is it below the default by more than two Monte Carlo errors;
3. searches: pooled over tasks and seeds its test accuracy is not below the default's by more than 0.01, and the
   interval of the difference does not lie below 0.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gepa
import numpy as np
from _data import available
from numpy.typing import NDArray

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import Client, Interval, LabelDistribution, read_examples
from calibrant.inference import open_client
from calibrant.logprobs._schema import enum_schema
from calibrant.metrics import paired_comparison, paired_mean_interval
from calibrant.optimization import ExemplarProposer
from calibrant.scoring import (
    BrierScoring,
    LinearBlendScoring,
    LogScoring,
    ScoringStrategy,
    SigmoidScoring,
    ThresholdScoring,
)
from calibrant.store import PredictionCache

TASKS = ("ag_news", "emotion", "rotten_tomatoes")
SEARCHED = ("rotten_tomatoes", "ag_news")
PROMPTS = ("baseline", "default", "confidence")
ROWS_PER_LABEL = 40
LEAST = 1e-6  # of a probability, before its logarithm is taken

FIELD = "category"
TRAINING_ROWS = 60
VALIDATION_ROWS = 30
MINIBATCH = 6
BUDGET = 150
TEST_ROWS = 100

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


class AccuracyScoring:
    """Score of 1 for a right answer and 0 for a wrong one, however sure the model was."""

    def score(
        self,
        is_correct: bool,
        logprob_score: float | None,
        *,
        distribution: LabelDistribution | None = None,
        answer: str | None = None,
    ) -> float:
        """Return 1 or 0."""
        del logprob_score, distribution, answer
        return float(is_correct)

    def describe(self) -> str:
        """Return the rule as one line."""
        return "accuracy"


DEFAULT = "linear .99"
ALONE = "accuracy"
SCORERS: dict[str, ScoringStrategy] = {
    ALONE: AccuracyScoring(),
    DEFAULT: LinearBlendScoring(0.99),
    "threshold .99": ThresholdScoring(0.99),
    "sigmoid .95/50": SigmoidScoring(0.95, 50),
    "brier": BrierScoring(),
    "log": LogScoring(),
}
SEARCH_SCORERS = (ALONE, DEFAULT, "threshold .99", "sigmoid .95/50")


class Silent:
    """A logger that drops what it is told."""

    def log(self, message: object) -> None:
        """Drop `message`."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What one search came to.

    Attributes
    ----------
    prompt : str
        The best prompt by the search's own score.
    candidates : int
        Prompts that were asked about all validation rows, the first one included.
    calls : int
        Metric calls.
    correct, seed_correct : list of int
        Right (1) or wrong (0) on every test row, under the best and under the first prompt.
    """

    prompt: str
    candidates: int
    calls: int
    correct: list[int]
    seed_correct: list[int]


@dataclass(frozen=True, kw_only=True)
class SearchTask:
    """A task of the searches, with the rows of one seed."""

    labels: list[str]
    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    test: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path, seed: int) -> SearchTask:
        """Draw the rows that a search learns from and chooses on; the test rows are the same for every seed."""
        known: list[dict[str, Any]] = []
        for split in ("train", "validation"):
            known += [row_of(example) for example, _ in read_examples(path, split=split)]
        test = [row_of(example) for example, _ in read_examples(path, split="test")]
        order = np.random.default_rng(seed).permutation(len(known))
        drawn = [known[place] for place in order]
        judged = np.random.default_rng(0).permutation(len(test))[:TEST_ROWS]
        return cls(
            labels=sorted({row["answer"] for row in known}),
            train=drawn[:TRAINING_ROWS],
            validation=drawn[TRAINING_ROWS : TRAINING_ROWS + VALIDATION_ROWS],
            test=[test[place] for place in judged],
        )

    @property
    def prompt(self) -> str:
        """Prompt that every search begins with."""
        return (
            f"Classify the text into exactly one of: {', '.join(self.labels)}. "
            f"Answer as JSON with the key {FIELD}."
        )


def row_of(example: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an example as gepa's data row."""
    return {"input": example.input, "answer": example.answer, "additional_context": {}}


def search(task: SearchTask, scorer: str, *, seed: int, client: Client, cache: PredictionCache) -> Search:
    """Search with one score, and judge the prompt it takes."""
    adapter = ConfidenceAdapter(
        client,
        FIELD,
        enum_schema(task.labels, FIELD),
        scoring_strategy=SCORERS[scorer],
        scoring="exact",
        journal=cache,
        proposer=ExemplarProposer(train=task.train, seed=seed, field=FIELD),
    )
    result = gepa.optimize(
        seed_candidate={"system_prompt": task.prompt},
        trainset=task.train,
        valset=task.validation,
        adapter=adapter,
        reflection_minibatch_size=MINIBATCH,
        stop_callbacks=[adapter.budget(BUDGET, valset=task.validation, minibatch_size=MINIBATCH)],
        logger=Silent(),
        seed=seed,
    )
    calls = adapter.metric_calls
    best = result.best_candidate["system_prompt"]
    return Search(
        prompt=best,
        candidates=result.num_candidates,
        calls=calls,
        correct=judged_rows(adapter, best, task.test),
        seed_correct=judged_rows(adapter, task.prompt, task.test),
    )


def judged_rows(adapter: ConfidenceAdapter, prompt: str, rows: list[dict[str, Any]]) -> list[int]:
    """Return right or wrong for every row under a prompt."""
    batch = adapter.evaluate(rows, {"system_prompt": prompt})
    return [int(one["accuracy"]) for one in batch.objective_scores or ()]


def run_searches(options: argparse.Namespace) -> dict[tuple[str, int, str], Search]:
    """Run every search that was not kept, seed by seed; return all by task, seed and score."""
    names = available(options.data, options.searches)
    options.keep.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, int, str], Search] = {}
    client = open_client("local/smollm2-135m")
    with PredictionCache(options.keep / "answers.db") as cache:
        for seed in range(options.seeds):
            for name in names:
                task = SearchTask.read(options.data / f"{name}.jsonl", seed)
                for scorer in SEARCH_SCORERS:
                    file = options.keep / f"{name}-{seed}-{scorer.replace(' ', '-').replace('/', '-')}.json"
                    if not file.is_file():
                        one = search(task, scorer, seed=seed, client=client, cache=cache)
                        file.write_text(json.dumps(asdict(one)), encoding="utf-8")
                    one = Search(**json.loads(file.read_text(encoding="utf-8")))
                    found[name, seed, scorer] = one
                    print(
                        f"{name:16} seed {seed} {scorer:16} {np.mean(one.seed_correct):.3f} -> "
                        f"{np.mean(one.correct):.3f}, {one.candidates} prompts, {one.calls} calls",
                        flush=True,
                    )
    client.close()
    return found


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recorded", type=Path, help="folder with the recorded answers")
    parser.add_argument("--data", type=Path, help="folder with the tasks of the searches")
    parser.add_argument("--keep", type=Path, default=Path("runs/bench-scorers"))
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--searches", nargs="+", default=list(SEARCHED))
    options = parser.parse_args()
    logging.getLogger("calibrant").setLevel(logging.ERROR)
    if options.data is not None:
        run_searches(options)


if __name__ == "__main__":
    main()
