"""A task file, or a bundle, becomes what it describes: one classifier, one with several providers, or a cascade."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.assembly._bundle import Bundle, BundleHistory, Decision, Figure, read_bundle
    from calibrant.assembly._bundle_diff import BundleDiff, Change, diff_bundles
    from calibrant.assembly._bundle_export import export
    from calibrant.assembly._bundle_figures import LABELS_ANSWERED, collapse_warning, label_mass_warning
    from calibrant.assembly._bundle_load import load, open_bundle
    from calibrant.assembly._looper import read_looper
    from calibrant.assembly._open import open_classifier
    from calibrant.assembly._routing import default_router_state, open_routed_client, open_router
    from calibrant.assembly._sections import cascade_settings, routing_settings
    from calibrant.assembly._task_record import RecordedTask, record_run
    from calibrant.assembly._zeph import read_zeph
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._bundle": "Bundle BundleHistory Decision Figure read_bundle",
            "._bundle_diff": "BundleDiff Change diff_bundles",
            "._bundle_export": "export",
            "._bundle_figures": "LABELS_ANSWERED collapse_warning label_mass_warning",
            "._bundle_load": "load open_bundle",
            "._looper": "read_looper",
            "._open": "open_classifier",
            "._routing": "default_router_state open_routed_client open_router",
            "._sections": "cascade_settings routing_settings",
            "._task_record": "RecordedTask record_run",
            "._zeph": "read_zeph",
        },
    )

__all__ = [
    "LABELS_ANSWERED",
    "Bundle",
    "BundleDiff",
    "BundleHistory",
    "Change",
    "Decision",
    "Figure",
    "RecordedTask",
    "cascade_settings",
    "collapse_warning",
    "default_router_state",
    "diff_bundles",
    "export",
    "label_mass_warning",
    "load",
    "open_bundle",
    "open_classifier",
    "open_routed_client",
    "open_router",
    "read_bundle",
    "read_looper",
    "read_zeph",
    "record_run",
    "routing_settings",
]
