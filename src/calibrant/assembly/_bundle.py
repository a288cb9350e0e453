"""Bundles: a tuned classifier as a folder of JSON and text, with its measured figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import pydantic

from calibrant.assembly._bundle_files import Manifest, damaged_file, read_folder
from calibrant.assembly._decision import DecidedBy, Decision, Rule, rule_of
from calibrant.assembly._task_record import RecordedTask, checked_record, task_from_record
from calibrant.calibration._calibrators import ConfidenceCalibrator
from calibrant.calibration._choice import load_calibrator
from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.calibration._saved import DEMONSTRATIONS
from calibrant.cascade.planning._plan import CascadePlan
from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import CalibrantError, ConfigurationError, StateError
from calibrant.core._fingerprint import Fingerprint, asked_text, demonstrated
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._sections import Number, Section, Share
from calibrant.heads._head import Head
from calibrant.inference._demonstrations import DemonstrationIndex
from calibrant.logprobs._schema import enum_schema

_THRESHOLDS: Final = frozenset({"suggested", "no_suggestion", "certified", "certification"})

_Rows: TypeAlias = Annotated[int, pydantic.Field(strict=True, ge=0)]
_Part = TypeVar("_Part")
_Model = TypeVar("_Model", bound=pydantic.BaseModel)


class Figure(Section):
    """Figure measured on the run's rows.

    Attributes
    ----------
    name : str
        Name of the figure.
    estimate : float
        Its value.
    lower, upper, level : float or None
        Its confidence interval, and the interval's level in (0, 1); None without an interval.
    rows : int
        Rows it was measured on.
    """

    name: str
    estimate: Number
    lower: Number | None = None
    upper: Number | None = None
    level: Number | None = None
    rows: _Rows


class BundleHistory(Section):
    """Distribution of the run's predictions, with which later predictions are compared.

    Attributes
    ----------
    rows : int
        Number of rows.
    labels : mapping of str to int
        Rows by predicted label; where an answer holds several, by each of them.
    confidence : tuple of float
        Confidences in [0, 1], ascending: all of them, or a thousand evenly spaced quantiles.
    """

    rows: _Rows
    labels: dict[str, _Rows]
    confidence: tuple[Share, ...]


class BundleSettings(Section):
    """Contents of ``settings.json``.

    Attributes
    ----------
    tasks : tuple of dict
        Records of `calibrant.assembly._task_record.task_to_record`. The first one's labels, prompt and user template
        have files of their own, as have the labels of all.
    prompt_for_all : bool
        True if `prompt.txt` replaces the own prompts of a cascade's models.
    description : dict or None
        Result of `Classifier.describe` in the run; None if the run did not record it.
    """

    tasks: Annotated[tuple[dict[str, Any], ...], pydantic.Field(min_length=1)]
    prompt_for_all: Annotated[bool, pydantic.Field(strict=True)]
    description: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Contents of a bundle; `calibrant.load` opens its classifier.

    Attributes
    ----------
    path : Path
        Its folder.
    calibrant : str
        Version of calibrant that wrote it.
    digest : str
        SHA-256 of the bundle, 64 hexadecimal digits.
    name : str
        The task's name.
    labels : LabelSet
        The labels.
    field : str
        JSON path of the label in an answer.
    prompt : str
        The system prompt.
    user_template : str or None
        Shapes the user message.
    tasks : tuple of RecordedTask
        Models and their settings; several tasks for the models of a plan. The training rows of the first are the
        demonstrations of its prompts.
    plan : CascadePlan or None
        Plan of a cascade over `tasks`.
    prompt_for_all : bool
        True if `prompt` replaces the own prompts of a cascade's models.
    description : mapping or None
        Result of `Classifier.describe` in the run; None if the run did not record it.
    fingerprint : Fingerprint
        Prompt, model and labels that correction, calibrator and thresholds belong to.
    prior_correction : LabelPriorCorrection or None
        Divided out of every prediction.
    head : Head or None
        Maps the model's distributions to the final ones; replaces the label prior.
    calibrator : ConfidenceCalibrator or None
        Of the confidence in the predicted label.
    thresholds : mapping
        ``suggested``, ``certified`` and ``certification`` from ``calibration.json``; each may be None.
    figures : tuple of Figure
        Figures measured in the run.
    history : BundleHistory
        Distribution of the run's predictions.
    accept_suggested : bool, default False
        True to accept by the suggested threshold, which promises nothing; see `accepting_suggested`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant import BatchEvaluator, Classifier, Example, Task
    >>> from calibrant.assembly import export
    >>> from calibrant.testing import FakeClient, fake_model
    >>> out = Path(tempfile.mkdtemp())
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?")
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)}, field="label", name="fake/pets")
    >>> with fake_model("fake/pets", fake) as name:
    ...     classifier = Classifier.from_task(task, model=name)
    ...     _ = BatchEvaluator(classifier).evaluate([Example(input="purrs", answer="cat")], out=out / "run")
    ...     bundle = export(out / "run", out / "bundle", task=task, model=name)
    ...     decision = bundle.decide(classifier.classify("purrs"), threshold=0.95)
    >>> bundle.name, bundle.fingerprint.model, decision.accepted
    ('pets', 'fake/pets', False)
    """

    path: Path
    calibrant: str
    digest: str
    name: str
    labels: LabelSet
    field: str
    prompt: str
    user_template: str | None
    tasks: tuple[RecordedTask, ...]
    plan: CascadePlan | None
    prompt_for_all: bool
    description: Mapping[str, Any] | None
    fingerprint: Fingerprint
    prior_correction: LabelPriorCorrection | None
    head: Head | None
    calibrator: ConfidenceCalibrator | None
    thresholds: Mapping[str, Any]
    figures: tuple[Figure, ...]
    history: BundleHistory
    accept_suggested: bool = False

    @property
    def rule(self) -> tuple[Rule | None, float | None]:
        """Rule that accepts predictions, and the lowest accepted confidence; (None, None) without thresholds.

        If a certificate was requested and none was found, nothing is accepted. A suggested threshold, which promises
        nothing, counts where it was asked for by `accepting_suggested`.
        """
        return rule_of(self.thresholds, accept_suggested=self.accept_suggested)

    def accepting_suggested(self) -> Bundle:
        """Return the bundle with decisions by the suggested threshold, which promises nothing.

        Raises
        ------
        ConfigurationError
            There is no suggested threshold, or there is a certified one, which is not to be weakened.
        """
        found = replace(self, accept_suggested=True)
        if found.rule[0] != "suggested":
            got = "none" if self.thresholds["certified"] is None else "a certified one, which decides"
            raise ConfigurationError(
                f"{self.name}: expected a suggested threshold to accept by, got {got}: leave the option out, or "
                "calibrate the run."
            )
        return found

    def calibrated(self, prediction: Prediction) -> float | None:
        """Return the calibrated confidence of a prediction, in [0, 1]; None without a confidence."""
        return self._calibrate([prediction.confidence], [prediction.label])[0]

    def decide(self, prediction: Prediction, *, threshold: float | None = None) -> Decision:
        """Return the decision on a prediction: accept, review, or None if no rule applies.

        With a calibrator, the calibrated confidence decides: a threshold that is given is compared with it, and a
        suggested one is calibrated, too, as an answer of the same label would be. A certified threshold is compared
        with the confidence as given, which its guarantee is about.

        Parameters
        ----------
        prediction : Prediction
            Of the bundle's classifier.
        threshold : float in [0, 1], optional
            Accept from this confidence on (calibrated, with a calibrator), instead of by the bundle's own threshold.

        Raises
        ------
        ConfigurationError
            The threshold is out of range.
        """
        return self.decide_many([prediction], threshold=threshold)[0]

    def decide_many(
        self, predictions: Sequence[Prediction], *, threshold: float | None = None
    ) -> list[Decision]:
        """Return the decisions on predictions; see `decide`."""
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise ConfigurationError(
                f"Expected a threshold in [0, 1], got {threshold!r:.80}: confidence 0.9 is 90 %."
            )
        rule, least = self.rule if threshold is None else ("given", threshold)
        labels = [prediction.label for prediction in predictions]
        calibrated = self._calibrate([prediction.confidence for prediction in predictions], labels)
        lowest: list[float | None] = [least] * len(labels)
        if rule == "suggested":  # calibrated, as an answer of the same label would be
            lowest = self._calibrate(lowest, labels)
        return [
            self._decision(*values, rule=rule, least=least)
            for values in zip(predictions, calibrated, lowest, strict=True)
        ]

    def _calibrate(
        self, confidence: Sequence[float | None], labels: Sequence[str | None]
    ) -> list[float | None]:
        """Return the calibrated confidences in labels; None without a calibrator, a confidence or a label."""
        found: list[float | None] = [None] * len(labels)
        known = [
            (place, sure, label)
            for place, (sure, label) in enumerate(zip(confidence, labels, strict=True))
            if sure is not None and label is not None
        ]
        if self.calibrator is not None and known:
            places, given, predicted = zip(*known, strict=True)
            for place, value in zip(places, self.calibrator.predict(given, predicted=predicted), strict=True):
                found[place] = float(value)
        return found

    def _decision(
        self,
        prediction: Prediction,
        calibrated: float | None,
        lowest: float | None,
        *,
        rule: Rule | None,
        least: float | None,
    ) -> Decision:
        """Return a decision; `lowest` is the threshold `least` after calibration."""
        accepted: bool | None = None
        decided_by: DecidedBy | None = None
        if rule is not None:
            sure, decided_by, least = _compare(
                prediction.confidence, calibrated, lowest, rule=rule, least=least
            )
            accepted = sure and prediction.accepted is not False
        elif prediction.accepted is not None:
            rule, decided_by, accepted = "cascade", "cascade", prediction.accepted
        if prediction.outcome is not Outcome.OK:
            decided_by, accepted = None, False
        return Decision(
            accepted=accepted,
            confidence=prediction.confidence,
            calibrated=calibrated,
            threshold=None if decided_by is None else least,
            rule=rule,
            decided_by=decided_by,
        )


