"""Other prompts than its own, and descriptions of labels, that a task gives a search to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from calibrant.core._labels import LabelSet
from calibrant.core._sections import Problem


class GivenPrompts(Protocol):
    """The part of a task that a search tries first."""

    @property
    def prompt(self) -> str: ...
    @property
    def other_prompts(self) -> Sequence[str]: ...
    @property
    def label_descriptions(self) -> Mapping[str, str]: ...


def given_problems(given: GivenPrompts, labels: LabelSet) -> Iterator[Problem]:
    """Yield other prompts that are no text or there twice, and descriptions that fit no label."""
    yield from _prompt_problems(given.prompt, given.other_prompts)
    yield from _description_problems(given.label_descriptions, labels)


def _prompt_problems(prompt: str, others: Sequence[str]) -> Iterator[Problem]:
    if isinstance(others, str):
        yield (
            ("other_prompts",),
            f"expected a list of other_prompts, got {others!r:.80}: write [{others!r:.80}].",
        )
        return
    seen = {prompt.strip()}
    for number, other in enumerate(others):
        if not isinstance(other, str) or not other.strip():
            yield (
                ("other_prompts", number),
                f"expected other_prompts with text, got {other!r:.80}: leave it out.",
            )
        elif other.strip() in seen:
            problem = (
                f"expected other_prompts that differ from the prompt and each other, got {other!r:.80} again"
            )
            yield ("other_prompts", number), f"{problem}: leave it out."
        else:
            seen.add(other.strip())


def _description_problems(descriptions: Mapping[str, str], labels: LabelSet) -> Iterator[Problem]:
    if descriptions and type(labels) is not LabelSet:
        problem = "expected label_descriptions of plain labels alone, got some of labels with a structure or of answers"
        yield ("label_descriptions",), f"{problem} that hold several labels: leave them out."
        return
    seen = set()
    for name, text in descriptions.items():
        place, label = ("label_descriptions", name), labels.canonical(name)
        if label is None:
            names = ", ".join(map(repr, labels))
            yield (
                place,
                f"expected label_descriptions of the labels {names:.200}, got one of {name!r:.80}: correct it.",
            )
        elif label in seen:
            yield place, f"expected one description for each label, got two of {label!r:.80}: remove one."
        elif not isinstance(text, str) or not text.strip():
            yield (
                place,
                f"expected a sentence about the label {label!r:.80}, got {text!r:.80}: add it, or leave it out.",
            )
        seen.add(label)
