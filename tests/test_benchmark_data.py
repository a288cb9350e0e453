"""Tests of the data of the benchmarks: fetched, checked, and skipped where it is missing."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import fetch_data
from _data import GEPA, available

NAME = "rotten_tomatoes"
ROWS = 1066


class Quiet(SimpleHTTPRequestHandler):
    """Handler that writes no log."""

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serve a table of another text and the same form as the recorded answers."""
    path = tmp_path / "server" / GEPA / f"{NAME}_combined.csv"
    path.parent.mkdir(parents=True)
    prompts = [
        f"{prompt}_{name}"
        for prompt in ("baseline", "default", "confidence")
        for name in ("predicted", "score", "correct")
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["text", "expected", *prompts])
        writer.writeheader()
        answer = {
            name: {"predicted": "positive", "score": "0.9", "correct": "True"}[name.split("_")[1]]
            for name in prompts
        }
        writer.writerows({"text": f"film {n}", "expected": "positive", **answer} for n in range(ROWS))
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "server")))
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def folders(path: Path) -> dict[str, Path]:
    """Return where files go."""
    return {"tasks": path / "data" / "tasks", "recorded": path / "data" / "recorded"}


def test_other_data_is_not_written(server: str, tmp_path: Path) -> None:
    """A source whose files have another SHA-256 is refused, and nothing is left of it."""
    with pytest.raises(fetch_data.WrongDataError, match=rf"recorded/{NAME}\.csv: expected SHA-256 adbac93d"):
        fetch_data.fetch(NAME, server=server, folders=folders(tmp_path))
    with pytest.raises(fetch_data.WrongDataError, match="cannot be read"):
        fetch_data.fetch("sms_spam", server=server, folders=folders(tmp_path))
    assert not (tmp_path / "data").exists()


def test_checked_data_is_written(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded answers have a row for each text and prompt, and the task the selected rows in their splits."""
    for path, text in fetch_data.MAKERS[NAME](server).items():
        monkeypatch.setitem(fetch_data.SHA256, path, hashlib.sha256(text.encode()).hexdigest())
    fetch_data.fetch(NAME, server=server, folders=folders(tmp_path))
    text = (tmp_path / "data" / "recorded" / f"{NAME}.csv").read_text(encoding="utf-8")
    recorded = list(csv.DictReader(io.StringIO(text)))
    assert len(recorded) == 3 * ROWS
    assert (recorded[-1]["row"], recorded[-1]["prompt"], recorded[-1]["correct"]) == (
        "1065",
        "confidence",
        "true",
    )
    task = [
        json.loads(line) for line in (tmp_path / "data" / "tasks" / f"{NAME}.jsonl").read_text().splitlines()
    ]
    assert [sum(row["split"] == split for row in task) for split in ("train", "val", "test")] == [
        150,
        150,
        300,
    ]


def test_missing_data_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A benchmark goes on with what is there, and ends well where nothing is; a sentence names the source."""
    (tmp_path / "sms_spam.jsonl").touch()
    assert available(tmp_path, ["sms_spam", "banking77"]) == ["sms_spam"]
    assert "skipped banking77" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        available(tmp_path, ["ag_news"])
    assert ended.value.code == 0
    assert "`make data RESEARCH=--research` fetches it" in capsys.readouterr().out
