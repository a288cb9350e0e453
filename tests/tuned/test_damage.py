"""Tests of damaged bundles: each one is refused with what was expected, what came and what to do."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import calibrant
from calibrant.core import ConfigurationError, StateError
from calibrant.tuned import Tuned
from packed import packed

MANIFEST = "manifest.json"
ROWS = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(30)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle that the other fixtures copy."""
    folder = tmp_path_factory.mktemp("whole")
    return packed(folder, ROWS).path


@pytest.fixture
def bundle(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of the whole bundle."""
    return Path(shutil.copytree(whole, tmp_path / "bundle"))


def resealed(folder: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """Write a manifest that fits the files as they are, except for the change."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    change(manifest)
    del manifest["sha256"]
    own = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    sealed = {**manifest, "sha256": hashlib.sha256(own.encode()).hexdigest()}
    path.write_text(json.dumps(sealed, indent=2, ensure_ascii=False) + "\n")


def refused(folder: Path) -> str:
    """Return the error of `Tuned.load`; `load` has the same of a folder with a manifest."""
    with pytest.raises(StateError) as found:
        Tuned.load(folder)
    with pytest.raises((StateError, ConfigurationError)) as again:  # a file could be that of a task
        calibrant.load(folder)
    assert str(found.value) == str(again.value) or not os.path.exists(folder / MANIFEST)  # noqa: PTH110 (of any path)
    return str(found.value)


def test_resealing_a_whole_bundle_changes_nothing(bundle: Path) -> None:
    """The test helper `resealed` keeps the digest of an unchanged bundle."""
    digest = Tuned.load(bundle).digest
    resealed(bundle)
    assert Tuned.load(bundle).digest == digest


def test_every_file_is_checked_against_its_hash(bundle: Path) -> None:
    """One changed character in any file raises StateError."""
    for path in sorted(bundle.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content.replace(b"a", b"b", 1))
        assert f"{path}: " in refused(bundle)
        path.write_bytes(content + b" ")
        if path.name != MANIFEST:  # white space around JSON says nothing
            assert "bytes at most" in refused(bundle)
        path.unlink()
        assert path.name in refused(bundle)
        path.write_bytes(content)
    Tuned.load(bundle)


def test_a_truncated_file_is_named(bundle: Path) -> None:
    """The error about a truncated file has the expected and the actual number of bytes."""
    text = (bundle / "prompt.txt").read_text()
    (bundle / "prompt.txt").write_text(text[:5])
    why = refused(bundle)
    assert f"prompt.txt: altered: expected {len(text)} bytes of SHA-256" in why
    assert "got 5 bytes of" in why
    assert "copy the bundle again" in why


def test_added_files_are_refused(bundle: Path) -> None:
    """A hidden file, another file or a folder in a bundle raises StateError."""
    for name in ("notes.txt", ".DS_Store", "Prompt.txt", "model.pkl"):
        (bundle / name).write_text("x")
        assert f"got {name!r} too: remove it" in refused(bundle)
        (bundle / name).unlink()
    (bundle / "folder").mkdir()
    assert "got 'folder' too" in refused(bundle)


@pytest.mark.parametrize(
    "name", ["../secret.json", "/etc/passwd", "a/../../b", "..", "C:\\x", "task.json", "prompt.txt\x00", ""]
)
def test_unknown_file_names_are_refused(bundle: Path, name: str) -> None:
    """A manifest that lists an unknown or outside file raises StateError."""
    resealed(bundle, lambda manifest: manifest["files"].update({name: {"sha256": "0" * 64, "bytes": 1}}))
    assert "expected only files that bundles have" in refused(bundle)


def test_required_files_must_be_listed(bundle: Path) -> None:
    """A manifest without labels.json raises StateError."""
    resealed(bundle, lambda manifest: manifest["files"].pop("labels.json"))
    assert "expected labels.json among the files, got none" in refused(bundle)


def edited(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change the JSON value in a file."""
    value = json.loads((folder / name).read_text())
    change(value)
    (folder / name).write_text(json.dumps(value))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_only_regular_files_are_read(bundle: Path, tmp_path: Path) -> None:
    """Links, pipes and folders among a bundle's files raise StateError."""
    for name in ("prompt.txt", MANIFEST):
        path = bundle / name
        content = path.read_text()
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
        assert f"{name}: expected a regular file, got a symbolic link" in refused(bundle)
        path.unlink()
        os.mkfifo(path)
        assert f"{name}: expected a regular file, got something else" in refused(bundle)
        path.unlink()
        path.mkdir()
        assert f"{name}: expected a regular file" in refused(bundle)
        path.rmdir()
        path.write_text(content)
    linked = tmp_path / "current"
    linked.symlink_to(bundle)
    Tuned.load(linked)  # how a deployment points to one of several


def test_a_link_is_not_followed(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that became a link after the check raises StateError."""
    path = bundle / MANIFEST
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    monkeypatch.setattr(Path, "is_symlink", lambda _: False)
    assert f"{MANIFEST}: cannot be read" in refused(bundle)


def test_a_huge_file_is_refused_unread(bundle: Path) -> None:
    """A file too large on disk, or in the manifest, raises StateError."""
    for name in ("labels.json", MANIFEST):
        size = (bundle / name).stat().st_size
        with (bundle / name).open("r+b") as file:
            file.truncate(1 << 40)  # sparse
        assert "bytes at most, got 1,099,511,627,776" in refused(bundle)
        with (bundle / name).open("r+b") as file:
            file.truncate(size)
    entry = {"sha256": "0" * 64, "bytes": 1 << 40}
    resealed(bundle, lambda manifest: manifest["files"].update({"labels.json": entry}))
    assert "files.labels.json.bytes: Input should be less than or equal to 67108864" in refused(bundle)


def test_text_must_be_utf8(bundle: Path) -> None:
    """A text file that is not UTF-8 raises StateError with the line of the wrong byte."""
    (bundle / "prompt.txt").write_bytes(b"Which\nanimal\xff?")
    resealed(bundle)
    assert "prompt.txt:2: expected UTF-8 text, got the byte 0xff" in refused(bundle)
    (bundle / MANIFEST).write_bytes(b"\xff\xfe")
    assert f"{MANIFEST}:1: expected UTF-8 text" in refused(bundle)


@pytest.mark.parametrize("version", [0, 3, "1"])
def test_other_versions_are_errors(bundle: Path, version: object) -> None:
    """A bundle of another version raises StateError with the version of calibrant that wrote it."""
    resealed(bundle, lambda manifest: manifest.update(version=version, calibrant="9.9"))
    assert (
        f"expected version 1 of a calibrant bundle, got {version!r}, written by calibrant '9.9': use that version, or "
        "export"
    ) in refused(bundle)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(kind="a run"),
        lambda manifest: manifest.update(extra=1),
        lambda manifest: manifest.update(calibrant=3),
        lambda manifest: manifest.update(fingerprint={}),
        lambda manifest: manifest["fingerprint"].update(prompt_sha256="0" * 64),
        lambda manifest: manifest["fingerprint"].update(labels=["cat", "cow"]),
        lambda manifest: manifest.update(files=[]),
        lambda manifest: manifest["files"].update({"labels.json": {"sha256": 1, "bytes": 1}}),
        lambda manifest: manifest["files"]["labels.json"].update(bytes=-1),
    ],
)
def test_a_manifest_of_wrong_types_is_refused(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A manifest with values of wrong types raises StateError, even if all hashes fit."""
    resealed(bundle, change)
    assert str(bundle) in refused(bundle)


def test_a_manifest_edited_by_hand_is_refused(bundle: Path) -> None:
    """A manifest that was edited by hand raises StateError, because its own hash no longer fits."""
    edited(bundle, MANIFEST, lambda value: value["fingerprint"].update(model="other"))
    assert "altered: its content does not have the SHA-256 it states" in refused(bundle)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_a_manifest_must_be_a_json_object(bundle: Path, content: str) -> None:
    """A manifest that is empty, truncated, no object or deeply nested raises StateError."""
    (bundle / MANIFEST).write_text(content)
    assert f"{MANIFEST}: expected" in refused(bundle)


FILES = ("figures.json", "history.json", "labels.json", "schema.json", "settings.json", "thresholds.json")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", ["", "3", '{"a": 1}', "[[[]]]"])
def test_files_of_wrong_types_are_refused(bundle: Path, name: str, content: str) -> None:
    """A bundle file with content of a wrong type raises StateError, even if its hash fits."""
    (bundle / name).write_text(content)
    resealed(bundle)
    assert str(bundle) in refused(bundle)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("labels.json", lambda value: value.append("cow"), "differs from the other files in label set"),
        ("labels.json", lambda value: value.append(3), "Expected every label to be text"),
        ("schema.json", lambda value: value.update(x=1), "expected the schema of labels.json"),
        ("settings.json", lambda value: value.update(x=1), "settings.json: unknown key 'x'"),
        ("settings.json", lambda value: value["tasks"].clear(), "tasks: Tuple should have at least 1 item"),
        ("settings.json", lambda value: value["tasks"].append(value["tasks"][0]), "missing key 'prompt'"),
        ("settings.json", lambda value: value["tasks"][0]["model"].update(x=1), "unknown key 'model.x'"),
        (
            "settings.json",
            lambda value: value["tasks"][0].update(model=None),
            "expected either model, or cascade",
        ),
        ("settings.json", lambda value: value["tasks"][0].update(routing={}), "at least one provider"),
        ("settings.json", lambda value: value["tasks"][0].update(field="]["), "field"),
        ("thresholds.json", lambda value: value.update(certified={"threshold": 2}), r"thresholds in [0, 1]"),
        ("thresholds.json", lambda value: value.update(x=1), "expected the keys certification, certified,"),
        ("thresholds.json", lambda value: value.update(suggested={"high": "x", "low": 0}), "damaged"),
        (
            "history.json",
            lambda value: value["confidence"].append(7),
            "confidence: Input should be less than or equal to 1",
        ),
        ("history.json", lambda value: value["labels"].update(cat=31), "expected 30 labels at most, got"),
        ("figures.json", lambda value: value[0].update(x=1), "figures.json: unknown key 'x'"),
        (
            "settings.json",
            lambda value: value.update(prompt_for_all="no"),
            "prompt_for_all: Input should be a valid",
        ),
        (
            "history.json",
            lambda value: value["labels"].update(cat=-1),
            "labels.cat: Input should be greater than",
        ),
    ],
)
def test_inconsistent_parts_are_refused(
    bundle: Path, name: str, change: Callable[[Any], object], why: str
) -> None:
    """Two files of a bundle that contradict each other raise StateError with the contradiction."""
    edited(bundle, name, change)
    resealed(bundle)
    assert why in refused(bundle)


def test_another_prompt_contradicts_the_fingerprint(bundle: Path) -> None:
    """A changed prompt raises StateError, because the bundle's fingerprint no longer fits."""
    (bundle / "prompt.txt").write_text("Another prompt.")
    edited(bundle, "settings.json", lambda value: value["description"].update(prompt="Another prompt."))
    resealed(bundle)
    assert "its fingerprint differs from the other files in prompt" in refused(bundle)


def test_loading_finds_settings_of_other_calls(bundle: Path) -> None:
    """A changed option or prompt raises StateError in `load`, which names the difference."""
    edited(bundle, "settings.json", lambda value: value["tasks"][0]["model"]["options"].update(seed=4))
    resealed(bundle)
    Tuned.load(bundle)
    with pytest.raises(StateError, match="asked otherwise than in the run: it differs in options"):
        calibrant.load(bundle)
    (bundle / "prompt.txt").write_text("Another prompt.")
    resealed(bundle)
    with pytest.raises(StateError, match="differs in options, prompt"):
        calibrant.load(bundle)


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_other_places_are_no_bundles(tmp_path: Path, kind: str) -> None:
    """A missing folder, an empty one or a file raises StateError that names `calibrant export`."""
    place = tmp_path / kind
    if kind == "empty":
        place.mkdir()
    if kind == "file":
        place.write_text("x")
    assert "`calibrant export`" in refused(place)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"a": ' * 64 + "1" + "}" * 64, "nested more than 64 levels deep"),
        ('{"a": [{"b": 1, "c": 2, "b": 1}]}', "the key 'b' is there twice"),
        ('{"a": -1e999}', "-1e999 is no finite number"),
        ('{"a": NaN}', "NaN is no finite number"),
    ],
)
def test_ambiguous_json_is_refused(bundle: Path, content: str, why: str) -> None:
    """Repeated keys, infinite numbers and deep nesting raise StateError in every file."""
    for name in (*FILES, "calibrator.json", "label_prior.json", "plan.json"):
        path = bundle / name
        before = path.read_text() if path.exists() else None
        path.write_text(content)
        manifest = (bundle / MANIFEST).read_text()
        edited(bundle, MANIFEST, lambda value, name=name: value["files"].update({name: {}}))
        resealed(bundle)
        found = refused(bundle)
        assert f"{name}: expected JSON" in found
        assert why in found
        (bundle / MANIFEST).write_text(manifest)
        path.unlink() if before is None else path.write_text(before)
    Tuned.load(bundle)
    (bundle / MANIFEST).write_text(content)
    assert why in refused(bundle)


