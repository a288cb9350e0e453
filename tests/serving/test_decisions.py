"""Tests of typed questions over a real socket: System One and OpenAI's Decisions, by clients and by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from calibrant.core import Field, FieldLabels, LabelSet, OrdinalLabels
from calibrant.inference import Classifier
from calibrant.serving import ServiceSettings, create_classifier_app, create_decision_app
from calibrant.testing import FakeClient, fake_response
from calibrant.tuned import RecordedTask, Tuned
from held import with_threshold

JSON = {"Content-Type": "application/json"}
DISTRIBUTION = {"cat": 0.7, "dog": 0.3}
LABELS = ("cat", "dog")


def asked_of(running: Any, path: str, body: Any) -> Any:
    """Return the service's reply to a body."""
    return running.ask(body, path=path, **JSON)


def fake(distribution: Mapping[str, float] = DISTRIBUTION) -> Classifier:
    """Return the classifier of a model that gives every text the same distribution."""
    client = FakeClient(LABELS, lambda _text, _prompt: dict(distribution), field="category")
    return Classifier(model=client, labels=LABELS, field="category", prompt="Which animal?")


def talker(messages: list[dict[str, str]]) -> Any:
    """Answer with the last option that the prompt lists, and a quarter of the probability on the first."""
    lines = messages[0]["content"].splitlines()
    options = [line[2:].partition(":")[0] for line in lines if line.startswith("- ")]
    shares = {options[0]: 0.25, options[-1]: 0.75}
    return fake_response(options[-1], field="answer", probabilities=shares)


@pytest.fixture
def task_service(serve: Any, bundle: Tuned) -> Any:
    """Return a service of a bundle whose threshold is 0.6, over a fake model."""
    return serve(create_classifier_app(with_threshold(bundle, 0.6), fake()))


@pytest.fixture
def open_service(serve: Any) -> Any:
    """Return a service of a model alone."""
    return serve(create_decision_app(Classifier(model=talker, labels=["no", "yes"])))


def choice(*options: str, **members: Any) -> dict[str, Any]:
    """Return a System One question."""
    return {"type": "choice", "criteria": dict.fromkeys(options), **members}


def test_the_task_s_question_gets_its_decision(task_service: Any) -> None:
    """A question with the task's labels, in any order, gets distribution, decision and threshold of the bundle."""
    found = asked_of(
        task_service, "/v1/systemone", {"state": "it purrs", "questions": {"q": choice("dog", "cat")}}
    )
    assert (found.status, found.headers["x-calibrant-decision"]) == (200, "accepted")
    answer = found.json["answers"]["q"]
    assert list(answer["probabilities"]) == ["dog", "cat"]
    assert answer["probabilities"] == pytest.approx({"dog": 0.3, "cat": 0.7})
    assert (answer["choice"], answer["confidence"]) == ("cat", pytest.approx(0.4))
    assert (answer["x_decision"], answer["x_threshold"]) == ("accepted", 0.6)
    assert found.json["usage"].keys() == {"input_tokens", "output_tokens"}


def test_openai_s_wire_has_the_decision_in_a_header(task_service: Any) -> None:
    """On OpenAI's wire the distribution alone is sent, in the order of the choices, and the decision in a header."""
    question = {
        "type": "choice",
        "name": "q",
        "instructions": "Which?",
        "choices": [{"value": "dog"}, {"value": "cat"}],
    }
    found = asked_of(
        task_service, "/v1/decisions", {"model": "m", "input": "it purrs", "questions": [question]}
    )
    assert (found.status, found.headers["x-calibrant-decision"]) == (200, "accepted")
    (answer,) = found.json["answers"]
    assert answer.keys() == {"type", "name", "choice", "confidence", "probabilities"}
    assert [share["value"] for share in answer["probabilities"]] == ["dog", "cat"]
    assert sum(share["probability"] for share in answer["probabilities"]) == pytest.approx(1.0, abs=1e-6)


