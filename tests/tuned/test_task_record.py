"""Tests of task records: a task's settings are the same after JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from calibrant.assembly import cascade_settings, routing_settings
from calibrant.core import (
    Columns,
    ConfigurationError,
    CsvFormat,
    Fingerprint,
    LogprobSpace,
    ModelSettings,
    Task,
)
from calibrant.testing import FakeClient
from calibrant.tuned import RecordedTask, Tuned

WriteTask = Callable[..., Path]
LABELS = ["cat", "dog"]

# What does not change who is asked, or how; a head stands in head.json. Other prompts are for a search alone.
ELSEWHERE = {"train", "validation", "test", "scoring", "calibration", "head", "sources"} | {
    "other_prompts",
    "label_descriptions",
}
FILES = {"labels", "prompt", "user_template", "demonstrations"}
COLUMNS = Columns(input="t", fields=(("a", "b"),), csv=CsvFormat(separator=";", header=False))
CASCADE = '[[cascade.models]]\nname = "a"\ncost = 0\nsize = "1b"\nprompt = "Own."\noptions = { seed = 1 }\n'
PROVIDERS = (
    '[[routing.providers]]\nname = "x"\nalias = "one"\ncost = 0.5\n[[routing.providers]]\nname = "y"\n'
)


def tuned(task: Task, **left_out: tuple[str, ...]) -> Tuned:
    """Return a classifier of a task, from which options of models were left out."""
    asked = Fingerprint(prompt=task.prompt, model="m", space=LogprobSpace.MASKED, labels=task.labels)
    return Tuned(tasks=(RecordedTask(task=task, left_out=left_out),), fingerprint=asked)


def saved(task: Task, folder: Path) -> RecordedTask:
    """Return a task as a bundle gives it back."""
    return tuned(task).save(folder).tasks[0]


@pytest.mark.parametrize(
    "extra",
    [
        "",
        '[model]\nname = "openai/x"\napi_base = "http://h/v1"\nscoring = "sampled"\nsamples = 3\n',
        (
            '[model]\nname = "x"\nscoring = "exact"\ntolerance = "exact"\nspace = "raw"\nconcurrency = 2\n'
            "options = { temperature = 0.5, stop = ['a'], extra_body = { x = [1, 2.5, true] }, "
            "input_cost_per_token = 0.000002, output_cost_per_token = 0 }\n"
        ),
        (
            '[cascade]\nconfidence_method = "hybrid"\nhybrid_weights = { logprob_weight = 0.2, margin_weight = 0.8 }\n'
            f'max_cost = 0.1\nmax_escalations = 1\n{CASCADE}[[cascade.models]]\nname = "b"\n'
        ),
        (
            '[cascade]\nconfidence_method = "automix_entailment"\nverifier_server_url = "http://127.0.0.1:1"\n'
            f"verifier_timeout_seconds = 3\n{CASCADE}"
        ),
        f'[routing]\nrouting = "ema"\n{PROVIDERS}',
        f"[routing]\nrouter_ema_enabled = true\nquality_gate = 0.2\n{PROVIDERS}",
        f'[routing]\nrouting = "bandit"\nbandit = {{ alpha = 2, dim = 8 }}\n{PROVIDERS}',
        '[routing]\nrouting = "triage"\ntriage = { triage_provider = "one", tiers = { simple = "y" } }\n'
        + PROVIDERS,
        f'[routing]\nrouting = "task"\ntasks = {{ animals = "y" }}\n{PROVIDERS}',
        f'[cascade]\n{CASCADE}[[cascade.models]]\nname = "routed"\n[routing]\nrouting = "thompson"\n{PROVIDERS}',
    ],
)
def test_settings_survive_a_bundle(write_task: WriteTask, tmp_path: Path, extra: str) -> None:
    """A task read back from a bundle has the same settings, and so has its bundle."""
    task = Task.from_file(write_task(extra="\n" + extra), splits=())
    task = replace(task, columns=COLUMNS)
    found = saved(task, tmp_path / "bundle")
    assert cascade_settings(found.task) == cascade_settings(task)
    assert routing_settings(found.task) == routing_settings(task)
    for name in {field.name for field in fields(Task)} - ELSEWHERE - {"sections"}:
        assert getattr(found.task, name) == getattr(task, name), name
    assert found.left_out == {}
    assert not found.state_left_out
    saved(found.task, tmp_path / "again")
    first, again = ((tmp_path / name / "settings.json").read_bytes() for name in ("bundle", "again"))
    assert first == again


def test_every_field_of_a_task_is_recorded(write_task: WriteTask, tmp_path: Path) -> None:
    """Every field of a task is in a bundle's settings, has a file there, or is in the list of fields left out."""
    task = Task.from_file(write_task(), splits=())
    saved(replace(task, columns=COLUMNS), tmp_path / "bundle")
    (record,) = json.loads((tmp_path / "bundle" / "settings.json").read_text())["tasks"]
    known = {field.name for field in fields(Task)} - {"sections"} | {"cascade", "routing"}
    assert known == (set(record) - {"left_out", "state_left_out"}) | FILES | ELSEWHERE


