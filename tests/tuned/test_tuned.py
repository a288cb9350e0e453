"""Tests of bundles: a bundle predicts what its run predicted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import calibrant
from bundle_runs import fresh, lasting, run
from calibrant.calibration import IsotonicCalibrator, LabelPriorCorrection, load_calibrator
from calibrant.cascade import Cascade
from calibrant.core import ConfigurationError, DataError, Example, Outcome, Prediction, StateError
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.testing import FakeClient
from calibrant.tuned import Tuned
from command_line import prediction_rows, spelled
from embedded import IS_MISSING
from fault_server import FaultServer
from saved_prediction import to_record

WriteTask = Callable[..., Path]
Opened = dict[str, list[FakeClient]]
Rows = Sequence[Mapping[str, Any]]

KEY = "sk-0123456789abcdef"
MODEL = """
[model]
name = "openai/animal"
api_base = "{base}"
options = {{ api_key = "{key}", seed = 3 }}
"""
ROWS = [
    {"input": f"{n} {'a cat' if n % 3 else 'who knows'} {spelled(n)} {spelled(n)}", "answer": "cat"}
    for n in range(60)
]
TEXTS = [row["input"] for row in ROWS]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """Return a server that wants a key."""
    with FaultServer(["cat", "dog"], api_key=KEY) as found:
        yield found


@pytest.fixture
def task(write_task: WriteTask, server: FaultServer) -> Path:
    """Return a task that asks the server."""
    return write_task(extra=MODEL.format(base=server.api_base, key=KEY), test=ROWS)


@pytest.fixture
def evaluated(task: Path, tmp_path: Path) -> Path:
    """Return the directory of its run."""
    run("evaluate", task, "--out", tmp_path / "run", "--no-cache")
    return tmp_path / "run"


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of an evaluation."""
    return list(map(lasting, prediction_rows(directory)))


def answers(classifier: Classifier, rows: Rows) -> list[dict[str, Any]]:
    """Return the rows as an evaluation of the classifier would write them."""
    examples = [Example(input=row["input"], answer=row["answer"]) for row in rows]
    with closing(classifier), TemporaryDirectory() as folder:
        BatchEvaluator(classifier).evaluate(examples, out=Path(folder) / "run")
        return lines(Path(folder) / "run")


# --- the same predictions -----------------------------------------------------------------------


def test_a_fresh_process_repeats_the_run(evaluated: Path, tmp_path: Path) -> None:
    """A loaded bundle gives the run's labels, distributions and confidences in a fresh process."""
    run("export", evaluated, "--out", tmp_path / "bundle")
    assert fresh(tmp_path / "bundle", ROWS, {"api_key": KEY}) == lines(evaluated)


