"""Records of searches, as `result.json` holds them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from calibrant.reports import write_report
from calibrant.runs import SavedRows


def score(prompt: str, **changes: Any) -> dict[str, Any]:
    """Return the record of a prompt's score."""
    return {"prompt": prompt, "validation_score": 0.71, "rows": 4, **changes}


def validated(score: float, accuracy: float, macro_f1: float) -> dict[str, Any]:
    """Return the record of a prompt's figures on validation rows."""
    figures = {"score": score, "accuracy": accuracy, "macro_f1": macro_f1, "credit": None}
    return {**figures, "rows": None, "log_loss": None, "screened_loss": None, "origin": None}


def search_record(**changes: Any) -> dict[str, Any]:
    """Return the content of a result.json."""
    return {
        "schema_version": 1,
        "kind": "optimization",
        "task": "animals",
        "model": "fake",
        "seed": 3,
        "proposer": "exemplar",
        "seed_prompt": score("Which animal?\nAnswer."),
        "best_prompt": score("Which animal?\nLook closely."),
        "improved": True,
        "validated": [validated(0.2, 0.4, 0.3), validated(0.3, 0.5, 0.4)],
        "chosen": 1,
        **dict.fromkeys(("by_head", "comparison", "credit_difference", "detectable_gain", "final")),
        "metric_calls": 120,
        "proposals": 5,
        "accepted": 2,
        "cost": None,
        **changes,
    }


def verdict_of(record: Mapping[str, Any]) -> str:
    """Return the sentences in which a report says what a search has found."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "result.json").write_text(json.dumps(record))
        (folder / "rows.jsonl").write_text('{"input": "meow", "answer": "cat", "label": "cat"}')
        best = SavedRows.load(folder / "rows.jsonl")
        page = write_report(folder, rows={"best": best}).read_text(encoding="utf-8")
    found = re.search(r"<p>([^<]*)</p>\s*<p class=\"note\">[\d,]+ rows asked in the search", page)
    assert found is not None
    return html.unescape(found[1])
