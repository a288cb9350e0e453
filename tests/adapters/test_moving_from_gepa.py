"""Tests of scripts for gepa's own adapter: they run with another import line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import gepa
import pytest
from gepa.adapters.confidence_adapter import ConfidenceAdapter as Reference
from gepa.adapters.confidence_adapter import SigmoidScoring as ReferenceSigmoid
from gepa.core.engine import GEPAEngine
from gepa.proposer.reflective_mutation.reflective_mutation import ReflectiveMutationProposer

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import ConfigurationError, DataError, Example, LabelSet, OpenLabels, Task
from calibrant.inference import Classifier
from calibrant.optimization import ExemplarProposer, optimize
from calibrant.testing import FakeClient, MemoryJournal

LABELS = ["Bills/Electricity", "Bills/Gas & Oil", "Food"]
CANDIDATE = {"system_prompt": "Classify."}
IMPORT = "from {} import ConfidenceAdapter, LinearBlendScoring, SigmoidScoring, ThresholdScoring"
BEFORE, AFTER = IMPORT.format("gepa.adapters.confidence_adapter"), IMPORT.format("calibrant")
SCRIPT = """
found = []
for scoring in (None, LinearBlendScoring(0.9, 0.2), ThresholdScoring(0.7), SigmoidScoring(0.9, 12)):
    adapter = ConfidenceAdapter(
        model=model, field_path="category", response_schema=schema, scoring_strategy=scoring, top_logprobs=5
    )
    batch = adapter.evaluate(rows, {"system_prompt": "Classify."}, capture_traces=True)
    records = adapter.make_reflective_dataset({"system_prompt": "Classify."}, batch, ["system_prompt"])
    found.append((batch, records["system_prompt"]))
"""


def row(text: str, answer: str) -> dict[str, Any]:
    """Return a data row."""
    return {"input": text, "answer": answer, "additional_context": {}}


def schema(labels: list[str]) -> dict[str, Any]:
    """Return a JSON schema with the labels."""
    return {"type": "object", "properties": {"category": {"type": "string", "enum": labels}}}


def adapter(answers: Any, **options: Any) -> ConfidenceAdapter:
    """Return an adapter around a function, without a schema."""
    return ConfidenceAdapter(FakeClient(LABELS, answers).as_callable(), "category", **options)


def traces(made: ConfidenceAdapter, *rows: dict[str, Any]) -> list[Any]:
    """Return the trajectories of evaluated rows."""
    found = made.evaluate(list(rows), CANDIDATE, capture_traces=True).trajectories
    assert found is not None
    return found


# -- one import line -----------------------------------------------------------------------------


def run(line: str) -> list[Any]:
    """Run the script with an import line, and return its results."""
    answers = {"sure": ("Food", 0.995), "lean": ("Food", 0.8), "split": ("Bills/Electricity", 0.6)}
    model = FakeClient(LABELS, answers).as_callable()
    rows = [row("sure", "Food"), row("lean", "Food"), row("split", "Bills/Gas & Oil"), row("sure", "food ")]
    names: dict[str, Any] = {"model": model, "rows": rows, "schema": schema(LABELS)}
    exec(f"{line}\n{SCRIPT}", names)  # noqa: S102 (a script)
    return list(names["found"])


def test_a_script_needs_another_import_only() -> None:
    """The script gives equal scores, objectives and answers with both import lines."""
    for (batch, records), (theirs, their_records) in zip(run(AFTER), run(BEFORE), strict=True):
        assert batch.scores == pytest.approx(theirs.scores)
        assert batch.objective_scores == [pytest.approx(one) for one in theirs.objective_scores]
        assert [record.keys() for record in records] == [record.keys() for record in their_records]
        for own, other in zip(batch.trajectories, theirs.trajectories, strict=True):
            assert own.keys() > other.keys()
            for key in ("full_assistant_response", "parsed_value", "is_correct"):
                assert own[key] == other[key], key
            assert own["logprob_score"] == pytest.approx(other["logprob_score"])


class Halved:
    """A strategy written for gepa's adapter."""

    def score(self, is_correct: bool, logprob_score: float | None) -> float:
        """Return half of the probability."""
        return 0.0 if not is_correct or logprob_score is None else 0.5 * math.exp(logprob_score)

    def describe(self) -> str:
        """Return the strategy's name."""
        return "half of the probability"


