"""Routing of model names: to litellm, or directly to an OpenAI-compatible server.

A call through litellm costs milliseconds of CPU, a direct one little more than its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from calibrant.clients._endpoint import KNOWN_PREFIXES
from calibrant.clients._prices import PRICE_OPTIONS, listed_provider

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
