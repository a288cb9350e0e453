"""``calibrant compare`` and ``calibrant report``: runs on the same rows, and a page about runs."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator
from typing import TYPE_CHECKING

from calibrant import evaluation, reports
from calibrant.cli._errors import GATE_FAILED
from calibrant.cli._tables import aligned, number, print_output, say, with_interval
from calibrant.core._errors import ConfigurationError

if TYPE_CHECKING:
    from calibrant.cli._commands import Compare, Report
    from calibrant.evaluation._compare import RunComparison


def compare(options: Compare) -> None:
    """Print the comparison; exit with 3 if a run is not better and all had to be."""
    runs = options.runs
    if len({path.resolve() for path in runs}) < len(runs):
        raise ConfigurationError(
            f"Expected different runs, got one of them twice: {', '.join(map(str, runs))}. Name each once."
        )
    found = evaluation.compare_predictions([evaluation.load_predictions(path) for path in runs])
    print_output(found.to_record(), _lines(found), as_json=options.as_json)
    if options.require_better and not found.all_better:
        failing = ", ".join(one.name for one in found.differences if not one.is_better)
        say(
            f"--require-better: not shown to be better than {found.runs[0].name}: {failing} (the interval of the "
            "difference does not lie above zero)."
        )
        raise SystemExit(GATE_FAILED)


def _lines(found: RunComparison) -> Iterator[str]:
    runs = [
        [
            run.name,
            with_interval(run.accuracy),
            f"{run.n:,}",
            *map(number, (run.macro_f1, run.ece, run.brier)),
            f"{run.errors:,}",
        ]
        for run in found.runs
    ]
    yield from aligned([["run", "accuracy", "n", "macro F1", "ECE", "Brier", "errors"], *runs])
    yield ""
    several = len(found.differences) > 1
    head = [f"against {found.runs[0].name}", "accuracy difference", "n", "p", *(["p, Holm"] * several)]
    differences = [
        [
            one.name,
            with_interval(one.comparison.interval, "+.3f"),
            f"{one.comparison.n:,}",
            f"{one.comparison.p_value:.3g}",
            *([f"{one.p_holm:.3g}"] * several),
        ]
        for one in found.differences
    ]
    yield from aligned([head, *differences])
    yield "95 % intervals: Wilson, and Newcombe's for paired differences. p: exact McNemar test."
    for one in found.differences:
        counts = {
            "that failed with a transport error in either run": one.excluded_errors,
            "without a true label": one.excluded_unlabelled,
        }
        left_out = [f"{count:,} {why}" for why, count in counts.items() if count]
        if left_out:
            yield f"{one.name}: left out of the difference: rows {' and '.join(left_out)}."


def report(options: Report) -> None:
    """Write the page, print its path, and open it if requested."""
    path = reports.write_report(*options.directories, out=options.out)
    print_output({"report": str(path)}, [str(path)], as_json=options.as_json)
    if options.show:
        webbrowser.open(path.resolve().as_uri())
