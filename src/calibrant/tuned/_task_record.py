"""Tasks as JSON, without rows and credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import pydantic

from calibrant.assembly._sections import cascade_settings, routing_settings
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import read_record, read_run_record, write_atomically
from calibrant.core._fingerprint import NO_TEXTS, Fingerprint, TextDigests, asked_text, demonstrated
from calibrant.core._prediction import JsonObject, Record
from calibrant.core._rows import Columns
from calibrant.core._settings import DemonstrationSettings, ModelSettings, Section, describe_problem
from calibrant.core._structures import labels_from_record
from calibrant.core._task import RecordedTask, Task
from calibrant.inference._models import (
    STUDENT,
    STUDENT_FILE,
    ConfiguredModel,
    public_model,
    replaced_model,
    task_settings,
)
from calibrant.runs._directory import (
    HEAD_TEXTS,
    KNOWN_TEXTS,
    MANIFEST,
    SETTINGS,
    SETTINGS_KIND,
    SETTINGS_VERSION,
    read_manifest,
    write_settings,
)

if TYPE_CHECKING:
    from calibrant.calibration._prior import LabelPriorCorrection
    from calibrant.heads._head import Head
    from calibrant.heads._tuned import Tuned
    from calibrant.routing._settings import RoutingProviderSettings


BUNDLE: Final = "manifest.json"
"""File that every bundle has."""
LEARNED: Final = ("head-{}.json", "label_prior-{}.json")
"""Files of what corrects the models of a plan, by their number."""
SHOWN: Final = "demonstrations-{}.jsonl"
"""File of the labelled texts that the prompts of a plan's model are shown from, by its number."""
STUDENT_FILES: Final = tuple(f"student-{number}.json" for number in range(1, 10))
"""Files of the students among the models, in their order."""
_MAKE: Final = "run it"
_STATES: Final = ("state", "thompson_state_path", "bandit_state_path")

_Settings = TypeVar("_Settings", bound=pydantic.BaseModel)


class _TaskRecord(Section):
    """Settings of a task as JSON values.

    Cascade and routing are checked by their own packages, which few tasks need.
    """

    name: str
    labels: Any
    field: str
    prompt: str
    user_template: str | None
    model: ModelSettings | None
    cascade: Any
    routing: Any
    state_left_out: bool
    left_out: dict[str, tuple[str, ...]]
    demonstrations: DemonstrationSettings | None = None
    columns: Columns = Columns()
    label_descriptions: dict[str, str] = pydantic.Field(default_factory=dict)


class RunSettings(Section):
    """Tasks and prompts of a run: the contents of its ``task.json``.

    Attributes
    ----------
    tasks : tuple of dict
        Records of `task_to_record`; several for the models of a plan.
    plan : dict or None
        A `calibrant.cascade.CascadePlan` as JSON values.
    prompt_for_all : bool
        True if the run replaced the task's prompt, for all models of a cascade.
    known_texts : str
        `TextDigests` of the texts that what was asked owes something to, as far as that is known.
    """

    tasks: Annotated[tuple[JsonObject, ...], pydantic.Field(min_length=1)]
    plan: JsonObject | None
    prompt_for_all: Annotated[bool, pydantic.Field(strict=True)]
    known_texts: str = ""


