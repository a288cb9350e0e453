"""Tests of the installed wheel's types, with a user's type checker."""

from __future__ import annotations

from pathlib import Path

import pytest

from clean_environments import ROOT, Install

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

# Of their types nothing is seen through calibrant's; reading them takes most of the time.
SETTINGS = (
    "[mypy]\nstrict = True\nwarn_unused_ignores = True\n[mypy-litellm.*,openai.*]\nfollow_imports = skip\n"
)


def test_a_users_file_passes_strict_type_checking(install: Install, tmp_path: Path) -> None:
    """A user's file passes mypy's strict check, and one wrong type in the file fails."""
    environment = install()
    environment.install("mypy")
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    right = (ROOT / "tests" / "typing" / "api.py").read_text()
    wrong = right.replace("assert_type(labels[0], str)", "assert_type(labels[0], int)")
    assert wrong != right
    for text, code, said in ((right, 0, "no issues"), (wrong, 1, 'Expression is of type "str", not "int"')):
        (tmp_path / "user.py").write_text(text)
        assert said in environment.run("mypy", "user.py", code=code, cwd=tmp_path)
