"""Tuned classifiers: what a search or a fit found, as one value."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, Self, TypeAlias, cast

import numpy as np
import pydantic

from calibrant.core._errors import ConfigurationError
from calibrant.core._fingerprint import NO_TEXTS, Fingerprint, TextDigests, sha256_of
from calibrant.core._lazy import supplied
from calibrant.core._prediction import (
    FloatArray,
    HalfArray,
    Journal,
    Outcome,
    Prediction,
    decode_half_floats,
    encode_half_floats,
)
from calibrant.core._predictor import Limits, Predictor
from calibrant.core._settings import Number, Section, Share

if TYPE_CHECKING:
    from calibrant.calibration._calibrators import ConfidenceCalibrator
    from calibrant.calibration._prior import LabelPriorCorrection
    from calibrant.core._completion import Client
    from calibrant.core._labels import LabelSet
    from calibrant.core._rows import TextWithContext
    from calibrant.core._task import RecordedTask, Task
    from calibrant.heads._head import Head

Rule: TypeAlias = Literal["certified", "suggested", "given", "cascade"]
DecidedBy: TypeAlias = Literal["confidence", "calibrated", "cascade"]

# Of `Classifier.describe`, without the server's address, which may differ between machines.
DESCRIBED: Final = (
    "model",
    "options",
    "method",
    "response_format",
    "top_logprobs",
    "prompt",
    "user_template",
    "label_prior",
)
DESCRIBED_SOMETIMES: Final = ("head", "demonstrations")
_HISTORY: Final = 1000  # confidences that are kept
_Rows: TypeAlias = Annotated[int, pydantic.Field(strict=True, ge=0)]


class Figure(Section):
    """Figure measured on labelled rows.

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

    Examples
    --------
    >>> from calibrant.tuned import Figure
    >>> Figure(name="accuracy, all rows", estimate=0.9, rows=100).lower is None
    True
    """

    name: str
    estimate: Number
    lower: Number | None = None
    upper: Number | None = None
    level: Number | None = None
    rows: _Rows


class Sketches(Section):
    """Sketches of texts with their predicted labels: a sample of at most a thousand rows, without the texts.

    Attributes
    ----------
    labels : tuple of str, length n
        The predicted label of each text.
    numbers : str
        The sketches (`Prediction.sketch`) one after another, base64 of numbers of two bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.tuned import Sketches
    >>> Sketches.of(["cat", "dog"], np.eye(2, 64, dtype=np.float16)).matrix.shape
    (2, 64)
    """

    labels: tuple[str, ...]
    numbers: str

    @classmethod
    def of(cls, labels: Sequence[str], matrix: HalfArray) -> Self:
        """Return sketches of shape (n, d)."""
        return cls(labels=tuple(labels), numbers=encode_half_floats(matrix))

    @pydantic.model_validator(mode="after")
    def _check_numbers(self) -> Self:
        _ = self.matrix
        return self

    @property
    def matrix(self) -> HalfArray:
        """The sketches, shape (n, d)."""
        found = decode_half_floats(self.numbers)
        if not np.isfinite(found).all() or not self.labels or len(found) % len(self.labels):
            raise ValueError(f"expected the finite numbers of {len(self.labels)} sketches, got others")
        return found.reshape(len(self.labels), -1)


class PredictionHistory(Section):
    """Distribution of measured predictions, with which later ones are compared.

    Attributes
    ----------
    rows : int, default 0
        Number of rows.
    labels : mapping of str to int
        Rows by predicted label; where an answer holds several, by each of them.
    confidence : tuple of float
        Confidences in [0, 1], ascending: all of them, or a thousand evenly spaced quantiles.
    answered : int or None, default None
        Rows with a label, where an answer may hold several labels or none; else None, and the sum of `labels` tells.
    sketches : Sketches or None, default None
        What a head read of their texts; None without a head that reads texts.
    models : tuple of str
        Models that answered, by the names and versions that they report; empty if none does.
    known_texts : str
        Digests, divided by blanks, of these rows and of those that prompt, demonstrations or head owe something to: a
        promise on fresh rows is none on these.
    different_texts : PredictionHistory or None, default None
        Of equal texts the first ones alone; None where all texts differ.

    Examples
    --------
    >>> from calibrant.tuned import PredictionHistory
    >>> PredictionHistory(rows=3, labels={"cat": 2, "dog": 1}, confidence=(0.6, 0.7, 0.9)).labels["cat"]
    2
    """

    rows: _Rows = 0
    labels: dict[str, _Rows] = pydantic.Field(default_factory=dict)
    confidence: tuple[Share, ...] = ()
    answered: _Rows | None = None
    sketches: Sketches | None = None
    models: tuple[str, ...] = ()
    known_texts: str = ""
    different_texts: PredictionHistory | None = None

    @classmethod
    def of(
        cls,
        answers: Sequence[str | None],
        confidence: FloatArray,
        *,
        labels: LabelSet,
        sketches: Sketches | None = None,
        models: Iterable[str] = (),
        known_texts: TextDigests = NO_TEXTS,
    ) -> PredictionHistory:
        """Return the distribution of predictions.

        Parameters
        ----------
        answers : sequence of str or None
            Predicted labels; None for a row without one.
        confidence : ndarray of shape (n,)
            In [0, 1]; NaN for a row without one.
        labels : LabelSet
            The legal labels.
        sketches : Sketches, optional
            Of some of the rows.
        models : iterable of str, optional
            Models that answered.
        known_texts : TextDigests, optional
            Of the texts of these rows.
        """
        known = np.sort(confidence[~np.isnan(confidence)])
        if len(known) > _HISTORY:
            places = np.linspace(0, len(known) - 1, _HISTORY).round()
            known = known[places.astype(np.intp)]
        counts: Counter[str] = Counter()
        for answer in answers:
            if answer is not None:
                counts.update(labels.decisions(answer))
        answered = None
        if labels.holds_several:
            answered = sum(answer is not None for answer in answers)
        return cls(
            rows=len(answers),
            labels=dict(sorted(counts.items())),
            confidence=tuple(known.tolist()),
            answered=answered,
            sketches=sketches,
            models=tuple(sorted(models)),
            known_texts=known_texts.to_record(),
        )

    @property
    def digest(self) -> str:
        """SHA-256 of labels and confidences, 64 hexadecimal digits."""
        state = [self.rows, self.labels, self.confidence]
        return sha256_of(json.dumps(state, sort_keys=True))

    def to_record(self) -> dict[str, Any]:
        """Return the history as JSON values, without what it does not have."""
        return self.model_dump(mode="json", exclude_none=True)


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Figures and predictions measured on labelled rows.

    Attributes
    ----------
    figures : tuple of Figure, default ()
        Figures of these rows.
    history : PredictionHistory
        Distribution of their predictions.

    Examples
    --------
    >>> from calibrant.tuned import Figure, Measurements
    >>> Measurements(figures=(Figure(name="accuracy, all rows", estimate=0.9, rows=100),)).history.rows
    0
    """

    figures: tuple[Figure, ...] = ()
    history: PredictionHistory = dataclasses.field(default_factory=PredictionHistory)

    def knowing(self, texts: TextDigests) -> Measurements:
        """Return the measurements of predictions that owe something to more texts than their own rows.

        Parameters
        ----------
        texts : TextDigests
            Those texts.
        """
        known = TextDigests.from_record(self.history.known_texts).union(texts)
        return replace(self, history=self.history.model_copy(update={"known_texts": known.to_record()}))


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Decision on a prediction: accept, review, or None if no rule applies.

    Attributes
    ----------
    accepted : bool or None
        False sends it to review; None where there is no threshold and the models gave no verdict.
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

    Examples
    --------
    >>> from calibrant.tuned import Decision
    >>> compared = {"rule": "given", "decided_by": "confidence", "threshold": 0.8}
    >>> Decision(accepted=False, confidence=0.7, calibrated=None, **compared).name
    'review'
    """

    accepted: bool | None
    confidence: float | None
    calibrated: float | None
    threshold: float | None
    rule: Rule | None
    decided_by: DecidedBy | None

    @property
    def name(self) -> Literal["accepted", "review"] | None:
        """Return ``accepted``, ``review``, or None if no rule applies."""
        if self.accepted is None:
            return None
        return "accepted" if self.accepted else "review"

    @property
    def final_confidence(self) -> float | None:
        """Return the calibrated confidence, or without a calibrator the prediction's own."""
        return self.confidence if self.calibrated is None else self.calibrated


