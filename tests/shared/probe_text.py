"""The question that shows what a model can do."""

from __future__ import annotations

PROBE = "He barked at the postman, and then he chewed my left shoe."
