"""Anchors: rows of a finished run that are asked anew, to notice that the model behind a name was replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from calibrant.core._errors import ConfigurationError, DataError, ProviderError
from calibrant.core._files import SCHEMA_VERSION, as_record
from calibrant.core._prediction import JsonObject, Outcome, Prediction
from calibrant.core._ranks import tie_ranks
from calibrant.core._rows import TextWithContext
from calibrant.runs._rows import SavedRow, SavedRows

if TYPE_CHECKING:
    from calibrant.inference._base import BasePredictor

FEWEST: Final = 5
"""Fewest anchors: seven confidences that all move one way are the least that the test takes for a change."""

NOISE: Final = 0.05
"""Share of the labels that a hosted model may change by itself, between two calls with the same text."""

STILL: Final = 0.005
"""Differences of confidence up to here are none: rounding, and the arithmetic of another batch."""

_LEVEL: Final = 0.95
_DELTA: Final = (1.0 - _LEVEL) / 2  # of each of the two tests


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """Row of a run with its recorded answer and the one of today.

    Attributes
    ----------
    index : int
        Its place in the run's input.
    input : str
        Its text.
    label, label_now : str or None
        Recorded label and that of today.
    confidence, confidence_now : float or None
        Their confidences.
    model, model_now : str or None
        Model that answered, as the provider named it.

    Examples
    --------
    >>> from calibrant.evaluation import Anchor
    >>> then = {"label": "cat", "confidence": 0.9, "model": "m"}
    >>> now = {"label_now": "dog", "confidence_now": 0.6, "model_now": "m"}
    >>> Anchor(index=0, input="purrs", **then, **now).has_changed
    True
    """

    index: int
    input: str
    label: str | None
    label_now: str | None
    confidence: float | None
    confidence_now: float | None
    model: str | None
    model_now: str | None

    @property
    def has_changed(self) -> bool:
        """True if the label is another one."""
        return self.label != self.label_now


@dataclass(frozen=True, kw_only=True)
class AnchorComparison:
    """Recorded answers of a run beside those of today, with two tests of whether its model answers otherwise.

    Attributes
    ----------
    source : str
        Directory of the run.
    failed : int
        Anchors that failed with a transport error today; no number counts them.
    anchors : tuple of Anchor
        The others.

    Examples
    --------
    >>> from calibrant.evaluation import Anchor, AnchorComparison
    >>> then = {"label": "cat", "confidence": 0.9, "model": "m"}
    >>> now = {"label_now": "cat", "confidence_now": 0.9, "model_now": "m"}
    >>> anchor = Anchor(index=0, input="purrs", **then, **now)
    >>> AnchorComparison(source="runs/check", failed=0, anchors=(anchor,)).has_moved
    False
    """

    source: str
    failed: int
    anchors: tuple[Anchor, ...]

    @property
    def n_changed(self) -> int:
        """Anchors with another label."""
        return sum(one.has_changed for one in self.anchors)

    @cached_property
    def most_changed(self) -> float:
        """Exact (Clopper-Pearson) upper bound of the share of the run's rows with another label, at level 0.95."""
        from scipy.stats import beta  # noqa: PLC0415  (heavy)

        n = len(self.anchors)
        changed = self.n_changed
        if changed == n:
            return 1.0
        return float(beta.ppf(_LEVEL, changed + 1, n - changed))

    @cached_property
    def label_p_value(self) -> float:
        """P-value of the exact binomial test that no more labels changed than noise changes (`NOISE`)."""
        from scipy.stats import binom  # noqa: PLC0415  (heavy)

        return float(binom.sf(self.n_changed - 1, len(self.anchors), NOISE))

    @cached_property
    def shifts(self) -> tuple[float, ...]:
        """Differences of the confidence, today's minus the recorded one, where both are known."""
        return tuple(
            one.confidence_now - one.confidence
            for one in self.anchors
            if one.confidence is not None and one.confidence_now is not None
        )

    @property
    def n_rose(self) -> int:
        """Confidences that rose by more than `STILL`."""
        return sum(shift > STILL for shift in self.shifts)

    @property
    def n_fell(self) -> int:
        """Confidences that fell by more than `STILL`."""
        return sum(shift < -STILL for shift in self.shifts)

    @cached_property
    def confidence_p_value(self) -> float:
        """P-value of the exact two-sided sign test: noise raises a confidence as often as it lowers it."""
        from scipy.stats import binomtest  # noqa: PLC0415  (heavy)

        n_moved = self.n_rose + self.n_fell
        if n_moved:
            return float(binomtest(self.n_rose, n_moved).pvalue)
        return 1.0

    @property
    def has_moved(self) -> bool:
        """True if either test, each at 0.025, finds more than noise; noise alone does so in 5 % of the runs at most."""
        return min(self.label_p_value, self.confidence_p_value) <= _DELTA

    @property
    def renamed(self) -> tuple[str, str] | None:
        """Recorded name of the model and today's, as the provider gives them; None if they are equal or several."""
        then = {one.model for one in self.anchors}
        now = {one.model_now for one in self.anchors}
        if len(then) > 1 or len(now) > 1 or then == now:
            return None
        before = then.pop()
        after = now.pop()
        if before is None or after is None:
            return None
        return before, after

    def to_record(self) -> JsonObject:
        """Return the comparison as JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "anchors",
            "source": self.source,
            "rows": len(self.anchors),
            "failed": self.failed,
            "changed": self.n_changed,
            "most_changed": self.most_changed,
            "label_p_value": self.label_p_value,
            "mean_shift": float(np.mean(self.shifts)) if self.shifts else None,
            "rose": self.n_rose,
            "fell": self.n_fell,
            "confidence_p_value": self.confidence_p_value,
            "has_moved": self.has_moved,
            "renamed": self.renamed,
            "anchors": as_record(self.anchors),
        }


def ask_anchors(
    run: str | Path | SavedRows, classifier: BasePredictor, *, count: int = 30
) -> AnchorComparison:
    """Ask rows of a finished run anew, and compare its answers with those of today.

    Parameters
    ----------
    run : str, Path or SavedRows
        Directory of the run, or its rows.
    classifier : BasePredictor
        With prompt, model and settings of the run, as ``Tuned.from_run(run).open()`` has them, and without a journal.
    count : int, default 30
        Number of rows; see `choose_anchors`.

    Raises
    ------
    ConfigurationError, DataError
        Too few rows are wanted, or there.
    ProviderError
        Too few of them were answered.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant.evaluation import ask_anchors
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> client = FakeClient(["cat", "dog"], lambda text: ("cat", 0.9))
    >>> classifier = Classifier(model=client, labels=["cat", "dog"], prompt="Which animal?")
    >>> path = Path(tempfile.mkdtemp()) / "then.jsonl"
    >>> row = '{{"input": "text {}", "label": "dog", "answer": null, "confidence": 0.9}}'
    >>> _ = path.write_text(chr(10).join(row.format(number) for number in range(6)))
    >>> found = ask_anchors(path, classifier, count=6)
    >>> found.n_changed, found.has_moved
    (6, True)
    """
    rows = run if isinstance(run, SavedRows) else SavedRows.load(run)
    chosen = choose_anchors(rows, count)
    texts = [TextWithContext(row.input or "", row.values.get("context")) for row in chosen]
    return compare_anchors(rows, chosen, classifier.classify_many(texts))


def choose_anchors(rows: SavedRows, count: int) -> list[SavedRow]:
    """Return rows of different texts to ask anew, spread evenly over the run's confidences.

    The rows are ordered by confidence and divided into as many parts of equal size; a keyed hash of the text chooses
    one of each. So they stand for all rows, unsure ones among them, which move first.

    Parameters
    ----------
    rows : SavedRows
        Rows of the run.
    count : int
        Number of anchors; fewer are returned if fewer texts have an answer.

    Raises
    ------
    ConfigurationError
        Fewer than `FEWEST`.
    DataError
        So many rows have no text with an answer.
    """
    if count < FEWEST:
        raise ConfigurationError(
            f"Expected at least {FEWEST} rows for --anchors, got {count}: fewer tell nothing; take 30."
        )
    answered = {
        text: place
        for place, text in enumerate(rows.inputs)
        if text is not None and rows.outcomes[place] is not Outcome.ERROR
    }
    if len(answered) < FEWEST:
        raise DataError(
            f"{rows.name}: expected at least {FEWEST} texts with an answer, got {len(answered)}: name another run."
        )
    places = np.array(list(answered.values()))
    ranks = tie_ranks(list(answered))
    order = np.lexsort((ranks, rows.confidence[places]))
    chosen = []
    for part in np.array_split(order, min(count, len(order))):
        first = part[ranks[part].argmin()]
        chosen.append(int(places[first]))
    return list(rows.rows(chosen))


def compare_anchors(
    rows: SavedRows, chosen: Sequence[SavedRow], predictions: Sequence[Prediction]
) -> AnchorComparison:
    """Compare recorded answers with those of today.

    Parameters
    ----------
    rows : SavedRows
        Rows of the run.
    chosen : sequence of SavedRow
        Rows that were asked anew; see `choose_anchors`.
    predictions : sequence of Prediction
        Today's answers to them.

    Raises
    ------
    ProviderError
        Fewer than `FEWEST` of them were answered.
    """
    anchors = []
    failures = []
    for row, now in zip(chosen, predictions, strict=True):
        if now.outcome is Outcome.ERROR:
            failures.append(now.reason)
            continue
        anchor = Anchor(
            index=row.index or 0,
            input=row.input or "",
            label=row.label,
            label_now=now.label,
            confidence=None if np.isnan(row.confidence) else row.confidence,
            confidence_now=now.confidence,
            model=row.values.get("model"),
            model_now=now.model,
        )
        anchors.append(anchor)
    if len(anchors) < FEWEST:
        why = next(iter(failures), "")
        raise ProviderError(
            f"expected at least {FEWEST} rows to be answered anew, got {len(anchors)} of {len(chosen)} ({why:.200}): "
            "ask again when the server answers.",
            provider=rows.name,
        )
    return AnchorComparison(source=rows.name, failed=len(failures), anchors=tuple(anchors))
