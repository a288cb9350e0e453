"""Data classes, protocols and errors for the other packages, none of which is imported here."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.core._completion import Client, Completion, CompletionRequest, Token
    from calibrant.core._composite import Field, FieldLabels, MultiLabels
    from calibrant.core._errors import (
        CalibrantError,
        ConfigurationError,
        ContextLengthError,
        DataError,
        LimitReachedError,
        LogprobsUnavailableError,
        LogprobsUnsupportedError,
        NotFittedError,
        ProviderError,
        ProviderTimeoutError,
        RateLimitError,
        StateError,
    )
    from calibrant.core._labels import LabelSet, OpenLabels
    from calibrant.core._limits import Limits
    from calibrant.core._prediction import Interval, LabelDistribution, Outcome, Prediction, Usage
    from calibrant.core._predictor import Predictor, Stop
    from calibrant.core._records import Journal
    from calibrant.core._rows import DataSource, Example, TextWithContext, read_examples
    from calibrant.core._structures import HierarchicalLabels, OrdinalLabels, register_labels
    from calibrant.core._task import Task
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._completion": "Client Completion CompletionRequest Token",
            "._composite": "Field FieldLabels MultiLabels",
            "._errors": (
                "CalibrantError ConfigurationError ContextLengthError DataError LimitReachedError "
                "LogprobsUnavailableError LogprobsUnsupportedError NotFittedError ProviderError "
                "ProviderTimeoutError RateLimitError StateError"
            ),
            "._labels": "LabelSet OpenLabels",
            "._limits": "Limits",
            "._prediction": "Interval LabelDistribution Outcome Prediction Usage",
            "._predictor": "Predictor Stop",
            "._records": "Journal",
            "._rows": "DataSource Example TextWithContext read_examples",
            "._structures": "HierarchicalLabels OrdinalLabels register_labels",
            "._task": "Task",
        },
    )

__all__ = [
    "CalibrantError",
    "Client",
    "Completion",
    "CompletionRequest",
    "ConfigurationError",
    "ContextLengthError",
    "DataError",
    "DataSource",
    "Example",
    "Field",
    "FieldLabels",
    "HierarchicalLabels",
    "Interval",
    "Journal",
    "LabelDistribution",
    "LabelSet",
    "LimitReachedError",
    "Limits",
    "LogprobsUnavailableError",
    "LogprobsUnsupportedError",
    "MultiLabels",
    "NotFittedError",
    "OpenLabels",
    "OrdinalLabels",
    "Outcome",
    "Prediction",
    "Predictor",
    "ProviderError",
    "ProviderTimeoutError",
    "RateLimitError",
    "StateError",
    "Stop",
    "Task",
    "TextWithContext",
    "Token",
    "Usage",
    "read_examples",
    "register_labels",
]
