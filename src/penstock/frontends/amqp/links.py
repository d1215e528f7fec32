"""The links of one connection: how they come, what ends with them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog
from proton import Condition, Endpoint, Link, Session

from penstock.core.errors import PenstockError
from penstock.frontends.amqp.addresses import remove
from penstock.frontends.amqp.attaching import Attached, Attaching
from penstock.frontends.amqp.conditions import condition_of, description_of
from penstock.frontends.amqp.ends import Incoming, Outgoing
from penstock.frontends.amqp.engine import refuse

if TYPE_CHECKING:
    from penstock.frontends.amqp.connection import AmqpConnection

_log = structlog.get_logger("penstock.amqp")


class Links:
    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._engine = connection.engine
        self._attaching = Attaching(connection)
        self._links: dict[int, Attached] = {}
        self.left = asyncio.Event()
        """Set once everything has ended that lived by them, after the connection has."""
        self._over: dict[int, Attached] = {}
        """Those the realm has ended, until the peer says it knows."""

    def __len__(self) -> int:
        return len(self._links)

    @property
    def consumers(self) -> int:
        """How many of them events go out by."""
        return sum(each.consumer is not None for each in self._links.values())

    def of(self, link: Incoming | Outgoing) -> Attached | None:
        """What a link is for."""
        return self._links.get(_key(link.link))

    def refill(self) -> None:
        """Senders that had to wait may go on."""
        for attached in self._links.values():
            if attached.incoming is not None:
                self._engine.refill(attached.incoming)

    def check_rights(self) -> None:
        """End those this connection may not have any more."""
        for attached in list(self._links.values()):
            try:
                if attached.producer is not None:
                    attached.producer.check()
                elif attached.consumer is not None:
                    self._connection.require(*attached.consumer.needs)
            except PenstockError as error:
                link = attached.incoming or attached.outgoing
                if link is not None:
                    self.end(link, condition_of(error), description_of(error))

    # --- coming and going ----------------------------------------------------------------

    def attach(self, link: Link) -> None:
        if not self._connection.is_open:
            return
        self._connection.pace.came(1)
        attached = self._links[_key(link)] = Attached(link)
        self._connection.spawn(self._attached(attached))

    async def _attached(self, attached: Attached) -> None:
        try:
            await self._attaching.open(attached)
        except PenstockError as error:
            await self._remove_temporary(attached)
            is_uninit = attached.link.state & Endpoint.LOCAL_UNINIT
            if self._connection.is_open and is_uninit and not attached.is_closed:
                refuse(attached.link, condition_of(error), description_of(error))
            self._links.pop(_key(attached.link), None)
        if attached.is_closed or not self._connection.is_open:
            await self._remove_temporary(attached)
        self._connection.flush_soon()

    def detach(self, link: Link, *, closed: bool) -> None:
        attached = self._links.get(_key(link))
        if attached is not None:
            attached.is_closed = True
            self._connection.spawn(self._detached(attached, closed=closed))
        elif (over := self._over.pop(_key(link), None)) is not None:
            self._free(over)
        elif link.state & Endpoint.LOCAL_ACTIVE:
            link.close()
        elif link.state & Endpoint.LOCAL_CLOSED:
            link.free()

    async def _detached(self, attached: Attached, *, closed: bool) -> None:
        """Everything the link stood for ends before the peer is told so."""
        link = attached.link
        error = await self._ended(attached, closed=closed)
        if self._links.pop(_key(link), None) is None and self._over.pop(_key(link), None) is None:
            return  # its session or connection is over, too
        if error is not None:
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

    async def _ended(self, attached: Attached, *, closed: bool) -> PenstockError | None:
        """What went wrong."""
        for end in (attached.incoming, attached.outgoing):
            if end is not None:
                self._engine.drop(end)
        if attached.incoming is not None and self._connection.transactions.coordinates(
            attached.incoming
        ):
            self._connection.transactions.left(attached.incoming)
        try:
            if attached.consumer is not None:
                await self._consumer_ended(attached)
            await self._attaching.end_durable(attached, closed=closed)
            await self._remove_temporary(attached)
        except PenstockError as error:
            return error
        return None

    async def _consumer_ended(self, attached: Attached) -> None:
        consumer = attached.consumer
        assert consumer is not None, "it has one"
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def reply(_: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_result(None)

        consumer.end(reply)
        await done

    async def _remove_temporary(self, attached: Attached) -> None:
        temporary, attached.temporary = attached.temporary, None
        if temporary is not None:
            await remove(self._connection.realm, temporary)

    def _free(self, attached: Attached) -> None:
        """Give its memory back, and its name: a durable's client may come again by it."""
        end = attached.incoming or attached.outgoing
        if end is not None:
            self._engine.free(end)
        else:
            attached.link.free()

    def end(self, link: Incoming | Outgoing, condition: str, description: str) -> None:
        """The realm ends a link, and says why."""
        attached = self._links.get(_key(link.link))
        if attached is None or attached.is_closed or not self._connection.is_open:
            return
        attached.is_closed = True
        link.link.condition = Condition(condition, description)
        link.link.close()
        self._connection.spawn(self._dropped(attached))
        self._connection.flush_soon()

    async def _dropped(self, attached: Attached) -> None:
        await self._ended(attached, closed=False)
        if self._links.pop(_key(attached.link), None) is not None and self._connection.is_open:
            self._over[_key(attached.link)] = attached

    async def end_session(self, session: Session) -> None:
        for attached in list(self._links.values()):
            if attached.link.session == session:
                attached.is_closed = True
                await self._ended(attached, closed=False)
                if self._links.pop(_key(attached.link), None) is not None:
                    self._over[_key(attached.link)] = attached
        ends = []
        for key, attached in list(self._over.items()):
            if attached.link.session == session:
                del self._over[key]
                end = attached.incoming or attached.outgoing
                if end is not None:
                    ends.append(end)
        if self._connection.is_open:
            session.close()
            self._engine.free_session(session, ends)
            self._connection.flush_soon()

    def leave(self, *, lost: bool) -> None:
        """The connection is over: what they held goes back at once (SEM D13). Subscribers whose
        connection is ``lost`` may come back (SEM J5)."""
        links, self._links = list(self._links.values()), {}
        self._over.clear()
        for attached in links:
            attached.is_lost = lost and not attached.is_closed
            attached.is_closed = True
            for end in (attached.incoming, attached.outgoing):
                if end is not None:
                    self._engine.drop(end)
            consumer = attached.consumer
            if attached.is_lost and consumer is not None and not consumer.manner.seat:
                consumer.lose()
        if links:
            self._connection.spawn(self._left(links))
        else:
            self.left.set()

    async def _left(self, links: list[Attached]) -> None:
        try:
            for attached in links:
                if attached.consumer is not None:
                    await self._consumer_ended(attached)
            for attached in links:
                await self._end_what_lived_by(attached)
        finally:
            self.left.set()

    async def _end_what_lived_by(self, attached: Attached) -> None:
        try:
            await self._attaching.end_durable(attached, closed=False)
            await self._remove_temporary(attached)
        except PenstockError as error:
            _log.debug("amqp.not_removed", reason=str(error))


def _key(link: Link) -> int:
    return hash(link)
