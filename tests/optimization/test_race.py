"""Tests of the race between prompts: its winner, and the rows it asks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant.core import Example, LabelSet, ProviderError, Task
from calibrant.optimization import optimize
from calibrant.optimization._choice import (
    CandidateStanding,
    detectable_gain,
    race,
    race_calls,
    standing,
)
from calibrant.testing import FakeClient
from small_tasks import LABELS, searched, task_of

FIRST = 20  # rows of the first stage


def stand_of(
    losses: NDArray[np.float64], accuracy: Sequence[float]
) -> Callable[[int, int], CandidateStanding]:
    """Return the standing of prompts whose losses are an array of shape (prompts, n)."""
    return lambda place, n: CandidateStanding(
        losses=losses[place, :n], accuracy=accuracy[place], macro_f1=accuracy[place]
    )


def drawn(gains: Sequence[float], *, rows: int = 400, seed: int = 0) -> NDArray[np.float64]:
    """Return losses with noise of size 1 whose mean is lower than the seed prompt's by `gains`."""
    rng = np.random.default_rng(seed)
    return np.array([rng.normal(1.0 - gain, 1.0, rows) for gain in (0.0, *gains)])


def test_the_best_of_several_is_taken() -> None:
    """A race takes the best of several prompts."""
    stand = stand_of(drawn([-0.5, 0.1, 0.8, 0.0]), [0.5] * 5)
    assert race(4, stand, rows=400) == 3


def test_a_clear_race_ends_early() -> None:
    """A clear race asks only the rows of the first stage."""
    asked: list[tuple[int, int]] = []
    stand = stand_of(drawn([2.0]), [0.5, 0.9])

    def noted(place: int, n: int) -> CandidateStanding:
        asked.append((place, n))
        return stand(place, n)

    assert race(1, noted, rows=400) == 1
    assert asked == [(0, FIRST), (1, FIRST)]


