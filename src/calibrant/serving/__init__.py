"""HTTP services of calibrant; need the extra ``serve``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from calibrant.core._errors import ConfigurationError
from calibrant.core._installation import install_command

if TYPE_CHECKING:
    from calibrant.serving._classifier_app import create_classifier_app
    from calibrant.serving._litellm_provider import BundleProvider
    from calibrant.serving._logs import json_logs
    from calibrant.serving._server import serve_app
    from calibrant.serving._settings import ConnectionLimits, ServiceSettings
    from calibrant.serving._verifier_app import create_verifier_app

__all__ = [
    "BundleProvider",
    "ConnectionLimits",
    "ServiceSettings",
    "create_classifier_app",
    "create_verifier_app",
    "json_logs",
    "serve_app",
]

_HOMES = {
    "BundleProvider": "_litellm_provider",
    "ConnectionLimits": "_settings",
    "ServiceSettings": "_settings",
    "create_classifier_app": "_classifier_app",
    "create_verifier_app": "_verifier_app",
    "json_logs": "_logs",
    "serve_app": "_server",
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used: the extra may be missing, and takes its time."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in {"fastapi", "uvicorn", "starlette", "prometheus_client"}:
            raise
        raise ConfigurationError(
            f"Serving needs {error.name}, which is not installed: run {install_command('serve')}."
        ) from error


def __dir__() -> list[str]:
    return __all__
