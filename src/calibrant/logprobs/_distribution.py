"""Distribution over the labels from the token log-probabilities of one decoded answer.

The walk
--------
The emitted tokens of the value are followed from left to right. Each of them is a node: the
set of labels that are still possible there. Every reported alternative is decoded from the same
byte, and falls into one of three groups by the number of labels that it leaves possible:

- *one label*: the alternative's mass (path so far times its own probability) is that label's
  measured mass. Texts in its subtree that are no label are unknown, and not subtracted.
- *several*: ambiguous mass, spread evenly over them and counted as unresolved.
- *none*: mass elsewhere. In raw space the most probable alternatives are usually of this kind.

The emitted branch is followed until one label is left; there its mass is fixed, by the same
rule as an alternative's. In raw space only this makes the two comparable: the product over all of the
emitted label's forced tokens (1e-5 is normal) down to its closing quote, beside an alternative's first token
alone, would favour every label that was not chosen. In masked space forced tokens have probability
1 and nothing changes.

Only where the emitted value is no label does the walk go on below a single label: there the later
tokens show how much of the branch's mass left that label.

Labels of a node that no reported token leads to are bounded: each by the least reported probability
(the emitted token not counted, since servers append it to the list whatever its rank), all together
by the part of 1 that was not reported.

The opening quote
-----------------
A token may hold structure, the opening quote and the first bytes of the value. Its alternatives are
read from its first byte on: the structure must match, white space before the quote may differ.
Where the quote ends its token, alternatives at that token may still reach into the value (``"Bus``
beside ``"``). If any does and leads to a label, that token becomes the first node, with masses
relative to "the string opens here", so that formatting choices stay out of the label mass.

The trie
--------
The labels' UTF-8 bytes, sorted, serve as the prefix trie: the labels below a node are one run of
the sorted list, found by bisection. The closing quote is a step of its own, so that ``Bills`` and
``Bills/Gas`` part there. Bytes are decoded on the way down (`advance`), so every spelling of a label
meets at the same node: escaped or not, cut inside a character or inside an escape.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import exp, fsum, log
from os.path import commonprefix
from typing import Final, NamedTuple

import numpy as np

from calibrant.core._errors import ConfigurationError, LogprobsUnavailableError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import (
    BoolArray,
    FloatArray,
    LabelDistribution,
    LogprobSpace,
    Token,
    read_only,
)
from calibrant.core._schema import parse_path
from calibrant.logprobs._completion import IMPOSSIBLE, read_completion
from calibrant.logprobs._fields import AlignedField, align, checked_logprob

_HEX = "[0-9a-fA-F]"
_HIGH = rf"u[dD][89abAB]{_HEX}{{2}}"
# A piece of a string without any of these bytes needs neither decoding nor checking.
_SPECIAL = re.compile(rb'["\\\x00-\x1f]')
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')
# One escape; a high surrogate only together with its low half.
_LOW = rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_ESCAPE = re.compile(rf'\\(?:["\\/bfnrt]|{_HIGH}{_LOW}|(?!{_HIGH})u{_HEX}{{4}})'.encode())
_CUT_ESCAPE = re.compile(rf"\\(?:u{_HEX}{{0,3}}|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F]{_HEX}?)?)?)?)?)?".encode())
SPACES: Final = b" \t\r\n"
_AFTER_STRING = SPACES + b",}]"
_MEMORY: Final = 2048
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
FLOOR: Final = 1e-12
"""No label's probability is reported below this, so that logarithms stay finite."""
# Up to this many labels plain Python is faster than numpy.
_FEW: Final = 32


class StringState(NamedTuple):
    """Position in a JSON string that is being read.

    Attributes
    ----------
    prefix : bytes
        The decoded UTF-8 bytes so far; may end inside a character.
    pending : bytes
        The raw bytes of an incomplete escape.
    closed : bool
        Whether the closing quote has been read.
    """

    prefix: bytes
    pending: bytes = b""
    closed: bool = False


START: Final = StringState(b"")

Branch = tuple[StringState | None, tuple[int, ...]]
"""State after some bytes (None: no string continues so), and the positions of the labels still possible there."""


