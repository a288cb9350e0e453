"""`optimize`: one task, one model, one budget; a better prompt and honest numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from calibrant.adapters import ConfidenceAdapter, Thresholds
from calibrant.adapters import ConfidenceDataInst as Row
from calibrant.calibration import Fingerprint, LabelPriorCorrection
from calibrant.core import (
    CompositeLabels,
    ConfigurationError,
    Example,
    Outcome,
    Prediction,
    ProviderError,
    ScoringSettings,
    Task,
)
from calibrant.heads import Head
from calibrant.inference import Classifier, Query, apply_head, head_of
from calibrant.optimization._choice import Choice, ValidationLog, choose, is_worse
from calibrant.optimization._directory import JOURNAL, open_directory, rescuing, teaches_head
from calibrant.optimization._final import final_score, labelled_rows
from calibrant.optimization._guard import Guard
from calibrant.optimization._journal import FileLogger, JsonlStore, PredictionJournal
from calibrant.optimization._plan import (
    Proposer,
    SearchPlan,
    asked_model,
    make_plan,
    search_fingerprint,
    search_size,
)
from calibrant.optimization._progress import PERFECT, ProgressListener, ProgressTracker
from calibrant.optimization._reflection import Reflection, check_names, open_reflection
from calibrant.optimization._result import (
    OptimizationResult,
    compare,
    compare_credit,
    score_prompt,
    write_run,
)
from calibrant.scoring import (
    BrierScoring,
    LinearBlendScoring,
    LogScoring,
    ScoringStrategy,
    SigmoidScoring,
    ThresholdScoring,
)

if TYPE_CHECKING:
    from calibrant.inference import ModelLike

__all__ = ["optimize"]

COMPONENT = "system_prompt"
LABEL_PRIOR = "label_prior.json"
HEAD = "head.json"
USER_TEMPLATE = "user_template"


def optimize(  # noqa: PLR0913  (keyword-only options)
    task: Task | str | Path,
    *,
    model: ModelLike | Classifier | None = None,
    reflection_model: str | Callable[[str], str] | None = None,
    reflection_options: Mapping[str, Any] | None = None,
    proposer: Literal["exemplar", "reflection"] | Proposer | None = None,
    max_metric_calls: int = 600,
    minibatch_size: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    progress: ProgressListener | None = None,
    prior_correction: Literal["batch", "off"] | None = None,
    thresholds: Thresholds | None = None,
) -> OptimizationResult:
    """Search for a better prompt with GEPA and report on rows the search never saw.

    Parameters
    ----------
    task : Task or path
        The task, or its TOML file; needs train, validation and test rows.
    model : str, Client, callable or Classifier, optional
        Answers instead of the task's own model. A classifier, such as the cascade of a task
        (`calibrant.assembly.open_classifier`), is neither changed nor closed.
    reflection_model : str or callable, optional
        Writes new prompts from feedback: any name that `model` may have, asked once before the search begins, or
        ``prompt -> text``.
    reflection_options : mapping, optional
        Options of a reflection model given by its name (``api_base``, ``temperature``, ...); see
        `calibrant.inference.open_client`.
    proposer : {"exemplar", "reflection"} or callable, optional
        How prompts are proposed; ``reflection`` when a reflection model is given, else
        ``exemplar``, which needs none. A callable has GEPA's proposal signature.
    max_metric_calls : int, default 600
        Rows the search may ask, those for thresholds included: an upper bound. The search ends before
        a proposal that could exceed it. Equal questions count once; the test rows are asked afterwards, and apart.
    minibatch_size : int, optional
        Training rows a proposal is tried on first; 20 for ``exemplar``, else 3.
    seed : int, default 0
        Seed of every choice of the search.
    out : path, optional
        Run directory. When it holds an interrupted run of the same task, model and seed,
        the search is repeated from its journal, at no cost, and goes on where it stopped.
    progress : callable, optional
        Called with a `Progress` whenever something changed.
    prior_correction : {"batch", "off"}, optional
        ``batch`` divides the label prior of every prompt out of its predictions. It is fitted, without answers, on
        the rows asked under the prompt; until these are 64, its parent's prior makes up for those that are missing.
        By default what the task says under ``[calibration]``.
    thresholds : {"auto"}, optional
        Take the confidence thresholds of scores and feedback from 80 training rows under the first
        prompt, which count as metric calls. By default what the task says under ``[scoring]``.

    Returns
    -------
    OptimizationResult
        Seed and best prompt with their scores on the test rows. The best prompt is one that improves on the seed
        prompt on the validation rows in score, accuracy and macro F1, and else the seed prompt itself.

    Raises
    ------
    ConfigurationError
        Rows are missing, the budget pays for no accepted proposal, or a reflection model is needed.
    StateError
        `out` holds another run, or another process writes it.
    CalibrantError
        `out` was moved or removed during the search; the message says where its answers are kept.
    ProviderError
        A model cannot be reached, or too many rows failed.
    """
    started = time.perf_counter()
    if out is not None:
        check_names(asked_model(model), reflection_model, proposer)
    task = task if isinstance(task, Task) else Task.from_file(task)
    plan = make_plan(task, reflection_model, proposer, minibatch_size, seed, prior_correction, thresholds)
    search_size(task, plan).check(max_metric_calls)
    scoring = _scoring(task.scoring)
    with ExitStack() as stack:
        classifier = _open(task, model, stack)
        fingerprint = search_fingerprint(task, model, plan)
        directory = None if out is None else open_directory(Path(out), fingerprint)
        teaches = (
            type(classifier) is Classifier
            and task.head.fit == "auto"
            and (directory is None or teaches_head(directory))
        )
        classifier = classifier.with_features() if teaches else classifier
        journal = stack.enter_context(JsonlStore(_file(directory, JOURNAL)))
        store = stack.enter_context(JsonlStore(_file(directory, "reflections.jsonl")))
        classifier.use_journal(PredictionJournal(journal))
        stack.enter_context(rescuing(directory, fingerprint, (journal, store)))
        tracker = ProgressTracker(progress, total=max_metric_calls)
        reflection = stack.enter_context(
            open_reflection(plan.reflection_model, store, options=reflection_options)
        )
        log = ValidationLog(task.validation)
        adapter = _adapter(classifier, scoring, task, plan, tracker, log)
        tracker.watch(adapter.classifier.gates)
        run = _Run(
            task=task,
            plan=plan,
            adapter=adapter,
            validation=log,
            reflection=reflection,
            tracker=tracker,
            log=_file(directory, "search.log"),
        )
        kept = _kept_for_head(task, max_metric_calls - search_size(task, plan).floor) if teaches else 0
        found = run.search(max_metric_calls - kept)
        head = run.head(found, max_metric_calls if teaches else 0) if task.head.fit == "auto" else None
        predictions = run.test(found, head)
        result = run.result(found, head, predictions, seconds=time.perf_counter() - started)
        prior = run.label_prior(found)
        if directory is not None:
            write_run(directory, result, task.test, predictions, labels=task.labels)
            if prior is not None:
                prior[0].save(directory / LABEL_PRIOR, fingerprint=prior[1])
            if head is not None:
                head.save(directory / HEAD, fingerprint=run.best(found).fingerprint())
    return result


def _kept_for_head(task: Task, spare: int) -> int:
    """Return how many calls are kept for training rows that teach the head: half of what one proposal leaves."""
    if isinstance(task.labels, CompositeLabels):
        return 0
    return min(len(task.train), spare // 2)


def _open(task: Task, model: ModelLike | Classifier | None, stack: ExitStack) -> Classifier:
    """Return what is asked, as a copy of what was handed in: the journal is this run's."""
    if isinstance(model, Classifier):
        if model.labels != task.labels:
            raise ConfigurationError(
                f"Expected a classifier over the labels of task {task.name!r}, got one over others: open it from the "
                "task."
            )
        return model.with_limits(model.runner.gate.limits)
    # Its prompts are not the one that the task's head belongs to.
    own = replace(task, head=task.head.model_copy(update={"file": None}))
    classifier = Classifier.from_task(own, model=model)
    stack.callback(classifier.close)
    return classifier


