"""Figures measured in a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from calibrant.assembly._bundle import Figure, rule_of
from calibrant.calibration._saved import SavedPredictions
from calibrant.core._labels import LabelSet
from calibrant.core._run_rows import UNKNOWN
from calibrant.core._search_verdicts import changed_prompt, search_verdict
from calibrant.metrics._composite import answer_summary
from calibrant.metrics._intervals import wilson_interval
from calibrant.metrics._remarks import confidence_remarks

LABELS_ANSWERED: Final = "labels answered, share of those in the rows"
_LOW_LABEL_MASS: Final = "rows with a low label mass, share of the answered ones"

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
    metrics: _Record | None,
    search: _Record | None,
    calibration: _Record | None,
    predictions: SavedPredictions,
) -> tuple[Figure, ...]:
    """Return the figures in ``metrics.json``, ``result.json`` and ``calibration.json``, as far as there are any.

    Of a run with neither of the first two, such as a batch, accuracies are counted from its predictions.
    """
    if search is not None:
        found = _searched(search)
    else:
        found = _counted(predictions) if metrics is None else _evaluated(metrics)
    return (
        *found,
        *(() if calibration is None else _calibrated(calibration)),
    )


def verdicts_of(metrics: _Record | None, search: _Record | None) -> list[str]:
    """Return in sentences what a search chose, and what the language model adds to TF-IDF."""
    if search is not None:
        final = search.get("final")
        return [*search_verdict(search), *([] if final is None else [str(final["verdict"])])]
    beside = None if metrics is None else metrics.get("baselines")
    return [] if beside is None else [str(beside["verdict"])]


def thresholds_of(calibration: _Record | None) -> dict[str, Any]:
    """Return the thresholds in ``calibration.json``; all None where there is none."""
    found = calibration or {}
    return {
        "suggested": found.get("thresholds"),
        "no_suggestion": found.get("no_thresholds", ""),
        "certified": found.get("certified"),
        "certification": found.get("certification"),
    }


def accepted_of(predictions: SavedPredictions, thresholds: _Record) -> Iterator[Figure]:
    """Yield the share of accepted rows and their accuracy.

    Nothing without a threshold.
    """
    _, least = rule_of(thresholds)
    if least is None:
        return
    taken = (
        predictions.confidence >= least
    )  # rows that are no answers have NaN, which is below every threshold
    known = taken & (predictions.correct != UNKNOWN)
    yield _share("accepted answers, share of the rows", int(taken.sum()), len(predictions))
    if known.any():
        yield _share(
            "accepted answers, accuracy", int((predictions.correct[known] == 1).sum()), int(known.sum())
        )


def answered_of(predictions: SavedPredictions, labels: LabelSet) -> Iterator[Figure]:
    """Yield the share of the occurring labels that the answers use; nothing without labelled rows."""
    answers = [None if answer is None else labels.canonical(answer) for answer in predictions.answers]
    known = [
        (answer, given)
        for answer, given, failed in zip(answers, predictions.labels, predictions.failed, strict=True)
        if answer is not None and not failed
    ]
    summary = answer_summary(labels, [answer for answer, _ in known], [given for _, given in known])
    if summary is not None:
        yield Figure(name=LABELS_ANSWERED, estimate=summary.answered_labels.share, rows=len(known))


def collapse_warning(figures: Iterable[Figure]) -> str:
    """Return a plain sentence where fewer than half of the labels in the rows were answered; else an empty text."""
    share = next((figure.estimate for figure in figures if figure.name == LABELS_ANSWERED), 1.0)
    if share >= 0.5:
        return ""
    return f"Collapsed: only {share:.0%} of the labels that occur in the rows were ever answered."


def low_mass_of(predictions: SavedPredictions) -> Iterator[Figure]:
    """Yield on which share of the rows the model wanted to write something else; nothing where on none."""
    if predictions.rows_with_low_label_mass:
        answered = len(predictions.failed) - int(np.sum(predictions.failed))
        yield _share(_LOW_LABEL_MASS, predictions.rows_with_low_label_mass, answered)


def label_mass_warning(figures: Iterable[Figure]) -> str:
    """Return a plain sentence where the model wanted to write something else on some rows; else an empty text."""
    found = next((figure for figure in figures if figure.name == _LOW_LABEL_MASS), None)
    if found is None:
        return ""
    low = round(found.estimate * found.rows)
    return " ".join(confidence_remarks(None, rows=found.rows, rows_with_low_label_mass=low))


def _share(name: str, count: int, rows: int) -> Figure:
    found = wilson_interval(count, rows)
    return Figure(
        name=name,
        estimate=count / rows,
        lower=found.lower,
        upper=found.upper,
        level=found.level,
        rows=rows,
    )


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
    beside = metrics.get("baselines")  # not in metrics of earlier versions
    if beside is not None and beside["against_text"] is not None:
        yield from _baselines(beside["scores"][1:], beside["against_text"], int(beside["rows"]))


def _baselines(
    scores: Iterable[_Record], against_text: _Record, rows: int, *, kind: str = "", of: str = "the model"
) -> Iterator[Figure]:
    """Yield the accuracy difference to TF-IDF, and the baselines' figures on the same rows."""
    yield _with_interval(
        f"{kind}accuracy, {of} minus TF-IDF", against_text["interval"], int(against_text["n"])
    )
    for score in scores:
        name = score["name"]
        yield _with_interval(f"{kind}accuracy, {name}", score["accuracy"], rows)
        yield Figure(name=f"{kind}macro F1, {name}", estimate=float(score["macro_f1"]), rows=rows)
        if score.get("answered_labels") is not None:  # not in results of earlier versions
            share = float(score["answered_labels"]["share"])
            yield Figure(name=f"{kind}{LABELS_ANSWERED}, {name}", estimate=share, rows=rows)


