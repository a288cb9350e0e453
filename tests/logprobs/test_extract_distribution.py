"""Tests of `extract_distribution` with values computed by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from calibrant.core import (
    Completion,
    ConfigurationError,
    LabelSet,
    LogprobSpace,
    LogprobsUnavailableError,
    OpenLabels,
    Token,
)
from calibrant.inference import Classifier
from calibrant.logprobs import extract_distribution

NEWS = ("World", "Sports", "Business", "Sci/Tech")
Spec = tuple[str | bytes, float, dict[str | bytes, float]]


def raw(text: str | bytes) -> bytes:
    """Return `text` as bytes."""
    return text.encode() if isinstance(text, str) else text


def sure(*texts: str | bytes) -> list[Spec]:
    """Return tokens of probability 1."""
    return [(text, 1.0, {text: 1.0}) for text in texts]


def answer(text: str, tokens: list[Spec]) -> Completion:
    """Return a completion from (token, probability, alternatives) triples."""
    made = tuple(
        Token(raw(t), math.log(p), tuple((raw(a), math.log(q)) for a, q in top.items()))
        for t, p, top in tokens
    )
    return Completion(text=text, tokens=made)


def category(value: list[Spec], text: str, labels: Any = NEWS, **options: Any) -> Any:
    """Return the distribution of `{"category": "..."}`, whose value consists of these tokens."""
    tokens = [*sure('{"', "category", '":', ' "'), *value]
    return extract_distribution(answer(text, tokens), labels, "category", **options)


def one_token(token: Token, labels: tuple[str, ...] = ("A", "B", "C"), space: str = "masked") -> Any:
    """Return the distribution of `{"c": "A"}`, whose value is one token."""
    tokens = (Token(b'{"c": "', 0.0), token, Token(b'"}', 0.0))
    return extract_distribution(Completion(text='{"c": "A"}', tokens=tokens), labels, "c", space)


def shares(*probabilities: float) -> Any:
    """Return probabilities to compare with, however small they are."""
    return pytest.approx(list(probabilities), rel=1e-6, abs=0.0)


def test_distinct_first_tokens_give_their_own_probabilities() -> None:
    """With one token per label the probabilities are the reported ones."""
    top = {"Sports": 0.6, "World": 0.25, "Business": 0.1, "Sci": 0.05}
    found = category([("Sports", 0.6, top), *sure('"}')], '{"category": "Sports"}')
    assert found.probabilities == shares(0.25, 0.6, 0.1, 0.05)
    assert (found.label_mass, found.unresolved_mass) == pytest.approx((1.0, 0.0))
    assert found.joint_logprob == pytest.approx(math.log(0.6))
    assert found.measured.tolist() == [True] * 4
    assert (found.space, found.labels) == (LogprobSpace.MASKED, NEWS)


def test_shared_prefixes_are_resolved_by_later_tokens() -> None:
    """Labels that begin alike get their probabilities from the tokens where they differ."""
    value = [("S", 0.8, {"S": 0.8, "World": 0.2}), ("ports", 0.75, {"ports": 0.75, "ci": 0.25}), *sure('"}')]
    found = category(value, '{"category": "Sports"}')
    assert found.probabilities == shares(0.2, 0.6, 1e-12, 0.2)
    assert found.measured.tolist() == [True, True, False, True]


def test_shared_prefix_alternatives_stay_unresolved() -> None:
    """An alternative that fits several labels is divided among them and counted as unresolved."""
    value = [("World", 0.7, {"World": 0.7, "S": 0.2, "Business": 0.1}), *sure('"}')]
    found = category(value, '{"category": "World"}')
    assert found.probabilities == shares(0.7, 0.1, 0.1, 0.1)
    assert (found.label_mass, found.unresolved_mass) == pytest.approx((0.8, 0.2))
    assert found.measured.tolist() == [True, False, True, False]


def test_closing_quotes_tell_extensions_apart() -> None:
    """A closing quote counts for `Bills`, and a slash for `Bills/Gas`."""
    value = [*sure("Bills"), ('"}', 0.6, {'"}': 0.6, "/": 0.4})]
    assert category(value, '{"category": "Bills"}', ("Bills", "Bills/Gas")).probabilities == shares(0.6, 0.4)
    value = [*sure("Bills"), ("/", 0.4, {'"}': 0.6, "/": 0.4}), *sure("Gas", '"}')]
    assert category(value, '{"category": "Bills/Gas"}', ("Bills", "Bills/Gas")).probabilities == shares(
        0.6, 0.4
    )


def test_a_quote_before_text_ends_no_label() -> None:
    """A token of a quote and further text, like `"s`, counts for no label."""
    value = [*sure("Bills"), ('"}', 0.5, {'"}': 0.5, '"s': 0.3, "/": 0.2})]
    found = category(value, '{"category": "Bills"}', ("Bills", "Bills/Gas"), space="raw")
    assert found.probabilities == shares(5 / 7, 2 / 7)
    assert found.label_mass == pytest.approx(0.7)


@pytest.mark.parametrize(
    "spelled", ['Food \\u0026 Drinks\\/"', 'Food & Drinks/"', 'F\\u006fod & Drinks\\u002F"']
)
def test_escapes_are_one_label_however_spelled(spelled: str) -> None:
    """Answers and alternatives are compared as decoded JSON, however they are escaped."""
    labels = ("Food & Drinks/", "Food & Drinks\\")
    value = [(spelled + "}", 0.7, {spelled + "}": 0.7, 'Food & Drinks\\\\"': 0.3})]
    assert category(value, '{"category": "' + spelled + "}", labels).probabilities == shares(0.7, 0.3)


def test_cut_surrogate_pairs_are_followed() -> None:
    """Half a surrogate pair counts for every label whose character begins with it."""
    labels = ("\U0001f600", "\U0001f601", "\U0001f900")
    value = [
        ("\\ud83d", 0.9, {"\\ud83d": 0.9, "\\uD83E": 0.1}),
        ("\\ude0", 1.0, {}),
        ("0", 0.6, {"0": 0.6, "1": 0.4}),
        *sure('"}'),
    ]
    assert category(value, '{"category": "\\ud83d\\ude00"}', labels).probabilities == shares(0.54, 0.36, 0.1)


def test_cut_characters_are_aligned_by_bytes() -> None:
    """A character in two tokens does not shift the field, and both tokens count."""
    cut = "é".encode()
    tokens = [
        *sure('{"note": "', cut[:1], cut[1:], '日本", "category": "'),
        (cut[:1], 0.7, {cut[:1]: 0.7, "x": 0.3}),
        (cut[1:], 0.9, {cut[1:]: 0.9, "è".encode()[1:]: 0.1}),
        *sure('t"}'),
    ]
    completion = answer('{"note": "é日本", "category": "ét"}', tokens)
    found = extract_distribution(completion, ("ét", "èt", "xy"), "category")
    assert found.probabilities == shares(0.63, 0.07, 0.3)
    assert found.joint_logprob == pytest.approx(math.log(0.63))


def test_first_token_structure_is_stripped_from_alternatives() -> None:
    """Structure before the label is removed from the first token and from its alternatives."""
    tokens = [
        *sure('{"category'),
        ('":"Wor', 0.6, {'":"Wor': 0.6, '": "Sp': 0.2, '":"': 0.1, '": ': 0.06, "Sure": 0.04}),
        *sure('ld"}'),
    ]
    completion = answer('{"category":"World"}', tokens)
    found = extract_distribution(completion, ("World", "Sports"), "category", space="raw")
    assert found.probabilities == shares(0.65 / 0.9, 0.25 / 0.9)
    assert (found.label_mass, found.unresolved_mass) == pytest.approx((0.8, 0.1))
    assert found.joint_logprob == pytest.approx(math.log(0.6))


def test_alternatives_beside_the_quote_count_once() -> None:
    """An alternative to the opening quote counts for the label in it; white space does not."""
    tokens = [
        *sure('{"category":'),
        (' "', 0.6, {' "': 0.6, ' "Bus': 0.2, " ": 0.15, "\n": 0.05}),
        ("World", 0.5, {"World": 0.5, "Sports": 0.3, "Business": 0.2}),
        *sure('"}'),
    ]
    completion = answer('{"category": "World"}', tokens)
    found = extract_distribution(completion, ("World", "Sports", "Business"), "category", "raw")
    assert found.probabilities == shares(0.375, 0.225, 0.15 + 0.25)
    assert found.label_mass == pytest.approx(1.0)
    assert found.joint_logprob == pytest.approx(math.log(0.5))


def test_illegal_alternatives_beside_the_quote_change_nothing() -> None:
    """Alternatives to the opening quote without a label leave `label_mass` at 1."""
    value = [("World", 0.5, {"World": 0.5, "Sports": 0.5}), *sure('"}')]
    tokens = [*sure('{"category":'), (' "', 0.1, {' "': 0.1, ' "Xy': 0.6, " [": 0.3}), *value]
    found = extract_distribution(answer('{"category": "World"}', tokens), ("World", "Sports"), "category")
    assert found.label_mass == pytest.approx(1.0)


def test_raw_space_ignores_forced_tokens() -> None:
    """In raw space forced tokens after the deciding one do not lower the emitted label."""
    value = [
        ("Wor", 1e-5, {"Sure": 0.9, "The": 0.05, "Sports": 2e-5, "Business": 1e-5, "Wor": 1e-5}),
        ("ld", 1e-4, {"k": 0.9, "ld": 1e-4}),
        ('"}', 1e-3, {" War": 0.9, '"}': 1e-3}),
    ]
    found = category(value, '{"category": "World"}', ("World", "Sports", "Business"), space="raw")
    assert found.probabilities == shares(0.25, 0.5, 0.25)
    assert found.label_mass == pytest.approx(4e-5)
    assert found.joint_logprob == pytest.approx(math.log(1e-9))
    assert found.confidence("World") == pytest.approx(0.25)


def test_raw_space_survives_probabilities_that_underflow() -> None:
    """In raw space two labels of probability 1e-400 get one half each."""
    tokens = (
        *(Token(t, 0.0) for t in (b'{"c": "', b"x")),
        Token(b"y", -920.0, ((b"!", 0.0),)),
        Token(b"a", -1.0, ((b"a", -1.0), (b"b", -1.0), (b"?", -1.4))),
        Token(b'"}', 0.0),
    )
    found = extract_distribution(Completion(text='{"c": "xya"}', tokens=tokens), ("xya", "xyb"), "c", "raw")
    assert (found.probabilities, found.label_mass) == (pytest.approx([0.5, 0.5]), 0.0)


def test_unseen_labels_have_the_least_bound() -> None:
    """Each unseen label gets the least listed probability, as an unmeasured bound."""
    value = [("World", 0.5, {"World": 0.5, "Xy": 0.2, "Sports": 0.01}), *sure('"}')]
    found = category(value, '{"category": "World"}', space="raw")
    total = 0.5 + 0.01 + 2 * 0.01
    assert found.probabilities == shares(0.5 / total, *[0.01 / total] * 3)
    assert found.unresolved_mass == pytest.approx(0.02)
    assert found.measured.tolist() == [True, True, False, False]
    assert found.probability("World") == pytest.approx(0.5 / (found.label_mass + found.unresolved_mass))


def test_unlisted_emitted_tokens_keep_the_bound() -> None:
    """A forced token below the listed ones does not lower the bound of unlisted labels."""
    top = {"Sure": 0.5, "The": 0.1, "Wor": 1e-6}
    found = category([("Wor", 1e-6, top), *sure("ld", '"}')], '{"category": "World"}', space="raw")
    assert found.unresolved_mass == pytest.approx(0.3)
    assert found.probability("World") < 1e-4


def test_missing_alternatives_leave_a_shared_rest() -> None:
    """Without alternatives the other labels share one minus the emitted token's probability."""
    found = category([("World", 0.7, {}), *sure('"}')], '{"category": "World"}')
    assert found.probabilities == shares(0.7, 0.1, 0.1, 0.1)
    assert found.measured.tolist() == [True, False, False, False]


