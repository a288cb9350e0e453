"""What a call costs: the price list litellm brings along, read without importing it."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from calibrant.core import ConfigurationError, bounded_count

__all__ = ["PRICE_OPTIONS", "Price", "listed_price", "listed_provider", "price_of_options"]

PRICE_OPTIONS: Final = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
"""Options that say what a token costs, in US dollars, under litellm's names."""

_FILE: Final = "model_prices_and_context_window_backup.json"
_FINE_TUNED: Final = re.compile(r"ft:[^:]+")


@dataclass(frozen=True, kw_only=True)
class Price:
    """What tokens of a model cost, in US dollars.

    Attributes
    ----------
    prompt, answer : float
        Of one token of the prompt, and of the answer.
    cached : float or None
        Of one token of a prompt that the provider had cached; None where that costs as much as others.
    """

    prompt: float
    answer: float
    cached: float | None = None

    def cost(self, usage: object) -> float | None:
        """Return what a call costs, by the ``usage`` of an OpenAI answer, or None where it says too little."""
        if not isinstance(usage, Mapping):
            return None
        asked, answered = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        if asked is None:
            return None
        cost = asked * self.prompt + (answered or 0) * self.answer
        details = usage.get("prompt_tokens_details")
        if self.cached is not None and isinstance(details, Mapping):
            known = min(asked, _count(details.get("cached_tokens")) or 0)
            cost -= known * (self.prompt - self.cached)
        return cost


def price_of_options(options: Mapping[str, Any]) -> Price | None:
    """Return the price that is named among the options, or None.

    Raises
    ------
    ConfigurationError
        A price is no number of dollars, or is named without the others.
    """
    found = {name: options[name] for name in PRICE_OPTIONS if options.get(name) is not None}
    if not found:
        return None
    for name, value in found.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:
            raise ConfigurationError(f"Expected {name} to be US dollars, 0 or more, got {value!r}.")
    if not {"input_cost_per_token", "output_cost_per_token"} <= found.keys():
        raise ConfigurationError(
            f"Expected input_cost_per_token and output_cost_per_token together, got {' and '.join(found)} alone."
        )
    return _price(found)


def listed_price(model: str) -> Price | None:
    """Return OpenAI's price of a model, as far as it is known.

    Parameters
    ----------
    model : str
        The model's name at OpenAI, without a prefix.
    """
    tuned = _FINE_TUNED.match(model)
    for name in (model, f"openai/{model}", tuned and tuned.group()):
        entry = _listed().get(name or "")
        if entry is not None and entry[0] == "openai":
            return entry[1]
    return None


def listed_provider(model: str) -> str | None:
    """Return which provider litellm takes a name for, or None where it does not know it."""
    entry = _listed().get(model)
    return None if entry is None else entry[0]


@functools.cache
def _listed() -> Mapping[str, tuple[str, Price | None]]:
    """Return provider and price by name; the file is large, so only these are kept."""
    spec = find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    try:
        entries = json.loads((Path(spec.origin).parent / _FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        name: (str(entry.get("litellm_provider")), _price(entry))
        for name, entry in entries.items()
        if isinstance(entry, dict)
    }


def _price(entry: Mapping[str, Any]) -> Price | None:
    prompt, answer, cached = (entry.get(name) for name in PRICE_OPTIONS)
    if not isinstance(prompt, int | float) or not isinstance(answer, int | float):
        return None
    return Price(
        prompt=float(prompt), answer=float(answer), cached=float(cached) if cached is not None else None
    )


def _count(value: object) -> int | None:
    """Return a number of tokens, as it will be counted; None where it is none."""
    known = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return bounded_count(value) if known else None
