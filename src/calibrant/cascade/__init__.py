"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence

__all__ = ["Answered", "Assessment", "ConfidenceMethod", "NoEvidence"]
