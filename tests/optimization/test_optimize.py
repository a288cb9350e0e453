"""Tests of `optimize`: the search, the files it writes, and how it resumes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import (
    CalibrantError,
    ConfigurationError,
    Example,
    ProviderError,
    ScoringSettings,
    StateError,
    Task,
)
from calibrant.inference import open_client
from calibrant.optimization import OptimizationResult, Progress, optimize
from calibrant.runs._journal import JsonlStore
from calibrant.scoring import BrierScoring, LogScoring, ScoringStrategy, SigmoidScoring, ThresholdScoring
from calibrant.testing import FakeClient
from distributions import exact
from fault_server import FaultServer
from small_tasks import searched, task_of

LABELS = ["Food", "Fuel", "Rent"]


def rows(prefix: str, n: int) -> tuple[Example, ...]:
    """Return rows whose text names their label."""
    return tuple(
        Example(input=f"{prefix} {LABELS[i % 3].lower()} {i}", answer=LABELS[i % 3]) for i in range(n)
    )


def make_task(**changes: Any) -> Task:
    """Return a small task."""
    return task_of(rows, 18, 9, 12, **{"labels": LABELS, "prompt": "Classify.", **changes})


def learner(text: str, prompt: str) -> Any:
    """Answer rightly if the prompt shows an example of the label, and otherwise Rent."""
    truth = next(label for label in LABELS if label.lower() in text)
    return (truth, 0.95) if f'"category": "{truth}"' in prompt else ("Rent", 0.6)


def client(rule: Any = learner, **options: Any) -> FakeClient:
    """Return a scripted model."""
    return FakeClient(LABELS, rule, **options)


def search(task: Task | None = None, *, model: Any = None, **options: Any) -> OptimizationResult:
    """Return the result of a search with a budget of 60 calls and minibatches of 4."""
    settings: dict[str, Any] = {"max_metric_calls": 60, "minibatch_size": 4, **options}
    return optimize(task or make_task(), model=model or client(), **settings)


def test_search_finds_demonstrations_and_reports_on_test_rows(tmp_path: Path) -> None:
    """The search raises the test accuracy from one third to 1, and writes its predictions."""
    out = tmp_path / "run"
    result = search(max_metric_calls=150, out=out)
    assert result.seed_prompt.accuracy is not None
    assert result.best_prompt.accuracy is not None
    assert result.seed_prompt.accuracy.estimate == pytest.approx(1 / 3)
    assert result.best_prompt.accuracy.estimate == 1.0
    assert result.comparison is not None
    assert result.comparison.difference == pytest.approx(2 / 3)
    assert result.improved
    assert result.proposals >= result.accepted >= 1
    assert (out / "best_prompt.txt").read_text() == result.best_prompt.prompt
    record = json.loads((out / "result.json").read_text())
    assert record["schema_version"] == 1
    assert record["best_prompt"]["accuracy"]["estimate"] == 1.0
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [(line["prompt"], line["index"]) for line in lines] == [
        (name, i) for name in ("seed", "best", "final") for i in range(12)
    ]
    assert sum(line["correct"] for line in lines if line["prompt"] == "best") == 12


def test_test_rows_are_never_asked_during_the_search() -> None:
    """Test rows are asked only after the search, once under each prompt."""
    fake = client()
    search(model=fake)
    asked = [request.messages[1]["content"] for request in fake.requests]
    first = next(i for i, text in enumerate(asked) if text.startswith("test"))
    assert first >= 18
    assert len(asked) - first == 24
    assert all(text.startswith("test") for text in asked[first:])


def test_a_search_with_nothing_new_to_ask_ends() -> None:
    """A search whose proposer repeats itself ends before its budget."""
    result = optimize(
        make_task(), model=client(), proposer=lambda *_: {"system_prompt": "Same."}, max_metric_calls=80
    )
    assert 0 < result.metric_calls < 80
    assert result.accepted == 0


def test_a_difference_by_rounding_is_no_improvement() -> None:
    """A prompt under which every score is higher by 1e-12 alone is not accepted, one by 1e-3 is."""

    def accepted(gain: float) -> int:
        def answer(text: str, prompt: str) -> tuple[str, float]:
            truth = next(label for label in LABELS if label.lower() in text)
            return truth if truth != "Fuel" else "Rent", 0.8 + (gain if prompt == "Same." else 0.0)

        return optimize(
            make_task(),
            model=client(answer),
            proposer=lambda *_: {"system_prompt": "Same."},
            max_metric_calls=80,
        ).accepted

    assert accepted(1e-12) == 0
    assert accepted(1e-3) == 1


def test_finished_run_is_repeated_without_a_single_call(tmp_path: Path) -> None:
    """A second run of a finished search makes no call, and gives the same result."""
    first = search(max_metric_calls=120, seed=5, out=tmp_path)
    again = client()
    second = search(model=again, max_metric_calls=120, seed=5, out=tmp_path)
    assert again.requests == []
    assert second.best_prompt == first.best_prompt
    assert second.metric_calls == first.metric_calls


class Interruption(BaseException):
    """Exception that stands for a kill."""


def after(updates: int) -> Callable[[Progress], None]:
    """Return a listener that raises an exception after so many updates."""
    seen = 0

    def interrupt(_: Progress) -> None:
        nonlocal seen
        seen += 1
        if seen > updates:
            raise Interruption

    return interrupt


def test_an_interrupted_run_ends_the_same(tmp_path: Path) -> None:
    """A search that was interrupted at any stage ends with the same best prompt."""
    task = make_task()
    whole = search(task, max_metric_calls=120, out=tmp_path / "whole")
    for stop in (4, 30, 70, 125):
        out = tmp_path / f"stop-{stop}"
        interrupt = after(stop)
        with pytest.raises(Interruption):
            search(task, max_metric_calls=120, out=out, progress=interrupt)
        assert not (out / "result.json").exists()
        paid = len((out / "journal.jsonl").read_bytes().splitlines())
        assert paid > 0
        resumed = client()
        result = search(task, model=resumed, max_metric_calls=120, out=out)
        assert result.best_prompt == whole.best_prompt
        keys = {json.loads(line)["key"] for line in (out / "journal.jsonl").read_text().splitlines()}
        assert len(keys) == paid + len(resumed.requests)


def test_resuming_with_a_larger_budget_goes_on(tmp_path: Path) -> None:
    """A larger budget continues a finished search, and uses its answers again."""
    search(out=tmp_path)
    more = client()
    result = search(model=more, max_metric_calls=140, out=tmp_path)
    assert 60 < result.metric_calls <= 160
    assert 0 < len(more.requests) < 100


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"minibatch_size": 5}, "minibatch_size"),
        ({"task": make_task(prompt="Other.")}, "task"),
        ({"prior_correction": "batch"}, "task"),
    ],
)
def test_directory_of_another_run_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    """The directory of another run raises StateError that names the difference, and is unchanged."""
    search(out=tmp_path)
    before = (tmp_path / "result.json").read_bytes()
    options: dict[str, Any] = {"minibatch_size": 4, **changes}
    with pytest.raises(StateError, match=named):
        optimize(
            options.pop("task", make_task()), model=client(), max_metric_calls=60, out=tmp_path, **options
        )
    assert (tmp_path / "result.json").read_bytes() == before


def test_a_failed_start_may_be_changed(tmp_path: Path) -> None:
    """A directory without any answer can be used with another model."""
    down = client(lambda _: ProviderError("bad key", provider="p", status=401))
    with pytest.raises(ProviderError, match="bad key"):
        search(model=down, out=tmp_path)
    result = search(model=client(name="other"), out=tmp_path)
    assert result.model == "other"


def test_a_model_that_cannot_be_opened_leaves_no_directory(tmp_path: Path) -> None:
    """A model that cannot be opened raises ConfigurationError, and no directory is written."""
    with pytest.raises(ConfigurationError, match="gguf"):
        optimize(make_task(), model="llamacpp:missing.gguf", max_metric_calls=100, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_better_user_template_counts_as_improved() -> None:
    """A better user template counts as an improvement."""

    def rule(text: str, _: str) -> Any:
        truth = next(label for label in LABELS if label.lower() in text)
        return (truth, 0.9) if text.startswith("Text:") else ("Rent", 0.6)

    result = optimize(
        make_task(user_template="{input}"),
        model=client(rule),
        proposer=lambda *_: {"user_template": "Text: {input}"},
        max_metric_calls=80,
    )
    assert result.improved
    assert result.best_candidate == {"system_prompt": "Classify.", "user_template": "Text: {input}"}
    assert result.best_prompt.accuracy is not None
    assert result.best_prompt.accuracy.estimate == 1.0


def test_nothing_better_is_said_so() -> None:
    """Without an improvement the best prompt is the seed prompt, and is tested once."""
    fake = client(lambda _: ("Rent", 0.9))
    result = search(model=fake)
    assert (result.chosen, result.accepted) == (0, 0)
    assert result.best_prompt == result.seed_prompt
    assert sum(r.messages[1]["content"].startswith("test") for r in fake.requests) == 12


def test_held_out_training_rows_are_never_shown() -> None:
    """A training row that is also a validation or test row is not shown in a prompt."""
    task = make_task()
    leaky = make_task(train=(*task.train[:6], *task.validation, *task.test))
    result = search(leaky, max_metric_calls=150)
    assert result.improved
    assert "train " in result.best_prompt.prompt
    assert "validation " not in result.best_prompt.prompt
    assert "test " not in result.best_prompt.prompt


def test_a_perfect_prompt_ends_the_search() -> None:
    """A seed prompt without errors ends the search after the validation rows."""
    fake = client(lambda text: (next(label for label in LABELS if label.lower() in text), 1.0))
    result = search(model=fake, max_metric_calls=500)
    assert result.metric_calls == 9


def test_an_unanswered_test_set_is_a_failure(tmp_path: Path) -> None:
    """Test rows that all fail raise ProviderError, and a second run completes the search."""
    down = ProviderError("overloaded", provider="p", status=503)
    fake = client(lambda text, prompt: down if text.startswith("test") else learner(text, prompt))
    with pytest.raises(ProviderError, match="12 of the last"):
        search(model=fake, max_metric_calls=100, out=tmp_path)
    assert not (tmp_path / "result.json").exists()
    result = search(max_metric_calls=100, out=tmp_path)
    assert result.seed_prompt.outcomes == {"ok": 12}
    few = make_task(test=rows("test", 3))  # fewer than five rows never count as an outage
    with pytest.raises(ProviderError, match="none of the 3 test rows"):
        search(few, model=fake)


def test_a_proposer_that_fails_ends_the_run() -> None:
    """A proposer that keeps failing raises ProviderError before the budget is spent."""

    def broken(*_: object) -> dict[str, str]:
        raise KeyError("oops")

    fake = client()
    with pytest.raises(ProviderError, match=r"proposer .*broken.*failed [34] times.*oops"):
        optimize(make_task(), model=fake, proposer=broken, max_metric_calls=2000)
    assert len(fake.requests) < 100


def test_unnamed_functions_cannot_own_a_run_directory(tmp_path: Path) -> None:
    """A lambda as the model raises ConfigurationError, and no directory is written."""
    with pytest.raises(ConfigurationError, match="lambda"):
        search(model=lambda _: None, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"minibatch_size": 0}, "minibatch_size"),
        ({"reflection_model": "x/y", "proposer": "exemplar"}, "got both"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, Any], named: str) -> None:
    """Contradictory options raise ConfigurationError that names one of them."""
    with pytest.raises(ConfigurationError, match=named):
        optimize(make_task(), model=client(), **options)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_missing_split_is_refused(split: str) -> None:
    """A task without one of the splits raises ConfigurationError that names the split."""
    with pytest.raises(ConfigurationError, match=split):
        optimize(make_task(**{split: ()}), model=client())


def test_reflection_needs_a_model_and_unknown_proposers_are_refused() -> None:
    """Reflection without a model, and an unknown proposer, raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="reflection_model"):
        optimize(make_task(), model=client(), proposer="reflection")
    for unknown in ("magic", ""):
        with pytest.raises(ConfigurationError, match=f"got '{unknown}'"):
            optimize(make_task(), model=client(), proposer=unknown)  # type: ignore[arg-type]


