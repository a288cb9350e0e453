"""A task file becomes what it describes: one classifier, or a cascade of several."""

from calibrant.assembly._looper import read_looper
from calibrant.assembly._open import open_classifier

__all__ = ["open_classifier", "read_looper"]
