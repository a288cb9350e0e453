"""Tests of the page of performance against cost."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from calibrant.core import Interval, StateError
from calibrant.reports._html import TradePoint, write_trade

SMALL = TradePoint(name="small alone", cost=1.0, performance=0.6)
LARGE = TradePoint(name="<b>large</b>", cost=50.0, performance=0.8)
CHOSEN = TradePoint(
    name="threshold 0.9",
    cost=20.0,
    performance=0.78,
    cost_interval=Interval(lower=18.0, upper=22.0, level=0.95, estimate=20.0),
    performance_interval=Interval(lower=0.74, upper=0.81, level=0.95, estimate=0.78),
)
FRONTIER = [SMALL, TradePoint(name="half", cost=10.0, performance=0.72), LARGE]
NAMESPACE = "{http://www.w3.org/2000/svg}"


def circles(svg: ET.Element) -> list[tuple[str, float, float]]:
    """Return class, x and y of every circle."""
    return [
        (one.attrib["class"], float(one.attrib["cx"]), float(one.attrib["cy"]))
        for one in svg.iter(f"{NAMESPACE}circle")
    ]


def test_points_lie_by_cost_and_performance(tmp_path: Path) -> None:
    """Points are placed by cost and performance, and the chosen policy has whiskers."""
    svg, page = write_trade(
        tmp_path,
        title="A plan",
        statements=["It & that."],
        frontier=FRONTIER,
        models=[SMALL, LARGE],
        chosen=CHOSEN,
    )
    drawn = ET.fromstring(svg.read_text())  # noqa: S314  (our own file)
    found = circles(drawn)
    assert [kind for kind, _, _ in found] == ["point"] * 3 + ["wrong"] * 2
    assert found[0][1] < found[1][1] < found[2][1]
    assert found[0][2] > found[1][2] > found[2][2]
    assert found[0][1:] == found[3][1:]
    assert sum(line.attrib["class"] == "chosen" for line in drawn.iter(f"{NAMESPACE}line")) == 4
    text = page.read_text()
    assert "It &amp; that." in text
    assert "&lt;b&gt;large&lt;/b&gt;" in text
    assert "<b>" not in text
    assert "script" not in text.split("<style>")[0].replace("form-action", "")
    for name in (svg, page):
        assert re.search(r"threshold 0\.9", name.read_text())


@pytest.mark.parametrize("cost", [0.0, 1e-7, 3.0])
def test_equal_points_are_drawn_too(tmp_path: Path, cost: float) -> None:
    """Points with equal cost and performance are drawn inside the chart."""
    one = TradePoint(name="one", cost=cost, performance=1.0)
    svg, _ = write_trade(tmp_path, title="", statements=[""], frontier=[one], models=[one, one], chosen=one)
    drawn = ET.fromstring(svg.read_text())  # noqa: S314  (our own file)
    for element in drawn.iter():
        for name in ("x", "y", "cx", "cy", "x1", "y1"):
            if name in element.attrib:
                assert -1.0 <= float(element.attrib[name]) <= 461.0


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A missing directory raises StateError with the file's name."""
    with pytest.raises(StateError, match=r"plan\.svg.*cannot be written"):
        write_trade(
            tmp_path / "none", title="", statements=[], frontier=FRONTIER, models=[SMALL], chosen=CHOSEN
        )
