"""Conversion of predictions to JSON values and back."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from calibrant.core._errors import StateError
from calibrant.core._prediction import (
    LabelDistribution,
    LogprobSpace,
    Outcome,
    Part,
    Prediction,
    Step,
    Token,
    Usage,
    Verdict,
)
from calibrant.core._reported import MOST_TOKENS

_Record = dict[str, Any]
# Keys of every prediction, in the order of the files. The other fields are written where they hold something.
_KEYS: Final = (
    "label confidence outcome reason text distribution usage model attempts latency_seconds".split()  # noqa: SIM905
)


class Journal(Protocol):
    """Store of finished predictions, which makes repeated calls unnecessary.

    Examples
    --------
    >>> from calibrant.core import Prediction
    >>> class DictJournal(dict):
    ...     def get_many(self, keys):
    ...         return {key: self[key] for key in keys if key in self}
    ...     def put(self, key, prediction):
    ...         self[key] = prediction
    >>> journal = DictJournal()
    >>> journal.put("first", Prediction(label="Food"))
    >>> [prediction.label for prediction in journal.get_many(["first", "second"]).values()]
    ['Food']
    """

    def get_many(self, keys: Sequence[str]) -> Mapping[str, Prediction]:
        """Return the stored predictions by key; missing keys are left out."""

    def put(self, key: str, prediction: Prediction) -> None:
        """Store `prediction` under `key`."""


def prediction_to_record(prediction: Prediction) -> _Record:
    """Return `prediction` as JSON values; floats keep their full precision."""
    values = _encoded_fields(prediction)
    record = {key: values[key] for key in _KEYS}
    if prediction.tokens is not None:
        record["tokens"] = [_token_to_record(token) for token in prediction.tokens]
    if prediction.steps:
        record |= {
            "steps": [step_to_record(step) for step in prediction.steps],
            "accepted": values["accepted"],
        }
    if prediction.parts:
        record["parts"] = [_encoded_fields(part) for part in prediction.parts]
    if prediction.features is not None:
        record["features"] = b64encode(prediction.features.astype("<f2").tobytes()).decode()
    return record


def prediction_from_record(record: Mapping[str, Any]) -> Prediction:
    """Return the prediction written by `prediction_to_record`.

    Raises
    ------
    StateError
        The record is not one.
    """
    try:
        values = {key: record[key] for key in _KEYS} | _decoded_fields(record)
        values["accepted"] = record.get("accepted")
        if record.get("tokens") is not None:
            values["tokens"] = tuple(map(_token_from_record, record["tokens"]))
        values["steps"] = tuple(
            Step(**{**step, **_decoded_fields(step), "verdict": Verdict(step["verdict"])})
            for step in record.get("steps", ())
        )
        values["parts"] = tuple(Part(**{**part, **_decoded_fields(part)}) for part in record.get("parts", ()))
        if record.get("features") is not None:
            data = b64decode(record["features"], validate=True)
            values["features"] = np.frombuffer(data, dtype="<f2")
        return Prediction(**values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"Expected a prediction record, got one that does not fit ({error!r}).") from error


def step_to_record(step: Step) -> _Record:
    """Return `step` as JSON values."""
    return _encoded_fields(step) | {"verdict": step.verdict.value}


def _encoded_fields(item: Prediction | Step | Part) -> _Record:
    """Return the fields of an object, with its outcome, usage and distribution as JSON values."""
    record = dict(vars(item))
    if not isinstance(item, Part):
        record |= {"outcome": item.outcome.value, "usage": dict(vars(item.usage))}
    distribution = record.get("distribution")
    if distribution is not None:
        fields = dict(vars(distribution))
        if not distribution.shared:  # as with nearly every row
            del fields["shared"]
        record["distribution"] = {
            **fields,
            "labels": list(distribution.labels),
            "logprobs": distribution.logprobs.tolist(),
            "measured": distribution.measured.tolist(),
            "space": distribution.space.value,
        }
    return record


def _decoded_fields(record: Mapping[str, Any]) -> _Record:
    """Return the outcome, usage and distribution in a record, as Python objects."""
    values: _Record = {}
    if "outcome" in record:
        counts = {
            name: min(record["usage"][name], MOST_TOKENS) for name in ("prompt_tokens", "completion_tokens")
        }
        values = {"outcome": Outcome(record["outcome"]), "usage": Usage(**{**record["usage"], **counts})}
    if record.get("distribution") is not None:
        stored = record["distribution"]
        decoded = {
            "labels": tuple(stored["labels"]),
            "logprobs": np.array(stored["logprobs"], dtype=np.float64),
            "measured": np.array(stored["measured"], dtype=np.bool_),
            "space": LogprobSpace(stored["space"]),
            "shared": tuple((tuple(labels), share) for labels, share in stored.get("shared", ())),
        }
        values["distribution"] = LabelDistribution(**{**stored, **decoded})
    return values


def _token_to_record(token: Token) -> list[Any]:
    # Latin-1 holds every byte as one character.
    top = [[data.decode("latin-1"), logprob] for data, logprob in token.top]
    return [token.data.decode("latin-1"), token.logprob, top]


def _token_from_record(record: Sequence[Any]) -> Token:
    data, logprob, top = record
    return Token(data.encode("latin-1"), logprob, tuple((text.encode("latin-1"), lp) for text, lp in top))
