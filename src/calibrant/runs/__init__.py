"""Run directories: manifests, locks, rows and resume.

The package decodes rows and JSON, nothing else.
"""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, {})

__all__: list[str] = []
