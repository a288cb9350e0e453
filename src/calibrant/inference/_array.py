"""Exact scoring of label arrays: every label and the array's end at each position."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from calibrant.clients._constraint import LabelArray
from calibrant.core._completion import CompletionRequest
from calibrant.core._composite import MultiLabels
from calibrant.core._errors import ConfigurationError, LogprobsUnavailableError, ProviderError
from calibrant.core._prediction import LabelDistribution, Prediction
from calibrant.core._tokens import TokenContinuation
from calibrant.inference._exact import ExactMethod, LabelScorer, RowCalls
from calibrant.inference._reader import parts_of_set
from calibrant.inference._tokens import Expected
from calibrant.logprobs._sets import ArrayPlace, read_place, set_of_places


@dataclass(kw_only=True)
class ArrayScoring(ExactMethod):
    """Exact method for label sets: greedy choice of a label or the array's end at each position.

    Two things are asked at each place, behind the labels given before: does the array go on, and if so, with which
    label? The first is read from all tokens of the model that decide it, whatever they hold besides (see `read_place`);
    the second is what `ExactScoring` would say of one label there. A label is as probable as both together. A label
    that is in the array already adds nothing to it, so that its probability is that of the end. What is the most
    probable, of the new labels and the end, is written, until that is the end or all labels are in.

    What the places say of each label and of the whole answer is what `set_of_places` makes of them.

    Attributes
    ----------
    labels : MultiLabels
        The legal labels.
    array : LabelArray
        The JSON around the labels.
    """

    labels: MultiLabels
    array: LabelArray
    _scorer: LabelScorer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._scorer = self.scorer(self.labels)

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the predicted set of labels with the confidence in each label."""
        await self.check(self.array.element.values)
        expected = await self._scorer.prepare(request, self.array.beginning(()) + self.array.separator(()))
        calls = RowCalls()
        given: list[str] = []
        places: list[ArrayPlace] = []
        async with self.client.continuing(replace(request, top_logprobs=0)) as row:
            if not isinstance(row, TokenContinuation):
                raise ConfigurationError(
                    f"{self.client.name} does not tell the log-probabilities of all tokens: use scoring='decode'."
                )
            while len(given) < len(self.labels):
                place = await self._place(row, given, calls, expected)
                if not place.labels.emitted or not place.mass:
                    return calls.unlikely(f"place {len(given) + 1} of the list: ")
                places.append(place)
                label = place.next_label
                if label is None:
                    break
                given.append(label)
        evidence = set_of_places(self.labels.labels, places)
        answer = self.labels.answer_with(given)
        return calls.predicted(
            label=answer,
            confidence=evidence.confidence,
            text=self.array.beginning(given) + self.array.behind,
            parts=parts_of_set(self.labels, answer, evidence),
        )

    async def _place(
        self, row: TokenContinuation, given: Sequence[str], calls: RowCalls, expected: Expected
    ) -> ArrayPlace:
        """Return the probabilities of each next label and of the array's end."""
        prefix = self.array.beginning(given) + self.array.separator(given)
        labels = await self._scorer.score(row, prefix, calls, expected=expected)
        return await calls.make(
            lambda: self._decision(row, given, labels), calls=self.calls, provider=self.client.name
        )

    async def _decision(
        self, row: TokenContinuation, given: Sequence[str], labels: LabelDistribution
    ) -> ArrayPlace:
        """Ask the model whether the array continues after the labels chosen so far."""
        begun = self.array.beginning(given)
        more = self.array.separator(given)
        tokens = row.tokens(begun)
        # The tokens up to here are others where they hold what follows.
        others = [row.tokens(begun + behind) for behind in (f"{more}{labels.labels[0]}", self.array.behind)]
        same = len(os.path.commonprefix([tokens, *others]))  # noqa: RUF071 (no paths)
        found = await row.next_logprobs([tokens[:end] for end in range(same, len(tokens) + 1)])
        try:
            return read_place(tokens[same:], found, labels, given=given, element=self.array.element.prefix)
        except LogprobsUnavailableError as error:
            raise ProviderError(f"unusable log-probabilities: {error}", provider=self.client.name) from error

    def describe(self) -> Mapping[str, Any]:
        """Return the labels, the surrounding JSON and the common exact settings."""
        element = self.array.element
        return {
            **super().describe(),
            "several": True,
            "labels": self.labels.labels,
            "array": [self.array.opening, element.prefix, element.suffix, self.array.behind],
        }
