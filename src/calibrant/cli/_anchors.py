"""``calibrant compare RUN --anchors N``: rows of a run asked anew, to notice that its model was replaced."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Final

from calibrant.cli._commands import Compare
from calibrant.cli._options import GATE_FAILED
from calibrant.cli._tables import aligned, number, print_output, say
from calibrant.core._errors import ConfigurationError
from calibrant.evaluation._anchors import (
    NOISE,
    STILL,
    Anchor,
    AnchorComparison,
    ask_anchors,
    choose_anchors,
)
from calibrant.inference._base import BasePredictor
from calibrant.metrics._remarks import dollars
from calibrant.runs._directory import make_folder, write_json
from calibrant.runs._rows import SavedRow, SavedRows
from calibrant.tuned._open import from_run, open_tuned

_FILE: Final = "anchors.json"
_SHOWN: Final = 5  # rows whose label changed
_TEXT: Final = 60  # characters of their texts


def anchors(options: Compare, count: int) -> None:
    """Ask rows of a run anew, print the comparison, and exit with 3 if its model answers otherwise."""
    if len(options.runs) > 1 or options.gate or options.require_better:
        raise ConfigurationError(
            "Expected one run with --anchors, and neither --gate nor --require-better: its rows are asked anew."
        )
    (run,) = options.runs
    kept = None if options.out is None else options.out / _FILE
    if kept is not None and kept.exists():
        raise ConfigurationError(
            f"{kept}: expected no answers here yet, got some: name another directory by --out."
        )
    rows = SavedRows.load(run)
    chosen = choose_anchors(rows, count)
    place = {} if options.api_base is None else {"api_base": options.api_base}
    # No cache and no journal: what was answered before is what today's answers are compared with.
    tuned = from_run(run, task=options.task)
    with contextlib.closing(open_tuned(tuned, options=place)) as classifier:
        say(_announcement(rows, chosen, classifier))
        found = ask_anchors(rows, classifier, count=count)
    if kept is not None:
        make_folder(kept.parent)
        write_json(kept, found.to_record())
    print_output(found.to_record(), _lines(found, classifier.name), as_json=options.as_json)
    if found.has_moved:
        raise SystemExit(GATE_FAILED)


def _announcement(rows: SavedRows, chosen: Sequence[SavedRow], classifier: BasePredictor) -> str:
    """Return the sentence on the rows that are asked and their cost, by what they cost before."""
    cost = sum(row.cost for row in chosen)
    price = "no price is known" if math.isnan(cost) else f"about {dollars(cost)}, as in the run"
    if classifier.is_free:
        price = "no cost, the model runs here"
    return f"{len(chosen):,} of {len(rows):,} rows are asked anew of {classifier.name}: {price}"


def _lines(found: AnchorComparison, model: str) -> Iterator[str]:
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
    yield from map(_changed_line, changed[:_SHOWN])
    if len(changed) > _SHOWN:
        yield f"  and {len(changed) - _SHOWN:,} more"
    if found.failed:
        yield f"{found.failed:,} rows failed, and are left out."
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
    text = " ".join(one.input.split())
    return f"  row {one.index}: {then} then, {now} now: {text[:_TEXT]}"
