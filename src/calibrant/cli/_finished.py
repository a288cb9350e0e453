"""Commands on finished runs: ``calibrant calibrate``, ``distill``, ``compare``, ``report`` and ``export``."""

from __future__ import annotations

import json
import shlex
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibrant import evaluation, reports
from calibrant.calibration._thresholds import asked_options, certificate_lines, promise_sentence
from calibrant.cli._tables import (
    aligned,
    check_tracking,
    number,
    print_output,
    say,
    track,
    vectors_text,
    with_interval,
)
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Usage
from calibrant.core._reported import counted
from calibrant.core._task import Task
from calibrant.evaluation._figures import LABELS_ANSWERED, figure_warnings
from calibrant.evaluation._looks import CertificateRequest
from calibrant.metrics._remarks import confidence_remarks
from calibrant.runs._directory import METRICS, RESULT, unfinished
from calibrant.runs._rows import SavedRows
from calibrant.tuned._folder import refuse_taken, save
from calibrant.tuned._open import from_run
from calibrant.tuned._sources import kind_of_source
from calibrant.tuned._task_record import BUNDLE, with_model_alone

if TYPE_CHECKING:
    from calibrant.cli._commands import Calibrate, Distill, Export, Report
    from calibrant.evaluation._learned import CalibrationResult, LearnedHead
    from calibrant.heads._linear import HeadEmbedding
    from calibrant.heads._tuned import Tuned
    from calibrant.tuned._distilled import Distilled

_HEAD_FIGURES: Final = {
    "log_loss": "log loss",
    "brier": "Brier score",
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
}


def calibrate(options: Calibrate) -> None:
    """Calibrate or learn a head, write the files and print the results."""
    predictions = options.predictions
    out = options.out
    seed = options.seed
    if options.embeddings is not None and options.no_embeddings:
        raise ConfigurationError("Expected --embeddings or --no-embeddings, got both: leave one out.")
    if options.fresh_test is not None:
        _answer_fresh_rows(options, options.fresh_test)
        predictions = out
    if not options.head and options.embeddings is None:
        rows = SavedRows.load(predictions)
        result = evaluation.calibrate_predictions(
            rows,
            target_accuracy=options.target_accuracy,
            delta=options.delta,
            looks=options.looks,
            seed=seed,
        )
        result = result.keeping_certificate(out)
        files = ", ".join(file.name for file in result.write(out))
        _warn(rows, predictions, saved=result.fingerprint is not None)
        promise = _promise_lines(result, run=predictions, out=out)
        lines = [*_calibration_lines(result), *promise, f"Files in {out}: {files}"]
        print_output(result.to_record(), lines, as_json=options.as_json)
        return
    if options.target_accuracy is not None:
        raise ConfigurationError(
            "Expected --target-accuracy or --head, got both: evaluate with the head first, then certify that run."
        )
    embeddings = False if options.no_embeddings else options.embeddings
    learned = evaluation.learn_head(predictions, seed=seed, embeddings=embeddings)
    file = learned.write(out)
    _warn(SavedRows.load(predictions), predictions, saved=True)
    record = {**learned.to_record(), "file": str(file)}
    print_output(record, _head_lines(learned, file), as_json=options.as_json)


def _answer_fresh_rows(options: Calibrate, file: Path) -> None:
    """Answer the rows of --fresh-test into --out, once the other options are known to fit."""
    if options.target_accuracy is None:
        raise ConfigurationError("Expected --target-accuracy with --fresh-test, got the rows alone: name it.")
    if options.head or options.embeddings is not None:
        raise ConfigurationError(
            "Expected --fresh-test without --head and --embeddings: a head learns from other rows."
        )
    # A number out of range costs no call.
    CertificateRequest(target_accuracy=options.target_accuracy, delta=options.delta, looks=options.looks)
    from calibrant.cli._evaluate import answer_fresh_rows  # finished runs are asked nothing

    answer_fresh_rows(options.predictions, file, out=options.out)


def _head_lines(found: LearnedHead, file: Path) -> Iterator[str]:
    head = found.head
    left_out = ""
    if found.left_out:
        left_out = f" (left out: {found.left_out:,} without a distribution or a true label)"
    yield f"{found.source}: a head ({head.title}) from {head.n_rows:,} labelled rows{left_out}"
    if head.figures:
        table = [["five-fold cross-validation", *(one.name for one in head.figures)]]
        for name, title in _HEAD_FIGURES.items():
            table.append([title, *(number(getattr(one, name)) for one in head.figures)])
        yield from aligned(table)
    yield head.reason
    words = ""
    if not head.changes_nothing:
        yield "Evaluate it on other rows than these, from which it learned. In the task file:"
        yield from ("", "[head]", f"file = {json.dumps(str(file.resolve()), ensure_ascii=False)}", "")
        if head.uses_text:
            words = " (it holds words of the texts)"
    if found.vectors != Usage():
        yield f"Paid: {vectors_text(found.vectors)}."
    yield f"File: {file}{words}"


