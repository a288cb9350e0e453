"""Zeph's ``[llm]`` configuration, read as routing settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import pydantic

from calibrant.assembly._sections import read_settings_file
from calibrant.core._errors import ConfigurationError
from calibrant.core._sections import Problem, describe_problem, line_of, parse_toml
from calibrant.routing._settings import (
    BanditSettings,
    CascadeRoutingSettings,
    CoherenceSettings,
    RoutingSettings,
)

_Location: TypeAlias = tuple[str | int, ...]

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
_PROVIDER: Final = ("name", "type", "model", "embed", "base_url", "max_tokens")


def _router_keys(table: str) -> dict[str, str]:
    keys = {f"{table}.bandit.{name}": f"bandit.{name}" for name in BanditSettings.model_fields}
    keys |= {f"{table}.asi.{name}": f"coherence.{name}" for name in CoherenceSettings.model_fields}
    return keys | {f"{table}.quality_gate": "quality_gate"}


# Zeph's keys under [llm], and ours under [routing].
_KEYS: Final[Mapping[str, str]] = {
    "routing": "routing",
    "quality_gate": "quality_gate",
    "router_ema_enabled": "router_ema_enabled",
    "router_ema_alpha": "router_ema_alpha",
    "router_reorder_interval": "router_reorder_interval",
    "thompson_state_path": "thompson_state_path",
    "bandit_state_path": "bandit_state_path",
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
    text = read_settings_file(path, "a configuration of Zeph with an [llm] section")
    converter = _Converter()
    converter.take(_llm_table(text, path), "")
    settings = None
    try:
        settings = RoutingSettings.model_validate(converter.values)
    except pydantic.ValidationError as error:
        if not converter.problems:  # a missing key may be an unknown one, misspelt
            for item in error.errors():
                location = converter.origin(item["loc"])
                problem = describe_problem({**item, "loc": location}, RoutingSettings)
                converter.problems.append((location, problem))
    if converter.problems or settings is None:
        lines = sorted((line_of(text, location), problem) for location, problem in converter.problems)
        raise ConfigurationError("\n".join(f"{path}:{line}: {problem}" for line, problem in lines))
    return settings.beside(path.parent.absolute())


def _llm_table(text: str, path: Path) -> dict[str, Any]:
    try:
        table = parse_toml(text, path).get("llm")
    except ConfigurationError as error:
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


class _Converter:
    """Converter of Zeph's keys to routing settings, with the origin of each.

    Attributes
    ----------
    values : dict
        Arguments of `RoutingSettings`.
    problems : list of (location, str)
        Unknown keys, and values of another kind.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.problems: list[Problem] = []
        self._places: dict[_Location, _Location] = {}

    def origin(self, location: _Location) -> _Location:
        """Return the origin in the file of the setting at a location."""
        for length in range(len(location), 0, -1):
            if location[:length] in self._places:
                return (*self._places[location[:length]], *location[length:])
        return ("llm", *location)

    def take(self, table: object, prefix: str) -> None:
        """Take the settings of a table, whose keys begin with `prefix`, and of the tables in it."""
        place = ("llm", *prefix.split(".")[:-1])
        names = tuple(
            dict.fromkeys(
                key.removeprefix(prefix).partition(".")[0] for key in _KEYS if key.startswith(prefix)
            )
        )
        for name, value in self._known_settings(table, place, names).items():
            key = prefix + name
            is_table = any(other.startswith(f"{key}.") for other in _KEYS)
            if key == "providers":
                self._take_providers(value)
            elif is_table and (isinstance(value, dict) or key not in _KEYS):
                self.take(value, f"{key}.")
            else:
                self._set(tuple(_KEYS[key].split(".")), value, (*place, name))

    def _set(self, location: _Location, value: object, place: _Location) -> None:
        table = self.values
        for length, name in enumerate(location[:-1], 1):
            table = table.setdefault(str(name), {})
            # So that a missing key has the line of its table.
            self._places.setdefault(location[:length], place[: length - len(location)])
        if location[-1] in table:
            self.problems.append((place, f"{place[-1]}: expected it once, got it twice: keep one."))
        table[str(location[-1])] = value
        self._places[location] = place

    def _known_settings(self, table: object, place: _Location, names: tuple[str, ...]) -> dict[str, Any]:
        """Return the known settings of a table; record unknown keys as problems."""
        where = ".".join(name for name in place if isinstance(name, str))
        if not isinstance(table, dict):
            self.problems.append((place, f"{where}: expected a table, got {table!r:.80}."))
            return {}
        for name in table:
            if name not in names:
                problem = f"unknown key '{where}.{name}': expected one of {', '.join(names)}."
                self.problems.append(((*place, name), problem))
        return {name: value for name, value in table.items() if name in names}

    def _take_providers(self, entries: object) -> None:
        place: _Location = ("llm", "providers")
        if not isinstance(entries, list):
            self.problems.append((place, "expected [[llm.providers]], got something else."))
            return
        providers = self.values["providers"] = []
        self._places["providers",] = place
        for number, entry in enumerate(entries):
            settings = self._known_settings(entry, (*place, number), _PROVIDER)
            provider = self._provider(settings, (*place, number))
            providers.append(provider)
            self._places["providers", number, "name"] = (*place, number, "model")
            self._places["providers", number, "alias"] = (*place, number, "name")
            if settings.get("embed") is True:
                self.values.setdefault("embedding_provider", provider.get("alias", provider["name"]))

    def _provider(self, entry: Mapping[str, Any], place: _Location) -> dict[str, Any]:
        """Return an entry of ``[[routing.providers]]``."""
        kind, model, embed = entry.get("type"), entry.get("model"), entry.get("embed", False)
        for key, legal, expected in (
            ("type", isinstance(kind, str) and kind in _PREFIXES, f"one of {', '.join(_PREFIXES)}"),
            ("model", isinstance(model, str), "the name of a model"),
            ("embed", isinstance(embed, bool), "true or false"),
        ):
            if not legal:
                self.problems.append(
                    ((*place, key), f"{key}: expected {expected}, got {entry.get(key)!r:.80}.")
                )
        provider = {"name": f"{_PREFIXES.get(str(kind), '')}{model}"}
        optional = {
            "alias": entry.get("name"),
            "api_base": entry.get("base_url"),
            "options": {"max_tokens": entry["max_tokens"]} if "max_tokens" in entry else None,
        }
        return provider | {key: value for key, value in optional.items() if value is not None}
