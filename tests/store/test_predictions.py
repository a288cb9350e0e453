"""Tests of the cache of predictions: reads, writes, shared databases and eviction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.core import ConfigurationError, Outcome, Prediction, StateError, Usage
from calibrant.store import PredictionCache
from stores import Open, Rows, at_once, fill, put


def stored(url: str, statement: str) -> list[Any]:
    """Run `statement` on the database, and return the rows."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        result = connection.exec_driver_sql(statement)
        found = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return found


def test_predictions_survive_reopening(url: str, open_cache: Open, rows: Rows) -> None:
    """All predictions are read back after reopening, and unknown keys are left out."""
    predictions = rows(1300)  # more than one statement reads or writes
    with open_cache(url) as cache:
        put(cache, predictions)
    keys = list(predictions)
    assert open_cache(url).get_many([*keys, "unknown"]) == predictions
    assert open_cache(url).get_many(["unknown"]) == {}
    assert open_cache(url).get_many([]) == {}


def test_queued_predictions_can_be_read(
    path: Path, open_cache: Open, rows: Rows, before_sql: Callable[..., None]
) -> None:
    """Rows being written and rows waiting are read; of two for one key, the newer one."""
    cache = open_cache(path)
    (first, old), (second, other) = rows(2).items()
    new = replace(old, text="newer")
    entered, go = threading.Event(), threading.Event()

    def wait_with_writing(statement: str) -> None:
        if "INSERT" in statement:
            entered.set()
            assert go.wait(10)

    before_sql(wait_with_writing)
    cache.put(first, old)
    assert entered.wait(10)
    assert cache.get_many([first, second]) == {first: old}
    cache.put(first, new)
    cache.put(second, other)
    assert cache.get_many([first, second]) == {first: new, second: other}
    go.set()
    cache.flush()
    assert open_cache(path).get_many([first, second]) == {first: new, second: other}


def test_later_puts_replace_earlier_ones(url: str, open_cache: Open, rows: Rows) -> None:
    """A put replaces the record of the same key, also from another cache."""
    ((key, prediction),) = rows(1).items()
    cache = open_cache(url)
    fill(cache, {key: prediction})
    fill(cache, {key: replace(prediction, text="second")})
    assert cache.get_many([key])[key].text == "second"
    fill(open_cache(url), {key: replace(prediction, text="third")})
    assert cache.get_many([key])[key].text == "third"
    assert stored(url, "SELECT COUNT(*) FROM calibrant_predictions") == [(1,)]


def test_plain_sql_upserts_too(path: Path, open_cache: Open, rows: Rows) -> None:
    """Without an upsert statement rows are replaced with plain SQL."""
    cache = open_cache(path)
    cache._table._mark = None
    predictions = rows(600)
    fill(cache, predictions)
    changed = {key: replace(prediction, text="again") for key, prediction in predictions.items()}
    fill(cache, changed)
    assert open_cache(path).get_many(list(changed)) == changed


def test_errors_are_not_stored(path: Path, open_cache: Open) -> None:
    """Predictions with the outcome "error" are not stored, all others are."""
    cache = open_cache(path)
    answers = {outcome.value: Prediction(label=None, outcome=outcome) for outcome in Outcome}
    fill(cache, answers)
    del answers["error"]
    assert cache.get_many(list(Outcome)) == answers
    assert open_cache(path).get_many(list(Outcome)) == answers


@pytest.mark.parametrize("key", ["", "x" * 256, "schlüssel", "a\x1fb"])
def test_unportable_keys_are_errors(path: Path, open_cache: Open, key: str) -> None:
    """A key that some database cannot store raises ConfigurationError."""
    cache = open_cache(path)
    with pytest.raises(ConfigurationError, match="1 to 255 printable ASCII characters"):
        cache.put(key, Prediction(label="x"))
    fill(cache, {"x" * 255: Prediction(label="x")})


any_text = st.text(st.characters(exclude_categories=()), max_size=30)
any_float = st.floats(allow_nan=False)
any_prediction = st.builds(
    Prediction,
    label=st.none() | any_text,
    confidence=st.none() | any_float,
    outcome=st.sampled_from([Outcome.OK, Outcome.REFUSAL, Outcome.UNPARSED]),
    reason=any_text,
    text=any_text,
    usage=st.builds(Usage, prompt_tokens=st.integers(0, 2**53), cost=st.none() | any_float),
    model=st.none() | any_text,
    latency_seconds=any_float,
)


def test_any_prediction_survives(url: str, open_cache: Open) -> None:
    """Predictions with zero characters, surrogate halves, separators and infinities are read back."""
    writer, reader = open_cache(url), open_cache(url)

    @settings(max_examples=40)
    @given(st.dictionaries(st.sampled_from("abcdefgh"), any_prediction, min_size=1))
    def survives(predictions: dict[str, Prediction]) -> None:
        fill(writer, predictions)
        assert reader.get_many(list(predictions)) == predictions

    survives()


