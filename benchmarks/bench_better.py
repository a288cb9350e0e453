"""What a user gets without knowing any option: the default pipeline beside simpler ways and beside a prompt search.

    python benchmarks/bench_better.py --data DIR_WITH_JSONL [--tasks NAME ...] [--seeds 3] [--labelled 150] [--rows 300]
                                      [--without-gepa | --gepa-seeds 1] [--budget 400] [--keep DIR] [--strict]

For every task and seed, `--labelled` rows are drawn at random from the training and validation rows; all sides learn
from these, and are judged on the same test rows, which nothing was chosen on:

exact   the embedded model's most probable label under one plain prompt,
text    TF-IDF of words and pieces of words with logistic regression, written here with scikit-learn,
prior   exact, its label prior divided out in full, learned from the texts of the labelled rows,
rung    the `prior` rung of `calibrant.heads.fit_head`: with a strength and a temperature learned from the answers,
fitted  `Classifier.fit` and nothing else,
gepa    the best prompt that `gepa.optimize` finds from the plain one (see `_gepa_peer.py`).

Ends with a verdict on every bar; `--strict` exits 1 where one is missed. With `--keep`, what the sides said of the test
rows and the model answered in gepa's searches is written to files in DIR and read back by the next run with the same
options, which goes on where one was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from _better_figures import COMPARISONS, METRICS, Comparison, Draws, Figures, show, verdict
from _data import available
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union

from calibrant.calibration import LabelPriorCorrection
from calibrant.core import Prediction, Task
from calibrant.heads import fit_head
from calibrant.inference import Classifier

EXAMPLES = Path(__file__).parent.parent / "examples"
TASKS = ("ag_news", "emotion", "rotten_tomatoes", "sms_spam", "transactions", "reviews")
FIELD = "category"

Pair = tuple[str, str]


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def read(self) -> float:
        """Return the seconds."""
        return time.perf_counter() - self._start


class Memory:
    """Answers of the model: every row is asked once, whatever the seeds."""

    def __init__(self) -> None:
        self._kept: dict[str, Prediction] = {}

    def get_many(self, keys: Sequence[str]) -> Mapping[str, Prediction]:
        """Return what is there."""
        return {key: self._kept[key] for key in keys if key in self._kept}

    def put(self, key: str, prediction: Prediction) -> None:
        """Keep an answer."""
        self._kept[key] = prediction


def rows_of(name: str, folder: Path | None) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the rows to learn from and the test rows, as pairs of text and label."""
    if name in ("reviews", "transactions"):
        task = Task.from_file(EXAMPLES / name / "task.toml")
        return [(e.input, e.answer) for e in (*task.train, *task.validation)], [
            (e.input, e.answer) for e in task.test
        ]
    folder = folder or Path()
    available(folder, [name])
    records = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    pairs = [(record["input"], record["answer"], record["split"] == "test") for record in records]
    teaching = [(text, label) for text, label, is_test in pairs if not is_test]
    return teaching, [(text, label) for text, label, is_test in pairs if is_test]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A task as every side gets it.

    Attributes
    ----------
    name : str
        The task.
    labels : list of str
        The labels.
    draws : list of lists of pairs
        The labelled rows of each seed.
    test : list of pairs
        The rows that all are judged on.
    """

    name: str
    labels: list[str]
    draws: list[list[Pair]]
    test: list[Pair]

    @classmethod
    def of(cls, name: str, options: argparse.Namespace) -> Problem:
        """Read a task and draw its labelled rows."""
        teaching, test = rows_of(name, options.data)
        n = min(options.labelled, 3 * len(teaching) // 4)  # of few rows, so that draws differ
        places = [np.random.default_rng(seed).permutation(len(teaching))[:n] for seed in range(options.seeds)]
        return cls(
            name=name,
            labels=sorted({label for _, label in teaching}),
            draws=[[teaching[place] for place in some] for some in places],
            test=test[: options.rows],
        )

    @property
    def prompt(self) -> str:
        """The plain prompt."""
        return (
            f"Classify the text into exactly one of: {', '.join(self.labels)}. "
            f"Answer as JSON with the key {FIELD}."
        )

    def open(self) -> Classifier:
        """Return the embedded model under the plain prompt."""
        return Classifier(
            model="local/smollm2-135m", labels=self.labels, field=FIELD, prompt=self.prompt, journal=Memory()
        )

    def positions(self, answers: Sequence[str | None]) -> list[int]:
        """Return where answers stand among the labels, -1 for none of them."""
        return [-1 if one not in self.labels else self.labels.index(one) for one in answers]


@dataclass(kw_only=True)
class Side:
    """What one side said of the test rows.

    Attributes
    ----------
    said : list of lists of int
        Positions of labels, shape (seeds, rows); -1 is none.
    brier : list of lists of float
        Half the squared distance of each distribution to the answer, the same shape; empty where there are none.
    calls : list of int
        Calls of the model to learn, by seed.
    seconds : float
        To learn, with the first seed.
    rate : float
        Test rows per second.
    notes : list of str
        More about each seed.
    """

    said: list[list[int]] = field(default_factory=list)
    brier: list[list[float]] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    seconds: float = 0.0
    rate: float = 0.0
    notes: list[str] = field(default_factory=list)

    def add(
        self, said: Sequence[int] | NDArray[np.intp], *, calls: int = 0, seconds: float = 0.0, note: str = ""
    ) -> None:
        """Take what was said with one more seed."""
        self.seconds = self.seconds if self.calls else seconds
        self.said.append([int(place) for place in said])
        self.calls.append(calls)
        self.notes.append(note)

    def add_distributions(
        self,
        logprobs: NDArray[np.float64],
        truth: Sequence[int],
        *,
        calls: int = 0,
        seconds: float = 0.0,
        note: str = "",
    ) -> None:
        """Take distributions, shape (rows, labels), of one more seed."""
        self.add(logprobs.argmax(axis=1), calls=calls, seconds=seconds, note=note)
        gap = np.exp(logprobs)
        gap[np.arange(len(gap)), truth] -= 1.0
        self.brier.append((0.5 * (gap**2).sum(axis=1)).tolist())


def distributions(predictions: Sequence[Prediction]) -> NDArray[np.float64]:
    """Return log-probabilities of the labels, shape (rows, labels), normalised."""
    found = [one.distribution for one in predictions]
    missing = sum(one is None for one in found)
    if missing:
        sys.exit(f"Expected a distribution on every row, got none on {missing} of {len(found)}.")
    return np.array([one.logprobs for one in found if one is not None])


def text_side(problem: Problem) -> Side:
    """Return what a classifier says that knows words only."""
    side, texts = Side(), [text for text, _ in problem.test]
    for labelled in problem.draws:
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        pieces = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
        model = make_pipeline(make_union(words, pieces), LogisticRegression(C=10, max_iter=2000))
        clock = Clock()
        model.fit([text for text, _ in labelled], [label for _, label in labelled])
        learned, clock = clock.read(), Clock()
        said = [str(label) for label in model.predict(texts)]
        side.rate = len(texts) / clock.read()
        side.add(problem.positions(said), seconds=learned)
    return side


def model_sides(problem: Problem) -> dict[str, Side]:
    """Return what needs the model under the plain prompt: exact, prior, rung and fitted."""
    texts, truth = [text for text, _ in problem.test], problem.positions([label for _, label in problem.test])
    sides = {name: Side() for name in ("exact", "prior", "rung", "fitted")}
    with problem.open() as classifier:
        plain = classifier.with_features()
        plain.classify(problem.draws[0][0][0])  # loads the model
        clock = Clock()
        exact = distributions(plain.classify_many(texts))
        asking = clock.read()
        for side in sides.values():
            side.rate = len(texts) / asking
        for labelled in problem.draws:
            known, answers = [text for text, _ in labelled], [label for _, label in labelled]
            clock = Clock()
            learned = distributions(plain.classify_many(known))
            seconds = clock.read()
            sides["exact"].add_distributions(exact, truth)
            calls = len(known)
            corrected = LabelPriorCorrection().fit(learned).transform(exact)
            sides["prior"].add_distributions(corrected, truth, calls=calls, seconds=seconds)
            head = fit_head(learned, problem.positions(answers), labels=problem.labels, candidates=["prior"])
            sides["rung"].add_distributions(
                head.transform(exact), truth, calls=calls, seconds=seconds, note=head.rung
            )
            clock = Clock()
            classifier.fit(known, answers)  # asks nothing again
            seconds, clock = seconds + clock.read(), Clock()
            found = distributions(classifier.classify_many(texts))  # remembered: the head alone takes time
            sides["fitted"].rate = len(texts) / (asking + clock.read())
            rung = "" if classifier.head is None else classifier.head.rung
            sides["fitted"].add_distributions(found, truth, calls=calls, seconds=seconds, note=rung)
    return sides


def gepa_side(problem: Problem, *, seeds: int, budget: int, file: Path | None) -> Side:
    """Return what the better of gepa's two prompts says."""
    from _gepa_peer import GepaSide  # the other sides do not need gepa

    side, texts = Side(), [text for text, _ in problem.test]
    with problem.open() as classifier:
        peer = GepaSide(
            classifier.client, labels=problem.labels, field=FIELD, prompt=problem.prompt, file=file
        )
        peer.classify(problem.prompt, [problem.draws[0][0][0]])  # loads the model
        for seed, labelled in enumerate(problem.draws[:seeds]):
            start = peer.answers.clock()
            searches = peer.search(labelled, budget=budget, seed=seed)
            learned = peer.answers.clock()
            said = peer.classify(searches[0].prompt, texts)
            side.rate = len(texts) / (peer.answers.clock() - learned)
            note = "judged: " + "; not judged: ".join(
                f"{one.proposer} {one.seed_validation:.3f} -> {one.validation:.3f} on {len(labelled) // 2} validation "
                f"rows, {one.candidates} prompts, {one.calls} calls, {one.reflections} reflections"
                for one in searches
            )
            calls = sum(one.calls + one.reflections for one in searches)
            side.add(problem.positions(said), calls=calls, seconds=learned - start, note=note)
    return side


