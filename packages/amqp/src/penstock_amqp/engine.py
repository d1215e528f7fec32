"""Proton's AMQP engine behind a narrow interface: bytes in, reports out; orders in, bytes out.

Messages are processed by Proton's low-level C functions, all called in this module: a Python object
for each engine event would cost ten times as much. Rare events (a link is attached, a session ends)
are reported as Proton's own objects.

A pointer to a delivery is valid until the delivery is settled, a pointer to a link until the link
is freed, and all pointers only while the engine exists: keep the engine with the pointer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final, Protocol
from weakref import proxy

from cproton_ffi import ffi
from cproton_ffi import lib as pn
from proton import (
    Condition,
    Connection,
    Delivery,
    Described,
    Event,
    Link,
    Session,
    Terminus,
    Transport,
    ulong,
)

from penstock_amqp.conditions import decoding_error
from penstock_amqp.flows import Flows, key_of
from penstock_amqp.kept import release_with, retain
from penstock_amqp.link_ends import IncomingLink, OutgoingLink
from penstock_amqp.outcomes import (
    ACCEPTED,
    DECLARED,
    RELEASED,
    TRANSACTIONAL,
    Outcome,
    Pointer,
    describe,
    transaction_of,
)
from penstock_amqp.wire.performatives import encode_close
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import RemoteProtocolViolation

FRAME_BYTES_MAX: Final = 64 << 10
SCRATCH_BYTES: Final = 64 << 10
"""Size in bytes of the buffer that Proton writes to; a longer message gets a separate buffer."""
SESSIONS_MAX: Final = 2_000
"""Maximum number of sessions of a connection."""

_log = logger("penstock.amqp")

_DELIVERY: Final = pn.PN_DELIVERY
_FLOW: Final = pn.PN_LINK_FLOW
_BEGIN: Final = pn.PN_SESSION_REMOTE_OPEN
_ATTACH: Final = pn.PN_LINK_REMOTE_OPEN
_NULL: Final = ffi.NULL
_REPORTED: Final = frozenset(
    {
        pn.PN_CONNECTION_REMOTE_OPEN,
        pn.PN_CONNECTION_REMOTE_CLOSE,
        pn.PN_TRANSPORT_ERROR,
        _BEGIN,
        pn.PN_SESSION_REMOTE_CLOSE,
        _ATTACH,
        pn.PN_LINK_REMOTE_CLOSE,
        pn.PN_LINK_REMOTE_DETACH,
    }
)
"""Proton's events that are reported to the listener as objects; the engine processes the rest."""


class _Scratch(threading.local):
    """The buffer that Proton writes to, shared by all engines of a thread: its content is copied
    before another engine uses it."""

    def __init__(self) -> None:
        buffer = bytearray(SCRATCH_BYTES)
        self.pointer: Pointer = ffi.from_buffer(buffer)
        self.view = memoryview(buffer)


_scratch: Final = _Scratch()


class EngineListener(Protocol):
    """The receiver of the engine's reports."""

    def received(self, link: IncomingLink) -> None:
        """Messages have arrived; the callee removes them from the link."""
        ...

    def settled(self, link: OutgoingLink) -> None:
        """Outcomes of deliveries, or new credit, have arrived."""
        ...

    def process_event(self, event: Event) -> None:
        """Handle a Proton event for which this interface has no other method. Events are reported
        in order."""
        ...

    def too_large(self, link: IncomingLink) -> None:
        """A message is larger than the link accepts."""
        ...

    def too_early(self, link: Link) -> None:
        """A message has arrived on a link that is not open yet."""
        ...

    def too_many(self, link: IncomingLink) -> None:
        """The sender has exceeded the credit of the link."""
        ...

    def may_hold(self, size: int) -> bool:
        """Set the bytes of unfinished messages of all links to ``size``. Return True if they fit
        the limit."""
        ...

    def too_many_parts(self, link: IncomingLink) -> None:
        """Unfinished messages, one of them on this link, exceed the memory limit."""
        ...


