"""The YAML of vLLM Semantic Router's confidence looper, read as a cascade's settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import pydantic

from calibrant.cascade._settings import LOOPER_KEYS, CascadeSettings
from calibrant.core._errors import ConfigurationError
from calibrant.core._sections import describe_problem

_Location: TypeAlias = tuple[str | int, ...]
_Problem: TypeAlias = tuple[int, str]

_ALGORITHM: Final = "algorithm"
_CONFIDENCE: Final = "confidence"
_MODELS: Final = "modelRefs"
_MODEL_KEYS: Final = ("model", "modelName")
# Legal keys at each level: the page documents the whole nesting, a fragment may hold the inner keys alone.
_LEVELS: Final[Mapping[_Location, tuple[str, ...]]] = {
    (): (_MODELS, _ALGORITHM, "type", _CONFIDENCE, *LOOPER_KEYS),
    (_ALGORITHM,): ("type", _CONFIDENCE, "on_error"),
    (_CONFIDENCE,): LOOPER_KEYS,
    (_ALGORITHM, _CONFIDENCE): LOOPER_KEYS,
}


def read_looper(path: str | Path) -> CascadeSettings:
    """Read a looper's YAML file: ``algorithm: {type: confidence, confidence: {...}}``, or its inner keys alone.

    The keys mean what they mean under ``[cascade]``, save that a negative ``threshold`` for
    ``avg_logprob`` is a mean natural log-probability. ``modelRefs`` name models. A key without a value
    counts as left out; zero is zero.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    CascadeSettings
        Settings without models if the file names none.

    Raises
    ------
    ConfigurationError
        There is no such file, it is no YAML, or a key is unknown or wrong; names file and line.
    """
    path = Path(path)
    document = _YamlDocument(path, _read_text(path))
    problems: list[_Problem] = []
    found = _LooperSettings()
    _collect(document, document.content, (), found, problems)
    _take_native(found)
    settings = None
    try:
        settings = CascadeSettings.model_validate(found.values)
    except pydantic.ValidationError as error:
        problems += [
            (document.line_at(found.origin(item["loc"])), describe_problem(dict(item), CascadeSettings))
            for item in error.errors()
        ]
    if problems or settings is None:
        raise ConfigurationError("\n".join(f"{path}:{line}: {text}" for line, text in sorted(problems)))
    return settings


class _LooperSettings:
    """The settings of a file, and the line of each."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.places: dict[str, _Location] = {}

    def origin(self, location: _Location) -> _Location:
        """Return the place in the file that the setting at a location comes from."""
        return (*self.places.get(str(location[0]), ()), *location[1:])


def _collect(
    document: _YamlDocument,
    level: Mapping[str, Any],
    at: _Location,
    found: _LooperSettings,
    problems: list[_Problem],
) -> None:
    """Collect the settings of a level of the file, and of the levels in it."""
    for key, value in level.items():
        place = (*at, key)
        if key not in _LEVELS[at]:
            known = ", ".join(_LEVELS[at])
            where = ".".join(map(str, place))
            problems.append((document.line_at(place), f"unknown key {where!r}: expected one of {known}."))
        elif key in (_ALGORITHM, _CONFIDENCE):
            _collect(document, document.mapping_at(value, place), place, found, problems)
        elif key == "type":
            if value != _CONFIDENCE:
                problems.append(
                    (
                        document.line_at(place),
                        f"type: expected 'confidence', got {value!r:.80}: read another file.",
                    )
                )
        elif key in found.values:
            problems.append((document.line_at(place), f"{key}: expected it once, got it twice: keep one."))
        elif value is not None:
            name = "models" if key == _MODELS else key
            found.values[name] = list(_models(document, value, problems)) if key == _MODELS else value
            found.places[name] = place


def _models(document: _YamlDocument, refs: object, problems: list[_Problem]) -> Iterator[dict[str, str]]:
    """Yield the models as entries of ``[[cascade.models]]``."""
    for number, ref in enumerate(refs if isinstance(refs, list) else [refs]):
        name = next(iter(ref.values())) if isinstance(ref, dict) and len(ref) == 1 else None
        if isinstance(name, str) and next(iter(ref)) in _MODEL_KEYS:
            yield {"name": name}
        else:
            line = document.line_at((_MODELS, number))
            problems.append((line, f"{_MODELS}: expected a list of {{model: NAME}}, got {ref!r:.80}."))


