"""Token log-probabilities of one array of labels -> for every label the probability that it belongs to the answer.

The steps
---------
An array is written element by element, and before each of them stands a decision: another one, or the end. At step
k the answer's tokens tell

- ``stop_k``, the probability that the array ends here, and
- ``m_kj``, the probability that the next element is label j: what goes on, times the distribution over the labels
  read at the next element (`extract_distribution`). They sum to 1 with ``stop_k``.

The decision is read where the tokens make it, which may be inside a token: of all tokens reported from the one that
holds the byte before it (a closing quote or bracket, the opening bracket) up to the one that decides, those that
spell what the answer spells so far and then go on count for going on, those that then end the array for the end.
``",``, ``"]}`` and `` ]`` are read alike. White space that might have been written instead counts as JSON on many
lines is laid out: behind the opening bracket for an element, behind an element for the end. A side that no reported
token takes holds at most the least reported probability and at most what was not reported; that bound stands for it,
and is marked as no measurement.

From steps to labels
--------------------
The order of labels says nothing, and an answer shows one order of many. So

- a label l of the answer, given at step k, belongs to it with probability
  ``q_l = m_kl / (m_kl + stop_k + sum of m_kj over labels j that are not in the answer)``: where another label of the
  answer might have stood instead, l could have come later.
- a label j that is not in the answer would have had its turn at any step: ``q_j = 1 - prod_k (1 - m_kj)``. What goes
  on at the last step belongs to labels that were never read; it is shared evenly among those not in the answer, and
  marked as no measurement.

The whole answer's probability is estimated by the product over the steps of what stays inside the answer: the labels of
it that were not given before, the one given here (a repeated label leaves the answer what it is), and at the last
step the end. Let q(o) be the probability that a model which only ever stays inside the answer writes it in the order o:
the product is then the importance weight P(o) / q(o) of that order, whose mean over the orders drawn from q is the
probability of the set. Where only one label of the answer is possible at every step, or where all orders have the same
weight, the product is the probability itself; else it is as good as one sample of it.
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
)
from calibrant.logprobs._align import AlignedField, align_at
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._distribution import FLOOR, extract_distribution, least_bound, listed_at
from calibrant.logprobs._fields import FieldPath, array_path, element_path, value_span
from calibrant.logprobs._trie import SPACES

__all__ = ["SetEvidence", "extract_set"]

_ENDS: Final = b"]"
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
    """

    labels: tuple[str, ...]
    held: NDArray[np.bool_]
    probabilities: NDArray[np.float64]
    measured: NDArray[np.bool_]
    unresolved: NDArray[np.float64]
    label_mass: float
    confidence: float
    space: LogprobSpace

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
    decisions = _decisions(aligned, inside)
    steps = _Steps(legal.labels, places, found, decisions)
    return steps.evidence(LogprobSpace(space), label_mass=_least_mass(aligned, inside, found, decisions))


@dataclass(frozen=True, slots=True)
class _Decision:
    """Whether an array goes on at one place, as far as its tokens tell.

    Attributes
    ----------
    goes_on, ends : float
        Probabilities, which sum to 1.
    assumed : bool
        Whether one of them is a bound, as no reported token takes that side.
    mass : float
        What was reported on both together, in [0, 1].
    token : int
        The token that decides.
    """

    goes_on: float
    ends: float
    assumed: bool
    mass: float
    token: int


def _decisions(aligned: AlignedField, inside: FieldPath) -> list[_Decision]:
    """Return the decision before each element, and the last one."""
    element = b'"' if not inside else b"[" if isinstance(inside[0], int) else b"{"
    found = [_decision(aligned, aligned.begin + 1, element, space=element)]
    for index in range(len(aligned.value) if isinstance(aligned.value, list) else 0):
        _, end = value_span(aligned.stream, aligned.begin, (index,))
        found.append(_decision(aligned, end, b",", space=_ENDS))
    return found


