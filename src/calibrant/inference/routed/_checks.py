"""What a routed client is put together from, refused where it does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Final

from calibrant.core._completion import Client
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import ConfigurationError
from calibrant.inference._embeddings import CachedEmbedder
from calibrant.inference.doctor._records import identity
from calibrant.inference.routed._provider import Provider
from calibrant.routing._coherence import CoherenceMonitor
from calibrant.routing._gate import QualityGate
from calibrant.routing._protocol import Router

# These judge answers themselves.
_OWN_SIGNAL: Final = frozenset({"cascade", "bandit"})


def check_parts(
    strategy: str,
    embedder: CachedEmbedder | None,
    *,
    gate: QualityGate | None,
    coherence: CoherenceMonitor | None,
    delayed: bool,
) -> None:
    """Refuse what a strategy lacks, and what would have no effect.

    Raises
    ------
    ConfigurationError
        Something is missing, or too much.
    """
    for name, part in (("gate", gate), ("coherence", coherence)):
        if part is not None and strategy in _OWN_SIGNAL:
            raise ConfigurationError(
                f"Expected no {name} with the strategy {strategy!r}, which judges answers itself: leave it out."
            )
        if part is not None and embedder is None:
            raise ConfigurationError(f"Expected an embedder for {name}, got none: hand one in.")
    if strategy == "bandit" and embedder is None:
        raise ConfigurationError("Expected an embedder for the strategy 'bandit', got none: hand one in.")
    if delayed and strategy != "bandit":
        raise ConfigurationError(
            f"Expected delayed=True only with the strategy 'bandit', got {strategy!r}: leave it out."
        )


def check_helper(name: str, client: Client | None, *, wanted: bool, why: str) -> None:
    """Refuse a model that is missing, or that nothing would be asked of.

    Raises
    ------
    ConfigurationError
        It is one of both, or no client.
    """
    if wanted and client is None:
        raise ConfigurationError(f"Expected a client as {name} for {why}, got none: hand one in.")
    if client is not None and not wanted:
        raise ConfigurationError(f"Expected no {name} but for {why}: leave it out.")
    if client is not None and not isinstance(client, Client):
        raise ConfigurationError(f"Expected a client as {name}, got {client!r:.80}.")


def checked_providers(providers: Sequence[Provider], router: Router) -> tuple[Provider, ...]:
    """Return the providers.

    Raises
    ------
    ConfigurationError
        There is none, one is no `Provider` or there twice, or the router knows others.
    """
    found = tuple(providers)
    for provider in found:
        if not isinstance(provider, Provider):
            raise ConfigurationError(f"Expected a Provider, got {provider!r:.80}.")
    names = [provider.name for provider in found]
    if not names:
        raise ConfigurationError("Expected at least one provider, got none: name those to choose from.")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigurationError(
            f"Expected every provider once, got {', '.join(doubled)} more than once: give them names of their own."
        )
    if set(names) != set(router.providers):
        raise ConfigurationError(
            f"Expected a router of the providers {', '.join(names)}, got one of {', '.join(router.providers)}."
        )
    return found


def common_space(providers: Sequence[Provider]) -> LogprobSpace:
    """Return the space of all providers; ``mixed`` where they differ."""
    spaces = {provider.logprob_space for provider in providers}
    return spaces.pop() if len(spaces) == 1 else LogprobSpace.MIXED


def identity_of(providers: Sequence[Provider]) -> str:
    """Return what can change their answers, or how these are read, as JSON, free of credentials."""
    mixed = common_space(providers) is LogprobSpace.MIXED
    found = []
    for provider in providers:
        client = provider.client
        who = identity(client.name, provider.options, api_base=getattr(client, "endpoint", None))
        found.append([provider.name, *who, *([provider.logprob_space] if mixed else [])])
    return json.dumps(found, sort_keys=True)


def check_seconds(**seconds: float | None) -> None:
    """Refuse times that are none.

    Raises
    ------
    ConfigurationError
        One is not finite and above 0.
    """
    for name, value in seconds.items():
        if value is not None and (isinstance(value, bool) or not 0.0 < value < math.inf):
            raise ConfigurationError(f"Expected {name} to be a finite number above 0, got {value!r}.")
