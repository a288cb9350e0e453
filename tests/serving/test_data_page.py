"""Tests of the page on data: its blocks run against a service, and print what it shows."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
import yaml

import held
from calibrant.core import Prediction
from calibrant.tuned import Tuned
from fault_server import FaultServer
from packed import packed

if TYPE_CHECKING:
    from conftest import Running, Serve

DOCS = Path(__file__).parent.parent.parent / "docs"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def answer(text: str) -> Prediction:
    """Return the answer of a model that knows good films from bad ones."""
    is_good = "good" in text
    return Prediction(label="positive" if is_good else "negative", confidence=0.9 if is_good else 0.8)


@pytest.fixture
def service(serve: Serve, bundle: Tuned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Running:
    """Return a running service, whose address the page's blocks find."""
    running = serve(held.app(bundle, held.Held(held=False, answer=answer)))
    monkeypatch.setenv("SERVICE", running.url)
    monkeypatch.chdir(tmp_path)
    return running


def section(title: str) -> dict[str, str]:
    """Return the code of a section of the page by its language."""
    text = (DOCS / "tasks" / "data.md").read_text(encoding="utf-8")
    body = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return dict(_FENCE.findall(body))


def printed(title: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the blocks of a section print after those on the service."""
    names: dict[str, Any] = {}
    for part in ("A service for all others", title):
        exec(compile(section(part)["python"], part, "exec"), names)  # noqa: S102 (our own page)
    return capsys.readouterr().out


@pytest.mark.usefixtures("service")
def test_duckdb_asks_by_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    """A column is labelled in a query."""
    pytest.importorskip("duckdb")
    assert printed("DuckDB", capsys) == section("DuckDB")["text"]


@pytest.mark.usefixtures("service")
def test_a_table_of_labels_is_filled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows without a label are asked about, those with one are not."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'reviews.db'}")
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE reviews (id INTEGER PRIMARY KEY, review TEXT)"))
        rows = [{"id": n, "review": f"film {n} is {'good' if n % 25 < 17 else 'bad'}"} for n in range(250)]
        connection.execute(sa.text("INSERT INTO reviews VALUES (:id, :review)"), rows)
    assert printed("A database", capsys) == section("A database")["text"]
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE review_labels SET label = 'mine' WHERE id = 7"))
        connection.execute(sa.text("INSERT INTO reviews VALUES (250, 'a good film')"))
    assert printed("A database", capsys) == "[('mine', 1), ('negative', 80), ('positive', 170)]\n"


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("service")
def test_spark_asks_in_its_workers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of a Spark frame is labelled."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    sql = pytest.importorskip("pyspark.sql")
    try:
        assert printed("Spark", capsys) == section("Spark")["text"]
    finally:
        sql.SparkSession.builder.getOrCreate().stop()


def test_promptfoo_asks_what_the_service_answers(serve: Serve, tmp_path: Path) -> None:
    """The request in the page's configuration gets the choice that the bundle makes, with its probabilities."""
    page = (DOCS / "peers" / "promptfoo.md").read_text(encoding="utf-8")
    (config,) = [yaml.safe_load(code) for language, code in _FENCE.findall(page) if language == "yaml"]
    (provider,) = config["providers"]
    body = json.loads(json.dumps(provider["config"]["body"]).replace("{{prompt}}", "a dog"))
    path = provider["id"].removeprefix("http://127.0.0.1:8890")
    rows = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(10)]
    with FaultServer(["cat", "dog"]) as model:
        bundle = packed(tmp_path, rows, server=model)
        with bundle.open() as classifier:
            running = serve(held.app(bundle, classifier))
            reply = running.ask(body, path=path, **provider["config"]["headers"])
    found = reply.json["answers"][0]
    assert found["choice"] == "dog"
    assert {one["value"] for one in found["probabilities"]} == {"cat", "dog"}
