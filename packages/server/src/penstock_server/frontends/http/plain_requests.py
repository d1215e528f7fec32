"""A fast path for plain HTTP/1.1 requests: reads their heads and writes their responses without
h11, which takes several times as long for both.

A request is plain if its whole head arrives in one read and has only common bytes and headers. This
module refuses nothing: all other bytes go to h11 unchanged, and h11 alone decides what is valid.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock_core.tasks import start_task
from penstock_server.runtime.access.open_connections import TrafficCounts

PLAIN_HEAD_BYTES_MAX: Final = 8 << 10
"""Maximum size in bytes of the head of a plain request."""
_HEAD: Final = re.compile(
    rb"(GET|HEAD|POST|PUT|PATCH|DELETE) (/[!-~]*) HTTP/1\.1\r\n"
    rb"((?:[-!#$%&'*+.^_`|~0-9a-zA-Z]++:[\t -~]*+\r\n)*+)\r\n"
)
"""A plain head. It matches only bytes that h11 also accepts, and never backtracks."""
_NOT_PLAIN: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
"""Headers that change how the bytes after the head are read."""
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_WHITESPACE: Final = b" \t"
_FIELDS: Final = re.compile(
    rb"(?:[-!#$%&'*+.^_`|~0-9a-zA-Z]++: (?:[^\x00\s]++(?:[ \t]++[^\x00\s]++)*+)?\r\n)*+"
)
"""Headers that may be sent, as h11 checks them."""
_WITHOUT_BODY: Final = frozenset((204, 304))
"""Statuses of responses that never have a body."""
_HELD_BYTES_MAX: Final = 64 << 10
"""The head of a response with at most this many bytes is sent together with them."""

Headers = list[tuple[bytes, bytes]]


class PlainHead(NamedTuple):
    """The head of a plain request."""

    method: bytes
    target: bytes
    headers: Headers
    """Names in lower case, and values."""
    body_bytes: int
    end: int
    """Offset of the first byte after the head."""


def plain_head(data: bytes) -> PlainHead | None:
    """Return the head of the request at the start of ``data``; None if h11 has to read it."""
    match = _HEAD.match(data, 0, PLAIN_HEAD_BYTES_MAX)
    if match is None:
        return None
    method, target, lines = match.groups()
    headers: Headers = []
    hosts = 0
    length: bytes | None = None
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(_WHITESPACE)
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if length is not None or _LENGTH.fullmatch(value) is None:
                return None
            length = value
        elif name in _NOT_PLAIN or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
        headers.append((name, value))
    if hosts != 1:
        return None
    return PlainHead(method, target, headers, body_bytes=int(length or 0), end=match.end())


class PlainCycle(RequestResponseCycle):
    """A plain request and its response."""

    def __init__(self, body_bytes: int, traffic: TrafficCounts, **parts: Any) -> None:
        """``body_bytes`` is the size of the request's body; ``parts`` are those of uvicorn's
        cycle."""
        super().__init__(**parts)
        self.unread_bytes = body_bytes
        """Bytes of the request's body that have not arrived."""
        self.more_body = body_bytes > 0
        self._traffic = traffic
        self._held_head = b""
        """Head that is sent together with the first part of the body."""
        self._unsent_bytes = 0
        """Bytes of the response's body that are declared and not sent."""
        self._is_chunked = False
        self._has_body = True
        self._closes = False
        """Whether the connection is closed after the response."""
        if not self.more_body:
            self.message_event.set()

    def take_body(self, data: bytes) -> bytes:
        """Take the body's part of arrived bytes, and return the rest."""
        part = data[: self.unread_bytes]
        self.unread_bytes -= len(part)
        if not self.response_complete:  # otherwise the rest of the body is dropped
            self.body += part
        self.more_body = self.unread_bytes > 0
        self.message_event.set()
        return data[len(part) :]

    def take_whole_body(self) -> bytes | None:
        """Return the request's body as ``receive`` would; None if it has not arrived completely."""
        if self.more_body or self.disconnected or self.response_complete:
            return None
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        return body

    @property
    def is_writable(self) -> bool:
        """Whether :meth:`send_whole` may be called now: the client reads what it is sent."""
        return not (self.flow.write_paused or self.disconnected or self.response_started)

    def send_whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response, as two calls of ``send`` would."""
        self.response_started = True
        self._send_head(status, headers)
        self._send_part(body, is_last=True)

    async def send(self, message: Any) -> None:
        """Send the head or a part of the body, in the form in which h11 sends it."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            assert message["type"] == "http.response.start", "a response begins with its head"
            self.response_started = True
            self._send_head(message["status"], message["headers"])
            return
        assert message["type"] == "http.response.body", "a head is followed by the body"
        assert not self.response_complete, "a complete response has no more parts"
        self._send_part(message["body"], is_last=not message["more_body"])

    def _send_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the status and the headers. Raises ``ValueError`` for an invalid header."""
        fields = b"".join([b"%b: %b\r\n" % header for header in headers])
        by_name = dict(headers)
        if _FIELDS.fullmatch(fields) is None or fields.count(b"\r\n") != len(headers):
            raise ValueError(f"a header of the response is invalid: {fields[:200]!r}")
        self._closes = by_name.get(b"connection") == b"close"
        self._has_body = self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY
        if (length := by_name.get(b"content-length")) is not None:
            self._unsent_bytes = int(length)
        elif status not in _WITHOUT_BODY:
            self._is_chunked = True
            fields += b"Transfer-Encoding: chunked\r\n"
        head = b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, STATUS_PHRASES[status], fields)
        if not self._is_chunked and self._unsent_bytes <= _HELD_BYTES_MAX:
            self._held_head = head
        else:
            self._write(head)

    def _write(self, data: bytes) -> None:
        self._traffic.sent_bytes += len(data)
        self.transport.write(data)

    def _send_part(self, part: bytes, *, is_last: bool) -> None:
        """Send a part of the body. Raises ``ValueError`` if the body has not the declared size."""
        out = part if self._has_body else b""
        is_counted = self._has_body and not self._is_chunked
        if is_counted:
            self._unsent_bytes -= len(part)
            if self._unsent_bytes < 0:
                raise ValueError("the body of the response is larger than declared")
        elif self._has_body:
            out = b"%x\r\n%b\r\n" % (len(part), part) if part else b""
            out += b"0\r\n\r\n" if is_last else b""
        out, self._held_head = self._held_head + out, b""
        if out:
            self._write(out)
        if is_last and is_counted and self._unsent_bytes:
            raise ValueError("the body of the response is smaller than declared")
        if is_last:
            self.response_complete = True
            self.message_event.set()
            if self._closes or not self.keep_alive:
                self.transport.close()
            self.on_response()


class PlainProtocol(H11Protocol):
    """Uvicorn's protocol, with the fast path for plain requests.

    A connection may change between the two at each request. While h11 has a part of a request, all
    bytes go to it.
    """

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, traffic: TrafficCounts
    ) -> None:
        """``traffic`` counts the bytes of plain requests and their responses; the subclass counts
        those that h11 gets."""
        super().__init__(config, server_state, {})
        self._traffic = traffic
        self._plain: PlainCycle | None = None
        """The plain request whose body or response is not complete."""
        self._pipelined = b""
        """Bytes that arrived after a plain request, before its response was complete."""

    def data_received(self, data: bytes) -> None:
        if self._plain is not None:
            self._unset_keepalive_if_required()
            self._continue_plain(self._plain, data)
        elif self._is_between_requests and (head := plain_head(data)) is not None:
            self._begin_plain(head, data[head.end :])
        else:
            super().data_received(data)

    @property
    def _is_between_requests(self) -> bool:
        """Whether h11 has neither a request nor bytes of the next one."""
        conn = self.conn
        return (
            conn.their_state is h11.IDLE
            and conn.our_state is h11.IDLE
            and conn.trailing_data == (b"", False)
        )

    def _begin_plain(self, head: PlainHead, rest: bytes) -> None:
        """Start the task of a plain request; ``rest`` has the bytes after its head."""
        self._unset_keepalive_if_required()
        self._traffic.received_bytes += head.end
        # Determines the form in which h11 refuses a later request of the connection.
        self.conn.their_http_version = b"1.1"
        raw_path, _, query = head.target.partition(b"?")
        path = raw_path.decode("ascii")
        self.headers = head.headers
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": head.method.decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": head.headers,
            "state": self.app_state.copy(),
        }
        cycle = PlainCycle(
            head.body_bytes,
            self._traffic,
            scope=self.scope,
            conn=self.conn,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            on_response=self._plain_response_sent,
        )
        self.cycle = self._plain = cycle
        task = start_task(cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        if rest:
            self._continue_plain(cycle, rest)

    def _continue_plain(self, cycle: PlainCycle, data: bytes) -> None:
        """Receive more of the body. The bytes after it wait for the response."""
        if cycle.unread_bytes:
            after_body = cycle.take_body(data)
            self._traffic.received_bytes += len(data) - len(after_body)
            data = after_body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
        self._pipelined += data
        if cycle.response_complete and not cycle.unread_bytes:
            self._end_plain()
        elif self._pipelined:
            self.flow.pause_reading()

    def _plain_response_sent(self) -> None:
        """Wait for the rest of the request's body, which is not used, or for the next request."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        self.flow.resume_reading()
        if self._plain is not None and not self._plain.unread_bytes:
            self._end_plain()

    def _end_plain(self) -> None:
        """Forget the request, and begin with the one that was pipelined."""
        self._plain = None
        data, self._pipelined = self._pipelined, b""
        if data:
            # Not the subclass's method: these bytes arrived earlier.
            PlainProtocol.data_received(self, data)
