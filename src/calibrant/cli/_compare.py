"""``calibrant compare``: runs beside each other, or rows of one asked anew, to notice that its model was replaced."""

from __future__ import annotations

import contextlib
import html
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from calibrant import evaluation
from calibrant.cli._finished import warn_of_stand_ins
from calibrant.cli._options import GATE_FAILED
from calibrant.cli._tables import aligned, number, print_output, say, with_interval
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import FloatArray
from calibrant.core._reported import counted, one_line, without_none
from calibrant.evaluation._anchors import (
    NOISE,
    STILL,
    Anchor,
    AnchorComparison,
    ask_anchors,
    choose_anchors,
)
from calibrant.inference._base import BasePredictor
from calibrant.metrics._gate import PairedGate
from calibrant.metrics._remarks import dollars
from calibrant.runs._directory import make_folder, write_json
from calibrant.runs._rows import UNKNOWN, SavedRow, SavedRows
from calibrant.tuned._open import from_run, open_tuned

if TYPE_CHECKING:
    from calibrant.cli._commands import Compare
    from calibrant.evaluation._compare import RunComparison, RunDifference

# A change is let through on proof; it is stopped on stronger proof, as most changes that are stopped annoy somebody.
_DELTA_BETTER: Final = 0.1
_DELTA_WORSE: Final = 0.05
_ANCHORS: Final = "anchors.json"
_SHOWN_ANCHORS: Final = 5  # whose label changed
_ANCHOR_TEXT: Final = 60  # characters of their texts
# Of a summary in Markdown.
_MOST_ROWS: Final = 20
_LONGEST: Final = 100  # characters of a text
_CREDIT: Final = {1: "right", 0: "wrong", UNKNOWN: "unknown"}


def compare(options: Compare) -> None:
    """Print the comparison; exit with 3 if a gate does not hold."""
    runs = options.runs
    if options.anchors is not None:
        _ask_anchors(options, options.anchors)
        return
    of_anchors = {"--out": options.out, "--task": options.task, "--api-base": options.api_base}
    for name, given in of_anchors.items():
        if given is not None:
            raise ConfigurationError(
                f"Expected {name} with --anchors alone, which asks rows anew: leave it out."
            )
    if len({path.resolve() for path in runs}) < len(runs):
        raise ConfigurationError(
            f"Expected different runs, got one of them twice: {', '.join(map(str, runs))}. Name each once."
        )
    gate, loss_gate = _gates(options)
    saved = [SavedRows.load(path) for path in runs]
    for rows in saved:
        warn_of_stand_ins(rows)
    found = evaluation.compare_predictions(saved, gate=gate, loss_gate=loss_gate)
    print_output(found.to_record(), _comparison_lines(found), as_json=options.as_json)
    if options.summary is not None:
        remarks = chain.from_iterable(map(_remarks, found.differences))
        _append_summary(options.summary, saved, found, remarks)
    missed = _missed(options, found)
    if missed is not None:
        say(missed)
        raise SystemExit(GATE_FAILED)


def _gates(options: Compare) -> tuple[PairedGate | None, PairedGate | None]:
    """Return the gate for better runs and the one for worse runs, those that are asked for."""
    if options.gate and options.no_worse:
        raise ConfigurationError(
            "Expected --gate or --no-worse, got both: a run that is shown to be better is not worse; keep --gate."
        )
    if options.least_gain != 0.0 and not options.gate:
        raise ConfigurationError("Expected --gate with --least-gain, got no --gate: add it.")
    if options.delta is not None and not (options.gate or options.no_worse):
        raise ConfigurationError("Expected --gate or --no-worse with --delta, got --delta alone: add one.")
    if options.no_worse:
        return None, PairedGate(delta=_DELTA_WORSE if options.delta is None else options.delta)
    if options.gate:
        delta = _DELTA_BETTER if options.delta is None else options.delta
        return PairedGate(delta=delta, least_gain=options.least_gain), None
    return None, None


def _missed(options: Compare, found: RunComparison) -> str | None:
    """Return a sentence on the required result that is missed, or None."""
    first = found.runs[0].name
    if options.require_better and not found.all_better:
        failing = ", ".join(one.name for one in found.differences if not one.is_better)
        return (
            f"--require-better: not shown to be better than {first}: {failing} (the interval of the difference does "
            "not lie above zero)."
        )
    if options.gate and found.not_accepted:
        failing = ", ".join(one.name for one in found.not_accepted)
        gates = [one.gate for one in found.not_accepted if one.gate is not None]
        return f"--gate: not shown to be {_claim(gates[0], first)}: {failing}."
    if found.shown_worse:
        return (
            f"--no-worse: shown to be worse than {first}: {', '.join(one.name for one in found.shown_worse)}."
        )
    return None