def warn_of_stand_ins(rows: SavedRows) -> None:
    """Print a warning of saved rows, or a student's, whose answers are a larger model's labels."""
    if rows.has_stand_ins:
        say(
            f"warning: {rows.name} has no true label of some rows, and the model's own in their place: what is said of "
            "these rows is agreement with that model, not being right."
        )


def _warn(rows: SavedRows, path: Path, *, saved: bool) -> None:
    warn_of_stand_ins(rows)
    why = unfinished(path)
    if why is not None:
        say(f"warning: {path} {why}: only the rows that are there were used.")
    if not saved:
        say(
            "the calibrator was not saved: nothing says which prompt and model these predictions are from. Give "
            "the directory of the run instead of the file alone."
        )


def _calibration_lines(found: CalibrationResult) -> Iterator[str]:
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
    difference = with_interval(held_out.brier_difference, "+.4f")
    yield f"Brier score, calibrated minus as given: {difference}; below 0 is better"
    if held_out.brier_difference.lower > 0.0:
        yield "warning: on these rows the calibrated confidences are worse, by more than chance explains."
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


def _promise_lines(found: CalibrationResult, *, run: Path, out: Path) -> Iterator[str]:
    """Yield lines on the certificate that was asked for, and on the one that decides."""
    if found.certified is not None:
        yield from certificate_lines(found.certified, run=run, out=out)
    if found.replaced is not None:
        target = f"{found.replaced.target_accuracy:g}"
        again = shlex.join(
            ["calibrant", "calibrate", str(run), *asked_options(found.replaced), "--out", str(out)]
        )
        yield (
            f"That replaces the certificate of accuracy {target} in {out}; to have that again, which counts once while "
            f"the answers are the same: {again}"
        )
    if found.kept is not None and found.kept.threshold is not None:
        yield f"The certificate in {out} stays as it is: {promise_sentence(found.kept)}"
    elif found.kept is not None:
        yield f"What {out} says of its certificate stays as it is. {next(certificate_lines(found.kept))}"
    elif found.certified is None:
        yield (
            "No answer is accepted by these thresholds, which promise nothing. To certify one, add --target-accuracy "
            "0.9, or another accuracy; `calibrant label --accept-suggested` accepts from the high one on all the same."
        )


def _left_out(found: CalibrationResult) -> str:
    counts = {
        "failed": found.left_out.errors,
        "without a true label": found.left_out.unlabelled,
        "without a confidence": found.left_out.without_confidence,
    }
    named = ", ".join(f"{count:,} {why}" for why, count in counts.items() if count)
    return f" (left out: {named})" if named else ""


def distill(options: Distill) -> None:
    """Learn the student, write its files and print what it may keep."""
    from calibrant.tuned._distilled import distill as distilled  # other commands learn no student

    found = distilled(options.run, options.out, embeddings=options.embeddings)
    print_output(found.to_record(), _student_lines(found), as_json=options.as_json)


def _student_lines(found: Distilled) -> Iterator[str]:
    from calibrant.tuned._distilled import DELTA, EPSILON

    left_out = ""
    if found.left_out:
        left_out = f" (left out: {found.left_out:,} without a text or a label)"
    yield (
        f"{found.source}: a student ({found.head.title}) from {found.taught:,} rows, measured on {found.held_out:,} "
        f"others{left_out}"
    )
    rows = [["", "student", "model"], ["says what the model says", with_interval(found.agreement), ""]]
    if found.labelled:
        accuracies = map(with_interval, (found.accuracy, found.model_accuracy))
        rows.append([f"accuracy, {counted(found.labelled, 'row')} with a true label", *accuracies])
    yield from aligned(rows)
    if found.labelled < found.held_out:
        yield f"On {counted(found.held_out - found.labelled, 'row')} the model's label stands in for the true one."
    certified = found.certified
    if certified.share_small > 0.0:
        yield (
            f"Certified: the student may answer {certified.share_small:.1%} of the texts, its surest ones; with "
            f"probability {1 - found.delta:.4g}, at most {EPSILON:g} of the accuracy is lost against always asking the "
            "model."
        )
        plan = f"calibrant cascade plan {found.directory} {found.model_rows} --small-cost 0 --large-cost 1"
        yield from ("To have it answer first:", f"  {plan} --out {found.directory}/plan")
    else:
        yield (
            f"Nothing certified: these rows do not show that the student may answer any text at a loss of at most "
            f"{EPSILON:g}. Label more texts with the model, or give it vectors (--embeddings)."
        )
    if found.delta > DELTA:
        yield "Earlier certificates of these rows are allowed for."
    yield (
        f"Files in {found.directory}: student.json (it holds words of the texts), {found.model_rows.name}, and the "
        "student's answers to the held-out rows"
    )


