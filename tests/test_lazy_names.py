"""Tests of lazy imports: packages offer their public names and import them on use."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calibrant.cascade import CascadeSettings
from calibrant.core import Limits

SOURCE = Path(importlib.import_module("calibrant").__file__ or "").parent
PACKAGES = sorted(
    "calibrant." + ".".join(path.parent.relative_to(SOURCE).parts)
    for path in SOURCE.rglob("__init__.py")
    if "if TYPE_CHECKING:" in path.read_text() and path.parent != SOURCE
)


def declared(package: str) -> dict[str, str]:
    """Return the modules that a type checker takes a package's names from."""
    path = SOURCE.joinpath(*package.split(".")[1:]) / "__init__.py"
    block = next(node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_same_names(package: str) -> None:
    """Every public name comes from the module that type checkers see."""
    module, homes = importlib.import_module(package), declared(package)
    assert set(homes) == set(module.__all__)
    assert set(dir(module)) == set(homes)
    for name, home in homes.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("package", ["calibrant.cascade", "calibrant.routing", "calibrant.inference"])
def test_star_imports_follow_all(package: str) -> None:
    """A star import gives the names in ``__all__``."""
    found: dict[str, Any] = {}
    exec(f"from {package} import *", found)  # noqa: S102 (the statement is what is tested)
    assert set(importlib.import_module(package).__all__) <= set(found)


def test_objects_are_pickled_and_copied() -> None:
    """Objects are pickled and copied by the module that defines them."""
    for value in (Limits(concurrency=3), CascadeSettings(threshold=0.5)):
        assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 (our own)
        assert copy.deepcopy(value) == value


def test_packages_are_attributes_of_the_root() -> None:
    """A public package is found without an import of its own; what is none raises AttributeError."""
    code = (
        "import calibrant; print(calibrant.metrics.auroc([0.9, 0.2], [1, 0]), hasattr(calibrant, 'metric'))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    assert found.stdout.split() == ["1.0", "False"]


def test_unknown_names_are_attribute_errors() -> None:
    """An unknown name raises AttributeError."""
    module = importlib.import_module("calibrant.cascade")
    with pytest.raises(AttributeError, match=r"module 'calibrant\.cascade' has no attribute 'Cascad'"):
        getattr(module, "Cascad")  # noqa: B009 (mypy knows that it is not there)
