"""From the ``[routing]`` section to what asks its providers."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibrant.core import ROUTED, Client, RouterState, RoutingProviderSettings, RoutingSettings
from calibrant.inference import (
    CachedEmbedder,
    Provider,
    RoutedClient,
    SharedRouter,
    call_options,
    open_client,
    open_embedder,
)
from calibrant.routing import (
    BanditRouter,
    CascadeRouter,
    CoherenceMonitor,
    EMARouter,
    FixedRouter,
    QualityGate,
    Router,
    TaskRouter,
    ThompsonRouter,
    TriageRouter,
)
from calibrant.store import open_router_state

__all__ = ["default_router_state", "open_routed_client", "open_router"]

_LEARNING: Final = frozenset({"ema", "thompson", "bandit"})


def default_router_state() -> str:
    """Return the URL or file of what the user's routers have learnt.

    ``$CALIBRANT_ROUTER_STATE`` (a SQLAlchemy URL or a file), or else ``router.sqlite`` in ``$CALIBRANT_HOME``,
    or else in ``calibrant`` in the user's folder for state (``$XDG_STATE_HOME``, ``~/.local/state``).
    """
    named = os.environ.get("CALIBRANT_ROUTER_STATE")
    if named:
        return named
    home = os.environ.get("CALIBRANT_HOME")
    if home:
        return str(Path(home).expanduser() / "router.sqlite")
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The standard says that a relative path is to be ignored.
    folder = state if state.is_absolute() else Path.home() / ".local" / "state"
    return str(folder / "calibrant" / "router.sqlite")


def open_router(settings: RoutingSettings, *, rng: np.random.Generator | None = None) -> Router:
    """Return the strategy that a section describes, without experience.

    Parameters
    ----------
    settings : RoutingSettings
        The section.
    rng : numpy Generator, optional
        What it draws from; None takes a fresh one.

    Raises
    ------
    ConfigurationError
        The strategy takes a setting for wrong.
    """
    names, strategy = settings.names, settings.strategy
    if strategy == "ema":
        alpha, interval = settings.router_ema_alpha, settings.router_reorder_interval
        return EMARouter(names, alpha=alpha, reorder_interval=interval, rng=rng)
    if strategy == "thompson":
        return ThompsonRouter(names, decay=settings.thompson_decay, rng=rng)
    if strategy == "cascade":
        return _cascade(settings, rng)
    if strategy == "task":
        return TaskRouter(names, tasks=settings.tasks, rng=rng)
    if strategy == "triage" and settings.triage is not None:
        tiers = settings.triage.tiers.model_dump(exclude_none=True)
        return TriageRouter(names, tiers=tiers, context_windows=_known(settings, "context_window"), rng=rng)
    if strategy == "bandit":
        own = settings.bandit.model_dump(include={"alpha", "dim", "cost_weight", "decay_factor"})
        return BanditRouter(names, **own, costs=_known(settings, "cost"), rng=rng)
    return FixedRouter(names, rng=rng)


def _cascade(settings: RoutingSettings, rng: np.random.Generator | None) -> CascadeRouter:
    own = settings.cascade.model_dump(exclude={"judge_provider"})
    return CascadeRouter(settings.names, **own, costs=_known(settings, "cost"), rng=rng)


def _known(settings: RoutingSettings, key: str) -> dict[str, Any] | None:
    """Return what is said of providers under a key; None where nothing is."""
    found = {own.label: getattr(own, key) for own in settings.providers}
    return {name: value for name, value in found.items() if value is not None} or None


def open_routed_client(
    settings: RoutingSettings,
    *,
    task_name: str,
    rng: np.random.Generator | None = None,
) -> RoutedClient:
    """Return a client that asks the providers of a section in the order its strategy takes.

    Parameters
    ----------
    settings : RoutingSettings
        The section.
    task_name : str
        What the requests belong to: the strategy ``task`` looks it up, and what is learnt is kept under it.
    rng : numpy Generator, optional
        What the strategy draws from; None takes a fresh one.

    Returns
    -------
    RoutedClient
        Closing it writes down what was learnt and frees all that was opened for it.

    Raises
    ------
    ConfigurationError
        A provider cannot be opened, or a setting does not fit.
    """
    router = open_router(settings, rng=rng)
    with ExitStack() as opened:
        clients = {own.label: _client(own, opened) for own in settings.providers}
        ...
