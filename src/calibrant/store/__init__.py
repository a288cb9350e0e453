"""What outlives a run: finished predictions and scores in a SQL database."""

from calibrant.store._cache import PredictionCache
from calibrant.store._score_records import Scope, ScopeSummary, Score
from calibrant.store._scores import ScoreStore

__all__ = ["PredictionCache", "Scope", "ScopeSummary", "Score", "ScoreStore"]
