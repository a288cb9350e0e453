"""Tests of decision models: questions, distributions, and answers that do not fit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibrant import Classifier
from calibrant.cascade import AvgLogprob, Cascade, LabelProbability
from calibrant.core import (
    CompletionRequest,
    ConfigurationError,
    Field,
    FieldLabels,
    LimitReachedError,
    Limits,
    LogprobSpace,
    MultiLabels,
    OpenLabels,
    OrdinalLabels,
    Outcome,
    ProviderError,
)
from calibrant.inference import RetryPolicy
from calibrant.testing import MemoryJournal
from calibrant.tuned import Tuned
from decision_server import DecisionServer

# Asked directly, and through litellm.
WIRES = ["systemone/own", "decisions/own", "systemone/typesafe/jev-latest", "decisions/perplexity/decider"]
ANIMALS = ["cat", "dog", "bird"]
ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def server() -> Iterator[DecisionServer]:
    """Return a server whose first option has 0.7, the second 0.3, and the third nothing."""
    found = DecisionServer(0.7, 0.3, 0.0)
    yield found
    found.stop()


def classifier(server: DecisionServer, wire: str = "systemone/own", **given: object) -> Classifier:
    """Return a classifier of animals that asks the server."""
    options = {"api_base": server.root, "api_key": "sk-hidden-key"}
    settings = {"labels": ANIMALS, "prompt": "Which animal?", "options": options, "retry": ONCE, **given}
    return Classifier(model=wire, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("wire", WIRES)
def test_every_label_has_a_probability(server: DecisionServer, wire: str) -> None:
    """The distribution is the server's, in the order of the labels; a zero is finite."""
    with classifier(server, wire) as asked:
        found = asked.classify("It purrs.")
    assert (found.label, found.model, found.outcome) == ("cat", "decider-1", Outcome.OK)
    assert found.distribution is not None
    assert found.distribution.space is LogprobSpace.DECISION
    assert found.distribution.probabilities == pytest.approx([0.7, 0.3, 0.0], abs=0.003)
    assert math.isfinite(found.distribution.logprobs[2])
    assert found.confidence == pytest.approx(0.7, abs=0.003)
    assert found.usage.prompt_tokens == 12


def test_prompt_and_text_have_their_places(server: DecisionServer) -> None:
    """The prompt is the question's instructions, the text the state, and the labels keep their order."""
    with classifier(server) as asked:
        asked.classify("It purrs.")
    (body,) = server.asked
    (question,) = body["questions"].values()
    assert body["state"] == "It purrs."
    assert question["instructions"] == "Which animal?"
    assert list(question["criteria"]) == ANIMALS


def test_openai_gets_the_same(server: DecisionServer) -> None:
    """The other wire has a list of questions and of choices."""
    with classifier(server, "decisions/own") as asked:
        asked.classify("It purrs.")
    (body,) = server.asked
    assert body["input"] == "It purrs."
    (question,) = body["questions"]
    assert [choice["value"] for choice in question["choices"]] == ANIMALS


@pytest.mark.parametrize("wire", WIRES)
def test_a_refused_request_keeps_its_status(server: DecisionServer, wire: str) -> None:
    """The status is in the reason, by which commands tell a refused request from a passing fault."""
    server.failures, server.error_body = [422], {"detail": "too long"}
    with classifier(server, wire) as asked:
        found = asked.classify("It purrs.")
    assert (found.outcome, found.attempts) == (Outcome.ERROR, 1)
    assert "422" in found.reason
    assert "too long" in found.reason


@pytest.mark.parametrize("wire", WIRES)
def test_ordinal_labels_are_a_score(server: DecisionServer, wire: str) -> None:
    """Levels are asked about as a score."""
    with classifier(server, wire, labels=OrdinalLabels(["low", "medium", "high"])) as asked:
        found = asked.classify("Fire!")
    questions = server.asked[0]["questions"]
    (question,) = questions.values() if isinstance(questions, dict) else questions
    assert question["type"] == "score"
    assert found.label == "low"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("labels", [["yes", "no"], ["no", "yes"], ["False", "True"]])
def test_yes_and_no_are_one_statement(server: DecisionServer, wire: str, labels: list[str]) -> None:
    """The probability is that of yes, wherever it stands among the labels."""
    with classifier(server, wire, labels=labels) as asked:
        found = asked.classify("I am furious.")
    assert found.label in {"yes", "True"}
    assert found.distribution is not None
    assert found.distribution.labels == tuple(labels)
    assert found.distribution.probability(found.label) == pytest.approx(0.7)


