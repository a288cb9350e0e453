"""Labels shown as codes in several orders: what is asked, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from calibrant import Classifier, ConfidenceAdapter
from calibrant.clients import RetryPolicy
from calibrant.core import (
    CompletionRequest,
    ConfigurationError,
    ContextLengthError,
    LabelSet,
    LogprobSpace,
    Outcome,
    Prediction,
    ProviderError,
    prediction_from_record,
    prediction_to_record,
)
from calibrant.inference import LabelCodes
from calibrant.logprobs import enum_schema
from calibrant.testing import FakeClient, FakeContinuingClient, MemoryJournal, fake_response

LABELS = ["Business", "Sports", "Sci/Tech", "World"]
CODES = ["A", "B", "C", "D"]
TRUTH = {"Business": 0.1, "Sports": 0.2, "Sci/Tech": 0.6, "World": 0.1}
PLACES = {"A": 0.7, "B": 0.2, "C": 0.1, "D": 0.0}

Rule = Callable[[Mapping[str, str]], Any]


def mapping_in(prompt: str) -> dict[str, str]:
    """Return which label each code stands for, in the order of the prompt's lines."""
    return dict(line.split(" = ") for line in prompt.splitlines() if " = " in line)


def reads(rule: Rule) -> Any:
    """Return a rule of a fake model that answers from the mapping in its prompt."""
    return lambda _text, prompt: rule(mapping_in(prompt))


def knows(shown: Mapping[str, str], truth: Mapping[str, float] = TRUTH) -> dict[str, float]:
    """Return the answer of a model that cares for the labels alone."""
    return {code: truth[label] for code, label in shown.items()}


def biased(shown: Mapping[str, str]) -> dict[str, float]:
    """Return the answer of a model that half cares for the labels, and half for places and codes."""
    return {code: (TRUTH[label] + PLACES[code]) / 2 for code, label in shown.items()}


def make(model: Any, **changes: Any) -> Classifier:
    """Return a classifier that shows codes, with some of its arguments replaced."""
    arguments = {
        "labels": LABELS,
        "field": "category",
        "prompt": "Which topic?",
        "label_codes": True,
        "retry": RetryPolicy(attempts=1),
        "top_logprobs": 20,
        **changes,
    }
    return Classifier(model=model, **arguments)


def classify(rule: Rule, *, kind: Any = FakeClient, fake: Any = None, **changes: Any) -> Prediction:
    """Return the prediction of a model that follows `rule`."""
    return make(kind(CODES, reads(rule), **(fake or {})), **changes).classify("text")


def spread(prediction: Prediction) -> dict[str, float]:
    """Return the probability of each label."""
    found = prediction.distribution
    assert found is not None
    return dict(zip(found.labels, found.probabilities.tolist(), strict=True))


def refusal(reason: str = "No.") -> dict[str, Any]:
    """Return an answer that declines."""
    message = {"role": "assistant", "content": None, "refusal": reason}
    return {"choices": [{"finish_reason": "stop", "message": message}]}


def ticking(*answers: Any) -> Rule:
    """Return a rule that gives these answers to successive calls; functions are called with the mapping."""
    waiting = list(answers)

    def rule(shown: Mapping[str, str]) -> Any:
        answer = waiting.pop(0)
        return answer(shown) if callable(answer) else answer

    return rule


# --- what is asked ------------------------------------------------------------------------------


def test_the_prompt_ends_with_the_codes_and_the_schema_holds_them() -> None:
    """One line a label; text, options and everything else stay as they are."""
    client = FakeClient(CODES, reads(knows))
    classifier = make(client, label_codes=LabelCodes(passes=1, seed=3), options={"max_tokens": 9})
    classifier.classify("text")
    (request,) = client.requests
    system, user = request.messages
    first, *lines = system["content"].removeprefix("Which topic?\n\n").splitlines()
    assert first == 'In "category", write the code of a label instead of the label:'
    assert [line.split(" = ")[0] for line in lines] == CODES
    assert sorted(line.split(" = ")[1] for line in lines) == sorted(LABELS)
    assert user == {"role": "user", "content": "text"}
    assert request.response_format == enum_schema(CODES, "category")
    assert (request.top_logprobs, dict(request.options)) == (20, {"max_tokens": 9})


