"""Tests of other prompts and label descriptions that a task gives to a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibrant.core import ConfigurationError, Example, HeadSettings, ScoringSettings, StateError, Task
from calibrant.optimization import OptimizationResult, Progress, optimize
from calibrant.testing import FakeClient
from small_tasks import LABELS, searched, task_of

GOOD = "Listen carefully: which animal?"
BAD = "Guess."
DESCRIBED = {"cat": "It meows.", "dog": "It barks."}


def rows(split: str, count: int) -> tuple[Example, ...]:
    """Return as many cats as dogs."""
    return tuple(Example(input=f"{split} {LABELS[n % 2]} {n}", answer=LABELS[n % 2]) for n in range(count))


def task(*other_prompts: str, **changes: Any) -> Task:
    """Return a task with enough validation rows to race on."""
    given = {"other_prompts": other_prompts, "head": HeadSettings(fit="off"), **changes}
    return task_of(rows, 40, 80, 20, **given)


def listener(text: str, prompt: str) -> dict[str, float]:
    """Err on every third row, more under a bad prompt, and never under a good one."""
    _, label, number = text.split()
    helped = "carefully" in prompt or "It meows." in prompt
    errs = int(number) % 3 == 0 if prompt != BAD else int(number) % 3 > 0
    known = 0.9 if helped else 0.2 if errs else 0.8
    return {label: known, LABELS[1 - LABELS.index(label)]: 1.0 - known}


def nothing(*_: Any) -> dict[str, str]:
    """Propose nothing."""
    return {}


def search(found: Task, client: FakeClient | None = None, **options: Any) -> OptimizationResult:
    """Search with a scripted model and at most 400 calls."""
    return optimize(
        found, model=client or FakeClient(LABELS, listener), **{"max_metric_calls": 400, **options}
    )


def origins(result: OptimizationResult) -> list[str | None]:
    """Return the names of the prompts that were asked on validation rows."""
    return [one.origin for one in result.validated]


def asked(client: FakeClient, split: str = "") -> list[tuple[str, str]]:
    """Return prompt and text of the search's calls, without those on test rows."""
    return [pair for pair in searched(client) if pair[1].startswith(split)]


@pytest.mark.parametrize(
    "changes", [{}, {"scoring": ScoringSettings(strategy="linear")}], ids=["race", "own-score"]
)
def test_a_better_other_prompt_wins(changes: dict[str, Any]) -> None:
    """A better prompt of the task wins without any proposal."""
    result = search(task(BAD, GOOD, **changes), proposer=nothing)
    assert (result.improved, result.best_prompt.prompt, result.seed_prompt.prompt) == (
        True,
        GOOD,
        "Which animal?",
    )
    assert (result.chosen, origins(result)) == (2, [None, "other prompt 1", "other prompt 2"])
    assert (result.proposals, result.accepted) == (0, 0)
    assert result.to_record()["validated"][2]["origin"] == "other prompt 2"


def test_the_prompt_stays_where_no_other_is_better() -> None:
    """The seed prompt is kept where the other prompts are equal or worse."""
    result = search(task(BAD, "Which one?"), proposer=nothing)
    assert (result.chosen, result.improved, result.best_prompt.prompt) == (0, False, "Which animal?")


def test_other_prompts_are_screened_before_proposals() -> None:
    """The first 48 calls ask the three prompts about the same 16 validation rows."""
    client = FakeClient(LABELS, listener)
    search(task(BAD, GOOD), client)
    first = asked(client)[:48]
    texts = {
        prompt: [text for one, text in first if one == prompt] for prompt in ("Which animal?", BAD, GOOD)
    }
    assert [len(found) for found in texts.values()] == [16, 16, 16]
    assert len({frozenset(found) for found in texts.values()}) == 1
    assert all(text.startswith("validation") for _, text in first)


def test_proposals_build_on_other_prompts() -> None:
    """A proposal can build on one of the other prompts."""
    parents: list[str] = []

    def propose(candidate: dict[str, str], *_: Any) -> dict[str, str]:
        parents.append(candidate["system_prompt"])
        return {"system_prompt": f"{candidate['system_prompt']} Look again."}

    search(task(GOOD), proposer=propose)
    assert GOOD in parents


def test_a_reflecting_model_comes_after_other_prompts() -> None:
    """The reflection model is asked only after the other prompts were screened."""
    client = FakeClient(LABELS, listener)
    asked_before: list[int] = []

    def reflect(_: str) -> str:
        asked_before.append(len(asked(client)))
        return "```\nGuess.\n```"

    result = search(task(GOOD), client, reflection_model=reflect)
    assert result.best_prompt.prompt == GOOD
    assert asked_before[0] >= 32


@pytest.mark.parametrize("budget", [72, 90, 131, 200])
def test_the_budget_holds_with_other_prompts(budget: int) -> None:
    """A budget that cannot screen all other prompts raises ConfigurationError."""
    client = FakeClient(LABELS, listener)
    result = search(task(BAD, GOOD, head=HeadSettings()), client, max_metric_calls=budget)
    assert len(asked(client)) == result.metric_calls <= budget
    assert origins(result)[:3] == [None, "other prompt 1", "other prompt 2"]
    with pytest.raises(ConfigurationError, match=r">= 72, got 71: .* each of 2 other prompts one pass more"):
        search(task(BAD, GOOD), max_metric_calls=71)


