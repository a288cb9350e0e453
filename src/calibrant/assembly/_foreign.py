"""Readers of other programs' configurations: vLLM Semantic Router's confidence looper, and Zeph."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import pydantic

from calibrant.cascade._methods import LOOPER_KEYS, METHODS, CascadeSettings, methods_with
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import JsonObject
from calibrant.core._reported import without_none
from calibrant.core._settings import Section, describe_problem, line_of, parse_toml, read_text
from calibrant.routing._settings import (
    BanditSettings,
    CascadeRoutingSettings,
    CoherenceSettings,
    RoutingSettings,
)

_LOG = logging.getLogger("calibrant")

_Location: TypeAlias = tuple[str | int, ...]
_Settings = TypeVar("_Settings", bound=Section)

# Keys of the looper, and ours under [cascade]: the page documents the whole nesting, a fragment may hold the inner
# keys alone.
_LOOPER_KEYS: Final[Mapping[str, str]] = {
    "modelRefs": "models",
    "algorithm.type": "type",
    **{f"algorithm.confidence.{key}": key for key in LOOPER_KEYS},
    "algorithm.on_error": "on_error",
    "type": "type",
    **{f"confidence.{key}": key for key in LOOPER_KEYS},
    **{key: key for key in LOOPER_KEYS},
}
_SEE_LOOPER: Final = "see the documentation of the confidence looper."
_SEE_ZEPH: Final = "see Zeph's documentation of adaptive inference."

OWN_KEYS: Final = ("state", "thompson_decay", "cooldown_seconds", "allowed_failures", "call_seconds")
"""Keys that Zeph does not have, and a task file may say beside ``[routing] file``."""

# How litellm calls a provider of each type.
_PREFIXES: Final = {
    "claude": "anthropic/",
    "compatible": "openai/",
    "gemini": "gemini/",
    "ollama": "ollama/",
    "openai": "openai/",
}
_PROVIDER: Final = ("name", "type", "model", "embed", "embedding_model", "base_url", "max_tokens")


def _router_keys(table: str) -> dict[str, str]:
    keys = {f"{table}.bandit.{name}": f"bandit.{name}" for name in BanditSettings.model_fields}
    keys |= {f"{table}.asi.{name}": f"coherence.{name}" for name in CoherenceSettings.model_fields}
    return keys | {f"{table}.quality_gate": "quality_gate"}


_EQUAL_KEYS: Final = (
    "routing quality_gate router_ema_enabled router_ema_alpha router_reorder_interval thompson_state_path "
    "bandit_state_path"
)
# Zeph's keys under [llm], and ours under [routing].
_ZEPH_KEYS: Final[Mapping[str, str]] = {
    **{key: key for key in _EQUAL_KEYS.split()},
    "summary_model": "cascade.judge_provider",
    **{
        f"cascade.{name}": f"cascade.{name}"
        for name in CascadeRoutingSettings.model_fields
        if name != "judge_provider"
    },
    "complexity_routing.triage_provider": "triage.triage_provider",
    "complexity_routing.triage_timeout_secs": "triage.timeout_seconds",
    **{
        f"complexity_routing.tiers.{tier}": f"triage.tiers.{tier}"
        for tier in ("simple", "medium", "complex", "expert")
    },
    **_router_keys("router"),
    # The page writes [llm.routing.asi], too: TOML holds it only where `routing` is no text.
    **_router_keys("routing"),
    "providers": "providers",
}


def read_looper(path: str | Path) -> CascadeSettings:
    r"""Read the YAML file of a confidence looper as cascade settings.

    The file holds ``algorithm: {type: confidence, confidence: {...}}``, or its inner keys alone.

    The keys mean what they mean under ``[cascade]``, save that a negative ``threshold`` for
    ``avg_logprob`` is a mean natural log-probability, and that ``hybrid_weights`` beside another method
    are ignored, with a warning. ``modelRefs`` name models. A key without a value
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

    Examples
    --------
    >>> from pathlib import Path
    >>> from calibrant.assembly import read_looper
    >>> text = "algorithm: {type: confidence, confidence: {confidence_method: margin, threshold: 0.8}}"
    >>> _ = Path("looper.yaml").write_text(text)
    >>> settings = read_looper("looper.yaml")
    >>> settings.confidence_method, settings.threshold
    ('margin', 0.8)
    """
    path = Path(path)
    lines = _YamlLines()
    reader = _Reader(path, _LOOPER_KEYS, lines.line_of, kind="mapping", page=_SEE_LOOPER)
    content = lines.parse(_read_file(path, "a confidence looper's YAML"), reader)
    reader.refuse()  # before the values are looked at: an alias may be anything
    reader.take(content)
    values = reader.values
    algorithm = values.pop("type", "confidence")
    if algorithm != "confidence":
        problem = f"type: expected 'confidence', got {algorithm!r:.80}: read another file."
        reader.note(reader.origin(("type",)), problem)
    if "models" in values:
        values["models"] = list(_looper_models(values["models"], reader))
    method = values.get("confidence_method", "avg_logprob")
    is_other = method in METHODS and method not in methods_with("hybrid_weights")
    if is_other and values.pop("hybrid_weights", None) is not None:
        line = lines.line_of(reader.origin(("hybrid_weights",)))
        _LOG.warning("%s:%d: hybrid_weights are not used with confidence_method %r.", path, line, method)
    threshold = values.get("threshold")
    negative = isinstance(threshold, int | float) and -math.inf < threshold < 0
    if negative and method == "avg_logprob":
        values["native_threshold"] = values.pop("threshold")
        reader.origins["native_threshold",] = reader.origins["threshold",]
    return reader.validated(CascadeSettings)


def _looper_models(refs: object, reader: _Reader) -> Iterator[dict[str, str]]:
    """Yield the looper's models as entries of ``[[cascade.models]]``."""
    for number, ref in enumerate(refs if isinstance(refs, list) else [refs]):
        key = None
        name = None
        if isinstance(ref, dict) and len(ref) == 1:
            ((key, name),) = ref.items()
        if key in {"model", "modelName"} and isinstance(name, str):
            yield {"name": name}
        else:
            problem = f"modelRefs: expected a list of {{model: NAME}}, got {ref!r:.80}."
            reader.note(("modelRefs", number), problem)


