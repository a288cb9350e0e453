"""Keeps credentials out of every message a client lets through."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

__all__ = ["public_address", "redact"]

_HIDDEN = "[redacted]"
_SECRET_PARAMETER = re.compile(r"(?i)key|token|secret|passw|auth|sig|cred")
_PATTERNS = (
    # user:password@host in a URL
    (re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"), _HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {_HIDDEN}"),
    # api_key=..., "x-api-key": "...", ?key=...
    (
        re.compile(
            r"(?i)((?:api[_-]?key|access[_-]?token|secret|password|[?&]key)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;)}]+"
        ),
        rf"\1{_HIDDEN}",
    ),
    # sk-..., gsk_..., hf_..., xai-..., AIza..., AKIA...
    (
        re.compile(r"\b(?:(?:sk|pk|rk|gsk|hf|xai|pplx|r8|nvapi)[-_]|AIza|AKIA|ASIA)[A-Za-z0-9_*.-]{6,}"),
        _HIDDEN,
    ),
)


def redact(text: str, *, secrets: Iterable[object] = ()) -> str:
    """Return `text` with everything that looks like a credential replaced.

    Parameters
    ----------
    text : str
        A message from a library or a server.
    secrets : iterable, default ()
        Values known to be secret; hidden wherever they occur, whatever they look like.
    """
    for secret in secrets:
        if isinstance(secret, str) and len(secret) > 3:
            text = text.replace(secret, _HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def public_address(address: str) -> str:
    """Return a URL without user, password and secret parameters, and without a slash at its end.

    Parameters
    ----------
    address : str
        What is meant to be a URL; anything else comes back redacted.
    """
    try:
        parts = urlsplit(address.strip())
        query = [pair for pair in parse_qsl(parts.query) if not _SECRET_PARAMETER.search(pair[0])]
    except ValueError:
        return redact(address)
    host = parts.netloc.rpartition("@")[2]
    return redact(urlunsplit((parts.scheme, host, parts.path.rstrip("/"), urlencode(query), "")))
