"""Text classifier: one model with a prompt and a label set."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from calibrant.clients._retry import RetryPolicy
from calibrant.core._completion import STAND_INS, Client
from calibrant.core._errors import ConfigurationError
from calibrant.core._fingerprint import Fingerprint, asked_text
from calibrant.core._labels import LabelSet
from calibrant.core._limits import Limits
from calibrant.core._prediction import LogprobSpace
from calibrant.core._predictor import Predictor
from calibrant.core._records import Journal
from calibrant.core._settings import DemonstrationSettings, ModelSettings
from calibrant.core._task import Task
from calibrant.inference._abilities import KnownAbilities, ModelAbilities, abilities_of_client
from calibrant.inference._feed import Runner
from calibrant.inference._limits import Gate, default_concurrency, is_in_process
from calibrant.inference._methods import ModelCalls, Scoring, Tolerance, choose_method
from calibrant.inference._models import ModelLike, call_options, open_client
from calibrant.inference._predictor import ModelPredictor, PromptedModel
from calibrant.inference._reader import AnswerReader
from calibrant.inference._replaced import replaced_model
from calibrant.inference.doctor._records import identity, known_scoring, refuse_misleading, shared_abilities
from calibrant.logprobs._schema import enum_schema

if TYPE_CHECKING:
    from calibrant.calibration._prior import LabelPriorCorrection
    from calibrant.heads._embedding import EmbeddingModel
    from calibrant.heads._head import Head
    from calibrant.heads._tuned import Tuned
    from calibrant.inference._demonstrations import DemonstrationIndex

_LOG = logging.getLogger("calibrant")
_SEVERAL_MODELS: Final = {"cascade": "cascade", "routing": "[routing]"}  # by section of a task file


class Classifier(ModelPredictor):
    """Text classifier with one model and one prompt; a context manager.

    Parameters
    ----------
    model : str, Client or callable
        See `calibrant.inference.open_client`.
    labels : sequence of str or LabelSet
        The closed set of labels. With `FieldLabels` an answer holds one for each of several fields, with
        `MultiLabels` any number of them; predictions then have `parts`, and their label is the whole answer.
    field : str, default "label"
        JSON path of the label in the answer; of the array, or the label in its elements, of `MultiLabels`. Not
        used with `FieldLabels`, whose fields have paths of their own.
    prompt : str, default ""
        The system prompt.
    user_template : str, optional
        Template of the user message; holds ``{input}``.
    response_format : mapping, optional
        Sent instead of the schema built from `labels` and `field`.
    answer_field : str, optional
        JSON path the label is read from, where it is not `field`.
    top_logprobs : int, default 5
        Alternatives asked for per token.
    concurrency : int, optional
        Calls in flight at most; 10 by default, 4 for an embedded engine.
    space : str, optional
        Space of the log-probabilities, where the client's own is wrong.
    options : mapping, optional
        Handed to the provider with every call; see `calibrant.inference.open_client`.
    journal : Journal, optional
        Finished predictions; what it holds is not asked again.
    limits : Limits, optional
        Rates, budgets and deadlines; `concurrency` comes before the one in it.
    retry : RetryPolicy, optional
        Retry policy of transient faults.
    scoring : {"auto", "exact", "decode", "fused", "verbalised", "sampled"}, optional
        ``exact`` asks how probable every label is as the answer; nothing is sampled, and `options`
        such as a temperature do not apply. ``decode`` lets the model write its answer and reads the
        log-probabilities of its tokens. Three are for models without them: ``fused`` asks three times, for label and
        percentage, under variants of the prompt (see `Fused`); ``verbalised`` does so once; ``sampled`` asks ten
        times and takes the agreement of the answers for the confidence (see `Sampling`). ``auto`` takes the best that
        is there: ``exact`` where model and schema allow it (`MultiLabels` on an embedded engine alone), else
        ``decode``, or ``fused`` if answers come without log-probabilities, which is found out with one call and kept
        beside the doctor's examinations. That is the default for a model by name; a client or a
        callable decodes, and a server with ``api_base`` is asked for exact scores only where ``exact`` is written, or
        ``auto`` and an examination found them.
    tolerance : float or "exact", optional
        How far ``exact`` goes: the beginnings of labels that are not looked into may cause a total variation of at
        most this, in [0, 1]. By default 0.1 on the embedded engine, else 0.2; ``"exact"`` is 0.01.
    samples : int, optional
        How often ``sampled`` asks about a text (at least 2, 10 by default), or ``fused`` (2 to 10, 3 by default).
    temperature : float, optional
        Temperature of ``sampled`` (above 0; by default the one among `options`, else 1) and of ``fused`` and
        ``verbalised``. A ``seed`` among `options` is counted on from sample to sample.
    prior_correction : LabelPriorCorrection, optional
        Fitted under this prompt; its label prior is divided out of every prediction. Not for answers that hold
        several labels.
    head : Head, optional
        Turns the model's distributions into the final ones; learned under this prompt, by `fit`.
    keep_tokens : bool, default False
        True keeps the tokens of decoded predictions (`Prediction.tokens`), as some confidences of a cascade need; they
        take room in a journal.
    abilities : ModelAbilities, optional
        How the model is asked, where that is known: the form of its answers, and whether it gives log-probabilities.
        By default a server is asked one question of calibrant's own before the first row, unless `examine` or such a
        question of the last 30 days has told already.

    Raises
    ------
    ConfigurationError
        A parameter is out of range, the model cannot be asked as `scoring` says, or a stored
        examination says that confidence would mislead (see `calibrant.inference.examine`).

    Examples
    --------
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(labels=["cat", "dog"], answers={"purrs": "cat"})
    >>> with Classifier(model=fake, labels=["cat", "dog"], field="category") as classifier:
    ...     classifier.classify("purrs").label
    'cat'
    """

    def __init__(  # noqa: PLR0913  (keyword-only options)
        self,
        *,
        model: ModelLike,
        labels: LabelSet | Sequence[str],
        field: str = "label",
        prompt: str = "",
        user_template: str | None = None,
        response_format: Mapping[str, Any] | None = None,
        answer_field: str | None = None,
        top_logprobs: int = 5,
        concurrency: int | None = None,
        limits: Limits | None = None,
        space: LogprobSpace | str | None = None,
        options: Mapping[str, Any] | None = None,
        journal: Journal | None = None,
        retry: RetryPolicy | None = None,
        scoring: Scoring | None = None,
        tolerance: Tolerance | None = None,
        samples: int | None = None,
        temperature: float | None = None,
        prior_correction: LabelPriorCorrection | None = None,
        head: Head | None = None,
        keep_tokens: bool = False,
        abilities: ModelAbilities | None = None,
    ) -> None:
        self.labels, self.field = LabelSet.of(labels), field
        self.prompt, self.user_template = prompt, user_template
        self.prior_correction = prior_correction
        self._owns_client = not isinstance(model, Client)
        limits = replace(limits or Limits(), **({} if concurrency is None else {"concurrency": concurrency}))
        scoring = known_scoring(scoring, model, options=options)
        client = open_client(
            model, space=space, concurrency=limits.concurrency, options=options, scoring=scoring
        )
        reader = AnswerReader(
            labels=self.labels,
            field=field,
            answer_field=answer_field or field,
            space=LogprobSpace(client.space if space is None else space),
            keep_tokens=keep_tokens,
            abilities=_abilities(model, client, self.labels, options, given=abilities),
        )
        calls = ModelCalls(policy=retry or RetryPolicy(), gate=_gate(client, limits))
        response_format = response_format or enum_schema(self.labels, field)
        method = choose_method(
            client,
            reader,
            response_format,
            calls=calls,
            options=call_options(options),
            scoring=scoring if scoring is not None or space is None else "decode",
            tolerance=tolerance,
            samples=samples,
            temperature=temperature,
            model=model,
        )
        self._model = PromptedModel(
            method=method,
            response_format=response_format,
            top_logprobs=top_logprobs,
            options=call_options(options),
        )
        self._runner = Runner(gate=calls.gate, journal=journal)
        self.head = head
        refuse_misleading(model, options=options, method=method)

    @classmethod
    def from_task(
        cls,
        task: Task,
        *,
        model: ModelLike | None = None,
        client: Client | None = None,
        journal: Journal | None = None,
        limits: Limits | None = None,
    ) -> Classifier:
        """Return the classifier of a task, with its prompt and head.

        Parameters
        ----------
        task : Task
            The task.
        model : str, Client or callable, optional
            Used instead of the task's own model. A name with the same provider keeps the task's address, options and
            scoring; otherwise they do not apply, except for scoring by stated confidence or agreement, which every
            model allows.
        client : Client, optional
            Stands for the task's own model, whose options apply; closed with the classifier.
        journal : Journal, optional
            Finished predictions.
        limits : Limits, optional
            Rates, budgets and deadlines; the concurrency in it comes before the task's.

        Raises
        ------
        ConfigurationError
            The task describes a cascade, or several providers: `calibrant.assembly.open_classifier` opens
            them. Or it shows demonstrations, and has no training rows.
        StateError
            The head that the task names cannot be used: it was fitted under another prompt or model, for example.
        """
        arguments = _task_arguments(task, model=model, client=client, limits=limits)
        found = cls(**arguments, journal=journal)
        found._owns_client = found._owns_client or found.client is client
        with ExitStack() as opened:
            opened.callback(found.close)
            if task.demonstrations is not None:  # before the head, which belongs to the prompt as it is then
                from calibrant.inference._demonstrations import DemonstrationIndex  # noqa: PLC0415 (if it shows any)

                found = found._retrieving(DemonstrationIndex.from_task(task), task.demonstrations)
            if task.head.file is not None:
                from calibrant.heads._head import Head  # noqa: PLC0415  (if it names one)
                from calibrant.inference._heads import opened_head  # noqa: PLC0415

                found = found.asked_for(task.head.file)
                head = Head.load(task.head.file, fingerprint=found.fingerprint())
                found.head = opened_head(head, task.head.embeddings)
            opened.pop_all()
        return found

    def fit(
        self, texts: Iterable[str], answers: Iterable[str], *, embeddings: str | EmbeddingModel | None = None
    ) -> Self:
        """Ask the model about labelled texts, and learn a head from its answers.

        The head that the labelled rows support is chosen by `calibrant.heads.fit_head` and used from then on, in place
        of one that was there before.

        Parameters
        ----------
        texts : sequence or series of str, length n
            Labelled texts; about 100 are a good beginning.
        answers : sequence or series of str, length n
            Their true labels; the first belongs to the first text, whatever the index of a series.
        embeddings : str or EmbeddingModel, optional
            Gives the head a vector of each text beside its words: see `calibrant.inference.open_embedding_model`. By
            default words alone.

        Raises
        ------
        ConfigurationError
            An answer is no label, or holds several, the lengths differ, the model gives no distributions, or the
            embedding model cannot be opened.
        ProviderError
            A fault that every call would meet.
        """
        from calibrant.core._frames import texts_of  # noqa: PLC0415 (if it learns a head)
        from calibrant.inference._heads import head_of, true_labels  # noqa: PLC0415 (if it learns one)

        texts, answers = texts_of(texts), texts_of(answers, what="answers")
        true_labels(answers, len(texts), labels=self.labels)  # before a call is paid for
        embedding = None
        if embeddings is not None:
            from calibrant.inference._embeddings import open_embedding_model  # noqa: PLC0415 (if one is named)

            embedding = open_embedding_model(embeddings)
        asked = self.with_features().classify_many(texts)
        self.head = head_of(asked, answers, texts, labels=self.labels, embedding=embedding)
        return self

    @property
    def tuned(self) -> Tuned:
        """Value with the prompt, the demonstrations and the head, to save and to open again.

        It names the model and holds no client: one that was handed in is handed to `Tuned.open` again.
        """
        from calibrant.inference._tuned import task_of, tuned_of  # noqa: PLC0415 (if it is made a value)

        return tuned_of(self, task_of(self))

    def with_features(self) -> Self:
        """Return a copy without a head; its predictions include text features if the model reports them."""
        return self._copy(_owns_client=False, _head=None, _model=self._model.with_features())

    def _copy(self, **changes: object) -> Self:
        """Return a copy with the given attributes replaced."""
        found = copy(self)
        found.__dict__.update(changes)
        return found

    def with_prompt(self, prompt: str, *, user_template: str | None = None) -> Self:
        """Return a copy with another prompt and without a head; client and journal are shared.

        A label-prior correction stays behind: it belongs to the prompt it was fitted under.

        Parameters
        ----------
        prompt : str
            The system prompt.
        user_template : str, optional
            By default this one's.
        """
        template = self.user_template if user_template is None else user_template
        return self._copy(prompt=prompt, user_template=template, _prior_correction=None, _head=None)

    def with_demonstrations(
        self,
        index: DemonstrationIndex | None,
        *,
        k: int | None = 5,
        retriever: str = "tfidf",
        balance: str = "nearest",
        seed: int = 0,
    ) -> Self:
        """Return a copy that retrieves demonstrations: the labelled texts nearest to each text.

        It shares this one's client and journal; what was learned under other prompts, a label-prior correction or a
        head, stays behind.

        Parameters
        ----------
        index : DemonstrationIndex or None
            The texts to show; None shows none.
        k : int or None, default 5
            Demonstrations in a prompt, at least 1 and at most as many as `index` has rows; None shows none but to
            queries that say how many.
        retriever : {"tfidf", "model2vec"}, default "tfidf"
            How texts are compared: by words and pieces of words, or by static embeddings (extra ``embeddings``).
        balance : {"nearest", "balanced"}, default "nearest"
            ``nearest`` shows the k nearest texts, ``balanced`` the nearest text of each label in turn.
        seed : int, default 0
            Fixes the order in which they are shown.

        Raises
        ------
        ConfigurationError
            A parameter is unknown or out of range, or the index is for other labels.

        Examples
        --------
        >>> from calibrant.inference import DemonstrationIndex
        >>> from calibrant.testing import FakeClient
        >>> fake = FakeClient(["cat", "dog"], {}, default="dog")
        >>> classifier = Classifier(model=fake, labels=["cat", "dog"], field="animal", prompt="Which animal?")
        >>> index = DemonstrationIndex(["it purrs", "it barks"], ["cat", "dog"], labels=["cat", "dog"])
        >>> _ = classifier.with_demonstrations(index, k=1).classify("who barks?")
        >>> print(fake.requests[0].messages[0]["content"])
        Which animal?
        <BLANKLINE>
        Examples:
        <BLANKLINE>
        Text: it barks
        Answer: {"animal": "dog"}
        """
        settings = None
        if k is not None:
            values = {"k": k, "retriever": retriever, "balance": balance, "seed": seed}
            settings = DemonstrationSettings.of(values)
        return self._retrieving(index, settings)

    def _retrieving(self, index: DemonstrationIndex | None, settings: DemonstrationSettings | None) -> Self:
        retrieval = None
        if index is not None:
            from calibrant.inference._demonstrations import Retrieval  # noqa: PLC0415 (if it shows any)

            retrieval = Retrieval(index, settings, labels=self.labels, field=self.field)
        model = replace(self._model, retrieval=retrieval)
        return self._copy(_model=model, _prior_correction=None, _head=None)

    def with_limits(self, limits: Limits) -> Self:
        """Return a copy with other `limits` and new counters; client and journal are shared."""
        return self._metered(limits, self._model)

    def with_tokens(self, *, top_logprobs: int = 0) -> Self:
        """Return a copy whose decoded predictions include the tokens of the answer.

        Parameters
        ----------
        top_logprobs : int, default 0
            Alternatives asked for per token at least.
        """
        method = replace(self.method, reader=replace(self.method.reader, keep_tokens=True))
        top_logprobs = max(top_logprobs, self.top_logprobs)
        return self._metered(self.limits, replace(self._model, method=method, top_logprobs=top_logprobs))

    def _metered(self, limits: Limits, model: PromptedModel) -> Self:
        """Return a copy with these limits and this model, and with new counters."""
        gate = _gate(self.client, limits)
        method = replace(model.method, calls=replace(model.method.calls, gate=gate))
        runner = Runner(gate=gate, journal=self.journal)
        return self._copy(_owns_client=False, _model=replace(model, method=method), _runner=runner)

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint that binds a correction or calibration to this classifier."""
        return Fingerprint(
            prompt=asked_text(self.prompt, self.user_template, self._shown()),
            model=self.client.name,
            space=self.space,
            labels=self.labels,
        )

    def describe(self) -> dict[str, Any]:
        """Return the settings that can change a prediction as JSON values, free of credentials."""
        name, endpoint, options = identity(
            self.name, self.options, api_base=getattr(self.client, "endpoint", None)
        )
        correction, head, shown = self.prior_correction, self.head, self._shown()
        prior = None
        if correction is not None:
            prior = {"prior": correction.divisor_.tolist(), "strength": correction.strength_}
        return {
            "model": name,
            "endpoint": endpoint,
            "options": options,
            "method": dict(self.method.describe()),
            "response_format": self.response_format,
            "top_logprobs": self.top_logprobs,
            "prompt": self.prompt,
            "user_template": self.user_template,
            "label_prior": prior,
            **({} if head is None else {"head": head.digest}),
            **({} if shown is None else {"demonstrations": shown}),
        }

    def _shown(self) -> dict[str, Any] | None:
        return None if self.demonstrations is None else self.demonstrations.description

    def close(self) -> None:
        """Close the client if this classifier opened it."""
        if self._owns_client:
            self.client.close()


