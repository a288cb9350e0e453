"""``calibrant cascade``: plan from recorded runs, replay a policy on them, carry a plan out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, cast

from calibrant.cascade.planning._plan import CascadePlan, PricedPolicy, short_names
from calibrant.cascade.planning._planner import CertifyOn, plan_cascade
from calibrant.cascade.planning._planner import replay as replay_policy
from calibrant.cascade.planning._recorded import RecordedRun, recorded_run
from calibrant.cli._app import Plan, PlanRun, Replay
from calibrant.cli._classify import all_texts, print_predictions
from calibrant.cli._evaluate import TEST, exit_as, labelled_rows, warn_of_known_rows
from calibrant.cli._evaluation_table import baseline_lines, print_result
from calibrant.cli._finished import warn_of_stand_ins
from calibrant.cli._options import GATE_FAILED
from calibrant.cli._progress import EvaluationDisplay, interruptible
from calibrant.cli._prompted import without_head
from calibrant.cli._tables import aligned, print_output, say, with_interval
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._fingerprint import NO_TEXTS, TextDigests
from calibrant.core._prediction import LogprobSpace
from calibrant.core._task import Task
from calibrant.evaluation._evaluator import BatchEvaluator, default_cache, open_cache
from calibrant.evaluation._looks import Spent, counted_loss
from calibrant.heads._tuned import Tuned
from calibrant.inference._classifier import Classifier, as_classifier
from calibrant.reports._html import TradePoint, write_trade
from calibrant.runs._directory import unfinished
from calibrant.runs._rows import SavedRows
from calibrant.tuned._open import open_tuned
from calibrant.tuned._sources import read_source
from calibrant.tuned._task_record import is_corrected, record_run, students_of, with_model_alone

if TYPE_CHECKING:
    from calibrant.heads._head import Head

_Member = tuple[Task | Tuned, str | None, str | None]


def plan(options: Plan) -> None:
    """Write the plan of recorded runs, and print it."""
    predictions = options.predictions
    small_cost = options.small_cost
    large_cost = options.large_cost
    if len({path.resolve() for path in predictions}) < max(len(predictions), 2):
        raise ConfigurationError(
            "Expected recorded runs of at least two models, from small to large, none of them twice, got "
            f"{', '.join(map(str, predictions))}."
        )
    runs = _open_runs(predictions, advice="run the evaluation again, and plan on all of its rows")
    if small_cost is not None and large_cost is not None and small_cost > large_cost:
        say(
            f"warning: the first model ({runs[0].name}) costs more than the last ({runs[-1].name}): name the runs from "
            "small to large."
        )
    found = plan_cascade(
        runs[0],
        runs[-1],
        between=runs[1:-1],
        between_costs=options.between_cost or None,
        small_cost=small_cost,
        large_cost=large_cost,
        verifier_cost=options.verifier_cost or 0.0,
        epsilon=options.epsilon,
        delta=options.delta,
        target_accuracy=options.target_accuracy,
        budget=options.budget,
        certify_on=cast("CertifyOn", options.certify_on),
        method=options.method,
        key=options.key,
        rng=options.seed,
    )
    test = f"{found.goal} {found.value} {options.certify_on} {options.key} {options.seed}"
    found, spent = _counted(_remembering_heads(found, predictions), predictions, test=test)
    _write(found, options.out, seed=options.seed)
    files = f"Files in {options.out}: plan.json, plan.html, plan.svg"
    lines = [*found.describe(), *_spent_lines(spent), "", *_table(found), files]
    print_output(found.to_record(), lines, as_json=options.as_json)
    if options.require_certified and not found.certified:
        say(f"--require-certified: {found.describe_certificate()}")
        raise SystemExit(GATE_FAILED)


def replay(options: Replay) -> None:
    """Print the price and the accuracy of a policy on recorded runs."""
    paths = options.paths
    threshold = options.threshold
    first = paths[0]
    is_plan = first.name == "plan.json" or (first / "plan.json").exists()
    if threshold and is_plan:
        raise ConfigurationError(f"Expected a plan or --threshold, got both ({first}): leave one out.")
    is_run = first.suffix == ".jsonl" or (first / "predictions.jsonl").exists()
    if not threshold and is_run and not is_plan:
        raise ConfigurationError(
            f"Expected a plan before the runs, or --threshold, got the run {first} first: make a plan with "
            "`calibrant cascade plan`, or say from which confidence on answers are kept."
        )
    policy = threshold or CascadePlan.load(first)
    runs = _open_runs(paths if threshold else paths[1:], advice="only the rows that are there were used")
    found = replay_policy(
        policy, *runs, costs=options.cost, verifier_cost=options.verifier_cost or None, rng=options.seed
    )
    names = short_names([run.name for run in runs])
    rows = [
        ["policy", found.policy.name],
        ["rows", f"{found.n:,}"],
        ["intervals", f"{100 * found.accuracy.level:g} %"],
        ["accuracy", with_interval(found.accuracy)],
        [f"minus {names[-1]} alone", with_interval(found.difference, "+.4f")],
        ["cost per row", with_interval(found.cost, ".6g")],
    ]
    for name, share in zip(names, found.shares, strict=True):
        rows.append([f"answered by {name}", with_interval(share)])
    print_output(found.to_record(), aligned(rows), as_json=options.as_json)


def run(options: PlanRun) -> None:
    """Classify texts with the plan's cascade, or evaluate labelled rows into a directory."""
    found = CascadePlan.load(options.plan_file)
    text = options.text
    file = options.file
    out = options.out
    if out is None and not text and file is None:
        raise ConfigurationError(
            "Expected --text or --file to classify, or --out to evaluate, got none of them."
        )
    if out is not None and text:
        raise ConfigurationError("Expected --text or --out, got both: texts have no answers to evaluate.")
    members = _members(found, options.sources, options.model or [], options.api_base or [])
    asked = [_asked(*member) for member in members]
    task = asked[0]
    students = students_of(asked, _students_given(members))
    _tell_of_missing_heads(found, members)
    with ExitStack() as opened:
        classifiers = [opened.enter_context(_opened(*member)) for member in members]
        planned = found.cascade(classifiers)
        if planned not in classifiers:
            opened.callback(planned.close)
        if out is None:
            texts = all_texts(text or [], file, task)
            print_predictions(planned, texts, as_json=options.as_json, with_model=True)
            return
        rows = labelled_rows(task, file, options.split, limit=options.max_rows)
        texts_known = _known_texts(members)
        warn_of_known_rows(rows, options.plan_file, texts_known)
        cache = opened.enter_context(open_cache(default_cache()))
        with interruptible(at_once=planned.in_process) as stop, EvaluationDisplay() as display:
            evaluator = BatchEvaluator(planned, cache=cache)
            about = {"task": task.name}
            result = evaluator.evaluate(rows, out=out, about=about, on_progress=display, stop=stop)
    known = _knowing_heads(found, classifiers)
    asked_own = [(own, None) for own in asked]
    record_run(out, asked_own, plan=known.to_record(), students=students, known_texts=texts_known)
    for number, classifier in enumerate(classifiers, 1):
        classifier.save_learned(out, f"-{number}")
    baselines = baseline_lines(result, task, file=file, split=options.split or TEST)
    print_result(result, task, baselines=baselines, is_free=planned.is_free, as_json=options.as_json)
    exit_as(result, {}, stop=stop)


