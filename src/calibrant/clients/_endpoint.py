"""Endpoints of OpenAI-compatible servers, and redaction of their credentials in messages and recorded settings.

The name of a setting does not reveal whether its text is a credential. So redaction uses an allowlist: known harmless
texts may be shown, and every other text in a header, an option or a parameter of an address is hidden.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import ipaddress
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qsl, quote, quote_plus, unquote, urlencode, urlsplit, urlunsplit

from calibrant.core._errors import ConfigurationError

OPENAI: Final = "https://api.openai.com/v1"
_CHAT: Final = "/chat/completions"
# Placeholders for the key of a server that needs none.
_NO_KEYS: Final = frozenset({"none", "empty", "dummy", "unused", "no-key", "not-needed"})
_LOG = logging.getLogger("calibrant")


Options: TypeAlias = Mapping[str, Any]
"""Options of a model, by name."""


class _Variables(NamedTuple):
    """Environment variables for the address and the key of a kind of server, the same as litellm's."""

    bases: tuple[str, ...] = ()
    key: str = ""
    default: str | None = None

    @property
    def address(self) -> str | None:
        """The address that the environment names, or the default."""
        return next(filter(None, map(os.environ.get, self.bases)), self.default)


_VARIABLES: Final = {
    "openai/": _Variables(("OPENAI_BASE_URL", "OPENAI_API_BASE"), "OPENAI_API_KEY", OPENAI),
    "hosted_vllm/": _Variables(("HOSTED_VLLM_API_BASE",), "HOSTED_VLLM_API_KEY"),
    "llamafile/": _Variables(("LLAMAFILE_API_BASE",), "LLAMAFILE_API_KEY", "http://127.0.0.1:8080/v1"),
    "lm_studio/": _Variables(("LM_STUDIO_API_BASE",), "LM_STUDIO_API_KEY"),
    "text-completion-openai/": _Variables(),
    # A name without one of the prefixes, with an api_base.
    "": _Variables(key="OPENAI_API_KEY"),
}

# Providers whose key litellm reads from NAME_API_KEY.
_LITELLM_KEYS: Final = ("anthropic", "deepseek", "gemini", "groq", "mistral", "openrouter", "xai")
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
    prefix = _prefix_of(model)
    variables = _VARIABLES[prefix]
    name = model.removeprefix(prefix)
    if not name:
        raise ConfigurationError(f"Expected a model's name behind {prefix!r}, got {model!r}.")
    if api_base is None:
        api_base = variables.address
    if api_base is None:
        names = " or ".join(["the option api_base", *variables.bases])
        raise ConfigurationError(f"Expected the address of the server behind {prefix}NAME: set {names}.")
    parts = _parts(api_base)
    root, chat = _routes(parts)
    query = f"?{parts.query}" if parts.query else ""
    host = parts.hostname or ""
    is_openai = is_openai_host(host)
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
    prefix = _prefix_of(model)
    if prefix:
        return _VARIABLES[prefix].address
    return litellm_endpoint(model, {})


def is_openai_host(host: str) -> bool:
    """Return True for a host of OpenAI's own servers."""
    return host == "api.openai.com" or host.endswith(".api.openai.com")


def own_server_of(model: str) -> str | None:
    """Return the address that the environment names for an ``openai/`` model; None for OpenAI's, or another model."""
    address = _VARIABLES["openai/"].address or ""
    if not model.startswith("openai/") or is_openai_host(urlsplit(address).hostname or ""):
        return None
    return address


def _prefix_of(model: str) -> str:
    """Return the known prefix of a model's name; empty if it has none."""
    return next(filter(model.startswith, KNOWN_PREFIXES), "")


def key_variable(model: str) -> str | None:
    """Return the environment variable that holds the key for `model`; None where it is not known."""
    name = model.removeprefix("decisions/").removeprefix("systemone/")
    prefix = _prefix_of(name)
    if prefix:
        return _VARIABLES[prefix].key or None
    provider, slash, _ = name.partition("/")
    return f"{provider.upper()}_API_KEY" if slash and provider in _LITELLM_KEYS else None


