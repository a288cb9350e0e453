"""A bundle: a tuned classifier as a folder of JSON and text, with what is known about its predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from calibrant.assembly._bundle_files import Folder, parse_json, read_folder
from calibrant.assembly._sections import cascade_settings
from calibrant.assembly._task_record import RecordedTask, task_from_record
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
from calibrant.core._task import Task
from calibrant.heads._head import Head
from calibrant.inference._demonstrations import DemonstrationIndex
from calibrant.logprobs._schema import enum_schema

_SETTINGS: Final = frozenset({"tasks", "prompt_for_all", "description"})
_THRESHOLDS: Final = frozenset({"suggested", "no_suggestion", "certified", "certification"})
_LEARNED: Final = "learned.json"
_AGAIN: Final = "export the run again"

Rule: TypeAlias = Literal["certified", "suggested", "given", "cascade"]
DecidedBy: TypeAlias = Literal["confidence", "calibrated", "cascade"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number that was measured on the run's rows.

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
    estimate: float
    lower: float | None = None
    upper: float | None = None
    level: float | None = None
    rows: int


@dataclass(frozen=True, kw_only=True)
class BundleHistory:
    """Distribution of the run's predictions, the reference for drift checks.

    Attributes
    ----------
    rows : int
        Number of rows.
    labels : mapping of str to int
        Rows by predicted label; where an answer holds several, by each of them.
    confidence : tuple of float
        Confidences in [0, 1], ascending: all of them, or a thousand evenly spaced quantiles.
    """

    rows: int
    labels: Mapping[str, int]
    confidence: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Decision to accept a prediction or to send it to review.

    Attributes
    ----------
    accepted : bool or None
        False sends it to review; None where the bundle has no threshold and the models gave no verdict.
    confidence : float or None
        The prediction's own, in [0, 1].
    calibrated : float or None
        Calibrated confidence, the expected share of right answers; None without a calibrator.
    threshold : float or None
        Lowest accepted value of the number in `decided_by`; None if no answer is accepted, or nothing was
        compared.
    rule : {"certified", "suggested", "given", "cascade"} or None
        Origin of the threshold; ``cascade`` stands for the thresholds between its models.
    decided_by : {"confidence", "calibrated", "cascade"} or None
        Number compared with the threshold, or ``cascade`` if the cascade's thresholds decided. None without a
        threshold, a label or a confidence.
    """

    accepted: bool | None
    confidence: float | None
    calibrated: float | None
    threshold: float | None
    rule: Rule | None
    decided_by: DecidedBy | None


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
    card : str
        The model card, as Markdown.
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
    card: str

    @property
    def response_format(self) -> dict[str, Any]:
        """The schema of an answer."""
        return enum_schema(self.labels, self.field)

    @property
    def rule(self) -> tuple[Rule | None, float | None]:
        """Acceptance rule and its lowest accepted confidence; (None, None) without thresholds.

        If a certificate was requested, only a certified threshold counts; without one, nothing is accepted.
        """
        return rule_of(self.thresholds)

    def calibrated(self, prediction: Prediction) -> float | None:
        """Return the calibrated confidence of a prediction, in [0, 1]; None where there is none."""
        if self.calibrator is None or prediction.confidence is None or prediction.label is None:
            return None
        found = self.calibrator.predict([prediction.confidence], predicted=[prediction.label])
        return float(found[0])

    def decide(self, prediction: Prediction, *, threshold: float | None = None) -> Decision:
        """Return whether a prediction is accepted or goes to review.

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
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise ConfigurationError(
                f"Expected a threshold in [0, 1], got {threshold!r:.80}: confidence 0.9 is 90 %."
            )
        rule, least = self.rule if threshold is None else ("given", threshold)
        accepted: bool | None = None
        decided_by: DecidedBy | None = None
        if rule is not None:
            sure, decided_by, least = self._compare(prediction, rule, least)
            accepted = sure and prediction.accepted is not False
        elif prediction.accepted is not None:
            rule, decided_by, accepted = "cascade", "cascade", prediction.accepted
        if prediction.outcome is not Outcome.OK:
            decided_by, accepted = None, False
        return Decision(
            accepted=accepted,
            confidence=prediction.confidence,
            calibrated=self.calibrated(prediction),
            threshold=None if decided_by is None else least,
            rule=rule,
            decided_by=decided_by,
        )

    def _compare(
        self, prediction: Prediction, rule: Rule, least: float | None
    ) -> tuple[bool, DecidedBy | None, float | None]:
        """Return whether a prediction reaches a threshold, by which number, and the threshold on that number's scale.

        Of a calibrator that maps several confidences to one value, the confidence as given breaks the tie: so a
        suggested threshold accepts the rows that the card's figures count.
        """
        confidence, calibrated = prediction.confidence, self.calibrated(prediction)
        if confidence is None:
            return False, None, None
        if calibrated is None or rule == "certified" or least is None:
            return least is not None and confidence >= least, "confidence", least
        if rule == "given":
            return calibrated >= least, "calibrated", least
        reached = self.calibrated(replace(prediction, confidence=least))
        assert reached is not None  # noqa: S101 (the label is the same)
        return (calibrated, confidence) >= (reached, least), "calibrated", reached


def rule_of(thresholds: Mapping[str, Any]) -> tuple[Rule | None, float | None]:
    """Return the acceptance rule and the lowest accepted confidence, as `Bundle.rule` does."""
    if thresholds["certification"] is not None:
        certified = thresholds["certified"]
        return "certified", None if certified is None else certified["threshold"]
    suggested = thresholds["suggested"]
    return (None, None) if suggested is None else ("suggested", suggested["high"])


def read_bundle(path: str | Path) -> Bundle:
    """Read a bundle and check all of it, without opening a model.

    Parameters
    ----------
    path : str or Path
        Its folder.

    Raises
    ------
    StateError
        The folder is no bundle, is of a newer version, was changed after the export, or has parts that do not
        belong together.
    """
    folder = read_folder(path)
    reader = _BundleReader(folder, Path(path))
    try:
        return reader.bundle()
    except StateError:
        raise
    except (CalibrantError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path}: damaged: its parts are not what a bundle of calibrant {folder.calibrant} holds ({error!r}): "
            f"{_AGAIN}."
        ) from error


class _BundleReader:
    """Makes objects of a folder's files."""

    def __init__(self, folder: Folder, path: Path) -> None:
        self._folder = folder
        self._path = path

    def bundle(self) -> Bundle:
        """Return the bundle."""
        settings = self._object("settings.json", _SETTINGS)
        tasks = self._tasks(settings)
        first, prompt, template = tasks[0].task, self._text("prompt.txt"), self._optional("user_template.txt")
        description = settings["description"]
        fingerprint = self._fingerprint(description, prompt, template, first)
        schema = self._object("schema.json")
        if schema != enum_schema(first.labels, first.field):
            raise self._wrong(
                "schema.json", "expected the schema of labels.json and the field in settings.json"
            )
        return Bundle(
            path=self._path,
            calibrant=self._folder.calibrant,
            digest=self._folder.digest,
            name=first.name,
            labels=first.labels,
            field=first.field,
            prompt=prompt,
            user_template=template,
            tasks=tasks,
            plan=self._plan(len(tasks)),
            prompt_for_all=self._flag(settings, "prompt_for_all"),
            description=None if description is None else dict(description),
            fingerprint=fingerprint,
            prior_correction=self._prior(fingerprint),
            head=self._head(fingerprint),
            calibrator=self._calibrator(fingerprint),
            thresholds=self._thresholds(),
            figures=tuple(_figure(**entry) for entry in self._json("figures.json")),
            history=_history(self._object("history.json"), first.labels),
            card=self._text("card.md"),
        )

    def _tasks(self, settings: Mapping[str, Any]) -> tuple[RecordedTask, ...]:
        place = self._path / "settings.json"
        labels, template = self._json("labels.json"), self._optional("user_template.txt")
        shared = {"labels": labels, "prompt": self._text("prompt.txt"), "user_template": template}
        records = [
            {**record, "labels": labels, **(shared if number == 0 else {})}
            for number, record in enumerate(settings["tasks"])
        ]
        if not records:
            raise self._wrong("settings.json", "expected at least one task")
        tasks = tuple(task_from_record(record, place=place) for record in records)
        cascades = [cascade_settings(own.task) for own in tasks]
        named = {own.learned_file for own in cascades if own is not None and own.learned_file is not None}
        if named != ({self._path / _LEARNED} if _LEARNED in self._folder.texts else set()):
            raise self._wrong(
                "settings.json", f"expected {_LEARNED} where a learned scorer is used, and only there"
            )
        return (self._with_demonstrations(tasks[0]), *tasks[1:])

    def _with_demonstrations(self, recorded: RecordedTask) -> RecordedTask:
        """Return a task with the labelled texts that its prompts show."""
        task, rows = recorded.task, self._optional(DEMONSTRATIONS)
        if (task.demonstrations is None) is not (rows is None):
            raise self._wrong(
                "settings.json", f"expected {DEMONSTRATIONS} where demonstrations are shown, and only there"
            )
        if rows is None:
            return recorded
        index = DemonstrationIndex.from_text(rows, labels=task.labels)
        return replace(recorded, task=replace(task, train=index.examples()))

    def _fingerprint(
        self, description: Mapping[str, Any] | None, prompt: str, template: str | None, task: Task
    ) -> Fingerprint:
        """Return the manifest's fingerprint, checked against the prompt and the labels."""
        asked = {"prompt": prompt, "user_template": template} if description is None else description
        record, settings = self._folder.fingerprint, task.demonstrations
        shown = None if settings is None else demonstrated(settings, self._text(DEMONSTRATIONS))
        found = Fingerprint(
            prompt=asked_text(str(asked["prompt"]), asked["user_template"], shown),
            model=record["model"],
            space=record["space"],
            labels=task.labels,
        )
        if found.to_record() != record:
            changed = "; ".join(found.differences(record))
            raise self._wrong("manifest.json", f"its fingerprint differs from the other files in {changed}")
        return found

    def _plan(self, models: int) -> CascadePlan | None:
        if "plan.json" not in self._folder.texts:
            if models != 1:
                raise self._wrong("settings.json", f"expected one task without a plan, got {models}")
            return None
        plan = CascadePlan.from_record(self._object("plan.json"))
        if len(plan.models) != models:
            raise self._wrong(
                "settings.json", f"expected {len(plan.models)} tasks for the plan, got {models}"
            )
        return plan

    def _prior(self, fingerprint: Fingerprint) -> LabelPriorCorrection | None:
        name = "label_prior.json"
        if name not in self._folder.texts:
            return None
        return LabelPriorCorrection.load(self._path / name, fingerprint=fingerprint)

    def _head(self, fingerprint: Fingerprint) -> Head | None:
        name = "head.json"
        return Head.load(self._path / name, fingerprint=fingerprint) if name in self._folder.texts else None

    def _calibrator(self, fingerprint: Fingerprint) -> ConfidenceCalibrator | None:
        name = "calibrator.json"
        if name not in self._folder.texts:
            return None
        return load_calibrator(self._path / name, fingerprint=fingerprint)

    def _thresholds(self) -> dict[str, Any]:
        found = self._object("thresholds.json", _THRESHOLDS)
        suggested, certified = found["suggested"], found["certified"]
        values = [] if suggested is None else [suggested["high"], suggested["low"]]
        values += [] if certified is None else [certified["threshold"]]
        if any(isinstance(value, bool) or not 0.0 <= value <= 1.0 for value in values):
            raise self._wrong("thresholds.json", f"expected thresholds in [0, 1], got {values}")
        return found

    def _flag(self, settings: Mapping[str, Any], key: str) -> bool:
        if not isinstance(settings[key], bool):
            raise self._wrong("settings.json", f"expected {key} as true or false, got {settings[key]!r:.80}")
        return bool(settings[key])

    def _text(self, name: str) -> str:
        return self._folder.texts[name]

    def _optional(self, name: str) -> str | None:
        return self._folder.texts.get(name)

    def _json(self, name: str) -> Any:  # noqa: ANN401 (any JSON value)
        return parse_json(self._text(name), self._path / name)

    def _object(self, name: str, keys: frozenset[str] | None = None) -> dict[str, Any]:
        found = self._json(name)
        if not isinstance(found, dict):
            raise self._wrong(name, f"expected an object, got {type(found).__name__}")
        if keys is not None and set(found) != keys:
            raise self._wrong(
                name, f"expected the keys {', '.join(sorted(keys))}, got {', '.join(sorted(found))!r:.200}"
            )
        return found

    def _wrong(self, name: str, why: str) -> StateError:
        return StateError(f"{self._path / name}: {why}: {_AGAIN}.")


def _figure(*, name: str, rows: int, estimate: float, **interval: float | None) -> Figure:
    ends = {key: None if value is None else float(value) for key, value in interval.items()}
    return Figure(name=str(name), rows=int(rows), estimate=float(estimate), **ends)


def _history(record: Mapping[str, Any], known: LabelSet) -> BundleHistory:
    confidence = tuple(map(float, record["confidence"]))
    if not all(0.0 <= value <= 1.0 for value in confidence):
        raise ValueError("expected confidences in [0, 1] in history.json")
    labels = {str(label): int(count) for label, count in dict(record["labels"]).items()}
    rows = int(record["rows"])
    counts = list(labels.values())
    most = max([0, *counts]) if isinstance(known, CompositeLabels) else sum(counts)
    if min(rows, *counts, 0) < 0 or most > rows:
        raise ValueError("expected counts of labels from 0, no more than there are rows, in history.json")
    return BundleHistory(rows=rows, labels=labels, confidence=confidence)
