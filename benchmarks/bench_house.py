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
EVALUATE = """
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
    *("modules", "code lines", "> 40", "names", "no page"),
    *("riddles: bare", "return", "other verb"),
)
LEGEND = f"""
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


def loaded() -> list[str]:
    """Return the modules of ours that ``calibrant evaluate`` of a plain task has loaded when it ends."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))
    from fault_server import FaultServer

    with tempfile.TemporaryDirectory() as name, FaultServer(["cat", "dog"]) as server:
        folder = Path(name)
        (folder / "task.toml").write_text(TASK, encoding="utf-8")
        for split in ("train", "validation", "test"):
            rows = [{"input": f"{split}: a {label}", "answer": label} for label in ("cat", "dog")]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
        command = ("evaluate", folder / "task.toml", "--out", folder / "out", "--no-cache")
        printed = run(["-c", EVALUATE, *command], HOSTED_VLLM_API_BASE=server.api_base)
    names: list[str] = json.loads(printed.splitlines()[-1])
    return names


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
    """Return the cells about code: modules, code lines, long functions."""
    counts = (
        len(modules),
        house.code_lines(modules),
        len(list(house.long_functions(modules))),
    )
    return (name, *(f"{count:,}" for count in counts))


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
    places = sum(len(found) for found in repeated.values())
    return [
        ("public names, distinct objects", f"{len(distinct):,}, on no page {len(unread):,}"),
        ("class names defined more than once", f"{len(repeated)} ({places} classes)"),
        ("riddles", f"{len(riddles):,} in {len({place.module for place in riddles})} modules"),
    ]


def running(modules: Sequence[house.Module]) -> Table:
    """Return what commands load and take, and what one warm row crosses."""
    table = [
        ("modules that `calibrant evaluate` of a plain task loads", f"{len(loaded())} of {len(modules)}")
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
        "loaded": loaded,
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
    for kind in ("long-modules", "long-functions", "classes"):
        print(f"\n{kind}:", *(kinds[kind]() or ["none"]), sep="\n")


if __name__ == "__main__":
    main()
