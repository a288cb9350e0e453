"""Does a small model know when it is wrong? Confidence methods on real answers, and AutoMix's own tables.

    python benchmarks/bench_verification.py --recorded DIR_WITH_CSV [--data DIR_WITH_JSONL] [--keep DIR]
                                            [--sets NAME ...] [--rows 120] [--graded-rows 120] [--splits 200]

The small model is the embedded one under a prompt with six examples drawn from the training rows, the large one is
GPT-4.1-mini's recorded answers under its best prompt, the rows are the recorded texts. The small model's answers are
decoded with their tokens and judged by every confidence method of a cascade:

label_probability             the probability of the label among all labels,
avg_logprob, margin, hybrid   of the answer's tokens,
self_verify                   one call, in which the model grades its own answer,
verdict, general              the probability of the verdict "correct", under the prompt that calibrant's verifier has,
verdict, few-shot             the same after six right and wrong answers of the same task, as in AutoMix's paper,
8 samples                     of the few-shot verdict, drawn from that probability: `automix_entailment`.

Printed are each method's AUROC, right against wrong answers, with 95 % bootstrap intervals over rows, and the rows on
which it has no evidence. Of recorded answers, which hold the probability of the label and of the best other one, it is
printed what these two carry.

AutoMix's Table 1 and Figure 6: a random half of the rows teaches when to ask the large model (the exact frontier of
policies on a signal), the other half says what that comes to; `--splits` times. At costs of 1 for the small model, 1
for self-verification (as in the paper) and 50 for the large one: IBC lift, averaged over five equal regions of cost,
from the small model's to the large one's. The same at other costs of the large model, with the policy of the best lift
on the first half. All signals get the same rows. The label's probability costs nothing to look at; at equal cost it
costs as much as verifying.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _data import available
from numpy.typing import NDArray

from calibrant.cascade import (
    AvgLogprob,
    Hybrid,
    LabelProbability,
    Margin,
    SelfVerify,
    ibc_lift,
    routing_frontier,
)
from calibrant.cascade._protocol import Answered, Assessment
from calibrant.cascade.methods._verification import VERIFIER_PROMPT, fill_slots, quoted
from calibrant.core import Client, Prediction, read_examples
from calibrant.inference import Classifier, open_client
from calibrant.metrics import auroc

SETS = ("rotten_tomatoes",)
RECORDED = ("ag_news", "emotion", "rotten_tomatoes")
PROMPTS = ("baseline", "default", "confidence")
FIELD = "category"
VERDICTS = ("correct", "incorrect")
EXAMPLES = 6
SAMPLES = 8
SMALL, LARGE, VERIFYING = 1.0, 50.0, 1.0
RATIOS = (10.0, 25.0, 50.0, 100.0, 200.0)
REGIONS = 5

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Curve = tuple[Floats, Floats, int]
Halves = tuple[Rows, Rows]
Pair = tuple[str, str]
Record = dict[str, Any]


def task_pairs(path: Path) -> list[Pair]:
    """Return the training rows as pairs of text and label."""
    return [(example.input, str(example.answer)) for example, _ in read_examples(path, split="train")]


def recorded_rows(path: Path) -> list[dict[str, Any]]:
    """Return the recorded texts in their order, with the answers under each prompt."""
    rows: dict[int, dict[str, Any]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            number = int(record["row"])
            row = rows.setdefault(number, {"text": record["text"], "answer": record["expected"]})
            row[record["prompt"]] = record
    return [rows[number] for number in sorted(rows)]


def answer_of(label: str) -> str:
    """Return a label as the model has to write it."""
    return json.dumps({FIELD: label})


def drawn_examples(pairs: Sequence[Pair], labels: Sequence[str], rng: np.random.Generator) -> list[Pair]:
    """Draw examples, as many of each label, in random order."""
    found: list[Pair] = []
    for label in labels:
        own = [pair for pair in pairs if pair[1] == label]
        places = rng.permutation(len(own))[: EXAMPLES // len(labels)]
        found += [own[place] for place in places]
    return [found[place] for place in rng.permutation(len(found))]


def prompt_of(labels: Sequence[str], examples: Sequence[Pair]) -> str:
    """Return the prompt of the small model."""
    shown = "\n\n".join(f"Text: {text}\n{answer_of(label)}" for text, label in examples)
    task = f"Classify the text into exactly one of: {', '.join(labels)}. Answer as JSON with the key {FIELD}."
    return f"{task}\n\n{shown}"


def verdict_prompt(labels: Sequence[str], examples: Sequence[Pair]) -> str:
    """Return a prompt that shows right and wrong answers of the task, in turn."""
    question = f"Is the category of the text right? The categories are: {', '.join(labels)}."
    parts = [f"{question} Answer as JSON with the key verdict: correct or incorrect."]
    for place, (text, label) in enumerate(examples):
        is_right = place % 2 == 0
        shown = label if is_right else next(other for other in labels if other != label)
        verdict = json.dumps({"verdict": VERDICTS[0 if is_right else 1]})
        parts.append(f"{case_of(text, shown)}\n{verdict}")
    return "\n\n".join(parts)


def case_of(text: str, label: str) -> str:
    """Return a text with its category, as the few-shot verifier reads it."""
    return f"Text: {text}\nCategory: {label}"


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """The embedded model as the one that answers and the one that verifies.

    Attributes
    ----------
    answers : Classifier
        Decodes answers with their tokens.
    few_shot, general : Classifier
        Score both verdicts exactly.
    """

    answers: Classifier
    few_shot: Classifier
    general: Classifier

    @classmethod
    def open(cls, client: Client, labels: Sequence[str], examples: Sequence[Pair]) -> SmallModel:
        """Write the prompts."""

        def verifier(prompt: str) -> Classifier:
            return Classifier(model=client, labels=VERDICTS, field="verdict", prompt=prompt, scoring="exact")

        answers = Classifier(
            model=client,
            labels=labels,
            field=FIELD,
            prompt=prompt_of(labels, examples),
            scoring="decode",
            keep_tokens=True,
        )
        return cls(answers=answers, few_shot=verifier(verdict_prompt(labels, examples)), general=verifier(""))

    def answered(self, row: Record) -> Record:
        """Answer a row, and measure the answer's own tokens."""
        prediction = self.answers.classify(row["text"])
        answered = Answered(question=row["text"], prediction=prediction, classifier=self.answers)
        methods = {
            "label_probability": LabelProbability(),
            "avg_logprob": AvgLogprob(),
            "margin": Margin(),
            "hybrid": Hybrid(),
        }
        label = str(prediction.label)
        return {
            "text": row["text"],
            "label": label,
            "right": label == row["answer"],
            "large": row[PROMPTS[-1]]["correct"] == "true",
            "confidence": {name: evidence(method, answered) for name, method in methods.items()},
        }

    def verified(self, record: Record) -> Record:
        """Verify an answer, few-shot."""
        case = case_of(record["text"], record["label"])
        return {"verdict, few-shot": correctness(self.few_shot.classify(case))}

    def generally_verified(self, record: Record) -> Record:
        """Verify an answer under the general prompt."""
        case = f"{self.answers.prompt.splitlines()[0]}\n\n{record['text']}"
        texts = {"question": quoted(case), "answer": quoted(record["label"]), "context": "(none)"}
        asked = fill_slots(VERIFIER_PROMPT, texts)
        return {"verdict, general": correctness(self.general.classify(asked))}

    def graded(self, record: Record) -> Record:
        """Grade an answer."""
        prediction = Prediction(label=record["label"], confidence=0.5)
        answered = Answered(question=record["text"], prediction=prediction, classifier=self.answers)
        return {"self_verify": evidence(SelfVerify(max_tokens=12), answered)}


