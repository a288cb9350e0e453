"""Tests of searches that find their thresholds on the training rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.core import ConfigurationError, ScoringSettings, StateError
from calibrant.optimization import optimize
from calibrant.testing import FakeClient
from small_tasks import LABELS, make_task


@pytest.fixture
def client() -> FakeClient:
    """Return a model that is right with a confidence of 0.96."""
    return FakeClient(
        LABELS, lambda text: {"cat": 0.96, "dog": 0.04} if "meow" in text else {"cat": 0.04, "dog": 0.96}
    )


def test_thresholds_come_from_the_training_rows(client: FakeClient) -> None:
    """With thresholds from the training rows, a confidence of 0.96 earns the full score."""
    found = optimize(make_task(train=60), model=client, max_metric_calls=130, thresholds="auto")
    assert found.seed_prompt.validation_score == 1.0
    asks = make_task(train=60, scoring=ScoringSettings(thresholds="auto"))
    assert optimize(asks, model=client, max_metric_calls=130).seed_prompt.validation_score == 1.0
    assert found.thresholds is not None
    assert found.to_record()["thresholds"]["scoring"] == found.thresholds.scoring <= 0.96
    blended = make_task(train=60, scoring=ScoringSettings(strategy="linear"))
    plain = optimize(blended, model=client, max_metric_calls=70)
    assert plain.seed_prompt.validation_score == pytest.approx(0.3 + 0.7 * 0.96 / 0.99)
    assert plain.thresholds is None


def test_parameters_of_the_score_are_kept(client: FakeClient) -> None:
    """Parameters of the score in the task are kept."""
    task = make_task(train=60, scoring=ScoringSettings(parameters={"low_confidence_threshold": 0.98}))
    found = optimize(task, model=client, max_metric_calls=130, thresholds="auto")
    assert found.seed_prompt.validation_score == pytest.approx(0.3 + 0.7 * 0.96 / 0.98)


def test_the_budget_must_hold_the_sample(client: FakeClient) -> None:
    """A budget below the sample's 60 rows, and a wrong setting, raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="60 training rows for thresholds"):
        optimize(make_task(train=60), model=client, max_metric_calls=100, thresholds="auto")
    with pytest.raises(ConfigurationError, match="'auto', got 'guess'"):
        optimize(make_task(train=60), model=client, thresholds="guess")  # type: ignore[arg-type]


def test_a_run_with_and_one_without_are_different_runs(client: FakeClient, tmp_path: Path) -> None:
    """A search without thresholds in the directory of one with them raises StateError."""
    settings: dict[str, Any] = {"model": client, "max_metric_calls": 130, "out": tmp_path / "run"}
    optimize(make_task(train=60), thresholds="auto", **settings)
    with pytest.raises(StateError):
        optimize(make_task(train=60), **settings)


def test_the_command_takes_it(write_task: Callable[..., Path]) -> None:
    """`--thresholds` with another word than "auto" exits with 2."""
    result = CliRunner().invoke(app, ["optimize", str(write_task()), "--thresholds", "guess"])
    assert result.exit_code == 2
    assert "Expected thresholds 'auto'" in result.output
