"""Structured labels: ordinal scales and hierarchies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import Aspect, LabelSet, normalise_label
from calibrant.core._prediction import LabelDistribution, Prediction
from calibrant.core._sections import register

if TYPE_CHECKING:
    from numpy.typing import NDArray


SEPARATOR: Final = "/"
_ANSWERS: Final = ("no", "yes")
# A logarithm must stay finite where all members of a group underflow.
_TINY: Final = float(np.finfo(np.float64).tiny)


class OrdinalLabels(LabelSet):
    """Labels on a scale, from the lowest to the highest.

    An answer settles L - 1 questions, one for every label but the highest: does the text stand above it? The
    confidence in each is the probability of the labels on the answered side, so it is never below the label's own.

    With correctness alone the mean over the questions is ``1 - |i - j| / (L - 1)`` for the ranks i and j of the
    predicted and the true label. With `calibrant.scoring.BrierScoring` it is ``1 - RPS / (L - 1)``, where ``RPS =
    sum_k (F_k - O_k)^2`` is the ranked probability score over the L - 1 thresholds, F the cumulative distribution
    and O that of the true label (Epstein 1969, J. Appl. Meteorol. 8:985-987, in the form of Murphy 1971, ibid.
    10:155-156). It is strictly proper: every F_k is scored by a strictly proper score, and together they are the
    distribution.

    Parameters
    ----------
    labels : sequence of str
        The labels, lowest first.

    Examples
    --------
    >>> labels = OrdinalLabels(["bad", "fair", "good"])
    >>> [aspect.is_correct for aspect in labels.aspects(Prediction(label="fair"), "good")]
    [True, False]
    """

    structure: ClassVar[str] = "ordinal"

    @cached_property
    def _ranks(self) -> dict[str, int]:
        return {label: rank for rank, label in enumerate(self.labels)}

    def rank(self, label: str) -> int:
        """Return the rank of a canonical label, 0 for the lowest.

        Raises
        ------
        KeyError
            `label` is not in the label set.
        """
        return self._ranks[label]

    def aspects(self, prediction: Prediction, answer: str) -> tuple[Aspect, ...]:
        """Return one aspect for each label except the highest: whether the answer ranks above it."""
        predicted, expected = self.rank(prediction.label or ""), self.rank(answer)
        return tuple(
            Aspect(
                name=f"above {label}",
                predicted=_ANSWERS[predicted > rank],
                expected=_ANSWERS[expected > rank],
                confidence=_implied_confidence(prediction.confidence, sides, _ANSWERS[predicted > rank]),
                distribution=sides,
            )
            for rank, (label, sides) in enumerate(
                zip(self.labels, self._sides(prediction.distribution), strict=False)
            )
        )

    def _sides(self, whole: LabelDistribution | None) -> Sequence[LabelDistribution | None]:
        """Return, for each label except the highest, the probabilities of both sides: up to it, above it."""
        if whole is None:
            return [None] * (len(self) - 1)
        shares, known = whole.probabilities, whole.measured
        mass = np.empty((len(self) - 1, 2))
        measured = np.empty(mass.shape, dtype=np.bool_)
        # Each side is added up by itself: one minus the other loses what is far out.
        mass[:, 0], mass[:, 1] = shares.cumsum()[:-1], shares[::-1].cumsum()[-2::-1]
        measured[:, 0] = np.logical_or.accumulate(known)[:-1]
        measured[:, 1] = np.logical_or.accumulate(known[::-1])[-2::-1]
        return [
            _marginal_distribution(whole, _ANSWERS, *row) for row in zip(_log(mass), measured, strict=True)
        ]


class _Level(NamedTuple):
    """Distinct path prefixes at one level, and for each label the index of its prefix."""

    values: tuple[str, ...]
    members: NDArray[np.intp]  # (L,), indices into `values`


@dataclass(frozen=True)
class HierarchicalLabels(LabelSet):
    """Labels that are paths through a tree, such as ``Bills/Electricity``.

    An answer settles one question for each level of the tree, from 1 to the depth of the deepest label: how does the
    path begin, up to this level? A label that ends before a level stands there for itself, so ``Bills`` beside
    ``Bills/Electricity`` is right at level 1 and wrong at level 2 where the other is meant. The confidence in the
    whole label is the prediction's own, that in a beginning the probability of all labels that begin so.

    With correctness alone the mean over the levels is 1 for the right label and ``c / D`` for any other: c is how
    many levels both paths share, D the depth of the deepest label. Where all labels are as deep as that, c / D is
    the row's hierarchical precision, recall and F1 alike (Kiritchenko, Matwin and Famili 2005, without the root);
    elsewhere it is at most the smaller of the two. D is the same for every row on purpose: levels counted by the
    label that was predicted or meant would weight rows by their outcome, and proper scores would no longer be
    proper. With `calibrant.scoring.BrierScoring` the mean is strictly proper, as the last level is the label itself.

    Parameters
    ----------
    labels : sequence of str
        The labels.
    separator : str, default "/"
        What stands between the levels. Space around it does not count.

    Raises
    ------
    ConfigurationError
        No label holds the separator, a level of one is empty, or two labels are the same path.

    Examples
    --------
    >>> labels = HierarchicalLabels(["Bills/Gas", "Bills/Water", "Food"])
    >>> [(aspect.name, aspect.expected) for aspect in labels.aspects(Prediction(label="Food"), "Bills/Gas")]
    [('level 1', 'Bills'), ('level 2', 'Bills/Gas')]
    """

    structure: ClassVar[str] = "hierarchical"
    takes_separator: ClassVar[bool] = True
    separator: str = SEPARATOR

    def __init__(self, labels: Sequence[str], separator: str = SEPARATOR) -> None:
        super().__init__(labels)
        if not isinstance(separator, str) or not separator:
            raise ConfigurationError(
                f"Expected a separator of at least one character, got {separator!r}: name what stands between levels."
            )
        object.__setattr__(self, "separator", separator)
        self._check_paths()

    def _check_paths(self) -> None:
        paths: dict[tuple[str, ...], str] = {}
        for label in self.labels:
            path = self.path(label)
            if not all(path):
                raise ConfigurationError(
                    f"Expected every level of a label to hold text, got {label!r}: remove the separator "
                    f"{self.separator!r} that has nothing beside it, or name the level."
                )
            key = _key(path)
            if key in paths:
                raise ConfigurationError(
                    f"Expected distinct paths, got {label!r} and {paths[key]!r}, equal level by level: keep one of "
                    "them."
                )
            paths[key] = label
        if self.depth < 2:
            raise ConfigurationError(
                f"Expected hierarchical labels to hold the separator {self.separator!r}, got none that does, such as "
                f"{self.labels[0]!r}: name another separator, or leave the structure out."
            )

    def path(self, label: str) -> tuple[str, ...]:
        """Return the levels of a label, the outermost first."""
        return tuple(level.strip() for level in label.split(self.separator))

    def record(self) -> Any:  # noqa: ANN401
        """Return an object with the keys ``structure``, ``separator`` and ``labels``."""
        return {"structure": self.structure, "separator": self.separator, "labels": list(self.labels)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> LabelSet | None:
        """Return the labels of an object with these keys; None if it has others."""
        if set(record) != {"structure", "separator", "labels"}:
            return None
        return cls(record["labels"], record["separator"])

    @cached_property
    def depth(self) -> int:
        """Number of levels of the deepest label, at least 2."""
        return max(len(self.path(label)) for label in self.labels)

    def beginning(self, label: str, level: int) -> str:
        """Return the first `level` levels of a label; a label with fewer levels is returned whole.

        Raises
        ------
        KeyError
            `label` is not one of the labels, spelled as in the label set.
        """
        own = self._levels[level - 1]
        return own.values[int(own.members[self._places[label]])]

    def groups(self, level: int) -> NDArray[np.intp]:
        """Return for each label the index of its first `level` levels, shape (L,)."""
        return self._levels[level - 1].members

    def aspects(self, prediction: Prediction, answer: str) -> tuple[Aspect, ...]:
        """Return one aspect per path prefix, level by level; the last is the label itself."""
        predicted, expected = self._places[prediction.label or ""], self._places[answer]
        found = []
        for number, (values, members) in enumerate(self._levels, 1):
            is_last = number == self.depth
            groups = (
                prediction.distribution
                if is_last
                else _grouped_distribution(prediction.distribution, values, members)
            )
            value = values[members[predicted]]
            found.append(
                Aspect(
                    name=f"level {number}",
                    predicted=value,
                    expected=values[members[expected]],
                    confidence=prediction.confidence
                    if is_last
                    else _implied_confidence(prediction.confidence, groups, value),
                    distribution=groups,
                )
            )
        return tuple(found)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {label: place for place, label in enumerate(self.labels)}

    @cached_property
    def _levels(self) -> tuple[_Level, ...]:
        return (
            *(self._level(number) for number in range(1, self.depth)),
            _Level(self.labels, np.arange(len(self))),
        )

    def _level(self, number: int) -> _Level:
        seen: dict[tuple[str, ...], tuple[int, str]] = {}
        members = []
        for label in self.labels:
            path = self.path(label)
            spelled = label if len(path) <= number else self.separator.join(path[:number])
            place, _ = seen.setdefault(_key(path[:number]), (len(seen), spelled))
            members.append(place)
        return _Level(tuple(spelled for _, spelled in seen.values()), np.array(members, dtype=np.intp))


def _key(path: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(normalise_label, path))


def _implied_confidence(own: float | None, marginal: LabelDistribution | None, value: str) -> float | None:
    """Return the confidence in a rank or path prefix: at least the confidence in the label."""
    if own is None or marginal is None:
        return own
    return min(max(own, marginal.probability(value)), 1.0)


def _grouped_distribution(
    whole: LabelDistribution | None, values: tuple[str, ...], members: NDArray[np.intp]
) -> LabelDistribution | None:
    """Return the distribution over groups of labels; `members` holds each label's group index."""
    if whole is None:
        return None
    mass = np.asarray(np.bincount(members, weights=whole.probabilities), dtype=np.float64)
    measured = np.bincount(members, weights=whole.measured) > 0
    return _marginal_distribution(whole, values, _log(mass), measured)


