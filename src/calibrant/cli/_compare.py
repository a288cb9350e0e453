"""``calibrant compare``: runs on the same rows, each against the first."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.cli._errors import GATE_FAILED
from calibrant.cli._tables import aligned, number, with_interval
from calibrant.core._errors import ConfigurationError
from calibrant.evaluation._compare import compare_predictions
from calibrant.evaluation._saved import load_predictions

if TYPE_CHECKING:
    from calibrant.evaluation._compare import RunComparison


def run_compare(paths: Sequence[Path], *, require_better: bool, as_json: bool) -> None:
    """Print the comparison; exit with 3 where every run had to be better and one is not."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigurationError(
            f"Expected different runs, got one of them twice: {', '.join(map(str, paths))}. Name each once."
        )
    found = compare_predictions([load_predictions(path) for path in paths])
    text = json.dumps(found.to_record(), ensure_ascii=False) if as_json else "\n".join(_lines(found))
    sys.stdout.write(text + "\n")
    if require_better and not found.all_better:
        failing = ", ".join(one.name for one in found.differences if not one.is_better)
        sys.stderr.write(
            f"--require-better: not shown to be better than {found.runs[0].name}: {failing} (the interval of the "
            "difference does not lie above zero).\n"
        )
        raise SystemExit(GATE_FAILED)


def _lines(found: RunComparison) -> list[str]:
    runs = [["run", "accuracy", "n", "macro F1", "ECE", "Brier", "errors"]]
    runs += [
        [
            run.name,
            with_interval(run.accuracy),
            f"{run.n:,}",
            *map(number, (run.macro_f1, run.ece, run.brier)),
            f"{run.errors:,}",
        ]
        for run in found.runs
    ]
    several = len(found.differences) > 1
    against = [[f"against {found.runs[0].name}", "accuracy difference", "n", "p", *(["p, Holm"] * several)]]
    against += [
        [
            one.name,
            with_interval(one.comparison.interval, "+.3f"),
            f"{one.comparison.n:,}",
            f"{one.comparison.p_value:.3g}",
            *([f"{one.p_holm:.3g}"] * several),
        ]
        for one in found.differences
    ]
    return [*aligned(runs), "", *aligned(against), *_remarks(found)]


def _remarks(found: RunComparison) -> list[str]:
    lines = ["95 % intervals: Wilson, and Newcombe's for paired differences. p: exact McNemar test."]
    for one in found.differences:
        left_out = [
            f"{count:,} {why}"
            for count, why in (
                (one.excluded_errors, "that failed for the server's reasons in either run"),
                (one.excluded_unlabelled, "without a true label"),
            )
            if count
        ]
        if left_out:
            lines.append(f"{one.name}: left out of the difference: rows {' and '.join(left_out)}.")
    return lines
