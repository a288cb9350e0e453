"""Reader of litellm's callback records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

_ASKED: Final = "calibrant_asked"  # in a request's metadata, which goes along with its retries
_REDACTED: Final = "redacted-by-litellm"
# 401 to 404 are about the deployment's key, price plan and model; a request cannot be at fault.
_THEIR_FAULT: Final = frozenset({401, 402, 403, 404, 407, 408, 409, 425, 429})


def deployment_of(kwargs: Mapping[str, Any]) -> str | None:
    """Return the id of the called deployment; None without a router."""
    # Not the metadata: a retry writes its own deployment there before the first callback has read it.
    info = (kwargs.get("litellm_params") or {}).get("model_info") or {}
    return None if info.get("id") is None else str(info["id"])


def asked_before(kwargs: Mapping[str, Any]) -> list[str]:
    """Return the deployments already tried for this request."""
    metadata = kwargs.get("metadata")
    noted = metadata.get(_ASKED) if isinstance(metadata, dict) else None
    # A caller may hand the same metadata over with request after request, or write anything there.
    if not isinstance(noted, dict) or noted.get("request") != kwargs.get("litellm_trace_id"):
        return []
    names = noted.get("deployments")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def note_asked(kwargs: Mapping[str, Any], name: str) -> None:
    """Record that a deployment was tried for a request."""
    metadata = kwargs.get("metadata")
    if isinstance(metadata, dict):
        names = list(dict.fromkeys([*asked_before(kwargs), name]))  # one trace may be of many requests
        metadata[_ASKED] = {"request": kwargs.get("litellm_trace_id"), "deployments": names}


def is_their_fault(error: object) -> bool:
    """Return True if an error is the deployment's fault, not the request's."""
    status = getattr(error, "status_code", None)
    try:
        return status is not None and (int(status) >= 500 or int(status) in _THEIR_FAULT)
    except (TypeError, ValueError):
        return False


def cost_of(kwargs: Mapping[str, Any]) -> float | None:
    cost = kwargs.get("response_cost")
    return float(cost) if isinstance(cost, int | float) and 0.0 <= cost < math.inf else None


def text_of(messages: object, given: object) -> str | None:
    """Return the last user message, or the input of a call without messages."""
    said = [one for one in messages if isinstance(one, Mapping)] if isinstance(messages, list) else []
    content = next((one.get("content") for one in reversed(said) if one.get("role") == "user"), given)
    if isinstance(content, list):
        parts = [
            one if isinstance(one, str) else one.get("text")
            for one in content
            if isinstance(one, str | Mapping)
        ]
        content = "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) and content.strip() and content != _REDACTED else None
