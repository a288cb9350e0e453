"""What was measured in a run, as a list of figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from calibrant.assembly._bundle import Figure

__all__ = ["figures_of", "thresholds_of"]

_Record = Mapping[str, Any]

_SHARES: Final = (("accuracy", "accuracy, all rows"), ("accuracy_answered", "accuracy, answered rows"))
_NUMBERS: Final = (
    ("macro_f1", "macro F1", "answered"),
    ("ece", "calibration error (ECE)", "rows_with_confidence"),
    ("brier", "Brier score", "rows_with_confidence"),
)
_STRUCTURED: Final = (
    ("credit", "credit", "rows"),
    ("within_one", "within one step", "rows"),
    ("mean_absolute_error", "mean absolute error, in steps", "labelled"),
    ("quadratic_kappa", "quadratic weighted kappa", "labelled"),
    ("f1", "hierarchical F1", "rows"),
)
_PARTS: Final = (
    ("credit", "credit, mean of rows"),
    ("jaccard", "Jaccard index, mean of rows"),
    ("samples_f1", "F1, mean of rows"),
    ("hamming_loss", "Hamming loss (0 is best)"),
    ("micro_f1", "micro F1"),
)
_HELD_OUT: Final = (
    ("ece_before", "ECE, as given, held out"),
    ("ece_after", "ECE, calibrated, held out"),
    ("brier_before", "Brier score, as given, held out"),
    ("brier_after", "Brier score, calibrated, held out"),
    ("brier_difference", "Brier score, calibrated minus as given"),
)


def figures_of(
    metrics: _Record | None, search: _Record | None, calibration: _Record | None
) -> tuple[Figure, ...]:
    """Return the figures in ``metrics.json``, ``result.json`` and ``calibration.json``, as far as there are any."""
    return (
        *(() if metrics is None or search is not None else _evaluated(metrics)),
        *(() if search is None else _searched(search)),
        *(() if calibration is None else _calibrated(calibration)),
    )


def thresholds_of(calibration: _Record | None) -> dict[str, Any]:
    """Return the thresholds in ``calibration.json``; all None where there is none."""
    found = calibration or {}
    return {
        "suggested": found.get("thresholds"),
        "no_suggestion": found.get("no_thresholds", ""),
        "certified": found.get("certified"),
        "certification": found.get("certification"),
    }


def _evaluated(metrics: _Record) -> Iterator[Figure]:
    for key, name in _SHARES:
        if metrics[key] is not None:
            yield _with_interval(name, metrics[key], int(metrics[key]["rows"]))
    if metrics.get("composite") is not None:
        yield from _of_parts(metrics["composite"], int(metrics["answered"]))
    for key, name, rows in _NUMBERS:
        if metrics[key] is not None:
            yield Figure(name=name, estimate=float(metrics[key]), rows=int(metrics[rows]))
    yield from _structured(metrics.get("structure") or {})


def _structured(found: _Record) -> Iterator[Figure]:
    """Yield how near answers came, where the labels have a structure."""
    for key, name, rows in _STRUCTURED:
        value = found.get(key)
        if isinstance(value, Mapping):
            yield _with_interval(name, value, int(found[rows]))
        elif value is not None:
            yield Figure(name=name, estimate=float(value), rows=int(found[rows]))
    for number, level in enumerate(found.get("levels", ()), 1):
        yield _with_interval(f"right down to level {number}", level, int(found["rows"]))


def _of_parts(composite: _Record, rows: int) -> Iterator[Figure]:
    """Yield the figures of answers that hold several labels; the accuracies above are of whole answers."""
    if composite["kind"] == "fields":
        for name, part in composite["parts"].items():
            yield _with_interval(f"accuracy of the field {name}", part["accuracy"], rows)
    for key, name in _PARTS:
        if composite[key] is not None:
            yield Figure(name=name, estimate=float(composite[key]), rows=rows)


def _searched(search: _Record) -> Iterator[Figure]:
    for key, name in (
        ("best_prompt", "test accuracy, this prompt"),
        ("seed_prompt", "test accuracy, first prompt"),
    ):
        score = search[key]
        if score["accuracy"] is not None:
            answered = int(score["rows"]) - int(score["outcomes"].get("error", 0))
            yield _with_interval(name, score["accuracy"], answered)
            if score.get("credit") is not None:
                yield _with_interval(name.replace("accuracy", "credit"), score["credit"], answered)
    comparison = search["comparison"]
    if search["improved"] and comparison is not None:
        yield _with_interval(
            "test accuracy, this minus first prompt", comparison["interval"], int(comparison["n"])
        )
        if search.get("credit_difference") is not None:
            yield _with_interval(
                "test credit, this minus first prompt", search["credit_difference"], int(comparison["n"])
            )


def _calibrated(calibration: _Record) -> Iterator[Figure]:
    held_out = calibration["held_out"]
    for key, name in _HELD_OUT:
        yield _with_interval(name, held_out[key], int(held_out["rows"]))


def _with_interval(name: str, found: _Record, rows: int) -> Figure:
    return Figure(
        name=name,
        estimate=float(found["estimate"]),
        lower=float(found["lower"]),
        upper=float(found["upper"]),
        level=float(found["level"]),
        rows=rows,
    )
