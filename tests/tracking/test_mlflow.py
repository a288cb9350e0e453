"""Tests of runs and bundles in servers of MLflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fault_server import FaultServer
from tracking_servers import fetched, free_port

pytestmark = [pytest.mark.tracking, pytest.mark.timeout(600)]

Run = Callable[..., str]
Serve = Callable[..., str]


@pytest.fixture(scope="module")
def mlflow(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a tracking server with a database of its own."""
    folder, port = tmp_path_factory.mktemp("tracked"), free_port()
    return serve(
        "mlflow",
        *("server", "--host", "127.0.0.1", "--port", port, "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/runs.sqlite"),
        *("--artifacts-destination", folder / "files"),
        port=port,
        ready="/health",
    )


def tracked(mlflow: str, experiment: str) -> dict[str, Any]:
    """Return the only run of an experiment, with its parameters, metrics and files."""
    found = fetched(f"{mlflow}/api/2.0/mlflow/experiments/get-by-name?experiment_name={experiment}")
    wanted = {"experiment_ids": [found["experiment"]["experiment_id"]]}
    (run,) = fetched(f"{mlflow}/api/2.0/mlflow/runs/search", wanted)["runs"]
    name = run["info"]["run_id"]
    files = fetched(f"{mlflow}/api/2.0/mlflow/artifacts/list?run_id={name}")["files"]
    return {
        **run["info"],
        "params": {one["key"]: one["value"] for one in run["data"]["params"]},
        "metrics": {one["key"]: one["value"] for one in run["data"]["metrics"]},
        "files": {one["path"] for one in files},
    }


def curve(mlflow: str, run: str, metric: str) -> dict[int, float]:
    """Return the values of a metric by step."""
    address = f"{mlflow}/api/2.0/mlflow/metrics/get-history?run_id={run}&metric_key={metric}"
    return {int(one["step"]): one["value"] for one in fetched(address)["metrics"]}


def test_an_evaluation_is_tracked(run: Run, mlflow: str, task: Path, tmp_path: Path) -> None:
    """The server has settings, figures with their intervals, report and bundle of a run named like its directory."""
    out = tmp_path / "check"
    where = {"MLFLOW_TRACKING_URI": mlflow, "MLFLOW_EXPERIMENT_NAME": "evaluated"}
    said = run("evaluate", task, "--out", out, "--no-cache", "--track", "mlflow", "--json", **where)
    record = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    found = tracked(mlflow, "evaluated")
    assert f"MLflow has the run check: {found['run_id']}" in said
    assert (found["run_name"], found["status"]) == ("check", "FINISHED")
    assert (found["params"]["task"], found["params"]["model"]) == ("animals", "openai/any")
    assert found["params"]["method.scoring"] == "decode"
    assert found["metrics"]["accuracy"] == pytest.approx(0.9)
    assert found["metrics"]["accuracy_low"] == pytest.approx(record["accuracy"]["lower"])
    assert found["metrics"]["accuracy_high"] == pytest.approx(record["accuracy"]["upper"])
    assert found["metrics"]["per_label/cat/precision"] == pytest.approx(1.0)
    assert found["files"] == {"report.html", "bundle"}


