"""Tests of `Classifier`: order of predictions, concurrency, requests, loops, copies and closing."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from calibrant.core import (
    Client,
    CompletionRequest,
    ConfigurationError,
    LabelSet,
    LogprobSpace,
    Outcome,
    Prediction,
    ProviderError,
    Task,
)
from calibrant.core._settings import ModelSettings
from calibrant.inference import Classifier, RetryPolicy
from calibrant.testing import FakeClient, fake_response
from distributions import distribution_of
from fault_server import FaultServer

LABELS = ["cat", "dog"]
TEXTS = ["meow 1", "woof 2", "meow 3", "woof 4"]


def make(client: object, **changes: Any) -> Classifier:
    """Return a classifier of cats and dogs with some of its arguments replaced."""
    arguments = {"labels": LABELS, "field": "category", "prompt": "Which animal?", **changes}
    return Classifier(model=client, **arguments)


def sent(client: FakeClient) -> list[tuple[str, str]]:
    """Return the system and the user message of every request."""
    return [(r.messages[0]["content"], r.messages[1]["content"]) for r in client.requests]


# --- what comes back ----------------------------------------------------------------------------


def test_a_text_becomes_a_prediction(animals: FakeClient) -> None:
    """In masked space a prediction's confidence is the joint probability of the label's tokens."""
    prediction = make(animals).classify("it goes meow")
    assert (prediction.label, prediction.outcome, prediction.reason) == ("cat", Outcome.OK, "")
    assert prediction.confidence == pytest.approx(0.9)
    found = distribution_of(prediction)
    assert (found.space, found.probabilities) == (LogprobSpace.MASKED, pytest.approx([0.9, 0.1]))
    assert (animals.requests[0].top_logprobs, dict(animals.requests[0].options)) == (5, {})
    assert (prediction.text, prediction.attempts, prediction.model) == ('{"category": "cat"}', 1, "fake")


def test_predictions_keep_the_order_of_the_texts() -> None:
    """Predictions come in the order of the texts; `on_prediction` is called in the order of the answers."""
    heard: list[tuple[int, str | None]] = []
    may_answer = [asyncio.Event() for _ in range(4)]
    may_answer[3].set()

    async def last_first(messages: list[dict[str, str]]) -> object:
        number = int(messages[-1]["content"])
        await may_answer[number].wait()
        return fake_response(LABELS[number % 2], LABELS)

    def listen(index: int, prediction: Prediction) -> None:
        heard.append((index, prediction.label))
        may_answer[index - 1].set()

    predictions = make(last_first).classify_many(["0", "1", "2", "3"], on_prediction=listen)
    assert [prediction.label for prediction in predictions] == ["cat", "dog", "cat", "dog"]
    assert heard == [(3, "dog"), (2, "cat"), (1, "dog"), (0, "cat")]


def test_on_prediction_gets_every_row_once() -> None:
    """`on_prediction` is called once for failed and unparsed rows as well."""
    client = FakeClient(LABELS, {"meow": "cat", "moo": ValueError("broken")}, default="cow")
    heard: dict[int, Prediction] = {}
    function = client.as_callable()
    predictions = make(function).classify_many(["meow", "moo", "quack"], on_prediction=heard.__setitem__)
    assert [prediction.outcome for prediction in predictions] == [Outcome.OK, Outcome.ERROR, Outcome.UNPARSED]
    assert heard == dict(enumerate(predictions))


def test_error_in_on_prediction_stops_the_run(animals: FakeClient) -> None:
    """An exception of `on_prediction` is raised unchanged, and no further row is begun."""

    def listen(index: int, _: Prediction) -> None:
        raise LookupError(index)

    with pytest.raises(LookupError, match="0"):
        make(animals, concurrency=1).classify_many(TEXTS, on_prediction=listen)
    assert len(animals.requests) == 1


def test_no_texts_make_no_predictions(animals: FakeClient) -> None:
    """An empty list of texts returns an empty list without any call."""
    assert make(animals).classify_many([]) == []
    assert animals.requests == []


# --- how calls are made -------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3])
def test_concurrency_limits_the_calls_in_flight(concurrency: int) -> None:
    """As many calls as `concurrency` allows are in flight, and never more."""
    client = FakeClient(LABELS, {}, default="cat", latency=0.01)
    make(client, concurrency=concurrency).classify_many([str(number) for number in range(12)])
    assert (client.max_in_flight, len(client.requests)) == (concurrency, 12)


def test_ten_calls_are_in_flight_by_default() -> None:
    """The default of ten calls in flight holds for clients and for callables."""
    client, behind = (FakeClient(LABELS, {}, default="cat", latency=0.05) for _ in range(2))
    texts = [str(number) for number in range(15)]
    make(client).classify_many(texts)
    classifier = make(behind.as_callable())
    classifier.classify_many(texts)
    classifier.close()
    assert (client.max_in_flight, behind.max_in_flight) == (10, 10)


@pytest.mark.parametrize("concurrency", [0, -1])
def test_concurrency_below_one_is_refused(animals: FakeClient, concurrency: int) -> None:
    """Concurrency of 0 or less raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=f"concurrency of at least 1, got {concurrency}"):
        make(animals, concurrency=concurrency)


