"""Tests of the error classes and their attributes."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrant.core import (
    CalibrantError,
    ConfigurationError,
    DataError,
    LogprobsUnavailableError,
    LogprobsUnsupportedError,
    NotFittedError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    StateError,
)


def test_every_error_is_a_calibrant_error() -> None:
    """Every error class is a CalibrantError."""
    direct = (
        ConfigurationError,
        NotFittedError,
        LogprobsUnavailableError,
        DataError,
        StateError,
        ProviderError,
    )
    assert {error.__base__ for error in direct} == {CalibrantError}
    assert {ProviderTimeoutError.__base__, RateLimitError.__base__} == {ProviderError}
    assert issubclass(ConfigurationError, ValueError)


@pytest.mark.parametrize(
    ("path", "line", "message"),
    [(None, None, "wrong"), (Path("a.csv"), None, "a.csv: wrong"), (Path("a.csv"), 7, "a.csv:7: wrong")],
)
def test_data_errors_begin_with_their_place(path: Path | None, line: int | None, message: str) -> None:
    """A DataError's message begins with path and line."""
    error = DataError("wrong", path=path, line=line)
    assert str(error) == message
    assert (error.path, error.line) == (path, line)


@pytest.mark.parametrize(
    ("status", "systemic"), [(401, True), (403, True), (404, True), (None, False), (429, False), (500, False)]
)
def test_only_permanent_faults_are_systemic(status: int | None, *, systemic: bool) -> None:
    """A refused key and an unknown model are systemic, an overload is not."""
    assert ProviderError("no", provider="p", status=status).systemic is systemic


def test_provider_errors_name_provider_and_hint() -> None:
    """A ProviderError's message has provider and hint, and `attempts` is 1."""
    error = RateLimitError("slow down", provider="openai/x", retryable=True, retry_after=2.0, hint="Wait.")
    assert str(error) == "openai/x: slow down Wait."
    assert (error.retryable, error.retry_after, error.attempts) == (True, 2.0, 1)
    assert str(ProviderError("no", provider="p")) == "p: no"


def test_server_messages_are_printable() -> None:
    """A server's text in a message is one line without escapes, and at most 2,000 characters."""
    said = "\x1b[2Jno\x1b]0;title\x07\x1b]8;;http://x\x1b\\\n\x9b31m \ud800\x00é" + "x" * 10_000
    text = str(ProviderError(said, provider="m\ud800", hint="Look there."))
    assert text == "m\ufffd: no  \ufffdé" + "x" * (2000 - 10) + "... Look there."
    text.encode()


def test_summaries_leave_out_the_hint() -> None:
    """The summary is the message without the hint."""
    assert ProviderError("slow down", provider="x", hint="Wait.").summary == "x: slow down"
    assert ProviderError("slow down", provider="x").summary == "x: slow down"


def test_unsupported_logprobs_show_the_remedy() -> None:
    """LogprobsUnsupportedError shows the lines for the task file's section of the model."""
    error = LogprobsUnsupportedError("no logprobs.", provider="x", status=400)
    error.attempts = 3
    assert error.systemic
    assert '\n\n[model]\nscoring = "fused"\n\n' in str(error)
    other = error.under('[[cascade.models]]\nname = "x"', provider="small: x")
    assert str(other).startswith("small: x: no logprobs. This model gives no token log-probabilities")
    assert '\n\n[[cascade.models]]\nname = "x"\nscoring = "fused"\n\n' in str(other)
    assert "[model]" not in str(other)
    assert (other.status, other.attempts, other.systemic) == (400, 3, True)
