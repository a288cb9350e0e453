"""Commands declared as dataclasses, whose fields are their arguments and options, and the ends of a command.

Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 a required result was missed.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import logging
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, TypeVar, dataclass_transform, get_origin

import typer
from typer.core import TyperCommand

_T = TypeVar("_T")

# Metavar and help text of what several commands take; their docstrings come first.
_SHARED: Final = {
    "account": ("ID", "Account that the history belongs to."),
    "api_base": ("URL", "Address of the model's server, instead of the task's."),
    "as_json": ("", "Print one JSON object instead of text."),
    "history": ("URL", "Database of past scores, a file or URL, that these are added to."),
    "model": ("", "Model to ask instead of the task's; on the task's server if the provider is the same."),
    "option": ("KEY=VALUE", "A parameter of every call, such as temperature=0; may be given several times."),
    "profile": (
        "NAME",
        "Name that runs with the same settings share; by default made from prompt and model.",
    ),
    "prompt": ("", "File with the prompt to use instead of the task's, such as best_prompt.txt."),
    "task": ("TASK.toml", "The task file."),
    "text": ("", "A text; may be given several times."),
    "track": (
        "SERVICE",
        "Log the finished run, with figures, report and bundle, to a tracking server: mlflow, at $MLFLOW_TRACKING_URI.",
    ),
}
# Groups of options in the help of commands that have many.
_GROUPS: Final = {
    "Rows": ("split", "file", "max_rows", "text_column", "context", "context_column"),
    "Model and prompt": (
        "model",
        "api_base",
        "option",
        "prompt",
        "run",
        "label_prior",
        "reflection_model",
        "reflection_option",
    ),
    "Search": (
        "proposer",
        "max_metric_calls",
        "minibatch_size",
        "seed",
        "prior_correction",
        "thresholds",
        "no_embeddings",
    ),
    "Promise": ("target_accuracy", "delta", "looks"),
    "Speed and budget": (
        "concurrency",
        "requests_per_minute",
        "tokens_per_minute",
        "timeout",
        "deadline",
        "max_cost",
        "engine",
        "ray_address",
        "workers",
    ),
    "Answers paid for before": ("cache", "no_cache"),
    "History of scores": ("history", "account", "profile"),
    "Output": (
        "out",
        "format",
        "distribution",
        "watch_drift",
        "accept_suggested",
        "accept_drift",
        "parquet",
        "fail_under",
        "track",
        "as_json",
    ),
}
_GROUP_OF: Final = {name: group for group, names in _GROUPS.items() for name in names}
# Values that a shell proposes; they are checked when the command runs.
_VALUES: Final = {
    "engine": ("local", "ray"),
    "model": ("local/smollm2-135m", "openai/", "anthropic/", "gemini/", "ollama/"),
    "prior_correction": ("batch", "off"),
    "proposer": ("exemplar", "reflection"),
    "space": ("masked", "raw"),
    "split": ("train", "validation", "test"),
    "track": ("mlflow",),
}
_ENTRY: Final = re.compile(r"^(\w+)(?: : (.+))?\n((?:    .+\n?)+)", re.MULTILINE)
FAILED = 1
BAD_INPUT = 2
GATE_FAILED = 3
INTERRUPTED = 130
_COLLECTORS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


argument = partial(field, kw_only=False)
"""Declares a field that is given by position; others are options."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def command(
    group: typer.Typer, work: str, name: str | None = None, *, example: str, is_grouped: bool = False
) -> Callable[[type[_T]], type[_T]]:
    """Return a decorator that makes a class a frozen dataclass and adds it to a group as a command.

    A field by position is an argument, a keyword-only field an option. Their help texts stand in the docstring, below
    lines of the form ``name : METAVAR``; its first paragraph describes the command.

    Parameters
    ----------
    group : typer.Typer
        Group of the command.
    work : str
        Function that is called with the object, as ``module:function``. It is imported when the command runs, which
        keeps help light.
    name : str, optional
        Name of the command; by default that of the class, in lower case.
    example : str
        A command line, shown at the end of the help.
    is_grouped : bool, default False
        True to show the options in groups, for a command that has many.
    """

    def register(declared: type[_T]) -> type[_T]:
        kind = dataclass(frozen=True, kw_only=True)(declared)

        def run(**given: Any) -> None:  # noqa: ANN401
            is_resumable = given.get("out") is not None or getattr(kind, "is_resumable", False)
            with exits_on_error(is_resumable=is_resumable):
                pkgutil.resolve_name(work)(kind(**given))

        texts = _texts(kind)
        fields = inspect.signature(kind, eval_str=True).parameters.values()
        parameters = [_for_typer(one, *texts.get(one.name, ("", ""))) for one in fields]
        for parameter in parameters if is_grouped else ():
            _typer_info(parameter).rich_help_panel = _GROUP_OF.get(parameter.name)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__doc__ = (inspect.getdoc(kind) or "").split("\n\n")[0]
        takes_texts = any(one.name == "text" for one in parameters)
        group.command(
            name or kind.__name__.lower(),
            epilog=f"Example: {example}",
            cls=_TextCommand if takes_texts else None,
        )(run)
        return kind

    return register