def test_request_holds_prompt_text_and_schema(animals: FakeClient) -> None:
    """The request holds prompt, text, the schema with the labels, and the options."""
    make(animals, top_logprobs=7, options={"max_tokens": 9}).classify("meow")
    (request,) = animals.requests
    assert request.messages == (
        {"role": "system", "content": "Which animal?"},
        {"role": "user", "content": "meow"},
    )
    assert request.response_format is not None
    schema = request.response_format["json_schema"]["schema"]
    assert schema["properties"]["category"]["enum"] == LABELS
    assert (request.top_logprobs, dict(request.options)) == (7, {"max_tokens": 9})


def test_engine_settings_are_not_sent(animals: FakeClient) -> None:
    """Settings that size the embedded engine are not sent with a call."""
    options = {"n_ctx": 512, "n_parallel": 2, "n_threads": 1, "max_tokens": 9}
    make(animals, options=options).classify("meow")
    assert dict(animals.requests[0].options) == {"max_tokens": 9}
    assert len(options) == 4


def test_given_schema_is_sent(animals: FakeClient) -> None:
    """A given `response_format` is sent in place of the schema of the labels."""
    own = {"type": "json_object"}
    make(animals, response_format=own).classify("meow")
    assert animals.requests[0].response_format == own


@pytest.mark.parametrize(
    ("template", "text", "user"),
    [
        (None, "meow", "meow"),
        ("Text: {input}", "meow", "Text: meow"),
        ("{input} and {input}", "meow", "meow and meow"),
        ('{{"a": {b}, "text": "{input}"}} {} {0}', "meow", '{{"a": {b}, "text": "meow"}} {} {0}'),
        ("[{input}]", "meow {input} {x}", "[meow {input} {x}]"),
    ],
)
def test_the_template_shapes_the_user_message(
    animals: FakeClient, template: str | None, text: str, user: str
) -> None:
    """Every {input} in the template becomes the text, and all other braces stay."""
    make(animals, user_template=template).classify(text)
    assert sent(animals) == [("Which animal?", user)]


def test_template_without_input_is_unparsed(animals: FakeClient) -> None:
    """A template without {input} makes the row unparsed without a call."""
    (prediction,) = make(animals, user_template="Text:").classify_many(["meow"])
    assert (prediction.outcome, prediction.attempts) == (Outcome.UNPARSED, 0)
    assert prediction.reason == "the user template lacks {input}, so the model never saw the text"
    assert animals.requests == []


@pytest.mark.parametrize("field", ["label", "classification.name", "results[].category"])
def test_label_is_read_at_any_path(field: str) -> None:
    """The label is read from nested objects and arrays."""
    client = FakeClient(LABELS, {"meow": ("cat", 0.7)}, field=field)
    prediction = make(client, field=field).classify("meow")
    assert (prediction.label, prediction.confidence) == ("cat", pytest.approx(0.7))


def test_label_is_read_from_answer_field() -> None:
    """The label comes from `answer_field`, while the confidence belongs to `field`."""
    response = fake_response("cat", LABELS, [0.6, 0.4])
    text = '{"category": "cat", "final": "DOG"}'
    response["choices"][0]["message"]["content"] = text
    response["choices"][0]["logprobs"] = None
    prediction = make(lambda _: response, answer_field="final").classify("meow")
    assert (prediction.label, prediction.confidence) == ("dog", None)


