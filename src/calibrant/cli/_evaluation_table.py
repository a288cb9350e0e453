"""Figures of an evaluation in lines of text: metrics, cascade, providers and baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from calibrant import evaluation
from calibrant.cli._tables import aligned, number, print_output, say, vectors_text, with_interval
from calibrant.core._errors import ConfigurationError, DataError, StateError
from calibrant.core._files import Recorded, read_run_record
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import HalfArray, Usage
from calibrant.core._reported import counted
from calibrant.core._task import Task
from calibrant.metrics._intervals import wilson_interval
from calibrant.metrics._remarks import confidence_remarks, dollars
from calibrant.runs._directory import CALIBRATION

if TYPE_CHECKING:
    from calibrant.evaluation._history import HistoryEntry
    from calibrant.heads._compared import BaselineComparison
    from calibrant.heads._head import Head
    from calibrant.inference._base import BasePredictor
    from calibrant.inference.routed._assess import HelperStats
    from calibrant.inference.routed._provider import ProviderStats
    from calibrant.metrics._cascade import CascadeMetrics, CascadeModelMetrics

_Row: TypeAlias = tuple[str, str, str]  # name of a number, its value and its denominator
_CASCADE_HEAD: Final[tuple[str, ...]] = (
    "cascade",
    "asked",
    "accepted",
    "accuracy of accepted",
    "calls",
    "cost",
)
_PROVIDER_HEAD: Final = ("provider", "calls", "failed", "turned down", "mean latency", "tokens", "cost")


def print_result(  # noqa: PLR0913 (keyword-only options)
    result: evaluation.EvaluationResult,
    task: Task,
    entry: HistoryEntry | None = None,
    *,
    routing: RoutingStats | None = None,
    baselines: Sequence[str],
    is_free: bool,
    as_json: bool,
) -> None:
    """Print the metrics of a finished evaluation, the `baselines` and the output files."""
    directory = result.directory
    metrics = result.metrics
    if directory is None:
        raise StateError("Expected an output directory.")
    record = read_run_record(
        directory / "metrics.json",
        remedy="delete it and run the same command again, which asks nothing twice",
    )
    rows = counted(metrics.rows, "row")
    lines = [f"{task.name}: {record['model']}, {rows}", *_number_lines(metrics), *baselines]
    if metrics.cascade is not None:
        lines += _cascade_lines(metrics.cascade)
    if routing is not None:
        lines += routing.lines()
    if entry is not None:
        from calibrant.cli._history import history_lines

        record["history"] = entry.to_record()
        lines += history_lines(entry)
    if routing is not None:  # behind the history
        record["routing"] = routing.to_record()
    columns = ", predictions.parquet" if (directory / "predictions.parquet").exists() else ""
    lines.append(effort_line(result, is_free=is_free))
    rows = "predictions.jsonl"
    if not (directory / rows).exists():
        rows = "shards"  # of a run on many machines that ended early
    lines.append(f"Files: {directory}/{rows}{columns}, metrics.json, run.json")
    print_output(record, lines, as_json=as_json)


def _number_lines(metrics: evaluation.EvaluationMetrics) -> Iterator[str]:
    yield from aligned([*_accuracies(metrics), *_composite(metrics), *_others(metrics)])
    labels = metrics.answered_labels
    if labels is not None and labels.collapsed:
        yield f"warning: {labels.warning}"
    yield from confidence_remarks(
        metrics.auroc, rows=metrics.answered, rows_with_low_label_mass=metrics.rows_with_low_label_mass
    )


def _accuracies(metrics: evaluation.EvaluationMetrics) -> Iterator[_Row]:
    correct = metrics.correct
    answered = metrics.answered
    yield "accuracy, all rows", with_interval(metrics.accuracy), f"{correct:,} of {metrics.rows:,} rows"
    about = f"{correct:,} of {answered:,} rows whose outcome is not error"
    yield "accuracy, answered rows", with_interval(metrics.accuracy_answered), about


def _composite(metrics: evaluation.EvaluationMetrics) -> Iterator[_Row]:
    """Yield lines with the metrics of answers that hold several labels, part by part."""
    found = metrics.composite
    if found is None:
        return
    about = counted(found.rows, "answered row")
    if found.kind == "multi_label":
        yield "Jaccard index", number(found.jaccard), f"mean of {about}"
        yield "F1 of rows", number(found.samples_f1), f"mean of {about}"
        labels = f"{counted(len(found.parts), 'label')} of {about}; 0 is best"
        yield "Hamming loss", number(found.hamming_loss), labels
    else:
        for name, part in found.parts.items():
            credit = "" if part.credit is None else f"; credit {part.credit:.3f}"
            yield f"field {name}", with_interval(part.accuracy), f"{part.correct:,} of {about}{credit}"
        yield "credit", number(found.credit), f"mean of all fields, {about}"
    yield "micro F1", number(found.micro_f1), about


def _others(metrics: evaluation.EvaluationMetrics) -> Iterator[_Row]:
    labels = metrics.answered_labels
    about = counted(metrics.answered, "answered row")
    if labels is not None and labels.total > labels.present:
        about += f"; {counted(labels.total - labels.present, 'label')} that no row has count as 0"
    yield "macro F1", number(metrics.macro_f1), about
    if labels is not None:
        about = f"{labels.found:,} of the {labels.present:,} that occur in these rows"
        yield "labels answered", str(labels), about
    for one in () if metrics.structure is None else metrics.structure.figures():
        value = number(one.value) if one.interval is None else with_interval(one.interval)
        yield one.name, value, one.about
    with_confidence = counted(metrics.rows_with_confidence, "row with a confidence", "rows with a confidence")
    yield "calibration error (ECE)", number(metrics.ece), with_confidence
    yield "Brier score", number(metrics.brier), with_confidence
    yield "AUROC of the confidence", with_interval(metrics.auroc), f"{with_confidence}; 0.5 is chance"
    yield "outcomes", counts_text(metrics.outcomes), ""
    yield "answered by", counts_text(metrics.models), ""
    yield from (("failed", f"{count:,}", kind) for kind, count in metrics.errors.items())


def counts_text(counts: Mapping[str, int]) -> str:
    """Return names with their counts; a dash for none."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "-"


