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
from penstock_server.frontends.shared.buffers import Buffers
from penstock_server.runtime.subscriptions.realm_view import DurableView

_log = logger("penstock.amqp")


class AttachedDurables:
    """Data about durables that only AMQP needs: the terms of their last attach, and the time that
    their last client has to reconnect."""

    def __init__(self, listener: NativeListener) -> None:
        self._listener = listener
        self._realm = listener.realm
        self.terms: WeakKeyDictionary[object, tuple[bytes, bool]] = WeakKeyDictionary()
        """Digest of the selector (which may be long) and no-local of the last attach, by durable
        identity."""
        self._absences: WeakKeyDictionary[object, object] = WeakKeyDictionary()
        """A unique object for each absence, by durable identity. An absence begins when a shared
        subscription loses its last client by a lost connection."""

    def has_terms(self, durable: DurableView, selector: str, *, no_local: bool) -> bool:
        """Return True if a durable's last attach since the realm's start had this selector and
        no-local, or if no attach is recorded. A durable that was deleted and created again has a
        new identity, so no record."""
        last_terms = self.terms.get(durable.identity)
        if durable.type.stores_selector:
            return durable.selector == selector and (
                last_terms is None or last_terms[1] == no_local
            )
        return last_terms is None or last_terms == (_digest_of(selector), no_local)

    def note_terms(self, durable: DurableView, selector: str, *, no_local: bool) -> None:
        """Record the selector and no-local of a durable's attach."""
        self.terms[durable.identity] = _digest_of(selector), no_local

    def keep(self, number: ChannelId, name: str) -> None:
        """Keep a shared subscription whose last client has lost its connection. It is deleted if no
        client reconnects within the store's timeout (SEM J5)."""
        store = self._realm.view.store(number)
        durable = None if store is None else store.durable(name)
        if store is None or durable is None or durable.is_attached:
            return
        absence = self._absences[durable.identity] = object()
        asyncio.get_running_loop().call_later(
            store.timeout_s, self._end_absence, number, durable, absence
        )

    def _end_absence(self, number: ChannelId, durable: DurableView, absence: object) -> None:
        """Delete the subscription at the end of its timeout, unless a client has reconnected."""
        store = self._realm.view.store(number)
        # A durable of the same name may have been created during the timeout; it must not be
        # deleted.
        current = None if store is None else store.durable(durable.name)
        still_exists = current is not None and current.identity is durable.identity
        is_absent = not durable.is_attached and self._absences.get(durable.identity) is absence
        if still_exists and is_absent and not self._listener.is_stopping:
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
        """Bytes kept for each user's receivers until they settle them, by user. Weak: an entry
        lives as long as one of the user's connections."""
        self.transaction_bytes = Buffers(2 * limits.transaction_bytes_max, small_bytes=0)
        """Counts the bytes of messages in open transactions, by user. A user may hold half of what
        the other users leave free. If no other user has open transactions, that is
        ``transaction_bytes_max``, the limit of one connection."""
        self.realm.dispatch.on_gone(self.links.end_producers)

    def kept_by(self, user: str) -> UserKept:
        """Return the account of the bytes kept for a user."""
        user_kept = self._kept.get(user)
        if user_kept is None:
            user_kept = self._kept[user] = UserKept(self.limits.user_kept_bytes_max)
        return user_kept


def _digest_of(selector: str) -> bytes:
    return sha256(selector.encode("utf-8", "surrogatepass")).digest()
