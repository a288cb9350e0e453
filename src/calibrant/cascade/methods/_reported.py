"""Confidence methods that use token log-probabilities or the probability of the label."""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Self, TypeAlias, get_args

from calibrant.calibration._calibrators import ConfidenceCalibrator
from calibrant.cascade._protocol import (
    Answered,
    Assessment,
    BaseMethod,
    Calibrator,
    NoEvidence,
    calibrator_record,
    for_one_row,
    is_share,
)
from calibrant.core._completion import Completion
from calibrant.core._errors import (
    CalibrantError,
    ConfigurationError,
    LogprobsUnavailableError,
    NotFittedError,
)
from calibrant.core._labels import label_in
from calibrant.core._prediction import JsonObject, Record, Token
from calibrant.logprobs._completion import IMPOSSIBLE
from calibrant.logprobs._fields import UnparsedError, align, field_value
from calibrant.metrics._validation import check_number

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

# A quote behind a backslash is part of a string.
_ARGUMENTS: Final = re.compile(rb'(?<!\\)"arguments"[ \t\r\n]*:[ \t\r\n]*')
_DECODER: Final = json.JSONDecoder()
# Literals, and what may follow the digits of a number.
_CUT_OFF: Final = ("true", "false", "null", "NaN", "Infinity", "-Infinity", ".", "e+", "e-", "E+", "E-")
_MOST_FAILURES: Final = 256  # each takes time in proportion to the answer
_LONGEST: Final = max(map(len, _CUT_OFF))
# Only places are wanted, so that an escape that JSON does not know, or a raw line break, is no fault.
_UNSAFE: Final = re.compile(rb"\\.|[\x00-\x1f]", re.DOTALL)
# A string (its closing quote may be cut off), a mark, or a number or literal.
_LEXEME: Final = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)\\?("?)|([{}\[\]:,])|([^\s{}\[\]:,"]+)', re.DOTALL)
_STRING, _QUOTE, _MARK, _SCALAR = 1, 2, 3, 4  # its groups
_PARTNERS: Final = {b"}": b"{", b"]": b"["}
# Halves of a surrogate pair may stay apart: only places are wanted.
_UNIT: Final = re.compile(rb"\\u[0-9a-fA-F]{4}|\\.|[^\\]+", re.DOTALL)

Span: TypeAlias = tuple[int, int]

_SCALE: Final = 3.0  # nats
# Alternatives below exp(-27.6) = 1e-12 are all the same to us, as they are in a label distribution:
# OpenAI's -9999 for what it rules out would otherwise decide the mean of a whole answer.
_LEAST: Final = math.log(1e-12)
_TOLERANCE: Final = 1e-9
_LEAST_CONFIDENCE: Final = 1e-300  # as in `Prediction.log_confidence`


def kept_tokens(tokens: Sequence[Token], which: TokenFilter, *, text: str, field: str) -> tuple[Token, ...]:
    """Return the tokens that a filter selects, in order; raise if it selects none.

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
    """Return the tokens at which the model had a choice, in order; raise if there is none.

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
    chosen = tuple(
        token
        for token in kept
        if token.logprob < _CERTAIN or any(data != token.data for data, _ in token.top)
    )
    if not chosen:
        raise LogprobsUnavailableError(
            f"Expected a token at which the model had a choice, got {len(kept)} of probability 1 without an "
            "alternative, which were given to the model or forced on it: use another token_filter, such as 'label', "
            "or the method label_probability."
        )
    return chosen


def _holding_content(tokens: Sequence[Token]) -> tuple[Token, ...]:
    fence = _FENCE.match(b"".join([token.data for token in tokens]))
    behind = 0 if fence is None else fence.end()
    kept = []
    end = 0
    for token in tokens:
        end += len(token.data)
        is_special = _SPECIAL.fullmatch(token.data.strip())
        if end > behind and token.data.strip(_LAYOUT) and not is_special:
            kept.append(token)
    return tuple(kept)


def _holding_arguments(tokens: Sequence[Token]) -> tuple[Token, ...]:
    spans = argument_spans(b"".join([token.data for token in tokens]))
    kept = []
    start = 0
    for token in tokens:
        # An empty token counts where it stands in a value: some servers report a cut character so.
        stop = start + max(1, len(token.data))
        if any(begin < stop and start < end for begin, end in spans):
            kept.append(token)
        start += len(token.data)
    return tuple(kept)


