"""Confidence methods: log-probabilities, learned scorers, verifiers and self-verification."""
