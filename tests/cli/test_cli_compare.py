"""Tests of ``calibrant compare``: differences of runs on the same rows, with intervals."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import ConfigurationError
from calibrant.evaluation import compare_predictions
from calibrant.metrics import PairedGate, holm, paired_comparison
from calibrant.runs import SavedRows
from command_line import command, done, recorded_rows, refusal, write_rows

run = command("compare")

N = 60
BASE = [row % 2 == 0 for row in range(N)]  # 30 right


def write(path: Path, correct: Sequence[bool | None], **changes: Any) -> Path:
    """Write a run in which the rows are right as given; None is a row that failed."""
    return write_rows(path, [{**row, **changes} for row in recorded_rows(correct, repeat(0.8))])


def better(count: int) -> list[bool]:
    """Return the base with `count` wrong rows changed to right."""
    fixed = [row for row in range(N) if not BASE[row]][:count]
    return [right or row in fixed for row, right in enumerate(BASE)]


def test_it_prints_the_numbers_of_each_and_the_difference(tmp_path: Path) -> None:
    """The table holds the second run's accuracy minus the first's."""
    a, b = write(tmp_path / "a", BASE), write(tmp_path / "b", better(12))
    result = done(run(a, b))
    table = [re.split(r" {2,}", line) for line in result.stdout.splitlines()]
    assert [str(a), "0.500 (0.377 to 0.623)", "60", "0.333", "0.300", "0.340", "0"] in table
    expected = paired_comparison(BASE, better(12)).interval
    shown = f"+0.200 (+{expected.lower:.3f} to +{expected.upper:.3f})"
    assert [str(b), shown, "60", "0.000488"] in table
    assert "Holm" not in result.stdout


def test_several_are_corrected_for_their_number(tmp_path: Path) -> None:
    """Each run is compared with the first, and p-values are corrected by Holm's method."""
    runs = [
        write(tmp_path / name, better(count)) for name, count in (("a", 0), ("b", 12), ("c", 6), ("d", 0))
    ]
    result = done(run(*runs, "--json"))
    found = json.loads(result.stdout)
    raw = [one["comparison"]["p_value"] for one in found["differences"]]
    assert raw == pytest.approx([2**-11, 2**-5, 1.0])
    assert [one["p_holm"] for one in found["differences"]] == pytest.approx([3 * 2**-11, 2**-4, 1.0])
    assert [one["p_holm"] for one in found["differences"]] == pytest.approx(holm(raw).tolist())
    assert [one["baseline"] for one in found["differences"]] == [str(runs[0])] * 3
    assert "p, Holm" in run(*runs).stdout


@pytest.mark.parametrize(("counts", "code"), [((12,), 0), ((2,), 3), ((12, 20), 0), ((12, 2), 3)])
def test_require_better_is_a_gate(tmp_path: Path, counts: tuple[int, ...], code: int) -> None:
    """--require-better fails unless every interval lies above zero, and names the run that fails."""
    runs = [write(tmp_path / "a", BASE)]
    runs += [write(tmp_path / f"b{place}", better(count)) for place, count in enumerate(counts)]
    result = run(*runs, "--require-better")
    assert result.exit_code == code
    done(run(*runs))
    if code:
        assert f"not shown to be better than {runs[0]}: {runs[-1]} (" in result.stderr


def test_rows_that_failed_in_either_are_left_out_and_counted(tmp_path: Path) -> None:
    """Rows that failed in either run are left out of the difference, and counted."""
    first: list[bool | None] = [None, *BASE[1:]]
    second: list[bool | None] = [*better(12)[:-2], None, None]
    a, b = write(tmp_path / "a", first), write(tmp_path / "b", second)
    found = json.loads(run(a, b, "--json").stdout)
    assert found["differences"][0]["excluded_errors"] == 3
    kept = slice(1, -2)
    assert found["differences"][0]["comparison"]["n"] == N - 3
    expected = paired_comparison(BASE[kept], better(12)[kept])
    assert found["differences"][0]["comparison"]["difference"] == pytest.approx(expected.difference)
    assert [one["errors"] for one in found["runs"]] == [1, 2]
    assert found["runs"][0]["n"] == N - 1
    assert (
        "left out of the difference: 3 rows that failed with a transport error in either run"
        in run(a, b).stdout
    )


