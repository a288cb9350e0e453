"""Clients of language models, all with the interface `calibrant.core.Client`."""

__all__: list[str] = []
