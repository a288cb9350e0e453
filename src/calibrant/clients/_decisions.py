"""Client of decision models, through litellm's ``decisions`` and ``systemone``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from calibrant.clients._calls import CallGate, FirstCall
from calibrant.clients._endpoint import hide, litellm_endpoint, warn_of_plain_http
from calibrant.clients._litellm import PRICE_OPTIONS, LiteLLMBase, import_litellm, price_of_options
from calibrant.core._completion import CompletionRequest
from calibrant.core._decision import Decision, DecisionAnswer, DecisionQuestion
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._prediction import LogprobSpace, Usage
from calibrant.core._reported import bounded_count

DECISIONS: Final = "decisions/"
SYSTEM_ONE: Final = "systemone/"
PREFIXES: Final = (DECISIONS, SYSTEM_ONE)
_OWN_SERVER: Final = {DECISIONS: "openai/", SYSTEM_ONE: "hosted_vllm/"}
# What both of litellm's functions take; the others are dropped there without a word.
_OPTIONS: Final = frozenset({"api_base", "api_key", "custom_llm_provider", "extra_headers", "timeout"})
_NO_ROUTE: Final = (
    "The server has no decision model, or not this interface: a chat model is named without decisions/ or systemone/ "
    "(hosted_vllm/NAME, openai/NAME)."
)


class LiteLLMDecisionClient(LiteLLMBase):
    """Client of one decision model.

    Parameters
    ----------
    model : str
        ``decisions/`` for OpenAI's Decisions or ``systemone/`` for System One, then a model as litellm names it
        (``decisions/openai/gpt-6-luna``, ``systemone/typesafe/jev-latest``). With ``api_base`` any name is taken for
        that server's own (``systemone/local``).
    timeout : float, default 60
        Time limit of one call, in seconds.
    max_concurrency : int, optional
        Calls in flight at the same time, per event loop; by default 256.
    **options
        ``api_base``, ``api_key``, ``extra_headers``, and the price of a token (``input_cost_per_token``,
        ``output_cost_per_token``, US dollars).

    Attributes
    ----------
    endpoint : str or None
        The address of the server without credentials, where options or environment name one.

    Raises
    ------
    ConfigurationError
        The name is empty, or an option is unknown or out of range.
    """

    space = LogprobSpace.DECISION

    def __init__(
        self,
        model: str,
        *,
        timeout: float = 60.0,
        max_concurrency: int | None = None,
        **options: Any,  # noqa: ANN401 (litellm's own parameters)
    ) -> None:
        self._price = price_of_options(options)
        given = {name: value for name, value in options.items() if value is not None}
        unknown = sorted(given.keys() - _OPTIONS - set(PRICE_OPTIONS))
        if unknown:
            raise ConfigurationError(
                f"Expected options that decision models take ({', '.join(sorted(_OPTIONS))} and prices), got "
                f"{unknown[0]!r}: leave it out; nothing is sampled."
            )
        self._wire = next(prefix for prefix in PREFIXES if model.startswith(prefix))
        self._model = self._name_at_litellm(model.removeprefix(self._wire), given)
        self._gate = CallGate(max_concurrency)
        self._first = FirstCall()
        sent = {name: value for name, value in given.items() if name in _OPTIONS}
        super().__init__(model, {"timeout": timeout, **sent})
        self.endpoint = litellm_endpoint(self._model, options)
        warn_of_plain_http(self.endpoint or "", self._secrets)

    def _name_at_litellm(self, name: str, options: Mapping[str, Any]) -> str:
        if not name.strip():
            raise ConfigurationError(
                f"Expected a model's name after {self._wire}, got none: {self._wire}PROVIDER/NAME, or any name with "
                "api_base."
            )
        has_provider = name.startswith(_KNOWN)
        if options.get("api_base") and not has_provider:
            return _OWN_SERVER[self._wire] + name
        if not has_provider:
            raise ConfigurationError(
                f"Expected a provider of decision models before the model's name ({', '.join(_KNOWN)}) or the "
                f"api_base of a server, got {self._wire}{name:.80}."
            )
        return name

    def hidden(self, text: str) -> str:
        """Return a text of the provider with the client's secrets redacted."""
        return hide(text, self._secrets)

    async def complete(self, request: CompletionRequest) -> object:
        """Raise ProviderError: the model writes no text."""
        del request
        raise ProviderError(
            "a decision model answers questions with fixed options and writes no text: name a chat model for this.",
            provider=self.name,
            systemic=True,
        )

    async def decide(self, text: str, questions: Sequence[DecisionQuestion]) -> Decision:
        """Return the answers to questions about a text, with one call.

        Raises
        ------
        ProviderError
            The call failed, or an answer does not fit its question. Nothing is retried here.
        """
        return await self._first.then(partial(self._call, text, questions))

    async def _call(self, text: str, questions: Sequence[DecisionQuestion]) -> Decision:
        litellm = import_litellm()
        arguments = {**self._options, "model": self._model, "num_retries": 0, "max_retries": 0}
        async with self._gate.turn():
            try:
                if self._wire == SYSTEM_ONE:
                    asked = {_id(place): _system_one(question) for place, question in enumerate(questions)}
                    response = await litellm.asystemone(**arguments, state=text, questions=asked)
                    answers = [response.answers.get(name) for name in asked]
                else:
                    listed = [_openai(_id(place), question) for place, question in enumerate(questions)]
                    response = await litellm.adecisions(**arguments, input=text, questions=listed)
                    answers = list(response.answers)
            except Exception as error:  # noqa: BLE001 (the seam: anything may come)
                failure = error
            else:
                return self._decision(response, answers, questions)
        raise self._translated(failure) from None  # the cause may hold a key

    def _translated(self, error: Exception) -> ProviderError:
        found = self._failure(error)
        if found.status not in {404, 405, 501}:
            return found
        return type(found)(
            str(found).removeprefix(f"{found.provider}: "),
            provider=found.provider,
            status=found.status,
            hint=_NO_ROUTE,
            systemic=True,
        )

    def _decision(
        self,
        response: Any,  # noqa: ANN401 (litellm's)
        answers: Sequence[Any],
        questions: Sequence[DecisionQuestion],
    ) -> Decision:
        if len(answers) != len(questions):
            raise self._broken(f"expected {len(questions)} answers, got {len(answers)}")
        pairs = zip(questions, answers, strict=True)
        return Decision(
            answers=tuple(self._answer(question, answer) for question, answer in pairs),
            usage=self._usage(response),
            model=response.model,
        )

    def _answer(self, question: DecisionQuestion, answer: Any) -> DecisionAnswer | None:  # noqa: ANN401
        """Return an answer in the order of its question's options; None for a refusal."""
        if answer is None:
            raise self._broken("a question has no answer")
        if answer.type == "refusal":
            return None
        expected = {"choice": {"choice"}, "score": {"score"}, "yes_no": {"noul", "predicate"}}[question.kind]
        if answer.type not in expected:
            raise self._broken(f"expected an answer of the type {min(expected)}, got {answer.type!r:.80}")
        if question.kind == "yes_no":
            yes = answer.noul if answer.type == "noul" else answer.probability
            return DecisionAnswer(probabilities=(1.0 - yes, yes))
        reported = _reported(answer.probabilities)
        names = list(map(str, range(len(question.options)))) if question.kind == "score" else question.options
        if set(reported) != set(names):
            raise self._broken(
                f"expected the probabilities of the {len(names)} options that were asked, got those of "
                f"{', '.join(map(repr, reported))!s:.80}"
            )
        chosen = getattr(answer, "choice", None)
        return DecisionAnswer(
            probabilities=tuple(reported[name] for name in names),
            chosen=question.options.index(chosen) if chosen in question.options else None,
        )

    def _broken(self, problem: str) -> ProviderError:
        return ProviderError(f"broken response: {problem}.", provider=self.name, retryable=True)

    def _usage(self, response: Any) -> Usage:  # noqa: ANN401
        counts = {} if response.usage is None else response.usage.model_dump()
        prompt, answer = (bounded_count(counts.get(name) or 0) for name in ("input_tokens", "output_tokens"))
        if self._price is None:
            cost = response.hidden_params.get("response_cost")
            is_known = isinstance(cost, int | float) and math.isfinite(cost)
            return Usage(
                prompt_tokens=prompt, completion_tokens=answer, cost=float(cost) if is_known else None
            )
        cost = self._price.cost({"prompt_tokens": prompt, "completion_tokens": answer})
        return Usage(prompt_tokens=prompt, completion_tokens=answer, cost=cost)


