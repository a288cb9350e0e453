"""Heads and baselines that are learned from a finished evaluation, without calls."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from calibrant.core._errors import DataError, StateError
from calibrant.core._files import read_run_record
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._prediction import Outcome, Usage
from calibrant.core._rows import Example
from calibrant.heads._compared import BaselineComparison, compare_with_baselines
from calibrant.heads._head import Head
from calibrant.runs._directory import METRICS, PREDICTIONS, RESULT, make_folder, read_origin, write_json
from calibrant.runs._rows import SavedRows, read_row, row_lines

if TYPE_CHECKING:
    from calibrant.inference._limits import Gate
    from calibrant.inference._text_vectors import Embeddings

_LEAST: Final = 1e-300  # a probability that was too small to be written
_RUN: Final = "Name the directory of `calibrant evaluate` or `calibrant batch`"
# 20,000 rows of 225 characters and 4 labels take 21 s of one core to learn from and 11 s to judge on; the interval of a
# difference on 5,000 rows is about 0.02 wide.
_LEARNED: Final = 10_000
_JUDGED: Final = 5_000
_READ: Final = (
    1_000  # whose vectors a baseline learns from: the embedded engine takes a fifth of a second for each
)
_CHARACTERS: Final = 500  # of a row, on average
_SEED: Final = 0

_Raw = TypeVar("_Raw")


@dataclass(frozen=True, kw_only=True)
class LearnedHead:
    """A head with its training rows and fingerprint.

    Attributes
    ----------
    source : str
        The directory of the predictions.
    head : Head
        The best head that their rows support.
    fingerprint : Fingerprint
        Circumstances it belongs to.
    rows, left_out : int
        All rows, and those of them without a distribution or a true label.
    vectors : Usage
        Tokens and cost of the vectors of texts that were paid for.
    """

    source: str
    head: Head
    fingerprint: Fingerprint
    rows: int
    left_out: int
    vectors: Usage = field(default_factory=Usage)

    def to_record(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "kind": "head",
            "source": self.source,
            "rows": self.rows,
            "left_out": self.left_out,
            **({} if self.vectors == Usage() else {"vectors": asdict(self.vectors)}),
            **self.head.describe(),
        }

    def write(self, out: str | Path) -> Path:
        """Write ``head.json`` into a directory, created if needed; return the file.

        Raises
        ------
        StateError
            The file cannot be written, or `directory` is that of the predictions.
        """
        directory = Path(out)
        if directory.resolve() == Path(self.source).resolve():
            raise StateError(
                f"{directory}: expected another directory than that of the predictions, which were made without this "
                "head and would be exported with it: choose another."
            )
        make_folder(directory)
        self.head.save(directory / "head.json", fingerprint=self.fingerprint)
        return directory / "head.json"


def learn_head(path: str | Path, *, seed: int = 0, embeddings: Embeddings | None = None) -> LearnedHead:
    """Learn a head from stored predictions for labelled rows; see `calibrant.heads.fit_head`.

    Hidden features of the embedded model are not stored, so no candidate head uses them.

    Parameters
    ----------
    path : path
        Directory of `calibrant evaluate` or `calibrant batch`, of one model, without a head or a label prior.
    seed : int, default 0
        Of the folds.
    embeddings : str, EmbeddingModel or bool, optional
        Gives the head a vector of each text beside its words, as `Classifier.fit` takes it.

    Raises
    ------
    ConfigurationError
        There is no such embedding model.
    ProviderError
        Its server cannot be asked.
    DataError
        The predictions are of something else, or none has a distribution and a true label.
    StateError
        ``run.json`` is damaged.

    Examples
    --------
    A model that calls every animal a cat, but is less sure of dogs:

    >>> import tempfile
    >>> from calibrant import BatchEvaluator, Classifier, Example
    >>> from calibrant.testing import FakeClient
    >>> from calibrant.evaluation import learn_head
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9), "barks": ("cat", 0.6)})
    >>> classifier = Classifier(model=fake, labels=["cat", "dog"], field="category")
    >>> rows = [Example(input=f"{a} {n}", answer=b) for n in range(20) for a, b in (("purrs", "cat"), ("barks", "dog"))]
    >>> out = tempfile.mkdtemp()
    >>> _ = BatchEvaluator(classifier).evaluate(rows, out=out)
    >>> learned = learn_head(out)
    >>> learned.rows, learned.to_record()["reason"]
    (40, 'On held-out rows log loss goes from 0.511 to 0.012 and accuracy from 0.500 to 1.000.')
    """
    place = Path(path)
    if place.is_file():
        raise _refusal_error(place, "a directory, got a file, of which nobody knows what it belongs to")
    saved = SavedRows.load(place)
    fingerprint = _fingerprint(place, saved)
    if saved.fields & {"parts", "steps"}:
        raise _refusal_error(place, "predictions of one model with one label each, got others")
    logprobs = []
    answers = []
    texts = []
    for row in saved.rows():
        probabilities = row.values.get("probabilities")
        if probabilities is None or row.answer is None or row.input is None or row.outcome is Outcome.ERROR:
            continue
        if row.answer not in fingerprint.labels:
            raise _refusal_error(place, f"answers among the labels, got {row.answer!r:.80}")
        logprobs.append(_logprobs(probabilities, fingerprint, place))
        answers.append(list(fingerprint.labels).index(row.answer))
        texts.append(row.input)
    if not logprobs:
        raise _refusal_error(place, "rows with a distribution and a true label, got none")
    # Baselines, which every evaluation has, do without both.
    from calibrant.heads._fit import fit_head  # noqa: PLC0415
    from calibrant.inference._heads import read_by_fits  # noqa: PLC0415
    from calibrant.inference._limits import Gate  # noqa: PLC0415
    from calibrant.inference._text_vectors import head_embedding, prepare_vectors, timed_head  # noqa: PLC0415

    meter, labels = Gate(), fingerprint.labels
    embedding = head_embedding(embeddings, texts, labels=labels, reports_features=False, meter=meter)
    prepare_vectors(embedding, [*texts, *read_by_fits(labels)], meter=meter)
    head = fit_head(
        np.array(logprobs), answers, labels=fingerprint.labels, texts=texts, embedding=embedding, rng=seed
    )
    return LearnedHead(
        source=str(path),
        head=timed_head(head),
        fingerprint=fingerprint,
        rows=len(saved),
        left_out=len(saved) - len(logprobs),
        vectors=meter.vectors,
    )


def _fingerprint(place: Path, saved: SavedRows) -> Fingerprint:
    """Return the fingerprint of a run's predictions; refuse those made with a head or a label prior."""
    origin = read_origin(place)
    if origin is not None and origin[0].name == RESULT:
        raise _refusal_error(place, "an evaluation, got a search, which has learned a head already")
    if origin is None or saved.fingerprint is None or saved.fingerprint.multi_label:
        raise _refusal_error(
            place, "the directory of a run with distributions over one label set, got something else"
        )
    about: Mapping[str, Any] = origin[1].get("described") or origin[1]
    for name, said in (("head", "a head"), ("label_prior", "a label prior")):
        if about.get(name) is not None:
            raise _refusal_error(
                place, f"predictions as the model scored them, got some made with {said}: evaluate without it"
            )
    return saved.fingerprint


