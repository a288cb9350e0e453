"""`optimize`, which searches a better prompt for a task within a budget and tests it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from calibrant.adapters._gepa import ConfidenceAdapter, decides, listed_prompt, own_descriptions
from calibrant.adapters._rows import example_row
from calibrant.adapters._state import Thresholds
from calibrant.core._errors import ConfigurationError, LimitReachedError
from calibrant.core._labels import LabelSet, split_label_list, takes_descriptions
from calibrant.core._prediction import JsonObject, Usage
from calibrant.core._predictor import Limits, Predictor, Stop
from calibrant.core._reported import counted
from calibrant.core._task import Task
from calibrant.evaluation._data import find_abilities
from calibrant.evaluation._looks import CertificateRequest
from calibrant.inference._base import BasePredictor
from calibrant.inference._classifier import Classifier, task_of
from calibrant.inference._demonstrations import DemonstrationIndex
from calibrant.inference._models import ModelLike, expected_cost, is_decision_model, replaced_model
from calibrant.inference._text_vectors import head_embedding
from calibrant.metrics._remarks import dollars
from calibrant.optimization._choice import FIRST, ValidationLog
from calibrant.optimization._plan import (
    ProgressListener,
    ProgressTracker,
    Proposer,
    SearchPlan,
    SearchStage,
    make_plan,
    search_fingerprint,
    search_size,
)
from calibrant.optimization._prompt_parts import check_given_prompts
from calibrant.optimization._proposers import (
    Confusions,
    ReflectingAdapter,
    Reflection,
    check_names,
    open_reflection,
)
from calibrant.optimization._result import OptimizationResult
from calibrant.optimization._search import Search, race_reserve
from calibrant.optimization._stages import FinalStage, HeadStage, texts_to_read
from calibrant.runs._directory import (
    MANIFEST,
    NumberedDirectory,
    check_manifest,
    make_folder,
    refuse_lost_files,
    write_json,
)
from calibrant.runs._journal import JOURNAL, JsonlStore, PredictionJournal

if TYPE_CHECKING:
    from calibrant.core._frames import Frame
    from calibrant.heads._linear import EmbeddingModel

_LOG = logging.getLogger("calibrant")
_LARGE_GAIN = 0.2


def optimize(  # noqa: PLR0913  (keyword-only options)
    task: Task | str | Path | Frame,
    *,
    text: str | None = None,
    label: str | None = None,
    labels: LabelSet | Sequence[str] | None = None,
    prompt: str | None = None,
    model: ModelLike | Predictor | None = None,
    reflection_model: str | Callable[[str], str] | None = None,
    reflection_options: Mapping[str, Any] | None = None,
    proposer: Literal["exemplar", "reflection"] | Proposer | None = None,
    max_metric_calls: int = 600,
    minibatch_size: int | None = None,
    seed: int = 0,
    out: str | Path | NumberedDirectory | None = None,
    progress: ProgressListener | None = None,
    prior_correction: Literal["batch", "off"] | None = None,
    thresholds: Thresholds | None = None,
    limits: Limits | None = None,
    embeddings: str | Literal[False] | None = None,
    certificate: CertificateRequest | None = None,
) -> OptimizationResult:
    """Search for a better prompt with GEPA and report on rows the search never saw.

    Parameters
    ----------
    task : Task, path or frame
        The task, or its TOML file; needs train, validation and test rows. Or labelled rows: a data frame of pandas or
        polars, a table of pyarrow or a Hugging Face dataset, which `Task.from_frame` divides.
    text, label : str, optional
        Columns of the frame with the texts and their true labels.
    labels, prompt : optional
        Labels and first prompt of the frame's task, by default those of a predictor that is its `model`; see
        `Task.from_frame`.
    model : str, Client, callable or Predictor, optional
        Answers instead of the task's own model. A predictor, such as the cascade of a task
        (`calibrant.assembly.open_classifier`), is neither changed nor closed. A hosted model with an address or options
        of its own, for a frame, is a `Classifier`.
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
        the search is repeated from its journal, at no cost, and goes on where it stopped. By default nothing is
        written: the result and its head are all that is left, and an interrupted search is lost.
    progress : callable, optional
        Called with a `Progress` whenever something changed.
    prior_correction : {"batch", "off"}, optional
        ``batch`` divides the label prior of every prompt out of its predictions. It is fitted, without answers, on
        the rows asked under the prompt; until these are 64, its parent's prior makes up for those that are missing.
        By default what the task says under ``[calibration]``.
    thresholds : {"auto"}, optional
        Take the confidence thresholds of scores and feedback from 80 training rows under the first
        prompt, which count as metric calls. By default what the task says under ``[scoring]``.
    limits : Limits, optional
        Rates, budgets and a deadline of the whole search, test rows included. What a reflection model costs counts
        towards the budgets. They start anew when a run goes on.
    embeddings : str or False, optional
        Name of the model that gives the head a vector of each text beside its words, as `Classifier.fit` takes it, or
        False for none; by default what the task says under ``[head]``.
    certificate : CertificateRequest, optional
        What is asked of the test rows; by default that accepted answers are at least 90 % right, with probability 0.9.

    Notes
    -----
    GEPA proposes prompts on training rows and screens them on 16 validation rows. The best three meet the seed prompt
    in a race on the other validation rows: log-likelihoods of the true labels without the label prior, paired
    differences, the better half going on to more rows. The seed prompt stays unless it is beaten, in accuracy and
    macro F1 as well. The winner and the second are then compared with the heads that the validation rows teach under
    them, where answers come with distributions and budget is left.

    A reflection model rewrites the label descriptions in turn with the instructions, where the task has some or a
    decision model answers; the best prompt lists them.

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
    LimitReachedError
        A budget or the deadline was reached; with `out`, the same call goes on from there.

    Examples
    --------
    A model that knows dogs only by an example in its prompt:

    >>> from calibrant import Example, Task, optimize
    >>> from calibrant.testing import FakeClient
    >>> names = ["cat", "dog"]
    >>> def rows(split):
    ...     return tuple(Example(input=f"{split} {name} {n}", answer=name) for n in range(6) for name in names)
    >>> data = {split: rows(split) for split in ("train", "validation", "test")}
    >>> task = Task(name="pets", labels=names, prompt="Which animal?", **data)
    >>> def answer(text, prompt):
    ...     return "dog" if "dog" in text and '"label": "dog"' in prompt else "cat"
    >>> result = optimize(task, model=FakeClient(names, answer, field="label"), max_metric_calls=100)
    >>> result.seed_prompt.accuracy.estimate, result.best_prompt.accuracy.estimate
    (0.5, 1.0)
    """
    started = time.perf_counter()
    if out is not None:
        check_names(model, reflection_model, proposer)
    opened = _opened_task(task, text, label, labels=labels, prompt=prompt, model=model, embeddings=embeddings)
    task = _described(opened, model)
    choices = (reflection_model, proposer, minibatch_size, seed, prior_correction, thresholds)
    plan = make_plan(task, model, *choices)
    _check_plan(task, plan, max_metric_calls)
    limits = limits or Limits()
    stop = Stop()
    with ExitStack() as stack:
        predictor, embedding = _open_with_embedding(task, model, stack, limits, max_metric_calls)
        tracker = _tracker(task, model, predictor, progress, max_metric_calls)
        if isinstance(model, Predictor):  # whose description is part of the fingerprint
            tracker.begin(predictor)
            find_abilities(predictor, task.validation, rows=max_metric_calls, stop=stop)
        fingerprint = search_fingerprint(task, model, plan)
        directory, journal, reflections = _opened_run(out, fingerprint, stack, limits=limits, stop=stop)
        tracker.begin(predictor, directory=directory)
        teaches = False
        if isinstance(predictor, Classifier) and task.head.fit == "auto":
            teaches = True
            predictor = predictor.with_features()
        predictor.use_journal(PredictionJournal(journal))
        if not isinstance(model, Predictor):
            find_abilities(predictor, task.validation, rows=max_metric_calls, stop=stop)
        reflection = stack.enter_context(_reflection(plan, reflections, reflection_options, stop, predictor))
        seen = ValidationLog(task.validation)
        adapter = _adapter(predictor, task, plan, tracker, seen)
        adapter.stop = stop
        stage = SearchStage(task=task, plan=plan, adapter=adapter, reflection=reflection, tracker=tracker)
        for_race, most = _divided_calls(task, plan, max_metric_calls, teaches=teaches)
        search = Search(**vars(stage), directory=directory, max_metric_calls=most, seen=seen)
        budget = max_metric_calls if teaches else 0
        heads = HeadStage(**vars(stage), embedding=embedding, max_metric_calls=budget)
        choice = heads.run(search.run(for_race=for_race))
        test = FinalStage(**vars(stage), directory=directory, choice=choice, heads=heads, ended=search.ended)
        result = test.run(_asked_task(task, model, predictor), started=started, certificate=certificate)
        return replace(result, answers=PredictionJournal(journal))


def _opened_task(  # noqa: PLR0913 (as `optimize` has them)
    task: Task | str | Path | Frame,
    text: str | None,
    label: str | None,
    *,
    labels: LabelSet | Sequence[str] | None,
    prompt: str | None,
    model: ModelLike | Predictor | None,
    embeddings: str | Literal[False] | None,
) -> Task:
    """Return the task that is given, in a file, or made of a frame, with the embeddings of its head."""
    if isinstance(task, Task | str | Path):
        if (text, label, labels, prompt) != (None,) * 4:
            raise ConfigurationError(
                "Expected text, label, labels and prompt beside a frame alone, got a task or a file: a task has its "
                "own, and a file of rows is a frame once it is read, as by pandas.read_csv."
            )
        found = task if isinstance(task, Task) else Task.from_file(task)
    elif text is None or label is None:
        raise ConfigurationError(
            "Expected a task, its file, or a frame with the names of its columns, got "
            f"{type(task).__name__} without them: add text= and label=."
        )
    elif isinstance(model, BasePredictor):
        if labels is None:
            labels = model.labels
        found = Task.from_frame(task, text=text, label=label, labels=labels, prompt=prompt or model.prompt)
        found = replace(found, field=model.field, user_template=model.user_template)
    else:
        found = Task.from_frame(task, text=text, label=label, labels=labels, prompt=prompt)
    if embeddings is None:
        return found
    return replace(found, head=found.head.model_copy(update={"embeddings": embeddings}))


def _described(task: Task, model: ModelLike | Predictor | None) -> Task:
    """Return the task with its label descriptions in its prompts, where a decision model answers.

    There they belong to each prompt, and are kept with the best one.

    Raises
    ------
    ConfigurationError
        A prompt or description shows a validation or test row.
    """
    check_given_prompts(task)
    asked = model
    if model is None and not task.sections:
        asked = task.model.name
    listed = split_label_list(task.prompt, task.labels)[1]
    descriptions = listed or task.label_descriptions or own_descriptions(asked)
    is_taken = (is_decision_model(asked) or decides(asked)) and takes_descriptions(task.labels)
    if not descriptions or not is_taken:
        return task
    prompts = [task.prompt, *task.other_prompts]
    for place, given in enumerate(prompts):
        if split_label_list(given, task.labels)[1] is None:
            prompts[place] = listed_prompt(given, descriptions, task.labels)
    prompt, *others = prompts
    return replace(task, prompt=prompt, other_prompts=tuple(others), label_descriptions=descriptions)


def _tracker(
    task: Task,
    model: ModelLike | Predictor | None,
    predictor: Predictor,
    listener: ProgressListener | None,
    max_metric_calls: int,
) -> ProgressTracker:
    n_test = 2 * len(task.test)  # under the first prompt, and under the last
    n_rows = max_metric_calls + n_test
    dollars = None
    if not predictor.is_free:
        calls_a_row = predictor.method.calls_a_row if isinstance(predictor, Classifier) else 1
        dollars = expected_cost(task, model, calls=calls_a_row * n_rows)
    return ProgressTracker(listener, total=max_metric_calls, test_rows=n_test, expected_cost=dollars)


def _check_plan(task: Task, plan: SearchPlan, max_metric_calls: int) -> None:
    """Refuse a plan that does not fit task or budget; warn about too few rows."""
    search_size(task, plan).check(max_metric_calls)
    gain = plan.detectable_gain
    if gain is not None and gain > _LARGE_GAIN:
        _LOG.warning(
            "With %d validation rows only a prompt that is better by about %.2f accuracy or more is likely to be told "
            "from the seed prompt: a search can hardly pay; label more rows, or let `Classifier.fit` use them all.",
            len(task.validation),
            gain,
        )


def _divided_calls(task: Task, plan: SearchPlan, max_metric_calls: int, *, teaches: bool) -> tuple[int, int]:
    """Return the metric calls reserved for the race, and those of the search, which leaves some for the head's rows.

    Race and head get at most a third each of what one proposal leaves; without a race, the head gets half. What the
    race does not need is the head's, too.
    """
    spare = max_metric_calls - search_size(task, plan).floor
    # One prompt and the seed prompt on the rows of a first stage, if it can be.
    for_race = min(race_reserve(task, plan), max(spare // 3, min(spare, 2 * FIRST)))
    if not teaches or task.labels.holds_several:
        return for_race, max_metric_calls
    for_head = min(len(task.train), spare // 2, (spare - for_race) // (2 if for_race else 1))
    return for_race, max_metric_calls - for_head


def _opened_run(
    out: str | Path | NumberedDirectory | None,
    fingerprint: JsonObject,
    stack: ExitStack,
    *,
    limits: Limits,
    stop: Stop,
) -> tuple[Path | None, JsonlStore, JsonlStore]:
    """Return a run's directory, if it is kept, and its journals, and start its deadline; `stack` ends both."""
    directory = None if out is None or isinstance(out, NumberedDirectory) else Path(out)
    if isinstance(out, NumberedDirectory):
        directory = out.chosen(fingerprint, has_rows=_has_rows)
    journal, reflections = stack.enter_context(_opened_files(directory, fingerprint))
    stack.enter_context(_within(limits, stop, journal=journal, directory=directory))
    return directory, journal, reflections