@pytest.mark.parametrize("record", ["", "{", "5", "\x1e\x1f"])
def test_unreadable_records_count_as_missing(
    url: str, open_cache: Open, rows: Rows, record: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable record counts as missing, its neighbours are read, and a put repairs it."""
    cache = open_cache(url)
    predictions = rows(3)
    fill(cache, predictions)
    broken = list(predictions)[1]
    stored(url, f"UPDATE calibrant_predictions SET record = '{record}' WHERE key = '{broken}'")  # noqa: S608
    rest = {key: prediction for key, prediction in predictions.items() if key != broken}
    assert cache.get_many(list(predictions)) == rest
    assert cache.get_many(list(predictions)) == rest
    assert caplog.text.count("cannot be read and is asked again") == 1
    fill(cache, {broken: predictions[broken]})
    assert cache.get_many(list(predictions)) == predictions


def test_non_json_predictions_stop_nothing(
    path: Path, open_cache: Open, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """A prediction that is no JSON is not saved, and the others of its batch are."""
    cache = open_cache(path)
    predictions = rows(2)
    cache.put("strange", Prediction(label="x", text=object()))  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"1 prediction could not be saved \(see the warnings"):
        fill(cache, predictions)
    assert "A prediction that is no JSON is not saved" in caplog.text
    assert open_cache(path).get_many([*predictions, "strange"]) == predictions


def test_the_oldest_are_evicted(url: str, open_cache: Open, rows: Rows) -> None:
    """The oldest rows are removed down to nine tenths of the cap; a row written again is new."""
    predictions = rows(100)
    keys = list(predictions)
    size = 800
    cache = open_cache(url, max_bytes=40 * size)
    again = keys[0]
    for start in range(0, 100, 10):
        fill(cache, {key: predictions[key] for key in [*keys[start : start + 10], again]})
    kept = set(cache.get_many(keys))
    ((total,),) = stored(url, "SELECT SUM(bytes) FROM calibrant_predictions")
    assert 0.7 * 40 * size <= total <= 40 * size
    assert total == sum(
        b for (b,) in stored(url, "SELECT LENGTH(key) + LENGTH(record) FROM calibrant_predictions")
    )
    assert again in kept
    batches = {key: number // 10 for number, key in enumerate(keys) if key != again}
    removed = {batches[key] for key in batches if key not in kept}
    assert removed
    assert max(removed) <= min(batches[key] for key in batches if key in kept), (
        "never a newer before an older one"
    )


def test_shared_databases_keep_the_cap(path: Path, open_cache: Open, rows: Rows) -> None:
    """Caches that share a database keep its size near the cap."""
    cap = 200_000
    caches = [open_cache(path, max_bytes=cap) for _ in range(3)]
    largest = 0
    for step in range(60):
        fill(caches[step % 3], rows(10, start=10 * step))
        ((total,),) = stored(f"sqlite:///{path}", "SELECT SUM(bytes) FROM calibrant_predictions")
        largest = max(largest, total)
    assert 0.8 * cap <= largest <= 1.2 * cap


def test_the_cap_costs_few_counts(
    path: Path, open_cache: Open, rows: Rows, before_sql: Callable[..., None]
) -> None:
    """The table is counted once in a hundred writes."""
    cache = open_cache(path, max_bytes=10_000_000)
    statements: list[str] = []
    before_sql(statements.append)
    for number in range(100):
        fill(cache, rows(1, start=number))
    assert sum("sum(" in statement for statement in statements) == 1


def test_failed_evictions_lose_nothing(
    path: Path, open_cache: Open, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """If rows cannot be removed, new rows are saved and one warning is logged."""
    cache = open_cache(path, max_bytes=1000)
    stored(
        f"sqlite:///{path}",
        "CREATE TRIGGER no BEFORE DELETE ON calibrant_predictions BEGIN SELECT RAISE(ABORT, 'kept'); END",
    )
    fill(cache, rows(5))
    fill(cache, rows(5, start=5))
    assert set(open_cache(path).get_many(list(rows(10)))) == set(rows(10))
    assert caplog.text.count("Old predictions cannot be removed: kept") == 1


@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"busy_timeout": -1.0}])
def test_options_out_of_range_are_errors(path: Path, options: dict[str, Any]) -> None:
    """An option out of range raises ConfigurationError, and no file is made."""
    with pytest.raises(ConfigurationError, match=r"Expected (max_bytes|busy_timeout) "):
        PredictionCache(path, **options)
    assert not path.exists()


def test_closed_caches_raise_errors(path: Path, rows: Rows) -> None:
    """A closed cache can be closed again; reads and writes raise StateError."""
    cache = PredictionCache(path)
    cache.close()
    cache.close()
    ((key, prediction),) = rows(1).items()
    with pytest.raises(StateError, match="the cache is closed"):
        cache.put(key, prediction)
    with pytest.raises(StateError, match="the cache is closed"):
        cache.get_many([key])


def test_threads_share_a_cache(path: Path, open_cache: Open, rows: Rows) -> None:
    """Threads that write at the same time each read their own rows."""
    cache = open_cache(path)
    problems: list[str] = []

    def work(start: int) -> None:
        mine: dict[str, Prediction] = {}
        for step in range(10):
            new = rows(20, start=start + 20 * step)
            put(cache, new)
            mine |= new
            if cache.get_many(list(mine)) != mine:
                problems.append(f"{start + 20 * step}")

    at_once(*(partial(work, 1000 * number) for number in range(4)))
    assert problems == []


def test_closing_hides_no_other_error(
    path: Path, before_sql: Callable[..., None], rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the block is raised, and rows that could not be saved are logged."""
    caplog.set_level(logging.WARNING)
    cache = PredictionCache(path)

    def refuse(statement: str) -> None:
        if "INSERT" in statement:
            raise OSError("no space")

    before_sql(refuse)
    cache.put(*next(iter(rows(1).items())))
    with pytest.raises(KeyError, match="the user's"), cache:
        raise KeyError("the user's")
    assert "1 prediction could not be saved (no space)" in caplog.text