def test_duplicated_alternatives_count_once() -> None:
    """Two tokens with the same bytes are one alternative, with the larger probability."""
    log = math.log
    top = ((b"A", log(0.5)), (b"B", log(0.25)), (b"B", log(0.125)), (b"C", log(0.25)))
    assert one_token(Token(b"A", log(0.5), top)).probabilities == shares(0.5, 0.25, 0.25)


def test_repetitions_do_not_lower_the_bound() -> None:
    """The repetition of an alternative with a lower probability does not lower the bound."""
    log = math.log
    top = ((b"A", log(0.5)), (b"B", log(0.2)), (b"B", log(0.001)))
    found = one_token(Token(b"A", log(0.5), top), space="raw")
    assert found.unresolved_mass == pytest.approx(0.2)


def test_less_evidence_than_doubt_is_not_measured() -> None:
    """A label is unmeasured if its bound exceeds its listed probability."""
    tokens = [*sure('{"c":'), (' "', 0.99, {' "': 0.99, ' "B': 0.01}), ("A", 0.8, {"A": 0.8}), *sure('"}')]
    found = extract_distribution(answer('{"c": "A"}', tokens), ("A", "B"), "c")
    assert found.probabilities == shares(0.792, 0.208)
    assert found.measured.tolist() == [True, False]


