"""Label distribution from next-token probabilities, read at beginnings of the labels.

`LabelWalk` reads listings of the most probable tokens, `TokenWalk` the probabilities of the whole vocabulary.

The walk over listings
----------------------
A node is the text of an answer's label so far, as JSON spells it; the root is the empty text. At each
node the model lists its most probable next tokens. A token leads to another node, ends a label (it
holds the closing quote), or leaves the label set, where its mass is dropped. The mass of a
node is the sum over all ways to reach it, so alternative tokenisations of a label add up: ``Busin`` +
``ess`` and ``Business`` meet. A node's listing is read once, after the node's text in the model's
own tokenisation.

Nodes are visited, the heaviest first, until those left are so light that the bound below is within the tolerance. The
share of a node's mass that will reach the end of a label (its *survival*) is unknown before the visit. It is estimated
by the survival of the visited nodes, and estimated again after each round. A node whose text holds an unnecessary
escape is visited only if it alone could exceed the tolerance: every letter may be written as an escape, and hardly any
model does that. The mass of such nodes counts in the bound.

Nodes that were not visited are *open*. Their mass times the survival is counted for the label they lead to, or spread
evenly over several.

The bound over listings
-----------------------
Let K be the mass of labels read to their end, A the mass of the open nodes, of which a <= A is
counted, and t the largest possible mass of unlisted tokens. However A + t is really distributed, the total
variation between the returned distribution and the true one is at most (A + t) / (K + A + t): for a set T
of labels that get none of A + t, the difference is at most
(K(T) + a) / (K + a) - K(T) / (K + A + t), which is largest for K(T) = K and then equal to that.

t has two upper bounds at each node, of which the smaller counts: the probability left over by the listing, and the
least listed probability times the number of unlisted beginnings of labels (spellings with
escapes, or with structure behind the closing quote, are not counted apart). A label that no listed token
leads to is given that least probability: an upper bound, not a measurement.

The walk over the vocabulary
----------------------------
A label's probability is the product of the probabilities of its tokens, as the tokeniser writes them in the answer,
closing quote included (with any JSON structure behind the quote in its token). Other tokenisations of a label are left
out: they hold next to no probability and cost more than all labels together. Including them moved the result by 0.012
on Emotion and by less than 0.001 on three other tasks.

Labels that begin with the same tokens share a path of a trie. Its nodes are *open* until the model's next-token
probabilities there were read. The mass of a node is the probability of the tokens that lead to it.

The bound over the vocabulary
-----------------------------
Let K be the mass of labels read to their end and A that of open nodes. However A is really distributed, the total
variation between the returned distribution and the true one is at most A / (K + A): for a set T of labels that get none
of A, the difference is at most K(T) / K' - K(T) / (K + A) with some K' >= K, and largest for K(T) = K. Nodes are
visited, the heaviest first, until this is within the tolerance.

Mass of open nodes over the vocabulary
--------------------------------------
The mass of an open node is multiplied, for each label behind it, by the *expected* share: the share that the model
gives the label behind the same tokens when the prompt holds no text. Without such expectations the share is estimated
as the survival so far (mass at the ends of labels over mass read), spread evenly over the labels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, fsum, log
from os.path import commonprefix
from typing import Final

import numpy as np

from calibrant.core._completion import TokenLogprobs, Vocabulary
from calibrant.core._errors import ConfigurationError, LogprobsUnavailableError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import FloatArray, IntegerArray, LabelDistribution, LogprobSpace
from calibrant.logprobs._completion import MOST_MASS
from calibrant.logprobs._distribution import START, LabelTrie, StringState, log_normalise
from calibrant.logprobs._fields import checked_logprob

# Less than this is rounding: a listing whose probabilities sum to 1 leaves nothing unlisted.
_ROUNDING: Final = 1e-6


@dataclass(slots=True)
class _OpenNode:
    """Beginning of one or several labels that was not visited yet, with its mass."""

    state: StringState
    fit: tuple[int, ...]
    mass: float = 0.0


@dataclass(frozen=True, slots=True)
class _Branch:
    """Listed next token: the text it leads to, the labels that fit, and its probability.

    Attributes
    ----------
    text : bytes
        The node it leads to.
    state : StringState
        The decoder's state behind that node's text.
    fit : tuple of int
        Labels that stay possible.
    probability : float
        In [0, 1].
    """

    text: bytes
    state: StringState
    fit: tuple[int, ...]
    probability: float

    def is_plain(self, state: StringState, text: bytes) -> bool:
        """Return whether the token spells its part of a label literally: no escape, nothing behind the quote."""
        added = self.text[len(text) :]
        return added == self.state.prefix[len(state.prefix) :] + b'"' * self.state.closed


@dataclass(frozen=True, slots=True)
class _VisitedNode:
    """Next tokens that the model listed after one beginning of labels.

    Attributes
    ----------
    branches : tuple of _Branch
        The listed tokens that stay in the label set.
    unlisted : float
        Upper bound of the probability of unlisted tokens that stay in the label set.
    unseen : tuple of int
        Labels of the node that no listed token leads to.
    bound : float
        Upper bound of the probability of each of them.
    """

    branches: tuple[_Branch, ...]
    unlisted: float
    unseen: tuple[int, ...]
    bound: float


def check_tolerance(tolerance: float) -> None:
    """Check that a tolerance is a total variation.

    Raises
    ------
    ConfigurationError
        `tolerance` is NaN or outside [0, 1].
    """
    if not 0.0 <= tolerance <= 1.0:
        raise ConfigurationError(
            f"Expected a tolerance in [0, 1], got {tolerance!r:.80}: use 0 to leave nothing out."
        )


class LabelWalk:
    """Best-first search over beginnings of labels, as text, that sums next-token probabilities.

    Ask the model about every text in `pending`, pass the answers to `visit`, and repeat until nothing is pending.

    Parameters
    ----------
    labels : sequence of str, length L, or LabelSet
        The label set.
    tolerance : float
        Largest total variation that the nodes left out may cause, in [0, 1]. Unlisted tokens, escapes and nodes inside
        a character may raise `error_bound` above it. 0 visits every node that any listed token leads to, 1 only the
        root.
    trie : LabelTrie, optional
        The trie of `labels`, to reuse one.

    Raises
    ------
    ConfigurationError
        `labels` is no label set, or `tolerance` is out of range.
    """

    def __init__(
        self, labels: Sequence[str] | LabelSet, *, tolerance: float, trie: LabelTrie | None = None
    ) -> None:
        check_tolerance(tolerance)
        self._labels = LabelSet.of(labels).labels
        self._tolerance = tolerance
        self._trie = trie or LabelTrie(self._labels)
        self._open = {b"": _OpenNode(START, tuple(range(len(self._labels))), 1.0)}
        self._visited: dict[bytes, _VisitedNode] = {}
        # Masses of labels read to their end, bounds for the others, and the largest mass of unlisted tokens.
        self._complete: dict[int, float] = {}
        self._bounds: dict[int, float] = {}
        self._unlisted = 0.0

    @property
    def nodes(self) -> int:
        """Number of visited beginnings of labels."""
        return len(self._visited)

    def pending(self, *, after: str = "") -> list[str]:
        """Return the beginnings of labels to visit next; empty at the end of the search.

        They may be visited one at a time or all at once; a visit can make others unnecessary. A node that
        ends inside a character is no valid text, so it stays open.

        Parameters
        ----------
        after : str, default ""
            The text queried last. Texts that share the longest beginning with it come first, then
            shorter ones: an engine that caches its last text then computes the fewest tokens.
        """
        if not self._visited:
            return [""]
        masses: dict[str, float] = {}
        escaped: dict[str, float] = {}
        left = 0.0
        for key, node in self._open.items():
            try:
                (masses if self._is_plain(key, node) else escaped)[key.decode()] = node.mass
            except UnicodeDecodeError:
                left += node.mass
        # The tolerance bounds the open mass as a share of itself plus the mass read to the end.
        complete = fsum(self._complete.values())
        survival = self._survival()
        rest = left + fsum(masses.values())
        texts = [
            text
            for text, mass in escaped.items()
            if survival * mass > self._tolerance * (complete + survival * (rest + mass))
        ]
        for text in sorted(masses, key=lambda text: (masses[text], text)):
            left += masses[text]
            if left > self._tolerance * (complete + survival * (rest - left) + left):
                texts.append(text)
        shared = {text: len(commonprefix([text, after])) for text in texts}  # noqa: RUF071 (no paths)
        return sorted(texts, key=lambda text: (-shared[text], len(text), text))

    def _is_plain(self, key: bytes, node: _OpenNode) -> bool:
        """Return whether the text of a node is free of unnecessary escapes."""
        if b"\\" not in key:
            return True
        for label in node.fit:
            spelled = json.dumps(self._labels[label], ensure_ascii=False)[1:-1]
            if spelled.encode("utf-8", "surrogatepass").startswith(key):
                return True
        return False

    def is_enough(self, text: str, tokens: Iterable[tuple[bytes, float]]) -> bool:
        """Return whether a short list of next tokens after `text` is sufficient.

        At the root it must lead to every label, so that every label is measured; elsewhere to one.
        """
        node = self._open[text.encode()]
        reached: set[int] = set()
        for data, _ in tokens:
            if data:
                reached.update(self._trie.step(node.state, data)[1])
        if not text:
            return len(reached) == len(node.fit)
        return bool(reached)

    def visit(self, text: str, tokens: Iterable[tuple[bytes, float]]) -> None:
        """Record the next tokens that the model listed after `text`.

        Parameters
        ----------
        text : str
            A node of `pending`.
        tokens : iterable of (bytes, float)
            The most probable next tokens with the natural logarithm of their probability.

        Raises
        ------
        LogprobsUnavailableError
            A log-probability is NaN or positive, or the probabilities add up to more than 1.05.
        """
        key = text.encode()
        node = self._open.pop(key)
        self._visited[key] = self._read(key, node, tokens)
        self._propagate(key, node.mass)

    def _read(self, key: bytes, node: _OpenNode, tokens: Iterable[tuple[bytes, float]]) -> _VisitedNode:
        """Return the next tokens listed at a node, without those that fit no label."""
        follows = self._trie.follows(node.state)
        branches = []
        listed = 0.0
        least = 1.0
        for data, logprob in tokens:
            probability = exp(checked_logprob(logprob))
            listed += probability
            least = min(least, probability)
            # A token without bytes is a special one: it leads to no label.
            if data and (follows is None or data[0] in follows):
                state, fit = self._trie.step(node.state, data)
                if state is not None and fit and probability > 0.0:
                    branches.append(_Branch(key + data, state, fit, probability))
        if listed > MOST_MASS:
            raise LogprobsUnavailableError(f"The probabilities listed at one token add up to {listed:.2f}.")
        rest = 0.0
        if listed < 1.0 - _ROUNDING:
            rest = max(0.0, 1.0 - listed)
        plain = {branch.state for branch in branches if branch.is_plain(node.state, key)}
        unlisted = self._trie.spellings(node.state) - len(plain)
        seen = {label for branch in branches for label in branch.fit}
        unseen = tuple(label for label in node.fit if label not in seen)
        return _VisitedNode(
            branches=tuple(branches),
            unlisted=min(rest, least * unlisted),
            unseen=unseen,
            bound=min(rest / len(unseen), least) if unseen else 0.0,
        )

    def _propagate(self, text: bytes, mass: float) -> None:
        """Pass `mass` on from a visited node to the nodes and labels behind it."""
        waiting = [(text, mass)]
        while waiting:
            text, mass = waiting.pop()
            node = self._visited[text]
            self._unlisted += mass * node.unlisted
            for label in node.unseen:
                self._bounds[label] = self._bounds.get(label, 0.0) + mass * node.bound
            for branch in node.branches:
                share = mass * branch.probability
                if branch.state.closed:
                    label = branch.fit[0]
                    self._complete[label] = self._complete.get(label, 0.0) + share
                elif branch.text in self._visited:
                    waiting.append((branch.text, share))
                else:
                    target = self._open.setdefault(branch.text, _OpenNode(branch.state, branch.fit))
                    target.mass += share

    def _survival(self) -> float:
        """Return the share of the visited mass that reached the end of a label, in [0, 1]."""
        root = self._visited.get(b"")
        complete = fsum(self._complete.values())
        if root is None or complete <= 0.0:
            return 1.0
        entered = fsum(branch.probability for branch in root.branches)
        read = entered - fsum(node.mass for node in self._open.values())
        if read > 0.0:
            return min(1.0, complete / read)
        return 1.0

    def distribution(self) -> LabelDistribution:
        """Return the distribution over the labels from the nodes visited so far.

        Returns
        -------
        LabelDistribution
            In ``exact`` space. ``label_mass``: the mass of labels read to their end plus the counted mass
            of open nodes. ``unresolved_mass``: the part of it that several labels share, plus the largest
            possible mass of unlisted tokens. ``emitted``: the most probable label, empty where no listed token leads
            to any; ``joint_logprob``: the logarithm of its mass. ``measured``: True for labels that a listed token
            leads to.
        """
        weights = [self._complete.get(label, 0.0) for label in range(len(self._labels))]
        measured = [label in self._complete for label in range(len(self._labels))]
        survival = self._survival()
        undivided = 0.0
        for node in self._open.values():
            for label in node.fit:
                weights[label] += survival * node.mass / len(node.fit)
            if len(node.fit) == 1:
                measured[node.fit[0]] = True
            else:
                undivided += survival * node.mass
        label_mass = fsum(weights)
        best = max(range(len(weights)), key=weights.__getitem__)
        top = weights[best]
        for label, bound in self._bounds.items():
            weights[label] = weights[label] or bound
        open_mass = fsum(node.mass for node in self._open.values()) + self._unlisted
        reachable = fsum(self._complete.values()) + open_mass
        return LabelDistribution(
            labels=self._labels,
            logprobs=log_normalise(weights),
            measured=np.array(measured, dtype=np.bool_),
            joint_logprob=log(top) if top > 0 else None,
            label_mass=min(1.0, label_mass),
            unresolved_mass=min(1.0, undivided + self._unlisted),
            space=LogprobSpace.EXACT,
            emitted=self._labels[best] if top > 0 else "",
            error_bound=open_mass / reachable if label_mass > 0 else 1.0,
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Node:
    """Node of the trie: tokens with which one or several labels begin.

    Attributes
    ----------
    tokens : tuple of int
        The tokens from the root to this node.
    labels : tuple of int
        Positions of the labels that begin with these tokens.
    behind : tuple of int
        Positions of the child nodes.
    ends : tuple of int
        Labels that end with the next token.
    next_tokens : ndarray of int, shape (n,)
        Tokens that lead to a child or end a label.
    leads_to : ndarray of int, shape (n,)
        Target of each: a position in `behind` followed by `ends`.
    """

    tokens: tuple[int, ...]
    labels: tuple[int, ...]
    behind: tuple[int, ...]
    ends: tuple[int, ...]
    next_tokens: IntegerArray
    leads_to: IntegerArray


class TokenTrie:
    """Trie of the labels' tokens.

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
        Number of labels, L.
    """

    def __init__(self, paths: Sequence[Sequence[int]], vocabulary: Vocabulary) -> None:
        self.size = len(paths)
        labels: dict[tuple[int, ...], list[int]] = {}
        for label, path in enumerate(paths):
            for end in range(len(path)):
                labels.setdefault(tuple(path[:end]), []).append(label)
        order = sorted(labels, key=lambda tokens: (len(tokens), tokens))
        number = {tokens: place for place, tokens in enumerate(order)}
        closing: dict[int, IntegerArray] = {}
        nodes = []
        for tokens in order:
            depth = len(tokens)
            ends = [label for label in labels[tokens] if len(paths[label]) == depth + 1]
            steps = dict.fromkeys(paths[label][depth] for label in labels[tokens] if label not in ends)
            groups = [np.array([step]) for step in steps]
            for label in ends:
                last = paths[label][depth]
                if last not in closing:
                    closing[last] = vocabulary.closing(last)
                groups.append(closing[last])
            nodes.append(
                _Node(
                    tokens=tokens,
                    labels=tuple(labels[tokens]),
                    behind=tuple(number[*tokens, step] for step in steps),
                    ends=tuple(ends),
                    next_tokens=np.concatenate(groups),
                    leads_to=np.repeat(np.arange(len(groups)), [len(group) for group in groups]),
                )
            )
        self.nodes = tuple(nodes)


class TokenWalk:
    """Best-first search of a token trie that sums the next-token probabilities of the labels.

    Ask the model about every node in `pending`, pass the answers to `visit` in the same order, and repeat until nothing
    is pending.

    Parameters
    ----------
    trie : TokenTrie
        The labels.
    tolerance : float
        Largest total variation that the nodes left out may cause, in [0, 1]. 0 visits every node, 1 only the root.
    expected : ndarray of float, shape (nodes, L), optional
        Expected shares: the `shares` of a walk over the same prompt without a text.
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
        expected: FloatArray | None = None,
        at_once: Sequence[int] = (),
    ) -> None:
        check_tolerance(tolerance)
        self._trie = trie
        self._tolerance = tolerance
        self._expected = expected
        self._at_once = tuple(at_once)
        self._open = {0: 1.0}
        self._read: dict[int, FloatArray] = {}
        self._complete = np.zeros(trie.size)
        self._entered = 0.0

    def needed(self, tolerance: float) -> tuple[int, ...]:
        """Return the nodes, besides the root, that a search with another tolerance would visit."""
        again = TokenWalk(self._trie, tolerance=tolerance, expected=self.shares())
        while nodes := again.pending():
            for node in nodes:
                again._propagate(node, self._read[node])
        return tuple(sorted(again._read))[1:]

    def pending(self) -> list[int]:
        """Return the nodes to visit next, those with fewer tokens first; empty at the end of the search.

        A node comes with the chain of nodes behind it up to the next fork or end of a label, so that one round of
        calls reads the whole chain.
        """
        if not self._read:
            return [0, *self._at_once]
        complete = float(self._complete.sum())
        masses = sorted((mass, node) for node, mass in self._open.items())
        rest = fsum(mass * self._survival(node) for mass, node in masses)
        left = 0.0
        heavy = []
        # The tolerance bounds the open mass as a share of itself plus the mass read to the end.
        for mass, node in masses:
            left += mass
            rest -= mass * self._survival(node)
            if left > self._tolerance * (complete + max(0.0, rest) + left):
                heavy.append(node)
        return sorted({link for node in heavy for link in self._chain(node)})

    def _chain(self, node: int) -> list[int]:
        chain = [node]
        here = self._trie.nodes[node]
        while len(here.behind) == 1 and not here.ends:
            chain.append(here.behind[0])
            here = self._trie.nodes[chain[-1]]
        return chain

    def visit(self, node: int, found: TokenLogprobs) -> None:
        """Record the next-token log-probabilities after the tokens of a node.

        Raises
        ------
        LogprobsUnavailableError
            The log-probabilities are not numbers.
        """
        here = self._trie.nodes[node]
        probabilities = np.exp(found.at(here.next_tokens))
        if not np.isfinite(probabilities).all():
            raise LogprobsUnavailableError("The log-probabilities are not numbers.")
        self._propagate(node, np.bincount(here.leads_to, weights=probabilities).astype(np.float64))

    def _propagate(self, node: int, shares: FloatArray) -> None:
        """Pass the mass of a node on, by the shares of its children and of the labels that end there."""
        here = self._trie.nodes[node]
        self._read[node] = shares
        mass = self._open.pop(node)
        if node == 0:
            self._entered = float(shares.sum())
        ending = shares[len(here.behind) :]
        for child, share in zip(here.behind, shares.tolist(), strict=False):
            self._open[child] = mass * share
        for label, share in zip(here.ends, ending.tolist(), strict=True):
            self._complete[label] += mass * share

    def shares(self) -> FloatArray:
        """Return the share of each node's mass that reaches each label, shape (nodes, L); 0 if unread."""
        table = np.zeros((len(self._trie.nodes), self._trie.size))
        for node in sorted(self._read, reverse=True):  # children have higher numbers: they come first
            here = self._trie.nodes[node]
            shares = self._read[node]
            ending = shares[len(here.behind) :]
            for child, share in zip(here.behind, shares.tolist(), strict=False):
                table[node] += share * table[child]
            for label, share in zip(here.ends, ending.tolist(), strict=True):
                table[node, label] += share
        return table

    def _survival(self, node: int) -> float:
        """Return the expected share of an unvisited node's mass that ends in some label, in [0, 1]."""
        if self._expected is not None:
            return float(self._expected[node].sum())
        read = self._entered - fsum(self._open.values())
        complete = float(self._complete.sum())
        if complete > 0.0 and read > 0.0:
            return min(1.0, complete / read)
        return 1.0

    def _share(self, node: int) -> FloatArray:
        """Return the expected share of an unvisited node's mass that ends in each label, shape (L,)."""
        if self._expected is not None:
            expected: FloatArray = self._expected[node]
            return expected
        shares = np.zeros(self._trie.size)
        labels = self._trie.nodes[node].labels
        shares[list(labels)] = self._survival(node) / len(labels)
        return shares

    def distribution(self, labels: Sequence[str]) -> LabelDistribution:
        """Return the distribution over the labels from the nodes visited so far.

        Parameters
        ----------
        labels : sequence of str, length L
            Texts of the labels.

        Returns
        -------
        LabelDistribution
            In ``exact`` space. ``label_mass``: the mass of labels read to their end plus the counted mass of open
            nodes. ``unresolved_mass``: the part of it that several labels share. ``emitted``: the most probable label,
            empty where none has any mass; ``joint_logprob``: the logarithm of its mass. ``measured``: True for labels
            that are alone at an open node or were read to their end.
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
        top = float(weights[best])
        total = fsum(weights)
        left = fsum(self._open.values())
        error_bound = 1.0
        if total > 0.0:
            error_bound = min(1.0, left / (fsum(self._complete) + left))
        return LabelDistribution(
            labels=tuple(labels),
            logprobs=log_normalise(weights.tolist()),
            measured=measured,
            joint_logprob=log(top) if top > 0.0 else None,
            label_mass=min(1.0, total),
            unresolved_mass=min(1.0, undivided),
            space=LogprobSpace.EXACT,
            emitted=labels[best] if top > 0.0 else "",
            error_bound=error_bound,
        )