@contextmanager
def _within(limits: Limits, stop: Stop, *, journal: JsonlStore, directory: Path | None) -> Iterator[None]:
    """End the block when the deadline of `limits` passes; say what is kept where it or a budget ended the search.

    Raises
    ------
    LimitReachedError
        A limit was reached.
    """
    seconds = limits.run_seconds
    timer = None
    if seconds is not None:
        reason = f"The deadline of {counted(seconds, 'second')} has passed"
        timer = threading.Timer(seconds, stop.request, args=(reason,), kwargs={"at_once": True})
        timer.daemon = True
        timer.start()
    try:
        yield
    except LimitReachedError as error:
        # A cascade's rows stand beside the answers of its models that they consist of.
        of_models = sum("steps" not in value for value in journal.values())
        answers = counted(of_models, "answer is", "answers are")
        kept = f"{answers} lost, as there is no run directory (out)"
        if directory is not None:
            kept = f"{answers} kept in {directory}: run the same command again to go on"
        raise LimitReachedError(f"{stop.reason or error}; {kept}.") from None
    finally:
        if timer is not None:
            timer.cancel()


def _reflection(
    plan: SearchPlan,
    answers: JsonlStore,
    options: Mapping[str, Any] | None,
    stop: Stop,
    predictor: Predictor,
) -> AbstractContextManager[Reflection | None]:
    """Return the context of the plan's reflection model, whose price counts towards the predictor's budgets."""

    def refuse(reason: str) -> NoReturn:
        stop.request(reason)  # GEPA goes on after a reflection that failed
        raise LimitReachedError(reason)

    def charge(usage: Usage) -> None:
        if usage.cost is None and predictor.limits.max_cost is not None:
            refuse(
                f"No price is known for the reflection model {plan.reflection_model}, so max_cost cannot be kept: set "
                "input_cost_per_token and output_cost_per_token among its options (--reflection-option), or leave "
                "max_cost out"
            )
        if isinstance(predictor, BasePredictor):
            predictor.meter.charge(usage)

    def afford(cost: float) -> None:
        most = predictor.limits.max_cost
        if most is not None and predictor.meter.cost + cost > most:
            refuse(
                f"The budget max_cost of {counted(most, 'US dollar')} is used up by the next call of the reflection "
                f"model, whose prompt alone takes about {dollars(cost)}"
            )

    return open_reflection(
        plan.reflection_model, answers, options=options, stop=stop, charge=charge, afford=afford
    )


