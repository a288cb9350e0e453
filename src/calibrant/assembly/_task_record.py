"""A task's settings as JSON without rows and credentials, so that a run opens without its task file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pydantic

from calibrant.assembly._sections import cascade_settings, routing_settings
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import read_record, write_record
from calibrant.core._label_records import labels_from_record, labels_to_record
from calibrant.core._sections import Section, describe_problem
from calibrant.core._settings import DemonstrationSettings, ModelSettings
from calibrant.core._task import Task
from calibrant.inference._models import may_be_withheld, without_secrets

if TYPE_CHECKING:
    from calibrant.cascade._settings import CascadeModelSettings, CascadeSettings
    from calibrant.routing._settings import RoutingProviderSettings, RoutingSettings

_FILE: Final = "task.json"
_KIND: Final = "settings of a run"
_VERSION: Final = 1
_MAKE: Final = "run it"
_STATES: Final = ("state", "thompson_state_path", "bandit_state_path")
_KEYS: Final = frozenset(
    {
        "name",
        "labels",
        "field",
        "prompt",
        "user_template",
        "model",
        "cascade",
        "routing",
        "left_out",
        "state_left_out",
    }
)

_OPTIONAL_KEYS: Final = frozenset({"demonstrations"})

_AnyModel = TypeVar("_AnyModel", ModelSettings, "CascadeModelSettings", "RoutingProviderSettings")
_Settings = TypeVar("_Settings", bound=pydantic.BaseModel)


@dataclass(frozen=True, kw_only=True)
class RecordedTask:
    """A task without rows, and the options that its record leaves out.

    Attributes
    ----------
    task : Task
        Its settings.
    left_out : mapping of str to tuple of str
        By model (its alias or name), the options that may hold credentials.
    state_left_out : bool
        True if the record leaves out the task's own place of router state.
    """

    task: Task
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    state_left_out: bool = False


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Tasks and prompts of a run.

    Attributes
    ----------
    tasks : tuple of mapping
        Records of `task_to_record`; several for the models of a plan.
    plan : mapping or None
        A `calibrant.cascade.CascadePlan` as JSON values.
    prompt_for_all : bool
        True if the run replaced the task's prompt, for all models of a cascade.
    """

    tasks: tuple[Mapping[str, Any], ...]
    plan: Mapping[str, Any] | None = None
    prompt_for_all: bool = False


def record_run(
    directory: Path,
    asked: Sequence[tuple[Task, str | None]],
    *,
    plan: Mapping[str, Any] | None = None,
    prompt_for_all: bool = False,
) -> None:
    """Write down in a run's directory what it asked, so that it can be exported without its task file.

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

    Raises
    ------
    StateError
        It cannot be written.
    """
    record = {
        "tasks": [task_to_record(asked_alone(task, model)) for task, model in asked],
        "plan": None if plan is None else dict(plan),
        "prompt_for_all": prompt_for_all,
    }
    write_record(directory / _FILE, record, kind=_KIND, version=_VERSION)


def read_run_settings(directory: Path) -> RunSettings | None:
    """Return the settings that `record_run` wrote; None if the directory has none.

    Raises
    ------
    StateError
        The file is damaged, or of another version.
    """
    path = directory / _FILE
    if not path.exists():
        return None
    record = read_record(path, kind=_KIND, version=_VERSION, make=_MAKE)
    tasks, plan = record.get("tasks"), record.get("plan")
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, dict) for task in tasks):
        raise StateError(f"{path}: damaged: expected at least one task: {_MAKE} again.")
    if not isinstance(plan, dict | None) or not isinstance(record.get("prompt_for_all"), bool):
        raise StateError(f"{path}: damaged: expected plan and prompt_for_all: {_MAKE} again.")
    return RunSettings(tasks=tuple(tasks), plan=plan, prompt_for_all=record["prompt_for_all"])


def asked_alone(task: Task, model: str | None) -> Task:
    """Return the task as it is when `model` is asked instead: its model's other settings do not apply."""
    if model is None:
        return task
    return replace(task, model=ModelSettings(name=model), sections={})


