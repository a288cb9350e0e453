"""Calls for the next tokens of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from calibrant.core import CompletionRequest, ProviderError

PROMPT = "Which one?"
KEY = "plainword-secret-123"
KINDS = ["llama.cpp", "vllm"]
ROUTES = {"llama.cpp": "/completion", "vllm": "/v1/completions"}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
REQUEST = CompletionRequest(
    messages=({"role": "system", "content": PROMPT}, {"role": "user", "content": "a swim"}), top_logprobs=0
)


async def ask(client: Any, text: str = '{"label": "') -> Any:
    """Return the next tokens, or the probabilities of two labels, for a new row."""
    async with client.continuing(REQUEST) as row:
        if hasattr(row, "label_logprobs"):
            return await row.label_logprobs(text, ("Spa", "Bill"))
        return await row.next_tokens(text)


def failure(client: Any, kind: type[Exception] = ProviderError) -> Any:
    """Return the error of a call, and check that the key is not shown."""
    with pytest.raises(kind) as caught:
        asyncio.run(ask(client))
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value)
    return caught.value
