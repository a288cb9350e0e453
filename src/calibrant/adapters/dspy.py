"""DSPy integration: a metric with feedback for ``dspy.GEPA``, and a module with confidence.

Needs the extra ``dspy``. ``dspy.GEPA`` rewrites the instructions of `ConfidenceClassifier`; these are
the prompt under which a calibrant `Classifier` asks its model, so that labels are constrained, scored
and read as everywhere in calibrant.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, Unpack, cast

from calibrant.adapters._rows import (
    ConfidenceDataInst,
    ConfidenceGrader,
    GradingOptions,
    checked_context,
    checked_row,
)
from calibrant.adapters._state import Watch, refuse_several
from calibrant.core._completion import Completion
from calibrant.core._errors import ConfigurationError, DataError, LogprobsUnavailableError, ProviderError
from calibrant.core._installation import install_command
from calibrant.core._labels import LabelSet, label_in
from calibrant.core._prediction import LabelDistribution, LogprobSpace, Outcome, Prediction, Token
from calibrant.core._reported import is_number, listed
from calibrant.core._rows import Example
from calibrant.inference._base import BasePredictor
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._distribution import extract_distribution

_CLOSING: Final = b'"}'
_BLANK: Final = b" \t\r\n"
# A field's marker, and what is written up to the next one.
_SECTION: Final = rb"^[ \t]*\[\[ ## %s ## \]\](.*?)(?=^[ \t]*\[\[ ## \w+ ## \]\]|\Z)"
# What a JSON string cannot hold as it is.
_ESCAPED: Final = {
    ord(character): json.dumps(character)[1:-1].encode() for character in (*map(chr, range(0x20)), '"', "\\")
}

__all__ = ["ConfidenceClassifier", "ConfidenceMetric"]
_LOG = logging.getLogger("calibrant")
_CONTEXT_FIELD: Final = "additional_context"
_INSTEAD_OF_DSPY: Final = (
    "they are unknown here; use calibrant optimize, or ConfidenceAdapter.from_classifier with gepa."
)
_RESULTS: Final = ("confidence", "distribution", "outcome", "reason", "completion")


@dataclass(frozen=True, kw_only=True)
class _Value:
    """Place of a field's value in an answer: its bytes, and the byte that ends it."""

    start: int
    end: int
    terminator: bytes


def written_distribution(logprobs: object, labels: LabelSet, field: str) -> LabelDistribution:
    """Read a distribution over the labels from the log-probabilities of a ``dspy.Prediction``.

    The answers of DSPy's programs are seldom constrained, so that the distribution is in ``raw`` space: its confidence
    is the label's share among the labels.

    Parameters
    ----------
    logprobs : object
        What DSPy keeps under ``logprobs``: ``content``, a list of tokens as in OpenAI's protocol.
    labels : LabelSet
        The label set.
    field : str
        Name of the field that holds the label.

    Raises
    ------
    LogprobsUnavailableError
        There are no tokens, or the field is not found in them.
    """
    tokens = _tokens(logprobs)
    value = _value(_text(tokens), field)
    if value is not None:
        tokens = tuple(_as_json(tokens, value, field))
    answer = Completion(text=_text(tokens).decode("utf-8", "replace"), tokens=tokens)
    return extract_distribution(answer, labels, field, LogprobSpace.RAW)


def _text(tokens: Iterable[Token]) -> bytes:
    return b"".join(token.data for token in tokens)


def _tokens(logprobs: object) -> tuple[Token, ...]:
    answer = read_completion({"choices": [{"message": {}, "logprobs": logprobs}]})
    if answer.tokens is None:
        raise LogprobsUnavailableError(
            f"Expected token log-probabilities under 'content', got {logprobs!r:.80} "
            f"({answer.evidence_problem or 'no tokens'}): ask for them with dspy.LM(..., logprobs=True, "
            "top_logprobs=5)."
        )
    return answer.tokens


