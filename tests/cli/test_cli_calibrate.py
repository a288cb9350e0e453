"""Tests of ``calibrant calibrate``: fitting, held-out figures, and certificates."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from calibrant.calibration import load_calibrator
from calibrant.core import DataError, Example, StateError
from calibrant.evaluation import BatchEvaluator, calibrate_predictions
from calibrant.inference import Classifier
from calibrant.metrics import brier_score, expected_calibration_error
from calibrant.reports import write_report
from calibrant.runs import SavedRows
from calibrant.testing import FakeClient
from command_line import (
    command,
    done,
    json_of,
    knows,
    recorded_rows,
    refusal,
    spelled,
    unlike_animals,
    write_rows,
)
from fault_server import FaultServer

run = command("calibrate")

LABELS = ["cat", "dog"]


def rows(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return predictions of a model that is surer than it is right: confidence c, accuracy c to the fourth."""
    rng = np.random.default_rng(seed)
    confidence = 1.0 - rng.uniform(0.0, 0.6, count) ** 2
    correct = rng.uniform(size=count) < confidence**4
    found = recorded_rows(correct, confidence)
    return [{**row, "input": f"{row['input']} {spelled(n)}"} for n, row in enumerate(found)]


def test_it_learns_what_confidence_is_worth(tmp_path: Path) -> None:
    """Calibration lowers the ECE and the Brier score on the held-out rows, and prints their number."""
    result = done(run(write_rows(tmp_path / "p.jsonl", rows(2000)), "--out", tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert (found["schema_version"], found["kind"]) == (1, "calibration")
    assert found["fit_rows"] == found["held_out"]["rows"] == 1000
    held_out = found["held_out"]
    assert held_out["ece_after"]["estimate"] < 0.6 * held_out["ece_before"]["estimate"]
    assert held_out["brier_difference"]["upper"] < 0.0
    for name in ("ece_before", "ece_after", "brier_before", "brier_after"):
        assert held_out[name]["lower"] <= held_out[name]["estimate"] <= held_out[name]["upper"]
    assert found["calibrator"]["name"] != "none"
    assert 0.0 < found["thresholds"]["low"] <= found["thresholds"]["high"] <= 1.0
    assert (found["certified"], found["certification"]) == (None, None)
    assert "learned from 1,000 rows, tested on 1,000 others" in result.stdout
    assert "Thresholds: high 0." in result.stdout
    assert "Certified" not in result.stdout


def test_few_rows_that_are_all_right_do_not_prove_a_sure_model() -> None:
    """Where no tested row is wrong, the intervals still hold the errors of a model that is right in 97 of 100."""
    records = [
        {"input": f"text {spelled(n)}", "label": "cat", "answer": "cat", "confidence": 0.999}
        for n in range(50)
    ]
    found = calibrate_predictions(SavedRows.of(records)).held_out
    assert (found.rows, found.correct) == (25, 25)
    assert found.brier_before.upper > 0.1
    assert found.ece_before.upper > 0.1


def test_the_held_out_numbers_are_those_of_the_other_half(tmp_path: Path) -> None:
    """The held-out figures equal those computed by hand on the rows that were not fitted."""
    found = calibrate_predictions(SavedRows.load(write_rows(tmp_path / "p.jsonl", rows(400))), seed=3)
    data = rows(400)
    fitted = set(found.selection.calibrator.rows_.ids)
    assert len(fitted) == found.fit_rows == 200
    p = np.array([row["confidence"] for row in data])
    y = np.array([row["correct"] for row in data], dtype=float)
    assert found.held_out.correct < y.sum()
    names = [row["input"] for row in data]
    held_out = [row for row, name in enumerate(names) if not _was_fitted(found.selection.calibrator, name)]
    assert len(held_out) == found.held_out.rows
    assert found.held_out.brier_before.estimate == pytest.approx(brier_score(p[held_out], y[held_out]))
    assert found.held_out.ece_before.estimate == pytest.approx(
        expected_calibration_error(p[held_out], y[held_out])
    )
    q = found.selection.calibrator.predict(p[held_out])
    assert found.held_out.brier_after.estimate == pytest.approx(brier_score(q, y[held_out]))


@pytest.mark.parametrize(("power", "true"), [(1.0, 0.0), (2.0, 0.133)])
def test_the_interval_of_a_calibration_error_is_of_the_error_without_chance(
    power: float, true: float
) -> None:
    """Of a calibrated model it begins at 0, though the estimate does not; of an overconfident one above it."""
    held = above = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sure = rng.beta(4, 1, 400)
        right = rng.random(400) < sure**power
        columns = zip(sure.tolist(), right.tolist(), strict=True)
        saved = SavedRows.of([{"confidence": p, "correct": y} for p, y in columns])
        found = calibrate_predictions(saved).held_out.ece_before
        assert found.estimate > 0.02
        held += found.lower <= true <= found.upper
        above += found.lower > 0.0
    assert held >= 17
    assert above >= 15 if power > 1.0 else above <= 3


def _was_fitted(calibrator: Any, name: str) -> bool:
    try:
        calibrator.evaluate([0.5], [1], ids=[name])
    except ValueError:
        return True
    return False


def test_rows_of_one_text_stay_in_one_half(tmp_path: Path) -> None:
    """Rows of one text stay in one half; rows of a single text raise DataError."""
    data = rows(200)
    for row in data:
        row["input"] = f"text {row['index'] % 50}"
    assert calibrate_predictions(SavedRows.load(write_rows(tmp_path / "p.jsonl", data))).fit_rows == 100
    for row in data:
        row["input"] = "always the same"
    with pytest.raises(DataError, match="rows of one text stay together"):
        calibrate_predictions(SavedRows.load(write_rows(tmp_path / "p.jsonl", data)))


def test_the_seed_decides(tmp_path: Path) -> None:
    """Equal seeds write equal bytes, another seed writes other ones, and a negative seed is refused."""
    path = write_rows(tmp_path / "p.jsonl", rows(300))
    texts = []
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        done(run(path, "--out", tmp_path / out, "--seed", seed))
        texts.append((tmp_path / out / "calibration.json").read_text())
    assert texts[0] == texts[1] != texts[2]
    assert "seed to be a whole number from 0, got -1" in refusal(
        run(path, "--out", tmp_path / "d", "--seed", -1)
    )


def test_an_acceptance_rule_is_certified(tmp_path: Path) -> None:
    """Answers accepted by the certified threshold reach the target accuracy on fresh rows, too."""
    write_rows(tmp_path / "predictions.jsonl", rows(2000))
    result = done(run(tmp_path, "--target-accuracy", 0.9, "--delta", 0.1, "--out", tmp_path))
    certified = json.loads((tmp_path / "calibration.json").read_text())["certified"]
    assert set(certified) == {"threshold", "coverage", "accuracy_lower_bound", "target_accuracy", "delta"}
    assert certified["accuracy_lower_bound"] >= certified["target_accuracy"] == 0.9
    assert certified["delta"] == 0.1
    fresh = [row for row in rows(20_000, seed=1) if row["confidence"] >= certified["threshold"]]
    assert np.mean([row["correct"] for row in fresh]) >= 0.9
    assert len(fresh) / 20_000 == pytest.approx(certified["coverage"], abs=0.05)
    assert (
        f"Certified: answers with a confidence of {certified['threshold']:.6g} or more have at least accuracy 0.9 "
        in result.stdout
    )
    page = write_report(tmp_path).read_text()
    assert f"certified: threshold {certified['threshold']:.4g}, coverage {certified['coverage']:.3f}" in page


@pytest.mark.parametrize(
    ("asked", "probability"),
    [((), "0.9"), (("--delta", 0.1), "0.85"), (("--delta", 0.1, "--looks", 4), "0.9")],
)
def test_a_higher_certificate_is_not_replaced_silently(
    asked: tuple[object, ...], probability: str, tmp_path: Path
) -> None:
    """A certificate of a lower accuracy says which one it replaces, and the command that brings that back."""
    write_rows(tmp_path / "predictions.jsonl", rows(2000))
    higher = done(run(tmp_path, "--target-accuracy", 0.9, *asked, "--out", tmp_path)).stdout
    lower = done(run(tmp_path, "--target-accuracy", 0.8, "--out", tmp_path)).stdout
    line = next(line for line in lower.splitlines() if line.startswith("That replaces "))
    assert f"the certificate of accuracy 0.9 in {tmp_path};" in line
    again = done(run(*shlex.split(line.rsplit(": calibrant calibrate ", 1)[1]))).stdout
    for text in (higher, again):
        assert "have at least accuracy 0.9 " in text
        assert "That replaces" not in text
    # It counts once, beside the lower one.
    assert f"have at least accuracy 0.9 with probability {probability};" in again


def certification(path: Path, out: Path) -> dict[str, Any]:
    """Return the certificate of a file of predictions."""
    done(run(path, "--target-accuracy", 0.8, "--out", out))
    found: dict[str, Any] = json.loads((out / "calibration.json").read_text())["certification"]
    return found


def test_near_duplicates_count_as_one(tmp_path: Path) -> None:
    """A certificate tests one row of each group of near-duplicates, whatever the order of the file, and says so."""
    templates = (
        "Where is the parcel with order {} of mine",
        "You charged {} euros too much for a lamp",
        "I cannot sign in since {} days ago",
    )
    alike = [
        {**row, "input": templates[n % 3].format(n), "confidence": 0.7, "correct": n > 2}
        for n, row in enumerate(rows(30))
    ]
    others = [{**row, "confidence": 0.9, "correct": True} for row in rows(60)]
    found = [{**row, "index": n} for n, row in enumerate([*alike, *others])]
    result = done(
        run(write_rows(tmp_path / "a.jsonl", found), "--target-accuracy", 0.8, "--out", tmp_path / "a")
    )
    clause = "27 near-duplicates of them count for nothing more: one of each group was tested."
    assert clause in result.stdout
    first = certification(tmp_path / "a.jsonl", tmp_path / "a")
    assert (first["n"], first["n_repeats"]) == (63, 27)
    other_order = write_rows(tmp_path / "b.jsonl", found[::-1])
    assert certification(other_order, tmp_path / "b") == first
    assert clause not in done(run(write_rows(tmp_path / "c.jsonl", others), "--out", tmp_path / "c")).stdout


def test_what_cannot_be_certified_is_said(tmp_path: Path) -> None:
    """With too few rows the reason is printed, and "certified" and its threshold are null."""
    path = write_rows(tmp_path / "p.jsonl", rows(60))
    result = done(run(path, "--target-accuracy", 0.99, "--out", tmp_path))
    found = json.loads((tmp_path / "calibration.json").read_text())
    assert (found["certified"], found["certification"]["threshold"]) == (None, None)
    assert "Nothing certified: These 60 rows are too few to promise 0.99 accuracy with pr" in result.stdout
    assert "target_accuracy" in refusal(run(path, "--target-accuracy", 1.5, "--out", tmp_path))


def test_an_accuracy_that_was_never_seen_is_said_plainly(tmp_path: Path) -> None:
    """If no threshold reaches the target, no more rows are requested; a reversed ranking is reported."""
    found = [
        {**row, "correct": n % 3 == 0, "confidence": 0.9 if n % 3 else 0.6} for n, row in enumerate(rows(80))
    ]
    result = done(run(write_rows(tmp_path / "p.jsonl", found), "--target-accuracy", 0.9, "--out", tmp_path))
    assert (
        "Nothing certified: No threshold reaches 0.9 accuracy on these 80 rows; no group of confident answers large "
        "enough to tell was that accurate, so that more rows like these would not help."
    ) in result.stdout
    assert "Nor do they bear a lower promise: targets down to 0.5 were tried." in result.stdout
    assert "Confidence ranks backwards: in 100% of all pairs" in result.stdout
    assert json.loads((tmp_path / "calibration.json").read_text())["auroc"]["estimate"] == 0.0
    assert "family" not in result.stdout
    assert "something else" not in result.stdout


def test_a_plan_of_certificates_claims_no_trial_of_lower_targets(tmp_path: Path) -> None:
    """With --looks no lower target is tried: the output says that one can be asked for, while looks are left."""
    path, out = write_rows(tmp_path / "p.jsonl", rows(120)), tmp_path / "out"
    said = []
    for target in (0.99, 0.98, 0.97):
        asked = ("--target-accuracy", target, "--looks", 3, "--out", out)
        said.append(done(run(path, *asked)).stdout)
    assert all("Nothing certified: " in text and "were tried" not in text for text in said)
    line = "No lower target was tried: one can be asked for as the next of the 3 planned certificates."
    assert [line in text for text in said] == [True, True, False]
    assert "Certified: " in done(run(path, "--target-accuracy", 0.5, "--looks", 3, "--out", out)).stdout


def test_the_best_promise_is_named_with_its_command(tmp_path: Path) -> None:
    """Where the wanted accuracy is not certified, the printed command certifies the best promise of these rows."""
    path, out = write_rows(tmp_path / "p.jsonl", rows(120)), tmp_path / "out"
    result = done(run(path, "--target-accuracy", 0.99, "--delta", 0.1, "--out", out))
    certification = json.loads((out / "calibration.json").read_text())["certification"]
    offered, total = certification["best_promise"], certification["looks"]["total"]
    assert 0.1 < total < 0.2
    said = f"These rows do bear a promise of {offered['target_accuracy']:g} for {offered['coverage']:.0%} of the rows"
    assert (
        f"{said}, with probability {1 - total:.4g} (that it was picked from 10 targets is allowed for). To"
        in result.stdout
    )
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("  calibrant calibrate")]
    assert line.endswith(f"--target-accuracy {offered['target_accuracy']:g} --delta 0.01 --out {out}")
    done(run(*shlex.split(line)[2:]))
    certified = json.loads((out / "calibration.json").read_text())["certified"]
    assert certified == {name: offered[name] for name in certified} | {"delta": total}


@pytest.mark.parametrize(
    ("asked", "printed"),
    [
        ((), ""),
        (("--delta", 0.02), " --delta 0.02"),
        (("--delta", 0.02, "--looks", 3), " --delta 0.02 --looks 3"),
        (("--looks", 2), " --looks 2"),
    ],
)
@pytest.mark.parametrize("target", [0.8, 0.99])
def test_the_command_for_fresh_rows_asks_for_the_same_promise(
    asked: tuple[object, ...], printed: str, target: float, tmp_path: Path
) -> None:
    """It names the delta and the looks that were asked for, whether or not anything was certified."""
    other = [{**row, "confidence": 0.99 * row["confidence"]} for row in rows(400)]
    done(
        run(
            write_rows(tmp_path / "other.jsonl", other), "--target-accuracy", 0.7, "--out", tmp_path / "other"
        )
    )
    path = write_rows(tmp_path / "p.jsonl", rows(400))
    result = done(run(path, "--target-accuracy", target, *asked, "--out", tmp_path / "out"))
    assert ("Nothing certified: " in result.stdout) is (target > 0.9)
    (line,) = [line for line in result.stdout.splitlines() if "--fresh-test" in line]
    assert (
        line
        == f"  calibrant calibrate RUN --fresh-test FRESH.csv --target-accuracy {target}{printed} --out fresh"
    )


def promised(directory: Path) -> Any:
    """Return the certificate in a directory."""
    return json.loads((directory / "calibration.json").read_text())["certified"]


def test_a_certificate_outlives_suggestions(tmp_path: Path) -> None:
    """Without a target accuracy, or with one that cannot be certified, a certificate stays; another replaces it."""
    write_rows(tmp_path / "predictions.jsonl", rows(400))
    done(run(tmp_path, "--target-accuracy", 0.8, "--out", tmp_path))
    first = promised(tmp_path)
    result = done(run(tmp_path, "--seed", 1, "--out", tmp_path))
    assert f"The certificate in {tmp_path} stays as it is: answers with a confidence of " in result.stdout
    assert (promised(tmp_path), json_of(run(tmp_path, "--out", tmp_path, "--json"))["requested"]) == (
        first,
        None,
    )
    result = done(run(tmp_path, "--target-accuracy", 0.999, "--out", tmp_path))
    assert "Nothing certified: " in result.stdout
    assert "stays as it is: answers with a confidence of " in result.stdout
    assert promised(tmp_path) == first
    done(run(tmp_path, "--target-accuracy", 0.7, "--out", tmp_path))
    assert promised(tmp_path)["target_accuracy"] == 0.7


def test_certificates_of_other_predictions_are_not_replaced(tmp_path: Path) -> None:
    """A directory with a certificate of other predictions takes no suggestions; it names these predictions."""
    one, other = (write_rows(tmp_path / name, rows(400)) for name in ("one.jsonl", "other.jsonl"))
    done(run(one, "--target-accuracy", 0.8, "--out", tmp_path / "out"))
    first = promised(tmp_path / "out")
    message = refusal(run(other, "--out", tmp_path / "out"))
    assert f"holds a certificate of other predictions ({one})" in message
    assert promised(tmp_path / "out") == first


def test_what_could_not_be_certified_stays_said(tmp_path: Path) -> None:
    """A target that these rows did not bear stays written down without another one; other rows begin anew."""
    path, out = write_rows(tmp_path / "p.jsonl", rows(400)), tmp_path / "out"
    done(run(path, "--target-accuracy", 0.999, "--out", out))
    done(run(path, "--out", out))
    assert json.loads((out / "calibration.json").read_text())["certification"]["target_accuracy"] == 0.999
    done(run(write_rows(tmp_path / "other.jsonl", rows(400, seed=1)), "--out", out))
    assert json.loads((out / "calibration.json").read_text())["certification"] is None


def test_suggestions_say_that_they_promise_nothing(tmp_path: Path) -> None:
    """Without a certificate the output says that no answer is accepted, and how to certify one."""
    result = done(run(write_rows(tmp_path / "p.jsonl", rows(200)), "--out", tmp_path))
    assert "No answer is accepted by these thresholds, which promise nothing." in result.stdout
    assert "add --target-accuracy 0.9" in result.stdout


def test_a_low_label_mass_is_said(tmp_path: Path) -> None:
    """Low label mass is counted; mass in the space "outer" or on an error is not."""
    found = rows(80)
    found[0] |= {"label_mass": 0.1, "unresolved_mass": 0.1, "space": "exact"}
    found[1] |= {"label_mass": 0.2, "unresolved_mass": 0.2, "space": "raw"}
    found[2] |= {"label_mass": 0.2, "space": "raw"}
    found[3] |= {"label_mass": 0.2, "unresolved_mass": 0.3, "space": "raw"}
    found[4] |= {"label_mass": "heavy", "space": "outer"}
    found[5] |= {"label_mass": 0.1, "space": "exact", "outcome": "error"}
    result = done(run(write_rows(tmp_path / "p.jsonl", found), "--out", tmp_path))
    assert "The model wanted to write something else on 3 of 79 rows" in result.stdout
    assert json.loads((tmp_path / "calibration.json").read_text())["rows_with_low_label_mass"] == 3


def test_the_calibrator_of_a_run_fits_its_classifier_and_no_other(tmp_path: Path) -> None:
    """The calibrator of a run loads with the classifier's fingerprint; another prompt raises StateError."""
    texts = [f"{n} {'meow' if n % 2 else 'woof'}" for n in range(120)]
    fake = FakeClient(LABELS, lambda text, _: ("cat" if "meow" in text else "dog", 0.6 + len(text) % 3 / 10))
    examples = [Example(input=text, answer="cat" if n % 3 else "dog") for n, text in enumerate(texts)]
    classifier = Classifier(model=fake, labels=LABELS, field="category", prompt="Which?")
    BatchEvaluator(classifier).evaluate(examples, out=tmp_path / "run")
    result = done(run(tmp_path / "run", "--out", tmp_path / "run"))
    assert "calibration.json, calibrator.json" in result.stdout
    found = json.loads((tmp_path / "run" / "calibration.json").read_text())
    assert found["fingerprint"] == classifier.fingerprint().to_record()
    own = load_calibrator(tmp_path / "run" / "calibrator.json", fingerprint=classifier.fingerprint())
    assert own.predict([0.7]).shape == (1,)
    other = classifier.with_prompt("What animal?")
    with pytest.raises(StateError, match="differs in prompt"):
        load_calibrator(tmp_path / "run" / "calibrator.json", fingerprint=other.fingerprint())


def test_without_a_run_no_calibrator_is_left(tmp_path: Path) -> None:
    """Predictions from a file save no calibrator, and an old calibrator.json is removed."""
    (tmp_path / "calibrator.json").write_text("of earlier predictions")
    result = done(run(write_rows(tmp_path / "p.jsonl", rows(100)), "--out", tmp_path))
    assert "the calibrator was not saved: nothing says which prompt and model" in result.stderr
    assert not (tmp_path / "calibrator.json").exists()
    assert (tmp_path / "calibration.json").exists()


def test_rows_without_confidence_or_label_are_left_out_and_counted(tmp_path: Path) -> None:
    """Rows are counted by the reason for which they are left out."""
    data = rows(100)
    data[0] |= {"outcome": "error", "confidence": None, "correct": None}
    data[1] |= {"outcome": "refusal", "confidence": None, "correct": False, "label": None}
    data[2] |= {"correct": None, "answer": None}
    result = done(run(write_rows(tmp_path / "p.jsonl", data), "--out", tmp_path, "--json"))
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "calibration.json").read_text())
    assert found["left_out"] == {"errors": 1, "unlabelled": 1, "without_confidence": 1}
    assert found["fit_rows"] + found["held_out"]["rows"] == 97
    text = run(tmp_path / "p.jsonl", "--out", tmp_path).stdout
    assert "(left out: 1 failed, 1 without a true label, 1 without a confidence)" in text


