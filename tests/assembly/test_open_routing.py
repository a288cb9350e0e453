"""Tests of the [routing] section: every setting is used, and all providers are closed."""

from __future__ import annotations

import contextlib
import logging
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.assembly import _routing, open_classifier
from calibrant.cascade import Cascade
from calibrant.core import Client, ConfigurationError, Limits, ProviderError, Task
from calibrant.inference import Classifier, RoutedClient, SharedRouter
from calibrant.routing import (
    BanditRouter,
    CascadeRouter,
    EMARouter,
    FixedRouter,
    Observation,
    Router,
    RoutingRequest,
    RoutingSettings,
    TaskRouter,
    ThompsonRouter,
    TriageRouter,
)
from calibrant.testing import FakeClient, MemoryJournal

LABELS = ["cat", "dog"]
NAMES = ("first", "second")
PROVIDERS = [{"name": name} for name in NAMES]
SECTION = '[[routing.providers]]\nname = "first"\n[[routing.providers]]\nname = "second"\n'


def settings(**keys: Any) -> RoutingSettings:
    """Return a section with these keys and two providers."""
    return RoutingSettings.model_validate({"providers": PROVIDERS, **keys})


def open_routed(section: RoutingSettings, *, name: str = "t") -> RoutedClient:
    """Return the client of a task with this section."""
    task = Task(
        name=name, labels=LABELS, prompt="Which animal?", field="category", sections={"routing": section}
    )
    client = open_classifier(task).client
    assert isinstance(client, RoutedClient)
    return client


def open_router(section: RoutingSettings) -> Router:
    """Return the strategy of a task with this section."""
    with contextlib.closing(open_routed(section)) as client:
        return client.router.router if isinstance(client.router, SharedRouter) else client.router


