"""Commands and their options; the code behind a command is imported when the command runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final

import typer

from calibrant.cli._options import argument, command

HELP: Final = "Text classification with language models whose confidence can be trusted."

app = typer.Typer(
    name="calibrant",
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@dataclass(frozen=True, kw_only=True)
class PromptedOptions:
    """Options of commands that open a task's classifier under a prompt.

    Attributes
    ----------
    run
        Directory of optimize: use its prompt, and its head if it has one (see `calibrant calibrate --head`).
    label_prior
        File with the label prior of --prompt (labels that the prompt alone favours), such as label_prior.json.
    context : TEXT
        Text that answers must agree with, for a cascade that verifies answers.
    context_column : NAME
        Column with the context of each row; --context is used for rows without one.
    """

    prompt: Path | None = None
    run: Path | None = None
    label_prior: Path | None = None
    model: str | None = None
    api_base: str | None = None
    context: str | None = None
    context_column: str | None = None


@command(app, "calibrant.cli._init:init", example="calibrant init rows.csv --out mine")
class Init:
    """Write a task file from a file of labelled rows, in which columns and labels are found.

    Attributes
    ----------
    data : DATA
        The rows: CSV, JSON Lines, Parquet or Excel.
    text_column : NAME
        Column of the texts; by default the one with long, different texts.
    label_column : NAME
        Column of the answers; by default the one with few values that are repeated.
    out
        Directory for task.toml; by default named like the data.
    model
        Model for the task file; by default the first that can be asked now, else the embedded one.
    api_base
        Address of the model's server, for the task file.
    """

    data: Path = argument()
    text_column: str | None = None
    label_column: str | None = None
    out: Path | None = None
    model: str | None = None
    api_base: str | None = None
    as_json: bool = False


@command(
    app,
    "calibrant.cli._optimize:optimize",
    example="calibrant optimize mine/task.toml --out mine/run",
    is_grouped=True,
)
class Optimize:
    """Search for a better prompt for a task, and compare it with the task's own on the test rows.

    Attributes
    ----------
    reflection_model
        Model that rewrites the prompt from feedback: any name that --model takes.
    reflection_option : KEY=VALUE
        An option of the reflection model, such as api_base; may be given several times.
    proposer
        How prompts are changed: exemplar adds training rows; reflection, the default with --reflection-model, has that
        model rewrite them.
    max_metric_calls
        Most rows the search may ask the model about, each prompt counted; test rows come on top.
    minibatch_size
        Training rows that a new prompt is tried on first; by default chosen for the proposer.
    seed
        Random seed of the search.
    prior_correction
        batch: remove each prompt's own preference for labels; off: leave it in. By default as in the task.
    thresholds
        auto: choose confidence thresholds from 80 training rows. By default as in the task.
    max_cost
        Budget in US dollars, reflection and test rows included; counted anew when a run is resumed.
    deadline
        Seconds the command may take.
    no_embeddings
        Learn the head from probabilities and words alone; by default it also reads vectors of the texts by the embedded
        model where that is installed, or by the one that the task names in [head].
    target_accuracy
        Accuracy, from 0 to 1, that the test rows certify for accepted answers.
    delta
        Probability that the certificate is wrong.
    looks
        Certificates planned for these test rows, such as one for each of several models; each gets a part of --delta.
    out
        Run directory; an interrupted run in it is resumed. By default runs/ and the task's name.
    """

    is_resumable: ClassVar[bool] = True

    task: Path = argument()
    model: str | None = None
    api_base: str | None = None
    reflection_model: str | None = None
    reflection_option: list[str] | None = None
    proposer: str | None = None
    max_metric_calls: int = 600
    minibatch_size: int | None = None
    seed: int = 0
    prior_correction: str | None = None
    thresholds: str | None = None
    max_cost: float | None = None
    deadline: float | None = None
    no_embeddings: bool = False
    target_accuracy: float = 0.9
    delta: float = 0.1
    looks: int = 1
    out: Path | None = None
    track: str | None = None
    as_json: bool = False


@command(
    app,
    "calibrant.cli._classify:classify",
    example="calibrant classify mine/run --text 'The zip broke on day one.'",
)
class Classify(PromptedOptions):
    """Classify texts, and print the label and confidence of each as soon as they are known.

    Attributes
    ----------
    task : TASK|BUNDLE|RUN
        The task file, a bundle, or the directory of a run.
    file
        Texts: CSV, JSON Lines, Parquet or Excel, or .txt with one a line.
    as_json
        Print JSON Lines: one JSON object per text.
    """

    task: Path = argument()
    text: list[str] | None = None
    file: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, kw_only=True)
class RunOptions(PromptedOptions):
    """Options of commands that ask about many rows, into a directory that is resumed.

    Attributes
    ----------
    out
        Output directory; an interrupted run in it is resumed.
    concurrency
        Most calls at the same time; by default 64, and 4 on an embedded model.
    max_cost
        Budget in US dollars; counted anew when a run is resumed.
    max_rows
        Take only this many rows, from the first one on.
    requests_per_minute
        Most calls in a minute.
    tokens_per_minute
        Most tokens in a minute.
    timeout
        Seconds a call may take.
    deadline
        Seconds the whole run may take.
    cache : URL
        Database of answers paid for before, a file or URL; by default $CALIBRANT_CACHE, else in your cache folder.
    no_cache
        Neither use nor fill that database; the run can still be resumed.
    engine
        Where rows are answered: local, or ray for workers on a Ray cluster.
    ray_address
        A running Ray cluster; by default one is started on this machine.
    workers
        Workers of --engine ray, with a CPU each; 2 by default.
    """

    out: Path
    concurrency: int | None = None
    max_cost: float | None = None
    max_rows: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    timeout: float | None = None
    deadline: float | None = None
    cache: str | None = None
    no_cache: bool = False
    engine: str = "local"
    ray_address: str | None = None
    workers: int | None = None
    as_json: bool = False


@command(
    app,
    "calibrant.cli._label:label",
    example="calibrant label mine/run NEW.csv --out mine/labelled",
    is_grouped=True,
)
class Label(RunOptions):
    """Label a file of texts: write its rows with label, confidence, decision and cost.

    Attributes
    ----------
    source : BUNDLE|TASK|RUN
        A bundle, a task file, or the directory of a run.
    data : DATA
        The rows: CSV, JSON Lines, Parquet or Excel, however large.
    out
        Directory for the labelled file; an interrupted run in it is resumed.
    format
        csv, tsv, jsonl, parquet or xlsx; by default that of the data.
    text_column : NAME
        Column of the texts; by default the task's, or else `input`.
    distribution
        Also write the probabilities of all labels.
    accept_suggested
        If no threshold is certified, accept answers from the suggested one on, without a guarantee.
    accept_drift
        Accept answers by the rule even where labels, confidence, topics or models differ from those of the bundle's
        labelled rows.
    watch_drift
        Always show how labels, confidence and topics differ from the bundle's labelled rows; fail if it has none.
    engine
        Where rows are answered: local, ray for workers on a Ray cluster, or batch for the provider's batch interface.
    """

    source: Path = argument()
    data: Path = argument()
    format: str | None = None
    text_column: str | None = None
    distribution: bool = False
    accept_suggested: bool = False
    accept_drift: bool = False
    watch_drift: bool = False


@command(
    app,
    "calibrant.cli._evaluate:evaluate",
    example="calibrant evaluate mine/task.toml --out mine/check",
    is_grouped=True,
)
class Evaluate(RunOptions):
    """Ask about labelled rows, and print accuracy with intervals, calibration and cost; write the predictions.

    Attributes
    ----------
    task : TASK|BUNDLE|RUN
        The task file; or, with --file, a bundle or the directory of a run.
    split
        Rows of the task: train, validation or test, which is the default.
    file
        Other labelled rows: CSV, JSON Lines, Parquet or Excel, however large.
    fail_under : METRIC=VALUE
        Exit with 3 when the metric is below: accuracy (over all rows), accuracy_answered, answered, ok (shares of
        rows) or macro_f1; may be given several times.
    parquet
        Also write the predictions to predictions.parquet.
    """

    task: Path = argument()
    split: str | None = None
    file: Path | None = None
    fail_under: list[str] | None = None
    history: str | None = None
    account: str = "default"
    profile: str | None = None
    parquet: bool = False
    track: str | None = None


@command(app, "calibrant.cli._finished:report", example="calibrant report mine/run --open")
class Report:
    """Write one HTML page about runs: numbers with intervals, charts, mistakes, comparisons.

    Attributes
    ----------
    directories : DIR...
        Directories of evaluate or optimize; the first is compared with the others.
    out
        File of the page; by default report.html in the first directory.
    show
        Open the page in the browser.
    """

    directories: list[Path] = argument()
    out: Path | None = None
    show: Annotated[bool, typer.Option("--open/--no-open")] = False
    track: str | None = None
    as_json: bool = False


@command(app, "calibrant.cli._compare:compare", example="calibrant compare mine/check mine/other")
class Compare:
    """Compare the accuracy of runs with the first, on the same rows: difference, interval, exact test.

    Attributes
    ----------
    runs : A B [C ...]
        Directories of evaluate or optimize, or files of predictions, on the same rows.
    require_better
        Exit with 3 unless every run is better than the first: its difference's 95 % interval lies above 0. For one
        look, at a number of rows that was fixed before.
    gate
        Exit with 3 unless every run is shown to be better than the first, by a test that may be looked at after every
        row: a run may be unfinished, and be looked at again when it has more rows.
    no_worse
        Exit with 3 if a run is shown to be worse than the first, by the same test with sides swapped; one that is
        undecided passes, and is told with the rows that would decide.
    least_gain
        For --gate: gain in accuracy that must be shown, from -0.2 to 0.2; -0.02 lets a run lose up to 2 points.
    delta
        Probability of a wrong decision, from 0 to 1: by default 0.1 for --gate, 0.05 for --no-worse.
    summary
        Append a summary in Markdown to this file, such as $GITHUB_STEP_SUMMARY: the runs, their difference, what the
        gate says, and rows that changed.
    anchors
        Instead ask so many rows of one run anew, such as 30, with its prompt, model and settings, and exit with 3 if
        the model behind the name answers otherwise than it did. It is called for each row, and no cache is used.
    out
        For --anchors: directory for the answers, anchors.json.
    task : TASK.toml
        For --anchors: the task that was run; for runs without a task.json.
    api_base : URL
        For --anchors: address of the model's server, instead of the run's.
    """

    runs: list[Path] = argument()
    require_better: bool = False
    gate: bool = False
    no_worse: bool = False
    least_gain: float = 0.0
    delta: float | None = None
    summary: Path | None = None
    anchors: int | None = None
    out: Path | None = None
    task: Path | None = None
    api_base: str | None = None
    as_json: bool = False


@command(
    app,
    "calibrant.cli._finished:calibrate",
    example="calibrant calibrate mine/run --target-accuracy 0.9 --out mine/run",
)
class Calibrate:
    """Learn from a run on labelled rows how often a confidence is right, and which answers to accept.

    Attributes
    ----------
    predictions : RUN|PREDICTIONS
        Directory of evaluate or optimize, or a file of predictions.
    out
        Directory for the files that correct and judge confidences, or with --head for head.json.
    target_accuracy
        Accuracy, from 0 to 1, that accepted answers must reach: the lowest confidence that does is certified. A
        certificate already in --out is replaced only by another one.
    fresh_test : FILE
        With --target-accuracy: labelled rows that the run has not seen. They are answered into --out, which label takes
        afterwards instead of the run, and certified.
    delta
        Probability that the certificate of --target-accuracy is wrong; earlier ones of the same rows add theirs.
    looks
        Certificates planned for these rows, such as one for each of several models; each gets a part of --delta.
    seed
        Random seed of the two halves of the rows: one is fitted, the other tested.
    head
        Instead learn a head, a classifier on the model's label probabilities; a task names its head.json in [head].
    embeddings
        With --head: embedding model that reads the texts, such as openai/text-embedding-3-small or model2vec:NAME; by
        default the embedded one, where it is installed.
    no_embeddings
        With --head: learn from probabilities and words alone.
    """

    predictions: Path = argument()
    out: Path
    target_accuracy: float | None = None
    fresh_test: Path | None = None
    delta: float = 0.05
    looks: int = 1
    seed: int = 0
    head: bool = False
    embeddings: str | None = None
    no_embeddings: bool = False
    as_json: bool = False


@dataclass(frozen=True, kw_only=True)
class PromiseOptions:
    """Options of commands that make a promise on the rows of a file.

    Attributes
    ----------
    target
        Share of right answers that is promised, above 0 and below 1.
    budget
        Most labels to ask for.
    delta
        Probability that the promise is wrong.
    metric
        accuracy, of the accepted rows; or output, of all rows if the others get the label asked for.
    predicted : LABEL
        Only the rows with this predicted label: the promise is about its precision.
    recall : LABEL
        The promise is about the recall of this label: of all rows that have it, the share among those flagged.
    """

    target: float
    budget: int
    delta: float = 0.1
    metric: str = "accuracy"
    predicted: str | None = None
    recall: str | None = None


@command(
    app,
    "calibrant.cli._certify:certify",
    example="calibrant certify mine/labelled --target 0.95 --budget 200 --ask answers.csv --out mine/certified",
)
class Certify(PromiseOptions):
    """Ask for labels of a labelled file, one at a time, until its most confident rows keep a promise.

    Attributes
    ----------
    predictions : RUN|PREDICTIONS
        Directory of label, or a file of predictions with label and confidence.
    ask : FILE.csv|TASKS.json|model:NAME|COMMAND
        Who gives labels: a person in a file, which is written and read again (in .json as Label Studio tasks); a larger
        model under the same prompt; or a command that reads a text and prints its label.
    out
        Directory for certificate.json, decisions.csv and the answers of a model or a command.
    """

    predictions: Path = argument()
    ask: str
    out: Path
    api_base: str | None = None
    as_json: bool = False


@command(app, "calibrant.cli._certify:review", "review", example="calibrant review mine/labelled --certify")
class ReviewOptions(PromiseOptions):
    """Decide on rows in the browser: those to review, likely mislabelled, escalated, or asked for by a promise.

    Attributes
    ----------
    source : RUN|DIR|FILE
        Directory of label, evaluate or optimize, or a file of predictions.
    out
        Directory for answers.csv, which certify and estimate read, and reviewed.csv; by default that of the source.
    certify
        Ask for labels until the most confident rows keep a promise, as certify does, and write its files.
    port
        Port of the page at 127.0.0.1; by default a free one.
    show
        Open the page in the browser.
    """

    source: Path = argument()
    out: Path | None = None
    certify: bool = False
    target: float = 0.9
    budget: int = 200
    port: Annotated[int, typer.Option(min=0, max=65535)] = 0
    show: Annotated[bool, typer.Option("--open/--no-open")] = True


@command(app, "calibrant.cli._finished:distill", example="calibrant distill mine/labelled --out mine/student")
class Distill:
    """Learn a student from a run, which answers the easy texts without the model, and measure what it may keep.

    Attributes
    ----------
    run : RUN|PREDICTIONS
        Directory of label, evaluate or batch, or a file of predictions with input and label.
    out
        Folder for the student, a run that label, serve, export and cascade plan take; it must be new or empty.
    embeddings
        Embedding model that gives it vectors of the texts beside their words, such as model2vec:NAME.
    """

    run: Path = argument()
    out: Path
    embeddings: str | None = None
    as_json: bool = False


@command(
    app,
    "calibrant.cli._certify:estimate",
    "estimate",
    example="calibrant estimate mine/labelled --budget 100 --ask answers.csv --out mine/estimated",
)
class EstimateOptions:
    """Estimate shares of labels, accuracy and macro F1 of a labelled file, from true labels of some of its rows.

    Attributes
    ----------
    predictions : RUN|PREDICTIONS
        Directory of label, or a file of predictions with label and, if possible, confidence or probabilities.
    budget
        Rows to label, drawn at random.
    ask : FILE.csv|TASKS.json|model:NAME|COMMAND
        Who gives labels: a person in a file, which is written and read again, and which certify reads, too; a larger
        model under the same prompt; or a command that reads a text and prints its label.
    out
        Directory for estimate.json and the answers of a model or a command.
    against : RUN|PREDICTIONS
        Other predictions of the same rows: estimate how much more often the first ones are right.
    """

    predictions: Path = argument()
    budget: int
    ask: str
    out: Path
    against: Path | None = None
    api_base: str | None = None
    as_json: bool = False


@command(app, "calibrant.cli._finished:export", example="calibrant export mine/run --out bundle")
class Export:
    """Pack a run into a bundle, a folder that label, classify, serve and calibrant.load open.

    Attributes
    ----------
    run : RUN
        Directory of optimize, evaluate, batch or cascade run.
    out
        Folder for the bundle; it must be new or empty.
    calibration
        Directory of `calibrant calibrate`; by default the run's own, if it holds a calibration.
    task : TASK.toml
        The task that was run; for runs without a task.json.
    model
        With --task: the model that was asked instead.
    api_base
        With --task: the address that was asked instead.
    texts
        Pack the training texts that the prompt shows as examples; without them, it shows none.
    """

    run: Path = argument()
    out: Path
    calibration: Path | None = None
    task: Path | None = None
    model: str | None = None
    api_base: str | None = None
    texts: bool = True
    as_json: bool = False


@command(app, "calibrant.cli._serve:serve_agents", name="mcp", example="calibrant mcp bundle")
class Mcp:
    """Serve a bundle to agents by the Model Context Protocol: tools that classify texts.

    Attributes
    ----------
    source : BUNDLE|RUN|TASK
        A bundle of `calibrant export`, the directory of a run, or a task file (answers carry no decision).
    port
        Answer over HTTP at this port of 127.0.0.1 instead of over standard input and output.
    max_concurrency
        Most calls of the model at the same time.
    accept_suggested
        If no threshold is certified, accept answers from the suggested one on, without a guarantee.
    accept_drift
        Also accept answers of a model, or a version of it, that answered no row of the certificate.
    """

    source: Path = argument()
    port: Annotated[int | None, typer.Option(min=1, max=65535)] = None
    max_concurrency: int = 64
    accept_suggested: bool = False
    accept_drift: bool = False
    option: list[str] | None = None


@command(app, "calibrant.cli._serve:serve", example="calibrant serve bundle --port 8890")
class Serve:
    """Serve a bundle over HTTP: POST /v1/classify, /v1/systemone, /v1/decisions; GET /healthz, /readyz, /metrics.

    Attributes
    ----------
    source : BUNDLE|RUN|TASK
        A bundle of `calibrant export`, the directory of a run, or a task file (answers carry no decision).
    model : MODEL
        Instead of a bundle, a model alone, which answers typed questions; see `calibrant models`.
    api_base : URL
        With --model: address of the model's server.
    only_task
        Refuse typed questions whose options are not the task's labels.
    host
        Address to listen on; 0.0.0.0 lets other machines in.
    port
        Port to listen on; 0 takes a free one.
    api_key_env : NAME
        Environment variable with an API key that clients must send; may be given several times.
    max_body
        Most bytes in a request.
    max_texts
        Most texts or questions in a request.
    max_rows
        Most texts under way at once; further requests get status 429.
    max_concurrency
        Most calls of the model at the same time.
    deadline
        Seconds a request may take.
    notice
        Seconds after SIGTERM in which new requests are still accepted.
    log_texts
        Also log texts and labels.
    accept_suggested
        If no threshold is certified, accept answers from the suggested one on, without a guarantee.
    accept_drift
        Also accept answers of a model, or a version of it, that answered no row of the certificate.
    as_json
        Print one JSON object, with the address, when ready.
    """

    source: Path | None = argument(default=None)
    model: str | None = None
    api_base: str | None = None
    only_task: bool = False
    host: str = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8890
    api_key_env: list[str] | None = None
    max_body: int = 2**20
    max_texts: int = 128
    max_rows: int = 256
    max_concurrency: int = 64
    deadline: float = 30.0
    notice: Annotated[float, typer.Option(min=0, max=3600)] = 1.0
    log_texts: bool = False
    accept_suggested: bool = False
    accept_drift: bool = False
    option: list[str] | None = None
    history: str | None = None
    account: str = "default"
    profile: str | None = None
    as_json: bool = False


@command(
    app,
    "calibrant.cli._doctor:doctor",
    example="calibrant doctor openai/NAME --api-base http://127.0.0.1:8000/v1",
)
class Doctor:
    """Ask a model a few cheap questions, and print whether its confidence can be used, and how.

    Attributes
    ----------
    model : MODEL
        The model's name; see `calibrant models`.
    api_base
        Address of the model's server.
    space
        masked or raw: how your setup reads the log-probabilities.
    no_save
        Do not store the result, which later commands would use.
    """

    model: str = argument()
    api_base: str | None = None
    option: list[str] | None = None
    space: str | None = None
    as_json: bool = False
    no_save: bool = False


@command(app, "calibrant.cli._doctor:models", example="calibrant models")
class Models:
    """List the names that --model takes, and what is missing to use each.

    Attributes
    ----------
    as_json
        Print one JSON array: an object per model and per form of name.
    """

    as_json: bool = False
