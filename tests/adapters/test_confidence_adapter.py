"""Tests of `ConfidenceAdapter` with a scripted model."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pydantic
import pytest
from gepa.adapters.confidence_adapter import ConfidenceAdapter as Reference

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import (
    CalibrantError,
    ConfigurationError,
    ContextLengthError,
    DataError,
    Outcome,
    ProviderError,
)
from calibrant.inference import Classifier
from calibrant.scoring import BrierScoring, LinearBlendScoring
from calibrant.testing import FakeClient, fake_response
from fault_server import FaultServer
from scripted import QUICK, body

LABELS = ["Bills/Electricity", "Bills/Gas & Oil", "Food"]
CANDIDATE = {"system_prompt": "Classify."}


def schema(labels: list[str] = LABELS, field: str = "category") -> dict[str, Any]:
    """Return a response format written by hand, as a user would."""
    return {
        "type": "json_schema",
        "json_schema": {
            "name": "answer",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {field: {"type": "string", "enum": labels}},
                "required": [field],
                "additionalProperties": False,
            },
        },
    }


def adapter(answers: Any, **options: Any) -> ConfidenceAdapter:
    """Return an adapter around a scripted model that answers one user message at a time."""
    client = options.pop("client", None) or FakeClient(LABELS, answers)
    return ConfidenceAdapter(client, "category", schema(), retry=QUICK, **options)


def row(text: str, answer: str, **context: str) -> dict[str, Any]:
    """Return a data row."""
    return {"input": text, "answer": answer, "additional_context": context}


# -- parameters ----------------------------------------------------------------------------------


def test_parameters_are_the_reference_s() -> None:
    """The constructor begins with gepa's parameters and defaults, and adds keyword-only ones."""
    ours = inspect.signature(ConfidenceAdapter.__init__).parameters
    theirs = inspect.signature(Reference.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default, name
    added = list(ours.values())[len(theirs) :]
    assert added
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in added)


def test_default_strategy_follows_the_high_threshold() -> None:
    """The default strategy's threshold is `high_confidence_threshold`."""
    assert adapter({}).scoring_strategy == LinearBlendScoring(0.99)
    assert adapter({}, high_confidence_threshold=0.95).scoring_strategy == LinearBlendScoring(0.95)


def test_a_model_name_needs_a_response_format() -> None:
    """A model name without `response_format` raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="response_format"):
        ConfidenceAdapter("openai/gpt-4.1-mini", "category")
    with pytest.raises(ValueError, match="response_format"):
        ConfidenceAdapter("openai/gpt-4.1-mini", "category", response_schema=schema())


def test_a_callable_takes_its_labels_from_either_schema() -> None:
    """Labels are read from the first schema that has them, `response_schema` before the other."""
    model = FakeClient(LABELS, {}).as_callable()
    assert ConfidenceAdapter(model, "category", schema()).labels.labels == tuple(LABELS)
    assert ConfidenceAdapter(model, "category", response_schema=schema()).labels.labels == tuple(LABELS)
    both = ConfidenceAdapter(model, "category", schema(["x", "y"]), response_schema=schema())
    assert both.labels.labels == tuple(LABELS)
    plain = {"type": "object", "properties": {"category": {"type": "string"}}}
    assert ConfidenceAdapter(model, "category", schema(), plain).labels.labels == tuple(LABELS)


def test_pydantic_models_are_accepted_as_schemas() -> None:
    """An enum inside a nested model becomes the label set and the schema sent."""

    class Category(StrEnum):
        FOOD = "Food"
        RENT = "Rent"

    class Inner(pydantic.BaseModel):
        name: Category

    class Answer(pydantic.BaseModel):
        classification: Inner

    client = FakeClient(["Food", "Rent"], {"lunch": "Food"}, field="classification.name")
    made = ConfidenceAdapter(client, "classification.name", Answer)
    assert made.labels.labels == ("Food", "Rent")
    result = made.evaluate([row("lunch", "Food")], CANDIDATE)
    assert result.scores == [1.0]
    assert client.requests[0].response_format is not None
    assert client.requests[0].response_format["type"] == "json_schema"


@pytest.mark.parametrize(
    "options",
    [
        {"high_confidence_threshold": 0.0},
        {"low_confidence_threshold": 0.995},
        {"failure_score": -0.1},
        {"objectives": ["acuracy"]},
        {"objectives": {"own": "brier"}},
        {"scoring_strategy": 3},
        {"top_logprobs": "5"},
        {"max_litellm_workers": 0},
        {"space": "exact"},
    ],
)
def test_parameters_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """Thresholds, failure scores or objectives out of range raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        adapter({}, **options)


