"""Client of several providers, ordered by a strategy, with fallbacks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from calibrant.core._completion import Client, ClientTraits, Completion, CompletionRequest
from calibrant.core._errors import ConfigurationError, ContextLengthError
from calibrant.core._prediction import LogprobSpace, Usage
from calibrant.inference._embeddings import CachedEmbedder, Embedder
from calibrant.inference.routed._assess import (
    DriftWatch,
    Helper,
    HelperStats,
    Quality,
    guarded,
    has_tools,
    heuristic,
    question_of,
    text_of,
    tokens_of,
)
from calibrant.inference.routed._provider import (
    COOLDOWN_SECONDS,
    Breaker,
    FallbackOrder,
    Provider,
    ProviderAnswer,
    ProviderFailure,
    ProviderStats,
    RoutedProvider,
    check_helper,
    check_parts,
    checked_providers,
    common_space,
    final_error,
    identity_of,
    is_rate_limit,
)
from calibrant.metrics._validation import check_number
from calibrant.routing._coherence import CoherenceMonitor, QualityGate
from calibrant.routing._protocol import Observation, Router, RoutingRequest
from calibrant.routing._replies import (
    JUDGE_FORMAT,
    TRIAGE_FORMAT,
    judge_messages,
    read_judgement,
    read_tier,
    triage_messages,
)
from calibrant.routing._strategies import CascadeRouter, TriageRouter, doubtful, unexplored


class RoutedClient:
    """Client of several providers, in the order of a routing strategy, with fallbacks.

    Every request asks the router for an order and then one provider after the other until there is an
    answer; whatever came of each call, the router learns. It can be used wherever a client can.

    **Failures.** A call that fails, or whose answer cannot be read or is empty, goes on to the next provider; so
    does one that is too long for a provider, which is not held against it. A provider that keeps failing is
    left out for a while (see `allowed_failures`); then a single call finds out whether it is back. Under
    ``ema``, ``thompson`` and ``bandit`` that call comes first, once, whatever the order; under the others, when it
    is its turn. Under ``ema``, which never explores, so does one call to each provider that nothing is known
    of, or that failed when an earlier process asked it last. Where all are left out, the one whose time ends
    first is asked all the same, unless it has named the time itself (``Retry-After``): then the error says how
    long to wait. When nobody answers, the error may be retried if one provider's may, and counts as one that
    every call would meet only if all providers' do. Other exceptions pass, and a call that is cancelled teaches
    nothing.

    **Full providers.** Under ``ema``, ``thompson`` and ``bandit`` a provider with no free place is passed over
    while another has one; where all are full, the first choice is waited for. Under the other strategies the
    order is the user's, often for the sake of money, and a full provider is waited for. Only who is asked is learnt
    from, and waiting is no part of the latency.

    **Quality.** Under ``cascade``, or with a `gate`, answers that are not good enough go on to the next
    provider, and the best one is returned in the end. Requests that offer tools are never judged.

    **What is returned** is the provider's own response, or a `Completion` where that does not tell the truth: where
    more was paid for it (answers turned down, triage, judge), where its price is the declared one, so that budgets
    count everything; where its rate limit is used up, which concerns that provider alone; and where providers
    differ in space. Requests with tools keep the response.

    **Log-probabilities.** Providers may report them in different spaces. Then `space` is ``mixed``, every answer says
    what its own are (`Completion.space`), and is read as if its provider had been asked alone. Confidence is then
    another quantity from row to row: thresholds and calibrators belong to the mix of providers they were fitted on,
    more so than with providers of one space, and `calibrant.calibration.Fingerprint` keeps the two apart. To
    read all alike, set `Provider.space`, where a client's own claim is wrong.

    Parameters
    ----------
    providers : sequence of Provider
        Providers with unique names.
    router : Router
        The strategy, for the same names; `calibrant.inference.SharedRouter` shares what it learns.
    gate : QualityGate, optional
        Turns down answers that are far from their question. Not for ``cascade`` and ``bandit``, and without
        effect where there is one provider.
    embedder : CachedEmbedder or Embedder, optional
        Turns texts into vectors; ``bandit``, `gate` and `coherence` need it. It belongs to this client.
    judge : Client, optional
        Grades answers for a cascade with ``classifier_mode="judge"``, which needs it. Where it is one of the
        providers' clients, a call costs what is declared there.
    triage : Client, optional
        Sorts requests for ``triage``, which needs it; the same.
    coherence : CoherenceMonitor, optional
        Watches answers in the background; its penalty is part of the provider's next observation. Not for
        ``cascade`` and ``bandit``.
    quality : callable, optional
        Takes a `Completion` and returns its quality, in [0, 1], or None. A bandit learns from it, by
        default from `calibrant.routing.answer_quality`; a cascade without a judge decides by it.
    task : str, optional
        Name of the task, for the strategy ``task``.
    cooldown_seconds : float, default 5
        How long a provider is left out at first, above 0; doubled every time in a row, up to 5 minutes. A rate
        limit's own time counts instead, up to an hour; for faults that every call would meet (status 401, 403, 404, no
        credit) it is 5 minutes.
    allowed_failures : int, default 3
        Failures in a row after which a provider is left out, at least 1; a rate limit or a fault that every call
        would meet needs one.
    call_seconds : float, optional
        How long a provider may take before the next one is asked. Without it a provider's own timeout counts. A
        deadline around the whole client (`Limits.call_seconds`) cancels instead, and teaches nothing.
    helper_seconds : float, default 5
        How long triage and judge may take; after that a request goes on without them.
    owned : bool, default False
        True if `close` also closes the clients of providers, judge and triage.
    clock : function, default time.monotonic
        Returns seconds; tests replace it.

    Attributes
    ----------
    name : str
        ``routed:STRATEGY(NAMES)``.
    space : LogprobSpace
        That of all providers; ``mixed`` where they differ.
    endpoint : str
        The providers' models, addresses and options as JSON, free of credentials: what is learnt changes
        nothing about it, so that stored predictions stay valid.
    in_process : bool
        True if every provider's calls are computed in this process.
    providers : tuple of Provider
        As given.
    router : Router
        As given.

    Raises
    ------
    ConfigurationError
        There is no provider, one is there twice, they differ from the router's, a number is out of range, or something
        that the strategy needs is missing or would have no effect.

    Examples
    --------
    >>> from calibrant.core import ProviderError
    >>> from calibrant.inference import Classifier
    >>> from calibrant.routing import ThompsonRouter
    >>> from calibrant.testing import FakeClient
    >>> down = FakeClient(["cat", "dog"], lambda text: ProviderError("is down", provider="a", retryable=True))
    >>> works = FakeClient(["cat", "dog"], {"purrs": "cat"})
    >>> model = RoutedClient([Provider("a", down), Provider("b", works)], router=ThompsonRouter(["a", "b"]))
    >>> Classifier(model=model, labels=["cat", "dog"], field="category").classify("purrs").label
    'cat'
    """

    def __init__(  # noqa: PLR0913 (keyword-only options)
        self,
        providers: Sequence[Provider],
        *,
        router: Router,
        gate: QualityGate | None = None,
        embedder: CachedEmbedder | Embedder | None = None,
        judge: Client | None = None,
        triage: Client | None = None,
        coherence: CoherenceMonitor | None = None,
        quality: Quality | None = None,
        task: str | None = None,
        cooldown_seconds: float = COOLDOWN_SECONDS,
        allowed_failures: int = 3,
        call_seconds: float | None = None,
        helper_seconds: float = 5.0,
        owned: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_number("helper_seconds", helper_seconds, "(0, inf)")
        if call_seconds is not None:
            check_number("call_seconds", call_seconds, "(0, inf)")
        self.providers = checked_providers(providers, router)
        self.router = router
        self.space = common_space(self.providers)
        self.name = f"routed:{router.strategy}({', '.join(provider.name for provider in self.providers)})"
        self.endpoint = identity_of(self.providers)
        self.in_process = all(ClientTraits.of(provider.client).in_process for provider in self.providers)
        self._policy = getattr(router, "router", router)  # inside one that shares what it learns
        self._embedder = CachedEmbedder(embedder) if isinstance(embedder, Embedder) else embedder
        check_parts(router, self._embedder, gate=gate, coherence=coherence)
        self._cascade = self._policy if isinstance(self._policy, CascadeRouter) else None
        self._helpers = self._open_helpers(judge, triage, seconds=helper_seconds, clock=clock)
        if router.traits.judges_answers and self._cascade is None:  # which judges them by its own window
            quality = quality or heuristic
        self._gate = gate
        self._quality = quality and guarded(quality)
        self._drift = None
        if coherence is not None and self._embedder is not None:
            self._drift = DriftWatch(coherence, self._embedder)
        self._task = task
        self._owned = owned
        self._lock = threading.Lock()  # around the router, which one thread may use at a time
        self._doubtful = set(doubtful(router))
        self._untried = deque([*unexplored(router), *self._doubtful])
        is_mixed = self.space is LogprobSpace.MIXED
        self._members: dict[str, RoutedProvider] = {}
        for provider in self.providers:
            breaker = Breaker(
                allowed_failures=allowed_failures, cooldown_seconds=cooldown_seconds, clock=clock
            )
            self._members[provider.name] = RoutedProvider(
                provider, breaker=breaker, clock=clock, call_seconds=call_seconds, mixed=is_mixed
            )

    def _open_helpers(
        self, judge: Client | None, triage: Client | None, *, seconds: float, clock: Callable[[], float]
    ) -> dict[str, Helper]:
        judged = self._cascade is not None and self._cascade.classifier_mode == "judge"
        check_helper("judge", judge, wanted=judged, why="a cascade with classifier_mode='judge'")
        grades = isinstance(self._policy, TriageRouter)
        check_helper("triage", triage, wanted=grades, why="the strategy 'triage'")
        prices = {id(provider.client): provider.cost for provider in self.providers}
        return {
            role: Helper(client, role=role, seconds=seconds, clock=clock, cost=prices.get(id(client)))
            for role, client in (("judge", judge), ("triage", triage))
            if client is not None
        }

    async def complete(self, request: CompletionRequest) -> object:
        """Return the first accepted answer of the providers, or the best one if none is accepted.

        Raises
        ------
        ProviderError
            Nobody answered; the message says why, provider by provider.
        ContextLengthError
            The request is too long for all of them.
        """
        paid: list[Usage] = []
        tools = has_tools(request)
        routing = await self._routing(request, tools=tools, paid=paid)
        fallbacks = FallbackOrder(self._ordered(routing), learning=self.router.traits.learns_order)
        judge = self._cascade or self._gate
        ladder = None if judge is None else judge.ladder()
        answers: list[ProviderAnswer] = []
        failures: list[ProviderFailure] = []
        empty_is_failure = not tools and self._cascade is None  # which judges them
        while (lease := await fallbacks.next()) is not None:
            outcome = await lease.member.ask(request, lease, empty_is_failure=empty_is_failure)
            if isinstance(outcome, ProviderFailure):
                failures.append(outcome)
                if not isinstance(outcome.error, ContextLengthError):  # which says nothing about the provider
                    self._learn(outcome, routing)
                continue
            worth = None
            if not tools:
                alone = fallbacks.is_over and not answers
                worth = await self._worth(request, outcome.completion, alone=alone, paid=paid)
            answers.append(outcome)
            self._learn(outcome, routing, worth)
            if ladder is None or ladder.ends_with(worth, tokens=_tokens(outcome, routing)):
                break
            if not fallbacks.is_over:
                outcome.member.count("escalations")
        calls = (
            len(paid) + sum(answer.calls for answer in answers) + sum(failure.calls for failure in failures)
        )
        if not answers:
            error = final_error(failures, fallbacks.passed, provider=self.name)
            error.calls = calls
            raise error
        best = answers[-1 if ladder is None or ladder.best is None else ladder.best]
        return _final_response(best, answers, paid, calls=calls, tools=tools)

    def hidden(self, text: str) -> str:
        """Return `text` with the secrets of all providers removed."""
        for provider in self.providers:
            hide = ClientTraits.of(provider.client).hidden
            text = text if hide is None else hide(text)
        return text

    def stats(self) -> dict[str, ProviderStats]:
        """Return the counts of every provider's calls, in the order of declaration."""
        return {name: member.stats() for name, member in self._members.items()}

    def helper_stats(self) -> dict[str, HelperStats]:
        """Return the call counts of ``judge`` and ``triage``, if configured."""
        return {role: helper.stats for role, helper in self._helpers.items()}

    def close(self) -> None:
        """Close the router's state and the embedder, and with ``owned`` every client."""
        with contextlib.ExitStack() as stack:  # closes everything, whatever one of them raises
            if self._owned:
                clients = [provider.client for provider in self.providers]
                clients += [helper.client for helper in self._helpers.values()]
                for client in {id(client): client for client in clients}.values():
                    stack.callback(client.close)
            for part in (self._embedder, self.router):
                close = getattr(part, "close", None)
                if close is not None:
                    stack.callback(close)
            if self._drift is not None:
                stack.callback(self._drift.close)

    async def _routing(self, request: CompletionRequest, *, tools: bool, paid: list[Usage]) -> RoutingRequest:
        text = text_of(request.messages)
        embedding = tier = None
        if self.router.traits.needs_embedding and self._embedder is not None:
            embedding = await self._embedder.embed_one(text)
        if isinstance(self._policy, TriageRouter) and text.strip():
            messages = triage_messages(text, self._policy.tiers)
            tier = await self._helpers["triage"].ask(messages, TRIAGE_FORMAT, read_tier, paid=paid)
        return RoutingRequest(
            embedding=embedding,
            tier=tier,
            task=self._task,
            has_tools=tools,
            tokens=tokens_of(request.messages),
        )

    async def _worth(
        self, request: CompletionRequest, completion: Completion, *, alone: bool, paid: list[Usage]
    ) -> float | None:
        """Return the quality of an answer; None if unknown. If it is `alone`, no judge or embedder is asked."""
        if self._gate is not None and self._embedder is not None:
            if alone:
                return None
            texts = (text_of(request.messages), completion.text)
            return self._gate.similarity(*await asyncio.gather(*map(self._embedder.embed_one, texts)))
        worth = None
        if "judge" in self._helpers and not alone and completion.text.strip():
            messages = judge_messages(question_of(request.messages), completion.text)
            worth = await self._helpers["judge"].ask(messages, JUDGE_FORMAT, read_judgement, paid=paid)
        if worth is None and self._quality is not None:
            worth = self._quality(completion)
        if worth is None and self._cascade is not None:
            worth = heuristic(completion, self._cascade.assess)
        return worth

    def _ordered(self, routing: RoutingRequest) -> list[RoutedProvider]:
        """Return the providers in the router's order, an untried one first, too small context windows last."""
        with self._lock:
            order = self.router.order(routing)
            first = self._untried.popleft() if self._untried else None
        if not order or not self._members.keys() >= set(order):
            got = ", ".join(map(repr, order)) or "none"
            raise ConfigurationError(
                f"Expected the router to order {', '.join(self._members)}, got {got:.80}."
            )
        order = sorted(order, key=lambda name: (not self._fits(name, routing), name != first))  # stable
        return [self._members[name] for name in order]

    def _fits(self, name: str, routing: RoutingRequest) -> bool:
        window = self._members[name].provider.context_window
        return window is None or routing.tokens is None or routing.tokens <= window

    def _learn(
        self, call: ProviderAnswer | ProviderFailure, routing: RoutingRequest, worth: float | None = None
    ) -> None:
        """Pass the outcome of a call to the router; `worth` is the quality of the answer."""
        name = call.member.name
        outcome: dict[str, Any] = {"success": isinstance(call, ProviderAnswer)}
        if isinstance(call, ProviderFailure):
            outcome["rate_limited"] = is_rate_limit(call.error)
        else:
            quality = None
            if worth is not None:
                quality = min(1.0, max(0.0, worth))
            recovered = call.recovered or name in self._doubtful
            self._doubtful.discard(name)
            outcome |= {"quality": quality, "cost": call.completion.usage.cost, "recovered": recovered}
        observation = Observation(
            provider=name,
            latency_seconds=call.latency_seconds,
            context=routing.embedding,
            penalty=0.0 if self._drift is None else self._drift.penalty(name),
            request=routing,
            **outcome,
        )
        with self._lock:
            self.router.record(observation)
        if self._drift is not None and isinstance(call, ProviderAnswer):
            self._drift.look_at(name, call.completion.text)


def _tokens(answer: ProviderAnswer, routing: RoutingRequest) -> int:
    """Return the tokens of a call, estimated if the provider reports none."""
    usage = answer.completion.usage
    counted = usage.prompt_tokens + usage.completion_tokens
    return counted or (routing.tokens or 0) + len(answer.completion.text) // 4


def _final_response(
    best: ProviderAnswer, answers: Sequence[ProviderAnswer], paid: Sequence[Usage], *, calls: int, tools: bool
) -> object:
    """Return the best response, as a completion if usage or calls must be added and no tools are offered."""
    others = [answer.completion.usage for answer in answers if answer is not best]
    if tools or not (calls > 1 or best.adds):
        return best.response
    usage = sum([*others, *paid], best.completion.usage)
    return replace(best.completion, usage=usage, calls=calls)
