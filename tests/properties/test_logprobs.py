"""Tests of the distribution's invariants, against token models whose truth is known.

A token model is a list of sequences, each a tokenisation of one label with its probability; every
node of the tree they form reports all its branches. The expected distribution is computed from the
sequences by comparing spelled-out texts, without the decoder and the trie under test.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from calibrant.core import Completion, Token
from calibrant.logprobs import extract_distribution

HEAD = b'{"note": "x\\"category\\": \\u00e9 1e5", "amount": 1e5, "category": '
ALPHABET = 'aAbB"\\/&é日😀 {}:,<\n'
PROFILE = settings(deadline=None, max_examples=100)


@dataclass(frozen=True)
class Sequence:
    """One tokenisation of a label; `label` is None for text outside the label set."""

    tokens: tuple[bytes, ...]
    label: str | None
    probability: float


@st.composite
def label_sets(draw: st.DrawFn) -> tuple[str, ...]:
    """Draw labels with shared prefixes, prefixes of each other, JSON syntax and non-ASCII text."""
    stems = draw(st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3))
    tails = draw(st.lists(st.text(ALPHABET, max_size=4), min_size=2, max_size=6))
    found: dict[str, str] = {}
    for tail in tails:
        label = draw(st.sampled_from(stems)) + tail
        if compared := label.strip().casefold():
            found.setdefault(compared, label)
    assume(len(found) >= 2)
    return tuple(found.values())


def pieces(encoded: bytes) -> list[bytes]:
    """Return the smallest units of a JSON string: whole escapes, and single bytes."""
    units, position = [], 0
    while position < len(encoded):
        size = 1
        if encoded[position : position + 1] == b"\\":
            size = 6 if encoded[position + 1 : position + 2] == b"u" else 2
            if size == 6 and encoded[position + 2 : position + 4].lower() in (b"d8", b"d9", b"da", b"db"):
                size = 12
        units.append(encoded[position : position + size])
        position += size
    return units


def cut(draw: st.DrawFn, encoded: bytes) -> list[bytes]:
    """Cut a JSON string into tokens anywhere but inside an escape."""
    tokens = [b""]
    for unit in pieces(encoded):
        if tokens[-1] and draw(st.booleans()):
            tokens.append(b"")
        tokens[-1] += unit
    return tokens


@st.composite
def models(
    draw: st.DrawFn, *, illegal: bool = False
) -> tuple[tuple[str, ...], dict[str, bytes], list[Sequence]]:
    """Draw a label set, each label's JSON text, and a token model over the label set.

    The opening quote is a token of its own in some sequences and joined to the label in others.
    """
    labels = draw(label_sets())
    ascii_only = draw(st.booleans())
    texts = {label: json.dumps(label, ensure_ascii=ascii_only).encode() + b"}" for label in labels}
    style = draw(st.sampled_from(("apart", "joined", "mixed")))
    spellings: dict[tuple[bytes, ...], str | None] = {}
    for label in labels:
        for _ in range(draw(st.integers(1, 2))):
            tokens = cut(draw, texts[label][1:])
            joined = style == "joined" or (style == "mixed" and draw(st.booleans()))
            tokens = [b'"' + tokens[0], *tokens[1:]] if joined else [b'"', *tokens]
            spellings[tuple(tokens)] = label
    if illegal:
        for tokens in list(spellings):
            position = draw(st.integers(int(tokens[0] == b'"'), len(tokens) - 1))
            bad = (b'"' if not position else b"") + b"~" + tokens[position][-1:]
            spellings.setdefault((*tokens[:position], bad), None)
    weights = draw(st.lists(st.floats(1e-3, 1.0), min_size=len(spellings), max_size=len(spellings)))
    total = sum(weights)
    return (
        labels,
        texts,
        [Sequence(t, label, w / total) for (t, label), w in zip(spellings.items(), weights, strict=True)],
    )


def branches(sequences: list[Sequence], prefix: tuple[bytes, ...]) -> dict[bytes, float]:
    """Return the mass of every token that may follow `prefix`."""
    found: dict[bytes, float] = defaultdict(float)
    for sequence in sequences:
        if sequence.tokens[: len(prefix)] == prefix and len(sequence.tokens) > len(prefix):
            found[sequence.tokens[len(prefix)]] += sequence.probability
    return found


def emit(sequences: list[Sequence], chosen: Sequence) -> Completion:
    """Return the completion of `chosen`, with all branches of every node."""
    tokens = [Token(HEAD, 0.0, ((HEAD, 0.0),))]
    for position, data in enumerate(chosen.tokens):
        found = branches(sequences, chosen.tokens[:position])
        total = sum(found.values())
        top = sorted(((other, math.log(mass / total)) for other, mass in found.items()), key=lambda p: -p[1])
        tokens.append(Token(data, dict(top)[data], tuple(top)))
    text = (HEAD + b"".join(chosen.tokens)).decode()
    return Completion(text=text, tokens=(*tokens, Token(b"<|im_end|>", 0.0)))


def expected(
    sequences: list[Sequence], chosen: Sequence, texts: dict[str, bytes]
) -> tuple[dict[str, float], float]:
    """Return each label's mass, with its share of ambiguous mass, and the ambiguous mass."""
    masses, ambiguous = dict.fromkeys(texts, 0.0), 0.0
    # An opening quote apart counts relative to the sequences that open there: here all of them do.
    for position, emitted in enumerate(chosen.tokens):
        prefix, decided = chosen.tokens[:position], False
        for data, mass in branches(sequences, prefix).items():
            spelled = b"".join((*prefix, data))
            fits = [label for label, text in texts.items() if text.startswith(spelled)]
            if data == emitted and len(fits) != 1:
                continue
            for label in fits:
                masses[label] += mass / len(fits)
            ambiguous += mass if len(fits) > 1 else 0.0
            decided = decided or data == emitted
        if decided:
            break
    return masses, ambiguous


