"""Text classifier: one model with a prompt and a label set, and the choice of the method by which it is asked."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self, get_args

from calibrant.clients._calls import RetryPolicy
from calibrant.core._completion import (
    STAND_INS,
    Client,
    ClientTraits,
    Completion,
    CompletionRequest,
    ContinuingClient,
    DecisionClient,
)
from calibrant.core._errors import CalibrantError, ConfigurationError
from calibrant.core._files import read_json_object
from calibrant.core._fingerprint import Fingerprint, asked_text
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import HalfArray, Journal, LogprobSpace, Prediction
from calibrant.core._predictor import Limits, OnPrediction, Predictor, Query, Stop
from calibrant.core._reported import is_number
from calibrant.core._settings import DemonstrationSettings, ModelSettings
from calibrant.core._task import RecordedTask, Task
from calibrant.inference._abilities import AnswerForm, KnownAbilities, ModelAbilities, abilities_of_client
from calibrant.inference._base import BasePredictor, run_sync
from calibrant.inference._examinations import identity, known_scoring, refuse_misleading, shared_abilities
from calibrant.inference._feed import Feed, Runner
from calibrant.inference._limits import Gate, client_gate
from calibrant.inference._methods import (
    DEFAULT_TOLERANCE,
    Decoding,
    Method,
    ModelCalls,
    ModelSetup,
    Scoring,
    ScoringChoice,
    Tolerance,
)
from calibrant.inference._models import ModelLike, allowed_settings, call_options, open_client, replaced_model
from calibrant.inference._reader import AnswerReader
from calibrant.logprobs._fields import enum_schema

if TYPE_CHECKING:
    from pathlib import Path

    from calibrant.calibration._calibrators import ConfidenceCalibrator
    from calibrant.calibration._prior import LabelPriorCorrection
    from calibrant.heads._head import Head
    from calibrant.heads._tuned import Measurements, Tuned
    from calibrant.inference._demonstrations import DemonstrationIndex, Retrieval
    from calibrant.inference._text_vectors import Charge, Embeddings, VectorsAhead

_LOG = logging.getLogger("calibrant")
_SAMPLED: Final = frozenset({"sampled", "fused"})
_SEVERAL_MODELS: Final = {"cascade": "cascade", "routing": "[routing]"}  # by section of a task file
_LEAVE_OUT: Final = {"samples": "it", "temperature": "it, or name it among options"}


class Classifier(BasePredictor):
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
    label_descriptions : mapping of str to str, optional
        What some labels mean, for a decision model, which takes a sentence beside each option; plain labels only. A
        list of all labels in `prompt` comes before it. A chat model reads its prompt alone.
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

    _method: Method
    _choice: ScoringChoice
    _head: Head | None = None
    _prior_correction: LabelPriorCorrection | None = None

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
        label_descriptions: Mapping[str, str] | None = None,
        abilities: ModelAbilities | None = None,
    ) -> None:
        self.labels, self.field = LabelSet.of(labels), field
        self.prompt, self.user_template, self.prior_correction = prompt, user_template, prior_correction
        self._owns_client = not isinstance(model, Client)
        limits = limits or Limits()
        if concurrency is not None:
            limits = replace(limits, concurrency=concurrency)
        scoring = known_scoring(model, options=options) if scoring == "auto" else scoring
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
        setup = ModelSetup(
            client=client,
            reader=reader,
            calls=ModelCalls(policy=retry or RetryPolicy(), gate=client_gate(client, limits)),
            response_format=response_format or enum_schema(self.labels, field),
            top_logprobs=top_logprobs,
            options=call_options(options),
            label_descriptions=label_descriptions or {},
        )
        self._choice = ScoringChoice(
            scoring=scoring if scoring is not None or space is None else "decode",
            tolerance=tolerance,
            samples=samples,
            temperature=temperature,
            is_named=isinstance(model, str),
            space=reader.space,
        )
        self._method = choose_method(setup, self._choice)
        self._runner = Runner(gate=setup.calls.gate, journal=journal)
        if head is not None:
            self.head = head
        refuse_misleading(model, options=options, method=self._method)

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
        own = _settings_of(task, model=model, client=client)
        if model is None:
            model = own.name if client is None else client
        address = {}
        if own.api_base is not None:
            address = {"api_base": own.api_base}
        found = cls(
            model=model,
            labels=task.labels,
            field=task.field,
            prompt=task.prompt,
            user_template=task.user_template,
            concurrency=own.concurrency if limits is None else None,
            limits=limits,
            space=own.space,
            options={**own.options, **address},
            journal=journal,
            scoring=own.scoring,
            tolerance=own.tolerance,
            samples=own.samples,
            label_descriptions=task.label_descriptions,
        )
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
                found.head = opened_head(head, task.head.embeddings or None, meter=found.meter)
            opened.pop_all()
        return found

    def fit(
        self, texts: Iterable[str], answers: Iterable[str], *, embeddings: Embeddings | None = None
    ) -> Self:
        """Ask the model about labelled texts, and learn a head from its answers.

        The head that the labelled rows support is chosen by `calibrant.heads.fit_head` and used from then on, in place
        of one that was there before.

        Parameters
        ----------
        texts : sequence or series of str, length n
            Labelled texts; about 100 are a good beginning.
        answers : sequence or series of str, length n
            Their true labels, whole numbers and truth values as texts; the first belongs to the first text, whatever
            the index of a series.
        embeddings : str, EmbeddingModel or bool, optional
            Gives the head a vector of each text beside its words: see `calibrant.inference.open_embedding_model`. By
            default the embedded model does where it is installed, unless the classifier's own model reports features
            of the texts; one line in the log says so. The variable ``CALIBRANT_EMBEDDINGS`` names another default,
            ``none`` for words alone, as False does here.

        Raises
        ------
        ConfigurationError
            An answer is no label, or holds several, all are the same, the lengths differ, the model gives no
            distributions, or the embedding model cannot be opened.
        ProviderError
            A fault that every call would meet, those of embeddings included.
        """
        from calibrant.core._frames import texts_of  # noqa: PLC0415 (if it learns a head)
        from calibrant.inference._heads import head_of, true_labels  # noqa: PLC0415 (if it learns one)

        texts = texts_of(texts)
        answers = texts_of(answers, what="answers", are_labels=True)
        truth = true_labels(answers, len(texts), labels=self.labels)  # before a call is paid for
        if len(set(truth)) == 1:
            raise ConfigurationError(
                f"Expected answers of two labels or more, got {truth[0]!r:.80} for every text, which would teach that "
                "nothing else occurs: draw the texts from all labels."
            )
        from calibrant.inference._text_vectors import head_embedding  # noqa: PLC0415 (if it learns one)

        asking = self.with_features(texts)
        reports_features = asking.method.keep_features
        embedding = head_embedding(
            embeddings, texts, labels=self.labels, reports_features=reports_features, meter=asking.meter
        )
        once = list(dict.fromkeys(texts))  # equal questions are paid for once
        answer_of = dict(zip(once, asking.classify_many(once), strict=True))
        self.head = head_of(
            [answer_of[text] for text in texts],
            answers,
            texts,
            labels=self.labels,
            embedding=embedding,
            named_tokens=asking.method.named_tokens,
            meter=asking.meter,
        )
        return self

    @property
    def tuned(self) -> Tuned:
        """Value with the prompt, the demonstrations and the head, to save and to open again.

        It names the model and holds no client: one that was handed in is handed to `Tuned.open` again.
        """
        return tuned_of(self, task_of(self))

    def with_features(self, texts: Sequence[str] = ()) -> Self:
        """Return a copy without a head; its predictions include text features if the model reports them.

        Parameters
        ----------
        texts : sequence of str, optional
            Texts like those to come. A server reports the log-probabilities of tokens that are named to it; which ones,
            is found out by its next tokens after the first 150 of these. Without any, its predictions have no features.

        Raises
        ------
        ProviderError
            A call failed.
        """
        tokens: tuple[int, ...] = ()
        if texts and not self.in_process and self.scoring == "exact":
            from calibrant.inference._heads import choose_tokens  # noqa: PLC0415 (only for servers)

            queries = [self.query(text) for text in texts]
            tokens = run_sync(choose_tokens(self._method, queries, self.journal))
        other = self._with_method(self._method.with_features(tokens))
        other._owns_client = False  # noqa: SLF001 (of its own kind)
        other.head = None
        return other

    def known_features(self, texts: Sequence[str], journal: Journal) -> dict[str, HalfArray]:
        """Return the features that the head reads, by text, of answers that a journal holds; nothing is asked.

        Parameters
        ----------
        texts : sequence of str
            The texts. Those that the journal does not know are left out; all, if the head reads no features.
        journal : Journal
            Answers of this classifier.
        """
        if self.head is None or not self.head.uses_features:
            return {}
        rows = Runner(journal=journal).rows(self._method, map(self.query, texts))
        found = {}
        for text, row in zip(texts, rows, strict=True):
            if row.stored is not None and row.stored.features is not None:
                found[text] = row.stored.features
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
        other = self._unlearned(self._method)
        other.prompt = prompt
        if user_template is not None:
            other.user_template = user_template
        return other

    def about(
        self,
        labels: LabelSet | Sequence[str],
        *,
        prompt: str,
        label_descriptions: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a copy that asks another question: other labels under another prompt, and no demonstrations.

        Client, limits, counters and journal are shared; what was learned stays behind.

        Parameters
        ----------
        labels : sequence of str or LabelSet
            The labels of its answers, in the field ``answer``.
        prompt : str
            The system prompt.
        label_descriptions : mapping of str to str, optional
            What some of them mean, for a decision model.

        Raises
        ------
        ConfigurationError
            The labels are not distinct, or the model takes no such labels.
        """
        labels = LabelSet.of(labels)
        field = "answer"
        setup = self._method.setup
        choice = self._choice
        reader = replace(setup.reader, labels=labels, field=field, answer_field=field, space=choice.space)
        setup = replace(
            setup,
            reader=reader,
            response_format=enum_schema(labels, field),
            label_descriptions=label_descriptions or {},
        )
        other = self._unlearned(choose_method(setup, choice))
        other.labels = labels
        other.field = field
        other.prompt = prompt
        other.user_template = None
        return other

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
        return self._unlearned(self._method.with_retrieval(retrieval))

    def _unlearned(self, method: Method) -> Self:
        """Return a copy with a method, and without what was learned under another prompt."""
        other = self._with_method(method)
        other.prior_correction = other.head = None
        return other

    def with_limits(self, limits: Limits) -> Self:
        """Return a copy with other `limits` and new counters; client and journal are shared."""
        return self._metered(limits, self._method)

    def with_tokens(self, *, top_logprobs: int = 0) -> Self:
        """Return a copy whose decoded predictions include the tokens of the answer.

        Parameters
        ----------
        top_logprobs : int, default 0
            Alternatives asked for per token at least.
        """
        setup = self._method.setup
        reader = replace(setup.reader, keep_tokens=True)
        top_logprobs = max(top_logprobs, setup.top_logprobs)
        setup = replace(setup, reader=reader, top_logprobs=top_logprobs)
        return self._metered(self.limits, replace(self._method, setup=setup))

    def _metered(self, limits: Limits, method: Method) -> Self:
        """Return a copy with these limits and this method, and with new counters."""
        gate = client_gate(self.client, limits)
        other = self._with_method(method.with_gate(gate))
        other._owns_client = False  # noqa: SLF001 (of its own kind)
        other._runner = Runner(gate=gate, journal=self.journal)  # noqa: SLF001
        return other

    @property
    def answer_field(self) -> str:
        """JSON path of the label in the model's answer."""
        return self.method.reader.answer_field

    @property
    def client(self) -> Client:
        """Client that makes the predictor's model calls."""
        return self.method.client

    @property
    def clients(self) -> tuple[Client, ...]:
        """Tuple that holds the predictor's only client."""
        return (self.client,)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.client.name

    @property
    def method(self) -> Method:
        """Method that turns a request into a prediction."""
        return self._method

    @property
    def row_model(self) -> Method:
        """Method that the feed asks."""
        return self._method

    @property
    def abilities(self) -> ModelAbilities | None:
        """Known abilities of the model; None until they are found out."""
        return self.method.reader.abilities.known

    def with_abilities(self, abilities: ModelAbilities) -> Self:
        """Return a copy that asks the model as these abilities say, without finding out; either may be closed."""
        setup = self._method.setup
        reader = replace(setup.reader, abilities=KnownAbilities(abilities))
        setup = replace(setup, reader=reader)
        return self._with_method(replace(self._method, setup=setup))

    def asked_as(self, described: Mapping[str, Any]) -> Self:
        """Return a copy that asks the model as the method in a description does, without finding out."""
        return self.with_abilities(ModelAbilities.of(described))

    def unless_told(self) -> Self:
        """Return a predictor that decodes, unless another scoring was asked for."""
        return self._with_method(self.method.unless_told)

    def asked_for(self, learned: Path) -> Self:
        """Return a predictor that asks the model in the space in which a head or a label prior was learned.

        Where the file leaves it open how, that is found out.

        Parameters
        ----------
        learned : Path
            File of the head or the label prior.

        Raises
        ------
        ProviderError
            It had to be found out, and the model cannot be asked.
        """
        space = None
        with contextlib.suppress(CalibrantError, LookupError, TypeError):  # whoever loads the file says more
            space = read_json_object(learned, remedy="")["fingerprint"]["space"]
        if space is None or not isinstance(self.method, Decoding):
            return self
        if space == LogprobSpace.MASKED:
            return self.with_abilities(ModelAbilities())
        if space != self.space:
            self.find_abilities()
        if self.abilities is None:
            return self
        return self.with_abilities(replace(self.abilities, gives_logprobs=space != LogprobSpace.FUSED))

    def _with_method(self, method: Method) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self), _method=method)
        return other

    @property
    def scoring(self) -> str:
        """Name of the method, as far as it is known."""
        return str(self.method.describe()["scoring"])

    @property
    def space(self) -> LogprobSpace:
        """Log-probability space of the predictor's distributions."""
        return self._method.space

    @property
    def response_format(self) -> Mapping[str, Any] | None:
        """JSON schema sent with every call."""
        return self._method.setup.response_format

    @property
    def top_logprobs(self) -> int:
        """Number of alternatives requested per token."""
        return self._method.setup.top_logprobs

    @property
    def options(self) -> Mapping[str, Any]:
        """Options sent to the provider with every call."""
        return self._method.setup.options

    @property
    def in_process(self) -> bool:
        """True if the model runs in this process, not on a server."""
        return ClientTraits.of(self.client).in_process

    @property
    def demonstrations(self) -> Retrieval | None:
        """Index and settings of the retrieved demonstrations; None without any."""
        return self._method.retrieval

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Tuple that holds the rate limiter of the model's calls."""
        return (self._runner.gate,)

    @property
    def journal(self) -> Journal | None:
        """Journal of finished predictions, which are not requested again; None without one."""
        return self._runner.journal

    def use_journal(self, journal: Journal | None) -> None:
        """Set the journal that stores predictions, also for copies that share the row engine."""
        self._runner.journal = journal

    def feed(
        self,
        queries: Iterable[Query],
        deliver: OnPrediction,
        *,
        on_prediction: OnPrediction | None = None,
        stop: Stop | None = None,
    ) -> Coroutine[Any, Any, str]:
        """Answer a stream of queries in bounded memory; see `calibrant.core.Predictor.feed`."""
        learned = self._head is not None or self._prior_correction is not None
        feed = Feed(
            self._method,
            self._runner,
            deliver,
            finish=self.finished if learned else None,
            ahead=self._vectors_ahead(self.meter.charge_vectors),
            on_prediction=on_prediction,
            stop=stop,
        )
        return feed.run(queries)

    def _vectors_ahead(self, charge: Charge) -> VectorsAhead | None:
        """Return the source of the vectors of a feed's texts for the head; None if it needs none by calls."""
        if self._head is None or self._head.embedding is None:
            return None
        from calibrant.inference._text_vectors import vectors_ahead  # noqa: PLC0415 (if a head has some)

        return vectors_ahead(
            self._head, needs=lambda row: self._is_own(row.query), charge=charge, meter=self.meter
        )

    def _is_own(self, query: Query) -> bool:
        """Return True if a query has the classifier's own prompt, to which head and label prior belong."""
        return (query.prompt, query.user_template) == (self.prompt, self.user_template)

    async def answer(self, query: Query) -> Prediction:
        """Return the model's prediction of one query, before the label prior and head are applied.

        The caller checks the budgets and handles failures.

        Raises
        ------
        ProviderError
            A fault that every call would meet, before any call has succeeded.
        """
        (row,) = self._runner.rows(self._method, [query])
        return await self._runner.answer(self._method, row)

    def request(self, query: Query) -> CompletionRequest:
        """Return the request of a query, as sent.

        Raises
        ------
        ConfigurationError
            Its demonstrations cannot be shown.
        """
        ((prepared, problem),) = self._method.prepare([query])
        if problem:
            raise ConfigurationError(problem)
        return self.method.reader.shaped(self._method.request(prepared))

    async def acomplete(self, request: CompletionRequest) -> tuple[Completion, int]:
        """Return the model's answer to a request that is no classification, such as a check of an answer.

        Limits, retries and options are those of the classification; options of the request come before
        the latter.

        Parameters
        ----------
        request : CompletionRequest
            The request.

        Returns
        -------
        completion : Completion
            The answer.
        attempts : int
            Calls made.

        Raises
        ------
        ProviderError
            Every call failed, retries included; ``attempts`` counts the calls made.
        """
        options = {**self.options, **request.options}
        return await self.method.calls.complete(self.client, replace(request, options=options))

    @property
    def prior_correction(self) -> LabelPriorCorrection | None:
        """Label-prior correction of predictions under the predictor's own prompt; None without one."""
        return self._prior_correction

    @prior_correction.setter
    def prior_correction(self, correction: LabelPriorCorrection | None) -> None:
        if correction is not None and self.labels.holds_several:
            raise ConfigurationError(
                "Expected no label-prior correction of answers that hold several labels: it corrects one distribution "
                "over all labels. Leave prior_correction out."
            )
        self._prior_correction = correction

    @property
    def first_head(self) -> Head | None:
        """Its own head."""
        return self.head

    @property
    def head(self) -> Head | None:
        """Head that computes the final distributions; None without a head."""
        return self._head

    @head.setter
    def head(self, head: Head | None) -> None:
        if head is not None:
            from calibrant.inference._heads import check_head, opened_head  # noqa: PLC0415 (if it has one)

            if head.uses_features:
                self._method = self._method.with_features(head.named_tokens)
            check_head(head, labels=self.labels, method=self.method)
            head = opened_head(head, meter=self.meter)
        self._head = head

    def save_learned(self, directory: Path, end: str = "") -> None:
        """Write the label prior and the head to ``label_prior.json`` and ``head.json``, if there are any.

        Parameters
        ----------
        directory : Path
            Where to.
        end : str, optional
            What both names get before ``.json``, as of the models of a plan.
        """
        for name, learned in (("label_prior", self.prior_correction), ("head", self.head)):
            if learned is not None:
                learned.save(directory / f"{name}{end}.json", fingerprint=self.fingerprint())

    def finished(self, query: Query, prediction: Prediction) -> Prediction:
        """Return a prediction with label prior and head applied, if the query has the predictor's prompt."""
        if not self._is_own(query) or (self.prior_correction is None and self.head is None):
            return prediction
        from calibrant.calibration._prior import correct_prediction  # noqa: PLC0415  (if there is anything to apply)
        from calibrant.inference._heads import apply_head  # noqa: PLC0415

        if self.prior_correction is not None:
            prediction = correct_prediction(prediction, self.prior_correction)
        if self.head is None:
            return prediction
        return apply_head(self.head, prediction, query.text)

    async def finished_ahead(self, query: Query, prediction: Prediction, *, charge: Charge) -> Prediction:
        """Return a prediction as `finished` does, after the vector of its text was asked for; failed if that failed.

        Texts that come while a call for vectors is under way share the next call. `charge` receives its usage.
        """
        ahead = self._vectors_ahead(charge)
        if ahead is not None and prediction.label is not None and self._is_own(query):
            prediction = await ahead.added(query, prediction)
        return self.finished(query, prediction)

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint that binds a correction or calibration to this classifier."""
        shown = None if self.demonstrations is None else self.demonstrations.description
        return Fingerprint(
            prompt=asked_text(self.prompt, self.user_template, shown),
            model=self.client.name,
            space=self.space,
            labels=self.labels,
        )

    def describe(self) -> dict[str, Any]:
        """Return the settings that can change a prediction as JSON values, free of credentials."""
        method = self._method
        setup = method.setup
        address = ClientTraits.of(setup.client).endpoint
        name, endpoint, options = identity(setup.client.name, setup.options, api_base=address)
        correction = self._prior_correction
        head = self._head
        retrieval = method.retrieval
        prior = None
        if correction is not None:
            prior = {"prior": correction.divisor_.tolist(), "strength": correction.strength_}
        return {
            "model": name,
            "endpoint": endpoint,
            "options": options,
            "method": dict(method.describe()),
            "response_format": setup.response_format,
            "top_logprobs": setup.top_logprobs,
            "prompt": self.prompt,
            "user_template": self.user_template,
            "label_prior": prior,
            **({} if head is None else {"head": head.digest}),
            **({} if retrieval is None else {"demonstrations": retrieval.description}),
        }

    def close(self) -> None:
        """Close the client if this classifier opened it."""
        if self._owns_client:
            self.client.close()


def _settings_of(task: Task, *, model: ModelLike | None, client: Client | None) -> ModelSettings:
    """Return the settings of a task's model, or of the one asked instead; raise if there are several models."""
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
        own = allowed_settings(own)
    several = next((title for name, title in _SEVERAL_MODELS.items() if name in task.sections), None)
    if model is None and client is None and several is not None:
        raise ConfigurationError(
            f"Expected a task with one model, got the {several} of task {task.name!r}: name one model, or open all "
            "with calibrant.assembly.open_classifier(task)."
        )
    return own


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
    if ClientTraits.of(client).in_process or labels.is_open:
        return KnownAbilities(ModelAbilities())
    if isinstance(model, str) and model not in STAND_INS:
        return shared_abilities(model, options)
    return abilities_of_client(client)


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


