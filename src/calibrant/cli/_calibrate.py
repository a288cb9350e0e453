"""``calibrant calibrate``: labelled predictions in; thresholds, a calibrator and an acceptance rule out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.cli._tables import aligned, with_interval
from calibrant.evaluation import calibrate_predictions, load_predictions, unfinished

if TYPE_CHECKING:
    from calibrant.calibration import CertifiedThreshold
    from calibrant.evaluation import CalibrationResult

__all__ = ["run_calibrate"]


def run_calibrate(
    path: Path, *, out: Path, target_accuracy: float | None, delta: float, seed: int, as_json: bool
) -> None:
    """Calibrate, write the files and print what was found."""
    found = calibrate_predictions(
        load_predictions(path), target_accuracy=target_accuracy, delta=delta, seed=seed
    )
    files = found.write(out)
    _warn(path, saved=found.fingerprint is not None)
    if as_json:
        sys.stdout.write(json.dumps(found.to_record(), ensure_ascii=False) + "\n")
        return
    names = ", ".join(file.name for file in files)
    lines = [*_lines(found), f"Files in {out}: {names}"]
    sys.stdout.write("\n".join(lines) + "\n")


def _warn(path: Path, *, saved: bool) -> None:
    if (why := unfinished(path)) is not None:
        sys.stderr.write(f"warning: {path} {why}: only the rows that are there were used.\n")
    if not saved:
        sys.stderr.write(
            "the calibrator was not saved: nothing says which prompt and model these predictions are from. Give "
            "the directory of the run instead of the file alone.\n"
        )


def _lines(found: CalibrationResult) -> list[str]:
    table = aligned(
        [
            ["", "as given", f"calibrated: {found.selection.name}"],
            ["ECE", with_interval(found.held_out.ece_before), with_interval(found.held_out.ece_after)],
            ["Brier", with_interval(found.held_out.brier_before), with_interval(found.held_out.brier_after)],
        ]
    )
    return [
        f"{found.source}: {found.fit_rows:,} rows fitted, {found.held_out.rows:,} others tested{_left_out(found)}",
        *table,
        f"Brier, calibrated minus as given: {with_interval(found.held_out.brier_difference, '+.4f')}",
        found.selection.reason,
        *_thresholds(found),
        *_certificate(found),
    ]


def _left_out(found: CalibrationResult) -> str:
    counts = {
        "failed": found.left_out.errors,
        "without a true label": found.left_out.unlabelled,
        "without a confidence": found.left_out.without_confidence,
    }
    named = ", ".join(f"{count:,} {why}" for why, count in counts.items() if count)
    return f" (left out: {named})" if named else ""


def _thresholds(found: CalibrationResult) -> list[str]:
    one = found.thresholds
    if isinstance(one, str):
        return [f"No thresholds: {one}"]
    return [
        f"Thresholds: high {one.high:.4g}, low {one.low:.4g}, scoring {one.scoring:.4g}",
        *(f"warning: {warning}" for warning in one.warnings),
    ]


def _certificate(found: CalibrationResult) -> list[str]:
    rule = found.certified
    if rule is None:
        return []
    target = f"accuracy {rule.target_accuracy:g} with probability {1 - rule.delta:g}"
    if rule.threshold is None:
        return [f"Nothing certified: {rule.n:,} rows prove {target} for no threshold; {_needed(rule)}."]
    line = (
        f"Certified: answers from {rule.threshold:.6g} have at least {target}; {rule.coverage:.1%} of {rule.n:,} "
        f"rows are accepted, {_share(rule.accuracy)} of them right."
    )
    return [line]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _needed(rule: CertifiedThreshold) -> str:
    if rule.additional_rows is None:
        return "no larger part of the rows was observed above that target, so more rows would hardly help"
    return f"about {rule.additional_rows:,} more labelled rows would, if they were like these"
