"""Prompt templates of verifiers: checks, filling and quoting."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from calibrant.core._errors import ConfigurationError

SLOT: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
# Marks of turns in chat templates (<|im_end|>, </s>, <start_of_turn>, [INST]): inside a text one would be read
# as such a mark, so its first character is written as a JSON escape.
_MARK: Final = re.compile(r"<(?=[|\uff5c/A-Za-z])|\[(?=/?[A-Z_]+\])")

_FOLDER: Final = Path(__file__).parent
SELF_VERIFY_PROMPT: Final = (_FOLDER / "self_verify_prompt.txt").read_text(encoding="utf-8").rstrip("\n")
VERIFIER_PROMPT: Final = (_FOLDER / "verifier_prompt.txt").read_text(encoding="utf-8")


def check_slots(template: object, needed: Sequence[str], *, whose: str) -> None:
    """Refuse a template without a required placeholder, such as ``{question}``.

    Raises
    ------
    ConfigurationError
        A slot is missing, or the template is no text.
    """
    slots = [f"{{{name}}}" for name in needed]
    missing = [slot for slot in slots if not isinstance(template, str) or slot not in template]
    if missing:
        raise ConfigurationError(
            f"Expected {whose} to be a text with the slots {', '.join(slots)}, got one without "
            f"{' and '.join(missing)}: write each where its text is to go, without quotation marks."
        )


def fill_slots(template: str, texts: Mapping[str, str]) -> str:
    """Fill the placeholders of a template with texts; other braces stay as they are."""
    # In one pass: a slot that is named in a text stays text.
    return SLOT.sub(lambda slot: texts.get(slot[1], slot[0]), template)


def quoted(value: object) -> str:
    """Quote a value as JSON, with chat-template marks escaped."""
    return _MARK.sub(lambda mark: f"\\u{ord(mark[0]):04x}", json.dumps(value, ensure_ascii=False))
