"""Records the sessions of this process, and keeps their spans in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import penstock_otel
from penstock_otel.conventions import OPT_IN

CURRENT = "messaging"
"""Value of the environment variable for the present conventions."""


class Spans:
    """The finished spans of a test, and the provider that makes them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of this name, in the order of their ends."""
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def names(self) -> set[str]:
        return {span.name for span in self.exporter.get_finished_spans()}


TRACE = "0af7651916cd43dd8448eb211c80319c"


def parent(number: int, flags: str = "01") -> str:
    """The ``traceparent`` of the span with this id."""
    return f"00-{TRACE}-{number:016x}-{flags}"


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that a span links to."""
    return [link.context.span_id for link in span.links]


def parent_of(span: ReadableSpan) -> int | None:
    """The id of the parent of a span; None if it has none."""
    return None if span.parent is None else span.parent.span_id


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Records sessions by the present conventions."""
    monkeypatch.setenv(OPT_IN, CURRENT)
    spans = Spans()
    penstock_otel.instrument(spans.provider)
    yield spans
    penstock_otel.uninstrument()
