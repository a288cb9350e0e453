"""Tests of the store of scores in SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import sqlalchemy as sa

from calibrant.core import ConfigurationError, StateError
from calibrant.store import PredictionCache, Scope
from calibrant.store._score_store import ScoreStore
from calibrant.store._scores import Score
from processes import processes
from stores import damage, set_version

SCOPE = Scope(account_id="acme", evaluator_id="judge", profile_name="strict")


def scores(*values: float) -> list[Score]:
    """Return scores without flag and family."""
    return [Score(score_raw=value) for value in values]


def values(store: ScoreStore, scope: Scope = SCOPE, limit: int = 1000) -> list[float]:
    """Return the stored values, the newest first."""
    return [score.score_raw for score in store.latest(scope, limit=limit)]


def test_scores_are_read_newest_first(url: str) -> None:
    """Another store reads every score exactly, the newest first."""
    exact = [
        Score(score_raw=0.1 + 0.2, passed=None, family=None),
        Score(score_raw=-1e-300, passed=True, family="toxicity"),
        Score(score_raw=1.0, passed=False, family="custom"),
    ]
    ScoreStore(url).add(SCOPE, exact)
    store = ScoreStore(url, create=False)
    assert store.latest(SCOPE, limit=10) == exact[::-1]
    assert store.latest(SCOPE, limit=2) == exact[:0:-1]
    store.add(SCOPE, scores(5.0))
    assert values(store, limit=1) == [5.0]


@pytest.mark.parametrize("name", ["account_id", "evaluator_id", "profile_name"])
def test_scopes_differ_in_any_name(url: str, name: str) -> None:
    """Upper and lower case, trailing spaces and SQL patterns make different scopes."""
    store = ScoreStore(url)
    names = ["a", "A", "a ", "%", "_", "a'b", "ä", "x" * 255]
    others = [Scope(**{**SCOPE.columns(), name: other}) for other in names]
    for number, scope in enumerate(others):
        store.add(scope, scores(float(number)))
    assert [values(store, scope) for scope in others] == [[float(number)] for number in range(len(names))]
    assert values(store) == []
    found = {summary.scope: (summary.scores, summary.mean) for summary in store.scopes()}
    assert found == {scope: (1, float(number)) for number, scope in enumerate(others)}


def test_scopes_are_listed_by_account(url: str) -> None:
    """The summaries have number, mean and time of the scores."""
    store = ScoreStore(url)
    other = Scope(account_id="other", evaluator_id="judge", profile_name="strict")
    before = time.time()
    store.add(SCOPE, scores(0.0, 1.0, 0.5, 0.5))
    store.add(other, scores(3.0))
    assert [summary.scope for summary in store.scopes()] == [SCOPE, other]
    (found,) = store.scopes(account_id="acme")
    assert (found.scope, found.scores, found.mean) == (SCOPE, 4, 0.5)
    assert before - 0.01 <= found.latest_seconds <= time.time() + 0.01
    assert store.scopes(account_id="acm") == []


def test_runs_replace_their_own_scores(url: str) -> None:
    """A run replaces its own scores, not those of other runs, single results or other scopes."""
    store = ScoreStore(url)
    elsewhere = Scope(account_id="acme", evaluator_id="judge", profile_name="lax")
    store.add(SCOPE, scores(1.0, 2.0), run_id="one")
    store.add(elsewhere, scores(7.0), run_id="one")
    store.add(SCOPE, scores(3.0), run_id="two")
    store.add(SCOPE, scores(4.0))
    store.add(SCOPE, scores(5.0), run_id="one")
    assert values(store) == [5.0, 4.0, 3.0]
    assert values(store, elsewhere) == [7.0]
    without = store.latest(SCOPE, limit=10, without_run="one")
    assert [score.score_raw for score in without] == [4.0, 3.0]
    store.add(SCOPE, [], run_id="one")
    assert values(store) == [4.0, 3.0]


def test_adding_is_all_or_nothing(url: str) -> None:
    """If one score is refused, none is added, and the run's old scores stay."""
    store = ScoreStore(url)
    store.add(SCOPE, scores(1.0), run_id="one")
    broken = [*scores(2.0), Score(score_raw=None)]  # type: ignore[arg-type]
    with pytest.raises(StateError):
        store.add(SCOPE, broken, run_id="one")
    with pytest.raises(StateError):
        store.add(SCOPE, broken)
    assert values(store) == [1.0]


RECORD = """
import sys
from calibrant.evaluation import EvaluationHistory
url, who = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
history = EvaluationHistory(url)
scope = {"account_id": "acme", "evaluator_id": "judge", "profile_name": "strict"}
for number in range(40):
    history.record(**scope, score_raw=1000.0 * who + number)
    history.record_run([-1.0] * 5, **scope, run_id="shared")
"""


