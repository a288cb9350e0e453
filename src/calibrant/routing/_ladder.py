"""One request's way from provider to provider: which answer is good enough, and which was the best."""

from __future__ import annotations

import math

__all__ = ["Ladder"]


class Ladder:
    """Judges the answers to one request one by one, and remembers the best.

    Failed calls are not its business: they neither count as escalations nor as answers.

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
        Whether it reached the threshold, or nobody could judge it.
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
        """Note an answer; return whether the request ends here, with the best answer so far.

        Parameters
        ----------
        quality : float or None
            What the answer is worth, on the threshold's scale: any finite number, the more the better. None
            where it could not be judged, which lets it pass.
        tokens : int, default 0
            What it took.
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
