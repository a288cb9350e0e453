"""``calibrant evaluate``: evaluation on labelled rows, with an exit code for scores that are too low."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant import assembly, calibration, evaluation, inference
from calibrant.cli._evaluation_table import acceptance_lines, baseline_lines, print_result, routing_stats
from calibrant.cli._options import FAILED, GATE_FAILED, INTERRUPTED
from calibrant.cli._progress import ENDED_BY_SIGNAL, EvaluationDisplay, interruptible
from calibrant.cli._prompted import Source, source_of, without_head
from calibrant.cli._tables import check_tracking, say, track
from calibrant.core._errors import CalibrantError, ConfigurationError, DataError, ProviderError, StateError
from calibrant.core._fingerprint import NO_TEXTS, TextDigests
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import HalfArray, Journal, LogprobSpace, Outcome
from calibrant.core._predictor import Limits, Stop
from calibrant.core._reported import counted, without_none
from calibrant.core._rows import DataSource
from calibrant.core._task import SPLITS, Task
from calibrant.evaluation._data import UnlabelledTexts, asked_as_before, inspect, write_demonstrations
from calibrant.evaluation._evaluator import BatchEvaluator, default_cache
from calibrant.evaluation._looks import MOST_KNOWN
from calibrant.evaluation._metrics import GATES, check_gates
from calibrant.inference._classifier import as_classifier
from calibrant.metrics._remarks import several_servers_advice
from calibrant.runs._journal import JournalAfterSearch
from calibrant.tuned._task_record import known_texts, record_run, save_learned_of_plan, with_model_alone

if TYPE_CHECKING:
    from calibrant.cli._commands import Evaluate, PromptedOptions, RunOptions
    from calibrant.core._settings import DemonstrationSettings
    from calibrant.evaluation._history import HistoryEntry, RunScope
    from calibrant.evaluation._label import LabelFile
    from calibrant.heads._head import Head
    from calibrant.heads._tuned import Tuned
    from calibrant.inference._base import BasePredictor

# Statuses of the client's fault, but those about the moment. Saved rows hold a failure as words alone.
_STATUS: Final = re.compile(r"\b4\d\d\b")
_TOO_MANY: Final = 429
_PASSING: Final = frozenset({408, 409, 425, 429})
_ENGINES: Final = ("local", "ray")
TEST: Final = "test"  # the split of evaluations that name none
_MOST_COMPARED: Final = 10_000  # rows, with the texts that a classifier knows


def evaluate(options: Evaluate) -> None:
    """Evaluate, print the numbers, and exit with 1 (ended early), 3 (a gate) or 130 (interrupted)."""
    gates = dict(map(_gate, options.fail_under or ()))
    check_options(options, engines=_ENGINES)
    if options.parquet:
        from calibrant.evaluation._parquet import require_parquet

        require_parquet()
    check_tracking(options.track)
    _evaluate(source_of(options.task, options), options, gates)


def _evaluate(source: Source, options: Evaluate, gates: Mapping[str, float]) -> None:
    loaded = source.task
    check_gates(gates, loaded.labels)
    rows = labelled_rows(loaded, options.file, options.split, limit=options.max_rows)
    if source.tuned is not None:
        warn_of_known_rows(rows, source.tuned.place, source.tuned.known_texts)
    elif options.run is not None and (options.file is not None or options.split not in {None, TEST}):
        warn_of_known_rows(rows, options.run, known_texts(options.run))
    elif options.run is None and loaded.head.file is not None:
        warn_of_known_rows(rows, loaded.head.file, known_texts(loaded.head.file.parent))
    with contextlib.closing(source.open(limits=run_limits(loaded, options))) as opened:
        classifier = asked_as_before(opened, options.out)
        history = None
        if options.history is not None:
            history = evaluation.EvaluationHistory(options.history)
        _scope(loaded, options, classifier)  # a name that cannot be stored costs no call
        result, stop = answer_rows(source, options, classifier, rows)
        write_down(source, options.out, classifier)
        scope = _scope(loaded, options, classifier)  # with how the model is asked, which is known now
        if options.parquet and result.metrics.complete:
            from calibrant.evaluation._parquet import write_parquet

            write_parquet(options.out / "predictions.jsonl", options.out / "predictions.parquet")
        routing = routing_stats(loaded, classifier)
    entry, problem = _recorded(history, scope, result)
    print_result(
        result,
        loaded,
        entry,
        routing=routing,
        baselines=_lines_beside(result, source, options, classifier),
        is_free=classifier.is_free,
        as_json=options.as_json,
    )
    if result.metrics.complete:
        track(options.track, options.out)
    if problem is not None:
        say("The run is kept: run the same command again to add it to the history.")
        raise problem
    exit_as(result, gates, stop=stop)


def _recorded(
    history: evaluation.EvaluationHistory | None, scope: RunScope | None, result: evaluation.EvaluationResult
) -> tuple[HistoryEntry | None, StateError | None]:
    """Add a complete run to the history; return its entry, and the error that kept it out."""
    if history is None or scope is None or result.directory is None or not result.metrics.complete:
        return None, None
    try:
        return scope.record(history, result, result.directory), None
    except StateError as error:  # the numbers are printed first
        return None, error


def _lines_beside(
    result: evaluation.EvaluationResult, source: Source, options: Evaluate, classifier: BasePredictor
) -> list[str]:
    """Return lines on what the run's certificate accepts, and on the baselines."""
    # Without --run, the source may be a run itself.
    lines = acceptance_lines(result, run=options.run or options.task)
    head = None
    known_features = None
    if isinstance(classifier, inference.Classifier):
        head = classifier.head
        known_features = partial(_known_features, source, options, classifier)
    lines += baseline_lines(
        result,
        source.task,
        file=options.file,
        split=options.split or TEST,
        head=head,
        known_features=known_features,
    )
    return lines


