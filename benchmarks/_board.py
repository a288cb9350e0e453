"""The scoreboard's record as verdicts, as tables, as a page and as a picture; nothing is measured here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from _contenders import ANSWERS, CONTENDERS, DEFAULT, RAW, TEXT, VECTORS, WITH_VECTORS
from draw_result import DARK, LIGHT, NAMES

SLACK: Final = 0.005
TEMPLATE: Final = Path(__file__).parent / "scoreboard_page.txt"
FIGURES: Final = ("accuracy", "Brier", "ECE", "AURC", "kept")
READS: Final = {(ANSWERS,): "A", (TEXT,): "T", (ANSWERS, TEXT): "A T", (TEXT, VECTORS): "T V"}
ALL_OF_IT: Final = "A T V"

Record = Mapping[str, Any]
"""What a run writes: its settings, and `sets`, each with its `contenders`. A figure is [value, low, high]."""
Figure = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How one of our defaults stands on one set.

    Attributes
    ----------
    side : str
        The default.
    best : str
        Contender of least Brier score.
    gap : sequence of float
        Brier score of the default above that of the best, with its interval.
    gain : sequence of float
        Accuracy of the default above that as scored, with its interval.
    """

    side: str
    best: str
    gap: Figure
    gain: Figure

    @property
    def is_within(self) -> bool:
        """True if the gap is no larger than the bar allows."""
        return self.gap[0] <= SLACK

    @property
    def loses_accuracy(self) -> bool:
        """True if accuracy is lower than as scored by more than noise."""
        return self.gain[2] < 0.0


def standing(one_set: Record, side: str, *, with_vectors: bool) -> Standing:
    """Return how a default stands beside the best contender of a set.

    Parameters
    ----------
    one_set : mapping
        A set of the record.
    side : str
        Name of the default.
    with_vectors : bool
        False to leave out contenders that read sentence vectors.
    """
    rivals = [one for one in one_set["contenders"] if with_vectors or VECTORS not in one["reads"]]
    # Where two are equal, such as the default and a part of it, the default is the best.
    best = max(rivals, key=lambda one: (one["behind"][side][0], one["name"] == side))
    own = next(one for one in one_set["contenders"] if one["name"] == side)
    return Standing(side=side, best=best["name"], gap=best["behind"][side], gain=own["gain"])


def standings(record: Record) -> dict[str, Standing]:
    """Return how the default stands on each set beside all that read the same as it."""
    return {one["name"]: standing(one, DEFAULT, with_vectors=False) for one in record["sets"]}


def standings_with_vectors(record: Record, side: str) -> dict[str, Standing]:
    """Return how a default stands on each set with texts beside everything, sentence vectors included."""
    return {
        one["name"]: standing(one, side, with_vectors=True)
        for one in record["sets"]
        if any(VECTORS in contender["reads"] for contender in one["contenders"])
    }


def sentences(record: Record) -> list[str]:
    """Return what the bars come to, a sentence each."""
    same = standings(record)
    both = standings_with_vectors(record, WITH_VECTORS)
    alone = standings_with_vectors(record, DEFAULT)
    told = [_within("The default", same, "the best that reads the same"), _lower("The default", same)]
    if not both:
        return told
    return [
        *told,
        _within("With sentence vectors, the default", both, "the best of all"),
        _lower("With sentence vectors, the default", both),
        _within("Without them, the default", alone, "the best of all, those with sentence vectors included,"),
    ]


def _within(who: str, found: Mapping[str, Standing], best: str) -> str:
    missed = {name: one for name, one in found.items() if not one.is_within}
    n_within = len(found) - len(missed)
    sentence = f"{who} is within {SLACK} Brier of {best} on {n_within} of {len(found)} sets".rstrip(",")
    if not missed:
        return f"{sentence}."
    told = "; ".join(f"{name} {signed(one.gap)} from {one.best}" for name, one in missed.items())
    return f"{sentence}. It is not on: {told}."


def _lower(who: str, found: Mapping[str, Standing]) -> str:
    lower = {name: one for name, one in found.items() if one.loses_accuracy}
    if not lower:
        return f"{who} is on no set less accurate than the answers as scored by more than noise."
    told = "; ".join(f"{name} {signed(one.gain)}" for name, one in lower.items())
    sets = f"on {len(lower)} of {len(found)} sets"
    return f"{who} is less accurate than the answers as scored by more than noise {sets}: {told}."


