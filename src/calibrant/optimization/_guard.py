"""Stops a search whose proposals fail: GEPA swallows what a proposer raises and goes on sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibrant.core._errors import ProviderError

MAX_FAILURES = 3


class Guard:
    """A function that is given up after three failures in a row.

    Parameters
    ----------
    function : callable
        What is called.
    name : str
        How it is called in messages.
    hint : str
        What the user can do.

    Attributes
    ----------
    error : ProviderError or None
        Set once the function was given up; `should_stop` then ends the search.
    """

    def __init__(self, function: Callable[..., Any], *, name: str, hint: str) -> None:
        self._function = function
        self._name = name
        self._hint = hint
        self._failures = 0
        self.error: ProviderError | None = None

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401  (whatever the function returns)
        """Call the function."""
        try:
            result = self._function(*arguments)
        except Exception as error:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                self.error = ProviderError(
                    f"failed {self._failures} times in a row, last: {error!r}.",
                    provider=self._name,
                    hint=self._hint,
                )
            raise
        self._failures = 0
        return result

    def should_stop(self, state: object) -> bool:  # noqa: ARG002  (GEPA's stopper signature)
        """Return whether the search should end because the function was given up."""
        return self.error is not None
