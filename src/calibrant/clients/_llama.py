"""Bindings of llama.cpp's C interface with ctypes, to the library in the engine's package."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from ctypes import Structure, c_bool, c_char_p, c_float, c_int, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._installation import install_command
from calibrant.core._prediction import SingleArray

_LIBRARY_COMMAND = "apt-get install libgomp1 (or your system's package of the GNU OpenMP library)"
_SPINS = "1000"

# Room beyond the known fields: llama.cpp reads a structure from the front, and new versions append fields.
_SPARE: Final = 512


class _ModelParams(Structure):
    """Mirror of the C struct ``llama_model_params``, with names for the fields in use and their neighbours."""

    _fields_ = [
        ("_pointers", c_uint64 * 2),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("_rest", c_uint64 * (_SPARE // 8)),
    ]


class _ContextParams(Structure):
    """Mirror of the C struct ``llama_context_params``, with names for the fields in use."""

    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("_unused", c_uint32 * 3),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("_types", c_int32 * 5),
        ("_numbers", c_uint8 * 48),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("_pointers", c_uint8 * 24),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("_rest", c_uint8 * (_SPARE - 142)),
    ]


class _Batch(Structure):
    """Mirror of the C struct ``llama_batch``, for ctypes."""

    _fields_ = [
        ("n_tokens", c_int32),
        ("token", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    ]


# Result, arguments and names (without ``llama_``) of the functions in use.
_FUNCTIONS: Final[tuple[tuple[Any, tuple[Any, ...], str], ...]] = (
    (None, (), "backend_init"),
    (None, (c_void_p,), "model_free free"),
    (None, (c_void_p, c_void_p), "log_set"),
    (None, (c_void_p, c_void_p, c_void_p), "set_abort_callback"),
    (None, (_Batch,), "batch_free"),
    (None, (c_void_p, c_int32, c_int32, c_int32, c_int32), "memory_seq_cp"),
    (_ModelParams, (), "model_default_params"),
    (_ContextParams, (), "context_default_params"),
    (_Batch, (c_int32, c_int32, c_int32), "batch_init"),
    (c_void_p, (c_char_p, _ModelParams), "model_load_from_file"),
    (c_void_p, (c_void_p, _ContextParams), "init_from_model"),
    (c_void_p, (c_void_p,), "model_get_vocab get_memory"),
    (c_void_p, (c_void_p, c_int32), "get_logits_ith"),
    (c_char_p, (c_void_p, c_char_p), "model_chat_template"),
    (c_bool, (c_void_p,), "model_has_encoder model_has_decoder model_is_recurrent model_is_hybrid"),
    (c_bool, (c_void_p,), "vocab_get_add_bos"),
    (c_bool, (c_void_p, c_int32), "vocab_is_control vocab_is_eog"),
    (c_bool, (c_void_p, c_int32, c_int32, c_int32), "memory_seq_rm"),
    (c_uint32, (c_void_p,), "n_ctx n_ctx_seq n_batch n_ubatch n_seq_max"),
    (c_int32, (c_void_p,), "n_threads n_threads_batch vocab_n_tokens vocab_bos vocab_eos"),
    (c_int32, (c_void_p, c_int32), "vocab_get_attr"),
    (c_int32, (c_void_p, _Batch), "decode"),
    (c_int32, (c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool), "tokenize"),
    (c_int32, (c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool), "token_to_piece"),
)

# Values of `llama_context_default_params` in every version whose structure is laid out as above.
_DEFAULTS: Final = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "type_k": 1,
    "type_v": 1,
    "embeddings": False,
    "offload_kqv": True,
    "kv_unified": False,
}
_MODEL_DEFAULTS: Final = {"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "lazy_mode": 1}
# A mapped file that is truncated ends the process (SIGBUS), and one that is overwritten changes the model under a run.
# Read into memory, 98 MB load in 0.5 s instead of 0.4 s; but processes no longer share them.
_READ_INTO_MEMORY: Final = 0
# Where keys and values have the same type, attention uses faster kernels for many tokens than for one, which round
# differently. With values in bfloat16 a token's result does not depend on the tokens beside it.
_BF16: Final = 30
_DEFAULT_TYPES: Final = (0, -1, -1, -1, -1)  # of context, RoPE scaling, pooling, attention, flash attention


# Flags of `llama_token_attr`.
_STRIPS_BEFORE: Final = 1 << 7
_STRIPS_AFTER: Final = 1 << 8


@dataclass(frozen=True, kw_only=True)
class ControlToken:
    """Control token of a vocabulary.

    Attributes
    ----------
    token : int
        Its number.
    strips_before, strips_after : bool
        True if white space beside it belongs to it.
    """

    token: int
    strips_before: bool
    strips_after: bool


class Llama:
    """Functions of llama.cpp that the engine uses; other Python threads run during a call.

    Parameters
    ----------
    path : Path
        The shared library.

    Raises
    ------
    ConfigurationError
        The library is none, lacks a function, or lays its structures out in another way.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
            for result, arguments, names in _FUNCTIONS:
                for name in names.split():
                    function = getattr(self._library, f"llama_{name}")
                    function.restype = result
                    function.argtypes = arguments
        except (OSError, AttributeError) as error:
            raise _unknown(str(error)) from error
        self._check_layout()
        self._silence = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)(lambda *_: None)
        self._library.llama_log_set(ctypes.cast(self._silence, c_void_p), None)
        self._library.llama_backend_init()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (a foreign function)
        return getattr(self._library, f"llama_{name}")

    def _check_layout(self) -> None:
        """Raise ConfigurationError if the C structs are not laid out as in this module."""
        params = self._library.llama_context_default_params()
        found = {name: getattr(params, name) for name in _DEFAULTS}
        types = tuple(params._types)  # noqa: SLF001 (a field)
        if found != _DEFAULTS or types != _DEFAULT_TYPES:
            raise _unknown(f"its default settings are {found} and {types}")
        model_params = self._library.llama_model_default_params()
        model_found = {name: getattr(model_params, name) for name in _MODEL_DEFAULTS}
        if model_found != _MODEL_DEFAULTS:
            raise _unknown(f"its default settings of models are {model_found}")
        batch = self._library.llama_batch_init(4, 0, 1)
        filled = all((batch.token, batch.pos, batch.n_seq_id, batch.seq_id, batch.logits))
        if batch.n_tokens or batch.embd is not None or not filled:
            raise _unknown("a batch of tokens is laid out in another way")
        self._library.llama_batch_free(batch)

    def load(self, path: Path) -> int | None:
        """Read a model into memory; return None if the file cannot be loaded."""
        params = self._library.llama_model_default_params()
        params.load_mode = _READ_INTO_MEMORY
        pointer: int | None = self.model_load_from_file(os.fsencode(path), params)
        return pointer

    def context(self, model: int, *, n_ctx: int, n_batch: int, n_seq_max: int, n_threads: int) -> int | None:
        """Return a context of `model` with one memory for all sequences; None if memory is too small.

        Raises
        ------
        ConfigurationError
            The context has other settings than requested: the structure has another layout.
        """
        params = self._library.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_seq_max = n_seq_max
        params.kv_unified = True
        params.n_batch = params.n_ubatch = n_batch
        params.type_v = _BF16
        params.n_threads = params.n_threads_batch = n_threads
        context: int | None = self.init_from_model(model, params)
        if context is None:
            return None
        wanted = dict.fromkeys(("n_batch", "n_ubatch"), n_batch)
        wanted |= dict.fromkeys(("n_threads", "n_threads_batch"), n_threads)
        # A sequence may fill the whole context: the memory is shared.
        wanted |= {"n_seq_max": n_seq_max, "n_ctx_seq": self.n_ctx(context)}
        found = {name: getattr(self, name)(context) for name in wanted}
        if found != wanted or self.n_ctx(context) < n_ctx:
            self.free(context)
            raise _unknown(f"its context has {found}, expected {wanted}")
        return context

    def abortable(self, context: int) -> Any:  # noqa: ANN401 (a buffer of characters)
        """Return a buffer that aborts the context's computation while it is not empty.

        llama.cpp asks a function between two steps of a computation, from its own threads. The C library's ``strlen``
        is one, and needs no lock of Python's.
        """
        text = ctypes.create_string_buffer(2)
        strlen = ctypes.cast(ctypes.CDLL(None).strlen, c_void_p)
        self.set_abort_callback(context, strlen, ctypes.cast(text, c_void_p))
        return text

    def decode_tokens(
        self,
        context: int,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequences: Sequence[Sequence[int]],
        wanted: NDArray[np.int8],
    ) -> int:
        """Compute a batch of tokens and return llama.cpp's status code, 0 for success."""
        count = len(tokens)
        each = np.array([len(some) for some in sequences], dtype=np.int32)
        flat = np.array([one for some in sequences for one in some], dtype=np.int32)
        # A pointer to the sequences of every token.
        places = (flat.ctypes.data + (np.cumsum(each) - each) * flat.itemsize).astype(np.uintp)
        batch = _Batch(
            n_tokens=count,
            token=tokens.ctypes.data,
            pos=positions.ctypes.data,
            n_seq_id=each.ctypes.data,
            seq_id=places.ctypes.data,
            logits=wanted.ctypes.data,
        )
        code: int = self.decode(context, batch)
        return code

    def logits(self, context: int, place: int, size: int) -> SingleArray:
        """Return the logits of a token of the last batch, shape (size,), as a view until the next batch."""
        pointer = ctypes.cast(self.get_logits_ith(context, place), ctypes.POINTER(c_float))
        return np.ctypeslib.as_array(pointer, shape=(size,))

    def tokens_of(self, vocabulary: int, text: str, *, special: bool) -> list[int]:
        """Return the tokens of `text`; with `special`, control tokens in it are recognised."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 8  # no tokeniser was seen to write more tokens than bytes
        while True:
            found = np.empty(size, dtype=np.int32)
            place = found.ctypes.data
            count = self.tokenize(vocabulary, data, len(data), place, size, False, special)  # noqa: FBT003
            if count >= 0:
                tokens: list[int] = found[:count].tolist()
                return tokens
            size = -count

    def pieces(self, vocabulary: int, *, special: bool = False) -> tuple[bytes, ...]:
        """Return the bytes of every token; those of control tokens are empty unless `special`."""
        buffer = ctypes.create_string_buffer(1024)
        pieces = []
        for token in range(self.vocab_n_tokens(vocabulary)):
            size = self.token_to_piece(vocabulary, token, buffer, len(buffer), 0, special)
            pieces.append(buffer.raw[: max(size, 0)])
        return tuple(pieces)

    def control_tokens(self, vocabulary: int) -> dict[str, ControlToken]:
        """Return the control tokens of a vocabulary by their texts."""
        controls: dict[str, ControlToken] = {}
        for token, piece in enumerate(self.pieces(vocabulary, special=True)):
            text = piece.decode("utf-8", "replace")
            if text and text not in controls and self.vocab_is_control(vocabulary, token):
                attributes = self.vocab_get_attr(vocabulary, token)
                controls[text] = ControlToken(
                    token=token,
                    strips_before=bool(attributes & _STRIPS_BEFORE),
                    strips_after=bool(attributes & _STRIPS_AFTER),
                )
        return controls


@functools.cache
def llama() -> Llama:
    """Return llama.cpp's library, loaded once in a process.

    Raises
    ------
    ConfigurationError
        The engine is not installed, or its version is not known.
    """
    module = engine_module()
    package = Path(str(module.__file__)).parent
    for library in sorted(package.glob("*.so")):
        return Llama(library)
    raise _unknown("its package holds no shared library")


def engine_module() -> ModuleType:
    """Import the Python package of the engine.

    Raises
    ------
    ConfigurationError
        The engine is not installed, or a system library is missing.
    """
    try:
        with _patient_threads():
            import xllamacpp  # noqa: PLC0415 (an extra)
    except ImportError as error:
        # The loader of shared libraries gives nothing but words.
        missing = _LIBRARY_COMMAND if "libgomp" in str(error) else install_command("local")
        raise ConfigurationError(
            f"The embedded engine cannot be imported ({error}). Run: {missing}"
        ) from error
    module: ModuleType = xllamacpp
    return module


def _unknown(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"Expected a version of the embedded engine that calibrant knows, got another: {why}. "
        f"Run: {install_command('local')}"
    )


@contextlib.contextmanager
def _patient_threads() -> Iterator[None]:
    """Make OpenMP, if it is loaded inside the block, put waiting threads to sleep soon.

    A forward pass has hundreds of barriers. Spinning at them is a little faster on idle cores, and
    five times slower (0.2 against 1.1 rows/s, measured) as soon as anything else wants a core. The
    OpenMP library reads the environment once, when it is loaded.
    """
    is_set = bool(os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})
    if not is_set:
        os.environ["GOMP_SPINCOUNT"] = _SPINS
    try:
        yield
    finally:
        if not is_set:
            del os.environ["GOMP_SPINCOUNT"]
