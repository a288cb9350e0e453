"""A task file becomes what it describes: one classifier, or a cascade of several."""

from calibrant.assembly._looper import read_looper

__all__ = ["read_looper"]
