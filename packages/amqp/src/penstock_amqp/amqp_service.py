"""State shared by all AMQP connections of a realm;
:class:`~penstock_amqp.connection.AmqpHub` makes the connections."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from weakref import WeakKeyDictionary, WeakValueDictionary

from penstock_amqp.kept_messages import UserKept
from penstock_amqp.limits import AmqpLimits
from penstock_amqp.link_registry import LinkRegistry
from penstock_amqp.modified import Modifications
from penstock_amqp.outgoing import MessageCache
from penstock_amqp.places import SubscriberRegistry
from penstock_amqp.sole_connections import SoleConnections
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.runtime.subscriptions.realm_view import DurableView

_log = logger("penstock.amqp")


class AttachedDurables:
    """What only AMQP has to know about the durables that its clients attach: the terms of the last
    attach, and since when one has had no client."""

    def __init__(self, listener: NativeListener) -> None:
        self._listener = listener
        self._realm = listener.realm
        self._wishes: WeakKeyDictionary[object, tuple[bytes, bool]] = WeakKeyDictionary()
        """A digest of the selector, which may be long, and no-local, by durable."""
        self._absences: WeakKeyDictionary[object, object] = WeakKeyDictionary()
        """Marks for shared subscriptions that lost their last client with its connection; each
        marks one absence."""

    def is_as_wished(self, durable: DurableView, selector: str, *, no_local: bool) -> bool:
        """Whether a durable has this selector and no-local, as far as the realm knows: it remembers
        those with which the durable was last attached since the realm started. One that was deleted
        and created again has none."""
        wish = self._wishes.get(durable.identity)
        if durable.type.stores_selector:
            return durable.selector == selector and (wish is None or wish[1] == no_local)
        return wish is None or wish == (_digest_of(selector), no_local)

    def note(self, durable: DurableView, selector: str, *, no_local: bool) -> None:
        """Note the selector and no-local with which a durable is attached."""
        self._wishes[durable.identity] = _digest_of(selector), no_local

    def keep(self, number: ChannelId, name: str) -> None:
        """Keep a shared subscription whose last client has lost its connection; the client may come
        back within the window (SEM J5)."""
        store = self._realm.view.store(number)
        durable = None if store is None else store.durable(name)
        if store is None or durable is None or durable.is_attached:
            return
        absence = self._absences[durable.identity] = object()
        asyncio.get_running_loop().call_later(store.timeout_s, self._over, number, durable, absence)

    def _over(self, number: ChannelId, durable: DurableView, absence: object) -> None:
        """Delete the subscription at the end of the window, unless a client has come back."""
        store = self._realm.view.store(number)
        now = None if store is None else store.durable(durable.name)
        is_there = now is not None and now.identity is durable.identity
        is_absent = not durable.is_attached and self._absences.get(durable.identity) is absence
        if is_there and is_absent and not self._listener.is_stopping:
            self._listener.spawn(self._delete, number, durable.name)

    async def _delete(self, number: ChannelId, name: str) -> None:
        try:
            await self._realm.subscriptions.delete_durable(number, name)
        except PenstockError as error:
            _log.debug("amqp.not_removed", reason=str(error))


class AmqpService:
    """State shared by all AMQP connections of a realm."""

    def __init__(self, listener: NativeListener, limits: AmqpLimits) -> None:
        self.listener = listener
        self.realm = listener.realm
        self.traffic = self.realm.connections.traffic["amqp"]
        self.limits = limits
        self.sole_connections = SoleConnections()
        self.links = LinkRegistry()
        self.durables = AttachedDurables(listener)
        self.places = SubscriberRegistry()
        self.messages = MessageCache(self.realm.clock, self.traffic)
        self.modifications = Modifications()
        self._kept: WeakValueDictionary[str, UserKept] = WeakValueDictionary()
        """What is kept for each user until its receivers settle it."""
        self.realm.dispatch.on_gone(self.links.end_producers)

    def kept_for(self, user: str) -> UserKept:
        """What is kept for a user."""
        kept = self._kept.get(user)
        if kept is None:
            kept = self._kept[user] = UserKept()
        return kept


def _digest_of(selector: str) -> bytes:
    return sha256(selector.encode("utf-8", "surrogatepass")).digest()
