"""Text generation with an embedded model: token sampling, grammars, search for the best value."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.clients._constraint import Constraint
from calibrant.core._errors import ConfigurationError
from calibrant.core._installation import install_command
from calibrant.core._tokens import TokenContinuation, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable


SAMPLING_OPTIONS: Final = frozenset({"temperature", "top_p", "seed"})
"""Options of `Sampler`."""


class Sampler:
    """Sampler of next tokens.

    Parameters
    ----------
    options : mapping
        ``temperature`` (default 0: always the most probable token), ``top_p`` and ``seed``, as OpenAI defines them.

    Raises
    ------
    ConfigurationError
        A value is out of range.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._temperature = _number("temperature", options.get("temperature", 0.0), most=float("inf"))
        self._top_p = _number("top_p", options.get("top_p", 1.0), most=1.0)
        seed = options.get("seed")
        self._rng = np.random.default_rng(None if seed is None or int(seed) < 0 else int(seed))
        self._planned: deque[int] = deque()

    @property
    def is_greedy(self) -> bool:
        """True if the most probable allowed token is always drawn (temperature 0)."""
        return not self._temperature

    def plan(self, tokens: Sequence[int]) -> None:
        """Queue tokens that `draw` returns before any sampled one."""
        self._planned.extend(tokens)

    def draw(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None) -> int:
        """Return the next planned token, or else sample one of the allowed tokens."""
        if self._planned:
            return self._planned.popleft()
        scores = np.array(logits, dtype=np.float64)
        if allowed is not None:
            scores[~allowed] = -np.inf
        if self.is_greedy:
            return int(scores.argmax())
        order = np.argsort(-scores, kind="stable")
        weights = np.exp(scores[order] - scores[order[0]])
        weights /= weights.sum()
        # The token whose probability takes the sum beyond top_p is the last one kept.
        kept = np.cumsum(weights) - weights < self._top_p
        kept[0] = True
        order = order[kept]
        weights = np.exp((scores[order] - scores[order[0]]) / self._temperature)
        return int(self._rng.choice(order, p=weights / weights.sum()))


def _number(name: str, value: object, *, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= most:
        raise ConfigurationError(f"Expected {name} between 0 and {most:g}, got {value!r:.40}.")
    return float(value)


class Grammars:
    """Compiler of grammars for a vocabulary, by llguidance.

    Parameters
    ----------
    vocabulary : Vocabulary
        The model's tokens.
    end : int
        The token that ends an answer.
    controls : sequence of int
        Tokens that are no text.
    tokenize : callable
        Text -> tokens.

    Raises
    ------
    ConfigurationError
        llguidance is not installed.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        end: int,
        controls: Sequence[int],
        tokenize: Callable[[str], list[int]],
    ) -> None:
        try:
            import llguidance  # noqa: PLC0415 (an extra)
        except ImportError as error:
            raise ConfigurationError(
                f"A schema is enforced by llguidance, which cannot be imported ({error}). "
                f"Run: {install_command('local')}"
            ) from error
        self._library = llguidance
        self._tokenize = tokenize
        # The attributes that llguidance reads from a tokeniser. It needs bytes for every token: those without any get
        # bytes that no text holds.
        self.eos_token_id, self.bos_token_id = end, None
        self.special_token_ids = sorted({end, *controls})
        self.tokens = [piece or b"\xff<%d>" % token for token, piece in enumerate(vocabulary.pieces)]
        wrapper = llguidance.TokenizerWrapper(self)
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=len(vocabulary))

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenize(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)

    def compile(self, source: str) -> Grammar:
        """Compile the source text of a grammar.

        Parameters
        ----------
        source : str
            In llguidance's form of Lark.

        Raises
        ------
        ConfigurationError
            The schema cannot be enforced.
        """
        limits = self._library.LLParserLimits(max_items_in_row=200_000, max_grammar_size=20_000_000)
        matcher = self._library.LLMatcher(self._tokenizer, source, limits=limits, log_level=0)
        if matcher.is_error():
            raise ConfigurationError(
                f"Expected a grammar, got one that cannot be enforced: {matcher.get_error()}"
            )
        return Grammar(matcher, len(self.tokens))


class Grammar:
    """State of a grammar during the generation of one answer.

    Parameters
    ----------
    matcher : llguidance.LLMatcher
        The grammar with its position.
    size : int
        Number of tokens.
    """

    def __init__(self, matcher: Any, size: int) -> None:  # noqa: ANN401 (a type of an extra)
        self._matcher = matcher
        self._size = size

    @property
    def is_over(self) -> bool:
        """True once the answer is complete."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> NDArray[np.bool_]:
        """Return a mask of the tokens that may come next, shape (V,)."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        allowed = np.zeros(self._size, dtype=np.bool_)
        mask = np.unpackbits(bits, bitorder="little")[: self._size]
        allowed[: len(mask)] = mask
        return allowed

    def accept(self, token: int) -> None:
        """Advance the grammar by a generated token."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConfigurationError(
                f"The grammar cannot be enforced any further: {self._matcher.get_error()}"
            )


def token_record(piece: bytes, logprob: float, top: Sequence[tuple[bytes, float]] = ()) -> dict[str, Any]:
    """Return a token in the format of OpenAI's log-probabilities."""
    listed, *others = (
        {"token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": value}
        for data, value in ((piece, logprob), *top)
    )
    return {**listed, "top_logprobs": others}


async def best_value(row: TokenContinuation, choice: Constraint, begun: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of the most probable value and its closing quote, after the tokens `begun`.

    A value's probability is the product of the probabilities of its tokens, as the tokeniser writes them in place. The
    most probable beginning is expanded first, so the first complete value is the best one. Greedy decoding would not
    find it: its most probable token may be the beginning of many improbable values.

    Empty where one token spans the value's beginning and the text before it.
    """
    spelled = [row.tokens(f'{choice.prefix}{value}"') for value in choice.values]
    size = len(begun)
    if any(tokens[:size] != tuple(begun) or len(tokens) == size for tokens in spelled):
        return ()
    paths = {tokens[size:] for tokens in spelled}
    waiting: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    while waiting:
        cost, path = heapq.heappop(waiting)
        if path in paths:
            return path
        steps = {one[len(path)] for one in paths if one[: len(path)] == path}
        (logprobs,) = await row.next_logprobs([(*begun, *path)])
        for step in steps:
            longer = (*path, step)
            tokens = row.vocabulary.closing(step) if longer in paths else np.array([step])
            share = float(np.exp(logprobs.at(tokens)).sum())
            heapq.heappush(waiting, (cost - np.log(max(share, np.finfo(float).tiny)), longer))
    return ()