def test_a_search_exports_correction_and_template(
    write_task: WriteTask, server: FaultServer, tmp_path: Path
) -> None:
    """A bundle of a search, or of its evaluation, holds the best prompt, its template and label prior."""
    model = MODEL.format(base=server.api_base, key=KEY)
    train = [
        {"input": f"train {n} {'cat' if n % 3 else 'so'}", "answer": "cat" if n % 3 else "dog"}
        for n in range(30)
    ]
    task = write_task(
        toml='name = "animals"\nlabels = ["cat", "dog"]\nfield = "category"\nprompt = "Which animal?"\n'
        'user_template = "Text: {input}"\n[data]\ntrain = "train.jsonl"\nvalidation = "validation.jsonl"\n'
        'test = "test.jsonl"\n',
        extra=model,
        train=train,
        test=ROWS,
    )
    search, evaluation = tmp_path / "search", tmp_path / "evaluation"
    run("optimize", task, "--out", search, "--prior-correction", "batch", "--minibatch-size", 4)
    without_head(search)
    run("evaluate", task, "--run", search, "--out", evaluation, "--no-cache")
    (tmp_path / "train.jsonl").unlink()
    task.unlink()
    run("export", search, "--out", tmp_path / "one")
    run("export", evaluation, "--out", tmp_path / "two")
    options = {"api_key": KEY}
    expected = lines(evaluation)
    assert answers(calibrant.load(tmp_path / "one", options=options), ROWS) == expected
    assert answers(calibrant.load(tmp_path / "two", options=options), ROWS) == expected
    searched = [row for row in lines(search) if row["prompt"] == "best"]
    with calibrant.load(tmp_path / "one", options=options) as classifier:
        found_again = classifier.classify_many(TEXTS)
    for found, row in zip(found_again, searched, strict=True):
        assert found.distribution is not None
        probabilities = dict(zip(found.distribution.labels, found.distribution.probabilities, strict=True))
        told = (found.label, found.confidence, probabilities)
        assert told == (row["label"], row["confidence"], row["probabilities"])
    one, two = Tuned.load(tmp_path / "one"), Tuned.load(tmp_path / "two")
    assert isinstance(one.prior_correction, LabelPriorCorrection)
    assert one.user_template == two.user_template == "Text: {input}"
    assert {figure.name for figure in one.figures} >= {"test accuracy, this prompt"}
    assert {figure.name for figure in two.figures} >= {"accuracy, all rows", "macro F1"}
    (evaluation / "label_prior.json").unlink()
    with pytest.raises(
        StateError, match=r"expected label_prior\.json, as the run's predictions are corrected"
    ):
        Tuned.from_run(evaluation).save(tmp_path / "three")


def without_head(search: Path) -> None:
    """Change a search's result into one without a head."""
    (search / "head.json").unlink()
    record = json.loads((search / "result.json").read_text())
    record["final"] = None
    (search / "result.json").write_text(json.dumps(record))
    predictions = search / "predictions.jsonl"
    rows = predictions.read_text().splitlines(keepends=True)
    predictions.write_text("".join(row for row in rows if '"prompt": "final"' not in row))


def record_of(found: Prediction) -> dict[str, Any]:
    """Return a prediction as a search writes it to a file."""
    record: dict[str, Any] = json.loads(json.dumps(to_record(found)))
    return record


SEVERAL = """
[cascade]
file = "looper.yaml"
[[cascade.models]]
name = "small"
prompt = "Small: which animal?"
cost = 0
[[cascade.models]]
name = "large"
"""
LOOPER = "algorithm: {type: confidence, confidence: {confidence_method: label_probability, threshold: 0.9}}\n"


@pytest.mark.parametrize("prompt", [False, True])
def test_a_cascade_is_exported_with_its_yaml(
    write_task: WriteTask, opened: Opened, tmp_path: Path, prompt: bool
) -> None:
    """The bundle repeats the run's steps, also where one prompt replaced those of all models."""
    task = write_task(extra=SEVERAL)
    (tmp_path / "looper.yaml").write_text(LOOPER)
    (tmp_path / "other.txt").write_text("Another prompt.")
    rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    replaced = ("--prompt", tmp_path / "other.txt") if prompt else ()
    run("evaluate", task, "--out", tmp_path / "run", "--no-cache", *replaced)
    (tmp_path / "looper.yaml").unlink()
    bundle = Tuned.from_run(tmp_path / "run").save(tmp_path / "bundle")
    opened.clear()
    classifier = calibrant.load(tmp_path / "bundle")
    assert isinstance(classifier, Cascade)
    assert answers(classifier, rows) == lines(tmp_path / "run")
    asked = {request.messages[0]["content"] for request in opened["small"][0].requests}
    assert asked == ({"Another prompt."} if prompt else {"Small: which animal?"})
    assert all(fake.closed for fakes in opened.values() for fake in fakes)
    assert bundle.prompt == ("Another prompt." if prompt else "Which animal?")


ROUTING = """
[routing]
routing = "ema"
state = "router.sqlite"
[[routing.providers]]
name = "openai/one"
alias = "first"
api_base = "{base}"
options = {{ api_key = "{key}" }}
[[routing.providers]]
name = "openai/two"
api_base = "{base}"
options = {{ api_key = "{key}", extra_headers = {{ x-team = "{key}" }} }}
"""


