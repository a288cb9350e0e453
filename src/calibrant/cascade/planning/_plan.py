"""Cascade plans: policy, cost, accuracy, certificate and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from calibrant.calibration._calibrators import ConfidenceCalibrator
from calibrant.calibration._choice import calibrator_from_record
from calibrant.cascade.planning._priced import PricedPolicy, Prices
from calibrant.cascade.planning._rules import KeepPolicy, KeepRule
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import damaged_record, read_record, write_record
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import Interval

if TYPE_CHECKING:
    from calibrant.cascade._cascade import Cascade
    from calibrant.inference._classifier import Classifier

_KIND: Final = "cascade plan"
_VERSION: Final = 1
_MAKE: Final = "plan"
_FILE: Final = "plan.json"
_ROUNDING: Final = 1e-9  # of a sum of costs

Goal = Literal["certified", "target_accuracy", "budget"]
_StoredCalibrator = Annotated[
    ConfidenceCalibrator,
    PlainValidator(calibrator_from_record),
    PlainSerializer(lambda calibrator: calibrator.to_record()),
]


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """One of the models of a plan.

    Attributes
    ----------
    name : str
        Name of its run.
    cost, verifier_cost : float
        Cost of an answer, and of finding out how sure it is.
    calibration : str
        Calibration of its confidence: ``none``, or a method of `select_calibrator`.
    calibrator : ConfidenceCalibrator or None
        Fitted on the planning half; None for the last model, and where nothing was gained.
    fingerprint : mapping or None
        `Fingerprint.to_record` of the run, where it says.
    """

    name: str
    cost: float
    verifier_cost: float
    calibration: str = "none"
    calibrator: _StoredCalibrator | None = field(default=None, compare=False)
    fingerprint: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class PlanningRows:
    """Row counts of a plan.

    Attributes
    ----------
    given, paired : int
        Rows of each run; those on which it is known of every model whether it is right.
    failed, unlabelled : int
        Rows left out because a model failed with a transport error; others because it is not known whether an answer
        is right.
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
    """Certificate of a policy's loss against always using the last model.

    Attributes
    ----------
    holds : bool
        True where, with probability ``1 - delta``, the policy loses less than epsilon.
    epsilon, delta : float
        As above.
    p_value : float
        Exact, of "it loses epsilon or more", for this policy by itself; 0 for the last model alone.
    loss : float
        Accuracy of the last model minus that of the policy on these rows.
    rows : int
        Rows of the test.
    method : {"sequence", "single test"}
        Thresholds were tested one after the other, from "route everything", on these rows; or one policy that was
        chosen on others.
    fewest_rows : int
        Rows needed where both are right on the same ones; fewer do where the policy is right more often.
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
    """One corner of the cost-accuracy frontier.

    Attributes
    ----------
    policy : KeepPolicy
        Policy of this cost and accuracy.
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
    """Cascade plan: a policy with its figures, certificate and models.

    Attributes
    ----------
    goal : {"certified", "target_accuracy", "budget"}
        Goal the policy was chosen for.
    value : float or None
        The target or the budget.
    policy : KeepPolicy
        The chosen policy.
    certificate : PlanCertificate
        Certificate of its loss.
    report : PricedPolicy
        The policy on the reporting half, with intervals. ``held_out`` is False where it was certified on all rows.
    gain : Interval or None
        Accuracy of the policy minus that of the best model alone within the budget, on the same rows; None without a
        budget.
    alone : tuple of PricedPolicy, one per model
        Every model alone, on the reporting half.
    frontier : tuple of FrontierPoint
        From the cheapest to the most accurate.
    models : tuple of PlannedModel
        In the order of escalation.
    rows : PlanningRows
        Numbers of rows.
    method : str
        The confidence method the recorded confidences come from.
    key : str
        Key of the hash of texts by which equally sure answers are told apart (`tie_ranks`); each rule but the
        first has a key derived from it.

    Examples
    --------
    >>> from calibrant.cascade import RecordedRun, plan_cascade
    >>> small = RecordedRun(confidence=[0.9, 0.6] * 200, correct=[True, False] * 200)
    >>> large = RecordedRun(confidence=[1.0] * 400, correct=[True] * 400)
    >>> plan_cascade(small, large, small_cost=1, large_cost=50).goal
    'certified'
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
    key: str
    gain: Interval | None = None

    @property
    def certified(self) -> bool:
        """True if the certificate holds and the policy is not the last model alone."""
        return self.certificate.holds and self.policy.members != (len(self.models) - 1,)

    @property
    def threshold(self) -> float | None:
        """Acceptance threshold of the first model's confidence (calibrated if the policy uses that).

        None where the first model is not asked, its answers are not looked at, or what is kept is no threshold; that
        includes a share of the answers at one, which `tied_share` tells.
        """
        return getattr(self._first_rule, "threshold", None)

    @property
    def tied_confidence(self) -> float | None:
        """Confidence of the first model at which only a share of the answers is accepted.

        None where no tied block is split.
        """
        return getattr(self._first_rule, "tied_confidence", None)

    @property
    def tied_share(self) -> float | None:
        """Share of the answers at `tied_confidence` that is accepted; None if ties are not split."""
        rule = self._first_rule
        return rule.tied_share if rule is not None and rule.splits else None

    @property
    def _first_rule(self) -> KeepRule | None:
        return self.policy.rules[0] if self.policy.members[0] == 0 and self.policy.rules else None

    @property
    def names(self) -> list[str]:
        """Short names of the models."""
        return short_names([model.name for model in self.models])

    @property
    def calibrators(self) -> tuple[ConfidenceCalibrator | None, ...]:
        """Calibrator of each model; None for a policy on reported confidence."""
        return tuple(model.calibrator if self.policy.calibrated else None for model in self.models)

    @property
    def prices(self) -> Prices:
        """Prices of answers and of their verification."""
        return Prices(
            models=tuple(model.cost for model in self.models),
            verifier=tuple(model.verifier_cost for model in self.models),
        )

    def confidence(
        self, raw: NDArray[np.float64], labels: Sequence[Sequence[str] | None] | None = None
    ) -> NDArray[np.float64]:
        """Return the confidences that the policy compares, given the reported ones, shape (m, n)."""
        return calibrated(raw, self.calibrators, [None] * len(raw) if labels is None else labels)

    def describe(self) -> list[str]:
        """Describe the plan in sentences: policy, certificate and rows."""
        rows, names, policy = self.rows, self.names, self.policy
        causes = ((rows.failed, "failed with a transport error in a run"), (rows.unlabelled, "unlabelled"))
        left_out = ", ".join(f"{count:,} {cause}" for count, cause in causes if count)
        seen = "the policy was not chosen on"
        if not self.report.held_out:
            seen = "were among those of the certificate"
            if self.goal == "budget":
                seen = "also decided between the policy and one model alone"
        return [
            _describe_policy(policy, names),
            *(
                f"Of the answers of {names[member]} with confidence {rule.edges[0]:.6g}, {rule.tied_share:.1%} are "
                "kept, chosen by a keyed hash of their texts: the same text is always decided alike."
                for member, rule in zip(policy.members, policy.rules, strict=False)
                if rule.splits
            ),
            *self._describe_budget(),
            self.describe_certificate(),
            f"The numbers, with {100 * self.report.accuracy.level:g} % intervals, are from {rows.reporting:,} rows "
            f"that {seen}; {rows.planning:,} others were for planning"
            + (f" (left out: {left_out})." if left_out else "."),
        ]

    def _describe_budget(self) -> list[str]:
        """Describe the policy for a budget beside the best model alone that the budget allows."""
        if self.goal != "budget" or self.value is None:
            return []
        affordable = [one for one in self.alone if one.cost.estimate <= self.value * (1.0 + _ROUNDING)]
        best = max(affordable, key=lambda one: one.accuracy.estimate)
        name = self.names[best.policy.members[0]]
        if len(self.policy.members) == 1:
            return [
                f"No cascade for {self.value:g} per row was more accurate on the rows of the figures below."
            ]
        gain = self.gain
        if gain is None:
            return []
        ends = f"{gain.lower:+.4f} to {gain.upper:+.4f}"
        doubt = "" if gain.lower > 0.0 else "; these rows do not show that it is higher"
        best_alone = f"{name} alone, the best single model for {self.value:g} per row"
        return [f"Its accuracy minus that of {best_alone}, is {gain.estimate:+.4f} ({ends}){doubt}."]

    def describe_certificate(self) -> str:
        """Describe the certificate in a sentence, or say that there is none."""
        found, last = self.certificate, self.names[-1]
        chance = f"{1 - found.delta:g}"
        promise = (
            f"its accuracy is within {found.epsilon:g} of always using {last}, with probability {chance}"
        )
        evidence = f"observed loss {found.loss:+.4f}{{}}, exact p = {found.p_value:.3g}"
        if self.certified:
            return f"Certified: {promise} ({evidence.format(f' on {found.rows:,} rows')})."
        if not found.holds:
            return f"Not certified: {found.rows:,} rows do not prove that {promise} ({evidence.format('')})."
        few = ""
        if found.rows < found.fewest_rows:
            few = f"; where the models agree on every row, {found.fewest_rows:,} are needed"
        proof = f"{found.rows:,} rows prove no cheaper policy within {found.epsilon:g}{few}"
        return f"Nothing certified but {last} alone: {proof}."

    def check(self, fingerprints: Sequence[Fingerprint | None]) -> None:
        """Raise StateError if models differ from those of the plan.

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
        """Return the cascade of the plan, or the classifier if one model answers every row.

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
        return Cascade(
            [classifiers[one] for one in members],
            calibrators=[self.calibrators[one] for one in members] if self.policy.calibrated else None,
            escalation_order="declared",
            **cast("dict[str, Any]", {"method": self.method, **decides, **options}),
        )

    def to_record(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        derived = ("threshold", "tied_confidence", "tied_share", "certified")  # for readers of the file
        record: dict[str, Any] = TypeAdapter(CascadePlan).dump_python(self, mode="json")
        return {**record, **{name: getattr(self, name) for name in derived}}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> CascadePlan:
        """Return the plan from a record of `to_record`; ConfigurationError for a damaged record."""
        try:
            return TypeAdapter(CascadePlan).validate_python(dict(record))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]  # one line, whatever else is wrong
            place = ".".join(map(str, first["loc"]))
            raise ConfigurationError(
                f"Expected the record of a plan, got {place}: {first['msg']}."
            ) from error

    def save(self, path: str | Path) -> None:
        """Write the plan as one JSON file, atomically.

        Raises
        ------
        StateError
            The file cannot be written.
        """
        write_record(path, self.to_record(), kind=_KIND, version=_VERSION)

    @classmethod
    def load(cls, path: str | Path) -> CascadePlan:
        """Load a saved plan; a directory means its ``plan.json``.

        Raises
        ------
        StateError
            The file is missing, damaged, of another kind, or of another version.
        """
        file = Path(path) / _FILE if Path(path).is_dir() else Path(path)
        record = read_record(file, kind=_KIND, version=_VERSION, make=_MAKE)
        try:
            return cls.from_record(record)
        except (AttributeError, ConfigurationError, KeyError, TypeError, ValueError) as error:
            raise damaged_record(file, error, make=_MAKE) from error


def short_names(names: Sequence[str]) -> list[str]:
    """Return the file stems of paths if they are distinct; otherwise the names."""
    short = [Path(name.removesuffix(".jsonl")).name or name for name in names]
    return short if len(set(short)) == len(short) else list(names)


def _describe_policy(policy: KeepPolicy, names: Sequence[str]) -> str:
    """Describe a policy: the models, and the confidences at which each one answers."""
    asked = [names[member] for member in policy.members]
    if len(asked) == 1:
        return f"{asked[0]} answers every row."
    rule = policy.rules[0]
    if len(asked) > 2 or rule.threshold is not None or rule.splits:
        return f"{' -> '.join(asked)}: {policy.name}."
    confidence = "calibrated confidence" if policy.calibrated else "confidence"
    ranges = "; ".join(_describe_range(*ends) for ends in rule.kept_ranges)
    if not ranges:
        return f"{asked[0]} is asked first, and {asked[1]} answers every row."
    return f"{asked[0]} answers where its {confidence} lies in one of these ranges, {asked[1]} in the others: {ranges}."


def _describe_range(low: float | None, high: float | None) -> str:
    """Describe a range of confidence that begins with `low` and ends before `high`."""
    if low is None:
        return f"below {high:.4g}"
    return f"{low:.4g} and above" if high is None else f"{low:.4g} to below {high:.4g}"


def calibrated(
    raw: NDArray[np.float64],
    calibrators: Sequence[ConfidenceCalibrator | None],
    labels: Sequence[Sequence[str] | None],
) -> NDArray[np.float64]:
    """Return calibrated confidences, shape (m, n); NaN stays NaN."""
    result = raw.copy()
    for own, calibrator, predicted in zip(result, calibrators, labels, strict=True):
        sure = np.flatnonzero(~np.isnan(own))
        if calibrator is not None and len(sure):
            names = None if predicted is None else [predicted[row] for row in sure.tolist()]
            own[sure] = calibrator.predict(own[sure], predicted=names)
    return result
