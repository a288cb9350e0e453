"""Tests of the notebooks: each runs from a clean kernel, and its stored outputs are what it gives."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from calibrant import BatchEvaluator, Classifier, Example
from calibrant.testing import FakeClient

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
CALIBRATION = Path(__file__).parents[2] / "notebooks" / "threshold_calibration.ipynb"

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]  # others' warnings


def executed(path: Path) -> Any:
    """Run a notebook in its folder, and return it with the outputs of its cells."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    asyncio.run(client.async_execute())
    return notebook


def printed(notebook: Any) -> str:
    """Return the text that the cells of a notebook printed."""
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))


def figures(notebook: Any) -> list[list[bool]]:
    """Return for every cell whether its outputs are figures."""
    return [
        ["image/png" in output.get("data", {}) for output in cell.get("outputs", [])]
        for cell in notebook.cells
    ]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's settings."""
    monkeypatch.delenv("CALIBRANT_PREDICTIONS", raising=False)


def test_there_are_notebooks_to_run() -> None:
    """The calibration notebook is among the notebooks found."""
    assert CALIBRATION in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_small_and_use_public_names(path: Path) -> None:
    """Notebooks are valid, below 400 kB with their figures, and use no private names."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < 400_000
    source = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert not re.findall(r"calibrant(?:\.\w+)*\._\w+", source)


def test_the_stored_outputs_are_what_the_notebook_gives() -> None:
    """Executing gives the stored text and as many figures; the calibration error falls, and a promise is kept."""
    stored, fresh = nbformat.read(CALIBRATION, as_version=4), executed(CALIBRATION)
    assert printed(stored) == printed(fresh)
    assert figures(stored) == figures(fresh)
    assert sum(map(sum, figures(stored))) == 3
    text = printed(fresh)
    assert re.search(r"^high 0\.\d+, low 0\.\d+, scoring 0\.\d+$", text, re.MULTILINE)
    lucky = dict(re.findall(r"^(\w+): (\d+) right answers earn less than 1", text, re.MULTILINE))
    assert int(lucky["suggested"]) > int(lucky["lower"])
    before, after = map(float, re.search(r"calibration error (\S+) -> (\S+)", text).groups())  # type: ignore[union-attr]
    assert after < before
    assert "refused: Expected rows that were not fitted" in text
    assert re.search(r"target 0\.85: accept from 0\.\d+", text)


@pytest.mark.slow
def test_it_reads_a_run_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CALIBRANT_PREDICTIONS the notebook is about the rows of that run."""
    sure = [0.6 + 0.39 * (row % 100) / 100 for row in range(400)]
    answers = {f"text {row};": ("cat" if row * 7 % 100 < 100 * p else "dog", p) for row, p in enumerate(sure)}
    classifier = Classifier(
        model=FakeClient(["cat", "dog"], answers), labels=["cat", "dog"], field="category"
    )
    rows = [Example(input=text, answer="cat") for text in answers]
    BatchEvaluator(classifier).evaluate(rows, out=tmp_path / "run")
    monkeypatch.setenv("CALIBRANT_PREDICTIONS", str(tmp_path / "run"))
    assert re.search(r"^400 predictions", printed(executed(CALIBRATION)), re.MULTILINE)
