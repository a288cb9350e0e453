"""Client of decision models, on the wires of OpenAI's Decisions and of System One."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from calibrant.clients._calls import CallGate, FirstCall
from calibrant.clients._endpoint import (
    litellm_endpoint,
    resolve_endpoint,
    secret_texts,
    warn_of_plain_http,
)
from calibrant.clients._failures import only_refuses, with_hint
from calibrant.clients._http import JsonHttp
from calibrant.clients._litellm import (
    PRICE_OPTIONS,
    LiteLLMBase,
    import_litellm,
    listed_price,
    price_of_options,
)
from calibrant.core._completion import CompletionRequest, DecisionAnswer, DecisionQuestion, DecisionResponse
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._prediction import LogprobSpace, Record, Usage
from calibrant.core._reported import bounded_count, is_number, reported_mapping, without_none

DECISIONS: Final = "decisions/"
SYSTEM_ONE: Final = "systemone/"
PREFIXES: Final = (DECISIONS, SYSTEM_ONE)
_OWN_SERVER: Final = {DECISIONS: "openai/", SYSTEM_ONE: "hosted_vllm/"}
# What both of litellm's functions take; the others are dropped there without a word.
_OPTIONS: Final = frozenset({"api_base", "api_key", "custom_llm_provider", "extra_headers", "timeout"})
_DIRECT: Final = tuple(_OWN_SERVER.values())
# Route of each wire, and the member of its request that holds the text.
_ROUTES: Final = {DECISIONS: ("/v1/decisions", "input"), SYSTEM_ONE: ("/v1/systemone", "state")}
# Sets of questions whose JSON is kept: one for each prompt under way.
_KEPT: Final = 64
_ANSWER_KINDS: Final = {"choice": ("choice",), "score": ("score",), "yes_no": ("noul", "predicate")}
# Names of the levels of a score among its probabilities.
_LEVELS: Final = tuple(map(str, range(256)))
# Statuses of a server that lacks the route or a decision model: every call would meet them.
_ABSENT: Final = frozenset({404, 405, 501})
_NO_ROUTE: Final = (
    "The server has no decision model, or not this interface: a chat model is named without decisions/ or systemone/ "
    "(hosted_vllm/NAME, openai/NAME)."
)


class RemoteDecisionClient:
    """Client of one decision model: of OpenAI and of servers with an address directly, of others through litellm.

    A direct call costs a fraction of a millisecond of processor time; litellm takes several.

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
        The name is empty, an option is unknown or out of range, or there is no address or no key.
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
        set_options = without_none(options)
        unknown = sorted(set_options.keys() - _OPTIONS - set(PRICE_OPTIONS))
        if unknown:
            raise ConfigurationError(
                f"Expected options that decision models take ({', '.join(sorted(_OPTIONS))} and prices), got "
                f"{unknown[0]!r}: leave it out; nothing is sampled."
            )
        self.name = model
        self._wire = next(prefix for prefix in PREFIXES if model.startswith(prefix))
        self._price = price_of_options(options)
        self._first = FirstCall()
        name = _name_at_litellm(model, self._wire, has_address=bool(set_options.get("api_base")))
        sent = {option: value for option, value in set_options.items() if option in _OPTIONS}
        self._caller: _DirectCaller | _LiteLLMCaller
        if name.startswith(_DIRECT) and "custom_llm_provider" not in set_options:
            self._caller = _DirectCaller(name, provider=model, timeout=timeout, calls=max_concurrency, **sent)
            if self._price is None and self._caller.is_openai:
                self._price = listed_price(self._caller.model)
        else:
            self._caller = _LiteLLMCaller(name, {"timeout": timeout, **sent}, calls=max_concurrency)
        self.endpoint = self._caller.endpoint

    def hidden(self, text: str) -> str:
        """Return a text of the provider with the client's secrets redacted."""
        return self._caller.hidden(text)

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._caller.close()

    async def complete(self, request: CompletionRequest) -> object:
        """Raise ProviderError: the model writes no text."""
        del request
        raise ProviderError(
            "a decision model answers questions with fixed options and writes no text: name a chat model for this.",
            provider=self.name,
            systemic=True,
        )

    async def decide(self, text: str, questions: Sequence[DecisionQuestion]) -> DecisionResponse:
        """Return the answers to questions about a text, with one call.

        Raises
        ------
        ProviderError
            The call failed, or an answer does not fit its question. Nothing is retried here.
        """
        return await self._first.then(partial(self._call, text, tuple(questions)))

    async def _call(self, text: str, questions: tuple[DecisionQuestion, ...]) -> DecisionResponse:
        try:
            found = await self._caller.ask(self._wire, text, questions)
        except ProviderError as error:
            if error.status in _ABSENT:
                raise with_hint(error, _NO_ROUTE, systemic=True) from None
            raise
        usage = self._usage(found)
        try:
            return self._decision(found, questions, usage)
        except ProviderError as error:
            error.usage = usage  # the answer cannot be used, and is paid for
            raise

    def _decision(
        self, found: _Found, questions: Sequence[DecisionQuestion], usage: Usage
    ) -> DecisionResponse:
        reported = found.data.get("answers")
        if isinstance(reported, list | tuple):
            entries = map(reported_mapping, reported)
            reported = {str(entry.get("name") or _id(place)): entry for place, entry in enumerate(entries)}
        by_id = reported_mapping(reported)
        answers = [
            self._answer(question, reported_mapping(by_id.get(_id(place))))
            for place, question in enumerate(questions)
        ]
        return DecisionResponse(
            answers=tuple(answers),
            usage=usage,
            model=str(found.data["model"]) if found.data.get("model") else None,
        )

    def _answer(self, question: DecisionQuestion, answer: Record) -> DecisionAnswer | None:
        """Return an answer in the order of its question's options; None for a refusal."""
        kind = answer.get("type")
        if kind == "refusal":
            return None
        expected = _ANSWER_KINDS[question.kind]
        if kind not in expected:
            raise self._broken(f"expected an answer of the type {expected[0]}, got {kind!r:.80}")
        if question.kind == "yes_no":
            yes = self._number(answer.get("noul" if kind == "noul" else "probability"))
            return DecisionAnswer(probabilities=(1.0 - yes, yes))
        shares = self._shares(answer.get("probabilities"))
        names = question.options if kind == "choice" else _LEVELS[: len(question.options)]
        if shares.keys() != set(names):
            added = next((name for name in shares if name not in names), None)
            missing = next((name for name in names if name not in shares), None)
            got = f"none of {missing!r:.60}" if added is None else f"one of {added!r:.60}"
            raise self._broken(f"expected a probability of each option, got {got}")
        chosen = answer.get("choice")
        return DecisionAnswer(
            probabilities=tuple([self._number(shares[name]) for name in names]),
            chosen=question.options.index(chosen) if chosen in question.options else None,
        )

    def _shares(self, probabilities: object) -> Record:
        """Return the reported probabilities by option, or by the number of a level."""
        if isinstance(probabilities, dict):
            return probabilities
        entries = probabilities if isinstance(probabilities, list | tuple) else []
        found: dict[str, Any] = {}
        for entry in map(reported_mapping, entries):
            option = str(entry.get("value"))
            if option in found:
                raise self._broken(f"expected every option once, got {option!r:.80} again")
            found[option] = entry.get("probability")
        return found

    def _number(self, value: object) -> float:
        if type(value) is float and abs(value) <= _MOST:  # as nearly all are
            return value
        if not is_number(value) or abs(value) > _MOST:
            raise self._broken(f"expected a probability, got {value!r:.40}")
        return float(value)

    def _broken(self, problem: str) -> ProviderError:
        return ProviderError(f"broken response: {problem}.", provider=self.name, retryable=True)

    def _usage(self, found: _Found) -> Usage:
        counts = reported_mapping(found.data.get("usage"))
        prompt = bounded_count(counts.get("input_tokens"))
        answer = bounded_count(counts.get("output_tokens"))
        cost = found.cost
        if self._price is not None:
            cost = self._price.cost({"prompt_tokens": prompt, "completion_tokens": answer})
        return Usage(prompt_tokens=prompt, completion_tokens=answer, cost=cost)


