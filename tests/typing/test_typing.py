"""Tests that users' type checkers see the package's types; `make check` checks `api.py`."""

from __future__ import annotations

from pathlib import Path


def test_the_package_ships_its_types() -> None:
    """The package holds the marker file py.typed."""
    import calibrant  # noqa: PLC0415

    assert (Path(calibrant.__file__).parent / "py.typed").is_file()
