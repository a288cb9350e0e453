"""POMDPs as text, in the file format solvers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from calibrant.cascade.automix._pomdp_reader import PomdpReader
from calibrant.cascade.automix._routing_checks import Array
from calibrant.core._errors import ConfigurationError, DataError


@dataclass(frozen=True, kw_only=True)
class PomdpSpecification:
    """A POMDP: names, and tables of S states, A actions and O observations.

    Attributes
    ----------
    states, actions, observations : tuple of str
        Their names, each once.
    start : ndarray of shape (S,)
        Probabilities of the states before anything is done.
    transition : ndarray of shape (A, S, S)
        P(next state | action, state).
    observation : ndarray of shape (A, S, O)
        P(observation | action, next state).
    reward : ndarray of shape (A, S, S, O)
        Of an action, by state, next state and observation.
    discount : float, default 0.99
        In [0, 1].

    Raises
    ------
    ConfigurationError
        Names that the file format does not allow, tables of another shape, probabilities that are not, numbers that
        are not finite.
    """

    states: tuple[str, ...]
    actions: tuple[str, ...]
    observations: tuple[str, ...]
    start: Array = field(compare=False)
    transition: Array = field(compare=False)
    observation: Array = field(compare=False)
    reward: Array = field(compare=False)
    discount: float = 0.99

    def __post_init__(self) -> None:
        for kind in ("states", "actions", "observations"):
            _check_names(kind, getattr(self, kind))
        s, a, o = len(self.states), len(self.actions), len(self.observations)
        shapes = {"start": (s,), "transition": (a, s, s), "observation": (a, s, o), "reward": (a, s, s, o)}
        for name, shape in shapes.items():
            table = np.asarray(getattr(self, name), dtype=np.float64)
            if table.shape != shape or not np.isfinite(table).all():
                msg = f"Expected {name} to hold finite numbers of shape {shape}, got shape {table.shape}."
                raise ConfigurationError(msg)
            sums = table.sum(axis=-1)
            if name != "reward" and ((table < 0.0).any() or (np.abs(sums - 1.0) > 1e-6).any()):
                msg = f"Expected each row of {name} to hold probabilities that sum to 1, got sums {sums}."
                raise ConfigurationError(msg)
        if not 0.0 <= self.discount <= 1.0:
            msg = f"Expected discount in [0, 1], got {self.discount!r}."
            raise ConfigurationError(msg)


def _check_names(kind: str, names: Sequence[str]) -> None:
    legal = all(PomdpReader.is_name(name) for name in names)
    if not names or not legal or len(set(names)) != len(names):
        msg = (
            f"Expected {kind} to be different names of letters, digits, '_', '.' and '-', beginning with a letter and "
            f"none of the format's own words, got {names!r}."
        )
        raise ConfigurationError(msg)


def parse_pomdp(text: str, *, path: Path | None = None) -> PomdpSpecification:
    """Return the POMDP a text describes.

    Parameters
    ----------
    text : str
        In the format of Cassandra's pomdp-solve: ``discount``, ``values``, ``states``, ``actions``,
        ``observations``, ``start``, then ``T``, ``O`` and ``R`` entries: single numbers, rows or matrices, with ``*``
        for all, ``identity`` and ``uniform``. Later entries replace earlier ones. Costs become negative rewards;
        without ``start`` all states are equally likely.
    path : Path, optional
        For messages.

    Raises
    ------
    DataError
        Anything that is not of the format, rows of probabilities that do not sum to 1, names or numbers that are
        missing or unknown; with the line.
    """
    reader = PomdpReader(text, path=path)
    reader.read()
    try:
        return PomdpSpecification(
            states=reader.names["states"],
            actions=reader.names["actions"],
            observations=reader.names["observations"],
            start=reader.start,
            transition=reader.tables["T"],
            observation=reader.tables["O"],
            reward=reader.tables["R"] * reader.sign,
            discount=reader.discount,
        )
    except ConfigurationError as error:
        raise DataError(str(error), path=path) from error


def read_pomdp(path: str | Path) -> PomdpSpecification:
    """Return the POMDP in a file; see `parse_pomdp`.

    Raises
    ------
    DataError
        The file cannot be read, is not UTF-8 text or not of the format.
    """
    place = Path(path)
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"Expected a POMDP file of UTF-8 text that can be read: {error}."
        raise DataError(msg, path=place) from error
    return parse_pomdp(text, path=place)
