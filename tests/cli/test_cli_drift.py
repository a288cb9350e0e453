"""Tests of drift on the command line: files compared one after another, topics, and the ledger."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from calibrant.testing import Answer, FakeClient, fake_response
from command_line import command, done, json_of, prediction_rows
from fault_server import FaultServer

run = command("label")

WriteTask = Callable[..., Path]
Fake = Callable[..., FakeClient]


def wavering(text: str, _prompt: str) -> Answer:
    """Answer cat to "meow" and dog to everything else, with one of two confidences."""
    return ("cat" if "meow" in text else "dog"), 0.9 if int(text.split(maxsplit=1)[0]) % 4 < 2 else 0.8


WORDS = "red blue green old new big small fast slow wet dry warm".split()  # noqa: SIM905


def rows(count: int, *topics: str, start: int = 0) -> list[dict[str, str]]:
    """Return rows of both labels that are about each of the topics in turn."""
    found = []
    for number in range(start, start + count):
        word, answer = ("meow", "cat") if number % 2 else ("woof", "dog")
        topic = topics[number // 2 % len(topics)]
        more = " ".join(random.Random(number).sample(WORDS, 3))
        found.append({"input": f"{number} {word} {topic} {topic}s {more}", "answer": answer})
    return found


def unlike(found: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows with words of their own, so that none counts as another's near-duplicate."""
    letters = str.maketrans("0123456789", "abcdefghij")
    own = (str(number).translate(letters) for number in range(1000, 10_000))
    return [row | {"input": f"{row['input']} {' '.join(end + next(own) for end in 'wxyz')}"} for row in found]


def served(server: FaultServer) -> str:
    """Return the lines of a task file about a model of a server."""
    options = '[model.options]\napi_key = "none"\n'
    return f'[model]\nname = "openai/any"\napi_base = "{server.api_base}"\n{options}'


def write_rows(path: Path, found: Iterable[dict[str, str]]) -> Path:
    """Write the texts of rows as JSON Lines."""
    path.write_text("".join(json.dumps({"input": row["input"]}) + "\n" for row in found))
    return path


@pytest.fixture
def source(write_task: WriteTask, fake: Fake, tmp_path: Path) -> Path:
    """Return a run with a certificate, and without a head."""
    fake(wavering, name="local/smollm2-135m")
    out = tmp_path / "run"
    done(command("evaluate")(write_task(test=unlike(rows(80, "ship", "farm"))), "--out", out, "--no-cache"))
    done(command("calibrate")(out, "--target-accuracy", 0.8, "--out", out))
    return out


