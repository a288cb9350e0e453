"""Prices of calls, and the choice between litellm and a direct call, from litellm's price list and the options."""

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
from calibrant.core import ConfigurationError, bounded_count

__all__ = ["PRICE_OPTIONS", "Price", "listed_price", "listed_provider", "needs_litellm", "price_of_options"]

PRICE_OPTIONS: Final = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
"""Options for the price of a token, in US dollars, under litellm's names."""

_FILE: Final = "model_prices_and_context_window_backup.json"
_FINE_TUNED: Final = re.compile(r"ft:[^:]+")


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price of a model's tokens, in US dollars.

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
        """Return the cost of a call from the ``usage`` of an OpenAI answer; None without a count of prompt tokens."""
        if not isinstance(usage, Mapping):
            return None
        asked, answered = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        if asked is None:
            return None
        cost = asked * self.prompt + (answered or 0) * self.answer
        details = usage.get("prompt_tokens_details")
        if self.cached is not None and isinstance(details, Mapping):
            cached_tokens = min(asked, _count(details.get("cached_tokens")) or 0)
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


def listed_price(model: str) -> Price | None:
    """Return OpenAI's price of a model, or None where the list lacks it.

    Parameters
    ----------
    model : str
        The model's name at OpenAI, without a prefix.
    """
    tuned = _FINE_TUNED.match(model)
    for name in (model, f"openai/{model}", tuned and tuned.group()):
        entry = _price_list().get(name or "")
        if entry is not None and entry[0] == "openai":
            return entry[1]
    return None


def listed_provider(model: str) -> str | None:
    """Return litellm's provider of a model name, or None for an unknown name."""
    entry = _price_list().get(model)
    return None if entry is None else entry[0]


@functools.cache
def _price_list() -> Mapping[str, tuple[str, Price | None]]:
    """Return provider and price by name; the file is large, so only these are kept."""
    spec = find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    try:
        entries = json.loads((Path(spec.origin).parent / _FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        name: (str(entry.get("litellm_provider")), _price(entry))
        for name, entry in entries.items()
        if isinstance(entry, dict)
    }


def _price(entry: Mapping[str, Any]) -> Price | None:
    prompt, answer, cached = (entry.get(name) for name in PRICE_OPTIONS)
    if not isinstance(prompt, int | float) or not isinstance(answer, int | float):
        return None
    return Price(
        prompt=float(prompt), answer=float(answer), cached=float(cached) if cached is not None else None
    )


def _count(value: object) -> int | None:
    """Return a number of tokens, bounded; None for anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return bounded_count(value) if is_count else None


# Providers for which litellm translates requests or answers, or signs in, at any address. The servers of the others
# take OpenAI's requests unchanged. Any other word before a slash belongs to the model's name.
_TRANSLATED: Final = frozenset(
    """
    a2a a2a_agent abliteration ai21 ai21_chat aihubmix aiml aiohttp_openai amazon_nova anthropic
    anthropic_text anyscale apertis assemblyai auto_router aws_polly aws_textract azure azure_ai
    azure_speech azure_text baseten bedrock bedrock_mantle black_forest_labs bytez cerebras
    charity_engine chatgpt chutes clarifai cloudflare codestral cognition cohere cohere_chat cometapi
    compactifai cortecs crusoe cursor custom custom_openai darkbloom dashscope databricks datarobot
    deepgram deepinfra deepseek docker_model_runner dotprompt edenai elevenlabs empiriolabs empower
    fal_ai featherless_ai fireworks_ai friendliai galadriel gdc gemini gigachat github github_copilot
    gmi gradient_ai groq helicone heroku huggingface humanloop hyperbolic inception infinity jina_ai
    lambda_ai langflow langfuse langgraph lemonade libertai litellm_agent litellm_proxy llamagate manus
    maritalk meta meta_llama milvus minimax mistral modelscope mongodb moonshot morph nadir nano-gpt
    nebius neosantara nlp_cloud novita nscale nvidia_nim nvidia_riva oci ollama ollama_chat oobabooga
    openai_like openrouter ovhcloud parasail perplexity petals pg_vector pinstripes poe predibase prism
    publicai qwen_ai_platform qwencloud ragflow recraft reducto reka replicate runwayml s3_vectors
    sagemaker sagemaker_chat sagemaker_nova sail sambanova sap sarvam scaleway scx-ai snowflake soniox
    stability strands_decider synthetic tencent tensormesh text-completion-codestral
    text-completion-inception text-completion-openai together_ai topaz transcribe triton typesafe v0
    valkey veniceai vercel_ai_gateway vertex_ai vertex_ai_beta vllm volcengine voyage wandb watsonx
    watsonx_text xai xiaomi_mimo xinference zai
    """.split()  # noqa: SIM905 (a list would take a line per name)
)
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
_LITELLM_BEGINNINGS: Final = (
    "aws_",
    "azure_",
    "cache_creation_",
    "cache_read_",
    "input_cost_per_",
    "litellm_",
    "mock_",
    "output_cost_per_",
    "vertex_",
)


def needs_litellm(model: str, options: Mapping[str, Any]) -> bool:
    """Return whether calls of `model` must go through litellm.

    Names that begin with ``openai/``, ``hosted_vllm/``, ``llamafile/`` or ``lm_studio/``, and with an
    ``api_base`` every name that litellm would not take for another provider's, are asked directly.

    Parameters
    ----------
    model : str
        The model's name.
    options : mapping
        Its options; some are litellm's own.
    """
    if any(_is_litellms(name) for name, value in options.items() if value is not None):
        return True
    if model.startswith(KNOWN_PREFIXES):
        return model.startswith(_COMPLETIONS)
    if not options.get("api_base"):
        return True
    provider, slash, _ = model.partition("/")
    if slash:
        return provider in _TRANSLATED
    return listed_provider(model) not in {None, "openai"}


def _is_litellms(name: str) -> bool:
    return name in _LITELLM_OPTIONS or (name.startswith(_LITELLM_BEGINNINGS) and name not in PRICE_OPTIONS)
