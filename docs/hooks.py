"""The reference: one page per public package, and no list of them to keep."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

SOURCE = Path(__file__).parent.parent / "src"
# What a browser fetches by itself; links are followed by readers only.
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\bhref=["']?(?:https?:)?//"""
)


def public_modules() -> list[str]:
    """Return the modules that have an ``__all__`` and no private part in their name, the root first."""
    found = []
    for path in sorted((SOURCE / "calibrant").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if "._" not in name and _exports(path):
            found.append(name)
    return [name for name in sorted(found) if not _reexported(name)]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the reference at the end of the navigation."""
    pages = [{name: f"reference/{name}.md"} for name in public_modules()]
    config.nav = [*(config.nav or []), {"Reference": pages}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each public module."""
    for name in public_modules():
        text = f"# `{name}`\n\n::: {name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would ask another server for something."""
    del config
    found = _FETCHED.search(output)
    if found:
        start = found.start()
        raise PluginError(
            f"{page.file.src_uri}: expected no address elsewhere, got {output[start : start + 200]}"
        )
    return output


def _exports(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _reexported(name: str) -> bool:
    """Whether the package above already lists the module's names: `calibrant.core.task` in `calibrant.core`."""
    return name.startswith(("calibrant.core.", "calibrant.cli"))