def test_a_reflection_model_is_not_asked_twice(tmp_path: Path) -> None:
    """The reflection model reads graded feedback, and a second run does not ask it again."""
    seen: list[str] = []

    def reflect(prompt: str) -> str:
        seen.append(prompt)
        shown = " ".join(f'{{"category": "{label}"}}' for label in LABELS)
        return f"```\nClassify like {shown}\n```"

    task = make_task(user_template="{input}!")
    result = optimize(task, model=client(), reflection_model=reflect, max_metric_calls=80, out=tmp_path)
    assert result.proposer == "reflection"
    assert result.best_prompt.prompt.startswith("Classify like")
    assert "Expected" in seen[0]
    assert "% probability)" in seen[0]
    asked = len(seen)
    optimize(task, model=client(), reflection_model=reflect, max_metric_calls=80, out=tmp_path)
    assert len(seen) == asked


@pytest.mark.parametrize("price", [0.25, None])
def test_the_cost_of_a_repeated_search_holds_its_earlier_reflections(
    tmp_path: Path, price: float | None
) -> None:
    """A second run, which asks nothing, states what the first one paid, or how many calls had no known price."""

    def reflect(_prompt: str) -> str:
        if price is not None:
            reflect.total_cost += price  # type: ignore[attr-defined]
        return "```\nClassify like " + " ".join(f'{{"category": "{label}"}}' for label in LABELS) + "\n```"

    found = []
    for _ in range(2):
        reflect.total_cost = price and 0.0  # type: ignore[attr-defined]
        found.append(
            optimize(make_task(), model=client(), reflection_model=reflect, max_metric_calls=80, out=tmp_path)
        )
    first, again = found
    assert (again.cost, again.unpriced_calls) == (first.cost, first.unpriced_calls)
    assert first.cost is None if price is None else first.cost >= price


