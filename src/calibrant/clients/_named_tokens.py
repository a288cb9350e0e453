"""Log-probabilities of named tokens: an option of vLLM's ``/v1/completions``, and SGLang's ``/generate``."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from calibrant.clients._http import JsonHttp, Reply
from calibrant.core._completion import TokenListing
from calibrant.core._errors import ProviderError
from calibrant.core._prediction import Record, Usage
from calibrant.core._reported import bounded_count, reported_mapping

_PROBE: Final = "Hello there"
# Every vocabulary has these numbers, and none of them is likely after the probe.
_PROBED: Final = (1, 2, 3)
_CANDIDATES: Final = 1024
_NUMBER: Final = "token_id:"  # how vLLM writes the number of a token


@dataclass(kw_only=True)
class NamingOption:
    """Option of vLLM, ``logprob_token_ids``, in the request that scores the labels.

    Attributes
    ----------
    http : JsonHttp
        Transport to the server.
    model : str
        The model's name at the server.
    n_known : int
        Tokens that the vocabulary is taken to have; half as many after a refusal.
    """

    http: JsonHttp
    model: str
    n_known: int = 32_000  # hardly any has fewer, and further ones tell no more

    route: ClassVar[str] = "/v1/completions"
    most: ClassVar[int] = 128

    def fields(self, tokens: Sequence[int]) -> Record:
        """Return the fields that name tokens in a request to ``/v1/completions``; none if another route does."""
        return {"logprob_token_ids": list(tokens), "return_tokens_as_token_ids": True}

    async def named(self, prompt: str, tokens: Sequence[int], choice: Record) -> TokenListing:  # noqa: ARG002
        """Return the log-probabilities of tokens as the choice holds them.

        Parameters
        ----------
        prompt : str
            The prompt with the answer prefix.
        tokens : sequence of int
            Numbers of the tokens.
        choice : mapping
            Choice of `prompt` in the answer to a request with `fields`.

        Raises
        ------
        ProviderError
            The call failed, or some of the tokens are missing.
        """
        found = _listed_last(choice)
        check_complete(found, tokens, provider=self.http.provider)
        return TokenListing(logprobs=found, most_named=self.most)

    async def ask(self, prompt: str, fields: Record) -> Reply:
        """Request one token after `prompt`, with more fields."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1}
        return await self.http.exchange(self.route, {**body, **fields})

    async def candidates(self, prompt: str, fields: Record) -> TokenListing:
        """Return the log-probabilities of 1,024 tokens, spread evenly over the vocabulary.

        Parameters
        ----------
        prompt : str
            The prompt with the answer prefix.
        fields : mapping
            Fields of all requests to ``/v1/completions``.

        Raises
        ------
        ProviderError
            The call failed.
        """
        found: dict[int, float] = {}
        usage = Usage()
        step = max(1, self.n_known // _CANDIDATES)
        spread = range(0, self.n_known, step)[:_CANDIDATES]
        for begin in range(0, len(spread), self.most):
            named = self.fields(spread[begin : begin + self.most])
            reply = await self.ask(prompt, {**fields, **named})
            if reply.refuses("vocab") and self.n_known > self.most:
                self.n_known //= 2
                return await self.candidates(prompt, fields)
            answer = self.http.checked(reply)
            found |= _listed_last(_first(answer))
            usage += usage_of(reported_mapping(answer.get("usage")))
        return TokenListing(logprobs=found, most_named=self.most, usage=usage)


@dataclass(frozen=True, kw_only=True)
class GenerateRoute:
    """Route of SGLang, ``/generate``, asked after the labels: the server has the prompt in its cache by then.

    Attributes
    ----------
    http : JsonHttp
        Transport to the server.
    """

    http: JsonHttp

    route: ClassVar[str] = "/generate"
    most: ClassVar[int] = 256

    def fields(self, tokens: Sequence[int]) -> Record:  # noqa: ARG002 (another route names them)
        """Return no field."""
        return {}

    async def named(self, prompt: str, tokens: Sequence[int], choice: Record) -> TokenListing:  # noqa: ARG002
        """Return the log-probabilities of tokens after `prompt`, from a call of their own."""
        reply = await self.ask(prompt, {"token_ids_logprob": list(tokens)})
        found = self._listing(self.http.checked(reply), "output_token_ids_logprobs")
        check_complete(found.logprobs, tokens, provider=self.http.provider)
        return found

    async def ask(self, prompt: str, fields: Record) -> Reply:
        """Request one token after `prompt`, with more fields."""
        body = {
            "text": prompt,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": -1,
        }
        return await self.http.exchange(self.route, {**body, **fields})

    async def candidates(self, prompt: str, fields: Record) -> TokenListing:  # noqa: ARG002
        """Return the 1,024 most probable tokens after `prompt`."""
        reply = await self.ask(prompt, {"top_logprobs_num": _CANDIDATES})
        return self._listing(self.http.checked(reply), "output_top_logprobs")

    def _listing(self, answer: Record, name: str) -> TokenListing:
        usage = usage_of(reported_mapping(answer.get("meta_info")))
        return TokenListing(logprobs=_generated(answer, name), most_named=self.most, usage=usage)


TokenNaming: TypeAlias = NamingOption | GenerateRoute
"""Way in which a server of ``/v1/completions`` is asked for the log-probabilities of named tokens."""


async def find_naming(http: JsonHttp, model: str) -> TokenNaming | None:
    """Return the way in which a server names tokens; None if it knows none.

    A server that ignores an option which it does not know is found out by its answer, which lacks the tokens.

    Raises
    ------
    ProviderError
        A call failed for a reason that may pass.
    """
    option = NamingOption(http=http, model=model)
    reply = await option.ask(_PROBE, option.fields(_PROBED))
    if _answers(reply, http):
        found = _listed_last(_first(reply.data or {}))
        if set(_PROBED) <= found.keys():
            return option
    route = GenerateRoute(http=http)
    reply = await route.ask(_PROBE, {"token_ids_logprob": list(_PROBED)})
    if not _answers(reply, http):
        return None
    found = _generated(reply.data or {}, "output_token_ids_logprobs")
    if set(_PROBED) <= found.keys():
        return route
    return None


def _answers(reply: Reply, http: JsonHttp) -> bool:
    """Return False if a server lacks a route or refuses an option; raise for a fault that may pass."""
    if reply.passing:
        raise http.refused(reply)
    return reply.fine


def usage_of(
    counts: Record, *, prompt: str = "prompt_tokens", completion: str = "completion_tokens"
) -> Usage:
    """Return the usage that a server counted under these names."""
    return Usage(
        prompt_tokens=bounded_count(counts.get(prompt)),
        completion_tokens=bounded_count(counts.get(completion)),
    )


def check_complete(found: Container[int], tokens: Sequence[int], *, provider: str) -> None:
    """Raise ProviderError unless all tokens were found.

    Raises
    ------
    ProviderError
        A token is missing; every other call would miss some.
    """
    n_found = sum(token in found for token in tokens)
    if n_found < len(tokens):
        raise ProviderError(
            f"Expected the log-probabilities of {len(tokens)} named tokens, got {n_found}: serve the model as when the "
            "head was fitted, or fit it again.",
            provider=provider,
            systemic=True,
        )


def _at(entries: object, place: int) -> object:
    if isinstance(entries, list) and entries:
        return entries[place]
    return None


def _first(answer: Record) -> Record:
    return reported_mapping(_at(answer.get("choices"), 0))


def _listed_last(choice: Record) -> dict[int, float]:
    """Return the tokens listed at the last position of a choice, by the numbers they are written with."""
    places = reported_mapping(choice.get("logprobs")).get("top_logprobs")
    last = reported_mapping(_at(places, -1))
    named = [key for key in last if key.startswith(_NUMBER)]
    return dict(_numbers((last[key], key.removeprefix(_NUMBER)) for key in named))


def _generated(answer: Record, name: str) -> dict[int, float]:
    """Return the tokens in a list ``[logprob, number, text]`` of ``meta_info`` at its first position."""
    places = reported_mapping(answer.get("meta_info")).get(name)
    first = _at(places, 0)
    entries = first if isinstance(first, list) else []
    return dict(_numbers(entry[:2] for entry in entries if isinstance(entry, list) and len(entry) > 1))


def _numbers(pairs: Iterator[Any]) -> Iterator[tuple[int, float]]:
    """Yield numbers of tokens with their log-probabilities; what is no number is left out."""
    for logprob, number in pairs:
        try:
            found = int(number), min(float(logprob), 0.0)
        except (TypeError, ValueError):
            continue
        if not math.isnan(found[1]):
            yield found
