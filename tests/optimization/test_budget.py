"""Tests of search budgets: they are upper bounds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gepa
import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import (
    CompletionRequest,
    ConfigurationError,
    Example,
    LabelSet,
    LimitReachedError,
    Limits,
    ProviderError,
    ScoringSettings,
    Task,
)
from calibrant.optimization import optimize
from calibrant.testing import FakeClient, fake_model
from small_tasks import LABELS, searched, task_of


def learner(text: str, prompt: str) -> dict[str, float]:
    """Prefer cats, tell dogs better under a longer prompt, and err on rows that end in 7."""
    cat = 0.9 if ("meow" in text) != text.endswith("7") else max(0.2, 0.8 - len(prompt) / 40)
    return {"cat": cat, "dog": 1.0 - cat}


def examples(prefix: str, count: int) -> tuple[Example, ...]:
    """Return as many cats as dogs."""
    sounds = ("meow", "woof")
    return tuple(Example(input=f"{prefix} {sounds[n % 2]} {n}", answer=LABELS[n % 2]) for n in range(count))


def task(train: int, validation: int) -> Task:
    """Return a task with so many rows in each split."""
    return task_of(examples, train, validation, 6, prompt="Which?")


@pytest.mark.parametrize("budget", [170, 173, 260, 301])
@pytest.mark.parametrize(
    "options", [{}, {"prior_correction": "batch"}, {"thresholds": "auto", "prior_correction": "batch"}]
)
def test_no_search_asks_more_rows_than_its_budget(budget: int, options: dict[str, Any]) -> None:
    """A search asks no more rows than its budget, with label prior and thresholds included."""
    client = FakeClient(LABELS, learner)
    result = optimize(task(60, 30), model=client, max_metric_calls=budget, minibatch_size=10, **options)
    assert result.proposals >= 1
    assert len(searched(client)) == result.metric_calls <= budget


def test_rows_asked_again_are_within_the_budget() -> None:
    """Rows that failed and are asked again count in the budget."""
    failed: set[tuple[str, str]] = set()

    def flaky(text: str, prompt: str) -> Any:
        if text.startswith("validation") and text.endswith("0") and (text, prompt) not in failed:
            failed.add((text, prompt))
            return ProviderError("not now", provider="p", retryable=False)
        return learner(text, prompt)

    result = optimize(
        task(40, 60),
        model=FakeClient(LABELS, flaky),
        minibatch_size=10,
        prior_correction="batch",
        max_metric_calls=140,
    )
    assert result.accepted == 1
    assert result.metric_calls <= 140


@pytest.mark.parametrize("prior", ["off", "batch"])
def test_a_prior_takes_no_rows_of_its_own(prior: Any) -> None:
    """A search with a label prior asks as many rows as one without."""
    blended = replace(task(40, 40), scoring=ScoringSettings(strategy="linear"))
    options: dict[str, Any] = {"max_metric_calls": 110, "minibatch_size": 10, "prior_correction": prior}
    result = optimize(blended, model=FakeClient(LABELS, learner), **options)
    assert (result.proposals, result.accepted, result.metric_calls) == (1, 1, 110)
    client = FakeClient(LABELS, learner)
    result = optimize(blended, model=client, proposer=lambda *_: {"system_prompt": "Guess!"}, **options)
    assert result.accepted == 0
    asked = [request for request in client.requests if request.messages[0]["content"] == "Guess!"]
    assert len(asked) == 10


@pytest.mark.parametrize("prior", [None, "batch"])
def test_an_adapter_keeps_its_budget(prior: Any) -> None:
    """The adapter's budget stops gepa's search, and every repeated row counts as a call."""
    rows: Any = [{"input": example.input, "answer": example.answer} for example in examples("row", 20)]
    client = FakeClient(LABELS, learner)
    adapter = ConfidenceAdapter(
        client,
        "category",
        LabelSet(LABELS).schema("category"),
        prior_correction=prior,
        proposer=lambda candidate, *_: {"system_prompt": candidate["system_prompt"] + " Look again."},
    )
    found = gepa.optimize(
        seed_candidate={"system_prompt": "Which?"},
        trainset=rows,
        valset=rows,
        adapter=adapter,
        stop_callbacks=[adapter.budget(150, valset=rows)],
        logger=_Silent(),
    )
    assert len(found.candidates) > 1
    assert len(client.requests) == adapter.metric_calls <= 150


class _Silent:
    """Log that nobody reads."""

    def log(self, message: str) -> None:
        """Drop the message."""


def test_a_budget_for_nothing_is_refused() -> None:
    """A budget that pays for no accepted proposal raises ConfigurationError."""
    client = FakeClient(LABELS, learner)
    rows: Any = [{"input": example.input, "answer": example.answer} for example in examples("row", 20)]
    adapter = ConfidenceAdapter(client, "category", LabelSet(LABELS).schema("category"))
    adapter.budget(46, valset=rows)
    with pytest.raises(ConfigurationError, match=r"max-metric-calls\) >= 46, got 45"):
        adapter.budget(45, valset=rows)
    assert client.requests == []


# --- proposals that repeat others ---------------------------------------------------------------


def test_a_reflection_model_that_repeats_itself_ends_the_search() -> None:
    """Five proposals in a row that were there before end a search, in a sentence; none is taken twice."""
    asked: list[str] = []

    def reflect(prompt: str) -> str:
        asked.append(prompt)
        return "```\nSay the sound first.\n```"

    result = optimize(
        task(40, 30), model=FakeClient(LABELS, learner), reflection_model=reflect, max_metric_calls=400
    )
    assert len(asked) == 6
    assert result.ended == (
        "The search ended early: the reflection model proposed nothing new 5 times in a row, only texts that had been "
        "tried before."
    )
    prompts = [one.candidate["system_prompt"] for one in result.validated]
    assert len(prompts) == len(set(prompts))
    assert result.cost is None
    assert result.unpriced_calls > result.metric_calls


def test_a_search_with_new_proposals_does_not_end_early() -> None:
    """A reflection model that has new ideas is asked until the budget is used up."""
    ideas = itertools.count()

    def reflect(_: str) -> str:
        return f"```\nIdea {next(ideas)}.\n```"

    result = optimize(
        task(40, 30), model=FakeClient(LABELS, learner), reflection_model=reflect, max_metric_calls=800
    )
    assert result.ended == ""
    assert next(ideas) > 6


class PricedClient(FakeClient):
    """Client whose answers cost something."""

    price = 0.001  # US dollars

    async def complete(self, request: CompletionRequest) -> object:
        """Return an answer with its price."""
        response = await super().complete(request)
        return {**cast("dict[str, Any]", response), "_hidden_params": {"response_cost": self.price}}


def test_the_price_of_reflection_counts_towards_the_budget(tmp_path: Path) -> None:
    """Limits count what a reflection model costs; its price is part of the result's cost."""
    writer = PricedClient(LABELS, lambda _: ("cat", 0.9))
    writer.price = 0.75
    model = FakeClient(LABELS, learner)
    with fake_model("fake/writer", writer), pytest.raises(LimitReachedError) as caught:
        optimize(
            task(40, 30),
            model=model,
            reflection_model="fake/writer",
            max_metric_calls=150,
            out=tmp_path / "run",
            limits=Limits(max_cost=1.0),
        )
    assert f"1 answer is kept in {tmp_path / 'run'}: run the same command again to go on." in str(
        caught.value
    )
    assert len(writer.requests) <= 2


