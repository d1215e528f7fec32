"""Opens links: reads the terms of an attach, checks rights, and attaches the link to the realm."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace
from proton import Link, Terminus, symbol

from penstock_amqp.addresses import (
    BROWSE_OPERATIONS,
    READ_OPERATIONS,
    SEND_OPERATIONS,
    Kind,
    LinkDestination,
    durable_name_of,
    kind_in,
    resolve_destination,
    temporary_name,
)
from penstock_amqp.consumers import Consumer, ConsumerMode, ConsumerPeer
from penstock_amqp.kept import retain
from penstock_amqp.kept_messages import ConnectionKept, LinkRoom
from penstock_amqp.link_ends import IncomingLink, OutgoingLink
from penstock_amqp.link_registry import NamedLink
from penstock_amqp.link_terms import (
    ReceiverTerms,
    accepts_outcome,
    capabilities,
    check_dynamic,
    echo_terms,
    is_lookup,
    receiver_terms_of,
    set_node_properties,
)
from penstock_amqp.places import place_of
from penstock_amqp.producers import LinkProducer, ProducerPeer
from penstock_amqp.transactions import TransactionCoordinator
from penstock_core.api.durables import CreateDurable, DeleteDurable, DurableInfo
from penstock_core.api.operations import operation_on
from penstock_core.api.reading import WatchEvents
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Attach, Subscribe
from penstock_core.columns.selectors import Selector
from penstock_core.durable.queue import READERS
from penstock_core.vocabulary.errors import (
    DurableInUse,
    LimitReached,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest, FromLatest
from penstock_server.frontends.shared.parts import ConnectionPart
from penstock_server.runtime.access.quota import RequestPace
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.door import answer_to, execute_on, open_subscription
from penstock_server.runtime.subscriptions.realm_view import StoreView


class AttachingPeer(ConsumerPeer, ProducerPeer, Protocol):
    """The part of a connection that `Attaching` uses."""

    pace: RequestPace

    @property
    def transactions(self) -> TransactionCoordinator: ...

    @property
    def caller(self) -> Caller:
        """The signed-in user as caller of the realm's operations."""
        ...

    @property
    def kept_bytes(self) -> ConnectionKept:
        """The account of the bytes of messages that receivers have not settled."""
        ...

    def names_source(self, link: Link) -> bool:
        """Return True if the peer has sent a source, possibly without an address."""
        ...


class Attached:
    """A link of a connection, and the objects in the realm that depend on it."""

    def __init__(self, link: Link, steal: Callable[[Attached], None]) -> None:
        """``steal`` ends a link that is replaced by a newer one."""
        self.link = retain(link)
        self._steal = steal
        self.takes_events = bool(link.is_sender and not is_lookup(link))
        """Whether the peer receives events on the link, from a subscription or a queue."""
        self.is_closed = False
        """Whether the peer has closed the link, possibly before it was opened on this side."""
        self.is_lost = False
        """Whether the peer's connection has been lost."""
        self.is_ended = False
        """Whether the realm has ended the link, so that the peer's own detach needs no answer."""
        self.is_stolen = False
        """Whether a newer link of the same name has replaced the link."""
        self.is_detached_by_peer = False
        """Whether the peer has detached the link after the realm had ended it."""
        self.opened = asyncio.Event()
        """Set once the attempt to open the link has succeeded or failed."""
        self.released = asyncio.Event()
        """Set once all objects of the realm that depended on the link have ended."""
        self.older: NamedLink | None = None
        """The link of the same name that this link replaces."""
        self.producer: LinkProducer | None = None
        self.consumer: Consumer | None = None
        self.incoming: IncomingLink | None = None
        self.outgoing: OutgoingLink | None = None
        self.temporary: LinkDestination | None = None
        self.durable: tuple[ChannelId, str] | None = None
        """The durable that the link reads: channel and name."""
        self.ends_durable = False
        """Whether closing the link, not just detaching it, deletes the durable."""
        self.is_volatile = False
        """Whether the durable is deleted when its last client detaches."""

    def steal(self) -> None:
        """End the link, because a newer one replaces it (2.6.1)."""
        self._steal(self)

    async def wait_until_over(self) -> None:
        """Wait until everything that depended on the link has ended."""
        await self.opened.wait()
        await self.released.wait()


