"""Tests of searches that rewrite label descriptions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrant import Classifier, Example, Task
from calibrant.assembly import open_classifier
from calibrant.cascade import CascadeSettings
from calibrant.core import Field, FieldLabels, HeadSettings, ModelSettings, OrdinalLabels, ScoringSettings
from calibrant.optimization import OptimizationResult, optimize
from calibrant.testing import FakeClient
from calibrant.tuned import Tuned
from deciding_animals import DecidingAnimals
from decision_server import DecisionServer
from small_tasks import LABELS, task_of
from sparrow_server import SparrowServer

REQUESTS = Path(__file__).parents[2] / "examples" / "requests"
GOOD = "cat: It meows.\ndog: It barks."
LISTED = "Which animal?\n\nLabels:\n- cat: It meows.\n- dog: It barks."
ASKED_FOR_A_LIST = "reads this list of what each label means"


def animals() -> DecidingAnimals:
    """Return a model that errs on every third row, on none if told of meows, and on all if told of moos."""

    def knows(text: str, described: str) -> tuple[str, float]:
        _, label, number = text.split()
        errs = int(number) % 3 == 0 or "moos" in described
        right = 0.9 if "meows" in described else 0.2 if errs else 0.8
        return label, right

    return DecidingAnimals(knows)


class Writer:
    """Reflection model that writes lists in turn, the last one again, and one instruction."""

    def __init__(self, *lists: str) -> None:
        self._lists = list(lists)
        self.list_prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        if ASKED_FOR_A_LIST not in prompt:
            return "```\nWhich one?\n```"
        self.list_prompts.append(prompt)
        written = self._lists[0] if len(self._lists) == 1 else self._lists.pop(0)
        return f"```\n{written}\n```"


def rows(split: str, count: int) -> tuple[Example, ...]:
    """Return as many cats as dogs."""
    return tuple(Example(input=f"{split} {LABELS[n % 2]} {n}", answer=LABELS[n % 2]) for n in range(count))


def task(**changes: Any) -> Task:
    """Return a task with enough validation rows to race on."""
    return task_of(rows, 40, 80, 20, **{"head": HeadSettings(fit="off"), **changes})


def search(writer: Writer | None, *, model: Any = None, **changes: Any) -> OptimizationResult:
    """Search with a decision model and at most 400 calls."""
    out = changes.pop("out", None)
    return optimize(
        task(**changes), model=model or animals(), reflection_model=writer, max_metric_calls=400, out=out
    )


@pytest.mark.parametrize(
    "changes", [{}, {"scoring": ScoringSettings(strategy="linear")}], ids=["race", "own-score"]
)
def test_a_better_list_is_taken(changes: dict[str, Any]) -> None:
    """Descriptions that help stand in the best prompt, and went beside the options."""
    model = animals()
    result = search(Writer(GOOD), model=model, **changes)
    assert (result.improved, result.best_prompt.accuracy.estimate) == (True, 1.0)  # type: ignore[union-attr]
    assert result.best_prompt.prompt.endswith("\n\nLabels:\n- cat: It meows.\n- dog: It barks.")
    assert result.seed_prompt.prompt == "Which animal?"
    described = [one for one in model.questions if any(one.descriptions)]
    assert {one.descriptions for one in described} == {("It meows.", "It barks.")}
    assert {one.instructions for one in described} <= {"Which animal?", "Which one?"}


def test_a_worse_list_is_rejected() -> None:
    """Descriptions that do harm are not validated, and the prompt stays."""
    result = search(Writer("cat: It moos.\ndog: It moos, too."))
    assert (result.chosen, result.best_prompt.prompt) == (0, "Which animal?")
    assert not any("moos" in one.candidate["system_prompt"] for one in result.validated)


def test_a_list_with_a_training_text_is_rejected() -> None:
    """However much it helps: descriptions copy no rows."""
    result = search(Writer("cat: It meows, as in train cat 12.\ndog: It barks."))
    assert not any("meows" in one.candidate["system_prompt"] for one in result.validated)


@pytest.mark.parametrize(
    ("written", "got"),
    [
        ("cat: It meows.\ncow: It moos.", r"got 'cow: It moos.'"),
        ("cat: It meows.", r"got none for 'dog'"),
        ("cat: It meows.\ndog: It barks.\nCat: It purrs.", r"got 'Cat: It purrs.' as a second one"),
        ("A cat meows, a dog barks.", r"got 'A cat meows, a dog barks.'"),
    ],
)
def test_any_other_text_is_refused_unasked(written: str, got: str) -> None:
    """No row is asked about it, and the next request says what is expected."""
    model, writer = animals(), Writer(written, GOOD)
    result = search(writer, model=model)
    first, second = writer.list_prompts[:2]
    assert "The last proposal was refused." not in first
    assert (
        f"The last proposal was refused. Expected label descriptions with one line for each label, as label: "
        f"description, {got}" in second
    )
    assert "Write one line for each of these labels, as `label: description`: cat, dog." in first
    assert len([text for text in model.texts if not text.startswith("test")]) == result.metric_calls
    assert {one.descriptions for one in model.questions} <= {(), ("It meows.", "It barks.")}
    assert result.best_prompt.prompt.endswith(LISTED.removeprefix("Which animal?"))


def test_descriptions_of_the_task_come_first() -> None:
    """The search starts from them, and the seed prompt lists them."""
    writer = Writer(GOOD)
    result = search(writer, label_descriptions={"dog": "It growls."})
    assert result.seed_prompt.prompt == "Which animal?\n\nLabels:\n- cat\n- dog: It growls."
    assert "```\ncat:\ndog: It growls.\n```" in writer.list_prompts[0]


def test_lists_in_given_prompts_come_before_descriptions() -> None:
    """A prompt that lists descriptions keeps them, and others get those of the first."""
    moos = {"cat": "It moos.", "dog": "It moos, too."}
    other = "Which?\n\nLabels:\n- cat: It growls.\n- dog"
    mooing = "Which animal?\n\nLabels:\n- cat\n- dog: It moos."
    result = search(None, prompt=mooing, label_descriptions=moos, other_prompts=[other, "Guess."])
    prompts = [one.candidate["system_prompt"] for one in result.validated]
    assert prompts[:3] == [mooing, other, "Guess.\n\nLabels:\n- cat\n- dog: It moos."]
    assert [one.origin for one in result.validated][:3] == [None, "other prompt 1", "other prompt 2"]
    assert "prompt with label descriptions" not in [one.origin for one in result.validated]


def test_a_cascade_keeps_the_descriptions_of_its_task() -> None:
    """Its models get them beside their options, as they did in the search."""
    server = DecisionServer(0.4, 0.6)
    address = {"api_base": server.root, "name": "systemone/small"}
    members = [{**address, "alias": "first"}, {**address, "name": "systemone/large", "alias": "second"}]
    settings = CascadeSettings.model_validate({"confidence_method": "label_probability", "models": members})
    given = task(label_descriptions={"cat": "It meows."}, sections={"cascade": settings})
    try:
        with open_classifier(given) as opened:
            result = optimize(given, model=opened, max_metric_calls=300)
        assert result.tuned is not None
        server.asked.clear()
        with result.tuned.open() as tuned:
            tuned.classify("test cat 1")  # type: ignore[attr-defined]
    finally:
        server.stop()
    assert {body["questions"]["q0"]["criteria"]["cat"] for body in server.asked} == {"It meows."}


def test_descriptions_can_be_dropped() -> None:
    """Where those of the task do harm, empty lines take them away, in the tuned classifier as well."""
    model = animals()
    moos = {"cat": "It moos.", "dog": "It moos, too."}
    result = search(Writer("cat:\ndog:"), model=model, label_descriptions=moos)
    assert result.best_prompt.prompt.endswith("\n\nLabels:\n- cat\n- dog")
    assert result.tuned is not None
    model.questions.clear()
    with result.tuned.open(model=model) as opened:
        opened.classify("test cat 1")  # type: ignore[attr-defined]
    assert model.questions[0].descriptions == ()


def test_demonstrations_need_no_reflection_model() -> None:
    """A search that writes none keeps the task's descriptions in its prompts."""
    result = search(
        None, label_descriptions={"cat": "It meows.", "dog": "It barks."}, other_prompts=["Which?"]
    )
    assert result.best_prompt.prompt == LISTED
    assert [one.origin for one in result.validated] == [None]  # nothing is wrong
    harmful = {"cat": "It moos.", "dog": "It moos, too."}
    others = search(None, label_descriptions=harmful, other_prompts=["Which?"]).validated
    assert others[1].candidate["system_prompt"] == "Which?\n\nLabels:\n- cat: It moos.\n- dog: It moos, too."


