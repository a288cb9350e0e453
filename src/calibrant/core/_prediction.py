"""Predictions: label, distribution, outcome, usage, steps; as JSON values, and their journal; types of arrays."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import nlargest
from typing import Any, Final, NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError, ProviderError, StateError
from calibrant.core._reported import MOST_TOKENS, clean_line
from calibrant.core._reported import Usage as Usage  # noqa: PLC0414 (errors have some, too)

# Types that travel between all floors.
FloatArray: TypeAlias = NDArray[np.float64]
SingleArray: TypeAlias = NDArray[np.float32]
HalfArray: TypeAlias = NDArray[np.float16]
IntegerArray: TypeAlias = NDArray[np.int64]
IndexArray: TypeAlias = NDArray[np.intp]
BoolArray: TypeAlias = NDArray[np.bool_]
Record: TypeAlias = Mapping[str, Any]
"""JSON object that is read."""
JsonObject: TypeAlias = dict[str, Any]
"""JSON object that is made."""

LOW_LABEL_MASS: Final = 0.5
"""Below this the model would rather write something else than any label.

Half is where that becomes true: of 1,600 answers of the embedded model, to 200 validation rows of AG News and Rotten
Tomatoes under eight prompts each, those with a confidence above 0.9 were right on 71 % of the rows below it (265) and
on 83 % of the others (128).
"""
LONGEST_NAME: Final = 200
"""Characters kept of the name a server gives a model."""
_LONGEST_REASON: Final = 2000
# Keys of every prediction, in the order of the files. The other fields are written where they hold something.
_KEYS: Final = (
    "label confidence outcome reason text distribution usage model attempts latency_seconds".split()  # noqa: SIM905
)


class LogprobSpace(StrEnum):
    """Kind of the reported log-probabilities.

    ``masked``
        The engine applied the grammar before reporting: mass on illegal tokens is zero.
    ``raw``
        The engine reports the unconstrained model, whatever the grammar then allowed.
    ``exact``
        Every label was scored.
    ``sampled``
        Agreement among repeated samples.
    ``decision``
        A decision model reports the probability of every label.
    ``verbalised``, ``fused``
        A percentage stated beside the answer; several, together with the agreement of their answers.
    ``none``, ``mixed``
        No evidence; several models, where every answer says its own (`Completion.space`).

    Examples
    --------
    >>> from calibrant.core import LogprobSpace
    >>> LogprobSpace("raw") is LogprobSpace.RAW
    True
    """

    MASKED = "masked"
    RAW = "raw"
    EXACT = "exact"
    SAMPLED = "sampled"
    DECISION = "decision"
    VERBALISED = "verbalised"
    FUSED = "fused"
    NONE = "none"
    MIXED = "mixed"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ConfigurationError(
            f"Unknown log-probability space {value!r}: expected one of {', '.join(cls)}."
        )


def read_only(values: ArrayLike) -> NDArray[Any]:
    """Return a copy of values as an array that cannot be written, which a distribution need not copy again."""
    array = np.array(values)
    array.setflags(write=False)
    return array


def is_label_mass_low(label_mass: float, unresolved_mass: float, space: LogprobSpace) -> bool:
    """Return True if the model put less than half of its probability on labels.

    Always false in ``masked`` space, where the grammar leaves nothing else to write, and without log-probabilities.

    Parameters
    ----------
    label_mass, unresolved_mass : float
        As the attributes of `LabelDistribution`; what is unresolved may belong to labels and counts for them.
    space : LogprobSpace
        Space of the log-probabilities.
    """
    is_seen = space in {LogprobSpace.RAW, LogprobSpace.EXACT}
    return is_seen and label_mass + unresolved_mass < LOW_LABEL_MASS


@dataclass(frozen=True, slots=True)
class Token:
    """Token of an answer, with its log-probability and those of its alternatives.

    Attributes
    ----------
    data : bytes
        The token's bytes; several tokens may share one UTF-8 character.
    logprob : float
        Natural logarithm of its probability.
    top : tuple of (bytes, float)
        Reported alternatives, usually with the token itself among them.

    Examples
    --------
    >>> import math
    >>> from calibrant.core import Token
    >>> token = Token(b"Food", math.log(0.8), top=((b"Food", math.log(0.8)), (b"Rent", math.log(0.2))))
    >>> [(data.decode(), round(math.exp(logprob), 2)) for data, logprob in token.top]
    [('Food', 0.8), ('Rent', 0.2)]
    """

    data: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelDistribution:
    """Probability distribution over the labels, for one prediction.

    Attributes
    ----------
    labels : tuple of str, length L
        The labels, in the task's order.
    logprobs : ndarray of shape (L,)
        Natural logarithm of the normalised probability of each label; finite, ``exp`` sums to 1.
    measured : ndarray of bool, shape (L,)
        Which entries rest on reported evidence; the others hold an upper bound or a share.
    joint_logprob : float or None
        Sum of the log-probabilities of the tokens of the emitted value, natural logarithm, <= 0.
    label_mass : float
        Reported probability on legal labels before normalising, in [0, 1].
    unresolved_mass : float
        Probability that may belong to legal labels but could not be told apart, in [0, 1].
    space : LogprobSpace
        Space of the log-probabilities.
    emitted : str or None, default None
        The label that the answer spells, which `joint_logprob` belongs to, as `labels` spells it;
        empty where the answer spells none of them; None where that is not known.
    closing_logprob : float or None, default None
        Natural logarithm of the probability, <= 0, that the value ends where it does: of the tokens that close it,
        where a longer label begins with the emitted one and `joint_logprob` does not hold them; else 0. None where
        that is not known.
    error_bound : float or None, default None
        In ``exact`` space the largest total variation, in [0, 1], between this distribution and the
        one that scoring every label to its end would give; None elsewhere, where it is not known.
    shared : tuple of (tuple of str, float), default ()
        Labels that a reported token begins without telling them apart, and their probability together, normalised
        like `logprobs`; the most probable ones first.

    Examples
    --------
    >>> from calibrant import logprobs, testing
    >>> response = testing.fake_response("Food", probabilities={"Food": 0.8, "Rent": 0.2})
    >>> logprobs.extract_distribution(response, ["Food", "Rent"], "category").probabilities.round(2).tolist()
    [0.8, 0.2]
    """

    labels: tuple[str, ...]
    logprobs: FloatArray
    measured: BoolArray
    joint_logprob: float | None
    label_mass: float
    unresolved_mass: float
    space: LogprobSpace
    emitted: str | None = None
    error_bound: float | None = None
    closing_logprob: float | None = None
    shared: tuple[tuple[tuple[str, ...], float], ...] = ()

    def __post_init__(self) -> None:
        for name in ("logprobs", "measured"):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.flags.writeable or array.base is not None:
                object.__setattr__(self, name, read_only(array))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LabelDistribution):
            return NotImplemented
        own = dict(vars(self))
        others = dict(vars(other))
        arrays = [(own.pop(name), others.pop(name)) for name in ("logprobs", "measured")]
        return own == others and all(np.array_equal(*pair) for pair in arrays)

    __hash__ = None  # type: ignore[assignment]

    @property
    def probabilities(self) -> FloatArray:
        """Normalised probability of each label, shape (L,), sums to 1."""
        return np.exp(self.logprobs)

    @property
    def is_label_mass_low(self) -> bool:
        """True if the model put less than half of its probability on labels; see `is_label_mass_low`."""
        return is_label_mass_low(self.label_mass, self.unresolved_mass, self.space)

    def probability(self, label: str) -> float:
        """Return the normalised probability of `label`, in [0, 1].

        Raises
        ------
        KeyError
            `label` is not one of `labels`.
        """
        try:
            return float(np.exp(self.logprobs[self.labels.index(label)]))
        except ValueError:
            raise KeyError(label) from None

    def confidence(self, label: str) -> float:
        """Return the confidence in `label`, in [0, 1].

        In ``masked`` space the emitted label's is ``exp(joint_logprob)``, as the reference systems
        define it, times ``exp(closing_logprob)``: where a longer label begins with the emitted one
        (``Bills``, ``Bills/Gas``), the label's own tokens do not tell the two apart. Where it is not
        known how probable the end was, the confidence is no higher than the label's probability.
        Where the emitted label is not known, the most probable ones are taken for it. For other
        labels, and in other spaces, it is the label's probability among the legal ones.

        Raises
        ------
        KeyError
            `label` is not one of `labels`.
        """
        probability = self.probability(label)
        if self.space is not LogprobSpace.MASKED or self.joint_logprob is None:
            return probability
        if self.emitted is None:
            is_emitted = probability >= float(np.exp(self.logprobs.max()))
        else:
            is_emitted = label == self.emitted
        if not is_emitted:
            return probability
        joint = math.exp(min(self.joint_logprob + (self.closing_logprob or 0.0), 0.0))
        longer = (other != label and other.startswith(label) for other in self.labels)
        if self.closing_logprob is None and any(longer):
            return min(joint, probability)
        return joint

    def alternatives(self, *, exclude: str | None = None, limit: int = 3) -> list[tuple[str, float]]:
        """Return the most probable of the measured labels, with their probabilities, at most `limit`.

        Parameters
        ----------
        exclude : str, optional
            A label to leave out (usually the predicted one).
        limit : int, default 3
            Maximum number of labels.
        """
        logprobs = self.logprobs.tolist()
        known = self.measured.tolist()
        places = [place for place, label in enumerate(self.labels) if known[place] and label != exclude]
        best = nlargest(limit, places, key=logprobs.__getitem__)
        return [(self.labels[place], math.exp(logprobs[place])) for place in best]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval.

    Attributes
    ----------
    lower, upper : float
        The ends, in the unit of the estimate.
    level : float
        Confidence level in (0, 1).
    estimate : float
        The point estimate.
    median : float or None
        Median of the resampling distribution, where one was used.

    Examples
    --------
    >>> from calibrant.metrics import wilson_interval
    >>> f"{(interval := wilson_interval(8, 10)).estimate} ({interval.lower:.2f} to {interval.upper:.2f})"
    '0.8 (0.49 to 0.94)'
    """

    lower: float
    upper: float
    level: float
    estimate: float
    median: float | None = None


