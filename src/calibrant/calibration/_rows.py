"""Digests of fitted rows, so that a calibrator is never evaluated on them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError

_ID_BYTES = 8  # one pair of a million rows collides with probability 3e-8


@dataclass(frozen=True, kw_only=True)
class FittedRows:
    """The rows of a fit, as digests.

    Most rows of a language model have confidence 1, so a row cannot be recognised by its confidence;
    the whole set can, and so can rows that were named.

    Attributes
    ----------
    digest : str
        SHA-256 of confidence and correctness of all rows, whatever their order.
    ids : frozenset of str
        Digests of the names of the rows; empty where none were given.
    """

    digest: str
    ids: frozenset[str]

    @classmethod
    def of(cls, p: NDArray[np.float64], y: NDArray[np.float64], ids: Sequence[object] | None) -> Self:
        """Return the digests of rows of confidence `p` and correctness `y`, both of shape (n,)."""
        return cls(digest=_digest(p, y), ids=_digests(ids, len(p)))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the digests of a `to_record` record; KeyError or TypeError for any other."""
        return cls(digest=str(record["digest"]), ids=frozenset(map(str, record["ids"])))

    def to_record(self) -> dict[str, Any]:
        """Return the digests as JSON values."""
        return {"digest": self.digest, "ids": sorted(self.ids)}

    def refuse(self, p: NDArray[np.float64], y: NDArray[np.float64], ids: Sequence[object] | None) -> None:
        """Raise ConfigurationError if the rows are, or contain, fitted rows.

        Rows are compared by name if both the fit and this call name them; else as a whole set.
        """
        named = _digests(ids, len(p))
        if named and self.ids:
            shared = len(named & self.ids)
            if shared:
                raise ConfigurationError(
                    f"Expected rows that were not fitted, got {shared} of {len(p)} that were: a calibrator looks "
                    "better on its own rows than it is; leave them out."
                )
        elif _digest(p, y) == self.digest:
            raise ConfigurationError(
                f"Expected rows that were not fitted, got the same {len(p)} rows: a calibrator looks better on its "
                "own rows than it is; evaluate it on others, or name the rows with ids if these are others."
            )


def _digest(p: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    order = np.lexsort((y, p))
    return hashlib.sha256(np.stack([p[order] + 0.0, y[order]]).astype("<f8").tobytes()).hexdigest()


def _digests(ids: Sequence[object] | None, n: int) -> frozenset[str]:
    if ids is None:
        return frozenset()
    if isinstance(ids, str) or len(ids) != n:
        raise ConfigurationError(f"Expected one of ids per row, got {len(ids)} for {n} rows.")
    return frozenset(
        hashlib.blake2b(str(name).encode("utf-8", "surrogatepass"), digest_size=_ID_BYTES).hexdigest()
        for name in ids
    )
