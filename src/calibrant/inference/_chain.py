"""Exact scoring of several fields, each conditioned on the labels chosen before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from calibrant.clients._constraint import SchemaChoice, SchemaChoices
from calibrant.core._completion import CompletionRequest
from calibrant.core._composite import Field, FieldLabels
from calibrant.core._prediction import Part, Prediction
from calibrant.inference._exact import ExactMethod, LabelScorer, RowCalls
from calibrant.inference._reader import joint_confidence


def choices_by_field(
    labels: FieldLabels, choices: SchemaChoices
) -> tuple[tuple[Field, SchemaChoice], ...] | str:
    """Return the field of each schema choice, in writing order, or the reason if it is ambiguous."""
    by_path = {tuple((one.path or one.name).split(".")): one for one in labels.fields}
    found = [(by_path.get(choice.path), choice) for choice in choices.choices]
    pairs = tuple((one, choice) for one, choice in found if one is not None)
    if len(pairs) != len(found) or len(pairs) != len(labels.fields):
        return "the schema's choices are not the fields"
    for one, choice in pairs:
        if not {choice.take("", label) for label in one.labels.labels} <= {
            choice.before + value for value in choice.values
        }:
            return f"the schema's enum lacks some of the labels of the field {one.name!r}"
    return pairs


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
    steps : tuple of (Field, SchemaChoice)
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
        """Return the most probable label of every field, given those before it."""
        await self.check(tuple(dict.fromkeys(value for _, choice in self.steps for value in choice.values)))
        text, expected = "", []
        for (_, choice), scorer in zip(self.steps, self._scorers, strict=True):
            expected.append(await scorer.prepare(request, text + choice.before))
            text = choice.take(text, scorer.labels.labels[0])
        calls = RowCalls()
        parts: dict[str, Part] = {}
        text = ""
        async with self.client.continuing(replace(request, top_logprobs=0)) as row:
            for (one, choice), scorer, known in zip(self.steps, self._scorers, expected, strict=True):
                distribution = await scorer.score(row, text + choice.before, calls, expected=known)
                label = distribution.emitted
                if not label:
                    return calls.unlikely(f"field {one.name!r}: ")
                confidence = distribution.confidence(label)
                parts[one.name] = Part(
                    name=one.name, label=label, confidence=confidence, distribution=distribution
                )
                text = choice.take(text, label)
        ordered = tuple(parts[one.name] for one in self.labels.fields)
        return calls.predicted(
            label=self.labels.answer_of({part.name: part.label for part in ordered}),
            confidence=joint_confidence(ordered),
            text=text + self.behind,
            parts=ordered,
        )

    def describe(self) -> Mapping[str, Any]:
        """Return the fields in order and the common exact settings."""
        return {
            **super().describe(),
            "fields": [[one.name, choice.before, list(one.labels.labels)] for one, choice in self.steps],
            "order": [one.name for one in self.labels.fields],
        }
