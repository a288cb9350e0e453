"""The decision problem of a cascade of several models, and its hulls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calibrant.cascade.automix._hull import rising_hull
from calibrant.cascade.automix._routing_checks import Array

Seen = tuple[tuple[int, int], ...]
"""Which models were verified, and the bin of the verifier's score of each, in order."""


@dataclass(frozen=True, kw_only=True)
class CascadeAction:
    """The next thing a cascade does with a row.

    Attributes
    ----------
    kind : {"report", "verify"}
        Report a model's answer, asking for it first unless the model was just verified; or ask a model and verify
        its answer.
    model : int
        Position of the model.
    """

    kind: Literal["report", "verify"]
    model: int


@dataclass(frozen=True, kw_only=True)
class Node:
    """What is known at a point of a cascade: unnormalised probabilities of all that may still be seen.

    `mass` has an axis for each verifier behind the last one looked at; `gain` is mass times the expected score of
    each model, with the models in front.
    """

    mass: Array
    gain: Array
    after: int  # the next model's position; the one before it was just verified

    def total(self, model: int) -> float:
        return float(self.gain[model].sum())

    def verified(self, model: int) -> list[Node]:
        """Return the nodes behind each bin of a model's verifier; models passed over are never verified."""
        skipped = tuple(range(model - self.after))
        mass = self.mass.sum(axis=skipped)
        gain = self.gain.sum(axis=tuple(1 + axis for axis in skipped))
        return [Node(mass=mass[b], gain=gain[:, b], after=model + 1) for b in range(len(mass))]


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The decision problem: tables and costs."""

    root: Node
    cost: Array
    verifier_cost: Array

    @property
    def k(self) -> tuple[int, ...]:
        return tuple(size - 1 for size in self.root.mass.shape)

    def reports(self, node: Node) -> Iterator[tuple[int, float, float]]:
        """Yield model, cost and performance of reporting an answer now."""
        mass = float(node.mass.sum())
        if node.after > 0:
            yield node.after - 1, 0.0, node.total(node.after - 1)
        for model in range(node.after, len(self.cost)):
            yield model, mass * float(self.cost[model]), node.total(model)

    def looks(self, node: Node) -> Iterator[tuple[int, float]]:
        """Yield model and cost of asking and verifying it."""
        mass = float(node.mass.sum())
        for model in range(node.after, len(self.verifier_cost)):
            yield model, mass * float(self.cost[model] + self.verifier_cost[model])

    def hull(self, node: Node) -> tuple[Array, Array]:
        """Return the frontier behind a node: corners of all its actions' frontiers together."""
        points = [(np.array([cost]), np.array([value])) for _, cost, value in self.reports(node)]
        for model, cost in self.looks(node):
            x, y = sum_of_hulls([self.hull(child) for child in node.verified(model)])
            points.append((x + cost, y))
        x, y = (np.concatenate(axis) for axis in zip(*points, strict=True))
        corners = rising_hull(x, y)
        return x[corners], y[corners]

    def best_actions(self, price: float) -> dict[Seen, CascadeAction]:
        """Return the action with the best performance minus price times cost, wherever the policy can come."""
        return self._best(self.root, (), price)[1]

    def _best(self, node: Node, seen: Seen, price: float) -> tuple[float, dict[Seen, CascadeAction]]:
        value, model = max((gain - price * cost, -m) for m, cost, gain in self.reports(node))
        best = {seen: CascadeAction(kind="report", model=-model)}
        for looked, cost in self.looks(node):
            below = [
                self._best(child, (*seen, (looked, b)), price)
                for b, child in enumerate(node.verified(looked))
            ]
            found = sum(part for part, _ in below) - price * cost
            if found > value:
                value = found
                best = {seen: CascadeAction(kind="verify", model=looked)}
                for _, actions in below:
                    best |= actions
        return value, best


def sum_of_hulls(hulls: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the corners of the Minkowski sum: all segments, steepest first."""
    run = np.concatenate([np.diff(x) for x, _ in hulls])
    rise = np.concatenate([np.diff(y) for _, y in hulls])
    order = np.argsort(-rise / run, kind="stable")
    start = sum(x[0] for x, _ in hulls), sum(y[0] for _, y in hulls)
    x, y = (np.concatenate(([s], s + np.cumsum(d[order]))) for s, d in zip(start, (run, rise), strict=True))
    return x, y