@pytest.mark.parametrize("impossible", [-math.inf, -9999.0, -1e9])
def test_impossible_alternatives_stay_finite(impossible: float) -> None:
    """Alternatives of -inf and -9999 get the least probability, and all logarithms are finite."""
    top = ((b"A", math.log(0.75)), (b"B", math.log(0.25)), (b"C", impossible))
    found = one_token(Token(b"A", math.log(0.75), top))
    assert found.probabilities == pytest.approx([0.75, 0.25, 1e-12])
    assert np.isfinite(found.logprobs).all()
    assert found.probabilities.sum() == pytest.approx(1.0, rel=0, abs=1e-14)


def test_unlikely_emitted_tokens_keep_a_finite_joint() -> None:
    """An emitted token of -9999 gives the joint -9999 and finite log-probabilities."""
    found = one_token(Token(b"A", -9999.0), ("A", "B"), "raw")
    assert found.joint_logprob == -9999.0
    assert np.isfinite(found.logprobs).all()


@pytest.mark.parametrize(
    "top", [{"A": 0.6, "B": 0.44}, {"A": 0.6, "B": 0.4}, {"B": 0.4}, {"A": 0.55, "B": 0.45}]
)
def test_rounding_above_1_is_evidence(top: dict[str | bytes, float]) -> None:
    """Probabilities that add up to slightly more than 1 are accepted."""
    found = category([("A", 0.6, top), *sure('"}')], '{"category": "A"}', ("A", "B"))
    assert found.probability("A") > found.probability("B")


