"""Promises on saved rows from labels that a person, a command or a larger model gives, and the file that keeps them."""

from __future__ import annotations

import contextlib
import csv
import html
import io
import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from calibrant.calibration._asked import AskedCertificate, Metric, rows_to_ask
from calibrant.core._errors import ConfigurationError, DataError, StateError
from calibrant.core._files import (
    SCHEMA_VERSION,
    atomic_writer,
    read_json_object,
    remove_leftovers,
    write_atomically,
)
from calibrant.core._prediction import FloatArray, IndexArray, JsonObject
from calibrant.core._reported import counted, listed, writable
from calibrant.core._rows import read_rows
from calibrant.core._structures import CompositeLabels
from calibrant.core._table_files import CsvSpelling, csv_spelling
from calibrant.evaluation._looks import counted_promise
from calibrant.runs._directory import PREDICTIONS, hold_lock, make_folder, while_writing, write_json
from calibrant.runs._rows import SavedRows

CERTIFICATE: Final = "certificate.json"
DECIDED: Final = "decisions.csv"
ROUND: Final = 20  # rows that a person is asked about together
_PLAIN: Final = CsvSpelling()
NO_LABEL: Final = "-"
"""Answer where no label fits: whatever the model said is wrong."""

TASKS: Final = ".json"
"""Ending of a file of Label Studio tasks."""

_COLUMNS: Final = ("index", "text", "label", "answer")
# Of Label Studio: names of the fields in the labelling config, and a task with its data, predictions and annotations.
_TEXT_FIELD: Final = "text"
_LABEL_FIELD: Final = "label"
_Task: TypeAlias = Mapping[str, Any]

LabelSource: TypeAlias = Callable[[str], str]
"""Returns the true label of a text; a dash where no label fits."""


