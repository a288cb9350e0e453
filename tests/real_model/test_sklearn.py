"""Test of the estimator on the embedded model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import calibrant
from calibrant.sklearn import CalibrantClassifier
from embedded import EMBEDDED

pytestmark = EMBEDDED

ANIMALS = ("cat", "dog", "horse", "owl", "sheep", "wolf", "goose", "tiger", "mouse", "crow", "fox", "bear")
VEHICLES = ("car", "bus", "train", "truck", "tram", "ship", "plane", "van", "bike", "boat", "lorry", "taxi")


def test_probabilities_are_those_of_the_bundle(tmp_path: Path) -> None:
    """A bundle gives the estimator's probabilities to the last bit, together or one row at a time."""
    texts = [f"I saw a {word}." for pair in zip(ANIMALS, VEHICLES, strict=True) for word in pair]
    classes = ["animal", "vehicle"] * len(ANIMALS)
    fitted = CalibrantClassifier().fit(texts[:16], classes[:16])
    assert fitted.n_calls_ == 16
    found = fitted.predict_proba(texts[16:])
    fitted.save(tmp_path / "bundle")
    with calibrant.load(tmp_path / "bundle") as service:
        together = service.classify_many(texts[16:])
        alone = [service.classify(text) for text in texts[16:]]
    for predictions in (together, alone):
        given = [row.distribution for row in predictions]
        np.testing.assert_array_equal([row.probabilities for row in given if row is not None], found)
    assert fitted.score(texts[16:], classes[16:]) >= 0.75
