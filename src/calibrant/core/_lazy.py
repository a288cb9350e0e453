"""Lazy imports of a package's public names, and of what packages above supply to those below."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache

_SUPPLIERS: dict[str, Callable[[], object]] = {}


def lazy_names(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` of a package, which imports names on first use, and its ``__dir__``.

    The names are those that the package imports under ``if TYPE_CHECKING``, which type checkers and editors read, too.

    Parameters
    ----------
    package : str
        Its ``__name__``.

    Examples
    --------
    >>> from calibrant.core._lazy import lazy_names
    >>> find, names = lazy_names("calibrant.runs")
    >>> find("SavedRow").__module__, "SavedRows" in names()
    ('calibrant.runs._rows', True)
    """

    def find(name: str) -> object:
        # Nothing is kept here: a name that a test replaces in its own module is replaced here, too.
        module = _homes(package).get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    return find, lambda: sorted(_homes(package))


@cache
def _homes(package: str) -> Mapping[str, str]:
    """Return the module of each name that a package imports under ``if TYPE_CHECKING``."""
    tree = ast.parse(pkgutil.get_data(package, "__init__.py") or b"")
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def supply(name: str, supplier: Callable[[], object]) -> None:
    """Register the supplier of `name`, which is called when it is needed.

    The root package registers all suppliers, as it stands above every package and is imported before any.
    """
    _SUPPLIERS[name] = supplier


def supplied(name: str) -> object:
    """Return the object that the supplier of `name` returns."""
    return _SUPPLIERS[name]()
