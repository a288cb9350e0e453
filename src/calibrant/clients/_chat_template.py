"""Chat templates: prompts from messages, in the Jinja dialect of ``tokenizer_config.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from calibrant.core._completion import Message
from calibrant.core._errors import ConfigurationError

if TYPE_CHECKING:
    import jinja2

_FIRST_STAND_IN: Final = 0xF0000  # of the supplementary private use areas


@dataclass(frozen=True, kw_only=True)
class ChatPart:
    """Part of a rendered chat: a control token of the template, or the text between two of them.

    Attributes
    ----------
    text : str
        The text of the part; empty between two adjacent control tokens.
    is_control : bool
        True for a control token.
    """

    text: str
    is_control: bool


class ControlTexts:
    """Texts of a model's control tokens, as a chat template writes them.

    Parameters
    ----------
    texts : iterable of str
        The texts, such as ``<|im_start|>``.

    Attributes
    ----------
    pattern : re.Pattern
        Matches any of the texts; the longest one where several match.
    edges : str
        The characters that begin or end a text, except white space.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        longest_first = sorted(texts, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        edges = {text[0] for text in longest_first} | {text[-1] for text in longest_first}
        self.edges = "".join(sorted(edge for edge in edges if not edge.isspace()))


class ChatTemplate:
    """Chat template of a model.

    It is rendered in a sandbox with ``messages``, ``add_generation_prompt`` true, and ``bos_token`` and
    ``eos_token`` empty: the server adds the token that begins a text itself.

    Parameters
    ----------
    source : str
        A Jinja template.

    Raises
    ------
    ConfigurationError
        `source` is no template.
    """

    def __init__(self, source: str) -> None:
        if not isinstance(source, str) or not source.strip():
            raise ConfigurationError(
                f"Expected chat_template to be the text of a Jinja template, got {source!r:.80}."
            )
        self._template = _compiled(source)

    def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        """Return the prompt up to the beginning of the answer.

        Parameters
        ----------
        messages : sequence of mappings
            The chat.
        options : mapping
            More variables of the template (``chat_template_kwargs``).

        Raises
        ------
        ConfigurationError
            The template does not take these messages.
        """
        variables = {
            "bos_token": "",
            "eos_token": "",
            **options,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
        }
        try:
            return self._template.render(variables)
        except Exception as error:
            raise ConfigurationError(
                f"The chat_template cannot be rendered ({type(error).__name__}: {error}). Give the one of the "
                "model's tokenizer_config.json, and messages it allows."
            ) from error

    def parts(self, messages: Sequence[Message], controls: ControlTexts) -> list[ChatPart]:
        """Return the prompt in parts: control tokens that the template wrote, and the texts around them.

        The text of a control token inside a message stays text. Templates join, trim and test messages, so the
        origin of a rendered character is not known afterwards: the edges of control texts in the messages are
        replaced by stand-ins while the template is rendered. What matches then begins and ends in the template.

        Parameters
        ----------
        messages : sequence of mappings
            The chat.
        controls : ControlTexts
            The model's control tokens.

        Returns
        -------
        list of ChatPart
            Texts and control tokens in turn; the first and the last part are texts.

        Raises
        ------
        ConfigurationError
            The template does not take these messages.
        """
        stand_ins = _unused_characters("".join(value for message in messages for value in message.values()))
        hidden = {ord(edge): stand_in for edge, stand_in in zip(controls.edges, stand_ins, strict=False)}
        shown = {ord(stand_in): chr(edge) for edge, stand_in in hidden.items()}
        disguised = [
            {name: value.translate(hidden) for name, value in message.items()} for message in messages
        ]
        rendered = self.render(disguised, {})
        parts = []
        start = 0
        for match in controls.pattern.finditer(rendered):
            text = rendered[start : match.start()].translate(shown)
            control = match.group().translate(shown)
            parts += [ChatPart(text=text, is_control=False), ChatPart(text=control, is_control=True)]
            start = match.end()
        return [*parts, ChatPart(text=rendered[start:].translate(shown), is_control=False)]


def _unused_characters(text: str) -> Iterator[str]:
    """Yield private-use characters that `text` does not hold."""
    used = set(text)
    for code in range(_FIRST_STAND_IN, 0x10FFFE):
        if chr(code) not in used:
            yield chr(code)


def _compiled(source: str) -> jinja2.Template:
    from jinja2 import TemplateError  # noqa: PLC0415 (keeps `import calibrant` light)
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    # The settings that templates of tokenizer_config.json assume.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    # Jinja's own filter escapes characters that are markup in HTML.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ConfigurationError(
            f"Expected chat_template to be a Jinja template, got one that is not: {error}."
        ) from error


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)
