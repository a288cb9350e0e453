"""Proposers of prompts: a reflection model with the records that it reads, and edits of demonstrations and notes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from calibrant.adapters._gepa import ConfidenceAdapter
from calibrant.adapters._rows import DEMONSTRATED, prompt_component
from calibrant.core._completion import ClientTraits, Completion, CompletionRequest
from calibrant.core._errors import ConfigurationError, LimitReachedError, ProviderError
from calibrant.core._fingerprint import sha256_of
from calibrant.core._labels import as_label_set, normalise_label
from calibrant.core._prediction import Outcome, Prediction, Record, Usage
from calibrant.core._predictor import Stop
from calibrant.core._reported import counted, one_line
from calibrant.core._rows import Example
from calibrant.core._settings import DemonstrationSettings
from calibrant.inference._base import run_sync
from calibrant.inference._demonstrations import Demonstration
from calibrant.inference._limits import Gate
from calibrant.inference._methods import ModelCalls
from calibrant.inference._models import call_options, open_client, prompt_price
from calibrant.optimization._prompt_parts import CandidateTexts, PromptFormat, PromptParts, estimate_tokens

if TYPE_CHECKING:
    from gepa.core.adapter import EvaluationBatch

    from calibrant.runs._journal import JsonlStore


MAX_DEMONSTRATION_SHARE = 0.2
TRIES = 25
RETRIEVED = (4, 8)  # nearest training rows a text is shown, tried before anything else

_NOTE_WORDS = 4
_WORD = re.compile(r"[^\W\d_]{3,}")
UNKNOWN_CONFIDENCE = 0.5
_SMALL_PROMPT: Final = "Answer with the word yes."
_REFLECTED: Final = 8  # rows that are shown, at most
_PAIRS: Final = 6  # confusions that are named, at most
_MOST_FAILURES: Final = 3


@dataclass
class PromptRecord:
    """Record of the answers under one prompt.

    Attributes
    ----------
    cost : Counter of (true label, predicted label)
        Summed confidence of the wrong answers, by pair.
    given : Counter of str
        How often each label was answered.
    true : Counter of str
        How often each label was the truth.
    got : mapping of str to str
        The label answered to each text seen.
    """

    cost: Counter[tuple[str, str]] = field(default_factory=Counter)
    given: Counter[str] = field(default_factory=Counter)
    true: Counter[str] = field(default_factory=Counter)
    got: dict[str, str] = field(default_factory=dict)

    def add(self, rows: Iterable[tuple[str, str]], predictions: Iterable[Prediction]) -> None:
        """Count predictions on rows of (text, true label), only the first prediction for each text."""
        for (text, answer), prediction in zip(rows, predictions, strict=True):
            given = prediction.label
            if prediction.outcome is not Outcome.OK or given is None or text in self.got:
                continue
            self.got[text] = given
            self.true[answer] += 1
            self.given[given] += 1
            if given != answer:
                confidence = UNKNOWN_CONFIDENCE if prediction.confidence is None else prediction.confidence
                self.cost[answer, given] += confidence  # type: ignore[assignment]

    def excess(self, label: str) -> int:
        """Return the number of predictions of `label` minus the number of rows with it as true label."""
        return self.given[label] - self.true[label]


class ExemplarProposer:
    """Proposer of prompts that edits short demonstrations and notes such as "A, not B".

    The instruction itself is never touched. Where a candidate has the component ``demonstrations``, the first
    proposals show every text the training rows nearest to it. What else is added is chosen by what the search
    has cost so far: pairs of labels that were confused often and confidently get a
    demonstration or a note, labels that are answered too often lose demonstrations.

    Texts come from `train` alone. Evaluations on other rows (the validation set) are
    used for counts of confusions between labels, never for their texts.

    Parameters
    ----------
    train : sequence of Example or of mappings with ``input`` and ``answer``
        The rows demonstrations are taken from.
    token_budget : int, default 600
        Most tokens that may be added to the instruction, by a cautious estimate.
    seed : int, default 0
        Fixes every choice: same seed and same evaluations, same proposals.
    field : str, default "label"
        JSON path of the label, so that demonstrations show answers as the model must write them; an
        adapter sets it to its own, with `prepare`.
    forms : bool, default False
        Proposals may also name the labels and the form of the answer, with a placeholder, where the instruction
        does not; the first one does nothing else. Never where the names alone exceed `token_budget`.

    Raises
    ------
    ConfigurationError
        Training rows of fewer than two labels, or a budget that is not positive.

    Examples
    --------
    >>> from calibrant import Example
    >>> from calibrant.optimization import ExemplarProposer
    >>> train = [Example(input="purrs", answer="cat"), Example(input="barks", answer="dog")]
    >>> proposer = ExemplarProposer(train=train)  # for optimize(..., proposer=proposer)
    >>> proposed = proposer({"system_prompt": "Which animal?"}, {}, ["system_prompt"])
    >>> sorted(line for line in proposed["system_prompt"].splitlines() if line.startswith("Text"))
    ['Text: barks', 'Text: purrs']
    """

    def __init__(
        self,
        *,
        train: Sequence[Example | Mapping[str, Any]],
        token_budget: int = 600,
        seed: int = 0,
        field: str = "label",
        forms: bool = False,
    ) -> None:
        if token_budget <= 0:
            raise ConfigurationError(f"Expected token_budget > 0, got {token_budget}.")
        self.token_budget = token_budget
        self.seed = seed
        self._forms = forms
        self._train = [_pair(row) for row in train]
        self._records: defaultdict[str, PromptRecord] = defaultdict(PromptRecord)
        self._proposed: set[str] = set()
        self._rng = random.Random(seed)  # noqa: S311  (choices, not secrets)
        self.prepare(labels=(), field=field)

    def prepare(self, *, labels: Sequence[str], field: str) -> None:
        """Set the spelling of the labels and the label's field; called by an adapter.

        Parameters
        ----------
        labels : sequence of str
            The labels as the schema spells them; others keep the spelling of their first training row. With
            `CompositeLabels`, whole answers stand in the place of labels, and notes are about the labels in them.
        field : str
            JSON path of the label.
        """
        label_set = as_label_set(labels)
        self._label_set = label_set
        self._spelling = {normalise_label(label): label for label in labels}
        rows = dict.fromkeys((text, self._spell(label)) for text, label in self._train)
        self._labels = tuple(sorted({label for _, label in rows}))
        if len(self._labels) < 2:
            raise ConfigurationError(
                f"Expected training rows of at least two labels to take demonstrations from, got {len(self._labels)}."
            )
        self._known = frozenset(self._labels)
        self._format = PromptFormat(self._labels, field=field, label_set=label_set)
        self._pool = _pool(rows, limit=max(20, int(self.token_budget * MAX_DEMONSTRATION_SHARE)))
        self._words = {}
        for name in label_set if label_set.holds_several else self._labels:
            texts = [text for text, label in rows if name in label_set.decisions(label)]
            self._words[name] = _word_counts(texts)
        self._all_words = _word_counts(text for text, _ in rows)

    def observe(
        self,
        candidate: CandidateTexts,
        rows: Sequence[Record],
        predictions: Sequence[Prediction],
    ) -> None:
        """Count the predictions of one candidate, to find its confusions."""
        record = self._records[_answers_key(candidate)]
        for row, prediction in zip(rows, predictions, strict=True):
            text, answer = _pair(row)
            given = None
            if prediction.label is not None:
                given = self._spell(prediction.label)
            spelled = replace(prediction, label=given)
            record.add([(text, self._spell(answer))], [spelled])

    def __call__(
        self,
        candidate: CandidateTexts,
        reflective_dataset: Mapping[str, Sequence[Record]],  # noqa: ARG002  (GEPA's signature)
        components_to_update: Sequence[str],  # noqa: ARG002
    ) -> dict[str, str]:
        """Return a changed system prompt or changed demonstrations; {} if no new edit was found.

        Parameters
        ----------
        candidate : mapping of str to str
            Component texts; the system prompt is the first that is neither ``user_template`` nor
            ``demonstrations``.
        reflective_dataset : mapping
            Not used: three records are too few to choose from; see `observe`.
        components_to_update : sequence of str
            Not used: demonstrations belong into the system prompt.
        """
        given = candidate.get(DEMONSTRATED, "")
        settings = DemonstrationSettings.from_text(given) if given.strip() else DemonstrationSettings()
        for k in RETRIEVED if DEMONSTRATED in candidate else ():
            shown = settings.model_copy(update={"k": k}).to_text()
            if k < len(set(self._train)) and shown != given and shown not in self._proposed:
                self._proposed.add(shown)
                return {DEMONSTRATED: shown}
        component = prompt_component(candidate)
        prompt = candidate[component]
        parts = self._format.parse(prompt)
        record = self._records[_answers_key(candidate)]
        for _ in range(TRIES):
            edited = self._edit(parts, record)
            text = self._format.render(edited)
            if text != prompt and text not in self._proposed and self._fits(edited):
                self._proposed.add(text)
                return {component: text}
        return {}

    def _fits(self, parts: PromptParts) -> bool:
        return estimate_tokens(self._format.added(parts)) <= self.token_budget

    def _edit(self, parts: PromptParts, record: PromptRecord) -> PromptParts:
        if self._forms and not parts.form and not self._format.names_all(parts.instruction):
            named = replace(parts, form=True)
            # First alone, then with whatever comes next, unless something else was better without.
            if self._fits(named):  # a hundred long names may exceed the token budget alone
                if self._format.render(named) not in self._proposed:
                    return named
                parts = named if self._rng.random() < 0.5 else parts
        if not parts.demonstrations:
            return self._start(parts)
        weights = {
            self._add: 3.0,
            self._swap: 3.0,
            self._note: 2.0,
            self._reorder: 1.0,
            self._drop: 1.0,
        }
        (chosen,) = self._rng.choices(list(weights), list(weights.values()))
        return chosen(parts, record)

    def _start(self, parts: PromptParts) -> PromptParts:
        """Add one demonstration of each label, if the token budget allows."""
        for label in self._shuffled(self._labels):
            text = self._rng.choice(self._pool[label])
            shown = (*parts.demonstrations, Demonstration(text, label))
            grown = replace(parts, demonstrations=shown)
            if self._fits(grown):
                parts = grown
        return parts

    def _add(self, parts: PromptParts, record: PromptRecord) -> PromptParts:
        """Add a demonstration of a label that was missed."""
        truth, given = self._confusion(record)
        demonstration = self._pick(truth, given, parts, record)
        if demonstration is None:
            return parts
        position = self._rng.randint(0, len(parts.demonstrations))
        before = parts.demonstrations[:position]
        after = parts.demonstrations[position:]
        grown = replace(parts, demonstrations=(*before, demonstration, *after))
        if self._fits(grown):
            return grown
        return self._swap(parts, record)

    def _swap(self, parts: PromptParts, record: PromptRecord) -> PromptParts:
        """Replace a demonstration, of a missed or an overpredicted label if any, by one of a missed label."""
        truth, given = self._confusion(record)
        demonstration = self._pick(truth, given, parts, record)
        if demonstration is None or not parts.demonstrations:
            return parts
        shown = list(parts.demonstrations)
        same = [position for position, old in enumerate(shown) if old.label == truth]
        over = [position for position, old in enumerate(shown) if old.label == given]
        replaceable = over or same or [0]
        if same and (not over or self._rng.random() < 0.5):
            replaceable = same
        shown[self._rng.choice(replaceable)] = demonstration
        return replace(parts, demonstrations=tuple(shown))

    def _drop(self, parts: PromptParts, record: PromptRecord) -> PromptParts:
        """Remove a random note, or a demonstration of the most overpredicted label."""
        if parts.notes and self._rng.random() < 0.5:
            notes = list(parts.notes)
            del notes[self._rng.randrange(len(notes))]
            return replace(parts, notes=tuple(notes))
        shown = list(parts.demonstrations)
        if len(shown) < 2:
            return parts
        if record.got:
            excess = [record.excess(demonstration.label) for demonstration in shown]
            del shown[excess.index(max(excess))]
        else:
            del shown[self._rng.randrange(len(shown))]
        return replace(parts, demonstrations=tuple(shown))

    def _reorder(self, parts: PromptParts, record: PromptRecord) -> PromptParts:
        """Shuffle the demonstrations; with confusions, half of the time put missed labels last."""
        shown = self._shuffled(parts.demonstrations)
        if record.got and self._rng.random() < 0.5:
            shown.sort(key=lambda demonstration: -record.excess(demonstration.label))
        return replace(parts, demonstrations=tuple(shown))

    def _note(self, parts: PromptParts, record: PromptRecord) -> PromptParts:
        """Add a note with words of training rows that favour a label over the predicted one."""
        truth, given = self._confusion(record)
        if not self._label_set.holds_several:
            head = f'"{truth}", not "{given}"'
            words = _telling_words(self._words[truth], self._words.get(given, Counter()))
        else:
            # A label that was missed, or else one that was added: what speaks for it, against all other texts.
            wanted = self._label_set.decisions(truth)
            answered = self._label_set.decisions(given)
            name = self._rng.choice(sorted(wanted - answered or answered - wanted))
            head = f'"{name}"'
            words = _telling_words(self._words[name], self._all_words - self._words[name])
        if not words:
            return self._add(parts, record)
        note = f"{head}: {', '.join(words)}"
        others = tuple(other for other in parts.notes if not other.startswith(f"{head}:"))
        return replace(parts, notes=(*others, note))

    def _confusion(self, record: PromptRecord) -> tuple[str, str]:
        """Draw a pair (true, predicted label) in proportion to its cost; at random without confusions."""
        # A whole answer that no training row has can be given all the same.
        may_be_any = self._label_set.holds_several
        pairs = sorted(
            (truth, given)
            for truth, given in record.cost
            if truth in self._known and (may_be_any or given in self._known)
        )
        if pairs:
            costs = [record.cost[pair] for pair in pairs]
            return self._rng.choices(pairs, costs)[0]
        truth, given = self._rng.sample(self._labels, 2)
        return truth, given

    def _pick(self, truth: str, given: str, parts: PromptParts, record: PromptRecord) -> Demonstration | None:
        """Choose a new demonstration of `truth`, mostly of a text predicted as `given`; None without one."""
        shown = {demonstration.text for demonstration in parts.demonstrations}
        free = [text for text in self._pool[truth] if text not in shown]
        if not free:
            return None
        missed = [text for text in free if record.got.get(text) == given]
        if missed and self._rng.random() < 0.7:
            free = missed
        return Demonstration(self._rng.choice(free), truth)

    def _spell(self, label: str) -> str:
        if self._label_set.holds_several:
            return self._label_set.canonical(label) or label
        return self._spelling.setdefault(normalise_label(label), label.strip())

    def _shuffled(self, items: Sequence[Any]) -> list[Any]:
        return self._rng.sample(items, len(items))


def _answers_key(candidate: CandidateTexts) -> str:
    """Return the key under which the answers of a candidate are recorded."""
    shown = candidate.get(DEMONSTRATED, "")
    return candidate[prompt_component(candidate)] + (f"\n{shown}" if shown.strip() else "")


def _pair(row: Example | Mapping[str, Any]) -> tuple[str, str]:
    """Return a row's text, with white space as in demonstrations, and its label."""
    if isinstance(row, Example):
        return one_line(row.input), row.answer
    return one_line(row["input"]), row["answer"]


