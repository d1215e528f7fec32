"""A node's connection to the owner of the realm, as a client that copies for joins (SEM N9).

The connection begins with the preface of relayed connections, which is signed with the secret of
the cluster, so that the node need not store users' passwords.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from penstock.client.connection.pending import error_of, reason_of
from penstock.client.connection.transport import Link
from penstock_core.access.rights import Principal
from penstock_core.api.joins import CopiesTaken, CopyIn
from penstock_core.messages.joins import Join
from penstock_core.vocabulary.errors import CannotConnect, ConnectionLost, PenstockError
from penstock_core.vocabulary.ports import Clock
from penstock_core.wire.native import messages as wire
from penstock_core.wire.relay_preface import RelayOrigin, relay_preface
from penstock_server.frontends.shared.serving_node import FindOwner, ServingNode, refusal
from penstock_server.frontends.shared.transports import place_of
from penstock_server.runtime.writer.outboxes import Outgoing

CONNECT_S: Final = 2.0
"""Seconds within which the owner has to accept a connection."""
IDLE_S: Final = 20.0
"""Seconds after which an idle connection is closed; the owner would close it later."""


class OwnerLink:
    """One connection to the owner, which carries one request at a time."""

    def __init__(self, owner: ServingNode) -> None:
        self.process = owner.process
        """Identifies the start of the owner's process that the connection leads to."""
        self.used_s = 0.0
        """Time of the latest request on the loop's clock."""
        self._name = owner.name
        self._link = Link(self)
        self._request_number = 0
        self._waiting: asyncio.Future[Any] | None = None
        """The answer to the latest request."""
        self._lost: PenstockError | None = None
        """Why the connection was lost; None while it is open."""
        self._goodbye: PenstockError | None = None
        """The owner's reason for closing the connection, which explains the loss that follows."""

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._link.is_open

    async def open(
        self, place: tuple[str, int], introduce: Callable[[asyncio.Transport], bytes], tls: Any
    ) -> None:
        """Connect, send the preface, and wait for the welcome."""
        loop = asyncio.get_running_loop()
        protocol = lambda: _PrefaceProtocol(introduce)  # noqa: E731
        transport, _ = await loop.create_connection(protocol, *place)
        # asyncio calls connection_made() only for the first protocol of a connection.
        if tls is not None:
            upgraded = await loop.start_tls(transport, self._link, tls, server_hostname=place[0])
            assert upgraded is not None, "the transport is open"
            self._link.connection_made(upgraded)
        else:
            transport.set_protocol(self._link)
            self._link.connection_made(transport)
        self._waiting = loop.create_future()
        self._link.send(wire.Hello("penstock-node", secrets.token_hex(16)))
        await self._answer()

    async def ask(self, request: CopyIn, *bodies: bytes) -> Any:
        """Return the answer to a request. Raises the owner's refusal, or ``ConnectionLost``."""
        self._request_number += 1
        self._waiting = asyncio.get_running_loop().create_future()
        self._link.send(wire.Asked(self._request_number, request), *bodies)
        return await self._answer()

    async def _answer(self) -> Any:
        """Wait for the answer to the latest request. Raises its error."""
        assert self._waiting is not None, "a request was sent"
        if self._lost is not None:
            raise self._lost
        self.used_s = asyncio.get_running_loop().time()
        return await self._waiting

    def close(self) -> None:
        """Close the connection in an orderly way, after the last request."""
        if self._link.is_open:
            self._link.send(wire.Bye())
            self._link.finish()

    def abort(self) -> None:
        """Drop the connection."""
        self._link.abort()

    # --- events of the connection --------------------------------------------------------

    def received(self, link: Link, message: wire.FromServer, body: memoryview) -> None:
        """Process a message from the owner."""
        match message:
            case wire.Welcome():
                self._resolve(None)
            case wire.Done(number, answer) if number == self._request_number:
                self._resolve(answer)
            case wire.Failed(number, code, text) if number == self._request_number:
                self._fail(error_of(code, text))
            case wire.Goodbye(code, text):
                self._goodbye = error_of(code, text)
            case _:
                pass  # the answer to a request that was given up

    def lost(self, link: Link, reason: BaseException | None) -> None:
        """Process the end of the connection; ``reason`` is None if the peer closed it cleanly."""
        if self._lost is None:
            text = f"the connection to node {self._name} was lost: {reason_of(reason)}"
            self._lost = self._goodbye or ConnectionLost(text)
            self._fail(self._lost)

    def _resolve(self, answer: Any) -> None:
        # The waiting task may have been cancelled, which also sets the future.
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answer)

    def _fail(self, error: PenstockError) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


