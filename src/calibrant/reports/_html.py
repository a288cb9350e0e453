"""``report.html``, one self-contained page for one run or several, and the page of policies over several models."""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
from markupsafe import Markup

from calibrant.core._errors import ConfigurationError
from calibrant.core._files import write_atomically
from calibrant.core._prediction import Interval
from calibrant.core._reported import counted, writable
from calibrant.metrics._classification import ClassificationSummary
from calibrant.metrics._intervals import holm
from calibrant.reports import _analysis as analysis
from calibrant.reports import _charts as charts
from calibrant.reports._analysis import read_texts
from calibrant.reports._charts import BASE, END, LEFT, Frame, across, round_ticks, up
from calibrant.reports._run import Run, read_run
from calibrant.runs._directory import while_writing
from calibrant.runs._rows import SavedRows

MAX_MISTAKES: Final = 200  # shown, in all runs together
_FEWEST_MISTAKES: Final = 20  # of each run
_MAX_LABELS: Final = 20  # in a confusion matrix
_MAX_PAIRS: Final = 20
_CURVE_ROWS: Final = 20
_LONGEST: Final = 28  # characters of a name in the drawing


def write_report(
    *directories: Path, out: Path | None = None, rows: Mapping[str, SavedRows] | None = None
) -> Path:
    """Write one page about finished or unfinished runs; the page loads no other file.

    Parameters
    ----------
    *directories : Path
        Directories of searches or evaluations, or others with a ``predictions.jsonl``. All are compared with
        the first, on the rows they share.
    out : Path, optional
        The page; default ``report.html`` in the first directory.
    rows : mapping of str to SavedRows, optional
        Rows by prompt of the first directory, where they are in memory, such as `OptimizationResult.test_rows`; by
        default they are read from its ``predictions.jsonl``.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    ConfigurationError
        No directory, or one given twice.
    StateError
        A directory holds no run, one of another version, or the page cannot be written.
    DataError
        A line of predictions is broken; names file and line.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant import BatchEvaluator, Classifier, Example
    >>> from calibrant.testing import FakeClient
    >>> from calibrant.reports import write_report
    >>> fake = FakeClient(["cat", "dog"], {"barks": ("cat", 0.9)})
    >>> classifier = Classifier(model=fake, labels=["cat", "dog"], field="category")
    >>> out = Path(tempfile.mkdtemp())
    >>> _ = BatchEvaluator(classifier).evaluate([Example(input="barks", answer="dog")], out=out)
    >>> page = write_report(out)
    >>> page.name, "barks" in page.read_text(encoding="utf-8")  # wrong rows are shown
    ('report.html', True)
    """
    if not directories or len({path.resolve() for path in directories}) < len(directories):
        raise ConfigurationError(
            f"Expected one or more different directories, got {', '.join(map(str, directories)) or 'none'}."
        )
    runs = [read_run(directories[0], rows), *map(read_run, directories[1:])]
    page = _render(runs, directories)
    path = out or directories[0] / "report.html"
    write_page(path, page, remedy="choose another file with --out")
    return path


def write_page(path: Path, text: str, *, remedy: str) -> None:
    """Write a page atomically.

    Raises
    ------
    StateError
        It cannot be written; the message ends with the remedy.
    """
    with while_writing(path, remedy=remedy):
        # Half of a surrogate pair is legal in JSON and in no file.
        write_atomically(path, writable(text))


