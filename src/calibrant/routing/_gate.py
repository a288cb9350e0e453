"""Quality gate on the angle between the embeddings of a question and its answer."""

from __future__ import annotations

from numpy.typing import ArrayLike

from calibrant.routing._checks import check_share, unit_vector
from calibrant.routing._ladder import Ladder


class QualityGate:
    """Gate that rejects an answer whose embedding points away from its question's, so that the next provider is asked.

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
        self.threshold = check_share("the threshold of a quality gate (none is off)", threshold)

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
        """Return a fresh judge of the answers to one request; it takes their similarities, None included."""
        return Ladder(threshold=self.threshold)