# -- evaluation ----------------------------------------------------------------------------------


def test_request_holds_prompt_input_enum_and_logprobs() -> None:
    """The request has the candidate's first component as system message, the input and the schema."""
    client = FakeClient(LABELS, {"UBER": "Food"})
    adapter({}, client=client, top_logprobs=7).evaluate([row("UBER", "Food")], {"any": "Sort it.", "b": "no"})
    (request,) = client.requests
    assert [dict(m) for m in request.messages] == [
        {"role": "system", "content": "Sort it."},
        {"role": "user", "content": "UBER"},
    ]
    assert request.top_logprobs == 7
    assert request.response_format == schema()


def test_user_template_component_shapes_the_user_message() -> None:
    """Every ``{input}`` of the user template is replaced, and other braces stay."""
    client = FakeClient(LABELS, {"UBER": "Food"})
    candidate = {"system_prompt": "s", "user_template": 'Line: {input} {"a"} {input}'}
    adapter({}, client=client).evaluate([row("UBER", "Food")], candidate)
    assert client.requests[0].messages[1]["content"] == 'Line: UBER {"a"} UBER'


def test_a_candidate_needs_a_system_prompt() -> None:
    """A candidate with a template alone raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected a candidate with a system prompt"):
        adapter({}).evaluate([row("UBER", "Food")], {"user_template": "{input}"})


def test_a_template_without_slot_scores_nothing() -> None:
    """A template without ``{input}`` makes every row unparsed, and no model is called."""
    client = FakeClient(LABELS, {"UBER": "Food"})
    result = adapter({}, client=client).evaluate(
        [row("UBER", "Food")], {"system_prompt": "s", "user_template": "Line:"}, capture_traces=True
    )
    assert client.requests == []
    assert result.scores == [0.0]
    assert result.outputs[0]["outcome"] == "unparsed"


def test_scores_objectives_and_outputs() -> None:
    """Scores, objectives and outputs of the default strategy equal those worked out by hand."""
    made = adapter({"a": ("Food", 0.8), "b": ("Food", 0.95), "c": ("Food", 1.0)})
    result = made.evaluate([row("a", "food "), row("b", "Bills/Electricity"), row("c", "Food")], CANDIDATE)
    assert result.scores == pytest.approx([0.3 + 0.7 * 0.8 / 0.99, 0.0, 1.0])
    assert result.objective_scores is not None
    assert [o["accuracy"] for o in result.objective_scores] == [1.0, 0.0, 1.0]
    assert [o["probability"] for o in result.objective_scores] == pytest.approx([0.8, 0.95, 1.0])
    assert result.outputs[0]["parsed_value"] == "Food"
    assert result.outputs[0]["logprob_score"] == pytest.approx(math.log(0.8))
    assert json.loads(json.dumps(result.outputs)) == result.outputs
    assert result.trajectories is None


def test_shared_prefix_labels_get_their_full_distribution() -> None:
    """The true label's probability is found where two labels begin with the same token."""
    split = lambda text: [text[:5], text[5:]] if text.startswith("Bills") else [text]  # noqa: E731
    client = FakeClient(
        LABELS, lambda _: {"Bills/Electricity": 0.51, "Bills/Gas & Oil": 0.47, "Food": 0.02}, tokens=split
    )
    made = adapter({}, client=client, objectives=["answer_probability", "label_mass", "brier"])
    result = made.evaluate([row("x", "Bills/Gas & Oil")], CANDIDATE)
    assert result.objective_scores is not None
    (found,) = result.objective_scores
    assert found["answer_probability"] == pytest.approx(0.47, abs=1e-6)
    assert found["label_mass"] == pytest.approx(1.0, abs=1e-6)
    expected = 1 - (0.51**2 + (1 - 0.47) ** 2 + 0.02**2) / 2
    assert found["brier"] == pytest.approx(expected, abs=1e-6)