def test_fields_are_questions_of_one_call(server: DecisionServer) -> None:
    """Every field is a question, and the answer has a part for each."""
    labels = FieldLabels(
        [
            Field(name="animal", labels=ANIMALS),
            Field(name="size", labels=OrdinalLabels(["small", "large", "huge"])),
        ]
    )
    with classifier(server, labels=labels) as asked:
        found = asked.classify("It purrs.")
    assert len(server.asked) == 1
    assert [question["type"] for question in server.asked[0]["questions"].values()] == ["choice", "score"]
    assert [(part.name, part.label) for part in found.parts] == [("animal", "cat"), ("size", "small")]
    assert found.confidence == pytest.approx(0.49, abs=0.005)


def test_labels_of_a_set_are_asked_one_by_one(server: DecisionServer) -> None:
    """Each label of a set is a yes/no question."""
    with classifier(server, labels=MultiLabels(["Bills", "Food"])) as asked:
        found = asked.classify("Pizza.")
    assert found.label == '["Bills", "Food"]'
    questions = [question["instructions"] for question in server.asked[0]["questions"].values()]
    assert ["'Bills'" in questions[0], "'Food'" in questions[1]] == [True, True]


def test_the_named_option_breaks_ties(server: DecisionServer) -> None:
    """Of equally probable labels the one that the model names is taken."""
    server.probabilities, server.changes = (0.4, 0.4, 0.2), {"choice": "dog"}
    with classifier(server) as asked:
        assert asked.classify("?").label == "dog"


def test_the_most_probable_label_is_taken(server: DecisionServer, caplog: pytest.LogCaptureFixture) -> None:
    """A named option that is not the most probable one is not taken, and this is said once."""
    server.changes = {"choice": "bird"}
    with classifier(server) as asked:
        assert [found.label for found in asked.classify_many(["a", "b", "c"])] == ["cat"] * 3
    assert caplog.text.count("another option than the most probable one") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"probabilities": {"cat": 0.7, "cow": 0.3}},
        {"probabilities": {"cat": 0.7, "dog": 0.3}},
        {"probabilities": {}},
        {"probabilities": {"cat": math.nan, "dog": 0.3, "bird": 0.7}},
        {"probabilities": {"cat": math.inf, "dog": 0.0, "bird": 0.0}},
        {"probabilities": {"cat": 10**400, "dog": 0.0, "bird": 0.0}},
        {"probabilities": {"cat": "0.7", "dog": 0.3, "bird": 0.0}},
        {"probabilities": {"cat": 0.7, "dog": 0.7, "bird": 0.1}},
        {"probabilities": {"cat": 1.2, "dog": -0.2, "bird": 0.0}},
        {"type": "noul", "noul": 0.5},
    ],
)
def test_a_wrong_answer_is_the_rows_error(server: DecisionServer, changes: dict[str, object]) -> None:
    """Other options, and numbers that are no distribution, are errors of the row and nothing else."""
    with classifier(server) as asked:
        asked.classify("right")
        server.changes = changes
        found = asked.classify("wrong")
    assert (found.outcome, found.label) == (Outcome.ERROR, None)
    assert found.reason


@pytest.mark.parametrize(
    ("probabilities", "got"),
    [
        ({"cat": 0.7, "cow": 0.3}, "got one of 'cow'"),
        ({"cat": 0.7, "dog": 0.3}, "got none of 'bird'"),
        ({}, "got none of 'cat'"),
        ({"cat": 0.7, "dog": 0.7, "bird": 0.1}, "got the sum 1.5"),
        ({"cat": 1.2, "dog": -0.2, "bird": 0.0}, "got -0.2, below zero"),
    ],
)
def test_a_wrong_answer_says_what_is_wrong(
    server: DecisionServer, probabilities: dict[str, float], got: str
) -> None:
    """The reason names the option or the number that does not fit, and the model as it was named."""
    with classifier(server) as asked:
        asked.classify("right")
        server.changes = {"probabilities": probabilities}
        found = asked.classify("wrong")
    assert got in found.reason
    assert found.reason.startswith("systemone/own: ")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"detail": {"error_type": "not_allowed", "message": "No."}}, "409 No. / not_allowed"),
        (
            {"detail": [{"loc": ["body", "questions", "q0"], "msg": "Blank label", "type": "value_error"}]},
            "409 body.questions.q0 / Blank label / value_error",
        ),
        ({"detail": "Not now"}, "409 Not now"),
        ({"detail": {"odd": 1}}, "409 {'odd': 1}"),
    ],
)
def test_errors_of_every_form_are_words(server: DecisionServer, body: dict[str, object], words: str) -> None:
    """An error below ``detail``, as an object or as a list of mistakes, is told in its own words."""
    with classifier(server) as asked:
        asked.classify("right")
        server.failures, server.error_body = [409], body
        assert asked.classify("wrong").reason == f"systemone/own: HTTPStatusError: {words}"