class Providers(dict[str, list[FakeClient]]):
    """The fakes that were opened, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.missing: set[str] = set()
        self.slow: set[str] = set()
        self.settings: list[tuple[str, Mapping[str, Any]]] = []

    def open(self, name: str, **given: Any) -> Client:
        """Open one of them."""
        if name in self.missing:
            raise ConfigurationError(f"Expected a model that is there, got {name!r}.")
        self.settings.append((name, {key: given[key] for key in ("space", "concurrency", "options")}))
        latency = 30.0 if name in self.slow else 0.0
        fake = FakeClient(LABELS, self._answer(name), name=name, latency=latency)
        self.setdefault(name, []).append(fake)
        return fake

    def _answer(self, name: str) -> Callable[[str], tuple[str, float]]:
        def answer(text: str) -> tuple[str, float]:
            if name in self.broken:
                raise ProviderError("down", provider=name, retryable=True)
            return ("cat" if "meow" in text else "dog"), 0.9

        return answer

    @property
    def asked(self) -> dict[str, int]:
        """Number of calls by provider."""
        return {name: sum(len(fake.requests) for fake in fakes) for name, fakes in self.items()}

    @property
    def all_closed(self) -> bool:
        """True if every provider is closed."""
        return all(fake.closed for fakes in self.values() for fake in fakes)


@pytest.fixture
def providers(use_model: Callable[..., Any]) -> Providers:
    """Put fakes in the place of providers."""
    found = Providers()
    for name in ("first", "second", "third", "judge"):
        use_model(found.open, name)
    return found


OpenTask = Callable[..., Classifier]


# --- strategies ---------------------------------------------------------------------------------


def taught(router: Router) -> dict[str, Any]:
    """Return what a router knows after some calls, and how it orders then."""
    rng = np.random.default_rng(1)
    for number in range(7):
        good = number % 3 != 0
        context = rng.normal(size=64)
        router.record(
            Observation(
                provider=NAMES[number % 2],
                success=good,
                latency_seconds=0.1 * number,
                quality=0.5 if good else None,
                cost=0.01 * number if good else None,
                context=context,
            )
        )
    request = RoutingRequest(embedding=rng.normal(size=64), tier="expert", task="animals", tokens=50)
    orders = [router.order(request) for _ in range(5)] if router.strategy != "thompson" else []  # drawn
    return {"snapshot": router.snapshot(), "order": orders}


PRICED = {"providers": [{"name": "first", "cost": 2}, {"name": "second", "cost": 1}]}
TIERS = {"simple": "second", "expert": "first"}
BANDIT = {"alpha": 0.5, "dim": 8, "cost_weight": 0.9, "decay_factor": 0.8}
COSTS = {"first": 2.0, "second": 1.0}


@pytest.mark.parametrize(
    ("keys", "kind", "options"),
    [
        ({}, FixedRouter, {}),
        ({"router_ema_enabled": True}, EMARouter, {}),
        (
            {"routing": "ema", "router_ema_alpha": 0.7, "router_reorder_interval": 3},
            EMARouter,
            {"alpha": 0.7, "reorder_interval": 3},
        ),
        ({"routing": "thompson", "thompson_decay": 0.5}, ThompsonRouter, {"decay": 0.5}),
        ({"routing": "task", "tasks": {"animals": "second"}}, TaskRouter, {"tasks": {"animals": "second"}}),
        (
            {"routing": "cascade", "cascade": {"cost_tiers": ["second"]}},
            CascadeRouter,
            {"cost_tiers": ["second"]},
        ),
        ({"routing": "cascade", **PRICED}, CascadeRouter, {"costs": COSTS}),
        (
            {
                "routing": "triage",
                "triage": {"triage_provider": "first", "tiers": TIERS},
                "providers": [{"name": "first", "context_window": 10}, {"name": "second"}],
            },
            TriageRouter,
            {"tiers": TIERS, "context_windows": {"first": 10}},
        ),
        ({"routing": "bandit", "bandit": BANDIT, **PRICED}, BanditRouter, {**BANDIT, "costs": COSTS}),
    ],
)
@pytest.mark.usefixtures("providers")
def test_every_strategy_has_its_settings(
    keys: dict[str, Any], kind: Callable[..., Router], options: dict[str, Any]
) -> None:
    """A router opened from a section learns and orders as one that is made in Python."""
    router = open_router(settings(**keys))
    expected = kind(NAMES, **options)
    assert type(router) is type(expected)
    assert router.strategy == settings(**keys).strategy
    assert taught(router) == taught(expected)


@pytest.mark.usefixtures("providers")
def test_a_cascade_of_routing_has_its_ladder() -> None:
    """A cascade router has the threshold, escalations, tokens and window of the section."""
    limits = {"quality_threshold": 0.7, "max_escalations": 1, "max_cascade_tokens": 90, "window_size": 4}
    judge = {"classifier_mode": "judge", "judge_provider": "first"}
    router = open_router(settings(routing="cascade", cascade={**limits, **judge}))
    assert isinstance(router, CascadeRouter)
    assert router.classifier_mode == "judge"
    assert router.ladder().ends_with(0.7)
    steps = router.ladder()
    assert [steps.ends_with(0.69), steps.ends_with(0.69)] == [False, True]
    assert router.ladder().ends_with(0.1, tokens=90)
    repetitive = "a b c a b c a b c a b c and then something else entirely"
    plain = open_router(settings(routing="cascade"))
    assert isinstance(plain, CascadeRouter)
    assert router.assess(repetitive) != plain.assess(repetitive)


# --- the client ---------------------------------------------------------------------------------


def test_every_provider_has_its_own_settings(providers: Providers) -> None:
    """Every provider is opened with its own options, and the address is one of them."""
    own = {"alias": "one", "cost": 0.5, "context_window": 100, "api_base": "http://h/v1"}
    passed = {"space": "raw", "concurrency": 3}
    first = {"name": "first", "options": {"max_tokens": 7}, **own, **passed}
    client = open_routed(settings(providers=[first, {"name": "second", "space": "raw"}]))
    assert providers.settings == [
        ("first", {**passed, "options": {"max_tokens": 7, "api_base": "http://h/v1"}}),
        ("second", {"space": "raw", "concurrency": None, "options": {}}),
    ]
    one = client.providers[0]
    assert (one.name, one.concurrency, one.cost, one.context_window, one.space) == ("one", 3, 0.5, 100, "raw")
    assert dict(one.options) == {"max_tokens": 7, "api_base": "http://h/v1"}
    assert list(client.stats()) == ["one", "second"]
    client.close()
    assert providers.all_closed


def test_a_task_with_routing_is_a_classifier(open_task: OpenTask, providers: Providers) -> None:
    """A classifier with [routing] asks the second provider where the first fails, and closes both."""
    providers.broken = {"first"}
    classifier = open_task(SECTION)
    assert type(classifier) is Classifier
    assert [classifier.classify(text).label for text in ("meow", "woof")] == ["cat", "dog"]
    assert providers.asked["second"] == 2
    assert providers.asked["first"] >= 1
    classifier.close()
    assert providers.all_closed


def test_journal_and_limits_arrive(open_task: OpenTask, providers: Providers) -> None:
    """A classifier with [routing] has the given journal and limits."""
    journal = MemoryJournal()
    classifier = open_task(SECTION, journal=journal, limits=Limits(concurrency=3))
    assert classifier.limits.concurrency == 3
    assert classifier.journal is journal
    classifier.classify("meow")
    classifier.classify("meow")
    assert sum(providers.asked.values()) == 1


def test_a_missing_provider_closes_the_others(open_task: OpenTask, providers: Providers) -> None:
    """If a provider cannot be opened, ConfigurationError is raised and the others are closed."""
    providers.missing = {"second"}
    with pytest.raises(ConfigurationError, match="Expected a model that is there, got 'second'"):
        open_task(SECTION)
    assert list(providers) == ["first"]
    assert providers.all_closed


@pytest.mark.parametrize("name", ["systemone/local", "decisions/openai/gpt-6-luna", "distilled:student"])
def test_models_that_write_no_text_are_no_providers(
    open_task: OpenTask, providers: Providers, name: str
) -> None:
    """They could answer no request; the others are closed, and none is asked."""
    with pytest.raises(ConfigurationError, match=f"expected models that write text, got '{name}'"):
        open_task(SECTION.replace('"second"', f'"{name}"'))
    assert providers.all_closed


def test_a_failed_classifier_closes_its_providers(open_task: OpenTask, providers: Providers) -> None:
    """A wrong `scoring` raises ConfigurationError, and all providers are closed."""
    with pytest.raises(ConfigurationError, match="scoring='exact' is not possible"):
        open_task(f"{SECTION}{MEMBERS}scoring = 'exact'\n")
    assert providers.all_closed
    assert len(providers) == 2


# --- what a strategy needs besides its order ----------------------------------------------------


class Texts:
    """An embedder that was asked for by name."""

    def __init__(self, name: str, *, dim: int, options: Mapping[str, Any]) -> None:
        self.asked_for = (name, dim, dict(options))
        self.dimension: int | None = None
        self.closed = False
        self.texts: list[str] = []

    async def embed(self, texts: Any) -> Any:
        """Return the same vector for all."""
        self.texts += texts
        return np.ones((len(texts), 64))

    def close(self) -> None:
        """Note it."""
        self.closed = True


@pytest.fixture
def embedders(monkeypatch: pytest.MonkeyPatch) -> list[Texts]:
    """Put fakes in the place of embedders."""
    found: list[Texts] = []

    def open_fake(name: str, **given: Any) -> Texts:
        found.append(Texts(name, **given))
        return found[-1]

    monkeypatch.setattr(_routing, "open_embedder", open_fake)
    return found


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Note the options that embedder's cache and coherence monitor are made with."""
    found: dict[str, dict[str, Any]] = {}

    def noting(name: str, kind: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **options: Any) -> Any:
            found[name] = options
            return kind(*args, **options)

        return make

    for name in ("CachedEmbedder", "CoherenceMonitor"):
        monkeypatch.setattr(_routing, name, noting(name, getattr(_routing, name)))
    return found