def test_unreachable_reflection_model_ends_the_run() -> None:
    """A reflection model that keeps failing raises ProviderError before the budget is spent."""
    fake = client()

    def broken(_: str) -> str:
        raise RuntimeError("no route")

    with pytest.raises(ProviderError, match=r"failed [34] times in a row.*no route"):
        optimize(make_task(), model=fake, reflection_model=broken, max_metric_calls=2000)
    assert len(fake.requests) < 100


def test_progress_counts_calls_scores_and_cost() -> None:
    """The last progress of the search has the result's calls, scores and proposals."""
    seen: list[Progress] = []
    result = search(progress=seen.append)
    search_states = [p for p in seen if p.phase == "search"]
    last = search_states[-1]
    assert last.best_score == pytest.approx(result.best_prompt.validation_score)
    assert last.calls == result.metric_calls
    assert (last.proposals, last.accepted) == (result.proposals, result.accepted)
    assert (seen[-1].phase, seen[-1].calls, seen[-1].total) == ("test", 24, 24)
    assert [p.calls for p in search_states] == sorted(p.calls for p in search_states)


@pytest.mark.parametrize(
    ("section", "strategy"),
    [
        (ScoringSettings(strategy="threshold", parameters={"threshold": 0.6}), ThresholdScoring(0.6)),
        (ScoringSettings(strategy="threshold", parameters={"threshold": 0.8}), ThresholdScoring(0.8)),
        (ScoringSettings(strategy="sigmoid"), SigmoidScoring()),
        (ScoringSettings(strategy="brier"), BrierScoring()),
        (ScoringSettings(strategy="log"), LogScoring()),
    ],
)
def test_scoring_section_chooses_the_strategy(section: ScoringSettings, strategy: ScoringStrategy) -> None:
    """`[scoring]` sets the strategy and its parameters."""
    fake = FakeClient(LABELS, lambda text: (text.split()[1].capitalize(), 0.7))
    result = search(make_task(scoring=section), model=fake)
    distribution = exact(LABELS, [0.7, 0.15, 0.15])
    score = strategy.score(True, math.log(0.7), distribution=distribution, answer=LABELS[0])  # noqa: FBT003
    assert result.validated[0].score == pytest.approx(score)