def test_other_rows_cannot_be_compared(tmp_path: Path) -> None:
    """Runs that differ in texts, true labels or rows exit with 2, and the difference is named."""
    a = write(tmp_path / "a", BASE)
    assert "Expected the same input in the row with index 0, got 'text 0'" in refusal(
        run(a, write(tmp_path / "b", BASE, input="something else"))
    )
    shorter = run(a, write(tmp_path / "f", BASE[:-1], input="something else"))
    assert "Expected the same input in the row with index 0, got 'text 0'" in shorter.stderr
    answers = run(a, write(tmp_path / "c", BASE, answer="dog"))
    assert "Expected the same answer in the row with index 0, got 'cat'" in answers.stderr
    fewer = run(a, write(tmp_path / "d", BASE[:-1]))
    assert fewer.exit_code == 2
    assert "got 60 in" in fewer.stderr
    assert "the first that one of them lacks has index 59" in fewer.stderr
    more = run(write(tmp_path / "e", BASE[:-1]), a)
    assert f"59 rows are in common, 0 only in {tmp_path / 'e'} and 1 only in {a}: finish" in more.stderr


def test_rows_that_differ_are_counted(tmp_path: Path) -> None:
    """Rows with another text, and those of one run alone, are told apart from the rows in common."""
    a = write(tmp_path / "a", BASE)
    rows = recorded_rows(BASE[:-1], repeat(0.8))
    rows[3]["input"] = "something else"
    b = write_rows(tmp_path / "b", rows)
    said = f"58 rows are in common, 2 only in {a} and 1 only in {b}: compare runs on the same data"
    assert said in refusal(run(a, b))
    assert said in refusal(run(a, b, "--gate"))
    c = write(tmp_path / "c", BASE[:-1])
    assert f"59 rows are in common, 1 only in {a} and 0 only in {c}: finish" in refusal(run(a, c))


@pytest.mark.parametrize("other", ["card", None])
def test_rows_of_another_context_are_other_rows(tmp_path: Path, other: str | None) -> None:
    """A row is another one if only its context differs, or if one run has none where its other rows have one."""
    rows = [{**row, "context": "cash"} for row in recorded_rows(BASE, repeat(0.8))]
    a = write_rows(tmp_path / "a", rows)
    rows[7] = {**rows[7], "context": other}
    b = write_rows(tmp_path / "b", rows)
    said = refusal(run(a, b))
    assert f"Expected the same context in the row with index 7, got 'cash' in {a} and {other or ''!r}" in said
    assert f"59 rows are in common, 1 only in {a} and 1 only in {b}: compare runs on the same data" in said
    done(run(a, write(tmp_path / "c", BASE)))  # which has no context anywhere


@pytest.mark.parametrize(
    ("answer", "other"),
    [('["cat", "pet"]', '["pet", "cat"]'), ('{"a": "x", "b": "y"}', '{"b": "y", "a": "x"}')],
)
def test_case_and_order_of_labels_make_no_other_rows(tmp_path: Path, answer: str, other: str) -> None:
    """Tasks whose labels are in another case, or whose labels or fields in another order, have the same answers."""
    a = write(tmp_path / "a", BASE, answer=answer)
    done(run(a, write(tmp_path / "b", BASE, answer=other)))
    assert "Expected the same answer" in refusal(run(a, write(tmp_path / "c", BASE, answer='["dog"]')))


