"""Tests of the ``[cascade]`` section: its keys, its defaults and its mistakes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pydantic
import pytest

from calibrant.assembly import cascade_settings
from calibrant.cascade import CascadeSettings
from task_files import HEAD, mistakes, read

MODELS = '[[cascade.models]]\nname = "small"\n[[cascade.models]]\nname = "large"\n'
ENTAILMENT = 'confidence_method = "automix_entailment"\n'
URL = 'verifier_server_url = "http://127.0.0.1:8889"\n'
BESIDE = "Input should come with confidence_method = '{}', got {}: set it, or leave it out."
ONE = "[[cascade.models]]\nname = 'a'\n"
LOOPER = "[cascade]\nfile = 'looper.yaml'\n"
UNUSED = (
    "4: expected no [model] beside [cascade]: it would not be asked; name it under [[cascade.models]], or remove "
    "it."
)
ADDRESS = (
    "Input should be an address such as 'http://127.0.0.1:8889', without credentials, query or fragment, got {}: "
    "say where the verifier answers."
)


def cascade(directory: Path, keys: str) -> CascadeSettings:
    """Return the settings of a section with these keys and two models."""
    found = cascade_settings(read(directory, f"{HEAD}[cascade]\n{keys}{MODELS}"))
    assert found is not None
    return found


def test_every_key_is_parsed(tmp_path: Path) -> None:
    """Every key of the section and of its models keeps its value."""
    toml = f"""{HEAD}
