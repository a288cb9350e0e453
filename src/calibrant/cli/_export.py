"""``calibrant export`` and ``calibrant diff``: a run becomes a bundle; two bundles are compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from calibrant.assembly._bundle import Figure
from calibrant.assembly._bundle_diff import BundleDiff, Change, diff_bundles
from calibrant.assembly._bundle_export import export
from calibrant.assembly._bundle_figures import LABELS_ANSWERED, collapse_warning, label_mass_warning
from calibrant.cli._errors import GATE_FAILED
from calibrant.cli._tables import aligned
from calibrant.core._errors import ConfigurationError

_SHOWN: Final = 60  # characters of a value


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
    lines += _measured(bundle.figures)
    lines.append(f'Load it with calibrant.load("{out}"); what it is, and how good, is in {out}/card.md.')
    sys.stdout.write("\n".join(lines) + "\n")


def _measured(figures: Sequence[Figure]) -> Iterator[str]:
    """Yield macro F1 and the share of labels answered, and warnings of few labels and of low label mass."""
    shown = [figure for figure in figures if "macro F1" in figure.name or figure.name == LABELS_ANSWERED]
    if shown:
        yield "; ".join(f"{figure.name} {figure.estimate:.3f}" for figure in shown) + "."
    for warning in filter(None, (collapse_warning(figures), label_mass_warning(figures))):
        yield f"warning: {warning}"


def run_diff(before: Path, after: Path, *, require_same: bool, as_json: bool) -> None:
    """Print the differences; exit with 3 if `require_same` and there are any."""
    found = diff_bundles(before, after)
    text = json.dumps(found.to_record(), ensure_ascii=False) if as_json else "\n".join(_lines(found))
    sys.stdout.write(text + "\n")
    if require_same and not found.same:
        sys.stderr.write("--require-same: they differ.\n")
        raise SystemExit(GATE_FAILED)


def _lines(found: BundleDiff) -> Iterator[str]:
    if found.same:
        yield "Nothing differs."
    for name, text in (("prompt", found.prompt), ("user template", found.user_template)):
        if text:
            yield f"{name}:"
            yield text.rstrip("\n")
    for name, labels in (("labels added", found.labels_added), ("labels removed", found.labels_removed)):
        if labels:
            yield f"{name}: {', '.join(labels)}"
    if found.labels_reordered:
        yield "labels: in another order"
    yield from _changes("settings", found.settings)
    yield from _changes("corrections and thresholds", found.corrections)
    if found.figures:
        yield "figures:"
        yield from aligned(
            [[f"  {name}", _figure(old), "->", _figure(new)] for name, old, new in found.figures]
        )


def _changes(title: str, changes: Sequence[Change]) -> Iterator[str]:
    if changes:
        yield f"{title}:"
        yield from (
            f"  {change.name}: {_short(change.before)} -> {_short(change.after)}" for change in changes
        )


def _short(value: Any) -> str:  # noqa: ANN401 (any JSON value)
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    interval = "" if figure.lower is None else f" ({figure.lower:.4f} to {figure.upper:.4f})"
    return f"{figure.estimate:.4f}{interval}, {figure.rows:,} rows"
