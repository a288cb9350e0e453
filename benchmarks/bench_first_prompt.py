"""Choose the first prompt of the examples with real rows: the best of three natural ones.

Only the rows for learning and choosing are asked about; the rows that certify and the test rows are left alone. The
best prompt has the highest accuracy, and the lowest log loss among equals. It stands in the task files.

    python benchmarks/bench_first_prompt.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrant import Classifier, Task

EXAMPLES = Path(__file__).parent.parent / "examples"
LIST = "Classify the following text: choose the answer that fits it best. The answer is one of: {labels}."
PROMPTS = {
    "banking": (
        LIST,  # as `calibrant init` writes it
        "Which of these subjects is the customer of the bank asking about?",
        "Read the message of a bank's customer and choose the subject that fits it best.",
    ),
    "requests": (
        LIST,
        "Which domain does the user's request belong to?",
        "Read what the user says to the assistant and choose the domain that fits it best.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class PromptScore:
    """How a prompt did on labelled rows.

    Attributes
    ----------
    prompt : str
        The system text.
    accuracy : float
        Share of right answers, in [0, 1].
    log_loss : float
        Mean negative log-probability of the true labels, in natural logarithms.
    """

    prompt: str
    accuracy: float
    log_loss: float


def prompt_score(task: Task, prompt: str) -> PromptScore:
    """Ask the task's model about the rows for learning and choosing under a prompt."""
    rows = [*task.train, *task.validation]
    labels = list(task.labels.labels)
    with Classifier(model=task.model.name, labels=labels, field=task.field, prompt=prompt) as classifier:
        predictions = classifier.classify_many([row.input for row in rows])
    logprobs = np.array([prediction.distribution.logprobs for prediction in predictions])
    places = np.array([labels.index(row.answer) for row in rows])
    true_logprobs = logprobs[np.arange(len(rows)), places]
    return PromptScore(
        prompt=prompt,
        accuracy=float((logprobs.argmax(axis=1) == places).mean()),
        log_loss=float(-true_logprobs.mean()),
    )


def main() -> None:
    """Print the scores of each example's prompts, and which is the best."""
    for name, templates in PROMPTS.items():
        task = Task.from_file(EXAMPLES / name / "task.toml")
        print(f"{name}: {len(task.train) + len(task.validation)} labelled rows")
        labels = ", ".join(task.labels.labels)
        scores = [prompt_score(task, template.format(labels=labels)) for template in templates]
        best = max(scores, key=lambda score: (score.accuracy, -score.log_loss))
        for score in scores:
            mark = "best" if score is best else ""
            print(f"  {score.accuracy:.3f}  log loss {score.log_loss:.3f}  {mark:4}  {score.prompt}")


if __name__ == "__main__":
    main()
