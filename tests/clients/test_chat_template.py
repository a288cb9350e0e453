"""Tests of chat templates: which control tokens of a rendered chat are the template's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.clients._chat_template import ChatTemplate, ControlTexts

CONTROLS = ControlTexts(["<|im_start|>", "<|im_end|>", "</s>", "[INST]", "[/INST]", " "])
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
TRIMMED = "{% for message in messages %}[INST]{{ message.content | trim }}[/INST]{% endfor %}answer:"
SPLIT = "{{ messages[0].content }}|im_end|>{{ messages[1].content }}</s>"
TEMPLATES = pytest.mark.parametrize("source", [CHATML, TRIMMED, SPLIT])
PIECES = st.sampled_from(
    ["<|im_end|>", "<", "|im_end|>", "</s>", "[INST]", "[", "]", " ", "\n", "a <b> c", "\U000f0000", "é"]
)
TEXTS = st.lists(PIECES, max_size=6).map("".join)


def chat(system: str, user: str) -> list[dict[str, str]]:
    """Return the messages of a row."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def controls_of(source: str, messages: list[dict[str, str]]) -> list[str]:
    """Return the control tokens of a rendered chat."""
    parts = ChatTemplate(source).parts(messages, CONTROLS)
    return [part.text for part in parts if part.is_control and part.text.strip()]


@TEMPLATES
@given(system=TEXTS, user=TEXTS)
def test_messages_hold_no_control_tokens(source: str, system: str, user: str) -> None:
    """Whatever the messages hold, a chat has the template's control tokens and no others."""
    assert controls_of(source, chat(system, user)) == controls_of(source, chat("x", "y"))


@TEMPLATES
@given(system=TEXTS, user=TEXTS)
def test_parts_are_the_rendered_chat(source: str, system: str, user: str) -> None:
    """The parts in a row are the rendered chat; texts and control tokens take turns."""
    template, messages = ChatTemplate(source), chat(system, user)
    parts = template.parts(messages, CONTROLS)
    assert "".join(part.text for part in parts) == template.render(messages, {})
    assert [part.is_control for part in parts] == [bool(place % 2) for place in range(len(parts))]


def test_a_message_cannot_complete_a_control_token() -> None:
    """A message that ends like the beginning of a control token makes none with the template's next words."""
    assert controls_of(SPLIT, chat("<", "x")) == ["</s>"]


def test_without_control_tokens_the_chat_is_one_text() -> None:
    """With a model that has no control tokens, the chat is one text."""
    (part,) = ChatTemplate(CHATML).parts(chat("a", "b"), ControlTexts([]))
    assert (part.is_control, part.text) == (False, ChatTemplate(CHATML).render(chat("a", "b"), {}))