def advance(state: StringState, data: bytes) -> StringState | None:
    """Return the state after `data`, or None if `data` cannot continue a JSON string."""
    source = state.pending + data if state.pending else data
    prefix = state.prefix
    position = 0
    if _SPECIAL.search(source) is None:
        return StringState(prefix + source)
    while position < len(source):
        if source[position] == _QUOTE:
            # Behind the string only structure may follow: `"}`, never `"s`.
            legal = position + 1 == len(source) or source[position + 1] in _AFTER_STRING
            if legal:
                return StringState(prefix, closed=True)
            return None
        match = (_ESCAPE if source[position] == _BACKSLASH else _PLAIN).match(source, position)
        if match is None:
            cut = _CUT_ESCAPE.fullmatch(source, position)
            if cut:
                return StringState(prefix, source[position:])
            return None
        piece = match[0]
        if piece[0] == _BACKSLASH:
            piece = json.loads(b'"%b"' % piece).encode("utf-8", "surrogatepass")
        prefix += piece
        position = match.end()
    return StringState(prefix)


class LabelTrie:
    """Labels of a task, indexed for prefix look-ups.

    Parameters
    ----------
    labels : tuple of str, length L
        The labels; look-ups return their positions.
    aliases : tuple of (str, int)
        Other spellings of a label, with its position.
    """

    def __init__(self, labels: tuple[str, ...], aliases: tuple[tuple[str, int], ...] = ()) -> None:
        self.labels = labels
        self._repeats = bool(aliases)
        spellings = sorted(
            (label.encode("utf-8", "surrogatepass"), position)
            for label, position in (*zip(labels, range(len(labels)), strict=True), *aliases)
        )
        self._keys = [key for key, _ in spellings]
        self._positions = tuple(position for _, position in spellings)
        # Rows of one task list the same alternatives again and again, so the look-ups are cached.
        self.fitting = lru_cache(maxsize=_MEMORY)(self._fitting)
        self.step = lru_cache(maxsize=_MEMORY)(self._step)
        self.enter = lru_cache(maxsize=_MEMORY)(self._enter)
        self.follows = lru_cache(maxsize=_MEMORY)(self._follows)
        self.spellings = lru_cache(maxsize=_MEMORY)(self._spellings)

    def _step(self, state: StringState, data: bytes) -> Branch:
        """Return the state after `data` inside the string, and the labels that are still possible."""
        after = advance(state, data)
        return after, self.fitting(after)

    def _enter(self, structure: bytes, data: bytes) -> Branch:
        """Return state and labels after `data`, which must begin with `structure` and an opening quote.

        White space before the quote may differ from that of the emitted answer.
        """
        if not data.startswith(structure):
            return None, ()
        rest = data[len(structure) :].lstrip(SPACES)
        if rest[:1] == b'"':
            return self._step(START, rest[1:])
        return None, ()

    def _follows(self, state: StringState) -> frozenset[int] | None:
        """Return the bytes that may come next, or None inside an unfinished escape."""
        if state.pending:
            return None
        done = len(state.prefix)
        return frozenset(b'"\\') | {key[done] for key in self._keys_below(state) if len(key) > done}

    def _spellings(self, state: StringState) -> int:
        """Return the number of nodes below `state` in a trie of the labels' bytes, escapes left out.

        Nodes that labels share count once; the closing quote of every label is a node of its own.
        """
        done = len(state.prefix)
        before = b""
        count = 0
        for key in self._keys_below(state):
            count += 1 + len(key) - max(done, len(commonprefix([before, key])))  # noqa: RUF071 (no paths)
            before = key
        return count

    def _keys_below(self, state: StringState) -> list[bytes]:
        low = bisect_left(self._keys, state.prefix)
        return self._keys[low : bisect_left(self._keys, state.prefix + b"\xff", low)]

    def _fitting(self, state: StringState | None) -> tuple[int, ...]:
        """Return the positions of the labels that are still possible at `state`, each once."""
        if state is None:
            return ()
        low = bisect_left(self._keys, state.prefix)
        if state.closed:
            exact = low < len(self._keys) and self._keys[low] == state.prefix
            if exact:
                return self._positions[low : low + 1]
            return ()
        # UTF-8 never holds the byte 0xff: it sorts behind every continuation of the prefix.
        high = bisect_left(self._keys, state.prefix + b"\xff", low)
        positions = self._positions[low:high]
        if state.pending:
            done = len(state.prefix)
            positions = tuple(
                position
                for key, position in zip(self._keys[low:high], positions, strict=True)
                if _may_continue(key[done:], state.pending)
            )
        if self._repeats:
            return tuple(dict.fromkeys(positions))
        return positions


