"""Persistent state in a SQL database: finished predictions, scores and router state."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.store._cache import PredictionCache
    from calibrant.store._router_open import open_router_state
    from calibrant.store._score_records import Scope, ScopeSummary, Score
    from calibrant.store._scores import ScoreStore
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._cache": "PredictionCache",
            "._router_open": "open_router_state",
            "._score_records": "Scope ScopeSummary Score",
            "._scores": "ScoreStore",
        },
    )

__all__ = ["PredictionCache", "Scope", "ScopeSummary", "Score", "ScoreStore", "open_router_state"]