class Outcome(StrEnum):
    """Kind of result of a row: an answer, a failed call, a refusal or an unreadable answer.

    - ``ok``: a legal label.
    - ``error``: the server's fault (transport, status, broken body); says nothing about the prompt.
    - ``refusal``: the model declined to answer.
    - ``unparsed``: the model's fault (cut off by length, not JSON, or a label outside the label set).

    Examples
    --------
    >>> Prediction(label="Food").outcome is Outcome.OK
    True
    """

    OK = "ok"
    ERROR = "error"
    REFUSAL = "refusal"
    UNPARSED = "unparsed"


class Verdict(StrEnum):
    """Decision about the answer of one model in a cascade.

    - ``accepted``: Sure enough: the cascade's answer.
    - ``escalated``: Not sure enough: the next model was asked, where there was one and the limits allowed it.
    - ``no_evidence``: It came without what its confidence is read from, so nothing says how sure it is.
    - ``failed``: The call returned no answer; see the step's outcome and reason.

    Examples
    --------
    >>> from calibrant.core import Verdict
    >>> [str(verdict) for verdict in Verdict]
    ['accepted', 'escalated', 'no_evidence', 'failed']
    """

    ACCEPTED = "accepted"
    ESCALATED = "escalated"
    NO_EVIDENCE = "no_evidence"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Step:
    """Contribution of one model of a cascade to a row.

    Attributes
    ----------
    model : str
        The model, as the user named it.
    verdict : Verdict
        Fate of its answer.
    label : str or None
        Its answer; None where it has none.
    confidence : float or None
        Confidence in [0, 1], by the cascade's method; None without evidence.
    native : float or None
        The same in the method's own unit.
    outcome : Outcome
        Outcome of the call.
    reason : str
        Why it failed, why there is no evidence, what the verifier said, or which limit ended the row here.
    usage : Usage
        Tokens and cost of its calls, those that verify its answer included.
    attempts : int
        Calls made for it, retries and verification included.

    Examples
    --------
    >>> Step(model="small", verdict=Verdict("escalated"), label="Food", confidence=0.6).verdict.value
    'escalated'
    """

    model: str
    verdict: Verdict
    label: str | None = None
    confidence: float | None = None
    native: float | None = None
    outcome: Outcome = Outcome.OK
    reason: str = ""
    usage: Usage = Usage()
    attempts: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", clean_line(self.reason, limit=_LONGEST_REASON))


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part of an answer with several labels: a field, or one label of the set.

    Attributes
    ----------
    name : str
        The field, or, where any number of labels may be answered, the label that is in the answer or not.
    label : str
        The field's label; ``yes`` or ``no`` in the other case.
    confidence : float or None
        Confidence in [0, 1]; None without usable log-probabilities.
    distribution : LabelDistribution or None
        Over the values of this part; None where the answer carried no usable log-probabilities.

    Examples
    --------
    >>> Part(name="category", label="Food", confidence=0.9).label
    'Food'
    """

    name: str
    label: str
    confidence: float | None = None
    distribution: LabelDistribution | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer of a classifier to one text.

    Attributes
    ----------
    label : str or None
        The label, spelled as in the label set, or the JSON text of an answer that holds several; None unless
        `outcome` is ``ok``.
    confidence : float or None
        Confidence in [0, 1]; None without usable log-probabilities.
    distribution : LabelDistribution or None
        Over all labels; None where the answer carried no usable log-probabilities, or holds several labels: their
        own are among `parts`.
    outcome : Outcome
        Outcome of the row.
    reason : str
        Why it did not end well, or why what was reported is no evidence; else empty. One line, 2,000 characters at
        most.
    text : str
        The raw completion.
    usage : Usage
        Tokens and cost.
    model : str or None
        The model that really answered, as the provider names it.
    attempts : int
        Calls made for this row, retries and all calls of a routed model included; 0 when it was read from a
        journal.
    latency_seconds : float
        Wall time of the row in seconds, retries included.
    tokens : tuple of Token or None
        The emitted tokens with their log-probabilities, where the classifier keeps them.
    status : int or None
        HTTP status of a call that failed, where a server sent one; not stored.
    steps : tuple of Step
        The models a cascade asked, in order; empty for a single model.
    accepted : bool or None
        True if a cascade's answer reached its threshold; None for a single model.
    parts : tuple of Part
        The labels of an answer that holds several; empty where it is one label.
    features : ndarray of float16, shape (d,), or None
        What the model made of the text (`TokenLogprobs.features`, where the label begins), where it is kept.
    sketch : ndarray of float16, shape (64,), or None
        Random projection of what a head read of the text; None without a head that reads texts.
    text_key : int or None
        The same for equal texts; not stored, None where it is not known.

    Examples
    --------
    >>> from calibrant import inference, testing
    >>> fake = testing.FakeClient(["Food", "Rent"], {"lunch": ("Food", 0.8)})
    >>> prediction = inference.Classifier(model=fake, labels=fake.labels, field="category").classify("lunch")
    >>> prediction.label, round(prediction.confidence, 2)
    ('Food', 0.8)
    """

    label: str | None
    confidence: float | None = None
    # Lists of predictions are printed: each by what it says, not by all that it holds.
    distribution: LabelDistribution | None = field(default=None, repr=False)
    outcome: Outcome = Outcome.OK
    reason: str = ""
    text: str = ""
    usage: Usage = field(default=Usage(), repr=False)
    model: str | None = None
    attempts: int = 1
    latency_seconds: float = field(default=0.0, repr=False)
    tokens: tuple[Token, ...] | None = field(default=None, repr=False)
    status: int | None = field(default=None, compare=False)
    steps: tuple[Step, ...] = ()
    accepted: bool | None = None
    parts: tuple[Part, ...] = ()
    features: HalfArray | None = field(default=None, compare=False, repr=False)
    sketch: HalfArray | None = field(default=None, compare=False, repr=False)
    text_key: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Values inside a model's JSON may hold what no file can.
        object.__setattr__(self, "reason", clean_line(self.reason, limit=_LONGEST_REASON))
        if self.model is not None:
            object.__setattr__(self, "model", clean_line(self.model, limit=LONGEST_NAME))

    @property
    def distributions(self) -> tuple[LabelDistribution, ...]:
        """Distributions of the answer or of its parts; empty if there are none."""
        if self.distribution is not None:
            return (self.distribution,)
        return tuple(part.distribution for part in self.parts if part.distribution is not None)

    @property
    def has_low_label_mass(self) -> bool:
        """True if the label mass of the answer, or of one of its parts, is low."""
        return any(distribution.is_label_mass_low for distribution in self.distributions)

    def with_logprobs(
        self,
        given: LabelDistribution,
        logprobs: FloatArray,
        **others: Any,  # noqa: ANN401 (attributes of the distribution)
    ) -> Prediction:
        """Return a copy that answers by other log-probabilities than those of `given`, its distribution."""
        label = given.labels[int(logprobs.argmax())]
        # What was reported for the label that the model wrote is no confidence in this one.
        others |= {"emitted": label, "joint_logprob": None, "closing_logprob": None, "error_bound": None}
        others["shared"] = ()
        found = replace(given, logprobs=logprobs, **others)
        return replace(self, label=label, confidence=found.confidence(label), distribution=found)

    @property
    def is_answered(self) -> bool:
        """True if a model was called for it, and answered."""
        return self.attempts > 0 and self.outcome is not Outcome.ERROR

    def with_effort(
        self,
        *,
        attempts: int | None = None,
        latency_seconds: float | None = None,
        usage: Usage | None = None,
    ) -> Prediction:
        """Return a copy with another number of attempts, duration in seconds, or usage, or several of these.

        Parameters
        ----------
        attempts : int, optional
            By default this one's; 0 makes it 0 for every step of a cascade as well.
        latency_seconds : float, optional
            By default this one's.
        usage : Usage, optional
            By default this one's.
        """
        # `dataclasses.replace` runs the constructor on all fields, for every row: ten times slower.
        copy = object.__new__(Prediction)
        copy.__dict__.update(self.__dict__)
        if attempts is not None:
            copy.__dict__["attempts"] = attempts
            if attempts == 0 and self.steps:
                copy.__dict__["steps"] = tuple(replace(step, attempts=0) for step in self.steps)
        if latency_seconds is not None:
            copy.__dict__["latency_seconds"] = latency_seconds
        if usage is not None:
            copy.__dict__["usage"] = usage
        return copy

    @property
    def log_confidence(self) -> float | None:
        """Natural logarithm of `confidence`, <= 0; None without a confidence."""
        if self.confidence is None:
            return None
        return math.log(max(self.confidence, 1e-300))


