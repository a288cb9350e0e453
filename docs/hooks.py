"""Pages written while the site is built: one per public module, one about the command line, and the notebook."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.main import get_command

from calibrant import __version__
from calibrant.cli._app import app

SOURCE = Path(__file__).parent.parent / "src"
COMMANDS = "reference/command-line.md"
NOTEBOOK = SOURCE.parent / "notebooks" / "threshold_calibration.ipynb"
# What a browser fetches by itself; links are followed by readers only.
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\bhref=["']?(?:https?:)?//"""
)
_HIDDEN = ("calibrant.core.", "calibrant.cli")  # listed by calibrant.core; described by its commands


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the reference at the end of the navigation, and the version at the foot of every page.

    The header of a site that mike deploys, one folder per version, has a menu of these.
    """
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    config.copyright = f"calibrant {__version__}"
    pages = [{name: f"reference/{name}.md"} for name in public_modules()]
    config.nav = [*(config.nav or []), {"Reference": [{"Command line": COMMANDS}, *pages]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    for name in public_modules():
        text = f"# `{name}`\n\n::: {name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    files.append(File.generated(config, COMMANDS, content=command_line()))
    files.append(File.generated(config, "notebook.md", content=notebook_page()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with the links into the repository that the site has a page for."""
    del config, files
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"({up}../{NOTEBOOK.relative_to(SOURCE.parent)})", f"({up}notebook.md)")


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would ask another server for something."""
    del config
    found = _FETCHED.search(output)
    if found:
        start = found.start()
        raise PluginError(f"{page.file.src_uri}: expected nothing fetched, got {output[start : start + 200]}")
    return output


def notebook_page() -> str:
    """Return the stored notebook as a page: its text, code and outputs, figures inside the page."""
    parts = []
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text'])}```")
            elif "image/png" in data:
                parts.append(
                    f"![A figure of the cell above](data:image/png;base64,{data['image/png'].strip()})"
                )
    page = "\n\n".join(parts)
    return page.replace(
        "(recorded/README.md)", "(https://github.com/gepa-ai/gepa/tree/main/examples/confidence_adapter)"
    )


def public_modules() -> list[str]:
    """Return the modules that have an ``__all__`` and no private part in their name, the root first."""
    found = []
    for path in (SOURCE / "calibrant").rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if "._" not in name and not name.startswith(_HIDDEN) and _exports(path):
            found.append(name)
    return sorted(found)


def command_line() -> str:
    """Return the page about the commands, with their arguments and options."""
    lines = [
        "# Command line\n",
        "Every command takes `--help`. Exit codes: 0 done, 1 failed, 2 bad input, 3 below a gate, 130 interrupted.\n",
    ]
    for words, command in _leaves(get_command(app), ("calibrant",)):
        lines += [f"## `{' '.join(words)}`\n", f"{_text(command.help or '')}\n"]
        rows = [row for parameter in command.params if (row := _row(parameter)) is not None]
        if rows:
            lines += ["| argument or option | meaning | default |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _leaves(command: Any, words: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:  # noqa: ANN401
    """Return the commands without subcommands, as typer keeps them; some releases bring a click of their own."""
    children = getattr(command, "commands", {})
    if not children:
        return [(words, command)]
    return [leaf for name, child in children.items() for leaf in _leaves(child, (*words, name))]


def _row(parameter: Any) -> str | None:  # noqa: ANN401
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return None
    names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name]
    shown = ", ".join(f"`{name}`" for name in names)
    default = "required" if parameter.required else ""
    if isinstance(parameter.default, str | int | float) and not isinstance(parameter.default, bool):
        default = f"`{parameter.default}`"
    return f"| {shown} | {_text(getattr(parameter, 'help', None) or '')} | {default} |"


def _text(words: str) -> str:
    """Return help on one line, as Markdown: nothing in it is markup but code, and rich's escapes are gone."""
    return re.sub(r"([|<\[*_])", r"\\\1", " ".join(words.replace("\\[", "[").split()))


def _exports(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)
