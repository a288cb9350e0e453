"""Methods for models without log-probabilities: agreement of several answers, and stated confidence."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Final, Self

import numpy as np

from calibrant.core._completion import CompletionRequest
from calibrant.core._errors import CalibrantError, ConfigurationError, LogprobsUnsupportedError, ProviderError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import (
    FloatArray,
    LabelDistribution,
    LogprobSpace,
    Outcome,
    Part,
    Prediction,
    Usage,
)
from calibrant.core._predictor import CallGroup
from calibrant.core._reported import is_number
from calibrant.inference._abilities import AnswerForm, ModelAbilities, extended
from calibrant.inference._methods import Decoding, Method, ModelSetup, ScoringChoice
from calibrant.inference._reader import Content, label_content, scored_part
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._fields import UnparsedError, field_value
from calibrant.metrics._validation import check_count

_DEFAULT_SAMPLES: Final = 10
_DEFAULT_TEMPERATURE: Final = 1.0
_FUSED_SAMPLES: Final = 3
_MOST_FUSED: Final = 10
# Changing a variant, or the rule, changes answers: the number is part of the cache keys.
_VERSION: Final = 2
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
_STATED: Final = r"(?<![\w.])(?<![0-9],)([0-9]{1,3}(?:[.,][0-9]+)?)"
_PERCENTAGE: Final = re.compile(_STATED + r"\s*(?:%|per ?cent)", re.IGNORECASE)
_BARE_NUMBER: Final = re.compile(_STATED + r"(?:\s*/\s*100)?(?!\w)")
_THOUGHT_END: Final = "</think>"
# In longer sets the schema alone has another order: the labels in every prompt would cost more than they tell.
_LABELS_NAMED: Final = 30
_NUMBER: Final = re.compile(r"\s*([0-9]+(?:[.,][0-9]+)?)\s*(%?)\s*")
_LOG = logging.getLogger("calibrant")
_HIDES: Final = ModelAbilities(gives_logprobs=False)


def check_seed(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if the option ``seed`` is not a whole number.

    Raises
    ------
    ConfigurationError
        `options` hold a seed that is no whole number.
    """
    seed = options.get("seed")
    if seed is not None and type(seed) is not int:
        raise ConfigurationError(
            f"Expected the model's option seed to be a whole number, got {seed!r}: every sample takes the next one."
        )


def _check_one_temperature(options: Mapping[str, Any], temperature: float | None) -> None:
    """Raise ConfigurationError if there is a temperature beside the one among the model's options."""
    if temperature is not None and "temperature" in options:
        raise ConfigurationError(
            f"Expected one temperature, got temperature={temperature!r} and {options['temperature']!r} among the "
            "model's options: leave out one of them."
        )


@dataclass(frozen=True, kw_only=True)
class RowAnswers:
    """Answers of one row's samples.

    Attributes
    ----------
    given : tuple of Prediction
        The answers, in the order of the questions.
    failures : tuple of ProviderError
        The failures of the other questions, in their order.
    """

    given: tuple[Prediction, ...]
    failures: tuple[ProviderError, ...]

    @property
    def attempts(self) -> int:
        """Number of calls made for the row, with failed ones and retries."""
        answered = sum(answer.attempts for answer in self.given)
        return answered + sum(failure.attempts for failure in self.failures)

    @property
    def usage(self) -> Usage:
        """Total tokens and cost of all answers, those of no use included."""
        failed = (failure.usage or Usage() for failure in self.failures)
        return sum((*(answer.usage for answer in self.given), *failed), Usage())


async def ask_together(questions: Iterable[Awaitable[Prediction]]) -> RowAnswers:
    """Await all questions concurrently, and return the answers and the provider failures.

    Raises
    ------
    CalibrantError
        A question raised anything but a `ProviderError`; the others are cancelled.
    """
    async with CallGroup() as group:
        tasks = [group.create_task(_answer(question)) for question in questions]
    found = [task.result() for task in tasks]
    return RowAnswers(
        given=tuple(answer for answer in found if isinstance(answer, Prediction)),
        failures=tuple(answer for answer in found if isinstance(answer, ProviderError)),
    )


async def _answer(question: Awaitable[Prediction]) -> Prediction | ProviderError:
    try:
        return await question
    except ProviderError as error:
        return error
    except (SystemExit, KeyboardInterrupt) as error:
        # From a task of its own, either would end the event loop, and every later call would wait for ever.
        raise CalibrantError(f"The model raised {error!r}.") from error


