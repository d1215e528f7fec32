"""Handles what Proton ignores in flow frames, and sends the answers that it does not (AMQP 2.7.4).

Proton ignores ``echo``, answers ``drain`` only if there is credit to give back, and takes a credit
of 2^31 and more for a negative one. So the flows of a peer are read here before Proton gets them.
To answer one, Proton is made to write the session's state, to which the link's state is added.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from cproton_ffi import ffi
from cproton_ffi import lib as pn

from penstock_amqp.link_ends import IncomingLink, OutgoingLink
from penstock_amqp.outcomes import Pointer
from penstock_amqp.wire import frames
from penstock_amqp.wire.frames import Frame, Frames
from penstock_amqp.wire.sections import field_offsets
from penstock_amqp.wire.types import UInt
from penstock_core.vocabulary.errors import RemoteProtocolViolation

CREDIT_MAX: Final = (1 << 31) - 1
"""Largest credit passed on: more has no effect, and Proton's numbers are signed."""
_UINT: Final = 1 << 32
_WANTED: Final = frozenset({frames.BEGIN, frames.FLOW, frames.END})
_HANDLE, _COUNT, _CREDIT, _DRAIN, _ECHO = 4, 5, 6, 8, 9


class _Flow(NamedTuple):
    """The content of a flow frame."""

    channel: int
    of_link: bool
    limit: int
    """The delivery count up to which there is credit."""
    drain: bool
    echo: bool