class _TextCommand(TyperCommand):
    """Command that names --text where texts are given by position."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (of typer's own copy of click)
        """Parse the arguments; refuse texts by position."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            ctx.fail(f"Expected texts by --text, got {ctx.args[0]!r:.60} by position: pass it with --text.")
        return rest


def _texts(kind: type) -> Mapping[str, tuple[str, str]]:
    """Return each option's metavar and help text, from the docstrings of a class and its bases."""
    texts = dict(_SHARED)
    for owner in reversed(inspect.getmro(kind)):
        for name, metavar, text in _ENTRY.findall(inspect.getdoc(owner) or ""):
            flat = " ".join(text.split())
            # Brackets are markup to rich.
            texts[name] = metavar, flat.replace("[", "\\[")
    return texts


def _typer_info(parameter: inspect.Parameter) -> Any:  # noqa: ANN401 (typer's argument or option)
    """Return typer's metadata of a parameter."""
    if get_origin(parameter.annotation) is Annotated:
        return parameter.annotation.__metadata__[0]
    return parameter.default


def _for_typer(parameter: inspect.Parameter, metavar: str, text: str) -> inspect.Parameter:
    """Return a signature parameter with typer's metadata."""
    if get_origin(parameter.annotation) is Annotated:
        info = _typer_info(parameter)
        info.help = text
        info.metavar = metavar or None
        return parameter
    default = ... if parameter.default is parameter.empty else parameter.default
    if parameter.kind is not parameter.KEYWORD_ONLY:
        return parameter.replace(default=typer.Argument(default, metavar=metavar or None, help=text))
    # A flag that is off has no opposite.
    names = [f"--{parameter.name.removeprefix('as_').replace('_', '-')}"] if default is False else []
    option = typer.Option(
        default, *names, metavar=metavar or None, help=text, autocompletion=_proposals(parameter.name)
    )
    return parameter.replace(default=option)


def _proposals(name: str) -> Callable[[str], list[str]] | None:
    """Return the function that proposes an option's values to a shell, which proposes files otherwise."""
    values = _VALUES.get(name)
    if values is None:
        return None
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def parse_option(text: str) -> tuple[str, Any]:
    """Return the name and value of ``KEY=VALUE``; a value that is not JSON stays text."""
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


@contextlib.contextmanager
def exits_on_error(*, is_resumable: bool) -> Iterator[None]:
    """Print calibrant's errors on one line and exit with a code; other errors keep their traceback."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        from calibrant.core._errors import CalibrantError, ConfigurationError, DataError, StateError

        traced = _tracing() if any(map(os.environ.get, _COLLECTORS)) else contextlib.nullcontext()
        try:
            with traced:
                yield
        except CalibrantError as error:
            typer.echo(f"error: {error}", err=True)
            is_bad_input = isinstance(error, ConfigurationError | DataError | StateError)
            raise typer.Exit(BAD_INPUT if is_bad_input else FAILED) from error
    except BrokenPipeError:  # the reader of the output is gone, as `head` goes
        discard_output()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        discard_output()
        typer.echo(
            f"error: expected room for the output, got: {error.strerror}: make room, and run the same command again.",
            err=True,
        )
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        kept = ": run the same command again to go on" if is_resumable else ""
        typer.echo(f"interrupted{kept}.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _tracing() -> contextlib.AbstractContextManager[None]:
    """Return the export of a command's spans to the collector in the environment, unless that switches it off."""
    wanted = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_disabled or "otlp" not in wanted:
        return contextlib.nullcontext()
    try:
        from calibrant.cli._tracing import exported
    except ImportError as error:
        logging.getLogger("calibrant").warning("%s", error)
        return contextlib.nullcontext()
    return exported()


def discard_output() -> None:
    """Discard buffered output, which the interpreter would fail to flush at exit."""
    with contextlib.suppress(OSError, ValueError):  # standard output may be no real file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
