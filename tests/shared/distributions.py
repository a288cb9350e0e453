"""Helpers for distributions with all labels measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core import LabelDistribution, LogprobSpace, Part, Prediction


def exact(labels: Sequence[str], shares: ArrayLike) -> LabelDistribution:
    """Return an exact distribution, every label measured; a share may be 0."""
    with np.errstate(divide="ignore"):
        logprobs = np.log(np.asarray(shares, dtype=float))
    return LabelDistribution(
        labels=tuple(labels),
        logprobs=logprobs,
        measured=np.ones(len(labels), dtype=bool),
        joint_logprob=None,
        label_mass=1.0,
        unresolved_mass=0.0,
        space=LogprobSpace.EXACT,
    )


def distribution_of(answer: Prediction | Part) -> LabelDistribution:
    """Return the distribution of an answer, and fail if there is none."""
    assert answer.distribution is not None
    return answer.distribution
