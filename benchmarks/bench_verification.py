"""Does a small model know when it is wrong? Confidence methods on real answers, and AutoMix's own tables.

    python benchmarks/bench_verification.py --recorded DIR_WITH_CSV --data DIR_WITH_JSONL [--keep DIR]
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
from itertools import pairwise
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
from calibrant.cascade.methods._prompts import VERIFIER_PROMPT, fill_slots, quoted
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
    parts = [
        f"Is the category of the text right? The categories are: {', '.join(labels)}. "
        "Answer as JSON with the key verdict: correct or incorrect."
    ]
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
        """Answer a row and verify the answer, few-shot."""
        prediction = self.answers.classify(row["text"])
        answered = Answered(question=row["text"], prediction=prediction, classifier=self.answers)
        methods = {
            "label_probability": LabelProbability(),
            "avg_logprob": AvgLogprob(),
            "margin": Margin(),
            "hybrid": Hybrid(),
        }
        found = {name: evidence(method, answered) for name, method in methods.items()}
        label = str(prediction.label)
        found["verdict, few-shot"] = correctness(self.few_shot.classify(case_of(row["text"], label)))
        return {
            "text": row["text"],
            "label": label,
            "right": label == row["answer"],
            "large": row[PROMPTS[-1]]["correct"] == "true",
            "confidence": found,
        }

    def graded(self, record: Record) -> Record:
        """Grade an answer, and verify it under the general prompt."""
        prediction = Prediction(label=record["label"], confidence=0.5)
        answered = Answered(question=record["text"], prediction=prediction, classifier=self.answers)
        case = f"{self.answers.prompt.splitlines()[0]}\n\n{record['text']}"
        texts = {"question": quoted(case), "answer": quoted(record["label"]), "context": "(none)"}
        return {
            "self_verify": evidence(SelfVerify(max_tokens=12), answered),
            "verdict, general": correctness(self.general.classify(fill_slots(VERIFIER_PROMPT, texts))),
        }


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
    judged = records[: options.graded_rows]
    grades = kept_records(options.keep / f"{name}-grades.jsonl", judged, small.graded)
    for record, grade in zip(records, grades, strict=False):
        record["confidence"] |= grade
    return records


def main() -> None:
    """Collect, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recorded", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--keep", type=Path, default=Path("runs/bench-verification"))
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--graded-rows", type=int, default=120)
    parser.add_argument("--splits", type=int, default=200)
    options = parser.parse_args()
    logging.getLogger("calibrant").setLevel(logging.ERROR)
    client = open_client("local/smollm2-135m")
    for name in options.sets:
        collect(name, options, client)


if __name__ == "__main__":
    main()
