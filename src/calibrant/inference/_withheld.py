"""What of a model's options may be written down for others: all but what may hold a credential."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrant.clients._redact import public_address, secret_texts
from calibrant.inference.doctor._records import is_secret

_ADDRESSES = frozenset({"api_base", "base_url"})


def without_secrets(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options that hold no credential, and the names of those that may.

    Left out are options whose name says that they hold one (``api_key``, ``extra_headers``), those with such a part
    somewhere inside, and those with a text of which nobody knows that it is harmless. Of an address, user, password
    and parameters that may be secret are left out.

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
            public = public_address(value)
            hides = public != value.strip().rstrip("/")
            kept[name] = public if hides else value
            left_out += [name] if hides else []
        elif is_secret(name) or _names_secret(value) or any(secret_texts({name: value})):
            left_out.append(name)
        else:
            kept[name] = value
    return kept, tuple(left_out)


def may_be_withheld(name: str) -> bool:
    """Return True where an option of this name says who calls, or where, rather than what is asked."""
    return is_secret(name) or name in _ADDRESSES or "timeout" in name.lower()


def _names_secret(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(is_secret(str(name)) or _names_secret(found) for name, found in value.items())
    return isinstance(value, list | tuple) and any(map(_names_secret, value))
