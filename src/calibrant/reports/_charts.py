"""Charts as inline SVG; the style sheet of the page sets the colours, for light and dark mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from markupsafe import Markup
from pydantic import Field

from calibrant.core._reported import counted
from calibrant.reports._analysis import Bar, Bin, RiskCoverage

WIDTH: Final = 460
HEIGHT: Final = 320
LEFT: Final = 58
END: Final = WIDTH - 26
"""Where the axis across ends; it begins at `LEFT`."""
TOP: Final = 30
BASE: Final = HEIGHT - 52
"""Where the axis up begins; it ends at `TOP`."""
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)

Scale = Callable[[float], float]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


@dataclass(frozen=True, kw_only=True)
class CertifiedPoint:
    """The acceptance rule a calibration has certified, as ``calibration.json`` states it.

    Attributes
    ----------
    threshold : float
        Lowest accepted confidence.
    coverage : float
        Share of rows accepted, in [0, 1].
    target_accuracy : float
        Promised accuracy of the accepted rows, in [0, 1].
    accuracy_lower_bound : float
        Lower bound of the accuracy at this threshold, regardless of its choice among others, in [0, 1].
    delta : float
        Probability that the promise fails, in (0, 1).
    """

    threshold: Share
    coverage: Share
    accuracy_lower_bound: Share
    target_accuracy: Share
    delta: Share


def percent(value: float) -> str:
    """Return a fraction as a percentage with up to four significant digits."""
    return f"{100 * value:.4g} %"


def seconds(value: float) -> str:
    """Return a time with two significant digits, in milliseconds or seconds."""
    return f"{1000 * value:.2g} ms" if value < 0.0995 else f"{value:.2g} s"


class Frame:
    """SVG chart with axes; `x` and `y` map data to drawing coordinates."""

    def __init__(self, identity: str, title: str, description: str, *, x: Scale, y: Scale) -> None:
        self.x = x
        self.y = y
        self._parts = [
            Markup(
                '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-labelledby="{id}-t {id}-d">'
                '<title id="{id}-t">{}</title><desc id="{id}-d">{}</desc>'
            ).format(WIDTH, HEIGHT, title, description, id=identity)
        ]

    def add(self, markup: str, **values: object) -> None:
        """Add an SVG element; floats are rounded to a tenth of a pixel."""
        shown = {
            name: f"{value:.1f}" if isinstance(value, float) else value for name, value in values.items()
        }
        self._parts.append(Markup(markup).format(**shown))  # noqa: S704 (literals of this module; values are escaped)

    def text(self, x: float, y: float, text: str, *, kind: str = "middle") -> None:
        """Add a line of text."""
        self.add('<text x="{x}" y="{y}" class="{kind}">{text}</text>', x=x, y=y, text=text, kind=kind)

    def line(self, ends: tuple[float, float, float, float], kind: str) -> None:
        """Add a line between two points of the drawing."""
        self.add(
            '<line class="{kind}" x1="{a}" y1="{b}" x2="{c}" y2="{d}"/>',
            kind=kind,
            **dict(zip("abcd", map(float, ends), strict=True)),
        )

    def axes(
        self, across: Sequence[tuple[float, str]], up: Sequence[tuple[float, str]], names: tuple[str, str]
    ) -> None:
        """Draw grid, tick labels and the names of both axes."""
        for value, label in up:
            y = self.y(value)
            self.line((LEFT, y, END, y), "grid")
            self.text(LEFT - 7.0, y + 4.5, label, kind="end")
        for value, label in across:
            self.text(self.x(value), BASE + 19.0, label)
        self.line((LEFT, BASE, END, BASE), "axis")
        self.text((LEFT + END) / 2, HEIGHT - 12.0, names[0])
        self.text(6.0, 17.0, names[1], kind="start")

    def bar(self, left: float, right: float, height: float, kind: str, about: str) -> None:
        """Draw a bar with a tooltip, from the axis up, in the units of the data."""
        x0 = self.x(left)
        x1 = self.x(right)
        y = self.y(height)
        self.add(
            '<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}"><title>{about}</title></rect>',
            kind=kind,
            x=x0,
            y=y,
            w=max(x1 - x0, 0.5),
            h=max(BASE - y, 0.0),
            about=about,
        )

    def circle(self, x: float, y: float, radius: float, about: str, *, kind: str = "point") -> None:
        """Draw a point with a tooltip, in drawing coordinates."""
        markup = '<circle class="{kind}" cx="{x}" cy="{y}" r="{r}"><title>{about}</title></circle>'
        self.add(markup, kind=kind, x=x, y=y, r=radius, about=about)

    def polyline(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Draw a line through points, in the units of the data."""
        ends = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.add('<polyline class="{kind}" points="{points}"/>', kind=kind, points=ends)

    def diamond(self, x: float, y: float, about: str) -> None:
        """Draw a diamond with a tooltip, for the chosen rule or policy, in drawing coordinates."""
        markup = '<path class="certified" d="M{x} {y}m-8 0l8 -8l8 8l-8 8Z"><title>{about}</title></path>'
        self.add(markup, x=x, y=y, about=about)

    def drawn(self) -> Markup:
        """Return the finished SVG element."""
        return Markup("").join([*self._parts, Markup("</svg>")])