def failed_prediction(error: ProviderError, *, outcome: Outcome = Outcome.ERROR) -> Prediction:
    """Return the prediction of a row whose call failed: no label, the reason, and what was paid in vain."""
    return Prediction(
        label=None,
        outcome=outcome,
        reason=str(error),
        attempts=error.attempts,
        usage=error.usage or Usage(),
        status=error.status,
    )


class Journal(Protocol):
    """Store of finished predictions, which makes repeated calls unnecessary.

    Examples
    --------
    >>> from calibrant.core import Prediction
    >>> class DictJournal(dict):
    ...     def get_many(self, keys):
    ...         return {key: self[key] for key in keys if key in self}
    ...     def put(self, key, prediction):
    ...         self[key] = prediction
    >>> journal = DictJournal()
    >>> journal.put("first", Prediction(label="Food"))
    >>> [prediction.label for prediction in journal.get_many(["first", "second"]).values()]
    ['Food']
    """

    def get_many(self, keys: Sequence[str]) -> Mapping[str, Prediction]:
        """Return the stored predictions by key; missing keys are left out."""

    def put(self, key: str, prediction: Prediction) -> None:
        """Store `prediction` under `key`."""


def prediction_to_record(prediction: Prediction) -> JsonObject:
    """Return `prediction` as JSON values; floats keep their full precision."""
    values = _encoded_fields(prediction)
    record = {key: values[key] for key in _KEYS}
    if prediction.tokens is not None:
        record["tokens"] = [_token_to_record(token) for token in prediction.tokens]
    if prediction.steps:
        record |= {
            "steps": [step_to_record(step) for step in prediction.steps],
            "accepted": values["accepted"],
        }
    if prediction.parts:
        record["parts"] = [_encoded_fields(part) for part in prediction.parts]
    if prediction.features is not None:
        record["features"] = encode_half_floats(prediction.features)
    return record


