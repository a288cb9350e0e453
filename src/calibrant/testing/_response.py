"""Answers of fake models: their tokens and token probabilities."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet, as_label_set

Split = str | Callable[[str], Sequence[str | bytes]]
"""How a label and its closing quote become tokens; see `fake_response`."""

_Rivals = Sequence[tuple[tuple[bytes, ...], float]]
"""The tokens of each text that a model may write, and its probability or any multiple of it."""

_ILLEGAL = "\u2205".encode()
_MARK = re.compile("\ue000([0-9]+)\ue000")
_IMPOSSIBLE = -9999.0  # what OpenAI reports for a token it rules out


def fake_response(  # noqa: PLR0913 (independent, all with defaults)
    label: str,
    labels: Sequence[str] | None = None,
    probabilities: Mapping[str, float] | Sequence[float] | None = None,
    *,
    field: str = "category",
    tokens: Split = "label",
    top_logprobs: int = 5,
    illegal_mass: float = 0.0,
) -> dict[str, Any]:
    """Return an OpenAI-shaped chat completion that answers `label`.

    The alternatives at each token are those of a model that holds `probabilities` over the labels:
    where the tokens of two labels part, their probabilities are what the tokens report.

    Parameters
    ----------
    label : str
        The emitted label; it need not be in `labels`. Of `FieldLabels` and `MultiLabels` it is the JSON text of a
        whole answer, ``{"category": "Bills", "urgency": "low"}`` by the fields' names, ``["Bills", "Food"]`` in the
        order the model writes them.
    labels : sequence of str, optional
        The label set; by default the keys of `probabilities`, or `label` alone.
    probabilities : mapping or sequence, optional
        Probability of each label, or of whole answers, in [0, 1]; scaled to sum to 1. By default `label` is certain.
    field : str, default "category"
        JSON path of the label: ``category``, ``classification.name``, ``results[].category``; the array, or the
        label in its elements, of `MultiLabels`; not used with `FieldLabels`.
    tokens : {"label", "characters", "bytes"} or callable, default "label"
        How a label and its closing quote become tokens: one, one per character or per byte; a
        callable returns the pieces of the text it is given (``Food"``).
    top_logprobs : int, default 5
        Alternatives reported per token; 0 leaves log-probabilities out.
    illegal_mass : float, default 0
        Probability, in [0, 1), of a text that is no label at all, as ``raw`` engines report it.

    Raises
    ------
    ConfigurationError
        Probabilities are negative, all zero, or do not match `labels`.

    Examples
    --------
    >>> from calibrant.testing import fake_response
    >>> choice = fake_response("Food", probabilities={"Food": 0.8, "Rent": 0.2})["choices"][0]
    >>> choice["message"]["content"]
    '{"category": "Food"}'
    >>> token = choice["logprobs"]["content"][1]
    >>> [(item["token"], round(item["logprob"], 2)) for item in token["top_logprobs"]]
    [('Food"', -0.22), ('Rent"', -1.61)]
    """
    weights = weights_of(label, labels, probabilities)
    emitted = written(label, labels, field=field, tokens=tokens)
    text = b"".join(emitted.pieces).decode("utf-8", "surrogatepass")
    if top_logprobs <= 0:
        return _completion(text, None)
    rivals = [
        (written(name, labels, field=field, tokens=tokens).pieces, weight)
        for name, weight in weights.items()
        if weight > 0
    ]
    content = []
    for position, piece in enumerate(emitted.pieces):
        before = emitted.pieces[:position]
        shares = _scaled(
            (pieces[position], weight)
            for pieces, weight in rivals
            if len(pieces) > position and pieces[:position] == before
        )
        if position in emitted.structure:
            shares = shares or {piece: 1.0}
        if position in emitted.starts:
            shares = with_illegal(shares, illegal_mass)
        alternatives = [_reported(data, share) for data, share in ranked(shares, top_logprobs)]
        content.append({**_reported(piece, shares.get(piece, 0.0)), "top_logprobs": alternatives})
    return _completion(text, content)


def _reported(data: bytes, probability: float) -> dict[str, Any]:
    logprob = math.log(min(1.0, probability)) if probability > 0 else _IMPOSSIBLE
    return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": logprob}


def _completion(text: str, content: list[dict[str, Any]] | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    logprobs = None if content is None else {"content": content, "refusal": None}
    used = len(content or ())
    return {
        "id": "fake",
        "object": "chat.completion",
        "model": "fake",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message, "logprobs": logprobs}],
        "usage": {"prompt_tokens": 0, "completion_tokens": used, "total_tokens": used},
    }


def weights_of(
    label: str, labels: Sequence[str] | None, probabilities: Mapping[str, float] | Sequence[float] | None
) -> dict[str, float]:
    """Return the weight of each label; without probabilities, `label` is certain."""
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


@dataclass(frozen=True, kw_only=True)
class Written:
    """Answer as a sequence of tokens.

    Attributes
    ----------
    pieces : tuple of bytes
        The tokens: structure up to and including a label's opening quote, the label's own with its closing quote,
        and so on.
    starts : frozenset of int
        Where labels begin.
    structure : frozenset of int
        The tokens that are structure.
    """

    pieces: tuple[bytes, ...]
    starts: frozenset[int]
    structure: frozenset[int]


def written(answer: str, labels: Sequence[str] | None, *, field: str, tokens: Split) -> Written:
    """Return an answer's tokens: a label, or JSON with several labels in the order of the answer.

    Raises
    ------
    ConfigurationError
        A whole answer is no JSON object or array of texts.
    """
    frame, given = _composed(answer, labels, field)
    pieces: list[bytes] = [frame[0].encode()]
    starts, structure = set(), {0}
    for label, after in zip(given, frame[1:], strict=True):
        starts.add(len(pieces))
        pieces += _pieces_of(label, tokens)
        if len(after) > 1:
            structure.add(len(pieces))
            pieces.append(after[1:].encode())
    return Written(pieces=tuple(pieces), starts=frozenset(starts), structure=frozenset(structure))


def neighbours(answer: str, labels: LabelSet) -> Iterator[str]:
    """Yield the answers that differ from a given answer in a single part.

    Raises
    ------
    ConfigurationError
        The answer is illegal.
    """
    known = labels.canonical(answer)
    if known is None:
        raise ConfigurationError(f"Expected a legal answer with a probability, got {answer!r}.")
    values = labels.values(known)
    for name, value in values.items():
        for other in labels.labels_of(name):
            if other != value:
                yield labels.answer_of({**values, name: other})


def _composed(answer: str, labels: Sequence[str] | None, field: str) -> tuple[list[str], list[str]]:
    """Return the JSON text around an answer's labels, and the labels in the document's order."""
    label_set = as_label_set(labels)
    given: list[str] = []

    def marked(value: Any) -> Any:  # noqa: ANN401
        """Return the answer with a mark in place of every label, which goes to `given`."""
        if isinstance(value, dict):
            return {name: marked(label) for name, label in value.items()}
        if isinstance(value, list):
            return [marked(label) for label in value]
        given.append(str(value))
        return f"\ue000{len(given) - 1}\ue000"

    value = _whole_answer(answer, is_set=label_set.is_set) if label_set.holds_several else answer
    document = label_set.document(marked(value), field)
    text = _MARK.split(json.dumps(document, ensure_ascii=False))
    # In the order of the document, which is that of the fields only as far as their paths allow.
    return text[::2], [given[int(number)] for number in text[1::2]]


def _whole_answer(answer: str, *, is_set: bool) -> Any:  # noqa: ANN401
    """Return the JSON value of an answer that holds several labels."""
    value: Any = None
    with contextlib.suppress(ValueError):
        value = json.loads(answer)
    if not isinstance(value, list if is_set else dict):
        kind = "array" if is_set else "object"
        raise ConfigurationError(f"Expected a whole answer as the text of a JSON {kind}, got {answer!r}.")
    return value


def _pieces_of(label: str, tokens: Split) -> tuple[bytes, ...]:
    """Return the tokens of a label and its closing quote."""
    text = json.dumps(label, ensure_ascii=False)[1:]
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


def shares_at(text: bytes, rivals: _Rivals) -> dict[bytes, float]:
    """Return the probability of each next token after a text, however the text was cut into tokens."""
    pieces = [(_piece_after(text, tokens), weight) for tokens, weight in rivals]
    found = [(piece, weight) for piece, weight in pieces if piece is not None]
    whole = [(data, weight) for (data, is_rest), weight in found if not is_rest]
    return _scaled(whole or [(data, weight) for (data, _), weight in found]) or {_ILLEGAL: 1.0}


def _scaled(weights: Iterable[tuple[bytes, float]]) -> dict[bytes, float]:
    """Return each token's share of the sum of all weights."""
    shares: dict[bytes, float] = {}
    for data, weight in weights:
        shares[data] = shares.get(data, 0.0) + weight
    total = math.fsum(shares.values())
    return {data: share / total for data, share in shares.items()}


def _piece_after(text: bytes, pieces: Sequence[bytes]) -> tuple[bytes, bool] | None:
    """Return the next token after `text`, True if only its rest; None if `pieces` differ from `text`."""
    for piece in pieces:
        if not text:
            return piece, False
        if not text.startswith(piece):
            return (piece[len(text) :], True) if piece.startswith(text) else None
        text = text[len(piece) :]
    return None


def with_illegal(shares: Mapping[bytes, float], illegal_mass: float) -> dict[bytes, float]:
    """Return the shares with `illegal_mass` moved to a token that leads to no label."""
    if not 0.0 <= illegal_mass < 1.0:
        msg = f"illegal_mass must be in [0, 1), got {illegal_mass}."
        raise ConfigurationError(msg)
    left = {data: share * (1.0 - illegal_mass) for data, share in shares.items()}
    return left | {_ILLEGAL: illegal_mass} if illegal_mass else left


def ranked(shares: Mapping[bytes, float], limit: int) -> list[tuple[bytes, float]]:
    """Return the most probable tokens, most probable first."""
    return sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:limit]