def kept(file: Path | None, make: Callable[[], dict[str, Side]]) -> dict[str, Side]:
    """Return the sides that a file holds; else make them and write it."""
    if file is not None and file.is_file():
        return {name: Side(**one) for name, one in json.loads(file.read_text(encoding="utf-8")).items()}
    sides = make()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({name: asdict(side) for name, side in sides.items()}), encoding="utf-8")
    return sides


def sides_of(problem: Problem, options: argparse.Namespace) -> dict[str, Side]:
    """Return all sides of a task."""

    def file(part: str) -> Path | None:
        return None if options.keep is None else options.keep / f"{problem.name}-{part}"

    rows = f"{options.labelled}-{options.rows}"
    sides = kept(
        file(f"own-{options.seeds}-{rows}.json"),
        lambda: {"text": text_side(problem), **model_sides(problem)},
    )
    if options.gepa_seeds:
        asked = {"seeds": options.gepa_seeds, "budget": options.budget}
        sides |= kept(
            file(f"gepa-{options.gepa_seeds}-{rows}-{options.budget}.json"),
            lambda: {"gepa": gepa_side(problem, **asked, file=file("answers.jsonl"))},
        )
    return sides


def report(problem: Problem, sides: Mapping[str, Side], figures: Figures) -> dict[Comparison, Draws]:
    """Print a task; return the differences."""
    for name, side in sides.items():
        metrics = METRICS if side.brier else METRICS[:2]
        said = ", ".join(f"{metric} {show(figures.of(side, metric))}" for metric in metrics)
        cost = f"{np.mean(side.calls):.0f} calls, {side.seconds:.1f} s to learn, {side.rate:.1f} rows/s"
        print(f"{problem.name:16} {name:6} {said}; {cost}")
        for seed, note in enumerate(side.notes):
            if note:
                print(f"{'':23} seed {seed}: {note}")
    found = {
        (metric, other): figures.difference(sides, metric, other)
        for metric, other in COMPARISONS
        if other in sides
    }
    for (metric, other), figure in found.items():
        print(f"{problem.name:16} {metric} of fitted - {other}: {show(figure, sign='+')}", flush=True)
    return found


