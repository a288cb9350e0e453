"""From evidence to findings: one small function per probe, all of them pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Final

from calibrant.core._completion import Token
from calibrant.core._distribution import LOW_LABEL_MASS, LabelDistribution, LogprobSpace
from calibrant.core._prediction import Outcome
from calibrant.inference.doctor._calls import Failed, Lacking
from calibrant.inference.doctor._evidence import Evidence, Scored
from calibrant.inference.doctor._report import Finding, Verdict
from calibrant.inference.doctor._task import TEXTS, Reading
from calibrant.inference.doctor._units import SENTINEL, unit_fault

ILLEGAL_MASS: Final = 0.01
"""More probability than this on texts that are no label, and the log-probabilities are not masked."""

JITTER: Final = 0.01
"""Log-probabilities that move by more than this between equal calls are worth a warning (1 % of a probability)."""

# Alternatives less probable than this differ in any engine; they are compared as if they were this.
_NOISE: Final = math.log(1e-3)
_SAMPLED = 'scoring = "sampled" under [model], which needs none'


def usable_distributions(evidence: Evidence) -> list[tuple[Reading, LabelDistribution]]:
    """Return the answers to the texts whose log-probabilities can be read, with what they say."""
    if _fault(evidence.readings):
        return []
    return [
        (found, found.prediction.distribution)
        for found in evidence.answers
        if isinstance(found, Reading) and found.prediction.distribution is not None
    ]


def found_space(evidence: Evidence) -> LogprobSpace | None:
    """Return what the log-probabilities were found to be probabilities of; None where that cannot be told."""
    if evidence.claimed is LogprobSpace.NONE or _fault(evidence.readings):
        return None
    openings = [found.opening for found in evidence.readings if found.opening is not None]
    if not any(opening.listed > 1 for opening in openings):
        return None
    if max(opening.illegal for opening in openings) > ILLEGAL_MASS:
        return LogprobSpace.RAW
    off_topic = evidence.off_topic
    # On texts with plain answers a sure model without a mask looks the same.
    asked = isinstance(off_topic, Reading) and off_topic.opening is not None
    return LogprobSpace.MASKED if asked else None


def exact_scores(evidence: Evidence) -> tuple[Scored, ...]:
    """Return the texts that were scored exactly; empty where that does not work."""
    found = evidence.scored
    return found if isinstance(found, tuple) and _exact(evidence).verdict is Verdict.OK else ()


def label_mass(evidence: Evidence) -> float | None:
    """Return the mean probability on the labels, or None where it cannot be seen."""
    scores = exact_scores(evidence)
    if scores:
        return statistics.fmean(found.distribution.label_mass for found in scores)
    if found_space(evidence) is not LogprobSpace.RAW:
        return None
    masses = [
        found.opening.legal
        for found in evidence.answers
        if isinstance(found, Reading) and found.opening is not None
    ]
    return statistics.fmean(masses) if masses else None


def _fault(readings: Sequence[Reading]) -> str:
    return next(filter(None, (unit_fault(found.tokens) for found in readings)), "")


# --- the probes ---------------------------------------------------------------------------------


def _enum(evidence: Evidence) -> Finding:
    if evidence.refused_schema:
        return _problem(
            "enum",
            f"The schema is refused: {evidence.refused_schema}",
            "Use a model or server with JSON schemas, or mend what the message names (--option).",
        )
    failed = [found.reason for found in evidence.answers if isinstance(found, Failed)]
    readings = [found for found in evidence.answers if isinstance(found, Reading)]
    wrong = [found.prediction for found in readings if found.prediction.outcome is not Outcome.OK]
    if wrong:
        return _problem(
            "enum",
            f"{len(wrong)} of {len(readings)} answers were no label: {wrong[0].reason}",
            "Use a model or server that enforces JSON schemas, or name the labels and the JSON in the prompt.",
        )
    right = sum(
        isinstance(found, Reading) and found.prediction.label == label
        for found, (_, label) in zip(evidence.answers, TEXTS, strict=True)
    )
    detail = f"{len(readings)} of {len(readings)} answers were a label, {right} the expected one"
    free = evidence.off_topic
    if isinstance(free, Reading) and free.prediction.outcome is Outcome.UNPARSED:
        return _warning(
            "enum",
            f"{detail}; but the schema is not enforced: off the topic, {free.prediction.reason}",
            "Name the labels and the JSON in the prompt: other answers count as unparsed.",
        )
    if failed:
        return _warning("enum", f"{detail}; {len(failed)} calls failed: {failed[0]}", "Examine again.")
    return _ok("enum", f"{detail}.")


def _logprobs(evidence: Evidence) -> Finding:
    remedy = f"Use {_SAMPLED}; or another model."
    verdict = _warning if exact_scores(evidence) else _problem
    if evidence.refused_schema:
        return _unknown("logprobs", "There is no enum output that they could come with.")
    if evidence.refused_logprobs:
        return verdict("logprobs", f"Refused together with enum output: {evidence.refused_logprobs}", remedy)
    readings = evidence.readings
    reported = [found for found in readings if found.tokens]
    if not reported:
        return verdict("logprobs", "None came with the answers: predictions carry no confidence.", remedy)
    if not _fault(readings) and not any(found.prediction.distribution for found in reported):
        return verdict(
            "logprobs", "They came, but their tokens do not spell the label: there is no confidence.", remedy
        )
    detail = f"They came with {len(reported)} of {len(readings)} answers"
    if len(reported) < len(readings):
        return _warning(
            "logprobs", f"{detail}.", "Rows without them carry no confidence: classify those again."
        )
    return _ok("logprobs", f"{detail}.")


def _space(evidence: Evidence) -> Finding:
    claimed, found = evidence.claimed, found_space(evidence)
    openings = [reading.opening for reading in evidence.readings if reading.opening is not None]
    if found is None:
        return _unknown("space", f"{_why_no_space(evidence)}; they are read as {claimed.value}.")
    illegal = max(opening.illegal for opening in openings)
    if found is LogprobSpace.RAW:
        detail = f"Raw: up to {illegal:.2f} of the probability is on texts that are no label"
    else:
        share = "no" if illegal == 0.0 else f"only {illegal:.2g} of the"
        detail = f"Masked: {share} probability is on texts that are no label, even off the topic"
    if found is claimed:
        return _ok("space", f"{detail}.")
    setting = f'space = "{found.value}" under [model] (space="{found.value}" in Python)'
    if found is LogprobSpace.MASKED:
        return _warning(
            "space",
            f"{detail}. They are read as {claimed.value}, which gives nearly the same confidence.",
            f"Set {setting}.",
        )
    exact = ', or scoring = "exact"' if exact_scores(evidence) else ""
    return _problem(
        "space",
        f"{detail}. Read as {claimed.value}, confidence would be far too low on some rows.",
        f"Set {setting}{exact}.",
    )


def _why_no_space(evidence: Evidence) -> str:
    openings = [reading.opening for reading in evidence.readings if reading.opening is not None]
    if evidence.claimed is LogprobSpace.NONE:
        return "The client says that it has no log-probabilities"
    if _fault(evidence.readings):
        return "The numbers reported cannot be used"
    if not openings:
        return "No log-probabilities were reported where a label begins"
    if not any(opening.listed > 1 for opening in openings):
        return "Only one alternative is reported, so what else the model may write cannot be seen"
    return "No text that is no label had any probability, but a question off the topic could not be read"


def _top_logprobs(evidence: Evidence) -> Finding:
    found = evidence.alternatives
    if not found.came:
        return _unknown("top_logprobs", "No alternatives were reported.")
    detail = f"{found.asked} asked for, {found.came} came back"
    if found.refused is not None:
        detail += f"; {found.refused[0]} were refused ({found.refused[1]})"
    if found.came == 1:
        return _warning(
            "top_logprobs",
            f"{detail}.",
            "The probabilities of labels that are not answered are bounds only; prefer another endpoint.",
        )
    return _ok("top_logprobs", f"{detail}.")


def _determinism(evidence: Evidence) -> Finding:
    found = [
        reading for reading in evidence.repeats if isinstance(reading, Reading) and reading.prediction.text
    ]
    if len(found) < 2:
        return _unknown("determinism", "The same call could not be repeated.")
    texts = {reading.prediction.text for reading in found}
    if len(texts) > 1:
        return _warning(
            "determinism",
            f"{len(texts)} different answers to {len(found)} equal calls at temperature 0.",
            "Expect answers to change between runs; an embedded engine repeats itself with n_parallel = 1.",
        )
    if not found[0].tokens or _fault(found):
        return _ok("determinism", f"The same answer to {len(found)} equal calls at temperature 0.")
    gap = max(_gap(found[0].tokens, other.tokens) for other in found[1:])
    detail = f"The same answer to {len(found)} equal calls; log-probabilities differ by up to {gap:.2g}."
    if gap > JITTER:
        return _warning(
            "determinism", detail, "Confidence moves by that much between runs: keep thresholds off the edge."
        )
    return _ok("determinism", detail)


def _gap(first: Sequence[Token], second: Sequence[Token]) -> float:
    """Return the largest difference between two reports of the same tokens, in nats."""
    gaps = [0.0]
    for one, other in zip(first, second, strict=False):
        known = dict(other.top)
        gaps.append(abs(max(one.logprob, SENTINEL) - max(other.logprob, SENTINEL)))
        gaps += [
            abs(max(value, _NOISE) - max(known[data], _NOISE)) for data, value in one.top if data in known
        ]
    return max(gaps)


def _label_mass(evidence: Evidence) -> Finding:
    mass = label_mass(evidence)
    if mass is None:
        why = (
            "A mask hides what the model would rather have written"
            if found_space(evidence) is LogprobSpace.MASKED
            else "There are no log-probabilities that show it"
        )
        return _unknown("label_mass", f"{why}.")
    detail = f"Mean {mass:.3f} over {len(TEXTS)} texts"
    if mass < LOW_LABEL_MASS:
        return _warning(
            "label_mass",
            f"{detail}, below {LOW_LABEL_MASS}: the prompt does not make the model answer with labels.",
            "Name the labels in the prompt and show the form of the answer with a placeholder; or use another model.",
        )
    return _ok("label_mass", f"{detail}.")


def _units(evidence: Evidence) -> Finding:
    tokens = [token for reading in evidence.readings for token in reading.tokens]
    if not tokens:
        return _unknown("units", "No log-probabilities were reported.")
    fault = _fault(evidence.readings)
    if fault:
        return _problem(
            "units", f"Not natural log-probabilities: {fault}.", f"Use {_SAMPLED}; or another endpoint."
        )
    values = [value for token in tokens for value in (token.logprob, *(found for _, found in token.top))]
    impossible = sum(value <= SENTINEL for value in values)
    remark = (
        f"; {impossible} of {len(values)} at or below {SENTINEL:.0f}, read as impossible"
        if impossible
        else ""
    )
    if all(value == 0.0 or value <= SENTINEL for value in values):
        return _warning(
            "units",
            f"Every value is 0 or impossible{remark}: they do not tell a sure answer from a doubtful one.",
            f"Where your own texts show the same, use {_SAMPLED}.",
        )
    return _ok("units", f"Natural logarithms, none above 0{remark}.")


def _alignment(evidence: Evidence) -> Finding:
    """Compare where our reader and the library that gepa's adapter is built on see the label."""
    found = [reading.disagreement for reading in evidence.readings if reading.disagreement is not None]
    if not found:
        return _unknown("alignment", "No log-probabilities were reported that can be read.")
    differ = list(filter(None, found))
    if not differ:
        return _ok(
            "alignment",
            f"llm-structured-confidence reads the same label, tokens and joint log-probability in {len(found)} of "
            f"{len(found)} answers.",
        )
    return _warning(
        "alignment",
        f"llm-structured-confidence reads {len(differ)} of {len(found)} answers otherwise: {differ[0]}",
        "Do not compare figures with programs that read this model through that library, gepa's own adapter among "
        "them.",
    )


