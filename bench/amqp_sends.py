"""A client of AMQP 1.0 that only sends, over the C calls of Qpid Proton. S15 starts it as a
separate process."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from typing import Any, Final

import msgspec

from bench.amqp_peers import Speaker
from bench.measuring import cpu_s_of_all

UNSENT_BYTES_MAX: Final = 1 << 20
"""Most bytes that Proton has encoded but not written to the socket."""
PIECE_BYTES: Final = 1 << 18
FRAME_BYTES: Final = 1 << 17
ROUND: Final = 1_000
"""Messages between two checks of the clock and the socket."""
STUCK_S: Final = 30.0
CLOSED: Final = "the server has closed the connection"


class Job(msgspec.Struct, frozen=True):
    """The work of the process."""

    speaker: Speaker
    size: int
    seconds: float
    is_settled: bool


class Sending:
    """A connection with one link."""

    def __init__(self, job: Job) -> None:
        import cproton_ffi
        from proton import Collector, Connection, Link, Message, Transport

        self._ffi, self._calls = cproton_ffi.ffi, cproton_ffi.lib
        self._is_settled = job.is_settled
        speaker = job.speaker
        self._socket = socket.create_connection(("127.0.0.1", speaker.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)  # noqa: FBT003 - positional-only
        connection, transport, collector = Connection(), Transport(), Collector()
        connection.container = f"bench-{os.getpid()}"
        connection.hostname = "localhost"
        sasl = transport.sasl()
        sasl.allow_insecure_mechs = True
        sasl.allowed_mechs("PLAIN" if speaker.user else "ANONYMOUS")
        if speaker.user:
            connection.user = connection.password = speaker.user
        connection.collect(collector)
        transport.max_frame_size = FRAME_BYTES
        transport.bind(connection)
        connection.open()
        session = connection.session()
        session.open()
        link = session.sender("bench")
        link.target.address = speaker.queue
        link.snd_settle_mode = Link.SND_MIXED if job.is_settled else Link.SND_UNSETTLED
        link.open()
        message = Message(body=b"x" * job.size, durable=True, inferred=True)
        self._objects = (connection, transport, collector, session, link)
        """References to Proton's objects: Proton frees objects that Python does not reference."""
        self._transport, self._collector = transport._impl, collector._impl
        self._session, self._link = session._impl, link._impl
        self._encoded = bytes(message.encode())
        self._out = bytearray(PIECE_BYTES)
        self._out_pointer = self._ffi.from_buffer(self._out)
        self._is_blocked = False
        self._sent = 0
        self._awaited = 0
        """Number of messages that the server has not accepted yet."""

    def send_for(self, seconds: float) -> tuple[int, float]:
        """Send until the time is up and the last message is accepted. Return the number of messages
        and the seconds. Raises ``RuntimeError`` if the server does not accept a message."""
        while not self._calls.pn_link_credit(self._link):
            self._exchange(waits=True)
        before, started_s = self._sent, time.perf_counter()
        while time.perf_counter() - started_s < seconds:
            self._send(ROUND)
            self._exchange(waits=not self._has_room())
        while not self._has_room():
            self._exchange(waits=True)
        self._send(1, is_last=True)
        while self._awaited:
            self._exchange(waits=True)
        return self._sent - before, time.perf_counter() - started_s

    def send_one(self) -> None:
        """Send one message, and wait until it is accepted. Raises as :meth:`send_for`."""
        while not self._has_room():
            self._exchange(waits=True)
        self._send(1)
        while self._awaited:
            self._exchange(waits=True)

    def _has_room(self) -> bool:
        """Return whether the link has credit and few bytes are unsent."""
        unsent = self._calls.pn_session_outgoing_bytes(self._session)
        return bool(self._calls.pn_link_credit(self._link) and unsent < UNSENT_BYTES_MAX)

    def _send(self, count: int, *, is_last: bool = False) -> None:
        """Pass up to ``count`` messages to Proton, as far as there is room. With ``is_last`` they
        are sent unsettled, so that their acceptance shows that all earlier ones have arrived."""
        calls, link, encoded = self._calls, self._link, self._ffi.from_buffer(self._encoded)
        tag = self._ffi.new("pn_delivery_tag_t*")
        size = len(self._encoded)
        is_settled = self._is_settled and not is_last
        for number in range(self._sent, self._sent + count):
            if not self._has_room():
                break
            kept: Any = self._ffi.from_buffer(number.to_bytes(8, "big"))
            tag.start, tag.size = kept, 8
            delivery = calls.pn_delivery(link, tag[0])
            calls.pn_link_send(link, encoded, size)
            calls.pn_link_advance(link)
            if is_settled:
                calls.pn_delivery_settle(delivery)
            else:
                self._awaited += 1
            self._sent += 1

    def _exchange(self, *, waits: bool) -> None:
        """Write the encoded bytes to the socket, and read the received ones."""
        self._write()
        writable = [self._socket] if self._is_blocked else []
        ready = select.select([self._socket], writable, [], STUCK_S if waits else 0)
        if waits and not any(ready):
            raise RuntimeError(
                f"the server has sent nothing for {STUCK_S} s; {self._awaited} messages are not "
                f"accepted"
            )
        if ready[0]:
            self._receive(self._socket.recv(PIECE_BYTES))

    def _write(self) -> None:
        """Write the bytes that Proton has encoded, until the socket accepts no more."""
        calls, transport = self._calls, self._transport
        self._is_blocked = False
        while (pending := calls.pn_transport_pending(transport)) > 0:
            size = calls.pn_transport_peek(transport, self._out_pointer, min(pending, PIECE_BYTES))
            try:
                written = self._socket.send(memoryview(self._out)[:size])
            except BlockingIOError:
                self._is_blocked = True
                return
            calls.pn_transport_pop(transport, written)
        if pending < 0:
            raise RuntimeError(CLOSED)

    def _receive(self, data: bytes) -> None:
        """Pass received bytes to Proton. Raises ``RuntimeError`` if the server has closed the
        connection."""
        if not data:
            raise RuntimeError(CLOSED)
        calls, address, bytes_left = self._calls, self._ffi.from_buffer(data), len(data)
        while bytes_left:
            room = calls.pn_transport_capacity(self._transport)
            if room <= 0:
                raise RuntimeError(CLOSED)
            size = min(room, bytes_left)
            calls.pn_transport_push(self._transport, address, size)
            address, bytes_left = address + size, bytes_left - size
            self._read_events()

    def _read_events(self) -> None:
        """Process Proton's events: accepted messages, and errors of the server."""
        calls, collector = self._calls, self._collector
        while (event := calls.pn_collector_peek(collector)) != self._ffi.NULL:
            kind = calls.pn_event_type(event)
            if kind == calls.PN_DELIVERY:
                delivery = calls.pn_event_delivery(event)
                if calls.pn_delivery_remote_state(delivery) != calls.PN_ACCEPTED:
                    raise RuntimeError("the server has not accepted a message")
                calls.pn_delivery_settle(delivery)
                self._awaited -= 1
            elif kind in (calls.PN_LINK_REMOTE_CLOSE, calls.PN_CONNECTION_REMOTE_CLOSE):
                link = self._objects[-1]
                raise RuntimeError(f"{CLOSED}: {link.remote_condition}")
            calls.pn_collector_pop(collector)


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    sending = Sending(job)
    sending.send_for(job.seconds)
    used_s = cpu_s_of_all(job.speaker.server_pid)
    count, elapsed_s = sending.send_for(job.seconds)
    used_s = cpu_s_of_all(job.speaker.server_pid) - used_s
    figures = {
        "events_per_s": count / elapsed_s,
        "of_server_cpu_s_per_million": used_s / count * 1e6,
    }
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
