"""Spans of the requests that a realm serves: publishes and settlements of every protocol, and
fetches over HTTP."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Final

from opentelemetry.trace import Span, SpanContext, SpanKind, TracerProvider

from penstock_core.api.consuming import FetchEvents, FetchFromPattern, SettleLease
from penstock_core.api.consuming import SettlePatternLease as SettlePattern
from penstock_core.api.requests import Request
from penstock_core.columns.events.trace_context import TRACE_NAMES
from penstock_core.messages.settlements import Ack, AckPrevious, BuryEvents, RollBack
from penstock_otel.contexts import contexts_in, links_to, span_context_of, text_of
from penstock_otel.conventions import MessagingOperation, events_of
from penstock_otel.tracer import SpanMaker, end_span
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.writer.requests import RunCommand, ShardRequest

VERBS: Final = {Ack: "ack", AckPrevious: "ack", RollBack: "rollback", BuryEvents: "reject"}
"""Names of settlements, by the type of the command."""


class RealmSpans:
    """Makes a span of kind server for each request, from its arrival at the writer until it is
    answered."""

    def __init__(self, realm: RunningRealm, provider: TracerProvider) -> None:
        self._realm = realm
        self._begin = partial(
            SpanMaker("penstock_otel.realm", provider).begin, kind=SpanKind.SERVER
        )

    def begin(self) -> None:
        """Record the requests of the realm from now on."""
        self._realm.shard.observe = self.observe
        self._realm.trace_request = self.trace_request

    def end(self) -> None:
        """Record no further requests."""
        self._realm.shard.observe = None
        self._realm.trace_request = None

    def observe(self, work: ShardRequest) -> None:
        """Begin a span for a publish or a settlement; its reply ends the span. Other requests, and
        those of the realm itself, are left out."""
        reply = work.reply
        internal = self._realm.directory.internal.machines
        if reply is None or any(channel_id in internal for channel_id, _ in work.offered):
            return
        with self._realm.incidents.barrier("telemetry"):
            if offered := work.offered:
                span = self._publish(offered)
            elif isinstance(work, RunCommand) and type(work.command) in VERBS:
                span = self._settlement(work)
            else:
                return

            def answered(answer: Any, error: BaseException | None) -> None:
                end_span(span, error)
                reply(answer, error)

            work.reply = answered

    async def trace_request(self, request: Request[Any], answer: Awaitable[Any]) -> Any:
        """Make a span for a fetch or a settlement over HTTP, and return the answer."""
        if isinstance(request, FetchEvents | FetchFromPattern):
            name, operation_type = "fetch", "receive"
        elif isinstance(request, SettleLease | SettlePattern):
            name, operation_type = str(request.how), "settle"
        else:
            return await answer
        durable = getattr(request, "durable", "")
        store = getattr(request, "pattern", "") or self._name(getattr(request, "channel", 0))
        begin_ns = time.time_ns()
        error: BaseException | None = None
        answered: Any = None
        try:
            answered = await answer
        except BaseException as failure:
            error = failure
            raise
        finally:
            batches = getattr(answered, "batches", ())
            links = links_to(contexts_in(batches))
            operation = MessagingOperation(name, operation_type, store, durable=durable)
            span = self._begin(operation, links=links, begin_ns=begin_ns)
            if (count := getattr(answered, "count", None)) is not None:
                span.set_attributes(events_of(count, None))
            end_span(span, error)
        return answered

    def _publish(self, offered: Sequence[tuple[int, Sequence[Body]]]) -> Span:
        """Begin the span of a publish. It is a child of the context of the events if they have one,
        and linked to their contexts otherwise."""
        spans: dict[int, SpanContext] = {}
        count = 0
        for _, bodies in offered:
            for body in bodies:
                count += body.rows
                spans |= {span.span_id: span for span in _contexts_of(body)}
        # A transaction over several stores has no single destination.
        name = self._name(offered[0][0]) if len(offered) == 1 else ""
        parent = next(iter(spans.values())) if len(spans) == 1 else None
        links = [] if parent is not None else links_to(spans.values())
        operation = MessagingOperation("publish", "send", name)
        span = self._begin(operation, links=links, parent=parent)
        span.set_attributes(events_of(count, None))
        return span

    def _settlement(self, work: RunCommand) -> Span:
        operation = MessagingOperation(
            VERBS[type(work.command)], "settle", self._name(work.channel_id)
        )
        span = self._begin(operation)
        if not isinstance(work.command, AckPrevious):
            count = sum(end - first for first, end in work.command.spans)  # type: ignore[attr-defined]  # all others have spans
            span.set_attributes(events_of(count, None))
        return span

    def _name(self, channel_id: int) -> str:
        """Return the name of a channel or queue; empty for an unknown or internal one."""
        channel = self._realm.directory.channels.get(channel_id)
        return "" if channel is None else channel.state.name


def _contexts_of(body: Body) -> Sequence[SpanContext]:
    """Return the contexts of the events of a body. A single event is read without parsing it."""
    if body.rows == 1:
        parent, state = (body.value_of(name) for name in TRACE_NAMES)
        if parent is not NotImplemented and state is not NotImplemented:
            span = span_context_of((text_of(parent), text_of(state)))
            return (span,) if span.is_valid else ()
    return contexts_in(body.batch)
