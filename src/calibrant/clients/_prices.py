"""Prices of calls: litellm's price list, read without importing litellm, and prices in options."""

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

from calibrant.core._errors import ConfigurationError
from calibrant.core._reported import bounded_count

PRICE_OPTIONS: Final = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
"""Options for the price of a token, in US dollars, under litellm's names."""

_FILE: Final = "model_prices_and_context_window_backup.json"
_FINE_TUNED: Final = re.compile(r"ft:[^:]+")


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price of a model's tokens, in US dollars.

    Attributes
    ----------
    prompt, answer : float
        Price of one token of the prompt, and of the answer.
    cached : float or None
        Price of one prompt token in the provider's cache; None where there is no discount.
    """

    prompt: float
    answer: float
    cached: float | None = None

    def cost(self, usage: object) -> float | None:
        """Return the cost of a call from the ``usage`` of an OpenAI answer; None without a count of prompt tokens."""
        if not isinstance(usage, Mapping):
            return None
        asked, answered = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        if asked is None:
            return None
        cost = asked * self.prompt + (answered or 0) * self.answer
        details = usage.get("prompt_tokens_details")
        if self.cached is not None and isinstance(details, Mapping):
            cached_tokens = min(asked, _count(details.get("cached_tokens")) or 0)
            cost -= cached_tokens * (self.prompt - self.cached)
        return cost


def price_of_options(options: Mapping[str, Any]) -> Price | None:
    """Return the price set by the options, or None.

    Raises
    ------
    ConfigurationError
        A price is no number of dollars, or one of the prices is missing.
    """
    prices = {name: options[name] for name in PRICE_OPTIONS if options.get(name) is not None}
    if not prices:
        return None
    for name, value in prices.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:
            raise ConfigurationError(f"Expected {name} to be US dollars, 0 or more, got {value!r}.")
    if not {"input_cost_per_token", "output_cost_per_token"} <= prices.keys():
        raise ConfigurationError(
            f"Expected input_cost_per_token and output_cost_per_token together, got {' and '.join(prices)} alone."
        )
    return _price(prices)


def listed_price(model: str) -> Price | None:
    """Return OpenAI's price of a model, or None where the list lacks it.

    Parameters
    ----------
    model : str
        The model's name at OpenAI, without a prefix.
    """
    tuned = _FINE_TUNED.match(model)
    for name in (model, f"openai/{model}", tuned and tuned.group()):
        entry = _price_list().get(name or "")
        if entry is not None and entry[0] == "openai":
            return entry[1]
    return None


def listed_provider(model: str) -> str | None:
    """Return litellm's provider of a model name, or None for an unknown name."""
    entry = _price_list().get(model)
    return None if entry is None else entry[0]


@functools.cache
def _price_list() -> Mapping[str, tuple[str, Price | None]]:
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
    """Return a number of tokens, bounded; None for anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return bounded_count(value) if is_count else None
