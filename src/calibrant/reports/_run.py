"""Runs read from their directories: settings, metrics and rows."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import read_json_object, read_run_record
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Interval, Record
from calibrant.core._reported import counted
from calibrant.core._structures import labels_from_record
from calibrant.metrics._remarks import changed_prompt, search_verdict
from calibrant.reports._analysis import PromptRows
from calibrant.reports._charts import CertifiedPoint
from calibrant.runs._rows import BEST, FINAL, SEED, SavedRows

_REMEDY: Final = "restore the file or run it again"


class ScoreRow(NamedTuple):
    """Scores of a model or a baseline: one line of the table.

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


@dataclass(frozen=True, kw_only=True)
class SearchResults:
    """Results of a search, from its ``result.json``.

    Attributes
    ----------
    record : mapping
        The file.
    diff : list of (str, str)
        Lines of the first and the best prompt as (kind, text); kind is same, added or removed.
    seed : PromptRows or None
        The test rows under the first prompt.
    changed : bool
        True if the best prompt is another than the first.
    verdict : list of str
        Sentences on the chosen prompt and on its gain on the test rows.
    """

    record: Mapping[str, Any]
    diff: list[tuple[str, str]]
    seed: PromptRows | None
    changed: bool
    verdict: list[str]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Settings, metrics and rows of a run, read from its directory.

    Attributes
    ----------
    name : str
        The directory's name.
    title : str
        Task and model, as far as they are known.
    rows : PromptRows
        Its rows; of a search those under the best prompt.
    metrics : mapping
        ``metrics.json``; empty where there is none.
    search : SearchResults or None
        Results of a search; None for an evaluation.
    baselines : Baselines or None
        Scores of baselines without a language model, on the same rows.
    certified : CertifiedPoint or None
        The certified acceptance rule, if one is kept in the directory.
    certified_on : str
        Description of its calibration rows; empty if the file has none.
    remarks : list of str
        Caveats for the reader, such as an unfinished run.
    """

    name: str
    title: str
    rows: PromptRows
    metrics: Mapping[str, Any]
    search: SearchResults | None
    baselines: Baselines | None
    certified: CertifiedPoint | None
    certified_on: str
    remarks: list[str]


def read_run(directory: Path, rows: Mapping[str, SavedRows] | None = None) -> Run:
    """Read the directory of a search, of an evaluation, or of any predictions.

    Parameters
    ----------
    directory : Path
        The directory.
    rows : mapping of str to SavedRows, optional
        Its rows by prompt, where they are in memory; by default they are read from ``predictions.jsonl``.

    Raises
    ------
    StateError
        The directory holds no run, or one of another version.
    DataError
        A line of its predictions is broken.
    """
    if not directory.is_dir():
        raise StateError(f"{directory}: expected the directory of a run, found none: check the name.")
    search = _record(directory / "result.json")
    metrics = _record(directory / "metrics.json")
    finished = bool(search or metrics)
    labels = _labels(directory, search, metrics)
    prompts = SavedRows.by_prompt(directory) if rows is None else rows
    saved = next((prompts[name] for name in (FINAL, BEST, SEED) if name in prompts), None)
    shown = PromptRows.of(prompts[""] if saved is None else saved, labels)
    seed = None
    if SEED in prompts:
        seed = PromptRows.of(prompts[SEED], labels)
    about = search or metrics or _record(directory / "run.json")
    certified, certified_on = _certified(directory / "calibration.json")
    titles = (about.get(key) for key in ("task", "model"))
    return Run(
        name=directory.resolve().name,
        title=": ".join(title for title in titles if isinstance(title, str)),
        rows=shown,
        metrics=metrics,
        search=_search(directory / "result.json", search, seed) if search else None,
        baselines=_baselines(directory / ("result.json" if search else "metrics.json"), search or metrics),
        certified=certified,
        certified_on=certified_on,
        remarks=_remarks(metrics, shown, finished=finished),
    )


def _record(path: Path) -> dict[str, Any]:
    """Return the record in a file of the run; empty for a missing file."""
    if path.exists():
        return read_run_record(path, remedy=_REMEDY)
    return {}


def _labels(directory: Path, search: Record, metrics: Record) -> LabelSet | list[str]:
    """Return the labels of a run, so that those without a row count, too; none where the run does not say."""
    path = directory / ("result.json" if search else "run.json")
    try:
        record = (search or _record(path)).get("label_set")
        if record is None:
            path = directory / "task.json"
            record = None
            if path.exists():
                record = read_json_object(path, remedy=_REMEDY)["tasks"][0]["labels"]
        if record is not None:
            return labels_from_record(record)
    except (ConfigurationError, KeyError, IndexError, TypeError) as error:
        raise StateError(
            f"{path}: expected the settings of a run ({error!r:.200}): restore the file or run it again."
        ) from error
    per_label = metrics.get("per_label")
    if isinstance(per_label, dict):
        return list(per_label)
    return []


def _search(path: Path, record: Mapping[str, Any], seed: PromptRows | None) -> SearchResults:
    """Return a search's results for the page; refuse a damaged record."""
    try:
        prompts = [record[f"{name}_prompt"]["prompt"] for name in ("seed", "best")]
        diff = _diff(*prompts)
        # Every value that the template shows is read here, so that a damaged file fails with its name.
        shown = [
            record[name] for name in ("proposer", "seed", "metric_calls", "accepted", "proposals", "improved")
        ]
        shown += [f"{record[name]['validation_score']:.3f}" for name in ("seed_prompt", "best_prompt")]
        changed = changed_prompt(record)
        verdict = search_verdict(record)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"{path}: expected a complete result ({error!r}): run the search again.") from error
    return SearchResults(record=record, diff=diff, seed=seed, changed=changed, verdict=verdict)


