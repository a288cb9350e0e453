"""Figures measured in a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from calibrant.core._fingerprint import TextDigests
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Record
from calibrant.core._splits import SeenTexts, text_hash
from calibrant.heads._tuned import Figure, Measurements, PredictionHistory, Sketches, rule_of
from calibrant.metrics._intervals import INTERVAL, interval_record, wilson_interval
from calibrant.metrics._remarks import changed_prompt, confidence_remarks
from calibrant.metrics._structure import answer_summary
from calibrant.runs._rows import UNKNOWN, SavedRows, sketch_of

LABELS_ANSWERED: Final = "labels answered, share of those in the rows"
_LOW_LABEL_MASS: Final = "rows with a low label mass, share of the answered ones"
_SKETCHES: Final = 1000

# Name, measured value (a number, or a record with estimate, lower, upper and level; None is no figure), and rows.
_Measured: TypeAlias = tuple[str, Any, Any]

# Keys in metrics.json, result.json and calibration.json: key, name of the figure, key of the number of rows.
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


def measurements_of(
    predictions: SavedRows,
    labels: LabelSet,
    *,
    metrics: Record | None = None,
    search: Record | None = None,
    calibration: Record | None = None,
    thresholds: Record | None = None,
) -> Measurements:
    """Return the figures of a run and the distribution of its predictions.

    Parameters
    ----------
    predictions : SavedRows
        The run's rows.
    labels : LabelSet
        The task's labels.
    metrics, search, calibration : mapping, optional
        ``metrics.json``, ``result.json`` and ``calibration.json``. Without the first two, as in a batch, accuracies
        are counted from the rows.
    thresholds : mapping, optional
        Thresholds as in `Tuned`; without any, or in a cascade, which has its own, acceptance is not counted.
    """
    if search is not None:
        scores = _search_figures(search)
    elif metrics is not None:
        scores = _evaluation_figures(metrics)
    else:
        scores = _counted_figures(predictions)
    entries = (
        *scores,
        *_calibration_figures(calibration),
        *_label_figures(predictions, labels),
        *_acceptance_figures(predictions, thresholds),
    )
    figures = [_figure(*entry) for entry in entries if entry[1] is not None]
    history = PredictionHistory.of(
        predictions.labels,
        predictions.confidence,
        labels=labels,
        sketches=_sketches(predictions, range(len(predictions))),
        models=predictions.models,
        known_texts=TextDigests.of(predictions.inputs),
    )
    different = _history_of_texts(predictions, labels)
    history = history.model_copy(update={"different_texts": different})
    return Measurements(figures=tuple(figures), history=history)


def _history_of_texts(predictions: SavedRows, labels: LabelSet) -> PredictionHistory | None:
    """Return the distribution of the first rows of equal texts; None where all texts differ."""
    texts = SeenTexts()
    places = []
    answers = []
    for place, text in enumerate(predictions.inputs):
        key = None
        if text is not None:
            key = text_hash(text)
        if texts.add(key, None):
            places.append(place)
            answers.append(predictions.labels[place])
    if len(places) == len(predictions):
        return None
    return PredictionHistory.of(
        answers,
        predictions.confidence[places],
        labels=labels,
        sketches=_sketches(predictions, places),
    )


def _sketches(predictions: SavedRows, places: Iterable[int]) -> Sketches | None:
    """Return the sketches of rows, of many a sample drawn with a fixed seed; None if they have none."""
    if "sketch" not in predictions.fields:
        return None
    places = [place for place in places if predictions.labels[place] is not None]
    if len(places) > _SKETCHES:
        sample = np.random.default_rng(0).choice(places, _SKETCHES, replace=False)
        places = sorted(sample.tolist())
    labels = []
    sketches = []
    for row in predictions.rows(places):
        sketch = sketch_of(row.values)
        if row.label is not None and sketch is not None:
            labels.append(row.label)
            sketches.append(sketch)
    if len(set(map(len, sketches))) != 1:
        return None
    return Sketches.of(labels, np.array(sketches))


def _figure(name: str, value: Record | float, rows: Any) -> Figure:  # noqa: ANN401 (numpy's, too)
    record = value if isinstance(value, Mapping) else {"estimate": value}
    numbers = {key: float(record[key]) for key in INTERVAL if key in record}
    return Figure(name=name, **numbers, rows=int(rows))


def figure_warnings(figures: Iterable[Figure]) -> list[str]:
    """Return warnings, in plain sentences, of few answered labels and of low label mass."""
    by_name = {figure.name: figure for figure in figures}
    warnings = []
    answered = by_name.get(LABELS_ANSWERED)
    low = by_name.get(_LOW_LABEL_MASS)
    if answered is not None and answered.estimate < 0.5:
        warnings.append(
            f"Collapsed: only {answered.estimate:.0%} of the labels that occur in the rows were ever answered."
        )
    if low is not None:
        count = round(low.estimate * low.rows)
        warnings += confidence_remarks(None, rows=low.rows, rows_with_low_label_mass=count)
    return warnings


def _share(count: int, rows: int) -> dict[str, float]:
    """Return a share of rows with its Wilson interval."""
    return interval_record(wilson_interval(count, rows))


def _evaluation_figures(metrics: Record) -> Iterator[_Measured]:
    for key, name in _SHARES:
        share = metrics[key] or {}
        yield name, metrics[key], share.get("rows")
    yield from _composite_figures(metrics.get("composite"), metrics["answered"])
    for key, name, rows in _NUMBERS:
        yield name, metrics[key], metrics[rows]
    structure = metrics.get("structure") or {}
    for key, name, rows in _STRUCTURED:
        yield name, structure.get(key), structure.get(rows)
    for number, level in enumerate(structure.get("levels", ()), 1):
        yield f"right down to level {number}", level, structure["rows"]
    baselines = metrics.get("baselines")
    if baselines is not None and baselines["against_text"] is not None:
        yield from _baseline_figures(baselines["scores"][1:], baselines, baselines["rows"])


def _composite_figures(composite: Record | None, rows: int) -> Iterator[_Measured]:
    """Yield figures of single parts, for answers that hold several labels; nothing for other answers."""
    if composite is None:
        return
    if composite["kind"] == "fields":
        for name, part in composite["parts"].items():
            yield f"accuracy of the field {name}", part["accuracy"], rows
    for key, name in _PARTS:
        yield name, composite[key], rows


def _baseline_figures(
    scores: Iterable[Record], compared: Record, rows: int, *, kind: str = "", of: str = "the model"
) -> Iterator[_Measured]:
    """Yield the accuracy differences to the baselines on texts, and all baselines' scores on the same rows."""
    for name, key in (("TF-IDF", "against_text"), ("embeddings", "against_embeddings")):
        against = compared.get(key)
        if against is not None:
            yield f"{kind}accuracy, {of} minus {name}", against["interval"], against["n"]
    for score in scores:
        answered = score["answered_labels"] or {}
        yield f"{kind}accuracy, {score['name']}", score["accuracy"], rows
        yield f"{kind}macro F1, {score['name']}", score["macro_f1"], rows
        yield f"{kind}{LABELS_ANSWERED}, {score['name']}", answered.get("share"), rows


