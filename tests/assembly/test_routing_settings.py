"""Tests of the ``[routing]`` section: its keys, its defaults and its mistakes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pydantic
import pytest

from calibrant.assembly import cascade_settings, routing_settings
from calibrant.routing import RoutingSettings
from task_files import HEAD, mistakes, read

PROVIDERS = '[[routing.providers]]\nname = "a"\n[[routing.providers]]\nname = "m/b"\nalias = "b"\n'
MEMBERS = '[[cascade.models]]\nname = "small"\n[[cascade.models]]\nname = "routed"\n'
KNOWN = "Input should be one of the providers a, b, got "
CORRECT = ": correct it, or add it as one of the [[routing.providers]]."
TWO = "[[routing.providers]]\nname = 'a'\n[[routing.providers]]\n"
TWICE = "Input should differ from provider to provider, got 'a': give it an alias of its own."
OFF = (
    "Input should be off with routing = {}, which judges answers itself, got {}: leave it out, or take another "
    "strategy."
)
UNUSED = (
    "4: expected one of the [[cascade.models]] to have name = 'routed', got none: add it, or remove [routing], which "
    "nobody would use."
)


def routing(directory: Path, keys: str) -> RoutingSettings:
    """Return the settings of a section with these keys and two providers."""
    found = routing_settings(read(directory, f"{HEAD}[routing]\n{keys}\n{PROVIDERS}"))
    assert found is not None
    return found


# --- what it says -------------------------------------------------------------------------------


def test_every_key_is_parsed(tmp_path: Path) -> None:
    """Every key of [routing] keeps its value, for all strategies together."""
    toml = f"""{HEAD}