def read_zeph(path: str | Path) -> RoutingSettings:
    """Read the ``[llm]`` section of a Zeph configuration as routing settings; ignore other sections.

    ``[[llm.providers]]`` become providers called as litellm does: a ``type`` of ``claude`` is ``anthropic/MODEL``.
    A provider with ``embed = true`` embeds texts where no ``embedding_provider`` is named, with its
    ``embedding_model``; without any, texts are hashed. ``summary_model`` names the provider that judges
    answers. Files of state are relative to the file.

    Parameters
    ----------
    path : str or Path
        A TOML file.

    Returns
    -------
    RoutingSettings
        With Zeph's values, and calibrant's defaults, which are those that Zeph documents.

    Raises
    ------
    ConfigurationError
        There is no such file, it is no TOML, or a key is unknown or wrong; names file and line.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant.assembly import read_zeph
    >>> path = Path(tempfile.mkdtemp()) / "zeph.toml"
    >>> provider = '{name = "fast", type = "claude", model = "claude-haiku-4-5"}'
    >>> _ = path.write_text(f'llm = {{routing = "ema", router_ema_alpha = 0.2, providers = [{provider}]}}')
    >>> settings = read_zeph(path)
    >>> settings.router_ema_alpha, settings.providers[0].alias, settings.providers[0].name
    (0.2, 'fast', 'anthropic/claude-haiku-4-5')
    """
    path = Path(path)
    text = _read_file(path, "a configuration of Zeph with an [llm] section")
    reader = _Reader(path, _ZEPH_KEYS, partial(line_of, text), kind="table", page=_SEE_ZEPH, root=("llm",))
    reader.take(_llm_table(text, path))
    if "providers" in reader.values:
        reader.values["providers"] = list(_zeph_providers(reader.values["providers"], reader))
    strategy = reader.values.get("strategy")
    if strategy == "triage" and "triage" not in reader.values:
        problem = "expected [llm.complexity_routing] with triage_provider and tiers for routing = 'triage', got none."
        reader.note(("llm", "routing"), problem)
    if strategy == "task":
        problem = "expected no 'task', as this file has no tasks: write providers and tasks under [routing] of a task."
        reader.note(("llm", "routing"), problem)
    return reader.validated(RoutingSettings).beside(path.parent.absolute())


def _read_file(path: Path, expected: str) -> str:
    missing = f"{path}: no such file: expected {expected} (paths in a task file are relative to it)."
    return read_text(path, missing)


