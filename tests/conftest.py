"""Fixtures and settings for all folders of tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from calibrant.core import Client
from calibrant.inference import Classifier
from calibrant.testing import FakeClient, fake_model
from headless import CHROMIUM, Browser
from stubborn_server import StubbornServer

# No deadlines: the machines are shared. CI fixes order and examples with --randomly-seed and --hypothesis-seed.
hypothesis.settings.register_profile("calibrant", deadline=None, max_examples=50)
hypothesis.settings.load_profile("calibrant")

# Skips that say something about the case itself, not about what this machine lacks.
EXPECTED_SKIPS = (
    "a coroutine cannot raise StopIteration",
    "no file system can be mounted here",
    "no IPv6 here",
)

SPLITS = ("train", "validation", "test")
TASK = """\
name = "animals"
labels = ["cat", "dog"]
field = "category"
prompt = "Which animal?"

[data]
train = "train.jsonl"
validation = "validation.jsonl"
test = "test.jsonl"
"""

DEFAULT_MODEL = "local/smollm2-135m"
Rows = Sequence[Mapping[str, Any]] | str | bytes
UseModel = Callable[..., Any]
WriteTask = Callable[..., Path]


def animal_rows(split: str, count: int = 4) -> list[dict[str, str]]:
    """Return rows whose answer is plain: what meows is a cat, what barks is a dog."""
    kinds = (("meow", "cat"), ("woof", "dog"))
    return [
        {"input": f"{split} {number} {kinds[number % 2][0]}", "answer": kinds[number % 2][1]}
        for number in range(count)
    ]


def pytest_configure() -> None:
    """Let workers, and the programs they start, do linear algebra in one thread each, and be interrupted.

    With more threads than cores, those that wait for others keep a core busy: a regression of the learned scorer then
    takes five times the processor time. A shell that starts the tests in the background makes them, and all programs
    that they start, ignore SIGINT, which tests send.
    """
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # Heads beside fake models would load the embedded model; tests of that name it, or take this away.
    os.environ.setdefault("CALIBRANT_EMBEDDINGS", "none")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def calibrant_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder for stored examinations, of its own for each test."""
    home = tmp_path_factory.getbasetemp() / "homes" / uuid.uuid4().hex  # made by whoever stores something
    monkeypatch.setenv("CALIBRANT_HOME", str(home))
    return home


def _fail_unexpected_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip for a missing thing into a failure if REQUIRE_ALL is set."""
    if not os.environ.get("REQUIRE_ALL") or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(expected in reason for expected in EXPECTED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"Skipped where every test must run (REQUIRE_ALL): {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,  # noqa: ARG001 (pytest gives arguments by name)
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail tests that are skipped for something that is missing."""
    report = yield
    _fail_unexpected_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail modules that are skipped for something that is missing."""
    report = yield
    _fail_unexpected_skip(report)
    return report


@pytest.fixture(scope="session")
def embedded_engine() -> Iterator[None]:
    """Hold the embedded model open, so that a worker's tests load it once."""
    with contextlib.closing(Classifier(model="local/smollm2-135m", labels=["a", "b"])) as classifier:
        classifier.classify("a")
        yield


@pytest.fixture(autouse=True)
def one_engine_a_worker(request: pytest.FixtureRequest) -> None:
    """Share one engine among the tests on the embedded model."""
    if request.node.get_closest_marker("real_model"):
        request.getfixturevalue("embedded_engine")


@pytest.fixture(autouse=True)
def litellm_keeps_its_clients() -> None:
    """Let litellm keep every client it makes until the process ends.

    Each event loop of a test makes its own. Beyond 200 of them, or after ten minutes, litellm drops the oldest, whose
    loop is long gone: nobody can close it, and its sockets would be reported in whatever test runs at that moment.
    """
    litellm = sys.modules.get("litellm")
    cache = None if litellm is None else vars(litellm).get("in_memory_llm_clients_cache")
    if cache is not None:
        cache.max_size_in_memory, cache.default_ttl = 10**6, 10**6


@pytest.fixture
def write_task(tmp_path: Path) -> WriteTask:
    """Return a function that writes a task of two labels and four rows a split, and returns its path.

    ``toml`` replaces the task file, ``extra`` is appended to it; a split takes rows or raw content.
    """

    def write(
        *, toml: str | bytes = TASK, extra: str = "", directory: Path = tmp_path, **splits: Rows
    ) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            content = splits.get(split, animal_rows(split))
            if not isinstance(content, str | bytes):
                content = "".join(json.dumps(row) + "\n" for row in content)
            data = content.encode() if isinstance(content, str) else content
            (directory / f"{split}.jsonl").write_bytes(data)
        path = directory / "task.toml"
        path.write_bytes((toml.encode() if isinstance(toml, str) else toml) + extra.encode())
        return path

    return write


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every key and address out of the environment."""
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_API_BASE", "_BASE_URL")):
            monkeypatch.delenv(name)


@pytest.fixture
def animals() -> FakeClient:
    """Return a model that answers "meow" with cat at 0.9, and "woof" with dog at 0.8."""
    return FakeClient(["cat", "dog"], {"meow": ("cat", 0.9), "woof": ("dog", 0.8)})


@pytest.fixture
def use_model() -> Iterator[UseModel]:
    """Return a function that lets a fake answer for a model until the test ends; returns the fake.

    ``name`` is the model's: that of tasks without a model unless another is given.
    """
    with contextlib.ExitStack() as stack:

        def use(model: Client | Callable[..., Client], name: str = DEFAULT_MODEL) -> Any:
            stack.enter_context(fake_model(name, model))
            return model

        yield use


@pytest.fixture
def start_stubborn_server() -> Iterator[Callable[..., StubbornServer]]:
    """Start servers that refuse or ignore formats, and stop with the test."""
    servers: list[StubbornServer] = []

    def start(**settings: Any) -> StubbornServer:
        servers.append(StubbornServer(**settings))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser; skip the test where none is installed."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's package chromium")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
