"""Outlook on the promise of a search: the share of rows that it will accept, before anything is asked."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

TARGET: Final = 0.9  # what a search certifies; see `evaluation._learned.calibrate_search`
ACCURACIES: Final = (0.8, 0.9, 0.95)
TEST_ROWS: Final = (28, 30, 40, 60, 80, 120, 160, 200, 300, 400, 800, 1_600, 3_200)
# Mean share of rows that the certificate accepts, by accuracy, for each of `TEST_ROWS`; written by
# `python benchmarks/draw_outlook.py`, which says what it assumes about the confidence.
_KEPT: Final = {
    0.8: (0.00, 0.00, 0.01, 0.03, 0.04, 0.06, 0.08, 0.08, 0.13, 0.16, 0.28, 0.38, 0.44),
    0.9: (0.00, 0.06, 0.19, 0.29, 0.37, 0.48, 0.63, 0.71, 0.82, 0.87, 0.93, 0.96, 0.97),
    0.95: (0.00, 0.29, 0.54, 0.73, 0.84, 0.93, 0.98, 0.99, 1.00, 1.00, 1.00, 1.00, 1.00),
}


@dataclass(frozen=True, kw_only=True)
class PromiseOutlook:
    """Expected share of rows that a search's certificate accepts, under an assumed accuracy of the model.

    Attributes
    ----------
    accuracy : float
        Assumed accuracy of the model.
    kept : float
        Expected share of new rows that the certificate accepts, in [0, 1].
    labelled_rows_for_half : int or None
        About how many labelled rows in all, divided like these, would make it half; None if more than were computed.
    """

    accuracy: float
    kept: float
    labelled_rows_for_half: int | None


def promise_outlook(*, test_rows: int, labelled_rows: int) -> tuple[PromiseOutlook, ...]:
    """Return the outlook on a promise of `TARGET` for each of `ACCURACIES`.

    Shares are interpolated between the numbers of rows that were computed.

    Parameters
    ----------
    test_rows : int
        Rows to certify on, from 1.
    labelled_rows : int
        These, and the rows that teach.
    """
    found = []
    for accuracy in ACCURACIES:
        kept = _KEPT[accuracy]
        share = float(np.interp(test_rows, TEST_ROWS, kept))
        labels = None
        if kept[-1] >= 0.5:
            rows_for_half = float(np.interp(0.5, kept, TEST_ROWS))
            labels = 10 * ceil(rows_for_half * labelled_rows / test_rows / 10)
        found.append(PromiseOutlook(accuracy=accuracy, kept=share, labelled_rows_for_half=labels))
    return tuple(found)
