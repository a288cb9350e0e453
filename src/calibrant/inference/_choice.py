"""Which method a classifier uses: what it was told, or the best one its model and schema allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from calibrant.clients import OpenAICompatibleClient, RetryPolicy, constraint_for
from calibrant.core import Client, ConfigurationError, ContinuingClient
from calibrant.inference._exact import ExactScoring, Tolerance, resolve_tolerance
from calibrant.inference._methods import Decoding, Method
from calibrant.inference._reader import AnswerReader

__all__ = ["Scoring", "choose_method"]

Scoring: TypeAlias = Literal["exact", "decode"]


def choose_method(
    client: Client,
    reader: AnswerReader,
    response_format: Mapping[str, Any],
    *,
    scoring: Scoring | None,
    tolerance: Tolerance | None,
    retry: RetryPolicy,
) -> Method:
    """Return how requests become predictions.

    Raises
    ------
    ConfigurationError
        `scoring` is unknown, or the model or the schema does not allow it.
    """
    if scoring not in {None, "exact", "decode"}:
        raise ConfigurationError(f"Expected scoring 'exact' or 'decode', got {scoring!r}.")
    limit = resolve_tolerance(tolerance)
    decoding = Decoding(client=client, reader=reader, retry=retry)
    if scoring == "decode":
        return decoding
    exact = _exact(client, reader, response_format, tolerance=limit, retry=retry)
    if isinstance(exact, ExactScoring):
        return exact
    if scoring == "exact":
        raise ConfigurationError(f"scoring='exact' is not possible: {exact}. Use scoring='decode'.")
    return decoding


def _exact(
    client: Client,
    reader: AnswerReader,
    response_format: Mapping[str, Any],
    *,
    tolerance: float,
    retry: RetryPolicy,
) -> ExactScoring | str:
    """Return the method, or why there is none."""
    if not isinstance(client, ContinuingClient):
        served = ", ".join(f"{prefix}NAME" for prefix in OpenAICompatibleClient.PREFIXES)
        return (
            f"{client.name} reports no next-token probabilities after a beginning of an answer; local/NAME and "
            f"llamacpp:PATH do, and with the option api_base a server of llama.cpp or vLLM ({served})"
        )
    if reader.answer_field != reader.field:
        return f"the label is read from {reader.answer_field!r}, not from {reader.field!r}, which is scored"
    constraint = constraint_for(response_format)
    if constraint is None:
        return "the schema leaves more than the label open, so the text before it is not known"
    if not {constraint.answer(label) for label in reader.labels.labels} <= set(constraint.answers()):
        return "the schema's enum lacks some of the labels"
    return ExactScoring(
        client=client, labels=reader.labels, constraint=constraint, tolerance=tolerance, retry=retry
    )
