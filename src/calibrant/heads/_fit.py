"""Choice of the rung of a head by cross-validation on labelled rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._losses import paired_gain, stratified_folds
from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.calibration._scaling import VectorScaling
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.heads._embedding import EmbeddingModel, HeadEmbedding
from calibrant.heads._head import Affine, Head, Model, RungFigures, check_rows
from calibrant.heads._linear import Block, HeadRows, LinearModel, as_text, tempered
from calibrant.metrics._calibration_error import multiclass_brier_score
from calibrant.metrics._classification import classification_summary
from calibrant.metrics._validation import as_numbers, check_answers

_FOLDS: Final = 5
_FEWEST: Final = 10  # labelled rows that can tell one rung from another
_MOST_TEMPERATURE: Final = 5.0
_MOST_TEXTS: Final = 1500  # texts and names of labels; where hardly two are of one label, more take minutes

LabelMix: TypeAlias = Mapping[str, float] | ArrayLike

_Fit = Callable[[HeadRows, NDArray[np.intp], LabelSet], Model]


def _as_scored(_: HeadRows, __: NDArray[np.intp], labels: LabelSet) -> Model:
    return Affine(weight=np.ones(len(labels)), offset=np.zeros(len(labels)))


def _prior(rows: HeadRows, answers: NDArray[np.intp], labels: LabelSet) -> Model:
    found = LabelPriorCorrection().fit(rows.logprobs, answers)
    return Affine(weight=np.ones(len(labels)), offset=-found.strength_ * np.log(found.prior_))


def _vector(rows: HeadRows, answers: NDArray[np.intp], _: LabelSet) -> Model:
    found = VectorScaling().fit(rows.logprobs, answers)
    return Affine(weight=found.weight_, offset=found.offset_)


def _linear(*blocks: Block) -> _Fit:
    return lambda rows, answers, labels: LinearModel(blocks).fit(rows, answers, names=labels.labels)


# From below: each takes more from the labelled rows than the one before. The last two look at the text.
_RUNGS: Final[dict[str, _Fit]] = {
    "as scored": _as_scored,
    "prior": _prior,
    "vector": _vector,
    "regression": _linear("labels"),
    "features": _linear("labels", "features"),
}
_TEXT: Final = "text alone"
_WITH_TEXT: Final[dict[str, tuple[Block, ...]]] = {
    "regression and text": ("labels",),
    "features and text": ("labels", "features"),
}


@dataclass(frozen=True, kw_only=True)
class _RungTrial:
    """Held-out losses and figures of one candidate rung.

    Attributes
    ----------
    fit : callable
        Fits its model.
    temperature : float or None
        Temperature that calibrates its held-out distributions.
    log_proba : ndarray of shape (n, L)
        Held-out log-probabilities, at that temperature.
    losses : ndarray of shape (n,)
        Log losses, in nats.
    figures : RungFigures
        Its figures.
    """

    fit: _Fit
    temperature: float | None
    log_proba: NDArray[np.float64]
    losses: NDArray[np.float64]
    figures: RungFigures

    def beats(self, other: _RungTrial) -> bool:
        """Return whether the loss is clearly lower, and neither accuracy nor macro F1 is worse."""
        return (
            paired_gain(other.losses, self.losses).helps
            and self.figures.accuracy >= other.figures.accuracy
            and self.figures.macro_f1 >= other.figures.macro_f1
        )


def fit_head(  # noqa: PLR0913  (keyword-only options)
    logprobs: ArrayLike,
    answers: ArrayLike,
    *,
    labels: LabelSet | Sequence[str],
    texts: Sequence[str] | None = None,
    features: ArrayLike | None = None,
    embedding: EmbeddingModel | None = None,
    candidates: Sequence[str] | Literal["auto"] = "auto",
    label_mix: LabelMix | None = None,
    rng: np.random.Generator | int | None = None,
) -> Head:
    """Fit a head, which turns label log-probabilities into final distributions, on labelled rows.

    The rungs of the ladder, from below: ``as scored``; ``prior``, the label prior divided out with learned strength
    (`calibrant.calibration.LabelPriorCorrection`); ``vector``, a weight and an offset for each label (`VectorScaling`);
    ``regression``, a multinomial logistic regression on the log-probabilities of all labels; ``features``, the same
    with the model's features of the text. Beside them, ``text alone`` looks at the words of the text and of the
    labels' names, and ``regression and text`` and ``features and text`` at both.

    Each is judged on held-out rows (five folds, stratified by label), at the temperature of least log
    loss. A higher rung is taken if its log loss is lower by more than the standard error of the difference, paired over
    rows, and neither accuracy nor macro F1 is lower. A combined rung is taken if it beats, by this rule, both the best
    rung without the text and the text alone; else the better of these two, the text alone only if it beats the
    distributions as they were scored. With fewer than ten rows nothing is learned.

    From ``regression`` on, labels have equal influence, regardless of their number of rows. Rungs that use the text
    treat the name of a label as one more text of it, worth two rows, which matters with many labels and few rows.

    Parameters
    ----------
    logprobs : array-like of shape (n, L)
        Natural logarithms, finite; rows are normalised first.
    answers : array-like of int, shape (n,)
        Position of the true label of each row, in [0, L).
    labels : LabelSet or sequence of str, length L
        The labels; their words count, in ``card_arrival`` and ``CardArrival`` too.
    texts : sequence of str, length n, optional
        The texts; without them no rung looks at the text.
    features : array-like of shape (n, d), optional
        The model's features of each text, such as its last hidden state.
    embedding : EmbeddingModel, optional
        Gives a vector to every text, which the rungs that look at the text then see beside its words, such as
        `calibrant.inference.Model2VecEmbedder`. Words that no labelled row holds are then known by their likes.
    candidates : sequence of str or "auto", default "auto"
        The rungs to choose from, ``as scored`` always among them. By default all that can be fitted; where most rows
        are the only one of their label, the first two and, up to 1,500 rows and labels together, the text alone.
    label_mix : mapping of str to float, or array-like of shape (L,), optional
        Relative frequencies of the labels where the head will be used, above 0; for labelled rows that were chosen
        by label. The head is fitted on these rows, and the logarithm of expected over observed frequency is added
        to its output. This is exact if the texts of a label have one distribution in both
        (Saerens, Latinne and Decaestecker 2002, equation 4). The figures are those of the labelled rows.
    rng : numpy Generator, int or None, default None
        Draws the folds; None is seed 0, so that equal calls agree.

    Raises
    ------
    ConfigurationError
        Wrong shapes, NaN or infinity, a position out of range, an unknown rung, `embedding` gives no vectors, or
        `label_mix` is not a mix of these labels.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.integers(2, size=200)
    >>> logit = 3.0 * (answers - 0.5) + rng.normal(size=200) - 4.0  # knows the answer, and nearly always says no
    >>> logprobs = -np.logaddexp(0.0, np.stack([logit, -logit], axis=1))
    >>> float((logprobs.argmax(axis=1) == answers).mean())
    0.45
    >>> head = fit_head(logprobs, answers, labels=["no", "yes"])
    >>> head.rung, float((head.transform(logprobs).argmax(axis=1) == answers).mean())
    ('prior', 0.93)
    """
    found = LabelSet.of(labels)
    rows = check_rows(logprobs, texts=texts, features=features, n_labels=len(found))
    truth = check_answers(answers, rows.logprobs)
    opened = None if embedding is None else HeadEmbedding.of(embedding, labels=found.labels)
    if opened is not None and rows.texts is not None:
        names = opened.vectors([as_text(name) for name in found.labels])
        rows = replace(rows, embeddings=opened.vectors(rows.texts), name_embeddings=names)
    shift = None if label_mix is None else _shift(label_mix, truth, found)
    rungs = _candidate_rungs(rows, truth, candidates)
    if len(rows) < _FEWEST:
        reason = f"{len(rows)} labelled rows are too few to learn from; at least {_FEWEST} are needed."
        model = _as_scored(rows, truth, found)
        return Head(labels=found.labels, rung="as scored", model=model, n_rows=len(rows), reason=reason)
    fold = stratified_folds(truth, _FOLDS, np.random.default_rng(0 if rng is None else rng))
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - only here

    # The matrices are small: BLAS threads would only wait for each other and for other work.
    with threadpool_limits(1):
        tried = {name: _judge(name, rows, truth, fold, found, fit) for name, fit in rungs.items()}
        chosen, reason = _choose(tried)
        model = chosen.fit(rows, truth, found)
    name = chosen.figures.name
    return Head(
        labels=found.labels,
        rung=name,
        model=model,
        embedding=opened if name == _TEXT or name in _WITH_TEXT else None,
        temperature=chosen.temperature,
        shift=shift,
        figures=tuple(one.figures for one in tried.values()),
        n_rows=len(rows),
        reason=reason,
        held_out_losses=chosen.losses,
        held_out_logprobs=chosen.log_proba,
    )


def _candidate_rungs(
    rows: HeadRows, answers: NDArray[np.intp], candidates: Sequence[str] | Literal["auto"]
) -> dict[str, _Fit]:
    """Return the candidate rungs by name, the simplest first."""
    text: tuple[Block, ...] = ("text",) if rows.embeddings is None else ("text", "embeddings")
    every = _RUNGS | {_TEXT: _linear(*text)}
    every |= {name: _linear(*blocks, *text) for name, blocks in _WITH_TEXT.items()}
    missing = {"text"} if rows.texts is None else set()
    missing |= {"features"} if rows.features is None else set()
    possible = {name: fit for name, fit in every.items() if not any(one in name for one in missing)}
    if candidates == "auto":
        if (np.bincount(answers)[answers] == 1).mean() > 0.5:
            # A held-out row's label has no other row, only its name.
            few = len(answers) + rows.logprobs.shape[1] <= _MOST_TEXTS
            known = ("as scored", "prior", _TEXT) if few else ("as scored", "prior")
            return {name: fit for name, fit in possible.items() if name in known}
        return possible
    unknown = [name for name in candidates if name not in possible]
    if unknown:
        raise ConfigurationError(
            f"Expected rungs among {', '.join(map(repr, possible))}, got {unknown[0]!r}: name another, or pass the "
            "texts or features that it needs."
        )
    return {name: fit for name, fit in possible.items() if name in {"as scored", *candidates}}


def _shift(label_mix: LabelMix, answers: NDArray[np.intp], labels: LabelSet) -> tuple[float, ...]:
    """Return the logarithm of expected over observed frequency for each label."""
    if isinstance(label_mix, Mapping):
        if set(label_mix) != set(labels.labels):
            raise ConfigurationError(
                f"Expected label_mix to have the {len(labels)} labels {labels.labels[:3]}, got "
                f"{len(label_mix)}: {tuple(label_mix)[:3]!r:.80}: give each label its frequency."
            )
        label_mix = [label_mix[label] for label in labels.labels]
    expected = as_numbers("label_mix", label_mix)
    if expected.shape != (len(labels),) or not ((expected > 0.0) & (expected < np.inf)).all():
        raise ConfigurationError(
            f"Expected label_mix as {len(labels)} finite frequencies above 0, got {label_mix!r:.80}: give a label "
            "that is not expected a small one."
        )
    # One pseudo-row holds every label equally, as in `tempered`.
    observed = np.bincount(answers, minlength=len(labels)) + 1.0 / len(labels)
    shift: NDArray[np.float64] = np.log(expected / expected.sum()) - np.log(observed / observed.sum())
    return tuple(shift.tolist())


def _held_out(
    name: str, rows: HeadRows, answers: NDArray[np.intp], fold: NDArray[np.intp], labels: LabelSet, fit: _Fit
) -> tuple[NDArray[np.float64], float | None]:
    """Return the distributions of a rung for held-out rows in cross-validation, and a temperature."""
    found = np.empty_like(rows.logprobs)
    for k in range(_FOLDS):
        judged, teaching = np.flatnonzero(fold == k), np.flatnonzero(fold != k)
        model = fit(rows.take(teaching), answers[teaching], labels)
        found[judged] = model.log_proba(rows.take(judged))
    if name == "as scored":
        return found, None
    temperature = _best_temperature(found, answers)
    return tempered(found, temperature=temperature, n_rows=len(answers)), temperature


def _judge(
    name: str, rows: HeadRows, answers: NDArray[np.intp], fold: NDArray[np.intp], labels: LabelSet, fit: _Fit
) -> _RungTrial:
    """Return the held-out losses and figures of a rung."""
    log_proba, temperature = _held_out(name, rows, answers, fold, labels, fit)
    best = log_proba.argmax(axis=1)
    truth, predicted = ([labels.labels[place] for place in places] for places in (answers, best))
    losses = -log_proba[np.arange(len(best)), answers]
    figures = RungFigures(
        name=name,
        log_loss=float(losses.mean()),
        brier=multiclass_brier_score(np.exp(log_proba), answers),
        accuracy=float((best == answers).mean()),
        macro_f1=classification_summary(truth, predicted, labels=labels).macro_f1,
    )
    return _RungTrial(fit=fit, temperature=temperature, log_proba=log_proba, losses=losses, figures=figures)


def cross_fitted(
    logprobs: ArrayLike, answers: ArrayLike, *, labels: LabelSet | Sequence[str]
) -> NDArray[np.float64]:
    """Return cross-fitted distributions after label-prior correction.

    The rung ``prior`` of `fit_head`, for comparing prompts: it scores a prompt as if its label preference were
    corrected. With fewer than ten rows, the scored distributions are returned.

    Parameters
    ----------
    logprobs : array-like of shape (n, L)
        Natural logarithms, finite; rows are normalised first.
    answers : array-like of int, shape (n,)
        Position of the true label of each row, in [0, L).
    labels : LabelSet or sequence of str, length L
        The labels.

    Returns
    -------
    ndarray of shape (n, L)
        Natural logarithms; each row normalised.

    Raises
    ------
    ConfigurationError
        Wrong shapes, NaN or infinity, or a position out of range.

    Examples
    --------
    >>> import numpy as np
    >>> answers = np.arange(100) % 2
    >>> logprobs = np.log([[0.6, 0.4], [0.9, 0.1]])[1 - answers]  # always says "no", less so where that is wrong
    >>> cross_fitted(logprobs, answers, labels=["no", "yes"]).argmax(axis=1)[:4].tolist()
    [0, 1, 0, 1]
    """
    found = LabelSet.of(labels)
    rows = check_rows(logprobs, texts=None, features=None, n_labels=len(found))
    truth = check_answers(answers, rows.logprobs)
    if len(rows) < _FEWEST:
        return rows.logprobs
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - only here

    with threadpool_limits(1):
        fold = stratified_folds(truth, _FOLDS, np.random.default_rng(0))
        return _held_out("prior", rows, truth, fold, found, _prior)[0]


def _best_temperature(log_proba: NDArray[np.float64], answers: NDArray[np.intp]) -> float:
    """Return the temperature in [0.2, 5] of least mean log loss."""
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 - `import calibrant` must not load scipy

    each = np.arange(len(answers))

    def loss(log_inverse: float) -> float:
        found = tempered(log_proba, temperature=np.exp(-log_inverse), n_rows=len(answers))
        return -float(found[each, answers].mean())

    bounds = (-np.log(_MOST_TEMPERATURE), np.log(_MOST_TEMPERATURE))
    return float(np.exp(-minimize_scalar(loss, bounds=bounds, method="bounded").x))


def _choose(tried: dict[str, _RungTrial]) -> tuple[_RungTrial, str]:
    """Return the chosen rung and the reason for it."""
    ladder = [one for name, one in tried.items() if name in _RUNGS]
    best = ladder[0]
    for one in ladder[1:]:
        best = one if one.beats(best) else best
    text = tried.get(_TEXT)
    alone = [best] if text is None else [best, text]
    both = [
        one for name, one in tried.items() if name in _WITH_TEXT and all(one.beats(other) for other in alone)
    ]
    if both:
        best = min(both, key=lambda one: one.figures.log_loss)
    elif text is not None and text.figures.log_loss < best.figures.log_loss and text.beats(ladder[0]):
        best = text
    before, after = ladder[0].figures, best.figures
    if best is ladder[0]:
        return (
            best,
            "Nothing that was tried did better on held-out rows than the distributions as they were scored.",
        )
    return best, (
        f"On held-out rows log loss goes from {before.log_loss:.3f} to {after.log_loss:.3f} and accuracy from "
        f"{before.accuracy:.3f} to {after.accuracy:.3f}."
    )
