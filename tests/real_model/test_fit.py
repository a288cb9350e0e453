"""Tests of a head on the embedded model's features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.core import LogprobSpace
from calibrant.evaluation import BatchEvaluator
from calibrant.heads import Head
from calibrant.inference import Classifier
from calibrant.testing import FakeClient
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


def unsure() -> Classifier:
    """Return a classifier by a model that knows nothing and reports no features."""
    fake = FakeClient(LABELS, lambda _: {"animal": 0.6, "vehicle": 0.4})
    return Classifier(model=fake, labels=LABELS, field="category")


def with_seconds(head: Head, seconds: float, folder: Path) -> Head:
    """Return a head that was fitted on a machine where a vector takes this long."""
    fingerprint = unsure().fingerprint()
    head.save(folder / "head.json", fingerprint=fingerprint)
    record: dict[str, Any] = json.loads((folder / "head.json").read_text())
    record["state"]["embedding"]["seconds_per_text"] = seconds
    (folder / "head.json").write_text(json.dumps(record))
    return Head.load(folder / "head.json", fingerprint=fingerprint)


def test_a_run_says_beforehand_how_long_its_vectors_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the seconds that a text took where the head was fitted; runs of less than a minute say nothing."""
    texts = [f"I saw a {word}." for pair in zip(ANIMALS, VEHICLES, strict=True) for word in pair]
    fitted = unsure().fit(texts, list(LABELS) * len(ANIMALS), embeddings="local/smollm2-135m").head
    assert fitted is not None
    assert fitted.uses_embedding
    for seconds, is_told in ((3_600.0, True), (5.0, False)):
        caplog.clear()
        classifier = unsure()
        classifier.head = with_seconds(fitted, seconds, tmp_path)
        BatchEvaluator(classifier).label(texts[:4], out=tmp_path / str(seconds))
        told = "4 rows take about 4 h 0 min, less where texts are known; nothing leaves this machine."
        assert (told in caplog.text) == is_told