class Attaching(ConnectionPart[AttachingPeer]):
    """Opens the links of one connection."""

    def __init__(self, connection: AttachingPeer) -> None:
        super().__init__(connection)
        self._service = connection.service
        self._realm = connection.service.realm

    async def open(self, attached: Attached, *, links: int, receivers_before: int) -> None:
        """Open a link according to its terms. Raises ``PenstockError`` if it is refused.

        ``links`` is the number of links of the connection, including this one. ``receivers_before``
        is the number of links that receive events and were attached before it.
        """
        link = attached.link
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        links_max = self._service.limits.links_max
        if links > links_max:
            raise LimitReached(
                f"this connection has {links - 1} links, the maximum is {links_max}; close a link "
                "or open another connection"
            )
        if link.remote_target.type != Terminus.COORDINATOR:
            echo_terms(link.remote_target, link.target)
        if link.is_receiver or not is_lookup(link):
            echo_terms(link.remote_source, link.source)
        if link.is_receiver:
            await self._open_incoming(attached)
        else:
            await self._open_outgoing(attached, receivers_before)

    # --- links that receive messages -----------------------------------------------------

    async def _open_incoming(self, attached: Attached) -> None:
        """Open a link on which the peer sends messages, or controls transactions."""
        link, connection = attached.link, self._connection
        target = link.remote_target
        check_dynamic(target, "target")
        if link.source.type == Terminus.UNSPECIFIED and connection.names_source(link):
            # Proton treats a source without an address as absent; the peer expects it back.
            link.source.type = Terminus.SOURCE
        limit = self._realm.limits.event_bytes_max
        # The realm settles together with the answer, whatever mode the sender asks for (2.8.3).
        link.rcv_settle_mode = Link.RCV_FIRST
        credit_max = self._service.limits.credit
        # A client with a limited rate gets credit for at most one second.
        credit = min(credit_max, connection.pace.per_s or credit_max)
        incoming = IncomingLink(link, credit=credit, message_bytes_max=limit)
        incoming.takes_rejections = accepts_outcome(link.remote_source, "rejected")
        incoming.takes_releases = accepts_outcome(link.remote_source, "released")
        if target.type == Terminus.COORDINATOR:
            if attached.is_closed:
                return
            link.target.type = Terminus.COORDINATOR
            link.target.capabilities.put_object(symbol("amqp:local-transactions"))
            attached.incoming = incoming
            connection.transactions.coordinate(incoming)
            link.open()
            connection.engine.add_incoming(incoming)
            return
        destination: LinkDestination | None = None
        if target.dynamic:
            destination = attached.temporary = await self._create_temporary(capabilities(target))
        elif target.address:
            kind = kind_in(capabilities(target))
            principal = connection.principal
            destination = await resolve_destination(
                self._realm, principal, target.address, kind=kind, needs=SEND_OPERATIONS
            )
        producer = LinkProducer(connection, incoming, destination)
        producer.check()
        if attached.is_closed:
            return
        attached.producer, attached.incoming = producer, incoming
        self._service.links.add_producer(producer)
        if target.dynamic and destination is not None:
            link.target.address = destination.name
            link.target.dynamic = True
            set_node_properties(link.target)
        link.max_message_size = limit
        link.open()
        connection.engine.add_incoming(incoming)

    async def _create_temporary(self, requested: frozenset[str]) -> LinkDestination:
        """Create the destination of a dynamic terminus with the ``requested`` capabilities; a queue
        unless a topic is requested."""
        kind: Kind = (
            "channel" if "temporary-topic" in requested or "topic" in requested else "queue"
        )
        caller, name = self._connection.caller, temporary_name(kind)
        opened = await self._realm.reply_queues.make_temporary(
            self._realm.access,
            caller.principal,
            kind,
            name=name,
            session=caller.session,
            user=caller.owner,
        )
        return LinkDestination(opened.channel, name, kind, is_jms=opened.definition.engine == "jms")

    # --- links that send events ----------------------------------------------------------

    async def _open_outgoing(self, attached: Attached, receivers_before: int) -> None:
        """Open a link on which the peer receives events."""
        link, connection = attached.link, self._connection
        if is_lookup(link):
            self._look_up(attached)
            return
        source = link.remote_source
        check_dynamic(source, "source")
        # Only earlier links count: several links attached at the same time would otherwise all be
        # refused.
        self._service.listener.limits.each.check_subscriptions(receivers_before)
        terms = receiver_terms_of(source)
        selector = await self._selector_of(terms)
        if source.dynamic:
            destination = attached.temporary = await self._create_temporary(capabilities(source))
        else:
            kind = kind_in(capabilities(source))
            principal = connection.principal
            destination = await resolve_destination(
                self._realm,
                principal,
                source.address,
                kind=kind,
                needs=BROWSE_OPERATIONS if terms.copies else READ_OPERATIONS,
            )
        consumer = await self._open_consumer(attached, destination, terms, selector=selector)
        outgoing = OutgoingLink(link, settled=link.snd_settle_mode == Link.SND_SETTLED)
        if attached.is_closed:  # the peer has closed the link while it was being opened
            (consumer.lose if attached.is_lost or attached.is_stolen else consumer.end)()
            return
        attached.consumer, attached.outgoing = consumer, outgoing
        consumer.link = outgoing
        link.source.address = destination.name if source.dynamic else source.address
        link.source.dynamic = source.dynamic
        if source.dynamic:
            set_node_properties(link.source)
        if attached.durable is not None and not attached.is_volatile:
            # The owner of the durable states its lifetime, whatever the peer asked for (3.5.3,
            # 3.5.6).
            link.source.expiry_policy = Terminus.EXPIRE_NEVER
        link.open()
        connection.engine.add_outgoing(outgoing)
        consumer.flow()

    async def _selector_of(self, terms: ReceiverTerms) -> Selector | None:
        """Parse the selector of the terms. Raises ``InvalidSelector``."""
        choosing = self._realm.dispatch.choosing
        return await choosing.parse(terms.selector) if terms.selector else None

    async def _open_consumer(
        self,
        attached: Attached,
        destination: LinkDestination,
        terms: ReceiverTerms,
        selector: Selector | None,
    ) -> Consumer:
        """Create the consumer of a link, and attach it to a queue, a durable or a channel."""
        if destination.kind == "queue":
            return await self._open_queue_reader(destination, selector, terms)
        if terms.durable or terms.shared:
            return await self._open_durable_client(attached, destination, selector, terms=terms)
        return await self._open_subscriber(attached.link.name, destination, selector, terms=terms)

    async def _open_queue_reader(
        self, destination: LinkDestination, selector: Selector | None, terms: ReceiverTerms
    ) -> Consumer:
        """Open a consumer or, for terms with ``copies``, a browser of a queue."""
        connection, number = self._connection, destination.number
        request_type = WatchEvents if terms.copies else Attach
        mode = ConsumerMode(has_seat=not terms.copies, browse=terms.copies)
        consumer = self._make_consumer(destination, mode, selector, request_type=request_type)
        if terms.copies:
            watch = WatchEvents(number, FromEarliest(), 0)
            opened = await open_subscription(connection.caller, watch, consumer)
        else:
            attach = Attach(number, 0, READERS, pull=True)
            opened = await open_subscription(connection.caller, attach, consumer)
            consumer.reader = (number, READERS)
        consumer.subscription = opened.number
        return consumer

    async def _open_subscriber(
        self,
        link_name: str,
        destination: LinkDestination,
        selector: Selector | None,
        terms: ReceiverTerms,
    ) -> Consumer:
        """Open a subscription to a channel that ends with its link."""
        mode = ConsumerMode(has_seat=False)
        consumer = self._make_consumer(
            destination, mode, selector, request_type=Subscribe, no_local=terms.no_local
        )
        place = self._place_of(link_name) if destination.is_jms else ""
        # With the JMS engine, FromEarliest means now, or the position kept for a subscriber whose
        # connection was lost.
        start = FromEarliest() if destination.is_jms else FromLatest()
        subscribe = Subscribe(destination.number, 0, start, credit=0, confirms=bool(place))
        room = self._limit_resend_bytes(consumer)
        caller = self._connection.caller
        opened = await open_subscription(caller, subscribe, consumer, place=place, room=room)
        consumer.subscription = opened.number
        consumer.confirms = opened.confirms
        if place:
            self._service.places.take(destination.number, place, consumer)
        return consumer

    def _make_consumer(
        self,
        destination: LinkDestination,
        mode: ConsumerMode,
        selector: Selector | None,
        request_type: type[Request[Any]],
        *,
        no_local: bool = False,
    ) -> Consumer:
        """Create the consumer of a link. Raises ``AccessDenied``."""
        connection = self._connection
        connection.check_on(request_type, destination)
        number = destination.number
        consumer = Consumer(connection, number, mode, selector=selector, no_local=no_local)
        consumer.needs = (request_type, destination)
        return consumer

    def _limit_resend_bytes(self, consumer: Consumer) -> LinkRoom:
        """Limit the bytes that a consumer's link keeps to send them again."""
        room = LinkRoom(self._connection.kept_bytes, consumer.resume_delivery)
        consumer.kept.set_room(room)
        return room

    def _place_of(self, link_name: str) -> str:
        """Return the key that identifies a subscriber over several connections; empty without a
        container id."""
        connection = self._connection
        return place_of(connection.principal.user, connection.container, link_name)

    # --- durables ------------------------------------------------------------------------

    async def _open_durable_client(
        self,
        attached: Attached,
        destination: LinkDestination,
        selector: Selector | None,
        terms: ReceiverTerms,
    ) -> Consumer:
        """Open a client of a durable, which is created if it is missing."""
        connection, number = self._connection, destination.number
        name = self._durable_name_of(attached.link.name, terms)
        connection.check_on(Attach, destination)  # before the durable is created
        if not terms.durable:
            attached.is_volatile = True
        await self._ensure_durable(destination, name, terms)
        durable = self._store(number).durable(name)
        if durable is None:
            raise NameDoesNotExist(f"{destination.name} has no durable {name}")
        kind = durable.type
        # A durable of a type that stores the selector holds only matching events. With other types,
        # the events are filtered for each client.
        selector = None if kind.stores_selector else selector
        mode = ConsumerMode(has_seat=True, cumulative=kind.cumulative)
        consumer = self._make_consumer(
            destination, mode, selector, request_type=Attach, no_local=terms.no_local
        )
        attach = Attach(number, 0, name, pull=True)
        place = self._place_of(attached.link.name)
        room = self._limit_resend_bytes(consumer) if kind.cumulative else None
        opened = await open_subscription(
            connection.caller, attach, consumer, place=place, room=room
        )
        consumer.subscription = opened.number
        consumer.reader = (number, name)
        self._service.durables.note_terms(durable, terms.selector, no_local=terms.no_local)
        attached.durable = (number, name)
        attached.ends_durable = True
        return consumer

    def _durable_name_of(self, link_name: str, terms: ReceiverTerms) -> str:
        """Return the durable's name, which is the link's name up to ``|``: several links may belong
        to one subscription."""
        base = link_name.partition("|")[0]
        client = "" if terms.shared and terms.is_global else self._connection.container
        return durable_name_of(client, base, volatile=not terms.durable)

    async def _ensure_durable(
        self, destination: LinkDestination, name: str, terms: ReceiverTerms
    ) -> None:
        """Ensure that the durable exists with these terms. A durable with another selector or on
        another topic is replaced, because in JMS a changed subscription is a new one."""
        await self._delete_elsewhere(destination, name)
        number = destination.number
        durable = self._store(number).durable(name)
        if durable is not None:
            durables = self._service.durables
            if durables.has_terms(durable, terms.selector, no_local=terms.no_local):
                return
            if durable.is_attached:
                raise DurableInUse(
                    f"subscription {name} is in use with another selector; close its consumer first"
                )
            await self._delete(number, destination.name, name)
        kind = terms.kind or ("shared" if terms.shared else "exclusive")
        stores_selector = self._realm.view.stores_selector(kind)
        connection = self._connection
        selector = terms.selector if stores_selector else ""
        create = CreateDurable(number, name, kind, start=FromLatest(), selector=selector)
        with contextlib.suppress(NameAlreadyBound):
            if terms.durable:
                await self._execute(create, destination.name, name)
                return
            # The right to subscribe to a topic includes a subscription that ends with its last
            # reader, so the right to create durables is not required.
            connection.check_on(Subscribe, destination)
            await answer_to(connection.caller, replace(create, persistent=False))

    async def _execute(
        self, request: CreateDurable | DeleteDurable, channel: str, name: str
    ) -> DurableInfo | None:
        """Execute an operation on a durable of a channel with the rights of the peer."""
        target = f"{channel} {name}"
        return await execute_on(
            self._connection.caller,
            "channel",
            channel,
            request_type=type(request),
            request_of=lambda _: request,
            target=target,
        )

    async def _delete_elsewhere(self, destination: LinkDestination, name: str) -> None:
        """Delete the client's subscription of this name on other topics. Raises ``DurableInUse`` if
        it has consumers."""
        if ":" not in name:
            return  # without a client id, a durable of this name on another topic is unrelated
        for store, durable in self._realm.view.with_durable(name):
            if store.number == destination.number:
                continue
            if durable.is_attached:
                raise DurableInUse(
                    f"subscription {name} is in use on {store.name}; close its consumer first"
                )
            await self._delete(store.number, store.name, name)

    async def _delete(self, number: ChannelId, channel: str, name: str) -> None:
        await self._execute(DeleteDurable(number, name), channel, name)

    def _look_up(self, attached: Attached) -> None:
        """Open a link that names a subscription but no address; its only purpose is to end the
        subscription."""
        link = attached.link
        base, _, suffix = link.name.partition("|")
        terms = ReceiverTerms(shared=True, is_global="global" in suffix, durable=True)
        name = self._durable_name_of(base, terms)
        needed = operation_on(Attach, "channel")
        for store, _ in self._realm.view.with_durable(name):
            if not self._connection.caller.allows(needed, store.name):
                continue  # must look like a missing one to a client without the right
            attached.durable = (store.number, name)
            attached.ends_durable = True
            link.source.address = store.name
            link.source.durability = Terminus.DELIVERIES
            link.source.expiry_policy = Terminus.EXPIRE_NEVER
            link.source.distribution_mode = Terminus.DIST_MODE_COPY
            link.source.capabilities.put_object(symbol("topic"))
            attached.outgoing = OutgoingLink(link, settled=False)
            link.open()
            self._connection.engine.add_outgoing(attached.outgoing)
            if attached.outgoing.is_draining:
                self._connection.engine.answer_drain(attached.outgoing)
            return
        raise NameDoesNotExist(f"subscription {base} does not exist")

    async def end_durable(self, attached: Attached, *, closed: bool) -> None:
        """Delete the link's durable if required: closing the link deletes it, detaching does not; a
        volatile one is deleted with its last client."""
        if attached.durable is None:
            return
        number, name = attached.durable
        store = self._realm.view.store(number)
        durable = None if store is None else store.durable(name)
        if store is None or durable is None or durable.is_attached:
            if closed and durable is not None and not attached.is_volatile:
                raise DurableInUse(f"subscription {name} has consumers; close them first")
            return
        if attached.is_volatile:
            await answer_to(self._connection.caller, DeleteDurable(number, name))
        elif closed and attached.ends_durable:
            await self._delete(number, store.name, name)

    def _store(self, number: ChannelId) -> StoreView:
        store = self._realm.view.store(number)
        if store is None:
            raise NameDoesNotExist("the topic has been deleted")
        return store
