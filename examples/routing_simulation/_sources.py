"""What the simulation runs on: a scenario, runs of evaluate, or a log of observations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pydantic
from numpy.typing import NDArray

from calibrant.core import ConfigurationError, DataError, Outcome
from calibrant.core._rows import Row, read_rows
from calibrant.core._sections import Amount, Count, Section, Share, describe_problem, line_of, parse_toml
from calibrant.inference import open_embedder
from calibrant.inference._loop import run_sync
from calibrant.runs import SavedRows
from routing_simulation._recording import Recording
from routing_simulation._scenario import Change, Scenario, SimulatedProvider

__all__ = ["Source", "read_source"]

_RIGHT: Final = 0.5  # the quality from which an answer counts: right ones have 1, wrong ones 0
_LOGS: Final = (".jsonl", ".ndjson")
_LOGGED: Final = frozenset(
    {"provider", "success", "latency_seconds", "quality", "cost", "context", "propensity"}
)

_Success = Annotated[
    tuple[Share, ...],
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(lambda value: value if isinstance(value, list | tuple) else (value,)),
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A stream of requests.

    Attributes
    ----------
    kind : str
        ``scenario``, ``predictions`` or ``log``.
    title : str
        What to call it.
    world : Scenario or Recording
        Where outcomes come from.
    texts : sequence of str or None
        The requests of runs of evaluate.
    requests : int or None
        Per run, as the scenario says.
    cost_weight : float
        Reward that one US dollar is worth, as the scenario says.
    """

    kind: str
    title: str
    world: Scenario | Recording
    texts: Sequence[str] | None = None
    requests: int | None = None
    cost_weight: float = 0.0

    @property
    def providers(self) -> list[str]:
        """The names of all providers."""
        world = self.world
        return (
            list(world.providers)
            if isinstance(world, Recording)
            else [provider.name for provider in world.providers]
        )

    @property
    def quality_threshold(self) -> float | None:
        """The quality below which strategies are told that a call failed, if there is one."""
        return _RIGHT if self.kind == "predictions" else None

    @property
    def has_contexts(self) -> bool:
        """Whether requests can be told apart."""
        if isinstance(self.world, Scenario):
            return self.world.kinds > 1
        return self.world.contexts is not None or self.texts is not None

    def unknown(self, name: str) -> list[str]:
        """Return the providers of a recording whose cost or latency no row tells."""
        if isinstance(self.world, Scenario):
            return []
        known = np.isfinite(self.world.cells(name))
        return [provider for place, provider in enumerate(self.world.providers) if not known[:, place].any()]

    def embedded(self) -> Source:
        """Return it with embeddings of its texts, where it has texts and no embeddings."""
        if self.texts is None or not isinstance(self.world, Recording):
            return self
        embedder = open_embedder()
        try:
            contexts = run_sync(embedder.embed(self.texts))
        finally:
            embedder.close()
        return replace(self, texts=None, world=replace(self.world, contexts=contexts))