def test_labels_of_equal_allowed_characters_stay_apart(run: Run, mlflow: str, task: Path) -> None:
    """Figures of labels that differ in forbidden characters alone have a number at the end, in the labels' order."""
    labels, folder = ["a!", "a?"], task.parent
    for split in ("train", "validation", "test"):
        rows = [{"input": f"{split} {n}", "answer": labels[n % 2]} for n in range(8)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with FaultServer(labels, lambda _text, _prompt: ("a!", 0.9)) as server:
        lines = task.read_text().splitlines()
        changed = {"labels": json.dumps(labels), "api_base": json.dumps(server.api_base)}
        named = ((line, line.partition(" = ")[0]) for line in lines)
        task.write_text(
            "\n".join(f"{name} = {changed[name]}" if name in changed else line for line, name in named)
        )
        where = {"MLFLOW_TRACKING_URI": mlflow, "MLFLOW_EXPERIMENT_NAME": "apart"}
        run("evaluate", task, "--out", folder / "out", "--no-cache", "--track", "mlflow", **where)
    metrics = tracked(mlflow, "apart")["metrics"]
    assert metrics["per_label/a_/recall"] == pytest.approx(1.0)
    assert metrics["per_label/a_/recall_2"] == pytest.approx(0.0)


def test_credentials_in_any_options_stay_here(run: Run, mlflow: str, task: Path, tmp_path: Path) -> None:
    """Of options anywhere in the record of a run only those that hold no credentials are parameters."""
    out = tmp_path / "options"
    run("evaluate", task, "--out", out, "--no-cache")
    record = json.loads((out / "run.json").read_text())
    record["method"]["options"] = {"api_key": "sk-inside", "top_p": 0.5}
    record["verifier_options"] = {"extra_headers": {"Authorization": "sk-header"}, "max_tokens": 7}
    (out / "run.json").write_text(json.dumps(record))
    where = {"MLFLOW_TRACKING_URI": mlflow, "MLFLOW_EXPERIMENT_NAME": "options"}
    run("report", out, "--track", "mlflow", **where)
    params = tracked(mlflow, "options")["params"]
    assert (params["method.options.top_p"], params["verifier_options.max_tokens"]) == ("0.5", "7")
    assert "sk-" not in json.dumps(params)


def test_a_search_is_tracked_as_curves(run: Run, mlflow: str, task: Path, tmp_path: Path) -> None:
    """Rows that chose and that judge are curves by the number of the prompt; no text's digest is a parameter."""
    out = tmp_path / "search"
    where = {"MLFLOW_TRACKING_URI": mlflow, "MLFLOW_EXPERIMENT_NAME": "searched"}
    run("optimize", task, "--out", out, "--max-metric-calls", 60, "--track", "mlflow", **where)
    found = tracked(mlflow, "searched")
    result = json.loads((out / "result.json").read_text())
    scores = [candidate["score"] for candidate in result["validated"]]
    assert curve(mlflow, found["run_id"], "validation/score") == pytest.approx(dict(enumerate(scores)))
    judged = curve(mlflow, found["run_id"], "test/accuracy")
    assert judged[0] == pytest.approx(result["seed_prompt"]["accuracy"]["estimate"])
    assert set(judged) == {0, result["chosen"]}
    assert found["metrics"]["test/accuracy_low"] < found["metrics"]["test/accuracy"]
    assert found["params"]["proposer"] == result["proposer"]
    assert "known_texts" not in found["params"]
    assert found["files"] == {"report.html", "bundle"}


def test_a_tracked_bundle_is_served(run: Run, serve: Serve, mlflow: str, task: Path, tmp_path: Path) -> None:
    """`mlflow models serve` answers from the bundle of a tracked run, with label, confidence and decision."""
    where = {"MLFLOW_TRACKING_URI": mlflow, "MLFLOW_EXPERIMENT_NAME": "served"}
    out = tmp_path / "out"
    run("evaluate", task, "--out", out, "--no-cache")
    run("calibrate", out, "--target-accuracy", "0.2", "--out", out)
    run("report", out, "--track", "mlflow", **where)
    model = f"runs:/{tracked(mlflow, 'served')['run_id']}/bundle"
    port = free_port()
    words = ("--env-manager", "local", "--host", "127.0.0.1", "--port", port, "-m", model)
    served = serve(
        "mlflow", "models", "serve", *words, port=port, ready="/health", OPENAI_API_KEY="none", **where
    )
    rows = {"dataframe_split": {"columns": ["text"], "data": [["a meow"], ["woof woof"]]}}
    answers = fetched(f"{served}/invocations", rows)["predictions"]
    assert [one["label"] for one in answers] == ["cat", "dog"]
    assert {one["decision"] for one in answers} == {"accepted"}
    assert all(0.5 < one["confidence"] <= 1 for one in answers)


def test_a_saved_model_answers_in_process(run: Run, task: Path, tmp_path: Path) -> None:
    """`save_model` makes a model of a bundle, whose signature names text and label, and `pyfunc` loads it."""
    run("evaluate", task, "--out", tmp_path / "out", "--no-cache")
    run("export", tmp_path / "out", "--out", tmp_path / "bundle")
    program = """
import sys
import mlflow
from calibrant.mlflow import save_model
save_model(sys.argv[1], sys.argv[2])
model = mlflow.pyfunc.load_model(sys.argv[2])
print(model.metadata.signature.inputs.input_names(), model.metadata.signature.outputs.input_names())
print(model.predict([{"text": "woof"}]).label.tolist())
"""
    said = run(tmp_path / "bundle", tmp_path / "model", python=program, OPENAI_API_KEY="none")
    assert "['text'] ['label', 'confidence', 'decision', 'outcome']" in said
    assert said.endswith("['dog']\n")


def test_a_server_that_is_down_costs_a_sentence(run: Run, mlflow: str, task: Path, tmp_path: Path) -> None:
    """The run ends well and says how to send it later, which works once the server is there."""
    out = tmp_path / "out"
    down = f"http://me:secret@127.0.0.1:{free_port()}"
    words = ("evaluate", task, "--out", out, "--no-cache", "--track", "mlflow")
    said = run(*words, MLFLOW_TRACKING_URI=down)
    assert "0.9" in said
    assert said.count("the run was not logged") == 1
    assert "secret" not in said
    later = f"calibrant report {out} --track mlflow"
    assert later in said
    run(*later.split()[1:], MLFLOW_TRACKING_URI=mlflow, MLFLOW_EXPERIMENT_NAME="later")
    assert tracked(mlflow, "later")["status"] == "FINISHED"
