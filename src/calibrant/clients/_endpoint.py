"""Endpoints of OpenAI-compatible servers: address, model name and key."""

from __future__ import annotations

import base64
import functools
import ipaddress
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from calibrant.clients._redact import identifying_address, public_address, redact, secret_texts
from calibrant.core._errors import ConfigurationError

OPENAI: Final = "https://api.openai.com/v1"
_CHAT: Final = "/chat/completions"
# Placeholders for the key of a server that needs none.
_NO_KEYS: Final = frozenset({"none", "empty", "dummy", "unused", "no-key", "not-needed"})
_LOG = logging.getLogger("calibrant")


class _Variables(NamedTuple):
    """Environment variables for the address and the key of a kind of server, the same as litellm's."""

    bases: tuple[str, ...] = ()
    key: str = ""
    default: str | None = None


_VARIABLES: Final = {
    "openai/": _Variables(("OPENAI_BASE_URL", "OPENAI_API_BASE"), "OPENAI_API_KEY", OPENAI),
    "hosted_vllm/": _Variables(("HOSTED_VLLM_API_BASE",), "HOSTED_VLLM_API_KEY"),
    "llamafile/": _Variables(("LLAMAFILE_API_BASE",), "LLAMAFILE_API_KEY", "http://127.0.0.1:8080/v1"),
    "lm_studio/": _Variables(("LM_STUDIO_API_BASE",), "LM_STUDIO_API_KEY"),
    "text-completion-openai/": _Variables(),
    # A name without one of the prefixes, with an api_base.
    "": _Variables(key="OPENAI_API_KEY"),
}

KNOWN_PREFIXES: Final = tuple(prefix for prefix in _VARIABLES if prefix)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Address, model name and credentials for a server.

    Attributes
    ----------
    model : str
        The model's name at the server.
    root : str
        The address without ``/v1``, credentials and query.
    query : str
        The end of every address: empty, or ``?...``.
    chat : tuple of str
        Addresses that chat requests may go to, the likeliest first.
    shown : str
        The address as messages show it: without credentials and unknown parameters.
    identity : str
        The address without credentials; unknown parameters stay, as digests, to tell one endpoint from another.
    key : str or None
        The key.
    authorization : str or None
        Value of the ``Authorization`` header.
    secrets : tuple of str
        Texts that must never be shown.
    is_openai : bool
        True for OpenAI's own server.
    """

    root: str
    shown: str
    secrets: tuple[str, ...]
    model: str = ""
    query: str = ""
    chat: tuple[str, ...] = ()
    identity: str = ""
    key: str | None = None
    authorization: str | None = None
    is_openai: bool = False


def resolve_endpoint(model: str, *, api_base: object = None, api_key: str | None = None) -> Endpoint:
    """Return the endpoint of `model`, from the arguments and from environment variables.

    Parameters
    ----------
    model : str
        The model's name, with one of `KNOWN_PREFIXES` or without.
    api_base : str, optional
        Address of the server, with or without ``/v1``; by default the address in the environment, and for
        ``openai/...`` OpenAI's own.
    api_key : str, optional
        By default the environment variable of the prefix.

    Raises
    ------
    ConfigurationError
        The address is missing or no HTTP address, the model has no name, or OpenAI's own server gets no key.
    """
    prefix = next((known for known in KNOWN_PREFIXES if model.startswith(known)), "")
    variables = _VARIABLES[prefix]
    name = model.removeprefix(prefix)
    if not name:
        raise ConfigurationError(f"Expected a model's name behind {prefix!r}, got {model!r}.")
    if api_base is None:
        api_base = _from_environment(variables, prefix)
    parts = _parts(api_base)
    root, chat = _routes(parts)
    query = f"?{parts.query}" if parts.query else ""
    host = parts.hostname or ""
    is_openai = host == "api.openai.com" or host.endswith(".api.openai.com")
    key = (api_key or os.environ.get(variables.key, "")).strip()
    authorization, secrets = _authorization(parts, key)
    if is_openai and authorization is None:
        variable = variables.key or "OPENAI_API_KEY"
        raise ConfigurationError(f"Expected a key for {model}: set {variable}, or the option api_key.")
    return Endpoint(
        model=name,
        root=root,
        query=query,
        chat=tuple(address + query for address in chat),
        shown=redact(public_address(str(api_base)), secrets=secrets),
        identity=identifying_address(str(api_base)),
        key=key or None,
        authorization=authorization,
        secrets=secrets,
        is_openai=is_openai,
    )


def server_address(model: str, api_base: str | None = None) -> str | None:
    """Return the address that calls of `model` go to, as it is set; None if only its library knows."""
    if api_base:
        return api_base
    prefix = next((known for known in KNOWN_PREFIXES if model.startswith(known)), "")
    if not prefix:
        return litellm_endpoint(model, {})
    variables = _VARIABLES[prefix]
    return next((os.environ[name] for name in variables.bases if os.environ.get(name)), variables.default)


def litellm_endpoint(model: str, options: Mapping[str, Any]) -> str | None:
    """Return the address litellm would use for `model`, without credentials; None if none is set."""
    prefix = model.partition("/")[0] if "/" in model else "openai"
    provider = prefix.upper().replace("-", "_")
    candidates = (
        options.get("api_base"),
        options.get("base_url"),
        os.environ.get(f"{provider}_BASE_URL"),
        os.environ.get(f"{provider}_API_BASE"),
    )
    address = next((str(candidate) for candidate in candidates if candidate), None)
    return None if address is None else identifying_address(address)


def warn_of_plain_http(address: str, secrets: Iterable[object]) -> None:
    """Log one warning for each remote host that gets a secret over unencrypted HTTP."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return
    sent = [
        secret for secret in secrets if isinstance(secret, str) and secret.strip().lower() not in _NO_KEYS
    ]
    if sent and parts.scheme == "http" and not is_loopback(address):
        _warn_of_plain_http(parts.netloc.rpartition("@")[2])