def _open(task: Task, model: ModelLike | Predictor | None, stack: ExitStack, limits: Limits) -> Predictor:
    """Open the predictor of a search, or return a copy of the given one for the journal of the run."""
    # The deadline is that of the whole search, not of each of its steps.
    limits = replace(limits, run_seconds=None)
    if isinstance(model, Predictor):
        if model.labels != task.labels:
            raise ConfigurationError(
                f"Expected a classifier over the labels of task {task.name!r}, {list(task.labels)!s:.200}, in their "
                f"order, got one over {list(model.labels)!s:.200}: open it from the task."
            )
        own_limits = model.limits
        most = limits.concurrency or own_limits.concurrency
        return model.with_limits(own_limits if limits == Limits() else replace(limits, concurrency=most))
    # Its prompts are not the one that the task's head belongs to, and candidates say what they show.
    own = replace(task, head=task.head.model_copy(update={"file": None}), demonstrations=None)
    if limits.concurrency is None and model is None:
        limits = replace(limits, concurrency=task.model.concurrency)
    classifier = Classifier.from_task(own, model=model, limits=limits)
    stack.callback(classifier.close)
    return classifier


def _asked_task(task: Task, model: ModelLike | Predictor | None, predictor: Predictor) -> Task:
    """Return the task with the model that was asked instead of its own, if there is one."""
    if model is None or (isinstance(model, Predictor) and task.sections):
        return task
    if isinstance(model, str):
        return replace(task, model=replaced_model(task.model, model), sections={})
    own = task.model.model_copy(update={"name": predictor.name})
    if isinstance(model, Classifier):  # at its own address, with its own options
        own = task_of(model).model
    return replace(task, model=own, sections={})