[routing]
routing = "thompson"
quality_gate = 0.75
embedding_provider = "model2vec"
router_ema_alpha = 0.2
router_reorder_interval = 5
thompson_state_path = "/t.json"
bandit_state_path = "/b.json"
thompson_decay = 0.9
cooldown_seconds = 1.5
allowed_failures = 2
call_seconds = 2.5
[routing.tasks]
n = "a"
[routing.cascade]
quality_threshold = 0.6
max_escalations = 1
classifier_mode = "judge"
judge_provider = "b"
window_size = 50
max_cascade_tokens = 1000
cost_tiers = ["b"]
[routing.triage]
triage_provider = "a"
timeout_seconds = 2
[routing.triage.tiers]
simple = "a"
expert = "b"
[routing.bandit]
alpha = 0.5
dim = 32
cost_weight = 0
decay_factor = 1
embedding_provider = "a"
embedding_timeout_ms = 50
cache_size = 8
[routing.coherence]
enabled = true
window_size = 5
coherence_threshold = 0.4
penalty_weight = 0.2
embedding_provider = ""
[[routing.providers]]
name = "a"
api_base = "http://localhost:1/v1"
space = "raw"
concurrency = 4
cost = 0
context_window = 8192
[routing.providers.options]
max_tokens = 20
[[routing.providers]]
name = "m/b"
alias = "b"
cost = 0.002
"""
    found = routing_settings(read(tmp_path, toml))
    assert found is not None
    assert (
        found.model_dump(mode="json", exclude_unset=True, exclude_none=True) == tomllib.loads(toml)["routing"]
    )
    assert found.names == ("a", "b")


def test_defaults_are_the_documented_ones(tmp_path: Path) -> None:
    """An empty [routing] section has the documented defaults."""
    assert routing(tmp_path, "").model_dump(exclude={"providers"}) == {
        "routing": "none",
        "quality_gate": 0.0,
        "embedding_provider": "hashing",
        "router_ema_enabled": False,
        "router_ema_alpha": 0.1,
        "router_reorder_interval": 10,
        "state": None,
        "thompson_state_path": None,
        "bandit_state_path": None,
        "thompson_decay": 1.0,
        "cooldown_seconds": 5.0,
        "allowed_failures": 3,
        "call_seconds": None,
        "tasks": {},
        "cascade": {
            "quality_threshold": 0.5,
            "max_escalations": 2,
            "classifier_mode": "heuristic",
            "judge_provider": None,
            "window_size": None,
            "max_cascade_tokens": None,
            "cost_tiers": None,
        },
        "triage": None,
        "bandit": {
            "alpha": 1.0,
            "dim": 64,
            "cost_weight": 0.1,
            "decay_factor": 0.99,
            "embedding_provider": None,
            "embedding_timeout_ms": 500,
            "cache_size": 256,
        },
        "coherence": {
            "enabled": False,
            "window_size": 10,
            "coherence_threshold": 0.5,
            "penalty_weight": 0.3,
            "embedding_provider": None,
        },
    }


def test_a_task_without_the_section_has_no_routing(tmp_path: Path) -> None:
    """A task without [routing] has no routing settings."""
    assert routing_settings(read(tmp_path, HEAD)) is None


@pytest.mark.parametrize(
    ("keys", "strategy"),
    [
        ("", "none"),
        ("router_ema_enabled = true", "ema"),
        ("router_ema_enabled = false", "none"),
        ('routing = "ema"', "ema"),
        ('routing = "ema"\nrouter_ema_enabled = true', "ema"),
        ('routing = "thompson"', "thompson"),
        ('routing = "cascade"', "cascade"),
        ('routing = "task"\ntasks = { n = "a" }', "task"),
        ('routing = "triage"\ntriage = { triage_provider = "a", tiers = { simple = "b" } }', "triage"),
        ('routing = "bandit"', "bandit"),
    ],
)
def test_the_strategy_is_one_key(tmp_path: Path, keys: str, strategy: str) -> None:
    """`routing`, or `router_ema_enabled`, sets the strategy."""
    assert routing(tmp_path, keys).strategy == strategy


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ('routing = "thompson"\nthompson_state_path = "t.json"\nbandit_state_path = "b.json"', "{}/t.json"),
        ('routing = "bandit"\nthompson_state_path = "t.json"\nbandit_state_path = "b.json"', "{}/b.json"),
        ('routing = "ema"\nthompson_state_path = "t.json"', None),
        ('routing = "ema"\nstate = "../s.sqlite"', "{}/../s.sqlite"),
        ('routing = "bandit"\nstate = "s.json"', "{}/s.json"),
        ('routing = "ema"\nstate = "/elsewhere/s.json"', "/elsewhere/s.json"),
        ('routing = "ema"\nstate = "postgresql://u:p@host/d"', "postgresql://u:p@host/d"),
        ('routing = "ema"\nstate = "sqlite:///s.sqlite"', "sqlite:///s.sqlite"),
        ('state = "~/r.json"', str(Path.home() / "r.json")),
        ('routing = "thompson"', None),
    ],
)
def test_state_is_beside_the_task(tmp_path: Path, keys: str, place: str | None) -> None:
    """A path of learned state is relative to the task file, and a URL is kept."""
    assert routing(tmp_path, keys).state_place == (place and place.format(tmp_path))


@pytest.mark.parametrize(
    ("keys", "embedder"),
    [
        ("", None),
        ('routing = "thompson"\nembedding_provider = "model2vec"', None),
        ('routing = "bandit"', "hashing"),
        ('routing = "bandit"\nembedding_provider = "a"', "a"),
        ('routing = "bandit"\nembedding_provider = "a"\nbandit = { embedding_provider = "b" }', "b"),
        ("quality_gate = 0.5", "hashing"),
        ("coherence = { enabled = true }", "hashing"),
        ('coherence = { enabled = true, embedding_provider = "b" }', "b"),
        ('coherence = { enabled = true, embedding_provider = "" }', "hashing"),
        ('coherence = { embedding_provider = "b" }', None),
        (
            'quality_gate = 0.5\nembedding_provider = "b"\ncoherence = {enabled = true, embedding_provider = "b"}',
            "b",
        ),
    ],
)
def test_the_embedder_is_resolved(tmp_path: Path, keys: str, embedder: str | None) -> None:
    """`embedder` is the one that the strategy needs, and None if it needs none."""
    assert routing(tmp_path, keys).embedder == embedder


@pytest.mark.parametrize("key", ["quality_gate", "router_reorder_interval"])
def test_zero_is_zero(tmp_path: Path, key: str) -> None:
    """A `quality_gate` or `router_reorder_interval` of 0 is kept as 0."""
    assert getattr(routing(tmp_path, f"{key} = 0"), key) == 0


# --- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "line", "message"),
    [
        ("treshold = 1", 5, "unknown key 'routing.treshold': expected one of routing, quality_gate,"),
        ('routing = "random"', 5, "routing.routing: Input should be 'none', 'ema', 'thompson', 'cascade', 'task',"),
        ("quality_gate = 1.5", 5, "routing.quality_gate: Input should be less than or equal to 1, got 1.5."),
        ("quality_gate = nan", 5, "routing.quality_gate: Input should be a finite number, got nan."),
        ('embedding_provider = ""', 5, "routing.embedding_provider: Input should be text that can be read, got"),
        ("router_ema_enabled = 1", 5, "routing.router_ema_enabled: Input should be a valid boolean, got 1."),
        (
            'routing = "thompson"\nrouter_ema_enabled = true',
            6,
            ("routing.router_ema_enabled: Input should not contradict routing = 'thompson', got True: leave it out."),
        ),
        ("router_ema_alpha = 0", 5, "routing.router_ema_alpha: Input should be greater than 0, got"),
        ("router_reorder_interval = 1.0", 5, "routing.router_reorder_interval: Input should be a valid integer,"),
        ('state = ""', 5, "routing.state: Input should be text that can be read, got '': write a name."),
        (
            'thompson_state_path = "t"\nstate = "s"',
            5,
            "routing.thompson_state_path: Input should not come beside state, got 't': keep one of the two.",
        ),
        ("thompson_decay = 0", 5, "routing.thompson_decay: Input should be greater than 0, got"),
        ("cooldown_seconds = 0", 5, "routing.cooldown_seconds: Input should be greater than 0, got 0."),
        ("allowed_failures = 0", 5, "routing.allowed_failures: Input should be greater than or equal to 1, got 0."),
        ("call_seconds = 0", 5, "routing.call_seconds: Input should be greater than 0, got 0."),
        ("providers = 3\n", 5, "routing.providers: Input should be a valid tuple, got 3."),
        # --- tasks
        (
            'routing = "task"',
            4,
            ("routing.tasks: Input should be a table for routing = 'task', got {}: add [routing.tasks] with "
            "TASK = 'PROVIDER'."),
        ),
        ('[routing.tasks]\nn = "a"\nother = "c"', 7, f"routing.tasks.other: {KNOWN}'c'{CORRECT}"),
        (
            'routing = "task"\n[routing.tasks]\nother = "a"',
            6,
            "expected a provider for this task, 'n', got one for 'other': add it.",
        ),
        # --- cascade
        ("[routing.cascade]\nquality_threshold = 2", 6, "routing.cascade.quality_threshold: Input should be less than"),
        ("[routing.cascade]\nmax_cascade_tokens = 0", 6, "routing.cascade.max_cascade_tokens: Input should be greater"),
        ('[routing.cascade]\nclassifier_mode = "llm"', 6, "routing.cascade.classifier_mode: Input should be 'heur"),
        (
            '[routing.cascade]\nclassifier_mode = "judge"',
            5,
            ("routing.cascade.judge_provider: Input should be a provider for classifier_mode = 'judge', got None: say "
            "who judges."),
        ),
        ('[routing.cascade]\njudge_provider = "c"', 6, f"routing.cascade.judge_provider: {KNOWN}'c'{CORRECT}"),
        ('[routing.cascade]\ncost_tiers = ["b", "c"]', 6, f"routing.cascade.cost_tiers: {KNOWN}'c'{CORRECT}"),
        (
            '[routing.cascade]\ncost_tiers = ["a", "b", "a"]',
            6,
            ("routing.cascade.cost_tiers: Input should hold every provider once, got ['a', 'b', 'a']: remove what is "
            "there twice."),
        ),
        ('routing = "cascade"\nquality_gate = 0.5', 6, "routing.quality_gate: " + OFF.format("'cascade'", "0.5")),
        # --- triage
        (
            'routing = "triage"',
            4,
            ("routing.triage: Input should be a table for routing = 'triage', got None: add [routing.triage] with "
            "triage_provider and tiers."),
        ),
        ('[routing.triage]\ntiers = { simple = "a" }', 5, "missing key 'routing.triage.triage_provider': add it."),
        (
            '[routing.triage]\ntriage_provider = "a"\ntiers = {}',
            7,
            ("routing.triage.tiers: Input should name a provider for at least one tier, got {}: write simple = "
            "'NAME'."),
        ),
        (
            '[routing.triage]\ntriage_provider = "a"\n[routing.triage.tiers]\nhard = "b"',
            8,
            "unknown key 'routing.triage.tiers.hard': expected one of simple, medium, complex, expert.",
        ),
        (
            '[routing.triage]\ntriage_provider = "c"\n[routing.triage.tiers]\nsimple = "a"',
            6,
            f"routing.triage.triage_provider: {KNOWN}'c'{CORRECT}",
        ),
        (
            '[routing.triage]\ntriage_provider = "a"\n[routing.triage.tiers]\nsimple = "a"\nmedium = "x"',
            9,
            f"routing.triage.tiers.medium: {KNOWN}'x'{CORRECT}",
        ),
        # --- bandit
        ("[routing.bandit]\nalpha = -1", 6, "routing.bandit.alpha: Input should be greater than or equal to 0, got -1"),
        ("[routing.bandit]\ndim = 1025", 6, "routing.bandit.dim: Input should be less than or equal to 1024, got"),
        ("[routing.bandit]\ncost_weight = -1", 6, "routing.bandit.cost_weight: Input should be greater than or equal"),
        ("[routing.bandit]\ndecay_factor = 1.01", 6, "routing.bandit.decay_factor: Input should be less than or equal"),
        ("[routing.bandit]\nembedding_timeout_ms = 0", 6, "routing.bandit.embedding_timeout_ms: Input should be"),
        ("[routing.bandit]\ncache_size = 0", 6, "routing.bandit.cache_size: Input should be greater than or equal"),
        # --- coherence
        ("[routing.coherence]\nenabled = 1", 6, "routing.coherence.enabled: Input should be a valid boolean, got 1."),
        ("[routing.coherence]\nwindow_size = 0", 6, "routing.coherence.window_size: Input should be greater than or"),
        ("[routing.coherence]\npenalty_weight = -1", 6, "routing.coherence.penalty_weight: Input should be greater"),
        (
            'routing = "bandit"\n[routing.coherence]\nenabled = true',
            7,
            "routing.coherence.enabled: " + OFF.format("'bandit'", "True"),
        ),
        (
            'quality_gate = 0.5\n[routing.coherence]\nenabled = true\nembedding_provider = "b"',
            8,
            ("routing.coherence.embedding_provider: Input should be the embedding_provider of [routing], which the "
            "quality gate uses, got 'b': leave it out."),
        ),
    ],
)  # fmt: skip
def test_a_wrong_key_names_file_line_and_remedy(tmp_path: Path, keys: str, line: int, message: str) -> None:
    """A wrong key in [routing] raises ConfigurationError with its line."""
    providers = "" if keys.startswith("providers") else PROVIDERS
    found = mistakes(tmp_path, f"{HEAD}[routing]\n{keys}\n{providers}")
    assert [text for text in found if text.startswith(f"task.toml:{line}: {message}")], found


@pytest.mark.parametrize(
    ("entry", "line", "message"),
    [
        ("nme = 'x'", 7, "unknown key 'routing.providers.nme': expected one of name, alias, api_base,"),
        ("cost = -1", 7, "routing.providers.cost: Input should be greater than or equal to 0, got -1."),
        ("context_window = 0", 7, "routing.providers.context_window: Input should be greater than or equal"),
        ("concurrency = 0", 7, "routing.providers.concurrency: Input should be greater than or equal"),
        ("space = 'exact'", 7, "routing.providers.space: Input should be 'masked' or 'raw', got 'exact'."),
        (
            'alias = "a\\nb"',
            7,
            "routing.providers.alias: Input should be text that can be read, got 'a\\nb':",
        ),
        ("alias = 'a'", 7, f"routing.providers.alias: {TWICE}"),
        ("options = 3", 7, "routing.providers.options: Input should be a valid dictionary, got 3."),
        ("scoring = 'exact'", 7, "unknown key 'routing.providers.scoring': expected one of name, alias,"),
    ],
)
def test_a_wrong_provider_key_names_its_line(tmp_path: Path, entry: str, line: int, message: str) -> None:
    """A wrong key of a provider raises ConfigurationError with that provider's line."""
    found = mistakes(tmp_path, f"{HEAD}{TWO}{entry}\nname = 'b'\n")
    assert [text for text in found if text.startswith(f"task.toml:{line}: {message}")], found


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        pytest.param(f"{TWO}name = 'a'\n", f"7: routing.providers.name: {TWICE}", id="equal names need aliases"),
        pytest.param(f"{TWO}alias = 'b'\n", "6: missing key 'routing.providers.name': add it.", id="no default name"),
        pytest.param(
            "[routing]\nrouting = 'ema'\n",
            ("4: routing.providers: Input should hold at least one provider, got []: add [[routing.providers]] with a "
            "name."),
            id="a section without providers",
        ),
        pytest.param(
            "routing = 'thompson'\n",
            "4: routing: expected a table, got 'thompson': write [routing] and its keys below.",
            id="the reference's top-level key",
        ),
        pytest.param(
            f"[model]\nname = 'x'\n{PROVIDERS}",
            ("4: expected no [model] beside [routing]: it would not be asked; name it under [[routing.providers]], or "
            "remove it."),
            id="an unused model",
        ),
        pytest.param(f"[routing]\n{PROVIDERS}[[cascade.models]]\nname = 'small'\n", UNUSED, id="a cascade without it"),
        pytest.param(f"[routing]\n{PROVIDERS}[cascade]\nfile = 'looper.yaml'\n", UNUSED, id="a looper without it"),
        pytest.param(
            MEMBERS,
            "7: expected a [routing] section for the model 'routed': add it, or name another model.",
            id="a routed model without routing",
        ),
    ],
)  # fmt: skip
def test_a_mistake_of_a_section_names_line_and_remedy(tmp_path: Path, toml: str, message: str) -> None:
    """A [routing] section that is wrong as a whole raises ConfigurationError with one message."""
    assert mistakes(tmp_path, HEAD + toml) == [f"task.toml:{message}"]


