"""Students: learned from a model's own distributions, so that they answer the easy texts without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from calibrant.cascade.planning._guarantee import CertifiedCascade, certify_cascade
from calibrant.core._errors import ConfigurationError, DataError, StateError
from calibrant.core._files import as_record, write_atomically
from calibrant.core._fingerprint import TextDigests
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import BoolArray, FloatArray, Interval, JsonObject, Outcome, Record
from calibrant.core._rows import Example
from calibrant.core._settings import ModelSettings
from calibrant.core._splits import split_rule
from calibrant.core._task import Task
from calibrant.evaluation._evaluator import BatchEvaluator
from calibrant.evaluation._looks import counted_loss
from calibrant.heads._fit import fit_head
from calibrant.heads._head import FITTED, Head
from calibrant.inference._classifier import Classifier
from calibrant.inference._heads import read_by_fits
from calibrant.inference._student import StudentClient, save_student, student_name
from calibrant.inference._text_vectors import Embeddings, head_embedding, prepare_vectors
from calibrant.metrics._intervals import wilson_interval
from calibrant.runs._directory import PREDICTIONS
from calibrant.runs._rows import STANDS_IN, SavedRow, SavedRows, read_row, record_line, row_lines
from calibrant.tuned._folder import refuse_taken
from calibrant.tuned._task_record import known_texts, read_run_settings, record_run, task_from_record

MODEL_ROWS: Final = "model.jsonl"
"""The model's own answers to the held-out rows, beside the student's."""

EPSILON: Final = 0.02
DELTA: Final = 0.1
_FEWEST: Final = 20  # rows: ten to learn from, and some to measure on
_MOST: Final = 10_000  # rows to learn from: a minute, and a file of some megabytes
_SHARES: Final = (0.5, 0.0, 0.5)
# What a true label counts beside the model's own distribution. On recorded answers of AG News, 350 rows to learn from,
# half and half kept 74 % of the texts, the model's distributions alone 56 %.
_TRUTH: Final = 0.5
_PROMPT: Final = "Which label fits the text?"


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """A student with its figures on held-out rows.

    Attributes
    ----------
    source : str
        Directory or file of the model's predictions.
    directory : Path
        Run of the student on the held-out rows, which every command opens.
    name : str
        Name that opens the student as a model.
    head : Head
        The student.
    rows, taught, held_out, left_out : int
        All rows; those it learned from; those that it was measured on, whose texts are unlike the former; rows without
        a text or a label of the model.
    labelled : int
        Held-out rows with a true label.
    agreement : Interval
        Share of the held-out rows on which it says what the model says.
    accuracy, model_accuracy : Interval or None
        Of the student and of the model on the rows with a true label; None without any.
    certified : CertifiedCascade
        What the student may keep, so that with probability ``1 - delta`` at most 0.02 of the accuracy is lost against
        asking the model about every text. On rows without a true label, that of the model stands in.
    delta : float
        Probability that the certificate, or one that was asked of these rows earlier, is wrong.

    Examples
    --------
    >>> from calibrant.tuned import Distilled
    >>> def plan_command(student: Distilled) -> str:
    ...     return f"calibrant cascade plan {student.directory} {student.model_rows}"
    """

    source: str
    directory: Path
    name: str
    head: Head
    rows: int
    taught: int
    held_out: int
    left_out: int
    labelled: int
    agreement: Interval
    accuracy: Interval | None
    model_accuracy: Interval | None
    certified: CertifiedCascade
    delta: float

    @property
    def model_rows(self) -> Path:
        """File of the model's answers to the held-out rows, with which a plan pairs those of the student."""
        return self.directory / MODEL_ROWS

    def to_record(self) -> JsonObject:
        """Return the result as JSON values."""
        counts = ("source", "name", "rows", "taught", "held_out", "left_out", "labelled")
        intervals = ("agreement", "accuracy", "model_accuracy")
        found = self.certified
        return {
            "kind": "student",
            **{name: as_record(getattr(self, name)) for name in (*counts, *intervals)},
            "directory": str(self.directory),
            "certified": {
                "epsilon": EPSILON,
                "delta": self.delta,
                "threshold": found.threshold,
                "share_kept": found.share_small,
            },
            "head": self.head.describe(),
        }


@dataclass(frozen=True, kw_only=True)
class _ModelRow:
    """Row that the model answered.

    Attributes
    ----------
    saved : SavedRow
        The row.
    text, label : str
        Its text, and the model's label.
    truth : str or None
        Its true label.
    """

    saved: SavedRow
    text: str
    label: str
    truth: str | None

    @property
    def answer(self) -> str:
        """The true label, or else the model's."""
        return self.label if self.truth is None else self.truth

    def target(self, labels: LabelSet) -> FloatArray:
        """Return the distribution that a student learns, shape (L,)."""
        found = _distribution(self.saved, self.label, labels)
        if self.truth is not None:
            found = (1.0 - _TRUTH) * found
            found[labels.labels.index(self.truth)] += _TRUTH
        return found