def _take_native(found: _LooperSettings) -> None:
    """Convert a negative threshold of the looper's default method to a native one."""
    threshold = found.values.get("threshold")
    negative = isinstance(threshold, int | float) and -math.inf < threshold < 0
    if negative and found.values.get("confidence_method", "avg_logprob") == "avg_logprob":
        found.values["native_threshold"] = found.values.pop("threshold")
        found.places["native_threshold"] = found.places["threshold"]


class _YamlDocument:
    """A YAML file as plain values that know their lines.

    Parameters
    ----------
    path : Path
        For messages.
    text : str
        Its content.

    Raises
    ------
    ConfigurationError
        The text is not YAML, or not a mapping.
    """

    def __init__(self, path: Path, text: str) -> None:
        import yaml  # noqa: PLC0415  (heavy)

        self._path = path
        self._lines: dict[_Location, int] = {(): 1}
        self._seen: set[int] = set()
        self._yaml = yaml
        try:
            self._loader = yaml.SafeLoader(text)
            content = self._plain(self._loader.get_single_node(), ())
        except RecursionError as error:
            raise ConfigurationError(
                f"{path}:1: expected a few levels of mappings, got very many."
            ) from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = 1 if mark is None else mark.line + 1
            reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
            raise ConfigurationError(f"{path}:{line}: not valid YAML: {reason}.") from error
        self.content = self.mapping_at(content, ())

    def line_at(self, location: _Location) -> int:
        """Return the line of the value at a location, or of the nearest enclosing one."""
        while location not in self._lines:
            location = location[:-1]
        return self._lines[location]

    def mapping_at(self, value: object, location: _Location) -> dict[str, Any]:
        """Return `value`, which must be a mapping."""
        if isinstance(value, dict):
            return value
        what = ".".join(map(str, location)) or "the looper's configuration"
        raise self._wrong(location, f"{what}: expected a mapping, got {value!r:.80}")

    def _wrong(self, location: _Location, text: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._path}:{self.line_at(location)}: {text}: see the documentation of the confidence looper."
        )

    def _plain(self, node: Any, at: _Location) -> Any:  # noqa: ANN401 (PyYAML has no types)
        if node is None:
            return None
        self._lines.setdefault(at, node.start_mark.line + 1)
        if isinstance(node, self._yaml.ScalarNode):
            return self._scalar(node, at)
        if id(node) in self._seen:
            raise self._wrong(at, "expected every value to be written out, got an alias")
        self._seen.add(id(node))
        if isinstance(node, self._yaml.SequenceNode):
            return [self._plain(entry, (*at, number)) for number, entry in enumerate(node.value)]
        return self._mapping(node.value, at)

    def _mapping(self, pairs: Sequence[tuple[Any, Any]], at: _Location) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            name = str(key.value)
            place = (*at, name)
            self._lines[place] = key.start_mark.line + 1
            if name in found:
                raise self._wrong(place, f"{name}: expected it once, got it twice")
            found[name] = self._plain(value, place)
        return found

    def _scalar(self, node: Any, at: _Location) -> Any:  # noqa: ANN401
        try:
            value = self._loader.construct_object(node)
        except ValueError as error:  # an impossible date
            raise self._wrong(at, f"expected text or a number, got {node.value!r:.80}") from error
        if isinstance(value, str) and node.style is None:
            try:  # YAML 1.1, which PyYAML reads, takes 1e-1 for text
                return float(value)
            except ValueError:
                return value
        if value is not None and not isinstance(value, str | bool | int | float):
            raise self._wrong(at, f"expected text or a number, got {node.value!r:.80}")
        return value


def _read_text(path: Path) -> str:
    if not path.is_file():
        msg = f"{path}: no such file: expected a confidence looper's YAML (paths in a task file are relative to it)."
        raise ConfigurationError(msg)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        msg = f"{path}:{line}: expected UTF-8 text, got the byte 0x{byte:02x}: save the file as UTF-8."
        raise ConfigurationError(msg) from error