def litellm_endpoint(model: str, options: Options) -> str | None:
    """Return the address litellm would use for `model`, without credentials; None if none is set."""
    prefix = "openai"
    if "/" in model:
        prefix = model.partition("/")[0]
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


def is_http_address(address: str) -> bool:
    """Return True for an http or https address with a host and a legal port."""
    try:
        parts = urlsplit(address)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _parts(api_base: object) -> SplitResult:
    address = ""
    if isinstance(api_base, str):
        address = api_base.strip()
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
    user = unquote(parts.username)
    password = unquote(parts.password or "")
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return f"Basic {token}", tuple(filter(None, [*secrets, token]))


_HIDDEN: Final = "[redacted]"
# Parameters of an address whose value may be shown.
_HARMLESS_PARAMETERS: Final = frozenset(
    {"api-version", "api_version", "version", "deployment", "deployment-id", "model", "region", "location"}
)
# Options of OpenAI, vLLM, llama.cpp, OpenRouter and litellm whose texts describe the request, not the account.
_HARMLESS_OPTIONS: Final = frozenset(
    """
    model models stop user response_format json_schema tool_choice modalities reasoning reasoning_effort
    reasoning_format thinking effort verbosity service_tier truncation guided_choice guided_json guided_regex
    guided_grammar guided_decoding_backend guided_whitespace_pattern structured_outputs grammar chat_template
    chat_template_kwargs chat_template_content_format bad_words samplers dry_sequence_breakers logit_bias lora
    custom_llm_provider api_type api_version aws_region_name region_name vertex_location provider route transforms
    """.split()  # noqa: SIM905 (a list would take a line per name)
)
# Short texts, numbers, dates and switches are no tokens under any name.
_HARMLESS_TEXT: Final = re.compile(
    r"(?is).{0,3}|[+-]?[0-9.]{1,6}|\d{4}-\d\d-\d\d(-preview)?|true|false|null|none"
)
# Parameters that clearly hold a secret are left out of an endpoint's identity: a renewed key is the same endpoint.
_SECRET_PARAMETER: Final = re.compile(r"(?i)key|token|secret|passw|auth|sig|cred")
_HEADERS: Final = frozenset({"headers", "extra_headers", "default_headers"})
# Words of an option's name that say it holds a credential; "max_tokens" holds none of them.
_SECRET_WORDS: Final = frozenset(
    {"apikey", "auth", "authorization", "cookie", "cookies", "credential", "credentials", "header", "headers"}
    | {"jwt", "key", "keys", "oauth", "passphrase", "passwd", "password", "pwd", "secret", "secrets"}
    | {"sig", "signature", "token"}
)
_WORD: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")
ADDRESSES: Final = frozenset({"api_base", "base_url"})
_ROUNDS: Final = 50_000
_DIGEST: Final = re.compile(r"\[redacted [0-9a-f]{8}\]")
_SCHEME: Final = re.compile(r"[A-Za-z-]+ +(\S{8,})")
_URL: Final = re.compile(r"(?i)\bhttps?://[^\s\"'<>()]+")
_PATTERNS: Final = (
    # user:password@host in a URL
    (re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"), _HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {_HIDDEN}"),
    # api_key=..., "x-api-key": "...", ?key=...
    (
        re.compile(
            r"(?i)((?:api[_-]?key|access[_-]?token|secret|password|[?&]key)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;)}]+"
        ),
        rf"\1{_HIDDEN}",
    ),
    # sk-..., gsk_..., hf_..., xai-..., AIza..., AKIA...
    (
        re.compile(r"\b(?:(?:sk|pk|rk|gsk|hf|xai|pplx|r8|nvapi)[-_]|AIza|AKIA|ASIA)[A-Za-z0-9_*.-]{6,}"),
        _HIDDEN,
    ),
)


