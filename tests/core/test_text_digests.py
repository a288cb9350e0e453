"""Which texts a classifier knows, told by their digests."""

from __future__ import annotations

import pytest

from calibrant.core import TextDigests


@pytest.mark.parametrize("seen", [500, 40_000])
def test_the_share_of_known_texts_is_found(seen: int) -> None:
    """Of few texts every digest is kept, and of many so many that the share is estimated."""
    known = TextDigests.of(f"text {number}" for number in range(seen))
    assert len(known.digests) == min(seen, 10_000)
    asked = [f"text {number}" for number in range(seen - 300, seen + 700)]
    assert known.share_known(asked) == pytest.approx(0.3, abs=0.0 if seen == 500 else 0.1)


@pytest.mark.parametrize("seen", [500, 40_000])
def test_a_union_is_that_of_the_texts(seen: int) -> None:
    """It does not matter whether the texts were known together, also where digests are left out."""
    texts = [f"text {number}" for number in range(seen)]
    parts = TextDigests.of(texts[: seen // 5]).union(TextDigests.of(texts[seen // 10 :]))
    assert parts == TextDigests.of(texts)


def test_nothing_is_known_without_rows() -> None:
    """Neither a run without rows nor a file without texts shares any."""
    assert TextDigests().share_known(["text"]) == 0.0
    assert TextDigests.of(["text"]).share_known([]) == 0.0


def test_equal_texts_count_once() -> None:
    """Digests are of texts that differ in more than case and white space; a row without a text has none."""
    assert len(TextDigests.of(["same text", " Same  text\n", None, "other"]).digests) == 2
    assert TextDigests.of(["same"]).share_known(["same", "same", "new"]) == 0.5


def test_the_record_reads_back() -> None:
    """Texts themselves are not in it."""
    known = TextDigests.of(["secret text", "other"])
    assert TextDigests.from_record(known.to_record()) == known
    assert "secret" not in known.to_record()