def _members(
    found: CascadePlan, paths: Sequence[Path], names: Sequence[str], addresses: Sequence[str]
) -> Sequence[_Member]:
    """Return the source of each plan member, with its model and address if given on the command line."""
    expected = len(found.models)
    if names and len(names) != expected:
        raise ConfigurationError(
            f"Expected --model once for each of the {expected} models of the plan, got {len(names)}."
        )
    if len(addresses) not in {0, 1, expected}:
        raise ConfigurationError(
            f"Expected --api-base once for all models, or once for each of the {expected}, got {len(addresses)}."
        )
    shared = len(paths) == 1 and bool(names)
    if len(paths) != expected and not shared:
        raise ConfigurationError(
            f"Expected a task file for each of the {expected} models of the plan "
            f"({', '.join(model.name for model in found.models)}), or its run or bundle, got {len(paths)}: add the "
            "others, or name the models with --model."
        )
    sources = [_source(path) for path in paths]
    models: Sequence[str | None] = names or [None] * expected
    # One source or address is that of all models.
    return list(zip(cycle(sources), models, cycle(addresses or [None]), strict=False))


def _source(path: Path) -> Task | Tuned:
    """Return the source of one model, which is asked as in its run.

    Raises
    ------
    ConfigurationError
        A run or a bundle asks several models.
    """
    found = read_source(path)
    if isinstance(found, Task):
        return found
    task = found.task
    if found.plan is not None or task.sections:
        raise ConfigurationError(f"Expected {path} to ask one model, got several: name a run of one model.")
    if found.fingerprint.space is not LogprobSpace.FUSED or task.model.scoring not in {None, "auto"}:
        return found
    # A cascade decodes unless another scoring was asked for.
    task = replace(task, model=task.model.model_copy(update={"scoring": "fused"}))
    return replace(found, tasks=(replace(found.tasks[0], task=task),))