def record_run(
    directory: Path,
    asked: Sequence[tuple[Task, str | None]],
    *,
    plan: Record | None = None,
    prompt_for_all: bool = False,
    students: Mapping[str, Head] | None = None,
    known_texts: TextDigests = NO_TEXTS,
) -> None:
    """Write the settings of a run's tasks into its directory, for export without the task file.

    Parameters
    ----------
    directory : Path
        Directory of the run.
    asked : sequence of (Task, str or None)
        Task of the run, and the model that replaced the task's own model, providers or cascade, if any; one
        pair for each model of a plan, else one.
    plan : mapping, optional
        The plan that was carried out, as JSON values.
    prompt_for_all : bool, default False
        True if the run used another prompt than the task's.
    students : mapping of str to Head, optional
        Students that answered, by the names of their models; they are written beside the rows.
    known_texts : TextDigests, optional
        Of the texts that prompts, heads, students or plan owe something to, other than those of the run.

    Raises
    ------
    StateError
        The record cannot be written.
    """
    tasks = [with_model_alone(task, model) for task, model in asked]
    if students:
        from calibrant.inference._student import save_student  # noqa: PLC0415 (few runs have one)

        for file, head in zip(STUDENT_FILES, students_of(tasks, students).values(), strict=False):
            save_student(head, directory, file)
    for number, task in enumerate(tasks, 1):
        if plan is not None and task.demonstrations is not None:
            write_atomically(directory / SHOWN.format(number), shown_rows(task))
    settings = RunSettings(
        tasks=tuple(map(task_to_record, tasks)),
        plan=None if plan is None else dict(plan),
        prompt_for_all=prompt_for_all,
        known_texts=known_texts.to_record(),
    )
    write_settings(directory, dict(settings))


def read_run_settings(directory: Path) -> RunSettings:
    """Return the settings that `record_run` wrote.

    Raises
    ------
    StateError
        There are none, or the file is damaged, or of another version.
    """
    path = directory / SETTINGS
    if not path.exists():
        raise StateError(
            f"{directory}: expected task.json, in which commands write down what they asked, got none: hand in the "
            "task file that was run, with --task."
        )
    record = read_record(path, kind=SETTINGS_KIND, version=SETTINGS_VERSION, make=_MAKE)
    values = {key: value for key, value in record.items() if key not in {"kind", "version"}}
    settings = checked_record(RunSettings, values, path, _damage)
    expected = 1
    if settings.plan is not None:
        expected = n_planned(settings.plan)
    if len(settings.tasks) != expected:
        raise _damage(path, f"expected {expected} tasks, got {len(settings.tasks)}")
    return settings


def known_texts(directory: Path) -> TextDigests:
    """Return digests of the texts that a run's prompt, head or student owes something to, or a head in a folder.

    Raises
    ------
    StateError
        A file is damaged.
    """
    found = NO_TEXTS
    if (directory / MANIFEST).exists():
        found = TextDigests.from_record(str(read_manifest(directory).get(KNOWN_TEXTS, "")))
    if (directory / SETTINGS).exists():
        found = found.union(TextDigests.from_record(read_run_settings(directory).known_texts))
    if (directory / HEAD_TEXTS).exists():
        record = read_run_record(directory / HEAD_TEXTS, remedy="learn the head again")
        found = found.union(TextDigests.from_record(str(record.get(KNOWN_TEXTS, ""))))
    return found


def with_model_alone(task: Task, model: str | None, *, api_base: str | None = None) -> Task:
    """Return the task with one other model, or with its model at another address; unchanged if both are None.

    See `calibrant.inference._models.replaced_model` for the settings that stay.

    Raises
    ------
    ConfigurationError
        An address alone is given, and the task has several models.
    """
    if model is None and api_base is None:
        return task
    if model is None and task.sections:
        raise ConfigurationError(
            f"Expected --model with --api-base, as the task has several models ({', '.join(task.sections)}): name the "
            "one to ask."
        )
    if task.sections:
        alone = ModelSettings() if model is None else ModelSettings(name=model)
        return replace(task, model=alone.model_copy(update={"api_base": api_base}), sections={})
    return replace(task, model=replaced_model(task.model, model, api_base=api_base))


