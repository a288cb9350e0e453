"""Tests of `ExemplarProposer`: its edits and their limits."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import ConfigurationError, DemonstrationSettings, Example, Outcome, Prediction
from calibrant.inference import Demonstration
from calibrant.optimization import ExemplarProposer

LABELS = ("Bills/Gas & Oil", "Food", "Fuel")
TRAIN = [
    *({"input": f"heating oil delivery number {i} boiler", "answer": "Bills/Gas & Oil"} for i in range(6)),
    *({"input": f"corner cafe lunch {i} order", "answer": "Food"} for i in range(6)),
    *({"input": f"petrol pump station {i} litres", "answer": "Fuel"} for i in range(6)),
]
SEED = {"system_prompt": "Classify."}


def tokens(prompt: str) -> int:
    """Return the tokens that the documentation counts in what was added to the seed prompt: bytes / 3.5."""
    return math.ceil(len(prompt.removeprefix("Classify.").encode()) / 3.5)


def prediction(label: str | None, confidence: float | None = 0.9) -> Prediction:
    """Return a prediction of this label."""
    return Prediction(label=label, confidence=confidence, outcome=Outcome.OK if label else Outcome.UNPARSED)


def propose(proposer: ExemplarProposer, candidate: dict[str, str], times: int) -> list[str]:
    """Return the prompts of a chain of accepted proposals."""
    found = []
    for _ in range(times):
        edited = proposer(candidate, {}, ["system_prompt"])
        if edited:
            candidate = {**candidate, **edited}
            found.append(candidate["system_prompt"])
    return found


def demonstrations(prompt: str) -> list[Demonstration]:
    """Return the demonstrations in a prompt."""
    found = re.findall(r"^Text: (.*)\nAnswer: (.*)$", prompt, re.MULTILINE)
    return [Demonstration(text, json.loads(answer)["label"]) for text, answer in found]


def notes_of(prompt: str) -> list[str]:
    """Return the notes in a prompt."""
    return re.findall(r'^- (".*)$', prompt, re.MULTILINE)


def test_first_proposal_shows_one_training_text_of_every_label() -> None:
    """The first proposal shows one training text of every label below the instruction."""
    (prompt,) = propose(ExemplarProposer(train=TRAIN), SEED, 1)
    shown = demonstrations(prompt)
    assert prompt.startswith("Classify.\n\nExamples:\n\nText: ")
    assert sorted(item.label for item in shown) == sorted(LABELS)
    assert '\nAnswer: {"label": "Food"}' in prompt
    assert {(item.text, item.label) for item in shown} <= {(row["input"], row["answer"]) for row in TRAIN}


def test_labels_are_named_first_where_that_is_wished() -> None:
    """With `forms=True` the first proposal lists the labels, and shows no texts."""
    (prompt,) = propose(ExemplarProposer(train=TRAIN, forms=True), SEED, 1)
    assert prompt.startswith("Classify.\n\nLabels: ")
    assert all(label in prompt for label in LABELS)
    assert demonstrations(prompt) == []


def test_labels_that_do_not_fit_are_not_named() -> None:
    """Labels that exceed the token budget are not listed, and texts are shown in its limits."""
    names = [f"category number {n} of accounts" for n in range(100)]
    train = [{"input": f"entry {n}", "answer": name} for n, name in enumerate(names)]
    proposer = ExemplarProposer(train=train, forms=True, token_budget=300)
    prompts = propose(proposer, SEED, 8)
    assert len(prompts) == 8
    assert all("Labels: " not in prompt and "Text: entry" in prompt for prompt in prompts)
    assert all(tokens(prompt) <= 300 for prompt in prompts)


def test_demonstrations_are_tried_first_where_a_candidate_has_them() -> None:
    """Four and eight demonstrations are proposed first, if there are enough training rows."""
    candidate = {**SEED, "demonstrations": ""}
    proposer = ExemplarProposer(train=TRAIN)
    found = [proposer(candidate, {}, list(candidate)) for _ in range(3)]
    assert [DemonstrationSettings.from_text(one["demonstrations"]).k for one in found[:2]] == [4, 8]
    assert list(found[2]) == ["system_prompt"]
    few = ExemplarProposer(train=[*TRAIN[:3], *TRAIN[-3:]])
    assert [list(few(candidate, {}, list(candidate))) for _ in range(2)] == [
        ["demonstrations"],
        ["system_prompt"],
    ]
    shown = {**SEED, "demonstrations": DemonstrationSettings(k=4).to_text()}
    assert list(ExemplarProposer(train=TRAIN[:6] + TRAIN[-1:])(shown, {}, [])) == ["system_prompt"]


def test_same_seed_and_evaluations_give_the_same_proposals() -> None:
    """The same seed and predictions give the same proposals, and another seed gives others."""

    def run(seed: int) -> list[str]:
        proposer = ExemplarProposer(train=TRAIN, seed=seed)
        proposer.observe(SEED, TRAIN[:6], [prediction("Fuel")] * 6)
        return propose(proposer, SEED, 12)

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_no_prompt_is_proposed_twice() -> None:
    """A proposer proposes no prompt twice."""
    proposer = ExemplarProposer(train=TRAIN, seed=1)
    found = [proposer(SEED, {}, ["system_prompt"]).get("system_prompt") for _ in range(15)]
    made = [prompt for prompt in found if prompt is not None]
    assert len(made) == len(set(made)) > 5


@given(budget=st.integers(30, 400), seed=st.integers(0, 50))
def test_token_budget_is_never_exceeded(budget: int, seed: int) -> None:
    """No proposal of a chain exceeds the token budget."""
    proposer = ExemplarProposer(train=TRAIN, token_budget=budget, seed=seed)
    proposer.observe(SEED, TRAIN, [prediction("Food")] * len(TRAIN))
    for prompt in propose(proposer, SEED, 8):
        assert tokens(prompt) <= budget


@given(seed=st.integers(0, 200))
def test_validation_texts_are_never_copied(seed: int) -> None:
    """No proposal holds a text of a row outside the training set."""
    proposer = ExemplarProposer(train=TRAIN, seed=seed)
    secret = [{"input": f"secret{i} validation words", "answer": "Fuel"} for i in range(8)]
    proposer.observe(SEED, secret, [prediction("Food")] * len(secret))
    for prompt in propose(proposer, SEED, 10):
        proposer.observe({"system_prompt": prompt}, secret, [prediction("Food")] * len(secret))
        assert "secret" not in prompt
        assert "validation words" not in prompt


def test_costly_confusions_choose_the_edits() -> None:
    """New demonstrations and notes are about the pair of labels that is confused."""
    proposer = ExemplarProposer(train=TRAIN, seed=0)
    (start,) = propose(proposer, SEED, 1)
    base = {"system_prompt": start}
    wrong = [prediction("Fuel", 0.99)] * 6
    proposer.observe(base, TRAIN[:6], wrong)
    proposer.observe(base, TRAIN[6:], [prediction(row["answer"]) for row in TRAIN[6:]])
    before = demonstrations(start)
    notes, added = [], []
    for _ in range(40):
        edited = proposer(base, {}, ["system_prompt"])
        if not edited:
            continue
        notes += notes_of(edited["system_prompt"])
        added += [item for item in demonstrations(edited["system_prompt"]) if item not in before]
    assert {item.label for item in added} == {"Bills/Gas & Oil"}
    assert set(notes) == {'"Bills/Gas & Oil", not "Fuel": boiler, delivery, heating, number'}


@pytest.mark.parametrize(
    ("predictions", "heads"),
    [
        ([("Fuel", 0.9), ("Bills/Gas & Oil", 0.0)], {'"Food", not "Fuel"'}),
        ([("Fuel", 0.0), ("Bills/Gas & Oil", 0.2)], {'"Food", not "Bills/Gas & Oil"'}),
        ([("Fuel", 0.9), ("Fuel", 0.9)], {'"Food", not "Fuel"'}),
    ],
)
def test_confidence_weighs_the_confusions(predictions: list[tuple[str, float]], heads: set[str]) -> None:
    """A confusion costs its confidence: notes are about those that cost something."""
    proposer = ExemplarProposer(train=TRAIN, seed=0)
    (start,) = propose(proposer, SEED, 1)
    base = {"system_prompt": start}
    proposer.observe(base, TRAIN[6:8], [prediction(*pair) for pair in predictions])
    notes = {note for _ in range(40) for note in notes_of("".join(proposer(base, {}, []).values()))}
    assert {note.partition(":")[0] for note in notes} == heads


def test_answers_without_a_label_cost_nothing() -> None:
    """Answers without a label change no proposal."""

    def run(*answers: Prediction) -> list[dict[str, str]]:
        proposer = ExemplarProposer(train=TRAIN, seed=0)
        base = {"system_prompt": propose(proposer, SEED, 1)[0]}
        proposer.observe(base, TRAIN[: len(answers)], answers)
        return [proposer(base, {}, []) for _ in range(9)]

    assert run(prediction(None), prediction(None)) == run() != run(prediction("Fuel"), prediction("Fuel"))


def test_overpredicted_labels_lose_demonstrations() -> None:
    """A demonstration is dropped of the label that was answered too often."""
    proposer = ExemplarProposer(train=TRAIN, seed=0)
    (start,) = propose(proposer, SEED, 1)
    base = {"system_prompt": start}
    proposer.observe(base, TRAIN[:12], [prediction("Fuel")] * 6 + [prediction("Food")] * 6)
    before = demonstrations(start)
    proposed = [demonstrations(found) for _ in range(40) for found in proposer(base, {}, []).values()]
    shorter = [shown for shown in proposed if len(shown) < len(before)]
    assert shorter
    assert {item.label for shown in shorter for item in before if item not in shown} == {"Fuel"}


def test_the_system_prompt_is_edited_whatever_is_asked_for() -> None:
    """The proposer edits the system prompt whichever component it is asked for."""
    proposer = ExemplarProposer(train=TRAIN)
    for candidate in (
        {"system_prompt": "Classify.", "user_template": "{input}"},
        {"user_template": "{input}", "system_prompt": "Classify."},
    ):
        assert set(proposer(candidate, {}, ["user_template"])) == {"system_prompt"}


def test_an_adapter_tells_spelling_and_field() -> None:
    """Demonstrations have the spelling and the field that `prepare` was given."""
    rows = [{"input": "meow", "answer": "CAT "}, {"input": "woof", "answer": "DOG"}]
    proposer = ExemplarProposer(train=rows)
    proposer.prepare(labels=("cat", "dog"), field="a.b")
    (prompt,) = propose(proposer, SEED, 1)
    assert '{"a": {"b": "cat"}}' in prompt
    assert '{"a": {"b": "dog"}}' in prompt


def test_long_texts_are_not_shown_while_short_ones_exist() -> None:
    """A label whose only text exceeds the token budget is not shown at all."""
    long = "word " * 400
    rows = [
        {"input": long + "a", "answer": "Food"},
        {"input": "short lunch", "answer": "Food"},
        {"input": long, "answer": "Fuel"},
    ]
    (prompt,) = propose(ExemplarProposer(train=rows, token_budget=200), SEED, 1)
    assert [item.label for item in demonstrations(prompt)] == ["Food"]


def test_examples_and_mappings_are_the_same() -> None:
    """Training rows may be examples or mappings, and labels ignore case and space."""
    rows = [
        Example(input="x", answer="Food"),
        {"input": "y", "answer": " food"},
        {"input": "z", "answer": "Fuel"},
    ]
    (prompt,) = propose(ExemplarProposer(train=rows), SEED, 1)
    assert prompt.count('"Food"') == 1
    assert " food" not in prompt


@pytest.mark.parametrize(
    "options", [{"train": []}, {"train": TRAIN[:3]}, {"train": TRAIN, "token_budget": 0}]
)
def test_bad_parameters_are_refused(options: dict[str, Any]) -> None:
    """A bad parameter raises ConfigurationError with what was expected."""
    with pytest.raises(ConfigurationError, match="Expected"):
        ExemplarProposer(**options)


texts = (
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1)
    .map(lambda text: " ".join(text.split()))
    .filter(bool)
)


def pieces(added: str) -> tuple[Counter[str], Counter[str]]:
    """Return the notes and the demonstrations in what is added to an instruction."""
    _, *blocks = added.split("\n\n") if added else [""]
    notes = [line for block in blocks if block.startswith("Notes:\n- ") for line in block.split("\n")[1:]]
    shown = [block for block in blocks if block.startswith("Text: ")]
    assert blocks[bool(notes) :] == ["Examples:"] * bool(shown) + shown
    return Counter(notes), Counter(shown)


@given(
    instruction=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])),
    notes=st.lists(texts, max_size=3),
    shown=st.lists(st.tuples(texts, st.sampled_from(LABELS)), max_size=4),
    field=st.sampled_from(["label", "a.b", "results[].category"]),
)
def test_one_piece_of_a_prompt_is_edited(
    instruction: str, notes: list[str], shown: list[tuple[str, str]], field: str
) -> None:
    """Instruction, notes and demonstrations of a prompt stay, but for a piece that is added or leaves."""
    form = {"label": '{"label": %s}', "a.b": '{"a": {"b": %s}}'}.get(field, '{"results": [{"category": %s}]}')
    lines = [f"Text: {text}\nAnswer: {form % json.dumps(label)}" for text, label in shown]
    added = "".join(f"\n- {note}" for note in notes)
    added = ("\n\nNotes:" + added if notes else "") + "".join(
        f"\n\n{one}" for one in ["Examples:", *lines] if shown
    )
    proposer = ExemplarProposer(train=TRAIN, token_budget=10_000)
    proposer.prepare(labels=LABELS, field=field)
    for _ in range(6):
        for prompt in proposer({"system_prompt": instruction + added}, {}, []).values():
            assert prompt.startswith(instruction)
            if any(mark in instruction for mark in ("Notes:", "Examples:")):
                continue
            for before, after in zip(pieces(added), pieces(prompt.removeprefix(instruction)), strict=True):
                assert (before - after).total() <= 1
                assert (after - before).total() <= (1 if shown else len(LABELS))


def test_foreign_prompts_are_all_instruction() -> None:
    """A foreign prompt with a section like ours is kept as one instruction."""
    prompt = "Do it.\n\nExamples:\n\nText: a\nAnswer: something else"
    assert propose(ExemplarProposer(train=TRAIN), {"system_prompt": prompt}, 1)[0].startswith(
        f"{prompt}\n\nExamples:\n\nText: "
    )
