"""Certificates asked of the same labelled rows, counted in a ledger, and what the next one still promises."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._thresholds import (
    TARGETS,
    CertifiedThreshold,
    Looks,
    certify_threshold,
    with_best_promise,
)
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import json_text, try_lock, user_path
from calibrant.core._fingerprint import sha256_of
from calibrant.core._labels import normalise_label
from calibrant.core._prediction import FloatArray, IndexArray
from calibrant.core._splits import near_duplicate_groups
from calibrant.core._structures import unordered_answer
from calibrant.metrics._validation import check_number
from calibrant.runs._directory import PREDICTIONS
from calibrant.runs._rows import SavedRows

if TYPE_CHECKING:
    from calibrant.calibration._asked import AskedCertificate

_WAIT: Final = 0.01  # seconds


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Entries in one or two files, of which both are read and written, so that one may be lost.

    Attributes
    ----------
    files : tuple of Path
        JSON lines; a file need not exist.
    """

    files: tuple[Path, ...]

    @classmethod
    def named(cls, name: str, *, beside: Path | None = None) -> Self:
        """Return the ledger ``{name}.jsonl`` in the user's folder for caches, and in the folder `beside` if given."""
        folders = [] if beside is None else [beside]
        with contextlib.suppress(RuntimeError):  # the user has no home
            folders.append(user_path("", "cache"))
        return cls(files=tuple(folder / f"{name}.jsonl" for folder in folders))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the ledger during the block: others who want it wait, and then read what was added."""
        with contextlib.ExitStack() as stack:
            for file in self.files:
                with contextlib.suppress(OSError):  # what cannot be written is nobody's
                    file.parent.mkdir(parents=True, exist_ok=True)
                    opened = stack.enter_context(file.open("ab"))
                    while not try_lock(opened.fileno()):
                        time.sleep(_WAIT)
            yield

    def entries(self, rows: str | None = None) -> list[dict[str, Any]]:
        """Return the entries, of the rows with a fingerprint if one is given, the earliest first.

        Equal ones of two files are returned once.

        Raises
        ------
        StateError
            A file cannot be read, or a line is damaged.
        """
        found = dict[str, dict[str, Any]]()
        for file in self.files:
            for entry in _lines(file):
                if rows is None or entry["rows"] == rows:
                    found.setdefault(json.dumps(entry, sort_keys=True), entry)
        return list(found.values())

    def add(self, rows: str, entry: Mapping[str, Any]) -> None:
        """Append an entry on the rows with a fingerprint to every file.

        Raises
        ------
        StateError
            No file can be written.
        """
        line = json_text({"rows": rows, **entry}) + "\n"
        problems = [problem for file in self.files if (problem := _append(file, line)) is not None]
        if len(problems) == len(self.files):
            places = "; ".join(problems) or "there is no folder for it"
            raise StateError(
                f"Expected to write down that these rows were asked ({places}): make a folder writable, or name one "
                "with CALIBRANT_HOME."
            )


def _append(file: Path, line: str) -> str | None:
    """Append a line in one write; return the problem, or None."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{file}: {error.strerror}"
    return None


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = file.read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StateError(f"{file}: cannot be read ({error.strerror}): make it readable.") from error
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            is_entry = isinstance(entry, dict) and isinstance(entry.get("rows"), str)
        except ValueError:
            is_entry = False
        if not is_entry:
            raise StateError(
                f"{file}, line {number}: expected a JSON object with a fingerprint under rows, got {line[:60]!r}: "
                "restore the file, or delete the line, and what it said is no longer counted."
            )
        yield entry


_SEQUENCE: Final = "sequence"
_ALL_FIRST: Final = "all first"  # the same after all answers together, at half its share each
_LEDGER: Final = "looks"
_SKETCH: Final = 256  # the smallest digests stand for a set of rows (a bottom-k sketch)
_FEW: Final = 20  # digests that tell little of a share
MOST_KNOWN: Final = 0.05
"""Share of rows that two sets may have in common and still count as other rows: both may hold the same greeting."""
_ROUNDING: Final = 1e-9
# Test that a plan without a goal makes by default; `distill` makes the same one, so that the two count once.
LOSS_TEST: Final = "certified None all calibrant 0"
_MOST: Final = 0.5  # a promise that fails more often than not is none


