"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._cascade import Cascade
from calibrant.cascade._limits import RowLimits
from calibrant.cascade._models import CascadeModel
from calibrant.cascade._named import METHOD_NAMES, method_named
from calibrant.cascade._order import EscalationOrder
from calibrant.cascade._policy import Calibrator, EscalationRule
from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence

__all__ = [
    "METHOD_NAMES",
    "Answered",
    "Assessment",
    "Calibrator",
    "Cascade",
    "CascadeModel",
    "ConfidenceMethod",
    "EscalationOrder",
    "EscalationRule",
    "NoEvidence",
    "RowLimits",
    "method_named",
]
