"""Tests of drawing tokens: greedy, from a few, penalised, and within a grammar."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from calibrant.clients._constraint import Grammars, Sampler
from calibrant.core import ConfigurationError
from token_engine import Engine

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
PIECES = (*(bytes([byte]) for byte in range(128)), b'"cat"', b'"dog"', b"")


def drawn(count: int = 2000, **options: Any) -> dict[int, float]:
    """Return the share of each token among the draws."""
    sampler = Sampler({"seed": 0, "temperature": 1.0, **options})
    found = Counter(sampler.draw(LOGITS, None) for _ in range(count))
    return {token: found[token] / count for token in sorted(found)}


def test_zero_temperature_takes_the_best_token() -> None:
    """The most probable of the allowed tokens is drawn."""
    sampler = Sampler({})
    assert sampler.draw(LOGITS, None) == 0
    assert sampler.draw(LOGITS, np.array([False, False, True, True])) == 2


def test_temperature_1_draws_the_model_distribution() -> None:
    """At temperature 1 the shares of 2,000 draws agree with the probabilities."""
    assert list(drawn().values()) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.035)


def test_a_temperature_sharpens() -> None:
    """A temperature raises the probabilities to the power of its inverse."""
    sharp = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    assert list(drawn(temperature=0.5).values()) == pytest.approx(sharp / sharp.sum(), abs=0.035)


def test_rare_tokens_are_left_out() -> None:
    """Only the most probable tokens that make up a given share are drawn."""
    assert set(drawn(top_p=0.75)) == {0, 1}


def test_a_seed_repeats_the_draws() -> None:
    """An equal seed repeats the draws, and another seed changes them."""
    assert drawn(50, seed=3) == drawn(50, seed=3)
    assert drawn(50, seed=3) != drawn(50, seed=4)


@pytest.mark.parametrize("option", [{"temperature": -1}, {"top_p": 2}, {"temperature": True}])
def test_values_out_of_range_raise_an_error(option: dict[str, Any]) -> None:
    """A value out of range raises an error with the range."""
    with pytest.raises(ConfigurationError, match=f"Expected {next(iter(option))} between"):
        Sampler(option)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    """Return the grammars of a small vocabulary."""
    vocabulary = Engine(pieces=PIECES).vocabulary
    return Grammars(vocabulary, end=130, controls=[130], tokenize=lambda text: list(text.encode()))


def test_a_grammar_allows_what_it_says(grammars: Grammars) -> None:
    """A grammar allows only the tokens of its two words, and is over after a word."""
    grammar = grammars.compile('%llguidance {}\nstart: "\\"cat\\"" | "\\"dog\\""')
    assert set(np.flatnonzero(grammar.allowed())) == {ord('"'), 128, 129}
    grammar.accept(ord('"'))
    assert set(np.flatnonzero(grammar.allowed())) == {ord("c"), ord("d")}
    for letter in 'cat"':
        assert not grammar.is_over
        grammar.accept(ord(letter))
    assert grammar.is_over or set(np.flatnonzero(grammar.allowed())) == {130}


def test_broken_grammars_raise_an_error(grammars: Grammars) -> None:
    """A broken grammar raises ConfigurationError when it is compiled."""
    with pytest.raises(ConfigurationError, match="Expected a grammar"):
        grammars.compile("%llguidance {}\nstart: (")
