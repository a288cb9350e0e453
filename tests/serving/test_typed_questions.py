"""Tests of typed questions at their edges: calibration, refusals, fields, other questions, texts and failures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.calibration import IdentityCalibrator, IsotonicCalibrator
from calibrant.core import (
    Field,
    FieldLabels,
    LabelDistribution,
    LogprobSpace,
    MultiLabels,
    OrdinalLabels,
    Outcome,
    Part,
    Prediction,
    ProviderError,
    Usage,
)
from calibrant.inference import Classifier
from calibrant.serving import ServiceSettings, create_classifier_app, create_decision_app
from calibrant.tuned import Measurements, PredictionHistory, RecordedTask, Tuned, distill
from decision_server import DecisionServer
from held import JSON, Held, app, counts, with_threshold

S1, OA = "/v1/systemone", "/v1/decisions"
CATS = {"type": "choice", "criteria": {"dog": None, "cat": None}}
OTHER = {
    "type": "choice",
    "instructions": "Where?",
    "criteria": {"sea": None, "land": "Dry ground", "sky": None},
}


def distribution(**shares: float) -> LabelDistribution:
    """Return a distribution over labels."""
    return LabelDistribution(
        labels=tuple(shares),
        logprobs=np.log(list(shares.values())),
        measured=np.ones(len(shares), dtype=np.bool_),
        joint_logprob=None,
        label_mass=1.0,
        unresolved_mass=0.0,
        space=LogprobSpace.DECISION,
    )


CAT = Prediction(
    label="cat",
    confidence=0.8,
    distribution=distribution(cat=0.8, dog=0.2),
    usage=Usage(prompt_tokens=7, completion_tokens=1),
)
PREDICATE = {"type": "predicate", "instructions": "?"}


def asked(found: Any, *, status: int = 200) -> Any:
    """Return the body of a reply."""
    assert found.status == status, found.body
    return found.json


def system_one(
    running: Any, questions: Mapping[str, Any], *, state: Any = "a text", status: int = 200
) -> Any:
    """Ask on the wire of System One."""
    found = running.ask({"model": "jev-latest", "state": state, "questions": questions}, path=S1, **JSON)
    return asked(found, status=status)


def with_labels(bundle: Tuned, labels: Any) -> Tuned:
    """Return the bundle with other labels."""
    return replace(bundle, tasks=(RecordedTask(task=replace(bundle.task, labels=labels)),))


@pytest.fixture
def server() -> Iterator[DecisionServer]:
    """Return a decision model."""
    found = DecisionServer(0.6, 0.4, 0.0)
    yield found
    found.stop()


@pytest.fixture
def model(server: DecisionServer) -> Iterator[Classifier]:
    """Return a classifier of the task's labels by the decision model."""
    with Classifier(
        model="systemone/local",
        labels=["cat", "dog"],
        prompt="Which animal?",
        options={"api_base": server.root},
    ) as found:
        yield found


def test_a_question_of_the_task_gets_the_tuned_prediction(serve: Any, bundle: Tuned) -> None:
    """Options in any order and case are answered as asked, with the decision and what it compared."""
    running = serve(app(with_threshold(bundle, 0.7), Held(held=False, answer=lambda _: CAT)))
    body = system_one(running, {"q": {"type": "choice", "criteria": {"Dog": None, "CAT": None}}})
    assert body["model"] == "animals"
    assert body["usage"] == {"input_tokens": 7, "output_tokens": 1}
    answer = body["answers"]["q"]
    assert list(answer["probabilities"]) == ["Dog", "CAT"]
    assert answer["probabilities"] == pytest.approx({"Dog": 0.2, "CAT": 0.8})
    assert (answer["choice"], answer["confidence"]) == ("CAT", pytest.approx(0.6))
    compared = {name: value for name, value in answer.items() if name.startswith("x_")}
    assert compared == {
        "x_calibrated": False,
        "x_decision": "accepted",
        "x_confidence": 0.8,
        "x_compared": 0.8,
        "x_threshold": 0.7,
        "x_certificate": None,
    }