def signed(figure: Figure, digits: int = 4) -> str:
    """Return a difference with its interval."""
    value, low, high = (f"{number:+.{digits}f}" for number in figure)
    return f"{value} ({low} to {high})"


def _plain(figure: Figure) -> str:
    value, low, high = (f"{number:.3f}" for number in figure)
    return f"{value} ({low} to {high})"


def _short(figure: Figure) -> str:
    value, low, high = figure
    return f"{value:.3f}±{(high - low) / 2:.3f}".replace("±0", "±")


def terminal_lines(one_set: Record) -> Iterator[str]:
    """Yield a set as a table of 80 columns; ± is half the width of the interval."""
    yield heading(one_set)
    yield f"{'':21}" + "".join(f"{name:>11}" for name in FIGURES)
    for one in one_set["contenders"]:
        yield f"{one['name']:21}" + "".join(f"{_short(one[name]):>11}" for name in FIGURES)
    yield "AURC by confidence   " + "".join(f"{side:>17}" for side in (RAW, DEFAULT))
    for method, by_side in one_set["rankings"].items():
        yield f"  {method:19}" + "".join(f"{_short(by_side[side]):>17}" for side in (RAW, DEFAULT))


def heading(one_set: Record) -> str:
    """Return what a set is, in one line."""
    rows = f"{one_set['pool']} rows to draw from, {one_set['test']} test rows"
    return f"{one_set['name']}: {one_set['labels']} labels, {rows}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _bars(found: Mapping[str, Standing]) -> str:
    head = ["set", "best", "Brier above the best", "within", "accuracy above as scored"]
    rows = [
        [
            name,
            one.best,
            signed(one.gap),
            "yes" if one.is_within else "**no**",
            signed(one.gain, 3) + (" **lower**" if one.loses_accuracy else ""),
        ]
        for name, one in found.items()
    ]
    return _table(head, rows)


def _contender_rows(one_set: Record) -> list[list[str]]:
    rows = []
    for one in one_set["contenders"]:
        name = f"**{one['name']}**" if one["name"] == DEFAULT else one["name"]
        reads = READS.get(tuple(one["reads"]), ALL_OF_IT)
        right = "" if one["right"] is None else f"{one['right']:.3f}"
        rows.append([name, reads, *(_plain(one[figure]) for figure in FIGURES), right])
    return rows


def _details(one_set: Record) -> str:
    own = _table(["", "reads", *FIGURES, "right of kept"], _contender_rows(one_set))
    rankings = [
        [method, *(_plain(by_side[side]) for side in (RAW, DEFAULT))]
        for method, by_side in one_set["rankings"].items()
    ]
    ranked = _table(["AURC by", RAW, DEFAULT], rankings)
    chosen = ", ".join(f"{title} {count}" for title, count in one_set["chosen"].items())
    return f"### {one_set['name']}\n\n{heading(one_set)}. Heads taken by default: {chosen}.\n\n{own}\n\n{ranked}\n"


def page(record: Record) -> str:
    """Return the page of a record, in Markdown."""
    told = "\n".join(f"- {sentence}" for sentence in sentences(record))
    both = standings_with_vectors(record, WITH_VECTORS)
    details = "\n".join(_details(one) for one in record["sets"])
    return TEMPLATE.read_text(encoding="utf-8").format(
        commit=record["commit"],
        labelled=record["labelled"],
        draws=record["draws"],
        last_seed=record["draws"] - 1,
        resamples=f"{record['resamples']:,}",
        target=f"{record['target']:.2f}",
        delta=record["delta"],
        contenders=len(CONTENDERS),
        n_sets=len(record["sets"]),
        sentences=told,
        bars=_bars(standings(record)),
        bars_with_vectors=_bars(both),
        details=details,
    )


_SIDES: Final[Mapping[str, tuple[str, str]]] = {
    RAW: ("wrong", "cross"),
    "temperature": ("soft", "square"),
    "ReAnchor": ("mark", "triangle"),
    "LR on answers": ("ink", "diamond"),
    DEFAULT: ("right", "circle"),
}
"""Colour and shape of what the picture names; the default is drawn last."""

