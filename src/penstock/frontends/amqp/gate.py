"""Checks each frame before Proton's engine gets it, so that an error ends exactly what the standard
says, and nothing around it.

Proton itself ends the connection for most errors, with conditions of its own, and takes a field of
the wrong type for a missing one. The frames of a stream differ only in numbers and tags: the first
is checked in full, those after it are only compared with it, many at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from msgspec import Struct, field
from proton import Session

from penstock.core.vocabulary.errors import RemoteProtocolViolation
from penstock.frontends.amqp.conditions import FRAMING, NOT_ALLOWED, NOT_IMPLEMENTED, TOO_MUCH
from penstock.wire.amqp.performatives import (
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
)
from penstock.wire.amqp.sections import field_places
from penstock.wire.amqp.types import Symbol, UInt, listed, written

UNATTACHED: Final = "amqp:session:unattached-handle"
IN_USE: Final = "amqp:session:handle-in-use"
ERRANT: Final = "amqp:session:errant-link"

LIKENESSES_MAX: Final = 256
"""Most checked frames that are remembered; the peer decides how many kinds there are."""
LIKE_BYTES_MAX: Final = 512
"""Largest performative in bytes that is remembered: an outcome may carry the rest of a frame."""
_FEW: Final = 16
_MANY: Final = 4_096
"""Most frames compared at once. It begins with few, because most may differ."""
_HALF: Final = 1 << 31
_HEADER_BYTES: Final = 8
"""Size in bytes of the protocol header, and of a frame's header."""
_ACQUISITION: Final = "txn-id"


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


class _Session(Struct):
    session: Session | None = None
    links: dict[int, _Link] = field(default_factory=dict)
    """Links by the peer's handle."""
    is_over: bool = False
    """This side has ended it with an error: its frames are ignored until the peer ends it, too."""


class _Likeness(NamedTuple):
    """A checked frame: others that differ from it in two numbers or texts at most are as good.
    Offsets count from the beginning of a frame."""

    head: bytes
    """The frame's first bytes, after its size."""
    first_at: int
    first_end: int
    middle: bytes
    second_at: int
    second_end: int
    tail: bytes
    end: int
    is_range: bool
    """Whether the second number ends a range that the first one begins."""


