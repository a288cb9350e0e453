"""Tests of what an earlier version learned and saved: calibrators, heads, router states and more.

The files in ``saved`` were written by ``save`` of what was fitted on 400 made-up confidences (calibrators, scalings),
40 distributions (label prior) and 120 made-up rows (heads, one of each rung); ``label-prior-1.json`` has the layout of
version 1. ``routers.json`` and ``routers.sqlite`` hold three strategies after six observations, ``doctor`` an
examination stored by ``save_examination``, and ``predictions.sqlite`` a
`PredictionCache` with the answer of one model, of a cascade, of two fields, and one with features.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.calibration import LabelPriorCorrection, TemperatureScaling, VectorScaling, load_calibrator
from calibrant.core import StateError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import LogprobSpace, Verdict
from calibrant.heads import Head
from calibrant.inference.doctor._records import FindingVerdict, load_examination
from calibrant.routing import BanditRouter, EMARouter, Router, RoutingRequest, ThompsonRouter
from calibrant.store import PredictionCache
from calibrant.store._router_state import open_router_state
from stored_files import run

FINGERPRINT = Fingerprint(prompt="Sort.", model="fake/any", space=LogprobSpace.MASKED, labels=("cat", "dog"))
OTHER = Fingerprint(prompt="Other.", model="fake/any", space=LogprobSpace.MASKED, labels=("cat", "dog"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [0.55, 0.75, 0.95]),
        ("temperature", [0.5264077302553952, 0.6407996291045065, 0.8251107858184104]),
        ("platt", [0.27072679042964337, 0.5206665922443023, 0.9080231982184765]),
        ("isotonic", [0.2987012987012987, 0.6052631578947368, 0.9444444444444444]),
        ("per-label", [0.27818210664925824, 0.4871449320994419, 0.9366531303634384]),
    ],
)
def test_a_calibrator_gives_what_it_gave(untouched: Path, name: str, expected: list[float]) -> None:
    """Each calibrator gives its old values, and raises StateError for another prompt."""
    path = untouched / "saved" / f"calibrator-{name}.json"
    calibrator = load_calibrator(path, fingerprint=FINGERPRINT)
    assert calibrator.predict([0.55, 0.75, 0.95], predicted=["cat", "dog", "cat"]) == pytest.approx(expected)
    with pytest.raises(StateError, match="prompt"):
        load_calibrator(path, fingerprint=OTHER)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (TemperatureScaling, [-0.393197714011285, -1.1236079889579236]),
        (VectorScaling, [-0.48606717278836453, -0.9546171240985228]),
    ],
)
def test_a_scaling_gives_what_it_gave(untouched: Path, kind: Any, expected: list[float]) -> None:
    """Each scaling gives its old values."""
    scaling = kind.load(untouched / "saved" / f"{kind.__name__}.json", fingerprint=FINGERPRINT)
    assert scaling.transform(np.log([0.8, 0.2])) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["label-prior", "label-prior-1"])
def test_a_label_prior_is_divided_out(untouched: Path, name: str) -> None:
    """The label prior divides as computed by hand, and learns on from its 40 rows."""
    prior = LabelPriorCorrection.load(untouched / "saved" / f"{name}.json", fingerprint=FINGERPRINT)
    expected = np.array([0.8 / 0.7, 0.2 / 0.3])
    assert np.exp(prior.transform(np.log([0.8, 0.2]))) == pytest.approx(expected / expected.sum())
    assert prior.partial_fit(np.log([[0.5, 0.5]] * 40)).prior_ == pytest.approx([0.6, 0.4], abs=1e-9)


@pytest.mark.parametrize(
    ("rung", "expected"),
    [
        ("prior", (0.9803337244784399, 0.06147720741185513)),
        ("vector", (0.9949994610935383, 0.03283825367081095)),
        ("regression", (0.9946053564309145, 0.02475049993983201)),
        ("features", (0.99539263255323, 0.011412583087743858)),
        ("text alone", (0.9958677685894362, 0.004132231410563996)),
        ("regression and text", (0.995867768589929, 0.0041322314111691795)),
        ("features and text", (0.9958677685899052, 0.004132231411147786)),
    ],
)
def test_a_head_gives_what_it_gave(untouched: Path, rung: str, expected: tuple[float, float]) -> None:
    """Each kind of head gives its old probabilities for two rows."""
    head = Head.load(untouched / "saved" / f"head-{rung.replace(' ', '-')}.json", fingerprint=FINGERPRINT)
    assert (head.rung, head.n_rows) == (rung, 120)
    found = head.transform(
        np.log([[0.8, 0.2], [0.5, 0.5]]), texts=["meow 1", "woof 2"], features=[[0.0, 0.0], [1.0, 0.5]]
    )
    assert np.exp(found)[:, 0] == pytest.approx(expected)


@pytest.mark.parametrize("place", ["routers.json", "routers.sqlite"])
def test_every_strategy_takes_up_what_it_had_learnt(stored: Path, place: str) -> None:
    """Each strategy has its stored averages, counts and rewards."""
    state = open_router_state(stored / place, scope="three")
    assert (state.scopes(), state.strategies()) == (["three"], ["bandit", "ema", "thompson"])
    routers: list[Router] = [
        EMARouter(["a", "b"]),
        ThompsonRouter(["a", "b"], rng=0),
        BanditRouter(["a", "b"], dim=3, rng=0),
    ]
    for router in routers:
        router.restore(state.read(router.strategy))
    state.close()
    ema, thompson, bandit = (
        [{name: round(value, 9) for name, value in one.values.items()} for one in router.standings()]
        for router in routers
    )
    assert [(one["success"], one["latency_seconds"], one["score"]) for one in ema] == [
        (1.0, 0.395, 0.9605),
        (0.91, 0.645, 0.8455),
    ]
    assert [(one["alpha"], one["beta"]) for one in thompson] == [(4.0, 1.0), (3.0, 2.0)]
    assert [(one["reward"], one["quality"], one["uncertainty"]) for one in bandit] == [
        (0.101340022, 0.201340022, 0.842611390),
        (-0.031985455, 0.301005025, 0.867740243),
    ]
    assert [one.observations for router in routers for one in router.standings()] == [3] * 6
    request = RoutingRequest(embedding=np.array([1.0, 2.0, 0.5]))
    assert routers[2].order(request) == ["a", "b"]


def test_a_state_that_a_routed_run_left_is_shown(stored: Path) -> None:
    """`router stats` shows one call of the first provider and eleven of the second."""
    found = json.loads(run("router", "stats", "--state", stored / "routed.json", "--json").stdout)
    (record,) = found["records"]
    assert (record["scope"], record["strategy"]) == ("animals", "ema")
    assert [(one["provider"], one["observations"]) for one in record["providers"]] == [
        ("first", 1),
        ("second", 11),
    ]


def test_an_examination_is_found_by_its_setup(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examination is found by model, address and parameters, and has its old findings."""
    monkeypatch.setenv("CALIBRANT_HOME", str(stored))
    found = load_examination("openai/x", "http://127.0.0.1:8000/v1", {"seed": 3})
    assert found is not None
    assert found.examined == datetime(2026, 3, 4, 12, tzinfo=UTC)
    assert found.space is LogprobSpace.RAW
    assert [(one.feature, one.verdict) for one in found.findings] == [
        ("space", FindingVerdict.PROBLEM),
        ("units", FindingVerdict.OK),
    ]
    assert (found.thresholds.high, found.thresholds.low, found.label_mass) == (0.95, 0.8, 0.5)
    assert load_examination("openai/x", "http://127.0.0.1:8000/v1", {"seed": 4}) is None


