"""Internal stores of MQTT that keep the newest event of each key."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from penstock_core.loggers import logger
from penstock_core.realm.internal_stores import InternalStore
from penstock_core.tasks import start_task
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import (
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import destination_name
from penstock_server.runtime.operations.internal_stores import make_internal
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.subscriptions.realm_view import StoreView

_log = logger("penstock.mqtt")


class KeyedChannel(ABC):
    """An internal store (SEM A6) of MQTT that keeps the newest event of each key."""

    def __init__(self, realm: RunningRealm, all_topics: str, own: InternalStore) -> None:
        """``all_topics`` is the name of the channel of all topics."""
        self._realm = realm
        self._all_topics = all_topics
        self._own = own
        self.name = own.name
        self._making: asyncio.Task[ChannelId] | None = None

    @abstractmethod
    def _type(self, type_of_all: str) -> str:
        """Return the channel type for the new store. ``type_of_all`` is the type of the channel of
        all topics."""

    @property
    def store(self) -> StoreView | None:
        """The current state of the store; None if it does not exist yet."""
        return self._realm.view.internal(self.name)

    async def open_channel(self) -> ChannelId:
        """Return the channel. Create it if it is missing, with the sync of the channel of all
        topics. Raises ``InvalidArgument`` if a user's store of another shape has its name."""
        store = self.store
        if store is not None:
            return store.number
        if self._realm.view.named(self.name) is not None:
            raise InvalidArgument(
                f"{self.name!r} was made by a user and is not a channel with the publish key "
                f"{self._own.key} of depth 1 and no other, which {self._own.purpose} need; delete "
                f"it, or set listen.mqtt_channel to another name"
            )
        return await make_internal(self._realm, self.name, self._definition())

    def _definition(self) -> Definition:
        """Return the definition of the internal channel, which takes type and sync from the channel
        of all topics."""
        definition = self._realm.definition_of(self._all_topics) or Definition()
        return Definition(
            type=self._type(definition.type),
            keys={self._own.key: 1},
            event_ttl=True,
            retain_consumed=True,
            storage=Storage(sync=definition.storage.sync),
        )

    def channel(self) -> ChannelId:
        """Return the id of the store. If the store is missing, start to create it and raise
        ``NameDoesNotExist``."""
        store = self.store
        if store is None:
            self._create_again()
            raise NameDoesNotExist(
                f"the store of {self._own.purpose} was missing and is being created; try again"
            )
        return store.number

    def _create_again(self) -> None:
        """Start to create the missing store, unless its creation is already running. Without the
        store, clients could not be served until the next start of the realm."""
        if self._making is not None and not self._making.done():
            return

        def log_failure(error: BaseException) -> None:
            _log.error("mqtt.store_missing", store=self.name, reason=str(error))

        _log.warning("mqtt.store_missing", store=self.name, reason="it is being created again")
        self._making = start_task(self.open_channel(), name=self.name, on_failure=log_failure)


async def make_channel(realm: RunningRealm, name: str, definition: Definition) -> None:
    """Create a channel of MQTT unless it exists by now. Raises ``NameAlreadyBound`` if another
    realm of the cluster has the name, and the errors of the creation."""
    try:
        await realm.create_channel(destination_name(name), definition)
    except NameAlreadyBound:
        if realm.view.named(name) is None:
            raise
