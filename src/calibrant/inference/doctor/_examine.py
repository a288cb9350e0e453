"""`examine`: ask a model a few cheap questions, and say what its log-probabilities mean."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from calibrant.core._completion import Client
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import ConfigurationError
from calibrant.inference._loop import run_sync
from calibrant.inference._models import ModelLike, call_options, open_client
from calibrant.inference.doctor._calls import Calls
from calibrant.inference.doctor._evidence import Evidence, gather
from calibrant.inference.doctor._probes import (
    PROBES,
    exact_scores,
    found_space,
    label_mass,
    usable_distributions,
)
from calibrant.inference.doctor._records import identity
from calibrant.inference.doctor._report import Examination, RecommendedScoring, Thresholds

_FAMILIES: Final = (
    Thresholds(high=0.99, low=0.90),
    Thresholds(high=0.95, low=0.80),
    Thresholds(high=0.85, low=0.60),
)


def examine(
    model: ModelLike,
    *,
    api_base: str | None = None,
    options: Mapping[str, Any] | None = None,
    space: LogprobSpace | str | None = None,
    now: datetime | None = None,
    on_call: Callable[[int], None] | None = None,
) -> Examination:
    """Ask a model a few cheap questions, and say what its log-probabilities mean.

    At most 17 calls, one after the other, none of them repeated when it fails. Nothing is stored:
    see `save_examination`.

    Parameters
    ----------
    model : str, Client or callable
        As `Classifier` takes it. Options do not reach a callable, so some probes of it say little.
    api_base : str, optional
        Endpoint of an OpenAI-compatible server.
    options : mapping, optional
        Handed to the provider with every call, as `Classifier` does. Temperature is 0 where a probe
        does not need another; ``{"temperature": None}`` sends none.
    space : {"masked", "raw"}, optional
        What the setup takes the log-probabilities for, where it is not what the client says.
    now : datetime, optional
        Date of the examination; it is not read from a clock.
    on_call : callable, optional
        Called with the number of every call, from 1, before it is made.

    Returns
    -------
    Examination
        One finding per probe, and the settings recommended.

    Raises
    ------
    ProviderError
        The first call met a fault that every other call would meet (bad key, unknown model, no
        connection), or no call was answered.
    ConfigurationError
        A parameter is wrong, or the model cannot be opened.

    Examples
    --------
    >>> from calibrant.testing import FakeClient
    >>> sure = {"Animals": 0.97, "Food": 0.01, "Music": 0.01, "Weather": 0.01}
    >>> fake = FakeClient(["Animals", "Food", "Music", "Weather"], {}, default=sure, field="topic")
    >>> examine(fake).finding("space").detail
    'Masked: no probability is on texts that are no label, even off the topic.'
    """
    return run_sync(
        aexamine(model, api_base=api_base, options=options, space=space, now=now, on_call=on_call)
    )


async def aexamine(
    model: ModelLike,
    *,
    api_base: str | None = None,
    options: Mapping[str, Any] | None = None,
    space: LogprobSpace | str | None = None,
    now: datetime | None = None,
    on_call: Callable[[int], None] | None = None,
) -> Examination:
    """Examine a model, for use inside an event loop; see `examine`."""
    claimed = None if space is None else LogprobSpace(space)
    if claimed not in {None, LogprobSpace.MASKED, LogprobSpace.RAW}:
        raise ConfigurationError(f"Expected space 'masked' or 'raw', got {space!r}: others are not reported.")
    options = _with_api_base(options or {}, api_base)
    # A server that is named with its address may be able to score labels; it answers other calls as ever.
    client = open_client(model, space=claimed, options=options, scoring="exact")
    try:
        calls = Calls(client, call_options(options), on_call=on_call)
        evidence = await gather(calls, claimed or client.space)
    finally:
        if not isinstance(model, Client):
            client.close()
    found = _conclude(evidence)
    name, address, parameters = identity(model if isinstance(model, str) else client.name, options)
    return replace(found, model=name, api_base=address, parameters=parameters, examined=now)


def _with_api_base(options: Mapping[str, Any], api_base: str | None) -> dict[str, Any]:
    if api_base is None:
        return dict(options)
    if options.get("api_base", api_base) != api_base:
        msg = (
            f"Expected one api_base, got {api_base!r} and {options['api_base']!r} in options: leave out one."
        )
        raise ConfigurationError(msg)
    return {**options, "api_base": api_base}


def _conclude(evidence: Evidence) -> Examination:
    """Return what the evidence says, of a model without a name."""
    findings = tuple(probe(evidence) for probe in PROBES)
    space = found_space(evidence) or (
        evidence.claimed if usable_distributions(evidence) else LogprobSpace.NONE
    )
    scoring = _scoring(evidence)
    return Examination(
        model="",
        api_base=None,
        parameters={},
        examined=None,
        findings=findings,
        space=space,
        scoring=scoring,
        thresholds=recommended_thresholds(
            _confidences(evidence, scoring, space), LogprobSpace(scoring) if scoring != "decode" else space
        ),
        calls=evidence.calls,
        top_logprobs=evidence.alternatives.came,
        label_mass=label_mass(evidence),
    )


def _scoring(evidence: Evidence) -> RecommendedScoring:
    if exact_scores(evidence):
        return "exact"
    usable = evidence.claimed is not LogprobSpace.NONE and usable_distributions(evidence)
    return "decode" if usable else "sampled"


def _confidences(evidence: Evidence, scoring: RecommendedScoring, space: LogprobSpace) -> list[float]:
    if scoring == "exact":
        pairs = [(found.distribution.emitted, found.distribution) for found in exact_scores(evidence)]
    else:
        pairs = [
            (found.prediction.label, replace(distribution, space=space))
            for found, distribution in usable_distributions(evidence)
        ]
    return [distribution.confidence(label) for label, distribution in pairs if label]


def recommended_thresholds(confidences: Sequence[float], space: LogprobSpace) -> Thresholds:
    """Return the family of thresholds that suits a model.

    There are three: 0.99 and 0.90, 0.95 and 0.80, 0.85 and 0.60. The built-in texts have plain
    answers, so a model's confidence in them is about the highest it has: the strictest family is taken
    whose `high` at least half of the texts reach, or else the last one. The first family is for
    ``masked`` space only: in ``raw`` and ``exact`` space a confidence is a share among the labels, and
    leaves out what the model would rather have written. Agreement among a few samples is too coarse for
    any but the last.

    Parameters
    ----------
    confidences : sequence of float
        One per text, in [0, 1]; may be empty.
    space : LogprobSpace
        Where they come from.
    """
    first = {LogprobSpace.MASKED: 0, LogprobSpace.RAW: 1, LogprobSpace.EXACT: 1}.get(space, len(_FAMILIES))
    usual = statistics.median(confidences) if confidences else 0.0
    return next((family for family in _FAMILIES[first:] if usual >= family.high), _FAMILIES[-1])
