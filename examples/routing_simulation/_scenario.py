"""Invented providers, for simulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.core import ConfigurationError
from calibrant.metrics._validation import check_count, check_number
from calibrant.routing._checks import check_providers
from routing_simulation._recording import Recording

__all__ = ["Change", "Scenario", "SimulatedProvider"]

Array = NDArray[np.float64]

_REQUESTS = 5_000


@dataclass(frozen=True, kw_only=True)
class SimulatedProvider:
    """An invented provider.

    Attributes
    ----------
    name : str
        Its name.
    success : float or sequence of float
        Probability in [0, 1] that a whole answer comes; one, or one for every kind of request.
    quality : float
        What its answers are worth, in [0, 1].
    latency_seconds : float
        What every call takes, finite and at least 0.
    cost : float
        US dollars per call, finite and at least 0.
    """

    name: str
    success: float | Sequence[float]
    quality: float = 1.0
    latency_seconds: float = 0.5
    cost: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is different about a provider from a request on; None stays as it was.

    Attributes
    ----------
    at : int
        Number of the first such request, from 0.
    provider : str
        Its name.
    success, quality, latency_seconds, cost : float, optional
        As in `SimulatedProvider`.
    """

    at: int
    provider: str
    success: float | Sequence[float] | None = None
    quality: float | None = None
    latency_seconds: float | None = None
    cost: float | None = None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Invented providers and requests.

    Requests are of one kind unless a provider has several probabilities of success. Kinds are equally likely,
    and a request's context then is the centre of its kind (a direction drawn for every run) plus normal noise in
    every direction; the sum is brought to length 1.

    Attributes
    ----------
    providers : sequence of SimulatedProvider
        At least one.
    changes : sequence of Change
        What happens meanwhile.
    dim : int
        Size of the contexts, at least 1.
    noise : float
        Root mean square length of the noise over the length of a centre, finite and at least 0.

    Raises
    ------
    ConfigurationError
        A number is out of its range, a change is about an unknown provider, or providers know different numbers
        of kinds.
    """

    providers: Sequence[SimulatedProvider]
    changes: Sequence[Change] = ()
    dim: int = 64
    noise: float = 0.5

    def __post_init__(self) -> None:
        names = check_providers([provider.name for provider in self.providers])
        object.__setattr__(self, "dim", check_count("dim", self.dim, low=1))
        check_number("noise", self.noise, "[0, inf)")
        for change in self.changes:
            check_count("the request of a change", change.at, low=0)
            if change.provider not in names:
                raise ConfigurationError(
                    f"Expected a change of one of {', '.join(names)}, got {change.provider!r:.80} at {change.at!r}."
                )
        for provider in self.providers:
            _check_numbers(provider.name, provider)
        for change in self.changes:
            _check_numbers(change.provider, change)
        if len({len(some) for some in self._several()}) > 1:
            raise ConfigurationError(
                "Expected as many probabilities of success from every provider, one per kind."
            )

    def _several(self) -> list[Sequence[float]]:
        """Return the probabilities of success by kind."""
        stated = [provider.success for provider in self.providers]
        stated += [change.success for change in self.changes if change.success is not None]
        return [np.atleast_1d(success).tolist() for success in stated if np.ndim(success)]

    @property
    def kinds(self) -> int:
        """Number of kinds of requests."""
        return max((len(some) for some in self._several()), default=1)

    def draw(self, requests: int | None, rng: np.random.Generator) -> Recording:
        """Return the outcomes of one run, 5,000 requests by default, with their expectations.

        Raises
        ------
        ConfigurationError
            requests is no whole number of at least 1.
        """
        count = _REQUESTS if requests is None else check_count("requests", requests, low=1)
        kind = rng.integers(self.kinds, size=count)
        success = self._course("success", kind)
        quality = self._course("quality", kind)
        return Recording(
            providers=[provider.name for provider in self.providers],
            success=(rng.random(success.shape) < success).astype(np.float64),
            quality=quality,
            latency_seconds=self._course("latency_seconds", kind),
            cost=self._course("cost", kind),
            contexts=self._contexts(kind, rng) if self.kinds > 1 else None,
            expected=success * quality,
        )

    def _course(self, name: str, kind: NDArray[np.int64]) -> Array:
        """Return a number of every provider over the requests, shape (n, k)."""
        names = [provider.name for provider in self.providers]
        columns = [_by_kind(getattr(provider, name), kind) for provider in self.providers]
        course = np.stack(columns, axis=1)
        for change in sorted(self.changes, key=lambda change: change.at):
            value = getattr(change, name)
            if value is not None:
                rows = slice(int(change.at), None)
                course[rows, names.index(change.provider)] = _by_kind(value, kind)[rows]
        return course

    def _contexts(self, kind: NDArray[np.int64], rng: np.random.Generator) -> Array:
        """Return vectors of length 1 around the centres of the kinds, shape (n, dim)."""
        centres = _unit(rng.normal(size=(self.kinds, self.dim)))
        noise = rng.normal(size=(len(kind), self.dim)) / np.sqrt(self.dim)
        return _unit(centres[kind] + self.noise * noise)


def _check_numbers(who: str, stated: SimulatedProvider | Change) -> None:
    """Raise for numbers that are out of their range."""
    intervals = {"success": "[0, 1]", "quality": "[0, 1]", "latency_seconds": "[0, inf)", "cost": "[0, inf)"}
    for name, interval in intervals.items():
        value = getattr(stated, name)
        if value is None and isinstance(stated, Change):
            continue
        numbers = np.atleast_1d(np.asarray(value, dtype=object))
        if numbers.ndim != 1 or numbers.size == 0 or (name != "success" and numbers.size > 1):
            raise ConfigurationError(f"Expected {name} of {who!r} in {interval}, got {value!r}.")
        for number in numbers:
            check_number(f"{name} of {who!r}", number, interval)


def _by_kind(value: float | Sequence[float], kind: NDArray[np.int64]) -> Array:
    """Return the number of every request, shape (n,)."""
    several = np.atleast_1d(np.asarray(value, dtype=np.float64))
    return several[kind] if several.size > 1 else np.full(len(kind), several[0])


def _unit(vectors: Array) -> Array:
    """Return vectors of length 1, shape (n, d)."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float64)
