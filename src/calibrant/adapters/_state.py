"""State of an adapter over a search: calls and failures that it counts, label priors and thresholds that it learns."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from calibrant.adapters._rows import ConfidenceDataInst
from calibrant.calibration._prior import LabelPriorCorrection, correct_prediction
from calibrant.calibration._thresholds import ThresholdSuggestion, suggest_thresholds
from calibrant.core._errors import ConfigurationError, LimitReachedError, ProviderError
from calibrant.core._labels import LabelSet, OpenLabels
from calibrant.core._prediction import FloatArray, LogprobSpace, Outcome, Prediction
from calibrant.core._predictor import Predictor, Query
from calibrant.core._reported import counted
from calibrant.logprobs._fields import labels_from_schema

# Of the last rows, failed ones that stop a search: at least so many, and more than this share.
_WINDOW: Final = 50
_MIN_FAILURES: Final = 5
_MAX_SHARE: Final = 0.20
Schema: TypeAlias = Mapping[str, Any] | type
"""A JSON schema, an OpenAI-style ``response_format``, or a Pydantic model."""
_LOG = logging.getLogger("calibrant")
PriorCorrection: TypeAlias = Literal["batch"]
Thresholds: TypeAlias = Literal["auto"]
PRIOR_ROWS: Final = 64
"""Rows that make up the label prior of a prompt, at least, where so many were asked."""
THRESHOLD_ROWS: Final = 80
"""Labelled rows that thresholds are found on, at most."""
_SEED: Final = 0  # of the sample of labelled rows
_Key = tuple[str, str | None, str | None]


class CallCounter:
    """Counter of metric calls, and of answers without log-probabilities.

    Parameters
    ----------
    predictor : Predictor
        Predictor that is asked. With a journal, a row asked again under the same prompt is no new call.

    Attributes
    ----------
    metric_calls, completions, without_logprobs : int
        Rows asked; those answered with a legal label; those among them whose confidence is unknown.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._answered: set[Query] = set()
        self.metric_calls = 0
        self.completions = 0
        self.without_logprobs = 0

    def new(self, queries: Sequence[Query]) -> list[bool]:
        """Return one flag per query: True if it is a metric call. With a journal, repetitions are free.

        A query with a problem, about which no model is asked, is none either.
        """
        if self._predictor.journal is None:
            return [not query.problem for query in queries]
        seen = set(self._answered)
        is_new = []
        for query in queries:
            is_new.append(query not in seen and not query.problem)
            seen.add(query)
        return is_new

    def affordable(self, queries: Sequence[Query], calls: int) -> list[bool]:
        """Return one flag per query: True if `calls` metric calls pay for this query and those before."""
        left, is_affordable = calls, []
        for is_new in self.new(queries):
            is_affordable.append(not is_new or left > 0)
            left -= is_new
        return is_affordable

    def count(
        self, queries: Sequence[Query], predictions: Sequence[Prediction], new: Sequence[bool]
    ) -> list[Prediction]:
        """Count the answers to queries; return the predictions of the `new` ones."""
        first = self.without_logprobs == 0
        asked = [prediction for prediction, is_new in zip(predictions, new, strict=True) if is_new]
        answered = [prediction for prediction in asked if prediction.outcome is Outcome.OK]
        self.metric_calls += len(asked)
        self.completions += len(answered)
        self.without_logprobs += sum(prediction.confidence is None for prediction in answered)
        if first and self.without_logprobs:
            _LOG.warning(
                "%s: %d of %d answers came without usable log-probabilities; these are scored by correctness alone.",
                self._predictor.name,
                self.without_logprobs,
                self.completions,
            )
        if self._predictor.journal is not None:
            self._answered.update(
                query
                for query, prediction in zip(queries, predictions, strict=True)
                if prediction.outcome is not Outcome.ERROR
            )
        return asked


@dataclass(frozen=True, kw_only=True)
class SearchSize:
    """Row counts of a search, which give the maximum metric calls of its steps.

    Attributes
    ----------
    validation_rows : int
        Rows that every accepted prompt is asked about.
    minibatch_size : int
        Rows that every proposal is first tried on, and its parent too.
    threshold_rows : int, default 0
        Rows asked for ``thresholds="auto"``, once.
    other_prompts : int, default 0
        Prompts beside the first one that are asked about the validation rows before any proposal.
    """

    validation_rows: int
    minibatch_size: int
    threshold_rows: int = 0
    other_prompts: int = 0

    @property
    def proposal(self) -> int:
        """Maximum metric calls of one accepted proposal."""
        return 2 * self.minibatch_size + self.validation_rows

    @property
    def floor(self) -> int:
        """Maximum metric calls of the first validations and one accepted proposal."""
        return (1 + self.other_prompts) * self.validation_rows + self.threshold_rows + self.proposal

    def check(self, max_metric_calls: int) -> None:
        """Raise ConfigurationError if the budget cannot pay for one accepted prompt proposal.

        Raises
        ------
        ConfigurationError
            The budget is below `floor`.
        """
        if max_metric_calls >= self.floor:
            return
        sample = f" and {self.threshold_rows} training rows for thresholds" if self.threshold_rows else ""
        prompts = counted(self.other_prompts, "other prompt")
        others = f", and each of {prompts} one pass more" if self.other_prompts else ""
        raise ConfigurationError(
            f"Expected max_metric_calls (--max-metric-calls) >= {self.floor}, got {max_metric_calls}: one accepted "
            f"proposal takes two passes over {self.validation_rows} validation rows, two minibatches of "
            f"{self.minibatch_size}{sample}{others}."
        )