def _known_features(
    source: Source, options: Evaluate, classifier: inference.Classifier, texts: Sequence[str]
) -> dict[str, HalfArray]:
    """Return the features of texts that the run and the cache hold, by text."""
    with _opened_cache(source, options) as journal:
        return {} if journal is None else classifier.known_features(texts, journal)


def _gate(text: str) -> tuple[str, float]:
    """Return the metric's name and the minimum in ``METRIC=VALUE``."""
    name, _, value = text.partition("=")
    with contextlib.suppress(ValueError):
        if name in GATES and 0.0 <= float(value) <= 1.0:
            return name, float(value)
    raise ConfigurationError(
        f"Expected --fail-under METRIC=VALUE with one of {', '.join(GATES)} and a value in [0, 1], got "
        f"{text!r}."
    )


def check_options(options: RunOptions, *, engines: Collection[str]) -> None:
    """Raise ConfigurationError for invalid or contradictory options, before any rows are read."""
    if options.cache is not None and options.no_cache:
        raise ConfigurationError("Expected either --cache or --no-cache, got both.")
    if options.engine not in engines:
        raise ConfigurationError(
            f"Expected --engine to be one of {', '.join(engines)}, got {options.engine!r}."
        )
    if options.engine != "ray" and (options.ray_address is not None or options.workers is not None):
        raise ConfigurationError("Expected --ray-address and --workers only with --engine ray: add it.")


def labelled_rows(
    task: Task, file: Path | None, split: str | None, *, limit: int | None
) -> evaluation.Dataset:
    """Return the first `limit` rows of `file` if given, else of the task's split, by default its test rows."""
    if file is not None and split is not None:
        raise ConfigurationError("Expected --split or --file, got both: leave one out.")
    split = split or TEST
    sources = {str(name): source for name, source in task.sources.items()}
    if file is not None:
        source = DataSource(path=file, columns=task.columns)
    elif split not in SPLITS:
        raise ConfigurationError(f"Expected --split to be one of {', '.join(SPLITS)}, got {split!r}.")
    elif split in sources:
        source = sources[split]
    elif not sources:
        raise ConfigurationError(
            f"Expected labelled rows, got none: {task.name!r} names none, as no run and no bundle does: name their "
            "file with --file."
        )
    else:
        raise ConfigurationError(
            f"Task {task.name!r} has no {split!r} rows: name a file for it under [data], or pass --file."
        )
    return evaluation.Dataset(source=source, labels=LabelSet.of(task.labels), limit=limit)


def run_limits(task: Task, options: RunOptions) -> Limits:
    """Return the limits that the options name; without --concurrency, the concurrency of the task's model."""
    own = task.model.concurrency
    return Limits(
        concurrency=own if options.concurrency is None else options.concurrency,
        max_cost=options.max_cost,
        requests_per_minute=options.requests_per_minute,
        tokens_per_minute=options.tokens_per_minute,
        call_seconds=options.timeout,
        run_seconds=options.deadline,
    )


def _scope(task: Task, options: Evaluate, classifier: BasePredictor) -> RunScope | None:
    """Return the scope of a run, whose names are checked; None without ``--history``."""
    if options.history is None:
        return None
    from calibrant.evaluation._history import RunScope  # other runs do without a history

    return RunScope.of(classifier, account_id=options.account, task=task.name, profile_name=options.profile)


