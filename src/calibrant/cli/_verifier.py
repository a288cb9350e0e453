"""``calibrant verifier``: an HTTP server that checks answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli._errors import reports_errors
from calibrant.cli._options import ApiBase, Options, parse_option

verifier = typer.Typer(
    name="verifier",
    no_args_is_help=True,
    add_completion=False,
)


@verifier.callback()
def _group() -> None:
    """Keep ``serve`` a command of its own while it is the only one."""


@verifier.command()
@reports_errors
def serve(  # noqa: PLR0913
    *,
    model: Annotated[
        str, typer.Option(help="Verifying model; see `calibrant models`.")
    ] = "local/smollm2-135m",
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8889,
    samples: Annotated[int, typer.Option(help="Calls of the model for each answer.")] = 8,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0,
    threshold: Annotated[
        float, typer.Option(help="Confidence below which to escalate, unless the request names one.")
    ] = 0.7,
    prompt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Another prompt, with {question}, {answer} and {context} in it; its replies may reason first.",
        ),
    ] = None,
    max_concurrency: Annotated[int, typer.Option(help="Calls of the model in flight at most.")] = 10,
    api_base: ApiBase = None,
    option: Options = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the address, when ready.")
    ] = False,
) -> None:
    """Answer POST /verify and GET /health until Ctrl-C."""
    from calibrant.cascade.methods._verification import Verifier
    from calibrant.cli._prompted import read_prompt
    from calibrant.serving._server import serve_app
    from calibrant.serving._verifier_app import create_verifier_app

    options = dict(map(parse_option, option or []))
    if api_base is not None:
        options["api_base"] = api_base
    asked = Verifier(
        model,
        k=samples,
        temperature=temperature,
        prompt=None if prompt is None else read_prompt(prompt),
        concurrency=max_concurrency,
        options=options,
    )

    def ready(address: str) -> None:
        record = {"url": address, "model": asked.model, "num_samples": samples, "threshold": threshold}
        line = json.dumps(record) if as_json else f"{asked.model} verifies at {address}; Ctrl-C ends it."
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    try:
        serve_app(create_verifier_app(asked, threshold=threshold), host=host, port=port, on_ready=ready)
    finally:
        asked.close()
