"""False alarms of drift over many files of one run, and how often a change of topic within labels is seen.

    python benchmarks/bench_drift.py --recorded DIR_WITH_CSV --data DIR_WITH_JSONL --keep DIR
                                     [--sequences 7] [--files 1000] [--repeats 100] [--strict]

False alarms: of each recorded set a history of 500 rows and files of 100 rows are drawn, all with replacement, and the
files are compared with the history one after another, as `calibrant label` does every day.

Topics: the rows of every predicted label are divided in two by 2-means of their sentence vectors. The history has one
half of each, and a file 200 rows of the other halves; or the rows of one label alone are compared; or only some rows of
a file are of the other halves. The first file of a history is judged, and the hundredth.

Exit code 1 with --strict if more than 5 % of the sequences have an alarm, or if a whole file of other topics is seen
less often than in 90 % of the repeats as the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from _decision_sets import RECORDED, model_set
from _minilm import MiniLM
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from calibrant.core import Fingerprint, LogprobSpace, Prediction, Task
from calibrant.evaluation._drift import HistoryDrift, HistoryWatch
from calibrant.evaluation._looks import Ledger
from calibrant.heads._linear import Columns, HeadRows, LinearModel
from calibrant.tuned import Measurements, PredictionHistory, RecordedTask, Sketches, Tuned

HISTORY, DAILY = 500, 100
MOST = 1000
FILE = 200
HUNDREDTH = 100
TOTAL = 0.05
SEEN = 0.9
TESTS: Final = ("labels", "confidence", "topics")

Places = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Predictions of one set with vectors of their texts.

    Attributes
    ----------
    name : str
        The set.
    labels : ndarray of str, shape (n,)
        Predicted labels.
    confidence : ndarray of shape (n,)
        Confidences.
    vectors : ndarray of shape (n, d)
        Sentence vectors, each of length 1.
    """

    name: str
    labels: NDArray[np.str_]
    confidence: NDArray[np.float64]
    vectors: NDArray[np.float64]

    def predictions(self, places: Places) -> list[Prediction]:
        """Return the rows at places as a head that reads the vectors would answer them."""
        n_labels, width = 2, self.vectors.shape[1]
        plain = Columns(mean=np.zeros(width), scale=np.ones(width), coefficients=np.zeros((width, n_labels)))
        model = LinearModel(intercept=np.zeros(n_labels), columns={"embeddings": plain})
        rows = HeadRows.of(np.zeros((len(places), n_labels)))
        sketches = model.sketch(replace(rows, embeddings=self.vectors[places]))
        assert sketches is not None  # noqa: S101 (for the type checker)
        return [
            Prediction(label=str(self.labels[place]), confidence=float(self.confidence[place]), sketch=sketch)
            for place, sketch in zip(places, sketches, strict=True)
        ]

    def tuned(self, places: Places) -> Tuned:
        """Return a tuned classifier whose history are the rows at places."""
        names = sorted({*self.labels.tolist()})
        task = Task(name=self.name, labels=names, prompt="Which?")
        asked = Fingerprint(prompt=task.prompt, model="any", space=LogprobSpace.MASKED, labels=task.labels)
        found = self.predictions(places)
        sketches = [one.sketch for one in found if one.sketch is not None]
        history = PredictionHistory.of(
            [one.label for one in found],
            self.confidence[places],
            labels=task.labels,
            sketches=Sketches.of(self.labels[places].tolist(), np.array(sketches)),
        )
        return Tuned(
            tasks=(RecordedTask(task=task),), fingerprint=asked, measurements=Measurements(history=history)
        )


def recorded_answers(name: str, folder: Path, encoder: MiniLM, keep: Path) -> Answered:
    """Return the recorded answers to the prompt `default`, with vectors that are kept in a folder."""
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["prompt"] == "default"]
    texts = [row["text"] for row in rows]
    place = keep / f"recorded_vectors_{name}.npz"
    if not place.is_file():
        different = list(dict.fromkeys(texts))
        np.savez(place, vectors=encoder.vectors(different), texts=np.array(different))
    with np.load(place) as stored:
        known = dict(zip(stored["texts"].tolist(), stored["vectors"], strict=True))
    return Answered(
        name=name,
        labels=np.array([row["predicted"] for row in rows]),
        confidence=np.array([float(row["probability"]) for row in rows]),
        vectors=_unit(np.array([known[text] for text in texts], dtype=np.float64)),
    )


def ten_domains(folder: Path, encoder: MiniLM, keep: Path) -> Answered:
    """Return the embedded model's own answers to requests of ten domains."""
    found = model_set("requests", folder, encoder, keep)
    assert found.vectors is not None  # noqa: S101 (for the type checker)
    shares = np.exp(found.logprobs)
    return Answered(
        name="requests of ten domains",
        labels=np.array(found.labels)[shares.argmax(axis=1)],
        confidence=shares.max(axis=1),
        vectors=_unit(found.vectors),
    )


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: NDArray[np.float64] = vectors / np.where(lengths > 0.0, lengths, 1.0)
    return units