def test_tokens_without_bytes_lead_to_no_label() -> None:
    """An alternative without bytes counts for no label."""
    value = [("World", 0.5, {"World": 0.5, b"": 0.3, "Sports": 0.2}), *sure('"}')]
    found = category(value, '{"category": "World"}', ("World", "Sports"), space="raw")
    assert found.probabilities == shares(5 / 7, 2 / 7)
    assert found.label_mass == pytest.approx(0.7)


def test_empty_tokens_count_in_the_joint() -> None:
    """An empty token's probability counts in the joint."""
    value = [(b"", 0.5, {}), ("é", 0.5, {"é": 0.5, "è": 0.5}), *sure('"}')]
    found = category(value, '{"category": "é"}', ("é", "è"))
    assert found.joint_logprob == pytest.approx(math.log(0.25))


def test_the_joint_sums_all_content_tokens() -> None:
    """The joint sums all tokens with content, and leaves out the token of the quote alone."""
    tokens = [*sure('{"category":'), (' "', 0.5, {}), ("Wor", 0.5, {}), ('ld"', 0.5, {}), ("}", 0.5, {})]
    found = extract_distribution(answer('{"category": "World"}', tokens), NEWS, "category")
    assert found.joint_logprob == pytest.approx(math.log(0.25))
    tokens = [('{"category": "World"}', 0.5, {})]
    found = extract_distribution(answer('{"category": "World"}', tokens), NEWS, "category")
    assert found.joint_logprob == pytest.approx(math.log(0.5))
    assert found.probability("World") == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [math.nan, 0.1])
