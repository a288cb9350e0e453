"""Fakes for the tests of code that uses calibrant: no model, exact probabilities."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.testing._client import FakeClient
    from calibrant.testing._continuing import FakeContinuingClient
    from calibrant.testing._journal import MemoryJournal
    from calibrant.testing._models import fake_model
    from calibrant.testing._response import fake_response
    from calibrant.testing._rule import Answer
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._client": "FakeClient",
            "._continuing": "FakeContinuingClient",
            "._journal": "MemoryJournal",
            "._models": "fake_model",
            "._response": "fake_response",
            "._rule": "Answer",
        },
    )

__all__ = [
    "Answer",
    "FakeClient",
    "FakeContinuingClient",
    "MemoryJournal",
    "fake_model",
    "fake_response",
]
