"""Commands and their options; the work is done elsewhere and imported when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli._errors import reports_errors
from calibrant.cli._later import RootGroup
from calibrant.cli._options import ApiBase, AsJson, Context, ContextColumn, Options, parse_option

app = typer.Typer(
    name="calibrant",
    cls=RootGroup,
    help="Text classification with language models whose confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

TaskFile = Annotated[Path, typer.Argument(metavar="TASK.toml", help="The task file.")]
Model = Annotated[
    str | None,
    typer.Option(help="Answers instead of the task's own model; see `calibrant models`."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        import calibrant

        typer.echo(f"calibrant {calibrant.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Text classification with language models whose confidence can be trusted."""


@app.command()
@reports_errors
def optimize(  # noqa: PLR0913
    task: TaskFile,
    *,
    model: Model = None,
    reflection_model: Annotated[
        str | None,
        typer.Option(help="Model that rewrites the prompt from feedback: any name that --model takes."),
    ] = None,
    reflection_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="An option of the reflection model, such as api_base; several times."
        ),
    ] = None,
    proposer: Annotated[
        str | None,
        typer.Option(help="exemplar (needs no second model) or reflection; chosen by --reflection-model."),
    ] = None,
    max_metric_calls: Annotated[
        int, typer.Option(help="Rows the search may ask, at most; the test rows are apart.")
    ] = 600,
    minibatch_size: Annotated[
        int | None, typer.Option(help="Training rows a proposal is tried on first.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every choice of the search.")] = 0,
    prior_correction: Annotated[
        str | None,
        typer.Option(help="batch divides out every prompt's preference for labels; off does not."),
    ] = None,
    thresholds: Annotated[
        str | None, typer.Option(help="auto takes confidence thresholds from 80 training rows.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; an interrupted run in it is resumed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search for a better prompt and compare it with the first one on the test rows."""
    from calibrant.cli._optimize import run_optimize

    run_optimize(
        task,
        model=model,
        reflection_model=reflection_model,
        reflection_options=dict(map(parse_option, reflection_option or [])),
        proposer=proposer,
        max_metric_calls=max_metric_calls,
        minibatch_size=minibatch_size,
        seed=seed,
        prior_correction=prior_correction,
        thresholds=thresholds,
        out=out,
        as_json=as_json,
    )


@app.command()
@reports_errors
def classify(  # noqa: PLR0913
    task: TaskFile,
    *,
    text: Annotated[list[str] | None, typer.Option(help="A text; may be given several times.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="JSON Lines, CSV or Parquet with an input column, or .txt.")
    ] = None,
    prompt: Annotated[
        Path | None, typer.Option(help="File with the prompt to use, such as best_prompt.txt.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Run directory of a search: what it found is used.")
    ] = None,
    label_prior: Annotated[
        Path | None, typer.Option(help="File with that prompt's label-prior correction: label_prior.json.")
    ] = None,
    model: Model = None,
    context: Context = None,
    context_column: ContextColumn = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON Lines: one JSON object per text.")
    ] = False,
) -> None:
    """Classify texts and print label and confidence, each row as soon as it is known."""
    from calibrant.cli._classify import run_classify

    run_classify(
        task,
        texts=text or [],
        file=file,
        prompt=prompt,
        run=run,
        label_prior=label_prior,
        model=model,
        as_json=as_json,
        context=context,
        context_column=context_column,
    )


@app.command()
@reports_errors
def evaluate(  # noqa: PLR0913
    task: TaskFile,
    *,
    out: Annotated[Path, typer.Option(help="Output directory; an interrupted run in it goes on.")],
    prompt: Annotated[Path | None, typer.Option(help="File with the prompt to use.")] = None,
    run: Annotated[
        Path | None, typer.Option(help="Run directory of a search: what it found is used.")
    ] = None,
    label_prior: Annotated[
        Path | None, typer.Option(help="File with the prompt's label-prior correction.")
    ] = None,
    split: Annotated[str, typer.Option(help="Rows of the task: train, validation or test.")] = "test",
    file: Annotated[
        Path | None, typer.Option(help="Other labelled rows: JSON Lines, CSV or Parquet, however large.")
    ] = None,
    model: Model = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Calls in flight at most; by default 64, and 4 on an embedded model.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="Budget in US dollars; starts anew when a run goes on.")
    ] = None,
    max_rows: Annotated[int | None, typer.Option(help="Largest number of rows, from the beginning.")] = None,
    requests_per_minute: Annotated[float | None, typer.Option(help="Rate of calls.")] = None,
    tokens_per_minute: Annotated[float | None, typer.Option(help="Rate of tokens.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds a call may take.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds the whole run may take.")] = None,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=VALUE",
            help="Exit with 3 when the metric is below: accuracy (over all rows), accuracy_answered, "
            "answered, ok (shares of rows) or macro_f1; may be given several times.",
        ),
    ] = None,
    cache: Annotated[
        str | None, typer.Option(metavar="URL", help="Database of finished predictions; a file or URL.")
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Neither use nor fill the cache; the run still resumes.")
    ] = False,
    history: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Database of evaluation history the finished run is added to."),
    ] = None,
    account: Annotated[str, typer.Option(metavar="ID", help="Whose history.")] = "default",
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Runs to compare with; by default those of the same prompt and model."
        ),
    ] = None,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write the rows to predictions.parquet, too.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Where rows are answered: local, or ray for workers on a Ray cluster.")
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="A running Ray cluster; by default one is started on this machine."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Workers of --engine ray, with a CPU each; 2 by default.")
    ] = None,
    context: Context = None,
    context_column: ContextColumn = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a prompt on labelled rows: predictions, accuracy with intervals, calibration, cost."""
    from calibrant.cli._evaluate import EvaluateOptions, run_evaluate

    run_evaluate(
        task,
        EvaluateOptions(
            out=out,
            prompt=prompt,
            run=run,
            label_prior=label_prior,
            split=split,
            file=file,
            max_rows=max_rows,
            model=model,
            limits={
                "concurrency": concurrency,
                "max_cost": max_cost,
                "requests_per_minute": requests_per_minute,
                "tokens_per_minute": tokens_per_minute,
                "call_seconds": timeout,
                "run_seconds": deadline,
            },
            fail_under=tuple(fail_under or ()),
            cache=cache,
            no_cache=no_cache,
            history=history,
            account=account,
            profile=profile,
            parquet=parquet,
            engine=engine,
            ray_address=ray_address,
            workers=workers,
            context=context,
            context_column=context_column,
            as_json=as_json,
        ),
    )


@app.command()
@reports_errors
def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Directories of evaluations or searches; all against the first."
        ),
    ],
    *,
    out: Annotated[
        Path | None, typer.Option(help="The page; by default report.html in the first directory.")
    ] = None,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write one page about runs: numbers with intervals, charts, mistakes, comparisons; needs no network."""
    from calibrant.cli._report import run_report

    run_report(directories, out=out, show=show, as_json=as_json)