def test_few_rows_are_refused(tmp_path: Path) -> None:
    """The message names the number of rows and the number needed."""
    result = run(write_rows(tmp_path / "p.jsonl", rows(19)), "--out", tmp_path / "out")
    assert "at least 20 rows with a confidence and a true label, got 19 of 19" in refusal(result)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"correct": True, "label": "cat"}, id="all-right"),
        pytest.param({"correct": False, "label": "dog"}, id="all-wrong"),
        pytest.param({"confidence": 1.0}, id="constant"),
    ],
)
def test_odd_predictions_give_a_stated_result(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Predictions of odd values give files and output without NaN and infinity."""
    data = [{**row, **changes} for row in rows(100)]
    result = done(run(write_rows(tmp_path / "p.jsonl", data), "--target-accuracy", 0.8, "--out", tmp_path))
    text = (tmp_path / "calibration.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert "nan" not in result.stdout
    assert ("No thresholds: Expected at least 5 correct" in result.stdout) == (
        changes.get("correct") is False
    )


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file in the place of the output directory is named in the error."""
    (tmp_path / "out").write_text("")
    assert f"{tmp_path / 'out'}: cannot be written" in refusal(
        run(write_rows(tmp_path / "p.jsonl", rows(100)), "--out", tmp_path / "out")
    )


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"complete": True}, ""),
        ({"best_candidate": {"system_prompt": "p"}, "model": "m"}, ""),
        ({"complete": False, "stopped": "Ctrl-C"}, "holds a run that ended early (Ctrl-C)"),
        (None, "has neither metrics.json nor result.json"),
    ],
)
def test_an_unfinished_run_is_noticed(tmp_path: Path, metrics: dict[str, Any] | None, said: str) -> None:
    """Rows of an unfinished run are used, with a warning that the run is incomplete."""
    run_directory = tmp_path / "run"
    run_directory.mkdir()
    write_rows(run_directory / "predictions.jsonl", rows(200))
    (run_directory / "run.json").write_text(
        '{"schema_version": 1, "prompt": "p", "user_template": null, "model": "m"}'
    )
    if metrics is not None:
        name = "metrics.json" if "complete" in metrics else "result.json"
        (run_directory / name).write_text(json.dumps({"schema_version": 1, **metrics}))
    found = done(run(run_directory, "--out", tmp_path / "out"))
    assert said in found.stderr
    assert ("warning" in found.stderr) == bool(said)


