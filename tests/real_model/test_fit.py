"""Tests of a head on the embedded model's features."""

from __future__ import annotations

import numpy as np

from calibrant.core import LogprobSpace
from calibrant.inference import Classifier
from embedded import EMBEDDED

pytestmark = EMBEDDED

LABELS = ("animal", "vehicle")
ANIMALS = ("cat", "dog", "horse", "owl", "sheep", "wolf", "goose", "tiger", "mouse", "crow", "fox", "bear")
VEHICLES = ("car", "bus", "train", "truck", "tram", "ship", "plane", "van", "bike", "boat", "lorry", "taxi")


def test_a_head_learns_from_what_the_model_makes_of_texts() -> None:
    """A head with the model's features is more accurate than one with the text alone."""
    texts = [f"I saw a {word}." for pair in zip(ANIMALS, VEHICLES, strict=True) for word in pair]
    answers = list(LABELS) * len(ANIMALS)
    with Classifier(model="local/smollm2-135m", labels=LABELS, prompt="Animal or vehicle?") as classifier:
        (row,) = classifier.with_features().classify_many(texts[:1])
        assert row.features is not None
        assert (row.features.dtype, row.features.shape) == (np.float16, (1024,))
        assert np.isfinite(row.features).all()
        classifier.fit(texts[:16], answers[:16])
        assert classifier.head is not None
        assert classifier.head.uses_features
        assert classifier.head.gain >= 0.0
        for found in classifier.classify_many(texts[16:]):
            assert found.distribution is not None
            assert found.distribution.space is LogprobSpace.EXACT
            assert found.features is None
            assert found.label == LABELS[int(found.distribution.logprobs.argmax())]