# --- log-probability spaces ---------------------------------------------------------------------


def test_raw_confidence_is_a_share_of_labels() -> None:
    """In raw space the confidence is the label's share of the label mass."""
    client = FakeClient(LABELS, {"meow": ("cat", 0.9)}, illegal_mass=0.5, space="raw")
    prediction = make(client).classify("meow")
    found = distribution_of(prediction)
    assert found.space is LogprobSpace.RAW
    assert found.joint_logprob == pytest.approx(-0.7985, abs=1e-4)  # log(0.9 / 2)
    assert found.label_mass == pytest.approx(0.5)
    assert prediction.confidence == pytest.approx(0.9)


def test_given_space_overrides_the_clients() -> None:
    """A given space takes precedence over the client's."""
    client = FakeClient(LABELS, {"meow": ("cat", 0.9)}, illegal_mass=0.5)
    assert make(client).classify("meow").confidence == pytest.approx(0.45)
    assert make(client, space="raw").classify("meow").confidence == pytest.approx(0.9)


def test_an_unknown_space_is_refused(animals: FakeClient) -> None:
    """An unknown space raises ConfigurationError before any call, with any model."""
    for model in (animals, animals.as_callable(), "openai/x"):
        with pytest.raises(ConfigurationError, match="'cooked': expected one of masked, raw"):
            make(model, space="cooked")


def test_space_none_gives_no_confidence() -> None:
    """With the space "none" a prediction has a label, but neither confidence nor distribution."""
    client = FakeClient(LABELS, {"meow": ("cat", 0.9)}, space="none")
    prediction = make(client).classify("meow")
    assert (prediction.label, prediction.outcome) == ("cat", Outcome.OK)
    assert (prediction.confidence, prediction.distribution) == (None, None)


# --- where it runs ------------------------------------------------------------------------------


def test_sync_calls_work_inside_a_loop(animals: FakeClient) -> None:
    """`classify_many` works in a thread that already runs an event loop."""

    async def cell() -> list[Prediction]:
        return make(animals).classify_many(TEXTS)

    assert [prediction.label for prediction in asyncio.run(cell())] == ["cat", "dog", "cat", "dog"]


