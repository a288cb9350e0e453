"""Tests of the looper's YAML: what is documented is read, and mistakes have their lines."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from yaml import safe_load

from calibrant.assembly import open_classifier, read_looper
from calibrant.cascade import CascadeSettings
from calibrant.core import ConfigurationError, Task
from calibrant.inference import Classifier
from fault_server import FaultServer

# Keys and values as the looper's page documents them.
DOCUMENTED = """\
algorithm:
  type: confidence
  confidence:
    confidence_method: hybrid        # one of five
    threshold: 0.72
    escalation_order: small_to_large
    cost_quality_tradeoff: 0.3
    token_filter: stop
    on_error: skip
    hybrid_weights:
      logprob_weight: 0.5
      margin_weight: 0.5
    # of another method
    verifier_server_url: ""
    verifier_timeout_seconds: 0
"""
KNOWN = (
    "confidence_method, threshold, escalation_order, cost_quality_tradeoff, token_filter, on_error, hybrid_weights, "
    "verifier_server_url, verifier_timeout_seconds"
)
SEE = ": see the documentation of the confidence looper."
ALIAS = f"expected every value to be written out, got an alias{SEE}"


def read(directory: Path, yaml: str) -> CascadeSettings:
    """Return the settings of a file with this content."""
    path = directory / "looper.yaml"
    path.write_text(yaml)
    return read_looper(path)


def mistakes(directory: Path, yaml: str | bytes) -> list[str]:
    """Return the lines of the error a file raises, with the path made short."""
    path = directory / "looper.yaml"
    path.write_bytes(yaml.encode() if isinstance(yaml, str) else yaml)
    with pytest.raises(ConfigurationError) as caught:
        read_looper(str(path))
    return str(caught.value).replace(f"{directory}/", "").split("\n")


def inner(yaml: str) -> str:
    """Return the innermost mapping of a nested configuration alone."""
    return "".join(f"{line[4:]}\n" for line in yaml.splitlines()[3:])


def test_the_documented_configuration_is_read(tmp_path: Path) -> None:
    """Every key of the documented configuration keeps its value."""
    expected = safe_load(DOCUMENTED)["algorithm"]["confidence"]
    assert read(tmp_path, DOCUMENTED).model_dump(exclude_unset=True) == expected


def test_every_level_of_nesting_is_read(tmp_path: Path) -> None:
    """The looper's file may hold the inner keys, the algorithm, or a decision with its models."""
    whole = read(tmp_path, DOCUMENTED)
    algorithm = "".join(f"{line[2:]}\n" for line in DOCUMENTED.splitlines()[1:])
    for yaml in (inner(DOCUMENTED), algorithm, DOCUMENTED.replace("  type: confidence\n", "")):
        assert read(tmp_path, yaml) == whole
    decision = f"modelRefs:\n  - model: qwen2.5:3b\n  - modelName: qwen3:14b\n{DOCUMENTED}"
    found = read(tmp_path, decision)
    assert [model.name for model in found.models] == ["qwen2.5:3b", "qwen3:14b"]
    assert found.model_copy(update={"models": ()}) == whole


def test_on_error_may_stand_outside(tmp_path: Path) -> None:
    """`on_error` may stand beside the confidence section, but twice raises ConfigurationError."""
    yaml = "algorithm:\n  type: confidence\n  on_error: fail\n  confidence:\n    threshold: 0.5\n"
    assert read(tmp_path, yaml).on_error == "fail"
    assert mistakes(tmp_path, yaml + "    on_error: skip\n") == [
        "looper.yaml:6: on_error: expected it once, got it twice: keep one."
    ]


@pytest.mark.parametrize("yaml", ["threshold: 0.5", "algorithm:\n  type: confidence", "{}", "confidence: {}"])
def test_missing_keys_have_the_section_s_defaults(tmp_path: Path, yaml: str) -> None:
    """A looper's file without keys gives the defaults of [cascade]."""
    found, plain = read(tmp_path, yaml), CascadeSettings()
    assert found.model_copy(update={"threshold": None}) == plain


def test_a_key_without_a_value_is_left_out(tmp_path: Path) -> None:
    """A null value in the looper's file counts as a missing key."""
    assert read(tmp_path, "threshold:\non_error: null\nhybrid_weights: ~\n") == CascadeSettings()


