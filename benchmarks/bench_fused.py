"""What is confidence worth where a model hides its log-probabilities? The embedded model, with and without its own.

    python benchmarks/bench_fused.py --data DIR_WITH_JSONL [--tasks NAME ...] [--train 100] [--test 150]
                                     [--live-tasks NAME ...] [--live-train 60] [--live-test 80] [--keep DIR]

`exact` is the embedded model's distribution over the labels, as it scores them. The other lines see no log-probability:

verbalised     one answer with a stated percentage,
fused 3        three answers with stated percentages, to variants of the prompt,
sampled 3, 10  agreement of answers that are drawn at temperature 1.

First with answers that are made from exact distributions, which are scored once under every variant of the prompt; as
scored, and with the label prior divided out, which is learned from the training texts without their answers, as the
model as scored names one label nearly always. At temperature 0 the answer is the most probable label, else it is drawn.
The percentage is made from the label's exact probability p: to the logit of p normal noise of standard deviation 1
(`--noise`) is added, and the result is rounded to 5 percent.
Then live (`--live-tasks`): the embedded model writes label and percentage itself, its log-probabilities withheld.

A head is fitted on the training rows of each line, without the texts; figures are those of the test rows. AURC is the
area under the risk-coverage curve, lower is better; the last column compares it with that of `exact`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from bench_prior import PROMPTS, rows
from numpy.typing import NDArray

from calibrant.calibration import LabelPriorCorrection
from calibrant.core import Client, CompletionRequest, Example, Journal, LabelSet, LogprobSpace, read_examples
from calibrant.evaluation import open_cache
from calibrant.heads import fit_head
from calibrant.inference import Classifier, open_client
from calibrant.logprobs._completion import read_completion
from calibrant.metrics import aurc, expected_calibration_error

Array = NDArray[np.float64]
MODEL = "local/smollm2-135m"
FIELD = "category"
METHODS: dict[str, dict[str, Any]] = {
    "verbalised": {"scoring": "verbalised"},
    "fused 3": {"scoring": "fused"},
    "fused 3, T = 1": {"scoring": "fused", "temperature": 1.0},
    "sampled 3": {"scoring": "sampled", "samples": 3},
    "sampled 10": {"scoring": "sampled", "samples": 10},
}


@dataclass(frozen=True, kw_only=True)
class Data:
    """Labelled rows of a task, and how the model is asked about them."""

    name: str
    labels: LabelSet
    prompt: str
    train: list[Example]
    test: list[Example]

    @classmethod
    def read(cls, path: Path, *, train: int, test: int) -> Data:
        """Return the first rows of a task's file."""
        labels = LabelSet(sorted({example.answer for example, _ in read_examples(path)}))
        prompt = f"{PROMPTS[path.stem]} Answer in JSON with one of these categories: {', '.join(labels)}."
        found = {"train": rows(path, "train", train), "test": rows(path, "test", test)}
        return cls(name=path.stem, labels=labels, prompt=prompt, **found)

    def texts(self, split: Sequence[Example]) -> list[str]:
        """Return the texts of some rows."""
        return [example.input for example in split]

    def classifier(self, model: Client, *, prompt: str | None = None, **settings: Any) -> Classifier:
        """Return a classifier for the task."""
        own = {"labels": self.labels, "field": FIELD, "prompt": self.prompt if prompt is None else prompt}
        return Classifier(model=model, **own, **settings)


