"""Logs as JSON lines that hold no texts."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TextIO

_LOGGERS = ("calibrant", "uvicorn", "asyncio")


class _JsonLines(logging.Formatter):
    """Formatter of log records as JSON lines, without exception messages, which may quote texts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            # Further lines of asyncio's show objects, and so texts.
            "event": record.getMessage().partition("\n")[0],
            **getattr(record, "fields", {}),
        }
        if record.exc_info is not None and record.exc_info[0] is not None:
            kind, _, place = record.exc_info
            found["error"] = kind.__qualname__
            found["place"] = [f"{at.filename}:{at.lineno}" for at in traceback.extract_tb(place)][-5:]
        return json.dumps(found, default=str)


@contextlib.contextmanager
def json_logs(stream: TextIO | None = None) -> Iterator[None]:
    """Write the service's logs as JSON lines to `stream` (default: standard error) during the block."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_JsonLines())
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    loggers[0].setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
