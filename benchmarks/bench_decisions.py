"""What a head makes of the distributions of decision models, beside the peers that get the same inputs.

    python benchmarks/bench_decisions.py --recorded DIR_WITH_CSV [--data DIR_WITH_JSONL] [--options DIR_WITH_NPZ]
                                         [--draws 10] [--labelled 150] [--keep DIR]

Labelled rows are drawn `--draws` times; all sides learn from these and are judged on the same other rows:

as answered   the distribution itself,
temperature   one temperature,
ReAnchor      weights of the labels by DSPy's own fit, which moves the answer alone, then one temperature,
LR            logistic regression on the log-probabilities,
TF-IDF        words, pairs, pieces and the labels' names; logistic regression, labels weighed alike,
MiniLM        sentence vectors; logistic regression,
LR + MiniLM   logistic regression on log-probabilities and sentence vectors,
head          `fit_head` with the texts, where there are any,
head+features with the model's features as well, where it has any,
head+MiniLM   with the sentence vectors as well.

Figures are means over draws: accuracy, Brier score halved, ECE in 15 bins, the ECE of labels that are drawn from the
predicted probabilities themselves, and the share of rows that could be kept at 0.95 right in hindsight.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from _decision_sets import (
    MODEL_TASKS,
    RECORDED,
    Array,
    DecisionSet,
    Vectors,
    model_set,
    option_sets,
    recorded_set,
)
from _minilm import MiniLM
from _peers import words_alone
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from threadpoolctl import threadpool_limits

from calibrant.calibration import certify_threshold
from calibrant.heads import EmbeddingModel, fit_head

BINS: Final = 15
DRAWN_LABELS: Final = 200
TEST_ROWS: Final = 1000
LEAST_SHARE: Final = 1e-9
SAME_INPUTS: Final = {
    "head": ("as answered", "temperature", "ReAnchor", "LR", "TF-IDF"),
    "head+MiniLM": ("as answered", "temperature", "ReAnchor", "LR", "TF-IDF", "MiniLM", "LR + MiniLM"),
}
SLACK: Final = {"Brier": 0.003, "accuracy": 0.005, "ECE": 0.03}

Places = NDArray[np.intp]


def temperature_of(logprobs: Array, answers: Places) -> float:
    """Return the inverse temperature of least log loss."""

    def loss(log_inverse: float) -> float:
        found = log_softmax(logprobs * np.exp(log_inverse), axis=1)
        return -float(found[np.arange(len(answers)), answers].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x))


def tempered(taught: Array, answers: Places, asked: Array) -> Array:
    """Return distributions at the temperature that labelled rows ask for."""
    found: Array = np.exp(log_softmax(asked * temperature_of(taught, answers), axis=1))
    return found


def reanchored(taught: Array, answers: Places, asked: Array, labels: Sequence[str]) -> Array:
    """Return distributions times the weights that DSPy's ReAnchor fits on accuracy, at a temperature."""
    from dspy.teleprompt.reanchor.calibrate import _fit_weights

    shares = np.exp(taught)
    field = {"weights": {}}

    def score() -> list[float]:
        weights = np.array([field["weights"].get(label, 1.0) for label in labels])
        right: list[float] = ((shares * weights).argmax(axis=1) == answers).astype(float).tolist()
        return right

    evidence = [{"probabilities": dict(zip(labels, share, strict=True))} for share in shares.tolist()]
    kind: Any = SimpleNamespace(criteria=lambda: dict.fromkeys(labels))
    predict: Any = SimpleNamespace(fields={"label": field})
    fitted, *_ = _fit_weights(predict, "label", kind, evidence, score, score())
    offsets = np.log([fitted[label] for label in labels])
    return tempered(taught + offsets, answers, asked + offsets)