def test_objectives_can_be_added_and_replaced() -> None:
    """A mapping of objectives adds to the default ones."""
    made = adapter({"a": "Food"}, objectives={"length": lambda prediction, _: len(prediction.text) / 100})
    result = made.evaluate([row("a", "Food")], CANDIDATE)
    assert result.objective_scores is not None
    assert set(result.objective_scores[0]) == {"accuracy", "probability", "length"}
    assert result.objective_scores[0]["length"] == pytest.approx(len('{"category": "Food"}') / 100)


def test_proper_scores_use_the_distribution() -> None:
    """The score of a wrong answer under Brier depends on the probability of the truth."""
    answers = {"a": {"Food": 0.5, "Bills/Electricity": 0.4, "Bills/Gas & Oil": 0.1}}
    made = adapter(answers, scoring_strategy=BrierScoring())
    (score,) = made.evaluate([row("a", "Bills/Electricity")], CANDIDATE).scores
    assert score == pytest.approx(1 - (0.25 + 0.36 + 0.01) / 2, abs=1e-6)


def test_raw_space_confidence_is_the_share_among_labels() -> None:
    """In raw space the confidence is the share among the labels, without illegal text."""
    client = FakeClient(LABELS, {"a": ("Food", 0.8)}, space="raw", illegal_mass=0.5)
    result = adapter({}, client=client).evaluate([row("a", "Food")], CANDIDATE)
    assert result.objective_scores is not None
    assert result.objective_scores[0]["probability"] == pytest.approx(0.8, abs=0.01)


def test_nothing_is_mutated() -> None:
    """`evaluate` and `make_reflective_dataset` change neither batch, candidate nor schema."""
    batch, candidate, form = [row("a", "Food", hint="h")], dict(CANDIDATE), schema()
    before = copy.deepcopy((batch, candidate, form))
    made = ConfidenceAdapter(FakeClient(LABELS, {"a": "Food"}), "category", form)
    result = made.evaluate(batch, candidate, capture_traces=True)
    made.make_reflective_dataset(candidate, result, ["system_prompt"])
    assert (batch, candidate, form) == before


def test_batches_run_concurrently() -> None:
    """`batch_evaluate` returns each pair's own scores, and calls the model for all rows at once."""
    client = FakeClient(
        LABELS, lambda _, prompt: "Food" if "one" in prompt else ("Bills/Electricity", 0.9), latency=0.02
    )
    rows = [row(str(i), "Food") for i in range(4)]
    first, second = adapter({}, client=client).batch_evaluate(
        [({"p": "one"}, rows), ({"p": "two"}, rows[:2])]
    )
    assert first.scores == [1.0] * 4
    assert second.scores == [0.0] * 2
    assert second.trajectories is not None
    assert client.max_in_flight == 6


def test_callables_run_concurrently() -> None:
    """Ten calls of an ordinary function run at the same time."""
    barrier = threading.Barrier(10, timeout=10)

    def model(_: list[dict[str, str]]) -> object:
        barrier.wait()
        return fake_response("Food", LABELS)

    made = ConfidenceAdapter(model, "category", schema())
    assert made.evaluate([row(str(i), "Food") for i in range(10)], CANDIDATE).scores == [1.0] * 10


