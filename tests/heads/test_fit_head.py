"""Tests of `fit_head`: what labelled rows teach a head, how it is judged, and its predictions."""

from __future__ import annotations

import dataclasses
import json
import math
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

from calibrant.calibration import TemperatureScaling
from calibrant.core import ConfigurationError
from calibrant.heads import Head, HeadFigures, fit_head
from calibrant.heads._linear import Design
from calibrant.heads._linear import HeadRows as Inputs
from head_rows import LABELS, HeadRows, filler, halves, heads, hidden, knowing, noise

Array = NDArray[np.float64]
Places = NDArray[np.intp]
THREE = ("a", "b", "c")
FIRST = np.array([1.0, 0.0, 0.0])
KINDS = ["as scored", "temperature", "fitted"]
FRESH = halves(200, seed=1)


def fit(rows: HeadRows, *, texts: bool = False, features: bool = False, **options: Any) -> Head:
    """Return a head that is fitted on rows with the given options."""
    options |= {"texts": rows.texts} if texts else {}
    options |= {"features": rows.features} if features else {}
    return fit_head(rows.logprobs, rows.answers, labels=LABELS, **options)


def says(head: Head, rows: HeadRows = FRESH) -> Array:
    """Return the distributions of a head for rows."""
    return head.transform(rows.logprobs, rows.texts, features=rows.features)


def accuracy(log_p: Array, answers: Places) -> float:
    """Return the share of rows whose most probable label is right."""
    return float((log_p.argmax(axis=1) == answers).mean())


def of(head: Head, name: str) -> HeadFigures:
    """Return the figures of one kind."""
    return next(one for one in head.figures if one.name == name)


def rise(head: Head, fresh: Array, truth: Places, texts: list[str] | None = None) -> float:
    """Return by how much a head raises the log loss of fresh rows."""
    return float(log_loss(truth, np.exp(head.transform(fresh, texts))) - log_loss(truth, np.exp(fresh)))


# What is learned


def test_a_lean_is_taken_out() -> None:
    """A model that nearly always gives the first label gets offsets, and the weight of its scores."""
    honest, answers = knowing(400)
    leaning = log_softmax(honest + 4.0 * FIRST, axis=1)
    head = fit_head(leaning[:200], answers[:200], labels=THREE)
    assert (head.kind, head.title, dict(head.strengths)) == ("fitted", "labels", {"labels": 0.0})
    assert (
        accuracy(head.transform(leaning[200:]), answers[200:]) > accuracy(leaning[200:], answers[200:]) + 0.2
    )
    assert head.gain > 0.5


def test_labels_that_swap_places_are_set_right() -> None:
    """A model that names the next label each time is corrected by coefficients of every label."""
    honest, answers = knowing(400)
    swapped = honest[:, [2, 0, 1]]
    head = fit_head(swapped[:200], answers[:200], labels=THREE)
    assert head.strengths["labels"] > 0.0
    found = accuracy(head.transform(swapped[200:]), answers[200:])
    assert found > accuracy(honest[200:], answers[200:]) - 0.05


def test_too_sure_a_model_is_made_as_sure_as_it_is_right() -> None:
    """A model that is too sure gets its temperature, and nearly the honest rows' log loss."""
    honest, answers = knowing(600)
    head = fit_head(3.0 * honest[:200], answers[:200], labels=THREE)
    assert (head.kind, head.title, head.strengths) == ("temperature", "temperature", {})
    assert head.temperature == pytest.approx(3.0, rel=0.25)
    found = head.transform(3.0 * honest[200:])
    assert log_loss(answers[200:], np.exp(found)) < log_loss(answers[200:], np.exp(honest[200:])) + 0.02


def rounded_answers(n: int, *, decimals: int, seed: int) -> tuple[Array, Places]:
    """Return answers of a model that is right about 97 of 100 times where it is sure, and else half the time.

    Sure is far above 0.995: rounded to two decimals, all the other labels are zeros, which are raised to 0.0025.
    """
    rng = np.random.default_rng(seed)
    is_sure = rng.random(n) < 0.7
    first = np.where(is_sure, 1.0 - 10.0 ** -rng.uniform(3.0, 9.0, n), rng.uniform(0.5, 0.9, n))
    truth = rng.integers(3, size=n)
    is_right = rng.random(n) < np.where(is_sure, 0.97, 0.5)
    named = np.where(is_right, truth, (truth + 1) % 3)
    shares = np.repeat((1.0 - first)[:, None] / 2.0, 3, axis=1)
    shares[np.arange(n), named] = first
    raised = np.maximum(shares.round(decimals), 10.0**-decimals / 4.0)
    return np.log(raised / raised.sum(axis=1, keepdims=True)), truth


