"""Feedback on one row for the model that rewrites the prompt, graded by severity."""

from calibrant.feedback._composite import build_composite_feedback
from calibrant.feedback._label import build_feedback

__all__ = ["build_composite_feedback", "build_feedback"]