def _llm_table(text: str, path: Path) -> JsonObject:
    try:
        table = parse_toml(text, path).get("llm")
    except ConfigurationError as error:
        # tomllib has one type of error, which holds nothing but words.
        if "overwrite" in str(error) and re.search(r"^\s*\[llm\.routing[.\]]", text, re.MULTILINE):
            place = str(error).partition(": ")[0]
            raise ConfigurationError(
                f"{place}: TOML cannot hold routing = ... under [llm] and a table [llm.routing]: write "
                "[llm.router.asi] for [llm.routing.asi], and quality_gate under [llm]."
            ) from error
        raise
    if not isinstance(table, dict):
        raise ConfigurationError(
            f"{path}:1: expected an [llm] section, got none: name a configuration of Zeph."
        )
    return table


def _zeph_providers(entries: object, reader: _Reader) -> Iterator[JsonObject]:
    """Yield Zeph's providers as entries of ``[[routing.providers]]``."""
    if not isinstance(entries, list):
        reader.note(("llm", "providers"), "expected [[llm.providers]], got something else.")
        return
    for number, table in enumerate(entries):
        place: _Location = ("llm", "providers", number)
        entry = reader.known_values(table, place, _PROVIDER)
        _check_provider(entry, place, reader)
        prefix = _PREFIXES.get(str(entry.get("type")), "")
        name = f"{prefix}{entry.get('model')}"
        embedding_model = entry.get("embedding_model")
        optional = {
            "alias": entry.get("name"),
            "api_base": entry.get("base_url"),
            "embedding_model": None if embedding_model is None else f"{prefix}{embedding_model}",
            "options": {"max_tokens": entry["max_tokens"]} if "max_tokens" in entry else None,
        }
        reader.origins["providers", number, "name"] = (*place, "model")
        reader.origins["providers", number, "alias"] = (*place, "name")
        if entry.get("embed") is True:
            reader.values.setdefault("embedding_provider", entry.get("name", name))
        yield {"name": name, **without_none(optional)}


def _check_provider(entry: Mapping[str, Any], place: _Location, reader: _Reader) -> None:
    """Record the values of a provider's entry that are of the wrong type."""
    kind = entry.get("type")
    for key, legal, expected in (
        ("type", isinstance(kind, str) and kind in _PREFIXES, f"one of {', '.join(_PREFIXES)}"),
        ("model", isinstance(entry.get("model"), str), "the name of a model"),
        ("embed", isinstance(entry.get("embed", False), bool), "true or false"),
        (
            "embedding_model",
            isinstance(entry.get("embedding_model", ""), str),
            "the name of a model of embeddings",
        ),
    ):
        if not legal:
            reader.note((*place, key), f"{key}: expected {expected}, got {entry.get(key)!r:.80}.")


