"""MAPIE's Learn-then-Test controller on the samples of bench_certify.py, which calls this with --mapie."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial

import numpy as np
from mapie.risk_control import BinaryRisk, MultiClassificationLTTController, abstention_rate
from numpy.typing import NDArray

from calibrant.calibration import certify_threshold

Array = NDArray[np.float64]
Places = NDArray[np.intp]


def promised(confidence: Array, correct: Array, drawn: Places, target: float, delta: float) -> float | None:
    """Return the threshold that `certify_threshold` finds on a sample; None without one."""
    return certify_threshold(confidence[drawn], correct[drawn], target_accuracy=target, delta=delta).threshold


def promised_by_mapie(
    confidence: Array, correct: Array, drawn: Places, target: float, delta: float, *, in_sequence: bool
) -> float | None:
    """Return the threshold that MAPIE's controller finds on a sample; None without one.

    Two classes stand for the labels: the predicted one, whose probability is the confidence, and all others.
    """
    kept_accuracy = BinaryRisk(
        risk_occurrence=lambda y_true, y_pred: y_pred == y_true,
        risk_condition=lambda y_true, y_pred: ~np.isnan(y_pred),  # noqa: ARG005 (MAPIE's signature)
        higher_is_better=True,
    )
    grid = np.linspace(1.0, 0.0, 101) if in_sequence else np.linspace(0.0, 0.99, 100)
    # The predicted class has the higher probability even where the answer's own is below one half.
    predicted = 0.5 + confidence / 2.0
    controller = MultiClassificationLTTController(
        predict_function=lambda places: np.stack((1.0 - predicted, predicted), axis=1)[places],
        risks=[kept_accuracy],
        target_level=[target],
        confidence_level=1.0 - delta,
        best_predict_param_choice=abstention_rate,
        list_predict_params=0.5 + grid / 2.0,
        classes=[0, 1],
        fwer_method="fixed_sequence" if in_sequence else "bonferroni_holm",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where no threshold holds
        controller.calibrate(drawn, correct[drawn].astype(int))
    best = controller.best_predict_param
    return None if best is None else 2.0 * float(np.ravel(best)[0]) - 1.0


def compare(
    populations: Mapping[str, tuple[Array, Array]],
    targets: Mapping[str, tuple[float, ...]],
    *,
    draws: int,
    rows: int,
    delta: float,
    seed: int,
) -> None:
    """Print how often each side's promise is broken, and what it keeps.

    Parameters
    ----------
    populations : mapping of str to (confidence, correct)
        Recorded answers, shape (n,) each.
    targets : mapping of str to floats
        Accuracies to promise.
    draws, rows : int
        Samples, and rows of each.
    delta : float
        Most of the samples whose promise may be broken.
    seed : int
        Draws the samples.
    """
    sides = {
        "calibrant": promised,
        "MAPIE": partial(promised_by_mapie, in_sequence=False),
        "MAPIE, in sequence": partial(promised_by_mapie, in_sequence=True),
    }
    print(f"{draws} samples of {rows} rows, delta {delta}")
    print(f"{'population':28} {'target':>6} {'':20} {'wrong':>6} {'coverage':>8} {'nothing':>8}")
    for name, (confidence, correct) in populations.items():
        for target in targets[name]:
            rng = np.random.default_rng(seed)
            samples = [rng.integers(len(confidence), size=rows) for _ in range(draws)]
            for title, side in sides.items():
                found = [side(confidence, correct, drawn, target, delta) for drawn in samples]
                shown = summary(confidence, correct, found, target)
                print(f"{name + ', default':28} {target:6.2f} {title:20} {shown}", flush=True)


def summary(confidence: Array, correct: Array, found: list[float | None], target: float) -> str:
    """Return the share of broken promises, the mean coverage, and the share of samples without a threshold."""
    kept = [np.zeros(len(confidence), bool) if one is None else confidence >= one for one in found]
    wrong = np.mean([bool(rows.any()) and correct[rows].mean() < target for rows in kept])
    nothing = np.mean([one is None for one in found])
    return f"{wrong:6.3f} {np.mean(kept):8.3f} {nothing:8.3f}"
