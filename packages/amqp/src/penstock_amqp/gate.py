"""Checks each frame before Proton's engine gets it, so that an error ends exactly what the standard
says, and nothing around it.

Proton itself ends the connection for most errors, with conditions of its own, and takes a field of
the wrong type for a missing one. The frames of a stream differ only in numbers and tags: the first
is checked in full, those after it are only compared with it, many at once.
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
_HEADER_BYTES: Final = 8
"""Size in bytes of the protocol header, and of a frame's header."""
_ACQUISITION: Final = "txn-id"
_SECOND: Final = 1
"""The receiver's settle mode ``second``."""
_DEFAULTS: Final = {"delivery-id": 0, "delivery-tag": b"", "message-format": 0}
"""What a delivery's first transfer means where it leaves a field out."""


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
        """End a link; with ``is_sender`` the peer sends by it."""
        ...

    def take_away(self, session: Session, name: str, *, is_sender: bool) -> None:
        """End a link whose name the peer has attached again in the same session."""
        ...

    def feed(self, data: bytes | memoryview) -> None:
        """Take frames that have passed."""
        ...

    def has_states(self) -> None:
        """Note that a transfer that is about to be passed on has a state; others may follow."""
        ...


class Offence(Exception):
    """An error that ends the connection, or the session in which it occurred."""

    def __init__(self, condition: str, text: str, *, of_session: bool = False) -> None:
        super().__init__(text)
        self.condition = condition
        self.of_session = of_session


class _Link(Struct):
    """A link that the peer has attached."""

    name: str
    is_sender: bool
    """Whether the peer sends by it."""
    has_source: bool
    """Whether the peer gave it a source."""
    is_stolen: bool = False
    is_partial: bool = False
    """Whether further parts of a message are to come."""
    delivery: tuple[Any, Any, Any] = (None, None, None)
    """Id, tag and message format of the delivery whose parts come."""
    is_dropped: bool = False
    """Whether the delivery whose parts come is dropped."""
    settles_second: bool = False
    """Whether the receiver's settle mode ``second`` was negotiated."""


class _Session(Struct):
    session: Session | None = None
    links: dict[int, _Link] = field(default_factory=dict)
    """Links by the peer's handle."""
    ids: DeliveryIds = field(default_factory=DeliveryIds)
    has_window: bool = False
    """Whether the peer was told that it may send: this side's begin has gone out."""
    is_over: bool = False
    """This side has ended it with an error: its frames are ignored until the peer ends it, too."""