@pytest.mark.parametrize("in_top", [False, True])
def test_invalid_log_probabilities_raise_an_error(bad: float, in_top: bool) -> None:
    """An invalid log-probability raises an error, also in a completion built by hand."""
    token = Token(b"A", -0.5, ((b"B", bad),)) if in_top else Token(b"A", bad)
    with pytest.raises(LogprobsUnavailableError, match=r"<= 0|add up to 1\.71"):
        one_token(token, ("A", "B"))


def test_stripped_code_fences_are_aligned() -> None:
    """Tokens of a code fence that the text lacks do not shift the field."""

    def forced(*texts: str) -> list[Spec]:
        return [(text, 0.1, {"Sure": 0.6, text: 0.1}) for text in texts]

    tokens = [
        *forced("```", "json", "\n", "{", '"', "category", '":', ' "'),
        ("S", 0.4, {"S": 0.4, "World": 0.2, "The": 0.3}),
        ("ports", 0.6, {"ports": 0.6, "ci": 0.3}),
        *forced('"', "}", "\n", "```", "<|im_end|>"),
    ]
    found = extract_distribution(answer('{"category": "Sports"}', tokens), NEWS, "category", space="raw")
    bound = 1 - 0.4 - 0.2 - 0.3
    masses = [0.2, 0.4 * 0.6, bound, 0.4 * 0.3]
    assert found.probabilities == pytest.approx([mass / sum(masses) for mass in masses])
    assert found.joint_logprob == pytest.approx(math.log(0.4 * 0.6))
    assert found.unresolved_mass == pytest.approx(bound)


def test_the_last_occurrence_is_read() -> None:
    """Of two places that match the text the last one is read."""
    rehearsal = [('{"c": "', 1.0, {}), ("A", 0.1, {}), ('"} so ', 1.0, {})]
    tokens = [*rehearsal, ('{"c": "', 1.0, {}), ("A", 0.9, {}), ('"}', 1.0, {})]
    found = extract_distribution(answer('{"c": "A"}', tokens), ("A", "B"), "c")
    assert found.joint_logprob == pytest.approx(math.log(0.9))


def test_rewritten_documents_are_found_by_value() -> None:
    """An answer with other spacing in its text than in its tokens is found by its value."""
    tokens = [*sure("so [1] {oops ", '{ "c" :\n "'), ("A", 0.9, {}), *sure('" } <|end|>')]
    found = extract_distribution(answer('{"c":"A"}', tokens), ("A", "B"), "c")
    assert found.joint_logprob == pytest.approx(math.log(0.9))


def test_a_pretty_printed_nested_answer_is_aligned() -> None:
    """A nested, pretty-printed answer is read at its path, despite equal keys and values elsewhere."""
    text = '{\n  "x": {"name": "A", "list": ["}", {"name": "B"}]},\n  "result": [\n    {"name": "B"},\n    {"name"'
    tokens = [*sure(text, ' : "'), ("A", 0.8, {"A": 0.8, "B": 0.2}), *sure('"', "}\n  ]\n}")]
    completion = answer(text + ' : "A"}\n  ]\n}', tokens)
    found = extract_distribution(completion, ("A", "B"), "result[1].name")
    assert found.probabilities == pytest.approx([0.8, 0.2])


def test_a_repeated_key_is_no_evidence() -> None:
    """A repeated key raises LogprobsUnavailableError with the key."""
    tokens = [*sure('{"c": "A", "c": "'), ("A", 0.5, {}), *sure('"}')]
    with pytest.raises(LogprobsUnavailableError, match="'c' 2 times"):
        extract_distribution(answer('{"c": "A", "c": "A"}', tokens), ("A", "B"), "c")


def test_empty_brackets_read_the_first_element() -> None:
    """The path `[].x` reads the first element of an array at the root."""
    tokens = [*sure('[{"x": "'), ("A", 0.6, {"A": 0.6, "B": 0.4}), *sure('"}, {"x": "B"}]')]
    found = extract_distribution(answer('[{"x": "A"}, {"x": "B"}]', tokens), ("A", "B"), "[].x")
    assert found.probabilities == pytest.approx([0.6, 0.4])


