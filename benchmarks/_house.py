"""Counts in Python source: code lines, tokens, long functions, docstrings, imports, names; no module is imported.

Used by bench_house.py, which prints them, and by check_house.py, which holds the limits.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True, kw_only=True)
class Import:
    """An import of a module at run time.

    Attributes
    ----------
    module : str
        Dotted name of the imported module.
    node : ast.AST
        The statement.
    is_local : bool
        True inside a function.
    """

    module: str
    node: ast.AST
    is_local: bool


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
    def tokens(self) -> int:
        """Number of tokens on the lines that hold code: names, operators, numbers and texts."""
        tokens = tokenize.generate_tokens(io.StringIO(self.source).readline)
        return sum(token.type not in _NO_CODE and token.start[0] in self.code_lines for token in tokens)

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

    def imports(self, known: Container[str]) -> Iterator[Import]:
        """Yield the imports of `known` modules; those under ``if TYPE_CHECKING`` are left out."""
        nodes: list[tuple[ast.AST, bool]] = [(self.tree, False)]
        while nodes:
            node, is_local = nodes.pop()
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                nodes += [(child, is_local) for child in node.orelse]
                continue
            for name in _imported_modules(node, known):
                yield Import(module=name, node=node, is_local=is_local)
            is_local = is_local or isinstance(node, Function)
            nodes += [(child, is_local) for child in ast.iter_child_nodes(node)]

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


def tokens(modules: Iterable[Module]) -> int:
    """Return the number of tokens on code lines."""
    return sum(module.tokens for module in modules)


def tokens_a_line(modules: Sequence[Module]) -> float:
    """Return the mean number of tokens on a code line, to two decimals; 0 without code."""
    lines = code_lines(modules)
    return round(tokens(modules) / lines, 2) if lines else 0.0


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


def uses(modules: Iterable[Module], name: str) -> Iterator[Place]:
    """Yield the places in code that use a name, of a variable or behind a dot."""
    for module in modules:
        for node in ast.walk(module.tree):
            if _last_name(node) == name:
                yield module.place(name, node)


def definitions_like(modules: Iterable[Module], pattern: str) -> Iterator[Place]:
    """Yield the functions whose whole names match a regular expression."""
    for module in modules:
        for name, node in module.definitions:
            if isinstance(node, Function) and re.fullmatch(pattern, node.name):
                yield module.place(name, node)


def circular_imports(modules: Iterable[Module]) -> Iterator[Place]:
    """Yield the imports inside functions of modules that import the importing one, be it through others."""
    known = {module.name: module for module in modules}
    imports = {name: list(module.imports(known)) for name, module in known.items()}
    # The `__init__` of a package imports lazily, for users.
    edges = {
        name: {found.module for found in imports[name]}
        for name, module in known.items()
        if module.path.stem != "__init__"
    }
    for name, module in known.items():
        for found in imports[name]:
            if found.is_local and name in _reached(edges, found.module):
                yield module.place(f"{name} -> {found.module}", found.node)


def label_kind_checks(
    modules: Sequence[Module], root: str = "LabelSet", home: str = "core"
) -> Iterator[Place]:
    """Yield the ``isinstance`` checks on kinds of labels outside the package that defines them.

    Parameters
    ----------
    modules : sequence of Module
        The source.
    root : str, default "LabelSet"
        The class that all kinds derive from.
    home : str, default "core"
        Last part of the name of the package that may tell kinds apart.
    """
    kinds = _subclasses(modules, root)
    for module in modules:
        if home in module.package.split(".")[1:2]:
            continue
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]):
                    found = {_last_name(part) for part in ast.walk(classes)}
                    if found & kinds:
                        yield module.place(ast.unparse(node), node)


def private_uses(tests: Iterable[Module], modules: Sequence[Module]) -> Iterator[Place]:
    """Yield the imports in tests of names that no public module exports.

    Parameters
    ----------
    tests : iterable of Module
        The tests.
    modules : sequence of Module
        The source.
    """
    known = {module.name: module for module in modules}
    public = set(public_names(modules).values()) | {
        name for name, module in known.items() if module.is_public
    }
    root = modules[0].name.partition(".")[0]
    for test in tests:
        for node in ast.walk(test.tree):
            match node:
                case ast.ImportFrom(module=str(source)) if source.partition(".")[0] == root:
                    homes = [_home(known, source, alias.name) for alias in node.names]
                case ast.Import():
                    names = [alias.name for alias in node.names]
                    homes = [name for name in names if name.partition(".")[0] == root]
                case _:
                    continue
            for home in homes:
                if home not in public:
                    yield test.place(home, node)


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


def _imported_modules(node: ast.AST, known: Container[str]) -> list[str]:
    """Return the `known` modules that a statement imports; of a package the modules that it names."""
    match node:
        case ast.ImportFrom(module=str(source), level=0):
            names = [f"{source}.{alias.name}" for alias in node.names]
            found = {name if name in known else source for name in names}
            return sorted(name for name in found if name in known)
        case ast.Import():
            return [alias.name for alias in node.names if alias.name in known]
    return []


def _last_name(node: ast.AST) -> str | None:
    """Return the name of a variable or of an attribute; None for other nodes."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def _reached(edges: Mapping[str, Iterable[str]], start: str) -> set[str]:
    """Return the modules that `start` imports, directly or through others."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in edges.get(waiting.pop(), ()):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return reached


def _subclasses(modules: Iterable[Module], root: str) -> set[str | None]:
    """Return the names of a class and of those that derive from it."""
    bases = {
        node.name: {_last_name(base) for base in node.bases}
        for module in modules
        for _, node in module.definitions
        if isinstance(node, ast.ClassDef)
    }
    kinds: set[str | None] = {root}
    while more := {name for name, found in bases.items() if found & kinds} - kinds:
        kinds |= more
    return kinds


def _first(node: ast.stmt) -> int:
    """Return the line that a statement begins on, its decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _end(node: ast.stmt) -> int:
    """Return the last line of a statement."""
    return node.lineno if node.end_lineno is None else node.end_lineno
