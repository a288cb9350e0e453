"""Decisions of one person on saved rows: which rows matter, answers on disk, and what they promise."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np

from calibrant.calibration._asked import Metric
from calibrant.core._errors import CalibrantError, ConfigurationError
from calibrant.core._files import read_run_record, write_atomically
from calibrant.core._prediction import Outcome
from calibrant.core._reported import is_number, writable
from calibrant.core._rows import ENDINGS, Example, read_examples, read_rows, row_id_of
from calibrant.core._task import Task
from calibrant.evaluation._asked import (
    DECIDED,
    NO_LABEL,
    AnswerFile,
    AskedRows,
    RowsPromise,
    csv_line,
    whole,
)
from calibrant.heads._tuned import rule_of, thresholds_of
from calibrant.heads._words import Words
from calibrant.reports._analysis import PromptRows, confusion, mistakes
from calibrant.runs._directory import CALIBRATION, DEMONSTRATIONS, unwritable
from calibrant.runs._rows import SavedRow, SavedRows
from calibrant.tuned._task_record import read_run_settings

ANSWERS: Final = "answers.csv"
REVIEWED: Final = "reviewed.csv"
TO_REVIEW: Final = 1
ESCALATED: Final = 2
_MOST_CHARACTERS: Final = 5_000  # of a text, until all of it is asked for
_MOST_MISLABELLED: Final = 200
_MOST_BARS: Final = 50
_MOST_TRAINING: Final = 20_000
_NEAREST: Final = 3
# Of a promise on labels; one on recall does not say which labels are right.
_DECISIONS: Final = frozenset({"accepted", "review", "answered"})


@dataclass(kw_only=True, eq=False)
class Review:
    """Rows that one person decides on, with the answers, each of which is on disk before `decide` returns.

    Rows are named by their place among the saved ones. All methods may be called from several threads.

    Attributes
    ----------
    source : Path
        Directory of a run, or file of predictions.
    out : Path
        Directory of the answers.
    rows : SavedRows
        The rows.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant.serving import Review
    >>> path = Path(tempfile.mkdtemp()) / "mine.jsonl"
    >>> _ = path.write_text('{"input": "purrs", "label": "cat", "answer": null, "confidence": 0.9}')
    >>> with Review.opened(path) as review:
    ...     review.decide(0, "cat")
    ...     review.answers()
    {0: 'cat'}
    """

    source: Path
    out: Path
    rows: SavedRows
    _file: AnswerFile = field(init=False, repr=False)
    _promise: RowsPromise | None = field(default=None, init=False, repr=False)
    # Accepted rows, labels that count, and answers, of the certificate that was written last.
    _written: tuple[int, int, dict[int, str]] | None = field(default=None, init=False, repr=False)
    # Rows that were answered, each with what the answer has replaced, the latest last.
    _made: list[tuple[int, str | None]] = field(default_factory=list, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)
    _promising: Lock = field(default_factory=Lock, init=False, repr=False)
    _learning: Lock = field(default_factory=Lock, init=False, repr=False)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, source: Path, out: Path | None = None) -> Iterator[Review]:
        """Read rows and answers, and lock the answers for the block.

        Raises
        ------
        DataError
            A row or an answer is wrong.
        StateError
            Another process has the answers open, or the directory cannot be written.
        """
        rows = SavedRows.load(source)
        out = out or (source if source.is_dir() else source.parent)
        with AnswerFile.opened(out / ANSWERS, rows) as file:
            found = cls(source=source, out=out, rows=rows)
            if NO_LABEL in found.labels:
                raise ConfigurationError(
                    f"Expected labels besides {NO_LABEL}, which is the answer where none fits: name that label "
                    "otherwise."
                )
            found._file = file
            found._made = [(place, None) for place, answer in found._file.answers.items() if answer]
            # Rows are read and encoded now: the page opens at once, and the first decision is as quick as others.
            found.columns()
            found._file.table(rows)
            yield found

    def certify(
        self,
        *,
        target: float,
        delta: float = 0.1,
        metric: Metric = "accuracy",
        label: str | None = None,
        budget: int,
    ) -> None:
        """Ask for the answers of a promise; see `calibrant.calibration.certify`.

        Raises
        ------
        ConfigurationError, DataError
            A parameter is out of range, no row has the label, or there are no probabilities for recall.
        """
        self._promise = RowsPromise(
            rows=self.rows, target=target, delta=delta, metric=metric, budget=budget, label=label
        )
        self.promise()  # raises where the promise cannot be asked for

    @property
    def certifies(self) -> bool:
        """True if the answers are asked for by a promise."""
        return self._promise is not None

    @property
    def path(self) -> Path:
        """File of the answers, which `certify` and `estimate` read."""
        return self._file.path

    @cached_property
    def labels(self) -> list[str]:
        """Labels that an answer may be: the label set, or those that occur."""
        seen = {label for label in (*self.rows.labels, *self.rows.answers) if label is not None}
        return list(self.rows.label_set or sorted(seen))

    @cached_property
    def texts(self) -> list[str]:
        """Text of each row; empty where it is not known."""
        places = list(range(len(self.rows)))
        return list(self._file.texts_of(places, self.rows).values())

    @property
    def n_answered(self) -> int:
        """Number of rows with an answer."""
        return sum(map(bool, self.answers().values()))

    def answers(self) -> dict[int, str]:
        """Return a copy of the answers by place; empty where a row waits for one."""
        with self._lock:
            return dict(self._file.answers)

    def decide(self, place: int, answer: str) -> None:
        """Write the answer to a row to disk.

        Raises
        ------
        ConfigurationError
            There is no such row, or the answer is no label.
        StateError
            It cannot be written; nothing has changed then.
        """
        self._check_place(place)
        answer = self._legal(answer)
        with self._lock:
            made = [*self._made, (place, self._file.answers.get(place))]
            self._replace(place, answer, made=made)

    def _legal(self, answer: str) -> str:
        """Return an answer as the label set writes it; several labels need not have occurred together."""
        if answer == NO_LABEL or answer in self.labels:
            return answer
        legal = self.rows.legal_labels
        found = None if legal is None else legal.canonical(answer)
        if found is None:
            raise ConfigurationError(f"Expected a label, or {NO_LABEL} where none fits, got {answer!r:.60}.")
        return found

    def undo(self) -> int | None:
        """Take the last answer back, on disk, too; return its row, or None if there is no answer."""
        with self._lock:
            if not self._made:
                return None
            *made, (place, before) = self._made
            self._replace(place, before, made=made)
            return place

    def _replace(self, place: int, answer: str | None, *, made: list[tuple[int, str | None]]) -> None:
        """Write the answers in the order in which they were `made`, so that `undo` knows it after a restart."""
        kept = self._file.answers
        changed: dict[int, str | None] = {**kept, place: answer}
        last = {row: number for number, (row, _) in enumerate(made)}
        order = sorted(changed, key=lambda row: last.get(row, -1))
        self._file.answers = {row: given for row in order if (given := changed[row]) is not None}
        try:
            self._file.write(self.rows)
        except BaseException as error:
            self._file.answers = kept
            if isinstance(error, OSError):
                raise unwritable(self._file.path, error, remedy="make room, and answer again") from error
            raise
        self._made = made

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of the page's list of rows, the least sure first."""
        sure = np.where(np.isnan(self.rows.confidence), -1.0, self.rows.confidence)
        order = np.argsort(sure, kind="stable").tolist()
        flags = self._flags
        answers = self.answers()
        return {
            "row": order,
            "index": self.rows.index[order].tolist(),
            "label": [self.rows.labels[place] for place in order],
            "confidence": [_finite(self.rows.confidence[place]) for place in order],
            "flags": [flags[place] for place in order],
            "answer": [answers.get(place) for place in order],
        }

    @cached_property
    def _flags(self) -> list[int]:
        _ = self.texts  # so that no decision reads the file again
        found = []
        ids = []
        for row in self.rows.rows():
            flags = 0
            if row.values.get("accepted") is False or row.outcome not in (Outcome.OK, Outcome.ERROR):
                flags |= TO_REVIEW
            if len(row.values.get("steps") or ()) > 1:
                flags |= ESCALATED
            found.append(flags)
            ids.append(row.values.get("id"))
        for place in self._rows_to_review(ids):
            found[place] |= TO_REVIEW
        return found

    def _rows_to_review(self, ids: list[str | None]) -> set[int]:
        """Return the rows that a promise, else the file of labels, or a certified threshold left to a person."""
        place_of = {int(index): place for place, index in enumerate(self.rows.index)}
        decisions = self._decisions_of_labels(ids, place_of)
        for folder in dict.fromkeys((self.source, self.out)):
            decisions |= self._decisions_of_promise(folder / DECIDED, place_of)
        if decisions:
            return {place for place, decision in decisions.items() if decision == "review"}
        calibration = self.source / CALIBRATION
        if not calibration.exists():
            return set()
        record = read_run_record(calibration, remedy="calibrate the run again")
        rule, least = rule_of(thresholds_of(record))
        if rule is None:
            return set()
        accepted = self.rows.confidence >= (math.inf if least is None else least)
        return set(np.flatnonzero(~accepted).tolist())

    def _decisions_of_labels(self, ids: list[str | None], place_of: Mapping[int, int]) -> dict[int, str]:
        """Return the decisions in the file of labels, by id; those of rows without one of their own by line."""
        # A source that is no folder has no such files.
        labelled = [path for path in sorted(self.source.glob("labels.*")) if path.suffix in ENDINGS]
        labelled = [path for path in labelled if path.stem == "labels"]
        times = Counter(ids)
        column = "id"
        with contextlib.suppress(CalibrantError):
            settings = read_run_settings(self.source).tasks[0]
            column = settings.get("columns", {}).get("row_id", column)
        own = {row_id: place for place, row_id in enumerate(ids) if times[row_id] == 1}
        found: dict[int, str] = {}
        for path in labelled[:1]:
            for line, row in enumerate(read_rows(path)):
                own_place = own.get(row_id_of(row, column) or "", place_of.get(line))
                decision = row.values.get("calibrant_decision", row.values.get("decision"))
                if own_place is not None and decision:
                    found[own_place] = decision
        return found

    def _decisions_of_promise(self, path: Path, place_of: Mapping[int, int]) -> dict[int, str]:
        """Return the decisions of `certify` on these rows; those of other rows have another confidence."""
        found: dict[int, str] = {}
        for row in read_rows(path, column="decision") if path.exists() else ():
            place = place_of.get(whole(row.values.get("index")))
            decision = row.values.get("decision")
            if place is None or decision not in _DECISIONS:
                continue
            saved = float(self.rows.confidence[place])
            shown = "" if math.isnan(saved) else str(saved)
            if row.values.get("confidence") == shown:
                found[place] = decision
        return found

    def mislabelled(self) -> list[int]:
        """Return wrong rows, the one whose true label is least probable first; see `reports`."""
        if all(answer is None for answer in self.rows.answers):
            return []
        found = PromptRows.of(self.rows)
        if found.composite is not None or len(found.labels) < 2:
            return []
        return list(mistakes(found, _MOST_MISLABELLED, confusion(found)).rows)

    def details(self, places: list[int]) -> list[dict[str, Any]]:
        """Return rows as the page shows them, long texts cut."""
        ordered = sorted({place for place in places if 0 <= place < len(self.rows)})
        return list(map(self._detail, ordered, self.rows.rows(ordered)))

    def _detail(self, place: int, row: SavedRow) -> dict[str, Any]:
        text = writable(row.input or "")
        given = row.values.get("probabilities")
        if not isinstance(given, Mapping):
            has_one = row.label is not None and not math.isnan(row.confidence)
            given = {}
            if has_one:
                given = {row.label: row.confidence}
        shares = [(label, _finite(p)) for label, p in given.items()]
        shares.sort(key=lambda one: -(one[1] or 0.0))
        steps = row.values.get("steps")
        if not isinstance(steps, list):
            steps = []
        return {
            "row": place,
            "id": str(row.values.get("id") or ""),
            "place": str(row.values.get("source") or ""),
            "text": text[:_MOST_CHARACTERS],
            "characters": len(text),
            "context": writable(str(row.values.get("context") or ""))[:_MOST_CHARACTERS],
            "given": row.answer,
            "outcome": "" if row.outcome is Outcome.OK else row.outcome.value,
            "reason": writable(str(row.values.get("reason") or "")),
            "probabilities": shares[:_MOST_BARS],
            "steps": list(map(_step, steps)),
        }

    def text(self, place: int) -> str:
        """Return the whole text of a row; ConfigurationError if there is none such."""
        self._check_place(place)
        return self.texts[place]

    def _check_place(self, place: int) -> None:
        if not 0 <= place < len(self.rows):
            raise ConfigurationError(f"Expected a row from 0 to {len(self.rows) - 1:,}, got {place}.")

    def search(self, words: str) -> list[int]:
        """Return the rows whose texts have all of the words, whatever their case."""
        wanted = words.lower().split()
        return [place for place, text in enumerate(self._lowered) if all(word in text for word in wanted)]

    @cached_property
    def _lowered(self) -> list[str]:
        return [text.lower() for text in self.texts]

    def nearest(self, place: int) -> list[dict[str, Any]] | None:
        """Return the training rows nearest to a row by TF-IDF; None if the source knows none."""
        with self._learning:
            if not self._training:
                return None
            words, features, examples = self._nearest_index
        wanted = words.transform([self.text(place)[:_MOST_CHARACTERS]])
        similarity = (features @ wanted.T).toarray()[:, 0]
        best = np.argsort(-similarity, kind="stable")[:_NEAREST]
        similar = best[similarity[best] > 0.0]
        rows = [examples[place] for place in similar.tolist()]
        return [{"text": row.input[:_MOST_CHARACTERS], "label": row.answer} for row in rows]

    @cached_property
    def _nearest_index(self) -> tuple[Words, Any, list[Example]]:
        words = Words()
        return words, words.learn([row.input for row in self._training]), self._training

    @cached_property
    def _training(self) -> list[Example]:
        """Training rows: those that the run's prompt shows, or those of the task file in the folder above the run."""
        if not self.source.is_dir():
            return []
        with contextlib.suppress(CalibrantError):
            if (self.source / DEMONSTRATIONS).exists():
                return [row for row, _ in read_examples(self.source / DEMONSTRATIONS)][:_MOST_TRAINING]
            name = read_run_settings(self.source).tasks[0].get("name")
            for path in sorted(self.source.resolve().parent.glob("*.toml")):
                with contextlib.suppress(CalibrantError):
                    task = Task.from_file(path, splits=("train",))
                    if task.name == name:
                        return list(task.train)[:_MOST_TRAINING]
        return []

    def promise(self) -> dict[str, Any] | None:
        """Return the promise of the answers so far, with the rows to ask about next; None if none is asked for.

        Where it has changed, ``certificate.json`` and ``decisions.csv`` are written, as `certify` writes them.
        """
        if self._promise is None:
            return None
        with self._promising:
            answers = self.answers()
            found = self._promise.found(answers)
            wanted = self._promise.wanted(answers)
            self._write_promise(found)
        return {
            "certified": found.certificate.certified,
            "sentence": found.sentence() if found.certificate.certified else "Nothing is certified.",
            "reason": found.certificate.reason,
            "accepted": found.n_accepted,
            "used": found.certificate.labels_used,
            "missing": found.certificate.labels_missing,
            "wanted": wanted,
        }

    def _write_promise(self, found: AskedRows) -> None:
        """Write a promise that has changed; one of no answer only where answers were taken back."""
        used = found.certificate.labels_used
        state = found.n_accepted, used, dict(found.answers)
        if state != self._written and (used or self._written):
            found.write(self.out)
            self._written = state

    def write(self) -> None:
        """Write the files of `asked`, and ``reviewed.csv``: rows with final label, and true one where it is known."""
        answers = self.answers()
        if self._promise is not None:
            self._write_promise(self._promise.found(answers))
        lines = [csv_line(("index", "id", "input", "label", "answer"))]
        for place, row in enumerate(self.rows.rows()):
            given = answers.get(place) or self.rows.answers[place] or ""
            true = "" if given == NO_LABEL else given
            label = true if answers.get(place) else self.rows.labels[place]
            index = int(self.rows.index[place])
            row_id = row.values.get("id")
            lines.append(csv_line((index, row_id, self.texts[place], label, true)))
        write_atomically(self.out / REVIEWED, "".join(lines))


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    names = ("model", "label", "verdict", "reason")
    texts = {name: str(step.get(name) or "") for name in names}
    return {**texts, "confidence": _finite(step.get("confidence"))}


def _finite(value: Any) -> float | None:  # noqa: ANN401 (a JSON value)
    if is_number(value):
        return round(float(value), 6)
    return None
