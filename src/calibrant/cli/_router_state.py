"""``calibrant router stats`` and ``reset``: read and delete the records of routers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from calibrant.assembly._routing import default_router_state
from calibrant.assembly._sections import routing_settings
from calibrant.cli._tables import fitted
from calibrant.core._errors import CalibrantError, ConfigurationError, StateError
from calibrant.core._router_state import RouterState
from calibrant.core._task import Task
from calibrant.routing._bandit import BanditRouter
from calibrant.routing._base import FixedRouter
from calibrant.routing._cascade import CascadeRouter
from calibrant.routing._ema import EMARouter
from calibrant.routing._protocol import ProviderStanding, Router
from calibrant.routing._settings import RoutingSettings, RoutingStrategy
from calibrant.routing._thompson import ThompsonRouter
from calibrant.routing._triage import TriageRouter
from calibrant.store._router_open import open_router_state

_STRATEGIES: Final = get_args(RoutingStrategy)
_PARAMETERS: Final = ("alpha", "decay_factor")
_KEPT_APART: Final = "default"  # scope of routers that name none
_TITLES: Final = {
    "mean": "mean success",
    "lower": "95 % from",
    "upper": "to",
    "success": "success (EMA)",
    "latency_seconds": "latency (EMA) s",
    "penalty": "penalty (EMA)",
    "mean_quality": "mean quality",
}


@dataclass(frozen=True, kw_only=True)
class _StrategyRecord:
    """Learned estimates of one strategy in one scope."""

    scope: str
    strategy: str
    standings: Sequence[ProviderStanding]
    parameters: Mapping[str, float | None]

    def record(self) -> dict[str, Any]:
        """Return it as JSON values."""
        providers = [
            {"provider": one.provider, "observations": one.observations, **one.values}
            for one in self.standings
        ]
        named = {"scope": self.scope, "strategy": self.strategy, "providers": providers}
        return named | ({"parameters": dict(self.parameters)} if self.parameters else {})


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Location and scope of router records."""

    name: str
    scope: str | None
    settings: RoutingSettings | None

    def open(self, scope: str) -> RouterState:
        """Return the state of one scope."""
        return open_router_state(self.name, scope=scope)

    def scopes(self) -> list[str]:
        """Return the named scope, or all scopes."""
        if self.scope is not None:
            return [self.scope]
        with closing(self.open(_KEPT_APART)) as state:
            return state.scopes()

    @property
    def location(self) -> str:
        """Location of the records, without credentials."""
        with closing(self.open(_KEPT_APART)) as state:
            return state.location


def run_stats(
    state: str | None, *, task: Path | None, scope: str | None, strategy: str | None, as_json: bool
) -> None:
    """Print the learned records; unreadable ones end with exit code 1, after all readable ones."""
    _check(strategy)
    place = _place(state, task, scope)
    found, problems = _read(place, strategy)
    if not found and not problems:
        raise ConfigurationError(_nothing(place, strategy))
    if as_json:
        record = {"location": place.location, "records": [one.record() for one in found]}
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    else:
        parts = [*("\n".join(_lines(one)) for one in found), f"Kept in {place.location}"]
        sys.stdout.write("\n\n".join(parts) + "\n" if found else "")
    if problems:
        raise CalibrantError("\n".join(problems))


def _nothing(place: _Place, strategy: str | None) -> str:
    """Return the message for an empty result, with advice."""
    if place.settings is not None and not place.settings.learns:
        return (
            f"Expected a task whose strategy learns, got routing = {place.settings.strategy!r}, which keeps nothing: "
            "choose another strategy in the task, or leave --task out to see all that is kept."
        )
    what = f"of the strategy {strategy}" if strategy else "that routers have learnt"
    where = "" if place.scope is None else f" in the scope {place.scope!r}"
    return f"{place.location}: holds nothing {what}{where}: name another place with --state, or let a router run first."


def run_reset(
    state: str | None, *, task: Path | None, scope: str | None, strategy: str | None, as_json: bool
) -> None:
    """Delete records, and print their names."""
    _check(strategy)
    place = _place(state, task, scope)
    scopes = place.scopes()
    if len(scopes) > 1:
        raise ConfigurationError(
            f"{place.location}: expected --scope or --task, because several share this place: name one of "
            f"{', '.join(map(repr, scopes))}."
        )
    with closing(place.open(scopes[0] if scopes else _KEPT_APART)) as opened:
        gone = opened.reset(strategy)
    name = scopes[0] if scopes else None
    if as_json:
        record = {"location": place.location, "scope": name, "reset": gone}
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    elif gone:
        sys.stdout.write(f"{place.location}: forgot {', '.join(gone)} of the scope {name!r}.\n")
    else:
        what = "nothing" if strategy is None else f"nothing of the strategy {strategy}"
        sys.stdout.write(f"{place.location}: {what} was there.\n")