def _compare(
    confidence: float | None,
    calibrated: float | None,
    lowest: float | None,
    *,
    rule: Rule,
    least: float | None,
) -> tuple[bool, DecidedBy | None, float | None]:
    """Return whether a prediction reaches a threshold, the name of the value compared, and the threshold.

    Of a calibrator that maps several confidences to one value, the confidence as given breaks the tie: so a
    suggested threshold accepts the rows that the card's figures count.
    """
    if confidence is None:
        return False, None, None
    if calibrated is None or rule == "certified" or least is None:
        return least is not None and confidence >= least, "confidence", least
    if rule == "given":
        return calibrated >= least, "calibrated", least
    assert lowest is not None  # noqa: S101 (the label is the same)
    return (calibrated, confidence) >= (lowest, least), "calibrated", lowest


def read_bundle(path: str | Path) -> Bundle:
    """Read a bundle and check all of it, without opening a model.

    Parameters
    ----------
    path : str or Path
        Its folder.

    Raises
    ------
    StateError
        The folder is no bundle, is of another version, was changed after the export, or has parts that do not
        belong together.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant import BatchEvaluator, Classifier, Example, Task
    >>> from calibrant.assembly import export, read_bundle
    >>> from calibrant.testing import FakeClient, fake_model
    >>> out = Path(tempfile.mkdtemp())
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?")
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)}, field="label", name="fake/pets")
    >>> with fake_model("fake/pets", fake) as name:
    ...     rows = [Example(input="purrs", answer="cat")]
    ...     _ = BatchEvaluator(Classifier.from_task(task, model=name)).evaluate(rows, out=out / "run")
    ...     _ = export(out / "run", out / "bundle", task=task, model=name)
    >>> read_bundle(out / "bundle").prompt, read_bundle(out / "bundle").labels.labels
    ('Which animal?', ('cat', 'dog'))
    """
    folder = Path(path)
    manifest, content = read_folder(folder)
    try:
        return _BundleReader(folder, manifest, content).bundle()
    except StateError:
        raise
    except (CalibrantError, AttributeError, KeyError, TypeError, ValueError) as error:
        problem = (
            f"damaged: its parts are not what a bundle of calibrant {manifest.calibrant} holds ({error!r})"
        )
        raise damaged_file(folder, problem) from error