def _task_arguments(
    task: Task, *, model: ModelLike | None, client: Client | None, limits: Limits | None
) -> dict[str, Any]:
    """Return the arguments of a task's classifier; raise if the task has several models and none is given."""
    own = task.model
    if isinstance(model, str) and not task.sections:
        own = replaced_model(own, model)
    elif model is not None:
        if own.api_base is not None:
            _LOG.warning(
                "Another model is asked instead of %s: the task's api_base and options belong to the latter and are "
                "not used.",
                own.name,
            )
        # Which every model allows; nothing else of the task's model applies.
        allowed = own.scoring in {"auto", "fused", "verbalised", "sampled"}
        own = ModelSettings(scoring=own.scoring, samples=own.samples) if allowed else ModelSettings()
    several = next((title for name, title in _SEVERAL_MODELS.items() if name in task.sections), None)
    if model is None and client is None and several is not None:
        raise ConfigurationError(
            f"Expected a task with one model, got the {several} of task {task.name!r}: name one model, or open all "
            "with calibrant.assembly.open_classifier(task)."
        )
    if model is None:
        model = own.name if client is None else client
    return {
        "model": model,
        "labels": task.labels,
        "field": task.field,
        "prompt": task.prompt,
        "user_template": task.user_template,
        "concurrency": own.concurrency if limits is None else None,
        "limits": limits,
        "space": own.space,
        "options": {**own.options, **({} if own.api_base is None else {"api_base": own.api_base})},
        "scoring": own.scoring,
        "tolerance": own.tolerance,
        "samples": own.samples,
    }