def read_source(paths: Sequence[Path]) -> Source:
    """Read what the command was given.

    Raises
    ------
    ConfigurationError
        The paths do not fit together, or a scenario is wrong; names file and line.
    DataError
        A row is broken; names file and line.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigurationError("Expected different sources, got one of them twice: name each once.")
    if any(path.suffix == ".toml" for path in paths):
        if len(paths) > 1:
            raise ConfigurationError(f"Expected one scenario and nothing else, got {len(paths)} sources.")
        return _scenario(paths[0])
    if len(paths) > 1:
        return _predictions(paths)
    if paths[0].suffix not in _LOGS:
        raise ConfigurationError(
            f"{paths[0]}: expected a scenario (.toml), a log of observations (.jsonl), or runs of two or more "
            "providers, got one of something else."
        )
    return _log(paths[0])


# --- scenarios -----------------------------------------------------------------------------------


class _Numbers(Section):
    """What a provider is like."""

    quality: Share | None = None
    latency_seconds: Amount | None = None
    cost: Amount | None = None

    def known(self) -> dict[str, Any]:
        """Return what is stated, but for success."""
        return self.model_dump(include={"quality", "latency_seconds", "cost"}, exclude_none=True)


class _ProviderSection(_Numbers):
    name: Annotated[str, pydantic.Field(min_length=1)]
    success: _Success


class _ChangeSection(_Numbers):
    at: Count
    provider: str
    success: _Success | None = None


class _ScenarioFile(Section):
    name: str = ""
    requests: Annotated[Count, pydantic.Field(ge=1)] | None = None
    cost_weight: Amount = 0.0
    dim: Annotated[Count, pydantic.Field(ge=1)] = 64
    noise: Amount = 0.5
    providers: tuple[_ProviderSection, ...]
    changes: tuple[_ChangeSection, ...] = ()


def _scenario(path: Path) -> Source:
    found = _scenario_file(path)
    try:
        world = Scenario(
            providers=[
                SimulatedProvider(name=one.name, success=_one_or_all(one.success), **one.known())
                for one in found.providers
            ],
            changes=[
                Change(
                    at=one.at,
                    provider=one.provider,
                    success=None if one.success is None else _one_or_all(one.success),
                    **one.known(),
                )
                for one in found.changes
            ],
            dim=found.dim,
            noise=found.noise,
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return Source(
        kind="scenario",
        title=found.name or path.stem,
        world=world,
        requests=found.requests,
        cost_weight=found.cost_weight,
    )


def _scenario_file(path: Path) -> _ScenarioFile:
    try:
        text = path.read_text(encoding="utf-8")
        return _ScenarioFile.model_validate(parse_toml(text, path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read ({error}): check the path.") from error
    except pydantic.ValidationError as error:
        problems = [
            f"{path}:{line_of(text, item['loc'])}: {describe_problem(dict(item), _ScenarioFile)}"
            for item in error.errors()
        ]
        raise ConfigurationError("\n".join(problems)) from error


def _one_or_all(values: tuple[float, ...]) -> float | tuple[float, ...]:
    return values[0] if len(values) == 1 else values


# --- runs of evaluate ----------------------------------------------------------------------------


def _predictions(paths: Sequence[Path]) -> Source:
    """Return the outcome of every provider on every row: full information."""
    runs = [SavedRows.load(path) for path in paths]
    orders = [np.argsort(run.index) for run in runs]
    for run, order in zip(runs[1:], orders[1:], strict=True):
        _check_same_rows(runs[0], orders[0], run, order)
    columns = [_columns(run, order) for run, order in zip(runs, orders, strict=True)]
    stacked = {name: np.stack([column[name] for column in columns], axis=1) for name in columns[0]}
    unknown = stacked["success"].astype(bool) & np.isnan(stacked["quality"])
    judged: NDArray[np.bool_] = np.logical_not(unknown.any(axis=1))
    if not judged.any():
        raise DataError(
            "expected rows whose answers are known to be right or wrong, got none: add their true labels.",
            path=paths[0],
        )
    inputs = [runs[0].inputs[row] for row, kept in zip(orders[0], judged, strict=True) if kept]
    names = _short(paths)
    return Source(
        kind="predictions",
        title=" against ".join(names),
        world=Recording(
            providers=names, shuffled=True, **{name: cells[judged] for name, cells in stacked.items()}
        ),
        texts=None if None in inputs else [text for text in inputs if text is not None],
    )


def _columns(run: SavedRows, order: NDArray[np.intp]) -> dict[str, NDArray[np.float64]]:
    success = np.array([run.outcomes[row] is not Outcome.ERROR for row in order], dtype=np.float64)
    correct = run.correct[order].astype(np.float64)
    quality = np.where(correct < 0, np.nan, correct)
    return {
        "success": success,
        "quality": quality,
        "latency_seconds": run.latency_seconds[order],
        "cost": run.cost[order],
    }


def _check_same_rows(
    first: SavedRows, order: NDArray[np.intp], other: SavedRows, its: NDArray[np.intp]
) -> None:
    """Raise unless two runs are about the same texts."""
    mine, theirs = first.index[order], other.index[its]
    if not np.array_equal(mine, theirs):
        differing = sorted(set(mine.tolist()) ^ set(theirs.tolist()))
        raise ConfigurationError(
            f"Expected the same rows in {first.name} and {other.name}, got {len(differing):,} rows that only one of "
            f"them has, such as row {differing[0]}: evaluate both on the same file, to the end."
        )
    for index, one, two in zip(mine, order, its, strict=True):
        texts = first.inputs[one], other.inputs[two]
        if None not in texts and texts[0] != texts[1]:
            raise ConfigurationError(
                f"Expected the same rows in {first.name} and {other.name}, got different texts in row {index}: "
                "evaluate both on the same file."
            )


def _short(paths: Sequence[Path]) -> list[str]:
    """Return a name for each run: of its directory or file, or the whole path where names are equal."""
    names = [
        path.resolve().name
        if path.is_dir()
        else path.resolve().parent.name
        if path.name == "predictions.jsonl"
        else path.stem
        for path in paths
    ]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


# --- logs ----------------------------------------------------------------------------------------


def _log(path: Path) -> Source:
    """Return the outcome of one provider a request."""
    rows = list(read_rows(path))
    providers: dict[str, int] = {}
    columns = [providers.setdefault(_asked(row), len(providers)) for row in rows]
    if len(providers) < 2:
        raise DataError(
            f"expected a log of two or more providers, got only {', '.join(providers)}: there is nothing to choose.",
            path=path,
        )
    chosen = np.array(columns)

    def cells(values: Sequence[float]) -> NDArray[np.float64]:
        table = np.full((len(rows), len(providers)), np.nan)
        table[np.arange(len(rows)), chosen] = values
        return table

    return Source(
        kind="log",
        title=path.name,
        world=Recording(
            providers=list(providers),
            success=cells([float(row.values["success"]) for row in rows]),
            contexts=_contexts(rows),
            propensity=_propensity(rows),
            quality=cells([_amount(row, "quality", 1.0) for row in rows]),
            latency_seconds=cells([_amount(row, "latency_seconds", math.inf) for row in rows]),
            cost=cells([_amount(row, "cost", math.inf) for row in rows]),
        ),
    )


def _asked(row: Row) -> str:
    """Return whom a row of a log is about."""
    unknown = sorted(row.values.keys() - _LOGGED)
    if unknown:
        raise _broken(row, f"expected no key but {', '.join(sorted(_LOGGED))}, got {', '.join(unknown):.80}")
    name, success = row.values.get("provider"), row.values.get("success")
    if not isinstance(name, str) or not name.strip():
        raise _broken(row, f"expected provider to be a name, got {name!r:.80}")
    if not isinstance(success, bool):
        raise _broken(row, f"expected success to be true or false, got {success!r:.80}")
    return name


def _amount(row: Row, name: str, most: float) -> float:
    value = row.values.get(name)
    if value is None:
        return math.nan
    if not _is_number(value) or not 0.0 <= value <= most or value == math.inf:
        limits = "at least 0" if most == math.inf else f"in [0, {most:g}]"
        raise _broken(row, f"expected {name} to be a finite number {limits} or null, got {value!r:.80}")
    return float(value)


def _propensity(rows: Sequence[Row]) -> NDArray[np.float64] | None:
    if not _all_or_none(rows, "propensity"):
        return None
    values = [_amount(row, "propensity", 1.0) for row in rows]
    if 0.0 in values:
        raise _broken(rows[values.index(0.0)], "expected propensity above 0, got 0")
    return np.array(values)


def _contexts(rows: Sequence[Row]) -> NDArray[np.float64] | None:
    if not _all_or_none(rows, "context"):
        return None
    size = None
    for row in rows:
        value = row.values["context"]
        if not isinstance(value, list) or not all(_is_number(one) and math.isfinite(one) for one in value):
            raise _broken(row, f"expected context to be a list of finite numbers, got {value!r:.80}")
        size = len(value) if size is None else size
        if len(value) != size or not value:
            raise _broken(row, f"expected a context of {size or 'one or more'} numbers, got {len(value)}")
    return np.array([row.values["context"] for row in rows], dtype=np.float64)


def _all_or_none(rows: Sequence[Row], name: str) -> bool:
    """Return whether every row has a value; raise where only some have."""
    lacking = [row for row in rows if row.values.get(name) is None]
    if lacking and len(lacking) < len(rows):
        raise _broken(lacking[0], f"expected {name} in every row or in none, got none here")
    return not lacking


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _broken(row: Row, message: str) -> DataError:
    return DataError(f"{message}: correct the row, or leave it out.", path=row.path, line=row.line)
