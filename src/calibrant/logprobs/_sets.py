"""Probability that each label belongs to an answer with any number of labels.

The steps
---------
An array is written element by element. Before each element the model decides between another element and the end. Step
k has two parts:

- ``stop_k``, the probability that the array ends here, and
- ``m_kj``, the probability that the next element is label j. The m_kj and ``stop_k`` sum to 1.

m_kj is the probability that the array goes on, times the distribution over the labels at the next element. In a decoded
answer (`extract_set`) that distribution comes from `extract_distribution`, else from scoring the labels there
(`set_of_places`). In the latter the mass of a repeated label counts for ``stop_k``: a repetition adds nothing new.
(With this rule the embedded model had the whole set right on 33 of 58 headlines, decoding on 8.)

From steps to labels
--------------------
The order of labels has no meaning, and an answer shows one order of many. So

- a label l of the answer, given at step k, belongs to it with probability
  ``q_l = m_kl / (m_kl + stop_k + sum of m_kj over labels j that are not in the answer)``. The mass of the answer's
  other labels is left out: had one of them come first, l could still have come later.
- a label j that is not in the answer could have come at any step: ``q_j = 1 - prod_k (1 - m_kj)``. In a decoded
  answer the labels behind the last element were never read; the probability of going on there is shared evenly among
  the labels not in the answer, and marked as assumed.

The probability of the whole answer is estimated by the product, over the steps, of the mass that keeps the answer
possible: at each step the answer's labels not given before and the label given here (a repeated label does not change
the set), at the last step the end. Let q(o) be the probability that a model restricted to this answer writes it in the
order o. The product is the importance weight P(o) / q(o) of that order: one sample of the probability of the set, and
equal to it where only one label is possible at every step or all orders have the same weight.

Where an array goes on
----------------------
The decision may fall inside a token. So all reported tokens count, from the token that holds the byte before the
decision (a closing quote or bracket, the opening bracket) up to the token that decides. A token that spells the answer
so far and then a further element counts for "continues"; a token that spells the answer so far and then the closing
bracket counts for "ends". ``",``, ``"]}`` and `` ]`` are read alike. White space counts as in JSON laid out on many
lines: after the opening bracket an element follows, after an element the end. Where no reported token takes one of the
sides, that side gets an upper bound (the least reported probability, and at most the unreported rest), marked as
assumed. `read_place` has the log-probabilities of all tokens of the vocabulary, `extract_set` only the alternatives
reported beside each token of a decoded answer.

With a bound e_k on the total variation of step k, ``q_l`` of a label given there is wrong by at most e_k over the
denominator above, and ``q_j`` of a label not in the answer by at most the sum of all e_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, fsum, inf, isfinite, log, log1p
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from calibrant.core._completion import TokenLogprobs, Vocabulary
from calibrant.core._errors import LogprobsUnavailableError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import (
    BoolArray,
    FloatArray,
    IntegerArray,
    LabelDistribution,
    LogprobSpace,
    read_only,
)
from calibrant.core._schema import FieldPath, array_path, element_path
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._distribution import FLOOR, SPACES, extract_distribution, least_bound, listed_at
from calibrant.logprobs._fields import AlignedField, align, value_span

_FLOOR: Final = 1e-300
_ENDS: Final = b"]"
_DECIDE: Final = frozenset({_ENDS, b",", b'"', b"{", b"[", b" "})
_tokens_by_vocabulary: WeakKeyDictionary[Vocabulary, dict[bytes, dict[bytes, IntegerArray]]] = (
    WeakKeyDictionary()
)


_KNOWN: Final = read_only([True, True])
_UNKNOWN: Final = read_only([False, False])


@dataclass(frozen=True, kw_only=True, eq=False)
class SetEvidence:
    """Probability that each label belongs to an answer with any number of labels.

    Attributes
    ----------
    labels : tuple of str, length L
        The labels, in the task's order.
    held : ndarray of bool, shape (L,)
        True for the labels that the answer holds.
    probabilities : ndarray of shape (L,)
        Probability that the label belongs to the answer, in [0, 1].
    measured : ndarray of bool, shape (L,)
        True where at least half of the evidence was reported by the model, not assumed.
    unresolved : ndarray of shape (L,)
        The assumed part of the masses compared, in [0, 1].
    label_mass : float
        The least probability reported, at any step, on labels and the end together, in [0, 1].
    confidence : float
        Estimated probability of the whole answer, in [0, 1].
    space : LogprobSpace
        Log-probability space.
    bounds : ndarray of shape (L,), or None
        Largest possible error of each probability due to nodes left out, in [0, 1]; None where no bound is known.
    """

    labels: tuple[str, ...]
    held: BoolArray
    probabilities: FloatArray
    measured: BoolArray
    unresolved: FloatArray
    label_mass: float
    confidence: float
    space: LogprobSpace
    bounds: FloatArray | None = None

    def distribution(self, place: int, values: tuple[str, str]) -> LabelDistribution:
        """Return the distribution of one label over "not in the answer" and "in the answer".

        Parameters
        ----------
        place : int
            Its position in `labels`.
        values : (str, str)
            Names of the two outcomes, in this order.
        """
        inside = min(max(float(self.probabilities[place]), FLOOR), 1.0 - FLOOR)
        return LabelDistribution(
            labels=values,
            logprobs=read_only([log1p(-inside), log(inside)]),
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
    """Read the probability that each label is in an array, from the answer's token log-probabilities.

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
        Log-probability space of the answer.

    Raises
    ------
    LogprobsUnavailableError
        The answer has no usable log-probabilities or no such array, an element of the array is no label, or the array
        cannot be aligned with the tokens.
    DataError
        The response has an unknown shape.
    ConfigurationError
        `labels`, `field_path` or `space` is wrong.

    Examples
    --------
    >>> from calibrant.core import MultiLabels
    >>> from calibrant.logprobs import extract_set
    >>> from calibrant.testing import fake_response
    >>> labels = MultiLabels(["Bills", "Food"])
    >>> response = fake_response('["Bills"]', labels, {'["Bills"]': 0.6, '["Bills", "Food"]': 0.4}, field="topics")
    >>> evidence = extract_set(response, ["Bills", "Food"], "topics")
    >>> evidence.held.tolist(), evidence.probabilities.round(2).tolist()
    ([True, False], [1.0, 0.4])
    """
    completion = read_completion(response)
    legal = LabelSet.of(labels)
    array, inside = array_path(field_path)
    aligned = align(completion, field_path, array)
    if not isinstance(aligned.value, list):
        raise LogprobsUnavailableError(
            f"Expected an array in the field {field_path!r}, got {aligned.value!r:.100}."
        )
    elements = [
        extract_distribution(completion, legal, element_path(field_path, index), space)
        for index in range(len(aligned.value))
    ]
    places = [legal.labels.index(one.emitted) if one.emitted else -1 for one in elements]
    if -1 in places:
        wrong = aligned.value[places.index(-1)]
        raise LogprobsUnavailableError(f"Expected labels in the field {field_path!r}, got {wrong!r:.100}.")
    decisions = _read_decisions(aligned, inside)
    steps = _Steps(legal.labels, places)
    for step, decision in enumerate(decisions):
        steps.ends[step] = decision.ends
        steps.assumed[step] = decision.ends if decision.assumed else 0.0
    for step, one in enumerate(elements):
        steps.moves[step] = decisions[step].goes_on * one.probabilities
        steps.read[step] = one.measured
    absent = ~steps.held
    if absent.any():  # no label was read behind the last one: an even share for each is an assumption
        steps.moves[-1, absent] = decisions[-1].goes_on / np.count_nonzero(absent)
    return steps.evidence(LogprobSpace(space), label_mass=_least_mass(aligned, inside, elements, decisions))


@dataclass(frozen=True, slots=True)
class _Decision:
    """Probabilities that an array continues or ends at one position.

    Attributes
    ----------
    goes_on, ends : float
        Probabilities, which sum to 1.
    assumed : bool
        Whether one of them is a bound, as no reported token takes that side.
    mass : float
        Reported probability of both sides together, in [0, 1].
    token : int
        Index of the token that decides.
    """

    goes_on: float
    ends: float
    assumed: bool
    mass: float
    token: int


def _read_decisions(aligned: AlignedField, inside: FieldPath) -> list[_Decision]:
    """Return the probabilities to continue or to end before each element and after the last one."""
    element = b'"'
    if inside:
        element = b"[" if isinstance(inside[0], int) else b"{"
    decisions = [_decision_at(aligned, aligned.begin + 1, element, space=element)]
    for index in range(len(aligned.value) if isinstance(aligned.value, list) else 0):
        _, end = value_span(aligned.stream, aligned.begin, (index,))
        decisions.append(_decision_at(aligned, end, b",", space=_ENDS))
    return decisions


def _decision_at(aligned: AlignedField, at: int, more: bytes, *, space: bytes) -> _Decision:
    """Return the probabilities that the array continues or ends at the byte offset `at`.

    There the byte `more` begins another element and a bracket ends the array. White space in an alternative counts as
    the byte `space`.
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
                masses[side] += exp(path + logprob)
        if _side(token.data, before).strip():
            return _decision_of(masses[more], masses[_ENDS], path + least_bound(token, listed), token=index)
        path += listed[token.data]
    raise LogprobsUnavailableError("The answer's tokens end inside its array.")


