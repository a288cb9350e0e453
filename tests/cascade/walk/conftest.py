"""Fixtures for tests of cascades: fake models, and a method whose values a test sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from calibrant.cascade import Answered, Assessment, Cascade, CascadeModel, NoEvidence
from calibrant.core import ConfigurationError, Limits, Usage
from calibrant.inference import Classifier, RetryPolicy
from calibrant.testing import FakeClient, fake_response
from fault_server import FaultServer

LABELS = ["cat", "dog"]


Say = Callable[[Answered], float | Assessment | NoEvidence | None]


class Told:
    """Confidence method with values that a test sets; the model's own confidence by default.

    Its native unit is the logarithm. `calls` is what every assessment takes.
    """

    name = "told"

    def __init__(
        self,
        say: Say = lambda answered: answered.prediction.confidence,
        *,
        default_threshold: float = 0.7,
        needs_tokens: bool = False,
        top_logprobs: int = 0,
        calls: int = 0,
        about: str = "",
    ) -> None:
        self.default_threshold = default_threshold
        self.needs_tokens = needs_tokens
        self.top_logprobs = top_logprobs
        self.asked: list[Answered] = []
        self.closed = 0
        self.makes_calls = calls > 0
        self._calls, self._about = calls, about
        self._say = say if callable(say) else lambda answered: say[answered.classifier.client.name]

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the confidence that the test has set."""
        self.asked.append(answered)
        said = self._say(answered)
        if isinstance(said, NoEvidence | Assessment):
            return said
        usage = Usage(prompt_tokens=100 * self._calls)
        if said is None:
            return NoEvidence(reason="nothing was told", usage=usage, attempts=self._calls)
        native = math.log(said) if said > 0 else -math.inf
        return Assessment(confidence=said, native=native, usage=usage, attempts=self._calls)

    def to_confidence(self, native: float) -> float:
        """Return the exponential."""
        if not native <= 0:
            raise ConfigurationError(f"Expected a logarithm of at most 0, got {native!r}.")
        return math.exp(native)

    def describe(self) -> Mapping[str, Any]:
        """Return the settings that the test has set."""
        return {"about": self._about}

    def close(self) -> None:
        """Count the calls of close."""
        self.closed += 1


def answer(label: str, probability: float, *, tokens: int = 0, cost: float | None = None) -> dict[str, Any]:
    """Return an OpenAI-shaped answer of that many prompt tokens and that cost."""
    other = next(one for one in LABELS if one != label)
    response = fake_response(label, LABELS, {label: probability, other: 1 - probability})
    response["usage"] = {"prompt_tokens": tokens, "completion_tokens": 0}
    if cost is not None:
        response["_hidden_params"] = {"response_cost": cost}
    return response


REFUSAL = {
    "choices": [{"message": {"refusal": "I would rather not.", "content": None}, "finish_reason": "stop"}]
}
NONSENSE = {"choices": [{"message": {"content": "It is a cat."}, "finish_reason": "stop"}]}


@dataclass
class Built:
    """A cascade with its models and its method."""

    cascade: Cascade
    clients: list[FakeClient]
    classifiers: list[Classifier]
    method: Any
    models: list[CascadeModel] = field(default_factory=list)

    @property
    def calls(self) -> list[int]:
        """Number of calls to every model."""
        return [len(client.requests) for client in self.clients]


Build = Callable[..., Built]


@pytest.fixture
def told() -> type[Told]:
    """Return the class of the method whose confidences a test sets."""
    return Told


@pytest.fixture
def say() -> Callable[..., dict[str, Any]]:
    """Return a function that makes an answer with a usage."""
    return answer


@pytest.fixture
def refusal() -> dict[str, Any]:
    """Return an answer that refuses."""
    return REFUSAL


@pytest.fixture
def nonsense() -> dict[str, Any]:
    """Return an answer without a label."""
    return NONSENSE


@pytest.fixture
def build() -> Build:
    """Return a function that builds a cascade of models that answer as given.

    An answer is a rule as `FakeClient` takes it, or what is said to every text. ``models`` are settings of
    every `CascadeModel`, ``classifiers`` those of every `Classifier`, ``client`` of all clients.
    """

    def make(
        *answers: Any,
        method: Any = None,
        models: Sequence[Mapping[str, Any]] | None = None,
        classifiers: Sequence[Mapping[str, Any]] | None = None,
        client: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Built:
        clients = [
            FakeClient(LABELS, one, name="abcdefgh"[number], **client or {})
            if callable(one) or (isinstance(one, Mapping) and "choices" not in one)
            else FakeClient(LABELS, {}, default=one, name="abcdefgh"[number], **client or {})
            for number, one in enumerate(answers)
        ]
        defaults: dict[str, Any] = {"field": "category", "retry": RetryPolicy(attempts=1), "limits": Limits()}
        own = classifiers or [{}] * len(clients)
        asked = [
            Classifier(model=fake, labels=LABELS, **{**defaults, **settings})
            for fake, settings in zip(clients, own, strict=True)
        ]
        listed = [
            CascadeModel(classifier=classifier, **settings)
            for classifier, settings in zip(asked, models or [{}] * len(asked), strict=True)
        ]
        method = Told() if method is None else method
        return Built(
            cascade=Cascade(listed, method=method, **options),
            clients=clients,
            classifiers=asked,
            method=method,
            models=listed,
        )

    return make


async def no_wait(_seconds: float) -> None:
    """Replace sleeping."""


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[FaultServer, Classifier]]]:
    """Return a function that starts a server, and a classifier that calls it; all stop with the test."""
    with ExitStack() as running:

        def start(
            name: str, *, limits: Limits | None = None, retry: RetryPolicy | None = None, **options: Any
        ) -> tuple[FaultServer, Classifier]:
            server = running.enter_context(FaultServer(LABELS, **options))
            classifier = Classifier(
                model=f"hosted_vllm/{name}",
                labels=LABELS,
                field="category",
                options={"api_base": server.api_base, "api_key": "k"},
                space="masked",
                retry=retry or RetryPolicy(sleep=no_wait),
                limits=limits,
            )
            running.callback(classifier.close)
            return server, classifier

        yield start
