"""Tests of Zeph's [llm] file: what is documented is read, and mistakes have their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrant.assembly import read_zeph, routing_settings
from calibrant.core import ConfigurationError, Task
from calibrant.routing import RoutingSettings

PROVIDERS = """
[[llm.providers]]
name = "claude"
type = "claude"
model = "claude-sonnet-4-6"
[[llm.providers]]
name = "openai"
type = "openai"
model = "gpt-4o"
[[llm.providers]]
name = "ollama"
type = "ollama"
model = "qwen3:8b"
"""
# Tables and values as Zeph's page documents them.
THOMPSON = """
[llm]
routing = "thompson"
thompson_state_path = "state/thompson.json"
"""
EMA = """
[llm]
routing = "ema"
router_ema_enabled = true
router_ema_alpha = 0.1          # smoothing factor, 0.0-1.0
router_reorder_interval = 10    # re-order every N requests
"""
CASCADE = """
[llm]
routing = "cascade"
[llm.cascade]
quality_threshold = 0.5        # score below this
max_escalations = 2
classifier_mode = "heuristic"
max_cascade_tokens = 100000
cost_tiers = ["ollama", "claude"]
"""
BANDIT = """
[llm]
routing = "bandit"
bandit_state_path = "/tmp/bandit.json"
[llm.router.bandit]
alpha = 1.5
dim = 64
cost_weight = 0.1
decay_factor = 0.98
embedding_provider = "fast"
embedding_timeout_ms = 500
cache_size = 256
[[llm.providers]]
name = "fast"
type = "openai"
model = "gpt-4o-mini"
embed = true
[[llm.providers]]
name = "quality"
type = "claude"
model = "claude-sonnet-4-6"
"""
BESIDE = '[routing]\nfile = "zeph.toml"\n'
COHERENCE = """
[llm]
router_ema_enabled = true
[llm.routing]
quality_gate = 0.75
[llm.routing.asi]
enabled             = true
window_size         = 10
coherence_threshold = 0.5
penalty_weight      = 0.3
embedding_provider  = ""
"""


def read(directory: Path, toml: str) -> RoutingSettings:
    """Return the settings of a file with this content."""
    path = directory / "zeph.toml"
    path.write_text(toml)
    return read_zeph(path)


def mistakes(directory: Path, toml: str) -> list[str]:
    """Return the lines of the error a file raises, with the path made short."""
    path = directory / "zeph.toml"
    path.write_text(toml)
    with pytest.raises(ConfigurationError) as caught:
        read_zeph(str(path))
    return str(caught.value).replace(f"{directory}/", "").split("\n")


def test_providers_have_litellm_s_names(tmp_path: Path) -> None:
    """Providers of Zeph get litellm's names, and the state lies beside Zeph's file."""
    found = read(tmp_path, THOMPSON + PROVIDERS)
    assert [(own.name, own.alias) for own in found.providers] == [
        ("anthropic/claude-sonnet-4-6", "claude"),
        ("openai/gpt-4o", "openai"),
        ("ollama/qwen3:8b", "ollama"),
    ]
    assert (found.strategy, found.embedding_provider) == ("thompson", "hashing")
    assert found.state_place == str(tmp_path / "state" / "thompson.json")


def test_a_provider_may_have_an_address(tmp_path: Path) -> None:
    """A provider of Zeph may have an address, and `max_tokens` becomes an option."""
    own = '[llm]\n[[llm.providers]]\ntype = "compatible"\nmodel = "m"\nbase_url = "http://x/v1"\nmax_tokens = 9\n'
    (found,) = read(tmp_path, own).providers
    assert (found.name, found.alias, found.api_base) == ("openai/m", None, "http://x/v1")
    assert found.options == {"max_tokens": 9}


def test_a_provider_names_its_model_of_embeddings(tmp_path: Path) -> None:
    """A provider's `embedding_model` is read under litellm's name, and the provider embeds with it."""
    own = BANDIT.replace("embed = true", 'embed = true\nembedding_model = "text-embedding-3-small"')
    found = read(tmp_path, own)
    assert [provider.embedding_model for provider in found.providers] == [
        "openai/text-embedding-3-small",
        None,
    ]
    assert (found.embedder, found.providers[0].name) == ("fast", "openai/gpt-4o-mini")


def test_every_documented_table_is_read(tmp_path: Path) -> None:
    """Every documented table of Zeph's file is read."""
    assert read(tmp_path, EMA + PROVIDERS).strategy == "ema"
    cascade = read(tmp_path, CASCADE + PROVIDERS).cascade
    assert (cascade.cost_tiers, cascade.max_cascade_tokens) == (("ollama", "claude"), 100_000)
    found = read(tmp_path, BANDIT)
    assert (found.bandit.alpha, found.bandit.decay_factor) == (1.5, 0.98)
    assert (found.embedder, found.embedding_provider) == ("fast", "fast")
    assert found.state_place == "/tmp/bandit.json"  # noqa: S108 (only named)
    found = read(tmp_path, COHERENCE + PROVIDERS)
    assert (found.strategy, found.quality_gate, found.coherence.enabled) == ("ema", 0.75, True)
    assert found.coherence.window_size == 10
    judge = CASCADE.replace('"heuristic"', '"judge"').replace("[llm]", '[llm]\nsummary_model = "claude"')
    assert read(tmp_path, judge + PROVIDERS).cascade.judge_provider == "claude"
    triage = (
        '[llm]\nrouting = "triage"\n[llm.complexity_routing]\ntriage_provider = "ollama"\n'
        'triage_timeout_secs = 3\n[llm.complexity_routing.tiers]\nsimple = "ollama"\nexpert = "claude"\n'
    )
    settings = read(tmp_path, triage + PROVIDERS).triage
    assert settings is not None
    assert (settings.timeout_seconds, settings.tiers.expert) == (3, "claude")
    assert read(tmp_path, '[agent]\nname = "x"\n' + EMA + PROVIDERS).strategy == "ema"  # not ours to judge


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        (EMA.replace("router_ema_alpha", "router_ema_beta"), ["5: unknown key 'llm.router_ema_beta'"]),
        (BANDIT.replace("dim = 64", "dim = 0"), ["7: llm.router.bandit.dim: "]),
        (BANDIT.replace('"claude"', '"claudia"'), ["20: type: expected one of claude, compatible"]),
        (BANDIT.replace("embed = true", "embed = 1"), ["17: embed: expected true or false"]),
        (BANDIT.replace("embed = true", "embedding_model = 1"), ["17: embedding_model: expected the name of"]),
        (BANDIT.replace("embed = true", "pages = 1"), ["17: unknown key 'llm.providers.pages'"]),
        (COHERENCE + "x = 1\n[llm.router]\nquality_gate = 0.1\n" + PROVIDERS, ["12: unknown", "14: quality_gate"]),
        (CASCADE.replace('"claude"]', '"other"]') + PROVIDERS, ["9: llm.cascade.cost_tiers: "]),
        (THOMPSON, ["2: llm.providers: Input should hold at least one provider"]),
        (THOMPSON + "[llm.routing.asi]\nenabled = true\n", ["5: TOML cannot hold routing = ..."]),
        ("llm = 3", ["1: expected an [llm] section"]),
        ("[llm", ["1: not valid TOML"]),
        ("[llm]\nproviders = 1\ncascade = 2\n", ["2: expected [[llm.providers]]", "3: llm.cascade: expected a table"]),
    ],
)  # fmt: skip
def test_every_mistake_has_its_line(tmp_path: Path, toml: str, told: list[str]) -> None:
    """All mistakes in Zeph's file are reported at once, each with its line."""
    found = mistakes(tmp_path, toml)
    assert len(found) == len(told), found
    for line, expected in zip(found, told, strict=True):
        assert line.startswith(f"zeph.toml:{expected}"), found


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A missing or unreadable file of Zeph raises ConfigurationError with the file's name."""
    with pytest.raises(
        ConfigurationError, match=r"none\.toml: no such file: expected a configuration of Zeph"
    ):
        read_zeph(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"[llm]\nrouting = '\xff'\n")
    with pytest.raises(ConfigurationError, match=r"latin\.toml:2: expected UTF-8"):
        read_zeph(tmp_path / "latin.toml")


