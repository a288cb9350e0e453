"""Refuses models whose answers a confidence method can never judge: before they are asked, or at their first answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from calibrant.cascade._models import CascadeModel
from calibrant.cascade._protocol import ConfidenceMethod
from calibrant.cascade._settings import ROUTED
from calibrant.cascade.methods._label_probability import LabelProbability
from calibrant.core._completion import Client
from calibrant.core._composite import CompositeLabels
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import ConfigurationError, LogprobsUnsupportedError
from calibrant.core._prediction import Prediction
from calibrant.inference._classifier import Classifier
from calibrant.inference._methods import Decoding
from calibrant.inference.routed._client import RoutedClient


def check_tokens(model: CascadeModel, method: ConfidenceMethod) -> None:
    """Refuse a model whose answers have no tokens that a method could read.

    Raises
    ------
    ConfigurationError
        As said.
    """
    classifier = model.classifier
    if not isinstance(classifier.method, Decoding):
        raise ConfigurationError(
            f"Expected models whose answers come with token log-probabilities, which {method.name} reads, but "
            f"{model.label!r} scores its labels without writing one: give it scoring='decode' (without label "
            "codes), or take the method label_probability."
        )
    if isinstance(classifier.labels, CompositeLabels) and getattr(method, "token_filter", "") == "label":
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


def check_evidence(judged: Sequence[CascadeModel], method: ConfidenceMethod) -> None:
    """Refuse a model whose answers the method can never judge: it would be asked in vain.

    Raises
    ------
    ConfigurationError
        As said.
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
        asks_for_arguments = getattr(method, "token_filter", "") == "tool_call_args"
        if asks_for_arguments and '"arguments"' not in json.dumps(classifier.response_format):
            raise ConfigurationError(
                f"Expected {method.name} with another token_filter than 'tool_call_args', as the answers of "
                f"{model.label!r} hold no arguments of a tool call: take token_filter='label'."
            )


def check_answer(classifier: Classifier, method: ConfidenceMethod, found: Prediction) -> None:
    """Refuse a model that has never given log-probabilities, at its first answer that lacks what `method` reads.

    Where only some answers come without them, nothing is refused.

    Raises
    ------
    LogprobsUnsupportedError
        As said.
    """
    asked = classifier.method
    if found.confidence is not None or not isinstance(asked, Decoding) or not _reads_logprobs(method):
        return
    client = classifier.client
    providers = len(client.providers) if isinstance(client, RoutedClient) else 1
    if asked.silent_models >= providers:
        raise LogprobsUnsupportedError(
            "Its answers come without token log-probabilities.", provider=client.name
        )


def task_section(client: Client, method: ConfidenceMethod) -> str:
    """Return the lines of a task file that the scoring of a cascade's model belongs under.

    Sampled answers have no tokens for a method that reads them, so that the section then names another method.
    """
    name = ROUTED if isinstance(client, RoutedClient) else client.name
    model = f"[[cascade.models]]\nname = {json.dumps(name, ensure_ascii=False)}"
    if not method.needs_tokens:
        return model
    return f'[cascade]\nconfidence_method = "{LabelProbability.name}"\n\n{model}'


def _reads_logprobs(method: ConfidenceMethod) -> bool:
    return method.needs_tokens or isinstance(method, LabelProbability)