@pytest.fixture
def reading(write_task: WriteTask, fake: Fake, tmp_path: Path) -> Path:
    """Return a search whose head reads the words of texts, on two topics."""
    fake(lambda *_: ("cat", 0.55), name="local/smollm2-135m")
    both = ("ship", "farm")
    task = write_task(
        train=rows(40, *both), validation=rows(40, *both, start=100), test=rows(80, *both, start=200)
    )
    out = tmp_path / "search"
    done(command("optimize")(task, "--max-metric-calls", 40, "--minibatch-size", 3, "--out", out))
    assert any("sketch" in row for row in prediction_rows(out))
    return out


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that labels rows and returns the drift, each time in a new directory."""
    numbers = itertools.count()

    def label(source: Path, found: Sequence[dict[str, str]]) -> Any:
        number = next(numbers)
        data = write_rows(tmp_path / f"data{number}.jsonl", found)
        return json_of(run(source, data, "--out", tmp_path / f"out{number}", "--json"))["drift"]

    return label


# --- files one after another ----------------------------------------------------------------------


def test_every_file_counts_once(source: Path, look: Callable[..., Any]) -> None:
    """Each new file has the next number and a lower level; one that is labelled again has its own."""
    files = [rows(20 + number, "ship") for number in range(4)]
    found = [look(source, one) for one in (*files, files[1])]
    assert [drift["look"] for drift in found] == [1, 2, 3, 4, 2]
    levels = [drift["level"] for drift in found]
    assert levels[0] > levels[1] > levels[2] > levels[3]
    assert levels[4] == levels[1]


def test_levels_of_all_files_sum_to_the_total(source: Path, look: Callable[..., Any]) -> None:
    """With two tests, the levels of any number of files sum to less than half of 0.05, and decline slowly."""
    levels = [look(source, rows(10 + number, "ship"))["level"] for number in range(12)]
    ratio = levels[11] / levels[0]
    assert ratio == pytest.approx(12**-1.3, rel=1e-6)
    rest = levels[11] * 12 / 0.3  # the integral of k ** -1.3 from 12 on
    assert 0.024 < sum(levels) + rest - levels[11] / 2 <= 0.0251


def test_a_bundle_counts_with_its_run(source: Path, look: Callable[..., Any], tmp_path: Path) -> None:
    """A run and its bundle, which nothing is written to, have the files compared with them in common."""
    bundle = tmp_path / "bundle"
    done(command("export")(source, "--out", bundle))
    before = sorted(path.name for path in bundle.iterdir())
    found = [look(folder, rows(20 + n, "ship")) for n, folder in enumerate((source, bundle, bundle))]
    assert [drift["look"] for drift in found] == [1, 2, 3]
    assert sorted(path.name for path in bundle.iterdir()) == before


def test_a_lost_ledger_lies_beside_the_run(
    source: Path, look: Callable[..., Any], calibrant_home: Path
) -> None:
    """The ledger is kept in the user's folder and in the run's directory: one of them may be lost."""
    look(source, rows(20, "ship"))
    (calibrant_home / "drift.jsonl").unlink()
    assert look(source, rows(21, "ship"))["look"] == 2
    (source / "drift.jsonl").unlink()
    assert look(source, rows(22, "ship"))["look"] == 3


def test_another_history_begins_anew(
    source: Path, look: Callable[..., Any], write_task: WriteTask, tmp_path: Path
) -> None:
    """Files that were compared with another run do not count."""
    look(source, rows(20, "ship"))
    other = tmp_path / "other"
    done(command("evaluate")(write_task(test=rows(60, "ship")), "--out", other, "--no-cache"))
    assert look(other, rows(20, "ship"))["look"] == 1


def test_after_a_damaged_ledger_nothing_is_accepted(
    source: Path, tmp_path: Path, calibrant_home: Path
) -> None:
    """Rows are labelled and none is accepted; the line says which file is damaged and what to do."""
    data = write_rows(tmp_path / "data.jsonl", rows(20, "ship"))
    (calibrant_home / "drift.jsonl").parent.mkdir(parents=True, exist_ok=True)
    (calibrant_home / "drift.jsonl").write_text("{half a line\n")
    result = done(run(source, data, "--out", tmp_path / "out"))
    assert "review 20 (as they cannot be compared with the rows of the certificate)" in result.stdout
    assert "none is accepted (--accept-drift accepts them all the same)" in result.stderr
    assert f"{calibrant_home / 'drift.jsonl'}, line 1: expected a JSON object" in result.stderr
    assert len((tmp_path / "out" / "labels.jsonl").read_text().splitlines()) == 20
    accepted = json_of(run(source, data, "--out", tmp_path / "b", "--accept-drift", "--json"))
    assert accepted["decisions"]["accepted"] > 0
    (calibrant_home / "drift.jsonl").unlink()
    mended = json_of(run(source, data, "--out", tmp_path / "c", "--json"))
    assert mended["decisions"]["accepted"] > 0


def test_a_line_without_a_number_is_damage(source: Path, tmp_path: Path, calibrant_home: Path) -> None:
    """A line of these rows whose number is none is damage, too."""
    data = write_rows(tmp_path / "data.jsonl", rows(20, "ship"))
    done(run(source, data, "--out", tmp_path / "a"))
    ledger = calibrant_home / "drift.jsonl"
    ledger.write_text(ledger.read_text().replace('"look": 1', '"look": 0'))
    result = done(run(source, data, "--out", tmp_path / "b"))
    assert "expected the number of a file, from 1, under look, got 0: restore the file" in result.stderr
    assert "decisions: review 20" in result.stdout


def test_a_ledger_that_cannot_be_written_is_warned_of(
    source: Path, tmp_path: Path, calibrant_home: Path
) -> None:
    """Rows are compared as ever, and accepted: a file that is not counted makes later tests stricter."""
    for folder in (calibrant_home, source):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "drift.jsonl").symlink_to(tmp_path / "missing" / "folder" / "drift.jsonl")
    data = write_rows(tmp_path / "data.jsonl", rows(20, "ship"))
    result = done(run(source, data, "--out", tmp_path / "out"))
    assert "warning: later files are compared as if this one had not been" in result.stderr
    assert "accepted 20" in result.stdout


@pytest.mark.parametrize("topic", ["ship", "meow"])
def test_a_file_that_is_labelled_in_several_sittings_counts_once(
    source: Path, look: Callable[..., Any], fake: Fake, tmp_path: Path, topic: str
) -> None:
    """A part of a file is compared under the number of the whole, which it does not spend, and asks for no promise."""

    def priced(text: str, prompt: str) -> Answer:
        label, confidence = wavering(text, prompt)
        response = fake_response(
            label, ["cat", "dog"], [confidence, 1.0 - confidence][:: 1 - 2 * (label == "dog")]
        )
        return response | {"_hidden_params": {"response_cost": 1.0}}

    fake(priced, name="local/smollm2-135m")
    drifts = topic == "meow"  # all rows are cats
    data = write_rows(tmp_path / "data.jsonl", rows(60, topic))
    counted = look(source, rows(25, "ship"))["look"]
    words = (source, data, "--out", tmp_path / "out", "--watch-drift", "--no-cache")
    for _ in range(2):
        part = run(*words, "--max-cost", 20)
        assert part.exit_code == 1
        assert "labels.partial.jsonl" in part.stdout
        assert (
            f"as this is file {counted + 1} compared with the run. It counts once all of its" in part.stdout
        )
        assert ("none is accepted" in part.stdout, "--certify" in part.stdout) == (drifts, False)
    whole = done(run(*words)).stdout
    assert f"as this is file {counted + 1} compared with the run: of all files to come" in whole
    assert ("none is accepted" in whole, "--certify" in whole) == (drifts, drifts)
    assert look(source, rows(21, "ship"))["look"] == counted + 2
    assert f"this is file {counted + 1} compared" in done(run(*words)).stdout


# --- topics ---------------------------------------------------------------------------------------


def test_a_change_of_topic_is_seen(reading: Path, look: Callable[..., Any]) -> None:
    """Texts of the same labels on one of the two topics are drift; those on both are none."""
    same = look(reading, rows(60, "ship", "farm", start=300))
    assert (same["topics_drifted"], same["topics"]["values"]) == (False, 60)
    other = look(reading, rows(60, "ship", start=300))
    assert (other["labels_drifted"], other["topics_drifted"]) == (False, True)
    assert other["topics"]["distance"] > same["topics"]["distance"]


def test_a_bundle_sees_the_topics_of_its_run(reading: Path, look: Callable[..., Any], tmp_path: Path) -> None:
    """A bundle holds sketches and no texts, and finds the distances that its run finds."""
    bundle = tmp_path / "bundle"
    done(command("export")(reading, "--out", bundle))
    assert "200 woof" not in (bundle / "history.json").read_text()
    ships = rows(60, "ship", start=300)
    assert look(bundle, ships)["topics"] == look(reading, ships)["topics"]


def test_topics_are_shown(reading: Path, tmp_path: Path) -> None:
    """The line on topics has the distance, the p-value and the label; a warning is shown without being asked for."""
    both = write_rows(tmp_path / "both.jsonl", rows(60, "ship", "farm", start=300))
    ships = write_rows(tmp_path / "ships.jsonl", rows(60, "ship", start=300))
    quiet = done(run(reading, both, "--out", tmp_path / "a")).stdout
    assert "of the topics" not in quiet
    shown = done(run(reading, both, "--out", tmp_path / "a", "--watch-drift")).stdout
    assert "no drift of the topics within labels: distance 0." in shown
    assert "Drift is p <= 0.0042, as this is file 1 compared with the run" in shown
    warned = done(run(reading, ships, "--out", tmp_path / "b")).stdout
    assert "warning: drift of the topics within labels: distance " in warned
    assert "These rows are unlike the labelled ones of the run" in warned


def test_without_a_head_topics_are_not_watched(source: Path, tmp_path: Path) -> None:
    """Where no head reads the texts, --watch-drift says so in a line, and nothing else does."""
    data = write_rows(tmp_path / "data.jsonl", rows(20, "ship"))
    line = "A change of topic is not watched: no head has read the texts of these rows and of the run's."
    assert line in done(run(source, data, "--out", tmp_path / "a", "--watch-drift")).stdout
    assert line not in done(run(source, data, "--out", tmp_path / "b")).stdout


def test_a_damaged_sketch_is_no_sketch(reading: Path, look: Callable[..., Any]) -> None:
    """Rows of a run whose sketches are damaged are left out of the comparison of topics."""
    path = reading / "predictions.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    damaged = [{**row, "sketch": "?"} if row.get("sketch") and row["index"] < 30 else row for row in lines]
    path.write_text("".join(json.dumps(row) + "\n" for row in damaged))
    assert look(reading, rows(60, "ship", "farm", start=300))["topics"]["history"] == 50


# --- another version of the model -----------------------------------------------------------------


class Versions:
    """Server whose answers name a version of its model, which a test may change for the texts of a topic."""

    def __init__(self) -> None:
        self.of_topic = {"ship": "any-2026-01", "farm": "any-2026-01"}

    def answer(self, text: str, prompt: str) -> dict[str, Any]:
        """Return the answer to a text, with the version."""
        label, confidence = wavering(text, prompt)
        other = "dog" if label == "cat" else "cat"
        distribution = {label: confidence, other: 1 - confidence}
        return fake_response(label, ["cat", "dog"], distribution) | {
            "model": self.of_topic["ship" if "ship" in text else "farm"]
        }


@pytest.mark.parametrize("kind", ["run", "bundle", "search"])
def test_answers_of_a_version_the_promise_was_not_measured_on_are_named(
    write_task: WriteTask, tmp_path: Path, kind: str
) -> None:
    """A warning names both versions, and none comes while the version is the same."""
    versions = Versions()
    source = tmp_path / kind
    labelled = unlike(rows(240, "ship", "farm"))
    parts = {"train": labelled[:40], "validation": labelled[40:80], "test": labelled[80:160]}
    data = write_rows(tmp_path / "data.jsonl", labelled[160:])
    with FaultServer(["cat", "dog"], versions.answer) as server:
        task = write_task(**parts, extra=served(server))
        if kind == "search":
            budget = ("--max-metric-calls", 40, "--minibatch-size", 3)
            done(command("optimize")(task, *budget, "--out", source))
        else:
            done(command("evaluate")(task, "--out", tmp_path / "run", "--no-cache"))
        asked = source if kind == "search" else tmp_path / "run"
        done(command("calibrate")(asked, "--target-accuracy", 0.8, "--out", asked))
        if kind == "bundle":
            done(command("export")(asked, "--out", source))
        same = done(run(source, data, "--out", tmp_path / "same", "--no-cache"))
        versions.of_topic["farm"] = "any-2026-09"
        mixed = done(run(source, data, "--out", tmp_path / "mixed", "--no-cache"))
        versions.of_topic["ship"] = "any-2026-09"
        other = done(run(source, data, "--out", tmp_path / "other", "--no-cache"))
        accepted = done(run(source, data, "--out", tmp_path / "accepted", "--no-cache", "--accept-drift"))
        one_text = done(command("classify")(source, "--text", labelled[160]["input"], "--json"))
    assert "promise" not in same.stderr
    assert "decisions: accepted 80 (by the certified threshold" in same.stdout
    assert "decisions: accepted 40, review 40 (by the certified threshold" in mixed.stdout
    assert ": accuracy of at least 0.8 with probability" in mixed.stdout
    assert "decisions: review 80 (as their model answered no row of the certificate)" in other.stdout
    assert "Until then its answers are for review. --accept-drift accepts them." in other.stderr
    assert json.loads(one_text.stdout)["decision"] == "review"
    assert "any-2026-09 answered, but any-2026-01" in one_text.stderr
    assert "which promises nothing of these rows" in accepted.stdout
    assert "decisions: accepted 80" in accepted.stdout
    assert "with probability" not in accepted.stdout
    assert (
        f"any-2026-09 answered, but any-2026-01 the labelled rows of {source}: its promise was measured on the latter."
        in other.stderr
    )


def test_rows_of_a_certificate_that_cannot_be_read_are_an_error(source: Path, tmp_path: Path) -> None:
    """As it is not known which model answered them, a text of such a run is not accepted, and not decided on."""
    done(command("calibrate")(source, "--target-accuracy", 0.5, "--out", source))
    path = source / "predictions.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text(first + "no row\n" * len(others))
    result = run(source, write_rows(tmp_path / "new.jsonl", rows(3, "ship")), "--out", tmp_path / "labels")
    assert result.exit_code == 2
    assert "predictions.jsonl:2: expected the line of a row" in result.stderr
    assert not (tmp_path / "labels" / "labels.jsonl").exists()


@pytest.mark.parametrize("drifts", [False, True])
def test_texts_that_come_again_in_the_run_are_no_drift(
    write_task: WriteTask, fake: Fake, tmp_path: Path, drifts: bool
) -> None:
    """A greeting of half of the rows is as frequent in a file as in the run; a file that is all about cats drifts."""
    fake(wavering, name="local/smollm2-135m")
    run_rows = [*unlike(rows(80, "ship", "farm")), *[{"input": "4 meow", "answer": "cat"}] * 80]
    out = tmp_path / "run"
    done(command("evaluate")(write_task(test=run_rows), "--out", out, "--no-cache"))
    file_rows = unlike(rows(160 if drifts else 80, "ship", "farm", start=400))
    if drifts:
        file_rows = [row for row in file_rows if row["answer"] == "cat"]
    data = write_rows(tmp_path / "data.jsonl", [*file_rows, *[{"input": "4 meow"}] * 80])
    for number, form in enumerate(("run", "bundle")):
        source = out
        if form == "bundle":
            source = tmp_path / "bundle"
            done(command("export")(out, "--out", source))
        said = json_of(run(source, data, "--out", tmp_path / f"labelled-{number}", "--no-cache", "--json"))
        assert said["drift"]["labels_drifted"] is drifts
