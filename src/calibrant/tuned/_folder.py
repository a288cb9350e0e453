"""Bundle, the saved form of a tuned classifier: a folder of JSON and text, checked against its manifest."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import pydantic

from calibrant.calibration._calibrators import load_calibrator
from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.core._errors import CalibrantError, ConfigurationError, StateError
from calibrant.core._files import decoding_problem, without_doubles
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._frames import ANSWER_COLUMNS, answer_of, free_name, texts_of
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import JsonObject, Record
from calibrant.core._settings import Section
from calibrant.core._task import RecordedTask, Task
from calibrant.heads._head import Head
from calibrant.heads._tuned import (
    Figure,
    Measurements,
    OpenedPredictor,
    PredictionHistory,
    Tuned,
    thresholds_of,
)
from calibrant.logprobs._fields import enum_schema
from calibrant.runs._directory import DEMONSTRATIONS
from calibrant.tuned._task_record import BUNDLE as MANIFEST
from calibrant.tuned._task_record import (
    LEARNED,
    SHOWN,
    STUDENT_FILES,
    checked_record,
    fingerprint_of,
    learned_of_plan,
    learned_of_plan_by_file,
    n_planned,
    recorded_task,
    saved_students,
    shown_rows,
    student_names,
    students_of,
    task_from_record,
    with_demonstrations,
    with_planned_demonstrations,
)

_KIND: Final = "calibrant bundle"
_VERSION: Final = 1
_REQUIRED: Final = (
    "figures.json history.json labels.json prompt.txt schema.json settings.json thresholds.json"
)
_OPTIONAL: Final = (
    "calibrator.json demonstrations.jsonl head.json label_prior.json plan.json user_template.txt"
)
_PLANNED_FILES: Final = tuple(name.format(number) for name in (*LEARNED, SHOWN) for number in range(1, 10))
_MANIFEST_BYTES: Final = 1 << 20
_FILE_BYTES: Final = 64 << 20
# Of nested JSON: schemas and options need about ten, and deeper values end recursive readers.
_DEPTH: Final = 64
# Columns of a labelled batch that hold numbers; the others hold texts.
_NUMBERS: Final = frozenset({"confidence", "cost"})


class _FileEntry(Section):
    """Hash and size of a file."""

    sha256: str
    bytes: Annotated[int, pydantic.Field(strict=True, ge=0, le=_FILE_BYTES)]


class Manifest(Section):
    """Contents of ``manifest.json``."""

    kind: str
    version: int
    calibrant: str
    fingerprint: JsonObject
    files: dict[str, _FileEntry]
    sha256: str


def damaged_file(place: Path | str, why: str) -> StateError:
    """Return the error for a damaged file of a bundle."""
    return StateError(f"{place}: {why}: copy the bundle again, or export the run again.")


def json_text(value: object) -> str:
    """Return the JSON text of a value in a bundle; floats keep their full precision."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def parse_json(text: str, place: Path) -> Any:  # noqa: ANN401 (any JSON value)
    """Return the JSON value of a file.

    Raises
    ------
    StateError
        The text is no JSON, repeats a key, is nested too deeply, or holds a number that JSON or a float cannot.
    """
    try:
        value = json.loads(
            text, parse_constant=_finite_number, parse_float=_finite_number, object_pairs_hook=without_doubles
        )
        _check_depth(value, _DEPTH)
    except (ValueError, RecursionError) as error:
        raise damaged_file(place, f"expected JSON, got something else ({error})") from error
    return value


def _finite_number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits:.40} is no finite number")
    return value


def _check_depth(value: object, levels: int) -> None:
    if levels == 0:
        raise ValueError(f"it is nested more than {_DEPTH} levels deep")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, levels - 1)


