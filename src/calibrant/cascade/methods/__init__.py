"""Confidence methods: from tokens, learned, or by a verifier."""