class Flows:
    """The flows of one connection."""

    def __init__(
        self,
        incoming: dict[int, IncomingLink],
        outgoing: dict[int, OutgoingLink],
        frame_bytes_max: int,
    ) -> None:
        """``incoming`` and ``outgoing`` are the links by :func:`key_of`."""
        self.frames = Frames(_WANTED, frame_bytes_max)
        self._incoming = incoming
        self._outgoing = outgoing
        self._sessions: dict[int, Pointer] = {}
        """Sessions by the peer's channel number."""
        self._begins: int | None = None
        self._flow: _Flow | None = None
        self._limits: dict[int, int] = {}
        """Delivery counts up to which there is credit, by link."""
        self._drains: set[int] = set()
        """Links that are draining: their peers wait for the answer."""
        self._drained: dict[int, None] = {}
        """Links that have nothing more for now."""
        self._owed: dict[int, None] = {}
        """Links whose state the peer has asked for."""
        self._owed_sessions: dict[int, None] = {}
        """Sessions whose state was asked for, by the peer's channel."""
        self._unnamed: dict[str, deque[int]] = {}
        """Outgoing links by name, whose handles on this side are not known yet."""
        self._handles: dict[int, int] = {}

    # --- what comes ----------------------------------------------------------------------

    def coming(self, frame: Frame) -> bytes:
        """Give the frame as Proton is to read it. Everything before it has been reported."""
        if frame.code == frames.BEGIN:
            self._begins = frame.channel
        elif frame.code == frames.END:
            self._sessions.pop(frame.channel, None)
            self._owed_sessions.pop(frame.channel, None)
        else:
            self._flow, raw = _read(frame)
            return raw
        return frame.raw

    def came(self) -> None:
        """Note that Proton has processed the frame, and that its effects were reported."""
        flow, self._flow, self._begins = self._flow, None, None
        if flow is not None and flow.echo and not flow.of_link and flow.channel in self._sessions:
            self._owed_sessions[flow.channel] = None

    def begun(self, session: Pointer) -> None:
        """The peer has begun a session."""
        if self._begins is not None:
            self._sessions[self._begins] = session

    def heard(self, key: int) -> None:
        """Note that Proton reports a flow on a link, from either side."""
        flow = self._flow
        if flow is None:
            return
        self._limits[key] = flow.limit
        if flow.drain:
            self._drains.add(key)
        else:
            self._drains.discard(key)
        if flow.echo:
            self._owed[key] = None

    # --- links ---------------------------------------------------------------------------

    def opened(self, link: OutgoingLink) -> None:
        """Note that a link was attached on this side; the frame that says so will tell its
        handle."""
        self._unnamed.setdefault(link.link.name, deque()).append(key_of(link.pointer))

    def drained(self, link: OutgoingLink) -> None:
        """Note that there is nothing more to send for now. After the last message the peer is told,
        and the rest of the credit goes back."""
        self._drained[key_of(link.pointer)] = None

    def forget(self, pointer: Pointer) -> None:
        """Forget a link that is over, or whose pointer a new one has."""
        key = key_of(pointer)
        self._drains.discard(key)
        for known in (self._limits, self._drained, self._owed, self._handles):
            known.pop(key, None)

    # --- what goes out -------------------------------------------------------------------

    def output(self, produce: Callable[[], bytes]) -> bytes:
        """All bytes to send; ``produce`` gives Proton's."""
        data = produce()
        if self._unnamed:
            self._learn(data)
        if self._drained:
            data += self._drain(produce)
        if self._owed or self._owed_sessions:
            data += self._answers(produce)
        return data

    def _learn(self, data: bytes) -> None:
        for frame in frames.frames_in(data, frames.ATTACH):
            values: list[Any] = [*frame.fields, *[None] * 6]
            name, handle, is_receiver, source = values[0], values[1], values[2], values[5]
            keys = self._unnamed.get(name)
            if keys is None or is_receiver or source is None:  # a refused link has no source
                continue
            self._handles[keys.popleft()] = handle
            if not keys:
                del self._unnamed[name]

    def _drain(self, produce: Callable[[], bytes]) -> bytes:
        data = b""
        for key in list(self._drained):
            link = self._outgoing.get(key)
            if link is not None and pn.pn_link_queued(link.pointer):
                continue  # the session window is closed
            del self._drained[key]
            if link is None:
                continue
            if pn.pn_link_drained(link.pointer):
                data += produce()
            elif key in self._drains:  # Proton has no credit to give back, so it would not answer
                self._owed[key] = None
            self._drains.discard(key)
        return data

    def _answers(self, produce: Callable[[], bytes]) -> bytes:
        data = b""
        owed, self._owed_sessions = self._owed_sessions, {}
        for channel in owed:
            if (session := self._sessions.get(channel)) is not None:
                data += _said(session, produce)
        for key in list(self._owed):
            outgoing, incoming = self._outgoing.get(key), self._incoming.get(key)
            if incoming is not None:
                pn.pn_link_flow(incoming.pointer, 0)  # makes Proton write the state of this link
                data += _said(pn.pn_link_session(incoming.pointer), produce)
            elif outgoing is not None and key in self._handles:
                said = _said(pn.pn_link_session(outgoing.pointer), produce)
                data += self._of_link(key, outgoing, said)
            else:
                continue  # not attached on this side yet
            del self._owed[key]
        return data

    def _of_link(self, key: int, link: OutgoingLink, said: bytes) -> bytes:
        """A flow frame with the state of a link added to that of its session."""
        found = list(frames.frames_in(said, frames.FLOW))
        if len(found) != 1:  # the session is over
            return said
        session = [*found[0].fields, None, None, None, None][:4]
        credit = pn.pn_link_credit(link.pointer) + pn.pn_link_queued(link.pointer)
        count = (self._limits.get(key, 0) - credit) % _UINT
        own = (UInt(self._handles[key]), UInt(count), UInt(max(0, credit)), None, link.is_draining)
        return frames.flow(found[0].channel, [*session, *own])


def _said(session: Pointer, produce: Callable[[], bytes]) -> bytes:
    """Make Proton write the state of a session: setting the capacity does, even to its present
    value."""
    pn.pn_session_set_incoming_capacity(session, 0)
    return produce()


def _read(frame: Frame) -> tuple[_Flow | None, bytes]:
    """The content of a flow frame, and the frame with only what Proton understands."""
    try:
        values: list[Any] = [*frame.fields, *[None] * 10]
    except RemoteProtocolViolation:  # Proton reports the error
        return None, frame.raw
    raw, credit = frame.raw, values[_CREDIT]
    if isinstance(credit, UInt) and credit > CREDIT_MAX:
        at = field_offsets(raw, frame.value_at)[_CREDIT]
        raw = raw[: at + 1] + CREDIT_MAX.to_bytes(4, "big") + raw[at + 5 :]
        credit = UInt(CREDIT_MAX)
    count = values[_COUNT]
    limit = sum(int(each) for each in (count, credit) if isinstance(each, UInt)) % _UINT
    handle, drain, echo = values[_HANDLE], values[_DRAIN], values[_ECHO]
    return (
        _Flow(frame.channel, handle is not None, limit, drain=drain is True, echo=echo is True),
        raw,
    )


def key_of(pointer: Pointer) -> int:
    """The identity of a link or delivery while it exists."""
    return int(ffi.cast("uintptr_t", pointer))
