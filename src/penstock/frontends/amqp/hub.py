"""State shared by all AMQP connections of a realm."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from msgspec import Struct

from penstock.core.vocabulary.errors import NameAlreadyBound, PenstockError
from penstock.core.vocabulary.identities import ChannelId
from penstock.frontends.amqp.connection import AmqpConnection
from penstock.frontends.amqp.kept_messages import UserKept
from penstock.frontends.amqp.modified import Modifications
from penstock.frontends.amqp.open_frame import CLOSE
from penstock.frontends.amqp.outgoing import EncodedMessages
from penstock.frontends.amqp.places import SubscriberRegistry
from penstock.frontends.shared.front_end_service import FrontEndService
from penstock.loggers import logger
from penstock.runtime.access.rare_lines import RareLines
from penstock.runtime.store.outgoing_batch import OutgoingBatch
from penstock.runtime.subscriptions.realm_view import DurableView
from penstock.wire.amqp import FIRST_BYTES

if TYPE_CHECKING:
    from penstock.frontends.amqp.attaching import Attached
    from penstock.frontends.amqp.producers import LinkProducer
    from penstock.frontends.native.listener import NativeListener

_WRITTEN_MAX: Final = 4

_log = logger("penstock.amqp")


LINKS_MAX: Final = 1_000
UNSETTLED_MAX: Final = 100_000
PARTS_BYTES_MAX: Final = 64 << 20
TRANSACTIONS_MAX: Final = 100
TRANSACTION_BYTES_MAX: Final = 256 << 20


class AmqpLimits(Struct, frozen=True):
    credit: int = 2_000
    """Messages that a link accepts before its sender has to wait for more credit."""
    links_max: int = LINKS_MAX
    """Most links of one connection at a time."""
    unsettled_max: int = UNSETTLED_MAX
    """Most unsettled deliveries of a link; its receiver gets no more until it settles some."""
    parts_bytes_max: int = PARTS_BYTES_MAX
    """Most bytes of unfinished messages of one connection; a single message may have that many,
    too."""
    transactions_max: int = TRANSACTIONS_MAX
    """Most open transactions of one connection."""
    transaction_bytes_max: int = TRANSACTION_BYTES_MAX
    """Most bytes of messages in the open transactions of one connection."""


class AmqpHub(FrontEndService):
    """Makes AMQP connections, and knows their links."""

    def __init__(self, listener: NativeListener, limits: AmqpLimits | None = None) -> None:
        self.listener = listener
        self.realm = listener.realm
        self.traffic = listener.realm.connections.traffic["amqp"]
        self.limits = limits or AmqpLimits()
        self._containers: dict[str, AmqpConnection] = {}
        self._wishes: WeakKeyDictionary[object, tuple[bytes, bool]] = WeakKeyDictionary()
        """A digest of the selector, which may be long, and no-local, by durable."""
        self._kept: WeakValueDictionary[str, UserKept] = WeakValueDictionary()
        """What is kept for each user until its receivers settle it."""
        self._rare_lines = RareLines()
        self.modifications = Modifications()
        self.places = SubscriberRegistry()
        self._absences: WeakKeyDictionary[object, object] = WeakKeyDictionary()
        """Marks for shared subscriptions that lost their last client with its connection; each
        marks one absence."""
        self._written: list[tuple[OutgoingBatch, EncodedMessages]] = []
        self._named: dict[tuple[Any, ...], tuple[AmqpConnection, Attached]] = {}
        """Links, by user, container, link name and direction."""
        self._producers: dict[int, dict[LinkProducer, None]] = {}
        """Links that send to one destination, by its id."""
        self.realm.dispatch.on_gone(self._gone)

    def connection(self) -> AmqpConnection:
        """Make the protocol of a new connection."""
        return AmqpConnection(self)

    async def listen(self, host: str, port: int) -> int:
        """Accept AMQP connections, here, on the native port and inside the HTTP port's WebSockets;
        gives the port."""
        await self.realm.reply_queues.remove_ended(self.realm.access)
        self.listener.offer("amqp", self.connection, first_bytes=FIRST_BYTES)
        return await self.listener.listen(host, port, self.connection)

    def kept_for(self, user: str) -> UserKept:
        """What is kept for a user."""
        kept = self._kept.get(user)
        if kept is None:
            kept = self._kept[user] = UserKept()
        return kept

    # --- who is there --------------------------------------------------------------------

    def enter(self, container: str, connection: AmqpConnection) -> AmqpConnection | None:
        """Register a connection that wants to be the only one of its container. Gives the older one
        that has to be closed for it, if that agreed to it and belongs to the same user. Raises
        ``NameAlreadyBound`` if it did not."""
        older = self._containers.get(container)
        if older is not None:
            is_own = older.principal.user == connection.principal.user
            if older.sole.policy != CLOSE or not is_own:
                raise NameAlreadyBound(f"client {container} is already connected")
            older.replaced()
        self._containers[container] = connection
        return older

    def leave(self, container: str, connection: AmqpConnection) -> None:
        if self._containers.get(container) is connection:
            del self._containers[container]

    # --- links ---------------------------------------------------------------------------

    def named(self, connection: AmqpConnection, attached: Attached) -> Attached | None:
        """Register a link. An older link of this name, direction and container is stolen by it, and
        given (2.6.1)."""
        key = _name_of(connection, attached)
        older = self._named.get(key)
        self._named[key] = connection, attached
        if older is None:
            return None
        older[0].links.steal(older[1])
        return older[1]

    def unnamed(self, connection: AmqpConnection, attached: Attached) -> None:
        """Forget a link that is over."""
        key = _name_of(connection, attached)
        if (known := self._named.get(key)) is not None and known[1] is attached:
            del self._named[key]

    def sends(self, producer: LinkProducer) -> None:
        """Register a link that sends to one destination."""
        if producer.number is not None:
            self._producers.setdefault(producer.number, {})[producer] = None

    def sends_no_more(self, producer: LinkProducer) -> None:
        if producer.number is not None and (own := self._producers.get(producer.number)):
            own.pop(producer, None)
            if not own:
                del self._producers[producer.number]

    def _gone(self, number: int) -> None:
        """End the links that send to a channel or queue that was deleted; receivers learn it
        elsewhere."""
        for producer in self._producers.pop(number, {}):
            producer.deleted()

    # --- durables ------------------------------------------------------------------------

    def is_as_wished(self, durable: DurableView, selector: str, *, no_local: bool) -> bool:
        """Whether a durable has this selector and no-local, as far as the realm knows: it remembers
        those with which the durable was last attached since the realm started. One that was deleted
        and created again has none."""
        wish = self._wishes.get(durable.identity)
        if durable.type.stores_selector:
            return durable.selector == selector and (wish is None or wish[1] == no_local)
        return wish is None or wish == (_digest_of(selector), no_local)

    def wished(self, durable: DurableView, selector: str, *, no_local: bool) -> None:
        """Note the selector and no-local with which a durable is attached."""
        self._wishes[durable.identity] = _digest_of(selector), no_local

    def keep(self, number: ChannelId, name: str) -> None:
        """Keep a shared subscription whose last client has lost its connection; the client may come
        back within the window (SEM J5)."""
        store = self.realm.view.store(number)
        durable = None if store is None else store.durable(name)
        if store is None or durable is None or durable.is_attached:
            return
        absence = self._absences[durable.identity] = object()
        asyncio.get_running_loop().call_later(store.timeout_s, self._over, number, durable, absence)

    def _over(self, number: ChannelId, durable: DurableView, absence: object) -> None:
        """Delete the subscription at the end of the window, unless a client has come back."""
        store = self.realm.view.store(number)
        now = None if store is None else store.durable(durable.name)
        is_there = now is not None and now.identity is durable.identity
        is_absent = not durable.is_attached and self._absences.get(durable.identity) is absence
        if is_there and is_absent and not self.listener.is_stopping:
            self.listener.spawn(self._delete, number, durable.name)

    async def _delete(self, number: ChannelId, name: str) -> None:
        try:
            await self.realm.subscriptions.delete_durable(number, name)
        except PenstockError as error:
            _log.debug("amqp.not_removed", reason=str(error))

    # --- messages ------------------------------------------------------------------------

    def messages_of(self, rows: OutgoingBatch) -> EncodedMessages:
        """The messages of some events; written once for all who receive them in the same turn."""
        for known, messages in self._written:
            if known is rows:
                return messages
        messages = EncodedMessages(rows, self.realm.clock.now_us())
        if messages.left_out:
            self._leave_out(messages.left_out)
        self._written = [(rows, messages), *self._written[: _WRITTEN_MAX - 1]]
        return messages

    def _leave_out(self, parts: list[str]) -> None:
        """Count parts of events that messages do not have. The log has a line a minute."""
        self.traffic.left_out += len(parts)
        if self._rare_lines.is_due("amqp.left_out"):
            _log.warning("amqp.left_out", parts=parts[:10], count=self.traffic.left_out)

    def forget_written(self) -> None:
        """Drop the written messages at the end of a turn."""
        self._written.clear()


def _digest_of(selector: str) -> bytes:
    return sha256(selector.encode("utf-8", "surrogatepass")).digest()


def _name_of(connection: AmqpConnection, attached: Attached) -> tuple[Any, ...]:
    """The identity of a link. A container without a name has its own links in each connection, and
    no user has another's."""
    own = connection.container or connection.number
    return connection.principal.user, own, attached.link.name, attached.link.is_sender