def _structured(found: _Record) -> Iterator[Figure]:
    """Yield the distances of answers from true labels, for labels on a scale or in a tree."""
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


def _counted(predictions: SavedPredictions) -> Iterator[Figure]:
    labelled = np.array([answer is not None for answer in predictions.answers], dtype=np.bool_)
    right = int((predictions.correct == 1).sum())
    for (_, name), rows in zip(_SHARES, (labelled, labelled & ~predictions.failed), strict=True):
        if rows.any():
            yield _share(name, right, int(rows.sum()))


def _searched(search: _Record) -> Iterator[Figure]:
    final = search.get("final")
    for score, name in (
        *([] if final is None else [(final["score"], "test accuracy, this prompt and the head")]),
        (search["best_prompt"], "test accuracy, this prompt"),
        (search["seed_prompt"], "test accuracy, first prompt"),
    ):
        if score["accuracy"] is not None:
            answered = int(score["rows"]) - int(score["outcomes"].get("error", 0))
            yield _with_interval(name, score["accuracy"], answered)
            if score.get("macro_f1") is not None:  # not in results of earlier versions
                named = name.replace("accuracy", "macro F1")
                yield Figure(name=named, estimate=float(score["macro_f1"]), rows=answered)
            if score.get("credit") is not None:
                yield _with_interval(name.replace("accuracy", "credit"), score["credit"], answered)
    if final is not None:
        yield from _with_head(final)
    comparison = search["comparison"]
    if changed_prompt(search) and comparison is not None:
        yield _with_interval(
            "test accuracy, this minus first prompt", comparison["interval"], int(comparison["n"])
        )
        if search.get("credit_difference") is not None:
            yield _with_interval(
                "test credit, this minus first prompt", search["credit_difference"], int(comparison["n"])
            )


def _with_head(final: _Record) -> Iterator[Figure]:
    """Yield the figures that compare the best prompt and its head with the first prompt and the baselines."""
    seed, text = final["against_seed"], final["against_text"]
    if seed is not None:
        name = "test accuracy, with the head minus first prompt"
        yield _with_interval(name, seed["interval"], int(seed["n"]))
    if text is not None:
        yield from _baselines(final["baselines"], text, int(text["n"]), kind="test ", of="with the head")


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