def test_an_answer_in_another_encoding_has_no_status(server: DecisionServer) -> None:
    """A body that cannot be unpacked is broken, not refused: the reason holds no status that nobody sent."""
    with classifier(server) as asked:
        asked.classify("right")
        server.encoding = "gzip"
        found = asked.classify("wrong")
    assert found.reason.startswith("systemone/own: The answer broke off: ClientPayloadError: Can not decode")
    assert "400" not in found.reason


def test_an_answer_whose_name_is_no_text_is_the_rows_error(server: DecisionServer) -> None:
    """An answer named by something else than a text is an error of the row."""
    with classifier(server, "decisions/own") as asked:
        asked.classify("right")
        server.changes = {"name": ["q0"]}
        found = asked.classify("wrong")
    assert found.outcome is Outcome.ERROR
    assert "broken response" in found.reason


def test_a_broken_answer_is_asked_again(server: DecisionServer) -> None:
    """An overloaded server is asked again."""
    server.failures = [529, 503]
    quick = RetryPolicy(attempts=3, initial_seconds=0.001)
    with classifier(server, retry=quick) as asked:
        found = asked.classify("It purrs.")
    assert (found.label, found.attempts) == ("cat", 3)


@pytest.mark.parametrize("wire", WIRES)
def test_a_refusal_is_an_outcome(server: DecisionServer, wire: str) -> None:
    """A refused question is a refusal of the row, asked once."""
    server.changes = {"type": "refusal"}
    with classifier(server, wire, retry=RetryPolicy(attempts=2, initial_seconds=0.001)) as asked:
        found = asked.classify("?")
    assert (found.outcome, found.label) == (Outcome.REFUSAL, None)
    assert len(server.asked) == 1


@pytest.mark.parametrize("wire", WIRES[2:])
def test_a_broken_answer_beside_a_refusal_is_an_error(server: DecisionServer, wire: str) -> None:
    """What litellm cannot read is a refusal only if nothing else is wrong with it."""
    server.refused, server.changes = {"q1"}, {"probabilities": None}
    labels = FieldLabels([Field(name="animal", labels=ANIMALS), Field(name="size", labels=["s", "m", "l"])])
    with classifier(server, wire, labels=labels) as asked:
        assert asked.classify("?").outcome is Outcome.ERROR
        server.changes = {}
        assert asked.classify("? ").outcome is Outcome.REFUSAL


def test_a_server_without_decisions_says_what_to_name(server: DecisionServer) -> None:
    """A server that holds no decision model ends the run, with the names of chat models."""
    server.failures = [501] * 9
    with classifier(server) as asked, pytest.raises(Exception, match="hosted_vllm/NAME") as raised:
        asked.classify("?")
    assert "sk-hidden-key" not in str(raised.value)
    assert str(raised.value).startswith("systemone/own: ")
    assert len(server.asked) == 1


def test_answers_in_a_journal_are_not_asked_again(server: DecisionServer) -> None:
    """A second classifier reads the answers, with the same distributions."""
    journal, found = MemoryJournal(), []
    for _ in range(2):
        with classifier(server, journal=journal) as asked:
            found.append(asked.classify("It purrs."))
    assert len(server.asked) == 1
    assert found[0].distribution == found[1].distribution


