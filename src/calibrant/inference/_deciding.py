"""Prediction method of decision models, which report the probability of every option."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self, cast

import numpy as np

from calibrant.core._completion import (
    CompletionRequest,
    DecisionAnswer,
    DecisionClient,
    DecisionQuestion,
    DecisionResponse,
    QuestionKind,
)
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._labels import LabelSet, split_label_list
from calibrant.core._prediction import (
    BoolArray,
    LabelDistribution,
    LogprobSpace,
    Outcome,
    Part,
    Prediction,
    Usage,
)
from calibrant.core._structures import YES, OrdinalLabels
from calibrant.inference._methods import Method, ModelSetup
from calibrant.inference._reader import Content, label_content, parts_content

_LOG: Final = logging.getLogger("calibrant")
_MOST_OPTIONS: Final = 255
_MOST_LEVELS: Final = 10
_MOST_QUESTIONS: Final = 128
YES_NO: Final = (("no", "yes"), ("false", "true"))
_UNROUNDED: Final = 1e-6
_DECIMALS: Final = (2, 3, 4)
# What probabilities of two decimals are raised to; others to less.
_LARGEST_FLOOR: Final = 0.0025
# Rounding to two decimals moves each of n probabilities by at most half of 0.01.
_ROUNDING: Final = 0.005
_LEAST_SLACK: Final = 0.02
_DECLINED: Final = "the model declined to answer"
DEFAULT_INSTRUCTIONS: Final = "Which option describes the text?"


@dataclass(kw_only=True)
class Deciding(Method):
    """Method that asks a decision model for the probability of every label, with one call a row.

    The system message becomes the instructions of the question, the user message the text it is about. A list of all
    labels in the system message, as `label_list` writes it, becomes the descriptions of the options instead. A label
    set is a choice, an ordinal one of up to ten levels a score, and one of two labels yes and no, or true and false, a
    question of that kind; every field of an answer, and every label of `MultiLabels`, is a question of its own in the
    same call. Zeros are raised to a quarter of the last decimal that the answer is rounded to, so that
    log-probabilities stay finite, and the distribution is divided by its sum. The label is the most probable one; of
    equally probable ones, the one that the model names, or else the first.

    Attributes
    ----------
    questions : tuple of DecisionQuestion
        One for each label of an answer; their instructions follow those of the prompt.
    differing_choices : int
        Number of answers whose named option was not the most probable one.
    """

    questions: tuple[DecisionQuestion, ...] = ()
    differing_choices: int = field(default=0, init=False, repr=False, compare=False)
    # The last prompt, and the questions under it.
    _asked: tuple[str, tuple[DecisionQuestion, ...]] = field(
        default=("", ()), init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, setup: ModelSetup) -> Self:
        """Return the method for a model and its labels.

        Raises
        ------
        ConfigurationError
            The labels are not known beforehand, or are more than a question takes.
        """
        labels = setup.reader.labels
        if labels.is_open:
            raise ConfigurationError(
                "Expected a list of labels for a decision model, got an open set: name the labels."
            )
        setup = setup.with_space(LogprobSpace.DECISION)
        names = labels.parts
        if len(names) > _MOST_QUESTIONS:
            raise ConfigurationError(
                f"Expected at most {_MOST_QUESTIONS} fields or labels that are asked about one by one, got "
                f"{len(names)}: ask a chat model, or leave some out."
            )
        descriptions = _of_labels(setup.label_descriptions, labels)
        setup = replace(setup, label_descriptions=descriptions)
        questions = tuple(_described(_question(labels, name), descriptions, labels, name) for name in names)
        return cls(setup=setup, questions=questions)

    @property
    def space(self) -> LogprobSpace:
        """Space ``decision``."""
        return LogprobSpace.DECISION

    @property
    def knows_abilities(self) -> bool:
        """True: the interface says how the model answers."""
        return True

    async def answer(self, request: CompletionRequest) -> Prediction:
        """Return the prediction from the reported probabilities; a broken answer is retried like a failed call."""
        client = cast("DecisionClient", self.client)  # `choose_method` takes no other
        prompt = _content(request, "system") or DEFAULT_INSTRUCTIONS
        text = _content(request, "user")
        questions = self._questions_under(prompt)
        paid: list[Usage] = []

        async def decide() -> tuple[DecisionResponse, list[list[float] | None]]:
            try:
                decision = await client.decide(text, questions)
            except ProviderError as error:
                paid.append(error.usage or Usage())
                raise
            paid.append(decision.usage)
            return decision, [self._checked(answer) for answer in decision.answers]

        (decision, probabilities), attempts = await self.calls.make(
            decide, provider=client.name, request=request, paid=paid
        )
        usage = sum(paid, Usage())
        calls = attempts - 1 + decision.calls
        effort: dict[str, Any] = {"usage": usage, "model": decision.model, "attempts": calls}
        found: list[Content | None] = []
        for part, answer, shares in zip(self._parts, decision.answers, probabilities, strict=True):
            if answer is None or shares is None:
                found.append(None)
                continue
            label = part.options[self._best(answer)]
            found.append(label_content(label, part.distribution(label, shares)))
        return self._prediction(found, effort)

    def _questions_under(self, prompt: str) -> tuple[DecisionQuestion, ...]:
        """Return the questions with their instructions, which nearly all rows share."""
        last, asked = self._asked
        if prompt != last:
            asked = tuple(self._question_under(prompt, one) for one in self.questions)
            self._asked = prompt, asked
        return asked

    def _question_under(self, prompt: str, question: DecisionQuestion) -> DecisionQuestion:
        """Return a question with the instructions of a prompt, and the descriptions that it lists."""
        labels = self.reader.labels
        instructions = prompt
        if not labels.holds_several:
            instructions, descriptions = split_label_list(prompt, labels)
            if descriptions is not None:
                question = _described(replace(question, descriptions=()), descriptions, labels)
        instructions = instructions or DEFAULT_INSTRUCTIONS
        return replace(question, instructions=f"{instructions}{question.instructions}")

    @cached_property
    def _parts(self) -> tuple[_PartQuestion, ...]:
        """The answer to each question, as a part of a prediction."""
        labels = self.reader.labels
        pairs = zip(self.questions, labels.parts, strict=True)
        return tuple(_PartQuestion.of(question, labels.labels_of(name).labels) for question, name in pairs)

    def _checked(self, answer: DecisionAnswer | None) -> list[float] | None:
        """Return the probabilities of an answer, above 0 and with the sum 1; None for a refusal."""
        if answer is None:
            return None
        reported = answer.probabilities
        total = sum(reported)
        slack = max(_LEAST_SLACK, _ROUNDING * len(reported))
        least = min(reported, default=0.0)
        if least >= 0.0 and abs(total - 1.0) <= slack:
            return smoothed(reported)
        # In words, as numbers of a failure are left out where failures are counted.
        got = f"{least:g}, below zero" if least < 0.0 else f"the sum {total:g}"
        raise ProviderError(
            f"broken response: expected probabilities that add up to one, got {got}.",
            provider=self.client.name,
            retryable=True,
        )

    def _best(self, answer: DecisionAnswer) -> int:
        """Return the most probable option: of equally probable ones that which the model names, else the first."""
        most = max(answer.probabilities)
        if answer.chosen is not None:
            if answer.probabilities[answer.chosen] == most:
                return answer.chosen
            self.differing_choices += 1
            if self.differing_choices == 1:
                _LOG.warning(
                    "%s names another option than the most probable one, which is taken for the label; both are kept.",
                    self.client.name,
                )
        return answer.probabilities.index(most)

    def _prediction(self, found: Sequence[Content | None], effort: Mapping[str, Any]) -> Prediction:
        """Return the prediction of one label, or of several parts; a refused part leaves the row without a label."""
        labels = self.reader.labels
        if not labels.holds_several:
            (one,) = found
            if one is None:
                return Prediction(label=None, outcome=Outcome.REFUSAL, reason=_DECLINED, **effort)
            return Prediction(**one, **effort)
        named = list(zip(labels.parts, found, strict=True))
        refused = [name for name, one in named if one is None]
        parts = tuple(Part(name=name, **one) for name, one in named if one is not None)
        if refused:
            reason = f"{_DECLINED} about {', '.join(map(repr, refused))}"
            return Prediction(label=None, outcome=Outcome.REFUSAL, reason=reason, parts=parts, **effort)
        return Prediction(**parts_content(labels, parts), **effort)

    def describe(self) -> Mapping[str, Any]:
        """Return the kinds of the questions, the legal answers and the client's settings, for cache keys."""
        described: dict[str, Any] = {"questions": [question.kind for question in self.questions]}
        if self.setup.label_descriptions:
            described["label_descriptions"] = dict(self.setup.label_descriptions)
        return {**self.reader.describe(), "scoring": "decision", **described, **self.client_settings}


