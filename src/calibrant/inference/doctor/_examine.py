"""`examine`: ask a model a few cheap questions, and judge its log-probabilities by the answers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from calibrant.core._completion import Client
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import LOW_LABEL_MASS, LogprobSpace, Outcome
from calibrant.inference._abilities import AnswerForm
from calibrant.inference._base import run_sync
from calibrant.inference._models import ModelLike, call_options, open_client
from calibrant.inference.doctor._evidence import (
    TEXTS,
    Evidence,
    ExaminationCalls,
    FailedCall,
    TopicReading,
    gather,
)
from calibrant.inference.doctor._records import (
    Examination,
    Finding,
    FindingVerdict,
    RecommendedScoring,
    Thresholds,
    identity,
)
from calibrant.logprobs._completion import IMPOSSIBLE

_FAMILIES: Final = (
    Thresholds(high=0.99, low=0.90),
    Thresholds(high=0.95, low=0.80),
    Thresholds(high=0.85, low=0.60),
)
_FUSED: Final = 'scoring = "fused" under [model], which needs none'

_Judgement: TypeAlias = tuple[FindingVerdict, str, str]
"""Verdict, detail and remedy of a probe."""


def examine(
    model: ModelLike,
    *,
    api_base: str | None = None,
    options: Mapping[str, Any] | None = None,
    space: LogprobSpace | str | None = None,
    now: datetime | None = None,
    on_call: Callable[[int], None] | None = None,
) -> Examination:
    """Ask a model a few cheap questions, and judge its log-probabilities by the answers.

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
        Space in which the setup reads the log-probabilities, where it is not the one the client names.
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
        calls = ExaminationCalls(client, call_options(options), on_call=on_call)
        evidence = await gather(calls, claimed or client.space)
    finally:
        if not isinstance(model, Client):
            client.close()
    scoring = _scoring(evidence)
    space = evidence.shown_space or (evidence.claimed if evidence.distributions else LogprobSpace.NONE)
    confidences = _confidences(evidence, scoring, space)
    name, address, parameters = identity(model if isinstance(model, str) else client.name, options)
    return Examination(
        model=name,
        api_base=address,
        parameters=parameters,
        examined=now,
        findings=tuple(
            Finding(feature=probe.__name__[1:], verdict=verdict, detail=detail, remedy=remedy)
            for probe in _PROBES
            for verdict, detail, remedy in (probe(evidence),)
        ),
        space=space,
        scoring=scoring,
        thresholds=recommended_thresholds(
            confidences, space if scoring == "decode" else LogprobSpace(scoring)
        ),
        calls=calls.made,
        top_logprobs=evidence.alternatives.came,
        label_mass=evidence.label_mass,
        answer_form=evidence.answer_form,
    )


def _with_api_base(options: Mapping[str, Any], api_base: str | None) -> dict[str, Any]:
    if api_base is None:
        return dict(options)
    if options.get("api_base", api_base) != api_base:
        msg = (
            f"Expected one api_base, got {api_base!r} and {options['api_base']!r} in options: leave out one."
        )
        raise ConfigurationError(msg)
    return {**options, "api_base": api_base}


def _scoring(evidence: Evidence) -> RecommendedScoring:
    if evidence.exact_scores:
        return "exact"
    usable = evidence.claimed is not LogprobSpace.NONE and evidence.distributions
    return "decode" if usable else "fused"


