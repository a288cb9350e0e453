"""Tests of stored examinations, and of the setups that they forbid."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import CompletionRequest, ConfigurationError, LogprobSpace, NextTokens, StateError
from calibrant.inference import Classifier, Examination, Finding, FindingVerdict, _examinations, examine
from calibrant.inference._examinations import (
    Thresholds,
    load_examination,
    refuse_misleading,
    save_examination,
)
from calibrant.testing import FakeClient

LABELS = ("Animals", "Food", "Music", "Weather")
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
SECRET = "s3cr3t-value"  # noqa: S105 (made up)


def model(name: str = "patient", *, illegal: float = 0.0) -> FakeClient:
    """Return a model that gives every label a high probability."""
    return FakeClient(LABELS, {}, default=("Food", 0.97), field="topic", illegal_mass=illegal, name=name)


class Continuing(FakeClient):
    """A model with next-token probabilities."""

    async def check_labels(self, labels: Sequence[str]) -> None:
        """Take any labels."""

    @asynccontextmanager
    async def continuing(self, _: CompletionRequest) -> AsyncIterator[Any]:
        """Return a row that knows one label."""

        class Row:
            async def next_tokens(self, _: str) -> NextTokens:
                return NextTokens(top=((b"Food", -0.1),))

        yield Row()


@pytest.fixture
def opened(use_model: Callable[..., Any]) -> list[object]:
    """Record what is opened by name, by examinations and by classifiers."""
    names: list[object] = []

    def open_fake(name: object, **_: Any) -> FakeClient:
        names.append(name)
        return model(str(name))

    for name in ("openai/x", "openai/y", "local/x", "x"):
        use_model(open_fake, name)
    return names


# --- records ------------------------------------------------------------------------------------


def examined(model: str = "openai/x", *, space: str = "raw", **changes: Any) -> Examination:
    """Return an examination with some of its fields replaced."""
    fields: dict[str, Any] = {
        "api_base": None,
        "parameters": {},
        "examined": NOON,
        "findings": (
            Finding(
                feature="space", verdict=FindingVerdict.PROBLEM, detail="Raw: so it is.", remedy="Set it."
            ),
            Finding(feature="units", verdict=FindingVerdict.OK, detail="Fine."),
        ),
        "space": LogprobSpace(space),
        "scoring": "decode",
        "thresholds": Thresholds(high=0.95, low=0.8),
        "calls": 11,
        "top_logprobs": 20,
        "label_mass": 0.5,
        "answer_form": "schema",
        **changes,
    }
    return Examination(model=model, **fields)


def test_a_record_is_json_with_a_version() -> None:
    """The record holds every field and a version, and reads back as an equal examination."""
    record = examined().to_record()
    assert json.loads(json.dumps(record)) == {
        "version": 1,
        "model": "openai/x",
        "api_base": None,
        "parameters": {},
        "examined": "2026-03-04T12:00:00+00:00",
        "findings": [
            {"feature": "space", "verdict": "problem", "detail": "Raw: so it is.", "remedy": "Set it."},
            {"feature": "units", "verdict": "ok", "detail": "Fine.", "remedy": ""},
        ],
        "space": "raw",
        "scoring": "decode",
        "thresholds": {"high": 0.95, "low": 0.8},
        "calls": 11,
        "top_logprobs": 20,
        "label_mass": 0.5,
        "answer_form": "schema",
    }
    assert Examination.from_record(record) == examined()
    undated = examined(examined=None, label_mass=None)
    assert Examination.from_record(undated.to_record()) == undated


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"space": "cooked"},
        {"scoring": "guess"},
        {"findings": [{"feature": "space", "verdict": "ok", "detail": "", "more": 1}]},
        {"thresholds": None},
        {"examined": "yesterday"},
    ],
)
def test_a_damaged_record_is_refused_and_ignored(damage: dict[str, Any], opened: list[Any]) -> None:
    """`from_record` raises StateError; classifiers ignore the file."""
    path = save_examination(examined())
    record = examined().to_record() | damage
    with pytest.raises(StateError, match="Examine again"):
        Examination.from_record(record)
    for content in (json.dumps(record), "{", "[]"):
        path.write_text(content)
        assert load_examination("openai/x") is None
    Classifier(model="openai/x", labels=LABELS)
    assert len(opened) == 1


@pytest.mark.parametrize("missing", sorted(set(examined().to_record())))
def test_a_record_with_a_hole_is_refused(missing: str) -> None:
    """Every missing key raises StateError."""
    record = examined().to_record()
    del record[missing]
    with pytest.raises(StateError):
        Examination.from_record(record)


def test_a_file_that_cannot_be_read_is_ignored(calibrant_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_examination` returns None for an unreadable file; saving raises StateError."""
    path = save_examination(examined())
    path.unlink()
    path.mkdir()
    assert load_examination("openai/x") is None
    monkeypatch.setenv("CALIBRANT_HOME", str(path / "file"))
    (path / "file").write_text("")
    assert load_examination("openai/x") is None
    with pytest.raises(StateError, match="set CALIBRANT_HOME to a folder that can be written"):
        save_examination(examined())
    monkeypatch.delenv("CALIBRANT_HOME")

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert load_examination("openai/x") is None
    assert calibrant_home.is_dir()


