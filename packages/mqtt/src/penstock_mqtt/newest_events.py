"""Internal stores of MQTT beside the channel of all topics: of each key the newest event counts."""

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
    """An internal store (SEM A6) of MQTT."""

    def __init__(self, realm: RunningRealm, beside: str, own: InternalStore) -> None:
        """``beside``: the channel of all topics."""
        self._realm = realm
        self._beside = beside
        self._own = own
        self.name = own.name
        self._making: asyncio.Task[ChannelId] | None = None

    @abstractmethod
    def _type(self, beside: str) -> str:
        """The type that it is made with; ``beside`` is that of the channel of all topics."""

    @property
    def store(self) -> StoreView | None:
        """The store as it is now; None: it has not been made."""
        return self._realm.view.internal(self.name)

    async def open_channel(self) -> ChannelId:
        """The channel, made when it is missing, with the sync of the channel of all topics.
        Raises ``InvalidArgument`` where a user's store of another shape has its name."""
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
        beside = self._realm.definition_of(self._beside) or Definition()
        return Definition(
            type=self._type(beside.type),
            keys={self._own.key: 1},
            event_ttl=True,
            retain_consumed=True,
            storage=Storage(sync=beside.storage.sync),
        )

    def channel(self) -> ChannelId:
        """The store's number. Raises ``NameDoesNotExist`` if it is missing, and makes it."""
        store = self.store
        if store is None:
            self._make_anew()
            raise NameDoesNotExist(
                f"the store of {self._own.purpose} was missing and is being made anew; try again"
            )
        return store.number

    def _make_anew(self) -> None:
        """Make the store again: without it no client is served until the next start."""
        if self._making is not None and not self._making.done():
            return

        def failed(error: BaseException) -> None:
            _log.error("mqtt.store_missing", store=self.name, reason=str(error))

        _log.warning("mqtt.store_missing", store=self.name, reason="it is being made anew")
        self._making = start_task(self.open_channel(), name=self.name, on_failure=failed)


async def make_channel(realm: RunningRealm, name: str, definition: Definition) -> None:
    """Make a channel of MQTT, unless somebody else was faster. Raises ``NameAlreadyBound`` where
    another realm of the cluster has the name, and what the realm refuses it with."""
    try:
        await realm.create_channel(destination_name(name), definition)
    except NameAlreadyBound:
        if realm.view.named(name) is None:
            raise
