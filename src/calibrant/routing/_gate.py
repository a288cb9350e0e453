"""Whether an answer is about its question at all, by the angle between their embeddings."""

from __future__ import annotations

from numpy.typing import ArrayLike

from calibrant.core import ConfigurationError
from calibrant.routing._ladder import Ladder
from calibrant.routing._numbers import is_number, unit_vector

__all__ = ["QualityGate"]


class QualityGate:
    """Turns an answer down whose embedding points elsewhere than its question's; the next provider is asked.

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
    >>> ladder.settles(0.6)
    False
    """

    def __init__(self, threshold: float) -> None:
        if not is_number(threshold) or not 0.0 < threshold <= 1.0:
            raise ConfigurationError(
                f"Expected the threshold of a quality gate in (0, 1], got {threshold!r:.80}: "
                "leave the gate out to turn it off."
            )
        self.threshold = float(threshold)

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
        first, second = unit_vector(query), unit_vector(answer)
        if first is None or second is None or first.shape != second.shape:
            return None
        return min(1.0, max(-1.0, float(first @ second)))

    def ladder(self) -> Ladder:
        """Return what judges the answers to one request; tell it their similarities, None included."""
        return Ladder(threshold=self.threshold)
