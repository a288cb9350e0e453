"""Answers of scripted models, and a retry policy without waits."""

from __future__ import annotations

from typing import Any

from calibrant.inference import RetryPolicy


async def _no_sleep(_: float) -> None:
    pass


QUICK = RetryPolicy(sleep=_no_sleep)


def body(content: str | None, *, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """Return a chat completion without log-probabilities."""
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return {"choices": [choice], "model": "m"}
