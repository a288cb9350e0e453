"""A real label or a placeholder as the form of the answer: what it does to a small model.

    python benchmarks/bench_forms.py --data DIR_WITH_JSONL [--task ag_news] [--rows 100] [--split test]

The embedded model scores every label exactly under four prompts, on the same rows: the question alone; with the
labels named; with the labels and one of them as the form of the answer; with the labels and a placeholder in its place.
Printed per prompt: accuracy with Wilson's 95 % interval, mean label mass, and how often the label that the prompt shows
(the same one throughout) is answered.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np
from _data import available

from calibrant.inference import Classifier
from calibrant.metrics import wilson_interval

# Field, labels, question; the second label is the one that is shown.
TASKS = {
    "ag_news": (
        "category",
        ["World", "Sports", "Business", "Sci/Tech"],
        "Decide the topic of the news item.",
    ),
    "rotten_tomatoes": ("sentiment", ["negative", "positive"], "Decide the sentiment of the review."),
}


def prompts(task: str) -> dict[str, str]:
    """Return the prompts by what they show."""
    field, labels, question = TASKS[task]
    named = f"{question} The labels are: {', '.join(labels)}."
    return {
        "question": question,
        "labels": named,
        "labels, a real one": f'{named} Answer with JSON such as {{"{field}": "{labels[1]}"}}.',
        "labels, placeholder": f'{named} Answer with JSON such as {{"{field}": "..."}}.',
    }


def main() -> None:
    """Print one line per prompt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with JSONL files: input, answer, split"
    )
    parser.add_argument("--task", choices=list(TASKS), default="ag_news")
    parser.add_argument("--split", default="test")
    parser.add_argument("--rows", type=int, default=100)
    options = parser.parse_args()
    available(options.data, [options.task])
    field, labels, _ = TASKS[options.task]
    with (options.data / f"{options.task}.jsonl").open(encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["split"] == options.split]
    random.Random(0).shuffle(rows)
    rows = rows[: options.rows]
    print(f"{options.task}, {len(rows)} {options.split} rows, the label shown is {labels[1]}")
    print(f"{'prompt':22} {'accuracy':24} {'label mass':>10} {labels[1] + ' answered':>20}")
    for name, prompt in prompts(options.task).items():
        with_prompt = Classifier(
            model="local/smollm2-135m", labels=labels, field=field, prompt=prompt, scoring="exact"
        )
        found = with_prompt.classify_many([row["input"] for row in rows])
        with_prompt.close()
        right = sum(one.label == row["answer"] for one, row in zip(found, rows, strict=True))
        accuracy = wilson_interval(right, len(rows))
        mass = np.mean([one.distribution.label_mass for one in found if one.distribution is not None])
        shown = sum(one.label == labels[1] for one in found)
        interval = f"{accuracy.estimate:.2f} ({accuracy.lower:.2f} to {accuracy.upper:.2f})"
        print(f"{name:22} {interval:24} {mass:10.3f} {shown:13} of {len(found)}", flush=True)


if __name__ == "__main__":
    main()
