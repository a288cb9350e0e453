"""DSPy integration: a metric with feedback for ``dspy.GEPA``, and a module with confidence.

Needs the extra ``dspy``. ``dspy.GEPA`` rewrites the instructions of `ConfidenceClassifier`; these are
the prompt under which a calibrant `Classifier` asks its model, so that labels are constrained, scored
and read as everywhere in calibrant.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NoReturn, cast

from calibrant.adapters._calls import Watch
from calibrant.adapters._parameters import refuse_several
from calibrant.adapters._rows import checked_row
from calibrant.adapters._types import ConfidenceDataInst
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._installation import install_command
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._rows import Example
from calibrant.inference._predictor import BasePredictor

try:
    import dspy
except ModuleNotFoundError as error:
    if error.name != "dspy":
        raise
    raise ConfigurationError(
        f"The adapter needs dspy, which is not installed: run {install_command('dspy')}."
    ) from error

from calibrant.adapters._dspy_metric import CONTEXT_FIELD, INSTEAD_OF_DSPY, ConfidenceMetric

__all__ = ["ConfidenceClassifier", "ConfidenceMetric"]

_RESULTS: Final = ("confidence", "distribution", "outcome", "reason", "completion")


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
        refuse_several(classifier.labels, INSTEAD_OF_DSPY)
        if not classifier.prompt.strip():
            raise ConfigurationError(
                "Expected a classifier with a prompt, for the instructions to begin with, got none (or a cascade "
                "whose models have prompts of their own): give it one, with_prompt makes a copy."
            )
        _check_fields(text_field, label_field)
        self.text_field = text_field
        self.label_field = label_field
        self._shared = _SharedState(classifier)
        self.predict = dspy.Predict(_signature(classifier, text_field, label_field))

    @property
    def classifier(self) -> BasePredictor:
        """Classifier of the module, with its own prompt."""
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

    def examples(self, rows: Iterable[Example | ConfidenceDataInst]) -> list[dspy.Example]:
        """Return labelled rows as DSPy examples with canonical labels.

        Parameters
        ----------
        rows : iterable of Example or ConfidenceDataInst
            As in a task: input, answer and, optionally, additional context for the feedback.

        Raises
        ------
        DataError
            A row has no text, or its answer is not one of the labels.
        """
        return [self._example(row) for row in rows]

    def metric(self, **options: Any) -> ConfidenceMetric:  # noqa: ANN401
        """Return a metric for this module that also counts its failed calls.

        Parameters
        ----------
        **options
            ``scoring_strategy``, ``high_confidence_threshold``, ``low_confidence_threshold``,
            ``failure_score`` and ``objectives`` of `ConfidenceMetric`.
        """
        found = ConfidenceMetric(self.classifier.labels, label_field=self.label_field, **options)
        self._shared.watch = found.watch
        return found

    def _prompted(self) -> BasePredictor:
        if self.predict.demos:
            raise ConfigurationError(
                f"Expected a predictor without demos, got {len(self.predict.demos)}: write examples into the "
                "instructions, or optimise with dspy.GEPA."
            )
        classifier, wanted = self.classifier, self.instructions
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
            self._shared.watch.record(prediction, provider=self.classifier.name)
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
        """Append the call to DSPy's trace, as ``dspy.Predict`` does, for optimisers."""
        trace, most = dspy.settings.trace, dspy.settings.max_trace_size
        if trace is None or most <= 0:
            return
        generated = prediction.label or prediction.text or f"<{prediction.outcome.value}>"
        output = dspy.Prediction(**{self.label_field: generated})
        if prediction.label is not None and prediction.confidence is not None:
            output.probability = f"{prediction.confidence:.1%}"
        if len(trace) >= most:
            trace.pop(0)
        trace.append((self.predict, dict(inputs), output))

    def _example(self, row: Example | ConfidenceDataInst) -> dspy.Example:
        found: Any = row
        if isinstance(row, Example):
            found = {"input": row.input, "answer": row.answer, CONTEXT_FIELD: row.additional_context}
        checked: Mapping[str, Any] = checked_row(found, self.classifier.labels)
        fields: dict[str, object] = {self.text_field: checked["input"], self.label_field: checked["answer"]}
        if checked.get(CONTEXT_FIELD):
            fields[CONTEXT_FIELD] = checked[CONTEXT_FIELD]
        return dspy.Example(**fields).with_inputs(self.text_field)


def _check_fields(text_field: str, label_field: str) -> None:
    for option, name in (("text_field", text_field), ("label_field", label_field)):
        if not isinstance(name, str) or not name.isidentifier() or name in {*_RESULTS, CONTEXT_FIELD}:
            raise ConfigurationError(
                f"Expected {option} to be an identifier that is none of {', '.join(_RESULTS)} or {CONTEXT_FIELD}, "
                f"got {name!r}."
            )
    if text_field == label_field:
        raise ConfigurationError(f"Expected two different fields, got {text_field!r} for text and label.")


def _signature(classifier: BasePredictor, text_field: str, label_field: str) -> Any:  # noqa: ANN401
    labels = cast("Any", Literal)[classifier.labels.labels]
    fields = {text_field: (str, dspy.InputField()), label_field: (labels, dspy.OutputField())}
    return dspy.Signature(fields, classifier.prompt)
