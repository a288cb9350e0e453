"""Stored examinations, one file per model and setup, and refusal of misleading setups."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakValueDictionary

import pydantic

from calibrant.clients._endpoint import (
    Options,
    holds_digest,
    identifying_address,
    public_address,
    public_options,
    redact,
)
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import Recorded, user_path, write_atomically
from calibrant.core._prediction import LogprobSpace
from calibrant.inference._abilities import AnswerForm, KnownAbilities, ModelAbilities
from calibrant.inference._methods import Decoding, Method, Scoring

_ADDRESS: Final = ("api_base", "base_url")
_VERSION: Final = 1
_SECONDS_BELIEVED: Final = 30 * 86_400

Identity: TypeAlias = tuple[str, str | None, dict[str, Any]]
"""Model, endpoint and the other options that matter, free of credentials."""


RecommendedScoring: TypeAlias = Literal["exact", "decode", "fused"]
"""Way to ask for labels that an examination recommends."""


class FindingVerdict(StrEnum):
    """Verdict of one probe.

    ``ok``
        The probe found no fault.
    ``warning``
        Absent or weak, but nothing misleads.
    ``problem``
        Confidence would mislead, or there would be none.
    ``unknown``
        It could not be found out.

    Examples
    --------
    >>> [verdict.value for verdict in FindingVerdict]
    ['ok', 'warning', 'problem', 'unknown']
    """

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one probe.

    Attributes
    ----------
    feature : str
        Name of the probe: ``enum``, ``space``, ``label_mass``, ``units``, ``alignment`` or ``exact``; of a decision
        model ``options``, ``sum``, ``rounding``, ``order``, ``repeat``, ``latency`` or ``price``.
    verdict : FindingVerdict
        Its verdict.
    detail : str
        The observation.
    remedy : str
        Advice; empty where nothing needs doing.

    Examples
    --------
    >>> Finding(feature="space", verdict=FindingVerdict("ok"), detail="masked").remedy
    ''
    """

    __pydantic_config__ = pydantic.ConfigDict(extra="forbid")

    feature: str
    verdict: FindingVerdict
    detail: pydantic.SkipValidation[str]  # may hold half a surrogate pair from a model's answer
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Confidence thresholds of feedback, as ``[scoring]`` takes them.

    Attributes
    ----------
    high, low : float
        In (0, 1], `low` below `high`.
    """

    high: float
    low: float


@dataclass(frozen=True, kw_only=True)
class Examination(Recorded):
    """Findings about a model's log-probabilities, and recommended settings.

    Attributes
    ----------
    model : str
        The model's name.
    api_base : str or None
        The endpoint, without credentials; None where the name alone decides.
    parameters : mapping
        The other options that matter, as JSON values: neither credentials nor timeouts.
    examined : datetime or None
        When, as the caller said; None where they did not.
    findings : tuple of Finding
        One per probe, in order.
    space : LogprobSpace
        How a decoded answer's log-probabilities are to be read: as they were found to be, or else as
        the client says; ``none`` where they cannot be used.
    scoring : {"exact", "decode", "fused"} or None
        The method recommended; None for a decision model, which is asked in its own way.
    thresholds : Thresholds
        The family recommended for feedback.
    calls : int
        Calls made.
    top_logprobs : int
        Most alternatives a token came with; 0 where none were reported.
    label_mass : float or None
        Mean probability on the labels, in [0, 1]; None where it cannot be seen.
    answer_form : AnswerForm or None
        Form of answer that the server follows; None where it follows none of them.

    Examples
    --------
    >>> from calibrant.inference import examine
    >>> from calibrant.testing import FakeClient
    >>> sure = {"Animals": 0.97, "Food": 0.01, "Music": 0.01, "Weather": 0.01}
    >>> fake = FakeClient(["Animals", "Food", "Music", "Weather"], {}, default=sure, field="topic")
    >>> examination = examine(fake)
    >>> examination.space.value, examination.scoring
    ('masked', 'decode')
    """

    model: str
    api_base: str | None
    parameters: Mapping[str, Any]
    examined: datetime | None
    findings: tuple[Finding, ...]
    space: LogprobSpace
    scoring: RecommendedScoring | None
    thresholds: Thresholds
    calls: int
    top_logprobs: int
    label_mass: float | None
    answer_form: AnswerForm | None

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that make confidence misleading or absent."""
        return tuple(finding for finding in self.findings if finding.verdict is FindingVerdict.PROBLEM)

    def finding(self, feature: str) -> Finding:
        """Return the finding of one probe.

        Raises
        ------
        KeyError
            The examination has no finding of this name.
        """
        for finding in self.findings:
            if finding.feature == feature:
                return finding
        raise KeyError(feature)

    def to_record(self) -> dict[str, Any]:
        """Return the examination as JSON values."""
        record = super().to_record()
        record["examined"] = None if self.examined is None else self.examined.isoformat()
        return {"version": _VERSION, **record}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Examination:
        """Return the examination written by `to_record`.

        Raises
        ------
        StateError
            The record is not one, or of another version.
        """
        version = None
        if isinstance(record, Mapping):
            version = record.get("version")
        if version != _VERSION:
            raise StateError(
                f"Expected the record of an examination of version {_VERSION}, got {version!r:.80}. Examine again."
            )
        try:
            return pydantic.TypeAdapter(cls).validate_python(dict(record))
        except pydantic.ValidationError as error:
            raise StateError(
                f"Expected the record of an examination, got one that does not fit ({error!r}). Examine again."
            ) from error