def _decision_of(goes_on: float, ends: float, bound: float, *, token: int) -> _Decision:
    """Normalise the probabilities to continue and to end, with exp(`bound`) for an unreported one."""
    mass = goes_on + ends
    assumed = False
    if not (goes_on and ends) and exp(bound) > 0.0:
        assumed = True
        goes_on = goes_on or exp(bound)
        ends = ends or exp(bound)
    whole = goes_on + ends
    if whole <= _FLOOR:  # neither side has any mass, so that no ratio can be formed
        return _Decision(0.5, 0.5, assumed=True, mass=0.0, token=token)
    return _Decision(goes_on / whole, ends / whole, assumed=assumed, mass=min(1.0, mass), token=token)


def _side(data: bytes, before: bytes) -> bytes:
    """Return the first byte behind `before` that is not a space; b" " for spaces only, else b"".

    Empty for a token that ends before that byte or does not spell `before`; a blank if only white space follows.
    """
    if before:
        data = data.lstrip(SPACES)
    rest = b""
    if data.startswith(before):
        rest = data[len(before) :]
    return rest.lstrip(SPACES)[:1] or (b" " if rest else b"")


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayPlace:
    """Exact probabilities of the next label and of the array's end, at one position.

    Attributes
    ----------
    given : tuple of str
        The labels before it.
    ends : float
        Probability that the array ends here and does not go on, in [0, 1].
    mass : float
        Probability of both together, among all that the model may write, in [0, 1].
    labels : LabelDistribution
        Distribution over the label that stands here if the array goes on.
    """

    given: tuple[str, ...]
    ends: float
    mass: float
    labels: LabelDistribution

    @property
    def moves(self) -> FloatArray:
        """Probability that each label comes next, 0 for labels already in the array, shape (L,)."""
        return np.where(self._is_new, (1.0 - self.ends) * self.labels.probabilities, 0.0)

    @property
    def assumed(self) -> float:
        """Total probability of repeated labels that is assumed and not measured."""
        unmeasured = ~self._is_new & ~self.labels.measured
        return (1.0 - self.ends) * float(self.labels.probabilities[unmeasured].sum())

    @property
    def _is_new(self) -> BoolArray:
        return np.array([label not in self.given for label in self.labels.labels])

    @property
    def next_label(self) -> str | None:
        """Most probable new label; None if it is more probable that no new label comes."""
        moves = self.moves
        best = int(moves.argmax())
        if moves[best] > 1.0 - fsum(moves):
            return self.labels.labels[best]
        return None