def tuned_of(
    classifier: Classifier,
    task: Task,
    *,
    calibrator: ConfidenceCalibrator | None = None,
    thresholds: Mapping[str, Any] | None = None,
    measurements: Measurements | None = None,
) -> Tuned:
    """Return a classifier as a value, with what it has learned.

    Parameters
    ----------
    classifier : Classifier
        The classifier, with its head or label prior.
    task : Task
        The task it was opened from, with the prompt it asks under; its training rows are its demonstrations.
    calibrator : ConfidenceCalibrator, optional
        Of the confidence in its labels.
    thresholds : mapping, optional
        See `Tuned.thresholds`.
    measurements : Measurements, optional
        Of labelled rows, none of which taught the head or the calibrator of its own prediction.
    """
    from calibrant.heads._tuned import (  # noqa: PLC0415 (if one is made a value)
        DESCRIBED,
        DESCRIBED_SOMETIMES,
        Measurements,
        Tuned,
        thresholds_of,
    )

    described = classifier.describe()
    thresholds = thresholds_of(None) if thresholds is None else thresholds
    return Tuned(
        tasks=(RecordedTask(task=task),),
        description={
            name: described[name] for name in (*DESCRIBED, *DESCRIBED_SOMETIMES) if name in described
        },
        fingerprint=classifier.fingerprint(),
        head=classifier.head,
        prior_correction=classifier.prior_correction,
        calibrator=calibrator,
        thresholds=thresholds,
        measurements=measurements or Measurements(),
    )


