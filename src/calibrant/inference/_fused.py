"""Fused confidence: agreement of a few answers, together with the percentage that each of them states."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core._completion import Client, CompletionRequest
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LogprobSpace, Part, Prediction
from calibrant.inference._answer_forms import AnswerForm, extended
from calibrant.inference._methods import ModelCalls
from calibrant.inference._reader import AnswerReader
from calibrant.inference._sampling import Sampling, check_one_temperature, check_seed, counted_part
from calibrant.logprobs._fields import UnparsedError, field_value
from calibrant.metrics._validation import check_count, is_number

DEFAULT_SAMPLES: Final = 3
MOST_SAMPLES: Final = 10
# Changing a variant, or the rule, changes answers: the number is part of the cache keys.
_VERSION: Final = 1
_NAMES: Final = ("confidence", "confidence_percent")
_VARIANTS: Final = (
    'Also state in the field "{name}" how sure you are that this is right, as a whole number of percent (0 to 100).',
    'Beside it, the field "{name}" holds the probability, in percent from 0 to 100, that your answer is correct.',
    (
        "Think of arguments against your answer, too. Then write how many percent (0 to 100) you would bet on it into "
        'the field "{name}".'
    ),
)
# Of answers in plain text, which have no fields.
_TEXT_VARIANTS: Final = (
    "Behind the label, state how sure you are that it is right, as a whole number of percent (0 to 100).",
    "Behind the label, write the probability, in percent from 0 to 100, that it is correct.",
    (
        "Think of arguments against your answer, too. Behind the label, write how many percent (0 to 100) you would "
        "bet on it."
    ),
)
_PERCENTAGE: Final = re.compile(r"(?<![\w.,])([0-9]{1,3}(?:[.,][0-9]+)?)\s*(?:%|percent)", re.IGNORECASE)
# In longer sets the schema alone has another order: the labels in every prompt would cost more than they tell.
_LABELS_NAMED: Final = 30
_NUMBER: Final = re.compile(r"\s*([0-9]+(?:[.,][0-9]+)?)\s*(%?)\s*")


@dataclass(kw_only=True)
class Fused(Sampling):
    """Method that asks for label and percentage under variants of the prompt, for models without log-probabilities.

    The first call has the prompt as it is, with one sentence that asks for the percentage; the others word that
    sentence otherwise and name the labels in another order, in the schema too. An answer that states c percent
    for its label has the probability ``p = max((c + 0.5) / 101, 1 / L)`` for it, where L is the number of labels,
    and ``(1 - p) / (L - 1)`` for each other one: the percentage is read as so many successes in 100 trials, with half
    a success and half a failure added [1]_, and says nothing against its own label. The distribution is the mean over
    the answers, a linear opinion pool [2]_: answers that disagree, and answers that are not sure, both lower it. The
    label is the most probable one; of equally probable ones, the first given. That both kinds of evidence together
    rank answers better than either is reported in [3]_.

    A percentage that is missing, no number, or outside 0 to 100 counts as the mean of the row's others, and as 100
    where there are none: agreement alone then decides. A fraction such as 0.85, and the text "85 %", are understood.

    Of answers that hold several labels, the stated confidence is that of the whole: its confidence is the sum of
    ``(c + 0.5) / 101`` over the answers that are equal to it, divided by their number; every part has the rule above.

    Attributes
    ----------
    samples : int, default 3
        Calls about each row, 1 to 10; one makes the space ``verbalised``.
    temperature : float or None, default None
        Temperature of all calls; None leaves it as it is where answers are decoded: 0, or the one among `options`.

    References
    ----------
    .. [1] H. Jeffreys, "An invariant form for the prior probability in estimation problems", 1946.
    .. [2] M. Stone, "The opinion pool", Annals of Mathematical Statistics 32, 1961.
    .. [3] M. Xiong et al., "Can LLMs Express Their Uncertainty? An Empirical Evaluation of Confidence
       Elicitation in LLMs", ICLR 2024.
    """

    samples: int = DEFAULT_SAMPLES
    temperature: float | None = None
    keeps_temperature: ClassVar[bool] = True

    @classmethod
    def of(
        cls,
        client: Client,
        reader: AnswerReader,
        *,
        calls: ModelCalls,
        options: Mapping[str, Any],
        samples: int | None,
        temperature: float | None,
    ) -> Self:
        """Return the method of a classifier whose calls all have these `options`.

        Raises
        ------
        ConfigurationError
            `samples` or `temperature` is out of range, there are two temperatures, a seed is no whole number, or the
            labels are not known beforehand.
        """
        if reader.labels.is_open:
            raise ConfigurationError(
                "Expected a list of the labels to spread a stated confidence over, got an open set: name the labels."
            )
        check_one_temperature(options, temperature)
        if temperature is not None and not (is_number(temperature) and temperature >= 0.0):
            raise ConfigurationError(f"Expected a temperature of at least 0, got {temperature!r}.")
        check_seed(options)
        samples = check_count(
            "samples", DEFAULT_SAMPLES if samples is None else samples, low=1, high=MOST_SAMPLES
        )
        space = LogprobSpace.VERBALISED if samples == 1 else LogprobSpace.FUSED
        reader = replace(reader, space=space, keep_tokens=False)
        return cls(client=client, reader=reader, calls=calls, samples=samples, temperature=temperature)

    def sample(self, request: CompletionRequest, number: int) -> CompletionRequest:
        """Return the request for the call with this number, under its variant of prompt and schema.

        Raises
        ------
        ConfigurationError
            The schema's answers are no JSON objects, which a percentage could be added to.
        """
        labels = self._label_order(number)
        schema, name = with_confidence(request.response_format, old=self.reader.labels.labels, new=labels)
        is_text = self.reader.form is AnswerForm.TEXT and not self.reader.labels.holds_several
        variants = _TEXT_VARIANTS if is_text else _VARIANTS
        words = variants[number % len(variants)].format(name=name)
        if number and 1 < len(labels) <= _LABELS_NAMED:
            words += (
                f" The labels, in no particular order: {json.dumps(list(labels), ensure_ascii=False)[1:-1]}."
            )
        return replace(
            super().sample(request, number),
            messages=extended(request.messages, words),
            response_format=schema,
        )

    def _label_order(self, number: int) -> tuple[str, ...]:
        """Return the labels in the order of a variant: rotated, and in every second variant reversed, too."""
        labels = self.reader.labels.labels
        if self.reader.labels.holds_several:
            return ()
        start = number * len(labels) // self.samples
        rotated = labels[start:] + labels[:start]
        return rotated[::-1] if number % 2 else rotated

    def agreement(self, answers: Sequence[Prediction], *, n_answers: int) -> dict[str, Any]:
        """Return label, confidence, and distribution or parts, pooled over the legal ones of `n_answers` answers."""
        labels = self.reader.labels
        stated = _completed([stated_confidence(answer.text or "") for answer in answers])
        given = [answer.label for answer in answers if answer.label is not None]

        def part(name: str, labels: LabelSet, given: Sequence[str], label: str | None = None) -> Part:
            """Return one part of the answer; its label is the most probable one by default."""
            pooled = _pooled(labels, given, stated)
            best = pooled.max() - 1e-12
            return counted_part(
                name,
                label or next(one for one in given if pooled[labels.labels.index(one)] >= best),
                labels,
                pooled,
                measured=np.array([one in given for one in labels.labels]),
                label_mass=len(answers) / n_answers,
                space=self.space,
            )

        if not labels.holds_several:
            only = part("", labels, given)
            return {"label": only.label, "confidence": only.confidence, "distribution": only.distribution}
        weights = dict.fromkeys(given, 0.0)
        for answer, confidence in zip(given, stated, strict=True):
            weights[answer] += confidence
        label = max(weights, key=weights.__getitem__)
        parts = tuple(
            part(name, labels.labels_of(name), [labels.values(answer)[name] for answer in given], value)
            for name, value in labels.values(label).items()
        )
        return {"label": label, "confidence": weights[label] / len(given), "parts": parts}

    def describe(self) -> Mapping[str, Any]:
        """Return the calls a row, the temperature and the settings of the reader, for cache keys."""
        return {**super().describe(), "scoring": self.space.value, "variants": _VERSION}


def stated_confidence(text: str) -> float | None:
    """Return the percentage stated in an answer as a probability inside (0, 1); None if there is none.

    Parameters
    ----------
    text : str
        The answer: a JSON object with the field ``confidence``, or ``confidence_percent`` where that is taken; or plain
        text with one percentage.
    """
    value: object = None
    percentages = _PERCENTAGE.findall(text)
    if len(percentages) == 1:
        value = f"{percentages[0]} %"
    for name in _NAMES:  # the last one counts
        with suppress(UnparsedError):
            value = field_value(text, name)
    is_fraction, sign = isinstance(value, float), ""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        if match is None:
            return None
        number, sign = match.groups()
        is_fraction, value = not number.isdigit(), float(number.replace(",", "."))
    if not is_number(value) or not math.isfinite(value):
        return None
    percent = value * 100.0 if is_fraction and not sign and value <= 1.0 else float(value)
    return (percent + 0.5) / 101.0 if 0.0 <= percent <= 100.0 else None


def _completed(stated: Sequence[float | None]) -> list[float]:
    """Return stated confidences, the missing ones replaced by the mean of the others."""
    known = [confidence for confidence in stated if confidence is not None]
    mean = sum(known) / len(known) if known else 100.5 / 101.0
    return [mean if confidence is None else confidence for confidence in stated]


def _pooled(labels: LabelSet, given: Sequence[str], stated: Sequence[float]) -> NDArray[np.float64]:
    """Return the mean of the distributions that the answers' stated confidences make, shape (L,)."""
    count = len(labels.labels)
    total = np.zeros(count)
    for answer, confidence in zip(given, stated, strict=True):
        p = max(confidence, 1.0 / count)
        rest = (1.0 - p) / (count - 1)
        total += rest
        total[labels.labels.index(answer)] += p - rest
    pooled: NDArray[np.float64] = total / total.sum()
    return pooled


