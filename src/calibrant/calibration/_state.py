"""JSON files of fitted calibrators, with the fingerprint of the fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import damaged_record, read_record, write_record
from calibrant.core._fingerprint import Fingerprint

_MAKE: Final = "fit and save it"


def write_state(
    path: str | Path, *, kind: str, version: int, fingerprint: Fingerprint, state: Mapping[str, Any]
) -> None:
    """Write one JSON file, atomically; floats keep their full precision.

    Parameters
    ----------
    path : str or Path
        Destination path. An existing file is replaced.
    kind : str
        Noun for the fitted object, for messages.
    version : int
        Version of the layout of `state`.
    fingerprint : Fingerprint
        Fingerprint of the fit.
    state : mapping
        JSON values, all numbers finite.

    Raises
    ------
    StateError
        The file cannot be written.
    """
    record = {"fingerprint": fingerprint.to_record(), "state": dict(state)}
    write_record(path, record, kind=kind, version=version)


def read_state(
    path: str | Path,
    *,
    kind: str,
    version: int,
    fingerprint: Fingerprint,
    earlier: Collection[int] = (),
) -> dict[str, Any]:
    """Return the state written by `write_state` for the same fingerprint.

    `earlier` are older layouts that the caller understands as well.

    Raises
    ------
    StateError
        The file is missing or damaged, holds something else or another version, or belongs to
        another prompt, model, log-probability space or label set; the message names which.
    """
    record = read_record(path, kind=kind, version=version, earlier=earlier, make=_MAKE)
    try:
        changed = fingerprint.differences(record["fingerprint"])
        state = dict(record["state"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from error
    if changed:
        raise StateError(
            f"{path}: this {kind} was fitted on something else, it differs in {'; '.join(changed)}: "
            "fit it again on present answers, or choose the file that belongs to them."
        )
    return state


def check_label_count(fingerprint: Fingerprint, n_labels: int) -> None:
    """Refuse a fingerprint of another number of labels than were fitted.

    Raises
    ------
    ConfigurationError
        It has another number.
    """
    if len(fingerprint.labels) != n_labels:
        raise ConfigurationError(
            f"Expected a fingerprint of {n_labels} labels, as fitted, got {len(fingerprint.labels)}: pass the label "
            "set of the rows."
        )


def damaged(path: str | Path, error: Exception) -> StateError:
    """Return the error to raise for a damaged file."""
    return damaged_record(path, error, make=_MAKE)