def task_of(classifier: Classifier) -> Task:
    """Return the task of a classifier that was opened without one; its training rows are its demonstrations."""
    method = classifier.method.describe()
    shown = classifier.demonstrations
    settings = None if shown is None else shown.settings
    traits = ClientTraits.of(classifier.client)
    scoring = method["scoring"]
    model = ModelSettings(
        name=classifier.name,
        api_base=None if traits.in_process else traits.endpoint,
        scoring=scoring if scoring in get_args(Scoring) else None,  # a decision model is asked in its own way
        tolerance=method.get("tolerance"),
        samples=method.get("samples") if scoring in _SAMPLED else None,
        # Of a server, what it was set up with, such as its chat template.
        options={**method.get("settings", {}), **classifier.options},
    )
    return Task(
        name="classifier",
        labels=classifier.labels,
        prompt=classifier.prompt,
        field=classifier.field,
        user_template=classifier.user_template,
        label_descriptions=classifier.method.setup.label_descriptions,
        model=model,
        demonstrations=settings,
        train=() if shown is None or settings is None else shown.index.examples(),
    )


def choose_method(setup: ModelSetup, choice: ScoringChoice) -> Method:
    """Return the wished method, or the best that model and schema support.

    Raises
    ------
    ConfigurationError
        A value is unknown or out of range, or the model or the schema does not allow it.
    """
    scoring = choice.scoring
    client = setup.client
    if scoring not in {None, *get_args(Scoring)}:
        *names, last = map(repr, get_args(Scoring))
        raise ConfigurationError(f"Expected scoring {', '.join(names)} or {last}, got {scoring!r}.")
    if isinstance(client, DecisionClient):
        return _deciding(setup, choice)
    tolerance = _tolerance(client, choice.tolerance)
    if scoring in {"sampled", "fused", "verbalised"}:
        return _asking_several(setup, choice)
    several = {"samples": choice.samples, "temperature": choice.temperature}
    for name, value in several.items():
        if value is not None and scoring != "auto":
            raise ConfigurationError(
                f"Expected {name} only with scoring='sampled', 'fused' or 'auto', got {name}={value!r} and "
                f"scoring={scoring!r}: add scoring='sampled', or leave out {_LEAVE_OUT[name]}."
            )
    decoding = _decoding(setup, choice)
    if scoring == "decode" or (scoring != "exact" and not isinstance(client, ContinuingClient)):
        return decoding
    exact = _exact_method(setup, tolerance)
    if not isinstance(exact, str):
        return exact
    if scoring == "exact":
        raise ConfigurationError(f"scoring='exact' is not possible: {exact}. Use scoring='decode'.")
    _warn_once(client.name, exact)
    return decoding


