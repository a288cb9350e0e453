"""The numbers of an evaluation, as `calibrant evaluate` prints them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calibrant.cli._tables import aligned, dollars, number, with_interval
from calibrant.core._errors import StateError
from calibrant.core._files import read_json_object
from calibrant.core._task import Task
from calibrant.metrics._remarks import confidence_remarks

if TYPE_CHECKING:
    from calibrant.cli._providers import RoutingStats
    from calibrant.evaluation._evaluator import EvaluationResult
    from calibrant.evaluation._history_run import HistoryEntry
    from calibrant.evaluation._metrics import EvaluationMetrics
    from calibrant.metrics._classification import AnsweredLabels
    from calibrant.metrics._structure import StructureFigure


def print_result(
    result: EvaluationResult,
    task: Task,
    entry: HistoryEntry | None = None,
    *,
    routing: RoutingStats | None = None,
    baselines: Sequence[str] = (),
    as_json: bool,
) -> None:
    """Print the numbers of a finished evaluation, `baselines` beside them, and where its files are."""
    directory = result.directory
    if directory is None:
        raise StateError("Expected an output directory.")
    record = read_json_object(
        directory / "metrics.json",
        remedy="delete it and run the same command again, which asks nothing twice",
    )
    if as_json:
        found: dict[str, Any] = {} if entry is None else {"history": entry.to_record()}
        found |= {} if routing is None else {"routing": routing.to_record()}
        sys.stdout.write(json.dumps({**record, **found}, ensure_ascii=False) + "\n")
        return
    title = f"{task.name}: {record['model']}, {result.metrics.rows:,} rows"
    table = _table(result.metrics)
    labels = result.metrics.answered_labels
    remarks = confidence_remarks(
        result.metrics.auroc,
        rows=result.metrics.answered,
        rows_with_low_label_mass=result.metrics.rows_with_low_label_mass,
    )
    lines = [
        *aligned(table),
        *([f"warning: {labels.warning}"] if labels is not None and labels.collapsed else []),
        *remarks,
        *baselines,
    ]
    if result.metrics.cascade is not None:
        from calibrant.cli._cascade import cascade_lines

        lines += cascade_lines(result.metrics.cascade)
    lines += [] if routing is None else routing.lines()
    if entry is not None:
        from calibrant.cli._history import history_lines

        lines += history_lines(entry)
    columns = ", predictions.parquet" if (directory / "predictions.parquet").exists() else ""
    files = f"Files: {directory}/predictions.jsonl{columns}, metrics.json, run.json"
    sys.stdout.write("\n".join([title, *lines, _paid(result.metrics), files]) + "\n")


def _table(metrics: EvaluationMetrics) -> list[tuple[str, str, str]]:
    """Return name, value and denominator of each number."""
    correct, rows, answered, labels = metrics.correct, metrics.rows, metrics.answered, metrics.answered_labels
    with_confidence = f"{metrics.rows_with_confidence:,} rows with a confidence"
    table = [
        ("accuracy, all rows", with_interval(metrics.accuracy), f"{correct:,} of {rows:,} rows"),
        (
            "accuracy, answered rows",
            with_interval(metrics.accuracy_answered),
            f"{correct:,} of {answered:,} rows whose outcome is not error",
        ),
        *_composite_lines(metrics),
        ("macro F1", number(metrics.macro_f1), f"{answered:,} answered rows"),
        *([] if labels is None else [_labels_line(labels)]),
        *(() if metrics.structure is None else map(_figure, metrics.structure.figures())),
        ("calibration error (ECE)", number(metrics.ece), with_confidence),
        ("Brier score", number(metrics.brier), with_confidence),
        ("AUROC of the confidence", with_interval(metrics.auroc), f"{with_confidence}; 0.5 is chance"),
        ("outcomes", _counts(metrics.outcomes), ""),
        ("answered by", _counts(metrics.models), ""),
    ]
    table += [("failed", f"{count:,}", kind) for kind, count in metrics.errors.items()]
    return table


def _labels_line(found: AnsweredLabels) -> tuple[str, str, str]:
    return "labels answered", str(found), f"{found.found:,} of the {found.present:,} that occur in these rows"


def _composite_lines(metrics: EvaluationMetrics) -> list[tuple[str, str, str]]:
    """Return the metrics of answers that hold several labels, part by part."""
    found = metrics.composite
    if found is None:
        return []
    about = f"{found.rows:,} answered rows"
    lines = [("micro F1", number(found.micro_f1), about)]
    if found.kind == "multi_label":
        return [
            ("Jaccard index", number(found.jaccard), f"mean of {about}"),
            ("F1 of rows", number(found.samples_f1), f"mean of {about}"),
            (
                "Hamming loss",
                number(found.hamming_loss),
                f"{len(found.parts):,} labels of {about}; 0 is best",
            ),
            *lines,
        ]
    fields = [
        (
            f"field {name}",
            with_interval(part.accuracy),
            f"{part.correct:,} of {about}" + ("" if part.credit is None else f"; credit {part.credit:.3f}"),
        )
        for name, part in found.parts.items()
    ]
    return [*fields, ("credit", number(found.credit), f"mean of all fields, {about}"), *lines]


def _figure(found: StructureFigure) -> tuple[str, str, str]:
    shown = number(found.value) if found.interval is None else with_interval(found.interval)
    return found.name, shown, found.about


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in found.items()) or "-"


def _paid(metrics: EvaluationMetrics) -> str:
    cost = "" if metrics.cost is None else f", {dollars(metrics.cost)}"
    unpriced = f", {metrics.unpriced_rows:,} rows without a known price" if metrics.unpriced_rows else ""
    speed = (
        f"; {metrics.session_rows:,} rows in {metrics.seconds:.1f} s ({metrics.rows_per_second:,.1f} rows/s)"
        if metrics.session_rows
        else ("; every row was there already, nothing was asked" if metrics.complete else "")
    )
    return (
        f"{metrics.calls:,} calls, {metrics.rows_from_cache:,} rows without a call, "
        f"{metrics.prompt_tokens:,} + {metrics.completion_tokens:,} tokens{cost}{unpriced}{speed}"
    )
