"""HTML reports on run directories and plans; no model is called."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.reports._html import write_report
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "write_report",
]
