"""An administrator who pings a server all the time and watches its memory, from a process of its
own.

A ping is to take a bounded part of the server's processor time. In the process that makes the
requests, it would wait for these, and what the server does for them meanwhile would count. For the
same reason the process has a high priority where the system allows it: on a busy machine an answer
is there long before a process of the usual priority may read it. Memory that a request takes and
gives back is seen only while the request is at work.
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
"""A server that does not answer for so long does not answer any more."""
MEASURED_EVERY_S: Final = 0.02
"""Seconds between two looks at the memory of the server."""
PRIORITY: Final = -15
READ_BYTES: Final = 1 << 16


_SLOWEST, _PINGS, _UNANSWERED, _OWN_BYTES, _RESIDENT_BYTES = range(5)
"""Places of the figures that both processes share."""


class Pinging:
    """The process, and what it has found out."""

    def __init__(self, port: int, pid: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._figures: SynchronizedArray[float] = context.Array("d", [0.0] * 5)
        self._over = context.Event()
        shared = self._figures, self._over
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
        self._over.set()
        self._process.join(PATIENCE_S)
        self._process.kill()

    @property
    def slowest_s(self) -> float:
        """Most processor time of a ping so far."""
        return self._figures[_SLOWEST]

    @property
    def pings(self) -> int:
        return int(self._figures[_PINGS])

    @property
    def memory(self) -> tuple[int, int]:
        """Most memory of the server's own so far, and most resident memory, in bytes."""
        return int(self._figures[_OWN_BYTES]), int(self._figures[_RESIDENT_BYTES])

    @property
    def is_unanswered(self) -> bool:
        """Whether no ping was answered for `PATIENCE_S`."""
        return bool(self._figures[_UNANSWERED])


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid makes it


def _ping(port: int, pid: int, figures: SynchronizedArray[float], over: Event) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    # A thread, because a ping may wait for its answer while the server takes most.
    threading.Thread(target=_watch, args=(pid, figures, over), daemon=True).start()
    answered_s = time.perf_counter()
    while not over.wait(PING_EVERY_S):
        # requests may end the connection
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as line,
        ):
            for used_s in _pings(line, pid):
                figures[_SLOWEST] = max(figures[_SLOWEST], used_s)
                figures[_PINGS] += 1
                answered_s = time.perf_counter()
                if over.wait(PING_EVERY_S):
                    return
        figures[_UNANSWERED] = time.perf_counter() - answered_s > PATIENCE_S


def _watch(pid: int, figures: SynchronizedArray[float], over: Event) -> None:
    """Note the most memory of a process until it ends, or until ``over``."""
    with contextlib.suppress(OSError):
        while not over.wait(MEASURED_EVERY_S):
            own, resident = memory_of(pid)
            figures[_OWN_BYTES] = max(figures[_OWN_BYTES], own)
            figures[_RESIDENT_BYTES] = max(figures[_RESIDENT_BYTES], resident)


def memory_of(pid: int) -> tuple[int, int]:
    """The memory of a process's own, and its most resident memory, in bytes. Raises ``OSError``."""
    return memory_in(Path(f"/proc/{pid}/status").read_text())


def memory_in(status: str) -> tuple[int, int]:
    """The memory of a process's own, and its most resident memory, by ``/proc/PID/status``.

    The pages of mapped segment files are not its own. They are the system's cache, which gives them
    up when memory is needed elsewhere, and for which no limit of a container ends a process."""
    words = (line.split() for line in status.splitlines())
    sizes = {line[0]: int(line[1]) << 10 for line in words if line[-1] == "kB"}
    return sizes.get("RssAnon:", 0) + sizes.get("RssShmem:", 0), sizes.get("VmHWM:", 0)


def _pings(line: socket.socket, pid: int) -> Iterator[float]:
    """The processor time of one ping after the other. Raises ``OSError`` once the connection
    ends."""
    reader = FrameReader()
    line.sendall(PREFACE + b"".join(map(bytes, frame(wire.encode(wire.Hello("ping", "ping"))))))
    while not isinstance(_heard(line, reader), wire.Welcome | wire.ClusterWelcome):
        pass
    number = 0
    while True:
        number += 1
        ask = b"".join(map(bytes, frame(wire.encode(wire.Asked(number, DescribeRealm())))))
        begun_s, used_s = time.perf_counter(), cpu_s(pid)
        line.sendall(ask)
        while not isinstance(_heard(line, reader), wire.Done | wire.Failed):
            pass
        # threads of the server may use more processor time than there was time
        yield min(cpu_s(pid) - used_s, time.perf_counter() - begun_s)


def _heard(line: socket.socket, reader: FrameReader) -> wire.FromServer:
    """The next message of the server. Raises ``OSError``."""
    while (found := reader.next_frame()) is None:
        data = line.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        reader.receive(data)
    return wire.decode_from_server(found[0])