def _value(text: bytes, field: str) -> _Value | None:
    """Return the place of the field's value behind a marker or in tags; None if the answer has neither."""
    name = re.escape(field.encode())
    multiline = re.MULTILINE | re.DOTALL
    # The first section of a name counts, as for DSPy.
    marked = re.search(_SECTION % name, text, multiline)
    tagged = re.search(rb"<%s>(.*?)</%s>" % (name, name), text, multiline)
    match = marked or tagged
    if match is None:
        return None
    terminator = b"<" if marked is None else b"\n"
    start, end = match.span(1)
    while start < end and text[start : start + 1] in _BLANK:
        start += 1
    while end > start and text[end - 1 : end] in _BLANK:
        end -= 1
    quote = text[start : start + 1]
    if quote in (b'"', b"'") and end - start > 1 and text[end - 1 : end] == quote:
        return _Value(start=start + 1, end=end - 1, terminator=quote)
    return _Value(start=start, end=end, terminator=terminator)


def _as_json(tokens: Sequence[Token], value: _Value, field: str) -> Iterator[Token]:
    """Yield the tokens of a JSON object that holds the value, with the log-probabilities of the written ones."""
    opening = b'{"%s": "' % field.encode()
    yield Token(opening, 0.0)
    begin = 0
    for token in tokens:
        end = begin + len(token.data)
        if end > value.start:
            yield _part(token, value, begin)
        begin = end
        if end > value.end:
            return
    yield Token(_CLOSING, 0.0)


def _part(token: Token, value: _Value, begin: int) -> Token:
    """Return the part of a token that belongs to the value, closed where the value ends in it."""
    before = max(0, value.start - begin)
    length = value.end - begin - before
    written = token.data[before:]
    ends = len(written) > length
    data = _escaped(written[:length]) + (_CLOSING if ends else b"")
    shared = token.data[:before]
    alternatives = [
        (_alternative(other[before:], value.terminator, is_first=begin + before == value.start), logprob)
        for other, logprob in token.top
        if other != token.data and other.startswith(shared)
    ]
    if token.top:
        alternatives.append((data, token.logprob))
    return Token(data, token.logprob, tuple(alternatives))


def _alternative(written: bytes, terminator: bytes, *, is_first: bool) -> bytes:
    """Return an alternative as JSON would hold it; a blank before the value changes no label."""
    if is_first and written.strip(_BLANK):
        written = written.lstrip(_BLANK)
    content, closes, _ = written.partition(terminator)
    return _escaped(content) + (_CLOSING if closes else b"")


def _escaped(data: bytes) -> bytes:
    return b"".join(_ESCAPED.get(code, bytes([code])) for code in data)


try:
    import dspy
except ModuleNotFoundError as error:
    if error.name != "dspy":
        raise
    raise ConfigurationError(
        f"The adapter needs dspy, which is not installed: run {install_command('dspy')}."
    ) from error


