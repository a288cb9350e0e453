"""Choice of the method by which a model is asked."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, get_args

from calibrant.core._completion import Client, ClientTraits, ContinuingClient
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import OpenLabels
from calibrant.core._prediction import LogprobSpace
from calibrant.inference._abilities import AnswerForm
from calibrant.inference._limits import is_in_process
from calibrant.inference._methods import DEFAULT_TOLERANCE, Decoding, Method, ModelSetup, Scoring, Tolerance
from calibrant.metrics._validation import is_number

_LOG = logging.getLogger("calibrant")
_LEAVE_OUT: Final = {"samples": "it", "temperature": "it, or name it among options"}


@dataclass(frozen=True, kw_only=True)
class ScoringChoice:
    """Wish for a method.

    Attributes
    ----------
    scoring, tolerance, samples, temperature
        See `calibrant.inference.Classifier`.
    is_named : bool
        True for a model by name, of which it is found out whether it gives log-probabilities; of others only with
        ``auto``. Answers that lack them are else predictions without a confidence.
    """

    scoring: Scoring | None
    tolerance: Tolerance | None
    samples: int | None
    temperature: float | None
    is_named: bool


def choose_method(setup: ModelSetup, choice: ScoringChoice) -> Method:
    """Return the wished method, or the best that model and schema support.

    Raises
    ------
    ConfigurationError
        A value is unknown or out of range, or the model or the schema does not allow it.
    """
    scoring, client = choice.scoring, setup.client
    if scoring not in {None, *get_args(Scoring)}:
        *names, last = map(repr, get_args(Scoring))
        raise ConfigurationError(f"Expected scoring {', '.join(names)} or {last}, got {scoring!r}.")
    tolerance = _tolerance(client, choice.tolerance)
    if scoring in {"sampled", "fused", "verbalised"}:
        return _asking_several(setup, choice)
    if scoring != "auto":
        _refuse_sampling(choice)
    decoding = _decoding(setup, choice)
    if scoring == "decode" or (scoring != "exact" and not isinstance(client, ContinuingClient)):
        return decoding
    exact = _exact_method(setup, tolerance)
    if not isinstance(exact, str):
        return exact
    if scoring == "exact":
        raise ConfigurationError(f"scoring='exact' is not possible: {exact}. Use scoring='decode'.")
    _warn_once(client.name, exact)
    return decoding


def _decoding(setup: ModelSetup, choice: ScoringChoice) -> Decoding:
    """Return a method that decodes, and that may state confidence where a model may hide log-probabilities."""
    may_hide = choice.scoring == "auto" or (choice.scoring is None and choice.is_named)
    if not may_hide or is_in_process(setup.client) or isinstance(setup.reader.labels, OpenLabels):
        return Decoding(setup=setup)
    from calibrant.inference._sampling import AutoDecoding  # noqa: PLC0415 (only for models that may hide them)

    return AutoDecoding.of(
        setup,
        samples=choice.samples,
        temperature=choice.temperature,
        is_chosen=choice.scoring == "auto",
    )


def _asking_several(setup: ModelSetup, choice: ScoringChoice) -> Method:
    """Return a method that asks about a row several times, or once for a stated confidence."""
    from calibrant.inference._sampling import Fused, Sampling  # noqa: PLC0415 (only when it is asked for)

    samples = choice.samples
    if choice.scoring == "sampled":
        return Sampling.of(setup, samples=samples, temperature=choice.temperature)
    if choice.scoring == "verbalised":
        if samples not in {None, 1}:
            raise ConfigurationError(
                f"Expected one call a row with scoring='verbalised', got samples={samples!r}: leave it out, or add "
                "scoring='fused'."
            )
        samples = 1
    elif samples == 1:
        raise ConfigurationError("Expected at least 2 samples with scoring='fused', got 1: add 'verbalised'.")
    return Fused.of(setup, samples=samples, temperature=choice.temperature)


def _refuse_sampling(choice: ScoringChoice) -> None:
    """Refuse settings of methods that ask several times."""
    given = {"samples": choice.samples, "temperature": choice.temperature}
    for name, value in given.items():
        if value is not None:
            raise ConfigurationError(
                f"Expected {name} only with scoring='sampled', 'fused' or 'auto', got {name}={value!r} and "
                f"scoring={choice.scoring!r}: add scoring='sampled', or leave out {_LEAVE_OUT[name]}."
            )


def _tolerance(client: Client, tolerance: Tolerance | None) -> Tolerance:
    """Return the tolerance of exact scoring, by default the client's own."""
    if tolerance is None:
        own = ClientTraits.of(client).default_tolerance
        tolerance = DEFAULT_TOLERANCE if own is None else own
    if tolerance != "exact" and not (is_number(tolerance) and 0.0 <= tolerance <= 1.0):
        raise ConfigurationError(f'Expected a tolerance in [0, 1] or "exact", got {tolerance!r}.')
    return tolerance


@cache
def _warn_once(model: str, reason: str) -> None:
    """Log one warning that a model decodes answers although it could score all labels exactly."""
    _LOG.warning(
        "%s could score every label, but decodes its answers: %s. Pass scoring='decode' if that is what you want.",
        model,
        reason,
    )


def _exact_method(setup: ModelSetup, tolerance: Tolerance) -> Method | str:
    """Return the exact method for a model, labels and schema, or the reason why there is none."""
    client, reader = setup.client, setup.reader
    if not isinstance(client, ContinuingClient):
        from calibrant.clients._openai_compatible import OpenAICompatibleClient  # noqa: PLC0415 (loaded when it is used)

        served = ", ".join(f"{prefix}NAME" for prefix in OpenAICompatibleClient.PREFIXES)
        return (
            f"{client.name} reports no next-token probabilities after a beginning of an answer; local/NAME and "
            f"llamacpp:PATH do, and with the option api_base a server of llama.cpp, vLLM or SGLang ({served})"
        )
    if reader.answer_field != reader.field:
        return f"the label is read from {reader.answer_field!r}, not from {reader.field!r}, which is scored"
    from calibrant.inference._exact import exact_method  # noqa: PLC0415 (only where it may be possible)

    reader = replace(reader.in_form(AnswerForm.SCHEMA), space=LogprobSpace.EXACT)
    return exact_method(replace(setup, reader=reader), tolerance)
