"""``calibrant optimize``: the search, its table and its files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.assembly._open import open_classifier
from calibrant.assembly._sections import cascade_settings
from calibrant.assembly._task_record import record_run
from calibrant.cli._progress import ProgressDisplay
from calibrant.cli._providers import routing_stats
from calibrant.cli._tables import dollars, number, with_interval
from calibrant.core._errors import ConfigurationError
from calibrant.core._search_verdicts import WHAT_ACCEPTED_MEANS, search_verdict
from calibrant.core._task import Task
from calibrant.metrics._remarks import confidence_remarks
from calibrant.optimization._run import optimize
from calibrant.reports._html import write_report

if TYPE_CHECKING:
    from calibrant.inference._predictor import BasePredictor
    from calibrant.optimization._result import FinalScore, OptimizationResult, PromptScore

_LOG = logging.getLogger("calibrant")

_WIDTH: Final = 120  # of a table that goes to a file, in characters


def run_optimize(
    task_file: Path,
    *,
    model: str | None,
    out: Path | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Run the search and print its results."""
    task = Task.from_file(task_file)
    if model is None and options.get("prior_correction") == "batch":
        _refuse_prior(task)
    with _search_model(task, model) as model_or_predictor, ProgressDisplay() as display:
        result = optimize(task, model=model_or_predictor, out=out, progress=display, **options)
        routing = (
            None
            if model_or_predictor is None or isinstance(model_or_predictor, str)
            else routing_stats(model_or_predictor)
        )
    if out is not None:
        record_run(out, [(task, model)], prompt_for_all=True)
        write_report(out)
    if as_json:
        found = {} if routing is None else {"routing": routing.to_record()}
        print(json.dumps({**result.to_record(), **found}, ensure_ascii=False))  # noqa: T201
        return
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    console.print(_table(result))
    for line in [*([] if routing is None else routing.lines()), *_remarks(result, out)]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _refuse_prior(task: Task) -> None:
    remedy = "Leave it out, or name one model with --model."
    if "cascade" in task.sections:
        raise ConfigurationError(
            "Expected no --prior-correction batch for a cascade: a label that it changes is one that no model was sure "
            f"of. {remedy}"
        )
    if "routing" in task.sections:
        raise ConfigurationError(
            "Expected no --prior-correction batch beside [routing]: every provider has a label prior of its own. "
            + remedy
        )


@contextmanager
def _search_model(task: Task, model: str | None) -> Iterator[str | BasePredictor | None]:
    """Yield the model of the search: `model`, the task's cascade or router, or None for the task's own model."""
    if not task.sections:
        yield model
        return
    classifier = open_classifier(task, model=model)
    try:
        cascade = cascade_settings(task)
        members = () if cascade is None else cascade.models
        prompts = [entry.prompt for entry in members if entry.prompt is not None]
        if model is None and prompts:
            _LOG.warning(
                "The search asks every model of the cascade under the same prompt: %d prompt(s) of [[cascade.models]] "
                "are not used.",
                len(prompts),
            )
        yield classifier
    finally:
        classifier.close()


def _table(result: OptimizationResult) -> Table:
    title = f"{result.task}: {result.seed_prompt.rows} test rows, {result.model}"
    table = Table(
        title=Text(title), pad_edge=False
    )  # names may hold brackets, which are markup in plain text
    table.add_column("prompt")
    table.add_column("accuracy", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("macro F1", justify="right")
    table.add_column("labels answered", justify="right")
    table.add_column("mean probability", justify="right")
    table.add_column("validation score", justify="right")
    scores = {"seed": result.seed_prompt}
    if result.final is not None and result.final.without_prior is not None:
        scores["seed, no prior"] = result.final.without_prior
    scores["best"] = result.best_prompt
    partial = any(score.credit is not None for score in scores.values())
    if partial:
        table.add_column("credit", justify="right")
    if result.final is not None:
        scores["best + head"] = result.final.score
    for name, score in scores.items():
        table.add_row(name, *_cells(score), *([with_interval(score.credit)] if partial else []))
    for baseline in () if result.final is None else result.final.baselines:
        found = baseline.accuracy
        interval = f"{found.lower:.3f} to {found.upper:.3f}"
        labels = str(baseline.answered_labels)
        table.add_row(baseline.name, f"{found.estimate:.3f}", interval, number(baseline.macro_f1), labels)
    return table


def _final(final: FinalScore) -> list[str]:
    head, lines = final.head, []
    if final.against_seed is not None:
        interval = final.against_seed.interval
        lines.append(
            f"Best prompt with its head minus seed prompt: {final.against_seed.difference:+.3f} accuracy, 95 % "
            f"interval {interval.lower:+.3f} to {interval.upper:+.3f}, {final.against_seed.n} paired rows."
        )
    lines.append(final.verdict)
    lines.append(f"Head ({head['rung']}), from {head['n_rows']} labelled rows: {head['reason']}")
    return lines


def _cells(score: PromptScore) -> tuple[str, ...]:
    accuracy = score.accuracy
    return (
        "-" if accuracy is None else f"{accuracy.estimate:.3f}",
        "-" if accuracy is None else f"{accuracy.lower:.3f} to {accuracy.upper:.3f}",
        number(score.macro_f1),
        "-" if score.answered_labels is None else str(score.answered_labels),
        "-" if score.mean_probability is None else f"{score.mean_probability:.3f}",
        f"{score.validation_score:.3f}",
    )


def _remarks(result: OptimizationResult, out: Path | None) -> list[str]:
    lines = [] if result.final is None else _final(result.final)
    lines += search_verdict(result.to_record())
    comparison = result.comparison
    if result.chosen and comparison is not None:
        interval = comparison.interval
        lines.append(
            f"Best minus seed: {comparison.difference:+.3f} accuracy, 95 % interval {interval.lower:+.3f} to "
            f"{interval.upper:+.3f}, exact McNemar p = {comparison.p_value:.3g}, {comparison.n} paired rows."
        )
        credit = result.credit_difference
        if credit is not None:
            lines.append(
                f"Credit, best minus seed: {credit.estimate:+.3f}, 95 % interval {credit.lower:+.3f} to "
                f"{credit.upper:+.3f}."
            )
    scores = {"seed": result.seed_prompt, **({"best": result.best_prompt} if result.chosen else {})}
    for name, score in scores.items():
        if score.answered_labels is not None and score.answered_labels.collapsed:
            lines.append(f"warning: {name} prompt: {score.answered_labels.warning}")
    best = result.best_prompt if result.chosen else result.seed_prompt
    if result.final is None or result.final.head["rung"] == "as scored":
        answered = best.rows - best.outcomes.get("error", 0)
        lines += confidence_remarks(
            None, rows=answered, rows_with_low_label_mass=best.rows_with_low_label_mass
        )
    errors = sum(score.outcomes.get("error", 0) for score in scores.values())
    if errors:
        lines.append(f"{errors} test answers failed for the server's reasons and count neither way.")
    if result.completions_without_logprobs:
        lines.append(
            f"{result.completions_without_logprobs} of {result.completions} completions of the search came without "
            "usable log-probabilities and were scored by correctness alone."
        )
    cost = "" if result.cost is None else f", {dollars(result.cost)}"
    lines.append(
        f"{result.metric_calls} calls in the search, {result.accepted} of {result.proposals} proposals accepted, "
        f"{result.seconds:.0f} s{cost}."
    )
    if result.accepted:
        lines.append(WHAT_ACCEPTED_MEANS)
    if out is not None:
        lines.append(f"Files: {out}/result.json, best_prompt.txt, predictions.jsonl, report.html")
    return lines
