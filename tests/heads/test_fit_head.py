"""Tests of `fit_head`: the rung that labelled rows support, and the head's predictions."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, log_loss

from calibrant.calibration import LabelPriorCorrection, VectorScaling
from calibrant.core import ConfigurationError
from calibrant.heads import Head, RungFigures, TextBaseline, fit_head
from head_rows import LABELS, HeadRows, filler, halves, hidden, knowing, noise

Array = NDArray[np.float64]
Judge = Callable[[Array, NDArray[np.intp], Array], Array]
THREE = ("a", "b", "c")
FIRST = np.array([1.0, 0.0, 0.0])
LADDER = ["as scored", "prior", "vector", "regression"]
EVERY = [*LADDER, "features", "text alone", "regression and text", "features and text"]
FRESH = halves(200, seed=1)


def fit(rows: HeadRows, *, texts: bool = False, features: bool = False, **options: Any) -> Head:
    """Return a head that is fitted on rows with the given options."""
    options |= {"texts": rows.texts} if texts else {}
    options |= {"features": rows.features} if features else {}
    return fit_head(rows.logprobs, rows.answers, labels=LABELS, **options)


def says(head: Head, rows: HeadRows = FRESH) -> Array:
    """Return the distributions of a head for rows."""
    return head.transform(rows.logprobs, rows.texts, features=rows.features)


def accuracy(head: Head, rows: HeadRows) -> float:
    """Return the share of rows that a head answers rightly."""
    return float((says(head, rows).argmax(axis=1) == rows.answers).mean())


def names(head: Head) -> list[str]:
    """Return the names of the rungs that were tried."""
    return [one.name for one in head.figures]


def of(head: Head, name: str) -> RungFigures:
    """Return the figures of one rung."""
    return next(one for one in head.figures if one.name == name)


# What is learned


def test_a_lean_is_taken_out_by_the_prior() -> None:
    """A model that nearly always gives the first label is corrected by the rung "prior"."""
    honest, answers = knowing(400)
    leaning = log_softmax(honest + 4.0 * FIRST, axis=1)
    head = fit_head(leaning[:200], answers[:200], labels=THREE)
    assert head.rung == "prior"
    before, after = (
        (x[200:].argmax(axis=1) == answers[200:]).mean() for x in (leaning, head.transform(leaning))
    )
    assert after > before + 0.15
    assert head.gain > 0.3


def test_labels_that_swap_places_are_set_right_by_the_regression() -> None:
    """A model that names the next label each time is corrected by the rung "regression"."""
    honest, answers = knowing(400)
    swapped = honest[:, [2, 0, 1]]
    head = fit_head(swapped[:200], answers[:200], labels=THREE)
    assert head.rung == "regression"
    found = head.transform(swapped[200:]).argmax(axis=1)
    assert (found == answers[200:]).mean() > (honest[200:].argmax(axis=1) == answers[200:]).mean() - 0.05
    assert of(head, "vector").accuracy < of(head, "regression").accuracy - 0.1


def test_too_sure_a_model_is_made_as_sure_as_it_is_right() -> None:
    """A model that is too sure gets its temperature, and nearly the honest rows' log loss."""
    honest, answers = knowing(800)
    head = fit_head(3.0 * honest[:400], answers[:400], labels=THREE, candidates=["prior"])
    assert head.temperature == pytest.approx(3.0, rel=0.25)
    found = head.transform(3.0 * honest[400:])
    assert log_loss(answers[400:], np.exp(found)) < log_loss(answers[400:], np.exp(honest[400:])) + 0.02


def test_noise_is_left_as_it_was_scored() -> None:
    """A model of noise is left as it was scored in at least 13 of 20 draws."""
    rungs = Counter(fit_head(*noise(seed=seed), labels=THREE).rung for seed in range(20))
    assert rungs["as scored"] >= 13, rungs
    head = fit_head(*noise(seed=0), labels=THREE)
    assert head.rung == "as scored"
    assert (head.gain, head.temperature, head.n_rows) == (0.0, None, 100)
    assert head.reason.startswith("Nothing that was tried did better")
    assert head.transform(noise()[0]) == pytest.approx(noise()[0])