def _decision(aligned: AlignedField, at: int, more: bytes, *, space: bytes) -> _Decision:
    """Return what the tokens say at the byte `at`.

    There `more` begins another element, a bracket ends the array, and white space that was not written would have
    led to `space`.
    """
    path = 0.0
    masses = {more: 0.0, _ENDS: 0.0}
    first = aligned.holder(at - 1)
    for index, token in enumerate(aligned.tokens[first:], first):
        before = aligned.stream[aligned.start(index) : at].lstrip(SPACES)
        listed = listed_at(token)
        for data, logprob in listed.items():
            side = _side(data, before)
            if side == b" " and data != token.data:
                side = space
            if side in masses:
                masses[side] += math.exp(path + logprob)
        if _side(token.data, before).strip():
            return _decided(masses[more], masses[_ENDS], path + least_bound(token, listed), token=index)
        path += listed[token.data]
    raise LogprobsUnavailableError("The answer's tokens end inside its array.")


def _decided(goes_on: float, ends: float, bound: float, *, token: int) -> _Decision:
    """Return the decision from what was reported; a side that was not holds `bound`, a logarithm, at most."""
    mass, assumed = goes_on + ends, False
    if not (goes_on and ends) and math.exp(bound) > 0.0:
        assumed = True
        goes_on, ends = goes_on or math.exp(bound), ends or math.exp(bound)
    whole = goes_on + ends
    if whole <= _FLOOR:  # nothing that was reported is possible
        return _Decision(0.5, 0.5, assumed=True, mass=0.0, token=token)
    return _Decision(goes_on / whole, ends / whole, assumed=assumed, mass=min(1.0, mass), token=token)


def _side(data: bytes, before: bytes) -> bytes:
    """Return the byte that decides in a token which must spell `before` first.

    Empty where it does not decide, or spells something else; a blank where only white space follows.
    """
    if before:
        data = data.lstrip(SPACES)
    rest = data[len(before) :] if data.startswith(before) else b""
    return rest.lstrip(SPACES)[:1] or (b" " if rest else b"")


def _least_mass(
    aligned: AlignedField,
    inside: FieldPath,
    found: list[LabelDistribution],
    decisions: list[_Decision],
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
    """The steps in which an answer was written, as probabilities."""

    def __init__(
        self,
        labels: tuple[str, ...],
        given: list[int],
        found: list[LabelDistribution],
        decisions: list[_Decision],
    ) -> None:
        self._labels = labels
        self._given = given
        self._held = np.isin(np.arange(len(labels)), given)
        self._decisions = decisions
        self._ends = np.array([decision.ends for decision in decisions])
        # moves[k, j]: the next element is j; the last row is never read, and shared evenly.
        self._moves = np.zeros((len(decisions), len(labels)))
        self._read = np.zeros((len(decisions), len(labels)), dtype=np.bool_)
        for step, one in enumerate(found):
            self._moves[step] = decisions[step].goes_on * one.probabilities
            self._read[step] = one.measured
        absent = ~self._held
        if absent.any():
            self._moves[-1, absent] = decisions[-1].goes_on / np.count_nonzero(absent)

    def evidence(self, space: LogprobSpace, *, label_mass: float) -> SetEvidence:
        probabilities = 1.0 - np.prod(1.0 - self._moves, axis=0)
        unresolved = probabilities - (1.0 - np.prod(1.0 - np.where(self._read, self._moves, 0.0), axis=0))
        measured = unresolved <= 0.5 * probabilities
        for place in set(self._given):
            step = self._given.index(place)
            own, against, assumed = self._weighed(step, place)
            probabilities[place] = own / (own + against) if own + against > 0.0 else 0.0
            unresolved[place] = assumed
            measured[place] = self._read[step, place] and assumed <= own
        return SetEvidence(
            labels=self._labels,
            held=self._held,
            probabilities=np.clip(probabilities, 0.0, 1.0),
            measured=measured,
            unresolved=np.clip(unresolved, 0.0, 1.0),
            label_mass=label_mass,
            confidence=self._whole(),
            space=space,
        )

    def _weighed(self, step: int, place: int) -> tuple[float, float, float]:
        """Return what speaks for a label where it was given, what against it, and what of that was assumed."""
        outside = np.where(self._held, 0.0, self._moves[step])
        ends = float(self._ends[step])
        assumed = float(outside[~self._read[step]].sum()) + (ends if self._decisions[step].assumed else 0.0)
        return float(self._moves[step, place]), ends + float(outside.sum()), assumed

    def _whole(self) -> float:
        left = self._held.copy()
        whole = float(self._ends[-1])
        for step, place in enumerate(self._given):
            left[place] = True  # given again, it leaves the answer what it is
            whole *= float(self._moves[step, left].sum())
            left[place] = False
        return min(1.0, whole)