@pytest.mark.parametrize("state", ["", " \n"])
def test_an_answer_to_no_text_is_for_review(serve: Any, bundle: Tuned, state: str) -> None:
    """Nothing was measured of a blank text: its answer is not accepted on either wire, whatever its confidence."""
    running = serve(app(with_threshold(bundle, 0.7), Held(held=False, answer=lambda _: CAT)))
    question = {"type": "choice", "criteria": {"dog": None, "cat": None}}
    assert system_one(running, {"q": question}, state=state)["answers"]["q"]["x_decision"] == "review"
    levels = {"type": "score", "instructions": "?", "levels": [{"label": "cat"}, {"label": "dog"}]}
    found = running.ask({"model": "m", "input": state, "questions": [levels]}, path=OA, **JSON)
    assert found.headers["x-calibrant-decision"] == "review"


def test_a_calibrator_that_corrects_nothing_calibrates_nothing(serve: Any, bundle: Tuned) -> None:
    """Where no calibrator was better than none, answers are not called calibrated."""
    unchanged = IdentityCalibrator().fit([0.8] * 4, [1, 1, 1, 0])
    running = serve(app(replace(bundle, calibrator=unchanged), Held(held=False, answer=lambda _: CAT)))
    assert system_one(running, {"q": CATS})["answers"]["q"]["x_calibrated"] is False


def test_a_calibrated_confidence_is_the_label_s_probability(serve: Any, bundle: Tuned) -> None:
    """The label has the calibrated confidence and stays ahead; the certificate is told, and what it is about."""
    certified = {"threshold": 0.7, "target_accuracy": 0.9, "delta": 0.05}
    thresholds = {**bundle.thresholds, "certified": certified, "certification": {}}
    for share, expected in ((0.65, 0.65), (0.25, 0.5)):
        calibrator = IsotonicCalibrator().fit(
            [0.8] * 20, [1] * round(20 * share) + [0] * round(20 - 20 * share)
        )
        tuned = replace(bundle, calibrator=calibrator, thresholds=thresholds)
        running = serve(app(tuned, Held(held=False, answer=lambda _: CAT)))
        answer = system_one(running, {"q": CATS})["answers"]["q"]
        assert answer["choice"] == "cat"
        assert answer["probabilities"]["cat"] == pytest.approx(expected, abs=1e-6)
        assert answer["probabilities"]["cat"] > answer["probabilities"]["dog"]
        assert math.fsum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-9)
        assert answer["x_confidence"] == pytest.approx(tuned.calibrated(CAT))
        assert (answer["x_compared"], answer["x_threshold"], answer["x_decision"]) == (0.8, 0.7, "accepted")
        assert answer["x_certificate"] == {"accuracy": 0.9, "probability": 0.95}
        assert answer["x_calibrated"] is True


def test_a_promise_that_failed_certifies_no_answer(serve: Any, bundle: Tuned) -> None:
    """A question of the task is answered, and is for review."""
    thresholds = {**bundle.thresholds, "certified": None, "certification": {"threshold": None}}
    running = serve(app(replace(bundle, thresholds=thresholds), Held(held=False, answer=lambda _: CAT)))
    answer = system_one(running, {"q": CATS})["answers"]["q"]
    assert (answer["choice"], answer["x_decision"], answer["x_certificate"]) == ("cat", "review", None)


def test_an_answer_of_another_model_has_no_certificate(serve: Any, bundle: Tuned) -> None:
    """A promise is about the models that answered the rows it was measured on."""
    certified = {"threshold": 0.7, "target_accuracy": 0.9, "delta": 0.05}
    thresholds = {**bundle.thresholds, "certified": certified, "certification": {}}
    history = PredictionHistory(rows=2, labels={"cat": 2}, confidence=(0.5,) * 2, models=("old",))
    tuned = replace(
        bundle, thresholds=thresholds, measurements=Measurements(history=history), accept_drift=True
    )
    for model, certificate in (("old", {"accuracy": 0.9, "probability": 0.95}), ("new", None)):
        answer = replace(CAT, model=model)
        running = serve(app(tuned, Held(held=False, answer=lambda _, answer=answer: answer)))
        found = system_one(running, {"q": CATS})["answers"]["q"]
        assert (found["x_decision"], found["x_certificate"]) == ("accepted", certificate)


