"""``calibrant report``: directories in, one page out."""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from calibrant.reports._html import write_report


def run_report(directories: Sequence[Path], *, out: Path | None, show: bool, as_json: bool) -> None:
    """Write the page, print where it is, and open it if asked to."""
    path = write_report(*directories, out=out)
    text = json.dumps({"report": str(path)}, ensure_ascii=False) if as_json else str(path)
    sys.stdout.write(text + "\n")
    if show:
        webbrowser.open(path.resolve().as_uri())
