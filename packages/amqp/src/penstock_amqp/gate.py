"""Checks each frame before Proton's engine gets it, so that an error ends only the link, session or
connection that the standard says.

Proton ends the whole connection for most errors, with non-standard conditions, and treats a field
of the wrong type as absent. The frames of a message stream differ only in numbers and tags: the
first is checked in full, and later ones are compared with it, many at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol
from weakref import proxy

from msgspec import Struct, field
from proton import Session

from penstock_amqp.checked_frames import CheckedFrames, DeliveryIds
from penstock_amqp.conditions import FRAMING, NOT_ALLOWED, NOT_IMPLEMENTED, TOO_MUCH
from penstock_amqp.wire.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    INVALID,
    OPEN,
    TRANSFER,
    Performative,
    Unfit,
    check_performative,
    performative_of,
    unknown_terminus,
    with_numeric_descriptors,
)
from penstock_amqp.wire.types import Symbol, UInt, encode, encode_list
from penstock_core.vocabulary.errors import RemoteProtocolViolation

UNATTACHED: Final = "amqp:session:unattached-handle"
IN_USE: Final = "amqp:session:handle-in-use"
ERRANT: Final = "amqp:session:errant-link"
WINDOW: Final = "amqp:session:window-violation"

_HALF: Final = 1 << 31
"""Half of the range of 32-bit serial numbers: a number less than this ahead counts as later."""
_HEADER_BYTES: Final = 8
"""Size in bytes of the protocol header, and of a frame's header."""
_ACQUISITION: Final = "txn-id"
"""Property of a flow frame that acquires messages in a transaction (4.4.3)."""
_SECOND: Final = 1
"""The receiver's settle mode ``second``."""
_DEFAULTS: Final = {"delivery-id": 0, "delivery-tag": b"", "message-format": 0}
"""Values of the fields that a delivery's first transfer omits."""


class Watched(Protocol):
    """The receiver of reports about invalid frames."""

    def fail(self, condition: str, text: str) -> None:
        """End the connection."""
        ...

    def fail_session(self, session: Session, condition: str, text: str) -> None:
        """End a session with all its links."""
        ...

    def fail_link(
        self, session: Session, name: str, condition: str, text: str, *, is_sender: bool
    ) -> None:
        """End a link; ``is_sender`` means that the peer is its sender."""
        ...

    def take_away(self, session: Session, name: str, *, is_sender: bool) -> None:
        """End a link whose name the peer has attached again in the same session."""
        ...

    def feed(self, data: bytes | memoryview) -> None:
        """Process frames that have passed the check."""
        ...

    def note_transfer_state(self) -> None:
        """Make the engine read the delivery state of each transfer from now on: the next transfer
        has one, and it may name a transaction."""
        ...


class Offence(Exception):
    """Raised for an error that ends the connection or, with ``of_session``, the session."""

    def __init__(self, condition: str, text: str, *, of_session: bool = False) -> None:
        super().__init__(text)
        self.condition = condition
        self.of_session = of_session


class _Link(Struct):
    """A link that the peer has attached."""

    name: str
    is_sender: bool
    """Whether the peer is the sender."""
    has_source: bool
    """Whether the peer's attach had a source."""
    is_stolen: bool = False
    """Whether the peer has attached the name again, and has not detached this link yet."""
    is_partial: bool = False
    """Whether the current delivery has further transfers."""
    delivery: tuple[Any, Any, Any] = (None, None, None)
    """Id, tag and message format of the current delivery."""
    is_dropped: bool = False
    """Whether the current delivery is dropped."""
    settles_second: bool = False
    """Whether the receiver's settle mode ``second`` was negotiated."""


class _Session(Struct):
    """A session that the peer has begun."""

    session: Session | None = None
    """The session in Proton; None until Proton has created it."""
    links: dict[int, _Link] = field(default_factory=dict)
    """Links by the peer's handle."""
    ids: DeliveryIds = field(default_factory=DeliveryIds)
    has_window: bool = False
    """Whether this side's begin, which gives the peer a window, has been sent."""
    is_over: bool = False
    """Whether this side has ended the session with an error; its frames are ignored until the peer
    also ends it."""