def read_place(
    tokens: Sequence[int],
    found: Sequence[TokenLogprobs],
    labels: LabelDistribution,
    *,
    given: Sequence[str],
    element: str,
) -> ArrayPlace:
    """Return the probabilities at one position of an array, from those of all next tokens.

    A token counts if it spells the array so far and then the byte that decides, whatever bytes follow.

    Parameters
    ----------
    tokens : sequence of int, length n
        The last tokens of the answer up to here: those that a longer answer might spell with other tokens.
    found : sequence of TokenLogprobs, length n + 1
        Log-probabilities of the next token before each of `tokens`, and behind the last one.
    labels : LabelDistribution
        Distribution over the label that stands here if the array goes on.
    given : sequence of str
        The labels before it.
    element : str
        First character of an element's JSON: it continues the array at the first place, a comma at later ones.

    Raises
    ------
    LogprobsUnavailableError
        The log-probabilities are not numbers.
    """
    more = b"," if given else element[:1].encode()
    space = _ENDS if given else more
    vocabulary = found[0].vocabulary
    path = 0.0
    masses = {more: 0.0, _ENDS: 0.0}
    for place, logprobs in enumerate(found):
        before = b"".join(vocabulary.pieces[token] for token in tokens[place:])
        for side, side_tokens in _deciding_tokens(vocabulary, before).items():
            if (side := space if side == b" " else side) in masses:
                masses[side] += float(np.exp(path + logprobs.at(side_tokens)).sum())
        written = np.array(tokens[place : place + 1], dtype=np.int64)
        path += fsum(logprobs.at(written))
    if not isfinite(fsum(masses.values())):
        raise LogprobsUnavailableError("The log-probabilities are not numbers.")
    decision = _decision_of(masses[more], masses[_ENDS], -inf, token=len(tokens))
    return ArrayPlace(given=tuple(given), ends=decision.ends, mass=decision.mass, labels=labels)