def test_openai_s_wire_names_the_decision_in_a_header(serve: Any, bundle: Tuned) -> None:
    """The answer has the wire's own members alone, and a review is an answer, not a refusal."""
    running = serve(app(with_threshold(bundle, 0.9), Held(held=False, answer=lambda _: CAT)))
    question = {
        "type": "choice",
        "name": "pet",
        "instructions": "?",
        "choices": [{"value": "dog"}, {"value": "cat"}],
    }
    levels = {"type": "score", "instructions": "?", "levels": [{"label": "cat"}, {"label": "dog"}]}
    found = running.ask({"model": "m", "input": "x", "questions": [question, levels]}, path=OA, **JSON)
    choice, score = asked(found)["answers"]
    assert found.headers["x-calibrant-decision"] == "review, review"
    shares = choice.pop("probabilities")
    assert [share["value"] for share in shares] == ["dog", "cat"]
    assert [share["probability"] for share in shares] == pytest.approx([0.2, 0.8])
    assert choice == {"type": "choice", "name": "pet", "choice": "cat", "confidence": pytest.approx(0.6)}
    assert [share.pop("probability") for share in score.pop("probabilities")] == pytest.approx([0.8, 0.2])
    assert score == {
        "type": "score",
        "name": None,
        "score": pytest.approx(0.2),
        "confidence": pytest.approx(0.6),
    }
    assert found.json["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 8,
    }


def test_a_model_that_declines_is_a_refusal(serve: Any, bundle: Tuned) -> None:
    """The wire of OpenAI has refusals; System One has none, so the request is refused."""
    declined = Prediction(label=None, outcome=Outcome.REFUSAL, reason="no")
    running = serve(app(bundle, Held(held=False, answer=lambda _: declined)))
    question = {
        "type": "choice",
        "name": "a",
        "instructions": "?",
        "choices": [{"value": "dog"}, {"value": "cat"}],
    }
    found = asked(running.ask({"input": "x", "questions": [question]}, path=OA, **JSON))
    assert found["answers"] == [{"type": "refusal", "name": "a"}]
    assert system_one(running, {"q": CATS}, status=422)["detail"][0]["loc"] == ["body", "questions", "q"]


def test_other_questions_are_answered_by_the_model_alone(
    serve: Any, bundle: Tuned, model: Classifier, server: DecisionServer
) -> None:
    """They say that nothing is calibrated; the model reads instructions and descriptions, each question alone."""
    running = serve(create_classifier_app(bundle, model))
    levels = {"type": "score", "instructions": "How wet?", "criteria": ["dry", {"label": "damp"}, "wet"]}
    noul = {"type": "noul", "instructions": ["Is it", "far?"], "criteria": {"true": "Over a mile"}}
    answers = system_one(running, {"c": OTHER, "s": levels, "n": noul, "t": CATS})["answers"]
    assert [answers[name]["x_calibrated"] for name in "csn"] == [False] * 3
    assert [name for name in answers if "x_decision" in answers[name]] == ["t"]
    assert answers["c"]["probabilities"] == pytest.approx({"sea": 0.6, "land": 0.4, "sky": 0.0}, abs=0.01)
    assert answers["s"]["legend"] == {"0": "dry", "1": {"label": "damp"}, "2": "wet"}
    assert answers["s"]["score"] == pytest.approx(0.4, abs=0.01)
    assert answers["n"]["noul"] == pytest.approx(0.6)
    asked_of = [one for body in server.asked for one in body["questions"].values()]
    assert len(asked_of) == len(server.asked) == 4
    told = {one["type"]: one for one in asked_of if one.get("criteria") != {"cat": None, "dog": None}}
    assert told["score"] == {
        "type": "score",
        "instructions": "How wet?",
        "criteria": ["dry", '{"label": "damp"}', "wet"],
    }
    assert told["choice"] == OTHER
    assert told["noul"]["instructions"] == '["Is it", "far?"]'
    assert told["noul"]["criteria"] == {"true": "Over a mile", "false": None}
    counted = counts(running)
    assert counted["calibrant_open_questions_total"] == 3
    assert counted["calibrant_rows_total ok"] == 4


