"""One response of a fake model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.testing._tokens import Split, ranked, shares_along, weights_of, with_illegal
from calibrant.testing._written import written

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
        shares = shares_along(emitted.pieces[:position], rivals)
        if position in emitted.structure:
            shares = shares or {piece: 1.0}
        if position in emitted.starts:
            shares = with_illegal(shares, illegal_mass)
        content.append(_token(piece, shares, top_logprobs))
    return _completion(text, content)


def _token(data: bytes, shares: Mapping[bytes, float], limit: int) -> dict[str, Any]:
    return {
        **_reported(data, shares.get(data, 0.0)),
        "top_logprobs": [_reported(other, share) for other, share in ranked(shares, limit)],
    }


def _reported(data: bytes, probability: float) -> dict[str, Any]:
    logprob = math.log(min(1.0, probability)) if probability > 0 else _IMPOSSIBLE
    return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": logprob}


def _completion(text: str, content: list[dict[str, Any]] | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": message,
        "logprobs": None if content is None else {"content": content, "refusal": None},
    }
    used = len(content or ())
    return {
        "id": "fake",
        "object": "chat.completion",
        "model": "fake",
        "choices": [choice],
        "usage": {"prompt_tokens": 0, "completion_tokens": used, "total_tokens": used},
    }