def test_prices_among_the_options_are_counted(server: DecisionServer) -> None:
    """The cost of a call is its tokens times the price that is given."""
    options = {"api_base": server.root, "input_cost_per_token": 0.5, "output_cost_per_token": 0.0}
    with classifier(server, options=options) as asked:
        assert asked.classify("?").usage.cost == 6.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": [f"label {number}" for number in range(256)]}, "at most 255 labels"),
        ({"labels": ["blue whale", "Blue  Whale"]}, "equal up to case and spaces"),
        ({"labels": ["cat", " "]}, "to hold text"),
        ({"options": {"api_base": "http://127.0.0.1:9", "temperature": 1}}, "temperature"),
        ({"scoring": "sampled"}, "Expected no scoring for systemone/.*got 'sampled': leave it out"),
        ({"samples": 3}, "Expected no samples for systemone/.*got 3: leave it out"),
        ({"temperature": 0.5}, "Expected no temperature for systemone/.*got 0.5: leave it out"),
        ({"labels": MultiLabels([f"label {number}" for number in range(129)])}, "at most 128"),
        ({"options": {}}, "api_base"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    server: DecisionServer, given: dict[str, object], message: str
) -> None:
    """A clear error, before any call."""
    with pytest.raises(ConfigurationError, match=message):
        classifier(server, **given)
    assert server.asked == []


def test_a_decision_model_writes_no_text(server: DecisionServer) -> None:
    """It cannot reflect on prompts, and says so."""
    with classifier(server) as asked, pytest.raises(ProviderError, match="writes no text"):
        asyncio.run(asked.client.complete(CompletionRequest(messages=({"role": "user", "content": "?"},))))


def test_an_open_set_has_no_options(server: DecisionServer) -> None:
    """Labels have to be named."""
    with pytest.raises(ConfigurationError, match="name the labels"):
        classifier(server, labels=OpenLabels())


def test_more_than_ten_levels_are_a_choice(server: DecisionServer) -> None:
    """A score has ten levels at most."""
    server.probabilities = (1.0, *[0.0] * 10)
    with classifier(server, labels=OrdinalLabels([f"{level} stars" for level in range(11)])) as asked:
        assert asked.classify("Fine.").label == "0 stars"
    (question,) = server.asked[0]["questions"].values()
    assert question["type"] == "choice"


def test_a_task_without_a_prompt_asks_something(server: DecisionServer) -> None:
    """The instructions are never empty."""
    with classifier(server, prompt="") as asked:
        asked.classify("It purrs.")
    (question,) = server.asked[0]["questions"].values()
    assert question["instructions"]


def test_rounding_of_many_options_is_no_fault(server: DecisionServer) -> None:
    """Ten rounded probabilities may miss the sum 1 by more than two may."""
    server.probabilities = (0.96, *[0.0] * 9)
    with classifier(server, labels=[f"kind {number}" for number in range(10)]) as asked:
        found = asked.classify("?")
    assert found.distribution is not None
    assert found.distribution.probabilities.sum() == pytest.approx(1.0)


def test_a_zero_that_is_not_rounded_is_nearly_zero(server: DecisionServer) -> None:
    """A zero among unrounded probabilities stays below one beside rounded ones, and has a logarithm."""
    server.probabilities = (0.7123456, 0.2876544, 0.0)
    with classifier(server) as asked:
        found = asked.classify("?")
    assert found.distribution is not None
    assert found.distribution.probability("bird") == pytest.approx(1e-6, rel=0.01)


def test_a_wrong_answer_is_asked_again(server: DecisionServer) -> None:
    """A broken answer is retried like a failed call."""
    server.changes = {"probabilities": {"cat": 1.0}}
    with classifier(server, retry=RetryPolicy(attempts=2, initial_seconds=0.001)) as asked:
        assert asked.classify("?").outcome is Outcome.ERROR
    assert len(server.asked) == 2


@pytest.mark.parametrize("changes", [{}, {"type": "told"}, {"probabilities": {"cat": None}}])
def test_a_wrong_answer_is_paid_for(server: DecisionServer, changes: dict[str, object]) -> None:
    """The tokens of an answer that cannot be used, or not even be read, count for the row."""
    server.probabilities = (0.1, 0.1, 0.1)
    server.changes = changes
    with classifier(server, retry=RetryPolicy(attempts=2, initial_seconds=0.001)) as asked:
        found = asked.classify("?")
    assert (found.outcome, found.attempts) == (Outcome.ERROR, 2)
    assert found.usage.prompt_tokens == 24


