"""Tools of the Model Context Protocol with which an agent classifies texts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Final

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from calibrant.core._errors import CalibrantError
from calibrant.core._predictor import Predictor
from calibrant.core._reported import listed
from calibrant.heads._tuned import Tuned
from calibrant.inference._base import ask_async
from calibrant.serving._answers import (
    Answer,
    Answers,
    ModelWatch,
    answer_record,
    error_fields,
    failures_by_status,
)

_LOG: Final = logging.getLogger("calibrant.service")
_MOST_TEXTS: Final = 128
_LISTED_LABELS: Final = 50
# An agent may call them without asking anybody: they change nothing. A hosted model may answer otherwise tomorrow.
_HINTS: Final = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)

_Text = Annotated[str, Field(min_length=1, pattern=r"\S", description="The text to classify.")]
_Texts = Annotated[
    list[_Text], Field(min_length=1, max_length=_MOST_TEXTS, description="The texts, in order.")
]


def create_mcp_server(tuned: Tuned, classifier: Predictor) -> MCPServer:
    """Return the server with the tools ``classify``, for one text, and ``classify_many``, for up to 128.

    An answer has the members of ``POST /v1/classify`` (see `create_classifier_app`): label, probabilities, confidence,
    decision and its threshold, and why there is no label. Descriptions name the labels and the promise.

    Parameters
    ----------
    tuned : Tuned
        The tuned classifier, as `Tuned.load` returns it.
    classifier : Predictor
        The same opened, as `Tuned.open` returns it; not closed.

    Examples
    --------
    >>> import asyncio
    >>> import tempfile
    >>> from mcp import Client
    >>> from calibrant import BatchEvaluator, Classifier, Example, Task
    >>> from calibrant.serving import create_mcp_server
    >>> from calibrant.testing import FakeClient, fake_model
    >>> from calibrant.tuned import Tuned
    >>> out = tempfile.mkdtemp()
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?")
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)}, field="label", name="fake/pets")
    >>> with fake_model("fake/pets", fake) as name:
    ...     classifier = Classifier.from_task(task, model=name)
    ...     _ = BatchEvaluator(classifier).evaluate([Example(input="purrs", answer="cat")], out=out)
    ...     server = create_mcp_server(Tuned.from_run(out, task=task, model=name), classifier)
    >>> async def ask(text):
    ...     async with Client(server) as client:
    ...         return (await client.call_tool("classify", {"text": text})).structured_content
    >>> asyncio.run(ask("purrs"))["label"]
    'cat'
    """
    server = MCPServer(
        tuned.name, instructions=_instructions(tuned), version=tuned.calibrant, log_level="WARNING"
    )

    model_watch = ModelWatch(tuned)

    async def answers(texts: Sequence[str]) -> list[Answer]:
        try:
            predictions = await ask_async(classifier, [classifier.query(text) for text in texts])
        except CalibrantError as error:
            # A provider's message may name internal addresses.
            _LOG.warning("A call of the model failed", extra={"fields": error_fields(error)})
            raise ToolError("A call of the model failed: ask again later.") from error
        decisions = tuned.decide_many(predictions)
        model_watch.look_at(predictions)
        failures = failures_by_status(predictions)
        if failures:
            fields = {"texts": len(texts), "failures": failures}
            _LOG.warning("Calls of the model failed", extra={"fields": fields})
        pairs = zip(predictions, decisions, strict=True)
        return [Answer.model_validate(answer_record(*pair)) for pair in pairs]

    @server.tool(description=f"Classify one text. {_about(tuned)}", annotations=_HINTS)
    async def classify(text: _Text) -> Answer:
        return (await answers([text]))[0]

    @server.tool(
        description=f"Classify up to {_MOST_TEXTS} texts: results in their order. {_about(tuned)}",
        annotations=_HINTS,
    )
    async def classify_many(texts: _Texts) -> Answers:
        return Answers(results=await answers(texts))

    return server


def _about(tuned: Tuned) -> str:
    if tuned.labels.holds_several:
        return "An answer holds several labels, as parts; or null, with the reason."
    labels = listed(tuned.labels.labels, most=_LISTED_LABELS)
    return f"The label is one of: {labels}; or null, with the reason."


def _instructions(tuned: Tuned) -> str:
    """Return the instructions of an agent on the answers."""
    certified = tuned.thresholds["certified"]
    if certified is None:
        return (
            "Answers carry a confidence. No accuracy is promised for any of them: have unsure ones checked."
        )
    return (
        "Use a label whose decision is accepted, and have a person check one whose decision is review: accepted labels "
        f"are right with an accuracy of at least {certified['target_accuracy']:g}, with probability "
        f"{1 - certified['delta']:g}, for texts like those the promise was found on."
    )