def _logprobs(probabilities: object, fingerprint: Fingerprint, place: Path) -> list[float]:
    given = probabilities if isinstance(probabilities, dict) else {}
    try:
        values = np.array([given[label] for label in fingerprint.labels], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal_error(place, f"probabilities of every label, got {probabilities!r:.80}") from error
    return list(np.log(np.maximum(values, _LEAST)))


def _refusal_error(place: Path, what: str) -> DataError:
    return DataError(f"expected {what}. {_RUN}.", path=place)


class _DrawnRow(NamedTuple):
    """A sampled row with its predicted label."""

    example: Example
    label: str | None = None


def add_baselines(
    directory: Path,
    labelled: Iterable[Example],
    *,
    labels: LabelSet,
    head: Head | None = None,
    meter: Gate | None = None,
) -> BaselineComparison:
    """Compare a finished evaluation with baselines, and store the comparison in ``metrics.json``.

    Of many rows some are drawn with a fixed seed: at most 10,000 to learn from and 5,000 to judge on, fewer where they
    are longer than 500 characters on average.

    Parameters
    ----------
    directory : Path
        Output directory of the evaluation.
    labelled : iterable of Example
        Rows to learn from, answers spelled as in `labels`. Those with the text of a judged row are left out.
    labels : LabelSet
        The labels; an answer is one of them.
    head : Head, optional
        Head of the evaluated classifier. The vectors that it reads also make a baseline, of at most 1,000 rows to
        learn from.
    meter : Gate, optional
        Of the evaluation: counts the calls for vectors, too. Without budget there is no such baseline.

    Raises
    ------
    DataError
        A labelled row is broken.
    StateError
        A file of the directory is damaged or cannot be written.
    """
    predictions = directory / PREDICTIONS
    metrics = directory / METRICS
    record = read_run_record(
        metrics, remedy="delete it and run the same command again, which asks nothing twice"
    )
    try:
        judged = _drawn_rows(row_lines(predictions), _answered_row, most=_JUDGED)
    except (StateError, ValueError) as error:
        raise StateError(
            f"{predictions}: expected the rows of a finished run ({error}): restore the file."
        ) from error
    texts = {normalise_label(row.example.input) for row in judged}
    learned = _drawn_rows(
        labelled,
        lambda example: None if normalise_label(example.input) in texts else _DrawnRow(example),
        most=_LEARNED,
    )
    from calibrant.inference._text_vectors import TextVectors, announce_vectors, vectors_by_text  # noqa: PLC0415

    embedding = None if head is None or head.embedding is None else head.embedding.model
    taught = _drawn_rows((row.example for row in learned), _DrawnRow, most=_READ)
    read = [row.example.input for row in (*judged, *taught)]
    if head is not None and isinstance(embedding, TextVectors):
        left = embedding.missing(read)
        announce_vectors(head, left, rows=len(left))
    vectors = vectors_by_text(embedding, read, meter=meter)
    comparison = compare_with_baselines(
        [row.example for row in judged],
        [row.label for row in judged],
        [row.example for row in learned],
        labels=labels,
        failed=int(record["outcomes"][Outcome.ERROR.value]),
        uses_model=head is None or head.changes_nothing or head.uses_model,
        vectors=vectors,
    )
    if meter is not None and meter.vectors != Usage():
        record["vectors"] = asdict(meter.vectors)
    write_json(metrics, {**record, "baselines": comparison.to_record()})
    return comparison


def _answered_row(line: bytes) -> _DrawnRow | None:
    """Return the row in a line of the file; None if it failed with a transport error."""
    row = read_row(line)
    if row.outcome is Outcome.ERROR or row.input is None or row.answer is None:
        return None
    return _DrawnRow(Example(input=row.input, answer=row.answer), row.label)


def _drawn_rows(
    rows: Iterable[_Raw], read: Callable[[_Raw], _DrawnRow | None], *, most: int
) -> list[_DrawnRow]:
    """Return a random sample of the rows, in input order, read in one pass.

    Only rows that may stay are read.
    """
    rng = np.random.default_rng(_SEED)
    kept: list[tuple[float, int, _DrawnRow]] = []  # a heap; the largest random number, negated, comes first
    bound, characters = 1.0, 0
    for place, raw in enumerate(rows):
        number = rng.random()
        if number >= bound or (row := read(raw)) is None:
            continue
        heapq.heappush(kept, (-number, place, row))
        characters += len(row.example.input)
        while len(kept) > most or characters > most * _CHARACTERS:
            largest, _, dropped = heapq.heappop(kept)
            bound = -largest
            characters = characters - len(dropped.example.input)
    return [row for _, _, row in sorted(kept, key=lambda entry: entry[1])]
