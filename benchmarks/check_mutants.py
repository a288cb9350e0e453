"""Changes seeded places of the source one at a time, and prints the changes that no test notices.

A place is a comparison, a boolean operator, a number or boolean that stands for itself, or a returned value. Only the
tests of its package run, against a copy of the source in a temporary folder; the repository is not written to.

    python benchmarks/check_mutants.py [--count 50] [--seed 0] [--package metrics]
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "calibrant"
TESTS = ROOT / "tests"
SLOW = "not (real_model or slow or packaging or ray or browser)"
SECONDS = 900  # a mutant that never ends is noticed, too

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change at one place.

    Attributes
    ----------
    path : Path
        The file, below `SOURCE`.
    line : int
        The line where the changed expression begins.
    start, end : int
        The bytes of the file that are replaced.
    before, after : str
        The expression, and what takes its place.
    """

    path: Path
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {_short(self.before)}  ->  {_short(self.after)}"

    @property
    def tests(self) -> list[Path]:
        """The tests of its package, or those of the whole where the package has none of its own."""
        package = _package(self.path)
        places = (TESTS / package, TESTS / "properties" / f"test_{package}.py", TESTS / f"test_{package}.py")
        return [place for place in places if place.exists()]


def _package(path: Path) -> str:
    """Return the name of the package, or of the module on the first level, that a file below `SOURCE` belongs to."""
    return path.parts[0].removesuffix(".py")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _changed(node: ast.expr) -> ast.expr | None:
    """Return what an expression becomes; None if it is left alone."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=others) if type(operator) in _OPPOSITE:
            return ast.Compare(left=left, ops=[_OPPOSITE[type(operator)]()], comparators=others)
        case ast.BoolOp(op=ast.And(), values=values):
            return ast.BoolOp(op=ast.Or(), values=values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return ast.BoolOp(op=ast.And(), values=values)
        case ast.Constant(value=bool(value)):
            return ast.Constant(value=not value)
        case ast.Constant(value=int() | float() as number):
            return ast.Constant(value=number + 1)
    return None


def _own_nodes(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield every expression inside a function that can be changed, with what it becomes."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen = set[ast.AST]()
    for function in functions:
        for statement in function.body:
            for node in ast.walk(statement):
                if node in seen:
                    continue
                seen.add(node)
                if isinstance(node, ast.Return) and node.value is not None:
                    if not isinstance(node.value, ast.Constant):
                        yield node.value, ast.Constant(value=None)
                elif isinstance(node, ast.expr):
                    new = _changed(node)
                    if new is not None:
                        yield node, new


def mutants_of(path: Path) -> list[Mutant]:
    """Return every change that can be made to a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    mutants = []
    for old, new in _own_nodes(ast.parse(source)):
        start = starts[old.lineno - 1] + old.col_offset
        end = starts[(old.end_lineno or old.lineno) - 1] + (old.end_col_offset or 0)
        mutants.append(
            Mutant(
                path=path.relative_to(SOURCE),
                line=old.lineno,
                start=start,
                end=end,
                before=source[start:end].decode(),
                after=f"({ast.unparse(new)})",
            )
        )
    return mutants


def chosen(count: int, seed: int, package: str | None) -> list[Mutant]:
    """Return `count` changes drawn by a seed from the packages that have tests, or from one package."""
    paths = [
        path for path in sorted(SOURCE.rglob("*.py")) if package in {None, _package(path.relative_to(SOURCE))}
    ]
    every = [mutant for path in paths for mutant in mutants_of(path)]
    tested = [mutant for mutant in every if mutant.tests]
    return random.Random(seed).sample(tested, min(count, len(tested)))


def first_failure(mutant: Mutant, copy: Path) -> str:
    """Run the tests against a copy of the source with one change, and return the first that fails; empty if none does.

    Parameters
    ----------
    mutant : Mutant
        The change; it is undone afterwards.
    copy : Path
        The folder that holds the copied package.
    """
    path = copy / "calibrant" / mutant.path
    source = path.read_bytes()
    path.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
    options = ["-q", "-x", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", SLOW]
    command = [sys.executable, "-m", "pytest", *options, *map(str, mutant.tests)]
    settings = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"the tests took more than {SECONDS} seconds"
    finally:
        path.write_bytes(source)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if failed is None:
        return "" if done.returncode == 0 else f"pytest ended with {done.returncode}"
    return failed[1]


def survivors(mutants: Sequence[Mutant]) -> Iterator[Mutant]:
    """Yield the changes that no test notices; print every result as it comes."""
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE, Path(folder) / "calibrant", ignore=ignored)
        for number, mutant in enumerate(mutants, 1):
            began = time.monotonic()
            failure = first_failure(mutant, Path(folder))
            seconds = time.monotonic() - began
            print(f"{number:3} of {len(mutants)}  {seconds:4.0f} s  {mutant}", flush=True)
            print(f"      {f'noticed by {failure}' if failure else 'SURVIVED'}", flush=True)
            if not failure:
                yield mutant


def main() -> None:
    """Print what survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="changes to try (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="which of them (default 0)")
    parser.add_argument("--package", help="only of this package, such as metrics")
    options = parser.parse_args()
    mutants = chosen(options.count, options.seed, options.package)
    found = list(survivors(mutants))
    print(f"\n{len(mutants) - len(found)} of {len(mutants)} changes were noticed.")
    for mutant in found:
        print(f"  survived: {mutant}")


if __name__ == "__main__":
    main()
