"""Tests of the scoreboard: its arithmetic, its verdicts, and that page and picture are drawn from its record."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from _board import page, picture, sentences, terminal_lines
from _contenders import CONTENDERS, DEFAULT, RAW, VECTORS, WITH_VECTORS, Answered, Draw
from _decision_sets import DecisionSet
from _score_figures import Resampled
from scoreboard import as_json, record_of, split

from calibrant.metrics import aurc, expected_calibration_error, multiclass_brier_score

ROOT = Path(__file__).parents[1]
RECORD: dict[str, Any] = json.loads((ROOT / "docs" / "assets" / "scoreboard.json").read_text("utf-8"))
PAGE = (ROOT / "docs" / "scoreboard.md").read_text(encoding="utf-8")


def shares(n: int = 80, n_labels: int = 3) -> np.ndarray:
    """Return distributions in tenths, so that many confidences are tied."""
    found = np.random.default_rng(0).dirichlet(np.ones(n_labels), size=n).round(1)
    found[:, 0] += 1.0 - found.sum(axis=1)
    return np.abs(found) / np.abs(found).sum(axis=1, keepdims=True)


def truth(n: int = 80) -> np.ndarray:
    """Return true labels."""
    return np.random.default_rng(1).integers(3, size=n)


def a_set(n_pool: int | None = None) -> DecisionSet:
    """Return 400 rows of three labels, whose answers are mostly right, without texts."""
    rng = np.random.default_rng(2)
    answers = rng.integers(3, size=400)
    logits = rng.normal(size=(400, 3)) + 2.0 * np.eye(3)[answers]
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return DecisionSet(
        name="planted", labels=("a", "b", "c"), logprobs=logprobs, answers=answers, n_pool=n_pool
    )


def test_the_page_is_drawn_from_the_record() -> None:
    """Every figure of the page and of the picture is that of the record."""
    assert page(RECORD) == PAGE
    assert picture(RECORD) == (ROOT / "docs" / "assets" / "scoreboard.svg").read_text(encoding="utf-8")
    assert json.loads(as_json(RECORD)) == RECORD


def test_the_verdicts_follow_from_the_figures() -> None:
    """The page names each set where the default is more than 0.005 Brier above the best that reads the same, alone."""
    line = next(line for line in PAGE.splitlines() if line.startswith("- The default is within"))
    missed = set()
    for one_set in RECORD["sets"]:
        scores = {
            one["name"]: one["Brier"][0] for one in one_set["contenders"] if "vectors" not in one["reads"]
        }
        own = scores["default head"]
        # A score of the record is rounded: so near the bar the difference decides, which was rounded once.
        best = min(scores, key=lambda name: scores[name])
        behind = next(one for one in one_set["contenders"] if one["name"] == best)["behind"]["default head"][
            0
        ]
        assert behind == pytest.approx(own - scores[best], abs=2e-4)
        if behind > 0.005:
            missed.add(one_set["name"])
    assert f"on {len(RECORD['sets']) - len(missed)} of {len(RECORD['sets'])} sets" in line
    assert {one_set["name"] for one_set in RECORD["sets"] if f"{one_set['name']} +" in line} == missed


def test_lost_accuracy_is_named() -> None:
    """The page names each set where the default is less accurate than as scored with its whole interval, alone."""
    line = next(
        line for line in PAGE.splitlines() if line.startswith("- The default is") and "less accurate" in line
    )
    lower = set()
    for one_set in RECORD["sets"]:
        figures = {one["name"]: one for one in one_set["contenders"]}
        gain = figures["default head"]["gain"]
        scored = figures["as scored"]["accuracy"][0]
        assert gain[0] == pytest.approx(figures["default head"]["accuracy"][0] - scored, abs=2e-4)
        if gain[2] < 0.0:
            lower.add(one_set["name"])
    assert {one_set["name"] for one_set in RECORD["sets"] if one_set["name"] in line} == lower


def planted(default: float, rival: float, *, gain: float = 0.0) -> dict[str, Any]:
    """Return a record of one set, with Brier scores of the default and of one rival."""

    def contender(name: str, score: float, *reads: str) -> dict[str, Any]:
        behind = {DEFAULT: [default - score] * 3, WITH_VECTORS: [default - score] * 3}
        return {
            "name": name,
            "reads": list(reads),
            "Brier": [score] * 3,
            "gain": [gain] * 3,
            "behind": behind,
        }

    contenders = [
        contender(DEFAULT, default, "answers", "text"),
        contender(WITH_VECTORS, default, "answers", "text", VECTORS),
        contender("rival", rival, "answers"),
    ]
    return {"sets": [{"name": "a set", "contenders": contenders}]}


def test_a_gap_above_the_bar_is_named_with_its_rival() -> None:
    """0.006 above the best is a miss that is named; 0.004 is none."""
    assert (
        "on 0 of 1 sets. It is not on: a set +0.0060 (+0.0060 to +0.0060) from rival"
        in sentences(planted(0.206, 0.200))[0]
    )
    assert sentences(planted(0.204, 0.200))[0].endswith("on 1 of 1 sets.")


def test_accuracy_that_is_surely_lower_is_named() -> None:
    """An interval below 0 is a loss, one at 0 is none."""
    assert (
        "less accurate than the answers as scored by more than noise on 1 of 1 sets"
        in sentences(planted(0.2, 0.2, gain=-0.01))[1]
    )
    assert "on no set" in sentences(planted(0.2, 0.2))[1]


def test_figures_are_those_of_the_metrics() -> None:
    """Brier score, calibration error and AURC as measured are those of calibrant.metrics, with many ties."""
    answered = Answered.of(shares())
    resampled = Resampled("set", truth(), n_draws=2, n_resamples=20)
    right = (answered.labels == truth()).astype(float)
    twice = [answered, answered]
    assert resampled.accuracy(twice)[0] == pytest.approx(right.mean())
    assert resampled.brier(twice)[0] == pytest.approx(multiclass_brier_score(shares(), truth()))
    assert resampled.ece(twice)[0] == pytest.approx(expected_calibration_error(answered.confidence, right))
    assert resampled.aurc(twice)[0] == pytest.approx(aurc(answered.confidence, right))


def test_resampled_areas_are_those_of_the_resampled_rows() -> None:
    """The mean of resampled AURCs is that of AURCs of rows drawn with replacement."""
    answered = Answered.of(shares())
    right = (answered.labels == truth()).astype(float)
    found = Resampled("set", truth(), n_draws=1, n_resamples=2_000).aurc([answered])[1:]
    rng = np.random.default_rng(3)
    drawn = [rng.integers(80, size=80) for _ in range(1_000)]
    expected = [aurc(answered.confidence[rows], right[rows]) for rows in drawn]
    assert found.mean() == pytest.approx(np.mean(expected), abs=0.006)
    assert found.std() == pytest.approx(np.std(expected), rel=0.1)


def test_a_certificate_keeps_rows_that_did_not_make_it() -> None:
    """Sure and right rows are all kept, also in the half that is judged; unsure ones are not."""
    answers = np.zeros(200, dtype=np.intp)
    sure = np.repeat([[0.99, 0.01]], 200, axis=0)
    resampled = Resampled("set", answers, n_draws=1, n_resamples=10)
    share, right = resampled.kept([Answered.of(sure)])
    assert (share[0], right) == (1.0, 1.0)
    wrong = np.repeat([[0.01, 0.99]], 200, axis=0)
    share, right = resampled.kept([Answered.of(wrong)])
    assert share[0] == 0.0
    assert np.isnan(right)


def test_the_share_kept_is_that_of_the_other_half() -> None:
    """Of the half that does not certify, 30 of 100 rows are less sure than those that do."""
    judged = np.random.default_rng(0).permutation(200)[100:]  # the first draw has seed 0
    sure = np.repeat([[0.99, 0.01]], 200, axis=0)
    sure[judged[:30]] = [0.6, 0.4]
    resampled = Resampled("set", np.zeros(200, dtype=np.intp), n_draws=1, n_resamples=10)
    assert resampled.kept([Answered.of(sure)])[0][0] == pytest.approx(0.7)


def test_rows_without_evidence_have_the_area_of_any_order() -> None:
    """Scores that are all 0 give the share of errors."""
    answered = Answered.of(shares())
    right = (answered.labels == truth()).astype(float)
    found = Resampled("set", truth(), n_draws=1, n_resamples=10).aurc([answered], [np.zeros(80)])
    assert found[0] == pytest.approx(1.0 - right.mean())


def test_a_calibrated_confidence_keeps_the_label() -> None:
    """The label is that as scored even where its confidence falls below another label's share; rows sum to 1."""
    before = Answered.of(np.array([[0.6, 0.39, 0.01], [1.0, 0.0, 0.0]]))
    after = before.with_confidence(np.array([0.2, 0.7]))
    assert after.labels.tolist() == [0, 0]
    assert after.shares.sum(axis=1) == pytest.approx([1.0, 1.0])
    assert after.shares[0] == pytest.approx([0.2, 0.78, 0.02])
    assert after.shares[1] == pytest.approx([0.7, 0.15, 0.15])


