"""Label-prior correction of candidates: every prompt has a bias of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np

from calibrant.calibration import LabelPriorCorrection, correct_prediction
from calibrant.core import CompositeLabels, ConfigurationError, LabelSet, Prediction
from calibrant.inference import Query

__all__ = ["PRIOR_ROWS", "PriorCorrection", "PriorCorrector", "open_prior"]

PriorCorrection: TypeAlias = Literal["batch"]

PRIOR_ROWS: Final = 64
"""Rows that the label prior of a prompt is the mean of, at least, where there are as many texts."""

_Key = tuple[str, str | None]


class PriorCorrector:
    """Corrects predictions for the label prior of the prompt they were made under.

    The correction of a prompt is fitted once, without answers, on the rows that its first evaluation asks; where these
    are fewer than `PRIOR_ROWS`, the first of `texts` fill up, in an order that is the same for every prompt.

    Parameters
    ----------
    texts : iterable of str
        Unlabelled texts, best those that are asked later on anyway, such as the validation inputs.
    seed : int, default 0
        Seed of their order.

    Raises
    ------
    ConfigurationError
        There are no texts.
    """

    def __init__(self, texts: Iterable[str], *, seed: int = 0) -> None:
        found = list(dict.fromkeys(texts))
        if not found:
            raise ConfigurationError(
                "Expected texts to fit the label-prior correction on, got none: pass prior_texts, such as the "
                "inputs of the validation rows."
            )
        self.texts = tuple(found[i] for i in np.random.default_rng(seed).permutation(len(found)))
        self._fitted: dict[_Key, LabelPriorCorrection | None] = {}

    def queries(self, asked: Sequence[Query]) -> list[Query]:
        """Return what must be asked besides `asked` before its predictions can be corrected."""
        texts: dict[_Key, dict[str, None]] = {}
        for query in asked:
            texts.setdefault(_key(query), {})[query.text] = None
        return [
            Query(prompt=prompt, text=text, user_template=template)
            for (prompt, template), own in texts.items()
            if (prompt, template) not in self._fitted
            for text in [text for text in self.texts if text not in own][: max(0, PRIOR_ROWS - len(own))]
        ]

    def fit(self, asked: Sequence[Query], predictions: Sequence[Prediction]) -> None:
        """Fit the corrections of prompts that have none yet on all rows asked under them, equal texts once."""
        rows: dict[_Key, dict[str, Prediction]] = {}
        for query, prediction in zip(asked, predictions, strict=True):
            rows.setdefault(_key(query), {})[query.text] = prediction
        for key, found in rows.items():
            if key in self._fitted:
                continue
            known = [p.distribution.logprobs for p in found.values() if p.distribution is not None]
            self._fitted[key] = LabelPriorCorrection("batch").fit(np.array(known)) if known else None

    def correction(self, query: Query) -> LabelPriorCorrection | None:
        """Return the correction of a query's prompt; None where its texts got no distribution."""
        return self._fitted.get(_key(query))

    def correct(self, query: Query, prediction: Prediction) -> Prediction:
        """Return `prediction` without the prior of its prompt."""
        correction = self.correction(query)
        return prediction if correction is None else correct_prediction(prediction, correction)


def open_prior(
    method: PriorCorrection | None, texts: Iterable[str], *, labels: LabelSet
) -> PriorCorrector | None:
    """Return what corrects predictions, or None where nothing shall.

    Raises
    ------
    ConfigurationError
        The method is unknown, there are no texts for it, or answers hold several labels.
    """
    if method is None:
        return None
    if isinstance(labels, CompositeLabels):
        raise ConfigurationError(
            "Expected no prior_correction where an answer holds several labels: it needs one distribution over one "
            "label set; leave it out."
        )
    if method != "batch":
        raise ConfigurationError(
            f"Expected prior_correction 'batch' or None, got {method!r}: for 'contextual' fit a LabelPriorCorrection "
            "on CONTENT_FREE_INPUTS."
        )
    return PriorCorrector(texts)


def _key(query: Query) -> _Key:
    return query.prompt, query.user_template