@pytest.mark.parametrize("strategy", [Halved(), ReferenceSigmoid(0.5, 12.0)])
def test_reference_strategies_are_taken(strategy: Any) -> None:
    """A user's own strategy and gepa's give the scores that they give in gepa's adapter."""
    answers = {"a": ("Food", 0.9), "b": ("Food", 0.8)}
    rows = [row("a", "Food"), row("b", "Bills/Electricity")]
    options = {"response_schema": schema(LABELS), "scoring_strategy": strategy}
    theirs = Reference(FakeClient(LABELS, answers).as_callable(), "category", **options)
    found = adapter(answers, **options).evaluate(rows, CANDIDATE)
    assert found.scores == pytest.approx(theirs.evaluate(rows, CANDIDATE).scores)


def test_both_adapters_have_the_same_attributes() -> None:
    """The adapter has all attributes of gepa's, however it was built."""
    theirs = {name for name in vars(Reference(lambda _: None, "category")) if not name.startswith("_")}
    classifier = Classifier(model=FakeClient(LABELS, {}), labels=LABELS, field="category")
    wrapped = ConfidenceAdapter.from_classifier(classifier)
    built = ConfidenceAdapter(FakeClient(LABELS, {}), "category", schema(LABELS))
    assert theirs <= {name for name in dir(wrapped) if not name.startswith("_")}
    assert dir(wrapped) == dir(built)
    for name in theirs - {"model", "response_format"}:
        assert getattr(wrapped, name) == getattr(built, name), name
    assert (wrapped.model, wrapped.response_schema) == ("fake", None)
    assert wrapped.response_format == classifier.response_format


def test_attributes_are_read_only() -> None:
    """Attributes have the constructor's values, and setting one raises AttributeError."""
    made = ConfidenceAdapter(
        "openai/gpt-4.1-mini",
        "category",
        schema(LABELS),
        answer_field="category",
        top_logprobs=7,
        max_litellm_workers=3,
        litellm_batch_completion_kwargs={"temperature": 0.0, "api_key": "k"},
    )
    assert (made.model, made.field_path, made.answer_field) == ("openai/gpt-4.1-mini", "category", "category")
    assert (made.top_logprobs, made.max_litellm_workers) == (7, 3)
    assert made.litellm_batch_completion_kwargs["temperature"] == 0.0
    with pytest.raises(AttributeError):
        made.top_logprobs = 5  # type: ignore[misc]


def test_trajectories_list_the_measured_labels() -> None:
    """`top_alternatives` lists all labels, the most probable first."""
    (found,) = traces(
        adapter({"x": {"Food": 0.6, "Bills/Electricity": 0.4}}, response_schema=schema(LABELS)),
        row("x", "Bills/Electricity"),
    )
    alternatives = found["top_alternatives"]
    assert [one["resolved_value"] for one in alternatives] == ["Food", "Bills/Electricity"]
    assert [one["probability"] for one in alternatives] == pytest.approx([0.6, 0.4])
    assert not found["is_correct"]
    assert "'Bills/Electricity' (40%)" in found["feedback"]


# -- a callable without a schema -----------------------------------------------------------------


def test_labels_are_the_answers_seen_so_far() -> None:
    """Without a schema the labels are those seen so far, in their first spelling."""
    made = adapter({"a": ("Food", 0.9), "b": ("Bills/Electricity", 0.8)})
    assert isinstance(made.labels, OpenLabels)
    assert made.labels.labels == ()
    assert made.response_format is None
    made.evaluate([row("a", "food")], CANDIDATE)
    assert made.labels.labels == ("food",)
    made.evaluate([row("b", "Bills/Gas & Oil")], CANDIDATE)
    assert made.labels.labels == ("food", "Bills/Gas & Oil", "Bills/Electricity")


def test_scores_without_a_schema_are_equal() -> None:
    """Without a schema scores and objectives equal those of gepa's adapter."""
    answers = {"a": ("Food", 0.9), "b": ("Bills/Electricity", 0.8)}
    rows = [row("a", "food"), row("b", "Bills/Gas & Oil"), row("b", "Bills/Electricity")]
    theirs = Reference(FakeClient(LABELS, answers).as_callable(), "category").evaluate(rows, CANDIDATE)
    found = adapter(answers).evaluate(rows, CANDIDATE)
    assert found.scores == pytest.approx(theirs.scores)
    assert found.objective_scores == [pytest.approx(one) for one in theirs.objective_scores]


