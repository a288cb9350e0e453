"""Tests of the order in which models of a cascade are asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from calibrant.cascade import Cascade, CascadeModel
from calibrant.core import ConfigurationError
from calibrant.inference import Classifier
from calibrant.testing import FakeClient

Build = Callable[..., Any]


def order(build: Build, *models: Mapping[str, Any], **options: Any) -> str:
    """Return the names of the models in the order in which they are asked."""
    return "".join(build(*["cat"] * len(models), models=models, **options).cascade.models)


def named(model: str, **settings: Any) -> CascadeModel:
    """Return a model of that name."""
    client = FakeClient(["cat", "dog"], {}, default="cat", name=model)
    return CascadeModel(
        classifier=Classifier(model=client, labels=["cat", "dog"], field="category"), **settings
    )


@pytest.mark.parametrize(
    ("size", "billions"),
    [("7b", 7.0), (".5b", 0.5), (" 135 M ", 0.135), ("500k", 0.0005), ("1.8t", 1800.0), (0.27, 0.27)],
)
def test_sizes_are_read_in_billions(size: float | str, billions: float) -> None:
    """Sizes are read in billions, and a bare number is in billions."""
    assert named("x", size=size).billions == pytest.approx(billions)


@pytest.mark.parametrize("size", ["", "7bb", "0b", -1, math.inf, True])
def test_unreadable_sizes_are_refused(size: Any) -> None:
    """An unreadable size raises ConfigurationError with the model's name."""
    with pytest.raises(ConfigurationError, match=r"size of 'unknown'.*'7b'"):
        named("unknown", size=size)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("local/smollm2-135m", 0.135),
        ("meta-llama/Llama-3.1-8B-Instruct", 8.0),
        ("qwen2.5-0.5b-instruct", 0.5),
        ("mixtral-8x7b", 56.0),
        ("Qwen3-30B-A3B", 30.0),
        ("gemma3:4b", 4.0),
        ("llamacpp:/models/70b/SmolLM2-135M-Instruct.Q4_1.gguf", 0.135),
        ("llamacpp:C:\\70b\\gemma-3-270m-it.gguf", 0.27),
        ("phi-3-mini-128k-instruct", None),
        ("gpt-4.1-mini", None),
        ("x-0b", None),
        ("model", None),
    ],
)
def test_sizes_are_found_in_names(name: str, billions: float | None) -> None:
    """A size is found in a model's name, and not in a folder or a context length."""
    assert named(name).billions == (None if billions is None else pytest.approx(billions))


def test_given_sizes_replace_the_names() -> None:
    """A given size comes before the one in the name."""
    assert named("llama-8b", size="1b").billions == 1.0


@pytest.mark.parametrize("escalation_order", ["small_to_large", "size"])
def test_small_models_come_first(build: Build, escalation_order: str) -> None:
    """Models are called from small to large, and equals as declared."""
    sizes = [{"size": size} for size in ("70b", "500k", 7, "135m", "7b")]
    assert order(build, *sizes, escalation_order=escalation_order) == "bdcea"


def test_order_without_sizes_is_declared(build: Build) -> None:
    """Without any size the order is as declared."""
    assert order(build, {}, {}, {}) == "abc"


@pytest.mark.parametrize(
    ("escalation_order", "models", "missing"),
    [
        (
            "small_to_large",
            [{"size": 7}, {}],
            r"the size of every model.*but b has none.*\[\[cascade.models.*'declared'",
        ),
        ("cost", [{"cost": 1}, {}, {}], "the cost of every model.*but b, c have none"),
        ("cost", [{}, {}], "the cost of every model.*a, b have none"),
        ("automix", [{"cost": 1}, {}], "the cost of every model.*but b has none"),
    ],
)
def test_missing_numbers_are_refused(
    build: Build, escalation_order: str, models: list[dict[str, Any]], missing: str
) -> None:
    """A size or cost that some models lack raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=missing):
        order(build, *models, escalation_order=escalation_order)


@pytest.mark.parametrize(
    ("escalation_order", "models", "expected"),
    [
        ("declared", [{"size": 7, "cost": 3}, {"size": 1, "cost": 1}], "ab"),
        ("cost", [{"cost": cost} for cost in (3, 0.5, 0, 3, 0)], "cebad"),  # equals as declared
        # A much cheaper model comes before a slightly better one.
        ("automix", [{"cost": 50, "quality": 0.9}, {"cost": 1, "quality": 0.8}], "ba"),
        # Quality is guessed as 0.3 + 0.7 * size / 70 up to 1, and as 0.5 without a size.
        ("automix", [{"size": 400}, {"size": 21}, {}, {"size": 19}, {"quality": 1.0}], "dcbae"),
    ],
)
def test_models_are_ordered_by_their_numbers(
    build: Build, escalation_order: str, models: list[dict[str, Any]], expected: str
) -> None:
    """Each order goes by its own numbers, and looks at no others."""
    assert order(build, *models, escalation_order=escalation_order) == expected


MIXED = [{"cost": 2, "quality": 0.9}, {"cost": 3, "quality": 0.2}, {"cost": 1, "quality": 0.6}]


@pytest.mark.parametrize(
    ("models", "tradeoff", "expected"),
    [
        (MIXED, 0.0, "bca"),  # quality alone
        (MIXED, 0.3, "cba"),  # a 0.63 + 0.15, b 0.14 + 0.3, c 0.42 + 0
        (MIXED, 0.7, "cab"),  # a 0.27 + 0.35, b 0.06 + 0.7, c 0.18 + 0
        (MIXED, 1.0, "cab"),  # cost alone
        ([{"quality": 0.9, "cost": 1}, {"quality": 0.4}], 0, "ba"),  # no cost is needed
        ([{"quality": 0.9, "cost": 0}, {"quality": 0.4, "cost": 0}], 0.9, "ba"),  # equal costs
        ([{"quality": 0.9, "cost": 5}, {"quality": 0.4, "cost": 5}], 0.9, "ba"),
    ],
)
def test_the_tradeoff_weighs_cost_against_quality(
    build: Build, models: list[dict[str, Any]], tradeoff: float, expected: str
) -> None:
    """The order is that of (1 - t) * quality + t * expense, worked out by hand."""
    assert order(build, *models, escalation_order="automix", cost_quality_tradeoff=tradeoff) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cost": -1}, "cost of 'm'"),
        ({"quality": 0}, "quality of 'm'"),
        ({"concurrency": 0}, "concurrency of 'm'"),
    ],
)
def test_numbers_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    """A number out of range raises ConfigurationError with the model's name."""
    with pytest.raises(ConfigurationError, match=message):
        named("m", **settings)


def test_equal_models_get_numbered_names(told: Any) -> None:
    """Models of one name are numbered as listed, and given names stay."""
    models = [named("m"), named("n"), named("m"), named("m", name="m #1"), named("m").classifier]
    assert Cascade(models, method=told()).models == ("m #2", "n", "m #3", "m #1", "m #4")


def test_one_name_for_two_models_is_refused(build: Build) -> None:
    """The same name for two models raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="own name"):
        build("cat", "dog", models=[{"name": "x"}, {"name": "x"}])
