"""`ConfidenceAdapter`, which lets GEPA optimise the prompt of a classifier and the descriptions of its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, Self, Unpack, runtime_checkable

from gepa.core.adapter import ProposalFn

from calibrant.adapters._rows import (
    Candidate,
    ConfidenceDataInst,
    ConfidenceGrader,
    EvaluatedBatch,
    EvaluationObserver,
    GradingOptions,
    Objective,
    checked_row,
    over_all_labels,
    prompt_component,
    query_of,
    record_of,
)
from calibrant.adapters._state import (
    CallBudget,
    CallCounter,
    FailureMonitor,
    PriorCorrection,
    PriorCorrector,
    Schema,
    SearchSize,
    ThresholdFinder,
    Thresholds,
    check_calls,
    labels_of,
    refuse_open,
)
from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.calibration._thresholds import ThresholdSuggestion
from calibrant.core._completion import Client, DecisionClient
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import (
    LABEL_DESCRIPTIONS,
    LabelSet,
    label_list,
    read_descriptions,
    split_label_list,
)
from calibrant.core._prediction import Journal, LogprobSpace, Outcome, Prediction
from calibrant.core._predictor import Predictor, Query, Stop
from calibrant.core._structures import CompositeLabels
from calibrant.inference import RetryPolicy
from calibrant.inference._base import ask
from calibrant.inference._classifier import Classifier, as_classifier
from calibrant.inference._demonstrations import DemonstrationFormat, DemonstrationIndex, answer_form
from calibrant.inference._methods import Scoring, Tolerance
from calibrant.logprobs._fields import as_response_format
from calibrant.scoring import LinearBlendScoring, ScoringStrategy

_ALTERNATIVES: Final = 5  # of a cascade, whose models have settings of their own
REFLECTION_TEMPLATE: Final = """A classifier reads this list of what each label means:
```
<curr_param>
```

These are texts that it was given, its answers, and feedback on them:
```
<side_info>
```

