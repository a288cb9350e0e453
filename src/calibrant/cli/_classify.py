"""``calibrant classify``: texts in, labels and confidence out."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli._context import with_context
from calibrant.cli._errors import FAILED
from calibrant.cli._prompted import open_prompted
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Outcome
from calibrant.core._rows import Example, TextWithContext, read_texts
from calibrant.core._task import Task
from calibrant.runs._records import row_record

if TYPE_CHECKING:
    from calibrant.core._prediction import Prediction
    from calibrant.inference._predictor import BasePredictor


def run_classify(  # noqa: PLR0913  (keyword-only options)
    task_file: Path,
    *,
    texts: list[str],
    file: Path | None,
    prompt: Path | None,
    model: str | None,
    as_json: bool,
    run: Path | None = None,
    label_prior: Path | None = None,
    context: str | None = None,
    context_column: str | None = None,
) -> None:
    """Open the task's classifier, and classify with it; see `print_predictions`."""
    if not texts and file is None:
        raise ConfigurationError("Expected --text or --file, got neither.")
    task = with_context(Task.from_file(task_file), context=context, column=context_column)
    given = all_texts(texts, file, task)
    classifier = open_prompted(task, model=model, prompt=prompt, run=run, label_prior=label_prior)
    try:
        print_predictions(classifier, given, as_json=as_json)
    finally:
        classifier.close()


def all_texts(texts: Sequence[str], file: Path | None, task: Task) -> list[str | TextWithContext]:
    """Return the texts named on the command line, then those of the file.

    Raises
    ------
    ConfigurationError
        A text is not UTF-8.
    """
    _check_arguments(texts)
    return [*texts, *([] if file is None else read_texts(file, columns=task.columns))]


def print_predictions(
    classifier: BasePredictor, texts: list[str | TextWithContext], *, as_json: bool, with_model: bool = False
) -> None:
    """Classify and print one line per text, each as soon as it and all before it are answered.

    Exits with 1 where no text was answered.

    Parameters
    ----------
    classifier : Classifier or Cascade
        Classifier of the texts; it is left open.
    texts : list of str or TextWithContext
        Texts to classify.
    as_json : bool
        True to print JSON objects.
    with_model : bool, default False
        True to name the answering model in plain lines.
    """
    listing = _Listing(texts, as_json=as_json, with_model=with_model)
    try:
        predictions = classifier.classify_many(texts, on_prediction=listing.add)
    except _ReaderGoneError:
        _discard_output()
        return
    if all(prediction.outcome is Outcome.ERROR for prediction in predictions):
        raise SystemExit(FAILED)


class _ReaderGoneError(Exception):
    """Signals a closed output pipe, as `head` leaves it: no further text need be paid for."""


class _Listing:
    """Prints rows in the order of the texts, whatever the order of the answers."""

    def __init__(self, texts: list[str | TextWithContext], *, as_json: bool, with_model: bool) -> None:
        self._texts = texts
        self._with_model = with_model
        self._as_json = as_json
        self._waiting: dict[int, Prediction] = {}
        self._printed = 0

    def add(self, index: int, prediction: Prediction) -> None:
        """Print the row if all before it are printed, and those that waited for it."""
        self._waiting[index] = prediction
        lines = []
        while self._printed in self._waiting:
            ready = self._waiting.pop(self._printed)
            given = self._texts[self._printed]
            text = given.text if isinstance(given, TextWithContext) else given
            lines.append(_line(text, ready, as_json=self._as_json, with_model=self._with_model) + "\n")
            self._printed += 1
        if not lines:
            return
        try:
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _ReaderGoneError from error


def _discard_output() -> None:
    """Discard buffered output, which the interpreter would fail to flush at exit."""
    with contextlib.suppress(OSError, ValueError):  # standard output may be no real file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _check_arguments(texts: Sequence[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            msg = f"Expected --text in UTF-8, got {text!r:.80}: put it into a UTF-8 file and pass --file."
            raise ConfigurationError(msg) from error


def _line(text: str, prediction: Prediction, *, as_json: bool, with_model: bool) -> str:
    if as_json:
        return json.dumps(_record(text, prediction), ensure_ascii=False)
    shown = f"{_answered_by(prediction)}\t{_shorten(text)}" if with_model else _shorten(text)
    if prediction.outcome is not Outcome.OK:
        return f"{prediction.outcome.value}\t-\t{shown}\t({' '.join(prediction.reason.split())})"
    confidence = "-" if prediction.confidence is None else f"{prediction.confidence:.3f}"
    return f"{prediction.label}\t{confidence}\t{shown}{_low_mass(prediction)}{_unsure(prediction)}"


def _low_mass(prediction: Prediction) -> str:
    """Return the remark on low label mass: the confidence compares labels that the model would hardly have written."""
    low = [found.label_mass for found in prediction.distributions if found.is_label_mass_low]
    return f"\t(label mass {min(low):.2g}: the model wanted to write something else)" if low else ""


def _answered_by(prediction: Prediction) -> str:
    """Return the name of the cascade's model, which tells two prompts of one model apart."""
    answers = [step.model for step in prediction.steps if step.label == prediction.label]
    return answers[-1] if answers else prediction.model or "-"


def _unsure(prediction: Prediction) -> str:
    """Return the remark on a cascade that accepted no answer, with its reason."""
    if prediction.accepted is not False:
        return ""
    return f"\t(not accepted: {_shorten(prediction.reason or 'no model was sure enough', 200)})"


def _record(text: str, prediction: Prediction) -> dict[str, Any]:
    """Return the line of an evaluation, without what an unlabelled text cannot have."""
    record = row_record(0, Example(input=text, answer=""), prediction)
    for part in record.get("parts", ()):
        del part["correct"]
    return {name: value for name, value in record.items() if name not in {"index", "answer", "correct"}}


def _shorten(text: str, limit: int = 80) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