def task_to_record(task: Task) -> JsonObject:
    """Return a task's settings as JSON values, including those in a cascade's YAML file.

    Raises
    ------
    ConfigurationError
        That file cannot be used.
    """
    cascade = cascade_settings(task)
    if cascade is not None:
        from calibrant.assembly._routing import resolved_cascade  # noqa: PLC0415 (few tasks have one)

        cascade = resolved_cascade(cascade)
    left_out: dict[str, list[str]] = {}
    task = with_models(task.with_sections(cascade=cascade), partial(public_model, left_out=left_out))
    cascade = cascade_settings(task)
    routing = routing_settings(task)
    record = {
        **task_settings(task),
        "cascade": None if cascade is None else cascade.model_dump(mode="json"),
        "routing": None if routing is None else routing.model_dump(mode="json", exclude=set(_STATES)),
        "state_left_out": routing is not None and any(getattr(routing, name) for name in _STATES),
        "left_out": left_out,
    }
    if routing is not None and not routing.router_ema_enabled:
        del record["routing"]["router_ema_enabled"]  # written out, it would contradict routing = "ema"
    return record


def without_credentials(task: Task) -> RecordedTask:
    """Return a task as its record would be read back: without rows, and without options that may be credentials."""
    return task_from_record(task_to_record(task), place=Path(task.name))


def recorded_task(own: RecordedTask) -> JsonObject:
    """Return the record of a task; options that an earlier record left out stay named."""
    record = task_to_record(own.task)
    left_out = {**own.left_out, **record["left_out"]}
    return {**record, "left_out": left_out, "state_left_out": own.state_left_out or record["state_left_out"]}


def task_from_record(record: Record, *, place: Path) -> RecordedTask:
    """Return the task from a record of `task_to_record`.

    Parameters
    ----------
    record : mapping
        JSON values.
    place : Path
        The file they are from; a learned scorer's file is relative to its folder.

    Raises
    ------
    StateError
        The values are no record of a task.
    """
    own = checked_record(_TaskRecord, record, place, _damage)
    has_sections = own.cascade is not None or own.routing is not None
    sections = _sections(own, place) if has_sections else {}
    if (own.model is None) is not bool(sections):
        raise _damage(place, "expected either model, or cascade and routing")
    try:
        task = Task(
            name=own.name,
            labels=labels_from_record(own.labels),
            prompt=own.prompt,
            field=own.field,
            user_template=own.user_template,
            model=own.model or ModelSettings(),
            sections=sections,
            demonstrations=own.demonstrations,
            columns=own.columns,
            label_descriptions=own.label_descriptions,
        )
    except (ConfigurationError, TypeError, ValueError) as error:
        raise _damage(place, str(error)) from error
    return RecordedTask(task=task, left_out=own.left_out, state_left_out=own.state_left_out)


def _sections(record: _TaskRecord, place: Path) -> dict[str, Section]:
    """Return the ``[cascade]`` and ``[routing]`` sections of a task record."""
    sections: dict[str, Section] = {}
    if record.routing is not None:
        from calibrant.routing._settings import RoutingSettings  # noqa: PLC0415 (few tasks have one)

        sections["routing"] = checked_record(RoutingSettings, record.routing, place, _damage)
    if record.cascade is not None:
        from calibrant.cascade._methods import CascadeSettings  # noqa: PLC0415 (few tasks have one)
        from calibrant.cascade._protocol import ROUTED  # noqa: PLC0415 (few tasks have one)

        cascade = checked_record(CascadeSettings, record.cascade, place, _damage)
        members = {model.name for model in cascade.models}
        if not members:
            raise _damage(place, "expected at least one of the cascade's models")
        if (ROUTED in members) is not ("routing" in sections):
            raise _damage(place, f"expected routing together with the cascade's model {ROUTED!r}")
        sections["cascade"] = cascade
    return sections


def checked_record(
    kind: type[_Settings], value: object, place: Path, error: Callable[[Path, str], StateError]
) -> _Settings:
    """Return the validated content of a file, or raise the exception that `error` makes."""
    if not isinstance(value, dict):
        raise error(place, f"expected an object, got {value!r:.40}")
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as found:
        raise error(place, describe_problem(dict(found.errors()[0]), kind).rstrip(".")) from found


