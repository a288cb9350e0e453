"""Tests of exact scoring in the classifier: choice, calls, predictions and refusals."""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import create_model

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import (
    CompletionRequest,
    ConfigurationError,
    LabelSet,
    LogprobSpace,
    NextTokens,
    Outcome,
    ProviderError,
)
from calibrant.inference import Classifier, RetryPolicy
from calibrant.testing import FakeClient, FakeContinuingClient, MemoryJournal
from distributions import distribution_of

LABELS = ("Bills/Electricity", "Bills/Gas & Oil", "Food")
ODDS = {"Bills/Electricity": 0.5, "Bills/Gas & Oil": 0.2, "Food": 0.3}


def fake(**options: Any) -> FakeContinuingClient:
    """Return a model of three labels, two of which begin alike."""
    settings: dict[str, Any] = {"default": ODDS, "tokens": "characters", **options}
    return FakeContinuingClient(LABELS, {}, **settings)


def classifier(client: Any, **options: Any) -> Classifier:
    """Return a classifier that does not wait between attempts."""
    settings: dict[str, Any] = {"field": "category", "retry": RetryPolicy(initial_seconds=0), **options}
    return Classifier(model=client, labels=LABELS, **settings)


def test_empty_client_settings_change_no_key() -> None:
    """Empty settings of a client leave the description unchanged; other settings change it."""
    described = []
    for settings in (None, {}, {"slots": 4}, ["slots"]):
        client = fake()
        client.settings = settings  # type: ignore[attr-defined]
        described.append(classifier(client).describe())
    assert described[0] == described[1] == described[3] == classifier(fake()).describe()
    assert described[0] != described[2]


def test_the_distribution_is_the_models_own() -> None:
    """The distribution over labels with common beginnings equals the model's."""
    prediction = classifier(fake(), tolerance=0.0).classify("t")
    assert (prediction.label, prediction.confidence) == ("Bills/Electricity", pytest.approx(0.5))
    assert prediction.text == '{"category": "Bills/Electricity"}'
    found = distribution_of(prediction)
    assert found.space is LogprobSpace.EXACT
    np.testing.assert_allclose(found.probabilities, [0.5, 0.2, 0.3])
    assert found.error_bound == pytest.approx(0.0, abs=1e-9)


def test_exact_is_the_default_where_possible() -> None:
    """Exact scoring is the default unless client, schema, `scoring` or `space` say otherwise."""
    assert classifier(fake()).space is LogprobSpace.EXACT
    assert classifier(FakeClient(LABELS, {})).space is LogprobSpace.MASKED
    assert classifier(fake(), scoring="decode").space is LogprobSpace.MASKED
    assert classifier(fake(), space="raw").space is LogprobSpace.RAW
    assert classifier(fake(), field="results[].category").space is LogprobSpace.MASKED
    adapter = ConfidenceAdapter(fake(), "category", LabelSet(LABELS).schema("category"))
    assert adapter.classifier.space is LogprobSpace.EXACT


def test_union_of_literals_is_scored() -> None:
    """Labels in several literals of a Pydantic model are scored exactly."""
    topic = Literal["Bills/Electricity"] | Literal["Bills/Gas & Oil", "Food"]  # noqa: PYI030 (as it may be written)
    adapter = ConfidenceAdapter(fake(), "category", create_model("Answer", category=(topic, ...)))
    assert adapter.classifier.space is LogprobSpace.EXACT
    prediction = adapter.classifier.classify("t")
    assert prediction.text == '{"category": "Bills/Electricity"}'
    assert prediction.confidence == pytest.approx(0.5)


def test_fallback_to_decoding_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """A model that could score exactly, but decodes, logs one warning with the reason."""
    made = classifier(fake(name="said once"), field="results[].category")
    made.with_tokens()
    classifier(fake(name="said once"), field="results[].category")
    classifier(fake(name="asked for"), field="results[].category", scoring="decode")
    classifier(FakeClient(LABELS, {}, name="cannot"), field="results[].category")
    classifier(fake(name="can"))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        "said once could score every label, but decodes its answers: the schema leaves more than the label open, so "
        "the text before it is not known. Pass scoring='decode' if that is what you want."
    )


