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
    names = settings.names
    costs = {own.label: own.cost for own in settings.providers if own.cost is not None}
    ...
