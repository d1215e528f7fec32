"""Implements the parts of flow frames that Proton ignores (AMQP 2.7.4).

Proton ignores ``echo``, answers ``drain`` only if it has credit to return, and treats a credit of
2^31 or more as negative. So this module reads the peer's flow frames before Proton does. To answer
one, it makes Proton write the session's state and adds the link's state.
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
"""Largest credit passed to Proton, whose numbers are signed; more would have no effect."""
_UINT: Final = 1 << 32
_WATCHED_FRAMES: Final = frozenset({frames.BEGIN, frames.FLOW, frames.END})
_HANDLE, _COUNT, _CREDIT, _DRAIN, _ECHO = 4, 5, 6, 8, 9
"""Indexes of fields in a flow frame (2.7.4)."""


class _Flow(NamedTuple):
    """The content of a flow frame."""

    channel: int
    of_link: bool
    """Whether the frame is about a link; otherwise it is about its session only."""
    limit: int
    """The delivery count at which the credit ends."""
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
        """``incoming`` and ``outgoing`` are the engine's links by :func:`key_of`."""
        self.frames = Frames(_WATCHED_FRAMES, frame_bytes_max)
        self._incoming = incoming
        self._outgoing = outgoing
        self._sessions: dict[int, Pointer] = {}
        """Sessions by the peer's channel number."""
        self._begins: int | None = None
        """Channel of the begin frame that Proton is processing."""
        self._flow: _Flow | None = None
        """Content of the flow frame that Proton is processing; None for other frames."""
        self._limits: dict[int, int] = {}
        """Delivery count at which the credit ends, by link."""
        self._drains: set[int] = set()
        """Links that the peer drains; it waits for the answer."""
        self._drained: dict[int, None] = {}
        """Links that have no more events for now."""
        self._owed: dict[int, None] = {}
        """Links whose state the peer has requested."""
        self._owed_sessions: dict[int, None] = {}
        """Sessions whose state the peer has requested, by the peer's channel."""
        self._unnamed: dict[str, deque[int]] = {}
        """Outgoing links whose handle on this side is not known yet, by name."""
        self._handles: dict[int, int] = {}
        """Handles on this side, by link."""

    # --- input ---------------------------------------------------------------------------

    def prepare(self, frame: Frame) -> bytes:
        """Return the frame in the form that Proton is to process. All events of earlier frames must
        have been reported."""
        if frame.code == frames.BEGIN:
            self._begins = frame.channel
        elif frame.code == frames.END:
            self._sessions.pop(frame.channel, None)
            self._owed_sessions.pop(frame.channel, None)
        else:
            self._flow, raw = _read(frame)
            return raw
        return frame.raw

    def finish_frame(self) -> None:
        """Finish the frame after Proton has processed it and its events were reported."""
        flow, self._flow, self._begins = self._flow, None, None
        if flow is not None and flow.echo and not flow.of_link and flow.channel in self._sessions:
            self._owed_sessions[flow.channel] = None

    def register_session(self, session: Pointer) -> None:
        """Register a session that the peer has begun."""
        if self._begins is not None:
            self._sessions[self._begins] = session

    def flow_reported(self, key: int) -> None:
        """Apply the current flow frame to a link for which Proton reports a flow event."""
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

    def register_link(self, link: OutgoingLink) -> None:
        """Register a link that was attached on this side. Its handle is read from the attach frame
        in the output, because Proton does not expose it."""
        self._unnamed.setdefault(link.link.name, deque()).append(key_of(link.pointer))

    def return_credit(self, link: OutgoingLink) -> None:
        """Register a link without further events for now. After its last message the rest of the
        credit goes back to the peer."""
        self._drained[key_of(link.pointer)] = None

    def forget(self, pointer: Pointer) -> None:
        """Forget a link that is over. Also called for a new link, whose pointer may have belonged
        to an earlier one."""
        key = key_of(pointer)
        self._drains.discard(key)
        for by_link in (self._limits, self._drained, self._owed, self._handles):
            by_link.pop(key, None)

    # --- output --------------------------------------------------------------------------

    def output(self, produce: Callable[[], bytes]) -> bytes:
        """Return all bytes to send: Proton's output, which ``produce`` returns, and the flow frames
        that return credit or that the peer has requested."""
        data = produce()
        if self._unnamed:
            self._learn_handles(data)
        if self._drained:
            data += self._drain(produce)
        if self._owed or self._owed_sessions:
            data += self._answers(produce)
        return data

    def _learn_handles(self, data: bytes) -> None:
        """Read the handles of new outgoing links from the attach frames in Proton's output."""
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
        """Return the credit of links without further events to their peers. Return the frames to
        send."""
        data = b""
        for key in list(self._drained):
            link = self._outgoing.get(key)
            if link is not None and pn.pn_link_queued(link.pointer):
                continue  # messages still wait for the session window
            del self._drained[key]
            if link is None:
                continue
            if pn.pn_link_drained(link.pointer):
                data += produce()
            elif key in self._drains:  # without credit to return, Proton does not answer
                self._owed[key] = None
            self._drains.discard(key)
        return data

    def _answers(self, produce: Callable[[], bytes]) -> bytes:
        """Return flow frames with the states of sessions and links that the peer has requested.
        ``produce`` returns the frames that Proton has ready."""
        data = b""
        channels, self._owed_sessions = self._owed_sessions, {}
        for channel in channels:
            if (session := self._sessions.get(channel)) is not None:
                data += _session_state(session, produce)
        for key in list(self._owed):
            outgoing, incoming = self._outgoing.get(key), self._incoming.get(key)
            if incoming is not None:
                pn.pn_link_flow(incoming.pointer, 0)  # makes Proton write the state of this link
                data += _session_state(pn.pn_link_session(incoming.pointer), produce)
            elif outgoing is not None and key in self._handles:
                session_frames = _session_state(pn.pn_link_session(outgoing.pointer), produce)
                data += self._add_link_state(key, outgoing, session_frames)
            else:
                continue  # not attached on this side yet
            del self._owed[key]
        return data

    def _add_link_state(self, key: int, link: OutgoingLink, session_frames: bytes) -> bytes:
        """Return a flow frame with the state of a link added to that of its session."""
        flows = list(frames.frames_in(session_frames, frames.FLOW))
        if len(flows) != 1:  # the session is over
            return session_frames
        session_fields = [*flows[0].fields, None, None, None, None][:4]
        # Proton has deducted the queued messages, but the peer has not received them yet.
        credit = pn.pn_link_credit(link.pointer) + pn.pn_link_queued(link.pointer)
        count = (self._limits.get(key, 0) - credit) % _UINT
        link_fields = (
            UInt(self._handles[key]),
            UInt(count),
            UInt(max(0, credit)),
            None,
            link.is_draining,
        )
        return frames.flow(flows[0].channel, [*session_fields, *link_fields])