def _abilities(
    model: ModelLike,
    client: Client,
    labels: LabelSet,
    options: Mapping[str, Any] | None,
    *,
    given: ModelAbilities | None,
) -> KnownAbilities:
    """Return the known abilities of a model; a question of ours tells of servers, that is of models by name."""
    if given is not None:
        return KnownAbilities(given)
    if is_in_process(client) or labels.is_open:
        return KnownAbilities(ModelAbilities())
    if isinstance(model, str) and model not in STAND_INS:
        return shared_abilities(model, options)
    return abilities_of_client(client)


def _gate(client: Client, limits: Limits) -> Gate:
    return Gate(limits, provider=client.name, default_concurrency=default_concurrency(client))


def as_classifier(predictor: Predictor, *, to_use: str) -> Classifier:
    """Return the predictor if it is a `Classifier`; otherwise raise ConfigurationError.

    Parameters
    ----------
    predictor : Predictor
        Any.
    to_use : str
        Feature that needs one model, such as a head; for the message.

    Raises
    ------
    ConfigurationError
        The predictor is a cascade: head, label prior and demonstrations belong to one prompted model.
    """
    if not isinstance(predictor, Classifier):
        raise ConfigurationError(
            f"Expected no {to_use} for a whole cascade, got {predictor.name}: its models have prompts and answers of "
            "their own. Give its classifiers one each."
        )
    return predictor
