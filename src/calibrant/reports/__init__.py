"""Run directories as pages a person reads; never calls a model."""

from calibrant.reports._html import write_report

__all__ = ["write_report"]
