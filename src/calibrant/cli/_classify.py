"""``calibrant classify``: texts in, labels and confidence out."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.assembly import open_classifier
from calibrant.calibration import LabelPriorCorrection
from calibrant.core import ConfigurationError, DataError, Example, Outcome, Task, read_texts
from calibrant.evaluation import row_record

if TYPE_CHECKING:
    from calibrant.core import Prediction

__all__ = ["read_prompt", "run_classify"]


def run_classify(  # noqa: PLR0913  (keyword-only options)
    task_file: Path,
    *,
    texts: list[str],
    file: Path | None,
    prompt: Path | None,
    model: str | None,
    as_json: bool,
    label_prior: Path | None = None,
) -> None:
    """Classify and print one line per text, each as soon as it and all before it are answered."""
    if not texts and file is None:
        raise ConfigurationError("Expected --text or --file, got neither.")
    task = Task.from_file(task_file)
    _check_arguments(texts)
    texts = [*texts, *([] if file is None else read_texts(file, columns=task.columns))]
    classifier = open_classifier(task, model=model)
    if prompt is not None:
        classifier = classifier.with_prompt(read_prompt(prompt))
    if label_prior is not None:
        classifier.prior_correction = LabelPriorCorrection.load(
            label_prior, fingerprint=classifier.fingerprint()
        )
    listing = _Listing(texts, as_json=as_json)
    try:
        predictions = classifier.classify_many(texts, on_prediction=listing.add)
    except _ReaderGoneError:
        _discard_output()
        return
    finally:
        classifier.close()
    if all(prediction.outcome is Outcome.ERROR for prediction in predictions):
        raise SystemExit(1)


class _ReaderGoneError(Exception):
    """Whoever read the output has closed it, as `head` does: no further text need be paid for."""


class _Listing:
    """Prints rows in the order of the texts, whatever the order of the answers."""

    def __init__(self, texts: list[str], *, as_json: bool) -> None:
        self._texts = texts
        self._as_json = as_json
        self._waiting: dict[int, Prediction] = {}
        self._printed = 0

    def add(self, index: int, prediction: Prediction) -> None:
        """Print the row if all before it are printed, and those that waited for it."""
        self._waiting[index] = prediction
        lines = []
        while self._printed in self._waiting:
            ready = self._waiting.pop(self._printed)
            lines.append(_line(self._texts[self._printed], ready, as_json=self._as_json) + "\n")
            self._printed += 1
        if not lines:
            return
        try:
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _ReaderGoneError from error


def _discard_output() -> None:
    """Send what is still buffered nowhere: the interpreter would complain about it on its way out."""
    with contextlib.suppress(OSError, ValueError):  # standard output may be no real file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _check_arguments(texts: list[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            msg = f"Expected --text in UTF-8, got {text!r:.80}: put it into a UTF-8 file and pass --file."
            raise ConfigurationError(msg) from error


def read_prompt(path: Path) -> str:
    """Return the prompt in a file.

    Raises
    ------
    DataError
        There is no such file, or it is not UTF-8.
    """
    if not path.is_file():
        raise DataError("no such prompt file.", path=path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        msg = f"expected UTF-8 text, got the byte 0x{error.object[error.start]:02x}: save the file as UTF-8."
        raise DataError(msg, path=path, line=line) from error


def _line(text: str, prediction: Prediction, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(_record(text, prediction), ensure_ascii=False)
    if prediction.outcome is not Outcome.OK:
        return f"{prediction.outcome.value}\t-\t{_shorten(text)}\t({prediction.reason})"
    confidence = "-" if prediction.confidence is None else f"{prediction.confidence:.3f}"
    return f"{prediction.label}\t{confidence}\t{_shorten(text)}{_unsure(prediction)}"


def _unsure(prediction: Prediction) -> str:
    """Return what to add where no model of a cascade was sure enough, or nothing says how sure they are."""
    if prediction.accepted is not False:
        return ""
    if prediction.confidence is None and prediction.steps:
        why = prediction.steps[-1].reason
        return f"\t(not accepted: nothing says how sure the models are: {_shorten(why, 200)})"
    return "\t(not accepted: no model was sure enough)"


def _record(text: str, prediction: Prediction) -> dict[str, Any]:
    """Return the line of an evaluation, without what an unlabelled text cannot have."""
    record = row_record(0, Example(input=text, answer=""), prediction)
    return {name: value for name, value in record.items() if name not in {"index", "answer", "correct"}}


def _shorten(text: str, limit: int = 80) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