def _pool(rows: Mapping[tuple[str, str], None], *, limit: int) -> dict[str, list[str]]:
    """Return the short texts of each label, or its shortest text if all are long."""
    pool: dict[str, list[str]] = {}
    for text, label in rows:
        pool.setdefault(label, []).append(text)
    for label, texts in pool.items():
        texts.sort(key=lambda text: (estimate_tokens(text), text))
        short = [text for text in texts if estimate_tokens(text) <= limit]
        pool[label] = short or texts[:1]
    return pool


def _word_counts(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(set(_WORD.findall(text.lower())))
    return counts


def _telling_words(own: Counter[str], other: Counter[str]) -> list[str]:
    """Return words more frequent in texts of one label than in others, by smoothed log odds."""
    scores = {
        word: math.log((count + 0.5) / (other[word] + 0.5)) * math.log1p(count)
        for word, count in own.items()
        if count >= 2 and count > 2 * other[word]
    }
    return sorted(scores, key=lambda word: (-scores[word], word))[:_NOTE_WORDS]


class Confusions:
    """Observer that sums the confidence of label confusions per prompt; each text counts once."""

    def __init__(self) -> None:
        self._records: defaultdict[str, PromptRecord] = defaultdict(PromptRecord)

    def observe(
        self,
        candidate: CandidateTexts,
        rows: Sequence[Record],
        predictions: Sequence[Prediction],
    ) -> None:
        """Count the confusions in one candidate's predictions."""
        pairs = [(str(row["input"]), str(row["answer"])) for row in rows]
        self._records["\0".join(candidate.values())].add(pairs, predictions)

    def describe(self, candidate: CandidateTexts) -> str | None:
        """Describe the costliest confusions, without row texts; None without confusions."""
        record = self._records["\0".join(candidate.values())]
        if not record.cost:
            return None
        costliest = sorted(record.cost, key=lambda pair: (-record.cost[pair], pair))
        confusions = []
        for truth, given in costliest[:_PAIRS]:
            cost = record.cost[truth, given]
            confusions.append(f'"{truth}" was taken for "{given}" (summed confidence {cost:.1f})')
        rows = counted(len(record.got), "row that was", "rows that were")
        return f"On {rows} asked under this prompt: {'; '.join(confusions)}."


class ReflectingAdapter(ConfidenceAdapter):
    """A `ConfidenceAdapter` that selects the records for the reflection model.

    Attributes
    ----------
    confusions : Confusions
        Must be the adapter's observer.
    """

    confusions: Confusions

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Any, Any],
        components_to_update: list[str],
    ) -> dict[str, list[dict[str, str]]]:
        """Return records of the lowest-scoring rows, and one record of all confusions."""
        answered = [
            trajectory
            for trajectory in eval_batch.trajectories or []
            if trajectory["prediction"].outcome is not Outcome.ERROR
        ]
        costly = sorted(answered, key=lambda trajectory: float(trajectory["score"]))[:_REFLECTED]
        batch = eval_batch
        if eval_batch.trajectories is not None:
            batch = replace(eval_batch, trajectories=costly)
        datasets = super().make_reflective_dataset(candidate, batch, components_to_update)
        confusions = self.confusions.describe(candidate)
        if confusions is not None:
            overall = {"Inputs": "all rows together", "Generated Outputs": "", "Feedback": confusions}
            for records in datasets.values():
                records.append(dict(overall))
        return datasets


