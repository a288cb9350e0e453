"""Marks of the tests on the embedded model."""

from __future__ import annotations

import pytest

from calibrant.clients._weights import local_models

_MODEL = local_models()[0]
EMBEDDED = [
    pytest.mark.real_model,
    pytest.mark.skipif(
        not _MODEL.installed, reason=f"the embedded model is not installed: {_MODEL.install_command}"
    ),
    pytest.mark.timeout(300),
]
