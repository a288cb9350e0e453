"""Import of router state from the JSON file of earlier versions."""

from __future__ import annotations

import json
from pathlib import Path

from calibrant.core._errors import StateError
from calibrant.store._router_records import as_record, parse

_KIND = "router state"
_VERSION = 1


def read_json_state(path: Path) -> list[dict[str, str]]:
    """Return scope, strategy and record of every entry in a JSON file of router state; empty without a file.

    Raises
    ------
    StateError
        The file cannot be read, is damaged, holds something else, or was written by a newer version.
    """
    try:
        return _records(path.read_bytes(), path) if path.is_file() else []
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
    except ValueError as error:
        reason = f"damaged ({error})"
    raise StateError(
        f"{path}: the router state in it is {reason}: make it readable, delete it, or name another place; it was "
        "left as it is."
    )


def _records(content: bytes, path: Path) -> list[dict[str, str]]:
    whole = as_record(parse(content))
    if whole.get("kind") != _KIND:
        raise StateError(
            f"{path}: expected a {_KIND}, got {whole.get('kind')!r:.80}: choose another file; this one was left as it "
            "is."
        )
    version = whole.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"expected a version of at least 1, got {version!r:.80}")
    if version > _VERSION:
        raise StateError(
            f"{path}: expected version {_VERSION} of a {_KIND}, got {version}: install the newer calibrant that wrote "
            "it, or name another file; this one was left as it is."
        )
    return [
        {"scope": scope, "strategy": strategy, "record": json.dumps(record, separators=(",", ":"))}
        for scope, records in as_record(whole.get("scopes")).items()
        for strategy, record in as_record(records).items()
    ]
