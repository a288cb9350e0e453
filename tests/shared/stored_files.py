"""Stored artefacts: what the commands write for a small task whose models are fakes.

Run this file to write them anew: ``PYTHONPATH=src python tests/shared/stored_files.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner, Result

from batch_server import KEY, BatchServer
from calibrant.cli import app
from calibrant.core import Field, FieldLabels, LabelSet, OrdinalLabels
from calibrant.testing import FakeClient, fake_model
from command_line import spelled

STORED = Path(__file__).parents[1] / "stored" / "files"
NAME, SMALL, LARGE, FIELDS = "fake/animals", "fake/small", "fake/large", "fake/fields"
SEARCH = ("--max-metric-calls", 80, "--minibatch-size", 3)
PLANNED = ("--model", SMALL, "--model", LARGE)
ROWS = {"train": 16, "validation": 12, "test": 24}

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
TASKS = {
    "task.toml": f'{TASK}[model]\nname = "{NAME}"\n',
    "cascade.toml": f"""{TASK}[cascade]
confidence_method = "label_probability"
threshold = 0.9
[[cascade.models]]
name = "{SMALL}"
cost = 1.0
[[cascade.models]]
name = "{LARGE}"
cost = 50.0
""",
    "routed.toml": f"""{TASK}[routing]
routing = "ema"
router_reorder_interval = 1
state = "router.sqlite"
[[routing.providers]]
name = "{SMALL}"
cost = 1.0
[[routing.providers]]
name = "{LARGE}"
cost = 50.0
""",
    "fields.toml": f"""name = "urgent animals"
prompt = "Which animal, and how urgent?"
[[fields]]
name = "category"
labels = ["cat", "dog"]
[[fields]]
name = "urgency"
labels = ["low", "high"]
structure = "ordinal"
[data]
test = "fields.jsonl"
[model]
name = "{FIELDS}"
""",
    "batch.toml": f'{TASK}[model]\nname = "openai/tiny"\n',
}
COMMANDS: tuple[tuple[object, ...], ...] = (
    (
        "evaluate",
        "task.toml",
        "--out",
        "evaluation",
        "--cache",
        "cache.sqlite",
        "--history",
        "history.sqlite",
    ),
    ("calibrate", "evaluation", "--out", "evaluation"),
    ("export", "evaluation", "--out", "bundle"),
    ("evaluate", "cascade.toml", "--out", "cascade", "--no-cache"),
    ("evaluate", "fields.toml", "--out", "fields", "--no-cache"),
    ("evaluate", "routed.toml", "--out", "routed", "--no-cache"),
    ("optimize", "task.toml", "--out", "search", *SEARCH),
    ("export", "search", "--out", "bundle-of-search"),
    ("evaluate", "task.toml", "--model", SMALL, "--out", "small", "--no-cache"),
    ("evaluate", "task.toml", "--model", LARGE, "--out", "large", "--no-cache"),
    ("cascade", "plan", "small", "large", "--small-cost", 1, "--large-cost", 50, "--out", "plan"),
    ("cascade", "run", "plan", "task.toml", *PLANNED, "--out", "planned"),
)


def answer(text: str, prompt: str) -> tuple[str, float]:
    """Answer cats rightly, and dogs rightly with examples, or else in two of three texts."""
    number = zlib.crc32(text.encode())
    knows = "meow" in text or "Answer:" in prompt or number % 3
    return ("dog" if knows and "meow" not in text else "cat"), 0.55 + number % 45 / 100


def small_answer(text: str) -> tuple[str, float]:
    """Answer two texts in three with certainty, one in seven of them wrongly."""
    number = zlib.crc32(text.encode())
    truth, other = ("cat", "dog") if "meow" in text else ("dog", "cat")
    if number % 3:
        return (truth if number % 7 else other), 1.0
    return (truth if number % 2 else other), 0.55 + number % 40 / 100


def large_answer(text: str) -> tuple[str, float]:
    """Answer both labels rightly, cats with higher confidence."""
    return ("cat", 0.99) if "meow" in text else ("dog", 0.97)


def field_answers(text: str) -> tuple[str, float]:
    """Answer the category rightly, and call every third text urgent."""
    urgency = "high" if zlib.crc32(text.encode()) % 3 == 0 else "low"
    category = "cat" if "meow" in text else "dog"
    return f'{{"category": "{category}", "urgency": "{urgency}"}}', 0.81


@contextlib.contextmanager
def stored_models() -> Iterator[dict[str, FakeClient]]:
    """Open the models of the stored tasks by their names."""
    fields = FieldLabels(
        [
            Field(name="category", labels=LabelSet(["cat", "dog"])),
            Field(name="urgency", labels=OrdinalLabels(["low", "high"])),
        ]
    )
    models = {
        NAME: FakeClient(["cat", "dog"], answer, name=NAME),
        SMALL: FakeClient(["cat", "dog"], small_answer, name=SMALL),
        LARGE: FakeClient(["cat", "dog"], large_answer, name=LARGE),
        FIELDS: FakeClient(fields, field_answers, field="", name=FIELDS),
    }
    with contextlib.ExitStack() as opened:
        for name, client in models.items():
            opened.enter_context(fake_model(name, client))
        yield models


def run(*arguments: object, code: int | None = 0) -> Result:
    """Run a command, and check its exit code, unless that is None."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert code in {None, result.exit_code}, result.output
    return result


def make(directory: Path) -> None:
    """Write the tasks and their rows into a new directory, and run all commands in it."""
    directory.mkdir(parents=True)
    for name, text in TASKS.items():
        (directory / name).write_text(text)
    for split, count in ROWS.items():
        rows = []
        for number in range(count):
            word, label = ("woof", "dog") if number % 2 else ("meow", "cat")
            # Texts that differ in numbers alone would count as one in the search's certificate.
            unlike = f"{spelled(number)} {spelled(number)}"
            rows.append({"input": f"{split} {number} {word} {unlike}", "answer": label})
        write_rows(directory / f"{split}.jsonl", rows)
    composite = []
    for number in range(6):
        text = f"field {number} {'woof' if number % 2 else 'meow'}"
        composite.append({"input": text, "answer": json.loads(field_answers(text)[0])})
    write_rows(directory / "fields.jsonl", composite)
    with contextlib.chdir(directory), stored_models():
        for command in COMMANDS:
            run(*command)
        make_job()


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_job() -> None:
    """Submit the test rows to a provider's batch interface, and collect their answers."""
    server = BatchServer()
    server.states = ["completed"]
    os.environ["OPENAI_API_KEY"] = KEY
    try:
        run("batch", "submit", "batch.toml", "--out", "job", "--api-base", server.url)
        run("batch", "collect", "job")
    finally:
        del os.environ["OPENAI_API_KEY"]
        server.stop()


if __name__ == "__main__":
    os.environ["CALIBRANT_EMBEDDINGS"] = "none"  # as in the tests, wherever this runs
    shutil.rmtree(STORED, ignore_errors=True)
    make(STORED)
