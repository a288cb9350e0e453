"""Tests of temperature and vector scaling of whole distributions."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

from calibrant.calibration import TemperatureScaling, VectorScaling
from calibrant.core import ConfigurationError, Fingerprint, LogprobSpace, NotFittedError, StateError
from calibrant.metrics import multiclass_brier_score

Array = NDArray[np.float64]
KINDS = [TemperatureScaling, VectorScaling]
FINGERPRINT = Fingerprint(prompt="Sort.", model="local/tiny", space=LogprobSpace.RAW, labels=("a", "b", "c"))


def rows(
    n: int = 600, *, sharpen: float = 1.0, bias: float = 0.0, seed: int = 0
) -> tuple[Array, NDArray[np.intp]]:
    """Return log-probabilities over three labels, too sharp or biased to the first, and true labels."""
    rng = np.random.default_rng(seed)
    honest = log_softmax(rng.normal(scale=1.5, size=(n, 3)), axis=1)
    answers = np.array([rng.choice(3, p=p) for p in np.exp(honest)])
    return log_softmax(sharpen * honest + bias * np.array([1.0, 0.0, 0.0]), axis=1), answers


def log_loss(logits: Array, answers: NDArray[np.intp]) -> float:
    """Return the mean log loss of the rows after softmax."""
    return -float(log_softmax(logits, axis=1)[np.arange(len(answers)), answers].mean())


@pytest.mark.parametrize("sharpen", [0.4, 1.0, 3.0])
def test_temperature_has_the_least_log_loss(sharpen: float) -> None:
    """A general minimiser of the log loss finds the same temperature."""
    x, answers = rows(sharpen=sharpen)
    found = TemperatureScaling().fit(x, answers)
    reference = minimize(
        lambda t: log_loss(x / math.exp(t[0]), answers), [0.0], method="Nelder-Mead", tol=1e-10
    )
    assert found.temperature_ == pytest.approx(math.exp(reference.x[0]), rel=1e-4)
    assert found.temperature_ == pytest.approx(sharpen, rel=0.2)
    assert found.transform(x) == pytest.approx(log_softmax(x / found.temperature_, axis=1))
    assert (found.transform(x).argmax(axis=1) == x.argmax(axis=1)).all()


@pytest.mark.parametrize("l2", [1.0, 20.0])
def test_vector_scaling_has_the_least_penalised_log_loss(l2: float) -> None:
    """A general minimiser of the penalised log loss finds the same weights and offsets."""
    x, answers = rows(200, sharpen=2.0, bias=1.0)

    def loss(w: Array) -> float:
        penalty = l2 * (((w[:3] - 1) ** 2).sum() + (w[3:] ** 2).sum()) / (2 * len(x))
        return log_loss(x * w[:3] + w[3:], answers) + float(penalty)

    found = VectorScaling(l2=l2).fit(x, answers)
    reference = minimize(loss, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], method="BFGS", options={"gtol": 1e-7})
    assert np.concatenate([found.weight_, found.offset_]) == pytest.approx(reference.x, abs=1e-4)
    assert found.transform(x) == pytest.approx(log_softmax(x * found.weight_ + found.offset_, axis=1))


def test_vector_scaling_takes_a_preference_out() -> None:
    """Vector scaling of biased rows has a lower Brier score than one temperature, on fresh rows."""
    x, answers = rows(sharpen=2.0, bias=2.0)
    fresh, truth = rows(sharpen=2.0, bias=2.0, seed=1)
    temperature, vector = (kind().fit(x, answers).transform(fresh) for kind in KINDS)
    scores = [multiclass_brier_score(np.exp(z), truth) for z in (vector, temperature, fresh)]
    assert scores == sorted(scores)
    assert scores[0] < scores[1] - 0.01


def test_a_strong_pull_leaves_everything_as_it_is() -> None:
    """A strong penalty leaves the rows unchanged, and a label without rows is not ruled out."""
    x, answers = rows(sharpen=2.0)
    assert VectorScaling(l2=1e6).fit(x, answers).transform(x) == pytest.approx(x, abs=0.01)
    absent = np.minimum(answers, 1)
    assert VectorScaling().fit(x, absent).offset_.min() > -10.0
    assert np.isfinite(TemperatureScaling().fit(x, absent).transform(x)).all()


def test_one_row_or_right_rows_only_have_no_temperature() -> None:
    """Rows that are all right have no temperature, and one row hardly moves vector scaling."""
    x, _ = rows(5)
    for n in (1, 5):
        with pytest.raises(ConfigurationError, match="Expected right and wrong rows"):
            TemperatureScaling().fit(x[:n], x[:n].argmax(axis=1))
    assert np.abs(VectorScaling().fit(x[:1], [0]).offset_).max() < 1.0
    flat = TemperatureScaling().fit(np.log([[0.5, 0.5]]), [0])
    assert flat.temperature_ == 1.0
    wrong = TemperatureScaling().fit(x, x.argmin(axis=1))
    assert np.exp(wrong.transform(x)) == pytest.approx(np.full((5, 3), 1 / 3), abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_logits_stay_finite(kind: Any) -> None:
    """Masked logits give finite distributions, and a row can be transformed alone."""
    x, answers = rows(100, sharpen=2.0)
    x[::2, 2] = -3e38
    answers = np.minimum(answers, 1)
    scaled = kind().fit(x, answers).transform(x)
    assert np.isfinite(scaled).all()
    assert np.exp(scaled).sum(axis=1) == pytest.approx(1.0)
    assert kind().fit(x, answers).transform(x[0]) == pytest.approx(scaled[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("x", "answers"), [([[-1.0, math.nan]], [0]), ([[-1.0, -2.0]], [2])])
def test_bad_rows_are_refused(kind: Any, x: Any, answers: Any) -> None:
    """NaN in a row, or an answer out of range, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        kind().fit(x, answers)


