"""Data and Protocols shared by every other package; imports none of them."""

from calibrant.core.cascade_settings import LOOPER_KEYS, CascadeModelSettings, CascadeSettings, HybridWeights
from calibrant.core.completion import (
    Client,
    Completion,
    CompletionRequest,
    Continuation,
    ContinuingClient,
    Message,
    NextTokens,
    Token,
)
from calibrant.core.distribution import LabelDistribution, LogprobSpace
from calibrant.core.errors import (
    CalibrantError,
    ConfigurationError,
    ContextLengthError,
    DataError,
    LimitReachedError,
    LogprobsUnavailableError,
    NotFittedError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    StateError,
)
from calibrant.core.files import (
    damaged_record,
    read_record,
    remove_leftovers,
    write_atomically,
    write_record,
)
from calibrant.core.interval import Interval
from calibrant.core.labels import LabelSet, normalise_label
from calibrant.core.prediction import Outcome, Prediction, Step, Usage, Verdict
from calibrant.core.records import Journal, prediction_from_record, prediction_to_record, step_to_record
from calibrant.core.router_state import RouterState
from calibrant.core.rows import (
    Columns,
    DataSource,
    Example,
    Row,
    iter_examples,
    read_examples,
    read_rows,
    read_texts,
)
from calibrant.core.sections import describe_problem
from calibrant.core.settings import CalibrationSettings, ModelSettings, ScoringSettings
from calibrant.core.task import Split, Task, check_answer

__all__ = [
    "LOOPER_KEYS",
    "CalibrantError",
    "CalibrationSettings",
    "CascadeModelSettings",
    "CascadeSettings",
    "Client",
    "Columns",
    "Completion",
    "CompletionRequest",
    "ConfigurationError",
    "ContextLengthError",
    "Continuation",
    "ContinuingClient",
    "DataError",
    "DataSource",
    "Example",
    "HybridWeights",
    "Interval",
    "Journal",
    "LabelDistribution",
    "LabelSet",
    "LimitReachedError",
    "LogprobSpace",
    "LogprobsUnavailableError",
    "Message",
    "ModelSettings",
    "NextTokens",
    "NotFittedError",
    "Outcome",
    "Prediction",
    "ProviderError",
    "ProviderTimeoutError",
    "RateLimitError",
    "RouterState",
    "Row",
    "ScoringSettings",
    "Split",
    "StateError",
    "Step",
    "Task",
    "Token",
    "Usage",
    "Verdict",
    "check_answer",
    "damaged_record",
    "describe_problem",
    "iter_examples",
    "normalise_label",
    "prediction_from_record",
    "prediction_to_record",
    "read_examples",
    "read_record",
    "read_rows",
    "read_texts",
    "remove_leftovers",
    "step_to_record",
    "write_atomically",
    "write_record",
]
