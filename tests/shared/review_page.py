"""A review in a process of its own, and a visitor of its page."""

from __future__ import annotations

import contextlib
import csv
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from processes import processes

COMMAND = (sys.executable, "-c", "from calibrant.cli import main; main()", "review")
SECONDS = 60
GONE = (OSError, http.client.HTTPException)  # what a request meets whose server is killed


class Page(NamedTuple):
    """A running review."""

    process: subprocess.Popen[str]
    url: str


@contextlib.contextmanager
def reviewed(*words: object) -> Iterator[Page]:
    """Run ``calibrant review`` without opening a browser, until the block ends."""
    with processes() as begin:
        process, line = begin(*COMMAND, "--no-open", *map(str, words), stderr=subprocess.PIPE)
        found = re.search(r"http://\S+/\?token=[\w-]+", line)
        assert found is not None, line or (process.stderr and process.stderr.read())
        yield Page(process, found.group())


class Reply(NamedTuple):
    """Answer of a request."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        """Return the body as a JSON value."""
        return json.loads(self.body)


class Visitor:
    """Client of the page, with the cookie that its address gives."""

    def __init__(self, url: str) -> None:
        self.place = urlsplit(url)
        self.cookie = ""
        reply = self.ask(f"/?{self.place.query}")
        assert reply.status == 303, reply
        self.cookie = reply.headers["set-cookie"].partition(";")[0]

    def ask(self, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request as the page does; other headers replace its own, and empty ones are left out."""
        own = {"Cookie": self.cookie}
        if body is not None:
            own |= {"Origin": f"http://{self.place.netloc}", "Content-Type": "application/json"}
        own |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in own.items() if value}
        return request(self.place.netloc, path, body, sent)

    def decide(self, row: int, answer: str) -> Reply:
        """Answer a row."""
        return self.ask("/api/decide", {"row": row, "answer": answer})


def request(address: str, path: str, body: Any, headers: dict[str, str]) -> Reply:
    """Send one request, a POST if it has a body."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=SECONDS)) as line:
        data = None if body is None else json.dumps(body)
        line.request("GET" if body is None else "POST", path, data, headers)
        response = line.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, named, response.read().decode())


def answers_in(path: Path) -> dict[int, str]:
    """Return the answers in a file, by index."""
    with path.open(newline="", encoding="utf-8") as file:
        return {int(row["index"]): row["answer"] for row in csv.DictReader(file)}
