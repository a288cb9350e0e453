"""``calibrant optimize``: search for a better prompt, with its results and files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant import assembly, optimization, reports
from calibrant.assembly._task_record import record_run
from calibrant.calibration._promise import certificate_from_record, certificate_lines
from calibrant.cli._evaluation_table import routing_stats
from calibrant.cli._options import parse_option
from calibrant.cli._progress import ProgressDisplay
from calibrant.cli._tables import dollars, number, print_output, with_interval
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import read_json_object
from calibrant.core._prediction import Interval
from calibrant.core._search_verdicts import WHAT_ACCEPTED_MEANS, search_verdict
from calibrant.core._task import Task
from calibrant.evaluation._calibrate import CALIBRATION
from calibrant.metrics._remarks import confidence_remarks

if TYPE_CHECKING:
    from calibrant.cli._commands import Optimize
    from calibrant.cli._evaluation_table import RoutingStats
    from calibrant.inference._base import BasePredictor
    from calibrant.optimization._result import FinalScore, PromptScore

_LOG = logging.getLogger("calibrant")

_WIDTH: Final = 120  # of a table that goes to a file, in characters
_COLUMNS: Final = (
    "accuracy",
    "95 % interval",
    "macro F1",
    "labels answered",
    "mean probability",
    "validation score",
)


def optimize(options: Optimize) -> None:
    """Run the search and print its results."""
    loaded = Task.from_file(options.task)
    result, routing = _search(loaded, options)
    if options.out is not None:
        record_run(options.out, [(loaded, options.model)], prompt_for_all=True)
        reports.write_report(options.out)
    if options.as_json:
        stats = {} if routing is None else {"routing": routing.to_record()}
        print_output({**result.to_record(), **stats}, [], as_json=True)
        return
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    console.print(_table(result))
    lines = [] if routing is None else routing.lines()
    for line in [*lines, *_remarks(result), *_summary(result, options.out)]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _search(task: Task, options: Optimize) -> tuple[optimization.OptimizationResult, RoutingStats | None]:
    """Return the result of the search, and the calls to each provider if there are several."""
    if options.model is None and options.prior_correction == "batch":
        _refuse_prior(task)
    with _search_model(task, options.model) as model, ProgressDisplay() as display:
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
            out=options.out,
            progress=display,
        )
        if model is None or isinstance(model, str):
            return result, None
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
def _search_model(task: Task, model: str | None) -> Iterator[str | BasePredictor | None]:
    """Yield the classifier of a task with a cascade or routing; for other tasks, `model`."""
    if not task.sections:
        yield model
        return
    with assembly.open_classifier(task, model=model) as classifier:
        cascade = assembly.cascade_settings(task)
        members = () if cascade is None else cascade.models
        prompts = [entry.prompt for entry in members if entry.prompt is not None]
        if model is None and prompts:
            _LOG.warning(
                "The search asks every model of the cascade under the same prompt: %d prompt(s) of [[cascade.models]] "
                "are not used.",
                len(prompts),
            )
        yield classifier


def _table(result: optimization.OptimizationResult) -> Table:
    title = f"{result.task}: {result.seed_prompt.rows} test rows, {result.model}"
    # As Text: names may hold brackets, which are markup in plain strings.
    table = Table("prompt", title=Text(title), pad_edge=False)
    scores = {"seed": result.seed_prompt}
    final = result.final
    if final is not None and final.without_prior is not None:
        scores["seed, no prior"] = final.without_prior
    scores["best"] = result.best_prompt
    partial = any(score.credit is not None for score in scores.values())
    for name in (*_COLUMNS, *(["credit"] if partial else [])):
        table.add_column(name, justify="right")
    if final is not None:
        scores["best + head"] = final.score
    for name, score in scores.items():
        table.add_row(name, *_cells(score), *([with_interval(score.credit)] if partial else []))
    for baseline in () if final is None else final.baselines:
        labels = str(baseline.answered_labels)
        table.add_row(baseline.name, *_accuracy(baseline.accuracy), number(baseline.macro_f1), labels)
    return table


def _cells(score: PromptScore) -> tuple[str, ...]:
    return (
        *_accuracy(score.accuracy),
        number(score.macro_f1),
        "-" if score.answered_labels is None else str(score.answered_labels),
        number(score.mean_probability),
        number(score.validation_score),
    )


def _accuracy(found: Interval | None) -> tuple[str, str]:
    return (
        ("-", "-") if found is None else (number(found.estimate), f"{found.lower:.3f} to {found.upper:.3f}")
    )


def _remarks(result: optimization.OptimizationResult) -> Iterator[str]:
    """Yield lines with verdicts on the prompts, differences between them and warnings."""
    if result.final is not None:
        yield from _final(result.final)
    yield from search_verdict(result.to_record())
    comparison, credit = result.comparison, result.credit_difference
    if result.chosen and comparison is not None:
        yield (
            f"Best minus seed: {comparison.difference:+.3f} accuracy, 95 % interval "
            f"{_signed(comparison.interval)}, exact McNemar p = {comparison.p_value:.3g}, {comparison.n} paired rows."
        )
        if credit is not None:
            yield f"Credit, best minus seed: {credit.estimate:+.3f}, 95 % interval {_signed(credit)}."
    scores = _scores(result)
    for name, score in scores.items():
        if score.answered_labels is not None and score.answered_labels.collapsed:
            yield f"warning: {name} prompt: {score.answered_labels.warning}"
    if result.final is None or result.final.head["rung"] == "as scored":
        best = scores.get("best", result.seed_prompt)
        yield from confidence_remarks(
            None,
            rows=best.rows - best.outcomes.get("error", 0),
            rows_with_low_label_mass=best.rows_with_low_label_mass,
        )


def _scores(result: optimization.OptimizationResult) -> dict[str, PromptScore]:
    """Return the scores of the first prompt, and of the best prompt if it differs."""
    return {"seed": result.seed_prompt} | ({"best": result.best_prompt} if result.chosen else {})


def _final(final: FinalScore) -> Iterator[str]:
    if final.against_seed is not None:
        yield (
            f"Best prompt with its head minus seed prompt: {final.against_seed.difference:+.3f} accuracy, 95 % "
            f"interval {_signed(final.against_seed.interval)}, {final.against_seed.n} paired rows."
        )
    yield final.verdict
    head = final.head
    yield f"Head ({head['rung']}), from {head['n_rows']} labelled rows: {head['reason']}"


def _signed(interval: Interval) -> str:
    return f"{interval.lower:+.3f} to {interval.upper:+.3f}"


def _summary(result: optimization.OptimizationResult, out: Path | None) -> Iterator[str]:
    """Yield lines on the failures, the cost and the files of the search."""
    errors = sum(score.outcomes.get("error", 0) for score in _scores(result).values())
    if errors:
        yield f"{errors} test answers failed with a transport error and count neither way."
    if result.completions_without_logprobs:
        yield (
            f"{result.completions_without_logprobs} of {result.completions} completions of the search came without "
            "usable log-probabilities and were scored by correctness alone."
        )
    cost = "" if result.cost is None else f", {dollars(result.cost)}"
    yield (
        f"{result.metric_calls} calls in the search, {result.accepted} of {result.proposals} proposals accepted, "
        f"{result.seconds:.0f} s{cost}."
    )
    if result.accepted:
        yield WHAT_ACCEPTED_MEANS
    if out is not None:
        yield from _acceptance(out)
        yield f"Files: {out}/result.json, best_prompt.txt, predictions.jsonl, report.html"


def _acceptance(out: Path) -> Iterator[str]:
    """Yield lines on the answers that will be accepted, by the test rows."""
    path = out / CALIBRATION
    if not path.exists():
        yield "Which answers to accept is not known: about 20 test rows with a confidence would tell."
        return
    certification = read_json_object(path, remedy="calibrate the run again")["certification"]
    if certification is None:  # calibrated by the user
        yield f"No answer is accepted: {path} was written without a target accuracy."
    else:
        yield from certificate_lines(certificate_from_record(certification), run=out, out=out)