def test_async_calls_run_on_the_callers_loop(animals: FakeClient) -> None:
    """`aclassify` and `aclassify_many` run on the caller's event loop."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def model(messages: list[dict[str, str]]) -> object:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0.01)
        return fake_response("cat" if "meow" in messages[-1]["content"] else "dog", LABELS)

    async def program() -> tuple[list[Prediction], Prediction, bool]:
        many, one = await asyncio.gather(make(model).aclassify_many(TEXTS), make(animals).aclassify("woof"))
        return many, one, all(loop is asyncio.get_running_loop() for loop in loops)

    many, one, own_loop = asyncio.run(program())
    assert [prediction.label for prediction in many] == ["cat", "dog", "cat", "dog"]
    assert one.label == "dog"
    assert own_loop


def test_a_failure_leaves_no_cancellation() -> None:
    """Whoever catches the error of a failed call may wait on: the task counts as cancelled by nobody."""

    def fail(_: str) -> str:
        raise ProviderError("wrong key", provider="p", status=401)

    async def program() -> int:
        async with asyncio.timeout(60):
            with pytest.raises(ProviderError, match="wrong key"):
                await classifier.aclassify("purrs")
            task = asyncio.current_task()
            return -1 if task is None else task.cancelling()

    with Classifier(model=FakeClient(LABELS, fail), labels=LABELS) as classifier:
        assert asyncio.run(program()) == 0


def test_threads_share_a_classifier(animals: FakeClient) -> None:
    """Every thread gets its own answers from a shared classifier."""
    classifier = make(animals)
    found: dict[str, list[str | None]] = {}

    def work(text: str) -> None:
        found[text] = [prediction.label for prediction in classifier.classify_many([text] * 5)]

    with ThreadPoolExecutor(len(TEXTS)) as threads:
        list(threads.map(work, TEXTS))
    assert found == {text: ["cat" if "meow" in text else "dog"] * 5 for text in TEXTS}


# --- copies, tasks, closing ---------------------------------------------------------------------


def test_another_prompt_shares_the_client(animals: FakeClient) -> None:
    """Copies with another prompt share client and meter."""
    first = make(animals, user_template="<{input}>")
    second = first.with_prompt("Other.")
    third = first.with_prompt("Third.", user_template="[{input}]")
    assert first.client is second.client is third.client is animals
    assert first.meter is second.meter is third.meter
    for classifier in (second, third, first):
        classifier.classify("meow")
    assert sent(animals) == [("Other.", "<meow>"), ("Third.", "[meow]"), ("Which animal?", "<meow>")]


def test_close_leaves_a_given_client_open(animals: FakeClient) -> None:
    """`close` does not close a client that the caller handed in."""
    first = make(animals)
    first.close()
    first.with_prompt("Other.").close()
    assert not animals.closed
    assert make(animals).classify("meow").label == "cat"


@pytest.fixture
def opened(use_model: Callable[..., Any], animals: FakeClient) -> list[tuple[object, Mapping[str, Any]]]:
    """Record the clients that a classifier opens; each is a fake."""
    calls: list[tuple[object, Mapping[str, Any]]] = []

    def open_fake(model: object, **options: Any) -> Client:
        calls.append((model, options))
        return animals

    for name in ("openai/x", "other", ModelSettings().name):
        use_model(open_fake, name)
    return calls


def test_a_task_describes_its_classifier(
    opened: list[tuple[object, Mapping[str, Any]]], animals: FakeClient
) -> None:
    """Model, endpoint, space, concurrency and options come from the [model] section."""
    own = ModelSettings(
        name="openai/x", api_base="http://h/v1", space="raw", concurrency=3, options={"max_tokens": 9}
    )
    described = Task(
        name="n",
        labels=LabelSet(LABELS),
        prompt="Which animal?",
        field="category",
        user_template="<{input}>",
        model=own,
    )
    classifier = Classifier.from_task(described)
    options = {"max_tokens": 9, "api_base": "http://h/v1"}
    settings = {"space": "raw", "concurrency": 3, "options": options, "scoring": None}
    assert (opened, classifier.limits.concurrency) == ([("openai/x", settings)], 3)
    assert classifier.space is LogprobSpace.RAW
    assert classifier.classify("meow").label == "cat"
    assert sent(animals) == [("Which animal?", "<meow>")]
    assert dict(animals.requests[0].options) == options
    assert own.options == {"max_tokens": 9}


def test_given_model_ignores_the_tasks_model(
    opened: list[tuple[object, Mapping[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    """A given model ignores the settings of the task's model, and logs a warning about its address."""
    own = ModelSettings(name="openai/x", api_base="http://h/v1", space="raw", concurrency=3, options={"a": 1})
    described = Task(name="n", labels=LabelSet(LABELS), prompt="p", model=own)
    classifier = Classifier.from_task(described, model="other")
    settings = {"space": None, "concurrency": None, "options": {}, "scoring": None}
    assert (opened, classifier.meter.concurrency) == ([("other", settings)], 10)
    assert dict(classifier.options) == {}
    (warning,) = caplog.messages
    assert warning == (
        "other is asked instead of openai/x: without api_base, space, options.a of the task, the texts go to litellm's "
        "provider of that name."
    )


# --- other questions ------------------------------------------------------------------------------