def _log(mass: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.log(np.maximum(mass, _TINY))
    return found


def _marginal_distribution(
    whole: LabelDistribution,
    values: tuple[str, ...],
    logprobs: NDArray[np.float64],
    measured: NDArray[np.bool_],
) -> LabelDistribution:
    """Return a distribution over groups of labels, with the error bound of the original one."""
    return LabelDistribution(
        labels=values,
        logprobs=logprobs,
        measured=measured,
        joint_logprob=None,
        label_mass=whole.label_mass,
        unresolved_mass=whole.unresolved_mass,
        space=whole.space,
        error_bound=whole.error_bound,
    )


STRUCTURES: Final[dict[str, type[LabelSet]]] = {
    kind.structure: kind for kind in (LabelSet, OrdinalLabels, HierarchicalLabels)
}
"""Kinds of labels that task files and records name, by their `structure`."""


def register_labels(kind: type[LabelSet]) -> type[LabelSet]:
    """Make a kind of labels known to task files and saved records, under the name in its `structure`.

    Parameters
    ----------
    kind : type
        A subclass of `LabelSet` that is built from its labels. A task file names it with ``structure``.

    Returns
    -------
    type
        `kind`, so that this is a class decorator.

    Raises
    ------
    ConfigurationError
        Another kind has the name.

    Examples
    --------
    >>> from calibrant.core import LabelSet, register_labels
    >>> class Seasons(LabelSet):
    ...     structure = "ordinal"
    >>> try:
    ...     register_labels(Seasons)
    ... except ValueError as error:
    ...     print(str(error).partition(", got ")[2])
    'ordinal', which is that of OrdinalLabels: name another one.
    """
    register(kind, kind.structure, STRUCTURES)
    return kind


def structure_names() -> str:
    """Return the registered structures as words, such as ``'flat', 'ordinal' or 'hierarchical'``."""
    *names, last = map(repr, STRUCTURES)
    return f"{', '.join(names)} or {last}"


def structured_labels(
    labels: Sequence[str], *, structure: str = "flat", separator: str | None = None
) -> LabelSet:
    """Return a label set of the given structure.

    Parameters
    ----------
    labels : sequence of str
        The labels; from lowest to highest where they are ordinal.
    structure : str, default "flat"
        What relation they stand in: ``flat``, ``ordinal``, ``hierarchical`` or a registered one.
    separator : str, optional
        What stands between the levels of hierarchical labels, ``/`` by default; refused elsewhere.

    Raises
    ------
    ConfigurationError
        The structure does not fit the labels.
    """
    kind = STRUCTURES[structure]
    if separator is not None and not kind.takes_separator:
        raise ConfigurationError(
            f"Expected a separator only for hierarchical labels, got {separator!r} for {structure} ones: leave it out."
        )
    return kind(labels) if separator is None else kind(labels, separator)  # type: ignore[call-arg]  # it takes one
