"""Tuned classifiers read from the directories of runs; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.core._errors import CalibrantError, DataError, StateError
from calibrant.core._files import read_run_record
from calibrant.core._fingerprint import asked_text
from calibrant.core._settings import DemonstrationSettings
from calibrant.core._task import RecordedTask, Task
from calibrant.heads._tuned import (
    DESCRIBED,
    DESCRIBED_SOMETIMES,
    Calibration,
    Measurements,
    Tuned,
    thresholds_of,
)
from calibrant.inference._models import call_options
from calibrant.inference.doctor._records import identity
from calibrant.logprobs._schema import enum_schema
from calibrant.runs._directory import BATCH, DEMONSTRATIONS, MANIFEST, METRICS, RESULT, unfinished
from calibrant.runs._rows import SavedRows, read_fingerprint
from calibrant.tuned._task_record import (
    RunSettings,
    fingerprint_of,
    n_planned,
    read_run_settings,
    task_from_record,
    task_to_record,
    with_demonstrations,
    with_model_alone,
)

if TYPE_CHECKING:
    from calibrant.calibration._calibrators import ConfidenceCalibrator
    from calibrant.calibration._prior import LabelPriorCorrection
    from calibrant.heads._head import Head

_LABEL_JOB: Final = "labels.json"  # labels of a job at a provider's batch interface
_AGAIN: Final = "run the same command again, which writes it and asks nothing anew"


def from_run(
    run: str | Path,
    *,
    task: Task | str | Path | None = None,
    model: str | None = None,
    calibration: str | Path | Calibration | None = None,
    texts: bool = True,
) -> Tuned:
    """Read the tuned classifier of a run; see `Tuned.from_run`."""
    place = Path(run)
    if isinstance(calibration, str | Path) and not any(Path(calibration).glob("calibrat*.json")):
        raise DataError(
            "expected calibration.json of `calibrant calibrate`, got none.", path=Path(calibration)
        )
    with _damage_named(place):
        return _RunReader(
            place, task, model, place if calibration is None else calibration, texts=texts
        ).tuned()


@contextmanager
def _damage_named(place: Path) -> Iterator[None]:
    """Raise StateError with the name of the run if its files are not what a run leaves."""
    try:
        yield
    except CalibrantError:
        raise
    except OSError as error:
        raise StateError(f"{place}: cannot be read ({error}): allow it to be read.") from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(
            f"{place}: damaged: its files are not what a run leaves ({error!r}): run the same command again."
        ) from error


class _RunReader:
    """Reader of the directory of a run, whose parts are checked to belong together."""

    def __init__(
        self,
        path: Path,
        task: Task | str | Path | None,
        model: str | None,
        calibration: str | Path | Calibration,
        *,
        texts: bool,
    ) -> None:
        if not path.is_dir():
            raise DataError("no such directory: expected that of a run.", path=path)
        manifest = _record(path / MANIFEST)
        if (path / _LABEL_JOB).exists() or (manifest or {}).get("kind") == "labels":
            raise StateError(
                f"{path}: expected a task file, a bundle or the directory of a run, got labels of rows without "
                "answers, which have no calibrator and no thresholds: name what they were labelled with."
            )
        self._path = path
        self._search = _record(path / RESULT)
        if (why := unfinished(path)) is not None:
            raise StateError(f"{path} {why}: run the same command again to finish it first.")
        fingerprint = read_fingerprint(path)
        if fingerprint is None:
            raise StateError(
                f"{path}: expected a run that says which prompt and model its predictions are from (run.json, "
                "result.json or batch.json, and log-probabilities in some rows), got none: run it again."
            )
        self._fingerprint = fingerprint
        self._description = None if self._search is not None else _description(path, manifest)
        self._settings = (
            read_run_settings(path) if task is None else _settings_of(task, model, self._description)
        )
        self._calibrated_by = calibration
        if isinstance(calibration, str | Path):
            self._calibration = _record(Path(calibration) / "calibration.json")
        else:
            self._calibration = calibration.to_record()
        self._tasks = self._prompted_tasks()
        self._check()
        self._texts_left_out = not texts and self._tasks[0].task.demonstrations is not None

    def tuned(self) -> Tuned:
        """Return the tuned classifier of the run."""
        if self._texts_left_out:
            return self._without_texts()
        head, prior_correction = self._corrections()
        return Tuned(
            path=self._path,
            tasks=self._tasks,
            plan=self._settings.plan,
            prompt_for_all=self._settings.prompt_for_all,
            description=self._description,
            fingerprint=self._fingerprint,
            head=head,
            prior_correction=prior_correction,
            calibrator=self._calibrator(),
            thresholds=thresholds_of(self._calibration),
            measurements=self._measurements,
        )

    def _measurements(self) -> Measurements:
        """Return figures and history, for which all rows are read."""
        from calibrant.evaluation._figures import measurements_of  # noqa: PLC0415 (opening does without)

        task, plan = self._tasks[0].task, self._settings.plan
        # A cascade decides by the thresholds between its models.
        in_turn = "cascade" in task.sections or plan is not None
        with _damage_named(self._path):
            return measurements_of(
                SavedRows.load(self._path),
                task.labels,
                metrics=_record(self._path / METRICS),
                search=self._search,
                calibration=self._calibration,
                thresholds=None if in_turn else thresholds_of(self._calibration),
            )

    def _without_texts(self) -> Tuned:
        """Return the value without demonstrations, and without all that was learned or measured with them."""
        first, *others = self._tasks
        task = replace(first.task, demonstrations=None, train=())
        description = self._description
        if description is not None:
            kept = {key: value for key, value in description.items() if key not in {"demonstrations", "head"}}
            description = {**kept, "label_prior": None}
        asked = asked_text(task.prompt, task.user_template)
        return Tuned(
            path=self._path,
            tasks=(replace(first, task=task), *others),
            plan=self._settings.plan,
            prompt_for_all=self._settings.prompt_for_all,
            description=description,
            fingerprint=replace(self._fingerprint, prompt=asked),
        )

    def _prompted_tasks(self) -> tuple[RecordedTask, ...]:
        """Return the recorded tasks; the first has the prompt and the demonstrations of the run."""
        place, plan, n_tasks = self._path / "task.json", self._settings.plan, len(self._settings.tasks)
        expected = 1 if plan is None else n_planned(plan)
        if n_tasks != expected:
            raise StateError(f"{self._path}: damaged: expected {expected} tasks, got {n_tasks}: {_AGAIN}.")
        first, *others = (task_from_record(record, place=place) for record in self._settings.tasks)
        task = self._prompted(first.task)
        if task.demonstrations is not None:
            shown_from = self._path / DEMONSTRATIONS
            task = with_demonstrations(task, _text(shown_from), shown_from)
        return (replace(first, task=task), *others)

    def _prompted(self, task: Task) -> Task:
        """Return the task with the prompt, the template and the settings of demonstrations of the run."""
        description, demonstrations = self._description, None
        if self._search is not None:
            best = self._search["best_candidate"]
            text = best.get("demonstrations", "")
            demonstrations = DemonstrationSettings.from_text(text) if text.strip() else None
            prompt, template = best["system_prompt"], best.get("user_template")
            return replace(task, prompt=prompt, user_template=template, demonstrations=demonstrations)
        if description is None:
            return replace(task, demonstrations=None)
        shown = description.get("demonstrations")
        if shown is not None:
            own = {name: shown[name] for name in DemonstrationSettings.model_fields}
            demonstrations = DemonstrationSettings.of(own)
        task = replace(task, demonstrations=demonstrations)
        is_cascade = "cascade" in task.sections and not self._settings.prompt_for_all
        if is_cascade or self._settings.plan is not None:
            return task
        return replace(task, prompt=description["prompt"], user_template=description["user_template"])

    def _check(self) -> None:
        """Raise StateError if the settings or the calibration belong to another run.

        The models' behaviour is checked when they are opened.
        """
        recorded, plan = self._tasks[0], self._settings.plan
        first, differs = recorded.task, []
        if list(first.labels.labels) != list(self._fingerprint.labels):
            differs.append("labels")
        one = not first.sections and plan is None
        if one and first.model.name != self._fingerprint.model:
            differs.append(
                f"model ({self._fingerprint.model!r} in the run, {first.model.name!r} in the task)"
            )
        if self._description is not None and one:
            differs += _differences(recorded, self._description)
        if plan is not None and any(task.get("demonstrations") for task in self._settings.tasks):
            differs.append("demonstrations, which the models of a plan do not show")
        if differs:
            raise StateError(
                f"{self._path}: expected the settings of this run, got others, which differ in {'; '.join(differs)}: "
                "hand in the task file that was run (--task), and --model where another model was asked."
            )
        calibrated = None if self._calibration is None else self._calibration.get("fingerprint")
        if self._calibration is not None and calibrated != self._fingerprint.to_record():
            raise StateError(
                f"{self._path}: expected a calibration of this run's predictions, got calibration.json of others: "
                "calibrate this run, or name the directory of its calibration."
            )
        # Without demonstrations, the prompt of an evaluation and its fingerprint are of one file.
        if self._search is not None or first.demonstrations is not None:
            self._check_prompt(first)

    def _check_prompt(self, task: Task) -> None:
        """Raise StateError if the fingerprint is that of another prompt."""
        rows = None if task.demonstrations is None else _text(self._path / DEMONSTRATIONS)
        known = self._fingerprint
        found = fingerprint_of(task, self._description, rows=rows, model=known.model, space=known.space)
        if found != known:
            changed = found.differences(known.to_record())
            raise StateError(
                f"{self._path}: damaged: its predictions differ from its other files in {'; '.join(changed)}: {_AGAIN}."
            )

    def _corrections(self) -> tuple[Head | None, LabelPriorCorrection | None]:
        """Return the head that made the run's predictions, or else the label prior they are corrected for."""
        description = self._description or {}
        head, prior = self._path / "head.json", self._path / "label_prior.json"
        if head.exists():
            from calibrant.heads._head import Head  # noqa: PLC0415 (few runs have one)

            return Head.load(head, fingerprint=self._fingerprint), None
        if "head" in description or (self._search or {}).get("final") is not None:
            raise StateError(
                f"{self._path}: expected head.json, which made the run's predictions, got none: {_AGAIN}."
            )
        if prior.exists():
            from calibrant.calibration._prior import LabelPriorCorrection  # noqa: PLC0415 (few runs have one)

            return None, LabelPriorCorrection.load(prior, fingerprint=self._fingerprint)
        if description.get("label_prior") is not None:
            raise StateError(
                f"{self._path}: expected label_prior.json, as the run's predictions are corrected, got none: {_AGAIN}."
            )
        return None, None

    def _calibrator(self) -> ConfidenceCalibrator | None:
        """Return the calibrator beside the calibration, if there is one."""
        if not isinstance(self._calibrated_by, str | Path):
            return self._calibrated_by.calibrator
        path = Path(self._calibrated_by) / "calibrator.json"
        if not path.exists():
            return None
        if self._calibration is None:
            raise StateError(
                f"{path.parent}: expected calibration.json beside calibrator.json: calibrate again."
            )
        from calibrant.calibration._choice import load_calibrator  # noqa: PLC0415 (few runs have one)

        return load_calibrator(path, fingerprint=self._fingerprint)