def _deciding_tokens(vocabulary: Vocabulary, before: bytes) -> dict[bytes, IntegerArray]:
    """Return the tokens that spell `before` and a deciding byte (see `_side`), by that byte."""
    cache = _tokens_by_vocabulary.setdefault(vocabulary, {})
    if before not in cache:
        by_side: dict[bytes, list[int]] = {}
        for token in vocabulary.beginning_with(before):
            side = _side(vocabulary.pieces[token][len(before) :], b"")
            if side in _DECIDE:
                by_side.setdefault(side, []).append(token)
        cache[before] = {side: np.array(tokens) for side, tokens in by_side.items()}
    return cache[before]


def set_of_places(labels: Sequence[str], places: Sequence[ArrayPlace]) -> SetEvidence:
    """Return the evidence for the array that takes the `next_label` of each position.

    Parameters
    ----------
    labels : sequence of str, length L
        The label set.
    places : sequence of ArrayPlace
        One for each label of the array, in order, and one for its end. An array of all labels has no place for its
        end.
    """
    order = [label for place in places if (label := place.next_label) is not None]
    steps = _Steps(tuple(labels), [labels.index(label) for label in order])
    steps.ends[-1] = 1.0  # of an array that holds all labels; else overwritten by its last place below
    for step, place in enumerate(places):
        steps.moves[step] = place.moves
        steps.read[step] = place.labels.measured
        steps.ends[step] = 1.0 - fsum(place.moves)
        steps.assumed[step] = place.assumed
    errors = [(1.0 - place.ends) * (place.labels.error_bound or 0.0) for place in places]
    legal = [place.ends + (1.0 - place.ends) * place.labels.label_mass for place in places]
    mass = min(place.mass * share for place, share in zip(places, legal, strict=True))
    return steps.evidence(LogprobSpace.EXACT, label_mass=mass, errors=errors)


