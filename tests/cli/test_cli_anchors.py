"""Tests of ``calibrant compare RUN --anchors``: rows of a run asked anew, and what their answers tell."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import beta, binom

from calibrant.core import ProviderError
from calibrant.testing import Answer, FakeClient
from command_line import animals, command, done, json_of, prediction_rows, refusal, write_rows
from fault_server import FaultServer

run = command("compare")

WriteTask = Callable[..., Path]
Fake = Callable[..., FakeClient]
MODEL = "local/smollm2-135m"
SERVED = '[model]\nname = "openai/any"\napi_base = "{}"\n[model.options]\napi_key = "none"\n'


def sure(text: str) -> float:
    """Return a confidence from 0.6 to 0.95, by the number in the text."""
    return 0.6 + int(text.split(maxsplit=1)[0]) % 36 / 100


def as_then(text: str, _prompt: str = "") -> Answer:
    """Answer as in the recorded run."""
    return ("cat" if "meow" in text else "dog"), sure(text)


def changing(texts: Collection[str]) -> Callable[[str, str], Answer]:
    """Return a rule that gives some texts the other label."""

    def rule(text: str, _prompt: str) -> Answer:
        label, confidence = as_then(text)
        other = {"cat": "dog", "dog": "cat"}[str(label)]
        return (other if text in texts else label), confidence

    return rule


def shifted(amount: float) -> Callable[[str, str], Answer]:
    """Return a rule that is surer of each label by an amount."""

    def rule(text: str, _prompt: str) -> Answer:
        label, confidence = as_then(text)
        return label, confidence + amount

    return rule


@pytest.fixture
def recorded(write_task: WriteTask, fake: Fake, tmp_path: Path) -> Path:
    """Return the directory of a run on 90 rows."""
    fake(as_then, name=MODEL)
    done(command("evaluate")(write_task(test=animals(90)), "--out", tmp_path / "run"))
    return tmp_path / "run"


def texts_of(record: dict[str, Any]) -> list[str]:
    """Return the texts of the anchors in a record."""
    return [one["input"] for one in record["anchors"]]


def test_the_same_model_gives_the_same_answers(recorded: Path, fake: Fake) -> None:
    """An unchanged model ends with 0 and a bound of the share that changed; every row is asked anew, with its price."""
    client = fake(as_then, name=MODEL)
    result = done(run(recorded, "--anchors", 30))
    assert len(client.requests) == 30
    assert result.stderr.startswith(f"30 of 90 rows are asked anew of {MODEL}: ")
    assert "labels      0 of 30 changed" in result.stdout
    assert "confidence  +0.000 on average; 0 rose and 0 fell by more than 0.005  p = 1" in result.stdout
    assert (
        "The same answers, as far as 30 rows tell: with 95 %, at most 9.5% of the run's labels"
        in result.stdout
    )


def test_rows_are_spread_over_confidences(recorded: Path, fake: Fake) -> None:
    """The same rows are asked every time, one from each tenth of the confidences if there are ten."""
    fake(as_then, name=MODEL)
    first, second = (json_of(run(recorded, "--anchors", 10, "--json")) for _ in range(2))
    assert texts_of(first) == texts_of(second)
    everything = sorted(row["confidence"] for row in prediction_rows(recorded))
    asked = sorted(one["confidence"] for one in first["anchors"])
    for place, confidence in enumerate(asked):
        assert everything[9 * place] <= confidence <= everything[9 * place + 8]
    assert asked != everything[::9]  # a hash chooses, not the confidence


@pytest.mark.parametrize(("n_changed", "code"), [(1, 0), (4, 0), (5, 3)])
def test_changed_labels_are_counted(recorded: Path, fake: Fake, n_changed: int, code: int) -> None:
    """One changed label of 30 is no news, five are: more than noise changes, which is a twentieth."""
    fake(as_then, name=MODEL)
    texts = texts_of(json_of(run(recorded, "--anchors", 30, "--json")))
    fake(changing(texts[:n_changed]), name=MODEL)
    result = run(recorded, "--anchors", 30, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["changed"], found["has_moved"]) == (code, n_changed, code == 3)
    assert found["label_p_value"] == pytest.approx(binom.sf(n_changed - 1, 30, 0.05))
    assert found["most_changed"] == pytest.approx(beta.ppf(0.95, n_changed + 1, 30 - n_changed))
    shown = run(recorded, "--anchors", 30).stdout
    assert shown.count(" then, ") == n_changed
    assert ("The model behind the name moved" in shown) is (code == 3)


def test_confidences_that_move_one_way_are_news(recorded: Path, fake: Fake) -> None:
    """A model that is a little surer of every row has moved, though it gives the same labels."""
    fake(shifted(0.01), name=MODEL)
    result = run(recorded, "--anchors", 30)
    assert result.exit_code == 3
    assert "confidence  +0.010 on average; 30 rose and 0 fell by more than 0.005" in result.stdout
    fake(shifted(0.004), name=MODEL)
    done(run(recorded, "--anchors", 30))


def test_noise_is_no_news(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Confidences that are noisy in the run and today seldom raise an alarm: in 5 % at most."""
    noise = random.Random(0)

    def noisy(text: str, _prompt: str) -> Answer:
        label, confidence = as_then(text)
        return label, min(0.99, max(0.51, confidence + noise.gauss(0.0, 0.03)))

    fake(noisy, name=MODEL)
    alarms = 0
    for number in range(20):
        out = tmp_path / f"run-{number}"
        done(command("evaluate")(write_task(test=animals(40)), "--out", out, "--no-cache"))
        alarms += run(out, "--anchors", 20).exit_code == 3
    assert alarms <= 2


