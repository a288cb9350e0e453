"""Tuned classifiers read from the directories of runs; nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.core._errors import CalibrantError, DataError, StateError
from calibrant.core._files import read_run_record
from calibrant.core._fingerprint import Fingerprint, asked_text
from calibrant.core._settings import DemonstrationSettings
from calibrant.core._task import RecordedTask, Task
from calibrant.evaluation._figures import figures_of
from calibrant.heads._tuned import (
    DESCRIBED,
    DESCRIBED_SOMETIMES,
    PredictionHistory,
    Tuned,
    thresholds_of,
)
from calibrant.inference._models import call_options
from calibrant.inference.doctor._records import identity
from calibrant.logprobs._schema import enum_schema
from calibrant.runs._directory import DEMONSTRATIONS, MANIFEST, read_manifest, unfinished
from calibrant.runs._rows import SavedRows
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

_AGAIN: Final = "run the same command again, which writes it and asks nothing anew"


def from_run(
    run: str | Path,
    *,
    task: Task | str | Path | None = None,
    model: str | None = None,
    calibration: str | Path | None = None,
    texts: bool = True,
) -> Tuned:
    """Read the tuned classifier of a run; see `Tuned.from_run`."""
    place = Path(run)
    calibrated = place if calibration is None else Path(calibration)
    if calibration is not None and not any(calibrated.glob("calibrat*.json")):
        raise DataError("expected calibration.json of `calibrant calibrate`, got none.", path=calibrated)
    try:
        return _RunReader(place, task, model, calibrated, texts=texts).tuned()
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
        calibration: Path,
        *,
        texts: bool,
    ) -> None:
        if not path.is_dir():
            raise DataError("no such directory: expected that of a run.", path=path)
        _refuse_labels(path)
        self._path = path
        self._search, self._metrics = _record(path / "result.json"), _record(path / "metrics.json")
        if (why := unfinished(path)) is not None:
            raise StateError(f"{path} {why}: run the command that wrote it again to finish it first.")
        self._predictions = SavedRows.load(path)
        self._fingerprint = _known_fingerprint(path, self._predictions)
        self._description = None if self._search is not None else _description(path)
        self._settings = _settings(path, task, model, self._description)
        self._calibration_folder = calibration
        self._calibration = _record(calibration / "calibration.json")
        self._tasks = self._prompted_tasks()
        self._check()
        self._texts_left_out = not texts and self._tasks[0].task.demonstrations is not None

    def tuned(self) -> Tuned:
        """Return the tuned classifier of the run."""
        if self._texts_left_out:
            return self._without_texts()
        task, settings = self._tasks[0].task, self._settings
        thresholds = thresholds_of(self._calibration)
        # A cascade decides by the thresholds between its models.
        in_turn = "cascade" in task.sections or settings.plan is not None
        head = self._head()
        return Tuned(
            path=self._path,
            tasks=self._tasks,
            plan=settings.plan,
            prompt_for_all=settings.prompt_for_all,
            description=self._description,
            fingerprint=self._fingerprint,
            head=head,
            prior_correction=None if head is not None else self._label_prior(),
            calibrator=self._calibrator(),
            thresholds=thresholds,
            figures=figures_of(
                self._predictions,
                task.labels,
                metrics=self._metrics,
                search=self._search,
                calibration=self._calibration,
                thresholds=None if in_turn else thresholds,
            ),
            history=PredictionHistory.of(
                self._predictions.labels, self._predictions.confidence, labels=task.labels
            ),
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
        place = self._path / "task.json"
        first, *others = (task_from_record(record, place=place) for record in self._settings.tasks)
        prompt, template = self._prompt_and_template(first.task)
        shown = self._demonstration_settings()
        task = replace(first.task, prompt=prompt, user_template=template, demonstrations=shown)
        if shown is not None:
            shown_from = self._path / DEMONSTRATIONS
            task = with_demonstrations(task, _text(shown_from), shown_from)
        return (replace(first, task=task), *others)

    def _prompt_and_template(self, task: Task) -> tuple[str, str | None]:
        description = self._description
        if self._search is not None:
            best = self._search["best_candidate"]
            return best["system_prompt"], best.get("user_template")
        of_one = self._settings.plan is None and (
            self._settings.prompt_for_all or "cascade" not in task.sections
        )
        if description is not None and of_one:
            return description["prompt"], description["user_template"]
        return task.prompt, task.user_template

    def _demonstration_settings(self) -> DemonstrationSettings | None:
        if self._search is not None:
            text = self._search["best_candidate"].get("demonstrations", "")
            return DemonstrationSettings.from_text(text) if text.strip() else None
        shown = (self._description or {}).get("demonstrations")
        if shown is None:
            return None
        return DemonstrationSettings.of({name: shown[name] for name in DemonstrationSettings.model_fields})

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
        self._check_parts(first)

    def _check_parts(self, task: Task) -> None:
        """Raise StateError if the fingerprint is that of another prompt, or the plan of other models."""
        rows = None if task.demonstrations is None else _text(self._path / DEMONSTRATIONS)
        known, plan = self._fingerprint, self._settings.plan
        found = fingerprint_of(task, self._description, rows=rows, model=known.model, space=known.space)
        if changed := found.differences(known.to_record()):
            raise StateError(
                f"{self._path}: damaged: its predictions differ from its other files in {'; '.join(changed)}: {_AGAIN}."
            )
        expected = 1 if plan is None else n_planned(plan)
        if len(self._tasks) != expected:
            raise StateError(
                f"{self._path}: damaged: expected {expected} tasks, got {len(self._tasks)}: {_AGAIN}."
            )

    def _head(self) -> Head | None:
        """Return the head that made the run's predictions."""
        path, description = self._path / "head.json", self._description or {}
        if path.exists():
            from calibrant.heads._head import Head  # noqa: PLC0415 (few runs have one)

            return Head.load(path, fingerprint=self._fingerprint)
        if "head" in description or (self._search or {}).get("final") is not None:
            raise StateError(
                f"{self._path}: expected head.json, which made the run's predictions, got none: {_AGAIN}."
            )
        return None

    def _label_prior(self) -> LabelPriorCorrection | None:
        """Return the label prior that the run's predictions are corrected for."""
        path, description = self._path / "label_prior.json", self._description or {}
        if path.exists():
            from calibrant.calibration._prior import LabelPriorCorrection  # noqa: PLC0415 (few runs have one)

            return LabelPriorCorrection.load(path, fingerprint=self._fingerprint)
        if description.get("label_prior") is not None:
            raise StateError(
                f"{self._path}: expected label_prior.json, as the run's predictions are corrected, got none: {_AGAIN}."
            )
        return None

    def _calibrator(self) -> ConfidenceCalibrator | None:
        """Return the calibrator beside the calibration, if there is one."""
        path = self._calibration_folder / "calibrator.json"
        if not path.exists():
            return None
        if self._calibration is None:
            raise StateError(
                f"{self._calibration_folder}: expected calibration.json beside calibrator.json: calibrate again."
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


def _refuse_labels(path: Path) -> None:
    job = path / "labels.json"  # of a provider's batch
    if job.exists() or ((path / MANIFEST).exists() and read_manifest(path).get("kind") == "labels"):
        raise StateError(
            f"{path}: expected a task file, a bundle or the directory of a run, got labels of rows without answers, "
            "which have no calibrator and no thresholds: name what they were labelled with."
        )


def _known_fingerprint(path: Path, predictions: SavedRows) -> Fingerprint:
    if predictions.fingerprint is None:
        raise StateError(
            f"{path}: expected a run that says which prompt and model its predictions are from (run.json, "
            "result.json or batch.json, and log-probabilities in some rows), got none: run it again."
        )
    return predictions.fingerprint


def _record(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None for a missing file."""
    return read_run_record(path, remedy="run it again") if path.exists() else None


def _description(path: Path) -> dict[str, Any]:
    """Return the stored `Classifier.describe` of a run, without the endpoint's address."""
    source = path / "run.json"
    found = _record(source)
    if found is None:  # a job at a provider's batch interface
        source = path / "batch.json"
        found = (_record(source) or {}).get("described", {})
    missing = [name for name in DESCRIBED if name not in found]
    if missing:
        raise StateError(f"{source}: expected {missing[0]!r}, got none: run the evaluation again.")
    return {name: found[name] for name in (*DESCRIBED, *DESCRIBED_SOMETIMES) if name in found}


def _settings(
    path: Path, task: Task | str | Path | None, model: str | None, description: Mapping[str, Any] | None
) -> RunSettings:
    """Return the settings of the run, from its ``task.json`` or from `task`."""
    if task is None:
        found = read_run_settings(path)
        if found is None:
            raise StateError(
                f"{path}: expected task.json, in which commands write down what they asked, got none: hand in the task "
                "file that was run, with --task."
            )
        return found
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