@dataclass(frozen=True, kw_only=True)
class CertificateRequest:
    """Certificate to be asked of labelled rows.

    Attributes
    ----------
    target_accuracy : float
        In (0, 1).
    delta : float
        Probability that one of the planned certificates is wrong, in (0, 1).
    looks : int
        Number of certificates planned for these rows, from 1: each gets an equal share of `delta`.

    Examples
    --------
    >>> from calibrant.evaluation import CertificateRequest
    >>> CertificateRequest(target_accuracy=0.95, delta=0.1, looks=5).share
    0.02
    """

    target_accuracy: float = 0.9
    delta: float = 0.1
    looks: int = 1

    def __post_init__(self) -> None:
        check_number("target_accuracy", self.target_accuracy, "(0, 1)")
        check_number("delta", self.delta, "(0, 1)")
        if type(self.looks) is not int or self.looks < 1:
            raise ConfigurationError(
                f"Expected looks as the number of certificates planned for these rows, from 1, got {self.looks!r}."
            )

    @property
    def share(self) -> float:
        """Part of `delta` that one certificate gets."""
        return self.delta / self.looks


def counted_certificate(
    request: CertificateRequest,
    predictions: SavedRows,
    kept: Sequence[int],
    *,
    all_first: bool = False,
) -> CertifiedThreshold:
    """Return a certificate that allows for all others asked of the same rows, and write down that it was asked for.

    Whatever the certificates have in common, one of them is wrong with the sum of their probabilities at most. The sum
    of all so far, or `delta` if that is more, is the `delta` of a certificate that is found. One that was asked for
    before, of the same answers, counts once. What is asked for is written down before it is known.

    Parameters
    ----------
    predictions : SavedRows
        All rows.
    kept : sequence of int
        IndexArray of the rows that it is asked of.
    all_first : bool, default False
        True to test first, for half of its share, whether all answers may be accepted: on few rows, one wrong answer
        among the most confident ones would end a sequence from the highest threshold at its first step. The other half
        is for that sequence. A promise that was asked of these answers so before is tested so again.

    Raises
    ------
    StateError
        The ledger is damaged, or cannot be written.
    """
    book = _Book.of(predictions, kept)
    asked = book.name(_ALL_FIRST, request.target_accuracy, request.share)
    all_first = all_first or book.knows([asked])
    if not all_first:
        asked = book.name(_SEQUENCE, request.target_accuracy, request.share)
    spent = book.ask(asked, request.share)
    looks = Looks(
        before=spent.before,
        total=spent.before,
        planned=request.looks,
        of_others=book.has_others(),
        state="refused" if spent.refused else "planned",
    )
    if spent.refused:
        return CertifiedThreshold(
            target_accuracy=request.target_accuracy,
            delta=request.delta,
            n=len(kept),
            looks=looks,
            of_agreement=predictions.has_stand_ins,
        )
    rows = _TestedRows.of(predictions, kept)
    delta = max(request.delta, spent.total)
    found = rows.certify(request, all_first=all_first)
    has_room = not book.look("lower promises", request.share).refused
    if found.threshold is None and request.looks == 1 and has_room:  # a plan says what else is looked for
        found = with_best_promise(found, rows.confidence, rows.correct, groups=rows.groups)
        tests, lower = _lower_tests(found, book, request.share)
        book.spend([asked, *tests], lower)  # with the test that they follow, so that asking again finds both
    if spent.before > 0.0 and delta > request.delta * (1.0 + _ROUNDING):
        looks = replace(looks, state="over")
    looks = replace(looks, total=max(delta, book.spent()))
    stated = request.delta if found.threshold is None else delta
    return replace(found, delta=stated, looks=looks, of_agreement=predictions.has_stand_ins)


def counted_promise(
    found: AskedCertificate, rows: SavedRows, places: IndexArray, *, test: str
) -> AskedCertificate:
    """Return a promise on a file that allows for all others asked of these rows; see `counted_certificate`.

    More labels for the same promise are no further one, as it holds at any time. Without a label nothing was tested,
    and nothing is written down.

    Parameters
    ----------
    found : AskedCertificate
        As the labels given bear it.
    rows : SavedRows
        The rows.
    places : ndarray of int
        Rows that it is about.
    test : str
        What the test depends on besides target and delta.
    """
    book = _Book.of(rows, places.tolist())
    asked = book.name(test, found.target, found.delta)
    spent = book.ask(asked, found.delta) if found.labels_used else book.look(asked, found.delta)
    if not spent.refused:
        return replace(found, delta=spent.total) if found.labels_used else found
    return replace(
        found,
        certified=False,
        threshold=None,
        kept=0.0,
        accepted=np.zeros_like(found.accepted),
        reason=f"Earlier promises on these rows may be wrong with probability {spent.before:.4g}: ask for other rows.",
        is_refused=True,
    )