def test_descriptions_of_a_question_reach_the_model_whole(
    serve: Any, bundle: Tuned, model: Classifier, server: DecisionServer
) -> None:
    """However long they are, and with line breaks; two questions that differ in them alone are asked apart."""
    running = serve(create_classifier_app(bundle, model))
    for words in ("waves\nand water " * 400, "salt"):
        question = {
            "type": "choice",
            "instructions": "Where?",
            "criteria": {"sea": words, "land": None, "sky": None},
        }
        system_one(running, {"q": question})
        assert list(server.asked[-1]["questions"].values()) == [question]


def test_descriptions_of_levels_reach_the_model(
    serve: Any, bundle: Tuned, model: Classifier, server: DecisionServer
) -> None:
    """A level that a question describes is described to the model, and answered by its label."""
    running = serve(create_classifier_app(bundle, model))
    levels = [{"label": "dry"}, {"label": "damp", "description": "No drops."}, {"label": "wet"}]
    question = {"type": "score", "instructions": "How wet?", "levels": levels}
    found = asked(running.ask({"input": "x", "questions": [question]}, path=OA, **JSON))
    (sent,) = server.asked[-1]["questions"].values()
    assert sent == {
        "type": "score",
        "instructions": "How wet?",
        "criteria": ["dry", "damp: No drops.", "wet"],
    }
    assert [one["label"] for one in found["answers"][0]["probabilities"]] == ["dry", "damp", "wet"]


def test_descriptions_of_the_task_go_with_its_own_question(
    serve: Any, bundle: Tuned, server: DecisionServer
) -> None:
    """Those that the tuned prompt lists are sent on both routes, whatever the request describes."""
    prompt = "Which animal?\n\nLabels:\n- cat: It purrs.\n- dog: It barks."
    options = {"api_base": server.root}
    with Classifier(
        model="systemone/local", labels=["cat", "dog"], prompt=prompt, options=options
    ) as described:
        running = serve(create_classifier_app(bundle, described))
        system_one(running, {"q": {"type": "choice", "criteria": {"dog": "It meows.", "cat": None}}})
        asked(running.ask({"texts": ["another text"]}, path="/v1/classify", **JSON))
    assert len(server.asked) == 2
    for body in server.asked:
        (question,) = body["questions"].values()
        assert question["criteria"] == {"cat": "It purrs.", "dog": "It barks."}


def test_one_prediction_answers_all_questions_of_the_task(serve: Any, bundle: Tuned) -> None:
    """Names and further questions change nothing, and the model is asked once."""
    held = Held(held=False, answer=lambda _: CAT)
    running = serve(app(bundle, held))
    alone = system_one(running, {"q": CATS})["answers"]["q"]
    together = system_one(running, {"x": CATS, "🎯": {**CATS, "instructions": "Which?"}})["answers"]
    assert [together["x"], together["🎯"]] == [alone, alone]
    assert held.asked == ["a text"] * 2


