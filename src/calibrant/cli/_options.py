"""Arguments and options of commands, read from their signatures and docstrings."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, get_origin

import typer

from calibrant.cli._errors import reports_errors

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
ApiBase = Annotated[str | None, typer.Option(help="Endpoint of an OpenAI-compatible server.")]
Options = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="An option of every call; may be given several times."),
]

# Metavar and help text of what several commands take; their docstrings come first.
_SHARED: Final = {
    "account": ("ID", "Whose history."),
    "api_base": ("", "Endpoint of an OpenAI-compatible server."),
    "as_json": ("", "Print one JSON object instead of text."),
    "history": ("URL", "Database of evaluation history that the predictions are added to."),
    "model": ("", "Answers instead of the task's own model; see `calibrant models`."),
    "option": ("KEY=VALUE", "An option of every call; may be given several times."),
    "profile": (
        "NAME",
        "Runs and answers to compare with; by default those of the same prompt and model.",
    ),
    "prompt": ("", "File with the prompt to use, such as best_prompt.txt."),
    "task": ("TASK.toml", "The task file."),
    "text": ("", "A text; may be given several times."),
}
_ENTRY: Final = re.compile(r"^(\w+)(?: : (.+))?\n((?:    .+\n?)+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class PromptedOptions:
    """Options of commands that open a task's classifier under a prompt.

    Attributes
    ----------
    run
        Run directory of a search: what it found is used.
    label_prior
        File with that prompt's label-prior correction: label_prior.json.
    context : TEXT
        What answers have to rest on, for a cascade that verifies them.
    context_column : NAME
        Column with a row's own context; --context is for the others.
    """

    prompt: Path | None = None
    run: Path | None = None
    label_prior: Path | None = None
    model: str | None = None
    context: str | None = None
    context_column: str | None = None


def command(group: typer.Typer, name: str | None = None) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that adds a command to a group; see `as_command`."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        group.command(name)(as_command(function))
        return function

    return register


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command for typer: signature from its options class, and reported errors.

    A parameter by position is an argument, a keyword an option, and so is every field of a parameter that is a
    dataclass. Their help texts stand in the docstrings, below lines of the form ``name : METAVAR``.
    """
    parameters: list[inspect.Parameter] = []
    fields: dict[str, str] = {}  # name of the dataclass's parameter, by field
    options: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind: Any = parameter.annotation
        has_fields = is_dataclass(kind)
        own = [parameter]
        if has_fields:
            own = list(inspect.signature(kind, eval_str=True).parameters.values())
            fields |= {field.name: parameter.name for field in own}
            options[parameter.name] = kind
        texts = _texts(kind if has_fields else function)
        parameters += [_for_typer(one, *texts.get(one.name, ("", ""))) for one in own]

    @reports_errors
    @functools.wraps(function)
    def run(**given: Any) -> None:  # noqa: ANN401
        others = {name: value for name, value in given.items() if name not in fields}
        for name, kind in options.items():
            others[name] = kind(**{key: given[key] for key in given if fields.get(key) == name})
        function(**others)

    run.__doc__ = (inspect.getdoc(function) or "").split("\n\n")[0]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _texts(documented: Any) -> Mapping[str, tuple[str, str]]:  # noqa: ANN401
    """Return metavar and help text by name, as the docstring of a function or of a class and its bases has them."""
    texts = dict(_SHARED)
    for owner in reversed(inspect.getmro(documented)) if inspect.isclass(documented) else [documented]:
        for name, metavar, text in _ENTRY.findall(inspect.getdoc(owner) or ""):
            # Brackets are markup to rich.
            texts[name] = metavar, " ".join(text.split()).replace("[", "\\[")
    return texts


def _for_typer(parameter: inspect.Parameter, metavar: str, text: str) -> inspect.Parameter:
    """Return a signature parameter with typer's metadata."""
    if get_origin(parameter.annotation) is Annotated:
        info = parameter.annotation.__metadata__[0]
        info.help, info.metavar = text, metavar or None
        return parameter
    default = ... if parameter.default is parameter.empty else parameter.default
    if parameter.kind is not parameter.KEYWORD_ONLY:
        return parameter.replace(default=typer.Argument(default, metavar=metavar or None, help=text))
    # A flag that is off has no opposite.
    names = [f"--{parameter.name.removeprefix('as_').replace('_', '-')}"] if default is False else []
    return parameter.replace(default=typer.Option(default, *names, metavar=metavar or None, help=text))


def parse_option(text: str) -> tuple[str, Any]:
    """Return name and value of ``KEY=VALUE``; a value that is not JSON is text."""
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        from calibrant.core._errors import ConfigurationError  # the list of commands stays quick

        raise ConfigurationError(
            f"Expected --option KEY=VALUE, got {text!r}: write --option temperature=0.5."
        )
    try:
        return name.strip(), json.loads(value)
    except (ValueError, RecursionError):
        return name.strip(), value