class _Found(NamedTuple):
    """Answer of a server as JSON values, and the cost of the call in US dollars where it is known."""

    data: Record
    cost: float | None = None


class _DirectCaller:
    """Caller of a server with an address."""

    def __init__(
        self,
        name: str,
        *,
        provider: str,
        timeout: float,
        calls: int | None,
        **options: Any,  # noqa: ANN401 (see `_OPTIONS`)
    ) -> None:
        found = resolve_endpoint(name, api_base=options.get("api_base"), api_key=options.get("api_key"))
        self.endpoint = found.identity
        self.model = found.model
        self.is_openai = found.is_openai
        self._model = json.dumps(found.model)
        self._headers = options.get("extra_headers")
        self._http = JsonHttp(provider=provider, endpoint=found, timeout=timeout, calls=calls)
        self._http.hide(secret_texts({"extra_headers": self._headers or {}}))

    async def ask(self, wire: str, text: str, questions: tuple[DecisionQuestion, ...]) -> _Found:
        route, member = _ROUTES[wire]
        url = f"{self._http.endpoint.root}{route}{self._http.endpoint.query}"
        body = f'{{"model": {self._model}, "{member}": {json.dumps(text)}, "questions": {_encoded(wire, questions)}}}'
        reply = await self._http.send(url, body.encode(), headers=self._headers)
        return _Found(self._http.checked(reply))

    def hidden(self, text: str) -> str:
        return self._http.hidden(text)

    def close(self) -> None:
        self._http.close()


