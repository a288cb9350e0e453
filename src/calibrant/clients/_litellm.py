"""litellm's clients for chat and for embeddings, its prices, and whether calls need it."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from calibrant.clients._calls import CallGate, FirstCall, check_seconds
from calibrant.clients._endpoint import (
    KNOWN_PREFIXES,
    Options,
    hide,
    litellm_endpoint,
    secret_texts,
    spellings,
    warn_of_plain_http,
)
from calibrant.clients._failures import advised, declined, refusal, translate, without_access
from calibrant.core._completion import CompletionRequest
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._installation import install_command
from calibrant.core._prediction import FloatArray, LogprobSpace, Usage
from calibrant.core._reported import bounded_count, is_number, reported_mapping, without_none

if TYPE_CHECKING:
    from types import ModuleType

_OPENAI: Final = "openai/"


class LiteLLMBase:
    """Base class of litellm's clients: its name, options and secrets, and errors without secrets."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        check_seconds(options["timeout"])
        self.name = model
        self._options = options
        self._secrets = [spelling for secret in secret_texts(options) for spelling in spellings(secret)]

    def hidden(self, text: str) -> str:
        """Return a text of the provider with the client's secrets redacted."""
        return hide(text, self._secrets)

    def close(self) -> None:
        """Do nothing: litellm keeps its connections for the process."""

    def _failure(self, error: Exception) -> ProviderError:
        failure = translate(error, provider=self.name, secrets=self._secrets)
        return advised(error, without_access(error, failure))


class LiteLLMClient(LiteLLMBase):
    """Client for every model name that litellm understands.

    Parameters
    ----------
    model : str
        A litellm model name (``gpt-4.1-mini``, ``anthropic/...``, ``openai/...`` with ``api_base``).
    timeout : float, default 60
        Time limit of one call, in seconds.
    max_concurrency : int, optional
        Calls in flight at the same time, per event loop; by default 256. Fewer where the process may not open that
        many files.
    space : LogprobSpace or str, default "masked"
        Log-probability space of the provider.
    **options
        Handed to ``litellm.acompletion`` (``api_base``, ``api_key``, ``seed``, ...). Temperature is 0
        unless it is named here; None leaves it out.

    Attributes
    ----------
    endpoint : str or None
        The address of the server without credentials, where options or environment name one.

    Raises
    ------
    ConfigurationError
        A parameter is out of range.
    """

    def __init__(
        self,
        model: str,
        *,
        timeout: float = 60.0,
        max_concurrency: int | None = None,
        space: LogprobSpace | str = LogprobSpace.MASKED,
        **options: Any,  # noqa: ANN401 (litellm's own parameters)
    ) -> None:
        super().__init__(model, {"temperature": 0, "timeout": timeout, **options})
        self._gate = CallGate(max_concurrency)
        self.endpoint = litellm_endpoint(model, options)
        self.space = LogprobSpace(space)
        self._first = FirstCall()
        warn_of_plain_http(self.endpoint or "", self._secrets)

    async def complete(self, request: CompletionRequest) -> object:
        """Return litellm's response; a content-policy block is returned as a refusal.

        Raises
        ------
        ProviderError
            The call failed. Nothing is retried here, and no parameter is dropped silently.
        """
        return await self._first.then(partial(self._call, request))

    async def _call(self, request: CompletionRequest) -> object:
        litellm = import_litellm()
        arguments = self._arguments(request)
        async with self._gate.turn():
            try:
                return await litellm.acompletion(**arguments)
            except Exception as error:  # noqa: BLE001 (the seam: anything may come)
                failure = error
        translated = self._failure(failure)
        if declined(failure, translated):
            return refusal(translated, self.name)
        raise translated from None  # the cause may hold a key

    def _arguments(self, request: CompletionRequest) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            **self._options,
            **request.options,
            "model": self.name,
            "messages": [dict(message) for message in request.messages],
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": False,
        }
        if request.response_format is not None:
            arguments["response_format"] = dict(request.response_format)
        if request.top_logprobs > 0:
            arguments |= {"logprobs": True, "top_logprobs": request.top_logprobs}
        return without_none(arguments)


