"""Routing strategies for litellm's Router and proxy, which choose among allowed deployments."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.inference._embeddings import CachedEmbedder
from calibrant.inference._loop import run_sync
from calibrant.inference._shared_router import SharedRouter
from calibrant.metrics._validation import check_number
from calibrant.routing._protocol import Observation, ProviderStanding, Router, RoutingRequest
from calibrant.routing._reliability import unexplored
from calibrant.store._router_state import RouterState

# Importing litellm downloads a price list unless told not to.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import litellm
from litellm.integrations.custom_logger import CustomLogger
from litellm.types.router import CustomRoutingStrategyBase

_log = logging.getLogger(__name__)

_SEAMS: Final = ("_get_routing_context", "async_get_available_deployment", "get_available_deployment")
_ASKED: Final = "calibrant_asked"  # in a request's metadata, which goes along with its retries
_REDACTED: Final = "redacted-by-litellm"
# 401 to 404 are about the deployment's key, price plan and model; a request cannot be at fault.
_THEIR_FAULT: Final = frozenset({401, 402, 403, 404, 407, 408, 409, 425, 429})
# litellm's own name for strategies that are shown the messages; what it stands for is never built.
_SHOWN_MESSAGES: Final = "latency-based-routing"


class _Choosing:
    """Mixin for the class of a litellm router; replaces the last step, the choice of a deployment.

    Mixed into the class of a router, whose attributes the object shares.
    """

    strategy: LiteLLMRoutingStrategy

    def _get_routing_context(self, *_: object, **__: object) -> tuple[str, LiteLLMRoutingStrategy]:
        return _SHOWN_MESSAGES, self.strategy


class _Group:
    """State of the deployments of one model group."""

    def __init__(self, policy: Router) -> None:
        self.policy = policy
        self.failed: dict[str, float] = {}  # deployment -> when it last failed, or was tried after that
        self.tried: set[str] = set()  # those of them that have been tried again
        self.untried = dict.fromkeys(unexplored(policy))  # to be asked once


class LiteLLMRoutingStrategy(CustomRoutingStrategyBase, CustomLogger):  # type: ignore[misc]
    """Routing strategy for the deployments of ``litellm.Router``.

    Which deployments may be asked stays litellm's business: cooldowns, aliases, tags, teams, ``order``,
    pre-call checks, deployments asked for by their id; so do retries and fallbacks. Every model group has a
    strategy of its own, which learns from the callbacks of litellm: latency, cost, failures and rate limits.
    Errors that are the request's own fault and answers out of litellm's cache teach nothing.

    A retry goes to a deployment that this request has not been sent to, if there is one that may be asked.
    A deployment whose latest call failed is tried again once in `retry_seconds`, if litellm lets it: a strategy
    that does not explore, such as `EMARouter`, would leave it out for ever. So would it one that nothing is
    known of, which is asked once.

    Callbacks are global in litellm: two routers whose deployments have equal ids learn from each other's calls.

    Parameters
    ----------
    policy : callable
        Makes the strategy of a model group from the ids of its deployments, such as `ThompsonRouter` itself or
        ``lambda ids: EMARouter(ids, alpha=0.2)``. It is called again when a group grows.
    state : str or Path, optional
        SQLite file, or SQLAlchemy URL of a database, where what is learnt is kept and shared with
        other processes, of each model group under the scope ``litellm/GROUP``; None keeps it in memory.
    embedder : CachedEmbedder, optional
        Embeds the last message of the user for strategies that look at the text. Where litellm redacts
        messages, nothing is learnt about texts. Close it yourself.
    quality : callable, optional
        Called with litellm's ``kwargs`` and response of an answered call; returns what the answer is worth, in
        [0, 1], or None. `BanditRouter` learns nothing from answers without it.
    retry_seconds : float, default 60
        Seconds after which a failing deployment is tried again; above 0.
    clock : callable, default `time.monotonic`
        Returns seconds.

    Raises
    ------
    ConfigurationError
        `retry_seconds` is out of its range, or `state` is no place that can be used.

    Examples
    --------
    A whole program is `examples/routing/litellm_router.py`; in short:

    >>> import litellm
    >>> from calibrant.adapters.litellm import LiteLLMRoutingStrategy
    >>> from calibrant.routing import ThompsonRouter
    >>> server = {"model": "openai/m", "api_key": "x"}
    >>> router = litellm.Router(
    ...     model_list=[
    ...         {"model_name": "m", "litellm_params": {**server, "api_base": f"http://127.0.0.1:{port}/v1"}}
    ...         for port in (8001, 8002)
    ...     ]
    ... )
    >>> strategy = LiteLLMRoutingStrategy(ThompsonRouter, state="learnt.json").attach(router)

    From here on ``router.completion(model="m", ...)`` asks whom the strategy chooses. At the end, and to see
    what was learnt meanwhile:

    >>> strategy.standings()
    {}
    >>> strategy.close()

    For the proxy, write ``strategy = LiteLLMRoutingStrategy(ThompsonRouter, state="learnt.json")`` into
    ``my_routing.py`` beside its ``config.yaml``, and name it there as a callback; it attaches itself with the
    first request::

        litellm_settings:
          callbacks: my_routing.strategy

    ``calibrant router stats --state learnt.json`` shows what was learnt.
    """

    def __init__(
        self,
        policy: Callable[[Sequence[str]], Router],
        *,
        state: str | Path | None = None,
        embedder: CachedEmbedder | None = None,
        quality: Callable[[Mapping[str, Any], Any], float | None] | None = None,
        retry_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        check_number("retry_seconds", retry_seconds, "(0, inf)")
        if state is not None:
            RouterState(state).close()  # what is wrong with its name shows now, not in every request
        # litellm takes loggers of one class for the same one unless a public attribute tells them apart.
        self.identity = uuid.uuid4().hex
        self._policy = policy
        self._state = state
        self._embedder = embedder
        self._quality = quality
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._lock = threading.RLock()
        self._groups: dict[str, _Group] = {}
        self._router: Any = None
        self._choosing: Any = None
        self._warned = False

    def attach(self, router: Any) -> LiteLLMRoutingStrategy:  # noqa: ANN401  (litellm.Router)
        """Attach the strategy to a router, to choose its deployments and learn from its calls.

        Parameters
        ----------
        router : litellm.Router
            Replaces the one before, if any; what has been learnt stays.

        Raises
        ------
        ConfigurationError
            `router` is no litellm router, or the installed litellm is incompatible.
        """
        missing = [name for name in _SEAMS if not callable(getattr(type(router), name, None))]
        if missing:
            raise ConfigurationError(
                f"Expected a litellm.Router, got {type(router).__name__} without {', '.join(missing)}: calibrant needs "
                "litellm 1.100 or a later release that it knows."
            )
        with self._lock:
            if router is not self._router:
                self._detach()
                kind = type("_ChoosingRouter", (_Choosing, type(router)), {"strategy": self})
                choosing: Any = object.__new__(kind)
                choosing.__dict__ = (
                    router.__dict__
                )  # what the router learns of its deployments holds here too
                self._router, self._choosing = router, choosing
            router.set_custom_routing_strategy(self)
            litellm.logging_callback_manager.add_litellm_callback(self)
        return self

    def close(self) -> None:
        """Restore the router's own selection, stop learning, and store the learned state."""
        litellm.logging_callback_manager.remove_callback_from_all_lists(self)
        with self._lock:
            self._detach()
            groups, self._groups = self._groups, {}
        for group in groups.values():
            _close(group.policy)

    def standings(self) -> dict[str, tuple[ProviderStanding, ...]]:
        """Return the learned statistics of the deployments, by model group."""
        with self._lock:
            return {name: group.policy.standings() for name, group in self._groups.items()}

    # --- what litellm's Router calls ---------------------------------------------------------------

    async def async_get_available_deployment(self, model: str, **call: Any) -> Any:  # noqa: ANN401
        """Return the chosen deployment among those litellm allows, an element of the model list."""
        router = self._attached()
        call["request_kwargs"] = {} if call.get("request_kwargs") is None else call["request_kwargs"]
        return await type(router).async_get_available_deployment(router, model=model, **call)

    def get_available_deployment(self, model: str, **call: Any) -> Any:  # noqa: ANN401
        """Return the chosen deployment among those litellm allows, an element of the model list."""
        router = self._attached()
        call["request_kwargs"] = {} if call.get("request_kwargs") is None else call["request_kwargs"]
        return type(router).get_available_deployment(router, model=model, **call)

    # --- the last step of its selection ------------------------------------------------------------

    async def async_get_available_deployments(self, **call: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return one of the allowed deployments, given litellm's keyword arguments."""
        return self._chosen_deployment(await self._embedding_of(call), **call)

    def get_available_deployments(self, **call: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return one of the allowed deployments, given litellm's keyword arguments."""
        return self._chosen_deployment(self._embedding_now(call), **call)

    def _chosen_deployment(
        self,
        embedding: NDArray[np.float64] | None,
        *,
        model_group: str,
        healthy_deployments: list[dict[str, Any]],
        request_kwargs: Mapping[str, Any] | None = None,
        **_: object,
    ) -> dict[str, Any]:
        kwargs = request_kwargs or {}
        names = {str(one["model_name"]) for one in healthy_deployments}
        by_id = {str(one["model_info"]["id"]): one for one in healthy_deployments}
        request = RoutingRequest(embedding=embedding, has_tools=bool(kwargs.get("tools")))
        allowed = by_id.keys() - _tried_deployments(kwargs) or by_id.keys()
        with self._lock:
            self._attached()  # it may have been closed meanwhile
            group = self._group(names.pop() if len(names) == 1 else model_group, by_id)
            name = self._due_deployment(group, allowed)
            if name is None:
                name = next(one for one in group.policy.order(request) if one in allowed)
        _note_deployment(kwargs, name)
        return by_id[name]

    def _due_deployment(self, group: _Group, allowed: AbstractSet[str]) -> str | None:
        """Take a deployment due for a probe: never called, or its cooldown is over; None without one.

        The caller holds the lock.
        """
        for name in group.untried:
            if name in allowed:
                del group.untried[name]
                return name
        now = self._clock()
        for name, since in group.failed.items():
            if name in allowed and now - since >= self._retry_seconds:
                group.failed[name] = now
                group.tried.add(name)
                return name
        return None

    def _group(self, name: str, candidates: Mapping[str, Any]) -> _Group:
        """Return the state of a model group, with all candidates registered.

        The caller holds the lock.
        """
        group = self._groups.get(name)
        if group is not None and set(candidates) <= set(group.policy.providers):
            return group
        # A name that only aliases or wildcards know has no ids of its own.
        ids = dict.fromkeys([*map(str, self._router.get_model_ids(model_name=name)), *candidates])
        learnt = None
        if group is not None:
            learnt = group.policy.snapshot()
            _close(group.policy)
        policy = self._policy(list(ids))
        if learnt:
            policy.restore(learnt)
        grown = _Group(self._shared(name, policy))
        if group is not None:
            grown.failed = {one: since for one, since in group.failed.items() if one in ids}
            grown.tried = group.tried & ids.keys()
        self._groups[name] = grown
        return grown

    def _shared(self, name: str, policy: Router) -> Router:
        if self._state is None:
            return policy
        return SharedRouter(policy, RouterState(self._state, scope=f"litellm/{name}"))

    # --- what litellm's callbacks say --------------------------------------------------------------

    async def async_pre_call_hook(
        self,
        user_api_key_dict: object,  # noqa: ARG002
        cache: object,  # noqa: ARG002
        data: dict[str, Any],
        call_type: str,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Attach to the proxy's router at the first request."""
        router = getattr(sys.modules.get("litellm.proxy.proxy_server"), "llm_router", None)
        if router is not None and router is not self._router:
            self.attach(router)
        return data

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: object, start_time: datetime, end_time: datetime
    ) -> None:
        """Learn from a successful call."""
        if self._is_learnable(kwargs):
            self._learn(kwargs, response_obj, end_time - start_time, await self._embedding_of(kwargs))

    def log_success_event(
        self, kwargs: dict[str, Any], response_obj: object, start_time: datetime, end_time: datetime
    ) -> None:
        """Learn from a successful call."""
        if self._is_learnable(kwargs):
            self._learn(kwargs, response_obj, end_time - start_time, self._embedding_now(kwargs))

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: object, start_time: datetime, end_time: datetime
    ) -> None:
        """Learn from a failed call."""
        if self._is_learnable(kwargs, failed=True):
            context = await self._embedding_of(kwargs)
            self._learn(kwargs, response_obj, end_time - start_time, context, failure=kwargs["exception"])

    def log_failure_event(
        self, kwargs: dict[str, Any], response_obj: object, start_time: datetime, end_time: datetime
    ) -> None:
        """Learn from a failed call."""
        if self._is_learnable(kwargs, failed=True):
            context = self._embedding_now(kwargs)
            self._learn(kwargs, response_obj, end_time - start_time, context, failure=kwargs["exception"])

    def _is_learnable(self, kwargs: Mapping[str, Any], *, failed: bool = False) -> bool:
        """Return True for an uncached call of a known deployment, unless the request was at fault."""
        name = _deployment_of(kwargs)
        with self._lock:
            known = any(name in group.policy.providers for group in self._groups.values())
        fair = not failed or _is_deployment_fault(kwargs.get("exception"))
        return known and fair and not kwargs.get("cache_hit")

    def _learn(
        self,
        kwargs: Mapping[str, Any],
        response: object,
        duration: timedelta,
        context: NDArray[np.float64] | None,
        *,
        failure: object = None,
    ) -> None:
        name = _deployment_of(kwargs)
        quality = self._judged_quality(kwargs, response) if failure is None else None
        with self._lock:
            for group in self._groups.values():
                if name not in group.policy.providers:
                    continue
                if failure is None:
                    group.failed.pop(name, None)
                else:
                    group.failed[name] = self._clock()
                observation = Observation(
                    provider=name,
                    success=failure is None,
                    latency_seconds=max(duration.total_seconds(), 0.0),  # clocks may be set back
                    rate_limited=isinstance(failure, litellm.RateLimitError),
                    quality=quality,
                    cost=_cost_of(kwargs),
                    context=context,
                    recovered=failure is None and name in group.tried,
                )
                group.tried.discard(name)
                group.policy.record(observation)

    def _judged_quality(self, kwargs: Mapping[str, Any], response: object) -> float | None:
        if self._quality is None:
            return None
        try:
            quality = self._quality(kwargs, response)
            if quality is None or 0.0 <= quality <= 1.0:
                return quality
            why = f"expected quality in [0, 1] or None, got {quality!r}"
        except Exception as error:  # noqa: BLE001  (whoever judges may fail; the request is answered)
            why = f"{type(error).__name__}: {error}"
        if not self._warned:
            _log.warning("an answer could not be judged, nothing is learnt of its quality: %s", why)
            self._warned = True
        return None

    # --- the rest ----------------------------------------------------------------------------------

    async def _embedding_of(self, call: Mapping[str, Any]) -> NDArray[np.float64] | None:
        text = _text_of(call.get("messages"), call.get("input"))
        return None if self._embedder is None or text is None else await self._embedder.embed_one(text)

    def _embedding_now(self, call: Mapping[str, Any]) -> NDArray[np.float64] | None:
        return None if self._embedder is None else run_sync(self._embedding_of(call))

    def _attached(self) -> Any:  # noqa: ANN401
        if self._choosing is None:
            raise ConfigurationError(
                "Expected the strategy to be attached to its router: call attach(router)."
            )
        return self._choosing

    def _detach(self) -> None:
        """Restore the router's own selection; the caller holds the lock."""
        for name in ("get_available_deployment", "async_get_available_deployment"):
            if getattr(vars(self._router or self).get(name), "__self__", None) is self:
                delattr(self._router, name)
        self._router = self._choosing = None


def _close(policy: Router) -> None:
    close = getattr(policy, "close", None)
    if callable(close):
        close()


def _deployment_of(kwargs: Mapping[str, Any]) -> str | None:
    """Return the id of the called deployment; None if the call names none."""
    # Not the metadata: a retry writes its own deployment there before the first callback has read it.
    info = (kwargs.get("litellm_params") or {}).get("model_info") or {}
    return None if info.get("id") is None else str(info["id"])


def _tried_deployments(kwargs: Mapping[str, Any]) -> list[str]:
    """Return the deployments already tried for this request."""
    metadata = kwargs.get("metadata")
    noted = metadata.get(_ASKED) if isinstance(metadata, dict) else None
    # A caller may hand the same metadata over with request after request, or write anything there.
    if not isinstance(noted, dict) or noted.get("request") != kwargs.get("litellm_trace_id"):
        return []
    names = noted.get("deployments")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _note_deployment(kwargs: Mapping[str, Any], name: str) -> None:
    """Record that a deployment was tried for a request."""
    metadata = kwargs.get("metadata")
    if isinstance(metadata, dict):
        names = list(dict.fromkeys([*_tried_deployments(kwargs), name]))  # one trace may be of many requests
        metadata[_ASKED] = {"request": kwargs.get("litellm_trace_id"), "deployments": names}


def _is_deployment_fault(error: object) -> bool:
    """Return True if an error is the deployment's fault, not the request's."""
    status = getattr(error, "status_code", None)
    try:
        return status is not None and (int(status) >= 500 or int(status) in _THEIR_FAULT)
    except (TypeError, ValueError):
        return False


def _cost_of(kwargs: Mapping[str, Any]) -> float | None:
    cost = kwargs.get("response_cost")
    return float(cost) if isinstance(cost, int | float) and 0.0 <= cost < math.inf else None


def _text_of(messages: object, given: object) -> str | None:
    """Return the text of the last user message, or of the call's input; None if there is no text."""
    said = [one for one in messages if isinstance(one, Mapping)] if isinstance(messages, list) else []
    content = next((one.get("content") for one in reversed(said) if one.get("role") == "user"), given)
    if isinstance(content, list):
        parts = [
            one if isinstance(one, str) else one.get("text")
            for one in content
            if isinstance(one, str | Mapping)
        ]
        content = "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) and content.strip() and content != _REDACTED else None