class _PrefaceProtocol(asyncio.Protocol):
    """Sends the node's preface before anything else, and before TLS."""

    def __init__(self, introduce: Callable[[asyncio.Transport], bytes]) -> None:
        self._introduce = introduce

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        transport.write(self._introduce(transport))


class OwnerClient:
    """Requests of a node to the realm of the cluster, whichever node serves it."""

    def __init__(
        self,
        owner: FindOwner,
        secret: bytes,
        node: str,
        clock: Clock,
        *,
        answer_s: float,
        has_quorum: Callable[[], bool],
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        """``owner`` returns the owner of the realm, even if it is this node. An owner that has not
        answered for ``answer_s`` seconds is given up. ``tls`` returns the context that verifies the
        certificates of owners."""
        self._owner = owner
        self._secret = secret
        self._node = node
        self._clock = clock
        self._answer_s = answer_s
        self._has_quorum = has_quorum
        self._tls = tls
        self._links: dict[Principal, OwnerLink] = {}
        """Open connections, by the principal with whose rights they copy."""
        self._turn = asyncio.Lock()
        """Held by one request at a time."""

    async def copy_in(
        self, join: Join, target: str, producer: str, copies: Outgoing
    ) -> CopiesTaken:
        """Return once the owner has stored the copies on ``target``. After an error it is unknown
        whether they are stored (:class:`~penstock_cluster.nodes.outbox.CopyTarget`)."""
        request = CopyIn(target, join.archive, producer, parts=copies.parts)
        async with self._turn:
            owner = self._owner()
            if owner is None:
                raise refusal(None, "native", has_quorum=self._has_quorum())
            self._drop_stale(owner)
            link: OwnerLink | None = None
            try:
                async with asyncio.timeout(CONNECT_S + self._answer_s):
                    link = await self._link_for(owner, principal_of(join, self._node))
                    answer = await link.ask(request, *copies.bodies)
            except TimeoutError:
                # All connections lead to this owner, because those to others were dropped above.
                self.abort()
                raise CannotConnect(f"node {owner.name} has not answered") from None
            except (OSError, ssl.SSLError) as error:
                raise CannotConnect(
                    f"node {owner.name}, at {owner.url('native')}, cannot be reached: {error}"
                ) from error
            finally:
                if link is not None and not link.is_open:
                    self._forget(link)
            return msgspec.convert(answer, CopiesTaken)

    async def _link_for(self, owner: ServingNode, principal: Principal) -> OwnerLink:
        """Return a connection to the owner with the rights of a principal. Raises
        ``CannotConnect``, ``OSError`` and the owner's refusal."""
        open_link = self._links.get(principal)
        if open_link is not None:
            return open_link
        place = owner.place("native")
        if place is None:
            raise CannotConnect(f"node {owner.name} has no address for clients")

        def introduce(transport: asyncio.Transport) -> bytes:
            here, remote = place_of(transport, "sockname"), place_of(transport, "peername")
            origin = RelayOrigin(here, remote, self._node, speaks_for=principal)
            now_s = self._clock.now_us() // 1_000_000
            return relay_preface(origin, self._secret, process=owner.process, now_s=now_s)

        is_safe = owner.url("native").startswith("penstocks://")
        link = OwnerLink(owner)
        try:
            await link.open(place, introduce, self._tls() if is_safe else None)
        except BaseException:
            link.abort()
            raise
        self._links[principal] = link
        return link

    def _drop_stale(self, owner: ServingNode) -> None:
        """Close connections that are idle, lost or lead to an earlier owner."""
        now_s = asyncio.get_running_loop().time()
        for link in list(self._links.values()):
            is_idle = now_s - link.used_s > IDLE_S
            if link.process != owner.process or is_idle or not link.is_open:
                link.close()
                self._forget(link)

    def _forget(self, link: OwnerLink) -> None:
        self._links = {
            key: open_link for key, open_link in self._links.items() if open_link is not link
        }

    def abort(self) -> None:
        """Drop all connections."""
        for link in self._links.values():
            link.abort()
        self._links.clear()

    def close(self) -> None:
        """Close all connections in an orderly way."""
        for link in self._links.values():
            link.close()
        self._links.clear()


def principal_of(join: Join, node: str) -> Principal:
    """Return the principal with whose rights a join copies; the realm's own join has every
    right."""
    if not join.owner:
        return Principal("realm", node, trusted=True)
    user, _, host = join.owner.rpartition("@")
    return Principal(user, host, groups=frozenset(join.groups))
