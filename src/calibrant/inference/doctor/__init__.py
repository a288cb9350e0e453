"""Examination of a model's log-probabilities."""

__all__: list[str] = []
