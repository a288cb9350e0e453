"""``calibrant batch``: jobs at a provider's batch interface, at its lower price."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from calibrant.cli._errors import reports_errors

if TYPE_CHECKING:
    from calibrant.core._rows import Example
    from calibrant.core._task import Split, Task
    from calibrant.evaluation._provider_batch_state import BatchReport

batch = typer.Typer(
    name="batch",
    no_args_is_help=True,
    add_completion=False,
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the job.")]
KeyFrom = Annotated[
    Path | None,
    typer.Option("--task", metavar="TASK.toml", help="Task file whose [model.options] hold the api_key."),
]


@batch.command()
@reports_errors
def submit(
    task: Annotated[Path, typer.Argument(metavar="TASK.toml", help="The task file.")],
    *,
    out: Annotated[Path, typer.Option(help="Directory of the job; a submission cut off is continued.")],
    split: Annotated[
        str | None, typer.Option(help="Rows of the task: train, validation or test (default).")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Other rows: JSON Lines, CSV or Parquet with an input column, or .txt."),
    ] = None,
    prompt: Annotated[
        Path | None, typer.Option(help="File with the prompt to use, such as best_prompt.txt.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Answers instead of the task's own model.")] = None,
) -> None:
    """Send rows as batches of the provider; a second time, it does nothing."""
    from calibrant.assembly._task_record import record_run
    from calibrant.cli._prompted import prompted, without_head, write_demonstrations
    from calibrant.core._errors import ConfigurationError
    from calibrant.core._task import Task
    from calibrant.evaluation._provider_batch import submit_batch
    from calibrant.inference._classifier import Classifier, as_classifier

    if file is not None and split is not None:
        raise ConfigurationError("Expected --split or --file, got both: leave one out.")
    loaded = Task.from_file(task)
    rows = _rows(loaded, split, file)
    several = bool(loaded.sections)
    if model is not None or not several:  # several models are refused by name below
        _check_model(loaded.model.name if model is None else model)
    classifier = Classifier.from_task(without_head(loaded), model=model)
    try:
        chosen = prompted(classifier, loaded.head, prompt=prompt, run=None, label_prior=None)
        report = submit_batch(as_classifier(chosen, to_use="batch interface"), rows, out=out)
        record_run(out, [(loaded, model)], prompt_for_all=prompt is not None)
        write_demonstrations(chosen, out)
    finally:
        classifier.close()
    _say_submitted(report)


@batch.command()
@reports_errors
def status(directory: Directory, *, task: KeyFrom = None) -> None:
    """Look once, and print where every batch stands."""
    from calibrant.evaluation._provider_batch import batch_status

    _print_parts(batch_status(directory, api_key=_key(task)))


@batch.command()
@reports_errors
def collect(
    directory: Directory,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every batch has ended.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait at most.")] = None,
    interval: Annotated[float, typer.Option(help="Seconds between the first looks; they grow rarer.")] = 10.0,
    task: KeyFrom = None,
) -> None:
    """Fetch the answers and write predictions.jsonl; exit code 1 where there is nothing to write yet."""
    from calibrant.evaluation._provider_batch import collect_batch
    from calibrant.evaluation._provider_batch_state import Polling

    polling = Polling(seconds=interval, timeout_seconds=timeout) if wait else None
    report = collect_batch(
        directory, wait=polling, api_key=_key(task), on_look=_note_progress if wait else None
    )
    if not report.ended:
        _print_parts(report)
        hint = "wait longer, or look again later" if wait else "add --wait, or look again later"
        sys.stderr.write(f"not every batch has ended: {hint}.\n")
        raise SystemExit(1)
    _say_collected(report)
    if report.outcomes.get("error", 0) == report.rows:
        raise SystemExit(1)


@batch.command()
@reports_errors
def retry(directory: Directory, *, task: KeyFrom = None) -> None:
    """Submit the collected rows that ended in an error once more, as they were asked before."""
    from calibrant.evaluation._provider_batch import retry_batch

    report = retry_batch(directory, api_key=_key(task))
    if report.submitted:
        _say_submitted(report)
    else:
        sys.stdout.write("no row ended in an error: nothing was submitted.\n")


def _rows(task: Task, split: str | None, file: Path | None) -> Sequence[Example]:
    if file is None:
        return task.rows(cast("Split", split or "test"))
    return _file_rows(task, file)


def _file_rows(task: Task, file: Path) -> list[Example]:
    """Return the rows of a file, with their answers where it has a column for them."""
    from dataclasses import replace

    from calibrant.core._errors import DataError
    from calibrant.core._rows import Example, read_examples, read_rows, read_texts

    columns = task.columns
    labelled = file.suffix.lower() != ".txt" and columns.answer in next(iter(read_rows(file))).values
    if not labelled:
        return [
            Example(input=text if isinstance(text, str) else text.text, answer="")
            for text in read_texts(file, columns=replace(columns, context=None))
        ]
    rows = []
    for example, line in read_examples(file, columns=columns):
        answer = task.labels.canonical(example.answer)
        if answer is None:
            raise DataError(
                f"answer {example.answer!r:.80} is not one of the labels: correct the row.",
                path=file,
                line=line,
            )
        rows.append(replace(example, answer=answer))
    return rows


def _check_model(name: str) -> None:
    """Refuse an embedded model before its weights are read."""
    from calibrant.core._errors import ConfigurationError

    if name.startswith(("local/", "llamacpp:")):
        raise ConfigurationError(
            f"Expected a model with OpenAI's batch interface, got {name}, which runs here: name openai/NAME, or use "
            "calibrant classify."
        )


def _key(task: Path | None) -> str | None:
    from calibrant.core._errors import ConfigurationError
    from calibrant.core._task import Task

    if task is None:
        return None
    key = Task.from_file(task).model.options.get("api_key")
    if not isinstance(key, str):
        raise ConfigurationError(f"{task}: expected api_key under [model.options], got none.")
    return key


def _note_progress(report: BatchReport) -> None:
    done = sum(part.completed + part.failed for part in report.parts)
    ended = sum(part.ended for part in report.parts)
    asked = sum(part.requests for part in report.parts)
    sys.stderr.write(f"{done:,} of {asked:,} requests done, {ended} of {len(report.parts)} batches ended\n")


def _print_parts(report: BatchReport) -> None:
    for part in report.parts:
        counts = f"{part.completed} of {part.requests} answered, {part.failed} failed"
        sys.stdout.write(f"part {part.number}\t{part.batch_id or '-'}\t{part.status}\t{counts}\n")
        for error in part.errors[:3]:
            sys.stdout.write(f"\t{error}\n")


def _say_submitted(report: BatchReport) -> None:
    count = f"{len(report.parts)} batch{'es' if len(report.parts) > 1 else ''}"
    if report.submitted:
        sys.stdout.write(f"submitted {report.submitted} of {count}, {report.rows:,} rows in all.\n")
    else:
        sys.stdout.write(f"already submitted: {report.rows:,} rows in {count}; nothing was done.\n")
    sys.stdout.write(f"Next: calibrant batch collect {report.path} --wait\n")


def _say_collected(report: BatchReport) -> None:
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(report.outcomes.items()))
    sys.stdout.write(
        f"{report.rows:,} rows: {counts}. {report.prompt_tokens:,} tokens in, {report.completion_tokens:,} out, at "
        "the provider's batch price.\n"
        f"File: {report.predictions}\n"
    )
    odd = {
        "were no JSON": report.broken,
        "named no row of their batch": report.unknown,
        "named a row a second time": report.duplicates,
    }
    for what, count in odd.items():
        if count:
            sys.stderr.write(f"warning: {count:,} lines of the provider {what} and were left out.\n")
    if report.outcomes.get("error"):
        sys.stdout.write(f"Ask again about the rows with errors: calibrant batch retry {report.path}\n")