def test_wrong_answers_use_a_budget_up(server: DecisionServer) -> None:
    """A server whose every answer is broken costs no more than the budget allows."""
    server.changes = {"type": "told"}
    limits = Limits(max_cost=0.5, concurrency=1)
    prices = {"api_base": server.root, "input_cost_per_token": 0.01, "output_cost_per_token": 0.01}
    with classifier(server, retry=RetryPolicy(attempts=1), options=prices, limits=limits) as asked:
        with pytest.raises(LimitReachedError, match="max_cost"):
            asked.classify_many(list(map(str, range(30))))
        assert asked.meter.cost == pytest.approx(0.12 * len(server.asked))
    assert len(server.asked) == 5


def test_headers_are_sent_and_never_shown(server: DecisionServer) -> None:
    """Headers of one's own go to the server; what they hold is in no message."""
    options = {"api_base": server.root, "extra_headers": {"X-Team": "team-secret-4711"}}
    with classifier(server, options=options) as asked:
        asked.classify("?")
        server.failures = [400]
        server.message = "no team-secret-4711 here"
        found = asked.classify("again")
    assert server.headers[0]["X-Team"] == "team-secret-4711"
    assert "no " in found.reason
    assert "4711" not in found.reason


def test_an_answer_to_another_question_is_an_error(server: DecisionServer) -> None:
    """An answer that names another question is never taken for this one's."""
    server.changes = {"name": "q1"}
    with classifier(server, "decisions/own") as asked:
        found = asked.classify("?")
    assert (found.outcome, found.label) == (Outcome.ERROR, None)


def test_answers_in_another_order_find_their_questions(server: DecisionServer) -> None:
    """Answers go by the names of their questions."""
    server.reverses = True
    labels = FieldLabels([Field(name="animal", labels=ANIMALS), Field(name="size", labels=["s", "m", "l"])])
    with classifier(server, "decisions/own", labels=labels) as asked:
        found = asked.classify("?")
    assert [(part.name, part.label) for part in found.parts] == [("animal", "cat"), ("size", "s")]


def test_a_method_that_reads_tokens_names_one_that_does_not(server: DecisionServer) -> None:
    """In a cascade a decision model is judged by the probability of its label."""
    with classifier(server) as first, classifier(server) as second:
        with pytest.raises(ConfigurationError, match="take the method label_probability"):
            Cascade([first, second], method=AvgLogprob())
        found = Cascade([first, second], method=LabelProbability(), threshold=0.6).classify("It purrs.")
    assert (found.label, len(found.steps)) == ("cat", 1)


def test_an_option_that_comes_twice_is_an_error(server: DecisionServer) -> None:
    """A list that names an option twice is no distribution, whatever its sum."""
    shares = [("cat", 0.5), ("cat", 0.5), ("dog", 0.5), ("bird", 0.0)]
    server.changes = {"probabilities": [{"value": name, "probability": share} for name, share in shares]}
    with classifier(server, "decisions/own") as asked:
        assert asked.classify("?").outcome is Outcome.ERROR


def test_answers_beside_a_refused_question_are_kept(server: DecisionServer) -> None:
    """The row is a refusal that names the field; the parts that were answered, and what was paid, are there."""
    server.refused = {"q1"}
    labels = FieldLabels([Field(name="animal", labels=ANIMALS), Field(name="size", labels=["s", "m", "l"])])
    with classifier(server, "decisions/own", labels=labels) as asked:
        found = asked.classify("?")
    assert (found.outcome, found.label) == (Outcome.REFUSAL, None)
    assert "'size'" in found.reason
    assert [(part.name, part.label) for part in found.parts] == [("animal", "cat")]
    assert found.usage.prompt_tokens == 12


def test_a_row_that_is_refused_does_not_end_the_others(server: DecisionServer) -> None:
    """Whatever the answers to some rows are, every row has its outcome."""
    with classifier(server, retry=RetryPolicy(attempts=1)) as asked:
        server.failures = [400, 500, 422]
        found = asked.classify_many(["a", "b", "c", "d", "e"])
    outcomes = sorted(prediction.outcome for prediction in found)
    assert outcomes == [Outcome.ERROR, Outcome.ERROR, Outcome.ERROR, Outcome.OK, Outcome.OK]


@pytest.mark.parametrize("status", [404, 405])
def test_a_chat_server_says_what_to_name(server: DecisionServer, status: int) -> None:
    """A server that lacks the route ends the run, with the names of chat models."""
    server.failures = [status] * 9
    with classifier(server) as asked, pytest.raises(ProviderError, match="hosted_vllm/NAME"):
        asked.classify("?")