def _asked(source: Task | Tuned, model: str | None, place: str | None) -> Task:
    """Return the task of a plan member with the model that is asked."""
    task = source if isinstance(source, Task) else source.task
    return with_model_alone(task, model, api_base=place)


def _students_given(members: Sequence[_Member]) -> dict[str, Head]:
    """Return the students that the runs and bundles among the members hold, by name.

    Raises
    ------
    ConfigurationError
        Two of them have the same name, as one was moved before the other was distilled into the same folder.
    """
    given: dict[str, Head] = {}
    for source, _, _ in members:
        students = source.students if isinstance(source, Tuned) else {}
        for name, head in students.items():
            if given.setdefault(name, head).digest != head.digest:
                raise ConfigurationError(
                    f"Expected one student with the name {name!r} in a plan, got two: distil one of them into another "
                    "folder."
                )
    return given


def _known_texts(members: Sequence[_Member]) -> TextDigests:
    """Return digests of the texts that the members, or the plan of them, owe something to."""
    found = NO_TEXTS
    for source, _, _ in members:
        if isinstance(source, Tuned):
            found = found.union(source.known_texts)
    return found


def _opened(source: Task | Tuned, model: str | None, place: str | None) -> Classifier:
    """Open a plan member: a run or a bundle with its head or label prior, a task file without."""
    if isinstance(source, Task):
        # A plan's thresholds hold only for the scoring that they were chosen on.
        return Classifier.from_task(without_head(_asked(source, model, place)))
    options = {} if place is None else {"api_base": place}
    return as_classifier(open_tuned(source, model=model, options=options), to_use="member of a plan")


def _remembering_heads(found: CascadePlan, paths: Sequence[Path]) -> CascadePlan:
    planned = zip(found.models, paths, strict=True)
    return replace(
        found, models=tuple(replace(model, corrected=is_corrected(path)) for model, path in planned)
    )


def _knowing_heads(found: CascadePlan, classifiers: Sequence[Classifier]) -> CascadePlan:
    """Return the plan with the fingerprints that heads and label priors belong to, also of models planned by a file."""
    models = []
    for model, classifier in zip(found.models, classifiers, strict=True):
        fingerprint = model.fingerprint
        if fingerprint is None and (classifier.head or classifier.prior_correction) is not None:
            fingerprint = classifier.fingerprint().to_record()
        models.append(replace(model, fingerprint=fingerprint))
    return replace(found, models=tuple(models))


