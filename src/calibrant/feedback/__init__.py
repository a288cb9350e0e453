"""What a reflecting model reads about one row, graded by how bad the row is."""

from calibrant.feedback._composite import build_composite_feedback
from calibrant.feedback._label import build_feedback

__all__ = ["build_composite_feedback", "build_feedback"]
