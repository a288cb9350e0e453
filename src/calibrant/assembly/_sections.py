"""Settings of a task's ``[cascade]`` and ``[routing]`` sections, and the classifier built from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pydantic

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Journal
from calibrant.core._predictor import Limits
from calibrant.core._settings import Problem, Section, SectionTable, describe_problem, refuse
from calibrant.core._task import Task
from calibrant.inference._base import BasePredictor
from calibrant.inference._classifier import Classifier
from calibrant.inference._models import ModelLike

if TYPE_CHECKING:
    from calibrant.cascade._methods import CascadeSettings
    from calibrant.routing._settings import RoutingSettings


_LOG = logging.getLogger("calibrant")
_Settings = TypeVar("_Settings", bound=Section)

# Settings that a cascade's model `routed` leaves to the providers of [routing].
_OF_ONE_MODEL: Final = frozenset({"api_base", "space", "options"})


def cascade_settings(task: Task) -> CascadeSettings | None:
    """Return the settings of a task's ``[cascade]`` section; None if it has no such section.

    Parameters
    ----------
    task : Task
        The task; of one from a file, paths in the section are relative to that file.

    Raises
    ------
    ConfigurationError
        The section is wrong, or contradicts another one; names file and line of every mistake.

    Examples
    --------
    >>> from calibrant import Task
    >>> from calibrant.cascade import CascadeSettings
    >>> from calibrant.assembly import cascade_settings
    >>> models = [{"name": "fake/small", "cost": 1}, {"name": "fake/large", "cost": 10}]
    >>> cascade = CascadeSettings(confidence_method="label_probability", threshold=0.8, models=models)
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?", sections={"cascade": cascade})
    >>> settings = cascade_settings(task)
    >>> settings.threshold, [model.name for model in settings.models]
    (0.8, ['fake/small', 'fake/large'])
    """
    if "cascade" not in task.sections:
        return None
    from calibrant.cascade._methods import CascadeSettings  # noqa: PLC0415 (few tasks have one)

    section = task.sections["cascade"]
    settings = _checked_section(section, "cascade", CascadeSettings)
    if not isinstance(section, SectionTable):
        return settings
    refuse(_cascade_problems(settings, section, task), section.text, section.path)
    refuse(_member_problems(settings, task), section.text, section.path)
    if settings.file is None:
        return settings
    return settings.model_copy(update={"file": section.path.parent / settings.file})


def routing_settings(task: Task) -> RoutingSettings | None:
    """Return the settings of a task's ``[routing]`` section; None if it has no such section.

    Parameters
    ----------
    task : Task
        The task; of one from a file, paths in the section are relative to that file.

    Raises
    ------
    ConfigurationError
        The section, or the configuration of Zeph that it names, is wrong, or it contradicts another one; names file
        and line of every mistake.

    Examples
    --------
    >>> from calibrant import Task
    >>> from calibrant.routing import RoutingSettings
    >>> from calibrant.assembly import routing_settings
    >>> providers = [{"name": "openai/gpt-4.1-mini"}, {"name": "local/smollm2-135m"}]
    >>> routing = RoutingSettings(routing="ema", providers=providers)
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?", sections={"routing": routing})
    >>> settings = routing_settings(task)
    >>> settings.routing, len(settings.providers), settings.router_ema_alpha
    ('ema', 2, 0.1)
    """
    if "routing" not in task.sections:
        return None
    from calibrant.routing._settings import RoutingSettings  # noqa: PLC0415 (few tasks have one)

    section = task.sections["routing"]
    if not isinstance(section, SectionTable):
        return _checked_section(section, "routing", RoutingSettings)
    settings = _checked_section(_with_zeph(section), "routing", RoutingSettings)
    refuse(_routing_problems(settings, section, task), section.text, section.path)
    return settings.beside(section.path.parent)


def open_classifier(
    task: Task,
    *,
    model: ModelLike | None = None,
    journal: Journal | None = None,
    limits: Limits | None = None,
) -> BasePredictor:
    """Return the task's classifier: a `Cascade` if it has a ``[cascade]`` section, else a `Classifier`.

    Where it has a ``[routing]`` section, the classifier's client, or that of the cascade's model ``routed``,
    is the one that `open_routed_client` returns.

    Parameters
    ----------
    task : Task
        The task.
    model : str, Client or callable, optional
        Replaces the task's own model, all its providers, or its whole cascade.
    journal : Journal, optional
        Finished predictions.
    limits : Limits, optional
        Rates, budgets and deadlines of whole runs.

    Returns
    -------
    Classifier or Cascade
        Closing it releases its models and files.

    Raises
    ------
    ConfigurationError
        A setting is wrong, or contradicts another; see `Cascade` and `read_looper`.
    StateError
        The learned scorer's file cannot be used, or it was fitted on another model or prompt.

    Examples
    --------
    >>> from calibrant import Task
    >>> from calibrant.assembly import open_classifier
    >>> from calibrant.cascade import CascadeSettings
    >>> from calibrant.testing import FakeClient, fake_model
    >>> models = [{"name": "fake/small", "cost": 1}, {"name": "fake/large", "cost": 10}]
    >>> cascade = CascadeSettings(confidence_method="label_probability", threshold=0.8, models=models)
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?", sections={"cascade": cascade})
    >>> small = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.6)}, field="label", name="fake/small")
    >>> large = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.95)}, field="label", name="fake/large")
    >>> with fake_model("fake/small", small), fake_model("fake/large", large):
    ...     found = open_classifier(task).classify("purrs")
    >>> found.label, round(found.confidence, 2), [step.model for step in found.steps]
    ('cat', 0.95, ['fake/small', 'fake/large'])
    """
    # A wrong section is an error even if `model` replaces it.
    cascade = cascade_settings(task)
    routing = routing_settings(task)
    if model is None and cascade is not None:
        from calibrant.assembly._routing import open_cascade  # noqa: PLC0415 (few tasks have one)

        return open_cascade(task, cascade, routing, journal=journal, limits=limits)
    if model is None and routing is not None:
        from calibrant.assembly._routing import open_routed  # noqa: PLC0415 (few tasks have one)

        return open_routed(task, routing, journal=journal, limits=limits)
    if task.sections:
        _LOG.warning(
            "%s alone is asked: the task's %s and its settings are not used.",
            model if isinstance(model, str) else "Another model",
            "routing" if cascade is None else "cascade",
        )
    return Classifier.from_task(task, model=model, journal=journal, limits=limits)


def _checked_section(section: Section | SectionTable, name: str, kind: type[_Settings]) -> _Settings:
    """Return the settings of a section, parsed from its table if needed."""
    if isinstance(section, kind):
        return section
    if not isinstance(section, SectionTable):
        raise ConfigurationError(f"Expected the section {name!r} as {kind.__name__}, got {section!r:.80}.")
    # Validated inside an outer model, so that the keys in error messages begin with the section's name.
    whole = pydantic.create_model("_Whole", __base__=Section, **{name: (kind, ...)})  # type: ignore[call-overload]
    try:
        settings: _Settings = getattr(whole.model_validate({name: section.values}), name)
    except pydantic.ValidationError as error:
        problems = [(item["loc"], describe_problem(dict(item), whole)) for item in error.errors()]
        refuse(problems, section.text, section.path)
        raise
    return settings


def _common_problems(
    name: str, models: str, own_prior: str, section: SectionTable, task: Task
) -> Iterator[Problem]:
    """Yield problems of task settings that have no effect in a cascade or with routing."""
    if "model" in section.beside:
        problem = f"expected no [model] beside [{name}]: it would not be asked; name it under [[{models}]], or remove "
        yield ("model",), problem + "it."
    if task.calibration.prior_correction is not None:
        problem = f"expected no prior_correction beside [{name}]: {own_prior}; leave it out."
        yield ("calibration", "prior_correction"), problem


def _cascade_problems(settings: CascadeSettings, section: SectionTable, task: Task) -> Iterator[Problem]:
    """Yield problems of a cascade: duplicate, missing and ineffective settings."""
    from calibrant.cascade._methods import LOOPER_KEYS  # noqa: PLC0415 (as above)

    if settings.file is not None:
        doubled = settings.model_fields_set & {*LOOPER_KEYS, "native_threshold"}
        yield from _doubled_keys("cascade", doubled)
    reason = "a label that it changes is one that no model was sure of"
    yield from _common_problems("cascade", "cascade.models", reason, section, task)
    if task.demonstrations is not None:
        problem = "expected no [demonstrations] beside [cascade]: they belong to one prompt; leave them out."
        yield ("demonstrations",), problem
    if not settings.models and settings.file is None:
        problem = "expected at least one [[cascade.models]], got none: name the models to be asked in turn."
        yield ("cascade",), problem


def _doubled_keys(section: str, names: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem for each setting that belongs in the file that the section names."""
    for name in sorted(names):
        where = f"expected no '{section}.{name}' beside '{section}.file'"
        yield (section, name), f"{where}: set it in that file, or leave the file out."


