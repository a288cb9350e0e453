"""The ``[routing]`` section of a task file: providers and routing strategy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

import pydantic
from pydantic_core import PydanticCustomError

from calibrant.core._settings import (
    Amount,
    Count,
    Number,
    Section,
    Share,
    known_name,
    not_beside,
    register,
    wrong,
    wrong_at,
)
from calibrant.routing._bandit import BanditRouter
from calibrant.routing._base import FixedRouter, TallyRouter, TaskRouter
from calibrant.routing._protocol import RouterTraits
from calibrant.routing._strategies import CascadeRouter, EMARouter, ThompsonRouter, TriageRouter

STRATEGIES: Final[dict[str, type[TallyRouter[Any]]]] = {
    kind.strategy: kind
    for kind in (
        FixedRouter,
        EMARouter,
        ThompsonRouter,
        CascadeRouter,
        TaskRouter,
        TriageRouter,
        BanditRouter,
    )
}
"""Strategies by the name that ``routing`` of a task file has for them."""

_R = TypeVar("_R", bound=TallyRouter[Any])


def register_strategy(kind: type[_R]) -> type[_R]:
    """Make a strategy known to task files and to ``calibrant router``, under the name in its `strategy`.

    Parameters
    ----------
    kind : type
        A subclass of `FixedRouter` or of another strategy. Its `traits` say what it needs, and its class method
        ``from_settings`` makes one of a ``[routing]`` section.

    Returns
    -------
    type
        `kind`, so that this is a class decorator.

    Raises
    ------
    ConfigurationError
        Another strategy has the name.

    Examples
    --------
    >>> from calibrant.routing import FixedRouter, register_strategy
    >>> class LastFirst(FixedRouter):
    ...     strategy = "none"
    ...     def order(self, request=None):
    ...         return list(self.providers)[::-1]
    >>> try:
    ...     register_strategy(LastFirst)
    ... except ValueError as error:
    ...     print(str(error).partition(", got ")[2])
    'none', which is that of FixedRouter: name another one.
    """
    register(kind, kind.strategy, STRATEGIES)
    return kind


_Strategy = Annotated[str, known_name(STRATEGIES)]


def _readable(text: str) -> str:
    if not (text.strip() and text.isprintable()):
        raise wrong("Input should be text that can be read", "write a name")
    return text


_Name = Annotated[str, pydantic.AfterValidator(_readable)]
_OwnState = Annotated[_Name | None, not_beside("state")]
_Positive = Annotated[Number, pydantic.Field(gt=0)]
_Weight = Annotated[_Positive, pydantic.Field(le=1)]
_AtLeastOne = Annotated[Count, pydantic.Field(ge=1)]
_Problem: TypeAlias = tuple[tuple[str | int, ...], object, PydanticCustomError]


class CascadeRoutingSettings(Section):
    """The ``[routing.cascade]`` table: the cheapest provider first, the next one after a poor answer.

    Attributes
    ----------
    quality_threshold : float, default 0.5
        Quality in [0, 1] from which an answer is accepted.
    max_escalations : int, default 2
        Answers that may be turned down before the best one so far is taken.
    classifier_mode : str, default "heuristic"
        ``heuristic``, or ``judge``, which asks `judge_provider`.
    judge_provider : str or None
        The provider that judges answers; ``judge`` needs it.
    window_size : int or None
        Words, at least 4, in which to look for repetition; None takes the whole answer.
    max_cascade_tokens : int or None
        Tokens that all answers to a request may take together.
    cost_tiers : tuple of str or None
        Providers, the cheapest first; those not named follow as declared. None orders by `cost`.
    """

    quality_threshold: Share = 0.5
    max_escalations: Count = 2
    classifier_mode: Literal["heuristic", "judge"] = "heuristic"
    judge_provider: str | None = None
    window_size: Annotated[Count, pydantic.Field(ge=4)] | None = None
    max_cascade_tokens: _AtLeastOne | None = None
    cost_tiers: tuple[str, ...] | None = None


class TierSettings(Section):
    """The ``[routing.triage.tiers]`` table: the provider of each difficulty.

    Attributes
    ----------
    simple, medium, complex, expert : str or None
        A provider; a tier without one takes that of the next harder tier, or else of the next easier one.
    """

    simple: str | None = None
    medium: str | None = None
    complex: str | None = None
    expert: str | None = None


class TriageSettings(Section):
    """The ``[routing.triage]`` table: a cheap model grades the difficulty of a request.

    Attributes
    ----------
    triage_provider : str
        The provider that grades requests.
    tiers : TierSettings
        Provider of each tier; at least one.
    timeout_seconds : float, default 5
        Timeout of the triage call, in seconds.
    """

    triage_provider: str
    tiers: TierSettings
    timeout_seconds: _Positive = 5.0

    @pydantic.field_validator("tiers")
    @classmethod
    def _check_tiers(cls, tiers: TierSettings) -> TierSettings:
        if not tiers.model_dump(exclude_none=True):
            raise wrong("Input should name a provider for at least one tier", "write simple = 'NAME'")
        return tiers


class BanditSettings(Section):
    """The ``[routing.bandit]`` table, for ``routing = "bandit"``: LinUCB on an embedding of the request.

    Attributes
    ----------
    alpha : float, default 1.0
        Weight of uncertainty in a provider's favour, at least 0.
    dim : int, default 64
        Entries of the embedding that are used, in [1, 1024].
    cost_weight : float, default 0.1
        Weight of cost against a provider, at least 0.
    decay_factor : float, default 0.99
        Weight of earlier observations after each new one, in (0, 1].
    embedding_provider : str or None
        Embedder of requests; None takes that of ``[routing]``.
    embedding_timeout_ms : int, default 500
        Timeout of every embedding, in milliseconds.
    cache_size : int, default 256
        Size of the embedding cache, shared by all uses.
    """

    alpha: Amount = 1.0
    dim: Annotated[_AtLeastOne, pydantic.Field(le=1024)] = 64
    cost_weight: Amount = 0.1
    decay_factor: _Weight = 0.99
    embedding_provider: str | None = None
    embedding_timeout_ms: _AtLeastOne = 500
    cache_size: _AtLeastOne = 256


class CoherenceSettings(Section):
    """The ``[routing.coherence]`` table: a check of answers against the provider's earlier ones.

    Attributes
    ----------
    enabled : bool, default False
        True to compare answers.
    window_size : int, default 10
        Answers that are compared.
    coherence_threshold : float, default 0.5
        Mean cosine similarity in [0, 1] below which there is a warning, and a penalty.
    penalty_weight : float, default 0.3
        Weight of the penalty, in [0, 1], for ``ema`` and ``thompson``.
    embedding_provider : str or None
        Embedder of answers; None, or an empty text, takes that of ``[routing]``.
    """

    enabled: Annotated[bool, pydantic.Field(strict=True)] = False
    window_size: _AtLeastOne = 10
    coherence_threshold: Share = 0.5
    penalty_weight: Share = 0.3
    embedding_provider: str | None = None


class RoutingProviderSettings(Section):
    """Settings of one provider: an entry of ``[[routing.providers]]``.

    Attributes
    ----------
    name : str
        The model's name, as under ``[model]``.
    alias : str or None
        Name in strategies, tables and state; None takes `name`.
    api_base : str or None
        Endpoint of an OpenAI-compatible server.
    space : str or None
        ``masked`` or ``raw``, where the model's own default is wrong.
    concurrency : int or None
        Calls in flight; None takes the ``n_parallel`` of an embedded model, and sets no limit of others.
    embedding_model : str or None
        The model asked for embeddings where this is the ``embedding_provider``, at the same address; None takes
        `name`, which then has to be one of embeddings.
    options : mapping
        Passed to the provider unchanged.
    cost : float or None
        US dollars a call costs, at least 0, where the provider reports no price; also orders a cascade.
    context_window : int or None
        Tokens that messages and answer may have together.
    """

    name: _Name
    alias: _Name | None = None
    api_base: str | None = None
    space: Literal["masked", "raw"] | None = None
    concurrency: _AtLeastOne | None = None
    embedding_model: _Name | None = None
    options: dict[str, Any] = pydantic.Field(default_factory=dict)
    cost: Amount | None = None
    context_window: _AtLeastOne | None = None

    @property
    def label(self) -> str:
        """Name of the provider in strategies, tables and state."""
        return self.name if self.alias is None else self.alias


class RoutingSettings(Section):
    """The ``[routing]`` section: providers and routing strategy.

    Keys have the names and defaults of Zeph's adaptive inference. What belongs to another strategy than
    the chosen one may stay, so that one key changes the strategy; a switch that would do nothing is refused.

    Attributes
    ----------
    routing : str, default "none"
        ``none`` (as declared), ``ema``, ``thompson``, ``cascade``, ``task``, ``triage``, ``bandit`` or the name of a
        registered strategy.
    providers : tuple of RoutingProviderSettings
        Those to choose from, at least one.
    quality_gate : float, default 0.0
        Cosine similarity in [0, 1] of text and answer below which the next provider is asked; 0 asks no
        other one. Not for ``cascade`` and ``bandit``, which judge answers themselves.
    embedding_provider : str, default "hashing"
        Embedder of texts: ``hashing`` (local), ``model2vec`` or ``model2vec:NAME`` (extra ``embeddings``),
        one of the providers, or the name of an embedding model.
    router_ema_enabled : bool, default False
        With ``none``, the same as ``ema``.
    router_ema_alpha : float, default 0.1
        Weight of the latest call in the averages of ``ema``, in (0, 1].
    router_reorder_interval : int, default 10
        Calls after which ``ema`` sorts anew; 0 is never.
    state : str or None
        Place of the learnt state, for every strategy: a SQLite file, or the URL of a
        database. Files are relative to the task file. None takes the strategy's own, if any.
    thompson_state_path, bandit_state_path : str or None
        Place of the state of one strategy.
    thompson_decay : float, default 1.0
        Weight of earlier observations after each new one for ``thompson``, in (0, 1].
    cooldown_seconds : float, default 5
        First cooldown of a failing provider, in seconds, above 0; each one in a row is longer.
    allowed_failures : int, default 3
        Consecutive failures that start a cooldown, at least 1.
    call_seconds : float or None
        Timeout of a call before the fallback is asked, in seconds, above 0; None leaves it to the provider's own.
    tasks : mapping of str to str
        Provider of every task, for ``task``.
    cascade, bandit, coherence : CascadeRoutingSettings, BanditSettings, CoherenceSettings
        Their own tables.
    triage : TriageSettings or None
        Table of ``triage``, which requires it.

    Examples
    --------
    >>> from calibrant.routing import RoutingSettings
    >>> providers = [{"name": "openai/small", "cost": 0.0002}, {"name": "openai/large", "alias": "large"}]
    >>> settings = RoutingSettings(routing="ema", providers=providers)
    >>> settings.names, settings.strategy, settings.learns
    (('openai/small', 'large'), 'ema', True)
    """

    routing: _Strategy = "none"
    quality_gate: Share = 0.0
    embedding_provider: _Name = "hashing"
    router_ema_enabled: Annotated[bool, pydantic.Field(strict=True)] = False
    router_ema_alpha: _Weight = 0.1
    router_reorder_interval: Count = 10
    state: _Name | None = None
    thompson_state_path: _OwnState = None
    bandit_state_path: _OwnState = None
    thompson_decay: _Weight = 1.0
    cooldown_seconds: _Positive = 5.0
    allowed_failures: _AtLeastOne = 3
    call_seconds: _Positive | None = None
    tasks: dict[str, str] = pydantic.Field(default_factory=dict)
    cascade: CascadeRoutingSettings = CascadeRoutingSettings()
    triage: TriageSettings | None = None
    bandit: BanditSettings = BanditSettings()
    coherence: CoherenceSettings = CoherenceSettings()
    providers: tuple[RoutingProviderSettings, ...] = ()

    @pydantic.field_validator("router_ema_enabled")
    @classmethod
    def _check_ema(cls, enabled: bool, info: pydantic.ValidationInfo) -> bool:
        routing = info.data.get("routing")
        contradictory = routing not in {"none", "ema", None} if enabled else routing == "ema"
        if contradictory:
            raise wrong("Input should not contradict routing = '{routing}'", "leave it out", routing=routing)
        return enabled

    @pydantic.model_validator(mode="after")
    def _check_whole(self) -> Self:
        problems = [*_problems(self), *_repeated_names(self)]
        if self.providers:
            problems += _unknown_names(self)
        if problems:
            raise wrong_at(type(self), problems)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The providers' names, as declared."""
        return tuple(provider.label for provider in self.providers)

    @property
    def strategy(self) -> str:
        """Name of the effective strategy."""
        return EMARouter.strategy if self.router_ema_enabled else self.routing

    @property
    def traits(self) -> RouterTraits:
        """Traits of the effective strategy."""
        return STRATEGIES[self.strategy].traits

    @property
    def learns(self) -> bool:
        """True if the strategy learns or counts anything."""
        return self.traits.keeps_state

    @property
    def state_place(self) -> str | None:
        """File or URL of the strategy's state; None if the section names none."""
        own = {"thompson": self.thompson_state_path, "bandit": self.bandit_state_path}
        if self.state is None:
            return own.get(self.strategy)
        return self.state

    @property
    def embedder(self) -> str | None:
        """Embedding model; None if no setting needs embeddings."""
        if self.traits.needs_embedding:
            return self.bandit.embedding_provider or self.embedding_provider
        if self.coherence.enabled:
            return self.coherence.embedding_provider or self.embedding_provider
        if self.quality_gate > 0 and len(self.providers) > 1:
            return self.embedding_provider
        return None

    def beside(self, folder: Path) -> Self:
        """Return the settings with relative state files placed in `folder`; URLs stay."""
        keys = ("state", "thompson_state_path", "bandit_state_path")
        return self.model_copy(update={key: _placed(getattr(self, key), folder) for key in keys})


