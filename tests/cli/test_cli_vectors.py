"""Tests of commands whose heads read vectors that a server computes: what they say and count."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from biased_model import run
from command_line import done, process, wait_for
from decision_server import DecisionServer
from embedding_server import TOKENS, EmbeddingServer
from synonyms import KNOWN, UNSEEN, texts

PRICE = 2e-8  # of a token, in the list of prices
TASK = """\
name = "animals"
labels = ["cat", "dog"]
prompt = "Which animal?"

[model]
name = "systemone/decider"
api_base = "{root}/v1"

[model.options]
input_cost_per_token = 1e-12
output_cost_per_token = 1e-12

[data]
train = "train.jsonl"
validation = "validation.jsonl"
test = "test.jsonl"
"""
PROGRAM = "from calibrant.cli._app import main; main()"
HEAD = '\n[head]\nembeddings = "openai/text-embedding-3-small"\n'


def rows(texts: list[str], answers: list[str]) -> list[dict[str, str]]:
    """Return rows."""
    return [{"input": text, "answer": answer} for text, answer in zip(texts, answers, strict=True)]


def many(count: int, split: str) -> list[dict[str, str]]:
    """Return rows of different texts."""
    known = zip(*texts(count, words=("purring", "barking")), strict=True)
    return [{"input": f"{split} {n} {text}", "answer": label} for n, (text, label) in enumerate(known)]


@pytest.fixture
def decider() -> Iterator[DecisionServer]:
    """Return a decision server that knows nothing."""
    server = DecisionServer(0.6, 0.4)
    yield server
    server.stop()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingServer]:
    """Return a server of embeddings in the place of a provider whose price is known."""
    found = EmbeddingServer()
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    for name in ("OPENAI_API_BASE", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, f"{found.root}/v1")
    yield found
    found.stop()


@pytest.fixture
def task(write_task: Callable[..., Path], decider: DecisionServer) -> Path:
    """Return the file of a task whose head reads vectors."""
    return write_task(
        toml=TASK.format(root=decider.root) + HEAD,
        train=rows(*KNOWN),
        validation=rows(*texts(30, words=("purring", "barking"), seed=2)),
        test=rows(*UNSEEN),
    )


@pytest.fixture
def searched(task: Path, server: EmbeddingServer, tmp_path: Path) -> Path:  # noqa: ARG001 (which it asks)
    """Return the directory of a search."""
    done(run("optimize", task, "--out", tmp_path / "run", "--max-metric-calls", 120))
    return tmp_path / "run"


def stored(cache: Path) -> int:
    """Return how many answers a cache holds."""
    if not cache.exists():
        return 0
    with (
        contextlib.closing(sqlite3.connect(cache)) as connection,
        contextlib.suppress(sqlite3.OperationalError),
    ):
        (count,) = connection.execute("SELECT count(*) FROM calibrant_predictions").fetchone()
        return int(count)
    return 0


def forget(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Do as on another machine: nothing is kept."""
    monkeypatch.setenv("CALIBRANT_HOME", str(folder))


def test_a_search_says_what_its_vectors_cost(
    task: Path, server: EmbeddingServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The line before it has their price by the length of the texts, the last one what was paid."""
    result = done(run("optimize", task, "--out", tmp_path / "run", "--max-metric-calls", 120))
    assert "texts are left to read, about $0.0000" in caplog.text
    paid = TOKENS * len(server.texts)
    assert f"and {paid} tokens of vectors of texts ($0.0000" in result.stdout
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["vectors"]["prompt_tokens"] == paid
    assert record["vectors"]["cost"] == pytest.approx(paid * PRICE)


def test_a_head_on_text_alone_is_named_so(searched: Path) -> None:
    """Table and verdict of a search name no prompt where the head uses no answer of the model."""
    record = json.loads((searched / "result.json").read_text())
    assert record["final"]["head"]["uses_model"] is False
    page = (searched / "report.html").read_text()
    assert "The head, which reads the text alone, is better than the seed prompt alone" in page
    assert "with its head" not in page


def test_the_table_of_a_search_names_a_head_on_text(
    task: Path,
    server: EmbeddingServer,  # noqa: ARG001 (which it asks)
    tmp_path: Path,
) -> None:
    """The line of what the user gets names no prompt."""
    said = done(run("optimize", task, "--out", tmp_path / "run", "--max-metric-calls", 120)).stdout
    assert "\nfinal: head on text " in said
    assert "prompt + head" not in said


def test_an_evaluation_counts_vectors(
    task: Path, searched: Path, server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the rows and those of the baseline are in the figures and in the last line."""
    forget(monkeypatch, tmp_path / "other")
    server.calls.clear()
    said = done(run("evaluate", task, "--run", searched, "--out", tmp_path / "out")).stdout
    paid = TOKENS * len(server.texts)
    assert len(server.texts) > len(set(UNSEEN[0])) + len(set(KNOWN[0]))
    assert f"and {paid} tokens of vectors of texts (" in said
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["vectors"]["prompt_tokens"] == paid


def test_a_budget_buys_no_vectors_for_rows_beyond_it(
    searched: Path, server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors of few rows more than it pays for are computed; a later session adds the earlier ones to its own."""
    forget(monkeypatch, tmp_path / "other")
    source = tmp_path / "new.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in many(200, "new")))
    server.calls.clear()
    arguments = ("label", searched, source, "--no-cache", "--out", tmp_path / "out")
    # One row at a time: with several, how many vectors are still under way is a matter of time.
    run(*arguments, "--concurrency", 1, "--max-cost", f"{40 * TOKENS * PRICE:.10f}")
    assert 40 <= len(server.texts) <= 50
    said = done(run(*arguments)).stdout
    paid = json.loads((tmp_path / "out" / "metrics.json").read_text())["vectors"]
    assert 200 * TOKENS <= paid["prompt_tokens"] <= 202 * TOKENS
    told = re.search(r"and (\d+) tokens of vectors of texts \(", said)
    assert told is not None
    assert 200 * TOKENS <= int(told[1]) <= TOKENS * len(server.texts)


def test_a_spent_budget_ends_the_baseline_of_vectors(
    task: Path,
    searched: Path,
    server: EmbeddingServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Vectors of labelled rows count towards --max-cost: beyond it the other baselines remain."""
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in many(900, "train")))
    forget(monkeypatch, tmp_path / "other")
    server.calls.clear()
    budget = (len(UNSEEN[0]) + 300) * TOKENS * PRICE
    said = done(
        run("evaluate", task, "--run", searched, "--out", tmp_path / "out", "--max-cost", f"{budget:.10f}")
    ).stdout
    assert "There is no baseline of embeddings" in caplog.text
    assert "The budget max_cost" in caplog.text
    assert "TF-IDF" in said
    assert len(server.texts) < 700


