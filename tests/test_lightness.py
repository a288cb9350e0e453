"""Importing calibrant and asking for help are quick: nothing heavy is loaded before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "aiohttp",
    "dspy",
    "fastapi",
    "gepa",
    "jinja2",
    "lark",
    "litellm",
    "llm_structured_confidence",
    "model2vec",
    "openai",
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
from calibrant.cli import app
for command in ([], ["optimize"], ["classify"], ["evaluate"], ["doctor"], ["models"], ["batch"], ["batch", "submit"],
                ["compare"], ["calibrate"], ["export"], ["diff"], ["serve"],
                ["history"], ["history", "record"], ["history", "interval"], ["history", "list"], ["report"],
                ["verifier"], ["verifier", "serve"], ["router"], ["router", "stats"], ["router", "reset"],
                ["router", "simulate"]):
    try:
        app([*command, "--help"])
    except SystemExit as done:
        assert done.code == 0
"""


def heavy_after(code: str) -> set[str]:
    """Return which heavy packages a fresh interpreter has loaded after running `code`."""
    report = "import json, sys; sys.stderr.write('\\n' + json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(json.loads(done.stderr.rsplit("\n", 1)[1]))
    assert "calibrant" in loaded
    return loaded & HEAVY


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import calibrant", id="import"),
        pytest.param(
            "from calibrant import CalibrantError, Classifier, LabelSet, SigmoidScoring, Task", id="names"
        ),
        pytest.param(
            "import calibrant.scoring, calibrant.testing, calibrant.feedback, calibrant.store",
            id="pure-packages",
        ),
        pytest.param("import calibrant.evaluation", id="evaluation"),
        pytest.param("import calibrant.assembly", id="assembly"),
        pytest.param("import calibrant.cascade", id="cascade"),
        pytest.param(
            "from calibrant.routing import *; BanditRouter(['a']); ThompsonRouter(['a']).order()",
            id="routing",
        ),
        pytest.param("import calibrant.serving", id="serving"),
        pytest.param("import calibrant.inference.doctor", id="doctor"),
        pytest.param(HELP, id="help"),
    ],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    """Neither a provider's library nor a solver nor a template engine."""
    assert heavy_after(code) == set()


def test_the_check_can_fail() -> None:
    """A package that is loaded is seen."""
    assert heavy_after("import calibrant, jinja2") == {"jinja2"}
