"""Tuned classifiers opened: their models, prompt and corrections."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from calibrant.assembly._sections import open_classifier, routing_settings
from calibrant.core._completion import Client
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._limits import Limits
from calibrant.core._records import Journal
from calibrant.core._task import RecordedTask, Task
from calibrant.heads._tuned import Tuned
from calibrant.inference._base import BasePredictor
from calibrant.inference._classifier import Classifier, as_classifier
from calibrant.inference._models import ModelLike, may_be_withheld, open_client
from calibrant.tuned._task_record import label_of, models_of, read_source, with_models

_LOG = logging.getLogger("calibrant")
_FROM_ENVIRONMENT: Final = frozenset({"api_key"})


def load(
    path: str | Path | Tuned,
    *,
    model: ModelLike | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    journal: Journal | None = None,
    router_state: str | None = None,
) -> BasePredictor:
    """Open the classifier of a bundle, a run or a task file.

    Parameters
    ----------
    path : str, Path or Tuned
        The folder that `calibrant export` wrote, the directory of a run, or a task file; or a tuned classifier.
    model, options, limits, journal, router_state : optional
        See `Tuned.open`. A task file has its own options and its own router state.

    Returns
    -------
    Classifier or Cascade
        A `calibrant.cascade.Cascade` if the run or the task asks one. Closing it releases its models and files.

    Raises
    ------
    StateError
        The path holds none of these; or the bundle or run is damaged, altered or of another version, or its calls
        would differ from those that were measured.
    ConfigurationError
        The task file is wrong, an option is missing, unknown or wrong, or a model cannot be opened.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant import BatchEvaluator, Classifier, Example, Task, load
    >>> from calibrant.testing import FakeClient, fake_model
    >>> from calibrant.tuned import Tuned
    >>> out = Path(tempfile.mkdtemp())
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?")
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)}, field="label", name="fake/pets")
    >>> with fake_model("fake/pets", fake) as name:
    ...     rows = [Example(input="purrs", answer="cat")]
    ...     _ = BatchEvaluator(Classifier.from_task(task, model=name)).evaluate(rows, out=out / "run")
    ...     _ = Tuned.from_run(out / "run", task=task, model=name).save(out / "bundle")
    ...     found = load(out / "bundle").classify("purrs")
    >>> found.label, round(found.confidence, 2)
    ('cat', 0.9)
    """
    found = path if isinstance(path, Tuned) else read_source(path)
    if isinstance(found, Task):
        if options or router_state is not None:
            raise ConfigurationError(
                f"Expected options and router_state for a bundle or a run alone, got {path}: write them in the task "
                "file."
            )
        return open_classifier(found, model=model, limits=limits, journal=journal)
    return open_tuned(
        found, model=model, options=options, limits=limits, journal=journal, router_state=router_state
    )


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
    given = _by_model(tuned, options) if options else {}
    has_left_out = any(own.left_out for own in tuned.tasks)
    missing = _missing_options(tuned, given) if model is None and has_left_out else {}
    tasks = [_task_to_open(own, tuned, given, router_state) for own in tuned.tasks]
    if tuned.plan is None and router_state is not None and "routing" not in tasks[0].sections:
        raise ConfigurationError("Expected router_state only for a bundle with [routing]: leave it out.")
    try:
        if model is not None:
            classifier = _open_with_other_model(tuned, tasks[0], model, limits=limits, journal=journal)
        elif tuned.plan is not None:
            classifier = _open_plan(tuned.plan, tasks, limits=limits, journal=journal)
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
            if names := [option for option in left_out if option not in given.get(name, {})]:
                missing[name] = names
    if any(set(names) - _FROM_ENVIRONMENT for names in missing.values()):
        raise ConfigurationError(_left_out_message(tuned, missing))
    return missing


def _left_out_message(tuned: Tuned, missing: Mapping[str, list[str]]) -> str:
    parts = [f"{', '.join(options)} of {name}" for name, options in missing.items()]
    return (
        f"{tuned.place}: the run used {'; '.join(parts)}, which a bundle does not hold, as it may be a credential: "
        "hand it in with options (or, for a key, set the provider's environment variable)."
    )


def _task_to_open(
    own: RecordedTask, tuned: Tuned, given: Mapping[str, Mapping[str, Any]], router_state: str | None
) -> Task:
    task = own.task
    if given:
        task = with_options(task, given, left_out=own.left_out)
    if not task.sections:
        # With the scoring that the run came to, loading asks nothing.
        method = (tuned.description or {}).get("method", {})
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
    record: Mapping[str, Any], tasks: list[Task], *, limits: Limits | None, journal: Journal | None
) -> BasePredictor:
    """Return the cascade of a plan, or the classifier of a plan with one model."""
    from calibrant.cascade.planning._plan import CascadePlan  # noqa: PLC0415 (few runs have one)

    plan = CascadePlan.from_record(record)
    members = plan.policy.members
    whole: dict[str, Any] = {"limits": limits, "journal": journal}
    each, several = (whole, {}) if len(members) == 1 else ({}, {**whole, "owns_models": True})
    with ExitStack() as opened:
        classifiers = []
        for task in tasks:
            classifiers.append(Classifier.from_task(task, **each))
            opened.callback(classifiers[-1].close)
        cascade = plan.cascade(classifiers, **several)
        opened.pop_all()
    for number, classifier in enumerate(classifiers):
        if number not in members:
            classifier.close()
    return cascade


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
    if name != tuned.fingerprint.model:
        _LOG.warning(
            "%s is asked instead of %s: the bundle's figures, calibrator and thresholds belong to the latter.",
            name,
            tuned.fingerprint.model,
        )
    space = classifier.space
    if space != tuned.fingerprint.space:
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


def _without_address(record: dict[str, Any]) -> dict[str, Any]:
    # Addresses may differ between machines without changing the model.
    return {name: value for name, value in record.items() if name != "endpoint"}
