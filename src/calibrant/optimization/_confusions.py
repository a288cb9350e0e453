"""Log of the confusions of each prompt of a search: pairs of a true label and the one answered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from calibrant.core._prediction import Outcome, Prediction

UNKNOWN_CONFIDENCE = 0.5


@dataclass
class PromptRecord:
    """Record of the answers under one prompt.

    Attributes
    ----------
    cost : Counter of (true label, predicted label)
        Summed confidence of the wrong answers, by pair.
    given : Counter of str
        How often each label was answered.
    true : Counter of str
        How often each label was the truth.
    got : mapping of str to str
        The label answered to each text seen.
    """

    cost: Counter[tuple[str, str]] = field(default_factory=Counter)
    given: Counter[str] = field(default_factory=Counter)
    true: Counter[str] = field(default_factory=Counter)
    got: dict[str, str] = field(default_factory=dict)

    def add(self, text: str, answer: str, prediction: Prediction) -> None:
        """Take note of one prediction; the first one for a text counts."""
        if prediction.outcome is not Outcome.OK or prediction.label is None or text in self.got:
            return
        self.got[text] = prediction.label
        self.true[answer] += 1
        self.given[prediction.label] += 1
        if prediction.label != answer:
            confidence = UNKNOWN_CONFIDENCE if prediction.confidence is None else prediction.confidence
            self.cost[answer, prediction.label] += confidence  # type: ignore[assignment]

    def excess(self, label: str) -> int:
        """Return the surplus of `label`: times it was answered minus times it was true."""
        return self.given[label] - self.true[label]


class ConfusionLog:
    """Predictions of every prompt of a search."""

    def __init__(self) -> None:
        self._records: dict[str, PromptRecord] = defaultdict(PromptRecord)

    def add(self, prompt: str, rows: Sequence[tuple[str, str]], predictions: Iterable[Prediction]) -> None:
        """Take note of predictions on rows of (text, true label)."""
        record = self._records[prompt]
        for (text, answer), prediction in zip(rows, predictions, strict=True):
            record.add(text, answer, prediction)

    def of(self, prompt: str) -> PromptRecord:
        """Return the record of `prompt`; an empty one before its first row."""
        return self._records[prompt] if prompt in self._records else PromptRecord()
