"""Tests of a candidate's component `demonstrations`."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import ConfigurationError, DemonstrationSettings, Outcome, Query
from calibrant.inference import Classifier, DemonstrationIndex
from calibrant.testing import FakeClient, MemoryJournal

LABELS = ("cat", "dog")
TRAIN = {"the kitten sleeps": "cat", "a puppy barks": "dog", "my kitten purrs": "cat"}
ROWS = [{"input": f"{text}!", "answer": answer} for text, answer in TRAIN.items()]
PROMPT = {"system_prompt": "Which?"}
SHOWN = {**PROMPT, "demonstrations": DemonstrationSettings(k=1).to_text()}


def copying(_: str, system: str) -> tuple[str, float]:
    """Answer with the label that the prompt shows, and mostly cats without demonstrations."""
    return ("dog", 0.8) if '"dog"' in system else ("cat", 0.6)


def adapter_of(client: Any = None, **options: Any) -> ConfidenceAdapter:
    """Return an adapter with training rows for demonstrations."""
    index = DemonstrationIndex(list(TRAIN), list(TRAIN.values()), labels=LABELS)
    journal = options.pop("journal", None)
    classifier = Classifier(
        model=client or FakeClient(LABELS, copying), labels=LABELS, field="category", journal=journal
    )
    return ConfidenceAdapter.from_classifier(classifier, **{"demonstrations": index, **options})


def labels_under(adapter: ConfidenceAdapter, candidate: dict[str, str]) -> list[str | None]:
    """Return the labels that are answered under a candidate."""
    outputs = adapter.evaluate([dict(row) for row in ROWS], candidate).outputs  # type: ignore[arg-type]
    return [output["parsed_value"] for output in outputs]


def test_prompts_show_the_nearest_rows() -> None:
    """The system message shows the nearest training row, in any order of the components."""
    client = FakeClient(LABELS, copying)
    adapter = adapter_of(client)
    assert labels_under(adapter, SHOWN) == ["cat", "dog", "cat"]
    assert labels_under(adapter, dict(reversed(SHOWN.items()))) == ["cat", "dog", "cat"]
    assert client.requests[0].messages == (
        {
            "role": "system",
            "content": 'Which?\n\nExamples:\n\nText: the kitten sleeps\nAnswer: {"category": "cat"}',
        },
        {"role": "user", "content": "the kitten sleeps!"},
    )


@pytest.mark.parametrize("component", [{}, {"demonstrations": ""}, {"demonstrations": " "}])
def test_a_candidate_may_show_none(component: dict[str, str]) -> None:
    """A missing or blank component shows no demonstration."""
    client = FakeClient(LABELS, copying)
    assert labels_under(adapter_of(client), {**PROMPT, **component}) == ["cat"] * 3
    assert {request.messages[0]["content"] for request in client.requests} == {"Which?"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Show five examples.", "demonstrations as JSON"),
        ('{"k": 0}', "demonstrations.k"),
        ('{"k": 4}', "k between 1 and 3"),
        ('{"k": 2, "how": "best"}', "unknown key 'demonstrations.how'"),
        ("[3]", "demonstrations"),
    ],
)
def test_an_unreadable_proposal_is_unparsed(text: str, reason: str) -> None:
    """A component that cannot be read makes every row unparsed with the reason, without a call."""
    client = FakeClient(LABELS, copying)
    found = adapter_of(client).evaluate(ROWS, {**PROMPT, "demonstrations": text})  # type: ignore[arg-type]
    assert client.requests == []
    assert found.scores == [0.0] * 3
    for output in found.outputs:
        assert output["outcome"] == Outcome.UNPARSED.value
        assert reason in output["reason"]


def test_the_component_needs_rows() -> None:
    """Demonstrations without training rows raise ConfigurationError; a blank component needs none."""
    adapter = adapter_of(demonstrations=None)
    assert labels_under(adapter, {**PROMPT, "demonstrations": ""}) == ["cat"] * 3
    with pytest.raises(ConfigurationError, match="DemonstrationIndex"):
        adapter.evaluate(ROWS, SHOWN)  # type: ignore[arg-type]


def test_every_setting_has_its_own_prior() -> None:
    """The plain prompt and the prompt with demonstrations have different label priors."""
    adapter = adapter_of(prior_correction="batch")
    labels_under(adapter, PROMPT)
    labels_under(adapter, SHOWN)
    plain, shown = (
        adapter.label_prior(Query(prompt="Which?", text="", demonstrations=own))
        for own in (None, SHOWN["demonstrations"])
    )
    assert plain is not None
    assert shown is not None
    assert plain.prior_ == pytest.approx([0.6, 0.4])
    # Two rows are shown a cat and one a dog; the rows of the plain prompt are as many, so none is missing.
    assert shown.prior_ == pytest.approx([(0.6 + 0.6 + 0.2) / 3, (0.4 + 0.4 + 0.8) / 3])


def test_journal_answers_are_no_calls() -> None:
    """The journal answers repeated rows of a candidate, but not those of other demonstrations."""
    client = FakeClient(LABELS, copying)
    adapter = adapter_of(client, journal=MemoryJournal())
    for candidate in (SHOWN, SHOWN, PROMPT):
        labels_under(adapter, candidate)
    assert adapter.metric_calls == len(client.requests) == 6


def test_the_classifier_s_demonstrations_are_the_default() -> None:
    """A prompt shows the classifier's demonstrations, and a blank component removes them."""
    index = DemonstrationIndex(list(TRAIN), list(TRAIN.values()), labels=LABELS)
    plain = Classifier(model=FakeClient(LABELS, copying), labels=LABELS, field="category")
    adapter = ConfidenceAdapter.from_classifier(plain.with_demonstrations(index, k=1))
    assert labels_under(adapter, PROMPT) == ["cat", "dog", "cat"]
    assert labels_under(adapter, {**PROMPT, "demonstrations": ""}) == ["cat"] * 3


def test_thresholds_use_the_candidate_s_demonstrations() -> None:
    """A training row of the thresholds' sample is not shown beside itself."""
    client = FakeClient(LABELS, copying)
    rows = [{"input": text, "answer": answer} for text, answer in TRAIN.items()]
    adapter = adapter_of(client, thresholds="auto", threshold_rows=rows)
    labels_under(adapter, SHOWN)
    for request in client.requests[:3]:
        system, user = (message["content"] for message in request.messages)
        assert system.count("Text: ") == 1
        assert f"Text: {user}\n" not in system