def _check(strategy: str | None) -> None:
    if strategy is not None and strategy not in _STRATEGIES:
        raise ConfigurationError(
            f"Expected --strategy to be one of {', '.join(_STRATEGIES)}, got {strategy!r:.80}."
        )


def _place(state: str | None, task: Path | None, scope: str | None) -> _Place:
    settings = None
    if task is not None:
        found = Task.from_file(task, splits=())
        settings = routing_settings(found)
        if settings is None:
            raise ConfigurationError(f"{task}: expected a [routing] section, got none: name another task.")
        scope = found.name if scope is None else scope
        state = settings.state_place if state is None else state
    return _Place(name=default_router_state() if state is None else state, scope=scope, settings=settings)


def _read(place: _Place, strategy: str | None) -> tuple[list[_StrategyRecord], list[str]]:
    """Return the readable records, and an error message for each unreadable one."""
    found, problems = [], []
    try:
        scopes = place.scopes()
        for scope in scopes:
            with closing(place.open(scope)) as state:
                for name in state.strategies():
                    if strategy in {None, name}:
                        try:
                            found.append(_strategy(state, name, scope, place.settings))
                        except StateError as error:
                            problems.append(f"{error} (scope {scope})")
    except StateError as error:
        problems.append(str(error))
    return found, problems


def _strategy(state: RouterState, name: str, scope: str, settings: RoutingSettings | None) -> _StrategyRecord:
    """Return the learned estimates of a strategy.

    Raises
    ------
    StateError
        Its record cannot be used.
    """
    try:
        record = state.read(name) or {}
        parameters = _parameters(name, record, settings)
        router = _blank(name, record, alpha=parameters.get("alpha"))
        if router is not None:
            router.restore(record)
        standings = () if router is None else router.standings()
    except (StateError, ConfigurationError) as error:
        advice = f"`calibrant router reset --strategy {name}` begins anew"
        raise StateError(
            f"{state.location}: the record of the strategy {name} cannot be used: {error} {advice}"
        ) from error
    return _StrategyRecord(scope=scope, strategy=name, standings=standings, parameters=parameters)


def _parameters(
    name: str, record: Mapping[str, Any], settings: RoutingSettings | None
) -> dict[str, float | None]:
    """Return a bandit's learning parameters: the task's, or else those in its record."""
    if name != "bandit":
        return {}
    if settings is not None and settings.strategy == "bandit":
        return {key: getattr(settings.bandit, key) for key in _PARAMETERS}
    stored = {key: record.get(key) for key in _PARAMETERS}
    return {key: value if isinstance(value, float | int) else None for key, value in stored.items()}


def _blank(name: str, record: Mapping[str, Any], *, alpha: float | None) -> Router | None:
    """Return a fresh strategy that can restore the record; None if the record is empty."""
    kept = record.get("providers")
    if not record or kept == {}:
        return None
    if not isinstance(kept, Mapping):
        raise StateError(f"Expected numbers by provider, got {kept!r:.80}.")
    names = list(kept)
    if name == "bandit":
        dim: Any = record.get("dim")  # which it checks
        return BanditRouter(names, dim=dim, alpha=1.0 if alpha is None else alpha)
    if name == "triage":
        return TriageRouter(names, tiers={"simple": names[0]})
    kinds: dict[str, type[Router]] = {"ema": EMARouter, "thompson": ThompsonRouter, "cascade": CascadeRouter}
    return kinds.get(name, FixedRouter)(names)  # type: ignore[call-arg]


def _lines(found: _StrategyRecord) -> list[str]:
    calls = sum(one.observations for one in found.standings)
    title = f"{found.strategy}, scope {found.scope}: {calls:,} observations"
    title += "".join(
        f", {name} {'not known' if value is None else format(value, 'g')}"
        for name, value in found.parameters.items()
    )
    if not found.standings:
        return [title]
    names = list(dict.fromkeys(name for one in found.standings for name in one.values))
    head = ["provider", "observations", *(_TITLES.get(name, name) for name in names)]
    rows = [
        [one.provider, f"{one.observations:,}", *(_number(one.values.get(name)) for name in names)]
        for one in found.standings
    ]
    return [title, *fitted([head, *rows])]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 2 else f"{value:.4g}"
