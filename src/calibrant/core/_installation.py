"""Command that installs extras of calibrant from the same source as calibrant itself."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

_NAME: Final = "calibrant"
_NEEDS_QUOTES: Final = re.compile(r'["$`\\]')


def install_command(extra: str = "") -> str:
    """Return the pip command that installs an extra from the same source as calibrant itself.

    A clone or a folder is named by its path, an archive or a repository by its URL; only what came from a package
    index is asked of the index by its name.

    Parameters
    ----------
    extra : str, default ""
        Name of an extra, such as ``serve``.

    Returns
    -------
    str
        ``pip install ...``, quoted for a shell.
    """
    wanted = f"[{extra}]" if extra else ""
    try:
        origin = metadata.distribution(_NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        sources = Path(__file__).parents[3]  # where it is run from, if from a clone without an installation
        if (sources / "pyproject.toml").is_file():
            return _command(f"{sources}{wanted}", is_editable=True)
        origin = None
    record = _record(origin)
    if record is None:
        return _command(f"{_NAME}{wanted}")
    url = str(record["url"])
    if "dir_info" in record:
        folder = url2pathname(urlsplit(url).path)
        return _command(f"{folder}{wanted}", is_editable=bool(record["dir_info"].get("editable")))
    source = record.get("vcs_info")
    if source:
        url = f"{source['vcs']}+{url}@{source['commit_id']}"
    inside = f"#subdirectory={record['subdirectory']}" if record.get("subdirectory") else ""
    return _command(f"{_NAME}{wanted} @ {url}{inside}")


def _record(origin: str | None) -> dict[str, Any] | None:
    """Return the record of the installation source (PEP 610); None if there is no readable one."""
    try:
        record = json.loads(origin or "null")
    except ValueError:
        return None
    if isinstance(record, dict) and "url" in record:
        return record
    return None


def _command(requirement: str, *, is_editable: bool = False) -> str:
    quoted = shlex.quote(requirement) if _NEEDS_QUOTES.search(requirement) else f'"{requirement}"'
    return f"pip install {'-e ' if is_editable else ''}{quoted}"
