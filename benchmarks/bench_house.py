"""The size of the house: code, names, docstrings, and what a row and a command run through, beside its peers.

Of some other libraries those that are installed are counted, too, formatted as this code is. Files are read, not
imported; rows and commands run in processes of their own.

    python benchmarks/bench_house.py [--list KIND]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import _house as house

PAGES = tuple(house.ROOT / name for name in ("docs", "README.md", "notebooks", "examples"))
PEERS = ("gepa", "llm_structured_confidence", "httpx", "pydantic_evals", "dspy")
SETTLE = r"_?settle\w*|is_settled|unasked"  # functions that find out by the first row what a model can do
LINE_LENGTH = 110  # ours, from pyproject.toml
RUNS = 5
TASK = """
name = "animals"
labels = ["cat", "dog"]
prompt = "Which animal?"
field = "category"

[data]
train = "train.jsonl"
validation = "validation.jsonl"
test = "test.jsonl"

[model]
name = "hosted_vllm/fake"
"""
# Prints a line of names behind whatever the command itself prints.
COMMAND = """
import json, sys
from calibrant.cli._app import main
try:
    main()
except SystemExit as done:
    if done.code:
        raise
print("\\n" + json.dumps(sorted(name for name in sys.modules if name.split(".")[0] == "calibrant")))
"""
COLUMNS = (
    *("modules", "code lines", "tokens", "a line", "> 40", "names", "no page"),
    *("riddles: bare", "return", "other verb"),
)
LEGEND = f"""
tokens: names, operators, numbers and texts in code; comments and docstrings are left out. a line: tokens a code line.
> 40: functions of more than {house.FUNCTION_LINES} code lines, docstring and parameters left out.
names: in `__all__` of public modules, once for each package. no page: those that no page, notebook or example has.
riddles: docstrings that open with a question, such as "What ...", "Return what ..." and "Say what ...".
"""
Table = list[tuple[str, ...]]


def peer(name: str) -> list[house.Module]:
    """Return the modules of an installed library as `ruff format` leaves them; none where it is missing."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        copy = copytree(Path(spec.origin).parent, Path(folder) / name, ignore=ignore_patterns("__pycache__"))
        command = (sys.executable, "-m", "ruff", "format", "--isolated", "--quiet", "--no-cache")
        subprocess.run([*command, f"--line-length={LINE_LENGTH}", copy], check=True)
        return house.read(copy)


def run(command: Sequence[object], **environment: str) -> str:
    """Return the standard output of Python with this repository's source first on its path.

    Raises
    ------
    RuntimeError
        It ended with another exit code than 0.
    """
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(house.SOURCE.parent), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"Expected a run without a fault, got exit code {done.returncode}:\n{done.stderr}")
    return done.stdout


def loaded() -> dict[str, list[str]]:
    """Return the modules of ours that commands on a plain task have loaded when they end, by command."""
    sys.path.insert(0, str(house.ROOT / "tests" / "shared"))
    from fault_server import FaultServer

    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name, FaultServer(["cat", "dog"]) as server:
        folder = Path(name)
        write_task(folder)
        for title, command in commands(folder).items():
            printed = run(["-c", COMMAND, *command], HOSTED_VLLM_API_BASE=server.api_base)
            found[title] = json.loads(printed.splitlines()[-1])
    return found