def distill(
    run: str | Path, out: str | Path, *, embeddings: Embeddings | None = None, seed: int = 0
) -> Distilled:
    """Learn a student from a run, measure it on held-out rows, and write it down as a run of its own.

    A student is a regression on the words of the texts, or on their vectors too, whose targets are the distributions
    that the model gave; where a true label is known, it counts as much as the model's distribution. It learns from half
    of the texts, 10,000 at most, is calibrated by cross-validation on these, and answers the other half. Texts
    that are nearly alike are in one half.

    Parameters
    ----------
    run : str or Path
        Directory of `calibrant label`, `evaluate`, `batch` or `cascade run`, or a file of predictions with ``input``
        and ``label``. A row without ``probabilities`` has its ``confidence`` for its label, and the rest spread evenly.
    out : str or Path
        A new or empty folder. As a run of the student on the held-out rows it is opened by `calibrant.load`, `label`,
        `serve` and `export`; ``model.jsonl`` in it holds the model's answers to the same rows, for `cascade plan`. The
        student itself, the model ``distilled:OUT`` of task files, is ``student.json``.
    embeddings : str, EmbeddingModel or bool, optional
        Model that gives it a vector of each text beside its words; see `calibrant.inference.open_embedding_model`. True
        is the default one of heads; by default there is none.
    seed : int, default 0
        Of the rows that are drawn, and of the folds.

    Raises
    ------
    ConfigurationError
        The folder is taken, answers hold several labels, or the embedding model cannot be opened.
    DataError
        There are too few rows, or nothing can be learned from their texts.
    ProviderError
        The server of the embedding model cannot be asked.
    StateError
        The run is damaged, or the folder cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant import BatchEvaluator, Classifier
    >>> from calibrant.testing import FakeClient
    >>> from calibrant.tuned import distill
    >>> out = Path(tempfile.mkdtemp())
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.95), "barks": ("dog", 0.9)})
    >>> large = Classifier(model=fake, labels=["cat", "dog"], field="category", prompt="Which animal?")
    >>> texts = [f"it {verb} since {n} and {n * n}" for n in range(60) for verb in ("purrs", "barks")]
    >>> _ = BatchEvaluator(large).label(texts, out=out / "large")
    >>> student = distill(out / "large", out / "student")
    >>> student.agreement.estimate, student.head.uses_model, student.accuracy
    (1.0, False, None)
    """
    place = Path(run)
    directory = Path(out)
    refuse_taken(directory)
    saved = SavedRows.load(place)
    if "parts" in saved.fields:
        raise ConfigurationError(f"{place}: expected one label a row, got answers that hold several.")
    task = _task_of(place, saved)
    rows = list(_model_rows(saved, task.labels))
    taught, held_out = _halves(rows, name=saved.name, seed=seed)
    head = _student(taught, task.labels, embeddings=embeddings, seed=seed)
    name = student_name(directory.resolve())
    task = replace(task, model=ModelSettings(name=name))
    with Classifier.from_task(task, client=StudentClient(name, head)) as classifier:
        examples = [Example(input=row.text, answer=row.answer) for row in held_out]
        about = {"task": task.name, "distilled_from": str(run)}
        BatchEvaluator(classifier).evaluate(examples, out=directory, about=about)
    save_student(head, directory)
    seen = known_texts(place).union(TextDigests.of(saved.inputs))
    record_run(directory, [(task, None)], known_texts=seen)
    _write_model_rows(held_out, directory / MODEL_ROWS)
    _mark_stand_ins(held_out, directory / PREDICTIONS)
    return Distilled(
        source=str(run),
        directory=directory,
        name=name,
        head=head,
        rows=len(saved),
        taught=len(taught),
        left_out=len(saved) - len(rows),
        **_figures(SavedRows.load(directory), held_out, SavedRows.load(directory / MODEL_ROWS)),
    )


def _figures(own: SavedRows, rows: Sequence[_ModelRow], model: SavedRows) -> JsonObject:
    """Return the figures of a student's answers beside those of the model."""
    spent = counted_loss([own, model], epsilon=EPSILON, delta=DELTA)
    certified = CertifiedCascade(
        rule=None, threshold=None, thresholds=(), share_small=0.0, only_large=0, only_small=0
    )
    by_model = np.array([row.label == row.answer for row in rows])
    if not spent.refused:
        certified = certify_cascade(
            own.confidence,
            own.correct,
            by_model,
            epsilon=EPSILON,
            delta=DELTA,
            inputs=[row.text for row in rows],
        )
    known = np.array([row.truth is not None for row in rows])
    agrees = [one == row.label for one, row in zip(own.labels, rows, strict=True)]
    return {
        "held_out": len(rows),
        "labelled": int(known.sum()),
        "agreement": wilson_interval(sum(agrees), len(agrees)),
        "accuracy": _share(own.correct[known] == 1),
        "model_accuracy": _share(by_model[known]),
        "certified": certified,
        "delta": spent.total,
    }


def _share(right: BoolArray) -> Interval | None:
    if len(right):
        return wilson_interval(int(right.sum()), len(right))
    return None


