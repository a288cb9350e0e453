"""Tests of the page on which a person decides on rows: who may ask, what is on disk, and which rows matter."""

from __future__ import annotations

import csv
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI

from calibrant.core import ConfigurationError, StateError
from calibrant.serving import Review, create_review_app
from calibrant.testing import FakeClient
from command_line import command, done, json_of, write_rows
from review_page import GONE, Reply, Visitor, answers_in, request, reviewed

LABELS = ("cat", "dog", "owl")
TOKEN = "only once"  # noqa: S105 (of these tests)
Serve = Callable[[FastAPI], Any]
UseModel = Callable[..., Any]
WriteTask = Callable[..., Path]


class Address(NamedTuple):
    """Address of a page."""

    port: int
    path: str = "/?token=only%20once"

    @property
    def url(self) -> str:
        """Return it as it is printed."""
        return f"http://127.0.0.1:{self.port}{self.path}"

    def ask(self, path: str, **headers: str) -> Reply:
        """Send a request of somebody else."""
        return request(f"127.0.0.1:{self.port}", path, None, headers)


def rows_of(n: int, **changes: Any) -> list[dict[str, Any]]:
    """Return rows labelled cat with rising confidence; those whose text says odd are dogs."""
    return [
        {
            "input": f"{'odd' if place % 7 == 0 else 'plain'} text {place}",
            "label": "cat",
            "answer": None,
            "confidence": 0.5 + 0.5 * place / n,
            "probabilities": {"cat": 0.5 + 0.5 * place / n, "dog": 0.3, "owl": 0.1},
            **changes,
        }
        for place in range(n)
    ]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file of predictions."""
    return write_rows(tmp_path / "p.jsonl", rows_of(40))


@pytest.fixture
def page(source: Path, serve: Serve) -> Iterator[Address]:
    """Return the address of its page."""
    with Review.opened(source) as review:
        running = serve(create_review_app(review, token=TOKEN))
        yield Address(running.port)


@pytest.fixture
def visitor(page: Address) -> Visitor:
    """Return whoever opened the page."""
    return Visitor(page.url)


def test_the_token_becomes_a_strict_cookie(page: Address) -> None:
    """The first use of the address sets a cookie that no script and no other site sees, and drops the token."""
    reply = page.ask(page.path)
    assert (reply.status, reply.headers["location"]) == (303, "/")
    attributes = {part.strip().lower() for part in reply.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert TOKEN not in reply.headers["set-cookie"]


def test_the_token_opens_once(page: Address) -> None:
    """A second use is refused without the cookie, with a sentence that says what to do."""
    visitor = Visitor(page.url)
    refused = page.ask(page.path)
    assert refused.status == 403
    assert "opens the page once" in refused.body
    assert visitor.ask(page.path).status == 303  # the browser that has the page may come back
    assert "<main" in visitor.ask("/").body


@pytest.mark.parametrize(
    "path", ["/", "/?token=guess", "/?token=", "/api/rows", "/api/text?row=0", "/nowhere"]
)
def test_nobody_gets_in_without_token(page: Address, path: str) -> None:
    """A guessed token or none is refused everywhere, and shows no text."""
    refused = page.ask(path, Cookie=f"calibrant-review-{page.port}=guess")
    assert refused.status == 403
    assert "Expected the address that calibrant review printed" in refused.body
    assert "text" not in refused.body


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1.evil.example:{port}", "[::1]:{port}"]
)
def test_other_hosts_are_refused(page: Address, visitor: Visitor, host: str) -> None:
    """A name that leads to this machine does not open the page, not even with the cookie."""
    refused = visitor.ask("/api/rows", Host=host.format(port=page.port))
    assert refused.status == 403
    assert "Expected the host" in refused.json["error"]
    assert visitor.ask("/api/rows", Host=f"localhost:{page.port}").status == 200


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example", "http://127.0.0.1", "https://127.0.0.1:{port}"]
)
def test_other_origins_change_nothing(page: Address, visitor: Visitor, source: Path, origin: str) -> None:
    """A decision from another origin, or of none, is refused."""
    refused = visitor.ask("/api/decide", {"row": 0, "answer": "dog"}, Origin=origin.format(port=page.port))
    assert refused.status == 403
    assert "Expected the origin" in refused.json["error"]
    assert not source.with_name("answers.csv").exists()


def test_other_types_of_bodies_are_refused(visitor: Visitor) -> None:
    """A body that a form of another site could send is refused."""
    assert visitor.ask("/api/decide", {"row": 0, "answer": "dog"}, Content_Type="text/plain").status == 415


@pytest.mark.parametrize(
    "body",
    [{}, [], {"row": "0", "answer": "dog"}, {"row": 0, "answer": 1}, {"row": 0, "answer": "dog", "more": 1}],
)
def test_a_body_that_is_no_decision_is_refused(visitor: Visitor, body: Any) -> None:
    """What is no decision is refused with a sentence."""
    reply = visitor.ask("/api/decide", body)
    assert reply.status == 400
    assert "Expected a JSON object with row" in reply.json["error"]


@pytest.mark.parametrize(("row", "answer"), [(-1, "cat"), (40, "cat"), (0, "bird"), (0, "")])
def test_an_unknown_row_or_label_is_refused(visitor: Visitor, source: Path, row: int, answer: str) -> None:
    """Nothing is written for a row that is not there, or an answer that is no label."""
    reply = visitor.decide(row, answer)
    assert reply.status == 400
    assert reply.json["error"].startswith("Expected a ")
    assert not source.with_name("answers.csv").exists()


def test_every_answer_has_the_headers_of_a_private_page(visitor: Visitor) -> None:
    """Nothing is kept, framed, or loaded from elsewhere, whatever is asked."""
    for path in ("/", "/api/rows", "/nowhere"):
        headers = visitor.ask(path).headers
        policy = headers["content-security-policy"].split("; ")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "connect-src 'self'" in policy
        assert not any("unsafe" in part or "http" in part for part in policy)
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"


def test_a_decision_is_on_disk_when_it_is_answered(visitor: Visitor, source: Path) -> None:
    """The file has the answer by index as soon as the server says so; a later one replaces it."""
    path = source.with_name("answers.csv")
    for row, answer in ((3, "dog"), (5, "-"), (3, "owl")):
        reply = visitor.decide(row, answer)
        assert (reply.json["row"], reply.json["answer"]) == (row, answer)
        assert answers_in(path)[row] == answer
    assert answers_in(path) == {3: "owl", 5: "-"}
    assert reply.json["answered"] == 2


def test_undo_takes_back_on_disk(visitor: Visitor, source: Path) -> None:
    """Undo restores what was there before each answer, the latest first, until nothing is left."""
    path = source.with_name("answers.csv")
    for row, answer in ((3, "dog"), (5, "cat"), (3, "owl")):
        visitor.decide(row, answer)
    left = [(visitor.ask("/api/undo", {}).json["row"], answers_in(path)) for _ in range(4)]
    assert left == [(3, {3: "dog", 5: "cat"}), (5, {3: "dog"}), (3, {}), (None, {})]


def test_undo_reaches_beyond_a_restart(source: Path) -> None:
    """Answers of an earlier review can be taken back, too, down to the last one."""
    with Review.opened(source) as first:
        first.decide(1, "dog")
        first.decide(2, "cat")
    with Review.opened(source) as second:
        assert [second.undo(), second.undo(), second.undo()] == [2, 1, None]
    with Review.opened(source) as third:
        assert third.answers() == {}
        third.decide(4, "owl")
    with Review.opened(source) as fourth:
        assert fourth.answers() == {4: "owl"}


def test_undo_keeps_the_order_of_decisions_beyond_a_restart(source: Path) -> None:
    """After a restart the last decision is taken back first, whichever row of the file it is about."""
    with Review.opened(source) as first:
        for row, answer in ((7, "dog"), (2, "cat"), (5, "cat"), (2, "owl"), (7, "cat"), (7, "owl")):
            first.decide(row, answer)
        assert first.undo() == 7
    with Review.opened(source) as second:
        assert second.answers() == {5: "cat", 2: "owl", 7: "cat"}
        assert second.undo() == 7
        second.decide(5, "dog")
        assert second.undo() == 5
    with Review.opened(source) as third:
        assert [third.undo(), third.undo(), third.undo()] == [2, 5, None]


def test_answers_that_somebody_else_wrote_are_not_replaced(source: Path) -> None:
    """A decision, and one taken back, are refused while the file is another than the one that was read."""
    with Review.opened(source) as page:
        page.decide(5, "cat")
        path = page.path
        changed = path.read_text() + "2,text 2,cat,owl\n"
        path.write_text(changed)
        for act in (lambda: page.decide(7, "cat"), page.undo):
            with pytest.raises(StateError, match="somebody else has changed it"):
                act()
        assert path.read_text() == changed
        assert page.answers() == {5: "cat"}


def test_a_second_review_of_the_same_answers_is_refused(source: Path, tmp_path: Path) -> None:
    """The sentence names the file and the process; with another directory it is no harm."""
    with reviewed(source) as page:
        with pytest.raises(StateError) as refused, Review.opened(source):
            pass
        with Review.opened(source, tmp_path / "other"):
            pass
    assert str(source.with_name("answers.csv")) in str(refused.value)
    assert f"process {page.process.pid} of calibrant has these answers open" in str(refused.value)
    with Review.opened(source):  # the one that was killed holds nothing
        pass


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_no_decision_is_lost_in_kills(tmp_path: Path, kills: int) -> None:
    """Whatever was answered before a kill is in the file, which can be read after every one."""
    source = write_rows(tmp_path / "p.jsonl", rows_of(2000))
    path, seed = tmp_path / "answers.csv", random.Random(kills)
    kept: dict[int, str] = {}
    for _ in range(kills):
        with reviewed(source) as page:
            visitor = Visitor(page.url)
            threading.Timer(seed.uniform(0.02, 0.4), page.process.kill).start()
            sent: dict[int, str] = {}
            try:
                while True:
                    row, answer = seed.randrange(2000), seed.choice(LABELS)
                    sent = {row: answer}
                    assert visitor.decide(row, answer).status == 200
                    kept[row] = answer
            except GONE:
                page.process.wait()
            found = answers_in(path) if path.exists() else {}
            # The one that was under way when the process died may be there, too.
            assert found in (kept, kept | sent)
            kept = found
    assert len(kept) > kills


def test_answers_come_back_to_certify(tmp_path: Path) -> None:
    """The page asks for the rows of `certify`, in its order, and comes to the same certificate."""
    source, out = write_rows(tmp_path / "p.jsonl", rows_of(400)), tmp_path / "out"
    promise = ("--target", "0.7", "--budget", "120")
    with reviewed(source, "--out", out, "--certify", *promise) as page:
        visitor = Visitor(page.url)
        found = visitor.ask("/api/promise").json
        grown = [found["accepted"]]
        while found["wanted"]:
            row = found["wanted"][0]
            text = visitor.ask(f"/api/text?row={row}").json
            visitor.decide(row, "dog" if text.startswith("odd") else "cat")
            found = visitor.ask("/api/promise").json
            grown.append(found["accepted"])
        page.process.terminate()
        told = page.process.communicate()[0]
    assert grown == sorted(grown)
    assert grown[0] == 0 < grown[-1]
    assert f"Certified: {found['sentence']}" in told
    written = json.loads((out / "certificate.json").read_text())
    decisions = (out / "decisions.csv").read_text()
    again = ("--ask", out / "answers.csv", "--out", tmp_path / "again", "--json")
    shown = json_of(command("certify")(source, *promise, *again))
    assert shown == written
    assert written["accepted"] == grown[-1]
    assert written["delta"] == 0.1  # however often it was looked at
    assert (tmp_path / "again" / "decisions.csv").read_text() == decisions


def test_rows_that_wait_for_certify_are_asked_for(source: Path) -> None:
    """Rows that `certify` has put into the file are marked, and answered there."""
    path = source.with_name("answers.csv")
    certify = (source, "--target", "0.7", "--budget", "30", "--ask", path, "--out", source.parent)
    done(command("certify")(*certify))
    waiting = answers_in(path)
    with Review.opened(source) as review:
        columns = review.columns()
        marked = {row for row, answer in zip(columns["row"], columns["answer"], strict=True) if answer == ""}
        assert marked == waiting.keys() != set()
        review.decide(min(marked), "cat")
        assert review.undo() == min(marked)
    assert answers_in(path) == waiting


def flagged(review: Review) -> dict[str, set[int]]:
    """Return the rows to review, and those that were escalated."""
    columns = review.columns()
    flags = dict(zip(columns["row"], columns["flags"], strict=True))
    return {
        "review": {row for row, flag in flags.items() if flag & 1},
        "escalated": {row for row, flag in flags.items() if flag & 2},
    }


def test_rows_of_a_cascade_that_were_escalated_or_left_open_matter(tmp_path: Path) -> None:
    """Rows with several steps were escalated; those that the last model did not accept are to be reviewed."""
    step = {"model": "small", "verdict": "escalated", "label": "dog", "confidence": 0.4, "reason": "unsure"}
    rows = rows_of(4)
    rows[1] |= {"steps": [step, step | {"model": "large", "verdict": "accepted"}], "accepted": True}
    rows[2] |= {"steps": [step, step], "accepted": False}
    with Review.opened(write_rows(tmp_path / "p.jsonl", rows)) as review:
        assert flagged(review) == {"review": {2}, "escalated": {1, 2}}
        (shown,) = review.details([1])
    assert [(said["model"], said["label"], said["confidence"]) for said in shown["steps"]] == [
        ("small", "dog", 0.4),
        ("large", "dog", 0.4),
    ]


def test_decisions_of_label_say_what_to_review(tmp_path: Path) -> None:
    """In a directory of `label`, the rows of its file that are not accepted matter; the least sure come first."""
    (tmp_path / "labelled").mkdir()
    write_rows(tmp_path / "labelled" / "predictions.jsonl", rows_of(4))
    labels = "text,label,decision\na,cat,review\nb,cat,accepted\nc,cat,review\nd,cat,accepted\n"
    (tmp_path / "labelled" / "labels.csv").write_text(labels)
    with Review.opened(tmp_path / "labelled") as review:
        assert flagged(review)["review"] == {0, 2}
        assert review.columns()["row"] == [0, 1, 2, 3]


def test_decisions_of_label_are_found_by_id(tmp_path: Path) -> None:
    """In a file of labels that was sorted anew, decisions are those of the rows with the same id."""
    (tmp_path / "labelled").mkdir()
    rows = [row | {"id": row_id} for row, row_id in zip(rows_of(4), "kkmn", strict=True)]
    write_rows(tmp_path / "labelled" / "predictions.jsonl", rows)
    labels = "id,label,decision\nk,cat,review\nk,cat,accepted\nn,cat,review\nm,cat,accepted\n"
    (tmp_path / "labelled" / "labels.csv").write_text(labels)
    with Review.opened(tmp_path / "labelled") as review:
        assert flagged(review)["review"] == {0, 3}


def test_the_ids_of_a_labelled_file_are_in_the_tasks_column(
    tmp_path: Path, write_task: WriteTask, use_model: UseModel, animals: FakeClient
) -> None:
    """The rows of a file that `label` wrote are known by the column that the task names."""
    use_model(animals)
    task = write_task()
    named = '[data]\nid_column = "No."\n'
    task.write_text(task.read_text().replace("[data]\n", named))
    rows = [{"input": f"test {n} {('meow', 'woof')[n % 2]}", "No.": f"n{n}"} for n in range(4)]
    out = tmp_path / "labelled"
    done(command("label")(task, write_rows(tmp_path / "new.jsonl", rows), "--out", out, "--no-cache"))
    (labels,) = out.glob("labels.*")
    given = [json.loads(line) for line in labels.read_text().splitlines()]
    for line in given:
        line["decision"] = "review" if line["No."] == "n1" else "accepted"
    write_rows(labels, reversed(given))
    with Review.opened(out) as review:
        assert flagged(review)["review"] == {1}


def test_a_promise_decides_on_its_rows_and_label_on_the_others(tmp_path: Path) -> None:
    """Decisions of `certify` stand before those of `label`; those of other rows, and of recall, do not count."""
    source, out = tmp_path / "labelled", tmp_path / "out"
    source.mkdir()
    rows = rows_of(6)
    write_rows(source / "predictions.jsonl", rows)
    (source / "labels.csv").write_text("decision\n" + "review\n" * 4 + "accepted\n" * 2)
    decided = {0: "accepted", 1: "answered", 2: "left out", 5: "review"}
    lines = [f"{place},cat,{rows[place]['confidence']},{decision}" for place, decision in decided.items()]
    head = "index,label,confidence,decision"
    (source / "decisions.csv").write_text("\n".join([head, *lines, ""]))
    with Review.opened(source) as review:
        assert flagged(review)["review"] == {2, 3, 5}
    out.mkdir()
    (out / "decisions.csv").write_text(f"{head}\n3,cat,0.125,accepted\n4,cat,0.125,review\n")
    with Review.opened(source, out) as review:
        assert flagged(review)["review"] == {2, 3, 5}


def test_wrong_labels_are_likely_where_the_model_is_sure(tmp_path: Path) -> None:
    """Of rows with true labels, wrong ones are listed, first the one whose own label is least probable."""
    rows = rows_of(200, answer="cat")
    for place, sure in ((20, 0.6), (120, 0.99)):
        rows[place] |= {"answer": "dog", "confidence": sure, "probabilities": {"cat": sure, "dog": 1 - sure}}
    with Review.opened(write_rows(tmp_path / "p.jsonl", rows)) as review:
        assert review.mislabelled() == [120, 20]
    with Review.opened(write_rows(tmp_path / "new.jsonl", rows_of(4)), tmp_path / "new") as review:
        assert review.mislabelled() == []


def test_long_texts_are_cut_until_all_is_asked_for(tmp_path: Path) -> None:
    """Of a text of a megabyte the page gets the beginning, and the whole on request."""
    text = "word " * 200_000
    with reviewed(write_rows(tmp_path / "p.jsonl", rows_of(2, input=text))) as page:
        visitor = Visitor(page.url)
        (shown,) = visitor.ask("/api/details?row=1").json
        assert len(shown["text"]) == 5_000
        assert shown["characters"] == len(text)
        assert visitor.ask("/api/text?row=1").json == text
        assert visitor.decide(1, "dog").status == 200


def test_search_finds_texts_with_all_words(source: Path) -> None:
    """Words are found whatever their case and order."""
    with Review.opened(source) as review:
        assert review.search("TEXT odd") == [0, 7, 14, 21, 28, 35]
        assert review.search("7 odd") == [7]
        assert review.search("nowhere") == []


def test_the_nearest_training_rows_are_shown(tmp_path: Path) -> None:
    """Of the rows that a run's prompt shows, those with most words in common; a file of predictions knows none."""
    run = tmp_path / "run"
    run.mkdir()
    rows = [{"input": "the parcel never came", "label": "late", "answer": None, "confidence": 0.7}]
    write_rows(run / "predictions.jsonl", rows)
    train = {"my parcel came late": "late", "a refund please": "money", "parcel lost, never came": "late"}
    write_rows(run / "demonstrations.jsonl", [{"input": text, "answer": train[text]} for text in train])
    with Review.opened(run) as review:
        nearest = review.nearest(0) or []
    assert nearest[:2] == [
        {"text": "parcel lost, never came", "label": "late"},
        {"text": "my parcel came late", "label": "late"},
    ]
    with Review.opened(write_rows(tmp_path / "p.jsonl", rows)) as review:
        assert review.nearest(0) is None


