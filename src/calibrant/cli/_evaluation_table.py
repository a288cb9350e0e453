"""The numbers of an evaluation, as `calibrant evaluate` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from calibrant import evaluation
from calibrant.cli._tables import aligned, dollars, number, print_output, with_interval
from calibrant.core._errors import StateError
from calibrant.core._files import read_json_object
from calibrant.core._task import Task
from calibrant.metrics._remarks import confidence_remarks

if TYPE_CHECKING:
    from calibrant.cli._providers import RoutingStats
    from calibrant.evaluation._history_run import HistoryEntry

_Row: TypeAlias = tuple[str, str, str]  # name of a number, its value and its denominator


def print_result(
    result: evaluation.EvaluationResult,
    task: Task,
    entry: HistoryEntry | None = None,
    *,
    routing: RoutingStats | None = None,
    baselines: Sequence[str] = (),
    as_json: bool,
) -> None:
    """Print the metrics of a finished evaluation, the `baselines` and the output files."""
    directory, metrics = result.directory, result.metrics
    if directory is None:
        raise StateError("Expected an output directory.")
    record = read_json_object(
        directory / "metrics.json",
        remedy="delete it and run the same command again, which asks nothing twice",
    )
    more: dict[str, Any] = {} if entry is None else {"history": entry.to_record()}
    more |= {} if routing is None else {"routing": routing.to_record()}
    lines = [f"{task.name}: {record['model']}, {metrics.rows:,} rows", *_number_lines(metrics), *baselines]
    if metrics.cascade is not None:
        from calibrant.cli._cascade import cascade_lines

        lines += cascade_lines(metrics.cascade)
    lines += [] if routing is None else routing.lines()
    if entry is not None:
        from calibrant.cli._history import history_lines

        lines += history_lines(entry)
    columns = ", predictions.parquet" if (directory / "predictions.parquet").exists() else ""
    files = f"Files: {directory}/predictions.jsonl{columns}, metrics.json, run.json"
    print_output({**record, **more}, [*lines, _effort(metrics), files], as_json=as_json)


def _number_lines(metrics: evaluation.EvaluationMetrics) -> Iterator[str]:
    yield from aligned([*_accuracies(metrics), *_composite(metrics), *_others(metrics)])
    labels = metrics.answered_labels
    if labels is not None and labels.collapsed:
        yield f"warning: {labels.warning}"
    yield from confidence_remarks(
        metrics.auroc, rows=metrics.answered, rows_with_low_label_mass=metrics.rows_with_low_label_mass
    )


def _accuracies(metrics: evaluation.EvaluationMetrics) -> Iterator[_Row]:
    correct, answered = metrics.correct, metrics.answered
    yield "accuracy, all rows", with_interval(metrics.accuracy), f"{correct:,} of {metrics.rows:,} rows"
    about = f"{correct:,} of {answered:,} rows whose outcome is not error"
    yield "accuracy, answered rows", with_interval(metrics.accuracy_answered), about


def _composite(metrics: evaluation.EvaluationMetrics) -> Iterator[_Row]:
    """Yield the metrics of answers that hold several labels, part by part."""
    found = metrics.composite
    if found is None:
        return
    about = f"{found.rows:,} answered rows"
    if found.kind == "multi_label":
        yield "Jaccard index", number(found.jaccard), f"mean of {about}"
        yield "F1 of rows", number(found.samples_f1), f"mean of {about}"
        labels = f"{len(found.parts):,} labels of {about}; 0 is best"
        yield "Hamming loss", number(found.hamming_loss), labels
    else:
        for name, part in found.parts.items():
            credit = "" if part.credit is None else f"; credit {part.credit:.3f}"
            yield f"field {name}", with_interval(part.accuracy), f"{part.correct:,} of {about}{credit}"
        yield "credit", number(found.credit), f"mean of all fields, {about}"
    yield "micro F1", number(found.micro_f1), about


def _others(metrics: evaluation.EvaluationMetrics) -> Iterator[_Row]:
    yield "macro F1", number(metrics.macro_f1), f"{metrics.answered:,} answered rows"
    labels = metrics.answered_labels
    if labels is not None:
        about = f"{labels.found:,} of the {labels.present:,} that occur in these rows"
        yield "labels answered", str(labels), about
    for one in () if metrics.structure is None else metrics.structure.figures():
        yield one.name, number(one.value) if one.interval is None else with_interval(one.interval), one.about
    with_confidence = f"{metrics.rows_with_confidence:,} rows with a confidence"
    yield "calibration error (ECE)", number(metrics.ece), with_confidence
    yield "Brier score", number(metrics.brier), with_confidence
    yield "AUROC of the confidence", with_interval(metrics.auroc), f"{with_confidence}; 0.5 is chance"
    yield "outcomes", _counts(metrics.outcomes), ""
    yield "answered by", _counts(metrics.models), ""
    yield from (("failed", f"{count:,}", kind) for kind, count in metrics.errors.items())


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "-"


def _effort(metrics: evaluation.EvaluationMetrics) -> str:
    """Return calls, tokens, cost and speed on one line."""
    cost = "" if metrics.cost is None else f", {dollars(metrics.cost)}"
    if metrics.unpriced_rows:
        cost += f", {metrics.unpriced_rows:,} rows without a known price"
    speed = "; every row was there already, nothing was asked" if metrics.complete else ""
    if metrics.session_rows:
        speed = f"; {metrics.session_rows:,} rows in {metrics.seconds:.1f} s ({metrics.rows_per_second:,.1f} rows/s)"
    return (
        f"{metrics.calls:,} calls, {metrics.rows_from_cache:,} rows without a call, "
        f"{metrics.prompt_tokens:,} + {metrics.completion_tokens:,} tokens{cost}{speed}"
    )
