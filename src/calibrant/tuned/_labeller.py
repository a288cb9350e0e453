"""Labels for batches of columns, in whatever process asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.core._errors import ConfigurationError
from calibrant.core._frames import ANSWER_COLUMNS, answer_of, free_name, texts_of
from calibrant.core._prediction import JsonObject
from calibrant.heads._tuned import OpenedPredictor, Tuned
from calibrant.tuned._folder import bundle_digest


@dataclass(kw_only=True)
class BatchLabeller:
    """Function for ``map`` of a Hugging Face dataset: from a batch of rows to their labels and decisions.

    It pickles without its model, so ``num_proc`` works: each process opens the bundle at its first batch. A dataset
    keeps what it mapped, and maps again when the bundle has changed.

    Parameters
    ----------
    bundle : str or Path
        Folder that `calibrant export` wrote.
    text : str
        Name of the column of texts. Rows without a text are not asked about, and their answers are None.
    options : mapping of str to Any, optional
        What was left out of the bundle, such as a key; see `Tuned.open`.

    Raises
    ------
    StateError
        There is no bundle, or it is damaged.

    Examples
    --------
    >>> from calibrant.tuned import BatchLabeller
    >>> def labelled(dataset, bundle):
    ...     return dataset.map(BatchLabeller(bundle=bundle, text="review"), batched=True, batch_size=256)
    """

    bundle: str | Path
    text: str
    options: Mapping[str, Any] | None = None
    _digest: str = field(init=False, repr=False)
    _opened: tuple[Tuned, OpenedPredictor] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._digest = bundle_digest(self.bundle)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the columns label, confidence, decision, outcome, provider and cost of a batch.

        The confidence is calibrated where the bundle has a calibrator. A name that the batch has already gets the
        prefix ``calibrant_``.

        Raises
        ------
        ConfigurationError
            The batch has no column of this name, or it is one row (``map`` needs ``batched=True``).
        DataError
            A row holds something else than a text.
        """
        if self.text not in batch:
            raise ConfigurationError(
                f"Expected a column {self.text!r}, got {', '.join(map(repr, batch))}: name the column of the texts."
            )
        cells = batch[self.text]
        if isinstance(cells, str):
            raise ConfigurationError("Expected a batch of rows, got one row: call map with batched=True.")
        texts = texts_of(cells, what=self.text, with_blanks=True)
        asked = [place for place, text in enumerate(texts) if text.strip()]
        tuned, predictor = self._open()
        predictions = predictor.classify_many([texts[place] for place in asked])
        answers: list[JsonObject] = [dict.fromkeys(ANSWER_COLUMNS) for _ in texts]
        decided = zip(asked, predictions, tuned.decide_many(predictions), strict=True)
        for place, prediction, decision in decided:
            answers[place].update(zip(ANSWER_COLUMNS, answer_of(prediction), strict=True))
            answers[place]["confidence"] = decision.final_confidence
            answers[place]["decision"] = decision.name
        columns = {}
        for name in ANSWER_COLUMNS:
            columns[free_name(name, list(batch))] = [answer[name] for answer in answers]
        return columns

    def __getstate__(self) -> JsonObject:
        return {**vars(self), "_opened": None}

    def _open(self) -> tuple[Tuned, OpenedPredictor]:
        if self._opened is None:
            tuned = Tuned.load(self.bundle)
            self._opened = tuned, tuned.open(options=self.options)
        return self._opened