def _placed(place: str | None, folder: Path) -> str | None:
    if place is None or "://" in place:
        return place
    return str(folder / Path(place).expanduser())


def _problems(settings: RoutingSettings) -> Iterator[_Problem]:
    """Yield the strategy's missing settings, and settings without effect."""
    strategy = settings.strategy
    cascade = settings.cascade
    coherence = settings.coherence
    gate = settings.quality_gate
    if not settings.providers:
        error = wrong("Input should hold at least one provider", "add [[routing.providers]] with a name")
        yield ("providers",), [], error
    if strategy == "triage" and settings.triage is None:
        remedy = "add [routing.triage] with triage_provider and tiers"
        yield ("triage",), None, wrong("Input should be a table for routing = 'triage'", remedy)
    if strategy == "task" and not settings.tasks:
        remedy = "add [routing.tasks] with TASK = 'PROVIDER'"
        yield ("tasks",), {}, wrong("Input should be a table for routing = 'task'", remedy)
    if cascade.classifier_mode == "judge" and cascade.judge_provider is None:
        error = wrong("Input should be a provider for classifier_mode = 'judge'", "say who judges")
        yield ("cascade", "judge_provider"), None, error
    if settings.traits.judges_answers:
        error = wrong(
            "Input should be off with routing = '{routing}', which judges answers itself",
            "leave it out, or take another strategy",
            routing=strategy,
        )
        if gate > 0:
            yield ("quality_gate",), gate, error
        if coherence.enabled:
            yield ("coherence", "enabled"), True, error
    embedder = coherence.embedding_provider
    if coherence.enabled and gate > 0 and embedder not in {None, "", settings.embedding_provider}:
        message = "Input should be the embedding_provider of [routing], which the quality gate uses"
        yield ("coherence", "embedding_provider"), embedder, wrong(message, "leave it out")