def stats(classifier: Classifier) -> Mapping[str, Any]:
    """Return what the classifier's client counted, by provider."""
    assert isinstance(classifier.client, RoutedClient)
    return classifier.client.stats()


ALIASED = [
    {
        "name": "first",
        "alias": "one",
        "api_base": "http://h/v1",
        "options": {"api_key": "k", "temperature": 0.5},
    },
    {"name": "second"},
]


@pytest.mark.parametrize(
    ("keys", "asked_for"),
    [
        ({"routing": "bandit"}, ("hashing", 64, {})),
        ({"routing": "bandit", "bandit": {"dim": 8}}, ("hashing", 8, {})),
        ({"quality_gate": 0.5}, ("hashing", 256, {})),
        ({"quality_gate": 0.5, "embedding_provider": "model2vec:x"}, ("model2vec:x", 1, {})),
        ({"coherence": {"enabled": True, "embedding_provider": "second"}}, ("second", 1, {})),
        (
            {"routing": "bandit", "embedding_provider": "one"},
            ("first", 64, {"api_base": "http://h/v1", "api_key": "k"}),
        ),
        (
            {
                "routing": "bandit",
                "embedding_provider": "one",
                "providers": [{**ALIASED[0], "embedding_model": "openai/e"}, ALIASED[1]],
            },
            ("openai/e", 64, {"api_base": "http://h/v1", "api_key": "k"}),
        ),
        (
            {"routing": "bandit", "embedding_provider": "one", "bandit": {"embedding_provider": "mistral/e"}},
            ("mistral/e", 64, {}),
        ),
    ],
)
def test_the_section_names_the_embedder(
    providers: Providers, embedders: list[Texts], keys: dict[str, Any], asked_for: tuple[Any, ...]
) -> None:
    """The embedder is opened with a provider's name, address and key, but without answer options."""
    client = open_routed(settings(**{"providers": ALIASED, **keys}))
    (embedder,) = embedders
    assert embedder.asked_for == asked_for
    client.close()
    assert embedder.closed
    assert providers.all_closed


