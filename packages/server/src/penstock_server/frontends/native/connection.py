"""One native connection: it turns frames into requests to the realm, and sends answers and
events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.api.realm import Ping
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Bury, Extend, Hold, Settle
from penstock_core.bounds import HEADER_BYTES_MAX
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    LimitReached,
    PenstockError,
    RemoteProtocolViolation,
)
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import (
    FRAME_BYTES_MAX,
    PREFACE,
    FrameReader,
    coalesced,
    frame,
)
from penstock_server.frontends.native.deliveries import Deliveries
from penstock_server.frontends.native.requests import Requests
from penstock_server.frontends.native.schemas import SchemaTable
from penstock_server.frontends.native.sign_in import NativeSignIn
from penstock_server.frontends.shared.backpressure import ReadThrottle
from penstock_server.frontends.shared.relayed import RelayedTransport
from penstock_server.frontends.shared.transports import close, host_of
from penstock_server.runtime.access.askers import Asker, asker
from penstock_server.runtime.access.internal_errors import as_internal_error, new_incident_id
from penstock_server.runtime.access.open_connections import ConnectionState
from penstock_server.runtime.access.permits import Permits
from penstock_server.runtime.access.quota import Quota
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.subscriptions.watches import ChannelWatch

if TYPE_CHECKING:
    from penstock_server.frontends.native.listener import NativeListener

GREETING_BYTES_MAX = 64 << 10
"""Largest frame in bytes of a peer that has not said hello."""
WRITE_HIGH_WATER = 1 << 20
"""Bytes waiting to be sent above which a connection gets no more deliveries and is not read: a peer
that does not read answers may not ask for more."""
FRAMES_A_TURN = 32
"""Frames of one connection that are received before the others have their turn."""
REQUESTS_MAX = 1_024
"""Requests in progress above which a connection is not read."""

_log = logger("penstock.native")


class Connection(asyncio.BufferedProtocol):
    protocol = "native"
    _taken = 0
    """Highest number of a request that was begun."""
    _publishes = False
    """Whether it has sent events. It is not read then while publishers wait; others are."""

    def __init__(self, listener: NativeListener, principal: Principal | None = None) -> None:
        """A ``principal`` is given for connections inside this process, which do not sign in."""
        self.listener = listener
        self.realm = listener.realm
        self.session = self._client = ""
        self.principal = principal
        """The principal; None until it is known."""
        self.caller: Caller | None = None
        """The caller of operations; None until the connection is welcomed."""
        self.limits = listener.limits.each
        self._quota = Quota(self.limits) if self.limits.are_set else None
        self._signing_in: NativeSignIn | None = None
        self._owners_told: wire.Owners | None = None
        """What it was told last of the owners in its cluster; None: it does not follow them."""
        self.number = 0
        """Connection number, unique until the realm restarts; administrators use it as an id."""
        self.writable = True
        self.subscriptions: dict[int, int] = {}
        """The realm's number of each subscription, by the client's number; 0 while it is being
        opened."""
        self.watches: dict[int, ChannelWatch] = {}  # of patterns, by the client's number
        self.opening: dict[int, asyncio.Event] = {}
        """Subscriptions that are being opened, oldest first. The event is set when that ends."""
        self.interrupted: set[int] = set()
        """Subscriptions that were being opened when the connection was lost: they may come back."""
        self._early: dict[int, list[wire.FromClient | wire.Asked]] = {}
        """Requests about a subscription that arrived before it was open."""
        self._reader = FrameReader(
            preface=PREFACE,
            frame_bytes_max=GREETING_BYTES_MAX,
            header_bytes_max=HEADER_BYTES_MAX,
        )
        self.announced = SchemaTable()
        self._asker = Asker()
        self._requests: Requests | None = None
        self.deliveries = Deliveries(self)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._flush_is_due = False
        self._opened_s = self.heard_s = 0.0
        self._incomplete = listener.incomplete.open(Principal(ANONYMOUS, ""))
        self._out_bytes = self._unsent = self._in_progress = 0
        self._reading = ReadThrottle(self._may_read, self._reads_again, self._take_in)
        self._is_open = self._is_parting = False
        """Parting: the peer has said Bye, and gets nothing more but the end of the connection."""
        self._loop = asyncio.get_running_loop()

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self._transport = transport
        self._reading.begin(transport)
        self._opened_s = self.heard_s = self._loop.time()
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self._is_open = self.listener.opened(self)
        if not self._is_open:
            self.end(self.listener.refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> None:
        self.heard_s = self._loop.time()
        self.listener.traffic.received_bytes += count
        self._reader.buffer_updated(count)
        self._reading.came()

    def _take_in(self) -> bool:
        """Receive some of the frames that are here; returns whether there may be more."""
        reader, taken = self._reader, 0
        if self.listener.is_draining:
            return False
        try:
            while reader.holds_bytes and (found := reader.next_frame()) is not None:
                header, body = found
                self._receive(wire.decode_from_client(header), body)
                taken += 1
                if taken == FRAMES_A_TURN:
                    return reader.holds_bytes
        except PenstockError as error:
            _log.warning("connection.refused", peer=self._peer(), reason=str(error))
            self.end(error)
        return False

    def eof_received(self) -> bool:
        """Keep the transport open if the peer has said Bye: it still gets answers."""
        return self._is_parting and self._transport is not None and self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._incomplete.close()
        self.announced.close()
        self._reading.end()
        self._is_open = False
        self.writable = False
        self._asker.go()
        if self._signing_in is not None:
            self._signing_in.lost()
        self._signing_in = self._requests = None  # they refer to the connection: a cycle
        self.listener.closed(self)
        self._leave(lost=True)

    def _leave(self, *, lost: bool) -> None:
        """Give up all seats: the events they held go back at once (SEM D13). Seats of a connection
        that is ``lost`` may come back (SEM J5)."""
        subscriptions = self.realm.subscriptions
        for subscription in self.subscriptions.values():
            (subscriptions.lose if lost else subscriptions.detach)(subscription)
        if lost:
            self.interrupted.update(self.opening.keys() & self.subscriptions.keys())
        self.subscriptions.clear()
        for number in list(self.watches):
            self.end_watch(number)
        self.listener.left(self)
        if self.caller is not None:
            self.caller.leave()

    async def _part(self) -> None:
        """End the connection of a peer that has said Bye, after everything that it held has gone
        back. No place is kept for it (SEM D13)."""
        seats = [number for number in self.subscriptions.values() if number]
        loop, left = self._loop, len(seats)
        free: asyncio.Future[None] = loop.create_future()

        def given_back(_: object, error: BaseException | None) -> None:
            nonlocal left
            left -= 1  # if it failed, the realm is closed or the channel deleted
            if not left and not free.done():
                free.set_result(None)

        try:
            for number in seats:
                self.realm.subscriptions.detach(number, given_back)
            self.subscriptions.clear()
            self.listener.left(self)
            if seats:
                await free
            await self.listener.seats_given_back(self.session)
        finally:
            self.end(None)

    def pause_writing(self) -> None:
        self.writable = False
        self.realm.subscriptions.stall(self.session, stalled=True)
        self._reading.check()

    def resume_writing(self) -> None:
        self.writable = True
        self.realm.subscriptions.stall(self.session, stalled=False)

    # --- in ------------------------------------------------------------------------------

    def _receive(
        self, message: wire.FromClient | wire.Asked | wire.Unreadable, body: memoryview
    ) -> None:
        if not self._is_open:
            return
        match message:
            case wire.Hello():
                self._greet(message)
            case wire.Proof(data) if self._signing_in is not None:
                self._signing_in.proven(data)
            case _ if not self.session:
                self._answer_stranger(message)
            case wire.Unreadable() | wire.Schema() | wire.Follow() | wire.Bye():
                self._receive_aside(message, body)
            case (
                wire.Asked(_, Settle(number) | Hold(number) | Bury(number) | Extend(number))
                | wire.Credit(number)
                | wire.Demand(number)
                | wire.RecallSeen(number)
            ) if number in self.opening or number in self._early:
                self._early.setdefault(number, []).append(message)
                self._in_progress += 1
            case wire.Credit() | wire.Demand() | wire.RecallSeen():
                self._hear(message)
            case wire.Asked(number, request):
                self._ask(number, request, body)
            case _:
                raise RemoteProtocolViolation(f"{type(message).__name__} is not expected here")

    def _receive_aside(
        self, message: wire.Unreadable | wire.Schema | wire.Follow | wire.Bye, body: memoryview
    ) -> None:
        """Handle messages that are not ordinary requests."""
        match message:
            case wire.Unreadable(request, reason):
                self.fail(request, reason)
            case wire.Schema(number):
                self.announced.learn(number, bytes(body))
            case wire.Follow():
                self._follow()
            case wire.Bye():
                self._is_open = False
                self._is_parting = True
                self.listener.spawn(self._part)

    def _follow(self) -> None:
        """Tell which node of the cluster owns what, and go on telling."""
        find = self.listener.owners
        self._owners_told = wire.Owners(0, {}) if find is None else find()
        self.send(self._owners_told)

    def _answer_stranger(self, message: wire.FromClient | wire.Asked | wire.Unreadable) -> None:
        """Answer a peer that has not said hello: it may ping, to see whether a realm is here, and
        nothing else."""
        match message:
            case wire.Asked(number, Ping()):
                self.send(wire.Done(number, None))
            case wire.Follow():
                self._follow()
                if not isinstance(self._transport, RelayedTransport):
                    self.end(None)
            case _:
                raise RemoteProtocolViolation("the first frame must be a Hello")

    def _ask(self, number: int, request: Request[Any], body: memoryview) -> None:
        if self._quota is not None:
            try:
                self._quota.begin_request(number, len(body), self.realm.clock.now_us())
            except LimitReached as error:
                self.fail(number, error)
                return
        assert self._requests is not None, "it was welcomed"
        if body:
            self._publishes = True
        self._taken = max(self._taken, number)
        self._requests.take(number, request, body)

    def opened(self, number: int) -> None:
        """Process what came early for a subscription that is now open, or was refused.

        Events go out as soon as a seat is taken, so the client's answers to them may be here before
        the task that opens it has continued. Later messages wait as well, which keeps their order.
        """
        if number in self._early:
            self._loop.call_soon(self._catch_up, number)

    def _catch_up(self, number: int) -> None:
        early = self._early.pop(number, [])
        self._in_progress -= len(early)
        try:
            for message in early:
                self._receive(message, memoryview(b""))
        except PenstockError as error:
            self.end(error)

    def _hear(self, message: wire.Credit | wire.Demand | wire.RecallSeen) -> None:
        """Pass a message that needs no answer to its subscription."""
        subscription = self.subscriptions.get(message.subscription)
        if subscription is None:
            return
        match message:
            case wire.Credit(_, count, next_id, taken):
                self.realm.subscriptions.credit(subscription, count, next_id, taken=taken)
            case wire.Demand(_, count):
                self.realm.subscriptions.demand(subscription, count)
            case wire.RecallSeen():
                self.realm.subscriptions.recall_seen(subscription)

    def _greet(self, hello: wire.Hello) -> None:
        if self.session or self._signing_in is not None or not hello.session:
            raise RemoteProtocolViolation("a connection sends Hello once, with a session id")
        access = self.realm.access
        if (speaks_for := self._speaks_for) is not None:
            if not access.is_open:
                access.require(speaks_for, "session.open")
            self.welcome(hello, speaks_for)
        elif access.is_open:
            self.welcome(hello, Principal(hello.user, self.host, trusted=True))
        elif self.principal is not None:
            self.welcome(hello, self.principal)
        else:
            self._signing_in = NativeSignIn(self)
            self.listener.spawn(self._signing_in.run, hello)

    def welcome(self, hello: wire.Hello, principal: Principal) -> None:
        """Welcome a client that is known and may connect. Raises ``LimitReached``, and
        ``AccessDenied`` for the session of another user."""
        self._signing_in = None
        if self._transport is None:
            return
        self.principal = principal
        self.listener.greeted(self, hello.session)
        self.session = hello.session
        self._client = hello.client
        self.caller = Caller(
            self.realm,
            principal,
            hello.session,
            version=self.listener.version,
            subscriptions=self.subscriptions,
            is_node=self._speaks_for is not None,
        )
        self._requests = Requests(self, self.caller)
        self._reader.frame_bytes_max = FRAME_BYTES_MAX
        self._incomplete = self.listener.incomplete.open(principal)
        self.announced.held = self.listener.announced_schemas.open(principal)
        said = (
            self.realm.identity,
            self.realm.name,
            self.listener.version,
            self.realm.limits.event_bytes_max,
            FRAME_BYTES_MAX,
        )
        if (owners := self.listener.owners) is None:
            self.send(wire.Welcome(*said))
            return
        known, heartbeat_s = owners(), self.listener.heartbeat_s
        own = "".join(known.owners.values())
        self.send(wire.ClusterWelcome(*said, heartbeat_s=heartbeat_s, nodes=known.nodes, node=own))

    def tell_owners(self, owners: wire.Owners) -> None:
        """Tell a client that follows the owners in its cluster, unless it knows."""
        if self._owners_told is not None and self._owners_told != owners:
            self._owners_told = owners
            self.send(owners)

    @property
    def _speaks_for(self) -> Principal | None:
        """The principal for whom a node of the cluster speaks (SEM N9); None: it is a client."""
        transport = self._transport
        return transport.origin.speaks_for if isinstance(transport, RelayedTransport) else None

    @property
    def permits(self) -> Permits | None:
        """What its principal may do; None where no rights are checked."""
        return None if self.caller is None else self.caller.permits

    def _may_read(self) -> bool:
        listener = self.listener
        return (
            self.writable
            and self._in_progress < REQUESTS_MAX
            and not (self._publishes and listener.is_congested)
            and not listener.is_draining
            and self._has_room_for_frame()
        )

    def _has_room_for_frame(self) -> bool:
        """Whether the frame that is being received fits beside those of the user's other clients.

        Its whole length is counted at once, so a frame that is begun can be received to its end.
        """
        if not (self._reader.holds_bytes or self._incomplete.counted):
            return True
        return self._incomplete.fits(self._reader.incomplete_bytes)

    def stop_reading(self) -> None:
        """Begin nothing more: the listener is draining."""
        self._reading.check()

    @property
    def owes_answers(self) -> bool:
        """Whether requests are in progress, other than those that open subscriptions: these are
        asked again of the next owner in any case."""
        early = sum(map(len, self._early.values()))
        return self._in_progress > len(self.opening) + early

    def _reads_again(self, now_s: float) -> None:
        self.heard_s = now_s

    def check(self, now_s: float) -> None:
        """End a connection whose peer sends nothing, or reads nothing, for too long; called
        regularly."""
        limits = self.listener.limits
        if self._transport is None:
            return
        if self.permits is not None and self.permits.principal.until_us:
            self.check_rights()
        if not self.session and self._owners_told is None:
            if now_s - self._opened_s > limits.hello_timeout_s:
                self.end(
                    ConnectionLost(f"no Hello was received within {limits.hello_timeout_s:g} s")
                )
            return
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent or (self._reading.is_paused and self.writable):
            self.heard_s = now_s  # the peer reads, or it is this side that does not
        self._unsent = unsent
        if now_s - self.heard_s > limits.idle_timeout_s:
            self.end(ConnectionLost(f"nothing was received for {limits.idle_timeout_s:g} s"))

    # --- out -----------------------------------------------------------------------------

    def check_rights(self) -> None:
        """Rights were taken away: end the subscriptions that this connection may no longer have, or
        all of it (SEM A3)."""
        permits = self.permits
        if permits is None:
            return
        try:
            self.realm.access.check_still(permits.principal, self.realm.clock.now_us())
        except PenstockError as error:
            self.end(error)
            return
        for number, realms in list(self.subscriptions.items()):
            refusal = permits.refusal(number)
            # subscriptions being opened are checked at their end
            if refusal is not None and realms:
                self.listener.realm.connections.refused(refusal)
                self.realm.subscriptions.detach(realms)
                self.forget(number)
                self.send(wire.Closed(number, refusal.code, str(refusal)))

    def send(self, message: wire.Message, *bodies: bytes | bytearray | memoryview) -> None:
        """Queue a frame; the frames of one turn of the loop are sent together."""
        if self._transport is None:
            return
        if self._quota is not None and isinstance(message, wire.Done | wire.Failed):
            self._quota.end_request(message.request)
        self._out += frame(wire.encode(message), *bodies)
        if not self._flush_is_due:
            self._flush_is_due = True
            self.listener.flush_soon(self)
        if bodies:
            self._out_bytes += sum(map(len, bodies))
            if self._out_bytes > WRITE_HIGH_WATER:
                # Only the transport knows whether the peer reads: without it a turn of deliveries
                # would not notice that it does not.
                self.flush()

    def flush(self) -> None:
        """Send the queued frames."""
        self._flush_is_due = False
        out, self._out, self._out_bytes = self._out, [], 0
        if self._transport is None or not out:
            return
        self.listener.traffic.sent_bytes += sum(map(len, out))
        for part in coalesced(out) if len(out) > 1 else out:
            if self._transport.is_closing():  # a write has failed: uvloop refuses the next one
                return
            self._transport.write(part)

    def answer(self, request: int, answer: Any, error: BaseException | None) -> None:
        """Answer a request with its result, or with the error."""
        if error is None:
            self.send(wire.Done(request, answer))
        else:
            self.fail(request, error)

    def fail(self, request: int, error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            number = new_incident_id()
            _log.error("request.failed", incident=number, peer=self._peer(), exc_info=error)
            error = as_internal_error(number)
        self.listener.realm.connections.refused(error)
        self.send(wire.Failed(request, error.code, str(error)))

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason. A peer that does not answer in time is dropped."""
        transport = self._transport
        if reason is not None and transport is not None and not transport.is_closing():
            self.listener.realm.connections.refused(reason)
            said = wire.Goodbye(reason.code, str(reason))
            if self.session:
                said = wire.Parting(said.code, said.text, taken=self._taken)
            self.send(said)
        self._is_open = False
        self.flush()
        self._leave(lost=reason is not None)
        close(transport)

    def abort(self) -> None:
        """Drop the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    def cut(self) -> None:
        """Another owner has taken over: what is said from now on may be wrong."""
        self.abort()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait because the peer does not read them."""
        waiting = sum(map(len, self._out))
        return waiting + (self._transport.get_write_buffer_size() if self._transport else 0)

    def describe(self) -> ConnectionState:
        """A description of the connection for administrators."""
        return ConnectionState(
            number=self.number,
            protocol=self.protocol,
            session=self.session,
            user="" if self.caller is None else self.caller.publisher,
            client=self._client,
            opened_s=self._opened_s,
            heard_s=self.heard_s,
            subscriptions=len(self.subscriptions),
            requests=self._in_progress,
            unsent_bytes=self.unsent_bytes,
            is_stalled=not self.writable,
        )

    def forget(self, number: int) -> int | None:
        """Forget a subscription; gives the realm's number of it, or None if there is none."""
        if self.permits is not None:
            self.permits.closed(number)
        return self.subscriptions.pop(number, None)

    def end_watch(self, number: int) -> None:
        """Watch the pattern of this number no more, if one is watched."""
        watch = self.watches.pop(number, None)
        if watch is not None:
            self.realm.watches.end(watch)

    def spawn(self, request: int, work: Callable[[], Any]) -> None:
        """Run a request that has to wait for the realm, and answer it."""
        self._in_progress += 1
        self.listener.spawn(self._answer, request, work)

    async def _answer(self, request: int, work: Callable[[], Any]) -> None:
        asker.set(self._asker)
        try:
            answer = await work()
        except Exception as error:  # noqa: BLE001  a task's root: the others must live on
            self.fail(request, error)
        else:
            self.send(wire.Done(request, answer))
        finally:
            self._in_progress -= 1

    @property
    def host(self) -> str:
        """The peer's address; ``localhost`` inside this process."""
        return host_of(self._transport)

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The content of the peer's verified certificate; None: it has none."""
        found = self._transport.get_extra_info("peercert") if self._transport else None
        return cast("Mapping[str, Any] | None", found)

    @property
    def is_secure(self) -> bool:
        """Whether the connection uses TLS."""
        found = self._transport.get_extra_info("sslcontext") if self._transport else None
        return found is not None

    def _peer(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport else None
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and peer else "local"
