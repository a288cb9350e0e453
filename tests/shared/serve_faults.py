"""A fault server as a process of its own: ``python tests/shared/serve_faults.py --labels A B C``.

It prints one JSON line with its address (``{"api_base": ..., "port": ..., "pid": ...}``) and serves until
SIGTERM or SIGINT, until its standard input closes where that is a pipe, or until its parent has gone. ``GET
/stats`` returns its counts. Requests themselves are not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Sequence

from calibrant.core import ConfigurationError
from fault_server import FaultServer

__all__ = ["main"]

_LOOK_SECONDS = 0.5  # between two looks at the parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal or the end of input; return the exit code."""
    parent = os.getppid()  # before the line below is read: whoever reads it may be gone at once
    parser = _parser()
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        faults = dict(_share(text) for text in options.fault)
        server = FaultServer(
            options.labels,
            faults=faults,
            seed=options.seed,
            latency=options.latency,
            requests_per_second=options.requests_per_second,
            tokens_per_second=options.tokens_per_second,
            max_concurrency=options.max_concurrency,
            keep_requests=0,
            port=options.port,
            field=options.field,
            tokens=options.tokens,
        )
        server.start()
    except ConfigurationError as error:
        parser.error(str(error))
    try:
        line = {"api_base": server.api_base, "port": server.port, "pid": os.getpid()}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        _wait(ended, parent)
    finally:
        server.stop()
    return 0


def _wait(ended: threading.Event, parent: int) -> None:
    # Input that is a terminal or /dev/null says nothing about who started us.
    if sys.stdin is not None and stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        threading.Thread(target=_wait_for_end_of_input, args=(ended,), daemon=True).start()
    while not ended.wait(_LOOK_SECONDS) and os.getppid() == parent:
        pass


def _wait_for_end_of_input(ended: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    ended.set()


def _share(text: str) -> tuple[str, float]:
    kind, _, share = text.partition("=")
    try:
        return kind, float(share)  # without "=" there is nothing to convert
    except ValueError:
        msg = f"Expected KIND=SHARE, such as 500=0.05 or rate_limit:0.2=0.1, got {text!r}."
        raise ConfigurationError(msg) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python tests/shared/serve_faults.py",
        description="An OpenAI-compatible loopback server with scripted faults.",
    )
    parser.add_argument("--labels", nargs="+", required=True, help="the label set")
    parser.add_argument("--field", default="category", help="JSON path of the label")
    parser.add_argument("--tokens", default="label", choices=["label", "characters", "bytes"])
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before an answer")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND[:SECONDS]=SHARE",
        help="share of requests, in [0, 1], that meet a fault; may be given several times",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the shares")
    parser.add_argument("--requests-per-second", type=float)
    parser.add_argument("--tokens-per-second", type=float)
    parser.add_argument("--max-concurrency", type=int, help="beyond it, 429")
    return parser


if __name__ == "__main__":
    sys.exit(main())
