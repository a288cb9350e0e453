"""Retrieved demonstrations: the labelled texts nearest to a text are shown in its prompt."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._files import json_text
from calibrant.core._fingerprint import demonstrated
from calibrant.core._labels import LabelSet, as_label_set, normalise_label
from calibrant.core._prediction import FloatArray
from calibrant.core._predictor import Query
from calibrant.core._reported import one_line
from calibrant.core._rows import Example
from calibrant.core._settings import DemonstrationSettings
from calibrant.core._structures import unknown_answer
from calibrant.core._task import Split, Task
from calibrant.heads._linear import unit_rows
from calibrant.heads._words import Words

_EXAMPLES: Final = "\n\nExamples:\n\n"
_BETWEEN: Final = "\n\n"
_TEXT: Final = "Text: "
_ANSWER: Final = "\nAnswer: "
_WRITE: Final = "\nAnswer with JSON of this form: "
_PLACEHOLDER: Final = "..."
_MOST_AT_ONCE: Final = 4_000_000  # likenesses held at a time: 32 MB

_Likeness: TypeAlias = Callable[[Sequence[str]], FloatArray]
"""Similarities of texts to those of an index, shape (len(texts), n); more is nearer."""


def _word_likeness(rows: Sequence[str]) -> _Likeness:
    """Return a function from texts to their TF-IDF similarities to `rows`, by words and pieces of words."""
    words = Words()
    matrix = words.learn(rows)

    def likeness(texts: Sequence[str]) -> FloatArray:
        cosines: FloatArray = (words.transform(texts) @ matrix.T).toarray()
        return cosines

    return likeness


def _embedding_likeness(rows: Sequence[str]) -> _Likeness:
    """Return a function from texts to their similarities to `rows`, as cosines of static embeddings."""
    from calibrant.inference._embeddings import Model2VecEmbedder  # noqa: PLC0415 (few compare by vectors)

    embedder = Model2VecEmbedder()

    def unit_vectors(texts: Sequence[str]) -> FloatArray:
        return unit_rows(np.asarray(embedder.vectors(list(texts)), dtype=np.float64))

    matrix = unit_vectors(rows)
    return lambda texts: unit_vectors(texts) @ matrix.T


_RETRIEVERS: Final[Mapping[str, Callable[[Sequence[str]], _Likeness]]] = {
    "tfidf": _word_likeness,
    "model2vec": _embedding_likeness,
}


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A training text, on one line, with its label.

    Examples
    --------
    >>> Demonstration("lunch", "Food").label
    'Food'
    """

    text: str
    label: str


