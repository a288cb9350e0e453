"""``calibrant label``: labels of rows without answers, beside the columns of their file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant import evaluation
from calibrant.cli._evaluate import (
    check_options,
    exit_as,
    on_cluster,
    opened_cache,
    resume_hint,
    run_limits,
    write_down,
)
from calibrant.cli._evaluation_table import counts_text, effort_line
from calibrant.cli._progress import EvaluationDisplay, interruptible
from calibrant.cli._prompted import source_of
from calibrant.cli._tables import aligned, number, print_output, say
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._prediction import Outcome
from calibrant.core._rows import ENDINGS
from calibrant.evaluation._data import UnlabelledTexts, inspect
from calibrant.evaluation._label import LabelFile, unlabelled
from calibrant.inference._classifier import as_classifier
from calibrant.runs._directory import PREDICTIONS

if TYPE_CHECKING:
    from calibrant.assembly._bundle import Bundle
    from calibrant.cli._commands import Label
    from calibrant.cli._prompted import Source
    from calibrant.core._predictor import Stop
    from calibrant.evaluation._label import WrittenLabels
    from calibrant.evaluation._metrics import EvaluationMetrics, EvaluationResult
    from calibrant.inference._base import BasePredictor

_ENGINES: Final = ("local", "ray", "batch")
_LABELS_SHOWN: Final = 12
_LOCAL_LIMITS: Final = (
    *("concurrency", "max_cost", "requests_per_minute", "tokens_per_minute", "timeout", "deadline", "cache"),
)


def label(options: Label) -> None:
    """Label the rows, and exit with 1 (ended early) or 130 (interrupted)."""
    check_options(options, engines=_ENGINES)
    if options.source.suffix.lower() in ENDINGS and options.data.suffix.lower() not in ENDINGS:
        raise ConfigurationError(
            f"Expected the bundle, task file or run first, then the rows, got the rows first: run "
            f"calibrant label {options.data} {options.source} --out {options.out}."
        )
    with source_of(options.source, options) as source:
        if options.watch_drift and (source.bundle is None or source.bundle.history.rows == 0):
            raise ConfigurationError(
                "Expected a bundle or a run with predictions for --watch-drift, got a source without: a task file has "
                "no history."
            )
        columns = source.task.columns
        rows = unlabelled(
            options.data,
            text=options.text or columns.input,
            context=columns.context,
            limit=options.max_rows,
            csv=columns.csv,
        )
        file = _label_file(options.out, rows, source.bundle, options)
        if options.engine == "batch":
            _label_by_batch(source, options, rows, file)
            return
        with contextlib.closing(source.open(limits=run_limits(source.task, options))) as classifier:
            with (
                interruptible(at_once=options.engine == "local" and classifier.in_process) as stop,
                EvaluationDisplay("label") as display,
                resume_hint(options.out),
            ):
                result = _run(source, options, classifier, rows, file, on_progress=display, stop=stop)
            write_down(source, options.out, classifier)
        _print_result(result, source.bundle, options)
        exit_as(result.metrics, {}, stop=stop)


def _label_file(out: Path, rows: UnlabelledTexts, bundle: Bundle | None, options: Label) -> LabelFile:
    """Return the file of labels in a directory, with the decisions of a bundle."""
    return LabelFile(
        out,
        rows,
        file_format=options.format,
        decide=None if bundle is None else bundle.decide_many,
        distribution=options.distribution,
    )


def _run(  # noqa: PLR0913 (what a run is made of)
    source: Source,
    options: Label,
    classifier: BasePredictor,
    rows: UnlabelledTexts,
    file: LabelFile,
    *,
    on_progress: EvaluationDisplay,
    stop: Stop,
) -> EvaluationResult:
    """Label in this process or on a Ray cluster."""
    if options.engine == "ray":
        inspect(rows, classifier.labels)
        file.prepare()
        with file.kept():
            result = on_cluster(source, options, classifier, rows, on_progress=on_progress, stop=stop)
        return replace(result, written=file.written)
    with opened_cache(options) as cache:
        evaluator = evaluation.BatchEvaluator(
            classifier, limits=run_limits(source.task, options), cache=cache
        )
        return evaluator.label(
            rows, out=file, about={"task": source.task.name}, on_progress=on_progress, stop=stop
        )


def _label_by_batch(source: Source, options: Label, rows: UnlabelledTexts, file: LabelFile) -> None:
    """Submit the rows to the provider's batch interface, wait for the answers and write the labels."""
    from calibrant.cli._batch import print_answers
    from calibrant.cli._label_job import LabelJob, refuse_limits

    refuse_limits([name for name in _LOCAL_LIMITS if getattr(options, name) is not None])
    with contextlib.closing(source.open()) as classifier:
        single = as_classifier(classifier, to_use="batch interface")
        inspect(rows, single.labels)
        file.prepare()
        submitted = evaluation.submit_batch(single, rows, out=options.out)
        write_down(source, options.out, classifier)
    job = LabelJob(
        source=str(options.source.resolve()),
        data=str(options.data.resolve()),
        text=options.text or source.task.columns.input,
        limit=options.max_rows,
        format=options.format,
        distribution=options.distribution,
    )
    job.save(options.out)
    say(f"{submitted.rows:,} rows are submitted; if this ends: calibrant batch collect {options.out} --wait")
    key = single.options.get("api_key")
    report = evaluation.collect_batch(options.out, wait=evaluation.Polling(), api_key=key)
    file.write()
    record, lines = _outcome(source.bundle, file.written, options)
    if not options.as_json:
        print_answers(report)
    print_output({"outcomes": dict(report.outcomes), **record}, lines, as_json=options.as_json)