def test_there_must_be_something_to_compare(tmp_path: Path) -> None:
    """The comparison needs two runs and one row on which neither failed."""
    a = write(tmp_path / "a", BASE)
    assert run(a).exit_code == 2
    assert "at least two runs to compare, got 1" in run(a).stderr
    assert "60 failed for the server's reasons, 0 have no true label" in refusal(
        run(a, write(tmp_path / "b", [None] * N))
    )
    one = json.loads(run(write(tmp_path / "c", [False]), write(tmp_path / "d", [True]), "--json").stdout)
    interval = one["differences"][0]["comparison"]["interval"]
    assert interval["lower"] < 0.0 < interval["upper"]
    with pytest.raises(ConfigurationError, match="level"):
        compare_predictions([SavedRows.load(a)] * 2, level=1.0)


def test_numbers_that_are_not_known_are_dashes(tmp_path: Path) -> None:
    """Columns without known values show dashes, and the accuracy is printed."""
    for name, right in (("a", BASE), ("b", better(6))):
        rows = "".join(json.dumps({"correct": value}) + "\n" for value in right)
        (tmp_path / f"{name}.jsonl").write_text(rows)
    result = done(run(tmp_path / "a.jsonl", tmp_path / "b.jsonl"))
    table = [re.split(r" {2,}", line) for line in result.stdout.splitlines()]
    assert [str(tmp_path / "a.jsonl"), "0.500 (0.377 to 0.623)", "60", "-", "-", "-", "0"] in table


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    """One file under two spellings of its path is refused."""
    one = write(tmp_path / "one.jsonl", better(20))
    assert "got one of them twice" in refusal(run(one, tmp_path / "." / "one.jsonl"))


def test_rows_are_paired_by_index_whatever_their_order(tmp_path: Path) -> None:
    """A file that was sorted otherwise gives the same comparison."""
    a, b = write(tmp_path / "a", BASE), write(tmp_path / "b", better(12))
    straight = json.loads(run(a, b, "--json").stdout)
    file = b / "predictions.jsonl"
    file.write_text("".join(line + "\n" for line in reversed(file.read_text().splitlines())))
    assert json.loads(run(a, b, "--json").stdout)["differences"] == straight["differences"]


# -- the gate --------------------------------------------------------------------------------------


def paired(n: int, only_a: int, only_b: int) -> tuple[list[bool], list[bool]]:
    """Return two runs that differ on their last rows."""
    both = [True] * (n - only_a - only_b)
    return both + [True] * only_a + [False] * only_b, both + [False] * only_a + [True] * only_b


@pytest.mark.parametrize(
    ("counts", "code", "sentence"),
    [
        (
            (60, 0, 12),
            0,
            "accepted, shown to be better than {a} (evidence {evidence:.3g}; 10 decides; 60",
        ),
        ((60, 3, 6), 3, "undecided, not yet shown to be better than {a} (evidence {evidence:.3g} for it and"),
        ((600, 12, 12), 3, "rejected, a difference of +0.05 or more to {a} is ruled out (evidence"),
    ],
)
def test_the_gate_accepts_what_is_shown_to_be_better(
    tmp_path: Path, counts: tuple[int, int, int], code: int, sentence: str
) -> None:
    """--gate exits with 0 for a run that is shown to be better, else with 3, and says what was shown."""
    before, after = paired(*counts)
    a, b = write(tmp_path / "a", before), write(tmp_path / "b", after)
    result = run(a, b, "--gate")
    assert result.exit_code == code
    expected = PairedGate()
    for right_before, right_after in zip(before, after, strict=True):
        expected = expected.after(right_before, right_after)
    assert f"{b}: {sentence.format(a=a, evidence=expected.evidence)}" in result.stdout
    refused = f"--gate: not shown to be better than {a}: {b}."
    assert (refused in result.stderr) == bool(code)
    found = json.loads(run(a, b, "--gate", "--json").stdout)["differences"][0]
    assert found["gate"] == pytest.approx(expected.to_record())
    assert sentence.startswith(found["gate"]["decision"])
    assert json.loads(run(a, b, "--json").stdout)["differences"][0]["gate"] is None


