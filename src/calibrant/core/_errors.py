"""Exceptions raised by calibrant.

CalibrantError
├── ConfigurationError (also ValueError)      a parameter, task file or schema is wrong
├── DataError                                 a data file or row is wrong; names file and line
├── NotFittedError                            predict before fit
├── LogprobsUnavailableError                  token log-probabilities are needed and absent
├── LimitReachedError                         a budget or deadline of the user's ended a run early
├── StateError                                a run directory or stored state cannot be used
└── ProviderError                             a model could not be reached or refused the call
    ├── ContextLengthError                prompt and text do not fit the model: the prompt's business
    ├── LogprobsUnsupportedError          the model gives no log-probabilities through its provider
    ├── ProviderTimeoutError
    └── RateLimitError

A message says what was expected, what arrived, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from calibrant.core._reported import clean_line

if TYPE_CHECKING:
    from pathlib import Path


_SYSTEMIC_STATUS = frozenset({401, 403, 404})
_LONGEST_MESSAGE: Final = 2000


class CalibrantError(Exception):
    """Base class of calibrant's exceptions."""


class ConfigurationError(CalibrantError, ValueError):
    """A parameter, schema or task file is invalid."""


class DataError(CalibrantError):
    """A data file or one of its rows cannot be used.

    Parameters
    ----------
    message : str
        What was expected, what arrived, what to do.
    path : Path, optional
        The file; put in front of the message.
    line : int, optional
        One-based line of the file.
    """

    def __init__(self, message: str, *, path: Path | None = None, line: int | None = None) -> None:
        self.path = path
        self.line = line
        place = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        super().__init__(place + message)


class NotFittedError(CalibrantError):
    """A learned object was used before ``fit``."""


class LogprobsUnavailableError(CalibrantError):
    """The answer has no usable token log-probabilities, and they were needed."""


class LimitReachedError(CalibrantError):
    """A budget or a deadline that the user set ended a run before its last row."""


class StateError(CalibrantError):
    """A run directory or another stored state is damaged, foreign or from another version."""


class ProviderError(CalibrantError):
    """A provider could not be reached, or answered with an error.

    The message can be printed and written anywhere: control characters and terminal escapes are removed, and
    2,000 characters are kept.

    Parameters
    ----------
    message : str
        Message, often from the server.
    provider : str
        Model or endpoint, as the user named it.
    status : int, optional
        HTTP status, where there was one.
    retryable : bool, default False
        True if the same call may succeed a moment later.
    retry_after : float, optional
        Seconds the server asked to wait.
    hint : str, optional
        Advice to the user; appended to the message.
    systemic : bool, default False
        True if every other call would fail the same way, whatever its status.

    Attributes
    ----------
    attempts : int
        Calls made before giving up; set by whoever retries.
    """

    def __init__(  # noqa: PLR0913  (keyword-only options)
        self,
        message: str,
        *,
        provider: str,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        hint: str | None = None,
        systemic: bool = False,
    ) -> None:
        self.provider = provider
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.hint = hint
        self._systemic = systemic
        self.attempts = 1
        text = clean_line(f"{provider}: {message}", limit=_LONGEST_MESSAGE)
        super().__init__(f"{text} {hint}" if hint else text)

    @property
    def systemic(self) -> bool:
        """True if every other call would fail the same way (bad key, unknown model)."""
        return self._systemic or self.status in _SYSTEMIC_STATUS

    @property
    def summary(self) -> str:
        """The message without the hint."""
        return str(self).removesuffix(f" {self.hint}") if self.hint else str(self)


class ContextLengthError(ProviderError):
    """Prompt and text together are longer than the model's context."""


class LogprobsUnsupportedError(ProviderError):
    """The provider never returns token log-probabilities for this model.

    Its hint shows the lines of a task file that do without them.

    Parameters
    ----------
    message : str
        Message, often from the server.
    provider : str
        Model or endpoint, as the user named it.
    status : int, optional
        HTTP status, where there was one.
    section : str, default "[model]"
        Lines of the task file that the setting belongs under.
    """

    def __init__(
        self, message: str, *, provider: str, status: int | None = None, section: str = "[model]"
    ) -> None:
        hint = self.remedy(section)
        super().__init__(message, provider=provider, status=status, hint=hint, systemic=True)

    def under(self, section: str, *, provider: str | None = None) -> Self:
        """Return the same error for another section of a task file, and for another name of the model."""
        copy = type(self)(
            self.summary.removeprefix(f"{self.provider}: "),
            provider=provider or self.provider,
            status=self.status,
            section=section,
        )
        copy.attempts = self.attempts
        return copy

    @staticmethod
    def remedy(section: str = "[model]") -> str:
        """Return advice to the user, with the lines to write under `section` of the task file."""
        return (
            "This model gives no token log-probabilities through this provider. Take the agreement of several answers "
            "for the confidence: write in the task file (in Python: Classifier(scoring='sampled'))\n\n"
            f"{section}\n"
            'scoring = "sampled"\n\n'
            "or choose a model that reports them."
        )


class ProviderTimeoutError(ProviderError):
    """No complete answer arrived in time."""


class RateLimitError(ProviderError):
    """The provider rejected the call because of a rate limit."""
