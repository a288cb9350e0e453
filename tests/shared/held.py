"""A service whose classifier answers only when released."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from calibrant.core import Prediction, Query
from calibrant.serving import ServiceSettings, create_classifier_app
from calibrant.tuned import Tuned

PATH = "/v1/classify"
JSON = {"Content-Type": "application/json"}
SECONDS = 30


class Held:
    """A classifier that answers when released, and records calls and cancellations."""

    gates = ()

    def __init__(self, *, held: bool = True, answer: Callable[[str], Any] | None = None) -> None:
        self.asked: list[str] = []
        self.given_up = threading.Event()
        self.begun = threading.Semaphore(0)
        self._answer = answer or (lambda _: Prediction(label="cat", confidence=0.9))
        self._go = threading.Event()
        if not held:
            self._go.set()

    def let_go(self) -> None:
        self._go.set()

    def query(self, text: str) -> Query:
        return Query(prompt="", text=text)

    async def feed(
        self, queries: Sequence[Query], deliver: Callable[[int, Prediction], object], **_: object
    ) -> str:
        for index, query in enumerate(queries):
            deliver(index, await self._predict(query.text))
        return ""

    async def _predict(self, text: str) -> Prediction:
        self.asked.append(text)
        self.begun.release()
        try:
            while not self._go.is_set():  # noqa: ASYNC110 (let go from another thread)
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        found = self._answer(text)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Prediction)
        return found


def app(bundle: Tuned, classifier: Any, **settings: Any) -> Any:
    """Return the application."""
    return create_classifier_app(bundle, classifier, settings=ServiceSettings(**settings))


def ask(running: Any, body: Any, **headers: str) -> Any:
    """Return the reply to a classification."""
    return running.ask(body, path=PATH, **{**JSON, **headers})


def later(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Begin a call in a thread; return the thread and the list for its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


def counts(running: Any, **headers: str) -> dict[str, float]:
    """Return the metrics by name and values of labels."""
    text = running.ask(path="/metrics", method="GET", **headers).body.decode()
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def with_threshold(bundle: Tuned, high: float) -> Tuned:
    """Return the bundle, accepting by a suggested threshold."""
    thresholds = {**bundle.thresholds, "suggested": {"high": high, "low": 0.2}}
    return replace(bundle, thresholds=thresholds, accept_suggested=True)
