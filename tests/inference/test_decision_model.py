"""Tests of a real decision model of 2 MB behind a server on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from calibrant import Classifier, Task
from calibrant.core import LogprobSpace
from sparrow_server import SparrowServer

BANKING = Path(__file__).parents[2] / "examples" / "banking"


@pytest.fixture(scope="module")
def server() -> Iterator[SparrowServer]:
    """Return the server, shared by the tests."""
    found = SparrowServer()
    yield found
    found.stop()


def rows(name: str, *, every: int) -> tuple[list[str], list[str]]:
    """Return texts and answers of some rows of a file."""
    records = [json.loads(line) for line in (BANKING / name).read_text(encoding="utf-8").splitlines()]
    chosen = records[::every]
    return [record["input"] for record in chosen], [record["answer"] for record in chosen]


def classifier(server: SparrowServer) -> Classifier:
    """Return the classifier of the questions of a bank's customers."""
    task = Task.from_file(BANKING / "task.toml", splits=())
    return Classifier(
        model="systemone/local",
        labels=task.labels,
        field=task.field,
        prompt=task.prompt,
        options={"api_base": server.root},
    )


def test_a_decision_model_classifies(server: SparrowServer) -> None:
    """Every row takes one call and has the distribution of the model, with the sum 1."""
    texts, answers = rows("test.jsonl", every=10)
    before = server.calls
    with classifier(server) as asked:
        found = asked.classify_many(texts)
    assert server.calls - before == len(texts)
    assert {prediction.model for prediction in found} == {server.model.name}
    for prediction in found:
        assert prediction.distribution is not None
        assert prediction.distribution.space is LogprobSpace.DECISION
        assert prediction.distribution.probabilities.sum() == pytest.approx(1.0)
    right = [prediction.label == answer for prediction, answer in zip(found, answers, strict=True)]
    assert np.mean(right) > 0.6


def test_labelled_rows_make_it_better(server: SparrowServer) -> None:
    """A head fitted on labelled rows lowers the log loss on others."""
    texts, answers = rows("test.jsonl", every=8)
    with classifier(server) as asked:
        before = log_loss(asked, texts, answers)
        asked.fit(*rows("labelled.jsonl", every=1))
        assert log_loss(asked, texts, answers) < before


def log_loss(asked: Classifier, texts: list[str], answers: list[str]) -> float:
    """Return the mean negative log-probability of the right labels, in nats."""
    losses = []
    for prediction, answer in zip(asked.classify_many(texts), answers, strict=True):
        assert prediction.distribution is not None
        losses.append(-np.log(prediction.distribution.probability(answer)))
    return float(np.mean(losses))
