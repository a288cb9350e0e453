"""Tests of what imports and help load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "aiohttp",
    "datasets",
    "dspy",
    "fastapi",
    "gepa",
    "jinja2",
    "lark",
    "litellm",
    "llm_structured_confidence",
    "model2vec",
    "narwhals",
    "openai",
    "pandas",
    "polars",
    "prometheus_client",
    "pyarrow",
    "ray",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "uvicorn",
    "xllamacpp",
    "yaml",
}
HELP = """
from typer.main import get_command
from calibrant.cli._app import app

def leaves(command, words=()):
    children = getattr(command, "commands", {})
    return [words, *(leaf for name, child in children.items() for leaf in leaves(child, (*words, name)))]

for words in leaves(get_command(app)):
    try:
        app([*words, "--help"])
    except SystemExit as done:
        assert done.code == 0
"""


STEPS = {
    "import": "import calibrant",
    "names": "from calibrant import CalibrantError, Classifier, LabelSet, SigmoidScoring, Task",
    "pure packages": "import calibrant.scoring, calibrant.testing, calibrant.feedback, calibrant.store",
    "evaluation": "import calibrant.evaluation",
    "assembly": "import calibrant.assembly",
    "cascade": "import calibrant.cascade",
    "routing": "from calibrant.routing import *; BanditRouter(['a']); ThompsonRouter(['a']).order()",
    "heads": "import calibrant.heads",
    "serving": "import calibrant.serving",
    "doctor": "import calibrant.inference.doctor",
    "help": HELP,
}


def heavy_after(steps: dict[str, str]) -> dict[str, list[str]]:
    """Return the heavy packages that a fresh interpreter has loaded after each step."""
    report = "seen.append(sorted({m.split('.')[0] for m in sys.modules}))"
    code = "\n".join(f"{step}\n{report}" for step in steps.values())
    code = f"import json, sys\nseen = []\n{code}\nsys.stderr.write('\\n' + json.dumps(seen))"
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    seen = json.loads(done.stderr.rsplit("\n", 1)[1])
    assert all("calibrant" in loaded for loaded in seen)
    return {step: sorted(set(loaded) & HEAVY) for step, loaded in zip(steps, seen, strict=True)}


def test_nothing_heavy_is_loaded() -> None:
    """Imports and help load no provider's library, solver or template engine."""
    assert heavy_after(STEPS) == {key: [] for key in STEPS}


def test_the_estimator_loads_scikit_learn_alone() -> None:
    """`calibrant.sklearn` loads scikit-learn and what it needs, but no provider's library and no search."""
    steps = {"package": "import calibrant.sklearn", "estimator": "calibrant.sklearn.CalibrantClassifier()"}
    loaded = heavy_after(steps)
    assert loaded["package"] == []
    # The last loads the others.
    assert set(loaded["estimator"]) <= {"narwhals", "pandas", "pyarrow", "scipy", "sklearn"}


def test_help_loads_no_work() -> None:
    """The help of every command loads neither numpy nor the packages that do its work."""
    report = "import json, sys; sys.stderr.write('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", f"{HELP}\n{report}"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "--fail-under" in done.stdout  # of evaluate
    assert "--temperature" in done.stdout  # of verifier serve
    loaded = json.loads(done.stderr.rsplit("\n", 1)[1])
    assert "numpy" not in loaded
    assert {name.split(".")[1] for name in loaded if name.startswith("calibrant.")} <= {
        "_version",
        "cli",
        "core",
    }


def test_the_check_can_fail() -> None:
    """A heavy package that is loaded is reported."""
    assert heavy_after({"jinja2": "import calibrant, jinja2"}) == {"jinja2": ["jinja2"]}