def test_wrong_scoring_parameters_are_refused() -> None:
    """Parameters of another strategy raise ConfigurationError."""
    section = ScoringSettings(strategy="brier", parameters={"threshold": 0.5})
    with pytest.raises(ConfigurationError, match="do not fit"):
        search(make_task(scoring=section))


def test_a_journal_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    """A journal that another process writes raises StateError, and so does a broken line."""
    path = tmp_path / "journal.jsonl"
    with JsonlStore(path) as store:
        store.put("a", 1)
        with path.open("ab") as writing:
            writing.write(b'{"key": "b", "val')
        with pytest.raises(StateError, match="another process is writing this journal"):
            JsonlStore(path)
        assert path.read_bytes().endswith(b'"val')
    path.write_text('{"key": "a", "value": 1}\nnot json\n')
    with pytest.raises(StateError, match=r"journal.jsonl:2"):
        JsonlStore(path)


@pytest.mark.parametrize("moment", [3, 60, 110], ids=["the first rows", "the search", "the test rows"])
def test_a_moved_directory_ends_the_search(tmp_path: Path, moment: int) -> None:
    """A search whose directory was moved raises CalibrantError, and goes on from the new place."""
    out, moved = tmp_path / "run", tmp_path / "elsewhere"
    settings: dict[str, Any] = {"max_metric_calls": 120, "minibatch_size": 4}
    asked = 0

    def rule(text: str, prompt: str) -> Any:
        nonlocal asked
        asked += 1
        if asked == moment:
            out.rename(moved)
        return learner(text, prompt)

    with pytest.raises(CalibrantError, match="moved or removed during the run") as caught:
        optimize(make_task(), model=client(rule), out=out, **settings)
    assert not isinstance(caught.value, StateError)
    assert not out.exists()
    assert not (moved / "result.json").exists()
    paid = len((moved / "journal.jsonl").read_text().splitlines())
    again = client()
    result = optimize(make_task(), model=again, out=moved, **settings)
    whole = client()
    assert replace(result, seconds=0) == replace(optimize(make_task(), model=whole, **settings), seconds=0)
    assert len(again.requests) + paid == len(whole.requests)


