"""Command-line program: its groups of commands with their options, and global options."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from calibrant.cli._commands import HELP, app
from calibrant.cli._options import argument, command

__all__ = ["app", "main"]


def _group(name: str, text: str) -> typer.Typer:
    return typer.Typer(name=name, help=text, no_args_is_help=True, add_completion=False)


batch = _group("batch", "Classify rows through a provider's batch interface: cheaper, within 24 hours.")
history = _group("history", "Keep evaluators' scores in a database, and print intervals of their means.")
cascade = _group(
    "cascade", "Plan from recorded runs which texts a cheaper model can answer, and carry it out."
)
router = _group("router", "Print or delete what routers have learned about their providers.")
verifier = _group(
    "verifier", "Serve AutoMix's verifier: it asks a model several times if an answer is right."
)
GROUPS: Final = (batch, history, cascade, router, verifier)


@command(
    batch, "calibrant.cli._batch:submit", example="calibrant batch submit mine/task.toml --out jobs/mine"
)
class Submit:
    """Send a task's rows to the provider as batches; what was sent is not sent again.

    Attributes
    ----------
    out
        Directory for the job; an interrupted submission is resumed.
    split
        Rows of the task: train, validation or test (default).
    file
        Other rows: JSON Lines, CSV or Parquet with an input column, or .txt.
    """

    task: Path = argument()
    out: Path
    split: str | None = None
    file: Path | None = None
    prompt: Path | None = None
    model: str | None = None
    api_base: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options of commands about a submitted job.

    Attributes
    ----------
    directory : DIR
        Directory of the job.
    task : TASK.toml
        Task file whose [model.options] hold the api_key.
    """

    directory: Path = argument()
    task: Path | None = None


@command(batch, "calibrant.cli._batch:status", example="calibrant batch status jobs/mine")
class Status(JobOptions):
    """Ask the provider about every batch of a job once, and print its status."""


@command(batch, "calibrant.cli._batch:collect", example="calibrant batch collect jobs/mine --wait")
class Collect(JobOptions):
    """Fetch a job's answers into its predictions.jsonl; exit with 1 while batches run, or without an answer.

    Attributes
    ----------
    wait
        Wait until every batch has ended.
    timeout
        Seconds to wait at most; by default no limit.
    interval
        Seconds between the first polls; later polls are further apart.
    """

    wait: bool = False
    timeout: float | None = None
    interval: float = 10.0


@command(batch, "calibrant.cli._batch:retry", example="calibrant batch retry jobs/mine")
class Retry(JobOptions):
    """Submit the failed rows of a collected job again."""


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """Options of commands about one evaluator's scores.

    Attributes
    ----------
    evaluator : ID
        Evaluator of the scores.
    profile : NAME
        Name of the settings that were evaluated.
    account : ID
        Account that the scores belong to.
    history : URL
        The database, a file or URL; else $CALIBRANT_HISTORY.
    """

    evaluator: str
    profile: str
    account: str = "default"
    history: str | None = None
    as_json: bool = False


@command(
    history,
    "calibrant.cli._history:record",
    example="calibrant history record --evaluator judge --profile strict --score 1 --family custom",
)
class Record(HistoryOptions):
    """Add one score of an evaluator to the database.

    Attributes
    ----------
    score
        The score; 0 or 1 for a binary family.
    passed
        Whether it passed; for a binary family, the score says so.
    family
        Family of the evaluator, such as custom.
    capture
        always, fails-only or none: a single result is stored only with always.
    """

    score: float
    passed: Annotated[bool | None, typer.Option("--passed/--failed")] = None
    family: str | None = None
    capture: str = "always"


@command(
    history,
    "calibrant.cli._history:interval",
    "interval",
    example="calibrant history interval --evaluator judge --profile strict",
)
class ScoreInterval(HistoryOptions):
    """Print the confidence interval of the mean of an evaluator's latest 1,000 scores.

    Attributes
    ----------
    strategy
        full-history or none.
    alpha
        The confidence level, in (0, 1).
    seed
        Random seed of the resampling.
    """

    strategy: Annotated[str, typer.Option("--confidence-interval-strategy", "--strategy")] = "full-history"
    alpha: float = 0.95
    seed: Annotated[int, typer.Option(min=0)] = 0


@command(history, "calibrant.cli._history:list_scopes", "list", example="calibrant history list")
class ListScopes:
    """List the recorded scores by account, evaluator and profile.

    Attributes
    ----------
    account : ID
        List only this account's scores.
    history : URL
        The database, a file or URL; else $CALIBRANT_HISTORY.
    as_json
        Print one JSON array: an object per scope.
    """

    account: str | None = None
    history: str | None = None
    as_json: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordedOptions:
    """Options of commands that price policies on recorded runs.

    Attributes
    ----------
    verifier_cost
        Cost of finding out how sure an answer is, in the unit of the other costs; once for all models, or once for
        each.
    seed
        Random seed of the halves, folds and resamples.
    """

    verifier_cost: list[float] | None = None
    seed: Annotated[int, typer.Option(min=0)] = 0
    as_json: bool = False


