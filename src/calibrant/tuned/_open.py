"""Tuned classifiers read from runs, and opened: their models, prompt and corrections."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.assembly._sections import open_classifier, routing_settings
from calibrant.core._completion import Client, ClientTraits
from calibrant.core._errors import CalibrantError, ConfigurationError, DataError, StateError
from calibrant.core._files import read_run_record
from calibrant.core._fingerprint import asked_text
from calibrant.core._prediction import Journal, JsonObject, LogprobSpace, Record
from calibrant.core._predictor import Limits
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
from calibrant.inference._base import BasePredictor
from calibrant.inference._classifier import Classifier, as_classifier
from calibrant.inference._examinations import identity
from calibrant.inference._models import (
    STUDENT_FILE,
    ModelLike,
    call_options,
    label_of,
    may_be_withheld,
    open_client,
)
from calibrant.logprobs._fields import enum_schema
from calibrant.runs._directory import BATCH, DEMONSTRATIONS, MANIFEST, METRICS, RESULT, unfinished
from calibrant.runs._rows import SavedRows, read_fingerprint
from calibrant.tuned._task_record import (
    BUNDLE,
    LEARNED,
    STUDENT_FILES,
    RunSettings,
    fingerprint_of,
    known_texts,
    learned_of_plan,
    models_of,
    read_run_settings,
    saved_students,
    task_from_record,
    task_to_record,
    text_of,
    with_demonstrations,
    with_model_alone,
    with_models,
    with_planned_demonstrations,
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
        if place.is_file() or (place / BUNDLE).exists():
            got = "a file" if place.is_file() else "a bundle: open it with Tuned.load"
            raise DataError(f"expected the directory of a run, got {got}.", path=place)
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
        why = unfinished(path)
        if why is not None:
            raise StateError(f"{path} {why}: run the command that wrote it again to finish it first.")
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
            # As it is read back: tuples become lists.
            self._calibration = json.loads(json.dumps(calibration.to_record()))
        self._tasks = self._prompted_tasks()
        self._check()
        self._texts_left_out = not texts and any(own.task.demonstrations for own in self._tasks)
        if self._texts_left_out and self._settings.plan is not None:
            raise ConfigurationError(
                f"Expected {path} with its texts, as its plan is one of models whose prompts show them: export it with "
                "them, or plan on runs without demonstrations."
            )

    def tuned(self) -> Tuned:
        """Return the tuned classifier of the run."""
        students = {}
        if any((self._path / file).exists() for file in (STUDENT_FILE, STUDENT_FILES[0])):
            students = saved_students([own.task for own in self._tasks], self._path)
        asked = Tuned(
            path=self._path,
            tasks=self._tasks,
            plan=self._settings.plan,
            prompt_for_all=self._settings.prompt_for_all,
            description=self._description,
            fingerprint=self._fingerprint,
            students=students,
        )
        if self._texts_left_out:
            return self._without_texts(asked)
        head, prior_correction = self._corrections()
        plan = self._settings.plan
        return replace(
            asked,
            head=head,
            prior_correction=prior_correction,
            learned={} if plan is None else self._learned(plan),
            calibrator=self._calibrator(),
            thresholds=thresholds_of(self._calibration),
            measurements=self._measurements,
        )

    def _measurements(self) -> Measurements:
        """Return figures and history, for which all rows are read."""
        from calibrant.evaluation._figures import measurements_of  # noqa: PLC0415 (opening does without)

        task = self._tasks[0].task
        plan = self._settings.plan
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
            ).knowing(known_texts(self._path))

    @staticmethod
    def _without_texts(tuned: Tuned) -> Tuned:
        """Return a value without demonstrations, and without all that was learned or measured with them."""
        first, *others = tuned.tasks
        task = replace(first.task, demonstrations=None, train=())
        description = tuned.description
        if description is not None:
            kept = {key: value for key, value in description.items() if key not in {"demonstrations", "head"}}
            description = {**kept, "label_prior": None}
        asked = asked_text(task.prompt, task.user_template)
        return replace(
            tuned,
            tasks=(replace(first, task=task), *others),
            description=description,
            fingerprint=replace(tuned.fingerprint, prompt=asked),
        )

    def _prompted_tasks(self) -> tuple[RecordedTask, ...]:
        """Return the recorded tasks; the first has the prompt and the demonstrations of the run."""
        settings = self._settings
        description = self._description
        shown = None
        place = self._path / "task.json"
        first, *others = (task_from_record(record, place=place) for record in settings.tasks)
        if settings.plan is not None:
            return with_planned_demonstrations([first, *others], self._path)
        task = first.task
        has_one_prompt = "cascade" not in task.sections or settings.prompt_for_all
        if self._search is not None:
            task, shown = _searched(task, self._search["best_candidate"])
        elif description is not None:
            if has_one_prompt:
                template = description["user_template"]
                task = replace(task, prompt=description["prompt"], user_template=template)
            values = description.get("demonstrations")
            if values is not None:
                own = {name: values[name] for name in DemonstrationSettings.model_fields}
                shown = DemonstrationSettings.of(own)
        task = replace(task, demonstrations=shown)
        if shown is not None:
            shown_from = self._path / DEMONSTRATIONS
            task = with_demonstrations(task, text_of(shown_from), shown_from)
        return (replace(first, task=task),)

    def _check(self) -> None:
        """Raise StateError if the settings or the calibration belong to another run.

        The models' behaviour is checked when they are opened.
        """
        recorded = self._tasks[0]
        plan = self._settings.plan
        first = recorded.task
        differs = []
        if list(first.labels.labels) != list(self._fingerprint.labels):
            differs.append("labels")
        one = not first.sections and plan is None
        if one and first.model.name != self._fingerprint.model:
            differs.append(
                f"model ({self._fingerprint.model!r} in the run, {first.model.name!r} in the task)"
            )
        if self._description is not None and one:
            differs += _differences(recorded, self._description)
        if differs:
            raise StateError(
                f"{self._path}: expected the settings of this run, got others, which differ in {'; '.join(differs)}: "
                "hand in the task file that was run (--task), and --model where another model was asked."
            )
        calibrated = None
        if self._calibration is not None:
            calibrated = self._calibration.get("fingerprint")
        if self._calibration is not None and calibrated != self._fingerprint.to_record():
            raise StateError(
                f"{self._path}: expected a calibration of this run's predictions, got calibration.json of others: "
                "calibrate this run, or name the directory of its calibration."
            )
        # Without demonstrations, the prompt of an evaluation and its fingerprint are of one file.
        # A plan checks its models itself.
        if plan is None and (self._search is not None or first.demonstrations is not None):
            self._check_prompt(first)

    def _check_prompt(self, task: Task) -> None:
        """Raise StateError if the fingerprint is that of another prompt."""
        rows = None
        if task.demonstrations is not None:
            rows = text_of(self._path / DEMONSTRATIONS)
        known = self._fingerprint
        found = fingerprint_of(task, self._description, rows=rows, model=known.model, space=known.space)
        if found != known:
            changed = found.differences(known.to_record())
            raise StateError(
                f"{self._path}: damaged: its predictions differ from its other files in {'; '.join(changed)}: {_AGAIN}."
            )

    def _corrections(self) -> tuple[Head | None, LabelPriorCorrection | None]:
        """Return the head that made the run's predictions, or else the label prior they are corrected for."""
        if self._settings.plan is not None:  # whose models have their own
            return None, None
        description = self._description or {}
        head = self._path / "head.json"
        prior = self._path / "label_prior.json"
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

    def _learned(self, plan: Record) -> dict[int, Head | LabelPriorCorrection]:
        """Return the heads and label priors of the models of a plan, by number; raise StateError if one is missing."""
        found = learned_of_plan(plan, self._tasks, self._path)
        description = self._description or {}
        described = description.get("method", {}).get("models") or [description]
        for place, model in zip(plan["policy"]["members"], described, strict=False):
            for file, name in zip(LEARNED, ("head", "label_prior"), strict=True):
                path = self._path / file.format(place + 1)
                if model.get(name) is not None and not path.exists():
                    raise StateError(
                        f"{path}: expected the file that corrects the answers of {model['model']}, got none: {_AGAIN}."
                    )
        return found

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
        from calibrant.calibration._calibrators import load_calibrator  # noqa: PLC0415 (few runs have one)

        return load_calibrator(path, fingerprint=self._fingerprint)