def test_other_case_counts_for_its_label() -> None:
    """An answer in another case counts for its label."""
    value = [("world", 0.6, {"world": 0.6, "World": 0.3, "Sports": 0.1}), *sure('"}')]
    found = category(value, '{"category": "world"}', ("World", "Sports"))
    assert found.probabilities == pytest.approx([0.9, 0.1])


@pytest.mark.parametrize(
    ("labels", "spelled"),
    [
        (("world", "sports"), ("World", "Sports")),
        (("world news", "sports news"), ("World News", "Sports News")),
        (("world news", "sports news"), ("World news", "Sports news")),
        (("world", "sports"), ("WORLD", "SPORTS")),
        (("World", "Sports"), ("world", "sports")),
    ],
)
def test_other_labels_are_known_in_the_case_of_the_answer(
    labels: tuple[str, str], spelled: tuple[str, str]
) -> None:
    """A model that capitalises its answer would have capitalised the other labels, too."""
    own, other = spelled
    value = [(own, 0.55, {own: 0.55, other: 0.45}), *sure('"}')]
    found = category(value, json.dumps({"category": own}), labels)
    assert found.probabilities == pytest.approx([0.55, 0.45])
    assert found.label_mass == pytest.approx(1.0)


def test_illegal_answers_leave_mass_on_no_label() -> None:
    """The part of `Sci` that the model continued as `Science` counts for no label."""
    value = [("Sci", 0.6, {"Sci": 0.6, "World": 0.4}), ("ence", 0.75, {"ence": 0.75, "/": 0.25}), *sure('"}')]
    found = category(value, '{"category": "Science"}', ("World", "Sci/Tech"), space="raw")
    assert found.probabilities == shares(0.4 / 0.55, 0.15 / 0.55)
    assert found.label_mass == pytest.approx(0.55)
    assert found.joint_logprob == pytest.approx(math.log(0.45))


def test_empty_answers_use_the_closing_quote() -> None:
    """An empty answer uses the alternatives of the closing quote."""
    tokens = [*sure('{"c": "'), ('"}', 0.3, {'"}': 0.3, "A": 0.5, "B": 0.2})]
    found = extract_distribution(answer('{"c": ""}', tokens), ("A", "B"), "c", "raw")
    assert found.probabilities == shares(5 / 7, 2 / 7)
    assert found.joint_logprob == pytest.approx(math.log(0.3))


def test_empty_evidence_gives_a_uniform_distribution() -> None:
    """An illegal answer of probability 1 gives every label the same probability, unmeasured."""
    value = [("Xyz", 1.0, {"Xyz": 1.0}), *sure('"}')]
    found = category(value, '{"category": "Xyz"}')
    assert found.probabilities == shares(*[0.25] * 4)
    assert found.label_mass == pytest.approx(0.0)
    assert found.measured.tolist() == [False] * 4


def test_arrays_follow_the_order_of_labels() -> None:
    """A label set and a list of the same labels give the same arrays."""
    value = [("B", 0.6, {"B": 0.6, "A": 0.4}), *sure('"}')]
    given = category(value, '{"category": "B"}', ["B", "A"])
    assert given == category(value, '{"category": "B"}', LabelSet(["B", "A"]))
    assert (given.labels, given.probabilities) == (("B", "A"), pytest.approx([0.6, 0.4]))


def test_missing_evidence_is_a_typed_error() -> None:
    """A text without log-probabilities raises LogprobsUnavailableError."""
    with pytest.raises(LogprobsUnavailableError, match="logprobs=True"):
        extract_distribution('{"category": "World"}', NEWS, "category")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("no JSON", ["no JSON"]),
        ('{"other": "World"}', ['{"other": "World"}']),
        ('{"category": ["World"]}', ['{"category": ["World"]}']),
        ('{"category": 3}', ['{"category": 3}']),
        ('{"category": "World"}', ["something else"]),
        ('{"category": "World"}', ['{"category": "Sports"}']),
        ('{"category": "é"}', ['{"category": "', "\ufffd", '"}']),
    ],
)
def test_unaligned_fields_raise_an_error(text: str, tokens: list[str]) -> None:
    """A field that cannot be aligned with the tokens raises LogprobsUnavailableError."""
    with pytest.raises(LogprobsUnavailableError):
        extract_distribution(answer(text, sure(*tokens)), NEWS, "category")


