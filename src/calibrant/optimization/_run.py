"""`optimize`: one task, one model, one budget; a better prompt and honest numbers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from calibrant.adapters._gepa import ConfidenceAdapter
from calibrant.adapters._learned import Thresholds
from calibrant.adapters._rows import example_row, query_of
from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.calibration._saved import DEMONSTRATIONS
from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._files import write_atomically
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import Predictor, Query
from calibrant.core._rows import Example
from calibrant.core._settings import DemonstrationSettings, ScoringSettings
from calibrant.core._task import Task
from calibrant.heads._head import Head
from calibrant.inference._classifier import Classifier
from calibrant.inference._demonstrations import DemonstrationIndex
from calibrant.inference._heads import apply_head
from calibrant.inference._loop import ask
from calibrant.optimization._choice import Choice, ValidationLog, is_worse
from calibrant.optimization._directory import JOURNAL, is_current, open_directory, rescuing
from calibrant.optimization._final import embedding_model, final_score
from calibrant.optimization._heads import HeadStage
from calibrant.optimization._plan import (
    COMPONENT,
    DEMONSTRATED,
    USER_TEMPLATE,
    Proposer,
    SearchPlan,
    make_plan,
    search_fingerprint,
    search_size,
)
from calibrant.optimization._progress import ProgressListener, ProgressTracker
from calibrant.optimization._race import FIRST
from calibrant.optimization._reflected import Confusions, ReflectingAdapter
from calibrant.optimization._reflection import Reflection, check_names, open_reflection
from calibrant.optimization._result import (
    OptimizationResult,
    compare,
    compare_credit,
    score_prompt,
    write_run,
)
from calibrant.optimization._search import Search, race_reserve
from calibrant.optimization._shown import check_given_prompts
from calibrant.runs._journal import JsonlStore, PredictionJournal
from calibrant.scoring._probability import LinearBlendScoring, SigmoidScoring, ThresholdScoring
from calibrant.scoring._proper import BrierScoring, LogScoring
from calibrant.scoring._protocol import ScoringStrategy

if TYPE_CHECKING:
    from calibrant.inference._models import ModelLike

LABEL_PRIOR = "label_prior.json"
HEAD = "head.json"

_LOG = logging.getLogger("calibrant")
_LARGE_GAIN = 0.2


def optimize(  # noqa: PLR0913  (keyword-only options)
    task: Task | str | Path,
    *,
    model: ModelLike | Predictor | None = None,
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
    model : str, Client, callable or Predictor, optional
        Answers instead of the task's own model. A predictor, such as the cascade of a task
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
        Training rows a proposal is tried on first; by default 4 for ``exemplar``, and 12 for ``reflection``, of which
        the model reads the 8 that cost most; where the task names a score, 20 and 3.
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

    Notes
    -----
    GEPA proposes prompts on training rows and screens them on 16 validation rows. The best three meet the seed prompt
    in a race on the other validation rows: log-likelihoods of the true labels without the label prior, paired
    differences, the better half going on to more rows. The seed prompt stays unless it is beaten, in accuracy and
    macro F1 as well. The winner and its runner-up are then compared with the heads that the validation rows teach under
    them, where answers come with distributions and budget is left.

    A task that names a strategy under ``[scoring]``, or whose labels have a structure, is searched as GEPA does: every
    accepted prompt is asked about all validation rows, and the best is one with a higher score, accuracy and macro F1.

    Returns
    -------
    OptimizationResult
        Seed and best prompt with their scores on the test rows. The best prompt is one that validation rows show to be
        better than the seed prompt, in a race or with its head, and else the seed prompt itself.

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
        check_names(model, reflection_model, proposer)
    task = task if isinstance(task, Task) else Task.from_file(task)
    current = out is None or is_current(Path(out))
    plan = make_plan(
        task,
        reflection_model,
        proposer,
        minibatch_size,
        seed,
        prior_correction,
        thresholds,
        may_race=current and (isinstance(model, Classifier) or not isinstance(model, Predictor)),
    )
    check_given_prompts(task)
    search_size(task, plan).check(max_metric_calls)
    _say_what_to_expect(task, plan)
    scoring = LogScoring() if plan.races else _scoring(task.scoring)
    with ExitStack() as stack:
        predictor, embedding = _open(task, model, stack), embedding_model(task)
        fingerprint = search_fingerprint(task, model, plan)
        directory = None if out is None else open_directory(Path(out), fingerprint)
        teaches = current and isinstance(predictor, Classifier) and task.head.fit == "auto"
        if teaches and isinstance(predictor, Classifier):
            predictor = predictor.with_features()
        journal = stack.enter_context(JsonlStore(_file(directory, JOURNAL)))
        store = stack.enter_context(JsonlStore(_file(directory, "reflections.jsonl")))
        predictor.use_journal(PredictionJournal(journal))
        stack.enter_context(rescuing(directory, fingerprint, (journal, store), current=current))
        tracker = ProgressTracker(progress, total=max_metric_calls)
        reflection = stack.enter_context(
            open_reflection(plan.reflection_model, store, options=reflection_options)
        )
        log = ValidationLog(task.validation)
        adapter = _adapter(predictor, scoring, task, plan, tracker, log)
        tracker.watch(adapter.predictor.gates)
        run = _Run(
            task=task,
            plan=plan,
            adapter=adapter,
            tracker=tracker,
            reflection=reflection,
        )
        search = Search(
            task=task,
            plan=plan,
            adapter=adapter,
            reflection=reflection,
            tracker=tracker,
            log=_file(directory, "search.log"),
            validation=log,
        )
        for_race, for_head = _kept(task, plan, max_metric_calls, teaches=teaches)
        found = search.run(max_metric_calls - for_head, for_race=for_race)
        head = None
        if task.head.fit == "auto":
            stage = HeadStage(
                task=task,
                adapter=adapter,
                embedding=embedding,
                max_metric_calls=max_metric_calls if teaches else 0,
            )
            found, head = stage.run(found)
        predictions = run.test(found, head)
        result = run.result(found, head, predictions, seconds=time.perf_counter() - started)
        if directory is not None:
            run.write(directory, result, found, head, predictions)
    return result


def _say_what_to_expect(task: Task, plan: SearchPlan) -> None:
    """Say, before anything is paid for, where the rows can hardly show a better prompt."""
    gain = plan.detectable_gain(task)
    if gain is not None and gain > _LARGE_GAIN:
        _LOG.warning(
            "With %d validation rows only a prompt that is better by about %.2f accuracy or more is likely to be told "
            "from the seed prompt: a search can hardly pay; label more rows, or let `Classifier.fit` use them all.",
            len(task.validation),
            gain,
        )


def _kept(task: Task, plan: SearchPlan, max_metric_calls: int, *, teaches: bool) -> tuple[int, int]:
    """Return the calls kept for the race, and those for training rows that teach the head.

    Each gets at most a third of what one proposal leaves; without a race, the rows get half. What the race does not
    need is the head's, too.
    """
    spare = max_metric_calls - search_size(task, plan).floor
    # One prompt and the seed prompt on the rows of a first stage, if it can be.
    for_race = min(race_reserve(task, plan), max(spare // 3, min(spare, 2 * FIRST)))
    if not teaches or isinstance(task.labels, CompositeLabels):
        return for_race, 0
    return for_race, min(len(task.train), spare // 2, (spare - for_race) // (2 if for_race else 1))


def _open(task: Task, model: ModelLike | Predictor | None, stack: ExitStack) -> Predictor:
    """Return the predictor of a search, a copy of the one handed in: the journal is this run's."""
    if isinstance(model, Predictor):
        if model.labels != task.labels:
            raise ConfigurationError(
                f"Expected a classifier over the labels of task {task.name!r}, got one over others: open it from the "
                "task."
            )
        return model.with_limits(model.limits)
    # Its prompts are not the one that the task's head belongs to, and candidates say what they show.
    own = replace(task, head=task.head.model_copy(update={"file": None}), demonstrations=None)
    classifier = Classifier.from_task(own, model=model)
    stack.callback(classifier.close)
    return classifier


