"""Which score should a prompt search maximise? Right answers alone, or with the model's confidence.

    python benchmarks/bench_scorers.py [--recorded DIR_WITH_CSV] [--data DIR_WITH_JSONL] [--keep DIR]
                                       [--draws 2000] [--resamples 200] [--seeds 3] [--searches NAME ...]

Recorded: GPT-4.1-mini answered three tasks under three prompts: gepa's seed prompt (`baseline`), the one that gepa's
search found by right answers alone (`default`) and the one its search found with confidence (`confidence`). Printed
are the paired differences of the last two, and what each score makes of the three prompts as a rule to pick one: a
stratified draw of the size of gepa's validation set (40 rows a label) picks the highest mean score, the other rows say
what was picked; prompts of equal score share the pick. Differences from picking by right answers alone are paired over
draws; their Monte Carlo error is the standard error over draws, and their interval is about the rows: everything is
done again on random halves of them, whose variance estimates that of all rows (a delete-half jackknife). A label gives
at most half of its rows to a draw. The recordings hold the probability of the predicted label; for `brier` and `log`
the rest is spread evenly.

Searches: `gepa.optimize` with `ConfidenceAdapter` and `ExemplarProposer` on the embedded model, labels scored exactly,
from one plain prompt; adapter, proposer, rows, seeds and budget are the same, the score differs. The best prompt by
the score's own mean on the validation rows is judged by accuracy on test rows that no search saw. The interval of a
difference is the t interval over searches (tasks times seeds).

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
from calibrant.core import Client, Interval, LabelDistribution, LogprobSpace, read_examples
from calibrant.inference import open_client
from calibrant.logprobs._fields import enum_schema
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
SEARCHED = ("rotten_tomatoes", "sms_spam")  # short texts: a row is cheap
PROMPTS = ("baseline", "default", "confidence")
ROWS_PER_LABEL = 40
LEAST = 1e-6  # of a probability, before its logarithm is taken

FIELD = "category"
TRAINING_ROWS = 60
VALIDATION_ROWS = 24
MINIBATCH = 6
BUDGET = 120
TEST_ROWS = 80

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


def row_of(example: Any) -> dict[str, Any]:
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


@dataclass(frozen=True, kw_only=True)
class RecordedTask:
    """Answers of one task under three prompts.

    Attributes
    ----------
    answers : ndarray of shape (n,)
        True label of each row, as a number.
    right : ndarray of shape (n, 3)
        Right (1) or wrong (0) by prompt.
    scores : dict of str to ndarray of shape (n, 3)
        Scores by prompt, for each scorer.
    """

    answers: Rows
    right: Floats
    scores: dict[str, Floats]

    @classmethod
    def read(cls, path: Path) -> RecordedTask:
        """Read a task."""
        with path.open(newline="", encoding="utf-8") as file:
            records = list(csv.DictReader(file))
        labels = sorted(
            {record["expected"] for record in records} | {record["predicted"] for record in records}
        )
        numbers = sorted({int(record["row"]) for record in records})
        place_of = {number: place for place, number in enumerate(numbers)}
        answers = np.zeros(len(numbers), dtype=np.intp)
        right = np.zeros((len(numbers), len(PROMPTS)))
        scores = {name: np.zeros_like(right) for name in SCORERS}
        for record in records:
            place, column = place_of[int(record["row"])], PROMPTS.index(record["prompt"])
            is_correct = record["correct"] == "true"
            answers[place] = labels.index(record["expected"])
            right[place, column] = is_correct
            distribution = distribution_of(record, labels)
            logprob = float(np.log(min(1.0, max(LEAST, float(record["probability"])))))
            for name, scorer in SCORERS.items():
                scores[name][place, column] = scorer.score(
                    is_correct, logprob, distribution=distribution, answer=record["expected"]
                )
        return cls(answers=answers, right=right, scores=scores)

    def half(self, rng: np.random.Generator) -> RecordedTask:
        """Return a random half of the rows of every label."""
        kept = np.concatenate(
            [rng.permutation(rows)[: len(rows) // 2] for rows in rows_by_label(self.answers)]
        )
        scores = {name: values[kept] for name, values in self.scores.items()}
        return RecordedTask(answers=self.answers[kept], right=self.right[kept], scores=scores)

    def picked(self, draws: int, rng: np.random.Generator) -> dict[str, Floats]:
        """Return the accuracy of what each score picks, on the rows outside each draw, shape (draws,)."""
        drawn = np.zeros((draws, len(self.answers)))
        for rows in rows_by_label(self.answers):
            n = min(ROWS_PER_LABEL, len(rows) // 2)
            chosen = rng.random((draws, len(rows))).argpartition(n, axis=1)[:, :n]
            np.put_along_axis(drawn, rows[chosen], 1.0, axis=1)
        accuracy = (1.0 - drawn) @ self.right / (1.0 - drawn).sum(axis=1, keepdims=True)
        found = {}
        for name, values in self.scores.items():
            mean = (drawn @ values).round(9)
            is_best = mean == mean.max(axis=1, keepdims=True)
            found[name] = (accuracy * is_best).sum(axis=1) / is_best.sum(axis=1)
        return found


def distribution_of(record: dict[str, str], labels: Sequence[str]) -> LabelDistribution:
    """Return a distribution with the recorded probability of the predicted label, and the rest even."""
    p = float(record["probability"])
    found = np.full(len(labels), (1.0 - p) / (len(labels) - 1))
    found[labels.index(record["predicted"])] = p
    found = np.maximum(found, LEAST)
    return LabelDistribution(
        labels=tuple(labels),
        logprobs=np.log(found / found.sum()),
        measured=np.array([label == record["predicted"] for label in labels]),
        joint_logprob=None,
        label_mass=1.0,
        unresolved_mass=0.0,
        space=LogprobSpace.MASKED,
    )


def rows_by_label(answers: Rows) -> list[Rows]:
    """Return the rows of every label."""
    return [np.flatnonzero(answers == label) for label in np.unique(answers)]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Difference of two scores as rules to pick a prompt, in points.

    Attributes
    ----------
    estimate : float
        Mean over draws.
    monte_carlo : float
        Its standard error over draws.
    over_rows : float
        Its standard error over rows.
    """

    estimate: float
    monte_carlo: float
    over_rows: float

    def __str__(self) -> str:
        """Return estimate, Monte Carlo error and interval."""
        low, high = self.limits
        return f"{self.estimate:+.2f} ±{self.monte_carlo:.2f} ({low:+.2f} to {high:+.2f})"

    @property
    def limits(self) -> tuple[float, float]:
        """Ends of the 95 % interval over rows."""
        return self.estimate - 1.96 * self.over_rows, self.estimate + 1.96 * self.over_rows

    @classmethod
    def mean(cls, gains: Sequence[Gain]) -> Gain:
        """Return the mean over tasks, whose rows are independent."""
        n = len(gains)
        return cls(
            estimate=sum(one.estimate for one in gains) / n,
            monte_carlo=sum(one.monte_carlo**2 for one in gains) ** 0.5 / n,
            over_rows=sum(one.over_rows**2 for one in gains) ** 0.5 / n,
        )