@dataclass(kw_only=True)
class Sampling(Method):
    """Method that samples several answers, for models without log-probabilities.

    With n_l of the k legal answers for label l, and L labels, the probability of l is
    ``(n_l + 1) / (k + L)``: additive smoothing, Laplace's rule of succession, which is the mean of the
    posterior under a uniform prior [1]_ [2]_. No label is impossible, and answers that all agree make
    ``(k + 1) / (k + L)``, not 1: with many labels a high confidence takes many samples. The label is
    the most frequent one; of equally frequent ones, the first in the label set. Agreement as a measure
    of confidence is compared with others in [3]_.

    Samples that are refusals, or that cannot be read as a label, count only in the label mass, which
    is the share of the answers that were legal labels. Samples whose calls failed count nowhere, as
    long as at least half of the samples were answered.

    Of answers that hold several labels the most frequent whole one is taken, the first given of equally
    frequent ones; its confidence is ``(n + 1) / (k + 2)``, the same rule for the question whether the answer is this
    one. Every part has the smoothed frequencies of its own values among all legal answers.

    A function as the model is handed the messages alone: it has to sample by itself.

    Attributes
    ----------
    samples : int, default 10
        Calls about each row, at least 2.
    temperature : float or None, default 1
        Sampling temperature, above 0; None leaves it to the provider. A temperature among the
        request's options comes before it.

    References
    ----------
    .. [1] P.-S. Laplace, "Mémoire sur la probabilité des causes par les événements", 1774.
    .. [2] A. Gelman et al., "Bayesian Data Analysis", 3rd edition, 2013, section 3.4.
    .. [3] M. Xiong et al., "Can LLMs Express Their Uncertainty? An Empirical Evaluation of Confidence
       Elicitation in LLMs", ICLR 2024.
    """

    samples: int = _DEFAULT_SAMPLES
    temperature: float | None = _DEFAULT_TEMPERATURE
    # True if a missing temperature is the client's own, False if it is the provider's.
    keeps_temperature: ClassVar[bool] = False

    @classmethod
    def of(cls, setup: ModelSetup, choice: ScoringChoice) -> Self:
        """Return the wished method for a setup.

        Raises
        ------
        ConfigurationError
            The samples or the temperature are out of range, there are two temperatures, or a seed is no whole number.
        """
        _check_one_temperature(setup.options, choice.temperature)
        temperature = choice.temperature
        if temperature is None:
            temperature = setup.options.get("temperature", _DEFAULT_TEMPERATURE)
        if temperature is not None and not (is_number(temperature) and temperature > 0.0):
            raise ConfigurationError(
                f"Expected a temperature above 0 to sample at, got {temperature!r}: at 0 all samples are alike."
            )
        check_seed(setup.options)
        wished = _DEFAULT_SAMPLES if choice.samples is None else choice.samples
        samples = check_count("samples", wished, low=2)
        setup = setup.with_space(LogprobSpace.SAMPLED)
        return cls(setup=setup, samples=samples, temperature=temperature)

    async def answer(self, request: CompletionRequest) -> Prediction:
        """Return the most frequent label and the smoothed frequencies of all of them.

        Raises
        ------
        ProviderError
            More than half of the samples failed, after retries; the first failure.
        """
        # Log-probabilities of single samples are left aside.
        decoding = Decoding(setup=self.setup.with_space(LogprobSpace.NONE))
        answers = await ask_together(
            decoding.answer(self.sample(request, number)) for number in range(self.samples)
        )
        if 2 * len(answers.given) < self.samples:
            failure = answers.failures[0]
            failure.attempts = answers.attempts
            failure.usage = answers.usage
            raise failure
        legal = [answer for answer in answers.given if answer.label is not None]
        if legal:
            content = self.agreement(legal, n_answers=len(answers.given))
            first = next(answer for answer in answers.given if answer.label == content["label"])
        else:  # the most frequent outcome; of equally frequent ones, the first
            content = {}
            outcomes = Counter(answer.outcome for answer in answers.given)
            ((outcome, _),) = outcomes.most_common(1)
            first = next(answer for answer in answers.given if answer.outcome is outcome)
        model = next((answer.model for answer in answers.given if answer.model is not None), None)
        return replace(first, **content, usage=answers.usage, model=model, attempts=answers.attempts)

    @property
    def calls_a_row(self) -> int:
        """Number of calls about each row, retries aside."""
        return self.samples

    def agreement(self, answers: Sequence[Prediction], *, n_answers: int) -> Content:
        """Return label, confidence, and distribution or parts, from the legal ones of `n_answers` answers."""
        labels = self.reader.labels
        given = [answer.label for answer in answers if answer.label is not None]
        weights = self._weights(answers)

        def part(name: str, labels: LabelSet, given: Sequence[str], label: str | None = None) -> Part:
            """Return one part of the answer; its label is the most probable one by default."""
            best, probabilities = self._pooled(labels, given, weights)
            distribution = LabelDistribution(
                labels=labels.labels,
                logprobs=np.log(probabilities),
                measured=np.array([one in given for one in labels.labels]),
                joint_logprob=None,
                label_mass=len(answers) / n_answers,
                unresolved_mass=0.0,
                space=self.space,
                emitted=label or best,
            )
            return scored_part(name, label or best, distribution)

        if not labels.holds_several:
            only = part("", labels, given)
            return label_content(only.label, only.distribution)
        totals = dict.fromkeys(given, 0.0)
        for answer, weight in zip(given, weights, strict=True):
            totals[answer] += weight
        label = max(totals, key=totals.__getitem__)
        values = [labels.values(answer) for answer in given]
        parts = tuple(
            part(name, labels.labels_of(name), [one[name] for one in values], value)
            for name, value in labels.values(label).items()
        )
        return {"label": label, "confidence": self._whole(totals[label], len(given)), "parts": parts}

    def _weights(self, answers: Sequence[Prediction]) -> list[float]:
        """Return the weight of each answer: all count alike."""
        return [1.0] * len(answers)

    def _pooled(
        self, labels: LabelSet, given: Sequence[str], weights: Sequence[float]
    ) -> tuple[str, FloatArray]:
        """Return the most probable of given labels, and the probabilities of all, above 0, shape (L,)."""
        del weights
        counts = np.array([given.count(label) for label in labels.labels])
        return labels.labels[int(counts.argmax())], (counts + 1.0) / (len(given) + len(counts))

    def _whole(self, total: float, count: int) -> float:
        """Return the confidence in a whole answer with this weight of `count` answers."""
        return (total + 1.0) / (count + 2.0)

    def sample(self, request: CompletionRequest, number: int) -> CompletionRequest:
        """Return the request for the sample with this number, from 0."""
        options = dict(request.options)
        if self.temperature is not None or not self.keeps_temperature:
            options = {"temperature": self.temperature, **options}
        if options.get("seed") is not None:
            options["seed"] += number
        return replace(request, top_logprobs=0, options=options)

    def describe(self) -> Mapping[str, Any]:
        """Return the number of samples, the temperature and the settings of the reader, for cache keys."""
        read = self.reader.describe()
        return {
            "scoring": "sampled",
            "samples": self.samples,
            "temperature": self.temperature,
            **{name: value for name, value in read.items() if name not in {"space", "field"}},
        }


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

    samples: int = _FUSED_SAMPLES
    temperature: float | None = None
    keeps_temperature: ClassVar[bool] = True

    @classmethod
    def of(cls, setup: ModelSetup, choice: ScoringChoice) -> Self:
        """Return the wished method for a setup.

        Raises
        ------
        ConfigurationError
            The samples or the temperature are out of range, there are two temperatures, a seed is no whole number, or
            the labels are not known beforehand.
        """
        if setup.reader.labels.is_open:
            raise ConfigurationError(
                "Expected a list of the labels to spread a stated confidence over, got an open set: name the labels."
            )
        temperature = choice.temperature
        _check_one_temperature(setup.options, temperature)
        if temperature is not None and not (is_number(temperature) and temperature >= 0.0):
            raise ConfigurationError(f"Expected a temperature of at least 0, got {temperature!r}.")
        check_seed(setup.options)
        wished = _FUSED_SAMPLES if choice.samples is None else choice.samples
        samples = check_count("samples", wished, low=1, high=_MOST_FUSED)
        space = LogprobSpace.VERBALISED if samples == 1 else LogprobSpace.FUSED
        reader = replace(setup.reader, space=space, keep_tokens=False)
        return cls(setup=replace(setup, reader=reader), samples=samples, temperature=temperature)

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

    def _weights(self, answers: Sequence[Prediction]) -> list[float]:
        """Return the stated confidences, the missing ones replaced by the mean of the others."""
        stated = [stated_confidence(answer.text or "", answer.label or "") for answer in answers]
        known = [confidence for confidence in stated if confidence is not None]
        mean = sum(known) / len(known) if known else 100.5 / 101.0
        return [mean if confidence is None else confidence for confidence in stated]

    def _pooled(
        self, labels: LabelSet, given: Sequence[str], weights: Sequence[float]
    ) -> tuple[str, FloatArray]:
        """Return the first given of the most probable labels, and the mean of the answers' distributions."""
        count = len(labels.labels)
        total = np.zeros(count)
        for answer, confidence in zip(given, weights, strict=True):
            p = max(confidence, 1.0 / count)
            rest = (1.0 - p) / (count - 1)
            total += rest
            total[labels.labels.index(answer)] += p - rest
        pooled: FloatArray = total / total.sum()
        by_label = dict(zip(labels.labels, pooled, strict=True))
        best = next(label for label in given if by_label[label] >= pooled.max() - 1e-12)
        return best, pooled

    def _whole(self, total: float, count: int) -> float:
        """Return the mean of the confidences stated for an answer, where others say nothing for it."""
        return total / count

    def describe(self) -> Mapping[str, Any]:
        """Return the calls a row, the temperature and the settings of the reader, for cache keys."""
        return {**super().describe(), "scoring": self.space.value, "variants": _VERSION}


