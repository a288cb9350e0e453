"""Public names of a package, imported from its modules when they are first used."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

_NONE: Mapping[str, str] = MappingProxyType({})


def lazy_names(
    package: str,
    homes: Mapping[str, str],
    *,
    moved: Mapping[str, str] = _NONE,
    handed_out: Mapping[str, str] = _NONE,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose modules are loaded when a name of theirs is used.

    The package imports the same names under ``if TYPE_CHECKING``, for type checkers and import-linter.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    homes : mapping of str to str
        Public names, separated by spaces, by module; ``.module`` is one of the package.
    moved : mapping of str to str, default none
        Names that live in another package now, which is given; using one here warns.

    handed_out : mapping of str to str, default none
        The same, without a warning and for this project alone: a package above has the name, and one below needs it.

    Examples
    --------
    >>> from calibrant.core._lazy import lazy_names
    >>> find, names = lazy_names("json", {".decoder": "JSONDecoder"})
    >>> find("JSONDecoder").__module__
    'json.decoder'
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> object:
        # Nothing is kept here: a name that a test replaces in its own module is replaced here, too.
        if name in home_of:
            return getattr(importlib.import_module(home_of[name], package), name)
        if name in handed_out:
            return getattr(importlib.import_module(handed_out[name]), name)
        if name in moved:
            message = f"{package}.{name} is {moved[name]}.{name} now: import it from there."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(moved[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted(home_of)
