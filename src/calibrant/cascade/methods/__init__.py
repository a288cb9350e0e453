"""Confidence methods: confidence read from tokens, learned, or asked for."""
