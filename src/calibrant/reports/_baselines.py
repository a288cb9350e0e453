"""Baselines of a run, as its record has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.core._distribution import Interval
from calibrant.core._errors import StateError

_Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """One line of the table.

    Attributes
    ----------
    name : str
        Name of the model or baseline.
    accuracy : Interval
        With its 95 % interval.
    macro_f1 : float or None
        In [0, 1]; None where the record lacks it.
    answered_labels : str
        Such as ``2 of 8``; empty where the record lacks it.
    """

    name: str
    accuracy: Interval
    macro_f1: float | None
    answered_labels: str


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """A model's scores beside those of baselines without a language model.

    Attributes
    ----------
    about : str
        Description of the rows.
    scores : list of ScoreRow
        The model first; empty where nothing could be compared.
    verdict : str
        One sentence on the gain of the language model.
    """

    about: str
    scores: list[ScoreRow]
    verdict: str


def baselines_of(path: Path, record: _Record) -> Baselines | None:
    """Read the baselines in ``metrics.json`` or ``result.json``; None where it has none.

    Raises
    ------
    StateError
        They are not complete.
    """
    try:
        if record.get("final") is not None:
            return _searched(record["final"])
        if record.get("baselines") is not None:
            return _evaluated(record["baselines"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path}: expected complete baselines ({error!r:.200}): run the same command again."
        ) from error
    return None


def _evaluated(found: _Record) -> Baselines:
    return Baselines(
        about=f"{found['rows']:,} answered rows; baselines learned from {found['labelled_rows']:,} labelled rows",
        scores=[_score(str(one["name"]), one) for one in found["scores"]],
        verdict=str(found["verdict"]),
    )


def _searched(final: _Record) -> Baselines:
    score = final["score"]
    answered = score["rows"] - score["outcomes"].get("error", 0)
    known = score["accuracy"] is not None and final["baselines"]
    model = [_score("best prompt with its head", score)] if known else []
    return Baselines(
        about=f"{answered:,} answered test rows",
        scores=[*model, *(_score(str(one["name"]), one) for one in final["baselines"])],
        verdict=str(final["verdict"]),
    )


def _score(name: str, found: _Record) -> ScoreRow:
    accuracy, macro_f1, labels = found["accuracy"], found.get("macro_f1"), found.get("answered_labels")
    return ScoreRow(
        name=name,
        accuracy=Interval(**{end: float(accuracy[end]) for end in ("lower", "upper", "level", "estimate")}),
        macro_f1=None if macro_f1 is None else float(macro_f1),
        answered_labels="" if labels is None else f"{labels['answered']:,} of {labels['total']:,}",
    )
