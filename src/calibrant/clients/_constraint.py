"""Constrained answers: JSON schemas as grammars, token sampling, search for the best value."""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from calibrant.core._completion import TokenContinuation, Vocabulary
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import json_text
from calibrant.core._installation import install_command
from calibrant.core._prediction import BoolArray, SingleArray
from calibrant.core._reported import is_number, reported_mapping
from calibrant.core._schema import SchemaNode, with_inner_schemas

if TYPE_CHECKING:
    from collections.abc import Callable

# 50,000 labels with 5,000,000 bytes were obeyed; larger enums were not measured.
MAX_ENUM_BYTES = 5_000_000

_MAX_DEPTH = 32
# Depth of the search for enums in an element: a few objects suffice, and a recursive schema has no end.
_ENUM_DEPTH = 3


_ResponseFormat: TypeAlias = Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """JSON answer with one open text: the fixed JSON around it, and its legal values.

    The answer is ``prefix + value + suffix``, with `value` from `values`.

    Attributes
    ----------
    prefix : str
        JSON up to and including the value's opening quote.
    values : tuple of str
        The legal values as they stand inside JSON quotes.
    suffix : str
        JSON from the value's closing quote on.
    """

    prefix: str
    values: tuple[str, ...]
    suffix: str

    def grammar(self) -> str:
        """Return the llguidance grammar of a value and its closing quote."""
        alternatives = " | ".join(json_text(value + '"') for value in self.values)
        # One terminal: as rules, 2,000 labels overflow a row of the parser.
        return f"%llguidance {{}}\nstart: VALUE\nVALUE: {alternatives}"

    def answer(self, value: str) -> str:
        """Return the JSON answer that holds `value`, which is given without JSON escapes."""
        return self.prefix + json_escaped(value) + self.suffix

    def allows(self, values: Iterable[str]) -> bool:
        """Return True if all `values`, given without JSON escapes, are legal."""
        return set(map(json_escaped, values)) <= set(self.values)


def constraint_for(response_format: _ResponseFormat) -> Constraint | None:
    """Return the constraint of a ``json_schema`` format with one open text; None for other formats.

    Raises
    ------
    ConfigurationError
        The enum is larger than `MAX_ENUM_BYTES`.
    """
    return _single_choice(choices_for(response_format))


@dataclass(frozen=True, kw_only=True)
class SchemaChoice:
    """Text field of an answer, with its legal values.

    Attributes
    ----------
    path : tuple of str
        The keys that lead to it.
    before : str
        JSON from the closing quote of the choice before, or from the beginning, up to and including this one's
        opening quote.
    values : tuple of str
        The legal values as they stand inside JSON quotes.
    """

    path: tuple[str, ...]
    before: str
    values: tuple[str, ...]

    def take(self, text: str, value: str) -> str:
        """Return the beginning `text` of an answer, extended by this field with `value`."""
        return text + self.before + json_escaped(value)


@dataclass(frozen=True, kw_only=True)
class SchemaChoices:
    """JSON answer whose open values are all text fields.

    Attributes
    ----------
    choices : tuple of SchemaChoice
        At least one, in the order of the answer.
    behind : str
        JSON from the last one's closing quote on.
    """

    choices: tuple[SchemaChoice, ...]
    behind: str


def choices_for(response_format: _ResponseFormat) -> SchemaChoices | None:
    """Return the open text fields of a ``json_schema`` format, in order; None for other formats.

    Raises
    ------
    ConfigurationError
        An enum is larger than `MAX_ENUM_BYTES`.
    """
    choices = _choices(_pieces(response_format))
    for choice in choices.choices if choices else ():
        size = sum(len(value.encode()) for value in choice.values)
        if size > MAX_ENUM_BYTES:
            raise ConfigurationError(
                f"The label set has {len(choice.values):,} labels with {size:,} bytes. llama.cpp ignores a grammar "
                f"it cannot hold without saying so, and was measured to obey up to {MAX_ENUM_BYTES:,} bytes. "
                "Shorten the labels, or classify in two steps."
            )
    return choices