@functools.cache
def _warn_of_plain_http(host: str) -> None:
    _LOG.warning(
        "A key or another secret is sent to %s over plain http, which everybody on the way can read: use https, or a "
        "tunnel.",
        host,
    )


def is_loopback(url: str) -> bool:
    """Return True for an address of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _from_environment(variables: _Variables, prefix: str) -> str:
    address = next((os.environ[name] for name in variables.bases if os.environ.get(name)), variables.default)
    if address is not None:
        return address
    names = " or ".join(["the option api_base", *variables.bases])
    raise ConfigurationError(f"Expected the address of the server behind {prefix}NAME: set {names}.")


def is_http_address(address: str) -> bool:
    """Return True for an http or https address with a host and a legal port."""
    try:
        parts = urlsplit(address)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _parts(api_base: object) -> SplitResult:
    address = api_base.strip() if isinstance(api_base, str) else ""
    if not is_http_address(address):
        raise ConfigurationError(
            "Expected api_base to be an address such as http://localhost:8000/v1, got "
            f"{redact(public_address(repr(api_base)))}."
        )
    return urlsplit(address)


def _routes(parts: SplitResult) -> tuple[str, tuple[str, ...]]:
    """Return the server's root address and the possible addresses of chat requests, most likely first.

    Servers, and litellm, treat an address without ``/v1`` differently: without any path the ``/v1`` is nearly
    always missing, behind another path it may be.
    """
    path = parts.path.rstrip("/").removesuffix(_CHAT).rstrip("/")
    host = parts.netloc.rpartition("@")[2]
    address = urlunsplit((parts.scheme, host, path, "", ""))
    root = address.removesuffix("/v1").rstrip("/")
    if path.endswith("/v1"):
        return root, (root + "/v1" + _CHAT,)
    both = (root + "/v1" + _CHAT, root + _CHAT)
    return root, both[::-1] if path else both


def _authorization(parts: SplitResult, key: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the Authorization header and all secrets; credentials in the address take precedence."""
    secrets = [key, *secret_texts({"api_base": urlunsplit(parts)})]
    if parts.username is None:
        return (f"Bearer {key}" if key else None), tuple(filter(None, secrets))
    user, password = unquote(parts.username), unquote(parts.password or "")
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return f"Basic {token}", tuple(filter(None, [*secrets, token]))