@app.command()
@reports_errors
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B [C ...]",
            help="Directories of evaluate or optimize, or files of predictions, on the same rows.",
        ),
    ],
    *,
    require_better: Annotated[
        bool,
        typer.Option(
            "--require-better",
            help="Exit with 3 unless the interval of every difference lies above zero.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs on the same rows with the first of them: difference, interval, exact test."""
    from calibrant.cli._compare import run_compare

    run_compare(runs, require_better=require_better, as_json=as_json)


@app.command()
@reports_errors
def calibrate(  # noqa: PLR0913  (keyword-only options)
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|PREDICTIONS", help="Directory of evaluate or optimize, or a file of predictions."
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(help="Directory for the calibrator, or with --head for head.json.")],
    target_accuracy: Annotated[
        float | None,
        typer.Option(help="Certify the lowest confidence above which answers are at least so accurate."),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Probability with which that certificate may be wrong.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(help="Of the halves: one is fitted, the other tested.")] = 0,
    head: Annotated[
        bool, typer.Option("--head", help="Learn a head from the run's distributions: head.json for [head].")
    ] = False,
    embeddings: Annotated[str | None, typer.Option(help="--head with model2vec or model2vec:NAME.")] = None,
    as_json: AsJson = False,
) -> None:
    """Learn from labelled predictions what their confidence is worth, and which to accept."""
    from calibrant.cli._calibrate import run_calibrate, run_learn_head

    if head or embeddings is not None:
        certified = target_accuracy is not None
        run_learn_head(
            predictions, out=out, certified=certified, seed=seed, embeddings=embeddings, as_json=as_json
        )
        return
    run_calibrate(
        predictions, out=out, target_accuracy=target_accuracy, delta=delta, seed=seed, as_json=as_json
    )


@app.command()
@reports_errors
def export(  # noqa: PLR0913  (keyword-only options)
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory of optimize, evaluate, batch or cascade run.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="The bundle's folder; not there yet, or empty.")],
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Directory of `calibrant calibrate`; by default the run's, if it was calibrated there."
        ),
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(metavar="TASK.toml", help="The task that was run; for runs without a task.json."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --task: the model that was asked instead.")] = None,
    texts: Annotated[
        bool,
        typer.Option(
            "--texts/--no-texts",
            help="Whether the training texts that prompts show as demonstrations are packed; without them, none are "
            "shown.",
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Pack a run into a bundle: one folder of JSON and text that calibrant.load opens."""
    from calibrant.cli._export import run_export

    run_export(run, out=out, calibration=calibration, task=task, model=model, texts=texts, as_json=as_json)


@app.command()
@reports_errors
def serve(  # noqa: PLR0913
    bundle: Annotated[Path, typer.Argument(metavar="DIR", help="The bundle; see `calibrant export`.")],
    *,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8890,
    api_key_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Environment variable with a key to want; may be given several times."
        ),
    ] = None,
    max_body: Annotated[int, typer.Option(help="Bytes of a request at most.")] = 2**20,
    max_texts: Annotated[int, typer.Option(help="Texts of a request at most.")] = 100,
    max_rows: Annotated[int, typer.Option(help="Texts under way at most; beyond it, 429.")] = 256,
    max_concurrency: Annotated[int, typer.Option(help="Calls of the model in flight at most.")] = 64,
    deadline: Annotated[float, typer.Option(help="Seconds a request may take.")] = 30.0,
    notice: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds between SIGTERM and the last request taken.")
    ] = 1.0,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Log texts and labels, too.")] = False,
    option: Options = None,
    history: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Database of evaluation history that answers are added to."),
    ] = None,
    account: Annotated[str, typer.Option(metavar="ID", help="Whose history.")] = "default",
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Runs and answers to compare with; by default those of the same prompt and model.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the address, when ready.")
    ] = False,
) -> None:
    """Answer POST /v1/classify with a bundle, and /healthz, /readyz, /metrics, until Ctrl-C or SIGTERM."""
    from calibrant.cli._serve import ServeOptions, run_serve

    run_serve(
        bundle,
        ServeOptions(
            host=host,
            port=port,
            api_key_env=tuple(api_key_env or ()),
            max_body=max_body,
            max_texts=max_texts,
            max_rows=max_rows,
            max_concurrency=max_concurrency,
            deadline=deadline,
            notice=notice,
            log_texts=log_texts,
            option=tuple(option or ()),
            history=history,
            account=account,
            profile=profile,
            as_json=as_json,
        ),
    )


@app.command()
@reports_errors
def doctor(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name; see `calibrant models`.")],
    *,
    api_base: ApiBase = None,
    option: Options = None,
    space: Annotated[
        str | None, typer.Option(help="masked or raw: what the setup takes the log-probabilities for.")
    ] = None,
    as_json: AsJson = False,
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Store nothing that later commands would consult.")
    ] = False,
) -> None:
    """Ask a model a few cheap questions, and say what its log-probabilities mean."""
    from calibrant.cli._doctor import run_doctor

    run_doctor(model, api_base=api_base, options=option or [], space=space, as_json=as_json, save=not no_save)


@app.command()
@reports_errors
def models(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array: an object per model and per form of name.")
    ] = False,
) -> None:
    """List the models that can be named, and what is missing for each."""
    from calibrant.cli._models import run_models

    run_models(as_json=as_json)


def main() -> None:
    """Run the command line."""
    app()
