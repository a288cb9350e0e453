"""The models of a cascade, and how large they are."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from calibrant.cascade._checks import is_number
from calibrant.core._errors import ConfigurationError
from calibrant.inference._classifier import Classifier
from calibrant.inference._predictor import BasePredictor

_BILLIONS: Final = {"k": 1e-6, "m": 1e-3, "b": 1.0, "t": 1e3}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([kmbt]?)\s*", re.IGNORECASE)
# 135m, 8b, 8x7b. Thousands are left out, for a name that holds "128k" speaks of its context.
_NAMED: Final = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([mb])(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CascadeModel:
    """One model of a cascade.

    Attributes
    ----------
    classifier : Classifier
        The model under its own prompt.
    cost : float, optional
        What a call costs, at least 0, in any unit that is the same for all models; orders models. 0 also
        says that the model is free: its calls count as 0 dollars where nobody reports a price.
    size : float or str, optional
        Number of parameters: ``"7b"``, ``"135m"``, ``"500k"``; a bare number is in billions. By default
        what the model's name says (``smollm2-135m``), if anything.
    quality : float, optional
        How good its answers are, in (0, 1]; orders models.
    name : str, optional
        What steps call it; by default the name of the model.
    concurrency : int, optional
        Its calls in flight at most, whatever limits are given to the whole cascade.

    Raises
    ------
    ConfigurationError
        A number is out of range, the size cannot be read, or the classifier is a cascade or none at all.
    """

    classifier: Classifier
    cost: float | None = None
    size: float | str | None = None
    quality: float | None = None
    name: str | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.classifier, BasePredictor) and not isinstance(self.classifier, Classifier):
            raise ConfigurationError(
                f"Expected models in a cascade, got another cascade, {self.label!r}: name its models instead."
            )
        if not isinstance(self.classifier, Classifier):
            raise ConfigurationError(
                f"Expected a Classifier as a model of a cascade, got {type(self.classifier).__name__}: "
                "build one with Classifier(model=..., labels=...)."
            )
        if self.cost is not None and not (is_number(self.cost) and self.cost >= 0.0):
            raise ConfigurationError(
                f"Expected the cost of {self.label!r} to be a number of at least 0, got {self.cost!r}."
            )
        if self.quality is not None and not (is_number(self.quality) and 0.0 < self.quality <= 1.0):
            raise ConfigurationError(
                f"Expected the quality of {self.label!r} in (0, 1], got {self.quality!r}."
            )
        if self.size is not None:
            parse_size(self.size, model=self.label)
        if self.concurrency is not None and not (is_number(self.concurrency) and self.concurrency >= 1):
            raise ConfigurationError(
                f"Expected the concurrency of {self.label!r} to be at least 1, got {self.concurrency!r}."
            )

    @property
    def label(self) -> str:
        """What steps call it."""
        return self.name if self.name is not None else self.classifier.name

    @property
    def billions(self) -> float | None:
        """Number of parameters in billions; None where neither `size` nor the model's name says it."""
        if self.size is not None:
            return parse_size(self.size, model=self.label)
        return size_in_name(self.classifier.name)


def parse_size(size: float | str, *, model: str) -> float:
    """Return a number of parameters in billions.

    Parameters
    ----------
    size : float or str
        As `CascadeModel` takes it.
    model : str
        Whose size it is, for the message.

    Raises
    ------
    ConfigurationError
        It cannot be read, or is not above 0.
    """
    number = math.nan
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is not None:
            number = float(match[1]) * _BILLIONS[match[2].lower() or "b"]
    elif is_number(size):
        number = float(size)
    if not 0.0 < number < math.inf:
        raise ConfigurationError(
            f"Expected the size of {model!r} as a number of parameters such as '7b', '135m' or 7 (billions), got "
            f"{size!r}."
        )
    return number


def size_in_name(name: str) -> float | None:
    """Return the number of parameters a model's name speaks of, in billions, or None.

    Only the last part of a path is read: ``llamacpp:/models/70b/SmolLM2-135M.gguf`` has 0.135.
    """
    match = _NAMED.search(re.split(r"[/\\]", name)[-1])
    if match is None:
        return None
    return (int(match[1] or 1) * float(match[2]) * _BILLIONS[match[3].lower()]) or None


def with_names(given: Sequence[Classifier | CascadeModel]) -> tuple[CascadeModel, ...]:
    """Return the models with names that tell them apart.

    Raises
    ------
    ConfigurationError
        There are none, or two were given the same name.
    """
    if isinstance(given, Classifier | CascadeModel) or not isinstance(given, Sequence):
        raise ConfigurationError(f"Expected a list of models, got {type(given).__name__}.")
    if not given:
        raise ConfigurationError("Expected at least one model in a cascade, got none.")
    models = [one if isinstance(one, CascadeModel) else CascadeModel(classifier=one) for one in given]
    named = [model.name for model in models if model.name is not None]
    if len(set(named)) < len(named):
        raise ConfigurationError(f"Expected every model of a cascade to have its own name, got {named}.")
    labels = [model.label for model in models]
    taken = set(named)
    found: list[CascadeModel] = []
    for model, label in zip(models, labels, strict=True):
        unique, number = label, 1
        # Two prompts of one model: the first, the second, ...
        while model.name is None and (unique in taken or (number == 1 and labels.count(label) > 1)):
            unique = f"{label} #{number}"
            number += 1
        taken.add(unique)
        found.append(replace(model, name=unique))
    return tuple(found)