class Guard:
    """Function wrapper that ends the search after three exceptions in a row.

    Parameters
    ----------
    function : callable
        The function.
    name : str
        Its name in messages.
    hint : str
        Advice for the user.

    Attributes
    ----------
    error : ProviderError or None
        Set once the function was given up; `should_stop` then ends the search.
    """

    def __init__(self, function: Callable[..., Any], *, name: str, hint: str) -> None:
        self._function = function
        self._name = name
        self._hint = hint
        self._failures = 0
        self.error: ProviderError | None = None

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401  (whatever the function returns)
        """Call the function and count its exceptions in a row."""
        try:
            result = self._function(*arguments)
        except Exception as error:
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                self.error = ProviderError(
                    f"failed {self._failures} times in a row, last: {error!r}.",
                    provider=self._name,
                    hint=self._hint,
                )
            raise
        self._failures = 0
        return result

    def should_stop(self, state: object) -> bool:  # noqa: ARG002  (GEPA's stopper signature)
        """Return True if the search must end, as the function failed three times in a row."""
        return self.error is not None


class Reflection(Guard):
    """Reflection model with a journal of paid answers.

    Parameters
    ----------
    model : callable
        ``prompt -> text``.
    name : str
        The model's name, part of the key its answers are stored under.
    store : JsonlStore
        Finished answers.
    cost : callable, optional
        Returns the US dollars spent so far, or None where no price is known; by default the model's attribute
        ``total_cost``, or None.

    Attributes
    ----------
    calls : int
        Answers that were used, those that an earlier session paid for included.
    """

    def __init__(
        self,
        model: Callable[[Any], str],
        *,
        name: str,
        store: JsonlStore,
        cost: Callable[[], float | None] | None = None,
    ) -> None:
        hint = "Check its name and key, or use proposer='exemplar', which needs none."
        super().__init__(model, name=f"reflection model {name}", hint=hint)
        self._cost = cost or (lambda: getattr(model, "total_cost", None))
        self._key = name
        self._store = store
        self._used: set[str] = set()
        self._earlier: list[float] = []
        self.calls = 0

    @property
    def total_cost(self) -> float | None:
        """US dollars spent so far, in earlier sessions too; None where no price is known."""
        cost = self._cost()
        known = self._earlier if cost is None else [*self._earlier, float(cost)]
        return sum(known) if known else None

    def __call__(self, prompt: Any) -> str:  # noqa: ANN401  (text or chat messages)
        """Return the model's answer to `prompt`."""
        key = sha256_of(f"{self._key}\n{prompt!r}")
        stored = self._store.get(key)
        if stored is None:
            before = self._cost() or 0.0
            text = super().__call__(prompt)
            spent = self._cost()
            stored = {"text": text, "cost": None if spent is None else spent - before}
            self._store.put(key, stored)
        elif isinstance(stored, str):  # of a run that kept no cost
            stored = {"text": stored, "cost": None}
        elif key not in self._used and stored["cost"] is not None:
            self._earlier.append(stored["cost"])
        self.calls += key not in self._used
        self._used.add(key)
        return str(stored["text"])


