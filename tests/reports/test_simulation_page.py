"""Tests of the page of simulated regret: lines, marks and escaping."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from calibrant.core import Interval
from routing_simulation._page import (
    RegretCurve,
    RewardEstimate,
    SimulationChart,
    regret_chart,
    reward_chart,
    write_simulation,
)

EVIL = "</title><script>window.hit = 1</script>"


def curve(name: str, slope: float, count: int = 1000) -> RegretCurve:
    """Return regret that grows evenly, with a band of a tenth of its value."""
    mean = slope * np.arange(1.0, count + 1.0)
    return RegretCurve(name=name, mean=mean, lower=0.9 * mean, upper=1.1 * mean)


def parsed(chart: SimulationChart) -> ET.Element:
    """Return the parsed SVG of a chart."""
    return ET.fromstring(chart.drawing)  # noqa: S314  (our own)


def shapes(svg: ET.Element, kind: str) -> list[list[tuple[float, float]]]:
    """Return the points of lines or bands."""
    return [
        [(float(x), float(y)) for x, y in (point.split(",") for point in one.attrib["points"].split())]
        for one in svg.iter()
        if one.tag in {"polyline", "polygon"} and one.attrib["class"].split()[0] == kind
    ]


def test_regret_rises_over_requests() -> None:
    """Lines run from the first request to the last, inside their bands."""
    svg = parsed(regret_chart("r", [curve("low", 0.1), curve("high", 0.5)]))
    low, high = shapes(svg, "line")
    assert low[0][0] == high[0][0] < low[-1][0] == high[-1][0]
    assert low[-1][1] > high[-1][1]  # upside down: 0 is at the top
    assert [x for x, _ in low] == sorted(x for x, _ in low)
    for line, band in zip((low, high), shapes(svg, "band"), strict=True):
        ends = [y for x, y in band if x == line[-1][0]]
        assert min(ends) < line[-1][1] < max(ends)
    colours = [one.attrib["class"] for one in svg.iter() if "line c" in one.attrib.get("class", "")]
    assert colours == ["line c0", "line c1"]


def test_long_curves_are_thinned_and_keep_their_last_request() -> None:
    """A long curve is thinned to at most 200 points, and keeps its last one."""
    (line,) = shapes(parsed(regret_chart("r", [curve("long", 0.1, count=20_000)])), "line")
    assert len(line) <= 200
    (short,) = shapes(parsed(regret_chart("r", [curve("short", 0.1, count=20)])), "line")
    assert line[-1] == short[-1]


def test_changes_are_marked_at_their_request() -> None:
    """A change inside the run has a mark at its request; a later one has none."""
    chart = regret_chart("r", [curve("a", 0.1)], changes=[500, 4000])
    marks = [line for line in parsed(chart).iter() if line.attrib.get("class") == "ideal"]
    assert len(marks) == 1
    (line,) = shapes(parsed(chart), "line")
    middle = (line[0][0] + line[-1][0]) / 2
    assert float(marks[0].attrib["x1"]) == pytest.approx(middle, abs=1.0)
    assert "Upright line" in chart.note
    assert "Upright line" not in regret_chart("r", [curve("a", 0.1)], changes=[1000]).note


def test_rewards_lie_at_their_place() -> None:
    """Each reward is drawn at its value, with its interval if there is one."""
    known = RewardEstimate(name="a", reward=Interval(lower=0.5, upper=0.7, level=0.95, estimate=0.6))
    alone = RewardEstimate(
        name="b", reward=Interval(lower=-math.inf, upper=math.inf, level=0.95, estimate=0.9)
    )
    svg = parsed(reward_chart("r", [known, alone]))
    first, second = ((float(c.attrib["cx"]), float(c.attrib["cy"])) for c in svg.iter("circle"))
    assert first[0] < second[0]
    assert first[1] < second[1]
    (whisker,) = (line for line in svg.iter() if line.attrib.get("class") == "whisker")
    assert float(whisker.attrib["x1"]) < first[0] < float(whisker.attrib["x2"])
    said = ["".join(circle.itertext()) for circle in svg.iter("circle")]
    assert said == ["a: 0.6000 (0.5000 to 0.7000)", "b: 0.9000"]


def test_the_page_escapes_what_it_is_given(tmp_path: Path) -> None:
    """Markup in titles, names and tables is escaped."""
    names = ("thompson", f"ema {EVIL}", "\ud800")
    page = write_simulation(
        tmp_path / "page.html",
        title=f"Drift {EVIL}",
        statements=["Lowest regret: it & that."],
        chart=regret_chart("r", [curve(name, 0.1 * (place + 1)) for place, name in enumerate(names)], [300]),
        table=[["strategy", "regret", "to <b>a</b>"], *([name, "1.0", "10"] for name in names)],
        settings=[("source", "scenario.toml")],
    )
    text = page.read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 4
    assert "to &lt;b&gt;a&lt;/b&gt;" in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=", text)
