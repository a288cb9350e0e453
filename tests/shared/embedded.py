"""Marks of the tests on the embedded model."""

from __future__ import annotations

import pytest

from calibrant.core import ConfigurationError
from calibrant.inference import open_client


def why_missing() -> str:
    """Return how to install the embedded model; an empty text where it is installed."""
    try:
        open_client("local/smollm2-135m").close()
    except ConfigurationError as missing:
        return str(missing)
    return ""


WHY_MISSING = why_missing()
IS_MISSING = pytest.mark.skipif(bool(WHY_MISSING), reason=WHY_MISSING)
EMBEDDED = [
    pytest.mark.real_model,
    IS_MISSING,
    pytest.mark.timeout(300),
]
