"""``calibrant batch``: jobs at a provider's batch interface, at its lower price."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from calibrant import evaluation, inference
from calibrant.cli._commands import PromptedOptions
from calibrant.cli._decided_labels import NOTE, DecidedLabels, LabelJob
from calibrant.cli._options import FAILED
from calibrant.cli._prompted import asked_task, prompted, source_of, without_head
from calibrant.cli._tables import say
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._reported import counted
from calibrant.core._rows import Columns, DataSource, Example, read_rows, read_texts
from calibrant.core._task import Split, Task
from calibrant.evaluation._data import UnlabelledTexts, write_demonstrations
from calibrant.evaluation._label import unlabelled
from calibrant.inference._classifier import as_classifier
from calibrant.tuned._task_record import record_run

if TYPE_CHECKING:
    from calibrant.cli._app import Collect, Retry, Status, Submit
    from calibrant.evaluation._provider_batch import BatchReport


def submit(options: Submit) -> None:
    """Submit the rows of a task's split, or those of a file."""
    file = options.file
    if file is not None and options.split is not None:
        raise ConfigurationError("Expected --split or --file, got both: leave one out.")
    loaded = asked_task(Task.from_file(options.task), options)
    split = cast("Split", options.split or "test")
    rows = loaded.rows(split) if file is None else _file_rows(loaded, file)
    name = loaded.model.name
    several_models = bool(loaded.sections)  # refused by name below
    if not several_models and name.startswith(("local/", "llamacpp:")):  # before its weights are read
        raise ConfigurationError(
            f"Expected a model with OpenAI's batch interface, got {name}, which runs here: name openai/NAME, or use "
            "calibrant classify."
        )
    opened = inference.Classifier.from_task(without_head(loaded))
    with contextlib.closing(opened) as classifier:
        chosen = prompted(classifier, loaded.head, PromptedOptions(prompt=options.prompt))
        single = as_classifier(chosen, to_use="batch interface")
        report = evaluation.submit_batch(single, rows, out=options.out)
        record_run(options.out, [(loaded, None)], prompt_for_all=options.prompt is not None)
        write_demonstrations(chosen, options.out)
    if file is not None and file.suffix.lower() != ".txt":
        job = LabelJob(source=options.task, data=file, text=loaded.columns.input)
        job.save(options.out)
    _print_submission(report)


def status(options: Status) -> None:
    """Print the status of every batch."""
    _print_parts(evaluation.batch_status(options.directory, api_key=_key(options.task)))


def collect(options: Collect) -> None:
    """Write the predictions if every batch has ended; exit with 1 otherwise, or without an answer."""
    polling = None
    if options.wait:
        polling = evaluation.Polling(seconds=options.interval, timeout_seconds=options.timeout)
    report = evaluation.collect_batch(
        options.directory,
        wait=polling,
        api_key=_key(options.task),
        on_look=_print_progress if options.wait else None,
    )
    if not report.ended:
        _print_parts(report)
        hint = "wait longer, or look again later" if options.wait else "add --wait, or look again later"
        say(f"not every batch has ended: {hint}.")
        raise SystemExit(FAILED)
    print_answers(report)
    if (options.directory / NOTE).exists():
        _, lines = _written_labels(options.directory).outcome()
        sys.stdout.write("\n".join(lines) + "\n")
    if report.outcomes.get("error", 0) == report.rows:
        raise SystemExit(FAILED)


def _written_labels(directory: Path) -> DecidedLabels:
    """Write the labels of a collected job; the source and the data are read again."""
    job = LabelJob.load(directory)
    source = source_of(job.source, PromptedOptions())
    columns = Columns(csv=source.task.columns.csv)  # a batch reads no context, and labels need no identifiers
    rows = unlabelled(job.data, text=job.text, columns=columns, limit=job.limit)
    for _ in rows:  # finds the columns
        pass
    labels = DecidedLabels.of(job, source.tuned, out=directory, rows=rows)
    labels.file.prepare()
    labels.file.write()
    return labels


def retry(options: Retry) -> None:
    """Submit the failed rows again."""
    report = evaluation.retry_batch(options.directory, api_key=_key(options.task))
    if report.submitted:
        _print_submission(report)
    else:
        sys.stdout.write("no row ended in an error: nothing was submitted.\n")


def _file_rows(task: Task, file: Path) -> Iterable[Example]:
    """Return the rows of a file, with answers if it has an answer column."""
    columns = task.columns
    if file.suffix.lower() == ".txt":
        texts = read_texts(file, columns=replace(columns, context=None))
        return UnlabelledTexts(texts)
    first = next(read_rows(file, csv=columns.csv, column=columns.input))
    if columns.input in first.values and columns.answer not in first.values:
        own = Columns(csv=columns.csv, row_id=columns.row_id)
        return unlabelled(file, text=columns.input, columns=own)
    source = DataSource(path=file, columns=columns)
    return evaluation.Dataset(source=source, labels=LabelSet.of(task.labels))


def _key(task: Path | None) -> str | None:
    if task is None:
        return None
    key = Task.from_file(task).model.options.get("api_key")
    if not isinstance(key, str):
        raise ConfigurationError(f"{task}: expected api_key under [model.options], got none.")
    return key


def _print_progress(report: BatchReport) -> None:
    parts = report.parts
    done = sum(part.completed + part.failed for part in parts)
    ended = sum(part.ended for part in parts)
    requests = sum(part.requests for part in parts)
    say(f"{done:,} of {requests:,} requests done, {ended} of {len(parts)} batches ended")


def _print_parts(report: BatchReport) -> None:
    for part in report.parts:
        counts = f"{part.completed} of {part.requests} answered, {part.failed} failed"
        sys.stdout.write(f"part {part.number}\t{part.batch_id or '-'}\t{part.status}\t{counts}\n")
        for error in part.errors[:3]:
            sys.stdout.write(f"\t{error}\n")


def _print_submission(report: BatchReport) -> None:
    count = counted(len(report.parts), "batch", "batches")
    rows = counted(report.rows, "row")
    line = f"already submitted: {rows} in {count}; nothing was done."
    if report.submitted:
        sent = sum(part.requests for part in report.parts[-report.submitted :])
        share = f"{rows} in all" if sent == report.rows else f"{sent:,} of the {rows}"
        line = f"submitted {report.submitted} of {count}, {share}."
    sys.stdout.write(f"{line}\nNext: calibrant batch collect {report.path} --wait\n")


def print_answers(report: BatchReport) -> None:
    """Print the outcomes of a collected job, its tokens and its file."""
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(report.outcomes.items()))
    rows = counted(report.rows, "row")
    sys.stdout.write(
        f"{rows}: {counts}. {report.prompt_tokens:,} tokens in, {report.completion_tokens:,} out, at "
        "the provider's batch price.\n"
        f"File: {report.predictions}\n"
    )
    left_out = {
        "{} no JSON": report.broken,
        "named no row of their batch": report.unknown,
        "named a row a second time": report.duplicates,
    }
    for reason, count in left_out.items():
        if count:
            was = "was" if count == 1 else "were"
            say(f"warning: {counted(count, 'line')} of the provider {reason.format(was)} and {was} left out.")
    if report.unscored:
        have = "has" if report.unscored == 1 else "have"
        say(
            f"warning: {counted(report.unscored, 'row')} with a label {have} no confidence, as the answers hold no "
            "log-probabilities of it: nothing can be calibrated or promised of such rows. `calibrant doctor` says what "
            "the model gives."
        )
    if report.outcomes.get("error"):
        sys.stdout.write(f"Ask again about the rows with errors: calibrant batch retry {report.path}\n")