def test_cached_predictions_of_every_kind_are_read(stored: Path) -> None:
    """Cached predictions with distribution, cascade steps, parts and features are read."""
    with PredictionCache(stored / "predictions.sqlite") as cache:
        found = cache.get_many(["alone", "cascade", "fields", "features", "unknown"])
    assert sorted(found) == ["alone", "cascade", "features", "fields"]
    alone, steps, parts = found["alone"], found["cascade"].steps, found["fields"].parts
    assert alone.distribution is not None
    assert alone.distribution.probabilities == pytest.approx([0.99, 0.01])
    assert (alone.label, alone.confidence, alone.usage.completion_tokens) == ("cat", pytest.approx(0.99), 3)
    assert [(one.model, one.verdict, one.label) for one in steps] == [
        ("fake/small", Verdict.ESCALATED, "dog"),
        ("fake/large", Verdict.ACCEPTED, "dog"),
    ]
    assert (found["cascade"].accepted, steps[0].confidence) == (True, pytest.approx(0.58))
    assert [(one.name, one.label) for one in parts] == [("category", "dog"), ("urgency", "high")]
    assert [one.confidence for one in parts] == pytest.approx([0.905, 0.8950276243])
    features = found["features"].features
    assert features is not None
    assert (features.dtype, features.tolist()) == (np.float16, [0.5, -1.25, 3.0])