def _tell_of_missing_heads(found: CascadePlan, members: Sequence[_Member]) -> None:
    for model, (source, _, _) in zip(found.models, members, strict=True):
        learned = None if isinstance(source, Task) else source.head or source.prior_correction
        if model.corrected and learned is None:
            say(
                f"warning: {model.name} was planned with the head or label prior of its run, and is asked without: "
                "name that run, as the thresholds are for its confidences."
            )


def _open_runs(paths: Sequence[Path], *, advice: str) -> list[RecordedRun]:
    """Read runs; warn about incomplete ones."""
    saved = [SavedRows.load(path) for path in paths]
    runs = list(map(recorded_run, saved))
    for path, rows in zip(paths, saved, strict=True):
        warn_of_stand_ins(rows)
        reason = unfinished(path)
        if reason is not None:
            say(f"warning: {path} {reason}: {advice}.")
    return runs


def _counted(found: CascadePlan, paths: Sequence[Path], *, test: str) -> tuple[CascadePlan, Spent]:
    """Return a plan whose certificate allows for all others asked of the same rows."""
    asked = found.certificate
    runs = [SavedRows.load(path) for path in paths]
    spent = counted_loss(runs, test=test, epsilon=asked.epsilon, delta=asked.delta)
    if spent.refused:
        return replace(found, certificate=replace(asked, holds=False, is_refused=True)), spent
    return replace(found, certificate=replace(asked, delta=spent.total)), spent


def _spent_lines(spent: Spent) -> Iterator[str]:
    if spent.refused:
        yield (
            f"Earlier certificates of these rows may be wrong with probability {spent.before:.4g}, so they promise "
            "nothing more: record runs of fresh rows."
        )
    elif spent.total > spent.before > 0.0:
        yield (
            f"Earlier certificates of these rows may be wrong with probability {spent.before:.4g}: that is allowed for."
        )


def _write(found: CascadePlan, out: Path, *, seed: int) -> None:
    """Write the plan, its chart and its HTML page."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"{out}: cannot be written ({error}): choose another directory.") from error
    found.save(out / "plan.json")
    goal = found.goal.replace("_", " ")
    if found.value is not None:
        goal += f" {found.value:g}"
    settings = [
        ("Goal", goal),
        ("Allowed loss (epsilon)", f"{found.certificate.epsilon:g}"),
        ("Allowed error (delta)", f"{found.certificate.delta:g}"),
        ("Seed", str(seed)),
        ("Confidence method", found.method),
        ("Key of equal confidences", str(found.key)),
    ]
    settings += [
        (one.name, f"cost {one.cost:g}, verifier {one.verifier_cost:g}, calibration {one.calibration}")
        for one in found.models
    ]
    frontier = sorted(found.frontier, key=lambda point: point.cost)
    alone = zip(found.alone, found.names, strict=True)
    write_trade(
        out,
        title=f"Cascade plan: {' to '.join(found.names)}",
        statements=found.describe(),
        frontier=[
            TradePoint(name=point.policy.name, cost=point.cost, performance=point.accuracy)
            for point in frontier
        ],
        models=[_point(one, f"{name} alone") for one, name in alone],
        chosen=_point(found.report, found.policy.name),
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


def _table(found: CascadePlan) -> list[str]:
    """Return lines with the figures of the chosen policy and of every model alone."""
    names = found.names
    head = ["", "accuracy", f"minus {names[-1]} alone", "cost per row", *(f"by {name}" for name in names)]
    policies = [("chosen", found.report)]
    for name, one in zip(names, found.alone, strict=True):
        policies.append((f"{name} alone", one))
    lines = [
        [
            name,
            with_interval(one.accuracy),
            with_interval(one.difference, "+.4f"),
            with_interval(one.cost, ".6g"),
            *(f"{share.estimate:.1%}" for share in one.shares),
        ]
        for name, one in policies
    ]
    return aligned([head, *lines])
