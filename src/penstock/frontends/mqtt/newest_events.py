"""Channels that MQTT keeps beside the one of all topics: of each key the newest event counts."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import ClassVar, Final

import pyarrow as pa

from penstock.columns.events.batch import EventBatch
from penstock.columns.events.event import Event
from penstock.columns.schema import compute as pc
from penstock.core.vocabulary.errors import (
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock.core.vocabulary.identities import ChannelId
from penstock.core.vocabulary.messages import Definition, Storage
from penstock.core.vocabulary.names import destination_name
from penstock.core.vocabulary.start_positions import FromId
from penstock.runtime.reading.collecting import Collected, collect, count_that_fits
from penstock.runtime.realm import RunningRealm

PAGE: Final = 1_000
"""Most events that are read at once."""
NEAR: Final = 100
"""Events whose ids are nearer than that are read together: to read as many that are not wanted
takes about as long as to begin anew."""


class KeyedChannel(ABC):
    """The channel ``<channel>-<suffix>``."""

    suffix: ClassVar[str]
    key: ClassVar[str]
    """Its publish key, of depth 1."""
    what: ClassVar[str]
    """What is kept there, for people."""
    why: ClassVar[str]
    """What a channel that is not fit for it is told."""

    def __init__(self, realm: RunningRealm, beside: str) -> None:
        """``beside``: the channel of all topics."""
        self._realm = realm
        self._beside = beside
        self.name = f"{beside}-{self.suffix}"
        """What it is called."""

    @abstractmethod
    def _type(self, beside: str) -> str:
        """The type that it is made with; ``beside`` is that of the channel of all topics."""

    async def open_channel(self) -> ChannelId:
        """The channel, made when it is missing, with the sync of the channel of all topics.
        Raises ``InvalidArgument`` if it is not fit for it."""
        with contextlib.suppress(NameDoesNotExist):
            return self.channel()
        try:
            await self._realm.create_channel(destination_name(self.name), self._definition())
        except NameAlreadyBound:
            if self._realm.view.named(self.name) is None:  # in a cluster another realm has it
                raise
        return self.channel()

    def _definition(self) -> Definition:
        beside = self._realm.definition_of(self._beside) or Definition()
        return Definition(
            type=self._type(beside.type),
            keys={self.key: 1},
            event_ttl=True,
            retain_consumed=True,
            storage=Storage(sync=beside.storage.sync),
        )

    def channel(self) -> ChannelId:
        """Raises ``NameDoesNotExist`` if it is missing."""
        store = self._realm.view.named(self.name)
        if store is None:
            raise NameDoesNotExist(f"there is no channel {self.name!r} for {self.what}")
        definition = self._realm.definition_of(self.name)
        keys = {} if definition is None else definition.keys
        if store.kind != "channel" or keys != {self.key: 1}:
            raise InvalidArgument(
                f"{self.name!r} has to be a channel with the publish key {self.key} of depth 1, "
                f"and nothing else: {self.why}"
            )
        return store.number


async def pages_of(
    realm: RunningRealm, channel: ChannelId, name: str
) -> AsyncIterator[list[Event]]:
    """The events of a channel that are there now, a page at a time."""
    async for page in batches_of(realm, channel, name):
        yield [event for batch in page for event in EventBatch(batch)]


async def batches_of(
    realm: RunningRealm, channel: ChannelId, name: str
) -> AsyncIterator[list[pa.RecordBatch]]:
    """As :func:`pages_of`, in columns."""
    last_id = realm.view.required(name).next_id - 1
    async for page in _batches_between(realm, channel, 0, last_id):
        yield page


async def batches_at(
    realm: RunningRealm, channel: ChannelId, event_ids: Sequence[int]
) -> AsyncIterator[list[pa.RecordBatch]]:
    """The events with these ids, which rise, as far as they are there; those that are near to each
    other are read together, and others between them left out."""
    for first, last in stretches_of(event_ids):
        wanted = pa.array(event_ids[first:last], pa.int64())
        low_id, high_id = event_ids[first], event_ids[last - 1]
        async for page in _batches_between(realm, channel, low_id, high_id):
            yield [each.filter(pc.is_in(each.column("event_id"), wanted)) for each in page]


def stretches_of(event_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Parts of rising ids, from one place to another, without a gap of :data:`NEAR` or more."""
    begin = 0
    for place in range(1, len(event_ids) + 1):
        if place == len(event_ids) or event_ids[place] - event_ids[place - 1] >= NEAR:
            yield begin, place
            begin = place


async def _batches_between(
    realm: RunningRealm, channel: ChannelId, first_id: int, last_id: int
) -> AsyncIterator[list[pa.RecordBatch]]:
    next_id: int | None = first_id
    while next_id is not None and next_id <= last_id:
        size = count_that_fits(realm.view.store(channel), min(PAGE, last_id - next_id + 1))
        outlet = Collected("mqtt", None, size)
        open_ = partial(
            realm.subscriptions.subscribe,
            *(channel, FromId(next_id), outlet),
            credit=size,
            browse=True,
            last_id=last_id,
        )
        next_id = await collect(realm, channel, outlet, open_)
        yield [each.to_arrow() for each in outlet.batches]
