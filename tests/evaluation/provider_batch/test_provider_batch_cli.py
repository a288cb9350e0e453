"""Tests of ``calibrant batch``: exit codes, files and output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import command, done, prediction_rows

WriteTask = Callable[..., Path]
MODEL = '\n[model]\nname = "openai/tiny"\n'


run = command("batch")


def test_submit_status_collect(server: Any, write_task: WriteTask, tmp_path: Path) -> None:
    """submit, status and collect work, and can be repeated."""
    task, out = write_task(extra=MODEL), tmp_path / "job"
    result = run("submit", task, "--out", out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "submitted 1 of 1 batch, 4 rows in all" in result.stdout
    assert "nothing was done" in run("submit", task, "--out", out).stdout
    looked = done(run("status", out))
    assert looked.stdout == "part 1\tbatch-0\tvalidating\t0 of 4 answered, 0 failed\n"
    early = run("collect", out)
    assert early.exit_code == 1
    assert "not every batch has ended" in early.stderr
    assert not (out / "predictions.jsonl").exists()
    result = done(run("collect", out, "--wait", "--interval", "0.01", "--timeout", "30"))
    assert "4 rows: 4 ok. 28 tokens in, 12 out" in result.stdout
    assert [row["input"] for row in prediction_rows(out)] == [
        f"test {n} {w}" for n, w in enumerate(["meow", "woof"] * 2)
    ]
    assert [row["label"] for row in prediction_rows(out)] == [row["answer"] for row in prediction_rows(out)]
    assert len(server.batches) == 1
    again = run("retry", out)
    assert (again.exit_code, again.stdout) == (0, "no row ended in an error: nothing was submitted.\n")


def test_a_job_without_answers_can_be_retried(server: Any, write_task: WriteTask, tmp_path: Path) -> None:
    """A job without answers exits with 1 and names `calibrant batch retry`, which submits its rows."""
    server.states = ["failed"]
    out = tmp_path / "job"
    run("submit", write_task(extra=MODEL), "--out", out, "--split", "train")
    result = run("collect", out)
    assert result.exit_code == 1
    assert f"calibrant batch retry {out}" in result.stdout
    assert len(prediction_rows(out)) == 4
    server.states = ["completed"]
    assert "submitted 1 of 2 batches" in run("retry", out).stdout
    done(run("collect", out))
    assert [row["outcome"] for row in prediction_rows(out)] == ["ok"] * 4


def test_answers_without_a_confidence_are_told(server: Any, write_task: WriteTask, tmp_path: Path) -> None:
    """Rows whose answers hold no log-probabilities are counted in a warning; they keep their labels."""

    def bare(request: dict[str, Any]) -> dict[str, Any]:
        line: dict[str, Any] = server.right(request)
        del line["response"]["body"]["choices"][0]["logprobs"]
        return line

    server.answer = lambda asked: ([bare(asked[0]), *map(server.right, asked[1:3]), bare(asked[3])], [])
    server.states = ["completed"]
    out = tmp_path / "job"
    run("submit", write_task(extra=MODEL), "--out", out)
    result = done(run("collect", out))
    assert "warning: 2 rows with a label have no confidence" in " ".join(result.stderr.split())
    assert [row["confidence"] is None for row in prediction_rows(out)] == [True, False, False, True]


def test_prompt_and_rows_of_other_files(server: Any, write_task: WriteTask, tmp_path: Path) -> None:
    """--file takes texts or labelled rows, and --prompt takes the prompt from a file."""
    task, prompt = write_task(extra=MODEL), tmp_path / "prompt.txt"
    prompt.write_text("Say which.")
    texts, labelled = tmp_path / "texts.txt", tmp_path / "rows.jsonl"
    texts.write_text("meow\nwoof\n")
    labelled.write_text('{"input": "meow", "answer": "CAT"}\n')
    server.states = ["completed"]
    for name, file in (("texts", texts), ("labelled", labelled)):
        assert (
            run("submit", task, "--out", tmp_path / name, "--file", file, "--prompt", prompt).exit_code == 0
        )
        done(run("collect", tmp_path / name))
    assert [row["answer"] for row in prediction_rows(tmp_path / "texts")] == [None, None]
    assert [row["answer"] for row in prediction_rows(tmp_path / "labelled")] == ["cat"]
    for batch in server.batches.values():
        assert server.requests(batch)[0]["body"]["messages"][0]["content"] == "Say which."


def test_a_file_without_the_column_of_texts_is_refused(
    server: Any, write_task: WriteTask, tmp_path: Path
) -> None:
    """`submit --file` advises to name the column under [data], as it has no option for that."""
    data = tmp_path / "data.csv"
    data.write_text("id,body\n1,meow\n")
    result = run("submit", write_task(extra=MODEL), "--file", data, "--out", tmp_path / "job")
    assert (result.exit_code, server.calls) == (2, [])
    assert "got nothing (columns here: id, body): name its column under [data]." in result.stderr
    assert "--text-column" not in result.stderr


def test_the_key_of_a_task_file_is_found_again(
    server: Any, write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --task the job uses the key of the task file, and no file of the job holds the key."""
    monkeypatch.delenv("OPENAI_API_KEY")
    key = "sk-of-the-task-0123456789"
    task = write_task(extra=f'{MODEL}[model.options]\napi_key = "{key}"\n')
    out = tmp_path / "job"
    server.states = ["completed"]
    done(run("submit", task, "--out", out))
    done(run("collect", out, "--task", task))
    assert server.authorizations == {f"Bearer {key}"}
    assert all(key not in path.read_text() for path in out.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["submit", "{task}", "--out", "{out}", "--model", "local/smollm2-135m"], "which runs here"),
        (["submit", "{task}", "--out", "{out}", "--model", "mistral/tiny"], "batch interface"),
        (["submit", "{task}", "--out", "{out}", "--split", "nope"], "no 'nope' rows"),
        (["submit", "{task}", "--out", "{out}", "--split", "test", "--file", "x.txt"], "got both"),
        (["submit", "{task}", "--out", "{task}"], "got a file"),
        (["status", "{out}"], "without batch.json"),
        (["collect", "{out}"], "without batch.json"),
        (["retry", "{out}"], "without batch.json"),
        (["collect", "{out}", "--wait", "--interval", "0"], "above 0"),
    ],
)
def test_bad_input_exits_with_2(
    server: Any, write_task: WriteTask, tmp_path: Path, arguments: list[str], message: str
) -> None:
    """Bad input exits with 2 and one line, before any call."""
    task = write_task(extra=MODEL)
    result = run(*(part.format(task=task, out=tmp_path / "job") for part in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert (result.stderr.count("\n"), server.calls) == (1, [])


def test_a_refused_key_exits_with_1(server: Any, write_task: WriteTask, tmp_path: Path) -> None:
    """A refused key exits with 1 and the remedy, without the key."""
    server.faults["upload"] = [401]
    result = run("submit", write_task(extra=MODEL), "--out", tmp_path / "job")
    assert result.exit_code == 1
    assert "Check the API key" in result.stderr
    assert "sk-planted" not in result.stderr


def test_collected_jobs_write_labels(server: Any, write_task: WriteTask, tmp_path: Path) -> None:
    """`label --engine batch`, and `collect` of a file's job, write labels; a row without text is not submitted."""
    task, data = write_task(extra=MODEL), tmp_path / "data.csv"
    data.write_text("id,input\n01,meow\n02,\n03,woof\n")
    server.states = ["completed"]
    done(command("label")(task, data, "--out", tmp_path / "one", "--engine", "batch"))
    done(run("submit", task, "--file", data, "--out", tmp_path / "two"))
    assert "labels.csv" in done(run("collect", tmp_path / "two")).stdout
    found = (tmp_path / "two" / "labels.csv").read_text()
    assert found == (tmp_path / "one" / "labels.csv").read_text()
    (tmp_path / "one" / "labels.csv").unlink()
    done(run("collect", tmp_path / "one"))
    assert found == (tmp_path / "one" / "labels.csv").read_text()
    for name in ("one", "two"):
        again = command("label")(tmp_path / name, data, "--out", tmp_path / "three")
        assert "name what they were labelled with" in again.stderr
    rows = [line.split(",") for line in found.splitlines()[1:]]
    assert [(row[0], row[2], row[5]) for row in rows] == [
        ("01", "cat", "ok"),
        ("02", "", "no text"),
        ("03", "dog", "ok"),
    ]
    assert [len(server.requests(batch)) for batch in server.batches.values()] == [2, 2]
    data.write_text("id,input\n01,meow\n02,purr\n03,woof\n")
    changed = run("collect", tmp_path / "two").stderr
    assert "row 2 of the input has another text or context now" in changed
    assert f"the answers in {tmp_path / 'two' / 'predictions.jsonl'}, or submit" in changed
    assert "a new --out, which asks about all rows again" in changed
    assert "cache" not in changed


def test_a_column_of_contexts_is_not_read(server: Any, write_task: WriteTask, tmp_path: Path) -> None:
    """`label --engine batch` and `collect` write the same labels for a task that names a column of contexts."""
    task, data = write_task(extra=MODEL), tmp_path / "data.csv"
    task.write_text(task.read_text().replace("[data]", '[data]\ncontext_column = "passage"'))
    data.write_text("input,passage\nmeow,one\nwoof,two\n")
    server.states = ["completed"]
    done(command("label")(task, data, "--out", tmp_path / "out", "--engine", "batch"))
    labels = tmp_path / "out" / "labels.csv"
    found = labels.read_text()
    labels.unlink()
    done(run("collect", tmp_path / "out"))
    assert labels.read_text() == found
    assert [line.split(",")[:3] for line in found.splitlines()[1:]] == [
        ["meow", "one", "cat"],
        ["woof", "two", "dog"],
    ]
