"""Tests of `distill`: what a student learns, how it is opened, and what it may keep before a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import BatchEvaluator, Classifier, Example, Task, load
from calibrant.cascade import plan_cascade
from calibrant.core import ConfigurationError, DataError, StateError
from calibrant.testing import FakeClient, fake_model
from calibrant.tuned import Tuned, distill

LABELS = ["cat", "dog"]
SOUNDS = ("purrs", "barks", "sleeps")
WORDS = ("sun", "rain", "tree", "door", "lamp", "book", "road", "hill", "fish", "wine", "shoe", "rope")


def texts_of(sound: str, n: int) -> Iterator[str]:
    """Yield different texts about an animal's sound."""
    rng = np.random.default_rng(n)
    for _ in range(n):
        yield f"it {sound} {' '.join(rng.choice(WORDS, 8))}"


def row(text: str, label: str, confidence: float, answer: str | None = None) -> dict[str, Any]:
    """Return a row of predictions without the model's whole distribution."""
    return {"input": text, "label": label, "confidence": confidence, "answer": answer}


def file_of(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Write predictions."""
    path = folder / "large.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def easy(folder: Path, n: int = 200, *, answer: str | None = None) -> Path:
    """Write predictions of a model that knows cats and dogs by their sounds, and guesses where they sleep."""
    rows = [row(text, "cat", 0.98, answer and "cat") for text in texts_of("purrs", n)]
    rows += [row(text, "dog", 0.98, answer and "dog") for text in texts_of("barks", n)]
    guesses = enumerate(texts_of("sleeps", n // 4))
    rows += [row(text, LABELS[place % 2], 0.7, answer and LABELS[place % 2]) for place, text in guesses]
    return file_of(folder, rows)


def shares_of(student: Path, sound: str, label: str) -> float:
    """Return the mean probability of a label on the held-out rows with a sound."""
    rows = map(json.loads, (student / "predictions.jsonl").read_text().splitlines())
    return float(np.mean([one["probabilities"][label] for one in rows if sound in one["input"]]))


def large() -> tuple[FakeClient, Classifier]:
    """Return a model that answers at a price, and its classifier."""
    fake = FakeClient(
        LABELS, {"purrs": ("cat", 0.95), "barks": ("dog", 0.95), "sleeps": ("cat", 0.6)}, field="label"
    )
    return fake, Classifier(model=fake, labels=LABELS, prompt="Which animal?")


def test_student_answers_like_the_model_without_asking_it(tmp_path: Path) -> None:
    """The folder opens as a predictor; the model gets no further request."""
    fake, classifier = large()
    texts = [text for sound in SOUNDS for text in texts_of(sound, 60)]
    BatchEvaluator(classifier).label(texts, out=tmp_path / "large")
    asked = len(fake.requests)
    found = distill(tmp_path / "large", tmp_path / "student")
    with load(tmp_path / "student") as student:
        predictions = student.classify_many(["it purrs tonight", "it barks tonight"])
    assert [one.label for one in predictions] == ["cat", "dog"]
    assert found.agreement.estimate == 1.0
    assert len(fake.requests) == asked


def test_student_is_as_doubtful_as_the_model(tmp_path: Path) -> None:
    """Its probabilities are those that it was taught, not 0 and 1."""
    rows = [row(text, "cat", 0.98) for text in texts_of("purrs", 150)]
    rows += [row(text, "dog", 0.98) for text in texts_of("barks", 150)]
    rows += [row(text, "cat", 0.7) for text in texts_of("sleeps", 150)]
    distill(file_of(tmp_path, rows), tmp_path / "student")
    sure, doubtful = (shares_of(tmp_path / "student", sound, "cat") for sound in ("purrs", "sleeps"))
    assert sure > 0.9
    assert doubtful == pytest.approx(0.7, abs=0.05)


def test_whole_distribution_is_learned(tmp_path: Path) -> None:
    """A label that the model never chose keeps its share."""
    shares = {"purrs": (0.8, 0.15, 0.05), "barks": (0.1, 0.1, 0.8)}
    labels = ("cat", "lynx", "dog")
    rows = [
        {
            **row(text, "cat" if sound == "purrs" else "dog", 0.8),
            "probabilities": dict(zip(labels, of, strict=True)),
        }
        for sound, of in shares.items()
        for text in texts_of(sound, 150)
    ]
    distill(file_of(tmp_path, rows), tmp_path / "student")
    assert shares_of(tmp_path / "student", "purrs", "lynx") == pytest.approx(0.15, abs=0.03)


def test_true_labels_correct_the_model(tmp_path: Path) -> None:
    """Where the model is wrong and truth is known, the student says what is true."""
    rows = [row(text, "cat", 0.8, "cat") for text in texts_of("purrs", 100)]
    rows += [row(text, "dog", 0.8, "dog") for text in texts_of("barks", 100)]
    rows += [row(text, "cat", 0.8, "dog") for text in texts_of("sleeps", 100)]
    found = distill(file_of(tmp_path, rows), tmp_path / "student")
    assert found.accuracy is not None
    assert found.model_accuracy is not None
    assert found.accuracy.estimate > 0.95
    assert found.model_accuracy.estimate < 0.8
    assert found.labelled == found.held_out


def test_texts_that_are_nearly_alike_are_not_measured_on(tmp_path: Path) -> None:
    """All copies of a template are held out, or none."""
    texts = [f"{text} number {copy}" for sound in SOUNDS for text in texts_of(sound, 15) for copy in range(8)]
    rows = [row(text, "cat" if "purrs" in text else "dog", 0.9) for text in texts]
    found = distill(file_of(tmp_path, rows), tmp_path / "student")
    lines = (tmp_path / "student" / "predictions.jsonl").read_text().splitlines()
    templates = [json.loads(line)["input"].rsplit(" ", 1)[0] for line in lines]
    assert len(lines) == found.held_out < found.rows
    assert {templates.count(one) for one in templates} == {8}


def test_plan_keeps_what_was_certified(tmp_path: Path) -> None:
    """A plan of both runs has the same threshold, and the cascade asks the model about the doubtful text alone."""
    found = distill(easy(tmp_path, answer="known"), tmp_path / "student")
    plan = plan_cascade(str(found.directory), str(found.model_rows), small_cost=0, large_cost=1)
    fake, classifier = large()
    with load(found.directory) as student, plan.cascade([student, classifier]) as cascade:
        texts = [next(texts_of(sound, 99)) for sound in SOUNDS]
        steps = [len(one.steps) for one in cascade.classify_many(texts)]
    assert plan.certified
    assert found.certified.threshold == plan.threshold
    assert found.certified.share_small > 0.7
    assert steps == [1, 1, 2]
    assert len(fake.requests) == 1


def test_plan_of_a_run_is_carried_out(tmp_path: Path) -> None:
    """The plan takes the model that was distilled for its second one, also where rows tell its whole distribution."""
    _, classifier = large()
    texts = [text for sound in SOUNDS for text in texts_of(sound, 60)]
    BatchEvaluator(classifier).label(texts, out=tmp_path / "large")
    found = distill(tmp_path / "large", tmp_path / "student")
    plan = plan_cascade(str(found.directory), str(found.model_rows), small_cost=0, large_cost=1, epsilon=0.2)
    with load(found.directory) as student, plan.cascade([student, classifier]) as predictor:
        assert predictor.classify("it purrs tonight").label == "cat"


def test_disagreement_is_the_loss_where_no_true_label_is_known(tmp_path: Path) -> None:
    """The certificate then holds for the labels of the model."""
    unlabelled = distill(easy(tmp_path), tmp_path / "student")
    assert unlabelled.accuracy is None
    assert unlabelled.labelled == 0
    assert 0.7 < unlabelled.certified.share_small < 1.0


def test_student_is_a_model_by_name(tmp_path: Path) -> None:
    """Any task over the same labels may name it, in any order; others are refused."""
    found = distill(easy(tmp_path), tmp_path / "student")
    task = Task(name="pets", labels=["dog", "cat"], prompt="Another prompt, which it does not read.")
    with Classifier.from_task(task, model=found.name) as student:
        prediction = student.classify("it barks")
    assert (prediction.label, prediction.model) == ("dog", found.name)
    with (
        Classifier(model=found.name, labels=["cat", "cow"]) as other,
        pytest.raises(ConfigurationError, match="Expected a question about the labels"),
    ):
        other.classify("it barks")


def test_bundle_of_a_student_opens_elsewhere(tmp_path: Path) -> None:
    """An exported run, and a copy of it, hold the student: its folder may be gone, or hold another one."""
    found = distill(easy(tmp_path), tmp_path / "student")
    Tuned.from_run(found.directory).save(tmp_path / "bundle")
    with load(tmp_path / "bundle") as student:
        before = student.classify("it barks and sleeps")
    shutil.rmtree(found.directory)
    Tuned.load(tmp_path / "bundle").save(tmp_path / "copy")
    distill(easy(tmp_path, 60), tmp_path / "student")
    shutil.rmtree(tmp_path / "bundle")
    with load(tmp_path / "copy") as student:
        after = student.classify("it barks and sleeps")
    assert (after.label, after.confidence, after.model) == ("dog", before.confidence, found.name)


def test_a_student_opens_where_its_folder_is_now(tmp_path: Path) -> None:
    """A moved folder answers as before, with the student in it, whatever is at its old place by now."""
    text = "it barks and sleeps"
    found = distill(easy(tmp_path), tmp_path / "student")
    with load(found.directory) as student:
        before, description = student.classify(text), student.describe()
    moved = found.directory.rename(tmp_path / "moved")
    for _ in range(2):
        with load(moved) as student:
            after = student.classify(text)
            assert student.describe() == description
        assert (after.confidence, after.model) == (before.confidence, found.name)
        if not found.directory.exists():
            distill(easy(tmp_path, 60), tmp_path / "student")
    with load(found.directory) as other:
        assert other.classify(text).confidence != before.confidence
        assert other.describe() != description
    Tuned.from_run(moved).save(tmp_path / "bundle")
    shutil.rmtree(moved)
    with load(tmp_path / "bundle") as student:
        assert student.classify(text).confidence == before.confidence


def test_a_run_whose_student_was_moved_says_what_to_do(tmp_path: Path) -> None:
    """What names a student by its folder looks for it there."""
    found = distill(easy(tmp_path), tmp_path / "student")
    found.directory.rename(tmp_path / "moved")
    with pytest.raises(StateError, match=r"student.student\.json: .* where it is now, or move it back"):
        Classifier(model=found.name, labels=LABELS)


def test_bundle_of_a_cascade_holds_its_student(tmp_path: Path) -> None:
    """The bundle of an evaluated cascade opens after the student's folder is gone; without it nothing is exported."""
    found = distill(easy(tmp_path), tmp_path / "student")
    path = tmp_path / "task.toml"
    path.write_text(
        'name = "pets"\nlabels = ["cat", "dog"]\nprompt = "Which animal?"\n[cascade]\nthreshold = 0.6\n'
        'confidence_method = "label_probability"\n'
        f'[[cascade.models]]\nname = "{found.name}"\n[[cascade.models]]\nname = "fake/pets"\n'
    )
    fake, _ = large()
    with fake_model("fake/pets", fake):
        with load(path) as cascade:
            rows = [Example(input="it barks", answer="dog"), Example(input="it purrs", answer="cat")]
            BatchEvaluator(cascade).evaluate(rows, out=tmp_path / "run")
        run = Tuned.from_run(tmp_path / "run", task=path)
        run.save(tmp_path / "bundle")
        shutil.rmtree(found.directory)
        with load(tmp_path / "bundle") as cascade:
            assert [one.label for one in cascade.classify_many(["it barks", "it purrs"])] == ["dog", "cat"]
        with pytest.raises(StateError, match=r"student\.json"):
            run.save(tmp_path / "again")


def test_a_damaged_student_in_a_bundle_is_named(tmp_path: Path) -> None:
    """A bundle whose student was altered is refused with the file."""
    found = distill(easy(tmp_path), tmp_path / "student")
    Tuned.from_run(found.directory).save(tmp_path / "bundle")
    file = tmp_path / "bundle" / "student-1.json"
    file.write_text(file.read_text().replace("cat", "cow"))
    with pytest.raises(StateError, match=r"student-1\.json: altered"):
        Tuned.load(tmp_path / "bundle")


def test_answers_of_another_student_in_the_same_folder_are_not_taken_for_its_own(tmp_path: Path) -> None:
    """What it learned is part of its description, and so of the keys of journals."""
    first = distill(easy(tmp_path), tmp_path / "student")
    with Classifier(model=first.name, labels=LABELS) as one:
        before = one.describe()
    first.directory.rename(tmp_path / "before")
    distill(easy(tmp_path, 150), tmp_path / "student")
    with Classifier(model=first.name, labels=LABELS) as other:
        assert other.describe() != before


class Vectors:
    """Embedding model that knows which sounds mean the same."""

    name = "vectors"

    def vectors(self, texts: list[str]) -> list[list[float]]:
        """Return a vector of each text."""
        return [[1.0, 0.0] if any(word in text for word in "abcdefg") else [0.0, 1.0] for text in texts]


def test_vectors_of_texts_tell_what_words_do_not(tmp_path: Path) -> None:
    """Words that no row to learn from holds are known by their vectors."""
    rows = [row(letter * place, "cat", 0.9) for letter in "abcdefg" for place in range(2, 22)]
    rows += [row(letter * place, "dog", 0.9) for letter in "hijklmn" for place in range(2, 22)]
    found = distill(file_of(tmp_path, rows), tmp_path / "student", embeddings=Vectors())
    assert found.head.uses_embedding
    assert found.agreement.estimate == 1.0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row("it purrs", "cat", 0.9)] * 5 + [row("it barks", "dog", 0.9)] * 5, "at least 20 rows"),
        (
            [row("it purrs", "cat", 0.9), row("it purrs", "dog", 0.9)] * 20,
            "texts that are alike stay together",
        ),
        ([row("it purrs", "cat", 0.9)] * 40, "at least two labels"),
    ],
)
def test_too_few_rows_are_refused(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    """Neither half may be nearly empty; nothing is written."""
    with pytest.raises(DataError, match=message):
        distill(file_of(tmp_path, rows), tmp_path / "student")
    assert not (tmp_path / "student").exists()


def test_texts_that_say_nothing_of_the_labels_are_refused(tmp_path: Path) -> None:
    """A student that only guesses is none."""
    rng = np.random.default_rng(0)
    rows = [row(text, LABELS[rng.integers(2)], 0.9) for text in texts_of("sleeps", 200)]
    with pytest.raises(DataError, match="tell something of the model's labels"):
        distill(file_of(tmp_path, rows), tmp_path / "student")


def test_taken_folder_is_refused(tmp_path: Path) -> None:
    """Nothing is written into a folder that holds other files."""
    (tmp_path / "student").mkdir()
    (tmp_path / "student" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="not there yet"):
        distill(easy(tmp_path), tmp_path / "student")


def test_a_second_student_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    """The student that is there stays, and the message says what to do."""
    path = easy(tmp_path)
    found = distill(path, tmp_path / "student")
    before = (found.directory / "student.json").read_bytes()
    with pytest.raises(ConfigurationError, match="choose another name, or remove it"):
        distill(path, tmp_path / "student")
    assert (found.directory / "student.json").read_bytes() == before


def test_folder_without_a_student_is_refused(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(StateError, match=r"student\.json"):
        Classifier(model=f"distilled:{tmp_path}", labels=LABELS)
    (tmp_path / "student.json").write_text("{}")
    with pytest.raises(StateError, match="expected a student"):
        Classifier(model=f"distilled:{tmp_path}", labels=LABELS)
