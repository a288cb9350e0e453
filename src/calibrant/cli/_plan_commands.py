"""``calibrant cascade``: plan from recorded runs, replay a policy on them, carry a plan out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from calibrant.assembly._task_record import record_run
from calibrant.cascade.planning._plan import CascadePlan, short_names
from calibrant.cascade.planning._planner import plan_cascade
from calibrant.cascade.planning._planner import replay as replay_policy
from calibrant.cascade.planning._priced import PricedPolicy
from calibrant.cascade.planning._recorded import RecordedRun, recorded_run
from calibrant.cli._baselines import baseline_lines
from calibrant.cli._classify import all_texts, print_predictions
from calibrant.cli._errors import GATE_FAILED, reports_errors
from calibrant.cli._evaluate import exit_as, labelled_source
from calibrant.cli._evaluation_table import print_result
from calibrant.cli._interrupts import interruptible
from calibrant.cli._options import AsJson
from calibrant.cli._progress import EvaluationDisplay
from calibrant.cli._prompted import without_head
from calibrant.cli._tables import aligned, with_interval
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._labels import LabelSet
from calibrant.core._task import Task
from calibrant.evaluation._cache import default_cache, open_cache
from calibrant.evaluation._data import Dataset
from calibrant.evaluation._evaluator import BatchEvaluator
from calibrant.inference._classifier import Classifier
from calibrant.reports._trade import TradePoint, write_trade
from calibrant.runs._directory import unfinished

if TYPE_CHECKING:
    from calibrant.cascade.planning._planner import CertifyOn

cascade = typer.Typer(
    name="cascade",
    no_args_is_help=True,
    add_completion=False,
)

Cost = float | None
VerifierCost = Annotated[
    list[float] | None,
    typer.Option(help="Cost of finding out how sure an answer is; once for all models, or once for each."),
]
Seed = Annotated[int, typer.Option(min=0, help="Of halves, folds and resamples.")]


@cascade.command()
@reports_errors
def plan(  # noqa: PLR0913
    predictions: Annotated[
        list[Path],
        typer.Argument(
            metavar="PREDICTIONS_SMALL [...] PREDICTIONS_LARGE",
            help="A run of each model over the same rows, from small to large: directories of evaluate or "
            "optimize, or files of predictions.",
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(help="Directory for plan.json, plan.html and plan.svg.")],
    small_cost: Annotated[
        Cost, typer.Option(help="Of an answer of the first model; by default as recorded.")
    ] = None,
    large_cost: Annotated[
        Cost, typer.Option(help="Of the last model, in the same unit; by default as recorded.")
    ] = None,
    between_cost: Annotated[
        list[float] | None, typer.Option(help="Of the models between, in order; once for each.")
    ] = None,
    verifier_cost: VerifierCost = None,
    epsilon: Annotated[float, typer.Option(help="Accuracy that may be lost against the last model.")] = 0.02,
    delta: Annotated[float, typer.Option(help="Probability with which more may be lost.")] = 0.1,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Choose the cheapest policy that is so accurate.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Choose the most accurate policy for that cost per row.")
    ] = None,
    certify_on: Annotated[
        str, typer.Option(help="all: certify on all rows; half: leave half of them for the report.")
    ] = "all",
    method: Annotated[
        str, typer.Option(help="Confidence method the recorded confidences come from.")
    ] = "label_probability",
    key: Annotated[
        str,
        typer.Option(help="Key of the hash of texts that decides which of equally sure answers are kept."),
    ] = "calibrant",
    seed: Seed = 0,
    require_certified: Annotated[
        bool,
        typer.Option(
            "--require-certified",
            help="Exit with 3 unless a policy cheaper than the last model alone is certified.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan the model for each row: cheapest certified, or for a target or a budget."""
    if len({path.resolve() for path in predictions}) < max(len(predictions), 2):
        raise ConfigurationError(
            "Expected recorded runs of at least two models, from small to large, none of them twice, got "
            f"{', '.join(map(str, predictions))}."
        )
    runs = _open_runs(predictions, advice="run the evaluation again, and plan on all of its rows")
    if small_cost is not None and large_cost is not None and small_cost > large_cost:
        sys.stderr.write(
            f"warning: the first model ({runs[0].name}) costs more than the last ({runs[-1].name}): name the runs from "
            "small to large.\n"
        )
    found = plan_cascade(
        runs[0],
        runs[-1],
        between=runs[1:-1],
        between_costs=between_cost or None,
        small_cost=small_cost,
        large_cost=large_cost,
        verifier_cost=verifier_cost or 0.0,
        epsilon=epsilon,
        delta=delta,
        target_accuracy=target_accuracy,
        budget=budget,
        certify_on=cast("CertifyOn", certify_on),
        method=method,
        key=key,
        rng=seed,
    )
    _write(found, out, seed=seed)
    if as_json:
        sys.stdout.write(json.dumps(found.to_record(), ensure_ascii=False) + "\n")
    else:
        files = f"Files in {out}: plan.json, plan.html, plan.svg"
        sys.stdout.write("\n".join([*found.describe(), "", *_table(found), files]) + "\n")
    if require_certified and not found.certified:
        sys.stderr.write(f"--require-certified: {found.describe_certificate()}\n")
        raise SystemExit(GATE_FAILED)


