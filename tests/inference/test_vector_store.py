"""Tests of the store of vectors of texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrant.inference._text_vectors import VectorStore

CAP = 200_000
BLOCKS = 40


def block(number: int) -> dict[str, np.ndarray]:
    """Return ten vectors of 4,000 bytes."""
    return {f"{number}/{place}": np.full(1_000, number, dtype=np.float32) for place in range(10)}


def test_a_store_keeps_the_newest_vectors_within_its_cap(tmp_path: Path) -> None:
    """Beyond the cap the vectors written first are removed, and the file stops growing."""
    path = tmp_path / "vectors.sqlite"
    store = VectorStore(path, max_bytes=CAP)
    for number in range(BLOCKS):
        store.put_many(block(number))
    assert len(store.get_many(list(block(BLOCKS - 1)))) == 10
    assert not store.get_many(list(block(0)))
    kept = store.get_many([key for number in range(BLOCKS) for key in block(number)])
    assert 0.5 * CAP < sum(vector.nbytes for vector in kept.values()) <= CAP
    assert path.stat().st_size < 2 * CAP


def test_a_vector_that_is_written_again_is_young(tmp_path: Path) -> None:
    """Writing a key again replaces its vector, which outlives those that were written before."""
    store = VectorStore(tmp_path / "vectors.sqlite", max_bytes=CAP)
    for number in range(4):
        store.put_many(block(number))
    store.put_many({"0/0": np.ones(1_000, dtype=np.float32)})
    store.put_many(block(4))
    assert list(store.get_many(["0/0", "0/1"])) == ["0/0"]
    assert store.get_many(["0/0"])["0/0"][0] == 1.0