# --- fresh rows ---------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """Yield a server whose model gets three in four rows right."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with FaultServer(["cat", "dog"], knows) as started:
        yield started


@pytest.fixture
def served(server: FaultServer) -> str:
    """Return the lines of a task file that name the server's model."""
    return f'[model]\nname = "openai/any"\napi_base = "{server.api_base}"\n'


@pytest.fixture
def evaluated(write_task: Callable[..., Path], tmp_path: Path, served: str) -> Path:
    """Return a run on 60 rows."""
    out = tmp_path / "run"
    done(command("evaluate")(write_task(extra=served, test=unlike_animals(60)), "--out", out))
    return out


def fresh_test(tmp_path: Path, run_directory: Path, rows: list[dict[str, str]], **options: object) -> Result:
    """Certify labelled rows under a run's classifier, by default at 0.6 into a directory of their own."""
    file = write_rows(tmp_path / "fresh.jsonl", rows)
    settings = {"target_accuracy": 0.6, "out": tmp_path / "fresh", **options}
    named = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    return run(run_directory, "--fresh-test", file, *named)


def test_fresh_rows_are_asked_and_certified(evaluated: Path, server: FaultServer, tmp_path: Path) -> None:
    """The run's classifier answers the rows once, and the directory accepts answers by their certificate."""
    before = sum(server.counts.values())
    result = done(fresh_test(tmp_path, evaluated, unlike_animals(100, start=60)))
    assert sum(server.counts.values()) == before + 100
    assert "Certified: answers with a confidence of" in result.stdout
    data = tmp_path / "new.csv"
    data.write_text("input\nmeow at last\n")
    labelled = done(command("label")(tmp_path / "fresh", data, "--out", tmp_path / "labelled"))
    assert "decisions: accepted 1 (by the certified threshold 0.8 " in labelled.stdout