@dataclass(frozen=True, kw_only=True)
class LabelArray:
    """JSON answer whose only open value is an array of labels, of any length.

    Attributes
    ----------
    opening : str
        JSON up to and including the array's opening bracket.
    element : Constraint
        The JSON of every element.
    behind : str
        JSON from the array's closing bracket on.
    """

    opening: str
    element: Constraint
    behind: str

    def beginning(self, values: Sequence[str]) -> str:
        """Return the beginning of an answer with `values` (unescaped), up to the end of the last element."""
        return self.opening + ", ".join(map(self.element.answer, values))

    def separator(self, values: Sequence[str]) -> str:
        """Return the JSON between `beginning(values)` and the next value, its opening quote included."""
        return f"{', ' if values else ''}{self.element.prefix}"


def array_for(response_format: _ResponseFormat) -> LabelArray | None:
    """Return the array of a ``json_schema`` format if nothing else is open in it; otherwise None.

    None as well for an array with a minimum or maximum number of elements.
    """
    parts = _pieces(response_format)
    arrays = [part for part in parts if isinstance(part, Constraint)]
    if len(arrays) != 1:
        return None
    (element,) = arrays
    place = parts.index(element)
    before = _fixed_json(parts[:place])
    behind = _fixed_json(parts[place + 1 :])
    if before is None or behind is None:
        return None
    return LabelArray(opening=f"{before}[", element=element, behind=f"]{behind}")


def json_grammar(response_format: _ResponseFormat) -> str | None:
    """Return an llguidance grammar for JSON on one line, or None if no JSON is asked for.

    White space anywhere would double the tokens. An array of enums without a limit gets at most as many elements as
    its largest enum has values: a small model repeated one label until its tokens ran out.
    """
    schema = _schema(response_format)
    if schema is None and response_format is not None and response_format.get("type") == "json_object":
        schema = {"type": "object"}
    if schema is None:
        return None
    style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return f"%llguidance {{}}\nstart: %json {json.dumps({**_bounded(schema, dict(schema)), 'x-guidance': style})}"


def _schema(response_format: _ResponseFormat) -> Mapping[str, Any] | None:
    if response_format is None or response_format.get("type") != "json_schema":
        return None
    schema = reported_mapping(response_format.get("json_schema")).get("schema")
    return schema if isinstance(schema, Mapping) else None


# The pieces of an answer: literal JSON, an open text, the element of an array of any length.
_Parts: TypeAlias = list[str | SchemaChoice | Constraint]


def _fixed_json(parts: _Parts) -> str | None:
    """Return the JSON of constant pieces; None if a piece is open."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        elif isinstance(part, SchemaChoice) and len(part.values) == 1:
            text += part.values[0]
        else:
            return None
    return text


def _pieces(response_format: _ResponseFormat) -> _Parts:
    """Return the pieces of a format's answers; empty if a value is open that is no text or array."""
    schema = _schema(response_format)
    try:
        if schema is None:
            return []
        return _parts(SchemaNode.of(schema), ()) or []
    except ConfigurationError:
        return []  # a schema that cannot be followed is left to the engine


def _choices(parts: _Parts) -> SchemaChoices | None:
    """Return the open text fields among the pieces; None if there are none, or if there is an array."""
    has_choice = any(isinstance(part, SchemaChoice) and len(part.values) > 1 for part in parts)
    choices: list[SchemaChoice] = []
    text = ""
    for part in parts:
        if isinstance(part, Constraint):
            return None
        if isinstance(part, str):
            text += part
        elif has_choice and len(part.values) == 1:
            text += part.values[0]  # beside real choices, an enum of one value is literal JSON
        else:
            choices.append(replace(part, before=text))
            text = ""
    if choices:
        return SchemaChoices(choices=tuple(choices), behind=text)
    return None


def _single_choice(choices: SchemaChoices | None) -> Constraint | None:
    """Return the open text field as a `Constraint`, or None unless there is exactly one."""
    if choices is None or len(choices.choices) != 1:
        return None
    (only,) = choices.choices
    return Constraint(prefix=only.before, values=only.values, suffix=choices.behind)