def argument_spans(data: bytes) -> list[Span]:
    """Return the byte ranges of all argument values, in order, without overlaps.

    A value is a number, a literal or the content of a string, at any depth below the key
    ``arguments`` of any object: keys, quotes and punctuation are not. Keys behind ``arguments`` in
    the same object belong to the call, not to its arguments. Arguments that are encoded as one
    string are read as the JSON they hold; where they hold none, their content is one value. The
    closing quote stands in for the content of an empty string. Everything around the calls
    (``<tool_call>``, prose, a code fence) is passed over, and a call that was cut off counts as far
    as it goes. What follows 256 values that are no JSON is not read.

    Parameters
    ----------
    data : bytes
        The answer.
    """
    spans: list[Span] = []
    text = _plain_text(data)
    end = 0
    failures = 0
    for key in _ARGUMENTS.finditer(data):
        begin = key.end()
        if begin < end:  # among the arguments of another call
            continue
        if failures == _MOST_FAILURES:
            break
        try:
            end = _value_end(text, begin)
        except RecursionError:  # a call inside may be read
            continue
        failures += end == begin
        encoded = None
        if data.startswith(b'"', begin) and (string := _LEXEME.match(data, begin, end)):
            encoded = _encoded_spans(string[_STRING], begin + 1)
        spans += _content_spans(data, begin, end) if encoded is None else encoded
    return spans


def _plain_text(data: bytes) -> str:
    """Decode bytes one to one, with spaces in place of escapes and control characters."""
    return _UNSAFE.sub(lambda unsafe: b" " * len(unsafe[0]), data).decode("latin-1")


def _value_end(text: str, begin: int) -> int:
    """Return the end of the JSON value at `begin`: len(text) if cut off, `begin` if invalid."""
    try:
        return _DECODER.raw_decode(text, begin)[1]
    except json.JSONDecodeError as error:
        # The decoder stops where JSON ends, so that text after it, which may be long, is not read.
        rest = text[error.pos : error.pos + _LONGEST + 1]
        is_cut_off = error.msg.startswith("Unterminated string") or any(
            number.startswith(rest) for number in _CUT_OFF
        )
        return len(text) if is_cut_off else begin


def _content_spans(data: bytes, begin: int, end: int) -> list[Span]:
    """Return the byte ranges of all scalar values in a JSON document; [] if brackets do not match."""
    spans: list[Span] = []
    opened: list[bytes] = []
    last = b""
    for match in _LEXEME.finditer(data, begin, end):
        mark = match[_MARK] or b""
        if mark in _PARTNERS.values():
            opened.append(mark)
        elif mark in _PARTNERS and opened.pop() != _PARTNERS[mark]:
            return []
        elif match[_SCALAR]:
            spans.append(match.span(_SCALAR))
        elif not mark and not (opened[-1:] == [b"{"] and last in {b"{", b","}):  # no key
            if match[_STRING]:
                spans.append(match.span(_STRING))
            elif match[_QUOTE]:
                spans.append(match.span(_QUOTE))
        last = mark
    return spans


def _encoded_spans(raw: bytes, start: int) -> list[Span] | None:
    """Return the byte ranges of the values of JSON that a string holds; None if it holds no JSON."""
    decoded = bytearray()
    origin: list[Span] = []  # of every decoded byte
    for match in _UNIT.finditer(raw):
        begin = match.start() + start
        end = match.end() + start
        if not match[0].startswith(b"\\"):
            decoded += match[0]
            origin += [(at, at + 1) for at in range(begin, end)]
            continue
        try:
            unit = json.loads(b'"' + match[0] + b'"').encode("utf-8", "surrogatepass")
        except ValueError:
            return None
        decoded += unit
        origin += [(begin, end)] * len(unit)
    document = bytes(decoded).rstrip()
    first = len(document) - len(document.lstrip())
    if document[first : first + 1] not in _PARTNERS.values():
        return None
    try:
        if _value_end(_plain_text(document), first) < len(document):
            return None
    except RecursionError:
        return None
    return [
        (origin[begin][0], origin[end - 1][1])
        for begin, end in _content_spans(document, first, len(document))
    ]