def test_rows_that_a_run_has_seen_certify_nothing(
    evaluated: Path, server: FaultServer, tmp_path: Path
) -> None:
    """From more than one row in twenty on no model is asked."""
    before = sum(server.counts.values())
    message = refusal(fresh_test(tmp_path, evaluated, unlike_animals(100, start=50)))
    assert f"expected rows that {evaluated} has not seen, but it knows 10% of them" in message
    assert sum(server.counts.values()) == before
    assert not (tmp_path / "fresh").exists()


def test_the_same_greeting_is_no_seen_row(evaluated: Path, tmp_path: Path) -> None:
    """One row in twenty may be known by chance."""
    result = done(fresh_test(tmp_path, evaluated, unlike_animals(100, start=55)))
    assert "Certified: " in result.stdout


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_search_has_seen_the_rows_of_every_split(
    write_task: Callable[..., Path], served: str, tmp_path: Path, split: str
) -> None:
    """Rows that its prompt or its head was made with are no fresh ones."""
    splits = {
        name: unlike_animals(30, start=30 * n) for n, name in enumerate(("train", "validation", "test"))
    }
    source = tmp_path / "run"
    done(command("optimize")(write_task(extra=served, **splits), "--out", source, "--max-metric-calls", 80))
    assert "it knows 100% of them" in refusal(fresh_test(tmp_path, source, splits[split]))


