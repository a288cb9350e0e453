"""Confidence methods by name, the ``[cascade]`` section that names one, and checks that models suit it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import pydantic

from calibrant.cascade._protocol import ROUTED, BaseMethod, CascadeModel, ConfidenceMethod
from calibrant.cascade.methods._reported import AvgLogprob, Hybrid, LabelProbability, Margin
from calibrant.cascade.methods._self_verify import SelfVerify
from calibrant.cascade.methods._verification import AutoMixEntailment
from calibrant.core._completion import Client
from calibrant.core._errors import ConfigurationError, LogprobsUnsupportedError
from calibrant.core._prediction import LogprobSpace, Prediction
from calibrant.core._reported import is_number, listed
from calibrant.core._settings import (
    Amount,
    Count,
    ModelSettings,
    Number,
    Section,
    Share,
    known_name,
    not_beside,
    register,
    wrong,
)
from calibrant.inference._classifier import Classifier
from calibrant.inference._methods import Decoding
from calibrant.inference.routed._client import RoutedClient

METHODS: Final[dict[str, type[BaseMethod]]] = {
    kind.name: kind for kind in (AvgLogprob, Margin, Hybrid, SelfVerify, AutoMixEntailment, LabelProbability)
}
"""Confidence methods by the name that ``confidence_method`` of a task file has for them."""

_M = TypeVar("_M", bound=BaseMethod)
# Keys that make sense with some methods only.
_KEYS_OF_SOME: Final = ("hybrid_weights", "verifier_server_url", "verifier_timeout_seconds", "context")
_SUM_TOLERANCE: Final = 1e-9


def register_method(kind: type[_M]) -> type[_M]:
    """Make a confidence method known to task files and to `Cascade`, under its `name`.

    Parameters
    ----------
    kind : type
        A subclass of `BaseMethod` with a `ConfidenceMethod`'s ``assess``. Its class method ``from_settings`` makes
        one of a ``[cascade]`` section.

    Returns
    -------
    type
        `kind`, so that this is a class decorator.

    Raises
    ------
    ConfigurationError
        Another method has the name.

    Examples
    --------
    >>> from calibrant.cascade import BaseMethod, register_method
    >>> class Gap(BaseMethod):
    ...     name = "margin"
    >>> try:
    ...     register_method(Gap)
    ... except ValueError as error:
    ...     print(str(error).partition(", got ")[2])
    'margin', which is that of Margin: name another one.
    """
    register(kind, kind.name, METHODS)
    return kind


def method_named(name: str) -> ConfidenceMethod:
    """Return the confidence method registered under a name, with its defaults.

    Raises
    ------
    ConfigurationError
        The name is unknown, or the method needs options.
    """
    if name not in METHODS:
        raise ConfigurationError(f"Expected a confidence method among {', '.join(METHODS)}, got {name!r}.")
    try:
        return METHODS[name]()
    except TypeError as error:
        raise ConfigurationError(
            f"Expected the name of a confidence method that needs no options, got {name!r} ({error}): make one, and "
            "hand that in."
        ) from error


def methods_with(key: str) -> tuple[str, ...]:
    """Return the names of the confidence methods that read a key of the ``[cascade]`` section."""
    return tuple(name for name, kind in METHODS.items() if key in kind.settings_keys)


_Method = Annotated[str, known_name(METHODS)]


class HybridWeights(Section):
    """Weights of the two parts of the hybrid confidence: mean log-probability and margin.

    Attributes
    ----------
    logprob_weight, margin_weight : float, default 0.5
        In [0, 1]; together 1. Zero is zero.

    Examples
    --------
    >>> from calibrant.cascade import CascadeSettings, HybridWeights
    >>> weights = HybridWeights(logprob_weight=0.7, margin_weight=0.3)
    >>> CascadeSettings(confidence_method="hybrid", hybrid_weights=weights).hybrid_weights.margin_weight
    0.3
    """

    logprob_weight: Share = 0.5
    margin_weight: Share = pydantic.Field(default=0.5, validate_default=True)

    @pydantic.field_validator("margin_weight")
    @classmethod
    def _check_sum(cls, margin: float, info: pydantic.ValidationInfo) -> float:
        logprob = info.data.get("logprob_weight")
        if logprob is not None and not math.isclose(
            logprob + margin, 1.0, rel_tol=0.0, abs_tol=_SUM_TOLERANCE
        ):
            raise wrong(
                "Input should add up to 1 with logprob_weight = {logprob}",
                "give both weights",
                logprob=logprob,
            )
        return margin


class CascadeModelSettings(ModelSettings):
    """One table of ``[[cascade.models]]``: the keys of ``[model]``, and cost, size and quality.

    Attributes
    ----------
    name : str
        As under ``[model]``; has no default here.
    prompt : str or None
        Its own system prompt; None takes the task's.
    alias : str or None
        Its name in tables and steps; None takes the name, with a number where two models have the same.
    cost : float or None
        Cost of a call, in any unit that all models of the cascade share; 0 also says that it is free.
    size : str, float or None
        Its parameters, such as ``7b`` or ``135m``; a bare number is billions. None takes the size in the name.
    quality : float or None
        How good it is, in (0, 1].

    Examples
    --------
    >>> from calibrant.cascade import CascadeModelSettings, CascadeSettings
    >>> small = CascadeModelSettings(name="openai/small", size="1b", cost=1)
    >>> large = CascadeModelSettings(name="openai/large", size="70b", cost=50, alias="big")
    >>> settings = CascadeSettings(models=(small, large), escalation_order="cost")
    >>> [(one.alias or one.name, one.cost) for one in settings.models]
    [('openai/small', 1.0), ('big', 50.0)]
    """

    name: str
    prompt: str | None = None
    alias: str | None = pydantic.Field(default=None, min_length=1)
    cost: Amount | None = None
    size: str | float | None = None
    quality: Annotated[Number, pydantic.Field(gt=0, le=1)] | None = None

    @pydantic.field_validator("size", mode="before")
    @classmethod
    def _check_size(cls, size: object) -> object:
        is_positive = is_number(size) and size > 0
        if size is None or is_positive or (isinstance(size, str) and size.strip()):
            return size
        raise wrong("Input should be a size such as '7b' or 0.5", "write it with its unit, or leave it out")


class CascadeSettings(Section):
    """The ``[cascade]`` section: models in order, confidence method and thresholds.

    Keys of the confidence looper of vLLM Semantic Router mean the same here, save that
    zero is zero (`verifier_timeout_seconds` aside).

    Attributes
    ----------
    file : Path or None
        A YAML file that the looper's keys are read from instead; see `calibrant.assembly.read_looper`.
    confidence_method : str, default "avg_logprob"
        ``avg_logprob``, ``margin``, ``hybrid``, ``self_verify``, ``automix_entailment``,
        ``label_probability`` or the name of a registered method.
    threshold : float or None
        Confidence in [0, 1] from which an answer is accepted; None takes the method's own.
    native_threshold : float or None
        The same in the method's own unit, such as a mean natural log-probability.
    escalation_order : str, default "small_to_large"
        ``small_to_large`` (or ``size``), ``declared``, ``cost`` or ``automix``.
    cost_quality_tradeoff : float, default 0.3
        How much cheapness counts against quality for ``automix``, in [0, 1].
    token_filter : str, default "label"
        Which tokens count: ``all``, ``stop``, ``label`` or ``tool_call_args``; empty is unset.
    on_error : str, default "skip"
        ``skip`` asks the next model, ``fail`` gives the row up.
    hybrid_weights : HybridWeights or None
        Only with ``hybrid``.
    verifier_server_url : str or None
        Address of the verifier; only with ``automix_entailment``, which needs one.
    verifier_timeout_seconds : float, default 0
        Seconds it may take; 0 is 60. Only with ``automix_entailment``.
    context : str or None
        Text that every answer has to rest on, where its row has none of its own; only with ``self_verify`` and
        ``automix_entailment``.
    verify_last : bool or None
        Whether the last model's answer is verified, too. None takes what `Cascade` does: only where that makes no
        call.
    max_escalations, max_tokens : int or None
        Further models a row may ask at most, and tokens it may take.
    max_cost, deadline_seconds : float or None
        US dollars and seconds a row may take.
    models : tuple of CascadeModelSettings
        The models, in the order ``declared`` takes.

    Examples
    --------
    >>> from calibrant import Task
    >>> from calibrant.assembly import cascade_settings
    >>> from calibrant.cascade import CascadeSettings
    >>> settings = CascadeSettings(threshold=0.8, models=[{"name": "openai/small"}, {"name": "openai/large"}])
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which?", sections={"cascade": settings})
    >>> cascade_settings(task).threshold, cascade_settings(task).confidence_method
    (0.8, 'avg_logprob')
    """

    file: Path | None = None
    confidence_method: _Method = "avg_logprob"
    threshold: Share | None = None
    native_threshold: Annotated[Number | None, not_beside("threshold")] = None
    escalation_order: Literal["size", "small_to_large", "declared", "cost", "automix"] = "small_to_large"
    cost_quality_tradeoff: Share = 0.3
    token_filter: Annotated[
        Literal["all", "stop", "label", "tool_call_args"],
        pydantic.BeforeValidator(lambda value: "label" if value == "" else value),
    ] = "label"  # noqa: S105 (no password)
    on_error: Literal["skip", "fail"] = "skip"
    hybrid_weights: HybridWeights | None = None
    verifier_server_url: str | None = pydantic.Field(default=None, validate_default=True)
    verifier_timeout_seconds: Amount = 0.0
    context: str | None = pydantic.Field(default=None, min_length=1)
    verify_last: bool | None = None
    max_escalations: Count | None = None
    max_tokens: Count | None = None
    max_cost: Amount | None = None
    deadline_seconds: Amount | None = None
    models: tuple[CascadeModelSettings, ...] = ()

    @pydantic.field_validator("threshold", mode="before")
    @classmethod
    def _check_unit(cls, threshold: object) -> object:
        if isinstance(threshold, int | float) and -float("inf") < threshold < 0.0:
            raise wrong(
                "Input should be a confidence in [0, 1]",
                "a value in the method's own unit goes into native_threshold of a task file",
            )
        return threshold

    @pydantic.field_validator(*_KEYS_OF_SOME)
    @classmethod
    def _check_method(cls, value: object, info: pydantic.ValidationInfo) -> object:
        field = str(info.field_name)
        methods = methods_with(field)
        # A wrong method is a mistake of its own, and a looper's file may name another one beside a context.
        method = info.data.get("confidence_method")
        has_file = info.data.get("file") is not None
        if value and method not in {None, *methods} and not (field == "context" and has_file):
            raise wrong(
                f"Input should come with confidence_method = {' or '.join(map(repr, methods))}",
                "set it, or leave it out",
            )
        needed = field == "verifier_server_url" and (value or (method in methods and not has_file))
        if needed and not _is_service(str(value or "")):
            raise wrong(
                "Input should be an address such as 'http://127.0.0.1:8889', without credentials, query or fragment",
                "say where the verifier answers",
            )
        return value


# Keys that a looper's own file may have.
LOOPER_KEYS: Final = (
    "confidence_method",
    "threshold",
    "escalation_order",
    "cost_quality_tradeoff",
    "token_filter",
    "on_error",
    "hybrid_weights",
    "verifier_server_url",
    "verifier_timeout_seconds",
)


def _is_service(url: str) -> bool:
    """Return True if `url` is an HTTP address without credentials, query or fragment."""
    try:
        legal = pydantic.AnyHttpUrl(url).port != 0
    except ValueError:
        return False
    # Pydantic mends "http:host" and backslashes; a call would not.
    has_host = url.lower().startswith(("http://", "https://")) and "\\" not in url
    return legal and has_host and url.isprintable() and not set(" @?#") & set(url)


def check_models(models: Sequence[CascadeModel], method: ConfidenceMethod) -> None:
    """Refuse models with different labels or label order, or without the tokens that the method reads.

    Raises
    ------
    ConfigurationError
        Models are refused, or `method` is no `ConfidenceMethod`.
    """
    if isinstance(method, type) or not isinstance(method, ConfidenceMethod):
        hint = f": call it, as in {method.__name__}()" if isinstance(method, type) else ""
        raise ConfigurationError(f"Expected a ConfidenceMethod or the name of one, got {method!r}{hint}.")
    labels = models[0].classifier.labels
    for model in models:
        own = model.classifier.labels
        if own != labels:
            raise ConfigurationError(
                f"Expected all models of a cascade to have the labels of {models[0].label!r}, in their order "
                f"({listed(labels.labels)}), got {listed(own.labels)} for {model.label!r}."
            )
        if method.needs_tokens:
            _check_tokens(model, method)


def _check_tokens(model: CascadeModel, method: ConfidenceMethod) -> None:
    classifier = model.classifier
    if not isinstance(classifier.method, Decoding):
        raise ConfigurationError(
            f"Expected models whose answers come with token log-probabilities, which {method.name} reads, but "
            f"{model.label!r} gives labels without writing one: give it scoring='decode' (without label codes) if it "
            "is a chat model, or take the method label_probability."
        )
    if classifier.labels.holds_several and _read_tokens(method) == "label":
        raise ConfigurationError(
            f"Expected {method.name} with token_filter='all' where answers hold several labels, got 'label', which "
            "reads the tokens of one: set it, or take the method label_probability."
        )
    changed = "prior_correction" if classifier.prior_correction is not None else "head"
    if classifier.prior_correction is not None or classifier.head is not None:
        raise ConfigurationError(
            f"Expected no {changed} of {model.label!r} with {method.name}, which reads the tokens of the "
            "uncorrected answer: leave it out, or take the method label_probability."
        )


def _read_tokens(method: ConfidenceMethod) -> str:
    """Return the name of the tokens that a method reads; empty for one that chooses none."""
    return str(getattr(method, "token_filter", ""))


def check_evidence(judged: Sequence[CascadeModel], method: ConfidenceMethod) -> None:
    """Refuse a model whose answers lack the log-probabilities or tool arguments that the method reads.

    Raises
    ------
    ConfigurationError
        The model is refused.
    """
    needs_logprobs = _reads_logprobs(method)
    asks_for_arguments = _read_tokens(method) == "tool_call_args"
    for model in judged:
        classifier = model.classifier
        has_none = isinstance(classifier.method, Decoding) and classifier.space is LogprobSpace.NONE
        if needs_logprobs and has_none:
            raise ConfigurationError(
                f"Expected models that report log-probabilities, which {method.name} reads, but {model.label!r} "
                "reports none: give it scoring='sampled' with the method label_probability, or take self_verify."
            )
        if asks_for_arguments and not _has_key(classifier.response_format, "arguments"):
            raise ConfigurationError(
                f"Expected {method.name} with another token_filter than 'tool_call_args', as the answers of "
                f"{model.label!r} hold no arguments of a tool call: take token_filter='label'."
            )


def _has_key(node: object, name: str) -> bool:
    """Return True if a JSON value, or one inside it, is an object with this key."""
    inside: Iterable[object] = node if isinstance(node, list | tuple) else ()
    if isinstance(node, Mapping):
        if name in node:
            return True
        inside = node.values()
    return any(_has_key(value, name) for value in inside)


def check_answer(classifier: Classifier, method: ConfidenceMethod, answer: Prediction) -> None:
    """Refuse a model that has never returned log-probabilities, if `method` needs them.

    Where only some answers come without them, nothing is refused.

    Raises
    ------
    LogprobsUnsupportedError
        The model is refused.
    """
    if answer.confidence is not None or not _reads_logprobs(method):
        return
    asked = classifier.method
    if not isinstance(asked, Decoding):
        return
    # Some answers may lack log-probabilities by accident; a model that never has any is another matter.
    client = classifier.client
    providers = 1
    if isinstance(client, RoutedClient):
        providers = len(client.providers)
    if asked.silent_models >= providers:
        raise LogprobsUnsupportedError(
            "Its answers come without token log-probabilities.", provider=client.name
        )


def task_section(client: Client, method: ConfidenceMethod) -> str:
    """Return the task-file section in which to set the scoring of a cascade's model.

    Sampled answers have no tokens for a method that reads them, so that the section then names another method.
    """
    name = ROUTED if isinstance(client, RoutedClient) else client.name
    model = f"[[cascade.models]]\nname = {json.dumps(name, ensure_ascii=False)}"
    if not method.needs_tokens:
        return model
    return f'[cascade]\nconfidence_method = "{LabelProbability.name}"\n\n{model}'


def _reads_logprobs(method: ConfidenceMethod) -> bool:
    return method.needs_tokens or (isinstance(method, BaseMethod) and method.needs_logprobs)
