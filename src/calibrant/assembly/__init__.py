"""Classifiers and cascades opened from task files and bundles."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.assembly._bundle import Bundle, read_bundle
    from calibrant.assembly._bundle_export import export
    from calibrant.assembly._bundle_load import load
    from calibrant.assembly._foreign import read_zeph
    from calibrant.assembly._sections import cascade_settings, open_classifier, routing_settings
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._bundle": "Bundle read_bundle",
            "._bundle_export": "export",
            "._bundle_load": "load",
            "._foreign": "read_zeph",
            "._sections": "cascade_settings open_classifier routing_settings",
        },
    )

__all__ = [
    "Bundle",
    "cascade_settings",
    "export",
    "load",
    "open_classifier",
    "read_bundle",
    "read_zeph",
    "routing_settings",
]
