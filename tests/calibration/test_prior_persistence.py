"""Tests of corrections that are saved and loaded."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.calibration import LabelPriorCorrection
from calibrant.core import ConfigurationError, Fingerprint, LabelSet, LogprobSpace, StateError

LABELS = ("World", "Sports", "Café")
FINGERPRINT = Fingerprint(
    prompt="Sort the headline.", model="local/tiny", space=LogprobSpace.RAW, labels=LABELS
)
ROWS = np.log([[0.7, 0.2, 0.1], [0.6, 0.1, 0.3], [1 / 3, 1 / 3, 1 / 3]])


def learned(correction: LabelPriorCorrection) -> dict[str, Any]:
    """Return all attributes by which corrections differ."""
    return {name: np.asarray(value).tolist() for name, value in vars(correction).items()}


def saved(path: Path, **options: Any) -> LabelPriorCorrection:
    """Return a correction that was saved to `path`."""
    correction = LabelPriorCorrection(**options).fit(ROWS)
    correction.save(path, fingerprint=FINGERPRINT)
    return correction


# The file


@pytest.mark.parametrize(
    "options",
    [{}, {"method": "contextual", "strength": 0.1}, {"strength": 0}, {"frequencies": [0.7, 0.2, 0.1]}],
)
def test_a_saved_correction_comes_back_exactly(tmp_path: Path, options: dict[str, Any]) -> None:
    """A loaded correction equals the saved one, and continues its stream."""
    path = tmp_path / "prior.json"
    original = saved(path, **options)
    loaded = LabelPriorCorrection.load(str(path), fingerprint=FINGERPRINT)
    assert learned(loaded) == learned(original)
    assert learned(loaded.partial_fit(ROWS[:2])) == learned(original.partial_fit(ROWS[:2]))
    assert loaded.transform(ROWS).tolist() == original.transform(ROWS).tolist()


def test_a_learned_strength_comes_back(tmp_path: Path) -> None:
    """A learned strength is loaded as a learned one."""
    correction = LabelPriorCorrection().fit(ROWS).fit_strength(ROWS, [1, 2, 1])
    assert correction.strength_ not in {0.0, 1.0}
    correction.save(tmp_path / "prior.json", fingerprint=FINGERPRINT)
    loaded = LabelPriorCorrection.load(tmp_path / "prior.json", fingerprint=FINGERPRINT)
    assert (loaded.strength, loaded.strength_) == (None, correction.strength_)


def test_the_file_is_readable_but_for_the_prompt(tmp_path: Path) -> None:
    """The file has the prompt's hash and not its text, and a second save replaces it."""
    path = tmp_path / "prior.json"
    saved(path, strength=0.5)
    saved(path)
    text = path.read_text(encoding="utf-8")
    record = json.loads(text)
    assert record["fingerprint"] == {
        "prompt_sha256": hashlib.sha256(b"Sort the headline.").hexdigest(),
        "model": "local/tiny",
        "space": "raw",
        "labels": list(LABELS),
    }
    assert (record["version"], record["state"]["strength"]) == (1, None)
    assert "Café" in text
    assert "headline" not in text
    assert [file.name for file in tmp_path.iterdir()] == ["prior.json"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt": "Sort the headline. "}, ["prompt"]),
        ({"model": "local/other"}, ["model ('local/tiny' then, 'local/other' now)"]),
        ({"space": LogprobSpace.MASKED}, ["space ('raw' then, 'masked' now)"]),
        ({"labels": ("World", "Sports", "cafe")}, ["label set ('Café' only then, 'cafe' only now)"]),
        ({"labels": ("Sports", "World", "Café")}, ["label set (the same labels in another order)"]),
        ({"labels": (*LABELS, "a", "b", "c", "d")}, ["label set ('a', 'b', 'c' and 1 more only now)"]),
        ({"prompt": "x", "model": "y"}, ["prompt", "model ('local/tiny' then, 'y' now)"]),
    ],
)
def test_another_fingerprint_is_named(tmp_path: Path, change: dict[str, Any], named: list[str]) -> None:
    """Another fingerprint raises StateError with every difference and advice."""
    path = tmp_path / "prior.json"
    saved(path)
    with pytest.raises(StateError) as caught:
        LabelPriorCorrection.load(path, fingerprint=dataclasses.replace(FINGERPRINT, **change))
    assert f"differs in {'; '.join(named)}: fit it again" in str(caught.value)
    assert str(path) in str(caught.value)