@pytest.mark.parametrize("keys", [{}, {"routing": "thompson"}, {"routing": "cascade"}])
def test_no_embedder_is_opened_without_need(
    providers: Providers, embedders: list[Texts], keys: dict[str, Any]
) -> None:
    """Strategies that read no text open no embedder."""
    open_routed(settings(**keys)).close()
    assert embedders == []
    assert providers.all_closed


def test_embeddings_have_timeout_and_cache(
    providers: Providers, embedders: list[Texts], given: dict[str, dict[str, Any]]
) -> None:
    """The embedder's cache gets size, dimension and timeout of the section."""
    bandit = {"embedding_timeout_ms": 50, "cache_size": 3, "dim": 9}
    open_routed(settings(routing="bandit", bandit=bandit)).close()
    assert given == {"CachedEmbedder": {"dim": 9, "cache_size": 3, "timeout_seconds": 0.05}}
    assert providers.all_closed
    assert len(embedders) == 1


def asked_for(fakes: Sequence[FakeClient]) -> int:
    """Return how many requests were none of the classifier's own."""
    return sum(
        request.messages[0]["content"] != "Which animal?" for fake in fakes for request in fake.requests
    )


def test_a_cascade_calls_its_judge(open_task: OpenTask, providers: Providers) -> None:
    """A cascade of providers asks its judge, which is one of the providers."""
    section = (
        '[routing]\nrouting = "cascade"\n[routing.cascade]\nclassifier_mode = "judge"\n'
        f'judge_provider = "second"\n{SECTION}'
    )
    assert open_task(section).classify("meow").label == "cat"
    assert asked_for(providers["second"]) == 1
    assert asked_for(providers["first"]) == 0


def triage_section(timeout_seconds: float) -> str:
    """Return the section of a triage by the second provider."""
    return (
        '[routing]\nrouting = "triage"\n[routing.triage]\ntriage_provider = "second"\n'
        f'timeout_seconds = {timeout_seconds}\ntiers = {{ simple = "first" }}\n{SECTION}'
    )


def test_triage_calls_its_model(open_task: OpenTask, providers: Providers) -> None:
    """Triage asks its own provider."""
    classifier = open_task(triage_section(2.5))
    assert classifier.classify("meow").label == "cat"
    assert asked_for(providers["second"]) == 1