def _searched(task: Task, best: Record) -> tuple[Task, DemonstrationSettings | None]:
    """Return the task with the best prompt of a search, and the settings of its demonstrations."""
    text = best.get("demonstrations", "")
    shown = None
    if text.strip():
        shown = DemonstrationSettings.from_text(text)
    task = replace(task, prompt=best["system_prompt"], user_template=best.get("user_template"))
    return task, shown


def _differences(recorded: RecordedTask, description: Record) -> list[str]:
    """Return in what a task of one model differs from the description of its run."""
    task = recorded.task
    differs = []
    left_out = recorded.left_out.get(task.model.name, ())
    options = identity("", call_options(task.model.options))[2]
    then = description["options"]
    if options != {name: value for name, value in then.items() if name not in left_out}:
        differs.append("options of the model")
    if description["response_format"] != enum_schema(task.labels, task.field):
        differs.append("schema of the answer (labels and field)")
    return differs


def _record(path: Path) -> JsonObject | None:
    """Return the JSON object in a file; None for a missing file."""
    if path.exists():
        return read_run_record(path, remedy="run it again")
    return None


def _description(path: Path, manifest: Record | None) -> JsonObject:
    """Return the stored `Classifier.describe` of a run, without the endpoint's address."""
    source = path / MANIFEST
    found = manifest
    if found is None:  # a job at a provider's batch interface
        source = path / BATCH
        found = (_record(source) or {}).get("described", {})
    missing = [name for name in DESCRIBED if name not in found]
    if missing:
        raise StateError(f"{source}: expected {missing[0]!r}, got none: run the evaluation again.")
    return {name: found[name] for name in (*DESCRIBED, *DESCRIBED_SOMETIMES) if name in found}


