"""Numbers of a realm as they are now, read from its state without disturbing it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import asdict

from penstock.frontends.http.realm_shapes import ChannelRate, DurableRate, Rates
from penstock.frontends.http.shapes import CounterAnswer
from penstock.runtime.realm import RunningRealm
from penstock.runtime.subscriptions.realm_view import StoreView

CHANNELS_MAX: Final = 1_000
"""Channels and queues told of each second."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(us: int) -> datetime:
    """Microseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=us)


def rates_of(realm: RunningRealm, name: str | None) -> Rates:
    """The counters of everything, or of one channel or queue."""
    now_us = realm.clock.now_us()
    found: list[ChannelRate] = []
    durables: list[DurableRate] = []
    left_out = 0
    for store in realm.view.stores():
        if name is not None and store.name != name:
            continue
        if len(found) >= CHANNELS_MAX:
            left_out += 1
            continue
        found.append(_channel(store))
        durables += _durables(store, now_us)
    return Rates(
        at=moment(now_us),
        channels=found,
        durables=durables,
        connections=realm.connections,
        journal_bytes=realm.journal_info.size,
        memory_bytes=realm.view.memory_bytes,
        left_out=left_out,
    )


def _channel(store: StoreView) -> ChannelRate:
    delivered, acknowledged = store.flow
    return ChannelRate(
        name=store.name,
        kind=store.definition.kind,
        events=store.events,
        bytes=store.bytes,
        last_event_id=store.next_id - 1,
        counters=CounterAnswer(**asdict(store.counters)),
        delivered=delivered,
        acknowledged=acknowledged,
    )


def _durables(store: StoreView, now_us: int) -> list[DurableRate]:
    found = []
    for _, durable in store.durables:
        info, (delivered, acknowledged) = durable.info(now_us), durable.flow
        found.append(
            DurableRate(
                channel=info.channel,
                name=info.name,
                position=info.position,
                outstanding=info.outstanding,
                in_flight=info.in_flight,
                pending=info.pending,
                redelivered=info.redelivered,
                clients=len(info.clients),
                oldest_outstanding_ms=info.oldest_outstanding_ms,
                delivered=delivered,
                acknowledged=acknowledged,
            )
        )
    return found
