"""Sampling: confidence as the agreement of several answers."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from calibrant.core._completion import Client, CompletionRequest
from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import CalibrantError, ConfigurationError, ProviderError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LabelDistribution, LogprobSpace, Part, Prediction, Usage
from calibrant.inference._methods import Decoding, ModelCalls, total_usage
from calibrant.inference._reader import AnswerReader

DEFAULT_SAMPLES: Final = 10
_DEFAULT_TEMPERATURE: Final = 1.0


def resolve_temperature(temperature: float | None, options: Mapping[str, Any]) -> float | None:
    """Return the sampling temperature: from `options`, else the given one, else 1.

    Raises
    ------
    ConfigurationError
        Both are given.
    """
    if "temperature" not in options:
        return _DEFAULT_TEMPERATURE if temperature is None else temperature
    own: float | None = options["temperature"]
    if temperature is not None:
        raise ConfigurationError(
            f"Expected one temperature, got temperature={temperature!r} and {own!r} among the model's options: "
            "leave out one of them."
        )
    return own


def check_seed(options: Mapping[str, Any]) -> None:
    """Check a first seed; the other samples count up from it.

    Raises
    ------
    ConfigurationError
        `options` hold a seed that is no whole number.
    """
    seed = options.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ConfigurationError(
            f"Expected the model's option seed to be a whole number, got {seed!r}: every sample takes the next one."
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
        """Calls made for the row, failed ones and retries included."""
        answered = sum(answer.attempts for answer in self.given)
        return answered + sum(failure.attempts for failure in self.failures)

    @property
    def usage(self) -> Usage:
        """Tokens and cost of all answers."""
        return total_usage(answer.usage for answer in self.given)

    @property
    def model(self) -> str | None:
        """Name of the first model that answered."""
        return next((answer.model for answer in self.given if answer.model is not None), None)

    def failure(self) -> ProviderError:
        """Return the first failure, with the calls of the whole row as its attempts."""
        first = self.failures[0]
        first.attempts = self.attempts
        return first

    def without_label(self) -> Prediction:
        """Return the most frequent outcome, for rows without a labelled answer.

        Of outcomes that are equally frequent the one that came first is taken; text and reason are
        those of the first answer that had it.
        """
        ((outcome, _),) = Counter(answer.outcome for answer in self.given).most_common(1)
        first = next(answer for answer in self.given if answer.outcome is outcome)
        return replace(first, usage=self.usage, model=self.model, attempts=self.attempts)


async def ask_together(questions: Iterable[Awaitable[Prediction]]) -> RowAnswers:
    """Make all calls concurrently and wait for every one.

    Raises
    ------
    CalibrantError
        A question raised anything but a `ProviderError`; the others are cancelled.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_answer(question)) for question in questions]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
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


@dataclass(frozen=True, kw_only=True)
class Sampling:
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
    client : Client
        Client of the calls.
    reader : AnswerReader
        Reads the responses; log-probabilities are left aside.
    samples : int, default 10
        Calls about each row, at least 2.
    temperature : float or None, default 1
        Sampling temperature, above 0; None leaves it to the provider. A temperature among the
        request's options comes before it.
    calls : ModelCalls
        Calls with gate, deadline and retries.

    Raises
    ------
    ConfigurationError
        `samples` or `temperature` is out of range.

    References
    ----------
    .. [1] P.-S. Laplace, "Mémoire sur la probabilité des causes par les événements", 1774.
    .. [2] A. Gelman et al., "Bayesian Data Analysis", 3rd edition, 2013, section 3.4.
    .. [3] M. Xiong et al., "Can LLMs Express Their Uncertainty? An Empirical Evaluation of Confidence
       Elicitation in LLMs", ICLR 2024.
    """

    client: Client
    reader: AnswerReader
    samples: int = DEFAULT_SAMPLES
    temperature: float | None = _DEFAULT_TEMPERATURE
    calls: ModelCalls = field(default_factory=ModelCalls)
    _decoding: Decoding = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        samples, temperature = self.samples, self.temperature
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
            raise ConfigurationError(f"Expected samples to be a whole number of at least 2, got {samples!r}.")
        if temperature is not None and not _is_positive(temperature):
            raise ConfigurationError(
                f"Expected a temperature above 0 to sample at, got {temperature!r}: at 0 all samples are alike."
            )
        decoding = Decoding(
            client=self.client, reader=replace(self.reader, space=LogprobSpace.NONE), calls=self.calls
        )
        object.__setattr__(self, "_decoding", decoding)

    @property
    def space(self) -> LogprobSpace:
        """Always ``sampled``."""
        return LogprobSpace.SAMPLED

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the most frequent label and the smoothed frequencies of all of them.

        Raises
        ------
        ProviderError
            More than half of the samples failed, after retries; the first failure.
        """
        answers = await ask_together(
            self._decoding.predict(self._sample(request, number)) for number in range(self.samples)
        )
        if 2 * len(answers.given) < self.samples:
            raise answers.failure()
        found = Counter(answer.label for answer in answers.given if answer.label is not None)
        if not found:
            return answers.without_label()
        labels = self.reader.labels
        if isinstance(labels, CompositeLabels):
            agreed = _composite_agreement(labels, found, n_answers=len(answers.given))
        else:
            agreed = _agreement(labels, found, n_answers=len(answers.given))
        first = next(answer for answer in answers.given if answer.label == agreed["label"])
        return replace(
            first,
            **agreed,
            usage=answers.usage,
            model=answers.model,
            attempts=answers.attempts,
        )

    def _sample(self, request: CompletionRequest, number: int) -> CompletionRequest:
        options = {"temperature": self.temperature, **request.options}
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


def _agreement(labels: LabelSet, found: Mapping[str, int], *, n_answers: int) -> dict[str, Any]:
    """Return the most frequent label, its confidence and the distribution."""
    counts = [found.get(label, 0) for label in labels]
    label = labels[counts.index(max(counts))]
    distribution = _smoothed(labels.labels, counts, label=label, n_answers=n_answers)
    return {"label": label, "confidence": distribution.confidence(label), "distribution": distribution}


def _composite_agreement(
    labels: CompositeLabels, found: Mapping[str, int], *, n_answers: int
) -> dict[str, Any]:
    """Return the most frequent whole answer, its confidence and its parts."""
    label = max(found, key=lambda answer: found[answer])
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for answer, times in found.items():
        for name, value in labels.values(answer).items():
            counts[name][value] += times
    parts = []
    for name, value in labels.values(label).items():
        own = labels.labels_of(name).labels
        distribution = _smoothed(own, [counts[name][one] for one in own], label=value, n_answers=n_answers)
        confidence = distribution.confidence(value)
        parts.append(Part(name=name, label=value, confidence=confidence, distribution=distribution))
    confidence = (found[label] + 1) / (sum(found.values()) + 2)
    return {"label": label, "confidence": confidence, "parts": tuple(parts)}


def _smoothed(
    labels: tuple[str, ...], counts: Sequence[int], *, label: str, n_answers: int
) -> LabelDistribution:
    legal = sum(counts)
    return LabelDistribution(
        labels=labels,
        logprobs=np.log((np.array(counts) + 1.0) / (legal + len(labels))),
        measured=np.array(counts) > 0,
        joint_logprob=None,
        label_mass=legal / n_answers,
        unresolved_mass=0.0,
        space=LogprobSpace.SAMPLED,
        emitted=label,
    )


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf
