"""What a channel, a durable or several digests look like from outside: read-only pictures."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.columns.digest import digest
from penstock.core.durable import Durable
from penstock.core.errors import InvalidArgument
from penstock.core.ids import Span
from penstock.core.messages import Digest, Spans
from penstock.core.state import ChannelState
from penstock.runtime.channel_store import ChannelStore
from penstock.runtime.work import Body
from penstock.wire.native.answers import ChannelInfo, DurableInfo, StorageInfo


def channel_info(state: ChannelState, store: ChannelStore) -> ChannelInfo:
    return ChannelInfo(
        name=state.name,
        definition=state.definition,
        first_event_id=state.stored.lowest,
        last_event_id=-1 if state.next_id == state.definition.start_event_id else state.next_id - 1,
        events=len(state.stored),
        durables=len(state.durables),
        subscribers=len(state.subscribers),
        counters=state.counters,
        storage=StorageInfo(
            tail_bytes=store.meter.tail_bytes,
            sealed_bytes=store.sealed_bytes,
            sealed_files=len(store.files),
            memory_bytes=store.meter.memory_bytes,
            quarantined=tuple(store.quarantined),
        ),
    )


def durable_info(state: ChannelState, durable: Durable, now_us: int) -> DurableInfo:
    spans = durable.outstanding_spans(state.stored)
    oldest = state.ages.oldest_us(spans[0].first) if spans else None
    return DurableInfo(
        name=durable.name,
        channel=state.name,
        type=durable.kind.name,
        persistent=durable.persistent,
        selector=durable.selector,
        clients=tuple(seat.session for seat in durable.seats),
        position=durable.head,
        outstanding=durable.outstanding_count(state.stored),
        pending=durable.in_flight_count,
        redelivered=durable.redelivered_count,
        oldest_outstanding_ms=None if oldest is None else max(0, (now_us - oldest) // 1_000),
        last_read_ms=(now_us - durable.read_us) // 1_000 if durable.read_us else None,
    )


def digest_of(bodies: Sequence[Body], event_bytes_max: int) -> Digest:
    """One digest of several batches, laid end to end. Raises ``EventTooLarge``."""
    if not bodies:
        raise InvalidArgument("a publish has at least one event")
    digests = [digest(body.batch, event_bytes_max) for body in bodies]
    return digests[0] if len(digests) == 1 else joined(digests)


def joined(digests: Sequence[Digest]) -> Digest:
    """The digest of several batches laid end to end."""
    volatile: list[Span] = []
    transient: list[Span] = []
    ttls: dict[int, list[Span]] = {}
    first = 0
    for part in digests:
        volatile += _shifted(part.volatile, first)
        transient += _shifted(part.transient, first)
        for ttl_ms, spans in part.ttls:
            ttls.setdefault(ttl_ms, []).extend(_shifted(spans, first))
        first += part.count
    return Digest(
        first,
        sum(part.size for part in digests),
        max(part.largest for part in digests),
        tuple(volatile),
        tuple(transient),
        tuple((ttl_ms, tuple(spans)) for ttl_ms, spans in ttls.items()),
    )


def _shifted(spans: Spans, by: int) -> list[Span]:
    return [Span(*span).shifted(by) for span in spans]
