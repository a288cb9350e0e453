"""Tie-breaking of equal confidences by a keyed hash of the texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError

DEFAULT_KEY: Final = "calibrant"
_LONGEST: Final = hashlib.blake2b.MAX_KEY_SIZE
_SIZE: Final = 8  # bytes of a digest; 2**64 ranks do not repeat in practice
_KEY_SIZE: Final = 16  # bytes of a derived key, which is twice as many hexadecimal digits
_PLACE: Final = b"\xff"  # begins no text in UTF-8, so that no place is ever a text


def tie_ranks(texts: Sequence[str | int], *, key: str = DEFAULT_KEY) -> NDArray[np.float64]:
    """Return the rank of each text among answers of equal confidence, in (0, 1], shape (n,).

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
    secret = check_key(key).encode("utf-8", "surrogatepass")
    hashes = (hashlib.blake2b(_message(text), key=secret, digest_size=_SIZE).digest() for text in texts)
    return np.array([(int.from_bytes(one) + 1) / 2.0 ** (8 * _SIZE) for one in hashes], dtype=np.float64)


def tie_keys(key: str, count: int) -> tuple[str, ...]:
    """Return one hash key per rule of a policy: `key`, then keys derived from it.

    A text's ranks under different keys are independent. Under one key for all rules, the texts that the first rule
    passes on have the ranks above its share, and the second rule keeps fewer of them than its own share.

    Raises
    ------
    ConfigurationError
        The key is empty, too long or no text.
    """
    secret = check_key(key).encode("utf-8", "surrogatepass")
    # A digest, as a key of the longest allowed size has no room for a suffix.
    derived = (
        hashlib.blake2b(str(place).encode(), key=secret, digest_size=_KEY_SIZE).hexdigest()
        for place in range(1, count)
    )
    return (key, *derived)[:count]


def check_key(key: object) -> str:
    """Return `key` if it can key a hash; ConfigurationError otherwise."""
    if not isinstance(key, str) or not 0 < len(key.encode("utf-8", "surrogatepass")) <= _LONGEST:
        raise ConfigurationError(
            f"Expected key as a text of 1 to {_LONGEST} bytes in UTF-8, got {key!r:.80}: shorten it, or leave it out."
        )
    return key


def _message(text: str | int) -> bytes:
    # A place may be a number of numpy's, too, which is no int.
    return (
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else _PLACE + str(int(text)).encode()
    )
