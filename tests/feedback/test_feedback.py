"""Tests of the severity of the feedback on one row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibrant.core import ConfigurationError, LabelDistribution, Outcome
from calibrant.feedback import build_feedback
from calibrant.logprobs import extract_distribution
from distributions import exact

GAS, POWER, WATER = "Bills/Gas & Oil", "Bills/Electricity", "Bills/Water"
GAMES, RENT = "Shopping/Games", "Rent"


def distribution(probabilities: Mapping[str, float], unmeasured: tuple[str, ...] = ()) -> LabelDistribution:
    """Return a distribution in which all but some labels were measured."""
    known = exact(tuple(probabilities), list(probabilities.values()))
    return replace(known, measured=np.array([label not in unmeasured for label in probabilities]))


def feedback(confidence: float | None, *, correct: bool = False, **changes: Any) -> str:
    """Return the feedback on a row that confuses gas with electricity, or gets gas right."""
    arguments: dict[str, Any] = {
        "is_correct": correct,
        "expected": GAS,
        "got": GAS if correct else POWER,
        "confidence": confidence,
        "distribution": None,
        "outcome": Outcome.OK,
    }
    return build_feedback(**(arguments | changes))


@pytest.mark.parametrize("confidence", [1.0, 0.999, 0.99, math.exp(math.log(0.99)), 0.99 - 1e-14, None])
def test_a_sure_right_answer_is_only_correct(confidence: float | None) -> None:
    """A right answer of high or unknown confidence gets only "Correct."."""
    known = distribution({GAS: 0.9, POWER: 0.1})
    text = feedback(confidence, correct=True, distribution=known, additional_context={"note": "x"})
    assert text == "Correct."


@pytest.mark.parametrize("confidence", [0.90, 0.95, 0.9899, 0.90 - 1e-14])
def test_a_right_answer_in_between_shows_alternatives(confidence: float) -> None:
    """A right answer with a confidence in [low, high) shows the probability and the alternatives."""
    text = feedback(
        confidence, correct=True, distribution=distribution({GAS: 0.95, POWER: 0.049, RENT: 0.001})
    )
    assert text.startswith("Correct (")
    assert "'Bills/Electricity' (5%)" in text
    assert GAS not in text
    assert RENT not in text
    assert feedback(0.95, correct=True) == "Correct (95% probability)."


def test_an_unsure_right_answer_names_its_rivals() -> None:
    """A right answer below `low` is called uncertain, and its rivals are listed."""
    text = feedback(0.73, correct=True, distribution=distribution({GAS: 0.73, POWER: 0.24, RENT: 0.03}))
    assert text.startswith("Correct but uncertain (73% probability).")
    assert "'Bills/Electricity' (24%), 'Rent' (3%)" in text
    assert "does not separate" in text


@pytest.mark.parametrize("known", [None, {GAS: 0.996, POWER: 0.004}])
def test_an_unsure_right_answer_without_rivals_says_it_too(known: Mapping[str, float] | None) -> None:
    """A right answer below `low` is called uncertain also where no rival is known."""
    text = feedback(0.73, correct=True, distribution=None if known is None else distribution(known))
    assert text == (
        f"Correct but uncertain (73% probability). The prompt does not separate '{GAS}' from the other labels."
    )


@pytest.mark.parametrize(
    ("confidence", "limits", "shown"),
    [
        (0.8995, {}, "89%"),
        (0.9 - 1e-14, {}, "90%"),
        (0.996, {"low": 0.997, "high": 0.998}, "99.6%"),
        (0.7951, {"low": 0.6, "high": 0.8}, "79%"),
        (0.7951, {"low": 0.6, "high": 0.79}, "80%"),
        (0.5951, {"low": 0.6, "high": 0.8}, "59%"),
        (0.9951, {"low": 0.9, "high": 0.996}, "99.5%"),
    ],
)
@pytest.mark.parametrize("correct", [True, False])
def test_confidence_never_rounds_up_to_a_threshold(
    confidence: float, limits: dict[str, float], shown: str, correct: bool
) -> None:
    """A confidence just below a threshold is shown with the digits that keep it below."""
    text = feedback(confidence, correct=correct, **limits)
    assert text == "Correct." or f" {shown} " in text or f"({shown} " in text


@pytest.mark.parametrize(
    ("confidence", "start"),
    [
        (0.6, "Wrong (60% probability)."),
        (0.0, "Wrong (<1% probability)."),
        (None, "Wrong (unknown confidence)."),
    ],
)
def test_an_unsure_wrong_answer_demands_guidance(confidence: float | None, start: str) -> None:
    """A wrong answer of low or unknown confidence demands guidance, without capitals."""
    text = feedback(confidence)
    assert text.startswith(start)
    assert f"Expected '{GAS}', got '{POWER}'" in text
    assert "guidance" in text
    assert "WRONG" not in text


@pytest.mark.parametrize("confidence", [0.90, 0.95, 0.98])
def test_a_wrong_answer_in_between_shows_the_alternatives(confidence: float) -> None:
    """A wrong answer with a confidence in [low, high) shows the alternatives without the predicted label."""
    text = feedback(confidence, distribution=distribution({GAS: 0.04, POWER: 0.95, RENT: 0.01}))
    assert text.startswith(f"Wrong ({round(confidence * 100)}% probability).")
    assert f"Expected '{GAS}', got '{POWER}'" in text
    assert "'Bills/Gas & Oil' (4%), 'Rent' (1%)" in text
    assert "'Bills/Electricity' (95%)" not in text
    assert text.endswith(f"Clearer guidance in the prompt on when '{GAS}' applies could fix it.")


def test_a_wrong_answer_shows_three_alternatives_at_most() -> None:
    """A wrong answer shows the three most probable alternatives."""
    shares = {"A": 0.5, "B": 0.2, "C": 0.12, "D": 0.1, "E": 0.08}
    text = feedback(0.5, expected="E", got="A", distribution=distribution(shares))
    assert text.endswith("could fix it.")
    assert "'B' (20%), 'C' (12%), 'D' (10%)." in text
    assert "'E' (8%)" not in text


def test_a_sure_wrong_answer_shows_what_else_was_considered() -> None:
    """A sure wrong answer lists the alternatives without the true label, which has its own sentence."""
    text = feedback(0.86, high=0.85, low=0.6, distribution=distribution({GAS: 0.05, POWER: 0.86, RENT: 0.09}))
    assert "own probability is 5%. Other alternatives: 'Rent' (9%)." in text
    assert text.count("'Bills/Gas & Oil' (5%)") == 0


def test_a_sure_mistake_shows_alternatives_however_improbable() -> None:
    """Beside a sure mistake, alternatives below one percent are listed; those below 0.01 % are not."""
    known = distribution({GAS: 0.002, POWER: 0.9964, RENT: 0.001, WATER: 0.0005, GAMES: 0.00005})
    text = feedback(0.9959, distribution=known)
    assert "own probability is 0.2%. Other alternatives: 'Rent' (0.1%), 'Bills/Water' (0.05%)." in text
    assert GAMES not in text


def guess(label: str = "Food", **others: float) -> LabelDistribution:
    """Return the distribution of an answer of one token, beside which other tokens were reported."""
    share = 1.0 - sum(others.values())
    listed = [{"token": text, "logprob": math.log(p)} for text, p in {label: share, **others}.items()]
    tokens = [{"token": '{"category": "', "logprob": 0.0}]
    tokens += [{**listed[0], "top_logprobs": listed}, {"token": '"}', "logprob": 0.0}]
    text = "".join(token["token"] for token in tokens)
    response = {"choices": [{"message": {"content": text}, "logprobs": {"content": tokens}}]}
    return extract_distribution(response, ["Food", "Rent", GAS, POWER, WATER, GAMES], "category")


BILLS = "'Bills/...' (46%: 'Bills/Electricity', 'Bills/Gas & Oil' or 'Bills/Water', not told apart)"


def test_a_runner_up_that_labels_share_is_named_by_its_beginning() -> None:
    """A token that begins several labels is one alternative, with its share and its labels."""
    known = guess(Bills=0.461)
    text = feedback(0.539, correct=True, expected="Food", got="Food", distribution=known)
    assert text == (
        f"Correct but uncertain (54% probability). Also considered: {BILLS}. The prompt does not separate 'Food' from "
        "these labels."
    )


def test_a_shared_runner_up_may_hold_the_true_label() -> None:
    """A wrong answer lists the beginning that the true label shares with others, in the order of probability."""
    known = guess(Bills=0.3, Rent=0.1)
    text = feedback(0.6, expected=GAS, got="Food", distribution=known)
    assert f"Alternatives to 'Food': {BILLS.replace('46%', '30%')}, 'Rent' (10%)." in text
    sure = feedback(0.995, expected=GAS, got="Food", distribution=guess(Bills=0.005))
    assert (
        "The true label shares a reported token with others; an estimate of its probability is 0.2%." in sure
    )
    assert f"Other alternatives: {BILLS.replace('46%', '0.5%')}." in sure


def test_a_beginning_of_the_answer_itself_is_no_rival() -> None:
    """A token that begins the predicted label, too, is left out, and of many labels three are named."""
    both = replace(exact(("Food", "Fuel"), [0.9, 0.1]), shared=((("Food", "Fuel"), 0.2),))
    text = feedback(0.8, correct=True, expected="Food", got="Food", distribution=both)
    assert "Also considered: 'Fuel' (10%). The prompt" in text
    labels = ["Food", *(f"Bills/{number}" for number in range(5))]
    known = replace(exact(("Food", *labels[1:]), [0.6, *[0.08] * 5]), shared=((tuple(labels[1:]), 0.4),))
    shown = feedback(0.6, correct=True, expected="Food", got="Food", distribution=known)
    assert "'Bills/...' (40%: 'Bills/0', 'Bills/1', 'Bills/2' or 2 more, not told apart)" in shown


@pytest.mark.parametrize("confidence", [0.99, 0.996, 1.0, math.exp(math.log(0.99))])
def test_a_sure_wrong_answer_demands_a_rule(confidence: float) -> None:
    """A sure wrong answer begins with "WRONG" and demands a rule that separates the two labels."""
    text = feedback(confidence, distribution=distribution({GAS: 0.03, POWER: 0.97}))
    assert text.startswith("WRONG")
    assert f"Expected '{GAS}', got '{POWER}'" in text
    assert "own probability is 3%" in text
    assert "misleads" in text
    assert f"explicit rule that separates '{GAS}' from '{POWER}'" in text


def test_an_unmeasured_true_label_is_called_an_estimate() -> None:
    """An unmeasured true label's probability is called an estimate; without a distribution none is shown."""
    sure = distribution({GAS: 0.003, POWER: 0.997}, unmeasured=(GAS,))
    text = feedback(0.997, distribution=sure)
    assert "99.7% certainty" in text
    assert "estimate of its probability is 0.3%" in text
    assert feedback(0.997).count("%") == 1