class Gate:
    """The check that all frames of one connection pass."""

    def __init__(self, watched: Watched, frame_bytes_max: int, links_max: int) -> None:
        """``links_max`` limits links. As many more may still wait for the peer to detach them."""
        self._watched: Watched = proxy(watched)  # it has the gate: no cycle
        self._frame_bytes_max = frame_bytes_max
        self._links_max = 2 * links_max
        self._rest = b""
        self._has_header = False
        self._is_open = False
        self._is_shut = False
        """Nothing is checked any more: the connection ends."""
        self._sessions: dict[int, _Session] = {}
        """Sessions by the peer's channel number."""
        self._checked = CheckedFrames()
        self._beginning: _Session | None = None
        self._partial = 0
        self._links = 0
        self._untold: list[_Session] = []
        """Sessions whose begin this side has not sent yet."""

    def feed(self, data: bytes) -> None:
        """Check bytes of the peer, from the protocol header on, and pass them on."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        at = 0
        if not self._has_header:
            if len(data) < _HEADER_BYTES:
                self._rest = data
                return
            self._has_header, at = True, _HEADER_BYTES
        self._look(data, at)

    def began(self, session: Session) -> None:
        """Note that Proton has created a session for the frame before."""
        if self._beginning is not None:
            self._beginning.session = session
            self._beginning = None

    def wrote(self) -> None:
        """Note that everything there was to send has been sent."""
        for session in self._untold:
            session.has_window = True
        self._untold.clear()

    def says_source(self, session: Session, name: str) -> bool:
        """Whether the peer gave a source when it attached a link by which it sends."""
        for known in self._sessions.values():
            if known.session == session:
                links = known.links.values()
                return any(
                    each.name == name and each.is_sender and each.has_source for each in links
                )
        return False

    # --- frames --------------------------------------------------------------------------

    def _look(self, data: bytes, at: int) -> None:
        begin, end = 0, len(data)  # checked bytes not yet passed on start at ``begin``
        while end - at >= _HEADER_BYTES and not self._is_shut:
            size = int.from_bytes(data[at : at + 4], "big")
            if not _HEADER_BYTES <= size <= self._frame_bytes_max:
                self._is_shut = True
                self._watched.feed(memoryview(data)[begin:])  # Proton reports what is wrong with it
                return
            if end - at < size:
                break
            known = 0 if self._partial else self._checked.alike(data, at, size, end)
            if known:
                at += known * size
                continue
            act = self._act_on(data, at, size)
            if act is not None:
                if begin < at:
                    self._watched.feed(memoryview(data)[begin:at])
                act()
                begin = at + size
            at += size
        if self._is_shut:
            return
        if begin < at:
            self._watched.feed(memoryview(data)[begin:at] if begin or at < end else data)
        self._rest = data[at:]

    def _act_on(self, data: bytes, at: int, size: int) -> Callable[[], None] | None:
        """What to do with a frame instead of passing it on together with those before it; None:
        pass it on."""
        kind, channel = data[at + 5], int.from_bytes(data[at + 6 : at + 8], "big")
        body = at + 4 * data[at + 4]
        if kind != 0 or not at + _HEADER_BYTES <= body <= at + size:
            self._is_shut = True
            return partial(self._watched.feed, data[at : at + size])  # Proton reports what is wrong
        if body == at + size:
            return None  # an empty frame only keeps the connection alive
        try:
            found = performative_of(data[body : at + size], 0)
        except RemoteProtocolViolation as error:
            return partial(self._fail, Offence(FRAMING, str(error)), channel)
        frame, values = data[at : at + size], with_numeric_descriptors(found)
        is_plain = found.begin == 3 and body == at + _HEADER_BYTES and values is found.values
        if not is_plain:  # Proton knows the short form alone
            payload = data[body + found.end : at + size]
            frame = _frame(found.code, values, payload, channel=channel.to_bytes(2, "big"))
        try:
            act = self._meant(found, channel, frame)
        except Unfit as error:
            of_session = found.code not in (OPEN, BEGIN, END, CLOSE) and channel in self._sessions
            offence = Offence(error.condition, str(error), of_session=of_session)
            return partial(self._fail, offence, channel)
        except Offence as offence:
            return partial(self._fail, offence, channel)
        if act is None and not is_plain:
            return partial(self._watched.feed, frame)
        if act is None and not self._partial and found.code in (TRANSFER, DISPOSITION):
            ids = self._sessions[channel].ids if found.code == TRANSFER else None
            self._checked.learn(found, frame, ids)
        return act

    def _fail(self, offence: Offence, channel: int) -> None:
        known = self._sessions.get(channel) if offence.of_session else None
        if known is None or known.session is None:
            self._is_shut = True
            self._watched.fail(offence.condition, str(offence))
        elif not known.is_over:
            known.is_over = True
            self._checked.clear()
            self._watched.fail_session(known.session, offence.condition, str(offence))

    def _meant(self, found: Performative, channel: int, frame: bytes) -> Callable[[], None] | None:
        """Check a frame that is decoded. Raises :class:`Offence`, :class:`Unfit`."""
        code, known = found.code, self._sessions.get(channel)
        if known is not None and known.is_over and code not in (END, CLOSE):
            return _nothing
        values = check_performative(found)
        if code == OPEN:
            self._opens(channel)
        elif not self._is_open:
            raise Offence(NOT_ALLOWED, "the first frame must be an open")
        elif code == BEGIN:
            if known is not None:
                raise Offence(NOT_ALLOWED, f"channel {channel} already has a session")
            return partial(self._begin, channel, frame)
        elif code != CLOSE:
            if known is None:
                raise Offence(NOT_ALLOWED, f"there is no channel {channel}")
            return self._of_session(code, channel, known, values, frame)
        return None

    def _opens(self, channel: int) -> None:
        if channel:
            raise Offence(FRAMING, f"an open on channel {channel}; it must be 0 (AMQP 1.0, 2.4.1)")
        if self._is_open:
            raise Offence(NOT_ALLOWED, "the connection is already open")
        self._is_open = True

    # --- sessions ------------------------------------------------------------------------

    def _begin(self, channel: int, frame: bytes) -> None:
        session = self._sessions[channel] = self._beginning = _Session()
        self._untold.append(session)
        self._checked.clear()
        self._watched.feed(frame)
        if self._beginning is not None:  # Proton has refused the session before
            self._beginning = None
            self._sessions.pop(channel, None)
            self._untold.remove(session)

    def _of_session(
        self, code: int, channel: int, known: _Session, values: list[Any], frame: bytes
    ) -> Callable[[], None] | None:
        if code == ATTACH:
            return self._attaches(known, values, frame)
        if code == END:
            del self._sessions[channel]
            self._checked.clear()
            self._links -= len(known.links)
            self._partial -= sum(link.is_partial for link in known.links.values())
        elif code == DISPOSITION:
            first, last = int(values[1]), values[2]
            if last is not None and (int(last) - first) % (2 * _HALF) >= _HALF:
                text = f"disposition: last ({int(last)}) is before first ({first})"
                raise Offence(INVALID, text, of_session=True)
        elif code == DETACH:
            return self._detaches(known, int(values[0]))
        elif code == TRANSFER:
            return self._transfers(known, self._attached(known, int(values[0])), values, frame)
        elif values[4] is not None:
            link = self._attached(known, int(values[4]))
            if values[10] and Symbol(_ACQUISITION) in values[10]:
                return partial(self._acquires, known, link)
        return None

    # --- links ---------------------------------------------------------------------------

    def _attached(self, known: _Session, handle: int) -> _Link:
        """The link of a handle. Raises :class:`Offence` if there is none."""
        link = known.links.get(handle)
        if link is None:
            text = f"no link is attached with handle {handle}"
            raise Offence(UNATTACHED, text, of_session=True)
        if link.is_stolen:
            text = f"the link {link.name[:40]!r} was stolen by another attach and has ended"
            raise Offence(ERRANT, text, of_session=True)
        return link

    def _attaches(
        self, known: _Session, values: list[Any], frame: bytes
    ) -> Callable[[], None] | None:
        name, handle, is_sender = values[0], int(values[1]), not values[2]
        if handle in known.links:
            text = f"handle {handle} is already used by the link {known.links[handle].name[:40]!r}"
            raise Offence(IN_USE, text, of_session=True)
        if self._links >= self._links_max:
            raise Offence(TOO_MUCH, f"{self._links} links are attached, which is the limit")
        older = _same(known, name, is_sender=is_sender)
        known.links[handle] = _Link(
            name, is_sender, values[5] is not None, settles_second=values[4] == _SECOND
        )
        self._links += 1
        passing = None if older is None else partial(self._steals, known, older, frame)
        if unknown := unknown_terminus(values):
            text = f"a {unknown} is not supported; the standard has source, target, coordinator"
            passing = passing or partial(self._watched.feed, frame)
            return self._failing(
                known, known.links[handle], NOT_IMPLEMENTED, text=text, passing=passing
            )
        return passing

    def _steals(self, known: _Session, handle: int, frame: bytes) -> None:
        """End a link whose name is attached again, as if the peer had detached it; the peer's own
        detach may still come."""
        link = known.links[handle]
        link.is_stolen = True
        self._partial -= link.is_partial
        link.is_partial = False
        self._checked.clear()
        assert known.session is not None, "it has links"
        self._watched.take_away(known.session, link.name, is_sender=link.is_sender)
        gone = _frame(DETACH, [UInt(handle), True], b"", channel=frame[6:8])
        self._watched.feed(gone + frame)

    def _detaches(self, known: _Session, handle: int) -> Callable[[], None] | None:
        link = known.links.get(handle)
        if link is None:
            self._attached(known, handle)  # raises if there is none
            return None
        del known.links[handle]
        self._links -= 1
        self._partial -= link.is_partial
        self._checked.clear()
        return _nothing if link.is_stolen else None

    def _transfers(
        self, known: _Session, link: _Link, values: list[Any], frame: bytes
    ) -> Callable[[], None] | None:
        """Check a transfer frame. Raises :class:`Offence` (2.5.6, 2.7.5)."""
        if not known.has_window:
            text = "a transfer came before the session's begin was answered, and so no window"
            raise Offence(WINDOW, text, of_session=True)
        if values[7] is not None:
            self._watched.has_states()
        begins, given = not link.is_partial, (values[1], values[2], values[3])
        wrong = self._begins_delivery(known, link, given) if begins else _continues(link, given)
        is_partial = bool(values[5]) and not values[9]
        self._partial += is_partial - link.is_partial
        link.is_partial = is_partial
        if values[6] == _SECOND and not link.settles_second:
            wrong = INVALID, "rcv-settle-mode of transfer is second; this link's is first (2.7.5)"
        # No delivery is kept that could be resumed, and such a transfer is ignored (2.7.5).
        is_dropped = wrong is not None or bool(values[8])
        link.is_dropped = is_dropped or (link.is_dropped and not begins)
        if not link.is_dropped:
            return None
        passing = partial(self._watched.feed, _dropped(values, frame))
        return passing if wrong is None else self._failing(known, link, *wrong, passing=passing)

    def _begins_delivery(
        self, known: _Session, link: _Link, given: tuple[Any, Any, Any]
    ) -> tuple[str, str] | None:
        """Check the first transfer of a delivery; gives the error that ends the link. Raises
        :class:`Offence`."""
        for value, what in zip(given, ("delivery-id", "delivery-tag"), strict=False):
            if value is None:
                text = (
                    f"{what} of transfer is missing; the first transfer of a delivery must have it"
                )
                raise Offence(INVALID, text, of_session=True)
        number, ids = int(given[0]), known.ids
        if ids.next_id is not None and number != ids.next_id:
            text = f"delivery-id of transfer is {number}; the next one must be {ids.next_id}"
            raise Offence(INVALID, text, of_session=True)
        ids.next_id = (number + 1) % (2 * _HALF)
        link.delivery = given
        if given[2]:
            text = f"message-format of transfer is {int(given[2])}; only 0 is supported"
            return NOT_IMPLEMENTED, text
        return None

    def _failing(
        self,
        known: _Session,
        link: _Link,
        condition: str,
        text: str,
        passing: Callable[[], None],
    ) -> Callable[[], None]:
        """An act that passes a frame on and then ends its link."""

        def fail() -> None:
            passing()
            assert known.session is not None, "it has links"
            self._watched.fail_link(
                known.session, link.name, condition, text=text, is_sender=link.is_sender
            )

        return fail

    def _acquires(self, known: _Session, link: _Link) -> None:
        """Refuse acquiring messages within a transaction, which this realm does not do (4.4.3)."""
        text = "messages cannot be acquired in a transaction here; settle them in one instead"
        self._failing(known, link, NOT_IMPLEMENTED, text=text, passing=_nothing)()


def _same(known: _Session, name: str, *, is_sender: bool) -> int | None:
    """The handle of another link of this name and direction."""
    for handle, link in known.links.items():
        if link.name == name and link.is_sender == is_sender and not link.is_stolen:
            return handle
    return None


def _continues(link: _Link, given: tuple[Any, Any, Any]) -> tuple[str, str] | None:
    """Check a further transfer of a delivery; gives the error that ends the link. What it says
    again must be what the first one said (2.7.5). Raises :class:`Offence`."""
    names = ("delivery-id", "delivery-tag", "message-format")
    for what, value, first in zip(names, given, link.delivery, strict=True):
        if value is not None and value != (first or _DEFAULTS[what]):
            text = f"{what} of transfer is not that of the delivery's first transfer"
            if what == "delivery-id":
                raise Offence(INVALID, text, of_session=True)
            return INVALID, text
    return None


def _dropped(values: list[Any], frame: bytes) -> bytes:
    """A transfer without its payload, and aborted if it is the last one of its delivery: Proton has
    to count it."""
    own, is_last = [*values], not values[5]
    own[6], own[7], own[8], own[9] = None, None, False, is_last or bool(values[9])
    return _frame(TRANSFER, own, b"", channel=frame[6:8])


def _frame(code: int, values: list[Any], payload: bytes, channel: bytes) -> bytes:
    """A frame with the shortest header and names that it can have."""
    body = bytes((0x00, 0x53, code)) + encode_list([encode(value) for value in values]) + payload
    return (len(body) + _HEADER_BYTES).to_bytes(4, "big") + b"\x02\x00" + channel + body


def _nothing() -> None:
    """Ignore a frame."""
