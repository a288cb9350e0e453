"""Tests of confidence from token log-probabilities, and of missing evidence."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.calibration import LabelPriorCorrection
from calibrant.cascade import Answered, Assessment, AvgLogprob, ConfidenceMethod, Hybrid, Margin, NoEvidence
from calibrant.core import ConfigurationError, Prediction, Token
from calibrant.heads import fit_head
from calibrant.inference import Classifier
from calibrant.testing import FakeClient, FakeContinuingClient

LABELS = ["cat", "dog"]
METHODS = [AvgLogprob, Margin, Hybrid]
LOGPROBS = st.floats(-30.0, 0.0)


def classifier(**changes: Any) -> Classifier:
    """Return a classifier of cats and dogs that keeps its tokens."""
    client = FakeClient(LABELS, {"meow": ("cat", 0.9), "hm": ("cat", 0.5)})
    settings = {"labels": LABELS, "field": "category", "keep_tokens": True, **changes}
    return Classifier(model=settings.pop("model", client), **settings)


CLASSIFIER = classifier()


def answered(*tokens: Token, text: str | None = None, **changes: Any) -> Answered:
    """Return an answer that consists of these tokens."""
    spelled = b"".join(token.data for token in tokens).decode() if text is None else text
    prediction = Prediction(label="cat", text=spelled, tokens=tokens or None, **changes)
    return Answered(question="meow", prediction=prediction, classifier=CLASSIFIER)


def assess(method: ConfidenceMethod, given_: Answered) -> Assessment:
    """Return the assessment, or fail the test if there is no evidence."""
    found = asyncio.run(method.assess(given_))
    assert isinstance(found, Assessment), found
    return found


def refused(method: ConfidenceMethod, given_: Answered) -> str:
    """Return why there is no evidence."""
    found = asyncio.run(method.assess(given_))
    assert isinstance(found, NoEvidence), found
    assert (found.attempts, found.usage.prompt_tokens) == (0, 0)
    return found.reason


def token(logprob: float, *others: float, data: bytes = b"x") -> Token:
    """Return a token with alternatives, itself listed first."""
    listed = [(data, logprob), *((b"other%d" % n, value) for n, value in enumerate(others))]
    return Token(data, logprob, tuple(listed))


# --- figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("native", "confidence"),
    [(0.0, 1.0), (-0.3, 0.9), (-1.0, 2 / 3), (-1.5, 0.5), (-3.0, 0.0), (-3.1, 0.0), (-9999.0, 0.0)],
)
def test_a_mean_logprob_becomes_a_confidence(native: float, confidence: float) -> None:
    """The confidence rises on a line from 0 at -3 to 1 at 0."""
    assert AvgLogprob().to_confidence(native) == pytest.approx(confidence, abs=1e-12)
    found = assess(AvgLogprob(token_filter="all"), answered(token(native, -9.0), token(native, -9.0)))
    assert (found.confidence, found.native) == (pytest.approx(confidence, abs=1e-12), native)


@pytest.mark.parametrize(
    ("native", "confidence"), [(0.0, 0.0), (2.0, 0.48658), (3.0, 0.63212), (20.0, 0.99873)]
)
def test_a_mean_gap_becomes_a_confidence(native: float, confidence: float) -> None:
    """A gap of 3 nats is 1 - 1/e, and a tie is 0."""
    assert Margin().to_confidence(native) == pytest.approx(confidence, abs=1e-5)
    found = assess(Margin(token_filter="all"), answered(token(-0.1, -0.1 - native)))
    assert (found.confidence, found.native) == (pytest.approx(confidence, abs=1e-5), pytest.approx(native))


def test_means_go_over_the_tokens_that_count() -> None:
    """The mean is that of the tokens that the filter keeps."""
    tokens = (
        token(-3.0, data=b'{"category": "'),
        token(-0.2, -2.2, data=b"c"),
        token(-0.4, -4.4, data=b"at"),
        token(-2.0, data=b'"}'),
    )
    assert assess(AvgLogprob(), answered(*tokens)).native == pytest.approx(-0.3)
    assert assess(Margin(), answered(*tokens)).native == pytest.approx(3.0)
    hybrid = assess(Hybrid(logprob_weight=0.25, margin_weight=0.75), answered(*tokens))
    assert hybrid.confidence == hybrid.native == pytest.approx(0.25 * 0.9 + 0.75 * (1 - math.exp(-1)))


def test_ruled_out_tokens_do_not_outweigh_ties() -> None:
    """An alternative at -9999 counts as a gap of 27.6 nats."""
    found = assess(Margin(token_filter="all"), answered(token(0.0, -9999.0), *[token(-0.7, -0.7)] * 9))
    assert found.native == pytest.approx(-math.log(1e-12) / 10)
    assert found.confidence < 0.61
    both = assess(Margin(token_filter="all"), answered(token(-9999.0, -9999.0)))
    assert both.confidence == 0.0


def test_weights_of_zero_need_no_evidence() -> None:
    """The half with weight 0 needs no evidence."""
    alone = Hybrid(logprob_weight=1.0, margin_weight=0.0, token_filter="all")
    assert assess(alone, answered(token(-0.3))).confidence == pytest.approx(0.9)
    only_margin = Hybrid(logprob_weight=0, margin_weight=1, token_filter="all")
    found = assess(only_margin, answered(token(-2.9, -4.9)))
    assert found.confidence == pytest.approx(Margin().to_confidence(2.0))


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "message"),
    [((0.5, 0.6), "add up to 1"), ((1.5, -0.5), r"logprob_weight in \[0, 1\], got 1.5")],
)
def test_weights_are_shares_of_one(weights: Any, message: str) -> None:
    """Weights out of range, or with another sum, raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        Hybrid(logprob_weight=weights[0], margin_weight=weights[1])