@pytest.mark.parametrize(
    "response",
    [
        Completion(text='{"c": 3}', tokens=(Token(b'{"c": 3}', 0.0),)),
        Completion(text="no JSON", tokens=(Token(b"no JSON", 0.0),)),
        Completion(text='{"c": "A"}'),
        {"error": "overloaded"},
        object(),
    ],
    ids=["no text", "no JSON", "no tokens", "an error", "no response"],
)
def test_arguments_are_checked_before_the_response(response: object) -> None:
    """Wrong arguments raise ConfigurationError, whatever the response is."""
    for labels, path, space, named in (
        (("A", "B"), "c", "exact", "space"),
        (("A", "a"), "c", "masked", "distinct labels"),
        (("A",), "c", "masked", "two labels"),
        (("A", 3), "c", "masked", "text"),
        (("A", "B"), "c..d", "masked", "field path"),
    ):
        with pytest.raises(ConfigurationError, match=named):
            extract_distribution(response, labels, path, space)  # type: ignore[arg-type]


NESTED = ("Bills", "Bills/Gas", "Food")


@pytest.mark.parametrize(
    ("value", "emitted", "joint", "confidence"),
    [
        # The issue's own: `Bills` is sure, its end is not.
        (
            [("Bills", 0.98, {"Bills": 0.98, "Food": 0.02}), ('"', 0.55, {'"': 0.55, "/": 0.45}), *sure("}")],
            "Bills",
            0.98,
            0.98 * 0.55,
        ),
        # All tokens that close the value count.
        (
            [
                ("Bills", 0.98, {"Bills": 0.98, "Food": 0.02}),
                ('"', 0.3, {'"': 0.3, '"}': 0.25, "/": 0.45}),
                *sure("}"),
            ],
            "Bills",
            0.98,
            0.98 * 0.55,
        ),
        # The closing quote shares a token with content, which the joint holds already.
        ([*sure("Bil"), ('ls"}', 0.55, {'ls"}': 0.55, "ls/": 0.45})], "Bills", 0.55, 0.55),
        (
            [("Food", 0.02, {"Bills": 0.98, "Food": 0.02}), ('"', 0.5, {'"': 0.5, " ": 0.5}), *sure("}")],
            "Food",
            0.02,
            0.02,
        ),
        # An empty token in front of the quote is part of the end.
        ([*sure("Bills"), (b"", 0.5, {}), ('"', 0.8, {'"': 0.8, "/": 0.2}), *sure("}")], "Bills", 1.0, 0.4),
    ],
    ids=["apart", "two closers", "one token", "not nested", "empty token"],
)
def test_masked_confidence_includes_the_label_end(
    value: list[Spec], emitted: str, joint: float, confidence: float
) -> None:
    """In masked space `confidence` includes the end of a label, and `joint_logprob` does not."""
    found = category(value, f'{{"category": "{emitted}"}}', NESTED)
    assert found.joint_logprob == pytest.approx(math.log(joint))
    assert found.confidence(emitted) == pytest.approx(confidence)


def test_nested_confidence_agrees_with_the_distribution() -> None:
    """`confidence` equals `probability` if all probability is listed."""
    value = [*sure("Bills"), ('"', 0.55, {'"': 0.55, "/": 0.45}), *sure("}")]
    for space in ("masked", "raw"):
        found = category(value, '{"category": "Bills"}', ("Bills", "Bills/Gas"), space=space)
        assert found.confidence("Bills") == pytest.approx(found.probability("Bills"))
        assert found.confidence("Bills/Gas") == pytest.approx(0.45)


def test_the_joint_of_an_open_label_is_read() -> None:
    """The first label of an open set has the joint log-probability of its tokens, if they tell it."""

    def read(completion: Completion) -> Any:
        model = Classifier(model=lambda _: completion, labels=OpenLabels(), field="b", scoring="decode")
        return model.classify("x").distribution

    tokens = [
        *sure('{"n": '),
        ("1e5", 0.5, {}),
        *sure(', "b": "'),
        ("tr", 0.5, {}),
        ("ue", 0.5, {}),
        *sure('"}'),
    ]
    text = '{"n": 1e5, "b": "true"}'
    assert read(answer(text, tokens)).joint_logprob == pytest.approx(math.log(0.25))
    assert read(Completion(text=text)) is None
    assert read(answer(text, sure("something else"))) is None


