"""Examinations of models: whether their log-probabilities can be trusted, and how to read them."""
