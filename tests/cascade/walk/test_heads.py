"""Tests of heads and prior corrections of a cascade's models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.assembly import open_classifier
from calibrant.calibration import LabelPriorCorrection
from calibrant.core import ConfigurationError, Task
from calibrant.heads import Head, fit_head
from calibrant.testing import FakeClient, fake_model
from command_line import command, refusal

Build = Callable[..., Any]


@pytest.fixture(scope="module")
def head() -> Head:
    """Return a head of a model that nearly always says cat."""
    answers = np.arange(60) % 2
    cat = np.where(answers, 0.6, 0.9)
    return fit_head(np.log(np.stack([cat, 1.0 - cat], axis=1)), answers, labels=["cat", "dog"])


@pytest.fixture(params=["head", "prior_correction"])
def learned(request: pytest.FixtureRequest, head: Head) -> dict[str, Any]:
    """Return the setting of a classifier that was fitted to its lean to cats."""
    prior = LabelPriorCorrection().fit(np.array([[0.9, 0.1]] * 2000))
    return {request.param: {"head": head, "prior_correction": prior}[request.param]}


def test_answers_are_corrected_before_the_method_judges(build: Build, learned: dict[str, Any]) -> None:
    """The method gets the corrected answer, and under another prompt the model's own."""
    built = build(("cat", 0.6), ("cat", 0.9), classifiers=[learned, {}], threshold=0.5)
    alone = built.classifiers[0].classify("t")
    found = built.cascade.classify("t")
    assert alone.label == found.label == "dog"
    assert found.confidence == pytest.approx(alone.confidence)
    assert built.method.asked[0].prediction.label == "dog"
    assert built.calls == [2, 0]
    assert built.cascade.with_prompt("new").classify("t").label == "cat"


def test_token_methods_refuse_a_correction(build: Build, told: Any, learned: dict[str, Any]) -> None:
    """A correction raises ConfigurationError with a method that reads tokens."""
    (name,) = learned
    with pytest.raises(ConfigurationError, match=f"no {name} of 'a'"):
        build("cat", classifiers=[learned], method=told(needs_tokens=True))


def test_a_cascade_has_no_head(write_task: Callable[..., Path], tmp_path: Path, head: Head) -> None:
    """A head for a whole cascade is refused."""
    models = '\n[cascade]\nmodels = [{ name = "fake/small" }, { name = "fake/large" }]\n'
    task, fake = write_task(extra=models), FakeClient(["cat", "dog"], {}, default="cat")
    with fake_model("fake/small", fake), fake_model("fake/large", fake):
        whole = open_classifier(Task.from_file(task))
        assert not hasattr(whole, "head")
        run = tmp_path / "run"
        run.mkdir()
        (run / "best_prompt.txt").write_text(whole.prompt)
        head.save(run / "head.json", fingerprint=whole.fingerprint())
        refused = command("classify")(task, "--run", run, "--text", "purrs")
    assert "no head for a whole cascade" in refusal(refused)
    assert fake.requests == []