class ConfidenceMetric(ConfidenceGrader):
    """Metric for ``dspy.GEPA`` that does not reward lucky guesses.

    Score and feedback are those of `ConfidenceAdapter`. The result is a ``dspy.Prediction`` of ``score``,
    ``feedback`` and ``objective_scores``; it adds up and converts to a float, so ``dspy.Evaluate`` and other
    optimisers take it as a number.

    For a `ConfidenceClassifier` make it with `ConfidenceClassifier.metric`. Other programs need a label under
    `label_field` in their predictions. A ``dspy.Predict`` whose field is a ``Literal`` of the labels brings the token
    log-probabilities of its answer where they were asked for, ``dspy.LM(..., logprobs=True, top_logprobs=5)``: the
    distribution over the labels is read from them, whichever of DSPy's adapters wrote the field (markers, JSON or XML).
    A program of several steps hands ``logprobs`` of that step on in its prediction. Predictions may also hold
    ``confidence``, ``distribution``, ``outcome``, ``reason`` and ``completion`` as that module's do; without a
    confidence, correctness alone is scored. Rows whose ``outcome`` is ``error`` score `failure_score`, as the adapter's
    do.

    DSPy goes on when a row raises, whatever it raises. Hand `stop` to the search, and it ends with the error:
    ``dspy.GEPA(metric=metric, gepa_kwargs={"stop_callbacks": metric.stop}, ...)``.

    Parameters
    ----------
    labels : sequence of str or LabelSet
        The closed set of labels; compared without regard to case and surrounding space. `OrdinalLabels` and
        `HierarchicalLabels` earn an answer that is nearly right a part of the score.
    label_field : str, default "label"
        Name of the label in examples and predictions. ``additional_context`` of an example, a mapping or
        text, is shown in the feedback of wrong answers.
    scoring_strategy : ScoringStrategy, optional
        By default ``LinearBlendScoring(high_confidence_threshold)``.
    high_confidence_threshold : float, default 0.99
        Confidence, in (0, 1], from which an answer counts as certain in feedback.
    low_confidence_threshold : float, default 0.90
        Confidence, in (0, 1], below which an answer counts as uncertain in feedback.
    failure_score : float, default 0.0
        Score of a row without a legal label, in [0, 1].
    objectives : iterable of str or mapping of str to callable, optional
        See `ConfidenceAdapter`.

    Raises
    ------
    ConfigurationError
        A threshold or score is out of range, or a strategy or objective is none.

    Examples
    --------
    >>> import dspy
    >>> from calibrant.adapters.dspy import ConfidenceMetric
    >>> metric = ConfidenceMetric(["cat", "dog"])
    >>> gold = dspy.Example(text="barks", label="dog")
    >>> found = metric(gold, dspy.Prediction(label="cat", confidence=0.8))
    >>> found.score, found.feedback.partition(". ")[0]
    (0.0, 'Wrong (80% probability)')
    >>> metric(gold, dspy.Prediction(label="dog", confidence=0.995)).score
    1.0
    """

    def __init__(
        self,
        labels: LabelSet | Sequence[str],
        *,
        label_field: str = "label",
        **grading: Unpack[GradingOptions],
    ) -> None:
        super().__init__(LabelSet.of(labels), **grading)
        refuse_several(self.labels, _INSTEAD_OF_DSPY)
        self.label_field = label_field
        self.watch = Watch()
        self._warned = False

    def __call__(
        self,
        gold: dspy.Example,
        pred: dspy.Prediction,
        trace: object = None,  # noqa: ARG002  (DSPy's signature)
        pred_name: str | None = None,  # noqa: ARG002
        pred_trace: object = None,  # noqa: ARG002
    ) -> dspy.Prediction:
        """Score one prediction; the score does not depend on the DSPy predictor.

        Parameters
        ----------
        gold : dspy.Example
            Holds the true label.
        pred : dspy.Prediction
            The output of the program.
        trace, pred_name, pred_trace
            DSPy's other arguments to a metric; not used.

        Returns
        -------
        dspy.Prediction
            ``score`` in [0, 1], ``feedback`` and ``objective_scores`` by name.

        Raises
        ------
        DataError
            The example has no label, or one that is not in the label set.
        ConfigurationError
            The prediction lacks the label's field, or holds no confidence, distribution or outcome under
            the names of these.
        """
        with self.watch.noting():
            answer, context = self._truth(gold)
            prediction = self._prediction(pred)
            graded = dspy.Prediction(
                score=self.score(prediction, answer),
                feedback=self.feedback(prediction, answer, context),
                objective_scores=self.objective_scores(prediction, answer),
            )
        self._warn_once(prediction)
        return graded

    def stop(self, state: object = None) -> bool:  # noqa: ARG002  (GEPA's signature)
        """Return True if the search must end; GEPA calls this once per iteration.

        Returns
        -------
        bool
            True after a budget or deadline of the classifier was reached.

        Raises
        ------
        ProviderError
            A fault that every call meets, or more than 20 % of the last 50 rows, and at least 5, failed.
        DataError, ConfigurationError
            An example or the program cannot be used: the first row that said so.
        """
        return self.watch.stop()

    def _truth(self, gold: dspy.Example) -> tuple[str, Mapping[str, object] | str | None]:
        if self.label_field not in gold:
            raise DataError(
                f"Expected the true label under {self.label_field!r} in every example, got the fields "
                f"{sorted(gold.keys())}: name it with label_field."
            )
        answer = gold[self.label_field]
        known = label_in(answer, self.labels)
        if known is None:
            raise DataError(
                f"Expected a true label among the {len(self.labels)} labels ({listed(self.labels.labels)}), got "
                f"{answer!r:.80} in {gold!r:.200}: correct the example or add the label to the label set."
            )
        return known, checked_context(gold.get(_CONTEXT_FIELD), gold)

    def _prediction(self, pred: dspy.Prediction) -> Prediction:
        """Convert the output of a DSPy program to a prediction."""
        outcome = _outcome(pred.get("outcome", Outcome.OK))
        if self.label_field not in pred:
            raise ConfigurationError(
                f"Expected the label under {self.label_field!r} in the program's prediction, got the fields "
                f"{sorted(pred.keys())}: name it with label_field."
            )
        label = pred[self.label_field]
        text = str(pred.get("completion") or "")
        reason = str(pred.get("reason") or "")
        if outcome is not Outcome.OK:
            return Prediction(label=None, outcome=outcome, reason=reason, text=text)
        known = label_in(label, self.labels)
        if known is None:
            wrote = text or ("" if label is None else str(label))
            return Prediction(
                label=None, outcome=Outcome.UNPARSED, reason="it is not one of the labels", text=wrote
            )
        confidence = _confidence(pred.get("confidence"))
        distribution = _distribution(pred.get("distribution"), self.labels)
        unread = ""
        if confidence is None and distribution is None and pred.get("logprobs") is not None:
            distribution, unread = self._written(pred["logprobs"], known)
            confidence = None if distribution is None else distribution.confidence(known)
        return Prediction(
            label=known, confidence=confidence, distribution=distribution, reason=unread, text=text
        )

    def _written(self, logprobs: object, label: str) -> tuple[LabelDistribution | None, str]:
        """Return the distribution in an answer's log-probabilities, or the reason why there is none."""
        try:
            distribution = written_distribution(logprobs, self.labels, self.label_field)
        except LogprobsUnavailableError as error:
            return None, str(error)
        if distribution.emitted != label:
            return None, f"they are of the answer {distribution.emitted!r}, and the prediction is {label!r}"
        return distribution, ""

    def _warn_once(self, prediction: Prediction) -> None:
        if prediction.outcome is not Outcome.OK or prediction.confidence is not None or self._warned:
            return
        self._warned = True
        missing = "no token log-probabilities (dspy.LM(..., logprobs=True, top_logprobs=5) asks for them)"
        if prediction.reason:
            missing = f"token log-probabilities that cannot be read: {prediction.reason.rstrip('.')}"
        _LOG.warning(
            "A prediction came without a confidence, and with %s. Such rows are scored by correctness alone.",
            missing,
        )