def test_triage_has_the_timeout_of_its_section(open_task: OpenTask, providers: Providers) -> None:
    """A triage model that takes longer than its section allows has failed, and the row is answered."""
    providers.slow.add("second")
    classifier = open_task(triage_section(0.02))
    assert classifier.classify("meow").label == "cat"
    client = classifier.client
    assert isinstance(client, RoutedClient)
    assert client.helper_stats()["triage"].failures == 1


def test_a_gate_calls_the_next_provider(open_task: OpenTask, providers: Providers) -> None:
    """If no answer passes the quality gate, both providers are asked and one answer is returned."""
    classifier = open_task(f"[routing]\nquality_gate = 1.0\n{SECTION}")
    assert classifier.classify("meow").label == "cat"
    assert providers.asked == {"first": 1, "second": 1}
    assert stats(classifier)["first"].escalations == 1


def test_one_provider_needs_no_gate(
    open_task: OpenTask, providers: Providers, embedders: list[Texts]
) -> None:
    """With a single provider the quality gate asks nobody again and opens no embedder."""
    classifier = open_task('[routing]\nquality_gate = 1.0\n[[routing.providers]]\nname = "first"\n')
    assert classifier.classify("meow").label == "cat"
    assert embedders == []
    assert providers.asked == {"first": 1}


def test_coherence_has_its_settings(
    providers: Providers, embedders: list[Texts], given: dict[str, dict[str, Any]]
) -> None:
    """The coherence monitor gets window, threshold and weight of the section."""
    coherence = {"window_size": 3, "coherence_threshold": 0.4, "penalty_weight": 0.2}
    for enabled in (False, True):
        assert "CoherenceMonitor" not in given
        open_routed(settings(routing="ema", coherence={**coherence, "enabled": enabled})).close()
    assert given["CoherenceMonitor"] == coherence
    assert len(embedders) == 1
    assert providers.all_closed


def test_cooldown_and_failures_are_set(open_task: OpenTask, providers: Providers) -> None:
    """With one allowed failure, a provider that failed is not asked again during its cooldown."""
    providers.broken = {"first"}
    classifier = open_task(f"[routing]\nallowed_failures = 1\ncooldown_seconds = 200\n{SECTION}")
    for text in ("meow 1", "meow 2", "meow 3"):
        classifier.classify(text)
    assert providers.asked == {"first": 1, "second": 3}
    assert 100 < stats(classifier)["first"].cooling_seconds <= 200