@dataclass(kw_only=True)
class AnswerFile:
    """File of the rows that are asked about: CSV with the columns index, text, label and answer, or Label Studio tasks.

    Tasks are in a file in ``.json``, and the project's labelling config is beside it in ``.xml``. Further columns, and
    what else an export says of a task, are kept.

    Attributes
    ----------
    path : Path
        The file; it need not exist.
    answers : dict of int to str
        True label by the row's place among the saved ones; empty where none is given yet.
    """

    path: Path
    answers: dict[int, str] = field(default_factory=dict)
    _texts: dict[int, str] = field(default_factory=dict, repr=False)  # so that no text is looked for twice
    # So that no line is encoded twice.
    _lines: dict[tuple[int, str], str] = field(default_factory=dict, repr=False)
    _tasks: dict[int, _Task] = field(default_factory=dict, repr=False)
    # Columns of whoever answers.
    _further: dict[int, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    _spelling: CsvSpelling = field(
        default=CsvSpelling(), repr=False
    )  # as the program of whoever answers writes it
    # Time and size of the file as it is known here.
    _seen: tuple[int, int] | None = field(default=None, repr=False)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, rows: SavedRows) -> Iterator[AnswerFile]:
        """Read the answers to saved rows, and keep other processes from the file for the block; see `read`.

        Raises
        ------
        StateError
            Another process has the file open, or its folder cannot be written.
        """
        make_folder(path.parent)
        with while_writing(path, remedy="name another file, or make room"):
            lock = path.with_name(f".{path.name}.lock").open("a+")
        with lock:
            lock.seek(0)
            holder = lock.read(20) or "unknown"
            hold_lock(
                lock.fileno(),
                f"{path}: process {holder} of calibrant has these answers open: use the page of its review, or wait "
                "until it ends; or name another file, or another --out.",
            )
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            remove_leftovers(path)  # of a killed writer
            yield cls.read(path, rows)

    @classmethod
    def read(cls, path: Path, rows: SavedRows) -> AnswerFile:
        """Read the answers to saved rows.

        Raises
        ------
        DataError
            A row is there twice, is unknown, has another text than the saved one, or an answer that is no label; or
            annotations of a row disagree.
        """
        found = cls(path=path)
        found._seen = _time_and_size(path)
        if found._seen is None:
            return found
        if not found._is_of_tasks and _has_rows(path):
            found._spelling = csv_spelling(path, column="answer")
        place_of = {int(index): place for place, index in enumerate(rows.index)}
        texts: dict[int, tuple[int | None, str]] = {}
        for line, values, task in _given(path):
            index = values.get("index")
            place = place_of.get(whole(index))
            if place is None or place in texts:
                why = "that is not among the rows" if place is None else "that is there twice"
                raise DataError(
                    f"expected each row of {rows.name} once at most, got index {index!r:.40}, {why}: remove it.",
                    path=path,
                    line=line,
                )
            written = str(values.get("answer") or "").strip()
            answer = _label_of(written, rows)
            if written and answer is None:
                raise DataError(
                    f"expected a label as the answer, {_some_labels(rows)}, got {written!r:.60} for the row with index "
                    f"{index}: write it as the label set does, or {NO_LABEL} where none fits.",
                    path=path,
                    line=line,
                )
            texts[place] = line, str(values.get("text") or "")
            found.answers[place] = answer or ""
            if task is None:
                found._further[place] = {name: values[name] for name in values if name not in _COLUMNS}
            else:
                found._tasks[place] = task
        found._check_texts(texts, rows)
        return found

    def _check_texts(self, texts: Mapping[int, tuple[int | None, str]], rows: SavedRows) -> None:
        """Raise DataError if a text in the file, which stands there with its line, is not that of its row."""
        saved = self.texts_of(list(texts), rows)
        for place, (line, written) in texts.items():
            text = saved[place]
            if written.split() != text.split():
                raise DataError(
                    f"expected the text of row {int(rows.index[place])} of {rows.name}, got another one: these answers "
                    "are about other rows, so name another file.",
                    path=self.path,
                    line=line,
                )

    def write(self, rows: SavedRows) -> None:
        """Write the rows that are asked about, with the answers so far.

        Raises
        ------
        StateError
            Somebody else has changed the file since it was read or written here; it stays as it is.
        """
        if _time_and_size(self.path) not in (None, self._seen):
            raise StateError(
                f"{self.path}: somebody else has changed it since it was read, so that it is not replaced: end the "
                "command, and start it again."
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._is_of_tasks:
            self._write_tasks(rows)
        else:
            encoding = self._spelling.encoding
            if not encoding.startswith("utf"):
                encoding = "utf-8-sig"  # any text can be written in it, and Excel finds it
            with atomic_writer(self.path, encoding=encoding) as file:
                file.write(self.table(rows))
        self._seen = _time_and_size(self.path)

    def table(self, rows: SavedRows) -> str:
        """Return the content of a CSV file of the answers; rows are encoded when they are first in it."""
        added = [one for one in self.answers.items() if one not in self._lines]
        texts = self.texts_of([place for place, _ in added], rows)
        columns = dict.fromkeys(name for values in self._further.values() for name in values)
        for place, answer in added:
            values = (int(rows.index[place]), texts[place], rows.labels[place], answer)
            further = self._further.get(place, {})
            cells = [*values, *(further.get(name) for name in columns)]
            self._lines[place, answer] = csv_line(cells, self._spelling)
        lines = (self._lines[one] for one in self.answers.items())
        head = csv_line([*_COLUMNS, *columns], self._spelling)
        if self._spelling.names_separator:
            head = f"sep={self._spelling.separator}{self._spelling.line_end}{head}"
        return "".join([head, *lines])

    def _write_tasks(self, rows: SavedRows) -> None:
        labels = dict.fromkeys([*_labels_to_choose(rows), NO_LABEL])
        texts = self.texts_of(list(self.answers), rows)
        tasks = []
        for place in self.answers:
            index = int(rows.index[place])
            confidence = float(rows.confidence[place])
            new = _task_record(index, texts[place], rows.labels[place], confidence, model=rows.name)
            tasks.append(self._tasks.get(place, new))
        write_atomically(self.config, _labelling_config(list(labels)))
        write_atomically(self.path, json.dumps(tasks, indent=1) + "\n")

    @property
    def config(self) -> Path:
        """Labelling config of the tasks."""
        return self.path.with_suffix(".xml")

    @property
    def _is_of_tasks(self) -> bool:
        return self.path.suffix.lower() == TASKS

    def waiting_line(self, n: int, rows: SavedRows) -> str:
        """Return the line that says how a person answers the `n` of the rows that wait."""
        what = "write the true label of each into the column answer"
        if self._is_of_tasks:
            what = (
                f"import it into a Label Studio project with the labelling config {self.config}, save its export "
                "(JSON) under the same name"
            )
        waiting = counted(n, "row waits", "rows wait")
        line = f"{waiting} in {self.path}: {what}, and run the same command again."
        if self._is_of_tasks and isinstance(rows.legal_labels, CompositeLabels):
            offered = counted(len(_labels_to_choose(rows)), "choice")
            line += (
                f" Answers hold several labels, and the config offers those predicted ({offered}): add others to the "
                "project as choices, in JSON as these are."
            )
        return line

    def texts_of(self, places: list[int], rows: SavedRows) -> dict[int, str]:
        """Return the texts of the rows at `places`; those not known yet are read from the rows' file."""
        missing = sorted(place for place in places if place not in self._texts)
        if missing:
            found = [writable(row.input or "") for row in rows.rows(missing)]
            self._texts |= dict(zip(missing, found, strict=True))
        return {place: self._texts[place] for place in places}


def _time_and_size(path: Path) -> tuple[int, int] | None:
    """Return when a file was last changed, and its size; None if there is none."""
    if not path.is_file():
        return None
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _given(path: Path) -> Iterator[tuple[int | None, Mapping[str, Any], _Task | None]]:
    """Yield the line, the values and the task of each row of a file, as far as it has them."""
    if path.suffix.lower() == TASKS:
        for task, answer in _read_tasks(path):
            yield None, {**task["data"], "answer": answer}, task
        return
    if not _has_rows(path):
        return
    for row in read_rows(path, column="answer"):
        if "index" not in row.values:
            raise DataError(
                f"expected the columns {', '.join(_COLUMNS)}, got {', '.join(row.values)}: name a file of answers.",
                path=path,
                line=row.line,
            )
        yield row.line, row.values, None


def _has_rows(path: Path) -> bool:
    """Return True if a file holds more than a header, as it does until every answer was taken back."""
    with path.open(encoding="latin-1") as file:  # of any encoding; lines may end in CR alone
        file.readline()
        return any(line.strip() for line in file)


def csv_line(values: Sequence[object], spelling: CsvSpelling = _PLAIN) -> str:
    """Return a line of CSV."""
    text = io.StringIO()
    csv.writer(text, delimiter=spelling.separator, lineterminator=spelling.line_end).writerow(values)
    return text.getvalue()


def _label_of(answer: str, rows: SavedRows) -> str | None:
    """Return an answer as the label set writes it, several labels in its order; None if it is no label."""
    if not answer:
        return None
    if answer == NO_LABEL:
        return answer
    if rows.legal_labels is None:
        return rows.spelled(answer)
    return rows.legal_labels.canonical(answer)


def _some_labels(rows: SavedRows) -> str:
    labels = rows.legal_labels
    if isinstance(labels, CompositeLabels):
        return "the labels in JSON, in any order, as in " + next(
            filter(None, rows.labels), "the file of predictions"
        )
    return f"one of {listed(labels.labels if labels else ())}"


def whole(value: object) -> int:
    """Return an index that is written in a file; -1 if it is none."""
    try:
        return int(str(value).strip())
    except ValueError:
        return -1


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedRows:
    """Saved rows with a promise on those that are accepted, from labels asked for one at a time.

    Attributes
    ----------
    rows : SavedRows
        The rows.
    certificate : AskedCertificate
        The promise, or why there is none; about the rows at `places`.
    label : str or None
        The label that it is about, if it is about one.
    places : ndarray of int, shape (m,)
        Rows that it is about: all, or those with one predicted label.
    answers : mapping of int to str
        True labels of these rows that were given, by place.
    asked : tuple of int
        Rows that a person was asked about for this promise, by place.
    waiting : int
        Those of them that wait for the answer.
    delta : float
        As for `certify_saved`; that of the certificate is larger where other promises were asked of these rows.
    agreement_with : str or None
        Model whose labels were asked for: the promise is agreement with it, not being right.
    """

    rows: SavedRows
    certificate: AskedCertificate
    delta: float
    label: str | None
    places: IndexArray
    answers: Mapping[int, str]
    asked: tuple[int, ...] = ()
    waiting: int = 0
    agreement_with: str | None = None

    @property
    def n_accepted(self) -> int:
        """Number of rows that are accepted."""
        return int(self.certificate.accepted.sum())

    @property
    def n_accepted_unseen(self) -> int:
        """Number of accepted rows whose true label was not asked for."""
        accepted = self.places[self.certificate.accepted]
        return sum(place not in self.answers for place in accepted.tolist())

    @property
    def n_without_label(self) -> int:
        """Number of rows without a predicted label, which the promise is not about; 0 if it is about one label."""
        return len(self.rows) - len(self.places) if self.label is None else 0

    @property
    def n_right(self) -> int:
        """Number of given labels that equal the predicted one; for recall, that are the label."""
        if self.certificate.metric == "recall":
            return list(self.answers.values()).count(str(self.label))
        return sum(answer == self.rows.labels[place] for place, answer in self.answers.items())

    def sentence(self) -> str:
        """Return the promise, where there is one, in two or three sentences."""
        found = self.certificate
        about = "The promise is about these rows, and no others."
        if found.delta > self.delta:
            about += " With that probability all promises asked of these rows hold."
        threshold = f"{found.threshold:.6g}"
        promise = f"with probability {1 - found.delta:g}, at least {found.target:.1%}"
        are = "is" if self.n_accepted == 1 else "are"
        rows = f"{counted(self.n_accepted, 'row')} ({found.kept:.1%}) {are}"
        model = self.agreement_with
        if found.metric == "recall":
            having = (
                f"whose true label is {self.label}" if model is None else f"that {model} labels {self.label}"
            )
            return (
                f"{rows} flagged, from a probability of {self.label} of {threshold} on; {promise} of all rows {having} "
                f"are among them. {about}"
            )
        which = (
            "of them" if found.metric == "accuracy" else "of all rows, if the others get the label asked for,"
        )
        hold = "are right" if model is None else f"agree with {model}"
        return (
            f"{rows} accepted, {self.n_accepted_unseen:,} of them without a label given, from a confidence of "
            f"{threshold} on{self._where()}; {promise} {which} {hold}. {about}"
        )

    def _where(self) -> str:
        """Return the file with these confidences; an empty text where no labels with calibrated ones are beside it."""
        path = self.rows.path
        has_labels = path.name == PREDICTIONS and any(path.parent.glob("labels.*"))
        return f" in {PREDICTIONS}" if has_labels else ""

    def to_record(self) -> JsonObject:
        """Return the certificate as JSON values, as ``certificate.json`` holds it."""
        found = self.certificate
        names = ("certified", "threshold", "kept", "labels_used", "reason", "target", "delta", "metric")
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "asked certificate",
            "object": "file",
            "source": self.rows.name,
            **{name: getattr(found, name) for name in names},
            "label": self.label,
            "rows": len(self.places),
            "rows_without_label": self.n_without_label,
            "accepted": self.n_accepted,
            "labels_given": len(self.answers),
            "labels_right": self.n_right,
            "agreement_with": self.agreement_with,
            "rows_asked": self.rows.index[list(self.asked)].tolist(),
            "waiting": self.waiting,
        }

    def write(self, out: Path) -> None:
        """Write ``certificate.json``, and ``decisions.csv`` with one line a row: accepted, answered or review.

        For recall a row is flagged, answered or left out. Rows without a predicted label are in review.

        Raises
        ------
        StateError
            A file cannot be written.
        """
        make_folder(out)
        accepted = set(self.places[self.certificate.accepted].tolist())
        yes = "accepted"
        no = "review"
        if self.certificate.metric == "recall":
            yes = "flagged"
            no = "left out"
        lines = [csv_line(("index", "label", "confidence", "decision"))]
        listed_rows = range(len(self.rows)) if self.n_without_label else self.places.tolist()
        for place in listed_rows:
            answer = self.answers.get(place)
            decision = "answered" if answer else yes if place in accepted else no
            confidence = float(self.rows.confidence[place])
            shown = "" if math.isnan(confidence) else confidence
            label = answer
            if answer in (None, NO_LABEL):
                label = self.rows.labels[place]
            lines.append(csv_line((int(self.rows.index[place]), label, shown, decision)))
        with while_writing(out / DECIDED):
            write_atomically(out / DECIDED, "".join(lines))
        write_json(out / CERTIFICATE, self.to_record())