def answer_fresh_rows(path: Path, file: Path, *, out: Path) -> None:
    """Answer labelled rows with a run's classifier, as `calibrant evaluate` does, and exit if that ends early.

    Parameters
    ----------
    path : Path
        Directory of the run, a bundle or a task file.
    file, out : Path
        The rows, and the directory for the answers.

    Raises
    ------
    ConfigurationError
        The answers would go into the run.
    DataError
        The file has too few rows, or the run has seen more of them than chance explains; nothing is asked then.
    """
    from calibrant.cli._commands import Evaluate
    from calibrant.evaluation._learned import FEWEST  # evaluations calibrate nothing

    if path.resolve() == out.resolve():
        raise ConfigurationError(f"Expected another directory than {path} as --out with --fresh-test.")
    options = Evaluate(task=path, file=file, out=out)
    source = source_of(path, options)
    rows = labelled_rows(source.task, file, options.split, limit=None)
    n_rows = sum(1 for _ in rows)
    if n_rows < FEWEST:
        raise DataError(
            f"{file}: expected at least {FEWEST} labelled rows to certify on, got {n_rows}: add more."
        )
    if source.tuned is not None:
        _check_fresh(rows, source.tuned)
    with contextlib.closing(source.open(limits=run_limits(source.task, options))) as opened:
        classifier = asked_as_before(opened, out)
        result, stop = answer_rows(source, options, classifier, rows)
        write_down(source, out, classifier)
    exit_as(result, {}, stop=stop)


def _check_fresh(rows: evaluation.Dataset, tuned: Tuned) -> None:
    """Raise DataError if a classifier knows rows: its prompt or its head may owe something to them."""
    share = _share_known(rows, tuned.known_texts)
    if share > MOST_KNOWN:
        raise DataError(
            f"{rows.source.path}: expected rows that {tuned.place} has not seen, but it knows {share:.0%} of them: "
            "its prompt or its head may owe something to their mistakes, so they certify nothing. Give other labelled "
            "rows."
        )


def _share_known(rows: evaluation.Dataset, known: TextDigests) -> float:
    """Return the share of rows whose texts are known, in [0, 1], by the first ten thousand."""
    return known.share_known(row.input for row in islice(rows, _MOST_COMPARED))


def warn_of_known_rows(rows: evaluation.Dataset, run: str | Path, known: TextDigests) -> None:
    """Print a warning of rows that a run knows, unless so few are known as may be there twice by chance."""
    share = _share_known(rows, known)
    if share > MOST_KNOWN:
        say(
            f"warning: {run} knows {share:.0%} of these rows: it learned from them, was chosen by them, or was "
            "certified on them, so that the numbers may flatter it. Judge it on other rows."
        )


@contextlib.contextmanager
def _resume_hint(out: Path) -> Iterator[None]:
    """Print a hint to resume after a provider error."""
    try:
        yield
    except ProviderError:
        predictions = out / "predictions.jsonl"
        if predictions.exists() and predictions.stat().st_size:
            say(f"What was answered is kept in {out}: run the same command again to go on.")
        raise


def answer_rows(
    source: Source,
    options: RunOptions,
    classifier: BasePredictor,
    rows: evaluation.Dataset | UnlabelledTexts,
    file: LabelFile | None = None,
) -> tuple[evaluation.EvaluationResult, Stop]:
    """Evaluate rows, or label them into a file, here or on a Ray cluster; return the result, and what can stop it."""
    is_local = options.engine == "local"
    phase = "evaluate" if file is None else "label"
    about = {"task": source.task.name}
    with (
        interruptible(at_once=is_local and classifier.in_process) as stop,
        EvaluationDisplay(phase) as display,
        _resume_hint(options.out),
    ):
        if not is_local:
            return _on_cluster(source, options, classifier, rows, file, on_progress=display, stop=stop), stop
        with _opened_cache(source, options) as cache:
            limits = run_limits(source.task, options)
            evaluator = BatchEvaluator(classifier, limits=limits, cache=cache)
            if isinstance(rows, UnlabelledTexts):
                result = evaluator.label(rows, out=file, about=about, on_progress=display, stop=stop)
            else:
                out = options.out
                result = evaluator.evaluate(rows, out=out, about=about, on_progress=display, stop=stop)
        if result.meter is not None:  # also of the vectors that recognised a model when it was opened
            result.meter.charge_vectors(classifier.meter.vectors)
    return result, stop


@contextlib.contextmanager
def _opened_cache(source: Source, options: RunOptions) -> Iterator[Journal | None]:
    """Open the cache of the options, by default the user's, with the answers of the run; None with --no-cache."""
    if options.no_cache:
        yield None
        return
    saved = source.saved_answers
    with evaluation.open_cache(options.cache or default_cache()) as cache:
        yield cache if saved is None else JournalAfterSearch(cache, saved)


