"""What of a model's options may be written down for others: all but what may hold a credential."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from calibrant.clients import redact
from calibrant.inference.doctor import is_secret, public_endpoint

__all__ = ["may_be_withheld", "without_secrets"]

_ADDRESSES = frozenset({"api_base", "base_url"})


def without_secrets(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options that hold no credential, and the names of those that may.

    Left out are options whose name says that they hold one (``api_key``, ``extra_headers``), whose value looks like
    one, and those with such a part somewhere inside. Of an address with a credential, the rest stays.

    Parameters
    ----------
    options : mapping
        As a task file has them, ``api_base`` among them.

    Returns
    -------
    kept : dict
        What is left.
    names : tuple of str
        What is left out, wholly or in part, in order.
    """
    kept: dict[str, Any] = {}
    left_out = []
    for name, value in options.items():
        if name in _ADDRESSES and isinstance(value, str):
            hides = _hides(value)
            kept[name] = public_endpoint(value) if hides else value
            left_out += [name] if hides else []
        elif is_secret(name) or _holds_secret(value):
            left_out.append(name)
        else:
            kept[name] = value
    return kept, tuple(left_out)


def may_be_withheld(name: str) -> bool:
    """Return whether an option of this name says who calls, or where, rather than what is asked."""
    return is_secret(name) or name in _ADDRESSES or "timeout" in name.lower()


def _holds_secret(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(is_secret(str(name)) or _holds_secret(found) for name, found in value.items())
    if isinstance(value, list | tuple):
        return any(map(_holds_secret, value))
    return isinstance(value, str) and redact(value) != value


def _hides(address: str) -> bool:
    """Return whether an address holds a credential."""
    try:
        parts = urlsplit(address)
        return "@" in parts.netloc or any(is_secret(name) for name, _ in parse_qsl(parts.query))
    except ValueError:
        return redact(address) != address