def certify_saved(
    promise: RowsPromise, file: AnswerFile, *, answer: LabelSource | None, asked: Collection[int]
) -> AskedRows:
    """Ask for labels of saved rows until the most confident ones keep a promise; see `calibrant.calibration.certify`.

    Every answer is in the file before the next row is asked about, and none is asked for twice.

    Parameters
    ----------
    promise : RowsPromise
        Is asked of its rows.
    file : AnswerFile
        Keeps the answers.
    answer : callable or None
        Returns the true label of a text; by default a person is asked: up to 20 rows are added to the file, and whoever
        has filled them in calls again.
    asked : collection of int
        Rows that a person was asked about for the same promise before, by place.

    Raises
    ------
    ConfigurationError
        A parameter is out of range, no row has the label, or there is no label for recall.
    DataError
        An answer is no label, or there are no probabilities for recall.
    """
    if answer is None and not promise.is_refused:
        return _asked_of_a_person(promise, file, set(asked))
    if answer is not None and not promise.is_refused:

        def is_right(place: int) -> bool:
            if not file.answers.get(place):
                ask(answer, file, promise.rows, place)
            return promise.is_right(place, file.answers[place])

        promise.certificate(is_right)
    return replace(promise.found(file.answers), asked=tuple(sorted(asked)))