@contextlib.contextmanager
def no_files_before() -> Iterator[None]:
    """Use a new home, in which no file was compared with anything."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CALIBRANT_HOME"] = folder
        try:
            yield
        finally:
            del os.environ["CALIBRANT_HOME"]


def looked_at(tuned: Tuned, predictions: Sequence[Prediction]) -> HistoryDrift:
    """Return the drift of one file."""
    watch = HistoryWatch(tuned, counts_files=True)
    watch.decide_many(predictions)
    found = watch.drift()
    assert found is not None  # noqa: S101 (for the type checker)
    return found


def alarms(found: HistoryDrift) -> tuple[bool, bool, bool]:
    """Return which of the tests see a drift."""
    return found.labels_drifted, found.confidence_drifted, found.topics_drifted


def p_values(found: HistoryDrift) -> tuple[float, float, float]:
    """Return the p-values of the tests."""
    assert found.confidence.p_value is not None  # noqa: S101 (for the type checker)
    assert found.topics is not None  # noqa: S101 (for the type checker)
    return found.label_p_value, found.confidence.p_value, found.topics.p_value


def false_alarms(answers: Answered, *, sequences: int, files: int) -> int:
    """Print the alarms of files of the same population, and return the number of sequences with one."""
    rng = np.random.default_rng(0)
    alarmed = 0
    by_test = np.zeros(3, dtype=int)
    found: list[tuple[float, float, float]] = []
    seconds = 0.0
    for _ in range(sequences):
        tuned = answers.tuned(rng.integers(len(answers.labels), size=HISTORY))
        is_alarmed = False
        with no_files_before():
            for _ in range(files):
                rows = answers.predictions(rng.integers(len(answers.labels), size=DAILY))
                start = time.perf_counter()
                drift = looked_at(tuned, rows)
                seconds += time.perf_counter() - start
                by_test += alarms(drift)
                is_alarmed |= drift.has_drifted
                found.append(p_values(drift))
        alarmed += is_alarmed
    matrix = np.array(found)
    print(f"{answers.name}: {alarmed} of {sequences} sequences of {files:,} files have an alarm")
    for test, count, column in zip(TESTS, by_test, matrix.T, strict=True):
        shares = ", ".join(
            f"{(column <= level).mean():.4f} of p at most {level:g}" for level in (0.05, 0.01, 0.001)
        )
        print(f"  {test:10}  {count} alarms; {shares}")
    print(f"  {1000 * seconds / len(matrix):.0f} ms a file", flush=True)
    return alarmed


def halves(answers: Answered) -> tuple[Places, Places]:
    """Return the places of one half of each label's rows by 2-means, and of the other."""
    half = np.zeros(len(answers.labels), dtype=int)
    for label in sorted({*answers.labels.tolist()}):
        members = np.flatnonzero(answers.labels == label)
        if len(members) > 1:
            half[members] = KMeans(2, n_init=10, random_state=0).fit(answers.vectors[members]).labels_
    return np.flatnonzero(half == 0), np.flatnonzero(half == 1)


def settings(answers: Answered) -> Iterator[tuple[str, Places, Places, float]]:
    """Yield names, history, other rows, and the share of the file that is of these."""
    earlier, other = halves(answers)
    yield "all rows of other topics", earlier, other, 1.0
    for label in sorted({*answers.labels.tolist()}):
        of_label = answers.labels == label
        if min(of_label[earlier].sum(), of_label[other].sum()) >= FILE // 2:
            yield f"all rows of {label}", earlier[of_label[earlier]], other[of_label[other]], 1.0
    for share in (0.5, 0.25, 0.0):
        yield f"{share:.0%} of other topics", earlier, other, share


def topics(answers: Answered, *, repeats: int) -> float:
    """Print how often a change of topic is seen; return the least share of whole files, as first ones."""
    least = 1.0
    print(
        f"{answers.name}: share of {repeats} files ({repeats // 4} as the hundredth) with a change that is seen"
    )
    for name, earlier, other, share in settings(answers):
        for look in (1, HUNDREDTH):
            rng = np.random.default_rng(1)
            seen = np.zeros(3)
            slowest = 0.0
            n_files = repeats if look == 1 else repeats // 4  # a drift is seen more slowly then
            for _ in range(n_files):
                shuffled, new = rng.permutation(earlier), rng.permutation(other)
                n_new = min(round(share * FILE), len(new))
                n_old = 0 if share == 1.0 else FILE - n_new
                rows = np.concatenate([new[:n_new], shuffled[:n_old]])
                tuned = answers.tuned(shuffled[n_old:][:MOST])
                start = time.perf_counter()
                with no_files_before():
                    if look > 1:
                        Ledger.named("drift").add(tuned.history.digest, {"file": "earlier", "look": look - 1})
                    drift = looked_at(tuned, answers.predictions(rows))
                slowest = max(slowest, time.perf_counter() - start)
                seen += alarms(drift)
            told = ", ".join(
                f"{test} {share_seen:.2f}" for test, share_seen in zip(TESTS, seen / n_files, strict=True)
            )
            print(f"  {name}, {len(rows)} rows, file {look}: {told} ({slowest:.1f} s at most)", flush=True)
            if share == 1.0 and look == 1:
                least = min(least, seen[2] / n_files)
    return float(least)


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--keep", type=Path, required=True, help="folder of answers and vectors")
    parser.add_argument("--sets", nargs="*", default=RECORDED, help="sets for false alarms")
    parser.add_argument("--sequences", type=int, default=7, help="of each recorded set")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    encoder = MiniLM()
    alarmed = 0
    for name in options.sets:
        answers = recorded_answers(name, options.recorded, encoder, options.keep)
        alarmed += false_alarms(answers, sequences=options.sequences, files=options.files)
    n_sequences = len(options.sets) * options.sequences
    print(f"{alarmed} of {n_sequences} sequences have an alarm; {TOTAL:.0%} may")
    least = 1.0
    if options.repeats:
        news = recorded_answers("ag_news", options.recorded, encoder, options.keep)
        requests = ten_domains(options.data, encoder, options.keep)
        least = min(topics(answers, repeats=options.repeats) for answers in (news, requests))
        print(f"seen in at least {least:.2f} of the whole files, as first ones; {SEEN:.2f} is wanted")
    if options.strict and (alarmed > TOTAL * n_sequences or least < SEEN):
        sys.exit(1)


if __name__ == "__main__":
    main()
