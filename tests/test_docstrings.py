"""Tests of the examples in docstrings."""

from __future__ import annotations

import ast
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(importlib.import_module("calibrant").__file__ or "").parent
MODULES = sorted(
    "calibrant." + ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8") and path.parent != SOURCE
)


def texts(name: str) -> Iterator[ast.Constant]:
    """Yield the texts with examples: docstrings, and texts below type aliases."""
    tree = ast.parse((SOURCE / "/".join(name.split(".")[1:])).with_suffix(".py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and ">>> " in str(node.value.value)
        ):
            yield node.value


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of a module runs in an empty folder and prints its output."""
    monkeypatch.chdir(tmp_path)
    names = vars(importlib.import_module(name))
    runner, parser = doctest.DocTestRunner(), doctest.DocTestParser()
    for text in texts(name):
        runner.run(parser.get_doctest(str(text.value), dict(names), name, name, text.lineno))
    assert runner.summarize(verbose=False).attempted > 0
    assert runner.failures == 0