def _print_result(result: EvaluationResult, bundle: Bundle | None, options: Label) -> None:
    """Print the labelled rows, decisions, drift and the files."""
    metrics, written = result.metrics, result.written
    if written is None or result.directory is None:
        raise StateError("Expected an output directory.")
    record, lines = _outcome(bundle, written, options)
    lines = [
        _headline(metrics, written.rows),
        *aligned(_figures(metrics)),
        effort_line(metrics),
        *lines,
    ]
    print_output({**metrics.to_record(), **record}, lines, as_json=options.as_json)


def _outcome(
    bundle: Bundle | None, written: WrittenLabels, options: Label
) -> tuple[dict[str, Any], list[str]]:
    """Return decisions, drift and the file of labels, as JSON values and as lines of text."""
    record: dict[str, Any] = {
        "kind": "labels",
        "file": str(written.path),
        "rows_written": written.rows,
        "decisions": dict(written.decisions),
    }
    lines = list(_decision_lines(bundle, written.decisions, options.source))
    if bundle is not None and options.watch_drift and (options.out / PREDICTIONS).exists():
        from calibrant.assembly._bundle_drift import bundle_drift

        drift = bundle_drift(bundle, options.out)
        record["drift"] = drift.to_record()
        lines += drift.lines()
    return record, [*lines, f"File: {written.path}"]


def _headline(metrics: EvaluationMetrics, rows: int) -> str:
    total = "" if metrics.rows_expected is None else f" of {metrics.rows_expected:,}"
    with_label = metrics.outcomes[Outcome.OK.value]
    if with_label == metrics.rows:
        return f"{rows:,}{total} rows labelled"
    return f"{rows:,}{total} rows done, {with_label:,} of them with a label"


def _figures(metrics: EvaluationMetrics) -> Iterator[tuple[str, str]]:
    outcomes = dict(metrics.outcomes)
    if metrics.rows_without_text:
        outcomes[Outcome.UNPARSED.value] -= metrics.rows_without_text
        outcomes["no text"] = metrics.rows_without_text
    yield "outcomes", counts_text(outcomes)
    total = sum(metrics.labels.values())
    shown = list(metrics.labels.items())[:_LABELS_SHOWN]
    more = len(metrics.labels) - len(shown)
    labels = ", ".join(f"{name} {count:,} ({100 * count / total:.1f} %)" for name, count in shown)
    yield "labels", (labels or "-") + (f", and {more:,} more" if more else "")
    yield "mean confidence", f"{number(metrics.mean_confidence)}, as the model gives it"
    yield "answered by", counts_text(metrics.models)
    yield from (("failed", f"{count:,} {kind}") for kind, count in metrics.errors.items())


def _decision_lines(bundle: Bundle | None, decisions: dict[str, int] | Any, source: Path) -> Iterator[str]:  # noqa: ANN401
    rule, least = (None, None) if bundle is None else bundle.rule
    if rule is None and not decisions:
        run = source if bundle is not None else Path("RUN")
        yield (
            "No decisions, as there are no thresholds: `calibrant calibrate` on a run with labelled rows gives them, "
            f"such as `calibrant calibrate {run} --out {run}`; then label with that run."
        )
        return
    if rule is None:
        why = "the cascade's own thresholds"
    elif least is None:
        why = (
            f"{rule} threshold none, as too little is known to promise anything: every row is to be reviewed; "
            "`calibrant calibrate` says how many more labelled rows would do, or takes a lower --target-accuracy"
        )
    elif least == 0:
        why = f"{rule} threshold 0: every answer is accepted"
    else:
        why = f"{rule} threshold {least:.4g} of the model's confidence"
    yield f"decisions: {counts_text(dict(sorted(decisions.items())))} ({why})"
