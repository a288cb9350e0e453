"""Answer rules of fake models."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import ConfigurationError
from calibrant.testing._written import neighbours

Answer = str | tuple[str, float] | Mapping[str, Any] | Exception | Sequence[Any]
"""What a fake model says to one text.

``"Food"`` (certain), ``("Food", 0.8)`` (the rest spread evenly), ``{"Food": 0.8, "Rent": 0.2}``
(a distribution, the most probable label is emitted), an exception (raised), a dict with
``choices`` (returned as it is), or a list of these for successive calls; the last one stays.
Where answers hold several labels, whole answers, as JSON texts, stand in the place of labels
(see `fake_response`); the rest of a probability goes to those that differ in one part.
"""


class Rule:
    """Maps a text to the fake model's answer; thread-safe.

    Parameters
    ----------
    answers : mapping or callable
        As in `FakeClient`.
    default : Answer, optional
        For texts a mapping does not know.
    """

    def __init__(
        self, answers: Mapping[str, Answer] | Callable[..., Answer], default: Answer | None = None
    ) -> None:
        self._look_up = _look_up(answers, default)
        self._lock = threading.Lock()
        self._turns: dict[str, int] = {}

    def __call__(self, text: str, prompt: str) -> object:
        """Return the answer to this call; raise it if it is an exception."""
        answer: object = self._look_up(text, prompt)
        if isinstance(answer, list):
            with self._lock:
                turn = self._turns.get(text, 0)
                self._turns[text] = turn + 1
            answer = answer[min(turn, len(answer) - 1)]
        if isinstance(answer, Exception):
            raise answer
        return answer


def _look_up(
    answers: Mapping[str, Answer] | Callable[..., Answer], default: Answer | None
) -> Callable[[str, str], Answer]:
    if not isinstance(answers, Mapping):
        takes_prompt = len(inspect.signature(answers).parameters) > 1
        return answers if takes_prompt else lambda text, _prompt: answers(text)
    known = dict(answers)

    def look_up(text: str, _prompt: str) -> Answer:
        key = text if text in known else next((key for key in known if key in text), None)
        if key is not None:
            return known[key]
        if default is None:
            msg = f"The fake model knows no answer to {text!r}: add one, or a default."
            raise ConfigurationError(msg)
        return default

    return look_up


def distribution_of(answer: object, labels: Sequence[str]) -> tuple[str, Mapping[str, float]]:
    """Return the label an answer emits, and the weights of the labels it knows."""
    if isinstance(answer, str):
        return answer, {answer: 1.0}
    if isinstance(answer, tuple):
        label, probability = answer
        if isinstance(labels, CompositeLabels):
            others = tuple(neighbours(label, labels))
            return label, {label: probability, **dict.fromkeys(others, (1.0 - probability) / len(others))}
        rest = (1.0 - probability) / max(1, len(labels) - (label in labels))
        return label, dict.fromkeys(labels, rest) | {label: probability}
    if isinstance(answer, Mapping) and answer:
        return max(answer, key=lambda name: answer[name]), answer
    msg = (
        f"Expected a label, (label, probability), a distribution, an exception or a response, got {answer!r}."
    )
    raise ConfigurationError(msg)