def _asked_of_a_person(promise: RowsPromise, file: AnswerFile, asked: set[int]) -> AskedRows:
    """Add the rows of the next round to the file, and return the promise that its answers bear.

    A round is drawn as if all its answers were right. After a wrong one, other rows may come next, and some that were
    answered count for nothing; they count for the budget all the same.
    """
    came_to, wanted = promise.round_of(file.answers)
    spent = asked.union(came_to)
    waiting = []
    for place in wanted:
        if place in asked or len(spent) < promise.budget:
            spent.add(place)
            waiting.append(place)
    added = [place for place in waiting if place not in file.answers]
    if added:
        file.answers |= dict.fromkeys(added, "")
        file.write(promise.rows)
    found = promise.found(file.answers)
    certificate = found.certificate
    if not waiting and certificate.labels_missing:
        given = counted(len(spent), "label is", "labels are")
        used = f"{certificate.labels_used:,} of them of rows that the promise came to"
        more = counted(certificate.labels_missing, "further one", "further ones")
        reason = f"{given} given, {used}; {more} could accept more."
        certificate = replace(certificate, reason=reason)
    asked = asked.union(waiting)
    return replace(found, certificate=certificate, asked=tuple(sorted(asked)), waiting=len(waiting))


@dataclass(frozen=True, kw_only=True, eq=False)
class RowsPromise:
    """Promise that is asked of saved rows; see `certify_saved`, also for the errors.

    Attributes
    ----------
    rows : SavedRows
        Rows with label and confidence.
    target, delta, metric, budget
        As for `calibrant.calibration.certify`. The `delta` of a result is that of all promises asked of these rows.
    label : str or None
        Only the rows with this predicted label count: the promise is about its precision. For recall, the label that it
        is about, in all rows.
    """

    rows: SavedRows
    target: float
    delta: float
    metric: Metric
    budget: int
    label: str | None

    @cached_property
    def places(self) -> IndexArray:
        """Rows that it is about, shape (m,)."""
        if self.metric == "recall":
            return np.arange(len(self.rows))
        return _with_label(self.rows, self.label)

    @cached_property
    def confidence(self) -> FloatArray:
        """Confidences of these rows, shape (m,); for recall, the probabilities of the label."""
        if self.metric == "recall":
            return _probability(self.rows, self.label)
        return self.rows.confidence[self.places]

    @cached_property
    def is_refused(self) -> bool:
        """True if earlier promises on these rows left too little for this one, which no label can change."""
        return self.found({}).certificate.is_refused

    @property
    def _test(self) -> str:
        """Name of its test but for target and delta; for recall with the budget, which aims draws and stakes."""
        budget = f" {self.budget}" if self.metric == "recall" else ""
        return f"{self.metric} {self.label or ''}{budget}"

    def asked_before(self, out: Path) -> list[int]:
        """Return the rows that a person was asked about for the promise that is written in a directory, by place.

        Raises
        ------
        StateError
            What is written there cannot be read.
        """
        path = out / CERTIFICATE
        if not path.exists():
            return []
        record = read_json_object(path, remedy="remove it, or name another directory")
        request = {
            "source": self.rows.name,
            "target": self.target,
            "metric": self.metric,
            "label": self.label,
        }
        if any(record.get(name) != value for name, value in request.items()):
            return []
        asked = set(record.get("rows_asked") or ())
        return [place for place, index in enumerate(self.rows.index.tolist()) if index in asked]

    def is_right(self, place: int, given: str) -> bool:
        """Return True if the row at `place` is right by its true label; for recall, if it has the label."""
        return given == (self.label if self.metric == "recall" else self.rows.labels[place])

    def certificate(self, is_right: Callable[[int], bool | None]) -> AskedCertificate:
        """Ask about one row after the other, by its place, until the certificate is there; None ends it as it is."""
        asked = rows_to_ask(
            self.confidence,
            target=self.target,
            delta=self.delta,
            metric=self.metric,
            budget=self.budget,
            inputs=self.rows.index[self.places].tolist(),
        )
        row = next(asked)
        while not isinstance(row, AskedCertificate):
            row = asked.send(is_right(int(self.places[row])))
        return row

    def wanted(self, answers: Mapping[int, str]) -> list[int]:
        """Return up to 20 rows to ask a person about next: those that are needed if all of them are right."""
        return self.round_of(answers)[1]

    def round_of(self, answers: Mapping[int, str]) -> tuple[list[int], list[int]]:
        """Return the rows whose answers it came to, and those that are `wanted`."""
        came_to: list[int] = []
        wanted: list[int] = []
        if self.is_refused:
            return came_to, wanted

        def is_right(place: int) -> bool | None:
            given = answers.get(place)
            if given:
                came_to.append(place)
                return self.is_right(place, given)
            wanted.append(place)
            return True if len(wanted) < ROUND else None

        self.certificate(is_right)
        return came_to, wanted

    def found(self, answers: Mapping[int, str]) -> AskedRows:
        """Return the promise that the answers so far bear, counted among all that were asked of these rows."""
        known = {place: answers[place] for place in self.places.tolist() if answers.get(place)}

        def is_right(place: int) -> bool | None:
            if place in known:
                return self.is_right(place, known[place])
            return None

        certificate = counted_promise(self.certificate(is_right), self.rows, self.places, test=self._test)
        return AskedRows(
            rows=self.rows,
            certificate=certificate,
            delta=self.delta,
            label=self.label,
            places=self.places,
            answers=known,
        )