def evidence(method: Any, answered: Answered) -> float | None:
    """Return what a method measures, in its own unit (confidences are clamped, and tie); None without evidence."""
    found = asyncio.run(method.assess(answered))
    return found.native if isinstance(found, Assessment) else None


def correctness(prediction: Prediction) -> float | None:
    """Return the probability of the verdict that the answer is correct."""
    if prediction.distribution is None:
        return None
    return float(prediction.distribution.probabilities[0])


def kept_records(file: Path, rows: Sequence[Record], ask: Callable[[Record], Record]) -> list[Record]:
    """Return a record of every row; those in a file are not made again."""
    done: list[Record] = []
    if file.is_file():
        lines = file.read_text(encoding="utf-8").split("\n")
        done = [json.loads(line) for line in lines if line]
    for row in rows[len(done) :]:
        done.append(ask(row))
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(done[-1]) + "\n")
        if len(done) % 10 == 0:
            print(f"{file.name}: {len(done)} rows", flush=True)
    return done[: len(rows)]


def collect(name: str, options: argparse.Namespace, client: Client) -> list[Record]:
    """Return what the small model and its verifiers say of the rows of a set."""
    options.keep.mkdir(parents=True, exist_ok=True)
    pairs = task_pairs(options.data / f"{name}.jsonl")
    labels = sorted({label for _, label in pairs})
    small = SmallModel.open(client, labels, drawn_examples(pairs, labels, np.random.default_rng(0)))
    known = {text for text, _ in pairs}
    rows = [row for row in recorded_rows(options.recorded / f"{name}.csv") if row["text"] not in known]
    order = np.random.default_rng(0).permutation(len(rows))[: options.rows]
    drawn = [rows[place] for place in order]
    records = kept_records(options.keep / f"{name}-answers.jsonl", drawn, small.answered)
    # One prompt after the other: the engine remembers the beginning of the last one.
    passes = {"verdicts": small.verified, "general": small.generally_verified, "grades": small.graded}
    for title, ask in passes.items():
        n = options.rows if title == "verdicts" else options.graded_rows
        found = kept_records(options.keep / f"{name}-{title}.jsonl", records[:n], ask)
        for record, one in zip(records, found, strict=False):
            record["confidence"] |= one
    return records


