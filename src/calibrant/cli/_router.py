"""``calibrant router``: read and delete the records that routers learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from calibrant import assembly, routing
from calibrant.assembly._routing import default_router_state
from calibrant.cli._tables import aligned, print_output
from calibrant.core._errors import CalibrantError, ConfigurationError, StateError
from calibrant.core._reported import counted
from calibrant.core._task import Task
from calibrant.routing._settings import STRATEGIES

if TYPE_CHECKING:
    from calibrant.cli._app import Reset, RouterOptions, Stats
    from calibrant.store._router_state import RouterState

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
class _Place:
    """Location of stored router records; with a task, also the router's scope and settings."""

    name: str
    location: str
    scope: str | None
    settings: routing.RoutingSettings | None

    def open(self, scope: str) -> closing[RouterState]:
        """Return a context manager with the state of one scope."""
        from calibrant.store._router_state import RouterState

        return closing(RouterState(self.name, scope=scope))

    def scopes(self) -> list[str]:
        """Return the task's scope, or all scopes if no task is given."""
        if self.scope is not None:
            return [self.scope]
        with self.open(_KEPT_APART) as state:
            return state.scopes()


def stats(options: Stats) -> None:
    """Print the learned estimates of every provider, with 95 % credible intervals if the strategy has them."""
    place = _place(options)
    strategy = options.strategy
    records = []
    problems = []
    try:
        for own, name, opened in _stored(place, strategy):
            try:
                estimates = _estimates(opened, name, place.settings)
                records.append({"scope": own, "strategy": name, **estimates})
            except StateError as error:
                problems.append(f"{error} (scope {own})")
    except StateError as error:
        problems.append(str(error))
    if not records and not problems:
        raise ConfigurationError(_nothing(place, strategy))
    lines = []
    for record in records:
        lines += [*_lines(record), ""]
    if records:
        lines.append(f"Kept in {place.location}")
    print_output({"location": place.location, "records": records}, lines, as_json=options.as_json)
    if problems:  # after all that can be shown
        raise CalibrantError("\n".join(problems))


def reset(options: Reset) -> None:
    """Delete learned records, damaged ones included; running routers begin anew."""
    place = _place(options)
    strategy = options.strategy
    scopes = place.scopes()
    if len(scopes) > 1:
        raise ConfigurationError(
            f"{place.location}: expected --scope or --task, because several share this place: name one of "
            f"{', '.join(map(repr, scopes))}."
        )
    name = scopes[0] if scopes else None
    with place.open(name or _KEPT_APART) as opened:
        gone = opened.reset(strategy)
    what = "nothing" if strategy is None else f"nothing of the strategy {strategy}"
    done = f"forgot {', '.join(gone)} of the scope {name!r}." if gone else f"{what} was there."
    record = {"location": place.location, "scope": name, "reset": gone}
    print_output(record, [f"{place.location}: {done}"], as_json=options.as_json)


def _place(options: RouterOptions) -> _Place:
    """Return the router state selected by the options."""
    if options.strategy is not None and options.strategy not in STRATEGIES:
        raise ConfigurationError(
            f"Expected --strategy to be one of {', '.join(STRATEGIES)}, got {options.strategy!r:.80}."
        )
    settings = None
    state = options.state
    scope = options.scope
    if options.task is not None:
        task = Task.from_file(options.task, splits=())
        settings = assembly.routing_settings(task)
        if settings is None:
            raise ConfigurationError(
                f"{options.task}: expected a [routing] section, got none: name another task."
            )
        scope = task.name if scope is None else scope
        state = settings.state_place if state is None else state
    name = default_router_state() if state is None else state
    from calibrant.store._router_state import RouterState

    with closing(RouterState(name, scope=_KEPT_APART)) as opened:
        return _Place(name=name, location=opened.location, scope=scope, settings=settings)


def _stored(place: _Place, strategy: str | None) -> Iterator[tuple[str, str, RouterState]]:
    """Yield scope, name and state of every stored strategy."""
    for scope in place.scopes():
        with place.open(scope) as opened:
            for name in opened.strategies():
                if strategy in {None, name}:
                    yield scope, name, opened


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


def _estimates(state: RouterState, name: str, settings: routing.RoutingSettings | None) -> dict[str, Any]:
    """Return the learned estimates of a strategy.

    Raises
    ------
    StateError
        Its record cannot be used.
    """
    try:
        stored = state.read(name) or {}
        kind = STRATEGIES.get(name, routing.FixedRouter)
        is_own = settings is not None and settings.strategy == name
        parameters = kind.parameters(stored, settings.model_dump() if settings and is_own else None)
        names = _stored_providers(stored)
        router = None
        if names:
            router = kind.for_snapshot(stored, names, parameters=parameters)
        if router is not None:
            router.restore(stored)
    except (StateError, ConfigurationError) as error:
        advice = f"`calibrant router reset --strategy {name}` begins anew"
        raise StateError(
            f"{state.location}: the record of the strategy {name} cannot be used: {error} {advice}"
        ) from error
    standings = () if router is None else router.standings()
    estimates: dict[str, Any] = {
        "providers": [
            {"provider": one.provider, "observations": one.observations, **one.values} for one in standings
        ]
    }
    if parameters:
        estimates["parameters"] = parameters
    return estimates


def _stored_providers(stored: Mapping[str, Any]) -> list[str]:
    """Return the names of the providers in a record, which are none if it is empty."""
    providers = stored.get("providers")
    if not stored or providers == {}:
        return []
    if not isinstance(providers, Mapping):
        raise StateError(f"Expected numbers by provider, got {providers!r:.80}.")
    return list(providers)


def _lines(record: Mapping[str, Any]) -> list[str]:
    providers = record["providers"]
    calls = sum(one["observations"] for one in providers)
    title = f"{record['strategy']}, scope {record['scope']}: {counted(calls, 'observation')}"
    for name, value in record.get("parameters", {}).items():
        title += f", {name} {'not known' if value is None else format(value, 'g')}"
    if not providers:
        return [title]
    names = dict.fromkeys(chain.from_iterable(providers))
    del names["provider"]
    table = [["provider", *(_TITLES.get(name, name) for name in names)]]
    table += [[one["provider"], *(_number(one.get(name)) for name in names)] for one in providers]
    return [title, *aligned(table)]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) >= 2:
        return f"{value:,.0f}"
    return f"{value:.4g}"