[cascade]
confidence_method = "hybrid"
threshold = 0.72
escalation_order = "automix"
cost_quality_tradeoff = 0.4
token_filter = "stop"
on_error = "fail"
verifier_server_url = ""
verifier_timeout_seconds = 0
max_escalations = 1
max_tokens = 500
max_cost = 0.01
deadline_seconds = 9.5
verify_last = false
[cascade.hybrid_weights]
logprob_weight = 0.25
margin_weight = 0.75
[[cascade.models]]
name = "openai/small"
prompt = "q"
alias = "first"
cost = 1
size = "7b"
quality = 0.6
api_base = "http://localhost:1/v1"
scoring = "decode"
[cascade.models.options]
max_tokens = 20
[[cascade.models]]
name = "openai/large"
size = 70
"""
    found = cascade_settings(read(tmp_path, toml))
    assert found is not None
    assert (
        found.model_dump(mode="json", exclude_unset=True, exclude_none=True) == tomllib.loads(toml)["cascade"]
    )


def test_defaults_are_those_of_the_looper(tmp_path: Path) -> None:
    """The defaults of [cascade] are those of the looper, except for the token filter."""
    assert cascade(tmp_path, "").model_dump(exclude={"models"}) == {
        "file": None,
        "confidence_method": "avg_logprob",
        "threshold": None,
        "native_threshold": None,
        "escalation_order": "small_to_large",
        "cost_quality_tradeoff": 0.3,
        "token_filter": "label",
        "on_error": "skip",
        "hybrid_weights": None,
        "verifier_server_url": None,
        "verifier_timeout_seconds": 0.0,
        "context": None,
        "verify_last": None,
        "max_escalations": None,
        "max_tokens": None,
        "max_cost": None,
        "deadline_seconds": None,
    }


def test_a_task_without_the_section_has_no_cascade(tmp_path: Path) -> None:
    """A task without [cascade] has no cascade settings."""
    assert cascade_settings(read(tmp_path, HEAD)) is None


@pytest.mark.parametrize(
    "key", ["threshold", "native_threshold", "cost_quality_tradeoff", "max_escalations", "max_cost"]
)
def test_zero_is_zero(tmp_path: Path, key: str) -> None:
    """A setting of 0 in [cascade] is kept as 0 and not taken as missing."""
    found = getattr(cascade(tmp_path, f"{key} = 0\n"), key)
    assert found == 0
    assert found is not None


def test_a_cost_of_zero_is_zero(tmp_path: Path) -> None:
    """A cost of 0 for a model is kept as 0."""
    found = cascade_settings(read(tmp_path, f'{HEAD}[[cascade.models]]\nname = "a"\ncost = 0\n'))
    assert found is not None
    assert found.models[0].cost == 0.0


@pytest.mark.parametrize(
    ("keys", "line", "message"),
    [
        ("treshold = 0.5", 5, "unknown key 'cascade.treshold': expected one of file, confidence_method,"),
        ('confidence_method = "avg"', 5, "cascade.confidence_method: Input should be 'avg_logprob', 'margin',"),
        ('escalation_order = "largest"', 5, "cascade.escalation_order: Input should be 'size', "),
        ('token_filter = "none"', 5, "cascade.token_filter: Input should be 'all', 'stop', "),
        ('on_error = "retry"', 5, "cascade.on_error: Input should be 'skip' or 'fail', got 'retry'."),
        ("threshold = 1.01", 5, "cascade.threshold: Input should be less than or equal to 1, got 1.01."),
        (
            "threshold = -1",
            5,
            (
                "cascade.threshold: Input should be a confidence in [0, 1], got -1: a value in the method's own unit "
                "goes into native_threshold of a task file."
            ),
        ),
        ("threshold = nan", 5, "cascade.threshold: Input should be a finite number, got nan."),
        ("native_threshold = inf", 5, "cascade.native_threshold: Input should be a finite number, got inf."),
        (
            "\nthreshold = 0\nnative_threshold = -1",
            7,
            "cascade.native_threshold: Input should not come beside threshold, got -1: keep one of the two.",
        ),
        (
            "cost_quality_tradeoff = 2",
            5,
            "cascade.cost_quality_tradeoff: Input should be less than or equal to 1, got 2.",
        ),
        (
            "hybrid_weights = { logprob_weight = 0.5 }",
            5,
            "cascade.hybrid_weights: " + BESIDE.format("hybrid", "{'logprob_weight': 0.5}"),
        ),
        (
            'confidence_method = "hybrid"\n[cascade.hybrid_weights]\nlogprob_weight = 0.3',
            6,
            ("cascade.hybrid_weights.margin_weight: Input should add up to 1 with logprob_weight = 0.3, got 0.5: "
            "give both weights."),
        ),
        (
            'confidence_method = "hybrid"\n[cascade.hybrid_weights]\nmargin = 0.3',
            7,
            "unknown key 'cascade.hybrid_weights.margin': expected one of logprob_weight, margin_weight.",
        ),
        (URL, 5, "cascade.verifier_server_url: " + BESIDE.format("automix_entailment", "'http://127.0.0.1:8889'")),
        (
            "verifier_timeout_seconds = 5",
            5,
            "cascade.verifier_timeout_seconds: " + BESIDE.format("automix_entailment", "5"),
        ),
        (ENTAILMENT, 4, f"cascade.verifier_server_url: {ADDRESS.format('None')}"),
        (f'{ENTAILMENT}verifier_server_url = ""', 6, "cascade.verifier_server_url: " + ADDRESS.format("''")),
        (
            f"{ENTAILMENT}{URL}verifier_timeout_seconds = -1",
            7,
            "cascade.verifier_timeout_seconds: Input should be greater than or equal to 0, got -1.",
        ),
        ("max_escalations = -1", 5, "cascade.max_escalations: Input should be greater than or equal to 0, got -1."),
        ("max_cost = inf", 5, "cascade.max_cost: Input should be a finite number, got inf."),
        ("models = 3", 5, "cascade.models: Input should be a valid tuple, got 3."),
    ],
)  # fmt: skip
def test_a_wrong_key_names_file_line_and_remedy(tmp_path: Path, keys: str, line: int, message: str) -> None:
    """A wrong key or value in [cascade] raises ConfigurationError with its line."""
    models = "" if keys.startswith("models") else MODELS
    found = mistakes(tmp_path, f"{HEAD}[cascade]\n{keys}\n{models}")
    assert any(text.startswith(f"task.toml:{line}: {message}") for text in found), found


@pytest.mark.parametrize(
    ("entry", "line", "message"),
    [
        ("nme = 'x'", 8, "unknown key 'cascade.models.nme': expected one of name, api_base, space, scoring,"),
        ("cost = -1", 8, "cascade.models.cost: Input should be greater than or equal to 0, got -1."),
        ("quality = 1.5", 8, "cascade.models.quality: Input should be less than or equal to 1, got 1.5."),
        ("alias = ''", 8, "cascade.models.alias: String should have at least 1 character, got ''."),
        ("size = 0", 8, "cascade.models.size: Input should be a size such as '7b' or 0.5, got 0:"),
        (
            "[cascade.models.options]\nx = 1\n[cascade.model]",
            10,
            "unknown key 'cascade.model': expected one of",
        ),
        (
            "scoring = 'guess'",
            8,
            "cascade.models.scoring: Input should be 'auto', 'fused', 'verbalised', 'exact',",
        ),
    ],
)
def test_a_wrong_model_key_names_its_line(tmp_path: Path, entry: str, line: int, message: str) -> None:
    """A wrong key of a model raises ConfigurationError with that model's line."""
    found = mistakes(tmp_path, f"{HEAD}{ONE}[[cascade.models]]\nname = 'b'\n{entry}\n")
    assert any(text.startswith(f"task.toml:{line}: {message}") for text in found), found


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        pytest.param(
            f"{ONE}[[cascade.models]]\ncost = 1\n", "6: missing key 'cascade.models.name': add it.", id="no name"
        ),
        pytest.param(
            f"{ONE}[cascade.models.options]\nx = 1\n[[cascade.models]]\nname = 'b'\noptions = 3\n",
            "10: cascade.models.options: Input should be a valid dictionary, got 3.",
            id="options, whose table belongs to the entry above it",
        ),
        pytest.param(
            "[cascade]\nthreshold = 0.5\n",
            "4: expected at least one [[cascade.models]], got none: name the models to be asked in turn.",
            id="neither models nor a looper's file",
        ),
        pytest.param(f"[model]\nname = 'x'\n{MODELS}", UNUSED, id="a model beside the cascade"),
        pytest.param(f"[model]\nname = 'x'\n{LOOPER}", UNUSED, id="a model beside the looper's file"),
    ],
)  # fmt: skip
def test_a_mistake_of_a_section_names_line_and_remedy(tmp_path: Path, toml: str, message: str) -> None:
    """A section that is wrong as a whole raises ConfigurationError with one message."""
    assert mistakes(tmp_path, HEAD + toml) == [f"task.toml:{message}"]