def effort_line(result: evaluation.EvaluationResult, *, is_free: bool) -> str:
    """Return one line with calls, tokens, cost, vectors and speed; a model `is_free` costs nothing."""
    metrics = result.metrics
    meter = result.meter
    cost = "" if metrics.cost is None else f", {dollars(metrics.cost)}"
    if is_free:
        cost = ", at no cost"
    elif metrics.unpriced_rows:
        cost = cost if metrics.cost else ""  # of students and models that run here, which tell no price
        cost += f", {counted(metrics.unpriced_rows, 'row')} without a known price"
    speed = ""
    if metrics.session_rows:
        rows = counted(metrics.session_rows, "row")
        speed = f"; {rows} in {metrics.seconds:.1f} s ({metrics.rows_per_second:,.1f} rows/s)"
    elif metrics.complete:
        cost += " when they were asked"
        speed = "; every row was there already, nothing was asked now"
    vectors = metrics.vectors if meter is None else meter.vectors
    cost += "" if vectors == Usage() else f", and {vectors_text(vectors)}"
    calls = metrics.calls
    tokens = f"{metrics.prompt_tokens:,} + {metrics.completion_tokens:,} tokens"
    if calls > 0 and not is_free and metrics.prompt_tokens + metrics.completion_tokens == 0:
        tokens = "no tokens reported"
    without = counted(metrics.rows_from_cache, "row")
    return f"{counted(calls, 'call')}, {without} without a call, {tokens}{cost}{speed}"