def test_zeros_of_rounded_answers_are_as_low_as_labelled_rows_say() -> None:
    """A head lowers the zeros of a model that is surer than two decimals tell, and is better for it on new rows."""
    head = fit_head(*rounded_answers(300, decimals=2, seed=0), labels=THREE)
    fresh, truth = rounded_answers(3000, decimals=2, seed=1)
    assert head.zeros is not None
    assert head.zeros.drop > 1.0
    as_they_are = dataclasses.replace(head, zeros=None)
    scaled = TemperatureScaling().fit(*rounded_answers(300, decimals=2, seed=0)).transform(fresh)
    of_head = log_loss(truth, np.exp(head.transform(fresh)))
    assert of_head < log_loss(truth, np.exp(scaled)) - 0.005
    assert of_head < log_loss(truth, np.exp(as_they_are.transform(fresh)))
    assert np.exp(head.transform(fresh)).sum(axis=1) == pytest.approx(1.0)


def test_small_probabilities_that_differ_are_no_zeros() -> None:
    """Answers that are not rounded, equal ones, and rounded ones without zeros are taken as they are."""
    exact, truth = rounded_answers(300, decimals=12, seed=0)
    alike = np.full((300, 3), -math.log(3.0))
    unsure = np.log(np.clip(np.exp(exact), 0.05, None))
    for given_rows in (exact, alike, unsure):
        assert fit_head(given_rows, truth, labels=THREE).zeros is None


def test_noise_is_left_nearly_alone() -> None:
    """On noise the log loss hardly rises, and in most draws no block of text is taken."""
    taken = 0
    rises = []
    for seed in range(12):
        scored, answers = noise(60, seed=seed)
        head = fit_head(scored, answers, labels=THREE, texts=filler(60, seed=100 + seed))
        taken += head.uses_text
        rises.append(rise(head, *noise(600, seed=100 + seed), filler(600, seed=seed)))
    assert np.mean(rises) < 0.03
    assert taken <= 4


def test_an_honest_model_is_left_nearly_alone() -> None:
    """The log loss of an honest model hardly rises, and it keeps its answers in most draws."""
    kinds = []
    for seed in range(5):
        head = fit_head(*knowing(150, seed=seed), labels=THREE)
        kinds.append(head.kind)
        assert rise(head, *knowing(1000, seed=100 + seed)) < 0.02
    assert kinds.count("fitted") <= 1


@pytest.mark.parametrize("n", [9, 40])
@pytest.mark.parametrize("ending", ["", " (ref {})"])
def test_copies_of_rows_do_not_make_a_head_that_remembers_them(ending: str, n: int) -> None:
    """Held-out figures are of texts that taught nothing, also where every text came three times, or nearly so."""
    rng = np.random.default_rng(0)
    words = [
        f"{first}{second}" for first in "bcdfgklmnprst" for second in ("ado", "emi", "iru", "oba", "uke")
    ]
    texts = [" ".join(rng.choice(words, 12)) for _ in range(n)]
    scored, answers = knowing(n)
    times = np.repeat(np.arange(n), 3)
    copies = [texts[place] + ending.format(1000 + 7 * number) for number, place in enumerate(times.tolist())]
    head = fit_head(scored[times], answers[times], labels=THREE, texts=copies)
    assert not fit_head(scored, answers, labels=THREE, texts=texts).uses_text
    assert not head.uses_text
    assert head.figures[0].log_loss == pytest.approx(log_loss(answers, np.exp(scored), labels=range(3)))


# Text and features


def test_words_decide_where_the_model_knows_nothing() -> None:
    """Where the scores know nothing, the head reads the text and needs no model."""
    rows, rng = halves(280), np.random.default_rng(0)
    answers = (rows.answers + (np.arange(280) % 7 == 0)) % 2
    quiet = 0.05 * rng.normal(size=(280, 2))
    head = fit_head(quiet, answers, labels=["up", "down"], texts=rows.texts)
    assert head.title == "text"
    assert (head.uses_model, head.uses_text, head.uses_features) == (False, True, False)
    found = head.transform(np.zeros((200, 2)), FRESH.texts)
    assert accuracy(found, FRESH.answers % 2) > 0.98
    assert np.exp(found.max(axis=1)).mean() == pytest.approx(6 / 7, abs=0.07)