def test_an_alias_tells_equal_names_apart(tmp_path: Path) -> None:
    """Two providers of one name are accepted if one has an alias."""
    assert routing_settings(read(tmp_path, f"{HEAD}{TWO}name = 'a'\nalias = 'b'\n"))


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """Several mistakes in [routing] are reported at once, each with its line."""
    keys = 'quality_gate = 0.5\nrouting = "cascade"\n[routing.cascade]\ncost_tiers = ["x", "a", "y"]\n'
    found = mistakes(tmp_path, f"{HEAD}[routing]\n{keys}{PROVIDERS}")
    assert [text.split(": ")[0] for text in found] == ["task.toml:5", "task.toml:8", "task.toml:8"]
    assert ["'x'" in found[1], "'y'" in found[2]] == [True, True]


def test_sections_of_another_strategy_may_stay(tmp_path: Path) -> None:
    """Keys of strategies that are not used are accepted."""
    keys = (
        'routing = "bandit"\nthompson_decay = 0.9\nrouter_ema_alpha = 0.5\n[routing.cascade]\nmax_escalations = 1\n'
        "[routing.coherence]\nenabled = false\nwindow_size = 3\n"
    )
    assert routing(tmp_path, keys).cascade.max_escalations == 1


def test_settings_made_in_python_are_checked_alike() -> None:
    """A wrong setting made in Python raises ValidationError."""
    with pytest.raises(pydantic.ValidationError, match="one of the providers a"):
        RoutingSettings.model_validate({"providers": [{"name": "a"}], "cascade": {"cost_tiers": ["b"]}})


