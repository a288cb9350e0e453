"""`CalibrantClassifier`, the estimator: fit, predict, save and load, and what it reads from X and y."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from calibrant.calibration._calibrators import ConfidenceCalibrator, select_calibrator
from calibrant.calibration._thresholds import suggest_thresholds
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import FloatArray, IndexArray, Outcome, Prediction
from calibrant.core._predictor import Limits, OnPrediction, Predictor
from calibrant.core._reported import without_none
from calibrant.core._rows import Example
from calibrant.core._settings import DEFAULT_MODEL, ModelSettings
from calibrant.core._task import Task
from calibrant.evaluation._evaluator import open_cache
from calibrant.evaluation._figures import measurements_of
from calibrant.heads._head import Head
from calibrant.heads._tuned import Measurements, Tuned, thresholds_of
from calibrant.inference._base import BasePredictor, run_sync
from calibrant.inference._classifier import Classifier, tuned_of
from calibrant.inference._heads import head_of, held_out_predictions
from calibrant.inference._methods import Scoring
from calibrant.inference._models import ModelLike, may_be_withheld, open_client, without_secrets
from calibrant.inference._text_vectors import Embeddings, head_embedding
from calibrant.optimization._prompt_parts import PromptFormat, PromptParts
from calibrant.runs._journal import PredictionJournal
from calibrant.runs._rows import UNKNOWN, SavedRows, row_record
from calibrant.tuned._open import open_tuned
from calibrant.tuned._task_record import without_credentials

_INSTRUCTION: Final = "Classify the text."

_PredictorT = TypeVar("_PredictorT", bound=BasePredictor)
# Rows that the model is asked about by default. On three tasks of 2 to 6 labels the embedded model's head gained 0.15,
# 0.06 and 0.01 accuracy from 100 to 300 rows, and 0.02 from 300 to 480 on the hardest.
_ROWS: Final = 500
_SEARCH_CALLS: Final = 1200  # 600 for the search of a prompt, the rest for heads and tests
_TESTED: Final = 5  # one row in so many tests the prompts of a search
SHOWN: Final = 5  # values in a message


class CalibrantClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Text classifier for scikit-learn: a language model and a head that is learned from labelled texts.

    `fit` asks the model once about each labelled text, about 500 of them at most, and learns a head from the answers
    (`calibrant.heads.fit_head`, chosen on held-out rows). It searches no prompt unless `search` is True.

    `X` is a list, array, Series or data-frame column of texts, or has several columns: these become one text, a line
    ``name: value`` for each, or the value alone where columns have no names. Rows of X and y belong together by
    position, whatever their index says. `y` holds texts, whole numbers or truth values.

    A pickle holds no credentials: of `options`, those that may be one are left out, and worker processes find keys in
    the environment. Models are opened when they are first used, again in every process.

    Parameters
    ----------
    model : str, callable or Client, default "local/smollm2-135m"
        See `calibrant.inference.open_client`. Only a name or a function can be cloned and pickled.
    labels : sequence or mapping, optional
        The classes, or a mapping from class to the name that the model reads, such as ``{0: "ham", 1: "spam"}``. By
        default those in `y`, under their own names. Classes that `y` lacks keep a column.
    prompt : str, optional
        The system prompt. By default one that names the labels and the form of the answer.
    field : str, default "label"
        JSON path of the label in an answer.
    max_calls : int, optional
        Most model calls of `fit`. By default one for each of 500 texts at most (more calls a text with ``sampled``
        scoring), and 1,200 with `search`. Of more texts some are drawn, stratified by class.
    search : bool, default False
        True searches for a better prompt first (`calibrant.optimize`), on some of the rows.
    head : {"auto", "off"}, default "auto"
        ``off`` learns nothing from the texts and asks nothing in `fit`: the model's own distributions count.
    embeddings : str, EmbeddingModel or bool, default True
        Gives the head a vector of each text beside its words, as `calibrant.Classifier.fit` takes it; False does
        without.
    scoring : {"exact", "decode", "sampled"}, optional
        See `calibrant.Classifier`.
    options : mapping, optional
        Handed to the provider, such as ``api_base``; see `calibrant.inference.open_client`.
    concurrency : int, optional
        Calls in flight at most.
    cache : str or Path, optional
        SQLAlchemy URL or SQLite file of finished answers, so that cross-validation pays once for a text. By default
        none.
    random_state : int, RandomState instance or None, default None
        Draws the texts to ask about, and seeds the search. None is seed 0.

    Attributes
    ----------
    classes_ : ndarray of shape (L,)
        The classes, sorted; the columns of `predict_proba`.
    tuned_ : calibrant.tuned.Tuned
        All that was found, without credentials; `save` writes it.
    prompt_ : str
        The prompt that the model is asked under.
    head_ : Head or None
        What was learned; its ``title``, ``reason`` and ``figures`` say how good it is on held-out rows.
    calibrator_ : ConfidenceCalibrator or None
        Fitted on held-out predictions of the labelled rows, from the largest probability to the share of right
        labels: the ``calibrated`` confidence of the bundle's service.
    n_calls_ : int
        Model calls that `fit` made.
    n_features_in_, feature_names_in_ : int, ndarray of str
        Columns of X, if it has two dimensions, and their names.

    Notes
    -----
    A row that the model does not answer legally, or whose call fails after retries, gets equal probabilities, so that
    `predict` returns the first class, and a warning counts such rows. A fault that every call would meet raises
    `calibrant.core.ProviderError`.

    Examples
    --------
    >>> from calibrant.sklearn import CalibrantClassifier
    >>> from calibrant.testing import FakeClient, fake_model
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9), "barks": ("cat", 0.6)}, field="label")
    >>> texts = [f"it {verb} {n}" for n in range(10) for verb in ("purrs", "barks")]
    >>> with fake_model("fake/biased", fake) as name:
    ...     classifier = CalibrantClassifier(name).fit(texts, ["cat", "dog"] * 10)
    ...     print(classifier.predict(["who barks?", "who purrs?"]), classifier.n_calls_)
    ['dog' 'cat'] 20
    """

    def __init__(  # noqa: PLR0913  (keyword-only options)
        self,
        model: ModelLike = DEFAULT_MODEL,
        *,
        labels: Sequence[Any] | Mapping[Any, str] | None = None,
        prompt: str | None = None,
        field: str = "label",
        max_calls: int | None = None,
        search: bool = False,
        head: Literal["auto", "off"] = "auto",
        embeddings: Embeddings = True,
        scoring: Scoring | None = None,
        options: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        cache: str | Path | None = None,
        random_state: Any = None,  # noqa: ANN401 (int, RandomState or None)
    ) -> None:
        self.model = model
        self.labels = labels
        self.prompt = prompt
        self.field = field
        self.max_calls = max_calls
        self.search = search
        self.head = head
        self.embeddings = embeddings
        self.scoring = scoring
        self.options = options
        self.concurrency = concurrency
        self.cache = cache
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:  # noqa: ANN401, N803
        """Ask the model about labelled texts, and learn a head and a calibrator from its answers.

        Parameters
        ----------
        X : array-like of shape (n,) or (n, columns)
            Texts, or columns that make one text.
        y : array-like of shape (n,)
            Their classes, of two or more kinds.

        Raises
        ------
        ConfigurationError
            A parameter is wrong, a text or class is missing, there is one class only, the lengths differ, or the model
            gives no distributions.
        ProviderError
            A fault that every call would meet.
        """
        self._check_parameters()
        texts = self._texts(X, reset=True)
        classes, names, codes = read_classes(y, len(texts), self.labels)
        labels = LabelSet(list(names.values()))
        seed = int(check_random_state(self.random_state or 0).randint(2**31 - 1))
        truth = [names[value] for value in classes[codes].tolist()]
        order = stratified_order(codes, np.random.default_rng(seed))
        rows = [Example(input=texts[place], answer=truth[place]) for place in order.tolist()]
        task = self._task(labels)
        with ExitStack() as stack:
            classifier = self._open(task)
            limited = stack.enter_context(self._limited(classifier))
            budget = Budget.of(limited, self.max_calls, n_rows=len(rows), search=self.search)
            calls, learned = 0, Learned()
            if self.search:
                prompt, answers = better_prompt(limited, task, rows, budget, seed=seed)
                task, classifier = replace(task, prompt=prompt), classifier.with_prompt(prompt)
                limited = limited.with_prompt(prompt)
                calls = len(answers) * budget.calls_per_row
                limited.use_journal(answers)
            if self.head == "auto":
                # In the process a row is one call, checks aside.
                max_requests = None if limited.in_process else budget.left(calls)
                limited = limited.with_limits(replace(limited.limits, max_requests=max_requests))
                learned = Learned.of(limited, _of_texts(rows, budget.rows), embeddings=self.embeddings)
                classifier.head = learned.head
            self.n_calls_ = calls + (limited.meter.rows if limited.in_process else limited.meter.requests)
        if not isinstance(self.model, str):  # a bundle names the function, and does not ask another model
            task = replace(task, model=task.model.model_copy(update={"name": classifier.name}))
        self._set_classes(classes, names, labels)
        tuned = tuned_of(
            classifier,
            task,
            calibrator=learned.calibrator,
            thresholds=learned.thresholds(),
            measurements=learned.measurements(labels),
        )
        self.tuned_ = replace(tuned, tasks=(without_credentials(task),))
        self._opened: tuple[int, BasePredictor] = (os.getpid(), classifier)
        return self

    @property
    def prompt_(self) -> str:
        """The prompt that the model is asked under."""
        return self.tuned_.prompt

    @property
    def head_(self) -> Head | None:
        """Head that was learned from labelled texts."""
        return self.tuned_.head

    @property
    def calibrator_(self) -> ConfidenceCalibrator | None:
        """Calibrator of the confidence in the predicted class."""
        return self.tuned_.calibrator

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: ANN401, N803
        """Return the probability of every class, shape (n, L), as the bundle's service gives it.

        Parameters
        ----------
        X : array-like of shape (n,) or (n, columns)
            Texts, or the columns that were fitted.

        Raises
        ------
        NotFittedError
            scikit-learn's, before `fit`.
        ConfigurationError
            A text is missing, or the model gives no distributions.
        ProviderError
            A fault that every call would meet, or nothing but failures.
        """
        check_is_fitted(self)
        texts = self._texts(X, reset=False)
        n_classes = len(self._columns)
        probabilities = np.full((len(texts), n_classes), 1.0 / n_classes)
        failed: list[Prediction] = []

        def take(row: int, prediction: Prediction) -> None:
            distribution = prediction.distribution
            if distribution is None or prediction.label is None:
                failed.append(prediction)
            else:
                probabilities[row] = distribution.probabilities[self._columns]

        with self._limited(self._predictor()) as limited:
            answer_texts(limited, texts, take)
        report_failures(failed, len(texts))
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: ANN401, N803
        """Return the most probable class of each text, shape (n,); of equally probable ones the first.

        Parameters
        ----------
        X : array-like of shape (n,) or (n, columns)
            Texts, or the columns that were fitted.

        Raises
        ------
        NotFittedError, ConfigurationError, ProviderError
            As `predict_proba`.
        """
        best: NDArray[Any] = self.predict_proba(X).argmax(axis=1)
        return self.classes_.take(best)

    def save(self, path: str | Path) -> None:
        """Write a bundle, which `calibrant.load`, `calibrant serve` and `load` open.

        Figures and suggested thresholds in it come from held-out predictions of the labelled rows. It holds no
        credentials, and no texts but the words of a head that looks at them.

        Parameters
        ----------
        path : str or Path
            Its folder; must not exist, or be empty.

        Raises
        ------
        NotFittedError
            scikit-learn's, before `fit`.
        ConfigurationError
            The folder is taken.
        StateError
            It cannot be written.
        """
        check_is_fitted(self)
        self.tuned_.save(path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: ModelLike | None = None,
        labels: Mapping[Any, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the fitted classifier of a bundle.

        Parameters
        ----------
        path : str or Path
            The folder that `save` or `calibrant export` wrote, of one model and one label a text.
        model : str, callable or Client, optional
            Replaces the bundle's model, for weights at another place or for a function.
        labels : mapping, optional
            From class to label, such as ``{0: "ham", 1: "spam"}``. A bundle knows the labels alone, which are the
            classes by default.
        options : mapping, optional
            Credentials, and settings that depend on the machine; see `calibrant.load`.

        Raises
        ------
        StateError
            The folder holds no bundle, or a damaged one.
        ConfigurationError
            The bundle asks several models, answers hold several labels, or `labels` are others.
        """
        tuned = Tuned.load(path)
        task = tuned.task
        if tuned.plan is not None or task.sections or tuned.labels.holds_several:
            raise ConfigurationError(
                f"{path}: expected a bundle of one model and one label a text, got another: use calibrant.load."
            )
        names = dict(zip(tuned.labels, tuned.labels, strict=True)) if labels is None else dict(labels)
        if sorted(names.values()) != sorted(tuned.labels):
            raise ConfigurationError(
                f"{path}: expected a class for each of the labels {list(tuned.labels)[:SHOWN]} "
                f"({len(tuned.labels)} in all), got {names!r:.80}: correct labels."
            )
        base = without_none({"api_base": task.model.api_base})
        found = cls(
            task.model.name if model is None else model,
            labels=names,
            prompt=tuned.prompt,
            field=tuned.field,
            scoring=task.model.scoring,
            options={**task.model.options, **base, **(options or {})} or None,
        )
        found.tuned_ = tuned
        found.n_calls_ = 0
        found._set_classes(np.unique(np.array(list(names))), names, tuned.labels)
        return found

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: FBT002 (scikit-learn's)
        """Return the parameters by name; printed, which notebooks do, they show no credentials."""
        if isinstance(self.options, Mapping) and not isinstance(self.options, _Options):
            self.options = _Options(self.options)
        params: dict[str, Any] = super().get_params(deep)
        return params

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags: texts, or columns of text and numbers, without missing values."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True  # `one_d_array` would say that columns are not taken
        tags.classifier_tags.poor_score = True  # on points in a plane, which are no texts
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a pickle, without the open model and options that may be credentials."""
        state: dict[str, Any] = {**super().__getstate__()}
        state.pop("_opened", None)
        if self.options:
            state["options"] = without_secrets(self.options)[0]
        return state

    def _check_parameters(self) -> None:
        calls = self.max_calls
        if calls is not None and not (isinstance(calls, int | np.integer) and calls >= 1):
            raise ConfigurationError(
                f"Expected max_calls as a whole number from 1, got {calls!r:.80}: None is the default."
            )
        if isinstance(self.labels, set | frozenset):
            raise ConfigurationError(
                "Expected labels as a list or a mapping, got a set: list them, in the same order in every process."
            )
        if self.head not in {"auto", "off"}:
            raise ConfigurationError(f"Expected head 'auto' or 'off', got {self.head!r:.80}.")
        if not isinstance(self.cache, str | Path | None):
            raise ConfigurationError(
                f"Expected cache as a file or URL, got {self.cache!r:.80}: name its file."
            )

    def _texts(self, X: Any, *, reset: bool) -> list[str]:  # noqa: ANN401, N803
        """Return the text of each row; with `reset`, remember columns and their names."""
        values = text_column(X)
        if values is not None:
            columns = getattr(self, "n_features_in_", 1)
            if reset:
                for name in ("n_features_in_", "feature_names_in_"):
                    self.__dict__.pop(name, None)
            elif columns > 1:
                raise ConfigurationError(
                    f"Expected X with the {columns} columns that were fitted, got single texts: Reshape your data, or "
                    "pass the same columns."
                )
            return checked_texts(values)
        table = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False)
        refuse_missing(table, "X", "a value")
        n_columns = table.shape[1]
        names = [f"{name}: " for name in getattr(self, "feature_names_in_", ())]
        names = names if names and n_columns > 1 else [""] * n_columns
        return ["\n".join(map("{}{}".format, names, row)) for row in table.tolist()]

    def _set_classes(self, classes: NDArray[Any], names: Mapping[Any, str], labels: LabelSet) -> None:
        self.classes_ = classes
        label_of_class = [names[value] for value in classes.tolist()]
        self._columns = np.array(list(map(labels.labels.index, label_of_class)))

    def _task(self, labels: LabelSet) -> Task:
        options: dict[str, Any] = dict(self.options or {})
        prompt = self.prompt
        if prompt is None:
            parts = PromptParts(instruction=_INSTRUCTION, form=True)
            prompt = PromptFormat(labels, field=self.field).render(parts)
        model = DEFAULT_MODEL
        if isinstance(self.model, str):
            model = self.model
        base = options.pop("api_base", None)
        settings = ModelSettings(name=model, api_base=base, scoring=self.scoring, options=options)
        return Task(name="scikit-learn", labels=labels, prompt=prompt, field=self.field, model=settings)

    def _open(self, task: Task) -> Classifier:
        client = None
        if not isinstance(self.model, str):
            client = open_client(self.model)
        return Classifier.from_task(task, client=client)

    def _predictor(self) -> BasePredictor:
        """Return the fitted predictor; open it if this process has not done so."""
        if "_opened" in vars(self) and self._opened[0] == os.getpid():
            return self._opened[1]
        withheld = {name for names in self.tuned_.tasks[0].left_out.values() for name in names}
        given = self.options or {}
        options = {name: given[name] for name in given if name in withheld or may_be_withheld(name)}
        model = None
        if self.model != self.tuned_.task.model.name:
            model = self.model
        self._opened = os.getpid(), open_tuned(self.tuned_, model=model, options=options)
        return self._opened[1]

    @contextmanager
    def _limited(self, predictor: _PredictorT) -> Iterator[_PredictorT]:
        """Yield a copy of a predictor with the estimator's concurrency and cache, and counters of its own."""
        limited = predictor.with_limits(Limits(concurrency=self.concurrency))
        if self.cache is None:
            yield limited
            return
        with open_cache(self.cache) as journal:
            limited.use_journal(journal)
            yield limited


class _Options(dict[str, Any]):
    """Options of an estimator, which are printed without credentials."""

    def __repr__(self) -> str:
        kept, names = without_secrets(self)
        shown = dict.fromkeys(names, "(hidden)")
        shown.update(kept)
        return repr(shown)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Largest numbers of calls and rows of a fit.

    Attributes
    ----------
    calls : int or None
        Most calls; None sets no limit but that of the rows.
    calls_per_row : int
        Calls that a row takes.
    rows : int
        Most rows to ask about, those of the search included.
    search : int
        Most rows that the search may ask, apart from the test rows.
    """

    calls: int | None
    calls_per_row: int
    rows: int
    search: int

    @classmethod
    def of(cls, classifier: Classifier, calls: int | None, *, n_rows: int, search: bool) -> Budget:
        each = int(classifier.describe()["method"].get("samples", 1))
        affordable = (_SEARCH_CALLS if search else _ROWS) if calls is None else calls // each
        if not affordable:
            raise ConfigurationError(
                f"Expected max_calls of at least {each}, which one text takes, got {calls}: raise it."
            )
        rows = min(n_rows, affordable * 5 // 12 if search else affordable)
        # A test row is asked about under two prompts, every other row under the better one at the end.
        return cls(calls=calls, calls_per_row=each, rows=rows, search=affordable - rows - rows // _TESTED)

    def left(self, calls: int) -> int | None:
        if self.calls is None:
            return None
        return max(1, self.calls - calls)


def better_prompt(
    classifier: Classifier,
    task: Task,
    rows: Sequence[Example],
    budget: Budget,
    *,
    seed: int,
) -> tuple[str, PredictionJournal]:
    """Search for a better prompt; return it and all answers of the search."""
    from calibrant.optimization._run import optimize  # noqa: PLC0415 (loads gepa)

    rows = rows[: budget.rows]
    ends = len(rows) // _TESTED, len(rows) * 3 // _TESTED  # any part of the rows is stratified
    task = replace(
        task,
        test=tuple(rows[: ends[0]]),
        validation=tuple(rows[ends[0] : ends[1]]),
        train=tuple(rows[ends[1] :]),
    )
    try:
        result = optimize(task, model=classifier, max_metric_calls=budget.search, seed=seed, embeddings=False)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"Expected max_calls that a search can do with, got one that leaves it {budget.search}: {error}"
        ) from error
    assert result.answers is not None  # noqa: S101 (every search has them)
    return result.best_prompt.prompt, result.answers


def answer_texts(predictor: Predictor, texts: Sequence[str], take: OnPrediction) -> str:
    return run_sync(predictor.feed(map(predictor.query, texts), take))


def report_failures(failed: Sequence[Prediction], n_rows: int) -> None:
    """Warn of rows without an answer; raise if the model never gives a distribution."""
    if not failed:
        return
    reasons = Counter(one.reason or "it came without log-probabilities" for one in failed)
    ((reason, _),) = reasons.most_common(1)
    if len(failed) == n_rows and all(one.outcome is Outcome.OK for one in failed):
        raise ConfigurationError(
            f"Expected distributions over the labels, got none on {n_rows} rows: {reason}. Pass scoring='sampled', or "
            "choose a model that reports log-probabilities."
        )
    warnings.warn(
        f"{len(failed)} of {n_rows} rows have no answer and equal probabilities, most often because: {reason}",
        stacklevel=3,
    )


def _of_texts(rows: Sequence[Example], most: int) -> list[Example]:
    """Return the rows that have one of the first so many different texts."""
    kept = set(islice(dict.fromkeys(row.input for row in rows), most))
    return [row for row in rows if row.input in kept]


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Head and calibrator learned from labelled rows; nothing by default.

    Attributes
    ----------
    head : Head or None
        The head that the rows support.
    calibrator : ConfidenceCalibrator or None
        Calibrator of the confidence in the head's labels, fitted on held-out predictions.
    held_out : SavedRows or None
        Predictions on the rows, each by a head that was fitted on other rows.
    """

    head: Head | None = None
    calibrator: ConfidenceCalibrator | None = None
    held_out: SavedRows | None = None

    def thresholds(self) -> dict[str, Any]:
        """Return suggested thresholds as in a calibration, or the reason for none."""
        if self.held_out is None:
            return thresholds_of({"no_thresholds": "no labelled rows"})
        found = self.held_out
        known = ~np.isnan(found.confidence) & (found.correct != UNKNOWN)
        try:
            suggestion = suggest_thresholds(found.confidence[known], found.correct[known])
        except ConfigurationError as error:  # too few right answers
            return thresholds_of({"no_thresholds": str(error)})
        return thresholds_of({"thresholds": asdict(suggestion)})

    def measurements(self, labels: LabelSet) -> Measurements:
        """Return figures and distribution of the held-out predictions; none without labelled rows."""
        if self.held_out is None:
            return Measurements()
        return measurements_of(self.held_out, labels, thresholds=self.thresholds())

    @classmethod
    def of(cls, classifier: Classifier, rows: Sequence[Example], *, embeddings: Embeddings | None) -> Learned:
        """Ask the model about labelled rows, within the classifier's limits, and learn from the answers.

        Raises
        ------
        ConfigurationError
            The model gives no distributions.
        ProviderError
            A fault that every call would meet.
        """
        texts = [row.input for row in rows]
        once = list(dict.fromkeys(texts))  # equal questions are paid for once
        asking = classifier.with_features(texts)
        embedding = head_embedding(
            embeddings,
            texts,
            labels=classifier.labels,
            reports_features=asking.method.keep_features,
            meter=asking.meter,
        )
        answers: list[Prediction] = []
        answer_texts(asking, once, lambda _, prediction: answers.append(prediction))
        answer_of = dict(zip(once, answers, strict=False))  # a budget may leave the last ones out
        rows = [row for row in rows if row.input in answer_of]
        texts = [row.input for row in rows]
        found = [answer_of[text] for text in texts]
        head = head_of(
            found,
            [row.answer for row in rows],
            texts,
            labels=classifier.labels,
            embedding=embedding,
            named_tokens=asking.method.named_tokens,
            meter=asking.meter,
        )
        held_out = held_out_predictions(head, found, texts)
        saved = SavedRows.of(
            row_record(index, row, one)
            for index, (row, one) in enumerate(zip(rows, held_out, strict=True))
            if one is not None and one.confidence is not None
        )
        predicted = [str(label) for label in saved.labels]
        selection = select_calibrator(saved.confidence, saved.correct, predicted=predicted, ids=saved.inputs)
        head = replace(head, held_out_losses=None, held_out_logprobs=None)
        return cls(head=head, calibrator=selection.calibrator, held_out=saved)


def stratified_order(codes: IndexArray, rng: np.random.Generator) -> IndexArray:
    """Return the rows in a random order whose first k rows are stratified by class, for every k."""
    order = rng.permutation(len(codes))
    drawn = codes[order]
    rank = np.empty(len(codes))
    for code in np.unique(codes):
        of_class = np.flatnonzero(drawn == code)
        rank[of_class] = np.arange(len(of_class)) / len(of_class)
    return order[np.argsort(rank, kind="stable")]


def read_classes(
    y: Any,  # noqa: ANN401
    n_texts: int,
    labels: Sequence[Any] | Mapping[Any, str] | None,
) -> tuple[NDArray[Any], dict[Any, str], IndexArray]:
    """Return the sorted classes, the label of every class, and the number of each row's class."""
    if y is None:
        raise ConfigurationError("CalibrantClassifier requires y to be passed, but the target y is None.")
    _refuse_single(y, "y", "classes")
    if isinstance(y, list | tuple):  # an array of texts would spell NaN out
        refuse_missing(np.array(y, dtype=object), "y", "a class")
    values = column_or_1d(y, warn=True)
    refuse_missing(values, "y", "a class")
    check_classification_targets(values)
    if len(values) != n_texts:
        raise ConfigurationError(
            f"Expected a class for each of {n_texts} texts, got {len(values)}: X and y belong together by position."
        )
    seen = np.unique(values)
    if len(seen) < 2:
        raise ConfigurationError(
            f"Expected at least two classes in y, got one class, {seen.tolist()[0]!r:.80}: there is nothing to tell "
            "apart."
        )
    if labels is None:
        names = {value: str(value) for value in seen.tolist()}
        if seen.dtype.kind in "iufb":
            warnings.warn(
                f"The model reads the classes as {', '.join(map(repr, list(names.values())[:SHOWN]))}: pass labels, a "
                "mapping from each to a name. (cross_val_predict numbers classes, in sorted order, for probabilities.)",
                stacklevel=3,
            )
    elif isinstance(labels, Mapping):
        names = dict(labels)
    else:
        names = {value: str(value) for value in np.asarray(labels).tolist()}
    unknown = [value for value in seen.tolist() if value not in names]
    if unknown:
        raise ConfigurationError(
            f"Expected classes among labels, {list(names)[:SHOWN]} ({len(names)} in all), got {unknown[0]!r:.80}: add "
            "it, or correct y."
        )
    classes = np.unique(np.array(list(names), dtype=object if values.dtype == object else None))
    return classes, names, np.searchsorted(classes, values)


def text_column(X: Any) -> NDArray[Any] | None:  # noqa: ANN401, N803
    """Return a column of texts as an array of objects; None if X has other dimensions."""
    _refuse_single(X, "X", "texts")
    if getattr(X, "ndim", len(getattr(X, "shape", (0,)))) != 1:
        return None
    values = np.asarray(X if hasattr(X, "__array__") else list(X), dtype=object)
    return values if values.ndim == 1 else None


def _refuse_single(values: Any, name: str, what: str) -> None:  # noqa: ANN401
    """Raise ConfigurationError for one text, whose characters would count as rows, and for other single values."""
    has_rows = hasattr(values, "__iter__") or hasattr(values, "__array__")
    if isinstance(values, str | bytes) or not has_rows or getattr(values, "ndim", 1) == 0:
        raise ConfigurationError(
            f"Expected a list or a column of {what} as {name}, got {values!r:.60} ({type(values).__name__}): "
            "pass a list, of one element where there is one row."
        )


def checked_texts(values: NDArray[Any]) -> list[str]:
    if not len(values):
        raise ConfigurationError("Expected at least one text in X, got none: Found array with 0 sample(s).")
    refuse_missing(values, "X", "a text")
    for place, value in enumerate(values.tolist()):
        if not isinstance(value, str):
            raise ConfigurationError(
                f"Expected texts in X, got {value!r:.80} ({type(value).__name__}) in row {place}: convert it to text. "
                "Reshape your data with X.reshape(-1, 1) if X is a column of numbers."
            )
    return [str(value) for value in values]


def refuse_missing(values: NDArray[Any], name: str, what: str) -> None:
    """Raise ConfigurationError if rows hold None, NaN or infinity."""
    if values.dtype.kind in "iubSU":
        return
    found = [_is_missing(value) for value in values.ravel()]
    missing = np.array(found, dtype=bool).reshape(values.shape)
    rows = np.flatnonzero(missing if missing.ndim == 1 else missing.any(axis=1)).tolist()
    if rows:
        shown = ", ".join(map(str, rows[:SHOWN]))
        if len(rows) > SHOWN:
            shown += ", ..."
        raise ConfigurationError(
            f"Expected {what} in every row of {name}, got None, NaN or inf in {len(rows)} of {len(values)} rows "
            f"(positions {shown}): fill them in, or leave these rows out of X and y."
        )


def _is_missing(value: object) -> bool:
    """Return True for None, NaN, infinity, and the missing values of pandas."""
    if isinstance(value, float | np.floating):
        return not math.isfinite(value)
    pandas = sys.modules.get("pandas")  # whoever has such a value has loaded it
    return value is None or (pandas is not None and (value is pandas.NA or value is pandas.NaT))
