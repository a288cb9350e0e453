"""Performance and cost of policies over several models, as a picture and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markupsafe import Markup

from calibrant.core._prediction import Interval
from calibrant.reports._charts import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Frame, across, round_ticks, up
from calibrant.reports._html import render_page, static, write_page

_LONGEST: Final = 28  # characters of a name in the drawing


@dataclass(frozen=True, kw_only=True)
class TradePoint:
    """Cost and performance of a policy, or of a single model.

    Attributes
    ----------
    name : str
        Name of the policy or model.
    cost, performance : float
        Per row; performance in [0, 1].
    cost_interval, performance_interval : Interval or None
        Confidence intervals of both.
    """

    name: str
    cost: float
    performance: float
    cost_interval: Interval | None = None
    performance_interval: Interval | None = None

    @property
    def about(self) -> str:
        """Return the point's values in one line."""
        sure = self.performance_interval
        ends = "" if sure is None else f" ({sure.lower:.4f} to {sure.upper:.4f})"
        return f"{self.name}: cost {self.cost:.5g}, performance {self.performance:.4f}{ends}"


def _chart(frontier: Sequence[TradePoint], models: Sequence[TradePoint], chosen: TradePoint) -> Markup:
    """Draw performance over cost: the frontier, the line from model to model, and the chosen policy."""
    points = [*frontier, *models, chosen]
    intervals = [point.performance_interval for point in points if point.performance_interval is not None]
    heights = [point.performance for point in points]
    heights += [end for interval in intervals for end in (interval.lower, interval.upper)]
    rows = round_ticks(min(heights), max(heights))
    columns = round_ticks(0.0, max(point.cost for point in points))
    about = ". ".join(one.about for one in (chosen, *models))
    frame = Frame(
        "trade",
        "Performance against cost",
        f"Performance per row over cost per row. {about}.",
        x=across(columns[0], columns[-1]),
        y=up(rows[0], rows[-1]),
    )
    frame.axes(
        [(tick, f"{tick:.6g}") for tick in columns],
        [(tick, f"{100 * tick:.4g} %") for tick in rows],
        ("cost per row", "accuracy"),
    )
    for line, kind in ((models, "ideal"), (frontier, "curve")):
        ends = " ".join(f"{frame.x(point.cost):.1f},{frame.y(point.performance):.1f}" for point in line)
        if len(line) > 1:
            frame.add('<polyline class="{kind}" points="{points}"/>', kind=kind, points=ends)
    for point in frontier:
        frame.circle(frame.x(point.cost), frame.y(point.performance), 3.0, point.about)
    for point in models:
        _whiskers(frame, point, "axis")
        frame.circle(frame.x(point.cost), frame.y(point.performance), 5.0, point.about, kind="wrong")
    for place, point in enumerate(models):
        _name(frame, point, point.name, above=place > 0)
    _whiskers(frame, chosen, "chosen")
    frame.diamond(frame.x(chosen.cost), frame.y(chosen.performance), chosen.about)
    _name(frame, chosen, "chosen", above=False)
    return frame.drawn()


def write_trade(  # noqa: PLR0913  (keyword-only options)
    out: Path,
    *,
    title: str,
    statements: Sequence[str],
    frontier: Sequence[TradePoint],
    models: Sequence[TradePoint],
    chosen: TradePoint,
    settings: Sequence[tuple[str, str]] = (),
) -> list[Path]:
    """Write ``plan.svg`` and ``plan.html``; they load no other file.

    Parameters
    ----------
    out : Path
        A directory that exists.
    title : str
        Title of the page.
    statements : sequence of str
        Statements on the plan, a sentence or two each; the first one is the result.
    frontier : sequence of TradePoint
        By cost.
    models : sequence of TradePoint, one or more
        Every model alone, from small to large.
    chosen : TradePoint
        The chosen policy, with its intervals.
    settings : sequence of (str, str), optional
        Names and values, shown as a table.

    Returns
    -------
    list of Path
        Both files.

    Raises
    ------
    StateError
        They cannot be written.
    """
    chart = _chart(frontier, models, chosen)
    css = str(static("report.css"))
    style = str(static("trade.css")) + "\n".join(
        line for line in css.splitlines() if line.startswith(".chart")
    )
    picture = str(chart).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    begin = picture.index(">") + 1
    sure = chosen.performance_interval
    page = render_page(
        "trade.html",
        title=title,
        statements=statements,
        chart=chart,
        frontier=frontier,
        models=models,
        chosen=chosen,
        settings=settings,
        level="" if sure is None else f"{100 * sure.level:g} % ",
    )
    files = {
        out / "plan.svg": f"{picture[:begin]}<style>{style}</style>{picture[begin:]}\n",
        out / "plan.html": page,
    }
    for path, text in files.items():
        write_page(path, text, remedy="choose another directory")
    return list(files)


def _whiskers(frame: Frame, point: TradePoint, kind: str) -> None:
    x, y = frame.x(point.cost), frame.y(point.performance)
    if point.performance_interval is not None:
        low, high = frame.y(point.performance_interval.lower), frame.y(point.performance_interval.upper)
        for ends in ((x, low, x, high), (x - 4, low, x + 4, low), (x - 4, high, x + 4, high)):
            frame.line(ends, kind)
    if point.cost_interval is not None:
        frame.line((frame.x(point.cost_interval.lower), y, frame.x(point.cost_interval.upper), y), kind)


def _name(frame: Frame, point: TradePoint, name: str, *, above: bool) -> None:
    """Write a name beside the end of an interval, where no line passes."""
    sure = point.performance_interval
    end = point.performance if sure is None else sure.upper if above else sure.lower
    x, y = frame.x(point.cost), frame.y(end) + 5.0
    right = x > (LEFT + WIDTH - RIGHT) / 2
    short = name if len(name) <= _LONGEST else "\N{HORIZONTAL ELLIPSIS}" + name[1 - _LONGEST :]
    frame.text(
        x - 9 if right else x + 9, min(y, HEIGHT - BOTTOM - 4.0), short, kind="end" if right else "start"
    )
