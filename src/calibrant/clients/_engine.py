"""llama.cpp's server inside this process, shared by the clients that ask for the same one."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import urllib.request
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from calibrant.core import ConfigurationError, install_command

__all__ = ["Engine", "EngineSettings", "default_threads", "engine_module", "open_engine", "release_engine"]

_LIBRARY_COMMAND = "apt-get install libgomp1 (or your system's package of the GNU OpenMP library)"
_SPINS = "1000"
# A proxy of the environment is not asked for this process's own address.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What distinguishes one engine from another.

    Attributes
    ----------
    path : Path
        The weights file.
    n_ctx : int
        Context of one slot, in tokens.
    n_parallel : int
        Slots.
    n_threads : int
        Threads that compute.
    """

    path: Path
    n_ctx: int
    n_parallel: int
    n_threads: int


class Engine:
    """A loaded model.

    Attributes
    ----------
    knows_llguidance : bool
        Whether llguidance was built in: it decodes faster and holds more labels.
    llguidance : bool
        Whether grammars may be written for it now.
    holders : WeakSet of object
        The clients that use it and were not closed.

    Parameters
    ----------
    settings : EngineSettings
        What to load, and how.

    Raises
    ------
    ConfigurationError
        The engine is not installed or cannot load the file.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.holders: WeakSet[object] = WeakSet()
        module = engine_module()
        params = module.CommonParams()
        params.model.path = str(settings.path)
        # llama.cpp divides the context among the slots.
        params.n_ctx = settings.n_ctx * settings.n_parallel
        params.n_parallel = settings.n_parallel
        for pool in (params.cpuparams, params.cpuparams_batch):
            pool.n_threads = settings.n_threads
        params.port = 0  # the system picks a free one on the loopback interface
        params.verbosity = -1
        params.cache_ram_mib = 0  # finished prompts are not kept: 8 GiB by default
        try:
            self._server = module.Server(params)
        except (RuntimeError, ValueError) as error:
            msg = (
                f"{settings.path}: llama.cpp cannot load this model ({error}). The file may be damaged or "
                f"too new, or memory too small for n_ctx={settings.n_ctx} x n_parallel={settings.n_parallel}."
            )
            raise ConfigurationError(msg) from error
        self.llguidance = False
        self.knows_llguidance = module.json_schema_to_grammar({"type": "object"}).startswith("%llguidance")

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer one chat request; safe to call from several threads."""
        answer: dict[str, Any] = self._server.handle_chat_completions(body)
        return answer

    @property
    def address(self) -> str:
        """Where the engine's own server listens, on the loopback interface."""
        return str(self._server.listening_address)

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the tokens of `text`; `special` says whether special tokens are recognised in it."""
        found: list[int] = self._post("/tokenize", {"content": text, "parse_special": special})["tokens"]
        return found

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`."""
        return str(self._post("/detokenize", {"tokens": list(tokens)})["content"])

    def _post(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        # These routes exist over HTTP only; the server listens on the loopback interface.
        request = urllib.request.Request(  # noqa: S310 (its own address)
            self.address + route,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with _direct.open(request, timeout=60) as response:
            answer: dict[str, Any] = json.load(response)
        return answer


def engine_module() -> ModuleType:
    """Import the engine.

    Raises
    ------
    ConfigurationError
        It is not installed, or a system library it needs is missing.
    """
    try:
        with _patient_threads():
            import xllamacpp  # noqa: PLC0415 (an extra)
    except ImportError as error:
        missing = _LIBRARY_COMMAND if "libgomp" in str(error) else install_command("local")
        msg = f"The embedded engine cannot be imported ({error}). Run: {missing}"
        raise ConfigurationError(msg) from error
    module: ModuleType = xllamacpp
    return module


@contextlib.contextmanager
def _patient_threads() -> Iterator[None]:
    """Let OpenMP threads sleep rather than spin while they wait for each other.

    A forward pass has hundreds of barriers. Spinning at them is a little faster on idle cores, and
    five times slower (0.2 against 1.1 rows/s, measured) as soon as anything else wants a core. The
    OpenMP library reads the environment once, when it is loaded.
    """
    if os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = _SPINS
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


# An engine lives as long as a client holds it.
_open: WeakValueDictionary[EngineSettings, Engine] = WeakValueDictionary()
_lock = threading.Lock()


class _Turn:
    """Who may use llguidance.

    llama.cpp keeps one llguidance tokeniser per process, unprotected, and recognises its model by an
    address: two engines would build it anew in turns (0.4 s a call) and free it under each other, and
    another model that is loaded later could be taken for the first. So one engine at a time has it,
    until its last client is closed, always for the same file; the others use llama.cpp's own grammars,
    which obey as well, slower.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._holder: weakref.ref[Engine] | None = None

    def is_free(self, path: Path) -> bool:
        """Return whether an engine for `path` may take it."""
        # An engine may outlive its clients until the garbage collector comes.
        engine = None if self._holder is None else self._holder()
        held = engine is not None and len(engine.holders) > 0
        return not held and self._path in {None, path}

    def take(self, engine: Engine, path: Path) -> None:
        """Give it to `engine`."""
        self._path = path
        self._holder = weakref.ref(engine)


_turn = _Turn()


def open_engine(settings: EngineSettings, *, holder: object) -> Engine:
    """Return the process's engine with these settings for `holder`, loading it if no client has one."""
    with _lock:
        engine = _open.get(settings)
        if engine is None:
            engine = Engine(settings)
            _open[settings] = engine
        if not engine.holders:
            engine.llguidance = engine.knows_llguidance and _turn.is_free(settings.path)
            if engine.llguidance:
                _turn.take(engine, settings.path)
        engine.holders.add(holder)
        return engine


def release_engine(engine: Engine, *, holder: object) -> None:
    """Note that `holder` will not use `engine` again."""
    with _lock:
        engine.holders.discard(holder)


def default_threads() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
