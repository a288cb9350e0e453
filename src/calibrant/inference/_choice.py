"""Choice of a classifier's method: the requested one, or the best supported by model and schema."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from calibrant.core._completion import Client, ContinuingClient
from calibrant.core._composite import CompositeLabels, FieldLabels, MultiLabels
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.inference._limits import is_in_process
from calibrant.inference._methods import (
    DEFAULT_TOLERANCE,
    Decoding,
    Method,
    ModelCalls,
    Tolerance,
    check_tolerance,
)
from calibrant.inference._reader import AnswerReader

if TYPE_CHECKING:
    from calibrant.inference._exact import ExactMethod
    from calibrant.inference._sampling import Sampling

_LOG = logging.getLogger("calibrant")

Scoring: TypeAlias = Literal["exact", "decode", "sampled"]


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """Settings of a classifier that decide how its requests become predictions.

    Attributes
    ----------
    scoring, tolerance, samples, temperature
        See `calibrant.inference.Classifier`.
    calls : ModelCalls
        Calls with gate, deadline and retries.
    options : mapping
        Handed to the provider with every call.
    """

    scoring: Scoring | None = None
    tolerance: Tolerance | None = None
    samples: int | None = None
    temperature: float | None = None
    calls: ModelCalls = field(default_factory=ModelCalls)
    options: Mapping[str, Any] = field(default_factory=dict)


def choose_method(
    client: Client, reader: AnswerReader, response_format: Mapping[str, Any], wanted: MethodOptions
) -> Method:
    """Return the method that turns requests into predictions.

    Raises
    ------
    ConfigurationError
        A value of `wanted` is unknown or out of range, or the model or the schema does not allow it.
    """
    _check(wanted)
    default: float = getattr(client, "default_tolerance", DEFAULT_TOLERANCE)
    limit = default if wanted.tolerance is None else wanted.tolerance
    check_tolerance(limit)
    if wanted.scoring == "sampled":
        return _sampling(client, reader, wanted)
    decoding = Decoding(client=client, reader=reader, calls=wanted.calls)
    if wanted.scoring == "decode":
        return decoding
    if not isinstance(client, ContinuingClient) and wanted.scoring is None:
        return decoding
    exact = _exact(client, reader, response_format, tolerance=limit, calls=wanted.calls)
    if not isinstance(exact, str):
        return exact
    if wanted.scoring == "exact":
        raise ConfigurationError(f"scoring='exact' is not possible: {exact}. Use scoring='decode'.")
    _say_once(client.name, exact)
    return decoding


def _check(wanted: MethodOptions) -> None:
    if wanted.scoring not in {None, "exact", "decode", "sampled"}:
        raise ConfigurationError(f"Expected scoring 'exact', 'decode' or 'sampled', got {wanted.scoring!r}.")
    if wanted.scoring == "sampled":
        return
    for name, instead in (("samples", "it"), ("temperature", "it, or name it among options")):
        if getattr(wanted, name) is not None:
            raise ConfigurationError(
                f"Expected {name} only with scoring='sampled', got {name}={getattr(wanted, name)!r} and "
                f"scoring={wanted.scoring!r}: add scoring='sampled', or leave out {instead}."
            )


@cache
def _say_once(model: str, reason: str) -> None:
    """Warn once that a model decodes although it could score every label."""
    _LOG.warning(
        "%s could score every label, but decodes its answers: %s. Pass scoring='decode' if that is what you want.",
        model,
        reason,
    )


def _sampling(client: Client, reader: AnswerReader, wanted: MethodOptions) -> Sampling:
    from calibrant.inference._sampling import (  # noqa: PLC0415 (only when it is asked for)
        DEFAULT_SAMPLES,
        Sampling,
        check_seed,
        resolve_temperature,
    )

    check_seed(wanted.options)
    return Sampling(
        client=client,
        reader=reader,
        samples=DEFAULT_SAMPLES if wanted.samples is None else wanted.samples,
        temperature=resolve_temperature(wanted.temperature, wanted.options),
        calls=wanted.calls,
    )


def _exact(
    client: Client,
    reader: AnswerReader,
    response_format: Mapping[str, Any],
    **settings: Any,  # noqa: ANN401  (tolerance and calls)
) -> ExactMethod | str:
    """Return the exact method for a model, labels and schema, or the reason why there is none."""
    if not isinstance(client, ContinuingClient):
        from calibrant.clients._openai_compatible import OpenAICompatibleClient  # noqa: PLC0415 (loaded when it is used)

        served = ", ".join(f"{prefix}NAME" for prefix in OpenAICompatibleClient.PREFIXES)
        return (
            f"{client.name} reports no next-token probabilities after a beginning of an answer; local/NAME and "
            f"llamacpp:PATH do, and with the option api_base a server of llama.cpp, vLLM or SGLang ({served})"
        )
    labels = reader.labels
    if reader.answer_field != reader.field:
        return f"the label is read from {reader.answer_field!r}, not from {reader.field!r}, which is scored"
    if isinstance(labels, MultiLabels):
        return _array(client, labels, response_format, **settings)
    if isinstance(labels, FieldLabels):
        return _chain(client, labels, response_format, **settings)
    if isinstance(labels, CompositeLabels):
        return f"no answer of {type(labels).__name__} is known"
    return _one_label(client, labels, response_format, **settings)


def _one_label(
    client: ContinuingClient,
    labels: LabelSet,
    response_format: Mapping[str, Any],
    **settings: Any,  # noqa: ANN401
) -> ExactMethod | str:
    from calibrant.clients._constraint import constraint_for  # noqa: PLC0415 (loaded when it is used)

    constraint = constraint_for(response_format)
    if constraint is None:
        return "the schema leaves more than the label open, so the text before it is not known"
    if not {constraint.answer(label) for label in labels.labels} <= set(constraint.answers()):
        return "the schema's enum lacks some of the labels"
    from calibrant.inference._exact import ExactScoring  # noqa: PLC0415 (only where it is possible)

    return ExactScoring(client=client, labels=labels, constraint=constraint, **settings)


def _chain(
    client: ContinuingClient,
    labels: FieldLabels,
    response_format: Mapping[str, Any],
    **settings: Any,  # noqa: ANN401
) -> ExactMethod | str:
    from calibrant.clients._constraint import choices_for  # noqa: PLC0415 (loaded when it is used)

    choices = choices_for(response_format)
    if choices is None:
        return (
            "the schema leaves more than the labels of the fields open, so the text before them is not known"
        )
    from calibrant.inference._chain import FieldChain, choices_by_field  # noqa: PLC0415 (only for several fields)

    steps = choices_by_field(labels, choices)
    if isinstance(steps, str):
        return steps
    return FieldChain(client=client, labels=labels, steps=steps, behind=choices.behind, **settings)


def _array(
    client: ContinuingClient,
    labels: MultiLabels,
    response_format: Mapping[str, Any],
    **settings: Any,  # noqa: ANN401
) -> ExactMethod | str:
    if not is_in_process(client):
        return (
            "how many labels an answer holds is left to the model, which is asked at every place whether it goes on: "
            "only an embedded engine (local/NAME, llamacpp:PATH) tells that"
        )
    from calibrant.clients._constraint import array_for  # noqa: PLC0415 (loaded when it is used)

    array = array_for(response_format)
    if array is None:
        return "the schema leaves more open than one array of labels, or says how many it may hold"
    if not {array.element.answer(label) for label in labels.labels} <= set(array.element.answers()):
        return "the schema's enum lacks some of the labels"
    from calibrant.inference._array import ArrayScoring  # noqa: PLC0415 (only for several labels)

    return ArrayScoring(client=client, labels=labels, array=array, **settings)
