"""gepa's search for a better prompt on labelled rows, with its own confidence adapter; used by bench_better.py.

`gepa.optimize` runs twice, from the same prompt and with the same budget each time: once with the embedded model as
`reflection_lm`, once with calibrant's `ExemplarProposer`. The prompt with the higher score on gepa's own validation
rows is judged.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gepa
from gepa.adapters.confidence_adapter import ConfidenceAdapter

from calibrant.core import Client, CompletionRequest
from calibrant.inference._loop import run_sync
from calibrant.logprobs._schema import enum_schema
from calibrant.optimization import ExemplarProposer

Pair = tuple[str, str]

MINIBATCH = (
    8  # rows a proposal is tried on: three, gepa's default, rarely tell two prompts of a small model apart
)
REFLECTION_TOKENS = 256  # a small model that writes more repeats itself
ALTERNATIVES = 20  # the most that OpenAI's interface lists


class Silent:
    """A logger that drops what it is told."""

    def log(self, message: object) -> None:
        """Drop `message`."""


class Answers:
    """The embedded model as a function of chat messages; equal questions are computed once.

    Parameters
    ----------
    client : Client
        The model.
    schema : dict
        Response format of a label.
    file : Path, optional
        Keeps the answers, so that a search that was stopped computes none again.

    Attributes
    ----------
    saved : float
        Seconds that remembered answers took when they were computed: added to a clock, they make its time that of
        computing every answer.
    """

    def __init__(self, client: Client, schema: dict[str, Any], file: Path | None = None) -> None:
        self._client, self._schema, self._file = client, schema, file
        self._known: dict[str, tuple[dict[str, Any], float]] = {}
        self.saved = 0.0
        if file is not None and file.is_file():
            for line in file.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # one may be cut
                    key, answer, seconds = json.loads(line)
                    self._known[key] = answer, seconds

    def label(self, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
        """Return an answer under the schema, with log-probabilities, as OpenAI's interface gives it."""
        request = CompletionRequest(
            messages=tuple(messages), response_format=self._schema, top_logprobs=ALTERNATIVES
        )
        return self._ask(request)

    def reflect(self, prompt: str | list[dict[str, str]]) -> str:
        """Return free text."""
        messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)
        request = CompletionRequest(
            messages=messages, top_logprobs=0, options={"max_tokens": REFLECTION_TOKENS}
        )
        return str(self._ask(request)["choices"][0]["message"]["content"])

    def clock(self) -> float:
        """Return seconds as if nothing were remembered."""
        return time.perf_counter() + self.saved

    def _ask(self, request: CompletionRequest) -> dict[str, Any]:
        key = hashlib.sha256(repr(request).encode()).hexdigest()
        if key in self._known:
            answer, seconds = self._known[key]
            self.saved += seconds
            return answer
        start = time.perf_counter()
        answer = cast("dict[str, Any]", run_sync(self._client.complete(request)))
        for token in (answer["choices"][0]["logprobs"] or {}).get("content") or ():
            token["top_logprobs"] = token["top_logprobs"][:ALTERNATIVES]
        self._known[key] = answer, time.perf_counter() - start
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(
                    "\n" + json.dumps([key, *self._known[key]])
                )  # in front: the line before may be cut
        return answer


@dataclass(frozen=True, kw_only=True)
class Search:
    """A finished search.

    Attributes
    ----------
    proposer : str
        Who wrote the prompts.
    prompt : str
        The best on the validation rows.
    validation : float
        Its mean score there, in [0, 1].
    seed_validation : float
        That of the prompt the search began with.
    candidates : int
        Prompts that were tried on the validation rows.
    calls : int
        Metric calls, as gepa counts them.
    reflections : int
        Calls of the reflection model.
    """

    proposer: str
    prompt: str
    validation: float
    seed_validation: float
    candidates: int
    calls: int
    reflections: int


class GepaSide:
    """Searches a task and judges what was found.

    Parameters
    ----------
    client : Client
        The embedded model.
    labels : sequence of str
        The labels.
    field : str
        The JSON key that holds the label.
    prompt : str
        Where every search begins.
    file : Path, optional
        Keeps the answers of the model.
    """

    def __init__(
        self, client: Client, *, labels: Sequence[str], field: str, prompt: str, file: Path | None = None
    ) -> None:
        self.schema = enum_schema(labels, field)
        self.answers = Answers(client, self.schema, file)
        self.adapter = ConfidenceAdapter(
            self.answers.label, field, self.schema, self.schema["json_schema"]["schema"]
        )
        self.field, self.prompt = field, prompt

    def search(self, labelled: Sequence[Pair], *, budget: int, seed: int) -> list[Search]:
        """Return two searches of `budget` metric calls each, the better first.

        The first half of the labelled rows teaches, the other chooses.
        """
        half = len(labelled) // 2
        found = [
            self._search(proposer, labelled[:half], labelled[half:], budget=budget, seed=seed)
            for proposer in ("reflection", "exemplar")
        ]
        return sorted(found, key=lambda one: -one.validation)

    def _search(
        self, proposer: str, train: Sequence[Pair], validation: Sequence[Pair], *, budget: int, seed: int
    ) -> Search:
        reflections = 0

        def reflect(prompt: str | list[dict[str, str]]) -> str:
            nonlocal reflections
            reflections += 1
            return self.answers.reflect(prompt)

        kind: dict[str, Any] = {"reflection_lm": reflect}
        if proposer == "exemplar":
            kind = {
                "custom_candidate_proposer": ExemplarProposer(train=rows(train), seed=seed, field=self.field)
            }
        result = gepa.optimize(
            seed_candidate={"system_prompt": self.prompt},
            trainset=rows(train),
            valset=rows(validation),
            adapter=self.adapter,
            reflection_minibatch_size=MINIBATCH,
            max_metric_calls=budget,
            logger=Silent(),
            seed=seed,
            **kind,
        )
        return Search(
            proposer=proposer,
            prompt=result.best_candidate["system_prompt"],
            validation=result.val_aggregate_scores[result.best_idx],
            seed_validation=result.val_aggregate_scores[0],
            candidates=result.num_candidates,
            calls=result.total_metric_calls,
            reflections=reflections,
        )

    def classify(self, prompt: str, texts: Sequence[str]) -> list[str | None]:
        """Return the labels that gepa's adapter reads from the answers under a prompt."""
        batch = self.adapter.evaluate(rows([(text, "") for text in texts]), {"system_prompt": prompt})
        return [output["parsed_value"] for output in batch.outputs]


def rows(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Return pairs of text and label as gepa's data rows."""
    return [{"input": text, "answer": label, "additional_context": {}} for text, label in pairs]
