"""Kinds of labels, routing strategies and confidence methods that a program of somebody else's adds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calibrant.cascade import BaseMethod, register_method
from calibrant.core import ConfigurationError, LabelSet, register_labels
from calibrant.routing import FixedRouter, register_strategy

# Days of the week, whose ends meet: Sunday for Monday earns more than Thursday does.
LABELS = '''
import json
from pathlib import Path

from typer.testing import CliRunner

from calibrant import BatchEvaluator, LabelSet, Task, load, optimize
from calibrant.assembly import open_classifier
from calibrant.cli import app
from calibrant.core import Prediction, register_labels
from calibrant.testing import FakeClient, fake_model
from calibrant.tuned import Tuned

DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]


@register_labels
class Weekdays(LabelSet):
    structure = "weekdays"

    def credit(self, prediction, answer):
        apart = abs(self.labels.index(prediction.label) - self.labels.index(answer))
        return 1.0 - min(apart, len(self) - apart) / (len(self) // 2)


texts = {f"note {number} of {day}": (day, 0.9) for number in range(8) for day in DAYS}
rows = [{"input": text, "answer": day} for text, (day, _) in texts.items()]
for name, part in (("train", rows[:28]), ("validation", rows[28:42]), ("test", rows[42:])):
    Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in part))
Path("task.toml").write_text(f"""name = "days"
labels = {DAYS}
structure = "weekdays"
field = "day"
prompt = "Which day?"
data = {{ train = "train.jsonl", validation = "validation.jsonl", test = "test.jsonl" }}
model = {{ name = "fake/days" }}
""")
task = Task.from_file("task.toml")
found = {"credit": round(task.labels.credit(Prediction(label="Sun"), "Mon"), 2)}
fake = FakeClient(DAYS, {**texts, "note 7 of Mon": ("Sun", 0.8)}, field="day")
with fake_model("fake/days", fake):
    with open_classifier(task) as classifier:
        found["label"] = classifier.classify("note 1 of Tue").label
        metrics = BatchEvaluator(classifier).evaluate(task.test).metrics
        found["correct"], found["mean credit"] = metrics.correct, round(metrics.structure.credit.estimate, 4)
    optimize(task, max_metric_calls=90, out="run").tuned.save("bundle")
    found["loaded"] = type(Tuned.load("bundle").task.labels).__name__
    with load("bundle") as opened:
        found["opened"] = opened.classify("note 2 of Wed").label
    commands = (["evaluate", "task.toml", "--out", "evaluated"], ["report", "evaluated"])
    found["exit codes"] = [CliRunner().invoke(app, command).exit_code for command in commands]
found["report"] = Path("evaluated/report.html").exists()
print(json.dumps(found))
'''

STRATEGY = '''
import json
from pathlib import Path

from typer.testing import CliRunner

from calibrant import Task
from calibrant.assembly import open_classifier
from calibrant.cli import app
from calibrant.routing import FixedRouter, RouterTraits, register_strategy
from calibrant.testing import FakeClient, fake_model


@register_strategy
class LeastAsked(FixedRouter):
    strategy = "least_asked"
    traits = RouterTraits()

    def order(self, request=None):
        asked = {one.provider: one.observations for one in self.standings()}
        return sorted(self.providers, key=asked.__getitem__)


Path("task.toml").write_text("""name = "pets"
labels = ["cat", "dog"]
field = "animal"
prompt = "Which animal?"
[routing]
routing = "least_asked"
state = "router.sqlite"
providers = [{ name = "fake/first" }, { name = "fake/second" }]
""")
first, second = (FakeClient(["cat", "dog"], {}, default="cat", field="animal") for _ in range(2))
with fake_model("fake/first", first), fake_model("fake/second", second):
    with open_classifier(Task.from_file("task.toml")) as classifier:
        for number in range(4):
            classifier.classify(f"It purrs, {number}.")
command = ["router", "stats", "--task", "task.toml", "--strategy", "least_asked", "--json"]
(stored,) = json.loads(CliRunner().invoke(app, command).output)["records"]
learned = {one["provider"]: one["observations"] for one in stored["providers"]}
print(json.dumps({"asked": [len(first.requests), len(second.requests)], "learned": learned}))
'''

METHOD = '''
import json
from pathlib import Path

from calibrant import Cascade, Classifier, Task
from calibrant.assembly import open_classifier
from calibrant.cascade import Assessment, BaseMethod, register_method
from calibrant.testing import FakeClient, fake_model

LABELS = ["cat", "hippopotamus"]


@register_method
class ShortAnswers(BaseMethod):
    name = "short_answers"
    default_threshold = 0.5
    unit = "a share of three letters"

    async def assess(self, answered):
        share = min(1.0, 3 / len(answered.prediction.label))
        return Assessment(confidence=share, native=share)


Path("task.toml").write_text("""name = "pets"
labels = ["cat", "hippopotamus"]
field = "animal"
prompt = "Which animal?"
[cascade]
confidence_method = "short_answers"
escalation_order = "declared"
models = [{ name = "fake/small" }, { name = "fake/large" }]
""")
fake = FakeClient(LABELS, {"purrs": "cat", "swims": "hippopotamus"}, field="animal")
with fake_model("fake/small", fake), fake_model("fake/large", fake):
    with open_classifier(Task.from_file("task.toml")) as cascade:
        found = [len(cascade.classify(text).steps) for text in ("It purrs.", "It swims.")]
    models = [Classifier(model=f"fake/{size}", labels=LABELS, field="animal") for size in ("small", "large")]
    found.append(len(Cascade(models, method="short_answers").classify("It swims.").steps))
print(json.dumps(found))
'''


def printed(program: str, folder: Path) -> Any:
    """Return what a program prints last, as JSON; a process of its own keeps what it registers."""
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_kind_of_labels(tmp_path: Path) -> None:
    """A registered kind of labels is read from a task file, classified, evaluated, reported, saved and loaded."""
    assert printed(LABELS, tmp_path) == {
        "credit": 0.67,
        "label": "Tue",
        "correct": 13,
        "mean credit": 0.9762,
        "loaded": "Weekdays",
        "opened": "Wed",
        "exit codes": [0, 0],
        "report": True,
    }


def test_a_routing_strategy(tmp_path: Path) -> None:
    """A registered strategy orders the providers of a task file; its state is stored and shown."""
    found = printed(STRATEGY, tmp_path)
    assert found == {"asked": [2, 2], "learned": {"fake/first": 2, "fake/second": 2}}


def test_a_confidence_method(tmp_path: Path) -> None:
    """A registered method decides in a cascade of a task file, and by its name in `Cascade`."""
    assert printed(METHOD, tmp_path) == [1, 2, 2]


class Seasons(LabelSet):
    structure = "ordinal"


class LastFirst(FixedRouter):
    strategy = "ema"


class Gap(BaseMethod):
    name = "margin"

    async def assess(self, answered: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("register", "kind", "taken"),
    [
        (register_labels, Seasons, "'ordinal', which is that of OrdinalLabels"),
        (register_strategy, LastFirst, "'ema', which is that of EMARouter"),
        (register_method, Gap, "'margin', which is that of Margin"),
    ],
)
def test_a_name_belongs_to_one_kind(register: Any, kind: type, taken: str) -> None:
    """A kind with the name of another one is refused."""
    with pytest.raises(ConfigurationError, match=taken):
        register(kind)


def test_registering_twice_changes_nothing() -> None:
    """A kind that is known already may be registered again, as a module that is loaded twice does."""
    assert register_strategy(FixedRouter) is FixedRouter
