"""Ranks of texts by a keyed hash, which tell equal confidences apart and draw rows at random."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import FloatArray

DEFAULT_KEY: Final = "calibrant"
_LONGEST: Final = hashlib.blake2b.MAX_KEY_SIZE
_DIGEST_SIZE: Final = 8  # bytes of a digest; 2**64 ranks do not repeat in practice
_KEY_SIZE: Final = 16  # bytes of a derived key, which is twice as many hexadecimal digits
_PLACE: Final = b"\xff"  # begins no text in UTF-8, so that no place is ever a text


def tie_ranks(texts: Sequence[str | int], *, key: str = DEFAULT_KEY) -> FloatArray:
    """Return a hash of each text as a rank in (0, 1], shape (n,), for breaking ties in confidence.

    A BLAKE2b hash of the text under `key`, as a share of all hashes: it looks uniform, says nothing about whether an
    answer is right, and is the same on every machine. A rule that keeps a share of a tied block keeps the ranks up
    to that share.

    Parameters
    ----------
    texts : sequence of (str or int), length n
        The texts, as a model is asked them; the place of a row, from 0, where its text is not known.
    key : str, default "calibrant"
        Under another key other texts come first; 1 to 64 bytes in UTF-8.

    Raises
    ------
    ConfigurationError
        The key is empty, too long or no text.

    Examples
    --------
    >>> tie_ranks(["a film", "a film", "a play"]).round(3).tolist()
    [0.685, 0.685, 0.9]
    """
    secret = check_key(key)
    n_ranks = 2.0 ** (8 * _DIGEST_SIZE)
    ranks = []
    for text in texts:
        digest = hashlib.blake2b(_message(text), key=secret, digest_size=_DIGEST_SIZE).digest()
        ranks.append((int.from_bytes(digest) + 1) / n_ranks)
    return np.array(ranks, dtype=np.float64)


def draw_ranks(names: Sequence[str | int], *, key: str) -> FloatArray:
    """Return the ranks in whose order rows are drawn; those of `tie_ranks` order equal texts and are others."""
    return tie_ranks([f"{place} {name}" for place, name in enumerate(names)], key=key)


def tie_keys(key: str, count: int) -> tuple[str, ...]:
    """Return one hash key per rule of a policy: `key`, then keys derived from it.

    A text's ranks under different keys are independent. Under one key for all rules, the texts that the first rule
    passes on have the ranks above its share, and the second rule keeps fewer of them than its own share.

    Raises
    ------
    ConfigurationError
        The key is empty, too long or no text.
    """
    secret = check_key(key)
    # A digest, as a key of the longest allowed size has no room for a suffix.
    derived = (
        hashlib.blake2b(str(place).encode(), key=secret, digest_size=_KEY_SIZE).hexdigest()
        for place in range(1, count)
    )
    return (key, *derived)[:count]


def check_key(key: object) -> bytes:
    """Return a hash key as bytes; ConfigurationError if it is no text or has a wrong length."""
    secret = b""
    if isinstance(key, str):
        secret = key.encode("utf-8", "surrogatepass")
    if not 0 < len(secret) <= _LONGEST:
        raise ConfigurationError(
            f"Expected key as a text of 1 to {_LONGEST} bytes in UTF-8, got {key!r:.80}: shorten it, or leave it out."
        )
    return secret


def _message(text: str | int) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    return _PLACE + str(int(text)).encode()  # the place may be a number of numpy's, which is no int