def _with_label(rows: SavedRows, label: str | None) -> IndexArray:
    """Return the places of the rows with a predicted label, or with this one."""
    _refuse_several(rows, label)
    places = np.flatnonzero([found is not None and label in (None, found) for found in rows.labels])
    if not len(places):
        raise ConfigurationError(
            f"Expected rows with {'a label' if label is None else f'the label {label!r}'} in {rows.name}, got none: "
            "check the name."
        )
    return places


def _refuse_several(rows: SavedRows, label: str | None) -> None:
    """Raise ConfigurationError if a promise is about one label, and answers hold several."""
    if label is not None and isinstance(rows.legal_labels, CompositeLabels):
        raise ConfigurationError(
            f"Expected no label for a promise about answers with several, got {label!r}: leave --predicted or --recall "
            "out, for one about whole answers."
        )


def _probability(rows: SavedRows, label: str | None) -> FloatArray:
    """Return the probability of a label in each row; NaN where a row has none."""
    if label is None:
        raise ConfigurationError("Expected a label for recall, got none: name it, as with --recall LABEL.")
    _refuse_several(rows, label)
    if rows.label_set is None:
        raise DataError(
            "expected the probability of every label in the column probabilities, which recall is found by, got label "
            "and confidence alone: label the file with a model that reports log-probabilities.",
            path=rows.path,
        )
    if label not in rows.label_set:
        raise ConfigurationError(f"Expected a label, {_some_labels(rows)}, got {label!r}: check the name.")
    return np.array([probability_of(row.values.get("probabilities"), label) for row in rows.rows()])