def prediction_from_record(record: Mapping[str, Any]) -> Prediction:
    """Return the prediction written by `prediction_to_record`.

    Raises
    ------
    StateError
        The record is not one.
    """
    try:
        values = {key: record[key] for key in _KEYS} | _decoded_fields(record)
        values["accepted"] = record.get("accepted")
        if record.get("tokens") is not None:
            values["tokens"] = tuple(map(_token_from_record, record["tokens"]))
        values["steps"] = tuple(
            Step(**{**step, **_decoded_fields(step), "verdict": Verdict(step["verdict"])})
            for step in record.get("steps", ())
        )
        parts = record.get("parts", ())
        values["parts"] = tuple(Part(**{**part, **_decoded_fields(part)}) for part in parts)
        if record.get("features") is not None:
            values["features"] = decode_half_floats(record["features"])
        return Prediction(**values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"Expected a prediction record, got one that does not fit ({error!r}).") from error


def step_to_record(step: Step) -> JsonObject:
    """Return `step` as JSON values."""
    return _encoded_fields(step) | {"verdict": step.verdict.value}


def encode_half_floats(numbers: HalfArray) -> str:
    """Return numbers of two bytes as a text of base64."""
    return b64encode(numbers.astype("<f2").tobytes()).decode()


def decode_half_floats(text: str) -> HalfArray:
    """Return the numbers in a text of `encode_half_floats`, in one row.

    Raises
    ------
    TypeError, ValueError
        The text is none of these.
    """
    return np.frombuffer(b64decode(text, validate=True), dtype="<f2")


