"""The attributes of gepa's own adapter, for scripts written for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet, OpenLabels
from calibrant.core._predictor import Predictor
from calibrant.inference._classifier import Classifier

_ALTERNATIVES: Final = 5  # of a cascade, whose models have settings of their own


class ReferenceAttributes:
    """Settings of an adapter under the names of gepa's parameters.

    They cannot be assigned to: a client is open already, so a new value would change nothing.

    Attributes
    ----------
    predictor : Predictor
        What is asked.
    """

    predictor: Predictor

    @property
    def classifier(self) -> Classifier:
        """The classifier that is asked.

        Raises
        ------
        ConfigurationError
            Another predictor is asked, such as a cascade.
        """
        if not isinstance(self.predictor, Classifier):
            raise ConfigurationError(
                f"Expected an adapter around a classifier, got one around {self.predictor.name}: ask `predictor`."
            )
        return self.predictor

    @property
    def labels(self) -> LabelSet:
        """The legal labels."""
        return self.predictor.labels

    @property
    def field_path(self) -> str:
        """JSON path of the label."""
        return self.predictor.field

    @property
    def answer_field(self) -> str:
        """JSON path the label itself is read from."""
        return self.classifier.answer_field

    @property
    def response_format(self) -> Mapping[str, Any] | None:
        """The schema sent with every call; None for a callable without one."""
        return None if isinstance(self.predictor.labels, OpenLabels) else self.classifier.response_format

    @property
    def top_logprobs(self) -> int:
        """Alternatives asked for per token."""
        return self.predictor.top_logprobs if isinstance(self.predictor, Classifier) else _ALTERNATIVES

    @property
    def max_litellm_workers(self) -> int:
        """Calls in flight at most."""
        return self.predictor.meter.concurrency

    @property
    def litellm_batch_completion_kwargs(self) -> dict[str, Any]:
        """Options handed to the provider with every call."""
        return dict(self.classifier.options)