def _diff(seed: str, best: str) -> list[tuple[str, str]]:
    kinds = {"  ": "same", "+ ": "added", "- ": "removed"}
    compared = difflib.ndiff(seed.splitlines(), best.splitlines())
    marked = [(line[:2], line[2:]) for line in compared]
    return [(kinds[mark], text) for mark, text in marked if mark in kinds]


def _baselines(path: Path, record: Record) -> Baselines | None:
    """Read the baselines in ``metrics.json`` or ``result.json``; None where it has none."""
    try:
        if record.get("final") is not None:
            return _baselines_of_search(record["final"])
        if record.get("baselines") is not None:
            return _baselines_of_evaluation(record["baselines"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path}: expected complete baselines ({error!r:.200}): run the same command again."
        ) from error
    return None


def _baselines_of_evaluation(found: Record) -> Baselines:
    rows = counted(found["rows"], "answered row")
    return Baselines(
        about=f"{rows}; baselines learned from {counted(found['labelled_rows'], 'labelled row')}",
        scores=_named_scores(found["scores"]),
        verdict=str(found["verdict"]),
    )


def _baselines_of_search(final: Record) -> Baselines:
    score = final["score"]
    answered = score["rows"] - score["outcomes"].get("error", 0)
    known = score["accuracy"] is not None and final["baselines"]
    asks = final.get("head", {}).get("uses_model", True)
    name = "best prompt with its head" if asks else "head on the text alone"
    scores = [_score(name, score)] if known else []
    return Baselines(
        about=counted(answered, "answered test row"),
        scores=scores + _named_scores(final["baselines"]),
        verdict=str(final["verdict"]),
    )


def _named_scores(records: Sequence[Record]) -> list[ScoreRow]:
    return [_score(str(record["name"]), record) for record in records]


def _score(name: str, found: Record) -> ScoreRow:
    accuracy = found["accuracy"]
    macro_f1 = found.get("macro_f1")
    labels = found.get("answered_labels")
    ends = {end: float(accuracy[end]) for end in ("lower", "upper", "level", "estimate")}
    answered = "" if labels is None else f"{labels['answered']:,} of {labels['total']:,}"
    return ScoreRow(name, Interval(**ends), None if macro_f1 is None else float(macro_f1), answered)


def _certified(path: Path) -> tuple[CertifiedPoint | None, str]:
    """Return the certified rule of ``calibration.json``, if there is one, and a description of its rows."""
    record = _record(path)
    found = record.get("certified")
    rows = record.get("rows")
    source = record.get("source")
    about = ""
    if isinstance(rows, int) and isinstance(source, str):
        about = f"{counted(rows, 'row')} of {source}"
    if found is None:
        return None, about
    try:
        return TypeAdapter(CertifiedPoint).validate_python(found), about
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise StateError(
            f"{path}: expected a certified rule that is complete, with values in [0, 1] ({wrong}): calibrate again."
        ) from error


def _remarks(metrics: Mapping[str, Any], rows: PromptRows, *, finished: bool) -> list[str]:
    remarks = []
    if not finished:
        remarks.append(
            f"This run has no metrics.json or result.json: it is not finished. What follows is about the "
            f"{counted(len(rows), 'row that is', 'rows that are')} there so far."
        )
    if rows.saved.is_torn:
        remarks.append("The last line of predictions.jsonl is cut off and was left out.")
    if metrics.get("complete") is False:
        expected = metrics.get("rows_expected")
        noun = ("row is", "rows are")
        if isinstance(expected, int):
            noun = (f"of {expected:,} rows is", f"of {expected:,} rows are")
        why = f" ({metrics['stopped']})" if metrics.get("stopped") else ""
        remarks.append(f"This run ended early{why}: {counted(len(rows), *noun)} there.")
    return remarks