def _gap(token: Token) -> float:
    listed = [logprob for _, logprob in token.top]
    if all(data != token.data for data, _ in token.top):
        listed.append(token.logprob)
    if len(listed) < 2:
        raise LogprobsUnavailableError(
            f"Expected at least two alternatives at every token that counts, got {len(listed)} at {token.data!r}: "
            "ask for top_logprobs of 2 or more, or use avg_logprob with a server that lists no alternatives."
        )
    best, second = sorted(listed, reverse=True)[:2]
    return max(best, _LEAST) - max(second, _LEAST)


@dataclass(frozen=True, kw_only=True)
class _TokenMethod(BaseMethod):
    """Base class of methods that read an answer's tokens."""

    token_filter: TokenFilter = "label"  # noqa: S105 (no password)
    default_threshold = 0.5
    needs_tokens: ClassVar[bool] = True
    top_logprobs: ClassVar[int] = 2  # an alternative tells a sure token from a forced one
    settings_keys: ClassVar[tuple[str, ...]] = ("token_filter",)

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """Return the method of a ``[cascade]`` section, with its ``token_filter``."""
        return cls(token_filter=settings["token_filter"])

    def __post_init__(self) -> None:
        if self.token_filter not in get_args(TokenFilter):
            filters = ", ".join(map(repr, get_args(TokenFilter)))
            raise ConfigurationError(
                f"Expected token_filter to be one of {filters}, got {self.token_filter!r}."
            )

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the confidence of the selected tokens; `NoEvidence` if there are none."""
        try:
            native = self._measure(_evidence(answered, self.token_filter))
        except LogprobsUnavailableError as error:
            return NoEvidence(reason=str(error))
        return Assessment(confidence=self.to_confidence(native), native=native)

    def describe(self) -> JsonObject:
        """Return the method's name and settings."""
        return {**super().describe(), "token_filter": self.token_filter}

    @abstractmethod
    def _measure(self, tokens: Sequence[Token]) -> float: ...


def _evidence(answered: Answered, token_filter: TokenFilter) -> tuple[Token, ...]:
    """Return the selected tokens; LogprobsUnavailableError if they are unusable."""
    prediction = answered.prediction
    classifier = answered.classifier
    if not prediction.tokens:
        raise LogprobsUnavailableError(
            "Expected the answer's tokens with their log-probabilities, got none: decode the answer "
            "(scoring='decode'), keep its tokens (keep_tokens=True, top_logprobs of 1 or more) "
            "and use a provider that reports log-probabilities; or use label_probability where labels are scored."
        )
    _refuse_corrected(answered)
    kept = kept_tokens(prediction.tokens, token_filter, text=prediction.text, field=classifier.field)
    chosen = chosen_tokens(kept, prediction.tokens)
    for token in chosen:
        # Reading an answer drops these; tokens that were made elsewhere may still hold them.
        logprobs = [token.logprob, *(value for _, value in token.top)]
        if not all(logprob <= 0.0 for logprob in logprobs):
            raise LogprobsUnavailableError(
                f"Expected log-probabilities <= 0, got {token.logprob} at {token.data!r} or NaN or more among its "
                "alternatives: the answer's evidence cannot be used."
            )
    return chosen


def _refuse_corrected(answered: Answered) -> None:
    """Refuse an answer whose label was replaced by a correction or head: its tokens do not match."""
    prediction = answered.prediction
    classifier = answered.classifier
    if classifier.prior_correction is None and classifier.head is None:
        return
    try:
        written = field_value(prediction.text, classifier.field)
    except UnparsedError:
        return
    label = label_in(written, classifier.labels)
    if label is not None and label != prediction.label:
        raise LogprobsUnavailableError(
            f"Expected the tokens of {prediction.label!r}, got those of {label!r}, which the label-prior correction "
            "or the head replaced: use label_probability, or leave it out."
        )


