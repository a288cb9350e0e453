"""Tests of plans that split ties: the same texts are kept wherever the plan is used."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

import calibrant
import in_process
from calibrant.cascade import CascadePlan
from calibrant.core import DataSource, LabelSet
from calibrant.distributed import Cluster, evaluate
from calibrant.evaluation import Dataset
from calibrant.serving import create_classifier_app
from calibrant.tuned import Tuned
from command_line import prediction_rows

ROWS = [
    {"input": f"{n} {'meow' if n % 10 else 'woof'}", "answer": "cat" if n % 10 else "dog"} for n in range(200)
]
TEXTS = [row["input"] for row in ROWS]


class Split(NamedTuple):
    """A bundle, the rows of its run, and which model answered each of them."""

    bundle: Path
    data: Path
    answered: list[str]


@pytest.fixture
def split(export_plan: Callable[..., Tuned], tmp_path: Path) -> Split:
    """Plan, run and export a small model that is sure of everything, and a large one that is right."""
    bundle = export_plan("certain", ROWS, "--epsilon", 0.08, "--key", "other")
    answered = [row["steps"][-1]["model"] for row in prediction_rows(tmp_path / "run")]
    assert set(answered) == {"certain", "large"}
    return Split(bundle=bundle.path, data=tmp_path / "certain" / "test.jsonl", answered=answered)


def test_a_bundle_holds_the_plan_s_key(split: Split) -> None:
    """A stored plan keeps its key and its tied confidence."""
    record = Tuned.load(split.bundle).plan
    assert record is not None
    plan = CascadePlan.from_record(record)
    assert (plan.key, plan.tied_confidence) == ("other", 1.0)


def test_a_bundle_breaks_ties_as_the_run(split: Split) -> None:
    """A bundle gives every text to the same model as the run, in any order of the texts."""
    with contextlib.closing(calibrant.load(split.bundle)) as classifier:
        found = classifier.classify_many(TEXTS[::-1])
    assert [answer.steps[-1].model for answer in found] == split.answered[::-1]


def test_workers_break_ties_as_the_run(split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers give every text to the same model as the run."""
    in_process.install(monkeypatch)
    evaluate(
        Dataset(source=DataSource(path=split.data), labels=LabelSet.of(["cat", "dog"])),
        opening=functools.partial(calibrant.load, split.bundle),
        out=tmp_path / "workers",
        cluster=Cluster(workers=2, block_rows=16),
    )
    assert [row["steps"][-1]["model"] for row in prediction_rows(tmp_path / "workers")] == split.answered


def test_a_service_breaks_ties_as_the_run(split: Split) -> None:
    """A service over the bundle gives every text to the same model as the run."""

    async def asked() -> list[dict[str, Any]]:
        with contextlib.closing(calibrant.load(split.bundle)) as classifier:
            app = create_classifier_app(Tuned.load(split.bundle), classifier)
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                response = await client.post("/v1/classify", json={"texts": TEXTS[:50]})
        results: list[dict[str, Any]] = response.json()["results"]
        return results

    found = ["certain" if row["confidence"] == 1.0 else "large" for row in asyncio.run(asked())]
    assert found == split.answered[:50]