class _LiteLLMCaller(LiteLLMBase):
    """Caller of a provider that litellm knows."""

    def __init__(self, name: str, options: dict[str, Any], *, calls: int | None) -> None:
        super().__init__(name, options)
        self.endpoint = litellm_endpoint(name, options)
        self._gate = CallGate(calls)
        warn_of_plain_http(self.endpoint or "", self._secrets)

    async def ask(self, wire: str, text: str, questions: tuple[DecisionQuestion, ...]) -> _Found:
        litellm = import_litellm()
        function = litellm.asystemone if wire == SYSTEM_ONE else litellm.adecisions
        _, member = _ROUTES[wire]
        sent = {**self._options, member: text, "questions": _spelled(wire, questions)}
        async with self._gate.turn():
            try:
                response = await function(**sent, model=self.name, num_retries=0, max_retries=0)
            except Exception as error:  # noqa: BLE001 (the seam: anything may come)
                failure = error
            else:
                cost = response.hidden_params.get("response_cost")
                is_known = isinstance(cost, int | float) and math.isfinite(cost)
                return _Found(response.model_dump(), float(cost) if is_known else None)
        if only_refuses(failure):
            # litellm keeps neither the usage nor the answers to other questions.
            return _Found({"answers": {_id(place): {"type": "refusal"} for place in range(len(questions))}})
        raise self._failure(failure) from None  # the cause may hold a key


def _name_at_litellm(model: str, wire: str, *, has_address: bool) -> str:
    """Return the model's name behind the wire, with the prefix of its provider."""
    name = model.removeprefix(wire)
    if not name.strip():
        raise ConfigurationError(
            f"Expected a model's name after {wire}, got none: {wire}PROVIDER/NAME, or any name with api_base."
        )
    if name.startswith(_KNOWN):
        return name
    if has_address:
        return _OWN_SERVER[wire] + name
    raise ConfigurationError(
        f"Expected a provider of decision models before the model's name ({', '.join(_KNOWN)}) or the api_base of a "
        f"server, got {model:.80}."
    )


_MOST: Final = 2.0  # a rounded probability may exceed 1: what the sum may be is checked with the distribution
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


def _spelled(wire: str, questions: tuple[DecisionQuestion, ...]) -> Record | list[Any]:
    """Return the questions as the wire spells them, as JSON values."""
    if wire == SYSTEM_ONE:
        return {_id(place): _system_one(question) for place, question in enumerate(questions)}
    return [_openai(_id(place), question) for place, question in enumerate(questions)]


@lru_cache(maxsize=_KEPT)
def _encoded(wire: str, questions: tuple[DecisionQuestion, ...]) -> str:
    """Return the questions as JSON; nearly all rows of a run ask the same ones."""
    return json.dumps(_spelled(wire, questions))


def _system_one(question: DecisionQuestion) -> Record:
    asked = {"type": question.kind, "instructions": question.instructions}
    described = _described(question)
    if question.kind == "yes_no":
        asked["type"] = "noul"
        no, yes = question.options
        if described:
            return {**asked, "criteria": {"true": described[yes], "false": described[no]}}
        return asked
    if question.kind == "choice":
        return {**asked, "criteria": described or dict.fromkeys(question.options)}
    # A level is a text, with no member for what it means.
    told = {level: f"{level}: {words}" for level, words in described.items() if words}
    return {**asked, "criteria": [told.get(level, level) for level in question.options]}


def _openai(name: str, question: DecisionQuestion) -> Record:
    asked = {"type": question.kind, "name": name, "instructions": question.instructions}
    described = _described(question)
    if question.kind == "yes_no":
        lines = [f"{option}: {words}" for option, words in described.items() if words]
        return {**asked, "type": "predicate", "instructions": "\n".join([question.instructions, *lines])}
    named, listed = ("label", "levels") if question.kind == "score" else ("value", "choices")
    options = [{named: option} for option in question.options]
    for option in options:
        words = described.get(option[named])
        if words:
            option["description"] = words
    return {**asked, listed: options}


def _described(question: DecisionQuestion) -> dict[str, str | None]:
    """Return the description of each option; empty if none has one."""
    if question.descriptions:
        return dict(zip(question.options, question.descriptions, strict=True))
    return {}