# One plain task, asked of a fake in this process. To standard error go the modules that are loaded at the end, and the
# functions that ran before the file of new texts was opened; bodies of modules and classes, lambdas and comprehensions
# are left out, as is the fake itself.
PLAIN = """
import importlib.util, json, sys, threading
from pathlib import Path

folder = str(Path(importlib.util.find_spec("calibrant").origin).parent) + "/"
began, reads_texts = set(), []

def note(frame, event, argument):
    code = frame.f_code
    is_function = code.co_flags & 1 and "<" not in code.co_qualname.replace("<locals>", "")
    if event == "call" and not reads_texts and is_function and code.co_filename.startswith(folder):
        caller = frame
        while caller and not (caller.f_code.co_name == "<module>" and caller.f_code.co_filename.startswith(folder)):
            caller = caller.f_back
        if caller is None:  # a function that a module calls while it is imported is a part of the import
            began.add(code.co_filename[len(folder):] + ":" + code.co_qualname)

def watch(event, arguments):
    if event == "open" and str(arguments[0]).endswith("new.csv"):
        reads_texts.append(True)

from calibrant.cli._app import main
from calibrant.testing import FakeClient, fake_model

fake = FakeClient(["cat", "dog"], {"meow": ("cat", 0.9)}, default="dog", field="label", name="fake/animals")
with fake_model("fake/animals", fake):
    sys.addaudithook(watch)
    if "new.csv" in sys.argv:
        threading.setprofile(note)
        sys.setprofile(note)
    try:
        main()
    except SystemExit as done:
        assert not done.code, done.code
    sys.setprofile(None)
names = sorted(name for name in sys.modules if name.split(".")[0] == "calibrant")
loaded = [name for name in names if not name.startswith("calibrant.testing")]
began = sorted(name for name in began if not name.startswith("testing.py:"))
sys.stderr.write("\\n" + json.dumps({"loaded": loaded, "began": began}))
"""
TASK = """
name = "animals"
labels = ["cat", "dog"]
prompt = "?"
[data]
test = "rows.csv"
[model]
name = "fake/animals"
"""
MOST = 110
MOST_OF_A_SEARCH = 107
MOST_BEFORE_TEXTS = 129
UNUSED = {
    "adapters",
    "cascade",
    "distributed",
    "heads",
    "inference.routed",
    "optimization",
    "reports",
    "routing",
    "serving",
}


def plain(folder: Path, *command: str) -> dict[str, list[str]]:
    """Return what a command on the plain task loaded, and the functions that ran before new texts were read."""
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", PLAIN, *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=folder,
    )
    noted: dict[str, list[str]] = json.loads(done.stderr.rsplit("\n", 1)[1])
    return noted


@pytest.fixture
def evaluated(tmp_path: Path) -> dict[str, list[str]]:
    """Return what an evaluation of the plain task into ``out`` loaded."""
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "rows.csv").write_text("input,answer,split\nmeow,cat,test\nwoof,dog,test\n")
    return plain(tmp_path, "evaluate", "task.toml", "--out", "out", "--no-cache")


def test_a_plain_evaluation_loads_what_it_uses(evaluated: dict[str, list[str]]) -> None:
    """An evaluation loads a limited number of modules, and no package of other tasks."""
    loaded = evaluated["loaded"]
    assert "calibrant.evaluation._evaluator" in loaded
    assert len(loaded) <= MOST, loaded
    assert [name for name in loaded if ".".join(name.split(".")[1:]) in UNUSED] == []


def test_labelling_with_a_run_begins_soon(evaluated: dict[str, list[str]], tmp_path: Path) -> None:
    """Labels by a run need a limited number of modules, and of functions before the first text is read."""
    assert evaluated["loaded"]
    (tmp_path / "new.csv").write_text("input\nmeow\nwoof\n")
    noted = plain(tmp_path, "label", "out", "new.csv", "--out", "labelled", "--no-cache")
    assert "cli/_label.py:label" in noted["began"]
    assert len(noted["began"]) <= MOST_BEFORE_TEXTS, noted["began"]
    assert len(noted["loaded"]) <= MOST, noted["loaded"]


def test_a_plain_search_loads_what_it_uses(tmp_path: Path) -> None:
    """A search loads a limited number of modules, those of the report included."""
    data = ""
    for split in ("train", "validation", "test"):
        rows = [f"{split} {number}: a {label},{label}" for number in range(4) for label in ("cat", "dog")]
        (tmp_path / f"{split}.csv").write_text("\n".join(["input,answer", *rows]))
        data += f'{split} = "{split}.csv"\n'
    (tmp_path / "task.toml").write_text(TASK.replace('test = "rows.csv"\n', data))
    search = ("optimize", "task.toml", "--max-metric-calls", "30", "--out", "run", "--no-embeddings")
    loaded = plain(tmp_path, *search)["loaded"]
    assert "calibrant.reports._html" in loaded
    assert len(loaded) <= MOST_OF_A_SEARCH, loaded