@dataclass(frozen=True, kw_only=True)
class _PartQuestion:
    """One label of an answer: the options of its question, and its labels with what all their distributions share."""

    options: tuple[str, ...]
    labels: tuple[str, ...]
    places: tuple[int, ...]  # of the labels among the options
    measured: BoolArray

    @classmethod
    def of(cls, question: DecisionQuestion, labels: tuple[str, ...]) -> _PartQuestion:
        measured = np.ones(len(labels), dtype=np.bool_)
        measured.setflags(write=False)  # so that a distribution makes no copy
        places = tuple(map(question.options.index, labels))
        return cls(options=question.options, labels=labels, places=places, measured=measured)

    def distribution(self, label: str, probabilities: Sequence[float]) -> LabelDistribution:
        """Return the distribution over the labels from the probabilities of the options."""
        logprobs = np.array([math.log(probabilities[place]) for place in self.places])
        logprobs.setflags(write=False)
        return LabelDistribution(
            labels=self.labels,
            logprobs=logprobs,
            measured=self.measured,
            joint_logprob=None,
            label_mass=1.0,
            unresolved_mass=0.0,
            space=LogprobSpace.DECISION,
            emitted=label,
        )


def smoothed(reported: Sequence[float]) -> list[float]:
    """Return reported probabilities without zeros, divided by their sum.

    A zero stands for anything below half of the last decimal that all of them are rounded to, and becomes half of
    that: a quarter of the last decimal. Of probabilities that are not rounded it becomes one millionth.

    Parameters
    ----------
    reported : sequence of float, length n
        At least 0, with the sum 1 up to rounding.

    Returns
    -------
    list of float, length n
        Above 0, with the sum 1.
    """
    raised = reported
    if min(reported) < _LARGEST_FLOOR:
        floor = _floor(reported)
        raised = [max(probability, floor) for probability in reported]
    total = sum(raised)
    # Not in NumPy, whose calls take longer than these few numbers.
    return [probability / total for probability in raised]