def _counted_figures(predictions: SavedRows) -> Iterator[_Measured]:
    labelled = np.array([answer is not None for answer in predictions.answers], dtype=np.bool_)
    right = int((predictions.correct == 1).sum())
    counted = (labelled, labelled & ~predictions.failed)
    for (_, name), mask in zip(_SHARES, counted, strict=True):
        rows = int(mask.sum())
        if rows:
            yield name, _share(right, rows), rows


def _search_figures(search: Record) -> Iterator[_Measured]:
    final = search["final"]
    comparison = search["comparison"]
    scores = {"this prompt": search["best_prompt"], "first prompt": search["seed_prompt"]}
    if final is not None:
        scores = {"this prompt and the head": final["score"], **scores}
    for of, score in scores.items():
        if score["accuracy"] is not None:
            answered = score["rows"] - score["outcomes"].get("error", 0)
            yield f"test accuracy, {of}", score["accuracy"], answered
            yield f"test macro F1, {of}", score["macro_f1"], answered
            yield f"test credit, {of}", score["credit"], answered
    if final is not None:
        seed = final["against_seed"]
        if seed:
            yield "test accuracy, with the head minus first prompt", seed["interval"], seed["n"]
        text = final["against_text"]
        if text:
            baselines = final["baselines"]
            yield from _baseline_figures(baselines, final, text["n"], kind="test ", of="with the head")
    if changed_prompt(search) and comparison is not None:
        yield "test accuracy, this minus first prompt", comparison["interval"], comparison["n"]
        yield "test credit, this minus first prompt", search["credit_difference"], comparison["n"]


def _calibration_figures(calibration: Record | None) -> Iterator[_Measured]:
    if calibration is not None:
        held_out = calibration["held_out"]
        for key, name in _HELD_OUT:
            yield name, held_out[key], held_out["rows"]


def _label_figures(predictions: SavedRows, labels: LabelSet) -> Iterator[_Measured]:
    """Yield the share of the rows' true labels ever answered, and of rows with a low label mass."""
    truth = []
    given = []
    rows = zip(predictions.answers, predictions.labels, predictions.failed, strict=True)
    for written, label, failed in rows:
        answer = None if written is None else labels.canonical(written)
        if answer is not None and not failed:
            truth.append(answer)
            given.append(label)
    summary = answer_summary(labels, truth, given)
    if summary is not None:
        yield LABELS_ANSWERED, summary.answered_labels.share, len(truth)
    low = predictions.rows_with_low_label_mass
    if low:
        answered = len(predictions.failed) - int(np.sum(predictions.failed))
        yield _LOW_LABEL_MASS, _share(low, answered), answered


def _acceptance_figures(predictions: SavedRows, thresholds: Record | None) -> Iterator[_Measured]:
    """Yield the share of accepted rows and their accuracy; nothing without a threshold."""
    rule, least = (None, None) if thresholds is None else rule_of(thresholds, accept_suggested=True)
    if least is None:
        return
    of = "accepted answers" if rule == "certified" else "answers from the suggested threshold on"
    # Rows without an answer have NaN, which is below every threshold.
    taken = predictions.confidence >= least
    known = taken & (predictions.correct != UNKNOWN)
    rows = len(taken)
    yield f"{of}, share of the rows", _share(int(taken.sum()), rows), rows
    if known.any():
        n_known = int(known.sum())
        right = int((predictions.correct[known] == 1).sum())
        yield f"{of}, accuracy", _share(right, n_known), n_known