def with_confidence(
    response_format: Mapping[str, Any] | None, *, old: Sequence[str] = (), new: Sequence[str] = ()
) -> tuple[dict[str, Any] | None, str]:
    """Return a response format with a last field for the percentage, and the name of that field.

    Parameters
    ----------
    response_format : mapping or None
        As a request has it; it is not changed. Where it holds no schema, only the prompt can ask.
    old, new : sequence of str
        The labels, and the order that an enum of them gets.

    Raises
    ------
    ConfigurationError
        The schema's answers are no objects.
    """
    schema = (response_format or {}).get("json_schema", {}).get("schema")
    if response_format is None or schema is None:
        return None if response_format is None else dict(response_format), _NAMES[0]
    if not isinstance(schema.get("properties"), Mapping):
        raise ConfigurationError(
            "Expected answers that are JSON objects, which a stated confidence can be added to, got a schema of type "
            f"{schema.get('type')!r}: give the label a field with a name, or set scoring = 'sampled'."
        )
    name = next((one for one in _NAMES if one not in schema["properties"]), _NAMES[-1])
    changed = deepcopy(dict(response_format))
    root = changed["json_schema"]["schema"] = _reordered(
        changed["json_schema"]["schema"], list(old), list(new)
    )
    root["properties"] = {**root["properties"], name: {"type": "integer", "minimum": 0, "maximum": 100}}
    root["required"] = [*root.get("required", ()), name]
    return changed, name


def _reordered(node: Any, old: list[str], new: list[str]) -> Any:  # noqa: ANN401 (any JSON value)
    if isinstance(node, Mapping):
        return {
            key: new if new and key == "enum" and value == old else _reordered(value, old, new)
            for key, value in node.items()
        }
    return [_reordered(one, old, new) for one in node] if isinstance(node, list) else node
