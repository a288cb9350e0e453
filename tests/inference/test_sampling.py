"""Tests of sampling: several answers to one query, and their agreement as confidence."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import (
    CalibrantError,
    ConfigurationError,
    LogprobSpace,
    Outcome,
    Prediction,
    ProviderError,
    ProviderTimeoutError,
    Task,
)
from calibrant.inference import Classifier, RetryPolicy
from calibrant.testing import FakeClient, FakeContinuingClient, MemoryJournal, fake_response
from distributions import distribution_of
from saved_prediction import saved_and_read

LABELS = ["cat", "dog", "cow", "horse"]
SLOW = ProviderTimeoutError("slow", provider="fake", retryable=True)
DOWN = ProviderError("down", provider="fake", status=500)


def make(model: Any, **changes: Any) -> Classifier:
    """Return a sampling classifier with some of its arguments replaced."""
    arguments = {
        "labels": LABELS,
        "field": "category",
        "prompt": "Which animal?",
        "scoring": "sampled",
        "retry": RetryPolicy(attempts=2, initial_seconds=0),
        **changes,
    }
    return Classifier(model=model, **arguments)


def sample(*answers: Any, **changes: Any) -> Prediction:
    """Return the prediction from these answers, one per sample."""
    client = FakeClient(changes.get("labels", LABELS), {"text": list(answers)})
    return make(client, **{"samples": len(answers), **changes}).classify("text")


def refusal(reason: str = "I will not.") -> dict[str, Any]:
    """Return an answer that refuses."""
    message = {"role": "assistant", "content": None, "refusal": reason}
    return {"choices": [{"finish_reason": "stop", "message": message}]}


def priced(label: str, cost: float | None, *, tokens: int = 3) -> dict[str, Any]:
    """Return an answer with known tokens and price."""
    response = fake_response(label, LABELS, top_logprobs=0)
    response["usage"] = {"prompt_tokens": 10, "completion_tokens": tokens}
    return response if cost is None else {**response, "_hidden_params": {"response_cost": cost}}


# --- the distribution ---------------------------------------------------------------------------


def test_probabilities_are_smoothed_frequencies() -> None:
    """With 3, 1, 1 and 0 of 5 answers for four labels, each probability is (n + 1) / (5 + 4)."""
    prediction = sample("cat", "dog", "cat", "cow", "cat")
    found = distribution_of(prediction)
    assert (prediction.label, prediction.outcome, prediction.reason) == ("cat", Outcome.OK, "")
    assert found.labels == tuple(LABELS)
    assert found.probabilities == pytest.approx([4 / 9, 2 / 9, 2 / 9, 1 / 9])
    assert prediction.confidence == pytest.approx(4 / 9)
    assert (found.measured.tolist(), found.space) == ([True, True, True, False], LogprobSpace.SAMPLED)
    assert (found.label_mass, found.unresolved_mass) == (1.0, 0.0)
    assert (found.joint_logprob, found.error_bound, found.emitted) == (None, None, "cat")


@pytest.mark.parametrize(("samples", "n_labels"), [(2, 2), (10, 2), (10, 77), (50, 3)])
def test_unanimous_answers_are_not_certain(samples: int, n_labels: int) -> None:
    """The confidence of k equal answers over L labels is (k + 1) / (k + L)."""
    labels = [f"label {number}" for number in range(n_labels)]
    prediction = sample(*["label 1"] * samples, labels=labels)
    assert prediction.confidence == pytest.approx((samples + 1) / (samples + n_labels))
    assert distribution_of(prediction).probabilities.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "answers", [["horse", "dog"], ["dog", "horse"], ["cow", "horse", "dog", "dog", "horse"]]
)
def test_ties_go_to_the_first_label(answers: list[str]) -> None:
    """Of equally frequent labels the first in the label set wins."""
    prediction = sample(*answers)
    assert (prediction.label, distribution_of(prediction).emitted) == ("dog", "dog")


def test_text_is_the_first_with_the_label() -> None:
    """The prediction's text is the first answer with the predicted label."""
    assert sample("dog", "cat", "cat").text == '{"category": "cat"}'


def test_token_logprobs_are_ignored() -> None:
    """Log-probabilities that a function reports are not used."""
    client = FakeClient(LABELS, {"text": ("cat", 0.999)})
    prediction = make(client.as_callable(), samples=3).classify("text")
    assert prediction.confidence == pytest.approx(4 / 7)
    assert distribution_of(prediction).space is LogprobSpace.SAMPLED


