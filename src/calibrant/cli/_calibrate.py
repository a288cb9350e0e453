"""``calibrant calibrate``: labelled predictions in; thresholds, a calibrator and an acceptance rule, or a head out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibrant import evaluation
from calibrant.cli._tables import aligned, number, print_output, say, with_interval
from calibrant.core._errors import ConfigurationError
from calibrant.metrics._remarks import confidence_remarks, zero_width_remark
from calibrant.runs._directory import unfinished

if TYPE_CHECKING:
    from calibrant.calibration._certify import CertifiedThreshold
    from calibrant.cli._commands import Calibrate
    from calibrant.evaluation._calibrate import CalibrationResult
    from calibrant.evaluation._learn_head import LearnedHead

_HEAD_FIGURES: Final = {
    "log_loss": "log loss",
    "brier": "Brier score",
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
}


def calibrate(options: Calibrate) -> None:
    """Calibrate or learn a head, write the files and print the results."""
    predictions, out, seed = options.predictions, options.out, options.seed
    if not options.head and options.embeddings is None:
        result = evaluation.calibrate_predictions(
            evaluation.load_predictions(predictions),
            target_accuracy=options.target_accuracy,
            delta=options.delta,
            seed=seed,
        )
        files = ", ".join(file.name for file in result.write(out))
        _warn(predictions, saved=result.fingerprint is not None)
        lines = [*_lines(result), f"Files in {out}: {files}"]
        print_output(result.to_record(), lines, as_json=options.as_json)
        return
    if options.target_accuracy is not None:
        raise ConfigurationError(
            "Expected --target-accuracy or --head, got both: evaluate with the head first, then certify that run."
        )
    learned = evaluation.learn_head(predictions, seed=seed, embeddings=options.embeddings)
    file = learned.write(out)
    _warn(predictions, saved=True)
    record = {**learned.to_record(), "file": str(file)}
    print_output(record, _head_lines(learned, file), as_json=options.as_json)


def _head_lines(found: LearnedHead, file: Path) -> Iterator[str]:
    head = found.head
    left_out = (
        f" (left out: {found.left_out:,} without a distribution or a true label)" if found.left_out else ""
    )
    yield f"{found.source}: a head ({head.rung}) from {head.n_rows:,} labelled rows{left_out}"
    by_name = {one.name: one for one in head.figures}
    shown = [by_name[name] for name in dict.fromkeys(("as scored", head.rung)) if name in by_name]
    if shown:
        rows = [
            [title, *(number(getattr(one, name)) for one in shown)] for name, title in _HEAD_FIGURES.items()
        ]
        yield from aligned([["five-fold cross-validation", *(one.name for one in shown)], *rows])
    yield head.reason
    words = ""
    if not head.changes_nothing:
        yield "Evaluate it on other rows than these, from which it learned. In the task file:"
        yield from ("", "[head]", f"file = {json.dumps(str(file.resolve()), ensure_ascii=False)}", "")
        words = " (it holds words of the texts)" if head.uses_text else ""
    yield f"File: {file}{words}"


def _warn(path: Path, *, saved: bool) -> None:
    if (why := unfinished(path)) is not None:
        say(f"warning: {path} {why}: only the rows that are there were used.")
    if not saved:
        say(
            "the calibrator was not saved: nothing says which prompt and model these predictions are from. Give "
            "the directory of the run instead of the file alone."
        )


def _lines(found: CalibrationResult) -> Iterator[str]:
    held_out = found.held_out
    yield f"{found.source}: learned from {found.fit_rows:,} rows, tested on {held_out.rows:,} others{_left_out(found)}"
    errors = (held_out.ece_before, held_out.ece_after)
    briers = (held_out.brier_before, held_out.brier_after)
    yield from aligned(
        [
            ["", "as given", f"calibrated: {found.selection.name}"],
            ["calibration error (ECE)", *map(with_interval, errors)],
            ["Brier score", *map(with_interval, briers)],
        ]
    )
    remark = zero_width_remark(*errors, *briers)
    if remark:
        yield f"An interval has {remark}."
    difference = with_interval(held_out.brier_difference, "+.4f")
    yield f"Brier score, calibrated minus as given: {difference}; below 0 is better"
    yield f"Calibrator: {found.selection.reason}"
    yield from confidence_remarks(
        found.auroc,
        rows=found.rows - found.left_out.errors,
        rows_with_low_label_mass=found.rows_with_low_label_mass,
    )
    chosen = found.thresholds
    if isinstance(chosen, str):
        yield f"No thresholds: {chosen}"
    else:
        yield (
            f"Thresholds: high {chosen.high:.4g} (an answer counts as sure), low {chosen.low:.4g} (below it as "
            f"unsure), scoring {chosen.scoring:.4g} (a right answer earns its full score)"
        )
        yield from (f"warning: {warning}" for warning in chosen.warnings)
    if found.certified is not None:
        yield _certificate(found.certified)


def _left_out(found: CalibrationResult) -> str:
    counts = {
        "failed": found.left_out.errors,
        "without a true label": found.left_out.unlabelled,
        "without a confidence": found.left_out.without_confidence,
    }
    named = ", ".join(f"{count:,} {why}" for why, count in counts.items() if count)
    return f" (left out: {named})" if named else ""


def _certificate(rule: CertifiedThreshold) -> str:
    """Return the certified threshold, or the reason for none."""
    if rule.threshold is not None:
        return (
            f"Certified: answers with a confidence of {rule.threshold:.6g} or more have at least accuracy "
            f"{rule.target_accuracy:g} with probability {1 - rule.delta:g}; of these {rule.n:,} rows it accepts "
            f"{rule.coverage:.1%}, {number(rule.accuracy, '.1%')} of them right."
        )
    if rule.additional_rows is None:
        return (
            f"Nothing certified: No threshold reaches {rule.target_accuracy:g} accuracy on these {rule.n:,} rows; no "
            "group of confident answers large enough to tell was that accurate."
        )
    return (
        f"Nothing certified: These {rule.n:,} rows are too few to promise {rule.target_accuracy:g} accuracy with "
        f"probability {1 - rule.delta:g}; about {rule.additional_rows:,} more labelled rows would do, if they are "
        "like these."
    )
