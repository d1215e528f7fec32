"""Channels that MQTT keeps beside the one of all topics: of each key the newest event counts."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import ClassVar, Final

from penstock.columns.events.event import Event
from penstock.columns.selectors import Selector
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
        self._name = f"{beside}-{self.suffix}"

    @abstractmethod
    def _type(self, beside: str) -> str:
        """The type that it is made with; ``beside`` is that of the channel of all topics."""

    async def open_channel(self) -> ChannelId:
        """The channel, made when it is missing, with the sync of the channel of all topics.
        Raises ``InvalidArgument`` if it is not fit for it."""
        with contextlib.suppress(NameDoesNotExist):
            return self.channel()
        with contextlib.suppress(NameAlreadyBound):  # somebody else was faster
            await self._realm.create_channel(destination_name(self._name), self._definition())
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
        store = self._realm.view.named(self._name)
        if store is None:
            raise NameDoesNotExist(f"there is no channel {self._name!r} for {self.what}")
        definition = self._realm.definition_of(self._name)
        keys = {} if definition is None else definition.keys
        if store.kind != "channel" or keys != {self.key: 1}:
            raise InvalidArgument(
                f"{self._name!r} has to be a channel with the publish key {self.key} of depth 1, "
                f"and nothing else: {self.why}"
            )
        return store.number


async def pages_of(
    realm: RunningRealm, channel: ChannelId, name: str, selector: Selector | None = None
) -> AsyncIterator[list[Event]]:
    """The events of a channel that are there now, a page at a time."""
    last_id = realm.view.required(name).next_id - 1
    async for page in _pages_between(realm, channel, 0, last_id, selector):
        yield page


async def events_at(
    realm: RunningRealm, channel: ChannelId, event_ids: Sequence[int]
) -> AsyncIterator[list[Event]]:
    """The events with these ids, as far as they are there, each for itself."""
    for event_id in event_ids:
        async for page in _pages_between(realm, channel, event_id, event_id, None):
            yield page


async def _pages_between(
    realm: RunningRealm,
    channel: ChannelId,
    first_id: int,
    last_id: int,
    selector: Selector | None,
) -> AsyncIterator[list[Event]]:
    next_id: int | None = first_id
    while next_id is not None:
        size = count_that_fits(realm.view.store(channel), min(PAGE, last_id - next_id + 1))
        outlet = Collected("mqtt", selector, size)
        open_ = partial(
            realm.subscriptions.subscribe,
            *(channel, FromId(next_id), outlet),
            credit=size,
            browse=True,
            last_id=last_id,
        )
        next_id = await collect(realm, channel, outlet, open_)
        yield outlet.events()
