"""Labels shown as short codes, in several orders, so that no label gains by its name or its place."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core import (
    CompletionRequest,
    ConfigurationError,
    LabelDistribution,
    LabelSet,
    LogprobSpace,
    Message,
    Outcome,
    Prediction,
    normalise_label,
)
from calibrant.inference._methods import Method
from calibrant.inference._several import Answers, ask_together
from calibrant.logprobs import enum_schema

__all__ = ["CodedMethod", "LabelCodes", "resolve_codes"]


@dataclass(frozen=True, kw_only=True)
class LabelCodes:
    """How labels are shown as codes.

    The codes stand in the prompt, one line each (``A = Business``), and the model answers with a code.
    What it prefers for the name of a label, for a code or for a place in the list is cancelled by
    asking several times, with the labels in another order each time, and averaging: the orders are
    cyclic shifts of one random order, spread evenly over it. With as many passes as labels they form a
    Latin square, in which every label stands at every place, and has every code, exactly once; more
    passes than labels would ask the same again and are not made. Which label stands beside which is
    not balanced.

    Where an answer's token log-probabilities are read, ask for at least as many alternatives as there
    are labels (``top_logprobs``), if the provider lists that many: then every code is measured.

    Attributes
    ----------
    passes : int, default 4
        Orders each row is asked in, at least 1; never more than there are labels.
    seed : int, default 0
        Seed of the random order, at least 0.
    codes : sequence of str, optional
        The codes, at least as many as labels; the first ones are used. They are distinct up to case,
        hold no white space, and none is the beginning of another, so that the first token in which
        two codes differ tells them apart. By default the capital letters, one token each, for up to
        26 labels; beyond that numbers of equal length (``00`` to ``99``, ``000`` to ``999``, ...),
        which many tokenisers write with more than one token.

    Raises
    ------
    ConfigurationError
        A value is out of range, or codes cannot be told apart.
    """

    passes: int = 4
    seed: int = 0
    codes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name, least in (("passes", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(
                    f"Expected {name} of the label codes to be a whole number of at least {least}, got {value!r}."
                )
        if self.codes is not None:
            if isinstance(self.codes, str):
                raise ConfigurationError(
                    f"Expected a list of codes, got the text {self.codes!r}: write {list(self.codes)!r:.80}."
                )
            object.__setattr__(self, "codes", tuple(self.codes))
            _check_codes(tuple(self.codes))

    def for_labels(self, labels: LabelSet) -> tuple[str, ...]:
        """Return the codes of a label set, one per place in the list; length L.

        Raises
        ------
        ConfigurationError
            There are fewer codes than labels, or a code is itself a label.
        """
        codes = tuple(_default_codes(len(labels)) if self.codes is None else self.codes)
        if len(codes) < len(labels):
            raise ConfigurationError(
                f"Expected a code for each of {len(labels)} labels, got {len(codes)} codes."
            )
        for code in codes[: len(labels)]:
            if labels.canonical(code) is not None:
                raise ConfigurationError(
                    f"Expected codes that are no labels, got {code!r}, which is both: pass other codes."
                )
        return codes[: len(labels)]

    def orders(self, n_labels: int) -> NDArray[np.int_]:
        """Return the orders the labels are shown in.

        Returns
        -------
        ndarray of int, shape (min(passes, n_labels), n_labels)
            ``[p, i]`` is the position, in the label set, of the label that pass p shows at place i.
        """
        first = np.random.default_rng(self.seed).permutation(n_labels)
        passes = min(self.passes, n_labels)
        return np.stack([np.roll(first, -(number * n_labels // passes)) for number in range(passes)])


def resolve_codes(label_codes: LabelCodes | bool) -> LabelCodes | None:
    """Return what `label_codes` stands for; None where labels are shown as they are.

    Raises
    ------
    ConfigurationError
        It is neither a `LabelCodes` nor a truth value.
    """
    if isinstance(label_codes, LabelCodes):
        return label_codes
    if not isinstance(label_codes, bool):
        raise ConfigurationError(
            f"Expected label_codes to be True, False or LabelCodes(...), got {label_codes!r}."
        )
    return LabelCodes() if label_codes else None


@dataclass(frozen=True, kw_only=True)
class CodedMethod:
    """Asks another method for codes instead of labels, in several orders, and averages what it says.

    The distribution is the arithmetic mean of the passes' distributions, after every code has been
    turned back into the label it stood for; the label is the most probable one, of equally probable
    ones the first in the label set, and its probability is the confidence, in every log-probability
    space. Label mass, unresolved mass and error bound are means too: the total variation between two
    means is at most the mean of the total variations, by the triangle inequality. Passes that end
    without a label are left out of all means. Where no pass comes with log-probabilities, the label is
    the most frequent one, without confidence.

    Attributes
    ----------
    inner : Method
        Answers with a code; it knows the codes of `label_codes`, in their order, as its labels.
    labels : LabelSet
        The legal labels.
    field_path : str
        JSON path of the label.
    label_codes : LabelCodes
        Codes and orders.
    """

    inner: Method
    labels: LabelSet
    field_path: str
    label_codes: LabelCodes
    _codes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _orders: NDArray[np.int_] = field(init=False, repr=False, compare=False)
    _mappings: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _response_format: Mapping[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        codes = self.label_codes.for_labels(self.labels)
        orders = self.label_codes.orders(len(self.labels))
        object.__setattr__(self, "_codes", codes)
        object.__setattr__(self, "_orders", orders)
        object.__setattr__(self, "_mappings", tuple(self._mapping(codes, order) for order in orders))
        object.__setattr__(self, "_response_format", enum_schema(codes, self.field_path))

    def _mapping(self, codes: tuple[str, ...], order: NDArray[np.int_]) -> str:
        lines = (
            f"{code} = {' '.join(self.labels[label].split())}"
            for code, label in zip(codes, order.tolist(), strict=True)
        )
        return "\n".join((f'In "{self.field_path}", write the code of a label instead of the label:', *lines))

    @property
    def space(self) -> LogprobSpace:
        """The inner method's."""
        return self.inner.space

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the most probable label on average, and the mean distribution.

        Raises
        ------
        ProviderError
            A pass failed; the first failure.
        """
        answers = await ask_together(
            self.inner.predict(
                replace(
                    request,
                    messages=_with_mapping(request.messages, mapping),
                    response_format=self._response_format,
                )
            )
            for mapping in self._mappings
        )
        if answers.failures:
            raise answers.failure()
        legal = [
            (order, answer)
            for order, answer in zip(self._orders, answers.given, strict=True)
            if answer.outcome is Outcome.OK
        ]
        if not legal:
            ended = answers.without_label()
            return replace(ended, reason=f"label codes: {ended.reason}")
        return self._averaged(legal, answers)

    def _averaged(self, legal: Sequence[tuple[NDArray[np.int_], Prediction]], answers: Answers) -> Prediction:
        measured = [
            (order, answer.distribution) for order, answer in legal if answer.distribution is not None
        ]
        distribution = self._mean(measured) if measured else None
        label = self._most_frequent(legal) if distribution is None else distribution.emitted
        return Prediction(
            label=label,
            confidence=None if distribution is None or label is None else distribution.confidence(label),
            distribution=distribution,
            text=legal[-1][1].text,
            usage=answers.usage,
            model=answers.model,
            attempts=answers.attempts,
        )

    def _mean(self, found: Sequence[tuple[NDArray[np.int_], LabelDistribution]]) -> LabelDistribution:
        parts = np.zeros((len(found), len(self.labels)))
        measured = np.zeros(len(self.labels), dtype=np.bool_)
        for part, (order, one) in zip(parts, found, strict=True):
            part[order] = one.probabilities
            measured[order] |= one.measured
        # Exact sums: labels with the same probabilities in another order of passes stay equal.
        probabilities = np.array([math.fsum(shares) for shares in parts.T])
        passes = [one for _, one in found]
        spaces = {one.space for one in passes}
        bounds = [one.error_bound for one in passes if one.error_bound is not None]
        return LabelDistribution(
            labels=self.labels.labels,
            logprobs=np.log(probabilities / probabilities.sum()),
            measured=measured,
            joint_logprob=None,
            label_mass=_mean_of([one.label_mass for one in passes]),
            unresolved_mass=_mean_of([one.unresolved_mass for one in passes]),
            space=passes[0].space if len(spaces) == 1 else LogprobSpace.MIXED,
            emitted=self.labels[int(probabilities.argmax())],
            error_bound=_mean_of(bounds) if len(bounds) == len(passes) else None,
        )

    def _most_frequent(self, legal: Sequence[tuple[NDArray[np.int_], Prediction]]) -> str:
        counts = Counter(int(order[self._codes.index(answer.label or "")]) for order, answer in legal)
        return self.labels[max(range(len(self.labels)), key=lambda label: counts[label])]

    def describe(self) -> Mapping[str, Any]:
        """Return the codes, how they are shown, and what the inner method does with them."""
        return {
            "scoring": "codes",
            "labels": self.labels.labels,
            "codes": self._codes,
            "passes": len(self._mappings),
            "seed": self.label_codes.seed,
            "mapping": self._mappings[0],
            "inner": dict(self.inner.describe()),
        }


def _with_mapping(messages: tuple[Message, ...], mapping: str) -> tuple[Message, ...]:
    """Return the messages with the mapping at the end of the system message."""
    if messages and messages[0].get("role") == "system":
        system, *others = messages
        content = "\n\n".join(part for part in (system["content"], mapping) if part)
        return ({**system, "content": content}, *others)
    return ({"role": "system", "content": mapping}, *messages)


def _default_codes(n_labels: int) -> Sequence[str]:
    if n_labels <= len(string.ascii_uppercase):
        return string.ascii_uppercase
    width = len(str(n_labels - 1))
    return [f"{number:0{width}}" for number in range(n_labels)]


def _check_codes(codes: tuple[object, ...]) -> None:
    if len(codes) < 2:
        raise ConfigurationError(f"Expected a code for every label, got {len(codes)}.")
    for code in codes:
        if not isinstance(code, str) or not code or code.split() != [code]:
            raise ConfigurationError(f"Expected codes of text without white space, got {code!r}.")
    # Sorted, whatever begins with a code stands directly behind it.
    ordered = sorted(map(normalise_label, map(str, codes)))
    for one, other in pairwise(ordered):
        if other.startswith(one):
            raise ConfigurationError(
                f"Expected codes of which none is the beginning of another, up to case, got {one!r} and {other!r}."
            )


def _mean_of(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
