"""``calibrant calibrate``: labelled predictions in; thresholds, a calibrator and an acceptance rule, or a head out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.cli._tables import aligned, with_interval
from calibrant.core._errors import ConfigurationError
from calibrant.evaluation._calibrate import calibrate_predictions
from calibrant.evaluation._learn_head import learn_head
from calibrant.evaluation._saved import load_predictions
from calibrant.metrics._remarks import confidence_remarks, zero_width_remark
from calibrant.runs._directory import unfinished

if TYPE_CHECKING:
    from calibrant.calibration._certify import CertifiedThreshold
    from calibrant.evaluation._calibrate import CalibrationResult
    from calibrant.evaluation._learn_head import LearnedHead


def run_calibrate(
    path: Path, *, out: Path, target_accuracy: float | None, delta: float, seed: int, as_json: bool
) -> None:
    """Calibrate, write the files and print the results."""
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


def run_learn_head(
    path: Path,
    *,
    out: Path,
    certified: bool,
    seed: int,
    embeddings: str | None,
    as_json: bool,
) -> None:
    """Learn a head, write it and print its held-out gain."""
    if certified:
        raise ConfigurationError(
            "Expected --target-accuracy or --head, got both: evaluate with the head first, then certify that run."
        )
    found = learn_head(path, seed=seed, embeddings=embeddings)
    file = found.write(out)
    _warn(path, saved=True)
    if as_json:
        record = {**found.to_record(), "file": str(file)}
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
        return
    sys.stdout.write("\n".join(_head_lines(found, file)) + "\n")


def _head_lines(found: LearnedHead, file: Path) -> list[str]:
    head = found.head
    left_out = (
        f" (left out: {found.left_out:,} without a distribution or a true label)" if found.left_out else ""
    )
    lines = [f"{found.source}: a head ({head.rung}) from {head.n_rows:,} labelled rows{left_out}"]
    by_name = {one.name: one for one in head.figures}
    shown = [by_name[name] for name in dict.fromkeys(("as scored", head.rung)) if name in by_name]
    if shown:
        titles = {
            "log_loss": "log loss",
            "brier": "Brier score",
            "accuracy": "accuracy",
            "macro_f1": "macro F1",
        }
        rows = [[title, *(f"{getattr(one, name):.3f}" for one in shown)] for name, title in titles.items()]
        lines += aligned([["five-fold cross-validation", *(one.name for one in shown)], *rows])
    lines.append(head.reason)
    if head.changes_nothing:
        return [*lines, f"File: {file}"]
    lines.append("Evaluate it on other rows than these, from which it learned. In the task file:")
    lines += ["", "[head]", f"file = {json.dumps(str(file.resolve()), ensure_ascii=False)}", ""]
    words = " (it holds words of the texts)" if head.uses_text else ""
    return [*lines, f"File: {file}{words}"]


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
            [
                "calibration error (ECE)",
                with_interval(found.held_out.ece_before),
                with_interval(found.held_out.ece_after),
            ],
            [
                "Brier score",
                with_interval(found.held_out.brier_before),
                with_interval(found.held_out.brier_after),
            ],
        ]
    )
    tested = f"learned from {found.fit_rows:,} rows, tested on {found.held_out.rows:,} others"
    remarks = confidence_remarks(
        found.auroc,
        rows=found.rows - found.left_out.errors,
        rows_with_low_label_mass=found.rows_with_low_label_mass,
    )
    difference = with_interval(found.held_out.brier_difference, "+.4f")
    return [
        f"{found.source}: {tested}{_left_out(found)}",
        *table,
        *_width(found),
        f"Brier score, calibrated minus as given: {difference}; below 0 is better",
        f"Calibrator: {found.selection.reason}",
        *remarks,
        *_thresholds(found),
        *_certificate(found),
    ]


def _width(found: CalibrationResult) -> list[str]:
    """Return the explanation of intervals of width 0, if the table has one."""
    held_out = found.held_out
    remark = zero_width_remark(
        held_out.ece_before, held_out.ece_after, held_out.brier_before, held_out.brier_after
    )
    return [f"An interval has {remark}."] if remark else []


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
    meaning = (
        f"high {one.high:.4g} (an answer counts as sure), low {one.low:.4g} (below it as unsure), scoring "
        f"{one.scoring:.4g} (a right answer earns its full score)"
    )
    return [
        f"Thresholds: {meaning}",
        *(f"warning: {warning}" for warning in one.warnings),
    ]


def _certificate(found: CalibrationResult) -> list[str]:
    rule = found.certified
    if rule is None:
        return []
    if rule.threshold is None:
        return [f"Nothing certified: {_missing(rule)}"]
    line = (
        f"Certified: answers with a confidence of {rule.threshold:.6g} or more have at least accuracy "
        f"{rule.target_accuracy:g} with probability {1 - rule.delta:g}; of these {rule.n:,} rows it accepts "
        f"{rule.coverage:.1%}, {_share(rule.accuracy)} of them right."
    )
    return [line]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _missing(rule: CertifiedThreshold) -> str:
    """Return the reason that no threshold is certified."""
    if rule.additional_rows is None:
        return (
            f"No threshold reaches {rule.target_accuracy:g} accuracy on these {rule.n:,} rows; no group of confident "
            "answers large enough to tell was that accurate."
        )
    return (
        f"These {rule.n:,} rows are too few to promise {rule.target_accuracy:g} accuracy with probability "
        f"{1 - rule.delta:g}; about {rule.additional_rows:,} more labelled rows would do, if they are like these."
    )