@contextlib.contextmanager
def open_reflection(
    model: str | Callable[[str], str] | None,
    store: JsonlStore,
    *,
    options: Mapping[str, Any] | None,
    stop: Stop,
    charge: Callable[[Usage], None],
    afford: Callable[[float], None],
) -> Iterator[Reflection | None]:
    """Open a reflection model, from a name (tested with one small call, unless it answered before) or from a function.

    A function is not tried: it may count its calls, or cost what nobody expects.

    Parameters
    ----------
    model : str, callable or None
        None for a search without one.
    store : JsonlStore
        Where finished answers are kept.
    options : mapping or None
        Options of a model given by its name.
    stop : Stop
        Gives up a call under way, where it is requested to end at once.
    charge : callable
        Called with what each call of a model given by its name has used.
    afford : callable
        Called with the US dollars that the prompt of such a call takes, about, before it is made; may refuse it.

    Raises
    ------
    ConfigurationError
        The model cannot be opened.
    ProviderError
        The model cannot be asked.
    """
    if not isinstance(model, str):
        yield None if model is None else Reflection(model, name=name_of(model), store=store)
        return
    client = open_client(model, options=options or {})
    calls = ModelCalls()
    price = prompt_price(model, options or {})
    # Prompts shall differ: the provider's own temperature. An engine in this process stays reproducible.
    sent = call_options(options or {})
    in_process = ClientTraits.of(client).in_process
    if not in_process:
        sent = {"temperature": None, **sent}

    def write(prompt: Any) -> str:  # noqa: ANN401  (text or chat messages)
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        if price is not None:
            afford(price * estimate_tokens(str(prompt)))
        request = CompletionRequest(messages=tuple(prompt), top_logprobs=0, options=sent)
        completion = run_sync(_unless_stopped(calls.complete(client, request), stop))
        charge(replace(completion.usage, cost=0.0) if in_process else completion.usage)
        if not completion.text.strip():
            raise ProviderError(
                f"Expected text, got {completion.refusal or 'an empty answer'!r}.", provider=client.name
            )
        return completion.text

    try:
        if not store:  # of a run that goes on, or is repeated, it was asked already
            write(_SMALL_PROMPT)
        yield Reflection(write, name=model, store=store, cost=lambda: _known_cost(calls.gate))
    finally:
        client.close()