def test_providers_are_exported_without_keys(
    write_task: WriteTask, server: FaultServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bundle with providers repeats the run; `load` logs that options and router state were left out.

    The first answer of each provider has paid for the question that shows how it is asked.
    """
    task = write_task(extra=ROUTING.format(key=KEY, base=server.api_base), test=ROWS[:5])
    run("evaluate", task, "--out", tmp_path / "run", "--no-cache")
    bundle = Tuned.from_run(tmp_path / "run").save(tmp_path / "bundle")
    (own,) = bundle.tasks
    assert own.left_out == {"first": ("api_key",), "openai/two": ("api_key", "extra_headers")}
    assert own.state_left_out
    with pytest.raises(ConfigurationError, match="extra_headers of openai/two, which a bundle does not hold"):
        calibrant.load(tmp_path / "bundle")
    with pytest.raises(ConfigurationError, match="Expected options by model"):
        calibrant.load(tmp_path / "bundle", options={"api_key": KEY})
    headers = {"x-team": "other"}
    options = {"first": {"api_key": KEY}, "openai/two": {"api_key": KEY, "extra_headers": headers}}
    found = answers(calibrant.load(tmp_path / "bundle", options=options), ROWS[:5])
    before = lines(tmp_path / "run")
    tokens = [
        sum(row.pop("prompt_tokens") + row.pop("completion_tokens") for row in rows)
        for rows in (found, before)
    ]
    assert found == before
    assert tokens[0] < tokens[1]
    assert "hand it in as router_state" in caplog.text
    caplog.clear()
    state = tmp_path / "elsewhere.sqlite"
    with calibrant.load(tmp_path / "bundle", options=options, router_state=str(state)) as classifier:
        assert classifier.classify("a cat").label == "cat"
    assert state.exists()
    assert not caplog.records


@pytest.mark.parametrize(("epsilon", "asked"), [(0.2, {"small", "large"}), (0.0001, {"large"})])
def test_a_plan_is_exported_with_its_models(
    export_plan: Callable[..., Tuned], opened: Opened, tmp_path: Path, epsilon: float, asked: set[str]
) -> None:
    """The bundle repeats `cascade run`, also where the last model alone is called."""
    rows = [
        {"input": f"{n} {'meow' if n % 4 else 'woof'}", "answer": "cat" if n % 4 else "dog"}
        for n in range(200)
    ]
    bundle = export_plan("small", rows, "--epsilon", epsilon)
    assert bundle.plan is not None
    assert [own.task.model.name for own in bundle.tasks] == ["small", "large"]
    assert answers(calibrant.load(tmp_path / "bundle"), rows) == lines(tmp_path / "run")
    assert {name for name, fakes in opened.items() if any(fake.requests for fake in fakes)} == asked
    with pytest.raises(ConfigurationError, match="Expected no model for a bundle that asks several"):
        calibrant.load(tmp_path / "bundle", model="small")
    assert all(fake.closed for fakes in opened.values() for fake in fakes)


@pytest.mark.real_model
@IS_MISSING
@pytest.mark.timeout(300)
def test_the_embedded_model_repeats_its_run(write_task: WriteTask, tmp_path: Path) -> None:
    """A fresh process scores labels as the run did."""
    rows = [{"input": f"I heard a {sound}.", "answer": "cat"} for sound in ("meow", "bark", "purr", "growl")]
    run("evaluate", write_task(test=rows), "--out", tmp_path / "run", "--no-cache")
    run("export", tmp_path / "run", "--out", tmp_path / "bundle")
    assert fresh(tmp_path / "bundle", rows) == lines(tmp_path / "run")


# --- what a bundle holds ------------------------------------------------------------------------


def test_no_credential_enters_run_or_bundle(evaluated: Path, tmp_path: Path) -> None:
    """The API key is in no file of the run or bundle, and the export prints that it was left out."""
    result = run("export", evaluated, "--out", tmp_path / "bundle")
    assert "Left out, as they may be credentials: api_key of openai/animal." in result.stdout
    for folder in (evaluated, tmp_path / "bundle"):
        for file in folder.iterdir():
            assert KEY.encode() not in file.read_bytes(), file
    bundle = Tuned.load(tmp_path / "bundle")
    assert bundle.tasks[0].left_out == {"openai/animal": ("api_key",)}


def test_a_bundle_is_no_run(evaluated: Path, tmp_path: Path) -> None:
    """The error names what opens it."""
    Tuned.from_run(evaluated).save(tmp_path / "bundle")
    with pytest.raises(DataError, match=r"got a bundle: open it with Tuned\.load"):
        Tuned.from_run(tmp_path / "bundle")


def test_no_text_of_a_row_enters_a_bundle(evaluated: Path, tmp_path: Path) -> None:
    """No text of a test row is in any file of a bundle, also with a calibrator."""
    run("calibrate", evaluated, "--out", evaluated, "--target-accuracy", 0.5)
    Tuned.from_run(evaluated).save(tmp_path / "bundle")
    for file in (tmp_path / "bundle").iterdir():
        assert "who knows" not in file.read_text()
        assert "a cat" not in file.read_text()


def test_options_that_change_predictions_are_refused(evaluated: Path, tmp_path: Path) -> None:
    """Loading raises ConfigurationError for an option that is neither a credential nor an address."""
    Tuned.from_run(evaluated).save(tmp_path / "bundle")
    with pytest.raises(ConfigurationError, match="got 'temperature': it could change the predictions"):
        calibrant.load(tmp_path / "bundle", options={"api_key": KEY, "temperature": 1.0})
    with pytest.raises(ConfigurationError, match="router_state only for a bundle with"):
        calibrant.load(tmp_path / "bundle", options={"api_key": KEY}, router_state="x.sqlite")


def test_another_model_is_called_with_a_warning(
    evaluated: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another model is called with the bundle's prompt and options, and a warning is logged."""
    Tuned.from_run(evaluated).save(tmp_path / "bundle")
    fake = FakeClient(["cat", "dog"], {}, default=("dog", 0.7))
    with calibrant.load(tmp_path / "bundle", model=fake) as classifier:
        assert classifier.classify("a cat").label == "dog"
        assert classifier.prompt == "Which animal?"
        assert fake.requests[0].options["seed"] == 3
    assert "fake is asked instead of openai/animal" in caplog.text
    raw = FakeClient(["cat", "dog"], {}, default=("dog", 0.7), space="raw", name="openai/animal")
    with pytest.raises(StateError, match="space masked, as in the run, got raw"):
        calibrant.load(tmp_path / "bundle", model=raw)


def test_another_model_may_be_named(evaluated: Path, opened: Opened, tmp_path: Path) -> None:
    """A model named in `load` is called with the options of the bundle's own model."""
    Tuned.from_run(evaluated).save(tmp_path / "bundle")
    with calibrant.load(tmp_path / "bundle", model="small", options={"api_key": KEY}) as classifier:
        assert classifier.classify("meow").label == "cat"
    assert opened["small"][0].requests[0].options["seed"] == 3


def test_a_missing_calibration_is_refused(evaluated: Path, tmp_path: Path) -> None:
    """A calibration directory that does not exist raises DataError, and no bundle is written."""
    with pytest.raises(DataError, match=r"elsewhere: expected calibration\.json of `calibrant calibrate`"):
        Tuned.from_run(evaluated, calibration=tmp_path / "elsewhere").save(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_calibration_decides_what_is_accepted(evaluated: Path, tmp_path: Path) -> None:
    """A bundle decides by its certified threshold, and without a calibration it has no rule."""
    run("calibrate", evaluated, "--out", tmp_path / "calibration", "--target-accuracy", 0.5)
    plain = Tuned.from_run(evaluated).save(tmp_path / "plain")
    bundle = Tuned.from_run(evaluated, calibration=tmp_path / "calibration").save(tmp_path / "bundle")
    record = json.loads((tmp_path / "calibration" / "calibration.json").read_text())
    threshold = record["certified"]["threshold"]
    assert bundle.rule == ("certified", threshold)
    calibrator = load_calibrator(tmp_path / "calibration" / "calibrator.json", fingerprint=bundle.fingerprint)
    for confidence in (threshold, threshold - 1e-9, 1.0, 0.0):
        decision = bundle.decide(prediction(confidence))
        assert decision.accepted is (confidence >= threshold)
        assert (decision.confidence, decision.threshold) == (confidence, threshold)
        assert decision.decided_by == "confidence"
        assert decision.calibrated == pytest.approx(calibrator.predict([confidence], predicted=["cat"])[0])
    assert bundle.decide(prediction(0.99), threshold=0.995).accepted is False
    with pytest.raises(ConfigurationError, match="got a certified one, which decides"):
        bundle.accepting_suggested()
    with pytest.raises(ConfigurationError, match="suggested threshold to accept by, got none"):
        plain.accepting_suggested()
    assert bundle.decide(prediction(None)).accepted is False
    assert bundle.decide(prediction(1.0, outcome=Outcome.ERROR)).accepted is False
    assert bundle.decide(prediction(1.0, accepted=False)).accepted is False
    assert plain.rule == (None, None)
    assert plain.decide(prediction(0.9)).accepted is None
    decision = plain.decide(prediction(0.9, accepted=True))
    assert (decision.rule, decision.decided_by) == ("cascade", "cascade")
    assert plain.decide(prediction(0.9), threshold=0.9).decided_by == "confidence"
    names = {figure.name for figure in bundle.figures}
    assert names > {figure.name for figure in plain.figures}
    assert "ECE, calibrated, held out" in names


def stepped() -> IsotonicCalibrator:
    """Return a calibrator that rises from 0.125 at 0.2 to 0.5 at 0.5, and stays there."""
    return IsotonicCalibrator().fit([0.2, 0.2, 0.5, 0.5, 0.9, 0.9], [0, 0, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("high", "confidence", "accepted", "threshold"),
    [(0.35, 0.36, True, 0.3125), (0.35, 0.34, False, 0.3125), (0.8, 0.7, False, 0.5), (0.8, 0.8, True, 0.5)],
    ids=["above", "below", "tied, below as given", "tied, above as given"],
)
def test_a_suggested_threshold_is_calibrated_too(
    evaluated: Path, tmp_path: Path, high: float, confidence: float, *, accepted: bool, threshold: float
) -> None:
    """A suggested threshold accepts nothing until it is asked for; then it is calibrated as the confidence is."""
    bundle = Tuned.from_run(evaluated).save(tmp_path / "bundle")
    bundle = replace(
        bundle,
        calibrator=stepped(),
        thresholds={**bundle.thresholds, "suggested": {"high": high, "low": 0.1}},
    )
    assert bundle.decide(prediction(confidence)).accepted is None
    decision = bundle.accepting_suggested().decide(prediction(confidence))
    assert decision.accepted is accepted
    assert (decision.rule, decision.decided_by) == ("suggested", "calibrated")
    assert decision.threshold == pytest.approx(threshold)
    assert decision.calibrated is not None
    assert decision.threshold is not None
    assert (decision.calibrated >= decision.threshold) or not decision.accepted


def test_a_given_threshold_means_calibrated_confidence(evaluated: Path, tmp_path: Path) -> None:
    """With a calibrator, a threshold given to `decide` is compared with the calibrated confidence."""
    bundle = replace(Tuned.from_run(evaluated).save(tmp_path / "bundle"), calibrator=stepped())
    for confidence, accepted in ((0.9, True), (0.45, True), (0.4, False)):
        decision = bundle.decide(prediction(confidence), threshold=0.4)
        assert (decision.accepted, decision.decided_by, decision.threshold) == (accepted, "calibrated", 0.4)
    failed = bundle.decide(prediction(0.9, outcome=Outcome.UNPARSED), threshold=0.4)
    assert (failed.accepted, failed.decided_by, failed.threshold) == (False, None, None)


@pytest.mark.parametrize("threshold", [-0.1, 95, float("nan")])
def test_a_given_threshold_must_be_a_share(evaluated: Path, tmp_path: Path, threshold: float) -> None:
    """A threshold outside [0, 1] raises ConfigurationError."""
    bundle = Tuned.from_run(evaluated).save(tmp_path / "bundle")
    with pytest.raises(ConfigurationError, match=r"Expected a threshold in \[0, 1\]"):
        bundle.decide(prediction(0.9), threshold=threshold)


def test_without_a_certificate_nothing_is_accepted(evaluated: Path, tmp_path: Path) -> None:
    """A bundle whose certification found no threshold accepts no answer."""
    run("calibrate", evaluated, "--out", evaluated, "--target-accuracy", 0.9999)
    bundle = Tuned.from_run(evaluated).save(tmp_path / "bundle")
    assert bundle.rule == ("certified", None)
    assert bundle.decide(prediction(1.0)).accepted is False
    assert bundle.accepting_suggested().decide(prediction(1.0)).accepted is True


@pytest.mark.parametrize(("model", "accepted"), [("own", True), (None, True), ("other", False)])
def test_a_certificate_accepts_answers_of_the_models_it_was_measured_on(
    evaluated: Path, model: str | None, *, accepted: bool
) -> None:
    """An answer of another model is for review, unless drift is accepted or the caller gives a threshold."""
    run("calibrate", evaluated, "--out", evaluated, "--target-accuracy", 0.5)
    tuned = Tuned.from_run(evaluated)
    assert tuned.rule[1] is not None
    named = tuned.history.models[0] if model == "own" else model
    answer = replace(prediction(1.0), model=named)
    assert tuned.decide(answer).accepted is accepted
    assert tuned.decide(replace(answer, outcome=Outcome.ERROR)).accepted is False
    assert tuned.decide(answer, threshold=0.5).accepted is True
    assert tuned.accepting_drift().decide(answer).accepted is True
    mixed = tuned.decide_many([replace(answer, model=tuned.history.models[0]), answer, prediction(0.0)])
    assert [decision.accepted for decision in mixed] == [True, accepted, False]
    warning = tuned.model_warning([named])
    assert (warning is None) is accepted
    if warning is not None:
        assert warning.endswith("restore the model. Until then its answers are for review.")
        assert tuned.accepting_drift().model_warning([named]) == warning.removesuffix(
            " Until then its answers are for review."
        )


def prediction(
    confidence: float | None, *, outcome: Outcome = Outcome.OK, accepted: bool | None = None
) -> Prediction:
    """Return a prediction of this confidence."""
    return Prediction(label="cat", confidence=confidence, outcome=outcome, accepted=accepted)


def test_figures_are_those_of_the_run(evaluated: Path, tmp_path: Path) -> None:
    """The accuracy of a bundle and its interval equal those in metrics.json."""
    bundle = Tuned.from_run(evaluated).save(tmp_path / "bundle")
    metrics = json.loads((evaluated / "metrics.json").read_text())
    figure = next(figure for figure in bundle.figures if figure.name == "accuracy, all rows")
    own = metrics["accuracy"]
    assert (figure.estimate, figure.lower, figure.upper) == (own["estimate"], own["lower"], own["upper"])
    assert figure.rows == len(ROWS)
    assert bundle.history.rows == len(ROWS)
    assert sum(bundle.history.labels.values()) == len(ROWS)
    assert list(bundle.history.confidence) == sorted(row["confidence"] for row in lines(evaluated))


def test_equal_runs_make_equal_bundles(evaluated: Path, tmp_path: Path) -> None:
    """Two exports of one run to different folders have the same digest."""
    assert (
        Tuned.from_run(evaluated).save(tmp_path / "a").digest
        == Tuned.from_run(evaluated).save(tmp_path / "b" / "c").digest
    )


# --- what is exported ---------------------------------------------------------------------------


def test_a_run_without_settings_needs_its_task_file(task: Path, evaluated: Path, tmp_path: Path) -> None:
    """A run without task.json needs --task, and a task file with other settings exits with 2."""
    whole = Tuned.from_run(evaluated).save(tmp_path / "whole")
    (evaluated / "task.json").unlink()
    result = run("export", evaluated, "--out", tmp_path / "bundle", code=2)
    assert "expected task.json" in result.stderr
    assert "--task" in result.stderr
    run("export", evaluated, "--out", tmp_path / "bundle", "--task", task)
    assert Tuned.load(tmp_path / "bundle").digest == whole.digest
    assert fresh(tmp_path / "bundle", ROWS, {"api_key": KEY}) == lines(evaluated)
    for old, new, named in (
        ("seed = 3", "seed = 4", "options of the model"),
        ("openai/animal", "openai/other", "model ('openai/animal' in the run, 'openai/other' in the task)"),
        ('"dog"]', '"cow"]', "labels"),
        ('"category"', '"kind"', "schema of the answer"),
    ):
        text = task.read_text()
        task.write_text(text.replace(old, new))
        result = run("export", evaluated, "--out", tmp_path / "other", "--task", task, code=2)
        assert named in result.stderr
        task.write_text(text)
    result = run("export", evaluated, "--out", tmp_path / "other", "--model", "x", code=2)
    assert "Expected --task with --model" in result.stderr
    assert not (tmp_path / "other").exists()


def test_unfinished_or_damaged_runs_are_refused(evaluated: Path, tmp_path: Path) -> None:
    """A missing, damaged or foreign file of a run raises an error, and no bundle is left behind."""
    out = tmp_path / "bundle"
    (tmp_path / "empty").mkdir()
    for name, why in (("nowhere", "no such directory"), ("empty", r"expected the predictions of a run")):
        with pytest.raises((DataError, StateError), match=why):
            Tuned.from_run(tmp_path / name).save(out)
    incomplete = '{"schema_version": 1, "complete": true}'
    foreign = '{"schema_version": 1, "kind": "calibration", "fingerprint": {"model": "other"}}'
    prior = '{"kind": "label-prior correction", "version": 1}'
    settings = '{"kind": "settings of a run", "version": 1, "tasks": [{}]}'
    for name, old, new, why in (
        ("metrics.json", '"complete": true', '"complete": false', "ended early"),
        ("metrics.json", None, incomplete, "damaged: its files are not what a run leaves"),
        ("calibration.json", None, foreign, r"got calibration\.json of others"),
        ("calibration.json", None, "{", r"calibration\.json: expected a JSON object"),
        ("task.json", '"seed": 3', '"seed": 4', "options of the model"),
        ("task.json", None, settings, "damaged: missing key 'plan'"),
        ("label_prior.json", None, prior, r"label_prior\.json: damaged"),
        ("run.json", '"method":', '"methods":', r"run\.json: expected 'method', got none"),
    ):
        path = evaluated / name
        whole = path.read_text() if path.exists() else ""
        path.write_text(new if old is None else whole.replace(old, new))
        with pytest.raises(StateError, match=why):
            Tuned.from_run(evaluated).save(out)
        path.write_text(whole) if whole else path.unlink()
    assert not out.exists()
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_taken_destination_is_refused(evaluated: Path, tmp_path: Path) -> None:
    """An empty folder is accepted; a full one, a file and a link raise ConfigurationError."""
    (tmp_path / "empty").mkdir()
    Tuned.from_run(evaluated).save(tmp_path / "empty")
    for place in (tmp_path / "empty", evaluated / "run.json"):
        with pytest.raises(ConfigurationError, match="got one that is taken"):
            Tuned.from_run(evaluated).save(place)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="got one that is taken"):
        Tuned.from_run(evaluated).save(tmp_path / "link")
