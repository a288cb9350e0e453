"""Tests of cascades with a model that gives no log-probabilities, or only sometimes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from calibrant.cascade import AvgLogprob, Cascade
from calibrant.core import Limits, LogprobsUnsupportedError, Outcome, Verdict
from calibrant.inference import Classifier, Provider, RoutedClient
from calibrant.routing import FixedRouter
from fault_server import FaultServer

Build = Callable[..., Any]
Serve = Callable[..., tuple[FaultServer, Classifier]]

LABELS = ["cat", "dog"]
REFUSED = LogprobsUnsupportedError("UnsupportedParamsError: logprobs.", provider="x")
TEXTS = [f"text {number}" for number in range(100)]


def failure(cascade: Cascade) -> LogprobsUnsupportedError:
    """Return the error that ends a run over many texts."""
    with pytest.raises(LogprobsUnsupportedError) as caught:
        cascade.classify_many(TEXTS)
    return caught.value


def test_models_refusing_logprobs_end_the_run(build: Build) -> None:
    """A model that refuses log-probabilities raises an error with lines for the task file."""
    built = build(REFUSED, ("cat", 0.9), method="label_probability", limits=Limits(concurrency=1))
    error = failure(built.cascade)
    assert str(error).startswith("a: UnsupportedParamsError: logprobs. This model gives no token")
    assert '\n\n[[cascade.models]]\nname = "a"\nscoring = "fused"\n\n' in str(error)
    assert built.calls == [1, 0]


def test_an_alias_is_named_beside_the_model(build: Build) -> None:
    """The error has the alias, and its lines have the model's own name."""
    models = [{"name": "small"}, {"name": "large"}]
    error = failure(build(REFUSED, ("cat", 0.9), method="label_probability", models=models).cascade)
    assert str(error).startswith("small: a: UnsupportedParamsError")
    assert 'name = "a"\n' in str(error)


def test_the_lines_replace_token_methods(build: Build) -> None:
    """The lines name label_probability in place of a method that reads tokens."""
    error = failure(build(REFUSED, ("cat", 0.9), method=AvgLogprob()).cascade)
    assert '[cascade]\nconfidence_method = "label_probability"\n\n[[cascade.models]]' in str(error)


def test_later_models_end_runs_when_first_needed(build: Build) -> None:
    """A later model that refuses log-probabilities raises when a row first reaches it."""
    built = build({"sure": ("cat", 0.9), "unsure": ("cat", 0.6)}, REFUSED, method="label_probability")
    assert built.cascade.classify("sure").accepted
    with pytest.raises(LogprobsUnsupportedError, match="b: Unsupported"):
        built.cascade.classify("unsure")


def test_refusals_after_answers_are_row_data(build: Build) -> None:
    """A model that has answered before and refuses a row is skipped for that row."""
    built = build({"good": ("cat", 0.9), "bad": REFUSED}, ("dog", 0.95), method="label_probability")
    good, bad = (built.cascade.classify(text) for text in ("good", "bad"))
    assert (good.label, good.accepted) == ("cat", True)
    assert (bad.label, bad.steps[0].verdict, bad.steps[0].outcome) == ("dog", Verdict.FAILED, Outcome.ERROR)


def test_models_without_logprobs_end_the_run(serve: Serve) -> None:
    """A model whose answers have no log-probabilities raises after a few rows."""
    small, first = serve("small", faults=lambda _number, _body: "no_logprobs", limits=Limits(concurrency=4))
    large, second = serve("large")
    # As many rows at once as the model takes calls: none waits for a place, to take it before the run ends.
    cascade = Cascade([first, second], method="label_probability", limits=Limits(concurrency=4))
    error = failure(cascade)
    assert str(error).startswith("hosted_vllm/small: Its answers come without token log-probabilities.")
    assert '[[cascade.models]]\nname = "hosted_vllm/small"\nscoring = "fused"' in str(error)
    assert sum(small.counts.values()) <= 2 * 4
    assert sum(large.counts.values()) == 0


def test_missing_logprobs_of_some_rows_escalate(serve: Serve) -> None:
    """Rows without log-probabilities escalate if another row had some."""
    _, first = serve(
        "small",
        answers=lambda _text: ("cat", 0.9),
        faults=lambda _n, body: None if body["messages"][-1]["content"] == "first" else "no_logprobs",
    )
    _, second = serve("large", answers=lambda _text: ("dog", 0.95))
    cascade = Cascade([first, second], method="label_probability")
    assert cascade.classify("first").label == "cat"
    found = cascade.classify_many(TEXTS[:8])
    assert {row.label for row in found} == {"dog"}
    assert {row.steps[0].verdict for row in found} == {Verdict.NO_EVIDENCE}


def test_other_methods_need_no_logprobs(serve: Serve, told: Any) -> None:
    """A method that reads no log-probabilities assesses answers without them."""
    _, first = serve("small", faults=lambda _number, _body: "no_logprobs")
    _, second = serve("large")
    found = Cascade([first, second], method=told(lambda _answered: 0.9)).classify_many(TEXTS[:8])
    assert {row.steps[0].verdict for row in found} == {Verdict.ACCEPTED}


def test_the_last_answer_needs_no_logprobs(serve: Serve) -> None:
    """The last model's answer is taken without log-probabilities where it has no threshold."""
    _, first = serve("small", answers=lambda _text: ("cat", 0.6))
    _, second = serve("large", answers=lambda _text: ("dog", 0.95), faults=lambda _n, _body: "no_logprobs")
    found = Cascade([first, second], method="label_probability", threshold=[0.9]).classify_many(TEXTS[:8])
    assert {row.label for row in found} == {"dog"}


def test_runs_end_when_all_providers_lack_logprobs(serve: Serve) -> None:
    """A routed model raises once all its providers have answered without log-probabilities."""
    _, silent = serve("one", faults=lambda _number, _body: "no_logprobs")
    _, unasked = serve("two")
    _, large = serve("large", answers=lambda _text: ("dog", 0.95))

    def over(**clients: Classifier) -> Cascade:
        providers = [Provider(name, one.client) for name, one in clients.items()]
        routed = Classifier(
            model=RoutedClient(providers, router=FixedRouter(list(clients))), labels=LABELS, field="category"
        )
        return Cascade([routed, large], method="label_probability", escalation_order="declared")

    found = over(one=silent, two=unasked).classify("t")
    assert (found.label, found.steps[0].verdict) == ("dog", Verdict.NO_EVIDENCE)
    assert '[[cascade.models]]\nname = "routed"\nscoring' in str(failure(over(one=silent)))
