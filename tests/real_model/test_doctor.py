"""The embedded model, examined: what its engine is known to do."""

from __future__ import annotations

import pytest

from calibrant.core._prediction import LogprobSpace
from calibrant.inference import examine
from calibrant.inference.doctor._records import Examination, FindingVerdict
from embedded import EMBEDDED

pytestmark = EMBEDDED


@pytest.fixture(scope="module")
def found() -> Examination:
    """Return the examination of the embedded model, as it is opened by name."""
    return examine("local/smollm2-135m", options={"n_ctx": 1024})


def test_the_engine_reports_raw_log_probabilities(found: Examination) -> None:
    """As the client says: the grammar is applied after they are taken."""
    assert found.space is LogprobSpace.RAW
    assert found.finding("space").verdict is FindingVerdict.OK
    assert found.finding("units").verdict is FindingVerdict.OK
    assert found.problems == ()


def test_labels_can_be_scored_exactly(found: Examination) -> None:
    """Which is what is recommended."""
    assert found.finding("exact").verdict is FindingVerdict.OK
    assert found.scoring == "exact"
    assert found.label_mass is not None
    assert 0.0 < found.label_mass <= 1.0


def test_one_slot_repeats_itself(found: Examination) -> None:
    """The same answer; whether what the engine has cached moves its log-probabilities is said."""
    determinism = found.finding("determinism")
    assert determinism.verdict in {FindingVerdict.OK, FindingVerdict.WARNING}
    assert "same answer" in determinism.detail


def test_there_is_no_cap_of_twenty_alternatives(found: Examination) -> None:
    """A hundred come back even where fewer are asked for."""
    assert found.top_logprobs >= 100


def test_the_schema_is_obeyed_and_few_calls_are_made(found: Examination) -> None:
    """Off the topic too."""
    assert found.finding("enum").verdict is FindingVerdict.OK
    assert found.calls < 20
