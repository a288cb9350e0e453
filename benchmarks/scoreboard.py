"""Every calibrator, label-prior correction, head and confidence method, beside what a stranger would try first.

    python benchmarks/scoreboard.py --recorded DIR_WITH_CSV --options DIR_WITH_NPZ --data DIR_WITH_JSONL
                                    [--draws 5] [--labelled 150] [--rows 1000] [--sets WORD ...] [--keep DIR]
                                    [--write] [--redraw]

Answers that a hosted model gave, log-probabilities of options, and the embedded model. Labelled rows are drawn
`--draws` times, by seeds 0, 1, ...; all contenders (`_contenders.py`) learn from these and are judged on the same
other rows. Printed for each set: accuracy, halved Brier score, expected calibration error, area under the curve of risk
and coverage, and the share that a certificate keeps, each with half the width of its 95 % interval; then whether our
default is within 0.005 Brier of the best, and no less accurate than the answers as scored.

With `--write`, the record goes to docs/assets/scoreboard.json, and the page and the picture are drawn from it; with
`--redraw`, they are drawn from the record that is there. With `--keep`, answers of the embedded model and vectors are
read from DIR by the next run, and finished sets by one of the same commit. `--sets` takes the sets whose name has one
of the words. Two sets are measured at once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
from _better_figures import Draws, interval
from _board import Record, page, picture, sentences, terminal_lines
from _contenders import CONTENDERS, DEFAULT, RAW, WITH_VECTORS, Answered, Draw
from _data import OPTIONS, available
from _decision_sets import (
    MODEL_TASKS,
    RECORDED,
    Array,
    DecisionSet,
    Vectors,
    model_set,
    option_sets,
    recorded_set,
)
from _minilm import MiniLM
from _score_figures import DELTA, RESAMPLES, TARGET, Resampled
from _tasks import SHIPPED
from bench_representation import MODEL, Represented
from threadpoolctl import threadpool_limits

from calibrant.cascade import AvgLogprob, Margin
from calibrant.heads import EmbeddingModel
from calibrant.inference import open_embedding_model

DOCS: Final = Path(__file__).parent.parent / "docs"
RECORD: Final = DOCS / "assets" / "scoreboard.json"
PICTURE: Final = DOCS / "assets" / "scoreboard.svg"
PAGE: Final = DOCS / "scoreboard.md"
POOL: Final = 300
AT_ONCE: Final = 2
DIGITS: Final = 4
LEAST: Final = 1e-12
TITLES: Final = {
    "ag_news": "AG News",
    "emotion": "Emotion",
    "rotten_tomatoes": "Rotten Tomatoes",
    "sms_spam": "SMS spam",
    "banking77": "Banking77",
    "cosmosqa": "CosmosQA",
    "hellaswag": "HellaSwag",
}


def title_of(name: str, kind: str) -> str:
    """Return the name of a set as the page shows it."""
    first, _, rest = name.partition(", ")
    model = {"Qwen-7B": "Qwen 7B", "Llama-2-7b-hf": "Llama 2 7B"}.get(rest, kind)
    return f"{TITLES.get(first, first)}, {model}"


def split(found: DecisionSet, n_test: int) -> DecisionSet:
    """Return a set with fixed test rows behind the rows that labelled ones are drawn from."""
    n = len(found.answers)
    if found.n_pool is not None:
        rows, n_pool = np.arange(n)[: found.n_pool + n_test], found.n_pool
    else:
        n_pool = min(POOL, n // 2)
        rows = np.random.default_rng(0).permutation(n)[: n_pool + n_test]
    return replace(
        found,
        logprobs=found.logprobs[rows],
        answers=found.answers[rows],
        texts=None if found.texts is None else tuple(found.texts[row] for row in rows),
        features=None if found.features is None else found.features[rows],
        vectors=None if found.vectors is None else found.vectors[rows],
        n_pool=n_pool,
    )


def gaps(logprobs: Array) -> Array:
    """Return the logarithm of the most probable label's probability over that of the next one, shape (n,)."""
    two = np.sort(np.maximum(logprobs, np.log(LEAST)), axis=1)[:, -2:]
    found: Array = two[:, 1] - two[:, 0]
    return found


def hybrid(logprobs: Array) -> Array:
    """Return the mean of the confidences of `AvgLogprob` and `Margin`, as `Hybrid` has it."""
    return (_avg_logprob(logprobs) + _margin(logprobs)) / 2.0


