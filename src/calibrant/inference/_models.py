"""The one function that turns a model's name into a client."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from calibrant.core._completion import STAND_INS, Client, Opener
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import ConfigurationError
from calibrant.inference._choice import Scoring
from calibrant.inference._limits import DEFAULT_CONCURRENCY

ModelLike: TypeAlias = str | Client | Callable[[list[dict[str, str]]], object]
"""A model's name, a client, or a callable ``messages -> response``."""

ENGINE_SETTINGS = ("n_ctx", "n_parallel", "n_threads")
SERVER_SETTINGS = ("chat_template", "next_tokens")
_NOT_OPTIONS = {
    "model": "name the model itself (name under [model] in a task file)",
    "messages": "write prompt and user_template",
    "space": "set space itself (under [model] in a task file)",
    "max_concurrency": "set concurrency (under [model] in a task file)",
    "response_format": "it is built from labels and field; Classifier and ConfidenceAdapter take another",
    "logprobs": "log-probabilities are asked for anyway; top_logprobs of Classifier says how many",
    "top_logprobs": "set top_logprobs of Classifier or ConfidenceAdapter",
}
_CLIENT_LIMIT = 256
_LOCAL = "local/"
_GGUF = "llamacpp:"
_FAKE = "fake/"


def open_client(
    model: ModelLike,
    *,
    space: LogprobSpace | str | None = None,
    concurrency: int | None = None,
    options: Mapping[str, Any] | None = None,
    scoring: Scoring | None = None,
) -> Client:
    """Return a client for `model`.

    Parameters
    ----------
    model : str, Client or callable
        ``local/smollm2-135m`` (embedded), ``llamacpp:PATH.gguf``, any litellm model name, ``fake/NAME`` (see
        `calibrant.testing.fake_model`),
        a callable ``messages -> response``, or a client, which is returned unchanged. Servers that speak
        OpenAI's protocol are asked without litellm: ``openai/...``, ``hosted_vllm/...``,
        ``llamafile/...``, ``lm_studio/...``, and with ``api_base`` every name that litellm would not
        take for another provider's.
    space : str, optional
        What the log-probabilities are probabilities of, where the default is wrong:
        ``raw`` for embedded engines, ``masked`` for everything else.
    concurrency : int, optional
        Calls of a callable that run at the same time.
    options : mapping, optional
        Handed to the provider (``api_base``, ``timeout``, ``temperature``, ...); for embedded engines
        ``n_ctx``, ``n_parallel`` and ``n_threads`` too.
    scoring : {"exact", "decode"}, optional
        What the client is for. With ``exact``, a name that begins with ``openai/``, ``hosted_vllm/``,
        ``llamafile/``, ``lm_studio/`` or ``text-completion-openai/`` and has an ``api_base`` is asked how
        probable labels are by an `OpenAICompatibleClient`, which also takes the options ``chat_template``
        and ``next_tokens``.

    Raises
    ------
    ConfigurationError
        The name is empty, an option is out of range or set elsewhere, an engine it needs is not
        installed, or there is no address or no key for it.
    """
    if isinstance(model, str) and (model in STAND_INS or model.startswith(_FAKE)):
        return _stand_in(model)(model, space=space, concurrency=concurrency, options=options, scoring=scoring)
    options = dict(options or {})
    _check_options(options)
    if concurrency is not None and concurrency < 1:
        raise ConfigurationError(f"Expected concurrency of at least 1, got {concurrency}.")
    served = _is_served(model, options, scoring)
    if not served:
        _refuse_server_settings(options, "this model" if not isinstance(model, str) else model)
    if isinstance(model, Client):
        return model
    if callable(model):
        _refuse_engine_settings(options, "a callable")
        from calibrant.clients._callable import CallableClient  # noqa: PLC0415 (loaded when it is used)

        return CallableClient(
            model, space=space or LogprobSpace.MASKED, max_workers=concurrency or DEFAULT_CONCURRENCY
        )
    if not isinstance(model, str) or not model.strip():
        raise ConfigurationError(f"Expected a model's name, a client or a callable, got {model!r}.")
    settings = {name: options.pop(name) for name in ENGINE_SETTINGS if name in options}
    if model.startswith(_GGUF):
        from calibrant.clients._llamacpp import LlamaCppClient  # noqa: PLC0415 (loaded when it is used)

        return LlamaCppClient(model.removeprefix(_GGUF), name=model, **settings)
    if model.startswith(_LOCAL):
        from calibrant.clients._llamacpp import LlamaCppClient  # noqa: PLC0415 (loaded when it is used)

        return LlamaCppClient.local(model, **settings)
    _refuse_engine_settings(settings, model)
    return _open_remote(model, space or LogprobSpace.MASKED, concurrency, options, served=served)


