"""Numbers of a realm as they are now, read from its state without disturbing it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import asdict

from penstock.core.channel.channel import Channel
from penstock.core.durable.queue import READERS
from penstock.frontends.http.realm_shapes import ChannelRate, DurableRate, Rates
from penstock.frontends.http.shapes import CounterAnswer
from penstock.runtime.realm import RunningRealm
from penstock.runtime.subscriptions.views import durable_info

CHANNELS_MAX: Final = 1_000
"""Channels and queues told of each second."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(us: int) -> datetime:
    """Microseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=us)


def stores_of(realm: RunningRealm) -> Iterator[tuple[int, Channel]]:
    """Channels and queues, by name; not what the realm keeps for itself."""
    channels = realm.directory.channels
    named = sorted((channel.state.name, number) for number, channel in channels.items())
    for _, number in named:
        if channels[number].state.definition.kind != "schedule":
            yield number, channels[number]


def bytes_of(realm: RunningRealm, number: int) -> int:
    """What the events of a channel take, wherever they are."""
    store = realm.shard.state.stores[number]
    paged = realm.placing.pages.info(number).size
    return paged or store.meter.tail_bytes + store.sealed_bytes


def oldest_ms(channel: Channel, now_us: int) -> int | None:
    """How long ago the oldest stored event was published; None: there is none."""
    lowest = channel.state.stored.lowest
    published_us = None if lowest is None else channel.state.ages.oldest_us(lowest)
    return None if published_us is None else max(0, now_us - published_us) // 1_000


def rates_of(realm: RunningRealm, name: str | None) -> Rates:
    """The counters of everything, or of one channel or queue."""
    now_us = realm.clock.now_us()
    found: list[ChannelRate] = []
    durables: list[DurableRate] = []
    left_out = 0
    for number, channel in stores_of(realm):
        if name is not None and channel.state.name != name:
            continue
        if len(found) >= CHANNELS_MAX:
            left_out += 1
            continue
        found.append(_channel(realm, number, channel))
        durables += _durables(channel, now_us)
    meter = realm.shard.state.meter
    return Rates(
        at=moment(now_us),
        channels=found,
        durables=durables,
        connections=realm.connections,
        journal_bytes=realm.journal_info.size,
        memory_bytes=meter.memory_bytes,
        left_out=left_out,
    )


def _channel(realm: RunningRealm, number: int, channel: Channel) -> ChannelRate:
    state = channel.state
    delivered, acknowledged = state.flow
    return ChannelRate(
        name=state.name,
        kind=state.definition.kind,
        events=len(state.stored) - state.overdue,
        bytes=bytes_of(realm, number),
        last_event_id=state.next_id - 1,
        counters=CounterAnswer(**asdict(state.counters)),
        delivered=delivered,
        acknowledged=acknowledged,
    )


def _durables(channel: Channel, now_us: int) -> list[DurableRate]:
    found = []
    for name, durable in channel.state.durables.items():
        info = durable_info(channel.state, durable, now_us)
        if name == READERS and channel.state.definition.kind != "queue":
            continue
        found.append(
            DurableRate(
                channel=info.channel,
                name=info.name,
                position=info.position,
                outstanding=info.outstanding,
                pending=info.pending,
                redelivered=info.redelivered,
                clients=len(info.clients),
                oldest_outstanding_ms=info.oldest_outstanding_ms,
                delivered=durable.delivered,
                acknowledged=durable.acknowledged,
            )
        )
    return found
