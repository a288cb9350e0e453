"""``calibrant export`` and ``calibrant diff``: a run becomes a bundle; two bundles are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant import assembly
from calibrant.assembly._bundle_diff import diff_bundles
from calibrant.assembly._bundle_figures import LABELS_ANSWERED, collapse_warning, label_mass_warning
from calibrant.cli._errors import GATE_FAILED
from calibrant.cli._tables import aligned, print_output, say
from calibrant.core._errors import ConfigurationError

if TYPE_CHECKING:
    from calibrant.assembly._bundle import Figure
    from calibrant.assembly._bundle_diff import BundleDiff, Change

_SHOWN: Final = 60  # characters of a value


def export(  # noqa: PLR0913  (keyword-only options)
    run: Path,
    *,
    out: Path,
    calibration: Path | None = None,
    task: Path | None = None,
    model: str | None = None,
    texts: bool = True,
    as_json: bool = False,
) -> None:
    """Write the bundle and print its contents.

    Parameters
    ----------
    run : RUN
        Directory of optimize, evaluate, batch or cascade run.
    out
        The bundle's folder; not there yet, or empty.
    calibration
        Directory of `calibrant calibrate`; by default the run's, if it was calibrated there.
    task : TASK.toml
        The task that was run; for runs without a task.json.
    model
        With --task: the model that was asked instead.
    texts
        Pack the training texts that prompts show as demonstrations; without them, none are shown.
    """
    if model is not None and task is None:
        raise ConfigurationError("Expected --task with --model, got --model alone: the run knows its model.")
    bundle = assembly.export(run, out, task=task, model=model, calibration=calibration, texts=texts)
    record = {"bundle": str(out), "name": bundle.name, "sha256": bundle.digest}
    print_output(record, _contents(bundle, out), as_json=as_json)


def _contents(bundle: assembly.Bundle, out: Path) -> Iterator[str]:
    yield f"{bundle.name}: {out}"
    yield f"SHA-256 of the bundle: {bundle.digest}"
    left_out = [
        f"{', '.join(options)} of {model}" for own in bundle.tasks for model, options in own.left_out.items()
    ]
    if left_out:
        yield f"Left out, as they may be credentials: {'; '.join(left_out)}."
    figures = bundle.figures
    shown = [one for one in figures if "macro F1" in one.name or one.name == LABELS_ANSWERED]
    if shown:
        yield "; ".join(f"{figure.name} {figure.estimate:.3f}" for figure in shown) + "."
    for warning in filter(None, (collapse_warning(figures), label_mass_warning(figures))):
        yield f"warning: {warning}"
    yield f'Load it with calibrant.load("{out}"); what it is, and how good, is in {out}/card.md.'


def diff(before: Path, after: Path, *, require_same: bool = False, as_json: bool = False) -> None:
    """Print the differences; exit with 3 if `require_same` and there are any.

    Parameters
    ----------
    before : A
        A bundle, or a run that could be exported.
    after : B
        Another one.
    require_same
        Exit with 3 if anything differs.
    """
    found = diff_bundles(before, after)
    print_output(found.to_record(), _differences(found), as_json=as_json)
    if require_same and not found.same:
        say("--require-same: they differ.")
        raise SystemExit(GATE_FAILED)


def _differences(found: BundleDiff) -> Iterator[str]:
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
    for change in changes:
        yield f"  {change.name}: {_short(change.before)} -> {_short(change.after)}"


def _short(value: Any) -> str:  # noqa: ANN401 (any JSON value)
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    interval = "" if figure.lower is None else f" ({figure.lower:.4f} to {figure.upper:.4f})"
    return f"{figure.estimate:.4f}{interval}, {figure.rows:,} rows"
