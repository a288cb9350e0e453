"""Conversion of token log-probabilities into a distribution over the labels."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.logprobs._completion import read_completion
    from calibrant.logprobs._distribution import extract_distribution
    from calibrant.logprobs._fields import labels_from_schema
    from calibrant.logprobs._sets import SetEvidence, extract_set
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "SetEvidence",
    "extract_distribution",
    "extract_set",
    "labels_from_schema",
    "read_completion",
]
