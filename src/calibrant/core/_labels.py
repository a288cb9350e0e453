"""Label sets of a task, the graded aspects of an answer, and label descriptions as text."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, overload

import numpy as np

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import LabelDistribution, Outcome, Prediction
from calibrant.core._reported import one_line
from calibrant.core._schema import enum_node, parse_path, placed_value

_LABEL: Final = "label"
LABEL_DESCRIPTIONS: Final = "label_descriptions"
"""Name of the component of a candidate that holds the lines of `description_lines`."""
_HEADING: Final = "\n\nLabels:\n"
_BULLET: Final = "- "


def normalise_label(text: str) -> str:
    """Return `text` as it is compared with others: without regard to case, white space and the form of accents."""
    if not text.isascii():  # some programs write an accented letter as one character, and others as two
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split()).casefold()


def label_text(value: object) -> object:
    """Return a whole number or a truth value as text, as JSON writes it; anything else unchanged."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        return json.dumps(value)
    return value


@dataclass(frozen=True, kw_only=True)
class Aspect:
    """Graded part of an answer: its label, a rank or level of it, a field, or one label of a set.

    Attributes
    ----------
    name : str
        Name of the question; unique among the aspects of an answer.
    predicted, expected : str
        The value that was answered, and the true one.
    confidence : float or None
        Confidence in `predicted`, in [0, 1]; None where it is unknown.
    distribution : LabelDistribution or None
        Over the values of this question; None where it is unknown.
    weight : float
        Weight in a mean over the aspects of an answer, above 0.

    Examples
    --------
    >>> Aspect(name="level 1", predicted="Food", expected="Food").is_correct
    True
    """

    name: str
    predicted: str
    expected: str
    confidence: float | None = None
    distribution: LabelDistribution | None = None
    weight: float = 1.0

    @property
    def is_correct(self) -> bool:
        """True if the predicted value equals the expected value."""
        return self.predicted == self.expected

    @property
    def log_confidence(self) -> float | None:
        """Natural logarithm of `confidence`, <= 0; None where it is unknown."""
        if self.confidence is None:
            return None
        return math.log(max(min(self.confidence, 1.0), 1e-300))


