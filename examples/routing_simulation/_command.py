"""The command line: strategies on a stream of requests; a table, and a picture of their regret."""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from calibrant.cli._options import command
from calibrant.cli._tables import aligned, number, with_interval
from calibrant.core import ConfigurationError, Interval
from calibrant.metrics import paired_mean_interval
from calibrant.routing import BanditRouter, CascadeRouter, EMARouter, FixedRouter, Router, ThompsonRouter
from routing_simulation._baselines import EpsilonGreedy, RoundRobin
from routing_simulation._page import RegretCurve, RewardEstimate, regret_chart, reward_chart, write_simulation
from routing_simulation._recording import Recording
from routing_simulation._simulation import Replay, RouterFactory, SimulatedRuns, replay
from routing_simulation._simulation import simulate as run_strategies
from routing_simulation._sources import Source, read_source

__all__ = ["app"]

app = typer.Typer(add_completion=False)

_KINDS: Final[Mapping[str, Callable[..., Router]]] = {
    "none": FixedRouter,
    "round-robin": RoundRobin,
    "epsilon-greedy": EpsilonGreedy,
    "ema": EMARouter,
    "thompson": ThompsonRouter,
    "cascade": CascadeRouter,
    "bandit": BanditRouter,
}
_DEFAULT: Final = "round-robin,epsilon-greedy,ema,thompson,thompson:decay=0.99"
_BAND: Final = (0.1, 0.9)  # share of the runs below its ends
_LEVEL: Final = 0.95
_NORMAL: Final = 1.959964  # standard errors on either side of a mean at that level


@command(app, "routing_simulation._command:run", example="python examples/routing_simulation scenario.toml")
class Simulate:
    """Compare strategies on an invented or recorded stream of requests; no model is asked.

    Attributes
    ----------
    sources : SOURCE...
        A scenario (.toml); or runs of evaluate over the same rows, one of each provider; or one log of observations
        (.jsonl).
    strategies : NAME[:KEY=VALUE],...
        By default all that can learn from the source; such as ema,thompson:decay=0.99.
    requests
        Per run; by default as the source says, or its rows.
    seeds
        Runs, each with randomness of its own.
    seed
        Of all that is random.
    cost_weight
        Reward that one US dollar is worth; 0, or as the scenario says.
    out : REGRET.html
        Write a page with the picture of regret.
    """

    sources: list[Path] = field(kw_only=False)
    strategies: str | None = None
    requests: Annotated[int | None, typer.Option(min=1)] = None
    seeds: Annotated[int, typer.Option(min=1)] = 20
    seed: Annotated[int, typer.Option(min=0)] = 0
    cost_weight: float | None = None
    out: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, kw_only=True)
