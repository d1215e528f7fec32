"""An administrator that pings a server all the time and watches its memory, in a separate process.

A ping may use a limited part of the server's processor time. In the process that sends the
requests, a ping would wait for these, and the server's work on them would be counted. For the same
reason this process has a high priority if the system allows it: on a busy machine an answer arrives
long before a process of normal priority can read it. Memory that a request uses only for a moment
is visible only during the request.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock_core.api.realm import DescribeRealm
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, frame

PING_EVERY_S: Final = 0.05
PATIENCE_S: Final = 30.0
"""After this time a server counts as not answering."""
MEASURED_EVERY_S: Final = 0.02
"""Seconds between two measurements of the server's memory."""
PRIORITY: Final = -15
READ_BYTES: Final = 1 << 16


_SLOWEST, _PINGS, _UNANSWERED, _OWN_BYTES, _RESIDENT_BYTES = range(5)
"""Indexes of the figures that both processes share."""


class Pinging:
    """The pinging process and its figures."""

    def __init__(self, port: int, pid: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._figures: SynchronizedArray[float] = context.Array("d", [0.0] * 5)
        self._ended = context.Event()
        shared = self._figures, self._ended
        self._process = context.Process(target=_ping, args=(port, pid, *shared), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._process.join(PATIENCE_S)
        self._process.kill()

    @property
    def slowest_s(self) -> float:
        """Most processor time of a ping so far, in seconds."""
        return self._figures[_SLOWEST]

    @property
    def pings(self) -> int:
        return int(self._figures[_PINGS])

    @property
    def memory(self) -> tuple[int, int]:
        """Most private memory of the server so far, and most resident memory, in bytes."""
        return int(self._figures[_OWN_BYTES]), int(self._figures[_RESIDENT_BYTES])

    @property
    def is_unanswered(self) -> bool:
        """Whether no ping was answered for `PATIENCE_S`."""
        return bool(self._figures[_UNANSWERED])


def cpu_s(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid computes it


def _ping(port: int, pid: int, figures: SynchronizedArray[float], ended: Event) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    # a thread, because a ping may wait for its answer just when the server uses most memory
    threading.Thread(target=_watch, args=(pid, figures, ended), daemon=True).start()
    answered_s = time.perf_counter()
    while not ended.wait(PING_EVERY_S):
        # requests may end the connection
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection,
        ):
            for used_s in _pings(connection, pid):
                figures[_SLOWEST] = max(figures[_SLOWEST], used_s)
                figures[_PINGS] += 1
                answered_s = time.perf_counter()
                if ended.wait(PING_EVERY_S):
                    return
        figures[_UNANSWERED] = time.perf_counter() - answered_s > PATIENCE_S


def _watch(pid: int, figures: SynchronizedArray[float], ended: Event) -> None:
    """Record the most memory of a process until it or this run ends."""
    with contextlib.suppress(OSError):
        while not ended.wait(MEASURED_EVERY_S):
            private_bytes, resident_bytes = memory_of(pid)
            figures[_OWN_BYTES] = max(figures[_OWN_BYTES], private_bytes)
            figures[_RESIDENT_BYTES] = max(figures[_RESIDENT_BYTES], resident_bytes)


def memory_of(pid: int) -> tuple[int, int]:
    """Return the private memory of a process and its most resident memory, in bytes. Raises
    ``OSError``."""
    return memory_in(Path(f"/proc/{pid}/status").read_text())


def memory_in(status: str) -> tuple[int, int]:
    """Return the private and the most resident memory of a process from ``/proc/PID/status``, in
    bytes.

    Pages of mapped segment files do not count as private: they belong to the system's cache, which
    releases them when memory is needed, and no limit of a container ends a process because of them.
    """
    words = (connection.split() for connection in status.splitlines())
    sizes = {
        connection[0]: int(connection[1]) << 10 for connection in words if connection[-1] == "kB"
    }
    return sizes.get("RssAnon:", 0) + sizes.get("RssShmem:", 0), sizes.get("VmHWM:", 0)


def _pings(connection: socket.socket, pid: int) -> Iterator[float]:
    """Yield the processor time of one ping after the other. Raises ``OSError`` once the connection
    ends."""
    reader = FrameReader()
    connection.sendall(
        PREFACE + b"".join(map(bytes, frame(wire.encode(wire.Hello("ping", "ping")))))
    )
    while not isinstance(_receive(connection, reader), wire.Welcome | wire.ClusterWelcome):
        pass
    number = 0
    while True:
        number += 1
        ask = b"".join(map(bytes, frame(wire.encode(wire.Asked(number, DescribeRealm())))))
        begun_s, used_s = time.perf_counter(), cpu_s(pid)
        connection.sendall(ask)
        while not isinstance(_receive(connection, reader), wire.Done | wire.Failed):
            pass
        # threads of the server may use more processor time than has passed
        yield min(cpu_s(pid) - used_s, time.perf_counter() - begun_s)


def _receive(connection: socket.socket, reader: FrameReader) -> wire.FromServer:
    """Return the next message of the server. Raises ``OSError``."""
    while (received := reader.next_frame()) is None:
        data = connection.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        reader.receive(data)
    return wire.decode_from_server(received[0])