class CallBudget:
    """Stopper for ``gepa.optimize`` that ends a search before a proposal could exceed the budget.

    GEPA's own ``max_metric_calls`` ends it at the first opportunity after, and lacks rows that the adapter asks for
    thresholds and label prior. `ConfidenceAdapter.budget` makes one; hand it to ``stop_callbacks`` and leave
    ``max_metric_calls`` out.

    Parameters
    ----------
    counter : CallCounter
        Counts the calls of this search.
    size : SearchSize
        Metric calls of a proposal.
    max_metric_calls : int
        The budget.

    Raises
    ------
    ConfigurationError
        The budget pays for no proposal.
    """

    def __init__(self, counter: CallCounter, size: SearchSize, max_metric_calls: int) -> None:
        size.check(max_metric_calls)
        self._counter = counter
        self._size = size
        self._max_metric_calls = max_metric_calls
        self._seen = -1
        self._idle = 0

    def __call__(self, state: object) -> bool:  # noqa: ARG002  (GEPA's stopper signature)
        """Return True if one more proposal could exceed the budget."""
        calls = self._counter.metric_calls
        # Iterations that ask nothing new count as one call each, or a search that repeats itself would never end.
        self._idle += calls == self._seen
        self._seen = calls
        return calls + self._idle + self._size.proposal > self._max_metric_calls


class FailureMonitor:
    """Monitor that raises ProviderError when too many recent rows ended in ``error``.

    A search that goes on would optimise on noise: the run stops when more than 20 % of the
    last 50 rows (of the whole batch, when it is larger), and at least 5, failed.
    """

    def __init__(self) -> None:
        self._recent: deque[str | None] = deque(maxlen=_WINDOW)
        self._lock = threading.Lock()

    def record(self, predictions: Sequence[Prediction], *, provider: str) -> None:
        """Record a batch; raise ProviderError if too many rows of the batch or recent rows failed.

        Raises
        ------
        ProviderError
            Too many rows failed.
        """
        with self._lock:
            rows = [p.reason if p.outcome is Outcome.ERROR else None for p in predictions]
            self._recent.extend(rows)
            # The whole of a large batch, and its end: a server that dies halfway is noticed.
            window = next(filter(_fails_too_often, (rows, list(self._recent))), None)
            if window is None:
                return
            self._recent.clear()
        reasons = [reason for reason in window if reason is not None]
        common = max(sorted(set(reasons)), key=reasons.count)
        raise ProviderError(
            f"{len(reasons)} of the last {len(window)} rows failed for reasons that are not the prompt's, "
            f"most often: {common}",
            provider=provider,
            hint="The run stopped instead of optimising on noise; mend the connection and start it again.",
        )


def _fails_too_often(reasons: Sequence[str | None]) -> bool:
    failed = len(reasons) - reasons.count(None)
    return len(reasons) >= _WINDOW and failed >= _MIN_FAILURES and failed > _MAX_SHARE * len(reasons)


class Watch(FailureMonitor):
    """Store of the first fatal error of a search, until the search can be stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._error: Exception | None = None

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Store the first exception raised inside the block; the exception is not suppressed."""
        try:
            yield
        except Exception as error:
            with self._lock:
                self._error = self._error or error
            raise

    def stop(self) -> bool:
        """Raise the stored error, or return True if the error is that a limit of the user was reached."""
        with self._lock:
            error = self._error
            self._error = None
        if error is None:
            return False
        if isinstance(error, LimitReachedError):
            _LOG.warning("The search ends early: %s", error)
            return True
        raise error


def check_calls(top_logprobs: int, workers: int, space: LogprobSpace | str | None) -> None:
    """Check top_logprobs, the number of workers and the log-probability space."""
    for name, value in (("top_logprobs", top_logprobs), ("max_litellm_workers", workers)):
        if type(value) is not int or value < 1:
            raise ConfigurationError(f"Expected {name} to be a whole number of at least 1, got {value!r}.")
    if space is not None and space not in {LogprobSpace.MASKED, LogprobSpace.RAW}:
        raise ConfigurationError(f"Expected space 'masked' or 'raw', got {space!r}.")


