"""Fakes for the tests of code that uses calibrant: no model, no network, exact probabilities."""

from calibrant.testing._client import Answer, FakeClient
from calibrant.testing._continuing import FakeContinuingClient
from calibrant.testing._response import fake_response

__all__ = ["Answer", "FakeClient", "FakeContinuingClient", "fake_response"]
