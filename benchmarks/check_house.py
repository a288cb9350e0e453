"""Holds the limits of the house: length of functions, first lines of docstrings.

Every limit has a list of debts in house_debts.toml: what breaks it today. What breaks a limit and is not on its list
fails, and so does a debt that was paid and is still on it: a limit is only loosened by a line added to that file.

    python benchmarks/check_house.py [--shrink]

`--shrink` deletes paid debts from the file; it adds none.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import _house as house

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
    """Return the text of a file of debts without those that were paid; one name a line."""
    lines, due = [], set[str]()
    for line in text.splitlines(keepends=True):
        if opening := re.match(r"(\w+) = \[", line):
            rule = RULES[opening[1]]
            due = {rule.debt(place) for place in rule.find(modules)}
        name = re.match(r'\s+"(.+)",$', line)
        if name is None or name[1] in due:
            lines.append(line)
    return "".join(lines)


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
    debts = tomllib.loads(text)
    messages = failures(modules, debts)
    for message in messages:
        print(message)
    left = ", ".join(f"{name} {len(names)}" for name, names in debts.items())
    print(f"House: {len(messages)} failures; debts left: {left}")
    sys.exit(bool(messages))


if __name__ == "__main__":
    main()
