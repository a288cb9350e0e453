"""Tokens of labels, and their probabilities."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence

from calibrant.core._errors import ConfigurationError

Split = str | Callable[[str], Sequence[str | bytes]]
"""How a label and its closing quote become tokens; see `fake_response`."""

_Rivals = Sequence[tuple[tuple[bytes, ...], float]]
"""The tokens of each text that a model may write, and its probability or any multiple of it."""

_ILLEGAL = "\u2205".encode()
_PLACEHOLDER = "\ue000"


def weights_of(
    label: str, labels: Sequence[str] | None, probabilities: Mapping[str, float] | Sequence[float] | None
) -> dict[str, float]:
    """Return the weight of each label; `label` is certain where there are no probabilities."""
    if probabilities is None:
        return {label: 1.0}
    if isinstance(probabilities, Mapping):
        found = dict(probabilities)
    else:
        names = [label] if labels is None else list(labels)
        if len(names) != len(probabilities):
            msg = f"Expected one probability per label, got {len(probabilities)} for {len(names)} labels."
            raise ConfigurationError(msg)
        found = dict(zip(names, probabilities, strict=True))
    if any(not 0.0 <= value < math.inf for value in found.values()) or sum(found.values()) <= 0.0:
        msg = f"Expected probabilities of at least 0, one of them above 0, got {found}."
        raise ConfigurationError(msg)
    return found


def frame_of(path: str) -> tuple[str, str]:
    """Return the JSON before and after the text inside the label's quotes."""
    value: object = _PLACEHOLDER
    for name in reversed(path.split(".")):
        value = {name.removesuffix("[]"): [value] if name.endswith("[]") else value}
    before, _, after = json.dumps(value, ensure_ascii=False).partition(_PLACEHOLDER)
    return before, after


def spelled(label: str) -> str:
    """Return the label as it stands inside JSON quotes."""
    return json.dumps(label, ensure_ascii=False)[1:-1]


def pieces_of(label: str, tokens: Split) -> tuple[bytes, ...]:
    """Return the tokens of a label and its closing quote."""
    text = spelled(label) + '"'
    if callable(tokens):
        return tuple(piece if isinstance(piece, bytes) else piece.encode() for piece in tokens(text))
    if tokens == "label":
        return (text.encode(),)
    if tokens == "characters":
        return tuple(character.encode() for character in text)
    if tokens == "bytes":
        return tuple(bytes([byte]) for byte in text.encode())
    msg = f'tokens must be "label", "characters", "bytes" or a function, got {tokens!r}.'
    raise ConfigurationError(msg)


def shares_along(before: tuple[bytes, ...], rivals: _Rivals) -> dict[bytes, float]:
    """Return the probability of each next token, given the tokens before it."""
    depth = len(before)
    shares: dict[bytes, float] = {}
    for pieces, weight in rivals:
        if len(pieces) > depth and pieces[:depth] == before:
            shares[pieces[depth]] = shares.get(pieces[depth], 0.0) + weight
    total = math.fsum(shares.values())
    return {data: share / total for data, share in shares.items()}


def shares_at(text: bytes, rivals: _Rivals) -> dict[bytes, float]:
    """Return the probability of each next token, given the text before it, however it was cut into tokens."""
    whole: dict[bytes, float] = {}
    inside: dict[bytes, float] = {}
    for pieces, weight in rivals:
        found = _piece_after(text, pieces)
        if found is not None:
            data, cut = found
            shares = inside if cut else whole
            shares[data] = shares.get(data, 0.0) + weight
    shares = whole or inside or {_ILLEGAL: 1.0}
    total = math.fsum(shares.values())
    return {data: share / total for data, share in shares.items()}


def _piece_after(text: bytes, pieces: Sequence[bytes]) -> tuple[bytes, bool] | None:
    """Return the next piece after `text`, and True if it is the rest of a token; None if `pieces` differ from it."""
    for piece in pieces:
        if not text:
            return piece, False
        if not text.startswith(piece):
            return (piece[len(text) :], True) if piece.startswith(text) else None
        text = text[len(piece) :]
    return None


def with_illegal(shares: Mapping[bytes, float], illegal_mass: float) -> dict[bytes, float]:
    """Return the shares with `illegal_mass` taken from them, for a token that leads to no label."""
    if not 0.0 <= illegal_mass < 1.0:
        msg = f"illegal_mass must be in [0, 1), got {illegal_mass}."
        raise ConfigurationError(msg)
    left = {data: share * (1.0 - illegal_mass) for data, share in shares.items()}
    return left | {_ILLEGAL: illegal_mass} if illegal_mass else left


def ranked(shares: Mapping[bytes, float], limit: int) -> list[tuple[bytes, float]]:
    """Return the most probable tokens, most probable first."""
    return sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:limit]
