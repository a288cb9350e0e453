"""Lazy imports of a package's public names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

_NONE: Mapping[str, str] = MappingProxyType({})


def lazy_names(
    package: str, homes: Mapping[str, str], *, handed_out: Mapping[str, str] = _NONE
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` of a package, which imports names on first use, and its ``__dir__``.

    The package imports the same names under ``if TYPE_CHECKING``, for type checkers.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    homes : mapping of str to str
        Public names, separated by spaces, by module; ``.module`` is one of the package.
    handed_out : mapping of str to str, default none
        Packages by name, for this project alone: a package above has the name, and one below needs it.

    Examples
    --------
    >>> from calibrant.core._lazy import lazy_names
    >>> find, names = lazy_names("json", {".decoder": "JSONDecoder"})
    >>> find("JSONDecoder").__module__
    'json.decoder'
    """
    home_of = _modules_by_name(homes)

    def find(name: str) -> object:
        # Nothing is kept here: a name that a test replaces in its own module is replaced here, too.
        if name in home_of:
            return getattr(importlib.import_module(home_of[name], package), name)
        if name in handed_out:
            return getattr(importlib.import_module(handed_out[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted(home_of)


def _modules_by_name(homes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the module of each name, given the names in each module."""
    return {name: module for module, names in homes.items() for name in names.split()}
