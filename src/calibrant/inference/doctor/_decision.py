"""Examination of a decision model: its answers to questions with plain answers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar

from calibrant.core._completion import DecisionAnswer, DecisionClient, DecisionQuestion
from calibrant.core._errors import ProviderError
from calibrant.inference._examinations import Finding, FindingVerdict

_INSTRUCTIONS: Final = "What is the text about?"
_SLACK: Final = 0.02
_SAME: Final = 1e-6
_Evidence = TypeVar("_Evidence")


@dataclass(frozen=True, kw_only=True)
class DecisionEvidence:
    """Answers of a decision model.

    Attributes
    ----------
    answers : tuple of DecisionAnswer
        One for each text, in order.
    expected : tuple of int
        Index of the right option of each text.
    again : DecisionAnswer
        Answer to the first text, asked once more.
    turned : DecisionAnswer
        The same with the options in reverse order.
    seconds : float
        Median duration of a call.
    is_priced : bool
        True if the cost of a call is known.
    """

    answers: tuple[DecisionAnswer, ...]
    expected: tuple[int, ...]
    again: DecisionAnswer
    turned: DecisionAnswer
    seconds: float
    is_priced: bool


class DecisionExamination:
    """Calls of an examination, one after another and without retries.

    Parameters
    ----------
    client : DecisionClient
        The model under examination.
    on_call : callable, optional
        Called with the number of every call, from 1, before it is made.
    """

    def __init__(self, client: DecisionClient, *, on_call: Callable[[int], None] | None) -> None:
        self._client = client
        self._on_call = on_call
        self._seconds: list[float] = []
        self._is_priced = True

    @property
    def made(self) -> int:
        """Number of calls made."""
        return len(self._seconds)

    async def gather(self, texts: Sequence[tuple[str, str]], options: tuple[str, ...]) -> DecisionEvidence:
        """Ask about texts with their right options, then about the first one twice more.

        Raises
        ------
        ProviderError
            A call failed, an answer does not fit its question, or a question was refused.
        """
        question = DecisionQuestion(kind="choice", options=options, instructions=_INSTRUCTIONS)
        answers = [await self._ask(text, question) for text, _ in texts]
        first, _ = texts[0]
        return DecisionEvidence(
            answers=tuple(answers),
            expected=tuple(options.index(label) for _, label in texts),
            again=await self._ask(first, question),
            turned=await self._ask(first, replace(question, options=options[::-1])),
            seconds=statistics.median(self._seconds),
            is_priced=self._is_priced,
        )

    async def _ask(self, text: str, question: DecisionQuestion) -> DecisionAnswer:
        if self._on_call is not None:
            self._on_call(self.made + 1)
        begun = time.perf_counter()
        response = await self._client.decide(text, [question])
        self._seconds.append(time.perf_counter() - begun)
        self._is_priced = self._is_priced and response.usage.cost is not None
        (answer,) = response.answers
        if answer is None:
            raise ProviderError(
                f"refused to say what this text is about: {text!r:.60}.", provider=self._client.name
            )
        return answer


Judgement: TypeAlias = tuple[FindingVerdict, str, str]
"""Verdict, detail and remedy of a probe."""


def ok(detail: str) -> Judgement:
    """Return the judgement that all is well."""
    return FindingVerdict.OK, detail, ""


def unknown(detail: str) -> Judgement:
    """Return the judgement that nothing could be found out."""
    return FindingVerdict.UNKNOWN, detail, ""


def warning(detail: str, remedy: str = "") -> Judgement:
    """Return the judgement that a model can be used with care."""
    return FindingVerdict.WARNING, detail, remedy


def problem(detail: str, remedy: str) -> Judgement:
    """Return the judgement that confidence is misleading or absent."""
    return FindingVerdict.PROBLEM, detail, remedy


def findings_of(
    probes: Iterable[Callable[[_Evidence], Judgement]], evidence: _Evidence
) -> tuple[Finding, ...]:
    """Return the finding of each probe, which has the name of its function."""
    findings = []
    for probe in probes:
        verdict, detail, remedy = probe(evidence)
        feature = probe.__name__.removeprefix("_")
        findings.append(Finding(feature=feature, verdict=verdict, detail=detail, remedy=remedy))
    return tuple(findings)


def _options(evidence: DecisionEvidence) -> Judgement:
    pairs = zip(evidence.answers, evidence.expected, strict=True)
    right = sum(_best(answer) == expected for answer, expected in pairs)
    detail = f"Every option has a probability; {right} of {len(evidence.answers)} plain questions are answered right."
    if right == len(evidence.answers):
        return ok(detail)
    return warning(detail, "Look at calibrant evaluate before you rely on the model.")


def _sum(evidence: DecisionEvidence) -> Judgement:
    totals = [sum(answer.probabilities) for answer in evidence.answers]
    farthest = max(totals, key=lambda total: abs(total - 1.0))
    is_negative = any(min(answer.probabilities) < 0 for answer in evidence.answers)
    detail = f"The probabilities of an answer add up to {farthest:.4g} where they are farthest from 1."
    if abs(farthest - 1.0) <= _SLACK and not is_negative:
        return ok(detail)
    return problem(
        "Some probabilities are negative." if is_negative else detail,
        "Such answers are refused row by row: ask whoever runs the server for probabilities of the options.",
    )


def _rounding(evidence: DecisionEvidence) -> Judgement:
    values = [value for answer in evidence.answers for value in answer.probabilities]
    for decimals in (2, 3, 4):
        if all(abs(value - round(value, decimals)) < _SAME for value in values):
            zero = 10.0**-decimals / 4
            return ok(f"The probabilities are rounded to {decimals} decimals: a zero is taken for {zero:g}.")
    return ok("The probabilities are not rounded to four decimals or fewer.")


def _order(evidence: DecisionEvidence) -> Judgement:
    first = evidence.answers[0]
    turned = evidence.turned
    if _is_tied(first) and _is_tied(turned):
        return unknown("The likeliest options are tied: there is nothing to say about their order.")
    distance = _distance(first.probabilities, turned.probabilities[::-1])
    detail = f"With the options in reverse order, {distance:.0%} of the probability is on other options."
    if _best(first) == len(turned.probabilities) - 1 - _best(turned):
        return ok(detail)
    remedy = "The label depends on the order of the labels: keep the order that labelled rows speak for."
    return warning(detail, remedy)


def _repeat(evidence: DecisionEvidence) -> Judgement:
    distance = _distance(evidence.answers[0].probabilities, evidence.again.probabilities)
    if distance < _SAME:
        return ok("The same question has the same answer.")
    return warning(f"The same question asked again moves {distance:.2%} of the probability.")


def _latency(evidence: DecisionEvidence) -> Judgement:
    return ok(f"A call took {1000 * evidence.seconds:.0f} ms (median).")


def _price(evidence: DecisionEvidence) -> Judgement:
    if evidence.is_priced:
        return ok("The cost of a call is known.")
    return warning(
        "The cost of a call is not known.",
        "Set input_cost_per_token and output_cost_per_token among the options, if calls cost anything.",
    )


DECISION_PROBES: Final = (_options, _sum, _rounding, _order, _repeat, _latency, _price)
"""Probes of a decision model."""


def _best(answer: DecisionAnswer) -> int:
    return answer.probabilities.index(max(answer.probabilities))


def _is_tied(answer: DecisionAnswer) -> bool:
    second, first = sorted(answer.probabilities)[-2:]
    return first - second < _SAME


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the total variation between two distributions, each divided by its sum, which a server may miss."""
    sums = sum(one) or 1.0, sum(other) or 1.0
    return sum(abs(a / sums[0] - b / sums[1]) for a, b in zip(one, other, strict=True)) / 2