def _avg_logprob(logprobs: Array) -> Array:
    best = np.minimum(logprobs.max(axis=1), 0.0)
    return np.array([AvgLogprob().to_confidence(one) for one in best.tolist()])


def _margin(logprobs: Array) -> Array:
    return np.array([Margin().to_confidence(one) for one in gaps(logprobs).tolist()])


def _difference(logprobs: Array) -> Array:
    two = np.sort(np.exp(logprobs), axis=1)[:, -2:]
    found: Array = two[:, 1] - two[:, 0]
    return found


def _negative_entropy(logprobs: Array) -> Array:
    found: Array = (np.exp(logprobs) * logprobs).sum(axis=1)
    return found


RANKINGS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "label_probability": lambda logprobs: logprobs.max(axis=1),
    "avg_logprob": _avg_logprob,
    "margin": _margin,
    "hybrid": hybrid,
    "p1 - p2": _difference,
    "entropy": _negative_entropy,
}
"""Scores of rows by method of confidence, of an answer of one token; the last two are no methods of calibrant."""


def answers_of(
    found: DecisionSet, engine: EmbeddingModel | None, encoder: EmbeddingModel | None, **sizes: int
) -> tuple[dict[str, list[Answered]], Counter[str]]:
    """Return what the contenders say of the test rows, a draw each, and what the default took."""
    said: dict[str, list[Answered]] = defaultdict(list)
    chosen: Counter[str] = Counter()
    for taught, asked in found.draws(sizes["n_labelled"], sizes["n_draws"], n_test=len(found.answers)):
        draw = Draw(found, taught, asked, engine=engine, encoder=encoder)
        for name, contender in CONTENDERS.items():
            if contender.can_read(found):
                said[name].append(contender.answer(draw))
        chosen[draw.heads[DEFAULT]] += 1
    return said, chosen


def _figure(found: Draws) -> list[float]:
    return [round(float(number), DIGITS) for number in (found[0], *interval(found))]


def record_of(found: DecisionSet, kind: str, said: Mapping[str, Sequence[Answered]]) -> dict[str, Any]:
    """Return the figures of a set."""
    pool = found.n_pool or 0
    resampled = Resampled(found.name, found.answers[pool:], n_draws=len(said[RAW]))
    brier = {name: resampled.brier(answers) for name, answers in said.items()}
    accuracy = {name: resampled.accuracy(answers) for name, answers in said.items()}
    contenders = []
    for name, answers in said.items():
        kept, right = resampled.kept(answers)
        contenders.append(
            {
                "name": name,
                "reads": list(CONTENDERS[name].reads),
                "accuracy": _figure(accuracy[name]),
                "Brier": _figure(brier[name]),
                "ECE": _figure(resampled.ece(answers)),
                "AURC": _figure(resampled.aurc(answers)),
                "kept": _figure(kept),
                "right": None if np.isnan(right) else round(right, DIGITS),
                "gain": _figure(accuracy[name] - accuracy[RAW]),
                "behind": {
                    side: _figure(brier[side] - brier[name])
                    for side in (DEFAULT, WITH_VECTORS)
                    if side in said
                },
            }
        )
    return {
        "name": title_of(found.name, kind),
        "labels": len(found.labels),
        "pool": pool,
        "test": len(found.answers) - pool,
        "contenders": contenders,
        "rankings": {
            method: {side: _figure(_ranked(resampled, said[side], score)) for side in (RAW, DEFAULT)}
            for method, score in RANKINGS.items()
        },
    }


def _ranked(resampled: Resampled, answers: Sequence[Answered], score: Callable[[Array], Array]) -> Draws:
    scores = [score(np.log(np.maximum(one.shares, LEAST))) for one in answers]
    return resampled.aurc(answers, scores)


def has_files(folder: Path | None, ending: str, what: str) -> bool:
    """Return True if a folder holds files of a kind; else print what is skipped."""
    found = folder is not None and any(folder.glob(f"*.{ending}"))
    if folder is not None and not found:
        print(f"skipped {what}.")
    return found