@pytest.mark.parametrize("method", ["avg_logprob", "margin", "self_verify", "automix_entailment"])
def test_hybrid_weights_beside_another_method_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """The documented file with another method is read, and one sentence says that the weights are not used."""
    switched = DOCUMENTED.replace("confidence_method: hybrid", f"confidence_method: {method}")
    with caplog.at_level("WARNING", logger="calibrant"):
        found = read(
            tmp_path, switched.replace('""', "http://127.0.0.1:1") if "automix" in method else switched
        )
    assert (found.confidence_method, found.hybrid_weights, found.threshold) == (method, None, 0.72)
    assert [message.replace(f"{tmp_path}/", "") for message in caplog.messages] == [
        f"looper.yaml:10: hybrid_weights are not used with confidence_method '{method}'."
    ]
    caplog.clear()
    assert read(tmp_path, DOCUMENTED).hybrid_weights is not None
    assert caplog.messages == []


@pytest.mark.parametrize("zero", ["0", "0.0", "0e0", "-0.0"])
def test_zero_is_zero(tmp_path: Path, zero: str) -> None:
    """A value of 0 in the looper's file is kept as 0."""
    found = read(tmp_path, f"threshold: {zero}\ncost_quality_tradeoff: {zero}\n")
    assert (found.threshold, found.cost_quality_tradeoff, found.native_threshold) == (0.0, 0.0, None)
    yaml = f"confidence_method: hybrid\nhybrid_weights: {{logprob_weight: {zero}, margin_weight: 1}}\n"
    weights = read(tmp_path, yaml).hybrid_weights
    assert weights is not None
    assert (weights.logprob_weight, weights.margin_weight) == (0.0, 1.0)


@pytest.mark.parametrize("method", ["", "confidence_method: avg_logprob\n"])
@pytest.mark.parametrize("value", [-1, -0.25, -3.5])
def test_a_negative_threshold_is_native(tmp_path: Path, method: str, value: float) -> None:
    """A negative threshold becomes `native_threshold`, in the unit of avg_logprob."""
    found = read(tmp_path, f"{method}threshold: {value}\n")
    assert (found.threshold, found.native_threshold) == (None, value)


def test_numbers_without_a_point_are_numbers(tmp_path: Path) -> None:
    """1e-1 is read as a number, and a quoted number raises ConfigurationError."""
    assert read(tmp_path, "threshold: 1e-1").threshold == 0.1
    assert mistakes(tmp_path, 'threshold: "0.1"') == [
        "looper.yaml:1: threshold: Input should be a valid number, got '0.1'."
    ]


@pytest.mark.parametrize(
    ("yaml", "messages"),
    [
        pytest.param(
            DOCUMENTED.replace("escalation_order", "escalation"),
            [f"6: unknown key 'algorithm.confidence.escalation': expected one of {KNOWN}."],
            id="unknown-key",
        ),
        pytest.param(
            "# a comment\n\nmax_response_bytes: 0\n",
            [f"3: unknown key 'max_response_bytes': expected one of modelRefs, algorithm, type, confidence, {KNOWN}."],
            id="unknown-bare-key",
        ),
        pytest.param(
            "algorithm:\n  type: confidence\n  threshold: 0.5\n",
            ["3: unknown key 'algorithm.threshold': expected one of type, confidence, on_error."],
            id="key-of-another-level",
        ),
        pytest.param(
            DOCUMENTED.replace("logprob_weight: 0.5", "logprob_weight: 0.6"),
            [
                ("12: hybrid_weights.margin_weight: Input should add up to 1 with logprob_weight = 0.6, got 0.5: "
                "give both weights.")
            ],
            id="weights",
        ),
        pytest.param("threshold: .nan\n", ["1: threshold: Input should be a finite number, got nan."], id="nan"),
        pytest.param(
            "threshold: 1.5\non_error: maybe\n",
            [
                "1: threshold: Input should be less than or equal to 1, got 1.5.",
                "2: on_error: Input should be 'skip' or 'fail', got 'maybe'.",
            ],
            id="all-mistakes-at-once",
        ),
        pytest.param("on_error: 2024-01-01\n", [f"1: expected text or a number, got '2024-01-01'{SEE}"], id="date"),
        pytest.param("on_error: 2024-13-41\n", [f"1: expected text or a number, got '2024-13-41'{SEE}"], id="no-date"),
        pytest.param(
            "algorithm:\n  type: ratings\n  confidence: {}\n",
            ["2: type: expected 'confidence', got 'ratings': read another file."],
            id="another-algorithm",
        ),
        pytest.param("algorithm: a\n", [f"1: algorithm: expected a mapping, got 'a'{SEE}"], id="no-mapping"),
        pytest.param("- a\n", [f"1: the configuration: expected a mapping, got ['a']{SEE}"], id="a-list"),
        pytest.param("", [f"1: the configuration: expected a mapping, got None{SEE}"], id="empty"),
        pytest.param(
            "threshold: 0.5\n\nthreshold: 0.6\n", [f"3: threshold: expected it once, got it twice{SEE}"], id="twice"
        ),
        pytest.param(
            "modelRefs:\n  - model: a\n  - model: b\n    weight: 1\n  - c\n",
            [
                "3: modelRefs: expected a list of {model: NAME}, got {'model': 'b', 'weight': 1}.",
                "5: modelRefs: expected a list of {model: NAME}, got 'c'.",
            ],
            id="models",
        ),
        pytest.param("modelRefs: a\n", ["1: modelRefs: expected a list of {model: NAME}, got 'a'."], id="one-model"),
        pytest.param("confidence: &a {threshold: 1}\nalgorithm:\n  confidence: *a\n", [f"3: {ALIAS}"], id="alias"),
        pytest.param("confidence: &a\n  confidence: *a\n", [f"2: {ALIAS}"], id="endless"),
        pytest.param("a: 1\n b: 2\n", ["2: not valid YAML: mapping values are not allowed here."], id="indentation"),
        pytest.param("a: 1\n---\nb: 2\n", ["2: not valid YAML: but found another document."], id="two-documents"),
        pytest.param(
            "a: !!python/object:os.system x\n",
            [
                ("1: not valid YAML: could not determine a constructor for the tag "
                "'tag:yaml.org,2002:python/object:os.system'.")
            ],
            id="code",
        ),
        pytest.param("[" * 5000, ["1: expected a few levels of mappings, got very many."], id="very-deep"),
    ],
)  # fmt: skip
def test_a_mistake_names_file_line_and_remedy(tmp_path: Path, yaml: str, messages: list[str]) -> None:
    """Every mistake in the looper's file raises ConfigurationError with its line."""
    assert mistakes(tmp_path, yaml) == [f"looper.yaml:{message}" for message in messages]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A looper's file that is missing, or is a directory, raises ConfigurationError."""
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigurationError, match="no such file: expected a confidence looper's YAML"):
            read_looper(path)