def test_an_unknown_answer_is_wrong() -> None:
    """Without a schema an answer that is no known label scores 0 as a wrong one."""
    (found,) = traces(adapter({"a": ("Food", 0.95)}, failure_score=0.5), row("a", "Rent"))
    assert found["score"] == 0.0
    assert found["feedback"].startswith("Wrong (95% probability). Expected 'Rent', got 'Food'.")


def test_distributions_cover_later_labels() -> None:
    """Distributions of a batch cover labels that only its later rows brought."""
    three = {"Food": 0.6, "Bills/Electricity": 0.3, "Bills/Gas & Oil": 0.1}
    made = adapter({"x": three, "y": ("Bills/Gas & Oil", 0.9)}, max_litellm_workers=1)
    first, last = traces(made, row("x", "Bills/Electricity"), row("y", "Food"))
    assert first["prediction"].distribution.labels == last["prediction"].distribution.labels
    assert first["prediction"].distribution.probability("Bills/Gas & Oil") == pytest.approx(0.1)
    (again,) = traces(made, row("x", "Bills/Electricity"))
    assert again["top_alternatives"] == first["top_alternatives"]


def test_a_journal_survives_new_labels() -> None:
    """Stored answers of a journal are read over the labels of another process."""
    client = FakeClient(
        LABELS, {"x": {"Food": 0.6, "Bills/Electricity": 0.4}, "y": ("Bills/Electricity", 0.9)}
    )
    journal = MemoryJournal()
    model = client.as_callable()
    ConfidenceAdapter(model, "category", journal=journal).evaluate([row("x", "Food")], CANDIDATE)
    made = ConfidenceAdapter(model, "category", journal=journal)
    traces(made, row("y", "Bills/Electricity"))
    (found,) = traces(made, row("x", "Food"))
    assert len(client.requests) == 2
    assert found["prediction"].attempts == 0
    assert found["prediction"].distribution.labels == ("Bills/Electricity", "Food")
    assert found["prediction"].distribution.probability("Bills/Electricity") == pytest.approx(0.4)


def test_a_journal_brings_its_labels() -> None:
    """A new adapter takes the labels in its journal, also in another spelling."""
    journal = MemoryJournal()
    answers = {"x": ("Food", 0.9), "y": ("Bills/Gas & Oil", 0.8)}
    adapter(answers, journal=journal).evaluate([row("x", "Food"), row("y", "Bills/Gas & Oil")], CANDIDATE)
    (trace,) = traces(adapter(answers, journal=journal), row("x", "Food"))
    assert trace["prediction"].distribution.labels == ("Food", "Bills/Gas & Oil")
    assert trace["prediction"].confidence == pytest.approx(0.9)
    journal = MemoryJournal()
    adapter(answers, journal=journal).evaluate([row("x", "Food")], CANDIDATE)
    (trace,) = traces(adapter(answers, journal=journal), row("x", "FOOD"))
    assert trace["is_correct"]
    assert trace["prediction"].confidence == pytest.approx(0.9)


def test_missing_logprobs_score_by_correctness() -> None:
    """Without log-probabilities and schema, rows are scored by correctness."""
    made = ConfidenceAdapter(lambda _: '{"category": "Food"}', "category")
    assert made.evaluate([row("a", "Food"), row("b", "Rent")], CANDIDATE).scores == [1.0, 0.0]


@pytest.mark.parametrize("options", [{"scoring": "sampled"}, {"prior_correction": "batch"}])
def test_settings_of_closed_labels_need_a_schema(options: dict[str, Any]) -> None:
    """Options that need closed labels raise ConfigurationError that names `response_schema`."""
    with pytest.raises(ConfigurationError, match="response_schema"):
        adapter({}, **options)


def test_labels_can_be_listed_instead_of_a_schema() -> None:
    """A label set can be given in place of a schema."""
    assert adapter({}, labels=LabelSet(LABELS)).labels == LabelSet(LABELS)


def test_a_blank_answer_is_no_label() -> None:
    """A row with a blank answer raises DataError."""
    with pytest.raises(DataError, match="blank"):
        adapter({"a": "Food"}).evaluate([row("a", " ")], CANDIDATE)


