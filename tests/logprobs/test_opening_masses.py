"""Tests of the masses at the beginning of a label, and of unchecked reported tokens."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from calibrant.core import Completion, DataError, LogprobsUnavailableError, Token
from calibrant.logprobs._completion import reported_tokens
from calibrant.logprobs._distribution import opening_masses
from calibrant.testing import fake_response

LABELS = ["Food", "Fuel", "Rent"]


def answer(*tokens: tuple[str, dict[str, float]]) -> Completion:
    """Return an answer made of tokens with their alternatives, given as probabilities."""
    return Completion(
        text="".join(text for text, _ in tokens),
        tokens=tuple(
            Token(
                text.encode(),
                math.log(listed.get(text, 1.0)),
                tuple((other.encode(), math.log(share)) for other, share in listed.items()),
            )
            for text, listed in tokens
        ),
    )


@pytest.mark.parametrize("tokens", ["label", "characters", "bytes"])
@pytest.mark.parametrize("illegal", [0.0, 0.25])
def test_masses_of_labels_and_of_other_texts(tokens: Any, illegal: float) -> None:
    """Legal mass counts tokens that begin a label in any tokenisation, and illegal mass the others."""
    response = fake_response(
        "Food", LABELS, [0.5, 0.3, 0.2], field="result.kind", tokens=tokens, illegal_mass=illegal
    )
    found = opening_masses(response, LABELS, "result.kind")
    assert (found.legal, found.illegal) == (pytest.approx(1 - illegal), pytest.approx(illegal))
    assert found.listed == (2 if tokens != "label" else 3) + bool(illegal)


def test_illegal_answers_have_illegal_mass() -> None:
    """An answer that is no label counts as illegal mass."""
    found = opening_masses(fake_response("Cars"), LABELS, "category")
    assert (found.legal, found.illegal, found.listed) == (0.0, 1.0, 1)


def test_json_before_the_label_has_no_mass() -> None:
    """A token of the JSON before the label counts neither as legal nor as illegal."""
    shares = {'": "Fo': 0.5, '":"R': 0.1, '":': 0.1, '": "Ca': 0.2, " ": 0.05}
    found = opening_masses(
        answer(('{"kind', {'{"kind': 1.0}), ('": "Fo', shares), ('od"}', {'od"}': 1.0})), LABELS, "kind"
    )
    assert (found.legal, found.illegal, found.listed) == (pytest.approx(0.6), pytest.approx(0.2), 5)


def test_special_tokens_and_quotes_are_no_labels() -> None:
    """An end of turn and an empty text count as no label, and case matters."""
    listed = {"Food": 0.5, "": 0.125, '"': 0.125, "food": 0.0625, "Re": 0.125}
    found = opening_masses(
        answer(('{"kind": "', {'{"kind": "': 1.0}), ("Food", listed), ('"}', {'"}': 1.0})), LABELS, "kind"
    )
    assert (found.legal, found.illegal) == (pytest.approx(0.625), pytest.approx(0.3125))


def test_impossible_alternatives_have_no_mass() -> None:
    """An alternative of -9999 has no mass."""
    response: Any = fake_response("Food", LABELS, [0.6, 0.3, 0.1])
    response["choices"][0]["logprobs"]["content"][1]["top_logprobs"].append(
        {"token": "Cars", "bytes": None, "logprob": -9999.0}
    )
    found = opening_masses(response, LABELS, "category")
    assert (found.illegal, found.listed) == (0.0, 4)


@pytest.mark.parametrize(
    "response",
    [
        fake_response("Food", top_logprobs=0),
        Completion(text='{"category": 5}', tokens=(Token(b'{"category": 5}', 0.0),)),
        Completion(text="Food", tokens=(Token(b"Food", 0.0),)),
    ],
)
def test_missing_evidence_raises_an_error(response: object) -> None:
    """An answer without log-probabilities, text or JSON raises an error."""
    with pytest.raises(LogprobsUnavailableError):
        opening_masses(response, LABELS, "category")


def test_reported_tokens_are_unchecked() -> None:
    """`reported_tokens` returns values out of range unchanged, and unreadable ones as NaN."""
    body = {
        "choices": [
            {
                "message": {"content": "ab"},
                "logprobs": {
                    "content": [
                        {"token": "a", "bytes": [97], "logprob": 3, "top_logprobs": [{"token": "é"}]},
                        {"bytes": None, "logprob": "x", "top_logprobs": None},
                        {"token": "b", "logprob": True},
                        None,
                    ]
                },
            }
        ]
    }
    first, second, third, fourth = reported_tokens(body)
    assert (first.data, first.logprob, first.top[0][0]) == (b"a", 3.0, "é".encode())
    assert math.isnan(first.top[0][1])
    assert (second.data, second.top) == (b"", ())
    assert all(math.isnan(token.logprob) for token in (second, third, fourth))
    assert third.data == b"b"


@pytest.mark.parametrize("snake", [True, False])
def test_googles_tokens_are_read_too(snake: bool) -> None:
    """Google's tokens are read from objects of its SDK and from JSON."""
    names = ["logprobs_result", "chosen_candidates", "top_candidates", "log_probability"]
    if not snake:
        names = ["logprobsResult", "chosenCandidates", "topCandidates", "logProbability"]
    result, chosen, top, value = names
    body: Any = {
        "candidates": [
            {
                result: {
                    chosen: [{"token": "Food", value: 0.9}],
                    top: [{"candidates": [{"token": "Food", value: 0.9}, {"token": "Rent", value: 0.1}]}],
                }
            }
        ]
    }
    if snake:
        body = SimpleNamespace(**body)
    (token,) = reported_tokens(body)
    assert (token.data, token.logprob, token.top) == (b"Food", 0.9, ((b"Food", 0.9), (b"Rent", 0.1)))


def test_tokens_agree_with_the_checked_reading() -> None:
    """`reported_tokens` returns the tokens of an answer, and raises DataError for an unknown shape."""
    response = fake_response("Food", LABELS, [0.5, 0.3, 0.2], tokens="bytes")
    completion = Completion(text="x", tokens=(Token(b"x", -1.0),))
    assert b"".join(token.data for token in reported_tokens(response)) == b'{"category": "Food"}'
    assert reported_tokens(completion) == completion.tokens
    assert reported_tokens(Completion(text="x")) == reported_tokens("x") == ()
    assert reported_tokens(fake_response("Food", top_logprobs=0)) == ()
    for shape in (None, {}, {"error": "down"}, {"choices": []}):
        with pytest.raises(DataError):
            reported_tokens(shape)