_WIDTH: Final = 960
_LEFT: Final = 210
_ROW: Final = 25
_TOP: Final = 96
_TICKS: Final = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6)
_MOST: Final = 0.7
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: var(--ink) } .head { font-size: 15px; font-weight: 600 }
.end { text-anchor: end } .middle { text-anchor: middle } .note { fill: var(--soft); font-size: 12px }
.grid { stroke: var(--line) } .band { fill: var(--right); opacity: 0.14 } .other { fill: var(--line) }
"""


def _x(gap: float) -> float:
    """Return the place of a Brier score above the best: the scale is that of square roots."""
    return _LEFT + (_WIDTH - _LEFT - 40) * math.sqrt(max(gap, 0.0) / _MOST)


def _circle(x: float, y: float, color: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="6" fill="{color}"/>'


def _square(x: float, y: float, color: str) -> str:
    return f'<rect x="{x - 4.5:.1f}" y="{y - 4.5}" width="9" height="9" fill="{color}"/>'


def _triangle(x: float, y: float, color: str) -> str:
    return f'<path d="M{x:.1f} {y - 6}l6 11h-12z" fill="{color}"/>'


def _diamond(x: float, y: float, color: str) -> str:
    return f'<path d="M{x:.1f} {y - 6}l5 6l-5 6l-5 -6z" fill="{color}"/>'


def _cross(x: float, y: float, color: str) -> str:
    return f'<path d="M{x - 5:.1f} {y - 5}l10 10m0 -10l-10 10" stroke="{color}" stroke-width="2.5"/>'


_SHAPES: Final[Mapping[str, Callable[[float, float, str], str]]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "diamond": _diamond,
    "cross": _cross,
}


def _marked(side: str, x: float, y: float) -> str:
    color, shape = _SIDES[side]
    return _SHAPES[shape](x, y, f"var(--{color})")


def _row_of_dots(one_set: Record, y: float) -> str:
    rivals = [one for one in one_set["contenders"] if VECTORS not in one["reads"]]
    least = min(one["Brier"][0] for one in rivals)
    places = {one["name"]: _x(one["Brier"][0] - least) for one in rivals}
    others = [x for name, x in places.items() if name not in _SIDES]
    parts = [f'<text class="end" x="{_LEFT - 16}" y="{y + 4}">{one_set["name"]}</text>']
    parts += [f'<circle class="other" cx="{x:.1f}" cy="{y}" r="3.5"/>' for x in others]
    parts += [_marked(side, places[side], y) for side in _SIDES]
    return "".join(parts)


def _legend() -> str:
    parts, x = [], _LEFT
    for side in reversed(_SIDES):
        parts.append(_marked(side, x, 52))
        parts.append(f'<text x="{x + 12}" y="56">{side}</text>')
        x += 40 + 7.2 * len(side)
    parts.append(f'<circle class="other" cx="{x}" cy="52" r="3.5"/><text x="{x + 10}" y="56">others</text>')
    return "".join(parts)


def picture(record: Record) -> str:
    """Return the picture of a record: Brier scores above the best of each set, as dots."""
    bottom = _TOP + _ROW * len(record["sets"])
    height = bottom + 46
    grid = "".join(
        f'<line class="grid" x1="{_x(tick):.1f}" x2="{_x(tick):.1f}" y1="{_TOP - 14}" y2="{bottom}"/>'
        f'<text class="middle note" x="{_x(tick):.1f}" y="{bottom + 18}">{tick:g}</text>'
        for tick in _TICKS
    )
    band = (
        f'<rect class="band" x="{_x(0.0):.1f}" y="{_TOP - 14}" width="{_x(SLACK) - _x(0.0):.1f}" '
        f'height="{bottom - _TOP + 14}"/>'
    )
    rows = "".join(
        _row_of_dots(one_set, _TOP + _ROW * place + 4) for place, one_set in enumerate(record["sets"])
    )
    light, dark = (
        "; ".join(f"--{name}: {color}" for name, color in zip(NAMES, colors, strict=True))
        for colors in (LIGHT, DARK)
    )
    style = f"svg {{ {light} }}\n@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}\n{_STYLE}"
    title = "Brier score above that of the best contender that reads the same; left is better"
    note = f"scale of square roots; the band is the aim, at most {SLACK}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img"><style>{style}</style>'
        f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="var(--back)"/>'
        f'<text class="head" x="16" y="28">{title}</text>{_legend()}{band}{grid}{rows}'
        f'<text class="note" x="{_LEFT}" y="{bottom + 36}">{note}</text></svg>\n'
    )