def _damage(place: Path, why: str) -> StateError:
    return StateError(f"{place}: damaged: {why.rstrip('.')}: write it again, or restore it.")


def models_of(task: Task) -> list[ModelSettings | RoutingProviderSettings]:
    """Return every model and provider of a task."""
    cascade = cascade_settings(task)
    routing = routing_settings(task)
    models: list[Any] = []
    if not task.sections:
        models = [task.model]
    if cascade is not None:
        from calibrant.cascade._protocol import ROUTED  # noqa: PLC0415 (few tasks have one)

        models += [model for model in cascade.models if model.name != ROUTED]
    if routing is not None:
        models += routing.providers
    return models


def with_models(task: Task, change: Callable[[ConfiguredModel], ConfiguredModel]) -> Task:
    """Return the task with `change` applied to its model, or to its sections' models and providers."""
    cascade = cascade_settings(task)
    routing = routing_settings(task)
    if not task.sections:
        return replace(task, model=change(task.model))
    if cascade is not None:
        models = tuple(map(change, cascade.models))
        cascade = cascade.model_copy(update={"models": models})
    if routing is not None:
        providers = tuple(map(change, routing.providers))
        routing = routing.model_copy(update={"providers": providers})
    return task.with_sections(cascade=cascade, routing=routing)


def with_demonstrations(task: Task, rows: str, place: Path) -> Task:
    """Return a task whose training rows are the demonstrations in `rows`, the text of the file `place`."""
    from calibrant.inference._demonstrations import DemonstrationIndex  # noqa: PLC0415 (few tasks have some)

    try:
        index = DemonstrationIndex.from_text(rows, labels=task.labels)
    except ConfigurationError as error:
        raise StateError(f"{place}: damaged: {error}") from error
    return replace(task, train=index.examples())


def shown_rows(task: Task) -> str:
    """Return the labelled texts that a task's prompts are shown from, as JSON Lines."""
    from calibrant.inference._demonstrations import DemonstrationIndex  # noqa: PLC0415 (few tasks have some)

    return DemonstrationIndex.from_task(task).to_text()


def with_planned_demonstrations(tasks: Sequence[RecordedTask], place: Path) -> tuple[RecordedTask, ...]:
    """Return the tasks of a plan's models with the demonstrations in a folder."""
    found = []
    for number, own in enumerate(tasks, 1):
        task = own.task
        if task.demonstrations is not None:
            path = place / SHOWN.format(number)
            task = with_demonstrations(task, text_of(path), path)
        found.append(replace(own, task=task))
    return tuple(found)


def text_of(path: Path) -> str:
    """Return the text of a file of a run; raise StateError if it cannot be read."""
    try:
        return path.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: cannot be read ({error}): restore it, or run again.") from error


def fingerprint_of(
    task: Task,
    description: Record | None,
    *,
    rows: str | None,
    model: str,
    space: Any,  # noqa: ANN401
) -> Fingerprint:
    """Return the fingerprint of a task's prompt, labels and demonstrations, asked of `model`."""
    # The prompts of a cascade's models differ; its description then has none.
    prompt = task.prompt
    template = task.user_template
    if description is not None:
        prompt = str(description["prompt"])
        template = description["user_template"]
    shown: Record | None = None
    if task.demonstrations is not None and rows is not None:
        shown = demonstrated(task.demonstrations, rows)
    elif rows is None and description is not None:  # of a plan that asks one model
        shown = description.get("demonstrations")
    asked = asked_text(prompt, template, shown)
    return Fingerprint(prompt=asked, model=model, space=space, labels=task.labels)


def is_corrected(place: Path) -> bool:
    """Return whether a head or a label prior corrects the answers of a run."""
    return (place / "head.json").exists() or (place / "label_prior.json").exists()