def main() -> None:
    """Run all tasks and seeds, then hold them against the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labelled", type=int, default=150)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--budget", type=int, default=400, help="metric calls of each of gepa's searches")
    parser.add_argument("--gepa-seeds", type=int, help="seeds of the side gepa; by default all")
    parser.add_argument("--without-gepa", dest="gepa_seeds", action="store_const", const=0)
    parser.add_argument("--keep", type=Path, help="folder of finished tasks")
    parser.add_argument("--strict", action="store_true", help="exit 1 where a bar is missed")
    options = parser.parse_args()
    options.gepa_seeds = (
        options.seeds if options.gepa_seeds is None else min(options.gepa_seeds, options.seeds)
    )
    found: dict[Comparison, dict[str, Draws]] = {}
    for name in available(options.data, options.tasks, without_file=("transactions", "reviews")):
        problem = Problem.of(name, options)
        truth = problem.positions([label for _, label in problem.test])
        differences = report(problem, sides_of(problem, options), Figures(name, truth, len(problem.labels)))
        for comparison, figure in differences.items():
            found.setdefault(comparison, {})[name] = figure
    for (metric, other), tasks in found.items():
        mean = np.mean(list(tasks.values()), axis=0)
        print(f"{'mean of tasks':16} {metric} of fitted - {other}: {show(mean, sign='+')}")
    bars = verdict(found)
    print("", *bars, "" if options.gepa_seeds else "not measured: accuracy of fitted - gepa", sep="\n")
    if options.strict and not all(bar.is_met for bar in bars):
        sys.exit(1)


if __name__ == "__main__":
    main()