def _cascade_lines(found: CascadeMetrics) -> list[str]:
    """Return one line per model, a total line, and lines on rows without a confident model."""
    rows = found.rows

    def cells(
        name: str, asked: int, part: CascadeMetrics | CascadeModelMetrics, calls: int
    ) -> tuple[str, ...]:
        return (
            name,
            _share(asked, rows),
            _share(part.accepted, rows),
            with_interval(part.accuracy),
            f"{calls:,}",
            dollars(part.cost),
        )

    table = [_CASCADE_HEAD]
    troubles = []
    for model in found.models:
        table.append(cells(model.model, model.asked, model, model.calls))
        if model.no_evidence:
            troubles.append(f"{model.model}: {model.no_evidence:,} without evidence")
        if model.failed:
            troubles.append(f"{model.model}: {model.failed:,} failed")
    table.append(cells("all models", rows, found, found.calls))
    lines = [*aligned(table), f"escalated: {_share(found.escalated, rows)} of the rows"]
    if found.unaccepted_accuracy is not None:
        lines.append(
            f"not accepted, yet answered: {_share(found.unaccepted_answered, rows)} of the rows, accuracy "
            f"{with_interval(found.unaccepted_accuracy)}"
        )
    if troubles:
        lines.append(f'not judged: {"; ".join(troubles)} (why: "reason" in the steps of predictions.jsonl)')
    return lines


def _share(part: int, rows: int) -> str:
    return f"{part:,} ({100 * part / rows:.1f} %)"


@dataclass(frozen=True, kw_only=True)
class RoutingStats(Recorded):
    """Call statistics of a routed client since it was opened.

    Attributes
    ----------
    strategy : str
        Name of the strategy.
    providers : tuple of ProviderStats
        As they were declared.
    helpers : mapping of str to HelperStats
        Judge and triage, if the strategy has them.
    """

    strategy: str
    providers: tuple[ProviderStats, ...]
    helpers: Mapping[str, HelperStats]

    def lines(self) -> list[str]:
        """Return one line per provider, then judge and triage, then the providers in cooldown."""
        if not any(stats.calls for stats in self.providers):
            return []
        lines = aligned([_PROVIDER_HEAD, *map(_provider_row, self.providers)])
        lines += [_helper_line(name, stats) for name, stats in self.helpers.items()]
        waiting = [
            f"{stats.provider} for {stats.cooling_seconds:.0f} s"
            for stats in self.providers
            if stats.cooling_seconds
        ]
        if waiting:
            lines.append(f"left out for failing: {', '.join(waiting)}")
        return lines


def routing_stats(task: Task, predictor: BasePredictor) -> RoutingStats | None:
    """Return the call statistics of the task's providers; None without routing."""
    if "routing" not in task.sections:
        return None
    from calibrant.inference.routed._client import RoutedClient  # other tasks do without routing

    for client in predictor.clients:
        if isinstance(client, RoutedClient):
            return RoutingStats(
                strategy=client.router.strategy,
                providers=tuple(client.stats().values()),
                helpers=client.helper_stats(),
            )
    return None


def _provider_row(stats: ProviderStats) -> tuple[str, ...]:
    limited = f" ({counted(stats.rate_limits, 'rate limit')})" if stats.rate_limits else ""
    latency = stats.mean_latency_seconds
    return (
        stats.provider,
        f"{stats.calls:,}",
        f"{stats.failures + stats.too_long:,}{limited}",
        f"{stats.escalations:,}",
        "-" if latency is None else f"{latency:.3f} s",
        f"{stats.prompt_tokens:,} + {stats.completion_tokens:,}",
        dollars(stats.cost),
    )


def _helper_line(name: str, stats: HelperStats) -> str:
    return (
        f"{name}: {counted(stats.calls, 'call')}, {stats.failures:,} failed, "
        f"{counted(stats.unusable, 'reply', 'replies')} of no use, "
        f"{stats.usage.prompt_tokens:,} + {stats.usage.completion_tokens:,} tokens, {dollars(stats.usage.cost)}"
    )