def _may_continue(rest: bytes, pending: bytes) -> bool:
    """Return whether an escape that begins with `pending` can spell the first character of `rest`."""
    try:
        character = rest.decode("utf-8", "surrogatepass")[:1]
    except UnicodeDecodeError:
        return False  # inside a character, where no escape can begin
    units = character.encode("utf-16-be", "surrogatepass").hex()
    spelled = "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
    return spelled.startswith(pending.decode("ascii").lower())


@lru_cache(maxsize=256)
def trie_for(labels: tuple[str, ...], emitted: str) -> LabelTrie:
    """Return the trie of `labels`, with `emitted` as an alias if it is a label in another case.

    A model that capitalises one label would have capitalised the others: they get the same aliases.
    """
    trie, label_set = _plain_trie(labels)
    canonical = label_set.canonical(emitted)
    if canonical is None or canonical == emitted:
        return trie
    word = emitted.strip()
    before, _, behind = emitted.partition(word)
    aliases = {emitted: labels.index(canonical)}
    for spelled in (str, _capitalised, str.capitalize, str.title, str.upper, str.lower):
        if spelled(canonical) == word:
            for position, label in enumerate(labels):
                aliases.setdefault(before + spelled(label) + behind, position)
    return LabelTrie(labels, tuple((alias, at) for alias, at in aliases.items() if alias not in labels))


def _capitalised(label: str) -> str:
    """Return the label with a capital at its begin, the rest as it is."""
    return label[:1].upper() + label[1:]


@lru_cache(maxsize=64)
def _plain_trie(labels: tuple[str, ...]) -> tuple[LabelTrie, LabelSet]:
    label_set = LabelSet(labels)
    return LabelTrie(labels), label_set


_Follow = Callable[[bytes], Branch]


def extract_distribution(
    response: object,
    labels: Sequence[str] | LabelSet,
    field_path: str,
    space: LogprobSpace | str = LogprobSpace.MASKED,
) -> LabelDistribution:
    """Read a distribution over the labels from one answer's token log-probabilities.

    Parameters
    ----------
    response : object
        Anything `read_completion` takes.
    labels : sequence of str, length L, or LabelSet
        The label set.
    field_path : str
        Where the answer holds its label: ``category``, ``result.category``,
        ``results[].category`` (the first element), ``results[1].category`` or ``[].category``.
    space : {"masked", "raw"}, default "masked"
        Log-probability space of the answer. It does not change the reading, only the formula of
        `LabelDistribution.confidence`.

    Returns
    -------
    LabelDistribution
        ``logprobs`` of shape (L,): normalised, none below ``log(1e-12)``. ``label_mass``: the
        measured mass. ``unresolved_mass``: the mass that fits several labels, plus the bounds of the
        labels that no reported token leads to. An answer outside the label set is no error: its mass
        is on no label.

    Raises
    ------
    LogprobsUnavailableError
        The answer has no usable log-probabilities, or the field is missing, no text, or cannot be
        aligned with the tokens.
    DataError
        The response has an unknown shape.
    ConfigurationError
        `labels`, `field_path` or `space` is wrong; found before the response is looked at.

    Examples
    --------
    >>> from calibrant.logprobs import extract_distribution
    >>> from calibrant.testing import fake_response
    >>> response = fake_response("Food", probabilities={"Food": 0.7, "Rent": 0.2, "Taxi": 0.1})
    >>> distribution = extract_distribution(response, ["Food", "Rent", "Taxi"], "category")
    >>> distribution.probabilities.round(2).tolist(), round(distribution.confidence("Food"), 2)
    ([0.7, 0.2, 0.1], 0.7)
    """
    if space not in (LogprobSpace.MASKED, LogprobSpace.RAW):
        raise ConfigurationError(
            f"Expected space 'masked' or 'raw', got {space!r}: others are not read from an answer's tokens."
        )
    aligned, trie = _aligned_text(response, labels, field_path)
    names = trie.labels
    content = StringState(str(aligned.value).encode("utf-8", "surrogatepass"))
    spelled = trie.fitting(StringState(content.prefix, closed=True))
    masses = _walk(aligned, trie, is_label=bool(spelled))
    logprobs, measured = masses.normalised(len(names))
    return LabelDistribution(
        labels=names,
        logprobs=logprobs,
        measured=measured,
        joint_logprob=aligned.joint_logprob(),
        label_mass=masses.label_mass(),
        unresolved_mass=masses.unresolved(),
        space=LogprobSpace(space),
        emitted=names[spelled[0]] if spelled else "",
        closing_logprob=_closing_logprob(aligned, trie, content),
        shared=masses.shared(names),
    )


