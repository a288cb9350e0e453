"""Regret against requests, or estimated reward: what strategies are worth, as a page with one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jinja2
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from calibrant.core import ConfigurationError, Interval, StateError
from calibrant.core._files import write_atomically
from calibrant.reports._charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Frame, across, round_ticks, up
from calibrant.reports._html import environment, policy_hash, static

__all__ = [
    "RegretCurve",
    "RewardEstimate",
    "SimulationChart",
    "regret_chart",
    "reward_chart",
    "write_simulation",
]

_HERE: Final = Path(__file__).parent
_POINTS: Final = 200  # of a line that is drawn
_COLOURS: Final = 8
_LONGEST: Final = 24  # characters of a name in the drawing


@dataclass(frozen=True, kw_only=True, eq=False)
class RegretCurve:
    """Cumulative regret of one strategy.

    Attributes
    ----------
    name : str
        The strategy.
    mean : ndarray of shape (n,)
        Over the runs, up to and including each request.
    lower, upper : ndarray of shape (n,)
        Between which most runs lie.
    """

    name: str
    mean: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RewardEstimate:
    """Mean reward of one strategy, or of one provider alone.

    Attributes
    ----------
    name : str
        Whose.
    reward : Interval
        Per request.
    """

    name: str
    reward: Interval


@dataclass(frozen=True, kw_only=True)
class SimulationChart:
    """A drawing and what stands around it.

    Attributes
    ----------
    caption, note : str
        Above it.
    drawing : Markup
        The element.
    names : sequence of str
        The legend: what is drawn in the first colour, the second, and so on.
    """

    caption: str
    note: str
    drawing: Markup
    names: Sequence[str] = ()


def regret_chart(
    identity: str, curves: Sequence[RegretCurve], changes: Sequence[int] = ()
) -> SimulationChart:
    """Draw cumulative regret over requests, a band around every line.

    Parameters
    ----------
    identity : str
        Of the element in its page.
    curves : sequence of RegretCurve
        One or more, of equal length.
    changes : sequence of int, optional
        Numbers of the requests, from 0, at which something changed.

    Raises
    ------
    ConfigurationError
        There is no curve, or they differ in length.
    """
    sizes = {len(values) for curve in curves for values in (curve.mean, curve.lower, curve.upper)}
    if len(sizes) != 1 or 0 in sizes:
        raise ConfigurationError(f"Expected curves of one length, at least 1, got {sorted(sizes) or 'none'}.")
    (count,) = sizes
    low = min(0.0, *(float(curve.lower.min()) for curve in curves))
    high = max(float(curve.upper.max()) for curve in curves)
    rows, columns = round_ticks(low, max(high, low + 1e-9)), round_ticks(0.0, float(count))
    ends = ", ".join(f"{curve.name} {curve.mean[-1]:,.1f}" for curve in curves)
    frame = Frame(
        identity,
        "Regret against requests",
        f"Mean cumulative regret over {count:,} requests; at the end: {ends}.",
        x=across(0.0, float(count)),
        y=up(rows[0], rows[-1]),
    )
    frame.axes(
        [(tick, f"{tick:,.0f}") for tick in columns if tick <= count and float(tick).is_integer()],
        [(tick, f"{tick:,.6g}") for tick in rows],
        ("requests", "regret"),
    )
    for change in changes:
        if change < count:
            frame.line((frame.x(change), TOP, frame.x(change), HEIGHT - BOTTOM), "ideal")
    for place, curve in enumerate(curves):
        _band(frame, curve, f"band c{place % _COLOURS}")
    for place, curve in enumerate(curves):
        _line(frame, curve, f"line c{place % _COLOURS}")
    changed = " Upright line: something changes." if any(change < count for change in changes) else ""
    return SimulationChart(
        caption="Regret against requests",
        note=f"Lower is better. Lines: means of all runs. Bands: four fifths of the runs.{changed}",
        drawing=frame.drawn(),
        names=[curve.name for curve in curves],
    )


def _drawn(count: int) -> NDArray[np.int64]:
    """Return the places to draw, the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, _POINTS)).round().astype(np.int64))


def _points(frame: Frame, places: NDArray[np.int64], values: NDArray[np.float64]) -> list[str]:
    return [
        f"{frame.x(place + 1.0):.1f},{frame.y(value):.1f}"
        for place, value in zip(places.tolist(), values[places].tolist(), strict=True)
    ]


