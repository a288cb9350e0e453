"""Models by name: clients, batch interfaces of providers, and settings of models that replace a task's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

from calibrant.clients._calls import RetryPolicy, check_seconds
from calibrant.clients._endpoint import (
    ADDRESSES,
    KNOWN_PREFIXES,
    Options,
    is_secret,
    own_server_of,
    public_address,
    secret_texts,
    server_address,
)
from calibrant.clients._http import JsonService
from calibrant.clients._litellm import LiteLLMClient, needs_litellm, price_of_model, provider_of_bare_name
from calibrant.core._completion import STAND_INS, Client, DecisionClient
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import as_record
from calibrant.core._lazy import supplied
from calibrant.core._prediction import JsonObject, LogprobSpace
from calibrant.core._reported import without_none
from calibrant.core._rows import Columns
from calibrant.core._settings import ModelSettings
from calibrant.core._task import Task
from calibrant.inference._limits import DEFAULT_CONCURRENCY
from calibrant.inference._methods import Scoring

if TYPE_CHECKING:
    from calibrant.clients._batch_api import BatchApi as BatchApi  # noqa: PLC0414 (for the layers above)
    from calibrant.clients._batch_api import RemoteBatch as RemoteBatch  # noqa: PLC0414 (as above)

ModelLike: TypeAlias = str | Client | Callable[[list[dict[str, str]]], object]
"""A model's name, a client, or a callable ``messages -> response``."""

ConfiguredModel: TypeAlias = Any
"""A model of a task or of its cascade, or a provider."""