@pytest.mark.parametrize(
    ("probability", "shown"),
    [
        (0.03, "3%"),
        (0.01, "1%"),
        (0.0096, "1%"),
        (0.005, "0.5%"),
        (0.001, "0.1%"),
        (0.0003, "0.03%"),
        (0.0001, "0.01%"),
        (0.00005, "<0.01%"),
        (1e-12, "<0.01%"),
    ],
)
def test_the_true_labels_probability_keeps_a_digit(probability: float, shown: str) -> None:
    """Small probabilities keep one significant digit."""
    text = feedback(0.999, distribution=distribution({GAS: probability, POWER: 1 - probability}))
    assert f"own probability is {shown}." in text


def test_three_measured_alternatives_best_first() -> None:
    """Unmeasured labels and labels below one percent are left out."""
    known = distribution(
        {GAMES: 0.1, GAS: 0.4, POWER: 0.2, WATER: 0.15, RENT: 0.15, "Tax": 0.001}, unmeasured=(POWER,)
    )
    text = feedback(0.4, correct=True, distribution=known)
    assert "'Bills/Water' (15%), 'Rent' (15%), 'Shopping/Games' (10%)" in text
    assert POWER not in text
    assert "Tax" not in text
    wide = distribution({GAS: 0.4, POWER: 0.2, WATER: 0.15, RENT: 0.15, GAMES: 0.1})
    assert GAMES not in feedback(0.4, correct=True, distribution=wide)


