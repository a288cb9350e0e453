"""Confidence methods by the names the configuration knows them by."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any, Final

from calibrant.cascade._protocol import ConfidenceMethod
from calibrant.cascade.methods._entailment import AutoMixEntailment
from calibrant.cascade.methods._label_probability import LabelProbability
from calibrant.cascade.methods._self_verify import SelfVerify
from calibrant.cascade.methods._token_methods import AvgLogprob, Hybrid, Margin
from calibrant.core._errors import ConfigurationError

METHODS: Final[Mapping[str, type[ConfidenceMethod]]] = {
    kind.name: kind for kind in (AvgLogprob, Margin, Hybrid, SelfVerify, AutoMixEntailment, LabelProbability)
}

METHOD_NAMES: Final = tuple(METHODS)
"""Names that `method_named` knows."""


def method_named(name: str, **options: Any) -> ConfidenceMethod:  # noqa: ANN401
    """Return the method of that name.

    Parameters
    ----------
    name : str
        One of `METHOD_NAMES`.
    **options
        What the method's class takes.

    Raises
    ------
    ConfigurationError
        The name is unknown, or the method does not take these options or needs others.
    """
    if name not in METHODS:
        fitted = "; a learned method is fitted first and given itself" if name == "learned" else ""
        raise ConfigurationError(
            f"Expected a confidence method among {', '.join(METHOD_NAMES)}, got {name!r}{fitted}."
        )
    found = METHODS[name]
    try:
        signature(found).bind(**options)
    except TypeError as error:
        raise ConfigurationError(
            f"The options of the confidence method {name!r} do not fit: {error}. {found.__name__} says what it takes."
        ) from error
    return found(**options)
