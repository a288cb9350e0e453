"""What a model's log-probabilities mean, found out before anyone trusts them."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.clients import hidden_in_address, public_address
    from calibrant.inference.doctor._examine import aexamine, examine, recommended_thresholds
    from calibrant.inference.doctor._records import (
        hidden_options,
        holds_digest,
        identity,
        is_secret,
        load_examination,
        public_description,
        public_endpoint,
        refuse_misleading,
        save_examination,
    )
    from calibrant.inference.doctor._report import Examination, Finding, Thresholds, Verdict
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "calibrant.clients": "hidden_in_address public_address",
            "._examine": "aexamine examine recommended_thresholds",
            "._records": (
                "hidden_options holds_digest identity is_secret load_examination public_description "
                "public_endpoint refuse_misleading save_examination"
            ),
            "._report": "Examination Finding Thresholds Verdict",
        },
    )

__all__ = [
    "Examination",
    "Finding",
    "Thresholds",
    "Verdict",
    "aexamine",
    "examine",
    "hidden_in_address",
    "hidden_options",
    "holds_digest",
    "identity",
    "is_secret",
    "load_examination",
    "public_address",
    "public_description",
    "public_endpoint",
    "recommended_thresholds",
    "refuse_misleading",
    "save_examination",
]
