"""Client of a student: a head on texts alone, read from its file, that answers without a call of any model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from calibrant.core._completion import CompletionRequest, DecisionAnswer, DecisionQuestion, DecisionResponse
from calibrant.core._errors import ConfigurationError, ProviderError, StateError
from calibrant.core._files import read_json_object
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import LogprobSpace
from calibrant.heads._head import Head
from calibrant.inference._heads import opened_head
from calibrant.inference._models import STUDENT, STUDENT_FILE
from calibrant.inference._text_vectors import vectors_of

_TOGETHER: Final = 64  # rows under way, which are answered together
_REMEDY: Final = (
    "name the folder that `calibrant distill` wrote where it is now, or move it back; a bundle that `calibrant export` "
    "makes of it holds the student"
)


# Students of the bundle or run that is being opened, by name: they are not in the folders that the names say.
_AT_HAND: ContextVar[Mapping[str, Head]] = ContextVar("students at hand", default=MappingProxyType({}))


@contextmanager
def students_at_hand(students: Mapping[str, Head]) -> Iterator[None]:
    """Open the models with these names as these students until the block ends."""
    token = _AT_HAND.set(students)
    try:
        yield
    finally:
        _AT_HAND.reset(token)


def student_name(folder: Path) -> str:
    """Return the name of the student in a folder."""
    return f"{STUDENT}{folder}"


def save_student(head: Head, folder: Path, name: str = STUDENT_FILE) -> None:
    """Write a student's file into its folder, or under another name beside a run.

    Raises
    ------
    StateError
        The file cannot be written.
    """
    head.save(folder / name, fingerprint=_fingerprint(head.labels))


def open_student(name: str) -> StudentClient:
    """Return the client of a student by its name.

    Raises
    ------
    ConfigurationError
        Its embedding model cannot be opened.
    StateError
        There is no such file, or it is damaged.
    """
    return StudentClient(name, opened_head(read_student(name)))


def read_student(name: str) -> Head:
    """Return a student by its name, with its embedding model not open; see `open_student`."""
    if name in _AT_HAND.get():
        return _AT_HAND.get()[name]
    return read_student_file(Path(name.removeprefix(STUDENT)) / STUDENT_FILE)


def read_student_file(path: Path) -> Head:
    """Return the student in a file; StateError if there is none, or it is damaged."""
    try:
        labels = read_json_object(path, remedy=_REMEDY)["fingerprint"]["labels"]
    except (LookupError, TypeError) as error:
        raise StateError(f"{path}: expected a student, got something else: {_REMEDY}.") from error
    return Head.load(path, fingerprint=_fingerprint(labels))


def student_to_record(head: Head) -> dict[str, Any]:
    """Return the JSON values of a student's file."""
    return head.saved_record(_fingerprint(head.labels))


def _fingerprint(labels: Sequence[str]) -> Fingerprint:
    """Return the fingerprint of every student over these labels: no prompt and no model has a part in it."""
    return Fingerprint(prompt="", model=STUDENT, space=LogprobSpace.DECISION, labels=labels)


class StudentClient:
    """Client of a student, which answers a question about its own labels with their probabilities.

    Rows that are under way at the same time are answered together.

    Parameters
    ----------
    name : str
        See `student_name`.
    head : Head
        The student, with its embedding model open.
    """

    space = LogprobSpace.DECISION
    in_process = True
    n_parallel = _TOGETHER

    def __init__(self, name: str, head: Head) -> None:
        self.name = name
        self._head = head
        self.settings = {"student": head.digest}
        # By event loop: the texts that wait, and the task that answers them.
        self._waiting: dict[asyncio.AbstractEventLoop, tuple[list[str], asyncio.Task[list[list[float]]]]] = {}

    async def complete(self, request: CompletionRequest) -> object:
        """Raise ProviderError: a student writes no text."""
        del request
        raise ProviderError(
            "a student answers with one of its labels and writes no text: name a chat model for this.",
            provider=self.name,
            systemic=True,
        )

    async def decide(self, text: str, questions: Sequence[DecisionQuestion]) -> DecisionResponse:
        """Return the probabilities of the labels of a text.

        Raises
        ------
        ConfigurationError
            The question is about other labels.
        ProviderError
            The server of the embedding model failed.
        """
        options = questions[0].options
        if len(questions) > 1 or set(options) != set(self._head.labels):
            raise ConfigurationError(
                f"Expected a question about the labels {self._head.labels[:3]} ({len(self._head.labels)} in all), "
                f"which {self.name} learned, got {options[:3]} ({len(options)}): distil a run of this task."
            )
        loop = asyncio.get_running_loop()
        if loop not in self._waiting:
            texts: list[str] = []
            self._waiting[loop] = texts, loop.create_task(self._answered(texts))
        texts, task = self._waiting[loop]
        place = len(texts)
        texts.append(text)
        shares = dict(zip(self._head.labels, (await asyncio.shield(task))[place], strict=True))
        answer = DecisionAnswer(probabilities=tuple(map(shares.__getitem__, options)))
        return DecisionResponse(answers=(answer,), model=self.name, calls=0)

    async def _answered(self, texts: list[str]) -> list[list[float]]:
        """Return the probabilities of the labels of texts, those that came before this task began."""
        del self._waiting[asyncio.get_running_loop()]
        model = vectors_of(self._head)
        if model is not None:
            failures = await model.prepare(texts)
            if failures:
                raise next(iter(failures.values()))
        even = np.zeros((len(texts), len(self._head.labels)))
        found: list[list[float]] = np.exp(self._head.transform(even, texts)).tolist()
        return found

    def close(self) -> None:
        """Do nothing: a student holds no connection."""
