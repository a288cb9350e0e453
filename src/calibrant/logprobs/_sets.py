"""The steps in which one array of labels was written -> for every label the probability that it belongs to the answer.

The steps
---------
An array is written element by element, and before each of them stands a decision: another one, or the end. Step k is
made of

- ``stop_k``, the probability that the array ends here, and
- ``m_kj``, the probability that the next element is label j. They sum to 1 with ``stop_k``.

m_kj is the probability that the array goes on, times the distribution over the labels at the next element: that of
`extract_distribution` in a decoded answer (`extract_set`), else what scoring the labels there found (`set_of_places`).
In the latter a label once more counts for ``stop_k``: it says that there is nothing new to come. (Of 58 headlines, the
embedded model without this took nearly every label for nearly every one: what it would write behind the labels that fit
is mostly these again. With it, it had the whole set right 33 times, decoded 8 times.)

From steps to labels
--------------------
The order of labels says nothing, and an answer shows one order of many. So

- a label l of the answer, given at step k, belongs to it with probability
  ``q_l = m_kl / (m_kl + stop_k + sum of m_kj over labels j that are not in the answer)``: where another label of the
  answer might have stood instead, l could have come later.
- a label j that is not in the answer would have had its turn at any step: ``q_j = 1 - prod_k (1 - m_kj)``. In a decoded
  answer, what goes on at the last step belongs to labels that were never read; it is shared evenly among those not in
  the answer, and marked as no measurement.

The whole answer's probability is estimated by the product over the steps of what stays inside the answer: the labels of
it that were not given before, the one given here (a repeated label leaves the answer what it is), and at the last
step the end. Let q(o) be the probability that a model which only ever stays inside the answer writes it in the order o:
the product is then the importance weight P(o) / q(o) of that order, whose mean over the orders drawn from q is the
probability of the set. Where only one label of the answer is possible at every step, or where all orders have the same
weight, the product is the probability itself; else it is as good as one sample of it.

The bound
---------
Where step k is known up to a total variation of e_k, ``q_l`` of a label given there is at most e_k over the denominator
above away from what it would be, and ``q_j`` of one that is not in the answer at most the sum of all e_k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core import (
    LabelDistribution,
    LabelSet,
    LogprobSpace,
    LogprobsUnavailableError,
    TokenLogprobs,
)
from calibrant.logprobs._align import AlignedField, align_at
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._decisions import Decision, next_decision, read_decisions
from calibrant.logprobs._distribution import FLOOR, extract_distribution
from calibrant.logprobs._fields import FieldPath, array_path, element_path, value_span

__all__ = ["ArrayPlace", "SetEvidence", "extract_set", "read_place", "set_of_places"]

_FLOOR: Final = 1e-300


def _fixed(values: list[Any]) -> NDArray[Any]:
    """Return an array that a distribution does not copy: label sets may be large."""
    array = np.array(values)
    array.setflags(write=False)
    return array


_KNOWN: Final = _fixed([True, True])
_UNKNOWN: Final = _fixed([False, False])


@dataclass(frozen=True, kw_only=True, eq=False)
class SetEvidence:
    """For every label the probability that it belongs to an answer of any number of labels.

    Attributes
    ----------
    labels : tuple of str, length L
        The labels, in the task's order.
    held : ndarray of bool, shape (L,)
        Which of them the answer holds.
    probabilities : ndarray of shape (L,)
        That the label belongs to the answer, in [0, 1].
    measured : ndarray of bool, shape (L,)
        Where reported evidence says at least as much as what had to be assumed.
    unresolved : ndarray of shape (L,)
        How much of the probabilities compared was assumed, in [0, 1].
    label_mass : float
        The least probability reported, at any step, on labels and the end together, in [0, 1].
    confidence : float
        Estimated probability of the whole answer, in [0, 1].
    space : LogprobSpace
        What the log-probabilities are probabilities of.
    bounds : ndarray of shape (L,), or None
        How far the probabilities can be from those of steps known to the end, in [0, 1]; None where that is not known.
    """

    labels: tuple[str, ...]
    held: NDArray[np.bool_]
    probabilities: NDArray[np.float64]
    measured: NDArray[np.bool_]
    unresolved: NDArray[np.float64]
    label_mass: float
    confidence: float
    space: LogprobSpace
    bounds: NDArray[np.float64] | None = None

    def distribution(self, place: int, values: tuple[str, str]) -> LabelDistribution:
        """Return the distribution over whether a label belongs to the answer.

        Parameters
        ----------
        place : int
            Its position in `labels`.
        values : (str, str)
            What not to belong and to belong is called.
        """
        inside = min(max(float(self.probabilities[place]), FLOOR), 1.0 - FLOOR)
        return LabelDistribution(
            labels=values,
            logprobs=_fixed([math.log1p(-inside), math.log(inside)]),
            measured=_KNOWN if self.measured[place] else _UNKNOWN,
            joint_logprob=None,
            label_mass=self.label_mass,
            unresolved_mass=float(self.unresolved[place]),
            space=self.space,
            emitted=values[int(self.held[place])],
            error_bound=None if self.bounds is None else float(self.bounds[place]),
        )


def extract_set(
    response: object,
    labels: Sequence[str] | LabelSet,
    field_path: str,
    space: LogprobSpace | str = LogprobSpace.MASKED,
) -> SetEvidence:
    """Read, from one answer's token log-probabilities, how sure every label of an array is.

    Parameters
    ----------
    response : object
        Anything `read_completion` takes.
    labels : sequence of str, length L, or LabelSet
        The label set.
    field_path : str
        The array (``topics``), or the label in its elements (``results[].topic``); the last ``[]`` stands for all
        elements.
    space : {"masked", "raw"}, default "masked"
        What the log-probabilities are probabilities of.

    Raises
    ------
    LogprobsUnavailableError
        There are no usable log-probabilities, there is no such array, an element of it is no label, or it cannot be
        aligned with the tokens.
    DataError
        The response has an unknown shape.
    ConfigurationError
        `labels`, `field_path` or `space` is wrong.
    """
    completion = read_completion(response)
    legal = LabelSet.of(labels)
    array, inside = array_path(field_path)
    aligned = align_at(completion, array, field_path)
    if not isinstance(aligned.value, list):
        msg = f"Expected an array in the field {field_path!r}, got {aligned.value!r:.100}."
        raise LogprobsUnavailableError(msg)
    found = [
        extract_distribution(completion, legal, element_path(field_path, index), space)
        for index in range(len(aligned.value))
    ]
    places = [legal.labels.index(one.emitted) if one.emitted else -1 for one in found]
    if -1 in places:
        wrong = aligned.value[places.index(-1)]
        raise LogprobsUnavailableError(f"Expected labels in the field {field_path!r}, got {wrong!r:.100}.")
    decisions = read_decisions(aligned, inside)
    steps = _Steps(legal.labels, places)
    for step, decision in enumerate(decisions):
        steps.ends[step] = decision.ends
        steps.assumed[step] = decision.ends if decision.assumed else 0.0
    for step, one in enumerate(found):
        steps.moves[step] = decisions[step].goes_on * one.probabilities
        steps.read[step] = one.measured
    absent = ~steps.held
    if absent.any():  # what would have come behind the last label was never read
        steps.moves[-1, absent] = decisions[-1].goes_on / np.count_nonzero(absent)
    return steps.evidence(LogprobSpace(space), label_mass=_least_mass(aligned, inside, found, decisions))


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayPlace:
    """What may stand at one place of an array, where all of it was asked about.

    Attributes
    ----------
    given : tuple of str
        The labels before it.
    ends : float
        Probability that the array ends here and does not go on, in [0, 1].
    mass : float
        Probability of both together, among all that the model may write, in [0, 1].
    labels : LabelDistribution
        Over the label that stands here if it goes on.
    """

    given: tuple[str, ...]
    ends: float
    mass: float
    labels: LabelDistribution

    @property
    def moves(self) -> NDArray[np.float64]:
        """Probability that this label comes next and is new, shape (L,)."""
        return np.where(self._is_new, (1.0 - self.ends) * self.labels.probabilities, 0.0)

    @property
    def assumed(self) -> float:
        """How much of the probability of a label once more is no measurement."""
        shared = ~self._is_new & ~self.labels.measured
        return (1.0 - self.ends) * float(self.labels.probabilities[shared].sum())

    @property
    def _is_new(self) -> NDArray[np.bool_]:
        return np.array([label not in self.given for label in self.labels.labels])

    @property
    def next_label(self) -> str | None:
        """The new label that stands here if that is more probable than that none does, else None."""
        moves = self.moves
        best = int(moves.argmax())
        return self.labels.labels[best] if moves[best] > 1.0 - math.fsum(moves) else None


def read_place(
    tokens: Sequence[int],
    found: Sequence[TokenLogprobs],
    labels: LabelDistribution,
    *,
    given: Sequence[str],
    element: str,
) -> ArrayPlace:
    """Return what may stand at one place of an array, from what a model says of all its tokens.

    All tokens count that spell what the array holds so far and then decide, whatever they hold besides.

    Parameters
    ----------
    tokens : sequence of int, length n
        The last tokens of the answer up to here, as far as they can be others if the answer goes on.
    found : sequence of TokenLogprobs, length n + 1
        What the model may write before each of them, and behind the last one.
    labels : LabelDistribution
        Over the label that stands here if the array goes on.
    given : sequence of str
        The labels before it.
    element : str
        How the JSON of an element begins, which goes on at the first place; behind an element a comma does.

    Raises
    ------
    LogprobsUnavailableError
        The log-probabilities are not numbers.
    """
    decision = next_decision(tokens, found, element=element, first=not given)
    return ArrayPlace(given=tuple(given), ends=decision.ends, mass=decision.mass, labels=labels)


def set_of_places(labels: Sequence[str], places: Sequence[ArrayPlace]) -> SetEvidence:
    """Return how sure every label of an array is that was written with the `next_label` of every place.

    Parameters
    ----------
    labels : sequence of str, length L
        The label set.
    places : sequence of ArrayPlace
        One for each label of the array, in order, and one for its end; without that one where it holds all labels.
    """
    order = [label for one in places if (label := one.next_label) is not None]
    found = _Steps(tuple(labels), [labels.index(label) for label in order])
    found.ends[-1] = 1.0  # behind all labels there is none that is new; before that it was asked about
    for step, one in enumerate(places):
        found.moves[step] = one.moves
        found.read[step] = one.labels.measured
        found.ends[step], found.assumed[step] = 1.0 - math.fsum(one.moves), one.assumed
    errors = [(1.0 - one.ends) * (one.labels.error_bound or 0.0) for one in places]
    mass = min(one.mass * (one.ends + (1.0 - one.ends) * one.labels.label_mass) for one in places)
    return found.evidence(LogprobSpace.EXACT, label_mass=mass, errors=errors)


def _least_mass(
    aligned: AlignedField,
    inside: FieldPath,
    found: list[LabelDistribution],
    decisions: list[Decision],
) -> float:
    """Return the least probability reported, at any step, on labels and the end together."""
    masses = [decision.mass for decision in decisions]
    for index, one in enumerate(found):
        begin, _ = value_span(aligned.stream, aligned.begin, (index, *inside))
        # In the token that decides, labels have only what does not end the array.
        together = aligned.holder(begin + 1) == decisions[index].token
        masses.append(one.label_mass + (decisions[index].ends if together else 0.0))
    return min(1.0, *masses)


class _Steps:
    """The steps in which an answer was written, as probabilities.

    Attributes
    ----------
    held : ndarray of bool, shape (L,)
        Which labels the answer holds.
    moves : ndarray of shape (n + 1, L)
        That the next element is this label.
    read : ndarray of bool, shape (n + 1, L)
        Which of these are measured.
    ends : ndarray of shape (n + 1,)
        That the array ends.
    assumed : ndarray of shape (n + 1,)
        How much of that is no measurement.
    """

    def __init__(self, labels: tuple[str, ...], given: list[int]) -> None:
        self._labels = labels
        self._given = given
        self.held = np.isin(np.arange(len(labels)), given)
        self.moves = np.zeros((len(given) + 1, len(labels)))
        self.read = np.zeros((len(given) + 1, len(labels)), dtype=np.bool_)
        self.ends = np.zeros(len(given) + 1)
        self.assumed = np.zeros(len(given) + 1)

    def evidence(
        self, space: LogprobSpace, *, label_mass: float, errors: Sequence[float] | None = None
    ) -> SetEvidence:
        """Return what the steps say; `errors` are the total variations that each may be away from the true one."""
        probabilities = 1.0 - np.prod(1.0 - self.moves, axis=0)
        unresolved = probabilities - (1.0 - np.prod(1.0 - np.where(self.read, self.moves, 0.0), axis=0))
        measured = unresolved <= 0.5 * probabilities
        bounds = None if errors is None else np.full(len(self._labels), math.fsum(errors))
        for place in set(self._given):
            step = self._given.index(place)
            own, against, assumed = self._weighed(step, place)
            probabilities[place] = own / (own + against) if own + against > 0.0 else 0.0
            unresolved[place] = assumed
            measured[place] = self.read[step, place] and assumed <= own
            if bounds is not None and errors is not None:
                bounds[place] = errors[step] / max(own + against, _FLOOR)
        return SetEvidence(
            labels=self._labels,
            held=self.held,
            probabilities=np.clip(probabilities, 0.0, 1.0),
            measured=measured,
            unresolved=np.clip(unresolved, 0.0, 1.0),
            label_mass=label_mass,
            confidence=self._whole(),
            space=space,
            bounds=None if bounds is None else np.clip(bounds, 0.0, 1.0),
        )

    def _weighed(self, step: int, place: int) -> tuple[float, float, float]:
        """Return what speaks for a label where it was given, what against it, and what of that was assumed."""
        outside = np.where(self.held, 0.0, self.moves[step])
        ends = float(self.ends[step])
        assumed = float(outside[~self.read[step]].sum()) + float(self.assumed[step])
        return float(self.moves[step, place]), ends + float(outside.sum()), assumed

    def _whole(self) -> float:
        left = self.held.copy()
        whole = float(self.ends[-1])
        for step, place in enumerate(self._given):
            left[place] = True  # given again, it leaves the answer what it is
            whole *= float(self.moves[step, left].sum())
            left[place] = False
        return min(1.0, whole)