def interval_of(statistic: Callable[[Rows], float], n: int, draws: int = 1000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic of rows, given by their places."""
    rng = np.random.default_rng(0)
    found = [statistic(rng.integers(0, n, n)) for _ in range(draws)]
    low, high = np.nanquantile(found, (0.025, 0.975))
    return float(low), float(high)


def show_auroc(title: str, signal: Sequence[float | None], right: Sequence[bool]) -> None:
    """Print how well a signal tells right from wrong answers."""
    known = [place for place, value in enumerate(signal) if value is not None]
    values = np.array([signal[place] for place in known], dtype=np.float64)
    is_right = np.array([right[place] for place in known], dtype=np.float64)

    def area(rows: Rows) -> float:
        own = is_right[rows]
        return auroc(ranked(values)[rows], own) if 0.0 < own.mean() < 1.0 else float("nan")

    if len(known) < 10 or not 0.0 < is_right.mean() < 1.0:
        print(f"{title:36} {len(known)} rows with evidence: too few")
        return
    low, high = interval_of(area, len(known))
    print(
        f"{title:36} {area(np.arange(len(known))):.3f} ({low:.3f} to {high:.3f}), {len(known)} of {len(right)} rows, "
        f"{is_right.mean():.3f} right, {len(np.unique(values))} values",
        flush=True,
    )


def ranked(values: Floats) -> Floats:
    """Return values in [0, 1] of the same order: methods measure in units of their own."""
    _, place = np.unique(values, return_inverse=True)
    return place / max(1, place.max())


def show_recorded(name: str, path: Path) -> None:
    """Print the AUROC of what recorded answers carry: the label's probability, and its margin."""
    rows = recorded_rows(path)
    for prompt in PROMPTS:
        records = [row[prompt] for row in rows]
        right = [record["correct"] == "true" for record in records]
        probability = [float(record["probability"]) for record in records]
        show_auroc(f"{name}, {prompt}: probability", probability, right)
        if prompt == "baseline":  # recorded without the best other label
            continue
        other = [float(record["top_alternative_probability"] or 0.0) for record in records]
        margin = [one - two for one, two in zip(probability, other, strict=True)]
        show_auroc(f"{name}, {prompt}: margin", margin, right)


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What decides whether the large model is asked.

    Attributes
    ----------
    values : ndarray of shape (n,)
        In [0, 1]; the surer of the small model's answer, the higher. Samples are drawn from them.
    cost : float
        Of one look.
    samples : int or None
        For a share of so many samples; None for a number, which is compared with thresholds.
    """

    values: Floats
    cost: float
    samples: int | None = None

    def looked_at(self, split: int) -> Floats:
        """Return the values, or shares of samples drawn from them, anew for every split."""
        return self.values if self.samples is None else samples_of(self.values, split)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Rows that both models answered: 0 or 1 by row, and the signals by name."""

    small: Floats
    large: Floats
    signals: dict[str, Signal]


def region_lifts(
    cost: Floats, performance: Floats, *, ends: tuple[float, float, float, float], regions: int = REGIONS
) -> Floats:
    """Return the mean IBC lift of a curve in equal regions of cost, as in AutoMix's Table 1.

    Parameters
    ----------
    cost, performance : ndarray of shape (m,)
        Policies. Between two of them the curve is their mixtures, and it begins at the small model.
    ends : tuple of float
        Cost and performance of the small model, cost and performance of the large one.
    regions : int
        Of equal width, from the small model's cost to the large one's.

    Returns
    -------
    ndarray of shape (regions,)
        A ratio; 0 is what blind mixtures of both models bring.
    """
    small_cost, small, large_cost, large = ends
    dearer = cost > small_cost
    order = np.argsort(cost[dearer], kind="stable")
    costs = np.concatenate(([small_cost], cost[dearer][order]))
    values = np.concatenate(([small], performance[dearer][order]))
    grid = np.linspace(small_cost, large_cost, 100 * regions + 1)[1:]
    reached = np.interp(grid, costs, values)
    # Beyond the dearest policy its own cost counts: what is not spent is not charged.
    spent = np.minimum(grid, costs[-1])
    lift = (reached - small) / (spent - small_cost) / ((large - small) / (large_cost - small_cost)) - 1.0
    return lift.reshape(regions, 100).mean(axis=1)


def tested(problem: Problem, signal: Signal, split: int, halves: Halves, large_cost: float) -> Curve:
    """Return what the policies learned on one half come to on the other, and the place of the best lift."""
    costs = {"small_cost": SMALL, "large_cost": large_cost, "verifier_cost": signal.cost}
    train, test = halves
    rows = (signal.looked_at(split), problem.small, problem.large)
    frontier = routing_frontier(
        *(one[train] for one in rows), **costs, k=signal.samples, thresholds_only=signal.samples is None
    )
    policies = [frontier.policy(place) for place in range(len(frontier))]
    found = [policy.expected(*(one[test] for one in rows), **costs) for policy in policies]
    base = problem.small[train].mean()
    worth = [
        (policy.performance - base) / (policy.cost - SMALL) if policy.cost > SMALL else -np.inf
        for policy in policies
    ]
    cost = np.array([values.mean() for values, _ in found])
    performance = np.array([values.mean() for _, values in found])
    return cost, performance, int(np.argmax(worth))


def random_halves(n: int, splits: int) -> list[Halves]:
    """Return random halves of the rows."""
    rng = np.random.default_rng(0)
    orders = [rng.permutation(n) for _ in range(splits)]
    return [(order[: n // 2], order[n // 2 :]) for order in orders]


def lifts_of(problem: Problem, signal: Signal, splits: int) -> Floats:
    """Return the lift by region of every split where the large model is better, shape (splits, REGIONS)."""
    found = []
    for split, halves in enumerate(random_halves(len(problem.small), splits)):
        small, large = problem.small[halves[1]].mean(), problem.large[halves[1]].mean()
        if large <= small:
            continue
        cost, performance, _ = tested(problem, signal, split, halves, LARGE)
        found.append(region_lifts(cost, performance, ends=(SMALL, small, LARGE, large)))
    return np.array(found)


def best_lifts(problem: Problem, signal: Signal, splits: int, large_cost: float) -> Floats:
    """Return the lift, on the second halves, of the policy of the best lift on the first, shape (splits,)."""
    found = []
    for split, halves in enumerate(random_halves(len(problem.small), splits)):
        small, large = problem.small[halves[1]].mean(), problem.large[halves[1]].mean()
        cost, performance, best = tested(problem, signal, split, halves, large_cost)
        if large <= small or cost[best] <= SMALL:
            continue
        found.append(
            ibc_lift(
                performance=float(performance[best]),
                cost=float(cost[best]),
                small_performance=float(small),
                small_cost=SMALL,
                large_performance=float(large),
                large_cost=large_cost,
            )
        )
    return np.array(found)


def show_lifts(title: str, problem: Problem, splits: int) -> None:
    """Print AutoMix's Table 1 and Figure 6 for every signal."""
    print(
        f"\n{title}: {len(problem.small)} rows, small {problem.small.mean():.3f}, large {problem.large.mean():.3f}, "
        f"{splits} random halves"
    )
    print("lift by region of cost, mean (middle four fifths of the halves: how far they differ, no interval)")
    for name, signal in problem.signals.items():
        found = lifts_of(problem, signal, splits)
        low, high = np.quantile(found.mean(axis=1), (0.1, 0.9))
        cells = " ".join(f"{value:+6.2f}" for value in found.mean(axis=0))
        print(f"  {name:38} {cells}   mean {found.mean():+.2f} ({low:+.2f} to {high:+.2f})", flush=True)
    print(f"lift of one policy, large model at {', '.join(f'{ratio:g}' for ratio in RATIOS)}")
    for name, signal in problem.signals.items():
        medians = [float(np.median(best_lifts(problem, signal, splits, ratio))) for ratio in RATIOS]
        print(f"  {name:38} {' '.join(f'{value:+6.2f}' for value in medians)}", flush=True)


def recorded_problem(path: Path) -> Problem:
    """Return the baseline prompt as the small model and the best prompt as the large one."""
    rows = recorded_rows(path)
    signal = np.array([float(row[PROMPTS[0]]["probability"]) for row in rows])
    small, large = (
        np.array([row[prompt]["correct"] == "true" for row in rows], dtype=np.float64)
        for prompt in (PROMPTS[0], PROMPTS[-1])
    )
    return Problem(small=small, large=large, signals=label_signals(signal))


def label_signals(probability: Floats) -> dict[str, Signal]:
    """Return the label's probability as it comes, and at the cost of verifying."""
    return {
        "label probability, free": Signal(values=probability, cost=0.0),
        "label probability, at equal cost": Signal(values=probability, cost=VERIFYING),
    }


def verified_problem(records: Sequence[Record]) -> Problem:
    """Return the embedded model's answers, its own verdicts, and the large model's answers."""
    confidence = [record["confidence"] for record in records]
    probability = np.exp([one["label_probability"] for one in confidence])
    signals = label_signals(probability)
    for name in ("verdict, few-shot", "verdict, general"):
        if all(one.get(name) is not None for one in confidence):
            verdict = np.array([one[name] for one in confidence])
            signals[name] = Signal(values=verdict, cost=VERIFYING)
            signals[f"8 samples, {name.removeprefix('verdict, ')}"] = Signal(
                values=verdict, cost=VERIFYING, samples=SAMPLES
            )
    small, large = (
        np.array([record[side] for record in records], dtype=np.float64) for side in ("right", "large")
    )
    return Problem(small=small, large=large, signals=signals)


def samples_of(verdict: Floats, seed: int = 0) -> Floats:
    """Return the share of eight samples that say "correct", drawn from the probability of that verdict."""
    return np.random.default_rng(seed).binomial(SAMPLES, verdict) / SAMPLES


def show_verified(name: str, records: Sequence[Record]) -> None:
    """Print the AUROC of every method on the embedded model's answers."""
    print(f"\n{name}, the embedded model, {len(records)} rows")
    right = [record["right"] for record in records]
    methods = dict.fromkeys(method for record in records for method in record["confidence"])
    for method in methods:
        signal = [record["confidence"].get(method) for record in records]
        show_auroc(method, signal, right)
        if method.startswith("verdict") and None not in signal:
            verdict, is_right = np.array(signal, dtype=np.float64), np.array(right, dtype=np.float64)
            areas = [auroc(samples_of(verdict, seed), is_right) for seed in range(300)]
            print(
                f"8 samples, {method.removeprefix('verdict, '):25} {np.mean(areas):.3f}, mean over 300 drawings"
            )


def main() -> None:
    """Collect, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recorded", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="tasks; without them no model is asked")
    parser.add_argument("--keep", type=Path, default=Path("runs/bench-verification"))
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--graded-rows", type=int, default=120)
    parser.add_argument("--splits", type=int, default=200)
    options = parser.parse_args()
    logging.getLogger("calibrant").setLevel(logging.ERROR)
    print("AUROC, right against wrong (95 % bootstrap interval over rows)")
    for name in available(options.recorded, RECORDED, ending=".csv"):
        show_recorded(name, options.recorded / f"{name}.csv")
    for name in available(options.recorded, RECORDED, ending=".csv"):
        problem = recorded_problem(options.recorded / f"{name}.csv")
        show_lifts(f"{name}, recorded: baseline and {PROMPTS[-1]} prompt", problem, options.splits)
    if options.data is None:
        return
    client = open_client("local/smollm2-135m")
    for name in available(options.data, options.sets):
        records = collect(name, options, client)
        show_verified(name, records)
        show_lifts(f"{name}: the embedded model and GPT-4.1-mini", verified_problem(records), options.splits)


if __name__ == "__main__":
    main()