def _closing_logprob(aligned: AlignedField, trie: LabelTrie, content: StringState) -> float:
    """Return the log-probability of a separate closing quote that rules out longer labels; else 0.

    All reported tokens that close the value count (``"``, ``"}``), as they do in the distribution.
    """
    behind = aligned.closing()
    if not behind or len(trie.fitting(content)) < 2:
        return 0.0
    *empty, closer = behind
    closing = [
        logprob
        for data, logprob in listed_at(closer).items()
        if data and (state := trie.step(content, data)[0]) is not None and state.closed
    ]
    peak = max(closing)  # the emitted token is one of them
    closed = peak + log(fsum(exp(logprob - peak) for logprob in closing))
    return min(0.0, closed) + sum(checked_logprob(token.logprob) for token in empty)


@dataclass(frozen=True, kw_only=True)
class OpeningMasses:
    """Reported probability of labels, and of other texts, at the first token of a label.

    Attributes
    ----------
    legal : float
        Reported probability of tokens that begin a label, in [0, 1].
    illegal : float
        Reported probability of tokens that begin none, in [0, 1]. A token that belongs to the JSON
        before the label counts neither way.
    listed : int
        Tokens reported there, the emitted one included.
    """

    legal: float
    illegal: float
    listed: int


def opening_masses(response: object, labels: Sequence[str] | LabelSet, field_path: str) -> OpeningMasses:
    """Read the reported probability of labels, and of other texts, at the first token of the label.

    A provider that masks tokens by the grammar reports none for other texts.

    Parameters
    ----------
    response, labels, field_path
        As for `extract_distribution`.

    Raises
    ------
    LogprobsUnavailableError, DataError, ConfigurationError
        As `extract_distribution`.
    """
    aligned, trie = _aligned_text(response, labels, field_path)
    index = aligned.holder(aligned.begin)
    structured = aligned.start(index) < aligned.begin
    follow: _Follow = partial(trie.step, START)
    if structured:
        before = aligned.stream[aligned.start(index) : aligned.begin - 1]
        follow = partial(trie.enter, before.rstrip(SPACES))
    legal = illegal = 0.0
    listed = listed_at(aligned.tokens[index])
    for data, logprob in listed.items():
        state, fit = follow(data) if data else (None, ())
        if fit:
            legal += exp(logprob)
        elif state is not None or not structured:
            illegal += exp(logprob)
    return OpeningMasses(legal=min(1.0, legal), illegal=min(1.0, illegal), listed=len(listed))


def _aligned_text(
    response: object, labels: Sequence[str] | LabelSet, field_path: str
) -> tuple[AlignedField, LabelTrie]:
    """Return the text in a field of an answer with its tokens, and the trie of the labels."""
    names = _label_tuple(labels)
    parse_path(field_path)
    aligned = align(read_completion(response), field_path)
    if isinstance(aligned.value, str):
        return aligned, trie_for(names, aligned.value)
    raise LogprobsUnavailableError(
        f"Expected text in the field {field_path!r}, got {aligned.value!r:.100}: labels are text."
    )


def _label_tuple(labels: Sequence[str] | LabelSet) -> tuple[str, ...]:
    if isinstance(labels, LabelSet):
        return labels.labels
    names = LabelSet(labels).labels if isinstance(labels, str) else tuple(labels)
    if not {*map(type, names)} <= {str}:
        return LabelSet(names).labels  # raises for one that is no text, before `names` serve as a cache key
    trie_for(names, "")  # raises for a wrong label set, and caches the trie of a right one
    return names


