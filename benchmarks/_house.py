"""Counts in Python source: code lines, long functions, docstrings, exported names; no module is imported.

Used by bench_house.py, which prints them, and by check_house.py, which holds the limits.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "calibrant"
FUNCTION_LINES = 40  # code lines of the body

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function

_NO_CODE = frozenset(
    (
        tokenize.ENCODING,
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
)
# A first line that opens as a riddle. "Return whether" is how English asks a predicate; "Return when" names a moment.
_QUESTION = "what|whatever|who|whoever|whom|which|whichever|how|why"
_RIDDLE = re.compile(
    rf"(?P<bare>{_QUESTION}|whose|where|wherever|when|whenever|whether)\b"
    rf"|(?P<verb>\w+),? (?:{_QUESTION})\b"
    r"|(?P<giving>return|yield) (?:where|whose)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A named spot in the source.

    Attributes
    ----------
    name : str
        Dotted name of the module, class or function.
    module : str
        Dotted name of the module.
    where : str
        Path and line.
    note : str
        The figure or text that put it on a list.
    """

    name: str
    module: str
    where: str
    note: str = ""

    def __str__(self) -> str:
        return "  ".join(filter(None, (self.where, self.name, self.note)))


class Module:
    """A parsed module.

    Parameters
    ----------
    path : Path
        Its file.
    name : str
        Its dotted name; of ``__init__.py`` that of the package.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.source = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)

    @property
    def package(self) -> str:
        """The package that the file lies in."""
        return self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]

    @property
    def is_public(self) -> bool:
        """True where no part of the name begins with an underscore."""
        return not any(part.startswith("_") for part in self.name.split("."))

    @cached_property
    def code_lines(self) -> frozenset[int]:
        """Numbers of the lines that hold code: no blank line, comment or docstring."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.source).readline):
            if token.type not in _NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str())):  # a docstring, or a text used as a comment
                    lines.difference_update(range(node.lineno, _end(node) + 1))
        return frozenset(lines)

    @cached_property
    def definitions(self) -> list[tuple[str, Documented]]:
        """The module, its classes and its functions, nested ones included, with their dotted names."""
        found: list[tuple[str, Documented]] = []

        def visit(node: ast.AST, name: str) -> None:
            if isinstance(node, Documented):
                name = self.name if isinstance(node, ast.Module) else f"{name}.{node.name}"
                found.append((name, node))
            for child in ast.iter_child_nodes(node):
                visit(child, name)

        visit(self.tree, self.name)
        return found

    @cached_property
    def exports(self) -> tuple[str, ...]:
        """The names in ``__all__``; none without one."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and any(ast.unparse(one) == "__all__" for one in node.targets):
                return tuple(ast.literal_eval(node.value))
        return ()

    @cached_property
    def imported(self) -> Mapping[str, tuple[str, str]]:
        """Module and name behind every imported name; ``if TYPE_CHECKING`` counts, as lazy packages import there."""
        return {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0
            for alias in node.names
        }

    def place(self, name: str, node: ast.AST, note: str = "") -> Place:
        """Return a place in this module."""
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return Place(name=name, module=self.name, where=f"{path}:{getattr(node, 'lineno', 1)}", note=note)


def read(folder: Path, name: str | None = None) -> list[Module]:
    """Return the modules below a folder, in order; `name` is that of its package, the folder's by default."""
    modules = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        modules.append(
            Module(path, ".".join((name or folder.name, *(part for part in parts if part != "__init__"))))
        )
    return modules


def code_lines(modules: Iterable[Module]) -> int:
    """Return the number of code lines."""
    return sum(len(module.code_lines) for module in modules)


def by_part(modules: Iterable[Module]) -> dict[str, list[Module]]:
    """Return modules by the first part below the root package; those of the root under its own name."""
    parts: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        parts[".".join(module.package.split(".")[:2])].append(module)
    return dict(sorted(parts.items()))


def riddles(modules: Iterable[Module]) -> Iterator[Place]:
    """Yield the definitions whose docstring opens with a question instead of a verb and a noun."""
    for module in modules:
        for name, node in module.definitions:
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            if is_riddle(first):
                yield module.place(name, node, first)


def is_riddle(line: str) -> bool:
    """Return whether the first line of a docstring opens as a riddle.

    Examples
    --------
    >>> is_riddle("Return what is held."), is_riddle("Return whether a label is known.")
    (True, False)
    """
    return _RIDDLE.match(line) is not None


def riddle_kind(line: str) -> str:
    """Return the opening of a riddle: ``bare``, ``return`` or ``other verb``."""
    found = _RIDDLE.match(line)
    if found is None:
        raise ValueError(f"Expected a line that opens as a riddle, got {line!r}: ask `is_riddle` before.")
    if found["bare"]:
        return "bare"
    verb = (found["verb"] or found["giving"]).lower()
    return "return" if verb == "return" else "other verb"


def long_functions(modules: Iterable[Module], limit: int = FUNCTION_LINES) -> Iterator[Place]:
    """Yield the functions of more than `limit` code lines in their bodies: no docstring, no parameters."""
    for module in modules:
        for name, node in module.definitions:
            if isinstance(node, Function):
                count = len(module.code_lines.intersection(range(_first(node.body[0]), _end(node) + 1)))
                if count > limit:
                    yield module.place(name, node, f"{count} code lines")


def repeated_classes(modules: Iterable[Module]) -> dict[str, list[Place]]:
    """Return the places of classes by name, where a name is defined more than once."""
    places: dict[str, list[Place]] = defaultdict(list)
    for module in modules:
        for name, node in module.definitions:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module.place(name, node))
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def public_names(modules: Sequence[Module]) -> dict[tuple[str, str], str]:
    """Return the exported names of public modules: (package, name) to the dotted name of the definition.

    A name that both a package and a public module of it export counts once.
    """
    known = {module.name: module for module in modules}
    return {
        (module.package, name): _home(known, module.name, name)
        for module in modules
        if module.is_public
        for name in module.exports
    }


def words_of(folders: Iterable[Path]) -> frozenset[str]:
    """Return the identifiers in pages, notebooks and examples."""
    kinds = {".md", ".py", ".toml", ".ipynb"}
    files = [path for folder in folders for path in ([folder] if folder.is_file() else folder.rglob("*"))]
    return frozenset(
        word
        for path in files
        if path.suffix in kinds
        for word in re.findall(r"[A-Za-z_]\w*", path.read_text(encoding="utf-8"))
    )


def _home(known: Mapping[str, Module], module: str, name: str) -> str:
    """Return the dotted name of a definition, found by following imports."""
    while module in known and name in known[module].imported:
        module, name = known[module].imported[name]
    return f"{module}.{name}"


def _first(node: ast.stmt) -> int:
    """Return the line that a statement begins on, its decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _end(node: ast.stmt) -> int:
    """Return the last line of a statement."""
    return node.lineno if node.end_lineno is None else node.end_lineno
