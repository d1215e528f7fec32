"""Sends single frames to a realm and reads its answers, for tests of the standard's rules."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import penstock
from packages.amqp.tests.frames import (
    AMQP,
    ATTACH,
    BEGIN,
    FLOW,
    OPEN,
    Raw,
    frame,
    frame_of,
    performative,
    terminus,
)
from penstock_amqp.wire.performatives import PERFORMATIVES, performative_of
from penstock_amqp.wire.types import Described, UByte, UInt, UShort

PATIENCE_S = 10.0


class Heard(NamedTuple):
    """A frame that the realm has sent."""

    code: int
    channel: int
    values: list[Any]

    @property
    def handle(self) -> int:
        """The handle: of an attach its first field after the name, of other frames the first
        field."""
        handle: int = self.values[1 if self.code == ATTACH else 0]
        return handle

    @property
    def error(self) -> tuple[str, str]:
        """Condition and description of the error in a detach, an end or a close; empty without an
        error."""
        error = next((value for value in self.values if isinstance(value, Described)), None)
        if error is None:
            return "", ""
        return str(error.value[0]), str(error.value[1] or "")

    @property
    def condition(self) -> str:
        return self.error[0]


class Dialogue:
    """One connection to a realm."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        self._socket = socket.create_connection((where.hostname, where.port), PATIENCE_S)
        self._data = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def say(self, *frames: bytes) -> None:
        self._socket.sendall(b"".join(frames))

    def hang_up(self) -> None:
        self._socket.close()

    # --- what comes ----------------------------------------------------------------------

    def bytes(self, count: int) -> bytes:
        while len(self._data) < count:
            more = self._socket.recv(1 << 16)
            assert more, f"closed after {self._data!r}"
            self._data += more
        chunk, self._data = self._data[:count], self._data[count:]
        return chunk

    def next(self) -> Heard:
        """Return the next frame that is not empty."""
        while True:
            if self._data[:4] == AMQP[:4]:
                self.bytes(8)
            size = self.bytes(4)
            if size == AMQP[:4]:
                self.bytes(4)
                continue
            rest = self.bytes(int.from_bytes(size, "big") - 4)
            body = rest[4 * rest[0] - 4 :]
            if body:
                performative = performative_of(body, 0)
                missing = len(PERFORMATIVES[performative.code].fields) - len(performative.values)
                channel = int.from_bytes(rest[2:4], "big")
                return Heard(performative.code, channel, performative.values + [None] * missing)

    def hear(self, code: int, where: Callable[[Heard], bool] = lambda _: True) -> Heard:
        """Return the next frame of a kind, and skip those before it."""
        while True:
            frame = self.next()
            if frame.code == code and where(frame):
                return frame

    def is_hung_up(self) -> bool:
        """Wait until the realm disconnects."""
        while self._socket.recv(1 << 16):
            pass
        return True


@contextmanager
def talk(realm: penstock.Realm, container: str = "teller", **more: Any) -> Iterator[Dialogue]:
    """Open a connection with a session."""
    with Dialogue(realm.listen_amqp()) as dialogue:
        dialogue.say(opening(container, **more), begin())
        dialogue.hear(OPEN)
        dialogue.hear(BEGIN)
        yield dialogue


def opening(container: str = "teller", **more: Any) -> bytes:
    """Return the protocol header and an open; ``desired`` and ``properties`` are the last fields of
    the open."""
    values = [container, "host", UInt(65_536), UShort(100), UInt(30_000)]
    extra = [None, None, None, more.get("desired"), more.get("properties")]
    return AMQP + frame_of(OPEN, *values, *extra)


def begin(channel: int = 0) -> bytes:
    return on(channel, frame_of(BEGIN, None, UInt(0), UInt(2_048), UInt(2_048)))


def on(channel: int, data: bytes) -> bytes:
    """Return a frame of channel 0 for another channel."""
    return data[:6] + channel.to_bytes(2, "big") + data[8:]


def queue(name: str | None, *more: Any) -> tuple[Raw, Raw]:
    """Return source and target for a queue."""
    return (
        terminus(0x28, name, *more, capability="queue"),
        terminus(0x29, name, *more, capability="queue"),
    )


def attach_sender(
    name: str, handle: int, address: str | None = "work", *, target: Raw | None = None
) -> bytes:
    target = target or queue(address)[1]
    source = terminus(0x28, "here")
    modes = UByte(2), UByte(0)
    return frame_of(ATTACH, name, UInt(handle), False, *modes, source, target, None, None, UInt(0))


def attach_receiver(
    name: str, handle: int, address: str | None = "work", *, source: Raw | None = None
) -> bytes:
    source = source or queue(address)[0]
    modes = UByte(2), UByte(0)
    return frame_of(ATTACH, name, UInt(handle), True, *modes, source, terminus(0x29, "here"))


def credit(handle: int, count: int, **more: Any) -> bytes:
    window = UInt(0), UInt(2_048), UInt(0), UInt(2_048)
    properties = more.get("properties")
    return frame_of(
        FLOW, *window, UInt(handle), UInt(0), UInt(count), None, False, False, properties
    )


def sasl_frame(code: int, *values: bytes) -> bytes:
    return frame(performative(code, *values), kind=1)