def _claim(gate: PairedGate, baseline: str) -> str:
    """Return the claim that a gate tests, as words after "shown to be"."""
    if gate.least_gain > 0.0:
        return f"better than {baseline} by more than {gate.least_gain:g}"
    if gate.least_gain < 0.0:
        return f"worse than {baseline} by less than {-gate.least_gain:g}, if at all"
    return f"better than {baseline}"


def _gate_line(found: RunDifference, gate: PairedGate) -> str:
    """Return the decision of a gate, with its evidence."""
    claim = _claim(gate, found.baseline)
    needed = f"; {1.0 / gate.delta:.3g} decides"
    counts = f"{counted(gate.n, 'row')}, {gate.only_a + gate.only_b:,} of which one of the two has right"
    if gate.decision == "accepted":
        return (
            f"{found.name}: accepted, shown to be {claim} (evidence {gate.evidence:.3g}{needed}; {counts})."
        )
    if gate.decision == "rejected":
        ruled_out = (
            f"a difference of {gate.least_gain + gate.margin:+g} or more to {found.baseline} is ruled out"
        )
        return (
            f"{found.name}: rejected, {ruled_out} (evidence {gate.evidence_against:.3g}{needed}; {counts})."
        )
    return (
        f"{found.name}: undecided, not yet shown to be {claim} (evidence {gate.evidence:.3g} for it and "
        f"{gate.evidence_against:.3g} against it{needed}; {counts}): evaluate both on more rows."
    )


def _loss_line(found: RunDifference, gate: PairedGate) -> str:
    """Return the decision of a gate against worse runs, with its evidence: its a is the run, its b the first one."""
    needed = f"{1.0 / gate.delta:.3g} decides"
    counts = (
        f"{counted(gate.n, 'row')}, {gate.only_a + gate.only_b:,} of which one of the two has right: {found.baseline} "
        f"{gate.only_b:,}, {found.name} {gate.only_a:,}"
    )
    if gate.decision == "accepted":
        return (
            f"{found.name}: worse, shown to be less accurate than {found.baseline} (evidence {gate.evidence:.3g}; "
            f"{needed}; {counts})."
        )
    if gate.decision == "rejected":
        return (
            f"{found.name}: not worse, a loss of {gate.margin:g} or more against {found.baseline} is ruled out "
            f"(evidence {gate.evidence_against:.3g}; {needed}; {counts})."
        )
    further = gate.rows_to_decision
    rows = "more rows" if further is None else f"about {counted(further, 'more row')}"
    return (
        f"{found.name}: undecided, which passes: neither shown to be worse than {found.baseline} nor to lose less than "
        f"{gate.margin:g} (evidence {gate.evidence:.3g} and {gate.evidence_against:.3g}; {needed}; {counts}). If those "
        f"to come differ like these, {rows} would decide."
    )


def _remarks(found: RunDifference) -> Iterator[str]:
    """Yield sentences on the rows that are left out, and on the decision of a gate."""
    counts = {
        "that failed with a transport error in either run": found.excluded_errors,
        "without a true label": found.excluded_unlabelled,
        "that one of the two has not answered yet": found.excluded_unpaired,
    }
    left_out = [f"{counted(count, 'row')} {why}" for why, count in counts.items() if count]
    if left_out:
        yield f"{found.name}: left out of the difference: {' and '.join(left_out)}."
    if found.gate is not None:
        yield _gate_line(found, found.gate)
    if found.loss_gate is not None:
        yield _loss_line(found, found.loss_gate)


def _comparison_lines(found: RunComparison) -> Iterator[str]:
    runs = [["run", "accuracy", "n", "macro F1", "ECE", "Brier", "errors"]]
    for run in found.runs:
        figures = map(number, (run.macro_f1, run.ece, run.brier))
        runs.append([run.name, with_interval(run.accuracy), f"{run.n:,}", *figures, f"{run.errors:,}"])
    yield from aligned(runs)
    yield ""
    several = len(found.differences) > 1
    differences = [[f"against {found.runs[0].name}", "accuracy difference", "n", "p"]]
    if several:
        differences[0].append("p, Holm")
    for one in found.differences:
        paired = one.comparison
        row = [one.name, with_interval(paired.interval, "+.3f"), f"{paired.n:,}", f"{paired.p_value:.3g}"]
        if several:
            row.append(f"{one.p_holm:.3g}")
        differences.append(row)
    yield from aligned(differences)
    yield "95 % intervals: Wilson, and Newcombe's for paired differences. p: exact McNemar test."
    for one in found.differences:
        yield from _remarks(one)


