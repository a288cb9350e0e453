"""``calibrant evaluate``: labelled rows in; predictions, numbers and an exit code out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.assembly._open import open_classifier
from calibrant.assembly._task_record import record_run
from calibrant.cli._baselines import baseline_lines
from calibrant.cli._errors import FAILED, GATE_FAILED, INTERRUPTED
from calibrant.cli._evaluation_table import print_result
from calibrant.cli._interrupts import ENDED_BY_SIGNAL, interruptible
from calibrant.cli._progress import EvaluationDisplay
from calibrant.cli._prompted import open_prompted, without_head, write_demonstrations
from calibrant.core._errors import ConfigurationError, ProviderError, StateError
from calibrant.core._labels import LabelSet
from calibrant.core._limits import Limits
from calibrant.core._rows import DataSource
from calibrant.core._settings import DemonstrationSettings
from calibrant.core._task import Task
from calibrant.evaluation._cache import default_cache, open_cache
from calibrant.evaluation._data import Dataset
from calibrant.evaluation._evaluator import BatchEvaluator
from calibrant.evaluation._metrics import GATES, check_gates
from calibrant.inference._classifier import Classifier, as_classifier

if TYPE_CHECKING:
    from calibrant.calibration._prior import LabelPriorCorrection
    from calibrant.cli._providers import RoutingStats
    from calibrant.core._predictor import Stop
    from calibrant.evaluation._evaluator import EvaluationResult
    from calibrant.evaluation._history_run import HistoryEntry
    from calibrant.evaluation._metrics import EvaluationMetrics
    from calibrant.heads._head import Head
    from calibrant.inference._predictor import BasePredictor
    from calibrant.store._cache import PredictionCache

    _Record = Callable[[EvaluationResult], tuple[HistoryEntry | None, StateError | None]]

_ENGINES: Final = ("local", "ray")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options of the command; see its help.

    Attributes
    ----------
    out : Path
        Output directory.
    prompt, run, label_prior : Path or None
        Prompt file, directory of a search, and label-prior file.
    split : str
        Split of the task to evaluate.
    file : Path or None
        File of other rows to evaluate.
    max_rows : int or None
        Largest number of rows.
    model : str or None
        Replaces the task's model.
    limits : mapping
        Arguments of `Limits`; None leaves a limit out.
    fail_under : tuple of str
        ``METRIC=VALUE``.
    cache : str or None
        URL or file of finished predictions.
    no_cache : bool
        True to run without a cache.
    history : str or None
        URL or file of the history the finished run is added to.
    account, profile : str or None
        Account and profile in the history.
    as_json : bool
        True to print JSON.
    parquet : bool
        True to write the rows as a Parquet file, too.
    engine : {"local", "ray"}
        This process, or workers on a Ray cluster.
    ray_address : str or None
        Address of the cluster.
    workers : int or None
        Number of workers.
    context, context_column : str or None
        Context of all rows, and the column of a row's own.
    """

    out: Path
    prompt: Path | None = None
    run: Path | None = None
    label_prior: Path | None = None
    split: str = "test"
    file: Path | None = None
    max_rows: int | None = None
    model: str | None = None
    limits: Mapping[str, Any]
    fail_under: tuple[str, ...] = ()
    cache: str | None = None
    no_cache: bool = False
    history: str | None = None
    account: str = "default"
    profile: str | None = None
    as_json: bool = False
    parquet: bool = False
    engine: str = "local"
    ray_address: str | None = None
    workers: int | None = None
    context: str | None = None
    context_column: str | None = None


def run_evaluate(task_file: Path, options: EvaluateOptions) -> None:
    """Evaluate, print the numbers, and exit with 1 (ended early), 3 (a gate) or 130 (interrupted)."""
    gates = dict(map(_gate, options.fail_under))
    _check(options)
    task = _task(task_file, options)
    check_gates(gates, task.labels)
    rows = Dataset(
        source=labelled_source(task, options.file, options.split),
        labels=LabelSet.of(task.labels),
        limit=options.max_rows,
    )
    limits = _limits(task, options)
    classifier = _classifier(task, options, limits)
    try:
        record = _recorder(task, options, classifier)
        at_once = options.engine == "local" and classifier.in_process
        with interruptible(at_once=at_once) as stop, EvaluationDisplay() as display:
            result = _evaluated(task, options, classifier, rows, on_progress=display, stop=stop)
        _write_down(task, options, classifier)
        if options.parquet and result.metrics.complete:
            from calibrant.evaluation._parquet import write_parquet

            write_parquet(options.out / "predictions.jsonl", options.out / "predictions.parquet")
    except ProviderError:
        kept = options.out / "predictions.jsonl"
        if kept.exists() and kept.stat().st_size:
            _say(f"What was answered is kept in {options.out}: run the same command again to go on.")
        raise
    finally:
        routing = _routing_stats(task, classifier)
        classifier.close()
    entry, problem = record(result)
    beside = baseline_lines(result, task, file=options.file, split=options.split)
    print_result(result, task, entry, routing=routing, baselines=beside, as_json=options.as_json)
    if problem is not None:
        _say("The run is kept: run the same command again to add it to the history.")
        raise problem
    exit_as(result.metrics, gates, stop=stop)