def write_task(folder: Path) -> None:
    """Write a task file, its rows and a file of texts without answers into a folder."""
    (folder / "task.toml").write_text(TASK, encoding="utf-8")
    for split in ("train", "validation", "test"):
        rows = [
            {"input": f"{split} {n}: a {label}", "answer": label}
            for n in range(4)
            for label in ("cat", "dog")
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    (folder / "new.csv").write_text("input\nmeow\nwoof\n", encoding="utf-8")


def commands(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return commands on the task in a folder; later ones use what earlier ones wrote."""
    task, searched = folder / "task.toml", folder / "run"
    return {
        "evaluate": ("evaluate", task, "--out", folder / "out", "--no-cache"),
        "optimize": ("optimize", task, "--max-metric-calls", 30, "--out", searched),
        "label RUN": ("label", searched, folder / "new.csv", "--out", folder / "labelled"),
    }


def crossed(side: str, *options: str) -> dict[str, Any]:
    """Return the counts of one warm row in an adapter."""
    counts: dict[str, Any] = json.loads(run([Path(__file__).parent / "_house_row.py", side, *options]))
    return counts


def seconds(*command: str) -> float:
    """Return the time of the fastest of some runs of Python, from start to end."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run(command)
        times.append(time.perf_counter() - start)
    return min(times)


def sizes(name: str, modules: Sequence[house.Module]) -> tuple[str, ...]:
    """Return the cells about code: modules, code lines, tokens, tokens a line, long functions."""
    return (
        name,
        f"{len(modules):,}",
        f"{house.code_lines(modules):,}",
        f"{house.tokens(modules):,}",
        f"{house.tokens_a_line(modules):.2f}",
        f"{len(list(house.long_functions(modules))):,}",
    )


def packages(modules: Sequence[house.Module], words: frozenset[str]) -> Table:
    """Return a line for each package, and their sum."""
    names = house.public_names(modules)
    table = []
    for title, part in {**house.by_part(modules), "all packages": list(modules)}.items():
        own = {key for key in names if key[0] in {module.package for module in part}}
        kinds = Counter(house.riddle_kind(place.note) for place in house.riddles(part))
        counts = (len(own), sum(name not in words for _, name in own))
        riddles = (kinds[kind] for kind in ("bare", "return", "other verb"))
        table.append((*sizes(title, part), *(f"{count:,}" for count in (*counts, *riddles))))
    return table


def totals(modules: Sequence[house.Module], words: frozenset[str]) -> Table:
    """Return the figures of the house as a whole that no table of packages can hold."""
    names = house.public_names(modules)
    distinct = set(names.values())
    unread = {home for (_, name), home in names.items() if name not in words}
    riddles = list(house.riddles(modules))
    repeated = house.repeated_classes(modules)
    kinds = list(house.label_kind_checks(modules))
    tests = house.read(house.ROOT / "tests")
    private = list(house.private_uses(tests, modules))
    places = sum(len(found) for found in repeated.values())
    return [
        ("public names, distinct objects", f"{len(distinct):,}, on no page {len(unread):,}"),
        ("class names defined more than once", f"{len(repeated)} ({places} classes)"),
        ("riddles", f"{len(riddles):,} in {_modules(riddles)} modules"),
        ("uses of TemporaryDirectory", f"{len(list(house.uses(modules, 'TemporaryDirectory')))}"),
        ("imports inside functions that close a circle", f"{len(list(house.circular_imports(modules)))}"),
        ("definitions of settle*", f"{len(list(house.definitions_like(modules, SETTLE)))}"),
        ("isinstance on kinds of labels outside core", f"{len(kinds)} in {_modules(kinds)} modules"),
        (
            "uses of non-public names in tests",
            f"{len(private)} of {len({place.name for place in private})} names in {_modules(private)} modules",
        ),
        ("code lines of tests", f"{house.code_lines(tests):,}"),
    ]


def _modules(places: Sequence[house.Place]) -> int:
    """Return the number of modules that places lie in."""
    return len({place.module for place in places})


def running(modules: Sequence[house.Module]) -> Table:
    """Return what commands load and take, and what one warm row crosses."""
    table: Table = [
        (f"modules that `calibrant {command}` of a plain task loads", f"{len(names)} of {len(modules)}")
        for command, names in loaded().items()
    ]
    for title, options in (("one row", ()), ("one row with traces", ("--traces",))):
        for side in ("calibrant", "gepa"):
            row = crossed(side, *options)
            frames = row["frames"]
            stacks = ", ".join(f"{count} {kind}" for kind, count in frames.items())
            figure = f"{len(row['modules'])} modules, {len(row['functions'])} functions"
            table.append((f"{title} in the adapter of {side}", figure))
            table.append(("    own frames above the model", f"{sum(frames.values())} ({stacks})"))
    empty, imported = seconds("-c", ""), seconds("-c", "import calibrant")
    helped = seconds("-c", "from calibrant.cli._app import main; main()", "--help")
    table.append(("Python alone", f"{empty:.3f} s"))
    table.append(("`import calibrant`", f"{imported:.3f} s"))
    table.append(("`calibrant --help`", f"{helped:.3f} s"))
    return table


def print_table(table: Table) -> None:
    """Print lines of cells, the first to the left and figures to the right."""
    width = max(len(line[0]) for line in table)
    widths = [max(len(column), 7) for column in COLUMNS]
    for line in table:
        cells = [cell.rjust(wide) for cell, wide in zip(line[1:], widths, strict=False)]
        print("  ".join((line[0].ljust(width), *cells)).rstrip())


def listed(
    modules: Sequence[house.Module], words: frozenset[str]
) -> dict[str, Callable[[], Sequence[object]]]:
    """Return the functions that list the places of a kind."""
    names = house.public_names(modules)
    every = {f"{package}.{name}": home for (package, name), home in sorted(names.items())}
    return {
        "long-functions": lambda: list(house.long_functions(modules)),
        "riddles": lambda: list(house.riddles(modules)),
        "names": lambda: [f"{name}  {home}" for name, home in every.items()],
        "no-page": lambda: [
            f"{name}  {home}" for name, home in every.items() if name.rpartition(".")[2] not in words
        ],
        "classes": lambda: [place for found in house.repeated_classes(modules).values() for place in found],
        "loaded": lambda: [f"{command}  {name}" for command, names in loaded().items() for name in names],
        "circular-imports": lambda: list(house.circular_imports(modules)),
        "label-kinds": lambda: list(house.label_kind_checks(modules)),
        "private-uses": lambda: list(house.private_uses(house.read(house.ROOT / "tests"), modules)),
        "row": lambda: crossed("calibrant", "--traces")["functions"],
        "row-modules": lambda: crossed("calibrant", "--traces")["modules"],
    }


def main() -> None:
    """Print the tables, or the places of a kind."""
    sys.path.insert(0, str(house.SOURCE.parent))
    modules = house.read(house.SOURCE)
    words = house.words_of(PAGES)
    kinds = listed(modules, words)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", choices=sorted(kinds), help="print the places behind a figure instead")
    options = parser.parse_args()
    if options.list is not None:
        print(*kinds[options.list](), sep="\n")
        return
    table = [("", *COLUMNS), *packages(modules, words), sizes("tests", house.read(house.ROOT / "tests"))]
    table += [sizes(name, found) for name in PEERS if (found := peer(name))]
    print_table(table)
    print(LEGEND)
    for title, figure in (*totals(modules, words), *running(modules)):
        print(f"{title:66} {figure}")
    for kind in ("long-functions", "circular-imports", "classes"):
        print(f"\n{kind}:", *(kinds[kind]() or ["none"]), sep="\n")


if __name__ == "__main__":
    main()