def test_every_run_must_pass_the_gate(tmp_path: Path) -> None:
    """With several runs the gate names those that are not shown to be better."""
    runs = [write(tmp_path / name, better(count)) for name, count in (("a", 0), ("b", 12), ("c", 2))]
    result = run(*runs, "--gate")
    assert result.exit_code == 3
    assert f"not shown to be better than {runs[0]}: {runs[2]}." in result.stderr


def test_the_gate_takes_a_gain_and_a_risk(tmp_path: Path) -> None:
    """A change may be shown not to be worse, and a smaller delta needs more evidence; alone they are refused."""
    before, after = ([run[row * 37 % 2_000] for row in range(2_000)] for run in paired(2_000, 20, 20))
    a, b = write(tmp_path / "a", before), write(tmp_path / "b", after)
    assert run(a, b, "--gate").exit_code == 3
    lenient = done(run(a, b, "--gate", "--least-gain", "-0.02"))
    assert f"accepted, shown to be worse than {a} by less than 0.02, if at all (evidence" in lenient.stdout
    assert run(a, b, "--gate", "--least-gain", "-0.02", "--delta", "1e-12").exit_code == 3
    more = run(a, b, "--gate", "--least-gain", "0.01")
    assert f"not shown to be better than {a} by more than 0.01: {b}." in more.stderr
    assert "Expected --gate or --no-worse with --delta" in refusal(run(a, b, "--delta", "0.01"))
    assert "Expected --gate with --least-gain" in refusal(run(a, b, "--no-worse", "--least-gain", "0.01"))
    assert "Expected --gate or --no-worse, got both" in refusal(run(a, b, "--gate", "--no-worse"))
    assert "Expected delta in (0, 1)" in refusal(run(a, b, "--gate", "--delta", "2"))


def test_the_gate_takes_a_run_that_is_not_finished(tmp_path: Path) -> None:
    """An unfinished run is compared on its rows if they are the first ones, whichever of the two it is."""
    a, b = write(tmp_path / "a", BASE), write(tmp_path / "b", better(12)[:40])
    result = run(a, b, "--gate")
    assert result.exit_code == 0
    assert "left out of the difference: 20 rows that one of the two has not answered yet" in result.stdout
    assert json.loads(run(a, b, "--gate", "--json").stdout)["differences"][0]["comparison"]["n"] == 40
    assert json.loads(run(b, a, "--gate", "--json").stdout)["differences"][0]["gate"]["only_a"] == 12
    assert run(a, b).exit_code == 2
    chosen = write_rows(tmp_path / "c", recorded_rows(better(12), repeat(0.8))[20:])
    assert "Expected the rows of one run to be the first rows of the other, got 60 in" in refusal(
        run(a, chosen, "--gate")
    )


def test_a_gate_goes_on_with_other_rows(tmp_path: Path) -> None:
    """A gate that has seen the rows of one comparison takes those of another one, too."""
    runs = [SavedRows.load(write(tmp_path / name, better(count))) for name, count in (("a", 0), ("b", 5))]
    (once,) = compare_predictions(runs, gate=PairedGate()).differences
    assert once.gate is not None
    assert (once.gate.n, once.gate.only_a, once.gate.only_b) == (N, 0, 5)
    (twice,) = compare_predictions(runs, gate=once.gate).differences
    assert twice.gate is not None
    assert (twice.gate.n, twice.gate.only_a, twice.gate.only_b) == (2 * N, 0, 10)
    assert [one.gate.decision for one in (once, twice) if one.gate] == ["undecided", "accepted"]


