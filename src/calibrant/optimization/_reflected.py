"""Rows for a reflecting model: those that cost most, and the confusions of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from calibrant.adapters._gepa import ConfidenceAdapter
from calibrant.core._prediction import Outcome, Prediction
from calibrant.optimization._confusions import ConfusionLog

if TYPE_CHECKING:
    from gepa.core.adapter import EvaluationBatch

_REFLECTED: Final = 8  # rows that are shown, at most
_PAIRS: Final = 6  # confusions that are named, at most


class Confusions:
    """Counts, for every prompt, which labels are taken for which, on all rows asked; an `EvaluationObserver`."""

    def __init__(self) -> None:
        self._log = ConfusionLog()

    def observe(
        self,
        candidate: Mapping[str, str],
        rows: Sequence[Mapping[str, Any]],
        predictions: Sequence[Prediction],
    ) -> None:
        """Take note of one candidate's predictions."""
        pairs = [(str(row["input"]), str(row["answer"])) for row in rows]
        self._log.add(_key(candidate), pairs, predictions)

    def describe(self, candidate: Mapping[str, str]) -> str | None:
        """Return the costliest confusions in words, without any text; None where there are none."""
        record = self._log.of(_key(candidate))
        if not record.cost:
            return None
        said = "; ".join(
            f'"{truth}" was taken for "{given}" (summed confidence {cost:.1f})'
            for (truth, given), cost in sorted(record.cost.items(), key=lambda pair: (-pair[1], pair[0]))[
                :_PAIRS
            ]
        )
        return f"On {len(record.got)} rows that were asked under this prompt: {said}."


class ReflectingAdapter(ConfidenceAdapter):
    """A `ConfidenceAdapter` that chooses what a reflecting model reads.

    Attributes
    ----------
    confusions : Confusions
        Must be the adapter's observer.
    """

    confusions: Confusions

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Any, Any],
        components_to_update: list[str],
    ) -> dict[str, list[dict[str, str]]]:
        """Return records of the rows that scored least, and one that names the confusions on all rows."""
        answered = [
            one for one in eval_batch.trajectories or [] if one["prediction"].outcome is not Outcome.ERROR
        ]
        costly = sorted(answered, key=lambda one: float(one["score"]))[:_REFLECTED]
        batch = eval_batch if eval_batch.trajectories is None else replace(eval_batch, trajectories=costly)
        found = super().make_reflective_dataset(candidate, batch, components_to_update)
        said = self.confusions.describe(candidate)
        if said is not None:
            overall = {"Inputs": "all rows together", "Generated Outputs": "", "Feedback": said}
            found = {name: [*records, dict(overall)] for name, records in found.items()}
        return found


def _key(candidate: Mapping[str, str]) -> str:
    return "\0".join(candidate.values())
