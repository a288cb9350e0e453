"""Data classes, protocols and errors for the other packages, none of which is imported here."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.core._completion import Client, Completion, CompletionRequest, NextTokens, Token
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
    from calibrant.core._fingerprint import Fingerprint
    from calibrant.core._labels import Aspect, LabelSet, OpenLabels
    from calibrant.core._limits import Limits
    from calibrant.core._prediction import (
        Interval,
        LabelDistribution,
        LogprobSpace,
        Outcome,
        Part,
        Prediction,
        Step,
        Usage,
        Verdict,
    )
    from calibrant.core._predictor import Predictor, Query, Stop
    from calibrant.core._records import Journal
    from calibrant.core._rows import Columns, DataSource, Example, TextWithContext, read_examples
    from calibrant.core._settings import (
        CalibrationSettings,
        DemonstrationSettings,
        HeadSettings,
        ScoringSettings,
    )
    from calibrant.core._structures import HierarchicalLabels, OrdinalLabels
    from calibrant.core._task import Task
    from calibrant.core._text_files import CsvFormat
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._completion": "Client Completion CompletionRequest NextTokens Token",
            "._composite": "Field FieldLabels MultiLabels",
            "._errors": (
                "CalibrantError ConfigurationError ContextLengthError DataError LimitReachedError "
                "LogprobsUnavailableError LogprobsUnsupportedError NotFittedError ProviderError "
                "ProviderTimeoutError RateLimitError StateError"
            ),
            "._fingerprint": "Fingerprint",
            "._labels": "Aspect LabelSet OpenLabels",
            "._limits": "Limits",
            "._prediction": "Interval LabelDistribution LogprobSpace Outcome Part Prediction Step Usage Verdict",
            "._predictor": "Predictor Query Stop",
            "._records": "Journal",
            "._rows": "Columns DataSource Example TextWithContext read_examples",
            "._settings": "CalibrationSettings DemonstrationSettings HeadSettings ScoringSettings",
            "._structures": "HierarchicalLabels OrdinalLabels",
            "._task": "Task",
            "._text_files": "CsvFormat",
        },
    )

__all__ = [
    "Aspect",
    "CalibrantError",
    "CalibrationSettings",
    "Client",
    "Columns",
    "Completion",
    "CompletionRequest",
    "ConfigurationError",
    "ContextLengthError",
    "CsvFormat",
    "DataError",
    "DataSource",
    "DemonstrationSettings",
    "Example",
    "Field",
    "FieldLabels",
    "Fingerprint",
    "HeadSettings",
    "HierarchicalLabels",
    "Interval",
    "Journal",
    "LabelDistribution",
    "LabelSet",
    "LimitReachedError",
    "Limits",
    "LogprobSpace",
    "LogprobsUnavailableError",
    "LogprobsUnsupportedError",
    "MultiLabels",
    "NextTokens",
    "NotFittedError",
    "OpenLabels",
    "OrdinalLabels",
    "Outcome",
    "Part",
    "Prediction",
    "Predictor",
    "ProviderError",
    "ProviderTimeoutError",
    "Query",
    "RateLimitError",
    "ScoringSettings",
    "StateError",
    "Step",
    "Stop",
    "Task",
    "TextWithContext",
    "Token",
    "Usage",
    "Verdict",
    "read_examples",
]