def test_a_proposer_works_without_a_schema() -> None:
    """An `ExemplarProposer` works without a schema."""
    rows = [row("a", "Food"), row("b", "Bills/Electricity")]
    examples = [Example(input=one["input"], answer=one["answer"]) for one in rows]
    proposer = ExemplarProposer(train=examples)
    made = adapter({"a": ("Food", 0.9), "b": ("Food", 0.6)}, proposer=proposer)
    batch = made.evaluate(rows, CANDIDATE, capture_traces=True)
    records = made.make_reflective_dataset(CANDIDATE, batch, ["system_prompt"])
    assert proposer(CANDIDATE, records, ["system_prompt"])["system_prompt"] != CANDIDATE["system_prompt"]


# -- the next gepa -------------------------------------------------------------------------------


def test_batch_evaluate_takes_both_calls() -> None:
    """`batch_evaluate` takes `capture_traces`, and returns trajectories unless it is False."""
    made = adapter({"a": "Food"}, response_schema=schema(LABELS))
    items = [(CANDIDATE, [row("a", "Food")])]
    (plain,) = made.batch_evaluate(items)
    (traced,) = made.batch_evaluate(items, capture_traces=True)
    (bare,) = made.batch_evaluate(items, capture_traces=False)
    assert plain.scores == traced.scores == bare.scores == [1.0]
    assert plain.trajectories is not None
    assert traced.trajectories is not None
    assert [one["feedback"] for one in (*plain.trajectories, *traced.trajectories)] == ["Correct."] * 2
    assert bare.trajectories is None


@pytest.fixture
def keywords(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Make gepa call adapters as its main branch does, and return the passed values."""
    passed: list[bool] = []

    def calling(*, capture_traces: bool) -> Callable[[Any, Any], Any]:
        def batch_evaluate(self: Any, items: Any) -> Any:
            passed.append(capture_traces)
            return self.adapter.batch_evaluate(items, capture_traces=capture_traces)

        return batch_evaluate

    # The engine validates and needs no traces; the proposer reflects on them.
    monkeypatch.setattr(GEPAEngine, "_batch_evaluate", calling(capture_traces=False))
    monkeypatch.setattr(ReflectiveMutationProposer, "_batch_evaluate", calling(capture_traces=True))
    yield passed
    assert set(passed) == {True, False}


def better_with_rules(_: str, prompt: str) -> Any:
    """Answer rightly if the prompt has rules."""
    return ("Food", 0.99) if "rules" in prompt else ("Bills/Electricity", 0.6)


@pytest.mark.parametrize("version", ["installed", "next"])
def test_gepa_finds_the_better_prompt(request: pytest.FixtureRequest, version: str) -> None:
    """``gepa.optimize`` finds the better prompt, in the installed version and the next."""
    if version == "next":
        request.getfixturevalue("keywords")
    rows = [row(str(i), "Food") for i in range(8)]
    result = gepa.optimize(
        seed_candidate=dict(CANDIDATE),
        trainset=rows,
        valset=rows,
        adapter=adapter(better_with_rules, response_schema=schema(LABELS)),
        reflection_lm=lambda _: "```\nClassify by these rules.\n```",
        max_metric_calls=60,
        logger=Silent(),
    )
    assert result.best_candidate["system_prompt"] == "Classify by these rules."


def test_calibrant_s_search_runs_with_it(keywords: list[bool]) -> None:
    """`optimize` works with gepa's next version."""
    rows = [
        Example(input=f"{word} {number}", answer=answer)
        for number in range(20)
        for word, answer in (("lunch", "Food"), ("power", "Rent"))
    ]
    task = Task(
        name="t",
        labels=["Food", "Rent"],
        field="category",
        prompt="Classify.",
        train=rows[:16],
        validation=rows[16:28],
        test=rows[28:],
    )
    # Right about all rows once the prompt demonstrates one, so that a proposal is validated.
    model = FakeClient(
        ["Food", "Rent"], lambda text, prompt: "Rent" if "power" in text and "power" in prompt else "Food"
    )
    result = optimize(task, model=model, max_metric_calls=60, minibatch_size=4)
    assert result.proposals > 0
    assert keywords


class Silent:
    """A logger that drops everything."""

    def log(self, message: object) -> None:
        """Drop the message."""