def _linear(low: float, high: float, begin: float, end: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: begin + (value - low) / span * (end - begin)


def across(low: float, high: float) -> Scale:
    return _linear(low, high, LEFT, END)


def up(low: float, high: float) -> Scale:
    return _linear(low, high, BASE, TOP)


def _percentages(ticks: Sequence[float]) -> list[tuple[float, str]]:
    return [(tick, percent(tick)) for tick in ticks]


_SHARES: Final = _percentages([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])


def round_ticks(low: float, high: float) -> list[float]:
    """Return about five round tick values that enclose `low` and `high`."""
    rough = max(high - low, 1e-3 * max(abs(high), 1e-9)) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in _STEPS if unit * factor >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def reliability_chart(identity: str, bins: Sequence[Bin]) -> Markup:
    """Draw accuracy over confidence with Wilson intervals, and the diagonal of perfect calibration."""
    frame = Frame(
        identity,
        "Reliability diagram",
        f"Accuracy over mean confidence in {len(bins)} bins, with 95 % intervals. Points below the diagonal: "
        "more confident than right.",
        x=across(0.0, 1.0),
        y=up(0.0, 1.0),
    )
    frame.axes(_SHARES, _SHARES, ("confidence", "accuracy"))
    frame.line((LEFT, BASE, END, TOP), "ideal")
    most = max((found.rows for found in bins), default=1)
    for found in bins:
        x = frame.x(found.confidence)
        accuracy = found.accuracy
        low = frame.y(accuracy.lower)
        high = frame.y(accuracy.upper)
        frame.line((x, low, x, high), "whisker")
        about = (
            f"{counted(found.rows, 'row')}, confidence {found.confidence:.3f}, accuracy {accuracy.estimate:.3f} "
            f"({accuracy.lower:.3f} to {accuracy.upper:.3f})"
        )
        radius = 3.0 + 5.0 * math.sqrt(found.rows / most)
        frame.circle(x, frame.y(accuracy.estimate), radius, about)
    return frame.drawn()


def confidence_chart(identity: str, bars: Sequence[Bar]) -> Markup:
    """Draw the confidence histograms of right and of wrong rows side by side, as shares."""
    right = sum(bar.right for bar in bars)
    wrong = sum(bar.wrong for bar in bars)
    shares = [(bar.right / max(right, 1), bar.wrong / max(wrong, 1)) for bar in bars]
    highest = max(map(max, shares), default=0.0)
    ticks = round_ticks(0.0, highest or 1.0)
    frame = Frame(
        identity,
        "Confidence of right and wrong answers",
        f"Share of the {right:,} right and of the {wrong:,} wrong answers by confidence.",
        x=across(0.0, 1.0),
        y=up(0.0, ticks[-1]),
    )
    frame.add(
        '<defs><pattern id="{id}-hatch" width="5" height="5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="wrong" width="5" height="5"/>'
        '<line class="hatch" x1="0" y1="0" x2="0" y2="5"/></pattern></defs>',
        id=identity,
    )
    frame.axes(_SHARES, _percentages(ticks), ("confidence", "share of each kind"))
    for bar, (good, bad) in zip(bars, shares, strict=True):
        middle = (bar.lower + bar.upper) / 2
        gap = (bar.upper - bar.lower) * 0.08
        between = f"confidence {bar.lower:.2f} to {bar.upper:.2f}"
        if bar.right:
            frame.bar(bar.lower + gap, middle, good, "right", f"{bar.right:,} right, {between}")
        if bar.wrong:
            frame.add('<g fill="url(#{id}-hatch)">', id=identity)
            frame.bar(middle, bar.upper - gap, bad, "hatched", f"{bar.wrong:,} wrong, {between}")
            frame.add("</g>")
    _legend(frame, identity)
    return frame.drawn()


def _legend(frame: Frame, identity: str) -> None:
    x = WIDTH - 160.0
    frame.add('<rect class="right" x="{x}" y="8" width="12" height="12"/>', x=x)
    frame.text(x + 17, 18.5, "right", kind="start")
    frame.add('<rect fill="url(#{id}-hatch)" x="{x}" y="8" width="12" height="12"/>', x=x + 75, id=identity)
    frame.text(x + 92, 18.5, "wrong", kind="start")


def risk_chart(identity: str, curve: RiskCoverage, certified: CertifiedPoint | None) -> Markup:
    """Draw the risk-coverage curve, and the certified rule, if any."""
    heights = curve.risk.tolist()
    if certified is not None:
        heights.append(1.0 - certified.target_accuracy)
    ticks = round_ticks(0.0, max(0.01, *heights))
    all_rows = f"{percent(float(curve.risk[-1]))} of all rows are wrong."
    frame = Frame(
        identity,
        "Risk-coverage curve",
        f"Error rate among accepted rows over the share of rows accepted, surest first. {all_rows}",
        x=across(0.0, 1.0),
        y=up(0.0, ticks[-1]),
    )
    names = ("coverage: share of rows accepted", "risk: share of wrong rows among them")
    frame.axes(_SHARES, _percentages(ticks), names)
    frame.polyline(zip(curve.coverage.tolist(), curve.risk.tolist(), strict=True), "curve")
    if len(curve.risk) == 1:
        coverage = float(curve.coverage[0])
        risk = float(curve.risk[0])
        frame.circle(frame.x(coverage), frame.y(risk), 4.0, f"coverage {coverage:.3f}, risk {risk:.3f}")
    if certified is not None:
        _mark(frame, certified)
    return frame.drawn()


def _mark(frame: Frame, certified: CertifiedPoint) -> None:
    """Draw the certified rule at its coverage and its highest allowed risk."""
    risk = 1.0 - certified.target_accuracy
    x = frame.x(certified.coverage)
    y = frame.y(risk)
    frame.line((LEFT, y, END, y), "target")
    frame.line((x, BASE, x, y), "target")
    about = (
        f"certified: threshold {certified.threshold:.4g}, coverage {certified.coverage:.3f}, "
        f"accuracy at least {certified.target_accuracy:.4g} with probability {1.0 - certified.delta:.4g}"
    )
    frame.diamond(x, y, about)
    if certified.coverage > 0.6:
        frame.text(x - 10, y - 8, "certified", kind="end")
    else:
        frame.text(x + 10, y - 8, "certified", kind="start")


def latency_chart(identity: str, bars: Sequence[Bar]) -> Markup:
    """Draw the number of rows by latency, on a logarithmic axis."""
    low = math.log(bars[0].lower)
    high = math.log(bars[-1].upper)
    scale = across(low, high)
    ticks = round_ticks(0.0, max(bar.right for bar in bars))
    frame = Frame(
        identity,
        "Latency",
        f"Rows by seconds from question to answer: from {seconds(bars[0].lower)} to {seconds(bars[-1].upper)}.",
        x=lambda value: scale(math.log(value)),
        y=up(0.0, ticks[-1]),
    )
    marks = [math.exp(low + (high - low) * part / 4) for part in range(5)]
    frame.axes(
        [(mark, seconds(mark)) for mark in marks],
        [(tick, f"{tick:,.10g}") for tick in ticks],
        ("latency (logarithmic)", "rows"),
    )
    for bar in bars:
        if bar.right:
            about = f"{counted(bar.right, 'row')}, {seconds(bar.lower)} to {seconds(bar.upper)}"
            frame.bar(bar.lower, bar.upper, bar.right, "right", about)
    return frame.drawn()
