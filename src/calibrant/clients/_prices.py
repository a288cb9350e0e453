"""Prices of calls, from litellm's price list or the options, and whether calls need litellm."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from calibrant.clients._endpoint import KNOWN_PREFIXES
from calibrant.core._errors import ConfigurationError
from calibrant.core._reported import bounded_count, reported_mapping

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
    cached: float | None = None

    def cost(self, usage: object) -> float | None:
        """Return the cost of a call from its ``usage``; None without a number of prompt tokens."""
        counts = reported_mapping(usage)
        prompt, answer = _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))
        if prompt is None:
            return None
        cost = prompt * self.prompt + (answer or 0) * self.answer
        if self.cached is not None:
            details = reported_mapping(counts.get("prompt_tokens_details"))
            cached_tokens = min(prompt, _count(details.get("cached_tokens")) or 0)
            cost -= cached_tokens * (self.prompt - self.cached)
        return cost


def price_of_options(options: Mapping[str, Any]) -> Price | None:
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
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:
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


def price_of_model(name: str, options: Mapping[str, Any]) -> Price | None:
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
    given = price_of_options(options)
    if given is not None:
        return given
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
    return Price(prompt=float(prompt), answer=float(answer), cached=None if cached is None else float(cached))


def _count(value: object) -> int | None:
    """Return a number of tokens, bounded; None for anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return bounded_count(value) if is_count else None


def needs_litellm(model: str, options: Mapping[str, Any]) -> bool:
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
    names = {name for name, value in options.items() if value is not None}.difference(PRICE_OPTIONS)
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
