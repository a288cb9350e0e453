"""Sections of a configuration file: types of values, messages about mistakes, and their lines."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import pydantic
from pydantic_core import InitErrorDetails, PydanticCustomError

from calibrant.core._errors import ConfigurationError
from calibrant.core._files import decoding_problem

# Strict: neither true nor "0.5" is a number.
Number: TypeAlias = Annotated[float, pydantic.Field(strict=True, allow_inf_nan=False)]
Share: TypeAlias = Annotated[Number, pydantic.Field(ge=0, le=1)]
Amount: TypeAlias = Annotated[Number, pydantic.Field(ge=0)]
Count: TypeAlias = Annotated[int, pydantic.Field(strict=True, ge=0)]

Problem: TypeAlias = tuple[tuple[str | int, ...], str]
"""The key that is wrong, and what is wrong with it."""

_HEADER = re.compile(r"^\s*(\[+)([^\]=,]+)\]")
_KEY = re.compile(r"""^\s*([\w."' \t-]+?)\s*=""")


class Section(pydantic.BaseModel):
    """Table of a configuration file; an unknown key is an error."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, kw_only=True)
class SectionTable:
    """Raw section of a task file, validated by the package that owns it.

    Attributes
    ----------
    values : object
        Its keys and values; something else than a mapping is a mistake.
    path : Path
        The task file; files that the section names are relative to its folder.
    beside : frozenset of str
        The other keys and sections on the top level of the file.
    text : str
        Content of the whole file, which line numbers are found in.
    """

    values: object
    path: Path
    beside: frozenset[str] = frozenset()
    text: str = field(default="", repr=False)


def register(kind: type, name: str, known: MutableMapping[str, Any]) -> None:
    """Add a class to the classes that configuration files know by name.

    Parameters
    ----------
    kind : type
        The class.
    name : str
        Its name in configuration files.
    known : mutable mapping of str to type
        The classes by name.

    Raises
    ------
    ConfigurationError
        Another class has the name.
    """
    other = known.setdefault(name, kind)
    if other is not kind:
        raise ConfigurationError(
            f"Expected a name of its own for {kind.__qualname__}, got {name!r}, which is that of "
            f"{other.__qualname__}: name another one."
        )


def read_text(path: Path, missing: str) -> str:
    """Return the text of a file, without a byte order mark.

    Parameters
    ----------
    path : Path
        The file.
    missing : str
        Message where it does not exist.

    Raises
    ------
    ConfigurationError
        There is no such file, or it is not UTF-8; names the line.
    """
    if not path.is_file():
        raise ConfigurationError(missing)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, problem = decoding_problem(error)
        raise ConfigurationError(f"{path}:{line}: {problem}: save the file as UTF-8.") from error


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Parameters
    ----------
    text : str
        Its content.
    path : Path
        The file, for messages.

    Raises
    ------
    ConfigurationError
        The text is invalid TOML, or nested too deeply.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Python 3.11 gives the line in the message alone.
        place = re.search(r"at line (\d+)", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        raise ConfigurationError(f"{path}:{line}: not valid TOML: {error}.") from error
    except RecursionError as error:
        raise ConfigurationError(
            f"{path}: expected tables and arrays a few levels deep, got hundreds inside each other: flatten them."
        ) from error


def refuse(problems: Iterable[Problem], text: str, path: Path) -> None:
    """Raise one ConfigurationError for all problems of a file, each with its line, if there are any.

    Parameters
    ----------
    problems : iterable of (location, str)
        Location and message of each problem.
    text : str
        The file's content.
    path : Path
        The file, for messages.

    Raises
    ------
    ConfigurationError
        There is a problem.
    """
    lines = [f"{path}:{line_of(text, location)}: {problem}" for location, problem in problems]
    if lines:
        raise ConfigurationError("\n".join(lines))


def wrong(message: str, remedy: str, **values: object) -> PydanticCustomError:
    """Return an error for a validator to raise; `message` is a template for `values`."""
    return PydanticCustomError("calibrant", message, {"remedy": remedy, **values})


def wrong_at(
    section: type[Section], problems: Sequence[tuple[tuple[str | int, ...], object, PydanticCustomError]]
) -> pydantic.ValidationError:
    """Return an error for the validator of a whole section to raise.

    Parameters
    ----------
    section : type
        The section.
    problems : sequence of (location, input, error)
        Where in it each mistake is, what stands there, and what `wrong` says of it.
    """
    details = [InitErrorDetails(type=error, loc=loc, input=given) for loc, given, error in problems]
    return pydantic.ValidationError.from_exception_data(section.__name__, details)


def describe_problem(problem: Mapping[str, Any], root: type[pydantic.BaseModel], *, prefix: str = "") -> str:
    """Return a message about a wrong key, with the remedy.

    Parameters
    ----------
    problem : mapping
        One of the errors of a `pydantic.ValidationError`.
    root : type
        The validated class.
    prefix : str, optional
        Prefix of the root's keys, such as ``cascade.``.
    """
    location = [name for name in problem["loc"] if isinstance(name, str)]
    where = prefix + ".".join(location)
    if problem["type"] == "extra_forbidden":
        section: Any = root
        for name in location[:-1]:
            section = _section_in(section.model_fields[name].annotation)
        return f"unknown key {where!r}: expected one of {', '.join(section.model_fields)}."
    if problem["type"] == "missing":
        return f"missing key {where!r}: add it."
    if problem["type"] == "model_type":
        return f"{where}: expected a table, got {problem['input']!r:.80}: write [{where}] and its keys below."
    remedy = f": {problem['ctx']['remedy']}" if problem["type"] == "calibrant" else ""
    return f"{where}: {problem['msg']}, got {problem['input']!r:.80}{remedy}."


def _section_in(annotation: object) -> Any:  # noqa: ANN401 (a type, or None)
    """Return the section class in a field's type, which may be optional or a union."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def line_of(text: str, location: Sequence[Any]) -> int:
    """Return the line of the key at `location`, or of its table; tomllib keeps no positions."""
    wanted = tuple(map(str, location))
    table: tuple[str, ...] = ()
    entries: Counter[tuple[str, ...]] = Counter()  # of arrays of tables
    best, best_line = 0, 1
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = _numbered(_path(header[2]), entries)
            if header[1] == "[[":
                table += (str(entries[table]),)
                entries[table[:-1]] += 1
            path = table
        elif key := _KEY.match(line):
            path = table + _path(key[1])
        else:
            continue
        if len(path) > best and wanted[: len(path)] == path:
            best, best_line = len(path), number
    return best_line


def _numbered(path: tuple[str, ...], entries: Mapping[tuple[str, ...], int]) -> tuple[str, ...]:
    """Return a table's path, with the latest index of every enclosing array."""
    found: tuple[str, ...] = ()
    for part in path[:-1]:
        found += (part,)
        if found in entries:
            found += (str(entries[found] - 1),)
    return found + path[-1:]


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip(" \t\"'") for part in dotted.split("."))