def test_an_honest_model_is_left_as_it_was_scored() -> None:
    """An honest model is left as it was scored in most draws, and its log loss hardly rises."""
    rungs = []
    for seed in range(5):
        head = fit_head(*knowing(300, seed=seed), labels=THREE)
        rungs.append(head.rung)
        fresh, truth = knowing(1000, seed=100 + seed)
        assert log_loss(truth, np.exp(head.transform(fresh))) < log_loss(truth, np.exp(fresh)) + 0.02
    assert rungs.count("as scored") >= 3


# Text and features


def test_words_decide_where_the_model_knows_nothing() -> None:
    """Where the scores know nothing, the head answers as the text baseline does."""
    rows, rng = halves(140), np.random.default_rng(0)
    answers = (rows.answers + (np.arange(140) % 7 == 0)) % 2
    quiet = 0.05 * rng.normal(size=(140, 2))
    head = fit_head(quiet, answers, labels=["up", "down"], texts=rows.texts)
    assert head.rung == "text alone"
    assert (head.uses_text, head.uses_features) == (True, False)
    baseline = TextBaseline().fit(rows.texts, answers, labels=["up", "down"])
    asked = [*FRESH.texts[:20], "nothing of it"]
    found = head.transform(np.zeros((21, 2)), asked)
    assert baseline.predict(asked) == [["up", "down"][place] for place in found.argmax(axis=1)]
    plain, sure = (np.diff(x, axis=1).ravel() for x in (baseline.predict_log_proba(asked), found))
    assert np.corrcoef(plain, sure)[0, 1] > 0.9


def test_both_decide_where_each_knows_a_half() -> None:
    """Where scores and text know one half each, the rung "regression and text" is taken."""
    head = fit(halves(), texts=True)
    assert head.rung == "regression and text"
    assert accuracy(head, FRESH) > 0.9
    assert max(of(head, name).accuracy for name in ("regression", "text alone")) < 0.7
    assert accuracy(fit(halves()), FRESH) < 0.7


