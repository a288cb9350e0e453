"""Data and Protocols shared by every other package; imports none of them."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.core.answers import unknown_answer
    from calibrant.core.completion import (
        Client,
        Completion,
        CompletionRequest,
        Continuation,
        ContinuingClient,
        LabelContinuation,
        LabelLogprobs,
        Message,
        NextTokens,
        Token,
    )
    from calibrant.core.composite import CompositeLabels, Field, FieldLabels, MultiLabels, part_of
    from calibrant.core.distribution import (
        LOW_LABEL_MASS,
        Interval,
        LabelDistribution,
        LogprobSpace,
        is_label_mass_low,
    )
    from calibrant.core.errors import (
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
    from calibrant.core.files import (
        atomic_bytes_writer,
        atomic_writer,
        damaged_record,
        is_in_place,
        make_rescue_folder,
        read_json_object,
        read_record,
        remove_leftovers,
        try_lock,
        without_doubles,
        write_atomically,
        write_record,
    )
    from calibrant.core.fingerprint import Fingerprint, asked_text, demonstrated
    from calibrant.core.installation import install_command
    from calibrant.core.label_records import described_labels, labels_from_record, labels_to_record
    from calibrant.core.labels import Aspect, LabelSet, OpenLabels, normalise_label
    from calibrant.core.limits import CallMeter, Limits, Pace
    from calibrant.core.prediction import Outcome, Part, Prediction, Step, Usage, Verdict
    from calibrant.core.predictor import INPUT_SLOT, OnPrediction, Predictor, Query, Stop
    from calibrant.core.records import (
        Journal,
        has_low_label_mass,
        prediction_from_record,
        prediction_to_record,
        step_to_record,
    )
    from calibrant.core.reported import bounded_count, clean_line, clean_text
    from calibrant.core.router_state import RouterState
    from calibrant.core.rows import (
        MAX_RUN_ROW_BYTES,
        Columns,
        DataSource,
        Example,
        Row,
        TextWithContext,
        iter_examples,
        read_examples,
        read_rows,
        read_texts,
    )
    from calibrant.core.run_rows import UNKNOWN, RunRow
    from calibrant.core.schema import SchemaNode, plain_schema, schema_target
    from calibrant.core.search_verdicts import WHAT_ACCEPTED_MEANS, changed_prompt, search_verdict
    from calibrant.core.sections import Section, SectionTable, describe_problem
    from calibrant.core.settings import (
        CalibrationSettings,
        DemonstrationSettings,
        HeadSettings,
        ModelSettings,
        ScoringSettings,
    )
    from calibrant.core.structures import HierarchicalLabels, OrdinalLabels, structured_labels
    from calibrant.core.task import Split, Task, check_answer
    from calibrant.core.tokens import TokenContinuation, TokenLogprobs, Vocabulary
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".answers": "unknown_answer",
            ".completion": (
                "Client Completion CompletionRequest Continuation ContinuingClient LabelContinuation "
                "LabelLogprobs Message NextTokens Token"
            ),
            ".composite": "CompositeLabels Field FieldLabels MultiLabels part_of",
            ".distribution": "LOW_LABEL_MASS Interval LabelDistribution LogprobSpace is_label_mass_low",
            ".errors": (
                "CalibrantError ConfigurationError ContextLengthError DataError LimitReachedError "
                "LogprobsUnavailableError LogprobsUnsupportedError NotFittedError ProviderError "
                "ProviderTimeoutError RateLimitError StateError"
            ),
            ".files": (
                "atomic_bytes_writer atomic_writer damaged_record is_in_place make_rescue_folder "
                "read_json_object read_record remove_leftovers try_lock without_doubles write_atomically write_record"
            ),
            ".fingerprint": "Fingerprint asked_text demonstrated",
            ".installation": "install_command",
            ".label_records": "described_labels labels_from_record labels_to_record",
            ".labels": "Aspect LabelSet OpenLabels normalise_label",
            ".limits": "CallMeter Limits Pace",
            ".prediction": "Outcome Part Prediction Step Usage Verdict",
            ".predictor": "INPUT_SLOT OnPrediction Predictor Query Stop",
            ".records": (
                "Journal has_low_label_mass prediction_from_record prediction_to_record step_to_record"
            ),
            ".reported": "bounded_count clean_line clean_text",
            ".router_state": "RouterState",
            ".rows": (
                "Columns DataSource Example MAX_RUN_ROW_BYTES Row TextWithContext iter_examples "
                "read_examples read_rows read_texts"
            ),
            ".run_rows": "RunRow UNKNOWN",
            ".schema": "SchemaNode plain_schema schema_target",
            ".search_verdicts": "WHAT_ACCEPTED_MEANS changed_prompt search_verdict",
            ".sections": "Section SectionTable describe_problem",
            ".settings": (
                "CalibrationSettings DemonstrationSettings HeadSettings ModelSettings ScoringSettings"
            ),
            ".structures": "HierarchicalLabels OrdinalLabels structured_labels",
            ".task": "Split Task check_answer",
            ".tokens": "TokenContinuation TokenLogprobs Vocabulary",
        },
        moved={
            **dict.fromkeys(
                ("CascadeModelSettings", "CascadeSettings", "HybridWeights"), "calibrant.cascade"
            ),
            **dict.fromkeys(
                (
                    "BanditSettings",
                    "CascadeRoutingSettings",
                    "CoherenceSettings",
                    "RoutingProviderSettings",
                    "RoutingSettings",
                    "RoutingStrategy",
                    "TierSettings",
                    "TriageSettings",
                ),
                "calibrant.routing",
            ),
            "read_zeph": "calibrant.assembly",
        },
    )

__all__ = [
    "INPUT_SLOT",
    "LOW_LABEL_MASS",
    "MAX_RUN_ROW_BYTES",
    "UNKNOWN",
    "WHAT_ACCEPTED_MEANS",
    "Aspect",
    "CalibrantError",
    "CalibrationSettings",
    "CallMeter",
    "Client",
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
    "DemonstrationSettings",
    "Example",
    "Field",
    "FieldLabels",
    "Fingerprint",
    "HeadSettings",
    "HierarchicalLabels",
    "Interval",
    "Journal",
    "LabelContinuation",
    "LabelDistribution",
    "LabelLogprobs",
    "LabelSet",
    "LimitReachedError",
    "Limits",
    "LogprobSpace",
    "LogprobsUnavailableError",
    "LogprobsUnsupportedError",
    "Message",
    "ModelSettings",
    "MultiLabels",
    "NextTokens",
    "NotFittedError",
    "OnPrediction",
    "OpenLabels",
    "OrdinalLabels",
    "Outcome",
    "Pace",
    "Part",
    "Prediction",
    "Predictor",
    "ProviderError",
    "ProviderTimeoutError",
    "Query",
    "RateLimitError",
    "RouterState",
    "Row",
    "RunRow",
    "SchemaNode",
    "ScoringSettings",
    "Section",
    "SectionTable",
    "Split",
    "StateError",
    "Step",
    "Stop",
    "Task",
    "TextWithContext",
    "Token",
    "TokenContinuation",
    "TokenLogprobs",
    "Usage",
    "Verdict",
    "Vocabulary",
    "asked_text",
    "atomic_bytes_writer",
    "atomic_writer",
    "bounded_count",
    "changed_prompt",
    "check_answer",
    "clean_line",
    "clean_text",
    "damaged_record",
    "demonstrated",
    "describe_problem",
    "described_labels",
    "has_low_label_mass",
    "install_command",
    "is_in_place",
    "is_label_mass_low",
    "iter_examples",
    "labels_from_record",
    "labels_to_record",
    "lazy_names",
    "make_rescue_folder",
    "normalise_label",
    "part_of",
    "plain_schema",
    "prediction_from_record",
    "prediction_to_record",
    "read_examples",
    "read_json_object",
    "read_record",
    "read_rows",
    "read_texts",
    "remove_leftovers",
    "schema_target",
    "search_verdict",
    "step_to_record",
    "structured_labels",
    "try_lock",
    "unknown_answer",
    "without_doubles",
    "write_atomically",
    "write_record",
]