def test_a_run_beside_its_task_file_knows_the_training_rows(
    tmp_path: Path, write_task: WriteTask, use_model: UseModel, animals: FakeClient
) -> None:
    """The task file in the folder above a run has its training rows; rows below its threshold are to be reviewed."""
    use_model(animals)
    run, other = tmp_path / "run", tmp_path / "a.toml"
    task = write_task()
    other.write_text(task.read_text().replace('"animals"', '"plants"'))
    done(command("evaluate")(task, "--out", run, "--no-cache"))
    rule = {"schema_version": 1, "certified": {"threshold": 0.85}}
    (run / "calibration.json").write_text(json.dumps(rule))
    with Review.opened(run) as review:
        nearest = review.nearest(0) or []
        shown = review.details([0, 1, 2, 3])
        unsure = {one["row"] for one in shown if dict(one["probabilities"])["dog"] > 0.5}
        assert flagged(review)["review"] == unsure != set()
    assert nearest[0]["label"] == "cat"
    assert nearest[0]["text"].startswith("train ")


def test_the_reviewed_file_has_every_row_with_its_final_label(tmp_path: Path) -> None:
    """Answers replace labels and true labels; where no label fits, a row has none, and is not learned from."""
    rows = rows_of(4)
    rows[2] |= {"answer": "dog", "id": "k-2"}
    with Review.opened(write_rows(tmp_path / "p.jsonl", rows)) as review:
        review.decide(0, "owl")
        review.decide(1, "-")
        review.write()
    with (tmp_path / "reviewed.csv").open(newline="") as file:
        found = [tuple(row.values()) for row in csv.DictReader(file)]
    assert found == [
        ("0", "", "odd text 0", "owl", "owl"),
        ("1", "", "plain text 1", "", ""),
        ("2", "k-2", "plain text 2", "cat", "dog"),
        ("3", "", "plain text 3", "cat", ""),
    ]