def test_a_cascade_takes_no_label_prior(tmp_path: Path) -> None:
    """A prior correction beside [cascade] raises ConfigurationError."""
    (message,) = mistakes(tmp_path, f'{HEAD}[calibration]\nprior_correction = "batch"\n{MODELS}')
    assert message.startswith("task.toml:5: expected no prior_correction beside [cascade]")


def test_the_looper_s_path_is_relative(tmp_path: Path) -> None:
    """`cascade.file` is relative to the task file."""
    found = cascade_settings(read(tmp_path, f"{HEAD}{LOOPER}max_tokens = 5\n{MODELS}"))
    assert found is not None
    assert (found.file, found.max_tokens) == (tmp_path / "looper.yaml", 5)


@pytest.mark.parametrize("key", ["threshold = 0.5", 'on_error = "skip"', "native_threshold = -1"])
def test_a_key_has_one_place(tmp_path: Path, key: str) -> None:
    """A key that belongs to the looper's file raises ConfigurationError beside `cascade.file`."""
    name = key.split(maxsplit=1)[0]
    assert mistakes(tmp_path, f"{HEAD}{LOOPER}{key}\n") == [
        f"task.toml:6: expected no 'cascade.{name}' beside 'cascade.file': set it in that file, or leave the file out."
    ]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8889", "https://verifier.example/v1", "http://[::1]:8889/"]
)
def test_plain_verifier_addresses_are_taken(url: str) -> None:
    """A verifier's address may have a port and a path."""
    settings = CascadeSettings(confidence_method="automix_entailment", verifier_server_url=url)
    assert settings.verifier_server_url == url


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8889",
        "ftp://host",
        "http://",
        "http://user:secret@host",
        "http:host",
        "http:\\\\host",
        "http://host?x=1",
        "http://host#x",
        "http://ho st",
        "http://host\n",
        "http://host:port",
        "http://host:99999",
        "http://[::1",
    ],
)
def test_other_verifier_addresses_are_refused(url: str) -> None:
    """A verifier's address with credentials or in a wrong form raises ValidationError."""
    with pytest.raises(pydantic.ValidationError, match="Input should be an address"):
        CascadeSettings(confidence_method="automix_entailment", verifier_server_url=url)
