"""State of the bandit strategy for one provider, and its JSON form."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray

from calibrant.core._errors import StateError
from calibrant.core._sections import Amount, Count, Number
from calibrant.routing._base import ProviderTally
from calibrant.routing._linucb import LEAST_RIDGE, LinUCB

# What rounding may add to a bound that holds exactly.
_ROUNDING = 1e-6


class Average(NamedTuple):
    """Exponentially weighted mean.

    Attributes
    ----------
    weight : float
        Sum of the weights of all values; 0 before the first.
    mean : float
        The mean; 0 before the first.
    """

    weight: Amount
    mean: Number

    def plus(self, value: float, *, decay: float) -> Average:
        """Return the mean with one more value; earlier values lose the share 1 - `decay` of their weight."""
        weight = decay * self.weight + 1.0
        return Average(weight, self.mean + (value - self.mean) / weight)


_NO_AVERAGE: Final = Average(0.0, 0.0)


def _mean_within(low: float, high: float) -> pydantic.AfterValidator:
    def check(average: Average) -> Average:
        if not low <= average.mean <= high:
            raise ValueError(f"expected a mean in [{low:g}, {high:g}]")
        return average

    return pydantic.AfterValidator(check)


@dataclass
class BanditTally(ProviderTally):
    """Counts and means of one provider, with its stored arm.

    Attributes
    ----------
    observations : int
        Rewards it has been told.
    unembedded : int
        Calls nothing was learnt from, because their requests could not be embedded.
    reward, quality, cost : Average
        The rewards; qualities of answers that came; US dollars per answer.
    ridge, updates, gram, response : float, int and str
        State of the arm at the last snapshot, arrays in base64.
    """

    unembedded: Count = 0
    reward: Annotated[Average, _mean_within(-1.0, 1.0)] = _NO_AVERAGE
    quality: Annotated[Average, _mean_within(0.0, 1.0)] = _NO_AVERAGE
    cost: Annotated[Average, _mean_within(0.0, math.inf)] = _NO_AVERAGE
    ridge: Annotated[Number, pydantic.Field(ge=LEAST_RIDGE, le=1.0)] = 1.0
    updates: Count = 0
    gram: str = ""
    response: str = ""


def write_arm(model: LinUCB, arm: int, tally: BanditTally) -> None:
    """Put the state of one arm of `model` into a tally; floats keep every bit."""
    tally.ridge, tally.updates, gram, response = model.arm(arm)
    tally.gram, tally.response = _packed(gram[np.triu_indices(model.dim)]), _packed(response)


def read_arm(model: LinUCB, arm: int, tally: BanditTally) -> None:
    """Restore one arm of `model` from a tally that `write_arm` filled.

    Raises
    ------
    StateError
        A value is not finite or of another size, or is nothing that so many contexts of length 1 with rewards
        in [-1, 1] can lead to.
    """
    dim = model.dim
    gram = np.zeros((dim, dim))
    rows, columns = np.triu_indices(dim)
    gram[rows, columns] = gram[columns, rows] = _unpacked(tally.gram, "gram", size=rows.size)
    response = _unpacked(tally.response, "response", size=dim)
    # The trace bounds every entry, and each observation adds at most 1 to it; only then may it be summed.
    most = (tally.observations * (1.0 + _ROUNDING) + _ROUNDING) / tally.ridge
    if np.abs(gram).max() > most or (trace := float(np.trace(gram))) > most:
        raise StateError(f"Expected a gram of {tally.observations} observations, got a larger one.")
    if float(np.abs(response).max()) > trace * (1.0 + _ROUNDING) + _ROUNDING:
        raise StateError("Expected a response to rewards in [-1, 1], got a larger one.")
    try:
        np.linalg.cholesky(gram + _ROUNDING * (1.0 + trace) * np.eye(dim))
        model.set_arm(arm, ridge=tally.ridge, updates=tally.updates, gram=gram, response=response)
    except np.linalg.LinAlgError:
        raise StateError("Expected a gram without negative eigenvalues, got one that has some.") from None


def _packed(values: NDArray[np.float64]) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode("ascii")


def _unpacked(text: str, key: str, *, size: int) -> NDArray[np.float64]:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise StateError(f"Expected {key} to be numbers in base64, got {text!r:.80}.") from None
    if len(data) != 8 * size:
        raise StateError(f"Expected {key} to hold {size} numbers, got {len(data)} bytes.")
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise StateError(f"Expected {key} to hold finite numbers, got some that are not.")
    return values