def test_sampled_prediction_survives_a_record() -> None:
    """A sampled prediction is equal after a record."""
    prediction = sample("cat", "dog", "cat")
    assert saved_and_read(prediction) == prediction


# --- answers without a label --------------------------------------------------------------------


def test_unlabelled_answers_lower_the_label_mass() -> None:
    """With a refusal and an unknown label in four samples, the probability is 3/6 and the mass 1/2."""
    prediction = sample("cat", refusal(), "whale", "cat")
    found = distribution_of(prediction)
    assert (prediction.label, prediction.outcome, prediction.reason) == ("cat", Outcome.OK, "")
    assert (found.probabilities, found.label_mass) == (pytest.approx([3 / 6, 1 / 6, 1 / 6, 1 / 6]), 0.5)


def test_one_label_among_refusals_counts() -> None:
    """One label among three refusals is the answer, with a label mass of 1/4."""
    prediction = sample(refusal(), refusal(), refusal(), "dog")
    assert (prediction.label, prediction.confidence) == ("dog", pytest.approx(2 / 5))
    assert distribution_of(prediction).label_mass == 0.25


@pytest.mark.parametrize(
    ("answers", "outcome", "reason"),
    [
        (
            [refusal("No."), "whale", "bat"],
            Outcome.UNPARSED,
            "answered 'whale', which is not one of the labels",
        ),
        (["whale", refusal("No."), refusal("Never.")], Outcome.REFUSAL, "No."),
        ([refusal("No."), "whale"], Outcome.REFUSAL, "No."),
        (["whale", refusal("No.")], Outcome.UNPARSED, "answered 'whale', which is not one of the labels"),
    ],
)
def test_most_frequent_outcome_wins(answers: list[Any], outcome: Outcome, reason: str) -> None:
    """Without any label the most frequent outcome wins, or the first of equally frequent ones."""
    prediction = sample(*answers)
    assert (prediction.outcome, prediction.reason) == (outcome, reason)
    assert (prediction.label, prediction.confidence, prediction.distribution) == (None, None, None)
    assert prediction.attempts == len(answers)


# --- calls that fail ----------------------------------------------------------------------------


def test_each_sample_is_retried_alone() -> None:
    """A passing fault of one sample costs one more call."""
    prediction = sample("cat", SLOW, "cat", "cat", samples=3)
    assert (prediction.label, prediction.attempts) == ("cat", 4)
    assert prediction.confidence == pytest.approx(4 / 7)


def test_half_of_the_samples_suffice() -> None:
    """Two of four samples give (2 + 1) / (2 + 4); failures change neither label mass nor reason."""
    prediction = sample("cat", DOWN, "cat", DOWN)
    assert (prediction.outcome, prediction.label, prediction.reason) == (Outcome.OK, "cat", "")
    assert prediction.confidence == pytest.approx(3 / 6)
    assert (distribution_of(prediction).label_mass, prediction.attempts) == (1.0, 4)


@pytest.mark.parametrize("answers", [[DOWN, "cat", DOWN, "cat", DOWN], [DOWN, DOWN]])
def test_fewer_than_half_fail_the_row(answers: list[Any]) -> None:
    """Fewer than half of the samples make the row an error with all attempts."""
    prediction = sample(*answers)
    assert (prediction.outcome, prediction.reason) == (Outcome.ERROR, "fake: down")
    assert (prediction.label, prediction.attempts) == (None, len(answers))


def test_bad_key_ends_the_run() -> None:
    """A bad key ends the run with ProviderError."""
    denied = ProviderError("bad key", provider="fake", status=401)
    with pytest.raises(ProviderError, match="bad key"):
        sample(denied, denied, denied)


def test_system_exit_leaves_the_loop_running() -> None:
    """A model that raises SystemExit fails its call, and the next call works."""

    def rude(_messages: list[dict[str, str]]) -> object:
        raise SystemExit(3)

    with pytest.raises(CalibrantError, match=r"SystemExit\(3\)"):
        make(rude, samples=3).classify("text")
    assert sample("cat", "cat").label == "cat"


def test_other_errors_pass_unchanged() -> None:
    """An exception that is no ProviderError is raised unchanged."""
    with pytest.raises(ConfigurationError, match="Expected a label"):
        sample("cat", 3)


# --- what it costs ------------------------------------------------------------------------------


def test_usage_adds_all_samples() -> None:
    """Tokens and costs of all answers are added, unlabelled ones included."""
    answers = [priced("cat", 0.25), priced("dog", 0.5, tokens=4), priced("whale", 0.125)]
    usage = sample(*answers).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cost) == (30, 10, 0.875)