def test_other_prompts_are_not_tried_without_errors() -> None:
    """The other prompts are not tried if the seed prompt makes no error."""
    client = FakeClient(LABELS, lambda text: (text.split()[1], 0.7))
    result = search(task(GOOD), client)
    assert origins(result) == [None]
    assert {prompt for prompt, _ in asked(client)} == {"Which animal?"}


def test_a_run_with_other_prompts_is_another_run(tmp_path: Path) -> None:
    """Other prompts or label descriptions in the same directory raise StateError."""
    options: dict[str, Any] = {"max_metric_calls": 120, "out": tmp_path}
    search(task(head=HeadSettings()), **options)
    for changed in (task(GOOD, head=HeadSettings()), task(label_descriptions=DESCRIBED, head=HeadSettings())):
        with pytest.raises(StateError, match="differs in task"):
            search(changed, **options)
    with pytest.raises(StateError, match=r"differs in embeddings \(null then, false now\)"):
        search(task(head=HeadSettings(embeddings=False)), **options)


def test_the_seed_prompt_beside_descriptions_is_the_one_of_the_task() -> None:
    """Where descriptions may be rewritten, gains are measured against the prompt without a list of labels."""
    given = task(GOOD, label_descriptions=DESCRIBED)
    result = search(given, reflection_model=lambda _: "```\nSort the animals.\n```")
    assert result.seed_prompt.prompt == given.prompt
    origins = [one.origin for one in result.validated]
    assert origins[:3] == [None, "other prompt 1", "prompt with label descriptions"]


def test_label_descriptions_are_tried_and_chosen() -> None:
    """A prompt with one line for each described label is tried, and chosen if it is better."""
    result = search(task(label_descriptions={**DESCRIBED, "dog": "It barks,\nor growls."}), proposer=nothing)
    assert origins(result) == [None, "prompt with label descriptions"]
    assert (result.chosen, result.improved) == (1, True)
    assert result.best_prompt.prompt == (
        "Which animal?\n\nLabels:\n- cat: It meows.\n- dog: It barks, or growls.\n"
        'Answer with JSON of this form: {"category": "..."}'
    )


def test_descriptions_stand_before_demonstrations() -> None:
    """Label descriptions are put before demonstrations, and not added twice."""
    shown = '\n\nExamples:\n\nText: train cat 0\nAnswer: {"category": "cat"}'
    described = (
        "Which animal?\n\nLabels:\n- cat: It meows.\n- dog\n"
        'Answer with JSON of this form: {"category": "..."}'
    )
    options: dict[str, Any] = {"proposer": nothing, "max_metric_calls": 120}
    given = task(prompt="Which animal?" + shown, label_descriptions={"cat": "It meows."})
    result = search(given, **options)
    assert result.validated[1].candidate["system_prompt"] == described + shown
    again = task(prompt=described, label_descriptions={"cat": "It meows."})
    assert origins(search(again, **options)) == [None]


@pytest.mark.parametrize(
    "given",
    [
        {"other_prompts": ["Texts like 'validation cat 2' are cats."]},
        {"label_descriptions": {"dog": "Such as validation dog 13."}},
    ],
)
def test_prompts_that_show_rows_of_the_comparison_are_refused(given: dict[str, Any]) -> None:
    """A given prompt that shows a validation or test row raises ConfigurationError."""
    with pytest.raises(
        ConfigurationError, match=r"show no validation or test row, got the text 'validation (cat 2|dog 13)'"
    ):
        search(task(**given))


def test_other_prompts_may_show_training_rows() -> None:
    """A given prompt that shows training rows is accepted, and so are proposals from it."""
    result = search(
        task("Texts like 'train cat 12' are cats."),
        proposer=lambda *_: {"system_prompt": "Texts like 'train cat 12' are cats. Listen carefully."},
    )
    assert result.best_prompt.prompt.endswith("carefully.")
    assert result.improved


class Interruption(BaseException):
    """Exception that ends a search as Ctrl-C does."""


@pytest.mark.parametrize("stop", [20, 60])
def test_an_interrupted_search_continues(tmp_path: Path, stop: int) -> None:
    """An interrupted search gives the same result, and pays for no call twice."""
    whole = search(task(BAD, GOOD), max_metric_calls=200)

    def interrupt(progress: Progress) -> None:
        if progress.calls > stop:
            raise Interruption

    with pytest.raises(Interruption):
        search(task(BAD, GOOD), max_metric_calls=200, out=tmp_path, progress=interrupt)
    paid = len((tmp_path / "journal.jsonl").read_bytes().splitlines())
    client = FakeClient(LABELS, listener)
    result = search(task(BAD, GOOD), client, max_metric_calls=200, out=tmp_path)
    assert (result.best_prompt, result.metric_calls) == (whole.best_prompt, whole.metric_calls)
    assert len(asked(client)) == whole.metric_calls - paid
