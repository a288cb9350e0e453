"""Sampling: confidence as the agreement of several answers."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core._completion import Client, CompletionRequest
from calibrant.core._errors import CalibrantError, ConfigurationError, ProviderError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LabelDistribution, LogprobSpace, Part, Prediction, Usage
from calibrant.inference._methods import Decoding, Method, ModelCalls
from calibrant.inference._reader import AnswerReader, scored_part
from calibrant.metrics._validation import check_count, is_number

_DEFAULT_SAMPLES: Final = 10
_DEFAULT_TEMPERATURE: Final = 1.0


def check_seed(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if the option ``seed`` is not a whole number.

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


def check_one_temperature(options: Mapping[str, Any], temperature: float | None) -> None:
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
        """Total tokens and cost of all answers."""
        return sum((answer.usage for answer in self.given), Usage())


async def ask_together(questions: Iterable[Awaitable[Prediction]]) -> RowAnswers:
    """Await all questions concurrently, and return the answers and the provider failures.

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
            `samples` or `temperature` is out of range, there are two temperatures, or a seed is no whole number.
        """
        check_one_temperature(options, temperature)
        if temperature is None:
            temperature = options.get("temperature", _DEFAULT_TEMPERATURE)
        if temperature is not None and not (is_number(temperature) and temperature > 0.0):
            raise ConfigurationError(
                f"Expected a temperature above 0 to sample at, got {temperature!r}: at 0 all samples are alike."
            )
        check_seed(options)
        samples = check_count("samples", _DEFAULT_SAMPLES if samples is None else samples, low=2)
        reader = replace(reader, space=LogprobSpace.SAMPLED)
        return cls(client=client, reader=reader, calls=calls, samples=samples, temperature=temperature)

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the most frequent label and the smoothed frequencies of all of them.

        Raises
        ------
        ProviderError
            More than half of the samples failed, after retries; the first failure.
        """
        # Log-probabilities of single samples are left aside.
        reader = replace(self.reader, space=LogprobSpace.NONE)
        decoding = Decoding(client=self.client, reader=reader, calls=self.calls)
        answers = await ask_together(
            decoding.predict(self.sample(request, number)) for number in range(self.samples)
        )
        if 2 * len(answers.given) < self.samples:
            failure = answers.failures[0]
            failure.attempts = answers.attempts
            raise failure
        legal = [answer for answer in answers.given if answer.label is not None]
        if legal:
            content = self.agreement(legal, n_answers=len(answers.given))
            first = next(answer for answer in answers.given if answer.label == content["label"])
        else:  # the most frequent outcome; of equally frequent ones, the first
            content, outcomes = {}, Counter(answer.outcome for answer in answers.given)
            ((outcome, _),) = outcomes.most_common(1)
            first = next(answer for answer in answers.given if answer.outcome is outcome)
        model = next((answer.model for answer in answers.given if answer.model is not None), None)
        return replace(first, **content, usage=answers.usage, model=model, attempts=answers.attempts)

    @property
    def calls_a_row(self) -> int:
        """Number of calls about each row, retries aside."""
        return self.samples

    def agreement(self, answers: Sequence[Prediction], *, n_answers: int) -> dict[str, Any]:
        """Return label, confidence, and distribution or parts, from the legal ones of `n_answers` answers."""
        found = Counter(answer.label for answer in answers if answer.label is not None)
        return _agreement(self.reader.labels, found, n_answers=n_answers)

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


def _agreement(labels: LabelSet, found: Counter[str], *, n_answers: int) -> dict[str, Any]:
    """Return the most frequent answer, its confidence, and its distribution or parts."""
    if not labels.holds_several:
        label = max(labels.labels, key=found.__getitem__)
        part = _smoothed_part("", label, labels, found, n_answers=n_answers)
        return {"label": label, "confidence": part.confidence, "distribution": part.distribution}
    label = max(found, key=found.__getitem__)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for answer, times in found.items():
        for name, value in labels.values(answer).items():
            counts[name][value] += times
    parts = tuple(
        _smoothed_part(name, value, labels.labels_of(name), counts[name], n_answers=n_answers)
        for name, value in labels.values(label).items()
    )
    return {"label": label, "confidence": (found[label] + 1) / (found.total() + 2), "parts": parts}


def _smoothed_part(name: str, label: str, labels: LabelSet, found: Counter[str], *, n_answers: int) -> Part:
    counts = np.array([found[one] for one in labels.labels])
    legal = int(counts.sum())
    return counted_part(
        name,
        label,
        labels,
        (counts + 1.0) / (legal + len(counts)),
        measured=counts > 0,
        label_mass=legal / n_answers,
        space=LogprobSpace.SAMPLED,
    )


def counted_part(  # noqa: PLR0913 (fields of a distribution)
    name: str,
    label: str,
    labels: LabelSet,
    probabilities: NDArray[np.float64],
    *,
    measured: NDArray[np.bool_],
    label_mass: float,
    space: LogprobSpace,
) -> Part:
    """Return a part of an answer whose probabilities, above 0, come from several answers."""
    distribution = LabelDistribution(
        labels=labels.labels,
        logprobs=np.log(probabilities),
        measured=measured,
        joint_logprob=None,
        label_mass=label_mass,
        unresolved_mass=0.0,
        space=space,
        emitted=label,
    )
    return scored_part(name, label, distribution)