def test_a_record_under_anothers_name_is_ignored() -> None:
    """A record copied to another model's file is not returned for that model."""
    path = save_examination(examined())
    other = _examinations.record_path(("openai/y", None, {}))
    other.write_bytes(path.read_bytes())
    assert load_examination("openai/x") == examined()
    assert load_examination("openai/y") is None


def test_records_differ_by_model_endpoint_options() -> None:
    """Records are kept apart by model, endpoint and options."""
    found = [
        examined(),
        examined("openai/y"),
        examined(api_base="http://h/v1"),
        examined(parameters={"logit_bias": {"5": 1}}),
        examined(parameters={"max_tokens": 9}),
    ]
    assert len({save_examination(one) for one in found}) == 5
    assert load_examination("openai/x") == found[0]
    path = save_examination(examined(calls=12))
    assert len(os.listdir(path.parent)) == 5  # noqa: PTH208 (names only)
    assert load_examination("openai/x") == examined(calls=12)
    assert load_examination("openai/y", options={}) == found[1]
    assert load_examination("openai/x", "http://h/v1/") == found[2]
    assert load_examination("openai/x", options={"api_base": "http://h/v1"}) == found[2]
    assert load_examination("openai/x", options={"base_url": "http://h/v1"}) == found[2]
    assert load_examination("openai/x", None, {"logit_bias": {5: 1}}) == found[3]
    assert load_examination("openai/x", options={"max_tokens": 9}) == found[4]
    assert load_examination("openai/x", options={"max_tokens": 8}) is None


@pytest.mark.usefixtures("opened")
def test_credentials_and_timeouts_are_not_stored() -> None:
    """The record holds no credentials or timeouts, so other credentials find the same record."""
    options = {
        "api_key": SECRET,
        "aws_secret_access_key": SECRET,
        "azure_ad_token": SECRET,
        "vertex_credentials": SECRET,
        "extra_headers": {"Authorization": f"Bearer {SECRET}"},
        "extra_body": {
            "clientSecret": SECRET,
            "API_KEY": SECRET,
            "maxTokens": 5,
            "min_p": 0.1,
            "names": ["a", f"Bearer {SECRET}"],
        },
        "client": object(),
        "timeout": 3,
        "stream_timeout": 4,
        "max_tokens": 9,
        "user": "sk-abcdefgh1234",
    }
    found = examine(
        "openai/x", api_base=f"https://me:{SECRET}@h:8/v1/?api_key={SECRET}&version=2#x", options=options
    )
    assert found.api_base == "https://h:8/v1?version=2"
    assert found.parameters == {
        "extra_body": {"maxTokens": 5, "min_p": 0.1, "names": ["a", "[redacted 302fb36d]"]},
        "client": "object",
        "max_tokens": 9,
        "user": "[redacted b85bf13c]",
    }
    text = save_examination(found).read_text()
    assert SECRET not in text
    assert "sk-abc" not in text
    others = {**options, "api_key": "another", "timeout": 60, "client": object()}
    assert load_examination("openai/x", "https://h:8/v1?version=2", others) == found


def test_details_are_redacted_and_any_text() -> None:
    """A stored detail holds no key, and half a surrogate pair reads back unchanged."""
    key = Finding(feature="exact", verdict=FindingVerdict.UNKNOWN, detail=f"got api_key={SECRET}")
    half = Finding(feature="alignment", verdict=FindingVerdict.UNKNOWN, detail="came '\ud83d'")
    assert SECRET not in save_examination(examined(findings=(key, half))).read_text()
    found = load_examination("openai/x")
    assert found is not None
    assert found.findings[1] == half


