"""The program's list of commands; the module of a command is imported when the command is called."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from calibrant.cli._errors import exits_on_error
from calibrant.cli._options import command

_HELP = "Text classification with language models whose confidence can be trusted."

# Name: module with the function, or the group, of that name, and the help text.
COMMANDS: Final = {
    "optimize": (
        "_optimize",
        "Search for a better prompt and compare it with the first one on the test rows.",
    ),
    "classify": (
        "_classify",
        "Classify texts and print label and confidence, each row as soon as it is known.",
    ),
    "evaluate": (
        "_evaluate",
        "Evaluate a prompt on labelled rows: predictions, accuracy with intervals, calibration, cost.",
    ),
    "report": (
        "_compare",
        "Write one page about runs: numbers with intervals, charts, mistakes, comparisons; needs no network.",
    ),
    "compare": (
        "_compare",
        "Compare runs on the same rows with the first of them: difference, interval, exact test.",
    ),
    "calibrate": (
        "_calibrate",
        "Learn from labelled predictions what their confidence is worth, and which to accept.",
    ),
    "export": ("_export", "Pack a run into a bundle: one folder of JSON and text that calibrant.load opens."),
    "serve": (
        "_serve",
        "Answer POST /v1/classify with a bundle, and /healthz, /readyz, /metrics, until Ctrl-C or SIGTERM.",
    ),
    "doctor": ("_models", "Ask a model a few cheap questions, and say what its log-probabilities mean."),
    "models": ("_models", "List the models that can be named, and what is missing for each."),
    "batch": ("_batch", "Classify at a provider's batch interface: cheaper, done within 24 hours."),
    "history": ("_history", "Scores of evaluators in a database, and intervals over the latest of them."),
    "cascade": (
        "_plan_commands",
        "The cheapest model that is sure enough: planned from recorded runs, without a call.",
    ),
    "router": ("_router", "Learned records of the providers that routers choose from."),
    "verifier": (
        "_verifier",
        "AutoMix's verifier: a model is asked several times whether an answer is right.",
    ),
}


class _LazyCommand(TyperCommand):
    """Stands for a command, or a group of them, until it is called."""

    def __init__(self, name: str, module: str, text: str) -> None:
        super().__init__(name, help=text)
        self._module = module

    def make_context(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  (typer keeps its own copy of click)
        """Return the context of the real command, which then goes on."""
        with exits_on_error():
            found = getattr(importlib.import_module(f"calibrant.cli.{self._module}"), str(self.name))
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False)
            command(found)(function)
        loaded = get_command(found)
        loaded.name, loaded.help = self.name, self.help
        return loaded.make_context(*args, **options)


class _RootGroup(TyperGroup):
    """The commands of the program."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        for name, (module, text) in COMMANDS.items():
            self.add_command(_LazyCommand(name, module, text))


app = typer.Typer(
    name="calibrant",
    cls=_RootGroup,
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import calibrant

        typer.echo(f"calibrant {calibrant.__version__}")
        raise typer.Exit


@app.callback(help=_HELP)
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options of the program itself."""


def main() -> None:
    """Run the command line.

    Examples
    --------
    >>> import contextlib
    >>> from unittest.mock import patch
    >>> from calibrant.cli import main
    >>> with patch("sys.argv", ["calibrant", "--version"]), contextlib.suppress(SystemExit):
    ...     main()  # doctest: +ELLIPSIS
    calibrant ...
    """
    app()
