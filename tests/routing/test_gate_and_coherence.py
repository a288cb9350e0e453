"""Tests of the quality gate and the coherence monitor, which compare embeddings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics.pairwise import cosine_similarity

from calibrant.core import ConfigurationError
from calibrant.routing import CoherenceMonitor, QualityGate

VECTOR = hnp.arrays(np.float64, 5, elements=st.floats(-100, 100)).filter(lambda v: np.linalg.norm(v) > 1e-3)
USELESS: list[Any] = [None, [], [0.0, 0.0], [np.nan, 1.0], [[1.0, 2.0]], ["a", "b"], [10**400, 1]]


class TestGate:
    @given(VECTOR, VECTOR)
    def test_similarity_is_the_cosine(self, query: np.ndarray, answer: np.ndarray) -> None:
        found = QualityGate(0.5).similarity(query, answer)
        assert found == pytest.approx(cosine_similarity([query], [answer])[0, 0], abs=1e-12)
        assert found is not None
        assert -1.0 <= found <= 1.0

    @given(VECTOR, st.sampled_from([1e-300, 1e-160, 1e-9, 1e9, 1e160, 1e300]))
    def test_length_does_not_matter_however_large_or_small(self, vector: np.ndarray, scale: float) -> None:
        """The similarity does not depend on the length of the vectors."""
        assert QualityGate(0.5).similarity(vector, vector * scale) == pytest.approx(1.0)
        assert QualityGate(0.5).similarity(vector, vector * -scale) == pytest.approx(-1.0)

    @pytest.mark.parametrize("useless", USELESS)
    def test_what_cannot_be_compared_passes(self, useless: Any) -> None:
        gate = QualityGate(1.0)
        for pair in ((useless, [1.0, 2.0]), ([1.0, 2.0], useless)):
            found = gate.similarity(*pair)
            assert found is None
            assert gate.ladder().ends_with(found)

    def test_other_sizes_cannot_be_compared(self) -> None:
        assert QualityGate(0.5).similarity([1.0, 2.0], [1.0, 2.0, 3.0]) is None

    def test_most_similar_answer_wins(self) -> None:
        """Without an accepted answer the most similar one is best, even if all point away."""
        gate = QualityGate(0.75)
        ladder = gate.ladder()
        answers = [[-1.0, 0.1], [-1.0, 1.0], [-1.0, 0.0]]
        assert [ladder.ends_with(gate.similarity([1.0, 0.0], answer)) for answer in answers] == [False] * 3
        assert (ladder.best, ladder.accepted) == (1, False)


def expected_coherence(vectors: list[np.ndarray], window: int) -> float:
    """Return the cosine of the last vector with the mean of the ones before it, by definition."""
    units = [vector / np.linalg.norm(vector) for vector in vectors]
    mean = np.mean(units[:-1][-window:], axis=0)
    return float(units[-1] @ mean / np.linalg.norm(mean))


class TestCoherence:
    @given(st.lists(VECTOR.map(np.abs), min_size=2, max_size=12), st.integers(1, 5))
    def test_coherence_is_the_cosine_with_the_window(self, vectors: list[np.ndarray], window: int) -> None:
        monitor = CoherenceMonitor(window_size=window, coherence_threshold=0.8, penalty_weight=0.4)
        penalties = [monitor.observe("a", vector) for vector in vectors]
        coherence = expected_coherence(vectors, window)
        assert monitor.coherence("a") == pytest.approx(coherence, abs=1e-9)
        assert penalties[0] == 0.0
        assert penalties[-1] == pytest.approx(0.4 * min(1.0, max(0.0, (0.8 - coherence) / 0.8)), abs=1e-9)

    def test_penalty_grows_below_the_threshold(self) -> None:
        penalties = []
        for cosine in (1.0, 0.5, 0.25, 0.0, -1.0):
            monitor = CoherenceMonitor()
            monitor.observe("a", [1.0, 0.0])
            penalties.append(monitor.observe("a", [cosine, np.sqrt(1 - cosine**2)]))
        assert penalties == pytest.approx([0.0, 0.0, 0.15, 0.3, 0.3], abs=1e-12)

    def test_old_answers_leave_the_window(self) -> None:
        monitor = CoherenceMonitor(window_size=3)
        for vector in ([1.0, 0.0], *[[0.0, 1.0]] * 4):
            monitor.observe("a", vector)
        assert monitor.coherence("a") == pytest.approx(1.0)

    def test_providers_are_watched_apart(self) -> None:
        monitor = CoherenceMonitor()
        monitor.observe("a", [1.0, 0.0])
        assert monitor.observe("b", [-1.0, 0.0]) == 0.0
        assert monitor.observe("b", [-1.0, 0.0]) == 0.0
        assert monitor.observe("a", [-1.0, 0.0]) == pytest.approx(0.3)

    @pytest.mark.parametrize("useless", [*USELESS, [1.0], [1.0, 2.0, 3.0]])
    def test_a_bad_vector_is_ignored(self, useless: Any) -> None:
        monitor = CoherenceMonitor()
        assert monitor.observe("new", None) == 0.0
        monitor.observe("a", [1.0, 0.0])
        monitor.observe("a", [1.0, 0.1])
        before = monitor.coherence("a")
        assert monitor.observe("a", useless) == 0.0
        assert monitor.coherence("a") == before
        assert monitor.observe("a", [1.0, 0.0]) == 0.0

    def test_cancelling_answers_have_no_direction(self) -> None:
        monitor = CoherenceMonitor()
        angle = 0.7
        one = np.array([np.cos(angle), np.sin(angle)])
        monitor.observe("a", one)
        monitor.observe("a", -one * 3)
        before = monitor.coherence("a")
        assert monitor.observe("a", [1.0, 0.0]) == 0.0
        assert monitor.coherence("a") == before

    def test_it_warns_once_until_the_provider_recovers(self, caplog: pytest.LogCaptureFixture) -> None:
        monitor = CoherenceMonitor(window_size=1)
        with caplog.at_level(logging.WARNING, logger="calibrant"):
            for vector in ([1, 0], [-1, 0], [1, 0], [1, 0], [-1, 0], [1, 0]):
                monitor.observe("a", vector)
        warnings = [record.getMessage() for record in caplog.records]
        assert len(warnings) == 2
        assert "a drift" in warnings[0]
        assert "-1.00" in warnings[0]

    def test_a_threshold_of_0_is_off(self, caplog: pytest.LogCaptureFixture) -> None:
        monitor = CoherenceMonitor(coherence_threshold=0.0)
        monitor.observe("a", [1.0, 0.0])
        assert monitor.observe("a", [-1.0, 0.0]) == 0.0
        assert not caplog.records


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QualityGate(0.0), "quality gate"),
        (lambda: QualityGate(1.01), "quality gate"),
        (lambda: CoherenceMonitor(window_size=0), "window_size"),
        (lambda: CoherenceMonitor(coherence_threshold=1.1), "coherence_threshold"),
        (lambda: CoherenceMonitor(penalty_weight=-0.1), "penalty_weight"),
    ],
)
def test_bad_options_are_refused(make: Callable[[], object], message: str) -> None:
    """A number out of its range raises ConfigurationError with its name."""
    with pytest.raises(ConfigurationError, match=message):
        make()