async def _unless_stopped(call: Awaitable[tuple[Completion, int]], stop: Stop) -> Completion:
    """Return the completion of a call, which is cancelled where the search has to end at once.

    Raises
    ------
    LimitReachedError
        It was cancelled.
    """
    task = asyncio.ensure_future(call)
    loop = asyncio.get_running_loop()

    def give_up() -> None:
        if stop.at_once:
            loop.call_soon_threadsafe(task.cancel)

    try:
        with stop.calling(give_up):
            completion, _ = await task
    except asyncio.CancelledError:
        if stop.at_once:
            raise LimitReachedError(f"{stop.reason}.") from None
        raise
    return completion


def _known_cost(gate: Gate) -> float | None:
    """Return the US dollars that were charged; None where no call had a price."""
    if gate.unpriced and not gate.cost:
        return None
    return gate.cost


def check_names(*functions: object) -> None:
    """Refuse lambdas, as a run's journal needs functions with a stable name.

    Raises
    ------
    ConfigurationError
        One is a lambda.
    """
    for function in functions:
        if "<lambda>" in name_of(function):
            raise ConfigurationError(
                f"Expected a function with a name of its own when out is given, got {name_of(function)}: what a run "
                "has paid for is kept under the names of its models and proposer."
            )


def name_of(thing: object) -> str:
    """Return the name of a model or proposer, or else its module and class or function."""
    if isinstance(thing, str):
        return thing
    name = getattr(thing, "name", None)
    if isinstance(name, str):
        return name
    owner = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{owner.__module__}.{owner.__qualname__}"