def test_another_number_of_labels_is_refused() -> None:
    """Another number of labels raises ConfigurationError in `transform` and `save`."""
    x, answers = rows()
    found = VectorScaling().fit(x, answers)
    with pytest.raises(ConfigurationError, match="over 3 labels"):
        found.transform(x[:, :2])
    with pytest.raises(ConfigurationError, match="fingerprint of 3 labels"):
        found.save("nowhere.json", fingerprint=dataclasses.replace(FINGERPRINT, labels=("a", "b")))
    with pytest.raises(ConfigurationError, match="l2"):
        VectorScaling(l2=0.0)
    for kind in KINDS:
        with pytest.raises(NotFittedError, match="before fit"):
            kind().transform(x)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_scaling_comes_back_exactly_and_only_for_the_same(kind: Any, tmp_path: Path) -> None:
    """A loaded scaling is exact; another prompt, class or damaged file raises StateError."""
    x, answers = rows(sharpen=2.0)
    path = tmp_path / "scaling.json"
    original = kind().fit(x, answers)
    original.save(path, fingerprint=FINGERPRINT)
    loaded = kind.load(path, fingerprint=FINGERPRINT)
    assert loaded.transform(x).tolist() == original.transform(x).tolist()
    with pytest.raises(StateError, match="differs in prompt"):
        kind.load(path, fingerprint=dataclasses.replace(FINGERPRINT, prompt="Sort!"))
    other = next(k for k in KINDS if k is not kind)
    with pytest.raises(StateError, match="damaged"):
        other.load(path, fingerprint=FINGERPRINT)
    record = json.loads(path.read_text())
    record["state"].update({"temperature": 0, "offset": [0.0]})
    path.write_text(json.dumps(record))
    with pytest.raises(StateError, match="damaged"):
        kind.load(path, fingerprint=FINGERPRINT)


def test_scalings_print_their_parameters() -> None:
    """What a notebook shows of a scaling is its name with what it learned, before a fit the name alone."""
    found = TemperatureScaling().fit(np.log([[0.9, 0.1]] * 4), [0, 0, 0, 1])
    assert (str(TemperatureScaling()), str(found)) == (
        "TemperatureScaling()",
        "TemperatureScaling(temperature=2)",
    )
    assert (
        str(VectorScaling().fit(np.log([[0.6, 0.4]] * 9), [0, 1, 1] * 3)) == "VectorScaling(l2=1.0, labels=2)"
    )
