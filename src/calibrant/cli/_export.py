"""``calibrant export``: a run becomes a bundle."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from calibrant.assembly._bundle import Figure
from calibrant.assembly._bundle_export import export
from calibrant.assembly._bundle_figures import LABELS_ANSWERED, figure_warnings
from calibrant.core._errors import ConfigurationError


def run_export(  # noqa: PLR0913  (keyword-only options)
    run: Path,
    *,
    out: Path,
    calibration: Path | None,
    task: Path | None,
    model: str | None,
    texts: bool,
    as_json: bool,
) -> None:
    """Write the bundle and print its contents."""
    if model is not None and task is None:
        raise ConfigurationError("Expected --task with --model, got --model alone: the run knows its model.")
    bundle = export(run, out, task=task, model=model, calibration=calibration, texts=texts)
    if as_json:
        record = {"bundle": str(out), "name": bundle.name, "sha256": bundle.digest}
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
        return
    lines = [f"{bundle.name}: {out}", f"SHA-256 of the bundle: {bundle.digest}"]
    left_out = [
        f"{', '.join(options)} of {model}" for own in bundle.tasks for model, options in own.left_out.items()
    ]
    if left_out:
        lines.append(f"Left out, as they may be credentials: {'; '.join(left_out)}.")
    first = bundle.tasks[0].task
    if first.demonstrations is not None:
        lines.append(
            f"It holds {len(first.train):,} training texts with their labels: whoever has the folder can read them "
            "(--no-texts leaves them out)."
        )
    lines += _measured(bundle.figures)
    lines.append(f'Load it with calibrant.load("{out}"); how good it is stands in {out}/figures.json.')
    sys.stdout.write("\n".join(lines) + "\n")


def _measured(figures: Sequence[Figure]) -> Iterator[str]:
    """Yield macro F1 and the share of labels answered, and warnings of few labels and of low label mass."""
    shown = [figure for figure in figures if "macro F1" in figure.name or figure.name == LABELS_ANSWERED]
    if shown:
        yield "; ".join(f"{figure.name} {figure.estimate:.3f}" for figure in shown) + "."
    for warning in figure_warnings(figures):
        yield f"warning: {warning}"
