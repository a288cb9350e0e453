"""Models that answer for whatever labels they are asked about; those of other processes find them by import."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.core import CompletionRequest
from calibrant.testing import fake_response


def labels_in(response_format: Any) -> list[str]:
    """Return the labels of a JSON schema."""
    if isinstance(response_format, Mapping):
        if "enum" in response_format:
            return list(response_format["enum"])
        response_format = list(response_format.values())
    if isinstance(response_format, list):
        return next((found for value in response_format if (found := labels_in(value))), [])
    return []


class PointReader:
    """Client that reads the numbers in a text as a point, and scores labels by fixed directions."""

    name = "fake/points"
    space = "masked"

    async def complete(self, request: CompletionRequest) -> object:
        """Answer with a distribution over the labels of the schema."""
        labels = labels_in(request.response_format)
        point = np.array([number(line) for line in request.messages[-1]["content"].splitlines()])
        directions = np.random.default_rng(0).normal(size=(len(labels), len(point)))
        weights = np.exp(np.clip(directions @ point, -20.0, 20.0))
        return answer(labels, weights / weights.sum(), request.top_logprobs)

    def close(self) -> None:
        """Do nothing."""


def number(text: str) -> float:
    """Return the number in a text; 0 if there is none."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def answer(labels: Sequence[str], probabilities: Sequence[float], top_logprobs: int = 5) -> dict[str, Any]:
    """Return the response of a model with these probabilities."""
    by_label = dict(zip(labels, map(float, probabilities), strict=True))
    label = max(labels, key=by_label.__getitem__)
    return fake_response(label, labels, by_label, top_logprobs=top_logprobs, field="label")


def place(text: str) -> int:
    """Return the position of the true label of a text, 0 or 1, which depends on no word of it."""
    return hashlib.sha256(text.encode()).digest()[0] % 2


def biased(messages: list[dict[str, str]]) -> object:
    """Answer for ham and spam; nearly always ham, but less surely where spam is right."""
    ham = 0.6 if place(messages[-1]["content"]) else 0.9
    return json.loads(json.dumps(answer(["ham", "spam"], [ham, 1.0 - ham])))
