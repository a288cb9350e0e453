"""A task file becomes what it describes: one classifier, one with several providers, or a cascade."""

from calibrant.assembly._looper import read_looper
from calibrant.assembly._open import open_classifier
from calibrant.assembly._routing import default_router_state, open_routed_client, open_router

__all__ = ["default_router_state", "open_classifier", "open_routed_client", "open_router", "read_looper"]
