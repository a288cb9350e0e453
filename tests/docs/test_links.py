"""Tests of links between the repository's pages, as a host of repositories shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(
    r"""\]\((?P<inline>[^)\s]+)|^\[[^\]]+\]:\s+(?P<named>\S+)|(?:href|src)="(?P<html>[^"]+)\"""", re.MULTILINE
)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//|#")


def pages() -> list[Path]:
    """Return the Markdown files of the repository, those of tools and builds left out."""
    left_out = {"site", "node_modules"}
    found = [path.relative_to(ROOT) for path in ROOT.rglob("*.md")]
    return sorted(
        path for path in found if not any(part in left_out or part[0] == "." for part in path.parts[:-1])
    )


def relative_links(text: str) -> list[str]:
    """Return the paths that the links of a page lead to, relative to it."""
    links = [str(found[found.lastgroup or 0]) for found in LINK.finditer(FENCED.sub("", text))]
    return [link.partition("#")[0] for link in links if not ELSEWHERE.match(link)]


@pytest.mark.parametrize("page", pages(), ids=str)
def test_relative_links_lead_to_files(page: Path) -> None:
    """Every relative link of a page leads to a file or folder of the repository."""
    links = relative_links((ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / page.parent / link).exists()] == []


def test_links_are_found() -> None:
    """Links in text, below it and in HTML are found; code and other places are not."""
    text = (
        '[a](b.md#c) ![d](e.svg)\n[f]: g.md\n<a href="h/">\n[i](https://j) [k](#l)\n```sh\n[m](n.md)\n```\n'
    )
    assert relative_links(text) == ["b.md", "e.svg", "g.md", "h/"]
