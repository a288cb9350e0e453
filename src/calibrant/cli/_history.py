"""``calibrant history``: evaluators' scores, recorded and summarized."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from calibrant.cli._errors import reports_errors
from calibrant.cli._options import AsJson

if TYPE_CHECKING:
    from calibrant.evaluation._history import EvaluationHistory, HistoryInterval
    from calibrant.evaluation._history_run import HistoryEntry

history = typer.Typer(
    name="history",
    no_args_is_help=True,
    add_completion=False,
)

Account = Annotated[str, typer.Option("--account", metavar="ID", help="Whose scores.")]
Evaluator = Annotated[str, typer.Option("--evaluator", metavar="ID", help="Evaluator of the scores.")]
Profile = Annotated[str, typer.Option("--profile", metavar="NAME", help="Under which settings.")]
Database = Annotated[
    str | None,
    typer.Option("--history", metavar="URL", help="The database, a file or URL; else $CALIBRANT_HISTORY."),
]


@history.command()
@reports_errors
def record(  # noqa: PLR0913
    *,
    evaluator: Evaluator,
    profile: Profile,
    score: Annotated[float, typer.Option(help="The raw score; 0 or 1 of a binary family.")],
    account: Account = "default",
    passed: Annotated[
        bool | None, typer.Option("--passed/--failed", help="The pass flag; of binary families, the score.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Family of the evaluator, such as custom.")] = None,
    capture: Annotated[str, typer.Option(help="Single results are stored under always alone.")] = "always",
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Record a single result."""
    found = _open(database, create=True)
    stored = found.record(
        account_id=account,
        evaluator_id=evaluator,
        profile_name=profile,
        score_raw=score,
        passed=passed,
        family=family,
        capture=capture,
    )
    if as_json:
        _print_json({"stored": stored, "location": found.location})
    else:
        what = "recorded in" if stored else f"not recorded (capture is {capture}, not always) in"
        sys.stdout.write(f"{what} {found.location}\n")


@history.command()
@reports_errors
def interval(  # noqa: PLR0913
    *,
    evaluator: Evaluator,
    profile: Profile,
    account: Account = "default",
    strategy: Annotated[
        str, typer.Option("--confidence-interval-strategy", "--strategy", help="full-history or none.")
    ] = "full-history",
    alpha: Annotated[float, typer.Option(help="The confidence level, in (0, 1).")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 0,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Print the interval of the mean of the latest 1,000 scores."""
    found = _open(database, create=False).interval(
        account_id=account,
        evaluator_id=evaluator,
        profile_name=profile,
        strategy=cast("Any", strategy),
        alpha=alpha,
        rng=seed,
    )
    if as_json:
        _print_json(asdict(found))
    else:
        sys.stdout.write(_interval_line(found) + "\n")
        if found.scores == 0 and found.strategy != "none":
            sys.stderr.write(
                f"nothing is recorded for account {account!r}, evaluator {evaluator!r} and profile {profile!r}: "
                "`calibrant history list` shows what is.\n"
            )


@history.command(name="list")
@reports_errors
def list_scopes(
    *,
    account: Annotated[str | None, typer.Option("--account", metavar="ID", help="Only this one's.")] = None,
    database: Database = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array: an object per scope.")
    ] = False,
) -> None:
    """List the recorded scores by account, evaluator and profile."""
    from datetime import UTC, datetime

    records = [
        {
            **summary.scope.columns(),
            "scores": summary.scores,
            "mean": summary.mean,
            "latest": datetime.fromtimestamp(summary.latest_seconds, tz=UTC).isoformat(timespec="seconds"),
        }
        for summary in _open(database, create=False).scopes(account_id=account)
    ]
    if as_json:
        _print_json(records)
        return
    for row in records:
        names = "  ".join(str(row[name]) for name in ("account_id", "evaluator_id", "profile_name"))
        sys.stdout.write(f"{names}\n    {row['scores']:,} scores, mean {row['mean']:.4f}, {row['latest']}\n")
    if not records:
        sys.stdout.write("nothing is recorded.\n")


def history_lines(entry: HistoryEntry) -> list[str]:
    """Return the history's summary of a run, in plain lines."""
    drift = entry.drift
    line = f"confidence, {drift.values:,} rows against {drift.history:,} earlier: "
    if drift.statistic is None:
        line += "too few to compare"
    else:
        line += (
            f"mean {drift.mean:.3f}, was {drift.history_mean:.3f}; Kolmogorov-Smirnov distance "
            f"{drift.statistic:.3f}, permutation p = {drift.p_value:.4f}"
        )
    return [f"accuracy, history: {_interval_line(entry.interval)}", line]


def _interval_line(found: HistoryInterval) -> str:
    if found.strategy == "none":
        return "no interval: the strategy is none"
    if found.lower is None:
        return f"no interval: expected at least 2 scores, found {found.scores}"
    remark = f" ({found.remark})" if found.remark else ""
    return (
        f"{found.median:.4f} ({found.lower:.4f} to {found.upper:.4f}), level {found.alpha:g}, latest "
        f"{found.scores:,} {found.score_type} scores{remark}"
    )


def _open(database: str | None, *, create: bool) -> EvaluationHistory:
    from calibrant.evaluation._history import EvaluationHistory

    return EvaluationHistory(database, create=create)


def _print_json(record: object) -> None:
    sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