def test_another_name_of_the_provider_is_said(write_task: WriteTask, tmp_path: Path) -> None:
    """Where the provider named the model otherwise in the run, both names are printed."""
    recorded = tmp_path / "run"
    with FaultServer(["cat", "dog"]) as server:
        done(
            command("evaluate")(
                write_task(test=animals(20), extra=SERVED.format(server.api_base)), "--out", recorded
            )
        )
        assert "The provider calls it" not in done(run(recorded, "--anchors", 10)).stdout
        rows = prediction_rows(recorded)
        write_rows(recorded, [{**row, "model": "older"} for row in rows])
        said = done(run(recorded, "--anchors", 10)).stdout
    assert f"The provider calls it {rows[0]['model']} now, and called it older in the run." in said


def test_no_saved_answer_is_used(write_task: WriteTask, tmp_path: Path) -> None:
    """Rows that a cache holds are asked again, at the run's own server."""
    rows = animals(20)
    with FaultServer(["cat", "dog"]) as server:
        task = write_task(test=rows, extra=SERVED.format(server.api_base))
        done(command("evaluate")(task, "--out", tmp_path / "run", "--cache", tmp_path / "cache.sqlite"))
        before = sum(server.counts.values())
        done(run(tmp_path / "run", "--anchors", 20))
        assert sum(server.counts.values()) - before >= 20
    gone = run(tmp_path / "run", "--anchors", 20)
    assert gone.exit_code == 1  # no answer is no sign of another model
    assert "error: " in gone.stderr


def test_the_server_may_have_moved(write_task: WriteTask, tmp_path: Path) -> None:
    """--api-base asks the model at another address, and --task names the task of a run without a record of it."""
    recorded = tmp_path / "run"
    with FaultServer(["cat", "dog"]) as server:
        task = write_task(test=animals(20), extra=SERVED.format(server.api_base))
        done(command("evaluate")(task, "--out", recorded))
    with FaultServer(["cat", "dog"]) as server:
        there = ("--api-base", server.api_base)
        assert "labels      0 of 10 changed" in done(run(recorded, "--anchors", 10, *there)).stdout
        assert sum(server.counts.values()) >= 10
        (recorded / "task.json").unlink()
        assert "0 of 10" in done(run(recorded, "--anchors", 10, "--task", task, *there)).stdout
        assert "Expected --api-base with --anchors alone" in refusal(run(recorded, recorded, *there))


def test_rows_that_fail_are_left_out(recorded: Path, fake: Fake) -> None:
    """Anchors that fail today are counted apart; where hardly any is answered, nothing is concluded."""

    def failing(number: int) -> Callable[[str, str], Answer]:
        def rule(text: str, _prompt: str) -> Answer | ProviderError:
            if int(text.split(maxsplit=1)[0]) % number:
                return ProviderError("not now.", provider="fake", status=400)
            return as_then(text)

        return rule

    fake(failing(2), name=MODEL)
    found = json_of(run(recorded, "--anchors", 30, "--json"))
    assert found["failed"] > 0
    assert found["rows"] + found["failed"] == 30
    assert found["most_changed"] == pytest.approx(1 - 0.05 ** (1 / found["rows"]))
    fake(failing(40), name=MODEL)
    result = run(recorded, "--anchors", 30)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "expected at least 5 rows to be answered anew" in result.stderr


def test_answers_are_kept_where_wanted(recorded: Path, fake: Fake, tmp_path: Path) -> None:
    """--out holds the answers, which a second command does not replace, nor pays for others."""
    client = fake(as_then, name=MODEL)
    out = tmp_path / "today"
    printed = json_of(run(recorded, "--anchors", 10, "--out", out, "--json"))
    assert json.loads((out / "anchors.json").read_text()) == printed
    n_calls = len(client.requests)
    assert "expected no answers here yet, got some: name another directory by --out" in refusal(
        run(recorded, "--anchors", 10, "--out", out)
    )
    assert len(client.requests) == n_calls


def test_what_anchors_do_not_go_with_is_refused(recorded: Path, fake: Fake, tmp_path: Path) -> None:
    """Several runs, gates, too few rows, and --out alone are errors before any call."""
    client = fake(as_then, name=MODEL)
    for words in ([recorded, recorded], [recorded, "--gate"], [recorded, "--require-better"]):
        assert "Expected one run with --anchors" in refusal(run(*words, "--anchors", 30))
    assert "at least 5 rows for --anchors, got 4" in refusal(run(recorded, "--anchors", 4))
    assert "Expected --out with --anchors" in refusal(run(recorded, recorded, "--out", tmp_path / "x"))
    assert not client.requests