def task(directory: Path, routing: str) -> Task:
    """Return a task file's task with this at its end."""
    path = directory / "task.toml"
    path.write_text(f'name = "t"\nlabels = ["a", "b"]\nprompt = "?"\n{routing}')
    return Task.from_file(path)


def test_a_task_file_names_zeph_s_file(tmp_path: Path) -> None:
    """A task file names Zeph's file, sets keys beside it, and paths are relative to Zeph's file."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "zeph.toml").write_text(BANDIT.replace('"fast"', '"hashing"', 1))
    found = routing_settings(task(tmp_path, '[routing]\nfile = "own/zeph.toml"\ncooldown_seconds = 7\n'))
    assert found is not None
    assert (found.strategy, found.cooldown_seconds, found.bandit.alpha) == ("bandit", 7, 1.5)
    (tmp_path / "own" / "zeph.toml").write_text(THOMPSON + PROVIDERS)
    found = routing_settings(task(tmp_path, '[routing]\nfile = "own/zeph.toml"\n'))
    assert found is not None
    assert found.state_place == str(tmp_path / "own" / "state" / "thompson.json")


@pytest.mark.parametrize(
    ("routing", "told"),
    [
        (f'{BESIDE}routing = "ema"\n', "task.toml:6: expected no 'routing.routing' beside"),
        (f"{BESIDE}cooldown_seconds = 0\n", "task.toml:6: routing.cooldown_seconds: "),
        ('[routing]\nfile = "none.toml"\n', "none.toml: no such file"),
        ('[routing]\nfile = "wrong.toml"\n', "wrong.toml:2: unknown key 'llm.x'"),
        (
            '[llm]\nrouting = "ema"\n',
            "task.toml:4: unknown key 'llm', which belongs to a configuration of Zeph",
        ),
    ],
)
def test_mistakes_name_the_right_file(tmp_path: Path, routing: str, told: str) -> None:
    """A mistake raises ConfigurationError with the file it is in: the task file or Zeph's."""
    (tmp_path / "zeph.toml").write_text(THOMPSON + PROVIDERS)
    (tmp_path / "wrong.toml").write_text("[llm]\nx = 1\n")
    with pytest.raises(ConfigurationError) as caught:
        routing_settings(task(tmp_path, routing))
    assert str(caught.value).startswith(f"{tmp_path}/{told}"), caught.value
