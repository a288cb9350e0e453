"""Label descriptions as text: one line for each label, alone or as a list in a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet

LABEL_DESCRIPTIONS: Final = "label_descriptions"
"""Name of the component of a candidate that holds the lines of `description_lines`."""
_HEADING: Final = "\n\nLabels:\n"
_BULLET: Final = "- "


def takes_descriptions(labels: LabelSet) -> bool:
    """Return True if labels can be described, one on each line: plain ones, without line breaks."""
    return labels.is_plain and not any("\n" in label for label in labels)


def description_lines(descriptions: Mapping[str, str], labels: LabelSet) -> str:
    """Return one line ``label: description`` for each label, which `read_descriptions` converts back."""
    return "\n".join(f"{label}: {_one_line(descriptions.get(label, ''))}".rstrip() for label in labels)


def read_descriptions(text: str, labels: LabelSet) -> dict[str, str]:
    r"""Return the descriptions in a text of `description_lines`, by label; {} where it is blank.

    Raises
    ------
    ConfigurationError
        A line is of no label, a label has two lines, or it has none.

    Examples
    --------
    >>> read_descriptions("cat: It purrs.\ndog:", LabelSet(["cat", "dog"]))
    {'cat': 'It purrs.'}
    """
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.split("\n"))):
        label, words = _divided(line, labels)
        if label is None or label in found:
            raise _unexpected(f"{line!r:.80}{'' if label is None else ' as a second one'}", labels)
        found[label] = words
    missing = [label for label in labels if label not in found]
    if found and missing:
        raise _unexpected(f"none for {missing[0]!r:.80}", labels)
    return {label: words for label, words in found.items() if words}


def label_list(descriptions: Mapping[str, str], labels: LabelSet) -> str:
    """Return the list of labels and descriptions that follows an instruction; a label without one stands alone."""
    words = {label: f": {_one_line(text)}" for label, text in descriptions.items()}
    return _HEADING + "\n".join(f"{_BULLET}{label}{words.get(label, '')}" for label in labels)


def split_label_list(prompt: str, labels: LabelSet) -> tuple[str, dict[str, str] | None]:
    """Return a prompt without its list of all labels, and their descriptions; None where it has no such list."""
    before, heading, after = prompt.rpartition(_HEADING)
    lines = after.split("\n")
    listed, rest = lines[: len(labels)], lines[len(labels) :]
    if not heading or not all(line.startswith(_BULLET) for line in listed):
        return prompt, None
    try:
        found = read_descriptions("\n".join(line.removeprefix(_BULLET) for line in listed), labels)
    except ConfigurationError:
        return prompt, None
    return "\n".join([before, *rest]), found


def _divided(line: str, labels: LabelSet) -> tuple[str | None, str]:
    """Return the label and the description of a line; a label may hold colons itself."""
    ends = [len(line), *(end for end in range(len(line) - 1, 0, -1) if line[end] == ":")]
    for end in ends:
        label = labels.canonical(line[:end])
        if label is not None:
            return label, _one_line(line[end + 1 :])
    return None, ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _unexpected(got: str, labels: LabelSet) -> ConfigurationError:
    names = ", ".join(map(repr, labels))
    return ConfigurationError(
        f"Expected label descriptions with one line for each label, as label: description, got {got}: the labels are "
        f"{names:.2000}; a label without a description has its colon alone."
    )
