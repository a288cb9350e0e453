"""Probabilities of whole labels become a distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calibrant.core._prediction import LogprobSpace
from calibrant.logprobs._distribution import whole_label_distribution


def test_probabilities_are_divided_by_their_sum() -> None:
    """The sum is the label mass; the most probable label is the answer."""
    found = whole_label_distribution(["a", "b", "c"], [math.log(0.1), math.log(0.3), math.log(0.2)])
    np.testing.assert_allclose(found.probabilities, [1 / 6, 1 / 2, 1 / 3])
    assert (found.emitted, found.space, found.error_bound) == ("b", LogprobSpace.EXACT, 0.0)
    assert found.label_mass == pytest.approx(0.6)
    assert found.joint_logprob == pytest.approx(math.log(0.3))
    assert found.unresolved_mass == 0.0
    assert all(found.measured)


def test_underflowing_labels_are_told_apart() -> None:
    """Their ratio counts."""
    found = whole_label_distribution(["a", "b"], [-2001.0, -2000.0])
    assert found.probability("b") == pytest.approx(math.e / (1 + math.e))
    assert found.label_mass == 0.0
    assert whole_label_distribution(["a", "b"], [-9999.0 * 9, -1.0]).probability("a") == pytest.approx(1e-12)