def counted_loss(runs: Sequence[SavedRows], *, test: str = LOSS_TEST, epsilon: float, delta: float) -> Spent:
    """Write down that the loss of a cascade of these runs was tested, and return what that promises.

    Parameters
    ----------
    runs : sequence of SavedRows
        One per model, of the same rows, at least one.
    test : str
        What else the test depends on, such as how rows were divided.
    epsilon, delta : float in (0, 1)
        Loss that is allowed, and the probability that the promise of it is wrong.

    Raises
    ------
    StateError
        The ledger is damaged, or cannot be written.
    """
    books = [_Book.of(run, range(len(run))) for run in runs]
    book = replace(books[-1], answers=_digest(one.answers for one in books))
    return book.ask(book.name(f"loss {test}", epsilon, delta), delta)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Probability that the promises asked of some rows are wrong.

    Attributes
    ----------
    before : float
        Sum of the probabilities that one of the earlier promises is wrong.
    total : float
        The same with the last one.
    refused : bool
        True if the earlier ones left too little for it.
    """

    before: float
    total: float
    refused: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class _TestedRows:
    """Rows in the order of a hash of text and true label.

    The hash decides which row of a group is tested: neither the order of a file nor an answer does.

    Attributes
    ----------
    confidence : ndarray of float, shape (n,)
    correct : ndarray of int, shape (n,)
    groups : ndarray of int, shape (n,), or None
        Groups of near-duplicates; None where a text is not known.
    """

    confidence: FloatArray
    correct: NDArray[np.int8]
    groups: NDArray[np.uint64] | None

    @classmethod
    def of(cls, predictions: SavedRows, kept: Sequence[int]) -> _TestedRows:
        places = np.array(kept)
        groups = None
        rows = []
        for row in kept:
            text = predictions.inputs[row]
            if text is not None:
                rows.append((text, normalise_label(unordered_answer(predictions.answers[row] or ""))))
        if len(rows) == len(kept):
            order = np.argsort([_digest(row) for row in rows])
            places = places[order]
            groups = near_duplicate_groups(rows)[order]
        return cls(
            confidence=predictions.confidence[places], correct=predictions.correct[places], groups=groups
        )

    def certify(self, request: CertificateRequest, *, all_first: bool) -> CertifiedThreshold:
        """Return the certificate of the sequence; with `all_first` that for all answers, or else it, at half the share.

        Where all may be accepted, the threshold is the lowest confidence of these rows: what is less sure than any of
        them was never tested.
        """
        if not all_first:
            return self._tested(request.target_accuracy, request.share)
        found = self._tested(request.target_accuracy, request.share / 2, start=0.0)
        if found.threshold is None:
            found = self._tested(request.target_accuracy, request.share / 2)
        else:
            found = replace(found, threshold=math.floor(1000 * self.confidence.min()) / 1000)
        return replace(found, delta=request.share)

    def _tested(self, target: float, delta: float, *, start: float | None = None) -> CertifiedThreshold:
        return certify_threshold(
            self.confidence,
            self.correct,
            target_accuracy=target,
            delta=delta,
            start=start,
            groups=self.groups,
        )


def _lower_tests(found: CertifiedThreshold, book: _Book, share: float) -> tuple[list[str], float]:
    """Return the names of the tests for lower targets, down to the first that passed, and their delta in all."""
    lower = found.best_promise
    least = TARGETS[-1] if lower is None else lower.target_accuracy
    each = share / len(TARGETS)
    tried = [target for target in TARGETS if least <= target < found.target_accuracy]
    names = [book.name(_SEQUENCE, target, each) for target in tried]
    return names, each * len(names)


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """Tests on some rows, with the probability that one of them is wrong."""

    tests: frozenset[str]
    delta: float
    answers: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> _Entry:
        tests = entry.get("tests")
        delta = entry.get("delta")
        if not isinstance(tests, list) or not isinstance(delta, float) or not 0.0 <= delta <= 1.0:
            raise StateError(
                f"{_LEDGER}.jsonl: expected tests and their delta in [0, 1], got {dict(entry)!r:.120}: restore the "
                "file, or delete that line, and its certificate is no longer counted."
            )
        return cls(tests=frozenset(map(str, tests)), delta=delta, answers=str(entry.get("answers")))


@dataclass(frozen=True, kw_only=True)
class _Book:
    """Certificates asked of one set of labelled rows.

    Attributes
    ----------
    ledger : Ledger
        Holds those of all rows.
    rows : tuple of str
        Smallest digests of texts and true labels, ascending.
    answers : str
        Digest of what the certificate depends on: confidences, and which answers are right.
    """

    ledger: Ledger
    rows: tuple[str, ...]
    answers: str

    @classmethod
    def of(cls, predictions: SavedRows, kept: Sequence[int]) -> _Book:
        path = str(predictions.path.resolve())
        columns = (predictions.index.tolist(), predictions.inputs, predictions.answers)
        digests = set()
        for index, text, answer in zip(*columns, strict=True):
            # Rows without a text are known by their place.
            name = f"{path} {index}" if text is None else text
            digests.add(_digest((name, normalise_label(unordered_answer(answer or "")))))
        places = np.array(kept)
        order = np.argsort(predictions.index[places], kind="stable")
        places = places[order]
        confidence = predictions.confidence[places].tolist()
        correct = predictions.correct[places].tolist()
        # What is said of a row whose true label is not known is its label.
        said = [predictions.labels[place] for place in places.tolist() if not predictions.answers[place]]
        return cls(
            ledger=Ledger.named(_LEDGER, beside=_folder(predictions.path)),
            rows=tuple(sorted(digests)[:_SKETCH]),
            answers=_digest([*(f"{value:.12g}" for value in (*confidence, *correct)), *map(str, said)]),
        )

    def name(self, rule: str, target: float, delta: float) -> str:
        """Return the name of a test, equal for the same test of the same answers."""
        return _digest([self.answers, rule, f"{target:.9g}", f"{delta:.9g}"])

    def ask(self, test: str, delta: float) -> Spent:
        """Write a test down, unless the earlier ones left too little for it."""
        found = self.look(test, delta)
        if found.refused:
            return found
        self.spend([test], delta)
        return replace(found, total=max(delta, self.spent()))

    def look(self, test: str, delta: float) -> Spent:
        """Return the probabilities that a test would come to, without writing it down."""
        before = self.spent(besides=test)
        refused = before > 0.0 and before + delta > _MOST and not self.knows([test])
        return Spent(before=before, total=before if refused else before + delta, refused=refused)

    def spent(self, *, besides: str | None = None) -> float:
        """Return the sum of the probabilities of the certificates asked so far, but for one."""
        known = set[str]()
        total = 0.0
        for entry in self._entries():
            if besides not in entry.tests and not entry.tests <= known:
                known |= entry.tests
                total += entry.delta
        return total

    def knows(self, tests: Iterable[str]) -> bool:
        """Return True if all of the tests are written down."""
        known = [entry.tests for entry in self._entries()]
        return frozenset().union(*known).issuperset(tests)

    def has_others(self) -> bool:
        """Return True if a certificate was asked of other answers to these rows."""
        return any(entry.answers != self.answers for entry in self._entries())

    def _entries(self) -> Iterator[_Entry]:
        """Yield the entries on these rows, or on some of them."""
        for entry in self.ledger.entries():
            if _are_known(self.rows, entry["rows"].split()):
                yield _Entry.of(entry)

    def spend(self, tests: Sequence[str], delta: float) -> None:
        """Write down tests with their delta in all, unless they are known."""
        if not self.knows(tests):
            entry = {"answers": self.answers, "tests": list(tests), "delta": delta}
            self.ledger.add(" ".join(self.rows), entry)


def _are_known(rows: Sequence[str], others: Sequence[str]) -> bool:
    """Return True if two sets of rows, given by sketches, have more in common than may be there twice by chance.

    That is of the smaller set: a part of some rows is not fresh, and neither are all where a part was asked about. In
    the range that both sketches cover, each holds all digests of its set; a small part of many rows has few there.
    """
    ends = [sketch[-1] for sketch in (rows, others) if len(sketch) >= _SKETCH]
    end = min(ends, default="~")  # behind every digest
    mine, theirs = ({row for row in sketch if row <= end} for sketch in (rows, others))
    common = len(mine & theirs)
    told = min(len(mine), len(theirs))
    if told >= _FEW or told == min(len(rows), len(others)):
        return common > MOST_KNOWN * told
    return common >= max(2.0, told / 2)


def _folder(path: Path) -> Path | None:
    """Return the folder of the task that a run in it belongs to, or else that of the run; None of other rows."""
    if path.name != PREDICTIONS or not path.is_file():
        return None
    run = path.parent
    if any(run.parent.glob("*.toml")):
        return run.parent
    return run


def _digest(values: Iterable[str]) -> str:
    return sha256_of("\0".join(values))[:16]
