"""Conversion of token log-probabilities into a distribution over the labels."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.logprobs._align import AlignedField, align, joint_logprob
    from calibrant.logprobs._completion import read_completion, reported_tokens
    from calibrant.logprobs._distribution import (
        OpeningMasses,
        extract_distribution,
        opening_masses,
        whole_label_distribution,
    )
    from calibrant.logprobs._fields import UnparsedError, field_value, field_values
    from calibrant.logprobs._schema import as_response_format, enum_schema, labels_from_schema
    from calibrant.logprobs._sets import ArrayPlace, SetEvidence, extract_set, read_place, set_of_places
    from calibrant.logprobs._tokens import TokenTrie, TokenWalk
    from calibrant.logprobs._trie import LabelTrie
    from calibrant.logprobs._walk import LabelWalk
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._align": "AlignedField align joint_logprob",
            "._completion": "read_completion reported_tokens",
            "._distribution": "OpeningMasses extract_distribution opening_masses whole_label_distribution",
            "._fields": "UnparsedError field_value field_values",
            "._schema": "as_response_format enum_schema labels_from_schema",
            "._sets": "ArrayPlace SetEvidence extract_set read_place set_of_places",
            "._tokens": "TokenTrie TokenWalk",
            "._trie": "LabelTrie",
            "._walk": "LabelWalk",
        },
    )

__all__ = [
    "AlignedField",
    "ArrayPlace",
    "LabelTrie",
    "LabelWalk",
    "OpeningMasses",
    "SetEvidence",
    "TokenTrie",
    "TokenWalk",
    "UnparsedError",
    "align",
    "as_response_format",
    "enum_schema",
    "extract_distribution",
    "extract_set",
    "field_value",
    "field_values",
    "joint_logprob",
    "labels_from_schema",
    "opening_masses",
    "read_completion",
    "read_place",
    "reported_tokens",
    "set_of_places",
    "whole_label_distribution",
]