def labels_of(
    model: object,
    field_path: str,
    schemas: tuple[Schema | None, Schema | None],
    labels: LabelSet | None = None,
) -> LabelSet:
    """Return the label set of an adapter, from a schema or from `labels`.

    Parameters
    ----------
    model : object
        Model of the adapter; only a name needs a schema.
    field_path : str
        Path of the labels in the schemas.
    schemas : (response_schema, response_format)
        The labels are those of the first that has an enum at `field_path`.
    labels : LabelSet, optional
        Their structure; its order is theirs. Without a schema they are the labels.

    Returns
    -------
    LabelSet
        `OpenLabels` where neither a schema nor `labels` lists them.

    Raises
    ------
    ConfigurationError
        A name without a response format, schemas without an enum, or `labels` that differ from theirs or of which an
        answer holds several.
    """
    if isinstance(model, str) and schemas[1] is None:
        raise ConfigurationError(
            "Expected response_format when the model is a name: pass a JSON schema, or a Pydantic model, "
            f"whose field {field_path!r} has an enum of the labels."
        )
    if labels is not None and not isinstance(labels, LabelSet):
        raise ConfigurationError(
            f"Expected labels as a LabelSet, such as OrdinalLabels([...]), got {labels!r:.80}."
        )
    # A schema and a path say too little about them.
    refuse_several(labels, "use ConfidenceAdapter.from_classifier(Classifier(model=..., labels=...)).")
    given = [schema for schema in schemas if schema is not None]
    if not given:
        return OpenLabels() if labels is None else labels
    try:
        listed = labels_from_schema(given[0], field_path)
    except ConfigurationError:
        if len(given) == 1:
            raise
        listed = labels_from_schema(given[1], field_path)
    if labels is None:
        return LabelSet(listed)
    differ = sorted({*labels.labels} ^ {*listed})
    if differ:
        raise ConfigurationError(
            f"Expected labels to be those of the schema, got sets that differ in {differ[0]!r:.80}: make them equal, "
            "or leave labels out."
        )
    return labels


def refuse_several(labels: LabelSet | None, remedy: str) -> None:
    """Refuse composite labels; `remedy` is the end of the error message."""
    if labels is not None and labels.holds_several:
        raise ConfigurationError(
            f"Expected one label in an answer, got labels of which an answer holds several: {remedy}"
        )


def refuse_open(labels: LabelSet, **settings: object) -> None:
    """Refuse settings that need a closed label set, if the labels are open."""
    given = [f"{name}={value!r}" for name, value in settings.items() if value is not None]
    if given and labels.is_open:
        raise ConfigurationError(
            f"Expected a list of the labels with {given[0]}, got a callable without one: pass response_schema with an "
            "enum of the labels."
        )


class PriorCorrector:
    """Corrector of predictions for label bias, with a label prior per prompt.

    The prior of a prompt is the mean of its distributions over the rows asked under it; nothing is asked for its
    sake. Until these are `PRIOR_ROWS`, the prior of the last prompt that was asked about more rows makes up for those
    that are missing: a proposal is tried on a few rows right after its parent.

    Parameters
    ----------
    method : {"batch"}
        Setting of the adapter.
    labels : LabelSet
        The labels.

    Raises
    ------
    ConfigurationError
        The method is unknown, or answers hold several labels.
    """

    def __init__(self, method: PriorCorrection, labels: LabelSet) -> None:
        refuse_several(labels, "leave prior_correction out, which needs one distribution over one label set.")
        if method != "batch":
            raise ConfigurationError(
                f"Expected prior_correction 'batch' or None, got {method!r}: for 'contextual' fit a "
                "LabelPriorCorrection on CONTENT_FREE_INPUTS."
            )
        self._rows: dict[_Key, dict[str, FloatArray]] = {}
        self._stand_in: _Key | None = None
        self._fitted: dict[_Key, LabelPriorCorrection] = {}

    def fit(self, asked: Sequence[Query], predictions: Sequence[Prediction]) -> None:
        """Fit one correction per prompt, on distinct texts."""
        rows_by_prompt: dict[_Key, dict[str, FloatArray]] = {}
        for query, prediction in zip(asked, predictions, strict=True):
            rows = rows_by_prompt.setdefault(_key(query), {})
            if prediction.distribution is not None:
                rows[query.text] = np.asarray(prediction.distribution.logprobs, dtype=np.float64)
        for key, rows in rows_by_prompt.items():
            self._add(key, rows)

    def _add(self, key: _Key, rows: dict[str, FloatArray]) -> None:
        own = self._rows.setdefault(key, {})
        # A prompt that has enough rows keeps its prior: what was scored first and last is comparable.
        if len(own) < PRIOR_ROWS and rows:
            own.update(rows)
            self._fitted[key] = self._fit(own)
        if self._stand_in is None or len(own) >= min(PRIOR_ROWS, len(self._rows[self._stand_in])):
            self._stand_in = key

    def _fit(self, own: dict[str, FloatArray]) -> LabelPriorCorrection:
        other = {}
        if self._stand_in is not None:
            other = self._rows[self._stand_in]
        missing = min(PRIOR_ROWS, len(other)) - len(own)
        rows = list(own.values())
        weights = [1.0] * len(own)
        if missing > 0:
            rows += other.values()
            weights += [missing / len(other)] * len(other)
        return LabelPriorCorrection("batch").fit(np.array(rows), weights=weights)

    def correction(self, query: Query) -> LabelPriorCorrection | None:
        """Return the fitted correction for a query's prompt; None if none is fitted."""
        return self._fitted.get(_key(query))

    def correct(self, query: Query, prediction: Prediction) -> Prediction:
        """Return `prediction` corrected for the label prior of its prompt, if a prior is fitted."""
        correction = self.correction(query)
        if correction is None:
            return prediction
        return correct_prediction(prediction, correction)


