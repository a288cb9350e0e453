"""Certificates asked of the same labelled rows are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrant.calibration import CertifiedThreshold
from calibrant.core import ConfigurationError, StateError
from calibrant.evaluation import calibrate_predictions
from calibrant.runs import SavedRows

N_ROWS = 200
LETTERS = str.maketrans("0123456789", "abcdefghij")


def predictions(
    seed: int = 0, *, accuracy: float = 0.95, texts: range = range(N_ROWS), cat: str = "cat"
) -> SavedRows:
    """Return answers of one configuration to the texts, right with a probability."""
    rng = np.random.default_rng(seed)
    right = rng.random(len(texts)) < accuracy
    records = [
        {
            "input": str(text).translate(LETTERS),  # texts that differ in a number alone are near-duplicates
            "answer": cat,
            "label": cat if is_right else "dog",
            "confidence": float(confidence),
        }
        for text, is_right, confidence in zip(texts, right.tolist(), rng.random(len(texts)), strict=True)
    ]
    return SavedRows.of(records)


def certificate(
    saved: SavedRows, *, target: float = 0.8, delta: float = 0.1, looks: int = 1
) -> CertifiedThreshold:
    """Return the certificate of the answers."""
    found = calibrate_predictions(saved, target_accuracy=target, delta=delta, looks=looks).certified
    assert found is not None
    return found


def test_the_first_certificate_gets_all_of_delta() -> None:
    """One look at rows costs nothing."""
    found = certificate(predictions())
    assert found.threshold is not None
    assert found.delta == pytest.approx(0.1)


def test_the_same_certificate_counts_once() -> None:
    """Whoever asks again for the same is told the same."""
    assert certificate(predictions()) == certificate(predictions())
    assert certificate(predictions(1), target=0.99) == certificate(predictions(1), target=0.99)


def test_a_second_target_adds_its_delta() -> None:
    """The promise is that both certificates hold."""
    certificate(predictions(), target=0.7)
    assert certificate(predictions(), target=0.8).delta == pytest.approx(0.2)


def test_a_second_configuration_adds_its_delta() -> None:
    """Another model's answers to the same rows are another look at these rows."""
    certificate(predictions(0))
    found = certificate(predictions(1))
    assert found.delta == pytest.approx(0.2)
    assert found.looks is not None
    assert found.looks.of_others


def test_rows_in_another_order_are_the_same_rows() -> None:
    """What counts is which rows they are."""
    certificate(predictions(0))
    assert certificate(predictions(1, texts=range(N_ROWS - 1, -1, -1))).delta == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("cat", "again"),
    [('["cat", "pet"]', '["pet", "cat"]'), ('{"a": "cat", "b": "1"}', '{"b": "1", "a": "cat"}')],
)
def test_rows_are_the_same_in_another_case_and_order(cat: str, again: str) -> None:
    """True answers of several labels do not depend on the order in which a task has them."""
    certificate(predictions(0, cat=cat))
    assert certificate(predictions(1, cat=again)).delta == pytest.approx(0.2)


def test_half_of_the_rows_are_the_same_rows() -> None:
    """A certificate of a part of the rows counts for all of them."""
    certificate(predictions(0, accuracy=1.0, texts=range(N_ROWS // 2)))
    assert certificate(predictions(1)).delta == pytest.approx(0.2)


def test_a_small_part_of_many_rows_is_not_fresh() -> None:
    """Neither is a file of which a small part was asked about."""
    for first, second in (
        (range(1000), range(0, 1000, 20)),
        (range(2000, 2050), range(2000, 3000)),
    ):
        certificate(predictions(0, texts=first))
        looks = certificate(predictions(1, texts=second)).looks
        assert looks is not None
        assert looks.before >= 0.1


def test_other_rows_are_counted_apart() -> None:
    """A common row or two do not make them the same."""
    certificate(predictions(0))
    fresh = range(N_ROWS - 2, 2 * N_ROWS - 2)
    assert certificate(predictions(1, texts=fresh)).delta == pytest.approx(0.1)


def test_planned_looks_share_delta() -> None:
    """All planned certificates hold together with the probability asked for."""
    found = [certificate(predictions(seed, accuracy=0.75 + 0.05 * seed), looks=4) for seed in range(4)]
    assert [one.delta for one in found] == pytest.approx([0.1] * 4)
    assert certificate(predictions(5), looks=4).delta == pytest.approx(0.125)


def test_planned_looks_accept_less_each() -> None:
    """A certificate that shares its delta is harder to get."""
    alone = certificate(predictions(accuracy=0.95), target=0.9, delta=0.3)
    shared = certificate(predictions(accuracy=0.95), target=0.9, delta=0.3, looks=1000)
    assert shared.coverage < alone.coverage


def test_a_lower_promise_is_counted_before_it_is_followed() -> None:
    """The command for the best promise is no further look."""
    found = certificate(predictions(), target=0.99)
    lower = found.best_promise
    assert found.threshold is None
    assert lower is not None
    followed = certificate(predictions(), target=lower.target_accuracy, delta=lower.delta)
    assert followed.threshold == lower.threshold
    assert found.looks is not None
    assert followed.delta == pytest.approx(found.looks.total)
    assert 0.1 < found.looks.total < 0.2


def test_rows_asked_too_often_certify_nothing() -> None:
    """A promise that would fail more often than not is refused, and is not counted."""
    for seed in range(5):
        assert certificate(predictions(seed)).threshold is not None
    refused = certificate(predictions(5))
    assert refused.threshold is None
    assert refused.looks is not None
    assert refused.looks.state == "refused"
    assert certificate(predictions(0)).threshold is not None
    assert certificate(predictions(6)).looks == refused.looks


def test_nothing_is_counted_without_a_target(calibrant_home: Path) -> None:
    """A calibration is no certificate."""
    calibrate_predictions(predictions())
    assert not calibrant_home.exists()


def test_a_damaged_ledger_certifies_nothing(calibrant_home: Path) -> None:
    """The message names the line."""
    certificate(predictions())
    file = calibrant_home / "looks.jsonl"
    file.write_text(file.read_text() + "{half a li")
    with pytest.raises(StateError, match=r"looks\.jsonl, line 2: expected a JSON object"):
        certificate(predictions(1))


@pytest.mark.parametrize("entry", ['"tests": [], "delta": 7.0', '"tests": "a", "delta": 0.1', '"delta": 0.1'])
def test_an_entry_out_of_range_certifies_nothing(calibrant_home: Path, entry: str) -> None:
    """What a line says of the same rows must be legal."""
    certificate(predictions())
    file = calibrant_home / "looks.jsonl"
    rows = file.read_text().split('"rows": ')[1].split(",")[0]
    file.write_text(f'{{"rows": {rows}, {entry}}}\n')
    with pytest.raises(StateError, match="expected tests and their delta"):
        certificate(predictions(1))


def test_a_ledger_that_cannot_be_written_certifies_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that nobody remembers would be free."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CALIBRANT_HOME", str(tmp_path / "file" / "below"))
    with pytest.raises(StateError, match="name one with CALIBRANT_HOME"):
        certificate(predictions())


@pytest.mark.parametrize("looks", [0, -1, 1.5, True])
def test_planned_looks_are_a_number(looks: int) -> None:
    """At least one is planned."""
    with pytest.raises(ConfigurationError, match="number of certificates planned"):
        certificate(predictions(), looks=looks)
