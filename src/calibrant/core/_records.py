"""Predictions as plain JSON values and back, without loss."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from calibrant.core._completion import Token
from calibrant.core._distribution import LabelDistribution, LogprobSpace, is_label_mass_low
from calibrant.core._errors import StateError
from calibrant.core._prediction import Outcome, Part, Prediction, Step, Usage, Verdict
from calibrant.core._reported import MOST_TOKENS, bounded_count


class Journal(Protocol):
    """Remembers finished predictions, so that no call is paid for twice."""

    def get_many(self, keys: Sequence[str]) -> Mapping[str, Prediction]:
        """Return the predictions stored under `keys`, those that are there."""
        ...

    def put(self, key: str, prediction: Prediction) -> None:
        """Store `prediction` under `key`."""
        ...


def prediction_to_record(prediction: Prediction) -> dict[str, Any]:
    """Return `prediction` as JSON values; floats keep their full precision."""
    distribution = prediction.distribution
    record: dict[str, Any] = {
        "label": prediction.label,
        "confidence": prediction.confidence,
        "outcome": prediction.outcome.value,
        "reason": prediction.reason,
        "text": prediction.text,
        "distribution": None if distribution is None else _distribution_to_record(distribution),
        "usage": _usage_to_record(prediction.usage),
        "model": prediction.model,
        "attempts": prediction.attempts,
        "latency_seconds": prediction.latency_seconds,
    }
    if prediction.tokens is not None:
        record["tokens"] = [_token_to_record(token) for token in prediction.tokens]
    if prediction.steps:
        record["steps"] = [step_to_record(step) for step in prediction.steps]
        record["accepted"] = prediction.accepted
    if prediction.parts:
        record["parts"] = [_part_to_record(part) for part in prediction.parts]
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
        distribution, tokens, features = record["distribution"], record.get("tokens"), record.get("features")
        parts = [_part_from_record(part) for part in record.get("parts", ())]
        return Prediction(
            label=record["label"],
            confidence=_confidence_from_record(record, parts),
            outcome=Outcome(record["outcome"]),
            reason=record["reason"],
            text=record["text"],
            distribution=None if distribution is None else _distribution_from_record(distribution),
            usage=_usage_from_record(record["usage"]),
            model=record["model"],
            attempts=record["attempts"],
            latency_seconds=record["latency_seconds"],
            tokens=None if tokens is None else tuple(map(_token_from_record, tokens)),
            steps=tuple(map(_step_from_record, record.get("steps", ()))),
            accepted=record.get("accepted"),
            parts=tuple(parts),
            features=None
            if features is None
            else np.frombuffer(b64decode(features, validate=True), dtype="<f2"),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"Expected a prediction record, got one that does not fit ({error!r}).") from error


def step_to_record(step: Step) -> dict[str, Any]:
    """Return `step` as JSON values."""
    return {
        "model": step.model,
        "verdict": step.verdict.value,
        "label": step.label,
        "confidence": step.confidence,
        "native": step.native,
        "outcome": step.outcome.value,
        "reason": step.reason,
        "usage": _usage_to_record(step.usage),
        "attempts": step.attempts,
    }


def _step_from_record(record: Mapping[str, Any]) -> Step:
    read = {
        "verdict": Verdict(record["verdict"]),
        "outcome": Outcome(record["outcome"]),
        "usage": _usage_from_record(record["usage"]),
    }
    return Step(**{**record, **read})


def _part_to_record(part: Part) -> dict[str, Any]:
    distribution = part.distribution
    return {
        "name": part.name,
        "label": part.label,
        "confidence": part.confidence,
        "distribution": None if distribution is None else _distribution_to_record(distribution),
    }


def _part_from_record(record: Mapping[str, Any]) -> Part:
    distribution = record["distribution"]
    return Part(
        name=record["name"],
        label=record["label"],
        confidence=_own_confidence(record),
        distribution=None if distribution is None else _distribution_from_record(distribution),
    )


def _confidence_from_record(record: Mapping[str, Any], parts: Sequence[Part]) -> float | None:
    """Return the confidence of a record, whose parts are `parts`."""
    confidence = _own_confidence(record)
    for part, was in zip(parts, record.get("parts", ()), strict=True):
        if confidence is not None and part.confidence is not None and part.confidence != was["confidence"]:
            confidence *= part.confidence / was["confidence"]  # the whole is a product over its parts
    return confidence


def _own_confidence(record: Mapping[str, Any]) -> float | None:
    """Return the confidence of a prediction or a part, as its distribution has it where that says more.

    Records of earlier versions do not know how probable the end of a label was, and their confidence leaves it out.
    """
    confidence: float | None = record["confidence"]
    label, distribution = record["label"], record["distribution"]
    if confidence is None or distribution is None or "closing_logprob" in distribution:
        return confidence
    joint = distribution["joint_logprob"]
    if joint is None or label not in distribution["labels"] or confidence != math.exp(min(joint, 0.0)):
        return confidence
    return _distribution_from_record(distribution).confidence(label)


def has_low_label_mass(record: Mapping[str, Any]) -> bool:
    """Return whether the model of a stored row would rather have written something else than any label.

    Parameters
    ----------
    record : mapping
        The row as an evaluation or a search wrote it; false where it does not say.

    Raises
    ------
    TypeError, ValueError
        What it says is no number, or no space.
    """
    own = record.get("distribution") or record
    parts = record.get("parts")
    # In Parquet they are one text; the row itself then has the least label mass of them.
    found = (
        [own, *(part.get("distribution") or {} for part in parts if isinstance(parts, list))]
        if parts
        else [own]
    )
    return any(
        is_label_mass_low(
            float(one["label_mass"]),
            float(one.get("unresolved_mass") or 0.0),  # earlier versions left it out
            LogprobSpace(one["space"]),
        )
        for one in found
        if one.get("label_mass") is not None and one.get("space") is not None
    )


def _usage_to_record(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost": usage.cost,
    }


def _usage_from_record(record: Mapping[str, Any]) -> Usage:
    usage = Usage(**record)
    if max(usage.prompt_tokens, usage.completion_tokens) <= MOST_TOKENS:
        return usage
    return replace(
        usage,
        prompt_tokens=bounded_count(usage.prompt_tokens),
        completion_tokens=bounded_count(usage.completion_tokens),
    )


def _token_to_record(token: Token) -> list[Any]:
    # Latin-1 holds every byte as one character.
    top = [[data.decode("latin-1"), logprob] for data, logprob in token.top]
    return [token.data.decode("latin-1"), token.logprob, top]


def _token_from_record(record: Sequence[Any]) -> Token:
    data, logprob, top = record
    return Token(data.encode("latin-1"), logprob, tuple((text.encode("latin-1"), lp) for text, lp in top))


def _distribution_to_record(distribution: LabelDistribution) -> dict[str, Any]:
    return {
        "labels": list(distribution.labels),
        "logprobs": distribution.logprobs.tolist(),
        "measured": distribution.measured.tolist(),
        "joint_logprob": distribution.joint_logprob,
        "label_mass": distribution.label_mass,
        "unresolved_mass": distribution.unresolved_mass,
        "space": distribution.space.value,
        "emitted": distribution.emitted,
        "error_bound": distribution.error_bound,
        "closing_logprob": distribution.closing_logprob,
    }


def _distribution_from_record(record: Mapping[str, Any]) -> LabelDistribution:
    return LabelDistribution(
        labels=tuple(record["labels"]),
        logprobs=np.array(record["logprobs"], dtype=np.float64),
        measured=np.array(record["measured"], dtype=np.bool_),
        joint_logprob=record["joint_logprob"],
        label_mass=record["label_mass"],
        unresolved_mass=record["unresolved_mass"],
        space=LogprobSpace(record["space"]),
        emitted=record.get("emitted"),  # older records lack it, and those below
        error_bound=record.get("error_bound"),
        closing_logprob=record.get("closing_logprob"),
    )
