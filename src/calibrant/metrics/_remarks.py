"""Sentences about confidence, intervals and the result of a prompt search, the same for commands and report."""

from __future__ import annotations

from decimal import Decimal

from calibrant.core._prediction import LOW_LABEL_MASS, Interval, Record
from calibrant.core._reported import counted


def confidence_remarks(auroc: Interval | None, *, rows: int, rows_with_low_label_mass: int) -> list[str]:
    """Return warnings about the confidences, one sentence each; empty without warnings.

    Parameters
    ----------
    auroc : Interval or None
        `auroc_interval` of the confidence; None where it is not defined. An estimate below 0.5 gets a sentence.
    rows, rows_with_low_label_mass : int
        Answered rows, and those among them with a label mass below `calibrant.core.LOW_LABEL_MASS`.
    """
    remarks = []
    if rows_with_low_label_mass:
        remarks.append(
            f"The model wanted to write something else on {rows_with_low_label_mass:,} of {rows:,} rows (label mass "
            f"below {LOW_LABEL_MASS:g}): there, confidence only compares the labels with each other. Name the labels "
            "in the prompt and show the form of the answer with a placeholder, or use a stronger model."
        )
    if auroc is not None and auroc.estimate < 0.5:
        remarks.append(_of_ranking(auroc))
    return remarks


def several_servers_advice(without_logprobs: int, *, answers: int) -> str:
    """Return a sentence on what to do where only some answers have log-probabilities; empty if all or none have."""
    if without_logprobs == answers or not without_logprobs:
        return ""
    return (
        "If several servers answer at one address, give the address of one of them (api_base under [model]), or each "
        'as a provider under [routing]; scoring = "fused" asks for a stated confidence with every text instead.'
    )


def _of_ranking(auroc: Interval) -> str:
    figures = f"AUROC {auroc.estimate:.3f}, {auroc.level:.0%} interval {auroc.lower:.3f} to {auroc.upper:.3f}"
    pairs = (
        f"in {1.0 - auroc.estimate:.0%} of all pairs of a right and a wrong row the wrong one is the surer"
    )
    if auroc.upper < 0.5:
        return f"Confidence ranks backwards: {pairs} ({figures}). A threshold would keep the wrong answers."
    return f"Confidence does not tell right from wrong answers here: {pairs} ({figures})."


def zero_width_remark(*intervals: Interval | None) -> str:
    """Return a warning if an interval has width 0, which does not mean certainty; else empty text."""
    if all(interval is None or interval.lower < interval.upper for interval in intervals):
        return ""
    return "width 0 because all rows came out alike, as the next ones need not"


def changed_prompt(record: Record) -> bool:
    """Return True if a search's best prompt is not the seed prompt.

    Parameters
    ----------
    record : mapping
        ``result.json``.
    """
    return bool(record["chosen"])


def search_verdict(record: Record) -> list[str]:
    """Return sentences about what a search has found: what the user gets, then how its prompt was chosen.

    Parameters
    ----------
    record : mapping
        ``result.json``.
    """
    validated = record["validated"]
    if not changed_prompt(record):
        if record["proposals"] == 0 and validated[0]["accuracy"] == 1.0:
            untried = "No other prompt was tried: the seed prompt made no error on the rows that it was asked about."
            return [*_tested(record), untried]
        chosen = _kept_seed(record, validated)
    else:
        chosen = [_chosen(record, validated)]
    return [*_tested(record), *chosen, *_given_prompts(validated), *_detectable_gain(record)]


def _tested(record: Record) -> list[str]:
    """Return a sentence that compares what the user gets with the seed prompt alone, on the test rows."""
    final = record["final"]
    if final is not None:
        own = "The best prompt" if changed_prompt(record) else "The seed prompt"
        asks = final.get("head", {}).get("uses_model", True)
        name = f"{own} with its head" if asks else "The head, which reads the text alone,"
        found = final["against_seed"]
        credit = None
    elif changed_prompt(record):
        found = record["comparison"]
        credit = record["credit_difference"]
        name = "The best prompt"
    else:
        return []
    intervals = [] if found is None else [found["interval"]]
    if credit is not None:
        intervals.append(credit)
    figures = "" if found is None else _difference(found)
    seed = "the seed prompt alone"
    return _on_test_rows(
        intervals,
        worse=f"No improvement: on the test rows {_lower(name)} is worse than {seed}{figures}.",
        better=f"{name} is better than {seed} on the test rows{figures}.",
        same=f"The test rows show no difference between {_lower(name)} and {seed}{figures}.",
    )