def test_a_reflection_model_without_a_price_is_named_where_money_is_limited() -> None:
    """The task's own model, whose price is known, is not taken for it."""
    with (
        fake_model("fake/writer", FakeClient(LABELS, lambda _: ("cat", 0.9))),
        pytest.raises(LimitReachedError, match="No price is known for the reflection model fake/writer"),
    ):
        optimize(
            task(40, 30),
            model=FakeClient(LABELS, learner),
            reflection_model="fake/writer",
            max_metric_calls=150,
            limits=Limits(max_cost=1.0),
        )


def test_a_reflection_that_the_budget_cannot_pay_is_not_asked_for() -> None:
    """The price of its prompt is known before the call."""
    writer = PricedClient(LABELS, lambda _: ("cat", 0.9))
    price = {"input_cost_per_token": 0.01, "output_cost_per_token": 0.01}
    with (
        fake_model("fake/writer", writer),
        pytest.raises(LimitReachedError, match="used up by the next call of the reflection model"),
    ):
        optimize(
            task(40, 30),
            model=PricedClient(LABELS, learner),
            reflection_model="fake/writer",
            reflection_options=price,
            max_metric_calls=150,
            limits=Limits(max_cost=1.0),
        )
    assert len(writer.requests) == 1  # the small question whether it can be asked