def test_a_review_is_no_refusal(serve: Any, bundle: Tuned) -> None:
    """An answer below the threshold is sent like any other, and called review."""
    running = serve(create_classifier_app(with_threshold(bundle, 0.9), fake()))
    found = asked_of(
        running, "/v1/systemone", {"state": "it purrs", "questions": {"q": choice("cat", "dog")}}
    )
    assert found.headers["x-calibrant-decision"] == "review"
    assert found.json["answers"]["q"]["choice"] == "cat"


def test_fields_are_questions_of_one_prediction(serve: Any, bundle: Tuned) -> None:
    """A question for each field of a task is answered by one call."""
    labels = FieldLabels(
        [
            Field(name="mood", labels=LabelSet(["glad", "sad"])),
            Field(name="size", labels=OrdinalLabels(["small", "large"])),
        ]
    )
    client = FakeClient(labels, {"it": ('{"mood": "sad", "size": "large"}', 0.8)}, field="answer")
    task = RecordedTask(task=replace(bundle.task, labels=labels, field="answer"))
    running = serve(
        create_classifier_app(
            replace(bundle, tasks=(task,)), Classifier(model=client, labels=labels, field="answer")
        )
    )
    questions = {
        "a": choice("glad", "sad"),
        "b": {"type": "score", "criteria": ["small", "large"], "instructions": "size"},
    }
    found = asked_of(running, "/v1/systemone", {"state": "it", "questions": questions})
    assert found.status == 200, found.body
    assert found.json["answers"]["a"]["choice"] == "sad"
    assert found.json["answers"]["b"]["score"] == pytest.approx(
        found.json["answers"]["b"]["probabilities"]["1"]
    )
    assert len(client.requests) == 1


def test_any_question_is_answered_by_the_model_alone(open_service: Any) -> None:
    """Questions of every kind are answered, and said not to be calibrated; other questions beside change nothing."""
    questions = {
        "kind": choice("a", "b", instructions="Which letter?"),
        "level": {"type": "score", "instructions": "How much?", "criteria": ["low", "mid", "high"]},
        "true": {"type": "noul", "instructions": "Is it so?"},
    }
    found = asked_of(open_service, "/v1/systemone", {"state": {"text": "x"}, "questions": questions}).json
    answers = found["answers"]
    assert list(answers) == list(questions)
    assert answers["kind"]["probabilities"] == pytest.approx({"a": 0.25, "b": 0.75})
    assert answers["true"] == {"type": "noul", "noul": pytest.approx(0.75), "x_calibrated": False}
    assert answers["level"]["legend"] == {"0": "low", "1": "mid", "2": "high"}
    shares = answers["level"]["probabilities"]
    assert answers["level"]["score"] == pytest.approx(shares["1"] + 2 * shares["2"])
    alone = asked_of(
        open_service, "/v1/systemone", {"state": {"text": "x"}, "questions": {"other": questions["kind"]}}
    )
    assert alone.json["answers"]["other"] == answers["kind"]


@pytest.mark.parametrize(("path", "status"), [("/v1/systemone", 422), ("/v1/decisions", 400)])
def test_other_questions_are_refused_where_only_the_task_is_served(
    serve: Any, bundle: Tuned, path: str, status: int
) -> None:
    """With `only_task` a question with other options is refused in the form of its wire."""
    running = serve(create_classifier_app(bundle, fake(), settings=ServiceSettings(only_task=True)))
    one = {"state": "x", "questions": {"q": choice("red", "blue")}}
    two = {
        "input": "x",
        "questions": [
            {"type": "choice", "instructions": "?", "choices": [{"value": "red"}, {"value": "blue"}]}
        ],
    }
    found = asked_of(running, path, one if path == "/v1/systemone" else two)
    assert found.status == status
    message = json.dumps(found.json)
    assert "the task's labels as its options (cat, dog)" in message


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"questions": {"q": choice("a", "b")}}, ["body", "state"]),
        ({"state": "x", "questions": {"q": choice("a")}}, ["body", "questions", "q", "criteria"]),
        ({"state": "x", "questions": {"q": {"type": "essay"}}}, ["body", "questions", "q"]),
        ({"state": "x", "questions": {}}, ["body", "questions"]),
        ({"state": "x", "questions": {"q": {"type": "noul"}}}, ["body", "questions", "q"]),
        (
            {"state": "x", "questions": {f"q{n}": choice("a", "b") for n in range(129)}},
            ["body", "questions"],
        ),
        (b"{", ["body"]),
    ],
)
def test_mistakes_are_named_by_their_place(open_service: Any, body: Any, place: list[str]) -> None:
    """A wrong body is answered by 422 and a list of mistakes with their places."""
    found = asked_of(open_service, "/v1/systemone", body)
    assert found.status == 422
    assert found.json["detail"][0]["loc"] == place


