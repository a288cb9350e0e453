"""Change of topic: the sketches of texts of one predicted label, compared with earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from calibrant.core._prediction import BoolArray, FloatArray, HalfArray, SingleArray

_BATCH: Final = 2048  # permutations at once
_FEWEST: Final = 10_000
_MOST: Final = 1 << 22  # half a minute: reached by files that drift after about a thousand others
_FURTHER: Final = 3  # permutations further apart that a p-value at the level may have
_SHOWN: Final = 100  # permutations further apart that tell a p-value well enough
_ROUNDING: Final = 1e-5  # relative

Matrix = SingleArray


@dataclass(frozen=True, kw_only=True)
class TopicDrift:
    """Distance between the texts of new and earlier rows of the same predicted label, with its p-value.

    Attributes
    ----------
    values, history : int
        Texts compared: new ones, and those of the history, of labels that occur in both.
    distance : float
        Distance of the mean sketches within labels, in standard deviations within labels, less what chance puts
        between equal ones; at least 0.
    p_value : float
        Twice the smaller share of permutations within labels (and the texts as they are) at least as far apart, of two
        distances: within labels, and of all texts together. At most 1.
    label : str or None
        The label whose texts are furthest from the earlier ones; None of no texts.
    """

    values: int
    history: int
    distance: float
    p_value: float
    label: str | None


@dataclass(frozen=True, kw_only=True)
class _Stratum:
    """Texts of one label, new and earlier ones, centred.

    Attributes
    ----------
    label : str
        Predicted label.
    rows : ndarray of shape (n, d)
        Sketches with mean 0.
    new : ndarray of shape (n,)
        1 for new texts, 0 for earlier ones.
    size : float
        Harmonic mean of the two numbers of texts, halved: the precision of the difference of their means.
    """

    label: str
    rows: Matrix
    new: Matrix
    size: float

    @classmethod
    def of(cls, label: str, rows: Matrix, new: BoolArray) -> _Stratum:
        n_new = int(new.sum())
        size = n_new * (len(new) - n_new) / len(new)
        centred = rows - rows.mean(axis=0)
        return cls(label=label, rows=centred, new=new.astype(np.float32), size=size)

    @property
    def variance(self) -> float:
        """Variance of the texts, summed over the numbers of a sketch."""
        squares = np.square(self.rows, dtype=np.float64)
        return float(squares.sum()) / max(len(self.rows) - 1, 1)

    @property
    def excess(self) -> float:
        """Squared distance of the two means times the size, less its expectation if nothing changed."""
        total = self.new @ self.rows
        return float(total @ total) / self.size - self.variance


def measure_topics(
    matrix: HalfArray,
    labels: Sequence[str],
    earlier_matrix: HalfArray,
    earlier_labels: Sequence[str],
    *,
    level: float,
    rng: np.random.Generator,
) -> TopicDrift:
    """Compare sketches of shape (n, d) with earlier ones of shape (m, d), label by label.

    Parameters
    ----------
    matrix, earlier_matrix : ndarray of shape (n, d) or (m, d)
        Sketches, a thousand each at most.
    labels, earlier_labels : sequence of str, length n or m
        Predicted label of each.
    level : float in (0, 1)
        The p-value is exact enough to be compared with it.
    rng : Generator
        Draws the permutations.
    """
    rows = np.concatenate([matrix, earlier_matrix]).astype(np.float32)
    new = np.arange(len(rows)) < len(matrix)
    names = np.array([*labels, *earlier_labels])
    strata = []
    for label in sorted({*labels} & {*earlier_labels}):
        members = names == label
        strata.append(_Stratum.of(label, rows[members], new[members]))
    if not strata:
        return TopicDrift(values=0, history=0, distance=0.0, p_value=1.0, label=None)
    values = sum(int(stratum.new.sum()) for stratum in strata)
    spread = sum(stratum.size * stratum.variance for stratum in strata)
    excess = max(0.0, sum(stratum.excess for stratum in strata))
    return TopicDrift(
        values=values,
        history=sum(len(stratum.new) for stratum in strata) - values,
        distance=(excess / spread) ** 0.5 if spread else 0.0,
        p_value=_p_value(strata, level, rng),
        label=max(strata, key=lambda stratum: stratum.excess / (stratum.variance or 1.0)).label,
    )


def _p_value(strata: Sequence[_Stratum], level: float, rng: np.random.Generator) -> float:
    """Return twice the smaller p-value of the two distances, by permutations within strata.

    A batch applies the same random permutations to rows that are shuffled anew within strata, so that it costs a matrix
    product. Such products of permutations are no independent draws, but the set of them is as likely after any of its
    members, which is all that a permutation test needs (Hemerik and Goeman 2018). Drawing ends once neither distance
    can reach the level any more (Besag and Clifford 1991): what is decided at the level is the same.
    """
    permutations = min(_MOST, max(_FEWEST, 2 * _FURTHER / level))
    masks = [_masks(stratum.new, rng) for stratum in strata]
    as_they_are = [mask[:1] for mask in masks]
    observed = _distances(strata, as_they_are, [stratum.rows for stratum in strata])
    least = observed * (1.0 - _ROUNDING)
    enough = max(_SHOWN, level / 2.0 * permutations)
    further = np.zeros(2)
    drawn = 0
    while drawn < permutations and further.min() <= enough:
        rows = [stratum.rows for stratum in strata]
        if drawn:
            rows = list(map(rng.permutation, rows))
        distances = _distances(strata, masks, rows)
        further += (distances >= least).sum(axis=1)
        drawn += _BATCH
    return min(1.0, 2.0 * float(further.min()) / drawn)


def _masks(new: Matrix, rng: np.random.Generator) -> Matrix:
    """Return a batch of permutations of `new`, shape (batch, n); the first one leaves it as it is."""
    masks = np.tile(new, (_BATCH, 1))
    rng.permuted(masks[1:], axis=1, out=masks[1:])
    return masks


def _distances(strata: Sequence[_Stratum], masks: Sequence[Matrix], shuffled: Sequence[Matrix]) -> FloatArray:
    """Return the distance within labels and that of all texts, for each permutation of a batch, shape (2, batch).

    Labels weigh by the square root of their size: of equal weights, rare labels hide frequent ones, and of sizes the
    reverse. On halves of Emotion and Rotten Tomatoes this saw more than columns put to one variance, whitened columns,
    random features of a Gaussian kernel, or a classifier learned on one half of the rows.
    """
    n_masks = len(masks[0])
    width = shuffled[0].shape[1]
    within = np.zeros(n_masks)
    together = np.zeros((n_masks, width), dtype=np.float32)
    for stratum, mask, rows in zip(strata, masks, shuffled, strict=True):
        total = mask @ rows
        within += np.einsum("bd,bd->b", total, total) / stratum.size**0.5
        together += total
    return np.array([within, np.einsum("bd,bd->b", together, together)])
