"""Tests of `open_classifier`: every setting of the task is used, and all models are closed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant.cascade import (
    AutoMixEntailment,
    AvgLogprob,
    Cascade,
    CascadeModel,
    Hybrid,
    LabelProbability,
    Margin,
    SelfVerify,
)
from calibrant.cascade._methods import METHODS
from calibrant.core import ConfigurationError, Limits, Task, Verdict
from calibrant.inference import Classifier
from calibrant.testing import FakeClient, MemoryJournal

WriteTask = Callable[..., Path]
Opened = dict[str, list[FakeClient]]
pytestmark = pytest.mark.usefixtures("opened")

MODELS = '[[cascade.models]]\nname = "small"\n[[cascade.models]]\nname = "large"\n'
SECTION = f'[cascade]\nconfidence_method = "label_probability"\nthreshold = 0.9\n{MODELS}'


@pytest.fixture
def open_cascade(open_task: Callable[..., Classifier]) -> Callable[..., Cascade]:
    """Return a function that does so where there is a cascade."""

    def open_it(extra: str, **options: Any) -> Cascade:
        found = open_task(extra, **options)
        assert isinstance(found, Cascade)
        return found

    return open_it


OpenTask = Callable[..., Classifier]
OpenCascade = Callable[..., Cascade]


def asked(cascade: Classifier, text: str) -> list[tuple[str, Verdict]]:
    """Return which models are asked about a text, and what becomes of their answers."""
    return [(step.model, step.verdict) for step in cascade.classify(text).steps]


# --- what is opened -----------------------------------------------------------------------------


def test_a_task_with_one_model_is_a_classifier(open_task: OpenTask, opened: Opened) -> None:
    """A task without sections opens a Classifier."""
    found = open_task('[model]\nname = "small"\n')
    assert type(found) is Classifier
    assert found.classify("woof").label == "cat"
    assert list(opened) == ["small"]


def test_a_task_with_a_cascade_opens_it(open_cascade: OpenCascade, opened: Opened) -> None:
    """A cascade takes the small model's answer if it is sure, and else asks the large one."""
    cascade = open_cascade(SECTION)
    sure, unsure = cascade.classify("meow"), cascade.classify("woof")
    assert (sure.label, sure.accepted, len(sure.steps)) == ("cat", True, 1)
    assert (unsure.label, unsure.accepted, len(unsure.steps)) == ("dog", True, 2)
    assert [len(opened[name][0].requests) for name in ("small", "large")] == [2, 1]


def test_every_model_has_its_own_settings(open_cascade: OpenCascade, opened: Opened) -> None:
    """Every model gets its own options and prompt; one without a prompt gets the task's."""
    cascade = open_cascade(
        '[cascade]\nconfidence_method = "label_probability"\nthreshold = 0.99\nescalation_order = "declared"\n'
        '[[cascade.models]]\nname = "large"\nprompt = "Look closely."\nalias = "first"\nconcurrency = 3\n'
        'api_base = "http://h/v1"\nspace = "masked"\n[cascade.models.options]\nmax_tokens = 7\n'
        '[[cascade.models]]\nname = "small"\n'
    )
    assert [step.model for step in cascade.classify("woof").steps] == ["first", "small"]
    (large,), (small,) = opened["large"], opened["small"]
    assert [fake.requests[0].messages[0]["content"] for fake in (large, small)] == [
        "Look closely.",
        "Which animal?",
    ]
    assert large.settings == {  # type: ignore[attr-defined]
        "space": "masked",
        "concurrency": 3,
        "options": {"max_tokens": 7, "api_base": "http://h/v1"},
        "scoring": None,
    }
    assert small.settings["options"] == {}  # type: ignore[attr-defined]
    assert dict(large.requests[0].options) == {"max_tokens": 7, "api_base": "http://h/v1"}


