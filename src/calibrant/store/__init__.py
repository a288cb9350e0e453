"""What outlives a run: finished predictions, scores and what routers learnt, in a SQL database."""

from calibrant.store._cache import PredictionCache
from calibrant.store._router_open import open_router_state
from calibrant.store._score_records import Scope, ScopeSummary, Score
from calibrant.store._scores import ScoreStore

__all__ = ["PredictionCache", "Scope", "ScopeSummary", "Score", "ScoreStore", "open_router_state"]