@dataclass(frozen=True, kw_only=True)
class AvgLogprob(_TokenMethod):
    """Mean log-probability of the emitted tokens.

    With x the mean natural log-probability of the tokens that count, the confidence is
    ``clamp((x + 3) / 3, 0, 1)``: 1 where every token was certain, 0 from a mean of -3 down. The native
    unit is x, in nats, <= 0.

    The default threshold is 2/3, the confidence of x = -1: a geometric mean of 0.37 per token.

    A log-probability is what the server reports: the probability under the grammar in ``masked``
    space, the unconstrained model's in ``raw`` space. There, a label that a grammar forced on the model
    looks improbable however clear the choice among the labels was, and nearly every answer of a small
    model falls below the threshold: `LabelProbability` compares the labels with each other.

    Parameters
    ----------
    token_filter : {"label", "all", "stop", "tool_call_args"}, default "label"
        Which tokens count, see `TokenFilter`.

    Raises
    ------
    ConfigurationError
        `token_filter` is unknown.

    Examples
    --------
    >>> round(AvgLogprob().to_confidence(-1.0), 3)
    0.667
    """

    name: ClassVar[str] = "avg_logprob"
    default_threshold = 2.0 / 3.0

    def _measure(self, tokens: Sequence[Token]) -> float:
        return math.fsum(max(token.logprob, IMPOSSIBLE) for token in tokens) / len(tokens)

    def to_confidence(self, native: float) -> float:
        """Return the confidence of a mean natural log-probability.

        Raises
        ------
        ConfigurationError
            The value is not a finite number <= 0.
        """
        mean = check_number("a mean natural log-probability", native, "(-inf, 0]")
        return max((mean + _SCALE) / _SCALE, 0.0)


@dataclass(frozen=True, kw_only=True)
class Margin(_TokenMethod):
    """Mean gap in log-probability between the most probable token and the next one.

    With x the mean difference of the two highest log-probabilities at the tokens that count, the
    confidence is ``1 - exp(-x / 3)``. The native unit is x, in nats, >= 0. The order in which
    alternatives are listed does not matter, and the emitted token is one of them even where it is not
    listed. Probabilities below 1e-12 count as 1e-12, so that no gap exceeds 27.6 nats and one
    alternative that was ruled out does not outweigh tokens that were close. It says how
    decided the model was, not that it was for the emitted token: under sampling, or in ``raw`` space
    under a grammar, the two differ.

    Every token that counts needs two alternatives. One at which the model had no choice does not count.

    Parameters
    ----------
    token_filter : {"label", "all", "stop", "tool_call_args"}, default "label"
        Which tokens count, see `TokenFilter`.

    Raises
    ------
    ConfigurationError
        `token_filter` is unknown.

    Examples
    --------
    >>> round(Margin().to_confidence(2.0), 3)
    0.487
    """

    name: ClassVar[str] = "margin"

    def _measure(self, tokens: Sequence[Token]) -> float:
        return math.fsum(_gap(token) for token in tokens) / len(tokens)

    def to_confidence(self, native: float) -> float:
        """Return the confidence of a mean gap in nats.

        Raises
        ------
        ConfigurationError
            The value is not a finite number >= 0.
        """
        return 1.0 - math.exp(-check_number("a mean gap in nats", native, "[0, inf)") / _SCALE)


@dataclass(frozen=True, kw_only=True)
class Hybrid(_TokenMethod):
    """The weighted mean of the confidences of `AvgLogprob` and `Margin`.

    The native unit is the confidence itself. Where a weight is 0 its evidence is not needed.

    Parameters
    ----------
    logprob_weight, margin_weight : float, default 0.5
        In [0, 1]; their sum is 1.
    token_filter : {"label", "all", "stop", "tool_call_args"}, default "label"
        Which tokens count, see `TokenFilter`.

    Raises
    ------
    ConfigurationError
        A weight is out of range, they do not add up to 1 (within 1e-9), or `token_filter` is unknown.

    Examples
    --------
    >>> from calibrant.cascade import Cascade, Hybrid
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> fakes = [FakeClient(["cat", "dog"], {}, default=("cat", share)) for share in (0.6, 0.99)]
    >>> models = [Classifier(model=fake, labels=["cat", "dog"], field="category") for fake in fakes]
    >>> method = Hybrid(logprob_weight=0.3, margin_weight=0.7)
    >>> steps = Cascade(models, method=method, threshold=0.7).classify("It purrs.").steps
    >>> [round(step.confidence, 3) for step in steps]
    [0.337, 0.848]
    """

    logprob_weight: float = 0.5
    margin_weight: float = 0.5
    name: ClassVar[str] = "hybrid"
    settings_keys: ClassVar[tuple[str, ...]] = ("token_filter", "hybrid_weights")
    unit: ClassVar[str] = "a weighted score"

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """Return the method of a ``[cascade]`` section, with its ``token_filter`` and ``hybrid_weights``."""
        return cls(token_filter=settings["token_filter"], **settings["hybrid_weights"] or {})

    def __post_init__(self) -> None:
        super().__post_init__()
        total = check_number("logprob_weight", self.logprob_weight, "[0, 1]")
        total += check_number("margin_weight", self.margin_weight, "[0, 1]")
        if abs(total - 1.0) > _TOLERANCE:
            raise ConfigurationError(
                f"Expected weights that add up to 1, got logprob_weight={self.logprob_weight!r} and "
                f"margin_weight={self.margin_weight!r}, which make {total:g}: give both."
            )

    def _measure(self, tokens: Sequence[Token]) -> float:
        parts = ((self.logprob_weight, AvgLogprob()), (self.margin_weight, Margin()))
        # Evidence of a half that does not count is not needed.
        total = 0.0
        for weight, half in parts:
            if weight > 0:
                native = half._measure(tokens)  # noqa: SLF001 (of its own kind)
                total += weight * half.to_confidence(native)
        return min(total, 1.0)

    def describe(self) -> JsonObject:
        """Return the method's name and settings."""
        weights = {"logprob_weight": float(self.logprob_weight), "margin_weight": float(self.margin_weight)}
        return {**super().describe(), **weights}