def _difference(found: Record) -> str:
    """Return the end of a sentence: a difference in accuracy with its interval."""
    ends = found["interval"]
    interval = f"{ends['lower']:+.3f} to {ends['upper']:+.3f}"
    return f": {found['difference']:+.3f} accuracy ({interval}, 95 %), {counted(found['n'], 'row')}"


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


def _chosen(record: Record, validated: list[Record]) -> str:
    """Return a sentence on how the best prompt was chosen."""
    heads = record["by_head"]
    best = validated[record["chosen"]]
    name = f"({best['origin']}) " if best["origin"] else ""
    if heads is not None and record["chosen"] != heads["raced"]:
        return f"The best prompt {name}was chosen for its head{_by_head(heads)}."
    rows = f"{best['rows']:,}" if best["rows"] else "the"
    steps = _steps(validated[0], best)
    alone = ", without its head" if (record["final"] or {}).get("head") else ""
    return f"The best prompt {name}was chosen on {rows} validation rows{alone}: {steps}."


def _by_head(heads: Record) -> str:
    """Return the end of a sentence: the accuracies of the last two prompts, each with its head."""
    other, raced = (_number(heads[f"{name}_accuracy"]) for name in ("other", "raced"))
    return (
        f": on {heads['rows']:,} validation rows accuracy {other}, and {raced} with the other of the last two"
    )


def _on_test_rows(intervals: list[Record], *, worse: str, better: str, same: str) -> list[str]:
    """Return `worse`, `better` or `same`, as the intervals of the differences show; empty if none."""
    if any(interval["upper"] < 0 for interval in intervals):
        return [worse]
    if any(interval["lower"] > 0 for interval in intervals):
        return [better]
    return [same] if intervals else []


def _kept_seed(record: Record, validated: list[Record]) -> list[str]:
    """Return sentences on why the seed prompt is the best one."""
    heads = record["by_head"]
    if heads is not None and heads["raced"] != 0:
        return [f"The seed prompt is kept for its head{_by_head(heads)}."]
    if record["proposals"] == 0:
        untried = "No other prompt was tried, as none could be made of these rows: the seed prompt is kept."
        return [untried, "A model that proposes prompts can be named by --reflection-model."]
    if len(validated) < 2:
        return ["No prompt was better than the seed prompt on the validation rows: the seed prompt is kept."]
    seed, *others = validated
    many = "s" if len(others) > 1 else ""
    if seed["rows"] is not None:
        asked = sorted({int(one["rows"]) for one in others})
        rows = f"{asked[0]}" if len(asked) == 1 else f"{asked[0]} to {asked[-1]}"
        tried = f"{len(others)} other{many} tried, on {rows} of them."
        return [f"No prompt was clearly better on the validation rows: the seed prompt is kept. {tried}"]
    best = max(others, key=lambda one: float(one["score"]))
    kept = (
        f"No prompt was better on the validation rows in score, {_measure(seed)} and macro F1 at once: the seed prompt "
        "is kept."
    )
    return [f"{kept} The best of {len(others)} other{many} by score: {_steps(seed, best)}."]


def _given_prompts(validated: list[Record]) -> list[str]:
    """Return a sentence that ranks the prompts of the task file on the validation rows."""
    given = [one for one in validated if one["origin"]]
    if not given:
        return []
    by_loss = validated[0]["screened_loss"] is not None
    prompts = [validated[0], *given]
    prompts.sort(key=lambda one: float(one["screened_loss"] if by_loss else -one["score"]))
    names = ", ".join(one["origin"] or "seed prompt" for one in prompts)
    return [f"The task's own prompts, from the best to the worst on the same validation rows: {names}."]


def _detectable_gain(record: Record) -> list[str]:
    """Return a sentence about the smallest gain that the validation rows can show; empty if a prompt was found."""
    gain = record["detectable_gain"]
    if gain is None or changed_prompt(record):
        return []
    return [f"With so few validation rows, a gain below {gain:.2f} accuracy will often be missed."]


def _measure(seed: Record) -> str:
    return "accuracy" if seed["credit"] is None else "credit"


def _steps(seed: Record, other: Record) -> str:
    """Return the figures of two prompts; their score only where the task names one."""
    names = []
    if seed["log_loss"] is None:
        names = [("score", "score")]
    names += [(_measure(seed), _measure(seed)), ("macro_f1", "macro F1")]
    return ", ".join(f"{name} {_number(seed[key])} -> {_number(other[key])}" for key, name in names)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def dollars(cost: float | None) -> str:
    """Format US dollars: four decimals, or two significant digits if smaller; a dash for None."""
    if cost is None:
        return "-"
    return f"${cost:.4f}" if cost >= 1e-4 else f"${Decimal(f'{cost:.1e}').normalize():f}"


def duration(seconds: float) -> str:
    """Return hours, minutes and seconds in words."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
