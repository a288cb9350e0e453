"""Options that several commands share."""

from __future__ import annotations

import json
from typing import Any

from calibrant.core import ConfigurationError

__all__ = ["parse_option"]


def parse_option(text: str) -> tuple[str, Any]:
    """Return name and value of ``KEY=VALUE``; what is no JSON is text."""
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise ConfigurationError(
            f"Expected --option KEY=VALUE, got {text!r}: write --option temperature=0.5."
        )
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value