def test_no_library_writes_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A search prints nothing."""
    search()
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


# --- reflection models by name --------------------------------------------------------------------


def test_a_reflection_model_takes_every_name_with_options(tmp_path: Path) -> None:
    """A reflection model gets its options; it is tried with one call before a search, and not when that is repeated."""
    fake, seen = client(), []

    def first(_number: int, body: Any) -> None:
        seen.append((len(fake.requests), body["messages"][-1]["content"]))

    with FaultServer(LABELS, lambda _: LABELS[0], faults=first) as server:
        settings: Any = {
            "reflection_model": "hosted_vllm/writer",
            "reflection_options": {"api_base": server.api_base, "max_tokens": 50},
            "max_metric_calls": 80,
        }
        optimize(make_task(), model=fake, out=tmp_path, **settings)
        asked = len(seen)
        optimize(make_task(), model=fake, out=tmp_path, **settings)
    assert seen[0] == (0, "Answer with the word yes.")
    assert len(seen) == asked > 1


@pytest.mark.parametrize(
    "model", ["openai/writer", "gpt-4.1-mini", "llamacpp:/no/such.gguf", "local/no-such"]
)
def test_unreachable_reflection_models_cost_nothing(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """A reflection model that cannot be reached raises an error before any call."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    fake = client()
    with pytest.raises((ConfigurationError, ProviderError)):
        optimize(make_task(), model=fake, reflection_model=model, max_metric_calls=80)
    assert fake.requests == []