def test_processes_record_at_once(url: str) -> None:
    """Several processes record into an empty database, and no score is lost."""
    with processes() as begin:
        started = [begin(sys.executable, "-c", RECORD, url, str(who), stdin=PIPE)[0] for who in range(4)]
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.wait(60) for process in started] == [0, 0, 0, 0]
    found = values(ScoreStore(url), limit=10_000)
    assert found.count(-1.0) == 5
    for who in range(4):  # each one's in the order in which it recorded them
        own = [value for value in found if value >= 0 and value // 1000 == who]
        assert own == [1000.0 * who + number for number in reversed(range(40))]


def test_forked_children_record_too(path: Path) -> None:
    """A forked child and its parent both record scores."""
    code = """
import os, sys
from calibrant.evaluation import EvaluationHistory
history = EvaluationHistory(sys.argv[1])
scope = {"account_id": "acme", "evaluator_id": "judge", "profile_name": "strict"}
history.record(**scope, score_raw=1.0)
child = os.fork()
history.record(**scope, score_raw=2.0 if child else 3.0)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)  # noqa: S603
    assert sorted(values(ScoreStore(path))) == [1.0, 2.0, 3.0]


def test_other_versions_are_not_dropped(url: str) -> None:
    """Scores of another schema raise StateError, and stay."""
    ScoreStore(url).add(SCOPE, scores(1.0))
    set_version(url, 0, of="calibrant_scores")
    with pytest.raises(StateError, match="schema version 1, got 0: use the calibrant that wrote it"):
        ScoreStore(url)
    set_version(url, 1, of="calibrant_scores")
    assert values(ScoreStore(url)) == [1.0]


def test_predictions_share_the_database(url: str) -> None:
    """Predictions and scores in one database have separate schema versions."""
    with PredictionCache(url):
        store = ScoreStore(url)
        store.add(SCOPE, scores(1.0))
    set_version(url, 99, of="calibrant_scores")
    with PredictionCache(url):
        pass
    set_version(url, 1, of="calibrant_scores")
    assert values(store) == [1.0]


def test_missing_histories_are_errors(url: str, path: Path) -> None:
    """A missing file or table raises StateError, and is not made."""
    with pytest.raises(StateError, match="holds no evaluation history: check the name"):
        ScoreStore(url, create=False)
    assert not path.exists()
    with PredictionCache(url):
        pass
    with pytest.raises(StateError, match="holds no evaluation history"):
        ScoreStore(url, create=False)
    ScoreStore(url)
    assert values(ScoreStore(url, create=False)) == []


def test_deleted_files_are_noticed(path: Path) -> None:
    """A deleted file is made again by a writer, and raises StateError with create=False."""
    store, reader = ScoreStore(path), ScoreStore(path, create=False)
    store.add(SCOPE, scores(1.0))
    path.unlink()
    with pytest.raises(StateError, match="holds no evaluation history"):
        reader.latest(SCOPE, limit=10)
    assert not path.exists()
    store.add(SCOPE, scores(2.0))
    assert values(reader) == [2.0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_locked_files_can_be_read(path: Path) -> None:
    """With a locked file writing raises StateError, and reading works."""
    store = ScoreStore(path, busy_timeout=0.05)
    store.add(SCOPE, scores(1.0))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for run_id in (None, "run"):
            with pytest.raises(
                StateError, match=r"cannot be written, nothing was recorded \(database is locked\): end what"
            ):
                store.add(SCOPE, scores(2.0), run_id=run_id)
        assert values(store) == [1.0]
        assert values(ScoreStore(path, create=False)) == [1.0]
        other.execute("ROLLBACK")
    store.add(SCOPE, scores(3.0))
    assert values(store) == [3.0, 1.0]


def test_locked_server_tables_are_errors(postgresql: str, server: sa.Engine) -> None:
    """A locked table on a server raises StateError on writing and reading."""
    store = ScoreStore(postgresql, busy_timeout=0.05)
    with server.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE calibrant_scores")
        with pytest.raises(StateError, match=r"nothing was recorded \(.*lock timeout"):
            store.add(SCOPE, scores(1.0))
        with pytest.raises(StateError, match=r"cannot be read \(.*lock timeout"):
            values(store)
    store.add(SCOPE, scores(2.0))
    assert values(store) == [2.0]


def test_dropped_tables_are_errors_without_sql(postgresql: str, server: sa.Engine) -> None:
    """A dropped table raises StateError without any recorded value."""
    store = ScoreStore(postgresql)
    with server.begin() as connection:
        connection.exec_driver_sql("DROP TABLE calibrant_scores")
    with pytest.raises(StateError, match="does not exist") as caught:
        store.add(SCOPE, scores(1 / 8))
    assert "0.125" not in "".join(traceback.format_exception(caught.value))


def test_damage_is_an_error(path: Path) -> None:
    """A damaged file raises StateError when read."""
    store = ScoreStore(path)
    store.add(SCOPE, scores(*map(float, range(2000))))
    damage(path, pages=6)
    with pytest.raises(StateError, match=r"malformed.*delete it"):
        values(store, limit=2000)


@pytest.mark.parametrize("bad", ["", "ä" * 128, "a\nb", None])
def test_unportable_names_are_errors(bad: object) -> None:
    """A name that some database cannot hold raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected profile_name of 1 to 255 bytes"):
        Scope(account_id="a", evaluator_id="b", profile_name=bad)  # type: ignore[arg-type]


def test_writers_wait_for_short_locks(path: Path) -> None:
    """A writer waits for a short lock, and records the score."""
    store = ScoreStore(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.1, other.execute, ["ROLLBACK"])
        timer.start()
        store.add(SCOPE, scores(1.0))
        timer.join()
    assert values(store) == [1.0]


def test_readers_do_not_wait_for_writers(path: Path) -> None:
    """A read ends while another thread of the process waits for the lock of another program."""
    store = ScoreStore(path, busy_timeout=30.0)
    store.add(SCOPE, scores(1.0))
    begun = threading.Event()

    def note(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        if statement.startswith("INSERT"):
            begun.set()

    writer = threading.Thread(target=store.add, args=(SCOPE, scores(2.0)), daemon=True)
    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writer.start()
            assert begun.wait(30.0)
            reader = threading.Thread(target=values, args=(store,), daemon=True)
            reader.start()
            reader.join(10.0)
            assert not reader.is_alive()
            assert writer.is_alive()
            other.execute("ROLLBACK")
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    writer.join(30.0)
    assert values(store) == [2.0, 1.0]