def test_worker_limit_is_kept() -> None:
    """No more calls run at the same time than `max_litellm_workers`."""
    client = FakeClient(LABELS, lambda _: "Food", latency=0.005)
    adapter({}, client=client, max_litellm_workers=3).evaluate(
        [row(str(i), "Food") for i in range(12)], CANDIDATE
    )
    assert client.max_in_flight == 3


def test_an_unknown_answer_names_its_row() -> None:
    """A true label that is not in the label set raises DataError with the row."""
    with pytest.raises(
        DataError, match=r"input 'power': answer 'Bills/Electrcity' is not one of the 3 labels"
    ):
        adapter({"power": "Food"}).evaluate([row("power", "Bills/Electrcity")], CANDIDATE)


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (body("no json"), "unparsed"),
        (body('{"category": "Foo'), "unparsed"),
        (body('{"category": "Fo', finish="length"), "unparsed"),
        (body('{"category": "Travel"}'), "unparsed"),
        (body('{"other": "Food"}'), "unparsed"),
        (body(None, refusal="I will not."), "refusal"),
        (body(None, finish="content_filter"), "refusal"),
        (body(None), "error"),
        ({"choices": []}, "error"),
        ({"choices": [], "error": {"message": "overloaded"}}, "error"),
        (ProviderError("down", provider="p", retryable=True, status=503), "error"),
    ],
)
def test_every_kind_of_failure_has_its_outcome(response: Any, outcome: str) -> None:
    """Every failure scores `failure_score`; rows with a server's error get no reflective record."""
    client = FakeClient(LABELS, lambda _: response)
    made = adapter({}, client=client, failure_score=0.25)
    result = made.evaluate([row("a", "Food")], CANDIDATE, capture_traces=True)
    assert result.scores == [0.25]
    assert result.outputs[0]["outcome"] == outcome
    assert result.outputs[0]["reason"]
    records = made.make_reflective_dataset(CANDIDATE, result, ["system_prompt"])["system_prompt"]
    if outcome == "error":
        assert records == []
        assert len(client.requests) == QUICK.attempts
    else:
        assert "Food" in records[0]["Feedback"]
        assert not records[0]["Feedback"].startswith(("Correct", "Wrong (", "WRONG"))


def test_passing_faults_are_retried() -> None:
    """Two passing faults of a row are retried, and the row scores as right."""
    client = FakeClient(
        LABELS, lambda _: [body(None), ProviderError("x", provider="p", retryable=True), "Food"]
    )
    assert adapter({}, client=client).evaluate([row("a", "Food")], CANDIDATE).scores == [1.0]


@pytest.mark.parametrize(
    ("sizes", "fails", "told"),
    [
        pytest.param([50], lambda n: n < 11, "11 of the last 50", id="more than 20 % of at least 50 rows"),
        pytest.param([4] * 13, lambda n: n % 4 == 0, "12 of the last 50", id="spread over minibatches"),
        pytest.param([200], lambda n: n >= 160, "40 of the last 50", id="a server that dies mid-batch"),
    ],
)
def test_too_many_failures_stop_a_run(sizes: list[int], fails: Callable[[int], bool], told: str) -> None:
    """More than 20 % failed rows of the last 50 raise ProviderError."""
    broken = ProviderError("connection reset", provider="p", retryable=False)
    made = adapter({}, client=FakeClient(LABELS, lambda text: broken if fails(int(text)) else "Food"))
    numbers = iter(range(sum(sizes)))
    *earlier, last = ([row(str(next(numbers)), "Food") for _ in range(size)] for size in sizes)
    for batch in earlier:
        made.evaluate(batch, CANDIDATE)
    with pytest.raises(ProviderError, match=rf"{told} rows.*connection reset"):
        made.evaluate(last, CANDIDATE)


