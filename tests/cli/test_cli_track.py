"""Tests of the option ``--track`` without a server: refusals, before anything is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from calibrant.core import ConfigurationError
from calibrant.mlflow import log_run, save_model
from calibrant.testing import FakeClient
from command_line import command, refusal

WriteTask = Callable[..., Path]
Fake = Callable[..., FakeClient]


@pytest.mark.parametrize("name", ["evaluate", "optimize"])
def test_an_unknown_service_is_refused(write_task: WriteTask, fake: Fake, tmp_path: Path, name: str) -> None:
    """A service that nobody knows is refused before a row is asked about."""
    client = fake()
    said = refusal(command(name)(write_task(), "--out", tmp_path / "out", "--track", "neptune"))
    assert "Expected --track mlflow, got 'neptune'" in said
    assert not client.requests


@pytest.mark.parametrize("name", ["evaluate", "optimize"])
def test_a_missing_extra_is_named_at_once(
    write_task: WriteTask, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without MLflow one sentence names the extra, before a row is asked about."""
    monkeypatch.setitem(sys.modules, "mlflow", None)
    client = fake()
    said = refusal(command(name)(write_task(), "--out", tmp_path / "out", "--track", "mlflow"))
    assert "[mlflow]" in said
    assert not client.requests


def test_python_names_the_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of `calibrant.mlflow` name the extra, too; to import it takes none."""
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", None)
    with pytest.raises(ConfigurationError, match=r"\[mlflow\]"):
        log_run(tmp_path)
    with pytest.raises(ConfigurationError, match=r"\[mlflow\]"):
        save_model(tmp_path, tmp_path / "model")
