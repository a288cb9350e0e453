"""Chat templates: prompts from messages, in the Jinja dialect of ``tokenizer_config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from calibrant.core._completion import Message
from calibrant.core._errors import ConfigurationError

if TYPE_CHECKING:
    import jinja2


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
            msg = f"Expected chat_template to be the text of a Jinja template, got {source!r:.80}."
            raise ConfigurationError(msg)
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
