"""Heads on a classifier: learned from labelled rows, applied to every row; the tokens that a server names for them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core._completion import TokenListing, named_features
from calibrant.core._errors import ConfigurationError, ContextLengthError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import FloatArray, HalfArray, Journal, LabelDistribution, Prediction, Usage
from calibrant.core._predictor import Query, concurrently
from calibrant.heads._head import Head
from calibrant.heads._linear import EmbeddingModel, HeadRows, as_text, recognised_text
from calibrant.inference._limits import Gate
from calibrant.inference._methods import Method

_TOGETHER: Final = 2_048  # texts whose vectors are computed together
_LOG = logging.getLogger("calibrant")
_ROWS: Final = 150


def check_head(head: Head, *, labels: LabelSet, method: Method) -> None:
    """Raise ConfigurationError if a head does not fit the labels or the method of a classifier.

    Raises
    ------
    ConfigurationError
        Its answers hold several labels, or others, or its engine does not tell what the head needs.
    """
    if labels.holds_several or labels.labels != head.labels:
        raise ConfigurationError(
            f"Expected a head for the labels {labels.labels[:3]} ({len(labels)} in all), got one for "
            f"{head.labels[:3]} ({len(head.labels)}): fit it on this classifier."
        )
    if head.uses_features and not method.keep_features:
        raise ConfigurationError(
            f"Expected an engine that tells what it made of a text for a head of {head.title}, got one that does "
            "not: use the embedded engine or the server that it was fitted on, with scoring='exact', or fit the head "
            "on this classifier."
        )


def opened_head(
    head: Head,
    embeddings: str | EmbeddingModel | None = None,
    *,
    meter: Gate | None = None,
) -> Head:
    """Return a head with its embedding model loaded, if it has one.

    Parameters
    ----------
    head : Head
        The head as loaded from its file.
    embeddings : str or EmbeddingModel, optional
        The model (see `open_embedding_model`); by default the one that the head names.
    meter : Gate, optional
        Counts the calls that recognise the model.

    Raises
    ------
    ConfigurationError
        The embedding model cannot be opened, or differs from the fitted one.
    ProviderError
        Its server cannot be asked.
    """
    if head.embedding is None or (head.embedding.model is not None and embeddings is None):
        return head
    from calibrant.inference._text_vectors import open_embedding_model, prepare_vectors  # noqa: PLC0415 (if it reads vectors)

    name = embeddings or head.embedding.name
    try:
        model = open_embedding_model(name, labels=head.labels)
    except ConfigurationError as error:
        raise ConfigurationError(f"The head reads vectors of the texts by {name!r}: {error}") from error
    prepare_vectors(model, [recognised_text(head.labels)], meter=meter)
    return head.with_embedding(model)


def head_of(  # noqa: PLR0913 (what a fit takes)
    predictions: Sequence[Prediction],
    answers: Sequence[str],
    texts: Sequence[str],
    *,
    labels: LabelSet,
    embedding: EmbeddingModel | None = None,
    named_tokens: tuple[int, ...] = (),
    meter: Gate | None = None,
) -> Head:
    """Learn a head from predictions for labelled texts; rows without a distribution are left out.

    Parameters
    ----------
    predictions : sequence of Prediction, length n
        The model's own.
    answers, texts : sequence of str, length n
        True labels and texts.
    labels : LabelSet
        The legal labels.
    embedding : EmbeddingModel, optional
        Gives a vector to every text.
    named_tokens : tuple of int, optional
        Numbers of the tokens that the features are the log-probabilities of, on a server.
    meter : Gate, optional
        Counts the calls for vectors, and ends them where a budget is used up.

    Raises
    ------
    ConfigurationError
        No row has a distribution, an answer is no label, or the lengths differ.
    ProviderError
        The server of the embedding model cannot be asked.
    LimitReachedError
        A budget of `meter` is used up; the vectors that were paid for are kept.
    """
    # Applying a head fits none, and loads neither.
    from calibrant.heads._fit import fit_head  # noqa: PLC0415
    from calibrant.inference._text_vectors import prepare_vectors, timed_head  # noqa: PLC0415

    truth = true_labels(answers, len(texts), labels=labels)
    usable = [
        (found.distribution.logprobs, found.features, text, labels.labels.index(label))
        for found, text, label in zip(predictions, texts, truth, strict=True)
        if found.distribution is not None
    ]
    if not usable:
        reason = f": {predictions[0].reason}." if predictions and predictions[0].reason else "."
        raise ConfigurationError(
            f"Expected distributions over the labels to learn from, got none on {len(predictions)} rows{reason}"
        )
    logprobs, features, shown, codes = zip(*usable, strict=True)
    prepare_vectors(embedding, [*shown, *read_by_fits(labels.labels)], meter=meter)
    head = fit_head(
        np.array(logprobs),
        np.array(codes),
        labels=labels,
        texts=shown,
        features=None if any(one is None for one in features) else np.array(features, dtype=np.float64),
        embedding=embedding,
    )
    head = timed_head(head)
    if head.uses_features:
        return replace(head, named_tokens=named_tokens)
    return head


def read_by_fits(labels: Sequence[str]) -> list[str]:
    """Return the texts that a fit over these labels reads beside the labelled ones."""
    return [recognised_text(labels), *map(as_text, labels)]


def true_labels(answers: Sequence[str], n: int, *, labels: LabelSet) -> list[str]:
    """Return the canonical answers of n texts.

    Raises
    ------
    ConfigurationError
        An answer holds several labels, or is none, or there are more or fewer than texts.
    """
    if labels.holds_several:
        raise ConfigurationError(
            "Expected a classifier of one label a text to learn a head for, got one whose answers hold several."
        )
    if len(answers) != n:
        raise ConfigurationError(f"Expected an answer for each of {n} texts, got {len(answers)}.")
    found = []
    for answer in answers:
        label = labels.canonical(answer)
        if label is None:
            raise ConfigurationError(
                f"Expected answers among the labels {labels.labels[:3]} ({len(labels)} in all), got {answer!r:.80}."
            )
        found.append(label)
    return found


def apply_head(head: Head, prediction: Prediction, text: str) -> Prediction:
    """Return `prediction` with the distribution, label and confidence that the head computes.

    One without a distribution, or without a label, stays as it is. `text` of the prediction stays what the model wrote.
    The label mass of the final distribution is 1.

    Raises
    ------
    ConfigurationError
        The head needs features, which the prediction does not hold.
    """
    found = prediction.distribution
    if found is None or prediction.label is None or head.changes_nothing:
        return replace(prediction, features=None)
    rows = _head_rows(head, prediction, found, text)
    logprobs = head.transform_rows(rows)[0]
    return _with_final(prediction, found, logprobs, sketch=_sketch(head, rows))


def _head_rows(head: Head, prediction: Prediction, found: LabelDistribution, text: str) -> HeadRows:
    features: ArrayLike | None = None
    if prediction.features is not None:
        features = prediction.features[None, :]
    return head.rows(found.logprobs[None, :], [text], features=features)


def _sketch(head: Head, rows: HeadRows) -> HalfArray | None:
    """Return the sketch of the only row; None if the head does not read texts."""
    sketches = head.model.sketch(rows)
    return None if sketches is None else sketches[0]


def apply_head_to_all(
    head: Head,
    predictions: Sequence[Prediction],
    texts: Sequence[str],
    *,
    meter: Gate | None,
) -> list[Prediction]:
    """Return predictions as `apply_head` makes them, the vectors of their texts computed together.

    Raises
    ------
    ProviderError
        The server of the embedding model cannot be asked.
    LimitReachedError
        A budget of `meter` is used up; the vectors that were paid for are kept.
    """
    from calibrant.inference._text_vectors import prepare_vectors  # noqa: PLC0415 (of many texts)

    found: list[Prediction] = []
    for start in range(0, len(texts), _TOGETHER):
        block = texts[start : start + _TOGETHER]
        pairs = list(zip(predictions[start : start + _TOGETHER], block, strict=True))
        if head.embedding is not None:
            needed = [text for prediction, text in pairs if prediction.label is not None]
            prepare_vectors(head.embedding.model, needed, meter=meter)
        found += [apply_head(head, prediction, text) for prediction, text in pairs]
    return found


def held_out_predictions(
    head: Head, predictions: Sequence[Prediction], texts: Sequence[str]
) -> list[Prediction | None]:
    """Return predictions of a head's training rows as heads that were fitted on the other folds make them.

    Parameters
    ----------
    head : Head
        Learned from `predictions` for `texts` by `head_of`.
    predictions : sequence of Prediction, length n
        The model's own. None stands for one without a label and a distribution.
    texts : sequence of str, length n
        The texts, whose sketches are those of `head` itself.
    """
    rows = iter(() if head.held_out_logprobs is None or head.changes_nothing else head.held_out_logprobs)
    final: list[Prediction | None] = []
    for prediction, text in zip(predictions, texts, strict=True):
        found = prediction.distribution
        logprobs = None if found is None else next(rows, None)
        if found is None or prediction.label is None:
            final.append(None)
        elif logprobs is None:
            final.append(prediction)
        else:
            sketch = None
            # Of words alone there is none: every word of these rows is known to the head, those of later rows are not.
            if head.uses_embedding or head.uses_features:
                sketch = _sketch(head, _head_rows(head, prediction, found, text))
            final.append(_with_final(prediction, found, logprobs, sketch=sketch))
    return final


def _with_final(
    prediction: Prediction,
    found: LabelDistribution,
    logprobs: FloatArray,
    *,
    sketch: HalfArray | None,
) -> Prediction:
    return replace(prediction, features=None, sketch=sketch).with_logprobs(
        found,
        logprobs,
        measured=np.ones(len(logprobs), dtype=np.bool_),
        label_mass=1.0,  # what the model would write is no longer the question
        unresolved_mass=0.0,
    )


async def choose_tokens(method: Method, queries: Sequence[Query], journal: Journal | None) -> tuple[int, ...]:
    """Return the numbers of the tokens to name; none if the server reports no named tokens.

    Parameters
    ----------
    method : Method
        Asks a server.
    queries : sequence of Query
        Rows under one prompt; the next tokens of the first 150 decide.
    journal : Journal, optional
        Keeps the choice, so that a resumed run names the same tokens.

    Raises
    ------
    ProviderError
        A call failed.
    """
    asked = [query for query, problem in method.prepare(queries[:_ROWS]) if not problem]
    digest = hashlib.sha256(b"named tokens")
    for query in asked:
        digest.update(method.key(query).encode())
    key = digest.hexdigest()
    stored = None
    if journal is not None:
        stored = journal.get_many([key]).get(key)
    if stored is not None:
        return tuple(json.loads(stored.text))
    listings = await _listings(method, asked)
    tokens = tokens_of(listings)
    if not tokens:
        tell_once(method.name)
    elif journal is not None:
        usage = sum((listing.usage for listing in listings), Usage())
        journal.put(key, Prediction(label=None, text=json.dumps(tokens), usage=usage))
    return tokens


async def _listings(method: Method, queries: Sequence[Query]) -> list[TokenListing]:
    """Return the next tokens of each row that fits into the context; none if the server cannot name tokens."""
    found: list[TokenListing] = []

    async def ask(query: Query) -> None:
        with contextlib.suppress(ContextLengthError):
            listing = await method.candidate_tokens(method.request(query))
            method.calls.gate.charge(listing.usage)
            found.append(listing)

    await ask(queries[0])
    if not any(listing.most_named for listing in found):
        return []
    await concurrently(map(ask, queries[1:]))
    return found


def tokens_of(listings: Sequence[TokenListing]) -> tuple[int, ...]:
    """Return the tokens to name, as many as a request may: those whose log-probability differs most from row to row.

    Log-probabilities are centred in each row. A token that is not listed in a row is taken to be as probable as the
    least probable one that is.

    Parameters
    ----------
    listings : sequence of TokenListing
        Next tokens of some rows under one prompt.
    """
    numbers = np.unique([number for listing in listings for number in listing.logprobs])
    if not len(numbers):
        return ()
    rows = np.array([named_features(listing.logprobs, numbers.tolist()) for listing in listings])
    spread = rows.astype(np.float64).var(axis=0)
    most = np.argsort(-spread, kind="stable")[: listings[0].most_named]
    return tuple(np.sort(numbers[most]).tolist())


@cache
def tell_once(model: str) -> None:
    """Log one line that a server names no tokens."""
    _LOG.warning(
        "%s reports no log-probabilities of named tokens, so that a head learns without features of its texts. "
        "vLLM (logprob_token_ids), SGLang (/generate) and llama.cpp's server report them.",
        model,
    )