def _exact(evidence: Evidence) -> Finding:
    found = evidence.scored
    if found is None:
        return _warning(
            "exact", "Not possible: no next-token probabilities after a beginning of an answer are to be had."
        )
    if isinstance(found, Lacking):
        return _warning("exact", f"Not possible: {found.reason}")
    if isinstance(found, Failed):
        return _problem("exact", f"It fails: {found.reason}", 'Use scoring = "decode".')
    listed = [one.next_tokens for one in found if one.next_tokens is not None]
    fault = next(filter(None, (unit_fault((Token(b"", 0.0, one.top),)) for one in listed)), "")
    if fault:
        return _problem(
            "exact", f"Not natural log-probabilities: {fault}.", 'Use scoring = "decode", or another engine.'
        )
    if not all(one.distribution.emitted for one in found):
        return _problem(
            "exact",
            "No label is among the tokens the model would write next.",
            'Use scoring = "decode": the model does not take the text before a label for a beginning.',
        )
    means = "next-token probabilities" if listed else "the probabilities of whole labels"
    return _ok("exact", f"{len(found)} of {len(found)} texts were scored on {means}.")


def _prefill(evidence: Evidence) -> Finding:
    found = evidence.continued
    if isinstance(found, Failed):
        return _warning("prefill", f"An answer that is begun is refused: {found.reason}")
    said = " ".join(found.casefold().split())
    said = said.removeprefix("one, two, three, four, five,").lstrip(" ,.")
    if said.startswith(("six", "6")):
        return _ok("prefill", "An answer that is begun is continued.")
    if said.startswith(("one", "1")):
        return _warning("prefill", "An answer that is begun is not continued but given anew.")
    return _unknown(
        "prefill", f"After a beginning came {found.strip()[:40]!r}, neither its end nor a new one."
    )


