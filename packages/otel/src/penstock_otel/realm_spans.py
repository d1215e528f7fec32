"""Spans of the realm: publishes, deliveries and settlements of every protocol, and requests of
events over HTTP."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
from opentelemetry.trace import Span, SpanContext, SpanKind, TracerProvider

from penstock_core.api.consuming import (
    Fetched,
    FetchEvents,
    FetchFromPattern,
    How,
    LeasedEvents,
    SettleLease,
)
from penstock_core.api.consuming import SettlePatternLease as SettlePattern
from penstock_core.api.reading import PopEvents
from penstock_core.api.requests import Request
from penstock_core.channel.channel import ChannelMachine
from penstock_core.columns.events.trace_context import TRACE_NAMES
from penstock_core.messages.kinds import Command
from penstock_core.messages.settlements import Ack, AckPrevious, BuryEvents, RollBack
from penstock_otel.contexts import (
    LINKS_MAX,
    ContextRun,
    contexts_in,
    distinct,
    links_to,
    may_have_context,
    runs_in,
    span_context_of,
    text_of,
)
from penstock_otel.conventions import MessagingOperation, events_of
from penstock_otel.held_contexts import HeldContexts, settled_by
from penstock_otel.tracer import SpanMaker, end_span
from penstock_server.runtime.delivery.delivery import Outlet
from penstock_server.runtime.delivery.shared_outlet import SharedOutlet
from penstock_server.runtime.reading.collecting import Collected
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.subscriptions.lease import LeasePart
from penstock_server.runtime.writer.requests import ShardRequest

VERBS: Final = {Ack: "ack", AckPrevious: "ack", RollBack: "rollback", BuryEvents: "reject"}
"""Names of settlements, by the type of the command."""
LEASE_VERBS: Final[Mapping[How, str]] = {"ack": "ack", "roll_back": "rollback", "reject": "reject"}
"""Names of settlements of leases, the same ones."""
TASK: Final = "spans"
"""Name of the task in incidents."""
RECEIVERS_MAX: Final = 1_000
"""Maximum number of clients with a span for a batch that the realm passes on to several clients,
about 35 ms of work; further clients have none."""
_ALL_IDS: Final = 1 << 62
"""An id above all event ids."""
OF_REQUESTS: Final = (Collected, LeasePart)
"""Outlets whose events are the answer of a request, which has a separate span."""


class RealmSpans:
    """Makes spans of kind server: for each request, from its arrival at the writer until it is
    answered, and for each delivery of events with a sampled context."""

    def __init__(self, realm: RunningRealm, provider: TracerProvider) -> None:
        self._realm = realm
        self._begin = partial(
            SpanMaker("penstock_otel.realm", provider).begin, kind=SpanKind.SERVER
        )
        self._held = HeldContexts()
        self._has_failed = False
        """Whether a span could not be made since the incident was last examined."""

    def begin(self) -> None:
        """Record the requests and deliveries of the realm from now on."""
        self._realm.shard.observe = self.observe
        self._realm.dispatch.observe = self.observe_delivery
        self._realm.trace_request = self.trace_request

    def end(self) -> None:
        """Record nothing from now on."""
        self._realm.shard.observe = self._realm.dispatch.observe = None
        self._realm.trace_request = None

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Report a failure of the body as an incident: a span that cannot be made disturbs neither
        clients nor the other spans."""
        try:
            yield
        except Exception as failure:  # noqa: BLE001  reported as an incident
            # Once between two calls of `close_incident`, so that the log is not flooded.
            if not self._has_failed:
                self._has_failed = True
                self._realm.incidents.report(TASK, failure)

    def close_incident(self) -> None:
        """Close the incident if no span has failed since the last call. Called regularly."""
        if not self._has_failed:
            self._realm.incidents.close(TASK)
        self._has_failed = False

    def observe(self, work: ShardRequest) -> None:
        """Begin the spans of a publish or a settlement; its reply ends them. Other requests, and
        those of the realm itself, are left out."""
        reply = work.reply
        if reply is None:
            return
        spans: list[Span] = []
        with self._recording():
            spans += self._spans_of(work)
        if not spans:
            return

        def answered(answer: Any, error: BaseException | None) -> None:
            with self._recording():
                for span in spans:
                    end_span(span, error)
            reply(answer, error)

        work.reply = answered

    def observe_delivery(
        self, channel: ChannelMachine, subscription: int, rows: OutgoingBatch, *, outlet: Outlet
    ) -> None:
        """Make a span for a delivery, if a context of its events is sampled. Browses, and reads for
        the answer of a request, are left out."""
        published = rows.tail_batch
        if not may_have_context(rows.batch.schema if published is None else published.schema):
            return
        subscriber = channel.state.subscribers.get(subscription)
        is_browse = subscriber is not None and subscriber.stop_id is not None
        name = channel.state.name
        if is_browse or isinstance(outlet, OF_REQUESTS) or self._is_internal(name):
            return
        with self._recording():
            if isinstance(outlet, SharedOutlet):
                self._deliveries_of(name, rows.batch, outlet.rows_by_session)
                return
            runs, sampled = _runs_of(rows.batch)
            seat = channel.state.seats.get(subscription)
            if seat is not None:
                self._held.add(subscription, runs)
            if not sampled:
                return
            operation = MessagingOperation(
                "deliver",
                "receive",
                name,
                durable="" if seat is None else seat[0].name,
                session_id=outlet.session,
            )
            span = self._begin_linked(operation, [run.context for run in sampled])
            span.set_attributes(events_of(rows.count, rows.spans[0][0]))
            span.end()

    def _deliveries_of(
        self, name: str, batch: pa.RecordBatch, rows_by_session: Mapping[str, Sequence[int]]
    ) -> None:
        """Make a span for each client that got rows of a batch of the channel ``name``."""
        span_count = 0
        # Most clients get the same rows, whose contexts are read once.
        parts: dict[tuple[int, ...], tuple[Sequence[SpanContext], dict[str, str | int]]] = {}
        for session, rows in rows_by_session.items():
            key = tuple(rows)
            if key not in parts:
                part = batch if len(key) == batch.num_rows else batch.take(pa.array(key))
                _, sampled = _runs_of(part)
                events = events_of(len(key), part.column("event_id")[0].as_py())
                parts[key] = [run.context for run in sampled], events
            contexts, events = parts[key]
            if not contexts:
                continue
            operation = MessagingOperation("deliver", "receive", name, session_id=session)
            span = self._begin_linked(operation, contexts)
            span.set_attributes(events)
            span.end()
            span_count += 1
            if span_count == RECEIVERS_MAX:
                break

    async def trace_request(self, request: Request[Any], answer: Awaitable[Any]) -> Any:
        """Make a span for a fetch, a pop or a settlement over HTTP, and return the answer."""
        if isinstance(request, FetchEvents | FetchFromPattern):
            name, operation_type = "fetch", "receive"
        elif isinstance(request, PopEvents):
            name, operation_type = "pop", "receive"
        elif isinstance(request, SettleLease | SettlePattern):
            name, operation_type = LEASE_VERBS[request.how], "settle"
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
            with self._recording():
                operation = MessagingOperation(name, operation_type, store, durable=durable)
                contexts = self._contexts_of_answer(request, answered)
                span = self._begin_linked(operation, contexts, begin_ns=begin_ns)
                count = getattr(answered, "count", None)
                count = len(answered) if isinstance(answered, list) else count
                if count is not None:
                    span.set_attributes(events_of(count, None))
                end_span(span, error)
        return answered

    def _contexts_of_answer(self, request: Request[Any], answered: Any) -> Sequence[SpanContext]:
        """Return the contexts of the events that a request has got or settled. Those of a lease are
        remembered until it is settled."""
        if isinstance(request, SettleLease):
            return self._held.settle(request.lease, _chosen_spans(request.chosen))
        if isinstance(request, SettlePattern):
            return self._settled_of_pattern(request)
        if isinstance(request, FetchFromPattern) and answered is not None:
            return self._fetched_of_pattern(answered)
        runs = runs_in(answered if isinstance(answered, list) else getattr(answered, "batches", ()))
        if isinstance(request, FetchEvents) and runs:
            self._held.add(answered.lease, runs)
        return [run.context for run in runs]

    def _fetched_of_pattern(self, fetched: Fetched) -> Sequence[SpanContext]:
        """Return the contexts of events from several channels, and remember them for their
        lease."""
        contexts: list[SpanContext] = []
        for batch, channel in zip(fetched.batches, fetched.channels, strict=True):
            runs = runs_in(batch)
            self._held.add(fetched.lease, runs, channel.name)
            contexts += [run.context for run in runs]
        return distinct(contexts)

    def _settled_of_pattern(self, request: SettlePattern) -> Sequence[SpanContext]:
        """Return the contexts of the settled events of a lease over a pattern."""
        contexts: list[SpanContext] = []
        # The channels of the lease and not those of the request, which may be very many.
        for name in self._held.channels_of(request.lease):
            chosen = LeasedEvents() if request.channels is None else request.channels.get(name)
            if chosen is not None:
                contexts += self._held.settle(request.lease, _chosen_spans(chosen), name)
        return distinct(contexts)

    def _begin_linked(
        self,
        operation: MessagingOperation,
        contexts: Sequence[SpanContext],
        begin_ns: int | None = None,
    ) -> Span:
        """Begin a span with links to the contexts of its events. If they have one context, the span
        is also a child of it, so that both are one trace. If none is sampled, it is a child of the
        first, so that it is not sampled either."""
        is_one = len(contexts) == 1 or not any(context.trace_flags.sampled for context in contexts)
        parent = contexts[0] if contexts and is_one else None
        links = links_to(contexts)
        return self._begin(operation, links=links, parent=parent, begin_ns=begin_ns)

    def _spans_of(self, work: ShardRequest) -> Iterator[Span]:
        """Begin the spans of a request of the writer."""
        offered = work.offered
        if offered and not any(self._is_internal(self._name(id)) for id, _ in offered):
            yield self._publish(offered)
        for channel_id, command in work.settlements:
            if type(command) in VERBS:
                yield self._settlement(channel_id, command)

    def _publish(self, offered: Sequence[tuple[int, Sequence[Body]]]) -> Span:
        """Begin the span of a publish."""
        contexts: dict[tuple[int, int], SpanContext] = {}
        count = 0
        for _, bodies in offered:
            for body in bodies:
                count += body.rows
                if len(contexts) < LINKS_MAX:
                    for context in _contexts_of(body):
                        contexts[context.trace_id, context.span_id] = context
        # A transaction over several stores has no single destination.
        name = self._name(offered[0][0]) if len(offered) == 1 else ""
        operation = MessagingOperation("publish", "send", name)
        span = self._begin_linked(operation, list(contexts.values())[:LINKS_MAX])
        span.set_attributes(events_of(count, None))
        return span

    def _settlement(self, channel_id: int, command: Command) -> Span:
        """Begin the span of a settlement."""
        subscription: int = command.subscription  # type: ignore[attr-defined]  # settlements have one
        channel = self._realm.directory.channels.get(channel_id)
        seat = None if channel is None else channel.state.seats.get(subscription)
        operation = MessagingOperation(
            VERBS[type(command)],
            "settle",
            self._name(channel_id),
            durable="" if seat is None else seat[0].name,
            session_id="" if seat is None else seat[1].session,
        )
        spans = settled_by(command)
        span = self._begin_linked(operation, self._held.settle(subscription, spans))
        if not isinstance(command, AckPrevious):
            count = sum(end - first for first, end in spans)
            span.set_attributes(events_of(count, next(iter(spans))[0]))
        return span

    def _is_internal(self, name: str) -> bool:
        """Whether a store with this name belongs to the realm."""
        return name in self._realm.directory.internal.ids_by_name

    def _name(self, channel_id: int) -> str:
        """Return the name of a channel or queue; empty for an unknown or internal one."""
        channel = self._realm.directory.channels.get(channel_id)
        return "" if channel is None else channel.state.name


def _runs_of(batch: pa.RecordBatch) -> tuple[Sequence[ContextRun], Sequence[ContextRun]]:
    """Return the contexts of delivered events, and the sampled ones among them."""
    runs = runs_in(batch)
    sampled = [run for run in runs if run.context.trace_flags.sampled]
    # Beyond the limit a sampled context may be among those that were left out.
    if not sampled and len(runs) == LINKS_MAX:
        sampled = runs_in(batch, only_sampled=True)
    return runs, sampled


def _chosen_spans(chosen: LeasedEvents) -> Iterable[tuple[int, int]]:
    """Return the spans of chosen events of a lease."""
    if chosen.spans is not None:
        return chosen.spans
    return ((0, _ALL_IDS if chosen.up_to is None else chosen.up_to + 1),)


def _contexts_of(body: Body) -> Sequence[SpanContext]:
    """Return the contexts of the events of a body. A single event is read without parsing it."""
    if body.rows == 1:
        parent, state = (body.value_of(name) for name in TRACE_NAMES)
        if parent is not NotImplemented and state is not NotImplemented:
            span = span_context_of((text_of(parent), text_of(state)))
            return (span,) if span.is_valid else ()
    return contexts_in(body.batch)
