"""Tests of the adapter's label-prior correction."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import ConfigurationError, LabelSet
from calibrant.testing import FakeClient

LABELS = ("cat", "dog")
ROWS: list[Any] = [{"input": "meow", "answer": "cat"}, {"input": "woof", "answer": "dog"}]
TEXTS = [f"{sound} {number}" for number in range(50) for sound in ("meow", "woof")]
PRIOR_ROWS = 64  # answered rows that a prior is learned from


def biased(text: str, prompt: str) -> dict[str, float]:
    """Answer what the text tells, with a preference for cats that the prompt can reverse."""
    cat = (0.9 if "meow" in text else 0.6) if "cats" in prompt else (0.4 if "meow" in text else 0.1)
    return {"cat": cat, "dog": 1.0 - cat}


def adapter(client: FakeClient, **options: Any) -> ConfidenceAdapter:
    """Return an adapter around a model with a preference."""
    return ConfidenceAdapter(client, "category", LabelSet(LABELS).schema("category"), **options)


@pytest.fixture
def client() -> FakeClient:
    """Return a model that prefers one label."""
    return FakeClient(LABELS, biased)


def evaluate(found: ConfidenceAdapter, prompt: str) -> Any:
    """Return the evaluation of a prompt on both rows."""
    return found.evaluate(ROWS, {"system_prompt": prompt}, capture_traces=True)


def test_a_preference_of_the_prompt_is_divided_out(client: FakeClient) -> None:
    """With the correction, labels, objectives and feedback are those of corrected predictions."""
    plain = evaluate(adapter(client), "I like cats")
    assert [output["parsed_value"] for output in plain.outputs] == ["cat", "cat"]
    asked = adapter(client, prior_correction="batch")
    for prompt in ("I like cats", "I do not"):
        found = evaluate(asked, prompt)
        assert [output["parsed_value"] for output in found.outputs] == ["cat", "dog"]
        assert [score["accuracy"] for score in found.objective_scores] == [1, 1]
        assert all(trajectory["feedback"].startswith("Correct") for trajectory in found.trajectories)


def test_the_corrected_confidence_is_exact(client: FakeClient) -> None:
    """The corrected confidence equals the one worked out by hand."""
    asked = adapter(client, prior_correction="batch")
    _, woof = evaluate(asked, "I like cats").trajectories
    dog, cat = 0.4 / 0.25, 0.6 / 0.75
    assert woof["prediction"].confidence == pytest.approx(dog / (dog + cat), rel=1e-6)
    assert woof["prediction"].distribution.probability("dog") == pytest.approx(dog / (dog + cat), rel=1e-6)


def rows_of(texts: list[str]) -> list[Any]:
    """Return rows whose answers do not matter."""
    return [{"input": text, "answer": "cat"} for text in texts]


def woof_confidence(found: Any) -> float:
    """Return the corrected confidence of the second row."""
    return float(found.trajectories[1]["prediction"].confidence)


def divided(preferred: float) -> float:
    """Return a confidence of 0.4 in dogs after a prior of cats was divided out."""
    dog, cat = 0.4 / (1 - preferred), 0.6 / preferred
    return max(dog, cat) / (dog + cat)


def test_the_prior_makes_no_calls(client: FakeClient) -> None:
    """The prior correction makes no further calls."""
    asked = adapter(client, prior_correction="batch")
    for prompt in ("I like cats", "I do not", "I like cats"):
        assert evaluate(asked, prompt).num_metric_calls == 2
    assert len(client.requests) == asked.metric_calls == 6


def test_a_minibatch_borrows_its_parent_s_prior(client: FakeClient) -> None:
    """A new prompt's prior is the mean of its two rows and of 62 rows of its parent."""
    asked = adapter(client, prior_correction="batch")
    asked.evaluate(rows_of(TEXTS[:PRIOR_ROWS]), {"system_prompt": "I do not"})
    found = evaluate(asked, "I like cats")
    preferred = (0.9 + 0.6 + 0.25 * (PRIOR_ROWS - 2)) / PRIOR_ROWS
    assert woof_confidence(found) == pytest.approx(divided(preferred), rel=1e-6)


def test_borrowed_rows_keep_their_variety() -> None:
    """Without a preference in the parent's rows, nothing is divided out."""

    def fair(text: str) -> dict[str, float]:
        cat = 0.8 if "meow" in text else 0.4
        return {"cat": cat, "dog": 1.0 - cat}

    asked = adapter(FakeClient(LABELS, fair), prior_correction="batch")
    asked.evaluate(rows_of(TEXTS[:PRIOR_ROWS]), {"system_prompt": "I do not"})
    assert woof_confidence(evaluate(asked, "I like cats")) == pytest.approx(0.6, rel=1e-6)


def test_own_rows_replace_borrowed_ones(client: FakeClient) -> None:
    """A prompt's prior is that of its own rows once it has enough of them."""
    asked = adapter(client, prior_correction="batch")
    asked.evaluate(rows_of(TEXTS[:PRIOR_ROWS]), {"system_prompt": "I do not"})
    evaluate(asked, "I like cats")
    found = asked.evaluate(rows_of(TEXTS[:PRIOR_ROWS]), {"system_prompt": "I like cats"}, capture_traces=True)
    assert woof_confidence(found) == pytest.approx(divided(0.75), rel=1e-6)


def test_a_prompt_with_enough_rows_keeps_its_prior(client: FakeClient) -> None:
    """Later rows do not change the prior of a prompt that has enough rows."""
    asked = adapter(client, prior_correction="batch")
    candidate = {"system_prompt": "I like cats"}
    asked.evaluate(rows_of(TEXTS[:PRIOR_ROWS]), candidate)
    asked.evaluate(rows_of([f"meow again {n}" for n in range(PRIOR_ROWS)]), candidate)
    found = evaluate(asked, "I like cats")
    assert woof_confidence(found) == pytest.approx(divided(0.75), rel=1e-6)


def test_a_small_parent_does_not_outweigh_a_proposal(client: FakeClient) -> None:
    """A parent with four rows adds two to a proposal with two rows."""
    asked = adapter(client, prior_correction="batch")
    asked.evaluate(rows_of(TEXTS[:4]), {"system_prompt": "I do not"})
    found = evaluate(asked, "I like cats")
    assert woof_confidence(found) == pytest.approx(divided((0.9 + 0.6 + 2 * 0.25) / 4), rel=1e-6)


def test_several_candidates_are_corrected_in_one_go(client: FakeClient) -> None:
    """`batch_evaluate` corrects each candidate by its own prior."""
    asked = adapter(client, prior_correction="batch")
    items = [({"system_prompt": prompt}, ROWS) for prompt in ("I like cats", "I do not")]
    found = asked.batch_evaluate(items)
    assert [[output["parsed_value"] for output in batch.outputs] for batch in found] == [["cat", "dog"]] * 2
    assert sum(batch.num_metric_calls or 0 for batch in found) == 4


def test_answers_without_logprobs_stay() -> None:
    """Answers without log-probabilities are returned uncorrected."""
    client = FakeClient(LABELS, {"meow": "cat", "woof": "dog"}, space="none")
    found = evaluate(adapter(client, prior_correction="batch"), "p")
    assert [output["parsed_value"] for output in found.outputs] == ["cat", "dog"]


def test_other_corrections_are_refused(client: FakeClient) -> None:
    """A correction other than "batch" raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected prior_correction 'batch'"):
        adapter(client, prior_correction="contextual")
    assert client.requests == []
