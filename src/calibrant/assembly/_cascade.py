"""Cascades built from a task's ``[cascade]`` section."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final

from calibrant.assembly._looper import read_looper
from calibrant.assembly._routing import open_routed_client, refuse_misleading_providers
from calibrant.cascade._cascade import Cascade
from calibrant.cascade._methods import method_named
from calibrant.cascade._models import CascadeModel
from calibrant.cascade._protocol import ConfidenceMethod
from calibrant.cascade._settings import ROUTED, CascadeModelSettings, CascadeSettings
from calibrant.cascade.methods._learned import LearnedScorer
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._limits import Limits
from calibrant.core._records import Journal
from calibrant.core._task import Task
from calibrant.inference._classifier import Classifier
from calibrant.inference.routed._client import RoutedClient
from calibrant.routing._settings import RoutingSettings

# Settings of a cascade that a looper's file cannot hold.
_ROW_LIMITS: Final = ("max_escalations", "max_tokens", "max_cost", "deadline_seconds")
_OF_THE_TASK: Final = (*_ROW_LIMITS, "context")
_TOKEN_METHODS: Final = frozenset({"avg_logprob", "margin", "hybrid"})


def resolved_cascade(settings: CascadeSettings) -> CascadeSettings:
    """Return the settings, merged with those of the looper's file if the task names one."""
    if settings.file is None:
        return settings
    looper = read_looper(settings.file)
    own: dict[str, Any] = {name: getattr(settings, name) for name in _OF_THE_TASK}
    return looper.model_copy(update={**own, "models": _chosen_models(settings, looper.models)})


def _chosen_models(
    settings: CascadeSettings, named: tuple[CascadeModelSettings, ...]
) -> tuple[CascadeModelSettings, ...]:
    """Return the task's models in the looper file's order, if it names any."""
    if not settings.models or not named:
        models = settings.models or named
        if not models:
            raise ConfigurationError(
                f"{settings.file}: expected modelRefs, or [[cascade.models]] in the task file, got neither: name the "
                "models to be asked in turn."
            )
        return models
    known = [model.name for model in settings.models]
    for model in named:
        if model.name not in known:
            raise ConfigurationError(
                f"{settings.file}: modelRefs names {model.name!r}, but [[cascade.models]] has {', '.join(known)}: add "
                "it there, or remove it."
            )
    return tuple(model for ref in named for model in settings.models if model.name == ref.name)


def open_cascade(
    task: Task,
    section: CascadeSettings,
    routing: RoutingSettings | None,
    *,
    journal: Journal | None,
    limits: Limits | None,
) -> Cascade:
    """Return the cascade of a task; see `calibrant.assembly.open_classifier`."""
    settings = resolved_cascade(section)
    with ExitStack() as opened:
        models = _open_models(task, settings, routing, opened)
        method = _method(settings, [model.classifier for model in models])
        opened.callback(method.close)
        cascade = Cascade(
            models,
            method=method,
            threshold=settings.threshold,
            native_threshold=settings.native_threshold,
            escalation_order=settings.escalation_order,
            cost_quality_tradeoff=settings.cost_quality_tradeoff,
            on_error=settings.on_error,
            **{name: getattr(settings, name) for name in _ROW_LIMITS},
            context_of=settings.context,
            limits=limits,
            journal=journal,
            owns_models=True,
        )
        opened.pop_all()
    return cascade


def _open_models(
    task: Task, settings: CascadeSettings, routing: RoutingSettings | None, opened: ExitStack
) -> list[CascadeModel]:
    """Open the models of a cascade; `opened` closes them."""
    rowless = replace(task, train=(), validation=(), test=(), sections={})
    models = []
    routed: RoutedClient | None = None
    for own in settings.models:
        prompt = task.prompt if own.prompt is None else own.prompt
        described = replace(rowless, model=_with_tokens(own, settings), prompt=prompt)
        if own.name == ROUTED and routing is not None:
            if routed is None:
                routed = open_routed_client(routing, task_name=task.name)
                opened.callback(routed.close)
            classifier = Classifier.from_task(described, client=routed)
            refuse_misleading_providers(classifier, routed, routing)
        else:
            classifier = Classifier.from_task(described)
        opened.callback(classifier.close)
        models.append(
            CascadeModel(
                classifier=classifier,
                cost=own.cost,
                size=own.size,
                quality=own.quality,
                name=own.alias,
                concurrency=own.concurrency,
            )
        )
    return models


def _with_tokens(model: CascadeModelSettings, settings: CascadeSettings) -> CascadeModelSettings:
    """Return the model's settings; it writes its answers if the method reads tokens and no setting forbids it.

    An embedded model would otherwise score its labels, and there would be no token to read.
    """
    reads_tokens = settings.confidence_method in _TOKEN_METHODS
    if not reads_tokens or model.scoring is not None:
        return model
    return model.model_copy(update={"scoring": "decode"})


def _method(settings: CascadeSettings, classifiers: Sequence[Classifier]) -> ConfidenceMethod:
    """Return the confidence method; refuse a learned one fitted on another model."""
    if settings.learned_file is None:
        return method_named(settings.confidence_method, **_method_options(settings))
    for classifier in classifiers[:-1]:
        with suppress(StateError):
            return LearnedScorer.load(settings.learned_file, fingerprint=classifier.fingerprint())
    return LearnedScorer.load(settings.learned_file, fingerprint=classifiers[-1].fingerprint())


def _method_options(settings: CascadeSettings) -> dict[str, Any]:
    """Return the options of the confidence method."""
    method = settings.confidence_method
    options: dict[str, Any] = {"token_filter": settings.token_filter} if method in _TOKEN_METHODS else {}
    if settings.hybrid_weights is not None:
        options |= settings.hybrid_weights.model_dump()
    if method == "automix_entailment":
        options |= {
            "url": settings.verifier_server_url,
            "timeout_seconds": settings.verifier_timeout_seconds,
        }
        if settings.threshold is not None:
            options["threshold"] = settings.threshold
    return options
