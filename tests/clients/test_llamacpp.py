"""Tests of LlamaCppClient before a model is loaded: errors and opening of the library."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from calibrant.clients import _engine, _llama
from calibrant.core import Client, CompletionRequest, ConfigurationError, LogprobSpace
from calibrant.inference import open_client


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file that begins like a model."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF...")
    return file


@pytest.fixture
def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the engine's package by one without a library."""
    module = types.ModuleType("xllamacpp")
    module.__file__ = str(Path(__file__))
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    _llama.llama.cache_clear()


def opened(path: Path, **options: Any) -> Any:
    """Return the client of a model file."""
    return open_client(f"llamacpp:{path}", options=options)


@pytest.mark.usefixtures("_no_library")
def test_satisfies_the_client_protocols(path: Path) -> None:
    """The embedded client satisfies Client and continues answers, with raw log-probabilities."""
    client = opened(path)
    assert isinstance(client, Client)
    assert hasattr(client, "continuing")
    assert (client.name, client.space) == (f"llamacpp:{path}", LogprobSpace.RAW)
    assert (client.n_parallel, opened(path, n_parallel=3).n_parallel) == (1, 3)


@pytest.mark.parametrize(
    ("settings", "accepted"),
    [
        ({"n_ctx": 0}, "n_ctx to be a whole number of at least 1, got 0"),
        ({"n_ctx": 64}, "n_ctx must be from 256 to 16777216, got 64"),
        ({"n_ctx": 10**11}, "n_ctx must be from 256 to 16777216, got 100000000000"),
        ({"n_ctx": 10**6, "n_parallel": 64}, "n_ctx must be from 256 to 262144, got 1000000"),
        ({"n_parallel": 0}, "n_parallel to be a whole number of at least 1, got 0"),
        ({"n_parallel": 65}, "n_parallel must be from 1 to 64, got 65"),
        ({"n_threads": 0}, "n_threads to be a whole number of at least 1, got 0"),
        ({"n_threads": 1_000_000}, "n_threads must be from 1 to 512, got 1000000"),
    ],
)
def test_parameters_out_of_range_raise_an_error(path: Path, settings: dict[str, int], accepted: str) -> None:
    """A parameter out of its range raises ConfigurationError with the range, before a model is loaded."""
    with pytest.raises(ConfigurationError, match=accepted):
        opened(path, **settings)


@pytest.mark.usefixtures("_no_library")
@pytest.mark.parametrize("options", [{"top_k": 1}, {"n": 2}])
def test_unknown_options_raise_an_error(path: Path, options: dict[str, Any]) -> None:
    """Options that the engine does not read raise ConfigurationError."""
    request = CompletionRequest(messages=({"role": "user", "content": "gas"},), options=options)
    with pytest.raises(ConfigurationError, match=f"temperature.*got {next(iter(options))}"):
        asyncio.run(opened(path).complete(request))


@pytest.mark.usefixtures("_no_library")
def test_unknown_engine_versions_raise_an_error(path: Path) -> None:
    """An unknown version of the engine raises ConfigurationError."""
    request = CompletionRequest(messages=({"role": "user", "content": "gas"},))
    with pytest.raises(ConfigurationError, match="Expected a version of the embedded engine"):
        asyncio.run(opened(path).complete(request))


def test_other_libraries_raise_an_error(tmp_path: Path) -> None:
    """Other shared libraries and other files raise ConfigurationError."""
    text = tmp_path / "text.so"
    text.write_text("no library")
    import math  # noqa: PLC0415 (a library that is always there)

    for library in (text, Path(str(math.__file__)) if hasattr(math, "__file__") else text):
        with pytest.raises(ConfigurationError, match="Expected a version of the embedded engine"):
            _llama.Llama(library)


def test_threads_wait_without_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """GOMP_SPINCOUNT is set only while the library loads, and not against OMP_WAIT_POLICY."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    with _llama._patient_threads():
        assert os.environ["GOMP_SPINCOUNT"] == "1000"
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with _llama._patient_threads():
        assert "GOMP_SPINCOUNT" not in os.environ


def test_a_missing_system_library_is_named(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """A missing GNU OpenMP library raises ConfigurationError with the name of its package."""

    class Broken:
        def find_spec(self, name: str, *_arguments: object) -> None:
            if name == "xllamacpp":
                raise ImportError("libgomp.so.1: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ConfigurationError, match="libgomp1"):
        opened(path)


def test_collected_clients_never_wait_for_loading(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is garbage-collected while its thread loads a model does not block the thread."""
    woken = []

    class Loading:
        is_usable = True

        def __init__(self, settings: _engine.EngineSettings) -> None:
            self.settings = settings
            self.holders: dict[int, Any] = {}
            gc.collect()

        def wake(self) -> None:
            woken.append(self)

        def close(self) -> None:
            pass

    class Holder:
        def __init__(self) -> None:
            self.itself = self

    monkeypatch.setattr(_engine, "Engine", Loading)
    monkeypatch.setattr(_engine, "_open", {})

    def settings(n_ctx: int) -> _engine.EngineSettings:
        return _engine.EngineSettings(path=path, n_ctx=n_ctx, n_parallel=1, n_threads=1)

    first = _engine.open_engine(settings(1), holder=Holder())
    kept = Holder()
    loading = threading.Thread(
        target=_engine.open_engine, args=(settings(2),), kwargs={"holder": kept}, daemon=True
    )
    loading.start()
    loading.join(20)
    assert not loading.is_alive()
    assert woken == [first]
