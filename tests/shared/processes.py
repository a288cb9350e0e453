"""Programs that run beside the tests."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

Begin = Callable[..., tuple["subprocess.Popen[str]", str]]


@contextlib.contextmanager
def processes() -> Iterator[Begin]:
    """Yield a function that starts a command and returns its process with the line it prints first.

    Processes that still run at the end are killed.
    """
    started: list[subprocess.Popen[str]] = []

    def begin(*command: str, **options: Any) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(  # noqa: S603 (our own code)
            command, stdout=subprocess.PIPE, text=True, **options
        )
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline()

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