class Gate:
    """Checks all frames of one connection."""

    def __init__(self, watched: Watched, frame_bytes_max: int, links_max: int) -> None:
        """``links_max`` limits open links. As many links again may wait for the peer's detach."""
        self._watched: Watched = proxy(watched)  # weak: `watched` owns the gate
        self._frame_bytes_max = frame_bytes_max
        self._links_max = 2 * links_max
        self._rest = b""
        """Received bytes of an incomplete frame."""
        self._has_header = False
        self._is_open = False
        """Whether the peer has sent an open frame."""
        self._is_shut = False
        """Whether checking has stopped, because the connection ends."""
        self._sessions: dict[int, _Session] = {}
        """Sessions by the peer's channel number."""
        self._checked = CheckedFrames()
        self._beginning: _Session | None = None
        """The session whose begin frame Proton is processing."""
        self._partial = 0
        """Number of links whose current delivery has further transfers."""
        self._links = 0
        """Number of links in all sessions."""
        self._unannounced: list[_Session] = []
        """Sessions whose begin has not been sent to the peer yet."""

    def feed(self, data: bytes) -> None:
        """Check received bytes, starting with the protocol header, and pass them on."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        offset = 0
        if not self._has_header:
            if len(data) < _HEADER_BYTES:
                self._rest = data
                return
            self._has_header, offset = True, _HEADER_BYTES
        self._check_frames(data, offset)

    def began(self, session: Session) -> None:
        """Register the session that Proton has created for the last begin frame."""
        if self._beginning is not None:
            self._beginning.session = session
            self._beginning = None

    def wrote(self) -> None:
        """Open the windows of new sessions, because all output has been sent."""
        for session in self._unannounced:
            session.has_window = True
        self._unannounced.clear()

    def names_source(self, session: Session, name: str) -> bool:
        """Return True if the peer's attach of a sending link had a source."""
        for state in self._sessions.values():
            if state.session == session:
                links = state.links.values()
                return any(
                    link.name == name and link.is_sender and link.has_source for link in links
                )
        return False

    # --- frames --------------------------------------------------------------------------

    def _check_frames(self, data: bytes, offset: int) -> None:
        """Check the complete frames from ``offset`` on. Valid frames are passed on in chunks as
        large as possible; the bytes of an incomplete frame are kept."""
        begin, end = 0, len(data)  # checked bytes that are not yet passed on start at ``begin``
        while end - offset >= _HEADER_BYTES and not self._is_shut:
            size = int.from_bytes(data[offset : offset + 4], "big")
            if not _HEADER_BYTES <= size <= self._frame_bytes_max:
                self._is_shut = True
                self._watched.feed(memoryview(data)[begin:])  # Proton reports the framing error
                return
            if end - offset < size:
                break
            # Transfers of a partial delivery depend on each other, so each is checked in full.
            count = 0 if self._partial else self._checked.count_equal(data, offset, size, end)
            if count:
                offset += count * size
                continue
            action = self._action_for(data, offset, size)
            if action is not None:
                if begin < offset:
                    self._watched.feed(memoryview(data)[begin:offset])
                action()
                begin = offset + size
            offset += size
        if self._is_shut:
            return
        if begin < offset:
            self._watched.feed(memoryview(data)[begin:offset] if begin or offset < end else data)
        self._rest = data[offset:]

    def _action_for(self, data: bytes, offset: int, size: int) -> Callable[[], None] | None:
        """Check a frame. Return the action that replaces passing it on; None to pass it on together
        with the frames before it."""
        kind, channel = data[offset + 5], int.from_bytes(data[offset + 6 : offset + 8], "big")
        body = offset + 4 * data[offset + 4]
        if kind != 0 or not offset + _HEADER_BYTES <= body <= offset + size:
            self._is_shut = True
            # Proton reports the framing error.
            return partial(self._watched.feed, data[offset : offset + size])
        if body == offset + size:
            return None  # an empty frame only keeps the connection alive
        try:
            performative = performative_of(data[body : offset + size], 0)
        except RemoteProtocolViolation as error:
            return partial(self._fail, Offence(FRAMING, str(error)), channel)
        frame, values = data[offset : offset + size], with_numeric_descriptors(performative)
        is_plain = (
            performative.begin == 3
            and body == offset + _HEADER_BYTES
            and values is performative.values
        )
        if not is_plain:  # Proton accepts only the short form
            payload = data[body + performative.end : offset + size]
            frame = _frame(performative.code, values, payload, channel=channel.to_bytes(2, "big"))
        try:
            action = self._check_decoded(performative, channel, frame)
        except Unfit as error:
            of_session = (
                performative.code not in (OPEN, BEGIN, END, CLOSE) and channel in self._sessions
            )
            offence = Offence(error.condition, str(error), of_session=of_session)
            return partial(self._fail, offence, channel)
        except Offence as offence:
            return partial(self._fail, offence, channel)
        if action is None and not is_plain:
            return partial(self._watched.feed, frame)
        if action is None and not self._partial and performative.code in (TRANSFER, DISPOSITION):
            ids = self._sessions[channel].ids if performative.code == TRANSFER else None
            self._checked.learn(performative, frame, ids)
        return action

    def _fail(self, offence: Offence, channel: int) -> None:
        """End the session of a channel, or the connection, because of an invalid frame."""
        state = self._sessions.get(channel) if offence.of_session else None
        if state is None or state.session is None:
            self._is_shut = True
            self._watched.fail(offence.condition, str(offence))
        elif not state.is_over:
            state.is_over = True
            self._checked.clear()
            self._watched.fail_session(state.session, offence.condition, str(offence))

    def _check_decoded(
        self, performative: Performative, channel: int, frame: bytes
    ) -> Callable[[], None] | None:
        """Check a decoded frame. Return the action for it, as in `_action_for`. Raises
        :class:`Offence`, :class:`Unfit`."""
        code, state = performative.code, self._sessions.get(channel)
        if state is not None and state.is_over and code not in (END, CLOSE):
            return _ignore_frame
        values = check_performative(performative)
        if code == OPEN:
            self._check_open(channel)
        elif not self._is_open:
            raise Offence(NOT_ALLOWED, "the first frame must be an open")
        elif code == BEGIN:
            if state is not None:
                raise Offence(NOT_ALLOWED, f"channel {channel} already has a session")
            return partial(self._begin, channel, frame)
        elif code != CLOSE:
            if state is None:
                raise Offence(NOT_ALLOWED, f"channel {channel} has no session; begin one first")
            return self._check_in_session(code, channel, state, values, frame)
        return None

    def _check_open(self, channel: int) -> None:
        """Check an open frame, and mark the connection as open. Raises :class:`Offence`."""
        if channel:
            raise Offence(FRAMING, f"an open on channel {channel}; it must be 0 (AMQP 1.0, 2.4.1)")
        if self._is_open:
            raise Offence(NOT_ALLOWED, "the connection is already open")
        self._is_open = True

    # --- sessions ------------------------------------------------------------------------

    def _begin(self, channel: int, frame: bytes) -> None:
        """Register a session, and pass its begin frame to Proton, which may refuse it."""
        # Proton reports the new session from within `feed`, by a call of `began`.
        session = self._sessions[channel] = self._beginning = _Session()
        self._unannounced.append(session)
        self._checked.clear()
        self._watched.feed(frame)
        if self._beginning is not None:  # Proton has created no session: it refused the begin
            self._beginning = None
            self._sessions.pop(channel, None)
            self._unannounced.remove(session)

    def _check_in_session(
        self, code: int, channel: int, state: _Session, values: list[Any], frame: bytes
    ) -> Callable[[], None] | None:
        """Check a frame of a session. Return the action for it, as in `_action_for`. Raises
        :class:`Offence`."""
        if code == ATTACH:
            return self._check_attach(state, values, frame)
        if code == END:
            del self._sessions[channel]
            self._checked.clear()
            self._links -= len(state.links)
            self._partial -= sum(link.is_partial for link in state.links.values())
        elif code == DISPOSITION:
            first, last = int(values[1]), values[2]
            if last is not None and (int(last) - first) % (2 * _HALF) >= _HALF:
                text = f"disposition: last ({int(last)}) is before first ({first})"
                raise Offence(INVALID, text, of_session=True)
        elif code == DETACH:
            return self._check_detach(state, int(values[0]))
        elif code == TRANSFER:
            return self._check_transfer(state, self._link_of(state, int(values[0])), values, frame)
        elif values[4] is not None:
            link = self._link_of(state, int(values[4]))
            if values[10] and Symbol(_ACQUISITION) in values[10]:
                return partial(self._refuse_acquisition, state, link)
        return None

    # --- links ---------------------------------------------------------------------------

    def _link_of(self, state: _Session, handle: int) -> _Link:
        """Return the link with a handle. Raises :class:`Offence` for an unknown handle."""
        link = state.links.get(handle)
        if link is None:
            text = f"handle {handle} is not attached to a link"
            raise Offence(UNATTACHED, text, of_session=True)
        if link.is_stolen:
            text = f"the link {link.name[:40]!r} was stolen by another attach and has ended"
            raise Offence(ERRANT, text, of_session=True)
        return link

    def _check_attach(
        self, state: _Session, values: list[Any], frame: bytes
    ) -> Callable[[], None] | None:
        """Check an attach frame, and register its link. Return the action for it, as in
        `_action_for`. Raises :class:`Offence`."""
        name, handle, is_sender = values[0], int(values[1]), not values[2]
        if handle in state.links:
            text = f"handle {handle} is already used by the link {state.links[handle].name[:40]!r}"
            raise Offence(IN_USE, text, of_session=True)
        if self._links >= self._links_max:
            raise Offence(
                TOO_MUCH, f"{self._links} links are attached, the maximum; detach a link first"
            )
        # Before the new link is added, which has the same name.
        older = _handle_of_link_named(state, name, is_sender=is_sender)
        state.links[handle] = _Link(
            name, is_sender, values[5] is not None, settles_second=values[4] == _SECOND
        )
        self._links += 1
        pass_on = None if older is None else partial(self._steal, state, older, frame)
        if terminus := unknown_terminus(values):
            text = f"a {terminus} is not supported; use source, target or coordinator"
            pass_on = pass_on or partial(self._watched.feed, frame)
            return self._fail_after(
                state, state.links[handle], NOT_IMPLEMENTED, text=text, pass_on=pass_on
            )
        return pass_on

    def _steal(self, state: _Session, handle: int, frame: bytes) -> None:
        """End a link whose name is attached again, as if the peer had detached it. The peer's own
        detach may still arrive."""
        link = state.links[handle]
        link.is_stolen = True
        self._partial -= link.is_partial
        link.is_partial = False
        self._checked.clear()
        assert state.session is not None, "a session with links exists in Proton"
        self._watched.take_away(state.session, link.name, is_sender=link.is_sender)
        detach = _frame(DETACH, [UInt(handle), True], b"", channel=frame[6:8])
        self._watched.feed(detach + frame)

    def _check_detach(self, state: _Session, handle: int) -> Callable[[], None] | None:
        """Check a detach frame, and forget its link. The detach of a stolen link is not passed on:
        Proton has received one already."""
        link = state.links.get(handle)
        if link is None:
            self._link_of(state, handle)  # raises for an unknown handle
            return None
        del state.links[handle]
        self._links -= 1
        self._partial -= link.is_partial
        self._checked.clear()
        return _ignore_frame if link.is_stolen else None

    def _check_transfer(
        self, state: _Session, link: _Link, values: list[Any], frame: bytes
    ) -> Callable[[], None] | None:
        """Check a transfer frame. Raises :class:`Offence` (2.5.6, 2.7.5)."""
        if not state.has_window:
            text = "a transfer was sent before the session had a window; wait for the begin"
            raise Offence(WINDOW, text, of_session=True)
        if values[7] is not None:
            self._watched.note_transfer_state()
        begins, identity = not link.is_partial, (values[1], values[2], values[3])
        error = (
            self._check_first_transfer(state, link, identity)
            if begins
            else _check_continuation(link, identity)
        )
        is_partial = bool(values[5]) and not values[9]
        self._partial += is_partial - link.is_partial
        link.is_partial = is_partial
        if values[6] == _SECOND and not link.settles_second:
            error = INVALID, "rcv-settle-mode of transfer is second; this link's is first (2.7.5)"
        # The realm keeps no deliveries to resume, so such a transfer is ignored (2.7.5).
        is_dropped = error is not None or bool(values[8])
        link.is_dropped = is_dropped or (link.is_dropped and not begins)
        if not link.is_dropped:
            return None
        pass_on = partial(self._watched.feed, _without_payload(values, frame))
        return pass_on if error is None else self._fail_after(state, link, *error, pass_on=pass_on)

    def _check_first_transfer(
        self, state: _Session, link: _Link, identity: tuple[Any, Any, Any]
    ) -> tuple[str, str] | None:
        """Check the first transfer of a delivery. Return condition and text of an error that ends
        the link; None if valid. Raises :class:`Offence`."""
        for value, name in zip(identity, ("delivery-id", "delivery-tag"), strict=False):
            if value is None:
                text = (
                    f"{name} of transfer is missing; the first transfer of a delivery must have it"
                )
                raise Offence(INVALID, text, of_session=True)
        delivery_id, ids = int(identity[0]), state.ids
        if ids.next_id is not None and delivery_id != ids.next_id:
            text = f"delivery-id of transfer is {delivery_id}; the next one must be {ids.next_id}"
            raise Offence(INVALID, text, of_session=True)
        ids.next_id = (delivery_id + 1) % (2 * _HALF)  # ids are 32-bit serial numbers (2.8.10)
        link.delivery = identity
        if identity[2]:
            text = f"message-format of transfer is {int(identity[2])}; only 0 is supported"
            return NOT_IMPLEMENTED, text
        return None

    def _fail_after(
        self,
        state: _Session,
        link: _Link,
        condition: str,
        text: str,
        pass_on: Callable[[], None],
    ) -> Callable[[], None]:
        """Return an action that passes a frame on and then ends its link."""

        def fail() -> None:
            pass_on()
            assert state.session is not None, "a session with links exists in Proton"
            self._watched.fail_link(
                state.session, link.name, condition, text=text, is_sender=link.is_sender
            )

        return fail

    def _refuse_acquisition(self, state: _Session, link: _Link) -> None:
        """Refuse the acquisition of messages in a transaction: it is not supported (4.4.3)."""
        text = "messages cannot be acquired in a transaction; settle them in one instead"
        self._fail_after(state, link, NOT_IMPLEMENTED, text=text, pass_on=_ignore_frame)()


