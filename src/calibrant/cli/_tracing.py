"""Export of spans to the collector that the environment names."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from calibrant.clients._endpoint import public_address
from calibrant.core._installation import install_command

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
except ImportError as error:
    raise ImportError(
        f"Spans are not sent to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names: {install_command('otel')}."
    ) from error

_LOG = logging.getLogger("calibrant")
# What a command waits at its end for a collector that does not answer.
_SECONDS_TO_SEND: Final = 5.0
# Two spans a row: the SDK's own 2,048 are what a loopback model fills in a second.
_QUEUE: Final = 16_384
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class _TellingExporter(SpanExporter):
    """Exporter by OTLP over HTTP that says once that a collector takes no spans."""

    def __init__(self) -> None:
        self._exporter = OTLPSpanExporter()
        self._has_told = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:  # noqa: BLE001 (an address that is none, for example)
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS:
            self.tell()
        return result

    def tell(self) -> None:
        """Say that spans are lost, unless that was said."""
        if not self._has_told:
            self._has_told = True
            endpoint = next(os.environ[name] for name in _ENDPOINTS if os.environ.get(name))
            _LOG.warning(
                "Spans are lost, the run is not: the collector at %s does not take them by OTLP over HTTP.",
                public_address(endpoint),
            )

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def exported() -> Iterator[None]:
    """Send the spans of the block in the background; at its end, wait 5 seconds at most for those left.

    A provider that the program was started with, as `opentelemetry-instrument` does, is left alone.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield
        return
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # one sentence of ours stands for them
    try:
        exporter = _TellingExporter()
        provider = _provider(exporter)
    except Exception as error:  # noqa: BLE001 (a variable that holds no number, for example)
        _LOG.warning("Spans are not sent, as the variables OTEL_... cannot be used: %s", error)
        yield
        return
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        # In a thread of its own: the SDK's own bounds reach from 10 seconds to some minutes.
        last = threading.Thread(target=provider.shutdown, daemon=True)
        last.start()
        last.join(_SECONDS_TO_SEND)
        if last.is_alive():
            exporter.tell()


def _provider(exporter: SpanExporter) -> TracerProvider:
    """Return a provider that sends spans in the background."""
    resource = Resource({SERVICE_NAME: "calibrant"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    size = None if os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") else _QUEUE
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=size))
    return provider