def _stand_in(name: str) -> Opener:
    if name not in STAND_INS:
        raise ConfigurationError(
            f"Expected a fake model that a block of calibrant.testing.fake_model names, got {name!r}; "
            f"there are: {', '.join(sorted(STAND_INS)) or 'none'}."
        )
    return STAND_INS[name]


def _open_remote(
    model: str, space: LogprobSpace | str, concurrency: int | None, options: dict[str, Any], *, served: bool
) -> Client:
    if options.get("base_url") and not options.get("api_base"):
        options["api_base"] = options.pop("base_url")
    from calibrant.clients._prices import needs_litellm  # noqa: PLC0415 (loaded when it is used)

    if not served and needs_litellm(model, options):
        from calibrant.clients._litellm import LiteLLMClient  # noqa: PLC0415 (loaded when it is used)

        return LiteLLMClient(model, space=space, **options)
    from calibrant.clients._openai_chat import OpenAIChatClient  # noqa: PLC0415 (loaded when it is used)
    from calibrant.clients._openai_compatible import OpenAICompatibleClient  # noqa: PLC0415 (loaded when it is used)

    kind = OpenAICompatibleClient if served else OpenAIChatClient
    # The client's own limit keeps a process within its sockets; who wants more calls gets them.
    most = concurrency if concurrency is not None and concurrency > _CLIENT_LIMIT else None
    return kind(model, space=space, max_concurrency=most, **options)


def _check_options(options: Mapping[str, Any]) -> None:
    for name, instead in _NOT_OPTIONS.items():
        if name in options:
            raise ConfigurationError(f"Expected no {name!r} among the model's options: {instead}.")
    for name in ENGINE_SETTINGS:
        value = options.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(
                f"Expected the model's option {name} to be a whole number of at least 1, got {value!r}."
            )
    timeout = options.get("timeout", 1)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ConfigurationError(
            f"Expected the model's option timeout to be a number of seconds above 0, got {timeout!r}."
        )


def _refuse_engine_settings(options: Mapping[str, Any], model: str) -> None:
    found = [name for name in ENGINE_SETTINGS if name in options]
    if found:
        raise ConfigurationError(
            f"Expected no {', '.join(found)} among the options of {model}: it sizes an embedded engine "
            f"({_LOCAL}NAME or {_GGUF}PATH.gguf) and means nothing elsewhere."
        )


def _is_served(model: object, options: Mapping[str, Any], scoring: Scoring | None) -> bool:
    """Return whether `model` names a server that is to be asked how probable labels are."""
    from calibrant.clients._openai_compatible import OpenAICompatibleClient  # noqa: PLC0415 (loaded when it is used)

    return (
        scoring == "exact"
        and isinstance(model, str)
        and model.startswith(OpenAICompatibleClient.PREFIXES)
        and bool(options.get("api_base"))
    )


def _refuse_server_settings(options: Mapping[str, Any], model: str) -> None:
    found = [name for name in SERVER_SETTINGS if name in options]
    if found:
        from calibrant.clients._openai_compatible import OpenAICompatibleClient  # noqa: PLC0415 (loaded when it is used)

        names = " or ".join(f"{prefix}NAME" for prefix in OpenAICompatibleClient.PREFIXES)
        raise ConfigurationError(
            f"Expected no {', '.join(found)} among the options of {model}: it shapes how a server is asked "
            f"how probable labels are ({names} with api_base and scoring='exact') and means nothing elsewhere."
        )


def call_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that go with every call: all but what an engine or a client is set up with."""
    own = {*ENGINE_SETTINGS, *SERVER_SETTINGS}
    return {name: value for name, value in (options or {}).items() if name not in own}
