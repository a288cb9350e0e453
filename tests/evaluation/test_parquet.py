"""Tests of ``evaluate --parquet``: the rows of ``predictions.jsonl`` in columns."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.core import Example, MultiLabels, ProviderError
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.runs import SavedRows
from calibrant.testing import FakeClient, fake_response
from command_line import command

parquet = pytest.importorskip("pyarrow.parquet")

TASK = """\
name = "n"
field = "f"
prompt = "p"
labels = ["cat", "dog"]
data = { test = "test.jsonl", id_column = "id" }
"""
ONE = '[model]\nname = "fake/one"\nspace = "raw"\n'
TWO = "".join(f'[[cascade.models]]\nname = "fake/{name}"\nspace = "raw"\n' for name in ("one", "two"))
CASCADE = f'[cascade]\nconfidence_method = "label_probability"\nthreshold = 0.9\n{TWO}'
TEXTS = tuple(f"row {n} \u2028 \U0001f600" for n in range(20))
Evaluate = Callable[..., Path]


def answer(text: str) -> Any:
    """Fail on every fifth text; else answer, with a price for every other text."""
    number = int(text.split()[1])
    if number % 5 == 0:
        return ProviderError("503", provider="fake", status=503)
    response = fake_response("cat", ["cat", "dog"], {"cat": 0.75, "dog": 0.25}, field="f", illegal_mass=0.5)
    usage = {"prompt_tokens": 7, "completion_tokens": number}
    return {**response, "usage": usage, "_hidden_params": {"response_cost": None if number % 2 else 0.5}}


@pytest.fixture
def evaluate(write_task: Callable[..., Path], use_model: Any, tmp_path: Path) -> Evaluate:
    """Return a function that evaluates a task of these sections, and returns the run's directory."""
    several = FakeClient(MultiLabels(["cat", "dog"]), {}, default='["cat"]', field="f")
    for name in ("fake/one", "fake/two"):
        use_model(FakeClient(["cat", "dog"], answer, space="raw", name=name), name)
    use_model(several, "fake/several")

    def evaluated(sections: str = ONE, *, texts: Sequence[str] = TEXTS, code: int = 0) -> Path:
        wanted = '["cat"]' if "multi_label" in sections else "cat"
        rows = [{"input": text, "answer": wanted, "id": str(n)} for n, text in enumerate(texts)]
        task = write_task(toml=TASK + sections, test=rows)
        result = command("evaluate")(task, "--out", tmp_path / "out", "--parquet", "--no-cache")
        assert result.exit_code == code, result.output
        return tmp_path / "out"

    return evaluated


@pytest.mark.parametrize(
    ("sections", "filled"),
    [
        (ONE, {"probabilities", "cost", "source", "id"}),
        (CASCADE, {"steps", "accepted"}),
        ('multi_label = true\n\n[model]\nname = "fake/several"\n', {"parts"}),
    ],
)
def test_columns_equal_the_lines(evaluate: Evaluate, sections: str, filled: set[str]) -> None:
    """The columns equal the lines; half a surrogate pair becomes "?"."""
    path = evaluate(sections) / "predictions.jsonl"
    path.write_text(path.read_text().replace('"reason": ""', r'"reason": "half \ud83d"'))
    out = evaluate(sections)
    text = path.read_text().replace(r"half \ud83d", "half ?")
    assert "half ?" in text
    expected = [json.loads(line) for line in text.split("\n")[:-1]]
    found = parquet.read_table(out / "predictions.parquet").to_pylist()
    for row in found:
        for name in ("probabilities", "steps", "parts"):
            row[name] = None if row[name] is None else json.loads(row[name])
    assert found == [dict.fromkeys(found[0]) | row for row in expected]
    assert set(found[0]) == {*expected[2], "steps", "accepted", "parts"}
    assert all(found[2][name] is not None for name in filled)


def test_tools_that_read_saved_predictions_read_it(evaluate: Evaluate) -> None:
    """SavedRows.load reads the same confidences and labels from Parquet as from the lines."""
    out = evaluate()
    from_lines, from_columns = (SavedRows.load(out / f"predictions.{kind}") for kind in ("jsonl", "parquet"))
    np.testing.assert_array_equal(from_lines.confidence, from_columns.confidence)
    assert from_lines.labels == from_columns.labels


def test_many_rows_are_written_in_groups(evaluate: Evaluate) -> None:
    """Rows are written in groups of 16,384; those of a run that is finished are asked for no more."""
    count = 16_400
    out = evaluate(texts=["row 1"])
    (line,) = (out / "predictions.jsonl").read_text().splitlines(keepends=True)
    numbered = (json.dumps({**json.loads(line), "index": n, "id": str(n)}) + "\n" for n in range(count))
    (out / "predictions.jsonl").write_text("".join(numbered))
    file = parquet.ParquetFile(evaluate(texts=["row 1"] * count) / "predictions.parquet")
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [16_384, 16]
    assert file.read(["id"]).column("id").to_pylist() == [str(n) for n in range(count)]


def test_no_file_is_half_written(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is an error that names the file, of which nothing is left; the same command writes it then."""
    replace = Path.replace

    def full(file: Path, target: Path) -> Path:
        if target.suffix == ".parquet":
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(file, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        out = evaluate(code=2)
    assert not [file.name for file in out.iterdir() if "parquet" in file.name]
    assert (evaluate() / "predictions.parquet").exists()


def test_resuming_removes_the_outdated_parquet_file(tmp_path: Path) -> None:
    """A resumed run removes the old Parquet file."""
    fake = FakeClient(["cat", "dog"], {"purrs": "cat"})
    stale = tmp_path / "out" / "predictions.parquet"
    for rows in (1, 2):
        classifier = Classifier(model=fake, labels=["cat", "dog"], field="category")
        BatchEvaluator(classifier).evaluate(
            [Example(input="purrs", answer="cat")] * rows, out=tmp_path / "out"
        )
        assert not stale.exists()
        stale.touch()
