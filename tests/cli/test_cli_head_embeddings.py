"""Tests of heads that read texts with an embedding model, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import calibrant
import command_line
from biased_model import BUDGET, run
from calibrant.core import ConfigurationError
from calibrant.testing import FakeClient
from calibrant.tuned import Tuned
from command_line import refusal
from synonyms import KNOWN, LABELS, UNSEEN, Synonyms, install_model2vec, texts, without_model2vec

SECTION = '\n[head]\nembeddings = "model2vec:here"\n'


def rows(texts: list[str], answers: list[str]) -> list[dict[str, str]]:
    """Return rows."""
    return [{"input": text, "answer": answer} for text, answer in zip(texts, answers, strict=True)]


@pytest.fixture
def task(
    write_task: Callable[..., Path], use_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return a task of a model that knows nothing; its test rows have words of no other row."""
    install_model2vec(monkeypatch, {"here": 0, "moved": 0, "other": 1})
    use_model(lambda name, **_: FakeClient(LABELS, lambda _: {"cat": 0.6, "dog": 0.4}, name=name))
    return write_task(
        train=rows(*KNOWN),
        validation=rows(*texts(30, words=("purring", "barking"), seed=2)),
        test=rows(*UNSEEN),
    )


def done(*arguments: object) -> str:
    """Run a command that works, and return what it prints."""
    return str(command_line.done(run(*arguments)).stdout)


def all_right(directory: Path) -> bool:
    """Return whether every prediction in a directory is right."""
    lines = (directory / "predictions.jsonl").read_text().splitlines()
    return all(json.loads(line)["correct"] for line in lines)


def test_a_search_embeds_its_head(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of a search and its bundle label unseen words; other model weights raise an error."""
    task.write_text(task.read_text() + SECTION)
    done("optimize", task, "--out", tmp_path / "run", *BUDGET)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["final"]["head"]["embedding"] == "model2vec:here"
    assert result["final"]["score"]["accuracy"]["estimate"] == 1.0
    assert [score["name"] for score in result["final"]["baselines"]] == ["majority", "TF-IDF", "embeddings"]
    assert result["final"]["verdict"].startswith(
        "On these rows the head, which reads the text alone, adds nothing certain to embeddings"
    )
    Tuned.from_run(tmp_path / "run").save(tmp_path / "bundle")
    assert "model2vec:here" in (tmp_path / "bundle" / "head.json").read_text()
    with calibrant.load(tmp_path / "bundle") as loaded:
        assert [one.label for one in loaded.classify_many(UNSEEN[0])] == UNSEEN[1]
    told = done("evaluate", task, "--run", tmp_path / "run", "--out", tmp_path / "again", "--no-cache")
    assert all_right(tmp_path / "again")
    assert "adds nothing certain to embeddings" in " ".join(told.split())
    install_model2vec(monkeypatch, {"here": 1})
    with pytest.raises(ConfigurationError, match="'model2vec:here' that the head was fitted with"):
        calibrant.load(tmp_path / "bundle")
    without_model2vec(monkeypatch)
    with pytest.raises(ConfigurationError, match="The head reads vectors of the texts by 'model2vec:here'"):
        calibrant.load(tmp_path / "bundle")


def test_a_failing_model_costs_its_baseline_alone(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where labelled rows get no vectors, an evaluation has the other baselines, and a warning says why."""
    task.write_text(task.read_text() + SECTION)
    done("optimize", task, "--out", tmp_path / "run", *BUDGET)
    of_texts = Synonyms.encode

    def failing(self: Synonyms, texts: list[str], *, use_multiprocessing: bool) -> Any:
        if any("purring" in text for text in texts):
            raise OSError("the disk is gone")
        return of_texts(self, texts, use_multiprocessing=use_multiprocessing)

    monkeypatch.setattr(Synonyms, "encode", failing)
    told = done("evaluate", task, "--run", tmp_path / "run", "--out", tmp_path / "again", "--no-cache")
    assert all_right(tmp_path / "again")
    assert "to TF-IDF with logistic regression" in " ".join(told.split())
    assert "There is no baseline of embeddings, as model2vec:here failed" in caplog.text


def test_an_export_says_what_a_vector_costs(task: Path, tmp_path: Path) -> None:
    """An export tells the seconds that the head's file holds, which change no digest of the head."""
    task.write_text(task.read_text() + SECTION)
    run_path = tmp_path / "run"
    done("optimize", task, "--out", run_path, *BUDGET)
    assert "a new text adds next to nothing to its answer" in done(
        "export", run_path, "--out", tmp_path / "a"
    )
    head = json.loads((run_path / "head.json").read_text())
    head["state"]["embedding"]["seconds_per_text"] = 0.21
    (run_path / "head.json").write_text(json.dumps(head))
    said = done("export", run_path, "--out", tmp_path / "b")
    assert "by model2vec:here: a new text adds about 0.21 s of processor time to its answer." in said


@pytest.mark.parametrize("seconds", [-1.0, "soon", float("nan")])
def test_seconds_that_are_none_are_refused(task: Path, tmp_path: Path, seconds: object) -> None:
    """A head's file whose seconds are no number is damaged."""
    task.write_text(task.read_text() + SECTION)
    run_path = tmp_path / "run"
    done("optimize", task, "--out", run_path, *BUDGET)
    head = json.loads((run_path / "head.json").read_text())
    head["state"]["embedding"]["seconds_per_text"] = seconds
    (run_path / "head.json").write_text(json.dumps(head))
    assert "head.json" in refusal(run("export", run_path, "--out", tmp_path / "bundle"))


def test_a_missing_extra_is_named(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, a search with embeddings is refused; a search without a head works."""
    without_model2vec(monkeypatch)
    task.write_text(task.read_text() + SECTION)
    assert "extra embeddings" in refusal(run("optimize", task, "--out", tmp_path / "run", *BUDGET))
    assert not (tmp_path / "run").exists()
    task.write_text(task.read_text() + 'fit = "off"\n')
    done("optimize", task, "--out", tmp_path / "run", *BUDGET)


def test_a_head_of_a_run_reads_with_embeddings(task: Path, tmp_path: Path) -> None:
    """A head works with its model under another path, and another model is refused."""
    plain = task.read_text()
    done("evaluate", task, "--out", tmp_path / "train", "--split", "train", "--no-cache")
    done("calibrate", tmp_path / "train", "--embeddings", "model2vec:here", "--out", tmp_path)
    for name in ("here", "moved"):
        task.write_text(plain + SECTION.replace("here", name) + 'file = "head.json"\n')
        done("evaluate", task, "--out", tmp_path / name, "--no-cache")
        assert all_right(tmp_path / name)
    task.write_text(plain + SECTION.replace("here", "other") + 'file = "head.json"\n')
    assert "got 'model2vec:other'" in refusal(run("classify", task, "--text", "hound"))
