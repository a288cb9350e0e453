"""Plain sentences about figures that a reader must not overlook; one wording for commands and report."""

from __future__ import annotations

from calibrant.core import LOW_LABEL_MASS, Interval

__all__ = ["confidence_remarks", "zero_width_remark"]


def confidence_remarks(auroc: Interval | None, *, rows: int, rows_with_low_label_mass: int) -> list[str]:
    """Return sentences about what must be known before the confidences are used; none where nothing is wrong.

    Parameters
    ----------
    auroc : Interval or None
        `auroc_interval` of the confidence; None where it is not defined. Below 0.5 it gets a sentence.
    rows, rows_with_low_label_mass : int
        Rows that were answered, and those of them on which the model would rather have written something else than any
        label.
    """
    mass = _of_label_mass(rows_with_low_label_mass, rows) if rows_with_low_label_mass else ""
    ranking = "" if auroc is None or auroc.estimate >= 0.5 else _of_ranking(auroc)
    return [remark for remark in (mass, ranking) if remark]


def _of_ranking(found: Interval) -> str:
    figures = f"AUROC {found.estimate:.3f}, {found.level:.0%} interval {found.lower:.3f} to {found.upper:.3f}"
    pairs = (
        f"in {1.0 - found.estimate:.0%} of all pairs of a right and a wrong row the wrong one is the surer"
    )
    if found.upper < 0.5:
        return f"Confidence ranks backwards: {pairs} ({figures}). A threshold would keep the wrong answers."
    return f"Confidence does not tell right from wrong answers here: {pairs} ({figures})."


def _of_label_mass(low: int, rows: int) -> str:
    return (
        f"The model wanted to write something else on {low:,} of {rows:,} rows (label mass below {LOW_LABEL_MASS:g}): "
        "there, confidence only compares the labels with each other. Name the labels in the prompt and show the form "
        "of the answer with a placeholder, or use a stronger model."
    )


def zero_width_remark(*intervals: Interval | None) -> str:
    """Return why an interval of width 0 is no certainty, if one of these is; else an empty text."""
    if all(found is None or found.lower < found.upper for found in intervals):
        return ""
    return "width 0 because all rows came out alike, as the next ones need not"
