"""State shared by all AMQP connections of a realm."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import structlog
from msgspec import Struct

from penstock.core.vocabulary.errors import NameAlreadyBound, PenstockError
from penstock.core.vocabulary.identities import ChannelId
from penstock.frontends.amqp.addresses import remove_left_over
from penstock.frontends.amqp.connection import AmqpConnection
from penstock.frontends.amqp.modified import Modifications
from penstock.frontends.amqp.open_frame import CLOSE
from penstock.frontends.amqp.outgoing import Messages
from penstock.frontends.amqp.places import Places
from penstock.runtime.store.outgoing_batch import Rows
from penstock.runtime.subscriptions.realm_view import DurableView

if TYPE_CHECKING:
    from penstock.frontends.amqp.attaching import Attached
    from penstock.frontends.amqp.producers import Producer
    from penstock.frontends.native.listener import NativeListener

_WRITTEN_MAX: Final = 4

_log = structlog.get_logger("penstock.amqp")


class AmqpLimits(Struct, frozen=True):
    credit: int = 2_000
    """Messages a link takes before its sender has to wait for more credit."""
    links_max: int = 1_000
    """Most links of one connection at once."""
    unsettled_max: int = 100_000
    """Most deliveries of a link that its receiver has not settled; it gets no more meanwhile."""
    parts_bytes_max: int = 64 << 20
    """Most bytes of one connection's messages that are not whole yet, or one message's."""
    transactions_max: int = 100
    """Most open transactions of one connection."""
    transaction_bytes_max: int = 256 << 20
    """Most bytes of the messages of one connection's open transactions."""


class AmqpHub:
    """Makes the connections, and knows who is there."""

    def __init__(self, listener: NativeListener, limits: AmqpLimits | None = None) -> None:
        self.listener = listener
        self.realm = listener.realm
        self.limits = limits or AmqpLimits()
        self._containers: dict[str, AmqpConnection] = {}
        self._wishes: WeakKeyDictionary[object, tuple[str, bool]] = WeakKeyDictionary()
        self.modifications = Modifications()
        self.places = Places()
        self._absences: WeakKeyDictionary[object, object] = WeakKeyDictionary()
        """Durables without a client since a connection was lost."""
        self._written: list[tuple[Rows, Messages]] = []
        self._named: dict[tuple[Any, ...], tuple[AmqpConnection, Attached]] = {}
        """Links, by who has attached them, their name and their direction."""
        self._producers: dict[int, dict[Producer, None]] = {}
        """By channel or queue: links by which messages come for it alone."""
        self.realm.dispatch.on_gone(self._gone)

    def connection(self) -> AmqpConnection:
        """A new connection's protocol."""
        return AmqpConnection(self)

    async def listen(self, host: str, port: int) -> int:
        """Accept AMQP connections, here and on the native port; gives the port.

        Raises ``AddressInUse``, ``InvalidArgument``.
        """
        await remove_left_over(self.realm)
        self.listener.amqp = self.connection
        return await self.listener.listen(host, port, self.connection)

    # --- who is there --------------------------------------------------------------------

    def enter(self, container: str, connection: AmqpConnection) -> AmqpConnection | None:
        """A connection that wants to be the only one of its container. One that has asked to be
        closed for that is, and is given; nobody closes another user's. Raises
        ``NameAlreadyBound``."""
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
        """A link is attached. One of the same name that goes the same way between the same
        containers is stolen by it, and given (2.6.1)."""
        key = _name_of(connection, attached)
        older = self._named.get(key)
        self._named[key] = connection, attached
        if older is None:
            return None
        older[0].links.steal(older[1])
        return older[1]

    def unnamed(self, connection: AmqpConnection, attached: Attached) -> None:
        """It is over."""
        key = _name_of(connection, attached)
        if (known := self._named.get(key)) is not None and known[1] is attached:
            del self._named[key]

    def sends(self, producer: Producer) -> None:
        """Messages come for what it names."""
        if producer.number is not None:
            self._producers.setdefault(producer.number, {})[producer] = None

    def sends_no_more(self, producer: Producer) -> None:
        if producer.number is not None and (own := self._producers.get(producer.number)):
            own.pop(producer, None)
            if not own:
                del self._producers[producer.number]

    def _gone(self, number: int) -> None:
        """A channel or queue was deleted: senders hear of it at once, as receivers do."""
        for producer in self._producers.pop(number, {}):
            producer.deleted()

    # --- durables ------------------------------------------------------------------------

    def wishes(self, durable: DurableView) -> tuple[str, bool] | None:
        """Selector and no-local a durable was last attached with, since the realm started; one
        that was made anew by its name is another."""
        return self._wishes.get(durable.identity)

    def wished(self, durable: DurableView, wish: tuple[str, bool]) -> None:
        """It is attached with these."""
        self._wishes[durable.identity] = wish

    def keep(self, number: ChannelId, name: str) -> None:
        """A shared subscription that ends with its last consumer has lost that one's connection:
        it may be back within the window (SEM J5)."""
        store = self.realm.view.store(number)
        durable = None if store is None else store.durable(name)
        if store is None or durable is None or durable.is_attached:
            return
        absence = self._absences[durable.identity] = object()
        asyncio.get_running_loop().call_later(store.timeout_s, self._over, number, durable, absence)

    def _over(self, number: ChannelId, durable: DurableView, absence: object) -> None:
        """The window has ended, unless somebody was back meanwhile."""
        store = self.realm.view.store(number)
        now = None if store is None else store.durable(durable.name)
        is_there = now is not None and now.identity is durable.identity
        is_absent = not durable.is_attached and self._absences.get(durable.identity) is absence
        if is_there and is_absent and not self.listener.is_stopping:
            self.listener.spawn(self._delete(number, durable.name))

    async def _delete(self, number: ChannelId, name: str) -> None:
        try:
            await self.realm.subscriptions.delete_durable(number, name)
        except PenstockError as error:
            _log.debug("amqp.not_removed", reason=str(error))

    # --- messages ------------------------------------------------------------------------

    def messages_of(self, rows: Rows) -> Messages:
        """The messages of some events; written once for all who receive them in one turn."""
        for known, messages in self._written:
            if known is rows:
                return messages
        messages = Messages(rows, self.realm.clock.now_us())
        self._written = [(rows, messages), *self._written[: _WRITTEN_MAX - 1]]
        return messages

    def forget_written(self) -> None:
        """The turn is over: nobody else receives them."""
        self._written.clear()


def _name_of(connection: AmqpConnection, attached: Attached) -> tuple[Any, ...]:
    """What a link is called, between whom. A container that has no name has links of its own in
    each connection, and nobody has another user's."""
    own = connection.container or connection.number
    return connection.principal.user, own, attached.link.name, attached.link.is_sender