def test_an_empty_prompt_is_the_mapping_alone() -> None:
    """Without lines that say nothing."""
    client = FakeClient(CODES, reads(knows))
    make(client, prompt="").classify("text")
    assert client.requests[0].messages[0]["content"].startswith('In "category"')


def test_messages_without_a_system_message_get_one() -> None:
    """For whoever uses the method with messages of their own."""
    client = FakeClient(CODES, reads(knows))
    request = CompletionRequest(messages=({"role": "user", "content": "text"},))
    prediction = asyncio.run(make(client).runner.method.predict(request))
    assert prediction.label == "Sci/Tech"
    assert [message["role"] for message in client.requests[0].messages] == ["system", "user"]


def test_a_label_stays_on_its_line() -> None:
    """White space inside a label would break the list."""
    client = FakeClient(["A", "B"], {}, default="A")
    make(client, labels=["one\n two", "three"]).classify("text")
    assert sorted(mapping_in(client.requests[0].messages[0]["content"]).values()) == ["one two", "three"]


def test_four_passes_by_default_and_never_more_than_labels() -> None:
    """After as many passes as labels the same would be asked again."""
    for n_labels, passes in ((2, 2), (3, 3), (4, 4), (9, 4)):
        client = FakeClient(["A", "B"], {}, default="A")
        make(client, labels=[f"label {number}" for number in range(n_labels)]).classify("text")
        assert len({request.messages[0]["content"] for request in client.requests}) == passes
        assert len(client.requests) == passes


def test_passes_share_the_limit_of_the_rows() -> None:
    """They run side by side, but not more of them than calls may be in flight."""
    client = FakeClient(CODES, reads(knows), latency=0.005)
    make(client).classify("text")
    assert client.max_in_flight == 4
    narrow = FakeClient(CODES, reads(knows), latency=0.002)
    make(narrow, concurrency=3).classify_many([str(number) for number in range(6)])
    assert (narrow.max_in_flight, len(narrow.requests)) == (3, 24)


# --- codes and orders ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_labels", "first", "last"),
    [
        (2, "A", "B"),
        (26, "A", "Z"),
        (27, "00", "26"),
        (100, "00", "99"),
        (101, "000", "100"),
        (1001, "0000", "1000"),
    ],
)
def test_default_codes_are_letters_then_numbers_of_equal_length(n_labels: int, first: str, last: str) -> None:
    """So that none is the beginning of another."""
    codes = LabelCodes().for_labels(LabelSet([f"label {number}" for number in range(n_labels)]))
    assert (codes[0], codes[-1], len(set(codes))) == (first, last, n_labels)
    assert len({len(code) for code in codes}) == 1


def test_codes_of_ones_own_are_used_in_their_order() -> None:
    """More of them than labels may be given."""
    own = ["x1", "x2", "y", "z", "w"]
    client = FakeClient(own, reads(knows))
    prediction = make(client, label_codes=LabelCodes(codes=own)).classify("text")
    shown = [list(mapping_in(request.messages[0]["content"])) for request in client.requests]
    assert shown == [["x1", "x2", "y", "z"]] * 4
    assert spread(prediction) == pytest.approx(TRUTH)


@pytest.mark.parametrize("n_labels", [2, 3, 5, 8])
def test_as_many_passes_as_labels_are_a_latin_square(n_labels: int) -> None:
    """Every label once at every place, and every place once for every label."""
    orders = LabelCodes(passes=n_labels).orders(n_labels)
    everything = set(range(n_labels))
    assert all(set(line) == everything for line in orders.tolist())
    assert all(set(line) == everything for line in orders.T.tolist())


