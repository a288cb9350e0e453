"""Exact scoring of answers that hold several labels: one for each field, or an array of any length."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any

from calibrant.clients._constraint import LabelArray, SchemaChoice, array_for, choices_for
from calibrant.core._completion import CompletionRequest, ContinuingClient
from calibrant.core._composite import Field, FieldLabels, MultiLabels
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LabelDistribution, Part, Prediction
from calibrant.core._tokens import TokenContinuation
from calibrant.inference._exact import ExactMethod, Expected, LabelScorer, RowCalls
from calibrant.inference._limits import is_in_process
from calibrant.inference._reader import AnswerReader, joint_confidence, parts_of_set, scored_part
from calibrant.logprobs._sets import ArrayPlace, read_place, set_of_places


def exact_several(
    client: ContinuingClient,
    reader: AnswerReader,
    response_format: Mapping[str, Any],
    **settings: Any,  # noqa: ANN401  (tolerance and calls)
) -> ExactMethod | str:
    """Return the exact method for a model, composite labels and schema, or the reason why there is none."""
    return _exact_of(reader.labels, response_format, {"client": client, "reader": reader, **settings})


@singledispatch
def _exact_of(
    labels: LabelSet,
    response_format: Mapping[str, Any],  # noqa: ARG001
    settings: Mapping[str, Any],  # noqa: ARG001
) -> ExactMethod | str:
    return f"answers with the structure {labels.structure!r} are not scored label by label"


@_exact_of.register(FieldLabels)
def _field_chain(
    labels: FieldLabels, response_format: Mapping[str, Any], settings: Mapping[str, Any]
) -> ExactMethod | str:
    choices = choices_for(response_format)
    if choices is None:
        return (
            "the schema leaves more than the labels of the fields open, so the text before them is not known"
        )
    by_path = {tuple(one.place.split(".")): one for one in labels.fields}
    steps = tuple((by_path[one.path], one) for one in choices.choices if one.path in by_path)
    if not len(steps) == len(choices.choices) == len(labels.fields):
        return "the schema's choices are not the fields"
    for one, choice in steps:
        written = {choice.before + value for value in choice.values}
        if not {choice.take("", label) for label in one.labels.labels} <= written:
            return f"the schema's enum lacks some of the labels of the field {one.name!r}"
    return FieldChain(labels=labels, steps=steps, behind=choices.behind, **settings)


@_exact_of.register(MultiLabels)
def _array_scoring(
    labels: MultiLabels, response_format: Mapping[str, Any], settings: Mapping[str, Any]
) -> ExactMethod | str:
    if not is_in_process(settings["client"]):
        return (
            "how many labels an answer holds is left to the model, which is asked at every place whether it goes on: "
            "only an embedded engine (local/NAME, llamacpp:PATH) tells that"
        )
    array = array_for(response_format)
    if array is None:
        return "the schema leaves more open than one array of labels, or says how many it may hold"
    if not {array.element.answer(label) for label in labels.labels} <= set(array.element.answers()):
        return "the schema's enum lacks some of the labels"
    return ArrayScoring(labels=labels, array=array, **settings)


@dataclass(kw_only=True)
class FieldChain(ExactMethod):
    """Exact method for several fields, scored one after the other.

    The first field of the answer is scored as `ExactScoring` does; the answer is continued with its most probable
    label, behind which the next field is scored. So every distribution but the first is conditional on the labels
    chosen before it, and the product of the confidences is the probability of the whole answer. It need not be the
    most probable whole answer, as no beginning but the best is looked into.

    Attributes
    ----------
    labels : FieldLabels
        The fields and their labels.
    steps : sequence of (Field, SchemaChoice)
        The fields in the order in which the answer holds them, each with the JSON before it.
    behind : str
        JSON from the last label's closing quote on.
    """

    labels: FieldLabels
    steps: Sequence[tuple[Field, SchemaChoice]]
    behind: str
    _scorers: tuple[LabelScorer, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._scorers = tuple(self.scorer(one.labels) for one, _ in self.steps)

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the most probable label of each field, given the labels chosen for the fields before it."""
        values = dict.fromkeys(value for _, choice in self.steps for value in choice.values)
        calls = await self.row_calls(tuple(values))
        text, expected = "", []
        for (_, choice), scorer in zip(self.steps, self._scorers, strict=True):
            expected.append(await scorer.prepare(request, text + choice.before))
            text = choice.take(text, scorer.labels.labels[0])
        parts: dict[str, Part] = {}
        text = ""
        async with self.client.continuing(replace(request, top_logprobs=0)) as row:
            for (one, choice), scorer, known in zip(self.steps, self._scorers, expected, strict=True):
                distribution = await scorer.score(row, text + choice.before, calls, expected=known)
                label = distribution.emitted
                if not label:
                    return calls.unlikely(f"field {one.name!r}: ")
                parts[one.name] = scored_part(one.name, label, distribution)
                text = choice.take(text, label)
        ordered = tuple(parts[one.name] for one in self.labels.fields)
        return calls.predicted(
            label=self.labels.answer_of({part.name: part.label for part in ordered}),
            confidence=joint_confidence(ordered),
            text=text + self.behind,
            parts=ordered,
        )

    def describe(self) -> Mapping[str, Any]:
        """Return the fields in order and the settings of `ExactMethod`."""
        return {
            **super().describe(),
            "fields": [[one.name, choice.before, list(one.labels.labels)] for one, choice in self.steps],
            "order": [one.name for one in self.labels.fields],
        }


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
        calls = await self.row_calls(self.array.element.values)
        expected = await self._scorer.prepare(request, self.array.beginning(()) + self.array.separator(()))
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
        return await calls.make(lambda: self._decision(row, given, labels, calls))

    async def _decision(
        self, row: TokenContinuation, given: Sequence[str], labels: LabelDistribution, calls: RowCalls
    ) -> ArrayPlace:
        """Combine the distribution of the next label with the model's probability that the array ends."""
        begun = self.array.beginning(given)
        more = self.array.separator(given)
        tokens = row.tokens(begun)
        # The tokens up to here are others where they hold what follows.
        others = [row.tokens(begun + behind) for behind in (f"{more}{labels.labels[0]}", self.array.behind)]
        same = len(os.path.commonprefix([tokens, *others]))  # noqa: RUF071 (no paths)
        found = await row.next_logprobs([tokens[:end] for end in range(same, len(tokens) + 1)])
        with calls.reading():
            return read_place(tokens[same:], found, labels, given=given, element=self.array.element.prefix)

    def describe(self) -> Mapping[str, Any]:
        """Return the labels, the surrounding JSON and the settings of `ExactMethod`."""
        element = self.array.element
        return {
            **super().describe(),
            "several": True,
            "labels": self.labels.labels,
            "array": [self.array.opening, element.prefix, element.suffix, self.array.behind],
        }