def identity(model: str, options: Options | None, *, api_base: str | None = None) -> Identity:
    """Return the identity of an examined setup.

    Credentials and timeouts are left out: neither changes what log-probabilities mean. What is no
    JSON value counts by its type.
    """
    options = dict(options or {})
    addresses = [options.pop(name, None) for name in _ADDRESS]
    address = next((found for found in (api_base, *addresses) if found is not None), None)
    return model, None if address is None else identifying_address(str(address)), public_options(options)


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
    return user_path("doctor", "cache") / f"{hashlib.sha256(parts.encode()).hexdigest()}.json"


def save_examination(examination: Examination) -> Path:
    """Store an examination, replacing an older one of the setup; return its file.

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
        _probe_path(path).unlink(missing_ok=True)  # the examination knows better
    except (OSError, RuntimeError) as error:
        raise StateError(
            f"The examination cannot be stored ({error}): set CALIBRANT_HOME to a folder that can be written."
        ) from error
    return path


def load_examination(
    model: str, api_base: str | None = None, options: Options | None = None
) -> Examination | None:
    """Return the stored examination of a setup; None if missing or unreadable.

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
        stored = Examination.from_record(json.loads(record_path(wanted).read_text(encoding="utf-8")))
        # A copied file must not speak for another model.
        if (stored.model, stored.api_base, stored.parameters) == wanted:
            return stored
    return None


def known_scoring(model: object, *, options: Options | None) -> Scoring:
    """Return the scoring that ``auto`` stands for: ``exact`` if an examination found exact scores."""
    found = None
    if isinstance(model, str):
        found = load_examination(model, options=options)
    if found is not None and found.scoring == "exact":
        return "exact"
    return "auto"


def known_abilities(model: str, options: Options | None) -> ModelAbilities | None:
    """Return the known abilities of a setup; None if they are to be found out.

    A stored examination says so, or else the probe of the last 30 days: servers change.
    """
    found = load_examination(model, options=options)
    if found is None or found.answer_form is None or any(one.feature == "units" for one in found.problems):
        return _remembered(identity(model, options))
    gives_logprobs = found.scoring == "decode" or found.space is not LogprobSpace.NONE
    return ModelAbilities(form=found.answer_form, gives_logprobs=gives_logprobs)


_shared: WeakValueDictionary[str, KnownAbilities] = WeakValueDictionary()


def shared_abilities(model: str, options: Options | None) -> KnownAbilities:
    """Return the abilities of a server and model, which all classifiers of this process share.

    What a probe finds is kept for other processes. Where nothing can be written, each of them makes its own.
    """
    setup = identity(model, options)
    key = json.dumps([os.environ.get("CALIBRANT_HOME"), *setup], sort_keys=True)
    known = known_abilities(model, options)
    shared = _shared.get(key)
    if shared is not None and known in {None, shared.known}:
        return shared

    def remember(found: ModelAbilities | None) -> None:
        if found is None:
            _shared.pop(key, None)
        _remember(setup, found)

    shared = KnownAbilities(known, load=partial(known_abilities, model, options), remember=remember)
    _shared[key] = shared
    return shared


def _remembered(setup: Identity) -> ModelAbilities | None:
    """Return the finding of a probe of the last 30 days about a setup."""
    with contextlib.suppress(OSError, RuntimeError, TypeError, ValueError, KeyError):
        path = _probe_path(record_path(setup))
        stored = json.loads(path.read_text(encoding="utf-8"))
        is_old = time.time() - path.stat().st_mtime > _SECONDS_BELIEVED
        if stored["setup"] == json.loads(json.dumps(setup)) and not is_old:
            return ModelAbilities(
                form=AnswerForm(stored["form"]), gives_logprobs=bool(stored["gives_logprobs"])
            )
    return None


def _remember(setup: Identity, found: ModelAbilities | None) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        path = _probe_path(record_path(setup))
        if found is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"setup": setup, **asdict(found)}) + "\n")


def _probe_path(record: Path) -> Path:
    return record.with_suffix(".probe.json")


def refuse_misleading(
    model: object, *, options: Options | None, method: Method, space: LogprobSpace | None = None
) -> None:
    """Refuse a setup that an earlier examination found misleading.

    Models that are no name have no record, and methods that decode nothing cannot be misled this way.

    Parameters
    ----------
    model : object
        The model.
    options : mapping or None
        Options of its calls.
    method : Method
        Method of the classifier.
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
    space = method.space if space is None else space
    if space not in {LogprobSpace.MASKED, LogprobSpace.RAW}:
        return
    record = load_examination(model, options=options)
    if record is None:
        return
    for finding in record.findings:
        is_problem = finding.verdict is FindingVerdict.PROBLEM
        known = finding.feature == "space" and finding.verdict is not FindingVerdict.UNKNOWN
        remedy = finding.remedy if finding.feature == "units" and is_problem else ""
        if known and record.space is LogprobSpace.RAW and space is LogprobSpace.MASKED:
            remedy = finding.remedy or 'Set space = "raw" under [model] (space="raw" in Python).'
        if remedy:
            when = "" if record.examined is None else f" on {record.examined:%Y-%m-%d}"
            raise ConfigurationError(
                f"{model}: confidence would mislead. An examination{when} found: {finding.detail} {remedy} "
                f"To examine the model again: {examine_command(record)}"
            )


def examine_command(record: Examination) -> str:
    """Return the command that examines the setup again, without credentials."""
    words = ["calibrant", "doctor", record.model]
    if record.api_base is not None:
        words += ["--api-base", public_address(record.api_base)]
    for name, value in record.parameters.items():
        if not holds_digest(value):
            words += ["--option", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)