def _settings_of(task: Task | str | Path, model: str | None, description: Record | None) -> RunSettings:
    """Return the settings of a run of a task file."""
    given = task if isinstance(task, Task) else Task.from_file(task, splits=())
    record = task_to_record(with_model_alone(given, model))
    common = _common_prompt(record)
    replaced = description is None or description["prompt"] != common
    return RunSettings(tasks=(record,), plan=None, prompt_for_all=replaced)


def _common_prompt(record: Record) -> str:
    """Return the prompt that all models share; empty if their prompts differ."""
    common = str(record["prompt"])
    if record["cascade"] is None:
        return common
    prompts = {
        common if model["prompt"] is None else str(model["prompt"]) for model in record["cascade"]["models"]
    }
    if len(prompts) == 1:
        return prompts.pop()
    return ""


_LOG = logging.getLogger("calibrant")
_FROM_ENVIRONMENT: Final = frozenset({"api_key"})


def open_tuned(
    tuned: Tuned,
    *,
    model: ModelLike | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    journal: Journal | None = None,
    router_state: str | None = None,
) -> BasePredictor:
    """Open the classifier; see `Tuned.open`."""
    if tuned.students:
        from calibrant.inference._student import students_at_hand  # noqa: PLC0415 (few bundles have some)

        others: dict[str, Any] = {"limits": limits, "journal": journal, "router_state": router_state}
        with students_at_hand(tuned.students):
            return open_tuned(replace(tuned, students={}), model=model, options=options, **others)
    given = _by_model(tuned, options) if options else {}
    has_left_out = any(own.left_out for own in tuned.tasks)
    missing = {}
    if model is None and has_left_out:
        missing = _missing_options(tuned, given)
    tasks = [_task_to_open(own, tuned, given, router_state) for own in tuned.tasks]
    if tuned.plan is None and router_state is not None and "routing" not in tasks[0].sections:
        raise ConfigurationError("Expected router_state only for a bundle with [routing]: leave it out.")
    try:
        if model is not None:
            classifier = _open_with_other_model(tuned, tasks[0], model, limits=limits, journal=journal)
        elif tuned.plan is not None:
            classifier = _open_plan(tuned, tuned.plan, tasks, limits=limits, journal=journal)
        elif tasks[0].sections:
            classifier = open_classifier(tasks[0], limits=limits, journal=journal)
        else:
            classifier = Classifier.from_task(tasks[0], limits=limits, journal=journal)
    except ConfigurationError as error:
        if not missing:
            raise
        raise ConfigurationError(f"{error} {_left_out_message(tuned, missing)}") from error
    try:
        return _as_exported(tuned, classifier)
    except BaseException:
        classifier.close()
        raise