def test_the_file_must_be_utf8(tmp_path: Path) -> None:
    """A file that is not UTF-8 raises ConfigurationError with line and byte; a BOM is accepted."""
    assert mistakes(tmp_path, b"# ok\n# caf\xe9\n") == [
        "looper.yaml:2: expected UTF-8 text, got the byte 0xe9: save the file as UTF-8."
    ]
    (tmp_path / "looper.yaml").write_bytes(b"\xef\xbb\xbfthreshold: 0.5\r\n")
    assert read_looper(tmp_path / "looper.yaml").threshold == 0.5


def test_an_empty_token_filter_is_unset(tmp_path: Path) -> None:
    """An empty `token_filter` in the looper's file gives the default filter."""
    assert read(tmp_path, 'token_filter: ""\n').token_filter == CascadeSettings().token_filter


TASK = """\
name = "films"
labels = ["negative", "positive"]
field = "sentiment"
prompt = "Is the review negative or positive? Answer negative or positive."
[cascade]
file = "looper.yaml"
"""


def opened(directory: Path, models: str) -> Classifier:
    """Return the cascade of the documented configuration and these models."""
    (directory / "looper.yaml").write_text(DOCUMENTED)
    (directory / "task.toml").write_text(TASK + models)
    return open_classifier(Task.from_file(directory / "task.toml"))


def test_the_documented_configuration_accepts_a_server(tmp_path: Path) -> None:
    """The documented configuration works with a server, and gives the confidence worked out by hand."""

    def rule(text: str) -> tuple[str, float]:
        return ("positive", 0.95) if "lovely" in text else ("positive", 0.6)

    with FaultServer(["negative", "positive"], rule, field="sentiment") as server:
        one = f'[[cascade.models]]\nname = "openai/NAME"\napi_base = "{server.api_base}"\noptions = {{api_key = "k"}}\n'
        cascade = opened(tmp_path, one.replace("NAME", "small-7b") + one.replace("NAME", "large-70b"))
        sure, unsure = cascade.classify_many(["lovely", "so so"])
        cascade.close()
    expected = 0.5 * (3 + math.log(0.95)) / 3 + 0.5 * (1 - math.exp(-math.log(19) / 3))
    assert (sure.label, sure.accepted, sure.reason, len(sure.steps)) == ("positive", True, "", 1)
    assert sure.confidence == pytest.approx(expected)
    assert (unsure.accepted, unsure.reason, len(unsure.steps)) == (False, "no model was sure enough", 2)


@pytest.mark.real_model
def test_the_documented_configuration_accepts_the_embedded_model(tmp_path: Path) -> None:
    """The documented configuration works with the embedded model, which accepts a sure answer."""
    one = '[[cascade.models]]\nname = "local/smollm2-135m"\n'
    cascade = opened(tmp_path, one + one + 'prompt = "Tell negative from positive reviews."\n')
    found = cascade.classify("The answer is negative.")
    cascade.close()
    assert (found.label, found.accepted) == ("negative", True)
    assert found.steps[0].confidence is not None
