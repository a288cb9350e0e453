"""Tests of heads that are saved and loaded."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.calibration import TemperatureScaling
from calibrant.core import ConfigurationError, Fingerprint, LogprobSpace, StateError
from calibrant.heads import Head, ZeroLevel, fit_head
from head_rows import LABELS, halves, heads

FINGERPRINT = Fingerprint(prompt="Where to?", model="local/tiny", space=LogprobSpace.EXACT, labels=LABELS)
FRESH = halves(80, seed=1)
TITLES = ["as scored", "temperature", "labels", "text", "labels + features", "labels + features + text"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a head's file."""
    return tmp_path / "head.json"


def again(head: Head, path: Path) -> Head:
    """Return a head that was saved and loaded."""
    head.save(path, fingerprint=FINGERPRINT)
    return Head.load(path, fingerprint=FINGERPRINT)


def refused(path: Path, record: Any) -> None:
    """Check that a changed record raises StateError."""
    path.write_text(json.dumps(record))
    with pytest.raises(StateError, match="damaged"):
        Head.load(path, fingerprint=FINGERPRINT)


def says(head: Head) -> Any:
    """Return a head's distributions of rows that it has not seen."""
    return head.transform(FRESH.logprobs, FRESH.texts, features=FRESH.features)


@pytest.mark.parametrize("title", TITLES)
def test_a_saved_head_comes_back(title: str, path: Path) -> None:
    """A loaded head predicts exactly as the saved one, and is the same when saved again."""
    head = heads()[title]
    head.save(path, fingerprint=FINGERPRINT)
    loaded = Head.load(str(path), fingerprint=FINGERPRINT)
    assert says(loaded) == pytest.approx(says(head), abs=1e-12)
    assert (says(loaded).argmax(axis=1) == says(head).argmax(axis=1)).all()
    for name in ("title", "uses_model", "uses_text", "uses_features", "uses_embedding", "digest"):
        assert getattr(loaded, name) == getattr(head, name)
    assert list(loaded.strengths.items()) == list(head.strengths.items())
    assert loaded.describe() == head.describe()
    assert dataclasses.replace(loaded, model=head.model) == head
    before = path.read_text()
    loaded.save(path, fingerprint=FINGERPRINT)
    assert path.read_text() == before


def test_a_head_for_another_mix_comes_back(path: Path) -> None:
    """A head with a shift is loaded with it, and an invalid shift raises StateError."""
    head = dataclasses.replace(heads()["labels"], shift=(0.5, -0.5, 1.0, 0.0))
    loaded = again(head, path)
    assert loaded.shift == head.shift
    assert loaded.digest == head.digest
    assert says(loaded).tolist() == says(head).tolist()
    record = json.loads(path.read_text())
    spoilt: list[Any] = [None, "x", [], [0.0] * 3, [math.nan] * 4, [10**400] * 4, {}]
    for new in spoilt:
        refused(path, spoil(record, ("state", "shift"), new))
    heads()["labels"].save(path, fingerprint=FINGERPRINT)
    assert "shift" not in json.loads(path.read_text())["state"]


def test_a_level_of_zeros_comes_back(path: Path) -> None:
    """A head with a level of zeros is loaded with it and told from others; an invalid level raises StateError."""
    head = dataclasses.replace(heads()["labels"], zeros=ZeroLevel(at_most=-0.5, drop=2.0))
    loaded = again(head, path)
    assert loaded.zeros == head.zeros
    assert loaded.digest == head.digest != heads()["labels"].digest
    assert says(loaded).tolist() == says(head).tolist() != says(heads()["labels"]).tolist()
    record = json.loads(path.read_text())
    for new in (None, {}, {"at_most": -0.5}, {"at_most": -0.5, "drop": 0.0}, {"at_most": "x", "drop": 1.0}):
        refused(path, spoil(record, ("state", "zeros"), new))