@dataclass(kw_only=True)
class Drawn:
    """Client whose answers are made from exact distributions, by system prompt and text."""

    labels: LabelSet
    tables: dict[str, dict[str, Array]]
    plain: str
    noise: float
    seed: int = 0
    name: str = "drawn"
    space: LogprobSpace = LogprobSpace.NONE

    def __post_init__(self) -> None:
        self._turns: Counter[tuple[str, str, float]] = Counter()

    async def complete(self, request: CompletionRequest) -> object:
        """Return a label, and the percentage that is asked for."""
        prompt, text = (message["content"] for message in request.messages)
        heat = float(request.options.get("temperature") or 0.0)
        turn = self._turns[prompt, text, heat]
        self._turns[prompt, text, heat] += 1
        key = hashlib.sha256(json.dumps([self.seed, prompt, text, heat, turn]).encode()).digest()
        rng = np.random.default_rng(list(key[:16]))
        p = np.exp(self.tables[prompt][text])
        label = int(rng.choice(len(p), p=p / p.sum())) if heat else int(p.argmax())
        share = np.clip(p[label], 1e-6, 1.0 - 1e-6)
        noisy = 1.0 / (1.0 + np.exp(-(np.log(share / (1.0 - share)) + rng.normal(0.0, self.noise))))
        answer: dict[str, Any] = {FIELD: self.labels.labels[label]}
        if prompt != self.plain:
            answer["confidence"] = int(5 * round(20 * noisy))
        message = {"role": "assistant", "content": json.dumps(answer)}
        return {"choices": [{"finish_reason": "stop", "message": message}]}

    def close(self) -> None:
        """Do nothing."""


class Hidden:
    """Client of a model whose log-probabilities are withheld."""

    space = LogprobSpace.NONE

    def __init__(self, client: Client) -> None:
        self.name = f"hidden:{client.name}"
        self._client = client

    async def complete(self, request: CompletionRequest) -> object:
        """Return the model's answer, without its tokens."""
        return replace(
            read_completion(await self._client.complete(replace(request, top_logprobs=0))), tokens=None
        )

    def close(self) -> None:
        """Do nothing: the client is not its own."""


def variants(data: Data, engine: Client) -> list[str]:
    """Return the system prompts of the calls that `fused` makes."""
    fused = data.classifier(Hidden(engine), scoring="fused")
    request = fused.request(fused.query("text"))
    return [fused.method.sample(request, number).messages[0]["content"] for number in range(3)]


