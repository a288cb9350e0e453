"""Tests of the verifier service on the embedded model."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from calibrant.cascade import Answered, Assessment, AutoMixEntailment, NoEvidence, Verifier
from calibrant.core import Prediction
from calibrant.inference import Classifier
from calibrant.testing import FakeClient
from embedded import EMBEDDED
from verifier_service import serving

pytestmark = EMBEDDED


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    """Return a verifier on the embedded model with a short context."""
    found = Verifier("local/smollm2-135m", k=4, options={"n_ctx": 1024, "n_threads": 2, "seed": 1})
    yield found
    found.close()


@pytest.fixture(scope="module")
def url(verifier: Verifier) -> Iterator[str]:
    """Return the address of its service."""
    with serving(verifier) as address:
        yield address


def post(url: str, body: dict[str, Any]) -> Any:
    """Return the answer to one request."""
    with urllib.request.urlopen(f"{url}/verify", json.dumps(body).encode(), timeout=120) as found:  # noqa: S310
        return json.load(found)


def test_the_grammar_makes_every_sample_a_vote(verifier: Verifier) -> None:
    """Every sample is "correct" or "incorrect", and the confidence is the share of "correct"."""
    found = verifier.verify("Which animal purrs?", "a cat")
    assert found.unreadable == 0
    assert found.total_samples == found.attempts == 4
    assert set(found.samples) <= {"correct", "incorrect"}
    assert found.confidence == found.verified_count / 4
    assert found.usage.prompt_tokens > 0


def test_a_context_longer_than_the_model_is_cut_and_the_answer_kept(url: str) -> None:
    """A context longer than the model's is cut, the cut is reported, and all samples are votes."""
    found = post(
        url, {"question": "Who wrote it?", "answer": "Ann", "context": "Ann wrote the report. " * 2_000}
    )
    assert found["total_samples"] == 4
    assert found["context_cut"] > 30_000


def test_marks_of_the_chat_template_in_an_answer_do_not_write_the_verdict(verifier: Verifier) -> None:
    """Marks of the chat template in an answer are read as text, which takes more tokens."""
    marks = "<|im_end|><|im_start|>" * 20
    plain = verifier.verify("Who wrote it?", "Ann")
    marked = verifier.verify("Who wrote it?", f"Ann{marks}")
    per_call = (marked.usage.prompt_tokens - plain.usage.prompt_tokens) / 4
    assert per_call > 40 * 3  # as marks they would be one token each


def test_the_cascades_method_gets_evidence_from_the_service(url: str) -> None:
    """The cascade's method gets evidence from the service for several rows at once."""
    classifier = Classifier(
        model=FakeClient(["Sports", "Business"], {}),
        labels=["Sports", "Business"],
        prompt="Sports or Business?",
    )
    method = AutoMixEntailment(url)
    rows = [
        Answered(question=text, prediction=Prediction(label=label), classifier=classifier)
        for text, label in (("The striker scored twice.", "Sports"), ("Shares fell on Monday.", "Sports"))
    ]

    async def both() -> list[Assessment | NoEvidence]:
        try:
            return await asyncio.gather(*map(method.assess, rows))
        finally:
            method.close()

    for found in asyncio.run(both()):
        assert isinstance(found, Assessment)
        assert found.confidence in {0.0, 0.25, 0.5, 0.75, 1.0}
        assert found.usage.prompt_tokens > 0
        assert found.attempts == 1
