"""Sentences that report the result of a prompt search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_Record = Mapping[str, Any]

WHAT_ACCEPTED_MEANS = (
    "Accepted proposals scored more than the prompt they were made from on a minibatch of training rows, and went on "
    "to the validation rows; these alone decide which prompt is best."
)
"""GEPA's word, explained."""


def changed_prompt(record: _Record) -> bool:
    """Return True if a search's best prompt is not the seed prompt.

    Parameters
    ----------
    record : mapping
        ``result.json``. Earlier versions, which chose by score alone, called every other prompt improved.
    """
    return bool(record.get("chosen", record["improved"]))


def search_verdict(record: _Record) -> list[str]:
    """Return sentences about the prompt chosen on validation rows and its result on test rows.

    Parameters
    ----------
    record : mapping
        ``result.json``.
    """
    validated = record.get("validated") or []
    heads = record.get("by_head")
    if heads is not None and record["chosen"] != heads["raced"]:
        return [*_decided_by_head(record, heads), *_given_prompts(validated), *_tested_with_head(record)]
    same = [] if heads is None else [_not_by_head(heads)]
    if not changed_prompt(record):
        if validated and record.get("proposals") == 0 and validated[0]["accuracy"] == 1.0:
            return [
                "No other prompt was tried: the seed prompt made no error on the rows that it was asked about."
            ]
        return [*_kept_seed(validated), *same, *_given_prompts(validated), *_detectable_gain(record)]
    if not validated:  # by an earlier version
        return _test_warning(record)
    seed, best = validated[0], validated[record["chosen"]]
    rows = best.get("rows") or "the"
    name = f", {best['origin']}" if best.get("origin") else ""
    chosen = f"Chosen on {rows} validation rows{name}: {_steps(seed, best)}."
    return [chosen, *same, *_given_prompts(validated), *_test_warning(record)]


def _decided_by_head(record: _Record, heads: _Record) -> list[str]:
    """Return sentences for a search in which the heads changed the choice of the prompt."""
    best = record["validated"][record["chosen"]]
    name = f", {best['origin']}," if best.get("origin") else ""
    kept = "The seed prompt is kept" if record["chosen"] == 0 else f"Chosen{name}"
    raced = "kept the seed prompt" if heads["raced"] == 0 else "took another prompt"
    chosen = (
        f"{kept} for its head, on {heads['rows']} validation rows: held-out log loss "
        f"{_number(heads['raced_log_loss'])} -> {_number(heads['other_log_loss'])}, accuracy "
        f"{_number(heads['raced_accuracy'])} -> {_number(heads['other_accuracy'])}, against the winner of the race "
        "with a head of its own."
    )
    return [chosen, f"The race, which compares prompts without heads, {raced}."]


def _tested_with_head(record: _Record) -> list[str]:
    """Return a sentence that compares the best prompt with its head to the seed prompt on test rows."""
    found = (record.get("final") or {}).get("against_seed")
    chosen, seed = "the chosen prompt with its head", "the seed prompt as it was scored"
    return _on_test_rows(
        [found["interval"]] if changed_prompt(record) and found is not None else [],
        worse=f"No improvement: on the test rows {chosen} is worse than {seed}.",
        better=f"On the test rows {chosen} is better than {seed}.",
        same=f"The test rows show no difference between {chosen} and {seed}.",
    )


def _on_test_rows(intervals: list[_Record], *, worse: str, better: str, same: str) -> list[str]:
    """Return `worse`, `better` or `same`, as the intervals of the differences show; empty if none."""
    if any(interval["upper"] < 0 for interval in intervals):
        return [worse]
    if any(interval["lower"] > 0 for interval in intervals):
        return [better]
    return [same] if intervals else []


def _not_by_head(heads: _Record) -> str:
    return (
        f"With heads the choice stays the same, on {heads['rows']} validation rows: held-out log loss "
        f"{_number(heads['raced_log_loss'])}, runner-up {_number(heads['other_log_loss'])}; accuracy "
        f"{_number(heads['raced_accuracy'])}, runner-up {_number(heads['other_accuracy'])}."
    )


def _kept_seed(validated: list[_Record]) -> list[str]:
    if len(validated) < 2:
        return ["No prompt was better than the seed prompt on the validation rows: the seed prompt is kept."]
    seed, *others = validated
    if seed.get("rows") is not None:
        asked = sorted({int(one["rows"]) for one in others})
        rows = f"{asked[0]}" if len(asked) == 1 else f"{asked[0]} to {asked[-1]}"
        verb = "s were" if len(others) > 1 else " was"
        return [
            "No prompt was clearly better than the seed prompt on the validation rows: the seed prompt is kept.",
            f"{len(others)} other{verb} asked about {rows} of them.",
        ]
    best = max(others, key=lambda one: float(one["score"]))
    kept = (
        f"No prompt was better than the seed prompt on the validation rows in score, {_measure(seed)} and macro F1 at "
        "once: the seed prompt is kept."
    )
    many = "s" if len(others) > 1 else ""
    return [kept, f"The best of {len(others)} other{many} by score: {_steps(seed, best)}."]


def _given_prompts(validated: list[_Record]) -> list[str]:
    """Return a sentence that compares the prompts of the task file on the validation rows."""
    given = [one for one in validated if one.get("origin")]
    if not given:
        return []
    key, name = (
        ("score", "Score") if validated[0].get("screened_loss") is None else ("screened_loss", "Log loss")
    )
    found = [f"{one.get('origin') or 'seed prompt'} {_number(one[key])}" for one in (validated[0], *given)]
    return [
        f"{name} of the task's prompts on the validation rows that all were asked about: {', '.join(found)}."
    ]


def _detectable_gain(record: _Record) -> list[str]:
    """Return a sentence about the smallest gain that the validation rows can show."""
    gain = record.get("detectable_gain")
    found = "Asked about all of these rows, a prompt that is better by {:.2f} accuracy is found four times of five; "
    return [] if gain is None else [found.format(gain) + "smaller differences need more rows."]


def _test_warning(record: _Record) -> list[str]:
    """Return a sentence on whether the test rows confirm the choice, contradict it or show nothing."""
    found = [(record.get("comparison") or {}).get("interval"), record.get("credit_difference")]
    return _on_test_rows(
        [interval for interval in found if interval],
        worse="No improvement: on the test rows the chosen prompt is worse than the seed prompt, as the interval of "
        "the difference lies below 0.",
        better="The test rows bear this out: the interval of the difference lies above 0.",
        same="The test rows show no difference: its interval holds 0.",
    )


def _measure(seed: _Record) -> str:
    return "accuracy" if seed.get("credit") is None else "credit"


def _steps(seed: _Record, other: _Record) -> str:
    first = ("score", "score") if seed.get("log_loss") is None else ("log_loss", "log loss")
    names = [first, (_measure(seed), _measure(seed)), ("macro_f1", "macro F1")]
    return ", ".join(f"{name} {_number(seed[key])} -> {_number(other[key])}" for key, name in names)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
