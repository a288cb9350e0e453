"""Which rows a run has seen, told by digests of their texts."""

from __future__ import annotations

import pytest

from calibrant.core._fingerprint import row_digests, share_known


@pytest.mark.parametrize("seen", [500, 40_000])
def test_the_share_of_known_texts_is_found(seen: int) -> None:
    """Of few texts every digest is kept, and of many so many that the share is estimated."""
    digests = row_digests(f"text {number}" for number in range(seen))
    assert len(digests) == min(seen, 10_000)
    asked = [f"text {number}" for number in range(seen - 300, seen + 700)]
    assert share_known(asked, digests) == pytest.approx(0.3, abs=0.0 if seen == 500 else 0.1)


def test_nothing_is_known_without_rows() -> None:
    """Neither a run without rows nor a file without texts shares any."""
    assert share_known(["text"], []) == 0.0
    assert share_known([], row_digests(["text"])) == 0.0


def test_equal_texts_count_once() -> None:
    """Digests are of different texts."""
    assert len(row_digests(["same", "same", "other"])) == 2
    assert share_known(["same", "same", "new"], row_digests(["same"])) == 0.5