def _file(directory: Path | None, name: str) -> Path | None:
    return None if directory is None else directory / name


def _adapter(
    predictor: Predictor,
    scoring: ScoringStrategy,
    task: Task,
    plan: SearchPlan,
    tracker: ProgressTracker,
    log: ValidationLog,
) -> ConfidenceAdapter:
    chooses = plan.races and plan.reflection_model is not None
    confusions = Confusions()
    kind = ReflectingAdapter if chooses else ConfidenceAdapter
    adapter = kind.from_classifier(
        predictor,
        scoring_strategy=None if _thresholds_score(task, plan) else scoring,
        high_confidence_threshold=task.scoring.high,
        low_confidence_threshold=task.scoring.low,
        proposer=plan.proposer,
        on_prediction=tracker.on_prediction,
        observer=confusions if chooses else log,
        # What is compared is what a prompt is worth without its label prior, whatever is done with its predictions.
        prior_correction="batch" if plan.races else plan.prior_correction,
        thresholds=plan.thresholds,
        threshold_rows=[example_row(example) for example in task.train],
        demonstrations=None if task.demonstrations is None else DemonstrationIndex.from_task(task),
    )
    if isinstance(adapter, ReflectingAdapter):
        adapter.confusions = confusions
    return adapter


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


@dataclass(kw_only=True)
class _Run:
    """The last steps: test rows, result and files."""

    task: Task
    plan: SearchPlan
    adapter: ConfidenceAdapter
    reflection: Reflection | None
    tracker: ProgressTracker

    def best(self, found: Choice) -> Predictor:
        """Return the predictor under the best prompt, with its demonstrations."""
        best = found.best.candidate
        predictor = self.adapter.predictor.with_prompt(best[COMPONENT], user_template=best.get(USER_TEMPLATE))
        retrieval = predictor.demonstrations if isinstance(predictor, Classifier) else None
        shown = best.get(DEMONSTRATED, "")
        if not isinstance(predictor, Classifier) or retrieval is None or not shown.strip():
            return predictor
        settings = DemonstrationSettings.from_text(shown)
        return predictor.with_demonstrations(retrieval.index, **settings.model_dump())

    def test(self, found: Choice, head: Head | None) -> dict[str, list[Prediction]]:
        """Return the predictions for the test rows: of both prompts, and as label prior and head change them."""
        seed, best = found.seed.candidate, found.best.candidate
        self.tracker.start_test(len(self.task.test) * (1 if seed == best else 2))
        asked = {"seed": self._predict(seed)}
        asked["best"] = asked["seed"] if seed == best else self._predict(best)
        predictions = {
            name: self._corrected(candidate, asked[name])
            for name, candidate in (("seed", seed), ("best", best))
        }
        if self.plan.races:
            queries = self._queries(seed, self.task.test)
            predictions["prior"] = [
                self.adapter.corrected(*pair) for pair in zip(queries, asked["seed"], strict=True)
            ]
        if head is not None:
            predictions["final"] = [
                apply_head(head, prediction, example.input)
                for prediction, example in zip(asked["best"], self.task.test, strict=True)
            ]
        return predictions

    def _queries(self, candidate: Mapping[str, str], rows: Sequence[Example]) -> list[Query]:
        return [query_of(dict(candidate), example_row(row)) for row in rows]

    def _ask(self, candidate: Mapping[str, str], rows: Sequence[Example]) -> list[Prediction]:
        predictions = ask(
            self.adapter.predictor,
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
                provider=self.adapter.predictor.name,
                hint="Mend the connection and start the run again; what was answered is kept in its directory.",
            )
        return predictions

    def _corrected(self, candidate: Mapping[str, str], predictions: Sequence[Prediction]) -> list[Prediction]:
        """Return the predictions for the test rows as they are given: without the label prior where it is wished."""
        pairs = list(zip(self._queries(candidate, self.task.test), predictions, strict=True))
        if self.plan.prior_correction is not None:
            predictions = [self.adapter.corrected(query, prediction) for query, prediction in pairs]
        return [replace(prediction, features=None) for prediction in predictions]

    def _label_prior(self, found: Choice) -> LabelPriorCorrection | None:
        """Return the best prompt's correction; None where nothing is corrected."""
        if self.plan.prior_correction is None:
            return None
        best = found.best.candidate
        query = Query(
            prompt=best[COMPONENT],
            text="",
            user_template=best.get(USER_TEMPLATE),
            demonstrations=best.get(DEMONSTRATED),
        )
        return self.adapter.label_prior(query)

    def write(
        self,
        directory: Path,
        result: OptimizationResult,
        found: Choice,
        head: Head | None,
        predictions: Mapping[str, Sequence[Prediction]],
    ) -> None:
        """Leave in a directory what was found, and what the best prompt needs to be asked again."""
        kept = {name: list(made) for name, made in predictions.items() if name != "prior"}
        write_run(directory, result, self.task.test, kept, labels=self.task.labels)
        best, prior = self.best(found), self._label_prior(found)
        fingerprint = best.fingerprint()
        shown = best.demonstrations if isinstance(best, Classifier) else None
        if prior is not None:
            prior.save(directory / LABEL_PRIOR, fingerprint=fingerprint)
        if shown is not None and shown.settings is not None:
            write_atomically(directory / DEMONSTRATIONS, shown.index.to_text())
        if head is not None:
            head.save(directory / HEAD, fingerprint=fingerprint)

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
        final = None if head is None else final_score(self.task, head, found, predictions)
        # Where the heads decided, the prompt with its head is what was chosen.
        tested = comparison if final is None or not found.decided_by_head else final.against_seed
        costs = [self.tracker.now.cost, None if self.reflection is None else self.reflection.total_cost]
        known = [cost for cost in costs if cost is not None]
        return OptimizationResult(
            task=self.task.name,
            model=self.adapter.predictor.name,
            seed=self.plan.seed,
            proposer=self.plan.name,
            seed_prompt=seed,
            best_prompt=best,
            best_candidate=found.best.candidate,
            improved=found.chosen != 0 and not is_worse(tested, credit),
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
            by_head=found.by_head,
            detectable_gain=self.plan.detectable_gain(self.task),
            final=final,
        )