def _task_of(place: Path, saved: SavedRows) -> Task:
    """Return the task of a run; without one, a task of the labels that occur."""
    try:
        record = read_run_settings(place).tasks[0]
    except StateError:
        if (place / "task.json").exists():
            raise
        names = sorted({name for name in (*saved.labels, *saved.answers) if name})
        labels = saved.label_set or names
        if len(labels) < 2:
            raise DataError(f"expected rows of at least two labels, got {len(labels)}.", path=place) from None
        return Task(name=place.stem, labels=LabelSet(labels), prompt=_PROMPT)
    task = task_from_record(record, place=place).task
    return replace(task, sections={}, demonstrations=None, train=())


def _model_rows(saved: SavedRows, labels: LabelSet) -> Iterator[_ModelRow]:
    for row in saved.rows():
        text = row.input or ""
        label = None
        if row.label is not None:
            label = labels.canonical(row.label)
        if row.outcome is Outcome.ERROR or not text.strip() or label is None:
            continue
        truth = None
        if row.answer is not None:
            truth = labels.canonical(row.answer)
        yield _ModelRow(saved=row, text=text, label=label, truth=truth)


def _halves(rows: Sequence[_ModelRow], *, name: str, seed: int) -> tuple[list[_ModelRow], list[_ModelRow]]:
    """Return the rows to learn from and those to measure on."""
    if len(rows) < _FEWEST:
        raise DataError(
            f"{name}: expected at least {_FEWEST} rows with a text and a label of the model, got {len(rows)}: label "
            "more texts."
        )
    rule = split_rule([(row.text, row.label) for row in rows], _SHARES)
    taught: list[_ModelRow] = []
    held_out: list[_ModelRow] = []
    for row in rows:
        half = held_out if rule.part(row.text, row.label) else taught
        half.append(row)
    if len(taught) > _MOST:
        order = np.random.default_rng(seed).permutation(len(taught))
        chosen = np.sort(order[:_MOST])
        taught = [taught[place] for place in chosen.tolist()]
    if min(len(taught), len(held_out)) < _FEWEST // 2:
        raise DataError(
            f"{name}: expected at least {_FEWEST // 2} rows to learn from and as many to measure on, got {len(taught)} "
            f"and {len(held_out)}, as texts that are alike stay together: label more texts."
        )
    return taught, held_out


def _distribution(row: SavedRow, label: str, labels: LabelSet) -> FloatArray:
    """Return the model's distribution of a row, shape (L,)."""
    given = row.values.get("probabilities")
    if isinstance(given, Mapping):
        found = np.array([float(given.get(name) or 0.0) for name in labels.labels])
        if found.sum() > 0.0:
            shares: FloatArray = found / found.sum()
            return shares
    even = 1.0 / len(labels)
    sure = 1.0
    if not np.isnan(row.confidence):
        sure = max(row.confidence, even)
    spread = np.full(len(labels), (1.0 - sure) / (len(labels) - 1))
    spread[labels.labels.index(label)] = sure
    return spread


def _student(
    rows: Sequence[_ModelRow], labels: LabelSet, *, embeddings: Embeddings | None, seed: int
) -> Head:
    texts = [row.text for row in rows]
    embedding = None
    if embeddings is not None and embeddings is not False:
        embedding = head_embedding(embeddings, texts, labels=labels, reports_features=False)
        prepare_vectors(embedding, [*texts, *read_by_fits(labels.labels)])
    targets = np.array([row.target(labels) for row in rows])
    even = np.zeros(targets.shape)
    head = fit_head(even, targets, labels=labels, texts=texts, embedding=embedding, rng=seed)
    if head.kind != FITTED:
        raise DataError(
            f"Expected texts that tell something of the model's labels, got {len(rows)} that do not: label more texts, "
            "or name an embedding model (--embeddings)."
        )
    return head


def _mark_stand_ins(rows: Sequence[_ModelRow], predictions: Path) -> None:
    """Mark the student's rows whose true label is not known, for which the model's label stands in.

    Raises
    ------
    StateError
        The file cannot be read or written.
    """
    records = [dict(read_row(line).values) for line in row_lines(predictions)]
    for record, row in zip(records, rows, strict=True):
        if row.truth is None:
            record[STANDS_IN] = True
    _write_rows(records, predictions)


def _write_rows(records: Iterable[Record], path: Path) -> None:
    try:
        write_atomically(path, "".join(record_line(record).decode() for record in records))
    except OSError as error:
        raise StateError(f"{path}: cannot be written ({error}): choose another folder.") from error


def _write_model_rows(rows: Sequence[_ModelRow], path: Path) -> None:
    """Write the model's answers to rows, numbered as those of the student are.

    Raises
    ------
    StateError
        The file cannot be written.
    """
    records = []
    for number, row in enumerate(rows):
        record = dict(row.saved.values)
        # With a space, the rows would be taken for answers of the student, whose run.json lies beside them.
        record.update(
            index=number, label=row.label, answer=row.answer, correct=row.label == row.answer, space=None
        )
        if row.truth is None:
            record[STANDS_IN] = True
        records.append(record)
    _write_rows(records, path)
