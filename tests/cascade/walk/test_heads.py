"""Tests of heads and prior corrections of a cascade's models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.assembly import open_classifier
from calibrant.calibration import LabelPriorCorrection
from calibrant.cascade import Cascade, CascadeModel
from calibrant.core import ConfigurationError, LimitReachedError, Limits, Task
from calibrant.evaluation import BatchEvaluator
from calibrant.heads import Head, fit_head
from calibrant.inference import Classifier
from calibrant.testing import FakeClient, MemoryJournal, fake_model
from command_line import command, refusal
from embedding_server import TOKENS, EmbeddingServer
from synonyms import KNOWN, LABELS, texts

Build = Callable[..., Any]


@pytest.fixture(scope="module")
def head() -> Head:
    """Return a head of a model that nearly always says cat."""
    answers = np.arange(60) % 2
    cat = np.where(answers, 0.6, 0.9)
    return fit_head(np.log(np.stack([cat, 1.0 - cat], axis=1)), answers, labels=["cat", "dog"])


@pytest.fixture(params=["head", "prior_correction"])
def learned(request: pytest.FixtureRequest, head: Head) -> dict[str, Any]:
    """Return the setting of a classifier that was fitted to its lean to cats."""
    prior = LabelPriorCorrection().fit(np.array([[0.9, 0.1]] * 2000))
    return {request.param: {"head": head, "prior_correction": prior}[request.param]}


def test_answers_are_corrected_before_the_method_judges(build: Build, learned: dict[str, Any]) -> None:
    """The method gets the corrected answer, and under another prompt the model's own."""
    built = build(("cat", 0.6), ("cat", 0.9), classifiers=[learned, {}], threshold=0.5)
    alone = built.classifiers[0].classify("t")
    found = built.cascade.classify("t")
    assert alone.label == found.label == "dog"
    assert found.confidence == pytest.approx(alone.confidence)
    assert built.method.asked[0].prediction.label == "dog"
    assert built.calls == [2, 0]
    assert built.cascade.with_prompt("new").classify("t").label == "cat"


def test_token_methods_refuse_a_correction(build: Build, told: Any, learned: dict[str, Any]) -> None:
    """A correction raises ConfigurationError with a method that reads tokens."""
    (name,) = learned
    with pytest.raises(ConfigurationError, match=f"no {name} of 'a'"):
        build("cat", classifiers=[learned], method=told(needs_tokens=True))


def test_a_cascade_has_no_head(write_task: Callable[..., Path], tmp_path: Path, head: Head) -> None:
    """A head for a whole cascade is refused."""
    models = '\n[cascade]\nmodels = [{ name = "fake/small" }, { name = "fake/large" }]\n'
    task, fake = write_task(extra=models), FakeClient(["cat", "dog"], {}, default="cat")
    with fake_model("fake/small", fake), fake_model("fake/large", fake):
        whole = open_classifier(Task.from_file(task))
        assert not hasattr(whole, "head")
        run = tmp_path / "run"
        run.mkdir()
        (run / "best_prompt.txt").write_text(whole.prompt)
        head.save(run / "head.json", fingerprint=whole.fingerprint())
        refused = command("classify")(task, "--run", run, "--text", "purrs")
    assert "no head for a whole cascade" in refusal(refused)
    assert fake.requests == []


ROWS = list(dict.fromkeys(texts(300, words=("kitty", "hound"), seed=7)[0]))


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    """Return a server of embeddings."""
    found = EmbeddingServer()
    yield found
    found.stop()


def reading(server: EmbeddingServer, embeddings: str | None = None) -> Classifier:
    """Return a classifier by a model that knows nothing, with a head that reads vectors of the server."""
    fake = FakeClient(LABELS, lambda _: {"cat": 0.6, "dog": 0.4})
    classifier = Classifier(model=fake, labels=LABELS, field="category")
    return classifier.fit(*KNOWN, embeddings=embeddings or server.name)


def unsure() -> Classifier:
    """Return a classifier whose answer is never enough."""
    return Classifier(model=FakeClient(LABELS, {}, default=("cat", 0.6)), labels=LABELS, field="category")