def pick(data: st.DataObject, sequences: list[Sequence]) -> Sequence:
    """Return one sequence that spells a label."""
    return data.draw(st.sampled_from([s for s in sequences if s.label is not None]))


def check_invariants(found: Any, labels: tuple[str, ...]) -> None:
    """Assert what holds for every distribution."""
    assert found.labels == labels
    assert found.logprobs.shape == found.measured.shape == (len(labels),)
    assert np.isfinite(found.logprobs).all()
    assert np.exp(found.logprobs).sum() == pytest.approx(1.0, abs=1e-9)
    assert found.logprobs.min() >= math.log(0.99e-12)
    assert 0.0 <= found.label_mass <= 1.0
    assert 0.0 <= found.unresolved_mass <= 1.0
    assert found.label_mass + found.unresolved_mass <= 1.0 + 1e-9
    assert found.joint_logprob <= 0.0


@PROFILE
@given(models(), st.data())
def test_the_distribution_equals_the_token_model(model: Any, data: st.DataObject) -> None:
    """With all branches reported, masked space gives the masses counted from the sequences."""
    labels, texts, sequences = model
    chosen = pick(data, sequences)
    found = extract_distribution(emit(sequences, chosen), labels, "category")
    masses, ambiguous = expected(sequences, chosen, texts)
    check_invariants(found, labels)
    assert found.probabilities == pytest.approx(np.array(list(masses.values())), abs=1e-9)
    assert found.unresolved_mass == pytest.approx(ambiguous, abs=1e-9)
    assert found.label_mass == pytest.approx(1.0 - ambiguous, abs=1e-9)
    if ambiguous == 0.0:
        truth = {label: sum(s.probability for s in sequences if s.label == label) for label in labels}
        assert found.probabilities == pytest.approx(np.array(list(truth.values())), abs=1e-9)
        # Where one tokenisation spells the label, its joint is its probability.
        if sum(s.label == chosen.label for s in sequences) == 1 and chosen.tokens[0] != b'"':
            end = sum(map(len, chosen.tokens[:-1])) + 1
            if end <= len(b"".join(chosen.tokens)) - 2:  # the last token holds content
                assert math.exp(found.joint_logprob) == pytest.approx(chosen.probability)