@pytest.mark.parametrize("title", ["labels + text", "labels + features"])
def test_both_decide_where_each_knows_a_half(title: str) -> None:
    """Where scores and text, or features, know one half each, both are used."""
    rows, second = halves(80), title.split(" + ")[1:]
    head = fit(rows, texts="text" in second, features="features" in second)
    assert head.title == title
    assert list(head.strengths) == title.split(" + ")
    assert (head.uses_model, head.uses_text) == (True, "text" in second)
    assert head.uses_features == ("features" in second)
    assert accuracy(says(head), FRESH.answers) > 0.9
    assert accuracy(says(heads()["labels"]), FRESH.answers) < 0.7


def test_blocks_are_named_in_one_order() -> None:
    """Features and text that know a half each are used in the order of the columns."""
    rows = dataclasses.replace(
        halves(80), logprobs=np.zeros((80, 4)), features=hidden(halves(80).answers // 2)
    )
    head = fit(rows, texts=True, features=True)
    assert [block for block in head.strengths if block != "labels"] == ["features", "text"]
    assert head.title == " + ".join(head.strengths)


TOPICS = ("card_lost", "CardArrival", "exchange rate")


def test_the_name_of_a_label_stands_for_rows_that_are_missing() -> None:
    """A label without rows is found by the words of its name."""
    asked = ["arrival of my card", "my card is lost", "a better rate", "rate of exchange"]
    scored = np.zeros((20, 3)) - [0.0, 9.0, 9.0]
    head = fit_head(scored, [0, 1] * 10, labels=TOPICS, texts=["it is lost", "arrival is late"] * 10)
    assert head.uses_text
    assert head.transform(np.zeros((4, 3)), asked).argmax(axis=1).tolist() == [1, 0, 2, 2]


# How it is judged


# How rows weigh


def brier(shares: Array, answers: Places) -> float:
    """Return the mean squared error of all probabilities, halved."""
    return float(((shares - np.eye(shares.shape[1])[answers]) ** 2).sum(axis=1).mean()) / 2.0


def rarely(n: int, *, seed: int) -> tuple[Array, Places]:
    """Return noisy answers over four labels, of which two are nearly never true."""
    rng = np.random.default_rng(seed)
    answers = rng.choice(4, size=n, p=(0.48, 0.48, 0.02, 0.02))
    return log_softmax(1.5 * np.eye(4)[answers] + rng.normal(size=(n, 4)), axis=1), answers


@pytest.mark.parametrize("seed", range(3))
def test_rare_labels_are_not_raised_where_that_costs(seed: int) -> None:
    """Then rows count alike: the Brier score is that of a plain regression, and far below a balanced one's."""
    x, answers = rarely(200, seed=seed)
    fresh, truth = rarely(2000, seed=100 + seed)
    head = fit_head(x, answers, labels=LABELS)
    plain, balanced = (
        brier(LogisticRegression(class_weight=weight).fit(x, answers).predict_proba(fresh), truth)
        for weight in (None, "balanced")
    )
    found = brier(np.exp(head.transform(fresh)), truth)
    assert (head.kind, found) == ("fitted", pytest.approx(plain, abs=0.01))
    assert found < balanced - 0.03


def spam(n: int, *, seed: int) -> tuple[Array, Places, list[str]]:
    """Return answers that know nothing, and texts of which one in eight is told by its words, nearly always."""
    rng = np.random.default_rng(seed)
    answers = (rng.random(n) < 0.12).astype(np.intp)
    texts = []
    for is_spam in answers:
        words = [f"word{word}" for word in rng.integers(60, size=8)]
        if rng.random() < (0.95 if is_spam else 0.05):
            words += [f"prize{word}" for word in rng.integers(6, size=3)]
        texts.append(" ".join(words))
    return log_softmax(0.3 * rng.normal(size=(n, 2)), axis=1), answers, texts


@pytest.mark.parametrize("seed", [1, 5, 6])
def test_a_rare_label_that_the_text_tells_is_found(seed: int) -> None:
    """Labels count alike: nine in ten of the rare one are found, of which a head that counts by row misses more."""
    x, answers, texts = spam(150, seed=seed)
    fresh, truth, asked = spam(1500, seed=100)
    head = fit_head(x, answers, labels=("ham", "spam"), texts=texts)
    by_row = fit_head(x, np.eye(2)[answers], labels=("ham", "spam"), texts=texts)
    found, less = (
        float((one.transform(fresh, asked).argmax(axis=1) == 1)[truth == 1].mean()) for one in (head, by_row)
    )
    assert (head.kind, by_row.kind) == ("fitted", "fitted")
    assert found > 0.9
    assert found > less + 0.1


def dealt(answers: Places) -> Places:
    """Return a fold for each row: rows are shuffled, and dealt out label by label."""
    order = sorted(np.random.default_rng(0).permutation(len(answers)), key=lambda row: answers[row])
    fold = np.empty(len(answers), dtype=np.intp)
    fold[order] = np.arange(len(answers)) % 5
    return fold


def smoothed(log_p: Array, log_temperature: float, *, n: int = 0) -> Array:
    """Return distributions at a temperature, mixed with one row of equal shares beside n rows, by default these."""
    n = n or len(log_p)
    p = np.exp(log_softmax(log_p / math.exp(log_temperature), axis=1))
    found: Array = np.log((n * p + 1.0 / log_p.shape[1]) / (n + 1.0))
    return found


def at_best_temperature(log_p: Array, answers: Places) -> tuple[Array, float]:
    """Return distributions at the temperature between 1/20 and 20 of least log loss, and that temperature."""
    bounds = (-math.log(20), math.log(20))
    best = minimize_scalar(
        lambda log_t: log_loss(answers, np.exp(smoothed(log_p, log_t))), bounds=bounds, method="bounded"
    )
    return smoothed(log_p, best.x), math.exp(best.x)


def pool_weights(regression: Array, scores: Array, answers: Places) -> tuple[float, float]:
    """Return weights of two, each at its best temperature, of least log loss, or of one if both gain too little."""
    _, t_regression = at_best_temperature(regression, answers)
    _, t_scores = at_best_temperature(scores, answers)
    pairs = [(share / t_regression, (1 - share) / t_scores) for share in np.linspace(0.05, 1.0, 951)]
    rows = np.arange(len(scores))
    loss = [-smoothed(a * regression + b * scores, 0.0)[rows, answers].mean() for a, b in pairs]
    return pairs[int(np.argmin(loss))] if loss[-1] - min(loss) >= 0.001 else pairs[-1]


def figures(name: str, log_p: Array, answers: Places) -> HeadFigures:
    """Return the figures of distributions, computed by scikit-learn where it can."""
    p, best = np.exp(log_p), log_p.argmax(axis=1)
    return HeadFigures(
        name=name,
        log_loss=log_loss(answers, p),
        brier=float(((p - np.eye(p.shape[1])[answers]) ** 2).sum(axis=1).mean() / 2),
        accuracy=accuracy_score(answers, best),
        macro_f1=f1_score(answers, best, average="macro"),
    )


def alike(found: HeadFigures, expected: HeadFigures, *, abs: float = 1e-6) -> bool:  # noqa: A002
    """Return whether figures are equal to a tolerance."""
    return bool(vars(found) == pytest.approx(vars(expected), abs=abs))


def leaning(n: int = 60) -> tuple[Array, Places]:
    """Return normalised scores of a model that leans to the first label, and the answers."""
    honest, answers = knowing(n)
    return log_softmax(2.0 * honest + 3.0 * FIRST, axis=1), answers


def test_figures_are_those_of_rows_that_had_not_taught_it() -> None:
    """Strengths are those of least loss in a cross-validation that is written out, and figures those of other folds."""
    x, answers = leaning()
    head, fold, rows = fit_head(x + 7.0, answers, labels=THREE), dealt(answers), Inputs.of(x)
    every = np.arange(len(x))
    held_out, losses = {}, {}
    for strength in (0.0, 1.0, 4.0, 16.0, 64.0, 256.0):
        found = np.empty_like(x)
        for k in range(5):
            taught, judged = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            model = Design(rows.take(taught), answers[taught], label_names=THREE).model({"labels": strength})
            found[judged] = model.log_proba(rows.take(judged))
        held_out[strength] = found
        losses[strength] = -at_best_temperature(found, answers)[0][every, answers]
    best = min(losses, key=lambda strength: losses[strength].mean())
    assert head.strengths == {"labels": best}
    a, b = pool_weights(held_out[best], x, answers)
    final = Design(rows, answers, label_names=THREE).model({"labels": best}).log_proba(rows)
    assert head.transform(x) == pytest.approx(smoothed(a * final + b * x, 0.0), abs=1e-2)
    together, scaled = np.empty_like(x), np.empty_like(x)
    for k in range(5):
        rest, judged = fold != k, fold == k
        own = min(losses, key=lambda strength: losses[strength][rest].mean())
        a, b = pool_weights(held_out[own][rest], x[rest], answers[rest])
        together[judged] = smoothed(a * held_out[own][judged] + b * x[judged], 0.0, n=len(x))
        _, temperature = at_best_temperature(x[rest], answers[rest])
        scaled[judged] = smoothed(x[judged], math.log(temperature), n=len(x))
    assert head.held_out_logprobs == pytest.approx(together, abs=1e-2)
    assert alike(of(head, "fitted"), figures("fitted", together, answers), abs=2e-3)
    assert alike(of(head, "as scored"), figures("as scored", x, answers))
    assert alike(of(head, "temperature"), figures("temperature", scaled, answers), abs=2e-3)


@pytest.mark.parametrize("kind", ["temperature", "fitted"])
def test_a_head_keeps_the_held_out_distribution_of_every_row(kind: str) -> None:
    """Figures, losses and gain are those of the held-out distributions, which sum to 1."""
    x, answers = leaning() if kind == "fitted" else (3.0 * knowing(60)[0], knowing(60)[1])
    head = fit_head(x, answers, labels=THREE)
    assert head.kind == kind
    assert head.held_out_logprobs is not None
    assert head.held_out_losses is not None
    assert alike(of(head, kind), figures(kind, head.held_out_logprobs, answers))
    np.testing.assert_allclose(np.exp(head.held_out_logprobs).sum(axis=1), 1.0)
    np.testing.assert_array_equal(head.held_out_losses, -head.held_out_logprobs[np.arange(60), answers])
    assert head.gain == of(head, "as scored").log_loss - of(head, kind).log_loss
    assert heads()["as scored"].held_out_losses is None


def sure_where_wrong(said: Places, answers: Places) -> Array:
    """Return scores of a model that is far too sure where it is wrong, and hardly decided elsewhere."""
    return np.eye(3)[said] * np.where(said != answers, 20.0, 0.001)[:, None]


def lower_accuracy() -> tuple[Array, Places, Array]:
    """Return rows whose scores are right in nine of ten rows, and features that know less, honestly."""
    answers = np.arange(150) % 3
    said = np.where(np.arange(150) % 10 == 0, (answers + 1) % 3, answers)
    rng = np.random.default_rng(0)
    return sure_where_wrong(said, answers), answers, np.eye(3)[answers] + rng.normal(scale=0.8, size=(150, 3))


def lower_macro_f1() -> tuple[Array, Places, Array]:
    """Return rows whose scores alone know a rare label, and a feature that tells the others apart."""
    rng = np.random.default_rng(0)
    answers = np.where(np.arange(150) % 10 == 0, 2, np.arange(150) % 2)
    said = np.where((answers < 2) & (rng.random(150) < 0.25), 1 - answers, answers)
    told = np.where(answers == 2, rng.integers(2, size=150), answers)
    return sure_where_wrong(said, answers), answers, 1.0 * told[:, None]


@pytest.mark.parametrize(
    ("rows", "named"),
    [(lower_accuracy(), "accuracy"), (lower_macro_f1(), "macro F1")],
    ids=["accuracy", "F1"],
)
def test_a_better_loss_does_not_excuse_a_worse_figure(rows: tuple[Array, Places, Array], named: str) -> None:
    """A regression of lower loss is refused if its accuracy or macro F1 is lower by more than its error."""
    scored, answers, features = rows
    head = fit_head(scored, answers, labels=THREE, features=features)
    assert of(head, "fitted").log_loss < of(head, "temperature").log_loss - 0.05
    assert head.kind == "temperature"
    said = f" The regression was not taken: its {named} is lower by more than a standard error."
    assert head.reason.endswith(said)


@pytest.mark.parametrize("row", [3, 9, 15, 41, 303])
def test_one_row_of_many_does_not_refuse_it(row: int) -> None:
    """A regression that loses one right answer of 500, and half of the log loss, is taken."""
    rng = np.random.default_rng(0)
    answers = np.arange(500) % 2
    logit = (2.0 * answers - 1.0) * rng.uniform(1.0, 2.0, size=500) + 3.0
    logit = np.where(answers == 0, np.minimum(logit - 3.0, -0.5) * 0.05, logit)
    logit[row] = 0.001
    scored = np.stack([np.zeros(500), logit], axis=1)
    head = fit_head(scored, answers, labels=["no", "yes"])
    assert of(head, "fitted").accuracy == pytest.approx(of(head, "as scored").accuracy - 1 / 500)
    assert head.kind == "fitted"


def test_equal_calls_agree_and_another_seed_deals_again() -> None:
    """Equal calls give equal heads, the default is seed 0, and another seed deals other folds."""
    rows = leaning()
    first, again, other = (
        fit_head(*rows, labels=THREE, rng=rng) for rng in (None, np.random.default_rng(0), 1)
    )
    assert first.describe() == again.describe()
    assert first.transform(rows[0]).tolist() == again.transform(rows[0]).tolist()
    assert of(other, "as scored") == of(first, "as scored")
    assert of(other, "fitted") != of(first, "fitted")


def test_a_label_that_no_row_has_is_named() -> None:
    """What a head cannot learn is said in its reason; distributions over the labels have a share of each."""
    rows = halves(60, seed=3)
    named = [*LABELS, "never", "nowhere"]
    padded = np.column_stack([rows.logprobs, np.full((60, 2), -9.0)])
    head = fit_head(padded, rows.answers, labels=named)
    assert head.reason.endswith(
        " No labelled row has the label never, nowhere, so that it could not be learned."
    )
    shares = np.full((60, len(named)), 0.01)
    shares[np.arange(60), rows.answers] = 1.0
    shares /= shares.sum(axis=1, keepdims=True)
    for other in (fit_head(padded, shares, labels=named), fit(rows)):
        assert "No labelled row" not in other.reason


def test_a_head_tells_why() -> None:
    """The description holds kind, blocks, rows, gain, reason and figures as JSON; a head is immutable."""
    head = heads()["labels + features + text"]
    scored, taken = of(head, "as scored"), of(head, "fitted")
    assert head.reason == (
        f"On held-out rows log loss goes from {scored.log_loss:.3f} to {taken.log_loss:.3f} and accuracy from "
        f"{scored.accuracy:.3f} to {taken.accuracy:.3f}."
    )
    told = json.loads(json.dumps(head.describe()))
    assert (told["kind"], told["title"]) == ("fitted", "labels + features + text")
    assert list(told["strengths"].items()) == list(head.strengths.items())
    assert (told["n_rows"], told["gain"], told["reason"]) == (80, head.gain, head.reason)
    assert [HeadFigures(**one) for one in told["figures"]] == list(head.figures)
    assert [one.name for one in head.figures] == KINDS
    with pytest.raises(dataclasses.FrozenInstanceError):
        head.kind = "temperature"  # type: ignore[misc]
    assert "coefficients" not in repr(head)


# Another mix of labels


def shifted(n: int, mix: list[float], *, seed: int = 0) -> tuple[Array, Places]:
    """Return rows of a given mix of labels whose true distributions are known."""
    rng = np.random.default_rng(seed)
    answers = rng.choice(3, size=n, p=mix)
    seen = 1.5 * np.eye(3)[answers] + rng.normal(size=(n, 3))
    return log_softmax(1.5 * seen, axis=1), answers  # the posterior under equal frequencies


def test_a_head_for_another_mix_of_labels_knows_it() -> None:
    """A head with `label_mix` has nearly the true posterior's log loss on rows of that mix."""
    mix = [0.8, 0.15, 0.05]
    x, answers = shifted(400, [1 / 3] * 3)
    asked, truth = shifted(4000, mix, seed=1)
    best = log_loss(truth, np.exp(log_softmax(asked + np.log(mix), axis=1)))
    plain = fit_head(x + 2.0 * FIRST, answers, labels=THREE)
    head = fit_head(x + 2.0 * FIRST, answers, labels=THREE, label_mix=mix)
    with_mix, without = (log_loss(truth, np.exp(one.transform(asked + 2.0 * FIRST))) for one in (head, plain))
    assert with_mix < best + 0.03
    assert without > best + 0.1
    assert (head.kind, head.figures, head.temperature) == (plain.kind, plain.figures, plain.temperature)


def test_the_shift_is_wanted_over_observed() -> None:
    """A head shifts by the ratio of `label_mix` to the observed shares, in any form of the mix."""
    x, answers = shifted(60, [0.6, 0.3, 0.1])
    plain = fit_head(x, answers, labels=THREE)
    observed = (np.bincount(answers) + 1 / 3) / 61
    expected = log_softmax(plain.transform(x) + np.log([0.2, 0.3, 0.5]) - np.log(observed), axis=1)
    for mix in ((2, 3, 5), {"c": 0.5, "a": 0.2, "b": 0.3}, np.array([20, 30, 50])):
        head = fit_head(x, answers, labels=THREE, label_mix=mix)
        assert head.transform(x) == pytest.approx(expected)
        assert not head.changes_nothing
        assert head.digest != plain.digest
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
    with pytest.raises(ConfigurationError, match=said):
        fit_head(*shifted(30, [1 / 3] * 3), labels=THREE, label_mix=mix)


# Few rows, and odd ones


@pytest.mark.parametrize(("n", "said"), [(1, "1 labelled row is"), (9, "9 labelled rows are")])
def test_few_rows_teach_nothing(n: int, said: str) -> None:
    """With fewer than ten rows the scores are left alone, without figures, and the reason says so."""
    rows = halves(n)
    head = fit(rows, texts=True, features=True)
    assert (head.kind, head.figures, head.gain, head.n_rows) == ("as scored", (), 0.0, n)
    assert head.reason == f"{said} too few to learn from; at least 10 are needed."
    assert says(head, rows) == pytest.approx(rows.logprobs)
    assert [one.name for one in fit(halves(10)).figures] == KINDS


def test_labels_of_few_rows_are_not_ruled_out() -> None:
    """Labels with one row or none do not stop a fit, and keep at least their share of one row."""
    answers = np.where(np.arange(60) == 0, 2, np.arange(60) % 2)
    head = fit(dataclasses.replace(halves(60), answers=answers), features=True)
    assert all(math.isfinite(one.log_loss) for one in head.figures)
    assert head.kind == "fitted"
    assert (np.exp(says(head)) >= (1 - 1e-9) / 4 / 61).all()


@pytest.mark.parametrize("text", ["", "the same words"])
def test_texts_and_answers_that_are_all_alike_are_read(text: str) -> None:
    """If all texts and answers are alike, the head gives that label, and every probability is above 0."""
    rows = dataclasses.replace(
        halves(30), answers=np.full(30, 2), texts=[text] * 30, features=np.ones((30, 2))
    )
    head = fit(rows, texts=True, features=True)
    found = np.exp(says(head, dataclasses.replace(FRESH, features=np.full((200, 2), 1e50))))
    assert (found.argmax(axis=1) == 2).all()
    assert (found > 0.0).all()


def test_the_length_of_many_features_tells_nothing() -> None:
    """A row ten times as far from the mean says the same if it has many features, and more if it has few."""
    answers = np.arange(60) % 3
    rng = np.random.default_rng(0)
    for width, is_alike in ((40, True), (4, False)):
        features = np.eye(3)[answers] @ rng.normal(size=(3, width)) + rng.normal(size=(60, width))
        head = fit_head(np.zeros((60, 3)), answers, labels=THREE, features=features)
        assert head.uses_features
        mean = features.mean(axis=0)
        far = mean + 10.0 * (features - mean)
        near_said, far_said = (head.transform(np.zeros((60, 3)), features=rows) for rows in (features, far))
        assert np.allclose(near_said, far_said, atol=1e-6) == is_alike


@pytest.mark.parametrize("useless", [np.full((60, 3), 7.0), np.zeros((60, 0)), np.full((60, 1), 1e100)])
def test_columns_that_do_not_vary_add_nothing(useless: Array) -> None:
    """Constant, missing or huge features give the figures of the regression without features."""
    rows = halves(60)
    head = fit_head(rows.logprobs, rows.answers, labels=LABELS, features=useless)
    assert of(head, "fitted").log_loss == pytest.approx(of(fit(rows), "fitted").log_loss, abs=0.02)


def test_many_labels_of_one_row_each_are_told_apart() -> None:
    """For 300 labels of one row each the weights are learned, names decide, and no label is ruled out."""
    scored = np.random.default_rng(0).normal(size=(300, 300)) + 3.0 * np.eye(300)
    labels = [f"label {number}" for number in range(300)]
    texts = [label.replace("label", "text") for label in labels]
    head = fit_head(scored, np.arange(300), labels=labels, texts=texts)
    assert dict(head.strengths) == {"labels": 0.0, "text": 0.0}
    found = np.exp(head.transform(scored, texts))
    assert accuracy(found, np.arange(300)) > accuracy(scored, np.arange(300)) + 0.2
    assert found.min() >= (1 - 1e-9) / 300 / 301


# Distributions


NUMBERS = st.floats(-1e100, 1e100) | st.floats(-50.0, 0.0)


@settings(max_examples=25)
@given(
    logprobs=arrays(np.float64, (3, 4), elements=NUMBERS),
    features=arrays(np.float64, (3, 32), elements=NUMBERS),
    texts=st.lists(st.text(max_size=30), min_size=3, max_size=3),
)
def test_any_rows_have_distributions(logprobs: Array, features: Array, texts: list[str]) -> None:
    """Every head returns normalised and finite log-probabilities."""
    for head in heads().values():
        found = head.transform(logprobs, texts, features=features)
        assert found.shape == (3, 4)
        assert np.isfinite(found).all()
        assert np.exp(found).sum(axis=1) == pytest.approx(1.0)


def test_rows_are_normalised_first() -> None:
    """A constant added to a row's scores changes nothing, and each row is transformed alone."""
    shift = np.random.default_rng(0).normal(scale=9.0, size=(200, 1))
    for head in heads().values():
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


def test_what_a_head_needs_is_asked_for() -> None:
    """Missing texts, and rows or scores of other sizes, raise ConfigurationError."""
    x, texts, features = FRESH.logprobs, FRESH.texts, FRESH.features
    every = heads()["labels + features + text"]
    with pytest.raises(ConfigurationError, match=r"Expected texts for a head .*labels \+ features \+ text"):
        every.transform(x, features=features)
    with pytest.raises(
        ConfigurationError, match=r"Expected features for a head .*labels \+ features \+ text"
    ):
        every.transform(x, texts)
    with pytest.raises(ConfigurationError, match="features of 32 columns, as fitted, got 2"):
        every.transform(x, texts, features=features[:, :2])
    for head in heads().values():
        with pytest.raises(ConfigurationError, match="over 4 labels, got 3"):
            head.transform(x[:, :3], texts, features=features)
        with pytest.raises(ConfigurationError, match="a text for each of 200 rows, got 199"):
            head.transform(x, texts[1:], features=features)
    assert heads()["labels"].transform(x).tolist() == heads()["labels"].transform(x, texts).tolist()


def shares(n: int) -> Array:
    """Return distributions of n rows that depend on the first word, of which every third row has another."""
    return np.where(np.arange(n)[:, None] % 3 == 0, [[0.7, 0.2, 0.1]], [[0.05, 0.05, 0.9]])


def test_distributions_are_learned_as_they_are() -> None:
    """A head on texts alone gives the probabilities that it was taught, whatever the shares of the labels."""
    texts = [f"{'red' if place % 3 == 0 else 'blue'} thing" for place in range(150)]
    head = fit_head(np.zeros((150, 3)), shares(150), labels=THREE, texts=texts)
    found = np.exp(head.transform(np.zeros((2, 3)), ["red thing", "blue thing"]))
    assert head.title == "text"
    assert not head.uses_model
    np.testing.assert_allclose(found, [[0.7, 0.2, 0.1], [0.05, 0.05, 0.9]], atol=0.02)


@pytest.mark.parametrize(
    "targets",
    [shares(12) * 2.0, -shares(12), shares(12)[:, :2], shares(11), np.ones((12, 3), dtype=np.intp)],
)
def test_targets_that_are_no_distributions_are_refused(targets: Any) -> None:
    """Rows that do not add up to 1, negative shares, other shapes and whole numbers."""
    with pytest.raises(ConfigurationError, match="Expected a distribution over 3 labels for each of 12 rows"):
        fit_head(np.zeros((12, 3)), targets, labels=THREE, texts=["text"] * 12)