def regressed(taught: Array, answers: Places, asked: Array, *, n_labels: int, c: float = 1.0) -> Array:
    """Return what scikit-learn's logistic regression says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near the optimum is near enough
        model = LogisticRegression(C=c, max_iter=2000).fit(taught, answers)
    found = np.full((len(asked), n_labels), LEAST_SHARE)
    found[:, model.classes_] = np.maximum(model.predict_proba(asked), LEAST_SHARE)
    return found / found.sum(axis=1, keepdims=True)


def fitted(
    found: DecisionSet,
    taught: Places,
    asked: Places,
    *,
    with_features: bool = False,
    encoder: EmbeddingModel | None = None,
) -> Array:
    """Return what a head says."""
    features = found.features if with_features else None
    head = fit_head(
        found.logprobs[taught],
        found.answers[taught],
        labels=found.labels,
        texts=None if found.texts is None else [found.texts[place] for place in taught],
        features=None if features is None else features[taught],
        embedding=encoder,
    )
    return np.exp(
        head.transform(
            found.logprobs[asked],
            None if found.texts is None else [found.texts[place] for place in asked],
            features=None if features is None or not head.uses_features else features[asked],
        )
    )


def sides_of(found: DecisionSet, taught: Places, asked: Places, encoder: Vectors | None) -> dict[str, Array]:
    """Return what every side says of the test rows of one draw."""
    x, y, z = found.logprobs[taught], found.answers[taught], found.logprobs[asked]
    n_labels = len(found.labels)
    sides = {
        "as answered": np.exp(z),
        "temperature": tempered(x, y, z),
        "ReAnchor": reanchored(x, y, z, found.labels),
        "LR": regressed(x, y, z, n_labels=n_labels),
        "head": fitted(found, taught, asked),
    }
    if found.texts is not None:
        pairs = [(found.texts[place], found.labels[found.answers[place]]) for place in taught]
        sides["TF-IDF"] = words_alone(pairs, [found.texts[place] for place in asked], list(found.labels))
    if found.features is not None:
        sides["head+features"] = fitted(found, taught, asked, with_features=True)
    if encoder is not None and found.vectors is not None:
        v, w = found.vectors[taught], found.vectors[asked]
        sides["MiniLM"] = regressed(v, y, w, n_labels=n_labels, c=10.0)
        sides["LR + MiniLM"] = regressed(np.hstack([x, v]), y, np.hstack([z, w]), n_labels=n_labels)
        sides["head+MiniLM"] = fitted(found, taught, asked, encoder=encoder)
    return sides


def brier_rows(shares: Array, answers: Places) -> Array:
    """Return the halved Brier score of each row."""
    found: Array = ((shares - np.eye(shares.shape[1])[answers]) ** 2).sum(axis=1) / 2
    return found


def ece(confidence: Array, right: Array) -> float:
    """Return the expected calibration error in 15 bins, closed on the right."""
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(place, weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def figures_of(shares: Array, answers: Places, rng: np.random.Generator) -> dict[str, float]:
    """Return the figures of one side in one draw."""
    best, confidence = shares.argmax(axis=1), shares.max(axis=1)
    right = (best == answers).astype(float)
    order = np.argsort(-confidence, kind="stable")
    so_far = np.cumsum(right[order]) / np.arange(1, len(right) + 1)
    enough = np.flatnonzero(so_far >= 0.95)
    drawn = [
        ece(confidence, (rng.random(len(right)) < confidence).astype(float)) for _ in range(DRAWN_LABELS)
    ]
    return {
        "accuracy": float(right.mean()),
        "Brier": float(brier_rows(shares, answers).mean()),
        "ECE": ece(confidence, right),
        "own ECE": float(np.mean(drawn)),
        "kept": float((enough[-1] + 1) / len(right)) if len(enough) else 0.0,
    }


def compare(
    found: DecisionSet, encoder: MiniLM, *, n_labelled: int, n_draws: int
) -> dict[str, dict[str, float]]:
    """Print the figures of a set and the bars that it misses; return the figures by side."""
    vectors = None if found.vectors is None else Vectors(found, encoder)
    by_side: dict[str, list[dict[str, float]]] = defaultdict(list)
    losses: dict[str, list[Array]] = defaultdict(list)
    for seed, (taught, asked) in enumerate(found.draws(n_labelled, n_draws, n_test=TEST_ROWS)):
        truth = found.answers[asked]
        for side, shares in sides_of(found, taught, asked, vectors).items():
            by_side[side].append(figures_of(shares, truth, np.random.default_rng(seed)))
            losses[side].append(brier_rows(shares, truth))
    means = {
        side: {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}
        for side, draws in by_side.items()
    }
    print(f"\n{found.name}: {n_labelled} labelled rows, {n_draws} draws, {len(truth)} test rows")
    print("                 accuracy   Brier    ECE  own ECE  kept at 0.95")
    for side, figures in means.items():
        print(f"  {side:14}" + "".join(f"  {figures[name]:7.3f}" for name in figures), flush=True)
    for head, peers in SAME_INPUTS.items():
        if head in means:
            for line in missed_bars(head, [peer for peer in peers if peer in means], means, losses):
                print(f"  missed by {head}: {line}", flush=True)
    return means


def missed_bars(
    head: str,
    peers: Sequence[str],
    means: Mapping[str, Mapping[str, float]],
    losses: Mapping[str, Sequence[Array]],
) -> list[str]:
    """Return a line for each bar that a head misses."""
    missed = []
    best = min(peers, key=lambda peer: means[peer]["Brier"])
    apart = [mine - theirs for mine, theirs in zip(losses[head], losses[best], strict=True)]
    difference = float(np.mean([each.mean() for each in apart]))
    error = float(np.mean([each.std(ddof=1) / np.sqrt(len(each)) for each in apart]))
    if difference > SLACK["Brier"] + error:
        missed.append(f"Brier {difference:+.4f} from the best peer, {best} (standard error {error:.4f})")
    mine, answered = means[head], means["as answered"]
    if mine["accuracy"] < answered["accuracy"] - SLACK["accuracy"]:
        missed.append(f"accuracy {mine['accuracy'] - answered['accuracy']:+.4f} from as answered")
    if mine["ECE"] > mine["own ECE"] + SLACK["ECE"]:
        missed.append(
            f"ECE {mine['ECE'] - mine['own ECE']:+.4f} above that of labels drawn from its own probabilities"
        )
    return missed


def certified(found: DecisionSet, encoder: MiniLM, *, n_draws: int) -> None:
    """Print the share that a certificate keeps with 500 labels: a half teaches, the other half certifies."""
    vectors = Vectors(found, encoder)
    v = np.zeros((0, 0)) if found.vectors is None else found.vectors
    makers: dict[str, Callable[[Places, Places], Array]] = {
        "as answered": lambda _, asked: np.exp(found.logprobs[asked]),
        "MiniLM": lambda taught, asked: regressed(
            v[taught], found.answers[taught], v[asked], n_labels=len(found.labels), c=10.0
        ),
        "head": lambda taught, asked: fitted(found, taught, asked),
        "head+MiniLM": lambda taught, asked: fitted(found, taught, asked, encoder=vectors),
    }
    print(
        f"\n{found.name}: certificate of 0.90 right with probability 0.9, 500 labels in all, {n_draws} draws"
    )
    for side, make in makers.items():
        kept, broken = [], 0
        for labelled, asked in found.draws(500, n_draws, n_test=TEST_ROWS):
            taught, judged = labelled[:250], labelled[250:]
            shares = make(taught, np.concatenate([judged, asked]))
            confidence, best = shares.max(axis=1), shares.argmax(axis=1)
            right = best == found.answers[np.concatenate([judged, asked])]
            threshold = certify_threshold(
                confidence[:250], right[:250], target_accuracy=0.9, delta=0.1
            ).threshold
            accepted = (
                np.zeros(len(asked), dtype=bool) if threshold is None else confidence[250:] >= threshold
            )
            kept.append(accepted.mean())
            broken += bool(accepted.any() and right[250:][accepted].mean() < 0.9)
        print(
            f"  {side:14}  kept {np.mean(kept):.3f}, fewer than 0.90 right in {broken} of {n_draws} draws",
            flush=True,
        )


def rounding_limit(found: DecisionSet) -> None:
    """Print what two decimals cost a forest that learns the distributions of three quarters of all rows.

    Far more labels than a head has, and no assumption of a shape: what is lost there, no labels bring back.
    """

    def losses(given: DecisionSet) -> Array:
        lost = np.empty(len(given.answers))
        for taught, asked in KFold(4, shuffle=True, random_state=0).split(given.answers):
            forest = RandomForestClassifier(500, min_samples_leaf=8, random_state=0)
            forest.fit(given.logprobs[taught], given.answers[taught])
            shares = np.zeros((len(asked), len(given.labels)))
            shares[:, forest.classes_] = forest.predict_proba(given.logprobs[asked])
            lost[asked] = brier_rows(shares, given.answers[asked])
        return lost

    cost = losses(found.rounded()) - losses(found)
    error = cost.std(ddof=1) / len(cost) ** 0.5
    n_taught = len(cost) * 3 // 4
    print(
        f"\n{found.name}: two decimals cost a forest of {n_taught} rows {cost.mean():+.4f} Brier "
        f"(standard error {error:.4f})",
        flush=True,
    )


def main() -> None:
    """Run all sets that are here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--options", type=Path)
    parser.add_argument("--tasks", nargs="*", default=MODEL_TASKS)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--labelled", type=int, default=150)
    parser.add_argument("--keep", type=Path, help="folder of answers and vectors")
    options = parser.parse_args()
    threadpool_limits(1)  # the matrices are small: threads would only wait for each other
    encoder = MiniLM()
    means: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)

        def run(found: DecisionSet, n_labelled: int) -> None:
            means[f"{found.name}, {n_labelled}"] = compare(
                found, encoder, n_labelled=n_labelled, n_draws=options.draws
            )

        if options.recorded is not None:
            for name in RECORDED:
                found = recorded_set(name, options.recorded, encoder, keep)
                for n_labelled in (
                    (options.labelled, 500) if len(found.answers) > 600 else (options.labelled,)
                ):
                    run(found, n_labelled)
                run(found.rounded(), options.labelled)
                rounding_limit(found)
                if name == "emotion":
                    certified(found, encoder, n_draws=10 * options.draws)
        if options.options is not None:
            for found in option_sets(options.options):
                run(found, options.labelled)
        if options.data is not None:
            for name in options.tasks:
                run(model_set(name, options.data, encoder, keep), options.labelled)
    report(means)


def report(means: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Print what the bars compare over all sets."""
    print("\nover all sets")
    against = [sides["head"]["Brier"] - sides["ReAnchor"]["Brier"] for sides in means.values()]
    print(
        f"  Brier of head - ReAnchor with a temperature: {np.mean(against):+.4f} on the mean of {len(against)} sets"
    )
    for name, sides in means.items():
        plain = name.replace(", two decimals", "")
        if plain != name and plain in means:
            cost = sides["head"]["Brier"] - means[plain]["head"]["Brier"]
            print(f"  two decimals cost {cost:+.4f} Brier of the head on {plain}")


if __name__ == "__main__":
    main()
