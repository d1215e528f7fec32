"""One AMQP connection (bytes in and out, links, end of the connection), and the hub that creates
connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property
from typing import Any, Final, ParamSpec

from proton import Event, Link, Session, symbol

from penstock_amqp.addresses import LinkDestination
from penstock_amqp.amqp_service import AmqpService
from penstock_amqp.conditions import (
    DECODE,
    LOCKED,
    TOO_LARGE,
    TOO_MANY,
    TOO_MUCH,
    condition_of,
    decoding_error,
    description_of,
)
from penstock_amqp.engine import FRAME_BYTES_MAX, AmqpEngine
from penstock_amqp.fault_barrier import FaultBarrier
from penstock_amqp.gate import Gate
from penstock_amqp.kept import retain
from penstock_amqp.kept_messages import ConnectionKept
from penstock_amqp.limits import AmqpLimits
from penstock_amqp.link_ends import IncomingLink, OutgoingLink
from penstock_amqp.links import Links
from penstock_amqp.open_frame import (
    open_connection,
    refuse_connection,
    sole_policy,
    sole_properties,
)
from penstock_amqp.read_batching import ReadBatch
from penstock_amqp.signing_in import SaslSignIn, without_sasl
from penstock_amqp.sole_connections import SoleConnection
from penstock_amqp.transactions import TransactionCoordinator
from penstock_amqp.wire import FIRST_BYTES, sasl
from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.api.requests import Request
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    InvalidEvent,
    PenstockError,
    RemoteProtocolViolation,
)
from penstock_server.frontends.native.hosted_connection import HostedConnection
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.backpressure import ReadThrottle
from penstock_server.frontends.shared.front_end_service import FrontEndService
from penstock_server.frontends.shared.transports import close
from penstock_server.runtime.access.askers import Asker, asker
from penstock_server.runtime.access.open_connections import ConnectionState
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.door import check_on

TURN_BYTES: Final = 32 << 10
"""Bytes processed before other connections get their turn. If no other connection has received
bytes lately, all received bytes are processed immediately, because that costs less."""
LATELY_S: Final = 0.05
"""A connection that has received bytes within this time, in seconds, gets its turn."""
UNSENT_MAX: Final = 8 << 20
"""Maximum bytes of messages that wait for the peer's session window; above it, the connection gets
no more events."""
TICK_S_MIN: Final = 0.01

P = ParamSpec("P")

_log = logger("penstock.amqp")


class AmqpConnection(HostedConnection):
    """The asyncio protocol of one AMQP connection. Received bytes pass through sign-in, gate and
    engine to the links; the output of the engine goes to the transport."""

    protocol = "amqp"

    def __init__(self, service: AmqpService) -> None:
        super().__init__(service.listener)
        self.service = service
        self.container = ""
        """The peer's container id; for JMS clients, the client id."""
        self.is_writable = True
        self._incomplete = service.listener.incomplete.open(Principal(ANONYMOUS, ""))
        self.in_flight_bytes = 0
        """Bytes of messages that are not yet stored."""
        limits = service.limits
        idle_timeout_s = service.listener.limits.idle_timeout_s
        self.engine = AmqpEngine(self, idle_timeout_s, limits.parts_bytes_max)
        self.containing = FaultBarrier(self)
        self.transactions = TransactionCoordinator(self)
        self.certificate: Mapping[str, Any] | None = None
        self.is_secure = False
        self.links = Links(self)
        self._gate = Gate(self, FRAME_BYTES_MAX, limits.links_max)
        self._frames: sasl.SaslFrames | None = sasl.SaslFrames()
        self._sign_in: SaslSignIn | None = None
        self._is_signed_in = False
        self._not_admitted: PenstockError | None = None
        """Reason for a refusal that can be sent only after the open frame."""
        self._sole: SoleConnection | None = None
        """The connection's entry, if it claims to be the only connection of its container."""
        self._is_backed_up = False
        """Whether more than `UNSENT_MAX` bytes wait for the peer's session window."""
        self._in_progress = 0
        """Number of running tasks of the connection."""
        self._flush_is_due = False
        """Whether the listener will flush the connection in this turn of the event loop."""
        self._ticking: asyncio.TimerHandle | None = None
        """Timer of the next check for timeouts."""
        self._reading = ReadThrottle(self._may_read, self._reading_resumed, self._take_turn)
        self._read_batch = ReadBatch(self._process, self._reading.data_arrived)
        self._can_write = True
        self._asker = Asker()

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.certificate = transport.get_extra_info("peercert")
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        self._not_admitted = self.listener.suspended
        if not self.listener.opened(self, is_refused_later=True):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        self.service.traffic.received_bytes += len(data)
        self._read_batch.add(data)

    def _take_turn(self) -> bool:
        """Process some of the received bytes. Return True if more bytes wait."""
        if self.listener.others_heard(self, self._loop.time() - LATELY_S):
            return self._read_batch.take_some(TURN_BYTES)
        self._read_batch.flush()
        return False

    def _process(self, data: bytes) -> None:
        """Process received bytes: SASL frames during the sign-in, then AMQP frames. An error in
        them ends only this connection."""
        with self.containing:
            try:
                if self._frames is None:
                    self._gate.feed(data)
                else:
                    self._frames.feed(data)
                    self._before_amqp(self._frames)
            except RemoteProtocolViolation as error:
                self._protocol_error(error)
        self.flush()
        self._reading.check()

    def eof_received(self) -> bool:
        self._read_batch.flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_batch.end()
        self._transport = None
        self._incomplete.close()
        if self._ticking is not None:
            self._ticking.cancel()
        self._reading.end()
        self.is_open = False
        self.is_writable = False
        self._asker.disconnect()
        self._sign_in = None
        self.listener.closed(self)
        self._leave(lost=not self.engine.is_closed_by_peer)

    def pause_writing(self) -> None:
        self._can_write = False
        self._check_writable()
        self._reading.check()

    def resume_writing(self) -> None:
        self._can_write = True
        self._check_writable()
        self.flush_soon()

    # --- before AMQP ---------------------------------------------------------------------

    def _before_amqp(self, frames: sasl.SaslFrames) -> None:
        """Process protocol headers and SASL frames until AMQP frames follow, or until the sign-in
        has to wait. Raises ``RemoteProtocolViolation``."""
        while self._frames is frames:
            if self._sign_in is not None:
                if self._sign_in.is_busy or (frame := frames.frame()) is None:
                    return
                self._sign_in.take(frame)
                continue
            if (header := frames.header()) is None:
                return
            self._begin(header, frames)

    def _begin(self, header: bytes, frames: sasl.SaslFrames) -> None:
        """Begin the protocol that a header announces: SASL, or AMQP. Raises
        ``RemoteProtocolViolation`` for other headers, after the header that would be accepted was
        sent."""
        if header == sasl.PROTOCOL:
            if not self._is_signed_in:
                principal = without_sasl(self.realm.access, self.certificate, self.host)
                if principal is None:
                    self._write(sasl.SASL_PROTOCOL)
                    raise RemoteProtocolViolation(
                        "this realm does not accept anonymous connections; sign in with SASL"
                    )
                self._identify(principal)
            self._frames = None
            self._gate.feed(header + frames.rest())
        elif header == sasl.SASL_PROTOCOL and not self._is_signed_in:
            self._sign_in = SaslSignIn(self, self.realm.access)
            self._write(header + sasl.mechanisms(self._sign_in.mechanisms))
        else:
            self._write(sasl.PROTOCOL if self._is_signed_in else sasl.SASL_PROTOCOL)
            raise RemoteProtocolViolation(
                f"{header!r} is not an AMQP 1.0 protocol header that is allowed at this point"
            )

    def send_sasl(self, frame: bytes) -> None:
        """Send a SASL frame."""
        self._write(frame)

    def signed_in(self, principal: Principal, additional_data: bytes | None) -> None:
        """Continue after a successful sign-in."""
        if self._transport is None:
            return
        self._identify(principal)
        self._write(sasl.outcome(sasl.OK, additional_data))
        self._sign_in = None
        # A client sends a second protocol header after the sign-in.
        frames, self._frames = self._frames, sasl.SaslFrames()
        assert frames is not None, "the sign-in used these frames"
        if unprocessed := frames.rest():  # bytes sent before the client knew the outcome
            self._process(unprocessed)

    def not_signed_in(self) -> None:
        """Tell the client that its sign-in has failed, and close the connection."""
        self._write(sasl.outcome(sasl.AUTH))
        self._close_transport()

    def _identify(self, principal: Principal) -> None:
        """Give the connection its signed-in user, and count it for the user's limits."""
        self.principal = principal
        self._incomplete = self.listener.incomplete.open(principal)
        self.publisher = principal.name
        self._is_signed_in = True
        if self._not_admitted is not None:
            return
        try:
            self.listener.greeted(self, f"amqp-{self.number}")
        except PenstockError as error:  # the reason can be sent only after an open frame
            self._not_admitted = error
            return
        self.session = f"amqp-{self.number}"

    # --- reports of the gate --------------------------------------------------------------

    def feed(self, data: bytes | memoryview) -> None:
        """Pass checked frames to the engine."""
        self.engine.feed(data)

    def note_transfer_state(self) -> None:
        """Make the engine read the delivery state of each transfer from now on: a state may name a
        transaction."""
        self.engine.reads_states = True

    def fail(self, condition: str, text: str) -> None:
        """End the connection, because the peer has violated the protocol."""
        _log.warning("amqp.refused", connection=self.number, host=self.host, reason=text)
        self._end_with(condition, text)

    def fail_session(self, session: Session, condition: str, text: str) -> None:
        """End a session, because the peer has violated the protocol in it."""
        _log.warning("amqp.refused", connection=self.number, host=self.host, reason=text)
        self.links.fail_session(session, condition, text)

    def fail_link(
        self, session: Session, name: str, condition: str, text: str, *, is_sender: bool
    ) -> None:
        """End a link, because the peer asks for an unsupported feature or sent an invalid frame."""
        self.links.fail(session, name, condition, description=text, is_sender=is_sender)

    def names_source(self, link: Link) -> bool:
        """Return True if the peer has sent a source, possibly without an address."""
        return self._gate.names_source(link.session, link.name)

    def take_away(self, session: Session, name: str, *, is_sender: bool) -> None:
        """End a link whose name the peer has attached again in the same session."""
        self.links.take_away(session, name, is_sender=is_sender)

    # --- reports of the engine -----------------------------------------------------------

    def received(self, link: IncomingLink) -> None:
        """Process the messages received on a link."""
        self.pace.count(len(link.messages))
        if not self.is_open:
            link.messages.clear()
            link.deliveries.clear()
            return
        if self.transactions.is_coordinator(link):
            self.transactions.process_requests(link)
            return
        if (attached := self.links.attached_of(link)) is not None and attached.producer is not None:
            attached.producer.publish_received()

    def settled(self, link: OutgoingLink) -> None:
        """Process outcomes and new credit of a link."""
        if (attached := self.links.attached_of(link)) is None:
            return
        if attached.consumer is not None:
            attached.consumer.settled()
        elif link.is_draining:  # a look-up link, which never delivers events
            self.engine.answer_drain(link)

    def too_large(self, link: IncomingLink) -> None:
        """End the link of a message that exceeds the size limit."""
        limit = self.realm.limits.event_bytes_max
        self.end_link(
            link, TOO_LARGE, f"a message has more than {limit} bytes, the limit (max_event_bytes)"
        )

    def too_early(self, link: Link) -> None:
        """Refuse a message on a link that is not open yet."""
        self.links.too_early(link)

    def too_many(self, link: IncomingLink) -> None:
        """End a link whose sender has exceeded its credit."""
        text = "the link sent more messages than it has credit for; the last ones were not stored"
        self.end_link(link, TOO_MANY, text)

    def may_hold(self, size: int) -> bool:
        """Set the bytes of this connection's unfinished messages to ``size``. Return True if they
        fit the user's limit."""
        return self._transport is None or self._incomplete.fits(size)

    def too_many_parts(self, link: IncomingLink) -> None:
        """End a link whose unfinished messages exceed the memory limit."""
        self.end_link(
            link,
            TOO_MUCH,
            f"unfinished messages take too many bytes; allowed are "
            f"{self.service.limits.parts_bytes_max} for a connection, and half of the realm's free "
            f"bytes for all connections of a user",
        )

    def process_event(self, event: Event) -> None:
        """Process an event of the engine that does not concern messages."""
        kind = event.type
        if kind == Event.CONNECTION_REMOTE_OPEN:
            self._open()
        elif kind == Event.SESSION_REMOTE_OPEN:
            event.session.open()
            self._gate.began(retain(event.session))
        elif kind == Event.LINK_REMOTE_OPEN:
            self.links.attach(event.link)
        elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
            self.links.detach(event.link, closed=kind == Event.LINK_REMOTE_CLOSE)
        elif kind == Event.SESSION_REMOTE_CLOSE:
            self.spawn(self.links.end_session, retain(event.session))
        elif kind == Event.CONNECTION_REMOTE_CLOSE:
            self.spawn(self._end_connection)
        elif kind == Event.TRANSPORT_ERROR:
            reason = str(event.transport.condition)
            _log.warning("amqp.refused", connection=self.number, host=self.host, reason=reason)

    def _open(self) -> None:
        """Answer the peer's open frame: accept or refuse the connection."""
        connection = self.engine.connection
        self.container = connection.remote_container or ""
        connection.container = self.realm.name
        try:
            if self._not_admitted is not None:
                raise self._not_admitted
            policy = sole_policy(connection)
            if policy is not None:
                self._register_sole(policy)
        except PenstockError as error:
            _log.warning("amqp.refused", connection=self.number, host=self.host, reason=str(error))
            self.realm.connections.count_error(error)
            refuse_connection(connection, self.listener.version, error)
            return
        open_connection(connection, self.listener.version, sole_properties(policy))
        self.is_open = True
        self._loop.call_soon(self._tick)

    def _register_sole(self, policy: int) -> None:
        """Register as the only connection of the container. Raises ``NameAlreadyBound``."""
        entry = SoleConnection(
            self.principal.user, policy, self.close_replaced, released=self.links.released
        )
        older = self.service.sole_connections.enter(self.container, entry)
        self.links.former_released = None if older is None else older.released
        self._sole = entry

    async def _end_connection(self) -> None:
        """Close the connection after everything that it held in the realm has been given back, so
        that a client that reconnects finds it free."""
        self._leave(lost=False)
        await self.links.released.wait()
        self.engine.end("", "")
        self.flush_soon()

    def _tick(self) -> None:
        """Let the engine check timeouts, and schedule the next check."""
        if self._transport is None:
            return
        now_s = self._loop.time()
        # The realm does not read, so the peer's silence is not its fault. If the peer does not read
        # our output (`_can_write` is False), its idle timeout continues.
        if self._reading.is_paused and self._can_write:
            self.engine.excuse(now_s)
        next_tick_s = self.engine.tick(now_s)
        self.flush()
        tick_s_max = self.service.limits.tick_s_max
        pause_s = min(tick_s_max, next_tick_s - now_s) if next_tick_s else tick_s_max
        self._ticking = self._loop.call_later(max(TICK_S_MIN, pause_s), self._tick)

    # --- links ---------------------------------------------------------------------------

    def end_link(self, link: IncomingLink | OutgoingLink, condition: str, description: str) -> None:
        """End a link from this side, with the reason."""
        self.links.end(link, condition, description)

    def free_if_answered(self, link: IncomingLink | OutgoingLink) -> None:
        """Account for settled deliveries of a link, and give its sender new credit if possible."""
        self.engine.free_if_answered(link)
        if isinstance(link, IncomingLink) and not link.is_over and not self.is_congested:
            self.engine.refill(link)
        self.flush_soon()

    @cached_property
    def kept_bytes(self) -> ConnectionKept:
        """The account of the bytes of messages that receivers have not settled."""
        return ConnectionKept(
            self.service.kept_by(self.principal.user), self.service.limits.kept_bytes_max
        )

    # --- rights --------------------------------------------------------------------------

    @property
    def caller(self) -> Caller:
        """The signed-in user as caller of the realm's operations."""
        return Caller(self.realm, self.principal, self.session)

    def check_on(self, request_type: type[Request[Any]], destination: LinkDestination) -> None:
        """Raise ``AccessDenied`` unless the user has the right to this request on a destination."""
        check_on(self.caller, destination.kind, destination.name, request_type=request_type)

    def check_rights(self) -> None:
        """End the links that the user has lost the right to, or the whole connection (SEM A3)."""
        if not self._is_signed_in or self.realm.access.is_open:
            return
        try:
            self.realm.access.check_still(self.principal, self.realm.clock.now_us())
        except PenstockError as error:
            self.end(error)
            return
        self.links.check_rights()

    # --- output and backpressure ---------------------------------------------------------

    def flush_soon(self) -> None:
        """Send pending output at the end of this turn of the event loop, or with the answers of a
        group."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self.listener.flush_soon(self)

    def flush(self) -> None:
        """Send pending output now."""
        self._flush_is_due = False
        # The cache lives for one turn of the event loop; a flush is at its end.
        self.service.messages.clear()
        if self._frames is not None or self._transport is None:
            return
        if data := self.engine.output():
            self._write(data)
            self._gate.wrote()
        if self.engine.is_closed:
            self._close_transport()
        # Without links no messages wait, so their bytes need not be counted.
        self._is_backed_up = len(self.links) > 0 and self.engine.unsent_bytes > UNSENT_MAX
        self._check_writable()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.service.traffic.sent_bytes += len(data)
            self._transport.write(data)

    def _check_writable(self) -> None:
        """Stop or resume the realm's deliveries to the connection if its state has changed."""
        is_writable = self._can_write and not self._is_backed_up and self._transport is not None
        if is_writable != self.is_writable:
            self.is_writable = is_writable
            self.realm.subscriptions.stall(self.session, stalled=not is_writable)

    @property
    def is_congested(self) -> bool:
        """Whether senders get no credit for now: the realm is congested, this connection has too
        many bytes in flight, or it has exceeded its rate."""
        in_flight_max = self.listener.limits.each.in_flight_bytes_max
        is_full = in_flight_max > 0 and self.in_flight_bytes > in_flight_max
        return is_full or self.pace.is_ahead or self.listener.is_congested

    @property
    def owes_answers(self) -> bool:
        """Whether messages wait to be stored and confirmed, or a task is in progress."""
        return self._in_progress > 0 or self.in_flight_bytes > 0

    def _may_read(self) -> bool:
        if self.is_congested and (self.pace.is_ahead or self.links.take_messages):
            return False  # connections that only receive are read even if the realm is congested
        return self._can_write and not self.listener.is_draining

    def _reading_resumed(self, now_s: float) -> None:
        """Continue after a pause of reading, which does not count as silence of the peer."""
        self.heard_s = now_s
        self.engine.excuse(now_s)
        self.links.refill()
        self.flush_soon()

    # --- tasks ---------------------------------------------------------------------------

    def spawn(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run a coroutine as a task of this connection, which ends with an error of the task."""
        self._in_progress += 1
        self.listener.spawn(self._run, work, *args, **kwargs)

    async def _run(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        # The realm stops waiting on behalf of a connection that is lost.
        asker.set(self._asker)
        with self.containing:
            try:
                await work(*args, **kwargs)
            except PenstockError as error:
                self.end(error)
            except UnicodeDecodeError as error:
                self._protocol_error(decoding_error(error))
            finally:
                self._in_progress -= 1

    # --- ends ----------------------------------------------------------------------------

    def _protocol_error(self, error: PenstockError) -> None:
        # During the sign-in no AMQP frame can be sent, so the error is only logged.
        _log.warning("amqp.refused", connection=self.number, host=self.host, reason=str(error))
        if self._frames is None:
            self.end(error)
        else:
            self._close_transport()

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason. A peer that does not answer in time is dropped."""
        condition = "" if reason is None else condition_of(reason)
        if reason is not None:
            self.realm.connections.count_error(reason)
        if isinstance(reason, InvalidEvent):  # here it means bytes that cannot be decoded
            condition = DECODE
        self._end_with(condition, "" if reason is None else description_of(reason))

    def close_replaced(self) -> None:
        """Close the connection, because its container has opened a new one."""
        text = f"client {self.container[:40]!r} has connected again, which closes this connection"
        info = {symbol("sole-connection-enforcement"): True}
        self._end_with(LOCKED, text, info, lost=True)

    def _end_with(
        self, condition: str, text: str, info: dict[Any, Any] | None = None, *, lost: bool = False
    ) -> None:
        if self._frames is None and self._transport is not None:
            self.engine.end(condition, text, info)
            self.flush()
        self._leave(lost=lost)
        self._close_transport()

    def _close_transport(self) -> None:
        close(self._transport)

    def _leave(self, *, lost: bool) -> None:
        """Give back immediately everything that the connection held (SEM D13). If it is ``lost``,
        its subscribers may resume (SEM J5)."""
        self.is_open = False
        if self._sole is not None:
            self.service.sole_connections.leave(self.container, self._sole)
            self._sole = None
        self.transactions.end()
        self.links.leave(lost=lost)

    def check(self, now_s: float) -> None:
        """End a connection that has not been opened in time or whose rights have expired. Called
        regularly."""
        if self._transport is None:
            return
        if self._is_signed_in and self.principal.until_us:
            self.check_rights()
        if not self.is_open and now_s - self._opened_s > self.listener.limits.hello_timeout_s:
            limit = self.listener.limits.hello_timeout_s
            self.end(ConnectionLost(f"the client did not open the connection within {limit:g} s"))

    def describe(self) -> ConnectionState:
        """Return a description of the connection for administrators."""
        return self._description(
            f"AMQP 1.0 {self.container}",
            subscriptions=self.links.consumers,
            requests=self._in_progress,
            is_stalled=not self.is_writable,
        )


class AmqpHub(FrontEndService):
    """Creates AMQP connections, and accepts them on ports."""

    def __init__(self, listener: NativeListener, limits: AmqpLimits | None = None) -> None:
        self.service = AmqpService(listener, limits or AmqpLimits())

    def connection(self) -> AmqpConnection:
        """Create the asyncio protocol of a new connection."""
        return AmqpConnection(self.service)

    async def listen(self, host: str, port: int) -> int:
        """Accept AMQP connections on this port, on the native port and in WebSockets of the HTTP
        port. Return the port number."""
        realm, listener = self.service.realm, self.service.listener
        await realm.reply_queues.remove_ended(realm.access)
        listener.offer("amqp", self.connection, first_bytes=FIRST_BYTES)
        return await listener.listen(host, port, self.connection)
