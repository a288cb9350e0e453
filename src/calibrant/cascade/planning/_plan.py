"""A plan: which model answers which row, what this costs, how good it is, and what is guaranteed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._calibrators import ConfidenceCalibrator
from calibrant.calibration._choice import calibrator_from_record
from calibrant.cascade.planning._priced import PricedPolicy, Prices
from calibrant.cascade.planning._rules import KeepPolicy, KeepRule
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import damaged_record, read_record, write_record
from calibrant.core._fingerprint import Fingerprint

if TYPE_CHECKING:
    from calibrant.cascade._cascade import Cascade
    from calibrant.inference._classifier import Classifier

_KIND: Final = "cascade plan"
_VERSION: Final = 1
_MAKE: Final = "plan"
_FILE: Final = "plan.json"

Goal = Literal["certified", "target_accuracy", "budget"]


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """One of the models of a plan.

    Attributes
    ----------
    name : str
        Of its run.
    cost, verifier_cost : float
        Of an answer, and of finding out how sure it is.
    calibration : str
        How its confidence was calibrated: ``none``, or a method of `select_calibrator`.
    calibrator : ConfidenceCalibrator or None
        Fitted on the planning half; None for the last model, and where nothing was gained.
    fingerprint : mapping or None
        `Fingerprint.to_record` of the run, where it says.
    """

    name: str
    cost: float
    verifier_cost: float
    calibration: str = "none"
    calibrator: ConfidenceCalibrator | None = field(default=None, compare=False)
    fingerprint: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class PlanningRows:
    """The rows of a plan.

    Attributes
    ----------
    given, paired : int
        Rows of each run; those on which it is known of every model whether it is right.
    failed, unlabelled : int
        Rows left out because a model failed for the server's reasons; others because it is not known whether
        an answer is right.
    planning, reporting : int
        Paired rows of the half that policies were chosen on, and of the other.
    """

    given: int
    paired: int
    failed: int
    unlabelled: int
    planning: int
    reporting: int


@dataclass(frozen=True, kw_only=True)
class PlanCertificate:
    """What is known about the loss against always using the last model.

    Attributes
    ----------
    holds : bool
        Whether, with probability ``1 - delta``, the policy loses less than epsilon.
    epsilon, delta : float
        As above.
    p_value : float
        Exact, of "it loses epsilon or more", for this policy by itself; 0 for the last model alone.
    loss : float
        Accuracy of the last model minus that of the policy on these rows.
    rows : int
        Rows of the test.
    method : {"sequence", "single test"}
        Whether thresholds were tested one after the other, from "route everything", on these rows, or one
        policy that was chosen on others.
    fewest_rows : int
        So many rows are needed where both are right on the same ones; fewer do where the policy is right more often.
    """

    holds: bool
    epsilon: float
    delta: float
    p_value: float
    loss: float
    rows: int
    method: Literal["sequence", "single test"]
    fewest_rows: int


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """One corner of the best trade of cost against accuracy.

    Attributes
    ----------
    policy : KeepPolicy
        What it takes.
    planned_cost, planned_accuracy : float
        Per row, on the half it was found on: too good by chance.
    cost, accuracy : float
        On the other half.
    """

    policy: KeepPolicy
    planned_cost: float
    planned_accuracy: float
    cost: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class CascadePlan:
    """A policy, and everything it rests on.

    Attributes
    ----------
    goal : {"certified", "target_accuracy", "budget"}
        What the policy was chosen for.
    value : float or None
        The target or the budget.
    policy : KeepPolicy
        What was chosen.
    certificate : PlanCertificate
        What is known about its loss.
    report : PricedPolicy
        The policy on the reporting half, with intervals. ``held_out`` is False where it was certified on all rows.
    alone : tuple of PricedPolicy, one per model
        Every model alone, on the reporting half.
    frontier : tuple of FrontierPoint
        From the cheapest to the most accurate.
    models : tuple of PlannedModel
        In the order of escalation.
    rows : PlanningRows
        How many there were.
    method : str
        The confidence method the recorded confidences come from.
    key : str or None
        Of the hash of texts by which equally sure answers are told apart (`tie_ranks`); each rule but the
        first has a key derived from it. None in plans of earlier versions, which take or leave such answers whole.
    """

    goal: Goal
    value: float | None
    policy: KeepPolicy
    certificate: PlanCertificate
    report: PricedPolicy
    alone: tuple[PricedPolicy, ...]
    frontier: tuple[FrontierPoint, ...]
    models: tuple[PlannedModel, ...]
    rows: PlanningRows
    method: str = "label_probability"
    key: str | None = None

    @property
    def certified(self) -> bool:
        """Whether the guarantee holds for the policy, and it is more than the last model alone."""
        return self.certificate.holds and self.policy.members != (len(self.models) - 1,)

    @property
    def threshold(self) -> float | None:
        """The confidence from which the first model's answer is kept: as reported, or calibrated if the policy is.

        None where the first model is not asked, its answers are not looked at, or what is kept is no threshold; that
        includes a share of the answers at one, which `tied_share` tells.
        """
        rule = self._first_rule
        return None if rule is None else rule.threshold

    @property
    def tied_confidence(self) -> float | None:
        """The confidence of the first model above which all of its answers are kept, and at which a share of them is.

        None where no tied block is split.
        """
        rule = self._first_rule
        return None if rule is None else rule.tied_confidence

    @property
    def tied_share(self) -> float | None:
        """The share that is kept of the answers at `tied_confidence`; None where no tied block is split."""
        rule = self._first_rule
        return rule.tied_share if rule is not None and rule.splits else None

    @property
    def _first_rule(self) -> KeepRule | None:
        return self.policy.rules[0] if self.policy.members[0] == 0 and self.policy.rules else None

    @property
    def calibrators(self) -> tuple[ConfidenceCalibrator | None, ...]:
        """Of each model, as the policy needs them; None where confidence counts as it is reported."""
        return tuple(model.calibrator if self.policy.calibrated else None for model in self.models)

    @property
    def prices(self) -> Prices:
        """What the plan reckons with."""
        return Prices(
            models=tuple(model.cost for model in self.models),
            verifier=tuple(model.verifier_cost for model in self.models),
        )

    def confidence(
        self, raw: NDArray[np.float64], labels: Sequence[Sequence[str] | None] | None = None
    ) -> NDArray[np.float64]:
        """Return the confidences that the policy is about, from those reported, both of shape (m, n)."""
        given = [None] * len(raw) if labels is None else labels
        return np.array(
            [calibrated(p, found, own) for p, found, own in zip(raw, self.calibrators, given, strict=True)]
        )

    def check(self, fingerprints: Sequence[Fingerprint | None]) -> None:
        """Refuse models that the plan was not made for.

        Parameters
        ----------
        fingerprints : sequence of (Fingerprint or None), one per model
            Of the classifiers or runs, in the plan's order; None is not compared.

        Raises
        ------
        StateError
            A model, prompt, label set or log-probability space is another one; the message names which.
        """
        if len(fingerprints) != len(self.models):
            raise StateError(
                f"Expected {len(self.models)} models, as planned ({', '.join(one.name for one in self.models)}), got "
                f"{len(fingerprints)}: hand in one for each, in that order."
            )
        for place, (model, found) in enumerate(zip(self.models, fingerprints, strict=True), 1):
            changed = (
                [] if found is None or model.fingerprint is None else found.differences(model.fingerprint)
            )
            if changed:
                raise StateError(
                    f"This plan was made for something else: model {place} ({model.name}) differs in "
                    f"{'; '.join(changed)}. Record a run of it and plan again, or use the plan that belongs to it."
                )

    def cascade(self, classifiers: Sequence[Classifier], **options: object) -> Cascade | Classifier:
        """Return what carries the plan out: a cascade, or the one classifier that answers every row.

        Parameters
        ----------
        classifiers : sequence of Classifier
            One per model of the plan, in its order.
        options
            Of `Cascade`: ``on_error``, limits, journal and the like.

        Raises
        ------
        ConfigurationError
            An option contradicts the plan.
        StateError
            A classifier is not the one that was planned with.
        """
        self.check([one.fingerprint() for one in classifiers])
        clash = {"threshold", "native_threshold", "meta_verifier", "calibrators", "escalation_order"} & set(
            options
        )
        if clash:
            raise ConfigurationError(
                f"Expected options that the plan leaves open, got {sorted(clash)}: leave them out."
            )
        members = self.policy.members
        if len(members) == 1:
            return classifiers[members[0]]
        from calibrant.cascade._cascade import Cascade  # noqa: PLC0415  (not needed to plan)

        thresholds = self.policy.thresholds
        decides: dict[str, Any] = {"threshold": thresholds}
        if thresholds is None:
            decides = {"meta_verifier": self.policy.rules}
        if self.policy.splits:  # of a threshold, too, the last answer comes with its confidence
            decides["verify_last"] = True
        return Cascade(
            [classifiers[one] for one in members],
            calibrators=[self.calibrators[one] for one in members] if self.policy.calibrated else None,
            escalation_order="declared",
            **cast("dict[str, Any]", {"method": self.method, **decides, **options}),
        )

    def to_record(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "goal": self.goal,
            "value": self.value,
            "policy": self.policy.to_record(),
            "threshold": self.threshold,
            "tied_confidence": self.tied_confidence,
            "tied_share": self.tied_share,
            "key": self.key,
            "certified": self.certified,
            "certificate": asdict(self.certificate),
            "report": self.report.to_record(),
            "alone": [one.to_record() for one in self.alone],
            "frontier": [{**asdict(point), "policy": point.policy.to_record()} for point in self.frontier],
            "models": [
                {
                    "name": model.name,
                    "cost": model.cost,
                    "verifier_cost": model.verifier_cost,
                    "calibration": model.calibration,
                    "calibrator": None if model.calibrator is None else model.calibrator.to_record(),
                    "fingerprint": None if model.fingerprint is None else dict(model.fingerprint),
                }
                for model in self.models
            ],
            "rows": asdict(self.rows),
            "method": self.method,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return what `to_record` wrote; KeyError, TypeError or ValueError if it is something else."""
        return cls(
            goal=record["goal"],
            value=record["value"],
            policy=KeepPolicy.from_record(record["policy"]),
            certificate=PlanCertificate(**record["certificate"]),
            report=PricedPolicy.from_record(record["report"]),
            alone=tuple(PricedPolicy.from_record(one) for one in record["alone"]),
            frontier=tuple(
                FrontierPoint(**{**point, "policy": KeepPolicy.from_record(point["policy"])})
                for point in record["frontier"]
            ),
            models=tuple(
                PlannedModel(
                    **{
                        **model,
                        "calibrator": None
                        if model["calibrator"] is None
                        else calibrator_from_record(model["calibrator"]),
                    }
                )
                for model in record["models"]
            ),
            rows=PlanningRows(**record["rows"]),
            method=str(record["method"]),
            key=None if record.get("key") is None else str(record["key"]),
        )

    def save(self, path: str | Path) -> None:
        """Write the plan as one JSON file, whole or not at all.

        Raises
        ------
        StateError
            It cannot be written.
        """
        write_record(path, self.to_record(), kind=_KIND, version=_VERSION)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return a plan that was saved; ``plan.json`` is understood where `path` is a directory.

        Raises
        ------
        StateError
            It is missing or damaged, holds something else, or was written by another version.
        """
        file = Path(path) / _FILE if Path(path).is_dir() else Path(path)
        record = read_record(file, kind=_KIND, version=_VERSION, make=_MAKE)
        try:
            return cls.from_record(record)
        except (AttributeError, ConfigurationError, KeyError, TypeError, ValueError) as error:
            raise damaged_record(file, error, make=_MAKE) from error


def calibrated(
    confidence: NDArray[np.float64], calibrator: ConfidenceCalibrator | None, labels: Sequence[str] | None
) -> NDArray[np.float64]:
    """Return calibrated confidence; where there is none (NaN) there still is none."""
    sure = ~np.isnan(confidence)
    if calibrator is None or not sure.any():
        return confidence
    own = None if labels is None else [labels[row] for row in np.flatnonzero(sure).tolist()]
    result = np.full(len(confidence), np.nan)
    result[sure] = calibrator.predict(confidence[sure], predicted=own)
    return result