def test_found_descriptions_travel(tmp_path: Path) -> None:
    """Run, bundle and value ask as the search did."""
    settings = ModelSettings(name="systemone/local", api_base="http://127.0.0.1:9")
    given = task(label_descriptions={"cat": "It moos."}, model=settings)
    model = animals()
    result = optimize(
        given,
        model=Classifier.from_task(given, model=model),
        reflection_model=written_well,
        max_metric_calls=400,
        out=tmp_path / "run",
    )
    assert (tmp_path / "run" / "best_prompt.txt").read_text() == result.best_prompt.prompt
    assert result.best_candidate == {"system_prompt": result.best_prompt.prompt}
    assert result.tuned is not None
    result.tuned.save(tmp_path / "bundle")
    run = Tuned.from_run(tmp_path / "run", task=replace(given, model=ModelSettings(name="animals")))
    for tuned in (result.tuned, Tuned.load(tmp_path / "bundle"), run):
        model.questions.clear()
        with tuned.open(model=model) as opened:
            assert opened.prompt == result.best_prompt.prompt
            opened.classify("test cat 1")  # type: ignore[attr-defined]
        assert model.questions[0].descriptions == ("It meows.", "It barks.")


def written_well(prompt: str) -> str:
    """Write the good list, or an instruction."""
    return Writer(GOOD)(prompt)


