"""Fingerprint of the model, the prompt and the labels that a calibrator was fitted for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LogprobSpace
from calibrant.core._settings import DemonstrationSettings
from calibrant.core._splits import text_hash
from calibrant.core._structures import MultiLabels

_NAMED = 3  # labels a message shows
_KEPT_DIGESTS = 10_000  # of the texts that a run knows: 170 KB


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Model, prompt and labels that a calibrator was fitted for.

    A prior, a temperature or a threshold learned under one prompt says nothing about another; nor
    does it carry over to another model, label set or log-probability space.

    Parameters
    ----------
    prompt : str
        The system text. Stored files and `to_record` hold only its SHA-256.
    model : str
        The model's name.
    space : LogprobSpace
        What the log-probabilities are probabilities of; its value as text is taken too.
    labels : LabelSet or sequence of str
        The labels, in the order every array follows; kept as a tuple.
    multi_label : bool, default False
        Whether an answer holds any number of them, so that its confidence is that of a set; True with `MultiLabels`.

    Raises
    ------
    ConfigurationError
        Prompt or model is not text, the space is unknown, or the labels are no label set.

    Examples
    --------
    >>> from calibrant.core import Fingerprint
    >>> fingerprint = Fingerprint(prompt="Sort.", model="small", space="masked", labels=["Food", "Rent"])
    >>> fingerprint.space.value, fingerprint.labels
    ('masked', ('Food', 'Rent'))
    """

    prompt: str
    model: str
    space: LogprobSpace
    labels: Sequence[str]
    multi_label: bool = False

    def __post_init__(self) -> None:
        for name in ("prompt", "model"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ConfigurationError(
                    f"Expected the {name} of a fingerprint as text, got {value!r} ({type(value).__name__})."
                )
        object.__setattr__(self, "space", LogprobSpace(self.space))
        object.__setattr__(self, "multi_label", self.multi_label or isinstance(self.labels, MultiLabels))
        object.__setattr__(self, "labels", LabelSet.of(self.labels).labels)

    def to_record(self) -> dict[str, Any]:
        """Return the fingerprint as JSON values, with the SHA-256 of the prompt instead of its text."""
        record: dict[str, Any] = {
            "prompt_sha256": sha256_of(self.prompt),
            "model": self.model,
            "space": self.space.value,
            "labels": list(self.labels),
        }
        if self.multi_label:
            record["multi_label"] = True
        return record

    def digest(self) -> str:
        """Return the SHA-256 of the fingerprint's JSON record, as 64 hexadecimal digits.

        Canonical: keys sorted, no spaces, ASCII only.
        """
        return sha256_of(json.dumps(self.to_record(), sort_keys=True, separators=(",", ":")))

    def differences(self, record: Mapping[str, Any]) -> list[str]:
        """Return one phrase for each difference from a stored record of a fingerprint.

        Raises
        ------
        KeyError, TypeError
            It is not such a record.
        """
        own = self.to_record()
        found = []
        if record["prompt_sha256"] != own["prompt_sha256"]:
            found.append("prompt")
        changed = [name for name in ("model", "space") if record[name] != own[name]]
        found += [f"{name} ({record[name]!r} then, {own[name]!r} now)" for name in changed]
        if record["labels"] != own["labels"]:
            found.append(f"label set ({_label_change(record['labels'], own['labels'])})")
        if record.get("multi_label", False) != self.multi_label:
            then, now = ("one", "any number") if self.multi_label else ("any number", "one")
            found.append(f"labels in an answer ({then} then, {now} now)")
        return found


def asked_text(
    prompt: str, user_template: str | None, demonstrations: Mapping[str, Any] | None = None
) -> str:
    """Return the text that a fingerprint covers: prompt, user template and demonstrations.

    Parameters
    ----------
    prompt : str
        The system prompt.
    user_template : str or None
        Template of the user message.
    demonstrations : mapping, optional
        Which rows a prompt shows beside its text, as ``Classifier.describe`` says it.
    """
    parts = [prompt] if user_template is None else [prompt, user_template]
    if demonstrations is not None:
        parts.append(json.dumps(dict(demonstrations), sort_keys=True))
    return "\n\n".join(parts)


def demonstrated(settings: DemonstrationSettings, rows: str) -> dict[str, Any]:
    """Return the settings of demonstrations as JSON values, with number and SHA-256 of the rows.

    Parameters
    ----------
    settings : DemonstrationSettings
        Selection of the demonstrations.
    rows : str
        Candidate rows, as JSON Lines.
    """
    return {**settings.model_dump(), "rows": rows.count("\n"), "sha256": sha256_of(rows)}


def _label_change(then: list[str], now: list[str]) -> str:
    gone = [label for label in then if label not in set(now)]
    new = [label for label in now if label not in set(then)]
    parts = []
    if gone:
        parts.append(f"{_some(gone)} only then")
    if new:
        parts.append(f"{_some(new)} only now")
    return ", ".join(parts) or "the same labels in another order"


def _some(labels: list[str]) -> str:
    shown = ", ".join(map(repr, labels[:_NAMED]))
    more = len(labels) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def sha256_of(text: str) -> str:
    """Return the SHA-256 of a text as hexadecimal digits; half of a surrogate pair counts as it is."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class TextDigests:
    """Digests of different texts, which tell later how many of others were among them.

    Attributes
    ----------
    digests : tuple of str
        16 hexadecimal digits each, ascending: of all texts, or the 10,000 smallest. Texts that differ in case and white
        space alone have the same.

    Examples
    --------
    >>> from calibrant.core import TextDigests
    >>> known = TextDigests.of(["my card was stolen", "where is my money"])
    >>> known.share_known(["My card  was stolen", "open an account"])
    0.5
    """

    digests: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> TextDigests:
        """Return the digests of texts.

        Parameters
        ----------
        texts : iterable of str or None
            None stands for a text that is not known, and has none.
        """
        return cls._kept({_text_digest(text) for text in texts if text is not None})

    @classmethod
    def from_record(cls, record: str) -> TextDigests:
        """Return the digests from a record.

        Parameters
        ----------
        record : str
            What `to_record` returned.
        """
        return cls._kept(set(record.split()))

    @classmethod
    def _kept(cls, digests: set[str]) -> TextDigests:
        return cls(tuple(sorted(digests)[:_KEPT_DIGESTS]))

    def to_record(self) -> str:
        """Return the digests divided by blanks."""
        return " ".join(self.digests)

    def union(self, other: TextDigests) -> TextDigests:
        """Return the digests of the texts of both.

        Parameters
        ----------
        other : TextDigests
            Those of other texts, some of which may be the same.
        """
        return self._kept({*self.digests, *other.digests})

    def share_known(self, texts: Iterable[str]) -> float:
        """Return the share of different texts, in [0, 1], that are among these; estimated where some were left out.

        Parameters
        ----------
        texts : iterable of str
            Texts to look for. Without any the share is 0.
        """
        asked = {_text_digest(text) for text in texts}
        if len(self.digests) == _KEPT_DIGESTS:
            asked = {digest for digest in asked if digest <= self.digests[-1]}
        return len(asked.intersection(self.digests)) / max(len(asked), 1)


NO_TEXTS: Final = TextDigests()


def _text_digest(text: str) -> str:
    return f"{text_hash(text):016x}"
