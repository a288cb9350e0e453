"""What a chat request looks like to an OpenAI-compatible server, sent at once or in a batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from calibrant.core import CompletionRequest

__all__ = ["chat_body"]


def chat_body(model: str, request: CompletionRequest, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the body of ``/v1/chat/completions``; the temperature is 0 unless an option says otherwise.

    Parameters
    ----------
    model : str
        The model's name at the server.
    request : CompletionRequest
        What is asked; an option that is None is left out.
    without : collection of str, default ()
        Options that are not the server's business.
    """
    options = {name: value for name, value in request.options.items() if name not in without}
    body: dict[str, Any] = {
        "temperature": 0,
        **options,
        "model": model,
        "messages": [dict(message) for message in request.messages],
    }
    if request.response_format is not None:
        body["response_format"] = dict(request.response_format)
    if request.top_logprobs > 0:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    return {name: value for name, value in body.items() if value is not None}