def test_an_answer_that_cannot_be_written_is_not_confirmed(source: Path) -> None:
    """A full or missing folder is an error, and the answers stay as they were."""
    out = source.parent / "gone"
    with Review.opened(source, out) as review:
        review.decide(0, "dog")
        for path in out.iterdir():
            path.unlink()
        out.rmdir()
        out.write_text("a file")
        with pytest.raises(StateError, match="cannot be written"):
            review.decide(1, "cat")
        assert review.answers() == {0: "dog"}


def test_a_promise_that_cannot_be_written_is_an_error(source: Path, serve: Serve) -> None:
    """The page is told which file cannot be written and why, and goes on once it can be."""
    decisions = source.with_name("decisions.csv")
    with Review.opened(source) as review:
        review.certify(target=0.5, budget=30)
        visitor = Visitor(Address(serve(create_review_app(review, token=TOKEN)).port).url)
        review.decide(visitor.ask("/api/promise").json["wanted"][0], "cat")
        decisions.mkdir()
        refused = visitor.ask("/api/promise")
        assert refused.status == 500
        assert f"{decisions}: cannot be written" in refused.json["error"]
        decisions.rmdir()
        assert visitor.ask("/api/promise").json["used"] == 1
        assert decisions.is_file()


def test_errors_of_the_review_are_sentences(visitor: Visitor, source: Path) -> None:
    """What goes wrong inside is told to the page without a trace."""
    source.write_text("not JSON\n")
    reply = visitor.ask("/api/details?row=0")
    assert reply.status == 500
    assert str(source) in reply.json["error"]


