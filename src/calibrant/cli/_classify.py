"""``calibrant classify``: labels and confidence of texts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.cli._options import FAILED, discard_output
from calibrant.cli._prompted import source_of
from calibrant.cli._tables import say
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import json_text
from calibrant.core._frames import answering_model
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._reported import shortened
from calibrant.core._rows import Example, TextWithContext, read_texts
from calibrant.core._task import Task
from calibrant.runs._rows import row_record

if TYPE_CHECKING:
    from calibrant.cli._commands import Classify
    from calibrant.heads._tuned import Decision, Tuned
    from calibrant.inference._base import BasePredictor

_NEARLY_ALL: Final = 0.9


def classify(options: Classify) -> None:
    """Open the task's classifier, and classify with it; see `print_predictions`."""
    if not options.text and options.file is None:
        raise ConfigurationError("Expected --text or --file, got neither.")
    source = source_of(options.task, options)
    texts = all_texts(options.text or (), options.file, source.task)
    with contextlib.closing(source.open()) as classifier:
        classifier.use_journal(source.saved_answers)
        print_predictions(classifier, texts, as_json=options.as_json, tuned=source.tuned)


def all_texts(texts: Sequence[str], file: Path | None, task: Task) -> list[str | TextWithContext]:
    """Return the texts named on the command line, then the texts of the file.

    Raises
    ------
    ConfigurationError
        A text is blank, or not UTF-8.
    """
    for text in texts:
        if not text.strip():
            raise ConfigurationError(f"Expected a text to classify with --text, got {text!r}: leave it out.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"Expected --text in UTF-8, got {text!r:.80}: put it into a UTF-8 file and pass --file."
            ) from error
    given: list[str | TextWithContext] = [*texts]
    if file is not None:
        given += read_texts(file, columns=task.columns)
    return given


def print_predictions(
    classifier: BasePredictor,
    texts: list[str | TextWithContext],
    *,
    as_json: bool,
    with_model: bool = False,
    tuned: Tuned | None = None,
) -> None:
    """Classify texts and print one line each, in input order.

    Exits with 1 if nine in ten texts got no answer, or one that cannot be read.

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
    tuned : Tuned, optional
        Decides on the predictions.
    """
    waiting: dict[int, Prediction] = {}  # answered before a text that comes earlier
    printed = 0

    def on_prediction(index: int, prediction: Prediction) -> None:
        nonlocal printed
        waiting[index] = prediction
        while printed in waiting:
            text = texts[printed]
            shown = text.text if isinstance(text, TextWithContext) else text
            found = waiting.pop(printed)
            decision = None if tuned is None else tuned.decide(found)
            line = _line(shown, found, decision, as_json=as_json, with_model=with_model)
            sys.stdout.write(f"{line}\n")
            printed += 1
        sys.stdout.flush()

    try:
        predictions = classifier.classify_many(texts, on_prediction=on_prediction)
    except BrokenPipeError:  # the reader is gone, as `head` goes: no further text need be paid for
        discard_output()
        return
    if tuned is not None and tuned.rule[0] == "certified":
        warning = tuned.model_warning(one.model for one in predictions)
        if warning is not None:
            say(f"warning: {warning}")
    useless = [one for one in predictions if one.outcome in {Outcome.ERROR, Outcome.UNPARSED}]
    if useless and len(useless) >= _NEARLY_ALL * len(predictions):
        raise SystemExit(FAILED)


def _line(
    text: str, prediction: Prediction, decision: Decision | None, *, as_json: bool, with_model: bool
) -> str:
    if as_json:
        record = _record(text, prediction)
        if decision is not None:
            record |= {"calibrated": decision.calibrated, "decision": decision.name}
        return json_text(record)
    shown = shortened(text, 80)
    if with_model:
        shown = f"{answering_model(prediction) or '-'}\t{shown}"
    if prediction.outcome is not Outcome.OK:
        return f"{prediction.outcome.value}\t-\t{shown}\t({' '.join(prediction.reason.split())})"
    sure = prediction.confidence if decision is None else decision.final_confidence
    confidence = "-" if sure is None else f"{sure:.3f}"
    line = f"{prediction.label}\t{confidence}\t{shown}"
    # The confidence compares labels that the model would hardly have written.
    low = [found.label_mass for found in prediction.distributions if found.is_label_mass_low]
    if low:
        line += f"\t(label mass {min(low):.2g}: the model wanted to write something else)"
    if decision is not None and decision.name == "review":
        line += "\t(to be reviewed)"
    if prediction.accepted is False:
        line += f"\t(not accepted: {shortened(prediction.reason or 'no model was sure enough', 200)})"
    return line


def _record(text: str, prediction: Prediction) -> dict[str, Any]:
    """Return a text's prediction as JSON values, without the fields of labelled rows."""
    record = row_record(0, Example(input=text, answer=""), prediction)
    for name in ("index", "answer", "correct", "sketch"):
        record.pop(name, None)
    for part in record.get("parts", ()):
        del part["correct"]
    return record
