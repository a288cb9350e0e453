"""Tests of exact scoring of label arrays, compared with brute force."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from calibrant.core import (
    CompletionRequest,
    ConfigurationError,
    LogprobSpace,
    MultiLabels,
    Outcome,
    Prediction,
)
from calibrant.core._completion import Vocabulary
from calibrant.inference import Classifier
from distributions import distribution_of
from token_engine import CHARACTERS, Engine, Row

LABELS = ("Bills", "Bills/Gas", 'a "b"')
TOPICS = MultiLabels(LABELS)
END = ""
MERGED = Vocabulary(
    [
        *CHARACTERS.pieces,
        *(b'"]', b'",', b' "', b' ["', b" []", b'"]}', b'": ', b'"}', b'"},', b' {"', b"]}", b", ", b' [{"'),
        *(b"Bil", b"ls", b'ls"', b'"B', b'"}]}'),
    ]
)
# Merges only at the end of the whole answer, where the text cut off behind the bracket has other tokens.
LATE = Vocabulary([*CHARACTERS.pieces, b"]}", b"[]", b'["', b"}, ", b'}, {"'])
Given = tuple[str, ...]
Model = Callable[[Given], dict[str, float]]


def any_model(seed: int) -> Model:
    """Return a model with random probabilities for every label and the end, and at most four labels."""

    def model(before: Given) -> dict[str, float]:
        if len(before) == 4:
            return {END: 1.0}
        rng = random.Random(f"{seed}/{before}")
        weights = {label: rng.random() ** 2 + 0.01 for label in (*LABELS, END)}
        return {label: weight / sum(weights.values()) for label, weight in weights.items()}

    return model


def answers(model: Model, before: Given = (), weight: float = 1.0) -> Iterator[tuple[Given, float]]:
    """Yield every answer of a model with its probability."""
    for label, probability in model(before).items():
        if label == END:
            yield before, weight * probability
        elif probability:
            yield from answers(model, (*before, label), weight * probability)


def written(labels: Sequence[str], field: str) -> str:
    """Return the JSON text of an answer with these labels."""
    if field == "topics":
        return json.dumps({"topics": list(labels)})
    return json.dumps({"results": [{"topic": label} for label in labels]})


class Writer(Engine):
    """Engine that writes the answers of a model, tokenised as whole answers."""

    def __init__(self, model: Model, *, field: str, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary=vocabulary)
        known = ((written(labels, field), weight) for labels, weight in answers(model))
        self.known = [(Row(self, "").tokens(text), weight) for text, weight in known]

    def row(self, text: str) -> Row:
        """Return the row of a text."""
        return Writing(self, text)


class Writing(Row):
    """Row whose next tokens follow from the answers that begin with the text so far."""

    engine: Writer

    def after(self, text: tuple[int, ...]) -> np.ndarray:
        """Return the logits of the next token."""
        found = np.full(len(self.vocabulary), 1e-30)
        for tokens, weight in self.engine.known:
            if len(tokens) > len(text) and tokens[: len(text)] == text:
                found[tokens[len(text)]] += weight
        return np.log(found).astype(np.float32)


def classify(engine: Engine, field: str = "topics", **options: Any) -> Prediction:
    """Return a classifier's prediction of one row."""
    options = {"tolerance": 0.0, "labels": TOPICS, **options}
    with Classifier(model=engine, field=field, prompt="Sort.", **options) as classifier:
        return classifier.classify("row")


def inside(found: Prediction) -> dict[str, float]:
    """Return the probability that each label is in the answer."""
    assert {distribution_of(part).space for part in found.parts} == {LogprobSpace.EXACT}
    return {part.name: distribution_of(part).probability("yes") for part in found.parts}


def expected(model: Model) -> tuple[Given, dict[str, float], float]:
    """Return the written labels, the probability of each label and that of the answer, by definition."""
    given: Given = ()
    steps = []
    while len(given) < len(LABELS):
        step = {label: p for label, p in model(given).items() if label != END and label not in given}
        step[END] = 1.0 - sum(step.values())
        steps.append(step)
        best = max(step, key=lambda label: step[label])
        if best == END:
            break
        given = (*given, best)
    outside = [label for label in LABELS if label not in given]
    known, whole = {}, steps[-1][END] if outside else 1.0
    for place, label in enumerate(given):
        step = steps[place]
        known[label] = step[label] / (step[label] + step[END] + sum(step[other] for other in outside))
        whole *= sum(step[other] for other in given[place:])
    for label in outside:
        known[label] = 1.0 - math.prod(1.0 - step[label] for step in steps)
    return given, known, whole


