"""OpenTelemetry for programs that use Penstock: spans of publishes, deliveries and settlements, and
trace contexts that travel with the events (SEM E13)::

    import penstock_otel

    penstock_otel.instrument()  # once, at the start of the program
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]  # no types
    BaseInstrumentor,
)
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, TracerProvider

from penstock.client.connection import tracing
from penstock_core.version import __version__
from penstock_otel.client_metrics import ClientMetrics
from penstock_otel.contexts import context_of
from penstock_otel.conventions import MessagingOperation
from penstock_otel.tracer import RealmTracer

__all__ = ["PenstockInstrumentor", "context_of", "instrument", "processing", "uninstrument"]


class PenstockInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # its module has no types
    """Records the sessions of this process, those that are open too. ``opentelemetry-instrument``
    finds this class by its entry point."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that are instrumented, with their versions."""
        return (f"penstock-client == {__version__}",)

    def _instrument(self, **kwargs: Any) -> None:
        provider: TracerProvider | None = kwargs.get("tracer_provider")
        metrics = ClientMetrics(kwargs.get("meter_provider"))
        tracing.install(RealmTracer(provider, metrics))

    def _uninstrument(self, **kwargs: Any) -> None:
        tracing.install(None)


def instrument(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Record all sessions of this process as spans and metrics.

    ``tracer_provider`` makes the spans, and ``meter_provider`` the metrics; without them the global
    providers do. The environment variable ``OTEL_SEMCONV_STABILITY_OPT_IN`` chooses the version of
    the conventions for spans.
    """
    PenstockInstrumentor().instrument(
        tracer_provider=tracer_provider, meter_provider=meter_provider
    )


def uninstrument() -> None:
    """End the recording."""
    PenstockInstrumentor().uninstrument()


def processing(events: object, *, store: str = "") -> AbstractContextManager[Span]:
    """Record the processing of events in a block as a span::

        for event in subscription:
            with penstock_otel.processing(event):
                bill(event)  # what it publishes is a part of the event's trace

    ``events`` is an event, a batch, an Arrow table with a column ``traceparent``, or a list of
    these. The span links to the contexts of the events. If they have one context, and no other span
    is current, the span is a child of it. ``store`` is the name of the channel or queue; events
    of a channel know it. The provider is that of :func:`instrument`, or else the global one.
    """
    channel = store or str(getattr(events, "channel", ""))
    operation = MessagingOperation("process", "process", channel)
    tracer = tracing.tracer
    if not isinstance(tracer, RealmTracer):
        tracer = RealmTracer(None)
    return tracer.processing(operation, events)
