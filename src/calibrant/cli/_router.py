"""``calibrant router``: the records that routers learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli._errors import reports_errors
from calibrant.cli._options import AsJson

router = typer.Typer(
    name="router",
    no_args_is_help=True,
    add_completion=False,
)

Place = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="PLACE",
        help="A SQLite file or a database URL; else the task's, else $CALIBRANT_ROUTER_STATE, else "
        "router.sqlite in $CALIBRANT_HOME or ~/.local/state/calibrant.",
    ),
]
TaskFile = Annotated[
    Path | None,
    typer.Option("--task", metavar="TASK.toml", help="Take state, scope and settings of its \\[routing]."),
]
Scope = Annotated[str | None, typer.Option(help="A task's name, or litellm/GROUP; by default all there are.")]


@router.command()
@reports_errors
def stats(
    *,
    strategy: Annotated[str | None, typer.Option(help="Only this one, such as thompson.")] = None,
    state: Place = None,
    task: TaskFile = None,
    scope: Scope = None,
    as_json: AsJson = False,
) -> None:
    """Print the learned estimates of every provider, with 95 % credible intervals if the strategy has them."""
    from calibrant.cli._router_state import run_stats

    run_stats(state, task=task, scope=scope, strategy=strategy, as_json=as_json)


@router.command()
@reports_errors
def reset(
    *,
    strategy: Annotated[str | None, typer.Option(help="Only this one; by default all.")] = None,
    state: Place = None,
    task: TaskFile = None,
    scope: Annotated[
        str | None, typer.Option(help="Whose records; needed where several share the place.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete learned records, damaged ones included; running routers begin anew."""
    from calibrant.cli._router_state import run_reset

    run_reset(state, task=task, scope=scope, strategy=strategy, as_json=as_json)