def test_json_at_the_depth_limit_is_read(bundle: Path) -> None:
    """JSON that is nested one level less than the refused depth is read, and refused for its content alone."""
    (bundle / MANIFEST).write_text('{"a": ' * 63 + "1.5" + "}" * 63)
    assert "expected JSON" not in refused(bundle)


@pytest.mark.parametrize("where", ["x" * 5000, "a\x00b", "/".join(["folder"] * 2000)])
def test_impossible_paths_are_no_bundles(where: str) -> None:
    """Paths that are too long or hold a null character raise StateError."""
    assert "`calibrant export`" in refused(Path(where))


def test_a_bundle_cut_off_anywhere_is_refused(bundle: Path) -> None:
    """A bundle of which any file is cut off at any sampled length raises StateError."""
    for path in sorted(bundle.iterdir()):
        content = path.read_bytes()
        for length in range(0, len(content) - 1, max(1, len(content) // 40)):
            path.write_bytes(content[:length])
            assert path.name in refused(bundle)
        path.write_bytes(content)


def test_files_of_another_bundle_are_refused(bundle: Path, tmp_path: Path) -> None:
    """Files swapped between two bundles, or within one, raise StateError."""
    (tmp_path / "other").mkdir()
    other = packed(tmp_path / "other", ROWS[:20]).path
    for name in ("figures.json", "history.json"):
        content = (bundle / name).read_bytes()
        shutil.copy(other / name, bundle / name)
        assert name in refused(bundle)
        (bundle / name).write_bytes(content)
    shutil.copy(bundle / "labels.json", bundle / "schema.json")
    assert "schema.json" in refused(bundle)