def test_fields_are_told_apart_by_labels_or_instructions(serve: Any, bundle: Tuned) -> None:
    """A field is known by its labels; of several with the same ones, and of yes and no, by the instructions."""
    low = OrdinalLabels(["low", "high"])
    fields = FieldLabels(
        [
            Field(name="topic", labels=["bill", "trip"]),
            Field(name="haste", labels=low),
            Field(name="anger", labels=low),
            Field(name="spam", labels=["no", "yes"]),
        ]
    )
    shares = {
        "topic": {"bill": 0.7, "trip": 0.3},
        "haste": {"low": 0.7, "high": 0.3},
        "anger": {"low": 0.3, "high": 0.7},
        "spam": {"no": 0.3, "yes": 0.7},
    }
    parts = tuple(
        Part(name=name, label=max(own, key=own.__getitem__), confidence=0.7, distribution=distribution(**own))
        for name, own in shares.items()
    )
    whole = fields.answer_of({part.name: part.label for part in parts})
    held = Held(held=False, answer=lambda _: Prediction(label=whole, confidence=0.24, parts=parts))
    of_all = IsotonicCalibrator().fit([0.24] * 4, [0, 0, 0, 1])
    tuned = replace(with_labels(with_threshold(bundle, 0.2), fields), calibrator=of_all)
    running = serve(app(tuned, held, only_task=True))
    scale = {"type": "score", "criteria": ["low", "high"]}
    questions = {
        "a": {"type": "choice", "instructions": "Any words", "criteria": {"trip": None, "bill": None}},
        "b": {**scale, "instructions": "haste"},
        "c": {**scale, "instructions": "Anger "},
        "d": {"type": "noul", "instructions": "spam"},
    }
    answers = system_one(running, questions)["answers"]
    assert answers["a"]["choice"] == "bill"
    assert answers["b"]["score"] == pytest.approx(0.3)
    assert answers["c"]["score"] == pytest.approx(0.7)
    assert answers["d"]["noul"] == pytest.approx(0.7)
    assert {answer["x_decision"] for answer in answers.values()} == {"accepted"}
    assert {answer["x_confidence"] for answer in answers.values()} == {0.25}
    assert not any(answer["x_calibrated"] for answer in answers.values())
    assert held.asked == ["a text"]
    for unclear in (scale, {"type": "noul", "instructions": "Is it raining?"}):
        (problem,) = system_one(running, {"q": unclear}, status=422)["detail"]
        assert problem["type"] == "other_question"


def test_a_prompt_is_known_without_its_list_of_labels(serve: Any, bundle: Tuned) -> None:
    """The instructions of a yes/no question are the task's prompt, with descriptions of its labels or without."""
    listed = "Is it spam?\n\nLabels:\n- no\n- yes: Anything that sells."
    task = replace(bundle.task, labels=["no", "yes"], prompt=listed)
    found = Prediction(label="yes", confidence=0.7, distribution=distribution(no=0.3, yes=0.7))
    tuned = replace(with_threshold(bundle, 0.2), tasks=(RecordedTask(task=task),))
    running = serve(app(tuned, Held(held=False, answer=lambda _: found), only_task=True))
    for instructions in (listed, "is it spam?"):
        answer = system_one(running, {"q": {"type": "noul", "instructions": instructions}})["answers"]["q"]
        assert answer["noul"] == pytest.approx(0.7)


def test_a_label_of_a_set_is_a_yes_no_question(serve: Any, bundle: Tuned) -> None:
    """The instructions of a yes/no question name a label of a set."""
    topics = MultiLabels(["cat", "dog"])
    part = Part(name="dog", label="no", confidence=0.9, distribution=distribution(no=0.9, yes=0.1))
    held = Held(held=False, answer=lambda _: Prediction(label="[]", confidence=0.9, parts=(part,)))
    running = serve(app(with_labels(bundle, topics), held))
    assert system_one(running, {"q": {"type": "noul", "instructions": "dog"}})["answers"]["q"][
        "noul"
    ] == pytest.approx(0.1)