def test_acomplete_uses_options_and_retries() -> None:
    """`acomplete` sends another request under the classifier's options, retries and budget."""
    wait: list[float] = []

    async def sleep(seconds: float) -> None:
        wait.append(seconds)

    response = {
        "choices": [{"message": {"content": "Yes."}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    client = FakeClient(LABELS, lambda _: [{"choices": []}, response])
    classifier = make(client, options={"seed": 1, "max_tokens": 5}, retry=RetryPolicy(sleep=sleep))
    request = CompletionRequest(messages=({"role": "user", "content": "Sure?"},), options={"max_tokens": 9})
    completion, attempts = asyncio.run(classifier.acomplete(request))
    assert (completion.text, attempts, len(wait)) == ("Yes.", 2, 1)
    assert dict(client.requests[-1].options) == {"seed": 1, "max_tokens": 9}
    gate = classifier.meter
    assert (gate.rows, gate.tokens, gate.requests) == (0, 5, 2)


def test_acomplete_counts_failed_calls() -> None:
    """`acomplete` raises ProviderError with the number of calls."""
    classifier = make(FakeClient(LABELS, {"Sure?": ProviderError("no", provider="fake", status=400)}))
    with pytest.raises(ProviderError) as caught:
        asyncio.run(classifier.acomplete(CompletionRequest(messages=({"role": "user", "content": "Sure?"},))))
    assert caught.value.attempts == 1


# --- as a context manager -------------------------------------------------------------------------


@pytest.mark.usefixtures("opened")
def test_with_closes_an_opened_model(animals: FakeClient) -> None:
    """The context manager, synchronous or asynchronous, closes a model that was opened by name."""
    with Classifier(model="openai/x", labels=LABELS, field="category") as classifier:
        assert classifier.classify("meow").label == "cat"
        classifier.with_features().close()
        assert not animals.closed
    assert animals.closed

    async def ask() -> str | None:
        async with Classifier(model="openai/x", labels=LABELS, field="category") as found:
            animals.closed = False
            return (await found.aclassify("meow")).label

    assert asyncio.run(ask()) == "cat"
    assert animals.closed


@pytest.mark.parametrize(
    ("labels", "scoring", "shown"),
    [
        (["a", "b"], None, "Classifier(model='fake', labels=['a', 'b'], scoring='decode')"),
        (
            [f"l{n}" for n in range(9)],
            "sampled",
            "Classifier(model='fake', labels=['l0', 'l1', 'l2', 'l3', 'l4', ... 9 in all], scoring='sampled')",
        ),
    ],
)
def test_repr_shows_model_labels_and_scoring(labels: list[str], scoring: Any, shown: str) -> None:
    """`repr` shows the model, the scoring, and at most five labels with their number."""
    assert repr(Classifier(model=FakeClient(labels, {}), labels=labels, scoring=scoring)) == shown


LEFT_OPEN = """
import asyncio, sys
from calibrant.inference import Classifier

classifier = Classifier(model="openai/m", labels=["cat", "dog"], field="category",
                        options={"api_base": sys.argv[1], "api_key": "k"})
if sys.argv[2] == "sync":
    classifier.classify("cat")
loop = asyncio.new_event_loop()
print(loop.run_until_complete(classifier.aclassify("dog")).label)
if sys.argv[2] == "closed loop":
    loop.close()
"""


@pytest.mark.parametrize("way", ["sync", "open loop", "closed loop"])
def test_program_ends_without_close(way: str) -> None:
    """A program that never closes its classifier ends without a warning about open sessions."""
    with FaultServer(LABELS) as server:
        command = [sys.executable, "-W", "default", "-c", LEFT_OPEN, server.api_base, way]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert (ended.returncode, ended.stdout) == (0, "dog\n"), ended.stderr
    assert "Unclosed" not in ended.stderr


def test_a_key_within_the_name_of_the_model_leaves_it_whole() -> None:
    """The model that was asked is recorded under its name, though a key of a local server is a part of it."""
    with FaultServer(LABELS) as server:
        options = {"api_base": server.api_base, "api_key": "fake"}
        with Classifier(
            model="openai/gpt-fake", labels=LABELS, field="category", options=options
        ) as classifier:
            assert classifier.classify("dog").model == "gpt-fake"


def test_pickling_says_what_to_send_instead() -> None:
    """A classifier is not pickled, as it holds connections, and the error names what can be; copies work."""
    with FaultServer(LABELS) as server:
        options = {"api_base": server.api_base, "api_key": "none"}
        with Classifier(model="openai/any", labels=LABELS, field="category", options=options) as classifier:
            classifier.classify("dog")
            for send in (pickle.dumps, copy.deepcopy):
                with pytest.raises(
                    ConfigurationError, match=r"got a Classifier, .* send the path of a bundle"
                ):
                    send(classifier)
            assert copy.copy(classifier).classify("dog").label == "dog"
