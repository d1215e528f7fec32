"""Proton's AMQP engine behind a narrow interface: bytes in, reports out; orders in, bytes out.

Messages are handled by Proton's low-level C functions, all called in this module: a Python object
for each engine event would cost ten times as much. Rare things (a link is attached, a session ends)
are reported as Proton's own objects.

Pointers to deliveries are valid until these are settled, pointers to links until these are freed,
and all of them only as long as the engine lives: keep the engine with the pointer.
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
from penstock_amqp.kept import give_back_with, kept
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
"""Size of the memory through which Proton gives bytes; longer messages have memory of their own."""
SESSIONS_MAX: Final = 2_000

_log = logger("penstock.amqp")

_DELIVERY: Final = pn.PN_DELIVERY
_FLOW: Final = pn.PN_LINK_FLOW
_BEGIN: Final = pn.PN_SESSION_REMOTE_OPEN
_ATTACH: Final = pn.PN_LINK_REMOTE_OPEN
_NULL: Final = ffi.NULL
_TOLD: Final = frozenset(
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
"""Events of Proton that the peer object is told of, besides messages; the engine handles the
rest."""


class _Scratch(threading.local):
    """Memory through which Proton gives bytes, for all engines of a thread: it is empty again
    before the next engine needs it."""

    def __init__(self) -> None:
        buffer = bytearray(SCRATCH_BYTES)
        self.at: Pointer = ffi.from_buffer(buffer)
        self.view = memoryview(buffer)


_scratch: Final = _Scratch()


class EngineListener(Protocol):
    """What the engine reports to."""

    def received(self, link: IncomingLink) -> None:
        """Messages have come; the callee takes them off the link."""
        ...

    def settled(self, link: OutgoingLink) -> None:
        """Outcomes of deliveries, or new credit, have come."""
        ...

    def happened(self, event: Event) -> None:
        """Anything else has happened; called in order."""
        ...

    def too_large(self, link: IncomingLink) -> None:
        """A message is larger than the link accepts."""
        ...

    def too_early(self, link: Link) -> None:
        """A message has come by a link that is not open yet."""
        ...

    def too_many(self, link: IncomingLink) -> None:
        """More messages have come than there was credit for."""
        ...

    def may_hold(self, size: int) -> bool:
        """Count ``size`` bytes of unfinished messages, of all links together; returns whether there
        is room for them."""
        ...

    def too_many_parts(self, link: IncomingLink) -> None:
        """Unfinished messages, one of them on this link, take more memory than is allowed."""
        ...


class AmqpEngine:
    """The engine of one connection."""

    def __init__(self, peer: EngineListener, idle_timeout_s: float, parts_bytes_max: int) -> None:
        """``parts_bytes_max`` limits the bytes of all unfinished messages together; a single
        message of any size that its link accepts always fits."""
        self._peer: EngineListener = proxy(peer)  # it has the engine: no cycle
        self._parts_bytes_max = parts_bytes_max
        self._parts_bytes = 0
        self.connection = kept(Connection())
        self._transport = kept(Transport(Transport.SERVER))
        self._tp: Pointer = self._transport._impl
        self._events: Pointer = pn.pn_collector()
        give_back_with(self, self._events, pn.pn_collector_free)
        pn.pn_connection_collect(self.connection._impl, self._events)
        self._transport.idle_timeout = self._idle_timeout_s = idle_timeout_s
        self._excused_until_s = 0.0
        self._transport.max_frame_size = FRAME_BYTES_MAX
        self._transport.channel_max = SESSIONS_MAX - 1  # the highest channel number
        self._transport.tracer = _say
        self._transport.bind(self.connection)
        self._incoming: dict[int, IncomingLink] = {}
        self._outgoing: dict[int, OutgoingLink] = {}
        self._flows = Flows(self._incoming, self._outgoing, FRAME_BYTES_MAX)
        self._touched: dict[IncomingLink | OutgoingLink, None] = {}
        self._ended: list[tuple[Session, set[IncomingLink | OutgoingLink]]] = []
        """Ended sessions, each with those of its links that still wait for an answer."""
        self._waiting: set[IncomingLink | OutgoingLink] = set()
        """Links that are to be freed, and still wait for an answer."""
        self._is_telling = False
        self._last = b""
        """Bytes to send after everything that Proton has to send."""
        self._scratch_at, self._scratch_view = _scratch.at, _scratch.view
        self.has_states = False
        """Whether the peer has sent a transfer with a state: it may name a transaction."""
        self._tag: Pointer = ffi.new("pn_delivery_tag_t *")

    # --- bytes in and out ----------------------------------------------------------------

    def feed(self, data: bytes | memoryview) -> None:
        """Process the peer's bytes, and report what they mean. Raises ``RemoteProtocolViolation``
        when Proton stops at a frame without an error of its own."""
        try:
            for piece, frame in self._flows.frames.split(bytes(data)):
                if frame is None:
                    is_taken = self._push(piece)
                else:
                    self._tell()  # so that what is told next comes of this frame
                    is_taken = self._push(self._flows.coming(frame))
                    self._flows.came()
                if not is_taken:
                    break
        except UnicodeDecodeError as error:
            raise decoding_error(error) from None
        self._tell_touched()
        if pn.pn_transport_capacity(self._tp) < 0 and self._is_stuck:
            raise RemoteProtocolViolation(
                "the bytes are not an AMQP frame; the performative may be unknown"
            )

    def _push(self, data: bytes) -> bool:
        """Give bytes to Proton; gives whether it accepts more."""
        tp, at, left = self._tp, ffi.from_buffer(data), len(data)
        while left > 0:
            room = pn.pn_transport_capacity(tp)
            if room <= 0:
                return False
            taken = min(room, left)
            if pn.pn_transport_push(tp, at, taken) < 0:
                return False
            at += taken
            left -= taken
            self._tell()
        return True

    @property
    def _is_stuck(self) -> bool:
        """Whether Proton accepts no more bytes, although neither side has closed or reported an
        error."""
        connection = self.connection
        closed = connection.state & (connection.REMOTE_CLOSED | connection.LOCAL_CLOSED)
        return not closed and self._transport.condition is None

    def output(self) -> bytes:
        """Take the bytes to send to the peer."""
        return self._flows.output(self._produce)

    def _produce(self) -> bytes:
        tp = self._tp
        pending = pn.pn_transport_pending(tp)
        if pending <= 0:
            return b""
        parts = []
        at, view = self._scratch_at, self._scratch_view
        while pending > 0:
            taken = pn.pn_transport_peek(tp, at, min(pending, SCRATCH_BYTES))
            if taken <= 0:
                break
            parts.append(bytes(view[:taken]))
            pn.pn_transport_pop(tp, taken)
            pending = pn.pn_transport_pending(tp)
        last, self._last = self._last, b""
        if last:
            parts.append(last)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def tick(self, now_s: float) -> float:
        """Handle timeouts: end the connection of a silent peer, and keep this side from being
        silent for too long. Gives when to call again, at the latest; 0: never."""
        is_excused = now_s < self._excused_until_s
        self._transport.idle_timeout = 0 if is_excused else self._idle_timeout_s
        again_s: float = self._transport.tick(now_s)
        self._tell()
        if not is_excused:
            return again_s
        return min(again_s or self._excused_until_s, self._excused_until_s)

    def excuse(self, now_s: float) -> None:
        """Restart the idle timeout: the peer was not read until now, so its silence was not its
        fault."""
        self._excused_until_s = now_s + self._idle_timeout_s

    def end(self, condition: str, description: str, info: dict[Any, Any] | None = None) -> None:
        """Close the connection and say why."""
        if not self.connection.state & self.connection.LOCAL_CLOSED:
            if self.connection.state & self.connection.LOCAL_UNINIT:
                self.connection.open()
            if condition and self.connection.state & self.connection.REMOTE_UNINIT:
                # Proton itself would wait for the peer's open
                self._last = encode_close(condition, description)
            if condition:
                self.connection.condition = Condition(condition, description, info)
            self.connection.close()

    @property
    def is_closed(self) -> bool:
        """Whether no more bytes will come or go."""
        return bool(pn.pn_transport_closed(self._tp)) or pn.pn_transport_pending(self._tp) < 0

    @property
    def is_closed_by_peer(self) -> bool:
        """Whether the peer has said that it ends the connection."""
        return bool(self.connection.state & self.connection.REMOTE_CLOSED)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of messages for which the peer has given credit, but no session window."""
        size, session = 0, pn.pn_session_head(self.connection._impl, 0)
        while session != _NULL:
            size += pn.pn_session_outgoing_bytes(session)
            session = pn.pn_session_next(session, 0)
        return size

    # --- what happens --------------------------------------------------------------------

    def _tell(self) -> None:
        """Report what has happened. It does not nest: a callee may cause further events."""
        if self._is_telling:
            return
        self._is_telling = True
        try:
            self._tell_all()
        finally:
            self._is_telling = False

    def _tell_all(self) -> None:
        events, peek, pop = self._events, pn.pn_collector_peek, pn.pn_collector_pop
        kind_of, delivery_of, link_of = (
            pn.pn_event_type,
            pn.pn_event_delivery,
            pn.pn_event_link,
        )
        cast = ffi.cast
        incoming, outgoing, touched = self._incoming, self._outgoing, self._touched
        taken, key, coming = _NULL, 0, None  # most events are about the link of the one before
        while (event := peek(events)) != _NULL:
            kind = kind_of(event)
            if kind == _DELIVERY:
                pointer = link_of(event)
                if pointer != taken:
                    key = int(cast("uintptr_t", pointer))
                    taken, coming = pointer, incoming.get(key)
                if coming is not None:
                    if self._take(coming, delivery_of(event), pointer):
                        touched[coming] = None
                elif (going := outgoing.get(key)) is not None:
                    self._hear(going, delivery_of(event))
                    touched[going] = None
                else:
                    self._refuse_early(pointer)
                    _discard(pointer, delivery_of(event))
            elif kind == _FLOW:
                self._flowed(link_of(event))
            elif kind in _TOLD:
                taken = _NULL  # callees may add and remove links
                self._tell_rare(kind, event)
            pop(events)

    def _flowed(self, pointer: Pointer) -> None:
        key = key_of(pointer)
        self._flows.heard(key)
        if (known := self._outgoing.get(key)) is not None:
            known.has_flow = True
            self._touched[known] = None

    def _tell_rare(self, kind: int, event: Pointer) -> None:
        self._tell_touched()  # so that reports keep their order
        if kind == _BEGIN:
            self._flows.begun(pn.pn_event_session(event))
        elif kind == _ATTACH:
            self._flows.forget(pn.pn_event_link(event))
        self._peer.happened(Event.wrap(event))

    def _tell_touched(self) -> None:
        while self._touched:
            touched = list(self._touched)
            self._touched.clear()
            for link in touched:
                if link.is_over:
                    continue
                if isinstance(link, IncomingLink):
                    self._tell_received(link)
                else:
                    self._peer.settled(link)

    def _tell_received(self, link: IncomingLink) -> None:
        surplus = -pn.pn_link_credit(link.pointer)
        if surplus <= 0:
            self._peer.received(link)
            return
        kept = max(0, len(link.messages) - surplus)
        for delivery in link.deliveries[kept:]:
            if delivery is not None:
                self.settle(delivery, RELEASED)
                link.unanswered -= 1
        del link.messages[kept:], link.deliveries[kept:]
        link.transactions = {at: name for at, name in link.transactions.items() if at < kept}
        if link.messages:
            self._peer.received(link)
        self._peer.too_many(link)

    def _refuse_early(self, pointer: Pointer) -> None:
        """Refuse messages that came before the link had any credit."""
        if pn.pn_link_is_receiver(pointer) and pn.pn_link_state(pointer) & pn.PN_LOCAL_UNINIT:
            self._peer.too_early(Link.wrap(pointer))

    def _take(self, link: IncomingLink, delivery: Pointer, pointer: Pointer) -> bool:
        """Take the bytes of a delivery; gives whether the message is complete."""
        size = pn.pn_delivery_pending(delivery)
        # Proton reports one pending byte for a delivery that its sender has aborted.
        if not 1 < size <= link.message_bytes_max and not self._is_usable(link, delivery, pointer):
            return False
        if pn.pn_delivery_partial(delivery) or link.parts:
            if not self._take_part(link, delivery, pointer, size):
                return False
            message = bytes(link.parts)
            self._clear_parts(link)
        else:
            message = self._read(pointer, size)
        pn.pn_link_advance(pointer)
        if self.has_states and pn.pn_delivery_remote_state(delivery) == TRANSACTIONAL:
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
        """Whether an event about a delivery of an unusual size, such as none or one byte, means a
        message."""
        if pn.pn_link_current(pointer) != delivery:
            return False  # the sender settles a delivery that is answered already
        if pn.pn_delivery_aborted(delivery):
            self._clear_parts(link)
            _discard(pointer, delivery)
            return False
        if pn.pn_delivery_pending(delivery) > link.message_bytes_max:
            _discard(pointer, delivery)
            self._peer.too_large(link)
            return False
        return True

    def _take_part(
        self, link: IncomingLink, delivery: Pointer, pointer: Pointer, size: int
    ) -> bool:
        """Collect a part of a message; gives whether it was the last one."""
        if size:
            part = self._read(pointer, size)
            link.parts += part
            self._parts_bytes += len(part)
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
        self._parts_bytes -= len(link.parts)
        link.parts = bytearray()
        self._peer.may_hold(self._parts_bytes)

    def _read(self, pointer: Pointer, size: int) -> bytes:
        if size > SCRATCH_BYTES:
            long = bytearray(size)
            count = pn.pn_link_recv(pointer, ffi.from_buffer(long), size)
            return bytes(memoryview(long)[: max(0, count)])
        count = pn.pn_link_recv(pointer, self._scratch_at, size)
        return bytes(self._scratch_view[:count]) if count > 0 else b""

    def _hear(self, link: OutgoingLink, delivery: Pointer) -> None:
        state = pn.pn_delivery_remote_state(delivery)
        if not state and not pn.pn_delivery_settled(delivery):
            return
        if link.deciding and key_of(delivery) in link.deciding:
            return
        tag = pn.pn_delivery_tag(delivery)
        event_id = int.from_bytes(ffi.buffer(tag.start, tag.size)[:], "big")
        if state == ACCEPTED and pn.pn_delivery_settled(delivery):
            pn.pn_delivery_settle(delivery)
            link.accepted.append(event_id)
            return
        outcome = Outcome(event_id, delivery, state)
        if state not in (0, ACCEPTED, RELEASED):
            describe(outcome, Delivery.wrap(delivery))
        if outcome.state == pn.PN_RECEIVED:
            return
        link.deciding.add(key_of(delivery))
        link.outcomes.append(outcome)

    # --- orders --------------------------------------------------------------------------

    def add_incoming(self, link: IncomingLink) -> None:
        """Accept messages by a link that was opened."""
        self._incoming[key_of(link.pointer)] = link
        self.refill(link)

    def add_outgoing(self, link: OutgoingLink) -> None:
        """Allow sending messages by a link that was opened."""
        self._outgoing[key_of(link.pointer)] = link
        self._flows.opened(link)

    def refill(self, link: IncomingLink) -> None:
        """Give the sender new credit once half of it is used."""
        credit = pn.pn_link_credit(link.pointer)
        if not link.is_over and credit <= link.credit_max // 2:
            pn.pn_link_flow(link.pointer, link.credit_max - credit)

    def drop(self, link: IncomingLink | OutgoingLink) -> None:
        """Stop sending and receiving by a link."""
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
        held = ffi.from_buffer(name)
        tag.start, tag.size = held, 8
        delivery = pn.pn_delivery(link.pointer, tag[0])
        pn.pn_link_send(link.pointer, ffi.from_buffer(message), len(message))
        pn.pn_link_advance(link.pointer)
        if link.settled:
            pn.pn_delivery_settle(delivery)

    def drained(self, link: OutgoingLink) -> None:
        """Answer a drain: there are no more events for now, so the rest of the credit goes back."""
        if not link.is_over:
            self._flows.drained(link)

    def free(self, link: IncomingLink | OutgoingLink) -> None:
        """Free a link that is over, and its name, once none of its deliveries waits for an
        answer."""
        assert link.is_over, "somebody may use it"
        link.is_wanted = False
        self._waiting.add(link)
        self.answered(link)

    def answered(self, link: IncomingLink | OutgoingLink) -> None:
        """Note that deliveries of a link were answered; a link that is over may then be freed."""
        if not link.is_wanted and not link.unanswered and not link.is_freed:
            link.is_freed = True
            self._waiting.discard(link)
            link.link.free()
            if self._ended:
                self._free_sessions(link)

    def free_session(self, session: Session, links: Iterable[IncomingLink | OutgoingLink]) -> None:
        """Free a session that is over, with its links, once none of their deliveries waits for an
        answer: also of those links that were detached before it ended."""
        waiting = {*links, *(each for each in self._waiting if session == each.link.session)}
        self._ended.append((session, waiting))
        for link in waiting.copy():
            self.free(link)
        self._free_sessions()

    def _free_sessions(self, freed: IncomingLink | OutgoingLink | None = None) -> None:
        left = []
        for session, links in self._ended:
            if freed is not None:
                links.discard(freed)
            if links:
                left.append((session, links))
            else:
                session.free()
        self._ended = left

    def settle(self, delivery: Pointer, state: int = ACCEPTED) -> None:
        """Answer a delivery and settle it."""
        pn.pn_delivery_update(delivery, state)
        pn.pn_delivery_settle(delivery)

    def forget(self, link: OutgoingLink, delivery: Pointer) -> None:
        """Settle a delivery whose outcome the peer has settled."""
        link.deciding.discard(key_of(delivery))
        pn.pn_delivery_settle(delivery)

    def reject(self, delivery: Pointer, condition: str, description: str) -> None:
        """Reject a message, with the reason."""
        found = Delivery.wrap(delivery)
        found.local.condition = Condition(condition, description)
        found.update(Delivery.REJECTED)
        found.settle()

    def provisionally_accept(self, delivery: Pointer, transaction: bytes) -> None:
        """Accept a message as part of a transaction."""
        found = Delivery.wrap(delivery)
        found.local.data = [transaction, Described(ulong(ACCEPTED), [])]
        found.update(TRANSACTIONAL)
        found.settle()

    def declared(self, delivery: Pointer, transaction: bytes) -> None:
        """Answer that a transaction is declared."""
        found = Delivery.wrap(delivery)
        found.local.data = [transaction]
        found.update(DECLARED)
        found.settle()


def _say(_: Transport, said: str) -> None:
    """Log what Proton would write to standard error."""
    _log.debug("amqp.engine", said=said)


def refuse(link: Link, condition: str, description: str) -> None:
    """Refuse a link as the standard prescribes: attach it without a terminus on this side, and
    detach it at once."""
    if link.is_sender:
        link.source.type = Terminus.UNSPECIFIED
    else:
        link.target.type = Terminus.UNSPECIFIED
    link.open()
    link.condition = Condition(condition, description)
    link.close()


def _discard(link: Pointer, delivery: Pointer) -> None:
    """Drop a message that came by a link that is over or useless, so that it takes no memory."""
    if pn.pn_link_is_receiver(link) and pn.pn_link_current(link) == delivery:
        pn.pn_delivery_update(delivery, RELEASED)  # tells the sender that it was not stored
        pn.pn_link_advance(link)
        pn.pn_delivery_settle(delivery)