def rule_of(
    thresholds: Mapping[str, Any], *, accept_suggested: bool = False
) -> tuple[Rule | None, float | None]:
    """Return the rule that accepts predictions, and the lowest confidence that it accepts.

    Parameters
    ----------
    thresholds : mapping
        As `Tuned.thresholds`.
    accept_suggested : bool, default False
        True to accept by the suggested threshold, which promises nothing, where nothing is certified.
    """
    certified = thresholds["certified"]
    suggested = thresholds["suggested"]
    if certified is not None:
        return "certified", certified["threshold"]
    if accept_suggested and suggested is not None:
        return "suggested", suggested["high"]
    if thresholds["certification"] is not None:
        return "certified", None
    return None, None


def thresholds_of(calibration: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the thresholds of a calibration, as in ``calibration.json``; None and "" without one."""
    record = calibration or {}
    return {
        "suggested": record.get("thresholds"),
        "no_suggestion": record.get("no_thresholds", ""),
        "certified": record.get("certified"),
        "certification": record.get("certification"),
    }


class OpenedPredictor(Predictor, Protocol):
    """Predictor of an opened `Tuned`: a context manager that classifies texts."""

    def classify(self, text: str | TextWithContext) -> Prediction:
        """Return the prediction of one text."""

    def classify_many(self, texts: Iterable[str | TextWithContext]) -> list[Prediction]:
        """Return the predictions of texts, in their order."""

    def __enter__(self) -> Self:
        """Return the predictor itself."""

    def __exit__(self, *exception: object) -> None:
        """Close it."""


class Calibration(Protocol):
    """Protocol of calibrations in memory; `calibrant.evaluation.calibrate_predictions` returns one.

    Examples
    --------
    >>> from calibrant import Task
    >>> from calibrant.tuned import Calibration, Tuned
    >>> def tuned(run: str, task: Task, calibration: Calibration) -> Tuned:
    ...     return Tuned.from_run(run, task=task, calibration=calibration)
    """

    @property
    def calibrator(self) -> ConfidenceCalibrator:
        """Calibrator of the confidence."""

    def to_record(self) -> dict[str, Any]:
        """Return the calibration as in ``calibration.json``."""


class TunedFiles(Protocol):
    """Protocol of readers, writers and openers of tuned classifiers; `calibrant.tuned` supplies one."""

    def save(self, tuned: Tuned, folder: str | Path) -> Tuned:
        """See `Tuned.save`."""

    def read(self, folder: str | Path) -> Tuned:
        """See `Tuned.load`."""

    def from_run(
        self,
        run: str | Path,
        *,
        task: Task | str | Path | None,
        model: str | None,
        calibration: str | Path | Calibration | None,
        texts: bool,
    ) -> Tuned:
        """See `Tuned.from_run`."""

    def open_tuned(
        self,
        tuned: Tuned,
        *,
        model: str | Client | Callable[..., Any] | None,
        options: Mapping[str, Any] | None,
        limits: Limits | None,
        journal: Journal | None,
        router_state: str | None,
    ) -> OpenedPredictor:
        """See `Tuned.open`."""


def _files() -> TunedFiles:
    return cast("TunedFiles", supplied("tuned classifiers"))


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A tuned classifier: models, prompt, corrections and thresholds, with measured figures.

    Attributes
    ----------
    tasks : tuple of RecordedTask
        Models and their settings; several tasks for the models of a plan. The training rows of each are the
        demonstrations of its prompts.
    fingerprint : Fingerprint
        Prompt, model and labels that correction, calibrator and thresholds belong to.
    plan : mapping or None, default None
        Plan of a cascade over `tasks`, as JSON values of a `calibrant.cascade.CascadePlan`.
    prompt_for_all : bool, default False
        True if `prompt` replaces the own prompts of a cascade's models.
    description : mapping or None, default None
        Result of `Classifier.describe` when it was measured; None if that is unknown.
    prior_correction : LabelPriorCorrection or None, default None
        Divided out of every prediction.
    head : Head or None, default None
        Maps the model's distributions to the final ones; replaces the label prior.
    calibrator : ConfidenceCalibrator or None, default None
        Of the confidence in the predicted label.
    thresholds : mapping
        ``suggested``, ``certified`` and ``certification`` as in ``calibration.json``; each may be None.
    measurements : Measurements or callable
        Figures and history of labelled rows; or a function that returns them, called when `figures` or `history` is
        first read. By default none.
    learned : mapping of int to Head or LabelPriorCorrection
        What corrects the models of a plan, by their number from 1; none of a single model or a cascade.
    students : mapping of str to Head
        Students that came with a bundle or the run of a plan, by the names of their models; those of other runs are
        in their own folders.
    path : Path or None, default None
        Folder or run that it was read from.
    calibrant : str
        Version of calibrant that wrote the folder; by default this one.
    digest : str or None, default None
        SHA-256 of the folder, 64 hexadecimal digits; None if it was not read from one.
    accept_suggested : bool, default False
        True to accept by the suggested threshold, which promises nothing; see `accepting_suggested`.
    accept_drift : bool, default False
        True to accept answers of models that are `unmeasured`, too; see `accepting_drift`.

    Examples
    --------
    >>> import tempfile
    >>> from calibrant import BatchEvaluator, Classifier, Example, Task
    >>> from calibrant.testing import FakeClient, fake_model
    >>> from calibrant.tuned import Tuned
    >>> run = tempfile.mkdtemp()
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?")
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)}, field="label", name="fake/pets")
    >>> with fake_model("fake/pets", fake) as name:
    ...     classifier = Classifier.from_task(task, model=name)
    ...     _ = BatchEvaluator(classifier).evaluate([Example(input="purrs", answer="cat")], out=run)
    ...     tuned = Tuned.from_run(run, task=task, model=name)
    ...     with tuned.open() as opened:
    ...         decision = tuned.decide(opened.classify("purrs"), threshold=0.95)
    >>> tuned.name, tuned.fingerprint.model, decision.accepted
    ('pets', 'fake/pets', False)
    """

    tasks: tuple[RecordedTask, ...] = dataclasses.field(repr=False)
    fingerprint: Fingerprint
    plan: Mapping[str, Any] | None = None
    prompt_for_all: bool = False
    description: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    prior_correction: LabelPriorCorrection | None = None
    head: Head | None = None
    calibrator: ConfidenceCalibrator | None = None
    thresholds: Mapping[str, Any] = dataclasses.field(default_factory=lambda: thresholds_of(None))
    measurements: Measurements | Callable[[], Measurements] = dataclasses.field(
        default=Measurements(), repr=False, compare=False
    )
    learned: Mapping[int, Head | LabelPriorCorrection] = dataclasses.field(default_factory=dict)
    students: Mapping[str, Head] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    path: Path | None = None
    calibrant: str = dataclasses.field(default_factory=lambda: metadata.version("calibrant"))
    digest: str | None = None
    accept_suggested: bool = False
    accept_drift: bool = False

    @property
    def task(self) -> Task:
        """The task; of a plan, that of its first model."""
        return self.tasks[0].task

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def labels(self) -> LabelSet:
        """The labels."""
        return self.task.labels

    @property
    def field(self) -> str:
        """JSON path of the label in an answer."""
        return self.task.field

    @property
    def prompt(self) -> str:
        """The system prompt."""
        return self.task.prompt

    @property
    def user_template(self) -> str | None:
        """Template of the user message; None sends the text alone."""
        return self.task.user_template

    @cached_property
    def _measured(self) -> Measurements:
        found = self.measurements
        if isinstance(found, Measurements):
            return found
        return found()

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Figures measured on labelled rows."""
        return self._measured.figures

    @property
    def history(self) -> PredictionHistory:
        """Distribution of the predictions on these rows."""
        return self._measured.history

    @property
    def known_texts(self) -> TextDigests:
        """Digests of the measured texts, and of those that prompt, demonstrations or head owe something to."""
        return TextDigests.from_record(self.history.known_texts)

    @property
    def place(self) -> str:
        """Path it was read from, or else its name, for messages."""
        if self.path is None:
            return self.name
        return str(self.path)

    @property
    def rule(self) -> tuple[Rule | None, float | None]:
        """Rule that accepts predictions, and the lowest accepted confidence; (None, None) without thresholds.

        If a certificate was requested and none was found, nothing is accepted. A suggested threshold, which promises
        nothing, counts where it was asked for by `accepting_suggested`.
        """
        return rule_of(self.thresholds, accept_suggested=self.accept_suggested)

    @classmethod
    def load(cls, folder: str | Path) -> Tuned:
        """Read a bundle and check all of it, without opening a model.

        Parameters
        ----------
        folder : str or Path
            The folder that `save` or `calibrant export` wrote. It holds no code, and none is run.

        Raises
        ------
        StateError
            The folder is no bundle, is of another version, was changed after it was written, or has parts that do not
            belong together.
        """
        return _files().read(folder)

    @classmethod
    def from_run(
        cls,
        run: str | Path,
        *,
        task: Task | str | Path | None = None,
        model: str | None = None,
        calibration: str | Path | Calibration | None = None,
        texts: bool = True,
    ) -> Tuned:
        """Read the tuned classifier of a finished run; nothing is written.

        Its rows are read when figures or history are: to open it, the first row with a distribution tells enough.

        Parameters
        ----------
        run : str or Path
            Directory of `calibrant optimize` (whose best prompt counts), `calibrant evaluate`, `calibrant batch` or
            `calibrant cascade run`.
        task : Task or path, optional
            The task of the run, if the run did not record its settings.
        model : str, optional
            With `task`: the model that was asked instead of the task's own.
        calibration : str, Path or Calibration, optional
            Directory that `calibrant calibrate` wrote, or the result of `calibrate_predictions`; by default the run's
            own, if it was calibrated there.
        texts : bool, default True
            True to keep the demonstrations. Without them the prompts show none, and there is no head, correction,
            calibrator, threshold or figure, as these belong to prompts with demonstrations. Texts quoted in the prompt
            itself stay.

        Raises
        ------
        ConfigurationError
            The task cannot be used; or `texts` is False, and a model of a plan shows demonstrations.
        DataError
            `run` holds no run, or `calibration` no calibration. Rows that cannot be read raise it when `figures` or
            `history` is read.
        StateError
            The run is unfinished or damaged, or its parts do not belong together.
        """
        return _files().from_run(run, task=task, model=model, calibration=calibration, texts=texts)

    def save(self, folder: str | Path) -> Tuned:
        """Write a bundle: a folder of JSON and text with a digest of each file, whole or not at all.

        It holds no credentials. The only texts of rows are demonstrations, and the words of a head that looks at them;
        of such a head the history also holds a sketch of up to a thousand rows, 64 numbers each. Digests tell whether
        a text that somebody has was among the rows.

        Parameters
        ----------
        folder : str or Path
            Must not exist, or be empty.

        Returns
        -------
        Tuned
            The value as it is read back, with the folder's `path` and `digest`.

        Raises
        ------
        ConfigurationError
            The folder is taken.
        StateError
            It cannot be written.
        """
        return _files().save(self, folder)

    def open(
        self,
        *,
        model: str | Client | Callable[..., Any] | None = None,
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        journal: Journal | None = None,
        router_state: str | None = None,
    ) -> OpenedPredictor:
        """Open the classifier, with the prompt, the settings and the corrections it was measured with.

        Parameters
        ----------
        model : str, Client or callable, optional
            Replaces the only model, with the same settings; for weights at another place on this machine. Figures,
            calibrator and thresholds belong to the own one.
        options : mapping, optional
            Credentials and settings that depend on the machine: ``api_key``, ``extra_headers``, ``api_base``,
            ``timeout``. Of several models by model (alias or name), each with a mapping. Keys are else taken from the
            environment, as ever.
        limits : Limits, optional
            Rates, budgets and deadlines.
        journal : Journal, optional
            Finished predictions.
        router_state : str, optional
            File or URL of the routing strategy's learned state. None takes the user's own router state.

        Returns
        -------
        Classifier or Cascade
            A `calibrant.cascade.Cascade` if several models are asked in turn. Closing it releases models and files.

        Raises
        ------
        StateError
            Its calls would differ from those that were measured.
        ConfigurationError
            An option is missing, unknown or wrong, or a model cannot be opened.
        """
        return _files().open_tuned(
            self,
            model=model,
            options=options,
            limits=limits,
            journal=journal,
            router_state=router_state,
        )

    def unmeasured(self, models: Iterable[str | None]) -> list[str]:
        """Return the models, or versions of one, that answered no measured row; none if it is not known which did.

        Parameters
        ----------
        models : iterable of (str or None)
            Models that answered later rows, as `Prediction.model` names them; None is no model.
        """
        measured = self.history.models
        if not measured:
            return []
        return sorted({model for model in models if model is not None and model not in measured})

    def model_warning(self, models: Iterable[str | None]) -> str | None:
        """Return a warning of the models that are `unmeasured`; None if there are none."""
        new = self.unmeasured(models)
        if not new:
            return None
        rule, least = self.rule
        is_certified = rule == "certified" and least is not None
        measured = "promise was" if is_certified else "figures were"
        reviews = is_certified and not self.accept_drift
        return (
            f"{', '.join(new)} answered, but {', '.join(self.history.models)} the labelled rows of {self.place}: its "
            f"{measured} measured on the latter. Evaluate and calibrate again, or restore the model."
            f"{' Until then its answers are for review.' if reviews else ''}"
        )

    def accepting_suggested(self) -> Tuned:
        """Return the value with decisions by the suggested threshold, which promises nothing.

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

    def accepting_drift(self) -> Tuned:
        """Return the value that accepts answers of `unmeasured` models, too, of which nothing is promised."""
        return replace(self, accept_drift=True)

    def calibrated(self, prediction: Prediction) -> float | None:
        """Return the calibrated confidence of a prediction, in [0, 1]; None without a confidence."""
        return self._calibrate([prediction.confidence], [prediction.label])[0]

    def decide(self, prediction: Prediction, *, threshold: float | None = None) -> Decision:
        """Return the decision on a prediction: accept, review, or None if no rule applies.

        With a calibrator, the calibrated confidence decides: a threshold that is given is compared with it, and a
        suggested one is calibrated, too, as an answer of the same label would be. A certified threshold is compared
        with the confidence as given, which its guarantee is about; an answer of a model that is `unmeasured` is
        for review then, unless `accept_drift` is True.

        Parameters
        ----------
        prediction : Prediction
            Of the opened classifier.
        threshold : float in [0, 1], optional
            Accept from this confidence on (calibrated, with a calibrator), instead of by the own threshold.

        Raises
        ------
        ConfigurationError
            The threshold is out of range.
        DataError
            The rows of a run with a certificate cannot be read, so that it is not known which models answered them.
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
        decisions = [
            self._decision(*values, rule=rule, least=least)
            for values in zip(predictions, calibrated, lowest, strict=True)
        ]
        if rule != "certified" or self.accept_drift or not any(one.accepted for one in decisions):
            return decisions
        new_models = self.unmeasured(one.model for one in predictions)
        return [
            replace(decision, accepted=False) if prediction.model in new_models else decision
            for decision, prediction in zip(decisions, predictions, strict=True)
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
            rule = "cascade"
            decided_by = "cascade"
            accepted = prediction.accepted
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