@dataclass(frozen=True)
class LabelSet(Sequence[str]):
    """An ordered set of at least two distinct labels.

    Labels are compared without regard to case and surrounding space, so no two of them
    may be equal in that sense.

    Parameters
    ----------
    labels : sequence of str
        The labels, in the order every array over labels follows.

    Attributes
    ----------
    structure : str
        Name of the kind of labels, as in task files and records; ``flat`` has no relation between labels.
    is_open : bool
        True if labels are learned as they come.
    holds_several : bool
        True if an answer holds several labels, and is spelled as JSON text.
    is_set : bool
        True if an answer is a set of the labels, of any size.
    takes_separator : bool
        True if labels are divided at a separator, the second argument.

    Raises
    ------
    ConfigurationError
        Fewer than two labels, an empty one, duplicates, or two equal after case folding.

    Examples
    --------
    >>> from calibrant.core import LabelSet
    >>> labels = LabelSet(["Food", "Rent"])
    >>> labels.canonical(" food "), labels.canonical("Taxi"), labels[1]
    ('Food', None, 'Rent')
    """

    structure: ClassVar[str] = "flat"
    is_open: ClassVar[bool] = False
    holds_several: ClassVar[bool] = False
    is_set: ClassVar[bool] = False
    takes_separator: ClassVar[bool] = False
    labels: tuple[str, ...]
    _canonical: dict[str, str] = field(init=False, repr=False, compare=False)

    def __init__(self, labels: Sequence[str]) -> None:
        if isinstance(labels, str):
            raise ConfigurationError(
                f"Expected a list of labels, got the text {labels!r}: write [{labels!r}, ...]."
            )
        given: Any = labels
        if given is None or isinstance(given, Mapping | set | frozenset):
            raise ConfigurationError(
                f"Expected a list of labels, got {type(given).__name__}: list them, in the same order in every process."
            )
        if isinstance(given, np.ndarray):  # whose texts print as those of numpy
            given = given.tolist()
        object.__setattr__(self, "labels", tuple(given))
        object.__setattr__(self, "_canonical", _index(self.labels))

    @classmethod
    def of(cls, labels: LabelSet | Sequence[str]) -> LabelSet:
        """Return `labels` as a label set; a label set is returned unchanged."""
        if isinstance(labels, LabelSet):
            return labels
        return cls(labels)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {label: place for place, label in enumerate(self.labels)}

    @property
    def is_plain(self) -> bool:
        """True if an answer is one of the labels, and right or wrong."""
        return self.structure == LabelSet.structure

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts of an answer, in order: here the label alone."""
        return (_LABEL,)

    def canonical(self, text: str) -> str | None:
        """Return the label that equals `text` up to case and surrounding space, or None."""
        return self.label_of(text)

    def label_of(self, text: str) -> str | None:
        """Return the label that equals `text` up to case and surrounding space, or None; of any structure."""
        return self._canonical.get(normalise_label(text))

    def values(self, answer: str) -> dict[str, str]:
        """Return the value of each part of a canonical answer, by part name and in order."""
        return {_LABEL: answer}

    def answer_of(self, values: Mapping[str, str]) -> str:
        """Return the canonical answer with these part values; inverse of `values`."""
        return values[_LABEL]

    def labels_of(self, part: str) -> LabelSet:  # noqa: ARG002 (there is one)
        """Return the legal values of a part."""
        return self

    def decisions(self, answer: str) -> frozenset[str]:
        """Return the labels that a canonical answer assigns: here the answer."""
        return frozenset([answer])

    def json_value(self, answer: str) -> Any:  # noqa: ANN401
        """Return a canonical answer as a JSON value: here a text."""
        return answer

    def document(self, value: Any, field: str) -> Any:  # noqa: ANN401
        """Return the smallest JSON document that holds an answer where the model writes it.

        Parameters
        ----------
        value : str, mapping or sequence
            The answer as `json_value` returns it; its labels may be other texts.
        field : str
            JSON path of the label.
        """
        return placed_value(parse_path(field), value)

    def schema(self, field: str) -> dict[str, Any]:
        """Return the JSON schema of the documents that hold a legal answer and nothing else.

        Raises
        ------
        ConfigurationError
            A path is malformed, or two contradict each other.
        """
        return enum_node(self.labels, parse_path(field))

    def lead_path(self, field: str) -> str:
        """Return the JSON path of the first value that every document of an answer holds."""
        return field

    def reading_settings(self) -> dict[str, Any]:
        """Return the settings of reading beside `labels`, as JSON values."""
        return {}

    def record(self) -> Any:  # noqa: ANN401
        """Return the label set as JSON values: a list of plain labels, else an object that names the structure."""
        names = list(self.labels)
        if self.is_plain:
            return names
        return {"structure": self.structure, "labels": names}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> LabelSet | None:
        """Return the label set of an object written by `record`; None if its keys are others."""
        if set(record) != {"structure", "labels"}:
            return None
        return cls(record["labels"])

    def aspects(self, prediction: Prediction, answer: str) -> tuple[Aspect, ...]:
        """Return the graded aspects of an answer with their confidence: here only the label.

        Parameters
        ----------
        prediction : Prediction
            An answer with a label.
        answer : str
            The true label, spelled as in the label set.
        """
        return (
            Aspect(
                name=_LABEL,
                predicted=prediction.label or "",
                expected=answer,
                confidence=prediction.confidence,
                distribution=prediction.distribution,
            ),
        )

    def credit(self, prediction: Prediction, answer: str) -> float:
        """Return the weighted share of correct aspects, in [0, 1], regardless of confidence.

        Parameters
        ----------
        prediction : Prediction
            An answer; without a legal label its credit is 0.
        answer : str
            The true label, spelled as in the label set.
        """
        if prediction.outcome is not Outcome.OK:
            return 0.0
        aspects = self.aspects(prediction, answer)
        right = math.fsum(aspect.weight for aspect in aspects if aspect.is_correct)
        return right / math.fsum(aspect.weight for aspect in aspects)

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self.labels[index]

    def __contains__(self, label: object) -> bool:
        return label in self.labels


def as_label_set(labels: Iterable[str] | None) -> LabelSet:
    """Return a label set as it is; an open one in place of names, or of None."""
    if isinstance(labels, LabelSet):
        return labels
    return OpenLabels()


class OpenLabels(LabelSet):
    """Label set that grows: every non-blank text passed to `canonical` becomes a label.

    For models that are called without a schema. Labels are added at the end and never removed, so a distribution
    over the labels of an earlier moment is a beginning of a later one's. Two sets are equal only if they are the
    same object. Safe to use from several threads.

    Examples
    --------
    >>> from calibrant.core import OpenLabels
    >>> labels = OpenLabels()
    >>> [labels.canonical(text) for text in ("Food", "Taxi", " food")], labels.labels
    (['Food', 'Taxi', 'Food'], ('Food', 'Taxi'))
    """

    structure: ClassVar[str] = "open"
    is_open: ClassVar[bool] = True

    def __init__(self) -> None:
        object.__setattr__(self, "_canonical", {})

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels seen so far, oldest first."""
        return tuple(self._canonical.values())

    def canonical(self, text: str) -> str | None:
        """Return the first spelling of `text`, adding a new label if needed; None for blank text."""
        key = normalise_label(text)
        if key:
            return self._canonical.setdefault(key, text.strip())
        return None

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def label_in(value: object, labels: LabelSet) -> str | None:
    """Return the label of a set that a JSON value spells, or None."""
    if isinstance(value, str):
        return labels.canonical(value)
    return None