def _member_problems(settings: CascadeSettings, task: Task) -> Iterator[Problem]:
    """Yield problems of those models of a cascade that stand for the ``[routing]`` section."""
    from calibrant.cascade._protocol import ROUTED  # noqa: PLC0415 (as above)

    for number, member in enumerate(settings.models):
        if member.name != ROUTED:
            continue
        place = ("cascade", "models", number)
        if "routing" not in task.sections:
            problem = f"expected a [routing] section for the model {ROUTED!r}: add it, or name another model."
            yield (*place, "name"), problem
        for key in sorted(member.model_fields_set & _OF_ONE_MODEL):
            problem = f"expected no {key!r} of the model {ROUTED!r}: set it under [[routing.providers]]."
            yield (*place, key), problem


def _routing_problems(settings: RoutingSettings, section: SectionTable, task: Task) -> Iterator[Problem]:
    """Yield problems of the routing: an unused section, ineffective and missing settings."""
    cascade = cascade_settings(task)
    if cascade is not None:
        from calibrant.cascade._protocol import ROUTED  # noqa: PLC0415 (as above)

        if ROUTED not in {member.name for member in cascade.models}:
            problem = f"expected one of the [[cascade.models]] to have name = {ROUTED!r}, got none: add it, or remove "
            yield ("routing",), problem + "[routing], which nobody would use."
    reason = "every provider has a label prior of its own"
    yield from _common_problems("routing", "routing.providers", reason, section, task)
    if settings.strategy == "task" and task.name not in settings.tasks:
        named = ", ".join(map(repr, settings.tasks))
        problem = f"expected a provider for this task, {task.name!r}, got one for {named}: add it."
        yield ("routing", "tasks"), problem


def _with_zeph(section: SectionTable) -> SectionTable:
    """Return the table, merged with the Zeph configuration that ``[routing] file`` names."""
    routing: Any = section.values
    if not isinstance(routing, dict) or not isinstance(routing.get("file"), str):
        return section
    from calibrant.assembly._foreign import OWN_KEYS, read_zeph  # noqa: PLC0415 (as above)

    own = {name: value for name, value in routing.items() if name != "file"}
    refuse(_doubled_keys("routing", own.keys() - OWN_KEYS), section.text, section.path)
    zeph = read_zeph(section.path.parent / routing["file"])
    values = zeph.model_dump(exclude_unset=True, exclude_none=True) | own
    return replace(section, values=values)
