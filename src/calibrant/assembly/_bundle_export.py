"""Export of a run's directory as a bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibrant.assembly._bundle import Bundle, BundleHistory, BundleSettings, read_bundle
from calibrant.assembly._bundle_figures import figures_of
from calibrant.assembly._bundle_files import json_text, refuse_taken, write_folder
from calibrant.assembly._task_record import (
    RunSettings,
    asked_alone,
    read_run_settings,
    task_from_record,
    task_to_record,
)
from calibrant.calibration._saved import DEMONSTRATIONS, SavedPredictions
from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import CalibrantError, DataError, StateError
from calibrant.core._files import read_json_object
from calibrant.core._fingerprint import Fingerprint, asked_text
from calibrant.core._label_records import labels_to_record
from calibrant.core._labels import LabelSet
from calibrant.core._settings import DemonstrationSettings
from calibrant.core._task import Task
from calibrant.evaluation._saved import load_predictions
from calibrant.inference._models import call_options
from calibrant.inference.doctor._records import identity, public_description
from calibrant.logprobs._schema import enum_schema
from calibrant.runs._directory import unfinished

_HISTORY: Final = 1000  # confidences that are kept
_LEARNED: Final = "learned.json"
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
_PACKED: Final = {"labels", "prompt", "user_template"}  # of the first task: they have files of their own
_AGAIN: Final = "run the same command again, which writes it and asks nothing anew"


@dataclass(frozen=True, kw_only=True)
class _ExportedRun:
    """Contents of a run's directory.

    Attributes
    ----------
    path : Path
        The directory.
    settings : RunSettings
        Models of the run, and their settings.
    prompt : str
        The prompt of the run; the best one of a search.
    user_template : str or None
        The user template of that prompt.
    description : mapping or None
        Result of `Classifier.describe`; None for a search.
    metrics, search, calibration : mapping or None
        ``metrics.json``, ``result.json`` and ``calibration.json``.
    predictions : SavedPredictions
        The rows.
    fingerprint : Fingerprint
        Fingerprint of the predictions: prompt, model and labels.
    demonstrations : DemonstrationSettings or None
        Settings of the demonstrations in its prompts.
    texts_left_out : bool
        True if the bundle leaves out the demonstrations, and everything learned or measured with them.
    """

    path: Path
    settings: RunSettings
    prompt: str
    user_template: str | None
    description: dict[str, Any] | None
    metrics: Mapping[str, Any] | None
    search: Mapping[str, Any] | None
    calibration: Mapping[str, Any] | None
    predictions: SavedPredictions
    fingerprint: Fingerprint
    demonstrations: DemonstrationSettings | None
    texts_left_out: bool = False


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
        found = _read_run(place, task, model, calibrated)
        found = found if texts else _without_texts(found)
        files = _files(found, calibrated)
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


def _read_run(
    path: Path, task: Task | str | Path | None, model: str | None, calibration: Path
) -> _ExportedRun:
    if not path.is_dir():
        raise DataError("no such directory: expected that of a run.", path=path)
    search, metrics = _record(path / "result.json"), _record(path / "metrics.json")
    if (why := unfinished(path)) is not None:
        raise StateError(f"{path} {why}: run the same command again to finish it, and export then.")
    predictions = load_predictions(path)
    if predictions.fingerprint is None:
        raise StateError(
            f"{path}: expected a run that says which prompt and model its predictions are from (run.json, "
            "result.json or batch.json, and log-probabilities in some rows), got none: run it again with this version."
        )
    description = None if search is not None else _description(path)
    settings = _settings(path, task, model, description)
    prompt, template = _prompt(settings, search, description)
    found = _ExportedRun(
        path=path,
        settings=settings,
        prompt=prompt,
        user_template=template,
        description=description,
        metrics=metrics,
        search=search,
        calibration=_record(calibration / "calibration.json"),
        predictions=predictions,
        fingerprint=predictions.fingerprint,
        demonstrations=_demonstrations(search, description),
    )
    _check(found)
    return found


def _demonstrations(
    search: Mapping[str, Any] | None, description: Mapping[str, Any] | None
) -> DemonstrationSettings | None:
    """Return the demonstration texts of a run's prompts."""
    if search is not None:
        text = search["best_candidate"].get("demonstrations", "")
        return DemonstrationSettings.from_text(text) if text.strip() else None
    shown = (description or {}).get("demonstrations")
    if shown is None:
        return None
    return DemonstrationSettings.of({name: shown[name] for name in DemonstrationSettings.model_fields})


