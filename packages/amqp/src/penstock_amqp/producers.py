"""Links by which messages come: to one channel or queue, or to the address in each message."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from penstock_amqp.addresses import (
    SEND_OPERATIONS,
    Kind,
    LinkDestination,
    find_destination,
    parse_address,
    resolve_destination,
)
from penstock_amqp.conditions import (
    DELETED,
    UnreadableMessage,
    condition_of,
    condition_of_attached,
    description_of,
)
from penstock_amqp.incoming import batches_of
from penstock_amqp.link_ends import IncomingLink
from penstock_amqp.outcomes import RELEASED, Pointer
from penstock_amqp.peer import AmqpPeer
from penstock_amqp.single_message import SingleMessages
from penstock_amqp.wire.sections import entries, fields, sections_of
from penstock_amqp.wire.types import Byte
from penstock_core.access.rights import Principal
from penstock_core.api.publishing import PublishEvents
from penstock_core.api.requests import Request
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    InvalidEvent,
    NameDoesNotExist,
    NoSuchTransaction,
    PenstockError,
    RemoteProtocolViolation,
)
from penstock_server.runtime.store.bodies import Body, body_from

_log = logger("penstock.amqp")

_JMS_DESTINATION: Final = "x-opt-jms-dest"
_JMS_KINDS: Final[dict[int, Kind]] = {0: "queue", 1: "channel", 2: "queue", 3: "channel"}


class ProducerTransactions(Protocol):
    """The transactions of a connection, as its producers use them."""

    def is_declared(self, name: bytes) -> bool:
        """Whether a transaction of this name is open."""
        ...

    def add_message(self, name: bytes, by: LinkProducer, message: bytes) -> None:
        """Add a message to an open transaction. Raises ``LimitReached``."""
        ...

    def fail(self, name: bytes, error: PenstockError) -> None:
        """Let an open transaction fail when it is discharged, because a message of it was
        refused."""
        ...


class ProducerPeer(AmqpPeer, Protocol):
    """A connection, as its producers use it."""

    principal: Principal
    in_flight_bytes: int
    """Bytes of messages that are not stored yet."""

    @property
    def is_congested(self) -> bool:
        """Whether senders get no more credit for now."""
        ...

    @property
    def transactions(self) -> ProducerTransactions: ...

    def check_on(self, asked: type[Request[Any]], destination: LinkDestination) -> None:
        """Raise ``AccessDenied`` unless the signed-in user may ask this of a destination."""
        ...


class LinkProducer:
    """A link by which messages come."""

    def __init__(
        self,
        connection: ProducerPeer,
        incoming: IncomingLink,
        destination: LinkDestination | None,
    ) -> None:
        """Without a destination each message names its own: an anonymous relay."""
        self._connection = connection
        self._listener = connection.service.listener
        self._realm = connection.service.realm
        self._destination = destination
        self._version = -1
        self._allowed: set[int] = set()
        self._waiting: deque[tuple[bytes, Pointer | None]] = deque()
        """Messages of an anonymous relay that wait until a destination is created."""
        self._lone = SingleMessages()
        self.incoming = incoming

    @property
    def name(self) -> str:
        """Name of the destination; empty: each message names its own."""
        return self._destination.name if self._destination else ""

    @property
    def number(self) -> int | None:
        """Id of the destination; None: each message names its own."""
        return self._destination.number if self._destination else None

    def deleted(self) -> None:
        """End the link, because its destination was deleted."""
        with self._connection.containing:
            self._connection.end_link(self.incoming, DELETED, f"{self.name} was deleted")

    def check(self) -> None:
        """Raise ``AccessDenied`` or ``NameDoesNotExist`` if it may not, or cannot, send any
        more."""
        if self._destination is not None:
            self._require(self._destination)

    def _require(self, destination: LinkDestination) -> None:
        access = self._realm.access
        if self._version != access.version:
            self._version = access.version
            self._allowed.clear()
        if not self._realm.view.has(destination.number):
            raise NameDoesNotExist(f"{destination.name} no longer exists")
        if destination.number not in self._allowed:
            self._connection.check_on(PublishEvents, destination)
            self._allowed.add(destination.number)

    # --- what comes ----------------------------------------------------------------------

    def take(self) -> None:
        """Publish the messages of one read."""
        link = self.incoming
        messages, link.messages = link.messages, []
        deliveries, link.deliveries = link.deliveries, []
        transactions, link.transactions = link.transactions, {}
        if transactions:
            self._take_in_transactions(messages, deliveries, transactions)
        elif self._destination is not None:
            self.publish(self._destination, messages, deliveries)
        else:
            self._relay(messages, deliveries)
        if not self._connection.is_congested:
            self._connection.engine.refill(link)

    def publish(
        self,
        destination: LinkDestination,
        messages: Sequence[bytes],
        deliveries: Sequence[Pointer | None],
    ) -> None:
        """Store messages, and answer each once it is stored."""
        try:
            self._require(destination)
            bodies = self.bodies(destination, messages, deliveries)
        except PenstockError as error:
            self._refuse(deliveries, error)
            return
        for body, own in bodies:
            self._submit(destination, body, messages, deliveries, own)

    def bodies(
        self,
        destination: LinkDestination,
        messages: Sequence[bytes],
        deliveries: Sequence[Pointer | None],
    ) -> list[tuple[Body, Sequence[int]]]:
        """Turn messages into events, with the messages' places; those that cannot become events are
        refused."""
        container = self._connection.container if destination.is_jms else ""
        now_ms = self._realm.clock.now_us() // 1_000
        if len(messages) == 1 and (body := self._lone.body(messages[0], now_ms, container)):
            return [(body, (0,))]
        batches, unusable = batches_of(messages, now_ms, container)
        for each in unusable:
            self._refuse([deliveries[each.index]], each.error)
        return [(body_from(batch), own) for batch, own in batches]

    def made(self, destination: LinkDestination, messages: Sequence[bytes]) -> list[Body]:
        """Turn messages into events, all or none. Raises ``InvalidEvent``, ``AccessDenied``."""
        self._require(destination)
        container = self._connection.container if destination.is_jms else ""
        batches, unusable = batches_of(messages, self._realm.clock.now_us() // 1_000, container)
        if unusable:
            raise unusable[0].error
        return [body_from(batch) for batch, _ in batches]

    def _submit(
        self,
        destination: LinkDestination,
        body: Body,
        messages: Sequence[bytes],
        deliveries: Sequence[Pointer | None],
        own: Sequence[int],
    ) -> None:
        connection, listener, size = self._connection, self._listener, body.weight

        def reply(_: Any, error: BaseException | None) -> None:
            listener.pending_bytes -= size
            connection.in_flight_bytes -= size
            with connection.containing:
                self._answer(destination, error, messages, deliveries, own)

        listener.pending_bytes += size
        connection.in_flight_bytes += size
        try:
            self._realm.publish(
                destination.number, [body], "", 0, reply, publisher=connection.publisher
            )
        except PenstockError as error:
            reply(None, error)

    def _answer(
        self,
        destination: LinkDestination,
        error: BaseException | None,
        messages: Sequence[bytes],
        deliveries: Sequence[Pointer | None],
        own: Sequence[int],
    ) -> None:
        mine = [deliveries[place] for place in own]
        if error is None:
            self._accept(mine)
        elif not isinstance(error, PenstockError):
            raise error
        elif len(own) > 1:  # one publish each, so that those for which there is room are stored
            for place in own:
                self.publish(destination, [messages[place]], [deliveries[place]])
        else:
            self._refuse(mine, error)

    def _accept(self, deliveries: Sequence[Pointer | None]) -> None:
        connection, link = self._connection, self.incoming
        settle = connection.engine.settle
        count = 0
        for delivery in deliveries:
            if delivery is not None:
                settle(delivery)
                count += 1
        link.unanswered -= count
        connection.answered(link)

    def _refuse(self, deliveries: Sequence[Pointer | None], error: PenstockError) -> None:
        """Reject each message with the reason; a sender that does not accept rejections loses its
        link."""
        connection, link = self._connection, self.incoming
        condition = (condition_of_attached if self._destination else condition_of)(error)
        description = description_of(error)
        self._realm.connections.refused(error, len(deliveries))
        for delivery in deliveries:
            if delivery is not None:
                if link.takes_rejections:
                    connection.engine.reject(delivery, condition, description)
                elif link.takes_releases:  # if not, the end of the link is all there is to say
                    connection.engine.settle(delivery, RELEASED)
                link.unanswered -= 1
        if not link.takes_rejections or any(delivery is None for delivery in deliveries):
            connection.end_link(link, condition, description)
        connection.answered(link)

    # --- anonymous relay -----------------------------------------------------------------

    def _relay(self, messages: Sequence[bytes], deliveries: Sequence[Pointer | None]) -> None:
        """Publish messages with their own addresses. Consecutive ones to one address are one
        publish."""
        run: list[int] = []
        to: LinkDestination | None = None

        def publish() -> None:
            if run and to is not None:
                self.publish(to, [messages[i] for i in run], [deliveries[i] for i in run])
                run.clear()

        for place, message in enumerate(messages):
            try:
                known = None if self._waiting else self._found(message)
            except PenstockError as error:
                self._refuse([deliveries[place]], error)
                continue
            if known is None:
                publish()
                self._wait(message, deliveries[place])
                continue
            if known != to:
                publish()
                to = known
            run.append(place)
        publish()

    def _found(self, message: bytes) -> LinkDestination | None:
        """The destination of a message; None: it has to be created first. Raises ``InvalidEvent``,
        ``NameDoesNotExist``."""
        return find_destination(
            self._realm,
            self._connection.principal,
            *parse_address(*addressed(message)),
            SEND_OPERATIONS,
        )

    def _wait(self, message: bytes, delivery: Pointer | None) -> None:
        """Let a message wait until its destination is created; later ones wait behind it."""
        self._waiting.append((message, delivery))
        if len(self._waiting) == 1:
            self._connection.spawn(self._make)

    async def _make(self) -> None:
        while self._waiting:
            message, delivery = self._waiting[0]
            try:
                to = await self.destination_of(message)
            except PenstockError as error:
                self._refuse([delivery], error)
            else:
                self.publish(to, [message], [delivery])
            self._waiting.popleft()

    async def destination_of(self, message: bytes) -> LinkDestination:
        """The destination of a message, created if it is missing. Raises ``PenstockError``."""
        if self._destination is not None:
            return self._destination
        return await resolve_destination(
            self._realm, self._connection.principal, *addressed(message), needs=SEND_OPERATIONS
        )

    # --- transactions --------------------------------------------------------------------

    def _take_in_transactions(
        self,
        messages: Sequence[bytes],
        deliveries: Sequence[Pointer | None],
        transactions: dict[int, bytes | None],
    ) -> None:
        for place, message in enumerate(messages):
            delivery = deliveries[place]
            if place in transactions:
                self._put(message, delivery, transactions[place])
            elif self._destination is not None:
                self.publish(self._destination, [message], [delivery])
            else:
                self._relay([message], [delivery])

    def _put(self, message: bytes, delivery: Pointer | None, name: bytes | None) -> None:
        connection, transactions = self._connection, self._connection.transactions
        if name is None or not transactions.is_declared(name):
            self._refuse(
                [delivery], NoSuchTransaction("this transaction is not open on this connection")
            )
            return
        try:
            if (to := self._destination or self._found(message)) is not None:
                self._require(to)
            transactions.add_message(name, self, message)
        except PenstockError as error:
            transactions.fail(name, error)
            self._refuse([delivery], error)
            return
        if delivery is not None:
            connection.engine.provisionally_accept(delivery, name)
            self.incoming.unanswered -= 1


def addressed(message: bytes) -> tuple[str, Kind | None]:
    """The address in a message, and the kind of destination. Raises ``InvalidEvent``."""
    try:
        sections = sections_of(message)
        values = fields(sections.properties)
        kind = entries(sections.message_annotations).get(_JMS_DESTINATION)
    except RemoteProtocolViolation as error:
        raise UnreadableMessage(str(error)) from None
    to = values[2] if len(values) > 2 else None
    if not isinstance(to, str):
        raise InvalidEvent("a message on an anonymous link must name its destination in `to`")
    return str(to), _JMS_KINDS.get(int(kind)) if isinstance(kind, Byte) else None