def _ask_anchors(options: Compare, count: int) -> None:
    """Ask rows of a run anew, print the comparison, and exit with 3 if its model answers otherwise."""
    if len(options.runs) > 1 or options.gate or options.require_better:
        raise ConfigurationError(
            "Expected one run with --anchors, and neither --gate nor --require-better: its rows are asked anew."
        )
    (run,) = options.runs
    kept = None if options.out is None else options.out / _ANCHORS
    if kept is not None and kept.exists():
        raise ConfigurationError(
            f"{kept}: expected no answers here yet, got some: name another directory by --out."
        )
    rows = SavedRows.load(run)
    chosen = choose_anchors(rows, count)
    place = without_none({"api_base": options.api_base})
    # No cache and no journal: what was answered before is what today's answers are compared with.
    tuned = from_run(run, task=options.task)
    with contextlib.closing(open_tuned(tuned, options=place)) as classifier:
        say(_announcement(rows, chosen, classifier))
        found = ask_anchors(rows, classifier, count=count)
    if kept is not None:
        make_folder(kept.parent)
        write_json(kept, found.to_record())
    print_output(found.to_record(), _anchor_lines(found, classifier.name), as_json=options.as_json)
    if found.has_moved:
        raise SystemExit(GATE_FAILED)


def _announcement(rows: SavedRows, chosen: Sequence[SavedRow], classifier: BasePredictor) -> str:
    """Return the sentence on the rows that are asked and their cost, by what they cost before."""
    cost = sum(row.cost for row in chosen)
    price = "no price is known" if math.isnan(cost) else f"about {dollars(cost)}, as in the run"
    if classifier.is_free:
        price = "no cost, the model runs here"
    return f"{len(chosen):,} of {len(rows):,} rows are asked anew of {classifier.name}: {price}"


def _anchor_lines(found: AnchorComparison, model: str) -> Iterator[str]:
    n = len(found.anchors)
    shifts = found.shifts
    confidence = "not known"
    if shifts:
        mean = number(sum(shifts) / len(shifts), "+.3f")
        confidence = (
            f"{mean} on average; {found.n_rose:,} rose and {found.n_fell:,} fell by more than {STILL:g}"
        )
    yield f"{found.source}: {n:,} rows asked anew of {model}"
    yield from aligned(
        [
            ["labels", f"{found.n_changed:,} of {n:,} changed", f"p = {found.label_p_value:.3g}"],
            ["confidence", confidence, f"p = {found.confidence_p_value:.3g}"],
        ]
    )
    changed = [one for one in found.anchors if one.has_changed]
    yield from map(_changed_line, changed[:_SHOWN_ANCHORS])
    if len(changed) > _SHOWN_ANCHORS:
        yield f"  and {len(changed) - _SHOWN_ANCHORS:,} more"
    if found.failed:
        yield f"{counted(found.failed, 'row failed, and is', 'rows failed, and are')} left out."
    if found.renamed is not None:
        yield f"The provider calls it {found.renamed[1]} now, and called it {found.renamed[0]} in the run."
    if found.has_moved:
        yield (
            "The model behind the name moved: these are more changes than noise makes. What the run measured, and "
            "certificates and heads made from it, are about the model of then: evaluate, and calibrate again."
        )
    else:
        yield (
            f"The same answers, as far as {n:,} rows tell: with 95 %, at most {found.most_changed:.1%} of the run's "
            "labels are others now."
        )
    yield (
        f"p: exact tests that labels change as rarely as noise changes them (at most {NOISE:.0%}), and that "
        "confidences rise as often as they fall; each at 0.025."
    )


def _changed_line(one: Anchor) -> str:
    then = f"{one.label or '-'} {number(one.confidence)}"
    now = f"{one.label_now or '-'} {number(one.confidence_now)}"
    text = one_line(one.input)
    return f"  row {one.index}: {then} then, {now} now: {text[:_ANCHOR_TEXT]}"