def _task(task_file: Path, options: EvaluateOptions) -> Task:
    task = Task.from_file(task_file, splits=())
    if options.context is None and options.context_column is None:
        return task
    from calibrant.cli._context import with_context

    return with_context(task, context=options.context, column=options.context_column)


def _routing_stats(task: Task, classifier: BasePredictor) -> RoutingStats | None:
    """Return the call statistics of the task's providers; None without routing."""
    if "routing" not in task.sections:
        return None
    from calibrant.cli._providers import routing_stats

    return routing_stats(classifier)


def _check(options: EvaluateOptions) -> None:
    """Refuse options that contradict each other."""
    if options.cache is not None and options.no_cache:
        raise ConfigurationError("Expected either --cache or --no-cache, got both.")
    if options.parquet:
        from calibrant.evaluation._parquet import require_parquet

        require_parquet()
    if options.engine not in _ENGINES:
        raise ConfigurationError(
            f"Expected --engine to be one of {', '.join(_ENGINES)}, got {options.engine!r}."
        )
    if options.engine != "ray" and (options.ray_address is not None or options.workers is not None):
        raise ConfigurationError("Expected --ray-address and --workers only with --engine ray: add it.")


def _evaluated(
    task: Task,
    options: EvaluateOptions,
    classifier: BasePredictor,
    rows: Dataset,
    *,
    on_progress: EvaluationDisplay,
    stop: Stop,
) -> EvaluationResult:
    """Evaluate here or on a cluster."""
    limits = _limits(task, options)
    about = {"task": task.name}
    if options.engine == "ray":
        from calibrant.distributed._evaluate import Cluster, evaluate  # Ray Data is heavy

        workers = {} if options.workers is None else {"workers": options.workers}
        return evaluate(
            rows,
            opening=_opening(task, options, classifier),
            out=options.out,
            cluster=Cluster(address=options.ray_address, **workers),
            limits=limits,
            cache=options.cache,
            about=about,
            on_progress=on_progress,
            stop=stop,
        )
    with _cache(options) as cache:
        evaluator = BatchEvaluator(classifier, limits=limits, cache=cache)
        return evaluator.evaluate(rows, out=options.out, about=about, on_progress=on_progress, stop=stop)


def _opening(task: Task, options: EvaluateOptions, classifier: BasePredictor) -> partial[BasePredictor]:
    """Return a function that opens `classifier` on another machine, without the command's files."""
    replaced = options.prompt is not None or options.run is not None
    one = (
        classifier if isinstance(classifier, Classifier) else None
    )  # heads and priors belong to single classifiers
    shown = None if one is None else one.demonstrations
    return partial(
        _opened_again,
        replace(without_head(task), demonstrations=None),
        model=options.model,
        prompt=classifier.prompt if replaced else None,
        user_template=classifier.user_template,
        learned=None if one is None else one.head or one.prior_correction,
        shown=None if shown is None else (shown.settings, shown.index.to_text()),
    )


def _opened_again(  # noqa: PLR0913  (keyword-only options)
    task: Task,
    *,
    model: str | None,
    prompt: str | None,
    user_template: str | None,
    learned: Head | LabelPriorCorrection | None,
    shown: tuple[DemonstrationSettings | None, str] | None,
    limits: Limits,
) -> BasePredictor:
    from calibrant.heads._head import Head
    from calibrant.inference._demonstrations import DemonstrationIndex

    classifier = open_classifier(task, model=model, limits=limits)
    if prompt is not None:
        classifier = classifier.with_prompt(prompt, user_template=user_template)
    if shown is not None and shown[0] is not None:
        index = DemonstrationIndex.from_text(shown[1], labels=classifier.labels)
        classifier = as_classifier(classifier, to_use="demonstrations").with_demonstrations(
            index, **shown[0].model_dump()
        )
    if isinstance(learned, Head):
        as_classifier(classifier, to_use="head").head = learned
    elif learned is not None:
        as_classifier(classifier, to_use="label prior").prior_correction = learned
    return classifier


