"""Classifiers and cascades opened from task files."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.assembly._foreign import read_looper, read_zeph
    from calibrant.assembly._sections import cascade_settings, open_classifier, routing_settings
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._foreign": "read_looper read_zeph",
            "._sections": "cascade_settings open_classifier routing_settings",
        },
    )

__all__ = [
    "cascade_settings",
    "open_classifier",
    "read_looper",
    "read_zeph",
    "routing_settings",
]