def test_a_model_alone_is_a_decision_server(serve: Any, model: Classifier) -> None:
    """Without a bundle every question is the model's, and there is no classification."""
    running = serve(create_decision_app(model, settings=ServiceSettings(api_keys=("key",))))
    key = {**JSON, "Authorization": "Bearer key"}
    found = asked(running.ask({"state": ["a", {"b": 1}], "questions": {"q": OTHER}}, path=S1, **key))
    assert found["model"] == "systemone/local"
    assert found["answers"]["q"]["choice"] == "sea"
    assert running.ask({"text": "a"}, path="/v1/classify", **key).status == 404
    models = asked(running.ask(path="/v1/models", method="GET", **key))
    assert (
        [one["name"] for one in models["models"]]
        == [one["id"] for one in models["data"]]
        == ["systemone/local"]
    )
    assert (
        asked(running.ask({}, path=S1, **JSON), status=401)["detail"]["error_type"] == "authentication_error"
    )
    assert asked(running.ask({}, path=OA, **JSON), status=401)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("body", "path", "place"),
    [
        (b"{", S1, []),
        ({"questions": {"q": CATS}}, S1, ["state"]),
        ({"state": "x"}, S1, ["questions"]),
        ({"state": "x", "questions": {}}, S1, ["questions"]),
        ({"state": "x", "questions": {"q": {"type": "boolean"}}}, S1, ["questions", "q"]),
        ({"state": "x", "questions": {"q": {"type": "noul"}}}, S1, ["questions", "q"]),
        ({"state": "x", "questions": {"q": {"type": "choice", "criteria": {"a": None}}}}, S1, None),
        ({"state": "x", "questions": {"q": {"type": "score", "criteria": ["a", None]}}}, S1, None),
        (
            {"state": "x", "questions": {"q": {"type": "choice", "criteria": {"a": None, "A ": None}}}},
            S1,
            None,
        ),
        ({"state": "x", "questions": {str(n): CATS for n in range(6)}}, S1, ["questions"]),
        ({"state": "x", "questions": {"q": CATS}, "images": ["i"]}, S1, ["images"]),
        (b"{", OA, "None"),
        ([], S1, []),
        ("text", OA, "None"),
        ({"questions": [{"type": "predicate", "instructions": "?"}]}, OA, "input"),
        ({"input": "x", "questions": [{"type": "predicate"}]}, OA, "questions[0].instructions"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}], "questions": []},
            OA,
            "questions",
        ),
        (
            {
                "input": [{"role": "user", "content": [{"type": "input_image"}]}],
                "questions": [{"type": "predicate", "instructions": "?"}],
            },
            OA,
            "input",
        ),
        (
            {
                "input": "x",
                "questions": [
                    {"type": "choice", "instructions": "?", "choices": [{"value": True}, {"value": "true"}]}
                ],
            },
            OA,
            "questions[0]",
        ),
        ({"input": 5, "questions": [PREDICATE]}, OA, "input"),
        ({"input": [{"role": 5, "content": "x"}], "questions": [PREDICATE]}, OA, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"text": 5}]}], "questions": [PREDICATE]},
            OA,
            "input[0].content[0].text",
        ),
        (
            {"input": "x", "questions": [{**PREDICATE, "instructions": ["?"]}]},
            OA,
            "questions[0].instructions[0]",
        ),
        (
            {
                "input": "x",
                "questions": [
                    {"type": "choice", "instructions": "?", "choices": [{"value": 1}, {"value": "b"}]}
                ],
            },
            OA,
            "questions[0].choices[0].value",
        ),
        ({"state": 5, "questions": {"q": CATS}}, S1, ["state"]),
    ],
)
def test_bad_bodies_are_refused_in_the_wire_s_form(
    serve: Any, bundle: Tuned, model: Classifier, body: Any, path: str, place: Any
) -> None:
    """System One's mistakes are 422 with their places, OpenAI's 400 with the first one's."""
    running = serve(create_classifier_app(bundle, model, settings=ServiceSettings(most_texts=5)))
    found = running.ask(body, path=path, **JSON)
    if path == OA:
        error = asked(found, status=400)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert str(error["param"]) == place
        return
    for problem in asked(found, status=422)["detail"]:
        assert problem["loc"][0] == "body"
        assert problem["msg"]
        assert "instance of" not in problem["msg"]
        assert not problem["msg"].startswith("Value error")
        assert problem["type"]
        assert place is None or problem["loc"][1:] == place


