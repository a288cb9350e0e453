"""What a classifier says of itself: in records, and at the prompt of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from calibrant.inference.doctor import identity

if TYPE_CHECKING:
    from calibrant.inference._classifier import Classifier

__all__ = ["demonstrated_by", "described", "representation"]

_LABELS_SHOWN: Final = 5


def described(classifier: Classifier) -> dict[str, Any]:
    """Return the settings that can change a prediction as JSON values, free of credentials."""
    runner = classifier.runner
    name, endpoint, options = identity(
        classifier.client.name, runner.options, api_base=getattr(classifier.client, "endpoint", None)
    )
    correction, head = classifier.prior_correction, classifier.head
    return {
        "model": name,
        "endpoint": endpoint,
        "options": options,
        "method": dict(runner.method.describe()),
        "response_format": runner.response_format,
        "top_logprobs": runner.top_logprobs,
        "prompt": classifier.prompt,
        "user_template": classifier.user_template,
        "label_prior": None
        if correction is None
        else {"prior": correction.divisor_.tolist(), "strength": correction.strength_},
        **({} if head is None else {"head": head.digest}),
        **({} if (shown := demonstrated_by(classifier)) is None else {"demonstrations": shown}),
    }


def demonstrated_by(classifier: Classifier) -> dict[str, Any] | None:
    """Return the demonstrations of a classifier; None without any."""
    return None if classifier.demonstrations is None else classifier.demonstrations.description


def representation(classifier: Classifier) -> str:
    """Return a classifier's ``repr``: model, first labels and scoring."""
    method = classifier.runner.method.describe()
    labels = ", ".join(map(repr, classifier.labels.labels[:_LABELS_SHOWN]))
    more = f", ... {len(classifier.labels)} in all" if len(classifier.labels) > _LABELS_SHOWN else ""
    return (
        f"{type(classifier).__name__}(model={classifier.client.name!r}, labels=[{labels}{more}], "
        f"scoring={method.get('scoring')!r})"
    )
