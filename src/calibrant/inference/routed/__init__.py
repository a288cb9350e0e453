"""Routed client: several providers in the order of a learning strategy."""

__all__: list[str] = []