def _digest(manifest: Record) -> str:
    """Return the SHA-256 of a manifest, without its own digest field."""
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    return _sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _file_entry(data: bytes) -> JsonObject:
    return {"sha256": _sha256(data), "bytes": len(data)}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_folder(
    path: Path,
    texts: Mapping[str, str],
    fingerprint: Record,
    *,
    check: Callable[[Path], object],
) -> None:
    """Write a bundle's folder atomically, after it passed `check`.

    Raises
    ------
    ConfigurationError
        `path` is taken.
    StateError
        A file is too large, or the folder cannot be written.
    """
    files = {name: text.encode() for name, text in sorted(texts.items())}
    for name, data in files.items():
        if len(data) > _FILE_BYTES:
            raise StateError(f"{name}: expected at most {_FILE_BYTES >> 20} MB for a bundle, got more.")
    manifest = {
        "kind": _KIND,
        "version": _VERSION,
        "calibrant": metadata.version("calibrant"),
        "fingerprint": dict(fingerprint),
        "files": {name: _file_entry(data) for name, data in files.items()},
    }
    files[MANIFEST] = json_text({**manifest, "sha256": _digest(manifest)}).encode()
    refuse_taken(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
        folder = temporary / "bundle"
        folder.mkdir()  # with the umask's permissions: a temporary folder is its owner's alone
        for name, data in files.items():
            _write(folder / name, data)
        check(folder)
        if path.exists():
            path.rmdir()  # fails if files were added meanwhile
        folder.rename(path)
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: cannot be written ({error}): choose another folder.") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def refuse_taken(path: Path) -> None:
    """Raise ConfigurationError if a destination is anything but a missing or an empty folder."""
    try:
        taken = path.is_symlink() or (path.exists() and not path.is_dir())
        taken = taken or (path.is_dir() and any(path.iterdir()))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be looked up ({error}): choose another place.") from error
    if taken:
        raise ConfigurationError(
            f"{path}: expected a folder that is not there yet, or is empty, got one that is taken: choose another "
            "name, or remove it."
        )


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_folder(path: Path) -> tuple[Manifest, dict[str, Any]]:
    """Return a bundle's manifest, and the contents of its other files by name: JSON values, or text.

    Raises
    ------
    StateError
        The folder is no bundle, is of another version, or was changed after the export: a file is missing, added,
        altered, not a regular file, or not UTF-8.
    """
    if not os.path.isdir(path):  # noqa: PTH112 (a path that cannot be looked up is none, too)
        raise StateError(f"{path}: expected a bundle's folder, got none: make one with `calibrant export`.")
    manifest = _read_manifest(path)
    _check_file_names(path, set(manifest.files))
    content: JsonObject = {}
    for name, entry in manifest.files.items():
        text = _read_listed_file(path / name, entry)
        content[name] = parse_json(text, path / name) if name.endswith(".json") else text
    return manifest, content


def _read_manifest(path: Path) -> Manifest:
    place = path / MANIFEST
    if not os.path.lexists(place):
        raise StateError(
            f"{path}: expected a bundle, got a folder without {MANIFEST}: make one of a run with `calibrant export`."
        )
    record = parse_json(_utf8_text(_content(place, most=_MANIFEST_BYTES), place), place)
    if not isinstance(record, dict) or record.get("kind") != _KIND:
        raise damaged_file(place, "expected the manifest of a bundle, got something else")
    version = record.get("version")
    if version != _VERSION:
        raise StateError(
            f"{place}: expected version {_VERSION} of a {_KIND}, got {version!r:.40}, written by calibrant "
            f"{record.get('calibrant')!r:.40}: use that version, or export the run again with this one "
            f"({metadata.version('calibrant')})."
        )
    manifest = checked_record(Manifest, record, place, damaged_file)
    if manifest.sha256 != _digest(record):
        raise damaged_file(place, "altered: its content does not have the SHA-256 it states")
    return manifest


def _check_file_names(path: Path, listed: set[str]) -> None:
    """Raise StateError if the manifest's list of files is invalid or differs from the folder."""
    place = path / MANIFEST
    required = _REQUIRED.split()
    optional = [*_OPTIONAL.split(), *_PLANNED_FILES, *STUDENT_FILES]
    unknown = listed.difference(required, optional)
    if unknown:
        known = ", ".join(sorted([*required, *optional]))
        raise damaged_file(
            place, f"expected only files that bundles have ({known}), got {min(unknown)!r:.80}"
        )
    unlisted = set(required) - listed
    if unlisted:
        raise damaged_file(place, f"expected {min(unlisted)} among the files, got none")
    try:
        present = {entry.name for entry in path.iterdir()} - {MANIFEST}
    except OSError as error:
        raise StateError(
            f"{path}: cannot be read ({error.strerror or error}): allow it to be read."
        ) from error
    extra = present - listed
    if extra:
        raise StateError(
            f"{path}: expected only what {MANIFEST} lists, got {min(extra)!r:.80} too: remove it."
        )
    missing = listed - present
    if missing:
        raise damaged_file(path, f"expected {min(missing)}, which {MANIFEST} lists, got none")


def _read_listed_file(place: Path, entry: _FileEntry) -> str:
    data = _content(place, most=entry.bytes)
    digest = _sha256(data)
    if digest != entry.sha256:
        raise damaged_file(
            place,
            f"altered: expected {entry.bytes:,} bytes of SHA-256 {entry.sha256:.12}..., got {len(data):,} bytes of "
            f"{digest:.12}...",
        )
    return _utf8_text(data, place)


def _content(place: Path, *, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; refuse symbolic links."""
    if place.is_symlink():
        raise damaged_file(place, "expected a regular file, got a symbolic link")
    # O_NOFOLLOW: the name may lead to a link by now. O_NONBLOCK: opening a named pipe would block until another
    # process writes to it.
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):  # where the system has them
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(place, flags)
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise damaged_file(place, "expected a regular file, got something else")
            if about.st_size > most:
                raise damaged_file(place, f"expected {most:,} bytes at most, got {about.st_size:,}")
            with open(descriptor, "rb", closefd=False) as file:  # reads on where a file system returns less
                return file.read(most + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise damaged_file(place, f"cannot be read ({error.strerror or error})") from error


def _utf8_text(data: bytes, place: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line, problem = decoding_problem(error)
        raise damaged_file(f"{place}:{line}", problem) from error


# Settings that have files of their own; prompt and template are those of the first task.
_PACKED_ALWAYS: Final = frozenset({"labels"})
_PACKED_FIRST: Final = frozenset({"prompt", "user_template"})

_Part = TypeVar("_Part")
_Model = TypeVar("_Model", bound=pydantic.BaseModel)


class _Settings(Section):
    """Contents of ``settings.json``.

    Attributes
    ----------
    tasks : tuple of dict
        Records of `calibrant.tuned._task_record.task_to_record`. The first one's labels, prompt and user template have
        files of their own, as have the labels of all.
    prompt_for_all : bool
        True if ``prompt.txt`` replaces the own prompts of a cascade's models.
    description : dict or None
        See `Tuned`.
    """

    tasks: Annotated[tuple[JsonObject, ...], pydantic.Field(min_length=1)]
    prompt_for_all: Annotated[bool, pydantic.Field(strict=True)]
    description: JsonObject | None


def save(tuned: Tuned, folder: str | Path) -> Tuned:
    """Write a bundle; see `Tuned.save`."""
    path = Path(folder)
    fingerprint = tuned.fingerprint.to_record()
    write_folder(path, _texts(tuned), fingerprint, check=read)
    return read(path)


def read(folder: str | Path) -> Tuned:
    """Read a bundle; see `Tuned.load`."""
    path = Path(folder)
    manifest, content = read_folder(path)
    try:
        return _FolderReader(path, manifest, content).tuned()
    except StateError:
        raise
    except (CalibrantError, AttributeError, KeyError, TypeError, ValueError) as error:
        problem = (
            f"damaged: its parts are not what a bundle of calibrant {manifest.calibrant} holds ({error!r})"
        )
        raise damaged_file(path, problem) from error


def bundle_digest(folder: str | Path) -> str:
    """Return the digest of a bundle's files.

    Raises
    ------
    StateError
        There is no bundle, or its manifest is damaged.
    """
    return _read_manifest(Path(folder)).sha256


def _texts(tuned: Tuned) -> dict[str, str]:
    """Return the content of every file of a bundle by its name."""
    task = tuned.task
    files = {
        "prompt.txt": task.prompt,
        "labels.json": json_text(task.labels.record()),
        "schema.json": json_text(enum_schema(task.labels, task.field)),
        "settings.json": json_text(_settings(tuned)),
        "thresholds.json": json_text(dict(tuned.thresholds)),
        "figures.json": json_text([figure.model_dump() for figure in tuned.figures]),
        "history.json": json_text(tuned.history.to_record()),
    }
    if task.user_template is not None:
        files["user_template.txt"] = task.user_template
    for number, own in enumerate(tuned.tasks, 1):
        if own.task.demonstrations is not None:
            name = DEMONSTRATIONS if tuned.plan is None else SHOWN.format(number)
            files[name] = shown_rows(own.task)
    if tuned.plan is not None:
        files["plan.json"] = json_text(tuned.plan)
        for name, learned, fingerprint in learned_of_plan_by_file(tuned):
            files[name] = json_text(learned.saved_record(fingerprint))
    fitted = {"head": tuned.head, "label_prior": tuned.prior_correction, "calibrator": tuned.calibrator}
    for name, estimator in fitted.items():
        if estimator is not None:
            files[f"{name}.json"] = json_text(estimator.saved_record(tuned.fingerprint))
    return files | _student_texts(tuned)


def _student_texts(tuned: Tuned) -> dict[str, str]:
    """Return the files of the students among the models."""
    students = students_of([own.task for own in tuned.tasks], tuned.students).values()
    if not students:
        return {}
    if len(students) > len(STUDENT_FILES):
        raise ConfigurationError(
            f"Expected at most {len(STUDENT_FILES)} students for a bundle, got {len(students)}."
        )
    from calibrant.inference._student import student_to_record  # noqa: PLC0415 (few bundles have one)

    named = zip(STUDENT_FILES, students, strict=False)
    return {file: json_text(student_to_record(head)) for file, head in named}


def _settings(tuned: Tuned) -> JsonObject:
    """Return the contents of ``settings.json``."""
    tasks = []
    for number, own in enumerate(tuned.tasks):
        packed = _PACKED_ALWAYS if number else _PACKED_ALWAYS | _PACKED_FIRST
        tasks.append({key: value for key, value in recorded_task(own).items() if key not in packed})
    return {"tasks": tasks, "prompt_for_all": tuned.prompt_for_all, "description": tuned.description}


@dataclass(eq=False)
class _FolderReader:
    """Builder of a tuned classifier from the files of a bundle, with consistency checks."""

    folder: Path
    manifest: Manifest
    content: Record

    def tuned(self) -> Tuned:
        """Return the tuned classifier."""
        settings = self._checked_file("settings.json", _Settings)
        tasks = self._tasks(settings)
        first = tasks[0].task
        fingerprint = self._fingerprint(first, settings.description)
        if self.content["schema.json"] != enum_schema(first.labels, first.field):
            raise self._damage(
                "schema.json", "expected the schema of labels.json and the field in settings.json"
            )
        plan = self._plan(len(tasks))
        return Tuned(
            path=self.folder,
            calibrant=self.manifest.calibrant,
            digest=self.manifest.sha256,
            tasks=tasks,
            plan=plan,
            learned={} if plan is None else learned_of_plan(plan, tasks, self.folder),
            prompt_for_all=settings.prompt_for_all,
            description=settings.description,
            fingerprint=fingerprint,
            prior_correction=self._load_part("label_prior.json", LabelPriorCorrection.load, fingerprint),
            head=self._load_part("head.json", Head.load, fingerprint),
            calibrator=self._load_part("calibrator.json", load_calibrator, fingerprint),
            thresholds=self._thresholds(),
            measurements=self._measurements(first.labels),
            students=self._students(tasks),
        )

    def _measurements(self, labels: LabelSet) -> Measurements:
        place = self.folder / "figures.json"
        entries = self.content["figures.json"]
        figures = [checked_record(Figure, entry, place, damaged_file) for entry in entries]
        return Measurements(figures=tuple(figures), history=self._history(labels))

    def _tasks(self, settings: _Settings) -> tuple[RecordedTask, ...]:
        files = self.content
        shared = {"labels": self.content["labels.json"]}
        first = {**shared, "prompt": files["prompt.txt"], "user_template": files.get("user_template.txt")}
        place = self.folder / "settings.json"
        tasks = [
            task_from_record({**record, **(shared if number else first)}, place=place)
            for number, record in enumerate(settings.tasks)
        ]
        if "plan.json" in files:
            return with_planned_demonstrations(tasks, self.folder)
        return (self._with_demonstrations(tasks[0]), *tasks[1:])

    def _with_demonstrations(self, recorded: RecordedTask) -> RecordedTask:
        """Return a task with its demonstration texts."""
        rows = self.content.get(DEMONSTRATIONS)
        if (recorded.task.demonstrations is None) is not (rows is None):
            raise self._damage(
                "settings.json", f"expected {DEMONSTRATIONS} where demonstrations are shown, and only there"
            )
        if rows is None:
            return recorded
        task = with_demonstrations(recorded.task, rows, self.folder / DEMONSTRATIONS)
        return replace(recorded, task=task)

    def _fingerprint(self, task: Task, description: Record | None) -> Fingerprint:
        """Return the manifest's fingerprint, checked against the prompt and the labels."""
        record = self.manifest.fingerprint
        found = fingerprint_of(
            task,
            description,
            rows=self.content.get(DEMONSTRATIONS),
            model=record["model"],
            space=record["space"],
        )
        if found.to_record() != record:
            changed = "; ".join(found.differences(record))
            raise self._damage("manifest.json", f"its fingerprint differs from the other files in {changed}")
        return found

    def _plan(self, n_tasks: int) -> Record | None:
        record = self.content.get("plan.json")
        expected = 1 if record is None else n_planned(record)
        if n_tasks != expected:
            whose = "one task without a plan" if record is None else f"{expected} tasks for the plan"
            raise self._damage("settings.json", f"expected {whose}, got {n_tasks}")
        return record

    def _load_part(self, name: str, load: Callable[..., _Part], fingerprint: Fingerprint) -> _Part | None:
        """Return the correction, head or calibrator in a file; None if the bundle has no such file."""
        if name in self.content:
            return load(self.folder / name, fingerprint=fingerprint)
        return None

    def _students(self, tasks: Sequence[RecordedTask]) -> dict[str, Head]:
        """Return the students by name; those of bundles without their files are in their own folders."""
        files = [file for file in STUDENT_FILES if file in self.content]
        asked = [own.task for own in tasks]
        names = student_names(asked)
        if files and len(files) != len(names):
            raise self._damage(
                files[-1], f"expected a file for each of {len(names)} students, got {len(files)}"
            )
        if not files:
            return {}
        return saved_students(asked, self.folder)

    def _thresholds(self) -> JsonObject:
        thresholds: JsonObject = self.content["thresholds.json"]
        if set(thresholds) != set(thresholds_of(None)):
            named = ", ".join(sorted(thresholds_of(None)))
            raise self._damage(
                "thresholds.json", f"expected the keys {named}, got {sorted(thresholds)!r:.200}"
            )
        suggested = thresholds["suggested"]
        certified = thresholds["certified"]
        values = []
        if suggested is not None:
            values = [suggested["high"], suggested["low"]]
        values += [] if certified is None else [certified["threshold"]]
        if any(isinstance(value, bool) or not 0.0 <= value <= 1.0 for value in values):
            raise self._damage("thresholds.json", f"expected thresholds in [0, 1], got {values}")
        return thresholds

    def _history(self, labels: LabelSet) -> PredictionHistory:
        history = self._checked_file("history.json", PredictionHistory)
        counts = history.labels.values()
        # An answer of several labels counts each of them.
        most = max(counts, default=0) if labels.holds_several else sum(counts)
        if most > history.rows:
            raise self._damage("history.json", f"expected {history.rows} labels at most, got {most}")
        return history

    def _checked_file(self, name: str, kind: type[_Model]) -> _Model:
        return checked_record(kind, self.content[name], self.folder / name, damaged_file)

    def _damage(self, name: str, why: str) -> StateError:
        return damaged_file(self.folder / name, why)


@dataclass(kw_only=True)
class BatchLabeller:
    """Function for ``map`` of a Hugging Face dataset: from a batch of rows to their labels and decisions.

    It pickles without its model, so ``num_proc`` works: each process opens the bundle at its first batch. A dataset
    keeps what it mapped, and maps again when the bundle has changed.

    Parameters
    ----------
    bundle : str or Path
        Folder that `calibrant export` wrote.
    text : str
        Name of the column of texts. Rows without a text are not asked about, and their answers are None.
    options : mapping of str to Any, optional
        What was left out of the bundle, such as a key; see `Tuned.open`.

    Raises
    ------
    StateError
        There is no bundle, or it is damaged.

    Examples
    --------
    >>> from calibrant.tuned import BatchLabeller
    >>> def labelled(dataset, bundle):
    ...     labeller = BatchLabeller(bundle=bundle, text="review")
    ...     return dataset.map(labeller, batched=True, batch_size=256, features=labeller.features(dataset))
    """

    bundle: str | Path
    text: str
    options: Mapping[str, Any] | None = field(default=None, repr=False)  # may hold a key
    _digest: str = field(init=False, repr=False)
    _opened: tuple[Tuned, OpenedPredictor] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._digest = bundle_digest(self.bundle)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the columns label, confidence, decision, outcome, provider and cost of a batch.

        The confidence is calibrated where the bundle has a calibrator. A name that the batch has already gets the
        prefix ``calibrant_``.

        Raises
        ------
        ConfigurationError
            The batch has no column of this name, or it is one row (``map`` needs ``batched=True``).
        DataError
            A row holds something else than a text.
        """
        if self.text not in batch:
            raise ConfigurationError(
                f"Expected a column {self.text!r}, got {', '.join(map(repr, batch))}: name the column of the texts."
            )
        cells = batch[self.text]
        if isinstance(cells, str):
            raise ConfigurationError("Expected a batch of rows, got one row: call map with batched=True.")
        texts = texts_of(cells, what=self.text, with_blanks=True)
        asked = [place for place, text in enumerate(texts) if text.strip()]
        tuned, predictor = self._open()
        predictions = predictor.classify_many([texts[place] for place in asked])
        answers: list[JsonObject] = [dict.fromkeys(ANSWER_COLUMNS) for _ in texts]
        warning = tuned.model_warning(one.model for one in predictions)
        if warning is not None:
            warnings.warn(warning, stacklevel=2)
        decided = zip(asked, predictions, tuned.decide_many(predictions), strict=True)
        for place, prediction, decision in decided:
            answers[place].update(zip(ANSWER_COLUMNS, answer_of(prediction), strict=True))
            answers[place]["confidence"] = decision.final_confidence
            answers[place]["decision"] = decision.name
        columns = {}
        for name in ANSWER_COLUMNS:
            columns[free_name(name, list(batch))] = [answer[name] for answer in answers]
        return columns

    def features(self, dataset: Any) -> Any:  # noqa: ANN401 (types of a library that is not loaded here)
        """Return the features of a dataset with the new columns, for the argument `features` of its ``map``.

        Without them ``map`` takes the types from its first batch, and ends at the second one if the first has no label.

        Parameters
        ----------
        dataset : datasets.Dataset
            The dataset that is mapped.
        """
        found = dataset.features.to_dict()
        for name in ANSWER_COLUMNS:
            kind = "float64" if name in _NUMBERS else "string"
            found[free_name(name, dataset.column_names)] = {"dtype": kind, "_type": "Value"}
        return type(dataset.features).from_dict(found)

    def __getstate__(self) -> JsonObject:
        return {**vars(self), "_opened": None}

    def _open(self) -> tuple[Tuned, OpenedPredictor]:
        if self._opened is None:
            tuned = Tuned.load(self.bundle)
            self._opened = tuned, tuned.open(options=self.options)
        return self._opened
