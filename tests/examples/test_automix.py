"""Tests of the AutoMix example: the script runs, learns and prints the lift."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "automix" / "automix.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a user would."""
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603


def test_meta_verifiers_lift_the_invented_models() -> None:
    """Each rule is more accurate than the small model, and its lift is positive."""
    done = run()
    assert done.returncode == 0, done.stderr
    first, small, large, *rules = done.stdout.splitlines()
    assert first == "96 rows to learn from, 144 to test on"
    alone = [float(re.findall(r"accuracy ([\d.]+)", line)[0]) for line in (small, large)]
    assert [line.split()[0] for line in rules] == ["POMDP", "Threshold", "SelfConsistency"]
    for line in rules:
        accuracy, cost, routed, lift = map(float, re.findall(r"[+-]?\d+(?:\.\d+)?", line))
        assert alone[0] < accuracy <= alone[1]
        assert 0 < routed < 100
        assert abs(cost - (2 + 50 * routed / 100)) < 0.26
        assert lift > 0


def test_models_that_leave_nothing_to_learn_are_an_error_in_words() -> None:
    """A large model that is cheaper exits with 1 and a message without a traceback."""
    done = run("--rows", "20", "--large-cost", "0.5")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "it must be better and dearer" in done.stderr