def redact(text: str, *, secrets: Iterable[object] = ()) -> str:
    """Return `text` with secrets, and texts that look like credentials, redacted.

    Parameters
    ----------
    text : str
        A message from a library or a server.
    secrets : iterable, default ()
        Values known to be secret; hidden wherever they occur.
    """
    text = hide(text, secrets)
    if "://" in text:
        text = _URL.sub(lambda match: _without_parameters(match[0]), text)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def hide(text: str, secrets: Iterable[object]) -> str:
    """Return `text` with the values of `secrets` redacted, except values of up to three characters."""
    present = [secret for secret in secrets if isinstance(secret, str) and len(secret) > 3 and secret in text]
    for secret in sorted(present, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, _HIDDEN)
    return text


def spellings(secret: str) -> Iterator[str]:
    """Yield the forms in which a secret may appear: plain, in JSON, in a URL, without ``Bearer``."""
    scheme = _SCHEME.fullmatch(secret)
    for text in (secret,) if scheme is None else (secret, scheme[1]):
        yield from (text, json.dumps(text)[1:-1])
        # What need not be escaped in a query differs from library to library.
        for safe in ("", "/", "/:@!$'()*,;"):
            yield from (quote(text, safe=safe), quote_plus(text, safe=safe))


def _split(address: str) -> tuple[SplitResult, list[tuple[str, str]]] | None:
    """Return the parts and the parameters of a URL; None if it cannot be parsed."""
    try:
        parts = urlsplit(address.strip())
        return parts, parse_qsl(parts.query)
    except ValueError:
        return None