__all__ = ["JsonService"]  # for layers that open no clients themselves

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
_ENGINE_USE = f"sizes an embedded engine ({_LOCAL}NAME or {_GGUF}PATH.gguf)"
_CHARACTERS_PER_TOKEN: Final = 4  # of English, about, in the tokenisers of large models
_ANSWER_TOKENS: Final = 10  # the JSON around a label, and the label
_LOG = logging.getLogger("calibrant")
_DECIDING: Final = ("decisions/", "systemone/")
STUDENT: Final = "distilled:"
"""Beginning of a student's name; the folder of its file follows."""
STUDENT_FILE: Final = "student.json"
"""That file."""
_EMBEDDED: Final = ("local/", "llamacpp:", "fake/", STUDENT)
# Scoring that every model allows.
_ALLOWED: Final = frozenset({"auto", "fused", "verbalised", "sampled"})


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
        ``local/smollm2-135m`` (embedded), ``llamacpp:PATH.gguf``, ``distilled:FOLDER`` (a student that
        `calibrant.tuned.distill` wrote), any litellm model name, ``fake/NAME`` (see
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

    Examples
    --------
    >>> from calibrant.inference import Classifier, open_client
    >>> from calibrant.testing import fake_response
    >>> client = open_client(lambda messages: fake_response("cat", probabilities={"cat": 0.9, "dog": 0.1}))
    >>> classifier = Classifier(model=client, labels=["cat", "dog"], field="category")
    >>> round(classifier.classify("It purrs.").confidence, 6)
    0.9
    """
    if isinstance(model, str) and model in STAND_INS:
        opener = STAND_INS[model]
        return opener(model, space=space, concurrency=concurrency, options=options, scoring=scoring)
    options = dict(options or {})
    _check_options(options)
    if concurrency is not None and concurrency < 1:
        raise ConfigurationError(f"Expected concurrency of at least 1, got {concurrency}.")
    is_named = isinstance(model, str) and model.startswith(KNOWN_PREFIXES)
    served = is_named and scoring == "exact" and bool(options.get("api_base"))
    if not served:
        names = " or ".join(f"{prefix}NAME" for prefix in KNOWN_PREFIXES)
        use = f"shapes how a server is asked how probable labels are ({names} with api_base and scoring='exact')"
        _refuse_settings(options, SERVER_SETTINGS, model if isinstance(model, str) else "this model", use)
    if isinstance(model, Client):
        return model
    if callable(model):
        _refuse_settings(options, ENGINE_SETTINGS, "a callable", _ENGINE_USE)
        from calibrant.clients._callable import CallableClient  # noqa: PLC0415 (loaded when it is used)

        return CallableClient(
            model, space=space or LogprobSpace.MASKED, max_workers=concurrency or DEFAULT_CONCURRENCY
        )
    if not isinstance(model, str) or not model.strip():
        raise ConfigurationError(f"Expected a model's name, a client or a callable, got {model!r}.")
    settings = {name: options.pop(name) for name in ENGINE_SETTINGS if name in options}
    if model.startswith((_GGUF, _LOCAL)):
        return _open_engine(model, settings)
    _refuse_settings(settings, ENGINE_SETTINGS, model, _ENGINE_USE)
    if model.startswith(STUDENT):
        return cast("Callable[[str], Client]", supplied("students"))(model)
    return _open_remote(model, space or LogprobSpace.MASKED, concurrency, options, served=served)


def _open_engine(model: str, settings: Mapping[str, Any]) -> Client:
    from calibrant.clients._llamacpp import LlamaCppClient  # noqa: PLC0415 (loaded when it is used)

    if model.startswith(_LOCAL):
        return LlamaCppClient.local(model, **settings)
    return LlamaCppClient(model.removeprefix(_GGUF), name=model, **settings)


def is_decision_model(model: object) -> bool:
    """Return True for the name of a decision model, or a client of one."""
    if isinstance(model, str):
        return model.startswith(_DECIDING)
    return isinstance(model, DecisionClient)


def _open_remote(
    model: str, space: LogprobSpace | str, concurrency: int | None, options: dict[str, Any], *, served: bool
) -> Client:
    if options.get("base_url") and not options.get("api_base"):
        options["api_base"] = options.pop("base_url")
    if model.startswith(_DECIDING):
        from calibrant.clients._decisions import RemoteDecisionClient  # noqa: PLC0415 (loaded when it is used)

        return RemoteDecisionClient(model, max_concurrency=concurrency, **options)
    _check_provider(model, options)
    if not served and needs_litellm(model, options):
        return LiteLLMClient(model, space=space, **options)
    # The client's own limit keeps a process within its sockets; who wants more calls gets them.
    most = concurrency if concurrency is not None and concurrency > _CLIENT_LIMIT else None
    options |= {"space": space, "max_concurrency": most}
    if served:
        from calibrant.clients._openai_compatible import OpenAICompatibleClient  # noqa: PLC0415 (loaded when used)

        return OpenAICompatibleClient(model, **options)
    from calibrant.clients._openai_chat import OpenAIChatClient  # noqa: PLC0415 (loaded when it is used)

    return OpenAIChatClient(model, **options)


def _check_provider(model: str, options: Options) -> None:
    """Raise ConfigurationError for a name without a provider or an address, which litellm refuses after retries."""
    if model.startswith(_FAKE):
        raise ConfigurationError(
            f"Expected a fake model that a block of calibrant.testing.fake_model names, got {model!r}; "
            f"there are: {', '.join(sorted(STAND_INS)) or 'none'}."
        )
    if "/" in model or options.get("api_base") or options.get("custom_llm_provider"):
        return
    provider = provider_of_bare_name(model)
    if provider is not None:
        raise ConfigurationError(
            f"Expected a provider before the model's name, got {model!r}: {provider}/{model}?"
        )
    raise ConfigurationError(
        f"Expected a provider before the model's name, got {model!r:.80}: openai/{model:.80} with the address of a "
        "server (--api-base, or api_base under [model]), or another PROVIDER/NAME; see calibrant models."
    )


def _check_options(options: Options) -> None:
    for name, instead in _NOT_OPTIONS.items():
        if name in options:
            raise ConfigurationError(f"Expected no {name!r} among the model's options: {instead}.")
    for name in ENGINE_SETTINGS:
        value = options.get(name, 1)
        if type(value) is not int or value < 1:
            raise ConfigurationError(
                f"Expected the model's option {name} to be a whole number of at least 1, got {value!r}."
            )
    check_seconds(options.get("timeout", 1), name="the model's option timeout")


def _refuse_settings(options: Options, names: tuple[str, ...], model: str, use: str) -> None:
    found = [name for name in names if name in options]
    if found:
        raise ConfigurationError(
            f"Expected no {', '.join(found)} among the options of {model}: it {use} and means nothing elsewhere."
        )


def call_options(options: Options | None) -> dict[str, Any]:
    """Return the options sent with every call, without the client's set-up options."""
    own = {*ENGINE_SETTINGS, *SERVER_SETTINGS}
    return {name: value for name, value in (options or {}).items() if name not in own}


def without_secrets(options: Options) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options without credentials, and the names of the removed ones.

    Left out are options whose name says that they hold one (``api_key``, ``extra_headers``; not the price of a
    token), those with such a part somewhere inside, and those with a text of which nobody knows that it is harmless.
    Of an address, user, password and parameters that may be secret are left out.

    Parameters
    ----------
    options : mapping
        As a task file has them, ``api_base`` among them.

    Returns
    -------
    kept : dict
        Options without credentials.
    names : tuple of str
        Names of the options removed wholly or in part, in order.
    """
    kept: dict[str, Any] = {}
    left_out = []
    for name, value in options.items():
        if name in ADDRESSES and isinstance(value, str):
            public = public_address(value)
            hides = public != value.strip().rstrip("/")
            kept[name] = public if hides else value
            left_out += [name] if hides else []
        elif _is_secret_option(name, value) or _names_secret(value) or any(secret_texts({name: value})):
            left_out.append(name)
        else:
            kept[name] = value
    return kept, tuple(left_out)


def public_model(own: ConfiguredModel, *, left_out: dict[str, list[str]]) -> ConfiguredModel:
    """Return a model's settings without possible credentials; record the omitted options."""
    base = without_none({"api_base": own.api_base})
    kept, names = without_secrets({**own.options, **base})
    if names:
        noted = left_out.setdefault(label_of(own), [])
        noted += [name for name in names if name not in noted]
    return own.model_copy(update={"api_base": kept.pop("api_base", None), "options": kept})


def label_of(own: ConfiguredModel) -> str:
    """Return a model's name in the options given at loading: its alias, or else the model's name."""
    alias: str | None = getattr(own, "alias", None)
    return own.name if alias is None else alias


def task_settings(task: Task) -> JsonObject:
    """Return a task's settings as JSON values, but those of a cascade or of providers."""
    record = {
        "name": task.name,
        "labels": task.labels.record(),
        "field": task.field,
        "prompt": task.prompt,
        "user_template": task.user_template,
        "model": None if task.sections else task.model.model_dump(mode="json"),
        "cascade": None,
        "routing": None,
        "state_left_out": False,
        "left_out": {},
    }
    if task.demonstrations is not None:
        record["demonstrations"] = task.demonstrations.model_dump()
    if task.label_descriptions:
        record["label_descriptions"] = dict(task.label_descriptions)
    if task.columns != Columns():
        record["columns"] = as_record(task.columns)
    return record


def may_be_withheld(name: str) -> bool:
    """Return True if an option describes the caller or the address, not the request."""
    return is_secret(name) or name in ADDRESSES or "timeout" in name.lower()


def _is_secret_option(name: str, value: object) -> bool:
    """Return True if the name denotes a credential; the price of a token is a number and none."""
    return is_secret(name) and not ("cost" in name and isinstance(value, int | float))


def _names_secret(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(is_secret(str(name)) or _names_secret(found) for name, found in value.items())
    return isinstance(value, list | tuple) and any(map(_names_secret, value))


def open_batch_api(model: str, *, options: Options | None, retry: RetryPolicy | None) -> BatchApi:
    """Return the batch interface of the provider of `model`.

    Parameters
    ----------
    model : str
        ``openai/NAME``, or any name with the option ``api_base``.
    options : mapping, optional
        Those of the model; ``api_base``, ``api_key`` and ``timeout`` are used here.
    retry : RetryPolicy, optional
        Retry policy of transient faults.

    Raises
    ------
    ConfigurationError
        There is no such interface for this model.
    """
    from calibrant.clients._batch_api import BatchApi  # noqa: PLC0415 (only for batches of a provider)

    given = options or {}
    found = {name: given[name] for name in ("api_base", "api_key", "timeout") if name in given}
    return BatchApi(model, retry=retry, **found)


def expected_cost(task: Task, model: object, *, calls: int) -> float | None:
    """Return the cost of calls by the price of the model's tokens and the length of its requests.

    Parameters
    ----------
    task : Task
        Its first prompt, labels and texts say how long a request is. Prompts of the search are often longer.
    model : object
        The model that answers instead of the task's own; None for that.
    calls : int
        How many are made.

    Returns
    -------
    float or None
        US dollars, about; None where no price is known, or more than one model answers.

    Raises
    ------
    ConfigurationError
        A price among the model's options is no number of dollars, or one of the prices is missing.
    """
    if task.sections or not isinstance(model, str | None):
        return None
    name = model or task.model.name
    options = dict(task.model.options)
    options["api_base"] = task.model.api_base or own_server_of(name)
    price = price_of_model(name, options)
    if price is None:
        return None
    texts = [row.input for row in (*task.train, *task.validation, *task.test)]
    text_length = sum(map(len, texts)) / max(1, len(texts))
    labels_length = len(json.dumps(task.labels.record()))
    prompt_tokens = (len(task.prompt) + labels_length + text_length) / _CHARACTERS_PER_TOKEN
    return calls * (prompt_tokens * price.prompt + _ANSWER_TOKENS * price.answer)


def prompt_price(model: str, options: Options) -> float | None:
    """Return the US dollars of one token of a prompt; None where no price is known."""
    price = price_of_model(model, {"api_base": own_server_of(model), **options})
    return None if price is None else price.prompt


def replaced_model(own: ModelSettings, name: str | None, *, api_base: str | None = None) -> ModelSettings:
    """Return the settings of another model, or of the same model at another address.

    A name with the same provider replaces the name alone: address, options and scoring stay. For a model of another
    provider they are dropped, and a warning says which, and where the texts go. At another address, options that may
    hold credentials are dropped, as they belong to the first one.

    Parameters
    ----------
    own : ModelSettings
        The task's settings.
    name : str or None
        The other model; by default the task's own.
    api_base : str, optional
        Address of its server, instead of the task's.
    """
    other = own.name if name is None else name
    if provider_of(other) == provider_of(own.name):
        found = own.model_copy(update={"name": other})
    else:
        found = allowed_settings(own).model_copy(update={"name": other})
    if api_base is not None:
        options = {key: value for key, value in found.options.items() if key not in ADDRESSES}
        is_same_place = urlsplit(_address_of(own) or "").netloc == urlsplit(api_base).netloc
        options = options if is_same_place else without_secrets(options)[0]
        found = found.model_copy(update={"api_base": api_base, "options": options})
    _tell(own.name, other, _dropped(own, found), _place_of(own), _place_of(found))
    return found


def allowed_settings(own: ModelSettings) -> ModelSettings:
    """Return the scoring and samples of a task's model settings, if every model allows them, and nothing else."""
    allowed = own.scoring in _ALLOWED
    if allowed:
        return ModelSettings(scoring=own.scoring, samples=own.samples)
    return ModelSettings()


def provider_of(name: str) -> str:
    """Return the provider in a model's name, which stands before the first slash; empty if there is none."""
    if name.startswith(_EMBEDDED):
        return "embedded"
    provider, slash, _ = name.partition("/")
    return provider if slash else ""


def _dropped(own: ModelSettings, found: ModelSettings) -> tuple[str, ...]:
    """Return the names of the task's settings that another model does not get."""
    names = [] if found.api_base is not None or own.api_base is None else ["api_base"]
    names += [name for name in ("space", "tolerance") if getattr(own, name) != getattr(found, name)]
    if own.scoring != found.scoring:
        names.append("scoring")
    gone = [name for name in own.options if name not in found.options and name not in ADDRESSES]
    return (*names, *(f"options.{name}" for name in gone))


def _address_of(own: ModelSettings) -> str | None:
    named = [own.options[name] for name in ADDRESSES if own.options.get(name)]
    address = own.api_base or next(iter(named), None)
    return server_address(own.name, None if address is None else str(address))


def _place_of(own: ModelSettings) -> str:
    """Return the host or provider that gets a model's texts; empty if they stay here."""
    provider = provider_of(own.name)
    if provider == "embedded":
        return ""
    address = _address_of(own)
    if address is None:
        return provider or "litellm's provider of that name"
    return urlsplit(public_address(address)).netloc or public_address(address)


@cache
def _tell(own: str, other: str, dropped: tuple[str, ...], before: str, now: str) -> None:
    """Log one line that says what is dropped, and where the texts go if that is another place."""
    if not dropped and before == now:
        return
    lost = f" without {', '.join(dropped)} of the task," if dropped else ""
    where = f"the texts go to {now}" if now else "the texts stay on this machine"
    replaced = f"the one at {before}" if own == other else own
    _LOG.warning("%s is asked instead of %s:%s %s.", other, replaced, lost, where)
