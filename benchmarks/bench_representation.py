"""What a head gains by the default representation of the text, beside a model whose features are withheld.

    python benchmarks/bench_representation.py --recorded DIR_WITH_CSV --data DIR_WITH_JSONL [--draws 10]
                                              [--labelled 150] [--tasks NAME ...] [--keep DIR]

Recorded answers of a hosted model, and answers of the embedded model without its features; texts are represented by
the embedded engine, as everywhere where no option is named. All sides learn from the same labelled rows and are judged
on the same other rows:

as answered   the distribution itself,
TF-IDF        words, pairs, pieces and the labels' names; logistic regression, labels weighed alike,
vectors       the same representation, rows of length 1; logistic regression, labels weighed alike,
standardised  the same representation, columns standardised; logistic regression,
head alone    a head on answers and words,
head          a head on answers, words and the representation: the default.

The accuracy of the better of the two regressions on the representation is what the default is held against.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from _decision_sets import RECORDED, DecisionSet, model_set, recorded_set
from _minilm import MiniLM
from _peers import vectors_alone, words_alone
from bench_decisions import Places, brier_rows, fitted, regressed
from numpy.typing import NDArray

from calibrant.heads import EmbeddingModel
from calibrant.inference import open_embedding_model

TASKS: Final = ("ag_news", "emotion", "rotten_tomatoes", "sms_spam", "banking77", "banking", "requests")
MODEL: Final = "local/smollm2-135m"
TEST_ROWS: Final = 400
MANY_LABELS: Final = "banking77"
WEAK_WORDS: Final = 0.75

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Figures of the sides on one set.

    Attributes
    ----------
    name : str
        The set.
    accuracy : mapping of str to ndarray of shape (draws,)
        Accuracy of each side.
    error : float
        Standard error of the difference between the default and TF-IDF, over draws and test rows.
    """

    name: str
    accuracy: Mapping[str, Array]
    error: float

    def mean(self, side: str) -> float:
        """Return the mean accuracy of a side."""
        return float(self.accuracy[side].mean())

    @property
    def best_regression(self) -> float:
        """Mean accuracy of the better regression on the representation."""
        return max(self.mean("vectors"), self.mean("standardised"))


class Represented:
    """Embedding model that asks for no vector of a set twice."""

    def __init__(self, model: EmbeddingModel) -> None:
        self._model, self.name = model, model.name
        self._known: dict[str, Array] = {}

    def vectors(self, texts: Sequence[str]) -> Array:
        """Return one vector per text, shape (n, d), of length 1."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if missing:
            found = np.asarray(self._model.vectors(missing), dtype=float)
            lengths = np.linalg.norm(found, axis=1, keepdims=True)
            self._known.update(zip(missing, found / np.where(lengths > 0.0, lengths, 1.0), strict=True))
        return np.array([self._known[text] for text in texts])


def sides_of(found: DecisionSet, taught: Places, asked: Places, model: Represented) -> dict[str, Array]:
    """Return what every side says of the test rows of one draw."""
    every = found.texts or ()
    pairs = [(every[place], found.labels[found.answers[place]]) for place in taught]
    texts = [every[place] for place in asked]
    known, new = model.vectors([text for text, _ in pairs]), model.vectors(texts)
    spread = known.std(axis=0) + 1e-9
    return {
        "as answered": np.exp(found.logprobs[asked]),
        "TF-IDF": words_alone(pairs, texts, list(found.labels)),
        "vectors": vectors_alone(pairs, texts, list(found.labels), model),
        "standardised": regressed(
            (known - known.mean(axis=0)) / spread / known.shape[1] ** 0.5,
            found.answers[taught],
            (new - known.mean(axis=0)) / spread / known.shape[1] ** 0.5,
            n_labels=len(found.labels),
            c=16.0,
        ),
        "head alone": fitted(found, taught, asked),
        "head": fitted(found, taught, asked, encoder=model),
    }


def compare(found: DecisionSet, *, n_labelled: int, n_draws: int) -> Outcome:
    """Print the figures of a set and return them."""
    model = Represented(open_embedding_model(MODEL, labels=found.labels))
    accuracy: dict[str, list[float]] = defaultdict(list)
    brier: dict[str, list[float]] = defaultdict(list)
    apart = []
    for taught, asked in found.draws(n_labelled, n_draws, n_test=TEST_ROWS):
        truth = found.answers[asked]
        right = {}
        for side, shares in sides_of(found, taught, asked, model).items():
            right[side] = (shares.argmax(axis=1) == truth).astype(float)
            accuracy[side].append(float(right[side].mean()))
            brier[side].append(float(brier_rows(shares, truth).mean()))
        apart.append(right["head"] - right["TF-IDF"])
    print(f"\n{found.name}: {n_labelled} labelled rows, {n_draws} draws, {len(truth)} test rows")
    print("                accuracy   Brier")
    for side, figures in accuracy.items():
        print(f"  {side:14}  {np.mean(figures):.3f}    {np.mean(brier[side]):.3f}", flush=True)
    by_draw = np.array([each.mean() for each in apart])
    of_rows = np.mean([each.std(ddof=1) / len(each) ** 0.5 for each in apart])
    error = float(np.hypot(by_draw.std(ddof=1) / n_draws**0.5, of_rows))
    return Outcome(
        name=found.name,
        accuracy={side: np.array(figures) for side, figures in accuracy.items()},
        error=error,
    )


def report(title: str, outcomes: Sequence[Outcome], *, margin: float) -> None:
    """Print how the default stands to the bars on one group of sets."""
    mean = np.mean([outcome.mean("head") for outcome in outcomes])
    peer = np.mean([outcome.best_regression for outcome in outcomes])
    told = "met" if mean >= peer + margin else "missed"
    print(f"\n{title}: head {mean:.3f}, regression on the representation {peer:.3f} (+{margin:.2f}: {told})")
    for outcome in outcomes:
        if outcome.mean("head") < outcome.best_regression - 0.01:
            print(
                f"  missed on {outcome.name}: {outcome.mean('head') - outcome.best_regression:+.3f} from the regression"
            )
        gap = outcome.mean("head") - outcome.mean("TF-IDF")
        if gap < -2.0 * outcome.error:
            print(f"  missed on {outcome.name}: {gap:+.3f} from TF-IDF (standard error {outcome.error:.3f})")
    weak = [
        outcome.mean("head") - outcome.mean("TF-IDF")
        for outcome in outcomes
        if outcome.mean("TF-IDF") < WEAK_WORDS and outcome.name != MANY_LABELS
    ]
    if weak:
        print(
            f"  above TF-IDF by {np.mean(weak):+.3f} on the {len(weak)} sets where that is under {WEAK_WORDS}"
        )


def main() -> None:
    """Run all sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--labelled", type=int, default=150)
    parser.add_argument("--keep", type=Path, help="folder of answers and vectors")
    options = parser.parse_args()
    encoder = MiniLM()
    sizes = {"n_labelled": options.labelled, "n_draws": options.draws}
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        recorded = [
            compare(recorded_set(name, options.recorded, encoder, keep), **sizes) for name in RECORDED
        ]
        answered = [
            compare(replace(model_set(name, options.data, encoder, keep), features=None), **sizes)
            for name in options.tasks
        ]
    report("recorded answers", recorded, margin=0.01)
    report("the embedded model's answers, features withheld", answered, margin=0.0)


if __name__ == "__main__":
    main()
