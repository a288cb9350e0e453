"""Sampling: several answers to one question, and what their agreement says."""

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
    Outcome,
    Prediction,
    ProviderError,
    ProviderTimeoutError,
    Task,
)
from calibrant.core._prediction import LogprobSpace
from calibrant.core._records import prediction_from_record, prediction_to_record
from calibrant.inference import Classifier, RetryPolicy
from calibrant.inference._exact import ExactScoring
from calibrant.inference._methods import Decoding
from calibrant.inference._sampling import Sampling
from calibrant.testing import FakeClient, FakeContinuingClient, MemoryJournal, fake_response
from distributions import distribution_of

LABELS = ["cat", "dog", "cow", "horse"]
SLOW = ProviderTimeoutError("slow", provider="fake", retryable=True)
DOWN = ProviderError("down", provider="fake", status=500)


def make(model: Any, **changes: Any) -> Classifier:
    """Return a classifier that samples, with some of its arguments replaced."""
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
    """Return the prediction made of these answers, one for each sample."""
    client = FakeClient(changes.get("labels", LABELS), {"text": list(answers)})
    return make(client, **{"samples": len(answers), **changes}).classify("text")


def refusal(reason: str = "I will not.") -> dict[str, Any]:
    """Return an answer that declines."""
    message = {"role": "assistant", "content": None, "refusal": reason}
    return {"choices": [{"finish_reason": "stop", "message": message}]}


def priced(label: str, cost: float | None, *, tokens: int = 3) -> dict[str, Any]:
    """Return an answer whose tokens and price are known."""
    response = fake_response(label, LABELS, top_logprobs=0)
    response["usage"] = {"prompt_tokens": 10, "completion_tokens": tokens}
    return response if cost is None else {**response, "_hidden_params": {"response_cost": cost}}


# --- the distribution ---------------------------------------------------------------------------


def test_probabilities_are_smoothed_frequencies() -> None:
    """By hand: 3, 1, 1 and 0 of 5 answers, four labels: (n + 1) / (5 + 4)."""
    prediction = sample("cat", "dog", "cat", "cow", "cat")
    found = distribution_of(prediction)
    assert (prediction.label, prediction.outcome, prediction.reason) == ("cat", Outcome.OK, "")
    assert found.labels == tuple(LABELS)
    assert found.probabilities == pytest.approx([4 / 9, 2 / 9, 2 / 9, 1 / 9])
    assert prediction.confidence == pytest.approx(4 / 9)
    assert found.measured.tolist() == [True, True, True, False]
    assert found.space is LogprobSpace.SAMPLED
    assert (found.label_mass, found.unresolved_mass) == (1.0, 0.0)
    assert (found.joint_logprob, found.error_bound, found.emitted) == (None, None, "cat")


@pytest.mark.parametrize(("samples", "n_labels"), [(2, 2), (10, 2), (10, 77), (50, 3)])
def test_answers_that_all_agree_are_not_certain(samples: int, n_labels: int) -> None:
    """(k + 1) / (k + L): with many labels it takes many samples to be sure."""
    labels = [f"label {number}" for number in range(n_labels)]
    prediction = sample(*["label 1"] * samples, labels=labels)
    assert prediction.confidence == pytest.approx((samples + 1) / (samples + n_labels))
    assert distribution_of(prediction).probabilities.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "answers", [["horse", "dog"], ["dog", "horse"], ["cow", "horse", "dog", "dog", "horse"]]
)
def test_of_equally_frequent_labels_the_first_in_the_label_set_wins(answers: list[str]) -> None:
    """Whichever was answered first."""
    prediction = sample(*answers)
    assert prediction.label == "dog"
    assert distribution_of(prediction).emitted == "dog"


def test_the_raw_answer_is_the_first_one_with_the_label() -> None:
    """Something a person can look at."""
    assert sample("dog", "cat", "cat").text == '{"category": "cat"}'


def test_token_log_probabilities_are_left_aside() -> None:
    """A function may report them unasked; they are another kind of confidence."""
    client = FakeClient(LABELS, {"text": ("cat", 0.999)})
    prediction = make(client.as_callable(), samples=3).classify("text")
    assert prediction.confidence == pytest.approx(4 / 7)
    assert distribution_of(prediction).space is LogprobSpace.SAMPLED


