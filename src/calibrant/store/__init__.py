"""Persistent state in a SQL database: finished predictions, scores and router state."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.store._cache import PredictionCache
    from calibrant.store._router_state import RouterState
    from calibrant.store._scores import Scope, ScopeSummary
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "PredictionCache",
    "RouterState",
    "Scope",
    "ScopeSummary",
]