# --- beside other sections ----------------------------------------------------------------------


def test_routing_takes_no_label_prior(tmp_path: Path) -> None:
    """A prior correction beside [routing] raises ConfigurationError."""
    (message,) = mistakes(tmp_path, f'{HEAD}[calibration]\nprior_correction = "batch"\n{PROVIDERS}')
    assert message.startswith("task.toml:5: expected no prior_correction beside [routing]")


def test_routing_may_be_a_model_of_a_cascade(tmp_path: Path) -> None:
    """A routed model may be in a cascade, with an alias, a prompt and a cost of its own."""
    toml = f'{HEAD}{PROVIDERS}{MEMBERS}alias = "many"\nconcurrency = 3\nscoring = "decode"\nprompt = "q"\ncost = 1\n'
    task = read(tmp_path, toml)
    cascade = cascade_settings(task)
    assert routing_settings(task) is not None
    assert cascade is not None
    assert cascade.models[1].alias == "many"


def test_a_routed_model_has_no_options(tmp_path: Path) -> None:
    """Address, options and space of a routed model raise ConfigurationError with their lines."""
    keys = 'api_base = "http://h/v1"\nspace = "raw"\n[cascade.models.options]\nx = 1\n'
    assert mistakes(tmp_path, f"{HEAD}{PROVIDERS}{MEMBERS}{keys}") == [
        f"task.toml:{line}: expected no {key!r} of the model 'routed': set it under [[routing.providers]]."
        for key, line in (("api_base", 13), ("options", 15), ("space", 14))
    ]
