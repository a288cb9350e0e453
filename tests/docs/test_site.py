"""Tests of the built site in a real browser, from the disk; run `make docs` first."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from _pages import PAGES, ROOT, name_of

SITE = ROOT / "site"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site: run make docs"),
]


def loaded(address: str, directory: Path) -> str:
    """Return a page after its scripts ran, from a browser without any network."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's package chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--virtual-time-budget=10000"]
    nowhere = "--host-resolver-rules=MAP * ~NOTFOUND"
    profile = f"--user-data-dir={directory}"
    command = [str(CHROMIUM), *options, nowhere, profile, "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)  # noqa: S603
    return done.stdout


def test_search_works_without_a_server(tmp_path: Path) -> None:
    """The search of a page opened from file:// finds text of another page."""
    page = loaded(f"{(SITE / 'index.html').as_uri()}?q=label+mass", tmp_path)
    assert re.search(r"\d+ matching documents", page)
    assert 'href="concepts.html' in page or "/concepts.html" in page


def test_every_page_is_built_and_reached_from_the_first() -> None:
    """Every page is built, and the first page links to it."""
    first = (SITE / "index.html").read_text(encoding="utf-8")
    for page in PAGES:
        built = name_of(page).removesuffix(".md") + ".html"
        assert (SITE / built).exists(), built
        assert f'href="{built}"' in first, built
