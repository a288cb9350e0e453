"""Distribution over the labels from the probabilities of whole labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from calibrant.core._distribution import LabelDistribution, LogprobSpace
from calibrant.core._labels import LabelSet
from calibrant.logprobs._distribution import log_normalise


def whole_label_distribution(
    labels: Sequence[str] | LabelSet, logprobs: Sequence[float]
) -> LabelDistribution:
    """Return the distribution over labels that were scored from their first to their last token.

    Parameters
    ----------
    labels : sequence of str, length L, or LabelSet
        The label set.
    logprobs : sequence of float, length L
        Natural logarithms of the labels' probabilities as answers, finite, at most 0.

    Returns
    -------
    LabelDistribution
        In ``exact`` space, with ``unresolved_mass`` 0. ``label_mass`` is the sum of the probabilities.
    """
    names = LabelSet.of(labels).labels
    top = max(logprobs)
    shares = [math.exp(logprob - top) for logprob in logprobs]
    return LabelDistribution(
        labels=names,
        logprobs=log_normalise(shares),
        measured=np.ones(len(names), dtype=np.bool_),
        joint_logprob=top,
        label_mass=min(1.0, math.exp(top) * math.fsum(shares)),
        unresolved_mass=0.0,
        space=LogprobSpace.EXACT,
        emitted=names[logprobs.index(top)],
        error_bound=0.0,
    )