def _on_cluster(  # noqa: PLR0913 (what a run is made of)
    source: Source,
    options: RunOptions,
    classifier: BasePredictor,
    rows: evaluation.Dataset | UnlabelledTexts,
    file: LabelFile | None,
    *,
    on_progress: EvaluationDisplay,
    stop: Stop,
) -> evaluation.EvaluationResult:
    """Evaluate or label rows on a Ray cluster."""
    if file is not None:
        inspect(rows, classifier.labels)
        file.prepare()
    from calibrant.distributed import Cluster, evaluate  # Ray Data is heavy

    workers = {}
    if options.workers is not None:
        workers = {"workers": options.workers}
    with contextlib.nullcontext() if file is None else file.kept():
        return evaluate(
            rows,
            opening=_opening(source, options, classifier),
            out=options.out,
            cluster=Cluster(address=options.ray_address, **workers),
            limits=run_limits(source.task, options),
            cache=options.cache,  # no file of this machine by default
            about={"task": source.task.name},
            on_progress=on_progress,
            stop=stop,
        )


def _opening(source: Source, options: RunOptions, classifier: BasePredictor) -> partial[BasePredictor]:
    """Return a function that opens a copy of `classifier` on another machine, without local files."""
    if source.tuned is not None:
        from calibrant.tuned._open import open_tuned  # task files do without it

        given = without_none({"api_base": options.api_base})
        return partial(open_tuned, source.tuned, model=options.model, options=given)
    task = source.task
    learned: dict[str, Any] = {}  # heads, priors and demonstrations belong to single classifiers
    if isinstance(classifier, inference.Classifier):
        learned = {"head": classifier.head, "label_prior": classifier.prior_correction}
        shown = classifier.demonstrations
        if shown is not None and shown.settings is not None:
            learned["shown"] = (shown.settings, shown.index.to_text())
        if classifier.space is LogprobSpace.FUSED:  # which this machine may have found out
            own = {"scoring": "fused", "samples": classifier.method.calls_a_row}
            task = replace(task, model=task.model.model_copy(update=own))
    return partial(
        _opened_again,
        replace(without_head(task), demonstrations=None),
        prompt=(classifier.prompt, classifier.user_template) if _replaces_prompt(options) else None,
        **learned,
    )


def _opened_again(
    task: Task,
    *,
    prompt: tuple[str, str | None] | None,
    head: Head | None = None,
    label_prior: calibration.LabelPriorCorrection | None = None,
    shown: tuple[DemonstrationSettings, str] | None = None,
    limits: Limits,
) -> BasePredictor:
    classifier = assembly.open_classifier(task, limits=limits)
    if prompt is not None:
        classifier = classifier.with_prompt(prompt[0], user_template=prompt[1])
    if shown is not None:
        settings, rows = shown
        index = inference.DemonstrationIndex.from_text(rows, labels=classifier.labels)
        one = as_classifier(classifier, to_use="demonstrations")
        classifier = one.with_demonstrations(index, **settings.model_dump())
    if head is not None:
        as_classifier(classifier, to_use="head").head = head
    elif label_prior is not None:
        as_classifier(classifier, to_use="label prior").prior_correction = label_prior
    return classifier


def _replaces_prompt(options: PromptedOptions) -> bool:
    return options.prompt is not None or options.run is not None


def write_down(source: Source, out: Path, classifier: BasePredictor) -> None:
    """Write the task record and the demonstrations, for export of the run without its task file."""
    tuned = source.tuned
    model = source.options.model
    if tuned is None:
        record_run(out, [(source.task, model)], prompt_for_all=_replaces_prompt(source.options))
    else:
        place = source.options.api_base
        asked = [(with_model_alone(one.task, model, api_base=place), None) for one in tuned.tasks]
        record_run(
            out,
            asked,
            plan=tuned.plan,
            prompt_for_all=tuned.prompt_for_all,
            students=tuned.students,
            known_texts=_texts_known_to(tuned),
        )
        save_learned_of_plan(tuned, out)
    if isinstance(classifier, inference.Classifier):
        classifier.save_learned(out)
        write_demonstrations(classifier, out)


def _texts_known_to(tuned: Tuned) -> TextDigests:
    """Return digests of the texts that a classifier knows; none if the rows of its run cannot be read."""
    try:
        return tuned.known_texts
    except CalibrantError:  # what was just answered is not lost over it
        return NO_TEXTS


