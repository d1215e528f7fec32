"""One AMQP connection: bytes in and out, its links, and its end; and what makes connections."""

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
from penstock_amqp.kept import kept
from penstock_amqp.kept_messages import ConnectionKept
from penstock_amqp.limits import AmqpLimits
from penstock_amqp.link_ends import IncomingLink, OutgoingLink
from penstock_amqp.links import Links
from penstock_amqp.open_frame import not_opened, opened, sole_policy, sole_properties
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
"""Bytes that are taken in before others have their turn. Where no other connection was heard
lately, all that has come is taken in at once, because that costs less."""
LATELY_S: Final = 0.05
"""Seconds after which a connection that is quiet counts no more as one that wants its turn."""
UNSENT_MAX: Final = 8 << 20
"""Most bytes of messages that wait for the peer's window; above, the connection gets no more."""
TICK_S_MIN: Final = 0.01
TICK_S_MAX: Final = 5.0
"""Most seconds between two checks for timeouts."""

P = ParamSpec("P")

_log = logger("penstock.amqp")


class AmqpConnection(HostedConnection):
    protocol = "amqp"

    def __init__(self, service: AmqpService) -> None:
        super().__init__(service.listener)
        self.service = service
        self.container = ""
        """The peer's container id: for a JMS client, its client id."""
        self.writable = True
        self._incomplete = service.listener.incomplete.open(Principal(ANONYMOUS, ""))
        self.in_flight_bytes = 0
        """Bytes of messages that are not stored yet."""
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
        self._not_admitted: PenstockError | None = None  # set when the user is known, but refused
        self._sole: SoleConnection | None = None
        """Its entry, when it wants to be the only connection of its container."""
        self._is_backed_up = False
        self._in_progress = 0
        self._flush_is_due = False
        self._ticking: asyncio.TimerHandle | None = None
        """The next look at the time."""
        self._reading = ReadThrottle(self._may_read, self._reads_again, self._take_turn)
        self._gathering = ReadBatch(self._take_in, self._reading.came)
        self._takes_more = True
        self._asker = Asker()

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.certificate = transport.get_extra_info("peercert")
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        self._not_admitted = self.listener.suspended  # told once there is an open frame
        if not self.listener.opened(self, is_told_later=True):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        self.service.traffic.received_bytes += len(data)
        self._gathering.add(data)

    def _take_turn(self) -> bool:
        """Take in some of what has come; gives whether there is more of it."""
        if self.listener.others_heard(self, self._loop.time() - LATELY_S):
            return self._gathering.take_some(TURN_BYTES)
        self._gathering.flush()
        return False

    def _take_in(self, data: bytes) -> None:
        with self.containing:
            try:
                if self._frames is None:
                    self._gate.feed(data)
                else:
                    self._frames.feed(data)
                    self._before_amqp(self._frames)
            except RemoteProtocolViolation as error:
                self._violated(error)
        self.flush()
        self._reading.check()

    def eof_received(self) -> bool:
        self._gathering.flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gathering.end()
        self._transport = None
        self._incomplete.close()
        if self._ticking is not None:
            self._ticking.cancel()
        self._reading.end()
        self.is_open = False
        self.writable = False
        self._asker.go()
        self._sign_in = None
        self.listener.closed(self)
        self._leave(lost=not self.engine.is_closed_by_peer)

    def pause_writing(self) -> None:
        self._takes_more = False
        self._check_writable()
        self._reading.check()

    def resume_writing(self) -> None:
        self._takes_more = True
        self._check_writable()
        self.flush_soon()

    # --- before AMQP ---------------------------------------------------------------------

    def _before_amqp(self, frames: sasl.SaslFrames) -> None:
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
        if header == sasl.PROTOCOL:
            if not self._is_signed_in:
                principal = without_sasl(self.realm.access, self.certificate, self.host)
                if principal is None:
                    self._write(sasl.SASL_PROTOCOL)
                    raise RemoteProtocolViolation(
                        "authentication required: this realm does not accept anonymous connections"
                    )
                self._known(principal)
            self._frames = None
            self._gate.feed(header + frames.rest())
        elif header == sasl.SASL_PROTOCOL and not self._is_signed_in:
            self._sign_in = SaslSignIn(self, self.realm.access)
            self._write(header + sasl.mechanisms(self._sign_in.mechanisms))
        else:
            self._write(sasl.PROTOCOL if self._is_signed_in else sasl.SASL_PROTOCOL)
            raise RemoteProtocolViolation(f"not an AMQP 1.0 protocol header: {header!r}")

    def send_sasl(self, frame: bytes) -> None:
        """Send a SASL frame."""
        self._write(frame)

    def signed_in(self, principal: Principal, said: bytes | None) -> None:
        """Continue after a successful sign-in."""
        if self._transport is None:
            return
        self._known(principal)
        self._write(sasl.outcome(sasl.OK, said))
        self._sign_in = None
        frames, self._frames = self._frames, sasl.SaslFrames()
        assert frames is not None, "it was signing in"
        if rest := frames.rest():  # bytes that followed the sign-in
            self._take_in(rest)

    def not_signed_in(self) -> None:
        """Continue after a failed sign-in."""
        self._write(sasl.outcome(sasl.AUTH))
        self._close_transport()

    def _known(self, principal: Principal) -> None:
        self.principal = principal
        self._incomplete = self.listener.incomplete.open(principal)
        self.publisher = principal.name
        self._is_signed_in = True
        if self._not_admitted is not None:
            return
        try:
            self.listener.greeted(self, f"amqp-{self.number}")
        except PenstockError as error:  # only after an open frame can the reason be sent
            self._not_admitted = error
            return
        self.session = f"amqp-{self.number}"

    # --- what the gate tells --------------------------------------------------------------

    def feed(self, data: bytes | memoryview) -> None:
        """Give checked frames to the engine."""
        self.engine.feed(data)

    def has_states(self) -> None:
        """Have the engine look at the states of transfers, which may name a transaction."""
        self.engine.has_states = True

    def fail(self, condition: str, text: str) -> None:
        """End the connection, because the peer has broken the protocol."""
        _log.warning("amqp.refused", connection=self.number, host=self.host, reason=text)
        self._end_with(condition, text)

    def fail_session(self, session: Session, condition: str, text: str) -> None:
        """End a session, because the peer has broken the protocol in it."""
        _log.warning("amqp.refused", connection=self.number, host=self.host, reason=text)
        self.links.fail_session(session, condition, text)

    def fail_link(
        self, session: Session, name: str, condition: str, text: str, *, is_sender: bool
    ) -> None:
        """End a link that the peer asks for something that does not exist."""
        self.links.fail(session, name, condition, description=text, is_sender=is_sender)

    def says_source(self, link: Link) -> bool:
        """Whether the peer has named a source, possibly without an address."""
        return self._gate.says_source(link.session, link.name)

    def take_away(self, session: Session, name: str, *, is_sender: bool) -> None:
        """End a link whose name the peer has attached again in the same session."""
        self.links.take_away(session, name, is_sender=is_sender)

    # --- what the engine tells -----------------------------------------------------------

    def received(self, link: IncomingLink) -> None:
        """Handle the messages that have come by a link."""
        self.pace.came(len(link.messages))
        if not self.is_open:
            link.messages.clear()
            link.deliveries.clear()
            return
        if self.transactions.coordinates(link):
            self.transactions.take(link)
            return
        if (attached := self.links.of(link)) is not None and attached.producer is not None:
            attached.producer.take()

    def settled(self, link: OutgoingLink) -> None:
        """Handle outcomes, or new credit, of a link."""
        if (attached := self.links.of(link)) is None:
            return
        if attached.consumer is not None:
            attached.consumer.settled()
        elif link.is_draining:  # this link only ends a subscription, and delivers nothing
            self.engine.drained(link)

    def too_large(self, link: IncomingLink) -> None:
        """End the link of a message that exceeds the size limit."""
        limit = self.realm.limits.event_bytes_max
        self.end_link(
            link, TOO_LARGE, f"a message may have at most {limit} bytes (max_event_bytes)"
        )

    def too_early(self, link: Link) -> None:
        """Refuse a message that came by a link that is not open yet."""
        self.links.too_early(link)

    def too_many(self, link: IncomingLink) -> None:
        """End a link that has sent more messages than it had credit for."""
        text = "the link sent more messages than it has credit for; the last ones were not accepted"
        self.end_link(link, TOO_MANY, text)

    def may_hold(self, size: int) -> bool:
        """Count unfinished messages beside those of the user's other connections."""
        return self._transport is None or self._incomplete.fits(size)

    def too_many_parts(self, link: IncomingLink) -> None:
        """End a link whose unfinished messages take more memory than is allowed."""
        self.end_link(
            link,
            TOO_MUCH,
            f"too many bytes of unfinished messages are waiting; a connection may have "
            f"{self.service.limits.parts_bytes_max}, and all connections of a user half of what "
            f"others leave",
        )

    def happened(self, event: Event) -> None:
        """Handle an event of the engine that is not about messages."""
        kind = event.type
        if kind == Event.CONNECTION_REMOTE_OPEN:
            self._open()
        elif kind == Event.SESSION_REMOTE_OPEN:
            event.session.open()
            self._gate.began(kept(event.session))
        elif kind == Event.LINK_REMOTE_OPEN:
            self.links.attach(event.link)
        elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
            self.links.detach(event.link, closed=kind == Event.LINK_REMOTE_CLOSE)
        elif kind == Event.SESSION_REMOTE_CLOSE:
            self.spawn(self.links.end_session, kept(event.session))
        elif kind == Event.CONNECTION_REMOTE_CLOSE:
            self.spawn(self._end_connection)
        elif kind == Event.TRANSPORT_ERROR:
            reason = str(event.transport.condition)
            _log.warning("amqp.refused", connection=self.number, host=self.host, reason=reason)

    def _open(self) -> None:
        connection = self.engine.connection
        self.container = connection.remote_container or ""
        connection.container = self.realm.name
        try:
            if self._not_admitted is not None:
                raise self._not_admitted
            policy = sole_policy(connection)
            if policy is not None:
                self._enter(policy)
        except PenstockError as error:
            _log.warning("amqp.refused", connection=self.number, host=self.host, reason=str(error))
            self.realm.connections.refused(error)
            not_opened(connection, self.listener.version, error)
            return
        opened(connection, self.listener.version, sole_properties(policy))
        self.is_open = True
        self._loop.call_soon(self._tick)

    def _enter(self, policy: int) -> None:
        """Become the only connection of the container. Raises ``NameAlreadyBound``."""
        entry = SoleConnection(self.principal.user, policy, self.replaced, left=self.links.left)
        older = self.service.sole_connections.enter(self.container, entry)
        self.links.former_left = None if older is None else older.left
        self._sole = entry

    async def _end_connection(self) -> None:
        """End everything the connection held in the realm, and only then tell the peer that it is
        closed."""
        self._leave(lost=False)
        await self.links.left.wait()
        self.engine.end("", "")
        self.flush_soon()

    def _tick(self) -> None:
        if self._transport is None:
            return
        now_s = self._loop.time()
        # otherwise it is the peer that does not read
        if self._reading.is_paused and self._takes_more:
            self.engine.excuse(now_s)
        again_s = self.engine.tick(now_s)
        self.flush()
        pause_s = min(TICK_S_MAX, again_s - now_s) if again_s else TICK_S_MAX
        self._ticking = self._loop.call_later(max(TICK_S_MIN, pause_s), self._tick)

    # --- links ---------------------------------------------------------------------------

    def end_link(self, link: IncomingLink | OutgoingLink, condition: str, description: str) -> None:
        """End a link from this side, with the reason."""
        self.links.end(link, condition, description)

    def answered(self, link: IncomingLink | OutgoingLink) -> None:
        """Note that deliveries of a link were settled, which may give its sender credit again."""
        self.engine.answered(link)
        if isinstance(link, IncomingLink) and not link.is_over and not self.is_congested:
            self.engine.refill(link)
        self.flush_soon()

    @cached_property
    def kept_bytes(self) -> ConnectionKept:
        """The bytes of messages that its receivers have not settled."""
        return ConnectionKept(self.service.kept_by(self.principal.user))

    # --- rights --------------------------------------------------------------------------

    @property
    def caller(self) -> Caller:
        """The signed-in user, as the realm's operations know it."""
        return Caller(self.realm, self.principal, self.session)

    def check_on(self, asked: type[Request[Any]], destination: LinkDestination) -> None:
        """Raise ``AccessDenied`` unless the signed-in user may ask this of a destination."""
        check_on(self.caller, destination.kind, destination.name, asked=asked)

    def check_rights(self) -> None:
        """Rights were taken away: end the links that this connection may no longer have, or all of
        it (SEM A3)."""
        if not self._is_signed_in or self.realm.access.is_open:
            return
        try:
            self.realm.access.check_still(self.principal, self.realm.clock.now_us())
        except PenstockError as error:
            self.end(error)
            return
        self.links.check_rights()

    # --- out -----------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Send pending output at the end of this turn of the loop, or with the answers of a
        group."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self.listener.flush_soon(self)

    def flush(self) -> None:
        """Send pending output now."""
        self._flush_is_due = False
        self.service.messages.clear()
        if self._frames is not None or self._transport is None:
            return
        if data := self.engine.output():
            self._write(data)
            self._gate.wrote()
        if self.engine.is_closed:
            self._close_transport()
        self._is_backed_up = len(self.links) > 0 and self.engine.unsent_bytes > UNSENT_MAX
        self._check_writable()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.service.traffic.sent_bytes += len(data)
            self._transport.write(data)

    def _check_writable(self) -> None:
        writable = self._takes_more and not self._is_backed_up and self._transport is not None
        if writable != self.writable:
            self.writable = writable
            self.realm.subscriptions.stall(self.session, stalled=not writable)

    @property
    def is_congested(self) -> bool:
        """Whether senders get no more credit for now, because the realm is congested, this
        connection has too many bytes in flight, or it has sent more than its rate allows."""
        most = self.listener.limits.each.in_flight_bytes_max
        is_full = most > 0 and self.in_flight_bytes > most
        return is_full or self.pace.is_ahead or self.listener.is_congested

    @property
    def owes_answers(self) -> bool:
        """Whether messages are not stored yet that will be confirmed, or something else is in
        progress."""
        return self._in_progress > 0 or self.in_flight_bytes > 0

    def _may_read(self) -> bool:
        if self.is_congested and (self.pace.is_ahead or self.links.take_messages):
            return False  # who sends no messages does not wait for those who do
        return self._takes_more and not self.listener.is_draining

    def _reads_again(self, now_s: float) -> None:
        self.heard_s = now_s
        self.engine.excuse(now_s)
        self.links.refill()
        self.flush_soon()

    # --- tasks ---------------------------------------------------------------------------

    def spawn(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run something that has to wait for the realm."""
        self._in_progress += 1
        self.listener.spawn(self._done, work, *args, **kwargs)

    async def _done(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        asker.set(self._asker)
        with self.containing:
            try:
                await work(*args, **kwargs)
            except PenstockError as error:
                self.end(error)
            except UnicodeDecodeError as error:
                self._violated(decoding_error(error))
            finally:
                self._in_progress -= 1

    # --- ends ----------------------------------------------------------------------------

    def _violated(self, error: PenstockError) -> None:
        _log.warning("amqp.refused", connection=self.number, host=self.host, reason=str(error))
        if self._frames is None:
            self.end(error)
        else:
            self._close_transport()

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason. A peer that does not answer in time is dropped."""
        condition = "" if reason is None else condition_of(reason)
        if reason is not None:
            self.realm.connections.refused(reason)
        if isinstance(reason, InvalidEvent):
            condition = DECODE
        self._end_with(condition, "" if reason is None else description_of(reason))

    def replaced(self) -> None:
        """Close the connection, because its container has connected again."""
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
        """Give back everything that it held, at once (SEM D13). Subscribers of a connection that is
        ``lost`` may come back (SEM J5)."""
        self.is_open = False
        if self._sole is not None:
            self.service.sole_connections.leave(self.container, self._sole)
            self._sole = None
        self.transactions.end()
        self.links.leave(lost=lost)

    def check(self, now_s: float) -> None:
        """End a connection that does not sign in in time, or whose rights have ended; called
        regularly."""
        if self._transport is None:
            return
        if self._is_signed_in and self.principal.until_us:
            self.check_rights()
        if not self.is_open and now_s - self._opened_s > self.listener.limits.hello_timeout_s:
            limit = self.listener.limits.hello_timeout_s
            self.end(ConnectionLost(f"no connection was opened within {limit:g} s"))

    def describe(self) -> ConnectionState:
        """A description of the connection for administrators."""
        return self._description(
            f"AMQP 1.0 {self.container}",
            subscriptions=self.links.consumers,
            requests=self._in_progress,
            is_stalled=not self.writable,
        )


class AmqpHub(FrontEndService):
    """Makes AMQP connections, and accepts them at ports."""

    def __init__(self, listener: NativeListener, limits: AmqpLimits | None = None) -> None:
        self._service = AmqpService(listener, limits or AmqpLimits())

    def connection(self) -> AmqpConnection:
        """Make the protocol of a new connection."""
        return AmqpConnection(self._service)

    async def listen(self, host: str, port: int) -> int:
        """Accept AMQP connections, here, on the native port and inside the HTTP port's WebSockets;
        gives the port."""
        realm, listener = self._service.realm, self._service.listener
        await realm.reply_queues.remove_ended(realm.access)
        listener.offer("amqp", self.connection, first_bytes=FIRST_BYTES)
        return await listener.listen(host, port, self.connection)