@pytest.mark.parametrize(
    ("home", "cache", "expected"),
    [
        ("/a", "/b", "/a/doctor"),
        (None, "/b", "/b/calibrant/doctor"),
        (None, "relative", "/home/u/.cache/calibrant/doctor"),
        (None, None, "/home/u/.cache/calibrant/doctor"),
        ("~/c", None, "/home/u/c/doctor"),
    ],
)
def test_where_records_lie(
    monkeypatch: pytest.MonkeyPatch, home: str | None, cache: str | None, expected: str
) -> None:
    """The folder is CALIBRANT_HOME, or else the user's cache folder."""
    monkeypatch.setenv("HOME", "/home/u")
    for name, value in (("CALIBRANT_HOME", home), ("XDG_CACHE_HOME", cache)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    path = _examinations.record_path(("openai/x", None, {}))
    assert (str(path.parent), len(path.stem)) == (expected, 64)


# --- setups that are refused --------------------------------------------------------------------


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("space", [None, "masked"])
@pytest.mark.parametrize("scoring", [None, "decode"])
def test_a_raw_model_is_not_read_as_masked(space: str | None, scoring: Any) -> None:
    """A raw model read as masked raises ConfigurationError with finding, date, remedy and command."""
    save_examination(examined())
    with pytest.raises(ConfigurationError) as caught:
        Classifier(model="openai/x", labels=LABELS, space=space, scoring=scoring)
    assert str(caught.value) == (
        "openai/x: confidence would mislead. An examination on 2026-03-04 found: Raw: so it is. Set it. "
        "To examine the model again: calibrant doctor openai/x"
    )


@pytest.mark.usefixtures("opened")
def test_right_findings_refuse_the_wrong_space() -> None:
    """A finding that a model is raw forbids the masked space, also without a remedy."""
    fine = Finding(feature="space", verdict=FindingVerdict.OK, detail="Raw: fine.")
    save_examination(examined(findings=(fine,), examined=None))
    with pytest.raises(
        ConfigurationError, match=r'An examination found: Raw: fine\. Set space = "raw" under'
    ):
        Classifier(model="openai/x", labels=LABELS)


@pytest.mark.usefixtures("opened")
def test_the_command_names_endpoint_and_options() -> None:
    """The error ends with a `calibrant doctor` command that holds endpoint and options, but no key."""
    options = {"api_base": "http://h/v1?a=1&b=2", "seed": 7, "user": "a b", "api_key": SECRET}
    save_examination(
        examined(api_base=options["api_base"], parameters={"seed": 7, "user": "a b"})  # type: ignore[arg-type]
    )
    with pytest.raises(ConfigurationError) as caught:
        Classifier(model="openai/x", labels=LABELS, options=options)
    assert str(caught.value).endswith(
        "calibrant doctor openai/x --api-base 'http://h/v1?a=1&b=2' --option seed=7 --option 'user=a b'"
    )


@pytest.mark.parametrize(
    "setup",
    [
        {"space": "raw"},
        {"space": "none"},
        {"model": "openai/y"},
        {"options": {"api_base": "http://other"}},
        {"options": {"seed": 7}},
    ],
)
def test_other_setups_are_not_refused(setup: dict[str, Any], opened: list[Any]) -> None:
    """A setup with another space, model, endpoint or option is accepted."""
    save_examination(examined())
    Classifier(**{"model": "openai/x", "labels": LABELS, **setup})
    assert len(opened) == 1


def test_exact_scoring_is_not_refused(use_model: Callable[..., Any]) -> None:
    """If exact scoring is the default, decoding in masked space raises ConfigurationError."""
    save_examination(examined("local/x"))
    use_model(lambda *_, **__: Continuing(LABELS, {}), "local/x")
    Classifier(model="local/x", labels=LABELS)
    with pytest.raises(ConfigurationError, match="confidence would mislead"):
        Classifier(model="local/x", labels=LABELS, scoring="decode")


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("space", ["raw", "masked"])
def test_numbers_that_are_no_logprobs_are_not_decoded(space: str) -> None:
    """Invalid log-probabilities forbid every space except "none"."""
    bad = Finding(feature="units", verdict=FindingVerdict.PROBLEM, detail="Probabilities.", remedy="Sample.")
    save_examination(examined(findings=(bad,), space="none"))
    with pytest.raises(ConfigurationError, match=r"found: Probabilities\. Sample\."):
        Classifier(model="openai/x", labels=LABELS, space=space)
    Classifier(model="openai/x", labels=LABELS, space="none")


@pytest.mark.parametrize(
    ("verdict", "space"), [("unknown", "raw"), ("ok", "masked"), ("warning", "masked"), ("problem", "masked")]
)
def test_what_does_not_mislead_is_not_refused(verdict: str, space: str, opened: list[Any]) -> None:
    """A finding that does not contradict the setup is accepted."""
    finding = Finding(feature="space", verdict=FindingVerdict(verdict), detail="d", remedy="r")
    doubtful = Finding(feature="units", verdict=FindingVerdict.WARNING, detail="d", remedy="r")
    save_examination(examined(findings=(finding, doubtful), space=space))
    Classifier(model="openai/x", labels=LABELS)
    assert len(opened) == 1


def test_clients_and_callables_have_no_record() -> None:
    """Only models given by name have a record."""

    def patient(messages: list[dict[str, str]]) -> object:
        return messages

    for given in (model(), patient):
        classifier = Classifier(model=given, labels=LABELS)
        name = classifier.client.name
        save_examination(examined(name))
        with pytest.raises(ConfigurationError, match="would mislead"):
            refuse_misleading(name, options=None, method=classifier.method)
        assert Classifier(model=given, labels=LABELS).client.name == name
        classifier.close()


def test_examined_models_are_refused(use_model: Callable[..., Any]) -> None:
    """An examination forbids the wrong space, and its remedy is accepted."""
    use_model(lambda *_, **__: model(illegal=0.4), "openai/x")
    save_examination(examine("openai/x", options={"api_key": SECRET}, now=NOON))
    with pytest.raises(ConfigurationError, match=r"no label.*Read as masked.*Set space = \"raw\""):
        Classifier(model="openai/x", labels=LABELS, field="topic")
    classifier = Classifier(model="openai/x", labels=LABELS, field="topic", space="raw")
    assert classifier.classify("boil the pasta").confidence == pytest.approx(0.97)
