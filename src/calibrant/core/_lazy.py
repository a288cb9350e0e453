"""Lazy imports of a package's public names, and of what packages above supply to those below."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

_NONE: Mapping[str, str] = MappingProxyType({})
_SUPPLIERS: dict[str, Callable[[], object]] = {}


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` of a package, which imports names on first use, and its ``__dir__``.

    The package imports the same names under ``if TYPE_CHECKING``, for type checkers.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    homes : mapping of str to str
        Public names, separated by spaces, by module; ``.module`` is one of the package.

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
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted(home_of)


def _modules_by_name(homes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the module of each name, given the names in each module."""
    return {name: module for module, names in homes.items() for name in names.split()}


def supply(name: str, supplier: Callable[[], object]) -> None:
    """Register the supplier of `name`, which is called when it is needed.

    The root package registers all suppliers, as it stands above every package and is imported before any.
    """
    _SUPPLIERS[name] = supplier


def supplied(name: str) -> object:
    """Return the object that the supplier of `name` returns."""
    return _SUPPLIERS[name]()
