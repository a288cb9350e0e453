"""Holds the limits of the house: its size, the length of functions, first lines of docstrings.

Every limit has a list of debts in house_debts.toml: what breaks it today. What breaks a limit and is not on its list
fails, and so does a debt that was paid and is still on it: a limit is only loosened by a line added to that file.

Its size is held by figures in the same file: one above the recorded one fails. Whoever needs more adds a named line
to `[raised]`, which says what the code is for and by how much each figure grows.

    python benchmarks/check_house.py [--shrink]

`--shrink` deletes paid debts from the file and lowers figures to those of today; it adds none and raises none.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _house as house

FIGURES: dict[str, Callable[[Sequence[house.Module]], float]] = {
    "modules": len,
    "tokens": house.tokens,
    "tokens_a_line": house.tokens_a_line,
}
MOST, RAISED = "most", "raised"  # tables of house_debts.toml
DEBTS = Path(__file__).parent / "house_debts.toml"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A limit.

    Attributes
    ----------
    find : callable
        Yields the places in modules that break it.
    debt : callable
        Returns the name that stands on the list of debts for a place.
    advice : str
        The message for a place: expectation and remedy.
    """

    find: Callable[[Iterable[house.Module]], Iterable[house.Place]]
    debt: Callable[[house.Place], str]
    advice: str


RULES = {
    "long_functions": Rule(
        find=house.long_functions,
        debt=lambda place: place.name,
        advice=f"expected at most {house.FUNCTION_LINES} code lines in a function's body: divide it",
    ),
    # By module: a module without riddles stays so.
    "riddles": Rule(
        find=house.riddles,
        debt=lambda place: place.module,
        advice="expected a docstring that opens with a verb and a noun, not with a question: write another first line",
    ),
}


def grown(modules: Sequence[house.Module], content: Mapping[str, Any]) -> list[str]:
    """Return a message for every figure of the size that is above its limit.

    Parameters
    ----------
    modules : sequence of Module
        The source.
    content : mapping
        house_debts.toml: in ``most`` the recorded figures by the names in `FIGURES`, in ``raised`` by how much each
        named line raises them.
    """
    recorded = content.get(MOST, {})
    messages = [
        f"{MOST}: expected the figures {sorted(FIGURES)}, got {name!r}"
        for name in sorted(set(recorded).symmetric_difference(FIGURES))
    ]
    for name in sorted(set(recorded) & set(FIGURES)):
        value, limit = FIGURES[name](modules), round(recorded[name] + _raised(content, name), 2)
        if value > limit:
            messages.append(
                f"{name}: expected at most {limit:,}, got {value:,}: delete or merge something, or add a line to "
                f"[{RAISED}] in {DEBTS.name} that says what the difference is for"
            )
    return messages


def _raised(content: Mapping[str, Any], figure: str) -> float:
    """Return by how much the named lines raise a figure."""
    return sum(line.get(figure, 0) for line in content.get(RAISED, {}).values())


def failures(modules: Sequence[house.Module], debts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a message for every new break of a limit and for every paid debt.

    Parameters
    ----------
    modules : sequence of Module
        The source.
    debts : mapping of str to sequence of str
        The debts of each rule in `RULES`, by its name.
    """
    messages = [
        f"{name}: expected the rules {sorted(RULES)}"
        for name in sorted(set(debts).symmetric_difference(RULES))
    ]
    for name, rule in RULES.items():
        found = list(rule.find(modules))
        allowed = set(debts.get(name, ()))
        messages += [f"{place}: {rule.advice}" for place in found if rule.debt(place) not in allowed]
        messages += [
            f"{name}: {debt} is no debt any more: run benchmarks/check_house.py --shrink"
            for debt in sorted(allowed.difference(map(rule.debt, found)))
        ]
    return messages


def shrunk(text: str, modules: Sequence[house.Module]) -> str:
    """Return the text of a file of debts without those that were paid, and with figures that are not above today's."""
    lines, due = [], set[str]()
    content = tomllib.loads(text)
    for line in text.splitlines(keepends=True):
        if opening := re.match(r"(\w+) = \[", line):
            rule = RULES[opening[1]]
            due = {rule.debt(place) for place in rule.find(modules)}
        name = re.match(r'\s+"(.+)",$', line)
        figure = re.match(r"(\w+) = [\d_.]+$", line)
        if figure is not None and figure[1] in FIGURES:
            lines.append(f"{figure[1]} = {_lowered(figure[1], modules, content)}\n")
        elif name is None or name[1] in due:
            lines.append(line)
    return "".join(lines)


def _lowered(figure: str, modules: Sequence[house.Module], content: Mapping[str, Any]) -> float:
    """Return the recorded figure, or today's without what named lines raised it by, whichever is less."""
    today = FIGURES[figure](modules) - _raised(content, figure)
    recorded: float = content[MOST][figure]
    return min(recorded, round(today, 2))


def main() -> None:
    """Print every failure; exit with 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shrink", action="store_true", help="delete paid debts from house_debts.toml")
    options = parser.parse_args()
    modules = house.read(house.SOURCE)
    text = DEBTS.read_text(encoding="utf-8")
    if options.shrink:
        text = shrunk(text, modules)
        DEBTS.write_text(text, encoding="utf-8")
    content = tomllib.loads(text)
    debts = {name: names for name, names in content.items() if name not in {MOST, RAISED}}
    messages = [*failures(modules, debts), *grown(modules, content)]
    for message in messages:
        print(message)
    left = ", ".join(f"{name} {len(names)}" for name, names in debts.items())
    size = ", ".join(f"{figure(modules):,} {name.replace('_', ' ')}" for name, figure in FIGURES.items())
    print(f"House: {len(messages)} failures; {size}; debts left: {left}")
    sys.exit(bool(messages))


if __name__ == "__main__":
    main()
