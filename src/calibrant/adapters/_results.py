"""Predictions become what gepa takes: outputs, scores, objectives and trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gepa.core.adapter import EvaluationBatch

from calibrant.adapters._grading import feedback_on, score_of
from calibrant.adapters._objectives import Objective
from calibrant.adapters._rows import output_of, trajectory_of
from calibrant.adapters._types import ConfidenceDataInst, ConfidenceRolloutOutput, ConfidenceTrajectory
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Prediction
from calibrant.scoring._protocol import ScoringStrategy


@dataclass(frozen=True, kw_only=True)
class Grader:
    """Grades predictions as an adapter is set up at that moment.

    Attributes
    ----------
    labels : LabelSet
        What answers are compared in.
    strategy : ScoringStrategy
        Scores each answer.
    failure_score : float
        Score without a legal label, in [0, 1].
    high, low : float
        Thresholds of the feedback, in (0, 1].
    objectives : mapping of str to callable
        Per-row objectives by name.
    alternatives : int
        How many a trajectory lists at most.
    """

    labels: LabelSet
    strategy: ScoringStrategy
    failure_score: float
    high: float
    low: float
    objectives: Mapping[str, Objective]
    alternatives: int

    def grade(
        self,
        rows: Sequence[ConfidenceDataInst],
        predictions: Sequence[Prediction],
        *,
        capture_traces: bool,
    ) -> EvaluationBatch[ConfidenceTrajectory, ConfidenceRolloutOutput]:
        """Return the evaluation of a batch, with trajectories only if they are wanted."""
        pairs = list(zip(rows, predictions, strict=True))
        scores = [self._score(row, prediction) for row, prediction in pairs]
        traces = (self._trace(*pair, score) for pair, score in zip(pairs, scores, strict=True))
        return EvaluationBatch(
            outputs=[output_of(prediction) for prediction in predictions],
            scores=scores,
            trajectories=list(traces) if capture_traces else None,
            objective_scores=[
                {name: float(one(prediction, row["answer"])) for name, one in self.objectives.items()}
                for row, prediction in pairs
            ],
        )

    def _score(self, row: ConfidenceDataInst, prediction: Prediction) -> float:
        return score_of(
            prediction,
            row["answer"],
            labels=self.labels,
            strategy=self.strategy,
            failure_score=self.failure_score,
        )

    def _trace(self, row: ConfidenceDataInst, prediction: Prediction, score: float) -> ConfidenceTrajectory:
        feedback = feedback_on(
            prediction,
            row["answer"],
            labels=self.labels,
            context=row.get("additional_context"),
            high=self.high,
            low=self.low,
        )
        return trajectory_of(row, prediction, score=score, feedback=feedback, alternatives=self.alternatives)
