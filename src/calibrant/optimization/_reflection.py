"""Reflection model of a run: records that it reads, journal of its answers, and failures."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from calibrant.adapters._gepa import ConfidenceAdapter
from calibrant.core._completion import ClientTraits, Completion, CompletionRequest
from calibrant.core._errors import ConfigurationError, LimitReachedError, ProviderError
from calibrant.core._prediction import Outcome, Prediction, Usage
from calibrant.core._predictor import Stop
from calibrant.inference._base import run_sync
from calibrant.inference._limits import Gate
from calibrant.inference._methods import ModelCalls
from calibrant.inference._models import call_options, open_client
from calibrant.optimization._exemplar import PromptRecord

if TYPE_CHECKING:
    from gepa.core.adapter import EvaluationBatch

    from calibrant.runs._journal import JsonlStore

_SMALL_PROMPT: Final = "Answer with the word yes."
_REFLECTED: Final = 8  # rows that are shown, at most
_PAIRS: Final = 6  # confusions that are named, at most
_MOST_FAILURES: Final = 3


class Confusions:
    """Observer that sums the confidence of label confusions per prompt; each text counts once."""

    def __init__(self) -> None:
        self._records: defaultdict[str, PromptRecord] = defaultdict(PromptRecord)

    def observe(
        self,
        candidate: Mapping[str, str],
        rows: Sequence[Mapping[str, Any]],
        predictions: Sequence[Prediction],
    ) -> None:
        """Count the confusions in one candidate's predictions."""
        pairs = [(str(row["input"]), str(row["answer"])) for row in rows]
        self._records["\0".join(candidate.values())].add(pairs, predictions)

    def describe(self, candidate: Mapping[str, str]) -> str | None:
        """Describe the costliest confusions, without row texts; None without confusions."""
        record = self._records["\0".join(candidate.values())]
        if not record.cost:
            return None
        costliest = sorted(record.cost.items(), key=lambda pair: (-pair[1], pair[0]))[:_PAIRS]
        confusions = "; ".join(
            f'"{truth}" was taken for "{given}" (summed confidence {cost:.1f})'
            for (truth, given), cost in costliest
        )
        return f"On {len(record.got)} rows that were asked under this prompt: {confusions}."


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
        batch = eval_batch if eval_batch.trajectories is None else replace(eval_batch, trajectories=costly)
        datasets = super().make_reflective_dataset(candidate, batch, components_to_update)
        confusions = self.confusions.describe(candidate)
        if confusions is not None:
            overall = {"Inputs": "all rows together", "Generated Outputs": "", "Feedback": confusions}
            datasets = {name: [*records, dict(overall)] for name, records in datasets.items()}
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
        Answers that this session has asked for.
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
        self.calls = 0

    @property
    def total_cost(self) -> float | None:
        """US dollars spent so far; None where no price is known."""
        cost = self._cost()
        return None if cost is None else float(cost)

    def __call__(self, prompt: Any) -> str:  # noqa: ANN401  (text or chat messages)
        """Return the model's answer to `prompt`."""
        key = hashlib.sha256(f"{self._key}\n{prompt!r}".encode()).hexdigest()
        stored = self._store.get(key)
        if stored is None:
            stored = super().__call__(prompt)
            self.calls += 1
            self._store.put(key, stored)
        return str(stored)


@contextlib.contextmanager
def open_reflection(
    model: str | Callable[[str], str] | None,
    store: JsonlStore,
    *,
    options: Mapping[str, Any] | None = None,
    stop: Stop,
    charge: Callable[[Usage], None],
) -> Iterator[Reflection | None]:
    """Open a reflection model, from a name (tested with one small call) or from a function.

    A function is not tried: it may count its calls, or cost what nobody expects.

    Parameters
    ----------
    model : str, callable or None
        None for a search without one.
    store : JsonlStore
        Where finished answers are kept.
    options : mapping, optional
        Options of a model given by its name.
    stop : Stop
        Gives up a call under way, where it is requested to end at once.
    charge : callable
        Called with what each call of a model given by its name has used.

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
    # Prompts shall differ: the provider's own temperature. An engine in this process stays reproducible.
    own: dict[str, Any] = {} if ClientTraits.of(client).in_process else {"temperature": None}
    sent = {**own, **call_options(options or {})}

    def write(prompt: Any) -> str:  # noqa: ANN401  (text or chat messages)
        messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)
        request = CompletionRequest(messages=messages, top_logprobs=0, options=sent)
        completion = run_sync(_unless_stopped(calls.complete(client, request), stop))
        charge(completion.usage)
        if not completion.text.strip():
            raise ProviderError(
                f"Expected text, got {completion.refusal or 'an empty answer'!r}.", provider=client.name
            )
        return completion.text

    try:
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
    return None if gate.unpriced and not gate.cost else gate.cost


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