def _open_with_embedding(
    task: Task,
    model: ModelLike | Predictor | None,
    stack: ExitStack,
    limits: Limits,
    max_metric_calls: int,
) -> tuple[Predictor, EmbeddingModel | None]:
    """Open the model, and the embedding model of the head, None for one on words; both refuse before a call is paid."""
    predictor = _open(task, model, stack, limits)
    if task.labels.holds_several or task.head.fit != "auto" or not isinstance(predictor, Classifier):
        return predictor, None
    embedding = head_embedding(
        task.head.embeddings,
        texts_to_read(task, max_metric_calls),
        labels=task.labels,
        reports_features=predictor.with_features().method.keep_features,
        meter=predictor.meter,
    )
    return predictor, embedding


def _adapter(
    predictor: Predictor, task: Task, plan: SearchPlan, tracker: ProgressTracker, seen: ValidationLog
) -> ConfidenceAdapter:
    chooses = plan.races and plan.reflection_model is not None
    confusions = Confusions()
    # Thresholds to be found also make the score, where the task names no other.
    finds_score = (
        plan.thresholds is not None and task.scoring.strategy == "linear" and not task.scoring.parameters
    )
    kind = ReflectingAdapter if chooses else ConfidenceAdapter
    adapter = kind.from_classifier(
        predictor,
        scoring_strategy=None if finds_score else plan.scoring,
        high_confidence_threshold=task.scoring.high,
        low_confidence_threshold=task.scoring.low,
        proposer=plan.proposer,
        on_prediction=tracker.on_prediction,
        observer=confusions if chooses else seen,
        # What is compared is what a prompt is worth without its label prior, whatever is done with its predictions.
        prior_correction="batch" if plan.races else plan.prior_correction,
        thresholds=plan.thresholds,
        threshold_rows=[example_row(example) for example in task.train],
        demonstrations=None if task.demonstrations is None else DemonstrationIndex.from_task(task),
    )
    if isinstance(adapter, ReflectingAdapter):
        adapter.confusions = confusions
    tracker.watch(adapter.predictor.gates)
    return adapter


@contextmanager
def _opened_files(directory: Path | None, fingerprint: JsonObject) -> Iterator[tuple[JsonlStore, JsonlStore]]:
    """Open the journals of a run; if its directory disappears meanwhile, copy them to another one.

    Parameters
    ----------
    directory : Path or None
        The directory: new, or with an earlier part of this run; None keeps the journals in memory.
    fingerprint : dict
        All that the search depends on.

    Raises
    ------
    StateError
        It holds another run, or another process writes it.
    CalibrantError
        It was moved or removed during the run.
    """
    if directory is None:
        yield JsonlStore(None), JsonlStore(None)
        return
    make_folder(directory)
    is_part = check_manifest(directory, fingerprint, kind="a run", has_rows=_has_rows(directory))
    if not is_part:
        write_json(directory / MANIFEST, fingerprint)
    with (
        JsonlStore(directory / JOURNAL) as journal,
        JsonlStore(directory / "reflections.jsonl") as reflections,
        refuse_lost_files(directory, lambda: journal.in_place and reflections.in_place),
    ):
        yield journal, reflections


def _has_rows(path: Path) -> bool:
    """Return True if the run has stored at least one prediction."""
    journal = path / JOURNAL
    return journal.exists() and journal.stat().st_size > 0
