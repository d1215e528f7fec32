"""The links of one connection: attach, detach, and the end of links with their session or
connection."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from proton import Condition, Endpoint, Link, Session

from penstock_amqp.addresses import delete_temporary
from penstock_amqp.attaching import Attached, Attaching, AttachingPeer
from penstock_amqp.conditions import (
    STOLEN,
    TOO_MANY,
    condition_of,
    condition_of_attached,
    description_of,
)
from penstock_amqp.engine import refuse
from penstock_amqp.link_ends import IncomingLink, OutgoingLink
from penstock_amqp.link_registry import LinkName
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.frontends.shared.parts import ConnectionPart

_log = logger("penstock.amqp")


class LinksPeer(AttachingPeer, Protocol):
    """The part of a connection that its links use."""

    number: int
    is_open: bool
    """Whether the peer has opened the connection, and neither side has closed it."""


class Links(ConnectionPart[LinksPeer]):
    """The links of one connection."""

    def __init__(self, connection: LinksPeer) -> None:
        super().__init__(connection)
        self._service = connection.service
        self._realm = connection.service.realm
        self._engine = connection.engine
        self._attaching = Attaching(connection)
        self._links: dict[int, Attached] = {}
        self.former_released: asyncio.Event | None = None
        """The :attr:`released` of the connection that was closed for this one: links are opened
        here only after it is set. None if no wait is needed."""
        self.released = asyncio.Event()
        """Set once the connection has ended and its links have given all events back."""
        self._awaiting_detach: dict[int, Attached] = {}
        """Links that the realm has ended, until the peer detaches them."""
        self._links_ended: dict[int, asyncio.Event] = {}
        """Sessions that the realm has ended, by hash, each with the asyncio.Event that is set once
        its links have ended."""

    def __len__(self) -> int:
        return len(self._links)

    @property
    def consumers(self) -> int:
        """Number of links with a consumer."""
        return sum(attached.consumer is not None for attached in self._links.values())

    @property
    def take_messages(self) -> bool:
        """Whether the peer may send messages on one of the links."""
        return any(attached.link.is_receiver for attached in self._links.values())

    def _receivers_before(self, attached: Attached) -> int:
        """Return the number of links that send events and were attached before this one."""
        count = 0
        for candidate in self._links.values():
            if candidate is attached:
                break
            count += candidate.takes_events
        return count

    def attached_of(self, link: IncomingLink | OutgoingLink) -> Attached | None:
        """Return the attached link of an engine's link; None if it is over."""
        return self._links.get(_key(link.link))

    def refill(self) -> None:
        """Give new credit to senders that had to wait."""
        for attached in self._links.values():
            if attached.incoming is not None:
                self._engine.refill(attached.incoming)

    def check_rights(self) -> None:
        """End the links that the user no longer has the right to."""
        for attached in list(self._links.values()):
            try:
                if attached.producer is not None:
                    attached.producer.check()
                elif attached.consumer is not None and attached.consumer.needs is not None:
                    self._connection.check_on(*attached.consumer.needs)
            except PenstockError as error:
                link = attached.incoming or attached.outgoing
                if link is not None:
                    self._realm.connections.count_error(error)
                    self.end(link, condition_of_attached(error), description_of(error))

    # --- attach and detach ---------------------------------------------------------------

    def attach(self, link: Link) -> None:
        """Open a link that the peer has attached."""
        if not self._connection.is_open:
            return
        self._connection.pace.count(1)
        # Registered before it is opened: a second attach of the name must find and replace it.
        attached = self._links[_key(link)] = Attached(link, self.steal)
        attached.older = self._service.links.add(self._name_of(attached), attached)
        self._connection.spawn(self._open_link, attached)

    async def _open_link(self, attached: Attached) -> None:
        """Open a registered link after the links that it replaces have ended; refuse it with the
        reason if that fails."""
        try:
            await self._wait_for_older(attached)
            if not attached.is_closed:
                receivers_before = self._receivers_before(attached) if attached.takes_events else 0
                await self._attaching.open(
                    attached, links=len(self), receivers_before=receivers_before
                )
        except PenstockError as error:
            await self._remove_temporary(attached)
            is_uninit = attached.link.state & Endpoint.LOCAL_UNINIT
            if self._connection.is_open and is_uninit and not attached.is_closed:
                self._realm.connections.count_error(error)
                refuse(attached.link, condition_of(error), description_of(error))
            self._pop(attached)
            attached.released.set()
        finally:
            attached.opened.set()
        if attached.is_closed or not self._connection.is_open:
            await self._remove_temporary(attached)
        self._connection.flush_soon()

    async def _wait_for_older(self, attached: Attached) -> None:
        """Wait until the replaced link or connection has given everything back."""
        if self.former_released is not None:
            await self.former_released.wait()
            self.former_released = None
        older, attached.older = attached.older, None
        if older is not None:
            await older.wait_until_over()

    def _pop(self, attached: Attached) -> bool:
        """Remove a link. Return False if it had already been removed."""
        self._service.links.remove(self._name_of(attached), attached)
        return self._links.pop(_key(attached.link), None) is not None

    def _name_of(self, attached: Attached) -> LinkName:
        connection, link = self._connection, attached.link
        container = connection.container or connection.number
        return connection.principal.user, container, link.name, link.is_sender

    def detach(self, link: Link, *, closed: bool) -> None:
        """Process the peer's detach of a link. ``closed`` ends the link for good, so that its
        durable may be deleted."""
        attached = self._links.get(_key(link))
        if attached is not None and attached.is_ended:
            attached.is_detached_by_peer = True
        elif attached is not None:
            attached.is_closed = True
            self._connection.spawn(self._detach_link, attached, closed=closed)
        elif (ended := self._awaiting_detach.pop(_key(link), None)) is not None:
            self._free(ended)
        elif link.state & Endpoint.LOCAL_ACTIVE:
            link.close()
        elif link.state & Endpoint.LOCAL_CLOSED:
            link.free()

    async def _detach_link(self, attached: Attached, *, closed: bool) -> None:
        """Detach a link after everything that it held in the realm has been given back."""
        link = attached.link
        error = await self._release_link(attached, closed=closed)
        if not self._pop(attached) and self._awaiting_detach.pop(_key(link), None) is None:
            return  # its session or connection has ended during the wait
        if error is not None:
            self._realm.connections.count_error(error)
            link.condition = Condition(condition_of(error), description_of(error))
        if self._connection.is_open and not link.state & Endpoint.LOCAL_CLOSED:
            if link.state & Endpoint.LOCAL_UNINIT:
                link.open()
            if closed:
                link.close()
            else:
                link.detach()
        self._free(attached)
        self._connection.flush_soon()

    async def _release_link(self, attached: Attached, *, closed: bool) -> PenstockError | None:
        """Give back everything that the link held in the realm. Return the error if that fails."""
        try:
            return await self._release_all(attached, closed=closed)
        finally:
            attached.released.set()

    async def _release_all(self, attached: Attached, *, closed: bool) -> PenstockError | None:
        # The engine first, so that nothing more is sent or received while the realm is waited for.
        for link_end in (attached.incoming, attached.outgoing):
            if link_end is not None:
                self._engine.drop(link_end)
        if attached.producer is not None:
            self._service.links.remove_producer(attached.producer)
        if attached.incoming is not None and self._connection.transactions.is_coordinator(
            attached.incoming
        ):
            self._connection.transactions.coordinator_ended(attached.incoming)
        try:
            if attached.consumer is not None:
                await self._end_consumer(attached)
            await self._attaching.end_durable(attached, closed=closed)
            await self._remove_temporary(attached)
        except PenstockError as error:
            return error
        return None

    async def _end_consumer(self, attached: Attached) -> None:
        """End the consumer of a link, and wait until its events have been given back."""
        consumer = attached.consumer
        assert consumer is not None, "the caller has checked it"
        if attached.is_stolen and not consumer.mode.has_seat:
            consumer.lose()  # the position is kept for the new link of this name (SEM J5)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def reply(_: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_result(None)

        consumer.end(reply)
        await done

    async def _remove_temporary(self, attached: Attached) -> None:
        temporary, attached.temporary = attached.temporary, None
        if temporary is not None:
            await delete_temporary(self._realm, temporary)

    def _free(self, attached: Attached) -> None:
        """Free a link's memory and name, so that the client can attach it again."""
        link_end = attached.incoming or attached.outgoing
        if link_end is not None:
            self._engine.free(link_end)
        else:
            attached.link.free()

    def end(self, link: IncomingLink | OutgoingLink, condition: str, description: str) -> None:
        """End a link from this side, with the reason."""
        attached = self._links.get(_key(link.link))
        if attached is not None:
            self._end(attached, condition, description)

    def _end(self, attached: Attached, condition: str, description: str) -> None:
        if attached.is_closed or not self._connection.is_open:
            return
        attached.is_closed = attached.is_ended = True
        if attached.link.state & Endpoint.LOCAL_UNINIT:
            refuse(attached.link, condition, description)
        else:
            attached.link.condition = Condition(condition, description)
            attached.link.close()
        self._connection.spawn(self._end_and_await_detach, attached)
        self._connection.flush_soon()

    async def _end_and_await_detach(self, attached: Attached) -> None:
        """Release a link that the realm has ended. It is freed once the peer has detached it,
        too."""
        await self._release_link(attached, closed=False)
        if self._pop(attached) and self._connection.is_open:
            if attached.is_detached_by_peer:
                self._free(attached)
            else:
                self._awaiting_detach[_key(attached.link)] = attached

    def steal(self, attached: Attached) -> None:
        """End a link whose name the same container has attached again (2.6.1)."""
        attached.is_stolen = True
        self._end(attached, STOLEN, "a link of the same name was attached")

    def take_away(self, session: Session, name: str, *, is_sender: bool) -> None:
        """End a link whose name the peer has attached again in the same session."""
        if (attached := self._find(session, name, is_sender=is_sender)) is not None:
            self.steal(attached)

    def fail(
        self, session: Session, name: str, condition: str, description: str, *, is_sender: bool
    ) -> None:
        """End a link because of an error in a frame of the peer."""
        if (attached := self._find(session, name, is_sender=is_sender)) is not None:
            self._end(attached, condition, description)

    def _find(self, session: Session, name: str, *, is_sender: bool) -> Attached | None:
        for attached in self._links.values():
            link = attached.link
            if link.name == name and link.is_receiver == is_sender and session == link.session:
                return attached
        return None

    def too_early(self, link: Link) -> None:
        """End a link whose sender sent a message before the link was open, so without credit
        (2.8.16)."""
        if (attached := self._links.get(_key(link))) is not None:
            self._end(attached, TOO_MANY, "a message was sent without credit")

    # --- sessions ------------------------------------------------------------------------

    def fail_session(self, session: Session, condition: str, description: str) -> None:
        """End a session from this side with a reason; the peer also has to end it."""
        links_ended = self._links_ended[hash(session)] = asyncio.Event()
        session.condition = Condition(condition, description)
        self._connection.spawn(self._end_failed_session, session, links_ended)

    async def _end_failed_session(self, session: Session, links_ended: asyncio.Event) -> None:
        try:
            await self._end_links_of(session)
            if self._connection.is_open:
                session.close()
                self._connection.flush_soon()
        finally:
            links_ended.set()

    async def _end_links_of(self, session: Session) -> None:
        """End all links of a session, and remember them until the session is freed."""
        for attached in list(self._links.values()):
            if session == attached.link.session:
                attached.is_closed = True
                await self._release_link(attached, closed=False)
                if self._pop(attached):
                    self._awaiting_detach[_key(attached.link)] = attached

    async def end_session(self, session: Session) -> None:
        """End a session that the peer has ended."""
        if (links_ended := self._links_ended.pop(hash(session), None)) is not None:
            await links_ended.wait()
        await self._end_links_of(session)
        link_ends = []
        for key, attached in list(self._awaiting_detach.items()):
            if session == attached.link.session:
                del self._awaiting_detach[key]
                link_end = attached.incoming or attached.outgoing
                if link_end is not None:
                    link_ends.append(link_end)
        if self._connection.is_open:
            session.close()
            self._engine.free_session(session, link_ends)
            self._connection.flush_soon()

    def leave(self, *, lost: bool) -> None:
        """End all links with their connection; their events go back immediately (SEM D13). If the
        connection is ``lost``, its subscribers may resume (SEM J5)."""
        # Everything that needs no wait is done here, immediately; the rest runs as a task.
        links, self._links = list(self._links.values()), {}
        self._awaiting_detach.clear()
        for attached in links:
            attached.is_lost = lost and not attached.is_closed
            attached.is_closed = True
            self._service.links.remove(self._name_of(attached), attached)
            if attached.producer is not None:
                self._service.links.remove_producer(attached.producer)
            for link_end in (attached.incoming, attached.outgoing):
                if link_end is not None:
                    self._engine.drop(link_end)
            consumer = attached.consumer
            if attached.is_lost and consumer is not None and not consumer.mode.has_seat:
                consumer.lose()
        if links:
            self._connection.spawn(self._release_links, links)
        else:
            self.released.set()

    async def _release_links(self, links: list[Attached]) -> None:
        """Give back everything that the links of an ended connection held in the realm."""
        try:
            # All consumers first: a durable can be deleted only after its last consumer has left.
            for attached in links:
                if attached.consumer is not None:
                    await self._end_consumer(attached)
            for attached in links:
                await self._end_dependents(attached)
        finally:
            for attached in links:
                attached.released.set()
            self.released.set()

    async def _end_dependents(self, attached: Attached) -> None:
        """Delete the durable and the temporary destination of an ended link if they end with it."""
        try:
            if attached.is_lost and attached.is_volatile and attached.durable is not None:
                self._service.durables.keep(*attached.durable)
            else:
                await self._attaching.end_durable(attached, closed=False)
            await self._remove_temporary(attached)
        except PenstockError as error:
            _log.debug("amqp.not_removed", reason=str(error))


def _key(link: Link) -> int:
    return hash(link)