@command(
    cascade,
    "calibrant.cli._plan:plan",
    example="calibrant cascade plan runs/small runs/large --small-cost 1 --large-cost 5 --out runs/plan",
)
class Plan(RecordedOptions):
    """Plan from recorded runs which model answers which rows: cheapest certified, or for a target or budget.

    Attributes
    ----------
    predictions : PREDICTIONS_SMALL [...] PREDICTIONS_LARGE
        A run of each model over the same rows, from small to large: directories of evaluate or optimize, or files of
        predictions.
    out
        Directory for plan.json, plan.html and plan.svg.
    small_cost
        Cost of an answer of the first model; by default as recorded.
    large_cost
        Cost of an answer of the last model, in the same unit; by default as recorded.
    between_cost
        Cost of an answer of each model between, in order; once for each.
    epsilon
        Accuracy, from 0 to 1, that may be lost compared with the last model alone.
    delta
        Probability that more than --epsilon is lost.
    target_accuracy
        Choose the cheapest policy that reaches this accuracy.
    budget
        Choose the most accurate policy that costs at most this much per row.
    certify_on
        all: certify on all rows; half: leave half of them for the report.
    method
        Confidence method that the recorded confidences come from.
    key
        Any text; hashed with a row's text, it decides which answers of equal confidence are kept.
    require_certified
        Exit with 3 unless a policy cheaper than the last model alone is certified.
    """

    predictions: list[Path] = argument()
    out: Path
    small_cost: float | None = None
    large_cost: float | None = None
    between_cost: list[float] | None = None
    epsilon: float = 0.02
    delta: float = 0.1
    target_accuracy: float | None = None
    budget: float | None = None
    certify_on: str = "all"
    method: str = "label_probability"
    key: str = "calibrant"
    require_certified: bool = False


@command(
    cascade,
    "calibrant.cli._plan:replay",
    example="calibrant cascade replay --threshold 0.9 --cost 1 --cost 5 runs/small runs/large",
)
class Replay(RecordedOptions):
    """Print cost and accuracy of a plan or of thresholds on recorded runs; no model is called.

    Attributes
    ----------
    paths : [PLAN] PREDICTIONS...
        The plan, unless --threshold is given, and a run of each model, from small to large.
    threshold
        Confidence from which an answer is kept; once for all models, or once for each but the last.
    cost
        Cost of an answer of each model, in order; by default the plan's, or as recorded.
    """

    paths: list[Path] = argument()
    threshold: list[float] | None = None
    cost: list[float] | None = None


@command(
    cascade,
    "calibrant.cli._plan:run",
    "run",
    example="calibrant cascade run runs/plan small.toml large.toml --file NEW.csv",
)
class PlanRun:
    """Carry out a plan: classify texts, or with --out evaluate labelled rows.

    Attributes
    ----------
    plan_file : PLAN
        plan.json, or its directory.
    sources : TASK|RUN|BUNDLE...
        A task file, run or bundle for each model of the plan, or one with --model for each. A run or bundle brings its
        prompt and its head.
    model
        A model's name, once for each model of the plan, in its order.
    api_base
        Address of the models' server; once for all models, or once for each.
    file
        Texts to classify; with --out, labelled rows. JSON Lines, CSV or Parquet.
    split
        With --out: rows of the first task: train, validation or test, which is the default.
    max_rows
        With --out: take only this many rows, from the first one on.
    out
        Evaluate into this directory; an interrupted run in it is resumed.
    """

    plan_file: Path = argument()
    sources: list[Path] = argument()
    model: list[str] | None = None
    api_base: list[str] | None = None
    text: list[str] | None = None
    file: Path | None = None
    split: str | None = None
    max_rows: Annotated[int | None, typer.Option(min=1)] = None
    out: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, kw_only=True)
class RouterOptions:
    """Options of commands about routers' records.

    Attributes
    ----------
    strategy
        Only records of this strategy, such as thompson; by default all.
    state : PLACE
        SQLite file or URL of the router state; by default the task's, else $CALIBRANT_ROUTER_STATE, else
        router.sqlite in $CALIBRANT_HOME or ~/.local/state/calibrant.
    task : TASK.toml
        Task file whose [routing] names state, scope and settings.
    scope
        Name of the task whose records are meant; by default all. To reset, it is needed where several tasks share the
        state.
    """

    strategy: str | None = None
    state: str | None = None
    task: Path | None = None
    scope: str | None = None
    as_json: bool = False


@command(router, "calibrant.cli._router:stats", example="calibrant router stats --task task.toml")
class Stats(RouterOptions):
    """Print the estimates that routers learned of every provider, with 95 % credible intervals if there are any."""


@command(router, "calibrant.cli._router:reset", example="calibrant router reset --task task.toml")
class Reset(RouterOptions):
    """Delete the records that routers learned, damaged ones included; running routers begin anew."""


@command(
    verifier, "calibrant.cli._serve:serve_verifier", "serve", example="calibrant verifier serve --port 8889"
)
class ServeVerifier:
    """Serve a verifying model over HTTP: answers to POST /verify are checked; also GET /health.

    Attributes
    ----------
    model
        Verifying model; see `calibrant models`.
    api_base
        Address of the model's server.
    host
        Address to listen on; 0.0.0.0 lets other machines in.
    port
        Port to listen on; 0 takes a free one.
    samples
        Calls of the model for each answer.
    temperature
        Sampling temperature.
    threshold
        Confidence below which a larger model should answer, unless the request names one.
    prompt : FILE
        Another prompt, with {question}, {answer} (or {generated_answer}) and {context} in it, which are filled in as
        JSON strings, in quotes; its replies may reason first.
    max_concurrency
        Most calls of the model at the same time.
    as_json
        Print one JSON object, with the address, when ready.
    """

    model: str = "local/smollm2-135m"
    host: str = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8889
    samples: int = 8
    temperature: float = 1.0
    threshold: float = 0.7
    prompt: Path | None = None
    max_concurrency: int = 10
    api_base: str | None = None
    option: list[str] | None = None
    as_json: bool = False


for group in GROUPS:
    app.add_typer(group)


def _print_version(wanted: bool) -> None:
    if wanted:
        import calibrant

        typer.echo(f"calibrant {calibrant.__version__}")
        raise typer.Exit


@app.callback(help=HELP)
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
    if os.getpid() == 1:  # as in a container: the kernel drops a SIGTERM that this process has no handler for
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app()