class DemonstrationIndex:
    """Index of labelled texts, searched by similarity to a text.

    Blank texts are left out, and of rows with the same text and answer all but the first.

    Parameters
    ----------
    texts : sequence of str, length n
        Labelled texts, such as the training rows.
    answers : sequence of str, length n
        Their true labels; whole answers where these hold several.
    labels : LabelSet or sequence of str
        The legal labels.
    held_out : iterable of str, default none
        Texts of rows that results are chosen by or reported on: rows with the same text are left out.

    Raises
    ------
    ConfigurationError
        The lengths differ, an answer is no label, or no row is left.

    Examples
    --------
    >>> from calibrant.core._settings import DemonstrationSettings
    >>> index = DemonstrationIndex(["it purrs", "it barks"], ["cat", "dog"], labels=["cat", "dog"])
    >>> index.select(["who barks?"], DemonstrationSettings(k=1))
    [(Demonstration(text='it barks', label='dog'),)]
    """

    def __init__(
        self,
        texts: Sequence[str],
        answers: Sequence[str],
        *,
        labels: LabelSet | Sequence[str],
        held_out: Iterable[str] = (),
    ) -> None:
        if len(texts) != len(answers):
            raise ConfigurationError(
                f"Expected an answer for each of {len(texts)} texts to show, got {len(answers)}."
            )
        self.labels = LabelSet.of(labels)
        refused = {_key(text) for text in held_out}
        rows = dict.fromkeys(self._read(text, answer) for text, answer in zip(texts, answers, strict=True))
        self.rows = tuple(row for row in rows if row.text and _key(row.text) not in refused)
        if not self.rows:
            raise ConfigurationError(
                f"Expected labelled texts to show that equal no held-out row, got none among {len(texts)}: add "
                "training rows, or show no demonstrations."
            )
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        for place, row in enumerate(self.rows):
            self._places[_key(row.text)].append(place)
        _, self._codes = np.unique([row.label for row in self.rows], return_inverse=True)
        self._retrievers: dict[str, _Likeness] = {}

    @classmethod
    def from_task(cls, task: Task) -> Self:
        """Return the index of a task's training rows, without texts of validation or test rows.

        Rows of splits that were not read are read from the task's files.

        Raises
        ------
        ConfigurationError
            There are no such rows.
        DataError
            A file is broken.
        """
        train = _rows(task, "train")
        if not train:
            raise ConfigurationError(
                f"Expected training rows of task {task.name!r} to show as demonstrations, got none: name a file for "
                "train under [data], or leave [demonstrations] out."
            )
        return cls(
            [row.input for row in train],
            [row.answer for row in train],
            labels=task.labels,
            held_out=[row.input for split in ("validation", "test") for row in _rows(task, split)],
        )

    @classmethod
    def from_text(cls, text: str, *, labels: LabelSet) -> Self:
        """Parse the index written by `to_text`.

        Raises
        ------
        ConfigurationError
            The text is not an index of `to_text`.
        """
        try:
            rows = [json.loads(line) for line in text.split("\n") if line]
            texts, answers = ([row[name] for row in rows] for name in ("input", "answer"))
            return cls(texts, answers, labels=labels)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigurationError(
                f"Expected JSON Lines with input and answer to show as demonstrations, got something else ({error!r})."
            ) from error

    def examples(self) -> tuple[Example, ...]:
        """Return the rows as training rows of a task."""
        return tuple(Example(input=row.text, answer=row.label) for row in self.rows)

    def _read(self, text: str, answer: str) -> Demonstration:
        label = self.labels.canonical(answer)
        if label is None:
            raise ConfigurationError(f"text {text!r:.80}: {unknown_answer(answer, self.labels)}")
        return Demonstration(one_line(text), label)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def to_text(self) -> str:
        """Return the rows as JSON Lines with ``input`` and ``answer``."""
        rows = ({"input": row.text, "answer": row.label} for row in self.rows)
        return "".join(json_text(row) + "\n" for row in rows)

    def check(self, settings: DemonstrationSettings) -> None:
        """Raise ConfigurationError if `settings` ask for more demonstrations than the index has rows.

        Raises
        ------
        ConfigurationError
            ``k`` is larger than the number of rows.
        """
        if settings.k > len(self):
            raise ConfigurationError(
                f"Expected k between 1 and {len(self)}, the labelled texts there are to show, got {settings.k}: lower "
                "it, or add training rows."
            )

    def select(
        self, texts: Sequence[str], settings: DemonstrationSettings
    ) -> list[tuple[Demonstration, ...]]:
        """Return the demonstrations of each text, in prompt order.

        A row with the text itself, up to case and white space, is never shown: a text of the index sees the others
        alone, and fewer than k where no more are left. The order is random, and the same for equal texts.

        Parameters
        ----------
        texts : sequence of str
            Texts of the prompts.
        settings : DemonstrationSettings
            Selection settings.

        Raises
        ------
        ConfigurationError
            ``k`` is larger than the number of rows, or what the retriever needs is not installed.
        """
        self.check(settings)
        shuffled = np.random.default_rng(settings.seed).permutation(
            len(self)
        )  # which of equally near rows is first
        found = []
        for text, likeness in self._likeness(texts, settings.retriever):
            own = self._places.get(_key(text), [])
            likeness[own] = -np.inf
            nearest = np.argsort(-likeness[shuffled], kind="stable")
            ranking = shuffled[nearest][: len(self) - len(own)]
            if settings.balance == "balanced":
                ranking = ranking[np.argsort(_rounds(self._codes[ranking]), kind="stable")]
            shown = [self.rows[place] for place in ranking[: settings.k]]
            order = random.Random(f"{settings.seed} {text}".encode("utf-8", "surrogatepass"))  # noqa: S311
            found.append(tuple(order.sample(shown, len(shown))))
        return found

    def _likeness(self, texts: Sequence[str], retriever: str) -> Iterator[tuple[str, FloatArray]]:
        """Yield each text with its similarities to all rows."""
        if retriever not in self._retrievers:
            self._retrievers[retriever] = _RETRIEVERS[retriever]([row.text for row in self.rows])
        step = max(1, _MOST_AT_ONCE // len(self))
        for start in range(0, len(texts), step):
            batch = texts[start : start + step]
            yield from zip(batch, self._retrievers[retriever](list(map(one_line, batch))), strict=True)


def answer_form(field: str) -> str:
    """Return the sentence on the form of an answer that holds one label, at `field`."""
    # Never a real label in the form: small models copy it.
    return _WRITE + DemonstrationFormat(field=field).answer(_PLACEHOLDER)


class DemonstrationFormat:
    """Text format of demonstrations: writes them below an instruction, and splits them off again.

    A demonstration shows the answer as the JSON object the model is to write: small models
    copy the form, and a bare label teaches them the wrong one.

    Parameters
    ----------
    field : str
        JSON path of the label in the answer.
    labels : LabelSet, optional
        What an answer holds; one label by default.
    """

    def __init__(self, *, field: str, labels: LabelSet | None = None) -> None:
        self._field = field
        self._labels = as_label_set(labels)

    def answer(self, label: str) -> str:
        """Return a label, or a whole answer, as the JSON text that the model is to write."""
        document = self._labels.document(self._labels.json_value(label), self._field)
        return json_text(document)

    def render(self, demonstrations: Sequence[Demonstration]) -> str:
        """Return demonstrations as the text that follows the instruction; empty without demonstrations."""
        if not demonstrations:
            return ""
        blocks = [f"{_TEXT}{shown.text}{_ANSWER}{self.answer(shown.label)}" for shown in demonstrations]
        return _EXAMPLES + _BETWEEN.join(blocks)

    @staticmethod
    def split(prompt: str) -> tuple[str, list[tuple[str, str]]]:
        """Return the instruction of a prompt, and the text and the answer of each demonstration.

        A prompt that does not end with demonstrations is returned as it is.
        """
        rest, found, tail = prompt.rpartition(_EXAMPLES)
        blocks = [block.rpartition(_ANSWER) for block in tail.split(_BETWEEN)]
        if not found or not all(between and text.startswith(_TEXT) for text, between, _ in blocks):
            return prompt, []
        return rest, [(text.removeprefix(_TEXT), answer) for text, _, answer in blocks]


class Retrieval:
    """Retrieval of demonstrations for the queries of a classifier.

    Parameters
    ----------
    index : DemonstrationIndex
        The rows.
    settings : DemonstrationSettings or None
        Default settings of queries; None shows no demonstrations.
    labels : LabelSet
        The legal labels of the classifier.
    field : str
        JSON path of the label in its answers.

    Raises
    ------
    ConfigurationError
        The index is for other labels, or has too few rows.
    """

    def __init__(
        self,
        index: DemonstrationIndex,
        settings: DemonstrationSettings | None,
        *,
        labels: LabelSet,
        field: str,
    ) -> None:
        if index.labels != labels:
            raise ConfigurationError(
                f"Expected demonstrations with the labels {labels.labels[:3]} ({len(labels)} in all), got an index for "
                f"{index.labels.labels[:3]} ({len(index.labels)}): build it with labels=classifier.labels."
            )
        if settings is not None:
            index.check(settings)
        self.index = index
        self.settings = settings
        self._form = DemonstrationFormat(field=field, labels=labels)

    def prepare(self, queries: Sequence[Query]) -> list[tuple[Query, str]]:
        """Return queries with rendered demonstrations, each with an error text or an empty one.

        Raises
        ------
        ConfigurationError
            A package of the retriever is not installed.
        """
        found = [(query, "") for query in queries]
        groups: defaultdict[str | None, list[int]] = defaultdict(list)
        for place, query in enumerate(queries):
            groups[query.demonstrations].append(place)
        for own, places in groups.items():
            try:
                settings = self._settings(own)
            except ConfigurationError as error:
                for place in places:
                    found[place] = queries[place], str(error)
                continue
            if settings is not None:
                selected = self.index.select([queries[place].text for place in places], settings)
                for place, shown in zip(places, selected, strict=True):
                    found[place] = replace(queries[place], shown=self._form.render(shown)), ""
        return found

    def _settings(self, own: str | None) -> DemonstrationSettings | None:
        if own is None:
            return self.settings
        if not own.strip():
            return None
        settings = _parsed(own)
        self.index.check(settings)
        return settings

    @cached_property
    def description(self) -> dict[str, Any] | None:
        """Return the settings and the digest of the rows as JSON values; None without demonstrations."""
        if self.settings is None:
            return None
        return demonstrated(self.settings, self.index.to_text())


_parsed = lru_cache(maxsize=64)(DemonstrationSettings.from_text)


def _key(text: str) -> str:
    return normalise_label(one_line(text))


def _rounds(codes: NDArray[np.int_]) -> NDArray[np.int_]:
    """Return, for each code, the number of equal codes before it."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.searchsorted(ordered, ordered)
    found = np.empty(len(codes), dtype=np.int_)
    found[order] = np.arange(len(codes)) - starts
    return found


def _rows(task: Task, split: Split) -> Sequence[Example]:
    rows: tuple[Example, ...] = getattr(task, split)
    source = task.sources.get(split)
    return rows or ([] if source is None else [row for row, _ in source.examples()])