def test_openai_s_mistakes_have_its_form(open_service: Any) -> None:
    """A wrong body of OpenAI's wire is answered by 400 and one error with its parameter."""
    found = asked_of(open_service, "/v1/decisions", {"input": "x", "questions": [{"type": "predicate"}]})
    assert found.status == 400
    error = found.json["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", "questions[0].instructions")


def test_a_key_is_asked_for_in_the_form_of_the_wire(serve: Any, bundle: Tuned) -> None:
    """Without the key the service answers 401 in the wire's own form."""
    running = serve(create_classifier_app(bundle, fake(), settings=ServiceSettings(api_keys=("k",))))
    body = {"input": "x", "questions": []}
    found = asked_of(running, "/v1/decisions", body)
    assert (found.status, found.json["error"]["code"]) == (401, "invalid_api_key")


def test_many_options_are_not_listed(serve: Any) -> None:
    """Of 255 long options the prompt lists none, so that it stays short."""
    seen: list[str] = []

    def model(messages: list[dict[str, str]]) -> Any:
        seen.append(messages[0]["content"])
        return fake_response("o1", field="answer", probabilities={"o1": 0.9, "o2": 0.1})

    options = {f"o{number}": "what it means, at some length" for number in range(255)}
    running = serve(create_decision_app(Classifier(model=model, labels=["no", "yes"])))
    question = {"type": "choice", "instructions": "Which?", "criteria": options}
    found = asked_of(running, "/v1/systemone", {"state": "x", "questions": {"q": question}})
    assert found.status == 200, found.body
    assert seen[0] == "Which?"
    assert len(found.json["answers"]["q"]["probabilities"]) == 255


def test_litellm_asks_either_wire(task_service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Litellm's own functions read the answers of both wires."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it downloads a price list
    litellm = pytest.importorskip("litellm")
    found = litellm.systemone(
        model="hosted_vllm/m",
        api_base=task_service.url,
        state="it purrs",
        questions={"q": choice("cat", "dog", instructions="Which?")},
    )
    assert found.answers["q"].choice == "cat"
    listed = litellm.decisions(
        model="openai/gpt-6-luna",
        api_base=f"{task_service.url}/v1",
        api_key="k",
        input="it purrs",
        questions=[
            {
                "type": "choice",
                "name": "q",
                "instructions": "Which?",
                "choices": [{"value": "cat"}, {"value": "dog"}],
            }
        ],
    )
    assert listed.answers[0].choice == "cat"


@pytest.mark.parametrize("wire", ["systemone", "decisions"])
def test_a_classifier_asks_a_service_of_another(task_service: Any, wire: str) -> None:
    """A classifier whose decision model is a service gets that service's distribution."""
    base = task_service.url if wire == "systemone" else f"{task_service.url}/v1"
    options = {"api_base": base, "api_key": "k"}
    with Classifier(
        model=f"{wire}/local", labels=LABELS, options=options, prompt="Which animal?"
    ) as classifier:
        found = classifier.classify("it purrs")
    assert found.label == "cat"
    assert found.distribution is not None
    assert found.distribution.probabilities.tolist() == pytest.approx([0.7, 0.3])
