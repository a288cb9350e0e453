"""Plain sentences about figures that a reader must not overlook; one wording for commands and report."""

from __future__ import annotations

from calibrant.core import LOW_LABEL_MASS, Interval

__all__ = ["auroc_remark", "label_mass_remark"]


def auroc_remark(found: Interval | None) -> str:
    """Return a sentence if confidence ranks right and wrong rows worse than chance, else an empty text.

    Parameters
    ----------
    found : Interval or None
        `auroc_interval` of the confidence; None where it is not defined.
    """
    if found is None or found.estimate >= 0.5:
        return ""
    figures = f"AUROC {found.estimate:.3f}, {found.level:.0%} interval {found.lower:.3f} to {found.upper:.3f}"
    pairs = (
        f"in {1.0 - found.estimate:.0%} of all pairs of a right and a wrong row the wrong one is the surer"
    )
    if found.upper < 0.5:
        return f"Confidence ranks backwards: {pairs} ({figures}). A threshold would keep the wrong answers."
    return f"Confidence does not tell right from wrong answers here: {pairs} ({figures})."


def label_mass_remark(low: int, rows: int) -> str:
    """Return the sentence about rows of low label mass.

    Parameters
    ----------
    low : int
        Rows on which the label mass is low.
    rows : int
        Rows that were answered.
    """
    return (
        f"The model wanted to write something else on {low:,} of {rows:,} rows (label mass below {LOW_LABEL_MASS:g}): "
        "there, confidence only compares the labels with each other. Name the labels in the prompt and show the form "
        "of the answer, or use a stronger model."
    )
