"""Run directories: manifests, locks, saved rows and resume.

The package decodes rows and JSON, nothing else.
"""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.runs._directory import NumberedDirectory
    from calibrant.runs._journal import JsonlStore, PredictionJournal
    from calibrant.runs._rows import SavedRow, SavedRows
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "JsonlStore",
    "NumberedDirectory",
    "PredictionJournal",
    "SavedRow",
    "SavedRows",
]
