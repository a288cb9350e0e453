"""Examinations on disk, one file per model and setup, and what they forbid."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.clients._redact import (
    digest_of,
    identifying_address,
    is_digest,
    is_harmless,
    name_inside,
    public_address,
    redact,
)
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import write_atomically
from calibrant.inference._methods import Decoding, Method

if TYPE_CHECKING:
    from calibrant.inference.doctor._report import Examination, Finding

_ADDRESS: Final = ("api_base", "base_url")
# Words of an option's name that say it holds a credential; "max_tokens" holds none of them.
_SECRET_WORDS: Final = frozenset(
    {"apikey", "auth", "authorization", "cookie", "cookies", "credential", "credentials", "header", "headers"}
    | {"jwt", "key", "keys", "oauth", "passphrase", "passwd", "password", "pwd", "secret", "secrets"}
    | {"sig", "signature", "token"}
)
# Parts of a description that are no settings of a model: a label may be called "options".
_NOT_OPTIONS: Final = frozenset({"response_format", "method", "label_set", "data"})
_WORD: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")

Identity = tuple[str, str | None, dict[str, Any]]
"""Model, endpoint and the other options that matter, free of credentials."""


def identity(model: str, options: Mapping[str, Any] | None, *, api_base: str | None = None) -> Identity:
    """Return what tells one examined setup from another.

    Credentials and timeouts are left out: neither changes what log-probabilities mean. What is no
    JSON value counts by its type.
    """
    options = dict(options or {})
    addresses = [options.pop(name, None) for name in _ADDRESS]
    address = next((found for found in (api_base, *addresses) if found is not None), None)
    return model, None if address is None else public_endpoint(str(address)), public_options(options)


def public_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON values that may be written down and still tell one setup from another.

    Credentials and timeouts are left out; a digest stands for every text of which nobody knows that it is harmless.
    """
    return {str(name): _plain(str(name), found) for name, found in options.items() if _counts(str(name))}