def _confidences(evidence: Evidence, scoring: RecommendedScoring, space: LogprobSpace) -> list[float]:
    if scoring == "exact":
        pairs = [(one.distribution.emitted, one.distribution) for one in evidence.exact_scores]
    else:
        pairs = [(label, replace(found, space=space)) for label, found in evidence.distributions]
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
        Space of the log-probabilities that they come from.
    """
    first = {LogprobSpace.MASKED: 0, LogprobSpace.RAW: 1, LogprobSpace.EXACT: 1}.get(space, len(_FAMILIES))
    usual = statistics.median(confidences) if confidences else 0.0
    return next((family for family in _FAMILIES[first:] if usual >= family.high), _FAMILIES[-1])


# --- the probes, all of them pure ----------------------------------------------------------------


def _enum(evidence: Evidence) -> _Judgement:
    readings = evidence.answered
    if evidence.answer_form is None:
        count = f"{len(readings)} of {len(readings)} answers were no label: " if readings else ""
        return _problem(
            f"{count}The schema is {evidence.refused_schema}. Nor does the server give a JSON object, or plain text, "
            "that names a label.",
            "Use another model or server, or mend what the message names (--option).",
        )
    if evidence.answer_form is not AnswerForm.SCHEMA:
        right = sum(reading.prediction.outcome is Outcome.OK for reading in readings)
        form = "a JSON object" if evidence.answer_form is AnswerForm.JSON else "plain text"
        return _warning(
            f"The schema is {evidence.refused_schema}. Asked for {form}, with the labels named in the prompt, {right} "
            f"of {len(readings)} answers were a label.",
            "Nothing to set: calibrant asks this server that way.",
        )
    wrong = [reading.prediction for reading in readings if reading.prediction.outcome is not Outcome.OK]
    if wrong:
        return _problem(
            f"{len(wrong)} of {len(readings)} answers were no label: {wrong[0].reason}",
            "Use a model or server that enforces JSON schemas, or name the labels and the JSON in the prompt.",
        )
    right = sum(
        isinstance(answer, TopicReading) and answer.prediction.label == label
        for answer, (_, label) in zip(evidence.answers, TEXTS, strict=True)
    )
    detail = f"{len(readings)} of {len(readings)} answers were a label, {right} the expected one"
    free = evidence.off_topic
    if isinstance(free, TopicReading) and free.prediction.outcome is Outcome.UNPARSED:
        return _warning(
            f"{detail}; but the schema is not enforced: off the topic, {free.prediction.reason}",
            "Name the labels and the JSON in the prompt: other answers count as unparsed.",
        )
    failed = [answer.reason for answer in evidence.answers if isinstance(answer, FailedCall)]
    if failed:
        return _warning(f"{detail}; {len(failed)} calls failed: {failed[0]}", "Examine again.")
    return _ok(f"{detail}.")


def _space(evidence: Evidence) -> _Judgement:
    claimed, space = evidence.claimed, evidence.shown_space
    if space is None:
        missing = _missing_logprobs(evidence)
        if missing:
            verdict = _warning if evidence.exact_scores else _problem
            return verdict(missing, f"Use {_FUSED}; or another model.")
        return _unknown(f"{_unknown_space(evidence)}; they are read as {claimed.value}.")
    illegal = max(opening.illegal for opening in evidence.openings)
    if space is LogprobSpace.RAW:
        detail = f"Raw: up to {illegal:.2f} of the probability is on texts that are no label"
    else:
        share = "no" if illegal == 0.0 else f"only {illegal:.2g} of the"
        detail = f"Masked: {share} probability is on texts that are no label, even off the topic"
    if space is claimed:
        return _ok(f"{detail}.")
    setting = f'Set space = "{space.value}" under [model] (space="{space.value}" in Python)'
    if space is LogprobSpace.MASKED:
        detail = f"{detail}. They are read as {claimed.value}, which gives nearly the same confidence."
        return _warning(detail, f"{setting}.")
    exact = ', or scoring = "exact"' if evidence.exact_scores else ""
    detail = f"{detail}. Read as {claimed.value}, confidence would be far too low on some rows."
    return _problem(detail, f"{setting}{exact}.")


def _missing_logprobs(evidence: Evidence) -> str:
    """Return the way in which log-probabilities are missing; empty if they are not, or nothing was answered."""
    if not evidence.readings:
        return ""
    if evidence.refused_logprobs:
        return f"Log-probabilities are refused: {evidence.refused_logprobs}"
    reported = [reading for reading in evidence.readings if reading.tokens]
    if not reported:
        return "No log-probabilities came with the answers: predictions carry no confidence."
    if not evidence.fault and not any(reading.prediction.distribution for reading in reported):
        return "The tokens of the log-probabilities do not spell the label: there is no confidence."
    return ""


def _unknown_space(evidence: Evidence) -> str:
    """Return the reason for an unknown space."""
    if evidence.claimed is LogprobSpace.NONE:
        return "The client says that it has no log-probabilities"
    if evidence.fault:
        return "The numbers reported cannot be used"
    if not evidence.openings:
        return "No log-probabilities were reported where a label begins"
    if not any(opening.listed > 1 for opening in evidence.openings):
        return "Only one alternative is reported, so what else the model may write cannot be seen"
    return "No text that is no label had any probability, but a question off the topic could not be read"


def _label_mass(evidence: Evidence) -> _Judgement:
    mass = evidence.label_mass
    if mass is None:
        if evidence.shown_space is LogprobSpace.MASKED:
            return _unknown("A mask hides what the model would rather have written.")
        return _unknown("There are no log-probabilities that show it.")
    detail = f"Mean {mass:.3f} over {len(TEXTS)} texts"
    if mass < LOW_LABEL_MASS:
        return _warning(
            f"{detail}, below {LOW_LABEL_MASS}: the prompt does not make the model answer with labels.",
            "Name the labels in the prompt and show the form of the answer with a placeholder; or use another model.",
        )
    return _ok(f"{detail}.")


def _units(evidence: Evidence) -> _Judgement:
    tokens = [token for reading in evidence.readings for token in reading.tokens]
    if not tokens:
        return _unknown("No log-probabilities were reported.")
    if evidence.fault:
        return _problem(
            f"Not natural log-probabilities: {evidence.fault}.", f"Use {_FUSED}; or another endpoint."
        )
    values = [value for token in tokens for value in (token.logprob, *(listed for _, listed in token.top))]
    impossible = sum(value <= IMPOSSIBLE for value in values)
    remark = f"; {impossible} of {len(values)} at or below {IMPOSSIBLE:.0f}, read as impossible"
    remark = remark if impossible else ""
    if all(value == 0.0 or value <= IMPOSSIBLE for value in values):
        return _warning(
            f"Every value is 0 or impossible{remark}: they do not tell a sure answer from a doubtful one.",
            f"Where your own texts show the same, use {_FUSED}.",
        )
    return _ok(f"Natural logarithms, none above 0{remark}.")


def _alignment(evidence: Evidence) -> _Judgement:
    """Compare the label positions of our reader and of the library under gepa's adapter."""
    compared = [reading.disagreement for reading in evidence.readings if reading.disagreement is not None]
    if not compared:
        return _unknown("No log-probabilities were reported that can be read.")
    differences = list(filter(None, compared))
    count = len(compared)
    if not differences:
        return _ok(
            "llm-structured-confidence reads the same label, tokens and joint log-probability in "
            f"{count} of {count} answers."
        )
    return _warning(
        f"llm-structured-confidence reads {len(differences)} of {count} answers otherwise: {differences[0]}",
        "Do not compare figures with programs that read this model through that library, gepa's own adapter among "
        "them.",
    )


def _exact(evidence: Evidence) -> _Judgement:
    scored = evidence.scored
    if scored is None:
        return _warning(
            "Not possible: no next-token probabilities after a beginning of an answer are to be had."
        )
    if isinstance(scored, FailedCall):
        if scored.optional:
            return _warning(scored.reason)
        return _problem(scored.reason, scored.remedy or 'Use scoring = "decode", or another engine.')
    basis = "the probabilities of whole labels" if scored[0].is_whole else "next-token probabilities"
    return _ok(f"{len(scored)} of {len(scored)} texts were scored on {basis}.")


def _ok(detail: str) -> _Judgement:
    return FindingVerdict.OK, detail, ""


def _unknown(detail: str) -> _Judgement:
    return FindingVerdict.UNKNOWN, detail, ""


def _warning(detail: str, remedy: str = "") -> _Judgement:
    return FindingVerdict.WARNING, detail, remedy


def _problem(detail: str, remedy: str) -> _Judgement:
    return FindingVerdict.PROBLEM, detail, remedy


# The name of a probe is that of its function.
_PROBES: Final[tuple[Callable[[Evidence], _Judgement], ...]] = (
    *(_enum, _space, _label_mass, _units, _alignment, _exact),
)
