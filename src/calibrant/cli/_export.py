"""``calibrant export``: a run becomes a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant import assembly
from calibrant.assembly._bundle_figures import LABELS_ANSWERED, figure_warnings
from calibrant.cli._tables import print_output
from calibrant.core._errors import ConfigurationError

if TYPE_CHECKING:
    from calibrant.cli._commands import Export


def export(options: Export) -> None:
    """Write the bundle and print its contents."""
    out = options.out
    if options.model is not None and options.task is None:
        raise ConfigurationError("Expected --task with --model, got --model alone: the run knows its model.")
    bundle = assembly.export(
        options.run,
        out,
        task=options.task,
        model=options.model,
        calibration=options.calibration,
        texts=options.texts,
    )
    record = {"bundle": str(out), "name": bundle.name, "sha256": bundle.digest}
    print_output(record, _contents(bundle, out), as_json=options.as_json)


def _contents(bundle: assembly.Bundle, out: Path) -> Iterator[str]:
    yield f"{bundle.name}: {out}"
    yield f"SHA-256 of the bundle: {bundle.digest}"
    left_out = [
        f"{', '.join(options)} of {model}" for own in bundle.tasks for model, options in own.left_out.items()
    ]
    if left_out:
        yield f"Left out, as they may be credentials: {'; '.join(left_out)}."
    first = bundle.tasks[0].task
    if first.demonstrations is not None:
        yield (
            f"It holds {len(first.train):,} training texts with their labels: whoever has the folder can read them "
            "(--no-texts leaves them out)."
        )
    figures = bundle.figures
    shown = [one for one in figures if "macro F1" in one.name or one.name == LABELS_ANSWERED]
    if shown:
        yield "; ".join(f"{figure.name} {figure.estimate:.3f}" for figure in shown) + "."
    for warning in figure_warnings(figures):
        yield f"warning: {warning}"
    yield f'Load it with calibrant.load("{out}"); how good it is stands in {out}/figures.json.'