def test_a_failed_client_leaves_nothing_open(
    providers: Providers, embedders: list[Texts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the client cannot be made, providers, embedder and learned state are closed."""
    closed: list[str] = []

    class Shared(SharedRouter):
        def close(self) -> None:
            closed.append(self.strategy)
            super().close()

    def refuse(*_: object, **__: object) -> None:
        raise ConfigurationError("does not fit")

    monkeypatch.setattr(_routing, "SharedRouter", Shared)
    monkeypatch.setattr(_routing, "RoutedClient", refuse)
    with pytest.raises(ConfigurationError, match="does not fit"):
        open_routed(settings(routing="bandit"))
    assert providers.all_closed
    assert [embedder.closed for embedder in embedders] == [True]
    assert closed == ["bandit"]


def test_every_provider_has_its_own_space(open_task: OpenTask, providers: Providers) -> None:
    """Each distribution has the space of the provider that answered."""
    mixed = SECTION.replace('name = "first"\n', 'name = "first"\nspace = "raw"\n')
    classifier = open_task(f"[routing]\nallowed_failures = 1\n{mixed}")
    assert classifier.client.space == "mixed"
    own = classifier.classify("meow").distribution
    providers.broken.add("first")
    other = classifier.classify("meow").distribution
    assert own is not None
    assert other is not None
    assert (own.space, other.space) == ("raw", "masked")


def test_call_seconds_time_out_a_provider(open_task: OpenTask, providers: Providers) -> None:
    """A provider slower than `call_seconds` counts as failed, and the next one is asked."""
    providers.slow.add("first")
    classifier = open_task(f"[routing]\ncall_seconds = 0.02\n{SECTION}")
    assert classifier.classify("meow").label == "cat"
    assert stats(classifier)["first"].failures == 1


def test_a_misleading_provider_is_refused(
    open_task: OpenTask, providers: Providers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider whose confidence would mislead raises an error, also within a cascade."""
    section = SECTION.replace('name = "first"\n', 'name = "first"\nspace = "raw"\n')
    checked: list[tuple[str, Any]] = []

    def refuse(name: str, *, options: Mapping[str, Any], method: Any, space: str) -> None:
        assert method.describe()["scoring"] == "decode"
        assert space == ("raw" if name == "first" else "masked")
        checked.append((name, options))
        if name == "second":
            raise ConfigurationError("second: confidence would mislead.")

    monkeypatch.setattr(_routing, "refuse_misleading", refuse)
    with pytest.raises(ConfigurationError, match="second: confidence would mislead"):
        open_task(section.replace('name = "first"\n', 'name = "first"\napi_base = "http://h/v1"\n'))
    assert checked == [("first", {"api_base": "http://h/v1"}), ("second", {})]
    assert providers.all_closed
    checked.clear()
    with pytest.raises(ConfigurationError, match="second: confidence would mislead"):
        open_task(section + MEMBERS)
    assert [name for name, _ in checked] == ["first", "second"]
    assert providers.all_closed


# --- what is learnt -----------------------------------------------------------------------------


def test_learned_state_is_kept(open_task: OpenTask, providers: Providers, tmp_path: Path) -> None:
    """A reopened task knows which provider failed, and only the owner can read the state file."""
    section = f'[routing]\nrouting = "ema"\nrouter_reorder_interval = 1\nstate = "s.sqlite"\n{SECTION}'
    providers.broken = {"first"}
    classifier = open_task(section)
    classifier.classify_many(["meow", "woof"])
    classifier.close()
    asked = providers.asked["first"]
    assert stat.S_IMODE((tmp_path / "s.sqlite").stat().st_mode) == 0o600
    again = open_task(section)
    again.classify_many(["meow 2", "woof 2"])
    again.close()
    assert providers.asked["first"] == asked
    assert providers.asked["second"] == 4


def test_tasks_share_no_learned_state(providers: Providers, tmp_path: Path) -> None:
    """Two tasks with one state file learn separately."""
    section = settings(routing="ema", router_reorder_interval=1, state=str(tmp_path / "s.sqlite"))
    providers.broken = {"first"}
    for task in ("one", "two"):
        client = open_routed(section, name=task)
        Classifier(model=client, labels=LABELS, field="category").classify("meow")
        client.close()
    assert providers.asked == {"first": 2, "second": 2}


def test_an_unwritable_state_only_warns(
    open_task: OpenTask, providers: Providers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A state file that cannot be written logs one warning, and requests go on."""
    (tmp_path / "file").write_text("no folder")
    classifier = open_task(f'[routing]\nrouting = "ema"\nstate = "file/s.sqlite"\n{SECTION}')
    assert classifier.classify("meow").label == "cat"
    classifier.close()
    assert sum("cannot be shared for now" in message for message in caplog.messages) == 1
    assert sum(providers.asked.values()) == 1
    assert providers.all_closed


def test_a_wrong_state_url_is_refused(open_task: OpenTask, providers: Providers) -> None:
    """A wrong database URL raises ConfigurationError, and all providers are closed."""
    with pytest.raises(ConfigurationError, match="Expected a database URL"):
        open_task(f'[routing]\nrouting = "ema"\nstate = "postgresql://u:p@h:port/d"\n{SECTION}')
    assert providers.all_closed


def test_the_default_state_is_the_user_s(
    open_task: OpenTask, providers: Providers, calibrant_home: Path
) -> None:
    """State without a place of its own is router.sqlite in the user's folder."""
    classifier = open_task(f'[routing]\nrouting = "thompson"\n{SECTION}')
    classifier.classify("meow")
    classifier.close()
    assert (calibrant_home / "router.sqlite").exists()
    assert sum(providers.asked.values()) == 1


@pytest.mark.parametrize("keys", ['routing = "none"', 'routing = "task"\ntasks = { animals = "second" }'])
def test_stateless_strategies_keep_nothing(
    open_task: OpenTask, providers: Providers, calibrant_home: Path, tmp_path: Path, keys: str
) -> None:
    """Strategies that learn nothing write no state file, also if the section names one."""
    classifier = open_task(f'[routing]\nstate = "s.sqlite"\n{keys}\n{SECTION}')
    classifier.classify("meow")
    classifier.close()
    assert not calibrant_home.exists()
    assert not (tmp_path / "s.sqlite").exists()
    assert sum(providers.asked.values()) == 1


@pytest.mark.usefixtures("providers")
def test_the_environment_chooses_the_state(
    open_task: OpenTask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CALIBRANT_ROUTER_STATE comes first, then the program's folder, then XDG_STATE_HOME."""

    def learn() -> set[str]:
        with open_task(f'[routing]\nrouting = "thompson"\n{SECTION}') as classifier:
            classifier.classify("meow")
        return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.sqlite")}

    monkeypatch.setenv("CALIBRANT_ROUTER_STATE", str(tmp_path / "own.sqlite"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert learn() == {"own.sqlite"}
    monkeypatch.delenv("CALIBRANT_ROUTER_STATE")
    monkeypatch.delenv("CALIBRANT_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert learn() == {"own.sqlite", "xdg/calibrant/router.sqlite"}
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert ".local/state/calibrant/router.sqlite" in learn()


def test_the_task_s_provider_is_called_first(open_task: OpenTask, providers: Providers) -> None:
    """The "task" strategy asks the provider that is set for the task's name."""
    open_task(f'[routing]\nrouting = "task"\ntasks = {{ animals = "second" }}\n{SECTION}').classify("meow")
    assert providers.asked == {"first": 0, "second": 1}


# --- beside other sections ----------------------------------------------------------------------

MEMBERS = (
    '[cascade]\nconfidence_method = "label_probability"\nthreshold = 0.95\n'
    '[[cascade.models]]\nname = "routed"\nalias = "many"\n'
)


def test_another_model_replaces_the_routing(
    open_task: OpenTask, providers: Providers, caplog: pytest.LogCaptureFixture
) -> None:
    """With another model no provider is opened, and a warning is logged."""
    fake = FakeClient(LABELS, {"meow": "cat"}, name="alone")
    with caplog.at_level(logging.WARNING):
        classifier = open_task(f"{SECTION}", model=fake)
    assert classifier.classify("meow").label == "cat"
    assert providers == {}
    assert caplog.messages == [
        "Another model alone is asked: the task's routing and its settings are not used."
    ]


def test_a_cascade_of_providers_samples(open_task: OpenTask, providers: Providers) -> None:
    """A cascade of providers can measure confidence by sampling."""
    cascade = open_task(f'{SECTION}{MEMBERS}scoring = "sampled"\nsamples = 4\n')
    found = cascade.classify("meow")
    assert (found.label, found.attempts, providers.asked["first"]) == ("cat", 4, 4)


def test_routing_is_a_model_of_a_cascade(open_task: OpenTask, providers: Providers) -> None:
    """A routed model can be in a cascade twice with different prompts, over the same providers."""
    cascade = open_task(
        f'{SECTION}{MEMBERS}concurrency = 2\n[[cascade.models]]\nname = "routed"\nprompt = "Again."\n'
    )
    assert isinstance(cascade, Cascade)
    found = cascade.classify("meow")
    assert [step.model for step in found.steps] == ["many", "routed:none(first, second)"]
    assert {name: len(fakes) for name, fakes in providers.items()} == {"first": 1, "second": 1}
    prompts = [request.messages[0]["content"] for request in providers["first"][0].requests]
    assert prompts == ["Which animal?", "Again."]
    cascade.close()
    assert providers.all_closed