@PROFILE
@given(models(illegal=True), st.data())
def test_raw_space_leaves_illegal_mass_out(model: Any, data: st.DataObject) -> None:
    """In raw space illegal branches lower the label mass and leave the probabilities unchanged."""
    labels, texts, sequences = model
    chosen = pick(data, sequences)
    found = extract_distribution(emit(sequences, chosen), labels, "category", "raw")
    masses, ambiguous = expected(sequences, chosen, texts)
    check_invariants(found, labels)
    total = sum(masses.values())
    assert found.probabilities == pytest.approx(np.array(list(masses.values())) / total, abs=1e-9)
    if chosen.tokens[0] != b'"' or not any(len(s.tokens[0]) > 1 for s in sequences):
        assert found.label_mass == pytest.approx(total - ambiguous, abs=1e-9)
        assert found.unresolved_mass == pytest.approx(ambiguous, abs=1e-9)


@PROFILE
@given(models(illegal=True), st.data())
def test_permuting_the_labels_permutes_the_result(model: Any, data: st.DataObject) -> None:
    """Permuting the labels permutes the result."""
    labels, _, sequences = model
    completion = emit(sequences, pick(data, sequences))
    order = data.draw(st.permutations(range(len(labels))))
    found = extract_distribution(completion, labels, "category")
    moved = extract_distribution(completion, [labels[i] for i in order], "category")
    assert moved.logprobs == pytest.approx(found.logprobs[list(order)], abs=1e-9)
    assert moved.measured.tolist() == found.measured[list(order)].tolist()
    assert moved.label_mass == pytest.approx(found.label_mass)
    assert moved.unresolved_mass == pytest.approx(found.unresolved_mass)


@PROFILE
@given(models(), st.data())
def test_splitting_a_token_changes_nothing(model: Any, data: st.DataObject) -> None:
    """A token split into two parts, the second of them certain, gives the same distribution."""
    labels, _, sequences = model
    completion = emit(sequences, pick(data, sequences))
    tokens = list(completion.tokens or ())
    index = data.draw(st.integers(0, len(tokens) - 1))
    token = tokens[index]
    units = pieces(token.data)
    assume(len(units) > 1)
    first = b"".join(units[: data.draw(st.integers(1, len(units) - 1))])
    # A listed alternative equal to the first part would be merged with it: other evidence.
    assume(first not in dict(token.top))
    # Behind a quote of its own, an alternative that opens the string too is another formatting.
    second = token.data[len(first) :]
    top = tuple((first if other == token.data else other, logprob) for other, logprob in token.top)
    tokens[index : index + 1] = [Token(first, token.logprob, top), Token(second, 0.0, ((second, 0.0),))]
    split = Completion(text=completion.text, tokens=tuple(tokens))
    before = extract_distribution(completion, labels, "category")
    after = extract_distribution(split, labels, "category")
    assert after.probabilities == pytest.approx(before.probabilities, abs=1e-9)
    assert after.label_mass == pytest.approx(before.label_mass, abs=1e-9)
    assert after.unresolved_mass == pytest.approx(before.unresolved_mass, abs=1e-9)
    # The joint moves only where the split sets a quote apart from the content it came with.
    if index and first != b'"' and second not in (b'"}', b"}"):
        assert after.joint_logprob == pytest.approx(before.joint_logprob)


@PROFILE
@given(label_sets(), st.booleans(), st.data())
def test_tokens_cut_anywhere_still_find_the_label(
    labels: tuple[str, ...], ascii_only: bool, data: st.DataObject
) -> None:
    """A label is found whether tokens are cut inside characters, escapes or surrogate pairs."""
    label = data.draw(st.sampled_from(labels))
    spelled = json.dumps(label, ensure_ascii=ascii_only).replace(
        "/", data.draw(st.sampled_from(("/", "\\/")))
    )
    text = HEAD + spelled.replace("&", data.draw(st.sampled_from(("&", "\\u0026")))).encode()
    text += b"}"
    cuts = data.draw(st.lists(st.integers(1, len(text) - 1), max_size=30))
    ends = sorted({*cuts, len(text)})
    parts = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    completion = Completion(text=text.decode(), tokens=tuple(Token(part, 0.0) for part in parts))
    found = extract_distribution(completion, labels, "category")
    check_invariants(found, labels)
    assert found.emitted == label
    assert found.probability(label) == pytest.approx(1.0, abs=1e-9)
    assert found.joint_logprob == 0.0


