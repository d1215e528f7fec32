"""Read-only descriptions of a channel and of a durable, for answers."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from penstock_core.api.channels import ChannelInfo, StorageInfo
from penstock_core.api.durables import DurableInfo
from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.durable.queue import READERS
from penstock_core.vocabulary.deprecation import DEPRECATED_DURABLES
from penstock_server.runtime.store.channel_store import ChannelStore


def channel_info(
    state: ChannelState, store: ChannelStore, *, scheduled: int = 0, paged_bytes: int = 0
) -> ChannelInfo:
    readers = state.durables.get(READERS)
    in_flight = readers.in_flight_count if readers else 0
    waiting = readers.waiting if readers else None
    return ChannelInfo(
        name=state.name,
        definition=state.definition,
        first_event_id=state.stored.lowest,
        last_event_id=-1 if state.next_id == state.definition.start_event_id else state.next_id - 1,
        events=len(state.stored) - state.overdue,
        durables=len(state.durables) - (readers is not None),
        subscribers=sum(subscriber.stop_id is None for subscriber in state.subscribers.values()),
        counters=replace(state.counters),  # a copy, because the state's counters keep changing
        storage=StorageInfo(
            tail_bytes=store.meter.tail_bytes,
            sealed_bytes=store.sealed_bytes,
            sealed_files=len(store.files),
            memory_bytes=store.meter.memory_bytes + store.meter.off_heap_bytes,
            quarantined=tuple(store.quarantined),
            home=state.type.home,
            paged_bytes=paged_bytes,
        ),
        readers=tuple(seat.session for seat in readers.seats) if readers else (),
        pending=in_flight,
        redelivered=readers.redelivered_count if readers else 0,
        scheduled=scheduled,
        overdue=state.overdue,
        in_flight=in_flight,
        waiting=len(waiting) if waiting else 0,
        waiting_until_us=(waiting.next_us or None) if waiting else None,
    )


def durable_info(state: ChannelState, durable: Durable, now_us: int) -> DurableInfo:
    first = durable.first_outstanding(state.stored)
    oldest = None if first is None else state.ages.oldest_us(first)
    return DurableInfo(
        name=durable.name,
        channel=state.name,
        type=durable.kind.name,
        persistent=durable.persistent,
        selector=durable.selector,
        clients=tuple(seat.session for seat in durable.seats),
        position=durable.position(state.next_id),
        outstanding=durable.outstanding_count(state.stored),
        pending=durable.in_flight_count,
        redelivered=durable.redelivered_count,
        oldest_outstanding_ms=None if oldest is None else max(0, (now_us - oldest) // 1_000),
        last_read_ms=(now_us - durable.read_us) // 1_000 if durable.read_us else None,
        in_flight=durable.in_flight_count,
        waiting=len(durable.waiting) if durable.waiting else 0,
        waiting_until_us=(durable.waiting.next_us or None) if durable.waiting else None,
        deprecated=durable.kind.name in DEPRECATED_DURABLES,
        **asdict(durable.attributes),
    )
