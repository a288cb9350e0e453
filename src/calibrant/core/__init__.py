"""Data classes, protocols and errors for the other packages, none of which is imported here."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.core._completion import (
        Client,
        Completion,
        CompletionRequest,
        Continuation,
        DecisionAnswer,
        DecisionClient,
        DecisionQuestion,
        DecisionResponse,
        NextTokens,
        QuestionKind,
    )
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
    from calibrant.core._fingerprint import Fingerprint, TextDigests
    from calibrant.core._labels import Aspect, LabelSet, OpenLabels
    from calibrant.core._prediction import (
        Interval,
        Journal,
        LabelDistribution,
        LogprobSpace,
        Outcome,
        Part,
        Prediction,
        Step,
        Token,
        Usage,
        Verdict,
    )
    from calibrant.core._predictor import Limits, Predictor, Query, Stop
    from calibrant.core._rows import Columns, DataSource, Example, TextWithContext, read_examples
    from calibrant.core._settings import (
        CalibrationSettings,
        DemonstrationSettings,
        HeadSettings,
        ModelSettings,
        ScoringSettings,
        Section,
        SectionTable,
    )
    from calibrant.core._structures import (
        CompositeLabels,
        Field,
        FieldLabels,
        HierarchicalLabels,
        MultiLabels,
        OrdinalLabels,
        register_labels,
    )
    from calibrant.core._table_files import CsvFormat
    from calibrant.core._task import Task
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Aspect",
    "CalibrantError",
    "CalibrationSettings",
    "Client",
    "Columns",
    "Completion",
    "CompletionRequest",
    "CompositeLabels",
    "ConfigurationError",
    "ContextLengthError",
    "Continuation",
    "CsvFormat",
    "DataError",
    "DataSource",
    "DecisionAnswer",
    "DecisionClient",
    "DecisionQuestion",
    "DecisionResponse",
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
    "ModelSettings",
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
    "QuestionKind",
    "RateLimitError",
    "ScoringSettings",
    "Section",
    "SectionTable",
    "StateError",
    "Step",
    "Stop",
    "Task",
    "TextDigests",
    "TextWithContext",
    "Token",
    "Usage",
    "Verdict",
    "read_examples",
    "register_labels",
]