@PROFILE
@given(models(illegal=True), st.integers(1, 4), st.data())
def test_truncated_lists_invent_no_mass(model: Any, k: int, data: st.DataObject) -> None:
    """Truncated lists of alternatives add no mass, and the unseen mass is bounded."""
    labels, _, sequences = model
    completion = emit(sequences, pick(data, sequences))
    full = extract_distribution(completion, labels, "category", "raw")
    tokens = tuple(Token(t.data, t.logprob, t.top[:k]) for t in completion.tokens or ())
    cut_short = extract_distribution(
        Completion(text=completion.text, tokens=tokens), labels, "category", "raw"
    )
    check_invariants(cut_short, labels)
    assert cut_short.joint_logprob == full.joint_logprob
    if all(token.data != b'"' for token in tokens):  # else masses are relative to what opens
        assert cut_short.label_mass <= full.label_mass + 1e-9


@PROFILE
@given(models(illegal=True), st.data())
def test_repeated_and_impossible_alternatives_add_nothing(model: Any, data: st.DataObject) -> None:
    """Repeated alternatives count once, and alternatives of -inf or -9999 add nothing."""
    labels, texts, sequences = model
    completion = emit(sequences, pick(data, sequences))
    zero = data.draw(st.sampled_from((-math.inf, -9999.0)))
    extra = tuple((text[1:-1], zero) for text in texts.values())
    tokens = tuple(
        Token(t.data, t.logprob, (*t.top, *((other, lp - 1.0) for other, lp in t.top)))
        for t in completion.tokens or ()
    )
    repeated = extract_distribution(Completion(text=completion.text, tokens=tokens), labels, "category")
    before = extract_distribution(completion, labels, "category")
    assert repeated == before
    tokens = tuple(Token(t.data, t.logprob, (*t.top, *extra)) for t in completion.tokens or ())
    widened = extract_distribution(Completion(text=completion.text, tokens=tokens), labels, "category")
    assert widened.probabilities == pytest.approx(before.probabilities, abs=1e-9)


@PROFILE
@given(models(), st.data())
def test_the_joint_multiplies_content_tokens(model: Any, data: st.DataObject) -> None:
    """The joint log-probability is the sum over tokens with a byte between the quotes."""
    labels, _, sequences = model
    chosen = pick(data, sequences)
    completion = emit(sequences, chosen)
    end = len(b"".join(chosen.tokens)) - 2
    total, offset = 0.0, 0
    for token in (completion.tokens or ())[1:-1]:
        if offset + len(token.data) > 1 and offset < end:
            total += token.logprob
        offset += len(token.data)
    assert extract_distribution(completion, labels, "category").joint_logprob == pytest.approx(total)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 999), st.floats(0.01, 0.98))
def test_a_thousand_labels_sum_to_one(position: int, probability: float) -> None:
    """The probabilities of a thousand labels sum to one."""
    labels = tuple(f"group {i // 100}/item {i}" for i in range(1000))
    parts = [b'{"c": "', b"group ", labels[position][6:].encode(), b'"}']
    top = ((parts[2], math.log(probability)), (b"5/item", math.log((1 - probability) / 2)))
    tokens = [Token(part, 0.0) for part in parts]
    tokens[2] = Token(parts[2], math.log(probability), top)
    text = b"".join(parts).decode()
    found = extract_distribution(Completion(text=text, tokens=tuple(tokens)), labels, "c")
    check_invariants(found, labels)
    assert found.measured.sum() == 1
    assert found.probability(labels[position]) >= probability - 1e-9
