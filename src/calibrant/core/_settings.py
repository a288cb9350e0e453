"""Sections of configuration files: types of values, messages with their lines, and the sections of every task."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from calibrant.core._errors import ConfigurationError
from calibrant.core._files import decoding_problem

# Strict: neither true nor "0.5" is a number.
Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Share: TypeAlias = Annotated[Number, Field(ge=0, le=1)]
Amount: TypeAlias = Annotated[Number, Field(ge=0)]
Count: TypeAlias = Annotated[int, Field(strict=True, ge=0)]

Problem: TypeAlias = tuple[tuple[str | int, ...], str]
"""The key that is wrong, and what is wrong with it."""

_HEADER = re.compile(r"^\s*(\[+)([^\]=,]+)\]")
_KEY = re.compile(r"""^\s*([\w."' \t-]+?)\s*=""")
DEFAULT_MODEL = "local/smollm2-135m"
# The fields of calibrant.scoring's strategies, which core must not import; a test compares them.
SCORING_PARAMETERS = {
    "linear": ("low_confidence_threshold", "min_score_on_correct"),
    "threshold": ("threshold",),
    "sigmoid": ("midpoint", "steepness"),
    "brier": (),
    "log": ("min_probability",),
}


class Section(BaseModel):
    """Table of a configuration file; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, kw_only=True)
class SectionTable:
    """Raw section of a task file, validated by the package that owns it.

    Attributes
    ----------
    values : object
        Its keys and values; something else than a mapping is a mistake.
    path : Path
        The task file; files that the section names are relative to its folder.
    beside : frozenset of str
        The other keys and sections on the top level of the file.
    text : str
        Content of the whole file, which line numbers are found in.
    """

    values: object
    path: Path
    beside: frozenset[str] = frozenset()
    text: str = field(default="", repr=False)


def register(kind: type, name: str, known: MutableMapping[str, Any]) -> None:
    """Add a class to the classes that configuration files know by name.

    Parameters
    ----------
    kind : type
        The class.
    name : str
        Its name in configuration files.
    known : mutable mapping of str to type
        The classes by name.

    Raises
    ------
    ConfigurationError
        Another class has the name.
    """
    other = known.setdefault(name, kind)
    if other is not kind:
        raise ConfigurationError(
            f"Expected a name of its own for {kind.__qualname__}, got {name!r}, which is that of "
            f"{other.__qualname__}: name another one."
        )


def registered_names(known: Iterable[str]) -> str:
    """Return the names of registered classes as words, such as ``'flat', 'ordinal' or 'hierarchical'``."""
    *names, last = map(repr, known)
    return f"{', '.join(names)} or {last}"


def known_name(known: Mapping[str, Any]) -> BeforeValidator:
    """Return the validator of a key whose value is the name of a registered class."""

    def check(name: object) -> object:
        if not isinstance(name, str) or name not in known:
            raise PydanticCustomError("name", f"Input should be {registered_names(known)}")
        return name

    return BeforeValidator(check)


def not_beside(other: str) -> AfterValidator:
    """Return the validator of a key that another one, which the section declares before it, excludes."""

    def check(value: object, info: ValidationInfo) -> object:
        if value is not None and info.data.get(other) is not None:
            raise wrong(f"Input should not come beside {other}", "keep one of the two")
        return value

    return AfterValidator(check)


def read_text(path: Path, missing: str) -> str:
    """Return the text of a file, without a byte order mark.

    Parameters
    ----------
    path : Path
        The file.
    missing : str
        Message where it does not exist.

    Raises
    ------
    ConfigurationError
        There is no such file, or it is not UTF-8; names the line.
    """
    if not path.is_file():
        raise ConfigurationError(missing)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, problem = decoding_problem(error)
        raise ConfigurationError(f"{path}:{line}: {problem}: save the file as UTF-8.") from error


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Parameters
    ----------
    text : str
        Its content.
    path : Path
        The file, for messages.

    Raises
    ------
    ConfigurationError
        The text is invalid TOML, or nested too deeply.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Python 3.11 gives the line in the message alone.
        place = re.search(r"at line (\d+)", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        raise ConfigurationError(f"{path}:{line}: not valid TOML: {error}.") from error
    except RecursionError as error:
        raise ConfigurationError(
            f"{path}: expected tables and arrays a few levels deep, got hundreds inside each other: flatten them."
        ) from error


def refuse(problems: Iterable[Problem], text: str, path: Path) -> None:
    """Raise one ConfigurationError for all problems of a file, each with its line, if there are any.

    Parameters
    ----------
    problems : iterable of (location, str)
        Location and message of each problem.
    text : str
        The file's content.
    path : Path
        The file, for messages.

    Raises
    ------
    ConfigurationError
        There is a problem.
    """
    lines = [f"{path}:{line_of(text, location)}: {problem}" for location, problem in problems]
    if lines:
        raise ConfigurationError("\n".join(lines))


def wrong(message: str, remedy: str, **values: object) -> PydanticCustomError:
    """Return an error for a validator to raise; `message` is a template for `values`."""
    return PydanticCustomError("calibrant", message, {"remedy": remedy, **values})


def wrong_at(
    section: type[Section], problems: Sequence[tuple[tuple[str | int, ...], object, PydanticCustomError]]
) -> ValidationError:
    """Return an error for the validator of a whole section to raise.

    Parameters
    ----------
    section : type
        The section.
    problems : sequence of (location, input, error)
        Where in it each mistake is, what stands there, and what `wrong` says of it.
    """
    details = [InitErrorDetails(type=error, loc=loc, input=given) for loc, given, error in problems]
    return ValidationError.from_exception_data(section.__name__, details)


def describe_problem(problem: Mapping[str, Any], root: type[BaseModel], *, prefix: str = "") -> str:
    """Return a message about a wrong key, with the remedy.

    Parameters
    ----------
    problem : mapping
        One of the errors of a `ValidationError`.
    root : type
        The validated class.
    prefix : str, optional
        Prefix of the root's keys, such as ``cascade.``.
    """
    location = [name for name in problem["loc"] if isinstance(name, str)]
    where = prefix + ".".join(location)
    if problem["type"] == "extra_forbidden":
        section: Any = root
        for name in location[:-1]:
            section = _section_in(section.model_fields[name].annotation)
        return f"unknown key {where!r}: expected one of {', '.join(section.model_fields)}."
    if problem["type"] == "missing":
        return f"missing key {where!r}: add it."
    if problem["type"] == "model_type":
        return f"{where}: expected a table, got {problem['input']!r:.80}: write [{where}] and its keys below."
    remedy = f": {problem['ctx']['remedy']}" if problem["type"] == "calibrant" else ""
    return f"{where}: {problem['msg']}, got {problem['input']!r:.80}{remedy}."


def _section_in(annotation: object) -> Any:  # noqa: ANN401 (a type, or None)
    """Return the section class in a field's type, which may be optional or a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def line_of(text: str, location: Sequence[Any]) -> int:
    """Return the line of the key at `location`, or of its table; tomllib keeps no positions."""
    wanted = tuple(map(str, location))
    table: tuple[str, ...] = ()
    entries: Counter[tuple[str, ...]] = Counter()  # of arrays of tables
    best = 0
    best_line = 1
    for number, line in enumerate(text.split("\n"), 1):
        header = _HEADER.match(line)
        if header:
            table = _numbered(_path(header[2]), entries)
            if header[1] == "[[":
                table += (str(entries[table]),)
                entries[table[:-1]] += 1
            path = table
        elif key := _KEY.match(line):
            path = table + _path(key[1])
        else:
            continue
        if len(path) > best and wanted[: len(path)] == path:
            best = len(path)
            best_line = number
    return best_line


def _numbered(path: tuple[str, ...], entries: Mapping[tuple[str, ...], int]) -> tuple[str, ...]:
    """Return a table's path, with the latest index of every enclosing array."""
    found: tuple[str, ...] = ()
    for part in path[:-1]:
        found += (part,)
        if found in entries:
            found += (str(entries[found] - 1),)
    return found + path[-1:]


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip(" \t\"'") for part in dotted.split("."))


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
    tolerance: Annotated[float, Field(ge=0, le=1)] | Literal["exact"] | None = None
    samples: int | None = Field(default=None, ge=2)
    concurrency: int | None = Field(default=None, ge=1)
    options: dict[str, Any] = Field(default_factory=dict, repr=False)  # may hold a key

    @field_validator("samples")
    @classmethod
    def _check_samples(cls, samples: int | None, info: ValidationInfo) -> int | None:
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
    high: float = Field(default=0.99, gt=0, le=1)
    low: float = Field(default=0.90, gt=0, le=1, validate_default=True)
    parameters: dict[str, float] = Field(default_factory=dict)
    thresholds: Literal["auto"] | None = None

    @field_validator("low")
    @classmethod
    def _check_low(cls, low: float, info: ValidationInfo) -> float:
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

    k: int = Field(default=5, strict=True, ge=1)
    retriever: Literal["tfidf", "model2vec"] = "tfidf"
    balance: Literal["nearest", "balanced"] = "nearest"
    seed: int = Field(default=0, strict=True, ge=0)

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
        except ValidationError as error:
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
    embeddings: Annotated[str, StringConstraints(min_length=1)] | Literal[False] | None = None
