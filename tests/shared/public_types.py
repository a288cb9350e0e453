"""Public names of calibrant, and the types that their signatures and fields name."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from functools import cache
from types import FunctionType

import calibrant

PACKAGES = [
    "calibrant",
    *sorted(f"calibrant.{module.name}" for module in pkgutil.iter_modules(calibrant.__path__)),
]
# What public classes hand one another inside the package: users neither hold nor extend it.
PLUMBING = {"CallMeter", "Gate", "Method", "PromptedModel", "Retrieval", "RowModel", "Walk"}
SPECIAL = {"__init__", "__call__", "__getitem__"}


def exported() -> dict[str, object]:
    """Return the public objects by their dotted public names."""
    modules = [importlib.import_module(package) for package in PACKAGES]
    return {
        f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__
    }


def functions_of(value: object) -> Iterator[FunctionType]:
    """Yield a function, or the public methods and properties of a class that calibrant defines."""
    if isinstance(value, FunctionType):
        yield value
    if not inspect.isclass(value):
        return
    for name, member in inspect.getmembers_static(value):
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        is_public = not name.startswith("_") or name in SPECIAL
        if is_public and isinstance(function, FunctionType) and function.__module__.startswith("calibrant"):
            yield function


def annotations_of(value: object) -> Iterator[tuple[str, object, str]]:
    """Yield the annotations in the signatures and fields of a public object: place, annotation and its module."""
    for function in functions_of(value):
        for name, annotation in function.__annotations__.items():
            yield f"{function.__qualname__}({name})", annotation, function.__module__
    if inspect.isclass(value) and dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if not field.name.startswith("_"):
                owner = next(base for base in value.__mro__ if field.name in inspect.get_annotations(base))
                yield f"{value.__name__}.{field.name}", field.type, owner.__module__


def types_in(annotation: object, module: str) -> Iterator[type]:
    """Yield the classes of calibrant that an annotation names, be it through an alias."""
    if isinstance(annotation, str):
        for node in ast.walk(ast.parse(annotation, mode="eval")):
            if isinstance(node, ast.Name):
                yield from types_in(named(node.id, module), module)
    elif inspect.isclass(annotation) and not typing.get_args(annotation):
        if annotation.__module__.startswith("calibrant"):
            yield annotation
    else:
        parts = annotation if isinstance(annotation, list | tuple) else typing.get_args(annotation)
        for part in parts:
            yield from types_in(part, module)


@cache
def named(name: str, module: str) -> object:
    """Return the object that a name stands for in a module, also one that is imported for type checkers alone."""
    found = importlib.import_module(module)
    if hasattr(found, name) or hasattr(builtins, name):
        return getattr(found, name, None)
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
            return getattr(importlib.import_module(str(node.module)), name)
    return None


@cache
def tree_of(module: str) -> ast.Module:
    """Return the parsed source of a module."""
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def missing_from(public: dict[str, object]) -> list[str]:
    """Return the types that public objects name in signatures and fields without being public, with the places."""
    known = {value for value in public.values() if inspect.isclass(value)}
    return sorted(
        {
            f"{found.__module__}.{found.__name__}: {place}"
            for value in public.values()
            for place, annotation, module in annotations_of(value)
            for found in types_in(annotation, module)
            if found not in known and found.__name__ not in PLUMBING and not found.__name__.startswith("_")
        }
    )


def types_in_signatures() -> set[str]:
    """Return the names of the public classes in public signatures and fields, which a type checker shows."""
    public = exported()
    known = {value for value in public.values() if inspect.isclass(value)}
    return {
        found.__name__
        for value in public.values()
        for _, annotation, module in annotations_of(value)
        for found in types_in(annotation, module)
        if found in known
    }
