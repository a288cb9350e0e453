"""Heads of a cascade's models: the answer that is judged is the final one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from calibrant.core import ConfigurationError
from calibrant.heads import Head, fit_head
from calibrant.inference._classifier import as_classifier

Build = Callable[..., Any]


@pytest.fixture(scope="module")
def head() -> Head:
    """Return a head of a model that nearly always says cat."""
    answers = np.arange(60) % 2
    cat = np.where(answers, 0.6, 0.9)
    return fit_head(np.log(np.stack([cat, 1.0 - cat], axis=1)), answers, labels=["cat", "dog"])


def test_heads_apply_before_the_method_judges(build: Build, head: Head) -> None:
    """The method gets the answer after the head, which does not apply under another prompt."""
    built = build(("cat", 0.6), ("cat", 0.9), classifiers=[{"head": head}, {}], threshold=0.5)
    alone = built.classifiers[0].classify("t")
    found = built.cascade.classify("t")
    assert alone.label == found.label == "dog"
    assert found.confidence == pytest.approx(alone.confidence)
    assert built.method.asked[0].prediction.label == "dog"
    assert built.calls == [2, 0]
    assert built.cascade.with_prompt("new").classify("t").label == "cat"


def test_a_cascade_has_no_head(build: Build, head: Head) -> None:
    """A head for a whole cascade raises ConfigurationError."""
    built = build("cat", "dog")
    assert not hasattr(built.cascade, "head")
    with pytest.raises(ConfigurationError, match="no head for a whole cascade"):
        as_classifier(built.cascade, to_use="head").head = head
    assert built.calls == [0, 0]


def test_token_methods_refuse_a_head(build: Build, told: Any, head: Head) -> None:
    """A head raises ConfigurationError with a method that reads tokens."""
    with pytest.raises(ConfigurationError, match="no head of 'a'"):
        build("cat", classifiers=[{"head": head}], method=told(needs_tokens=True))