class _Result:
    """What a strategy did, in numbers of one line."""

    name: str
    regret: Interval | None = None
    reward: Interval | None = None
    cost: float | None = None
    latency_seconds: float | None = None
    matched: float | None = None
    requests: Mapping[str, float]

    def record(self) -> dict[str, Any]:
        """Return it as JSON values, without what is not known."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        for name in ("regret", "reward"):
            if name in values:
                ends = {key: values[name][key] for key in ("lower", "upper")}
                values[name] = {
                    "estimate": values[name]["estimate"],
                    **{key: end if math.isfinite(end) else None for key, end in ends.items()},
                }
        return values


def run(options: Simulate) -> None:
    """Simulate or replay, print the numbers, and write the page."""
    paths = options.sources
    source = read_source(paths)
    names = _names(source, options.strategies)
    routers = {name: _factory(name, source.providers) for name in names}
    if any(name.startswith("bandit") for name in names):
        source = source.embedded()
    weight = source.cost_weight if options.cost_weight is None else options.cost_weight
    if weight and (unpriced := source.unknown("cost")):
        raise ConfigurationError(
            f"{source.title}: expected a known cost of every provider for --cost-weight, got none of "
            f"{', '.join(unpriced)}: give it a cost in its task and evaluate again, or leave the weight out."
        )
    work = _replayed if source.kind == "log" else _simulated
    results, chart, said = work(source, routers, options, weight)
    table = _table(results, source.providers)
    if options.out is not None:
        write_simulation(
            options.out,
            title=f"Strategies compared: {source.title}",
            statements=said,
            chart=chart,
            table=table,
            settings=[
                ("source", ", ".join(map(str, paths))),
                ("runs", f"{options.seeds:,}, seed {options.seed}"),
                ("cost weight", f"{weight:g} per US dollar"),
            ],
        )
    if options.as_json:
        record = _record(source, results, options, weight)
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
        return
    lines = [*said, "", *aligned(table)]
    if options.out is not None:
        lines.append(f"Page: {options.out}")
    sys.stdout.write("\n".join(lines) + "\n")


def _record(source: Source, results: Sequence[_Result], options: Simulate, weight: float) -> dict[str, Any]:
    """Return the numbers as JSON values."""
    return {
        "kind": source.kind,
        "source": source.title,
        "seeds": options.seeds,
        "seed": options.seed,
        "cost_weight": weight,
        "strategies": [result.record() for result in results],
        **({} if options.out is None else {"out": str(options.out)}),
    }


# --- strategies ----------------------------------------------------------------------------------


def _names(source: Source, wanted: str | None) -> list[str]:
    if wanted is None:
        names = _DEFAULT.split(",") + ["bandit"] * source.has_contexts
    else:
        names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        raise ConfigurationError(
            f"Expected --strategies to name some of {', '.join(_KINDS)}, got {wanted!r}."
        )
    if len(set(names)) < len(names):
        raise ConfigurationError(f"Expected every strategy once, got {wanted}: leave one out.")
    if "bandit" in {name.partition(":")[0] for name in names} and not source.has_contexts:
        raise ConfigurationError(
            f"{source.title}: expected requests that differ for the strategy bandit, got requests without a text or "
            "context: leave it out, or give providers a probability of success for each of several kinds."
        )
    return names


def _factory(stated: str, providers: Sequence[str]) -> RouterFactory:
    """Return what makes the routers of ``NAME:KEY=VALUE``."""
    name, *settings = stated.split(":")
    kind = _KINDS.get(name)
    if kind is None:
        raise ConfigurationError(
            f"Expected --strategies to name some of {', '.join(_KINDS)}, got {name!r:.80}."
        )
    known = [key for key in inspect.signature(kind).parameters if key not in {"providers", "rng"}]
    options: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in known:
            takes = f"one of {', '.join(known)} and a value" if known else "no setting"
            raise ConfigurationError(f"Expected {takes} for the strategy {name}, got {setting!r:.80}.")
        try:
            options[key] = json.loads(value)
        except (ValueError, RecursionError):
            options[key] = value

    def make(rng: np.random.Generator) -> Router:
        try:
            return kind(providers, rng=rng, **options)
        except TypeError as error:  # a text instead of a number
            raise ConfigurationError(
                f"Expected a number for the strategy {stated!r:.80}: {error}."
            ) from error

    make(np.random.default_rng(0))
    return make


# --- results -------------------------------------------------------------------------------------


def _simulated(
    source: Source, routers: Mapping[str, RouterFactory], options: Simulate, weight: float
) -> tuple[list[_Result], Any, list[str]]:
    found = run_strategies(
        source.world,
        routers,
        requests=source.requests if options.requests is None else options.requests,
        runs=options.seeds,
        cost_weight=weight,
        quality_threshold=source.quality_threshold,
        rng=options.seed,
    )
    count = next(iter(found.values())).regret.shape[1]
    priced, timed = not source.unknown("cost"), not source.unknown("latency_seconds")
    results = [
        _Result(
            name=name,
            regret=_interval(runs.regret[:, -1]),
            reward=_interval(runs.reward),
            cost=float(runs.cost.mean()) if priced else None,
            latency_seconds=float(runs.latency_seconds.mean()) if timed else None,
            requests=dict(zip(runs.providers, (count * runs.shares.mean(axis=0)).tolist(), strict=True)),
        )
        for name, runs in found.items()
    ]
    results.sort(key=lambda result: result.regret.estimate if result.regret else 0.0)
    changes = [] if isinstance(source.world, Recording) else sorted({one.at for one in source.world.changes})
    return (
        results,
        regret_chart("regret", [_curve(one.name, found[one.name]) for one in results], changes),
        _regret_said(source, results[0], count, options.seeds, weight),
    )


def _regret_said(source: Source, best: _Result, count: int, seeds: int, weight: float) -> list[str]:
    """Return whose regret is lowest, and what regret is."""
    recorded = isinstance(source.world, Recording)
    runs = f"mean of {seeds:,} runs with its interval" if seeds > 1 else "in one run"
    return [
        f"Lowest regret: {best.name}, {_sure(best.regret, ',.1f')} after {count:,} requests, {runs}.",
        "Regret is what "
        + ("the provider that was best over all rows" if recorded else "the best provider for each request")
        + " would have earned more; a request earns the quality of its answer"
        + (f" minus {weight:g} times its cost." if weight else "."),
    ]


def _curve(name: str, runs: SimulatedRuns) -> RegretCurve:
    lower, upper = np.quantile(runs.regret, _BAND, axis=0)
    return RegretCurve(name=name, mean=runs.regret.mean(axis=0), lower=lower, upper=upper)


def _replayed(
    source: Source, routers: Mapping[str, RouterFactory], options: Simulate, weight: float
) -> tuple[list[_Result], Any, list[str]]:
    log = source.world
    if not isinstance(log, Recording) or options.requests is not None:
        raise ConfigurationError(
            "Expected no --requests with a log, which is replayed as a whole: leave it out."
        )
    runs = [
        replay(log, routers, cost_weight=weight, rng=rng)
        for rng in np.random.default_rng(options.seed).spawn(options.seeds)
    ]
    results = [_replay_result(name, [run[name] for run in runs], log.providers) for name in routers]
    results.sort(key=lambda result: -(result.reward.estimate if result.reward else -np.inf))
    rewards_of = log.rewards(weight)
    alone = [
        RewardEstimate(name=f"{provider} alone", reward=_mean(rewards_of[:, place]))
        for place, provider in enumerate(log.providers)
    ]
    best = results[0]
    said = [
        (
            f"Highest reward: {best.name}, {_sure(best.reward)} per request, by replaying "
            f"{len(rewards_of):,} requests, mean over {options.seeds:,} seeds."
        ),
        (
            "Only requests at which a strategy chooses the provider that was asked count. That is fair where "
            "providers were chosen at random, or with the recorded propensity."
        ),
    ]
    estimates = [
        RewardEstimate(name=one.name, reward=one.reward) for one in results if one.reward is not None
    ]
    return results, reward_chart("reward", [*estimates, *alone]), said


def _replay_result(name: str, replays: Sequence[Replay], providers: Sequence[str]) -> _Result:
    """Return the numbers of one strategy over all seeds."""
    rewards = [one.reward for one in replays if one.reward is not None]
    errors = [one.standard_error for one in replays if one.standard_error is not None]
    shares = np.mean([one.shares for one in replays], axis=0) * replays[0].events
    return _Result(
        name=name,
        # All runs share the log, so their mean is no surer than one of them.
        reward=_around(float(np.mean(rewards)), errors) if rewards else None,
        matched=float(np.mean([one.matched for one in replays])),
        requests=dict(zip(providers, shares.tolist(), strict=True)),
    )


def _mean(values: Any) -> Interval:  # noqa: ANN401  (an array)
    known = values[~np.isnan(values)]
    spread = [float(known.std(ddof=1) / np.sqrt(known.size))] if known.size > 1 else []
    return _around(float(known.mean()), spread)


def _around(estimate: float, errors: Sequence[float]) -> Interval:
    half = _NORMAL * float(np.mean(errors)) if errors else np.inf
    return Interval(lower=estimate - half, upper=estimate + half, level=_LEVEL, estimate=estimate)


def _interval(values: Any) -> Interval:  # noqa: ANN401  (an array)
    return paired_mean_interval(values, level=_LEVEL) if values.size > 1 else _around(float(values[0]), ())


def _sure(found: Interval | None, form: str = ".3f") -> str:
    """Return an estimate, with its interval if there is one."""
    if found is not None and not math.isfinite(found.upper):
        return number(found.estimate, form)
    return with_interval(found, form)


def _table(results: Sequence[_Result], providers: Sequence[str]) -> list[list[str]]:
    logged = results[0].matched is not None
    head = [
        "strategy",
        *(["reward", "matched"] if logged else ["regret", "reward", "$ per request", "seconds"]),
    ]
    rows = []
    for one in results:
        cells = [one.name]
        if logged:
            cells += [_sure(one.reward), number(one.matched, ",.0f")]
        else:
            reward = one.reward.estimate if one.reward else None
            cells += [_sure(one.regret, ",.1f"), number(reward, ".4f")]
            cells += [number(one.cost, ".3g"), number(one.latency_seconds, ".3g")]
        rows.append([*cells, *(f"{one.requests[name]:,.0f}" for name in providers)])
    return [[*head, *(f"to {name}" for name in providers)], *rows]