def test_another_promise_on_the_same_rows_says_what_its_probability_is_of(tmp_path: Path) -> None:
    """The second target states the sum, and that it is of all promises; the first one says nothing of others."""
    rows = write_rows(tmp_path / "sure.jsonl", rows_of(60))
    told = []
    for target in (0.5, 0.6):
        with Review.opened(rows, tmp_path / "out") as review:
            review.certify(target=target, delta=0.1, budget=30)
            while review.promise()["wanted"]:  # type: ignore[index]
                review.decide(review.promise()["wanted"][0], "cat")  # type: ignore[index]
            told.append(review.promise()["sentence"])  # type: ignore[index]
    joint = "With that probability all promises asked of these rows hold."
    assert [("with probability 0.8" in one, joint in one) for one in told] == [(False, False), (True, True)]


def test_a_promise_that_loses_its_answers_is_taken_back_on_disk(tmp_path: Path) -> None:
    """After an undo of every answer the certificate in the file certifies nothing."""
    rows = write_rows(tmp_path / "sure.jsonl", rows_of(60))
    out = tmp_path / "out"
    with Review.opened(rows, out) as review:
        review.certify(target=0.5, delta=0.1, budget=30)
        while review.promise()["wanted"]:  # type: ignore[index]
            review.decide(review.promise()["wanted"][0], "cat")  # type: ignore[index]
        certified = json.loads((out / "certificate.json").read_text())["certified"]
        while review.undo() is not None:
            pass
        review.promise()
        review.write()
    assert certified
    assert not json.loads((out / "certificate.json").read_text())["certified"]
    assert "accepted" not in (out / "decisions.csv").read_text()