def report(options: Report) -> None:
    """Write the page, print its path, log the runs and open the page, if requested."""
    check_tracking(options.track)
    for directory in options.directories:
        kind = kind_of_source(directory)
        if kind != "run":
            # Any file counts as a task file there, also one of predictions.
            got = "a bundle, which holds no predictions" if kind == "bundle" else "a file"
            raise ConfigurationError(
                f"{directory}: expected the directory of a run, got {got}: name the run's directory."
            )
        if options.track is not None and not any((directory / name).exists() for name in (METRICS, RESULT)):
            raise ConfigurationError(
                f"{directory}: expected a run of evaluate or optimize with --track, found neither {METRICS} nor "
                f"{RESULT}: leave --track out."
            )
    path = reports.write_report(*options.directories, out=options.out)
    print_output({"report": str(path)}, [str(path)], as_json=options.as_json)
    track(options.track, *options.directories)
    if options.show:
        webbrowser.open(path.resolve().as_uri())


def export(options: Export) -> None:
    """Write the bundle and print its contents."""
    out = options.out
    task = None
    if (options.run / BUNDLE).exists():
        raise ConfigurationError(
            f"{options.run}: expected the directory of a run, got a bundle, which is exported already: copy the folder."
        )
    if options.task is not None:
        task = Task.from_file(options.task, splits=())
        task = with_model_alone(task, options.model, api_base=options.api_base)
    else:
        for name, value in {"--model": options.model, "--api-base": options.api_base}.items():
            if value is not None:
                raise ConfigurationError(
                    f"Expected --task with {name}, got {name} alone: the run knows its model."
                )
    refuse_taken(out)
    found = from_run(options.run, task=task, calibration=options.calibration, texts=options.texts)
    saved = save(found, out)
    record = {"bundle": str(out), "name": saved.name, "sha256": saved.digest}
    print_output(record, _contents(saved, out), as_json=options.as_json)


def _cost_of_vectors(embedding: HeadEmbedding) -> str:
    """Return a sentence on the time that vectors of texts add to answers."""
    seconds = embedding.seconds_per_text
    if seconds is not None:
        added = f"adds about {seconds:.2g} s of processor time to its answer"
    elif embedding.name.startswith("model2vec"):
        added = "adds next to nothing to its answer"
    else:
        added = "takes a call of that model"
    return f"The head reads vectors of the texts by {embedding.name}: a new text {added}."


def _contents(tuned: Tuned, out: Path) -> Iterator[str]:
    yield f"{tuned.name}: {out}"
    yield f"SHA-256 of the bundle: {tuned.digest}"
    left_out = []
    for own in tuned.tasks:
        left_out += [f"{', '.join(options)} of {model}" for model, options in own.left_out.items()]
    if left_out:
        yield f"Left out, as they may be credentials: {'; '.join(left_out)}."
    n_texts = sum(len(own.task.train) for own in tuned.tasks if own.task.demonstrations is not None)
    if n_texts:
        remedy = ""
        if tuned.plan is None:
            remedy = " (--no-texts leaves them out)"
        yield (
            f"It holds {counted(n_texts, 'training text')} with their labels: whoever has the folder can read "
            f"them{remedy}."
        )
    if tuned.head is not None and tuned.head.embedding is not None:
        yield _cost_of_vectors(tuned.head.embedding)
    figures = tuned.figures
    shown = [one for one in figures if "macro F1" in one.name or one.name == LABELS_ANSWERED]
    if shown:
        yield "; ".join(f"{figure.name} {figure.estimate:.3f}" for figure in shown) + "."
    for warning in figure_warnings(figures):
        yield f"warning: {warning}"
    yield f'Load it with calibrant.load("{out}"); how good it is stands in {out}/figures.json.'