def test_a_few_failures_stop_no_run() -> None:
    """A share of 20 % failed rows raises nothing."""
    broken = ProviderError("connection reset", provider="p", retryable=False)
    fine = adapter({}, client=FakeClient(LABELS, lambda text: broken if int(text) < 10 else "Food"))
    assert fine.evaluate([row(str(i), "Food") for i in range(50)], CANDIDATE).scores.count(0.0) == 10


def test_a_too_long_prompt_is_unparsed() -> None:
    """A prompt that is too long makes its rows unparsed, and raises nothing."""
    long = ContextLengthError("too long", provider="p", status=400)
    made = adapter({}, client=FakeClient(LABELS, lambda _: long))
    result = made.evaluate([row(str(i), "Food") for i in range(60)], CANDIDATE)
    assert {output["outcome"] for output in result.outputs} == {"unparsed"}
    assert "too long" in result.outputs[0]["reason"]


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"input": "a"}, "'answer'"),
        ({"input": 5, "answer": "Food"}, "'input'"),
        ({"input": "a", "answer": None}, "'answer'"),
        ({"input": "a", "answer": "Food", "additional_context": ["x"]}, "additional_context"),
    ],
)
def test_broken_rows_are_named(broken: Any, named: str) -> None:
    """A row with a missing or wrong entry raises DataError that names the entry."""
    with pytest.raises(DataError, match=named):
        adapter({"a": "Food"}).evaluate([broken], CANDIDATE)


def test_a_model_cannot_exit_the_process() -> None:
    """SystemExit in a model's function becomes an error, and the next batch is evaluated."""

    def model(messages: list[dict[str, str]]) -> object:
        if messages[1]["content"] == "quit":
            raise SystemExit(3)
        return fake_response("Food", LABELS)

    made = ConfidenceAdapter(model, "category", schema())
    with pytest.raises(CalibrantError, match="SystemExit"):
        made.evaluate([row("quit", "Food")], CANDIDATE)
    assert made.evaluate([row("go on", "Food")], CANDIDATE).scores == [1.0]


def test_a_bad_key_stops_at_once() -> None:
    """An invalid API key raises ProviderError instead of a failed row."""
    made = adapter(
        {}, client=FakeClient(LABELS, lambda _: ProviderError("bad key", provider="p", status=401))
    )
    with pytest.raises(ProviderError, match="bad key"):
        made.evaluate([row("a", "Food")], CANDIDATE)


def test_missing_logprobs_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    """Rows without log-probabilities are scored by correctness, and one warning is logged."""
    made = adapter({}, client=FakeClient(LABELS, lambda _: body('{"category": "Food"}')))
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        result = made.evaluate([row("a", "Food"), row("b", "Bills/Electricity")], CANDIDATE)
        made.evaluate([row("c", "Food")], CANDIDATE)
    assert result.scores == [1.0, 0.0]
    assert result.outputs[0]["logprob_score"] is None
    assert [r.getMessage() for r in caplog.records if "log-probabilities" in r.getMessage()] == [
        "fake: 2 of 2 answers came without usable log-probabilities; these are scored by correctness alone."
    ]
    assert (made.completions, made.completions_without_logprobs) == (3, 3)


# -- reflection ----------------------------------------------------------------------------------


def test_reflective_records_hold_label_and_feedback() -> None:
    """The reflective dataset has a record of each row for every component."""
    made = adapter({"a": ("Food", 0.73)})
    candidate = {"system_prompt": "s", "user_template": "{input}"}
    result = made.evaluate(
        [row("a", "Bills/Electricity", note="Power company")], candidate, capture_traces=True
    )
    found = made.make_reflective_dataset(candidate, result, ["system_prompt", "user_template"])
    assert set(found) == {"system_prompt", "user_template"}
    (record,) = found["system_prompt"]
    assert record["Inputs"] == "a"
    assert record["Generated Outputs"] == "Food"
    assert record["Feedback"].startswith("Wrong (73% probability).")
    assert "Power company" in record["Feedback"]