def test_words_of_few_labels_come_back(path: Path) -> None:
    """A loaded head keeps labels without rows and texts of any characters."""
    kinds = ("sunny \u65e5", "rainy \u00e9")
    texts = [f"{kinds[n % 2]} \ud800 {n}" for n in range(40)]
    head = fit_head(np.zeros((40, 4)), np.arange(40) % 2 * 2, labels=LABELS, texts=texts)
    assert head.uses_text
    found = again(head, path).transform(np.zeros((2, 4)), kinds)
    assert found.argmax(axis=1).tolist() == [0, 2]
    assert found == pytest.approx(head.transform(np.zeros((2, 4)), kinds), abs=1e-9)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"prompt": "Where to"}, "differs in prompt"), ({"labels": LABELS[::-1]}, "another order")],
)
def test_a_head_for_something_else_is_refused(change: dict[str, Any], named: str, path: Path) -> None:
    """Another prompt, model, space or label set raises StateError that names the difference."""
    heads()["labels"].save(path, fingerprint=FINGERPRINT)
    with pytest.raises(StateError, match=named):
        Head.load(path, fingerprint=dataclasses.replace(FINGERPRINT, **change))


@pytest.mark.parametrize("labels", [LABELS[:3], LABELS[::-1], ("a", "b", "c", "d")])
def test_other_labels_are_refused(labels: tuple[str, ...], tmp_path: Path) -> None:
    """Other labels raise ConfigurationError in `check` and `save`, and no file is written."""
    other = dataclasses.replace(FINGERPRINT, labels=labels)
    with pytest.raises(ConfigurationError, match=f"Expected a head for {len(labels)} labels"):
        heads()["labels"].check(other)
    with pytest.raises(ConfigurationError, match="got one for 4 labels"):
        heads()["labels"].save(tmp_path / "head.json", fingerprint=other)
    assert list(tmp_path.iterdir()) == []
    heads()["labels"].check(FINGERPRINT)


def damages(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield places in a record and their new values; `...` stands for removal."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    if path:
        spoilt: list[Any] = [..., None, "x", [], {}, math.nan]
        spoilt += [value[:-1], [*value, *value[-1:]]] if isinstance(value, list) else []
        yield from ((path, new) for new in spoilt if new != value and (new is not None or value is not None))
    for key, child in children:
        if isinstance(key, str) or isinstance(child, dict):
            yield from damages(child, (*path, key))


def spoil(record: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a record with one entry changed or taken out."""
    copy = json.loads(json.dumps(record))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if new is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = new
    return copy


@pytest.mark.parametrize("title", ["as scored", "temperature", "labels", "labels + features + text"])
def test_damage_is_refused_wherever_it_is(title: str, path: Path) -> None:
    """Every changed entry of a file raises StateError, except for the text of the reason."""
    heads()[title].save(path, fingerprint=FINGERPRINT)
    record = json.loads(path.read_text())
    survived = []
    for place, new in damages(record):
        path.write_text(json.dumps(spoil(record, place, new)))
        try:
            Head.load(path, fingerprint=FINGERPRINT)
        except StateError:
            continue
        survived.append((place, new))
    assert survived == [(("state", "reason"), "x")]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("temperature",), 0.0),
        (("n_rows",), 0),
        (("kind",), "as scored"),
        (("kind",), "temperature"),
        (("strengths",), {"labels": -1.0}),
        (("strengths",), {"text": 1.0}),
        (("strengths",), {"labels": 1.0, "text": 1.0}),
    ],
)
def test_impossible_values_are_refused(place: tuple[str, ...], value: Any, path: Path) -> None:
    """An impossible value in a file raises StateError."""
    heads()["labels"].save(path, fingerprint=FINGERPRINT)
    refused(path, spoil(json.loads(path.read_text()), ("state", *place), value))


def test_a_missing_file_and_another_kind_are_refused(tmp_path: Path) -> None:
    """A missing file, or a file of another kind, raises StateError."""
    with pytest.raises(StateError, match=r"absent\.json"):
        Head.load(tmp_path / "absent.json", fingerprint=FINGERPRINT)
    path = tmp_path / "scaling.json"
    TemperatureScaling().fit(FRESH.logprobs, FRESH.answers).save(path, fingerprint=FINGERPRINT)
    with pytest.raises(StateError, match="expected a head"):
        Head.load(path, fingerprint=FINGERPRINT)
    with pytest.raises(StateError):
        heads()["labels"].save(tmp_path / "no" / "folder" / "head.json" / "\0", fingerprint=FINGERPRINT)
