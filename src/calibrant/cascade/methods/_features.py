"""What a learned scorer looks at: hashed words, and what a prediction says about itself."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core._prediction import Prediction

CONFIDENCE_FEATURES: Final = 5
_LEAST: Final = 1e-12
_CLIP: Final = 1e-6
_WORD = re.compile(r"\w+")


def confidence_features(prediction: Prediction) -> tuple[float, ...] | None:
    """Return what a prediction says about itself, or None where it says nothing.

    Returns
    -------
    tuple of 5 float
        Natural logarithm and log-odds of the confidence (clipped at 1e-12, and at 1e-6 from either end),
        difference of the two highest probabilities, entropy in nats, label mass.
    """
    confidence, distribution = prediction.confidence, prediction.distribution
    if confidence is None or distribution is None:
        return None
    logprobs = distribution.logprobs
    probabilities = np.exp(logprobs)
    highest = np.sort(probabilities)[-2:]
    clipped = min(max(confidence, _CLIP), 1.0 - _CLIP)
    return (
        math.log(max(confidence, _LEAST)),
        math.log(clipped / (1.0 - clipped)),
        float(highest[-1] - highest[0]) if len(highest) == 2 else 1.0,
        float(-probabilities @ logprobs),
        distribution.label_mass,
    )


@dataclass(frozen=True, kw_only=True)
class TextWeights:
    """Hashed TF-IDF of words and pairs of neighbouring words, and a weight for each bucket.

    With n texts, of which d hold something in a bucket, its inverse document frequency is
    ``ln((1 + n) / (1 + d)) + 1``; vectors have length 1.

    Attributes
    ----------
    n_buckets : int
        Number of features.
    rare : float
        Inverse document frequency of a bucket that no fitted text holds.
    frequency : mapping of int to float
        That of all others.
    weights : mapping of int to float
        Where they are not 0.
    """

    n_buckets: int
    rare: float
    frequency: Mapping[int, float]
    weights: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Sequence[str], *, n_buckets: int) -> Self:
        """Return the frequencies of these texts, without weights."""
        holding = Counter(bucket for text in texts for bucket in _counts(text, n_buckets))
        n = len(texts)
        frequency = {bucket: math.log((1 + n) / (1 + holding[bucket])) + 1.0 for bucket in sorted(holding)}
        return cls(n_buckets=n_buckets, rare=math.log(1 + n) + 1.0, frequency=frequency)

    def weighted(self, weights: NDArray[np.float64]) -> Self:
        """Return a copy with weights of shape (n_buckets,)."""
        return replace(self, weights={bucket: float(weights[bucket]) for bucket in self.frequency})

    def features(self, text: str) -> dict[int, float]:
        """Return the values of the buckets that a text fills; their squares sum to 1."""
        found = {
            bucket: count * self.frequency.get(bucket, self.rare)
            for bucket, count in _counts(text, self.n_buckets).items()
        }
        length = math.sqrt(math.fsum(value * value for value in found.values()))
        return {bucket: value / length for bucket, value in found.items()}

    def score(self, text: str) -> float:
        """Return the weighted sum of a text's features."""
        return math.fsum(
            self.weights.get(bucket, 0.0) * value for bucket, value in self.features(text).items()
        )

    def to_record(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "n_buckets": self.n_buckets,
            "rare": self.rare,
            "buckets": [
                [bucket, frequency, self.weights.get(bucket, 0.0)]
                for bucket, frequency in self.frequency.items()
            ],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return what `to_record` wrote; KeyError, TypeError or ValueError if it is something else."""
        buckets = [(int(bucket), float(one), float(other)) for bucket, one, other in record["buckets"]]
        numbers = [number for row in buckets for number in row] + [float(record["rare"])]
        if (
            not all(map(math.isfinite, numbers))
            or min([record["rare"], *(one for _, one, _ in buckets)]) <= 0
        ):
            raise ValueError("frequencies and weights are not finite")
        return cls(
            n_buckets=record["n_buckets"],
            rare=float(record["rare"]),
            frequency={bucket: one for bucket, one, _ in buckets},
            weights={bucket: other for bucket, _, other in buckets},
        )


def _counts(text: str, n_buckets: int) -> Counter[int]:
    words = _WORD.findall(text.casefold())
    terms = words + [f"{one} {other}" for one, other in pairwise(words)]
    return Counter(zlib.crc32(term.encode("utf-8", "surrogatepass")) % n_buckets for term in terms)
