"""Pings a realm over the native protocol without a session. The module does no I/O."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.api.realm import Ping
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, frame

ANSWER_BYTES_MAX = 64 << 10
"""Largest answer to a ping, in bytes. A longer answer does not come from a realm."""


class Pong(Struct, frozen=True):
    """The answer to a ping."""

    is_good: bool
    """Whether a realm has answered as expected."""
    text: str
    """Description of the answer, for an administrator."""


class PingProbe:
    """One ping. The caller sends :attr:`request` on a new socket and passes the received bytes to
    :meth:`receive`."""

    request = PREFACE + b"".join(map(bytes, frame(wire.encode(wire.Asked(1, Ping())))))

    def __init__(self) -> None:
        self._reader = FrameReader()

    @property
    def is_too_long(self) -> bool:
        """Whether the answer is longer than the answer of any realm."""
        return self._reader.bytes_in >= ANSWER_BYTES_MAX

    def receive(self, received: bytes) -> Pong | None:
        """Add received bytes. Return the answer; None if it is not complete yet.

        Raises ``RemoteProtocolViolation`` if the bytes do not come from a realm.
        """
        self._reader.receive(received)
        for header, _ in self._reader.frames():
            return _answer(wire.decode_from_server(header))
        return None


def _answer(message: wire.FromServer) -> Pong:
    """Return the result of a ping from the message that answers it."""
    match message:
        case wire.Done():
            return Pong(is_good=True, text="answers")
        case wire.Goodbye(code, reason) | wire.Failed(_, code, reason):
            return Pong(is_good=False, text=f"{reason} [{code}]")
        case _:
            return Pong(is_good=False, text="answers something else")