def _file(directory: Path | None, name: str) -> Path | None:
    return None if directory is None else directory / name


def _adapter(
    classifier: Classifier,
    scoring: ScoringStrategy,
    task: Task,
    plan: SearchPlan,
    tracker: ProgressTracker,
    log: ValidationLog,
) -> ConfidenceAdapter:
    return ConfidenceAdapter.from_classifier(
        classifier,
        scoring_strategy=None if _thresholds_score(task, plan) else scoring,
        high_confidence_threshold=task.scoring.high,
        low_confidence_threshold=task.scoring.low,
        proposer=plan.proposer,
        on_prediction=tracker.on_prediction,
        observer=log,
        prior_correction=plan.prior_correction,
        thresholds=plan.thresholds,
        threshold_rows=[_row(example) for example in task.train],
    )


def _thresholds_score(task: Task, plan: SearchPlan) -> bool:
    """Return whether thresholds to be found also make the score: as the task says nothing else."""
    return plan.thresholds is not None and task.scoring.strategy == "linear" and not task.scoring.parameters


def _scoring(settings: ScoringSettings) -> ScoringStrategy:
    strategies: dict[str, Callable[..., ScoringStrategy]] = {
        "linear": LinearBlendScoring,
        "threshold": ThresholdScoring,
        "sigmoid": SigmoidScoring,
        "brier": BrierScoring,
        "log": LogScoring,
    }
    parameters: dict[str, float] = dict(settings.parameters)
    if settings.strategy == "linear":
        parameters.setdefault("low_confidence_threshold", settings.high)
    try:
        return strategies[settings.strategy](**parameters)
    except TypeError as error:
        raise ConfigurationError(
            f"[scoring] parameters do not fit strategy {settings.strategy!r}: {error}."
        ) from error


