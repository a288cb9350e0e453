"""Warnings about confidence and intervals, in the same words for commands and report."""

from __future__ import annotations

from calibrant.core._prediction import LOW_LABEL_MASS, Interval


def confidence_remarks(auroc: Interval | None, *, rows: int, rows_with_low_label_mass: int) -> list[str]:
    """Return warnings about the confidences, one sentence each; empty without warnings.

    Parameters
    ----------
    auroc : Interval or None
        `auroc_interval` of the confidence; None where it is not defined. An estimate below 0.5 gets a sentence.
    rows, rows_with_low_label_mass : int
        Answered rows, and those among them with a label mass below `calibrant.core.LOW_LABEL_MASS`.
    """
    mass = _of_label_mass(rows_with_low_label_mass, rows) if rows_with_low_label_mass else ""
    ranking = "" if auroc is None or auroc.estimate >= 0.5 else _of_ranking(auroc)
    return [remark for remark in (mass, ranking) if remark]


def _of_ranking(auroc: Interval) -> str:
    figures = f"AUROC {auroc.estimate:.3f}, {auroc.level:.0%} interval {auroc.lower:.3f} to {auroc.upper:.3f}"
    pairs = (
        f"in {1.0 - auroc.estimate:.0%} of all pairs of a right and a wrong row the wrong one is the surer"
    )
    if auroc.upper < 0.5:
        return f"Confidence ranks backwards: {pairs} ({figures}). A threshold would keep the wrong answers."
    return f"Confidence does not tell right from wrong answers here: {pairs} ({figures})."


def _of_label_mass(low: int, rows: int) -> str:
    return (
        f"The model wanted to write something else on {low:,} of {rows:,} rows (label mass below {LOW_LABEL_MASS:g}): "
        "there, confidence only compares the labels with each other. Name the labels in the prompt and show the form "
        "of the answer with a placeholder, or use a stronger model."
    )


def zero_width_remark(*intervals: Interval | None) -> str:
    """Return a warning if an interval has width 0, which does not mean certainty; else empty text."""
    if all(interval is None or interval.lower < interval.upper for interval in intervals):
        return ""
    return "width 0 because all rows came out alike, as the next ones need not"
