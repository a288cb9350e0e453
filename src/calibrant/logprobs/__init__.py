"""Token log-probabilities of one answer become a distribution over the labels."""

from calibrant.logprobs._align import AlignedField, align, joint_logprob
from calibrant.logprobs._completion import read_completion, reported_tokens
from calibrant.logprobs._distribution import OpeningMasses, extract_distribution, opening_masses
from calibrant.logprobs._fields import UnparsedError, field_value, field_values
from calibrant.logprobs._schema import as_response_format, enum_schema, labels_from_schema
from calibrant.logprobs._sets import SetEvidence, extract_set
from calibrant.logprobs._tokens import TokenTrie, TokenWalk
from calibrant.logprobs._trie import LabelTrie
from calibrant.logprobs._walk import LabelWalk
from calibrant.logprobs._whole import whole_label_distribution

__all__ = [
    "AlignedField",
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
    "reported_tokens",
    "whole_label_distribution",
]