# Prefixes of the providers whose decision models litellm knows.
_KNOWN: Final = (
    "openai/",
    "openrouter/",
    "azure_ai/",
    "perplexity/",
    "typesafe/",
    "strands_decider/",
    "cloudflare/",
    "databricks/",
    "hosted_vllm/",
)


def _id(place: int) -> str:
    return f"q{place}"


def _system_one(question: DecisionQuestion) -> dict[str, Any]:
    if question.kind == "yes_no":
        return {"type": "noul", "instructions": question.instructions}
    levels: Any = list(question.options)
    options = levels if question.kind == "score" else dict.fromkeys(levels)
    return {"type": question.kind, "instructions": question.instructions, "criteria": options}


def _openai(name: str, question: DecisionQuestion) -> dict[str, Any]:
    common = {"name": name, "instructions": question.instructions}
    if question.kind == "yes_no":
        return {"type": "predicate", **common}
    if question.kind == "score":
        return {"type": "score", **common, "levels": [{"label": level} for level in question.options]}
    return {"type": "choice", **common, "choices": [{"value": option} for option in question.options]}


def _reported(probabilities: Any) -> dict[str, float]:  # noqa: ANN401
    """Return the reported probabilities by option, or by the number of a level."""
    if isinstance(probabilities, Mapping):
        return {str(name): float(value) for name, value in probabilities.items()}
    return {str(entry.value): float(entry.probability) for entry in probabilities}
