"""What outlives a run: finished predictions in a SQL database."""

from calibrant.store._cache import PredictionCache

__all__ = ["PredictionCache"]
