"""``calibrant cascade``: plan from recorded runs, replay a policy on them, carry a plan out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli._errors import reports_errors
from calibrant.cli._options import AsJson

cascade = typer.Typer(
    name="cascade",
    no_args_is_help=True,
    add_completion=False,
)

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
        float | None, typer.Option(help="Of an answer of the first model; by default as recorded.")
    ] = None,
    large_cost: Annotated[
        float | None, typer.Option(help="Of the last model, in the same unit; by default as recorded.")
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
    from calibrant.cli._plan import PlanOptions, run_plan

    run_plan(
        predictions,
        PlanOptions(
            out=out,
            small_cost=small_cost,
            large_cost=large_cost,
            between_costs=tuple(between_cost or ()),
            verifier_costs=tuple(verifier_cost or ()),
            epsilon=epsilon,
            delta=delta,
            target_accuracy=target_accuracy,
            budget=budget,
            certify_on=certify_on,
            method=method,
            key=key,
            seed=seed,
            require_certified=require_certified,
            as_json=as_json,
        ),
    )


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
    from calibrant.cli._plan import run_replay

    run_replay(
        paths,
        thresholds=threshold or [],
        costs=cost,
        verifier_costs=verifier_cost or [],
        seed=seed,
        as_json=as_json,
    )


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
    from calibrant.cli._plan_run import RunOptions, run_planned

    run_planned(
        plan_file,
        tasks,
        RunOptions(
            models=tuple(model or ()),
            texts=tuple(text or ()),
            file=file,
            split=split,
            max_rows=max_rows,
            out=out,
            as_json=as_json,
        ),
    )