@pytest.mark.parametrize(("answered", "outcome"), [(1, Outcome.OK), (0, Outcome.ERROR)])
def test_usage_adds_samples_that_failed(answered: int, outcome: Outcome) -> None:
    """Tokens and costs of answers that could not be read are paid, too, be the row an error for them."""
    broken = priced("cat", 0.5)
    broken["choices"][0]["message"]["content"] = ""
    answers = [priced("cat", 0.25)] * answered
    prediction = sample(*answers, *[broken] * (4 - 2 * answered), samples=2)
    assert (prediction.outcome, prediction.attempts) == (outcome, 4 - answered)
    assert prediction.usage.cost == 0.5 * (4 - 2 * answered) + 0.25 * answered


@pytest.mark.parametrize(("costs", "total"), [([0.25, None], 0.25), ([None, None], None), ([0.0, None], 0.0)])
def test_cost_adds_known_costs(costs: list[float | None], total: float | None) -> None:
    """The cost is the sum of the known costs, and None where none is known."""
    assert sample(*(priced("cat", cost) for cost in costs)).usage.cost == total


def test_model_is_the_first_named() -> None:
    """The prediction's model is the first one that an answer names, or None."""
    unnamed = {key: value for key, value in priced("cat", None).items() if key != "model"}
    assert sample(unnamed, {**priced("dog", None), "model": "m-1"}, priced("cat", None)).model == "m-1"
    assert sample(unnamed, unnamed).model is None


# --- what is asked ------------------------------------------------------------------------------


def asked(client: FakeClient) -> list[dict[str, Any]]:
    """Return the options of every request."""
    return [dict(request.options) for request in client.requests]


def test_defaults_are_ten_samples_at_one() -> None:
    """By default ten samples are drawn at temperature 1, without log-probabilities or a seed."""
    client = FakeClient(LABELS, {}, default="cat")
    make(client, options={"max_tokens": 9}).classify("text")
    assert asked(client) == [{"temperature": 1.0, "max_tokens": 9}] * 10
    assert {request.top_logprobs for request in client.requests} == {0}
    assert {request.messages[1]["content"] for request in client.requests} == {"text"}
    assert all(request.response_format is not None for request in client.requests)


@pytest.mark.parametrize(
    ("changes", "temperature"),
    [
        ({"temperature": 0.7}, 0.7),
        ({"options": {"temperature": 0.4}}, 0.4),
        ({"options": {"temperature": None}}, None),
    ],
)
def test_given_temperature_is_sent(changes: dict[str, Any], temperature: float | None) -> None:
    """The temperature is taken from the argument or the options; None sends none."""
    client = FakeClient(LABELS, {}, default="cat")
    classifier = make(client, samples=2, **changes)
    classifier.classify("text")
    assert asked(client) == [{"temperature": temperature}] * 2
    assert classifier.method.describe()["temperature"] == temperature


def test_seed_counts_up() -> None:
    """A seed counts up from sample to sample."""
    client = FakeClient(LABELS, {}, default="cat")
    options = {"seed": 7}
    make(client, samples=3, options=options).classify("text")
    assert [request["seed"] for request in asked(client)] == [7, 8, 9]
    assert options == {"seed": 7}


def test_samples_share_the_concurrency() -> None:
    """All samples of all rows share the limit of calls in flight."""
    client = FakeClient(LABELS, {}, default="cat", latency=0.002)
    classifier = make(client, samples=5, concurrency=3)
    classifier.classify_many([str(number) for number in range(10)])
    asyncio.run(classifier.aclassify_many(["a", "b"]))
    assert (client.max_in_flight, len(client.requests)) == (3, 60)


