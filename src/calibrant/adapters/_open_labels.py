"""Predictions under a label set that grows while they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calibrant.core._completion import Completion
from calibrant.core._errors import LogprobsUnavailableError
from calibrant.core._labels import LabelSet, OpenLabels
from calibrant.core._prediction import Prediction
from calibrant.logprobs._distribution import extract_distribution


def over_all_labels(predictions: Sequence[Prediction], labels: LabelSet, field_path: str) -> list[Prediction]:
    """Return predictions over all labels known now; those of a closed set are over all of them already.

    A prediction of an open set was read when fewer labels were known: by another row, by this one's own batch, or
    in the process that wrote it to a journal. Its tokens say what the later labels would have had.

    Parameters
    ----------
    predictions : sequence of Prediction
        With their tokens, where the set is open.
    labels : LabelSet
        The label set; an open one takes labels that it does not know from the predictions and their distributions,
        such as those that another process had seen.
    field_path : str
        JSON path of the label.
    """
    if not isinstance(labels, OpenLabels):
        return list(predictions)
    spelled = [None if p.label is None else labels.canonical(p.label) for p in predictions]
    for known in dict.fromkeys(p.distribution.labels for p in predictions if p.distribution is not None):
        for label in known:
            labels.canonical(label)
    return [_read_again(p, label, labels, field_path) for p, label in zip(predictions, spelled, strict=True)]


def _read_again(prediction: Prediction, label: str | None, labels: OpenLabels, field_path: str) -> Prediction:
    known = prediction.distribution
    if label is None or known is None or known.labels == labels.labels:
        return prediction
    if len(labels) == len(known.labels) == 1:  # the same label in another spelling
        return replace(
            prediction, label=label, distribution=replace(known, labels=labels.labels, emitted=label)
        )
    answer = Completion(text=prediction.text, tokens=prediction.tokens)
    try:
        distribution = extract_distribution(answer, labels, field_path, known.space)
    except LogprobsUnavailableError:  # at `field_path` is no text: the label was read from somewhere else
        return prediction
    return replace(
        prediction, label=label, confidence=distribution.confidence(label), distribution=distribution
    )
