"""scikit-learn estimator: a language model that is fitted, cross-validated and saved as any classifier."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.sklearn._classifier import CalibrantClassifier
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "CalibrantClassifier",
]
