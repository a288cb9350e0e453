"""The error tree and what each error carries."""

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
    """One except clause catches what calibrant raises on purpose."""
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
def test_a_data_error_begins_with_its_place(path: Path | None, line: int | None, message: str) -> None:
    """In the form editors and terminals turn into links."""
    error = DataError("wrong", path=path, line=line)
    assert str(error) == message
    assert (error.path, error.line) == (path, line)


@pytest.mark.parametrize(
    ("status", "systemic"), [(401, True), (403, True), (404, True), (None, False), (429, False), (500, False)]
)
def test_only_faults_every_call_would_meet_are_systemic(status: int | None, *, systemic: bool) -> None:
    """A bad key or an unknown model; not a moment's overload."""
    assert ProviderError("no", provider="p", status=status).systemic is systemic


def test_a_provider_error_names_provider_and_hint() -> None:
    """And says how often it was tried: once, unless someone retried."""
    error = RateLimitError("slow down", provider="openai/x", retryable=True, retry_after=2.0, hint="Wait.")
    assert str(error) == "openai/x: slow down Wait."
    assert (error.retryable, error.retry_after, error.attempts) == (True, 2.0, 1)
    assert str(ProviderError("no", provider="p")) == "p: no"


def test_what_a_server_said_can_be_printed_and_written() -> None:
    """On one line, without terminal escapes and half surrogate pairs, and not endless."""
    said = "\x1b[2Jno\x1b]0;title\x07\x1b]8;;http://x\x1b\\\n\x9b31m \ud800\x00é" + "x" * 10_000
    text = str(ProviderError(said, provider="m\ud800", hint="Look there."))
    assert text == "m\ufffd: no  \ufffdé" + "x" * (2000 - 10) + "... Look there."
    text.encode()


def test_the_summary_is_the_message_without_the_hint() -> None:
    """Or the message, where there is no hint."""
    assert ProviderError("slow down", provider="x", hint="Wait.").summary == "x: slow down"
    assert ProviderError("slow down", provider="x").summary == "x: slow down"


def test_missing_log_probabilities_come_with_lines_for_the_task_file() -> None:
    """Every call would fail alike; the section depends on where the model stands."""
    error = LogprobsUnsupportedError("no logprobs.", provider="x", status=400)
    error.attempts = 3
    assert error.systemic
    assert '\n\n[model]\nscoring = "sampled"\n\n' in str(error)
    other = error.under('[[cascade.models]]\nname = "x"', provider="small: x")
    assert str(other).startswith("small: x: no logprobs. This model gives no token log-probabilities")
    assert '\n\n[[cascade.models]]\nname = "x"\nscoring = "sampled"\n\n' in str(other)
    assert "[model]" not in str(other)
    assert (other.status, other.attempts, other.systemic) == (400, 3, True)