def _encoded_fields(item: Prediction | Step | Part) -> JsonObject:
    """Return the fields of an object, with its outcome, usage and distribution as JSON values."""
    record = dict(vars(item))
    if not isinstance(item, Part):
        record |= {"outcome": item.outcome.value, "usage": dict(vars(item.usage))}
    distribution = record.get("distribution")
    if distribution is not None:
        fields = dict(vars(distribution))
        if not distribution.shared:  # as with nearly every row
            del fields["shared"]
        record["distribution"] = {
            **fields,
            "labels": list(distribution.labels),
            "logprobs": distribution.logprobs.tolist(),
            "measured": distribution.measured.tolist(),
            "space": distribution.space.value,
        }
    return record


def _decoded_fields(record: Mapping[str, Any]) -> JsonObject:
    """Return the outcome, usage and distribution in a record, as Python objects."""
    values: JsonObject = {}
    if "outcome" in record:
        usage = dict(record["usage"])
        for name in ("prompt_tokens", "completion_tokens"):
            usage[name] = min(usage[name], MOST_TOKENS)
        values = {"outcome": Outcome(record["outcome"]), "usage": Usage(**usage)}
    if record.get("distribution") is not None:
        stored = record["distribution"]
        decoded = {
            "labels": tuple(stored["labels"]),
            "logprobs": np.array(stored["logprobs"], dtype=np.float64),
            "measured": np.array(stored["measured"], dtype=np.bool_),
            "space": LogprobSpace(stored["space"]),
            "shared": tuple((tuple(labels), share) for labels, share in stored.get("shared", ())),
        }
        values["distribution"] = LabelDistribution(**{**stored, **decoded})
    return values


def _token_to_record(token: Token) -> list[Any]:
    # Latin-1 holds every byte as one character.
    top = [[data.decode("latin-1"), logprob] for data, logprob in token.top]
    return [token.data.decode("latin-1"), token.logprob, top]


def _token_from_record(record: Sequence[Any]) -> Token:
    data, logprob, top = record
    listed = tuple((text.encode("latin-1"), listed_logprob) for text, listed_logprob in top)
    return Token(data.encode("latin-1"), logprob, listed)
