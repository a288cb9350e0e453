"""Checks of answers by their embeddings: the quality gate and the coherence monitor."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core._prediction import FloatArray
from calibrant.metrics._validation import check_count, check_number
from calibrant.routing._protocol import unit_vector
from calibrant.routing._strategies import Ladder

_LOG = logging.getLogger("calibrant")
# A mean of unit vectors shorter than this is rounding.
_NO_DIRECTION: Final = 1e-9


class QualityGate:
    """Gate that rejects answers with an embedding unlike the question's; the next provider follows.

    It fails open: an answer that cannot be compared passes. Where no answer passes, the most similar one
    is taken. With a single provider there is nothing to choose, and nothing to ask it.

    Parameters
    ----------
    threshold : float
        In (0, 1]: cosine from which an answer passes. A gate that is off is no gate.

    Attributes
    ----------
    threshold : float
        As given.

    Raises
    ------
    ConfigurationError
        The threshold is not in (0, 1].

    Examples
    --------
    >>> gate = QualityGate(0.75)
    >>> round(gate.similarity([1.0, 0.0], [3.0, 4.0]), 6)
    0.6
    >>> ladder = gate.ladder()
    >>> ladder.ends_with(0.6)
    False
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = check_number("the threshold of a quality gate (none is off)", threshold, "(0, 1]")

    def similarity(self, query: ArrayLike | None, answer: ArrayLike | None) -> float | None:
        """Return the cosine of the angle between two embeddings.

        Parameters
        ----------
        query, answer : array-like of shape (d,), or None
            The embeddings of question and answer.

        Returns
        -------
        float or None
            In [-1, 1]; None where one is missing, all zeros or not finite, or their sizes differ.
        """
        first = unit_vector(query)
        second = unit_vector(answer)
        if first is None or second is None or first.shape != second.shape:
            return None
        return min(1.0, max(-1.0, float(first @ second)))

    def ladder(self) -> Ladder:
        """Return a new `Ladder` for one request; similarities, None included, are the qualities it takes."""
        return Ladder(threshold=self.threshold)


class CoherenceMonitor:
    """Monitor that compares a provider's answers with earlier ones and penalises drift.

    Coherence is the cosine of the angle between an answer's embedding and the mean of those in the
    window before it, each at length 1. It lasts for a session: nothing is stored. It measures drift, and
    where requests change their topic from one to the next, answers do so too: it suits workloads of one
    kind.

    Parameters
    ----------
    window_size : int, default 10
        Embeddings remembered per provider, at least 1.
    coherence_threshold : float, default 0.5
        In [0, 1]. Coherence below it costs a penalty, and is logged as a warning, once until the
        provider recovers. 0 never does.
    penalty_weight : float, default 0.3
        In [0, 1]: the penalty at a coherence of 0 or less.

    Raises
    ------
    ConfigurationError
        A number is out of its range.

    Examples
    --------
    >>> from calibrant.routing import CoherenceMonitor
    >>> monitor = CoherenceMonitor(coherence_threshold=0.5, penalty_weight=0.3)
    >>> [monitor.observe("small", vector) for vector in ([1, 0], [4, 3])]
    [0.0, 0.0]
    >>> round(monitor.coherence("small"), 6)
    0.8
    >>> monitor.observe("small", [-1, 0])
    0.3
    """

    def __init__(
        self, *, window_size: int = 10, coherence_threshold: float = 0.5, penalty_weight: float = 0.3
    ) -> None:
        self._size = check_count("window_size", window_size, low=1)
        self._threshold = check_number("coherence_threshold", coherence_threshold, "[0, 1]")
        self._weight = check_number("penalty_weight", penalty_weight, "[0, 1]")
        self._histories: dict[str, _AnswerHistory] = {}

    def observe(self, provider: str, embedding: ArrayLike | None) -> float:
        """Record an answer and return its penalty.

        Parameters
        ----------
        provider : str
            Name of the provider that answered.
        embedding : array-like of shape (d,), or None
            The answer as a vector. One that is missing, all zeros, not finite or of another size than
            the provider's earlier ones is ignored.

        Returns
        -------
        float
            In [0, `penalty_weight`]: `penalty_weight` times the share of the threshold that coherence
            lacks. 0 for a first answer and for an ignored one.
        """
        vector = unit_vector(embedding)
        if vector is None:
            return 0.0
        history = self._histories.setdefault(provider, _AnswerHistory(deque(maxlen=self._size)))
        if history.window and history.window[0].shape != vector.shape:
            return 0.0
        usual = np.mean(history.window, axis=0) if history.window else np.zeros_like(vector)
        length = float(np.linalg.norm(usual))
        history.window.append(vector)
        if length < _NO_DIRECTION:  # the first answer, or earlier ones that cancel each other out
            return 0.0
        history.coherence = min(1.0, max(-1.0, float(vector @ usual) / length))
        return self._penalty(provider, history, history.coherence)

    def coherence(self, provider: str) -> float | None:
        """Return the similarity of a provider's last answer to earlier ones, in [-1, 1].

        None before its second answer.
        """
        history = self._histories.get(provider)
        return None if history is None else history.coherence

    def _penalty(self, provider: str, history: _AnswerHistory, coherence: float) -> float:
        if coherence >= self._threshold or self._threshold == 0.0:
            history.warned = False
            return 0.0
        if not history.warned:
            history.warned = True
            _LOG.warning(
                "Answers of %s drift away from its earlier ones: coherence %.2f is below %g.",
                provider,
                coherence,
                self._threshold,
            )
        return self._weight * min(1.0, (self._threshold - coherence) / self._threshold)


@dataclass
class _AnswerHistory:
    """Recent answers of one provider, with its latest coherence."""

    window: deque[FloatArray]
    coherence: float | None = None
    warned: bool = False
