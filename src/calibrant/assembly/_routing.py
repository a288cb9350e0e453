"""Cascades and routed clients built from a task's ``[cascade]`` and ``[routing]`` sections."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

from calibrant.assembly._foreign import read_looper
from calibrant.cascade._cascade import Cascade
from calibrant.cascade._methods import METHODS, CascadeModelSettings, CascadeSettings
from calibrant.cascade._protocol import ROUTED, CascadeModel
from calibrant.core._completion import STAND_INS, Client, ClientTraits
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import user_path
from calibrant.core._prediction import Journal, JsonObject
from calibrant.core._predictor import Limits
from calibrant.core._task import Task
from calibrant.inference._classifier import Classifier
from calibrant.inference._embeddings import CachedEmbedder, open_embedder
from calibrant.inference._examinations import refuse_misleading, shared_abilities
from calibrant.inference._models import STUDENT, call_options, is_decision_model, open_client
from calibrant.inference._shared_router import SharedRouter
from calibrant.inference.routed._client import RoutedClient
from calibrant.inference.routed._provider import Provider
from calibrant.routing._coherence import CoherenceMonitor, QualityGate
from calibrant.routing._protocol import Router
from calibrant.routing._settings import STRATEGIES, RoutingProviderSettings, RoutingSettings

# Settings of a cascade that a looper's file cannot hold.
_ROW_LIMITS: Final = ("max_escalations", "max_tokens", "max_cost", "deadline_seconds")
_OF_THE_TASK: Final = (*_ROW_LIMITS, "context", "verify_last")
# Settings that `Cascade` takes under their own names.
_SAME_NAMES: Final = (
    *_ROW_LIMITS,
    *(
        "threshold",
        "native_threshold",
        "escalation_order",
        "cost_quality_tradeoff",
        "on_error",
        "verify_last",
    ),
)
# Options of a provider that its embeddings take, too: address and credentials.
_ACCESS: Final = frozenset(
    {
        "api_base",
        "api_key",
        "api_version",
        "base_url",
        "custom_llm_provider",
        "extra_headers",
        "organization",
        "timeout",
    }
)
_HASHED: Final = 256  # buckets for comparisons; a bandit takes its own number


def default_router_state() -> str:
    """Return the URL or file in which the user's router state is stored.

    ``$CALIBRANT_ROUTER_STATE`` (a SQLAlchemy URL or a file), or else ``router.sqlite`` in ``$CALIBRANT_HOME``,
    or else in ``calibrant`` in the user's folder for state (``$XDG_STATE_HOME``, ``~/.local/state``).
    """
    return os.environ.get("CALIBRANT_ROUTER_STATE") or str(user_path("router.sqlite", "state"))


def open_router(settings: RoutingSettings) -> Router:
    """Return the routing strategy of a ``[routing]`` section, without learned state.

    Parameters
    ----------
    settings : RoutingSettings
        The section.

    Raises
    ------
    ConfigurationError
        The strategy refuses a setting.
    """
    router: Router = STRATEGIES[settings.strategy].from_settings(settings.model_dump())
    return router


def open_routed_client(settings: RoutingSettings, *, task_name: str) -> RoutedClient:
    """Return the routed client of a ``[routing]`` section.

    Parameters
    ----------
    settings : RoutingSettings
        The section.
    task_name : str
        Name of the requests' task: the strategy ``task`` looks it up, and learned state is stored under it.

    Returns
    -------
    RoutedClient
        Closing it saves the learned state and releases the providers.

    Raises
    ------
    ConfigurationError
        A provider cannot be opened, or a setting does not fit.
    """
    with ExitStack() as opened:
        providers = [_open_provider(own, opened) for own in settings.providers]
        embedder = _embedder(settings, opened)
        routed = RoutedClient(
            providers,
            router=_shared_router(open_router(settings), settings, task_name, opened),
            embedder=embedder,
            task=task_name,
            cooldown_seconds=settings.cooldown_seconds,
            allowed_failures=settings.allowed_failures,
            call_seconds=settings.call_seconds,
            owned=True,
            **_optional_parts(settings, {own.name: own.client for own in providers}),
        )
        opened.pop_all()
    return routed


def open_routed(
    task: Task, routing: RoutingSettings, *, journal: Journal | None, limits: Limits | None
) -> Classifier:
    """Return the classifier of a task with a ``[routing]`` section."""
    with ExitStack() as opened:
        client = open_routed_client(routing, task_name=task.name)
        opened.callback(client.close)
        alone = replace(task, sections={})
        classifier = Classifier.from_task(alone, client=client, journal=journal, limits=limits)
        refuse_misleading_providers(classifier, client, routing)
        opened.pop_all()
    return classifier


def refuse_misleading_providers(
    classifier: Classifier, client: RoutedClient, routing: RoutingSettings
) -> None:
    """Raise ConfigurationError if a provider is known to give misleading confidence."""
    for own, provider in zip(routing.providers, client.providers, strict=True):
        options = _provider_options(own)
        space = provider.logprob_space
        refuse_misleading(own.name, options=options, method=classifier.method, space=space)


def _provider_options(own: RoutingProviderSettings) -> JsonObject:
    """Return the options of a provider, including its address."""
    return dict(own.options) | ({} if own.api_base is None else {"api_base": own.api_base})


def _open_provider(own: RoutingProviderSettings, opened: ExitStack) -> Provider:
    options = _provider_options(own)
    if is_decision_model(own.name) or own.name.startswith(STUDENT):
        raise ConfigurationError(
            f"routing.providers: expected models that write text, got {own.name!r}, which answers questions with fixed "
            "options alone: leave it out, or name it under [[cascade.models]]."
        )
    client = open_client(own.name, space=own.space, concurrency=own.concurrency, options=options)
    opened.callback(client.close)
    return Provider(
        own.label,
        client,
        concurrency=own.concurrency,
        options=call_options(options),
        cost=own.cost,
        context_window=own.context_window,
        space=own.space,
        abilities=None
        if ClientTraits.of(client).in_process or own.name in STAND_INS
        else shared_abilities(own.name, options),
    )


def _shared_router(router: Router, settings: RoutingSettings, task_name: str, opened: ExitStack) -> Router:
    """Return the strategy, with its stored state if it is one that learns."""
    if not settings.learns:
        return router
    from calibrant.store._router_state import RouterState  # noqa: PLC0415 (loads sqlalchemy)

    shared = SharedRouter(
        router, RouterState(settings.state_place or default_router_state(), scope=task_name)
    )
    opened.callback(shared.close)
    return shared


def _optional_parts(settings: RoutingSettings, clients: Mapping[str, Client]) -> JsonObject:
    """Return the optional components of a strategy: judge, triage, quality gate and coherence monitor."""
    parts: dict[str, Any] = {}
    if settings.strategy == "cascade" and settings.cascade.classifier_mode == "judge":
        parts["judge"] = clients[settings.cascade.judge_provider or ""]
    if settings.strategy == "triage" and settings.triage is not None:
        parts["triage"] = clients[settings.triage.triage_provider]
        parts["helper_seconds"] = settings.triage.timeout_seconds
    if settings.quality_gate > 0 and len(clients) > 1:
        parts["gate"] = QualityGate(settings.quality_gate)
    if settings.coherence.enabled:
        own = settings.coherence.model_dump(exclude={"enabled", "embedding_provider"})
        parts["coherence"] = CoherenceMonitor(**own)
    return parts


def _embedder(settings: RoutingSettings, opened: ExitStack) -> CachedEmbedder | None:
    """Return the embedder of texts, or None if the settings name none."""
    name = settings.embedder
    if name is None:
        return None
    provider = next((one for one in settings.providers if one.label == name), None)
    access = {} if provider is None else _provider_options(provider)
    bandit = settings.bandit
    dim = bandit.dim if settings.traits.needs_embedding else _HASHED if name == "hashing" else 1
    embedder = open_embedder(
        name if provider is None else provider.embedding_model or provider.name,
        dim=dim,
        options={option: value for option, value in access.items() if option in _ACCESS},
    )
    opened.callback(embedder.close)
    return CachedEmbedder(
        embedder,
        dim=dim,
        cache_size=bandit.cache_size,
        timeout_seconds=bandit.embedding_timeout_ms / 1000,
    )


def resolved_cascade(settings: CascadeSettings) -> CascadeSettings:
    """Return the cascade settings, merged with those of the looper's file if they name one."""
    if settings.file is None:
        return settings
    looper = read_looper(settings.file)
    own: dict[str, Any] = {name: getattr(settings, name) for name in _OF_THE_TASK}
    return looper.model_copy(update={**own, "models": _chosen_models(settings, looper.models)})


def _chosen_models(
    settings: CascadeSettings, named: tuple[CascadeModelSettings, ...]
) -> tuple[CascadeModelSettings, ...]:
    """Return the cascade's models; if the looper's file names models, only those, in its order."""
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
        method = METHODS[settings.confidence_method].from_settings(settings.model_dump())
        opened.callback(method.close)
        cascade = Cascade(
            models,
            method=method,
            **{name: getattr(settings, name) for name in _SAME_NAMES},
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
    """Return the model's settings, with scoring ``decode`` if none is set and the method reads tokens.

    An embedded model would otherwise score its labels, and there would be no token to read.
    """
    reads_tokens = METHODS[settings.confidence_method].needs_tokens
    if not reads_tokens or model.scoring is not None:
        return model
    return model.model_copy(update={"scoring": "decode"})
