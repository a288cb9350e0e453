"""``calibrant history``: evaluators' scores, recorded and summarized."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from calibrant.cli._options import command
from calibrant.cli._tables import print_output, say
from calibrant.evaluation._history import EvaluationHistory

if TYPE_CHECKING:
    from calibrant.evaluation._history import HistoryInterval
    from calibrant.evaluation._history_run import HistoryEntry

history = typer.Typer(name="history", no_args_is_help=True, add_completion=False)
_Database = Annotated[str | None, typer.Option("--history")]


@command(history)
def record(  # noqa: PLR0913  (keyword-only options)
    *,
    evaluator: str,
    profile: str,
    score: float,
    account: str = "default",
    passed: Annotated[bool | None, typer.Option("--passed/--failed")] = None,
    family: str | None = None,
    capture: str = "always",
    database: _Database = None,
    as_json: bool = False,
) -> None:
    """Record a single result.

    Parameters
    ----------
    evaluator : ID
        Evaluator of the scores.
    profile : NAME
        Under which settings.
    score
        The raw score; 0 or 1 of a binary family.
    account : ID
        Whose scores.
    passed
        The pass flag; of binary families, the score.
    family
        Family of the evaluator, such as custom.
    capture
        Single results are stored under always alone.
    database : URL
        The database, a file or URL; else $CALIBRANT_HISTORY.
    """
    opened = EvaluationHistory(database)
    stored = opened.record(
        account_id=account,
        evaluator_id=evaluator,
        profile_name=profile,
        score_raw=score,
        passed=passed,
        family=family,
        capture=capture,
    )
    done = "recorded in" if stored else f"not recorded (capture is {capture}, not always) in"
    result = {"stored": stored, "location": opened.location}
    print_output(result, [f"{done} {opened.location}"], as_json=as_json)


@command(history)
def interval(  # noqa: PLR0913  (keyword-only options)
    *,
    evaluator: str,
    profile: str,
    account: str = "default",
    strategy: Annotated[str, typer.Option("--confidence-interval-strategy", "--strategy")] = "full-history",
    alpha: float = 0.95,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    database: _Database = None,
    as_json: bool = False,
) -> None:
    """Print the interval of the mean of the latest 1,000 scores.

    Parameters
    ----------
    evaluator : ID
        Evaluator of the scores.
    profile : NAME
        Under which settings.
    account : ID
        Whose scores.
    strategy
        full-history or none.
    alpha
        The confidence level, in (0, 1).
    seed
        Seed of the resampling.
    database : URL
        The database, a file or URL; else $CALIBRANT_HISTORY.
    """
    found = EvaluationHistory(database, create=False).interval(
        account_id=account,
        evaluator_id=evaluator,
        profile_name=profile,
        strategy=cast("Any", strategy),
        alpha=alpha,
        rng=seed,
    )
    print_output(asdict(found), [_interval_line(found)], as_json=as_json)
    if found.scores == 0 and found.strategy != "none" and not as_json:
        say(
            f"nothing is recorded for account {account!r}, evaluator {evaluator!r} and profile {profile!r}: "
            "`calibrant history list` shows what is."
        )


@command(history, "list")
def list_scopes(*, account: str | None = None, database: _Database = None, as_json: bool = False) -> None:
    """List the recorded scores by account, evaluator and profile.

    Parameters
    ----------
    account : ID
        Only this one's.
    database : URL
        The database, a file or URL; else $CALIBRANT_HISTORY.
    as_json
        Print one JSON array: an object per scope.
    """
    records, lines = [], []
    for summary in EvaluationHistory(database, create=False).scopes(account_id=account):
        names, scores, mean = summary.scope.columns(), summary.scores, summary.mean
        latest = datetime.fromtimestamp(summary.latest_seconds, tz=UTC).isoformat(timespec="seconds")
        records.append({**names, "scores": scores, "mean": mean, "latest": latest})
        lines.append("  ".join(names[name] for name in ("account_id", "evaluator_id", "profile_name")))
        lines.append(f"    {scores:,} scores, mean {mean:.4f}, {latest}")
    print_output(records, lines or ["nothing is recorded."], as_json=as_json)


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
