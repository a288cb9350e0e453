"""``calibrant init``: a task file for a data file of the user's own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer

from calibrant.assembly._init import (
    TARGET,
    PromiseOutlook,
    TaskDraft,
    draft_task,
    new_task_path,
    prompt_of,
    write_task,
)
from calibrant.assembly._row_checks import described_group
from calibrant.cli._commands import Init
from calibrant.cli._tables import aligned, print_output, say
from calibrant.clients._weights import UsableModel, local_models, usable_models
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import as_record
from calibrant.core._reported import counted
from calibrant.core._table_files import SEPARATORS

_SHOWN_LABELS: Final = 20
_HALF: Final = 0.5  # of the new rows: below, the table says how many labelled rows accept so many


def init(options: Init) -> None:
    """Write a task file for a data file, and print its contents, warnings and the next commands."""
    out = Path(options.data.stem) if options.out is None else options.out
    new_task_path(out)  # before the file is read
    usable = usable_models()
    chosen = _chosen_model(options.model, usable, api_base=options.api_base)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not options.as_json
    draft = draft_task(
        options.data,
        text=options.text_column,
        label=options.label_column,
        model=chosen.name,
        ask=_ask if is_terminal else None,
    )
    models = [chosen, *(model for model in usable if model != chosen)]
    places = [(model.name, model.api_base, model.where) for model in models]
    path = write_task(draft, out, models=places)
    commands = next_commands(path, options.data)
    found = as_record(models)
    record = {"task": str(path), **_record(draft), "models": found, "next": commands}
    print_output(record, _lines(draft, models, path, commands), as_json=options.as_json)


def _chosen_model(name: str | None, usable: Sequence[UsableModel], *, api_base: str | None) -> UsableModel:
    """Return the model that the user names, or else the first usable one, or else the embedded one."""
    if api_base is not None:
        if name is None:
            raise ConfigurationError("Expected --model with --api-base: name the model of that server.")
        return UsableModel(name=name, api_base=api_base, where="named by --model")
    if name is not None:
        return next(
            (model for model in usable if model.name == name),
            UsableModel(name=name, where="named by --model"),
        )
    if usable:
        return usable[0]
    embedded = local_models()[0]
    return UsableModel(name=embedded.name, where=f"to be installed: {embedded.install_command}")


def _ask(question: str, names: Sequence[str]) -> str:
    """Ask the user at the terminal for one of several columns."""
    for number, name in enumerate(names, 1):
        say(f"  {number}  {name}")
    number = 0
    while not 1 <= number <= len(names):
        number = int(typer.prompt(f"{question} 1 to {len(names)}", default=1, type=int, err=True))
    return names[number - 1]


def next_commands(task: Path, data: Path) -> list[str]:
    """Return the commands to run after ``init``."""
    run = task.parent / "run"
    labelled = task.parent / "labelled"
    commands = [
        ["optimize", task, "--out", run],
        ["label", run, f"NEW{data.suffix}", "--out", labelled],
        ["report", run, "--open"],
    ]
    return [shlex.join(["calibrant", *map(str, words)]) for words in commands]


def _record(draft: TaskDraft) -> dict[str, Any]:
    columns = draft.columns
    return {
        "data": str(draft.data),
        "rows": draft.rows,
        "separator": draft.separator,
        "header": draft.csv.header,
        "text": {"column": columns.text, "reason": columns.text_reason},
        "label": {"column": columns.label, "reason": columns.label_reason},
        "split_column": columns.split,
        "id_column": columns.row_id,
        "labels": dict(draft.labels),
        "multi_label": draft.answer_separator is not None,
        "split": None if columns.split else list(draft.shares),
        "splits": draft.splits,
        "near_duplicates": {"rows": draft.near_duplicates.rows, "groups": draft.near_duplicates.groups},
        "promise": {
            "target_accuracy": TARGET,
            "test_rows": draft.test_rows,
            "outlook": as_record(draft.outlook),
        },
        "prompt": prompt_of(draft),
        "warnings": list(draft.notices),
    }


def _lines(draft: TaskDraft, models: Sequence[UsableModel], path: Path, commands: Sequence[str]) -> list[str]:
    columns = draft.columns
    separator = f", {SEPARATORS[draft.separator]} between columns" if draft.separator else ""
    rows = counted(draft.rows, "row")
    lines = [f"{draft.data}: {rows}{separator}{'' if draft.csv.header else ', no header'}"]
    found = [
        ("  text", repr(columns.text), columns.text_reason),
        ("  label", repr(columns.label), columns.label_reason),
    ]
    if columns.row_id is not None:
        found.append(("  id", repr(columns.row_id), "reports name it"))
    lines += aligned(found)
    several = "" if draft.answer_separator is None else ", any number of them in an answer"
    lines += ["", f"{counted(len(draft.labels), 'label')}{several}"]
    lines += aligned(
        (f"  {name}", f"{count:,}", f"{count / draft.labelled_rows:.0%}")
        for name, count in draft.labels[:_SHOWN_LABELS]
    )
    if len(draft.labels) > _SHOWN_LABELS:
        lines.append(f"  and {len(draft.labels) - _SHOWN_LABELS:,} more")
    sizes = ", ".join(f"{split} {count:,}" for split, count in draft.splits.items())
    lines += ["", f"Rows: {sizes}" if sizes else f"Splits are those of the column {columns.split!r}"]
    if draft.near_duplicates.rows:
        lines.append(f"{described_group(draft.near_duplicates)}: each group stays in one split")
    lines += _outlook_lines(draft)
    lines += [f"warning: {notice}" for notice in draft.notices]
    lines += ["", "Models"]
    mark = "  in the task file"
    table = []
    for model in models:
        table.append((mark, model.name, model.where))
        mark = "  also possible"
    lines += aligned(table)
    lines += ["", f"File: {path}", "Next:", *(f"  {command}" for command in commands)]
    return lines


def _outlook_lines(draft: TaskDraft) -> list[str]:
    """Return the lines on the promise that the test rows may bear, by the accuracy of the model."""
    outlook = draft.outlook
    if not outlook:
        return []
    table = [
        ["  if the model is right in", *(f"{one.accuracy:.0%}" for one in outlook)],
        ["  of new rows it accepts about", *(f"{one.kept:.0%}" for one in outlook)],
    ]
    if any(one.kept < _HALF for one in outlook):
        table.append(["  labelled rows to accept half", *map(_needed, outlook)])
    rows = counted(draft.test_rows, "test row")
    return [f"A promise of {TARGET:.2f} from {rows} that differ:", *aligned(table)]


def _needed(found: PromiseOutlook) -> str:
    """Return about how many labelled rows accept half of the new rows."""
    if found.kept >= _HALF:
        return "enough"
    needed = found.labelled_rows_for_half
    return "too many" if needed is None else f"{needed:,}"