Picked = dict[str, Floats]


def gain_of(picked: Picked, halves: Sequence[Picked], name: str, baseline: str) -> Gain:
    """Return what picking by one score gains over picking by another one."""
    difference = 100.0 * (picked[name] - picked[baseline])
    by_half = [100.0 * float(np.mean(half[name] - half[baseline])) for half in halves]
    return Gain(
        estimate=float(difference.mean()),
        monte_carlo=float(difference.std(ddof=1) / len(difference) ** 0.5),
        over_rows=float(np.std(by_half, ddof=1)),
    )


def show_pair(title: str, task: RecordedTask) -> None:
    """Print accuracy under the three prompts, and what the search with confidence gained over the one without."""
    first, second = task.right[:, 1], task.right[:, 2]
    found = paired_comparison(first, second)
    rng = np.random.default_rng(0)
    sample = rng.integers(0, len(first), (10_000, len(first)))
    low, high = np.quantile((second - first)[sample].mean(axis=1), (0.025, 0.975))
    means = ", ".join(f"{mean:.4f}" for mean in task.right.mean(axis=0))
    interval = found.interval
    print(
        f"{title:16} {found.n} rows: {means}; confidence minus default {100 * found.difference:+.2f} points, "
        f"bootstrap {100 * low:+.2f} to {100 * high:+.2f}, Newcombe {100 * interval.lower:+.2f} to "
        f"{100 * interval.upper:+.2f}, McNemar p = {found.p_value:.4f} ({found.only_b} against {found.only_a} rows)"
    )