def _parts(node: SchemaNode, path: tuple[str, ...]) -> _Parts | None:
    """Return the pieces of a node's values; None if a value is open that is no text or array."""
    if len(path) > _MAX_DEPTH:  # a schema may be recursive
        return None
    if node.is_closed:
        values = node.values
        if values and all(isinstance(value, str) for value in values):
            written = dict.fromkeys(map(json_escaped, values))
            return ['"', SchemaChoice(path=path, before="", values=tuple(written)), '"']
        return [json_text(values[0])] if len(values) == 1 else None
    if not node.is_one_object:
        element = _element(node, path)
        return None if element is None else [element]
    parts: _Parts = ["{"]
    for name in node.names:
        child = node.child(name)
        inner = None
        if child is not None:
            inner = _parts(child, (*path, name))
        if inner is None:
            return None
        comma = ", " if len(parts) > 1 else ""
        parts += [f"{comma}{json.dumps(name, ensure_ascii=False)}: ", *inner]
    return [*parts, "}"]


# An array with no other keywords than these may have any length and any elements of its kind.
_FREE_ARRAY = frozenset({"type", "items", "uniqueItems", "title", "description", "default", "examples"})


def _element(node: SchemaNode, path: tuple[str, ...]) -> Constraint | None:
    """Return the constraint on the elements of an array of any length; None for other nodes."""
    if len(node.alternatives) != 1:
        return None
    (only,) = node.alternatives
    items = node.child(0)
    if items is None or only.get("type") != "array" or not only.keys() <= _FREE_ARRAY:
        return None
    return _single_choice(_choices(_parts(items, (*path, "[]")) or []))


def _bounded(node: Any, root: dict[str, Any]) -> Any:  # noqa: ANN401 (any part of a schema)
    """Return the schema with ``maxItems``, the size of the largest enum, for arrays of enums without it."""
    if isinstance(node, list):
        return [_bounded(part, root) for part in node]
    if not isinstance(node, Mapping):
        return node
    bounded = with_inner_schemas(node, partial(_bounded, root=root))
    if node.get("type") == "array" and "maxItems" not in node:
        most = _largest_enum(SchemaNode.of(node.get("items"), root))
        if most:
            bounded["maxItems"] = most
    return bounded


def _largest_enum(node: SchemaNode, depth: int = 0) -> int:
    """Return the size of the largest enum up to `_ENUM_DEPTH` levels below a node; 0 without an enum."""
    if depth == _ENUM_DEPTH:
        return len(node.values)
    below = [node.child(0), *map(node.child, node.names)]
    return max(len(node.values), *(_largest_enum(child, depth + 1) for child in below if child), 0)


def json_escaped(value: str) -> str:
    """Return a text as it stands between the quotes of a JSON text."""
    return json_text(value)[1:-1]


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
        seed = -1
        if options.get("seed") is not None:
            seed = int(options["seed"])
        self._rng = np.random.default_rng(seed if seed >= 0 else None)
        self._planned: deque[int] = deque()

    @property
    def is_greedy(self) -> bool:
        """True if the most probable allowed token is always drawn (temperature 0)."""
        return not self._temperature

    def plan(self, tokens: Sequence[int]) -> None:
        """Queue tokens that `draw` returns before any sampled one."""
        self._planned.extend(tokens)

    def draw(self, logits: SingleArray, allowed: BoolArray | None) -> int:
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
    if not is_number(value) or not 0.0 <= value <= most:
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
        self.eos_token_id = end
        self.bos_token_id = None
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


@dataclass(eq=False)
class Grammar:
    """State of a grammar during the generation of one answer.

    Attributes
    ----------
    matcher : llguidance.LLMatcher
        The grammar with its position.
    size : int
        Number of tokens.
    """

    matcher: Any
    size: int

    @property
    def is_over(self) -> bool:
        """True once the answer is complete."""
        return bool(self.matcher.is_stopped())

    def allowed(self) -> BoolArray:
        """Return a mask of the tokens that may come next, shape (V,)."""
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        allowed = np.zeros(self.size, dtype=np.bool_)
        mask = np.unpackbits(bits, bitorder="little")[: self.size]
        allowed[: len(mask)] = mask
        return allowed

    def accept(self, token: int) -> None:
        """Advance the grammar by a generated token."""
        self.matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self.matcher.is_error():
            raise ConfigurationError(
                f"The grammar cannot be enforced any further: {self.matcher.get_error()}"
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
            logprob = np.log(max(share, np.finfo(float).tiny))
            heapq.heappush(waiting, (cost - logprob, longer))
    return ()