def test_the_gate_remembers_what_was_shown_on_the_way(tmp_path: Path) -> None:
    """Rows are looked at one by one in the order of their index, whatever their order in the files."""
    before = [False] * 8 + [True] * 7 + [True] * 20
    after = [True] * 8 + [False] * 7 + [True] * 20
    runs = [write(tmp_path / "a", before), write(tmp_path / "b", after)]
    assert "accepted" in done(run(*runs, "--gate")).stdout
    file = runs[1] / "predictions.jsonl"
    file.write_text("".join(line + "\n" for line in reversed(file.read_text().splitlines())))
    assert "accepted" in done(run(*runs, "--gate")).stdout
    reverse = [write(tmp_path / "c", before[::-1]), write(tmp_path / "d", after[::-1])]
    assert run(*reverse, "--gate").exit_code == 3


# -- the gate against worse runs -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "code", "sentence"),
    [
        (
            (200, 30, 10),
            3,
            "worse, shown to be less accurate than {a} (evidence {evidence:.3g}; 20 decides; 200",
        ),
        (
            (200, 10, 30),
            0,
            "not worse, a loss of 0.05 or more against {a} is ruled out (evidence {against:.3g};",
        ),
        (
            (20, 2, 0),
            0,
            "undecided, which passes: neither shown to be worse than {a} nor to lose less than 0.05",
        ),
    ],
)
def test_a_run_that_is_shown_to_be_worse_fails(
    tmp_path: Path, counts: tuple[int, int, int], code: int, sentence: str
) -> None:
    """--no-worse exits with 3 for a run that is shown to be worse alone, by the gate with sides swapped."""
    before, after = paired(*counts)
    a, b = write(tmp_path / "a", before), write(tmp_path / "b", after)
    result = run(a, b, "--no-worse")
    assert result.exit_code == code
    expected = PairedGate(delta=0.05)
    for right_before, right_after in zip(before, after, strict=True):
        expected = expected.after(right_after, right_before)
    filled = sentence.format(a=a, evidence=expected.evidence, against=expected.evidence_against)
    assert f"{b}: {filled}" in result.stdout
    assert (f"--no-worse: shown to be worse than {a}: {b}." in result.stderr) == bool(code)
    found = json.loads(run(a, b, "--no-worse", "--json").stdout)["differences"][0]
    assert found["loss_gate"] == pytest.approx(expected.to_record())
    assert found["gate"] is None


def test_an_undecided_run_passes_and_is_told_what_would_decide(tmp_path: Path) -> None:
    """So many more rows of the same kind decide, and one fewer does not."""
    before, after = paired(40, 4, 1)
    a, b = write(tmp_path / "a", before), write(tmp_path / "b", after)
    further = re.search(
        r"differ like these, about (\d+) more rows would decide", done(run(a, b, "--no-worse")).stdout
    )
    assert further
    n = 40 + int(further[1])
    assert PairedGate(delta=0.05, n=n, only_a=n // 40, only_b=n // 10).decision == "accepted"
    assert PairedGate(delta=0.05, n=n - 1, only_a=(n - 1) // 40, only_b=(n - 1) // 10).decision == "undecided"


def test_a_larger_delta_fails_more_runs(tmp_path: Path) -> None:
    """--delta is the probability of failing a run that is not worse: less evidence decides at a larger one."""
    a, b = (write(tmp_path / name, right) for name, right in zip("ab", paired(50, 9, 0), strict=True))
    assert run(a, b, "--no-worse").exit_code == 3
    done(run(a, b, "--no-worse", "--delta", "0.001"))


def test_any_run_that_is_worse_fails(tmp_path: Path) -> None:
    """With several runs those that are shown to be worse are named."""
    worse = [right and row > 20 for row, right in enumerate(BASE)]
    runs = [write(tmp_path / name, right) for name, right in (("a", BASE), ("b", better(12)), ("c", worse))]
    result = run(*runs, "--no-worse")
    assert result.exit_code == 3
    assert f"shown to be worse than {runs[0]}: {runs[2]}." in result.stderr
