"""Tests of the notebooks: each runs from a clean kernel, and is stored without output."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrant.clients._weights import local_models

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
CALIBRATION = Path(__file__).parents[2] / "notebooks" / "threshold_calibration.ipynb"
RECORDED = os.environ.get("CALIBRANT_DATA", "")

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]  # others' warnings


def printed(path: Path) -> str:
    """Run a notebook in its folder, and return the output of its cells."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    asyncio.run(client.async_execute())
    return "".join(_streams(notebook))


def _streams(notebook: Any) -> Iterator[str]:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            yield output.get("text", "")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's settings, and use an empty home for the kernel's files."""
    monkeypatch.delenv("CALIBRANT_MODEL", raising=False)
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)


def test_there_are_notebooks_to_run() -> None:
    """The calibration notebook is among the notebooks found."""
    assert CALIBRATION in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_output_and_use_public_names(path: Path) -> None:
    """Notebooks are stored without output, and use no private names."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    source = "\n".join(cell.source for cell in cells)
    assert not re.findall(r"calibrant(?:\.\w+)*\._\w+", source)


def test_the_calibration_notebook_learns_something_true() -> None:
    """The notebook's calibration error falls, and calibration on fitted rows is refused."""
    text = printed(CALIBRATION)
    assert re.search(r"^high 0\.\d+, low 0\.\d+, scoring 0\.\d+$", text, re.MULTILINE)
    before, after = map(float, re.search(r"calibration error (\S+) -> (\S+)", text).groups())  # type: ignore[union-attr]
    assert after < before
    assert "refused: Expected rows that were not fitted" in text
    assert re.search(r"target 0\.80: accept from 0\.\d+", text)
    assert "skipped: set CALIBRANT_DATA" in text


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED, reason="CALIBRANT_DATA names no recorded answers")
def test_the_recorded_answers_are_used_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CALIBRANT_DATA the notebook is run on the recorded answers, and skips no cell."""
    monkeypatch.setenv("CALIBRANT_DATA", RECORDED)
    text = printed(CALIBRATION)
    assert "on 1000 rows it has not seen" in text
    assert "skipped" not in text


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.skipif(not local_models()[0].installed, reason="the embedded model's weights are not installed")
def test_it_runs_against_the_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook runs with the embedded model and prints 100 predictions."""
    monkeypatch.setenv("CALIBRANT_MODEL", local_models()[0].name)
    assert re.search(r"^100 predictions", printed(CALIBRATION), re.MULTILINE)