def test_unfit_reflection_is_refused() -> None:
    """A batch without trajectories, and an unknown component, raise ConfigurationError."""
    made = adapter({"a": "Food"})
    bare = made.evaluate([row("a", "Food")], CANDIDATE)
    with pytest.raises(ConfigurationError, match="capture_traces=True"):
        made.make_reflective_dataset(CANDIDATE, bare, ["system_prompt"])
    traced = made.evaluate([row("a", "Food")], CANDIDATE, capture_traces=True)
    with pytest.raises(ConfigurationError, match="nope"):
        made.make_reflective_dataset(CANDIDATE, traced, ["nope"])


def test_the_proposer_observes_evaluations() -> None:
    """The proposer's `observe` gets the candidate, the rows and the predictions."""
    heard = []

    class Proposer:
        def __call__(self, _: Any, __: Any, components: Any) -> dict[str, str]:
            return {components[0]: "new"}

        def observe(self, candidate: Any, rows: Any, predictions: Any) -> None:
            heard.append((dict(candidate), len(rows), [p.outcome for p in predictions]))

    proposer = Proposer()
    made = adapter({"a": "Food"}, proposer=proposer)
    assert made.propose_new_texts is proposer
    made.evaluate([row("a", "Food")], CANDIDATE)
    assert heard == [(CANDIDATE, 1, [Outcome.OK])]


def test_threads_may_share_an_adapter() -> None:
    """Two threads that use one adapter get their own scores."""
    client = FakeClient(
        LABELS, lambda text: "Food" if text.startswith("f") else "Bills/Electricity", latency=0.005
    )
    made = adapter({}, client=client)
    found: dict[str, list[float]] = {}

    def work(kind: str, answer: str) -> None:
        rows = [row(f"{kind}{i}", answer) for i in range(20)]
        found[kind] = made.evaluate(rows, CANDIDATE).scores

    threads = [
        threading.Thread(target=work, args=pair) for pair in (("f", "Food"), ("b", "Bills/Electricity"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert found == {"f": [1.0] * 20, "b": [1.0] * 20}
    assert made.completions == 40


# -- connections ---------------------------------------------------------------------------------


SEVERAL_ADAPTERS = """
import os, sys
from calibrant import ConfidenceAdapter

schema = {"properties": {"category": {"enum": ["Food", "Rent"]}}, "required": ["category"]}
access = {"api_base": sys.argv[1], "api_key": "k"}
kept = []
for number in range(3):
    name = f"hosted_vllm/{number}"
    with ConfidenceAdapter(name, "category", schema, litellm_batch_completion_kwargs=access) as adapter:
        found = adapter.evaluate([{"input": "a", "answer": "Food"}], {"system_prompt": "Classify."})
    kept.append(adapter)
    print(found.outputs[0]["outcome"], len(os.listdir("/dev/fd")))
"""


def test_leaving_the_block_closes_connections() -> None:
    """Adapters that are closed leave no connection open, and the program ends without a word about any."""
    with FaultServer(["Food", "Rent"], field="category") as server:
        done = subprocess.run(  # noqa: S603 (our own code)
            [sys.executable, "-c", SEVERAL_ADAPTERS, server.api_base],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    first, *others = done.stdout.splitlines()
    assert first.startswith("ok ")
    assert others == [first, first]
    assert "Unclosed" not in done.stderr


def test_what_was_given_stays_open() -> None:
    """Closing an adapter closes neither a client nor a classifier that it was given."""

    class Counting(FakeClient):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    client = Counting(LABELS, {"a": "Food"})
    with adapter({}, client=client):
        pass
    with ConfidenceAdapter.from_classifier(Classifier(model=client, labels=LABELS)) as made:
        assert made.metric_calls == 0
    made.close()
    assert client.closed == 0
