"""Text generation with an embedded model: sampling of tokens, and grammars."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.clients._constraint import Constraint
from calibrant.core._errors import ConfigurationError
from calibrant.core._installation import install_command
from calibrant.core._tokens import TokenLogprobs, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS: Final = {
    "temperature": (0.0, float("inf"), 0.0),
    "top_p": (0.0, 1.0, 1.0),
    "min_p": (0.0, 1.0, 0.0),
    "frequency_penalty": (-2.0, 2.0, 0.0),
    "presence_penalty": (-2.0, 2.0, 0.0),
}
SAMPLING_OPTIONS: Final = frozenset({*_NUMBERS, "top_k", "seed"})
"""Options of `Sampler`."""


class Sampler:
    """Sampler of next tokens.

    Parameters
    ----------
    options : mapping
        ``temperature`` (default 0: always the most probable token), ``top_p``, ``min_p``, ``top_k``,
        ``frequency_penalty``, ``presence_penalty`` and ``seed``, as OpenAI and llama.cpp define them.

    Raises
    ------
    ConfigurationError
        A value is out of range.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._values = {name: _number(name, options.get(name), *limits) for name, limits in _NUMBERS.items()}
        self._top_k = int(_number("top_k", options.get("top_k"), 0, 1e9, 0))
        seed = options.get("seed")
        self._rng = np.random.default_rng(None if seed is None or int(seed) < 0 else int(seed))
        self._seen: dict[int, int] = {}
        self._planned: deque[int] = deque()

    @property
    def takes_the_best(self) -> bool:
        """True for greedy decoding without penalties: each token depends on its logits alone."""
        return not any(
            self._values[name] for name in ("temperature", "frequency_penalty", "presence_penalty")
        )

    def plan(self, tokens: Sequence[int]) -> None:
        """Queue tokens that `draw` returns before any sampled one."""
        self._planned.extend(tokens)

    def draw(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None) -> int:
        """Return the next token, one of those allowed."""
        if self._planned:
            return self._planned.popleft()
        scores = np.array(logits, dtype=np.float64)
        for token, count in self._seen.items():
            scores[token] -= count * self._values["frequency_penalty"] + self._values["presence_penalty"]
        if allowed is not None:
            scores[~allowed] = -np.inf
        token = int(scores.argmax()) if not self._values["temperature"] else self._sampled(scores)
        self._seen[token] = self._seen.get(token, 0) + 1
        return token

    def _sampled(self, logits: NDArray[np.float64]) -> int:
        order = np.argsort(-logits, kind="stable")
        if self._top_k:
            order = order[: self._top_k]
        weights = np.exp(logits[order] - logits[order[0]])
        weights /= weights.sum()
        # The token whose probability takes the sum beyond top_p is the last one kept.
        kept = (np.cumsum(weights) - weights < self._values["top_p"]) & (
            weights >= self._values["min_p"] * weights[0]
        )
        kept[0] = True
        order = order[kept]
        weights = np.exp((logits[order] - logits[order[0]]) / self._values["temperature"])
        return int(self._rng.choice(order, p=weights / weights.sum()))


def _number(name: str, value: object, least: float, most: float, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigurationError(f"Expected {name} between {least:g} and {most:g}, got {value!r:.40}.")
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
        self._size = len(vocabulary)
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(vocabulary, end, controls, tokenize)), n_vocab=len(vocabulary)
        )

    def compile(self, source: str) -> Grammar:
        """Return a grammar.

        Parameters
        ----------
        source : str
            In llguidance's form of Lark, or in llama.cpp's GBNF.

        Raises
        ------
        ConfigurationError
            It cannot be enforced.
        """
        if not source.lstrip().startswith("%llguidance"):
            from llguidance.gbnf_to_lark import any_to_lark  # noqa: PLC0415

            try:
                source = any_to_lark(source)
            except Exception as error:
                raise ConfigurationError(
                    f"Expected a grammar, got one that cannot be read: {error}."
                ) from error
        limits = self._library.LLParserLimits(max_items_in_row=200_000, max_grammar_size=20_000_000)
        matcher = self._library.LLMatcher(self._tokenizer, source, limits=limits, log_level=0)
        if matcher.is_error():
            raise ConfigurationError(
                f"Expected a grammar, got one that cannot be enforced: {matcher.get_error()}"
            )
        return Grammar(matcher, self._size)


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
        """Advance by a generated token."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConfigurationError(
                f"The grammar cannot be enforced any further: {self._matcher.get_error()}"
            )


class _Tokens:
    """Adapter of a tokeniser to llguidance's interface."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        end: int,
        controls: Sequence[int],
        tokenize: Callable[[str], list[int]],
    ) -> None:
        self.eos_token_id = end
        self.bos_token_id = None
        self.special_token_ids = sorted({end, *controls})
        # llguidance needs bytes for every token: those without any get bytes that no text holds.
        self.tokens = [piece or b"\xff<%d>" % token for token, piece in enumerate(vocabulary.pieces)]
        self._tokenize = tokenize

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenize(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def token_record(piece: bytes, logprob: float, top: Sequence[tuple[bytes, float]] = ()) -> dict[str, Any]:
    """Return a token in the format of OpenAI's log-probabilities."""
    return {
        "token": piece.decode("utf-8", "replace"),
        "bytes": list(piece),
        "logprob": logprob,
        "top_logprobs": [
            {"token": other.decode("utf-8", "replace"), "bytes": list(other), "logprob": value}
            for other, value in top
        ],
    }


def chosen_record(found: TokenLogprobs, token: int, *, alternatives: int) -> dict[str, Any]:
    """Return the record of a chosen token, with the most probable alternatives."""
    top = found.most_probable(alternatives) if alternatives else ()
    return token_record(found.vocabulary.pieces[token], float(found.at(np.array([token]))[0]), top)


def completion_record(
    model: str, text: str, reason: str, records: list[Any] | None, usage: dict[str, int]
) -> dict[str, Any]:
    """Return an OpenAI-shaped response."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": reason,
        "logprobs": None if records is None else {"content": records},
    }
    return {"object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


def complete_json(choice: Constraint, answer: dict[str, Any]) -> None:
    """Add the choice's fixed JSON around the generated value, to the text and its tokens."""
    first = answer["choices"][0]
    ended = first.get("finish_reason") != "length"
    tail = choice.suffix[1:] if ended else ""
    first["message"]["content"] += tail
    reported = first.get("logprobs")
    if reported and reported.get("content"):
        reported["content"] = [
            token_record(choice.prefix.encode(), 0.0),
            *(token for token in reported["content"] if token["bytes"]),
            *([token_record(tail.encode(), 0.0)] if tail else []),
        ]
