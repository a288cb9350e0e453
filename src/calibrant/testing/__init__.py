"""Fakes for the tests of code that uses calibrant: no model, exact probabilities."""

from calibrant.testing._client import FakeClient
from calibrant.testing._continuing import FakeContinuingClient
from calibrant.testing._journal import MemoryJournal
from calibrant.testing._models import fake_model
from calibrant.testing._response import fake_response
from calibrant.testing._rule import Answer

__all__ = [
    "Answer",
    "FakeClient",
    "FakeContinuingClient",
    "MemoryJournal",
    "fake_model",
    "fake_response",
]
