"""``calibrant optimize``: search for a better prompt, with its results and files."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from calibrant import assembly, optimization, reports
from calibrant.calibration._thresholds import asked_options, certificate_from_record, certificate_lines
from calibrant.cli._options import FAILED, parse_option
from calibrant.cli._progress import ProgressDisplay
from calibrant.cli._prompted import asked_task
from calibrant.cli._tables import (
    aligned,
    check_tracking,
    number,
    print_output,
    say,
    track,
    vectors_text,
    with_interval,
)
from calibrant.core._errors import ConfigurationError, LimitReachedError
from calibrant.core._prediction import Usage
from calibrant.core._predictor import Limits
from calibrant.core._reported import counted
from calibrant.core._task import Task
from calibrant.evaluation._looks import CertificateRequest
from calibrant.metrics._remarks import confidence_remarks, dollars, search_verdict, several_servers_advice
from calibrant.runs._directory import CALIBRATION, NumberedDirectory
from calibrant.tuned._task_record import record_run

if TYPE_CHECKING:
    from calibrant.cli._commands import Optimize
    from calibrant.cli._evaluation_table import RoutingStats
    from calibrant.heads._tuned import Tuned
    from calibrant.inference._base import BasePredictor
    from calibrant.optimization._result import PromptScore

_LOG = logging.getLogger("calibrant")

_RUNS: Final = Path("runs")
_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]+")
_HEAD: Final = ("accuracy", "macro F1", "labels", "confidence")
_HEAD_WITH_CREDIT: Final = ("accuracy", "macro F1", "labels", "credit")


def optimize(options: Optimize) -> None:
    """Run the search and print its results; exit with 1 where a limit ended it, or hardly an answer was a label."""
    check_tracking(options.track)
    loaded = asked_task(Task.from_file(options.task), options)
    try:
        result, routing = _search(loaded, options)
    except LimitReachedError as error:
        say(f"stopped: {error}")
        raise SystemExit(FAILED) from None
    if result.directory is not None:
        record_run(result.directory, [(loaded, None)], prompt_for_all=True)
        reports.write_report(result.directory, rows=result.test_rows)
    record = {**result.to_record(), "directory": str(result.directory)}
    lines = _table(result)
    if routing is not None:
        record["routing"] = routing.to_record()
        lines += routing.lines()
    lines += [*_remarks(result), *_summary(result), *_unasked_promise(result, options)]
    print_output(record, lines, as_json=options.as_json)
    if result.directory is not None:
        track(options.track, result.directory)
    if all(score.has_hardly_any_label for score in _asked_scores(result)):
        raise SystemExit(FAILED)


def _asked_scores(result: optimization.OptimizationResult) -> list[PromptScore]:
    """Return the scores of the first prompt, and of the best prompt if it differs."""
    if result.chosen:
        return [result.seed_prompt, result.best_prompt]
    return [result.seed_prompt]


def _directory(task: Task, options: Optimize) -> Path | NumberedDirectory:
    """Return the directory of the run: the named one, or one that is named after the task."""
    if options.out is not None:
        return options.out
    name = _NOT_IN_NAMES.sub("-", task.name).strip("-.")
    return NumberedDirectory(_RUNS / (name or "task"))


def _search(task: Task, options: Optimize) -> tuple[optimization.OptimizationResult, RoutingStats | None]:
    """Return the result of the search, and the calls to each provider if there are several."""
    if options.prior_correction == "batch":
        _refuse_prior(task)
    certificate = CertificateRequest(
        target_accuracy=options.target_accuracy, delta=options.delta, looks=options.looks
    )
    with _search_model(task) as model, ProgressDisplay() as display:
        result = optimization.optimize(
            task,
            model=model,
            reflection_model=options.reflection_model,
            reflection_options=dict(map(parse_option, options.reflection_option or ())),
            proposer=cast("Any", options.proposer),
            max_metric_calls=options.max_metric_calls,
            minibatch_size=options.minibatch_size,
            seed=options.seed,
            prior_correction=cast("Any", options.prior_correction),
            thresholds=cast("Any", options.thresholds),
            out=_directory(task, options),
            progress=display,
            limits=Limits(max_cost=options.max_cost, run_seconds=options.deadline),
            embeddings=False if options.no_embeddings else None,
            certificate=certificate,
        )
        if model is None:
            return result, None
        from calibrant.cli._evaluation_table import routing_stats  # other tasks do without routing

        return result, routing_stats(task, model)


def _refuse_prior(task: Task) -> None:
    reasons = {
        "cascade": "for a cascade: a label that it changes is one that no model was sure of",
        "routing": "beside [routing]: every provider has a label prior of its own",
    }
    for section, reason in reasons.items():
        if section in task.sections:
            raise ConfigurationError(
                f"Expected no --prior-correction batch {reason}. Leave it out, or name one model with --model."
            )


@contextmanager
def _search_model(task: Task) -> Iterator[BasePredictor | None]:
    """Yield the classifier of a task with a cascade or routing; None for other tasks."""
    if not task.sections:
        yield None
        return
    with assembly.open_classifier(task) as classifier:
        cascade = assembly.cascade_settings(task)
        members = () if cascade is None else cascade.models
        prompts = [entry.prompt for entry in members if entry.prompt is not None]
        if prompts:
            are = counted(
                len(prompts), "prompt of [[cascade.models]] is", "prompts of [[cascade.models]] are"
            )
            _LOG.warning(
                "The search asks every model of the cascade under the same prompt: %s not used.", are
            )
        yield classifier


def _table(result: optimization.OptimizationResult) -> list[str]:
    """Return a table of the seed prompt, of what the user gets, and of baselines, at most 80 columns wide."""
    final = result.final
    scores = {"seed prompt": result.seed_prompt}
    if final is not None:
        if result.chosen:
            scores["best prompt, no head"] = result.best_prompt
        scores["final: prompt + head" if final.head["uses_model"] else "final: head on text"] = final.score
    elif result.chosen:
        scores["final: best prompt"] = result.best_prompt
    has_credit = any(score.credit is not None for score in scores.values())
    head = _HEAD_WITH_CREDIT if has_credit else _HEAD
    rows: list[tuple[str, ...]] = [("", *head)]
    rows += [(name, *_cells(score, has_credit=has_credit)) for name, score in scores.items()]
    for one in () if final is None else final.baselines:
        labels = str(one.answered_labels)
        rows.append((one.name, with_interval(one.accuracy), number(one.macro_f1), labels, ""))
    return [f"{result.task}: {counted(result.seed_prompt.rows, 'test row')}, {result.model}", *aligned(rows)]


def _cells(score: PromptScore, *, has_credit: bool) -> tuple[str, ...]:
    credit = None if score.credit is None else score.credit.estimate
    return (
        with_interval(score.accuracy),
        number(score.macro_f1),
        "-" if score.answered_labels is None else str(score.answered_labels),
        number(credit if has_credit else score.mean_probability),
    )


def _remarks(result: optimization.OptimizationResult) -> Iterator[str]:
    """Yield lines with verdicts on the final classifier and the prompts, and warnings."""
    final = result.final
    yield from search_verdict(result.to_record())
    if final is not None:
        yield final.verdict
        alone = "" if final.head["uses_model"] else ", which uses no answer of the model"
        yield f"Head ({final.head['title']}){alone}, from {final.head['n_rows']} labelled rows: {final.head['reason']}"
    answered_labels = (result.best_prompt if final is None else final.score).answered_labels
    if answered_labels is not None and answered_labels.collapsed:
        yield f"warning: {answered_labels.warning}"
    if final is None or final.head["kind"] == "as scored":
        best = result.best_prompt
        yield from confidence_remarks(
            None,
            rows=best.rows - best.outcomes.get("error", 0),
            rows_with_low_label_mass=best.rows_with_low_label_mass,
        )


def _summary(result: optimization.OptimizationResult) -> Iterator[str]:
    """Yield lines on the failures, the cost and the files of the search."""
    scores = _asked_scores(result)
    errors = sum(score.outcomes.get("error", 0) for score in scores)
    failures = [failure for score in scores for failure in score.failures]
    if errors:
        from calibrant.cli._evaluate import is_refused

        refused = next(filter(is_refused, failures), None)
        why = f" ({failures[0]})" if failures else ""
        if refused is not None:
            why = f" as the server refused them ({refused})"
        count = "counts" if errors == 1 else "count"
        yield f"{counted(errors, 'test answer')} failed{why} and {count} neither way."
    unreadable = sum(score.outcomes.get("unparsed", 0) for score in scores)
    if unreadable:
        from calibrant.cli._evaluate import unreadable_text

        written = dict.fromkeys(text for score in scores for text in score.unreadable_answers)
        yield unreadable_text(unreadable, list(written)[:3])
    if result.completions_without_logprobs:
        yield (
            f"{result.completions_without_logprobs} of {result.completions} completions of the search came without "
            "usable log-probabilities and were scored by correctness alone. "
            + several_servers_advice(result.completions_without_logprobs, answers=result.completions)
        ).rstrip()
    if result.ended:
        yield result.ended
    vectors = "" if result.vectors == Usage() else f", and {vectors_text(result.vectors)}"
    yield (
        f"{counted(result.metric_calls, 'row')} asked in the search, {counted(result.proposals, 'prompt')} proposed "
        f"and {result.accepted} of them promising, {result.seconds:.0f} s; cost: {_cost(result)}{vectors}."
    )
    if result.directory is not None and result.tuned is not None:
        yield from _acceptance(result.tuned, result.directory)
        yield f"Files in {result.directory}: result.json, best_prompt.txt, predictions.jsonl, report.html"


def _cost(result: optimization.OptimizationResult) -> str:
    """Return the cost of a search, in words where no price is known."""
    if result.in_process:
        return "none, the model runs here"
    if result.cost is None:
        return "no price is known"
    if not result.unpriced_calls:
        return dollars(result.cost)
    return f"{dollars(result.cost)}, and {counted(result.unpriced_calls, 'call')} without a known price"


def _unasked_promise(result: optimization.OptimizationResult, options: Optimize) -> Iterator[str]:
    """Yield a line on the promise of the options, if the run was finished before and made another one."""
    certification = None if result.tuned is None else result.tuned.thresholds["certification"]
    asked = CertificateRequest(
        target_accuracy=options.target_accuracy, delta=options.delta, looks=options.looks
    )
    if certification is None or asked == CertificateRequest():
        return
    found = certificate_from_record(certification)
    wanted = asked_options(
        replace(found, target_accuracy=asked.target_accuracy, delta=asked.delta, looks=None)
    )
    if asked.looks > 1:
        wanted += ["--looks", str(asked.looks)]
    out = str(result.directory)
    if wanted != asked_options(found):
        again = shlex.join(["calibrant", "calibrate", out, *wanted, "--out", out])
        yield f"{out} was finished before, and keeps what it promises. To ask for what the options say: {again}"


def _acceptance(tuned: Tuned, out: Path) -> Iterator[str]:
    """Yield lines on the answers that will be accepted, by the test rows."""
    certification = tuned.thresholds["certification"]
    if certification is not None:
        yield from certificate_lines(certificate_from_record(certification), run=out, out=out)
    elif tuned.calibrator is not None:  # calibrated by the user
        yield f"No answer is accepted: {out / CALIBRATION} was written without a target accuracy."
    else:
        yield "Which answers to accept is not known: about 20 test rows with a confidence would tell."
