"""Export of a run's directory as a bundle."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibrant.assembly._bundle import Bundle, BundleHistory, BundleSettings, Figure, read_bundle
from calibrant.assembly._bundle_figures import figures_of
from calibrant.assembly._bundle_files import json_text, refuse_taken, write_folder
from calibrant.assembly._task_record import (
    RunSettings,
    read_run_settings,
    task_from_record,
    task_to_record,
    with_model_alone,
)
from calibrant.calibration._calibrators import ConfidenceCalibrator
from calibrant.calibration._saved import DEMONSTRATIONS, UNKNOWN, SavedPredictions
from calibrant.calibration._thresholds import suggest_thresholds
from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import CalibrantError, ConfigurationError, DataError, StateError
from calibrant.core._files import read_run_record
from calibrant.core._fingerprint import asked_text
from calibrant.core._label_records import labels_to_record
from calibrant.core._labels import LabelSet
from calibrant.core._settings import DemonstrationSettings
from calibrant.core._task import Task
from calibrant.evaluation._saved import load_predictions
from calibrant.inference._classifier import Classifier
from calibrant.inference._models import call_options
from calibrant.inference.doctor._records import identity
from calibrant.logprobs._schema import enum_schema
from calibrant.runs._directory import MANIFEST, read_manifest, unfinished

_HISTORY: Final = 1000  # confidences that are kept
_DESCRIBED: Final = (
    "model",
    "options",
    "method",
    "response_format",
    "top_logprobs",
    "prompt",
    "user_template",
    "label_prior",
)
# Settings that have files of their own, and of the first task alone.
_PACKED_ALWAYS: Final = frozenset({"labels", "demonstrations"})
_PACKED: Final = _PACKED_ALWAYS | {"prompt", "user_template"}
_AGAIN: Final = "run the same command again, which writes it and asks nothing anew"


def export(
    run: str | Path,
    out: str | Path,
    *,
    task: Task | str | Path | None = None,
    model: str | None = None,
    calibration: str | Path | None = None,
    texts: bool = True,
) -> Bundle:
    """Export a run as a bundle, with its measured figures.

    Parameters
    ----------
    run : str or Path
        Directory of `calibrant optimize` (whose best prompt counts), `calibrant evaluate`, `calibrant batch` or
        `calibrant cascade run`.
    out : str or Path
        The bundle's folder; it must not exist, or be empty. It is written as a whole, or not at all.
    task : Task or path, optional
        The task of the run, if the run did not record its settings.
    model : str, optional
        With `task`: the model that was asked instead of the task's own.
    calibration : str or Path, optional
        Directory that `calibrant calibrate` wrote; by default the run's own, if it was calibrated there.
    texts : bool, default True
        True to pack the demonstrations. Without them the bundle's prompts show none, and it holds no head,
        correction, calibrator, threshold or figure, as these belong to prompts with demonstrations. Texts quoted in
        the prompt itself stay.

    Returns
    -------
    Bundle
        The bundle, read back from its folder.

    Raises
    ------
    ConfigurationError
        `out` is taken, or the task cannot be used.
    DataError
        `run` holds no run, or `calibration` no calibration.
    StateError
        The run is unfinished or damaged, its parts do not belong together, or the folder cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant import BatchEvaluator, Classifier, Example, Task
    >>> from calibrant.assembly import export
    >>> from calibrant.testing import FakeClient, fake_model
    >>> out = Path(tempfile.mkdtemp())
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?")
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)}, field="label", name="fake/pets")
    >>> with fake_model("fake/pets", fake) as name:
    ...     rows = [Example(input="purrs", answer="cat")]
    ...     _ = BatchEvaluator(Classifier.from_task(task, model=name)).evaluate(rows, out=out / "run")
    ...     bundle = export(out / "run", out / "bundle", task=task, model=name)
    >>> [(figure.name, figure.estimate) for figure in bundle.figures if figure.name.startswith("accuracy, all")]
    [('accuracy, all rows', 1.0)]
    """
    out = Path(out)
    refuse_taken(out)
    place = Path(run)
    calibrated = place if calibration is None else Path(calibration)
    if calibration is not None and not any(calibrated.glob("calibrat*.json")):
        raise DataError("expected calibration.json of `calibrant calibrate`, got none.", path=calibrated)
    try:
        found = _ExportedRun(place, task, model, calibrated)
        if not texts:
            found.leave_out_texts()
        files = found.files()
    except CalibrantError:
        raise
    except OSError as error:
        raise StateError(f"{place}: cannot be read ({error}): allow it to be read.") from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(
            f"{place}: damaged: its files are not what a run leaves ({error!r}): run the same command again."
        ) from error
    write_folder(out, files, found.fingerprint.to_record(), check=read_bundle)
    return read_bundle(out)


def fitted_files(
    classifier: Classifier,
    task: Task,
    *,
    calibrator: ConfidenceCalibrator | None = None,
    held_out: SavedPredictions | None = None,
) -> dict[str, str]:
    """Return the files of a bundle for a classifier that was fitted in memory, without a run.

    Parameters
    ----------
    classifier : Classifier
        The classifier, with its head.
    task : Task
        The task it was opened from, with the prompt it asks under.
    calibrator : ConfidenceCalibrator, optional
        Of the confidence in its labels.
    held_out : SavedPredictions, optional
        Predictions of labelled rows, none of which taught the head or the calibrator of its own prediction. Figures,
        history and suggested thresholds come from them.

    Returns
    -------
    dict of str to str
        Contents by name, for `calibrant.assembly._bundle_files.write_folder`.
    """
    record = task_to_record(task)
    described = classifier.describe()
    settings = BundleSettings(
        tasks=({key: value for key, value in record.items() if key not in _PACKED},),
        prompt_for_all=False,
        description={name: described[name] for name in (*_DESCRIBED, "head") if name in described},
    )
    thresholds = _suggested(held_out)
    history = BundleHistory(rows=0, labels={}, confidence=())
    figures: tuple[Figure, ...] = ()
    if held_out is not None:
        history = _history(held_out, task.labels)
        figures = figures_of(held_out, task.labels, thresholds=thresholds)
    files = {
        "prompt.txt": task.prompt,
        "labels.json": json_text(labels_to_record(task.labels)),
        "schema.json": json_text(enum_schema(task.labels, task.field)),
        "settings.json": json_text(dict(settings)),
        "thresholds.json": json_text(thresholds),
        "figures.json": json_text([figure.model_dump() for figure in figures]),
        "history.json": json_text(history.model_dump()),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, learned in (("head", classifier.head), ("calibrator", calibrator)):
            if learned is not None:
                learned.save(Path(folder) / f"{name}.json", fingerprint=classifier.fingerprint())
                files[f"{name}.json"] = _text(Path(folder) / f"{name}.json")
    return files


def _suggested(predictions: SavedPredictions | None) -> dict[str, Any]:
    """Return the contents of ``thresholds.json``: suggestions, or the reason for none."""
    found: dict[str, Any] = {
        "suggested": None,
        "no_suggestion": "no labelled rows",
        "certified": None,
        "certification": None,
    }
    if predictions is not None:
        known = ~np.isnan(predictions.confidence) & (predictions.correct != UNKNOWN)
        try:
            suggestion = suggest_thresholds(predictions.confidence[known], predictions.correct[known])
        except ConfigurationError as error:  # too few right answers
            return {**found, "no_suggestion": str(error)}
        found |= {"suggested": asdict(suggestion), "no_suggestion": ""}
    return found


def _refuse_labels(path: Path) -> None:
    job = path / "labels.json"  # of a provider's batch
    if job.exists() or ((path / MANIFEST).exists() and read_manifest(path).get("kind") == "labels"):
        raise StateError(
            f"{path}: expected a task file, a bundle or the directory of a run, got labels of rows without answers, "
            "which have no calibrator and no thresholds: name what they were labelled with."
        )


class _ExportedRun:
    """Contents of a run's directory, checked to belong together."""

    def __init__(
        self, path: Path, task: Task | str | Path | None, model: str | None, calibration: Path
    ) -> None:
        if not path.is_dir():
            raise DataError("no such directory: expected that of a run.", path=path)
        _refuse_labels(path)
        self._path = path
        self._search, self._metrics = _record(path / "result.json"), _record(path / "metrics.json")
        if (why := unfinished(path)) is not None:
            raise StateError(f"{path} {why}: run the same command again to finish it, and export then.")
        self._predictions = load_predictions(path)
        if self._predictions.fingerprint is None:
            raise StateError(
                f"{path}: expected a run that says which prompt and model its predictions are from (run.json, "
                "result.json or batch.json, and log-probabilities in some rows), got none: run it again."
            )
        self.fingerprint = self._predictions.fingerprint
        self._description = None if self._search is not None else _description(path)
        self._settings = _settings(path, task, model, self._description)
        self._recorded = task_from_record(self._settings.tasks[0], place=path / "task.json")
        self._prompt, self._user_template = self._prompt_and_template()
        self._calibration_folder = calibration
        self._calibration = _record(calibration / "calibration.json")
        self._demonstrations = self._demonstration_settings()
        self._texts_left_out = False
        self._check()

    def _prompt_and_template(self) -> tuple[str, str | None]:
        first, description = self._settings.tasks[0], self._description
        if self._search is not None:
            best = self._search["best_candidate"]
            return best["system_prompt"], best.get("user_template")
        of_one = self._settings.plan is None and (self._settings.prompt_for_all or not first["cascade"])
        chosen = description if description is not None and of_one else first
        return chosen["prompt"], chosen["user_template"]

    def _demonstration_settings(self) -> DemonstrationSettings | None:
        if self._search is not None:
            text = self._search["best_candidate"].get("demonstrations", "")
            return DemonstrationSettings.from_text(text) if text.strip() else None
        shown = (self._description or {}).get("demonstrations")
        if shown is None:
            return None
        return DemonstrationSettings.of({name: shown[name] for name in DemonstrationSettings.model_fields})

    def leave_out_texts(self) -> None:
        """Remove the demonstrations from the export, with all that was learned or measured with them."""
        if self._demonstrations is None:
            return
        if self._description is not None:
            kept = self._description.items()
            described = {key: value for key, value in kept if key not in {"demonstrations", "head"}}
            self._description = {**described, "label_prior": None}
        asked = asked_text(self._prompt, self._user_template)
        self.fingerprint = replace(self.fingerprint, prompt=asked)
        self._metrics = self._calibration = self._demonstrations = None
        self._texts_left_out = True

    def _check(self) -> None:
        """Raise StateError if the settings or the calibration belong to another run.

        The models' behaviour is checked when the bundle is loaded, as that check needs the models.
        """
        recorded, first, plan = self._recorded, self._recorded.task, self._settings.plan
        differs = []
        if list(first.labels.labels) != list(self.fingerprint.labels):
            differs.append("labels")
        one = not first.sections and plan is None
        if one and first.model.name != self.fingerprint.model:
            differs.append(f"model ({self.fingerprint.model!r} in the run, {first.model.name!r} in the task)")
        if self._description is not None and one:
            left_out = recorded.left_out.get(first.model.name, ())
            options = identity("", call_options(first.model.options))[2]
            then = self._description["options"]
            if options != {name: value for name, value in then.items() if name not in left_out}:
                differs.append("options of the model")
            if self._description["response_format"] != enum_schema(first.labels, first.field):
                differs.append("schema of the answer (labels and field)")
        if plan is not None and any(task.get("demonstrations") for task in self._settings.tasks):
            differs.append("demonstrations, which the models of a plan do not show")
        if differs:
            raise StateError(
                f"{self._path}: expected the settings of this run, got others, which differ in {'; '.join(differs)}: "
                "hand in the task file that was run (--task), and --model where another model was asked."
            )
        calibrated = None if self._calibration is None else self._calibration.get("fingerprint")
        if self._calibration is not None and calibrated != self.fingerprint.to_record():
            raise StateError(
                f"{self._path}: expected a calibration of this run's predictions, got calibration.json of others: "
                "calibrate this run, or name the directory of its calibration."
            )

    def files(self) -> dict[str, str]:
        """Return the content of every file of the bundle by its name."""
        first = self._recorded.task
        files = {
            "prompt.txt": self._prompt,
            "labels.json": json_text(labels_to_record(first.labels)),
            "schema.json": json_text(enum_schema(first.labels, first.field)),
            **self._settings_files(),
            **self._measured_files(first),
            **self._calibration_files(),
        }
        if self._demonstrations is not None:
            files[DEMONSTRATIONS] = _text(self._path / DEMONSTRATIONS)
        if self._user_template is not None:
            files["user_template.txt"] = self._user_template
        if self._settings.plan is not None:
            files["plan.json"] = json_text(self._settings.plan)
        for text in files.values():
            text.encode()  # half a character, which UTF-8 cannot hold, is an error
        return files

    def _settings_files(self) -> dict[str, str]:
        """Return ``settings.json``."""
        tasks = []
        for number, record in enumerate(self._settings.tasks):
            packed = _PACKED_ALWAYS if number else _PACKED
            own = {key: value for key, value in record.items() if key not in packed}
            if self._demonstrations is not None:  # a search may have found others than the task's
                own["demonstrations"] = self._demonstrations.model_dump()
            tasks.append(own)
        settings = BundleSettings(
            tasks=tuple(tasks), prompt_for_all=self._settings.prompt_for_all, description=self._description
        )
        return {"settings.json": json_text(dict(settings))}

    def _measured_files(self, task: Task) -> dict[str, str]:
        """Return the files of figures, history and thresholds, empty if demonstrations are left out."""
        record = self._calibration or {}
        thresholds = {
            "suggested": record.get("thresholds"),
            "no_suggestion": record.get("no_thresholds", ""),
            "certified": record.get("certified"),
            "certification": record.get("certification"),
        }
        history, figures = BundleHistory(rows=0, labels={}, confidence=()), tuple[Figure, ...]()
        if not self._texts_left_out:
            history = _history(self._predictions, task.labels)
            # A cascade decides by the thresholds between its models.
            in_turn = "cascade" in task.sections or self._settings.plan is not None
            figures = figures_of(
                self._predictions,
                task.labels,
                metrics=self._metrics,
                search=self._search,
                calibration=self._calibration,
                thresholds=None if in_turn else thresholds,
            )
        return {
            "thresholds.json": json_text(thresholds),
            "figures.json": json_text([figure.model_dump() for figure in figures]),
            "history.json": json_text(history.model_dump()),
        }

    def _calibration_files(self) -> dict[str, str]:
        """Return the run's files of head (or else label prior) and calibrator, unchanged."""
        if self._texts_left_out:
            return {}
        description = self._description or {}
        files = {}
        if (self._path / "head.json").exists():
            files["head.json"] = _text(self._path / "head.json")
        elif "head" in description or (self._search or {}).get("final") is not None:
            raise StateError(
                f"{self._path}: expected head.json, which made the run's predictions, got none: {_AGAIN}."
            )
        elif (self._path / "label_prior.json").exists():
            files["label_prior.json"] = _text(self._path / "label_prior.json")
        elif description.get("label_prior") is not None:
            raise StateError(
                f"{self._path}: expected label_prior.json, as the run's predictions are corrected, got none: {_AGAIN}."
            )
        if (self._calibration_folder / "calibrator.json").exists():
            if self._calibration is None:
                raise StateError(
                    f"{self._calibration_folder}: expected calibration.json beside calibrator.json: calibrate again."
                )
            files["calibrator.json"] = _text(self._calibration_folder / "calibrator.json")
        return files


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
    missing = [name for name in _DESCRIBED if name not in found]
    if missing:
        raise StateError(f"{source}: expected {missing[0]!r}, got none: run the evaluation again.")
    return {name: found[name] for name in (*_DESCRIBED, "head", "demonstrations") if name in found}


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


def _history(predictions: SavedPredictions, labels: LabelSet) -> BundleHistory:
    known = np.sort(predictions.confidence[~np.isnan(predictions.confidence)])
    if len(known) > _HISTORY:
        known = known[np.linspace(0, len(known) - 1, _HISTORY).round().astype(np.intp)]
    counts: Counter[str] = Counter()
    for label in predictions.labels:
        if label is not None:
            counts.update(labels.decisions(label) if isinstance(labels, CompositeLabels) else [label])
    return BundleHistory(
        rows=len(predictions), labels=dict(sorted(counts.items())), confidence=tuple(known.tolist())
    )