def _key(query: Query) -> _Key:
    # Demonstrations by what chooses them: those of a row would make every prompt one of its own.
    return query.prompt, query.user_template, query.demonstrations


class ThresholdFinder:
    """Finder of confidence thresholds, on a fixed sample under the first evaluated prompt.

    Scores of all prompts must compare, so the thresholds under the first one hold for all.

    Parameters
    ----------
    method : {"auto"}
        Setting of the adapter.
    rows : sequence of ConfidenceDataInst
        Labelled rows, answers spelled as in the label set; `THRESHOLD_ROWS` of them are used.
    labels : LabelSet
        Where answers hold several labels, thresholds are about the confidence in each part, as scores and feedback
        are.

    Raises
    ------
    ConfigurationError
        The method is unknown, or there are no rows.
    """

    def __init__(self, method: Thresholds, rows: Sequence[ConfidenceDataInst], labels: LabelSet) -> None:
        if method != "auto":
            raise ConfigurationError(
                f"Expected thresholds 'auto' or None, got {method!r}: for numbers of your own pass "
                "high_confidence_threshold and low_confidence_threshold."
            )
        if not rows:
            raise ConfigurationError(
                "Expected labelled rows to find thresholds on, got none: pass threshold_rows, such as "
                "the training rows."
            )
        if len(rows) > THRESHOLD_ROWS:
            chosen = np.random.default_rng(_SEED).choice(len(rows), THRESHOLD_ROWS, replace=False)
            rows = [rows[i] for i in sorted(chosen)]
        self._labels = labels
        self.rows = tuple(rows)
        self.suggestion: ThresholdSuggestion | None = None
        self._done = False

    def queries(self, asked: Sequence[Query]) -> list[Query]:
        """Return the queries of the sample under the first prompt; an empty list once `fit` was called."""
        if self._done or not asked:
            return []
        first = asked[0]
        return [
            Query(
                prompt=first.prompt,
                text=row["input"],
                user_template=first.user_template,
                demonstrations=first.demonstrations,
            )
            for row in self.rows
        ]

    def fit(self, predictions: Sequence[Prediction]) -> ThresholdSuggestion | None:
        """Return thresholds from the answers to `queries`; None on too few rows."""
        self._done = True
        known = [
            pair
            for row, prediction in zip(self.rows, predictions, strict=True)
            if prediction.label is not None
            for pair in self._pairs(prediction, row["answer"])
        ]
        try:
            self.suggestion = suggest_thresholds([c for c, _ in known], [right for _, right in known])
        except ConfigurationError as error:
            _LOG.warning(
                "thresholds='auto': the thresholds given stay, for the sample does not suffice. %s", error
            )
            return None
        _LOG.info("thresholds='auto': high %g, low %g", self.suggestion.high, self.suggestion.low)
        for warning in self.suggestion.warnings:
            _LOG.warning("thresholds='auto': %s", warning)
        return self.suggestion

    def _pairs(self, prediction: Prediction, answer: str) -> Iterator[tuple[float, bool]]:
        """Yield confidence and correctness of the answer, or of each graded part."""
        if self._labels.holds_several:
            aspects = self._labels.aspects(prediction, answer)
            yield from (
                (aspect.confidence, aspect.is_correct) for aspect in aspects if aspect.confidence is not None
            )
        elif prediction.confidence is not None:
            yield prediction.confidence, prediction.label == answer