def _floor(reported: Sequence[float]) -> float:
    """Return a quarter of the last decimal that all probabilities are rounded to."""
    for decimals in _DECIMALS:
        if all(abs(one - round(one, decimals)) < _UNROUNDED for one in reported):
            return _LARGEST_FLOOR * 10.0 ** (2 - decimals)
    return _UNROUNDED


def _question(labels: LabelSet, name: str) -> DecisionQuestion:
    """Return the question about one part of an answer; its instructions follow those of the prompt."""
    options = labels.labels_of(name)
    instructions = ""
    if labels.is_set:
        instructions = f"\n\nDoes the label {name!r} apply to the text?"
    elif labels.holds_several:
        instructions = f"\n\nAnswer for the field {name!r}."
    if len(options) > _MOST_OPTIONS:
        raise ConfigurationError(
            f"Expected at most {_MOST_OPTIONS} labels for a decision model, got {len(options)}: ask a chat model, or "
            "decide between groups of labels first."
        )
    words = {label.strip().casefold(): label for label in options}
    negative = next((no for no, yes in YES_NO if words.keys() == {no, yes}), None)
    if negative is not None:
        positive = next(word for word in words if word != negative)
        asked = (words[negative], words[positive])
        return DecisionQuestion(kind="yes_no", options=asked, instructions=instructions)
    is_scale = options.structure == OrdinalLabels.structure and len(options) <= _MOST_LEVELS
    kind: QuestionKind = "score" if is_scale else "choice"
    return DecisionQuestion(kind=kind, options=options.labels, instructions=instructions)


def _of_labels(descriptions: Mapping[str, str], labels: LabelSet) -> dict[str, str]:
    """Return descriptions by the labels as they are spelled.

    Raises
    ------
    ConfigurationError
        One is of no label.
    """
    found = {}
    for name, words in descriptions.items():
        label = labels.label_of(name)
        if label is None:
            raise ConfigurationError(
                f"Expected label_descriptions of the labels {', '.join(map(repr, labels)):.200}, got one of "
                f"{name!r:.80}: correct the name, or leave it out."
            )
        found[label] = words
    return found


def _described(
    question: DecisionQuestion, descriptions: Mapping[str, str], labels: LabelSet, part: str = ""
) -> DecisionQuestion:
    """Return a question about a part of an answer with what its options mean, where something is said of one."""
    found = tuple(descriptions.get(_label_of(labels, part, option)) for option in question.options)
    if any(found):
        return replace(question, descriptions=found)
    return question


def _label_of(labels: LabelSet, part: str, option: str) -> str:
    """Return the label that an option stands for, as the label set lists it; no label for one that is left out."""
    if labels.is_set:
        return part if option == YES else ""
    return f"{part}={option}" if labels.holds_several else option


def _content(request: CompletionRequest, role: str) -> str:
    """Return the text of the messages of one role."""
    return "\n\n".join(message["content"] for message in request.messages if message["role"] == role)
