"""Activity rates of a realm, computed from two samples that a client takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock_core.vocabulary.errors import AccessDenied, NameDoesNotExist
from penstock_server.cli.stores import facts

if TYPE_CHECKING:
    from penstock.client.sync.sync import Channel, Queue, Session
    from penstock_core.api.channels import ChannelInfo
    from penstock_core.api.durables import DurableInfo
    from penstock_core.api.realm import RealmInfo
    from penstock_core.vocabulary.ports import Clock

STORES_MAX: Final = 200
"""Maximum number of channels and queues in a sample; each costs one or two requests."""


class Sample(Struct, frozen=True):
    """The state of a realm at one moment."""

    at_us: int
    realm: RealmInfo
    stores: Mapping[str, ChannelInfo]
    """Channels and queues by name."""
    durables: Mapping[tuple[str, str], DurableInfo]
    """Durables by the name of their channel and their own name."""
    left_out: int
    """Number of channels and queues that are not in the sample."""


class StoreLine(Struct, frozen=True, kw_only=True):
    """The activity of a channel or queue."""

    name: str
    kind: str
    events: int
    bytes: int
    subscribers: int
    durables: int
    published_per_s: float
    left_per_s: float
    """Events per second that were consumed, expired, moved or removed in another way."""


class DurableLine(Struct, frozen=True, kw_only=True):
    """The activity of a durable on one channel."""

    channel: str
    name: str
    type: str
    clients: int
    outstanding: int
    in_flight: int
    """Events delivered but not acknowledged."""
    oldest_ms: int | None
    """Age of the oldest outstanding event; None if no event is outstanding."""
    offered_per_s: float
    """Events per second by which the position of the durable advanced."""


class RealmRates(Struct, frozen=True, kw_only=True):
    """The rates and sizes that ``penstock top`` shows."""

    realm: str
    version: str
    publishing_paused: bool
    connections: int
    memory_bytes: int
    memory_bytes_max: int
    journal_bytes: int
    stored_bytes: int
    published_per_s: float
    left_per_s: float
    stores: tuple[StoreLine, ...]
    durables: tuple[DurableLine, ...]
    left_out: int


class Sampler:
    """Takes samples; it opens each channel and queue only once."""

    def __init__(self, session: Session, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._opened: dict[str, Channel | Queue] = {}

    def take_sample(self) -> Sample:
        """Return a sample without stores that the user may not read or that were deleted in the
        meantime. Raises ``CannotConnect``."""
        session = self._session
        channels, queues = session.channels.list(), session.queues.list()
        stores_listed = [*((name, True) for name in channels), *((name, False) for name in queues)]
        stores: dict[str, ChannelInfo] = {}
        durables: dict[tuple[str, str], DurableInfo] = {}
        for name, is_channel in stores_listed[:STORES_MAX]:
            with suppress(AccessDenied, NameDoesNotExist):
                store = self._open(name, is_channel=is_channel)
                stores[name] = store.info()
                for durable in self._durables(store, stores[name]):
                    durables[name, durable.name] = durable
        self._forget(set(channels) | set(queues))
        left_out = max(0, len(stores_listed) - STORES_MAX)
        return Sample(
            self._clock.now_us(), session.info(), stores, durables=durables, left_out=left_out
        )

    def _open(self, name: str, *, is_channel: bool) -> Channel | Queue:
        """Return the channel or queue of this name; it is opened at the first call."""
        store = self._opened.get(name)
        if store is None:
            stores = self._session.channels if is_channel else self._session.queues
            store = self._opened[name] = stores.get(name)
        return store

    def _durables(self, store: Channel | Queue, info: ChannelInfo) -> list[DurableInfo]:
        from penstock.client.sync.sync import Channel

        if not info.durables or not isinstance(store, Channel):
            return []
        return store.durables.list()

    def _forget(self, names: set[str]) -> None:
        """Forget opened stores whose name is not among ``names`` any more."""
        self._opened = {name: store for name, store in self._opened.items() if name in names}


def rates_between(earlier_sample: Sample, later_sample: Sample) -> RealmRates:
    """Return the rates between two samples. A store that is missing from the earlier sample is new,
    so all its events count."""
    seconds = max(later_sample.at_us - earlier_sample.at_us, 1) / 1_000_000
    stores = tuple(_stores(earlier_sample, later_sample, seconds))
    realm = later_sample.realm
    return RealmRates(
        realm=realm.name,
        version=realm.version,
        publishing_paused=realm.publishing_paused,
        connections=realm.connections,
        memory_bytes=realm.memory_bytes,
        memory_bytes_max=realm.memory_bytes_max,
        journal_bytes=realm.journal_bytes,
        stored_bytes=sum(line.bytes for line in stores),
        published_per_s=sum(line.published_per_s for line in stores),
        left_per_s=sum(line.left_per_s for line in stores),
        stores=stores,
        durables=tuple(_durables(earlier_sample, later_sample, seconds)),
        left_out=later_sample.left_out,
    )


def _stores(earlier_sample: Sample, later_sample: Sample, seconds: float) -> Iterator[StoreLine]:
    """Yield the activity of each store of the later sample. ``seconds`` is the time between the
    samples."""
    for name, info in later_sample.stores.items():
        earlier = earlier_sample.stores.get(name)
        published, removed = info.counters.published, info.counters.departed_count
        # A lower counter belongs to a new store under the name of a deleted one.
        if earlier is not None and earlier.counters.published <= published:
            published -= earlier.counters.published
            removed -= earlier.counters.departed_count
        yield StoreLine(
            name=name,
            kind=info.definition.kind,
            events=info.events,
            bytes=facts.bytes_of(info),
            subscribers=info.subscribers + len(info.readers),
            durables=info.durables,
            published_per_s=published / seconds,
            left_per_s=max(0, removed) / seconds,
        )


def _durables(
    earlier_sample: Sample, later_sample: Sample, seconds: float
) -> Iterator[DurableLine]:
    """Yield the activity of each durable of the later sample. ``seconds`` is the time between the
    samples."""
    for key, info in later_sample.durables.items():
        earlier = earlier_sample.durables.get(key)
        offered = info.position - (info.position if earlier is None else earlier.position)
        yield DurableLine(
            channel=info.channel,
            name=info.name,
            type=info.type,
            clients=len(info.clients),
            outstanding=info.outstanding,
            in_flight=info.in_flight,
            oldest_ms=info.oldest_outstanding_ms,
            offered_per_s=max(0, offered) / seconds,
        )