def _band(frame: Frame, curve: RegretCurve, kind: str) -> None:
    places = _drawn(len(curve.mean))
    outline = _points(frame, places, curve.upper) + _points(frame, places, curve.lower)[::-1]
    frame.add('<polygon class="{kind}" points="{points}"/>', kind=kind, points=" ".join(outline))


def _line(frame: Frame, curve: RegretCurve, kind: str) -> None:
    points = _points(frame, _drawn(len(curve.mean)), curve.mean)
    frame.add(
        '<polyline class="{kind}" points="{points}"><title>{about}</title></polyline>',
        kind=kind,
        points=" ".join(points if len(points) > 1 else points * 2),
        about=f"{curve.name}: {curve.mean[-1]:,.1f} after {len(curve.mean):,} requests",
    )


def reward_chart(identity: str, estimates: Sequence[RewardEstimate]) -> SimulationChart:
    """Draw mean rewards with their intervals, one below the other.

    Raises
    ------
    ConfigurationError
        There is no estimate.
    """
    if not estimates:
        raise ConfigurationError(
            "Expected at least one estimate, got none: the log matches no strategy's choices."
        )
    ends = [one.reward.estimate for one in estimates]
    ends += [end for one in estimates for end in (one.reward.lower, one.reward.upper) if math.isfinite(end)]
    columns = round_ticks(min(ends), max(ends))
    scale = across(columns[0], columns[-1])
    left = 0.42  # of the width: names
    frame = Frame(
        identity,
        "Mean reward by strategy",
        "Mean reward per request: "
        + ", ".join(f"{one.name} {one.reward.estimate:.4f}" for one in estimates)
        + ".",
        x=lambda value: LEFT + left * (WIDTH - LEFT - RIGHT) + (1.0 - left) * (scale(value) - LEFT),
        y=up(len(estimates) - 0.5, -0.5),
    )
    frame.axes([(tick, f"{tick:.4g}") for tick in columns], [], ("mean reward per request", ""))
    for place, one in enumerate(estimates):
        _estimate(frame, place, one)
    return SimulationChart(
        caption="Mean reward per request",
        note="Higher is better. Points with 95 % intervals; of providers alone, as recorded.",
        drawing=frame.drawn(),
    )


def _estimate(frame: Frame, place: int, one: RewardEstimate) -> None:
    y, reward = frame.y(place), one.reward
    short = one.name if len(one.name) <= _LONGEST else one.name[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
    frame.text(6.0, y + 4.5, short, kind="start")
    ends = ""
    if math.isfinite(reward.upper):
        ends = f" ({reward.lower:.4f} to {reward.upper:.4f})"
        frame.line((frame.x(reward.lower), y, frame.x(reward.upper), y), "whisker")
    frame.add(
        '<circle class="point" cx="{x}" cy="{y}" r="5"><title>{about}</title></circle>',
        x=frame.x(reward.estimate),
        y=y,
        about=f"{one.name}: {reward.estimate:.4f}" + ends,
    )


def write_simulation(
    path: Path,
    *,
    title: str,
    statements: Sequence[str],
    chart: SimulationChart,
    table: Sequence[Sequence[str]],
    settings: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write a page about a simulation; every text in it is escaped, and it loads nothing.

    Parameters
    ----------
    path : Path
        The page.
    title : str
        Of the page.
    statements : sequence of str
        What is to be said; the first one is the result.
    chart : SimulationChart
        The picture.
    table : sequence of sequence of str
        The numbers, first the heads; the first column are names.
    settings : sequence of (str, str), optional
        Names and values.

    Raises
    ------
    StateError
        It cannot be written.
    """
    css = static("report.css") + (_HERE / "simulation.css").read_text(encoding="utf-8")
    pages = environment()
    loaders = [one for one in (jinja2.FileSystemLoader(_HERE), pages.loader) if one is not None]
    page = (
        pages.overlay(loader=jinja2.ChoiceLoader(loaders))
        .get_template("simulation.html")
        .render(
            title=title,
            statements=statements,
            chart=chart,
            colours=_COLOURS,
            heads=table[0],
            rows=table[1:],
            settings=settings,
            style=css,
            policy=f"default-src 'none'; style-src {policy_hash(css)}; base-uri 'none'; form-action 'none'",
        )
    )
    try:
        # Half of a surrogate pair is legal in JSON and in no file.
        write_atomically(path, page.encode("utf-8", "replace").decode())
    except OSError as error:
        raise StateError(
            f"{path}: cannot be written ({error.strerror or error}): choose another file with --out."
        ) from error
    return path