def _differences(recorded: RecordedTask, description: Mapping[str, Any]) -> list[str]:
    """Return in what a task of one model differs from the description of its run."""
    task, differs = recorded.task, []
    left_out = recorded.left_out.get(task.model.name, ())
    options = identity("", call_options(task.model.options))[2]
    then = description["options"]
    if options != {name: value for name, value in then.items() if name not in left_out}:
        differs.append("options of the model")
    if description["response_format"] != enum_schema(task.labels, task.field):
        differs.append("schema of the answer (labels and field)")
    return differs


def _record(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None for a missing file."""
    return read_run_record(path, remedy="run it again") if path.exists() else None


def _description(path: Path, manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the stored `Classifier.describe` of a run, without the endpoint's address."""
    source, found = path / MANIFEST, manifest
    if found is None:  # a job at a provider's batch interface
        source = path / BATCH
        found = (_record(source) or {}).get("described", {})
    missing = [name for name in DESCRIBED if name not in found]
    if missing:
        raise StateError(f"{source}: expected {missing[0]!r}, got none: run the evaluation again.")
    return {name: found[name] for name in (*DESCRIBED, *DESCRIBED_SOMETIMES) if name in found}


def _settings_of(
    task: Task | str | Path, model: str | None, description: Mapping[str, Any] | None
) -> RunSettings:
    """Return the settings of a run of a task file."""
    given = task if isinstance(task, Task) else Task.from_file(task, splits=())
    record = task_to_record(with_model_alone(given, model))
    common = _common_prompt(record)
    replaced = description is None or description["prompt"] != common
    return RunSettings(tasks=(record,), plan=None, prompt_for_all=replaced)


def _common_prompt(record: Mapping[str, Any]) -> str:
    """Return the prompt that all models share; empty if their prompts differ."""
    common = str(record["prompt"])
    if record["cascade"] is None:
        return common
    prompts = {
        common if model["prompt"] is None else str(model["prompt"]) for model in record["cascade"]["models"]
    }
    return prompts.pop() if len(prompts) == 1 else ""


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: cannot be read ({error}): restore it, or run again.") from error