def import_litellm() -> ModuleType:
    """Return the module litellm, imported when it is needed."""
    # Importing litellm downloads a price list unless told not to.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm  # noqa: PLC0415 (two seconds to import)
    except ImportError as error:
        raise ConfigurationError(
            f"litellm is needed for this model name: {install_command()} ({error})."
        ) from error
    litellm.suppress_debug_info = True  # it prints advice to standard output otherwise
    module: ModuleType = litellm
    return module


class LiteLLMEmbedder(LiteLLMBase):
    """Client for embeddings of texts, by any provider that litellm knows.

    Parameters
    ----------
    model : str
        A litellm model name (``text-embedding-3-small``, ``voyage/...``). With ``api_base``, a name without
        a provider that litellm knows means an OpenAI-compatible server, with or without ``openai/``; it
        needs no key.
    timeout : float, default 60
        Time limit of one attempt, in seconds; litellm makes three attempts with OpenAI-compatible servers.
    **options
        Handed to ``litellm.aembedding`` (``api_base``, ``api_key``, ``dimensions``, ...).

    Attributes
    ----------
    name : str
        The model, as it was named.
    dimension : int or None
        Length of a vector; None, since it is known only after a call.

    Raises
    ------
    ConfigurationError
        No provider is known for the name, or the timeout is out of range.
    """

    dimension: int | None = None

    def __init__(
        self,
        model: str,
        *,
        timeout: float = 60.0,
        **options: Any,  # noqa: ANN401 (litellm's own parameters)
    ) -> None:
        if options.get("base_url") and not options.get("api_base"):
            options["api_base"] = options.pop("base_url")
        self._model = _litellm_name(model, options)
        own_server = self._model.startswith(_OPENAI) and options.get("api_base")
        if own_server and not options.get("api_key") and not os.environ.get("OPENAI_API_KEY"):
            options["api_key"] = "none"  # the library behind litellm insists on one
        super().__init__(model, {"timeout": timeout, **options})

    async def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return the vectors of some texts, shape (n, d).

        Raises
        ------
        ProviderError
            The call failed, or its answer is not one vector per text.
        """
        return (await self.embed_priced(texts))[0]

    async def embed_priced(self, texts: Sequence[str]) -> tuple[FloatArray, Usage]:
        """Return the vectors of some texts, shape (n, d), and the usage of the call.

        Raises
        ------
        ProviderError
            The call failed, or its answer is not one vector per text.
        """
        arguments = {**self._options, "model": self._model, "input": list(texts)}
        try:
            # Asked for no retries, litellm still tries OpenAI's interface three times.
            response = await import_litellm().aembedding(**arguments, num_retries=0, max_retries=0)
        except Exception as error:  # noqa: BLE001 (the seam: anything may come)
            failure = error
        else:
            vectors = embedding_matrix(_vectors(response), count=len(texts), provider=self.name)
            return vectors, self._usage(response)
        # The cause may hold a key.
        raise self._failure(failure) from None

    def _usage(self, response: object) -> Usage:
        """Return the tokens of a response, and their cost where a price is known."""
        tokens = _count(getattr(getattr(response, "usage", None), "prompt_tokens", None)) or 0
        price = self.token_price
        return Usage(prompt_tokens=tokens, cost=None if price is None else tokens * price)

    @property
    def token_price(self) -> float | None:
        """US dollars of a token; None where no price is known."""
        name = self.name if "/" in self.name else f"{provider_of_bare_name(self.name)}/{self.name}"
        price = price_of_model(name, self._options)
        return None if price is None else price.prompt


def embedding_matrix(rows: ArrayLike | None, *, count: int, provider: str) -> FloatArray:
    """Return the vectors of an answer as a matrix, shape (`count`, d).

    Raises
    ------
    ProviderError
        The answer has another shape, or holds something else than numbers.
    """
    try:
        matrix = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise ProviderError(
            "Expected vectors of numbers, all of one length, got something else.", provider=provider
        ) from None
    if matrix.ndim != 2 or len(matrix) != count:
        raise ProviderError(
            f"Expected one vector per text, shape ({count}, d), got {matrix.shape}.", provider=provider
        )
    return matrix


def _litellm_name(model: str, options: Options) -> str:
    """Return litellm's name of a model; raise ConfigurationError if litellm does not know the model."""
    base = options.get("api_base")
    try:
        import_litellm().get_llm_provider(
            model, custom_llm_provider=options.get("custom_llm_provider"), api_base=base
        )
    except Exception:  # noqa: BLE001 (litellm raises what a server would)
        if base and model.strip():
            return _OPENAI + model
        raise ConfigurationError(
            f"Expected a model of embeddings that litellm knows, got {model!r:.80}: write it with its provider "
            "(openai/text-embedding-3-small), or give the api_base of the server."
        ) from None
    return model