def probability_of(probabilities: object, label: str) -> float:
    """Return the probability of a label among those of a row, in [0, 1]; NaN if the row has none."""
    if not isinstance(probabilities, Mapping):
        return math.nan
    return min(max(float(probabilities.get(label) or 0.0), 0.0), 1.0)


def ask(answer: LabelSource, file: AnswerFile, rows: SavedRows, place: int) -> None:
    """Write the answer to the row at `place` into its file; DataError if it is no label."""
    given = answer(file.texts_of([place], rows)[place])
    found = _label_of(given, rows)
    if not found:
        name = getattr(answer, "name", "the source of labels")
        raise DataError(
            f"expected a label from {name}, {_some_labels(rows)}, or {NO_LABEL} where none fits, got {given!r:.60} for "
            f"the row with index {int(rows.index[place])}: the answers before it are kept, so mend it and ask again."
        )
    file.answers[place] = found
    file.write(rows)


def _labels_to_choose(rows: SavedRows) -> Sequence[str]:
    """Return the label set, or the labels that were predicted."""
    seen = {label for label in rows.labels if label is not None}
    return rows.label_set or sorted(seen)


def _labelling_config(labels: Sequence[str]) -> str:
    """Return the labelling config of a project in which one of the labels is chosen for each text."""
    choices = "".join(f'    <Choice value="{html.escape(label)}"/>\n' for label in labels)
    return (
        f'<View>\n  <Text name="{_TEXT_FIELD}" value="${_TEXT_FIELD}"/>\n'
        f'  <Choices name="{_LABEL_FIELD}" toName="{_TEXT_FIELD}" choice="single">\n{choices}  </Choices>\n</View>\n'
    )