@pytest.mark.parametrize(("passes", "n_labels"), [(2, 8), (4, 8), (4, 10), (3, 77)])
def test_fewer_passes_are_spread_over_the_list(passes: int, n_labels: int) -> None:
    """A label moves on by about L / passes places each time: never by one alone."""
    orders = LabelCodes(passes=passes).orders(n_labels)
    assert orders.shape == (passes, n_labels)
    for label in range(n_labels):
        places = np.sort(np.argwhere(orders == label)[:, 1])
        gaps = np.diff([*places, places[0] + n_labels])
        assert set(gaps.tolist()) <= {n_labels // passes, -(-n_labels // passes)}


def test_the_orders_depend_on_the_seed_alone() -> None:
    """The same one gives the same orders, another one another."""
    first, again, other = (LabelCodes(seed=seed).orders(20).tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other


# --- what becomes of the answers ----------------------------------------------------------------


def test_probabilities_of_codes_become_those_of_their_labels() -> None:
    """A model without any bias gives the same with codes as without."""
    prediction = classify(knows)
    assert (prediction.label, prediction.outcome, prediction.reason) == ("Sci/Tech", Outcome.OK, "")
    assert spread(prediction) == pytest.approx(TRUTH)
    assert list(spread(prediction)) == LABELS
    assert prediction.confidence == pytest.approx(0.6)


def test_a_model_that_only_looks_at_places_prefers_no_label() -> None:
    """Its bias is cancelled completely: 1/4 each, and the first label wins the tie."""
    prediction = classify(lambda _shown: PLACES)
    assert spread(prediction) == pytest.approx(dict.fromkeys(LABELS, 0.25))
    assert prediction.label == "Business"
    single = classify(lambda _shown: PLACES, label_codes=LabelCodes(passes=1))
    assert max(spread(single).values()) == pytest.approx(0.7)


@pytest.mark.parametrize("seed", range(5))
def test_labels_that_no_pass_tells_apart_are_exactly_equal(seed: int) -> None:
    """Sums of the same numbers in another order must not decide for a label."""
    places = dict(zip("ABCDEFG", (0.1, 0.2, 0.3, 0.15, 0.05, 0.13, 0.07), strict=True))
    labels = [f"label {number}" for number in range(7)]
    prediction = classify(lambda _shown: places, labels=labels, label_codes=LabelCodes(passes=7, seed=seed))
    assert len(set(spread(prediction).values())) == 1
    assert prediction.label == "label 0"


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_what_a_model_knows_is_left_when_its_bias_is_cancelled(seed: int) -> None:
    """By hand: half of what it knows, and half of 1/4 each; one pass answers with the first place."""
    codes = LabelCodes(passes=4, seed=seed)
    found = spread(classify(biased, label_codes=codes))
    assert found == pytest.approx({label: share / 2 + 0.125 for label, share in TRUTH.items()})


def test_a_strong_bias_decides_a_single_pass_but_not_the_average() -> None:
    """A model that multiplies what it knows with a preference for places is wrong in most orders."""

    def torn(shown: Mapping[str, str]) -> dict[str, float]:
        weights = dict(zip(CODES, (0.85, 0.1, 0.04, 0.01), strict=True))
        return {code: weights[code] * TRUTH[label] for code, label in shown.items()}

    def answers(passes: int) -> list[str | None]:
        return [classify(torn, label_codes=LabelCodes(passes=passes, seed=seed)).label for seed in range(12)]

    assert set(answers(1)) > {"Sci/Tech"}
    assert set(answers(4)) == {"Sci/Tech"}


def test_two_passes_are_the_mean_of_two() -> None:
    """By hand, from the mappings that were shown."""
    client = FakeClient(CODES, reads(biased))
    found = spread(make(client, label_codes=LabelCodes(passes=2, seed=5)).classify("text"))
    expected = dict.fromkeys(LABELS, 0.0)
    for request in client.requests:
        shown = mapping_in(request.messages[0]["content"])
        for code, probability in biased(shown).items():
            expected[shown[code]] += probability / 2
    assert found == pytest.approx(expected)


def test_another_order_of_the_labels_changes_nothing_but_the_order() -> None:
    """With as many passes as labels each label has been everywhere, however the set is written."""
    turned = ["World", "Sci/Tech", "Business", "Sports"]
    prediction = classify(biased, labels=turned)
    assert list(spread(prediction)) == turned
    assert spread(prediction) == pytest.approx(spread(classify(biased)))
    assert prediction.label == "Sci/Tech"


def test_the_label_is_the_most_probable_on_average() -> None:
    """Not the one most passes answered: 0.9 once beats 0.4 twice."""
    labels = ["a", "b", "c"]
    sure = {"a": 0.05, "b": 0.05, "c": 0.9}
    torn = {"a": 0.4, "b": 0.35, "c": 0.25}
    prediction = classify(
        ticking(*(lambda shown, truth=truth: knows(shown, truth) for truth in (torn, sure, torn))),
        labels=labels,
        label_codes=LabelCodes(passes=3, codes=["x", "y", "z"]),
    )
    assert prediction.label == "c"
    assert prediction.confidence == pytest.approx((0.9 + 0.25 + 0.25) / 3)


def test_in_masked_space_the_confidence_is_the_average() -> None:
    """Not the joint probability of the tokens of one pass, half of which were no code here."""
    prediction = classify(biased, fake={"illegal_mass": 0.5})
    found = prediction.distribution
    assert found is not None
    assert (found.space, found.joint_logprob, found.emitted) == (LogprobSpace.MASKED, None, "Sci/Tech")
    assert prediction.confidence == pytest.approx(0.6 / 2 + 0.125)
    assert found.label_mass == pytest.approx(0.5)
    assert found.error_bound is None


def test_masses_are_means_and_evidence_adds_up() -> None:
    """Each pass lists two codes only, and a part of its mass is no code at all."""
    masses = (0.0, 0.2, 0.4, 0.6)

    def answers(illegal: float) -> Callable[[Mapping[str, str]], Any]:
        def answer(shown: Mapping[str, str]) -> Any:
            probabilities = [0.6 if label == "World" else 0.4 / 3 for label in shown.values()]
            code = next(code for code, label in shown.items() if label == "World")
            return fake_response(code, CODES, probabilities, top_logprobs=3, illegal_mass=illegal)

        return answer

    prediction = classify(ticking(*map(answers, masses)), fake={"space": "raw"})
    found = prediction.distribution
    assert found is not None
    assert found.space is LogprobSpace.RAW
    # Three alternatives: World and two others, or World, the illegal token and one other.
    listed = [0.6 + 0.8 / 3, *(0.8 * (0.6 + 0.4 / 3), 0.6 * (0.6 + 0.4 / 3), 0.4 * (0.6 + 0.4 / 3))]
    assert found.label_mass == pytest.approx(sum(listed) / 4)
    left = [0.4 / 3, *(share * 0.8 / 3 for share in (0.8, 0.6, 0.4))]
    assert found.unresolved_mass == pytest.approx(sum(left) / 4)
    assert found.measured[LABELS.index("World")]
    assert found.measured.sum() > 2


def test_evidence_of_a_single_pass_is_evidence() -> None:
    """Every pass measures one other label; together they measured them all."""

    def only_the_first(_shown: Mapping[str, str]) -> Any:
        return fake_response("A", CODES, [0.97, 0.01, 0.01, 0.01], top_logprobs=1)

    (measured,) = [classify(only_the_first).distribution]
    assert measured is not None
    assert measured.measured.all()
    single = classify(only_the_first, label_codes=LabelCodes(passes=1)).distribution
    assert single is not None
    assert single.measured.sum() == 1


def test_the_prediction_sums_what_the_passes_took() -> None:
    """Calls, tokens and money; the text is the last pass's."""

    def priced(cost: float | None, code: str) -> dict[str, Any]:
        response = fake_response(code, CODES, [0.25] * 4)
        response["usage"] = {"prompt_tokens": 10, "completion_tokens": 2}
        return response if cost is None else {**response, "_hidden_params": {"response_cost": cost}}

    rule = ticking(priced(0.5, "A"), priced(None, "B"), priced(0.25, "C"), priced(0.25, "D"))
    prediction = classify(rule)
    usage = prediction.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cost) == (40, 8, 1.0)
    assert (prediction.attempts, prediction.text, prediction.model) == (4, '{"category": "D"}', "fake")


def test_labels_are_spelled_as_the_user_spells_them() -> None:
    """Codes appear in no prediction but for the raw text."""
    labels = ["sci/TECH ", "Über-Sport"]
    prediction = classify(
        lambda shown: next(c for c, label in shown.items() if label == "Über-Sport"), labels=labels
    )
    assert prediction.label == "Über-Sport"
    assert list(spread(prediction)) == labels


@pytest.mark.parametrize("kind", [FakeClient, FakeContinuingClient])
def test_a_prediction_survives_the_journal(kind: Any) -> None:
    """Every field, the bound included."""
    prediction = classify(biased, kind=kind)
    assert prediction_from_record(prediction_to_record(prediction)) == prediction


# --- with other methods -------------------------------------------------------------------------


def test_exact_scoring_is_used_where_the_model_allows_it() -> None:
    """On the codes, which are one token each: one question a pass."""
    client = FakeContinuingClient(CODES, reads(biased))
    prediction = make(client).classify("text")
    found = prediction.distribution
    assert found is not None
    assert (found.space, found.joint_logprob) == (LogprobSpace.EXACT, None)
    assert spread(prediction) == pytest.approx({label: share / 2 + 0.125 for label, share in TRUTH.items()})
    assert client.beginnings == ['{"category": "'] * 4
    assert set(client.checked) == {tuple(CODES)}
    assert prediction.attempts == 4


def test_the_bound_holds_for_the_mean() -> None:
    """With codes of two tokens and a coarse tolerance the mean is off, but by no more than it says."""
    labels = [f"label {number}" for number in range(30)]
    codes = [f"{number:02}" for number in range(30)]
    truth = {label: float(1 + number % 7) for number, label in enumerate(labels)}
    client = FakeContinuingClient(
        codes, reads(lambda shown: knows(shown, truth)), tokens=lambda text: [text[:1], text[1:]]
    )
    prediction = make(client, labels=labels, tolerance=0.98).classify("text")
    total = sum(truth.values())
    distance = sum(abs(share - truth[label] / total) for label, share in spread(prediction).items()) / 2
    assert prediction.distribution is not None
    bound = prediction.distribution.error_bound
    assert bound is not None
    assert 0.0 < distance <= bound < 1.0
    assert len(client.beginnings) == prediction.attempts > 4


def test_the_bound_is_the_mean_of_the_passes_bounds() -> None:
    """Two passes whose open mass differs: (0.25 + 0) / 2."""
    labels, codes = ["a", "b", "c"], ["1x", "2y", "2z"]

    def rule(shown: Mapping[str, str]) -> dict[str, float]:
        # Open below "2" are 2y and 2z; where both are improbable that is not looked into.
        first = shown["1x"] == "a"
        return {"1x": 0.75, "2y": 0.125, "2z": 0.125} if first else {"1x": 0.125, "2y": 0.5, "2z": 0.375}

    client = FakeContinuingClient(codes, reads(rule), tokens="characters")
    prediction = make(
        client, labels=labels, label_codes=LabelCodes(passes=3, codes=codes), tolerance=0.3
    ).classify("text")
    found = prediction.distribution
    assert found is not None
    # One pass leaves 0.25 below "2" open, two passes leave 0.125 below "1" open.
    assert found.error_bound == pytest.approx((0.25 + 0.125 + 0.125) / 3)
    assert found.label_mass == pytest.approx(1.0)


def test_sampled_passes_are_averaged_too() -> None:
    """Three samples of each of four orders; agreement in each is (3 + 1) / (3 + 4)."""
    client = FakeClient(CODES, reads(lambda shown: next(c for c, label in shown.items() if label == "World")))
    prediction = make(client, scoring="sampled", samples=3, options={"seed": 5}).classify("text")
    assert prediction.label == "World"
    assert prediction.confidence == pytest.approx(4 / 7)
    assert prediction.distribution is not None
    assert prediction.distribution.space is LogprobSpace.SAMPLED
    assert (prediction.attempts, len(client.requests)) == (12, 12)
    assert sorted(request.options["seed"] for request in client.requests) == [5] * 4 + [6] * 4 + [7] * 4


def test_sampled_passes_share_the_limit_of_the_rows() -> None:
    """Four passes of five samples are no more calls in flight than allowed."""
    client = FakeClient(CODES, reads(knows), latency=0.002)
    make(client, scoring="sampled", samples=5, concurrency=2).classify("text")
    assert (client.max_in_flight, len(client.requests)) == (2, 20)


def test_without_log_probabilities_most_passes_decide() -> None:
    """There is a label, but no confidence: votes of different orders are no probabilities."""

    def votes(*labels: str) -> Rule:
        return ticking(*(lambda shown, wanted=wanted: find(shown, wanted) for wanted in labels))

    def find(shown: Mapping[str, str], wanted: str) -> str:
        return next(code for code, label in shown.items() if label == wanted)

    prediction = classify(votes("World", "Sports", "World", "Business"), top_logprobs=0)
    assert (prediction.label, prediction.confidence, prediction.distribution) == ("World", None, None)
    tied = classify(votes("World", "Sports", "World", "Sports"), top_logprobs=0)
    assert tied.label == "Sports"


def test_passes_without_log_probabilities_are_left_out_where_others_have_them() -> None:
    """The mean is that of the others."""
    silent = fake_response("A", CODES, top_logprobs=0)
    prediction = classify(ticking(silent, knows, silent, knows))
    assert spread(prediction) == pytest.approx(TRUTH)
    assert prediction.label == "Sci/Tech"


# --- passes without an answer -------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["Business", refusal()])
def test_a_pass_without_a_code_is_left_out(bad: Any) -> None:
    """The mean is that of the others; its call counts all the same."""
    prediction = classify(ticking(bad, knows, knows, bad))
    assert (prediction.outcome, prediction.reason, prediction.label) == (Outcome.OK, "", "Sci/Tech")
    assert spread(prediction) == pytest.approx(TRUTH)
    assert prediction.attempts == 4
    assert re.fullmatch(r'{"category": "[A-D]"}', prediction.text)


@pytest.mark.parametrize(
    ("answers", "outcome", "reason"),
    [
        (
            ["World", "World", refusal(), "X"],
            Outcome.UNPARSED,
            "answered 'World', which is not one of the labels",
        ),
        ([refusal("Never."), "X", refusal("No."), refusal("No.")], Outcome.REFUSAL, "Never."),
    ],
)
def test_without_any_code_most_passes_decide(answers: list[Any], outcome: Outcome, reason: str) -> None:
    """The reason says that codes were asked for: the model may have answered with a label."""
    prediction = classify(ticking(*answers))
    assert (prediction.outcome, prediction.reason) == (outcome, f"label codes: {reason}")
    assert (prediction.label, prediction.confidence, prediction.distribution) == (None, None, None)
    assert prediction.attempts == 4


def test_a_pass_that_fails_fails_the_row() -> None:
    """Without it the others would be biased; all calls are counted."""
    down = ProviderError("down", provider="fake", status=500)
    client = FakeClient(CODES, reads(knows), failures={1: down})
    prediction = make(client).classify("text")
    assert (prediction.outcome, prediction.reason) == (Outcome.ERROR, "fake: down")
    assert (prediction.attempts, len(client.requests)) == (4, 4)


def test_passing_faults_of_a_pass_are_retried() -> None:
    """That pass alone."""
    down = ProviderError("down", provider="fake", status=503, retryable=True)
    client = FakeClient(CODES, reads(knows), failures={1: down})
    prediction = make(client, retry=RetryPolicy(attempts=2, initial_seconds=0)).classify("text")
    assert (prediction.label, prediction.attempts) == ("Sci/Tech", 5)


def test_a_prompt_that_is_too_long_with_its_codes_is_the_prompts_fault() -> None:
    """As it is without codes."""
    long = ContextLengthError("The text is too long.", provider="fake", status=400)
    client = FakeClient(CODES, reads(knows), failures={2: long})
    assert make(client).classify("text").outcome is Outcome.UNPARSED


# --- choosing it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"passes": 0}, "passes of the label codes to be a whole number of at least 1, got 0"),
        ({"passes": 2.0}, "passes"),
        ({"passes": True}, "passes"),
        ({"seed": -1}, "seed of the label codes to be a whole number of at least 0, got -1"),
        ({"seed": None}, "seed"),
        ({"codes": "ABCD"}, "a list of codes, got the text 'ABCD'"),
        ({"codes": ["A"]}, "a code for every label, got 1"),
        ({"codes": []}, "a code for every label, got 0"),
        ({"codes": ["A", "A"]}, "none is the beginning of another, up to case, got 'a' and 'a'"),
        ({"codes": ["A", "a"]}, "none is the beginning"),
        ({"codes": ["1", "2", "10"]}, "got '1' and '10'"),
        ({"codes": ["ab", "B", "abc", "abd"]}, "got 'ab' and 'abc'"),
        ({"codes": ["A", ""]}, "without white space, got ''"),
        ({"codes": ["A", "B C"]}, "without white space, got 'B C'"),
        ({"codes": ["A", " B"]}, "without white space, got ' B'"),
        ({"codes": ["A", 2]}, "without white space, got 2"),
    ],
)
def test_codes_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    """What was expected, and what came."""
    with pytest.raises(ConfigurationError, match=message):
        LabelCodes(**settings)