def test_features_decide_where_the_scores_do_not() -> None:
    """Where features know what the scores do not, they are used, with the text where it helps."""
    head = fit(halves(), features=True)
    assert head.rung == "features"
    assert (head.uses_text, head.uses_features) == (False, True)
    assert accuracy(head, FRESH) > 0.9
    rows = dataclasses.replace(halves(), logprobs=np.zeros((160, 4)), features=hidden(halves().answers // 2))
    alone = fit(rows, texts=True, features=True)
    assert alone.rung == "features and text"
    assert (alone.uses_text, alone.uses_features) == (True, True)


def test_words_that_tell_nothing_are_left_out() -> None:
    """Texts without information are not used, and the head equals one fitted without them."""
    rows = halves(200)
    head = fit_head(rows.logprobs, rows.answers, labels=LABELS, texts=filler(200))
    assert head.rung == fit(rows).rung
    assert not head.uses_text
    assert head.transform(FRESH.logprobs) == pytest.approx(fit(rows).transform(FRESH.logprobs))


def test_the_text_must_add_to_the_model() -> None:
    """A text that beats the scores is not used if a corrected model knows more."""
    rows, rng = halves(), np.random.default_rng(0)
    knows = log_softmax(
        4.0 * np.eye(4)[rows.answers] + rng.normal(size=(160, 4)) + 7.0 * (np.arange(4) == 0), axis=1
    )
    head = fit_head(knows, rows.answers, labels=LABELS, texts=rows.texts)
    assert head.rung in LADDER[1:]
    scored, text = of(head, "as scored"), of(head, "text alone")
    assert text.log_loss < scored.log_loss - 1.0
    assert min(text.accuracy - scored.accuracy, text.macro_f1 - scored.macro_f1) > 0.2


def test_the_better_of_two_that_look_at_both_is_taken() -> None:
    """Where features know more than scores, the rung "features and text" is taken."""
    rows = halves()
    weak = log_softmax(rows.logprobs + np.random.default_rng(0).normal(scale=2.0, size=(160, 4)), axis=1)
    known = hidden(rows.answers // 2)
    head = fit_head(weak, rows.answers, labels=LABELS, texts=rows.texts, features=known)
    assert head.rung == "features and text"
    alone = max(of(head, name).accuracy for name in ("features", "text alone"))
    assert of(head, "features and text").accuracy > of(head, "regression and text").accuracy > alone + 0.2


def test_text_is_not_taken_for_a_difference_that_may_be_chance() -> None:
    """A text without information is rarely used, even where its log loss is lower."""
    taken, left = 0, 0
    for seed in range(12):
        logprobs, answers = noise(60, seed=seed)
        texts = filler(60, seed=100 + seed)
        head = fit_head(logprobs, answers, labels=THREE, texts=texts, candidates=["text alone"])
        taken += head.rung == "text alone"
        left += head.rung == "as scored" and of(head, "text alone").log_loss < of(head, "as scored").log_loss
    assert taken <= 3
    assert left > 0


# Names of labels

TOPICS = ("card_lost", "CardArrival", "exchange rate")


@pytest.mark.parametrize("rung", ["text alone", "regression and text", "features and text"])
def test_the_name_of_a_label_stands_for_rows_that_are_missing(rung: str) -> None:
    """A label without rows is found by the words of its name."""
    asked = ["arrival of my card", "my card is lost", "a better rate", "rate of exchange"]
    head = fit_head(
        np.zeros((20, 3)) - [0.0, 9.0, 9.0],
        [0, 1] * 10,
        labels=TOPICS,
        texts=["it is lost", "arrival is late"] * 10,
        features=np.zeros((20, 2)),
        candidates=[rung],
    )
    assert head.rung == rung
    found = head.transform(np.zeros((4, 3)), asked, features=np.zeros((4, 2)))
    assert found.argmax(axis=1).tolist() == [1, 0, 2, 2]


def test_names_decide_where_most_labels_have_one_row() -> None:
    """Labels of one row each are found by the words of their names."""
    rng = np.random.default_rng(0)
    words = [f"{''.join(rng.choice(list('abcdefghijklmnopqrstuvwxyz'), 6))}" for _ in range(40)]
    texts = [f"{filler(1, seed=seed)[0]} {word}" for seed, word in enumerate(words)]
    head = fit_head(np.zeros((40, 40)), np.arange(40), labels=words, texts=texts)
    assert names(head) == ["as scored", "prior", "text alone"]
    assert of(head, "text alone").accuracy > 0.9
    fresh = [f"{filler(1, seed=100 + seed)[0]} {word}" for seed, word in enumerate(words)]
    assert head.uses_text
    assert (head.transform(np.zeros((40, 40)), fresh).argmax(axis=1) == np.arange(40)).mean() > 0.9


# How it is judged


def dealt(answers: NDArray[np.intp], *, seed: int = 0) -> NDArray[np.intp]:
    """Return a fold for each row: rows are shuffled, and dealt out label by label."""
    order = sorted(np.random.default_rng(seed).permutation(len(answers)), key=lambda row: answers[row])
    fold = np.empty(len(answers), dtype=np.intp)
    fold[order] = np.arange(len(answers)) % 5
    return fold


def by_prior(x: Array, answers: NDArray[np.intp], asked: Array) -> Array:
    """Return the distributions of rows after the label-prior correction."""
    return LabelPriorCorrection().fit(x, answers).transform(asked)


def by_vector(x: Array, answers: NDArray[np.intp], asked: Array) -> Array:
    """Return the distributions of rows after vector scaling."""
    return VectorScaling().fit(x, answers).transform(asked)


def by_regression(x: Array, answers: NDArray[np.intp], asked: Array) -> Array:
    """Return the distributions of scikit-learn's regression on standardised columns."""
    mean, spread = x.mean(axis=0), x.std(axis=0) / 0.1
    each = {label: 1.0 / (2.0 + n) for label, n in Counter(answers.tolist()).items()}
    weights = np.array([each[label] for label in answers.tolist()])
    model = LogisticRegression(C=10.0, max_iter=2000).fit(
        (x - mean) / spread, answers, sample_weight=weights / weights.mean()
    )
    found: Array = model.predict_log_proba((asked - mean) / spread)
    return found


def smoothed(log_p: Array, temperature: float, n: int) -> Array:
    """Return distributions at a temperature, mixed with one row of equal shares."""
    found: Array = np.log(
        (n * np.exp(log_softmax(log_p / temperature, axis=1)) + 1.0 / log_p.shape[1]) / (n + 1.0)
    )
    return found


def held_out(judge: Judge, x: Array, answers: NDArray[np.intp]) -> tuple[Array, float]:
    """Return held-out distributions by five-fold cross-validation, and their temperature."""
    found, fold = np.empty_like(x), dealt(answers)
    for k in range(5):
        found[fold == k] = judge(x[fold != k], answers[fold != k], x[fold == k])
    n = len(x)

    def loss(log_t: float) -> float:
        return -float(smoothed(found, math.exp(log_t), n)[np.arange(n), answers].mean())

    best = minimize_scalar(
        loss, bounds=(-math.log(5), math.log(5)), method="bounded", options={"xatol": 1e-8}
    )
    return smoothed(found, math.exp(best.x), n), math.exp(best.x)


def figures(name: str, log_p: Array, answers: NDArray[np.intp]) -> RungFigures:
    """Return the figures of distributions, computed by scikit-learn where it can."""
    p, best = np.exp(log_p), log_p.argmax(axis=1)
    return RungFigures(
        name=name,
        log_loss=log_loss(answers, p),
        brier=float(((p - np.eye(p.shape[1])[answers]) ** 2).sum(axis=1).mean() / 2),
        accuracy=accuracy_score(answers, best),
        macro_f1=f1_score(answers, best, average="macro"),
    )


@pytest.mark.parametrize(
    ("name", "judge"), [("prior", by_prior), ("vector", by_vector), ("regression", by_regression)]
)
def test_figures_are_those_of_rows_that_had_not_taught_it(name: str, judge: Judge) -> None:
    """Figures and temperature equal those of a cross-validation that is written out."""
    honest, answers = knowing(120)
    x = log_softmax(2.0 * honest + 3.0 * FIRST, axis=1)
    head = fit_head(x + 7.0, answers, labels=THREE, candidates=[name])
    assert vars(of(head, "as scored")) == pytest.approx(vars(figures("as scored", x, answers)))
    log_p, temperature = held_out(judge, x, answers)
    assert vars(of(head, name)) == pytest.approx(vars(figures(name, log_p, answers)), abs=2e-3)
    assert head.rung == name
    assert head.temperature == pytest.approx(temperature, rel=1e-2)
    final = smoothed(judge(x, answers, x), temperature, 120)
    assert np.exp(head.transform(x)) == pytest.approx(np.exp(final), abs=5e-3)


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0])
def test_a_rung_is_taken_by_the_rule_alone(scale: float) -> None:
    """A rung is taken if it lowers the loss by more than its error, without lower accuracy or F1."""
    decided = Counter[bool]()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        answers = rng.choice(3, size=60, p=[0.7, 0.2, 0.1])
        x = log_softmax(scale * rng.normal(size=(60, 3)) + np.log([0.6, 0.2, 0.2]), axis=1)
        x = log_softmax(x + scale * np.eye(3)[answers], axis=1)
        log_p, _ = held_out(by_prior, x, answers)
        before, after = figures("as scored", x, answers), figures("prior", log_p, answers)
        gain = (log_p - x)[np.arange(60), answers]
        expected = (
            gain.mean() > gain.std(ddof=1) / math.sqrt(60)
            and after.accuracy >= before.accuracy
            and after.macro_f1 >= before.macro_f1
        )
        head = fit_head(x, answers, labels=THREE, candidates=["prior"])
        assert head.rung == ("prior" if expected else "as scored")
        decided[bool(expected)] += 1
    assert len(decided) == 2, decided


def test_a_better_loss_does_not_excuse_a_worse_macro_f1() -> None:
    """A rung with lower loss but lower macro F1 is not taken."""
    rng = np.random.default_rng(0)
    answers = (np.arange(300) % 10 == 0).astype(int)
    logit = 0.8 * (answers + rng.normal(size=300) - 0.4)
    logprobs = log_softmax(np.stack([np.zeros(300), logit], axis=1), axis=1)
    head = fit_head(logprobs, answers, labels=["rest", "rare"], candidates=["vector"])
    scored, learned = head.figures
    assert learned.log_loss < scored.log_loss - 0.1
    assert learned.accuracy > scored.accuracy
    assert learned.macro_f1 < scored.macro_f1
    assert head.rung == "as scored"


def test_a_better_loss_does_not_excuse_a_worse_accuracy() -> None:
    """A rung with lower loss but lower accuracy is not taken."""
    rng = np.random.default_rng(29)
    answers = rng.choice(3, size=60, p=[0.8, 0.1, 0.1])
    logits = 3.0 * (0.7 * rng.normal(size=(60, 3)) + 1.2 * np.eye(3)[answers]) + 5.0 * FIRST
    head = fit_head(log_softmax(logits, axis=1), answers, labels=THREE, candidates=["prior"])
    scored, learned = head.figures
    assert learned.log_loss < scored.log_loss - 0.3
    assert learned.macro_f1 > scored.macro_f1
    assert learned.accuracy < scored.accuracy
    assert head.rung == "as scored"


# Options, and what a head says of itself


def test_candidates_say_what_is_tried() -> None:
    """`candidates` sets the rungs that are tried, beside "as scored", which always is."""
    rows = halves(60)
    assert names(fit(rows)) == LADDER
    assert names(fit(rows, texts=True)) == [*LADDER, "text alone", "regression and text"]
    assert names(fit(rows, features=True)) == [*LADDER, "features"]
    assert names(fit(rows, texts=True, features=True)) == EVERY
    head = fit(rows, texts=True, candidates=["regression", "prior"])
    assert names(head) == ["as scored", "prior", "regression"]
    assert fit(rows, candidates=[]).rung == "as scored"
    assert fit(rows, texts=True, candidates=["regression and text"]).rung == "regression and text"
    assert fit(rows, candidates=("as scored",)).figures == fit(rows, candidates=[]).figures


@pytest.mark.parametrize(
    ("candidates", "named"),
    [
        (["isotonic"], "'isotonic'"),
        (["prior", "text alone"], "'text alone'.*pass the texts"),
        ("prior", "'p'"),
    ],
)
def test_an_unknown_rung_is_refused(candidates: Any, named: str) -> None:
    """An unknown rung, or one without its texts or features, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=f"Expected rungs among 'as scored'.* got {named}"):
        fit(halves(20), candidates=candidates)


def test_a_head_keeps_the_held_out_loss_of_every_row() -> None:
    """Held-out losses and distributions are those of the chosen rung, and None with too few rows."""
    head = fit(halves(60))
    assert head.held_out_losses is not None
    assert head.held_out_losses.shape == (head.n_rows,)
    assert head.held_out_losses.mean() == pytest.approx(of(head, head.rung).log_loss)
    assert head.held_out_logprobs is not None
    np.testing.assert_allclose(np.exp(head.held_out_logprobs).sum(axis=1), 1.0)
    true = head.held_out_logprobs[np.arange(head.n_rows), halves(60).answers]
    np.testing.assert_array_equal(-true, head.held_out_losses)
    assert fit(halves(4)).held_out_losses is None


def test_equal_calls_agree_and_another_seed_deals_again() -> None:
    """Equal calls give equal heads, the default is seed 0, and another seed deals other folds."""
    rows = halves(60)
    first, again = fit(rows), fit(rows)
    assert first.describe() == again.describe()
    assert first.transform(rows.logprobs).tolist() == again.transform(rows.logprobs).tolist()
    assert fit(rows, rng=0).describe() == first.describe()
    assert fit(rows, rng=np.random.default_rng(0)).describe() == first.describe()
    other = fit(rows, rng=1)
    assert of(other, "as scored") == of(first, "as scored")
    assert of(other, "regression") != of(first, "regression")


def test_the_order_of_rows_does_no_harm() -> None:
    """Rows that are sorted by label give the same rung and nearly the same figures."""
    rows = halves(200)
    order = np.argsort(rows.answers, kind="stable")
    dealt_out, blocks = fit(rows, texts=True), fit(rows.take(order), texts=True)
    assert blocks.rung == dealt_out.rung
    assert accuracy(blocks, FRESH) == pytest.approx(accuracy(dealt_out, FRESH), abs=0.04)
    for one, other in zip(dealt_out.figures, blocks.figures, strict=True):
        assert one.log_loss == pytest.approx(other.log_loss, abs=0.06)


def test_a_head_tells_why() -> None:
    """The description holds rung, rows, gain, reason and figures as JSON; a head is immutable."""
    head = fit(halves(), texts=True)
    scored, taken = of(head, "as scored"), of(head, head.rung)
    assert head.gain == scored.log_loss - taken.log_loss
    assert head.reason == (
        f"On held-out rows log loss goes from {scored.log_loss:.3f} to {taken.log_loss:.3f} and accuracy from "
        f"{scored.accuracy:.3f} to {taken.accuracy:.3f}."
    )
    told = json.loads(json.dumps(head.describe()))
    assert told["rung"] == "regression and text"
    assert (told["n_rows"], told["gain"], told["reason"]) == (160, head.gain, head.reason)
    assert [RungFigures(**one) for one in told["figures"]] == list(head.figures)
    assert head.labels == LABELS
    with pytest.raises(dataclasses.FrozenInstanceError):
        head.rung = "prior"  # type: ignore[misc]
    assert "coefficients" not in repr(head)


# Another mix of labels


def shifted(n: int, mix: list[float], *, seed: int = 0) -> tuple[Array, NDArray[np.intp]]:
    """Return rows of a given mix of labels whose true distributions are known."""
    rng = np.random.default_rng(seed)
    answers = rng.choice(3, size=n, p=mix)
    seen = 1.5 * np.eye(3)[answers] + rng.normal(size=(n, 3))
    return log_softmax(1.5 * seen, axis=1), answers  # the posterior under equal frequencies


def test_a_head_for_another_mix_of_labels_knows_it() -> None:
    """A head with `label_mix` has nearly the true posterior's log loss on rows of that mix."""
    mix = [0.8, 0.15, 0.05]
    x, answers = shifted(1200, [1 / 3] * 3)
    asked, truth = shifted(4000, mix, seed=1)
    best = log_loss(truth, np.exp(log_softmax(asked + np.log(mix), axis=1)))
    plain = fit_head(x + 2.0 * FIRST, answers, labels=THREE)
    head = fit_head(x + 2.0 * FIRST, answers, labels=THREE, label_mix=mix)
    with_mix, without = (log_loss(truth, np.exp(one.transform(asked + 2.0 * FIRST))) for one in (head, plain))
    assert with_mix < best + 0.02
    assert without > best + 0.1
    assert (head.rung, head.figures, head.temperature) == (plain.rung, plain.figures, plain.temperature)


def test_the_shift_is_wanted_over_observed() -> None:
    """A head shifts by the ratio of `label_mix` to the observed shares, in any form of the mix."""
    x, answers = shifted(300, [0.6, 0.3, 0.1])
    plain = fit_head(x, answers, labels=THREE)
    observed = (np.bincount(answers) + 1 / 3) / 301
    expected = log_softmax(plain.transform(x) + np.log([0.2, 0.3, 0.5]) - np.log(observed), axis=1)
    for mix in ([0.2, 0.3, 0.5], (2, 3, 5), {"c": 0.5, "a": 0.2, "b": 0.3}, np.array([20, 30, 50])):
        head = fit_head(x, answers, labels=THREE, label_mix=mix)
        assert head.transform(x) == pytest.approx(expected)
        assert not head.changes_nothing
        assert head.digest != plain.digest
    same = fit_head(x, answers, labels=THREE, label_mix=observed)
    assert same.transform(x) == pytest.approx(plain.transform(x))


def test_a_label_without_rows_has_its_expected_share() -> None:
    """The mean probability of a label without rows is its share in `label_mix`."""
    x, answers = shifted(600, [0.5, 0.5, 0.0])
    head = fit_head(x, answers, labels=THREE, label_mix=[0.4, 0.4, 0.2], candidates=["regression"])
    asked, _ = shifted(2000, [0.5, 0.5, 0.0], seed=1)
    assert np.exp(head.transform(asked))[:, 2].mean() == pytest.approx(0.2, abs=0.05)


def test_scores_that_are_left_as_they_were_are_shifted_all_the_same() -> None:
    """A head that left the scores alone still shifts them, but not with too few rows."""
    x, answers = shifted(300, [1 / 3] * 3)
    head = fit_head(x, answers, labels=THREE, candidates=[], label_mix=[8, 1, 1])
    assert head.rung == "as scored"
    assert not head.changes_nothing
    assert (head.transform(x)[:, 0] > x[:, 0]).all()
    few = fit_head(x[:9], answers[:9], labels=THREE, label_mix=[8, 1, 1])
    assert few.changes_nothing
    assert few.transform(x) == pytest.approx(x)


@pytest.mark.parametrize(
    ("mix", "said"),
    [
        ([0.5, 0.5, 0.0], "above 0"),
        (0.5, "3 finite frequencies"),
        ("abc", "numbers"),
        ({"a": 0.5, "b": 0.5}, r"the 3 labels \('a', 'b', 'c'\), got 2"),
    ],
)
def test_a_mix_that_is_none_of_these_labels_is_refused(mix: Any, said: str) -> None:
    """A `label_mix` that does not fit the labels raises ConfigurationError."""
    x, answers = shifted(30, [1 / 3] * 3)
    with pytest.raises(ConfigurationError, match=said):
        fit_head(x, answers, labels=THREE, label_mix=mix)


# Few rows, and odd ones


@pytest.mark.parametrize("n", [1, 2, 9])
def test_few_rows_teach_nothing(n: int) -> None:
    """With fewer than ten rows the scores are left alone, without figures, and the reason says so."""
    rows = halves(n)
    head = fit(rows, texts=True, features=True)
    assert (head.rung, head.figures, head.gain, head.n_rows) == ("as scored", (), 0.0, n)
    assert head.reason == f"{n} labelled rows are too few to learn from; at least 10 are needed."
    assert head.transform(rows.logprobs) == pytest.approx(rows.logprobs)
    assert names(fit(halves(10), texts=True, features=True)) == EVERY


def test_few_rows_of_many_labels_are_read_anyway() -> None:
    """Labels with a single row or none do not stop any rung from being tried."""
    rows = dataclasses.replace(halves(60), answers=np.where(np.arange(60) == 0, 2, np.arange(60) % 2))
    head = fit(rows, texts=True, features=True)
    assert all(math.isfinite(one.log_loss) for one in head.figures)
    assert names(head) == EVERY


@pytest.mark.parametrize("rung", EVERY[1:])
def test_a_label_without_rows_is_not_ruled_out(rung: str) -> None:
    """The probability of a label without rows is at least its share of one row, in every rung."""
    rows = halves(120)
    leaning = rows.logprobs[:, [0, 2, 1, 3]] + 5.0 * (np.arange(4) == 3)
    rows = dataclasses.replace(rows, logprobs=leaning, answers=rows.answers % 2)
    head = fit(rows, texts=True, features=True, candidates=[rung])
    found = np.exp(says(head))
    assert head.rung == rung
    assert (found[:, 2:] >= (1 - 1e-9) / 4 / 121).all()


def test_answers_that_are_all_alike_are_learned() -> None:
    """If all answers are one label, the head gives it, and every probability is above 0."""
    rows = dataclasses.replace(halves(40), answers=np.full(40, 2))
    found = np.exp(says(fit(rows, texts=True, features=True)))
    assert (found.argmax(axis=1) == 2).all()
    assert (found > 0.0).all()


@pytest.mark.parametrize("text", ["", "...", "the same words"])
def test_texts_that_are_all_alike_add_nothing(text: str) -> None:
    """Texts that are all alike change no rung, and alone they give the labels' shares."""
    rows = dataclasses.replace(halves(100), texts=[text] * 100)
    assert fit(rows, texts=True).rung == fit(rows).rung
    shares = np.bincount(rows.answers, minlength=4) / 100
    wrong = dataclasses.replace(rows, logprobs=np.zeros((100, 4)) - [9.0, 0.0, 0.0, 0.0])
    alone = fit(wrong, texts=True, candidates=["text alone"])
    assert alone.rung == "text alone"
    found = np.exp(alone.transform(np.zeros((2, 4)), ["", "lilac"]))
    assert found == pytest.approx(np.tile(shares, (2, 1)), abs=0.2)


def test_constant_and_missing_columns_add_nothing() -> None:
    """Constant, missing or huge features give the figures of the regression without features."""
    rows = halves(100)
    for useless in (np.full((100, 3), 7.0), np.zeros((100, 0)), np.full((100, 1), 1e100)):
        head = fit_head(rows.logprobs, rows.answers, labels=LABELS, features=useless)
        plain, beside = (vars(of(head, name)) | {"name": ""} for name in ("regression", "features"))
        assert beside == pytest.approx(plain, abs=1e-3)


def test_a_thousand_labels_of_one_row_each_take_seconds() -> None:
    """For 1,000 labels with one row each only the prior is tried, and no label is ruled out."""
    honest = np.random.default_rng(0).normal(size=(1000, 1000)) + 3.0 * np.eye(1000)
    labels = [f"label {number}" for number in range(1000)]
    head = fit_head(
        honest, np.arange(1000), labels=labels, texts=[label.replace("label", "text") for label in labels]
    )
    assert names(head) == ["as scored", "prior"]
    found = np.exp(head.transform(honest[:5]))
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert (found > 1e-7).all()


# Distributions


@pytest.fixture(scope="module")
def heads() -> list[Head]:
    """Return a head of every rung."""
    rows = halves()
    return [fit(rows, texts=True, features=True, candidates=[rung]) for rung in EVERY]


NUMBERS = st.floats(-1e100, 1e100) | st.floats(-50.0, 0.0)


@settings(max_examples=25)
@given(
    logprobs=arrays(np.float64, (3, 4), elements=NUMBERS),
    features=arrays(np.float64, (3, 32), elements=NUMBERS),
    texts=st.lists(st.text(max_size=30), min_size=3, max_size=3),
)
def test_any_rows_have_distributions(
    heads: list[Head], logprobs: Array, features: Array, texts: list[str]
) -> None:
    """Every rung returns normalised and finite log-probabilities."""
    assert [head.rung for head in heads] == EVERY
    for head in heads:
        found = head.transform(logprobs, texts, features=features)
        assert found.shape == (3, 4)
        assert np.isfinite(found).all()
        assert np.exp(found).sum(axis=1) == pytest.approx(1.0)


def test_rows_are_normalised_first(heads: list[Head]) -> None:
    """A constant added to a row's scores changes nothing, and each row is transformed alone."""
    shift = np.random.default_rng(0).normal(scale=9.0, size=(200, 1))
    for head in heads:
        found = says(head)
        assert says(head, dataclasses.replace(FRESH, logprobs=FRESH.logprobs + shift)) == pytest.approx(found)
        assert says(head, FRESH.take(np.array([7])))[0] == pytest.approx(found[7])
        assert head.transform(np.zeros((0, 4)), [], features=np.zeros((0, 32))).shape == (0, 4)


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": np.full((20, 4), math.nan)}, "finite, got nan in row 0"),
        ({"logprobs": np.zeros((0, 4)), "texts": None, "features": None, "answers": []}, "at least one row"),
        ({"answers": [4] * 20}, r"\[0, 4\)"),
        ({"texts": ["one"]}, "a text for each of 20 rows, got 1"),
        ({"texts": "n" * 20}, "sequence of strings"),
        ({"features": np.zeros((19, 3))}, r"features of shape \(20, columns\).*got \(19, 3\)"),
        ({"labels": ["north", "north", "south", "west"]}, "label"),
    ],
)
def test_bad_rows_are_refused(change: dict[str, Any], message: str) -> None:
    """Bad rows raise ConfigurationError with what was expected."""
    rows = halves(20)
    given_rows: dict[str, Any] = {**vars(rows), "labels": LABELS, **change}
    with pytest.raises(ConfigurationError, match=message):
        fit_head(given_rows.pop("logprobs"), given_rows.pop("answers"), **given_rows)


def test_what_a_head_needs_is_asked_for(heads: list[Head]) -> None:
    """Missing texts, and rows or scores of other sizes, raise ConfigurationError."""
    by_rung = {head.rung: head for head in heads}
    x, texts, features = FRESH.logprobs, FRESH.texts, FRESH.features
    with pytest.raises(ConfigurationError, match="Expected texts for a head of rung 'text alone'"):
        by_rung["text alone"].transform(x)
    with pytest.raises(ConfigurationError, match="Expected features for a head of rung 'features and text'"):
        by_rung["features and text"].transform(x, texts)
    with pytest.raises(ConfigurationError, match="features of 32 columns, as fitted, got 2"):
        by_rung["features"].transform(x, features=features[:, :2])
    for head in heads:
        with pytest.raises(ConfigurationError, match="over 4 labels, got 3"):
            head.transform(x[:, :3], texts, features=features)
        with pytest.raises(ConfigurationError, match="a text for each of 200 rows, got 199"):
            head.transform(x, texts[1:], features=features)
    assert by_rung["prior"].transform(x).tolist() == by_rung["prior"].transform(x, texts).tolist()
