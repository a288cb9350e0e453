"""``calibrant cascade plan`` and ``replay``: recorded runs in; a plan, its picture, or a price out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.cascade._named import METHOD_NAMES
from calibrant.cascade.planning._plan import CascadePlan
from calibrant.cascade.planning._planner import plan_cascade
from calibrant.cascade.planning._recorded import recorded_run
from calibrant.cascade.planning._replay import replay as replayed
from calibrant.cli._errors import GATE_FAILED
from calibrant.cli._tables import aligned, with_interval
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.reports._trade import TradePoint, write_trade
from calibrant.runs._directory import unfinished

if TYPE_CHECKING:
    from calibrant.cascade.planning._plan import PlanCertificate
    from calibrant.cascade.planning._priced import PricedPolicy
    from calibrant.cascade.planning._recorded import RecordedRun

_METHODS: Final = (*METHOD_NAMES, "learned")


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of the command; see its help."""

    out: Path
    small_cost: float | None
    large_cost: float | None
    between_costs: tuple[float, ...]
    verifier_costs: tuple[float, ...]
    epsilon: float
    delta: float
    target_accuracy: float | None
    budget: float | None
    certify_on: Any
    method: str
    key: str
    seed: int
    require_certified: bool
    as_json: bool


def run_plan(paths: Sequence[Path], options: PlanOptions) -> None:
    """Plan, write the files, print the result; exit with 3 where a certificate was required and is missing."""
    if len(paths) < 2:
        raise ConfigurationError(
            f"Expected recorded runs of at least two models, from small to large, got {len(paths)}."
        )
    _check(paths, options)
    runs = _runs(paths, advice="run the evaluation again, and plan on all of its rows")
    _warn_of_order(runs, options)
    plan = plan_cascade(
        runs[0],
        runs[-1],
        between=runs[1:-1],
        between_costs=options.between_costs or None,
        small_cost=options.small_cost,
        large_cost=options.large_cost,
        verifier_cost=_verifier(options.verifier_costs),
        epsilon=options.epsilon,
        delta=options.delta,
        target_accuracy=options.target_accuracy,
        budget=options.budget,
        certify_on=options.certify_on,
        method=options.method,
        key=options.key,
        rng=options.seed,
    )
    _write(plan, options)
    if options.as_json:
        sys.stdout.write(json.dumps(plan.to_record(), ensure_ascii=False) + "\n")
    else:
        lines = [
            *_statements(plan),
            "",
            *_table(plan),
            f"Files in {options.out}: plan.json, plan.html, plan.svg",
        ]
        sys.stdout.write("\n".join(lines) + "\n")
    if options.require_certified and not plan.certified:
        sys.stderr.write(f"--require-certified: {_certificate(plan)}\n")
        raise SystemExit(GATE_FAILED)