FEWER_LABELS = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "strict": True, "schema": LabelSet(LABELS[:2]).schema("category")},
}


@pytest.mark.parametrize(
    ("client", "options", "message"),
    [
        (FakeClient(LABELS, {}), {}, "reports no next-token probabilities"),
        (fake(), {"field": "results[].category"}, "leaves more than the label open"),
        (fake(), {"answer_field": "other"}, "read from 'other', not from 'category'"),
        (
            fake(),
            {"response_format": FEWER_LABELS},
            "enum lacks some of the labels",
        ),
    ],
)
def test_impossible_exact_scoring_is_refused(client: Any, options: Any, message: str) -> None:
    """scoring="exact" raises ConfigurationError with the reason where it is impossible."""
    with pytest.raises(ConfigurationError, match=message):
        classifier(client, scoring="exact", **options)


@pytest.mark.parametrize("tolerance", [-0.1, 1.5, "rough", True, float("nan")])
def test_invalid_tolerance_is_refused(tolerance: Any) -> None:
    """A tolerance that is neither in [0, 1] nor "exact" raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match='tolerance in \\[0, 1\\] or "exact"'):
        classifier(fake(), tolerance=tolerance)


def test_larger_tolerance_makes_fewer_calls() -> None:
    """A larger tolerance takes fewer calls, and `attempts` counts every call."""
    asked = {}
    for tolerance in (1.0, 0.25, "exact", 0.0):
        client = fake()
        prediction = classifier(client, tolerance=tolerance).classify("t")
        assert prediction.attempts == len(client.beginnings) == len(set(client.beginnings))
        assert prediction.usage.completion_tokens == prediction.attempts
        asked[tolerance] = prediction.attempts
    assert asked[1.0] == 1
    assert asked[0.25] < asked[0.0]
    assert asked[0.25] < asked["exact"] <= asked[0.0]


def test_tolerances_do_not_share_a_journal() -> None:
    """Answers at one tolerance are not returned for another."""
    stored = MemoryJournal()
    for options in ({"tolerance": 0.1}, {"tolerance": "exact"}, {"scoring": "decode"}):
        classifier(fake(), journal=stored, **options).classify("t")
    assert len(stored) == 3
    client = fake()
    again = classifier(client, journal=stored, tolerance="exact").classify("t")
    assert (client.beginnings, again.attempts) == ([], 0)


def test_labels_are_checked_once() -> None:
    """The client checks the labels once; an unscorable label raises ConfigurationError before any row."""
    client = fake()
    classifier(client).classify_many(["a", "b"])
    assert set(client.checked) == {LABELS}
    refusing = fake(unscorable=["Food"])
    with pytest.raises(ConfigurationError, match="do not spell the label 'Food'"):
        classifier(refusing).classify("a")
    assert refusing.beginnings == []


def test_retry_repeats_one_call() -> None:
    """A passing fault repeats only the failed call, and `attempts` counts it."""
    client = fake(failures={1: ProviderError("slow down", provider="fake", retryable=True)})
    prediction = classifier(client, tolerance=0.3).classify("t")
    assert (prediction.outcome, len(client.requests)) == (Outcome.OK, prediction.attempts)
    assert len(set(client.beginnings)) == prediction.attempts - 1, "one beginning was asked about twice"


def test_lasting_fault_is_a_row_error() -> None:
    """A lasting fault makes its row an error, and leaves no session open."""
    failing = ProviderError("broken", provider="fake", status=500, retryable=True)
    client = FakeContinuingClient(LABELS, {"bad": failing, "good": ODDS})
    good, bad = classifier(client, concurrency=1).classify_many(["good", "bad"])
    assert (good.outcome, bad.outcome) == (Outcome.OK, Outcome.ERROR)
    assert "broken" in bad.reason
    assert (bad.attempts, client.open_rows) == (RetryPolicy().attempts, 0)


def test_systemic_fault_stops_the_batch() -> None:
    """A bad key raises ProviderError after at most two calls, and leaves no session open."""
    denied = ProviderError("bad key", provider="fake", status=401)
    client = FakeContinuingClient(LABELS, lambda _text: denied)
    with pytest.raises(ProviderError, match="bad key"):
        classifier(client, concurrency=2).classify_many(["a", "b", "c", "d"])
    assert len(client.requests) <= 2
    assert client.open_rows == 0


def test_unlikely_labels_are_unparsed() -> None:
    """A row without any likely label is unparsed, with the reason."""
    client = fake(illegal_mass=0.5, listed=1)
    prediction = classifier(client, tolerance=0.0).classify("t")
    assert (prediction.outcome, prediction.label) == (Outcome.UNPARSED, None)
    assert prediction.distribution is None
    assert "no label is among what the model would write next" in prediction.reason


def test_label_mass_excludes_illegal_text() -> None:
    """Probabilities are shares of the labels; `label_mass` is what illegal text leaves of 1."""
    prediction = classifier(fake(illegal_mass=0.9), tolerance=0.0).classify("t")
    found = distribution_of(prediction)
    assert found.label_mass == pytest.approx(0.1)
    np.testing.assert_allclose(found.probabilities, [0.5, 0.2, 0.3])


def test_rows_run_concurrently() -> None:
    """As many rows run at a time as the concurrency allows."""
    client = fake(latency=0.01)
    asyncio.run(
        classifier(client, concurrency=4, tolerance=1.0).aclassify_many([f"t{number}" for number in range(8)])
    )
    assert client.max_in_flight == 4


def test_nodes_of_a_level_run_together() -> None:
    """The nodes of one level are requested at the same time."""
    client = fake(latency=0.01)
    classifier(client, concurrency=4, tolerance=0.2).classify("t")
    assert client.max_in_flight == 2, "F and B"


@pytest.mark.parametrize("tolerance", [0.25, "exact", 0.0])
def test_serial_engine_visits_neighbours_first(tolerance: Any) -> None:
    """A serial engine gets one call at a time, branch by branch, with the same result."""
    wide, deep = fake(latency=0.001), fake(latency=0.001, serial=True)
    one = classifier(wide, tolerance=tolerance, concurrency=1).classify("t")
    other = classifier(deep, tolerance=tolerance, concurrency=1).classify("t")
    assert deep.max_in_flight == 1
    assert sorted(wide.beginnings) == sorted(deep.beginnings)
    same = distribution_of(other).probabilities
    np.testing.assert_allclose(distribution_of(one).probabilities, same, rtol=1e-12)
    longer = [later.startswith(before) for before, later in itertools.pairwise(deep.beginnings)]
    assert longer.count(False) <= 2, "it leaves a branch only when that is read to its end"


def test_short_listing_is_extended_where_needed() -> None:
    """A short list of next tokens is requested in full only where a label is missing."""
    client = _Prattling(
        ["Food", "Bills"], {}, default={"Food": 0.7, "Bills": 0.3}, tokens="characters", few=1
    )
    prediction = Classifier(model=client, labels=["Food", "Bills"], field="category", tolerance=0.0).classify(
        "t"
    )
    np.testing.assert_allclose(distribution_of(prediction).probabilities, np.array([0.28, 0.3]) / 0.58)
    twice = {text for text in client.beginnings if client.beginnings.count(text) == 2}
    assert twice == {'{"category": "', '{"category": "Foo'}, "Bills is not among the first one, nor is d"


class _Prattling(FakeContinuingClient):
    """Model that prefers illegal text after ``Foo``."""

    async def next_tokens(self, request: CompletionRequest, text: str, *, few: bool = False) -> NextTokens:
        found = await super().next_tokens(request, text)
        if text.endswith("Foo"):
            found = replace(found, top=((b"lish", math.log(0.6)), (found.top[0][0], math.log(0.4))))
        return replace(found, top=found.top[:1], short=True) if few else found


def test_exact_tolerance_takes_whole_listings() -> None:
    """The tolerance "exact" requests full lists at once, so no text is requested twice."""
    client = fake(few=1)
    prediction = classifier(client, tolerance="exact").classify("t")
    assert prediction.attempts == len(set(client.beginnings))
    np.testing.assert_allclose(distribution_of(prediction).probabilities, [0.5, 0.2, 0.3])