@pytest.mark.parametrize(
    ("errors", "rows", "chosen"),
    [
        # The chance after a share t of the rows, by hand: Phi((errors - 0.5 sqrt(t)) / sqrt(1 - t)).
        (-1.2, 240, 0),  # Phi(-1.40) = 0.08
        (-1.0, 240, None),  # Phi(-1.20) = 0.12
        (2.0, 240, None),  # Phi(1.94) = 0.974
        (2.2, 240, 1),  # Phi(2.15) = 0.984
        (-0.4, 30, 0),  # Phi(-1.40) = 0.08
        (-0.3, 30, None),  # Phi(-1.23) = 0.11
        (1.5, 30, None),  # Phi(1.89) = 0.971
        (1.7, 30, 1),  # Phi(2.24) = 0.987
    ],
)
def test_a_race_ends_once_its_end_is_nearly_certain(errors: float, rows: int, chosen: int | None) -> None:
    """A race ends at its first stage if a prompt's chance to win is below 0.1 or above 0.98."""
    each = np.tile([1.0, -1.0], rows // 2) * math.sqrt((FIRST - 1) / FIRST)  # deviation 1 on the first rows
    stand = stand_of(np.stack([each + errors / math.sqrt(FIRST), np.zeros(rows)]), [0.5, 0.5])
    asked: list[int] = []

    def noted(place: int, n: int) -> CandidateStanding:
        asked.append(n)
        return stand(place, n)

    found = race(1, noted, rows=rows)
    assert (max(asked) > FIRST) is (chosen is None)
    assert chosen in {None, found}


def test_half_of_the_candidates_goes_on() -> None:
    """After each stage about half of the candidates beside the seed goes on."""
    asked: Counter[int] = Counter()
    stand = stand_of(np.tile(np.linspace(0.5, 1.5, 400), (5, 1)), [0.5] * 5)

    def noted(place: int, n: int) -> CandidateStanding:
        asked[place] = max(asked[place], n)
        return stand(place, n)

    assert race(4, noted, rows=60) == 0
    assert sorted(asked.values(), reverse=True) == [60, 60, 30, 20, 20]
    assert sum(asked.values()) == race_calls(4, 60)


@pytest.mark.parametrize("accuracy", [[0.5, 0.4], [0.6, 0.5]])
def test_a_less_accurate_prompt_is_not_taken(accuracy: list[float]) -> None:
    """A prompt with a lower loss and a lower accuracy than the seed prompt does not win the race."""
    assert race(1, stand_of(drawn([2.0]), accuracy), rows=400) == 0


def test_the_least_promising_candidates_stay_out() -> None:
    """If not all candidates can be paid for, the last ones are left out."""
    stand = stand_of(drawn([2.0, 3.0]), [0.5] * 3)
    assert race(2, stand, rows=400, affordable=lambda places, n: len(places) * n <= 2 * FIRST) == 1


def test_nothing_is_asked_that_cannot_be_paid() -> None:
    """If not even the first stage can be paid for, the seed prompt wins and no row is asked."""

    def never(place: int, n: int) -> CandidateStanding:
        raise AssertionError(place, n)

    assert race(2, never, rows=100, affordable=lambda _places, _n: False) == 0
    assert race(2, never, rows=0) == 0
    assert race(0, never, rows=100) == 0


def test_the_seed_prompt_is_rarely_lost_to_its_equals() -> None:
    """An equally good prompt wins less than 35 % of the races, and a worse one less than 15 %."""
    equal, worse = (
        np.mean([race(1, stand_of(drawn([gain], seed=seed), [0.5, 0.5]), rows=400) for seed in range(400)])
        for gain in (0.0, -0.1)
    )
    assert worse < 0.15 < equal < 0.35


def test_differences_of_rounding_are_none() -> None:
    """A difference in losses of the size of rounding is no gain."""
    losses = np.full((2, 40), 0.3)
    losses[1] -= 1e-14
    assert race(1, stand_of(losses, [0.5, 0.5]), rows=40) == 0


def test_rows_that_failed_for_one_prompt_count_for_none() -> None:
    """Only rows that were answered under both prompts are compared."""
    losses = drawn([0.0])
    losses[1] = losses[0] - 0.5
    losses[0, ::2] = np.nan
    losses[1, 1::7] = np.nan
    assert race(1, stand_of(losses, [0.5, 0.5]), rows=400) == 1
    losses[1] = np.nan
    assert race(1, stand_of(losses, [0.5, 0.5]), rows=400) == 0


def test_losses_spread_a_tenth_evenly() -> None:
    """Losses are those of nine tenths of the probabilities and one tenth spread evenly."""
    share = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    found = standing(np.log(share), [0, 0, 1], answered=[True, True, False], labels=LabelSet(LABELS))
    np.testing.assert_allclose(found.losses[:2], -np.log([0.9 * 0.9 + 0.05, 0.9 * 0.2 + 0.05]))
    assert np.isnan(found.losses[2])
    assert (found.accuracy, found.loss) == (0.5, pytest.approx(found.losses[:2].mean()))
    none = standing(np.log(share), [0, 0, 1], answered=[False] * 3, labels=LabelSet(LABELS))
    assert none.loss == np.inf


def test_a_preference_for_a_label_costs_nothing() -> None:
    """A preference for one label changes loss and accuracy of a prompt hardly."""
    rng = np.random.default_rng(0)
    answers = rng.integers(2, size=200)
    logit = 2.0 * (answers - 0.5) + rng.normal(size=200)
    loss, accuracy = [], []
    for bias in (0.0, 4.0):
        logprobs = -np.logaddexp(0.0, np.stack([logit - bias, bias - logit], axis=1))
        found = standing(logprobs, answers, answered=np.ones(200, dtype=bool), labels=LabelSet(LABELS))
        loss.append(found.loss)
        accuracy.append(found.accuracy)
    assert loss[0] == pytest.approx(loss[1], abs=0.02)
    assert accuracy[0] == pytest.approx(accuracy[1], abs=0.03)


def test_more_rows_show_smaller_gains() -> None:
    """The detectable gain falls with more rows, up to 240."""
    gains = [detectable_gain(rows) for rows in (20, 60, 120, 240)]
    assert gains == sorted(set(gains), reverse=True)
    assert detectable_gain(1000) == detectable_gain(240)


@pytest.mark.parametrize("rows", [20, 64, 240])
def test_a_detectable_gain_is_found(rows: int) -> None:
    """A gain of the detectable size wins about four races of five."""
    rng = np.random.default_rng(0)
    taken = 0
    for _ in range(1000):
        losses = np.stack([np.zeros(rows), rng.normal(-detectable_gain(rows), 0.5, rows)])
        taken += race(1, stand_of(losses, [0.5, 0.5]), rows=rows)
    assert 0.77 < taken / 1000 < 0.84


# --- in a search ----------------------------------------------------------------------------------


def rows(split: str, count: int) -> tuple[Example, ...]:
    """Return rows sorted by their label."""
    return tuple(
        Example(input=f"{split} {LABELS[n >= count // 2]} {n}", answer=LABELS[n >= count // 2])
        for n in range(count)
    )


def task(**changes: Any) -> Task:
    """Return a task with enough validation rows to race on."""
    return task_of(rows, 40, 80, 60, **changes)


def imitator(text: str, prompt: str) -> dict[str, float]:
    """Answer hardly better than chance, and better if the prompt shows texts."""
    place = LABELS.index(text.split()[1])
    known = 0.9 if "Text: " in prompt else 0.45 + 0.1 * (int(text.split()[2]) % 2)
    return {LABELS[place]: known, LABELS[1 - place]: 1.0 - known}


def test_a_search_decides_on_rows_that_chose_no_entrant() -> None:
    """A clear race in a search asks only part of the validation rows."""
    client = FakeClient(LABELS, imitator)
    result = optimize(task(), model=client, max_metric_calls=400)
    assert result.improved
    assert "Text: " in result.best_prompt.prompt
    asked = [one.rows for one in result.validated]
    assert asked[0] == asked[result.chosen] == 16 + FIRST < len(task().validation)
    assert result.validated[result.chosen].log_loss is not None
    assert len(searched(client)) == result.metric_calls <= 400


def test_a_fruitless_search_states_its_detectable_gain() -> None:
    """A search without a winner keeps the seed prompt, and states its detectable gain."""

    def ignorant(text: str, _: str) -> dict[str, float]:
        chance = np.random.default_rng([*text.encode()]).uniform(0.3, 0.7)
        return {"cat": chance, "dog": 1.0 - chance}

    result = optimize(task(), model=FakeClient(LABELS, ignorant), max_metric_calls=400)
    assert result.chosen == 0
    assert result.detectable_gain == pytest.approx(1.52 * (0.25 / 64) ** 0.5)


@pytest.mark.parametrize("errs", [False, True])
def test_a_model_without_errors_is_not_searched(*, errs: bool) -> None:
    """With a large budget, proposals are made only for a model that errs."""
    order = np.random.default_rng(0).permutation(80)
    wrong = task().validation[order[20]].input  # none of the first sixteen

    def right(text: str) -> tuple[str, float]:
        label = text.split()[1]
        return (LABELS[1 - LABELS.index(label)] if errs and text == wrong else label), 0.7

    for budget in (40, 400):
        result = optimize(task(), model=FakeClient(LABELS, right), max_metric_calls=budget)
        assert (result.proposals > 0) is errs or budget == 40
        assert result.metric_calls <= budget


def test_a_reflecting_model_reads_the_costliest_rows() -> None:
    """The reflection model reads eight training rows, and no validation text."""
    seen: list[str] = []

    def reflect(prompt: str) -> str:
        seen.append(prompt)
        return "```\nLook again.\n```"

    def takes_cats_for_dogs(text: str) -> dict[str, float]:
        return {"dog": 0.9, "cat": 0.1} if "3" in text or "5" in text else {text.split()[1]: 0.8}

    client = FakeClient(LABELS, takes_cats_for_dogs)
    optimize(task(), model=client, reflection_model=reflect, max_metric_calls=400)
    assert seen[0].count("all rows together") == 1
    assert '"cat" was taken for "dog"' in seen[0]
    assert "validation" not in seen[0]
    assert seen[0].count("train cat") + seen[0].count("train dog") == 8


@pytest.mark.parametrize(("validation", "budget"), [(30, 76), (80, 90)])
def test_rows_that_fail_for_ever_are_within_the_budget(validation: int, budget: int) -> None:
    """Rows that always fail are asked again within the budget."""

    def flaky(text: str, prompt: str) -> Any:
        if text.startswith("validation") and text.endswith("4"):
            return ProviderError("not now", provider="p", retryable=False)
        return imitator(text, prompt)

    client = FakeClient(LABELS, flaky)
    result = optimize(
        task(validation=rows("validation", validation)),
        model=client,
        proposer=lambda *_: {"system_prompt": "Text: "},
        max_metric_calls=budget,
    )
    assert result.accepted == 1
    assert len(searched(client)) == result.metric_calls <= budget


def test_instructions_with_training_texts_are_not_accepted() -> None:
    """An instruction that holds a training text is not accepted, and a demonstration of it is."""
    copied = [one.input for one in task().train if one.input.endswith(" 12")]

    def right(text: str, prompt: str) -> dict[str, float]:
        return {text.split()[1]: 0.95} if prompt != "Which animal?" else imitator(text, prompt)

    animals = task(test=rows("examination", 60))
    held_out, tested = animals.validation[0].input, animals.test[0].input
    for written, accepted in (
        (f"A text like '{copied[0]}' is about a cat.", False),
        (f"Which animal?\n\nNotes:\n- {copied[0]} is a cat", False),
        (f'Which animal?\n\nExamples:\n\nText: {held_out.upper()}\nAnswer: {{"category": "cat"}}', False),
        (f"A text like '{held_out}' is about a cat.", False),
        (f"A text like '{tested}' is about a cat.", False),
        ('Which animal, "cat" or "dog"?', True),
        (f'Which animal?\n\nExamples:\n\nText: {copied[0]}\nAnswer: {{"category": "cat"}}', True),
    ):
        result = optimize(
            animals,
            model=FakeClient(LABELS, right),
            proposer=lambda *_, text=written: {"system_prompt": text},
            max_metric_calls=300,
        )
        assert (result.chosen != 0) is accepted
        assert ("rejected for the text of a row" in result.ended) is not accepted
