"""Judge of the successive answers to one request."""

from __future__ import annotations

import math


class Ladder:
    """Judge of the answers to one request, one by one, that remembers the best.

    Failed calls are not passed to it: they count neither as escalations nor as answers.

    Parameters
    ----------
    threshold : float
        Quality from which an answer is accepted.
    max_escalations : int, optional
        Answers that may be turned down before the best one so far is taken.
    max_tokens : int, optional
        Tokens that all answers together may take before the best one so far is taken.

    Attributes
    ----------
    best : int or None
        Number (from 0, in the order in which they were judged) of the best answer; None without any.
    accepted : bool
        True if that answer reached the threshold, or could not be judged.
    """

    def __init__(
        self, *, threshold: float, max_escalations: int | None = None, max_tokens: int | None = None
    ) -> None:
        self._threshold = threshold
        self._left = math.inf if max_escalations is None else max_escalations
        self._budget = math.inf if max_tokens is None else max_tokens
        self._judged = 0
        self._best_score = -math.inf
        self.best: int | None = None
        self.accepted = False

    def settles(self, quality: float | None, *, tokens: int = 0) -> bool:
        """Record an answer; return whether the request ends here, with the best answer so far.

        Parameters
        ----------
        quality : float or None
            Quality on the threshold's scale: any finite number, higher is better. None if the answer could
            not be judged, which accepts it.
        tokens : int, default 0
            Tokens of the answer.
        """
        self.accepted = quality is None or quality >= self._threshold
        if self.accepted or quality is None or quality > self._best_score:
            self.best = self._judged
            self._best_score = math.inf if quality is None else quality
        self._judged += 1
        self._budget -= tokens
        if self.accepted or self._left <= 0 or self._budget <= 0:
            return True
        self._left -= 1
        return False