def test_two_prompts_of_one_model_are_two_models(open_cascade: OpenCascade, opened: Opened) -> None:
    """Two models of one name without an alias get numbers."""
    cascade = open_cascade(
        '[cascade]\nconfidence_method = "label_probability"\nthreshold = 0.9\n'
        '[[cascade.models]]\nname = "small"\n[[cascade.models]]\nname = "small"\nprompt = "Again."\n'
    )
    assert [name for name, _ in asked(cascade, "woof")] == ["small #1", "small #2"]
    prompts = [fake.requests[0].messages[0]["content"] for fake in opened["small"]]
    assert sorted(prompts) == ["Again.", "Which animal?"]


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ('escalation_order = "cost"', ["small", "large"]),
        ('escalation_order = "size"', ["large", "small"]),
        ('escalation_order = "declared"', ["large", "small"]),
        ('escalation_order = "automix"\ncost_quality_tradeoff = 0', ["large", "small"]),
        ('escalation_order = "automix"\ncost_quality_tradeoff = 1', ["small", "large"]),
    ],
)
def test_cost_size_and_quality_set_the_order(
    open_cascade: OpenCascade, settings: str, order: list[str]
) -> None:
    """Every escalation order uses its own setting: cost, size or quality."""
    cascade = open_cascade(
        f'[cascade]\nconfidence_method = "label_probability"\nthreshold = 1\n{settings}\n'
        '[[cascade.models]]\nname = "large"\ncost = 5\nsize = "1b"\nquality = 0.2\n'
        '[[cascade.models]]\nname = "small"\ncost = 1\nsize = "2b"\nquality = 0.7\n'
    )
    assert [name for name, _ in asked(cascade, "woof")] == order


@pytest.mark.parametrize(
    ("keys", "kind", "described"),
    [
        ("", AvgLogprob, {"token_filter": "label"}),
        ('confidence_method = "margin"\ntoken_filter = "all"', Margin, {"token_filter": "all"}),
        (
            'confidence_method = "hybrid"\ntoken_filter = "stop"',
            Hybrid,
            {"token_filter": "stop", "logprob_weight": 0.5, "margin_weight": 0.5},
        ),
        (
            'confidence_method = "hybrid"\nhybrid_weights = { logprob_weight = 0, margin_weight = 1 }',
            Hybrid,
            {"logprob_weight": 0.0, "margin_weight": 1.0},
        ),
        ('confidence_method = "self_verify"', SelfVerify, {}),
        (
            'confidence_method = "automix_entailment"\nverifier_server_url = "http://127.0.0.1:9"',
            AutoMixEntailment,
            {"url": "http://127.0.0.1:9/verify"},
        ),
        ('confidence_method = "label_probability"', LabelProbability, {}),
    ],
)
def test_every_method_opens_with_its_settings(
    open_cascade: OpenCascade, keys: str, kind: type, described: dict[str, object]
) -> None:
    """Each method is opened with the settings of the section that it knows."""
    method = open_cascade(f"[cascade]\n{keys}\n{MODELS}").method
    assert type(method) is kind
    assert described.items() <= dict(method.describe()).items()


@pytest.mark.parametrize("seconds", ["0", "7", "0.5"])
def test_the_verifier_gets_threshold_and_timeout(
    open_cascade: OpenCascade, monkeypatch: pytest.MonkeyPatch, seconds: str
) -> None:
    """The verifier gets threshold and timeout from the section, also if they are 0."""
    told: dict[str, Any] = {}

    class Remembering(AutoMixEntailment):
        def __init__(self, url: str, **options: Any) -> None:
            told.update(options)
            super().__init__(url, **options)

    monkeypatch.setitem(METHODS, "automix_entailment", Remembering)
    open_cascade(
        '[cascade]\nconfidence_method = "automix_entailment"\nverifier_server_url = "http://127.0.0.1:9"\n'
        f"verifier_timeout_seconds = {seconds}\nthreshold = 0\n{MODELS}"
    )
    assert told == {"timeout_seconds": float(seconds), "threshold": 0.0}


def test_a_model_keeps_its_own_concurrency(
    open_task: OpenTask, open_cascade: OpenCascade, opened: Opened
) -> None:
    """A model's own concurrency holds although the run's limit is higher."""

    def most_at_once(found: Classifier) -> int:
        small = opened["small"][-1]
        small._latency = 0.005
        found.classify_many([f"{number} woof" for number in range(40)])
        return small.max_in_flight

    section = SECTION.replace('name = "small"', 'name = "small"\nconcurrency = 2')
    whole = open_cascade(section, limits=Limits(concurrency=64))
    assert most_at_once(whole.with_limits(Limits(concurrency=32))) == 2
    own = CascadeModel(classifier=open_task('[model]\nname = "small"\n'), concurrency=2)
    assert most_at_once(Cascade([own], method="label_probability")) == 2
    assert most_at_once(open_cascade(SECTION, limits=Limits(concurrency=32))) > 2


