"""Data and Protocols shared by every other package; imports none of them."""

from calibrant.core.answers import unknown_answer
from calibrant.core.aspects import Aspect
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
from calibrant.core.composite import CompositeLabels, Field, FieldLabels, MultiLabels, part_of
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
from calibrant.core.label_records import described_labels, labels_from_record, labels_to_record
from calibrant.core.labels import LabelSet, normalise_label
from calibrant.core.prediction import Outcome, Part, Prediction, Step, Usage, Verdict
from calibrant.core.records import Journal, prediction_from_record, prediction_to_record, step_to_record
from calibrant.core.router_state import RouterState
from calibrant.core.routing_settings import (
    BanditSettings,
    CascadeRoutingSettings,
    CoherenceSettings,
    RoutingProviderSettings,
    RoutingSettings,
    RoutingStrategy,
    TierSettings,
    TriageSettings,
)
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
from calibrant.core.structures import (
    HierarchicalLabels,
    OrdinalLabels,
    structured_labels,
)
from calibrant.core.task import ROUTED, Split, Task, check_answer
from calibrant.core.zeph import read_zeph

__all__ = [
    "LOOPER_KEYS",
    "ROUTED",
    "Aspect",
    "BanditSettings",
    "CalibrantError",
    "CalibrationSettings",
    "CascadeModelSettings",
    "CascadeRoutingSettings",
    "CascadeSettings",
    "Client",
    "CoherenceSettings",
    "Columns",
    "Completion",
    "CompletionRequest",
    "CompositeLabels",
    "ConfigurationError",
    "ContextLengthError",
    "Continuation",
    "ContinuingClient",
    "DataError",
    "DataSource",
    "Example",
    "Field",
    "FieldLabels",
    "HierarchicalLabels",
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
    "MultiLabels",
    "NextTokens",
    "NotFittedError",
    "OrdinalLabels",
    "Outcome",
    "Part",
    "Prediction",
    "ProviderError",
    "ProviderTimeoutError",
    "RateLimitError",
    "RouterState",
    "RoutingProviderSettings",
    "RoutingSettings",
    "RoutingStrategy",
    "Row",
    "ScoringSettings",
    "Split",
    "StateError",
    "Step",
    "Task",
    "TierSettings",
    "Token",
    "TriageSettings",
    "Usage",
    "Verdict",
    "check_answer",
    "damaged_record",
    "describe_problem",
    "described_labels",
    "iter_examples",
    "labels_from_record",
    "labels_to_record",
    "normalise_label",
    "part_of",
    "prediction_from_record",
    "prediction_to_record",
    "read_examples",
    "read_record",
    "read_rows",
    "read_texts",
    "read_zeph",
    "remove_leftovers",
    "step_to_record",
    "structured_labels",
    "unknown_answer",
    "write_atomically",
    "write_record",
]