def _outcome(value: Any) -> Outcome:  # noqa: ANN401
    try:
        return Outcome(value)
    except ValueError:
        raise ConfigurationError(
            f"Expected the prediction's outcome to be one of {', '.join(Outcome)}, got {value!r:.80}."
        ) from None


def _confidence(value: Any) -> float | None:  # noqa: ANN401
    if value is not None and not (is_number(value) and 0.0 <= value <= 1.0 + 1e-6):
        raise ConfigurationError(
            f"Expected the prediction's confidence to be a number in [0, 1] or None, got {value!r:.80}."
        )
    return None if value is None else float(value)


def _distribution(value: object, labels: LabelSet) -> LabelDistribution | None:
    if value is None or (isinstance(value, LabelDistribution) and value.labels == labels.labels):
        return value
    got = f"one over {len(value.labels)} others" if isinstance(value, LabelDistribution) else repr(value)
    raise ConfigurationError(
        f"Expected the prediction's distribution to be a LabelDistribution over the {len(labels)} labels or None, "
        f"got {got:.80}."
    )


class _SharedState:
    """State shared by the copies of a module; DSPy copies a module for every candidate."""

    def __init__(self, classifier: BasePredictor) -> None:
        self.classifier = classifier
        self.watch = Watch()

    def __deepcopy__(self, memo: dict[int, object]) -> _SharedState:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ConfidenceClassifier holds connections, which cannot be pickled: save its instructions with "
            "save('program.json'), and load them into a module that is made from the same classifier"
        )


