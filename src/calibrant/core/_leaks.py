"""Rows that stand in two splits of a task."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from calibrant.core._labels import normalise_label
from calibrant.core._rows import Example

_LOG = logging.getLogger("calibrant")


def warn_about_leaks(splits: Mapping[str, tuple[Example, ...]], path: Path) -> None:
    """Warn of rows of one split that stand in another one too: their numbers would flatter."""
    seen = {
        split: Counter(normalise_label(example.input) for example in splits.get(split, ()))
        for split in ("train", "validation", "test")
    }
    for first, second in (("train", "test"), ("validation", "test"), ("train", "validation")):
        shared = seen[first].keys() & seen[second].keys()
        if shared:
            example = min(shared)
            _LOG.warning(
                "%s: %d %s row(s) are also %s rows, for example %.60r: remove them from one of the two.",
                path,
                len(shared),
                first,
                second,
                example,
            )