@dataclass(eq=False)
class _Reader:
    """Converter of a configuration's keys to settings, which records their locations and all problems.

    Attributes
    ----------
    path : Path
        The file, for messages.
    keys : mapping of str to str
        Dotted names of our settings by dotted key of the file.
    line_of : callable
        Returns the line of a location in the file.
    kind, page : str
        The file's word for a table, and where its keys are documented.
    root : tuple of str
        Location of the keys in the file; messages then have the file's names.
    """

    path: Path
    keys: Mapping[str, str]
    line_of: Callable[[_Location], int]
    _: KW_ONLY
    kind: str
    page: str
    root: tuple[str, ...] = ()
    values: JsonObject = field(default_factory=dict, init=False)
    origins: dict[_Location, _Location] = field(default_factory=dict, init=False)
    _problems: list[tuple[int, str]] = field(default_factory=list, init=False)

    def note(self, at: _Location, problem: str) -> None:
        """Record a problem at a location."""
        self._problems.append((self.line_of(at), problem))

    def refuse(self) -> None:
        """Raise ConfigurationError if problems were recorded."""
        if self._problems:
            lines = [f"{self.path}:{line}: {problem}" for line, problem in sorted(self._problems)]
            raise ConfigurationError("\n".join(lines))

    def origin(self, location: _Location) -> _Location:
        """Return the location in the file that a setting was read from."""
        for length in range(len(location), 0, -1):
            if location[:length] in self.origins:
                return (*self.origins[location[:length]], *location[length:])
        return (*self.root, *location)

    def known_values(self, table: object, place: _Location, names: Collection[str]) -> JsonObject:
        """Return the known values of a table; record unknown keys as problems."""
        where = ".".join(name for name in place if isinstance(name, str))
        if not isinstance(table, dict):
            self.note(
                place,
                f"{where or 'the configuration'}: expected a {self.kind}, got {table!r:.80}: {self.page}",
            )
            return {}
        for name in table.keys() - names:
            key = ".".join(filter(None, (where, str(name))))
            self.note((*place, name), f"unknown key {key!r}: expected one of {', '.join(names)}.")
        # A YAML key without a value counts as left out.
        return {name: value for name, value in table.items() if name in names and value is not None}

    def take(self, table: object, prefix: str = "") -> None:
        """Read the settings of a table and of the tables in it; `prefix` begins their keys."""
        place = (*self.root, *prefix.split(".")[:-1])
        inner = (key.removeprefix(prefix) for key in self.keys if key.startswith(prefix))
        known = dict.fromkeys(key.partition(".")[0] for key in inner)
        for name, value in self.known_values(table, place, known).items():
            key = prefix + name
            is_table = any(other.startswith(f"{key}.") for other in self.keys)
            if is_table and (isinstance(value, dict) or key not in self.keys):
                self.take(value, f"{key}.")
            else:
                location = tuple(self.keys[key].split("."))
                self._set(location, value, (*place, name))

    def _set(self, location: _Location, value: object, place: _Location) -> None:
        table = self.values
        for length, name in enumerate(location[:-1], 1):
            table = table.setdefault(str(name), {})
            # So that a missing key has the line of its table.
            self.origins.setdefault(location[:length], place[: length - len(location)])
        if table.get(str(location[-1])) == value == "confidence":
            pass  # the type may stand at both places
        elif location[-1] in table:
            self.note(place, f"{place[-1]}: expected it once, got it twice: keep one.")
        table[str(location[-1])] = value
        self.origins[location] = place

    def validated(self, kind: type[_Settings]) -> _Settings:
        """Return the validated settings; raise ConfigurationError for problems, recorded ones first."""
        self.refuse()
        try:
            return kind.model_validate(self.values)
        except pydantic.ValidationError as error:
            for item in error.errors():
                place = self.origin(item["loc"])
                self.note(place, describe_problem({**item, "loc": place if self.root else item["loc"]}, kind))
            self.refuse()
            raise


class _YamlLines:
    """Line numbers of the values in a YAML file."""

    def __init__(self) -> None:
        self._lines: dict[_Location, int] = {(): 1}
        self._seen: set[int] = set()

    def line_of(self, at: _Location) -> int:
        """Return the line number of a location, or else of the nearest enclosing value."""
        while at not in self._lines:
            at = at[:-1]
        return self._lines[at]

    def parse(self, text: str, reader: _Reader) -> object:
        """Parse the content into plain values, and record the line of each."""
        import yaml  # noqa: PLC0415  (heavy)

        try:
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            if root is None:
                return None
            return self._plain(root, (), loader, reader)
        except RecursionError:
            reader.note((), "expected a few levels of mappings, got very many.")
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            self._lines[()] = 1 if mark is None else mark.line + 1
            reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
            reader.note((), f"not valid YAML: {reason}.")
        return None

    def _plain(self, node: Any, at: _Location, loader: Any, reader: _Reader) -> Any:  # noqa: ANN401 (untyped)
        self._lines.setdefault(at, node.start_mark.line + 1)
        if node.id == "scalar":
            value = _scalar(node, loader)
            if not isinstance(value, str | bool | int | float | None):
                reader.note(at, f"expected text or a number, got {node.value!r:.80}: {_SEE_LOOPER}")
            return value
        if id(node) in self._seen:
            reader.note(at, f"expected every value to be written out, got an alias: {_SEE_LOOPER}")
            return None
        self._seen.add(id(node))
        if node.id == "sequence":
            return [self._plain(entry, (*at, n), loader, reader) for n, entry in enumerate(node.value)]
        values: JsonObject = {}
        for key, value in node.value:
            name = str(key.value)
            place = (*at, name)
            self._lines[place] = key.start_mark.line + 1
            if name in values:
                reader.note(place, f"{name}: expected it once, got it twice: {_SEE_LOOPER}")
            values[name] = self._plain(value, place, loader, reader)
        return values


def _scalar(node: Any, loader: Any) -> object:  # noqa: ANN401 (PyYAML has no types)
    """Return the value of a scalar node, also of numbers such as 1e-1, which PyYAML takes for text."""
    try:
        value = loader.construct_object(node)
        return float(value) if isinstance(value, str) and node.style is None else value
    except ValueError:  # text, or an impossible date
        return node.value if node.tag.endswith(":str") else node