def _with(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda record: record["state"].update({name: value})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda record: record.update(version=3), "expected version 1 .* got 3: fit and save it again"),
        (lambda record: record.update(kind="temperature"), "expected a label-prior correction, got 'temper"),
        (lambda record: record.pop("fingerprint"), "damaged"),
        (lambda record: record.pop("state"), "damaged"),
        (lambda record: record["state"].pop("mean"), "damaged .*mean"),
        (_with("mean", [0.5, 0.5]), "damaged .*3 labels"),
        (_with("n_rows", 0), "damaged"),
        (_with("weight", 4.0), "damaged"),
        (_with("learned_strength", -1.0), "damaged"),
        (_with("method", "domain"), "damaged .*domain"),
        (_with("wins", [0.5, 0.5, 0.5]), "damaged"),
        (_with("frequencies", [0.5, 0.5]), "damaged .*3 labels"),
    ],
)
def test_a_spoilt_file_is_refused(tmp_path: Path, spoil: Callable[..., object], message: str) -> None:
    """A wrong version, kind or number in the file raises StateError."""
    path = tmp_path / "prior.json"
    saved(path)
    record = json.loads(path.read_text(encoding="utf-8"))
    spoil(record)
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(StateError, match=message):
        LabelPriorCorrection.load(path, fingerprint=FINGERPRINT)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]"])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, content: bytes) -> None:
    """Bytes that are no JSON object raise StateError."""
    path = tmp_path / "prior.json"
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"prior\.json: (damaged|expected)"):
        LabelPriorCorrection.load(path, fingerprint=FINGERPRINT)


def test_a_missing_file_or_folder_is_refused(tmp_path: Path) -> None:
    """A missing file or folder raises StateError with the path and advice."""
    with pytest.raises(StateError, match=r"absent\.json: cannot be read .* fit and save it first"):
        LabelPriorCorrection.load(tmp_path / "absent.json", fingerprint=FINGERPRINT)
    correction = LabelPriorCorrection().fit(ROWS)
    with pytest.raises(StateError, match=r"cannot be written .* choose another place"):
        correction.save(tmp_path / "absent" / "prior.json", fingerprint=FINGERPRINT)


def test_a_fingerprint_of_other_labels_is_not_saved(tmp_path: Path) -> None:
    """A fingerprint of other labels raises ConfigurationError, and no file is written."""
    correction = LabelPriorCorrection().fit(ROWS)
    with pytest.raises(ConfigurationError, match="3 labels, as fitted, got 2"):
        correction.save(
            tmp_path / "prior.json", fingerprint=dataclasses.replace(FINGERPRINT, labels=LABELS[:2])
        )
    assert not list(tmp_path.iterdir())


# The fingerprint


def test_the_digest_is_that_of_canonical_json() -> None:
    """The digest of a fingerprint is the SHA-256 of its sorted JSON, with the prompt hashed."""
    prompt = hashlib.sha256(b"Sort the headline.").hexdigest()
    canonical = (
        '{"labels":["World","Sports","Caf\\u00e9"],"model":"local/tiny",'
        f'"prompt_sha256":"{prompt}","space":"raw"}}'
    )
    assert FINGERPRINT.digest() == hashlib.sha256(canonical.encode("ascii")).hexdigest()


def test_equal_fingerprints_are_equal_however_written() -> None:
    """A fingerprint of a list equals one of a label set, and the order of labels counts."""
    same = [
        dataclasses.replace(FINGERPRINT, labels=LabelSet(LABELS)),
        dataclasses.replace(FINGERPRINT, labels=list(LABELS)),
        dataclasses.replace(FINGERPRINT, space="raw"),  # type: ignore[arg-type]
    ]
    assert {FINGERPRINT, *same} == {FINGERPRINT}
    assert {fingerprint.digest() for fingerprint in same} == {FINGERPRINT.digest()}
    assert dataclasses.replace(FINGERPRINT, labels=LABELS[::-1]).digest() != FINGERPRINT.digest()


@given(st.text(), st.text(), st.sampled_from(list(LogprobSpace)))
def test_a_record_equals_its_fingerprint(prompt: str, model: str, space: LogprobSpace) -> None:
    """A fingerprint equals its record after JSON."""
    fingerprint = Fingerprint(prompt=prompt, model=model, space=space, labels=LABELS)
    assert fingerprint.differences(json.loads(json.dumps(fingerprint.to_record()))) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": None}, "prompt of a fingerprint as text, got None"),
        ({"model": 3}, "model"),
        ({"space": "linear"}, "log-probability space 'linear'"),
        ({"labels": ["one"]}, "two labels"),
        ({"labels": "ab"}, "list of labels"),
    ],
)
def test_a_fingerprint_of_nothing_sensible_is_an_error(change: dict[str, Any], message: str) -> None:
    """A wrong part of a fingerprint raises ConfigurationError that names it."""
    with pytest.raises(ConfigurationError, match=message):
        dataclasses.replace(FINGERPRINT, **change)
