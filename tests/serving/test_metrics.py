"""Tests of the service's metrics for Prometheus."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CONTENT_TYPE_LATEST

from calibrant.core import Outcome, Prediction, Step, Verdict
from calibrant.serving._metrics import ServiceMetrics, ks_distance
from calibrant.tuned import PredictionHistory, Tuned
from held import PATH, Held, app, ask, counts, with_threshold


def test_metrics_count_rows_and_requests(serve: Any, bundle: Tuned) -> None:
    """The metrics count rows, requests by path, confidences, escalations and steps."""
    steps = (Step(model="s", verdict=Verdict.ESCALATED), Step(model="l", verdict=Verdict.ACCEPTED))
    answers = {
        "sure": Prediction(label="cat", confidence=0.93),
        "unsure": Prediction(label="dog", confidence=0.4, steps=steps, accepted=True),
        "lost": Prediction(label=None, outcome=Outcome.UNPARSED, reason="no JSON"),
    }
    running = serve(app(with_threshold(bundle, 0.8), Held(held=False, answer=answers.__getitem__)))
    assert ask(running, {"texts": list(answers)}).status == 200
    assert running.ask(path="/metrics", method="GET").headers["content-type"] == CONTENT_TYPE_LATEST
    seen = counts(running)
    expected = {
        f"calibrant_requests_total {PATH} 200": 1,
        f"calibrant_request_seconds_count {PATH}": 1,
        "calibrant_rows_total ok": 2,
        "calibrant_rows_total unparsed": 1,
        "calibrant_labels_total cat": 1,
        "calibrant_labels_total dog": 1,
        "calibrant_decisions_total accepted": 1,
        "calibrant_decisions_total review": 2,
        "calibrant_confidence_count": 2,
        "calibrant_confidence_bucket 0.4": 1,
        "calibrant_confidence_bucket 0.95": 2,
        "calibrant_escalations_total": 1,
        "calibrant_steps_total s escalated": 1,
        "calibrant_steps_total l accepted": 1,
        "calibrant_drift_rows": 2,
        "calibrant_history_rows": len(bundle.history.confidence),
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert math.isnan(seen["calibrant_confidence_drift"])


def test_drift_compares_window_and_history() -> None:
    """Drift is NaN at first, 0 for equal values, and 1 when all values of the window are higher."""
    history = tuple(n / 500 for n in range(500))
    metrics = ServiceMetrics(PredictionHistory(rows=500, labels={"cat": 500}, confidence=history))
    decision: Any = type("D", (), {"name": None})()

    def see(values: Any) -> None:
        for value in values:
            metrics.count(Prediction(label="cat", confidence=float(value)), decision)

    see(history[:29])
    assert math.isnan(metrics.drift())
    see(history[29:])
    assert metrics.drift() == 0.0
    see([1.0] * 500)
    assert metrics.drift() == pytest.approx(0.5)
    see([1.0] * 500)
    assert metrics.drift() == 1.0
    empty = ServiceMetrics(PredictionHistory(rows=0, labels={}, confidence=()))
    for _ in range(40):
        empty.count(Prediction(label="cat", confidence=0.5), decision)
    assert math.isnan(empty.drift())


VALUES = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), min_size=1, max_size=20)


@given(VALUES, VALUES)
def test_the_distance_is_the_largest_gap(ours: list[float], theirs: list[float]) -> None:
    """`ks_distance` equals the largest gap that is counted point by point, with ties."""

    def share(values: list[float], point: float) -> Fraction:
        return Fraction(sum(value <= point for value in values), len(values))

    expected = max(abs(share(ours, point) - share(theirs, point)) for point in ours + theirs)
    assert ks_distance(np.sort(ours), np.sort(theirs)) == pytest.approx(float(expected))


@pytest.mark.parametrize("rows", [30, 200, 1000])
def test_the_drift_threshold_rarely_alarms(rows: int) -> None:
    """1.63 times the root is exceeded in 2 to 40 of 2,000 draws without drift."""
    rng = np.random.default_rng(5)
    least = 1.63 * math.sqrt(1 / rows + 1 / 1000)
    above = sum(
        ks_distance(np.sort(rng.random(rows)), np.sort(rng.random(1000))) > least for _ in range(2_000)
    )
    assert 2 <= above <= 40


def test_one_model_of_a_cascade_is_no_escalation(serve: Any, bundle: Tuned) -> None:
    """A row that one model answered, after a failed one too, counts as no escalation."""

    def steps(*verdicts: Verdict) -> tuple[Step, ...]:
        return tuple(Step(model=f"m{n}", verdict=verdict) for n, verdict in enumerate(verdicts))

    answers = {
        "first": Prediction(label="cat", confidence=0.9, steps=steps(Verdict.ACCEPTED), accepted=True),
        "lost": Prediction(
            label=None, outcome=Outcome.ERROR, steps=steps(Verdict.ESCALATED, Verdict.FAILED), accepted=False
        ),
    }
    running = serve(app(bundle, Held(held=False, answer=answers.__getitem__)))
    found = ask(running, {"texts": list(answers)}).json["results"]
    assert [answer["decision"] for answer in found] == ["accepted", "review"]
    seen = counts(running)
    assert seen["calibrant_escalations_total"] == 1
    assert (seen["calibrant_steps_total m0 accepted"], seen["calibrant_steps_total m1 failed"]) == (1, 1)
