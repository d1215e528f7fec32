"""A native connection, which decodes frames into requests to the realm, and sends answers and
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
from penstock_server.frontends.native.requests import LARGE_HEADER_BYTES, LargeHeaders, Requests
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
"""Maximum size in bytes of a frame before the Hello."""
WRITE_HIGH_WATER = 1 << 20
"""Unsent bytes above which a connection gets no deliveries and is not read, because a client that
does not read answers must not cause more of them."""
FRAMES_A_TURN = 32
"""Frames of one connection that are processed before other connections are served."""
REQUESTS_MAX = 1_024
"""Requests in progress above which a connection is not read."""

_log = logger("penstock.native")


class Connection(asyncio.BufferedProtocol):
    """The native connection of one client."""

    protocol = "native"
    quiet_until_s = 0.0
    number = 0
    """Connection number, unique until the realm restarts; administrators use it as an id."""
    _counts_answers: bool
    """Whether the connection counts requests in progress, so that answers must also be counted."""
    _last_request = 0
    """Highest number of a request that was begun."""
    _publishes = False
    """Whether the client has sent events. Reading from such a client stops while publishers must
    wait."""

    def __init__(self, listener: NativeListener, principal: Principal | None = None) -> None:
        """``principal`` is set for connections inside this process, which do not sign in."""
        self.listener = listener
        self.realm = listener.realm
        self.session = self._client = ""
        self.principal = principal
        """The principal; None until it is known."""
        self.caller: Caller | None = None
        """The caller of operations; None until the connection is welcomed."""
        self.limits = listener.limits.each
        self._quota = Quota(self.limits) if self.limits.are_set else None
        self._counts_answers = self._quota is not None
        self._large_headers = LargeHeaders()
        self._signing_in: NativeSignIn | None = None
        self._owners_sent: wire.Owners | None = None
        """The owners sent last to a client that follows them; None if it does not follow."""
        self.is_writable = True
        self.subscriptions: dict[int, int] = {}
        """The realm's number of each subscription, by the client's number; 0 while it is being
        opened."""
        self.watches: dict[int, ChannelWatch] = {}  # of patterns, by the client's number
        self.openings: dict[int, asyncio.Event] = {}
        """Subscriptions that are being opened, oldest first, by the client's number. The
        asyncio.Event of an opening is set when the opening has ended."""
        self.interrupted: set[int] = set()
        """Subscriptions that were being opened when the connection was lost; the session's next
        connection may resume them."""
        self._early: dict[int, list[wire.FromClient | wire.Asked]] = {}
        """Messages for a subscription that arrived before it was open."""
        self._reader = FrameReader(
            preface=PREFACE,
            frame_bytes_max=GREETING_BYTES_MAX,
            header_bytes_max=HEADER_BYTES_MAX,
        )
        self.announced = SchemaTable()
        self._asker = Asker()
        self.requests: Requests | None = None
        self.deliveries = Deliveries(self)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._flush_is_due = False
        self._opened_s = self.heard_s = 0.0
        self._incomplete = listener.incomplete.open(Principal(ANONYMOUS, ""))
        # Bytes that are queued; bytes unsent at the last check; requests in progress.
        self._out_bytes = self._unsent = self._in_progress = 0
        self._reading = ReadThrottle(self._may_read, self._reading_resumed, self._process_frames)
        self._is_open = self._is_parting = False
        """``_is_open`` is whether the connection is open; ``_is_parting`` is whether the peer has
        sent Bye and gets no more messages."""
        self._loop = asyncio.get_running_loop()

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has all methods, but another base class.
        transport = cast("asyncio.Transport", transport)
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
        self._reading.data_arrived()

    def _process_frames(self) -> bool:
        """Process up to ``FRAMES_A_TURN`` received frames, and return whether more may follow."""
        reader, count = self._reader, 0
        if self.listener.is_draining:
            return False
        try:
            while reader.holds_bytes and (parsed := reader.next_frame()) is not None:
                header, body = parsed
                message = wire.decode_from_client(header)
                if len(header) > LARGE_HEADER_BYTES and isinstance(message, wire.Asked):
                    self._counts_answers = True
                    self._large_headers.add(message.number, len(header))
                self._receive(message, body)
                count += 1
                if count == FRAMES_A_TURN:
                    return reader.holds_bytes
        except PenstockError as error:
            _log.warning("connection.refused", peer=self._peer(), reason=str(error))
            self.end(error)
        return False

    def eof_received(self) -> bool:
        """Keep the transport open if the peer has sent Bye, because it still gets answers."""
        return self._is_parting and self._transport is not None and self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._incomplete.close()
        self.announced.close()
        self._reading.end()
        self._is_open = False
        self.is_writable = False
        self._asker.disconnect()
        if self._signing_in is not None:
            self._signing_in.lost()
        self._signing_in = self.requests = None  # they refer to the connection, a cycle
        self.listener.closed(self)
        self._leave(lost=True)

    def _leave(self, *, lost: bool) -> None:
        """Give up all seats. Their events in flight go back immediately (SEM D13). If the
        connection is ``lost``, the session may resume its subscriptions (SEM J5)."""
        subscriptions = self.realm.subscriptions
        for subscription in self.subscriptions.values():
            (subscriptions.lose if lost else subscriptions.detach)(subscription)
        if lost:
            self.interrupted.update(self.openings.keys() & self.subscriptions.keys())
        self.subscriptions.clear()
        for number in list(self.watches):
            self.end_watch(number)
        self.listener.connection_left(self)
        if self.caller is not None:
            self.caller.leave()

    async def _part(self) -> None:
        """End the connection of a peer that has sent Bye, after its events have gone back. Its
        places are not kept (SEM D13)."""
        seats = [number for number in self.subscriptions.values() if number]
        loop, remaining = self._loop, len(seats)
        free: asyncio.Future[None] = loop.create_future()

        def count_returned(_: object, error: BaseException | None) -> None:
            nonlocal remaining
            remaining -= 1  # an error means that the realm or the channel has ended
            if not remaining and not free.done():
                free.set_result(None)

        try:
            for number in seats:
                self.realm.subscriptions.detach(number, count_returned)
            self.subscriptions.clear()
            self.listener.connection_left(self)
            if seats:
                await free
            await self.listener.seats_given_back(self.session)
        finally:
            self.end(None)

    def pause_writing(self) -> None:
        self.is_writable = False
        self.realm.subscriptions.stall(self.session, stalled=True)
        self._reading.check()

    def resume_writing(self) -> None:
        self.is_writable = True
        self.realm.subscriptions.stall(self.session, stalled=False)

    # --- received messages ---------------------------------------------------------------

    def _receive(
        self, message: wire.FromClient | wire.Asked | wire.Unreadable, body: memoryview
    ) -> None:
        if not self._is_open:
            return
        match message:
            case wire.Hello():
                self._greet(message)
            case wire.Proof(data) if self._signing_in is not None:
                self._signing_in.set_proof(data)
            case _ if not self.session:
                self._answer_before_hello(message)
            case wire.Unreadable() | wire.Schema() | wire.Follow() | wire.Bye():
                self._receive_special(message, body)
            case (
                wire.Asked(_, Settle(number) | Hold(number) | Bury(number) | Extend(number))
                | wire.Credit(number)
                | wire.Demand(number)
                | wire.RecallSeen(number)
            ) if number in self.openings or number in self._early:
                self._early.setdefault(number, []).append(message)
                # An early message counts like a request in progress, so that a client cannot queue
                # any number of them.
                self._in_progress += 1
            case wire.Credit() | wire.Demand() | wire.RecallSeen():
                self._pass_to_subscription(message)
            case wire.Asked(number, request):
                self._ask(number, request, body)
            case _:
                raise RemoteProtocolViolation(f"{type(message).__name__} is not expected here")

    def _receive_special(
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
        """Send the owners in the cluster, now and after each change."""
        find = self.listener.owners
        self._owners_sent = wire.Owners(0, {}) if find is None else find()
        self.send(self._owners_sent)

    def _answer_before_hello(self, message: wire.FromClient | wire.Asked | wire.Unreadable) -> None:
        """Answer a peer that has not sent Hello. It may only ping, to test whether a realm answers,
        or follow the owners."""
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
        assert self.requests is not None, "welcome() has set it"
        if body:
            self._publishes = True
        self._last_request = max(self._last_request, number)
        self.requests.take(number, request, body)

    def process_early_messages(self, number: int) -> None:
        """Process early messages for a subscription that is now open or was refused.

        Events are sent as soon as a seat is taken, so the client's answers may arrive before the
        task that opens the subscription has continued. Later messages also wait, to keep their
        order.
        """
        if number in self._early:
            self._loop.call_soon(self._catch_up, number)

    def _catch_up(self, number: int) -> None:
        """Process the messages about a subscription that arrived before it was open."""
        early = self._early.pop(number, [])
        self._in_progress -= len(early)
        try:
            for message in early:
                self._receive(message, memoryview(b""))  # messages that may be early have no body
        except PenstockError as error:
            self.end(error)

    def _pass_to_subscription(self, message: wire.Credit | wire.Demand | wire.RecallSeen) -> None:
        """Pass a message that needs no answer to its subscription."""
        # The realm may have closed the subscription while the message was in transit.
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
            raise RemoteProtocolViolation("a connection must send Hello once, with a session id")
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
        """Welcome a client that has signed in. Raises ``LimitReached``, and ``AccessDenied`` if the
        session belongs to another user."""
        self._signing_in = None
        # The connection was lost during the sign-in.
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
        self.requests = Requests(self, self.caller)
        # Large frames are accepted only now that the client has signed in.
        self._reader.frame_bytes_max = FRAME_BYTES_MAX
        self._incomplete = self.listener.incomplete.open(principal)
        self.announced.held = self.listener.announced_schemas.open(principal)
        fields = (
            self.realm.identity,
            self.realm.name,
            self.listener.version,
            self.realm.limits.event_bytes_max,
            FRAME_BYTES_MAX,
        )
        if (find_owners := self.listener.owners) is None:
            self.send(wire.Welcome(*fields))
            return
        owners, heartbeat_s = find_owners(), self.listener.heartbeat_s
        node = "".join(owners.owners.values())
        self.send(
            wire.ClusterWelcome(*fields, heartbeat_s=heartbeat_s, nodes=owners.nodes, node=node)
        )

    def tell_owners(self, owners: wire.Owners) -> None:
        """Send changed owners to a client that follows them."""
        if self._owners_sent is not None and self._owners_sent != owners:
            self._owners_sent = owners
            self.send(owners)

    @property
    def _speaks_for(self) -> Principal | None:
        """The principal on whose behalf a cluster node connects (SEM N9); None for clients."""
        transport = self._transport
        return transport.origin.speaks_for if isinstance(transport, RelayedTransport) else None

    @property
    def permits(self) -> Permits | None:
        """The rights of the connection's principal; None if rights are not checked."""
        return None if self.caller is None else self.caller.permits

    def _may_read(self) -> bool:
        listener = self.listener
        return (
            self.is_writable
            and self._in_progress < REQUESTS_MAX
            and not (self._publishes and listener.is_congested)
            and not listener.is_draining
            and self._has_room_for_frame()
        )

    def _has_room_for_frame(self) -> bool:
        """Return whether the frame that is being received fits into the user's limit.

        Its whole length is counted immediately, so that a frame that has begun can always be
        received completely.
        """
        if not (self._reader.holds_bytes or self._incomplete.counted or self._large_headers.bytes):
            return True
        return self._incomplete.fits(self._reader.incomplete_bytes + self._large_headers.bytes)

    def stop_reading(self) -> None:
        """Stop reading further requests, because the listener is draining."""
        self._reading.check()

    @property
    def owes_answers(self) -> bool:
        """Whether requests are in progress, other than those that open subscriptions, which the
        client repeats at the next owner in any case."""
        early = sum(map(len, self._early.values()))
        return self._in_progress > len(self.openings) + early

    def _reading_resumed(self, now_s: float) -> None:
        self.heard_s = now_s

    def check(self, now_s: float) -> None:
        """End the connection if its peer has sent or read nothing for too long; called
        regularly."""
        limits = self.listener.limits
        if self._transport is None:
            return
        # Only the expiry of a proof needs a regular check; changes of rights call `check_rights`.
        if self.permits is not None and self.permits.principal.until_us:
            self.check_rights()
        if not self.session and self._owners_sent is None:
            if now_s - self._opened_s > limits.hello_timeout_s:
                self.end(
                    ConnectionLost(f"no Hello was received within {limits.hello_timeout_s:g} s")
                )
            return
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent or (self._reading.is_paused and self.is_writable):
            self.heard_s = now_s  # the peer reads, or this side has paused reading
        self._unsent = unsent
        if now_s - self.heard_s > limits.idle_timeout_s:
            self.end(ConnectionLost(f"nothing was received for {limits.idle_timeout_s:g} s"))

    # --- sent messages -------------------------------------------------------------------

    def check_rights(self) -> None:
        """End the subscriptions that the user may no longer have, or the whole connection, after a
        change of rights (SEM A3)."""
        permits = self.permits
        if permits is None:
            return
        try:
            self.realm.access.check_still(permits.principal, self.realm.clock.now_us())
        except PenstockError as error:
            self.end(error)
            return
        for number, subscription in list(self.subscriptions.items()):
            refusal = permits.refusal(number)
            # A subscription that is being opened (0) is checked when it is open.
            if refusal is not None and subscription:
                self.listener.realm.connections.count_error(refusal)
                self.realm.subscriptions.detach(subscription)
                self.forget(number)
                self.send(wire.Closed(number, refusal.code, str(refusal)))

    def send(self, message: wire.Message, *bodies: bytes | bytearray | memoryview) -> None:
        """Queue a frame; the frames of one turn of the loop are sent together."""
        if self._transport is None:
            return
        if self._counts_answers and isinstance(message, wire.Done | wire.Failed):
            self._stop_counting(message.request)
        self._out += frame(wire.encode(message), *bodies)
        if not self._flush_is_due:
            self._flush_is_due = True
            self.listener.flush_soon(self)
        if bodies:
            self._out_bytes += sum(map(len, bodies))
            if self._out_bytes > WRITE_HIGH_WATER:
                # Only the transport notices that the peer does not read. Without this flush, one
                # turn of the loop could queue any number of deliveries.
                self.flush()

    def _stop_counting(self, request: int) -> None:
        """Stop counting a request that gets its answer."""
        if self._quota is not None:
            self._quota.end_request(request)
        self._large_headers.answered(request)

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
            incident_id = new_incident_id()
            _log.error("request.failed", incident=incident_id, peer=self._peer(), exc_info=error)
            error = as_internal_error(incident_id)
        self.listener.realm.connections.count_error(error)
        self.send(wire.Failed(request, error.code, str(error)))

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason. A peer that does not close in time is dropped."""
        transport = self._transport
        if reason is not None and transport is not None and not transport.is_closing():
            self.listener.realm.connections.count_error(reason)
            goodbye = wire.Goodbye(reason.code, str(reason))
            if self.session:
                goodbye = wire.Parting(goodbye.code, goodbye.text, taken=self._last_request)
            self.send(goodbye)
        self._is_open = False
        self.flush()
        self._leave(lost=reason is not None)
        close(transport)

    def abort(self) -> None:
        """Drop the connection without sending a reason."""
        if self._transport is not None:
            self._transport.abort()

    def cut(self) -> None:
        """Drop the connection because another owner has taken over, so that nothing outdated is
        sent."""
        self.abort()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait because the peer does not read them."""
        queued = sum(map(len, self._out))
        return queued + (self._transport.get_write_buffer_size() if self._transport else 0)

    def describe(self) -> ConnectionState:
        """Return a description of the connection for administrators."""
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
            is_stalled=not self.is_writable,
        )

    def forget(self, number: int) -> int | None:
        """Remove a subscription, and return the realm's number of it; None if it does not exist."""
        if self.permits is not None:
            self.permits.forget(number)
        return self.subscriptions.pop(number, None)

    def end_watch(self, number: int) -> None:
        """End the watch with this number; do nothing if it does not exist."""
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
        except Exception as error:  # noqa: BLE001  a defect must not end other requests
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
        """Content of the peer's verified certificate; None without one."""
        certificate = self._transport.get_extra_info("peercert") if self._transport else None
        return cast("Mapping[str, Any] | None", certificate)

    @property
    def is_secure(self) -> bool:
        """Whether the connection uses TLS."""
        context = self._transport.get_extra_info("sslcontext") if self._transport else None
        return context is not None

    def _peer(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport else None
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and peer else "local"
