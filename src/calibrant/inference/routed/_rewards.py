"""Answers whose worth is told later."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import replace
from typing import Final

from calibrant.routing._protocol import Observation

_MOST_TEXTS: Final = 10_000
_MOST_PER_TEXT: Final = 32


class Pending:
    """Remembers answers until somebody says what they are worth; the oldest are forgotten first.

    Parameters
    ----------
    most : int, default 10,000
        Texts that are remembered, each with its latest 32 answers.
    """

    def __init__(self, most: int = _MOST_TEXTS) -> None:
        self._most = most
        self._waiting: OrderedDict[str, deque[Observation]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, text: str, observation: Observation) -> None:
        """Remember an answer."""
        with self._lock:
            self._waiting.setdefault(text, deque(maxlen=_MOST_PER_TEXT)).append(observation)
            self._waiting.move_to_end(text)
            while len(self._waiting) > self._most:
                self._waiting.popitem(last=False)

    def take(self, text: str, quality: float) -> list[Observation]:
        """Return what is to be learnt of every answer to a text, and forget them.

        Raises
        ------
        ConfigurationError
            The quality is not in [0, 1]; nothing is forgotten.
        """
        with self._lock:
            found = [
                replace(seen, quality=quality, penalty=0.0, recovered=False)
                for seen in self._waiting.get(text, ())
            ]
            self._waiting.pop(text, None)
            return found