def test_every_prompt_has_its_own_questions(server: DecisionServer) -> None:
    """Rows of several prompts that are asked in turns keep their instructions."""
    with classifier(server) as asked:
        other = asked.with_prompt("Which of the animals?")
        for one in (asked, other, asked):
            one.classify(f"It purrs {len(server.asked)}.")
    instructions = [body["questions"]["q0"]["instructions"] for body in server.asked]
    assert instructions == ["Which animal?", "Which of the animals?", "Which animal?"]


WORDS = {"cat": "A small animal that purrs.", "bird": "An animal that flies."}


@pytest.mark.parametrize("wire", WIRES)
def test_label_descriptions_go_beside_the_options(server: DecisionServer, wire: str) -> None:
    """An option has its description, and others have none."""
    with classifier(server, wire, label_descriptions=WORDS) as asked:
        asked.classify("It purrs.")
    questions = server.asked[0]["questions"]
    if isinstance(questions, dict):
        (question,) = questions.values()
        given = dict(question["criteria"])
    else:
        (question,) = questions
        given = {choice["value"]: choice.get("description") for choice in question["choices"]}
    assert list(given) == ANIMALS
    assert (given["cat"], given["bird"]) == (WORDS["cat"], WORDS["bird"])
    assert not given["dog"]


@pytest.mark.parametrize("wire", ["systemone/own", "decisions/own"])
def test_yes_and_no_have_descriptions(server: DecisionServer, wire: str) -> None:
    """A statement says when it holds."""
    with classifier(
        server, wire, labels=["yes", "no"], label_descriptions={"yes": "The writer is angry."}
    ) as asked:
        assert asked.classify("Grrr.").label == "yes"
    assert "The writer is angry." in str(server.asked[0]["questions"])


SIZES = OrdinalLabels(["small", "large", "huge"])
MEANINGS = {"small": "Fits in a hand.", "huge": "Fits in no room."}
OF_SIZES = "How large?\n\nLabels:\n- small: Fits in a hand.\n- large\n- huge: Fits in no room."


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("prompt", "words"), [("How large?", MEANINGS), (OF_SIZES, None)])
def test_levels_have_descriptions(
    server: DecisionServer, wire: str, prompt: str, words: dict[str, str] | None
) -> None:
    """A level has its description beside it, or on System One, which has no member for it, behind it."""
    with classifier(server, wire, labels=SIZES, prompt=prompt, label_descriptions=words) as asked:
        assert asked.classify("A whale.").label == "small"
    questions = server.asked[0]["questions"]
    if isinstance(questions, dict):
        (question,) = questions.values()
        assert question["criteria"] == ["small: Fits in a hand.", "large", "huge: Fits in no room."]
    else:
        (question,) = questions
        meanings = {level["label"]: level.get("description") for level in question["levels"]}
        assert meanings == {"large": None, **MEANINGS}
    assert question["instructions"] == "How large?"


def test_values_of_fields_have_descriptions(server: DecisionServer, tmp_path: Path) -> None:
    """Each value is described in the question of its field, from a bundle, too; nothing is said in other questions."""
    labels = FieldLabels([Field(name="animal", labels=ANIMALS), Field(name="size", labels=SIZES)])
    words = {"animal=cat": "It purrs.", "Size=huge": "Fits in no room."}
    with classifier(server, labels=labels, label_descriptions=words) as asked:
        asked.classify("It purrs.")
        asked.tuned.save(tmp_path / "bundle")
    with Tuned.load(tmp_path / "bundle").open() as opened:
        opened.classify("It purrs.")
    for body in server.asked:
        animal, size = body["questions"].values()
        assert animal["criteria"] == {"cat": "It purrs.", "dog": None, "bird": None}
        assert size["criteria"] == ["small", "large", "huge: Fits in no room."]


def test_labels_of_a_set_have_descriptions(server: DecisionServer) -> None:
    """The question about a label says when it applies."""
    words = {"Bills": "Something is to be paid."}
    with classifier(server, labels=MultiLabels(["Bills", "Food"]), label_descriptions=words) as asked:
        asked.classify("Pizza.")
    bills, food = server.asked[0]["questions"].values()
    assert bills["criteria"] == {"true": "Something is to be paid.", "false": None}
    assert "criteria" not in food


