"""``calibrant certify``, ``estimate`` and ``review``: promises, figures and decisions, from labels asked for."""

from __future__ import annotations

import secrets
import shlex
import shutil
import subprocess
import webbrowser
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from calibrant import serving
from calibrant.calibration._asked import Metric
from calibrant.calibration._estimates import Estimate, PileEstimate
from calibrant.cli._commands import Certify, EstimateOptions, PromiseOptions, ReviewOptions
from calibrant.cli._tables import aligned, print_output, say
from calibrant.core._errors import ConfigurationError, ProviderError, StateError
from calibrant.core._prediction import Outcome
from calibrant.core._reported import counted
from calibrant.core._rows import ENDINGS
from calibrant.core._structures import CompositeLabels
from calibrant.evaluation._asked import (
    CERTIFICATE,
    DECIDED,
    NO_LABEL,
    TASKS,
    AnswerFile,
    AskedRows,
    LabelSource,
    RowsPromise,
    certify_saved,
)
from calibrant.evaluation._estimated import ESTIMATE, EstimatedRows, estimate_saved
from calibrant.runs._directory import unfinished
from calibrant.runs._rows import SavedRows

_ANSWERS: Final = "answers.csv"
_MODEL: Final = "model:"
_PATIENCE: Final = 300.0  # seconds that a command has for one answer