def test_weights_may_miss_one_by_rounding() -> None:
    """A sum within 1e-9 of 1 is accepted, and one that misses it by more is not."""
    Hybrid(logprob_weight=0.1 + 0.2, margin_weight=0.7)
    more = Hybrid(logprob_weight=1.0, margin_weight=9e-10, token_filter="all")
    assert assess(more, answered(token(0.0, -9999.0))).confidence == 1.0
    with pytest.raises(ConfigurationError):
        Hybrid(logprob_weight=0.5, margin_weight=0.5 + 1e-8)


def test_default_thresholds_can_accept_and_escalate() -> None:
    """Each default threshold accepts a sure answer and escalates an unsure one."""
    assert AvgLogprob().to_confidence(-1.0) == pytest.approx(AvgLogprob().default_threshold)
    for method in METHODS:
        sure, unsure = answered(token(-0.01, -5.0)), answered(token(-2.0, -2.0))
        chosen = method(token_filter="all")
        assert assess(chosen, sure).confidence >= chosen.default_threshold
        assert assess(chosen, unsure).confidence < chosen.default_threshold


@pytest.mark.parametrize("method", METHODS)
def test_methods_describe_themselves(method: Any) -> None:
    """The description has name and filter, which is the label's by default."""
    for chosen, which in ((method(), "label"), (method(token_filter="stop"), "stop")):
        described = chosen.describe()
        assert (described["method"], described["token_filter"]) == (method.name, which)
    with pytest.raises(ConfigurationError, match="'tool_call_args', got 'labels'"):
        method(token_filter="labels")
    assert Hybrid(logprob_weight=1, margin_weight=0).describe() != Hybrid().describe()


# --- no evidence ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_answers_without_tokens_are_no_evidence(method: Any) -> None:
    """The reason says what to do, also for a label that was scored."""
    assert "scoring='decode'" in refused(method(), answered())
    exact = Classifier(
        model=FakeContinuingClient(LABELS, {"meow": ("cat", 0.9)}), labels=LABELS, field="category"
    ).with_tokens()
    prediction = exact.classify("meow")
    assert prediction.distribution is not None
    found = Answered(question="meow", prediction=prediction, classifier=exact)
    assert "use label_probability" in refused(method(), found)


def test_single_alternatives_have_no_margin() -> None:
    """Every token that counts needs two alternatives."""
    for method in (Margin, Hybrid):
        assert "at least two alternatives" in refused(method(token_filter="all"), answered(token(-0.1)))
        mixed = answered(token(-0.1, -2.0), Token(b"y", -0.1))
        assert "got 1 at b'y'" in refused(method(token_filter="all"), mixed)
    framed = answered(
        token(0.0, data=b'{"category": "'), token(-0.1, -2.0, data=b"a"), token(0.0, data=b'"}')
    )
    assert assess(Margin(), framed).native == pytest.approx(1.9)
    assert assess(Margin(token_filter="all"), framed).native == pytest.approx(1.9)


GIVEN = Token(b'{"category": "', 0.0)


@pytest.mark.parametrize("token_filter", ["label", "stop", "all"])
@pytest.mark.parametrize("method", METHODS)
def test_forced_tokens_never_count(method: Any, token_filter: Any) -> None:
    """Tokens without an alternative neither raise a mean nor lack evidence."""
    chosen = (token(-0.5, -2.5, data=b"c"), token(-0.7, -1.7, data=b"a"))
    forced = token(-1e-7, data=b't"}')
    found = assess(method(token_filter=token_filter), answered(GIVEN, *chosen, forced))
    assert found == assess(method(token_filter="all"), answered(*chosen))


def test_a_sure_token_with_alternatives_counts() -> None:
    """A token of probability 1 counts if it has an alternative."""
    sure = (token(0.0, -9999.0, data=b"c"), token(-0.6, -1.6, data=b"at"))
    found = assess(AvgLogprob(token_filter="all"), answered(GIVEN, *sure))
    assert found.native == pytest.approx(-0.3)


def test_an_answer_without_any_choice_is_no_evidence() -> None:
    """An answer of forced tokens alone is no evidence."""
    for method in METHODS:
        forced = answered(GIVEN, token(0.0, data=b'cat"}'))
        assert "had a choice" in refused(method(token_filter="all"), forced)