def test_codes_are_checked_against_the_labels() -> None:
    """Enough of them, and none that is a label itself."""
    client = FakeClient(CODES, {})
    with pytest.raises(ConfigurationError, match="a code for each of 4 labels, got 3 codes"):
        make(client, label_codes=LabelCodes(codes=["x", "y", "z"]))
    with pytest.raises(ConfigurationError, match="codes that are no labels, got 'B', which is both"):
        make(client, labels=["b", "x"])
    make(client, labels=["c", "x"])  # the code C is not used


@pytest.mark.parametrize("value", ["yes", 4, None, ["A", "B"]])
def test_label_codes_is_a_choice_or_a_description(value: Any) -> None:
    """Nothing is guessed."""
    with pytest.raises(ConfigurationError, match="label_codes to be True, False or LabelCodes"):
        make(FakeClient(CODES, {}), label_codes=value)


def test_without_label_codes_labels_are_shown_as_they_are() -> None:
    """False is the default."""
    client = FakeClient(LABELS, {}, default="World")
    assert make(client, label_codes=False).classify("text").label == "World"
    assert [message["content"] for message in client.requests[0].messages] == ["Which topic?", "text"]


@pytest.mark.parametrize(
    "changes",
    [{"response_format": {"type": "json_object"}}, {"answer_field": "final"}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_schema_of_ones_own_cannot_hold_codes(changes: dict[str, Any]) -> None:
    """It names the labels, or leaves open what the codes have to replace."""
    with pytest.raises(ConfigurationError, match="no response_format or answer_field"):
        make(FakeClient(CODES, {}), **changes)


def test_the_schema_that_would_be_built_anyway_may_be_given() -> None:
    """It says nothing else."""
    classifier = make(FakeClient(CODES, reads(knows)), response_format=enum_schema(LABELS, "category"))
    assert classifier.classify("text").label == "Sci/Tech"


def test_scoring_says_how_codes_are_asked_for() -> None:
    """And a model that cannot be scored exactly is refused as ever."""
    decoded = make(FakeContinuingClient(CODES, reads(knows)), scoring="decode").classify("text")
    assert decoded.distribution is not None
    assert decoded.distribution.space is LogprobSpace.MASKED
    with pytest.raises(ConfigurationError, match="scoring='exact' is not possible"):
        make(FakeClient(CODES, {}), scoring="exact")


# --- journal and search -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"label_codes": False},
        {"label_codes": LabelCodes(passes=3)},
        {"label_codes": LabelCodes(seed=1)},
        {"label_codes": LabelCodes(codes=["w", "x", "y", "z"])},
        {"labels": LABELS[::-1]},
        {"scoring": "decode"},
        {"tolerance": 0.3},
    ],
    ids=str,
)
def test_whatever_changes_the_passes_is_part_of_the_key(changes: dict[str, Any]) -> None:
    """The codes, their orders, and how they are asked for."""
    memory = MemoryJournal()
    client = FakeContinuingClient([*CODES, *"wxyz", *LABELS], lambda text: "World" if text == "" else "A")
    for different in ({}, changes):
        make(client, journal=memory, **different).classify("text")
    # An answer without a legal label is stored too.
    assert len(memory) == 2


