"""Settings of a model that is asked instead of a task's own."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from calibrant.clients._endpoint import server_address
from calibrant.clients._redact import ADDRESSES, public_address
from calibrant.core._settings import ModelSettings
from calibrant.inference._models import without_secrets

_LOG = logging.getLogger("calibrant")
_EMBEDDED: Final = ("local/", "llamacpp:", "fake/")
# Scoring that every model allows.
_ALLOWED: Final = frozenset({"auto", "fused", "verbalised", "sampled"})


def replaced_model(
    own: ModelSettings, name: str | None = None, *, api_base: str | None = None
) -> ModelSettings:
    """Return the settings of another model, or of the same model at another address.

    A name with the same provider replaces the name alone: address, options and scoring stay. For a model of another
    provider they are dropped, and a warning says which, and where the texts go. At another address, options that may
    hold credentials are dropped, as they belong to the first one.

    Parameters
    ----------
    own : ModelSettings
        The task's settings.
    name : str, optional
        The other model; by default the task's own.
    api_base : str, optional
        Address of its server, instead of the task's.
    """
    other = own.name if name is None else name
    if provider_of(other) == provider_of(own.name):
        found = own.model_copy(update={"name": other})
    else:
        # Of the way in which the task's model is scored, what every model allows.
        kept: dict[str, Any] = (
            {"scoring": own.scoring, "samples": own.samples} if own.scoring in _ALLOWED else {}
        )
        found = ModelSettings(name=other, **kept)
    if api_base is not None:
        options = {key: value for key, value in found.options.items() if key not in ADDRESSES}
        is_same_place = _host_of(own) == urlsplit(api_base).netloc
        options = options if is_same_place else without_secrets(options)[0]
        found = found.model_copy(update={"api_base": api_base, "options": options})
    _tell(own.name, other, _dropped(own, found), _place_of(own), _place_of(found))
    return found


def provider_of(name: str) -> str:
    """Return the provider in a model's name, which stands before the first slash; empty if there is none."""
    if name.startswith(_EMBEDDED):
        return "embedded"
    provider, slash, _ = name.partition("/")
    return provider if slash else ""


def _dropped(own: ModelSettings, found: ModelSettings) -> tuple[str, ...]:
    """Return the names of the task's settings that another model does not get."""
    names = [] if found.api_base is not None or own.api_base is None else ["api_base"]
    names += [name for name in ("space", "tolerance") if getattr(own, name) != getattr(found, name)]
    if own.scoring != found.scoring:
        names.append("scoring")
    gone = [name for name in own.options if name not in found.options and name not in ADDRESSES]
    return (*names, *(f"options.{name}" for name in gone))


def _host_of(own: ModelSettings) -> str:
    address = _address_of(own)
    return "" if address is None else urlsplit(address).netloc


def _address_of(own: ModelSettings) -> str | None:
    address = own.api_base or next((own.options[name] for name in ADDRESSES if own.options.get(name)), None)
    return server_address(own.name, None if address is None else str(address))


def _place_of(own: ModelSettings) -> str:
    """Return the host or provider that gets a model's texts; empty if they stay here."""
    provider = provider_of(own.name)
    if provider == "embedded":
        return ""
    address = _address_of(own)
    if address is None:
        return provider or "litellm's provider of that name"
    return urlsplit(public_address(address)).netloc or public_address(address)


@cache
def _tell(own: str, other: str, dropped: tuple[str, ...], before: str, now: str) -> None:
    """Log one line that says what is dropped, and where the texts go if that is another place."""
    if not dropped and before == now:
        return
    lost = f" without {', '.join(dropped)} of the task," if dropped else ""
    where = f"the texts go to {now}" if now else "the texts stay on this machine"
    _LOG.warning("%s is asked instead of %s:%s %s.", other, own, lost, where)
