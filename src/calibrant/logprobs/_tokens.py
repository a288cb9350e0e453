"""Next-token probabilities behind the tokens of labels -> distribution over the labels.

What is scored
--------------
A label's probability is the product of those of its tokens as the tokeniser writes them in the answer, closing quote
included (with whatever structure stands behind the quote in its token). Other ways to cut a label into tokens are left
out: on a model's own words they hold next to nothing, and to look into them costs more than all labels do.

Labels that begin with the same tokens share a path of a trie. Its nodes are *open* until the model was asked what
follows them. The mass of a node is the probability of the tokens that lead to it.

The bound
---------
Let K be the mass of labels read to their end and A that of open nodes. Whatever share of A reaches the end of a label,
and whichever labels these are, the total variation between the distribution given and the true one is at most
A / (K + A): for a set T of labels that the shares avoid, the difference is at most K(T) / K' - K(T) / (K + A) with some
K' >= K, and largest for K(T) = K. Nodes are visited, the heaviest first, until this is within the tolerance.

What open nodes are worth
-------------------------
Of the mass of an open node as much is counted, for each label behind it, as was *expected*: what the model says behind
the same tokens where the prompt holds no text. Where that is not known, it is taken to be as much as was left, of the
mass that was read, at the ends of labels, spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core import (
    LabelDistribution,
    LogprobSpace,
    LogprobsUnavailableError,
    TokenLogprobs,
    Vocabulary,
)
from calibrant.logprobs._distribution import log_normalise
from calibrant.logprobs._walk import check_tolerance

__all__ = ["TokenTrie", "TokenWalk"]

# What may stand behind the quote that ends a label, in the same token.
_STRUCTURE: Final = b" \t\r\n,}]"


@dataclass(frozen=True, eq=False, slots=True)
class _Node:
    """A beginning of labels.

    Attributes
    ----------
    tokens : tuple of int
        What leads to it.
    labels : tuple of int
        Positions of the labels that begin so.
    behind : tuple of int
        The nodes behind it.
    ends : tuple of int
        Labels that end with the next token.
    asked : ndarray of int, shape (n,)
        Tokens that lead on.
    leads_to : ndarray of int, shape (n,)
        Where each does: a position among `behind`, then `ends`.
    """

    tokens: tuple[int, ...]
    labels: tuple[int, ...]
    behind: tuple[int, ...]
    ends: tuple[int, ...]
    asked: NDArray[np.int64]
    leads_to: NDArray[np.int64]


class TokenTrie:
    """The tokens of labels, of which beginnings that labels share stand there once.

    Parameters
    ----------
    paths : sequence of (sequence of int), length L
        The tokens of each label up to its closing quote, at least one; none begins with another.
    vocabulary : Vocabulary
        The model's tokens.

    Attributes
    ----------
    nodes : tuple of node
        Its nodes, a shorter one before a longer one; the first is the root.
    size : int
        L.
    """

    def __init__(self, paths: Sequence[Sequence[int]], vocabulary: Vocabulary) -> None:
        self.size = len(paths)
        labels: dict[tuple[int, ...], list[int]] = {}
        for label, path in enumerate(paths):
            for end in range(len(path)):
                labels.setdefault(tuple(path[:end]), []).append(label)
        order = sorted(labels, key=lambda tokens: (len(tokens), tokens))
        number = {tokens: place for place, tokens in enumerate(order)}
        closing: dict[int, NDArray[np.int64]] = {}
        nodes = []
        for tokens in order:
            depth = len(tokens)
            ends = [label for label in labels[tokens] if len(paths[label]) == depth + 1]
            steps = dict.fromkeys(paths[label][depth] for label in labels[tokens] if label not in ends)
            asked = [np.array([step]) for step in steps]
            for label in ends:
                last = paths[label][depth]
                if last not in closing:
                    closing[last] = _closing(vocabulary, last)
                asked.append(closing[last])
            nodes.append(
                _Node(
                    tokens=tokens,
                    labels=tuple(labels[tokens]),
                    behind=tuple(number[*tokens, step] for step in steps),
                    ends=tuple(ends),
                    asked=np.concatenate(asked),
                    leads_to=np.repeat(np.arange(len(asked)), [len(some) for some in asked]),
                )
            )
        self.nodes = tuple(nodes)


def _closing(vocabulary: Vocabulary, last: int) -> NDArray[np.int64]:
    """Return the tokens that end a label as `last` does, structure behind the quote included."""
    piece = vocabulary.pieces[last]
    found = (
        token
        for token in vocabulary.beginning_with(piece)
        if not vocabulary.pieces[token][len(piece) :].strip(_STRUCTURE)
    )
    return np.fromiter(found, dtype=np.int64)


class TokenWalk:
    """Decides which nodes of a trie to ask a model about, and adds up what it says.

    Ask about every node in `pending`, hand the answers to `visit` in the same order, and repeat until nothing is
    pending.

    Parameters
    ----------
    trie : TokenTrie
        The labels.
    tolerance : float
        Largest total variation that the nodes left out may cause, in [0, 1]. 0 visits every node, 1 only the root.
    expected : ndarray of float, shape (nodes, L), optional
        The `shares` of another walk: see the module.
    at_once : sequence of int, default ()
        Nodes to visit together with the root.

    Raises
    ------
    ConfigurationError
        `tolerance` is out of range.
    """

    def __init__(
        self,
        trie: TokenTrie,
        *,
        tolerance: float,
        expected: NDArray[np.float64] | None = None,
        at_once: Sequence[int] = (),
    ) -> None:
        check_tolerance(tolerance)
        self._trie = trie
        self._tolerance = tolerance
        self._expected = expected
        self._at_once = tuple(at_once)
        self._open = {0: 1.0}
        self._read: dict[int, NDArray[np.float64]] = {}
        self._complete = np.zeros(trie.size)
        self._entered = 0.0

    def needed(self, tolerance: float) -> tuple[int, ...]:
        """Return the nodes that a walk with another tolerance visits besides the root, if the model says the same."""
        again = TokenWalk(self._trie, tolerance=tolerance, expected=self.shares())
        while nodes := again.pending():
            for node in nodes:
                again._take(node, self._read[node])
        return tuple(sorted(again._read))[1:]

    def pending(self) -> list[int]:
        """Return the nodes to visit next, a shorter one before a longer one; empty when the walk is done.

        With a node come those behind it up to where labels part or end: they follow from it.
        """
        if not self._read:
            return [0, *self._at_once]
        complete = float(self._complete.sum())
        masses = sorted((mass, node) for node, mass in self._open.items())
        rest = math.fsum(mass * self._survival(node) for mass, node in masses)
        left, found = 0.0, []
        # What stays open must be at most this share of itself and what will have been read to the end.
        for mass, node in masses:
            left += mass
            rest -= mass * self._survival(node)
            if left > self._tolerance * (complete + max(0.0, rest) + left):
                found.append(node)
        return sorted({one for node in found for one in self._chain(node)})

    def _chain(self, node: int) -> list[int]:
        found = [node]
        while len(behind := self._trie.nodes[found[-1]].behind) == 1 and not self._trie.nodes[found[-1]].ends:
            found.append(behind[0])
        return found

    def visit(self, node: int, found: TokenLogprobs) -> None:
        """Take what the model may write behind a node.

        Raises
        ------
        LogprobsUnavailableError
            The log-probabilities are not numbers.
        """
        here = self._trie.nodes[node]
        each = np.exp(found.at(here.asked))
        if not np.isfinite(each).all():
            raise LogprobsUnavailableError("The log-probabilities are not numbers.")
        self._take(node, np.bincount(here.leads_to, weights=each).astype(np.float64))

    def _take(self, node: int, shares: NDArray[np.float64]) -> None:
        """Let the mass of a node run on; `shares` go to those behind it, then to the labels that end."""
        here = self._trie.nodes[node]
        self._read[node] = shares
        mass = self._open.pop(node)
        if node == 0:
            self._entered = float(shares.sum())
        for one, share in zip(here.behind, shares.tolist(), strict=False):
            self._open[one] = mass * share
        for label, share in zip(here.ends, shares[len(here.behind) :].tolist(), strict=True):
            self._complete[label] += mass * share

    def shares(self) -> NDArray[np.float64]:
        """Return how much of the mass of each node reaches the end of each label, shape (nodes, L); 0 where unread."""
        found = np.zeros((len(self._trie.nodes), self._trie.size))
        for node in sorted(self._read, reverse=True):
            here = self._trie.nodes[node]
            shares = self._read[node]
            for one, share in zip(here.behind, shares.tolist(), strict=False):
                found[node] += share * found[one]
            for label, share in zip(here.ends, shares[len(here.behind) :].tolist(), strict=True):
                found[node, label] += share
        return found

    def _survival(self, node: int) -> float:
        """Return how much of an open node's mass is taken to reach the end of labels, in [0, 1]."""
        if self._expected is not None:
            return float(self._expected[node].sum())
        read = self._entered - math.fsum(self._open.values())
        complete = float(self._complete.sum())
        return min(1.0, complete / read) if complete > 0.0 and read > 0.0 else 1.0

    def _share(self, node: int) -> NDArray[np.float64]:
        """Return how much of an open node's mass is taken to reach the end of each label, shape (L,)."""
        if self._expected is not None:
            expected: NDArray[np.float64] = self._expected[node]
            return expected
        found = np.zeros(self._trie.size)
        labels = self._trie.nodes[node].labels
        found[list(labels)] = self._survival(node) / len(labels)
        return found

    def distribution(self, labels: Sequence[str]) -> LabelDistribution:
        """Return the distribution over the labels, as far as the walk went.

        Parameters
        ----------
        labels : sequence of str, length L
            Their texts.

        Returns
        -------
        LabelDistribution
            In ``exact`` space. ``label_mass``: the mass of labels read to their end and what is counted of open nodes.
            ``unresolved_mass``: the part of it that several labels share. ``emitted``: the most probable label, empty
            where none has any mass; ``joint_logprob``: the logarithm of its mass. ``measured``: labels that are alone
            at an open node or were read to their end.
        """
        weights = self._complete.copy()
        measured = np.ones(len(labels), dtype=np.bool_)
        undivided = 0.0
        for node, mass in self._open.items():
            weights += mass * self._share(node)
            shared = self._trie.nodes[node].labels
            if len(shared) > 1:
                measured[list(shared)] = False
                undivided += mass * self._survival(node)
        best = int(weights.argmax())
        top, total = float(weights[best]), math.fsum(weights)
        left = math.fsum(self._open.values())
        return LabelDistribution(
            labels=tuple(labels),
            logprobs=log_normalise(weights.tolist()),
            measured=measured,
            joint_logprob=math.log(top) if top > 0.0 else None,
            label_mass=min(1.0, total),
            unresolved_mass=min(1.0, undivided),
            space=LogprobSpace.EXACT,
            emitted=labels[best] if top > 0.0 else "",
            error_bound=min(1.0, left / (math.fsum(self._complete) + left)) if total > 0.0 else 1.0,
        )
