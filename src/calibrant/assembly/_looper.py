"""The YAML of vLLM Semantic Router's confidence looper, read as a cascade's settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import pydantic

from calibrant.assembly._sections import read_settings_file
from calibrant.cascade._settings import LOOPER_KEYS, CascadeSettings
from calibrant.core._errors import ConfigurationError
from calibrant.core._sections import describe_problem

_Location: TypeAlias = tuple[str | int, ...]

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
_REMEDY: Final = "see the documentation of the confidence looper."


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
    file = _LooperFile(path)
    content = file.parse(read_settings_file(path, "a confidence looper's YAML"))
    file.refuse()  # before the values are looked at: an alias may be anything
    file.collect(content, ())
    _take_native(file)
    try:
        settings = CascadeSettings.model_validate(file.values)
    except pydantic.ValidationError as error:
        for problem in error.errors():
            key, *inner = problem["loc"]
            file.note((*file.places.get(key, ()), *inner), describe_problem(dict(problem), CascadeSettings))
        file.refuse()
        raise
    file.refuse()
    return settings


def _take_native(file: _LooperFile) -> None:
    """Convert a negative threshold of the looper's default method to a native one."""
    threshold = file.values.get("threshold")
    negative = isinstance(threshold, int | float) and -math.inf < threshold < 0
    if negative and file.values.get("confidence_method", "avg_logprob") == "avg_logprob":
        file.values["native_threshold"] = file.values.pop("threshold")
        file.places["native_threshold"] = file.places["threshold"]


class _LooperFile:
    """Settings of a YAML file with their lines and problems.

    Attributes
    ----------
    values : dict
        Settings by name.
    places : dict
        Their locations in the file.
    """

    def __init__(self, path: Path) -> None:
        self.values: dict[str, Any] = {}
        self.places: dict[str | int, _Location] = {}
        self._path = path
        self._lines: dict[_Location, int] = {(): 1}
        self._problems: list[tuple[int, str]] = []
        self._seen: set[int] = set()

    def note(self, at: _Location, problem: str) -> None:
        """Record a problem at a location, or at the nearest enclosing value."""
        while at not in self._lines:
            at = at[:-1]
        self._problems.append((self._lines[at], problem))

    def refuse(self) -> None:
        """Raise ConfigurationError if problems were recorded."""
        if self._problems:
            lines = [f"{self._path}:{line}: {problem}" for line, problem in sorted(self._problems)]
            raise ConfigurationError("\n".join(lines))

    def parse(self, text: str) -> object:
        """Parse the content into plain values, and record the line of each."""
        import yaml  # noqa: PLC0415  (heavy)

        try:
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            return None if root is None else self._plain(root, (), loader)
        except RecursionError:
            self.note((), "expected a few levels of mappings, got very many.")
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            self._lines[()] = 1 if mark is None else mark.line + 1
            reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
            self.note((), f"not valid YAML: {reason}.")
        return None

    def _plain(self, node: Any, at: _Location, loader: Any) -> Any:  # noqa: ANN401 (PyYAML has no types)
        self._lines.setdefault(at, node.start_mark.line + 1)
        if node.id == "scalar":
            return self._scalar(node, at, loader)
        if id(node) in self._seen:
            self.note(at, f"expected every value to be written out, got an alias: {_REMEDY}")
            return None
        self._seen.add(id(node))
        if node.id == "sequence":
            return [self._plain(entry, (*at, number), loader) for number, entry in enumerate(node.value)]
        values: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            place = (*at, name)
            self._lines[place] = key.start_mark.line + 1
            if name in values:
                self.note(place, f"{name}: expected it once, got it twice: {_REMEDY}")
            values[name] = self._plain(value, place, loader)
        return values

    def _scalar(self, node: Any, at: _Location, loader: Any) -> object:  # noqa: ANN401 (as above)
        try:
            value = loader.construct_object(node)
        except ValueError:  # an impossible date
            value = node
        if isinstance(value, str) and node.style is None:
            try:  # YAML 1.1, which PyYAML reads, takes 1e-1 for text
                return float(value)
            except ValueError:
                return value
        if not isinstance(value, str | bool | int | float | None):
            self.note(at, f"expected text or a number, got {node.value!r:.80}: {_REMEDY}")
        return value

    def collect(self, level: object, at: _Location) -> None:
        """Collect the settings of a level of the file, and of the levels in it."""
        if not isinstance(level, dict):
            where = ".".join(map(str, at)) or "the looper's configuration"
            self.note(at, f"{where}: expected a mapping, got {level!r:.80}: {_REMEDY}")
            return
        for key, value in level.items():
            place = (*at, key)
            if key not in _LEVELS[at]:
                where, known = ".".join(map(str, place)), ", ".join(_LEVELS[at])
                self.note(place, f"unknown key {where!r}: expected one of {known}.")
            elif key in (_ALGORITHM, _CONFIDENCE):
                self.collect(value, place)
            elif key == "type":
                if value != _CONFIDENCE:
                    self.note(place, f"type: expected 'confidence', got {value!r:.80}: read another file.")
            elif key in self.values:
                self.note(place, f"{key}: expected it once, got it twice: keep one.")
            elif value is not None:
                name = "models" if key == _MODELS else key
                self.values[name] = list(self._models(value)) if key == _MODELS else value
                self.places[name] = place

    def _models(self, refs: object) -> Iterator[dict[str, str]]:
        """Yield the models as entries of ``[[cascade.models]]``."""
        for number, ref in enumerate(refs if isinstance(refs, list) else [refs]):
            key, name = next(iter(ref.items())) if isinstance(ref, dict) and len(ref) == 1 else (None, None)
            if key in _MODEL_KEYS and isinstance(name, str):
                yield {"name": name}
            else:
                self.note(
                    (_MODELS, number), f"{_MODELS}: expected a list of {{model: NAME}}, got {ref!r:.80}."
                )