class Gate:
    """The check that all frames of one connection pass."""

    def __init__(self, watched: Watched, frame_bytes_max: int, links_max: int) -> None:
        """``links_max`` limits links. As many more may still wait for the peer to detach them."""
        self._watched = watched
        self._frame_bytes_max = frame_bytes_max
        self._links_max = 2 * links_max
        self._rest = b""
        self._has_header = False
        self._is_open = False
        self._is_shut = False
        """Nothing is checked any more: the connection ends."""
        self._sessions: dict[int, _Session] = {}
        """Sessions by the peer's channel number."""
        self._likenesses: dict[bytes, _Likeness] = {}
        self._beginning: _Session | None = None
        self._partial = 0
        self._links = 0

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
            known = 0 if self._partial else self._alike(data, at, size, end)
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
        frame = data[at : at + size]
        is_plain = found.begin == 3 and body == at + _HEADER_BYTES
        if not is_plain:  # Proton knows the short form alone
            frame = _short(found, data[body : at + size], channel)
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
        if act is None and found.code in (TRANSFER, DISPOSITION):
            self._learn(found, frame)
        return act

    def _fail(self, offence: Offence, channel: int) -> None:
        known = self._sessions.get(channel) if offence.of_session else None
        if known is None or known.session is None:
            self._is_shut = True
            self._watched.fail(offence.condition, str(offence))
        elif not known.is_over:
            known.is_over = True
            self._likenesses.clear()
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
        self._sessions[channel] = self._beginning = _Session()
        self._likenesses.clear()
        self._watched.feed(frame)
        if self._beginning is not None:  # Proton has refused the session before
            self._beginning = None
            self._sessions.pop(channel, None)

    def _of_session(
        self, code: int, channel: int, known: _Session, values: list[Any], frame: bytes
    ) -> Callable[[], None] | None:
        if code == ATTACH:
            return self._attaches(known, values, frame)
        if code == END:
            del self._sessions[channel]
            self._likenesses.clear()
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
            self._transfers(self._attached(known, int(values[0])), values)
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
        known.links[handle] = _Link(name, is_sender, values[5] is not None)
        self._links += 1
        if older is None:
            return None
        return partial(self._steals, known, older, frame)

    def _steals(self, known: _Session, handle: int, frame: bytes) -> None:
        """End a link whose name is attached again, as if the peer had detached it; the peer's own
        detach may still come."""
        link = known.links[handle]
        link.is_stolen = True
        self._partial -= link.is_partial
        link.is_partial = False
        self._likenesses.clear()
        assert known.session is not None, "it has links"
        self._watched.take_away(known.session, link.name, is_sender=link.is_sender)
        gone = _frame(DETACH, [written(UInt(handle)), written(True)], frame[6:8])
        self._watched.feed(gone + frame)

    def _detaches(self, known: _Session, handle: int) -> Callable[[], None] | None:
        link = known.links.get(handle)
        if link is None:
            self._attached(known, handle)  # raises if there is none
            return None
        del known.links[handle]
        self._links -= 1
        self._partial -= link.is_partial
        self._likenesses.clear()
        return _nothing if link.is_stolen else None

    def _transfers(self, link: _Link, values: list[Any]) -> None:
        """Check a transfer frame. Raises :class:`Offence` (2.7.5)."""
        for place, what in ((1, "delivery-id"), (2, "delivery-tag")):
            if values[place] is None and not link.is_partial:
                text = (
                    f"{what} of transfer is missing; the first transfer of a delivery must have it"
                )
                raise Offence(INVALID, text, of_session=True)
        is_partial = bool(values[5]) and not values[9]
        self._partial += is_partial - link.is_partial
        link.is_partial = is_partial

    def _acquires(self, known: _Session, link: _Link) -> None:
        """Refuse acquiring messages within a transaction, which this realm does not do (4.4.3)."""
        assert known.session is not None, "it has links"
        text = "messages cannot be acquired in a transaction here; settle them in one instead"
        self._watched.fail_link(
            known.session, link.name, NOT_IMPLEMENTED, text, is_sender=link.is_sender
        )

    # --- frames that are alike -----------------------------------------------------------

    def _alike(self, data: bytes, at: int, size: int, end: int) -> int:
        """How many frames from here on are as good as one that was checked."""
        like = self._likenesses.get(data[at + 4 : at + 16])
        if like is None or not _is_like(data, at, like):
            return 0
        begin, ahead = data[at : at + 16], at + 3 * size
        if (
            end - ahead < size
            or data[ahead : ahead + 16] != begin
            or data[at + size : at + size + 16] != begin
        ):
            return 1  # more are compared at once only if there are probably more
        first = np.frombuffer(data, np.uint8, like.end, at)
        count, step = 0, _FEW
        while step := min(step, (end - at) // size - count):
            rows = np.frombuffer(data, np.uint8, step * size, at + count * size)
            alike = _alike_in(rows.reshape(step, size)[:, : like.end], first, like)
            count += alike
            if alike < step:
                break
            step = min(4 * step, _MANY)
        return count

    def _learn(self, found: Performative, frame: bytes) -> None:
        """Remember a frame that has passed, for later ones like it."""
        if self._partial or len(frame) < _LIKE_BYTES_MIN or found.end > LIKE_BYTES_MAX:
            return
        places = [_HEADER_BYTES + place for place in field_places(frame[8:], found.begin)]
        is_transfer = found.code == TRANSFER
        if len(places) < (3 if is_transfer else 2):
            return
        if is_transfer and _NULL in (frame[places[1]], frame[places[2]]):
            return  # the rest of a delivery
        first = _free(frame, places[1])
        second = (first[1], first[1])
        if len(places) > 2:
            second = _free(frame, places[2])
        like = _Likeness(
            *(frame[4 : first[0]], *first, frame[first[1] : second[0]], *second),
            *(frame[second[1] : 8 + found.end], 8 + found.end, not is_transfer),
        )
        if len(self._likenesses) >= LIKENESSES_MAX:
            self._likenesses.clear()
        self._likenesses[frame[4:16]] = like


_LIKE_BYTES_MIN: Final = 16
_NULL: Final = 0x40


def _is_like(data: bytes, at: int, like: _Likeness) -> bool:
    if (
        data[at + 4 : at + like.first_at] != like.head
        or data[at + like.first_end : at + like.second_at] != like.middle
        or data[at + like.second_end : at + like.end] != like.tail
    ):
        return False
    if not like.is_range or like.second_at == like.second_end:
        return True
    first = int.from_bytes(data[at + like.first_at : at + like.first_end], "big")
    second = int.from_bytes(data[at + like.second_at : at + like.second_end], "big")
    return (second - first) % (2 * _HALF) < _HALF


def _alike_in(rows: Any, good: Any, like: _Likeness) -> int:
    """How many rows equal the good one, up to the first that does not."""
    same = rows == good
    same[:, like.first_at : like.first_end] = True
    same[:, like.second_at : like.second_end] = True
    are = same.all(axis=1)
    if like.is_range and like.second_at < like.second_end:
        first = _numbers(rows[:, like.first_at : like.first_end])
        are &= _numbers(rows[:, like.second_at : like.second_end]) - first < _HALF
    return len(are) if are.all() else int(are.argmin())


def _numbers(rows: Any) -> Any:
    found = np.zeros(len(rows), np.uint32)
    for column in range(rows.shape[1]):
        found = (found << np.uint32(8)) | rows[:, column]
    return found


def _free(frame: bytes, at: int) -> tuple[int, int]:
    """Where the variable bytes of a number or tag begin and end."""
    code = frame[at]
    if code == 0x70:
        return at + 1, at + 5
    if code == 0x52:
        return at + 1, at + 2
    if code == 0xA0:
        return at + 2, at + 2 + frame[at + 1]
    return at + 1, at + 1


def _same(known: _Session, name: str, *, is_sender: bool) -> int | None:
    """The handle of another link of this name and direction."""
    for handle, link in known.links.items():
        if link.name == name and link.is_sender == is_sender and not link.is_stolen:
            return handle
    return None


def _short(found: Performative, frame: bytes, channel: int) -> bytes:
    """The frame with the shortest header and names that it can have."""
    body = bytes((0x00, 0x53, found.code)) + frame[found.begin :]
    return _framed(body, channel.to_bytes(2, "big"))


def _frame(code: int, values: list[bytes], channel: bytes) -> bytes:
    return _framed(bytes((0x00, 0x53, code)) + listed(values), channel)


def _framed(body: bytes, channel: bytes) -> bytes:
    return (len(body) + _HEADER_BYTES).to_bytes(4, "big") + b"\x02\x00" + channel + body


def _nothing() -> None:
    """Ignore a frame."""
