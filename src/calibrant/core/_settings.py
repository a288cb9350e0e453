"""Sections of a task file: model, scoring, calibration, demonstrations and head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic

from calibrant.core._errors import ConfigurationError
from calibrant.core._sections import Section, describe_problem, wrong

DEFAULT_MODEL = "local/smollm2-135m"
# The fields of calibrant.scoring's strategies, which core must not import; a test compares them.
SCORING_PARAMETERS = {
    "linear": ("low_confidence_threshold", "min_score_on_correct"),
    "threshold": ("threshold",),
    "sigmoid": ("midpoint", "steepness"),
    "brier": (),
    "log": ("min_probability",),
}


class ModelSettings(Section):
    """The ``[model]`` section: which model answers, and how it is called.

    Attributes
    ----------
    name : str
        ``local/smollm2-135m``, ``llamacpp:PATH.gguf`` or any litellm model name.
    api_base : str or None
        Endpoint of an OpenAI-compatible server.
    space : str or None
        ``masked`` or ``raw``, where the model's own default is wrong.
    scoring : str or None
        ``auto``, ``exact``, ``decode``, ``fused``, ``verbalised`` or ``sampled``; None takes what model and schema
        allow.
    tolerance : float, "exact" or None
        How far ``exact`` goes; None takes its default.
    samples : int or None
        How often ``sampled`` asks (10 by default), or ``fused``, also where ``auto`` comes to it (3, at most 10); at
        least 2.
    concurrency : int or None
        Calls in flight; None takes the model's own default.
    options : mapping
        Handed to the provider as they are (``temperature``, ``max_tokens``, ...).
    """

    name: str = DEFAULT_MODEL
    api_base: str | None = None
    space: Literal["masked", "raw"] | None = None
    scoring: Literal["auto", "fused", "verbalised", "exact", "decode", "sampled"] | None = None
    tolerance: Annotated[float, pydantic.Field(ge=0, le=1)] | Literal["exact"] | None = None
    samples: int | None = pydantic.Field(default=None, ge=2)
    concurrency: int | None = pydantic.Field(default=None, ge=1)
    options: dict[str, Any] = pydantic.Field(default_factory=dict)

    @pydantic.field_validator("samples")
    @classmethod
    def _check_samples(cls, samples: int | None, info: pydantic.ValidationInfo) -> int | None:
        if samples is not None and info.data.get("scoring") not in {"sampled", "fused", "auto"}:
            wanted = "Input should come with scoring 'auto' or 'fused', or with scoring = 'sampled'"
            raise wrong(wanted, "add it, or leave samples out")
        return samples


class ScoringSettings(Section):
    """The ``[scoring]`` section: how a prediction becomes GEPA's score and feedback.

    Attributes
    ----------
    strategy : str
        ``linear``, ``threshold``, ``sigmoid``, ``brier`` or ``log``.
    high, low : float
        Confidence thresholds of feedback, in (0, 1], `low` not above `high`.
    parameters : mapping
        The strategy's own parameters; ``linear`` takes `high` as its threshold by default.
    thresholds : str or None
        ``auto`` makes the search take `high` and `low`, and the threshold of ``linear`` unless
        `parameters` are given, from a sample of the training rows.

    Examples
    --------
    >>> ScoringSettings(strategy="brier").high
    0.99
    """

    strategy: Literal["linear", "threshold", "sigmoid", "brier", "log"] = "linear"
    high: float = pydantic.Field(default=0.99, gt=0, le=1)
    low: float = pydantic.Field(default=0.90, gt=0, le=1, validate_default=True)
    parameters: dict[str, float] = pydantic.Field(default_factory=dict)
    thresholds: Literal["auto"] | None = None

    @pydantic.field_validator("low")
    @classmethod
    def _check_low(cls, low: float, info: pydantic.ValidationInfo) -> float:
        high = info.data.get("high")
        if high is not None and low > high:
            raise wrong("Input should be at most high = {high}", "lower low or raise high", high=high)
        return low


class CalibrationSettings(Section):
    """The ``[calibration]`` section: corrections of distributions before they are used.

    Attributes
    ----------
    prior_correction : str or None
        ``batch`` makes the search divide out every prompt's label prior.

    Examples
    --------
    >>> CalibrationSettings(prior_correction="batch").prior_correction
    'batch'
    """

    prior_correction: Literal["batch"] | None = None


class DemonstrationSettings(Section):
    """The ``[demonstrations]`` section: labelled texts that a prompt shows as examples.

    Attributes
    ----------
    k : int
        Demonstrations in a prompt, at least 1.
    retriever : str
        How texts are compared: ``tfidf`` (words and pieces of words) or ``model2vec`` (extra ``embeddings``).
    balance : str
        ``nearest`` shows the k nearest texts, ``balanced`` the nearest text of each label in turn.
    seed : int
        Fixes the order in which they are shown.

    Examples
    --------
    >>> DemonstrationSettings.of({"k": 3}).retriever
    'tfidf'
    """

    k: int = pydantic.Field(default=5, strict=True, ge=1)
    retriever: Literal["tfidf", "model2vec"] = "tfidf"
    balance: Literal["nearest", "balanced"] = "nearest"
    seed: int = pydantic.Field(default=0, strict=True, ge=0)

    @classmethod
    def of(cls, values: object) -> Self:
        """Return checked settings from a mapping.

        Raises
        ------
        ConfigurationError
            The value is no mapping, or a setting is unknown or out of range.
        """
        try:
            return cls.model_validate(values)
        except pydantic.ValidationError as error:
            problems = " ".join(
                describe_problem(dict(item), cls, prefix="demonstrations.") for item in error.errors()
            )
            raise ConfigurationError(problems) from error

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse settings from JSON text, such as ``{"k": 5, "balance": "balanced"}``.

        Raises
        ------
        ConfigurationError
            The text is invalid JSON, or a setting is invalid.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(
                f'Expected demonstrations as JSON, such as {{"k": 5, "retriever": "tfidf"}}, got {text!r:.80}: {error}.'
            ) from error
        return cls.of(values)

    def to_text(self) -> str:
        """Return the settings as JSON text on one line."""
        return json.dumps(self.model_dump())


class HeadSettings(Section):
    """The ``[head]`` section: the head that makes the final distributions.

    Attributes
    ----------
    file : Path or None
        A saved head, applied to every prediction under the prompt and the model it was fitted on.
    fit : {"auto", "off"}
        With ``auto``, a search learns a head for its best prompt.
    embeddings : str, False or None
        Embedding model (see `calibrant.inference.open_embedding_model`): gives a head that is learned a vector of each
        text beside its words, and a saved one the model it was fitted with, in place of the name it holds. None is the
        embedded model, where it is installed and the task's model reports no features of the texts; False reads words
        alone.

    Examples
    --------
    >>> HeadSettings(fit="off").file is None
    True
    """

    file: Path | None = None
    fit: Literal["auto", "off"] = "auto"
    embeddings: Annotated[str, pydantic.StringConstraints(min_length=1)] | Literal[False] | None = None
