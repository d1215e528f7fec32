"""The real HTTP connection object of a real realm, fed with almost valid requests.

As with the others, no socket is involved. An unforeseen error of a request is logged and answered
with 500, so the log is checked. Every request must end once its connection is lost.
"""

from __future__ import annotations

import asyncio
import atexit
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa
from structlog.testing import capture_logs

from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_server.frontends.http.front_end import http_server
from penstock_server.frontends.http.routing import BASE
from penstock_server.frontends.http.server import HttpConnection
from tests.fuzz.connections import SETTINGS, TURNS_MAX, Served, Wire

PIECE_BYTES: Final = 300
END_S: Final = 5.0
_LENGTH: Final = re.compile(rb"(?i)(content-length: *)\d+(\r\n)?")


class HttpServed(Served):
    """The realm with HTTP connections."""

    async def restart(self) -> None:
        await super().restart()
        self._http = http_server(self.listener, SETTINGS)
        await self._feed(b"".join(setup_requests()))

    async def converse(self, data: bytes) -> None:
        with capture_logs() as logged:
            await self._feed(data)
        unforeseen = [line for line in logged if line["log_level"] in ("error", "critical")]
        assert not unforeseen, f"an unforeseen error of the connection: {unforeseen}"

    async def _feed(self, data: bytes) -> None:
        peer, out = HttpConnection(self._http), Wire()
        peer.connection_made(out)
        for start in range(0, len(data), PIECE_BYTES):
            if not out.is_closing():
                peer.data_received(data[start : start + PIECE_BYTES])
                await asyncio.sleep(0)
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
        peer.connection_lost(None)
        if tasks := set(self._http.uvicorn.tasks):
            _, unfinished = await asyncio.wait(tasks, timeout=END_S)
            assert not unfinished, f"a request continues after the loss of its client: {unfinished}"


@lru_cache
def _served() -> HttpServed:
    served = HttpServed()
    atexit.register(served.close)
    return served


def serve(data: bytes) -> None:
    """Converse with the bytes as they are, and with the right length of the body."""
    _served().handle(data)
    _served().handle(with_length(data))


def with_length(data: bytes) -> bytes:
    """Return the data with the last request's length corrected, so that the change is in bytes that
    are read."""
    head, gap, body = data.rpartition(b"\r\n\r\n")
    return _LENGTH.sub(rb"\g<1>%d\g<2>" % len(body), head) + gap + body


def request(line: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """Return a request. ``line``: the method, and the path below the API's base or from the
    root."""
    method, _, path = line.partition(" ")
    where = path if path.startswith("/") else f"{BASE}/{path}"
    head = f"{method} {where} HTTP/1.1\r\nhost: localhost\r\n"
    if body or method != "GET":
        head += f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


def setup_requests() -> Sequence[bytes]:
    """Return requests that create the objects of the others."""
    return [
        request("POST channels", b'{"name": "a", "attributes": {"keys": {"n": 2}}}'),
        request("POST channels/a/events", _LINES, "application/x-ndjson"),
        request("POST channels/a/durables", b'{"name": "d", "type": "shared"}'),
        request("POST queues", b'{"name": "q"}'),
        request("POST queues/q/events", _LINES, "application/x-ndjson"),
    ]


_LINES: Final = b'{"data": "eA==", "properties": {"n": 1}}\n{"text": "y", "tag": "t", "ttl": 5}\n'


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


@lru_cache
def conversations() -> Sequence[bytes]:
    """Each asks for something that is right."""
    batch = body_of([Event(b"abc", properties={"n": 1}), Event(b"d", properties={"n": 2})])
    arrow = _stream(batch)
    new = (
        b'{"name": "b/c", "attributes": {"type": "reliable", "ttl": 5, "storage": {"priority": 2}}}'
    )
    chunk = b"%x\r\n" % len(_LINES) + _LINES + b"\r\n0\r\n\r\n"
    chunked = b"\r\ntransfer-encoding: chunked\r\n"
    pushed = request("POST queues/q/events", _LINES, "application/x-ndjson")
    return [
        *setup_requests(),
        request("POST channels", new) + request("GET channels?limit=5&after=a"),
        request("POST channels/a/events", arrow, "application/vnd.apache.arrow.stream"),
        request("GET channels/a/events?start=0&limit=10&selector=n%20%3E%201&data_bytes=2"),
        request("GET channels/a/live?start=earliest&selector=n%20%3D%201"),
        request("POST channels/a/purge", b'{"start": 0, "end": 5, "selector": "n = 1"}'),
        request("PATCH channels/a", b'{"ttl": 1000, "dead_event_store": "q"}'),
        request("POST queues/q/pop", b'{"count": 2}'),
        request("POST selectors/check", b'{"selector": "a LIKE \'x%\' AND b[1].c IN (1, 2)"}'),
        request("POST joins", b'{"source": "a", "destination": "q", "selector": "n = 1"}'),
        request("POST redrive", b'{"source": "q", "destination": "a"}'),
        request("GET channels/a/durables/d/events?limit=3") + request("GET channels/a/missing"),
        request("GET channels/a/export") + request("GET realm") + request("GET /metrics"),
        request("GET /") + request("GET /health") + request("GET openapi.json"),
        _LENGTH.sub(b"", pushed).replace(b"\r\n\r\n" + _LINES, chunked + b"\r\n" + chunk),
    ]