def test_options_reach_their_model(write_task: WriteTask, use_model: Callable[..., Any]) -> None:
    """`Tuned.open` gives options to models by alias or name, and refuses ones that change answers."""
    extra = f'[cascade]\n{CASCADE}[[cascade.models]]\nname = "routed"\nsize = "2b"\n[routing]\n{PROVIDERS}'
    task = Task.from_file(write_task(extra="\n" + extra), splits=())
    opened: dict[str, Any] = {}

    def open_fake(model: str, **settings: Any) -> FakeClient:
        opened[model] = settings["options"]
        return FakeClient(task.labels, {}, name=model)

    for name in ("a", "x", "y"):
        use_model(open_fake, name)
    given = {"a": {"api_key": "k", "api_base": "http://a"}, "one": {"extra_headers": {"x": "y"}}}
    with tuned(task).open(options=given):
        own = {"seed": 1, "api_key": "k", "api_base": "http://a"}
        assert opened == {"a": own, "x": {"extra_headers": {"x": "y"}}, "y": {}}
    with pytest.raises(ConfigurationError, match="got 'seed': it could change the predictions"):
        tuned(task).open(options={"a": {"seed": 2}})
    with tuned(task, a=("seed",)).open(options={"a": {"seed": 2}}):
        assert opened["a"] == {"seed": 2}


@pytest.mark.parametrize(
    ("options", "kept", "names"),
    [
        ({}, {}, ()),
        ({"temperature": 0.5, "max_tokens": 9, "stop": ["x"]}, None, ()),
        ({"api_key": "k", "seed": 1}, {"seed": 1}, ("api_key",)),
        ({"extra_headers": {}}, {}, ("extra_headers",)),
        ({"tok": "whatever-it-is"}, {}, ("tok",)),
        ({"reasoning_effort": "minimal", "response_format": {"title": "whatever it is"}}, None, ()),
        ({"extra_body": {"provider": {"order": "ok", "api_key": "k"}}}, {}, ("extra_body",)),
        ({"unknown": [0.5, True, None, "on", "0.25", "2024-05-01"]}, None, ()),
        ({"extra_body": {"deep": [{"apiKey": "k"}]}}, {}, ("extra_body",)),
        ({"api_base": "http://127.0.0.1:1/v1/"}, None, ()),
        ({"api_base": "http://me:pass@host:1/v1"}, {"api_base": "http://host:1/v1"}, ("api_base",)),
        ({"base_url": "http://host/v1?key=k&a=1"}, {"base_url": "http://host/v1?a=1"}, ("base_url",)),
        ({"api_base": None}, None, ()),
    ],
)
def test_possible_credentials_are_removed(
    tmp_path: Path, options: dict[str, Any], kept: dict[str, Any] | None, names: tuple[str, ...]
) -> None:
    """Options that may hold a credential are removed, and their names are recorded."""
    model = ModelSettings(name="openai/x", options=options)
    found = saved(Task(name="n", labels=LABELS, prompt="p", model=model), tmp_path / "bundle")
    assert found.left_out == ({"openai/x": names} if names else {})
    shown = {"api_base": found.task.model.api_base, **found.task.model.options}
    assert shown == {"api_base": None, **(options if kept is None else kept)}


@pytest.mark.parametrize(
    ("name", "expected"), [("api_key", True), ("api_base", True), ("timeout", True), ("temperature", False)]
)
def test_caller_and_address_may_be_given(name: str, expected: bool, use_model: Callable[..., Any]) -> None:
    """Credentials, addresses and timeouts may be given to a classifier that is opened, other options may not."""
    use_model(FakeClient(LABELS, {}, name="openai/x"), "openai/x")
    task = Task(name="n", labels=LABELS, prompt="p", model=ModelSettings(name="openai/x"))
    refusal = pytest.raises(ConfigurationError, match="it could change the predictions")
    with contextlib.nullcontext() if expected else refusal:
        tuned(task).open(options={name: "1"}).close()
