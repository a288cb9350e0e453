"""Tests of what imports and help load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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


# One plain task, asked of a fake in this process; what is loaded at the end goes to standard error.
PLAIN = """
import json, sys
from calibrant.cli._app import main
from calibrant.testing import FakeClient, fake_model

with fake_model("fake/animals", FakeClient(["cat", "dog"], {"meow": ("cat", 0.9)}, default="dog", field="label")):
    try:
        main()
    except SystemExit as done:
        assert not done.code, done.code
loaded = sorted(name for name in sys.modules if name.split(".")[0] == "calibrant")
sys.stderr.write("\\n" + json.dumps(loaded))
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


def test_a_plain_evaluation_loads_what_it_uses(tmp_path: Path) -> None:
    """An evaluation loads a limited number of modules, and no package of other tasks."""
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "rows.csv").write_text("input,answer,split\nmeow,cat,test\nwoof,dog,test\n")
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", PLAIN, "evaluate", "task.toml", "--out", "out", "--no-cache"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    loaded = json.loads(done.stderr.rsplit("\n", 1)[1])
    assert "calibrant.evaluation._evaluator" in loaded
    assert len(loaded) <= MOST, loaded
    assert [name for name in loaded if ".".join(name.split(".")[1:]) in UNUSED] == []