def _shown(parts: SplitResult, parameters: list[tuple[str, str]]) -> str:
    """Return a URL without credentials and trailing slash, and with these parameters."""
    host = parts.netloc.rpartition("@")[2]
    place = redact(urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")))
    query = urlencode(parameters)
    return f"{place}?{query}" if query else place


def public_address(address: str) -> str:
    """Return a URL without credentials and trailing slash, and with harmless parameters only.

    Parameters
    ----------
    address : str
        A URL; any other text is returned redacted.
    """
    split = _split(address)
    if split is None:
        return redact(address)
    parts, parameters = split
    shown = _shown(parts, [pair for pair in parameters if _is_harmless_parameter(*pair)])
    # Once more as a whole: a harmless parameter may hold a key all the same.
    return redact(shown)


def hidden_in_address(address: str) -> list[str]:
    """Return the names of the parameters that `public_address` leaves out, and ``password``."""
    split = _split(address)
    if split is None:
        return []
    names = [name for name, value in split[1] if not _is_harmless_parameter(name, value)]
    return [*(["password"] if "@" in split[0].netloc else []), *dict.fromkeys(names)]


def identifying_address(address: str) -> str:
    """Return a URL like `public_address`, with digests of unknown parameters, without secret ones.

    Parameters that hold a credential by their name are left out: with another key it is the same endpoint.
    """
    split = _split(address)
    if split is None:
        return redact(address)
    parts, parameters = split
    shown = []
    for name, value in parameters:
        # A harmless parameter may hold a key all the same.
        is_harmless_text = _is_harmless_parameter(name, value) and redact(value) == value
        if not _SECRET_PARAMETER.search(name):
            shown.append((name, value if is_harmless_text else digest_of(value)))
    return _shown(parts, shown)


def is_harmless(name: str, text: str) -> bool:
    """Return True if an option's text may be shown: known to be harmless, or too short for a secret."""
    if name in _HARMLESS_OPTIONS:
        return redact(text) == text
    return _HARMLESS_TEXT.fullmatch(text) is not None


def name_inside(outer: str, inner: str) -> str:
    """Return the name by which `is_harmless` judges a text nested in an option.

    Texts inside a harmless option are harmless, unless their own name is that of a credential.
    """
    if outer in _HARMLESS_OPTIONS and not _SECRET_PARAMETER.search(inner):
        return outer
    return inner


def secret_texts(options: Options) -> Iterator[str]:
    """Yield every text in a model's options that may be a secret: headers, parameters, unknown options."""
    for name, value in options.items():
        if name in ADDRESSES and isinstance(value, str):
            yield from _secrets_of(value)
        elif name in _HEADERS and isinstance(value, Mapping):
            yield from map(str, value.values())
        else:
            yield from _secret_texts(str(name), value)


@functools.lru_cache(maxsize=256)
def digest_of(text: str) -> str:
    """Return a short digest of a hidden text, so that two settings can be told apart.

    The digest is slow to compute and short, which protects a weak secret against guessing.
    """
    if is_digest(text):
        return text
    return f"{_HIDDEN[:-1]} {hashlib.pbkdf2_hmac('sha256', text.encode(), b'calibrant', _ROUNDS).hex()[:8]}]"


def is_digest(text: str) -> bool:
    """Return True if `text` is a result of `digest_of`."""
    return _DIGEST.fullmatch(text) is not None


def _secret_texts(name: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner, nested in value.items():
            yield from _secret_texts(name_inside(name, str(inner)), nested)
    elif isinstance(value, list | tuple):
        for nested in value:
            yield from _secret_texts(name, nested)
    elif isinstance(value, str) and not is_harmless(name, value):
        yield value


def _is_harmless_parameter(name: str, value: str) -> bool:
    if _SECRET_PARAMETER.search(name):
        return False
    return name.lower() in _HARMLESS_PARAMETERS or _HARMLESS_TEXT.fullmatch(value) is not None


def _secrets_of(address: str) -> list[str]:
    """Return the secrets in an address: its password, and parameters not known to be harmless."""
    split = _split(address)
    if split is None:
        return [address]
    values = [value for name, value in split[1] if not _is_harmless_parameter(name, value)]
    password = split[0].password
    if password is None:
        return values
    return [*values, password, unquote(password)]


def _without_parameters(url: str) -> str:
    """Return a URL with the values of all but harmless parameters hidden."""
    head, mark, query = url.partition("?")
    if not mark:
        return url
    shown = []
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        shown.append(part if not equals or _is_harmless_parameter(name, value) else f"{name}={_HIDDEN}")
    return f"{head}?{'&'.join(shown)}"


def public_options(options: Options) -> dict[str, Any]:
    """Return options as JSON values: credentials are left out, private texts become digests.

    Timeouts are left out, too. A text becomes its digest unless it is known to be harmless.
    """
    return {str(name): _plain(str(name), found) for name, found in options.items() if _counts(str(name))}


def hidden_options(options: Options) -> list[tuple[str, ...]]:
    """Return the paths of the secret options that `public_options` omits."""
    found: dict[tuple[str, ...], None] = {}
    for name, value in options.items():
        if is_secret(str(name)):
            found[(str(name),)] = None
        for inside in value if isinstance(value, list | tuple) else (value,):
            if isinstance(inside, Mapping) and _counts(str(name)):
                found |= {(str(name), *path): None for path in hidden_options(inside)}
    return list(found)


def holds_digest(value: object) -> bool:
    """Return True if a result of `public_options` holds a digest."""
    if isinstance(value, Mapping):
        return any(map(holds_digest, value.values()))
    if isinstance(value, list):
        return any(map(holds_digest, value))
    return isinstance(value, str) and is_digest(value)


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 (any option)
    if isinstance(value, Mapping):
        return {
            str(inner): _plain(name_inside(name, str(inner)), found)
            for inner, found in value.items()
            if _counts(str(inner))
        }
    if isinstance(value, list | tuple):
        return [_plain(name, found) for found in value]
    if isinstance(value, str):
        if is_harmless(name, value):
            return value
        return digest_of(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return type(value).__qualname__


def _counts(name: str) -> bool:
    return "timeout" not in name.lower() and not is_secret(name)


def is_secret(name: str) -> bool:
    """Return True if an option's name denotes a credential."""
    return not _SECRET_WORDS.isdisjoint(word.lower() for word in _WORD.findall(name))