def _session_state(session: Pointer, produce: Callable[[], bytes]) -> bytes:
    """Make Proton write the state of a session. Setting the capacity has this effect, even to its
    current value."""
    pn.pn_session_set_incoming_capacity(session, 0)
    return produce()


def _read(frame: Frame) -> tuple[_Flow | None, bytes]:
    """Return the content of a flow frame, and the frame with a credit that Proton can process."""
    try:
        values: list[Any] = [*frame.fields, *[None] * 10]
    except RemoteProtocolViolation:  # Proton reports the error
        return None, frame.raw
    raw, credit = frame.raw, values[_CREDIT]
    if isinstance(credit, UInt) and credit > CREDIT_MAX:
        offset = field_offsets(raw, frame.value_at)[_CREDIT]
        raw = raw[: offset + 1] + CREDIT_MAX.to_bytes(4, "big") + raw[offset + 5 :]
        credit = UInt(CREDIT_MAX)
    count = values[_COUNT]
    limit = sum(int(number) for number in (count, credit) if isinstance(number, UInt)) % _UINT
    handle, drain, echo = values[_HANDLE], values[_DRAIN], values[_ECHO]
    return (
        _Flow(frame.channel, handle is not None, limit, drain=drain is True, echo=echo is True),
        raw,
    )


def key_of(pointer: Pointer) -> int:
    """Return the identity of a link or delivery; it is unique while the object exists."""
    return int(ffi.cast("uintptr_t", pointer))