class _BundleReader:
    """Builder of a bundle from its files, with consistency checks."""

    def __init__(self, folder: Path, manifest: Manifest, content: Mapping[str, Any]) -> None:
        self._folder = folder
        self._manifest = manifest
        self._content = content

    def bundle(self) -> Bundle:
        """Return the bundle."""
        settings = self._checked_record("settings.json", BundleSettings, self._content["settings.json"])
        tasks = self._tasks(settings)
        first = tasks[0].task
        fingerprint = self._fingerprint(tasks[0], settings.description)
        if self._content["schema.json"] != enum_schema(first.labels, first.field):
            raise self._damage(
                "schema.json", "expected the schema of labels.json and the field in settings.json"
            )
        return Bundle(
            path=self._folder,
            calibrant=self._manifest.calibrant,
            digest=self._manifest.sha256,
            name=first.name,
            labels=first.labels,
            field=first.field,
            prompt=first.prompt,
            user_template=first.user_template,
            tasks=tasks,
            plan=self._plan(len(tasks)),
            prompt_for_all=settings.prompt_for_all,
            description=settings.description,
            fingerprint=fingerprint,
            prior_correction=self._load_part("label_prior.json", LabelPriorCorrection.load, fingerprint),
            head=self._load_part("head.json", Head.load, fingerprint),
            calibrator=self._load_part("calibrator.json", load_calibrator, fingerprint),
            thresholds=self._thresholds(),
            figures=tuple(
                self._checked_record("figures.json", Figure, entry) for entry in self._content["figures.json"]
            ),
            history=self._history(first.labels),
        )

    def _tasks(self, settings: BundleSettings) -> tuple[RecordedTask, ...]:
        files, shared = self._content, {"labels": self._content["labels.json"]}
        first = {**shared, "prompt": files["prompt.txt"], "user_template": files.get("user_template.txt")}
        place = self._folder / "settings.json"
        tasks = [
            task_from_record({**record, **(shared if number else first)}, place=place)
            for number, record in enumerate(settings.tasks)
        ]
        return (self._with_demonstrations(tasks[0]), *tasks[1:])

    def _with_demonstrations(self, recorded: RecordedTask) -> RecordedTask:
        """Return a task with its demonstration texts."""
        task, rows = recorded.task, self._content.get(DEMONSTRATIONS)
        if (task.demonstrations is None) is not (rows is None):
            raise self._damage(
                "settings.json", f"expected {DEMONSTRATIONS} where demonstrations are shown, and only there"
            )
        if rows is None:
            return recorded
        index = DemonstrationIndex.from_text(rows, labels=task.labels)
        return replace(recorded, task=replace(task, train=index.examples()))

    def _fingerprint(self, recorded: RecordedTask, description: Mapping[str, Any] | None) -> Fingerprint:
        """Return the manifest's fingerprint, checked against the prompt and the labels."""
        task, record = recorded.task, self._manifest.fingerprint
        # The prompts of a cascade's models differ; its description then has none.
        prompt, template = task.prompt, task.user_template
        if description is not None:
            prompt, template = str(description["prompt"]), description["user_template"]
        shown = None
        if task.demonstrations is not None:
            shown = demonstrated(task.demonstrations, self._content[DEMONSTRATIONS])
        fingerprint = Fingerprint(
            prompt=asked_text(prompt, template, shown),
            model=record["model"],
            space=record["space"],
            labels=task.labels,
        )
        if fingerprint.to_record() != record:
            changed = "; ".join(fingerprint.differences(record))
            raise self._damage("manifest.json", f"its fingerprint differs from the other files in {changed}")
        return fingerprint

    def _plan(self, n_tasks: int) -> CascadePlan | None:
        plan = None
        if "plan.json" in self._content:
            plan = CascadePlan.from_record(self._content["plan.json"])
        expected = 1 if plan is None else len(plan.models)
        if n_tasks != expected:
            whose = "one task without a plan" if plan is None else f"{expected} tasks for the plan"
            raise self._damage("settings.json", f"expected {whose}, got {n_tasks}")
        return plan

    def _load_part(self, name: str, load: Callable[..., _Part], fingerprint: Fingerprint) -> _Part | None:
        """Return the correction, head or calibrator in a file; None if the bundle has no such file."""
        return load(self._folder / name, fingerprint=fingerprint) if name in self._content else None

    def _thresholds(self) -> dict[str, Any]:
        thresholds: dict[str, Any] = self._content["thresholds.json"]
        if set(thresholds) != _THRESHOLDS:
            named = ", ".join(sorted(_THRESHOLDS))
            raise self._damage(
                "thresholds.json", f"expected the keys {named}, got {sorted(thresholds)!r:.200}"
            )
        suggested, certified = thresholds["suggested"], thresholds["certified"]
        values = [] if suggested is None else [suggested["high"], suggested["low"]]
        values += [] if certified is None else [certified["threshold"]]
        if any(isinstance(value, bool) or not 0.0 <= value <= 1.0 for value in values):
            raise self._damage("thresholds.json", f"expected thresholds in [0, 1], got {values}")
        return thresholds

    def _history(self, labels: LabelSet) -> BundleHistory:
        history = self._checked_record("history.json", BundleHistory, self._content["history.json"])
        counts = history.labels.values()
        # An answer of several labels counts each of them.
        most = max(counts, default=0) if isinstance(labels, CompositeLabels) else sum(counts)
        if most > history.rows:
            raise self._damage("history.json", f"expected {history.rows} labels at most, got {most}")
        return history

    def _checked_record(self, name: str, kind: type[_Model], value: object) -> _Model:
        return checked_record(kind, value, self._folder / name, damaged_file)

    def _damage(self, name: str, why: str) -> StateError:
        return damaged_file(self._folder / name, why)