def test_labels_that_take_none_have_no_list() -> None:
    """A label of two lines stands in no list, so the reflection model is asked for instructions alone."""
    writer = Writer(GOOD)
    labels = ["cat\nor kitten", "dog"]

    def both(split: str, count: int) -> tuple[Example, ...]:
        return tuple(replace(row, answer=labels[LABELS.index(row.answer)]) for row in rows(split, count))

    held_out = {name: both(name, n) for name, n in (("train", 40), ("validation", 80), ("test", 20))}

    def knows(text: str, described: str) -> tuple[str, float]:
        assert not described
        _, label, number = text.split()
        return labels[LABELS.index(label)], 0.2 if int(number) % 3 == 0 else 0.8

    model = DecidingAnimals(knows)
    result = search(writer, model=model, labels=labels, **held_out)
    assert result.proposals > 0
    assert not writer.list_prompts


def test_levels_are_described() -> None:
    """A list of levels that helps is taken, and went beside the options."""
    model = animals()
    result = search(Writer(GOOD), model=model, labels=OrdinalLabels(LABELS))
    assert result.best_prompt.prompt.endswith("\n\nLabels:\n- cat: It meows.\n- dog: It barks.")
    described = [one.descriptions for one in model.questions if any(one.descriptions)]
    assert set(described) == {("It meows.", "It barks.")}


SIZED = FieldLabels([Field(name="animal", labels=LABELS), Field(name="size", labels=["small", "large"])])
OF_CATS = {"animal=cat": "It meows."}


def sized(split: str, count: int) -> tuple[Example, ...]:
    """Return small animals with two fields."""
    answers = [json.dumps({"animal": row.answer, "size": "small"}) for row in rows(split, count)]
    pairs = zip(rows(split, count), answers, strict=True)
    return tuple(replace(row, answer=answer) for row, answer in pairs)


def fields_search(model: Any) -> OptimizationResult:
    """Search on answers with two fields, one value of which is described."""
    data = {name: sized(name, n) for name, n in (("train", 40), ("validation", 80), ("test", 20))}
    return search(None, model=model, labels=SIZED, label_descriptions=OF_CATS, **data)


def test_values_of_fields_are_described_beside_the_options() -> None:
    """A search asks with the descriptions of its task's model, and writes them into no prompt."""
    server = DecisionServer(0.7, 0.3)
    options = {"api_base": server.root}
    with Classifier(
        model="systemone/own", labels=SIZED, label_descriptions=OF_CATS, options=options
    ) as asked:
        result = fields_search(asked)
    server.stop()
    criteria = [body["questions"]["q0"]["criteria"] for body in server.asked]
    assert all(given == {"cat": "It meows.", "dog": None} for given in criteria)
    assert "It meows" not in result.best_prompt.prompt