def _append_summary(
    path: Path, saved: Sequence[SavedRows], found: RunComparison, sentences: Iterable[str]
) -> None:
    """Append a comparison to a file of Markdown: runs, their differences, sentences on gates, and rows that changed.

    A build server shows that file on the page of a job.
    """
    lines = ["", "", "### calibrant compare", "", *_runs_table(saved, found), *_differences_table(found)]
    for sentence in sentences:
        lines += ["", f"<p>{_cell(sentence)}</p>"]
    for other, difference in zip(saved[1:], found.differences, strict=True):
        lines += _changes_table(saved[0], other, difference)
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _cell(text: str) -> str:
    """Return a text as HTML that shows it and nothing else.

    A block of HTML is not read as Markdown up to its end or an empty line, which a text without line breaks cannot
    make; inside of ``code`` neither people nor issues nor addresses become links.
    """
    shown = "".join(character if character.isprintable() else " " for character in text)
    return f"<code>{html.escape(' '.join(shown.split()))}</code>"


def _text_cell(text: str | None) -> str:
    if text is None:
        return "-"
    return _cell(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table of HTML; cells are HTML already."""
    lines = ["<table>", "<tr>" + "".join(f"<th>{name}</th>" for name in header) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return [*lines, "</table>"]


def _runs_table(saved: Sequence[SavedRows], found: RunComparison) -> list[str]:
    table = []
    for run, rows in zip(found.runs, saved, strict=True):
        counts = (f"{run.rows:,}", f"{run.errors:,}")
        table.append([_cell(run.name), *counts, with_interval(run.accuracy), _cost(rows.cost)])
    return _table(["run", "rows", "errors", "accuracy (95 %)", "cost"], table)


def _cost(costs: FloatArray) -> str:
    """Return the sum of costs; a dash where one is unknown."""
    total = float(costs.sum())
    return dollars(None if np.isnan(total) else total)


def _differences_table(found: RunComparison) -> list[str]:
    rows = [
        [
            _cell(one.name),
            _cell(one.baseline),
            with_interval(one.comparison.interval, "+.3f"),
            f"{one.comparison.n:,}",
            f"{one.comparison.p_value:.3g}",
        ]
        for one in found.differences
    ]
    return ["", *_table(["run", "against", "accuracy difference (95 %)", "rows", "p"], rows)]


def _changed_places(first: SavedRows, other: SavedRows) -> tuple[list[int], list[int]]:
    """Return the places in two runs of the rows that they answer differently: answers lost, then won, then others."""
    _, ours, theirs = np.intersect1d(first.index, other.index, assume_unique=True, return_indices=True)
    changed: list[tuple[int, int, int]] = []  # rank of the change, and the places
    for a, b in zip(ours.tolist(), theirs.tolist(), strict=True):
        if first.failed[a] or other.failed[b]:
            continue
        before = first.correct[a]
        after = other.correct[b]
        loss = 0
        if UNKNOWN not in (before, after):
            loss = int(before) - int(after)
        if loss or first.labels[a] != other.labels[b]:
            rank = {1: 0, -1: 1}.get(loss, 2)
            changed.append((rank, a, b))
    changed.sort(key=itemgetter(0))
    return [a for _, a, _ in changed], [b for _, _, b in changed]


def _changes_table(first: SavedRows, other: SavedRows, difference: RunDifference) -> list[str]:
    before, after = _changed_places(first, other)
    if not before:
        return ["", f"<p>{_cell(difference.name)}: no row has another answer.</p>"]
    places = before[:_MOST_ROWS]
    ordered = sorted(places)
    texts = dict(zip(ordered, first.rows(ordered), strict=True))
    rows = [
        [
            f"{_CREDIT[int(first.correct[place])]} → {_CREDIT[int(other.correct[partner])]}",
            _text_cell(texts[place].input),
            _text_cell(first.answers[place]),
            _text_cell(first.labels[place] or first.outcomes[place].value),
            _text_cell(other.labels[partner] or other.outcomes[partner].value),
        ]
        for place, partner in zip(places, after, strict=False)
    ]
    count = len(before)
    shown = f", {_MOST_ROWS} of them here" if count > _MOST_ROWS else ""
    title = f"<p>{_cell(difference.name)}: rows with another answer: {count:,}{shown}.</p>"
    header = ["change", "text", "true label", _cell(difference.baseline), _cell(difference.name)]
    return ["", title, "", *_table(header, rows)]