def _least_mass(
    aligned: AlignedField, inside: FieldPath, elements: list[LabelDistribution], decisions: list[_Decision]
) -> float:
    """Return the lowest total probability of labels and array end that any step reported."""
    masses = [decision.mass for decision in decisions]
    for index, one in enumerate(elements):
        begin, _ = value_span(aligned.stream, aligned.begin, (index, *inside))
        # Where one token both decides and begins a label, the label mass excludes the end: add it.
        together = aligned.holder(begin + 1) == decisions[index].token
        masses.append(one.label_mass + (decisions[index].ends if together else 0.0))
    return min(1.0, *masses)


class _Steps:
    """Probabilities at the steps in which an array was written, one label at each step.

    Attributes
    ----------
    held : ndarray of bool, shape (L,)
        True for the labels that the answer holds.
    moves : ndarray of shape (n + 1, L)
        Probability that the next element is this label: m_kj.
    read : ndarray of bool, shape (n + 1, L)
        True where `moves` is measured.
    ends : ndarray of shape (n + 1,)
        Probability that the array ends: stop_k.
    assumed : ndarray of shape (n + 1,)
        The part of `ends` that is assumed.
    """

    def __init__(self, labels: tuple[str, ...], given: list[int]) -> None:
        self._labels = labels
        self._given = given
        self.held = np.isin(np.arange(len(labels)), given)
        n_steps = len(given) + 1
        self.moves = np.zeros((n_steps, len(labels)))
        self.read = np.zeros(self.moves.shape, dtype=np.bool_)
        self.ends = np.zeros(n_steps)
        self.assumed = np.zeros(n_steps)

    def evidence(
        self, space: LogprobSpace, *, label_mass: float, errors: Sequence[float] | None = None
    ) -> SetEvidence:
        """Combine all steps into evidence; `errors` holds the error bound e_k of each step."""
        probabilities = 1.0 - np.prod(1.0 - self.moves, axis=0)
        read = np.where(self.read, self.moves, 0.0)
        unresolved = probabilities - (1.0 - np.prod(1.0 - read, axis=0))
        measured = unresolved <= 0.5 * probabilities
        bounds = None
        if errors is not None:
            bounds = np.full(len(self._labels), fsum(errors))
        for place in set(self._given):
            step = self._given.index(place)
            # The masses for this label at the step that gave it and against it, and the assumed part of the latter.
            given = float(self.moves[step, place])
            outside = np.where(self.held, 0.0, self.moves[step])
            total = given + (float(self.ends[step]) + float(outside.sum()))
            unread = outside[~self.read[step]]
            assumed = float(unread.sum()) + float(self.assumed[step])
            probabilities[place] = given / total if total > 0.0 else 0.0
            unresolved[place] = assumed
            measured[place] = self.read[step, place] and assumed <= given
            if bounds is not None and errors is not None:
                bounds[place] = errors[step] / max(total, _FLOOR)
        return SetEvidence(
            labels=self._labels,
            held=self.held,
            probabilities=np.clip(probabilities, 0.0, 1.0),
            measured=measured,
            unresolved=np.clip(unresolved, 0.0, 1.0),
            label_mass=label_mass,
            confidence=self._answer_probability(),
            space=space,
            bounds=None if bounds is None else np.clip(bounds, 0.0, 1.0),
        )

    def _answer_probability(self) -> float:
        left = self.held.copy()
        whole = float(self.ends[-1])
        for step, place in enumerate(self._given):
            left[place] = True  # also if it was given before: a repeated label does not change the set
            whole *= float(self.moves[step, left].sum())
            left[place] = False
        return min(1.0, whole)