def _row(example: Example) -> Row:
    row: Row = {
        "input": example.input,
        "answer": example.answer,
        "additional_context": dict(example.additional_context),
    }
    if example.context is not None:
        row["context"] = example.context
    return row


@dataclass(kw_only=True)
class _Run:
    """One search and what it needs."""

    task: Task
    plan: SearchPlan
    adapter: ConfidenceAdapter
    validation: ValidationLog
    reflection: Reflection | None
    tracker: ProgressTracker
    log: Path | None

    def search(self, max_metric_calls: int) -> Choice:
        """Run GEPA until the budget is used up, and choose."""
        import gepa  # noqa: PLC0415  (heavy)

        candidate = {COMPONENT: self.task.prompt}
        if self.task.user_template is not None:
            candidate[USER_TEMPLATE] = self.task.user_template
        guard = None if self.reflection is None else self.reflection.guard
        if self.plan.proposer is not None:
            guard = Guard(self.plan.proposer, name=f"proposer {self.plan.name}", hint="Mend the proposer.")
            self.adapter.propose_new_texts = guard
        valset = [_row(example) for example in self.task.validation]
        budget = self.adapter.budget(max_metric_calls, valset=valset, minibatch_size=self.plan.minibatch_size)
        found = gepa.optimize(
            seed_candidate=candidate,
            trainset=[_row(example) for example in self.task.train],
            valset=valset,
            adapter=self.adapter,
            reflection_lm=self.reflection,
            reflection_minibatch_size=self.plan.minibatch_size,
            module_selector="all" if self.reflection is None else "round_robin",
            stop_callbacks=[
                budget,
                self.tracker.should_stop,
                *([] if guard is None else [guard.should_stop]),
            ],
            callbacks=[self.tracker],
            logger=FileLogger(self.log),
            track_best_outputs=False,
            seed=self.plan.seed,
        )
        if guard is not None and guard.error is not None:
            raise guard.error
        scored = zip(found.candidates, found.val_aggregate_scores, strict=True)
        validated = [self.validation.validated(*pair, labels=self.task.labels) for pair in scored]
        return choose(validated)

    def best(self, found: Choice) -> Classifier:
        """Return the classifier under the best prompt."""
        best = found.best.candidate
        return self.adapter.classifier.with_prompt(best[COMPONENT], user_template=best.get(USER_TEMPLATE))

    def head(self, found: Choice, max_metric_calls: int) -> Head | None:
        """Return what labelled rows teach under the best prompt; None where they cannot.

        Training rows are asked as far as the budget goes.
        """
        if type(self.adapter.classifier) is not Classifier:
            return None
        candidate = found.best.candidate
        every = labelled_rows(self.task, candidate[COMPONENT])
        # Where nothing is wrong there is nothing to learn that would be worth a call.
        left = 0 if found.best.score >= PERFECT else max_metric_calls - self.adapter.metric_calls
        asked = self.adapter.affordable(self._queries(candidate, every), left)
        rows = [row for row, can_be_asked in zip(every, asked, strict=True) if can_be_asked]
        predictions = self.adapter.ask(self._queries(candidate, rows))
        if not any(prediction.distribution is not None for prediction in predictions):
            return None
        return head_of(
            predictions, [row.answer for row in rows], [row.input for row in rows], labels=self.task.labels
        )

    def test(self, found: Choice, head: Head | None) -> dict[str, list[Prediction]]:
        """Return the predictions for the test rows: seed prompt, best prompt, and best prompt with the head."""
        seed, best = found.seed.candidate, found.best.candidate
        self.tracker.start_test(len(self.task.test) * (1 if seed == best else 2))
        asked = {"seed": self._predict(seed)}
        asked["best"] = asked["seed"] if seed == best else self._predict(best)
        predictions = {
            name: self._corrected(candidate, asked[name])
            for name, candidate in (("seed", seed), ("best", best))
        }
        if head is not None:
            predictions["final"] = [
                apply_head(head, prediction, example.input)
                for prediction, example in zip(asked["best"], self.task.test, strict=True)
            ]
        return predictions

    def _queries(self, candidate: Mapping[str, str], rows: Sequence[Example]) -> list[Query]:
        template = candidate.get(USER_TEMPLATE)
        return [
            Query(prompt=candidate[COMPONENT], text=e.input, user_template=template, context=e.context)
            for e in rows
        ]

    def _ask(self, candidate: Mapping[str, str], rows: Sequence[Example]) -> list[Prediction]:
        predictions = self.adapter.classifier.runner.run(
            self._queries(candidate, rows),
            on_prediction=lambda _, prediction: self.tracker.on_prediction(prediction),
        )
        self.adapter.check_failures(predictions)
        return predictions

    def _predict(self, candidate: Mapping[str, str]) -> list[Prediction]:
        predictions = self._ask(candidate, self.task.test)
        if all(prediction.outcome is Outcome.ERROR for prediction in predictions):
            raise ProviderError(
                f"none of the {len(predictions)} test rows was answered: {predictions[0].reason}",
                provider=self.adapter.classifier.client.name,
                hint="Mend the connection and start the run again; what was answered is kept in its directory.",
            )
        return predictions

    def _corrected(self, candidate: Mapping[str, str], predictions: Sequence[Prediction]) -> list[Prediction]:
        queries = self._queries(candidate, self.task.test)
        return [
            replace(self.adapter.corrected(query, prediction), features=None)
            for query, prediction in zip(queries, predictions, strict=True)
        ]

    def label_prior(self, found: Choice) -> tuple[LabelPriorCorrection, Fingerprint] | None:
        """Return the best prompt's correction and what it belongs to; None where nothing is corrected."""
        best = found.best.candidate
        query = Query(prompt=best[COMPONENT], text="", user_template=best.get(USER_TEMPLATE))
        correction = self.adapter.label_prior(query)
        if correction is None:
            return None
        classifier = self.adapter.classifier.with_prompt(query.prompt, user_template=query.user_template)
        return correction, classifier.fingerprint()

    def result(
        self,
        found: Choice,
        head: Head | None,
        predictions: Mapping[str, Sequence[Prediction]],
        *,
        seconds: float,
    ) -> OptimizationResult:
        """Put the numbers together."""
        labels = self.task.labels
        seed, best = (
            score_prompt(
                one.candidate[COMPONENT], one.score, self.task.test, predictions[name], labels=labels
            )
            for name, one in (("seed", found.seed), ("best", found.best))
        )
        comparison = compare(self.task.test, predictions["seed"], predictions["best"])
        credit = compare_credit(self.task.test, predictions["seed"], predictions["best"], labels=labels)
        final = None
        if head is not None:
            final = final_score(
                self.task,
                head,
                best.prompt,
                found.best.score,
                seed=predictions["seed"],
                final=predictions["final"],
            )
        costs = [self.tracker.now.cost, None if self.reflection is None else self.reflection.total_cost]
        known = [cost for cost in costs if cost is not None]
        return OptimizationResult(
            task=self.task.name,
            model=self.adapter.classifier.client.name,
            seed=self.plan.seed,
            proposer=self.plan.name,
            seed_prompt=seed,
            best_prompt=best,
            best_candidate=found.best.candidate,
            improved=found.chosen != 0 and not is_worse(comparison, credit),
            comparison=comparison,
            metric_calls=self.adapter.metric_calls,
            proposals=self.tracker.now.proposals,
            accepted=self.tracker.now.accepted,
            completions=self.adapter.completions,
            completions_without_logprobs=self.adapter.completions_without_logprobs,
            cost=sum(known) if known else None,
            seconds=seconds,
            thresholds=self.adapter.suggested_thresholds,
            credit_difference=credit,
            validated=found.validated,
            chosen=found.chosen,
            final=final,
        )