@pytest.mark.parametrize("n_pool", [None, 200])
def test_test_rows_are_fixed_and_never_taught(n_pool: int | None) -> None:
    """All draws are judged on the same rows, and learn from others."""
    found = split(a_set(n_pool), 100)
    draws = list(found.draws(150, 3, n_test=len(found.answers)))
    assert all(asked.tolist() == draws[0][1].tolist() for _, asked in draws)
    assert len(draws[0][1]) == 100
    assert not any(set(taught) & set(asked) for taught, asked in draws)


def test_contenders_answer_every_test_row() -> None:
    """All that read no text give distributions of a set without texts, and their figures fit into 80 columns."""
    found = split(a_set(), 100)
    (taught, asked), *_ = found.draws(100, 1, n_test=1000)
    draw = Draw(found, taught, asked, engine=None, encoder=None)
    able = {name: one for name, one in CONTENDERS.items() if one.can_read(found) and name != "ReAnchor"}
    said = {name: [one.answer(draw)] for name, one in able.items()}
    assert {RAW, DEFAULT, "Platt", "temperature", "LR on answers"} <= said.keys()
    for (answered,) in said.values():
        assert answered.shares.shape == (100, 3)
        assert answered.shares.sum(axis=1) == pytest.approx(np.ones(100))
    lines = list(terminal_lines(record_of(found, "options", said)))
    assert max(map(len, lines[1:])) <= 80
