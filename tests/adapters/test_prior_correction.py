"""The adapter without the label prior of its prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibrant import ConfidenceAdapter
from calibrant.adapters import PRIOR_ROWS
from calibrant.core import ConfigurationError, LabelSet
from calibrant.logprobs import enum_schema
from calibrant.store import PredictionCache
from calibrant.testing import FakeClient

LABELS = ("cat", "dog")
ROWS: list[Any] = [{"input": "meow", "answer": "cat"}, {"input": "woof", "answer": "dog"}]
TEXTS = [f"{sound} {number}" for number in range(50) for sound in ("meow", "woof")]


def biased(text: str, prompt: str) -> dict[str, float]:
    """Answer with what was heard, on top of a preference for cats that the prompt can reverse."""
    cat = (0.9 if "meow" in text else 0.6) if "cats" in prompt else (0.4 if "meow" in text else 0.1)
    return {"cat": cat, "dog": 1.0 - cat}


def adapter(client: FakeClient, **options: Any) -> ConfidenceAdapter:
    """Return an adapter on a model with a preference."""
    return ConfidenceAdapter(client, "category", enum_schema(LabelSet(LABELS), "category"), **options)


@pytest.fixture
def client() -> FakeClient:
    """Return a model that prefers a label whatever it reads."""
    return FakeClient(LABELS, biased)


def evaluate(found: ConfidenceAdapter, prompt: str) -> Any:
    """Return the evaluation of a prompt on both rows."""
    return found.evaluate(ROWS, {"system_prompt": prompt}, capture_traces=True)


def test_a_preference_of_the_prompt_is_divided_out(client: FakeClient) -> None:
    """Scores, labels and feedback are those of the corrected predictions, for either preference."""
    plain = evaluate(adapter(client), "I like cats")
    assert [output["parsed_value"] for output in plain.outputs] == ["cat", "cat"]
    asked = adapter(client, prior_correction="batch", prior_texts=TEXTS)
    for prompt in ("I like cats", "I do not"):
        found = evaluate(asked, prompt)
        assert [output["parsed_value"] for output in found.outputs] == ["cat", "dog"]
        assert [score["accuracy"] for score in found.objective_scores] == [1, 1]
        assert all(trajectory["feedback"].startswith("Correct") for trajectory in found.trajectories)


def test_the_corrected_confidence_is_the_corrected_probability(client: FakeClient) -> None:
    """0.6 of 0.75 against 0.4 of 0.25, the prior over as many meows as woofs."""
    asked = adapter(client, prior_correction="batch", prior_texts=["meow", "woof"])
    _, woof = evaluate(asked, "I like cats").trajectories
    dog, cat = 0.4 / 0.25, 0.6 / 0.75
    assert woof["prediction"].confidence == pytest.approx(dog / (dog + cat), rel=1e-6)
    assert woof["prediction"].distribution.probability("dog") == pytest.approx(dog / (dog + cat), rel=1e-6)


def test_the_correction_is_fitted_once_per_prompt_and_counted(client: FakeClient) -> None:
    """On the rows asked first, filled up to 64 with the same texts for every prompt."""
    asked = adapter(client, prior_correction="batch", prior_texts=TEXTS)
    assert evaluate(asked, "I like cats").num_metric_calls == PRIOR_ROWS
    assert len(client.requests) == asked.metric_calls == PRIOR_ROWS
    assert evaluate(asked, "I like cats").num_metric_calls == 2
    assert evaluate(asked, "I do not").num_metric_calls == PRIOR_ROWS
    sent = texts_by_prompt(client)
    assert sent["I like cats"] == sent["I do not"]
    assert len(sent["I do not"] - {"meow", "woof"}) == PRIOR_ROWS - 2


def texts_by_prompt(client: FakeClient) -> dict[str, set[str]]:
    """Return what was asked under which prompt."""
    sent: dict[str, set[str]] = {}
    for request in client.requests:
        prompt, text = (message["content"] for message in request.messages)
        sent.setdefault(prompt, set()).add(text)
    return sent


def test_enough_rows_need_no_other_texts(client: FakeClient) -> None:
    """A validation pass of 64 rows asks nothing else, and its correction is the mean over it."""
    asked = adapter(client, prior_correction="batch", prior_texts=["other text"])
    rows: list[Any] = [{"input": text, "answer": "cat"} for text in TEXTS[:PRIOR_ROWS]]
    found = asked.evaluate(rows, {"system_prompt": "I like cats"}, capture_traces=True)
    assert found.num_metric_calls == len(client.requests) == PRIOR_ROWS
    assert "other text" not in texts_by_prompt(client)["I like cats"]
    assert found.trajectories is not None
    dog, cat = 0.4 / 0.25, 0.6 / 0.75
    assert found.trajectories[1]["prediction"].confidence == pytest.approx(dog / (dog + cat), rel=1e-6)


def test_a_minibatch_borrows_from_validation_and_validation_asks_the_rest(
    client: FakeClient, tmp_path: Path
) -> None:
    """With a journal the correction of an accepted prompt costs no call of its own."""
    with PredictionCache(tmp_path / "cache.db") as journal:
        asked = adapter(client, prior_correction="batch", prior_texts=TEXTS, journal=journal)
        candidate = {"system_prompt": "I like cats"}
        assert asked.evaluate(ROWS, candidate).num_metric_calls == PRIOR_ROWS
        validation: list[Any] = [{"input": text, "answer": "cat"} for text in TEXTS]
        asked.evaluate(validation, candidate)
    assert len(client.requests) == asked.metric_calls == len(TEXTS) + len(ROWS)


def test_several_candidates_are_corrected_in_one_go(client: FakeClient) -> None:
    """`batch_evaluate` fits each candidate's own correction."""
    asked = adapter(client, prior_correction="batch", prior_texts=TEXTS)
    items = [({"system_prompt": prompt}, ROWS) for prompt in ("I like cats", "I do not")]
    found = asked.batch_evaluate(items)
    assert [[output["parsed_value"] for output in batch.outputs] for batch in found] == [["cat", "dog"]] * 2
    assert sum(batch.num_metric_calls or 0 for batch in found) == 2 * PRIOR_ROWS


def test_answers_without_log_probabilities_stay_as_they_are() -> None:
    """There is nothing to correct, and nothing breaks."""
    client = FakeClient(LABELS, {"meow": "cat", "woof": "dog"}, space="none")
    found = evaluate(adapter(client, prior_correction="batch", prior_texts=["meow"]), "p")
    assert [output["parsed_value"] for output in found.outputs] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_correction": "batch"}, "pass prior_texts"),
        ({"prior_correction": "contextual", "prior_texts": TEXTS}, "Expected prior_correction 'batch'"),
    ],
)
def test_a_correction_that_cannot_be_fitted_is_refused(
    client: FakeClient, options: dict[str, Any], message: str
) -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigurationError, match=message):
        adapter(client, **options)
    assert client.requests == []
