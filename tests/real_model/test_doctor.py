"""Tests of the examination of the embedded model."""

from __future__ import annotations

import pytest

from calibrant.core import LogprobSpace
from calibrant.inference import Examination, FindingVerdict, examine
from embedded import EMBEDDED

pytestmark = EMBEDDED


@pytest.fixture(scope="module")
def found() -> Examination:
    """Return the examination of the embedded model, as it is opened by name."""
    return examine("local/smollm2-135m", options={"n_ctx": 1024})


def test_the_engine_reports_raw_log_probabilities(found: Examination) -> None:
    """The engine reports raw log-probabilities, and the examination finds no problem."""
    assert found.space is LogprobSpace.RAW
    assert found.finding("space").verdict is FindingVerdict.OK
    assert found.finding("units").verdict is FindingVerdict.OK
    assert found.problems == ()


def test_labels_can_be_scored_exactly(found: Examination) -> None:
    """Labels can be scored exactly, and "exact" is the recommended scoring."""
    assert found.finding("exact").verdict is FindingVerdict.OK
    assert found.scoring == "exact"
    assert found.label_mass is not None
    assert 0.0 < found.label_mass <= 1.0


def test_there_is_no_cap_of_twenty_alternatives(found: Examination) -> None:
    """At least 100 alternatives are reported."""
    assert found.top_logprobs >= 100


def test_the_schema_is_obeyed_and_few_calls_are_made(found: Examination) -> None:
    """The schema is obeyed, and the examination makes fewer than 20 calls."""
    assert found.finding("enum").verdict is FindingVerdict.OK
    assert found.calls < 20
