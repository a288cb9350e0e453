"""Confidence methods whose native unit is the confidence itself."""

from __future__ import annotations

from typing import ClassVar

from calibrant.cascade._checks import check_share


class ShareMethod:
    """A confidence method that reads no tokens; its native unit is the confidence, unless it says otherwise."""

    default_threshold: float = 0.7
    top_logprobs: ClassVar[int] = 0
    needs_tokens: ClassVar[bool] = False
    unit: ClassVar[str]

    def to_confidence(self, native: float) -> float:
        """Return a share as it is.

        Raises
        ------
        ConfigurationError
            It is not in [0, 1].
        """
        return check_share(self.unit, native)

    def close(self) -> None:
        """Close nothing: the method holds nothing open."""