def exit_as(result: evaluation.EvaluationResult, gates: Mapping[str, float], *, stop: Stop) -> None:
    """Exit with an error code if the run ended early, failed or missed a gate; print advice."""
    metrics = result.metrics
    again = "run the same command again"
    if not metrics.complete:
        kept = metrics.rows if result.kept_rows is None else result.kept_rows
        rows = counted(kept, "row is", "rows are")
        if metrics.rows_expected is not None:
            rows = f"{kept:,} of {metrics.rows_expected:,} rows are"
        say(f"stopped ({metrics.stopped}): {rows} saved; {again} to go on.")
        raise SystemExit(INTERRUPTED if stop.reason == ENDED_BY_SIGNAL else FAILED)
    say_troubles(metrics)
    if metrics.answered == 0:
        raise SystemExit(FAILED)
    values = {name: GATES[name](metrics) for name in gates}
    below = [
        f"{name} is {_digits(value, gates[name])}, below {gates[name]:g}"
        for name, value in values.items()
        if value is None or value < gates[name]
    ]
    if below:
        say(f"--fail-under: {'; '.join(below)}.")
        raise SystemExit(GATE_FAILED)
    if metrics.has_hardly_any_label:
        raise SystemExit(FAILED)


def _digits(value: float | None, gate: float) -> str:
    """Return a value below a gate with four decimals, or as many as show that it is below."""
    if value is None:
        return "unknown"
    shown = f"{value:.4f}"
    return shown if float(shown) < gate else repr(value)


def say_troubles(metrics: evaluation.EvaluationMetrics) -> None:
    """Print the numbers of failed rows, also of a cascade's models, and of unreadable answers, with examples."""
    for model in () if metrics.cascade is None else metrics.cascade.models:
        if model.failed:
            asked = counted(model.asked, "row")
            say(
                f"{model.model} failed on {model.failed:,} of the {asked} that it was asked about: where another "
                "model answered, that answer stands. Run the command with another --out to ask it again."
            )
    refused = {kind: count for kind, count in metrics.errors.items() if is_refused(kind)}
    n_refused = sum(refused.values())
    if refused:
        rows = counted(n_refused, "row")
        them = "it" if n_refused == 1 else "them"
        say(
            f"{rows} failed, as the server refused {them} ({next(iter(refused))}). The same command will be "
            "refused again: change what the message names; calibrant doctor examines the server."
        )
    failed = metrics.rows - metrics.answered - n_refused
    if failed:
        found = "a transport error"
        advice = f"run the same command again to ask {'it' if failed == 1 else 'them'} again"
        if any(_status_of(kind) == _TOO_MANY for kind in metrics.errors):
            found = "a refusal for now (too many calls, or no credit), or a transport error"
            advice += ", once the server takes calls: predictions.jsonl says what it waits for"
        if any(kind.startswith("broken response") for kind in metrics.errors):
            found += " or an empty or broken answer"
            advice += ", or calibrant doctor to examine the server"
        say(f"{counted(failed, 'row')} failed with {found}; {advice}.")
    if metrics.unreadable:
        say(unreadable_text(metrics.unreadable, metrics.unreadable_answers))
    if metrics.cascade is None:  # whose models may differ in this
        _say_mixed(metrics)


def _say_mixed(metrics: evaluation.EvaluationMetrics) -> None:
    """Print the number of answers with log-probabilities, and advice, if others had none."""
    answers = metrics.outcomes[Outcome.OK.value]
    if not {*metrics.per_label, *metrics.labels}.isdisjoint(metrics.unreadable_answers):
        answers += metrics.unreadable  # labels in plain text where JSON was asked for
    found = metrics.rows_with_confidence
    advice = several_servers_advice(answers - found, answers=answers)
    if advice:
        say(
            f"{found:,} of {counted(answers, 'answer')} had usable log-probabilities, and the others none. {advice}"
        )


def is_refused(reason: str) -> bool:
    """Return True for a failure whose HTTP status says that the same request will fail again."""
    status = _status_of(reason)
    return status is not None and status not in _PASSING


def _status_of(reason: str) -> int | None:
    found = _STATUS.search(reason)
    return None if found is None else int(found[0])


def unreadable_text(count: int, examples: Sequence[str]) -> str:
    """Return the lines that say how many answers could not be read, and show some of them."""
    if not examples:  # a text that is too long has no answer either
        return f"{counted(count, 'row')} got no answer that is a label; predictions.jsonl says why."
    head = f"{counted(count, 'answer')} could not be read as a label"
    return "\n".join([f"{head}. Instead the model wrote, for example:", *(f"  {one}" for one in examples)])
