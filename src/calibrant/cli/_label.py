"""``calibrant label``: labels of rows without answers, beside the columns of their file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from calibrant import evaluation
from calibrant.cli._commands import Label
from calibrant.cli._decided_labels import DecidedLabels, LabelJob
from calibrant.cli._evaluate import answer_rows, check_options, exit_as, run_limits, write_down
from calibrant.cli._evaluation_table import counts_text, effort_line
from calibrant.cli._prompted import Source, source_of
from calibrant.cli._tables import aligned, number, print_output, say
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Outcome
from calibrant.core._reported import counted
from calibrant.core._rows import ENDINGS
from calibrant.evaluation._data import UnlabelledTexts, inspect
from calibrant.evaluation._label import unlabelled
from calibrant.evaluation._metrics import EvaluationMetrics, EvaluationResult
from calibrant.inference._base import BasePredictor
from calibrant.inference._classifier import Classifier, as_classifier

_ENGINES: Final = ("local", "ray", "batch")
_LABELS_SHOWN: Final = 12
_LOCAL_LIMITS: Final = (
    "concurrency",
    "max_cost",
    "requests_per_minute",
    "tokens_per_minute",
    "timeout",
    "deadline",
    "cache",
)


def label(options: Label) -> None:
    """Label the rows, and exit with 1 (ended early) or 130 (interrupted)."""
    check_options(options, engines=_ENGINES)
    if options.source.suffix.lower() in ENDINGS and options.data.suffix.lower() not in ENDINGS:
        raise ConfigurationError(
            f"Expected the bundle, task file or run first, then the rows, got the rows first: run "
            f"calibrant label {options.data} {options.source} --out {options.out}."
        )
    source = source_of(options.source, options)
    columns = source.task.columns
    if options.engine == "batch":  # which asks single models, and none of them reads a context
        columns = replace(columns, context=None)
    text = options.text_column or columns.input
    rows = unlabelled(options.data, text=text, columns=columns, limit=options.max_rows)
    job = LabelJob(
        source=options.source,
        data=options.data,
        text=text,
        limit=options.max_rows,
        format=options.format,
        distribution=options.distribution,
        accept_suggested=options.accept_suggested,
        accept_drift=options.accept_drift,
    )
    labels = DecidedLabels.of(job, source.tuned, out=options.out, rows=rows)
    if options.watch_drift:
        labels.require_watch()
    if options.engine == "batch":
        _label_by_batch(source, options, rows, labels)
        return
    opened = source.open(limits=run_limits(source.task, options))
    with contextlib.closing(opened) as classifier:
        result, stop = answer_rows(source, options, classifier, rows, labels.file)
        write_down(source, options.out, classifier)
    _print_result(result, labels, options, classifier)
    exit_as(result, {}, stop=stop)


def _label_by_batch(source: Source, options: Label, rows: UnlabelledTexts, labels: DecidedLabels) -> None:
    """Submit the rows to the provider's batch interface, wait for the answers and write the labels."""
    from calibrant.cli._batch import print_answers

    for name in _LOCAL_LIMITS:
        if getattr(options, name) is not None:
            raise ConfigurationError(
                f"Expected no --{name.replace('_', '-')} with --engine batch, whose pace and price are the provider's: "
                "leave it out."
            )
    with contextlib.closing(source.open()) as classifier:
        single = as_classifier(classifier, to_use="batch interface")
        inspect(rows, single.labels)
        labels.file.prepare()
        submitted = evaluation.submit_batch(single, rows, out=options.out)
        write_down(source, options.out, classifier)
    labels.job.save(options.out)
    sent = counted(submitted.rows, "row is", "rows are")
    say(f"{sent} submitted; if this ends: calibrant batch collect {options.out} --wait")
    key = single.options.get("api_key")
    report = evaluation.collect_batch(options.out, wait=evaluation.Polling(), api_key=key)
    labels.file.write()
    record, lines = labels.outcome(with_drift=options.watch_drift)
    if not options.as_json:
        print_answers(report)
    record = {"outcomes": dict(report.outcomes), **record}
    print_output(record, lines, as_json=options.as_json)


def _print_result(
    result: EvaluationResult, labels: DecidedLabels, options: Label, classifier: BasePredictor
) -> None:
    """Print the labelled rows, decisions, drift and the files."""
    metrics = result.metrics
    written = labels.file.written
    has_head = isinstance(classifier, Classifier) and classifier.head is not None
    origin = "after the head" if has_head else "as the model gives it"
    if labels.is_calibrated:  # what the file holds
        origin += ", before calibration"
    record, lines = labels.outcome(with_drift=options.watch_drift)
    lines = [
        _headline(metrics, written.rows),
        *aligned(_figures(metrics, origin=origin)),
        effort_line(result, is_free=classifier.is_free),
        *lines,
    ]
    print_output({**metrics.to_record(), **record}, lines, as_json=options.as_json)


def _headline(metrics: EvaluationMetrics, rows: int) -> str:
    done = counted(rows, "row")
    if metrics.rows_expected is not None:
        done = f"{rows:,} of {metrics.rows_expected:,} rows"
    with_label = metrics.outcomes[Outcome.OK.value]
    if with_label == metrics.rows:
        return f"{done} labelled"
    return f"{done} done, {with_label:,} of them with a label"


def _figures(metrics: EvaluationMetrics, *, origin: str) -> Iterator[tuple[str, str]]:
    outcomes = dict(metrics.outcomes)
    if metrics.rows_without_text:
        outcomes[Outcome.UNPARSED.value] -= metrics.rows_without_text
        outcomes["no text"] = metrics.rows_without_text
    yield "outcomes", counts_text(outcomes)
    total = metrics.outcomes.get(Outcome.OK.value, 0)  # of these rows each may have several
    shown = list(metrics.labels.items())[:_LABELS_SHOWN]
    more = len(metrics.labels) - len(shown)
    labels = ", ".join(f"{name} {count:,} ({100 * count / total:.1f} %)" for name, count in shown)
    yield "labels", (labels or "-") + (f", and {more:,} more" if more else "")
    yield "mean confidence", f"{number(metrics.mean_confidence)}, {origin}"
    yield "answered by", counts_text(metrics.models)
    yield from (("failed", f"{count:,} {kind}") for kind, count in metrics.errors.items())
