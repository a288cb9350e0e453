"""Queries that a predictor answers in one go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from calibrant.core import Prediction, Predictor, Query


def ask(predictor: Predictor, queries: Sequence[Query], **options: Any) -> list[Prediction]:
    """Return the predictions of queries, in their order."""
    found: dict[int, Prediction] = {}
    asyncio.run(predictor.feed(queries, found.__setitem__, **options))
    return [found[index] for index in range(len(queries))]
