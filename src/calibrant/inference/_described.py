"""The identity of a classifier, as JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.inference.doctor import identity

if TYPE_CHECKING:
    from calibrant.inference._classifier import Classifier

__all__ = ["demonstrated_by", "described"]


def described(classifier: Classifier) -> dict[str, Any]:
    """Return the settings that can change a prediction as JSON values, free of credentials."""
    name, endpoint, options = identity(
        classifier.name, classifier.options, api_base=getattr(classifier.client, "endpoint", None)
    )
    correction, head = classifier.prior_correction, classifier.head
    return {
        "model": name,
        "endpoint": endpoint,
        "options": options,
        "method": dict(classifier.method.describe()),
        "response_format": classifier.response_format,
        "top_logprobs": classifier.top_logprobs,
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
