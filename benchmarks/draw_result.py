"""Draw the picture of README from an evaluation: two charts of its report, in the colours of both themes.

The charts are about the evaluated rows; the mark is the threshold that the run certified on rows of its own.

make demo
python benchmarks/draw_result.py runs/judged --certified-by runs/demo
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from pathlib import Path

from calibrant.reports import write_report
from calibrant.runs import SavedRows

OUT = Path(__file__).parent.parent / "docs" / "assets" / "result.svg"
CHARTS = {
    "histogram": "How sure it is, when right and when wrong",
    "risk": "Errors among the answers it accepts, surest first",
}
NAMES = ("back", "ink", "soft", "line", "right", "wrong", "mark")
LIGHT = ("#fff", "#1b1f24", "#57606a", "#d0d7de", "#00695c", "#c8500a", "#7a3e8e")
DARK = ("#14191f", "#e6e9ec", "#a0aab4", "#39424c", "#4db6ac", "#f0883e", "#d9a0ea")
STYLE = """
text { font: 13px system-ui, sans-serif; fill: var(--ink) } .head { font-size: 15px; font-weight: 600 }
.middle { text-anchor: middle } .end { text-anchor: end } line, polyline { fill: none }
.grid { stroke: var(--line) } .axis { stroke: var(--soft) } .right { fill: var(--right) } .wrong { fill: var(--wrong) }
.hatch { stroke: var(--back); stroke-width: 2 } .curve { stroke: var(--right); stroke-width: 2.5 }
.target { stroke: var(--mark); stroke-dasharray: 3 3; stroke-width: 1.5 } .certified { fill: var(--mark) }
"""


def drawing(page: str) -> str:
    """Return one SVG file with the charts of a report side by side."""
    charts = {
        name: re.search(
            rf'<svg class="chart" (viewBox="[^"]+")[^>]*?[\w-]*{name}-t[^>]*>(.*?)</svg>', page, re.DOTALL
        )
        for name in CHARTS
    }
    parts = []
    for place, (name, found) in enumerate(charts.items()):
        if found is None:
            raise SystemExit(f"the report has no chart {name}: give a finished run")
        x = 480 * place
        parts.append(f'<text class="head" x="{x + 16}" y="30">{CHARTS[name]}</text>')
        parts.append(f'<svg x="{x + 8}" y="42" width="460" height="320" {found[1]}>{found[2]}</svg>')
    size = 'viewBox="0 0 960 372" width="960" height="372"'
    light, dark = (
        "; ".join(f"--{name}: {color}" for name, color in zip(NAMES, colors, strict=True))
        for colors in (LIGHT, DARK)
    )
    style = f"svg {{ {light} }}\n@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}\n{STYLE}"
    back = '<rect width="960" height="372" rx="8" fill="var(--back)"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{style}</style>{back}'
        + "".join(parts)
        + "</svg>\n"
    )


def main() -> None:
    """Write the report of an evaluation aside, and the picture into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evaluation", type=Path)
    parser.add_argument("--certified-by", type=Path, required=True, help="run whose threshold is marked")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as aside:
        copied = Path(aside) / options.evaluation.name
        shutil.copytree(options.evaluation, copied)
        calibration = json.loads((options.certified_by / "calibration.json").read_text(encoding="utf-8"))
        accepted = SavedRows.load(copied).confidence >= calibration["certified"]["threshold"]
        calibration["certified"]["coverage"] = float(accepted.mean())  # of these rows
        (copied / "calibration.json").write_text(json.dumps(calibration), encoding="utf-8")
        page = write_report(copied, out=Path(aside) / "report.html")
        OUT.write_text(drawing(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(OUT)


if __name__ == "__main__":
    main()