def task_to_record(task: Task) -> dict[str, Any]:
    """Return a task's settings as JSON values; what a cascade's YAML file says is written out.

    Raises
    ------
    ConfigurationError
        That file cannot be used.
    """
    cascade, routing = cascade_settings(task), routing_settings(task)
    if cascade is not None:
        from calibrant.assembly._cascade import resolved_cascade  # noqa: PLC0415 (few tasks have one)

        cascade = resolved_cascade(cascade)
        if cascade.learned_file is not None:
            cascade = cascade.model_copy(update={"learned_file": cascade.learned_file.resolve()})
    left_out: dict[str, list[str]] = {}
    alone = cascade is None and routing is None
    return {
        "name": task.name,
        "labels": labels_to_record(task.labels),
        "field": task.field,
        "prompt": task.prompt,
        "user_template": task.user_template,
        "model": _public(task.model, left_out).model_dump(mode="json") if alone else None,
        "cascade": None if cascade is None else _cascade_record(cascade, left_out),
        "routing": None if routing is None else _routing_record(routing, left_out),
        "state_left_out": routing is not None and any(getattr(routing, name) for name in _STATES),
        "left_out": left_out,
        **({} if task.demonstrations is None else {"demonstrations": task.demonstrations.model_dump()}),
    }


def _cascade_record(cascade: CascadeSettings, left_out: dict[str, list[str]]) -> dict[str, Any]:
    models = tuple(_public(model, left_out) for model in cascade.models)
    return cascade.model_copy(update={"models": models}).model_dump(mode="json")


def _routing_record(routing: RoutingSettings, left_out: dict[str, list[str]]) -> dict[str, Any]:
    providers = tuple(_public(provider, left_out) for provider in routing.providers)
    record = routing.model_copy(update={"providers": providers}).model_dump(mode="json", exclude=set(_STATES))
    if not routing.router_ema_enabled:
        del record["router_ema_enabled"]  # written out, it would contradict routing = "ema"
    return record


def _public(own: _AnyModel, left_out: dict[str, list[str]]) -> _AnyModel:
    """Return a model's settings without options that may hold credentials; note those left out."""
    base = {} if own.api_base is None else {"api_base": own.api_base}
    kept, names = without_secrets({**own.options, **base})
    if names:
        noted = left_out.setdefault(label_of(own), [])
        noted += [name for name in names if name not in noted]
    return own.model_copy(update={"api_base": kept.pop("api_base", None), "options": kept})


def label_of(own: ModelSettings | RoutingProviderSettings) -> str:
    """Return the name under which options are given at loading: the alias, or the model's name."""
    alias: str | None = getattr(own, "alias", None)
    return own.name if alias is None else alias


def task_from_record(record: Mapping[str, Any], *, place: Path) -> RecordedTask:
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
    if not _KEYS <= set(record) <= _KEYS | _OPTIONAL_KEYS:
        raise _damaged(
            place, f"expected the keys {', '.join(sorted(_KEYS))}, got {', '.join(sorted(record))!r:.200}"
        )
    try:
        task = Task(
            name=_text(record, "name", place),
            labels=labels_from_record(record["labels"]),
            prompt=_text(record, "prompt", place),
            field=_text(record, "field", place),
            user_template=None if record["user_template"] is None else _text(record, "user_template", place),
            **_model_sections(record, place),
        )
        left_out = {str(name): tuple(map(str, names)) for name, names in dict(record["left_out"]).items()}
    except (ConfigurationError, TypeError, ValueError) as error:
        raise _damaged(place, str(error)) from error
    return RecordedTask(task=task, left_out=left_out, state_left_out=bool(record["state_left_out"]))


