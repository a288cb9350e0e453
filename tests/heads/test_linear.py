"""Tests of the regression of a head: it is at the minimum of its objective, written out on explicit columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_union

from calibrant.heads._linear import Design, HeadRows
from head_rows import halves

Array = NDArray[np.float64]
NAMES = ("still", "rising_up", "FallingDown")
N = 45


def given() -> tuple[HeadRows, NDArray[np.intp]]:
    """Return rows of three labels, some of them rare, whose blocks all know something."""
    rng = np.random.default_rng(0)
    answers = np.where(np.arange(N) % 9 == 0, 2, np.arange(N) % 2)
    eye = np.eye(3)[answers]
    vectors = eye @ rng.normal(size=(3, 4)) + rng.normal(size=(N, 4))
    rows = HeadRows.of(
        eye + rng.normal(size=(N, 3)) + [2.0, 0.0, 0.0],
        features=np.hstack([5.0 * eye + 3.0 * rng.normal(size=(N, 3)) + 9.0, np.ones((N, 1))]),
        texts=halves(N).texts,
    )
    return (
        HeadRows(
            logprobs=rows.logprobs,
            features=rows.features,
            texts=rows.texts,
            embeddings=vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
            name_embeddings=np.eye(3, 4),
        ),
        answers,
    )


def columns(rows: HeadRows, block: str) -> tuple[Array, Array | None]:
    """Return the columns of a block, of mean squared length about 1, and its score of each label."""
    if block == "text":
        assert rows.texts is not None
        union = make_union(
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True),
        )
        together = union.fit_transform([*rows.texts, "still", "rising up", "Falling Down"]).toarray() / 2**0.5
        return together[:N], together[:N] @ together[N:].T
    if block == "embeddings":
        assert rows.embeddings is not None
        assert rows.name_embeddings is not None
        return rows.embeddings, rows.embeddings @ rows.name_embeddings.T
    found = rows.logprobs if block == "labels" else rows.features
    assert found is not None
    spread = found.std(axis=0)
    standard = (found - found.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0) / found.shape[1] ** 0.5
    return standard, rows.logprobs if block == "labels" else None


def least(
    rows: HeadRows, answers: NDArray[np.intp], strengths: dict[str, float], *, by_label: bool = True
) -> Array:
    """Return the distributions at the minimum: weights around 1, intercepts, and coefficients of every column."""
    eye, spreads, centres = np.eye(3), [3.0] * 3, [0.0] * 3
    parts: list[NDArray[Any]] = [np.tile(eye, (N, 1))]
    for block, strength in strengths.items():
        matrix, scores = columns(rows, block)
        if scores is not None:
            parts, spreads, centres = [*parts, scores.reshape(-1, 1)], [*spreads, 10.0], [*centres, 1.0]
        if strength > 0.0:
            parts.append(np.kron(matrix, eye))
            spreads += [strength**0.5] * parts[-1].shape[1]
            centres += [0.0] * parts[-1].shape[1]
    design, spread, centre = np.hstack(parts), np.array(spreads), np.array(centres)
    weights = 1.0 / (np.bincount(answers)[answers] + 2.0) if by_label else np.ones(N)
    weights *= N / weights.sum()

    def objective(parameters: Array) -> tuple[float, Array]:
        log_p = log_softmax((design @ parameters).reshape(N, 3), axis=1)
        away = (parameters - centre) / spread
        slope = design.T @ (weights[:, None] * (np.exp(log_p) - eye[answers])).ravel() + away / spread
        return float(-(weights * log_p[np.arange(N), answers]).sum() + (away**2).sum() / 2.0), slope

    bounds = [(0.0, None) if one == 1.0 else (None, None) for one in centres]
    options = {"ftol": 1e-14, "gtol": 1e-8, "maxiter": 20_000, "maxfun": 20_000}
    found = minimize(objective, centre, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    log_p: Array = log_softmax((design @ found.x).reshape(N, 3), axis=1)
    return log_p


@pytest.mark.parametrize("most", [0, 2000], ids=["in columns", "in products"])
@pytest.mark.parametrize(
    "strengths",
    [
        {"labels": 0.0},
        {"labels": 4.0},
        {"features": 4.0},
        {"text": 0.0, "embeddings": 0.0},
        {"text": 16.0},
        {"embeddings": 1.0},
        {"labels": 1.0, "features": 16.0, "text": 0.0, "embeddings": 4.0},
    ],
    ids=str,
)
def test_it_is_where_the_objective_is_least(
    strengths: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both solvers find the distributions that scipy finds on explicit columns, for any blocks."""
    monkeypatch.setattr("calibrant.heads._linear.MOST_IN_PRODUCTS", most)
    rows, answers = given()
    model = Design(rows, answers, label_names=NAMES).model(strengths)
    assert model.blocks == tuple(strengths)
    expected = np.exp(least(rows, answers, strengths))
    assert np.exp(model.log_proba(rows)) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("factor", [20.0, 50.0, 300.0])
@pytest.mark.parametrize(
    "strengths",
    [{"labels": 0.0}, {"labels": 4.0}, {"labels": 16.0, "text": 16.0, "embeddings": 16.0}],
    ids=str,
)
def test_large_scores_do_not_end_the_search(strengths: Any, factor: float) -> None:
    """The minimum is found, too, where log-probabilities are of a model that is far too sure."""
    rows, answers = given()
    sure = replace(rows, logprobs=factor * rows.logprobs)
    found = np.exp(Design(sure, answers, label_names=NAMES).model(strengths).log_proba(sure))
    assert found == pytest.approx(np.exp(least(sure, answers, strengths)), abs=5e-3)


def test_unless_labels_count_alike_rows_do() -> None:
    """The same without weights, which is another minimum."""
    rows, answers = given()
    found = Design(rows, answers, label_names=NAMES).model({"labels": 4.0}, by_label=False).log_proba(rows)
    assert np.exp(found) == pytest.approx(
        np.exp(least(rows, answers, {"labels": 4.0}, by_label=False)), abs=5e-3
    )
    assert np.abs(np.exp(found) - np.exp(least(rows, answers, {"labels": 4.0}))).max() > 0.05


def test_scores_that_mislead_weigh_nothing() -> None:
    """The weight of scores is not below 0: where they mislead, every row gets the same distribution."""
    rows, answers = given()
    turned = HeadRows.of(-3.0 * rows.logprobs)
    found = np.exp(Design(turned, answers, label_names=NAMES).model({"labels": 0.0}).log_proba(turned))
    assert found == pytest.approx(np.tile(found[0], (N, 1)), abs=1e-6)
    assert found == pytest.approx(np.exp(least(turned, answers, {"labels": 0.0})), abs=5e-3)