def stated_confidence(text: str, label: str) -> float | None:
    """Return the percentage stated in an answer as a probability inside (0, 1); None if there is none.

    Parameters
    ----------
    text : str
        The answer: a JSON object with the field ``confidence``, or ``confidence_percent`` where that is taken; or plain
        text with one percentage, or one number, behind the label. What stands before ``</think>`` is left out.
    label : str
        The answer's label.
    """
    said = text.rpartition(_THOUGHT_END)[2]
    value: object = _number_behind(said, label)
    for name in _NAMES:  # the last one counts
        with suppress(UnparsedError):
            value = field_value(said, name)
    is_fraction = isinstance(value, float)
    sign = ""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        if match is None:
            return None
        number, sign = match.groups()
        is_fraction = not number.isdigit()
        value = float(number.replace(",", "."))
    if not is_number(value):
        return None
    percent = value * 100.0 if is_fraction and not sign and value <= 1.0 else float(value)
    if 0.0 <= percent <= 100.0:
        return (percent + 0.5) / 101.0
    return None


def _number_behind(said: str, label: str) -> str | None:
    """Return the only percentage, or else the only number behind the label, in an answer in plain text."""
    behind = said.casefold().rpartition(label.casefold())[2]
    percentages = _PERCENTAGE.findall(behind) or _PERCENTAGE.findall(said)
    if len(percentages) == 1:
        return f"{percentages[0]} %"
    numbers = _BARE_NUMBER.findall(behind)
    is_text = not set(said) & set('{}"')
    if len(numbers) == 1 and is_text and not percentages:
        return str(numbers[0])
    return None


