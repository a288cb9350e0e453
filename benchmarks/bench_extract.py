"""Time of `extract_distribution` against `llm_structured_confidence.extract_logprobs`.

Both read the same response in the same run, for 4 and for 77 labels, as a dict and as an object.
Prints one ratio (ours / theirs; below 1 is faster) for each. Run: python benchmarks/bench_extract.py
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llm_structured_confidence import extract_logprobs

from calibrant.logprobs import extract_distribution
from calibrant.logprobs._fields import enum_schema

FIELD = "category"
TOP = 20
BUDGET_SECONDS = 0.02
ROUNDS = 31


def labels(count: int) -> list[str]:
    """Return `count` labels in families that share prefixes, as real label sets do."""
    families = ("Bills", "Food & Drinks", "Travel", "Health", "Home", "Leisure", "Income")
    return [f"{families[i % len(families)]}/kind {i // len(families)}" for i in range(count)]


def entry(text: str, logprob: float) -> dict[str, Any]:
    """Return one reported token."""
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def token(text: str, others: list[str]) -> dict[str, Any]:
    """Return an emitted token with its alternatives."""
    rest = [entry(other, math.log(0.3 / len(others))) for other in others if other != text]
    return {**entry(text, math.log(0.7)), "top_logprobs": [entry(text, math.log(0.7)), *rest]}


def response(names: list[str]) -> dict[str, Any]:
    """Return an OpenAI-shaped answer for the second label, with 20 alternatives per token."""
    family, slash, kind = names[1].partition("/")
    heads = list(dict.fromkeys(name.partition("/")[0] for name in names))
    kinds = list(dict.fromkeys(name.partition("/")[2] for name in names))
    fill = [f"x{i}" for i in range(TOP)]
    plain = [token(text, fill[1:]) for text in ('{"', "category", '":', ' "')]
    value = [token(family, (heads + fill)[:TOP]), token(slash, fill[1:]), token(kind, (kinds + fill)[:TOP])]
    text = json.dumps({FIELD: names[1]})
    content = [*plain, *value, token('"}', fill[1:])]
    choice = {"message": {"content": text}, "logprobs": {"content": content}, "finish_reason": "stop"}
    return {"choices": [choice], "model": "bench", "usage": {"prompt_tokens": 9, "completion_tokens": 9}}


def as_object(node: Any) -> Any:
    """Return `node` with attribute access, as SDKs hand it out."""
    if isinstance(node, dict):
        return SimpleNamespace(**{key: as_object(value) for key, value in node.items()})
    if isinstance(node, list) and node and isinstance(node[0], dict):
        return [as_object(item) for item in node]
    return node


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the time of one call, averaged over `repeats`."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def compare(count: int, kind: str) -> float:
    """Print and return the ratio for one size and one response shape."""
    names = labels(count)
    answer = response(names) if kind == "dict" else as_object(response(names))
    schema = enum_schema(names, FIELD)

    def ours() -> object:
        return extract_distribution(answer, names, FIELD)

    def theirs() -> object:
        return extract_logprobs(answer, field_path=FIELD, response_schema=schema)

    repeats = max(1, round(BUDGET_SECONDS / min(seconds(ours, 3), seconds(theirs, 3))))
    pairs = [(seconds(ours, repeats), seconds(theirs, repeats)) for _ in range(ROUNDS)]
    ratio = statistics.median(a / b for a, b in pairs)
    mine, other = (1e6 * statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"extract_distribution / llm_structured_confidence, {count} labels, {kind}: "
        f"ratio {ratio:.2f} ({mine:.0f} us / {other:.0f} us)"
    )
    return ratio


def main() -> int:
    """Compare all cases; fail where ours is slower."""
    ratios = [compare(count, kind) for count in (4, 77) for kind in ("dict", "object")]
    return int(max(ratios) > 1.0)


if __name__ == "__main__":
    sys.exit(main())