def sets_here(
    options: argparse.Namespace, encoder: MiniLM, keep: Path
) -> Iterator[tuple[str, str, Callable[[], DecisionSet]]]:
    """Yield the name and kind of each set whose data are here, and how it is read."""
    if has_files(options.recorded, "csv", "recorded answers: `make data RESEARCH=--research` fetches them"):
        for name in available(options.recorded, RECORDED, ending=".csv"):
            yield name, "recorded", partial(recorded_set, name, options.recorded, encoder, keep)
    if has_files(options.options, "npz", f"options: {OPTIONS}"):
        for found in option_sets(options.options):
            yield found.name, "options", partial(replace, found)
    if options.data is not None:
        for name in available(options.data, MODEL_TASKS, without_file=SHIPPED):
            yield name, "embedded", partial(model_set, name, options.data, encoder, keep)


def measured(found: DecisionSet, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a set."""
    rows = split(found, options.rows)
    # As `Classifier.fit` does where a model reports no features of the texts.
    reads_engine = rows.texts is not None and rows.features is None
    engine = Represented(open_embedding_model(MODEL, labels=rows.labels)) if reads_engine else None
    vectors = None if rows.texts is None else Vectors(rows, MiniLM())
    # Two processes share the cores: more threads would only wait for each other.
    with threadpool_limits(1):
        said, chosen = answers_of(rows, engine, vectors, n_labelled=options.labelled, n_draws=options.draws)
        return {**record_of(rows, kind, said), "chosen": dict(chosen)}


def kept_or_measured(
    found: DecisionSet, kind: str, options: argparse.Namespace, file: Path
) -> dict[str, Any]:
    """Return the figures of a set that an earlier run left in a file; else measure it, and leave them there."""
    if file.is_file():
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return kept
    one_set = measured(found, kind, options)
    file.write_text(json.dumps(one_set), encoding="utf-8")
    return one_set


def all_measured(options: argparse.Namespace, keep: Path, commit: str) -> list[dict[str, Any]]:
    """Print every set and return their figures."""
    words = options.sets or [""]
    sets = [
        (read(), kind)
        for name, kind, read in sets_here(options, MiniLM(), keep)
        if any(word in title_of(name, kind) for word in words)
    ]
    run = f"{commit}-{options.draws}-{options.labelled}-{options.rows}"
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as pool:
        # The last sets, of most labels, take longest: they come first.
        futures = [
            pool.submit(
                kept_or_measured, found, kind, options, keep / f"scoreboard-{run}-{found.name}-{kind}.json"
            )
            for found, kind in reversed(sets)
        ]
        finished = []
        for future in reversed(futures):
            finished.append(future.result())
            print("\n" + "\n".join(terminal_lines(finished[-1])), flush=True)
    return finished


def write(record: Record) -> None:
    """Write a record, and the page and the picture that are drawn from it."""
    RECORD.write_text(as_json(record), encoding="utf-8")
    PAGE.write_text(page(record), encoding="utf-8")
    PICTURE.write_text(picture(record), encoding="utf-8")


def as_json(record: Record) -> str:
    """Return a record as JSON, a contender a line."""
    settings = {name: value for name, value in record.items() if name != "sets"}
    sets = []
    for one_set in record["sets"]:
        plain = {name: value for name, value in one_set.items() if name != "contenders"}
        lines = ",\n".join(json.dumps(one) for one in one_set["contenders"])
        sets.append(f'{json.dumps(plain)[:-1]}, "contenders": [\n{lines}\n]}}')
    return f'{json.dumps(settings)[:-1]}, "sets": [\n' + ",\n".join(sets) + "\n]}\n"


def commit_here() -> str:
    """Return the commit whose code is measured."""
    command = ["git", "-C", str(DOCS.parent), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Measure every set, then say how the default stands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--options", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--labelled", type=int, default=150)
    parser.add_argument("--rows", type=int, default=1000, help="test rows of a set, at most")
    parser.add_argument("--sets", nargs="*", help="words in the names of sets")
    parser.add_argument("--keep", type=Path, help="folder of answers and vectors")
    parser.add_argument("--write", action="store_true", help="write the page, the picture and the record")
    parser.add_argument("--redraw", action="store_true", help="draw page and picture of the record anew")
    options = parser.parse_args()
    if options.redraw:
        write(json.loads(RECORD.read_text(encoding="utf-8")))
        return
    commit = commit_here()
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        sets = all_measured(options, keep, commit)
    if not sets:
        return
    record = {
        "commit": commit,
        "labelled": options.labelled,
        "draws": options.draws,
        "resamples": RESAMPLES,
        "target": TARGET,
        "delta": DELTA,
        "sets": sets,
    }
    print()
    for sentence in sentences(record):
        print(textwrap.fill(sentence, 80))
    if options.write:
        write(record)


if __name__ == "__main__":
    main()