def test_a_corrected_answer_is_corrected_in_the_promise(tmp_path: Path) -> None:
    """The files of a promise hold the last answer to a row, whatever it replaces."""
    rows = write_rows(tmp_path / "sure.jsonl", rows_of(200))
    out = tmp_path / "out"
    with Review.opened(rows, out) as review:
        review.certify(target=0.9, budget=100)
        row = review.promise()["wanted"][0]  # type: ignore[index]
        for answer, n_right in (("dog", 0), ("owl", 0), ("cat", 1)):
            review.decide(row, answer)
            review.promise()
            with (out / "decisions.csv").open(newline="") as file:
                labels = {int(line["index"]): line["label"] for line in csv.DictReader(file)}
            assert labels[row] == answer
            assert json.loads((out / "certificate.json").read_text())["labels_right"] == n_right


def test_half_a_surrogate_pair_is_no_obstacle(tmp_path: Path) -> None:
    """Such a text is shown, answered and written with a question mark in its place."""
    source = tmp_path / "p.jsonl"
    source.write_text('{"input": "bad \\ud800", "label": "cat", "answer": null, "confidence": 0.9}\n')
    with Review.opened(source) as review:
        json.dumps(review.details([0]), ensure_ascii=False).encode()
        review.decide(0, "cat")
        review.write()
    assert "bad ?" in (tmp_path / "reviewed.csv").read_text()
    with Review.opened(source) as review:
        assert review.answers() == {0: "cat"}


def test_a_label_of_a_dash_is_refused(tmp_path: Path) -> None:
    """A dash says that no label fits, so a label cannot be one."""
    rows = write_rows(tmp_path / "p.jsonl", rows_of(3, label="-", probabilities={"-": 0.9, "a": 0.1}))
    with pytest.raises(ConfigurationError, match="Expected labels besides -"), Review.opened(rows):
        pass