def baseline_lines(
    result: evaluation.EvaluationResult,
    task: Task,
    *,
    file: Path | None,
    split: str,
    head: Head | None = None,
    known_features: Callable[[Sequence[str]], Mapping[str, HalfArray]] | None = None,
) -> list[str]:
    """Compare a finished evaluation with baselines, and return the table and the verdict.

    Parameters
    ----------
    result : evaluation.EvaluationResult
        The evaluation; its ``metrics.json`` gets the comparison.
    task : Task
        Task with the baselines' rows: of a file, all labelled ones; of a split, training and validation rows.
    file : Path or None
        File of the evaluated rows, if they are not the task's.
    split : str
        Split of the evaluated rows, if they are the task's: no baseline learns from it.
    head : Head, optional
        Head of the evaluated classifier.
    known_features : callable, optional
        Returns the features that are known of texts, by text.
    """
    if result.directory is None or not result.metrics.complete:
        return []
    judged = {"test", split} if file is None else set()
    sources = [source for name, source in task.sources.items() if name not in judged]
    if not sources:
        # A run holds no rows but those that it was asked about.
        known = "under [data] of a task file: evaluate TASK.toml --run RUN"
        return [f"No baselines: no train or validation rows to learn from. Those are {known}."]
    labels = LabelSet.of(task.labels)
    labelled = chain.from_iterable(evaluation.Dataset(source=source, labels=labels) for source in sources)
    from calibrant.evaluation._learned import add_baselines  # loads the heads

    say("comparing with baselines")  # takes seconds, of many rows half a minute
    try:
        found = add_baselines(
            result.directory,
            labelled,
            labels=labels,
            head=head,
            known_features=known_features,
            meter=result.meter,
        )
    except (ConfigurationError, DataError, StateError) as error:  # the evaluation is complete without them
        return [f"No baselines: {error}"]
    if not found.scores:
        return [found.verdict]
    learned = f"The baselines learned from {counted(found.labelled_rows, 'other labelled row')}."
    return [*_baseline_table(found, answered=result.metrics.answered), f"{found.verdict} {learned}"]


def acceptance_lines(result: evaluation.EvaluationResult, *, run: Path) -> list[str]:
    """Return a line on the evaluated rows that a run's certificate accepts; none without a certificate.

    Parameters
    ----------
    result : evaluation.EvaluationResult
        The evaluation of other rows under the run's prompt and head.
    run : Path
        Directory of the search that certified a threshold.
    """
    calibration = run / CALIBRATION
    if result.directory is None or not result.metrics.complete or not calibration.exists():
        return []
    record = read_run_record(calibration, remedy="calibrate the run again")
    certified = record.get("certified")
    if certified is None:
        return []
    known = result.correct >= 0
    accepted = known & (result.confidence >= certified["threshold"])
    n_known = int(known.sum())
    n_accepted = int(accepted.sum())
    n_right = int(result.correct[accepted].sum())
    line = (
        f"accepted at the confidence that {run} certifies ({certified['threshold']:.6g} or more, promised "
        f"{certified['target_accuracy']:g} right): {_share(n_accepted, n_known)} of these rows"
    )
    if n_accepted:
        line += f", accuracy {with_interval(wilson_interval(n_right, n_accepted))}"
    return [line]


def _baseline_table(found: BaselineComparison, *, answered: int) -> list[str]:
    """Return a table of the model and the baselines."""
    rows = counted(found.rows, "answered row")
    if found.rows != answered:
        rows = f"{found.rows:,} of {answered:,} answered rows"
    head = (f"on {rows}", "accuracy", "macro F1", "labels")
    table = [head]
    for score in found.scores:
        labels = str(score.answered_labels)
        table.append((score.name, with_interval(score.accuracy), number(score.macro_f1), labels))
    return aligned(table)