def _task_record(index: int, text: str, label: str | None, confidence: float, *, model: str) -> JsonObject:
    """Return the task of a row, with its predicted label and confidence as a prediction of `model`."""
    task: JsonObject = {"data": {_TEXT_FIELD: text, "index": index}}
    if label is not None:
        score = {}
        if not math.isnan(confidence):
            score = {"score": confidence}
        chosen = {
            "from_name": _LABEL_FIELD,
            "to_name": _TEXT_FIELD,
            "type": "choices",
            "value": {"choices": [label]},
        }
        task["predictions"] = [{"model_version": model, **score, "result": [chosen | score]}]
    return task


def _read_tasks(path: Path) -> Iterator[tuple[_Task, str]]:
    """Read tasks with their answers, which are empty where none is given.

    A row that is there several times, as its task was imported again, is one task.

    Raises
    ------
    DataError
        The file is no list of tasks, an annotation is no choice of one label, or the annotations of a row disagree.
    """
    try:
        tasks = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _not_tasks(path, str(error)) from error
    if not isinstance(tasks, list):
        raise _not_tasks(path, type(tasks).__name__)
    answered: dict[tuple[str, str], tuple[_Task, str]] = {}
    for task in tasks:
        if not isinstance(task, dict) or not isinstance(task.get("data"), dict):
            raise _not_tasks(path, f"{task!r:.60}")
        data = task["data"]
        key = str(data.get("index")), str(data.get(_TEXT_FIELD))
        before = answered.get(key)
        given = {before[1]} if before and before[1] else set()
        given |= set(_choices(task, path))
        if len(given) > 1:
            raise DataError(
                f"expected annotations that agree, got {' and '.join(map(repr, sorted(given)))} for the row with index "
                f"{key[0]}: settle it in Label Studio, and export again.",
                path=path,
            )
        if before is None or (given and not before[1]):
            answered[key] = task, next(iter(given), "")
    return iter(answered.values())


def _not_tasks(path: Path, got: str) -> DataError:
    return DataError(
        f"expected the tasks of a Label Studio project, as its export in the format JSON has them, got {got}: export "
        "them anew.",
        path=path,
    )


def _choices(task: _Task, path: Path) -> Iterator[str]:
    """Yield the label that each annotation chose; cancelled and empty ones chose none."""
    for annotation in task.get("annotations") or ():
        try:
            result = () if annotation.get("was_cancelled") else annotation.get("result") or ()
            chosen = [one["value"]["choices"] for one in result if one.get("from_name") == _LABEL_FIELD]
        except (AttributeError, KeyError, TypeError):
            result = (annotation,)
            chosen = []
        if not result:
            continue
        if len(chosen) != 1 or not isinstance(chosen[0], list) or len(chosen[0]) != 1:
            raise DataError(
                f"expected one choice under the name {_LABEL_FIELD!r} in each annotation, got {chosen!r:.60} for the "
                f"row with index {task['data'].get('index')}: use the labelling config that is written beside the "
                "tasks.",
                path=path,
            )
        yield str(chosen[0][0])
