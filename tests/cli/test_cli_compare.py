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
from calibrant.metrics import holm, paired_comparison
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
        "left out of the difference: rows 3 that failed with a transport error in either run"
        in run(a, b).stdout
    )


def test_other_rows_cannot_be_compared(tmp_path: Path) -> None:
    """Runs that differ in texts, true labels or rows exit with 2, and the difference is named."""
    a = write(tmp_path / "a", BASE)
    assert "Expected the same input in the row with index 0, got 'text 0'" in refusal(
        run(a, write(tmp_path / "b", BASE, input="something else"))
    )
    answers = run(a, write(tmp_path / "c", BASE, answer="dog"))
    assert "Expected the same answer in the row with index 0, got 'cat'" in answers.stderr
    fewer = run(a, write(tmp_path / "d", BASE[:-1]))
    assert fewer.exit_code == 2
    assert "got 60 in" in fewer.stderr
    assert "1 of the first without a partner, such as the one with index 59" in fewer.stderr
    more = run(write(tmp_path / "e", BASE[:-1]), a)
    assert "0 of the first without a partner: finish" in more.stderr


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
