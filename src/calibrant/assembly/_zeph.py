"""Zeph's ``[llm]`` configuration, read as routing settings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import pydantic

from calibrant.core._errors import ConfigurationError
from calibrant.core._sections import describe_problem, line_of
from calibrant.routing._settings import (
    BanditSettings,
    CascadeRoutingSettings,
    CoherenceSettings,
    RoutingSettings,
)

_Location: TypeAlias = tuple[str | int, ...]
_Problem: TypeAlias = tuple[_Location, str]

OWN_KEYS: Final = ("state", "thompson_decay", "cooldown_seconds", "allowed_failures", "call_seconds")
"""What Zeph has no key for, and a task file may say beside ``[routing] file``."""

# How litellm calls a provider of each type.
_PREFIXES: Final = {
    "claude": "anthropic/",
    "compatible": "openai/",
    "gemini": "gemini/",
    "ollama": "ollama/",
    "openai": "openai/",
}
_PROVIDER: Final = ("name", "type", "model", "embed", "base_url", "max_tokens")
_SAME: Final = (
    "quality_gate",
    "router_ema_enabled",
    "router_ema_alpha",
    "router_reorder_interval",
    "thompson_state_path",
    "bandit_state_path",
)
_LLM: Final = ("routing", *_SAME, "summary_model", "cascade", "complexity_routing", "router", "providers")
_CASCADE: Final = tuple(name for name in CascadeRoutingSettings.model_fields if name != "judge_provider")
# The page writes [llm.routing.asi] and [llm.router.bandit]: TOML holds the first only where `routing` is no text.
_ROUTER: Final = ("bandit", "asi", "quality_gate")
_TRIAGE: Final = {
    "triage_provider": "triage_provider",
    "tiers": "tiers",
    "triage_timeout_secs": "timeout_seconds",
}
_TIERS: Final = ("simple", "medium", "complex", "expert")


def read_zeph(path: str | Path) -> RoutingSettings:
    """Read the ``[llm]`` section of a configuration of Zeph; its other sections are not looked at.

    ``[[llm.providers]]`` become providers called as litellm does: a ``type`` of ``claude`` is ``anthropic/MODEL``.
    A provider with ``embed = true`` embeds texts where no ``embedding_provider`` is named; without any, texts are
    hashed. ``summary_model`` names the provider that judges answers. Files of state are relative to the file.

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
    """
    path = Path(path)
    text = _read_text(path)
    converter = _Converter(_llm_of(text, path))
    settings = None
    try:
        settings = RoutingSettings.model_validate(converter.values)
    except pydantic.ValidationError as error:
        if not converter.problems:  # a missing key may be an unknown one, misspelt
            for item in error.errors():
                location = converter.origin(item["loc"])
                converter.problems.append(
                    (location, describe_problem({**item, "loc": location}, RoutingSettings))
                )
    if converter.problems or settings is None:
        lines = sorted((line_of(text, location), problem) for location, problem in converter.problems)
        raise ConfigurationError("\n".join(f"{path}:{line}: {problem}" for line, problem in lines))
    return settings.beside(path.parent.absolute())


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise ConfigurationError(
            f"{path}: no such file: expected a configuration of Zeph with an [llm] section (paths in a task file are "
            "relative to it)."
        )
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(
            f"{path}:{line}: expected UTF-8 text, got the byte 0x{data[error.start]:02x}: save the file as UTF-8."
        ) from error


def _llm_of(text: str, path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(text).get("llm")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        place = re.search(r"at line (\d+)", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        if "overwrite" in str(error) and re.search(r"^\s*\[llm\.routing[.\]]", text, re.MULTILINE):
            raise ConfigurationError(
                f"{path}:{line}: TOML cannot hold routing = ... under [llm] and a table [llm.routing]: write "
                "[llm.router.asi] for [llm.routing.asi], and quality_gate under [llm]."
            ) from error
        raise ConfigurationError(f"{path}:{line}: not valid TOML: {error}.") from error
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"{path}:1: expected an [llm] section, got none: name a configuration of Zeph."
        )
    return found


class _Converter:
    """Converts Zeph's keys to routing settings, and keeps the line of each.

    Parameters
    ----------
    llm : mapping
        The ``[llm]`` section.

    Attributes
    ----------
    values : dict
        Arguments of `RoutingSettings`.
    problems : list of (location, str)
        Unknown keys, and values of another kind.
    """

    def __init__(self, llm: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {}
        self.problems: list[_Problem] = []
        self._places: dict[_Location, _Location] = {}
        table_of_routing = isinstance(llm.get("routing"), dict)
        for key, value in self._known_settings(llm, ("llm",), _LLM):
            if key == "providers":
                self._take_providers(value)
            elif key == "cascade":
                self._take_table(value, ("llm", key), ("cascade",), {name: name for name in _CASCADE})
            elif key == "complexity_routing":
                self._take_table(value, ("llm", key), ("triage",), _TRIAGE)
            elif key == "router" or (key == "routing" and table_of_routing):
                self._take_router(value, ("llm", key))
            elif key == "summary_model":
                self._set(("cascade", "judge_provider"), value, ("llm", key))
            else:
                self._set((key,), value, ("llm", key))

    def origin(self, location: _Location) -> _Location:
        """Return the place in the file that the setting at a location comes from."""
        for length in range(len(location), 0, -1):
            if location[:length] in self._places:
                return (*self._places[location[:length]], *location[length:])
        return ("llm", *location)

    def _set(self, location: _Location, value: object, place: _Location) -> None:
        table = self.values
        for name in location[:-1]:
            table = table.setdefault(str(name), {})
        if location[-1] in table:
            self.problems.append((place, f"{place[-1]}: expected it once, got it twice: keep one."))
        table[str(location[-1])] = value
        self._places[location] = place

    def _known_settings(
        self, table: object, place: _Location, keys: tuple[str, ...]
    ) -> Iterator[tuple[str, Any]]:
        """Yield the known settings of a table, and note the unknown ones."""
        where = ".".join(name for name in place if isinstance(name, str))
        if not isinstance(table, dict):
            self.problems.append((place, f"{where}: expected a table, got {table!r:.80}."))
            return
        for key, value in table.items():
            if key in keys:
                yield key, value
            else:
                self.problems.append(
                    ((*place, key), f"unknown key '{where}.{key}': expected one of {', '.join(keys)}.")
                )

    def _take_table(self, table: object, place: _Location, to: _Location, keys: Mapping[str, str]) -> None:
        self._places[to] = place
        for key, value in self._known_settings(table, place, tuple(keys)):
            if key == "tiers":
                self._take_table(value, (*place, key), (*to, key), {tier: tier for tier in _TIERS})
            else:
                self._set((*to, keys[key]), value, (*place, key))

    def _take_router(self, table: object, place: _Location) -> None:
        for key, value in self._known_settings(table, place, _ROUTER):
            own = (*place, key)
            if key == "bandit":
                self._take_table(
                    value, own, ("bandit",), {name: name for name in BanditSettings.model_fields}
                )
            elif key == "asi":
                names = {name: name for name in CoherenceSettings.model_fields}
                self._take_table(value, own, ("coherence",), names)
            else:
                self._set((key,), value, own)

    def _take_providers(self, entries: object) -> None:
        if not isinstance(entries, list):
            self.problems.append((("llm", "providers"), "expected [[llm.providers]], got something else."))
            return
        found = self.values["providers"] = []
        self._places[("providers",)] = ("llm", "providers")
        for number, entry in enumerate(entries):
            place = ("llm", "providers", number)
            known = dict(self._known_settings(entry, place, _PROVIDER))
            found.append(self._provider(known, place))
            self._places[("providers", number, "name")] = (*place, "model")
            self._places[("providers", number, "alias")] = (*place, "name")
            if known.get("embed") is True:
                self.values.setdefault("embedding_provider", found[-1].get("alias", found[-1]["name"]))

    def _provider(self, entry: Mapping[str, Any], place: _Location) -> dict[str, Any]:
        """Return an entry of ``[[routing.providers]]``."""
        for key in ("type", "model"):
            if not isinstance(entry.get(key), str) or (key == "type" and entry[key] not in _PREFIXES):
                kinds = f"one of {', '.join(_PREFIXES)}" if key == "type" else "the name of a model"
                self.problems.append(((*place, key), f"{key}: expected {kinds}, got {entry.get(key)!r:.80}."))
        if not isinstance(entry.get("embed", False), bool):
            self.problems.append(
                ((*place, "embed"), f"embed: expected true or false, got {entry['embed']!r:.80}.")
            )
        found = {"name": _PREFIXES.get(str(entry.get("type")), "") + str(entry.get("model"))}
        given = {"alias": entry.get("name"), "api_base": entry.get("base_url")}
        options = {"max_tokens": entry["max_tokens"]} if "max_tokens" in entry else None
        return found | {
            key: value for key, value in {**given, "options": options}.items() if value is not None
        }
