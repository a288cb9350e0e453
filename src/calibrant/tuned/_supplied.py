"""Functions that `Tuned` calls to be read, saved and opened: a `calibrant.heads._tuned.TunedFiles`."""

from calibrant.tuned._folder import read, save
from calibrant.tuned._open import from_run, open_tuned

__all__ = ["from_run", "open_tuned", "read", "save"]
