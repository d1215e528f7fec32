"""Sends a request again and again over one connection, each after the answer to the previous one.
S21 starts it as a separate process, with the same client for all servers: a blocking socket."""

from __future__ import annotations

import re
import socket
import sys
import time
from typing import Final

import msgspec

from bench.measuring import cpu_s_of_all, percentiles_us
from bench.processes import figures_of
from bench.shape import Figures

WARM_UP: Final = 500
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)\r\n")
_GOOD: Final = re.compile(rb"HTTP/1\.1 20[01] ")


class HttpJob(msgspec.Struct, frozen=True):
    """The work of the process."""

    port: int
    server_pid: int
    request: bytes
    expected: str
    """Text that the body of each answer has."""
    seconds: float


class KeptConnection:
    """A connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        """Send a request and return its answer. Raises ``RuntimeError`` if that is an error."""
        self._socket.sendall(request)
        answer = self._socket.recv(65_536)
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._more()
        length = _LENGTH.search(answer, 0, end + 2)
        if length is None or _GOOD.match(answer) is None:
            raise RuntimeError(answer.decode(errors="replace"))
        while len(answer) < end + 4 + int(length[1]):
            answer += self._more()
        return answer

    def _more(self) -> bytes:
        if more := self._socket.recv(65_536):
            return more
        raise RuntimeError("the server has closed the connection")


def load(job: HttpJob) -> Figures:
    """Return the figures of a process that does the work."""
    return figures_of([sys.executable, "-m", "bench.http_load"], job)


def measured(job: HttpJob) -> Figures:
    """Send requests for a time, and measure the latency of each."""
    connection = KeptConnection(job.port)
    for _ in range(WARM_UP):
        connection.ask(job.request)
    answer = connection.ask(job.request)
    if job.expected.encode() not in answer:
        raise RuntimeError(f"the server has not stored the event: {answer!r}")
    latencies = []
    server_cpu_s = cpu_s_of_all(job.server_pid)
    started_s = now_s = time.perf_counter()
    while now_s - started_s < job.seconds:
        connection.ask(job.request)
        before_s, now_s = now_s, time.perf_counter()
        latencies.append(now_s - before_s)
    used_s = cpu_s_of_all(job.server_pid) - server_cpu_s
    return percentiles_us(latencies) | {
        "achieved_per_s": len(latencies) / (now_s - started_s),
        "of_server_cpu_s_per_million": used_s / len(latencies) * 1e6,
    }


if __name__ == "__main__":
    print(msgspec.json.encode(measured(msgspec.json.decode(sys.argv[1], type=HttpJob))).decode())
