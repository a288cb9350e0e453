"""HTTP services of calibrant; need the extra ``serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrant.core._errors import ConfigurationError
from calibrant.core._installation import install_command
from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.serving._classifier_app import (
        ServiceSettings,
        create_classifier_app,
        create_decision_app,
    )
    from calibrant.serving._mcp import create_mcp_server
    from calibrant.serving._review import Review
    from calibrant.serving._review_app import create_review_app
    from calibrant.serving._verifier_app import create_verifier_app

__all__ = [
    "Review",
    "ServiceSettings",
    "create_classifier_app",
    "create_decision_app",
    "create_mcp_server",
    "create_review_app",
    "create_verifier_app",
]

_find, __dir__ = lazy_names(__name__)


def __getattr__(name: str) -> object:
    """Import a public name on first use, as its extra may be missing and is slow to import."""
    try:
        return _find(name)
    except ModuleNotFoundError as error:
        if error.name not in {"fastapi", "uvicorn", "starlette", "prometheus_client", "mcp"}:
            raise
        extra = "mcp" if name == "create_mcp_server" else "serve"
        raise ConfigurationError(
            f"Serving needs {error.name}, which is not installed: run {install_command(extra)}."
        ) from error