def test_calibrate_says_what_vectors_cost(task: Path, server: EmbeddingServer, tmp_path: Path) -> None:
    """A head that is learned from a finished run prints and records the tokens of its vectors."""
    task.write_text(task.read_text().replace(HEAD, ""))
    done(run("evaluate", task, "--split", "train", "--out", tmp_path / "train"))
    arguments = ("calibrate", tmp_path / "train", "--embeddings", "openai/text-embedding-3-small", "--out")
    said = done(run(*arguments, tmp_path / "head")).stdout
    paid = TOKENS * len(server.texts)
    assert f"Paid: {paid} tokens of vectors of texts ($0.0000" in said
    told = json.loads(done(run(*arguments, tmp_path / "again", "--json")).stdout)
    assert told["vectors"]["prompt_tokens"] == TOKENS  # of the one text that recognises the model


def test_a_budget_without_a_price_of_vectors_is_refused(
    task: Path,
    server: EmbeddingServer,  # noqa: ARG001 (which it asks)
    tmp_path: Path,
) -> None:
    """A limit on money that cannot be kept ends the search, and the message names the embedding model."""
    task.write_text(task.read_text().replace("text-embedding-3-small", "unknown"))
    found = run("optimize", task, "--out", tmp_path / "run", "--max-metric-calls", 120, "--max-cost", 1)
    assert found.exit_code == 1
    assert "No price is known for the embedding model" in " ".join(found.stderr.split())


def test_a_run_says_beforehand_what_its_vectors_take(
    searched: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file whose vectors cost cents is announced with their price and where its texts go."""
    (tmp_path / "new.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in many(3_000, "word " * 400)))
    caplog.clear()
    done(run("label", searched, tmp_path / "new.jsonl", "--out", tmp_path / "out"))
    assert "3,000 rows take about $0.03" in caplog.text
    assert "--no-embeddings" in caplog.text
    caplog.clear()
    done(run("label", searched, tmp_path / "new.jsonl", "--max-rows", 10, "--out", tmp_path / "few"))
    assert "The head reads vectors" not in caplog.text


def test_a_run_that_is_killed_pays_for_no_vector_twice(
    searched: Path, server: EmbeddingServer, tmp_path: Path
) -> None:
    """Vectors whose call has ended are not asked for again, and every row has its label once."""
    new = many(900, "new")
    (tmp_path / "new.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in new))
    arguments = ("label", searched, tmp_path / "new.jsonl", "--out", tmp_path / "out")
    server.calls.clear()
    server.most = 3
    with process(PROGRAM, *arguments) as running:
        wait_for(lambda: len(server.calls) == 4, running)
        running.kill()
    recognised, *paid = server.calls[:3]
    server.calls.clear()
    server.most = None
    done(run(*arguments))
    assert server.calls[0] == recognised
    assert not set(server.texts) & {text for call in paid for text in call}
    assert len(server.texts) == len(set(server.texts))
    labelled = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    assert [(row["input"], row["label"]) for row in labelled] == [
        (row["input"], row["answer"]) for row in new
    ]


def test_a_kill_before_the_vectors_came_loses_no_paid_call(
    searched: Path, server: EmbeddingServer, decider: DecisionServer, tmp_path: Path
) -> None:
    """Rows that were answered when the run was killed count as paid, those that the cache had do not."""
    new = many(30, "new")
    source, cache = tmp_path / "new.jsonl", tmp_path / "cache.sqlite"
    arguments = ("label", searched, source, "--cache", cache)
    source.write_text("".join(f"{json.dumps(row)}\n" for row in new[:7]))
    done(run(*arguments, "--out", tmp_path / "earlier"))
    source.write_text("".join(f"{json.dumps(row)}\n" for row in new))
    server.calls.clear()
    server.most = 1  # the one that recognises the model
    with process(PROGRAM, *arguments, "--out", tmp_path / "out") as running:
        wait_for(lambda: stored(cache) == len(new), running)
        running.kill()
    server.most = None
    decider.asked.clear()
    done(run(*arguments, "--out", tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert (found["calls"], found["rows_from_cache"], decider.asked) == (23, 7, [])
    assert found["cost"] == pytest.approx(23 * 12e-12)
