"""State of the bandit strategy for one provider, and its JSON form."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import StateError
from calibrant.routing._checks import is_number
from calibrant.routing._linucb import LEAST_RIDGE, LinUCB
from calibrant.routing._snapshots import read_count

# What rounding may add to a bound that holds exactly.
_ROUNDING = 1e-6


@dataclass
class Average:
    """Exponentially weighted mean.

    Attributes
    ----------
    weight : float
        Sum of the weights of all values; 0 before the first.
    mean : float
        The mean; 0 before the first.
    """

    weight: float = 0.0
    mean: float = 0.0

    def add(self, value: float, *, decay: float) -> None:
        """Add a value; earlier values lose the share 1 - `decay` of their weight."""
        self.weight = decay * self.weight + 1.0
        self.mean += (value - self.mean) / self.weight


@dataclass
class ProviderTally:
    """Counts and means of one provider.

    Attributes
    ----------
    observations : int
        Rewards it has been told.
    unembedded : int
        Calls nothing was learnt from, because their requests could not be embedded.
    reward, quality, cost : Average
        The rewards; qualities of answers that came; US dollars per answer.
    """

    observations: int = 0
    unembedded: int = 0
    reward: Average = field(default_factory=Average)
    quality: Average = field(default_factory=Average)
    cost: Average = field(default_factory=Average)

    def record(self) -> dict[str, Any]:
        """Return the tally as JSON values."""
        averages = {"reward": self.reward, "quality": self.quality, "cost": self.cost}
        return {
            "observations": self.observations,
            "unembedded": self.unembedded,
            **{name: [average.weight, average.mean] for name, average in averages.items()},
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> ProviderTally:
        """Return the tally of a `record` record.

        Raises
        ------
        StateError
            A value is missing, not finite or out of its range.
        """
        observations = read_count(record, "observations")
        return cls(
            observations=observations,
            unembedded=read_count(record, "unembedded"),
            reward=_average(record, "reward", low=-1.0, high=1.0),
            quality=_average(record, "quality", low=0.0, high=1.0),
            cost=_average(record, "cost", low=0.0),
        )


def arm_record(model: LinUCB, arm: int) -> dict[str, Any]:
    """Return the state of one arm of `model` as JSON values; floats keep every bit."""
    ridge, updates, gram, response = model.arm(arm)
    triangle = gram[np.triu_indices(model.dim)]
    return {"ridge": ridge, "updates": updates, "gram": _packed(triangle), "response": _packed(response)}


def read_arm(model: LinUCB, arm: int, record: Mapping[str, Any], *, observations: int) -> None:
    """Restore one arm of `model` from an `arm_record` record.

    Raises
    ------
    StateError
        A value is missing, not finite or of another size, or is nothing that `observations` contexts
        of length 1 with rewards in [-1, 1] can lead to.
    """
    dim = model.dim
    ridge = _checked_number(record.get("ridge"), "ridge", low=LEAST_RIDGE, high=1.0)
    updates = read_count(record, "updates")
    gram = np.zeros((dim, dim))
    rows, columns = np.triu_indices(dim)
    gram[rows, columns] = gram[columns, rows] = _unpacked(record, "gram", size=rows.size)
    response = _unpacked(record, "response", size=dim)
    # The trace bounds every entry, and each observation adds at most 1 to it; only then may it be summed.
    most = (observations * (1.0 + _ROUNDING) + _ROUNDING) / ridge
    if np.abs(gram).max() > most or (trace := float(np.trace(gram))) > most:
        raise StateError(f"Expected a gram of {observations} observations, got a larger one.")
    if float(np.abs(response).max()) > trace * (1.0 + _ROUNDING) + _ROUNDING:
        raise StateError("Expected a response to rewards in [-1, 1], got a larger one.")
    try:
        np.linalg.cholesky(gram + _ROUNDING * (1.0 + trace) * np.eye(dim))
        model.set_arm(arm, ridge=ridge, updates=updates, gram=gram, response=response)
    except np.linalg.LinAlgError:
        raise StateError("Expected a gram without negative eigenvalues, got one that has some.") from None


def _average(record: Mapping[str, Any], key: str, *, low: float, high: float = math.inf) -> Average:
    pair = record.get(key)
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise StateError(f"Expected {key} to be a weight and a mean, got {pair!r:.80}.")
    weight = _checked_number(pair[0], f"the weight of {key}", low=0.0, high=math.inf)
    return Average(weight, _checked_number(pair[1], f"the mean of {key}", low=low, high=high))


def _checked_number(value: object, name: str, *, low: float, high: float) -> float:
    if not is_number(value) or not low <= value <= high:
        raise StateError(f"Expected {name} to be a finite number in [{low:g}, {high:g}], got {value!r:.80}.")
    return float(value)


def _packed(values: NDArray[np.float64]) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode("ascii")


def _unpacked(record: Mapping[str, Any], key: str, *, size: int) -> NDArray[np.float64]:
    text = record.get(key)
    try:
        data = base64.b64decode(text, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        raise StateError(f"Expected {key} to be numbers in base64, got {text!r:.80}.") from None
    if len(data) != 8 * size:
        raise StateError(f"Expected {key} to hold {size} numbers, got {len(data)} bytes.")
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise StateError(f"Expected {key} to hold finite numbers, got some that are not.")
    return values
