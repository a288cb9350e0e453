"""A task file, or a bundle, becomes what it describes: one classifier, one with several providers, or a cascade."""

from calibrant.assembly._bundle import Bundle, BundleHistory, Decision, Figure, read_bundle
from calibrant.assembly._bundle_diff import BundleDiff, Change, diff_bundles
from calibrant.assembly._bundle_export import export
from calibrant.assembly._bundle_figures import LABELS_ANSWERED, collapse_warning, label_mass_warning
from calibrant.assembly._bundle_load import load, open_bundle
from calibrant.assembly._looper import read_looper
from calibrant.assembly._open import open_classifier
from calibrant.assembly._routing import default_router_state, open_routed_client, open_router
from calibrant.assembly._task_record import RecordedTask, record_run
from calibrant.core import read_zeph

__all__ = [
    "LABELS_ANSWERED",
    "Bundle",
    "BundleDiff",
    "BundleHistory",
    "Change",
    "Decision",
    "Figure",
    "RecordedTask",
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
]
