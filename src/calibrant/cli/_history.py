"""``calibrant history``: evaluators' scores, recorded and summarized."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, cast

from calibrant.cli._app import ListScopes, Record, ScoreInterval
from calibrant.cli._tables import print_output, say
from calibrant.core._reported import counted
from calibrant.evaluation._history import EvaluationHistory, HistoryEntry, HistoryInterval


def record(options: Record) -> None:
    """Record a single result."""
    opened = EvaluationHistory(options.history)
    capture = options.capture
    stored = opened.record(
        account_id=options.account,
        evaluator_id=options.evaluator,
        profile_name=options.profile,
        score_raw=options.score,
        passed=options.passed,
        family=options.family,
        capture=capture,
    )
    done = "recorded in" if stored else f"not recorded (capture is {capture}, not always) in"
    result = {"stored": stored, "location": opened.location}
    print_output(result, [f"{done} {opened.location}"], as_json=options.as_json)


def interval(options: ScoreInterval) -> None:
    """Print the interval of the mean of the latest scores."""
    account = options.account
    evaluator = options.evaluator
    profile = options.profile
    found = EvaluationHistory(options.history, create=False).interval(
        account_id=account,
        evaluator_id=evaluator,
        profile_name=profile,
        strategy=cast("Any", options.strategy),
        alpha=options.alpha,
        rng=options.seed,
    )
    print_output(asdict(found), [_interval_line(found)], as_json=options.as_json)
    if found.scores == 0 and found.strategy != "none" and not options.as_json:
        say(
            f"nothing is recorded for account {account!r}, evaluator {evaluator!r} and profile {profile!r}: "
            f"`calibrant history list --history {shlex.quote(str(options.history))}` shows what is."
        )


def list_scopes(options: ListScopes) -> None:
    """List the recorded scores by account, evaluator and profile."""
    records = []
    lines = []
    for summary in EvaluationHistory(options.history, create=False).scopes(account_id=options.account):
        names = summary.scope.columns()
        scores = summary.scores
        mean = summary.mean
        latest = datetime.fromtimestamp(summary.latest_seconds, tz=UTC).isoformat(timespec="seconds")
        records.append({**names, "scores": scores, "mean": mean, "latest": latest})
        lines.append("  ".join(names[name] for name in ("account_id", "evaluator_id", "profile_name")))
        lines.append(f"    {counted(scores, 'score')}, mean {mean:.4f}, {latest}")
    print_output(records, lines or ["nothing is recorded."], as_json=options.as_json)


def history_lines(entry: HistoryEntry) -> list[str]:
    """Return the history's summary of a run, in plain lines."""
    drift = entry.drift
    line = f"confidence, {counted(drift.values, 'row')} against {drift.history:,} earlier: "
    if drift.statistic is None:
        line += "too few to compare"
    else:
        line += (
            f"mean {drift.mean:.3f}, was {drift.history_mean:.3f}; Kolmogorov-Smirnov distance "
            f"{drift.statistic:.3f}, p = {drift.p_value:.2g}"
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