def _index(labels: tuple[object, ...]) -> dict[str, str]:
    if len(labels) < 2:
        raise ConfigurationError(f"Expected at least two labels, got {len(labels)}: {list(labels)}.")
    found: dict[str, str] = {}
    for label in labels:
        if not isinstance(label, str):
            raise ConfigurationError(
                f"Expected every label to be text, got {label!r} ({type(label).__name__}): quote it."
            )
        key = normalise_label(label)
        if not key:
            raise ConfigurationError(
                f"Expected every label to hold text, got {label!r}: remove it or name it."
            )
        if key in found:
            same = "twice" if found[key] == label else f"and {found[key]!r}, equal up to case and spaces"
            raise ConfigurationError(f"Expected distinct labels, got {label!r} {same}: keep one of them.")
        found[key] = label
    return found


def takes_descriptions(labels: LabelSet) -> bool:
    """Return True if a prompt can list labels, one on each line: those of one-label answers, without line breaks."""
    return not (labels.holds_several or labels.is_open or any("\n" in label for label in labels))


def description_lines(descriptions: Mapping[str, str], labels: LabelSet) -> str:
    """Return one line ``label: description`` for each label, which `read_descriptions` converts back."""
    return "\n".join(f"{label}: {one_line(descriptions.get(label, ''))}".rstrip() for label in labels)


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
    words = {label: f": {one_line(text)}" for label, text in descriptions.items()}
    return _HEADING + "\n".join(f"{_BULLET}{label}{words.get(label, '')}" for label in labels)


def split_label_list(prompt: str, labels: LabelSet) -> tuple[str, dict[str, str] | None]:
    """Return a prompt without its list of all labels, and their descriptions; None where it has no such list."""
    before, heading, after = prompt.rpartition(_HEADING)
    lines = after.split("\n")
    listed = lines[: len(labels)]
    rest = lines[len(labels) :]
    if not heading or not all(line.startswith(_BULLET) for line in listed):
        return prompt, None
    try:
        found = read_descriptions("\n".join(line.removeprefix(_BULLET) for line in listed), labels)
    except ConfigurationError:
        return prompt, None
    return "\n".join([before, *rest]), found


def _divided(line: str, labels: LabelSet) -> tuple[str | None, str]:
    """Return the label and the description of a line; a label may hold colons itself."""
    colons = [end for end in range(len(line) - 1, 0, -1) if line[end] == ":"]
    for end in (len(line), *colons):
        label = labels.canonical(line[:end])
        if label is not None:
            return label, one_line(line[end + 1 :])
    return None, ""


def _unexpected(got: str, labels: LabelSet) -> ConfigurationError:
    names = ", ".join(map(repr, labels))
    return ConfigurationError(
        f"Expected label descriptions with one line for each label, as label: description, got {got}: the labels are "
        f"{names:.2000}; a label without a description has its colon alone."
    )