# --- zero is zero -------------------------------------------------------------------------------


def test_a_threshold_of_zero_accepts_everything(open_cascade: OpenCascade) -> None:
    """A threshold of 0 accepts every answer, and a missing one is the method's default."""
    section = SECTION.replace("threshold = 0.9", "threshold = 0")
    assert asked(open_cascade(section), "woof") == [("small", Verdict.ACCEPTED)]
    assert asked(open_cascade(SECTION.replace("threshold = 0.9\n", "")), "woof")[0] == (
        "small",
        Verdict.ESCALATED,
    )


def test_a_native_threshold_of_zero_wants_certainty(open_cascade: OpenCascade) -> None:
    """A native threshold of 0 accepts no answer of probability below 1."""
    cascade = open_cascade(f"[cascade]\nnative_threshold = 0\n{MODELS}")
    assert [verdict for _, verdict in asked(cascade, "meow")] == [Verdict.ESCALATED, Verdict.ESCALATED]


@pytest.mark.parametrize("limit", ["max_escalations", "max_tokens", "deadline_seconds"])
def test_a_limit_of_zero_stops_escalation(open_cascade: OpenCascade, opened: Opened, limit: str) -> None:
    """A limit of 0 ends a row after the first model, without acceptance."""
    cascade = open_cascade(SECTION.replace("[[", f"{limit} = 0\n[[", 1))
    prediction = cascade.classify("woof")
    assert [step.model for step in prediction.steps] == ["small"]
    assert prediction.accepted is False
    assert "large" in opened


@pytest.mark.parametrize("line", ["", "verify_last = true\n", "verify_last = false\n"])
def test_a_task_file_says_whether_the_last_model_is_verified(open_cascade: OpenCascade, line: str) -> None:
    """With ``verify_last = false`` the last model's answer is taken with its own confidence."""
    cascade = open_cascade(SECTION.replace("[[", f"{line}[[", 1).replace("0.9", "1.0"))
    last = cascade.classify("woof").steps[-1]
    assert last.model == "large"
    assert (last.verdict is Verdict.ACCEPTED) is ("false" in line)
    assert ("not verified" in last.reason) is ("false" in line)


def test_on_error_decides_about_escalation(open_cascade: OpenCascade, opened: Opened) -> None:
    """With on_error "skip" the next model is asked after a refusal, and with "fail" it is not."""
    for on_error, models in (("skip", ["small", "large"]), ("fail", ["small"])):
        opened.clear()
        cascade = open_cascade(SECTION.replace("[[", f'on_error = "{on_error}"\n[[', 1))
        opened["small"][0].answers = {}  # type: ignore[attr-defined]
        opened["small"][0].requests.clear()
        cascade.classify("meow")  # the large model has answered, so that a fault is one row's
        with pytest.MonkeyPatch.context() as patch:

            async def refuse(_request: object) -> object:
                return {"choices": [{"message": {"content": "no", "refusal": "no"}, "finish_reason": "stop"}]}

            patch.setattr(opened["small"][0], "complete", refuse)
            assert [step.model for step in cascade.classify("woof").steps] == models


# --- the looper's file --------------------------------------------------------------------------


def looper(directory: Path, refs: str = "") -> None:
    """Write a looper's file that reads all tokens."""
    (directory / "looper.yaml").write_text(
        f"{refs}algorithm:\n  type: confidence\n  confidence:\n    confidence_method: avg_logprob\n"
        "    threshold: 0.98\n"
        "    escalation_order: declared\n    token_filter: all\n"
    )


def test_the_looper_s_file_configures_the_cascade(tmp_path: Path, open_cascade: OpenCascade) -> None:
    """The looper's file sets the method, and the task file the models and limits."""
    looper(tmp_path)
    cascade = open_cascade(f'[cascade]\nfile = "looper.yaml"\nmax_escalations = 0\n{MODELS}')
    assert cascade.method.describe() == {"method": "avg_logprob", "token_filter": "all"}
    assert asked(cascade, "woof") == [("small", Verdict.ESCALATED)]


