"""``calibrant export`` and ``calibrant diff``: a run becomes a bundle; two bundles are compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from calibrant.assembly import export
from calibrant.core import ConfigurationError

__all__ = ["run_export"]


def run_export(
    run: Path, *, out: Path, calibration: Path | None, task: Path | None, model: str | None, as_json: bool
) -> None:
    """Write the bundle and say what is in it."""
    if model is not None and task is None:
        raise ConfigurationError("Expected --task with --model, got --model alone: the run knows its model.")
    bundle = export(run, out, task=task, model=model, calibration=calibration)
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
    lines.append(f'Load it with calibrant.load("{out}"); what it is, and how good, is in {out}/card.md.')
    sys.stdout.write("\n".join(lines) + "\n")
