"""Spans of rows and of model calls, by OpenTelemetry's conventions for generative AI.

A process traces once its program has set a tracer provider (opentelemetry's `set_tracer_provider`); the command line
sets one where the environment names a collector. Until opentelemetry is imported, so is nothing of this module.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context, trace

from calibrant.core._errors import ProviderError
from calibrant.core._files import json_text
from calibrant.core._prediction import Outcome, Prediction, Usage

if TYPE_CHECKING:
    from calibrant.core._completion import CompletionRequest

_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURES: Final = frozenset({"true", "1", "span_only", "span_and_event"})
# Providers whose name in the conventions is not that of their models' prefix.
_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
_EVALUATION: Final = "gen_ai.evaluation.result"
# What fails in a program's own processors or exporters costs a span, and neither a row nor a paid answer.
_HARMLESS: Final = contextlib.suppress(Exception)


@dataclass(eq=False)
class CallSpan:
    """Span of one model call.

    Attributes
    ----------
    span : Span
        The span, under way.
    captures_texts : bool
        True to record messages, as the environment asks.
    """

    span: trace.Span
    _: KW_ONLY
    captures_texts: bool

    def ask(self, request: CompletionRequest | None) -> None:
        """Record the messages of a request, where texts are wanted."""
        if request is not None and self.captures_texts:
            with _HARMLESS:
                messages = [_message(one["role"], one["content"]) for one in request.messages]
                self.span.set_attribute("gen_ai.input.messages", json_text(messages))

    def answer(self, found: object) -> None:
        """Record the model that answered, the tokens used and, where texts are wanted, the answer."""
        with _HARMLESS:
            for part in found if isinstance(found, tuple) else (found,):
                usage = part
                if not isinstance(part, Usage):
                    usage = getattr(part, "usage", None)
                if isinstance(usage, Usage):
                    self._record(usage, getattr(part, "model", None), getattr(part, "text", None))

    def _record(self, usage: Usage, model: object, text: object) -> None:
        attributes: dict[str, str | int] = {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
        }
        if isinstance(model, str):
            attributes["gen_ai.response.model"] = model
        if self.captures_texts and isinstance(text, str) and text:
            message = {**_message("assistant", text), "finish_reason": "stop"}
            attributes["gen_ai.output.messages"] = json_text([message])
        self.span.set_attributes(attributes)


@dataclass(eq=False)
class RowSpan:
    """Span of one row, the parent of its calls."""

    span: trace.Span

    def end(self, prediction: Prediction) -> None:
        """Record the outcome of a row, and its label and confidence as an evaluation."""
        with _HARMLESS:
            self._record(prediction)

    def _record(self, prediction: Prediction) -> None:
        span = self.span
        span.set_attributes(
            {
                "calibrant.outcome": prediction.outcome.value,
                "calibrant.calls": prediction.attempts,
            }
        )
        if prediction.outcome is Outcome.ERROR:
            _fail(span, prediction.outcome.value)
        if prediction.label is None:
            return
        evaluation: dict[str, str | float] = {
            "gen_ai.evaluation.name": "confidence",
            "gen_ai.evaluation.score.label": prediction.label,
        }
        if prediction.confidence is not None:
            evaluation["gen_ai.evaluation.score.value"] = prediction.confidence
        if prediction.accepted is not None:
            evaluation["calibrant.decision"] = "accepted" if prediction.accepted else "review"
        span.add_event(_EVALUATION, evaluation)


class Tracing:
    """Tracer of rows and calls.

    Parameters
    ----------
    provider : TracerProvider
        Provider that the program has set.
    """

    def __init__(self, provider: trace.TracerProvider) -> None:
        self.provider = provider
        self._tracer = provider.get_tracer("calibrant", version("calibrant"))
        self._captures_texts = os.environ.get(_CAPTURE, "").strip().lower() in _CAPTURES

    @contextlib.contextmanager
    def row(self, model: str) -> Iterator[RowSpan | None]:
        """Trace the block as a row that `model` answers; None is yielded for a span that is not recorded."""
        span = self._started(f"classify {model}")
        with _entered(span):
            yield RowSpan(span) if span.is_recording() else None

    @contextlib.contextmanager
    def call(self, provider: str, operation: str, request: CompletionRequest | None) -> Iterator[CallSpan]:
        """Trace the block as one call.

        Parameters
        ----------
        provider : str
            The model, as the user named it.
        operation : str
            Kind of the call, such as ``chat`` or ``embeddings``.
        request : CompletionRequest or None
            Request with the messages.
        """
        head, _, model = provider.partition("/")
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": _PROVIDERS.get(head, head) if model else "_OTHER",
            "gen_ai.request.model": model or provider,
        }
        name = f"{operation} {model or provider}"
        span = self._started(name, kind=trace.SpanKind.CLIENT, attributes=attributes)
        call = CallSpan(span, captures_texts=self._captures_texts and span.is_recording())
        call.ask(request)
        with _entered(span):
            yield call

    def _started(self, name: str, **options: Any) -> trace.Span:  # noqa: ANN401 (those of opentelemetry)
        with _HARMLESS:
            return self._tracer.start_span(name, **options)
        return trace.INVALID_SPAN


class _entered:  # noqa: N801 (a context manager; a generator would take twice as long)
    """Context of a span, which ends with it; a failure is recorded by its kind, as its message may quote a text."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def __enter__(self) -> None:
        self._token = context.attach(trace.set_span_in_context(self._span))

    def __exit__(self, kind: object, error: BaseException | None, _traceback: object) -> None:
        context.detach(self._token)
        with _HARMLESS:
            if error is not None:
                status = error.status if isinstance(error, ProviderError) else None
                _fail(self._span, type(error).__name__ if status is None else str(status))
            self._span.end()


_known: Tracing | None = None


def current() -> Tracing | None:
    """Return the tracer of this process; None while no provider is set."""
    global _known  # noqa: PLW0603 (a process has one provider)
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    if _known is None or _known.provider is not provider:
        _known = Tracing(provider)
    return _known


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _fail(span: trace.Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(trace.StatusCode.ERROR)