def hidden_options(options: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the paths of the options that `public_options` leaves out because their names say they are secret."""
    found: dict[tuple[str, ...], None] = {}
    for name, value in options.items():
        if is_secret(str(name)):
            found[(str(name),)] = None
        for inside in value if isinstance(value, list | tuple) else (value,):
            if isinstance(inside, Mapping) and _counts(str(name)):
                found |= {(str(name), *path): None for path in hidden_options(inside)}
    return list(found)


def holds_digest(value: object) -> bool:
    """Return True where a digest stands for a text somewhere in what `public_options` returned."""
    if isinstance(value, Mapping):
        return any(map(holds_digest, value.values()))
    if isinstance(value, list):
        return any(map(holds_digest, value))
    return isinstance(value, str) and is_digest(value)


def public_description(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `Classifier.describe` said, perhaps in an earlier version, as it is written down today."""
    return {
        name: value if name in _NOT_OPTIONS else _described(name, value) for name, value in record.items()
    }


def _described(name: str, value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    if name == "options" and isinstance(value, Mapping):
        return public_options(value)
    if name == "endpoint" and isinstance(value, str):
        return public_endpoint(value)
    if isinstance(value, Mapping):
        return public_description(value)
    return [_described("", found) for found in value] if isinstance(value, list) else value


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 (any option)
    if isinstance(value, Mapping):
        return {
            str(inner): _plain(name_inside(name, str(inner)), found)
            for inner, found in value.items()
            if _counts(str(inner))
        }
    if isinstance(value, list | tuple):
        return [_plain(name, found) for found in value]
    if isinstance(value, str):
        return value if is_harmless(name, value) else digest_of(value)
    return value if value is None or isinstance(value, bool | int | float) else type(value).__qualname__


def _counts(name: str) -> bool:
    return "timeout" not in name.lower() and not is_secret(name)


def is_secret(name: str) -> bool:
    """Return whether an option's name says that it holds a credential."""
    return not _SECRET_WORDS.isdisjoint(word.lower() for word in _WORD.findall(name))


def public_endpoint(address: str) -> str:
    """Return an endpoint without credentials, and with digests of what else may be secret in its parameters."""
    return identifying_address(address)


def _directory() -> Path:
    home = os.environ.get("CALIBRANT_HOME")
    if home:
        return Path(home).expanduser() / "doctor"
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The standard says that a relative path is to be ignored.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "calibrant" / "doctor"


def record_path(found: Identity) -> Path:
    """Return the file of one setup.

    It lies in ``doctor`` under ``$CALIBRANT_HOME``, or else under ``calibrant`` in the user's cache folder
    (``$XDG_CACHE_HOME``, ``~/.cache``).

    Raises
    ------
    RuntimeError
        The user has no home.
    """
    model, address, parameters = found
    parts = json.dumps([address, model, parameters], sort_keys=True)
    return _directory() / f"{hashlib.sha256(parts.encode()).hexdigest()}.json"


def save_examination(examination: Examination) -> Path:
    """Store an examination, in place of an older one of the same setup, and return its file.

    Raises
    ------
    StateError
        The file cannot be written.
    """
    record = examination.to_record()
    for finding in record["findings"]:  # a provider's message may repeat what it was sent
        finding |= {"detail": redact(finding["detail"])}
    try:
        path = record_path((examination.model, examination.api_base, dict(examination.parameters)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record, indent=1) + "\n")
    except (OSError, RuntimeError) as error:
        msg = (
            f"The examination cannot be stored ({error}): set CALIBRANT_HOME to a folder that can be written."
        )
        raise StateError(msg) from error
    return path


def load_examination(
    model: str, api_base: str | None = None, options: Mapping[str, Any] | None = None
) -> Examination | None:
    """Return the stored examination of a setup, or None where there is none that can be read.

    Parameters
    ----------
    model : str
        The model's name.
    api_base : str, optional
        The endpoint; by default the one in `options`.
    options : mapping, optional
        As `Classifier` takes them.
    """
    with contextlib.suppress(OSError, RuntimeError, StateError, TypeError, ValueError):
        wanted = identity(model, options, api_base=api_base)
        stored = json.loads(record_path(wanted).read_text(encoding="utf-8"))
        from calibrant.inference.doctor._report import Examination  # noqa: PLC0415 (few models have one)

        found = Examination.from_record(stored)
        if (found.model, found.api_base, found.parameters) == wanted:
            return found
    return None


def refuse_misleading(
    model: object, *, options: Mapping[str, Any] | None, method: Method, space: LogprobSpace | None = None
) -> None:
    """Refuse a setup whose confidence is known to mislead, from an earlier examination of the same model.

    Models that are no name have no record, and methods that decode nothing cannot be misled this way.

    Parameters
    ----------
    model : object
        Who is asked.
    options : mapping or None
        What the model is asked with.
    method : Method
        How it is asked.
    space : LogprobSpace, optional
        How its log-probabilities would be read; by default as the method says, which one of several models may not
        go by.

    Raises
    ------
    ConfigurationError
        Log-probabilities that were found to be raw would be read as masked, or such that are no
        log-probabilities would be read at all.
    """
    if not isinstance(model, str) or not isinstance(method, Decoding):
        return
    space = method.reader.space if space is None else space
    if space not in {LogprobSpace.MASKED, LogprobSpace.RAW}:
        return
    record = load_examination(model, options=options)
    if record is None:
        return
    for finding in record.findings:
        remedy = _remedy(record, finding, space)
        if remedy:
            when = "" if record.examined is None else f" on {record.examined:%Y-%m-%d}"
            raise ConfigurationError(
                f"{model}: confidence would mislead. An examination{when} found: {finding.detail} {remedy} "
                f"To examine the model again: {examine_command(record)}"
            )


def _remedy(record: Examination, finding: Finding, space: LogprobSpace) -> str:
    """Return what to do about a finding, or an empty text where the setup may stay."""
    from calibrant.inference.doctor._report import Verdict  # noqa: PLC0415 (as above)

    if finding.feature == "units" and finding.verdict is Verdict.PROBLEM:
        return finding.remedy
    known = finding.feature == "space" and finding.verdict is not Verdict.UNKNOWN
    if known and record.space is LogprobSpace.RAW and space is LogprobSpace.MASKED:
        return finding.remedy or 'Set space = "raw" under [model] (space="raw" in Python).'
    return ""


def examine_command(record: Examination) -> str:
    """Return the command that examines the same setup again; credentials are not in it."""
    words = ["calibrant", "doctor", record.model]
    if record.api_base is not None:
        words += ["--api-base", public_address(record.api_base)]
    for name, value in record.parameters.items():
        if not holds_digest(value):
            words += ["--option", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)
