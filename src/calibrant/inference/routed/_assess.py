"""What an answer is worth, and whether another provider is asked for a better one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from calibrant.core._completion import Completion, CompletionRequest
from calibrant.core._prediction import Usage
from calibrant.inference._embeddings import CachedEmbedder
from calibrant.inference.routed._helper import Helper
from calibrant.inference.routed._question import question_of, text_of
from calibrant.routing._cascade import CascadeRouter
from calibrant.routing._gate import QualityGate
from calibrant.routing._judge import JUDGE_FORMAT, judge_messages, read_judgement
from calibrant.routing._ladder import Ladder
from calibrant.routing._quality import answer_quality

_LOG = logging.getLogger("calibrant")

Quality: TypeAlias = Callable[[Completion], float | None]
"""What an answer is worth, in [0, 1]; None where that is not known."""


class Assessor(Protocol):
    """Says what answers are worth."""

    def ladder(self) -> Ladder | None:
        """Return what decides about the answers to one request; None where the first one is taken."""
        ...

    async def worth(
        self, request: CompletionRequest, completion: Completion, *, alone: bool, paid: list[Usage]
    ) -> float | None:
        """Return the worth of an answer; None where it is not known.

        Parameters
        ----------
        request : CompletionRequest
            What was asked.
        completion : Completion
            What was answered.
        alone : bool
            Whether it is the only answer and stays so, and is taken whatever it is worth.
        paid : list of Usage
            What finding out took is added to it.
        """
        ...


@dataclass(frozen=True)
class PlainAssessor:
    """Takes the first answer.

    Attributes
    ----------
    quality : callable or None
        What to learn about it.
    """

    quality: Quality | None = None

    def ladder(self) -> Ladder | None:
        """Return nothing."""
        return None

    async def worth(
        self,
        request: CompletionRequest,  # noqa: ARG002
        completion: Completion,
        *,
        alone: bool,  # noqa: ARG002
        paid: list[Usage],  # noqa: ARG002
    ) -> float | None:
        """Return what the function says."""
        return None if self.quality is None else self.quality(completion)


@dataclass(frozen=True)
class CascadeAssessor:
    """Judges as a cascade does: a model, or else the user's function, or else the heuristic.

    Attributes
    ----------
    router : CascadeRouter
        Its settings and its heuristic.
    judge : Helper or None
        The model.
    quality : callable or None
        The user's function.
    """

    router: CascadeRouter
    judge: Helper | None = None
    quality: Quality | None = None

    def ladder(self) -> Ladder | None:
        """Return the cascade's own."""
        return self.router.ladder()

    async def worth(
        self, request: CompletionRequest, completion: Completion, *, alone: bool, paid: list[Usage]
    ) -> float | None:
        """Return what the judge says; a judge without a usable reply gives way to the others."""
        found = None
        if self.judge is not None and not alone and completion.text.strip():
            found = await self._judged(self.judge, request, completion, paid)
        if found is None and self.quality is not None:
            found = self.quality(completion)
        if found is not None:
            return found
        assessed = self.router.assess(
            completion.text, finish_reason=completion.finish_reason, refusal=completion.refusal
        )
        return assessed.score

    async def _judged(
        self, judge: Helper, request: CompletionRequest, completion: Completion, paid: list[Usage]
    ) -> float | None:
        messages = judge_messages(question_of(request.messages), completion.text)
        reply = await judge.ask(messages, JUDGE_FORMAT, paid=paid)
        if reply is None:
            return None
        found = read_judgement(reply)
        if found is None:
            judge.useless(reply)
        return found


@dataclass(frozen=True)
class GateAssessor:
    """Compares an answer with its question.

    Attributes
    ----------
    gate : QualityGate
        Its threshold.
    embedder : CachedEmbedder
        Where the vectors come from.
    """

    gate: QualityGate
    embedder: CachedEmbedder

    def ladder(self) -> Ladder | None:
        """Return the gate's own."""
        return self.gate.ladder()

    async def worth(
        self,
        request: CompletionRequest,
        completion: Completion,
        *,
        alone: bool,
        paid: list[Usage],  # noqa: ARG002
    ) -> float | None:
        """Return the cosine of both, in [-1, 1]; None, which passes, where they cannot be compared."""
        if alone:
            return None
        query, answer = await asyncio.gather(
            self.embedder.embed_one(text_of(request.messages)), self.embedder.embed_one(completion.text)
        )
        return self.gate.similarity(query, answer)


def heuristic(completion: Completion) -> float | None:
    """Return how sound an answer looks by itself."""
    return answer_quality(
        completion.text, finish_reason=completion.finish_reason, refusal=completion.refusal
    ).score


def guarded(quality: Quality) -> Quality:
    """Return the user's function so that it may fail: an answer it has no use for is not judged."""
    warned = False

    def judged(completion: Completion) -> float | None:
        nonlocal warned
        try:
            found: object = quality(completion)
        except Exception as error:  # noqa: BLE001 (the user's function: anything may come)
            problem: object = error
        else:
            if found is None:
                return None
            if isinstance(found, int | float) and not isinstance(found, bool) and 0.0 <= found <= 1.0:
                return float(found)
            problem = found
        if not warned:
            warned = True
            _LOG.warning(
                "Expected a number in [0, 1] or None of the quality function, got %r; such an answer is not judged.",
                problem,
            )
        return None

    return judged
