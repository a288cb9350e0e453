"""Tests of the page of performance against cost that `calibrant cascade plan` writes."""

from __future__ import annotations

import html
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.cascade import CascadePlan
from command_line import command, recorded_rows, write_rows

NAMESPACE = "{http://www.w3.org/2000/svg}"
ROWS = 400


def plan(folder: Path, *costs: float, code: int = 0) -> Any:
    """Plan with a model that knows when it is right and one that nearly always is, at these costs."""
    rng = np.random.default_rng(0)
    confidence = rng.random(ROWS) ** 0.3
    runs = {
        "small": recorded_rows(rng.random(ROWS) < confidence, confidence),
        "<b>large &": recorded_rows(rng.random(ROWS) < 0.97, np.ones(ROWS)),
    }
    if costs[0] == costs[1]:
        runs = dict.fromkeys(runs, recorded_rows(np.ones(ROWS, dtype=bool), np.ones(ROWS)))
    paths = [write_rows(folder / name, rows) for name, rows in runs.items()]
    options = ("--small-cost", costs[0], "--large-cost", costs[1], "--epsilon", 0.05)
    result = command("cascade")("plan", *paths, *options, "--out", folder / "out")
    assert result.exit_code == code, result.output
    return result


def drawn(folder: Path) -> ET.Element:
    """Return the chart."""
    return ET.fromstring((folder / "out" / "plan.svg").read_text())  # noqa: S314  (our own file)


def test_points_lie_by_cost_and_performance(tmp_path: Path) -> None:
    """Points are placed by cost and performance, and the chosen policy has whiskers."""
    plan(tmp_path, 1, 50)
    found, svg = CascadePlan.load(tmp_path / "out"), drawn(tmp_path)
    circles = [one.attrib for one in svg.iter(f"{NAMESPACE}circle")]
    points = sorted((point.cost, point.accuracy) for point in found.frontier)
    assert [one["class"] for one in circles] == ["point"] * len(points) + ["wrong"] * 2
    points += [(one.cost.estimate, one.accuracy.estimate) for one in found.alone]
    for values, name in zip(zip(*points, strict=True), ("cx", "cy"), strict=True):
        places = [float(one[name]) for one in circles]
        slope, start = np.polyfit(values, places, 1)
        assert places == pytest.approx([start + slope * value for value in values], abs=0.2)
        assert bool(slope > 0) is (name == "cx")
    assert sum(line.attrib["class"] == "chosen" for line in svg.iter(f"{NAMESPACE}line")) == 4
    page = (tmp_path / "out" / "plan.html").read_text()
    assert "&lt;b&gt;large &amp;" in page
    assert "<b>" not in page
    assert "script" not in page.split("<style>")[0].replace("form-action", "")
    for name in ("plan.svg", "plan.html"):
        assert found.policy.name in html.unescape((tmp_path / "out" / name).read_text())


@pytest.mark.parametrize("cost", [1e-7, 3.0])
def test_equal_points_are_drawn_too(tmp_path: Path, cost: float) -> None:
    """Points with equal cost and performance are drawn inside the chart."""
    plan(tmp_path, cost, cost)
    for element in drawn(tmp_path).iter():
        for name in ("x", "y", "cx", "cy", "x1", "y1"):
            if name in element.attrib:
                assert -1.0 <= float(element.attrib[name]) <= 461.0


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A chart that cannot be written ends the command with the file's name."""
    (tmp_path / "out" / "plan.svg").mkdir(parents=True)
    assert "plan.svg: cannot be written" in " ".join(plan(tmp_path, 1, 50, code=2).stderr.split())