def _repeated_names(settings: RoutingSettings) -> Iterator[_Problem]:
    """Yield an error for tiers that name a provider twice, and for every provider with the name of an earlier one."""
    tiers = settings.cascade.cost_tiers or ()
    if len(set(tiers)) < len(tiers):
        error = wrong("Input should hold every provider once", "remove what is there twice")
        yield ("cascade", "cost_tiers"), list(tiers), error
    for number, provider in enumerate(settings.providers):
        if provider.label in settings.names[:number]:
            key = "name" if provider.alias is None else "alias"
            error = wrong("Input should differ from provider to provider", "give it an alias of its own")
            yield ("providers", number, key), provider.label, error


def _unknown_names(settings: RoutingSettings) -> Iterator[_Problem]:
    """Yield an error for every unknown provider name."""
    cascade = settings.cascade
    triage = settings.triage
    places: list[tuple[tuple[str, ...], str | None]] = []
    places += [(("cascade", "cost_tiers"), name) for name in cascade.cost_tiers or ()]
    places.append((("cascade", "judge_provider"), cascade.judge_provider))
    places += [(("tasks", task), name) for task, name in settings.tasks.items()]
    if triage is not None:
        places.append((("triage", "triage_provider"), triage.triage_provider))
        places += [(("triage", "tiers", tier), name) for tier, name in triage.tiers]
    for place, name in places:
        if name is not None and name not in settings.names:
            error = wrong(
                "Input should be one of the providers {known}",
                "correct it, or add it as one of the [[routing.providers]]",
                known=", ".join(settings.names),
            )
            yield place, name, error
