"""Packages import their public names when they are used, and offer them as if they had been there from the start."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
from pathlib import Path
from typing import Any

import pytest

from calibrant.cascade import CascadeSettings
from calibrant.core import Limits
from calibrant.core._lazy import lazy_names

SOURCE = Path(importlib.import_module("calibrant").__file__ or "").parent
PACKAGES = sorted(
    "calibrant." + ".".join(path.parent.relative_to(SOURCE).parts)
    for path in SOURCE.rglob("__init__.py")
    if "lazy_names(" in path.read_text() and path.parent != SOURCE
)


def declared(package: str) -> dict[str, str]:
    """Return the modules that a type checker takes a package's names from, by name."""
    path = SOURCE.joinpath(*package.split(".")[1:]) / "__init__.py"
    block = next(node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_what_is_imported(package: str) -> None:
    """Every public name, from the module that it really comes from."""
    module, homes = importlib.import_module(package), declared(package)
    assert set(homes) | ({"lazy_names"} & set(module.__all__)) == set(module.__all__)
    assert set(dir(module)) == set(homes)
    for name, home in homes.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("package", ["calibrant.cascade", "calibrant.routing", "calibrant.inference"])
def test_a_star_imports_everything(package: str) -> None:
    """What ``__all__`` lists."""
    found: dict[str, Any] = {}
    exec(f"from {package} import *", found)  # noqa: S102 (the statement is what is tested)
    assert set(importlib.import_module(package).__all__) <= set(found)


def test_objects_are_pickled_and_copied() -> None:
    """They belong to the module that defines them."""
    for value in (Limits(concurrency=3), CascadeSettings(threshold=0.5)):
        assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 (our own)
        assert copy.deepcopy(value) == value


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As in any other module."""
    module = importlib.import_module("calibrant.cascade")
    with pytest.raises(AttributeError, match=r"module 'calibrant\.cascade' has no attribute 'Cascad'"):
        getattr(module, "Cascad")  # noqa: B009 (mypy knows that it is not there)


def test_a_moved_name_warns_and_works() -> None:
    """With the place to import it from."""
    find, names = lazy_names("json", {".decoder": "JSONDecoder"}, moved={"Path": "pathlib"})
    with pytest.warns(DeprecationWarning, match=r"json\.Path is pathlib\.Path now: import it from there\."):
        assert find("Path") is Path
    assert names() == ["JSONDecoder"]


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("CascadeSettings", "calibrant.cascade"),
        ("RoutingSettings", "calibrant.routing"),
        ("read_zeph", "calibrant.assembly"),
    ],
)
def test_settings_of_sections_are_found_where_they_were(name: str, home: str) -> None:
    """For one version."""
    with pytest.warns(DeprecationWarning, match=f"{home}.{name} now"):
        assert getattr(importlib.import_module("calibrant.core"), name) is getattr(
            importlib.import_module(home), name
        )