def _handle_of_link_named(state: _Session, name: str, *, is_sender: bool) -> int | None:
    """Return the handle of an attached link with this name and direction; None without one."""
    for handle, link in state.links.items():
        if link.name == name and link.is_sender == is_sender and not link.is_stolen:
            return handle
    return None


def _check_continuation(link: _Link, identity: tuple[Any, Any, Any]) -> tuple[str, str] | None:
    """Check a later transfer of a delivery: fields that it repeats must equal those of the first
    one (2.7.5). Return condition and text of an error that ends the link; None if valid. Raises
    :class:`Offence`."""
    names = ("delivery-id", "delivery-tag", "message-format")
    for name, value, first in zip(names, identity, link.delivery, strict=True):
        if value is not None and value != (first or _DEFAULTS[name]):
            text = f"{name} of transfer differs from that of the delivery's first transfer"
            if name == "delivery-id":
                raise Offence(INVALID, text, of_session=True)
            return INVALID, text
    return None


def _without_payload(values: list[Any], frame: bytes) -> bytes:
    """Encode a transfer without its payload, and aborted if it is the delivery's last one. Proton
    has to count the delivery, so the transfer cannot just be skipped."""
    fields, is_last = [*values], not values[5]
    fields[6], fields[7], fields[8], fields[9] = None, None, False, is_last or bool(values[9])
    return _frame(TRANSFER, fields, b"", channel=frame[6:8])


def _frame(code: int, values: list[Any], payload: bytes, channel: bytes) -> bytes:
    """Encode a frame with the shortest header and descriptor."""
    body = bytes((0x00, 0x53, code)) + encode_list([encode(value) for value in values]) + payload
    return (len(body) + _HEADER_BYTES).to_bytes(4, "big") + b"\x02\x00" + channel + body


def _ignore_frame() -> None:
    """Do nothing, which ignores a frame."""