def test_the_body_tells_the_wire(serve: Any, bundle: Tuned) -> None:
    """Either wire is understood under either path."""
    running = serve(app(bundle, Held(held=False, answer=lambda _: CAT)))
    found = asked(running.ask({"state": "x", "questions": {"q": CATS}}, path=OA, **JSON))
    assert found["answers"]["q"]["choice"] == "cat"
    question = {"type": "choice", "instructions": "?", "choices": [{"value": "dog"}, {"value": "cat"}]}
    found = asked(running.ask({"input": "x", "questions": [question]}, path=S1, **JSON))
    assert found["answers"][0]["choice"] == "cat"
    error = asked(running.ask({"input": "x", "questions": []}, path=S1, **JSON), status=400)["error"]
    assert error["param"] == "questions"


def test_the_text_is_read_from_either_wire(serve: Any, bundle: Tuned) -> None:
    """A state that is no text is read as JSON; messages are joined, others than the user's after their role."""
    held = Held(held=False, answer=lambda _: CAT)
    running = serve(app(bundle, held))
    system_one(running, {"q": CATS}, state={"subject": "é", "n": 1})
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}],
        },
    ]
    question = {"type": "choice", "instructions": "?", "choices": [{"value": "dog"}, {"value": "cat"}]}
    asked(running.ask({"input": messages, "questions": [question]}, path=OA, **JSON))
    assert held.asked == ['{"subject": "é", "n": 1}', "developer: Be brief.\n\none\n\ntwo"]


def test_failures_have_the_wire_s_form(serve: Any, bundle: Tuned) -> None:
    """A failed call is 503 for another try, an answer without probabilities a mistake of the request."""
    failed = Prediction(label=None, outcome=Outcome.ERROR, reason="http://10.0.0.1 is down")
    running = serve(app(bundle, Held(held=False, answer=lambda _: failed)))
    found = running.ask({"state": "x", "questions": {"q": CATS}}, path=S1, **JSON)
    assert asked(found, status=503)["detail"]["error_type"] == "api_error"
    assert found.headers["retry-after"] == "1"
    assert b"10.0.0.1" not in found.body
    running = serve(app(bundle, Held(held=False, answer=lambda _: ProviderError("x", provider="p"))))
    question = {"type": "choice", "instructions": "?", "choices": [{"value": "dog"}, {"value": "cat"}]}
    found = running.ask({"input": "x", "questions": [question]}, path=OA, **JSON)
    assert asked(found, status=503)["error"]["type"] == "server_error"
    bare = Prediction(label="cat", confidence=0.9)
    running = serve(app(bundle, Held(held=False, answer=lambda _: bare)))
    (problem,) = system_one(running, {"q": CATS}, status=422)["detail"]
    assert problem["type"] == "no_answer"
    running = serve(app(bundle, Held(), most_rows=1, most_texts=1, deadline_seconds=0.05))
    found = running.ask({"state": "x", "questions": {"q": CATS}}, path=S1, **JSON)
    assert asked(found, status=504)["detail"]["error_type"] == "api_error"


def test_a_student_answers_no_other_question(serve: Any, tmp_path: Path) -> None:
    """It knows its task alone: the client is told so, and the service stays ready."""
    rng = np.random.default_rng(0)
    words = ("sun", "rain", "tree", "door", "lamp", "book", "road", "hill", "fish", "wine", "shoe", "rope")
    rows = [
        {
            "input": f"{sound} {' '.join(rng.choice(words, 8))}",
            "label": label,
            "confidence": 0.98,
            "answer": None,
        }
        for label, sound in (("cat", "purrs"), ("dog", "barks"))
        for _ in range(100)
    ]
    (tmp_path / "large.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    distill(tmp_path / "large.jsonl", tmp_path / "student")
    tuned = Tuned.from_run(tmp_path / "student")
    with tuned.open() as student:
        running = serve(app(tuned, student))
        assert system_one(running, {"q": CATS}, state="it purrs")["answers"]["q"]["choice"] == "cat"
        for _ in range(4):
            found = running.ask({"model": "m", "state": "x", "questions": {"q": OTHER}}, path=S1, **JSON)
            assert "others" in str(asked(found, status=422))
        assert running.ask(path="/readyz", method="GET").status == 200