def test_rows_of_a_run_that_taught_it_are_warned_of_under_its_task(
    write_task: Callable[..., Path], served: str, tmp_path: Path
) -> None:
    """Its test rows are judged as a matter of course, the others never without a word."""
    splits = {
        name: unlike_animals(30, start=30 * n) for n, name in enumerate(("train", "validation", "test"))
    }
    task, source = write_task(extra=served, **splits), tmp_path / "run"
    done(command("optimize")(task, "--out", source, "--max-metric-calls", 80))
    for split in splits:
        asked = ("--run", source, "--split", split, "--out", tmp_path / split)
        is_warned = f"{source} knows 100% of these rows" in done(command("evaluate")(task, *asked)).stderr
        assert is_warned == (split != "test")


def test_a_finished_search_names_the_command_for_another_promise(
    write_task: Callable[..., Path], served: str, tmp_path: Path
) -> None:
    """It keeps the certificate that it was first asked for."""
    splits = {
        name: unlike_animals(30, start=30 * n) for n, name in enumerate(("train", "validation", "test"))
    }
    source = tmp_path / "run"
    search = partial(
        command("optimize"), write_task(extra=served, **splits), "--out", source, "--max-metric-calls", 80
    )
    first = done(search()).stdout
    assert "was finished before" not in first
    again = done(search("--target-accuracy", 0.6, "--delta", 0.1)).stdout
    advice = f"calibrant calibrate {source} --target-accuracy 0.6 --delta 0.1 --out {source}"
    assert f"keeps what it promises. To ask for what the options say: {advice}\n" in again


