"""What a strategy may know of a request: its text, its length, whether it offers tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from calibrant.core._completion import CompletionRequest, Message

_CHARACTERS_PER_TOKEN: Final = 4


def text_of(messages: Sequence[Message] | str) -> str:
    """Return the last user message, or a text as it is; empty where there is none."""
    if isinstance(messages, str):
        return messages
    return next((_content(found) for found in reversed(messages) if found.get("role") == "user"), "")


def question_of(messages: Sequence[Message]) -> str:
    """Return all that was said, in order."""
    return "\n\n".join(filter(None, map(_content, messages)))


def tokens_of(messages: Sequence[Message]) -> int:
    """Return roughly how many tokens messages take: a quarter of their characters, rounded up."""
    return -(-sum(len(_content(message)) for message in messages) // _CHARACTERS_PER_TOKEN)


def has_tools(request: CompletionRequest) -> bool:
    """Return whether a request offers the model tools, in the present or the old way."""
    return bool(request.options.get("tools") or request.options.get("functions"))


def _content(message: Message) -> str:
    """Return a message's text, which some callers write in parts."""
    content: object = message.get("content")
    if isinstance(content, list | tuple):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)