Write a better list. Say in a few words what texts of each label have in common, and what sets labels apart that were \
confused. Describe kinds of texts and copy none. Write one line for each label, as `label: description`, and nothing \
else. Give the list within ``` blocks."""
"""GEPA's reflection prompt for the component `label_descriptions`."""


@runtime_checkable
class PreparedProposer(Protocol):
    """Protocol of proposers that are told of the task before the first proposal."""

    def prepare(self, *, labels: Sequence[str] | CompositeLabels, field: str) -> None:
        """Take the labels, or the `CompositeLabels` where an answer holds several, and the path of the label."""
        ...


class AdapterOptions(GradingOptions, total=False):
    """Options of an adapter around a predictor; see `ConfidenceAdapter`.

    Examples
    --------
    >>> from calibrant.adapters import AdapterOptions
    >>> options: AdapterOptions = {"failure_score": 0.0}
    """

    proposer: ProposalFn | None
    on_prediction: Callable[[Prediction], None] | None
    observer: EvaluationObserver | None
    prior_correction: PriorCorrection | None
    thresholds: Thresholds | None
    threshold_rows: Iterable[ConfidenceDataInst]
    demonstrations: DemonstrationIndex | None


class ConfidenceAdapter(ConfidenceGrader):
    """Adapter for ``gepa.optimize`` that does not reward lucky guesses.

    Every row is asked with the candidate's first component as system prompt and ``input`` as user message (shaped by
    an optional component ``user_template`` holding ``{input}``), with the schema's enum and token log-probabilities.
    An optional component ``demonstrations`` (`DemonstrationSettings.to_text`) shows it the nearest labelled texts.
    An optional component ``label_descriptions``, one line ``label: description`` for each label, is listed below the
    prompt, or beside the options of a decision model; rows of a candidate with any other text in it are not asked.
    The score is the scoring strategy's; the feedback names the model's confidence and its closest alternatives.

    Rows whose call failed get `failure_score` and are left out of the reflective dataset; too many of them stop the
    run. ``close``, or leaving a ``with`` block, closes the connections that the adapter opened.

    Parameters
    ----------
    model : str, callable or Client
        A model's name (see `calibrant.inference.open_client`), or ``messages -> response``.
    field_path : str
        JSON path of the label: ``category``, ``classification.name``, ``results[].category``.
    response_format : schema, optional
        Sent with every call; needed when `model` is a name. A Pydantic model is accepted.
    response_schema : schema, optional
        Source of the labels instead of `response_format`. A callable needs neither: its labels are then the answers
        seen so far, of the rows and of the model (`OpenLabels`).
    scoring_strategy : ScoringStrategy, optional
        By default ``LinearBlendScoring(high_confidence_threshold)``.
    answer_field : str, optional
        JSON path the label itself is read from; `field_path` by default.
    high_confidence_threshold : float, default 0.99
        Confidence, in (0, 1], from which an answer counts as certain in feedback.
    low_confidence_threshold : float, default 0.90
        Confidence, in (0, 1], below which an answer counts as uncertain in feedback.
    top_logprobs : int, default 5
        Alternatives asked for per token.
    failure_score : float, default 0.0
        Score of a row without a legal label, in [0, 1].
    max_litellm_workers : int, default 10
        Calls in flight at most, whatever the model is.
    litellm_batch_completion_kwargs : mapping, optional
        Handed to the provider with every call.
    objectives : iterable of str or mapping of str to callable, optional
        Names replace the default objectives ``accuracy`` and ``probability``; a mapping
        ``name -> f(prediction, true label)`` adds to them. Known: `OBJECTIVES`.
    proposer : callable, optional
        Becomes ``propose_new_texts``. Its method ``prepare``, where it has one, gets labels (the `CompositeLabels`
        where an answer holds several) and field, and its method ``observe`` every evaluation.
    space : str, optional
        Space of the log-probabilities, ``masked`` or ``raw``, where the model's default is wrong.
    journal : Journal, optional
        Finished predictions; what it holds is not asked again.
    retry : RetryPolicy, optional
        How passing faults are retried.
    on_prediction : callable, optional
        Called with every prediction as it is made, for progress.
    observer : EvaluationObserver, optional
        Gets every evaluation, beside the proposer.
    scoring, tolerance
        How labels are scored; see `Classifier`.
    prior_correction : {"batch"}, optional
        Scores and feedback use predictions without the label prior of their prompt: the mean distribution over the
        rows asked under it is divided out (batch calibration). No row is asked for it: where a prompt was asked about
        fewer than 64, such as a minibatch, the prior of the last prompt that was asked about more makes up for them.
    thresholds : {"auto"}, optional
        Both thresholds, and the scoring strategy unless one is given, come from `suggest_thresholds`
        on 80 of `threshold_rows` under the first prompt evaluated; the calls count as metric calls.
    threshold_rows : iterable of ConfidenceDataInst
        Labelled rows for it, such as the training rows.
    demonstrations : DemonstrationIndex, optional
        Rows that the component ``demonstrations`` shows: training rows, without any whose text is held out.
    labels : LabelSet, optional
        The labels of the schema, with their structure: `OrdinalLabels` (in their order from low to high) and
        `HierarchicalLabels` earn an answer that is nearly right a part of the score, and feedback says how near.

    Raises
    ------
    ConfigurationError
        A model name without `response_format`, no enum at `field_path`, `labels` that are not those of the
        schema, or a threshold out of range.

    Examples
    --------
    >>> from calibrant import ConfidenceAdapter
    >>> from calibrant.testing import FakeClient
    >>> fake, schema = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.995)}), {"enum": ["cat", "dog"]}
    >>> rows = [{"input": "purrs", "answer": "cat"}, {"input": "purrs", "answer": "dog"}]
    >>> with ConfidenceAdapter(fake, "category", {"properties": {"category": schema}}) as adapter:
    ...     found = adapter.evaluate(rows, {"system_prompt": "Which animal?"})
    >>> [round(score, 2) for score in found.scores]  # then: gepa.optimize(..., adapter=adapter)
    [1.0, 0.0]
    """

    propose_new_texts: ProposalFn | None = None
    _owned: Predictor | None = None  # what `close` closes

    def __init__(  # noqa: PLR0913  (the reference adapter's parameters, in its order)
        self,
        model: str | Callable[..., object] | Client,
        field_path: str,
        response_format: Schema | None = None,
        response_schema: Schema | None = None,
        scoring_strategy: ScoringStrategy | None = None,
        answer_field: str | None = None,
        high_confidence_threshold: float = 0.99,
        low_confidence_threshold: float = 0.90,
        top_logprobs: int = 5,
        failure_score: float = 0.0,
        max_litellm_workers: int = 10,
        litellm_batch_completion_kwargs: Mapping[str, Any] | None = None,
        *,
        objectives: Iterable[str] | Mapping[str, Objective] | None = None,
        proposer: ProposalFn | None = None,
        space: LogprobSpace | str | None = None,
        journal: Journal | None = None,
        retry: RetryPolicy | None = None,
        on_prediction: Callable[[Prediction], None] | None = None,
        observer: EvaluationObserver | None = None,
        scoring: Scoring | None = None,
        tolerance: Tolerance | None = None,
        prior_correction: PriorCorrection | None = None,
        thresholds: Thresholds | None = None,
        threshold_rows: Iterable[ConfidenceDataInst] = (),
        demonstrations: DemonstrationIndex | None = None,
        labels: LabelSet | None = None,
    ) -> None:
        check_calls(top_logprobs, max_litellm_workers, space)
        labels = labels_of(model, field_path, (response_schema, response_format), labels)
        is_open = labels.is_open
        sampled = scoring if scoring == "sampled" else None
        refuse_open(labels, scoring=sampled, prior_correction=prior_correction)
        schema = {"type": "json_object"} if is_open else response_format
        classifier = Classifier(
            model=model,
            labels=labels,
            field=field_path,
            response_format=None if schema is None else as_response_format(schema),
            answer_field=answer_field,
            top_logprobs=top_logprobs,
            concurrency=max_litellm_workers,
            space=space,
            options=litellm_batch_completion_kwargs,
            journal=journal,
            retry=retry,
            scoring=scoring,
            tolerance=tolerance,
            keep_tokens=is_open,
        )
        self._set_up(
            classifier,
            model=model,
            response_schema=response_schema,
            scoring_strategy=scoring_strategy,
            high_confidence_threshold=high_confidence_threshold,
            low_confidence_threshold=low_confidence_threshold,
            failure_score=failure_score,
            objectives=objectives,
            proposer=proposer,
            on_prediction=on_prediction,
            observer=observer,
            prior_correction=prior_correction,
            thresholds=thresholds,
            threshold_rows=threshold_rows,
            demonstrations=demonstrations,
        )
        self._owned = classifier

    @classmethod
    def from_classifier(cls, classifier: Predictor, **options: Unpack[AdapterOptions]) -> Self:
        """Return an adapter around an existing classifier or other predictor, which `close` leaves open.

        Parameters
        ----------
        classifier : Predictor
            Asked with the candidate's prompt instead of its own; what it has learned under that is left out.
        **options
            ``scoring_strategy``, ``high_confidence_threshold``, ``low_confidence_threshold``,
            ``failure_score``, ``objectives``, ``proposer``, ``on_prediction``, ``observer``,
            ``prior_correction``, ``thresholds``, ``threshold_rows`` and ``demonstrations``, as above.
        """
        adapter = cls.__new__(cls)
        adapter._set_up(classifier, model=classifier.name, **options)  # noqa: SLF001  (its own class)
        return adapter

    def _set_up(  # noqa: PLR0913
        self,
        predictor: Predictor,
        *,
        model: str | Callable[..., object] | Client,
        response_schema: Schema | None = None,
        proposer: ProposalFn | None = None,
        on_prediction: Callable[[Prediction], None] | None = None,
        observer: EvaluationObserver | None = None,
        prior_correction: PriorCorrection | None = None,
        thresholds: Thresholds | None = None,
        threshold_rows: Iterable[ConfidenceDataInst] = (),
        demonstrations: DemonstrationIndex | None = None,
        **grading: Unpack[GradingOptions],
    ) -> None:
        super().__init__(predictor.labels, **grading)
        if demonstrations is not None:  # candidates say which of them are shown
            classifier = as_classifier(predictor, to_use="demonstrations")
            predictor = classifier.with_demonstrations(demonstrations, k=None)
        self.predictor = predictor.with_prompt(predictor.prompt)
        self.model = model
        self.response_schema = response_schema
        self.propose_new_texts = proposer
        self._counter = CallCounter(self.predictor)
        self._on_prediction = on_prediction
        self._prior = None if prior_correction is None else PriorCorrector(prior_correction, self.labels)
        self._scoring_is_given = grading.get("scoring_strategy") is not None
        rows = [checked_row(row, self.labels) for row in threshold_rows]
        self._thresholds = None if thresholds is None else ThresholdFinder(thresholds, rows, self.labels)
        self._failures = FailureMonitor()
        self._refusal = ""
        self.stop: Stop | None = None
        self._observers = [part for part in (proposer, observer) if isinstance(part, EvaluationObserver)]
        if isinstance(proposer, PreparedProposer):
            known = self.labels if self.labels.holds_several else self.labels.labels
            proposer.prepare(labels=known, field=predictor.field)

    def close(self) -> None:
        """Close the connections that the adapter opened; a client or classifier that was given stays open."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def metric_calls(self) -> int:
        """Number of metric calls so far; with a journal, a row repeated under one prompt counts once."""
        return self._counter.metric_calls

    @property
    def completions(self) -> int:
        """Number of rows answered with a legal label so far."""
        return self._counter.completions

    @property
    def completions_without_logprobs(self) -> int:
        """Number of completions without usable log-probabilities; scored by correctness alone."""
        return self._counter.without_logprobs

    def budget(
        self, max_metric_calls: int, *, valset: Sequence[ConfidenceDataInst], minibatch_size: int = 3
    ) -> CallBudget:
        """Return a stopper for ``gepa.optimize`` that keeps a search within `max_metric_calls`.

        Raises
        ------
        ConfigurationError
            `max_metric_calls` does not cover the first validation and one accepted proposal.
        """
        size = SearchSize(
            validation_rows=len(valset),
            minibatch_size=minibatch_size,
            threshold_rows=0 if self._thresholds is None else len(self._thresholds.rows),
        )
        return CallBudget(self._counter, size, max_metric_calls)

    def evaluate(
        self,
        batch: list[ConfidenceDataInst],
        candidate: Candidate,
        capture_traces: bool = False,  # noqa: FBT002  (GEPA's signature)
    ) -> EvaluatedBatch:
        """Classify `batch` under `candidate`.

        Parameters
        ----------
        batch : list of ConfidenceDataInst
            The rows.
        candidate : dict of str to str
            Component texts; the first one is the system prompt.
        capture_traces : bool, default False
            True returns trajectories for reflection.

        Returns
        -------
        EvaluationBatch
            Outputs, scores in [0, 1] and objective scores, one per row, in order.

        Raises
        ------
        ProviderError
            A fault that every call meets, or too many failed rows.
        DataError
            A row's answer is not one of the labels.
        """
        return self.batch_evaluate([(candidate, batch)], capture_traces=capture_traces)[0]

    def batch_evaluate(
        self, items: Sequence[tuple[Candidate, list[ConfidenceDataInst]]], *, capture_traces: bool = True
    ) -> list[EvaluatedBatch]:
        """Classify several batches under their candidates, all rows concurrently.

        Parameters
        ----------
        items : sequence of (candidate, batch)
            As `evaluate` takes them.
        capture_traces : bool, default True
            True returns trajectories; gepa up to 0.1.4 does not say and needs them.

        Returns
        -------
        list of EvaluationBatch
            One per pair, in order.

        Raises
        ------
        ProviderError, DataError
            As `evaluate`.
        """
        rows = [[checked_row(row, self.labels) for row in batch] for _, batch in items]
        queries: list[Query] = []
        for (candidate, _), batch in zip(items, rows, strict=True):
            queries += self._queries(candidate, batch)
        sample = []
        if self._thresholds is not None:
            sample = self._thresholds.queries(queries)
        wanted = [*sample, *queries]
        is_new = self._counter.new(wanted)
        predictions = self.ask(wanted)
        self.learn_prior(wanted, predictions)
        predictions = list(map(self.corrected, wanted, predictions))
        if sample:
            self._set_thresholds(predictions[: len(sample)])
        predictions = over_all_labels(predictions, self.labels, self.field_path)
        graded = []
        start, counted = len(sample), 0  # the sample counts as calls of the first batch
        for (candidate, _), batch in zip(items, rows, strict=True):
            end = start + len(batch)
            for observer in self._observers:
                observer.observe(candidate, batch, predictions[start:end])
            result = self.graded(
                batch,
                predictions[start:end],
                alternatives=self.top_logprobs if capture_traces else None,
            )
            # At least one call, so that a search that finds nothing new to ask comes to an end.
            result.num_metric_calls = max(1, sum(is_new[counted:end]))
            graded.append(result)
            start = counted = end
        return graded

    def described(self, candidate: Candidate) -> Candidate:
        """Return a candidate whose component ``label_descriptions``, if it has one, is a part of its prompt.

        Raises
        ------
        ConfigurationError
            That text is not one line for each label.
        """
        return described_candidate(candidate, self.predictor)

    def _queries(self, candidate: Candidate, rows: Sequence[ConfidenceDataInst]) -> list[Query]:
        """Return the queries of rows; none of them is asked where the label descriptions cannot be read."""
        try:
            described = self.described(candidate)
        except ConfigurationError as error:
            self._refusal = str(error)
            return [replace(query_of(candidate, row), problem=self._refusal) for row in rows]
        return [query_of(described, row) for row in rows]

    def make_reflective_dataset(
        self,
        candidate: Candidate,
        eval_batch: EvaluatedBatch,
        components_to_update: list[str],
    ) -> dict[str, list[dict[str, str]]]:
        """Return one record per answered row, for each component to update.

        Rows whose call failed are left out: they say nothing about the prompt.

        Raises
        ------
        ConfigurationError
            The batch was evaluated without trajectories, or a component is unknown.
        """
        if eval_batch.trajectories is None:
            raise ConfigurationError(
                "Expected an evaluation with trajectories: pass capture_traces=True to evaluate."
            )
        unknown = [name for name in components_to_update if name not in candidate]
        if unknown:
            raise ConfigurationError(f"Expected components among {list(candidate)}, got {unknown}.")
        records = [
            record_of(trajectory)
            for trajectory in eval_batch.trajectories
            if trajectory["prediction"].outcome is not Outcome.ERROR
        ]
        datasets = {name: [dict(record) for record in records] for name in components_to_update}
        if LABEL_DESCRIPTIONS in datasets:
            datasets[LABEL_DESCRIPTIONS].insert(0, format_record(self.labels, self._refusal))
            self._refusal = ""
        return datasets

    def affordable(self, queries: Sequence[Query], calls: int) -> list[bool]:
        """Return one flag per query: True if `calls` metric calls pay for this query and those before."""
        return self._counter.affordable(queries, calls)

    def ask(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return the uncorrected predictions; with a journal, a repeated query is no metric call."""
        is_new = self._counter.new(queries)

        def report(index: int, prediction: Prediction) -> None:
            if self._on_prediction is not None and is_new[index]:
                self._on_prediction(prediction)

        predictions = ask(self.predictor, queries, on_prediction=report, stop=self.stop)
        self.check_failures(self._counter.count(queries, predictions, is_new))
        return predictions

    def learn_prior(self, queries: Sequence[Query], predictions: Sequence[Prediction]) -> None:
        """Add answered rows to the label priors of their prompts, until a prompt has `PRIOR_ROWS` rows."""
        if self._prior is not None:
            self._prior.fit(queries, predictions)

    def _set_thresholds(self, sample: Sequence[Prediction]) -> None:
        if self._thresholds is None or (suggested := self._thresholds.fit(sample)) is None:
            return
        self.high_confidence_threshold = suggested.high
        self.low_confidence_threshold = suggested.low
        if not self._scoring_is_given:
            self.scoring_strategy = LinearBlendScoring(suggested.scoring)

    @property
    def suggested_thresholds(self) -> ThresholdSuggestion | None:
        """Thresholds found with ``thresholds="auto"``; None before the first evaluation or on too few rows."""
        return None if self._thresholds is None else self._thresholds.suggestion

    def label_prior(self, query: Query) -> LabelPriorCorrection | None:
        """Return the label-prior correction of a query's prompt, or None."""
        if self._prior is None:
            return None
        return self._prior.correction(query)

    def corrected(self, query: Query, prediction: Prediction) -> Prediction:
        """Return `prediction` corrected for the label prior of its prompt, if correction is on."""
        if self._prior is None:
            return prediction
        return self._prior.correct(query, prediction)

    def check_failures(self, predictions: Sequence[Prediction]) -> None:
        """Record new predictions; raise `ProviderError` if too many of them failed, see `FailureMonitor`."""
        self._failures.record(predictions, provider=self.predictor.name)

    # The settings of gepa's own adapter, for scripts written for it. They cannot be assigned to: a client is open
    # already, so a new value would change nothing.

    @property
    def classifier(self) -> Classifier:
        """Classifier of the adapter; an error if the adapter asks another predictor.

        Raises
        ------
        ConfigurationError
            Another predictor is asked, such as a cascade.
        """
        if not isinstance(self.predictor, Classifier):
            raise ConfigurationError(
                f"Expected an adapter around a classifier, got one around {self.predictor.name}: ask `predictor`."
            )
        return self.predictor

    @property
    def field_path(self) -> str:
        """JSON path of the label."""
        return self.predictor.field

    @property
    def answer_field(self) -> str:
        """JSON path of the label in the classifier's answers."""
        return self.classifier.answer_field

    @property
    def response_format(self) -> Mapping[str, Any] | None:
        """JSON schema sent with the calls; None for a callable without a schema."""
        if self.predictor.labels.is_open:
            return None
        return self.classifier.response_format

    @property
    def top_logprobs(self) -> int:
        """Number of alternatives requested per token."""
        if isinstance(self.predictor, Classifier):
            return self.predictor.top_logprobs
        return _ALTERNATIVES

    @property
    def max_litellm_workers(self) -> int:
        """Maximum number of calls in flight."""
        return self.predictor.meter.concurrency

    @property
    def litellm_batch_completion_kwargs(self) -> dict[str, Any]:
        """Options passed to the provider with the calls."""
        return dict(self.classifier.options)


def decides(predictor: object) -> bool:
    """Return True for the classifier of a decision model, which takes descriptions beside its options."""
    return isinstance(predictor, Classifier) and isinstance(predictor.client, DecisionClient)


def own_descriptions(predictor: object) -> Mapping[str, str]:
    """Return the descriptions that a predictor uses where a prompt lists none."""
    if isinstance(predictor, Classifier):
        return predictor.method.setup.label_descriptions
    return {}


def listed_prompt(prompt: str, descriptions: Mapping[str, str], labels: LabelSet, *, ending: str = "") -> str:
    """Return a prompt with a list of labels and their descriptions before its demonstrations, in place of its own."""
    rest, _ = DemonstrationFormat.split(prompt)
    demonstrations = prompt[len(rest) :]
    instruction, _ = split_label_list(rest, labels)
    return instruction + label_list(descriptions, labels) + ending + demonstrations


def described_candidate(candidate: Candidate, predictor: Predictor) -> Candidate:
    """Return a candidate whose label descriptions, if it has some, stand in its prompt.

    A prompt is all that a classifier, its head and its files are known by; a decision model's are taken out of it for
    their place beside the options.

    Raises
    ------
    ConfigurationError
        The descriptions are not one line for each label.
    """
    if LABEL_DESCRIPTIONS not in candidate:
        return candidate
    labels = predictor.labels
    found = read_descriptions(candidate[LABEL_DESCRIPTIONS], labels)
    described = {name: text for name, text in candidate.items() if name != LABEL_DESCRIPTIONS}
    if found or (
        decides(predictor) and own_descriptions(predictor)
    ):  # which would come in where none are listed
        name = prompt_component(candidate)
        ending = "" if decides(predictor) else answer_form(predictor.field)
        described[name] = listed_prompt(candidate[name], found, labels, ending=ending)
    return described


def format_record(labels: LabelSet, refused: str) -> dict[str, str]:
    """Return the reflection record that says how descriptions are written, and why the last ones were refused."""
    rule = f"Write one line for each of these labels, as `label: description`: {', '.join(labels)}."
    return {
        "Inputs": "all rows together",
        "Generated Outputs": "",
        "Feedback": f"{rule} The last proposal was refused. {refused}" if refused else rule,
    }
