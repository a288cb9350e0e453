"""Heads learned from stored distributions of an evaluation, without calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibrant.calibration._saved import SavedPredictions
from calibrant.core._errors import DataError, StateError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import Outcome
from calibrant.evaluation._saved import load_predictions
from calibrant.heads._embedding import EmbeddingModel
from calibrant.heads._fit import fit_head
from calibrant.heads._head import Head
from calibrant.inference._embeddings import open_embedding_model
from calibrant.runs._directory import PREDICTIONS, RESULT, make_folder, read_origin
from calibrant.runs._records import RowFile

_LEAST: Final = 1e-300  # a probability that was too small to be written
_RUN: Final = "Name the directory of `calibrant evaluate` or `calibrant batch`"


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
    """

    source: str
    head: Head
    fingerprint: Fingerprint
    rows: int
    left_out: int

    def to_record(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "kind": "head",
            "source": self.source,
            "rows": self.rows,
            "left_out": self.left_out,
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


def learn_head(
    path: str | Path, *, seed: int = 0, embeddings: str | EmbeddingModel | None = None
) -> LearnedHead:
    """Learn a head from stored predictions for labelled rows; see `calibrant.heads.fit_head`.

    Hidden features of the embedded model are not stored, so no candidate head uses them.

    Parameters
    ----------
    path : path
        Directory of `calibrant evaluate` or `calibrant batch`, of one model, without a head or a label prior.
    seed : int, default 0
        Of the folds.
    embeddings : str or EmbeddingModel, optional
        ``model2vec`` or ``model2vec:NAME`` (extra ``embeddings``): gives the head a vector of each text beside its
        words. By default words alone.

    Raises
    ------
    ConfigurationError
        There is no such embedding model.
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
    saved = load_predictions(place)
    fingerprint = _fingerprint(place, saved)
    logprobs, answers, texts = [], [], []
    for _, row in RowFile(place / PREDICTIONS).rows():
        if "parts" in row.values or "steps" in row.values:
            raise _refusal_error(place, "predictions of one model with one label each, got others")
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
    embedding = None if embeddings is None else open_embedding_model(embeddings)
    head = fit_head(
        np.array(logprobs), answers, labels=fingerprint.labels, texts=texts, embedding=embedding, rng=seed
    )
    return LearnedHead(
        source=str(path),
        head=head,
        fingerprint=fingerprint,
        rows=len(saved),
        left_out=len(saved) - len(logprobs),
    )


def _fingerprint(place: Path, saved: SavedPredictions) -> Fingerprint:
    """Return the fingerprint of uncorrected predictions."""
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
        found = np.array([given[label] for label in fingerprint.labels], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal_error(place, f"probabilities of every label, got {probabilities!r:.80}") from error
    return list(np.log(np.maximum(found, _LEAST)))


def _refusal_error(place: Path, what: str) -> DataError:
    return DataError(f"expected {what}. {_RUN}.", path=place)