@dataclass(frozen=True, kw_only=True)
class _Command:
    """Command that reads a text and prints its label, with the name that errors give it."""

    name: str
    words: list[str]

    def __call__(self, text: str) -> str:
        try:
            done = subprocess.run(  # noqa: S603 (the user's own command)
                self.words, input=text, capture_output=True, text=True, timeout=_PATIENCE, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", "") or str(error)
            raise ConfigurationError(
                f"Expected {self.name} to read a text and to print its label, got {told.strip()[-200:]!r}: the "
                "answers before it are kept, so mend it and run the same command again."
            ) from error
        return done.stdout.strip()


def certify(options: Certify) -> None:
    """Ask for the labels, write the files and print the promise."""
    metric, label = metric_of(options)
    _require_finished(options.predictions)  # the promise is about all rows of the file
    rows = SavedRows.load(options.predictions)
    promise = RowsPromise(
        rows=rows,
        target=options.target,
        delta=options.delta,
        metric=metric,
        budget=options.budget,
        label=label,
    )
    with ExitStack() as stack:
        answer = answerer(options, stack)
        file = stack.enter_context(answers_of(options, rows))
        found = certify_saved(promise, file, answer=answer, asked=promise.asked_before(options.out))
        found = replace(found, agreement_with=_asked_model(options))
        found.write(options.out)
    print_output(found.to_record(), _lines(found, options, file), as_json=options.as_json)


def _require_finished(source: Path) -> None:
    why = unfinished(source)
    if why is not None:
        raise StateError(f"{source} {why}: run the command that wrote it again to finish it first.")


def metric_of(options: PromiseOptions) -> tuple[Metric, str | None]:
    """Return the metric of the promise, checked where it is asked for, and the label that it is about."""
    if options.recall is None:
        return cast("Metric", options.metric), options.predicted
    if options.predicted is not None:
        raise ConfigurationError(
            "Expected --predicted or --recall, got both: a promise is about the precision of a label, or its recall."
        )
    return "recall", options.recall


def answers_of(options: Certify | EstimateOptions, rows: SavedRows) -> AbstractContextManager[AnswerFile]:
    """Return the opened file of the answers: a person's, or that in the directory of the output."""
    path = _person_file(options.ask)
    if path is not None and path.suffix.lower() not in (".csv", TASKS):
        raise ConfigurationError(
            f"Expected a file of answers for --ask, got {options.ask}: name one in .csv, or a Label "
            f"Studio export in {TASKS}."
        )
    return AnswerFile.opened(options.out / _ANSWERS if path is None else path, rows)


def _person_file(ask: str) -> Path | None:
    """Return the file that a person answers in; None for a model, or a command, whose last word may be a file."""
    words = ask.split()
    path = Path(ask)
    is_command = len(words) > 1 and shutil.which(words[0])
    if is_command or path.suffix.lower() not in (*ENDINGS, TASKS):
        return None
    return path


def _asked_model(options: Certify | EstimateOptions) -> str | None:
    """Return the name of the model that is asked; None for a person or a command."""
    return options.ask.removeprefix(_MODEL) if options.ask.startswith(_MODEL) else None


def answerer(options: Certify | EstimateOptions, stack: ExitStack) -> LabelSource | None:
    """Return the source of labels: a larger model, or a command; None for a person."""
    if _person_file(options.ask) is not None:
        return None
    model = _asked_model(options)
    if model is not None:
        return _of_model(model, options, stack)
    try:
        words = shlex.split(options.ask)
    except ValueError:  # a quote that is not closed
        words = []
    if not words:
        raise ConfigurationError(
            f"Expected --ask to name a file of answers, a command, or {_MODEL}NAME, got {options.ask!r}."
        )

    return _Command(name=f"{options.ask!r} of --ask", words=words)


def _of_model(model: str, options: Certify | EstimateOptions, stack: ExitStack) -> LabelSource:
    from calibrant.inference._classifier import Classifier
    from calibrant.tuned._task_record import read_run_settings, task_from_record, with_model_alone

    if not options.predictions.is_dir():
        raise ConfigurationError(
            f"Expected a directory of calibrant label for --ask {options.ask}, got {options.predictions}, which does "
            "not say what its model was asked: name that directory, or a command that answers."
        )
    record = read_run_settings(options.predictions).tasks[0]
    own = task_from_record(record, place=options.predictions).task
    task = with_model_alone(own, model, api_base=options.api_base)
    predictor = stack.enter_context(Classifier.from_task(task))

    def answer(text: str) -> str:
        found = predictor.classify(text)
        if found.outcome is Outcome.ERROR:  # which is no answer
            raise ProviderError(
                f"{found.reason} (The answers before it are kept: run the same command again.)",
                provider=model,
                status=found.status,
            )
        return found.label or NO_LABEL

    return answer


def _lines(found: AskedRows, options: Certify, file: AnswerFile) -> Iterator[str]:
    certificate = found.certificate
    which = counted(len(found.places), "row")
    if options.predicted is not None:
        which += f" labelled {options.predicted}"
    if found.n_without_label:
        others = counted(found.n_without_label, "other has", "others have")
        which += f", {others} no label and {'is' if found.n_without_label == 1 else 'are'} in review"
    right = found.label if certificate.metric == "recall" else "as predicted"
    given = f"{counted(len(found.answers), 'label')} given"
    if found.agreement_with is not None:
        given += f" by {found.agreement_with}"
    given += f", {found.n_right:,} of them {right}"
    yield f"{found.rows.name}: {which}; {given if found.answers else 'no label given yet'}"
    if certificate.certified:
        yield f"Certified: {found.sentence()}"
    else:
        yield "Nothing certified."
    if found.waiting:
        yield file.waiting_line(found.waiting, found.rows)
    else:
        yield f"Why not more: {certificate.reason}"
    yield _files_line([CERTIFICATE, DECIDED], options, file)


def _files_line(names: list[str], options: Certify | EstimateOptions, file: AnswerFile) -> str:
    if file.answers and file.path.parent == options.out:
        names = [*names, file.path.name]
    return f"Files in {options.out}: {', '.join(names)}"


def estimate(options: EstimateOptions) -> None:
    """Ask for the labels, write the files and print the estimates."""
    _require_finished(options.predictions)
    rows = SavedRows.load(options.predictions)
    other = None
    if options.against is not None:
        other = SavedRows.load(options.against)
    with ExitStack() as stack:
        answer = answerer(options, stack)
        file = stack.enter_context(answers_of(options, rows))
        found = estimate_saved(rows, file, answer=answer, budget=options.budget, other=other)
        found = replace(found, agreement_with=_asked_model(options))
        found.write(options.out)
    print_output(found.to_record(), _estimate_lines(found, options, file), as_json=options.as_json)


def _estimate_lines(found: EstimatedRows, options: EstimateOptions, file: AnswerFile) -> Iterator[str]:
    given = "no label given yet"
    measured = "accuracy"
    if found.labels_used:
        given = f"{counted(found.labels_used, 'label')} used"
    if found.agreement_with is not None:
        given = f"{counted(found.labels_used, 'label')} of {found.agreement_with} used"
        measured = "agreement"
    yield f"{found.rows.name}: {counted(len(found.rows), 'row')}; {given}"
    if found.pile is not None:
        yield from _pile_lines(found.pile, len(found.rows), measured, holds_several=found.holds_several)
    if found.difference is not None and found.other is not None:
        yield from aligned(
            [
                ("", "estimate", "95 % interval", "plain sample"),
                (f"{measured} more than the other", *_cells(found.difference, sign="+")),
            ]
        )
        yield f"The other: {found.other.name}; both predict the same for all rows but {found.difference.rows_apart:,}."
    if found.waiting:
        yield file.waiting_line(found.waiting, found.rows)
    yield _files_line([ESTIMATE], options, file)


def _pile_lines(pile: PileEstimate, n: int, measured: str, *, holds_several: bool) -> Iterator[str]:
    table = [["label", "share", "95 % interval", "predicted", "plain sample"]]
    for label, found in pile.shares.items():
        predicted = f"{pile.predicted[label] / n:.1%}"
        table.append([label, *_cells(found, predicted=predicted)])
    whole = " of whole answers" if holds_several else ""
    table.append([f"{measured}{whole}", *_cells(pile.accuracy, predicted="")])
    if not holds_several:
        table.append(["macro F1", *_cells(pile.macro_f1, predicted="", form=".3f")])
    yield from aligned(table)
    yield "plain sample: labels that an interval so narrow takes without the predictions."
    if holds_several:
        yield "An answer may hold several of these labels: their shares do not add up to 100%."
        return
    total = sum(found.interval.estimate for found in pile.shares.values())
    others = pile.without_label
    if others:
        yield f"No label fits {others:,} of the {counted(pile.labels_used, 'row')} asked about: no share counts them."
    if f"{total:.1%}" != f"{1 - others / pile.labels_used:.1%}":
        yield f"Each share is estimated on its own; together they are {total:.1%}."


def _cells(found: Estimate, *, predicted: str | None = None, form: str = ".1%", sign: str = "") -> list[str]:
    form = sign + form
    interval = found.interval
    cells = [f"{interval.estimate:{form}}", f"{interval.lower:{form}} to {interval.upper:{form}}"]
    if predicted is not None:
        cells.append(predicted)
    return [*cells, f"{found.plain_labels:,}"]


def review(options: ReviewOptions) -> None:
    """Serve the page until Ctrl-C, then write the files and print what was decided."""
    create_app = serving.create_review_app  # first, as it says which extra is missing
    from calibrant.serving._server import serve_app

    if options.certify:
        _require_finished(options.source)
    token = secrets.token_urlsafe(24)
    with serving.Review.opened(options.source, options.out) as found:
        if options.certify:
            metric, label = metric_of(options)
            found.certify(
                target=options.target, delta=options.delta, metric=metric, label=label, budget=options.budget
            )

        def announce(address: str) -> None:
            page = f"{address}/?token={token}"
            rows = counted(len(found.rows), "row")
            line = f"{found.rows.name}: {rows} at {page}; the address opens once. Ctrl-C ends it."
            print_output({}, [line], as_json=False)
            if isinstance(found.rows.legal_labels, CompositeLabels):
                say(
                    f"Answers hold several labels: the page offers the {len(found.labels)} that occur. Others can be "
                    f"written into {found.path} once it is closed."
                )
            if options.show and not webbrowser.open(page):
                say("No browser was found: open that address in one.")

        serve_app(create_app(found, token=token), port=options.port, on_ready=announce)
        found.write()
        print_output({}, _review_lines(found), as_json=False)


def _review_lines(found: serving.Review) -> Iterator[str]:
    """Yield the number of answers, the promise, and the commands that take the answers on."""
    from calibrant.serving._review import REVIEWED

    yield f"{counted(found.n_answered, 'row has', 'rows have')} an answer in {found.path}."
    promise = found.promise()
    if promise is not None:
        yield f"Certified: {promise['sentence']}" if promise["certified"] else promise["sentence"]
        yield f"Why not more: {promise['reason']}"
        if promise["used"]:
            yield f"Files in {found.out}: {CERTIFICATE}, {DECIDED}; run the same command again to go on."
    path = found.out / REVIEWED
    yield f"{path} has every row, with its final label where one fits."
    labels = set(found.answers().values())
    labels.discard(NO_LABEL)
    if len(labels) > 1:
        words = ["calibrant", "init", str(path), "--text-column", "input", "--label-column", "answer"]
        yield "To learn from the answers, make a task of it:"
        yield f"  {shlex.join(words)}"