@pytest.mark.parametrize("vocabulary", [CHARACTERS, MERGED, LATE])
@pytest.mark.parametrize("field", ["topics", "results[].topic"])
def test_probabilities_equal_the_models(field: str, vocabulary: Vocabulary) -> None:
    """Tokens that merge quotes, commas, spaces and brackets do not change the probabilities."""
    lengths = set()
    for seed in range(15):
        given, known, whole = expected(any_model(seed))
        found = classify(Writer(any_model(seed), field=field, vocabulary=vocabulary), field)
        assert (found.text, found.label) == (written(given, field), TOPICS.answer_with(given))
        assert inside(found) == pytest.approx(known, abs=1e-5)
        assert found.confidence == pytest.approx(whole, abs=1e-5)
        lengths.add(len(given))
    assert lengths == {0, 1, 2, 3}


def random_model(row: Row, field: str) -> Model:
    """Return a row's probabilities of whole elements, computed character by character."""

    def logprob(text: str, end: str) -> float:
        path, total = row.tokens(text + end), 0.0
        for place in range(len(text), len(path)):
            logits = row.after(path[:place]).astype(np.float64)
            total += logits[path[place]] - math.log(np.exp(logits).sum())
        return total

    def model(before: Given) -> dict[str, float]:
        suffix = "]}"
        begun = written(before, field).removesuffix(suffix)
        element = '"' if field == "topics" else '{"topic": "'
        more, blank = (",", "]") if before else (element[0], element[0])
        sides = {more: 0.0, "]": 0.0}
        for character in (more, "]", " "):
            sides[blank if character == " " else character] += math.exp(logprob(begun, character))
        prefix = begun + (", " if before else "") + element
        each = {label: math.exp(logprob(prefix, json.dumps(label)[1:])) for label in LABELS}
        goes_on = sides[more] / sum(sides.values())
        return {
            **{label: goes_on * weight / sum(each.values()) for label, weight in each.items()},
            END: 1.0 - goes_on,
        }

    return model


@pytest.mark.parametrize("field", ["topics", "results[].topic"])
def test_illegal_text_is_left_out(field: str) -> None:
    """Probabilities are shares among the labels and the array's end; illegal text is left out."""
    for seed in range(10):
        engine = Engine()
        engine.row = lambda text, engine=engine, seed=seed: Row(engine, f"{seed}/{text}")  # type: ignore[method-assign]
        found = classify(engine, field)
        given, known, whole = expected(random_model(engine.rows[-1], field))
        assert (found.text, inside(found)) == (written(given, field), pytest.approx(known, abs=1e-6))
        assert found.confidence == pytest.approx(whole, rel=1e-4)


def fixed(*steps: dict[str, float]) -> Model:
    """Return a model with these probabilities at its places; it ends after them."""
    return lambda before: steps[len(before)] if len(before) < len(steps) else {END: 1.0}


def in_any_order(chance: float) -> Model:
    """Return a model that takes each label independently and writes the taken ones in random order."""

    def begins(before: Given) -> float:
        sizes = range(len(before), len(LABELS) + 1)
        return sum(
            math.comb(len(LABELS) - len(before), size - len(before))
            * chance**size
            * (1.0 - chance) ** (len(LABELS) - size)
            / math.perm(size, len(before))
            for size in sizes
        )

    def model(before: Given) -> dict[str, float]:
        left = [label for label in LABELS if label not in before]
        found = {label: begins((*before, label)) / begins(before) for label in left}
        return {**found, END: 1.0 - sum(found.values())}

    return model


@pytest.mark.parametrize(
    "model",
    [
        in_any_order(0.7),
        in_any_order(0.1),
        fixed(
            {LABELS[2]: 0.7, END: 0.3}, {LABELS[0]: 0.6, LABELS[1]: 0.3, END: 0.1}, {LABELS[1]: 0.2, END: 0.8}
        ),
    ],
)
def test_confidence_sums_equal_orders(model: Model) -> None:
    """The confidence sums all orders of a set if they are equally probable or only one exists."""
    found = classify(Writer(model, field="topics", vocabulary=MERGED))
    given = json.loads(found.text)["topics"]
    assert found.label == TOPICS.answer_with(given)
    wanted = sum(weight for labels, weight in answers(model) if set(labels) == set(given))
    assert found.confidence == pytest.approx(wanted, abs=1e-5)


def test_repeated_label_counts_as_end() -> None:
    """The probability of a repeated label counts for the array's end."""
    steps = fixed({LABELS[0]: 0.9, END: 0.1}, {LABELS[0]: 0.9, LABELS[1]: 0.1})
    found = classify(Writer(steps, field="topics", vocabulary=CHARACTERS))
    assert found.text == written(LABELS[:1], "topics")
    assert found.confidence == pytest.approx(0.81, abs=1e-5)
    assert inside(found)[LABELS[1]] == pytest.approx(0.1, abs=1e-5)