def _model_sections(record: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Return the sections that name the models."""
    given = {name: found for name in ("cascade", "routing") if (found := record[name]) is not None}
    sections = _several(given, place)
    if (record["model"] is None) is not bool(sections):
        raise _damaged(place, "expected either model, or cascade and routing")
    model = _section(ModelSettings, record["model"], place)
    return {
        "sections": sections,
        "demonstrations": _section(DemonstrationSettings, record.get("demonstrations"), place),
        **({} if model is None else {"model": model}),
    }


def _several(records: Mapping[str, Any], place: Path) -> dict[str, Section]:
    """Return the sections with several models."""
    sections: dict[str, Section] = {}
    if "routing" in records:
        from calibrant.routing._settings import RoutingSettings  # noqa: PLC0415 (few tasks have one)

        sections["routing"] = _read(RoutingSettings, records["routing"], place)
    if "cascade" in records:
        from calibrant.cascade._settings import ROUTED, CascadeSettings  # noqa: PLC0415 (few tasks have one)

        cascade = _read(CascadeSettings, records["cascade"], place)
        if cascade.learned_file is not None:
            cascade = cascade.model_copy(update={"learned_file": place.parent / cascade.learned_file})
        members = {model.name for model in cascade.models}
        if not members:
            raise _damaged(place, "expected at least one of the cascade's models")
        if (ROUTED in members) is not ("routing" in records):
            raise _damaged(place, f"expected routing together with the cascade's model {ROUTED!r}")
        sections["cascade"] = cascade
    return sections


def _section(kind: type[_Settings], value: object, place: Path) -> _Settings | None:
    return None if value is None else _read(kind, value, place)


def _read(kind: type[_Settings], value: object, place: Path) -> _Settings:
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as error:
        raise _damaged(place, describe_problem(dict(error.errors()[0]), kind)) from error


def _text(record: Mapping[str, Any], key: str, place: Path) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise _damaged(place, f"expected {key} as text, got {value!r:.80}")
    return value


def _damaged(place: Path, why: str) -> StateError:
    return StateError(f"{place}: damaged: {why.rstrip('.')}: write it again, or restore it.")


def models_of(task: Task) -> Iterator[ModelSettings | RoutingProviderSettings]:
    """Yield every model and provider that a task names."""
    if not task.sections:
        yield task.model
    cascade, routing = cascade_settings(task), routing_settings(task)
    if cascade is not None:
        from calibrant.cascade._settings import ROUTED  # noqa: PLC0415 (few tasks have one)

        yield from (model for model in cascade.models if model.name != ROUTED)
    if routing is not None:
        yield from routing.providers


def with_options(
    task: Task,
    options: Mapping[str, Mapping[str, Any]],
    *,
    left_out: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Task:
    """Return the task with further options of its models: who calls, where, and what was left out of its record.

    Parameters
    ----------
    task : Task
        The task.
    options : mapping of str to mapping
        By model (its alias or name).
    left_out : mapping of str to tuple of str, default none
        Names of options that may be given back, by model; see `RecordedTask`.

    Raises
    ------
    ConfigurationError
        The task has no such model, or an option would change the calls.
    """
    if not options:
        return task
    known = [label_of(own) for own in models_of(task)]
    for name, given in options.items():
        if name not in known:
            raise ConfigurationError(
                f"Expected options of one of the models {', '.join(known)}, got some of {name!r:.80}: correct the name."
            )
        allowed = left_out.get(name, ())
        other = [option for option in given if option not in allowed and not may_be_withheld(option)]
        if other:
            raise ConfigurationError(
                f"Expected options that say who calls and where (api_key, extra_headers, api_base, timeout), got "
                f"{other[0]!r:.80}: it could change the predictions; run and export with it."
            )
    cascade, routing = cascade_settings(task), routing_settings(task)
    if cascade is not None:
        models = tuple(_with_own_options(model, options) for model in cascade.models)
        cascade = cascade.model_copy(update={"models": models})
    if routing is not None:
        providers = tuple(_with_own_options(provider, options) for provider in routing.providers)
        routing = routing.model_copy(update={"providers": providers})
    return replace(task, model=_with_own_options(task.model, options)).with_sections(
        cascade=cascade, routing=routing
    )


def _with_own_options(own: _AnyModel, options: Mapping[str, Mapping[str, Any]]) -> _AnyModel:
    given = dict(options.get(label_of(own), {}))
    base = given.pop("api_base", own.api_base)
    return own.model_copy(update={"api_base": base, "options": {**own.options, **given}})
