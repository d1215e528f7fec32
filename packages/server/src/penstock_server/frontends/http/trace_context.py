"""The headers of a request, and the W3C trace context in them, which becomes properties of the
published events (SEM E13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock_core.columns.events.trace_context import (
    TRACE_NAMES,
    TRACE_PARENT,
    TRACE_STATE,
    TraceContext,
    valid_context,
)

TRACE_BYTES_MAX: Final = 8 << 20
"""Maximum size in bytes that the context adds to the events of one request. A small request may
have very many events, and its context must not multiply its size."""


def headers_of(raw_headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a request by name, in lower case. If a header is repeated, the first
    value counts; those of the trace context are joined by commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in raw_headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name in headers and name in TRACE_NAMES:
            headers[name] += f",{value}"
        headers.setdefault(name, value)
    return headers


def trace_context_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trace context in the headers of a request, by property; empty if the request has
    no valid one."""
    parent = headers.get(TRACE_PARENT)
    return {} if parent is None else valid_context(parent, headers.get(TRACE_STATE, ""))


def bounded(context: TraceContext, count: int) -> dict[str, str]:
    """Return the part of the context that may be added to ``count`` events: without the
    ``tracestate``, or empty, if they are too many."""
    parts: dict[str, str] = {}
    size = 0
    for name, value in context.items():  # the traceparent comes first
        size += count * len(value)
        if size > TRACE_BYTES_MAX:
            break
        parts[name] = value
    return parts