def test_other_descriptions_are_other_questions(server: DecisionServer) -> None:
    """Answers that were asked for without the descriptions are not taken for those with them."""
    journal = MemoryJournal()
    for words in ({}, WORDS, {}):
        with classifier(server, journal=journal, label_descriptions=words) as asked:
            asked.classify("It purrs.")
    assert len(server.asked) == 2


def test_a_bundle_keeps_the_descriptions(server: DecisionServer, tmp_path: Path) -> None:
    """A saved classifier asks as it did."""
    with classifier(server, label_descriptions=WORDS) as asked:
        asked.tuned.save(tmp_path / "bundle")
    with Tuned.load(tmp_path / "bundle").open() as opened:
        opened.classify("It purrs.")
    (question,) = server.asked[-1]["questions"].values()
    assert question["criteria"]["cat"] == WORDS["cat"]


def test_a_description_of_no_label_is_refused(server: DecisionServer) -> None:
    """A name that is no label is said, and what the labels are."""
    message = "label_descriptions of the labels 'cat', 'dog', 'bird', got one of 'cow'"
    with pytest.raises(ConfigurationError, match=message):
        classifier(server, label_descriptions={"cow": "An animal that moos."})


LIST = "Which animal?\n\nLabels:\n- cat: A small animal that purrs.\n- dog\n- bird: An animal that flies."
SHOWN = '\n\nExamples:\n\nText: tweet\nAnswer: {"label": "bird"}'


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("end", ["", SHOWN], ids=["alone", "before-demonstrations"])
def test_a_list_of_labels_in_the_prompt_goes_beside_the_options(
    server: DecisionServer, wire: str, end: str
) -> None:
    """It is sent as descriptions are, and is no part of the instructions."""
    for prompt, words in ((LIST + end, None), ("Which animal?" + end, WORDS)):
        with classifier(server, wire, prompt=prompt, label_descriptions=words) as asked:
            asked.classify("It purrs.")
    by_list, by_option = (body["questions"] for body in server.asked)
    assert by_list == by_option


def test_a_list_comes_before_other_descriptions(server: DecisionServer) -> None:
    """A prompt's own list stands in place of the classifier's descriptions, also where it has none."""
    bare = "Which animal?\n\nLabels:\n- cat\n- dog\n- bird"
    with classifier(server, prompt=bare, label_descriptions=WORDS) as asked:
        asked.classify("It purrs.")
    (question,) = server.asked[0]["questions"].values()
    assert question == {"type": "choice", "instructions": "Which animal?", "criteria": dict.fromkeys(ANIMALS)}


@pytest.mark.parametrize(
    "prompt",
    [
        "Which?\n\nLabels:\n- cat: It purrs.\n- dog: It barks.",
        "Which?\n\nLabels:\n- cat\n- dog\n- cow",
        "Which?\n\nLabels:\n- cat\n- dog\n- dog",
        "Which?\n\nLabels:\ncat\ndog\nbird",
    ],
)
def test_any_other_list_stays_in_the_instructions(server: DecisionServer, prompt: str) -> None:
    """What does not name each label once, a line each, is a part of the prompt."""
    with classifier(server, prompt=prompt) as asked:
        asked.classify("It purrs.")
    (question,) = server.asked[0]["questions"].values()
    assert question["instructions"] == prompt
    assert question["criteria"] == dict.fromkeys(ANIMALS)


def test_labels_in_a_list_may_hold_colons(server: DecisionServer) -> None:
    """The longest label that a line begins with is its label."""
    labels = ["Bills", "Bills: gas", "Food"]
    prompt = "Which?\n\nLabels:\n- Bills: gas: methane: or oil\n- Bills: power\n- food:"
    with classifier(server, labels=labels, prompt=prompt) as asked:
        asked.classify("May")
    (question,) = server.asked[0]["questions"].values()
    assert question["criteria"] == {"Bills": "power", "Bills: gas": "methane: or oil", "Food": None}


def test_another_question_has_no_descriptions(server: DecisionServer) -> None:
    """Those of a classifier belong to its own labels."""
    with classifier(server, label_descriptions=WORDS) as asked:
        asked.about(["up", "down", "left"], prompt="Which way?").classify("It climbs.")
    (question,) = server.asked[0]["questions"].values()
    assert question["criteria"] == {"up": None, "down": None, "left": None}
