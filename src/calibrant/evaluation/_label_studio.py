"""Tasks of Label Studio: rows for a person to label, and the answers in its JSON export."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from calibrant.core._errors import DataError
from calibrant.core._prediction import JsonObject

_TEXT: Final = "text"  # names of the fields in the labelling config
_LABEL: Final = "label"

Task: TypeAlias = Mapping[str, Any]
"""A task as JSON values, with its data, predictions and annotations."""


def labelling_config(labels: Sequence[str]) -> str:
    """Return the labelling config of a project in which one of the labels is chosen for each text."""
    choices = "".join(f'    <Choice value="{html.escape(label)}"/>\n' for label in labels)
    return (
        f'<View>\n  <Text name="{_TEXT}" value="${_TEXT}"/>\n'
        f'  <Choices name="{_LABEL}" toName="{_TEXT}" choice="single">\n{choices}  </Choices>\n</View>\n'
    )


def task_record(index: int, text: str, label: str | None, confidence: float, *, model: str) -> JsonObject:
    """Return the task of a row, with its predicted label and confidence as a prediction of `model`."""
    task: JsonObject = {"data": {_TEXT: text, "index": index}}
    if label is not None:
        score = {} if math.isnan(confidence) else {"score": confidence}
        chosen = {
            "from_name": _LABEL,
            "to_name": _TEXT,
            "type": "choices",
            "value": {"choices": [label]},
        }
        task["predictions"] = [{"model_version": model, **score, "result": [chosen | score]}]
    return task


def read_tasks(path: Path) -> Iterator[tuple[Task, str]]:
    """Read tasks with their answers, which are empty where none is given.

    A row that is there several times, as its task was imported again, is one task.

    Raises
    ------
    DataError
        The file is no list of tasks, an annotation is no choice of one label, or the annotations of a row disagree.
    """
    try:
        tasks = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _not_tasks(path, str(error)) from error
    if not isinstance(tasks, list):
        raise _not_tasks(path, type(tasks).__name__)
    answered: dict[tuple[str, str], tuple[Task, str]] = {}
    for task in tasks:
        if not isinstance(task, dict) or not isinstance(task.get("data"), dict):
            raise _not_tasks(path, f"{task!r:.60}")
        data = task["data"]
        key = str(data.get("index")), str(data.get(_TEXT))
        before = answered.get(key)
        given = {before[1]} if before and before[1] else set()
        given |= set(_choices(task, path))
        if len(given) > 1:
            raise DataError(
                f"expected annotations that agree, got {' and '.join(map(repr, sorted(given)))} for the row with index "
                f"{key[0]}: settle it in Label Studio, and export again.",
                path=path,
            )
        if before is None or (given and not before[1]):
            answered[key] = task, next(iter(given), "")
    return iter(answered.values())


def _not_tasks(path: Path, got: str) -> DataError:
    return DataError(
        f"expected the tasks of a Label Studio project, as its export in the format JSON has them, got {got}: export "
        "them anew.",
        path=path,
    )


def _choices(task: Task, path: Path) -> Iterator[str]:
    """Yield the label that each annotation chose; cancelled and empty ones chose none."""
    for annotation in task.get("annotations") or ():
        try:
            result = () if annotation.get("was_cancelled") else annotation.get("result") or ()
            chosen = [one["value"]["choices"] for one in result if one.get("from_name") == _LABEL]
        except (AttributeError, KeyError, TypeError):
            result = (annotation,)
            chosen = []
        if not result:
            continue
        if len(chosen) != 1 or not isinstance(chosen[0], list) or len(chosen[0]) != 1:
            raise DataError(
                f"expected one choice under the name {_LABEL!r} in each annotation, got {chosen!r:.60} for the row "
                f"with index {task['data'].get('index')}: use the labelling config that is written beside the tasks.",
                path=path,
            )
        yield str(chosen[0][0])