def _by_model(tuned: Tuned, options: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the options of each model; for a bundle with one model, `options` is for that model."""
    names = {label_of(own) for task in tuned.tasks for own in models_of(task.task)}
    if len(names) == 1:
        return {next(iter(names)): options}
    for name, value in options.items():
        if name not in names or not isinstance(value, Mapping):
            raise ConfigurationError(
                f"Expected options by model, such as {{{min(names)!r}: {{'api_key': ...}}}}, got {name!r:.80}: this "
                f"bundle asks {', '.join(sorted(names))}."
            )
    return dict(options)


def _missing_options(tuned: Tuned, given: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the omitted options not given, by model; raise if no environment variable can supply one."""
    missing: dict[str, list[str]] = {}
    for task in tuned.tasks:
        for name, left_out in task.left_out.items():
            names = [option for option in left_out if option not in given.get(name, {})]
            if names:
                missing[name] = names
    if any(set(names) - _FROM_ENVIRONMENT for names in missing.values()):
        raise ConfigurationError(_left_out_message(tuned, missing))
    return missing


def _left_out_message(tuned: Tuned, missing: Mapping[str, list[str]]) -> str:
    parts = [f"{', '.join(options)} of {name}" for name, options in missing.items()]
    is_search = tuned.path is not None and (tuned.path / "best_prompt.txt").exists()  # which --run reads
    shell = f"; in a shell give the task file that names it, with --run {tuned.path}" if is_search else ""
    return (
        f"{tuned.place}: the run used {'; '.join(parts)}, which a bundle does not hold, as it may be a credential: "
        f"hand it in with options of calibrant.load{shell} (or, for a key, set the provider's environment variable)."
    )


def _task_to_open(
    own: RecordedTask, tuned: Tuned, given: Mapping[str, Mapping[str, Any]], router_state: str | None
) -> Task:
    task = own.task
    if given:
        task = with_options(task, given, left_out=own.left_out)
    if not task.sections:
        # With the scoring that the run came to, loading asks nothing. That of a plan is of one of several tasks.
        method = {} if tuned.plan is not None else (tuned.description or {}).get("method", {})
        scoring: Any = method.get("scoring")
        if task.model.scoring not in {None, "auto"} or scoring not in {"decode", "fused"}:
            return task
        asked = {"scoring": scoring, "samples": method.get("samples")}
        return replace(task, model=task.model.model_copy(update=asked))
    routing = routing_settings(task)
    if routing is None:
        return task
    if own.state_left_out and router_state is None:
        _LOG.warning(
            "%s: the run kept what its strategy learnt in a place of its own, which is no part of the bundle: hand it "
            "in as router_state, or else the strategy uses the user's own.",
            tuned.place,
        )
    return task.with_sections(routing=routing.model_copy(update={"state": router_state}))


def with_options(
    task: Task, given: Mapping[str, Mapping[str, Any]], *, left_out: Mapping[str, tuple[str, ...]]
) -> Task:
    """Return the task with the address, the credentials and the omitted options of its models.

    Parameters
    ----------
    task : Task
        The task.
    given : mapping of str to mapping
        Options by model (its alias or name).
    left_out : mapping of str to tuple of str
        Names of options that may be given back, by model; see `RecordedTask`.

    Raises
    ------
    ConfigurationError
        An option would change the calls.
    """

    def with_own(own: Any) -> Any:  # noqa: ANN401 (settings of a model or provider)
        name = label_of(own)
        options = dict(given.get(name, {}))
        for option in options.keys() - left_out.get(name, ()):
            if not may_be_withheld(option):
                raise ConfigurationError(
                    f"Expected options that say who calls and where (api_key, extra_headers, api_base, timeout), got "
                    f"{option!r:.80}: it could change the predictions; run and export with it."
                )
        base = options.pop("api_base", own.api_base)
        return own.model_copy(update={"api_base": base, "options": {**own.options, **options}})

    return with_models(task, with_own)


def _open_with_other_model(
    tuned: Tuned,
    task: Task,
    model: ModelLike,
    *,
    limits: Limits | None,
    journal: Journal | None,
) -> BasePredictor:
    if tuned.plan is not None or task.sections:
        raise ConfigurationError(
            "Expected no model for a bundle that asks several: leave it out, or export a run of that model."
        )
    if isinstance(model, str):
        task = replace(task, model=task.model.model_copy(update={"name": model}))
        return Classifier.from_task(task, limits=limits, journal=journal)
    client = model if isinstance(model, Client) else open_client(model)
    return Classifier.from_task(task, client=client, limits=limits, journal=journal)


def _open_plan(
    tuned: Tuned, record: Record, tasks: list[Task], *, limits: Limits | None, journal: Journal | None
) -> BasePredictor:
    """Return the cascade of a plan, or the classifier of a plan with one model."""
    from calibrant.cascade.planning._plan import CascadePlan  # noqa: PLC0415 (few runs have one)

    plan = CascadePlan.from_record(record)
    members = plan.policy.members
    whole: dict[str, Any] = {"limits": limits, "journal": journal}
    each = {}
    several = {**whole, "owns_models": True}
    if len(members) == 1:
        each = whole
        several = {}
    method = (tuned.description or {}).get("method", {})
    described = [model["method"] for model in method.get("models", ())] or [method]
    methods = dict(zip(members, described, strict=False))
    with ExitStack() as opened:
        classifiers = []
        for place, task in enumerate(tasks):
            classifier = Classifier.from_task(task, **each)
            opened.callback(classifier.close)
            if "scoring" in methods.get(place, {}):
                classifier = classifier.asked_as(methods[place])
            if place + 1 in tuned.learned:
                _correct(classifier, tuned.learned[place + 1])
            classifiers.append(classifier)
        cascade = plan.cascade(classifiers, **several)
        opened.pop_all()
    for number, classifier in enumerate(classifiers):
        if number not in members:
            classifier.close()
    return cascade


def _correct(classifier: Classifier, learned: Head | LabelPriorCorrection) -> None:
    """Give a classifier its head or its label prior."""
    from calibrant.heads._head import Head  # noqa: PLC0415 (few runs have one)

    if isinstance(learned, Head):
        classifier.head = learned
    else:
        classifier.prior_correction = learned


def _as_exported(tuned: Tuned, classifier: BasePredictor) -> BasePredictor:
    """Return the classifier with the bundle's prompt and head or label prior, after a check."""
    method = (tuned.description or {}).get("method", {})
    if "scoring" in method:
        classifier = classifier.asked_as(method)  # so that loading asks nothing
    if tuned.prompt_for_all:
        classifier = classifier.with_prompt(tuned.prompt, user_template=tuned.user_template)
    if tuned.prior_correction is not None:
        as_classifier(classifier, to_use="label prior").prior_correction = tuned.prior_correction
    if tuned.head is not None:
        as_classifier(classifier, to_use="head").head = tuned.head
    _check_description(tuned, classifier)
    return classifier


def _check_description(tuned: Tuned, classifier: BasePredictor) -> None:
    """Raise StateError if the classifier would ask the model otherwise than the run did."""
    name = classifier.describe()["model"]
    if name != tuned.fingerprint.model and not _has_measured_weights(tuned, classifier):
        _LOG.warning(
            "%s is asked instead of %s: the bundle's figures, calibrator and thresholds belong to the latter.",
            name,
            tuned.fingerprint.model,
        )
    space = classifier.space
    # The models of a cascade may report different ones, as a student and a chat model; the run names that of a row.
    differ = space is LogprobSpace.NONE and (tuned.plan is not None or bool(tuned.task.sections))
    if space != tuned.fingerprint.space and not differ:
        raise StateError(
            f"{tuned.place}: expected log-probabilities of the space {tuned.fingerprint.space}, as in the run, got "
            f"{space}: ask the model the run asked."
        )
    if tuned.description is None:
        return
    before, now = (
        json.loads(json.dumps(described, default=repr), object_hook=_without_address)
        for described in (tuned.description, classifier.describe())
    )
    if name != tuned.fingerprint.model:
        before["model"] = now["model"]
    changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    if changed:
        raise StateError(
            f"{tuned.place}: its classifier would be asked otherwise than in the run: it differs in "
            f"{', '.join(changed)}. It was written by calibrant {tuned.calibrant}: use that version, or run and "
            "export again."
        )


def _has_measured_weights(tuned: Tuned, classifier: BasePredictor) -> bool:
    """Return whether a model in this process has the weights that were measured, if at another place."""
    if not isinstance(classifier, Classifier):
        return False
    weights = ClientTraits.of(classifier.client).weights
    return weights is not None and weights in tuned.history.models


def _without_address(record: JsonObject) -> JsonObject:
    # Addresses may differ between machines without changing the model.
    return {name: value for name, value in record.items() if name != "endpoint"}
