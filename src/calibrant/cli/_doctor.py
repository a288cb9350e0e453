"""``calibrant doctor``: examination of a model's log-probabilities, and recommended settings."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.cli._commands import Doctor, Models
from calibrant.cli._options import parse_option
from calibrant.cli._tables import print_output
from calibrant.clients._endpoint import hidden_in_address, hidden_options, holds_digest, public_address
from calibrant.clients._weights import local_models, name_forms
from calibrant.core._errors import StateError
from calibrant.core._files import json_text
from calibrant.core._prediction import LogprobSpace
from calibrant.core._reported import counted, one_line
from calibrant.inference._examinations import Examination, FindingVerdict, save_examination
from calibrant.inference.doctor._examine import examine

_STYLES: Final = {
    FindingVerdict.OK: "green",
    FindingVerdict.WARNING: "yellow",
    FindingVerdict.PROBLEM: "bold red",
    FindingVerdict.UNKNOWN: "dim",
}
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def doctor(options: Doctor) -> None:
    """Examine a model, print and store the findings; exit code 1 if its confidence would mislead."""
    model = options.model
    api_base = options.api_base
    given = dict(map(parse_option, options.option or ()))
    with _progress(model) as on_call:
        found = examine(
            model,
            api_base=api_base,
            options=given,
            space=options.space,
            now=datetime.now(UTC),
            on_call=on_call,
        )
    stored = None if options.no_save else _save(found)
    if options.as_json:
        sys.stdout.write(json.dumps(found.to_record()) + "\n")
    else:
        if api_base is not None:
            given["api_base"] = api_base
        _print(found, stored, given)
    if found.problems:
        raise SystemExit(1)


@contextlib.contextmanager
def _progress(model: str) -> Iterator[Callable[[int], None] | None]:
    """Show the number of the current call on a terminal; show nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status(Text(f"examining {model}")) as status:
        yield lambda number: status.update(Text(f"examining {model}, call {number}"))


def _save(found: Examination) -> Path | None:
    try:
        return save_examination(found)
    except StateError as error:
        sys.stderr.write(f"warning: {error}\n")  # the findings are printed all the same
        return None


def _print(found: Examination, stored: Path | None, options: Mapping[str, Any]) -> None:
    console = Console()
    if console.is_terminal:
        console.print(_table(found))
    else:
        for finding in found.findings:
            sys.stdout.write(f"{finding.feature}\t{finding.verdict.value}\t{one_line(finding.detail)}\n")
    lines = [f"{finding.feature}: {one_line(finding.remedy)}" for finding in found.findings if finding.remedy]
    if lines:
        sys.stdout.write("\nWhat to do:\n" + "".join(f"  {line}\n" for line in lines))
    calls = counted(found.calls, "call")
    if found.answer_form is None and found.scoring not in {"exact", None}:
        sys.stdout.write(f"\nNo settings to recommend, after {calls}: no answer could be read.\n")
    else:
        settings = settings_toml(found, options)
        sys.stdout.write(f"\nRecommended settings, after {calls}:\n\n{settings}")
    if stored is not None and found.scoring is not None:
        sys.stdout.write(
            f"\nStored in {stored}: later commands read this and refuse settings that contradict it.\n"
        )


def _table(found: Examination) -> Table:
    table = Table(title=Text(found.model))  # names may hold brackets, which are markup in plain text
    table.add_column("feature")
    table.add_column("verdict")
    table.add_column("detail", overflow="fold")
    for finding in found.findings:
        table.add_row(
            finding.feature,
            Text(finding.verdict.value, style=_STYLES[finding.verdict]),
            Text(one_line(finding.detail)),
        )
    return table


def settings_toml(found: Examination, options: Mapping[str, Any] | None) -> str:
    """Return the recommended ``[model]`` and ``[scoring]`` sections of a task file, free of credentials.

    Parameters
    ----------
    found : Examination
        The examination.
    options : mapping or None
        Options of the examination, address included; a comment stands for each credential.
    """
    options = dict(options or {})
    address = options.pop("api_base", None) or options.pop("base_url", None) or found.api_base
    model: dict[str, Any] = {"name": found.model}
    if found.api_base is not None:
        model["api_base"] = public_address(found.api_base)
    if found.scoring == "decode" and found.space in {LogprobSpace.MASKED, LogprobSpace.RAW}:
        model["space"] = found.space.value
    if found.scoring is not None:
        model["scoring"] = found.scoring
    hidden = [f"{name} of api_base" for name in map(_key, hidden_in_address(str(address or "")))]
    sections = [f"[model]\n{_assignments(model)}{_withheld(hidden)}"]
    secrets = [".".join(map(_key, path)) for path in hidden_options(options)]
    parameters = _without_empty_tables(found.parameters)
    if parameters or secrets:
        sections.append(f"[model.options]\n{_assignments(parameters)}{_withheld(secrets)}")
    thresholds = {"high": found.thresholds.high, "low": found.thresholds.low}
    sections.append(f"[scoring]\n{_assignments(thresholds)}")
    return "\n".join(sections)


def _without_empty_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    full = {
        name: _without_empty_tables(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    return {name: value for name, value in full.items() if value != {}}


def _assignments(values: Mapping[str, Any]) -> str:
    lines = []
    for name, value in values.items():
        key = _key(name)
        if value is None:  # TOML has no null: such an option cannot be set in a task file
            lines.append(f"# {key} = null\n")
        elif holds_digest(value):
            lines.append(_withheld([key]))
        else:
            lines.append(f"{key} = {_value(value)}\n")
    return "".join(lines)


def _withheld(names: Sequence[str]) -> str:
    return "".join(f"# {name}: as it was, not shown as it may be a secret\n" for name in names)


def _key(name: str) -> str:
    if _BARE_KEY.fullmatch(name):
        return name
    return json.dumps(name)


def _value(value: Any) -> str:  # noqa: ANN401 (any JSON value)
    if isinstance(value, Mapping):
        inside = ", ".join(
            f"{_key(name)} = {_value(found)}" for name, found in value.items() if found is not None
        )
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{', '.join(_value(found) for found in value if found is not None)}]"
    return json_text(value)  # TOML knows no surrogate pairs


_EMBEDDED = "embedded, no key needed"


def models(options: Models) -> None:
    """Print the embedded models with their state, then the other forms of names."""
    records: list[dict[str, Any]] = []
    # Plain lines, never wrapped: the commands are there to be copied.
    lines: list[str] = []
    for model in local_models():
        own = {"path": str(model.path or ""), "pattern": False, "description": _EMBEDDED}
        records.append({**asdict(model), **own})
        state = f"ready: {model.path}" if model.installed else f"missing, run: {model.install_command}"
        lines += [model.name, f"    {_EMBEDDED}", f"    {state}"]
    for form in name_forms():
        about = {"description": form.description, "needs": form.needs}
        records.append({"name": form.name, "pattern": True, **about})
        state = f"needs: {form.needs}" if form.needs else f"ready: {form.ready}"
        lines += [form.name, f"    {form.description}", f"    {state}"]
    print_output(records, lines, as_json=options.as_json)
