"""AutoMix from end to end: the small model verifies its own answers, and what that is worth is learned and tested.

    python examples/automix/automix.py
    python examples/automix/automix.py --small local/smollm2-135m --large openai/gpt-4.1-mini --large-cost 200

Without names two invented models answer, so that nothing has to run. Validation rows teach when the small model is to
be trusted; test rows say what that brings for its cost.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from calibrant.cascade import (
    AutoMixEntailment,
    Cascade,
    POMDPMetaVerifier,
    SelfConsistencyMetaVerifier,
    ThresholdMetaVerifier,
    Verifier,
    ibc_lift,
)
from calibrant.core import CalibrantError, Example, Prediction, Task
from calibrant.inference import Classifier
from calibrant.testing import fake_response

TASK = Path(__file__).parent.parent / "transactions" / "task.toml"
SAMPLES = 8


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="AutoMix: verify, learn when to trust, and measure the lift."
    )
    parser.add_argument("--task", type=Path, default=TASK, help="labels, prompt and rows, as TOML")
    parser.add_argument("--small", help="such as local/smollm2-135m; an invented model by default")
    parser.add_argument("--large", help="such as openai/gpt-4.1-mini; an invented model by default")
    parser.add_argument("--small-cost", type=float, default=1.0, help="of a call, in any unit")
    parser.add_argument("--large-cost", type=float, default=50.0, help="of a call, in the same unit")
    parser.add_argument("--rows", type=int, help="only so many rows of each split")
    return parser.parse_args()


def invented(task: Task, ability: float) -> Callable[[list[dict[str, str]]], object]:
    """Return a model that knows a share of the rows, and verifies its answers better than by chance."""
    answers = {row.input: row.answer for row in (*task.validation, *task.test)}
    votes: Counter[str] = Counter()

    def share(text: str) -> float:
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32

    def model(messages: list[dict[str, str]]) -> object:
        asked = messages[-1]["content"]
        if asked in answers:
            others = [label for label in task.labels.labels if label != answers[asked]]
            given = answers[asked] if share(asked) < ability else others[0]
            return fake_response(given, list(task.labels.labels))
        text = next(text for text in answers if json.dumps(text, ensure_ascii=False)[1:-1] in asked)
        votes[text] += 1
        agrees = share(f"{text} {votes[text]}") < (0.85 if share(text) < ability else 0.35)
        return fake_response("correct" if agrees else "incorrect", ["correct", "incorrect"], field="verdict")

    return model


def scores(predictions: Sequence[Prediction], rows: Sequence[Example]) -> np.ndarray:
    """Return 1 for every right answer and 0 for all others."""
    return np.array([float(found.label == row.answer) for found, row in zip(predictions, rows, strict=True)])


def main() -> int:
    """Learn on the validation rows, carry it out on the test rows, and print what it brought."""
    given = arguments()
    task = Task.from_file(given.task)
    small, large = (
        Classifier.from_task(task, model=name or invented(task, ability))
        for name, ability in ((given.small, 0.6), (given.large, 0.95))
    )
    # Self-verification: the small model is asked in this process whether its own answer is right.
    verifier = AutoMixEntailment(verifier=Verifier(small.client, k=SAMPLES))
    try:
        learn(task, small, large, verifier, given)
    except CalibrantError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        small.close()
        large.close()
    return 0


def learn(
    task: Task, small: Classifier, large: Classifier, verifier: AutoMixEntailment, given: argparse.Namespace
) -> None:
    """Fit meta-verifiers, and run each of them live."""
    validation, test = task.rows("validation")[: given.rows], task.rows("test")[: given.rows]
    # A cascade of one model answers and verifies; its confidence is the share of samples that agree.
    verified = Cascade([small], method=verifier, threshold=0.0).classify_many(
        [row.input for row in validation]
    )
    judged = [place for place, found in enumerate(verified) if found.confidence is not None]
    rows = [validation[place] for place in judged]
    answered = [verified[place] for place in judged]
    columns = (
        [found.confidence for found in answered],
        scores(answered, rows),
        scores(large.classify_many([row.input for row in rows]), rows),
    )
    # Verifying costs about one small call: the k samples share their prompt.
    price = {
        "small_cost": given.small_cost,
        "large_cost": given.large_cost,
        "verifier_cost": given.small_cost,
    }
    texts = [row.input for row in test]
    alone = [scores(one.classify_many(texts), test).mean() for one in (small, large)]
    print(f"{len(rows)} rows to learn from, {len(test)} to test on")
    print(f"{'small alone':<20} accuracy {alone[0]:.3f}, cost {given.small_cost:.2f}")
    print(f"{'large alone':<20} accuracy {alone[1]:.3f}, cost {given.large_cost:.2f}")
    for make in (POMDPMetaVerifier, ThresholdMetaVerifier, SelfConsistencyMetaVerifier):
        rule = make(k=SAMPLES) if make is POMDPMetaVerifier else make()
        rule.fit(*columns, **price)
        cascade = Cascade([small, large], method=verifier, meta_verifier=rule, escalation_order="declared")
        found = cascade.classify_many(texts)
        performance = float(scores(found, test).mean())
        routed = np.mean([len(one.steps) == 2 for one in found])
        cost = 2 * given.small_cost + given.large_cost * float(routed)
        lift = ibc_lift(
            performance=performance,
            cost=cost,
            small_performance=float(alone[0]),
            small_cost=given.small_cost,
            large_performance=float(alone[1]),
            large_cost=given.large_cost,
        )
        name = make.__name__.removesuffix("MetaVerifier")
        print(
            f"{name:<20} accuracy {performance:.3f}, cost {cost:.2f}, {routed:.0%} routed, IBC lift {lift:+.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