def _without_texts(run: _ExportedRun) -> _ExportedRun:
    """Return a run without demonstrations, and without the figures measured with them."""
    if run.demonstrations is None:
        return run
    description = run.description
    if description is not None:
        kept = {key: value for key, value in description.items() if key not in {"demonstrations", "head"}}
        description = {**kept, "label_prior": None}
    asked = replace(run.fingerprint, prompt=asked_text(run.prompt, run.user_template))
    return replace(
        run,
        description=description,
        metrics=None,
        calibration=None,
        fingerprint=asked,
        demonstrations=None,
        texts_left_out=True,
    )


def _record(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None for a missing file."""
    return read_json_object(path, remedy="run it again") if path.exists() else None


def _description(path: Path) -> dict[str, Any]:
    """Return the description from `Classifier.describe`, without the address, which depends on the machine."""
    source = path / "run.json"
    found = _record(source)
    if found is None:  # a job at a provider's batch interface
        source = path / "batch.json"
        found = (_record(source) or {}).get("described") or {}
    missing = [name for name in _DESCRIBED if name not in found]
    if missing:
        raise StateError(
            f"{source}: expected {missing[0]!r}, got none: run the evaluation again with this version."
        )
    return {name: found[name] for name in (*_DESCRIBED, "head", "demonstrations") if name in found}


def _settings(
    path: Path, task: Task | str | Path | None, model: str | None, description: Mapping[str, Any] | None
) -> RunSettings:
    """Return the settings of the run, from its ``task.json`` or from `task`."""
    if task is None:
        found = read_run_settings(path)
        if found is None:
            raise StateError(
                f"{path}: expected task.json, in which runs write down what they asked, got none: run the same command "
                "again, which writes it and asks nothing anew, or hand in the task file that was run, with --task."
            )
        return found
    given = task if isinstance(task, Task) else Task.from_file(task, splits=())
    record = task_to_record(asked_alone(given, model))
    common = _common_prompt(record)
    replaced = description is None or description["prompt"] != common
    return RunSettings(tasks=(record,), plan=None, prompt_for_all=replaced)


def _common_prompt(record: Mapping[str, Any]) -> str:
    """Return the common prompt of all models; empty if they differ, as in `Cascade`."""
    common = str(record["prompt"])
    if record["cascade"] is None:
        return common
    prompts = {
        common if model["prompt"] is None else str(model["prompt"]) for model in record["cascade"]["models"]
    }
    return prompts.pop() if len(prompts) == 1 else ""


def _prompt(
    settings: RunSettings, search: Mapping[str, Any] | None, description: Mapping[str, Any] | None
) -> tuple[str, str | None]:
    """Return the run's prompt and user template."""
    first = settings.tasks[0]
    if search is not None:
        best = search["best_candidate"]
        return best["system_prompt"], best.get("user_template")
    if (
        description is not None
        and settings.plan is None
        and (settings.prompt_for_all or not first["cascade"])
    ):
        return description["prompt"], description["user_template"]
    return first["prompt"], first["user_template"]


def _check(run: _ExportedRun) -> None:
    """Refuse settings other than the run's.

    The models' behaviour is checked when the bundle is loaded, as that check needs the models.
    """
    recorded = task_from_record(run.settings.tasks[0], place=run.path / "task.json")
    first = recorded.task
    differs = []
    if list(first.labels.labels) != list(run.fingerprint.labels):
        differs.append("labels")
    one = not first.sections and run.settings.plan is None
    if one and first.model.name != run.fingerprint.model:
        differs.append(f"model ({run.fingerprint.model!r} in the run, {first.model.name!r} in the task)")
    if run.description is not None and one:
        left_out = recorded.left_out.get(first.model.name, ())
        options = identity("", call_options(first.model.options))[2]
        then = public_description(run.description)["options"]
        if options != {name: value for name, value in then.items() if name not in left_out}:
            differs.append("options of the model")
        if run.description["response_format"] != enum_schema(first.labels, first.field):
            differs.append("schema of the answer (labels and field)")
    if run.settings.plan is not None and any(task.get("demonstrations") for task in run.settings.tasks):
        differs.append("demonstrations, which the models of a plan do not show")
    if differs:
        raise StateError(
            f"{run.path}: expected the settings of this run, got others, which differ in {'; '.join(differs)}: hand in "
            "the task file that was run (--task), and --model where another model was asked."
        )
    if run.calibration is not None and run.calibration.get("fingerprint") != run.fingerprint.to_record():
        raise StateError(
            f"{run.path}: expected a calibration of this run's predictions, got calibration.json of others: calibrate "
            "this run, or name the directory of its calibration."
        )


def _files(run: _ExportedRun, calibration: Path) -> dict[str, str]:
    """Return the content of every file of the bundle by its name."""
    first = task_from_record(run.settings.tasks[0], place=run.path / "task.json").task
    files = {
        "prompt.txt": run.prompt,
        "labels.json": json_text(labels_to_record(first.labels)),
        "schema.json": json_text(enum_schema(first.labels, first.field)),
        **_settings_files(run),
        **_measured_files(run, first),
        **_calibration_files(run, calibration),
    }
    if run.demonstrations is not None:
        files[DEMONSTRATIONS] = _text(run.path / DEMONSTRATIONS)
    if run.user_template is not None:
        files["user_template.txt"] = run.user_template
    if run.settings.plan is not None:
        files["plan.json"] = json_text(run.settings.plan)
    for text in files.values():
        text.encode()  # half a character, which UTF-8 cannot hold, is an error
    return files


def _settings_files(run: _ExportedRun) -> dict[str, str]:
    """Return ``settings.json``, and the learned scorer that it names."""
    files = {}
    tasks = []
    for number, record in enumerate(run.settings.tasks):
        packed = {"labels", "demonstrations"} if number else {*_PACKED, "demonstrations"}
        own = {key: value for key, value in record.items() if key not in packed}
        if own["cascade"] is not None and own["cascade"].get("learned_file") is not None:
            files[_LEARNED] = _text(Path(own["cascade"]["learned_file"]))
            own["cascade"] = {**own["cascade"], "learned_file": _LEARNED}
        if run.demonstrations is not None:  # a search may have found others than the task's
            own["demonstrations"] = run.demonstrations.model_dump()
        tasks.append(own)
    settings = BundleSettings(
        tasks=tuple(tasks), prompt_for_all=run.settings.prompt_for_all, description=run.description
    )
    files["settings.json"] = json_text(dict(settings))
    return files


def _measured_files(run: _ExportedRun, task: Task) -> dict[str, str]:
    """Return figures, history and thresholds; empty ones if nothing was measured without the texts left out."""
    record = run.calibration or {}
    thresholds = {
        "suggested": record.get("thresholds"),
        "no_suggestion": record.get("no_thresholds", ""),
        "certified": record.get("certified"),
        "certification": record.get("certification"),
    }
    history, figures = BundleHistory(rows=0, labels={}, confidence=()), []
    if not run.texts_left_out:
        history = _history(run.predictions, task.labels)
        # A cascade decides by the thresholds between its models.
        in_turn = "cascade" in task.sections or run.settings.plan is not None
        figures = [
            figure.model_dump()
            for figure in figures_of(
                run.predictions,
                task.labels,
                metrics=run.metrics,
                search=run.search,
                calibration=run.calibration,
                thresholds=None if in_turn else thresholds,
            )
        ]
    return {
        "thresholds.json": json_text(thresholds),
        "figures.json": json_text(figures),
        "history.json": json_text(history.model_dump()),
    }


def _calibration_files(run: _ExportedRun, calibration: Path) -> dict[str, str]:
    """Return the head, or else the label prior, and the calibrator, as they are."""
    if run.texts_left_out:
        return {}
    description = run.description or {}
    files = {}
    if (run.path / "head.json").exists():
        files["head.json"] = _text(run.path / "head.json")
    elif "head" in description or (run.search or {}).get("final") is not None:
        raise StateError(
            f"{run.path}: expected head.json, which made the run's predictions, got none: {_AGAIN}."
        )
    elif (run.path / "label_prior.json").exists():
        files["label_prior.json"] = _text(run.path / "label_prior.json")
    elif description.get("label_prior") is not None:
        raise StateError(
            f"{run.path}: expected label_prior.json, as the run's predictions are corrected, got none: {_AGAIN}."
        )
    if (calibration / "calibrator.json").exists():
        if run.calibration is None:
            raise StateError(
                f"{calibration}: expected calibration.json beside calibrator.json: calibrate again."
            )
        files["calibrator.json"] = _text(calibration / "calibrator.json")
    return files


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