def _vectors(response: object) -> list[Any] | None:
    """Return the vectors of a response in the order of the texts; None if there are none."""
    entries = getattr(response, "data", None)
    if not isinstance(entries, list):
        return None
    fields = [entry if isinstance(entry, Mapping) else vars(entry) for entry in entries]
    if all(isinstance(entry.get("index"), int) for entry in fields):
        fields.sort(key=lambda entry: int(entry["index"]))
    return [entry.get("embedding") for entry in fields]


PRICE_OPTIONS: Final = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
"""Options for the price of a token, in US dollars, under litellm's names."""

_MEMBER: Final = re.compile(r'^    [A-Z0-9_]+ = "([^"]+)"', re.MULTILINE)
_FINE_TUNED: Final = re.compile(r"ft:[^:]+")
_COMPLETIONS: Final = "text-completion-openai/"
# litellm's own options: it acts on them, and a server would refuse them.
_LITELLM_OPTIONS: Final = frozenset(
    """
    additional_drop_params allowed_openai_params api_version base_model cache caching client
    context_window_fallback_dict custom_llm_provider custom_prompt_dict default_headers deployment_id
    enable_json_schema_validation ensure_alternating_roles extra_query fallbacks guardrails
    merge_reasoning_content_in_choices metadata model_info model_list prompt_id prompt_variables
    provider_specific_header shared_session ssl_verify stream_timeout supports_system_message tags
    use_litellm_proxy
    """.split()  # noqa: SIM905
)
_LITELLM_BEGINNINGS: Final = tuple(
    "aws_ azure_ cache_creation_ cache_read_ input_cost_per_ litellm_ mock_ output_cost_per_ vertex_".split()  # noqa: SIM905
)


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price of a model's tokens, in US dollars per token.

    Attributes
    ----------
    prompt, answer : float
        Price of one token of the prompt, and of the answer.
    cached : float or None
        Price of one prompt token in the provider's cache; None where there is no discount.
    """

    prompt: float
    answer: float
    cached: float | None

    def cost(self, usage: object) -> float | None:
        """Return the cost of a call from its ``usage``; None without a number of prompt tokens."""
        counts = reported_mapping(usage)
        prompt = _count(counts.get("prompt_tokens"))
        answer = _count(counts.get("completion_tokens"))
        if prompt is None:
            return None
        cost = prompt * self.prompt + (answer or 0) * self.answer
        if self.cached is not None:
            details = reported_mapping(counts.get("prompt_tokens_details"))
            cached_tokens = min(prompt, _count(details.get("cached_tokens")) or 0)
            cost -= cached_tokens * (self.prompt - self.cached)
        return cost


def price_of_options(options: Options) -> Price | None:
    """Return the price set by the options, or None.

    Raises
    ------
    ConfigurationError
        A price is no number of dollars, or one of the prices is missing.
    """
    prices = {name: options[name] for name in PRICE_OPTIONS if options.get(name) is not None}
    if not prices:
        return None
    for name, value in prices.items():
        if not is_number(value) or value < 0:
            raise ConfigurationError(f"Expected {name} to be US dollars, 0 or more, got {value!r}.")
    if not {"input_cost_per_token", "output_cost_per_token"} <= prices.keys():
        raise ConfigurationError(
            f"Expected input_cost_per_token and output_cost_per_token together, got {' and '.join(prices)} alone."
        )
    return _price(prices)


def listed_price(model: str, *, provider: str = "openai") -> Price | None:
    """Return a provider's price of a model, or None if litellm's list lacks it.

    Parameters
    ----------
    model : str
        The model's name at the provider, without a prefix.
    provider : str, default "openai"
        The provider, as litellm names it.
    """
    tuned = _FINE_TUNED.match(model)
    for name in (model, f"{provider}/{model}", tuned and tuned.group()):
        entry = _price_list().get(name or "")
        if entry is not None and entry[0] == provider:
            return entry[1]
    return None


def price_of_model(name: str, options: Options) -> Price | None:
    """Return the price of a model: the one of its options, or its provider's in litellm's list.

    Parameters
    ----------
    name : str
        The model as litellm names it, with its provider's prefix.
    options : mapping
        The model's options; prices among them come first. With ``api_base`` the list says nothing: the server may be
        anybody's.

    Returns
    -------
    Price or None
        US dollars per token; None where no price is known.

    Raises
    ------
    ConfigurationError
        A price is no number of dollars, or one of the prices is missing.
    """
    own = price_of_options(options)
    if own is not None:
        return own
    if options.get("api_base") is not None:
        return None
    provider, _, model = name.partition("/")
    return listed_price(model, provider=provider)


@functools.cache
def _price_list() -> Mapping[str, tuple[str, Price | None]]:
    """Return the provider and the price of each model in litellm's price list, by name."""
    entries = json.loads(_litellm_file("model_prices_and_context_window_backup.json") or "{}")
    return {
        name: (str(entry.get("litellm_provider")), _price(entry))
        for name, entry in entries.items()
        if isinstance(entry, dict)
    }


