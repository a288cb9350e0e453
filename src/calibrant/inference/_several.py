"""Rows that take several answers: what they took, what went wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, replace

from calibrant.core._errors import CalibrantError, ProviderError
from calibrant.core._prediction import Prediction, Usage
from calibrant.inference._calls import total_usage


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the questions about one row came to.

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
        """The first model that is known to have answered."""
        return next((answer.model for answer in self.given if answer.model is not None), None)

    def failure(self) -> ProviderError:
        """Return the first failure, with the calls of the whole row as its attempts."""
        first = self.failures[0]
        first.attempts = self.attempts
        return first

    def without_label(self) -> Prediction:
        """Return the outcome most answers had, for rows in which none holds a label.

        Of outcomes that are equally frequent the one that came first is taken; text and reason are
        those of the first answer that had it.
        """
        ((outcome, _),) = Counter(answer.outcome for answer in self.given).most_common(1)
        first = next(answer for answer in self.given if answer.outcome is outcome)
        return replace(first, usage=self.usage, model=self.model, attempts=self.attempts)


async def ask_together(questions: Iterable[Awaitable[Prediction]]) -> Answers:
    """Ask all questions at the same time, and wait for every one of them.

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
    return Answers(
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