def _check(paths: Sequence[Path], options: PlanOptions) -> None:
    """Refuse contradictory options and repeated paths."""
    places = [path.resolve() for path in paths]
    twice = next((path for path, place in zip(paths, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"Expected a run of each model, got {twice} twice: name another run.")
    if options.method not in _METHODS:
        raise ConfigurationError(
            f"Expected --method to be one of {', '.join(_METHODS)}, got {options.method!r}."
        )
    count = len(options.between_costs)
    if count and count != len(paths) - 2:
        raise ConfigurationError(
            f"Expected --between-cost once for each model between the first and the last, {len(paths) - 2}, got "
            f"{count}."
        )


def _warn_of_order(runs: Sequence[RecordedRun], options: PlanOptions) -> None:
    small, large = options.small_cost, options.large_cost
    if small is not None and large is not None and small > large:
        sys.stderr.write(
            f"warning: the first model ({runs[0].name}) costs more than the last ({runs[-1].name}): name the runs from "
            "small to large.\n"
        )


def run_replay(
    paths: Sequence[Path],
    *,
    thresholds: Sequence[float],
    costs: Sequence[float] | None,
    verifier_costs: Sequence[float],
    seed: int,
    as_json: bool,
) -> None:
    """Print the accuracy and cost of a plan, or of thresholds, on recorded runs."""
    policy: CascadePlan | float | list[float]
    if thresholds:
        if _is_plan(paths[0]):
            raise ConfigurationError(f"Expected a plan or --threshold, got both ({paths[0]}): leave one out.")
        policy = thresholds[0] if len(thresholds) == 1 else list(thresholds)
        sources = paths
    else:
        if not _is_plan(paths[0]) and (paths[0].suffix == ".jsonl" or _is_run(paths[0])):
            raise ConfigurationError(
                f"Expected a plan before the runs, or --threshold, got the run {paths[0]} first: make a plan with "
                "`calibrant cascade plan`, or say from which confidence on answers are kept."
            )
        policy, sources = CascadePlan.load(paths[0]), paths[1:]
    if not sources:
        raise ConfigurationError("Expected a recorded run of each model behind the plan, got none.")
    runs = _runs(sources, advice="only the rows that are there were used")
    found = replayed(
        policy,
        *runs,
        costs=costs,
        verifier_cost=_verifier(verifier_costs) if verifier_costs else None,
        rng=seed,
    )
    if as_json:
        sys.stdout.write(json.dumps(found.to_record(), ensure_ascii=False) + "\n")
        return
    sys.stdout.write("\n".join(aligned(_priced(found, _short([run.name for run in runs])))) + "\n")


def _is_plan(path: Path) -> bool:
    return path.name == "plan.json" or (path / "plan.json").exists()


def _is_run(path: Path) -> bool:
    return (path / "predictions.jsonl").exists()


def _priced(found: PricedPolicy, names: Sequence[str]) -> list[list[str]]:
    return [
        ["policy", found.policy.name],
        ["rows", f"{found.n:,}"],
        ["intervals", f"{100 * found.accuracy.level:g} %"],
        ["accuracy", with_interval(found.accuracy)],
        [f"minus {names[-1]} alone", with_interval(found.difference, "+.4f")],
        ["cost per row", with_interval(found.cost, ".6g")],
        *(
            [f"answered by {name}", with_interval(share)]
            for name, share in zip(names, found.shares, strict=True)
        ),
    ]


def _runs(paths: Sequence[Path], *, advice: str) -> list[RecordedRun]:
    """Read runs; warn of those that ended early."""
    runs = [recorded_run(path) for path in paths]
    for path in paths:
        if (why := unfinished(path)) is not None:
            sys.stderr.write(f"warning: {path} {why}: {advice}.\n")
    return runs


def _verifier(costs: Sequence[float]) -> float | Sequence[float]:
    return 0.0 if not costs else costs[0] if len(costs) == 1 else list(costs)


def _write(plan: CascadePlan, options: PlanOptions) -> None:
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"{options.out}: cannot be written ({error}): choose another directory.") from error
    plan.save(options.out / "plan.json")
    settings = [
        ("Goal", plan.goal.replace("_", " ") + ("" if plan.value is None else f" {plan.value:g}")),
        ("Allowed loss (epsilon)", f"{options.epsilon:g}"),
        ("Allowed error (delta)", f"{options.delta:g}"),
        ("Seed", str(options.seed)),
        ("Confidence method", plan.method),
        ("Key of equal confidences", str(plan.key)),
        *(
            (
                model.name,
                f"cost {model.cost:g}, verifier {model.verifier_cost:g}, calibration {model.calibration}",
            )
            for model in plan.models
        ),
    ]
    write_trade(
        options.out,
        title=f"Cascade plan: {' to '.join(_names(plan))}",
        statements=_statements(plan),
        frontier=[
            TradePoint(name=point.policy.name, cost=point.cost, performance=point.accuracy)
            for point in sorted(plan.frontier, key=lambda point: point.cost)
        ],
        models=[_point(one, f"{name} alone") for one, name in zip(plan.alone, _names(plan), strict=True)],
        chosen=_point(plan.report, plan.policy.name),
        settings=settings,
    )


def _point(priced: PricedPolicy, name: str) -> TradePoint:
    return TradePoint(
        name=name,
        cost=priced.cost.estimate,
        performance=priced.accuracy.estimate,
        cost_interval=priced.cost,
        performance_interval=priced.accuracy,
    )


def _statements(plan: CascadePlan) -> list[str]:
    rows, names = plan.rows, _names(plan)
    members = " -> ".join(names[member] for member in plan.policy.members)
    left_out = [
        f"{count:,} {why}"
        for count, why in (
            (rows.failed, "failed for the server's reasons in a run"),
            (rows.unlabelled, "without a known right or wrong"),
        )
        if count
    ]
    seen = "the policy was not chosen on" if plan.report.held_out else "were among those of the certificate"
    return [
        f"{members}: {plan.policy.name}.",
        *_ties(plan),
        _certificate(plan),
        f"The numbers, with {100 * plan.report.accuracy.level:g} % intervals, are from {rows.reporting:,} rows that "
        f"{seen}; {rows.planning:,} others were for planning"
        + (f" (left out: {', '.join(left_out)})." if left_out else "."),
    ]


def _ties(plan: CascadePlan) -> list[str]:
    """Return remarks on blocks of equal confidence that are kept in part."""
    names = _names(plan)
    split = [
        (member, rule)
        for member, rule in zip(plan.policy.members, plan.policy.rules, strict=False)
        if rule.splits
    ]
    return [
        f"Of the answers of {names[member]} with confidence {rule.edges[0]:.6g}, {rule.tied_share:.1%} are kept, "
        + (
            f"chosen by another such hash among the texts that reach {names[member]}."
            if place
            else "chosen by a keyed hash of their texts: the same text is always decided alike."
        )
        for place, (member, rule) in enumerate(split)
    ]


def _certificate(plan: CascadePlan) -> str:
    found: PlanCertificate = plan.certificate
    last = _names(plan)[-1]
    promise = f"its accuracy is within {found.epsilon:g} of always using {last}, with probability {1 - found.delta:g}"
    if plan.certified:
        seen = f"observed loss {found.loss:+.4f} on {found.rows:,} rows, exact p = {found.p_value:.3g}"
        return f"Certified: {promise} ({seen})."
    if found.holds:
        few = (
            f"; where the models agree on every row, {found.fewest_rows:,} are needed"
            if found.rows < found.fewest_rows
            else ""
        )
        proof = f"{found.rows:,} rows prove no cheaper policy within {found.epsilon:g}{few}"
        return f"Nothing certified but {last} alone: {proof}."
    return (
        f"Not certified: {found.rows:,} rows do not prove that {promise} (observed loss {found.loss:+.4f}, exact p = "
        f"{found.p_value:.3g})."
    )


def _names(plan: CascadePlan) -> list[str]:
    return _short([model.name for model in plan.models])


def _short(names: Sequence[str]) -> list[str]:
    """Return the last parts of paths without ``.jsonl`` if they differ from one another, else the names."""
    last = [Path(name.removesuffix(".jsonl")).name or name for name in names]
    return last if len(set(last)) == len(last) else list(names)


def _table(plan: CascadePlan) -> list[str]:
    names = _names(plan)
    head = ["", "accuracy", f"minus {names[-1]} alone", "cost per row"]
    shares = [f"by {name}" for name in names]
    lines = [[*head, *shares]]
    for name, one in (
        ("chosen", plan.report),
        *((f"{name} alone", priced) for name, priced in zip(names, plan.alone, strict=True)),
    ):
        lines.append(
            [
                name,
                with_interval(one.accuracy),
                with_interval(one.difference, "+.4f"),
                with_interval(one.cost, ".6g"),
                *(f"{share.estimate:.1%}" for share in one.shares),
            ]
        )
    return aligned(lines)