def test_a_chat_model_reads_no_descriptions_of_fields() -> None:
    """They have no place in a prompt whose answers hold several labels."""
    prompts: set[str] = set()

    def answer(text: str, prompt: str) -> str:
        prompts.add(prompt)
        return json.dumps({"animal": text.split()[1], "size": "small"})

    fields_search(FakeClient(SIZED, answer))
    assert prompts
    assert not any("It meows" in prompt for prompt in prompts)


def listener(text: str, prompt: str) -> dict[str, float]:
    """Err on every third row unless the prompt tells of growling."""
    _, label, number = text.split()
    right = 0.9 if "growls" in prompt else 0.2 if int(number) % 3 == 0 else 0.8
    return {label: right, LABELS[1 - LABELS.index(label)]: 1.0 - right}


def test_a_chat_model_reads_the_list_in_its_prompt() -> None:
    """A task's descriptions are rewritten for a chat model too, apart from the instructions."""
    writer = Writer("cat: It meows.\ndog: It growls.")
    result = search(
        writer,
        model=FakeClient(LABELS, listener),
        label_descriptions={"cat": "It meows.", "dog": "It barks."},
    )
    assert result.validated[1].origin == "prompt with label descriptions"
    assert result.best_prompt.prompt.endswith(
        '\n\nLabels:\n- cat: It meows.\n- dog: It growls.\nAnswer with JSON of this form: {"category": "..."}'
    )
    assert result.improved


def test_a_chat_model_without_descriptions_gets_none() -> None:
    """Without descriptions in the task, a chat model's reflection model writes instructions alone."""
    writer = Writer(GOOD)
    result = search(writer, model=FakeClient(LABELS, listener))
    assert result.proposals > 0
    assert not writer.list_prompts


REQUEST_TOPICS = """auto and commute: cars, tires, gas, oil changes, traffic and directions
banking: accounts, balances, transfers, bills and interest
credit cards: credit limit, card rewards, credit score, a declined card
home: lists, reminders, calendar, orders, music and lights at home
kitchen and dining: recipes, ingredients, cooking, restaurants and reservations
meta: changing the assistant itself: its name, language, voice, volume or settings
small talk: chatting with the assistant: greetings, jokes, who are you
travel: flights, hotels, luggage, visas and trips
utility: time, weather, timers, alarms, calculations, definitions, calls and texts
work: vacation days, payday, taxes, insurance, meetings and retirement"""


def test_a_real_decision_model_gains_by_descriptions() -> None:
    """A list about training rows is taken, and raises the accuracy on test rows; a turned one is rejected."""
    lines = [line.partition(": ")[::2] for line in REQUEST_TOPICS.splitlines()]
    turned = "\n".join(
        f"{label}: {words}" for (label, _), (_, words) in zip(lines, lines[1:] + lines[:1], strict=True)
    )
    known, judged = (
        [
            Example(input=row["input"], answer=row["answer"])
            for row in map(json.loads, (REQUESTS / name).read_text(encoding="utf-8").splitlines())
        ]
        for name in ("labelled.jsonl", "test.jsonl")
    )
    server = SparrowServer()
    given = replace(
        Task.from_file(REQUESTS / "task.toml", splits=()),
        model=ModelSettings(name="systemone/local", api_base=server.root),
        train=tuple(known[:60]),
        validation=tuple(known[60:]),
        test=tuple(judged[::4]),
        head=HeadSettings(fit="off"),
    )
    try:
        result = optimize(given, reflection_model=Writer(turned, REQUEST_TOPICS), max_metric_calls=600)
    finally:
        server.stop()
    assert server.calls == result.metric_calls + 2 * len(given.test)
    prompts = [one.candidate["system_prompt"] for one in result.validated]
    assert not any("- meta: chatting" in prompt for prompt in prompts)
    assert "- meta: changing the assistant itself" in result.best_prompt.prompt
    assert result.comparison is not None
    assert result.comparison.interval.lower > 0.1
