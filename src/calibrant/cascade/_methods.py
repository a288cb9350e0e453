"""Confidence methods by name, and checks that models suit a method."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from calibrant.cascade._protocol import ROUTED, BaseMethod, CascadeModel, ConfidenceMethod
from calibrant.cascade.methods._reported import AvgLogprob, Hybrid, LabelProbability, Margin
from calibrant.cascade.methods._self_verify import SelfVerify
from calibrant.cascade.methods._verification import AutoMixEntailment
from calibrant.core._completion import Client
from calibrant.core._errors import ConfigurationError, LogprobsUnsupportedError
from calibrant.core._prediction import LogprobSpace, Prediction
from calibrant.core._settings import register
from calibrant.inference._classifier import Classifier
from calibrant.inference._methods import Decoding
from calibrant.inference.routed._client import RoutedClient

METHODS: Final[dict[str, type[BaseMethod]]] = {
    kind.name: kind for kind in (AvgLogprob, Margin, Hybrid, SelfVerify, AutoMixEntailment, LabelProbability)
}
"""Confidence methods by the name that ``confidence_method`` of a task file has for them."""

_M = TypeVar("_M", bound=BaseMethod)


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
                f"Expected all models of a cascade to have the labels of {models[0].label!r}, in their order, got "
                f"{list(own.labels)} for {model.label!r}."
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
    for model in judged:
        classifier = model.classifier
        if (
            _reads_logprobs(method)
            and isinstance(classifier.method, Decoding)
            and classifier.space is LogprobSpace.NONE
        ):
            raise ConfigurationError(
                f"Expected models that report log-probabilities, which {method.name} reads, but {model.label!r} "
                "reports none: give it scoring='sampled' with the method label_probability, or take self_verify."
            )
        asks_for_arguments = _read_tokens(method) == "tool_call_args"
        if asks_for_arguments and not _has_key(classifier.response_format, "arguments"):
            raise ConfigurationError(
                f"Expected {method.name} with another token_filter than 'tool_call_args', as the answers of "
                f"{model.label!r} hold no arguments of a tool call: take token_filter='label'."
            )


def _has_key(node: object, name: str) -> bool:
    """Return True if a JSON value, or one inside it, is an object with this key."""
    if isinstance(node, Mapping):
        return name in node or any(_has_key(value, name) for value in node.values())
    return isinstance(node, list | tuple) and any(_has_key(value, name) for value in node)


def check_answer(classifier: Classifier, method: ConfidenceMethod, answer: Prediction) -> None:
    """Refuse a model that has never returned log-probabilities, if `method` needs them.

    Where only some answers come without them, nothing is refused.

    Raises
    ------
    LogprobsUnsupportedError
        The model is refused.
    """
    asked = classifier.method
    if answer.confidence is not None or not isinstance(asked, Decoding) or not _reads_logprobs(method):
        return
    # Some answers may lack log-probabilities by accident; a model that never has any is another matter.
    client = classifier.client
    providers = len(client.providers) if isinstance(client, RoutedClient) else 1
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
