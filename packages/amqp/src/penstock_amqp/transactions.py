"""The transactions of one connection: messages and outcomes are collected until the discharge."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, field

from penstock_amqp.addresses import LinkDestination
from penstock_amqp.conditions import (
    DECODE,
    NOT_ALLOWED,
    ROLLED_BACK,
    UNKNOWN_TRANSACTION,
    condition_of,
    description_of,
)
from penstock_amqp.consumers import Consumer
from penstock_amqp.link_ends import IncomingLink
from penstock_amqp.outcomes import RELEASED, Outcome, Pointer
from penstock_amqp.peer import AmqpPeer
from penstock_amqp.producers import LinkProducer
from penstock_amqp.wire.performatives import DECLARE, DISCHARGE, Unfit, check_fields
from penstock_amqp.wire.sections import VALUE, sections_of
from penstock_amqp.wire.types import Described, read
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import LimitReached, PenstockError, RemoteProtocolViolation
from penstock_server.frontends.shared.buffers import HeldBytes
from penstock_server.frontends.shared.parts import ConnectionPart
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.writer.unit_of_work import Acknowledged

_DECLARE: Final = (0x31, "amqp:declare:list")
_DISCHARGE: Final = (0x32, "amqp:discharge:list")

_MESSAGE_OVERHEAD_BYTES: Final = 256
"""Maximum overhead in bytes of a message in a transaction."""

_log = logger("penstock.amqp")


class DeclaredTransaction(Struct):
    """An open transaction."""

    coordinator: IncomingLink
    """The link that declared the transaction; the transaction ends with it."""
    messages: list[tuple[LinkProducer, bytes]] = field(default_factory=list)
    """Messages to publish, in order."""
    settled: list[tuple[Consumer, Outcome]] = field(default_factory=list)
    """Outcomes of deliveries to apply, in order."""
    size: int = 0
    """Bytes of the messages with their overhead."""
    failure: PenstockError | None = None
    """Error that prevents the commit."""


class TransactionCoordinator(ConnectionPart[AmqpPeer]):
    """The transactions of one connection."""

    def __init__(self, connection: AmqpPeer) -> None:
        super().__init__(connection)
        self._realm = connection.service.realm
        self._limits = connection.service.limits
        self._open: dict[bytes, DeclaredTransaction] = {}
        self._size = 0
        """Bytes of the messages in all open transactions."""
        self._held_bytes: HeldBytes | None = None
        """The bytes counted for all connections of the user, once there are any."""
        self._coordinators: dict[IncomingLink, None] = {}
        """Links that may declare and discharge transactions."""

    # --- contents of a transaction -------------------------------------------------------

    def is_declared(self, name: bytes) -> bool:
        """Return True if a transaction with this id is open."""
        return name in self._open

    def add_message(self, name: bytes, producer: LinkProducer, message: bytes) -> None:
        """Add a message to an open transaction. Raises ``LimitReached``."""
        transaction, bytes_max = self._open[name], self._limits.transaction_bytes_max
        size = len(message) + _MESSAGE_OVERHEAD_BYTES
        if self._size + size > bytes_max:
            raise LimitReached(
                f"the open transactions of this connection have {self._size} bytes, and a message "
                f"of {size} more exceeds the limit of {bytes_max}; commit more often"
            )
        if self._held_bytes is None:  # the user is known by now
            self._held_bytes = self._connection.service.transaction_bytes.open(
                self._connection.principal
            )
        if not self._held_bytes.fits(self._size + size):
            raise LimitReached(
                f"the open transactions of all connections of this user have too many bytes for a "
                f"message of {size} more; a user may have half of what other users leave of "
                f"{2 * bytes_max}: commit more often"
            )
        transaction.messages.append((producer, message))
        transaction.size += size
        self._size += size

    def _release(self, size: int) -> None:
        """Count ``size`` bytes less, because transactions have ended."""
        self._size -= size
        if self._held_bytes is not None:
            self._held_bytes.close()
            self._held_bytes.grow(self._size)

    def fail(self, name: bytes, error: PenstockError) -> None:
        """Make an open transaction fail at its discharge, because one of its messages was refused.
        The first error is reported."""
        transaction = self._open[name]
        transaction.failure = transaction.failure or error

    def add_outcome(self, name: bytes, consumer: Consumer, outcome: Outcome) -> None:
        """Add the outcome of a delivery to a transaction."""
        transaction = self._open.get(name)
        if transaction is None:  # it has ended; the end of the link gives the event back
            if consumer.link is not None:
                text = "a delivery was settled in a transaction that is not open here"
                self._connection.end_link(consumer.link, UNKNOWN_TRANSACTION, text)
            return
        transaction.settled.append((consumer, outcome))
        link = consumer.link
        assert link is not None, "outcomes arrive on a link"
        self._connection.engine.forget(link, outcome.delivery)

    # --- the coordinator -----------------------------------------------------------------

    def coordinate(self, link: IncomingLink) -> None:
        """Allow a link to declare and discharge transactions."""
        self._coordinators[link] = None

    def is_coordinator(self, link: IncomingLink) -> bool:
        """Return True if a link may declare and discharge transactions."""
        return link in self._coordinators

    def process_requests(self, link: IncomingLink) -> None:
        """Process the requests that a link has received: to declare and to discharge
        transactions."""
        messages, link.messages = link.messages, []
        deliveries, link.deliveries = link.deliveries, []
        link.transactions.clear()
        for message, delivery in zip(messages, deliveries, strict=True):
            if delivery is None:
                self._connection.end_link(
                    link, NOT_ALLOWED, "a request to the coordinator must not be sent settled"
                )
                return
            try:
                self._handle_request(link, message, delivery)
            except (RemoteProtocolViolation, UnicodeError) as error:
                self._refuse_request(link, delivery, DECODE, description=str(error))
            except Unfit as error:
                self._refuse_request(link, delivery, error.condition, description=str(error))
            except PenstockError as error:
                self._realm.connections.count_error(error)
                self._refuse_request(
                    link, delivery, condition_of(error), description=description_of(error)
                )
        self._connection.engine.refill(link)

    def _handle_request(self, link: IncomingLink, message: bytes, delivery: Pointer) -> None:
        """Execute a declare or discharge. Raises ``RemoteProtocolViolation`` for other messages."""
        body = sections_of(message).body
        request = read(body[0][1])[0] if body and body[0][0] == VALUE else None
        if not isinstance(request, Described) or not isinstance(request.value, list):
            raise RemoteProtocolViolation("a coordinator accepts only declare and discharge")
        if request.descriptor in _DECLARE:
            check_fields(DECLARE, request.value)
            self._declare(link, delivery, request.value)
        elif request.descriptor in _DISCHARGE:
            check_fields(DISCHARGE, request.value)
            fails = len(request.value) > 1 and request.value[1] is True
            self._discharge(link, delivery, request.value[0], fails=fails)
        else:
            raise RemoteProtocolViolation("a coordinator accepts only declare and discharge")

    def _declare(self, link: IncomingLink, delivery: Pointer, values: list[Any]) -> None:
        """Open a transaction, and answer its id. Raises ``LimitReached``."""
        transactions_max = self._limits.transactions_max
        if values and values[0] is not None:
            self._refuse_request(
                link,
                delivery,
                "amqp:not-implemented",
                description="global transactions are not supported",
            )
            return
        if len(self._open) >= transactions_max:
            raise LimitReached(
                f"this connection has {transactions_max} open transactions, the maximum; discharge "
                "one first"
            )
        name = secrets.token_bytes(16)
        self._open[name] = DeclaredTransaction(link)
        self._connection.engine.answer_declare(delivery, name)
        link.unanswered -= 1

    def _discharge(self, link: IncomingLink, delivery: Pointer, name: Any, *, fails: bool) -> None:
        """Commit a transaction, or roll it back if the client says that it ``fails``."""
        transaction = self._open.pop(name, None) if isinstance(name, bytes) else None
        if transaction is None:
            self._refuse_request(
                link,
                delivery,
                UNKNOWN_TRANSACTION,
                description="the transaction is not open on this connection",
            )
            return
        self._release(transaction.size)
        if fails:
            self._roll_back(transaction)
            self._accept_request(link, delivery)
        elif transaction.failure is not None:
            self._roll_back(transaction)
            self._realm.connections.count_error(transaction.failure)
            self._refuse_request(
                link, delivery, ROLLED_BACK, description=description_of(transaction.failure)
            )
        else:
            self._connection.spawn(self._commit, link, delivery, transaction=transaction)

    async def _commit(
        self, link: IncomingLink, delivery: Pointer, transaction: DeclaredTransaction
    ) -> None:
        """Publish the messages and acknowledge the events of a transaction in one step, then answer
        the discharge. A refused transaction is rolled back."""
        realm = self._realm
        try:
            publishes = await self._build_publishes(transaction)
            accepted = self._accepted_by_consumer(transaction)
            await realm.transactions.publish_and_acknowledge(
                publishes,
                [
                    acknowledgement
                    for _, _, acknowledgement in accepted
                    if acknowledgement is not None
                ],
                self._connection.publisher,
            )
        except PenstockError as error:
            self._roll_back(transaction)
            realm.connections.count_error(error)
            self._refuse_request(link, delivery, ROLLED_BACK, description=description_of(error))
        else:
            # The realm has stored the commit; only bookkeeping follows.
            for consumer, ids, acknowledgement in accepted:
                consumer.record_consumed(ids, acknowledgement)
            self._settle_others(transaction)
            self._accept_request(link, delivery)

    async def _build_publishes(
        self, transaction: DeclaredTransaction
    ) -> list[tuple[int, Sequence[Body]]]:
        """Return the events to publish, grouped by channel. Raises ``InvalidEvent``,
        ``EventTooLarge``, ``AccessDenied``."""
        by_channel_id: dict[int, tuple[LinkProducer, LinkDestination, list[bytes]]] = {}
        for producer, message in transaction.messages:
            destination = await producer.destination_of(message)
            by_channel_id.setdefault(destination.number, (producer, destination, []))[2].append(
                message
            )
        publishes: list[tuple[int, Sequence[Body]]] = []
        for producer, destination, messages in by_channel_id.values():
            bodies = producer.convert(destination, messages)
            self._realm.digest(bodies)
            publishes.append((destination.number, bodies))
        return publishes

    def _accepted_by_consumer(
        self, transaction: DeclaredTransaction
    ) -> list[tuple[Consumer, list[int], Acknowledged | None]]:
        """Return the events accepted by each consumer, with the acknowledgement for the realm."""
        accepted: dict[Consumer, list[int]] = {}
        for consumer, outcome in transaction.settled:
            if consumer.consumes(outcome):
                accepted.setdefault(consumer, []).append(outcome.event_id)
        return [
            (consumer, ids, consumer.acknowledgement_for(ids)) for consumer, ids in accepted.items()
        ]

    def _settle_others(self, transaction: DeclaredTransaction) -> None:
        """Apply the other outcomes: returned and rejected events."""
        for consumer, outcome in transaction.settled:
            if not consumer.consumes(outcome) and not consumer.is_over:
                consumer.apply(outcome)

    def _roll_back(self, transaction: DeclaredTransaction) -> None:
        """Drop the messages of a transaction, and give back the events that it has settled."""
        ids_by_consumer: dict[Consumer, list[int]] = {}
        for consumer, outcome in transaction.settled:
            ids_by_consumer.setdefault(consumer, []).append(outcome.event_id)
        for consumer, ids in ids_by_consumer.items():
            if not consumer.is_over:
                consumer.give_back(ids, counted=True)

    def _accept_request(self, link: IncomingLink, delivery: Pointer) -> None:
        self._connection.engine.settle(delivery)
        link.unanswered -= 1
        self._connection.free_if_answered(link)

    def _refuse_request(
        self, link: IncomingLink, delivery: Pointer, condition: str, description: str
    ) -> None:
        """Refuse a request to the coordinator."""
        if link.takes_rejections:
            self._connection.engine.reject(delivery, condition, description)
        else:  # required by the standard for senders that do not accept rejections (4.3)
            if link.takes_releases:
                self._connection.engine.settle(delivery, RELEASED)
            self._connection.end_link(link, condition, description)
        link.unanswered -= 1
        self._connection.free_if_answered(link)

    # --- ends ----------------------------------------------------------------------------

    def coordinator_ended(self, link: IncomingLink) -> None:
        """Roll back the transactions that a coordinator link has declared, because the link has
        ended."""
        self._coordinators.pop(link, None)
        names = [
            name for name, transaction in self._open.items() if transaction.coordinator is link
        ]
        for transaction in [self._open.pop(name) for name in names]:
            self._release(transaction.size)
            self._roll_back(transaction)

    def end(self) -> None:
        """Roll back all open transactions."""
        transactions, self._open = self._open, {}
        self._release(self._size)
        for transaction in transactions.values():
            self._roll_back(transaction)
