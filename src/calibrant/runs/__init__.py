"""Run directories: manifests, locks, saved rows, resume and rescue.

The package decodes rows and JSON, nothing else.
"""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.runs._rows import SavedRow, SavedRows
else:
    __getattr__, __dir__ = lazy_names(__name__, {"._rows": "SavedRow SavedRows"})

__all__ = ["SavedRow", "SavedRows"]