def test_a_prediction_survives_the_journal() -> None:
    """Every field, the space included."""
    prediction = sample("cat", "dog", "cat")
    assert prediction_from_record(prediction_to_record(prediction)) == prediction


# --- answers without a label --------------------------------------------------------------------


def test_answers_without_a_label_are_not_counted() -> None:
    """A refusal and a label of no label set leave two cats: 3/6, and half of the label mass."""
    prediction = sample("cat", refusal(), "whale", "cat")
    found = distribution_of(prediction)
    assert (prediction.label, prediction.outcome, prediction.reason) == ("cat", Outcome.OK, "")
    assert found.probabilities == pytest.approx([3 / 6, 1 / 6, 1 / 6, 1 / 6])
    assert found.label_mass == 0.5


def test_one_label_among_refusals_is_an_answer() -> None:
    """The label mass says how little it is worth."""
    prediction = sample(refusal(), refusal(), refusal(), "dog")
    assert prediction.label == "dog"
    assert prediction.confidence == pytest.approx(2 / 5)
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
def test_without_any_label_most_answers_decide(answers: list[Any], outcome: Outcome, reason: str) -> None:
    """Of two outcomes equally frequent the first; the reason is the first of its kind."""
    prediction = sample(*answers)
    assert (prediction.outcome, prediction.reason) == (outcome, reason)
    assert (prediction.label, prediction.confidence, prediction.distribution) == (None, None, None)
    assert prediction.attempts == len(answers)


# --- calls that fail ----------------------------------------------------------------------------


def test_every_sample_is_retried_by_itself() -> None:
    """A passing fault of one sample costs one more call."""
    prediction = sample("cat", SLOW, "cat", "cat", samples=3)
    assert (prediction.label, prediction.attempts) == ("cat", 4)
    assert prediction.confidence == pytest.approx(4 / 7)


def test_half_of_the_samples_are_enough() -> None:
    """Two of four: (2 + 1) / (2 + 4); what failed is neither label mass nor reason."""
    prediction = sample("cat", DOWN, "cat", DOWN)
    assert (prediction.outcome, prediction.label, prediction.reason) == (Outcome.OK, "cat", "")
    assert prediction.confidence == pytest.approx(3 / 6)
    assert distribution_of(prediction).label_mass == 1.0
    assert prediction.attempts == 4


@pytest.mark.parametrize("answers", [[DOWN, "cat", DOWN, "cat", DOWN], [DOWN, DOWN]])
def test_less_than_half_is_a_failed_row(answers: list[Any]) -> None:
    """The server's fault, with all calls counted."""
    prediction = sample(*answers)
    assert (prediction.outcome, prediction.reason) == (Outcome.ERROR, "fake: down")
    assert (prediction.label, prediction.attempts) == (None, len(answers))


def test_a_fault_that_every_call_meets_ends_the_run() -> None:
    """A bad key, as without sampling."""
    denied = ProviderError("bad key", provider="fake", status=401)
    with pytest.raises(ProviderError, match="bad key"):
        sample(denied, denied, denied)


def test_a_model_that_ends_the_program_does_not_end_the_event_loop() -> None:
    """The call fails with a reason, and the next one works."""

    def rude(_messages: list[dict[str, str]]) -> object:
        raise SystemExit(3)

    with pytest.raises(CalibrantError, match=r"SystemExit\(3\)"):
        make(rude, samples=3).classify("text")
    assert sample("cat", "cat").label == "cat"


def test_an_error_of_ones_own_ends_the_row_as_it_is() -> None:
    """Nothing is hidden that is no fault of the provider."""
    with pytest.raises(ConfigurationError, match="Expected a label"):
        sample("cat", 3)


# --- what it costs ------------------------------------------------------------------------------


def test_tokens_and_costs_of_all_samples_are_added() -> None:
    """Those that hold no label were paid for too."""
    answers = [priced("cat", 0.25), priced("dog", 0.5, tokens=4), priced("whale", 0.125)]
    usage = sample(*answers).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cost) == (30, 10, 0.875)


@pytest.mark.parametrize(("costs", "total"), [([0.25, None], 0.25), ([None, None], None), ([0.0, None], 0.0)])
def test_the_cost_is_what_is_known_of_it(costs: list[float | None], total: float | None) -> None:
    """Unknown only where nothing is known."""
    assert sample(*(priced("cat", cost) for cost in costs)).usage.cost == total