def _deciding(setup: ModelSetup, choice: ScoringChoice) -> Method:
    """Return the method of decision models, which have one way to be asked."""
    scoring = None if choice.scoring == "auto" else choice.scoring
    for name, value in (
        ("scoring", scoring),
        ("samples", choice.samples),
        ("temperature", choice.temperature),
    ):
        if value is not None:
            raise ConfigurationError(
                f"Expected no {name} for {setup.client.name}, which reports the probability of every label, got "
                f"{value!r}: leave it out."
            )
    from calibrant.inference._deciding import Deciding  # noqa: PLC0415 (only for decision models)

    return Deciding.of(setup)


def _decoding(setup: ModelSetup, choice: ScoringChoice) -> Decoding:
    """Return a method that decodes, and that may state confidence where a model may hide log-probabilities."""
    may_hide = choice.scoring == "auto" or (choice.scoring is None and choice.is_named)
    in_process = ClientTraits.of(setup.client).in_process
    if not may_hide or in_process or setup.reader.labels.is_open:
        return Decoding(setup=setup)
    from calibrant.inference._sampling import AutoDecoding  # noqa: PLC0415 (only for models that may hide them)

    return AutoDecoding.of(setup, choice)


def _asking_several(setup: ModelSetup, choice: ScoringChoice) -> Method:
    """Return a method that asks about a row several times, or once for a stated confidence."""
    from calibrant.inference._sampling import Fused, Sampling  # noqa: PLC0415 (only when it is asked for)

    if choice.scoring == "sampled":
        return Sampling.of(setup, choice)
    if choice.scoring == "verbalised":
        if choice.samples not in {None, 1}:
            raise ConfigurationError(
                f"Expected one call a row with scoring='verbalised', got samples={choice.samples!r}: leave it out, or "
                "add scoring='fused'."
            )
        return Fused.of(setup, replace(choice, samples=1))
    if choice.samples == 1:
        raise ConfigurationError("Expected at least 2 samples with scoring='fused', got 1: add 'verbalised'.")
    return Fused.of(setup, choice)