@pytest.mark.parametrize(
    ("refs", "models", "name"),
    [
        ("modelRefs:\n  - model: large\n  - model: small\n", "", "cascade(large -> small)"),
        ("modelRefs: [{model: large}]\n", f'{MODELS}alias = "the large one"\n', "cascade(the large one)"),
    ],
    ids=["named there alone", "chosen among the task's"],
)
def test_the_looper_s_file_names_the_models(
    tmp_path: Path, open_cascade: OpenCascade, refs: str, models: str, name: str
) -> None:
    """`modelRefs` in the looper's file gives the models and their order."""
    looper(tmp_path, refs)
    assert open_cascade(f'[cascade]\nfile = "looper.yaml"\n{models}').name == name


@pytest.mark.parametrize(
    ("refs", "models", "why"),
    [
        ("modelRefs: [{model: huge}]\n", MODELS, "modelRefs names 'huge', but .* has small, large"),
        ("", "", r"expected modelRefs, or \[\[cascade.models\]\]"),
    ],
    ids=["an unknown model", "no model"],
)
def test_unknown_models_of_the_looper_are_refused(
    tmp_path: Path, open_task: OpenTask, refs: str, models: str, why: str
) -> None:
    """A file without models, or with unknown ones, raises ConfigurationError."""
    looper(tmp_path, refs)
    with pytest.raises(ConfigurationError, match=f"looper.yaml: {why}"):
        open_task(f'[cascade]\nfile = "looper.yaml"\n{models}')


def test_mistakes_in_the_looper_s_file_have_lines(tmp_path: Path, open_task: OpenTask) -> None:
    """A mistake in the looper's file raises ConfigurationError with that file and its line."""
    (tmp_path / "looper.yaml").write_text("threshold: 0.5\ntreshold: 0.5\n")
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}/looper.yaml:2: unknown key 'treshold'"):
        open_task(f'[cascade]\nfile = "looper.yaml"\n{MODELS}')


# --- instead, and afterwards --------------------------------------------------------------------


def test_another_model_replaces_the_cascade(
    open_task: OpenTask, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    """With another model that model alone is asked, and a warning is logged."""
    with caplog.at_level(logging.WARNING):
        found = open_task(SECTION, model="large")
    assert type(found) is Classifier
    assert list(opened) == ["large"]
    assert caplog.messages == ["large alone is asked: the task's cascade and its settings are not used."]


def test_a_cascade_is_not_the_default_model(write_task: WriteTask, opened: Opened) -> None:
    """`Classifier.from_task` raises ConfigurationError for a task with a cascade."""
    task = Task.from_file(write_task(extra=f"\n{SECTION}"), splits=())
    with pytest.raises(
        ConfigurationError, match="Expected a task with one model, got the cascade of task 'animals'"
    ):
        Classifier.from_task(task)
    assert type(Classifier.from_task(task, model="large")) is Classifier
    assert list(opened) == ["large"]


def test_closing_frees_every_model(open_task: OpenTask, opened: Opened) -> None:
    """Closing the cascade closes all its models."""
    open_task(SECTION).close()
    assert [fake.closed for fakes in opened.values() for fake in fakes] == [True, True]


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param(SECTION.replace("large", "missing"), id="no-such-model"),
        pytest.param(SECTION + 'size = "huge"\n', id="no-such-size"),
        pytest.param(
            SECTION.replace("threshold = 0.9", 'escalation_order = "cost"') + "cost = 1\n", id="cost-of-one"
        ),
        pytest.param(f"[cascade]\nnative_threshold = 1\n{MODELS}", id="native-threshold"),
    ],
)
def test_a_failed_opening_closes_its_models(open_task: OpenTask, opened: Opened, extra: str) -> None:
    """If opening a model fails, the models that were opened before are closed."""
    with pytest.raises(ConfigurationError):
        open_task(extra)
    assert opened["small"]
    assert all(fake.closed for fakes in opened.values() for fake in fakes)


def test_journal_and_limits_arrive(open_cascade: OpenCascade, opened: Opened) -> None:
    """The cascade has the given limits, and its journal answers a repeated text without a call."""
    journal = MemoryJournal()
    limits = Limits(concurrency=2, max_tokens=100)
    first = open_cascade(SECTION, journal=journal, limits=limits)
    assert first.limits == limits
    label = first.classify("woof").label
    opened.clear()
    again = open_cascade(SECTION, journal=journal).classify("woof")
    assert (again.label, again.attempts) == (label, 0)
    assert [fake.requests for fakes in opened.values() for fake in fakes] == [[], []]