def judge_recorded(options: argparse.Namespace) -> dict[str, bool]:
    """Print the recorded part; return for each score whether it passes the first two conditions."""
    names = available(options.recorded, TASKS, ending=".csv", all_of_them=True)
    tasks = {name: RecordedTask.read(options.recorded / f"{name}.csv") for name in names}
    print(f"accuracy under {', '.join(PROMPTS)}")
    for name, task in tasks.items():
        show_pair(name, task)
    picked: dict[str, Picked] = {}
    halves: dict[str, list[Picked]] = {}
    for name, task in tasks.items():
        rng = np.random.default_rng(1)
        picked[name] = task.picked(options.draws, rng)
        halves[name] = [task.half(rng).picked(options.draws // 4, rng) for _ in range(options.resamples)]
    for baseline in (ALONE, DEFAULT):
        print(
            f"\npicking a prompt, test accuracy minus that of picking by {baseline}, in points: estimate ±Monte"
        )
        print("Carlo error (95 % interval over rows)")
        for score in SCORERS:
            gains = [gain_of(picked[name], halves[name], score, baseline) for name in names]
            cells = [f"{gain!s:30}" for gain in (*gains, Gain.mean(gains))]
            print(f"{score:16} {' '.join(cells)}")
    verdicts = {}
    for score in SCORERS:
        gains = [gain_of(picked[name], halves[name], score, DEFAULT) for name in names]
        mean = Gain.mean(gains)
        is_above = mean.estimate >= 0.2 and mean.limits[0] >= 0.0
        verdicts[score] = is_above and all(one.estimate >= -2 * one.monte_carlo for one in gains)
    return verdicts


def judge_searches(found: dict[tuple[str, int, str], Search]) -> dict[str, bool]:
    """Print the searches' part; return for each score whether it passes the third condition."""
    runs = sorted({(name, seed) for name, seed, _ in found})
    accuracy = {
        score: np.array([np.mean(found[name, seed, score].correct) for name, seed in runs])
        for score in SEARCH_SCORERS
    }
    first = np.array([np.mean(found[name, seed, ALONE].seed_correct) for name, seed in runs])
    print(f"\n{len(runs)} searches a score, mean test accuracy; the first prompt has {first.mean():.3f}")
    verdicts = {}
    for score, values in accuracy.items():
        against = paired_mean_interval(values - accuracy[DEFAULT])
        alone = paired_mean_interval(values - accuracy[ALONE])
        print(
            f"{score:16} {values.mean():.3f}, minus {DEFAULT} {shown(against)}, minus {ALONE} {shown(alone)}, "
            f"{sum(found[name, seed, score].candidates for name, seed in runs)} prompts kept"
        )
        verdicts[score] = against.estimate >= -0.01 and against.upper >= 0.0
    return verdicts


def shown(interval: Interval) -> str:
    """Return an interval as text."""
    return f"{interval.estimate:+.3f} ({interval.lower:+.3f} to {interval.upper:+.3f})"


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
    recorded = judge_recorded(options) if options.recorded is not None else {}
    searched = judge_searches(run_searches(options)) if options.data is not None else {}
    if recorded and searched:
        better = [score for score in SEARCH_SCORERS if recorded[score] and searched[score]]
        print(f"\nscores that take the place of {DEFAULT} by the rule: {', '.join(better) or 'none'}")


if __name__ == "__main__":
    main()