def _gate(text: str) -> tuple[str, float]:
    """Return metric and value of ``METRIC=VALUE``."""
    name, _, value = text.partition("=")
    known = f"Expected --fail-under METRIC=VALUE with one of {', '.join(GATES)} and a value in [0, 1]"
    if name not in GATES:
        raise ConfigurationError(f"{known}, got {text!r}.")
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise ConfigurationError(f"{known}, got {text!r}.")
    return name, number


def labelled_source(task: Task, file: Path | None, split: str) -> DataSource:
    """Return the data source of the rows: `file` if given, else the task's source for the split."""
    if file is not None:
        return DataSource(path=file, columns=task.columns)
    known = ("train", "validation", "test")
    if split not in known:
        raise ConfigurationError(f"Expected --split to be one of {', '.join(known)}, got {split!r}.")
    found = {str(own): source for own, source in task.sources.items()}.get(split)
    if found is None:
        raise ConfigurationError(
            f"Task {task.name!r} has no {split!r} rows: name a file for it under [data], or pass --file."
        )
    return found


def _limits(task: Task, options: EvaluateOptions) -> Limits:
    given = {name: value for name, value in options.limits.items() if value is not None}
    concurrency = None if options.model is not None else task.model.concurrency
    return Limits(**{"concurrency": concurrency, **given})


def _classifier(task: Task, options: EvaluateOptions, limits: Limits) -> BasePredictor:
    """Return the task's classifier under the prompt the command names."""
    return open_prompted(
        task,
        model=options.model,
        prompt=options.prompt,
        run=options.run,
        label_prior=options.label_prior,
        limits=limits,
    )


def _write_down(task: Task, options: EvaluateOptions, classifier: BasePredictor) -> None:
    """Write the task record and the demonstrations, so that the run can be exported without its task file."""
    replaced = options.prompt is not None or options.run is not None
    record_run(options.out, [(task, options.model)], prompt_for_all=replaced)
    if not isinstance(classifier, Classifier):
        return
    if classifier.prior_correction is not None:
        classifier.prior_correction.save(
            options.out / "label_prior.json", fingerprint=classifier.fingerprint()
        )
    write_demonstrations(classifier, options.out)
    if classifier.head is not None:
        classifier.head.save(options.out / "head.json", fingerprint=classifier.fingerprint())


@contextlib.contextmanager
def _cache(options: EvaluateOptions) -> Iterator[PredictionCache | None]:
    if options.no_cache:
        yield None
        return
    with open_cache(options.cache or default_cache()) as cache:
        yield cache


def _recorder(task: Task, options: EvaluateOptions, classifier: BasePredictor) -> _Record:
    """Return a function that adds a run to the history; an unusable history fails before the first call."""
    if options.history is None:
        return lambda _: (None, None)
    from calibrant.evaluation._history import EvaluationHistory
    from calibrant.evaluation._history_run import RunScope

    history = EvaluationHistory(options.history)
    scope = RunScope(
        account_id=options.account,
        task=task.name,
        profile_name=options.profile or RunScope.profile_of(classifier),
    )

    def record(result: EvaluationResult) -> tuple[HistoryEntry | None, StateError | None]:
        if result.directory is None or not result.metrics.complete:
            return None, None
        try:
            return scope.record(history, result.directory), None
        except StateError as error:  # the numbers are printed first
            return None, error

    return record


def exit_as(metrics: EvaluationMetrics, gates: Mapping[str, float], *, stop: Stop) -> None:
    """Exit with the code that the metrics demand; print advice on standard error."""
    again = "run the same command again"
    if not metrics.complete:
        total = "" if metrics.rows_expected is None else f" of {metrics.rows_expected:,}"
        _say(f"stopped ({metrics.stopped}): {metrics.rows:,}{total} rows are saved; {again} to go on.")
        raise SystemExit(INTERRUPTED if stop.reason == ENDED_BY_SIGNAL else FAILED)
    failed = metrics.rows - metrics.answered
    if failed:
        _say(f"{failed:,} rows failed for the server's reasons; {again} to ask them again.")
    below = [
        f"{name} is {'unknown' if value is None else f'{value:.4f}'}, below {least:g}"
        for name, least in gates.items()
        if (value := GATES[name](metrics)) is None or value < least
    ]
    if below:
        _say(f"--fail-under: {'; '.join(below)}.")
        raise SystemExit(GATE_FAILED)
    if metrics.answered == 0:
        raise SystemExit(FAILED)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