@cascade.command()
@reports_errors
def replay(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[PLAN] PREDICTIONS...",
            help="The plan, unless --threshold is given, and a run of each model, from small to large.",
        ),
    ],
    *,
    threshold: Annotated[
        list[float] | None,
        typer.Option(help="Keep answers so sure; once for all models, or once for each but the last."),
    ] = None,
    cost: Annotated[
        list[float] | None,
        typer.Option(help="Of an answer of each model, in order; by default the plan's, or as recorded."),
    ] = None,
    verifier_cost: VerifierCost = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Price a policy on recorded runs, and measure its accuracy; no model is called."""
    first = paths[0]
    is_plan = first.name == "plan.json" or (first / "plan.json").exists()
    if threshold and is_plan:
        raise ConfigurationError(f"Expected a plan or --threshold, got both ({first}): leave one out.")
    is_run = first.suffix == ".jsonl" or (first / "predictions.jsonl").exists()
    if not threshold and is_run and not is_plan:
        raise ConfigurationError(
            f"Expected a plan before the runs, or --threshold, got the run {first} first: make a plan with "
            "`calibrant cascade plan`, or say from which confidence on answers are kept."
        )
    policy = threshold or CascadePlan.load(first)
    runs = _open_runs(paths if threshold else paths[1:], advice="only the rows that are there were used")
    found = replay_policy(policy, *runs, costs=cost, verifier_cost=verifier_cost or None, rng=seed)
    if as_json:
        sys.stdout.write(json.dumps(found.to_record(), ensure_ascii=False) + "\n")
        return
    names = short_names([run.name for run in runs])
    rows = [
        ["policy", found.policy.name],
        ["rows", f"{found.n:,}"],
        ["intervals", f"{100 * found.accuracy.level:g} %"],
        ["accuracy", with_interval(found.accuracy)],
        [f"minus {names[-1]} alone", with_interval(found.difference, "+.4f")],
        ["cost per row", with_interval(found.cost, ".6g")],
    ]
    rows += [
        [f"answered by {name}", with_interval(share)] for name, share in zip(names, found.shares, strict=True)
    ]
    sys.stdout.write("\n".join(aligned(rows)) + "\n")


@cascade.command()
@reports_errors
def run(  # noqa: PLR0913
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="plan.json, or its directory.")],
    tasks: Annotated[
        list[Path],
        typer.Argument(
            metavar="TASK.toml...",
            help="A task file for each model of the plan, or one with --model for each.",
        ),
    ],
    *,
    model: Annotated[
        list[str] | None, typer.Option(help="A model's name, once for each model of the plan, in its order.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A text; may be given several times.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Texts to classify; with --out, labelled rows. JSON Lines, CSV or Parquet."),
    ] = None,
    split: Annotated[
        str, typer.Option(help="With --out: rows of the first task: train, validation or test.")
    ] = "test",
    max_rows: Annotated[
        int | None, typer.Option(min=1, help="With --out: largest number of rows, from the beginning.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Evaluate into this directory; an interrupted run in it goes on.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Carry out a plan: classify texts, or evaluate labelled rows with --out."""
    found = CascadePlan.load(plan_file)
    if out is None and not text and file is None:
        raise ConfigurationError(
            "Expected --text or --file to classify, or --out to evaluate, got none of them."
        )
    if out is not None and text:
        raise ConfigurationError("Expected --text or --out, got both: texts have no answers to evaluate.")
    members = _members(found, tasks, model or [])
    task = members[0][0]
    with ExitStack() as opened:
        classifiers = []
        for own, name in members:
            # A plan's thresholds hold only for the scoring that they were chosen on.
            classifiers.append(Classifier.from_task(without_head(own), model=name))
            opened.callback(classifiers[-1].close)
        planned = found.cascade(classifiers)
        if planned not in classifiers:
            opened.callback(planned.close)
        if out is None:
            texts = all_texts(text or [], file, task)
            print_predictions(planned, texts, as_json=as_json, with_model=True)
            return
        source = labelled_source(task, file, split)
        rows = Dataset(source=source, labels=LabelSet.of(task.labels), limit=max_rows)
        cache = opened.enter_context(open_cache(default_cache()))
        with interruptible(at_once=planned.in_process) as stop, EvaluationDisplay() as display:
            result = BatchEvaluator(planned, cache=cache).evaluate(
                rows, out=out, about={"task": task.name}, on_progress=display, stop=stop
            )
    record_run(out, members, plan=found.to_record())
    print_result(
        result, task, baselines=baseline_lines(result, task, file=file, split=split), as_json=as_json
    )
    exit_as(result.metrics, {}, stop=stop)


