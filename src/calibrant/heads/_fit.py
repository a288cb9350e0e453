"""Fit of a head on labelled rows: the strength of every block by cross-validation, then a temperature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._fit import log_losses, log_normalise, paired_gain, stratified_folds
from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray
from calibrant.core._reported import counted, listed
from calibrant.core._splits import near_duplicate_groups
from calibrant.heads._head import AS_SCORED, FITTED, TEMPERATURE, Head, HeadFigures, check_rows
from calibrant.heads._linear import (
    Block,
    Design,
    EmbeddingModel,
    HeadEmbedding,
    HeadRows,
    LinearModel,
    Strengths,
    ZeroLevel,
    as_text,
    tempered,
)
from calibrant.metrics._classification import classification_summary
from calibrant.metrics._confidence import multiclass_brier_score
from calibrant.metrics._validation import as_numbers, check_answers

_FOLDS: Final = 5
_FEWEST: Final = 10  # labelled rows that can tell one model from another
_TOO_FEW: Final = f"too few to learn from; at least {_FEWEST} are needed."
_MOST_TEMPERATURE: Final = 20.0
_MOST_TEMPERATURE_OF_PROMPTS: Final = 5.0
# Strengths that are tried: the weight of a block's scores alone, then a variance of its coefficients.
_LADDER: Final = (0.0, 1.0, 4.0, 16.0, 64.0, 256.0)
_FIRST: Final = 16.0
_PASSES: Final = 3
# Rows times rows times labels of a fit in the search: a second or two for all of them.
_MOST_WORK: Final = 1e7
_NOTHING: Final = 1e-3  # nats of log loss that a block must be worth
_LEAST_SHARE: Final = 0.05  # of the regression in its pool with the scores
_RESAMPLES: Final = 200
_ROUNDING: Final = 1e-3  # of the sum of a distribution
_SURELY: Final = 1.2  # standard errors: a single row that is lost is about one
# Half of the last of two decimals: more than that is reported as more than zero.
_MOST_OF_ZEROS: Final = 0.005
_SAME_ZERO: Final = float(np.log(2.0))  # zeros differ by the sum that their row was divided by
_FEWEST_ZEROS: Final = 0.1  # of the rows
_DROPS: Final = tuple(np.log([4.0, 16.0, 64.0, 256.0]).tolist())

LabelMix: TypeAlias = Mapping[str, float] | ArrayLike
_StrengthsKey: TypeAlias = tuple[tuple[Block, float], ...]


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """Held-out distributions of one candidate, with their losses and figures.

    Attributes
    ----------
    log_proba : ndarray of shape (n, L)
        Held-out log-probabilities.
    losses : ndarray of shape (n,)
        Log losses, in nats.
    figures : HeadFigures
        Its figures.
    """

    log_proba: FloatArray
    losses: FloatArray
    figures: HeadFigures


@dataclass(frozen=True, kw_only=True)
class _Regression:
    """Strengths of a regression, and what counts alike in it.

    Attributes
    ----------
    strengths : mapping of str to float
        Strength of every block that it uses.
    by_label : bool
        True if labels count alike, False if rows do.
    """

    strengths: Strengths
    by_label: bool = True


@dataclass(frozen=True, kw_only=True)
class _Pool:
    """Logarithmic opinion pool of a regression and the log-probabilities as scored.

    Attributes
    ----------
    regression : _Regression
        The regression.
    of_scores : float
        Best temperature of the scored log-probabilities alone.
    score_weight : float
        Weight of these beside those of the regression.
    temperature : float
        Best temperature of the two together.
    """

    regression: _Regression
    of_scores: float
    score_weight: float
    temperature: float


@dataclass(frozen=True, kw_only=True)
class _Judgement:
    """Kind of head that was chosen, and what was tried.

    Attributes
    ----------
    pool : _Pool
        The pool of least loss on all rows.
    trial : _Trial
        The chosen kind.
    tried : list of _Trial
        All kinds.
    reason : str
        Reason for the choice, in one sentence or two.
    """

    pool: _Pool
    trial: _Trial
    tried: list[_Trial]
    reason: str

    @property
    def temperature(self) -> float | None:
        """Divisor of the final log-probabilities; None where they stay as scored."""
        kind = self.trial.figures.name
        return {AS_SCORED: None, TEMPERATURE: self.pool.of_scores, FITTED: self.pool.temperature}[kind]


def fit_head(  # noqa: PLR0913  (keyword-only options)
    logprobs: ArrayLike,
    answers: ArrayLike,
    *,
    labels: LabelSet | Sequence[str],
    texts: Sequence[str] | None = None,
    features: ArrayLike | None = None,
    embedding: EmbeddingModel | None = None,
    label_mix: LabelMix | None = None,
    rng: np.random.Generator | int | None = None,
) -> Head:
    """Fit a head, which turns label log-probabilities into final distributions, on labelled rows.

    A head is one multinomial logistic regression on up to four blocks of columns: the log-probabilities of the
    ``labels``; the model's ``features`` of the text; the words of the ``text``; and its ``embeddings``. What a block
    says of each label (its log-probability; the likeness of the text, or of its vector, to the label's name) has one
    weight that all labels share, and every column has coefficients of its own with a Gaussian prior. The variance of
    that prior is the block's strength, chosen together with those of the other blocks by the log loss on held-out rows
    (five folds, stratified by label); a block that lowers it by less than 0.001 nats is left out. Labels count alike,
    however many rows they have, unless the held-out log loss is lower by more than its paired standard error where rows
    do: as where a label is nearly never true. Last, the regression is pooled with the log-probabilities as they were
    scored, each at its own temperature (a logarithmic opinion pool, Genest and Zidek 1986), by the shares of least
    held-out log loss; a pool that lowers it by less than 0.001 nats is left out.

    Where a tenth of the rows hold a probability of at most 0.005 that is within a factor of two of the smallest of all,
    such ones stand for zeros, as of answers that are rounded to two decimals. They are first divided by 4, 16, 64 or
    256, whichever gives these rows the least log loss at their best temperature, if that lowers it by 0.001 nats.

    With no block but the weight of the log-probabilities, that is temperature scaling with an offset for each label.
    Beside it, the distributions as they were scored and at their best temperature are judged on the same rows. The
    regression is taken if its log loss is lower than theirs by more than the standard error of the difference, paired
    over rows, and neither its accuracy nor its macro F1 is lower by more than 1.2 of theirs. With fewer than ten rows
    nothing is learned.

    Parameters
    ----------
    logprobs : array-like of shape (n, L)
        Natural logarithms, finite; rows are normalised first.
    answers : array-like of int, shape (n,), or of float, shape (n, L)
        Position of the true label of each row, in [0, L); or a distribution over the labels, such as that of another
        model, which is learned by its cross-entropy. Then every row counts alike, whatever its label.
    labels : LabelSet or sequence of str, length L
        The labels; their words count, in ``card_arrival`` and ``CardArrival`` too.
    texts : sequence of str, length n, optional
        The texts; without them no block looks at the text.
    features : array-like of shape (n, d), optional
        The model's features of each text, such as its last hidden state. They are standardised; from 32 of them on,
        every row is then put to length 1.
    embedding : EmbeddingModel, optional
        Gives a vector to every text, such as `calibrant.inference.Model2VecEmbedder`. Words that no labelled row holds
        are then known by their likes.
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
        Wrong shapes, NaN or infinity, a position out of range, `embedding` gives no vectors, or `label_mix` is not a
        mix of these labels.

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
    >>> head.title, float((head.transform(logprobs).argmax(axis=1) == answers).mean())
    ('labels', 0.94)
    """
    found = LabelSet.of(labels)
    rows = check_rows(logprobs, texts=texts, features=features, n_labels=len(found))
    targets = _checked_targets(answers, rows.logprobs)
    truth = _positions(targets)
    opened = None if embedding is None else HeadEmbedding.of(embedding, labels=found.labels)
    rows = rows if opened is None else _with_vectors(rows, opened, found)
    shift = None if label_mix is None else _shift(label_mix, truth, found)
    if len(rows) < _FEWEST:
        return _unfitted(found, len(rows))
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - only here

    fold = _text_folds(truth, rows.texts, rng)
    scored = rows.logprobs
    zeros = _zero_level(scored, targets)
    rows = rows if zeros is None else replace(rows, logprobs=zeros.lowered(scored))
    # The matrices are small: BLAS threads would only wait for each other and for other work.
    with threadpool_limits(1):
        designs = _FoldDesigns(rows=rows, answers=targets, fold=fold, labels=found)
        judged = _judged(designs, scored, truth)
        best, kind = judged.pool.regression, judged.trial.figures.name
        is_fitted = kind == FITTED
        model = LinearModel.as_scored(len(found))
        if is_fitted:
            design = Design(rows, targets, label_names=found.labels)
            model = design.model(
                best.strengths, by_label=best.by_label, score_weight=judged.pool.score_weight
            )
    return Head(
        labels=found.labels,
        kind=kind,
        model=model,
        strengths={block: best.strengths.get(block, 0.0) for block in model.blocks} if is_fitted else {},
        embedding=opened if "embeddings" in model.blocks else None,
        zeros=None if judged.temperature is None else zeros,
        temperature=judged.temperature,
        shift=shift,
        figures=tuple(trial.figures for trial in judged.tried),
        n_rows=len(rows),
        reason=judged.reason + _missing_labels(answers, found),
        held_out_losses=judged.trial.losses,
        held_out_logprobs=judged.trial.log_proba,
    )


def _judged(designs: _FoldDesigns, scored: FloatArray, truth: IndexArray) -> _Judgement:
    """Return the kind that is best on all rows, with figures from what the other folds chose for each."""
    best, of_folds = _best_regressions(designs)
    pool = _pooled(designs, best, np.arange(len(scored)))
    kind, stopped = _choose(_trials(designs, [pool] * len(of_folds), scored), truth, len(designs.labels))
    folds = zip(of_folds, designs.teaching, strict=True)
    tried = _trials(designs, [_pooled(designs, one, rest) for one, rest in folds], scored)
    trial = next(one for one in tried if one.figures.name == kind)
    return _Judgement(pool=pool, trial=trial, tried=tried, reason=_reason(tried[0], trial, stopped))


def _text_groups(truth: IndexArray, texts: Sequence[str] | None) -> IndexArray:
    """Return the group of each row, from 0 in the order of the rows: equal texts, and near-duplicates, are in one.

    On the copy of a row that taught it, a head would only show that it remembers. A text, or a form, that many rows
    repeat comes again where the head is used, and divides like any others.
    """
    places = np.arange(len(truth))
    if texts is None:
        return places
    labelled = zip(texts, map(str, truth.tolist()), strict=True)
    _, first, key, counts = np.unique(
        near_duplicate_groups(list(labelled)), return_index=True, return_inverse=True, return_counts=True
    )
    is_frequent = counts[key] > len(texts) / _FOLDS  # more than a fold holds
    _, numbers = np.unique(np.where(is_frequent, places, first[key]), return_inverse=True)
    return numbers


def _text_folds(
    truth: IndexArray, texts: Sequence[str] | None, rng: np.random.Generator | int | None
) -> IndexArray:
    """Return a random fold for each row, labels spread evenly; the rows of a group of texts are in the same one."""
    groups = _text_groups(truth, texts)
    _, first = np.unique(groups, return_index=True)
    folds = stratified_folds(truth[first], _FOLDS, np.random.default_rng(0 if rng is None else rng))
    return folds[groups]


def _missing_labels(answers: ArrayLike, labels: LabelSet) -> str:
    """Return a sentence on labels that no row has, after a blank; empty if there are none, or of distributions."""
    truth = np.asarray(answers)
    missing = [name for place, name in enumerate(labels.labels) if place not in truth]
    if truth.ndim > 1 or not missing:
        return ""
    return f" No labelled row has the label {listed(missing)}, so that it could not be learned."


def _with_vectors(rows: HeadRows, embedding: HeadEmbedding, labels: LabelSet) -> HeadRows:
    """Return the rows with the vectors of their texts and of the labels' names, where they have texts."""
    if rows.texts is None:
        return rows
    names = embedding.vectors([as_text(name) for name in labels.labels])
    return replace(rows, embeddings=embedding.vectors(rows.texts), name_embeddings=names)


def _unfitted(labels: LabelSet, n_rows: int) -> Head:
    """Return the head that changes nothing, as there are too few rows."""
    reason = f"{counted(n_rows, 'labelled row is', 'labelled rows are')} {_TOO_FEW}"
    as_scored = LinearModel.as_scored(len(labels))
    return Head(labels=labels.labels, kind=AS_SCORED, model=as_scored, n_rows=n_rows, reason=reason)


def _checked_targets(answers: ArrayLike, rows: FloatArray) -> NDArray[Any]:
    """Return the positions of labels, shape (n,), or distributions over them, shape (n, L), of a fit's rows.

    Raises
    ------
    ConfigurationError
        They are neither.
    """
    given = np.asarray(answers)
    if given.ndim != 2:
        return check_answers(answers, rows)
    if given.shape == rows.shape and given.dtype.kind == "f" and (given >= 0.0).all():
        totals = given.sum(axis=1, keepdims=True)
        if np.allclose(totals, 1.0, atol=_ROUNDING):
            normalised: FloatArray = given / totals
            return normalised
    raise ConfigurationError(
        f"Expected a distribution over {rows.shape[1]} labels for each of {len(rows)} rows, got numbers of shape "
        f"{given.shape} that are none: divide each row by its sum."
    )


def _positions(targets: NDArray[Any]) -> IndexArray:
    """Return the positions of the labels, of distributions those of the most probable ones."""
    return targets.argmax(axis=1) if targets.ndim == 2 else targets


def _zero_level(logprobs: FloatArray, answers: NDArray[Any]) -> ZeroLevel | None:
    """Return the level of zeros of least log loss; None if there are no zeros, or lower ones gain nothing."""
    at_most = min(float(logprobs.min()) + _SAME_ZERO, float(np.log(_MOST_OF_ZEROS)))
    has_zero = (logprobs <= at_most).any(axis=1)
    if has_zero.mean() < _FEWEST_ZEROS:
        return None

    def loss(log_proba: FloatArray) -> float:
        temperature = _best_temperature(log_proba, answers)
        found = tempered(log_proba, temperature=temperature, n_rows=len(answers))
        return float(log_losses(found, answers).mean())

    best: ZeroLevel | None = None
    least = loss(logprobs)
    for drop in _DROPS:
        zeros = ZeroLevel(at_most=at_most, drop=drop)
        found = loss(zeros.lowered(logprobs))
        if found < least - _NOTHING:
            best = zeros
            least = found
    return best


@dataclass(frozen=True, kw_only=True, eq=False)
class _FoldDesigns:
    """Designs of the rows outside each fold, which judge strengths on the rows inside.

    Attributes
    ----------
    rows : HeadRows
        All rows.
    answers : ndarray of int, shape (n,), or of float, shape (n, L)
        As for `fit_head`.
    fold : ndarray of int, shape (n,)
        Number of each row's fold.
    labels : LabelSet
        The labels.
    """

    rows: HeadRows
    answers: NDArray[Any]
    fold: IndexArray
    labels: LabelSet
    # Log-probabilities by what they are from: those that a search ended with are asked for again.
    _held_out: dict[tuple[object, bool], FloatArray] = field(default_factory=dict)

    @cached_property
    def judged(self) -> list[IndexArray]:
        """The places of every fold's rows."""
        return [np.flatnonzero(self.fold == k) for k in np.unique(self.fold)]

    @cached_property
    def teaching(self) -> list[IndexArray]:
        """The places of the rows outside every fold."""
        return [np.flatnonzero(self.fold != k) for k in np.unique(self.fold)]

    @cached_property
    def _designs(self) -> list[Design]:
        names = self.labels.labels
        return [
            Design(self.rows.take(places), self.answers[places], label_names=names)
            for places in self.teaching
        ]

    def some(self, n: int) -> _FoldDesigns:
        """Return those of about n rows with every label's share of them, in the same folds."""
        places = np.flatnonzero(_spread(_positions(self.answers), n))
        return _FoldDesigns(
            rows=self.rows.take(places),
            answers=self.answers[places],
            fold=self.fold[places],
            labels=self.labels,
        )

    def held_out(self, regression: _Regression) -> FloatArray:
        """Return log-probabilities of every row from the model that it was held out of, shape (n, L)."""
        strengths, by_label = regression.strengths, regression.by_label
        key = tuple(strengths.items()), by_label
        if key not in self._held_out:
            found = np.empty_like(self.rows.logprobs)
            for design, judged in zip(self._designs, self.judged, strict=True):
                found[judged] = design.model(strengths, by_label=by_label).log_proba(self.rows.take(judged))
            self._held_out[key] = found
        return self._held_out[key]

    def losses(self, regression: _Regression) -> FloatArray:
        """Return the held-out log loss of every row at the best temperature, in nats, shape (n,)."""
        found = self.held_out(regression)
        temperature = _best_temperature(found, self.answers)
        final = tempered(found, temperature=temperature, n_rows=len(found))
        return log_losses(final, self.answers)


def _best_regressions(designs: _FoldDesigns) -> tuple[_Regression, list[_Regression]]:
    """Return the regression of least held-out loss that a search finds, and for each fold that of the other folds.

    What is said of a fold's rows comes from a regression that they had no part in choosing: otherwise the figures of
    few rows are too good.
    """
    rows = designs.rows
    n_labels = len(designs.labels)
    most = max(int((_MOST_WORK / n_labels) ** 0.5), _FEWEST)
    if most < min(len(rows), n_labels):
        # Hardly two of so few rows would have one label: only the weights that all labels share can be learned.
        shared = _Regression(strengths={block: 0.0 for block in rows.blocks if block != "features"})
        return shared, [shared] * len(designs.judged)
    n_folds = len(designs.judged)
    is_part = len(rows) > most
    if is_part:
        designs = designs.some(most)
    best, tried = _searched(designs)
    of_all = _counted_alike(designs, best, np.arange(len(designs.fold)))
    if is_part:
        return of_all, [of_all] * n_folds
    of_folds = []
    for rest in designs.teaching:
        costs = {key: losses[rest].mean() + _NOTHING * len(key) for key, losses in tried.items()}
        best_key = min(costs, key=costs.__getitem__)
        of_folds.append(_counted_alike(designs, dict(best_key), rest))
    return of_all, of_folds


def _searched(designs: _FoldDesigns) -> tuple[Strengths, dict[_StrengthsKey, FloatArray]]:
    """Return the strengths of least held-out loss, found by one step for one block at a time, and all losses."""
    blocks = designs.rows.blocks
    best: dict[Block, float] = dict.fromkeys(blocks, _FIRST)
    losses = designs.losses(_Regression(strengths=best))
    least = losses.mean()
    tried: dict[_StrengthsKey, FloatArray] = {tuple(best.items()): losses}
    for _ in range(_PASSES):
        before = least
        for block in blocks:
            for other in _steps(best, block, blocks):
                key = tuple(other.items())
                if key in tried:
                    continue
                tried[key] = designs.losses(_Regression(strengths=other))
                loss = tried[key].mean()
                if loss < least + (_NOTHING if len(other) < len(best) else 0.0):
                    best, least = other, loss
        if least == before:
            break
    return best, tried


def _counted_alike(designs: _FoldDesigns, strengths: Strengths, places: IndexArray) -> _Regression:
    """Return the regression whose labels count alike, unless that of rows has a surely lower loss at these places."""
    by_label, by_row = (_Regression(strengths=strengths, by_label=by_label) for by_label in (True, False))
    gain = paired_gain(designs.losses(by_label)[places], designs.losses(by_row)[places])
    return by_row if gain.helps else by_label


def _steps(
    strengths: Mapping[Block, float], block: Block, blocks: Sequence[Block]
) -> Iterator[dict[Block, float]]:
    """Yield strengths with one block left out, one step weaker, or one step stronger."""
    ladder = _LADDER[1:] if block == "features" else _LADDER
    place = -1
    if block in strengths:
        place = ladder.index(strengths[block])
    if strengths.keys() - {block}:
        yield {name: strength for name, strength in strengths.items() if name != block}
    for step in (place - 1, place + 1):
        if 0 <= step < len(ladder):
            changed = {**strengths, block: ladder[step]}
            yield {name: changed[name] for name in blocks if name in changed}


def _spread(answers: IndexArray, n: int) -> BoolArray:
    """Return a mask of about n rows with every label's share of them."""
    part = stratified_folds(answers, -(-len(answers) // n), np.random.default_rng(0))
    mask: BoolArray = part == 0
    return mask


def _trials(designs: _FoldDesigns, of_folds: Sequence[_Pool], scored: FloatArray) -> list[_Trial]:
    """Return the losses and figures of all kinds of head, with a pool for the rows of each fold.

    `scored` has no level of zeros yet.
    """
    lowered = designs.rows.logprobs
    answers = designs.answers
    n_rows = len(lowered)
    at_temperature, fitted = np.empty_like(lowered), np.empty_like(lowered)
    for judged, pool in zip(designs.judged, of_folds, strict=True):
        scores = lowered[judged]
        pooled = designs.held_out(pool.regression)[judged] + pool.score_weight * scores
        at_temperature[judged] = tempered(scores, temperature=pool.of_scores, n_rows=n_rows)
        fitted[judged] = tempered(pooled, temperature=pool.temperature, n_rows=n_rows)
    return [
        _trial(name, log_proba, answers, designs.labels)
        for name, log_proba in ((AS_SCORED, scored), (TEMPERATURE, at_temperature), (FITTED, fitted))
    ]


def _trial(name: str, log_proba: FloatArray, answers: NDArray[Any], labels: LabelSet) -> _Trial:
    truth = _positions(answers)
    predicted = log_proba.argmax(axis=1)
    losses = log_losses(log_proba, answers)
    return _Trial(
        log_proba=log_proba,
        losses=losses,
        figures=HeadFigures(
            name=name,
            log_loss=float(losses.mean()),
            brier=multiclass_brier_score(np.exp(log_proba), truth),
            accuracy=float((predicted == truth).mean()),
            macro_f1=_macro_f1(predicted, truth, labels),
        ),
    )


def _pooled(designs: _FoldDesigns, regression: _Regression, places: IndexArray) -> _Pool:
    """Return the pool with the shares of least held-out log loss at these places, each at its own temperature.

    A pool that is worth nothing is left out: then the weight of the scores is 0.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 - `import calibrant` must not load scipy

    held_out = designs.held_out(regression)[places]
    scores = designs.rows.logprobs[places]
    answers = designs.answers[places]
    of_scores = _best_temperature(scores, answers)
    of_regression = _best_temperature(held_out, answers)

    def loss(share: float) -> float:
        pooled = share / of_regression * held_out + (1.0 - share) / of_scores * scores
        found = tempered(pooled, temperature=1.0, n_rows=len(answers))
        return float(log_losses(found, answers).mean())

    share = float(minimize_scalar(loss, bounds=(_LEAST_SHARE, 1.0), method="bounded").x)
    if loss(1.0) - loss(share) < _NOTHING:
        share = 1.0
    return _Pool(
        regression=regression,
        of_scores=of_scores,
        score_weight=(1.0 - share) / share * of_regression / of_scores,
        temperature=of_regression / share,
    )


def _macro_f1(predicted: IndexArray, answers: IndexArray, labels: LabelSet) -> float:
    truth, found = ([labels.labels[place] for place in places] for places in (answers, predicted))
    return classification_summary(truth, found, labels=labels).macro_f1


def _choose(tried: Sequence[_Trial], answers: IndexArray, n_labels: int) -> tuple[str, str]:
    """Return the chosen kind, and the figure that kept the regression from being taken or an empty text."""
    as_scored, at_temperature, fitted = tried
    best = at_temperature if at_temperature.figures.log_loss < as_scored.figures.log_loss else as_scored
    stopped = ""
    if paired_gain(best.losses, fitted.losses).helps:
        stopped = _worse_figure(as_scored, fitted, answers, n_labels)
        best = best if stopped else fitted
    return best.figures.name, stopped


def _reason(as_scored: _Trial, chosen: _Trial, stopped: str) -> str:
    """Return the reason for the chosen kind, in one sentence or two."""
    before = as_scored.figures
    after = chosen.figures
    if chosen is as_scored:
        return "On held-out rows the distributions as they were scored have the lowest log loss."
    reason = (
        f"On held-out rows log loss goes from {before.log_loss:.3f} to {after.log_loss:.3f} and accuracy from "
        f"{before.accuracy:.3f} to {after.accuracy:.3f}."
    )
    if stopped:
        reason += f" The regression was not taken: its {stopped} is lower by more than a standard error."
    return reason


def _worse_figure(before: _Trial, after: _Trial, answers: IndexArray, n_labels: int) -> str:
    """Return the name of a figure that is clearly lower after than before, or an empty text."""
    guesses = [trial.log_proba.argmax(axis=1) for trial in (before, after)]
    right = [(guess == answers).astype(np.float64) for guess in guesses]
    lost = paired_gain(*right)  # right answers, taken for losses: they fall where fewer are right
    if lost.mean > _SURELY * lost.standard_error:
        return "accuracy"
    rng = np.random.default_rng(0)
    n = len(answers)
    draws = rng.integers(n, size=(_RESAMPLES, n))
    falls = []
    for draw in draws:
        first, second = (_f1(guess[draw], answers[draw], n_labels) for guess in guesses)
        falls.append(first - second)
    fall = before.figures.macro_f1 - after.figures.macro_f1
    if fall > _SURELY * float(np.std(falls)) + 1e-12:
        return "macro F1"
    return ""


def _f1(predicted: IndexArray, answers: IndexArray, n_labels: int) -> float:
    """Return the mean F1 over the labels that occur."""
    hits = np.bincount(answers[predicted == answers], minlength=n_labels)
    total = np.bincount(predicted, minlength=n_labels) + np.bincount(answers, minlength=n_labels)
    occurs = total > 0
    return float((2.0 * hits[occurs] / total[occurs]).mean())


def _shift(label_mix: LabelMix, answers: IndexArray, labels: LabelSet) -> tuple[float, ...]:
    """Return the logarithm of expected over observed frequency for each label."""
    if isinstance(label_mix, Mapping):
        if set(label_mix) != set(labels.labels):
            raise ConfigurationError(
                f"Expected label_mix to have the {len(labels)} labels {labels.labels[:3]}, got "
                f"{len(label_mix)}: {tuple(label_mix)[:3]!r:.80}: give each label its frequency."
            )
        label_mix = [label_mix[label] for label in labels.labels]
    expected = as_numbers("label_mix", label_mix)
    is_legal = (expected > 0.0) & (expected < np.inf)
    if expected.shape != (len(labels),) or not is_legal.all():
        raise ConfigurationError(
            f"Expected label_mix as {len(labels)} finite frequencies above 0, got {label_mix!r:.80}: give a label "
            "that is not expected a small one."
        )
    # One pseudo-row holds every label equally, as in `tempered`.
    observed = np.bincount(answers, minlength=len(labels)) + 1.0 / len(labels)
    wanted = np.log(expected / expected.sum())
    shift: FloatArray = wanted - np.log(observed / observed.sum())
    return tuple(shift.tolist())


def cross_fitted(logprobs: ArrayLike, answers: ArrayLike, *, labels: LabelSet | Sequence[str]) -> FloatArray:
    """Return cross-fitted distributions after label-prior correction, at their best temperature.

    For comparing prompts: a prompt is scored as if its label preference were corrected. With fewer than ten rows, the
    scored distributions are returned.

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
    fold = stratified_folds(truth, _FOLDS, np.random.default_rng(0))
    corrected = np.empty_like(rows.logprobs)
    for k in range(_FOLDS):
        judged = fold == k
        teaching = fold != k
        prior = LabelPriorCorrection().fit(rows.logprobs[teaching], truth[teaching])
        corrected[judged] = log_normalise(rows.logprobs[judged] - prior.strength_ * np.log(prior.prior_))
    temperature = _best_temperature(corrected, truth, most=_MOST_TEMPERATURE_OF_PROMPTS)
    return tempered(corrected, temperature=temperature, n_rows=len(truth))


def _best_temperature(
    log_proba: FloatArray, answers: NDArray[Any], *, most: float = _MOST_TEMPERATURE
) -> float:
    """Return the temperature in [1 / most, most] of least mean log loss."""
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 - `import calibrant` must not load scipy

    def loss(log_inverse: float) -> float:
        found = tempered(log_proba, temperature=np.exp(-log_inverse), n_rows=len(answers))
        return float(log_losses(found, answers).mean())

    bounds = (-np.log(most), np.log(most))
    return float(np.exp(-minimize_scalar(loss, bounds=bounds, method="bounded").x))