def test_what_a_run_has_seen_is_known_to_all_that_came_from_it(
    write_task: Callable[..., Path], served: str, tmp_path: Path
) -> None:
    """A bundle, an evaluation of it and a student of that know what taught the search."""
    train, validation, test, later = (unlike_animals(30, start=30 * n) for n in range(4))
    task = write_task(extra=served, train=train, validation=validation, test=test)
    search, bundle, evaluated, student = (
        tmp_path / name for name in ("run", "bundle", "evaluated", "student")
    )
    done(command("optimize")(task, "--out", search, "--max-metric-calls", 80))
    done(command("export")(search, "--out", bundle))
    file = write_rows(tmp_path / "later.jsonl", later)
    done(command("evaluate")(bundle, "--file", file, "--out", evaluated))
    done(command("distill")(evaluated, "--out", student))
    for source in (bundle, evaluated, student):
        assert "it knows 100% of them" in refusal(fresh_test(tmp_path, source, train)), source
    assert "it knows 100% of them" in refusal(fresh_test(tmp_path, evaluated, later))
    done(fresh_test(tmp_path, bundle, later))


def test_fresh_rows_need_a_target_and_a_place(evaluated: Path, server: FaultServer, tmp_path: Path) -> None:
    """What is missing is named before a model is asked."""
    before = sum(server.counts.values())
    file = write_rows(tmp_path / "fresh.jsonl", unlike_animals(100, start=60))
    message = refusal(run(evaluated, "--fresh-test", file, "--out", tmp_path / "fresh"))
    assert "Expected --target-accuracy with --fresh-test" in message
    message = refusal(fresh_test(tmp_path, evaluated, unlike_animals(100, start=60), out=evaluated))
    assert f"Expected another directory than {evaluated} as --out" in message
    message = refusal(fresh_test(tmp_path, evaluated, unlike_animals(19, start=60)))
    assert "expected at least 20 labelled rows to certify on, got 19" in message
    message = refusal(fresh_test(tmp_path, evaluated, unlike_animals(100, start=60), target_accuracy=90))
    assert "Expected target_accuracy" in message
    message = refusal(
        run(evaluated, "--fresh-test", file, "--target-accuracy", 0.6, "--head", "--out", "out")
    )
    assert "Expected --fresh-test without --head" in message
    assert sum(server.counts.values()) == before


@pytest.mark.parametrize(("start", "known"), [(50, "10%"), (0, "60%"), (55, None)])
def test_an_evaluation_on_rows_that_a_run_knows_is_warned_of(
    evaluated: Path, tmp_path: Path, start: int, known: str | None
) -> None:
    """The numbers may flatter the run; they are printed all the same, and one known row in twenty is no reason."""
    file = write_rows(tmp_path / "rows.jsonl", unlike_animals(100, start=start))
    result = done(command("evaluate")(evaluated, "--file", file, "--out", tmp_path / "again"))
    assert "accuracy, all rows" in result.stdout
    warning = f"warning: {evaluated} knows {known} of these rows: it learned from them"
    assert (warning in result.stderr) is (known is not None)
    assert ("knows" in result.stderr) is (known is not None)
