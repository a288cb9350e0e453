"""Fakes for the tests of code that uses calibrant: no model, exact probabilities."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.testing._client import Answer, FakeClient, MemoryJournal, fake_model
    from calibrant.testing._continuing import FakeContinuingClient
    from calibrant.testing._response import fake_response
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Answer",
    "FakeClient",
    "FakeContinuingClient",
    "MemoryJournal",
    "fake_model",
    "fake_response",
]
