"""Bundle: the saved form of a tuned classifier, a folder of JSON and text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import pydantic

from calibrant.calibration._choice import load_calibrator
from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.core._errors import CalibrantError, StateError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._labels import LabelSet
from calibrant.core._sections import Section
from calibrant.core._task import RecordedTask, Task
from calibrant.heads._head import Head
from calibrant.heads._tuned import Figure, PredictionHistory, Tuned, thresholds_of
from calibrant.inference._demonstrations import DemonstrationIndex
from calibrant.logprobs._schema import enum_schema
from calibrant.runs._directory import DEMONSTRATIONS
from calibrant.tuned._files import Manifest, damaged_file, json_text, read_folder, write_folder
from calibrant.tuned._task_record import (
    checked_record,
    fingerprint_of,
    n_planned,
    recorded_task,
    task_from_record,
    with_demonstrations,
)

# Settings that have files of their own; prompt and template are those of the first task.
_PACKED_ALWAYS: Final = frozenset({"labels", "demonstrations"})
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

    tasks: Annotated[tuple[dict[str, Any], ...], pydantic.Field(min_length=1)]
    prompt_for_all: Annotated[bool, pydantic.Field(strict=True)]
    description: dict[str, Any] | None


def save(tuned: Tuned, folder: str | Path) -> Tuned:
    """Write a bundle; see `Tuned.save`."""
    path, fingerprint = Path(folder), tuned.fingerprint.to_record()
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
        "history.json": json_text(tuned.history.model_dump()),
    }
    if task.user_template is not None:
        files["user_template.txt"] = task.user_template
    if task.demonstrations is not None:
        files[DEMONSTRATIONS] = DemonstrationIndex.from_task(task).to_text()
    if tuned.plan is not None:
        files["plan.json"] = json_text(tuned.plan)
    fitted = {"head": tuned.head, "label_prior": tuned.prior_correction, "calibrator": tuned.calibrator}
    for name, estimator in fitted.items():
        if estimator is not None:
            files[f"{name}.json"] = json_text(estimator.saved_record(tuned.fingerprint))
    return files


def _settings(tuned: Tuned) -> dict[str, Any]:
    """Return the contents of ``settings.json``."""
    tasks = []
    for number, own in enumerate(tuned.tasks):
        packed = _PACKED_ALWAYS if number else _PACKED_ALWAYS | _PACKED_FIRST
        record = {key: value for key, value in recorded_task(own).items() if key not in packed}
        if tuned.task.demonstrations is not None:
            record["demonstrations"] = tuned.task.demonstrations.model_dump()
        tasks.append(record)
    return {"tasks": tasks, "prompt_for_all": tuned.prompt_for_all, "description": tuned.description}


class _FolderReader:
    """Builder of a tuned classifier from the files of a bundle, with consistency checks."""

    def __init__(self, folder: Path, manifest: Manifest, content: Mapping[str, Any]) -> None:
        self._folder = folder
        self._manifest = manifest
        self._content = content

    def tuned(self) -> Tuned:
        """Return the tuned classifier."""
        settings = self._checked_record("settings.json", _Settings, self._content["settings.json"])
        tasks = self._tasks(settings)
        first = tasks[0].task
        fingerprint = self._fingerprint(first, settings.description)
        if self._content["schema.json"] != enum_schema(first.labels, first.field):
            raise self._damage(
                "schema.json", "expected the schema of labels.json and the field in settings.json"
            )
        return Tuned(
            path=self._folder,
            calibrant=self._manifest.calibrant,
            digest=self._manifest.sha256,
            tasks=tasks,
            plan=self._plan(len(tasks)),
            prompt_for_all=settings.prompt_for_all,
            description=settings.description,
            fingerprint=fingerprint,
            prior_correction=self._load_part("label_prior.json", LabelPriorCorrection.load, fingerprint),
            head=self._load_part("head.json", Head.load, fingerprint),
            calibrator=self._load_part("calibrator.json", load_calibrator, fingerprint),
            thresholds=self._thresholds(),
            figures=tuple(
                self._checked_record("figures.json", Figure, entry) for entry in self._content["figures.json"]
            ),
            history=self._history(first.labels),
        )

    def _tasks(self, settings: _Settings) -> tuple[RecordedTask, ...]:
        files, shared = self._content, {"labels": self._content["labels.json"]}
        first = {**shared, "prompt": files["prompt.txt"], "user_template": files.get("user_template.txt")}
        place = self._folder / "settings.json"
        tasks = [
            task_from_record({**record, **(shared if number else first)}, place=place)
            for number, record in enumerate(settings.tasks)
        ]
        return (self._with_demonstrations(tasks[0]), *tasks[1:])

    def _with_demonstrations(self, recorded: RecordedTask) -> RecordedTask:
        """Return a task with its demonstration texts."""
        rows = self._content.get(DEMONSTRATIONS)
        if (recorded.task.demonstrations is None) is not (rows is None):
            raise self._damage(
                "settings.json", f"expected {DEMONSTRATIONS} where demonstrations are shown, and only there"
            )
        if rows is None:
            return recorded
        task = with_demonstrations(recorded.task, rows, self._folder / DEMONSTRATIONS)
        return replace(recorded, task=task)

    def _fingerprint(self, task: Task, description: Mapping[str, Any] | None) -> Fingerprint:
        """Return the manifest's fingerprint, checked against the prompt and the labels."""
        record = self._manifest.fingerprint
        found = fingerprint_of(
            task,
            description,
            rows=self._content.get(DEMONSTRATIONS),
            model=record["model"],
            space=record["space"],
        )
        if found.to_record() != record:
            changed = "; ".join(found.differences(record))
            raise self._damage("manifest.json", f"its fingerprint differs from the other files in {changed}")
        return found

    def _plan(self, n_tasks: int) -> Mapping[str, Any] | None:
        record = self._content.get("plan.json")
        expected = 1 if record is None else n_planned(record)
        if n_tasks != expected:
            whose = "one task without a plan" if record is None else f"{expected} tasks for the plan"
            raise self._damage("settings.json", f"expected {whose}, got {n_tasks}")
        return record

    def _load_part(self, name: str, load: Callable[..., _Part], fingerprint: Fingerprint) -> _Part | None:
        """Return the correction, head or calibrator in a file; None if the bundle has no such file."""
        return load(self._folder / name, fingerprint=fingerprint) if name in self._content else None

    def _thresholds(self) -> dict[str, Any]:
        thresholds: dict[str, Any] = self._content["thresholds.json"]
        if set(thresholds) != set(thresholds_of(None)):
            named = ", ".join(sorted(thresholds_of(None)))
            raise self._damage(
                "thresholds.json", f"expected the keys {named}, got {sorted(thresholds)!r:.200}"
            )
        suggested, certified = thresholds["suggested"], thresholds["certified"]
        values = [] if suggested is None else [suggested["high"], suggested["low"]]
        values += [] if certified is None else [certified["threshold"]]
        if any(isinstance(value, bool) or not 0.0 <= value <= 1.0 for value in values):
            raise self._damage("thresholds.json", f"expected thresholds in [0, 1], got {values}")
        return thresholds

    def _history(self, labels: LabelSet) -> PredictionHistory:
        history = self._checked_record("history.json", PredictionHistory, self._content["history.json"])
        counts = history.labels.values()
        # An answer of several labels counts each of them.
        most = max(counts, default=0) if labels.holds_several else sum(counts)
        if most > history.rows:
            raise self._damage("history.json", f"expected {history.rows} labels at most, got {most}")
        return history

    def _checked_record(self, name: str, kind: type[_Model], value: object) -> _Model:
        return checked_record(kind, value, self._folder / name, damaged_file)

    def _damage(self, name: str, why: str) -> StateError:
        return damaged_file(self._folder / name, why)