def test_shared_prefixes_part_at_the_slash() -> None:
    """Labels like `Bills/...` get their probabilities from the tokens after the slash."""
    labels = ("Bills/Electricity", "Bills/Gas & Oil", "Food & Drinks/Restaurants")
    value = [
        ("Bills", 0.9, {"Bills": 0.9, "Food": 0.1}),
        *sure("/"),
        ("Gas", 0.3, {"Gas": 0.3, "Elect": 0.7}),
        *sure(" & Oil", '"}'),
    ]
    assert category(value, '{"category": "Bills/Gas & Oil"}', labels).probabilities == shares(0.63, 0.27, 0.1)


def test_an_escape_cut_between_tokens_is_followed() -> None:
    """A Unicode escape cut between two tokens counts for the label with that character."""
    labels = ("A&B", "A'B", "A\u00e9")
    value = [
        *sure("A"),
        ("\\u00", 0.9, {"\\u00": 0.9, "\\u00e": 0.1}),
        ("26", 0.8, {"26": 0.8, "27": 0.2}),
        *sure("B", '"}'),
    ]
    assert category(value, '{"category": "A\\u0026B"}', labels).probabilities == shares(0.72, 0.18, 0.1)


def test_numbers_with_exponents_elsewhere_do_not_matter() -> None:
    """Numbers with exponents elsewhere in the answer do not disturb the reading."""
    tokens = [*sure('{"amount": 1e5, "rate": -2.5E-3, "category": "'), ("World", 0.5, {}), *sure('"}')]
    completion = answer('{"amount": 1e5, "rate": -2.5E-3, "category": "World"}', tokens)
    found = extract_distribution(completion, ("World", "Sports"), "category")
    assert found.probabilities == shares(0.5, 0.5)
    assert found.joint_logprob == pytest.approx(math.log(0.5))


def test_unseen_labels_share_the_unlisted_rest() -> None:
    """All unseen labels together hold at most what was not listed."""
    value = [("World", 0.6, {"World": 0.6, "Sports": 0.3}), *sure('"}')]
    found = category(value, '{"category": "World"}')
    assert found.probabilities == shares(0.6, 0.3, 0.05, 0.05)
    assert found.unresolved_mass == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("emitted", "top", "mass"),
    [
        (0.99, {"A": 0.99, "B": 0.99, "C": 0.99, "D": 0.99}, 3.96),
        (0.9, {"B": 0.5, "C": 0.4}, 1.8),
        (0.6, {"A": 0.6, "B": 0.5}, 1.1),
    ],
)
def test_probabilities_above_1_are_no_evidence(
    emitted: float, top: dict[str | bytes, float], mass: float
) -> None:
    """A token and its alternatives above 1 in sum raise LogprobsUnavailableError."""
    with pytest.raises(LogprobsUnavailableError, match=f"add up to {mass:.2f}"):
        category([("A", emitted, top), *sure('"}')], '{"category": "A"}', ("A", "B", "C", "D"))


@pytest.mark.parametrize("space", ["masked", "raw"])
def test_impossible_emitted_tokens_are_no_evidence(space: str) -> None:
    """An emitted token of -inf raises LogprobsUnavailableError."""
    with pytest.raises(LogprobsUnavailableError, match="-Infinity"):
        one_token(Token(b"A", -math.inf, ((b"B", -0.1),)), ("A", "B"), space)


def test_impossible_evidence_anywhere_is_rejected() -> None:
    """Contradictory log-probabilities anywhere in the answer raise LogprobsUnavailableError."""
    tokens = [("{", 0.9, {"[": 0.9}), *sure('"category": "'), ("A", 0.6, {"A": 0.6, "B": 0.4}), *sure('"}')]
    with pytest.raises(LogprobsUnavailableError, match=r"add up to 1\.80"):
        extract_distribution(answer('{"category": "A"}', tokens), ("A", "B"), "category")
