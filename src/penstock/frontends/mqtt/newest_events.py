"""Channels that MQTT keeps beside the one of all topics: of each key the newest event counts."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import ClassVar

from penstock.core.vocabulary.errors import (
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock.core.vocabulary.identities import ChannelId
from penstock.core.vocabulary.messages import Definition, Storage
from penstock.core.vocabulary.names import destination_name
from penstock.runtime.realm import RunningRealm


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
        await make_channel(self._realm, self.name, self._definition())
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


async def make_channel(realm: RunningRealm, name: str, definition: Definition) -> None:
    """Make a channel of MQTT, unless somebody else was faster. Raises ``NameAlreadyBound`` where
    another realm of the cluster has the name, and what the realm refuses it with."""
    try:
        await realm.create_channel(destination_name(name), definition)
    except NameAlreadyBound:
        if realm.view.named(name) is None:
            raise