def test_full_array_ends_without_query() -> None:
    """For an array of all labels the engine is queried exactly twice per label."""
    steps = [{label: 1.0} for label in LABELS]
    found = classify(Writer(fixed(*steps), field="topics", vocabulary=CHARACTERS), scoring="exact")
    assert (found.label, found.confidence) == (json.dumps(list(LABELS)), pytest.approx(1.0))
    assert (found.attempts, found.model) == (2 * len(LABELS), "characters")


def test_error_bound_holds_for_every_label() -> None:
    """Probabilities differ from those at tolerance 0 by at most the error bound."""
    bounds = []
    for seed, tolerance in itertools.product(range(20), (0.1, 0.5, 0.9)):
        wide, full = (
            classify(Writer(any_model(seed), field="topics", vocabulary=MERGED), tolerance=limit)
            for limit in (tolerance, 0.0)
        )
        if wide.text != full.text:
            continue
        for one, other in zip(wide.parts, full.parts, strict=True):
            bound = distribution_of(one).error_bound
            assert bound is not None
            apart = distribution_of(one).probability("yes") - distribution_of(other).probability("yes")
            assert abs(apart) <= bound + 1e-5
            bounds.append(bound)
    assert max(bounds) > 0.05


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"maxItems": 2}, "says how many it may hold"),
        ({"minItems": 1}, "says how many it may hold"),
        ({"items": {"type": "string"}}, "more open than one array"),
        ({"items": {"enum": ["Bills", "Food"]}}, "lacks some of the labels"),
        ({"uniqueItems": True}, None),
    ],
)
def test_bounded_schema_is_decoded(schema: Any, reason: str | None) -> None:
    """Limited or open schemas are decoded, and scoring="exact" raises ConfigurationError."""
    array = {"type": "array", "items": {"type": "string", "enum": list(LABELS)}, **schema}
    options: dict[str, Any] = {
        "labels": TOPICS,
        "field": "topics",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": {"type": "object", "properties": {"topics": array}}},
        },
    }
    scoring = Classifier(model=Engine(), **options).describe()["method"]["scoring"]
    assert scoring == ("exact" if reason is None else "decode")
    if reason is not None:
        with pytest.raises(ConfigurationError, match=reason):
            Classifier(model=Engine(), scoring="exact", **options)


def test_nan_logprobs_fail_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN log-probabilities make the row an error that names the model and counts all calls."""
    after = Row.after

    def broken(row: Row, text: tuple[int, ...]) -> np.ndarray:
        found = after(row, text)
        return found * np.nan if row.spelled(text).endswith("[") else found

    monkeypatch.setattr(Row, "after", broken)
    found = classify(Engine())
    assert found.outcome is Outcome.ERROR
    assert "test/characters" in found.reason
    assert "not numbers" in found.reason
    assert found.attempts == 2


def test_unlikely_labels_name_the_place() -> None:
    """A row without any likely label is unparsed, and the reason names the place in the list."""
    engine = Writer(fixed({END: 1.0}), field="topics", vocabulary=CHARACTERS)
    engine.known = [(engine.row("").tokens('{"topics": ["Taxi"]}'), 1.0)]
    engine.row = lambda text: Silent(engine, text)  # type: ignore[method-assign]
    found = classify(engine)
    assert found.outcome is Outcome.UNPARSED
    assert found.reason.startswith("place 1 of the list: no label")


class Silent(Writing):
    """Row in which every text outside the known answers is impossible."""

    def after(self, text: tuple[int, ...]) -> np.ndarray:
        """Return the logits of the next token."""
        found = super().after(text)
        return np.where(found < -60.0, np.float32(-1e9), found)


class Elsewhere(Engine):
    """Engine in this process that does not report the log-probabilities of all tokens."""

    @asynccontextmanager
    async def continuing(self, request: CompletionRequest) -> AsyncIterator[Any]:
        """Open a session that is not an engine's row."""
        yield request


def test_row_without_all_tokens_is_refused() -> None:
    """A row without the log-probabilities of all tokens raises ConfigurationError with the remedy."""
    with pytest.raises(ConfigurationError, match="use scoring='decode'"):
        classify(Elsewhere())


def test_labels_path_and_tolerance_change_the_key() -> None:
    """Classifiers with other labels, another array or another tolerance do not share answers."""
    turned = MultiLabels(LABELS[::-1])
    known = {
        json.dumps(
            Classifier(model=Engine(), labels=labels, field=field, tolerance=tolerance).describe()["method"]
        )
        for labels in (TOPICS, turned)
        for field in ("topics", "results[].topic", "[].topic")
        for tolerance in (0.2, 0.1)
    }
    assert len(known) == 12
