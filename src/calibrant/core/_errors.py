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

from calibrant.core._reported import Usage, clean_line

if TYPE_CHECKING:
    from pathlib import Path


_SYSTEMIC_STATUS = frozenset({401, 403, 404})
_LONGEST_MESSAGE: Final = 2000


class CalibrantError(Exception):
    """Base class of calibrant's exceptions.

    Examples
    --------
    >>> from calibrant.core import CalibrantError, LabelSet
    >>> try:
    ...     LabelSet(["Food"])
    ... except CalibrantError as error:
    ...     print(f"{type(error).__name__}: {error}")
    ConfigurationError: Expected at least two labels, got 1: ['Food'].
    """


class ConfigurationError(CalibrantError, ValueError):
    """A parameter, schema or task file is invalid.

    Examples
    --------
    >>> from calibrant.core import ConfigurationError, Limits
    >>> try:
    ...     Limits(max_cost=0)
    ... except ConfigurationError as error:
    ...     print(error)
    Expected max_cost to be a number above 0, got 0.
    """


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

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant.core import DataError, read_examples
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     print("input,answer", file=file)
    ...     print("lunch,", file=file, flush=True)
    ...     try:
    ...         read_examples(Path(file.name))
    ...     except DataError as error:
    ...         print(error.line, str(error).partition(": ")[2].partition(" (")[0])
    2 expected text in 'answer', got an empty text
    """

    def __init__(self, message: str, *, path: Path | None = None, line: int | None = None) -> None:
        self.path = path
        self.line = line
        place = ""
        if path is not None:
            place = f"{path}:{line}: " if line is not None else f"{path}: "
        super().__init__(place + message)


class NotFittedError(CalibrantError):
    """An estimator was used before ``fit``.

    Examples
    --------
    >>> from calibrant.core import NotFittedError
    >>> from calibrant.heads import TextBaseline
    >>> try:
    ...     TextBaseline().predict(["lunch"])
    ... except NotFittedError as error:
    ...     print(error)
    Expected a fitted TextBaseline, got predict before fit: call fit first.
    """


class LogprobsUnavailableError(CalibrantError):
    """The answer has no usable token log-probabilities, and they were needed.

    Examples
    --------
    >>> from calibrant.core import LogprobsUnavailableError
    >>> from calibrant.logprobs import extract_distribution
    >>> from calibrant.testing import fake_response
    >>> try:
    ...     extract_distribution(fake_response("Food", top_logprobs=0), ["Food", "Rent"], "category")
    ... except LogprobsUnavailableError as error:
    ...     print(str(error).partition(":")[0])
    Expected token log-probabilities, got none that can be used (none were reported)
    """


class LimitReachedError(CalibrantError):
    """A budget or a deadline that the user set ended a run before its last row.

    Examples
    --------
    >>> from calibrant.core import LimitReachedError, Limits
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(["Food", "Rent"], {"lunch": "Food"}, default="Rent")
    >>> classifier = Classifier(model=fake, labels=fake.labels, field="category", limits=Limits(max_requests=1))
    >>> try:
    ...     classifier.classify_many(["lunch", "May"])
    ... except LimitReachedError as error:
    ...     print(error)
    The budget max_requests of 1 call is used up (1 row is answered).
    """


class StateError(CalibrantError):
    """Stored state, such as a run directory, is damaged, unwritable, or of another kind or version.

    Examples
    --------
    >>> import tempfile
    >>> from calibrant.core import StateError
    >>> from calibrant.store import PredictionCache
    >>> with tempfile.NamedTemporaryFile(suffix=".db") as file:
    ...     _ = file.write(b"this is no database" * 100), file.flush()
    ...     try:
    ...         PredictionCache(file.name)
    ...     except StateError as error:
    ...         print(str(error).split(": ")[1:3])
    ['expected a database for predictions, got', 'file is not a database']
    """


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
        Calls made before giving up; set by the code that retries.
    usage : Usage or None
        What those of these calls took that were answered, and whose answers could not be used; None where there were
        none. Set by the same code.
    calls : int
        Calls that the failure stands for: of several models where they were asked one after the other.
    connection_refused : bool
        True if nothing listens at the server's address.

    Examples
    --------
    >>> from calibrant.core import ProviderError
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> denied = ProviderError("invalid key.", provider="fake", status=401, hint="Set its key.")
    >>> classifier = Classifier(model=FakeClient(["Food", "Rent"], {"lunch": denied}), labels=["Food", "Rent"])
    >>> try:
    ...     classifier.classify("lunch")
    ... except ProviderError as error:
    ...     print(f"{error} (every call would fail: {error.systemic})")
    fake: invalid key. Set its key. (every call would fail: True)
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
        self.calls = 1
        self.usage: Usage | None = None
        self.connection_refused = False
        text = clean_line(f"{provider}: {message}", limit=_LONGEST_MESSAGE)
        super().__init__(f"{text} {hint}" if hint else text)

    @property
    def systemic(self) -> bool:
        """True if other calls would probably fail for the same reason, such as a bad key."""
        return self._systemic or self.status in _SYSTEMIC_STATUS

    @property
    def summary(self) -> str:
        """Error message without the hint."""
        if self.hint:
            return str(self).removesuffix(f" {self.hint}")
        return str(self)


class ContextLengthError(ProviderError):
    """Prompt and text together are longer than the model's context.

    Examples
    --------
    >>> from calibrant.core import ContextLengthError
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> too_long = ContextLengthError("9000 tokens do not fit into 8192", provider="fake")
    >>> fake = FakeClient(["Food", "Rent"], {"lunch": "Food", "novel": too_long})
    >>> classifier = Classifier(model=fake, labels=fake.labels, field="category")
    >>> [(row.outcome.value, row.reason) for row in classifier.classify_many(["lunch", "novel"])]
    [('ok', ''), ('unparsed', 'fake: 9000 tokens do not fit into 8192')]
    """


class LogprobsUnsupportedError(ProviderError):
    """The provider does not return token log-probabilities for this model.

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

    Examples
    --------
    >>> from calibrant.core import LogprobsUnsupportedError
    >>> try:
    ...     raise LogprobsUnsupportedError("unknown option logprobs", provider="fake", status=400)
    ... except LogprobsUnsupportedError as error:
    ...     print(error.summary)
    ...     print(*error.hint.splitlines()[2:4], sep=": ")
    fake: unknown option logprobs
    [model]: scoring = "fused"
    """

    def __init__(
        self, message: str, *, provider: str, status: int | None = None, section: str = "[model]"
    ) -> None:
        hint = self.remedy(section)
        super().__init__(message, provider=provider, status=status, hint=hint, systemic=True)

    def under(self, section: str, *, provider: str | None = None) -> Self:
        """Return a copy with advice for another task-file section, and for `provider` if it is given."""
        copy = type(self)(
            self.summary.removeprefix(f"{self.provider}: "),
            provider=provider or self.provider,
            status=self.status,
            section=section,
        )
        copy.attempts = self.attempts
        copy.calls = self.calls
        copy.usage = self.usage
        return copy

    @staticmethod
    def remedy(section: str = "[model]") -> str:
        """Return advice to the user, with the lines to write under `section` of the task file."""
        return (
            "This model gives no token log-probabilities through this provider. Take the agreement of three answers "
            "and their stated confidence: write in the task file (in Python: Classifier(scoring='fused'))\n\n"
            f"{section}\n"
            'scoring = "fused"\n\n'
            "or choose a model that reports them."
        )


class ProviderTimeoutError(ProviderError):
    """No complete answer arrived in time.

    Examples
    --------
    >>> from calibrant.core import ProviderTimeoutError
    >>> from calibrant.testing import FakeClient
    >>> slow = ProviderTimeoutError("no answer within 30 s", provider="fake", retryable=True)
    >>> ask = FakeClient(["Food", "Rent"], {"lunch": slow}).as_callable()
    >>> try:
    ...     ask([{"role": "user", "content": "lunch"}])
    ... except ProviderTimeoutError as error:
    ...     print(f"{error} (try again: {error.retryable})")
    fake: no answer within 30 s (try again: True)
    """


class RateLimitError(ProviderError):
    """The provider rejected the call because of a rate limit.

    Examples
    --------
    >>> from calibrant.core import RateLimitError
    >>> from calibrant.testing import FakeClient
    >>> busy = RateLimitError("slow down", provider="fake", status=429, retryable=True, retry_after=2.0)
    >>> ask = FakeClient(["Food", "Rent"], {"lunch": [busy, "Food"]}).as_callable()
    >>> try:
    ...     ask([{"role": "user", "content": "lunch"}])
    ... except RateLimitError as error:
    ...     print(f"{error} (try again after {error.retry_after} s)")
    fake: slow down (try again after 2.0 s)
    """
