"""A promise belongs to the weights it was measured with, not to the place of their file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from calibrant.clients._weights import locate_weights
from calibrant.core import Example
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.tuned import Tuned
from embedded import EMBEDDED

pytestmark = EMBEDDED


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return a copy of the embedded model's weights, under a name that says nothing."""
    return Path(shutil.copy(locate_weights("local/smollm2-135m"), tmp_path / "weights.gguf"))


@pytest.fixture
def tuned(weights: Path, tmp_path: Path) -> Tuned:
    """Return a classifier that was measured with these weights, from its bundle."""
    labels = ["animal", "vehicle"]
    rows = [Example(input="I saw a cat.", answer="animal"), Example(input="I saw a car.", answer="vehicle")]
    with Classifier(model=f"llamacpp:{weights}", labels=labels, prompt="Animal or vehicle?") as classifier:
        BatchEvaluator(classifier).evaluate(rows, out=tmp_path / "run")
        task = classifier.tuned.task
    Tuned.from_run(tmp_path / "run", task=task).save(tmp_path / "bundle")
    return Tuned.load(tmp_path / "bundle")


def test_a_promise_holds_for_the_same_weights_elsewhere(
    tuned: Tuned, weights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy of the file is the model that was measured."""
    elsewhere = tmp_path / "models" / weights.name
    elsewhere.parent.mkdir()
    weights.rename(elsewhere)
    with tuned.open(model=f"llamacpp:{elsewhere}") as opened:
        answer = opened.classify("I saw a dog.")
    assert answer.model is not None
    assert tuned.model_warning([answer.model]) is None
    assert caplog.messages == []


def test_a_value_names_no_address_of_a_model_in_this_process(weights: Path) -> None:
    """Its place is in the model's name, which another can replace."""
    with Classifier(model=f"llamacpp:{weights}", labels=["a", "b"], prompt="Which?") as classifier:
        assert classifier.tuned.task.model.api_base is None


def test_a_promise_is_not_that_of_other_weights_at_the_same_place(tuned: Tuned, weights: Path) -> None:
    """A file that was replaced is another version of the model, which is warned of."""
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size // 2)
        file.write(bytes(2**20))
    with tuned.open() as opened:
        answer = opened.classify("I saw a dog.")
    assert answer.model is not None
    assert answer.model.startswith("weights.gguf@")
    warning = tuned.model_warning([answer.model])
    assert warning is not None
    assert warning.startswith(f"{answer.model} answered, but weights.gguf@")
