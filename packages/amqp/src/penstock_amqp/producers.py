"""Links that receive messages for one channel or queue, or for the address in each message."""

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
"""Message annotation of JMS clients with the kind of the destination."""
_JMS_KINDS: Final[dict[int, Kind]] = {0: "queue", 1: "channel", 2: "queue", 3: "channel"}
"""Kinds of destinations by the annotation's value; 2 and 3 are temporary ones."""


class ProducerTransactions(Protocol):
    """The part of a transaction coordinator that producers use."""

    def is_declared(self, name: bytes) -> bool:
        """Return True if a transaction with this id is open."""
        ...

    def add_message(self, name: bytes, producer: LinkProducer, message: bytes) -> None:
        """Add a message to an open transaction. Raises ``LimitReached``."""
        ...

    def fail(self, name: bytes, error: PenstockError) -> None:
        """Make an open transaction fail at its discharge, because one of its messages was
        refused."""
        ...


class ProducerPeer(AmqpPeer, Protocol):
    """The part of a connection that producers use."""

    principal: Principal
    in_flight_bytes: int
    """Bytes of messages that are not yet stored."""

    @property
    def is_congested(self) -> bool:
        """Whether senders get no credit for now."""
        ...

    @property
    def transactions(self) -> ProducerTransactions: ...

    def check_on(self, request_type: type[Request[Any]], destination: LinkDestination) -> None:
        """Raise ``AccessDenied`` unless the user has the right to this request on a destination."""
        ...