def scored(data: Data, engine: Client, journal: Journal) -> dict[str, dict[str, Array]]:
    """Return the exact log-probabilities by system prompt and text."""
    texts = data.texts([*data.train, *data.test])
    tables = {}
    for prompt in [data.prompt, *variants(data, engine)]:
        found = data.classifier(engine, prompt=prompt, journal=journal).classify_many(texts)
        tables[prompt] = {text: one.distribution.logprobs for text, one in zip(texts, found, strict=True)}
    return tables


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one line on the test rows."""

    accuracy: float
    aurc: float
    error: float

    @classmethod
    def of(cls, logs: Array, answers: NDArray[np.intp]) -> Figures:
        """Return the figures of distributions."""
        correct = (logs.argmax(axis=1) == answers).astype(float)
        confidence = np.minimum(np.exp(logs.max(axis=1)), 1.0)
        error = expected_calibration_error(confidence=confidence, correct=correct)
        area = aurc(confidence=confidence, correct=correct)
        return cls(accuracy=correct.mean(), aurc=area, error=error)


def log_probabilities(classifier: Classifier, examples: Sequence[Example]) -> tuple[Array, int]:
    """Return the distributions of rows, even where there was no answer; and the number of those rows."""
    found = classifier.classify_many([example.input for example in examples])
    flat = np.full(len(classifier.labels), -np.log(len(classifier.labels)))
    logs = [flat if one.distribution is None else one.distribution.logprobs for one in found]
    return np.array(logs), sum(one.distribution is None for one in found)


def line(data: Data, train: Array, test: Array) -> tuple[Figures, Figures]:
    """Return the figures before and after a head that is fitted on the training rows."""
    places = data.labels.labels.index
    taught, asked = (np.array([places(e.answer) for e in split]) for split in (data.train, data.test))
    head = fit_head(train, taught, labels=data.labels)
    return Figures.of(test, asked), Figures.of(head.transform(test), asked)


def show(data: Data, title: str, lines: dict[str, tuple[Figures, Figures]]) -> None:
    """Print a table; with several draws, each line is their mean."""
    print(
        f"\n{data.name}, {title}: {len(data.labels)} labels, {len(data.train)} training and {len(data.test)} test rows"
    )
    print(f"{'':16} {'as answered':^23}   {'with a head':^23}   {'AURC, of exact':>14}")
    print(f"{'':16}" + f" {'accuracy':>8} {'AURC':>7} {'ECE':>6}  " * 2)
    for name, pair in lines.items():
        cells = "".join(f" {one.accuracy:8.3f} {one.aurc:7.3f} {one.error:6.3f}  " for one in pair)
        print(f"{name:16}{cells} {pair[1].aurc / lines['exact'][1].aurc:14.2f}", flush=True)


def mean(pairs: Sequence[tuple[Figures, Figures]]) -> tuple[Figures, Figures]:
    """Return the mean figures of several draws."""
    names = ("accuracy", "aurc", "error")
    before, after = (
        Figures(**{name: float(np.mean([getattr(pair[side], name) for pair in pairs])) for name in names})
        for side in (0, 1)
    )
    return before, after


def without_prior(data: Data, tables: dict[str, dict[str, Array]]) -> dict[str, dict[str, Array]]:
    """Return the tables with the label prior divided out, learned from the training texts."""
    found = {}
    for prompt, table in tables.items():
        prior = LabelPriorCorrection("batch", strength=1.0)
        prior.fit(np.array([table[text] for text in data.texts(data.train)]))
        found[prompt] = {text: prior.transform(logs[None, :])[0] for text, logs in table.items()}
    return found


def drawn(
    data: Data, tables: dict[str, dict[str, Array]], *, draws: int, noise: float
) -> dict[str, tuple[Figures, Figures]]:
    """Return the lines of a task with answers made from exact distributions."""
    plain = tables[data.prompt]
    exact = [np.array([plain[text] for text in data.texts(split)]) for split in (data.train, data.test)]
    lines = {"exact": line(data, *exact)}
    for name, settings in METHODS.items():
        found = []
        for seed in range(draws):
            client = Drawn(labels=data.labels, tables=tables, plain=data.prompt, noise=noise, seed=seed)
            asked = data.classifier(client, concurrency=1, **settings)
            found.append(
                line(data, *(log_probabilities(asked, split)[0] for split in (data.train, data.test)))
            )
        lines[name] = mean(found)
    return lines


def live(data: Data, engine: Client, journal: Journal) -> dict[str, tuple[Figures, Figures]]:
    """Return the lines of a task with answers that the model wrote itself."""
    exact = data.classifier(engine, journal=journal)
    lines = {"exact": line(data, *(log_probabilities(exact, split)[0] for split in (data.train, data.test)))}
    for name, settings in METHODS.items():
        if "temperature" in settings:
            continue
        options = {"seed": 1} if settings["scoring"] == "sampled" else {}
        asked = data.classifier(Hidden(engine), journal=journal, options=options, **settings)
        (train, _), (test, without) = (log_probabilities(asked, split) for split in (data.train, data.test))
        lines[name] = line(data, train, test)
        if without:
            print(
                f"{data.name}, {name}: {without} test rows without a legal answer count as undecided",
                flush=True,
            )
    return lines


def main() -> None:
    """Measure the tasks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=["rotten_tomatoes", "ag_news"])
    parser.add_argument("--train", type=int, default=100)
    parser.add_argument("--test", type=int, default=150)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--noise", type=float, default=1.0, help="of the stated percentage, in logits")
    parser.add_argument("--live-tasks", nargs="*", default=["rotten_tomatoes", "ag_news"])
    parser.add_argument("--live-train", type=int, default=60)
    parser.add_argument("--live-test", type=int, default=80)
    parser.add_argument(
        "--keep", type=Path, help="folder for the model's answers, which are not asked for again"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        journal = stack.enter_context(open_cache(folder / "answers.db"))
        engine = stack.enter_context(closing(open_client(MODEL)))
        for name in options.tasks:
            data = Data.read(options.data / f"{name}.jsonl", train=options.train, test=options.test)
            tables = scored(data, engine, journal)
            for title, own in (("as scored", tables), ("prior divided out", without_prior(data, tables))):
                show(
                    data, f"made answers, {title}", drawn(data, own, draws=options.draws, noise=options.noise)
                )
        for name in options.live_tasks:
            data = Data.read(options.data / f"{name}.jsonl", train=options.live_train, test=options.live_test)
            show(data, "live", live(data, engine, journal))


if __name__ == "__main__":
    main()