def _tolerance(client: Client, tolerance: Tolerance | None) -> Tolerance:
    """Return the tolerance of exact scoring, by default the client's own."""
    if tolerance is None:
        own = ClientTraits.of(client).default_tolerance
        tolerance = DEFAULT_TOLERANCE if own is None else own
    if tolerance != "exact" and not (is_number(tolerance) and 0.0 <= tolerance <= 1.0):
        raise ConfigurationError(f'Expected a tolerance in [0, 1] or "exact", got {tolerance!r}.')
    return tolerance


@cache
def _warn_once(model: str, reason: str) -> None:
    """Log one warning that a model decodes answers although it could score all labels exactly."""
    _LOG.warning(
        "%s could score every label, but decodes its answers: %s. Pass scoring='decode' if that is what you want.",
        model,
        reason,
    )


def _exact_method(setup: ModelSetup, tolerance: Tolerance) -> Method | str:
    """Return the exact method for a model, labels and schema, or the reason why there is none."""
    client = setup.client
    reader = setup.reader
    if not isinstance(client, ContinuingClient):
        from calibrant.clients._openai_compatible import OpenAICompatibleClient  # noqa: PLC0415 (loaded when it is used)

        served = ", ".join(f"{prefix}NAME" for prefix in OpenAICompatibleClient.PREFIXES)
        return (
            f"{client.name} reports no next-token probabilities after a beginning of an answer; local/NAME and "
            f"llamacpp:PATH do, and with the option api_base a server of llama.cpp, vLLM or SGLang ({served})"
        )
    if reader.answer_field != reader.field:
        return f"the label is read from {reader.answer_field!r}, not from {reader.field!r}, which is scored"
    from calibrant.inference._exact import exact_method  # noqa: PLC0415 (only where it may be possible)

    reader = replace(reader.in_form(AnswerForm.SCHEMA), space=LogprobSpace.EXACT)
    return exact_method(replace(setup, reader=reader), tolerance)
