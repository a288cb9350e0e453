"""Differences between two bundles, part by part."""

from __future__ import annotations

import difflib
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from calibrant.assembly._bundle import Bundle, Figure, read_bundle
from calibrant.assembly._bundle_export import export
from calibrant.assembly._bundle_files import MANIFEST
from calibrant.assembly._sections import cascade_settings
from calibrant.assembly._task_record import task_to_record
from calibrant.core._composite import FieldLabels
from calibrant.core._fingerprint import demonstrated
from calibrant.core._labels import LabelSet
from calibrant.inference._demonstrations import DemonstrationIndex

_PLAN: Final = ("goal", "value", "policy", "certified", "method")
_Leaves: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One value that differs.

    Attributes
    ----------
    name : str
        Path of the value: ``model.options.seed``.
    before, after : JSON value
        Old and new value; None also for a missing one.
    """

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, kw_only=True)
class BundleDiff:
    """Differences between two bundles.

    Attributes
    ----------
    prompt, user_template : str
        Unified differences; empty where there are none.
    labels_added, labels_removed : tuple of str
        Labels that only one of them has.
    labels_reordered : bool
        True if the common labels come in another order.
    settings : tuple of Change
        Name, field, structure of the labels, models and their options, cascade, routing, plan, and calibrant's version.
    corrections : tuple of Change
        Label prior, calibrator and thresholds.
    figures : tuple of (str, Figure or None, Figure or None)
        Name, before and after, of all that differ.
    """

    prompt: str
    user_template: str
    labels_added: tuple[str, ...]
    labels_removed: tuple[str, ...]
    labels_reordered: bool
    settings: tuple[Change, ...]
    corrections: tuple[Change, ...]
    figures: tuple[tuple[str, Figure | None, Figure | None], ...]

    def to_record(self) -> dict[str, Any]:
        """Return the difference as JSON values."""
        figures = [
            {"name": name, "before": old and asdict(old), "after": new and asdict(new)}
            for name, old, new in self.figures
        ]
        return {"same": self.same, **asdict(self), "figures": figures}

    @property
    def same(self) -> bool:
        """True if the bundles are equal."""
        return not (
            self.prompt
            or self.user_template
            or self.labels_added
            or self.labels_removed
            or self.labels_reordered
            or self.settings
            or self.corrections
            or self.figures
        )


def diff_bundles(before: str | Path, after: str | Path) -> BundleDiff:
    """Compare two bundles, or runs that could be exported.

    Parameters
    ----------
    before, after : str or Path
        Folders of bundles, or directories of runs.

    Raises
    ------
    ConfigurationError, DataError, StateError
        A bundle cannot be read, or a run cannot be exported; see `read_bundle` and `export`.
    """
    with ExitStack() as opened:
        first, second = (_read(Path(path), opened) for path in (before, after))
        # A search records no description of its calls; a missing description is no difference.
        both = first.description is not None and second.description is not None
        settings = tuple(_changes(_settings(first, asked=both), _settings(second, asked=both)))
    ours, theirs = first.labels.labels, second.labels.labels
    kept = [label for label in ours if label in set(theirs)]
    return BundleDiff(
        prompt=_unified(first.prompt, second.prompt, "prompt.txt"),
        user_template=_unified(first.user_template or "", second.user_template or "", "user_template.txt"),
        labels_added=tuple(label for label in theirs if label not in set(ours)),
        labels_removed=tuple(label for label in ours if label not in set(theirs)),
        labels_reordered=kept != [label for label in theirs if label in set(ours)],
        settings=settings,
        corrections=tuple(_changes(_corrections(first), _corrections(second))),
        figures=tuple(_figures(first, second)),
    )


def _read(path: Path, opened: ExitStack) -> Bundle:
    """Return the bundle in a folder, or the one that a run would make."""
    if (path / MANIFEST).exists() or not path.is_dir():
        return read_bundle(path)
    folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="calibrant-"))
    return export(path, Path(folder) / "bundle")


def _unified(before: str, after: str, name: str) -> str:
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    found = difflib.unified_diff(old, new, fromfile=f"a/{name}", tofile=f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found
    )


def _settings(bundle: Bundle, *, asked: bool) -> _Leaves:
    """Return the models and their settings, without labels and prompt; `asked` adds the run's own description."""
    tasks = []
    for number, own in enumerate(bundle.tasks):
        record = task_to_record(own.task)
        left_out = {model: list(options) for model, options in own.left_out.items()}
        record |= {"left_out": left_out, "state_left_out": own.state_left_out}
        record |= _structure(own.task.labels)
        if own.task.demonstrations is not None:
            rows = DemonstrationIndex.from_task(own.task).to_text()
            record["demonstrations"] = demonstrated(own.task.demonstrations, rows)
        gone = {"labels", *(("prompt", "user_template") if number == 0 else ())}
        cascade = cascade_settings(own.task)
        if cascade is not None and cascade.learned_file is not None:
            content = cascade.learned_file.read_bytes()
            record["cascade"]["learned_file"] = hashlib.sha256(content).hexdigest()
        tasks.append({key: value for key, value in record.items() if key not in gone})
    several = {f"model {number}": task for number, task in enumerate(tasks, 1)}
    plan = {} if bundle.plan is None else {key: bundle.plan.to_record()[key] for key in _PLAN}
    described = (bundle.description or {}) if asked else {}
    return dict(
        _leaves(
            {
                **(tasks[0] if len(tasks) == 1 else several),
                "plan": plan,
                "asked": {key: described.get(key) for key in ("method", "top_logprobs")},
                "calibrant": bundle.calibrant,
            }
        )
    )


def _structure(labels: LabelSet) -> dict[str, Any]:
    """Return the structure of the labels: their kind, separator and fields."""
    structure = {"structure": labels.structure, "separator": getattr(labels, "separator", None)}
    if not isinstance(labels, FieldLabels):
        return structure
    return structure | {
        "fields": {field.name: {"path": field.path, **_structure(field.labels)} for field in labels.fields}
    }


def _corrections(bundle: Bundle) -> _Leaves:
    prior, head, calibrator = bundle.prior_correction, bundle.head, bundle.calibrator
    found = {
        "label prior": None
        if prior is None
        else {
            "prior": dict(zip(bundle.labels.labels, prior.divisor_.tolist(), strict=True)),
            "strength": prior.strength_,
        },
        "head": None if head is None else {"rung": head.rung, "rows": head.n_rows, "sha256": head.digest},
        "calibrator": None
        if calibrator is None
        else {key: value for key, value in calibrator.to_record().items() if key != "rows"},
        "thresholds": bundle.thresholds,
    }
    return dict(_leaves(found))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 (any JSON value)
    """Yield everything in a JSON value that holds nothing else, by its path."""
    if isinstance(value, Mapping):
        for name, found in value.items():
            yield from _leaves(found, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(found, Mapping) for found in value):
        for number, found in enumerate(value, 1):
            yield from _leaves(found, f"{path}[{number}]")
    else:
        yield path, list(value) if isinstance(value, tuple) else value


def _changes(before: _Leaves, after: _Leaves) -> Iterator[Change]:
    """Yield the changed settings; a missing setting equals None."""
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if json.dumps(old, default=repr) != json.dumps(new, default=repr):
            yield Change(name=name, before=old, after=new)


def _figures(first: Bundle, second: Bundle) -> Iterator[tuple[str, Figure | None, Figure | None]]:
    before, after = ({figure.name: figure for figure in bundle.figures} for bundle in (first, second))
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield name, before.get(name), after.get(name)