class ConfidenceClassifier(dspy.Module):  # type: ignore[misc]
    """DSPy module that classifies a text with a confidence.

    It holds one predictor, ``predict``, for its instructions: ``dspy.GEPA`` rewrites them, ``save`` and
    ``load`` keep them as JSON (the whole program cannot be pickled). The model is the classifier's; the LM
    of ``dspy.configure`` and ``set_lm``, its cache and DSPy's message formats do not concern it. Copies
    share client, journal and limits. Works with ``acall``, with ``dspy.Parallel`` and in threads, and
    inside larger programs.

    A call returns a ``dspy.Prediction`` with

    ``label`` (or `label_field`)
        The label, spelled as in the label set; None unless ``outcome`` is ``ok``.
    ``confidence``
        In [0, 1]; None where the answer carried no usable log-probabilities.
    ``distribution``
        A `LabelDistribution`, or None likewise.
    ``outcome``, ``reason``
        ``ok``, ``error``, ``refusal`` or ``unparsed``, and why; see `calibrant.core.Outcome`.
    ``completion``
        The model's own text.

    A row whose call failed leaves no trace, so DSPy's optimisers never reflect on it.
    Finished predictions are kept in the classifier's journal, if it has one.

    Parameters
    ----------
    classifier : Classifier or Cascade
        Asked under the module's instructions. Its prompt is what they begin with; a label-prior correction
        applies only while they are its prompt. A cascade's models need one prompt in common, as there is
        one instruction for all.
    text_field : str, default "text"
        Name of the input.
    label_field : str, default "label"
        Name of the label in predictions and examples.

    Raises
    ------
    ConfigurationError
        No classifier, one without a prompt, one whose answers hold several labels, or field names that are no
        identifiers, equal, or taken.

    Examples
    --------
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(labels=["cat", "dog"], answers={"purrs": ("cat", 0.9)})
    >>> classifier = Classifier(model=fake, labels=["cat", "dog"], field="category", prompt="Which animal?")
    >>> program = ConfidenceClassifier(classifier)
    >>> found = program(text="purrs")
    >>> found.label, round(found.confidence, 2)
    ('cat', 0.9)
    """

    def __init__(
        self, classifier: BasePredictor, *, text_field: str = "text", label_field: str = "label"
    ) -> None:
        super().__init__()
        if not isinstance(classifier, BasePredictor):
            raise ConfigurationError(
                f"Expected a calibrant Classifier, got {classifier!r:.80}: Classifier.from_task(task) makes one."
            )
        refuse_several(classifier.labels, _INSTEAD_OF_DSPY)
        if not classifier.prompt.strip():
            raise ConfigurationError(
                "Expected a classifier with a prompt, for the instructions to begin with, got none (or a cascade "
                "whose models have prompts of their own): give it one, with_prompt makes a copy."
            )
        _check_fields(text_field, label_field)
        self.text_field = text_field
        self.label_field = label_field
        self._shared = _SharedState(classifier)
        labels = cast("Any", Literal)[classifier.labels.labels]
        fields = {text_field: (str, dspy.InputField()), label_field: (labels, dspy.OutputField())}
        self.predict = dspy.Predict(dspy.Signature(fields, classifier.prompt))

    @property
    def classifier(self) -> BasePredictor:
        """Classifier of the module, with the prompt of the module."""
        return self._shared.classifier

    @property
    def instructions(self) -> str:
        """The prompt in use: the instructions of the predictor."""
        return str(self.predict.signature.instructions)

    def forward(self, **inputs: object) -> dspy.Prediction:
        """Classify one text.

        Raises
        ------
        DataError
            The input is missing, is no text, or is not alone.
        ProviderError
            A fault that every call would meet, such as a bad key.
        LimitReachedError
            A budget or deadline of the classifier was reached.
        """
        with self._shared.watch.noting():
            prediction = self._prompted().classify(self._text(inputs))
        return self._output(inputs, prediction)

    async def aforward(self, **inputs: object) -> dspy.Prediction:
        """Classify one text, for use inside an event loop; see `forward`."""
        with self._shared.watch.noting():
            prediction = await self._prompted().aclassify(self._text(inputs))
        return self._output(inputs, prediction)

    def examples(self, rows: Iterable[Example | ConfidenceDataInst | dspy.Example]) -> list[dspy.Example]:
        """Return labelled rows as DSPy examples with canonical labels.

        Parameters
        ----------
        rows : iterable of Example, ConfidenceDataInst or dspy.Example
            As in a task: input, answer and, optionally, additional context for the feedback. A ``dspy.Example`` has
            the fields `text_field` and `label_field` instead.

        Raises
        ------
        DataError
            A row has no text, or its answer is not one of the labels.
        """
        return [self._example(row) for row in rows]

    def metric(self, **options: Unpack[GradingOptions]) -> ConfidenceMetric:
        """Return a metric for this module, whose `stop` also sees failed calls of the module.

        Parameters
        ----------
        **options
            ``scoring_strategy``, ``high_confidence_threshold``, ``low_confidence_threshold``,
            ``failure_score`` and ``objectives`` of `ConfidenceMetric`.
        """
        metric = ConfidenceMetric(self.classifier.labels, label_field=self.label_field, **options)
        self._shared.watch = metric.watch
        return metric

    def _prompted(self) -> BasePredictor:
        if self.predict.demos:
            raise ConfigurationError(
                f"Expected a predictor without demos, got {len(self.predict.demos)}: write examples into the "
                "instructions, or optimise with dspy.GEPA."
            )
        classifier = self.classifier
        wanted = self.instructions
        # Signatures strip what surrounds their instructions.
        if wanted == inspect.cleandoc(classifier.prompt):
            return classifier
        return classifier.with_prompt(wanted)

    def _text(self, inputs: Mapping[str, object]) -> str:
        text = inputs.get(self.text_field)
        if not isinstance(text, str):
            raise DataError(
                f"Expected text under {self.text_field!r}, got {text!r:.80} (inputs: {sorted(inputs)}): "
                "name the field with text_field, and mark it with example.with_inputs."
            )
        if len(inputs) > 1:
            raise DataError(
                f"Expected the input {self.text_field!r} alone, got {sorted(inputs)}: the model sees nothing else; "
                f"mark examples with_inputs({self.text_field!r})."
            )
        return text

    def _output(self, inputs: Mapping[str, object], prediction: Prediction) -> dspy.Prediction:
        if prediction.attempts:  # a journal's answer says nothing about the server
            # The search stops for it in time; this row is no worse than the others.
            with contextlib.suppress(ProviderError), self._shared.watch.noting():
                self._shared.watch.record([prediction], provider=self.classifier.name)
        if prediction.outcome is not Outcome.ERROR:
            self._leave_trace(inputs, prediction)
        return dspy.Prediction(
            **{self.label_field: prediction.label},
            confidence=prediction.confidence,
            distribution=prediction.distribution,
            outcome=prediction.outcome.value,
            reason=prediction.reason,
            completion=prediction.text,
        )

    def _leave_trace(self, inputs: Mapping[str, object], prediction: Prediction) -> None:
        """Append the call to DSPy's trace for its optimisers, as ``dspy.Predict`` does."""
        trace = dspy.settings.trace
        most = dspy.settings.max_trace_size
        if trace is None or most <= 0:
            return
        generated = prediction.label or prediction.text or f"<{prediction.outcome.value}>"
        output = dspy.Prediction(**{self.label_field: generated})
        if len(trace) >= most:
            trace.pop(0)
        trace.append((self.predict, dict(inputs), output))

    def _example(self, row: Example | ConfidenceDataInst | dspy.Example) -> dspy.Example:
        named: Any = row
        if isinstance(row, dspy.Example):
            named = self._named_row(row)
        if isinstance(row, Example):
            named = {"input": row.input, "answer": row.answer, _CONTEXT_FIELD: row.additional_context}
        checked: Mapping[str, Any] = checked_row(named, self.classifier.labels)
        fields: dict[str, object] = {self.text_field: checked["input"], self.label_field: checked["answer"]}
        if checked.get(_CONTEXT_FIELD):
            fields[_CONTEXT_FIELD] = checked[_CONTEXT_FIELD]
        return dspy.Example(**fields).with_inputs(self.text_field)

    def _named_row(self, row: dspy.Example) -> dict[str, Any]:
        """Return a DSPy example under the names of a task's rows."""
        names = {self.text_field: "input", self.label_field: "answer", _CONTEXT_FIELD: _CONTEXT_FIELD}
        missing = [name for name in (self.text_field, self.label_field) if name not in row]
        if missing:
            raise DataError(
                f"Expected the fields {self.text_field!r} and {self.label_field!r} in every example, got "
                f"{sorted(row.keys())}: name yours with text_field and label_field."
            )
        return {own: row[name] for name, own in names.items() if name in row}


def _check_fields(text_field: str, label_field: str) -> None:
    for option, name in (("text_field", text_field), ("label_field", label_field)):
        if not isinstance(name, str) or not name.isidentifier() or name in {*_RESULTS, _CONTEXT_FIELD}:
            raise ConfigurationError(
                f"Expected {option} to be an identifier that is none of {', '.join(_RESULTS)} or {_CONTEXT_FIELD}, "
                f"got {name!r}."
            )
    if text_field == label_field:
        raise ConfigurationError(f"Expected two different fields, got {text_field!r} for text and label.")