@dataclass(slots=True)
class _BranchMasses:
    """Log-probabilities of the alternatives reported along an answer, with the labels they fit.

    Attributes
    ----------
    branches : list of (labels, mass)
        Branches that leave one label or several; the mass of all of them together.
    bounds : list of (labels, mass)
        Labels no reported token leads to; the largest possible mass of each of them.
    """

    branches: list[tuple[Sequence[int], float]] = field(default_factory=list)
    bounds: list[tuple[Sequence[int], float]] = field(default_factory=list)

    def peak(self) -> float:
        """Return the largest mass, as a logarithm; 0 without any."""
        return max([mass for _, mass in (*self.branches, *self.bounds)], default=0.0)

    def label_mass(self) -> float:
        """Return the total mass of the branches that fit exactly one label, in [0, 1]."""
        masses = [exp(mass) for fit, mass in self.branches if len(fit) == 1]
        return min(1.0, fsum(masses))

    def unresolved(self) -> float:
        """Return the mass that may belong to labels but cannot be assigned to one, in [0, 1]."""
        shared = fsum([exp(mass) for fit, mass in self.branches if len(fit) > 1])
        bounded = fsum([len(fit) * exp(mass) for fit, mass in self.bounds])
        return min(1.0, shared + bounded)

    def shared(self, names: Sequence[str]) -> tuple[tuple[tuple[str, ...], float], ...]:
        """Return the labels that a token begins together, and their mass as a share of all, largest first."""
        if all(len(fit) == 1 for fit, _ in self.branches):
            return ()
        groups: dict[tuple[int, ...], float] = {}
        peak = self.peak()
        total = fsum(exp(mass - peak) for _, mass in self.branches)
        total += fsum(len(fit) * exp(mass - peak) for fit, mass in self.bounds)
        for fit, mass in self.branches:
            if len(fit) > 1:
                share = exp(mass - peak) / total
                groups[tuple(fit)] = groups.get(tuple(fit), 0.0) + share
        found = sorted(groups.items(), key=lambda group: -group[1])
        return tuple((tuple(names[place] for place in fit), share) for fit, share in found)

    def normalised(self, n_labels: int) -> tuple[FloatArray, BoolArray]:
        """Return normalised log-probabilities and the mask of measured labels, both of shape (L,)."""
        # Forced tokens make raw masses tiny. Relative to the largest, only negligible ones underflow.
        peak = self.peak()
        weights = [0.0] * n_labels
        measured = [False] * n_labels
        own_first = sorted(self.branches, key=lambda branch: len(branch[0]) > 1)
        for fit, mass in own_first:
            share = exp(mass - peak) / len(fit)
            for label in fit:
                weights[label] += share
                measured[label] = measured[label] or len(fit) == 1
        for fit, mass in self.bounds:
            bound = exp(mass - peak)
            for label in fit:
                # The measured mass at the opening quote may be smaller than the bound of a later node.
                measured[label] = measured[label] and weights[label] >= bound
                weights[label] += bound
        return log_normalise(weights), read_only(measured)


def log_normalise(weights: list[float]) -> FloatArray:
    """Return the logarithms of weights as shares of their sum, none below that of `FLOOR`; read-only."""
    logprobs = _log_shares(weights)
    logprobs.setflags(write=False)  # a distribution copies arrays that can be written
    return logprobs


def _log_shares(weights: list[float]) -> FloatArray:
    total = fsum(weights)
    if total <= 0:
        return np.full(len(weights), -log(len(weights)))
    if len(weights) <= _FEW and min(weights) >= FLOOR * total:
        return np.array([log(weight / total) for weight in weights], dtype=np.float64)
    probabilities = np.array(weights, dtype=np.float64) / total
    if min(weights) < FLOOR * total:
        low = probabilities < FLOOR
        # The floor is taken from the others, so that the sum stays 1.
        probabilities *= (1.0 - FLOOR * np.count_nonzero(low)) / probabilities[~low].sum()
        probabilities[low] = FLOOR
    logprobs: FloatArray = np.log(probabilities)
    return logprobs


