"""Token filters of confidence methods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Literal, TypeAlias

from calibrant.cascade.methods._tool_calls import argument_spans
from calibrant.core._completion import Completion, Token
from calibrant.core._errors import LogprobsUnavailableError
from calibrant.logprobs._fields import align

TokenFilter: TypeAlias = Literal["all", "stop", "label", "tool_call_args"]
"""``all``: every token. ``label``: those that hold content of the label field's value. ``stop``: all
but special, stop and layout tokens. ``tool_call_args``: those that hold values of a tool call's arguments.
Under no filter count tokens that were given to the model or forced on it: probability 1, and no alternative.

Examples
--------
>>> from calibrant.cascade import AvgLogprob
>>> from calibrant.core import ConfigurationError
>>> dict(AvgLogprob(token_filter="stop").describe())
{'method': 'avg_logprob', 'token_filter': 'stop'}
>>> try:
...     AvgLogprob(token_filter="first")
... except ConfigurationError as error:
...     print(error)
Expected token_filter to be one of 'all', 'stop', 'label', 'tool_call_args', got 'first'.
"""

# A rounding error of a 32-bit float below probability 1.
_CERTAIN: Final = -1e-6

# JSON punctuation, quotes, the marks of a code fence, and white space.
_LAYOUT: Final = b'{}[]:,"` \t\r\n\v\f'
_SPECIAL = re.compile(
    rb"<[|\xef][^<>\s]*[|\x9c]>"  # <|im_end|>, and DeepSeek's with full-width bars
    rb"|</?s>|<(?:bos|eos|pad|unk|eot|eom|start_of_turn|end_of_turn|end_of_sentence|endoftext)>"
    rb"|\[/?INST\]"
)
_FENCE = re.compile(rb"\s*```[\w+-]*[ \t]*(?=\r?\n|$)")


def kept_tokens(tokens: Sequence[Token], which: TokenFilter, *, text: str, field: str) -> tuple[Token, ...]:
    """Return the tokens selected by a filter, in order, at least one.

    A token is dropped by ``stop`` if all it holds is JSON punctuation (braces, brackets, colons,
    commas, quotes), backticks or white space, nothing at all, or one special token such as
    ``<|im_end|>`` or ``</s>``; the first line of a code fence is dropped as a whole. A token that
    holds anything else beside them counts.

    Parameters
    ----------
    tokens : sequence of Token
        All tokens of the answer.
    which : TokenFilter
        Which of them count.
    text : str
        The answer, as the model wrote it.
    field : str
        JSON path of the label, for ``label``.

    Raises
    ------
    LogprobsUnavailableError
        No token counts, or the label cannot be found among them.
    """
    if which == "label":
        return align(Completion(text=text, tokens=tuple(tokens)), field).content()
    if which == "tool_call_args":
        kept = _holding_arguments(tokens)
    elif which == "stop":
        kept = _holding_content(tokens)
    else:
        kept = tuple(tokens)
    if not kept:
        content = "values of a tool call's arguments" if which == "tool_call_args" else "content"
        raise LogprobsUnavailableError(
            f"Expected tokens that hold {content}, got none among {len(tokens)} tokens of {text[:80]!r}: use another "
            "token_filter, such as 'label' or 'all'."
        )
    return kept


def chosen_tokens(kept: Sequence[Token], tokens: Sequence[Token]) -> tuple[Token, ...]:
    """Return the tokens with alternatives, in order, at least one.

    A token of probability 1 without an alternative was given to the model (the beginning of its answer) or forced
    on it by a grammar, and says nothing about how sure it is. Where a server lists no alternatives at all, that
    cannot be told, and every token counts.

    Parameters
    ----------
    kept : sequence of Token
        The tokens a filter kept.
    tokens : sequence of Token
        All tokens of the answer.

    Raises
    ------
    LogprobsUnavailableError
        The model had no choice at any of them.
    """
    if not any(token.top for token in tokens):
        return tuple(kept)
    chosen = tuple(token for token in kept if not _is_forced(token))
    if not chosen:
        raise LogprobsUnavailableError(
            f"Expected a token at which the model had a choice, got {len(kept)} of probability 1 without an "
            "alternative, which were given to the model or forced on it: use another token_filter, such as 'label', "
            "or the method label_probability."
        )
    return chosen


def _is_forced(token: Token) -> bool:
    return token.logprob >= _CERTAIN and all(data == token.data for data, _ in token.top)


def _holding_content(tokens: Sequence[Token]) -> tuple[Token, ...]:
    fence = _FENCE.match(b"".join([token.data for token in tokens]))
    behind = 0 if fence is None else fence.end()
    ends = accumulate([len(token.data) for token in tokens])
    return tuple(
        token
        for token, end in zip(tokens, ends, strict=True)
        if end > behind and token.data.strip(_LAYOUT) and not _SPECIAL.fullmatch(token.data.strip())
    )


def _holding_arguments(tokens: Sequence[Token]) -> tuple[Token, ...]:
    spans = argument_spans(b"".join([token.data for token in tokens]))
    starts = accumulate([len(token.data) for token in tokens], initial=0)
    # An empty token counts where it stands in a value: some servers report a cut character so.
    return tuple(
        token
        for token, start in zip(tokens, starts, strict=False)
        if any(begin < start + max(1, len(token.data)) and start < end for begin, end in spans)
    )