class LinkProducer:
    """A link that receives messages and publishes them."""

    def __init__(
        self,
        connection: ProducerPeer,
        incoming: IncomingLink,
        destination: LinkDestination | None,
    ) -> None:
        """Without a destination the link is an anonymous relay: each message names its own."""
        self._connection = connection
        self._listener = connection.service.listener
        self._realm = connection.service.realm
        self._destination = destination
        self._version = -1
        """Version of the rights that `_allowed` was made with."""
        self._allowed: set[int] = set()
        """Destinations that the user may publish to."""
        self._waiting: deque[tuple[bytes, Pointer | None]] = deque()
        """Messages of an anonymous relay that wait for the creation of a destination."""
        self._single_messages = SingleMessages()
        self.incoming = incoming

    @property
    def name(self) -> str:
        """Name of the destination; empty if each message names its own."""
        return self._destination.name if self._destination else ""

    @property
    def number(self) -> int | None:
        """Id of the destination; None if each message names its own."""
        return self._destination.number if self._destination else None

    def deleted(self) -> None:
        """End the link, because its destination was deleted."""
        with self._connection.containing:
            self._connection.end_link(self.incoming, DELETED, f"{self.name} was deleted")

    def check(self) -> None:
        """Raise ``AccessDenied`` or ``NameDoesNotExist`` if the link can no longer publish."""
        if self._destination is not None:
            self._require(self._destination)

    def _require(self, destination: LinkDestination) -> None:
        """Raise ``AccessDenied`` or ``NameDoesNotExist`` unless the user may publish to a
        destination."""
        access = self._realm.access
        if self._version != access.version:
            self._version = access.version
            self._allowed.clear()
        if not self._realm.view.has(destination.number):
            raise NameDoesNotExist(f"{destination.name} no longer exists")
        if destination.number not in self._allowed:
            self._connection.check_on(PublishEvents, destination)
            self._allowed.add(destination.number)

    # --- publishing ----------------------------------------------------------------------

    def publish_received(self) -> None:
        """Publish the messages that the link has received, and give the sender new credit."""
        link = self.incoming
        messages, link.messages = link.messages, []
        deliveries, link.deliveries = link.deliveries, []
        transactions, link.transactions = link.transactions, {}
        if transactions:
            self._add_to_transactions(messages, deliveries, transactions)
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
        """Store messages, and answer each after it is stored."""
        try:
            self._require(destination)
            bodies = self.bodies(destination, messages, deliveries)
        except PenstockError as error:
            self._refuse(deliveries, error)
            return
        for body, indexes in bodies:
            self._submit(destination, body, messages, deliveries, indexes)

    def bodies(
        self,
        destination: LinkDestination,
        messages: Sequence[bytes],
        deliveries: Sequence[Pointer | None],
    ) -> list[tuple[Body, Sequence[int]]]:
        """Convert messages to events. Each body has the indexes of its messages; messages that
        cannot become events are refused."""
        container = self._connection.container if destination.is_jms else ""
        now_ms = self._realm.clock.now_us() // 1_000
        if len(messages) == 1 and (
            body := self._single_messages.body(messages[0], now_ms, container)
        ):
            return [(body, (0,))]
        batches, unusable = batches_of(messages, now_ms, container)
        for failure in unusable:
            self._refuse([deliveries[failure.index]], failure.error)
        return [(body_from(batch), indexes) for batch, indexes in batches]

    def convert(self, destination: LinkDestination, messages: Sequence[bytes]) -> list[Body]:
        """Convert messages to events, all or none. Raises ``InvalidEvent``, ``AccessDenied``."""
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
        indexes: Sequence[int],
    ) -> None:
        """Publish a body, and answer its messages once it is stored or refused."""
        connection, listener, size = self._connection, self._listener, body.weight

        def reply(_: Any, error: BaseException | None) -> None:
            listener.pending_bytes -= size
            connection.in_flight_bytes -= size
            with connection.containing:
                self._answer(destination, error, messages, deliveries, indexes)

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
        indexes: Sequence[int],
    ) -> None:
        """Answer the messages of a body that was stored, or refused with ``error``."""
        answered = [deliveries[index] for index in indexes]
        if error is None:
            self._accept(answered)
        elif not isinstance(error, PenstockError):
            raise error
        elif len(indexes) > 1:  # publish one by one: some messages may fit the capacity
            for index in indexes:
                self.publish(destination, [messages[index]], [deliveries[index]])
        else:
            self._refuse(answered, error)

    def _accept(self, deliveries: Sequence[Pointer | None]) -> None:
        connection, link = self._connection, self.incoming
        settle = connection.engine.settle
        count = 0
        for delivery in deliveries:
            if delivery is not None:
                settle(delivery)
                count += 1
        link.unanswered -= count
        connection.free_if_answered(link)

    def _refuse(self, deliveries: Sequence[Pointer | None], error: PenstockError) -> None:
        """Reject messages with a reason. The link ends if its sender does not accept rejections."""
        connection, link = self._connection, self.incoming
        condition = (condition_of_attached if self._destination else condition_of)(error)
        description = description_of(error)
        self._realm.connections.count_error(error, len(deliveries))
        for delivery in deliveries:
            if delivery is not None:
                if link.takes_rejections:
                    connection.engine.reject(delivery, condition, description)
                elif link.takes_releases:  # otherwise only the end of the link reports the error
                    connection.engine.settle(delivery, RELEASED)
                link.unanswered -= 1
        if not link.takes_rejections or any(delivery is None for delivery in deliveries):
            connection.end_link(link, condition, description)
        connection.free_if_answered(link)

    # --- anonymous relay -----------------------------------------------------------------

    def _relay(self, messages: Sequence[bytes], deliveries: Sequence[Pointer | None]) -> None:
        """Publish messages to the addresses in them. Consecutive messages with the same address are
        published together."""
        same_address: list[int] = []
        current: LinkDestination | None = None

        def publish() -> None:
            if same_address and current is not None:
                self.publish(
                    current,
                    [messages[i] for i in same_address],
                    [deliveries[i] for i in same_address],
                )
                same_address.clear()

        for index, message in enumerate(messages):
            try:
                # While a message waits for its destination, later ones queue behind it.
                destination = None if self._waiting else self._existing_destination(message)
            except PenstockError as error:
                self._refuse([deliveries[index]], error)
                continue
            if destination is None:
                publish()
                self._queue(message, deliveries[index])
                continue
            if destination != current:
                publish()
                current = destination
            same_address.append(index)
        publish()

    def _existing_destination(self, message: bytes) -> LinkDestination | None:
        """Return the destination of a message; None if it does not exist yet. Raises
        ``InvalidEvent``, ``NameDoesNotExist``."""
        return find_destination(
            self._realm,
            self._connection.principal,
            *parse_address(*address_in(message)),
            SEND_OPERATIONS,
        )

    def _queue(self, message: bytes, delivery: Pointer | None) -> None:
        """Queue a message until its destination is created. Later messages queue behind it, so the
        order is kept."""
        self._waiting.append((message, delivery))
        if len(self._waiting) == 1:
            self._connection.spawn(self._create_destinations)

    async def _create_destinations(self) -> None:
        """Publish the queued messages in order, and create their destinations."""
        while self._waiting:
            message, delivery = self._waiting[0]
            try:
                destination = await self.destination_of(message)
            except PenstockError as error:
                self._refuse([delivery], error)
            else:
                self.publish(destination, [message], [delivery])
            # Removed last: a queued message keeps later ones from overtaking it.
            self._waiting.popleft()

    async def destination_of(self, message: bytes) -> LinkDestination:
        """Return the destination of a message, which is created if missing. Raises
        ``PenstockError``."""
        if self._destination is not None:
            return self._destination
        return await resolve_destination(
            self._realm, self._connection.principal, *address_in(message), needs=SEND_OPERATIONS
        )

    # --- transactions --------------------------------------------------------------------

    def _add_to_transactions(
        self,
        messages: Sequence[bytes],
        deliveries: Sequence[Pointer | None],
        transactions: dict[int, bytes | None],
    ) -> None:
        """Add messages to their transactions, and publish the others. ``transactions`` has the id
        of each message that belongs to one, by index."""
        for index, message in enumerate(messages):
            delivery = deliveries[index]
            if index in transactions:
                self._add_to_transaction(message, delivery, transactions[index])
            elif self._destination is not None:
                self.publish(self._destination, [message], [delivery])
            else:
                self._relay([message], [delivery])

    def _add_to_transaction(
        self, message: bytes, delivery: Pointer | None, name: bytes | None
    ) -> None:
        connection, transactions = self._connection, self._connection.transactions
        if name is None or not transactions.is_declared(name):
            self._refuse(
                [delivery],
                NoSuchTransaction(
                    "the transaction of the message is not open on this connection; declare it here"
                ),
            )
            return
        try:
            if (
                destination := self._destination or self._existing_destination(message)
            ) is not None:
                self._require(destination)
            transactions.add_message(name, self, message)
        except PenstockError as error:
            transactions.fail(name, error)
            self._refuse([delivery], error)
            return
        if delivery is not None:
            connection.engine.provisionally_accept(delivery, name)
            self.incoming.unanswered -= 1


def address_in(message: bytes) -> tuple[str, Kind | None]:
    """Return the address in a message and the kind of destination. Raises ``InvalidEvent``."""
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