def test_all_tokens_count_without_alternatives() -> None:
    """Where a server lists no alternatives at all, every token counts."""
    tokens = (GIVEN, Token(b"cat", -0.6), Token(b'"}', 0.0))
    assert assess(AvgLogprob(token_filter="all"), answered(*tokens)).native == pytest.approx(-0.2)
    assert assess(AvgLogprob(), answered(*tokens)).native == pytest.approx(-0.6)


def test_empty_selections_are_no_evidence() -> None:
    """An empty selection gives the filter's reason."""
    for method in METHODS:
        assert "tool call" in refused(method(token_filter="tool_call_args"), answered(token(-0.1, -1.0)))
        assert "category" in refused(method(), answered(token(-0.1, -1.0)))


# --- from a classifier ---------------------------------------------------------------------------


def test_answers_of_a_classifier_are_assessed() -> None:
    """The tokens of a classifier's copy are enough for both methods."""
    client = FakeClient(LABELS, {"meow": ("cat", 0.9)})
    plain = Classifier(model=client, labels=LABELS, field="category", top_logprobs=1)
    for method, expected in ((AvgLogprob(), math.log(0.9)), (Margin(), math.log(9.0))):
        ready = plain.with_tokens(top_logprobs=method.top_logprobs)
        found = Answered(question="meow", prediction=ready.classify("meow"), classifier=ready)
        assert assess(method, found).native == pytest.approx(expected)


# --- invariants ----------------------------------------------------------------------------------

REPORTED = LOGPROBS | st.just(-9999.0)
TOKENS = st.lists(st.tuples(REPORTED, st.lists(REPORTED, min_size=1, max_size=5)), min_size=1, max_size=6)


@given(TOKENS, st.randoms(use_true_random=False))
def test_order_of_alternatives_does_not_matter(rows: Any, rng: random.Random) -> None:
    """The confidence lies in [0, 1], and does not depend on the order of alternatives."""
    tokens = [token(logprob, *others) for logprob, others in rows]
    shuffled = [replace(one, top=tuple(rng.sample(one.top, len(one.top)))) for one in tokens]
    for method in METHODS:
        chosen = method(token_filter="all")
        found = assess(chosen, answered(*tokens))
        assert 0.0 <= found.confidence <= 1.0
        assert found == assess(chosen, answered(*shuffled))
        assert chosen.to_confidence(found.native) == found.confidence


def test_the_two_best_alternatives_are_compared() -> None:
    """Lists that are not sorted, or lack the emitted token, give the same gap."""
    listed = ((b"a", -5.0), (b"b", -0.5), (b"c", -3.5))
    for top in (listed, listed[::-1], (listed[1], listed[0], listed[2])):
        found = assess(Margin(token_filter="all"), answered(Token(b"a", -5.0, top)))
        assert found.native == pytest.approx(3.0)
    unlisted = Token(b"a", -2.5, ((b"b", -0.5),))
    assert assess(Margin(token_filter="all"), answered(unlisted)).native == pytest.approx(2.0)


@pytest.mark.parametrize("bad", [math.nan, 0.5, math.inf])
def test_illegal_logprobs_are_no_evidence(bad: float) -> None:
    """NaN or a value above 0, of a token or an alternative, is no evidence."""
    for method in METHODS:
        for one in (token(bad, -1.0), token(-1.0, bad)):
            assert "<= 0" in refused(method(token_filter="all"), answered(one))


@pytest.mark.parametrize(
    "changes",
    [
        {"prior_correction": LabelPriorCorrection().fit([[math.log(0.99), math.log(0.01)]] * 50)},
        {"head": fit_head(np.log([[0.95, 0.05], [0.9, 0.1]] * 30), [0, 1] * 30, labels=LABELS)},
    ],
    ids=["prior", "head"],
)
def test_tokens_of_replaced_labels_are_no_evidence(changes: dict[str, Any]) -> None:
    """Tokens of a label that the prior correction or a head replaced are no evidence."""
    corrected = classifier(**changes)
    prediction = corrected.classify("meow")
    assert prediction.label == "dog"
    found = Answered(question="meow", prediction=prediction, classifier=corrected)
    for method in METHODS:
        assert "label-prior correction" in refused(method(), found)
        assert assess(method(), replace(found, prediction=CLASSIFIER.classify("meow"))).confidence > 0


@given(TOKENS, st.floats(0.0, 1.0))
def test_hybrid_lies_between_its_parts(rows: Any, weight: float) -> None:
    """The hybrid confidence is the weighted mean of its two parts."""
    given_ = answered(*[token(logprob, *others) for logprob, others in rows])
    parts = [assess(method(token_filter="all"), given_).confidence for method in (AvgLogprob, Margin)]
    found = assess(Hybrid(logprob_weight=weight, margin_weight=1.0 - weight, token_filter="all"), given_)
    assert found.confidence == pytest.approx(weight * parts[0] + (1.0 - weight) * parts[1], abs=1e-12)