def _litellm_file(path: str) -> bytes:
    """Return a file of litellm's package without importing it; empty if there is none."""
    spec = find_spec("litellm")
    if spec is None or spec.origin is None:
        return b""
    try:
        return (Path(spec.origin).parent / path).read_bytes()
    except OSError:
        return b""


def _price(entry: Mapping[str, Any]) -> Price | None:
    prompt, answer, cached = (entry.get(name) for name in PRICE_OPTIONS)
    if not isinstance(prompt, int | float) or not isinstance(answer, int | float):
        return None
    cached = None if cached is None else float(cached)
    return Price(prompt=float(prompt), answer=float(answer), cached=cached)


def _count(value: object) -> int | None:
    """Return a number of tokens, bounded; None for anything else."""
    if type(value) is int and value >= 0:
        return bounded_count(value)
    return None


def needs_litellm(model: str, options: Options) -> bool:
    """Return True if calls of `model` must go through litellm, which is slower than a direct call.

    Names that begin with ``openai/``, ``hosted_vllm/``, ``llamafile/`` or ``lm_studio/``, and with an
    ``api_base`` every name that litellm would not take for another provider's, are called directly.

    Parameters
    ----------
    model : str
        The model's name.
    options : mapping
        Its options; some are litellm's own.
    """
    names = without_none(options).keys() - set(PRICE_OPTIONS)
    if any(name in _LITELLM_OPTIONS or name.startswith(_LITELLM_BEGINNINGS) for name in names):
        return True
    if model.startswith(KNOWN_PREFIXES):
        return model.startswith(_COMPLETIONS)
    if not options.get("api_base"):
        return True
    provider, slash, _ = model.partition("/")
    if slash:  # any other word before a slash belongs to the model's name
        return provider in _litellm_providers()
    entry = _price_list().get(model)
    return entry is not None and entry[0] != "openai"


def provider_of_bare_name(model: str) -> str | None:
    """Return the provider of a model that litellm lists without one (``gpt-4.1-mini``); None for other names."""
    listed = _price_list()
    entry = listed.get(model)
    if entry is None:
        return None
    # Kinds of interfaces at one provider have names of their own.
    family = entry[0].partition("-")[0].removesuffix("_converse")
    return next((name for name in (entry[0], "gemini", family) if f"{name}/{model}" in listed), family)


@functools.cache
def _litellm_providers() -> frozenset[str]:
    """Return the providers that litellm knows, read from its files, as its import is slow."""
    source = _litellm_file("types/utils.py").decode()
    members = source.partition("class LlmProviders(")[2].partition("\nclass ")[0]
    listed = json.loads(_litellm_file("llms/openai_like/providers.json") or "{}")
    return frozenset([*_MEMBER.findall(members), *listed])