def test_progress_names_a_rate_limit_that_is_waited_for() -> None:
    """Progress has the name of a model that waits for its rate limit."""
    seen: list[Progress] = []
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "0.2s"}
    with FaultServer(LABELS, lambda _: LABELS[0], headers=headers) as server:
        model = open_client("openai/m", options={"api_base": server.api_base, "api_key": "k"})
        optimize(make_task(), model=model, max_metric_calls=80, progress=seen.append)
        model.close()
    assert {name for progress in seen for name in progress.rate_limits} == {"openai/m"}


def test_journal_survives_a_line_cut_off_by_a_kill(tmp_path: Path) -> None:
    """A half line at the end of a journal is dropped, and the journal is continued."""
    path = tmp_path / "journal.jsonl"
    with JsonlStore(path) as store:
        store.put("a", 1)
    with path.open("ab") as file:
        file.write(b'{"key": "b", "val')
    with JsonlStore(path) as store:
        assert store.get("a") == 1
        assert store.get("b") is None
        store.put("b", 2)
    with JsonlStore(path) as store:
        assert (store.get("a"), store.get("b")) == (1, 2)


def test_unwritable_and_damaged_directories_are_refused(tmp_path: Path) -> None:
    """A directory that cannot be written, or has a damaged run.json, raises StateError."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StateError, match="choose"):
        search(out=tmp_path / "file" / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("[1]")
    with pytest.raises(StateError, match=r"run.json: expected a JSON object"):
        search(out=tmp_path / "run")


def test_rows_asked_before_cost_neither_a_call_nor_budget() -> None:
    """A row that is asked again under the same prompt costs no call and no budget."""
    fake = client(lambda _: ("Rent", 0.9))
    result = search(model=fake, max_metric_calls=100)
    asked = searched(fake)
    assert len(asked) == len(set(asked)) == result.metric_calls == result.completions


def test_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    """A directory with other files raises StateError, and no file is written."""
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StateError, match="other files"):
        search(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_too_small_a_budget_is_refused_with_the_floor() -> None:
    """A budget below two validation passes and two minibatches raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"max-metric-calls\) >= 26, got 25"):
        search(max_metric_calls=25)


@pytest.mark.parametrize(
    ("name", "address", "is_listed"),
    [
        ("openai/gpt-4.1-mini", "https://api.openai.com/v1", True),
        ("openai/gpt-4.1-mini", "http://127.0.0.1:9/v1", False),
        ("hosted_vllm/gpt-4.1-mini", "", False),
    ],
)
def test_the_list_price_is_known_before_the_first_call(
    monkeypatch: pytest.MonkeyPatch, name: str, address: str, is_listed: bool
) -> None:
    """The first report has the expected cost at the provider's list price; a server of one's own has none."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_BASE", address)
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", "http://127.0.0.1:9/v1")
    seen: list[float | None] = []

    def stop_at_once(progress: Progress) -> None:
        seen.append(progress.expected_cost)
        raise KeyError(name)

    with pytest.raises(KeyError, match=name):
        optimize(make_task(), model=name, max_metric_calls=100, progress=stop_at_once)
    (cost,) = seen
    assert (cost is not None) == is_listed
    if cost is not None:  # of 124 rows: 40 cents a million tokens, and 1.60 for those of answers
        assert 124 * (5 * 0.4e-6 + 10 * 1.6e-6) < cost < 124 * (40 * 0.4e-6 + 10 * 1.6e-6)