def _walk(aligned: AlignedField, trie: LabelTrie, *, is_label: bool) -> _BranchMasses:
    """Collect the reported alternatives, with their probabilities, along the tokens of the label."""
    masses = _BranchMasses()
    quote = aligned.begin - 1
    index = aligned.holder(quote)
    structure = aligned.stream[aligned.start(index) : quote].rstrip(SPACES)
    follow: _Follow = partial(trie.enter, structure)
    path = 0.0
    fit: Sequence[int] = range(len(trie.labels))
    if aligned.ends[index] == aligned.begin:
        path = _read_opening(aligned.tokens[index], follow, masses)
        index += 1
        follow = partial(trie.step, START)
    for token in aligned.tokens[index : aligned.holder(aligned.end) + 1]:
        state, left, logprob = _read_node(token, follow, fit, path, masses)
        path += logprob
        if len(left) == 1 and is_label:
            masses.branches.append((left, path))
            break
        if state is None or not left:
            break
        fit = left
        follow = partial(trie.step, state)
    return masses


def _read_opening(token: Token, follow: _Follow, masses: _BranchMasses) -> float:
    """Collect alternatives to the token of the opening quote; return its share as a logarithm."""
    listed = listed_at(token)
    emitted = listed.pop(token.data)
    branches = [(follow(data), logprob) for data, logprob in listed.items()]
    reaching = [(fit, logprob) for (state, fit), logprob in branches if state not in (None, START)]
    if not any(fit for fit, _ in reaching):
        return 0.0
    opening = [emitted, *(logprob for _, logprob in reaching)]
    peak = max(opening)
    opened = peak + log(fsum(exp(logprob - peak) for logprob in opening))
    masses.branches += [(fit, logprob - opened) for fit, logprob in reaching if fit]
    return emitted - opened


def _read_node(
    token: Token, follow: _Follow, fit: Sequence[int], path: float, masses: _BranchMasses
) -> tuple[StringState | None, Sequence[int], float]:
    """Collect the alternatives to one token; return its state, its labels and its log-probability."""
    listed = listed_at(token)
    state, left = follow(token.data)
    seen = set(left)
    for data, logprob in listed.items():
        # A token without bytes is a special one (end of turn): it leads to no label.
        if data and data != token.data:
            possible = follow(data)[1]
            if possible:
                seen.update(possible)
                masses.branches.append((possible, path + logprob))
    if len(seen) < len(fit):
        unseen = [label for label in fit if label not in seen]
        masses.bounds.append((unseen, path + least_bound(token, listed, len(unseen))))
    return state, left, listed[token.data]


def listed_at(token: Token) -> dict[bytes, float]:
    """Return the log-probability of each reported token by its bytes, the emitted token included."""
    listed = {token.data: checked_logprob(token.logprob)}
    for data, logprob in token.top:
        if not IMPOSSIBLE <= logprob <= 0.0:
            logprob = checked_logprob(logprob)  # noqa: PLW2901 - the same number, clipped
        if data not in listed or logprob > listed[data]:
            listed[data] = logprob
    return listed


def least_bound(token: Token, listed: dict[bytes, float], n_unseen: int = 1) -> float:
    """Return the logarithm of an upper bound on the probability of each unreported continuation."""
    others = [logprob for data, logprob in listed.items() if data != token.data]
    least = min(others) if others else listed[token.data] if token.top else 0.0
    rest = 1.0 - fsum(exp(logprob) for logprob in listed.values())
    bound = min(exp(least), rest / n_unseen)
    return log(bound) if bound > 0 else IMPOSSIBLE


def whole_label_distribution(
    labels: Sequence[str] | LabelSet, logprobs: Sequence[float]
) -> LabelDistribution:
    """Return the distribution over labels whose complete log-probabilities are known.

    Parameters
    ----------
    labels : sequence of str, length L, or LabelSet
        The label set.
    logprobs : sequence of float, length L
        Natural logarithms of the labels' probabilities as answers, finite, at most 0.

    Returns
    -------
    LabelDistribution
        In ``exact`` space, with ``unresolved_mass`` 0. ``label_mass`` is the sum of the probabilities.
    """
    names = LabelSet.of(labels).labels
    top = max(logprobs)
    shares = [exp(logprob - top) for logprob in logprobs]
    return LabelDistribution(
        labels=names,
        logprobs=log_normalise(shares),
        measured=np.ones(len(names), dtype=np.bool_),
        joint_logprob=top,
        label_mass=min(1.0, exp(top) * fsum(shares)),
        unresolved_mass=0.0,
        space=LogprobSpace.EXACT,
        emitted=names[logprobs.index(top)],
        error_bound=0.0,
    )