# --- choosing it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 1}, "samples to be a whole number of at least 2, got 1"),
        ({"samples": "3"}, "samples to be a whole number of at least 2, got '3'"),
        ({"temperature": 0}, "temperature above 0 to sample at, got 0"),
        ({"options": {"temperature": math.nan}}, "temperature above 0 to sample at, got nan"),
        (
            {"temperature": 1.0, "options": {"temperature": None}},
            "one temperature, got temperature=1.0 and None",
        ),
        ({"options": {"seed": "7"}}, "seed to be a whole number"),
        ({"scoring": None, "samples": 3}, "Expected samples only with scoring='sampled'"),
        ({"scoring": "exact", "temperature": 0.5}, "Expected temperature only with scoring='sampled'"),
        ({"scoring": "guess"}, "'exact', 'decode' or 'sampled', got 'guess'"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    """Invalid or ignored settings raise ConfigurationError with their name and value."""
    with pytest.raises(ConfigurationError, match=message):
        make(FakeContinuingClient(LABELS, {}), **changes)


def test_sampling_is_never_the_default() -> None:
    """Sampling is used only where scoring="sampled" is given."""
    silent = make(FakeClient(LABELS, {}, default="cat"), scoring=None, top_logprobs=0)
    assert silent.space is LogprobSpace.MASKED
    assert silent.classify("text").confidence is None
    exact = make(FakeContinuingClient(LABELS, {}, default="cat"), scoring=None)
    assert exact.space is LogprobSpace.EXACT


# --- journal, task file, search -----------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": 4},
        {"temperature": 0.5},
        {"options": {"temperature": 1.0}},
        {"options": {"seed": 1}},
        {"answer_field": "final"},
        {"scoring": "decode", "samples": None},
        {"labels": ["dog", "cat", "cow", "horse"]},
    ],
    ids=str,
)
def test_key_covers_sampling_settings(changes: dict[str, Any]) -> None:
    """Every setting that changes the samples is part of the journal's key."""
    memory, client = MemoryJournal(), FakeClient(LABELS, {}, default="cat")
    for different in ({}, changes):
        make(client, **{"samples": 3, "journal": memory, **different}).classify("text")
    assert len(memory) == 2


def test_journal_answers_without_samples() -> None:
    """A stored prediction is returned without a call."""
    memory = MemoryJournal()
    first = sample("cat", "dog", "cat", journal=memory)
    client = FakeClient(LABELS, {}, default="horse")
    again = make(client, samples=3, journal=memory).classify("text")
    assert (again.label, again.distribution, again.attempts) == ("cat", first.distribution, 0)
    assert client.requests == []


def write_task(folder: Path, model: str) -> Path:
    """Write a task file with this [model] section."""
    path = folder / "task.toml"
    path.write_text(
        f'name = "n"\nlabels = {json.dumps(LABELS)}\nfield = "category"\nprompt = "p"\n[model]\n{model}\n'
    )
    return path


def test_task_file_sets_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task file sets the samples, and the temperature among the options."""
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    path = write_task(
        tmp_path, 'name = "openai/x"\nscoring = "sampled"\nsamples = 4\noptions = { temperature = 0.3 }'
    )
    method = Classifier.from_task(Task.from_file(path)).method
    described = method.describe()
    assert (described["samples"], described["temperature"]) == (4, 0.3)


def test_given_model_keeps_sampled_scoring(tmp_path: Path) -> None:
    """A model in place of the task's is sampled as the task says."""
    task = Task.from_file(write_task(tmp_path, 'scoring = "sampled"\nsamples = 4'))
    method = Classifier.from_task(task, model=FakeClient(LABELS, {})).method
    assert method.describe()["samples"] == 4


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            'scoring = "sampled"\nsamples = 1',
            "task.toml:7: model.samples: .*greater than or equal to 2, got 1",
        ),
        (
            "samples = 4",
            "task.toml:6: model.samples: .*scoring = 'sampled', got 4: add it, or leave samples out",
        ),
        ('scoring = "decode"\nsamples = 4', "task.toml:7: model.samples: .*scoring = 'sampled', got 4"),
        ('scoring = "guess"', "task.toml:6: model.scoring: .*'exact', 'decode' or 'sampled', got 'guess'"),
    ],
)
def test_task_file_mistakes_name_their_line(tmp_path: Path, model: str, message: str) -> None:
    """Mistakes in a task file raise ConfigurationError with the line."""
    with pytest.raises(ConfigurationError, match=message):
        Task.from_file(write_task(tmp_path, model))


def test_search_scores_agreement() -> None:
    """With eight of nine equal samples, `logprob_score` and feedback use the probability 9/13."""
    client = FakeClient(LABELS, {"text": ["cat", *["dog"] * 8]})
    adapter = ConfidenceAdapter.from_classifier(make(client, samples=9))
    batch = adapter.evaluate(
        [{"input": "text", "answer": "dog", "additional_context": {}}],
        {"system_prompt": "p"},
        capture_traces=True,
    )
    assert batch.outputs[0]["logprob_score"] == pytest.approx(math.log(9 / 13))
    assert batch.objective_scores == [{"accuracy": 1.0, "probability": pytest.approx(9 / 13)}]
    assert 0.0 < batch.scores[0] < 1.0
    assert batch.trajectories is not None
    feedback = batch.trajectories[0]["feedback"]
    assert feedback.startswith("Correct but uncertain (69% probability). Also considered: 'cat' (15%).")
    assert adapter.completions_without_logprobs == 0