class LabelProbability(BaseMethod):
    """The probability of the label, as the classifier reports it, calibrated or not.

    It needs no tokens: labels that were scored (``exact``), read from tokens (``masked``, ``raw``) or
    sampled all have one. The native unit is the natural logarithm of the confidence, calibration
    included; confidences below 1e-300 count as that.

    The default threshold is 0.7, as for other methods whose confidence reads as the chance of being
    right. It must lie above 0.5: the more probable of two labels never falls below that.

    Parameters
    ----------
    calibrator : Calibrator, optional
        Fitted on other rows, as those of `calibrant.calibration`, which are told the labels as well.

    Raises
    ------
    NotFittedError
        The calibrator was not fitted.
    ConfigurationError
        It has no ``predict``.

    Examples
    --------
    >>> round(LabelProbability().to_confidence(-0.105), 2)
    0.9
    """

    name: ClassVar[str] = "label_probability"
    needs_logprobs: ClassVar[bool] = True

    def __init__(self, *, calibrator: Calibrator | None = None) -> None:
        if calibrator is not None and not callable(getattr(calibrator, "predict", None)):
            raise ConfigurationError(
                f"Expected a calibrator with predict, got {calibrator!r}: take one of calibrant.calibration, such as "
                "the calibrator of what select_calibrator returns."
            )
        if isinstance(calibrator, ConfidenceCalibrator) and not hasattr(calibrator, "rows_"):
            name = type(calibrator).__name__
            raise NotFittedError(f"Expected a fitted {name}, got one before fit: call fit or load it first.")
        self.calibrator = calibrator
        self._calibrate = None if calibrator is None else for_one_row(calibrator.predict)

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the probability of the label; `NoEvidence` if the prediction has none."""
        reported = answered.prediction.confidence
        label = answered.prediction.label
        if reported is None or label is None:
            return NoEvidence(
                reason="Expected a prediction with a confidence, got one without: use a model that reports "
                "log-probabilities, or scoring='sampled'."
            )
        confidence = float(reported)
        try:
            if self._calibrate is not None:
                confidence = float(self._calibrate(reported, predicted=label))
        except CalibrantError as error:
            return NoEvidence(reason=f"The calibrator failed: {error}")
        if not is_share(confidence):
            return NoEvidence(
                reason=f"Expected a confidence in [0, 1], got {confidence!r} from {reported!r}: check the calibrator."
            )
        return Assessment(confidence=confidence, native=math.log(max(confidence, _LEAST_CONFIDENCE)))

    def to_confidence(self, native: float) -> float:
        """Return the confidence of a natural log-probability.

        Raises
        ------
        ConfigurationError
            The value is not a finite number <= 0.
        """
        return math.exp(check_number("the natural logarithm of a probability", native, "(-inf, 0]"))

    def describe(self) -> JsonObject:
        """Return the method's name, and a digest of its calibrator."""
        return {**super().describe(), "calibrator": calibrator_record(self.calibrator)}
