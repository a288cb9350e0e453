"""The prompt that a command names, and what was learned under it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.calibration import DEMONSTRATIONS, LabelPriorCorrection
from calibrant.core import ConfigurationError, DataError, DemonstrationSettings, write_atomically
from calibrant.heads import Head
from calibrant.inference import DemonstrationIndex

if TYPE_CHECKING:
    from calibrant.inference import Classifier

__all__ = ["prompted", "read_prompt", "write_demonstrations"]


def prompted(
    classifier: Classifier, *, prompt: Path | None, run: Path | None, label_prior: Path | None
) -> Classifier:
    """Return a classifier under a prompt, with the head or the label prior that belongs to it.

    Parameters
    ----------
    classifier : Classifier
        The task's.
    prompt : Path or None
        File with a prompt.
    run : Path or None
        Directory of a search: its best prompt with its demonstrations, and its head, or its label prior where it has
        none.
    label_prior : Path or None
        File with a label-prior correction; comes before what a search has left.

    Raises
    ------
    ConfigurationError
        Both a prompt and a run are named.
    DataError
        A file is missing, or is none.
    StateError
        What was learned belongs to something else.
    """
    head = None
    if run is not None:
        if prompt is not None:
            raise ConfigurationError("Expected either --prompt or --run, got both.")
        best = _best_candidate(run / "result.json")
        template = best.get("user_template")
        classifier = classifier.with_prompt(
            read_prompt(run / "best_prompt.txt"), user_template=None if template is None else str(template)
        )
        classifier = _demonstrating(classifier, best.get("demonstrations"), run / DEMONSTRATIONS)
        if label_prior is None:
            head, label_prior = _existing(run / "head.json"), _existing(run / "label_prior.json")
    elif prompt is not None:
        classifier = classifier.with_prompt(read_prompt(prompt))
    if head is not None:
        classifier.head = Head.load(head, fingerprint=classifier.fingerprint())
    elif label_prior is not None:
        classifier.prior_correction = LabelPriorCorrection.load(
            label_prior, fingerprint=classifier.fingerprint()
        )
    return classifier


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None


def _best_candidate(path: Path) -> dict[str, Any]:
    """Return the components a search has chosen; empty where it does not say."""
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["best_candidate"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"expected the result of a search, got something else ({error!r}).", path=path
        ) from error


def _demonstrating(classifier: Classifier, chosen: str | None, rows: Path) -> Classifier:
    """Return a classifier that shows what a search chose; as it is where the search did not say."""
    if chosen is None:
        return classifier
    if not chosen.strip():
        return classifier.with_demonstrations(None)
    index = DemonstrationIndex.from_text(read_prompt(rows), labels=classifier.labels)
    return classifier.with_demonstrations(index, **DemonstrationSettings.from_text(chosen).model_dump())


def write_demonstrations(classifier: Classifier, directory: Path) -> None:
    """Leave the labelled texts that prompts were shown from in a run's directory, if there are any."""
    shown = classifier.demonstrations
    if shown is not None and shown.settings is not None:
        write_atomically(directory / DEMONSTRATIONS, shown.index.to_text())


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
