"""Tests of the adapter's thresholds, found on a sample of the training rows."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import ConfigurationError, DataError, LabelSet
from calibrant.scoring import BrierScoring, LinearBlendScoring
from calibrant.testing import FakeClient

LABELS = ("cat", "dog")
ROWS: list[Any] = [{"input": "meow", "answer": "cat"}, {"input": "woof", "answer": "dog"}]
TRAIN: list[Any] = [
    {"input": f"{sound} {number}", "answer": animal}
    for number in range(60)
    for sound, animal in (("meow", "cat"), ("woof", "dog"))
]
THRESHOLD_ROWS = 80  # training rows that thresholds are learned from


def heard(text: str, prompt: str) -> dict[str, float]:
    """Answer rightly, more surely under one prompt than the other, and wrongly about tenths."""
    sure = (0.96 if "well" in prompt else 0.7) if not text.endswith("0") else 0.1
    return {"cat": sure, "dog": 1 - sure} if "meow" in text else {"cat": 1 - sure, "dog": sure}


@pytest.fixture
def client() -> FakeClient:
    """Return a model whose confidences are known."""
    return FakeClient(LABELS, heard)


def adapter(client: FakeClient, **options: Any) -> ConfidenceAdapter:
    """Return an adapter that finds its thresholds."""
    options = {"thresholds": "auto", "threshold_rows": TRAIN, **options}
    return ConfidenceAdapter(client, "category", LabelSet(LABELS).schema("category"), **options)


def evaluate(found: ConfidenceAdapter, prompt: str) -> Any:
    """Return the evaluation of a prompt on both rows."""
    return found.evaluate(ROWS, {"system_prompt": prompt}, capture_traces=True)


def test_thresholds_come_from_the_sample(client: FakeClient) -> None:
    """The thresholds come from the sample's confidences, and 0.96 earns the full score."""
    found = adapter(client)
    assert found.suggested_thresholds is None
    assert evaluate(found, "listen well").scores == [1.0, 1.0]
    assert (found.high_confidence_threshold, found.low_confidence_threshold) == (0.95, 0.80)
    assert found.scoring_strategy == LinearBlendScoring(0.95)
    assert found.suggested_thresholds is not None
    assert found.suggested_thresholds.n == THRESHOLD_ROWS
    plain = adapter(client, thresholds=None)
    assert evaluate(plain, "listen well").scores == pytest.approx([0.3 + 0.7 * 0.96 / 0.99] * 2)


def test_the_sample_is_called_and_counted_once(client: FakeClient) -> None:
    """The sample is called once, under the first prompt, and its calls are counted."""
    found = adapter(client)
    assert evaluate(found, "listen well").num_metric_calls == THRESHOLD_ROWS + 2
    assert len(client.requests) == THRESHOLD_ROWS + 2
    assert evaluate(found, "listen").num_metric_calls == 2
    assert found.high_confidence_threshold == 0.95
    assert evaluate(found, "listen").scores == pytest.approx([0.3 + 0.7 * 0.7 / 0.95] * 2)


def test_the_same_rows_are_chosen_every_time(client: FakeClient) -> None:
    """The same rows are sampled every time."""
    asked = []
    for _ in range(2):
        client.requests.clear()
        evaluate(adapter(client), "listen well")
        asked.append(sorted(request.messages[-1]["content"] for request in client.requests))
    assert asked[0] == asked[1]


def test_a_given_scoring_strategy_stays(client: FakeClient) -> None:
    """A given scoring strategy is kept, and only the feedback's thresholds change."""
    found = adapter(client, scoring_strategy=BrierScoring())
    evaluate(found, "listen well")
    assert found.scoring_strategy == BrierScoring()
    assert found.high_confidence_threshold == 0.95


def test_the_sample_is_corrected_too(client: FakeClient) -> None:
    """Thresholds are found on corrected confidences if a prior correction is set."""
    # Cats alone, all but one heard as cats: one label wins nearly all rows, and its prior is divided out.
    rows = [{"input": f"meow {n}!", "answer": "cat"} for n in range(1, THRESHOLD_ROWS)] + TRAIN[:1]
    found = adapter(client, prior_correction="batch", threshold_rows=rows)
    evaluation = evaluate(found, "listen well")
    assert evaluation.num_metric_calls == THRESHOLD_ROWS + 2
    assert found.suggested_thresholds is not None
    confidence = evaluation.trajectories[0]["prediction"].confidence
    assert confidence != pytest.approx(0.96, abs=1e-6)
    assert found.suggested_thresholds.cluster.upper == pytest.approx(confidence, abs=1e-6)


def test_a_useless_sample_keeps_the_thresholds(client: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    """A sample without right answers logs a warning, and the thresholds stay as they were."""
    swapped = [{**row, "answer": "dog" if row["answer"] == "cat" else "cat"} for row in TRAIN[2:20]]
    found = adapter(client, threshold_rows=swapped)
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        evaluate(found, "listen well")
    assert (found.high_confidence_threshold, found.low_confidence_threshold) == (0.99, 0.90)
    assert found.suggested_thresholds is None
    assert "got 0 of 18" in caplog.text


def test_doubtful_thresholds_are_logged(client: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    """A sample of 30 rows of one confidence logs two warnings."""
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        evaluate(adapter(client, threshold_rows=TRAIN[:30]), "listen well")
    assert "Only 30 predictions" in caplog.text
    assert "earn the full score, so confidence decides hardly anything" in caplog.text


def test_bad_settings_are_refused_at_once(client: FakeClient) -> None:
    """An unknown setting, no rows or an unknown label raise an error before any call."""
    with pytest.raises(ConfigurationError, match="'auto' or None, got 'guess'"):
        adapter(client, thresholds="guess")
    with pytest.raises(ConfigurationError, match="pass threshold_rows"):
        adapter(client, threshold_rows=[])
    with pytest.raises(DataError, match="cow"):
        adapter(client, threshold_rows=[{"input": "moo", "answer": "cow"}])
    assert client.requests == []