class AmqpEngine:
    """The engine of one connection."""

    def __init__(self, peer: EngineListener, idle_timeout_s: float, parts_bytes_max: int) -> None:
        """``parts_bytes_max`` limits the bytes of all unfinished messages; a single message of a
        size that its link accepts always fits."""
        self._peer: EngineListener = proxy(peer)  # weak: the peer owns the engine
        self._parts_bytes_max = parts_bytes_max
        self._parts_bytes = 0
        """Bytes of the unfinished messages of all links."""
        self.connection = retain(Connection())
        self._transport = retain(Transport(Transport.SERVER))
        self._tp: Pointer = self._transport._impl
        self._events: Pointer = pn.pn_collector()
        release_with(self, self._events, pn.pn_collector_free)
        pn.pn_connection_collect(self.connection._impl, self._events)
        self._transport.idle_timeout = self._idle_timeout_s = idle_timeout_s
        self._excused_until_s = 0.0
        """Time on the loop's clock until which the idle timeout does not apply."""
        self._transport.max_frame_size = FRAME_BYTES_MAX
        self._transport.channel_max = SESSIONS_MAX - 1  # the highest channel number
        self._transport.tracer = _log_proton_text
        self._transport.bind(self.connection)
        self._incoming: dict[int, IncomingLink] = {}
        self._outgoing: dict[int, OutgoingLink] = {}
        self._flows = Flows(self._incoming, self._outgoing, FRAME_BYTES_MAX)
        self._touched: dict[IncomingLink | OutgoingLink, None] = {}
        """Links with messages or outcomes that are not reported yet, in the order of arrival."""
        self._ended: list[tuple[Session, set[IncomingLink | OutgoingLink]]] = []
        """Ended sessions, each with those of its links that still have unanswered deliveries."""
        self._waiting: set[IncomingLink | OutgoingLink] = set()
        """Links to free once their deliveries are answered."""
        self._is_reporting = False
        """Whether events are being reported; a nested report does nothing."""
        self._last = b""
        """Bytes to send after everything that Proton has to send."""
        self._scratch_pointer, self._scratch_view = _scratch.pointer, _scratch.view
        self.reads_states = False
        """Whether the delivery state of each transfer is read: the peer has sent a transfer with a
        state, which may name a transaction."""
        self._tag: Pointer = ffi.new("pn_delivery_tag_t *")
        """Delivery tag that is reused for every sent event, to save an allocation."""

    # --- bytes in and out ----------------------------------------------------------------

    def feed(self, data: bytes | memoryview) -> None:
        """Process the peer's bytes and report the resulting events. Raises
        ``RemoteProtocolViolation`` if Proton stops at a frame without reporting an error."""
        try:
            for chunk, frame in self._flows.frames.split(bytes(data)):
                if frame is None:
                    is_accepted = self._push(chunk)
                else:
                    self._report()  # earlier events first: the next ones belong to this frame
                    is_accepted = self._push(self._flows.prepare(frame))
                    self._flows.finish_frame()
                if not is_accepted:
                    break
        except UnicodeDecodeError as error:
            raise decoding_error(error) from None
        self._report_touched()
        if pn.pn_transport_capacity(self._tp) < 0 and self._is_stuck:
            raise RemoteProtocolViolation(
                "the bytes are not an AMQP frame; the performative may be unknown"
            )

    def _push(self, data: bytes) -> bool:
        """Pass bytes to Proton. Return False if it accepts no more."""
        tp, position, remaining = self._tp, ffi.from_buffer(data), len(data)
        while remaining > 0:
            room = pn.pn_transport_capacity(tp)
            if room <= 0:
                return False
            size = min(room, remaining)
            if pn.pn_transport_push(tp, position, size) < 0:
                return False
            position += size
            remaining -= size
            self._report()
        return True

    @property
    def _is_stuck(self) -> bool:
        """Whether the connection is still open and without an error. Together with a closed input,
        this means that Proton could not decode a frame."""
        connection = self.connection
        closed = connection.state & (connection.REMOTE_CLOSED | connection.LOCAL_CLOSED)
        return not closed and self._transport.condition is None

    def output(self) -> bytes:
        """Remove and return the bytes to send to the peer."""
        return self._flows.output(self._produce)

    def _produce(self) -> bytes:
        """Remove and return the bytes that Proton has to send."""
        tp = self._tp
        pending = pn.pn_transport_pending(tp)
        if pending <= 0:
            return b""
        parts = []
        pointer, view = self._scratch_pointer, self._scratch_view
        while pending > 0:
            size = pn.pn_transport_peek(tp, pointer, min(pending, SCRATCH_BYTES))
            if size <= 0:
                break
            parts.append(bytes(view[:size]))
            pn.pn_transport_pop(tp, size)
            pending = pn.pn_transport_pending(tp)
        last, self._last = self._last, b""
        if last:
            parts.append(last)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def tick(self, now_s: float) -> float:
        """Process timeouts: end the connection of a silent peer, and send an empty frame before the
        peer's timeout. Return the time in seconds of the next call; 0 for never."""
        is_excused = now_s < self._excused_until_s
        self._transport.idle_timeout = 0 if is_excused else self._idle_timeout_s
        again_s: float = self._transport.tick(now_s)
        self._report()
        if not is_excused:
            return again_s
        return min(again_s or self._excused_until_s, self._excused_until_s)

    def excuse(self, now_s: float) -> None:
        """Restart the idle timeout, because the peer was not read until now, so its apparent
        silence is not its fault."""
        self._excused_until_s = now_s + self._idle_timeout_s

    def end(self, condition: str, description: str, info: dict[Any, Any] | None = None) -> None:
        """Close the connection, with an error if ``condition`` is not empty."""
        if not self.connection.state & self.connection.LOCAL_CLOSED:
            if self.connection.state & self.connection.LOCAL_UNINIT:
                self.connection.open()
            if condition and self.connection.state & self.connection.REMOTE_UNINIT:
                # Proton would wait for the peer's open before it sends the close.
                self._last = encode_close(condition, description)
            if condition:
                self.connection.condition = Condition(condition, description, info)
            self.connection.close()

    @property
    def is_closed(self) -> bool:
        """Whether the transport is closed in both directions."""
        return bool(pn.pn_transport_closed(self._tp)) or pn.pn_transport_pending(self._tp) < 0

    @property
    def is_closed_by_peer(self) -> bool:
        """Whether the peer has sent a close frame."""
        return bool(self.connection.state & self.connection.REMOTE_CLOSED)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of messages that have credit but wait for the session window."""
        size, session = 0, pn.pn_session_head(self.connection._impl, 0)
        while session != _NULL:
            size += pn.pn_session_outgoing_bytes(session)
            session = pn.pn_session_next(session, 0)
        return size

    # --- events --------------------------------------------------------------------------

    def _report(self) -> None:
        """Report all events. A callee may cause further events; a nested call does nothing, and the
        outer loop reports them."""
        if self._is_reporting:
            return
        self._is_reporting = True
        try:
            self._report_all()
        finally:
            self._is_reporting = False

    def _report_all(self) -> None:
        # The hot loop of the package: global names are bound to local ones, and messages and
        # outcomes create no Python event objects.
        events, peek, pop = self._events, pn.pn_collector_peek, pn.pn_collector_pop
        kind_of, delivery_of, link_of = (
            pn.pn_event_type,
            pn.pn_event_delivery,
            pn.pn_event_link,
        )
        cast = ffi.cast
        incoming, outgoing, touched = self._incoming, self._outgoing, self._touched
        # Consecutive events mostly concern one link, so the look-up of the last link is kept.
        last_pointer, key, incoming_link = _NULL, 0, None
        while (event := peek(events)) != _NULL:
            kind = kind_of(event)
            if kind == _DELIVERY:
                pointer = link_of(event)
                if pointer != last_pointer:
                    key = int(cast("uintptr_t", pointer))
                    last_pointer, incoming_link = pointer, incoming.get(key)
                if incoming_link is not None:
                    if self._read_delivery(incoming_link, delivery_of(event), pointer):
                        touched[incoming_link] = None
                elif (outgoing_link := outgoing.get(key)) is not None:
                    self._read_outcome(outgoing_link, delivery_of(event))
                    touched[outgoing_link] = None
                else:
                    self._refuse_early(pointer)
                    _discard(pointer, delivery_of(event))
            elif kind == _FLOW:
                self._process_flow(link_of(event))
            elif kind in _REPORTED:
                last_pointer = _NULL  # the callee may add and remove links
                self._report_rare(kind, event)
            pop(events)

    def _process_flow(self, pointer: Pointer) -> None:
        key = key_of(pointer)
        self._flows.flow_reported(key)
        if (link := self._outgoing.get(key)) is not None:
            link.has_flow = True
            self._touched[link] = None

    def _report_rare(self, kind: int, event: Pointer) -> None:
        """Report an event of a connection, session or link as an object."""
        self._report_touched()  # keeps the reports in order
        if kind == _BEGIN:
            self._flows.register_session(pn.pn_event_session(event))
        elif kind == _ATTACH:
            self._flows.forget(pn.pn_event_link(event))
        self._peer.process_event(Event.wrap(event))

    def _report_touched(self) -> None:
        """Report the messages and outcomes collected on links, one call per link."""
        # A callee may touch further links, so repeat until no link is left.
        while self._touched:
            touched = list(self._touched)
            self._touched.clear()
            for link in touched:
                if link.is_over:
                    continue
                if isinstance(link, IncomingLink):
                    self._report_received(link)
                else:
                    self._peer.settled(link)

    def _report_received(self, link: IncomingLink) -> None:
        """Report the messages of a link. Messages beyond its credit are released, and end it."""
        surplus = -pn.pn_link_credit(link.pointer)
        if surplus <= 0:
            self._peer.received(link)
            return
        # The sender exceeded its credit: messages within the credit are accepted, the others are
        # released before the link ends.
        accepted_count = max(0, len(link.messages) - surplus)
        for delivery in link.deliveries[accepted_count:]:
            if delivery is not None:
                self.settle(delivery, RELEASED)
                link.unanswered -= 1
        del link.messages[accepted_count:], link.deliveries[accepted_count:]
        link.transactions = {
            index: name for index, name in link.transactions.items() if index < accepted_count
        }
        if link.messages:
            self._peer.received(link)
        self._peer.too_many(link)

    def _refuse_early(self, pointer: Pointer) -> None:
        """Report messages that arrive before the link is opened on this side."""
        if pn.pn_link_is_receiver(pointer) and pn.pn_link_state(pointer) & pn.PN_LOCAL_UNINIT:
            self._peer.too_early(Link.wrap(pointer))

    def _read_delivery(self, link: IncomingLink, delivery: Pointer, pointer: Pointer) -> bool:
        """Read the bytes of a delivery. Return True if the message is complete."""
        size = pn.pn_delivery_pending(delivery)
        # Proton reports one pending byte for a delivery that its sender has aborted.
        if not 1 < size <= link.message_bytes_max and not self._is_usable(link, delivery, pointer):
            return False
        if pn.pn_delivery_partial(delivery) or link.parts:
            if not self._add_part(link, delivery, pointer, size):
                return False
            message = bytes(link.parts)
            self._clear_parts(link)
        else:
            message = self._read(pointer, size)
        pn.pn_link_advance(pointer)
        if self.reads_states and pn.pn_delivery_remote_state(delivery) == TRANSACTIONAL:
            transaction = transaction_of(Delivery.wrap(delivery))
            link.transactions[len(link.messages)] = transaction
        link.messages.append(message)
        if pn.pn_delivery_settled(delivery):
            pn.pn_delivery_settle(delivery)
            link.deliveries.append(None)
        else:
            link.deliveries.append(delivery)
            link.unanswered += 1
        return True

    def _is_usable(self, link: IncomingLink, delivery: Pointer, pointer: Pointer) -> bool:
        """Return True if an event about a delivery of an unusual size (0, 1 or too many bytes)
        means a message."""
        if pn.pn_link_current(pointer) != delivery:
            return False  # the sender settles a delivery that has been answered
        if pn.pn_delivery_aborted(delivery):
            self._clear_parts(link)
            _discard(pointer, delivery)
            return False
        if pn.pn_delivery_pending(delivery) > link.message_bytes_max:
            _discard(pointer, delivery)
            self._peer.too_large(link)
            return False
        return True

    def _add_part(self, link: IncomingLink, delivery: Pointer, pointer: Pointer, size: int) -> bool:
        """Add a part to a message. Return True if the message is complete."""
        if size:
            part = self._read(pointer, size)
            link.parts += part
            self._parts_bytes += len(part)
        # The size of a message is unknown until its last part, so the limits apply to each part.
        too_large = len(link.parts) > link.message_bytes_max
        if (
            too_large
            or self._parts_bytes > max(self._parts_bytes_max, len(link.parts))
            or not self._peer.may_hold(self._parts_bytes)
        ):
            self._clear_parts(link)
            _discard(pointer, delivery)
            (self._peer.too_large if too_large else self._peer.too_many_parts)(link)
            return False
        return not pn.pn_delivery_partial(delivery)

    def _clear_parts(self, link: IncomingLink) -> None:
        """Drop the parts of a link's unfinished message, and count their bytes no longer."""
        self._parts_bytes -= len(link.parts)
        link.parts = bytearray()
        self._peer.may_hold(self._parts_bytes)

    def _read(self, pointer: Pointer, size: int) -> bytes:
        """Read ``size`` bytes of a link's current delivery."""
        if size > SCRATCH_BYTES:
            buffer = bytearray(size)
            count = pn.pn_link_recv(pointer, ffi.from_buffer(buffer), size)
            return bytes(memoryview(buffer)[: max(0, count)])
        count = pn.pn_link_recv(pointer, self._scratch_pointer, size)
        return bytes(self._scratch_view[:count]) if count > 0 else b""

    def _read_outcome(self, link: OutgoingLink, delivery: Pointer) -> None:
        """Add the peer's outcome of a delivery to its link, unless it only reports progress."""
        state = pn.pn_delivery_remote_state(delivery)
        if not state and not pn.pn_delivery_settled(delivery):
            return
        if link.deciding and key_of(delivery) in link.deciding:
            return
        tag = pn.pn_delivery_tag(delivery)
        event_id = int.from_bytes(ffi.buffer(tag.start, tag.size)[:], "big")
        # The most frequent outcome needs no `Outcome` object.
        if state == ACCEPTED and pn.pn_delivery_settled(delivery):
            pn.pn_delivery_settle(delivery)
            link.accepted.append(event_id)
            return
        outcome = Outcome(event_id, delivery, state)
        if state not in (0, ACCEPTED, RELEASED):
            describe(outcome, Delivery.wrap(delivery))
        if outcome.state == pn.PN_RECEIVED:  # only progress, not an outcome (3.4.1)
            return
        link.deciding.add(key_of(delivery))
        link.outcomes.append(outcome)

    # --- orders --------------------------------------------------------------------------

    def add_incoming(self, link: IncomingLink) -> None:
        """Accept messages on an opened link."""
        self._incoming[key_of(link.pointer)] = link
        self.refill(link)

    def add_outgoing(self, link: OutgoingLink) -> None:
        """Register an opened link for sending."""
        self._outgoing[key_of(link.pointer)] = link
        self._flows.register_link(link)

    def refill(self, link: IncomingLink) -> None:
        """Give the sender new credit once half of it is used."""
        credit = pn.pn_link_credit(link.pointer)
        if not link.is_over and credit <= link.credit_max // 2:
            pn.pn_link_flow(link.pointer, link.credit_max - credit)

    def drop(self, link: IncomingLink | OutgoingLink) -> None:
        """Stop sending and receiving on a link."""
        link.is_over = True
        self._touched.pop(link, None)
        self._flows.forget(link.pointer)
        if isinstance(link, IncomingLink):
            self._clear_parts(link)
            self._incoming.pop(key_of(link.pointer), None)
        else:
            self._outgoing.pop(key_of(link.pointer), None)

    def send(self, link: OutgoingLink, event_id: int, message: bytes) -> None:
        """Send an event; its id identifies the delivery until it is settled."""
        tag = self._tag
        name = event_id.to_bytes(8, "big")
        tag_bytes = ffi.from_buffer(name)
        tag.start, tag.size = tag_bytes, 8
        delivery = pn.pn_delivery(link.pointer, tag[0])
        pn.pn_link_send(link.pointer, ffi.from_buffer(message), len(message))
        pn.pn_link_advance(link.pointer)
        if link.settled:
            pn.pn_delivery_settle(delivery)

    def answer_drain(self, link: OutgoingLink) -> None:
        """Answer a drain: no more events are available, so the rest of the credit goes back."""
        if not link.is_over:
            self._flows.return_credit(link)

    def free(self, link: IncomingLink | OutgoingLink) -> None:
        """Free a link that is over, and its name, once all of its deliveries are answered."""
        assert link.is_over, "a link in use must not be freed"
        link.is_wanted = False
        self._waiting.add(link)
        self.free_if_answered(link)

    def free_if_answered(self, link: IncomingLink | OutgoingLink) -> None:
        """Free a link that is over if all its deliveries have been answered."""
        if not link.is_wanted and not link.unanswered and not link.is_freed:
            link.is_freed = True
            self._waiting.discard(link)
            link.link.free()
            if self._ended:
                self._free_sessions(link)

    def free_session(self, session: Session, links: Iterable[IncomingLink | OutgoingLink]) -> None:
        """Free a session that is over, with its links, once all their deliveries are answered. This
        includes links that were detached before the session ended."""
        waiting = {
            *links,
            *(
                waiting_link
                for waiting_link in self._waiting
                if session == waiting_link.link.session
            ),
        }
        self._ended.append((session, waiting))
        for link in waiting.copy():
            self.free(link)
        self._free_sessions()

    def _free_sessions(self, freed: IncomingLink | OutgoingLink | None = None) -> None:
        """Free the ended sessions without unanswered deliveries. ``freed`` is a link that has just
        been freed."""
        remaining = []
        for session, links in self._ended:
            if freed is not None:
                links.discard(freed)
            if links:
                remaining.append((session, links))
            else:
                session.free()
        self._ended = remaining

    def settle(self, delivery: Pointer, state: int = ACCEPTED) -> None:
        """Answer a delivery and settle it."""
        pn.pn_delivery_update(delivery, state)
        pn.pn_delivery_settle(delivery)

    def forget(self, link: OutgoingLink, delivery: Pointer) -> None:
        """Settle a delivery after its outcome has been applied."""
        link.deciding.discard(key_of(delivery))
        pn.pn_delivery_settle(delivery)

    def reject(self, delivery: Pointer, condition: str, description: str) -> None:
        """Reject a message with a reason."""
        wrapped = Delivery.wrap(delivery)
        wrapped.local.condition = Condition(condition, description)
        wrapped.update(Delivery.REJECTED)
        wrapped.settle()

    def provisionally_accept(self, delivery: Pointer, transaction: bytes) -> None:
        """Accept a message as part of a transaction."""
        wrapped = Delivery.wrap(delivery)
        wrapped.local.data = [transaction, Described(ulong(ACCEPTED), [])]
        wrapped.update(TRANSACTIONAL)
        wrapped.settle()

    def answer_declare(self, delivery: Pointer, transaction: bytes) -> None:
        """Answer that a transaction is declared."""
        wrapped = Delivery.wrap(delivery)
        wrapped.local.data = [transaction]
        wrapped.update(DECLARED)
        wrapped.settle()


def _log_proton_text(_: Transport, text: str) -> None:
    """Log the text that Proton would write to standard error."""
    _log.debug("amqp.engine", said=text)


def refuse(link: Link, condition: str, description: str) -> None:
    """Refuse a link as the standard prescribes: attach it without a terminus on this side, and
    detach it immediately."""
    if link.is_sender:
        link.source.type = Terminus.UNSPECIFIED
    else:
        link.target.type = Terminus.UNSPECIFIED
    link.open()
    link.condition = Condition(condition, description)
    link.close()


def _discard(link: Pointer, delivery: Pointer) -> None:
    """Release a message that cannot be accepted, so that it takes no memory."""
    if pn.pn_link_is_receiver(link) and pn.pn_link_current(link) == delivery:
        pn.pn_delivery_update(delivery, RELEASED)  # the message was not stored
        pn.pn_link_advance(link)
        pn.pn_delivery_settle(delivery)