def cascade_of(*classifiers: Classifier, **options: Any) -> Cascade:
    """Return a cascade in this order; no model is confident enough."""
    models = [CascadeModel(classifier=one, name=str(place)) for place, one in enumerate(classifiers)]
    return Cascade(
        models, method="label_probability", threshold=0.99999, escalation_order="declared", **options
    )


def test_vectors_of_the_first_model_are_asked_for_by_the_block(server: EmbeddingServer) -> None:
    """Rows of the same call get the labels that each gets alone, and no text is asked for twice."""
    cascade = cascade_of(reading(server), unsure())
    server.calls.clear()
    found = cascade.classify_many(ROWS)
    assert len(server.calls) <= 3
    assert sorted(server.texts) == sorted(ROWS)
    assert [row.steps[0].label for row in found] == ["cat" if "kitty" in text else "dog" for text in ROWS]


def test_vectors_of_a_later_model_share_calls(server: EmbeddingServer) -> None:
    """Texts that come while a call is under way go together in the next one."""
    cascade = cascade_of(unsure(), reading(server), limits=Limits(concurrency=50))
    server.calls.clear()
    cascade.classify_many(ROWS)
    assert sorted(server.texts) == sorted(ROWS)
    assert len(server.calls) < len(ROWS) / 5


def test_vectors_count_towards_the_budget_of_a_cascade(server: EmbeddingServer) -> None:
    """The tokens of vectors are those of the cascade, and end its run."""
    first, second = reading(server), unsure()
    server.calls.clear()
    paid = cascade_of(first, second)
    found = paid.classify_many(ROWS[:20])
    of_answers = sum(one.usage.prompt_tokens + one.usage.completion_tokens for one in found)
    assert paid.meter.tokens - of_answers == TOKENS * len(server.texts) > 0
    limited = cascade_of(reading(server), second, limits=Limits(max_tokens=of_answers))
    with pytest.raises(LimitReachedError, match="max_tokens"):
        limited.classify_many(ROWS[20:40])


def test_a_run_says_beforehand_what_vectors_of_the_first_model_take(
    server: EmbeddingServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every row asks the first model, so that the effort of its vectors is announced; few rows ask a later one."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    for name in ("OPENAI_API_BASE", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, f"{server.root}/v1")
    long_texts = [f"{number} kitty {'word ' * 100_000}" for number in range(6)]
    reader = reading(server, "openai/text-embedding-3-small")
    for name, classifiers, is_told in (
        ("first", (reader, unsure()), True),
        ("later", (unsure(), reader), False),
    ):
        caplog.clear()
        BatchEvaluator(cascade_of(*classifiers)).label(long_texts, out=tmp_path / name)
        assert ("6 rows take about $0.0150" in caplog.text) == is_told


def test_what_a_journal_holds_needs_no_vectors(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rows that a cascade has answered are not read again, though no vector of theirs is kept."""
    journal = MemoryJournal()
    cascade = cascade_of(reading(server), unsure(), journal=journal)
    expected = cascade.classify_many(ROWS[:20])
    monkeypatch.setenv("CALIBRANT_HOME", str(tmp_path))
    again = cascade_of(reading(server), unsure(), journal=journal)
    server.calls.clear()
    assert [row.label for row in again.classify_many(ROWS[:20])] == [row.label for row in expected]
    again.classify("a new hound")
    assert server.texts == ["a new hound"]


# litellm leaves a coroutine of its own unawaited where it is cancelled.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_row_that_is_given_up_keeps_no_other_from_its_vector(server: EmbeddingServer) -> None:
    """However early a row is cancelled, the same text is answered afterwards."""
    cascade = cascade_of(unsure(), reading(server))

    async def given_up(turns: int) -> str | None:
        text = f"{turns} hound"
        row = asyncio.create_task(cascade.aclassify(text))
        for _ in range(turns):
            await asyncio.sleep(0)
        row.cancel()
        return (await cascade.aclassify(text)).steps[-1].label

    async def all_given_up() -> list[str | None]:
        return [await given_up(turns) for turns in range(30)]

    assert asyncio.run(all_given_up()) == ["dog"] * 30
