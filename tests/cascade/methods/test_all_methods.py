"""Tests of names, needs and native units of every confidence method."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.cascade import (
    AutoMixEntailment,
    AvgLogprob,
    ConfidenceMethod,
    Hybrid,
    LabelProbability,
    Margin,
    SelfVerify,
)
from calibrant.core import ConfigurationError

ENTAILMENT = AutoMixEntailment("http://127.0.0.1:8889")


@pytest.mark.parametrize(
    ("method", "name", "threshold", "needs_tokens", "top_logprobs"),
    [
        (AvgLogprob(), "avg_logprob", 2 / 3, True, 2),
        (Margin(), "margin", 0.5, True, 2),
        (Hybrid(), "hybrid", 0.5, True, 2),
        (LabelProbability(), "label_probability", 0.7, False, 0),
        (SelfVerify(), "self_verify", 0.7, False, 0),
        (ENTAILMENT, "automix_entailment", 0.7, False, 0),
    ],
)
def test_methods_state_what_they_need(
    method: Any, name: str, threshold: float, needs_tokens: bool, top_logprobs: int
) -> None:
    """Each method has its name, default threshold and needs, and can be closed."""
    assert isinstance(method, ConfidenceMethod)
    assert (method.name, method.needs_tokens, method.top_logprobs) == (name, needs_tokens, top_logprobs)
    assert method.default_threshold == pytest.approx(threshold)
    method.close()


@pytest.mark.parametrize(
    ("method", "native", "unit"),
    [
        (AvgLogprob(), 0.1, "natural log-probability"),
        (Margin(), -0.1, "mean gap in nats"),
        (Hybrid(), 1.1, "weighted score"),
        (LabelProbability(), 0.1, "natural logarithm of a probability"),
        (SelfVerify(), 1.1, "grade"),
        (SelfVerify(), "1", "grade to be a number"),
        (ENTAILMENT, 1.01, "share of samples"),
    ],
)
def test_native_values_out_of_range_are_refused(method: Any, native: Any, unit: str) -> None:
    """A native value that the method cannot have measured raises ConfigurationError with its unit."""
    with pytest.raises(ConfigurationError, match=rf"Expected .*{unit} in .* got"):
        method.to_confidence(native)