def with_confidence(
    response_format: Mapping[str, Any] | None, *, old: Sequence[str], new: Sequence[str]
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
    root = _reordered(schema, list(old), list(new))
    root["properties"][name] = {"type": "integer", "minimum": 0, "maximum": 100}
    root["required"] = [*root.get("required", ()), name]
    json_schema = {**response_format["json_schema"], "schema": root}
    return {**response_format, "json_schema": json_schema}, name


def _reordered(node: Any, old: list[str], new: list[str]) -> Any:  # noqa: ANN401 (any JSON value)
    if isinstance(node, Mapping):
        return {
            key: new if new and key == "enum" and value == old else _reordered(value, old, new)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_reordered(one, old, new) for one in node]
    return node


@dataclass(kw_only=True)
class AutoDecoding(Decoding):
    """Method that decodes, or asks for stated confidence if the model hides its log-probabilities.

    Until it is known which of them (`find_abilities`), it is described as decoding.

    Attributes
    ----------
    choice : ScoringChoice
        Samples and temperature of `Fused`; its scoring is None where ``auto`` is the default.
    """

    needs_logprobs: ClassVar[bool] = False
    choice: ScoringChoice

    @classmethod
    def of(cls, setup: ModelSetup, choice: ScoringChoice) -> Self:
        """Return the method for a model with what is known of it.

        Raises
        ------
        ConfigurationError
            A setting of `Fused` is out of range.
        """
        found = cls(setup=setup, choice=choice)
        if choice.samples is not None or choice.temperature is not None:
            found._fused()
        if found.is_fused:
            _tell_fused(found.name, found.calls_a_row)
        return found

    @property
    def unless_told(self) -> Decoding:
        """Itself if ``auto`` was asked for; else a method that decodes, whatever is known."""
        if self.choice.scoring == "auto":
            return self
        return Decoding(setup=self.setup, keep_features=self.keep_features, retrieval=self.retrieval)

    @property
    def is_fused(self) -> bool:
        """True if the model is known to hide its log-probabilities and no tokens are wanted.

        Those of plain text show nothing where one label begins with another one.
        """
        if self.reader.keep_tokens:
            return False
        labels = self.reader.labels
        is_text = self.reader.form is AnswerForm.TEXT and not labels.holds_several
        if is_text:
            from calibrant.logprobs._plain_text import tells_apart  # noqa: PLC0415 (most keep to schemas)

            if not tells_apart(labels.labels):
                return True
        return not self.reader.abilities.used.gives_logprobs

    @property
    def knows_abilities(self) -> bool:
        """True if it is known how the model is asked, or no answer can change that."""
        abilities = self.reader.abilities
        return abilities.known is not None or (self.reader.keep_tokens and not abilities.is_to_probe)

    @property
    def space(self) -> LogprobSpace:
        """Log-probability space of the distributions."""
        if self.is_fused:
            return self._fused().space
        return super().space

    @property
    def calls_a_row(self) -> int:
        """Number of calls about each row, retries aside."""
        return self._fused().calls_a_row if self.is_fused else 1

    def _fused(self) -> Fused:
        return Fused.of(self.setup, self.choice)

    async def probe(self, request: CompletionRequest, stored: Prediction | None = None) -> None:
        """Find out how the model is asked, unless that is known.

        A server is asked a question of ours. Any other model is told by its answer to the first row, which may be a
        stored one: without a confidence it is one more call of that row. An answer that is no label says nothing, and
        counts until the process ends as if there were log-probabilities.

        Parameters
        ----------
        request : CompletionRequest
            Request of the first row.
        stored : Prediction, optional
            Answer to it from a journal.

        Raises
        ------
        ProviderError
            A fault that every call would meet.
        """
        await super().probe(request, stored)
        abilities = self.reader.abilities
        async with abilities.asking() as is_unknown:
            says_nothing = stored is None or (stored.outcome is Outcome.OK and stored.confidence is None)
            if is_unknown and says_nothing:
                abilities.known = await self._told_by(request)
            elif is_unknown:
                abilities.known = ModelAbilities()
        if self.is_fused:
            _tell_fused(self.client.name, self.calls_a_row)

    async def _told_by(self, request: CompletionRequest) -> ModelAbilities:
        """Ask about a row, and keep the answer for it."""
        abilities = self.reader.abilities
        try:
            response, attempts = await self.calls.respond(self.client, request)
        except LogprobsUnsupportedError as error:
            failed = Prediction(label=None, outcome=Outcome.ERROR, attempts=error.attempts)
            abilities.first = request, failed
            return _HIDES
        except ProviderError as error:
            if error.systemic:
                raise
            return ModelAbilities()
        prediction = self.reader.read(response)
        abilities.first = request, replace(prediction, attempts=attempts)
        if prediction.outcome is Outcome.ERROR:  # the row is asked about again
            return ModelAbilities()
        completion = read_completion(response)
        has_any = completion.tokens is not None or bool(completion.evidence_problem)
        is_silent = prediction.outcome is Outcome.OK and prediction.confidence is None and not has_any
        return _HIDES if is_silent else ModelAbilities()

    async def answer(self, request: CompletionRequest) -> Prediction:
        """Return the prediction from a decoded answer, or from answers that state their confidence."""
        first = self.reader.abilities.take_first(request)
        answer = self._fused().answer if self.is_fused else super().answer
        if first is None:
            return await answer(request)
        if not self.is_fused and first.outcome is not Outcome.ERROR:
            return first
        try:  # the call in vain counts for its row
            found = await answer(request)
        except ProviderError as error:
            error.attempts += first.attempts
            error.usage = first.usage + (error.usage or Usage())
            raise
        return found.with_effort(attempts=first.attempts + found.attempts, usage=first.usage + found.usage)

    def describe(self) -> Mapping[str, Any]:
        """Return the settings of the method in use, for cache keys."""
        if self.is_fused:
            return self._fused().describe()
        return super().describe()


@cache
def _tell_fused(model: str, calls: int) -> None:
    """Log one line that says what a row costs on a model without log-probabilities."""
    _LOG.warning("%s gives no log-probabilities: %d calls a row, fused.", model, calls)
