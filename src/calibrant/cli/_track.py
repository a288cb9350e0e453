"""Option ``--track``: a finished run is logged to a tracking server."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from calibrant.cli._tables import say
from calibrant.core._errors import CalibrantError, ConfigurationError
from calibrant.core._installation import install_command

_SERVICES: Final = ("mlflow",)


def check_tracking(service: str) -> None:
    """Refuse a service that is unknown or not installed, before anything is paid for."""
    if service not in _SERVICES:
        raise ConfigurationError(f"Expected --track mlflow, got {service!r:.80}: no other service is known.")
    if find_spec("mlflow") is None:
        raise ConfigurationError(f"--track mlflow needs the extra mlflow: {install_command('mlflow')}.")


def track(directory: Path) -> None:
    """Log a finished run; a server that fails costs a sentence, as the run is in its directory."""
    from calibrant.mlflow import log_run

    try:
        run = log_run(directory)
    except CalibrantError as error:
        say(f"warning: {error} Send it later: calibrant report {directory} --track mlflow")
    else:
        say(f"MLflow has the run {directory.resolve().name}: {run}")