def learned_of_plan(
    plan: Record, tasks: Sequence[RecordedTask], place: Path
) -> dict[int, Head | LabelPriorCorrection]:
    """Return the heads and label priors in a folder that belong to the models of a plan, by number.

    Raises
    ------
    StateError
        A file is damaged, or was learned under another prompt or model than the task's.
    """
    found: dict[int, Head | LabelPriorCorrection] = {}
    for number, fingerprint in planned_fingerprints(plan, tasks).items():
        head = place / LEARNED[0].format(number)
        prior = place / LEARNED[1].format(number)
        if head.exists():
            from calibrant.heads._head import Head  # noqa: PLC0415 (few runs have one)

            found[number] = Head.load(head, fingerprint=fingerprint)
        elif prior.exists():
            from calibrant.calibration._prior import LabelPriorCorrection  # noqa: PLC0415 (few runs have one)

            found[number] = LabelPriorCorrection.load(prior, fingerprint=fingerprint)
    return found


def learned_of_plan_by_file(tuned: Tuned) -> Iterator[tuple[str, Head | LabelPriorCorrection, Fingerprint]]:
    """Yield the heads and label priors of the models of a plan with the names of their files and their fingerprints."""
    if tuned.plan is None:
        return
    from calibrant.heads._head import Head  # noqa: PLC0415 (few runs have one)

    fingerprints = planned_fingerprints(tuned.plan, tuned.tasks)
    for number, learned in tuned.learned.items():
        name = LEARNED[0 if isinstance(learned, Head) else 1]
        yield name.format(number), learned, fingerprints[number]


def save_learned_of_plan(tuned: Tuned, directory: Path) -> None:
    """Write the heads and label priors of the models of a plan into the directory of a run."""
    for file, learned, fingerprint in learned_of_plan_by_file(tuned):
        learned.save(directory / file, fingerprint=fingerprint)


def planned_fingerprints(plan: Record, tasks: Sequence[RecordedTask]) -> dict[int, Fingerprint]:
    """Return the fingerprints of the models of a plan whose runs have one, by number."""
    found = {}
    for number, (model, own) in enumerate(zip(plan["models"], tasks, strict=True), 1):
        known = model["fingerprint"]
        if known is not None:
            rows = None if own.task.demonstrations is None else shown_rows(own.task)
            found[number] = fingerprint_of(
                own.task, None, rows=rows, model=known["model"], space=known["space"]
            )
    return found


def student_names(tasks: Iterable[Task]) -> list[str]:
    """Return the names of the students among the models of tasks, each once."""
    names = [own.name for task in tasks for own in models_of(task)]
    return [name for name in dict.fromkeys(names) if name.startswith(STUDENT)]


def students_of(tasks: Iterable[Task], given: Mapping[str, Head]) -> dict[str, Head]:
    """Return the students among the models of tasks by name: those that are given, the others from their folders."""
    names = student_names(tasks)
    if not names:
        return {}
    from calibrant.inference._student import read_student, students_at_hand  # noqa: PLC0415 (few tasks have one)

    with students_at_hand(given):
        return {name: read_student(name) for name in names}


def saved_students(tasks: Iterable[Task], place: Path) -> dict[str, Head]:
    """Return the students that the folder of a run or a bundle holds, by name."""
    from calibrant.inference._student import read_student_file  # noqa: PLC0415 (few runs have one)

    files = STUDENT_FILES
    if (
        place / STUDENT_FILE
    ).exists():  # the student's own folder, which may be another one than its name says
        files = (STUDENT_FILE,)
    named = zip(student_names(tasks), files, strict=False)
    return {name: read_student_file(place / file) for name, file in named}


def n_planned(plan: Record) -> int:
    """Return the number of models of a plan, which is checked."""
    from calibrant.cascade.planning._plan import CascadePlan  # noqa: PLC0415 (few bundles have one)

    return len(CascadePlan.from_record(plan).models)