def test_the_predicted_label_is_never_its_own_alternative() -> None:
    """The predicted label is not among the alternatives, in whatever case it was written."""
    text = feedback(
        0.7, correct=True, got="bills/gas & oil ", distribution=distribution({GAS: 0.7, POWER: 0.3})
    )
    assert f"'{GAS}' (70%)" not in text
    assert "(30%)" in text


@pytest.mark.parametrize(
    ("confidence", "shown"),
    [
        (1.0, "100%"),
        (0.99999, ">99.9%"),
        (0.999, "99.9%"),
        (0.9988, "99.8%"),
        (0.99, "99%"),
        (0.987, "98.7%"),
        (0.01, "1%"),
        (0.004, "<1%"),
        (0.0, "<1%"),
    ],
)
def test_percentages_never_round_to_certainty(confidence: float, shown: str) -> None:
    """99.6% is not shown as 100%, nor 0.4% as 0%."""
    text = feedback(confidence, high=1.0) if confidence < 1 else feedback(confidence)
    assert f" {shown} " in text or f"({shown} " in text


@pytest.mark.parametrize(
    ("context", "tail"),
    [
        ({"merchant": "LIGHT", "amount": 12.5}, "\nmerchant: LIGHT\namount: 12.5"),
        ({"tags": ["a", "ü"]}, '\ntags: ["a", "ü"]'),
        ("  a note ", "\na note"),
        ({}, ""),
        ("  ", ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("confidence", [None, 0.5, 0.95, 0.999])
def test_wrong_rows_append_the_additional_context(context: Any, tail: str, confidence: float | None) -> None:
    """The additional context of a wrong row is appended, at every severity."""
    assert feedback(confidence, additional_context=context) == feedback(confidence) + tail


@pytest.mark.parametrize(
    ("outcome", "said"), [(Outcome.UNPARSED, "no answer that can be read"), (Outcome.REFUSAL, "declined")]
)
def test_an_answer_without_label_is_the_prompts_business(outcome: Outcome, said: str) -> None:
    """Feedback on an answer without a label holds the reason and the expected label."""
    text = feedback(
        None, outcome=outcome, got=None, reason="cut off by length.", additional_context={"merchant": "LIGHT"}
    )
    assert said in text
    assert "cut off by length. Expected" in text
    assert f"Expected '{GAS}'" in text
    assert "exactly one label" in text
    assert text.endswith("\nmerchant: LIGHT")
    assert not text.startswith(("Wrong", "WRONG", "Correct"))


def test_what_the_model_wrote_instead_is_quoted_and_cut() -> None:
    """The model's raw text is quoted in the feedback, and cut to 80 characters."""
    text = feedback(None, outcome=Outcome.UNPARSED, got="I think\n" + "x" * 500, reason="not JSON.")
    written = "I think " + "x" * 71 + "…"
    assert len(written) == 80
    assert f"read as a label: not JSON. It wrote '{written}'. Expected '{GAS}'." in text
    cow = feedback(
        None,
        outcome=Outcome.UNPARSED,
        got='{"category": "cow"}',
        reason="answered 'cow', which is not one of the labels",
    )
    assert cow.startswith(
        "No label: the model gave no answer that can be read as a label: answered 'cow', which is not one of "
        f"the labels. It wrote '{{\"category\": \"cow\"}}'. Expected '{GAS}'."
    )


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        ("I can't help with that.", "I can't help with that."),
        ("moo", "Expected a JSON document with the field 'x', got 'moo' (Expecting value)"),
        ("It's\n moo " + "x" * 90, f'Expected JSON, got "It\'s moo {"x" * 60}..."'),
        ("  ", "cut off"),
        ("", "cut off"),
    ],
)
def test_what_the_reason_shows_already_is_not_shown_again(got: str, reason: str) -> None:
    """The raw text is not quoted where the reason already shows it."""
    assert feedback(0.999, got=None).startswith("No label")
    for outcome in (Outcome.UNPARSED, Outcome.REFUSAL):
        assert "It wrote" not in feedback(None, outcome=outcome, got=got, reason=reason)
    assert "It wrote 'x'" in feedback(None, outcome=Outcome.UNPARSED, got="x", reason="no text")


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("got", [None, POWER])
def test_a_failed_call_says_nothing_about_the_prompt(correct: bool, got: str | None) -> None:
    """A failed call's feedback says nothing about the prompt and never calls the row wrong."""
    text = feedback(0.999, correct=correct, got=got, outcome=Outcome.ERROR, reason="HTTP 503.")
    assert "(HTTP 503)" in text
    assert "nothing about the prompt" in text
    assert "wrong" not in text.lower()
    assert GAS not in text


@pytest.mark.parametrize(
    "changes",
    [{"low": 0.99, "high": 0.9}, {"high": 1.5}, {"low": -0.1}, {"low": math.nan}, {"low": 0.0, "high": 0.0}],
)
def test_disordered_thresholds_are_errors(changes: dict[str, Any]) -> None:
    """Thresholds that break 0 <= low <= high <= 1 raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="thresholds"):
        feedback(0.5, **changes)


@pytest.mark.parametrize("confidence", [math.nan, -0.1, 1.1])
def test_an_impossible_confidence_is_an_error(confidence: float) -> None:
    """An impossible confidence raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="confidence"):
        feedback(confidence)


def test_the_thresholds_are_the_callers() -> None:
    """The thresholds passed by the caller decide the severity of one confidence."""
    assert feedback(0.8, high=0.8, low=0.6).startswith("WRONG")
    assert feedback(0.7, high=0.8, low=0.6, correct=True) == "Correct (70% probability)."
    assert feedback(0.5, high=0.8, low=0.6, correct=True).startswith("Correct but uncertain")