def test_the_model_is_the_first_that_is_known() -> None:
    """Some answers do not say who gave them."""
    unnamed = {key: value for key, value in priced("cat", None).items() if key != "model"}
    assert sample(unnamed, {**priced("dog", None), "model": "m-1"}, priced("cat", None)).model == "m-1"
    assert sample(unnamed, unnamed).model is None


# --- what is asked ------------------------------------------------------------------------------


def asked(client: FakeClient) -> list[dict[str, Any]]:
    """Return the options of every request."""
    return [dict(request.options) for request in client.requests]


def test_ten_samples_at_temperature_one_by_default() -> None:
    """Without log-probabilities, and without a seed that nobody set."""
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
def test_the_callers_temperature_is_used(changes: dict[str, Any], temperature: float | None) -> None:
    """Under either name; None sends none, for models that take none."""
    client = FakeClient(LABELS, {}, default="cat")
    classifier = make(client, samples=2, **changes)
    classifier.classify("text")
    assert asked(client) == [{"temperature": temperature}] * 2
    assert classifier.method.describe()["temperature"] == temperature


def test_a_seed_is_counted_on_from() -> None:
    """One seed for all would make the samples alike."""
    client = FakeClient(LABELS, {}, default="cat")
    options = {"seed": 7}
    make(client, samples=3, options=options).classify("text")
    assert [request["seed"] for request in asked(client)] == [7, 8, 9]
    assert options == {"seed": 7}


def test_samples_share_the_limit_of_the_rows() -> None:
    """Ten rows of five samples are not fifty calls in flight; every loop has the limit to itself."""
    client = FakeClient(LABELS, {}, default="cat", latency=0.002)
    classifier = make(client, samples=5, concurrency=3)
    classifier.classify_many([str(number) for number in range(10)])
    asyncio.run(classifier.aclassify_many(["a", "b"]))
    assert client.max_in_flight == 3
    assert len(client.requests) == 60


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
    """Every setting that would be misread or ignored is named, with its value."""
    with pytest.raises(ConfigurationError, match=message):
        make(FakeContinuingClient(LABELS, {}), **changes)


def test_sampling_is_never_chosen_unasked() -> None:
    """A model without log-probabilities gives labels without confidence."""
    silent = make(FakeClient(LABELS, {}, default="cat"), scoring=None, top_logprobs=0)
    assert isinstance(silent.method, Decoding)
    assert silent.classify("text").confidence is None
    exact = make(FakeContinuingClient(LABELS, {}, default="cat"), scoring=None)
    assert isinstance(exact.method, ExactScoring)


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
def test_whatever_changes_the_samples_is_part_of_the_key(changes: dict[str, Any]) -> None:
    """A confidence of one kind is never returned for another."""
    memory, client = MemoryJournal(), FakeClient(LABELS, {}, default="cat")
    for different in ({}, changes):
        make(client, **{"samples": 3, "journal": memory, **different}).classify("text")
    assert len(memory) == 2


def test_what_the_journal_holds_is_not_sampled_again() -> None:
    """The same settings give the stored prediction."""
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


def test_a_task_file_may_ask_for_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many stands beside it; the temperature is one of the options."""
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    path = write_task(
        tmp_path, 'name = "openai/x"\nscoring = "sampled"\nsamples = 4\noptions = { temperature = 0.3 }'
    )
    method = Classifier.from_task(Task.from_file(path)).method
    assert isinstance(method, Sampling)
    assert (method.samples, method.temperature) == (4, 0.3)


def test_another_model_is_sampled_too_where_the_task_says_so(tmp_path: Path) -> None:
    """Every model allows it; other ways of scoring belong to the task's own model."""
    task = Task.from_file(write_task(tmp_path, 'scoring = "sampled"\nsamples = 4'))
    method = Classifier.from_task(task, model=FakeClient(LABELS, {})).method
    assert isinstance(method, Sampling)
    assert method.samples == 4


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
def test_mistakes_in_a_task_file_are_found_with_their_line(tmp_path: Path, model: str, message: str) -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigurationError, match=message):
        Task.from_file(write_task(tmp_path, model))


def test_a_search_scores_and_explains_agreement() -> None:
    """Eight of nine answers are right: 9/13 is the probability that score and feedback speak of."""
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