def test_the_description_says_what_is_shown_and_how_it_is_read() -> None:
    """Everything that can change a prediction, as JSON values."""
    coded = make(FakeClient(CODES, {}), label_codes=LabelCodes(passes=9, seed=3)).runner.method.describe()
    plain = make(FakeClient(CODES, {}), labels=CODES, label_codes=False).runner.method.describe()
    assert {name: coded[name] for name in ("scoring", "codes", "passes", "seed", "labels", "inner")} == {
        "scoring": "codes",
        "codes": tuple(CODES),
        "passes": 4,
        "seed": 3,
        "labels": tuple(LABELS),
        "inner": plain,
    }
    assert coded["mapping"].startswith('In "category", write the code of a label')


def test_settings_that_ask_the_same_share_the_journal() -> None:
    """More passes than labels are as many as labels; the default codes may be named."""
    memory, client = MemoryJournal(), FakeClient(CODES, reads(biased))
    codes = (LabelCodes(), LabelCodes(passes=9), LabelCodes(codes=CODES))
    found = [make(client, label_codes=one, journal=memory).classify("text") for one in codes]
    assert len(client.requests) == 4
    assert found[0].distribution == found[1].distribution == found[2].distribution


def test_a_search_sees_labels_and_averages() -> None:
    """Score, feedback and output are those of any other classifier."""
    adapter = ConfidenceAdapter.from_classifier(make(FakeClient(CODES, reads(biased))))
    batch = adapter.evaluate(
        [{"input": "text", "answer": "World", "additional_context": {}}],
        {"system_prompt": "Other."},
        capture_traces=True,
    )
    assert batch.outputs[0]["parsed_value"] == "Sci/Tech"
    assert batch.outputs[0]["logprob_score"] == pytest.approx(math.log(0.425))
    assert batch.objective_scores == [{"accuracy": 0.0, "probability": pytest.approx(0.425)}]
    assert batch.trajectories is not None
    feedback = batch.trajectories[0]["feedback"]
    assert "Expected 'World', got 'Sci/Tech'" in feedback