def _seed(evidence: Evidence) -> Finding:
    failed = [found.reason for found in evidence.drawn if isinstance(found, Failed)]
    if failed:
        return _unknown("seed", f"Temperature 1 with a seed brought no answer: {failed[0]}")
    if len(set(evidence.drawn)) == 1:
        return _ok("seed", "The same answer twice at temperature 1.")
    return _warning("seed", "Two answers at temperature 1, in spite of one seed: samples cannot be repeated.")


def _latency(evidence: Evidence) -> Finding:
    seconds = statistics.median(evidence.seconds)
    return _ok("latency", f"{seconds:.3g} s, median of {len(evidence.seconds)} calls.")


def _ok(feature: str, detail: str) -> Finding:
    return Finding(feature=feature, verdict=Verdict.OK, detail=detail)


def _unknown(feature: str, detail: str) -> Finding:
    return Finding(feature=feature, verdict=Verdict.UNKNOWN, detail=detail)


def _warning(feature: str, detail: str, remedy: str = "") -> Finding:
    return Finding(feature=feature, verdict=Verdict.WARNING, detail=detail, remedy=remedy)


def _problem(feature: str, detail: str, remedy: str) -> Finding:
    return Finding(feature=feature, verdict=Verdict.PROBLEM, detail=detail, remedy=remedy)


PROBES: Final[tuple[Callable[[Evidence], Finding], ...]] = (
    _enum,
    _logprobs,
    _space,
    _top_logprobs,
    _determinism,
    _label_mass,
    _units,
    _alignment,
    _exact,
    _prefill,
    _seed,
    _latency,
)