def _members(
    found: CascadePlan, files: Sequence[Path], names: Sequence[str]
) -> list[tuple[Task, str | None]]:
    """Return the task of each plan member, and its model if given on the command line."""
    expected = len(found.models)
    if names and len(names) != expected:
        raise ConfigurationError(
            f"Expected --model once for each of the {expected} models of the plan, got {len(names)}."
        )
    shared = len(files) == 1 and bool(names)
    if len(files) != expected and not shared:
        raise ConfigurationError(
            f"Expected a task file for each of the {expected} models of the plan "
            f"({', '.join(model.name for model in found.models)}), got {len(files)}: add the others, or name the "
            "models with --model."
        )
    tasks = [Task.from_file(path, splits=()) for path in files]
    models: Sequence[str | None] = names or [None] * expected
    return list(zip(tasks * expected if shared else tasks, models, strict=True))


def _open_runs(paths: Sequence[Path], *, advice: str) -> list[RecordedRun]:
    """Read runs; warn about incomplete ones."""
    runs = [recorded_run(path) for path in paths]
    for path in paths:
        if (reason := unfinished(path)) is not None:
            sys.stderr.write(f"warning: {path} {reason}: {advice}.\n")
    return runs


def _write(found: CascadePlan, out: Path, *, seed: int) -> None:
    """Write the plan, its picture and its page."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"{out}: cannot be written ({error}): choose another directory.") from error
    found.save(out / "plan.json")
    goal = found.goal.replace("_", " ") + ("" if found.value is None else f" {found.value:g}")
    settings = [
        ("Goal", goal),
        ("Allowed loss (epsilon)", f"{found.certificate.epsilon:g}"),
        ("Allowed error (delta)", f"{found.certificate.delta:g}"),
        ("Seed", str(seed)),
        ("Confidence method", found.method),
        ("Key of equal confidences", str(found.key)),
    ]
    settings += [
        (one.name, f"cost {one.cost:g}, verifier {one.verifier_cost:g}, calibration {one.calibration}")
        for one in found.models
    ]
    write_trade(
        out,
        title=f"Cascade plan: {' to '.join(found.names)}",
        statements=found.describe(),
        frontier=[
            TradePoint(name=point.policy.name, cost=point.cost, performance=point.accuracy)
            for point in sorted(found.frontier, key=lambda point: point.cost)
        ],
        models=[_point(one, f"{name} alone") for one, name in zip(found.alone, found.names, strict=True)],
        chosen=_point(found.report, found.policy.name),
        settings=settings,
    )


def _point(priced: PricedPolicy, name: str) -> TradePoint:
    return TradePoint(
        name=name,
        cost=priced.cost.estimate,
        performance=priced.accuracy.estimate,
        cost_interval=priced.cost,
        performance_interval=priced.accuracy,
    )


def _table(found: CascadePlan) -> list[str]:
    """Return lines with the figures of the chosen policy and of every model alone."""
    names = found.names
    head = ["", "accuracy", f"minus {names[-1]} alone", "cost per row", *(f"by {name}" for name in names)]
    policies = [
        ("chosen", found.report),
        *((f"{name} alone", one) for name, one in zip(names, found.alone, strict=True)),
    ]
    lines = [
        [
            name,
            with_interval(one.accuracy),
            with_interval(one.difference, "+.4f"),
            with_interval(one.cost, ".6g"),
            *(f"{share.estimate:.1%}" for share in one.shares),
        ]
        for name, one in policies
    ]
    return aligned([head, *lines])