def _render(runs: Sequence[Run], directories: Sequence[Path]) -> str:
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = list(map(str, directories))
    limit = max(MAX_MISTAKES // len(runs), _FEWEST_MISTAKES)
    sections = [
        _section(f"run{place}", name, run, limit)
        for place, (name, run) in enumerate(zip(names, runs, strict=True), start=1)
    ]
    return render_page(
        "report.html", sections=sections, comparisons=_comparisons(names, runs), script=static("report.js")
    )


def render_page(template: str, *, script: str = "", **values: object) -> str:
    """Return a page with the common style; its security policy allows only that style and the script."""
    style = static("report.css")
    scripts = f"script-src {policy_hash(script)}; " if script else ""
    policy = (
        f"default-src 'none'; style-src {policy_hash(style)}; {scripts}base-uri 'none'; form-action 'none'"
    )
    page = environment().get_template(template)
    return page.render(style=style, script=script, policy=policy, **values)


def review_page() -> tuple[str, str]:
    """Return the page on which a person decides on rows, and the security policy that its server sends with it."""
    style = static("report.css") + static("review.css")
    script = static("review.js")
    policy = (
        f"default-src 'none'; style-src {policy_hash(style)}; script-src {policy_hash(script)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return environment().get_template("review.html").render(style=style, script=script), policy


def environment() -> jinja2.Environment:
    """Return the Jinja environment of the page's templates, with automatic escaping."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("calibrant.reports", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    environment.filters["seconds"] = charts.seconds
    return environment


def static(name: str) -> Markup:
    """Return the text of a style sheet or script of this package."""
    text = resources.files("calibrant.reports").joinpath("templates", name).read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 (a file of this package)


def policy_hash(text: str) -> str:
    """Return the hash by which a page's security policy allows a style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _number(value: float | None, digits: int = 3, kind: str = "f") -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.{digits}{kind}}"


def _section(identity: str, name: str, run: Run, limit: int) -> dict[str, Any]:
    """Return the template's values for a run."""
    rows = run.rows
    table = analysis.confusion(rows)
    bins = analysis.reliability_bins(rows)
    bars = analysis.confidence_bars(rows)
    curve = analysis.risk_coverage(rows)
    latency = analysis.latency_bars(rows)
    found = analysis.mistakes(rows, limit, table)
    seed = run.search.seed if run.search else None
    return {
        "id": identity,
        "name": name,
        "run": run,
        "figures": analysis.headline(rows, table),
        "collapsed": analysis.collapse_warning(rows, table),
        "seed_figures": [] if seed is None else analysis.headline(seed, analysis.confusion(seed)),
        "unscored": int((rows.judged & ~rows.scored).sum()),
        "bins": bins,
        "reliability": charts.reliability_chart(f"{identity}-reliability", bins) if bins else None,
        "bars": [bar for bar in bars if bar.right or bar.wrong],
        "histogram": charts.confidence_chart(f"{identity}-histogram", bars) if bins else None,
        "curve": _thinned(curve),
        "risk": charts.risk_chart(f"{identity}-risk", curve, run.certified) if curve else None,
        "latency_bars": [bar for bar in latency if bar.right],
        "latency": charts.latency_chart(f"{identity}-latency", latency) if latency else None,
        "effort": _effort(run),
        "matrix": _matrix(table) if table else None,
        "mistakes": read_texts(rows, found.rows, found.answer_probability),
        "wrong": found.wrong,
        "ranked": found.answer_probability is not None,
        "unranked": found.unranked,
        "remarks": [*run.remarks, *analysis.remarks(rows)],
        "limit": limit,
    }


def _thinned(curve: analysis.RiskCoverage | None) -> list[tuple[float, float, float]]:
    if curve is None:
        return []
    places = np.linspace(0, len(curve.risk) - 1, _CURVE_ROWS)
    chosen = np.unique(places.round().astype(np.int64))
    columns = (curve.threshold, curve.coverage, curve.risk)
    values = [column[chosen].tolist() for column in columns]
    return list(zip(*values, strict=True))


def _effort(run: Run) -> list[tuple[str, str]]:
    """Return outcomes, cost, latency and usage as pairs of a name and a text."""
    rows = run.rows
    metrics = dict(run.metrics)
    if run.search:
        metrics.update(run.search.record)
    outcomes = [f"{count:,} {name}" for name, count in sorted(rows.outcomes.items())]
    parts = [("outcomes", ", ".join(outcomes))]
    prices = rows.cost[~np.isnan(rows.cost)]
    total = float(prices.sum())
    n = len(prices)
    priced = f"${total:.4f}, ${1000 * total / max(n, 1):.4f} for 1,000 rows; {counted(n, 'row')} with a price"
    unpriced = "none: the model runs here" if _is_embedded(metrics.get("model")) else "no price is known"
    parts.append(("cost of these rows", priced if n else unpriced))
    if isinstance(metrics.get("cost"), int | float):
        parts.append(("cost of the whole run", f"${metrics['cost']:.4f}"))
    seconds = rows.latency[~np.isnan(rows.latency)]
    if len(seconds):
        quantiles = np.quantile(seconds, [0.5, 0.9, 0.99]).tolist()
        median, late, last = map(charts.seconds, quantiles)
        spread = f"median {median}, 90 % within {late}, 99 % within {last}; {counted(len(seconds), 'row')}"
        parts.append(("latency", spread))
    for key in ("calls", "rows_from_cache", "prompt_tokens", "completion_tokens"):
        if isinstance(metrics.get(key), int):
            label = "rows without a call"
            if key != "rows_from_cache":
                label = key.replace("_", " ")
            parts.append((label, f"{metrics[key]:,}"))
    return parts


def _is_embedded(model: object) -> bool:
    return isinstance(model, str) and model.startswith(("local/", "llamacpp:"))


def _matrix(summary: ClassificationSummary) -> dict[str, Any]:
    """Return the confusion matrix of the labels with the most mistakes, and the most frequent mistakes.

    A cell is a count, its strength from 0 to 5, and ``right``, ``wrong`` or nothing.
    """
    table = np.hstack([summary.confusion, summary.other[:, None]])
    size = len(summary.labels)
    missed = table.copy()
    missed[np.arange(size), np.arange(size)] = 0
    trouble = missed.sum(axis=1) + missed[:, :size].sum(axis=0)
    shown = np.sort(np.argsort(-trouble, kind="stable")[:_MAX_LABELS])
    columns = [*shown.tolist(), size]
    most = np.maximum(table.sum(axis=1), 1)

    def cell(i: int, j: int) -> tuple[int, int, str]:
        kind = ""
        if table[i, j]:
            kind = "right" if i == j else "wrong"
        shade = min(5, math.ceil(5 * table[i, j] / most[i]))
        return int(table[i, j]), shade, kind

    cells = [[cell(i, j) for j in columns] for i in shown.tolist()]
    names = [*summary.labels, "none"]
    pairs = Counter[tuple[int, int]]()
    for i, j in np.argwhere(missed).tolist():
        pairs[i, j] = int(missed[i, j])
    # By places: a label may be called "none", too.
    common = pairs.most_common(_MAX_PAIRS)
    return {
        "labels": [summary.labels[i] for i in shown],
        "cells": cells,
        "hidden": size - len(shown),
        "pairs": [(names[i], names[j], number) for (i, j), number in common],
        "summary": summary,
    }


def _comparisons(names: Sequence[str], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Compare first and best prompt of each search, and each run with the first; adjust the p-values.

    The adjustment is for the number of comparisons (Holm).
    """
    compared: list[dict[str, Any]] = []
    for name, run in zip(names, runs, strict=True):
        if run.search and run.search.seed is not None and run.search.changed:
            found = analysis.compare(run.search.seed, run.rows)
            compared.append({"name": f"{name}, best prompt", "base": f"{name}, first prompt", "found": found})
    for name, run in zip(names[1:], runs[1:], strict=True):
        found = analysis.compare(runs[0].rows, run.rows)
        compared.append({"name": name, "base": names[0], "found": found})
    tested = [row for row in compared if row["found"] is not None]
    p_values = [row["found"].p_value for row in tested]
    adjusted = holm(p_values).tolist() if p_values else []
    for row, p_value in zip(tested, adjusted, strict=True):
        row["adjusted"] = p_value
    return compared


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
    heights = [point.performance for point in points]
    for point in points:
        if point.performance_interval is not None:
            heights += [point.performance_interval.lower, point.performance_interval.upper]
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
        if len(line) > 1:
            frame.polyline([(point.cost, point.performance) for point in line], kind)
    for point in frontier:
        frame.circle(*_spot(frame, point), 3.0, point.about)
    for point in models:
        _whiskers(frame, point, "axis")
        frame.circle(*_spot(frame, point), 5.0, point.about, kind="wrong")
    for place, point in enumerate(models):
        _name(frame, point, point.name, above=place > 0)
    _whiskers(frame, chosen, "chosen")
    frame.diamond(*_spot(frame, chosen), chosen.about)
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
    settings: Sequence[tuple[str, str]],
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
    settings : sequence of (str, str)
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
    shared = static("report.css").splitlines()
    of_charts = "\n".join(line for line in shared if line.startswith(".chart"))
    style = static("trade.css") + of_charts
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


def _spot(frame: Frame, point: TradePoint) -> tuple[float, float]:
    """Return the place of a point in the drawing."""
    return frame.x(point.cost), frame.y(point.performance)


def _whiskers(frame: Frame, point: TradePoint, kind: str) -> None:
    x, y = _spot(frame, point)
    if point.performance_interval is not None:
        low = frame.y(point.performance_interval.lower)
        high = frame.y(point.performance_interval.upper)
        frame.line((x, low, x, high), kind)
        for end in (low, high):
            frame.line((x - 4, end, x + 4, end), kind)
    if point.cost_interval is not None:
        cheapest = frame.x(point.cost_interval.lower)
        dearest = frame.x(point.cost_interval.upper)
        frame.line((cheapest, y, dearest, y), kind)


def _name(frame: Frame, point: TradePoint, name: str, *, above: bool) -> None:
    """Write a name beside the end of an interval, where no line passes."""
    end = point.performance
    sure = point.performance_interval
    if sure is not None:
        end = sure.upper if above else sure.lower
    x = frame.x(point.cost)
    y = min(frame.y(end) + 5.0, BASE - 4.0)
    if len(name) > _LONGEST:
        name = "\N{HORIZONTAL ELLIPSIS}" + name[1 - _LONGEST :]
    if x > (LEFT + END) / 2:
        frame.text(x - 9, y, name, kind="end")
    else:
        frame.text(x + 9, y, name, kind="start")
